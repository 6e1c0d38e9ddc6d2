"""Volumes with masks in the layout of the Medical Segmentation Decathlon.

Files of the same names in ``imagesTr`` and ``labelsTr``, or ``images`` and ``labels``. A mask holds
the number of each voxel's class, 0 for the background.
Source: http://medicaldecathlon.com; Antonelli et al. 2022, doi:10.1038/s41467-022-30695-9.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.geometry import Geometry, Grid, grid_of, image_of
from benchmd_ray.data.itk import simple_itk
from benchmd_ray.data.plain_numbers import number_of
from benchmd_ray.data.raw import DUPLICATE, Choices, Discovery, RawItem, Reading, by_key, files
from benchmd_ray.data.readers.nifti import read_voxels, turned, whole_labels
from benchmd_ray.data.records import RecordError, hashed_patient
from benchmd_ray.data.splits import balanced_splits
from benchmd_ray.data.transforms import quantise
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.modality.signals import valid_area

VERSION = 2
LAYOUT = "pairs"
FOLDERS = (("imagesTr", "labelsTr"), ("images", "labels"))
"""Folders of images and of their masks, in the order in which they are looked for."""
ENDINGS = (".nii.gz", ".nii")
SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}
"""Of the records of a source, by split; all of a target are ``test``."""
NO_IMAGE = "there is no image of its name"
OWN = "own"
"""Value of the option ``spacing`` that keeps the voxels of the files."""
SAME = 1e-3
"""Spacings, origins and directions that differ by less (mm, or 1) are the same."""
FINEST, COARSEST = 0.1, 20.0
"""mm that voxels may be resampled to."""


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the pairs of images and masks."""
    if choices.hold_out or choices.two_classes:
        raise BenchmdError(
            f"{card.name} has masks and no conditions of records: leave --hold-out and "
            "--two-classes out."
        )
    spacing = _spacing(choices.options.get("spacing", OWN), card)
    images, masks = _folders(root, card)
    image_paths, twice = by_key(files(images, "*.nii", "*.nii.gz"), _name)
    labelled, twice_labelled = by_key(files(masks, "*.nii", "*.nii.gz"), _name)
    if twice_labelled:
        raise BenchmdError(
            f"{masks} holds {twice_labelled} masks of one name in two formats: keep one of each."
        )
    names = sorted(image_paths.keys() & labelled.keys())
    splits = ["test"] * len(names)
    if card.role != "target":
        splits = balanced_splits(card.name, names, [()] * len(names), SHARES)
    excluded = +Counter({DUPLICATE: twice, NO_IMAGE: len(labelled.keys() - image_paths.keys())})
    missing = [
        f"{masks.name}/{'a mask' if card.hides_names else image_paths[name].name}"
        for name in sorted(image_paths.keys() - labelled.keys())
    ]
    items = [
        RawItem(
            path=image_paths[name].relative_to(root).as_posix(),
            record_id=hashed_patient(card.name, name) if card.hides_names else name,
            group_id=hashed_patient(card.name, name),
            split=split,
            details={
                "mask": labelled[name].relative_to(root).as_posix(),
                "spacing": spacing,
            },
        )
        for name, split in zip(names, splits, strict=True)
    ]
    return Discovery(LAYOUT, items, missing, dict(excluded), grouped_by="record")


def _folders(root: Path, card: DatasetCard) -> tuple[Path, Path]:
    for images, masks in FOLDERS:
        if (root / images).is_dir() and (root / masks).is_dir():
            return root / images, root / masks
    expected = " or ".join(f"{images} and {masks}" for images, masks in FOLDERS)
    raise BenchmdError(
        f"{root} does not hold {card.name}: expected the folders {expected}, with a mask of the "
        "same name for each image."
    )


def _name(path: Path) -> str | None:
    return next(path.name[: -len(e)] for e in ENDINGS if path.name.lower().endswith(e))


