"""VinDr-CXR 1.0.0: DICOM images; only the official test set (decision D19).

Labels are joined by ``image_id``. Source: https://physionet.org/content/vindr-cxr/1.0.0/.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets import cxr
from benchmd_ray.data.datasets.images import read_dicom_image
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
from benchmd_ray.data.readers.dicom import open_dicom
from benchmd_ray.data.readers.dicom_values import text
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.data.splits import TARGET_SPLIT
from benchmd_ray.data.tables import age_string, read_rows, sex

VERSION = 1
LABEL_TABLE = "annotations/image_labels_test.csv"
FOLDER = "test"


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images of the test set. Each stands for a patient: the source names none."""
    paths = files(root / FOLDER, "*.dicom", "*.dcm")
    image_paths, duplicates = by_key(paths, lambda path: path.stem)
    path = root / LABEL_TABLE
    rows = read_rows(path, ("image_id", *cxr.finding_columns(card)), "VinDr-CXR 1.0.0")
    items, missing, excluded = [], [], Counter({DUPLICATE: duplicates})
    for number, row in enumerate(rows, 1):
        name = row["image_id"]
        if name not in image_paths:
            missing.append(f"{FOLDER}/{name}.dicom")
            continue
        item = RawItem(
            path=image_paths[name].relative_to(root).as_posix(),
            record_id=name,
            group_id=hashed_patient(card.name, name),
            split=TARGET_SPLIT[choices.policy],
            labels=cxr.labels(row, card, choices, f"{path}, record {number}"),
        )
        items.append(item)
    excluded[NO_ROW] = len(image_paths.keys() - {row["image_id"] for row in rows})
    return Discovery("physionet", items, missing, dict(+excluded), grouped_by="record")


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The record of one DICOM file, with age and sex where its header gives them."""
    header = open_dicom(root / item.path, stop_before_pixels=True)
    metadata: dict[str, float | str | None] = {
        "age": age_string(text(header, "PatientAge") or ""),
        "sex": sex(text(header, "PatientSex") or ""),
        "view": text(header, "ViewPosition"),
        **item.metadata,
    }
    return read_dicom_image(root, replace(item, metadata=metadata), card)
