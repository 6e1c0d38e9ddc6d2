"""NIH ChestX-ray14: PNG images; the AP films are a source, the PA films a target.

Bedside (AP) and upright (PA) films of one hospital differ in acquisition and patients. Patients
have the same pseudonym in both; those who train are not part of the target (decision D7b). Source:
https://nihcc.app.box.com/v/ChestXray-NIHCC.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Literal

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets import cxr
from benchmd_ray.data.raw import (
    DUPLICATE,
    NO_ROW,
    Choices,
    Discovery,
    RawItem,
    Reading,
    by_key,
    files,
)
from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.records import RecordError, hashed_patient
from benchmd_ray.data.splits import hashed_split
from benchmd_ray.data.tables import age_string, read_rows, sex
from benchmd_ray.errors import BenchmdError, unknown_name

VERSION = 1
DATASET = "nih-cxr"
"""Key of the pseudonyms in the names of records, common to both cards."""
OFFICIAL_TABLES = "Data_Entry_2017*.csv"
TEST_LIST = "test_list.txt"
SAMPLE_TABLE, SAMPLE_FOLDER = "labels.csv", "images_224"
COLUMNS = ("Image Index", "Finding Labels", "Patient ID", "Patient Age", "View Position")
SOURCE_VIEW = "AP"
ADULT = 18
MAX_LIST_BYTES = 2**24
"""The list of the test images has 0.4 MB."""
TRAINED_ON = "its patient's AP films are in the source's training split"

Row = dict[str, str]
Role = Literal["source", "target"]


def discover(root: Path, card: DatasetCard, choices: Choices, *, view: str) -> Discovery:
    """List the films of one view, ``AP`` or ``PA``, in either layout."""
    layout, path, folder = _layout(root)
    rows = read_rows(path, COLUMNS, "NIH ChestX-ray14")
    tested = _test_list(root) if layout == "official" else frozenset[str]()
    image_paths, duplicates = by_key(files(folder, "*.png"), lambda file: file.name)
    patients = [_patient(row, f"{path}, record {n}") for n, row in enumerate(rows, 1)]
    trained_on = _trained_on(rows, patients, choices.policy, tested)
    items, missing, excluded = [], [], Counter({DUPLICATE: duplicates})
    for row, patient in zip(rows, patients, strict=True):
        name, shared = row["Image Index"], card.role == "target" and patient in trained_on
        if reason := _reason(row, view, shared, choices):
            excluded[reason] += 1
        elif name not in image_paths:
            missing.append(f"image {record_id(patient, name)}")
        else:
            item = RawItem(
                path=image_paths[name].relative_to(root).as_posix(),
                record_id=record_id(patient, name),
                group_id=hashed_patient(card.namespace, patient),
                split=_split(card.role, choices.policy, patient, name, tested),
                labels=_labels(row, card, path),
                metadata={
                    "age": age_string(row["Patient Age"]),
                    "sex": sex(row.get("Patient Gender") or row.get("Patient Sex") or ""),
                    "view": row["View Position"],
                },
                conditions=_conditions(row, card),
                details={"trained_on": shared},
            )
            items.append(item)
    excluded[NO_ROW] = len(image_paths.keys() - {row["Image Index"] for row in rows})
    return Discovery(layout, items, missing, dict(+excluded))


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The record of one film; one of a target says where a model was trained on its patient."""
    reading = cxr.read(root, item, card)
    if item.details["trained_on"]:
        reading.warnings[TRAINED_ON] += 1
    return reading


def _reason(row: Row, view: str, shared: bool, choices: Choices) -> str:
    if row["View Position"] != view:
        return f"its view position is {row['View Position'] or 'not given'}"
    if not row["Finding Labels"]:
        return cxr.UNLABELLED
    excluded = shared and choices.options["shared_patients"] == "exclude"
    return TRAINED_ON if excluded else ""


def _layout(root: Path) -> tuple[str, Path, Path]:
    if (root / SAMPLE_TABLE).is_file():
        return "sample", root / SAMPLE_TABLE, root / SAMPLE_FOLDER
    tables = sorted(root.glob(OFFICIAL_TABLES))
    if not tables:
        raise BenchmdError(
            f"{root} has neither {OFFICIAL_TABLES} (the official layout) nor {SAMPLE_TABLE} (the "
            "sample's): expected the table of NIH ChestX-ray14."
        )
    return "official", tables[-1], root


def _test_list(root: Path) -> frozenset[str]:
    path = root / TEST_LIST
    if not path.is_file():
        raise BenchmdError(
            f"{path} is missing: it lists the official test images. Fetch it from the same place "
            "as the table."
        )
    try:
        return frozenset(read_bounded(path, MAX_LIST_BYTES, "it").decode("utf-8").split())
    except (UnicodeDecodeError, RecordError) as error:
        raise BenchmdError(f"{path} is not a list of images ({error}).") from error


def _patient(row: Row, where: str) -> str:
    """The patient's number, which no message may give away."""
    text = row["Patient ID"]
    if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
        raise BenchmdError(
            f"{where}: Patient ID is not a whole number, as it is in ChestX-ray14. Fetch the table "
            "again."
        )
    return str(int(text))


def _trained_on(
    rows: list[Row], patients: list[str], policy: str, tested: frozenset[str]
) -> set[str]:
    """Patients whose AP films are in the source's training split, under the same policy."""
    return {
        patient
        for row, patient in zip(rows, patients, strict=True)
        if row["View Position"] == SOURCE_VIEW and row["Finding Labels"]
        if _split("source", policy, patient, row["Image Index"], tested) == "train"
    }


def record_id(patient: str, name: str) -> str:
    """Pseudonym of an image: the file's name with the patient's number replaced."""
    _, _, number = Path(name).stem.partition("_")
    return f"{hashed_patient(DATASET, patient)}-{number or hashed_patient(DATASET, name)}"


def _split(role: Role, policy: str, patient: str, name: str, tested: frozenset[str]) -> str:
    """Official test images where there is a list, else a hash of the patient (decision D7)."""
    if policy == "released":  # no release covers this dataset: the rule for the others
        return hashed_split(DATASET, name)
    if role == "target" or name in tested:
        return "test"
    return hashed_split(DATASET, patient)


def _labels(row: Row, card: DatasetCard, path: Path) -> dict[str, int]:
    """1 for each class among the findings, 0 for the others: the labeler names all it found."""
    named = {part.strip() for part in row["Finding Labels"].split("|")}
    for name in sorted(named - card.class_mapping.keys()):
        raise unknown_name(f"finding in {path}", name, card.class_mapping)
    positive = {card.class_mapping[name] for name in named}
    return {name: int(name in positive) for name in card.classes}


def _conditions(row: Row, card: DatasetCard) -> tuple[str, ...]:
    years = age_string(row["Patient Age"])
    child = ("child",) if years is not None and years < ADULT else ()
    findings = (part.strip() for part in row["Finding Labels"].split("|"))
    return (*(name for name in findings if not card.class_mapping.get(name)), *child)
