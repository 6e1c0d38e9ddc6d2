"""Segmentation tasks: cards in the folder ``segmentation`` of card folders, or named by path."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from benchmd_ray.errors import BenchmdError, FieldError, require_plain_name, shown, unknown_name
from benchmd_ray.modality.card_folders import Cards, card_folders, read_cards, require_own_name
from benchmd_ray.schema.plain_yaml import read_yaml_file
from benchmd_ray.schema.typed import typed

FOLDER = "segmentation"
MEAN = "mean"
"""Name of the mean over classes where rows are by class; no class has it."""
CLASS = r"[A-Za-z0-9][\w.-]{0,99}"
"""What classes and files of masks are named like."""
LARGEST_LABEL = 2**16 - 1
MOST_CLASSES = 255


@dataclass(frozen=True)
class Tolerances:
    """Tolerance of surface Dice, in mm, by class."""

    default: float
    classes: dict[str, float] = field(default_factory=dict)
    """Of classes that have another."""


@dataclass(frozen=True)
class LabelLayout:
    """How somebody's files say which class a voxel has."""

    ids: dict[str, int] = field(default_factory=dict)
    """Label of each class in a file with all classes; empty where there are no such files."""
    names: dict[str, str] = field(default_factory=dict)
    """Names of classes in files of one class each, where they differ from the task's."""
    others: int = 0
    """Labels up to this one are of structures that the task excludes; 0: others are an error."""

    def __post_init__(self) -> None:
        if len(set(self.ids.values())) < len(self.ids):
            raise FieldError("ids", "two classes have the same label.")
        if not all(1 <= label <= LARGEST_LABEL for label in (*self.ids.values(), self.others or 1)):
            raise FieldError("ids", f"labels are whole numbers from 1 to {LARGEST_LABEL:,}.")


@dataclass(frozen=True)
class SegmentationTask:
    """What is segmented, and how it is scored."""

    name: str
    title: str
    classes: tuple[str, ...]
    """In the order of tables."""
    layouts: dict[str, LabelLayout]
    tolerance: float = 2.0
    """mm, of surface Dice, for all classes."""
    presets: dict[str, Tolerances] = field(default_factory=dict)
    """Other tolerances by name, such as those of other publications."""
    source: str = ""

    def __post_init__(self) -> None:
        require_plain_name("task", self.name)
        classes = set(self.classes)
        if not 1 <= len(classes) <= MOST_CLASSES or len(classes) < len(self.classes):
            raise FieldError("classes", f"expected 1 to {MOST_CLASSES} different classes.")
        for name in self.classes:
            if not re.fullmatch(CLASS, name) or name == MEAN:
                raise FieldError("classes", f"{shown(name)} names no file of a class's masks.")
        if not self.layouts:
            raise FieldError("layouts", "expected at least one.")
        meant = {name: name for name in self.classes}
        for name, layout in self.layouts.items():
            if layout.ids and layout.ids.keys() != classes:
                raise FieldError("layouts", f"{name}: ids are expected for all classes, or none.")
            _require_known(name, layout.names, classes)
            if not all(re.fullmatch(CLASS, alias_name) for alias_name in layout.names.values()):
                raise FieldError("layouts", f"{name}: a name is not that of a file.")
            for own_name, alias in layout.names.items():
                if (other := meant.setdefault(alias, own_name)) != own_name:
                    raise FieldError(
                        "layouts",
                        f"{name}: files named {alias} are of {own_name}, and of {other} elsewhere "
                        "in this card: one name has one meaning.",
                    )
        for name, preset in self.presets.items():
            _require_known(name, preset.classes, classes)
        positive = [self.tolerance, *(p.default for p in self.presets.values())]
        positive += [value for p in self.presets.values() for value in p.classes.values()]
        if min(positive) <= 0:
            raise FieldError("tolerance", "tolerances are lengths above 0 mm.")

    def file_names(self) -> dict[str, str]:
        """Class of each name that a file of its masks may have, in any layout."""
        names = {name: name for name in self.classes}
        for layout in self.layouts.values():
            names |= {alias: name for name, alias in layout.names.items()}
        return names

    def tolerances(self, asked: str = "") -> dict[str, float]:
        """Tolerance of each class in mm, by a number or a preset's name; empty takes the card's."""
        if asked in self.presets:
            preset = self.presets[asked]
            return {name: preset.classes.get(name, preset.default) for name in self.classes}
        chosen = self.tolerance
        if asked:
            try:
                chosen = float(asked.removesuffix("mm"))
            except ValueError:
                presets = f"one of its presets: {', '.join(self.presets)}" if self.presets else ""
                raise BenchmdError(
                    f"the tolerance is {asked!r}, expected a number of mm{' or ' * bool(presets)}"
                    f"{presets or f', as {self.name} has no presets'}."
                ) from None
            if not 0 < chosen < float("inf"):
                raise BenchmdError(f"the tolerance is {asked}, expected a length above 0 mm.")
        return dict.fromkeys(self.classes, chosen)

    def layout(self, name: str) -> LabelLayout | None:
        """The layout of that name, or the only one; None for an empty name and several layouts."""
        if name and name not in self.layouts:
            raise unknown_name(f"layout of {self.name}", name, self.layouts)
        if not name and len(self.layouts) > 1:
            return None
        return self.layouts[name or next(iter(self.layouts))]


def _require_known(where: str, named: dict[str, str] | dict[str, float], classes: set[str]) -> None:
    if unknown := sorted(named.keys() - classes):
        raise FieldError("classes", f"{where} names {unknown[0]}, which is none of them.")


def tasks() -> Cards[SegmentationTask]:
    paths = [path for folder in card_folders() for path in sorted((folder / FOLDER).glob("*.yaml"))]
    return read_cards("segmentation task", paths, lambda path: {path.stem: read_task(path)})


def task_named(name: str) -> SegmentationTask:
    """The task of that name, or of the card at that path."""
    if name.endswith((".yaml", ".yml")):
        return read_task(Path(name))
    return tasks()[name]


def read_task(path: Path) -> SegmentationTask:
    """The task of a card.

    Raises:
        BenchmdError: It is broken.
    """
    where = f"the card {path}"
    content = read_yaml_file(path, where)
    task: SegmentationTask = typed(SegmentationTask, content, where)
    require_own_name(path, content, where)
    return task
