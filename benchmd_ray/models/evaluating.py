"""Networks that are tried out, without a trace of it in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Within, a network is in evaluation mode and computes without gradients.

    Afterwards each of its parts is in the mode that it was in, which may not be that of the whole,
    and the random numbers of the CPU go on as if nothing had been drawn.
    """
    modes = [(part, part.training) for part in network.modules()]
    network.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for part, mode in modes:
            part.training = mode
