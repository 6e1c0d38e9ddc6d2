"""Resizing of grey levels along y and x, equal to Pillow's for every pixel, on any device.

Pillow weighs in whole numbers, multiples of 2**-22, along x first and then along y, and rounds to
grey levels after each (its file ``Resample.c``). Newer versions take y first where y shrinks much
more than x; images that keep their proportions are not concerned.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

BITS = 22
GREY = (19595, 38470, 7471)
"""Weights of red, green and blue in a grey level, multiples of 2**-16."""


class PillowResize(nn.Module):
    """Grey levels (batch, channels, y, x) to another size, as float32.

    Without ``rounded`` they are not made whole, as by torchvision with antialiasing of floats.
    """

    x: torch.Tensor | None
    y: torch.Tensor | None

    def __init__(
        self, size: tuple[int, int], to: tuple[int, int], interpolation: str, rounded: bool = True
    ) -> None:
        super().__init__()
        self._levels = _rounded if rounded else _unrounded
        for name, extents in (("y", (size[0], to[0])), ("x", (size[1], to[1]))):
            weights = None
            if extents[0] != extents[1]:
                weights = torch.from_numpy(_weights(*extents, interpolation))
            self.register_buffer(name, weights, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, y = self.x, self.y
        if x is not None:
            images = self._levels(images.double() @ x.double().T, BITS).float()
        if y is not None:
            images = self._levels(y.double() @ images.double(), BITS).float()
        return images


def grey(images: torch.Tensor) -> torch.Tensor:
    """Colours (batch, 3, y, x) as grey levels (batch, 1, y, x)."""
    weights = torch.tensor(GREY, dtype=torch.float64, device=images.device).reshape(1, 3, 1, 1)
    return _rounded((images.double() * weights).sum(dim=1, keepdim=True), 16).float()


def _rounded(sums: torch.Tensor, bits: int) -> torch.Tensor:
    """Whole numbers below 2**53 in units of 2**-bits as grey levels; halves are rounded up."""
    levels: torch.Tensor = ((sums + 2 ** (bits - 1)) / 2**bits).floor().clamp(0, 255)
    return levels


def _unrounded(sums: torch.Tensor, bits: int) -> torch.Tensor:
    levels: torch.Tensor = sums / 2**bits
    return levels


def _weights(extent: int, to: int, interpolation: str) -> npt.NDArray[np.int32]:
    """(to, extent): weight of each pixel in each new one, multiples of 2**-22."""
    scale = extent / to
    stretch = max(scale, 1.0)
    support = {"bilinear": 1.0, "bicubic": 2.0}[interpolation] * stretch
    matrix = np.zeros((to, extent), np.int32)
    for place in range(to):
        centre = (place + 0.5) * scale
        first = max(int(centre - support + 0.5), 0)
        last = min(int(centre + support + 0.5), extent)
        distances = (np.arange(first, last) - centre + 0.5) * (1.0 / stretch)
        kernel = (_cubic if interpolation == "bicubic" else _triangle)(np.abs(distances))
        kernel = kernel * (1.0 / math.fsum(kernel))
        matrix[place, first:last] = np.trunc(kernel * 2**BITS + np.copysign(0.5, kernel))
    return matrix


def _triangle(distance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.maximum(1.0 - distance, 0.0)


def _cubic(distance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Keys' kernel with a = −0.5."""
    a, x = -0.5, distance
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
