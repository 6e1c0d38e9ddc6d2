"""CheXpert: its validation set and its test set, both labelled by radiologists (decision D19).

The validation set comes with the dataset (``valid.csv``); the test set is separate, with a row per
image (``test_labels.csv``) or per study (``groundtruth.csv``).
Source: https://stanfordmlgroup.github.io/competitions/chexpert/.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets import cxr
from benchmd_ray.data.raw import DUPLICATE, NO_ROW, Choices, Discovery, RawItem, files
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.data.splits import TARGET_SPLIT
from benchmd_ray.data.tables import age, read_rows, sex
from benchmd_ray.errors import BenchmdError

VERSION = 1
FURTHER = "a further image of its study, of which the paper scores one"


@dataclass(frozen=True)
class _Part:
    tables: tuple[str, ...]
    """Names of its table, the preferred one first."""
    folders: tuple[str, ...]
    one_per_study: bool = False
    """Whether the paper scores one image of each study."""


PARTS = (
    _Part(("valid.csv", "val_labels.csv"), ("valid", "val")),
    _Part(("test_labels.csv", "groundtruth.csv", "test.csv"), ("test",), one_per_study=True),
)


@dataclass(frozen=True)
class _Row:
    labels: dict[str, int]
    metadata: dict[str, float | str | None]
    conditions: tuple[str, ...]


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images of both sets; a set without a table counts as missing."""
    places = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    items: list[RawItem] = []
    missing: list[str] = []
    excluded: Counter[str] = Counter()
    for part in PARTS:
        images = _images(part, places)
        table = _first(places, part.tables)
        rows, duplicates = _rows(table, card, choices) if table else ({}, 0)
        excluded[DUPLICATE] += duplicates
        if not table:
            missing.append(part.tables[0])
        wanted = set(images)
        if choices.policy == "released" and part.one_per_study:
            wanted = _one_per_study(images)
            excluded[FURTHER] += len(images) - len(wanted)
        for key in sorted(wanted):
            row = rows.get(key) or rows.get(_study(key))
            if row is None:
                excluded[NO_ROW] += 1
            elif not cxr.is_labelled(row.labels):
                excluded[cxr.UNLABELLED] += 1
            else:
                path = images[key].relative_to(root).as_posix()
                items.append(_item(path, key, row, choices))
        there = {*images, *map(_study, images)}
        missing += [f"image {record_id(key)}" for key in sorted(rows.keys() - there)]
    return Discovery("stanford", items, missing, dict(+excluded))


def _images(part: _Part, places: list[Path]) -> dict[str, Path]:
    """Image files by ``patient/study/view``."""
    folder = _first(places, part.folders)
    if folder is None or not folder.is_dir():
        return {}
    return {p.relative_to(folder).as_posix(): p for p in files(folder, "*.jpg", "*.jpeg")}


def _first(places: list[Path], names: tuple[str, ...]) -> Path | None:
    return next((p / name for name in names for p in places if (p / name).exists()), None)


def _one_per_study(images: dict[str, Path]) -> set[str]:
    """The first frontal image of each study, or the first one."""
    by_study: dict[str, list[str]] = {}
    for key in images:
        by_study.setdefault(_study(key), []).append(key)
    return {min(keys, key=lambda k: (_view(k) != "frontal", k)) for keys in by_study.values()}


def _rows(path: Path, card: DatasetCard, choices: Choices) -> tuple[dict[str, _Row], int]:
    """Rows by ``patient/study/view`` or ``patient/study``, and how many repeat an earlier one."""
    rows: dict[str, _Row] = {}
    duplicates = 0
    columns = tuple(cxr.finding_columns(card))
    for number, row in enumerate(read_rows(path, columns, "CheXpert"), 1):
        where = f"{path}, record {number}"
        name = row.get("Path") or row.get("Study")
        parts = PurePosixPath(name or "").parts
        start = next((i for i, part in enumerate(parts) if part.startswith("patient")), None)
        if start is None:
            raise BenchmdError(
                f"{where}: neither the column Path nor Study names a file or "
                "folder below one of a patient, such as patient64541/study1."
            )
        labels = cxr.labels(row, card, choices, where)
        metadata = {
            "age": age(row.get("Age") or ""),
            "sex": sex(row.get("Sex") or ""),
            "view": row.get("AP/PA") or None,
        }
        key = "/".join(parts[start:])
        conditions = choices.conditions(cxr.findings_without_class(row, card))
        duplicates += cxr.add_row(rows, key, _Row(labels, metadata, conditions), where)
    return rows, duplicates


def _item(path: str, key: str, row: _Row, choices: Choices) -> RawItem:
    lateral = [cxr.LATERAL] if _view(key) == cxr.LATERAL else []
    return RawItem(
        path=path,
        record_id=record_id(key),
        group_id=hashed_patient("chexpert", _patient(key)),
        split=TARGET_SPLIT[choices.policy],
        labels=row.labels,
        metadata=row.metadata | {"view": row.metadata["view"] or _view(key)},
        conditions=choices.conditions([*row.conditions, *lateral]),
    )


def record_id(key: str) -> str:
    """Pseudonym of ``patient/study/view.jpg`` or ``patient/study``."""
    rest = PurePosixPath(key).with_suffix("").parts[1:]
    return "-".join((hashed_patient("chexpert", _patient(key)), *rest))


def _patient(key: str) -> str:
    return key.partition("/")[0]


def _study(key: str) -> str:
    return key.rpartition("/")[0]


def _view(key: str) -> str | None:
    """What a file's name says: ``view1_frontal``."""
    name = PurePosixPath(key).stem.rpartition("_")[2]
    return name if name in ("frontal", cxr.LATERAL) else None
