"""Score runs and released scores as algorithms to compare, with the masks of runs for pictures."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.touchstone.cases import Manifest, read_manifest, read_scored
from benchmd_ray.benchmarks.touchstone.imported import (
    Algorithm,
    algorithms,
    read_csv_folder,
)
from benchmd_ray.benchmarks.touchstone.joining import AlgorithmScores, Masks, Scores, joined
from benchmd_ray.benchmarks.touchstone.layouts import IMAGES, Files, cases_of
from benchmd_ray.benchmarks.touchstone.masks import (
    SUFFIXES,
    Geometry,
    Labels,
    read_labels,
    resampled,
)
from benchmd_ray.benchmarks.touchstone.tasks import task_named
from benchmd_ray.benchmarks.touchstone.two_sets import Means, read_means
from benchmd_ray.data.records import RecordError
from benchmd_ray.errors import BenchmdError, count_of

T = TypeVar("T", bound=np.generic)
SAME_VOLUME = 1e-3
"""Share by which a volume that is read may differ from the one that was scored."""


def read_scores(runs: Sequence[Path], folder: Path | None = None) -> Scores:
    """The scores of runs, or those of a folder of released CSVs.

    Raises:
        BenchmdError: Neither or both are given, or they cannot be read or compared.
    """
    if bool(runs) == (folder is not None):
        raise BenchmdError(
            "name folders of `benchmd segment score`, or a folder of released CSVs (--scores): "
            "their NSD are not computed alike, so one of the two."
        )
    if folder is not None:
        return joined(read_csv_folder(folder))
    manifests = [(run, read_manifest(run)) for run in runs]
    first, own = manifests[0]
    for run, manifest in manifests:
        if manifest.scorer != own.scorer:
            raise BenchmdError(
                f"{first} and {run} were scored by two versions of the scorer: score one again."
            )
    return joined([scores_of(run, manifest) for run, manifest in manifests])


def read_against(path: Path) -> Scores | Mapping[tuple[str, str], Means]:
    """Another test set: released CSVs, a score run, or published means.

    Raises:
        BenchmdError: It is none of these.
    """
    if path.is_file():
        return read_means(path)
    if (path / "manifest.json").is_file():
        return read_scores([path])
    return read_scores((), path)


def scores_of(run: Path, manifest: Manifest) -> AlgorithmScores:
    """The scores of a run."""
    rows = read_scored(run)
    card = algorithms().get(manifest.algorithm, Algorithm(manifest.algorithm))
    places = zip(rows["case"], rows["class"], strict=True)
    both = rows[["volume_ref_ml", "volume_pred_ml"]].to_numpy(np.float64).tolist()
    volumes = {place: (one, other) for place, (one, other) in zip(places, both, strict=True)}

    def masks(case: str, name: str) -> Masks:
        return read_masks(manifest, case, name, volumes[case, name])

    return AlgorithmScores(
        manifest.algorithm,
        str(run),
        manifest.task,
        manifest.classes,
        rows,
        card.pretrained_on,
        tuple(_without_scores(manifest)),
        masks,
    )


def _without_scores(manifest: Manifest) -> Iterator[str]:
    """Notes on cases that count neither for nor against an algorithm."""
    for count, why in (
        (manifest.quarantined, "quarantined, as a file is broken or does not fit"),
        (len(manifest.unpredicted), "without a prediction"),
        (len(manifest.unreferenced), "without a reference"),
    ):
        if count:
            yield (
                f"{manifest.algorithm}: {count_of(count, 'case')} {why}: no score, so that they "
                "are not among the common cases and do not count against it."
            )


def read_image(folder: Path, case: str) -> npt.NDArray[np.float64] | None:
    """The image of a case, axes to head, back and left; None where there is none.

    Args:
        folder: With files named by their cases, or folders with an image (`layouts.IMAGES`).
        case: Its name.
    """
    names = [case, *(f"{case}/{name}" for name in IMAGES), f"{case}_0000"]
    paths = [folder / f"{name}{suffix}" for name in names for suffix in SUFFIXES]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    try:
        image = read_labels(path)
    except (RecordError, OSError) as error:
        raise BenchmdError(f"{path} cannot be drawn: {error}.") from error
    return _upright(np.asarray(image.values, np.float64), image.geometry)


def read_masks(manifest: Manifest, case: str, name: str, volumes: tuple[float, float]) -> Masks:
    """Reference and prediction of a class, on the reference's grid, axes to head, back and left.

    Args:
        manifest: Of the run.
        case: Its name.
        name: Of the class.
        volumes: mL of both when they were scored. They say which layout a file has, and that it is
            the one that was scored.

    Raises:
        BenchmdError: A file cannot be read, or is not what was scored.
    """
    reference = _read(Path(manifest.labels), manifest.task, case, name, volumes[0], None)
    grid = reference.geometry
    prediction = _read(Path(manifest.predictions), manifest.task, case, name, volumes[1], grid)
    turned = [
        _upright(np.asarray(one.values != 0, np.bool_), grid) for one in (reference, prediction)
    ]
    spacing = np.array(grid.spacing)[list(_order(grid))]
    z, y, x = map(float, spacing)
    return Masks(turned[0], turned[1], (z, y, x))


def _read(
    folder: Path, task: str, case: str, name: str, volume: float, grid: Geometry | None
) -> Labels:
    """One class of a case, 0 and 1."""
    own = task_named(task)
    files = _cases(folder, task).get(case)
    if files is None or files.fault:
        raise BenchmdError(f"{folder}: the case {case} is not there any more.")
    path = Path(files.masks.get(name, files.labels))
    try:
        labels = read_labels(path)
        if grid is not None and labels.geometry.differences(grid):
            labels = resampled(labels, grid)
    except (RecordError, OSError) as error:
        raise BenchmdError(f"{path} cannot be drawn: {error}.") from error
    ids = [0] if files.masks else [one.ids[name] for one in own.layouts.values() if one.ids]
    for label in ids:
        values = labels.values == label if label else labels.values != 0
        found = float(np.count_nonzero(values)) * labels.geometry.voxel_ml
        if abs(found - volume) <= SAME_VOLUME * max(found, volume):
            return Labels(values.astype(np.uint8), labels.geometry)
    raise BenchmdError(f"{path} is not what was scored: score it again for pictures.")


@functools.lru_cache(maxsize=64)
def _cases(folder: Path, task: str) -> dict[str, Files]:
    return cases_of(folder, task_named(task))


def _order(grid: Geometry) -> tuple[int, int, int]:
    """The file's axis that is nearest to the patient's z, y and x."""
    columns = np.abs(np.array(grid.direction).reshape(3, 3))
    along = [2 - int(np.argmax(columns[axis])) for axis in (2, 1, 0)]
    return (along[0], along[1], along[2]) if len(set(along)) == 3 else (0, 1, 2)


def _upright(values: npt.NDArray[T], grid: Geometry) -> npt.NDArray[T]:
    """(z, y, x), ascending to the patient's head, back and left."""
    order = _order(grid)
    matrix = np.array(grid.direction).reshape(3, 3)
    signs = [matrix[2 - place, 2 - axis] for place, axis in enumerate(order)]
    return values.transpose(order)[tuple(slice(None, None, -1 if s < 0 else 1) for s in signs)]
