"""Small raw ECG datasets in the layouts of PTB-XL and the CinC challenges.

An ECG is sketched as a heart dipole: P, Q, R, S, T and ST segment are Gaussians in time along a
direction in space, repeated at a heart rate and seen by 12 leads through Dower's matrix. The class
changes the waves, the patient turns and scales them, the dataset adds its noise. Nobody should
read medicine into it.
"""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.io import savemat

from benchmd_ray.data.cards import code_classes, dataset_card
from benchmd_ray.data.datasets.ecg import ECG, LEADS
from benchmd_ray.demo.draw import drawn_labels, generator

Floats = npt.NDArray[np.float32]

RATE = 500
"""Sampling rate in Hz."""
STEPS_PER_MV = 1000
FIRST_PATIENT = 90_001
"""PTB-XL patient number of the first synthetic patient, beyond those of the real ones."""
FOLD_ORDER = (1, 9, 10, 2, 3, 4, 5, 6, 7, 8)
"""Folds as they are dealt to the patients of a class, so that few reach every split."""

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
class _Domain:
    """Where ECGs are recorded: on whom and with what."""

    dataset: str
    prefix: str
    prevalence: tuple[float, ...]
    """Share of each class, in the modality's order; zero where its code table has no code."""
    beats_per_minute: float
    amplitude: float
    noise: float
    """White noise, mV."""
    wander: float
    """Baseline wander, mV."""
    hum: float
    """Mains hum, mV."""
    mains: float
    """Mains frequency, Hz."""
    first_line: str = ""
    """CinC: first header line, with the fields name and time."""
    signal_format: str = ""
    """CinC: storage format and gain in a signal line."""
    comment: str = "#"
    """CinC: start of a comment line."""
    lower_case: bool = False
    """CinC: lead names in lower case."""


SOURCE = _Domain(
    "ptb-xl", "HR", (0.34, 0.12, 0.12, 0.12, 0.10, 0.10, 0.10), 72, 1.0, 0.03, 0.06, 0.004, 50
)
TARGETS = (
    _Domain(
        dataset="chapman-shaoxing",
        prefix="JS",
        prevalence=(0.42, 0.10, 0.05, 0.13, 0.06, 0.17, 0.07),
        beats_per_minute=78,
        amplitude=0.9,
        noise=0.05,
        wander=0.12,
        hum=0.02,
        mains=50,
        first_line="{name} 12 500 {time}",
        signal_format="16x1+24 1000.0(0)/mV",
        comment="# ",
    ),
    _Domain(
        dataset="georgia",
        prefix="E",
        prevalence=(0.32, 0.13, 0.08, 0.17, 0.12, 0.06, 0.12),
        beats_per_minute=82,
        amplitude=1.2,
        noise=0.08,
        wander=0.3,
        hum=0.03,
        mains=60,
        first_line="{name}.mat 12 500 {time} 05-May-2020 14:50:55",
        signal_format="16+24 1000/mV",
    ),
    _Domain(
        dataset="cpsc",
        prefix="A",
        prevalence=(0.20, 0.34, 0.0, 0.16, 0.14, 0.16, 0.0),
        beats_per_minute=88,
        amplitude=0.75,
        noise=0.1,
        wander=0.2,
        hum=0.06,
        mains=50,
        first_line="{name} 12 500 {time} 12-May-2020 12:33:59",
        signal_format="16+24 1000.0(0)/mv",
        lower_case=True,
    ),
)


def write_ecg(
    root: Path, *, source_records: int = 560, target_records: int = 140, seed: int = 0
) -> dict[str, Path]:
    """Write PTB-XL and the three target datasets as raw folders below ``root``.

    PTB-XL comes in PhysioNet's layout, the targets in that of the CinC challenges. The same
    arguments give the same bytes. The default sizes take some seconds and 130 MB.

    Args:
        root: Folder to write into.
        source_records: Records of PTB-XL, of some fewer patients.
        target_records: Records of each target.
        seed: Seed of all that is drawn.

    Returns:
        The raw folder of each dataset, by its name.
    """
    folders = {domain.dataset: root / domain.dataset for domain in (SOURCE, *TARGETS)}
    _write_source(folders[SOURCE.dataset], source_records, seed)
    for domain in TARGETS:
        _write_target(folders[domain.dataset], domain, target_records, seed)
    return folders


