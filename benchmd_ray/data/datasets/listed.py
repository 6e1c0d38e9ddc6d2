"""Datasets that need no code: a table names the files of a folder, or their folders name classes.

The card's ``files`` say how (`benchmd_ray.data.card_files.Files`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import get_args

from benchmd_ray.data.any_table import table_rows
from benchmd_ray.data.card_files import Files, Split
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.any_file import ending, is_volume, read_file, suffixes
from benchmd_ray.data.datasets.images import NO_LABEL
from benchmd_ray.data.raw import NO_ROW, Choices, Discovery, RawItem, Reading, inside, walk
from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.records import Record, RecordError, hashed_patient
from benchmd_ray.data.splits import balanced_splits
from benchmd_ray.data.tables import MAX_BYTES, age, sex
from benchmd_ray.errors import BenchmdError, count_of, shown
from benchmd_ray.tasks import UNKNOWN

VERSION = 3
"""Raised whenever records, labels or splits change that the same card and files give."""
PART = re.compile(r"-\d{4,}$")
"""How names of the parts of a file end that is cut."""
LAYOUT = "files"
"""Name of the one layout."""
TRUTHS = {"1": 1, "1.0": 1, "true": 1, "yes": 1, "0": 0, "0.0": 0, "false": 0, "no": 0}
"""Values of a column of one label, in lower case; nothing stands for unknown."""
CONSTANT = "a segment or window of it is constant"
NO_PATIENT = "the table does not say its patient"
NO_CLASS = "its label is not one of the classes that the card names"
NOWHERE = "its split is none of those that the card names, or no list has it"


@dataclass(frozen=True)
class Named:
    """What a table or a folder says of one record."""

    path: str
    """Relative to the raw folder."""
    label: str | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    patient: str = ""
    split: str | None = None
    """As it is written; None where none is."""
    excluded: str = ""
    """Why it is excluded."""
    written: str = ""
    """Its label as it is written."""
    metadata: dict[str, float | str | None] = field(default_factory=dict)


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List what the table names, or all that is in the folders.

    Raises:
        BenchmdError: There is no such table or column, or a path leads out of the folder.
    """
    files = _files(card)
    named = list(_rows(root, card) if files.table else _in_folders(root, card))
    missing: list[str] = []
    excluded, kept = Counter[str](), []
    if files.lists:
        named, missing = _by_lists(root, card, named)
    for one in named:
        if files.table and not _is_there(root / one.path):
            missing.append(_shown(card, one.path))
        elif one.excluded:
            excluded[one.excluded] += 1
        else:
            kept.append(one)
    if files.table and named and len(missing) == len(named):
        raise BenchmdError(_no_file(root, card, missing))
    if named and excluded[NO_CLASS] == len(named):
        raise BenchmdError(_no_class(root, card, named))
    names = _record_names(card, kept)
    items = []
    for one, split in zip(kept, _splits(kept, card), strict=True):
        if split:
            items.append(_item(card, one, split, names[one.path]))
        else:
            excluded[NOWHERE] += 1
    if kept and excluded[NOWHERE] == len(kept) and not files.lists:
        where = f"the column {files.split}" if files.table else "the folders of the level split"
        raise BenchmdError(
            f"{where} of {card.name} in {root} say train, validation or test of no record: "
            "translate their values by splits in the card."
        )
    if files.table:
        listed = {one.path for one in named} | {files.table, *files.lists.values()}
        others = (path for path in _paths(root / files.folder, card, root) if path not in listed)
        excluded[NO_ROW] += sum(1 for _ in others)
    patients = files.patient or "patient" in files.levels
    return Discovery(LAYOUT, items, missing, dict(+excluded), "patient" if patients else "record")


def _is_there(path: Path) -> bool:
    """Whether a file or a folder is there; a pipe or a device is neither."""
    return path.is_file() or path.is_dir()


