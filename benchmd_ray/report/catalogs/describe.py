"""Cards as text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path

from benchmd_ray.data.card_files import Files
from benchmd_ray.data.cards import DatasetCard, broken_cards, cards, code_classes, dataset_card
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.modality.tasks import TaskKind
from benchmd_ray.report.catalogs.describe_catalog import (
    count_table,
    describe_catalog,
    list_item,
    paragraph,
)
from benchmd_ray.storage.address import is_address
from benchmd_ray.storage.location import location

ROLES = {
    "source": "source: encoders are pretrained and classifiers trained on it",
    "target": "target: classifiers of another dataset are scored on it, nothing is trained on it",
}
LEAK_FREE = {
    "source": "No patient is in two splits: the owner's splits where the dataset has them, else 80 "
    "% train and 20 % validation by a hash of the patient.",
    "target": "All labelled records are scored, or the owner's evaluation sets where the dataset "
    "has them.",
}
OWNERS_SPLITS = "The splits of the owners' file."
DRAWN_BY_FILE = "Drawn by a hash of the names of files, as the notes say."
RELEASED_RULE = (
    "BenchMD released no split table of this dataset: the paper's rule with a fixed seed, 80 % "
    "train and 20 % validation unless the notes say otherwise."
)


def unmapped(card: DatasetCard) -> str:
    """What happens to a record whose label is none of our classes."""
    several = card.task.kind == "multi-label"
    return "(no separate class; the record stays)" if several else "(excluded)"


def describe_card(card: DatasetCard) -> list[str]:
    """Describe a dataset in lines: what it is, where to get it, its raw folder, and its catalog."""
    head = f"{card.name}: {card.title}" if card.title else card.name
    lines = [head, "=" * len(head)]
    for title, section in SECTIONS.items():
        content = section(card)
        if content:
            lines += ["", title, *content]
    return lines


TASKS: dict[TaskKind, str] = {
    "single-label": "one of these classes",
    "multi-label": "any of these labels",
    "ordinal": "one of these classes, in this order",
    "segmentation": "one of these classes for each voxel",
}
"""Description of what is predicted."""


def _what(card: DatasetCard) -> list[str]:
    kind, signal = card.modality, card.signal
    rate = f" at {signal.rate:g} Hz" if signal.rate else ""
    shape = " × ".join(map(str, signal.stored_shape))
    stored = f"{' × '.join(signal.axes)}: {shape}, {signal.unit}{rate}, stored as {signal.dtype}"
    lines = [
        *paragraph(f"{kind.name} ({stored})", label="modality"),
        *(paragraph(card.collection, label="collection") if card.collection else ()),
        *paragraph(ROLES[card.role], label="role"),
        *paragraph(f"{TASKS[card.task.kind]}: {', '.join(card.classes)}", label="predicted"),
    ]
    if card.normalisation:
        lines += paragraph(card.normalisation, label="normalised")
    return lines + paragraph(str(card.version), label="card version")


def _get(card: DatasetCard) -> list[str]:
    terms = {
        "homepage": card.homepage,
        "access": card.access,
        "licence": card.licence,
        "cite": card.citation,
    }
    lines = []
    for label, content in terms.items():
        lines += paragraph(content, label=label) if content else []
    if card.download:
        lines += ["  download", *(line for step in card.download for line in list_item(step, 4))]
    return lines


def _folder(card: DatasetCard) -> list[str]:
    lines = []
    if len(card.layouts) > 1:
        lines += paragraph("One of these layouts; a build finds out which.")
    for name, layout in card.layouts.items():
        rows = f", each gives about {layout.rows_per_record:,} rows of the catalog"
        counted = f"{layout.records:,} raw records" + rows * (layout.rows_per_record > 1)
        lines += paragraph(f"{layout.description} {counted}.", label=name)
        if layout.pattern:
            lines += paragraph(f"files of the records: {layout.pattern}", 15)
        if layout.md5:
            lines += paragraph(f"MD5 {layout.md5}", 15)
        if layout.splits:
            splits = ", ".join(f"{split} {count:,}" for split, count in layout.splits.items())
            lines += paragraph(f"records: {splits}", 15)
        if layout.mark:
            lines += paragraph(f"in results: {card.name}-{layout.mark}", 15)
        lines += ["", *(f"      {line}".rstrip() for line in layout.tree.splitlines()), ""] * bool(
            layout.tree
        )
    if card.files is not None:
        lines += _files(card.files)
    if card.module:
        lines += paragraph(f"The module {card.module} defines the layout.")
    if card.hides_names:
        lines += paragraph(
            "Names of its files or folders name patients, so catalogs do not hold them; to find a "
            f"record's file: `benchmd catalog locate {card.name} --raw FOLDER RECORD_ID`."
        )
    if card.patient_namespace:
        lines += paragraph(f"Its patient IDs are those of {card.patient_namespace}.")
    if card.duplicates != "merge":
        lines += paragraph(f"Exact copies of records: {card.duplicates}.")
    return lines[:-1] if lines and not lines[-1] else lines


def _labels(card: DatasetCard) -> list[str]:
    lines = []
    if card.class_mapping:
        lines += paragraph("What the owner calls it → our class:")
        width = min(40, max(len(label) for label in card.class_mapping))
        for label, name in card.class_mapping.items():
            lines += paragraph(f"→ {name or unmapped(card)}", 4, f"{label:<{width}}")
    if card.code_table:
        table = f"data_catalog/tables/{card.code_table}"
        lines += paragraph(f"Codes are mapped by {table}: {_code_counts(card)}.")
    if card.merged_classes:
        lines += paragraph("Its labels are coarser; scores of the merged classes are added:")
        for name, names in card.merged_classes.items():
            lines += paragraph(f"= {' + '.join(names)}", 4, name)
    return lines


def _code_counts(card: DatasetCard) -> str:
    try:
        codes = code_classes(card.code_table, card.name)
    except KeyError:  # a table of a single dataset
        codes = code_classes(card.code_table)
    counts = Counter(codes.values())
    named = [f"{name} {counts[name]}" for name in card.classes if counts[name]]
    return ", ".join([*named, f"excluded {counts['']}"] if counts[""] else named)


def _options(card: DatasetCard) -> list[str]:
    lines = []
    for name, option in card.options.items():
        choices = f" Choices: {', '.join(option.choices)}." if option.choices else ""
        default = f"Default: {option.default}."
        if option.released:
            default += f" Under the policy released: {option.released}."
        lines += paragraph(f"{option.description} {default}{choices}", label=name)
    return lines


def _policies(card: DatasetCard) -> list[str]:
    released = RELEASED_RULE
    if card.split_table:
        released = (
            f"The splits and labels of {card.split_table}, a table that BenchMD released: name it "
            "with --split-table FILE."
        )
    rules = {"clean": f"The default. {LEAK_FREE[card.role]}", "released": released}
    if card.collection:
        rule = DRAWN_BY_FILE if card.task.segments else OWNERS_SPLITS
        rules = {"clean": f"The default. {rule}", "released": rule}
    elif card.files is not None:
        rules = {"clean": _splits(card.files, card.role)}
    elif card.module:
        rules = {}
    lines = []
    for policy, scored in card.evaluation_splits.items():
        text = f"{rules.get(policy, '')} Scored and never trained on: {', '.join(scored)}."
        lines += paragraph(text, label=policy)
    return lines


def _splits(files: Files, role: str) -> str:
    """How the splits of a dataset that has only a card are made."""
    if role == "target":
        return "All records are scored."
    if files.folds is not None:
        return "In folds of patients, each scored by a model that is trained on the others."
    if files.split or files.lists or (not files.table and "split" in files.levels):
        return "The splits that the files state."
    by_patient = files.patient or (not files.table and "patient" in files.levels)
    shares = ", ".join(f"{share * 100:.3g} % {split}" for split, share in files.drawn.items())
    of_each = "by patient" if by_patient else "file by file"
    return f"Drawn {of_each}, each class in these shares: {shares}."


def _expected(card: DatasetCard) -> list[str]:
    lines = []
    total = "labels in all" if card.task.kind == "multi-label" else "in all"
    for policy, splits in card.expected.items():
        rows = {
            name: [counts.get(name, 0) for counts in splits.values()] for name in card.classes
        } | {total: [sum(counts.values()) for counts in splits.values()]}
        lines += count_table(f"policy {policy}", list(splits), rows)
    return lines


def _notes(card: DatasetCard) -> list[str]:
    return [line for note in card.notes for line in list_item(note)]


def _files(files: Files) -> list[str]:
    values = {f.name: getattr(files, f.name) for f in fields(files)}
    changed = {k: v for k, v in values.items() if v != getattr(Files(), k)}
    sentence = f"Records are the rows of {files.table}." if files.table else "Records are files."
    lines = paragraph(sentence)
    for name, value in changed.items():
        lines += paragraph(json.dumps(value), label=name)
    return lines


def _commands(card: DatasetCard) -> list[str]:
    options = "".join(f" [--option {name}=…]" for name in card.options)
    return paragraph(f"benchmd catalog build {card.name} --raw FOLDER --out CATALOG{options}")


SECTIONS: dict[str, Callable[[DatasetCard], list[str]]] = {
    "What it is": _what,
    "Source and terms of use": _get,
    "Layout of the raw folder": _folder,
    "Labels": _labels,
    "Options of the build": _options,
    "Policies of labels and splits": _policies,
    "Published counts": _expected,
    "Notes": _notes,
    "Build it": _commands,
}
"""Sections by title; empty ones are omitted."""


def show(name: str, draws: bool) -> list[str]:
    """Describe a dataset, or the catalog in a folder or at an address; datasets take precedence.

    Raises:
        BenchmdError: The name is neither, or ``draws`` asks for figures of a dataset.
    """
    card = named(name)
    if isinstance(card, Catalog):
        return describe_catalog(card)
    if draws:
        raise BenchmdError(
            f"{name} is the name of a dataset, and figures are drawn of a catalog. Build one, and "
            f"name its folder, such as `benchmd catalog show ./{name} --figures FOLDER`."
        )
    return describe_card(card)


def named(name: str) -> DatasetCard | Catalog:
    """The card of a dataset, or the catalog in a folder or at an address; datasets take precedence.

    Raises:
        BenchmdError: It is neither.
    """
    if name in cards():
        return dataset_card(name)
    if is_address(name) or Path(name).exists():
        return open_catalog(location(name), folds=True)
    if name in broken_cards():
        raise BenchmdError(broken_cards()[name])
    raise BenchmdError(f"{unknown_name('dataset', name, cards())} Nor is {name} a folder.")


def list_cards(listed: Iterable[DatasetCard]) -> list[str]:
    """One line per dataset by modality: sources first, then collections.

    A dataset of a collection in several sizes has one line.
    """
    sizes: dict[str, list[DatasetCard]] = {}
    for card in listed:
        name = card.name.partition("-")[0] if card.collection else card.name
        sizes.setdefault(name, []).append(card)

    def place(cards: list[DatasetCard]) -> tuple[object, ...]:
        first = cards[0]
        if first.collection:
            return True, first.name
        return False, *first.modality.order, first.role != "source", first.name

    rows = [("name", "modality", "role", "access", "title")]
    rows += [
        (c.name, c.modality.name, c.role, _short_access(c), _title(c, also))
        for c, *also in sorted(sizes.values(), key=place)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{value:{width}}" for value, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _title(card: DatasetCard, also: Iterable[DatasetCard]) -> str:
    others = ", ".join(other.name.removeprefix(card.name) for other in also)
    return f"{card.title}; also {others}" if others else card.title


def _short_access(card: DatasetCard) -> str:
    return re.split(r"[\s;,.:(]", card.access.strip(), maxsplit=1)[0].lower()
