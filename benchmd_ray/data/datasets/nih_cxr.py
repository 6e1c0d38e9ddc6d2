"""NIH ChestX-ray14: PNG images; the AP films are a source, the PA films a target.

Bedside (AP) and upright (PA) films of one hospital differ in acquisition and in patients, which
makes a shift that open data can show. BenchMD has no such pair. Patients carry the same pseudonym
in both, since some have films of both kinds.
Source: https://nihcc.app.box.com/v/ChestXray-NIHCC.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets import cxr
from benchmd_ray.data.raw import Choices, Discovery, RawItem, Reading, files
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.data.splits import hashed_split
from benchmd_ray.data.tables import age_string, read_rows, sex
from benchmd_ray.errors import BenchmdError, unknown_name

DATASET = "nih-cxr"
"""Key of the patients' pseudonyms, common to both cards."""
OFFICIAL_TABLES = "Data_Entry_2017*.csv"
TEST_LIST = "test_list.txt"
SAMPLE_TABLE, SAMPLE_FOLDER = "labels.csv", "images_224"
COLUMNS = ("Image Index", "Finding Labels", "Patient ID", "Patient Age", "View Position")
BOTH_VIEWS = "its patient also has films in the source's view"

Row = dict[str, str]


def discover(root: Path, card: DatasetCard, choices: Choices, *, view: str) -> Discovery:
    """List the films of one view in either layout.

    Args:
        root: The raw folder.
        card: Card of the films of that view.
        choices: Policy and options.
        view: ``AP`` or ``PA``, as in the column View Position.

    Raises:
        BenchmdError: The table, or in the official layout the list of test images, is missing or
            cannot be used.
    """
    layout, path, folder = _layout(root)
    rows = read_rows(path, COLUMNS, "NIH ChestX-ray14")
    tested = _test_list(root) if layout == "official" else frozenset[str]()
    found = {file.name: file for file in reversed(files(folder, "*.png"))}
    other_view = {_patient(row, path) for row in rows if row["View Position"] != view}
    items, missing, left_out = [], [], Counter[str]()
    for row in rows:
        name, patient = row["Image Index"], _patient(row, path)
        if row["View Position"] != view:
            left_out[f"its view position is {row['View Position'] or 'not given'}"] += 1
        elif name not in found:
            missing.append(f"image {record_id(patient, name)}")
        elif not row["Finding Labels"].strip():
            left_out[cxr.UNLABELLED] += 1
        else:
            item = RawItem(
                path=found[name].relative_to(root).as_posix(),
                record_id=record_id(patient, name),
                group_id=hashed_patient(DATASET, patient),
                split=_split(card, choices, patient, name, tested),
                labels=_labels(row, card, path),
                metadata=_metadata(row),
                details={"both_views": patient in other_view},
            )
            items.append(item)
    unlisted = len(found.keys() - {row["Image Index"] for row in rows})
    if unlisted:
        left_out[cxr.UNLISTED] = unlisted
    return Discovery(layout, items, missing, dict(left_out))


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The record of one film; one of a target says where its patient is in the source too.

    Raises:
        RecordError: It cannot be read as an image.
    """
    reading = cxr.read(root, item, card)
    if card.role == "target" and item.details.get("both_views"):
        reading.remarks[BOTH_VIEWS] += 1
    return reading


def _layout(root: Path) -> tuple[str, Path, Path]:
    """Layout, table and folder of the images."""
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
    """Names of the official test images."""
    path = root / TEST_LIST
    if not path.is_file():
        raise BenchmdError(
            f"{path} is missing: it lists the official test images. Fetch it from the same place "
            "as the table."
        )
    return frozenset(path.read_text(encoding="utf-8").split())


def _patient(row: Row, path: Path) -> str:
    text = row["Patient ID"].strip()
    if not (text.isascii() and text.isdigit()):
        raise BenchmdError(f"{path}: a Patient ID is {text!r}, expected a whole number.")
    return str(int(text))


def record_id(patient: str, name: str) -> str:
    """Pseudonym of an image: the file's name with the patient's number replaced."""
    _, _, number = Path(name).stem.partition("_")
    return f"{hashed_patient(DATASET, patient)}-{number or hashed_patient(DATASET, name)}"


def _split(
    card: DatasetCard, choices: Choices, patient: str, name: str, tested: frozenset[str]
) -> str:
    """Official test images where there is a list, else a hash of the patient (decision D7)."""
    if choices.policy == "released":  # no release covers this dataset: the rule for the others
        return hashed_split(DATASET, name)
    if card.role == "target" or name in tested:
        return "test"
    return hashed_split(DATASET, patient)


def _labels(row: Row, card: DatasetCard, path: Path) -> dict[str, int]:
    """1 for each class among the findings, 0 for the others: the labeler names all it found."""
    named = {part.strip() for part in row["Finding Labels"].split("|")}
    for name in sorted(named - card.class_mapping.keys()):
        raise unknown_name(f"finding in {path}", name, card.class_mapping)
    positive = {card.class_mapping[name] for name in named}
    return {name: int(name in positive) for name in card.classes}


def _metadata(row: Row) -> dict[str, float | str | None]:
    return {
        "age": age_string(row["Patient Age"]),
        "sex": sex(row.get("Patient Gender") or row.get("Patient Sex") or ""),
        "view": row["View Position"],
    }
