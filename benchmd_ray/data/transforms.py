"""From arrays as read to arrays as stored: resampling, segments, quantisation. NumPy and SciPy."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.signal import resample_poly


def resample(
    signal: npt.NDArray[np.float64], rate: float, new_rate: float
) -> npt.NDArray[np.float64]:
    """Resample along the last axis by a polyphase filter.

    Args:
        signal: (..., time).
        rate: Its sampling rate in Hz.
        new_rate: The wanted rate in Hz.

    Returns:
        (..., ceil(time × new_rate / rate)), edges extended by the line through both ends.
    """
    ratio = Fraction(new_rate).limit_denominator(10_000) / Fraction(rate).limit_denominator(10_000)
    if ratio == 1:
        return signal
    resampled = resample_poly(signal, ratio.numerator, ratio.denominator, axis=-1, padtype="line")
    return np.asarray(resampled, np.float64)


def segments(signal: npt.NDArray[np.generic], length: int) -> list[npt.NDArray[np.generic]]:
    """Whole segments of ``length`` samples along the last axis; the remainder is dropped."""
    return [
        signal[..., start : start + length]
        for start in range(0, signal.shape[-1] - length + 1, length)
    ]


def quantise(signal: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int16], float]:
    """Signal as int16 steps and the size of a step: ``signal ≈ steps × scale``.

    The largest magnitude maps to 32767, so the error is at most half of a 32767th of it.
    """
    peak = float(np.abs(signal).max(initial=0.0))
    scale = peak / 32767 if peak > 0 else 1.0
    return np.rint(signal / scale).astype(np.int16), scale
