"""Small raw chest X-ray datasets in the layouts of MIMIC-CXR-JPG, CheXpert and VinDr-CXR.

A chest is sketched from soft ellipses: two lungs, a heart, two diaphragms, a spine and ribs. A
finding changes them: a wide heart, plates above a raised diaphragm, a dense patch, a haze around
the hila, a filled angle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pydicom
from PIL import Image

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets.cxr import finding_columns
from benchmd_ray.demo.draw import (
    adult,
    drawn_labels,
    generator,
    save_dicom,
    save_image,
    texture,
    write_csv,
)
from benchmd_ray.modality.modalities import modality

Floats = npt.NDArray[np.floating]

CLASSES = modality("cxr").task.classes
OFFICIAL_SPLITS = ("train", "validate", "train", "test", "train", "train", "validate", "train",
                   "train", "test")  # fmt: skip
"""MIMIC-CXR: official splits as they are dealt to the patients."""
FIRST_SUBJECT, FIRST_STUDY = 19_990_001, 59_990_001
"""MIMIC-CXR: numbers of the first synthetic patient and study, beyond those of the real ones."""
FIRST_PATIENT = 90_001
"""CheXpert: number of the first synthetic patient, beyond those of the real ones."""
UNLABELLED_STUDY = 12
"""MIMIC-CXR: a study that the labeler has not seen."""
METADATA_COLUMNS = (
    "dicom_id", "subject_id", "study_id", "PerformedProcedureStepDescription", "ViewPosition",
    "Rows", "Columns", "StudyDate", "StudyTime", "ProcedureCodeSequence_CodeMeaning",
    "ViewCodeSequence_CodeMeaning", "PatientOrientationCodeSequence_CodeMeaning",
)  # fmt: skip
CHEXPERT_FINDINGS = (
    "No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion",
    "Edema", "Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion",
    "Pleural Other", "Fracture", "Support Devices",
)  # fmt: skip
MIMIC_FINDINGS = sorted(CHEXPERT_FINDINGS)
VINDR_FINDINGS = (
    "Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Clavicle fracture",
    "Consolidation", "Edema", "Emphysema", "Enlarged PA", "ILD", "Infiltration", "Lung Opacity",
    "Lung cavity", "Lung cyst", "Mediastinal shift", "Nodule/Mass", "Pleural effusion",
    "Pleural thickening", "Pneumothorax", "Pulmonary fibrosis", "Rib fracture", "Other lesion",
    "COPD", "Lung tumor", "Pneumonia", "Tuberculosis", "Other diseases", "No finding",
)  # fmt: skip


@dataclass(frozen=True)
class _ChestDomain:
    dataset: str
    prevalence: tuple[float, ...]
    shape: tuple[int, int]
    gamma: float
    """Exponent of the grey levels: how dark they are rendered."""
    noise: float
    """White noise, as a share of the range of grey levels."""
    border: float
    """Largest share of the film that is masked at each side."""


SOURCE = _ChestDomain("mimic-cxr", (0.25, 0.25, 0.15, 0.2, 0.28), (240, 200), 1.0, 0.02, 0.0)
CHEXPERT = _ChestDomain("chexpert", (0.32, 0.3, 0.12, 0.16, 0.24), (200, 236), 1.3, 0.04, 0.06)
VINDR = _ChestDomain("vindr-cxr", (0.12, 0.16, 0.12, 0.1, 0.14), (250, 210), 0.8, 0.03, 0.04)


@dataclass(frozen=True)
class _ChestFilm:
    number: int
    study: int
    patient: int
    lateral: bool
    findings: tuple[str, ...]


def write_cxr(
    root: Path, *, source_records: int = 480, target_records: int = 120, seed: int = 0
) -> dict[str, Path]:
    """Write MIMIC-CXR-JPG, CheXpert and VinDr-CXR, in images; the defaults take 20 MB."""
    folders = {domain.dataset: root / domain.dataset for domain in (SOURCE, CHEXPERT, VINDR)}
    _write_mimic(folders["mimic-cxr"], source_records, seed)
    _write_chexpert(folders["chexpert"], target_records, seed)
    _write_vindr(folders["vindr-cxr"], target_records, seed)
    return folders


def _films(domain: _ChestDomain, records: int, seed: int) -> list[_ChestFilm]:
    """Every fourth image is the lateral of the study before, every fifth study of that patient."""
    rng = generator(seed, domain.dataset, "findings")
    columns = [
        drawn_labels((name, ""), (share, 1 - share), records, rng)
        for name, share in zip(CLASSES, domain.prevalence, strict=True)
    ]
    films: list[_ChestFilm] = []
    study = patient = 0
    for index in range(records):
        lateral = index % 4 == 3
        if lateral:
            findings = films[-1].findings
        else:
            findings = tuple(name for column in columns if (name := column[index]))
            study += 1
            patient += study % 5 != 0
        films.append(_ChestFilm(index + 1, study, patient, lateral, findings))
    return films


def _write_mimic(root: Path, records: int, seed: int) -> None:
    """JPEG files by patient and study; labels, splits and metadata in packed tables."""
    labels, splits, metadata = [], [], []
    for film in _films(SOURCE, records, seed):
        ids = {
            "subject_id": str(FIRST_SUBJECT + film.patient),
            "study_id": str(FIRST_STUDY + film.study),
        }
        dicom = _hex(SOURCE, film, seed, 40)
        name = "-".join(dicom[start : start + 8] for start in range(0, 40, 8))
        folder = root / f"files/p{ids['subject_id'][:2]}/p{ids['subject_id']}/s{ids['study_id']}"
        save_image(_film(SOURCE, film, seed), folder / f"{name}.jpg", quality=90)
        if not film.lateral and film.study != UNLABELLED_STUDY:
            labels.append(ids | _mined(film, seed))
        split = OFFICIAL_SPLITS[film.patient % len(OFFICIAL_SPLITS)]
        splits.append({"dicom_id": name, **ids, "split": split})
        view = "LATERAL" if film.lateral else ("PA", "AP")[film.patient % 2]
        metadata.append(
            {"dicom_id": name, **ids, "ViewPosition": view}
            | {"Rows": str(SOURCE.shape[0]), "Columns": str(SOURCE.shape[1])}
            | {"PerformedProcedureStepDescription": "CHEST", "StudyDate": "21800101"}
        )
    tables = (
        ("chexpert", ("subject_id", "study_id", *MIMIC_FINDINGS), labels),
        ("split", ("dicom_id", "study_id", "subject_id", "split"), splits),
        ("metadata", METADATA_COLUMNS, metadata),
    )
    for name, columns, rows in tables:
        write_csv(root / f"mimic-cxr-2.0.0-{name}.csv.gz", rows, columns)


def _mined(film: _ChestFilm, seed: int) -> dict[str, str]:
    """Labels as a labeler mines them from a report: most that is absent is not mentioned."""
    rng = generator(seed, SOURCE.dataset, f"report {film.study}")
    row = {"No Finding": "" if film.findings else "1.0"}
    for column, name in finding_columns(dataset_card(SOURCE.dataset)).items():
        row[column] = "1.0" if name in film.findings else "0.0" if rng.random() < 0.2 else ""
        if rng.random() < 0.06 and film.findings:
            row[column] = "-1.0"
    return row


def _write_chexpert(root: Path, records: int, seed: int) -> None:
    """A quarter of the images as the validation set, the others as the test set."""
    rows: dict[str, list[dict[str, str]]] = {"valid": [], "test": []}
    columns = finding_columns(dataset_card("chexpert"))
    films = _films(CHEXPERT, records, seed)
    first_tested = next((f.patient for f in films if f.number > records / 4), 0)
    for film in films:
        part = "test" if film.patient >= first_tested else "valid"
        top = {"valid": "CheXpert-v1.0-small/valid", "test": "CheXpert/test"}[part]
        view = f"view{1 + film.lateral}_{'lateral' if film.lateral else 'frontal'}"
        name = f"patient{FIRST_PATIENT + film.patient}/study{film.study}/{view}.jpg"
        save_image(_film(CHEXPERT, film, seed), root / top / name, quality=90)
        row = dict.fromkeys(CHEXPERT_FINDINGS, "0")
        row["No Finding"] = str(int(not film.findings))
        row |= {column: str(int(finding in film.findings)) for column, finding in columns.items()}
        if part == "valid":
            age, sex = _person(CHEXPERT, film.patient, seed)
            row = {column: f"{value}.0" for column, value in row.items()}
            row |= {"Path": f"{top}/{name}", "Sex": ("Male", "Female")[sex], "Age": str(age)}
            row |= {"Frontal/Lateral": "Lateral" if film.lateral else "Frontal"}
            row |= {"AP/PA": "" if film.lateral else "AP"}
        else:
            row["Path"] = f"test/{name}"
        rows[part].append(row)
    about = ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA")
    table = root / "CheXpert-v1.0-small" / "valid.csv"
    write_csv(table, rows["valid"], (*about, *CHEXPERT_FINDINGS))
    write_csv(root / "CheXpert/test_labels.csv", rows["test"], ("Path", *CHEXPERT_FINDINGS))


def _write_vindr(root: Path, records: int, seed: int) -> None:
    """DICOM files, some inverted, and a table whose rows stand in another order."""
    columns = finding_columns(dataset_card("vindr-cxr"))
    rows = []
    for film in _films(VINDR, records, seed):
        film = _ChestFilm(film.number, film.number, film.number, False, film.findings)
        name = _hex(VINDR, film, seed, 32)
        _save_dicom(film, name, root / "test" / f"{name}.dicom", seed)
        row = {"image_id": name} | dict.fromkeys(VINDR_FINDINGS, "0")
        row["No finding"] = str(int(not film.findings))
        rows.append(row | {c: str(int(finding in film.findings)) for c, finding in columns.items()})
    rng = generator(seed, VINDR.dataset, "rows")
    shuffled = [rows[index] for index in rng.permutation(len(rows))]
    table = root / "annotations" / "image_labels_test.csv"
    write_csv(table, shuffled, ("image_id", *VINDR_FINDINGS))


def _save_dicom(film: _ChestFilm, name: str, path: Path, seed: int) -> None:
    """12 bits, uncompressed; every third film as MONOCHROME1, where high values are dark."""
    inverted = film.number % 3 == 0
    grey = _grey(VINDR, film, seed)
    stored = np.rint((1 - grey if inverted else grey) * 3500 + 200).astype("<u2")
    age, sex = _person(VINDR, film.patient, seed)
    save_dicom(
        path,
        stored,
        (
            pydicom.uid.DigitalXRayImageStorageForPresentation,
            pydicom.uid.generate_uid(entropy_srcs=[name]),
        ),
        Modality="DX",
        PatientID=name,
        PatientSex=("M", "F")[sex],
        PatientAge=f"{age:03d}Y" if film.number % 4 else "000Y",
        PhotometricInterpretation="MONOCHROME1" if inverted else "MONOCHROME2",
        BitsStored=12,
    )


def _hex(domain: _ChestDomain, film: _ChestFilm, seed: int, digits: int) -> str:
    return generator(seed, domain.dataset, f"name {film.number}").bytes(digits // 2).hex()


def _person(domain: _ChestDomain, patient: int, seed: int) -> tuple[int, int]:
    rng = generator(seed, domain.dataset, f"person {patient}")
    return adult(rng, mean=60, deviation=16, oldest=90)


def _film(domain: _ChestDomain, film: _ChestFilm, seed: int) -> Image.Image:
    return Image.fromarray(np.rint(255 * _grey(domain, film, seed)).astype(np.uint8))


def _grey(domain: _ChestDomain, film: _ChestFilm, seed: int) -> Floats:
    """One film from 0 (dark) to 1 (its marker), (y, x)."""
    person = generator(seed, domain.dataset, f"chest {film.patient}")
    rng = generator(seed, domain.dataset, f"film {film.number}")
    height, width = domain.shape
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    size, turn = person.uniform(0.94, 1.06), person.normal(0, 0.03)
    y, x = (y + turn * x) / size, (x - turn * y) / size
    chest = _chest(y, x * (1.5 if film.lateral else 1.0), film.findings, person, rng)
    chest = chest + 0.02 * texture(chest.shape, 2, rng)
    chest = np.clip(chest * rng.uniform(0.85, 1.0), 0, 0.85) ** domain.gamma
    chest = chest + domain.noise * rng.standard_normal(chest.shape, np.float32)
    chest[height // 12 :][:12, width // 12 :][:, :8] = 1.0  # the lead marker of the side
    top, left = (rng.uniform(0, domain.border, 2) * domain.shape).astype(int)
    chest[:top] = chest[height - top :] = 0
    chest[:, :left] = chest[:, width - left :] = 0
    return np.asarray(np.clip(chest, 0, 1), np.float32)


def _chest(
    y: Floats, x: Floats, findings: Collection[str], person: np.random.Generator,
    rng: np.random.Generator,
) -> Floats:  # fmt: skip
    severity = {name: rng.uniform(0.7, 1.2) if name in findings else 0.0 for name in CLASSES}
    side = {name: rng.choice([-1.0, 1.0]) for name in CLASSES}
    wide = person.uniform(0.92, 1.08)
    lungs = [_ellipse(y, x, (-0.1, centre), (0.68, 0.33 * wide)) for centre in (-0.45, 0.45)]
    air = np.maximum(*lungs)
    chest: Floats = 0.62 - 0.42 * air + 0.04 * air * np.cos(22 * (y + 0.25 * np.abs(x)))
    chest += 0.15 * np.exp(-0.5 * (x / 0.07) ** 2)  # spine
    heart = 0.24 * person.uniform(0.9, 1.1) * (1 + 0.8 * severity["cardiomegaly"])
    chest = _covered(chest, 0.75, _ellipse(y, x, (0.22, 0.1), (0.3, heart)))
    haze = np.exp(-0.5 * (((np.abs(x) - 0.3) / 0.22) ** 2 + ((y + 0.05) / 0.32) ** 2))
    chest += severity["edema"] * 0.3 * haze * air * (1 + 0.3 * texture(y.shape, 1.5, rng))
    patch = rng.uniform(-0.5, 0.1), 0.45 * side["consolidation"] + rng.uniform(-0.05, 0.05)
    dense = _ellipse(y, x, patch, (0.26, 0.22)) * air
    chest = _covered(chest, 0.72, min(1.0, severity["consolidation"]) * dense)
    lost = _half(x * side["atelectasis"]) * air
    plates = np.exp(-0.5 * (np.sin(14 * (y - 0.5 * np.abs(x)) + rng.uniform(0, 3)) / 0.3) ** 2)
    chest += severity["atelectasis"] * 0.4 * lost * plates * _half((y - 0.02) * 8)
    raised = 0.5 - 0.14 * severity["atelectasis"] * _half(x * side["atelectasis"])
    chest = _covered(chest, 0.7, _half((y - raised - 0.5 * (np.abs(x) - 0.45) ** 2) * 12))
    level = 0.55 - 0.5 * severity["pleural effusion"] * (0.5 + np.abs(x))
    fluid = _half(x * side["pleural effusion"]) * _half((y - level) * 12)
    filled = min(1.0, 2 * severity["pleural effusion"])
    return np.asarray(_covered(chest, 0.78, filled * fluid), np.float32)


def _ellipse(y: Floats, x: Floats, centre: Sequence[float], radii: Sequence[float]) -> Floats:
    distance = ((y - centre[0]) / radii[0]) ** 2 + ((x - centre[1]) / radii[1]) ** 2
    return _half(5 * (1 - distance))


def _half(position: Floats) -> Floats:
    """0 on the negative side, 1 on the positive, with a soft edge."""
    return np.asarray(1 / (1 + np.exp(-np.clip(3 * position, -40, 40))), np.float32)


def _covered(chest: Floats, brightness: float, cover: Floats) -> Floats:
    """The chest behind something of that brightness, where ``cover`` is 1."""
    return chest * (1 - cover) + brightness * cover
