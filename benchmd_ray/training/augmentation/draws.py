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
    """Draws for a worker's share of a training step; the other workers' shares are as long."""

    share: int
    seed: int
    step: int
    worker: Worker

    def uniform(self, numbers: int, *stream: int) -> torch.Tensor:
        """Numbers in [0, 1): (share, numbers), on the worker's device."""
        drawn = np.random.default_rng([AUGMENTATION, self.seed, self.step, *stream])
        every = drawn.random((self.share * self.worker.world, numbers), np.float32)
        share = every[self.worker.rank * self.share :][: self.share]
        return to_device(np.ascontiguousarray(share), self.worker.device)

    def together(self, how: AugmentationSettings) -> dict[str, torch.Tensor]:
        """Numbers (share, numbers) for each of `TOGETHER` that is on."""
        used = {name: numbers for name, numbers in TOGETHER.items() if getattr(how, name)}
        if not used:
            return {}
        numbers, parts, start = self.uniform(sum(used.values())), {}, 0
        for name, count in used.items():
            parts[name] = numbers[:, start : start + count]
            start += count
        return parts


def normal(shape: torch.Size, numbers: torch.Tensor) -> torch.Tensor:
    """Standard normal float32 values of a shape (batch, …), at most 5.8 in size.

    They depend only on two numbers in [0, 1) of each example, (batch, 2): to draw all of a batch on
    the CPU, or with a generator for each example on a GPU, is slow. They are hashes of the numbers
    and the value's place: counter-based, as Salmon et al. 2011 (doi:10.1145/2063384.2063405), with
    the mixing function lowbias32 of Wellons (https://nullprogram.com/blog/2018/07/31/), made normal
    by Box and Muller 1958 (doi:10.1214/aoms/1177706645).
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
    """Integers of 32 bits, in int64, to others of 32 bits."""
    bits = 2**32 - 1
    x = x ^ x >> 16
    x = x * 0x7FEB352D & bits
    x = x ^ x >> 15
    x = x * 0x846CA68B & bits  # where this overflows, the lower 32 bits are right all the same
    return x ^ x >> 16
