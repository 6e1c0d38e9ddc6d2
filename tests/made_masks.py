"""Small volumes of labels as files, in the layouts that scoring reads; and scoring in process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
from in_process import Here

from benchmd_ray.benchmarks.touchstone import case, files, scoring
from benchmd_ray.service.each import Call

SPACING = (1.5, 0.8, 1.0)
"""mm along z, y, x."""
CLASSES = ("near", "far")
CARD = """
name: two
title: Two boxes
classes: [near, far]
tolerance: 1.5
presets:
  wide: {default: 4, classes: {far: 6}}
layouts:
  plain:
    ids: {near: 1, far: 2}
  reversed:
    ids: {near: 2, far: 1}
    names: {near: near_one}
    others: 9
"""


def card(folder: Path, text: str = CARD) -> Path:
    """A card of the task ``two``."""
    path = folder / "two.yaml"
    path.write_text(text)
    return path


def boxes(number: int = 0, shift: int = 0) -> np.ndarray:
    """(z, y, x) labels 1 and 2 of two boxes, of a case; a prediction is shifted."""
    labels = np.zeros((12, 14, 16), np.uint8)
    low = 1 + number % 3
    labels[low : low + 4, 2 + shift : 8 + shift, 2:9] = 1
    labels[low + 3 : low + 7, 9 - shift : 13, 8:14] = 2
    return labels


def write(
    path: Path,
    values: np.ndarray,
    *,
    spacing: tuple[float, float, float] = SPACING,
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0),
    direction: tuple[float, ...] = (1, 0, 0, 0, 1, 0, 0, 0, 1),
) -> Path:
    """A NIfTI or NRRD file of (z, y, x) values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = SimpleITK.GetImageFromArray(values)
    image.SetSpacing(spacing[::-1])
    image.SetOrigin(origin)
    image.SetDirection(direction)
    SimpleITK.WriteImage(image, str(path))
    return path


def write_masks(
    folder: Path, labels: np.ndarray, names: Mapping[str, int] | None = None, **place: Any
) -> Path:
    """A folder of a case with a mask for each class."""
    for name, label in (names or {"near": 1, "far": 2}).items():
        write(
            folder / "segmentations" / f"{name}.nii.gz", (labels == label).astype(np.uint8), **place
        )
    return folder


def sides(folder: Path, cases: int, shift: int = 1) -> tuple[Path, Path]:
    """Folders of predictions and references of several cases."""
    for number in range(cases):
        write(folder / "labels" / f"case{number:03}.nii.gz", boxes(number))
        write(folder / "predictions" / f"case{number:03}.nii.gz", boxes(number, shift))
    return folder / "predictions", folder / "labels"


def score_in_process(patch: pytest.MonkeyPatch) -> None:
    """Let scoring work in this process, case after case, without Ray."""

    def each(
        calls: Iterable[Call], work: Callable[[Any], Any], **_: Any
    ) -> Iterator[tuple[str, Any]]:
        for call in calls:
            yield call.name, work(call.given)

    patch.setattr(files, "each", each)
    patch.setattr(files, "connected", lambda *_, **__: contextlib.nullcontext())
    patch.setattr(scoring, "PROCESS", Here(case.answer))
