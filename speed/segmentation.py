r"""``PYTHONPATH=FOLDER python -m speed.segmentation`` from the project's root.

Scores of one segmented case, in cases a second on one thread: ours, from two label maps, against
plain loops over the classes, each given the whole masks. MONAI's gives Dice and surface Dice by
subvoxel elements, surface-distance's also HD95, as ours does. Before anything is timed all must
agree to `AGREEMENT`.

surface-distance is not a dependency: FOLDER is where ``python -m pip install --no-deps --target
FOLDER surface-distance==0.1`` put it. Without it only MONAI is compared.

The case is drawn: nine bodies of about the volumes and places of abdominal organs, with bumps, and
a prediction that is shifted by two voxels. ``--labels FILE`` takes a label map of TotalSegmentator,
enlarged to ``--shape``.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from monai.metrics import compute_dice, compute_surface_dice
from scipy import ndimage

from benchmd_ray.benchmarks.touchstone.masks import read_labels
from benchmd_ray.benchmarks.touchstone.tasks import task_named
from benchmd_ray.scores.segmentation import of_labels, scored
from speed import measure

Labels = npt.NDArray[np.uint8]
Scores = npt.NDArray[np.float64]
AGREEMENT = 1e-4
SHIFT = 2
"""Voxels, along x and y."""
CLASSES = 9
BODIES = (
    ((0.55, 0.45, 0.80), (0.15, 0.08, 0.07)),
    ((0.50, 0.60, 0.28), (0.17, 0.06, 0.06)),
    ((0.50, 0.60, 0.68), (0.17, 0.06, 0.06)),
    ((0.60, 0.42, 0.28), (0.24, 0.17, 0.15)),
    ((0.52, 0.36, 0.32), (0.09, 0.04, 0.03)),
    ((0.60, 0.36, 0.62), (0.19, 0.08, 0.11)),
    ((0.50, 0.56, 0.52), (0.48, 0.03, 0.03)),
    ((0.50, 0.55, 0.45), (0.48, 0.03, 0.03)),
    ((0.52, 0.46, 0.50), (0.08, 0.03, 0.13)),
)
"""Centre and half axes along z, y and x, as shares of the volume."""
MISSING = (
    "surface-distance is not installed: `python -m pip install --no-deps --target FOLDER "
    "surface-distance==0.1` and PYTHONPATH=FOLDER; only MONAI is compared.\n"
)
DECLARED = {
    "shape": ((300, 512, 512), "z, y, x"),
    "spacing": ((1.5, 0.75, 0.75), "mm"),
    "tolerance": (2.0, "mm"),
    "labels": (Path, "a label map of TotalSegmentator, enlarged"),
}


def drawn(shape: tuple[int, int, int]) -> Labels:
    """A label map, (z, y, x)."""
    labels = np.zeros(shape, np.uint8)
    y, x = (np.linspace(0, 1, n, dtype=np.float32) for n in shape[1:])
    for z in range(shape[0]):
        for number, (centre, axes) in enumerate(BODIES, 1):
            up = (z / shape[0] - centre[0]) / axes[0]
            if abs(up) >= 1:
                continue
            across = ((y[:, None] - centre[1]) / axes[1]) ** 2 + ((x - centre[2]) / axes[2]) ** 2
            bumps = 0.1 * np.sin(40 * x + number) * np.cos(35 * y[:, None] + 9 * up)
            labels[z][across + up**2 + bumps < 1] = number
    return labels


def enlarged(path: Path, shape: tuple[int, int, int]) -> Labels:
    """A label map of TotalSegmentator, its nine organs, on a larger grid."""
    task = task_named("abdomen9")
    ids = task.layouts["totalsegmentator"].ids
    values = read_labels(path).values.astype(np.uint8)
    numbers = np.zeros(256, np.uint8)
    numbers[[ids[name] for name in task.classes]] = range(1, CLASSES + 1)
    scale = [target / size for target, size in zip(shape, values.shape, strict=True)]
    return np.asarray(ndimage.zoom(numbers[values], scale, order=0), np.uint8)


class Case:
    """A reference and a prediction, and all ways to score them: (classes, 3).

    The scores are Dice, surface Dice and HD95, of the classes that the reference has.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        """Draw or read it."""
        shape = tuple(options.shape)
        self.spacing, self.tolerance = tuple(options.spacing), options.tolerance
        self.reference = enlarged(options.labels, shape) if options.labels else drawn(shape)
        self.prediction = np.roll(self.reference, (SHIFT, SHIFT), axis=(1, 2))
        self.present = [n for n in range(1, CLASSES + 1) if (self.reference == n).any()]

    def ours(self) -> Scores:
        """From both label maps at once."""
        ids = {number: number - 1 for number in range(1, CLASSES + 1)}
        sides = (self.reference, self.prediction)
        reference, prediction = (of_labels(labels, ids, CLASSES) for labels in sides)
        scores = scored(reference, prediction, self.spacing, [self.tolerance] * CLASSES)
        of_present = (scores[number - 1] for number in self.present)
        return np.array([(score.dsc, score.nsd, score.hd95) for score in of_present])

    def monai(self) -> Scores:
        """Class by class, without HD95: MONAI's is of voxels."""
        scores = []
        for number in self.present:
            sides = (self.reference, self.prediction)
            reference, prediction = (torch.from_numpy(s == number)[None, None] for s in sides)
            dice = compute_dice(prediction, reference, include_background=True)
            surface = compute_surface_dice(
                *(prediction, reference, [self.tolerance], True),
                spacing=self.spacing,
                use_subvoxels=True,
            )
            scores.append((float(dice), float(surface), np.nan))
        return np.array(scores)

    def surface_distance(self) -> Scores:
        """Class by class, by the package surface-distance."""
        import surface_distance as package

        scores = []
        for number in self.present:
            reference, prediction = self.reference == number, self.prediction == number
            distances = package.compute_surface_distances(reference, prediction, self.spacing)
            dice = package.compute_dice_coefficient(reference, prediction)
            surface = package.compute_surface_dice_at_tolerance(distances, self.tolerance)
            scores.append((dice, surface, package.compute_robust_hausdorff(distances, 95)))
        return np.array(scores)


def largest_differences(tasks: dict[str, Callable[[], Scores]]) -> dict[str, float]:
    """The largest difference of each peer's scores from ours.

    Raises:
        SystemExit: One is above `AGREEMENT`.
    """
    ours, *peers = ((name, task()) for name, task in tasks.items())
    differences = {name: float(np.nanmax(np.abs(scores - ours[1]))) for name, scores in peers}
    if max(differences.values()) > AGREEMENT:
        raise SystemExit(f"Scores differ by more than {AGREEMENT:g}: {differences}")
    return differences


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, repetitions=3, warm_up=0, threads=1)
    if min(options.shape) < 16 or min(options.spacing) <= 0:
        raise SystemExit("--shape has to be 16 or more, and --spacing above 0.")
    case = Case(options)
    tasks = {"ours": case.ours, "monai": case.monai}
    if importlib.util.find_spec("surface_distance"):
        tasks["surface_distance"] = case.surface_distance
    else:
        sys.stderr.write(MISSING)
    differences = largest_differences(tasks)
    seconds = measure.alternating(options, tasks)
    measure.report(
        "segmentation",
        options,
        seconds,
        unit="cases/s",
        units=1,
        ratios={name: measure.ratio(seconds, "ours", name) for name in differences},
        largest_differences=differences,
        foreground_voxels=int((case.reference > 0).sum()),
        classes=len(case.present),
    )


if __name__ == "__main__":
    main()
