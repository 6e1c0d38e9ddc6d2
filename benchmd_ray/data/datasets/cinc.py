"""Datasets in the layout of the PhysioNet/CinC challenges 2020 and 2021.

One ``.hea`` (codes, age and sex in its comments) and one ``.mat`` per record, in any subfolder.
Source: https://physionet.org/content/challenge-2021/.
"""

from __future__ import annotations

import fnmatch
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard, code_classes
from benchmd_ray.data.datasets.ecg import (
    Discovery,
    RawItem,
    age,
    dominant_class,
    read_records,
    released_labels,
)
from benchmd_ray.data.readers.wfdb import read_comments
from benchmd_ray.data.records import Record, RecordError, hashed_patient
from benchmd_ray.data.splits import patient_split

SEXES = {"male": "male", "m": "male", "female": "female", "f": "female"}


def headers(root: Path, pattern: str) -> dict[str, Path]:
    """Header files below ``root`` by record name, in order of name; the first of equal names."""
    found: dict[str, Path] = {}
    paths = [
        Path(folder, name)
        for folder, _, names in os.walk(root, followlinks=True)
        for name in fnmatch.filter(names, pattern)
    ]
    for path in sorted(paths, key=lambda p: (p.stem, p.as_posix())):
        found.setdefault(path.stem, path)
    return found


def discover(root: Path, card: DatasetCard, policy: str, split_table: Path | None) -> Discovery:
    """List the records. Each is a patient of its own: the challenge names no patients."""
    found = headers(root, card.layouts["cinc"].pattern)
    released = released_labels(split_table, card) if policy == "released" else {}
    items, left_out = [], Counter[str]()
    for name, path in found.items():
        label: str | None = None
        if policy == "released":
            if name not in released:
                left_out["it is not in the released split table"] += 1
                continue
            split, label = released[name]
        elif card.role == "target":
            split = "test"
        else:
            split = patient_split(card.name, name)
        patient = hashed_patient(card.name, name)
        items.append(RawItem(path.relative_to(root).as_posix(), name, patient, split, label))
    missing = sorted(released.keys() - found.keys())
    return Discovery("cinc", items, missing, dict(left_out), patients_known=False)


def read(root: Path, item: RawItem, card: DatasetCard) -> list[Record]:
    """Records of one file, labelled by its SNOMED CT codes unless a table did."""
    comments = read_comments(root / item.path)
    label = item.label
    if label is None:
        if "dx" not in comments:
            raise RecordError("the header has no '# Dx:' line with SNOMED CT codes")
        codes = {code.strip(): 100.0 for code in comments["dx"].split(",")}
        label = dominant_class(codes, code_classes(card.code_table, card.name))
    metadata = {
        "age": age(comments.get("age", "")),
        "sex": SEXES.get(comments.get("sex", "").lower()),
        **item.metadata,
    }
    return read_records(root, replace(item, metadata=metadata), card, label)
