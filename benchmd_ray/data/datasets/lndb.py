"""LNDb: MetaImage scans, masks of each radiologist, and the tables of the challenge's training set.

Nodules of 3 mm and more are outlined in masks whose values are a radiologist's finding numbers;
smaller ones have only a centre, and their volume in the tables is that of a 3 mm sphere.
Source: https://lndb.grand-challenge.org/; Pedrosa et al. 2019, arXiv:1911.08434.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.ct import LARGE, Labels, scan_windows, size_class
from benchmd_ray.data.plain_numbers import number_of
from benchmd_ray.data.raw import DUPLICATE, Choices, Discovery, RawItem, Reading, by_key, files
from benchmd_ray.data.readers.metaimage import mhd_fields, read_mhd
from benchmd_ray.data.readers.volume import Volume
from benchmd_ray.data.records import RecordError, hashed_patient
from benchmd_ray.data.tables import read_rows
from benchmd_ray.errors import BenchmdError, shown

VERSION = 2
SCANS, NODULES, ACQUISITION = "trainCTs.csv", "trainNodules_gt.csv", "LNDbAcqParams.csv"
NODULE_COLUMNS = (
    "LNDbID", "FindingID", "RadID", "RadFindingID", "x", "y", "z", "AgrLevel", "Nodule", "Volume",
)  # fmt: skip
DEVICE_COLUMNS = ("LNDbID", "Manufacturer", "ManufacturerModelName")
UNLISTED = f"its findings are not public: it is not in {SCANS}"
CONFLICT = "the tables give it, or a nodule of it, twice and differently"
SCAN = re.compile(r"LNDb-(\d{4})")
POSITIVE_SLICES = 2
"""Positive slices that make a window positive (decision D5)."""
AROUND = 2
"""Slices either side of the centre of a nodule without a mask (decision D5)."""
UNSEGMENTED = math.pi / 6 * LARGE**3
"""mm³ that the tables state for nodules below 3 mm, which have no mask."""
MAX_READERS = 20
PRECISION = 1e-6
"""The tables round volumes; relative to a volume."""


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the scans of the challenge's training set, with the nodules of each."""
    tables = _tables(root)
    scans = _by_scan(read_rows(_table(tables, SCANS, root), ("LNDbID", "RadN"), "LNDb's scans"))
    nodules = _by_scan(read_rows(_table(tables, NODULES, root), NODULE_COLUMNS, "LNDb's nodules"))
    devices = _devices(tables.get(ACQUISITION))
    paths, duplicates = by_key(files(root, "LNDb-*.mhd", "LNDb-*.raw"), lambda path: path.name)
    unlisted = {path.stem for path in paths.values() if SCAN.fullmatch(path.stem)} - scans.keys()
    excluded = +Counter({UNLISTED: len(unlisted), DUPLICATE: duplicates})
    items: list[RawItem] = []
    missing: list[str] = []
    for name, rows in sorted(scans.items()):
        findings = _nodules(nodules.get(name, []), int(choices.options["readers"]))
        readers = {_whole(row["RadN"], MAX_READERS) for row in rows}
        masks = {f"{reader}": f"{name}_rad{reader}" for reader in range(1, max(readers) + 1)}
        wanted = [f"{stem}.{kind}" for stem in (name, *masks.values()) for kind in ("mhd", "raw")]
        missing += [file for file in wanted if file not in paths]
        if not {f"{name}.mhd", f"{name}.raw"} <= paths.keys():
            continue
        if findings is None or len(readers) > 1:
            excluded[CONFLICT] += 1
        elif choices.policy == "released" and name not in nodules:
            excluded["it has no finding, and the paper counts those with findings"] += 1
        else:
            mask_paths = {
                reader: paths[f"{mask}.mhd"].relative_to(root).as_posix()
                for reader, mask in masks.items()
                if {f"{mask}.mhd", f"{mask}.raw"} <= paths.keys()
            }
            scan = paths[f"{name}.mhd"]
            item = RawItem(
                path=scan.relative_to(root).as_posix(),
                record_id=name,
                group_id=hashed_patient(card.name, _geometry(scan)),
                split="test" if choices.policy == "clean" else "validation",
                metadata={"device": devices.get(name)},
                details={"masks": mask_paths, "nodules": findings},
            )
            items.append(item)
    layout = "all" if unlisted else "challenge"
    return Discovery(layout, items, missing, dict(excluded), grouped_by="record")


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """Records of one scan, one per window."""
    volume = read_mhd(root / item.path)
    outlined: dict[tuple[str, int], list[int]] = {}
    for reader, path in item.details["masks"].items():
        mask = read_mhd(root / path, flipped=volume.flipped)
        if mask.shape != volume.shape:
            raise RecordError(
                f"the mask of radiologist {reader} has shape {mask.shape} (z, y, x), the scan "
                f"{volume.shape}"
            )
        findings = _slices_of_findings(mask)
        outlined |= {(reader, finding): slices for finding, slices in findings.items()}
    positive, outside = positive_slices(item.details["nodules"], outlined, volume, card)
    reading = scan_windows(volume, positive, item, card, least=POSITIVE_SLICES)
    if outside:
        reading.warnings["a nodule's centre lies outside of it and is not used"] += 1
    return reading


