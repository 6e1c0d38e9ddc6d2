"""Filters of signals over time as torch modules, equal to SciPy's up to rounding.

Signals are (batch, time) or (batch, channels, time).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.errors import BenchmdError

MOST = 1000
"""Largest factor up or down."""
ODD = 27
"""Samples by which a signal is extended on both sides, turned about its end, as in SciPy."""
FADED = 120
"""Length of a decimating filter's impulse response, in samples after decimation."""


class Resampling(nn.Module):
    """Signals (batch, channels, time) at another rate; ceil(time × up / down) samples."""

    taps: torch.Tensor

    def __init__(self, rate: float, to: float) -> None:
        super().__init__()
        ratio = Fraction(round(to * 10_000), round(rate * 10_000))
        self.up, self.down = ratio.numerator, ratio.denominator
        if max(self.up, self.down) > MOST:
            raise BenchmdError(
                f"signals of {rate:g} Hz cannot be resampled to {to:g} Hz: expected rates whose "
                f"ratio has whole numbers up to {MOST:,}."
            )
        self._half = 10 * max(self.up, self.down)
        taps = torch.ones(1) if self.up == self.down else self._designed()
        self.register_buffer("taps", taps.float(), persistent=False)

    def _designed(self) -> torch.Tensor:
        """A windowed sinc with a gain of ``up``; Kaiser window, β = 5."""
        count, cutoff = 2 * self._half + 1, 1 / max(self.up, self.down)
        places = torch.arange(count, dtype=torch.float64) - self._half
        window = torch.kaiser_window(count, periodic=False, beta=5.0, dtype=torch.float64)
        taps = cutoff * torch.sinc(cutoff * places) * window
        return taps / taps.sum() * self.up

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        if self.up == self.down:
            return signals
        batch, channels, time = signals.shape
        spaced = signals.new_zeros(batch * channels, 1, time, self.up)
        spaced[..., 0] = signals.reshape(-1, 1, time)
        length = -(-time * self.up // self.down)
        padded = functional.pad(spaced.flatten(2), (self._half, self._half))
        result = functional.conv1d(padded, self.taps.reshape(1, 1, -1), stride=self.down)
        return result[..., :length].reshape(batch, channels, length)


class BandPass(nn.Module):
    """A causal FIR filter: ``lfilter(firwin(taps, band))``."""

    taps: torch.Tensor

    def __init__(self, band: tuple[float, ...], taps: int, rate: float) -> None:
        super().__init__()
        from scipy.signal import firwin  # takes a second to import, and few encoders need it

        coefficients = firwin(taps, list(band), pass_zero=False, fs=rate)
        self.register_buffer("taps", torch.from_numpy(coefficients).float(), persistent=False)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        return _convolved(signals, self.taps, len(self.taps) - 1, 0)


class Decimation(nn.Module):
    """Every ``factor``-th sample after a filter without delay: SciPy's ``decimate``.

    The filter is Chebyshev's, of the first kind and order 8, once forwards and once backwards. Its
    impulse response is cut off where it has faded to a float's rounding.
    """

    taps: torch.Tensor

    def __init__(self, factor: int) -> None:
        super().__init__()
        from scipy.signal import cheby1, sosfilt

        self.factor = factor
        sections = cheby1(8, 0.05, 0.8 / factor, output="sos")
        impulse = np.zeros(FADED * factor)
        impulse[0] = 1
        response = torch.from_numpy(np.asarray(sosfilt(sections, impulse)))
        self.register_buffer("taps", response.float(), persistent=False)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        before = len(self.taps) - 1
        first, last = signals[..., :1], signals[..., -1:]
        front = 2 * first - signals[..., 1 : ODD + 1].flip(-1)
        end = 2 * last - signals[..., -ODD - 1 : -1].flip(-1)
        x = torch.cat((front, signals, end), dim=-1)
        for _ in range(2):  # forwards, then backwards; in its steady state before the first sample
            steady = x[..., :1].expand(*x.shape[:-1], before)
            x = _convolved(torch.cat((steady, x), dim=-1), self.taps, 0, 0).flip(-1)
        return x[..., ODD:-ODD][..., :: self.factor]


def _convolved(x: torch.Tensor, taps: torch.Tensor, front: int, end: int) -> torch.Tensor:
    rows = functional.pad(x.reshape(-1, 1, x.shape[-1]), (front, end))
    result = functional.conv1d(rows, taps.flip(0).reshape(1, 1, -1))
    return result.reshape(*x.shape[:-1], -1)
