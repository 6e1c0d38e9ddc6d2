"""MIMIC-CXR-JPG 2.1.0: JPEG images, labels of the CheXpert labeler per study, official splits.

The paper takes 10,000 images without saying which. The option ``images`` draws that many by
patient within the official splits (decision D20), from the tables alone: see `files_to_fetch`.
Source: https://physionet.org/content/mimic-cxr-jpg/2.1.0/.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets import cxr
from benchmd_ray.data.raw import DUPLICATE, NO_ROW, Choices, Discovery, RawItem, inside
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.data.splits import stable_fraction
from benchmd_ray.data.tables import read_rows
from benchmd_ray.errors import BenchmdError, shown, unknown_name

VERSION = 1
SPLIT_TABLE = "mimic-cxr-2.0.0-split.csv.gz"
LABEL_TABLE = "mimic-cxr-2.0.0-chexpert.csv.gz"
METADATA_TABLE = "mimic-cxr-2.0.0-metadata.csv.gz"

SPLITS = {
    "clean": {"train": "train", "validate": "validation", "test": "test"},
    "released": {"train": "train", "validate": "validation", "test": "validation"},
}
"""Split of each official split (decision D7); BenchMD's code validates on two of them."""
SHARES = {
    "clean": {"train": 0.8, "validation": 0.1, "test": 0.1},
    "released": {"train": 0.8, "validation": 0.2},
}
"""Share of each split in a draw; the paper trains on 8,000 of 10,000."""
VIEWS = {"LATERAL": cxr.LATERAL, "LL": cxr.LATERAL}
UNDRAWN = "it is not among the images drawn (option images)"


@dataclass(frozen=True)
class _Findings:
    labels: dict[str, int]
    conditions: tuple[str, ...]


@dataclass(frozen=True)
class _Image:
    dicom: str
    subject: str
    study: str
    split: str
    findings: _Findings

    @property
    def path(self) -> str:
        return f"files/p{self.subject[:2]}/p{self.subject}/s{self.study}/{self.dicom}.jpg"


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images that are drawn, with the labels of their studies."""
    rows = _split_rows(root)
    images, excluded = _labelled(rows, root, card, choices)
    drawn = _drawn(images, _number(card, choices), SHARES[choices.policy])
    if len(drawn) < len(images):
        excluded[UNDRAWN] = len(images) - len(drawn)
    views = _views(root)
    there = _files_beside(root, (image.path for image in drawn))
    named = {row["dicom_id"] for row in rows}
    excluded[NO_ROW] = sum(Path(path).stem not in named for path in there)
    items = [
        RawItem(
            path=image.path,
            record_id=image.dicom,
            group_id=hashed_patient(card.namespace, image.subject),
            split=image.split,
            labels=image.findings.labels,
            metadata={"view": views.get(image.dicom)},
            conditions=choices.conditions(
                image.findings.conditions
                + ((cxr.LATERAL,) if views.get(image.dicom) == cxr.LATERAL else ())
            ),
        )
        for image in drawn
        if image.path in there
    ]
    missing = [f"image {image.dicom}" for image in drawn if image.path not in there]
    return Discovery("physionet", items, missing, dict(+excluded))


def files_to_fetch(root: Path, card: DatasetCard, choices: Choices) -> list[str]:
    """Paths of the images that a build reads, below ``root``, where only the tables have to be."""
    labelled, _ = _labelled(_split_rows(root), root, card, choices)
    return [i.path for i in _drawn(labelled, _number(card, choices), SHARES[choices.policy])]


def _files_beside(root: Path, paths: Iterable[str]) -> set[str]:
    """Image files in the folders of these paths, relative to ``root``; each is listed once."""
    there: set[str] = set()
    for folder in {path.rpartition("/")[0] for path in paths}:
        try:
            names = os.listdir(root / folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        there |= {f"{folder}/{n}" for n in names if n.endswith(".jpg") and n[0] != "."}
    return there


def _split_rows(root: Path) -> list[dict[str, str]]:
    columns = ("dicom_id", "subject_id", "study_id", "split")
    return read_rows(root / SPLIT_TABLE, columns, "MIMIC-CXR-JPG 2.1.0")


def _labelled(
    rows: list[dict[str, str]], root: Path, card: DatasetCard, choices: Choices
) -> tuple[list[_Image], Counter[str]]:
    studies, duplicates = _studies(root, card, choices)
    splits = SPLITS[choices.policy]
    images, excluded = [], Counter({DUPLICATE: duplicates})
    for number, row in enumerate(rows, 1):
        if row["split"] not in splits:
            where = f"split in {root / SPLIT_TABLE}, record {number},"
            raise unknown_name(where, row["split"], splits)
        findings = studies.get((row["subject_id"], row["study_id"]))
        if findings is None:
            excluded["its study is not in the table of labels"] += 1
        elif not cxr.is_labelled(findings.labels):
            excluded[cxr.UNLABELLED] += 1
        else:
            split = splits[row["split"]]
            image = _Image(row["dicom_id"], row["subject_id"], row["study_id"], split, findings)
            inside(image.path, root / SPLIT_TABLE)
            images.append(image)
    return images, excluded


def _studies(
    root: Path, card: DatasetCard, choices: Choices
) -> tuple[dict[tuple[str, str], _Findings], int]:
    path = root / LABEL_TABLE
    columns = ("subject_id", "study_id", *cxr.finding_columns(card))
    studies: dict[tuple[str, str], _Findings] = {}
    duplicates = 0
    for number, row in enumerate(read_rows(path, columns, "MIMIC-CXR-JPG 2.1.0"), 1):
        where = f"{path}, record {number}"
        conditions = choices.conditions(cxr.findings_without_class(row, card))
        findings = _Findings(cxr.labels(row, card, choices, where), conditions)
        duplicates += cxr.add_row(studies, (row["subject_id"], row["study_id"]), findings, where)
    return studies, duplicates


def _views(root: Path) -> dict[str, str]:
    rows = read_rows(root / METADATA_TABLE, ("dicom_id", "ViewPosition"), "MIMIC-CXR-JPG 2.1.0")
    return {
        row["dicom_id"]: VIEWS.get(row["ViewPosition"], row["ViewPosition"])
        for row in rows
        if row["ViewPosition"]
    }


def _number(card: DatasetCard, choices: Choices) -> int | None:
    text = choices.options["images"]
    if text == "all":
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise BenchmdError(
            f"the option images of {card.name} is {shown(text)}, expected a number of images or "
            "'all'."
        )
    return int(text)


def _drawn(images: list[_Image], number: int | None, shares: dict[str, float]) -> list[_Image]:
    """The images drawn, by record id: whole patients in a fixed random order.

    Each split gives its share of the number, or all there are. A larger number draws all images of
    a smaller one.
    """
    drawn = images
    if number is not None:
        drawn = []
        for split, share in shares.items():
            candidates = sorted((i for i in images if i.split == split), key=_place)
            drawn += candidates[: round(share * number)]
    return sorted(drawn, key=lambda image: image.dicom)


def _place(image: _Image) -> tuple[float, str, str, str]:
    patient = stable_fraction(f"mimic-cxr/draw/{image.subject}")
    return patient, image.subject, image.study, image.dicom
