"""HAM10000, as Harvard Dataverse hands it out and as the ISIC 2018 challenge does.

Images of one lesion form a group: the dataset names no patients.
Sources: https://doi.org/10.7910/DVN/DBW86T, https://challenge.isic-archive.com/landing/2018/.
"""

from __future__ import annotations

from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.photographs import Photograph, listing, one_hot_label
from benchmd_ray.data.raw import Choices, Discovery, files
from benchmd_ray.data.tables import age, read_rows, sex
from benchmd_ray.errors import BenchmdError

VERSION = 1
METADATA = ("HAM10000_metadata", "HAM10000_metadata.csv", "HAM10000_metadata.tab")
LABELS = "ISIC2018_Task3_Training_GroundTruth.csv"
LESIONS = "ISIC2018_Task3_Training_LesionGroupings.csv"
COLUMNS = ("lesion_id", "image_id", "dx", "age", "sex")
OTHER_SETS = ("_test_", "_validation_")
"""Folders of other images handed out with them, by a part of their name in lower case."""


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images of either layout."""
    tables = [path for name in METADATA for path in [root / name] if path.is_file()]
    if tables:
        layout, photographs = "dataverse", _dataverse(tables[0])
    elif labels := files(root, LABELS):
        layout, photographs = "isic-2018", _challenge(root, labels[0], card)
    else:
        raise BenchmdError(
            f"{root} has neither {METADATA[0]} (Harvard Dataverse) nor {LABELS} (ISIC 2018): "
            "expected the labels of HAM10000 next to its images."
        )
    paths = [
        path
        for path in files(root, "*.jpg")
        if not any(part in path.relative_to(root).as_posix().lower() for part in OTHER_SETS)
    ]
    return listing(
        root, card, choices, layout, photographs, paths, rounding=round, grouped_by="lesion"
    )


def _dataverse(path: Path) -> list[Photograph]:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        delimiter = "\t" if "\t" in file.readline(2**16) else ","
    return [
        Photograph(
            path=f"{row['image_id']}.jpg",
            label=row["dx"],
            group=row["lesion_id"],
            metadata={
                "age": age(row["age"]),
                "sex": sex(row["sex"]),
                "site": (row.get("dataset") or "") or None,
            },
        )
        for row in read_rows(path, COLUMNS, "HAM10000", delimiter=delimiter)
    ]


def _challenge(root: Path, path: Path, card: DatasetCard) -> list[Photograph]:
    """What the tables of the challenge say; without its lesion groupings each image is alone."""
    diagnoses = [label.upper() for label in card.class_mapping]
    lesions = {}
    for table in files(root, LESIONS)[:1]:
        rows = read_rows(table, ("image", "lesion_id"), "the ISIC 2018 lesion groupings")
        lesions = {row["image"]: row["lesion_id"] for row in rows}
    return [
        Photograph(
            path=f"{row['image']}.jpg",
            label=one_hot_label(row, diagnoses).lower(),
            group=lesions.get(row["image"], ""),
        )
        for row in read_rows(path, ("image", *diagnoses), "the ISIC 2018 challenge, task 3")
    ]
