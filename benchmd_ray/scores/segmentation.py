"""Scores of one segmented case against its reference, class by class.

A structure that neither has costs nothing; one that only the reference has scores 0 and an infinite
distance; for one that only the prediction has there is no overlap to state, but its volume.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmd_ray.scores.dice import PREDICTED, REFERENCE, Presence, dice, presence
from benchmd_ray.scores.overlap import Box, Segmentation, voxels
from benchmd_ray.scores.surfaces import distances, surface

PERCENT = 95.0
"""Of the Hausdorff distance."""


@dataclass(frozen=True)
class ClassScores:
    """Of one class in one case."""

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
