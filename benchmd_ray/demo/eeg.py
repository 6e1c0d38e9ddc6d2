"""Small raw sleep recordings in the layouts of SHHS-1 and ISRUC-Sleep.

A night goes through wake, N1, N2, N3 and REM in cycles. Each stage is noise with a spectrum of its
own and events: alpha waves and blinks awake, theta and rolling eyes in N1, spindles and K-complexes
in N2, large slow waves in N3, low mixed waves and rapid eyes in REM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.datasets.eeg import EPOCH
from benchmd_ray.data.splits import hashed_split
from benchmd_ray.demo.draw import generator, write_csv
from benchmd_ray.extensions.extras import importing

Floats = npt.NDArray[np.float64]

FIRST_PERSON = 290_001
"""SHHS number of the first synthetic person, beyond those of the real ones."""
SPLITS = ("train", "validation", "train", "train")
"""Splits of the first persons, over and over, so that few nights reach both."""
SECOND_NAMES = ("EEG(sec)", "EEG2", "EEG sec", "EEG(SEC)")
CODES = {"wake": "0", "n1": "1", "n2": "2", "n3": "3", "rem": "5"}
CYCLE = (("n1", 3), ("n2", 6), ("n3", 6), ("n2", 4), ("rem", 6), ("wake", 2))
"""Stages of a sleep cycle and about how many epochs they last."""
BACKGROUND = 7.5
"""µV of what has no peak in its spectrum."""

_RHYTHMS = {  # Hz, width in Hz, µV
    "wake": ((10.0, 1.0, 24.0), (20.0, 4.0, 8.0)),
    "n1": ((6.0, 1.2, 14.0), (10.0, 1.5, 4.0)),
    "n2": ((5.0, 1.5, 15.0), (1.5, 0.7, 15.0)),
    "n3": ((1.2, 0.5, 50.0), (5.0, 1.5, 10.0)),
    "rem": ((6.0, 1.5, 9.0), (18.0, 5.0, 6.0)),
}
_EVENTS = {  # how many, width in s, Hz, µV at C3, µV at C4
    "wake": ((9, 0.12, 0.0, 100, 100),),  # blinks
    "n1": ((4, 0.6, 0.0, 50, -50),),  # slowly rolling eyes
    "n2": ((6, 0.4, 13.5, 35, 35), (5, 0.25, 0.0, -110, -110)),  # spindles, K-complexes
    "n3": (),
    "rem": ((8, 0.2, 0.0, -70, 70),),  # rapid eye movements
}


@dataclass(frozen=True)
class _SleepDomain:
    """Where nights are recorded: on whom and with what; sizes in µV, frequencies in Hz."""

    dataset: str
    rate: int
    awake: int
    """Epochs before the first cycle, about."""
    amplitude: float
    noise: float
    hum: float
    mains: float
    limit: float
    """Largest value that its files can hold."""


SOURCE = _SleepDomain("shhs", 125, 8, 1.0, 3.0, 0.5, 60, 125)
TARGET = _SleepDomain("isruc", 200, 16, 0.7, 8.0, 5.0, 50, 600)


def write_eeg(
    root: Path,
    *,
    source_records: int = 12,
    target_records: int = 4,
    epochs: int = 80,
    seed: int = 0,
) -> dict[str, Path]:
    """Write SHHS and ISRUC-Sleep, in nights of ``epochs`` epochs of 30 s.

    SHHS also gets a night that nobody has staged. Some epochs are of movement, not scored or
    flat; stages and signal differ in length; channels go by several names; a recording of ISRUC
    has electrodes and mastoids one by one.
    """
    folders = {domain.dataset: root / domain.dataset for domain in (SOURCE, TARGET)}
    _write_source(folders["shhs"], source_records, epochs, seed)
    _write_target(folders["isruc"], target_records, epochs, seed)
    return folders


def _write_source(root: Path, nights: int, epochs: int, seed: int) -> None:
    """SHHS-1: EDF files, Profusion XML files and the table of persons."""
    recordings = root / "polysomnography" / "edfs" / "shhs1"
    stagings = root / "polysomnography" / "annotations-events-profusion" / "shhs1"
    table = root / "datasets" / "shhs1-dataset-0.21.0.csv"
    for folder in (recordings, stagings, table.parent):
        folder.mkdir(parents=True, exist_ok=True)
    persons = _persons()
    rows = []
    for number in range(nights + 1):
        person = next(persons)
        rng = generator(seed, "shhs", f"night {number}")
        stages = _hypnogram(SOURCE, 3 if number == nights else epochs, rng)
        c3, c4 = _signals(SOURCE, stages, rng)
        if number % 5 == 2:
            flat = slice(4 * EPOCH * SOURCE.rate, 5 * EPOCH * SOURCE.rate)
            c3[flat] = c4[flat] = 0.0  # the electrodes were off
        seconds = len(stages) * EPOCH
        edfio().Edf(
            [
                _channel("SaO2", 95 + rng.normal(0, 0.5, seconds), 1, "%", 100),
                _channel(SECOND_NAMES[number % 4], c3, SOURCE.rate, "uV", SOURCE.limit),
                _channel("EOG(L)", rng.normal(0, 20, seconds * 50), 50, "uV", SOURCE.limit),
                _channel("EEG", c4, SOURCE.rate, "uV", SOURCE.limit),
            ],
            data_record_duration=1,
        ).write(recordings / f"shhs1-{person}.edf")
        if number < nights:  # the last one was never staged
            xml = _profusion(_codes(stages, number))
            (stagings / f"shhs1-{person}-profusion.xml").write_text(xml, encoding="utf-8")
        age = int(rng.integers(40, 95))
        rows.append(
            {"nsrrid": person, "pptid": "", "age_s1": age, "gender": 1 + number % 2, "race": 1}
        )
    write_csv(table, rows)


def _write_target(root: Path, nights: int, epochs: int, seed: int) -> None:
    """ISRUC-Sleep: recordings in subgroup folders, each with the stagings of two experts."""
    for number in range(nights):
        folder, name = _place(number)
        (root / folder).mkdir(parents=True, exist_ok=True)
        rng = generator(seed, "isruc", f"night {number}")
        stages = _hypnogram(TARGET, epochs, rng)
        c3, c4 = _signals(TARGET, stages, rng)
        channels = {"C3-A2": c3, "C4-A1": c4} if number % 2 else {"C3-M2": c3, "C4-M1": c4}
        if number == 0:
            left, right = rng.normal(0, 8, (2, len(c3)))
            channels = {"A1": left, "A2": right, "C3": c3 + right, "C4": c4 + left}
        edfio().Edf(
            [
                _channel("LOC-A2", rng.normal(0, 20, len(c3)), TARGET.rate, "uV", TARGET.limit),
                *(_channel(k, v, TARGET.rate, "uV", TARGET.limit) for k, v in channels.items()),
            ],
            data_record_duration=1,
        ).write(root / folder / f"{name}.rec")
        codes_of_stages = [CODES[stage] for stage in stages]
        other = [
            str(rng.choice(list(CODES.values()))) if rng.random() < 0.15 else code
            for code in codes_of_stages
        ]
        for expert, codes in ((1, codes_of_stages), (2, other[: len(codes_of_stages) - number])):
            text = "\n".join(codes) + "\n" * (1 + number % 3)
            (root / folder / f"{name}_{expert}.txt").write_text(text, encoding="utf-8")


def _place(number: int) -> tuple[str, str]:
    """Folder and name of a recording: two of one person in subgroup II, the others by turns."""
    if number in (1, 2):
        return f"subgroupII/1/{number}", str(number)
    person = str(number // 2 + 1)
    return f"{'subgroupIII' if number % 2 else 'subgroupI'}/{person}", person


def _persons() -> Iterator[int]:
    """Numbers of persons of SHHS whose splits are `SPLITS`, over and over."""
    number, count = FIRST_PERSON, 0
    while True:
        if hashed_split("shhs", str(number)) == SPLITS[count % len(SPLITS)]:
            yield number
            count += 1
        number += 1


def _hypnogram(domain: _SleepDomain, epochs: int, rng: np.random.Generator) -> list[str]:
    stages = ["wake"] * int(rng.integers(domain.awake // 2, domain.awake + 1))
    while len(stages) < epochs:
        for stage, length in CYCLE:
            stages += [stage] * int(rng.integers(length // 2, length + length // 2 + 1))
    return stages[:epochs]


def _codes(stages: list[str], number: int) -> list[str]:
    """Stages as Profusion codes them: some N3 is stage 4, some epochs have no stage."""
    codes = [
        "4" if stage == "n3" and epoch % 3 == 0 else CODES[stage]
        for epoch, stage in enumerate(stages)
    ]
    if number % 3 == 0:
        codes[-1:] = ["9"]
    if number % 4 == 1:
        codes[2] = "6"
        codes.append("0")  # the scorer went on to the end of a page
    return codes


def _profusion(codes: list[str]) -> str:
    scored = "\n".join(f"<SleepStage>{code}</SleepStage>" for code in codes)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<CMPStudyConfig>\n'
        f"<EpochLength>{EPOCH}</EpochLength>\n<StepChannels></StepChannels>\n<ScoredEvents>\n"
        "<ScoredEvent><Name>Arousal ()</Name><Start>61.5</Start><Duration>4.2</Duration>"
        "<Input>EEG</Input></ScoredEvent>\n</ScoredEvents>\n"
        f"<SleepStages>\n{scored}\n</SleepStages>\n</CMPStudyConfig>\n"
    )


def edfio() -> Any:
    """The package that writes EDF files."""
    with importing("edfio", "writing EDF files"):
        import edfio
    return edfio


def _channel(name: str, values: Floats, rate: float, unit: str, limit: float) -> Any:
    return edfio().EdfSignal(
        np.clip(values, -limit, limit),
        rate,
        label=name,
        physical_dimension=unit,
        physical_range=(-limit, limit),
    )


def _signals(
    domain: _SleepDomain, stages: list[str], rng: np.random.Generator
) -> tuple[Floats, Floats]:
    shift, loud = rng.normal(0, 0.04), domain.amplitude * rng.lognormal(0, 0.15)
    parts = []
    for stage in stages:
        both, *single = (_rhythms(domain, stage, 1 + shift, rng) for _ in range(3))
        epoch = 0.8 * both + 0.6 * np.stack(single) + _events(domain, stage, 1 + shift, rng)
        parts.append(loud * rng.lognormal(0, 0.12) * epoch)
    night = np.concatenate(parts, axis=1)
    time = np.arange(night.shape[1]) / domain.rate
    night += domain.hum * np.sin(2 * np.pi * (domain.mains * time + rng.uniform()))
    night += domain.noise * rng.standard_normal(night.shape)
    return night[0], night[1]


def _rhythms(domain: _SleepDomain, stage: str, shift: float, rng: np.random.Generator) -> Floats:
    """One epoch of one stage in µV: noise whose spectrum has the peaks of the stage."""
    length = EPOCH * domain.rate
    hertz = np.fft.rfftfreq(length, 1 / domain.rate)
    background = 1 / (1 + (hertz / 2) ** 2)
    power = BACKGROUND**2 * background / np.trapezoid(background, hertz)  # µV²/Hz
    for centre, width, size in _RHYTHMS[stage]:
        bell = np.exp(-0.5 * ((hertz - centre * shift) / width) ** 2)
        power += size**2 * bell / np.trapezoid(bell, hertz)
    real, imaginary = rng.standard_normal((2, len(hertz))) * np.sqrt(power * hertz[1]) / 2
    return np.asarray(np.fft.irfft(real + 1j * imaginary, length) * length, np.float64)


def _events(domain: _SleepDomain, stage: str, shift: float, rng: np.random.Generator) -> Floats:
    """What happens now and then in an epoch of one stage, (2, time) µV."""
    time = np.arange(EPOCH * domain.rate) / domain.rate
    events = np.zeros((2, len(time)))
    for count, width, hertz, left, right in _EVENTS[stage]:
        after = time - rng.uniform(1, EPOCH - 1, (rng.poisson(count), 1))
        shape = np.exp(-0.5 * (after / width) ** 2) * np.cos(2 * np.pi * hertz * shift * after)
        events += np.array([[left], [right]]) * shape.sum(axis=0)
    return events
