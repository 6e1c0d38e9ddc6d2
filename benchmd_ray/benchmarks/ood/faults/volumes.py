"""Faults of volumes: orientation, slices, windows and reconstruction."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.faults.fault import LIMITS, Fault, Recorded, Values, makers
from benchmd_ray.benchmarks.ood.faults.images import LARGEST, brown_noise, resized
from benchmd_ray.modality.signals import Signal, Window

AIR = -1000.0
"""HU."""


def window_applied(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """Exported through a window of lung, bone or soft tissue: what is beyond is lost."""
    low, high = {1: (-1200, 0), 2: (-200, 1300), 3: (-160, 240)}[severity]
    return np.clip(x, low, high)


def slices_lost(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """Every second slice, two of three, and three of four lost: the one before is there again."""
    step = severity + 1
    return x[:, (np.arange(x.shape[1]) // step) * step].copy()


def half_lost(x: Values, record: Recorded, _: int, __: np.random.Generator) -> Values:
    """The second half of the slices empty."""
    x[:, x.shape[1] // 2 :] = AIR if record.signal.unit == "HU" else 0
    return x


def noisy(x: Values, record: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """Noise as of a lower dose: 50, 100 and 200 HU; else 5, 10 and 20 % of the range."""
    hounsfield = {1: 50.0, 2: 100.0, 3: 200.0}[severity]
    size = hounsfield if record.signal.unit == "HU" else hounsfield / 1000 * LARGEST
    return (x + size * draw.standard_normal(x.shape)).astype(np.float32)


def streaks(x: Values, _: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """Streaks around metal, of 200, 500 and 1,500 HU."""
    size = {1: 200.0, 2: 500.0, 3: 1500.0}[severity]
    middle = [draw.uniform(0.3, 0.7) * extent for extent in x.shape[2:]]
    y, across = np.ogrid[: x.shape[2], : x.shape[3]]
    angle = np.arctan2(y - middle[0], across - middle[1])
    far = np.hypot(y - middle[0], across - middle[1])
    star = np.cos(12 * angle + draw.uniform(0, 2 * np.pi)) / (1 + far / 20)
    metal = 3000 * (far < 3)
    return np.asarray((x + size * star + metal).astype(np.float32))


def white_noise(x: Values, record: Recorded, _: int, draw: np.random.Generator) -> Values:
    """Nothing but noise, over the range that is seen."""
    low, high = 0.0, LARGEST
    if record.signal.normaliser == "window":
        parameters = record.signal.normaliser_parameters()
        assert isinstance(parameters, Window)
        low, high = parameters.range.low, parameters.range.high
    return (low + (high - low) * draw.random(x.shape)).astype(np.float32)


_once, _graded, _unrelated = makers(
    seen=lambda x, record: x * np.float32(record.step),  # in the signal's unit
    stored=lambda x, record: np.clip(
        np.round(x / np.float32(record.step)), *LIMITS[record.signal.dtype]
    ),
)
ANY = (
    _once("upside-down", "last slice first", lambda x, *_: x[:, ::-1].copy()),
    _once("mirrored", "mirrored", lambda x, *_: x[..., ::-1].copy()),
    _once(
        "axes-exchanged",
        "z and x exchanged",
        lambda x, *_: resized(x.swapaxes(1, 3).copy(), x.shape[1:]),
    ),
    _graded("slices-lost", "slices lost", slices_lost),
    _once("half-lost", "half of the slices lost", half_lost),
    _once(
        "slices-doubled", "slices too thick", lambda x, *_: x[:, np.arange(x.shape[1]) // 2].copy()
    ),
    _graded("noisy", "noise", noisy),
    _unrelated("white-noise", "nothing but noise (positive control)", white_noise),
    _unrelated("brown-noise", "nothing but smooth noise", brown_noise(50.0)),
)
HOUNSFIELD = (
    _once("without-intercept", "rescale intercept not applied", lambda x, *_: x + np.float32(1024)),
    _graded("window-applied", "exported through a window", window_applied),
    _graded("streaks", "metal streaks", streaks),
    _once(
        "air",
        "nothing but air",
        lambda x, _, __, draw: (AIR + 10 * draw.standard_normal(x.shape)).astype(np.float32),
    ),
)
GREY = (_once("inverted", "light and dark exchanged", lambda x, *_: np.float32(LARGEST) - x),)


def faults_of(signal: Signal) -> tuple[Fault, ...]:
    return (*ANY, *(HOUNSFIELD if signal.unit == "HU" else GREY))
