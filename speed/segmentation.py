r"""``PYTHONPATH=FOLDER python -m speed.segmentation`` from the project's root.

Scores of one segmented case, in cases a second on one thread: ours, from two label maps, against
plain loops over the classes, each given the whole masks. MONAI's gives Dice and surface Dice by
subvoxel elements, surface-distance's also HD95, as ours does. Before anything is timed all must
agree to `AGREEMENT`.

surface-distance is not a dependency: FOLDER is where ``python -m pip install --no-deps --target
FOLDER surface-distance==0.1`` put it. Without it there is no such peer.

The case is drawn: nine bodies of about the volumes and places of abdominal organs, with bumps, and
a prediction that is shifted by two voxels. ``--labels FILE`` takes a label map of TotalSegmentator,
enlarged to ``--shape``.

``--memory`` times nothing: it gives the peak of resident memory that scoring takes beyond the two
label maps, in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.metrics import compute_dice, compute_surface_dice
from scipy import ndimage

from benchmd_ray.benchmarks.touchstone.masks import read_labels
from benchmd_ray.benchmarks.touchstone.tasks import task_named
from benchmd_ray.scores.overlap import of_labels
from benchmd_ray.scores.segmentation import scored
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
    own = np.zeros(256, np.uint8)
    own[[ids[name] for name in task.classes]] = range(1, CLASSES + 1)
    scale = [wanted / given for wanted, given in zip(shape, values.shape, strict=True)]
    return np.asarray(ndimage.zoom(own[values], scale, order=0), np.uint8)


class Case:
    """A reference and a prediction, and all ways to score them."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        """Draw or read it."""
        shape = tuple(chosen.shape)
        self.spacing, self.tolerance = tuple(chosen.spacing), chosen.tolerance
        self.reference = enlarged(chosen.labels, shape) if chosen.labels else drawn(shape)
        self.prediction = np.roll(self.reference, (SHIFT, SHIFT), axis=(1, 2))
        self.there = [n for n in range(1, CLASSES + 1) if (self.reference == n).any()]

    def ours(self) -> Scores:
        """(classes, 3): Dice, surface Dice, HD95; classes that the reference has."""
        ids = {number: number - 1 for number in range(1, CLASSES + 1)}
        sides = (self.reference, self.prediction)
        reference, prediction = (of_labels(each, ids, CLASSES) for each in sides)
        own = scored(reference, prediction, self.spacing, [self.tolerance] * CLASSES)
        return np.array([(own[n - 1].dsc, own[n - 1].nsd, own[n - 1].hd95) for n in self.there])

    def monai(self) -> Scores:
        """The same without HD95: its own is of voxels."""
        found = []
        for number in self.there:
            own, other = (
                torch.from_numpy(each == number)[None, None]
                for each in (self.reference, self.prediction)
            )
            dice = compute_dice(other, own, include_background=True)
            near = compute_surface_dice(
                other, own, [self.tolerance], True, spacing=self.spacing, use_subvoxels=True
            )
            found.append((float(dice), float(near), np.nan))
        return np.array(found)

    def surface_distance(self) -> Scores:
        """The same by the package surface-distance."""
        from surface_distance import (
            compute_dice_coefficient,
            compute_robust_hausdorff,
            compute_surface_dice_at_tolerance,
            compute_surface_distances,
        )

        found = []
        for number in self.there:
            own, other = self.reference == number, self.prediction == number
            apart = compute_surface_distances(own, other, self.spacing)
            found.append(
                (
                    compute_dice_coefficient(own, other),
                    compute_surface_dice_at_tolerance(apart, self.tolerance),
                    compute_robust_hausdorff(apart, 95),
                )
            )
        return np.array(found)

    def tasks(self) -> dict[str, Callable[[], Scores]]:
        """What is timed."""
        found = {"ours": self.ours, "monai": self.monai}
        if importlib.util.find_spec("surface_distance"):
            found["surface_distance"] = self.surface_distance
        else:
            sys.stderr.write(MISSING)
        return found


def differences(tasks: dict[str, Callable[[], Scores]]) -> dict[str, float]:
    """The largest difference of each peer's scores from ours.

    Raises:
        SystemExit: One is above `AGREEMENT`.
    """
    own = tasks["ours"]()
    found = {
        name: float(np.nanmax(np.abs(task() - own)))
        for name, task in tasks.items()
        if name != "ours"
    }
    if max(found.values()) > AGREEMENT:
        raise SystemExit(f"Scores differ by more than {AGREEMENT:g}: {found}")
    return found


def timed(chosen: argparse.Namespace) -> None:
    """Check, time, and print."""
    case = Case(chosen)
    tasks = case.tasks()
    apart = differences(tasks)
    seconds = measure.alternating(tasks, repetitions=chosen.repetitions, warm_up=chosen.warm_up)
    ratios = {name: measure.ratio(seconds, "ours", name) for name in apart}
    measure.report(
        "segmentation",
        chosen,
        seconds,
        units=1,
        unit="cases/s",
        ours="ours",
        peer="monai",
        ratios=ratios,
        largest_differences=apart,
        foreground_voxels=int((case.reference > 0).sum()),
        classes=len(case.there),
        wall_seconds={name: measure.spread(values) for name, values in seconds.items()},
    )


def memory_of(chosen: argparse.Namespace) -> dict[str, float]:
    """MiB that scoring a case takes, at most, beyond its label maps; in a process of its own."""
    case = Case(chosen)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _resident("VmRSS")
    case.ours()
    own = case.reference.nbytes + case.prediction.nbytes
    figures = {"label_maps_mib": own / 2**20, "before_mib": before, "peak_mib": _resident("VmHWM")}
    figures["over_label_maps_mib"] = figures["peak_mib"] - before
    return {name: measure.rounded(value) for name, value in figures.items()}


def _resident(name: str) -> float:
    """MiB of this process, by a line of its status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def memory(chosen: argparse.Namespace) -> None:
    """Measure and print."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        found = process.submit(partial(memory_of, chosen)).result()
    used: dict[str, Any] = {key: getattr(chosen, key) for key in ("shape", "spacing", "threads")}
    result = {
        "benchmark": "segmentation",
        "settings": used,
        "machine": measure.machine(),
        "memory": found,
    }
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    options.add_argument("--shape", type=int, nargs=3, default=[300, 512, 512], help="z, y, x")
    options.add_argument("--spacing", type=float, nargs=3, default=[1.5, 0.75, 0.75], help="mm")
    options.add_argument("--tolerance", type=float, default=2.0, help="mm (2)")
    options.add_argument("--labels", type=Path, help="a label map of TotalSegmentator, enlarged")
    options.add_argument("--memory", action="store_true", help="memory instead of time")
    options.set_defaults(repetitions=3, warm_up=0, threads=1)  # the comparison of the scores warms
    chosen = measure.parsed(options, arguments)
    if min(chosen.shape) < 16 or min(chosen.spacing) <= 0 or chosen.tolerance <= 0:
        options.error("--shape has to be 16 or more, --spacing and --tolerance above 0")
    memory(chosen) if chosen.memory else timed(chosen)


if __name__ == "__main__":
    main()
