"""Tasks: what is predicted of a signal, and what is scored as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import FieldError, shown

TaskKind = Literal["single-label", "multi-label", "ordinal"]

EXCLUSIVE = ("single-label", "ordinal")
"""Kinds of task in which a record is of exactly one class."""
UNKNOWN = -1
"""Target value of a class that is not known; it is masked in losses and metrics."""


@dataclass(frozen=True)
class Target:
    """What a catalog holds of the truth of a record."""

    shape: tuple[int, ...]
    """Of one record; a value for each class."""
    dtype: Literal["int8"]
    exclusive: bool
    """Whether exactly one class is positive."""

    def fault(self, values: npt.NDArray[Any]) -> str | None:
        """What is wrong with the targets of some records, None when nothing is.

        Args:
            values: (records, *shape).
        """
        if values.shape[1:] != self.shape or not np.isin(values, (UNKNOWN, 0, 1)).all():
            return f"its targets are others than 1, 0 and -1 for each of {self.shape[0]} classes"
        if self.exclusive and not ((values == 1).sum(axis=1) == 1).all():
            return "a target is not positive in exactly one class"
        return None


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
            FieldError: There are too few, or one is there twice.
        """
        least = 2 if self.exclusive else 1
        if len(self.classes) < least or not all(self.classes):
            raise FieldError(
                "classes",
                f"a {self.kind} task has the classes {shown(self.classes)}: expected {least} or "
                "more, each with a name.",
            )
        twice = {name for name in self.classes if self.classes.count(name) > 1}
        if twice:
            name = shown(min(twice))
            raise FieldError("classes", f"a task has the class {name} twice: name it once.")

    @property
    def exclusive(self) -> bool:
        """Whether a record is of exactly one class."""
        return self.kind in EXCLUSIVE

    def target(self, classes: Sequence[str]) -> Target:
        """What catalogs hold of the truth, for these classes: its own, or those that merge them."""
        return Target((len(classes),), "int8", self.exclusive)
