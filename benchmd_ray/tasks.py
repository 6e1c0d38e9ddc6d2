"""Tasks: what is predicted of a signal, and what is scored as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmd_ray.errors import BenchmdError, shown

TaskKind = Literal["single-label", "multi-label", "ordinal"]

EXCLUSIVE = ("single-label", "ordinal")
"""Kinds of task in which a record is of exactly one class."""
UNKNOWN = -1
"""Target value of a class that is not known; it is masked in losses and metrics."""


@dataclass(frozen=True)
class Task:
    """What is predicted."""

    kind: TaskKind
    """One of the classes; any of the labels; or one of classes that have an order."""
    classes: tuple[str, ...]
    """Class (or label) names in the order of targets, scores and tables; ordinal: ascending."""
    scored: str = "records"
    """What is scored, each as one: records, or the scans that windows were cut from."""

    def __post_init__(self) -> None:
        """Refuse classes that cannot be told apart.

        Raises:
            BenchmdError: There are too few, or one is there twice.
        """
        least = 2 if self.exclusive else 1
        if len(self.classes) < least or not all(self.classes):
            raise BenchmdError(
                f"a {self.kind} task has the classes {shown(self.classes)}: expected {least} or "
                "more, each with a name."
            )
        twice = {name for name in self.classes if self.classes.count(name) > 1}
        if twice:
            raise BenchmdError(f"a task has the class {shown(min(twice))} twice: name it once.")

    @property
    def exclusive(self) -> bool:
        """Whether a record is of exactly one class."""
        return self.kind in EXCLUSIVE