def _write_source(root: Path, records: int, seed: int) -> None:
    """PTB-XL 1.0.3: the table, and header and samples of each record at 500 Hz."""
    rng = _generator(seed, SOURCE, "table")
    labels = _labels(SOURCE, records, rng)
    patients = _patients(labels)
    codes = _codes_by_class(code_classes(dataset_card(SOURCE.dataset).code_table))
    root.mkdir(parents=True, exist_ok=True)
    with (root / "ptbxl_database.csv").open("w", encoding="utf-8", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for number, (label, (patient, fold)) in enumerate(zip(labels, patients, strict=True), 1):
            row = _database_row(number, patient, fold, _likelihoods(label, codes, rng), seed)
            if writer is None:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
            path = root / row["filename_hr"]
            path.parent.mkdir(parents=True, exist_ok=True)
            signal = _ecg(SOURCE, label, 10.0, patient, number, seed)
            signal.T.astype("<i2").tofile(path.with_suffix(".dat"))
            lines = [f"{path.name} 12 {RATE} {signal.shape[1]}"]
            for lead, samples in zip(LEADS, signal, strict=True):
                tail = f"16 0 {samples[0]} {int(samples.sum()) % 65536} 0 {lead.upper()}"
                lines.append(f"{path.name}.dat 16 {STEPS_PER_MV:.1f}(0)/mV {tail}")
            path.with_suffix(".hea").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_target(root: Path, domain: _Domain, records: int, seed: int) -> None:
    """One ``.hea`` and one MATLAB v4 ``.mat`` per record, as in the CinC challenges."""
    rng = _generator(seed, domain, "table")
    table = code_classes(dataset_card(domain.dataset).code_table, domain.dataset)
    codes = _codes_by_class(table)
    unmapped = [code for code, name in table.items() if not name]
    folder = root / "g1"
    folder.mkdir(parents=True, exist_ok=True)
    for number, label in enumerate(_labels(domain, records, rng), 1):
        name = f"{domain.prefix}{number:0{4 if domain.dataset == 'cpsc' else 5}d}"
        seconds = 10.0
        if domain.dataset == "cpsc":
            seconds = 21.0 if number % 5 == 0 else 7.5 if number % 13 == 0 else 10.0
        dx = [str(rng.choice(codes[label]))]
        if number % 17 == 0:
            dx = [str(rng.choice(unmapped))]  # a record that the protocol leaves out
        elif label not in ("normal", "atrial fibrillation/flutter") and rng.random() < 0.5:
            dx.append("426783006")  # sinus rhythm does not count with a finding
        age, sex = _person(domain, number, seed)
        signal = _ecg(domain, label, seconds, number, number, seed)
        savemat(folder / f"{name}.mat", {"val": signal}, format="4")
        person = {"Age": age, "Sex": ("Male", "Female")[sex], "Dx": ",".join(dx)}
        header = _cinc_header(domain, name, signal, person)
        (folder / f"{name}.hea").write_text(header, encoding="utf-8")


def _cinc_header(
    domain: _Domain, name: str, signal: npt.NDArray[np.int16], person: Mapping[str, object]
) -> str:
    lines = [domain.first_line.format(name=name, time=signal.shape[1])]
    for lead, samples in zip(LEADS, signal, strict=True):
        checksum = (int(samples.sum()) + 32768) % 65536 - 32768
        shown = lead.lower() if domain.lower_case else lead
        lines.append(f"{name}.mat {domain.signal_format} 16 0 {samples[0]} {checksum} 0 {shown}")
    lines += [f"{domain.comment}{key}: {value}" for key, value in person.items()]
    lines += [f"{domain.comment}{key}: Unknown" for key in ("Rx", "Hx", "Sx")]
    return "\n".join(lines) + "\n"


def _database_row(
    number: int, patient: int, fold: int, likelihoods: dict[str, float], seed: int
) -> dict[str, str]:
    """A row of ``ptbxl_database.csv`` with the owner's columns."""
    age, sex = _person(SOURCE, patient, seed)
    file = f"{number // 1000 * 1000:05d}/{number:05d}"
    recorded = dt.datetime(1990, 1, 1) + dt.timedelta(days=number, seconds=number * 61)
    return {
        "ecg_id": str(number),
        "patient_id": f"{patient + FIRST_PATIENT}.0",
        "age": "300.0" if patient % 50 == 7 else f"{age}.0",  # how PTB-XL writes 90 and older
        "sex": str(sex),
        "height": "",
        "weight": f"{60 + patient % 40}.0",
        "nurse": f"{patient % 12}.0",
        "site": f"{patient % 3}.0",
        "device": ("CS-12   E", "AT-6 C 5.5")[patient % 2],
        "recording_date": recorded.strftime("%Y-%m-%d %H:%M:%S"),
        "report": "synthetischer rhythmus, kein befund eines menschen.",
        "scp_codes": repr(likelihoods),
        "heart_axis": "",
        "infarction_stadium1": "",
        "infarction_stadium2": "",
        "validated_by": "",
        "second_opinion": "False",
        "initial_autogenerated_report": "False",
        "validated_by_human": "True",
        "baseline_drift": "",
        "static_noise": " , I-V1,  ",
        "burst_noise": "",
        "electrodes_problems": "",
        "extra_beats": "",
        "pacemaker": "",
        "strat_fold": str(fold),
        "filename_lr": f"records100/{file}_lr",
        "filename_hr": f"records500/{file}_hr",
    }


def _labels(domain: _Domain, records: int, rng: np.random.Generator) -> list[str]:
    return drawn_labels(ECG.task.classes, domain.prevalence, records, rng)


def _patients(labels: list[str]) -> list[tuple[int, int]]:
    """Patient and fold of each record: every fifth of a class is of the patient before it."""
    seen: dict[str, list[tuple[int, int]]] = {}
    result: list[tuple[int, int]] = []
    known = 0
    for label in labels:
        own = seen.setdefault(label, [])
        if len(own) % 5 == 4:
            own.append(own[-1])
        else:
            dealt = len(set(own))
            own.append((known, FOLD_ORDER[dealt % len(FOLD_ORDER)]))
            known += 1
        result.append(own[-1])
    return result


def _codes_by_class(classes: dict[str, str]) -> dict[str, list[str]]:
    return {name: [c for c, own in classes.items() if own == name] for name in ECG.task.classes}


def _likelihoods(
    label: str, codes: dict[str, list[str]], rng: np.random.Generator
) -> dict[str, float]:
    """Codes with likelihoods whose dominant class is ``label``."""
    if label == "normal":
        return {"NORM": float(rng.choice([100.0, 80.0])), "SR": 0.0}
    found = {str(rng.choice(codes[label])): float(rng.choice([100.0, 80.0, 50.0]))}
    if label == "atrial fibrillation/flutter":
        found = dict.fromkeys(found, 0.0)  # a rhythm: PTB-XL states no likelihood
    if rng.random() < 0.2:
        weaker = ECG.task.classes[1 + int(rng.integers(len(ECG.task.classes) - 1))]
        found.setdefault(str(rng.choice(codes[weaker])), 15.0)
    if label != "atrial fibrillation/flutter":
        found["SR"] = 0.0
    return found


def _person(domain: _Domain, patient: int, seed: int) -> tuple[int, int]:
    """Age in years, and 0 for a man or 1 for a woman."""
    rng = _generator(seed, domain, f"person {patient}")
    return int(np.clip(rng.normal(62, 15), 18, 89)), int(rng.integers(2))


def _ecg(
    domain: _Domain, label: str, seconds: float, patient: int, number: int, seed: int
) -> npt.NDArray[np.int16]:
    """One recording in steps of 1/`STEPS_PER_MV` mV, (lead, time) in the order of `LEADS`."""
    person = _generator(seed, domain, f"heart {patient}")
    rng = _generator(seed, domain, f"record {number}")
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
    return _digital(_twelve(seen + _disturbance(domain, time, rng)))


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
    """The dipole over time, (3, time) mV."""
    table = np.stack(list(waves.values()))
    centres = (beats[:, None] + table[:, 0]).ravel().astype(np.float32)
    widths = np.tile(table[:, 1], len(beats)).astype(np.float32)
    vectors = np.tile(table[:, 2:], (len(beats), 1)).astype(np.float32)
    bells = np.exp(-0.5 * ((time - centres[:, None]) / widths[:, None]) ** 2)
    return np.asarray(vectors.T @ bells, np.float32)


def _disturbance(domain: _Domain, time: Floats, rng: np.random.Generator) -> Floats:
    """Noise, baseline wander and hum of the eight independent leads, (8, time) mV."""
    noise = domain.noise * rng.lognormal(0, 0.3)
    result = noise * rng.standard_normal((8, len(time)), np.float32)
    for size, hertz in ((domain.wander, rng.uniform(0.15, 0.4)), (domain.hum, domain.mains)):
        wave = np.sin(2 * np.pi * (hertz * time + rng.uniform()))
        result += (size * rng.normal(0, 1, (8, 1)) * wave).astype(np.float32)
    return result


def _twelve(leads: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """All leads from I, II and V1–V6: the limb leads are linear in I and II."""
    one, two, chest = leads[0], leads[1], leads[2:]
    limbs = [one, two, two - one, -(one + two) / 2, one - two / 2, two - one / 2]
    return np.concatenate([np.stack(limbs), chest])


def _digital(millivolts: npt.NDArray[np.floating]) -> npt.NDArray[np.int16]:
    steps = np.rint(np.clip(millivolts * STEPS_PER_MV, -32767, 32767))
    return np.asarray(steps, np.int16)


def _generator(seed: int, domain: _Domain, what: str) -> np.random.Generator:
    return generator(seed, domain.dataset, what)


def _no_finding(waves: Waves, severity: float, rng: np.random.Generator) -> None:
    """Leave the waves as they are."""


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
    "normal": _no_finding,
    "conduction disturbance": _block,
    "myocardial infarction": _infarction,
    "ischemic st-t changes": _ischemia,
    "other": _no_finding,  # premature beats, drawn with the beats
    "atrial fibrillation/flutter": _fibrillation,
    "hypertrophy": _hypertrophy,
}