def _spacing(text: str, card: DatasetCard) -> list[float]:
    """The chosen spacing along z, y and x in mm; empty where voxels stay as they are."""
    if text == OWN:
        return []
    stated = [number_of(part) for part in text.split("x")]
    usable = [value for value in stated if value is not None and FINEST <= value <= COARSEST]
    if len(stated) not in (1, 3) or len(usable) != len(stated):
        raise BenchmdError(
            f"the option spacing of {card.name} is {shown(text)}, expected {OWN}, or mm from "
            f"{FINEST:g} to {COARSEST:g} for all axes or along z, y and x, such as 1.5 or 3x1x1."
        )
    return usable * 3 if len(usable) == 1 else usable


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The record of one pair, padded to the card's shape."""
    stored_image, other = read_voxels(root / item.path), read_voxels(root / item.details["mask"])
    file = stored_image.grid
    _require_same(file, other.grid)
    image = image_of(stored_image.values, file)
    try:
        mask = image_of(whole_labels(other.values, other.scaling), other.grid)
    except RecordError as error:
        raise RecordError(f"its mask: {error}") from error
    image, mask = (_resampled(turned(volume), item.details["spacing"], nearest=nearest)
                   for volume, nearest in ((image, False), (mask, True)))  # fmt: skip
    values, labels = map(simple_itk().GetArrayFromImage, (image, mask))
    area = _area(values.shape, card)
    target = np.zeros(card.target.shape, np.uint8)
    target[area] = _labels(labels, card)
    stored, scale = _steps(values)
    signal = np.full(card.signal.stored_shape, stored.min(), np.int16)
    inside: Any = (0, *area)
    signal[inside] = stored
    geometry = Geometry(file, _padded(grid_of(image), area, card))
    record = item.record(card, signal, values.shape, scale=scale, target=target, geometry=geometry)
    warnings = Counter(stored_image.warnings)
    warnings.update(f"its mask: {warning}" for warning in other.warnings)
    return Reading([record], warnings=warnings)


def _require_same(image: Grid, mask: Grid) -> None:
    for name, of_image in vars(image).items():
        of_mask = getattr(mask, name)
        if not np.allclose(of_mask, of_image, rtol=0, atol=SAME):
            raise RecordError(
                f"its mask has the {name} {_rounded(of_mask)}, expected that of the image, "
                f"{_rounded(of_image)}"
            )


def _rounded(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in values)


def _resampled(image: Any, spacing: list[float], *, nearest: bool) -> Any:
    """An image with voxels of another size, linear or nearest; its first voxel keeps its place."""
    if not spacing:
        return image
    wanted = spacing[::-1]
    axes = zip(image.GetSize(), image.GetSpacing(), wanted, strict=True)
    extents = [max(1, round(extent * current / new)) for extent, current, new in axes]
    if np.prod(extents, dtype=float) > 2**28:
        raise RecordError(f"resampled it would have the extents {tuple(extents)}, too many voxels")
    itk = simple_itk()
    return itk.Resample(
        image,
        extents,
        itk.Transform(3, itk.sitkIdentity),
        itk.sitkNearestNeighbor if nearest else itk.sitkLinear,
        image.GetOrigin(),
        wanted,
        image.GetDirection(),
        float(itk.GetArrayViewFromImage(image).min()),
        image.GetPixelID(),
        True,  # at the border the nearest voxel counts
    )


def _area(shape: tuple[int, ...], card: DatasetCard) -> tuple[slice, ...]:
    most = card.signal.stored_shape[1:]
    if any(extent > limit for extent, limit in zip(shape, most, strict=True)):
        raise RecordError(
            f"it has the extents {shape} (z, y, x), more than the {most} that {card.name} stores: "
            "choose larger voxels with --option spacing=…, or a card with a larger stored_shape"
        )
    return valid_area(most, shape)


def _labels(values: npt.NDArray[Any], card: DatasetCard) -> npt.NDArray[np.uint8]:
    most = card.target.classes - 1
    wrong = ~((values >= 0) & (values <= most) & (values == np.floor(values)))
    if wrong.any():
        raise RecordError(
            f"its mask has the value {float(values[wrong][0]):g}, expected whole numbers from 0 to "
            f"{most} ({', '.join(card.classes)})"
        )
    return np.asarray(values, np.uint8)


def _steps(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int16], float]:
    """Values as int16 steps and the size of a step: whole numbers within int16 stay as they are."""
    if not np.isfinite(values).all():
        raise RecordError("a voxel is NaN or infinite")
    whole = np.issubdtype(values.dtype, np.integer) or bool((values == np.rint(values)).all())
    if whole and values.min() >= -32768 and values.max() <= 32767:
        return values.astype(np.int16), 1.0
    return quantise(values.astype(np.float64))


def _padded(grid: Grid, area: tuple[slice, ...], card: DatasetCard) -> Grid:
    """The grid of what is stored: that of the volume, begun earlier by the padding in front."""
    before = np.array([part.start for part in reversed(area)], float)
    axes = np.reshape(grid.direction, (3, 3))
    origin = np.array(grid.origin) - axes @ (before * np.array(grid.spacing))
    extents = tuple(reversed(card.signal.stored_shape[1:]))
    return Grid(extents, grid.spacing, tuple(origin.tolist()), grid.direction)
