"""Stored signals to what the encoder sees, at batch time and on the device (decision D1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modalities import LUNG_WINDOW, Modality

Statistics = Mapping[str, Sequence[float]]
"""``mean`` and ``std`` per channel over the source's training split, in the stored unit."""

Normalise = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(signals (batch, *stored_shape), scales (batch,), valid sizes (batch, axes but the channel's)) →
float32 (batch, *input_shape)."""

EEG_RANGE = 125.0
"""µV: from minus to plus this maps to [0, 1] (decision D4)."""


def by_own_range(
    signals: torch.Tensor, scales: torch.Tensor, sizes: torch.Tensor, statistics: Statistics
) -> torch.Tensor:
    """Each record divided by its own max − min, so that the unit cancels.

    Args:
        signals: (batch, channel, time), stored steps of any integer type.
        scales: Not used.
        sizes: Not used.
        statistics: Not used.

    Returns:
        float32 of the same shape; max − min of each record is 1.
    """
    x = signals.float()
    span = x.amax(dim=(1, 2), keepdim=True) - x.amin(dim=(1, 2), keepdim=True)
    return x / span


def microvolts(
    signals: torch.Tensor, scales: torch.Tensor, sizes: torch.Tensor, statistics: Statistics
) -> torch.Tensor:
    """±`EEG_RANGE` µV mapped to [0, 1]; what lies beyond is clipped.

    Args:
        signals: (batch, channel, time), stored steps.
        scales: (batch,) µV of a step.
        sizes: Not used.
        statistics: Not used.
    """
    x = signals.float() * scales[:, None, None]
    return ((x + EEG_RANGE) / (2 * EEG_RANGE)).clamp(0, 1)


def standardised(
    signals: torch.Tensor, scales: torch.Tensor, sizes: torch.Tensor, statistics: Statistics
) -> torch.Tensor:
    """Mean removed and divided by the standard deviation, per channel; the padding is zero.

    Args:
        signals: (batch, channel, y, x), grey levels.
        scales: Not used.
        sizes: (batch, 2) valid height and width, centred.
        statistics: Of the source's training split.
    """
    mean, std = _per_channel(statistics, "mean", signals), _per_channel(statistics, "std", signals)
    return (signals.float() - mean) / std * _valid(sizes, signals)


def centred(
    signals: torch.Tensor, scales: torch.Tensor, sizes: torch.Tensor, statistics: Statistics
) -> torch.Tensor:
    """Grey levels as fractions of 255 with the mean removed; the padding is zero.

    Args:
        signals: (batch, channel, y, x), grey levels.
        scales: Not used.
        sizes: (batch, 2) valid height and width, centred.
        statistics: Of the source's training split.
    """
    mean = _per_channel(statistics, "mean", signals)
    return (signals.float() - mean) / 255 * _valid(sizes, signals)


def lung_window(
    signals: torch.Tensor, scales: torch.Tensor, sizes: torch.Tensor, statistics: Statistics
) -> torch.Tensor:
    """`LUNG_WINDOW` mapped to [0, 1], what lies beyond clipped; the centre 224 × 224 of each slice.

    Args:
        signals: (batch, 1, z, 256, 256), stored steps.
        scales: (batch,) HU of a step.
        sizes: Not used.
        statistics: Not used.
    """
    low, high = LUNG_WINDOW
    x = signals[..., 16:240, 16:240].float() * scales[:, None, None, None, None]
    return ((x - low) / (high - low)).clamp(0, 1)


def symmetric(
    signals: torch.Tensor, scales: torch.Tensor, sizes: torch.Tensor, statistics: Statistics
) -> torch.Tensor:
    """Grey levels 0 to 255 mapped to [−1, 1], as the 2-D baselines of MedMNIST v2 do.

    Args:
        signals: (batch, channel, y, x), grey levels.
        scales: Not used.
        sizes: Not used.
        statistics: Not used.
    """
    return (signals.float() / 255 - 0.5) / 0.5


def fractions(
    signals: torch.Tensor, scales: torch.Tensor, sizes: torch.Tensor, statistics: Statistics
) -> torch.Tensor:
    """Grey levels 0 to 255 mapped to [0, 1], as the 3-D baselines of MedMNIST v2 do.

    Args:
        signals: (batch, channel, z, y, x), grey levels.
        scales: Not used.
        sizes: Not used.
        statistics: Not used.
    """
    return signals.float() / 255


def _per_channel(statistics: Statistics, name: str, signals: torch.Tensor) -> torch.Tensor:
    values = torch.tensor(list(statistics[name]), dtype=torch.float32, device=signals.device)
    return values[:, None, None]


def _valid(sizes: torch.Tensor, signals: torch.Tensor) -> torch.Tensor:
    """(batch, 1, y, x): True within the centred valid area."""
    inside = []
    for axis, extent in enumerate(signals.shape[2:]):
        start = (extent - sizes[:, axis]) // 2
        place = torch.arange(extent, device=signals.device)
        after, before = place >= start[:, None], place < (start + sizes[:, axis])[:, None]
        inside.append(after & before)
    return (inside[0][:, :, None] & inside[1][:, None, :])[:, None]


NORMALISERS: dict[str, Callable[..., torch.Tensor]] = {
    "ecg": by_own_range,
    "eeg": microvolts,
    "cxr": standardised,
    "mammo": centred,
    "derm": standardised,
    "fundus": standardised,
    "ldct": lung_window,
}
"""By modality, of the seven."""
IMAGE_NORMALISERS: dict[int, Callable[..., torch.Tensor]] = {3: symmetric, 4: fractions}
"""By the number of a signal's axes, of the datasets of MedMNIST."""
BY_STATISTICS = (standardised, centred)
"""Those that need the source's training statistics."""


def normaliser(modality: Modality, statistics: Statistics | None) -> Normalise:
    """The function from stored signals, scales and valid sizes to what the encoder sees.

    Args:
        modality: The modality.
        statistics: Of the source's training split; some modalities need none.

    Raises:
        BenchmdError: The modality needs statistics and there are none.
    """
    function = NORMALISERS.get(modality.name) or IMAGE_NORMALISERS[len(modality.axes)]
    if function in BY_STATISTICS and (statistics is None or 0.0 in statistics["std"]):
        raise BenchmdError(
            f"signals of {modality.name} are normalised by the mean and standard deviation of the "
            "source's training split, and this source has none or constant ones: build its "
            "catalog with a training split."
        )
    held = statistics or {}

    def normalise(signals: torch.Tensor, scales: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return function(signals, scales, sizes, held)

    return normalise
