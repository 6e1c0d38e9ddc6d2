"""Synthetic electrocardiograms.

An ECG is sketched as a heart dipole: P, Q, R, S, T and ST segment are Gaussians in time along a
direction in space, repeated at a heart rate and seen by 12 leads through Dower's matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.datasets.ecg import ECG
from benchmd_ray.demo.draw import generator

Floats = npt.NDArray[np.float32]
RATE = 500
"""Sampling rate in Hz."""
STEPS_PER_MV = 1000
_LEAD_VECTORS = np.array(
    [
        [0.632, -0.235, 0.059],  # I
        [0.235, 1.066, -0.132],  # II
        [-0.515, 0.157, -0.917],  # V1
        [0.044, 0.164, -1.387],
        [0.882, 0.098, -1.277],
        [1.213, 0.127, -0.601],
        [1.125, 0.127, -0.086],
        [0.831, 0.076, 0.230],  # V6
    ],
    np.float32,
)
"""Dower's matrix: leads from the dipole's left, inferior and posterior components."""
_NORMAL = {  # s after the R peak, width in s, dipole in mV: left, inferior, posterior
    "p": (-0.160, 0.022, 0.05, 0.11, -0.02),
    "q": (-0.027, 0.009, -0.10, -0.06, -0.16),
    "r": (0.000, 0.013, 0.85, 0.75, 0.20),
    "s": (0.027, 0.012, -0.18, -0.12, 0.45),
    "st": (0.120, 0.045, 0.00, 0.01, -0.02),
    "t": (0.270, 0.050, 0.24, 0.20, -0.16),
}
_ECTOPIC = {
    "r": (0.000, 0.040, -0.70, 0.90, -0.60),
    "s": (0.080, 0.035, 0.50, -0.50, 0.30),
    "t": (0.300, 0.070, 0.45, -0.45, 0.30),
}
Waves = dict[str, npt.NDArray[np.float64]]
"""(s after the R peak, width in s, left, inferior, posterior mV) of each wave."""


@dataclass(frozen=True)
class Domain:
    """Where ECGs are recorded: on whom and with what; sizes in mV, ``mains`` in Hz."""

    dataset: str
    prefix: str
    prevalence: tuple[float, ...]
    """Share of each class, in the modality's order; zero where its code table has no code."""
    beats_per_minute: float
    amplitude: float
    noise: float
    wander: float
    hum: float
    mains: float
    first_line: str = ""
    """CinC: first header line, with the fields name and time."""
    signal_format: str = ""
    """CinC: storage format and gain in a signal line."""
    comment: str = "#"
    """CinC: start of a comment line."""
    lower_case: bool = False
    """CinC: lead names in lower case."""


def ecg_of(
    domain: Domain, label: str, seconds: float, patient: int, number: int, seed: int
) -> npt.NDArray[np.int16]:
    """One recording in steps of 1/`STEPS_PER_MV` mV, (lead, time) in the order of `LEADS`."""
    person = generator(seed, domain.dataset, f"heart {patient}")
    rng = generator(seed, domain.dataset, f"record {number}")
    time = np.arange(int(seconds * RATE), dtype=np.float32) / np.float32(RATE)
    interval = 60 / np.clip(person.normal(domain.beats_per_minute, 9), 48, 130)
    waves = {name: np.array(wave) for name, wave in _NORMAL.items()}
    for wave in waves.values():
        wave[1] *= person.uniform(0.8, 1.3)
        wave[2:] *= person.lognormal(0, 0.3)
    waves["t"][0] *= np.sqrt(interval / 0.8)
    beside = ECG.task.classes[person.integers(len(ECG.task.classes))]
    _FINDINGS[beside](waves, person.uniform(0, 0.5), person)  # nobody is a textbook case
    _FINDINGS[label](waves, person.uniform(0.3, 1.1), person)
    beats, early = _beats(label, seconds, interval, rng)
    dipole = _dipole(waves, beats[~early], time)
    if early.any():
        dipole += _dipole({k: np.array(w) for k, w in _ECTOPIC.items()}, beats[early], time)
    if label == "atrial fibrillation/flutter":
        phase = 2 * np.pi * (rng.uniform(5, 8) * time + 0.4 * np.sin(2 * np.pi * 0.7 * time))
        dipole += np.array([[0.02], [0.04], [-0.06]], np.float32) * np.sin(phase)
    turn = np.eye(3) + person.normal(0, 0.2, (3, 3))
    seen = domain.amplitude * person.lognormal(0, 0.2) * (_LEAD_VECTORS @ turn @ dipole)
    millivolts = _twelve(seen + _disturbance(domain, time, rng))
    return np.asarray(np.rint(np.clip(millivolts * STEPS_PER_MV, -32767, 32767)), np.int16)


