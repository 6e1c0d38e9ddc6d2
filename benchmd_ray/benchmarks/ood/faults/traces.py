"""Faults of signals over time: electrodes, cables, filters and files of ECG and EEG."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.faults.fault import Change, Fault, Recorded, Values, makers, spread
from benchmd_ray.modality.signals import Signal

LIMB = ("I", "II", "III", "aVR", "aVL", "aVF")
CHEST = tuple(f"V{number}" for number in range(1, 7))


def _rate(record: Recorded) -> float:
    return record.signal.rate or 1.0


def _leads(record: Recorded, *names: str) -> list[int]:
    return [record.signal.channels.index(name) for name in names]


def _permuted(x: Values, record: Recorded, order: dict[str, tuple[str, float]]) -> Values:
    """Leads that show another lead, with a sign."""
    permuted = x.copy()
    for name, (other, sign) in order.items():
        (to,), (of,) = _leads(record, name), _leads(record, other)
        permuted[to] = sign * x[of]
    return permuted


def arm_reversal(x: Values, record: Recorded, _: int, __: np.random.Generator) -> Values:
    """Right and left arm exchanged: I inverted, II with III and aVR with aVL exchanged."""
    pairs = {"I": ("I", -1.0), "II": ("III", 1.0), "III": ("II", 1.0)}
    return _permuted(x, record, pairs | {"aVR": ("aVL", 1.0), "aVL": ("aVR", 1.0)})


def chest_swap(x: Values, record: Recorded, severity: int, _: np.random.Generator) -> Values:
    """V1 and V2 exchanged; then V1 and V3; then all in reverse order."""
    if severity == 3:
        pairs = dict(zip(CHEST, reversed(CHEST), strict=True))
    else:
        other = {1: "V2", 2: "V3"}[severity]
        pairs = {"V1": other, other: "V1"}
    return _permuted(x, record, {name: (of, 1.0) for name, of in pairs.items()})


def flat_leads(x: Values, record: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """One, a third, or half of the channels flat."""
    count = max(1, {1: 1, 2: len(x) // 3, 3: len(x) // 2}[severity])
    x[draw.permutation(len(x))[:count]] = 0
    return x


def _limb_leads_flat(x: Values, record: Recorded, *_: object) -> Values:
    x[_leads(record, *LIMB)] = 0
    return x


def wrong_rate(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """A file of a lower rate read as if it had the signal's: all takes less time, then repeats.

    Of 1.25, 1.6 and 2 times fewer samples a second.
    """
    factor = {1: 1.25, 2: 1.6, 3: 2.0}[severity]
    samples = x.shape[1]
    places = (np.arange(samples) * factor) % (samples - 1)
    samples_at = np.arange(samples)
    return np.stack([np.interp(places, samples_at, row) for row in x]).astype(np.float32)


def higher_rate(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """A file of a higher rate read as if it had the signal's: the first part takes all the time.

    Of 1.25, 1.6 and 2 times more samples a second.
    """
    samples_at = np.arange(x.shape[1])
    places = samples_at / {1: 1.25, 2: 1.6, 3: 2.0}[severity]
    return np.stack([np.interp(places, samples_at, row) for row in x]).astype(np.float32)


def mains(hertz: float) -> Change:
    """Interference of the mains, of a tenth, a half and twice the record's spread."""

    def change(x: Values, record: Recorded, severity: int, draw: np.random.Generator) -> Values:
        size = {1: 0.1, 2: 0.5, 3: 2.0}[severity] * spread(x)
        time = np.arange(x.shape[1]) / _rate(record)
        wave = np.sin(2 * np.pi * (hertz * time + draw.random()))
        gains = draw.uniform(0.5, 1.0, (len(x), 1))
        return (x + size * gains * wave).astype(np.float32)

    return change


