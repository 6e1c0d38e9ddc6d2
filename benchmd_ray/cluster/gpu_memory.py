"""Memory of a GPU that several processes share."""

import torch

TENSORS = 0.95
"""Of a share, what tensors may take: the rest is for CUDA's own memory of a process."""
EXHAUSTED = (
    "cuda error: out of memory",
    *(f"cublas_status_{what}" for what in ("alloc_failed", "not_initialized")),
    *(f"cudnn_status_{what}" for what in ("alloc_failed", "not_initialized")),
)
"""What CUDA and its libraries say where they could allocate nothing."""


def take_share(share: float) -> None:
    """Let this process have so much of its GPU's memory: what it takes beyond fails in it alone.

    A share of 0, 1 and more limits nothing.
    """
    if not torch.cuda.is_available():
        return
    if 0 < share < 1:
        torch.cuda.set_per_process_memory_fraction(share * TENSORS)
    elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # work had a share before
        torch.cuda.set_per_process_memory_fraction(1.0)


def is_exhausted(error: BaseException) -> bool:
    """Whether an error of PyTorch or a CUDA library says that a GPU has no memory left."""
    message = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(word in message for word in EXHAUSTED)


def room(device: torch.device) -> int:
    """Bytes that this process can still take."""
    free, total = torch.cuda.mem_get_info(device)
    share = torch.cuda.get_per_process_memory_fraction(device.index) * total
    return min(free, int(share) - torch.cuda.memory_reserved(device))
