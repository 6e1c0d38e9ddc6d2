"""Dataset cards: one YAML file of `data_catalog` per dataset, of MedMNIST for all its sizes."""

from __future__ import annotations

import csv
import functools
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from benchmd_ray.data.card_files import Files, Split
from benchmd_ray.data.medmnist_cards import contents_by_size
from benchmd_ray.errors import (
    BenchmdError,
    require_plain_name,
    shown,
    unknown_name,
)
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.modality.card_folders import Cards, card_folders, read_cards, require_own_name
from benchmd_ray.modality.modalities import Modality, modalities, modality
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Target, Task
from benchmd_ray.schema.plain_yaml import Lined, read_yaml_file
from benchmd_ray.schema.typed import line_of, typed

POLICIES = ("clean", "released")
"""Label-and-split policies: leak-free (the default), and as BenchMD released them."""
SCORED = ("records", "scans")
"""What is scored of datasets without code; a module may score other units."""


@dataclass(frozen=True)
class Layout:
    """One raw layout in which a dataset is handed out."""

    description: str
    """Which files must lie where."""
    records: int
    """Raw records of all that it hands out, one per raw file."""
    pattern: str = ""
    """Glob of the record files below the raw folder."""
    tree: str = ""
    """How the raw folder must look, as a drawing."""
    rows_per_record: int = 1
    """Catalog rows that a raw record gives, about: epochs of a night, windows of a scan."""
    md5: str = ""
    """MD5 of the one file that holds all, where it does."""
    splits: dict[str, int] = field(default_factory=dict)
    """Records of each split, where the owner's file has them."""
    mark: str = ""
    """What a catalog of this layout adds to the dataset's name in all results."""
    part: bool = False
    """Whether it holds a part of the dataset."""


@dataclass(frozen=True)
class Option:
    """Something that a user may choose when a catalog is built."""

    default: str
    description: str
    choices: tuple[str, ...] = ()
    """Valid values; empty where `discover` checks them."""
    released: str = ""
    """The default under the policy ``released``, where it is another one."""

    def default_under(self, policy: str) -> str:
        return (policy == "released" and self.released) or self.default


@dataclass(frozen=True)
class DatasetCard:
    """What a dataset is, where to get it and what a complete catalog of it holds."""

    name: str
    modality: Modality
    """Named in its file, which may state keys of the signal and of the task that differ."""
    title: str = ""
    role: Literal["source", "target"] = "source"
    version: int = 1
    """Raised whenever labels, splits or what is stored change."""
    homepage: str = ""
    access: str = ""
    licence: str = ""
    citation: str = ""
    layouts: dict[str, Layout] = field(default_factory=dict)
    evaluation_splits: dict[str, tuple[Split, ...]] = field(
        default_factory=lambda: {"clean": ("test",)}
    )
    """Per policy, the splits that are scored and never trained on."""
    files: Files | None = None
    """Of a dataset that needs no code: how its files are found and read."""
    module: str = ""
    """Import path of the module that knows its raw layout, where the package has none."""
    collection: str = ""
    """The collection that it is part of and whose raw layout it has."""
    download: tuple[str, ...] = ()
    """Files to fetch, and from where."""
    code_table: str = ""
    """CSV of `data_catalog/tables` that maps the dataset's codes to classes."""
    class_mapping: dict[str, str] = field(default_factory=dict)
    """Class of each label of the source, empty for one that is excluded."""
    merged_classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For labels coarser than the modality's: class → the modality's classes that it merges."""
    split_table: str = ""
    """Name of the file with the splits and labels that BenchMD released, where it did."""
    options: dict[str, Option] = field(default_factory=dict)
    """What a user may choose at the build."""
    normalisation: str = ""
    """Where the statistics that normalise its signals come from."""
    patient_namespace: str = ""
    """Name that cards with the same patient IDs share: their patients then have the same hashes.
    Empty for the dataset's own name: its patients are compared with no other dataset's."""
    duplicates: Literal["merge", "keep", "refuse"] = "merge"
    """What becomes of exact copies under the policy ``clean``. merge: who shares content is one
    patient, in one split, and what a source is trained on is not scored. keep: only counted.
    refuse: neither built nor scored."""
    private_names: bool = False
    """True where names of raw files or folders name patients: they are not written down; see
    `hides_names`."""
    expected: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """Published counts: policy → split (``total`` for all) → class → records, or scans of CT."""
    notes: tuple[str, ...] = ()

    @property
    def signal(self) -> Signal:
        return self.modality.signal

    @property
    def namespace(self) -> str:
        """What the hashes of its patients are keyed by."""
        return self.patient_namespace or self.name

    @property
    def task(self) -> Task:
        """What is predicted, in the classes of a model."""
        return self.modality.task

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of its targets: the task's, or those that merge them."""
        return tuple(self.merged_classes) or self.task.classes

    @property
    def hides_names(self) -> bool:
        """Whether names of raw files are never written down, as they name patients."""
        if self.files is None:
            return self.private_names
        by_folder = not self.files.table and "patient" in self.files.levels
        return self.private_names or by_folder or bool(self.files.patient_pattern)

    @property
    def target(self) -> Target:
        """What is held of the truth of a record."""
        return self.task.target(self.classes, self.signal.stored_shape[1:])


