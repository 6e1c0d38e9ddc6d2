"""VinDr-Mammo 1.0.0: DICOM mammograms, four of each exam, with the official split.

Each view of a breast is a record with the breast's BI-RADS assessment. An exam stands for a
patient. Source: https://physionet.org/content/vindr-mammo/1.0.0/.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.images import class_of
from benchmd_ray.data.raw import NO_ROW, Choices, Discovery, RawItem, files
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.data.tables import age_string, read_rows
from benchmd_ray.errors import BenchmdError, shown

VERSION = 1
TABLE = "breast-level_annotations.csv"
COLUMNS = (
    "study_id", "image_id", "laterality", "view_position", "breast_birads", "split",
)  # fmt: skip
HEADERS = "metadata.csv"
"""Values of the DICOM headers, by image; it may be missing."""
FINDINGS = "finding_annotations.csv"
"""What was found where; it may be missing, and is read only where conditions are asked for."""
FINDING = re.compile(r"(['\"])(.+?)\1")
"""One of the column ``finding_categories``: ``['Mass', 'Skin Retraction']``."""
NO_FINDING = "No Finding"
SPLITS = {"training": "train", "test": "validation"}
"""Under both policies: the paper takes the official split too."""


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images that the table of breasts names."""
    there = {path.relative_to(root).as_posix() for path in files(root / "images", "*.dicom")}
    rows = read_rows(root / TABLE, COLUMNS, "VinDr-Mammo 1.0.0")
    headers = _headers(root / HEADERS)
    splits = _splits(rows, root / TABLE)
    findings = _findings(root / FINDINGS) if choices.hold_out or choices.two_classes else {}
    items, missing, excluded = [], [], Counter[str]()
    for row in rows:
        path = _path(row)
        label, reason = class_of(card, row["breast_birads"])
        if reason:
            excluded[reason] += 1
        elif path not in there:
            missing.append(path)
        else:
            item = RawItem(
                path=path,
                record_id=row["image_id"],
                group_id=hashed_patient(card.namespace, row["study_id"]),
                split=splits[row["study_id"]],
                label=label,
                metadata=_metadata(row, headers.get(row["image_id"], {})),
                conditions=choices.conditions(
                    [row["view_position"], *findings.get(row["image_id"], ())]
                ),
            )
            items.append(item)
    excluded[NO_ROW] = len(there - {_path(row) for row in rows})
    return Discovery("physionet", items, missing, dict(+excluded), grouped_by="exam")


def _path(row: Mapping[str, str]) -> str:
    return f"images/{row['study_id']}/{row['image_id']}.dicom"


def _splits(rows: list[dict[str, str]], table: Path) -> dict[str, str]:
    splits: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        split = SPLITS.get(row["split"])
        if split is None:
            raise BenchmdError(
                f"{table}, record {number}: split is {shown(row['split'])}, expected one of "
                f"{', '.join(SPLITS)}. Fetch the file again."
            )
        if splits.setdefault(row["study_id"], split) != split:
            raise BenchmdError(
                f"{table}, record {number}: the exam {row['study_id']} is in both splits. "
                "Fetch the file again."
            )
    return splits


def _headers(path: Path) -> dict[str, dict[str, str]]:
    if not path.is_file():
        return {}
    rows = read_rows(path, ("SOP Instance UID",), "VinDr-Mammo 1.0.0")
    return {row["SOP Instance UID"]: row for row in rows}


def _findings(path: Path) -> dict[str, set[str]]:
    findings: dict[str, set[str]] = {}
    columns = ("image_id", "finding_categories")
    for row in read_rows(path, columns, "VinDr-Mammo 1.0.0") if path.is_file() else ():
        named = {match[2] for match in FINDING.finditer(row["finding_categories"])}
        findings.setdefault(row["image_id"], set()).update(named - {NO_FINDING})
    return findings


def _metadata(row: Mapping[str, str], header: Mapping[str, str]) -> dict[str, float | str | None]:
    names = ("Manufacturer", "Manufacturer's Model Name")
    device = " ".join(header.get(name) or "" for name in names)
    return {
        "age": age_string(header.get("Patient's Age") or ""),
        "device": " ".join(device.split()) or None,
        "view": f"{row['laterality']}-{row['view_position']}",
    }
