"""Read and score one case in a separate process, which runs this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.touchstone.dicom_masks import (
    DicomSegments,
    contained,
    read_segments,
    spanning,
)
from benchmd_ray.benchmarks.touchstone.layouts import CaseFiles, files_from
from benchmd_ray.benchmarks.touchstone.masks import (
    DICOM,
    Labels,
    VoxelGrid,
    read_labels,
    resampled,
    suffix_of,
)
from benchmd_ray.benchmarks.touchstone.planes import Planes, cut, packed
from benchmd_ray.benchmarks.touchstone.tasks import LARGEST_LABEL, LabelLayout, SegmentationTask
from benchmd_ray.data.apart import begin, serve
from benchmd_ray.data.readers.nifti import whole_labels
from benchmd_ray.data.records import RecordError
from benchmd_ray.errors import shown
from benchmd_ray.schema.typed import typed
from benchmd_ray.scores.segmentation import Kinds, Masks, Segmentation, of_labels, scored

SIDES = ("reference", "prediction")
RESAMPLE = "--resample puts it on the reference's grid by nearest neighbours"
Bits = npt.NDArray[np.bool_]


@dataclass
class Notes:
    """What is unusual about a case and no reason to refuse it."""

    overlapping: int = 0
    """Voxels of the prediction with more than one class; each class is scored from its own mask."""
    ignored: list[int] = field(default_factory=list)
    """Labels of structures that the task excludes."""
    resampled: bool = False
    without_segment: list[str] = field(default_factory=list)
    """Classes that a DICOM segmentation has no segment of, so that they are empty there, and the
    segments that are of no class."""
    warnings: list[str] = field(default_factory=list)
    """What is unusual about the files, such as an sform and a qform that differ."""


@dataclass(frozen=True)
class Source:
    """One side of a case: where its voxels are, and what they say on a grid."""

    geometry: VoxelGrid
    on: Callable[[VoxelGrid], Segmentation]
    sparse: bool = False
    """Whether slices without any class may be absent."""


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Score a case, or cut planes of it for a picture.

    Args:
        request: ``task``, ``reference`` and ``prediction`` as plain values, the names of both
            ``layouts``, ``resample``; for scores ``tolerances`` by class, for planes the class to
            ``draw`` and the path of an ``image`` or nothing.

    Returns:
        ``rows`` by class and ``notes``; or `planes.packed`; or ``fault``, why there are none.
    """
    try:
        if "draw" in request:
            return packed(_drawn(request))
        rows, notes = score_case(request)
        return {"rows": rows, "notes": asdict(notes)}, b""
    except MemoryError:
        raise
    except RecordError as error:
        return {"fault": str(error)}, b""
    except OSError as error:
        return {"fault": f"a file cannot be opened: {error.strerror}"}, b""
    except Exception as error:  # a file may be broken in ways that no reader foresees
        return {"fault": f"{type(error).__name__}: {error}"}, b""


def score_case(request: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Notes]:
    """Scores of each class; `RecordError` where a file is unusable or the grids differ."""
    notes = Notes()
    task, reference, prediction, grid = _both(request, notes)
    begin(2)
    tolerances = [request["tolerances"][name] for name in task.classes]
    scores = scored(reference, prediction, grid.spacing, tolerances)
    rows = [
        {"class": name, "tolerance": tolerance, **asdict(score)}
        for name, tolerance, score in zip(task.classes, tolerances, scores, strict=True)
    ]
    return rows, notes


def _drawn(request: Mapping[str, Any]) -> Planes:
    task, reference, prediction, grid = _both(request, Notes())
    begin(2)
    image = _read(Path(request["image"])) if request["image"] else None
    return cut(reference, prediction, grid, task.classes.index(request["draw"]), image)


