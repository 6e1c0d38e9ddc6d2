"""What takes the place of CUDA graphs on a CPU."""

import torch


class Again:
    """Takes the place of a CUDA graph: a replay does what was captured, with the same tensors."""

    captures = 0

    def capture(self, work):
        Again.captures += 1
        self.work, self.loss = work, torch.zeros(())
        return self.loss

    def replay(self):
        self.loss.copy_(self.work())


class Refused(Again):
    """A graph that cannot hold the work."""

    def capture(self, work):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")