def _cards_of(path: Path) -> dict[str, DatasetCard]:
    """The card of a file by its name, or those of MedMNIST, one for each image size."""
    where = f"the card {path}"
    content = read_yaml_file(path, where)
    if not isinstance(content, dict):
        raise BenchmdError(f"{where} holds {shown(content)}, expected its keys.")
    contents = contents_by_size(content, where) if "images" in content else [content]
    by_size = [card_of(_with_modality(card, where), where) for card in contents]
    require_own_name(path, content, where)
    return {card.name: card for card in by_size}


def _with_modality(content: dict[str, Any], where: str) -> dict[str, Any]:
    """A card's content, with the modality itself in place of its name."""
    card = copy(content) if isinstance(content, Lined) else Lined(content)
    if isinstance(name := card.get("modality"), str):
        try:
            whole = Lined(asdict(modality(name)))
        except BenchmdError as error:
            raise BenchmdError(f"{where}{line_of(content, 'modality')}: {error}") from error
        whole.lines = {key: line for key, line in card.lines.items() if key in ("signal", "task")}
        for part in ("signal", "task"):
            changes = copy(card.pop(part, {}))
            if not isinstance(changes, dict):
                raise BenchmdError(
                    f"{where}: {part}{line_of(content, part)} is {shown(changes)}, expected its "
                    "keys."
                )
            usual = whole[part].get("normaliser")
            if changes.get("normaliser", usual) != usual:
                changes.setdefault("parameters", {})  # those of another would not fit
            for key, value in whole[part].items():
                changes.setdefault(key, value)
            whole[part] = changes
        card["modality"] = whole
    return card


def known_modalities() -> dict[str, None]:
    """Names of all modalities: of their cards, and of datasets that define their own."""
    return dict.fromkeys([*modalities(), *(card.modality.name for card in cards().values())])


def kind_of(name: str) -> Modality:
    """The modality of that name, or of the dataset of that name."""
    return cards()[name].modality if name in cards() else modality(name)


def card_of(content: Any, where: str) -> DatasetCard:
    """A card from its whole content with the modality, as manifests hold it.

    Raises:
        BenchmdError: It is not the content of a card, or names impossible classes or files.
    """
    card: DatasetCard = typed(DatasetCard, content, where)
    _check_classes(card, where, content)
    _check_names(card, where, content)
    _check_folds(card, where, content)
    return card


def without_build(card: DatasetCard) -> DatasetCard:
    """The card without what only a build reads: how raw files are fetched, found and named."""
    layouts = {
        name: replace(layout, description="", tree="", pattern="")
        for name, layout in card.layouts.items()
    }
    return replace(card, layouts=layouts, download=(), files=None, module="")


def _check_names(card: DatasetCard, where: str, content: Any) -> None:
    """Refuse unknown policies, and names of files that could lead out of their folders."""
    if not card.evaluation_splits:
        line = line_of(content, "evaluation_splits")
        raise BenchmdError(
            f"{where}: evaluation_splits{line} is empty, expected {{clean: [test]}}."
        )
    for policy, splits in card.evaluation_splits.items():
        line = line_of(content, "evaluation_splits", policy)
        if policy not in POLICIES:
            raise unknown_name(f"policy in {where}: evaluation_splits{line}:", policy, POLICIES)
        if not splits or "train" in splits:
            raise BenchmdError(
                f"{where}: evaluation_splits.{policy}{line} is {shown(list(splits))}, expected "
                "validation, test or both: what is scored is never trained on."
            )
    try:
        require_plain_name("dataset", card.name)
    except BenchmdError as error:
        raise BenchmdError(f"{where}{line_of(content, 'name')}: {error}") from error
    for key, name in (("code_table", card.code_table), ("split_table", card.split_table)):
        if name and Path(name).name != name:
            raise BenchmdError(
                f"{key} in {where}{line_of(content, key)} is {name!r}: expected the name of a "
                "file, without a folder."
            )


