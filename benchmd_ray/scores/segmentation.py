"""Scores of one segmented case against its reference, class by class.

A structure absent from both is not scored. One that is only in the reference scores 0 with an
infinite distance. One that is only in the prediction has no overlap, but its volume is reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from benchmd_ray.scores.dice import BOTH, PREDICTED, REFERENCE, Presence, dice, presence
from benchmd_ray.scores.surfaces import distances, surface

Box = tuple[slice, slice, slice]
Kinds = npt.NDArray[np.unsignedinteger[Any]]
BLOCK = 2**22
"""Voxels that are counted at a time: more would need more memory, fewer more time."""
MOST_KINDS = 2**12
"""Most different sets of classes among the voxels of one segmentation; nine organs have 512."""


@dataclass(frozen=True)
class Segmentation:
    """Classes of voxels; masks may overlap, so that a voxel may have several classes."""

    kinds: Kinds
    """(z, y, x) uint8 or uint16: row of `members`; 0 is background."""
    members: npt.NDArray[np.bool_]
    """(kinds, classes): the classes of a voxel of each kind; row 0 has none."""

    @property
    def overlapping(self) -> int:
        """Voxels with more than one class."""
        several = np.flatnonzero(self.members.sum(axis=1) > 1)
        if not len(several):
            return 0
        return int(np.isin(self.kinds, several.astype(self.kinds.dtype)).sum())

    def mask(self, number: int, box: Box) -> npt.NDArray[np.bool_]:
        """Where a class is, within a box."""
        return np.take(self.members[:, number], self.kinds[box])

    def boxes(self) -> list[Box | None]:
        """The smallest box around each class; None where it is empty."""
        whole = _foreground(self.kinds)
        if whole is None:
            return [None] * self.members.shape[1]
        kind_boxes: list[Box | None] = ndimage.find_objects(
            self.kinds[whole], max_label=len(self.members) - 1
        )
        around = []
        for number in range(self.members.shape[1]):
            class_boxes = [kind_boxes[kind - 1] for kind in np.flatnonzero(self.members[:, number])]
            around.append(_union([box for box in class_boxes if box is not None], whole))
        return around


def of_labels(labels: Kinds, ids: Mapping[int, int], classes: int) -> Segmentation:
    """A segmentation of one label map (z, y, x), of whole numbers up to 65,535.

    ``ids`` gives the class of each label; voxels of other labels are background.
    """
    members = np.zeros((classes + 1, classes), bool)
    members[np.arange(1, classes + 1), np.arange(classes)] = True
    table = np.zeros(max(int(labels.max(initial=0)), *ids) + 1, _dtype(classes + 1))
    for label, number in ids.items():
        table[label] = number + 1
    kinds = np.empty_like(labels, table.dtype)
    for number, part in enumerate(labels):  # indices are held as int64
        kinds[number] = np.take(table, part)
    return Segmentation(kinds, members)


class Masks:
    """A segmentation from binary masks, one after the other."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        self._kinds: Kinds = np.zeros(shape, np.uint8)
        self._sets: dict[frozenset[int], int] = {frozenset(): 0}
        self._classes = classes

    def add(self, number: int, mask: npt.NDArray[np.bool_]) -> None:
        """Add the mask of a class, (z, y, x).

        Raises:
            ValueError: Voxels have more than `MOST_KINDS` different sets of classes.
        """
        here = self._kinds[mask]
        kinds = np.flatnonzero(np.bincount(here, minlength=1))
        sets = {kind: members for members, kind in self._sets.items()}
        table = np.zeros(len(sets), np.int64)
        for kind in map(int, kinds):
            with_it = sets[kind] | {number}
            table[kind] = self._sets.setdefault(with_it, len(self._sets))
        if len(self._sets) > MOST_KINDS:
            raise ValueError(f"masks overlap in more than {MOST_KINDS:,} ways")
        wanted = _dtype(len(self._sets))
        if self._kinds.dtype != wanted:
            self._kinds = self._kinds.astype(wanted)
        self._kinds[mask] = table[here]

    def segmentation(self) -> Segmentation:
        members = np.zeros((len(self._sets), self._classes), bool)
        for members_of_kind, kind in self._sets.items():
            members[kind, list(members_of_kind)] = True
        return Segmentation(self._kinds, members)


