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


class Static(Again):
    """A graph of passes alone, whose gradients have places of their own.

    Like a CUDA graph's, its capture leaves no mark but these, where each replay puts them.
    """

    def capture(self, work):
        Again.captures += 1
        module, self.work = self.engine.module, work
        buffers = [(x, x.clone()) for x in module.buffers()]
        self.loss = work().clone()
        for x, value in buffers:
            x.copy_(value)
        self.places = [(p, p.grad) for p in module.parameters() if p.grad is not None]
        return self.loss

    def replay(self):
        assert all(parameter.grad is None for parameter, _ in self.places)
        self.loss.copy_(self.work())
        for parameter, place in self.places:
            place.copy_(parameter.grad)
            parameter.grad = None


class Refused(Again):
    """A graph that cannot hold the work."""

    def capture(self, work):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")
