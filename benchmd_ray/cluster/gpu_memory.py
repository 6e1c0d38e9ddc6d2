"""Memory of a GPU that several processes share."""

import torch

TENSORS = 0.95
"""Fraction of a share for tensors; CUDA itself needs the rest."""
EXHAUSTED = (
    "cuda error: out of memory",
    *(f"cublas_status_{what}" for what in ("alloc_failed", "not_initialized")),
    *(f"cudnn_status_{what}" for what in ("alloc_failed", "not_initialized")),
)


def take_share(share: float) -> None:
    """Limit this process to a share of its GPU's memory; only this process fails if it needs more.

    A share of 0, 1 or more sets no limit.
    """
    if not torch.cuda.is_available():
        return
    if 0 < share < 1:
        torch.cuda.set_per_process_memory_fraction(share * TENSORS)
    elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # work had a share before
        torch.cuda.set_per_process_memory_fraction(1.0)


def has_share(device: torch.device) -> bool:
    """Whether this process is limited to a share of the device's memory."""
    if device.type != "cuda":
        return False
    return torch.cuda.get_per_process_memory_fraction(device.index) < 1


def is_exhausted(error: BaseException) -> bool:
    """Whether an error of PyTorch or a CUDA library means that a GPU has no memory left."""
    message = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(word in message for word in EXHAUSTED)


def room(device: torch.device) -> int:
    """Bytes that this process can still allocate."""
    free, total = torch.cuda.mem_get_info(device)
    share = torch.cuda.get_per_process_memory_fraction(device.index) * total
    return min(free, int(share) - torch.cuda.memory_reserved(device))
