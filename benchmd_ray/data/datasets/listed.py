"""Datasets that need no code: their card's ``files`` name a table, or folders named by class."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from benchmd_ray.data.card_files import Files
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.any_file import ending, is_volume, read_file, read_row, suffixes
from benchmd_ray.data.datasets.named import (
    NO_CLASS,
    Named,
    class_of,
    each_once,
    rows_of,
    stated_split,
    unread_warnings,
)
from benchmd_ray.data.datasets.record_rows import label_place, read_record_rows
from benchmd_ray.data.name_patterns import patient_in
from benchmd_ray.data.raw import (
    DUPLICATE,
    NO_ROW,
    Choices,
    Discovery,
    RawItem,
    Reading,
    inside,
    walk,
)
from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.records import RecordError, hashed_patient
from benchmd_ray.data.splits import FOLDS, balanced_splits
from benchmd_ray.data.tables import MAX_BYTES
from benchmd_ray.errors import BenchmdError, composed, count_of, shown

VERSION = 4
PART = re.compile(r"-\d{4,}$")
"""How names of the parts of a file end that is cut."""
LAYOUT = "files"
NO_PATIENT = "the table does not say its patient"
NO_MATCH = "the pattern finds no patient in its name"
CONSTANT = "a segment or window of it is constant"
NOWHERE = "its split is none of those that the card names, or no list has it"
COMPOSED_TO = frozenset("K;`")
"""The ASCII characters that others are composed to: the Kelvin sign, the Greek question mark and
the varia."""


class FileNames:
    """Real names of files below a folder, by composed ones; each folder is listed once.

    File systems and copies keep a name as it was written (older Macs decompose every ``ä``), and a
    file opens only by its real name.
    """

    def __init__(self, root: Path, *, hidden: bool) -> None:
        """Take the folder, and whether messages hide names because they name patients."""
        self.root, self._hidden = root, hidden
        self._folders: dict[str, dict[str, list[str]]] = {}

    def real(self, name: str) -> str:
        """The path of a file below the folder as the file system has it; `name` itself if missing.

        Raises:
            BenchmdError: Several files have that name.
        """
        if name.isascii() and not COMPOSED_TO & {*name} and (self.root / name).exists():
            return name
        places = [""]
        for part in PurePosixPath(name).parts:
            below = ((place, self._names(place).get(composed(part), ())) for place in places)
            places = [f"{place}/{real}".lstrip("/") for place, names in below for real in names]
        if len(places) > 1:
            raise self.clash(places)
        return places[0] if places else name

    def clash(self, paths: Sequence[str]) -> BenchmdError:
        """An error for files that have one name in different forms of Unicode."""
        which = "files" if self._hidden else f"the files {paths[0]!a} and {paths[1]!a}"
        return BenchmdError(
            f"{self.root} holds {which} whose names differ only in the form of Unicode (composed, "
            "NFC, or decomposed, NFD), in which names are not told apart: rename or remove one."
        )

    def _names(self, folder: str) -> dict[str, list[str]]:
        if folder not in self._folders:
            names = self._folders[folder] = {}
            with suppress(OSError):
                for name in sorted(os.listdir(self.root / folder)):
                    names.setdefault(composed(name), []).append(name)
        return self._folders[folder]


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List what the table names, or all that is in the folders."""
    files, names = _files(card), FileNames(root, hidden=card.hides_names)
    rows = [_with_patient(files, row) for row in _rows(card, names)]
    named = each_once(card, files, rows, name=lambda row: _record_id(card, _stem(card, row.path)))
    excluded = Counter({DUPLICATE: len(rows) - len(named)})
    missing: list[str] = []
    if files.lists:
        named, missing = _by_lists(card, named, names)
    kept = []
    for record in named:
        if files.table and not _is_there(root / record.file):
            missing.append(_shown(card, record.path))
        elif record.excluded:
            excluded[record.excluded] += 1
        elif files.patient and not record.patient:
            excluded[NO_MATCH if files.patient_pattern else NO_PATIENT] += 1
        else:
            kept.append(record)
    if files.table and named and len(missing) == len(named):
        raise BenchmdError(_no_file(card, names, missing))
    if named and excluded[NO_CLASS] == len(named):
        raise BenchmdError(_no_class(root, card, named))
    used = [pair for pair in zip(kept, _splits(kept, card), strict=True) if pair[1]]
    excluded[NOWHERE] += len(kept) - len(used)
    if kept and not used and not files.lists:
        raise BenchmdError(_no_split(root, card))
    if files.table:
        listed = {record.file for record in named}
        listed |= {names.real(name) for name in (files.table, *files.lists.values())}
        others = _paths(root / names.real(files.folder), card, root)
        excluded[NO_ROW] += sum(path not in listed for path in others)
    record_names = _record_names(card, kept)
    items = [_item(card, record, split, record_names[record.path]) for record, split in used]
    return Discovery(
        LAYOUT,
        items,
        missing,
        dict(+excluded),
        "patient" if files.patient or "patient" in files.levels else "record",
        warnings=unread_warnings(card, files, (record for record, _ in used)),
    )


