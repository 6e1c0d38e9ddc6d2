"""Changes that move the values of signals, and masks alike: flips, shifts, rotation and scaling."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional

from benchmd_ray.data.batches import to_device
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.augmentation.draws import AFFINE, AXES, AugmentationDraws

ANGLE = math.pi / 6
"""Largest rotation in each plane, in radians: 30°."""
SCALE = 1.5
"""Largest factor of the extent of what is seen; the smallest is one over it."""
ROUNDING = 1e-6
"""What a shift in values may lack of a whole one: 28 · 1/7 is 4."""


def moved(
    signals: torch.Tensor,
    how: AugmentationSettings,
    draws: AugmentationDraws,
    *,
    nearest: bool = False,
) -> torch.Tensor:
    """Signals (batch, channel, *extents) with their values moved.

    With ``nearest``, values between places are those of the nearest one, as labels of masks
    must be.
    """
    together = draws.together(how)
    if how.flip:
        signals = flipped(signals, together["flip"], how.flip)
    if how.shift:
        signals = shifted(signals, together["shift"], how.shift)
    if how.affine:
        numbers = draws.uniform(AXES + 1, AFFINE)
        signals = transformed(signals, numbers, how.affine, nearest=nearest)
    return signals


def flipped(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """Each axis but the channel's mirrored where its number is below half the strength."""
    for axis in range(2, signals.dim()):
        turned = per_example(numbers[:, axis - 2] < 0.5 * strength, signals)
        signals = torch.where(turned, signals.flip(axis), signals)
    return signals


def shifted(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """What moves in from beyond the border is what is at the border."""
    for axis in range(2, signals.dim()):
        extent = signals.shape[axis]
        most = math.floor(extent * strength + ROUNDING)
        by = (numbers[:, axis - 2] * (2 * most + 1)).long() - most
        place = torch.arange(extent, device=signals.device) - by[:, None]
        shape = [
            len(signals) if a == 0 else extent if a == axis else 1 for a in range(signals.dim())
        ]
        index = place.clamp(0, extent - 1).view(shape).expand_as(signals)
        signals = signals.gather(axis, index)
    return signals


def transformed(
    signals: torch.Tensor, numbers: torch.Tensor, strength: float, *, nearest: bool = False
) -> torch.Tensor:
    """Signals rotated and scaled about their centre, each by itself.

    A volume is rotated in the planes (x, y), (x, z) and (y, z), one after the other. In a plane
    whose extents differ the angle is multiplied with the shorter one over the longer one, so that
    thin slabs stay within. Beyond the border values are those at the border. MONAI's affine
    transforms would take the examples one by one with random states of their own.

    Args:
        signals: (batch, channel, *extents) of two or three axes.
        numbers: (batch, 4), uniform in [0, 1): an angle for each plane and a scale.
        strength: Of the largest angle, and of the logarithm of the largest scale.
        nearest: Whether values are those of the nearest place, else interpolated linearly.
    """
    extents = signals.shape[:1:-1]  # (x, y) or (x, y, z), as the matrices have them
    signed = strength * (2 * numbers.float() - 1)
    axes = len(extents)
    planes = [(a, b) for a in range(axes) for b in range(a + 1, axes)]
    matrix = torch.eye(axes, device=signals.device).expand(len(signals), -1, -1)
    for number, (a, b) in enumerate(planes):
        thin = min(extents[a], extents[b]) / max(extents[a], extents[b])
        matrix = matrix @ _rotation(ANGLE * thin * signed[:, number], a, b, axes)
    matrix = matrix * torch.exp(-math.log(SCALE) * signed[:, -1])[:, None, None]
    sizes = to_device(np.array(extents, np.float32), signals.device)
    relative = matrix * sizes / sizes[:, None]  # from places to shares of each extent
    theta = torch.cat([relative, relative.new_zeros(len(signals), axes, 1)], dim=2)
    grid = functional.affine_grid(theta, list(signals.shape), align_corners=False)
    mode = "nearest" if nearest else "bilinear"
    moved_signals = functional.grid_sample(
        signals.float(), grid, mode=mode, padding_mode="border", align_corners=False
    )
    return moved_signals.to(signals.dtype)


def _rotation(angles: torch.Tensor, a: int, b: int, axes: int) -> torch.Tensor:
    """Rotations (batch, axes, axes) in the plane of two axes."""
    matrix = torch.eye(axes, device=angles.device).repeat(len(angles), 1, 1)
    cos, sin = angles.cos(), angles.sin()
    matrix[:, a, a], matrix[:, b, b] = cos, cos
    matrix[:, a, b], matrix[:, b, a] = -sin, sin
    return matrix


def per_example(numbers: torch.Tensor, signals: torch.Tensor) -> torch.Tensor:
    """One number of each example (batch,), as broad as the signals."""
    return numbers.view(-1, *[1] * (signals.dim() - 1))