def _beats(
    label: str, seconds: float, interval: float, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Times of the R peaks, and which of them are premature ventricular beats."""
    count = int(seconds / interval * 1.8) + 4
    if label == "atrial fibrillation/flutter":
        steps = 0.85 * interval * np.maximum(rng.gamma(30, 1 / 30, count), 0.5)
    else:
        steps = interval * (1 + rng.normal(0, rng.uniform(0.01, 0.08), count))
    beats = np.cumsum(steps) - rng.uniform(0, 1) * interval
    beats = beats[beats < seconds + 0.5]
    early = np.zeros(len(beats), bool)
    if label == "other":
        early[rng.integers(1, 5) :: rng.integers(4, 9)] = True
        beats[early] -= 0.33 * interval
    return beats, early


def _dipole(waves: Waves, beats: npt.NDArray[np.float64], time: Floats) -> Floats:
    table = np.stack(list(waves.values()))
    centres = (beats[:, None] + table[:, 0]).ravel().astype(np.float32)
    widths = np.tile(table[:, 1], len(beats)).astype(np.float32)
    vectors = np.tile(table[:, 2:], (len(beats), 1)).astype(np.float32)
    bells = np.exp(-0.5 * ((time - centres[:, None]) / widths[:, None]) ** 2)
    return np.asarray(vectors.T @ bells, np.float32)


def _disturbance(domain: Domain, time: Floats, rng: np.random.Generator) -> Floats:
    """Noise, baseline wander and hum of the eight independent leads, (8, time) mV."""
    noise = domain.noise * rng.lognormal(0, 0.3)
    result = noise * rng.standard_normal((8, len(time)), np.float32)
    for size, hertz in ((domain.wander, rng.uniform(0.15, 0.4)), (domain.hum, domain.mains)):
        wave = np.sin(2 * np.pi * (hertz * time + rng.uniform()))
        result += (size * rng.normal(0, 1, (8, 1)) * wave).astype(np.float32)
    return result


def _twelve(leads: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """All leads from I, II and V1–V6: the limb leads are linear in I and II."""
    i, ii, chest = leads[0], leads[1], leads[2:]
    limbs = [i, ii, ii - i, -(i + ii) / 2, i - ii / 2, ii - i / 2]
    return np.concatenate([np.stack(limbs), chest])


def _block(waves: Waves, severity: float, rng: np.random.Generator) -> None:
    """A bundle branch block: wide QRS, late forces to the right or to the left."""
    for name in ("q", "r", "s"):
        waves[name][1] *= 1 + 0.7 * severity
    right = rng.random() < 0.5
    late = (-0.9, 0.0, -0.7) if right else (0.8, 0.1, 0.8)
    waves["late"] = np.array([0.065, 0.024, *(severity * np.array(late))])
    if not right:
        waves["t"][2:] *= 1 - 1.5 * severity


def _infarction(waves: Waves, severity: float, rng: np.random.Generator) -> None:
    """An inferior or anterior infarction: deep Q and raised ST in the leads that face it."""
    facing = np.array([0.0, 1.0, 0.1]) if rng.random() < 0.5 else np.array([0.45, 0.0, -0.9])
    waves["q"][1] *= 1.6
    waves["q"][2:] = -0.55 * severity * facing
    waves["st"][2:] = 0.28 * severity * facing
    waves["r"][2:] *= 0.75


def _ischemia(waves: Waves, severity: float, rng: np.random.Generator) -> None:
    """Depressed ST and flat to inverted T."""
    waves["st"][2:] = -0.16 * severity * np.array([1.0, 0.7, -0.5])
    waves["t"][2:] *= 1 - 1.7 * severity


def _hypertrophy(waves: Waves, severity: float, rng: np.random.Generator) -> None:
    """High voltage, axis to the left and back."""
    waves["r"][2:] *= 1 + severity * np.array([0.9, -0.5, 1.2])
    waves["s"][2:] *= 1 + severity * np.array([0.5, 0.5, 1.1])
    waves["p"][1] *= 1.2


def _fibrillation(waves: Waves, severity: float, rng: np.random.Generator) -> None:
    """Little or no P wave; the rhythm is drawn with the beats."""
    waves["p"][2:] *= max(0.0, 1 - 2 * severity)


_FINDINGS: dict[str, Callable[[Waves, float, np.random.Generator], None]] = {
    "normal": lambda *_: None,
    "conduction disturbance": _block,
    "myocardial infarction": _infarction,
    "ischemic st-t changes": _ischemia,
    "other": lambda *_: None,  # premature beats, drawn with the beats
    "atrial fibrillation/flutter": _fibrillation,
    "hypertrophy": _hypertrophy,
}
