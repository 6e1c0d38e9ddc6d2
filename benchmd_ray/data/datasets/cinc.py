"""Datasets in the layout of the PhysioNet/CinC challenges 2020 and 2021.

One ``.hea`` (codes, age and sex in its comments) and one ``.mat`` per record, in any subfolder.
Source: https://physionet.org/content/challenge-2021/.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard, code_classes
from benchmd_ray.data.datasets.ecg import dominant_class, read_records, released_labels
from benchmd_ray.data.raw import DUPLICATE, Choices, Discovery, RawItem, Reading, by_key, files
from benchmd_ray.data.readers.wfdb import read_comments
from benchmd_ray.data.records import RecordError, hashed_patient
from benchmd_ray.data.splits import hashed_split
from benchmd_ray.data.tables import age, sex

VERSION = 2


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the records. Each is a patient of its own: the challenge names no patients."""
    headers, duplicates = by_key(files(root, card.layouts["cinc"].pattern), lambda path: path.stem)
    by_table = choices.policy == "released"
    released = released_labels(choices.split_table, card) if by_table else {}
    items, excluded = [], +Counter({DUPLICATE: duplicates})
    for name, path in headers.items():
        label: str | None = None
        if by_table:
            if name not in released:
                excluded["it is not in the released split table"] += 1
                continue
            split, label = released[name]
        elif card.role == "target":
            split = "test"
        else:
            split = hashed_split(card.name, name)
        patient = hashed_patient(card.name, name)
        items.append(RawItem(path.relative_to(root).as_posix(), name, patient, split, label))
    missing = sorted(released.keys() - headers.keys())
    return Discovery("cinc", items, missing, dict(excluded), grouped_by="record")


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
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
        "sex": sex(comments.get("sex", "")),
        **item.metadata,
    }
    return read_records(root, replace(item, label=label, metadata=metadata), card)
