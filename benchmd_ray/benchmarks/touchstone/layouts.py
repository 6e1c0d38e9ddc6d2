"""Cases in a folder: a file with all classes each, or a folder with a file for each class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmd_ray.benchmarks.touchstone.masks import DICOM, SUFFIXES, slices_of, stem_of, suffix_of
from benchmd_ray.benchmarks.touchstone.tasks import SegmentationTask
from benchmd_ray.errors import BenchmdError, composed

MASKS = "segmentations"
"""Folder of a case with a file for each class, as AbdomenAtlas and TotalSegmentator have it."""
IMAGES = ("ct", "mri")
"""Files of a case's folder that are its image."""
CHANNEL = "_0000"
"""What nnU-Net adds to the name of a case's only image."""


@dataclass(frozen=True)
class CaseFiles:
    """Where the classes of a case are; all empty where nothing can be scored, see `fault`."""

    labels: str = ""
    """File, or folder of a DICOM series, with all classes."""
    masks: Mapping[str, str] = field(default_factory=dict)
    """File with each class, where there is one for each."""
    fault: str = ""

    @property
    def paths(self) -> list[Path]:
        return [Path(path) for path in (self.labels, *self.masks.values()) if path]

    @property
    def needs_layout(self) -> bool:
        """Whether only a layout says which label is which class."""
        return bool(self.labels) and suffix_of(Path(self.labels)) not in DICOM


def cases_of(folder: Path, task: SegmentationTask) -> dict[str, CaseFiles]:
    if not folder.is_dir():
        raise BenchmdError(f"{folder} is not a folder with a file or a folder for each case.")
    cases: dict[str, CaseFiles] = {}
    places: dict[str, Path] = {}
    for path in _entries(folder):
        if not path.is_dir() and not suffix_of(path):
            continue
        name = composed(path.name) if path.is_dir() else stem_of(path)
        if name in places:
            raise BenchmdError(
                f"{folder} has the case {name} twice, {places[name].name} and {path.name}: keep "
                "one."
            )
        cases[name], places[name] = files_of(path, task), path
    if not cases:
        raise BenchmdError(
            f"{folder} has no case: expected files {', '.join(SUFFIXES)}, or a folder for each "
            f"case with {MASKS}/CLASS.nii.gz or one such file."
        )
    return dict(sorted(cases.items()))


def files_of(path: Path, task: SegmentationTask) -> CaseFiles:
    """The files of one case: of a file itself, or of a folder."""
    if path.is_dir():
        return _in_folder(path, task)
    if not suffix_of(path):
        return CaseFiles(fault=f"{path.name} is no such file")
    return CaseFiles(str(path))


def images_of(folder: Path) -> dict[str, Path]:
    """The image of each case of a folder: a file, ``ct.nii.gz`` in a folder, or a DICOM series."""
    if not folder.is_dir():
        raise BenchmdError(f"{folder} is not a folder with an image for each case.")
    images: dict[str, Path] = {}
    for path in _entries(folder):
        image = _image(path) if path.is_dir() else path
        if image is None or not (image.is_dir() or suffix_of(image)):
            continue
        name = composed(path.name) if path.is_dir() else stem_of(path).removesuffix(CHANNEL)
        if name in images:
            raise BenchmdError(f"{folder} has two images of the case {name}. Keep one.")
        images[name] = image
    if not images:
        raise BenchmdError(
            f"{folder} has no image: expected files {', '.join(SUFFIXES)}, or a folder for each "
            "case with ct.nii.gz or a DICOM series."
        )
    return images


def _image(folder: Path) -> Path | None:
    for path in _entries(folder):
        if suffix_of(path) and stem_of(path) in IMAGES:
            return path
    return folder if slices_of(folder) else None


def files_from(content: Mapping[str, Any]) -> CaseFiles:
    """The files as `dataclasses.asdict` gives them."""
    return CaseFiles(content["labels"], dict(content["masks"]), content["fault"])


def _in_folder(folder: Path, task: SegmentationTask) -> CaseFiles:
    masks = folder / MASKS
    if masks.is_dir():
        return _masks(masks, _entries(masks), task)
    named = task.file_names()
    files = [path for path in _entries(folder) if suffix_of(path) and path.is_file()]
    if any(stem_of(path) in named for path in files):
        return _masks(folder, files, task)
    if len(slices_of(folder)) > 1:
        return CaseFiles(str(folder))
    files = [path for path in files if stem_of(path) not in IMAGES]
    if len(files) == 1:
        return CaseFiles(str(files[0]))
    several = f"{len(files)} files, {', '.join(p.name for p in files[:5])}" if files else "no file"
    return CaseFiles(
        fault=f"the folder {folder.name} has {several}: expected {MASKS}/, a file for each class, "
        "or one with all"
    )


def _masks(folder: Path, paths: Iterable[Path], task: SegmentationTask) -> CaseFiles:
    named = task.file_names()
    masks: dict[str, str] = {}
    for path in paths:
        name = named.get(stem_of(path)) if suffix_of(path) else None
        if name in masks:
            first = Path(masks[name]).name
            return CaseFiles(fault=f"{name} appears twice: {first} and {path.name}")
        if name:
            masks[name] = str(path)
    missing = [name for name in task.classes if name not in masks]
    if missing:
        return CaseFiles(
            fault=f"{folder.name} has no mask of {', '.join(missing)}: an empty structure is "
            "expected as an empty mask"
        )
    return CaseFiles(masks={name: masks[name] for name in task.classes})


def _entries(folder: Path) -> list[Path]:
    """Visible files and folders by name; an error where one cannot be written into tables."""
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in paths:
        if not path.name.isprintable():  # also what is not UTF-8
            raise BenchmdError(
                f"{folder} has the name {path.name!a}, which is not of printable characters "
                "in UTF-8. Rename it."
            )
    return paths
