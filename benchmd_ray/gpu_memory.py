"""Memory of a GPU that several processes share."""

import torch

TENSORS = 0.95
"""Of a share, what tensors may take: the rest is for CUDA's own memory of a process."""


def take_share(share: float) -> None:
    """Let this process have so much of its GPU's memory: what it takes beyond fails in it alone.

    Args:
        share: Of a GPU, as a plan gives it; 0, 1 and more limit nothing.
    """
    if 0 < share < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share * TENSORS)


def room(device: torch.device) -> int:
    """Bytes that this process can still take."""
    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.get_per_process_memory_fraction(device.index) * total
    return min(free, int(own) - torch.cuda.memory_reserved(device))
