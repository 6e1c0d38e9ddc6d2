"""Small raw ECG datasets in the layouts of PTB-XL and the CinC challenges."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.io import savemat

from benchmd_ray.data.cards import code_classes, dataset_card
from benchmd_ray.data.datasets.ecg import ECG, LEADS
from benchmd_ray.demo.draw import adult, drawn_labels, generator, write_csv
from benchmd_ray.demo.ecg_signals import RATE, STEPS_PER_MV, Domain, ecg_of

FIRST_PATIENT = 90_001
"""PTB-XL patient number of the first synthetic patient, beyond those of the real ones."""
FOLD_ORDER = (1, 9, 10, 2, 3, 4, 5, 6, 7, 8)
"""Folds as they are dealt to the patients of a class, so that few reach every split."""
SOURCE = Domain(
    "ptb-xl", "HR", (0.34, 0.12, 0.12, 0.12, 0.10, 0.10, 0.10), 72, 1.0, 0.03, 0.06, 0.004, 50
)
TARGETS = (
    Domain(
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
    Domain(
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
    Domain(
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
    """Write PTB-XL and three datasets of the CinC challenges, in ECGs; the defaults take 130 MB."""
    folders = {domain.dataset: root / domain.dataset for domain in (SOURCE, *TARGETS)}
    _write_source(folders[SOURCE.dataset], source_records, seed)
    for domain in TARGETS:
        _write_target(folders[domain.dataset], domain, target_records, seed)
    return folders


def _write_source(root: Path, records: int, seed: int) -> None:
    """PTB-XL 1.0.3: the table, and header and samples of each record at 500 Hz."""
    rng = generator(seed, SOURCE.dataset, "table")
    labels = _labels(SOURCE, records, rng)
    patients = _patients(labels)
    codes = _codes_by_class(code_classes(dataset_card(SOURCE.dataset).code_table))
    rows = []
    for number, (label, (patient, fold)) in enumerate(zip(labels, patients, strict=True), 1):
        row = _database_row(number, patient, fold, _likelihoods(label, codes, rng), seed)
        rows.append(row)
        path = root / row["filename_hr"]
        path.parent.mkdir(parents=True, exist_ok=True)
        signal = ecg_of(SOURCE, label, 10.0, patient, number, seed)
        signal.T.astype("<i2").tofile(path.with_suffix(".dat"))
        lines = [f"{path.name} 12 {RATE} {signal.shape[1]}"]
        for lead, samples in zip(LEADS, signal, strict=True):
            tail = f"16 0 {samples[0]} {int(samples.sum()) % 65536} 0 {lead.upper()}"
            lines.append(f"{path.name}.dat 16 {STEPS_PER_MV:.1f}(0)/mV {tail}")
        path.with_suffix(".hea").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_csv(root / "ptbxl_database.csv", rows)


def _write_target(root: Path, domain: Domain, records: int, seed: int) -> None:
    """One ``.hea`` and one MATLAB v4 ``.mat`` per record, as in the CinC challenges."""
    rng = generator(seed, domain.dataset, "table")
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
        signal = ecg_of(domain, label, seconds, number, number, seed)
        savemat(folder / f"{name}.mat", {"val": signal}, format="4")
        person = {"Age": age, "Sex": ("Male", "Female")[sex], "Dx": ",".join(dx)}
        header = _cinc_header(domain, name, signal, person)
        (folder / f"{name}.hea").write_text(header, encoding="utf-8")


def _cinc_header(
    domain: Domain, name: str, signal: npt.NDArray[np.int16], person: Mapping[str, object]
) -> str:
    lines = [domain.first_line.format(name=name, time=signal.shape[1])]
    for lead, samples in zip(LEADS, signal, strict=True):
        checksum = (int(samples.sum()) + 32768) % 65536 - 32768
        label = lead.lower() if domain.lower_case else lead
        lines.append(f"{name}.mat {domain.signal_format} 16 0 {samples[0]} {checksum} 0 {label}")
    lines += [f"{domain.comment}{key}: {value}" for key, value in person.items()]
    lines += [f"{domain.comment}{key}: Unknown" for key in ("Rx", "Hx", "Sx")]
    return "\n".join(lines) + "\n"


def _database_row(
    number: int, patient: int, fold: int, likelihoods: dict[str, float], seed: int
) -> dict[str, str]:
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
        "static_noise": " , I-V1,  " if number % 17 == 3 else "",
        "burst_noise": "",
        "electrodes_problems": "",
        "extra_beats": "",
        "pacemaker": "",
        "strat_fold": str(fold),
        "filename_lr": f"records100/{file}_lr",
        "filename_hr": f"records500/{file}_hr",
    }


def _labels(domain: Domain, records: int, rng: np.random.Generator) -> list[str]:
    return drawn_labels(ECG.task.classes, domain.prevalence, records, rng)


def _patients(labels: list[str]) -> list[tuple[int, int]]:
    """Patient and fold of each record: every fifth of a class is of the patient before it."""
    seen: dict[str, list[tuple[int, int]]] = {}
    result: list[tuple[int, int]] = []
    count = 0
    for label in labels:
        same_class = seen.setdefault(label, [])
        if len(same_class) % 5 == 4:
            same_class.append(same_class[-1])
        else:
            dealt = len(set(same_class))
            same_class.append((count, FOLD_ORDER[dealt % len(FOLD_ORDER)]))
            count += 1
        result.append(same_class[-1])
    return result


def _codes_by_class(classes: dict[str, str]) -> dict[str, list[str]]:
    return {
        name: [c for c, code_class in classes.items() if code_class == name]
        for name in ECG.task.classes
    }


def _likelihoods(
    label: str, codes: dict[str, list[str]], rng: np.random.Generator
) -> dict[str, float]:
    """Codes with likelihoods whose dominant class is ``label``."""
    if label == "normal":
        return {"NORM": float(rng.choice([100.0, 80.0])), "SR": 0.0}
    likelihoods = {str(rng.choice(codes[label])): float(rng.choice([100.0, 80.0, 50.0]))}
    if label == "atrial fibrillation/flutter":
        likelihoods = dict.fromkeys(likelihoods, 0.0)  # a rhythm: PTB-XL states no likelihood
    if rng.random() < 0.2:
        weaker = ECG.task.classes[1 + int(rng.integers(len(ECG.task.classes) - 1))]
        likelihoods.setdefault(str(rng.choice(codes[weaker])), 15.0)
    if label != "atrial fibrillation/flutter":
        likelihoods["SR"] = 0.0
    return likelihoods


def _person(domain: Domain, patient: int, seed: int) -> tuple[int, int]:
    rng = generator(seed, domain.dataset, f"person {patient}")
    return adult(rng, mean=62, deviation=15, oldest=89)
