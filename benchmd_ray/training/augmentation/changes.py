"""Spatial and value changes of signals (batch, channel, *extents).

MONAI has most of them for one example at a time, with a separate random state; here the whole batch
is changed at once, with random numbers that do not depend on the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import functional

from benchmd_ray.data.batches import Worker, to_device
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.seeds import AUGMENTATION

AXES = 3
"""Most axes of a signal besides the channel."""
TOGETHER = ("flip", "shift", "shape")
"""Changes whose random numbers are drawn together."""
STREAMS = ("affine", "blur", "intensity", "noise", "masking", "lead_dropout", "wander")
"""Changes with a random stream each, from 1 on; the next one is that of mixtures."""
MIXING = len(STREAMS) + 1
Numbers = Mapping[str, torch.Tensor]
"""Uniform numbers in [0, 1) of each enabled change: (batch, numbers)."""
ANGLE = math.pi / 6
"""Largest rotation in each plane, in radians: 30°."""
SCALE = 1.5
"""Largest zoom factor; the smallest is its inverse."""
ROUNDING = 1e-6
"""Tolerance below a whole number of values in a shift: 28 · 1/7 is 4."""
BLURRED = 2.0
"""Largest standard deviation of the blur, in pixels."""
REACH = 3
"""Radius of the blur in standard deviations."""
CYCLES = (0.5, 5.0)
"""Cycles of baseline wander over a signal: 0.05 to 0.5 Hz for 10 s of ECG, the filtered range
(Kligfield et al. 2007, doi:10.1161/CIRCULATIONAHA.106.180200), ; for 30 s of EEG below the slow
waves of sleep.
"""


def counts(how: AugmentationSettings, leads: int) -> dict[str, int]:
    """Random numbers that an example needs for each enabled change."""
    every = {
        **{"flip": AXES, "shift": AXES, "shape": 1},
        **{"affine": AXES + 1, "blur": 1, "intensity": 2, "noise": 3, "masking": 1 + AXES},
        **{"lead_dropout": leads, "wander": 1 + 2 * leads},
    }
    return {name: count for name, count in every.items() if getattr(how, name)}


def drawn_numbers(
    how: AugmentationSettings, signals: torch.Tensor, seed: int, step: int, worker: Worker
) -> torch.Tensor:
    """Uniform numbers in [0, 1) for a worker's share of a step: (share, numbers), on its device.

    All shares have the same length.
    """
    share, enabled = len(signals), counts(how, signals.shape[1])
    together = sum(count for name, count in enabled.items() if name in TOGETHER)
    streams = [((), together)] + [
        ((number,), enabled.get(name, 0)) for number, name in enumerate(STREAMS, 1)
    ]
    parts = [
        np.random.default_rng([AUGMENTATION, seed, step, *stream]).random(
            (share * worker.world, count), np.float32
        )
        for stream, count in streams
        if count
    ]
    every = np.concatenate(parts, axis=1)[worker.rank * share :][:share]
    return to_device(np.ascontiguousarray(every), worker.device)


def by_change(numbers: torch.Tensor, how: AugmentationSettings, leads: int) -> Numbers:
    """The columns of `drawn_numbers` of each enabled change."""
    enabled = counts(how, leads)
    return dict(zip(enabled, torch.split(numbers, list(enabled.values()), dim=1), strict=True))


def normal(shape: torch.Size, numbers: torch.Tensor) -> torch.Tensor:
    """Standard normal float32 values of a shape (batch, …), at most 5.8 in magnitude.

    They depend only on two numbers in [0, 1) per example, (batch, 2), since drawing a whole batch
    on the CPU, or with one generator per example on a GPU, is slow. A value is a hash of these
    numbers and its index, counter-based as in Salmon et al. 2011 (doi:10.1145/2063384.2063405),
    with the mixing function lowbias32 of Wellons (https://nullprogram.com/blog/2018/07/31/), made
    normal by Box and Muller 1958 (doi:10.1214/aoms/1177706645).
    """
    size = math.prod(shape[1:])
    halves = (numbers.double() * 2**16).long()
    key = _hashed(halves[:, :1] * 2**16 + halves[:, 1:])
    counter = _hashed(torch.arange(size + size % 2, device=numbers.device))
    # float32 holds the upper 24 bits; avoids the logarithm of 0.
    parts = (_hashed(counter ^ key) >> 8).float() * 2**-24
    first, second = parts.chunk(2, dim=1)
    radius = (-2 * (first + 2**-24).log()).sqrt()
    angle = 2 * math.pi * second
    values = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)
    return values[:, :size].reshape(shape)


def _hashed(x: torch.Tensor) -> torch.Tensor:
    bits = 2**32 - 1
    x = x ^ x >> 16
    x = x * 0x7FEB352D & bits
    x = x ^ x >> 15
    x = x * (0x846CA68B - 2**32) & bits  # the same lower 32 bits, without an overflow
    return x ^ x >> 16


def moved(
    signals: torch.Tensor, how: AugmentationSettings, numbers: Numbers, *, nearest: bool = False
) -> torch.Tensor:
    """Apply the spatial changes to signals, or to masks with ``nearest`` interpolation."""
    if how.flip:
        signals = flipped(signals, numbers["flip"], how.flip)
    if how.shift:
        signals = shifted(signals, numbers["shift"], how.shift)
    if how.affine:
        signals = transformed(signals, numbers["affine"], how.affine, nearest=nearest)
    return signals


def flipped(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """Mirror signals along each axis whose number is below half the strength."""
    for axis in range(2, signals.dim()):
        turned = per_example(numbers[:, axis - 2] < 0.5 * strength, signals)
        signals = torch.where(turned, signals.flip(axis), signals)
    return signals


def shifted(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """Shift signals; values at the border are repeated beyond it."""
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
    """Rotate and scale signals of two or three axes about their centre.

    ``numbers`` (batch, 4) in [0, 1) are an angle for each plane, (x, y), (x, z) and (y, z), and a
    scale. In a plane with different extents the angle is multiplied by the ratio of the shorter to
    the longer one, so that thin slabs stay inside. Values at the border are repeated beyond it.
    """
    extents = signals.shape[:1:-1]  # (x, y) or (x, y, z), the order of the matrices
    signed = strength * (2 * numbers.float() - 1)
    axes = len(extents)
    planes = [(a, b) for a in range(axes) for b in range(a + 1, axes)]
    matrix = torch.eye(axes, device=signals.device).expand(len(signals), -1, -1)
    for number, (a, b) in enumerate(planes):
        thin = min(extents[a], extents[b]) / max(extents[a], extents[b])
        matrix = matrix @ _rotation(ANGLE * thin * signed[:, number], a, b, axes)
    matrix = matrix * torch.exp(-math.log(SCALE) * signed[:, -1])[:, None, None]
    sizes = torch.cat([signed.new_full((1,), extent) for extent in extents])
    relative = matrix * sizes / sizes[:, None]  # from positions to fractions of each extent
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
    """One number per example (batch,), reshaped to broadcast with the signals."""
    return numbers.view(-1, *[1] * (signals.dim() - 1))


def altered(signals: torch.Tensor, how: AugmentationSettings, numbers: Numbers) -> torch.Tensor:
    """Apply the value changes to normalised signals; padding, 0 in all channels (D3), stays 0."""
    before = signals
    if how.blur:
        signals = blurred(signals, numbers["blur"], how.blur)
    if how.intensity:
        signals = scaled(signals, numbers["intensity"], how.intensity)
    if how.wander:
        signals = wandering(signals, numbers["wander"], how.wander)
    if how.noise:
        signals = noisy(signals, numbers["noise"], how.noise)
    if how.lead_dropout:
        signals = without_leads(signals, numbers["lead_dropout"], how.lead_dropout)
    if how.masking:
        signals = masked(signals, numbers["masking"], how.masking)
    if signals is not before:
        signals = torch.where(valid(before), signals, 0.0)
    if how.shape:  # Yang et al., MedMNIST v2, section "Baseline Methods"
        signals = signals * per_example(numbers["shape"][:, 0], signals)
    return signals


def valid(signals: torch.Tensor) -> torch.Tensor:
    """Mask of the values that are not padding: (batch, 1, *extents)."""
    return (signals != 0).any(dim=1, keepdim=True)


def spread(signals: torch.Tensor) -> torch.Tensor:
    """Standard deviation of each example without padding: (batch, 1, …)."""
    is_signal = valid(signals).expand_as(signals).flatten(1)
    values = signals.flatten(1)
    count = is_signal.sum(dim=1, keepdim=True).clamp(min=1)
    deviations = (values - values.sum(dim=1, keepdim=True) / count) * is_signal
    return per_example((deviations.square().sum(dim=1) / count[:, 0]).sqrt(), signals)


def means(signals: torch.Tensor) -> torch.Tensor:
    """Mean of each channel of each example, without padding: (batch, channel, 1, …)."""
    extents = tuple(range(2, signals.dim()))
    count = valid(signals).sum(dim=extents, keepdim=True).clamp(min=1)
    return signals.sum(dim=extents, keepdim=True) / count


def noisy(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """Add white noise with up to ``strength`` times the example's standard deviation.

    ``numbers`` (batch, 3): one for the noise's standard deviation, two for its values.
    """
    deviation = strength * per_example(numbers[:, 0], signals) * spread(signals)
    return signals + deviation * normal(signals.shape, numbers[:, 1:])


def scaled(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """Scale each channel about its mean, and add an offset.

    ``numbers`` (batch, 2): for the factor, 1 ± strength / 2, and for the offset, ± strength / 2
    times the example's standard deviation.
    """
    factor, offset = (strength * (per_example(numbers[:, i], signals) - 0.5) for i in (0, 1))
    centre = means(signals)
    return centre + (signals - centre) * (1 + factor) + offset * spread(signals)


def masked(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """Replace a block by the channel means (DeVries and Taylor, arXiv:1708.04552).

    ``numbers`` (batch, 4): for the block's share, up to ``strength``, and its position.
    """
    inside = block(signals, strength * numbers[:, 0], numbers[:, 1:])
    return torch.where(inside, means(signals), signals)


def block(signals: torch.Tensor, shares: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Mask of a block with the proportions of the signal: (batch, 1, *extents).

    ``shares`` (batch,) are the block's shares of all values, with rounded edges; ``places`` (batch,
    axes) in [0, 1) are its positions along each axis, always wholly inside the signal.
    """
    extents = signals.shape[2:]
    inside = torch.ones(len(signals), 1, *[1] * len(extents), device=signals.device).bool()
    for axis, extent in enumerate(extents):
        length = (extent * shares ** (1 / len(extents))).round()
        free = extent - length
        start = (places[:, axis] * (free + 1)).floor().minimum(free)
        place = torch.arange(extent, device=signals.device)
        along = (place >= start[:, None]) & (place < (start + length)[:, None])
        shape = [extent if a == axis else 1 for a in range(len(extents))]
        inside = inside & along.view(len(signals), 1, *shape)
    return inside


def blurred(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """Gaussian blur along each axis but the channel; values at the border are repeated beyond it.

    ``numbers`` (batch, 1): for the standard deviation, 0 to ``BLURRED * strength`` pixels.
    """
    reach = math.ceil(REACH * BLURRED * strength)
    steps = torch.arange(-reach, reach + 1, device=signals.device)
    deviations = (BLURRED * strength * numbers).clamp(min=1e-3)  # no blur, and no division by 0
    weights = torch.exp(-0.5 * (steps / deviations).square())
    weights = weights / weights.sum(dim=1, keepdim=True)
    for axis in range(2, signals.dim()):
        extent, smoothed = signals.shape[axis], torch.zeros_like(signals)
        places = torch.arange(extent, device=signals.device)
        for number, step in enumerate(range(-reach, reach + 1)):
            neighbours = signals.index_select(axis, (places + step).clamp(0, extent - 1))
            smoothed = smoothed + per_example(weights[:, number], signals) * neighbours
        signals = smoothed
    return signals


def without_leads(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """Replace leads of signals (batch, lead, time) by their means.

    Leads whose ``numbers`` (batch, leads) are below ``strength`` are replaced, except the one with
    the largest number.
    """
    flat = numbers < strength
    flat = flat.scatter(1, numbers.argmax(dim=1, keepdim=True), False)
    return torch.where(flat[:, :, None], means(signals), signals)


def wandering(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """Add a slow sine to each lead, with one frequency per signal (batch, lead, time).

    ``numbers`` (batch, 1 + 2 leads): for the cycles, on a logarithmic scale, amplitudes and phases.
    ``strength``: largest amplitude, in standard deviations of the example.
    """
    leads, extent = signals.shape[1:]
    low, high = CYCLES
    cycles = low * (high / low) ** numbers[:, 0]
    amplitudes, phases = numbers[:, 1 : 1 + leads, None], numbers[:, 1 + leads :, None]
    time = torch.arange(extent, device=signals.device) / extent
    sines = torch.sin(2 * math.pi * (cycles[:, None, None] * time + phases))
    return signals + strength * spread(signals) * amplitudes * sines