def _both(
    request: Mapping[str, Any], notes: Notes
) -> tuple[SegmentationTask, Segmentation, Segmentation, VoxelGrid]:
    task: SegmentationTask = typed(SegmentationTask, request["task"], "the task")
    sides = []
    for place, side in enumerate(SIDES):
        begin(place)
        layout = task.layout(request["layouts"][place])
        resample = request["resample"] and side == "prediction"
        with _named(f"{side}: "):
            sides.append(_source(files_from(request[side]), task, layout, resample, notes))
    grid = _grid(*sides)
    masks = []
    for place, side in enumerate(SIDES):
        begin(place)
        with _named(f"{side}: "):
            masks.append(sides[place].on(grid))
    notes.overlapping = masks[1].overlapping
    return task, masks[0], masks[1], grid


def _grid(reference: Source, prediction: Source) -> VoxelGrid:
    """The grid of the comparison: the reference's, with slices that only the other side has."""
    if not reference.sparse:
        return reference.geometry
    wider = prediction.geometry
    if prediction.sparse:
        wider = spanning(reference.geometry, prediction.geometry)
    return wider if contained(reference.geometry, wider) else reference.geometry


def _source(
    files: CaseFiles,
    task: SegmentationTask,
    layout: LabelLayout | None,
    resample: bool,
    notes: Notes,
) -> Source:
    if files.fault:
        raise RecordError(files.fault)
    read = _Reading(task, resample, notes)
    if files.masks:
        paths = {name: Path(path) for name, path in files.masks.items()}
        return read.masks(paths)
    path = Path(files.labels)
    if suffix_of(path) in DICOM and path.is_file():
        return read.segments(path)
    if layout is None or not layout.ids:
        raise RecordError(f"{path.name}: no layout says which label is which class")
    return read.labels(path, layout)


@dataclass(frozen=True)
class _Reading:
    task: SegmentationTask
    resample: bool
    notes: Notes

    def labels(self, path: Path, layout: LabelLayout) -> Source:
        read = self._labels_of(path)
        volumes = [replace(read, values=_whole(read.values, path))]

        def on(grid: VoxelGrid) -> Segmentation:
            values = _whole(self._fitted(volumes.pop(), grid, path).values, path)
            ids = {layout.ids[name]: number for number, name in enumerate(self.task.classes)}
            self._look(values, {0, *ids}, layout.others, path)
            return of_labels(values, ids, len(self.task.classes))

        return Source(volumes[0].geometry, on)

    def masks(self, paths: Mapping[str, Path]) -> Source:
        first = next(iter(paths.values()))
        volumes = {first: self._mask(first)}
        geometry = volumes[first].geometry

        def on(grid: VoxelGrid) -> Segmentation:
            masks = Masks(grid.shape, len(paths))
            for number, path in enumerate(paths.values()):
                mask = volumes.pop(path, None) or self._mask(path)
                _require_same(mask.geometry, geometry, path, f"as {first.name}")
                masks.add(number, self._fitted(mask, grid, path).values.astype(bool, copy=False))
            return masks.segmentation()

        return Source(geometry, on)

    def segments(self, path: Path) -> Source:
        """A DICOM segmentation; segments are classes by their labels."""
        with _named(f"{path.name}: "):
            segments = read_segments(path)
        owners = _owners(segments, self.task, path)
        if len(owners) < len(self.task.classes):
            missing = {*range(len(self.task.classes))} - {*owners.values()}
            others = [n for place, n in enumerate(segments.names) if place not in owners]
            names = ", ".join(self.task.classes[number] for number in sorted(missing))
            self.notes.without_segment.append(
                f"{path.name} has no segment of {names}"
                + (f", and others: {', '.join(map(shown, others[:5]))}" if others else "")
            )

        def on(grid: VoxelGrid) -> Segmentation:
            masks = Masks(grid.shape, len(self.task.classes))
            fits = contained(segments.geometry, grid)
            for segment, number in owners.items():
                mask = segments.mask(segment, grid if fits else segments.geometry)
                if not fits:
                    labels = Labels(mask, segments.geometry)
                    mask = self._fitted(labels, grid, path).values.astype(bool)
                masks.add(number, mask)
            return masks.segmentation()

        return Source(segments.geometry, on, sparse=True)

    def _labels_of(self, path: Path) -> Labels:
        """A file's labels; those that a slope moved off whole numbers are rounded."""
        read = _read(path)
        self.notes.warnings += [f"{path.name}: {warning}" for warning in read.warnings]
        with _named(f"{path.name}: "):
            return replace(read, values=whole_labels(read.values, read.scaling))

    def _mask(self, path: Path) -> Labels:
        read = self._labels_of(path)
        return replace(read, values=_binary(read.values, path))

    def _fitted(self, labels: Labels, grid: VoxelGrid, path: Path) -> Labels:
        """Labels on a grid: as they are, or resampled where that was asked for."""
        if not labels.geometry.differences(grid):
            return labels
        if not self.resample:
            also = "".join(f"; {warning}" for warning in self.notes.warnings)
            whose = f"as the reference has it ({RESAMPLE}){also}"
            _require_same(labels.geometry, grid, path, whose)
        self.notes.resampled = True
        return resampled(labels, grid)

    def _look(
        self, values: npt.NDArray[np.generic], expected_labels: set[int], others: int, path: Path
    ) -> None:
        there = np.zeros(LARGEST_LABEL + 1, bool)
        for part in values:
            there[part] = True
        unknown = sorted({*np.flatnonzero(there).tolist()} - expected_labels)
        if beyond := [str(label) for label in unknown if label > others]:
            expected = ", ".join(map(str, sorted(expected_labels - {0})))
            raise RecordError(
                f"{path.name}: labels {', '.join(beyond[:10])} are outside the task, whose layout "
                f"has {expected}. Is it of another layout (--labels-layout, --predictions-layout)?"
            )
        self.notes.ignored = sorted({*self.notes.ignored, *unknown})