def positive_slices(
    nodules: list[dict[str, Any]],
    outlined: dict[tuple[str, int], list[int]],
    volume: Volume,
    card: DatasetCard,
) -> tuple[Labels, int]:
    """(slices, classes) that show a nodule (decision D5), and how many centres are outside.

    ``outlined`` has the slices of each radiologist's findings.
    """
    positive = np.zeros((volume.shape[0], len(card.classes)), bool)
    outside = 0
    for nodule in nodules:
        column = card.classes.index(nodule["class"])
        slices = {z for mark in nodule["marks"] for z in outlined.get((mark[0], mark[1]), ())}
        if slices:
            positive[sorted(slices), column] = True
            continue
        centre = volume.slice_at(nodule["centre"])
        if centre is None:
            outside += 1
        else:
            positive[max(0, centre - AROUND) : centre + AROUND + 1, column] = True
    return positive, outside


def nodule_class(volume: float) -> str:
    """Class of a nodule by the diameter of the sphere of its volume in mm³.

    The volume of a sphere of 3 mm is how the tables say "below 3 mm, not outlined".
    """
    if volume <= UNSEGMENTED * (1 + PRECISION):
        return size_class(0.0)
    return size_class((6 * volume / math.pi) ** (1 / 3))


def _slices_of_findings(mask: Volume) -> dict[int, list[int]]:
    slices: dict[int, list[int]] = defaultdict(list)
    for number, labels in enumerate(mask.slices()):
        for finding in np.unique(labels[labels != 0]):
            slices[int(finding)].append(number)
    return slices


def _nodules(rows: list[dict[str, str]], least: int) -> list[dict[str, Any]] | None:
    """The nodules that enough radiologists marked; None where one is listed with several labels."""
    nodules = []
    labels: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        counts = _whole(row["Nodule"]) == 1 and _whole(row["AgrLevel"]) >= least
        label = nodule_class(_number(row["Volume"])) if counts else ""
        labels[row["FindingID"]].add(label)
        if not counts:
            continue
        readers = [f"{_whole(text)}" for text in row["RadID"].split(",")]
        findings = [_whole(text) for text in row["RadFindingID"].split(",")]
        if len(readers) != len(findings):
            raise BenchmdError(
                f"{NODULES}: RadID is {shown(row['RadID'])} and RadFindingID "
                f"{shown(row['RadFindingID'])}; expected as many numbers in both. Fetch the file "
                "again."
            )
        nodules.append(
            {
                "class": label,
                "centre": [_number(row[axis]) for axis in "xyz"],
                "marks": list(map(list, zip(readers, findings, strict=True))),
            }
        )
    return nodules if all(len(classes) == 1 for classes in labels.values()) else None


def _geometry(header: Path) -> str:
    """What identifies a scan: some are in the dataset twice, and count as one patient."""
    try:
        fields = mhd_fields(header)
    except RecordError:
        return header.stem
    names = ("DimSize", "ElementSpacing", "Offset", "TransformMatrix")
    return " ".join(fields.get(name, header.stem) for name in names)


def _tables(root: Path) -> dict[str, Path]:
    paths = files(root, SCANS, NODULES, ACQUISITION)
    tables, duplicates = by_key(paths, lambda path: path.name)
    if duplicates:
        raise BenchmdError(
            f"{root} holds a table twice: {', '.join(map(str, paths))}. Keep one of each name."
        )
    return tables


def _table(tables: dict[str, Path], name: str, root: Path) -> Path:
    return tables.get(name, root / "trainset_csv" / name)


def _by_scan(rows: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    by_scan: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        by_scan[f"LNDb-{_whole(row['LNDbID']):04d}"].append(row)
    return dict(by_scan)


def _devices(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    rows = _by_scan(read_rows(path, DEVICE_COLUMNS, "LNDb's acquisitions"))
    return {
        name: " ".join(row[column] for column in DEVICE_COLUMNS[1:])
        for name, (row, *_) in rows.items()
    }


def _whole(text: str, most: int = 999_999) -> int:
    value = _number(text)
    if value != int(value) or not 0 <= value <= most:
        raise BenchmdError(
            f"LNDb's tables: {shown(text)} is not a whole number up to {most:,}. Fetch them again."
        )
    return int(value)


def _number(text: str) -> float:
    value = number_of(text)
    if value is None:
        raise BenchmdError(f"LNDb's tables: {shown(text)} is not a number. Fetch them again.")
    return value