def wander(x: Values, record: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """A baseline that moves at 0.05 to 0.4 Hz, by 1, 3 and 8 times the record's spread."""
    size = {1: 1.0, 2: 3.0, 3: 8.0}[severity] * spread(x)
    time = np.arange(x.shape[1]) / _rate(record)
    waves = [
        np.sin(2 * np.pi * (draw.uniform(0.05, 0.4) * time + draw.random(len(x))[:, None]))
        for _ in range(3)
    ]
    return np.asarray((x + size * np.mean(waves, axis=0)).astype(np.float32))


def clipped(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """An amplifier that saturates at the 98th, 90th and 75th percentile of each channel."""
    most = np.percentile(np.abs(x), {1: 98, 2: 90, 3: 75}[severity], axis=1, keepdims=True)
    return np.clip(x, -most, most).astype(np.float32)


def motion(x: Values, record: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """Electrode pops: steps that decay within half a second, in a third of the channels."""
    count, size = {1: (2, 2.0), 2: (5, 5.0), 3: (10, 10.0)}[severity]
    samples = x.shape[1]
    decay = np.exp(-np.arange(samples) / max(1.0, 0.5 * _rate(record)))
    for channel in draw.permutation(len(x))[: max(1, len(x) // 3)]:
        for start in draw.integers(0, samples, count):
            step = size * spread(x) * draw.choice([-1.0, 1.0])
            x[channel, start:] += (step * decay[: samples - start]).astype(np.float32)
    return x


def muscle(x: Values, record: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """Muscle noise above 20 Hz, of 0.3, 1 and 3 times the record's spread."""
    noise = draw.standard_normal(x.shape)
    spectrum = np.fft.rfft(noise, axis=1)
    spectrum[:, np.fft.rfftfreq(x.shape[1], 1 / _rate(record)) < 20] = 0
    noise = np.fft.irfft(spectrum, x.shape[1], axis=1)
    size = {1: 0.3, 2: 1.0, 3: 3.0}[severity] * spread(x)
    return (x + size * noise / max(float(noise.std()), 1e-12)).astype(np.float32)


def _phases(x: Values, draw: np.random.Generator) -> npt.NDArray[np.float64]:
    """(channels, samples) of waves that take 50 to 500 samples each, in radians."""
    periods, starts = draw.uniform(50, 500, (len(x), 1)), draw.random((len(x), 1))
    return np.asarray(2 * np.pi * (np.arange(x.shape[1]) / periods + starts))


def sine(x: Values, _: Recorded, __: int, draw: np.random.Generator) -> Values:
    """A sine in each channel, of 50 to 500 samples a period, of the record's spread."""
    return np.asarray(np.sqrt(2) * spread(x) * np.sin(_phases(x, draw)), np.float32)


def square(x: Values, _: Recorded, __: int, draw: np.random.Generator) -> Values:
    """A square wave in each channel, of 50 to 500 samples a period, of the record's spread."""
    return (spread(x) * np.where(np.sin(_phases(x, draw)) >= 0, 1, -1)).astype(np.float32)


def brown_noise(x: Values, _: Recorded, __: int, draw: np.random.Generator) -> Values:
    """Integrated white noise in each channel, of the record's spread."""
    walk = draw.standard_normal(x.shape).cumsum(axis=1)
    walk -= walk.mean(axis=1, keepdims=True)
    size = np.maximum(walk.std(axis=1, keepdims=True), 1e-12)
    return np.asarray(spread(x) * walk / size, np.float32)


def electrode_lost(x: Values, record: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """One electrode off: small noise for a third, two thirds and all of the time."""
    samples = x.shape[1]
    length = {1: samples // 3, 2: 2 * samples // 3, 3: samples}[severity]
    start = int(draw.integers(0, samples - length + 1))
    channel = int(draw.integers(0, len(x)))
    noise = draw.standard_normal(length) * 0.02 * spread(x)
    x[channel, start : start + length] = noise.astype(np.float32)
    return x


def same_reference(x: Values, _: Recorded, severity: int, __: np.random.Generator) -> Values:
    """A reference on the same side: what all channels share is lost, by a half to all of it."""
    share = {1: 0.5, 2: 0.8, 3: 1.0}[severity]
    return np.asarray((x - np.float32(share) * x.mean(axis=0, keepdims=True)).astype(np.float32))


def saturated(x: Values, record: Recorded, severity: int, draw: np.random.Generator) -> Values:
    """At an end of the amplifier's range for a tenth, a third and two thirds of the time."""
    samples, largest = x.shape[1], 125.0 / record.step
    length = int({1: 0.1, 2: 0.33, 3: 0.67}[severity] * samples)
    start = int(draw.integers(0, samples - length + 1))
    x[:, start : start + length] = largest * draw.choice([-1.0, 1.0])
    return x


_once, _graded, _unrelated = makers(seen=lambda x, _: x.copy(), stored=lambda x, _: x)
ANY = (
    _once("inverted", "wrong sign", lambda x, *_: -x),
    _graded("clipped", "amplifier saturates", clipped),
    _graded("baseline-wander", "baseline wanders", wander),
    _once("time-reversed", "time reversed", lambda x, *_: x[:, ::-1].copy()),
    _graded("wrong-rate", "lower rate read as the usual one", wrong_rate),
    _graded("higher-rate", "higher rate read as the usual one", higher_rate),
    _graded("muscle-noise", "muscle noise", muscle),
    _graded("electrode-pops", "electrodes move", motion),
    _unrelated(
        "white-noise",
        "nothing but noise (positive control)",
        lambda x, _, __, draw: (draw.standard_normal(x.shape) * spread(x)).astype(np.float32),
    ),
    _unrelated("sine", "a sine in each channel", sine),
    _unrelated("square", "a square wave in each channel", square),
    _unrelated("brown-noise", "nothing but integrated noise", brown_noise),
)
ECG = (
    _once("arm-reversal", "arm electrodes exchanged", arm_reversal),
    _graded("chest-swap", "chest electrodes exchanged", chest_swap),
    _once("limb-leads-flat", "all limb leads flat", _limb_leads_flat),
)
EEG = (
    _once("channels-exchanged", "electrodes exchanged", lambda x, *_: x[::-1].copy()),
    _graded("same-reference", "reference on the same side", same_reference),
    _once(
        "unit-mistaken", "µV read as mV", lambda x, *_: (x * np.float32(1000)).astype(np.float32)
    ),
    _graded("saturated", "amplifier at its end", saturated),
)
MANY = 6
"""Channels from which several may be flat; of fewer one is lost for a part of the time."""
FLAT = _graded("flat-channels", "channels flat", flat_leads)
LOST = _graded("electrode-lost", "one electrode lost", electrode_lost)
GAIN = _once(
    "gain-10",
    "ten times the gain (negative control)",
    lambda x, *_: (x * np.float32(10)).astype(np.float32),
    control=True,
)


def faults_of(signal: Signal) -> tuple[Fault, ...]:
    """Faults that a signal over time can have."""
    many = signal.stored_shape[0] >= MANY
    faults = [*ANY, FLAT if many else LOST]
    if set(signal.channels) >= {*LIMB, *CHEST}:
        faults += ECG
    if signal.unit == "µV" and len(signal.channels) == 2:
        faults += EEG
    for hertz in (50, 60):
        if signal.rate and signal.rate > 2 * hertz:
            faults.append(_graded(f"mains-{hertz}", f"mains of {hertz} Hz", mains(hertz)))
    if signal.normaliser == "record-range":
        faults.append(GAIN)
    return tuple(faults)