def voxels(reference: Segmentation, prediction: Segmentation) -> npt.NDArray[np.int64]:
    """Voxels of each class: (classes, 3), as `scores.dice` takes them.

    Raises:
        ValueError: They are of different shapes or numbers of classes.
    """
    first, second = reference.members.astype(np.int64), prediction.members.astype(np.int64)
    if reference.kinds.shape != prediction.kinds.shape or first.shape[1] != second.shape[1]:
        raise ValueError("segmentations of different shapes or classes cannot be compared")
    joint = joint_histogram(reference.kinds, prediction.kinds, len(first), len(second))
    counts = np.empty((first.shape[1], 3), np.int64)
    counts[:, BOTH] = np.einsum("kl,kc,lc->c", joint, first, second)
    counts[:, PREDICTED] = joint.sum(axis=0) @ second
    counts[:, REFERENCE] = joint.sum(axis=1) @ first
    return counts


def joint_histogram(first: Kinds, second: Kinds, rows: int, columns: int) -> npt.NDArray[np.int64]:
    """(rows, columns): number of voxels with each pair of values, counted in blocks."""
    left, right = first.reshape(-1), second.reshape(-1)
    joint = np.zeros(rows * columns, np.int64)
    for start in range(0, left.size, BLOCK):
        left_block, right_block = left[start : start + BLOCK], right[start : start + BLOCK]
        some = np.flatnonzero(left_block | right_block)
        joint[0] += left_block.size - some.size
        # In 64 bits: a product in those of the labels would wrap around.
        pairs = left_block[some].astype(np.int64) * columns + right_block[some]
        joint += np.bincount(pairs, minlength=joint.size)
    return joint.reshape(rows, columns)


def _dtype(kinds: int) -> type[np.unsignedinteger[Any]]:
    return np.uint8 if kinds <= 2**8 else np.uint16


def _foreground(kinds: Kinds) -> Box | None:
    """The box around all that is not background."""
    if not kinds.size:
        return None
    plane = np.bitwise_or.reduce(kinds, axis=0) > 0
    along = (
        np.array([bool(part.any()) for part in kinds]),
        plane.any(axis=1),
        plane.any(axis=0),
    )
    if not along[0].any():
        return None
    ends = [np.flatnonzero(axis)[[0, -1]] for axis in along]
    z, y, x = (slice(int(first), int(last) + 1) for first, last in ends)
    return z, y, x


def _union(boxes: list[Box], within: Box) -> Box | None:
    """The box around several boxes, which are relative to ``within``."""
    if not boxes:
        return None
    z, y, x = (
        slice(
            within[axis].start + min(box[axis].start for box in boxes),
            within[axis].start + max(box[axis].stop for box in boxes),
        )
        for axis in range(3)
    )
    return z, y, x


PERCENT = 95.0


@dataclass(frozen=True)
class ClassScores:
    dsc: float
    """0 to 1; NaN where the reference is empty."""
    nsd: float
    """0 to 1, by area within the tolerance; NaN likewise."""
    hd95: float
    """mm; infinite where the class is missed, NaN where the reference is empty."""
    volume_ref_ml: float
    volume_pred_ml: float
    code: Presence


def scored(
    reference: Segmentation,
    prediction: Segmentation,
    spacing: Sequence[float],
    tolerances: Sequence[float],
) -> list[ClassScores]:
    """Scores of all classes of two segmentations on one grid.

    Spacing is in mm along (z, y, x), tolerances are in mm, one for each class.

    Raises:
        ValueError: Both are of different shapes or numbers of classes.
    """
    counts = voxels(reference, prediction)
    overlap, codes = dice(counts).tolist(), presence(counts).tolist()
    boxes, predicted_boxes = reference.boxes(), prediction.boxes()
    volumes = counts * (math.prod(spacing) / 1000)
    scores = []
    for number, tolerance in enumerate(tolerances):
        box, predicted = boxes[number], predicted_boxes[number]
        nsd, hd95 = (0.0, math.inf) if box else (math.nan, math.nan)
        if box and predicted:
            apart = distances(
                surface(reference.mask(number, box), spacing, _start(box)),
                surface(prediction.mask(number, predicted), spacing, _start(predicted)),
                spacing,
            )
            nsd, hd95 = apart.surface_dice(tolerance), apart.hausdorff(PERCENT)
        scores.append(
            ClassScores(
                overlap[number],
                nsd,
                hd95,
                float(volumes[number, REFERENCE]),
                float(volumes[number, PREDICTED]),
                codes[number],
            )
        )
    return scores


def _start(box: Box) -> tuple[int, int, int]:
    return box[0].start, box[1].start, box[2].start