def _no_file(root: Path, card: DatasetCard, missing: Sequence[str]) -> str:
    files = _files(card)
    folder = root / files.folder
    if not folder.is_dir():
        near = get_close_matches(files.folder, [p.name for p in root.iterdir() if p.is_dir()], 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        return f"{folder} is not a folder, and the card of {card.name} names it as folder.{meant}"
    endings = Counter(ending(path, card.signal) for path in _paths(folder, card, root))
    there = ", ".join(f"{count:,} {end}" for end, count in endings.most_common(5)) or "none"
    return (
        f"none of the {len(missing):,} files that {files.table} names is there, the first is "
        f"{missing[0]}; files of a known format in {folder}: {there}. Check path, folder and "
        f"suffix in the card of {card.name}."
    )


def _no_class(root: Path, card: DatasetCard, named: Sequence[Named]) -> str:
    labels = list(dict.fromkeys(one.written for one in named))
    seen = f", such as {', '.join(map(shown, labels[:3]))}" if not card.hides_names else ""
    valid = list(card.class_mapping or card.classes)
    return (
        f"none of the {len(named):,} records in {root} has a label that the card of {card.name} "
        f"knows: they have {count_of(len(labels), 'label')}{seen}. Expected "
        f"{', '.join(valid[:20])}."
    )


def _files(card: DatasetCard) -> Files:
    assert card.files is not None, "a card without files has a dataset of its own"
    return card.files


def _rows(root: Path, card: DatasetCard) -> Iterator[Named]:
    """What each row of the table says."""
    files = _files(card)
    own = files.labels or card.classes
    several = not card.task.exclusive
    columns = [files.path, *(own if several else [files.label]), *files.metadata.values()]
    columns += [name for name in (files.patient, files.split) if name]
    table = root / files.table
    rows = list(table_rows(table, columns, f"{card.name}, as its card says"))
    for name, column in files.metadata.items():
        said = [row[column] for row in rows if row[column]]
        if said and all(_value(name, text) is None for text in said):
            raise BenchmdError(
                f"{table}: none of the {len(said):,} values of the column {column} can be read as "
                f"{name}: check metadata in the card of {card.name}."
            )
    for row in rows:
        place = PurePosixPath(files.folder) / f"{row[files.path]}{files.suffix}"
        path = inside(place.as_posix(), table)
        labels, why = _labels(row, own, card) if several else ({}, "")
        label = None
        if not several:
            label, why = _class_of(card, row[files.label])
        if files.patient and not row[files.patient]:
            why = why or NO_PATIENT
        yield Named(
            path,
            label,
            labels,
            patient=row[files.patient] if files.patient else "",
            split=row[files.split] if files.split else None,
            excluded=why,
            written="" if several else row[files.label],
            metadata={name: _value(name, row[column]) for name, column in files.metadata.items()},
        )


def _class_of(card: DatasetCard, label: str) -> tuple[str | None, str]:
    """The class of a label, or why there is none."""
    if not label:
        return None, NO_LABEL
    if label in card.class_mapping:
        name = card.class_mapping[label]
        return name, "" if name else f"its label {shown(label)} has no class"
    if label in card.classes and not card.class_mapping:
        return label, ""
    return None, NO_CLASS


def _labels(
    row: Mapping[str, str], columns: Sequence[str], card: DatasetCard
) -> tuple[dict[str, int], str]:
    """1, 0 or -1 of each class; of several columns of one class the highest."""
    found = dict.fromkeys(card.classes, UNKNOWN)
    for column in columns:
        text = row[column].strip().lower()
        if text and text not in TRUTHS:
            return {}, f"its value of {column} is neither 1 nor 0"
        name = card.class_mapping.get(column, column)
        if name:
            found[name] = max(found[name], TRUTHS.get(text, UNKNOWN))
    known = any(value != UNKNOWN for value in found.values())
    return found, "" if known else "none of its labels is known"


def _value(name: str, text: str) -> float | str | None:
    if name == "age":
        return age(text)
    return sex(text) if name == "sex" else text.strip() or None


def _paths(folder: Path, card: DatasetCard, root: Path) -> Iterator[str]:
    """Files of the formats that the card names, and series, relative to the raw folder."""
    patterns = [f"*{suffix}" for suffix in _files(card).suffixes or suffixes(card.signal)]
    for place, names in walk(folder, *patterns):
        series = is_volume(card.signal) and any(name.lower().endswith(".dcm") for name in names)
        if series:
            yield place.relative_to(root).as_posix()
        for name in sorted(names):
            if not (series and name.lower().endswith(".dcm")) and _is_there(place / name):
                yield (place / name).relative_to(root).as_posix()


def _in_folders(root: Path, card: DatasetCard) -> Iterator[Named]:
    """What the names of folders say of each file below them."""
    files = _files(card)
    for path in _paths(root / files.folder, card, root):
        parts = PurePosixPath(path).relative_to(files.folder or ".").parts[:-1]
        if len(parts) < len(files.levels):
            yield Named(path, excluded=f"it is in fewer than {len(files.levels)} folders")
            continue
        said = dict(zip(files.levels, parts, strict=False))
        label, why = _class_of(card, said.get("class", ""))
        yield Named(
            path,
            label,
            patient=said.get("patient", ""),
            split=said.get("split"),
            excluded=why,
            written=said.get("class", ""),
        )


def _by_lists(
    root: Path, card: DatasetCard, named: Sequence[Named]
) -> tuple[list[Named], list[str]]:
    """The records with the split whose list names them, and what a list names and is not there.

    A line is a file's path within the folder, or only its name, either without its ending, too.

    Raises:
        BenchmdError: There is no such list, or a record is in two, or a line stands for several.
    """
    files = _files(card)
    paths: dict[str, set[str]] = {}
    by_name: dict[str, set[str]] = {}
    for one in named:
        path = PurePosixPath(one.path).relative_to(files.folder or ".").as_posix()
        paths.setdefault(path, set()).add(one.path)
        for name in (path, path.rpartition("/")[2]):
            for key in (name, name.removesuffix(ending(name, card.signal))):
                by_name.setdefault(key, set()).add(one.path)
    by_name |= paths  # a whole path stands for its own file
    splits: dict[str, str] = {}
    missing = []
    for split, source in files.lists.items():
        table = root / inside(source, root)
        for number, line in _lines(table, card):
            found = by_name.get(line, set())
            if not found:
                missing.append(f"what line {number} of {source} names")
                continue
            path = min(found)
            if len(found) > 1 or splits.setdefault(path, split) != split:
                why = f"stands for {len(found)} files" if len(found) > 1 else "is in another list"
                raise BenchmdError(
                    f"{table}, line {number}: the record {why}. Expected one file, by its path "
                    f"within {files.folder or 'the raw folder'}, in the list of one split."
                )
    return [replace(one, split=splits.get(one.path, "")) for one in named], missing


def _lines(path: Path, card: DatasetCard) -> Iterator[tuple[int, str]]:
    """The lines of a list of files that are not blank, with their numbers."""
    try:
        text = read_bounded(path, MAX_BYTES, "the list").decode("utf-8-sig")
    except (RecordError, UnicodeDecodeError) as error:
        raise BenchmdError(
            f"{path} cannot be read as a list of files, as the card of {card.name} says: {error}."
        ) from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, line.strip()


def _splits(kept: Sequence[Named], card: DatasetCard) -> list[str]:
    """The split of each record; empty for one that the card names none for."""
    files = _files(card)
    if card.role == "target":
        return ["test"] * len(kept)
    if all(one.split is None for one in kept):
        return balanced_splits(
            card.name,
            [one.patient or one.path for one in kept],
            [_labels_of(one) for one in kept],
            {str(split): share for split, share in files.drawn.items()},
        )
    names = {name: name for name in get_args(Split)} | files.splits
    return [names.get(one.split or "", "") for one in kept]


def _labels_of(one: Named) -> tuple[str, ...]:
    if one.label is not None:
        return (one.label,)
    return tuple(name for name, value in one.labels.items() if value == 1)


def _stem(card: DatasetCard, path: str) -> str:
    """The path without its ending."""
    return path.removesuffix(ending(path, card.signal))


def _record_names(card: DatasetCard, kept: Sequence[Named]) -> dict[str, str]:
    """Names of the records, by path: without the ending, where that names none of the others.

    Others are files of the same name and another format, and the parts that a file is cut into.
    """
    stems = {one.path: _stem(card, one.path) for one in kept}
    counts = Counter(stems.values())
    cut = len(card.signal.axes) != 3 and _files(card).cut == "segments"

    def is_others(stem: str) -> bool:
        whole = PART.sub("", stem)
        return counts[stem] > 1 or (cut and whole != stem and whole in counts)

    return {path: path if is_others(stem) else stem for path, stem in stems.items()}


def _record_id(card: DatasetCard, name: str) -> str:
    """A record's name, or the hash of it where names name patients."""
    return hashed_patient(card.name, name) if card.hides_names else name


def _shown(card: DatasetCard, path: str) -> str:
    if not card.hides_names:
        return path
    return f"the file of record {_record_id(card, _stem(card, path))}"


def _item(card: DatasetCard, one: Named, split: str, name: str) -> RawItem:
    return RawItem(
        path=one.path,
        record_id=_record_id(card, name),
        group_id=hashed_patient(card.name, one.patient or one.path),
        split=split,
        label=one.label,
        labels=one.labels,
        metadata=one.metadata,
    )


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The records of one file: several where it is cut into segments or windows.

    Raises:
        RecordError: It cannot be read as the card's signal.
    """
    warnings = Counter[str]()
    parts = read_file(root / item.path, card.signal, _files(card), warnings)
    scans = card.task.scored == "scans"
    records, excluded = [], Counter[str]()
    for number, part in enumerate(parts):
        if part.is_constant:
            excluded[CONSTANT] += 1
            continue
        name = item.record_id if len(parts) == 1 else f"{item.record_id}-{number:04d}"
        records.append(
            Record(
                record_id=name,
                group_id=item.group_id,
                unit_id=item.record_id if scans else name,
                signal=part.signal,
                scale=part.scale,
                valid_size=part.valid_size,
                target=item.target(card),
                metadata=item.metadata,
            )
        )
    return Reading(records, excluded, warnings)