def _read(path: Path) -> Labels:
    with _named(f"{path.name}: "):
        return read_labels(path)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Prefix a `RecordError` with what was read."""
    try:
        yield
    except RecordError as error:
        raise RecordError(f"{what}{error}") from error


def _require_same(geometry: VoxelGrid, expected: VoxelGrid, path: Path, whose: str) -> None:
    if different := geometry.differences(expected):
        raise RecordError(f"{path.name} has another grid: {'; '.join(different)}, {whose}")


def _whole(values: npt.NDArray[np.generic], path: Path) -> Kinds:
    if values.dtype in (np.uint8, np.uint16):
        return np.asarray(values, values.dtype)
    whole = np.empty(values.shape, np.uint16)
    for plane, out in zip(values, whole, strict=True):
        low, high = float(plane.min()), float(plane.max())
        if not (low >= 0 and high <= LARGEST_LABEL):  # also NaN
            raise RecordError(
                f"{path.name} has values from {low:g} to {high:g}, expected labels from 0 to "
                f"{LARGEST_LABEL:,}"
            )
        out[:] = plane
        if plane.dtype.kind == "f" and (out != plane).any():
            value = plane[out != plane][0]
            raise RecordError(f"{path.name} has the value {value:.10g}, expected whole labels")
    return whole


def _binary(values: npt.NDArray[np.generic], path: Path) -> Bits:
    mask = np.empty(values.shape, bool)
    inside: set[float] = set()
    for plane, out in zip(values, mask, strict=True):
        np.not_equal(plane, 0, out=out)
        if out.any():
            chosen = plane[out]
            inside |= {float(chosen.min()), float(chosen.max())}
    if len(inside) > 1 or not all(value > 0 and value.is_integer() for value in inside):
        some = ", ".join(f"{value:g}" for value in sorted(inside))
        raise RecordError(f"{path.name} has the values {some}, expected a mask of 0 and 1")
    return mask


def _owners(segments: DicomSegments, task: SegmentationTask, path: Path) -> dict[int, int]:
    """Class number of each segment that is named as one."""
    named = {_plain(name): class_name for name, class_name in task.file_names().items()}
    owners: dict[int, int] = {}
    for segment, label in enumerate(segments.names):
        name = named.get(_plain(label))
        if name is None:
            continue
        number = task.classes.index(name)
        if number in owners.values():
            raise RecordError(f"{path.name} has {name} twice")
        owners[segment] = number
    if not owners:
        raise RecordError(f"{path.name} has no segment that is named as a class of {task.name}")
    return owners


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


if __name__ == "__main__":
    serve(answer)
