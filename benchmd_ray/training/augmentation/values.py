"""Changes of the values of signals, which leave masks as they are.

MONAI has most of them for one example at a time with a random state of its own; here the whole
batch is changed at once, by numbers that do not depend on the number of workers.
"""

from __future__ import annotations

import math

import torch

from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.augmentation.draws import (
    AXES,
    BLUR,
    INTENSITY,
    LEADS,
    MASKING,
    NOISE,
    WANDER,
    AugmentationDraws,
    normal,
)
from benchmd_ray.training.augmentation.movement import per_example

BLURRED = 2.0
"""Largest sd of the blur, in pixels."""
REACH = 3
"""Standard deviations to either side that the blur reaches."""
CYCLES = (0.5, 5.0)
"""Of the baseline's wander over a signal: 0.05 to 0.5 Hz in 10 s of an ECG, where it is filtered
(Kligfield et al. 2007, doi:10.1161/CIRCULATIONAHA.106.180200), and in 30 s of an EEG below the
slow waves of sleep."""


def altered(
    signals: torch.Tensor, how: AugmentationSettings, draws: AugmentationDraws
) -> torch.Tensor:
    """Normalised signals (batch, channel, *extents) with their values changed.

    Padding, which is 0 in all channels (decision D3), stays so.
    """
    before, leads = signals, signals.shape[1]
    if how.blur:
        signals = blurred(signals, draws.uniform(1, BLUR), how.blur)
    if how.intensity:
        signals = scaled(signals, draws.uniform(2, INTENSITY), how.intensity)
    if how.wander:
        signals = wandering(signals, draws.uniform(1 + 2 * leads, WANDER), how.wander)
    if how.noise:
        signals = noisy(signals, draws.uniform(3, NOISE), how.noise)
    if how.lead_dropout:
        signals = without_leads(signals, draws.uniform(leads, LEADS), how.lead_dropout)
    if how.masking:
        signals = masked(signals, draws.uniform(1 + AXES, MASKING), how.masking)
    if signals is not before:
        signals = torch.where(valid(before), signals, 0.0)
    if how.shape:  # Yang et al., MedMNIST v2, section "Baseline Methods"
        signals = signals * per_example(draws.together(how)["shape"][:, 0], signals)
    return signals


def valid(signals: torch.Tensor) -> torch.Tensor:
    """Where an example is not padding, which is 0 in all channels: (batch, 1, *extents)."""
    return (signals != 0).any(dim=1, keepdim=True)


def spread(signals: torch.Tensor) -> torch.Tensor:
    """Standard deviation of each example over all its values but padding: (batch, 1, …)."""
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
    """White noise added.

    Args:
        signals: (batch, channel, *extents).
        numbers: (batch, 3): of the noise's sd, and two that its values depend on.
        strength: Largest sd of the noise, over that of the example.
    """
    deviation = strength * per_example(numbers[:, 0], signals) * spread(signals)
    return signals + deviation * normal(signals.shape, numbers[:, 1:])


def scaled(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """The distance to each channel's mean multiplied, and an offset added.

    Args:
        signals: (batch, channel, *extents).
        numbers: (batch, 2): of the factor, 1 ± strength / 2, and of the offset, ± strength / 2
            times the example's sd.
        strength: Of both.
    """
    factor, offset = (strength * (per_example(numbers[:, i], signals) - 0.5) for i in (0, 1))
    centre = means(signals)
    return centre + (signals - centre) * (1 + factor) + offset * spread(signals)


def masked(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """A block replaced by the means of the channels (DeVries and Taylor, arXiv:1708.04552).

    Args:
        signals: (batch, channel, *extents).
        numbers: (batch, 4): of the block's share and its place.
        strength: Largest share.
    """
    inside = block(signals, strength * numbers[:, 0], numbers[:, 1:])
    return torch.where(inside, means(signals), signals)


def block(signals: torch.Tensor, shares: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """A block of the proportions of the signals in each example, wholly within.

    Args:
        signals: (batch, channel, *extents).
        shares: (batch,), of all places; the block's edges are rounded to whole ones.
        places: (batch, axes) in [0, 1): where it is along each axis.

    Returns:
        Whether a place is inside: (batch, 1, *extents).
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
    """Gaussian blur along each axis but the channel's; beyond the border values are repeated.

    Args:
        signals: (batch, channel, *extents).
        numbers: (batch, 1): of the sd, from 0 to ``BLURRED * strength`` pixels.
        strength: Of the largest sd.
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
    """Leads replaced by their means.

    Args:
        signals: (batch, lead, time).
        numbers: (batch, leads): those below the strength are replaced, but for the largest one's.
        strength: Chance of each lead.
    """
    flat = numbers < strength
    flat = flat.scatter(1, numbers.argmax(dim=1, keepdim=True), False)
    return torch.where(flat[:, :, None], means(signals), signals)


def wandering(signals: torch.Tensor, numbers: torch.Tensor, strength: float) -> torch.Tensor:
    """A slow sine added to each lead, of one frequency for all of a signal.

    Args:
        signals: (batch, lead, time).
        numbers: (batch, 1 + 2 leads): of the cycles, on a logarithmic scale, of the amplitudes and
            the phases.
        strength: Largest amplitude, over the example's sd.
    """
    leads, extent = signals.shape[1:]
    low, high = CYCLES
    cycles = low * (high / low) ** numbers[:, 0]
    amplitudes, phases = numbers[:, 1 : 1 + leads, None], numbers[:, 1 + leads :, None]
    time = torch.arange(extent, device=signals.device) / extent
    sines = torch.sin(2 * math.pi * (cycles[:, None, None] * time + phases))
    return signals + strength * spread(signals) * amplitudes * sines
