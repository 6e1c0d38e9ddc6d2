"""Tasks: what is predicted from a signal, and the unit that is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import FieldError, same_form, shown

TaskKind = Literal["single-label", "multi-label", "ordinal", "segmentation"]

EXCLUSIVE = ("single-label", "ordinal")
SEGMENTATION: Literal["segmentation"] = "segmentation"
UNKNOWN = -1
"""Target of a class with an unknown label; losses and metrics mask it."""
MOST_LABELS = 255
"""Most classes of a segmentation, including the background: masks are uint8."""


@dataclass(frozen=True)
class Target:
    """Form of the ground truth that a catalog stores with a record."""

    shape: tuple[int, ...]
    """(classes,), or for a mask (z, y, x)."""
    dtype: Literal["int8", "uint8"]
    exclusive: bool
    classes: int = 0
    """Number of labels of a mask, including the background; 0 if it is not a mask."""

    @property
    def is_mask(self) -> bool:
        """Whether it has a label for each voxel."""
        return self.classes > 0

    def present(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether records have each class; in a mask, in at least one voxel.

        ``values`` are (records, *shape), the result (records, classes).
        """
        if not self.is_mask:
            return np.asarray(values == 1)
        flat = values.reshape(len(values), -1)
        counts = [np.bincount(row, minlength=self.classes)[: self.classes] for row in flat]
        return np.reshape(counts, (len(values), self.classes)) > 0

    def fault(self, values: npt.NDArray[Any]) -> str | None:
        """What is wrong with targets (records, *shape); None if nothing is."""
        if self.is_mask:
            if values.shape[1:] != self.shape or values.dtype != np.dtype(self.dtype):
                return (
                    f"its mask is {values.dtype} of shape {values.shape[1:]}, expected "
                    f"{self.dtype} of shape {self.shape}"
                )
            most = int(values.max(initial=0))
            wrong = f"its mask has the label {most}, expected 0 to {self.classes - 1}"
            return wrong if most >= self.classes else None
        if values.shape[1:] != self.shape or not np.isin(values, (UNKNOWN, 0, 1)).all():
            return f"its targets are not 1, 0 or -1 for each of {self.shape[0]} classes"
        if self.exclusive and not ((values == 1).sum(axis=1) == 1).all():
            return "a target is not positive in exactly one class"
        return None


@dataclass(frozen=True)
class Task:
    kind: TaskKind
    """Exactly one class, any of the labels, one of ordered classes, or one class per voxel.
    """
    classes: tuple[str, ...]
    """Names in the order of targets, scores and tables; for ordinal tasks ascending; for
    segmentation in the order of the masks' labels, background first.
    """
    scored: str = "records"
    """The unit that is scored: records, or the scans that windows were cut from."""

    def __post_init__(self) -> None:
        """Raise `FieldError` for too few classes or a duplicate."""
        least = 2 if self.exclusive or self.segments else 1
        if self.segments and len(self.classes) > MOST_LABELS:
            raise FieldError(
                "classes",
                f"a segmentation has {len(self.classes)} classes, expected {MOST_LABELS} or fewer.",
            )
        if len(self.classes) < least or not all(self.classes):
            raise FieldError(
                "classes",
                f"a {self.kind} task has the classes {shown(self.classes)}: expected {least} or "
                "more, each with a name.",
            )
        twice = {name for name in self.classes if self.classes.count(name) > 1}
        if twice:
            name = min(twice)
            raise FieldError(
                "classes",
                f"a task has the class {shown(name)} twice{same_form(name)}: name it once.",
            )

    @property
    def exclusive(self) -> bool:
        """Whether a record has exactly one class."""
        return self.kind in EXCLUSIVE

    @property
    def segments(self) -> bool:
        """Whether each voxel has a class."""
        return self.kind == SEGMENTATION

    @property
    def foreground(self) -> tuple[str, ...]:
        """Classes that are scored: all, for segmentation without the background."""
        return self.classes[1:] if self.segments else self.classes

    @property
    def selected_by(self) -> str:
        """Validation score that selects the best epoch."""
        return "dsc" if self.segments else "auroc"

    def target(self, classes: Sequence[str], extents: Sequence[int]) -> Target:
        """Form of the ground truth in catalogs.

        ``classes`` are the task's, or those that merge them; ``extents`` are the stored signal's
        without the channel.
        """
        if self.segments:
            return Target(tuple(extents), "uint8", exclusive=False, classes=len(classes))
        return Target((len(classes),), "int8", self.exclusive)
