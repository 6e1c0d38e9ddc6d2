"""Small raw volumes with masks in the layout of the Medical Segmentation Decathlon.

A volume shows a bright bean with a darker end in grey noise; the mask has the one as ``anterior``
and the other as ``posterior``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.itk import simple_itk
from benchmd_ray.data.provenance import mark_synthetic
from benchmd_ray.demo.draw import generator, texture

DATASET = "hippocampus"
LEAST, MOST = 20, 31
"""Voxels of a volume along an axis."""
SPACING = (1.0, 1.0, 1.2)
"""mm along x, y and z."""
FLIPS = ((-1.0, -1.0, 1.0), (1.0, 1.0, 1.0), (1.0, -1.0, -1.0))
"""Directions of the axes of files, in turn."""


def write_segmentation(
    root: Path, *, source_records: int = 24, target_records: int = 0, seed: int = 0
) -> dict[str, Path]:
    """Write a dataset as a raw folder below ``root``. There is no target."""
    itk, folder = simple_itk(), root / DATASET
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(source_records):
        values, mask = drawn_volume(number, seed)
        for name, array in (("imagesTr", values), ("labelsTr", mask)):
            image = itk.GetImageFromArray(array)
            image.SetSpacing(SPACING)
            image.SetOrigin((10.0 * number, -5.0, 2.0))
            image.SetDirection(np.diag(FLIPS[number % len(FLIPS)]).ravel().tolist())
            itk.WriteImage(image, str(folder / name / f"{DATASET}_{number:03d}.nii.gz"))
    mark_synthetic(folder)
    return {DATASET: folder}


def drawn_volume(number: int, seed: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint8]]:
    """A volume and its mask, (z, y, x) each."""
    rng = generator(seed, DATASET, f"volume {number}")
    shape = rng.integers(LEAST, MOST + 1, 3)
    places = np.indices(tuple(shape.tolist())).astype(float)
    centre = shape / 2 + rng.uniform(-2, 2, 3)
    radii = np.array([4.0, 7.0, 4.0]) * rng.uniform(0.8, 1.15, 3)
    offset = places - centre.reshape(3, 1, 1, 1)
    inside = np.square(offset / radii.reshape(3, 1, 1, 1)).sum(axis=0) < 1
    behind = offset[1] > rng.uniform(-0.5, 1.5)
    mask = (inside * (1 + behind)).astype(np.uint8)
    grey = 300 + 60 * texture(shape.tolist(), 1.0, rng) + np.array([0, 350, 180])[mask]
    return np.rint(grey).astype(np.int16), mask