def _check_folds(card: DatasetCard, where: str, content: Any) -> None:
    """Refuse folds of what is not trained on, or is scored on other splits."""
    if card.files is None or card.files.folds is None:
        return
    line = line_of(content, "files", "splits")
    if card.role == "target":
        raise BenchmdError(
            f"{where}: files: splits{line} asks for folds, and a target is only scored, with all "
            "its records: leave splits out."
        )
    if card.evaluation_splits != {"clean": ("test",)}:
        raise BenchmdError(
            f"{where}: files: splits{line} asks for folds, each of which is scored as test: leave "
            "evaluation_splits out."
        )


def _check_classes(card: DatasetCard, where: str, content: Any) -> None:
    merged = {name for names in card.merged_classes.values() for name in names}
    if card.task.segments and (card.files is not None or merged or "time" in card.signal.axes):
        line = line_of(content, "modality", "task", "kind")
        raise BenchmdError(
            f"{where}: a segmentation{line} is of images or volumes whose masks a dataset's module "
            "reads: expected neither files nor merged_classes, and no axis time."
        )
    if card.task.segments and card.signal.input_shape != card.signal.stored_shape:
        line = line_of(content, "modality", "signal", "input_shape")
        raise BenchmdError(
            f"{where}: input_shape{line} of a segmentation is expected to be its stored_shape: "
            "volumes are cut to patches with their masks, by encoder.options.patch."
        )
    if card.files is not None and card.task.scored not in SCORED:
        line = line_of(content, "modality", "task", "scored")
        raise unknown_name(f"value of {where}: task, scored{line}:", card.task.scored, SCORED)
    columns = () if card.files is None else card.files.labels
    if columns and card.task.exclusive:
        raise BenchmdError(
            f"{where}: files: labels{line_of(content, 'files', 'labels')} is of multi-label tasks, "
            f"this one is {card.task.kind}: name the one column with the class by label."
        )
    named = [
        ("files, labels", {card.class_mapping.get(c, c) for c in columns} - {""}, card.classes),
        ("class_mapping", set(card.class_mapping.values()) - {""}, card.classes),
        ("merged_classes", merged, card.task.classes),
        *(
            (f"expected, {policy}, {split}", set(counts), card.classes)
            for policy, splits in card.expected.items()
            for split, counts in splits.items()
        ),
    ]
    for key, names, valid in named:
        for name in sorted(names - set(valid)):
            line = line_of(content, *key.split(", "))
            raise unknown_name(f"class in {where}: {key}{line}:", name, valid)


def cards() -> dict[str, DatasetCard]:
    """All valid cards by name, those of the package first."""
    return _read_all(card_folders()).sound


def broken_cards() -> dict[str, str]:
    """What is wrong with invalid cards, by file name."""
    return _read_all(card_folders()).broken


@functools.cache
def _read_all(folders: tuple[Path, ...]) -> Cards[DatasetCard]:
    paths = (path for folder in folders for path in sorted(folder.glob("*.yaml")))
    return read_cards("dataset", paths, _cards_of)


def dataset_card(name: str) -> DatasetCard:
    """The card of that name.

    Raises:
        BenchmdError: It is unknown (the message lists the valid names and the nearest), broken, or
            there are two.
    """
    read = _read_all(card_folders())
    if name in read.taken:
        raise BenchmdError(read.taken[name])
    if name not in read.sound and name not in read.broken:
        unknown = unknown_name("dataset", name, read.sound)
        own = "Your own cards are read from ./cards, --cards or BENCHMD_CARDS."
        raise BenchmdError(f"{unknown} {own}")
    return read[name]


@functools.cache
def code_classes(table: str, dataset: str | None = None) -> dict[str, str]:
    """Class of each code in a file of `data_catalog/tables`, empty where a code has none.

    With `dataset`, only its rows of a table with that column.
    """
    rows = _code_rows(table)
    return {r["code"]: r["class"] for r in rows if dataset is None or r["dataset"] == dataset}


@functools.cache
def code_kinds(table: str) -> dict[str, frozenset[str]]:
    """Kinds of each code, by the column ``kind`` of a file of `data_catalog/tables`."""
    return {r["code"]: frozenset(r["kind"].split()) for r in _code_rows(table)}


def _code_rows(table: str) -> list[dict[str, str]]:
    path = resource_folder("data_catalog") / "tables" / table
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