def _rows(card: DatasetCard, names: FileNames) -> Iterator[Named]:
    files = _files(card)
    if files.rows:
        return _in_rows(card, names)
    if not files.table:
        return _in_folders(card, names)
    return rows_of(names.root / names.real(files.table), card, files, real=names.real)


def _with_patient(files: Files, record: Named) -> Named:
    if not files.patient_pattern:
        return record
    path = PurePosixPath(record.path).relative_to(files.folder or ".").as_posix()
    return replace(record, patient=patient_in(files.patient_pattern, path))


def _is_there(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _no_split(root: Path, card: DatasetCard) -> str:
    files = _files(card)
    where = f"the column {files.split}" if files.table else "the folders of the level split"
    return (
        f"{where} of {card.name} in {root} say train, validation or test of no record: translate "
        "their values by splits in the card."
    )


def _no_file(card: DatasetCard, names: FileNames, missing: Sequence[str]) -> str:
    files = _files(card)
    root, folder = names.root, names.root / names.real(files.folder)
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
    labels = list(dict.fromkeys(record.written for record in named))
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


def _in_folders(card: DatasetCard, names: FileNames) -> Iterator[Named]:
    files = _files(card)
    real: dict[str, str] = {}
    for file in _paths(names.root / names.real(files.folder), card, names.root):
        path = composed(file)
        if real.setdefault(path, file) != file:
            raise names.clash([real[path], file])
        parts = PurePosixPath(path).relative_to(files.folder or ".").parts[:-1]
        if len(parts) < len(files.levels):
            yield Named(path, file, excluded=f"it is in fewer than {len(files.levels)} folders")
            continue
        levels = dict(zip(files.levels, parts, strict=False))  # folders may be deeper
        label, why = class_of(card, levels.get("class", ""))
        yield Named(
            path,
            file,
            label,
            patient=levels.get("patient", ""),
            split=levels.get("split"),
            excluded=why,
            written=levels.get("class", ""),
        )


def _in_rows(card: DatasetCard, names: FileNames) -> Iterator[Named]:
    """The records of files that have one in each row."""
    if card.signal.axes[-1] != "time" or card.signal.stored_shape[0] != 1 or card.task.segments:
        raise BenchmdError(
            f"the card of {card.name} has rows, and each row is a signal over time of one channel: "
            f"its signal has the axes {', '.join(card.signal.axes)} and {card.signal.stored_shape}."
        )
    files = _files(card)
    for file in _paths(names.root / names.real(files.folder), card, names.root):
        try:
            rows = read_record_rows(names.root / file, [label_place(files.rows)])
            if files.samples not in (None, rows.samples.shape[1]):
                raise RecordError(
                    f"its rows have {count_of(rows.samples.shape[1], 'value')} and the label, "
                    f"expected {files.samples:,} and the label"
                )
        except RecordError as error:
            what = _shown(card, file) if card.hides_names else names.root / file
            raise BenchmdError(
                f"{what}: {error}. Check rows, samples and suffixes in the card of {card.name}."
            ) from error
        for number, written in enumerate(rows.labels):
            label, why = class_of(card, written)
            path = f"{composed(file)}/{number:06}"
            yield Named(path, file, label, excluded=why, written=written, row=number)


def _by_lists(
    card: DatasetCard, named: Sequence[Named], names: FileNames
) -> tuple[list[Named], list[str]]:
    """The records with the split whose list names them, and what a list names and is not there.

    A line is a file's path within the folder or its name, with or without its ending.
    """
    files = _files(card)
    paths: dict[str, set[str]] = {}
    by_name: dict[str, set[str]] = {}
    for record in named:
        path = PurePosixPath(record.path).relative_to(files.folder or ".").as_posix()
        paths.setdefault(path, set()).add(record.path)
        for name in (path, path.rpartition("/")[2]):
            for key in (name, name.removesuffix(ending(name, card.signal))):
                by_name.setdefault(key, set()).add(record.path)
    by_name |= paths  # a whole path stands for its own file
    splits: dict[str, str] = {}
    missing = []
    for split, source in files.lists.items():
        table = names.root / names.real(inside(source, names.root))
        for number, line in _lines(table, card):
            matches = by_name.get(line, set())
            if not matches:
                missing.append(f"what line {number} of {source} names")
                continue
            path = min(matches)
            if len(matches) > 1 or splits.setdefault(path, split) != split:
                why = (
                    f"stands for {len(matches)} files" if len(matches) > 1 else "is in another list"
                )
                raise BenchmdError(
                    f"{table}, line {number}: the record {why}. Expected one file, by its path "
                    f"within {files.folder or 'the raw folder'}, in the list of one split."
                )
    return [replace(record, split=splits.get(record.path, "")) for record in named], missing


def _lines(path: Path, card: DatasetCard) -> Iterator[tuple[int, str]]:
    try:
        text = read_bounded(path, MAX_BYTES, "the list").decode("utf-8-sig")
    except (RecordError, UnicodeDecodeError) as error:
        raise BenchmdError(
            f"{path} cannot be read as a list of files, as the card of {card.name} says: {error}."
        ) from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, composed(line.strip())


def _splits(kept: Sequence[Named], card: DatasetCard) -> list[str]:
    files = _files(card)
    if card.role == "target":
        return ["test"] * len(kept)
    if files.folds is not None:
        return [FOLDS] * len(kept)
    if all(record.split is None for record in kept):
        return balanced_splits(
            card.name,
            [record.patient or record.path for record in kept],
            [
                (record.label,)
                if record.label is not None
                else tuple(name for name, value in record.labels.items() if value == 1)
                for record in kept
            ],
            {str(split): share for split, share in files.drawn.items()},
        )
    return [stated_split(card, files, record) for record in kept]


def _stem(card: DatasetCard, path: str) -> str:
    return path.removesuffix(ending(path, card.signal))


def _record_names(card: DatasetCard, kept: Sequence[Named]) -> dict[str, str]:
    """Names of the records, by path: without the ending, unless another record or part has it."""
    stems = {record.path: _stem(card, record.path) for record in kept}
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


def _item(card: DatasetCard, record: Named, split: str, name: str) -> RawItem:
    return RawItem(
        path=record.file,
        record_id=_record_id(card, name),
        group_id=hashed_patient(card.namespace, record.patient)
        if record.patient
        else hashed_patient(card.name, record.path),
        split=split,
        label=record.label,
        labels=record.labels,
        metadata=record.metadata,
        details={"row": record.row} if _files(card).rows else {},
    )


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The records of one file: several where it is cut into segments or windows."""
    warnings = Counter[str]()
    if _files(card).rows:
        parts = read_row(root / item.path, item.details, card.signal, _files(card))
    else:
        parts = read_file(root / item.path, card.signal, _files(card), warnings)
    scans = card.task.scored == "scans"
    records, excluded = [], Counter[str]()
    for number, part in enumerate(parts):
        if part.is_constant:
            excluded[CONSTANT] += 1
            continue
        name = f"-{number:04d}" if len(parts) > 1 else ""
        unit = {"unit_id": item.record_id} if scans else {}
        records.append(
            item.record(card, part.signal, part.valid_size, scale=part.scale, part=name, **unit)
        )
    return Reading(records, excluded, warnings)
