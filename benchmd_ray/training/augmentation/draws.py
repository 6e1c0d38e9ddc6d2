"""What augmentation draws: a function of seed, step and the place in the batch of all workers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from benchmd_ray.data.batches import Worker, to_device
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.seeds import AUGMENTATION

AXES = 3
"""Axes of a signal but the channel's, at most."""
TOGETHER = {"flip": AXES, "shift": AXES, "shape": 1}
"""Changes whose numbers are drawn together, with how many an example needs of each."""
AFFINE, BLUR, INTENSITY, NOISE, MASKING, LEADS, WANDER, MIXING = range(1, 9)
"""What each of the others draws from; not 0, which would be the stream of `TOGETHER`."""


@dataclass(frozen=True)
class AugmentationDraws:
    """Draws for a worker's share of a training step."""

    share: int
    """Examples of the share; the other workers' are as long."""
    seed: int
    """Of the run."""
    step: int
    """Number of the step."""
    worker: Worker
    """Whose share it is."""

    def uniform(self, numbers: int, *stream: int) -> torch.Tensor:
        """Numbers in [0, 1): (share, numbers), on the worker's device."""
        drawn = np.random.default_rng([AUGMENTATION, self.seed, self.step, *stream])
        every = drawn.random((self.share * self.worker.world, numbers), np.float32)
        share = every[self.worker.rank * self.share :][: self.share]
        return to_device(np.ascontiguousarray(share), self.worker.device)

    def together(self, how: AugmentationSettings) -> dict[str, torch.Tensor]:
        """Numbers of those of `TOGETHER` that are on: (share, numbers) each."""
        used = {name: numbers for name, numbers in TOGETHER.items() if getattr(how, name)}
        if not used:
            return {}
        numbers, parts, start = self.uniform(sum(used.values())), {}, 0
        for name, count in used.items():
            parts[name] = numbers[:, start : start + count]
            start += count
        return parts


def normal(shape: torch.Size, numbers: torch.Tensor) -> torch.Tensor:
    """Standard normal values that depend on nothing but two numbers of each example.

    The values of a batch would be many to draw for all workers on the CPU, and a generator for each
    example many calls on a GPU. They are hashes of the example's numbers and the value's place
    instead: counter-based, as Salmon et al. 2011 (doi:10.1145/2063384.2063405), with the mixing
    function lowbias32 of Wellons (https://nullprogram.com/blog/2018/07/31/), and turned into normal
    ones by Box and Muller 1958 (doi:10.1214/aoms/1177706645).

    Args:
        shape: (batch, …).
        numbers: (batch, 2), uniform in [0, 1).

    Returns:
        float32 of that shape, on the device of the numbers, at most 5.8 in size.
    """
    size = math.prod(shape[1:])
    halves = (numbers.double() * 2**16).long()
    key = _hashed(halves[:, :1] * 2**16 + halves[:, 1:])
    counter = _hashed(torch.arange(size + size % 2, device=numbers.device))
    # The upper 24 bits are what float32 holds; the logarithm is not taken of 0.
    parts = (_hashed(counter ^ key) >> 8).float() * 2**-24
    first, second = parts.chunk(2, dim=1)
    radius = (-2 * (first + 2**-24).log()).sqrt()
    angle = 2 * math.pi * second
    values = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)
    return values[:, :size].reshape(shape)


def _hashed(x: torch.Tensor) -> torch.Tensor:
    """Integers of 32 bits, held in int64, to others of 32 bits."""
    bits = 2**32 - 1
    x = x ^ x >> 16
    x = x * 0x7FEB352D & bits
    x = x ^ x >> 15
    x = x * 0x846CA68B & bits  # where this overflows, the lower 32 bits are right all the same
    return x ^ x >> 16
