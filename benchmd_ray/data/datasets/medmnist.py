"""MedMNIST v2: one ``.npz`` file per dataset and size, with images and labels of three splits.

Source: https://medmnist.com and Yang et al., MedMNIST v2 (2023), "Data Records".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.medmnist_cards import CURRENT, EARLIER, UNOFFICIAL
from benchmd_ray.data.raw import Choices, Discovery, RawItem, Reading
from benchmd_ray.data.readers.npz import Rows, rows_of
from benchmd_ray.data.records import RecordError, hashed_patient
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import md5

VERSION = 2
SPLITS = {"train": "train", "validation": "val", "test": "test"}
"""Our split → how the arrays' names begin."""


def discover(root: Path, card: DatasetCard, choices: Choices) -> Discovery:
    """List the images of the three splits; unofficial files need the option ``md5=allow``."""
    path = root / card.layouts[CURRENT].pattern
    if not path.is_file():
        raise BenchmdError(
            f"{path} is missing: expected the file of {card.title}. Fetch it from "
            f"{card.download[0]}."
        )
    digest = md5(path)
    layout = _layout(path, card, digest, choices)
    try:
        items = [item for split in SPLITS for item in _items(path, card, split, digest)]
    except RecordError as error:
        raise BenchmdError(f"{path}: {error}. Fetch it from {card.download[0]}.") from error
    return Discovery(layout, items, grouped_by="record")


def _layout(path: Path, card: DatasetCard, digest: str, choices: Choices) -> str:
    official = {layout.md5: name for name, layout in card.layouts.items() if layout.md5}
    if digest in official:
        return official[digest]
    if choices.options["md5"] == "allow":
        return UNOFFICIAL
    expected = " and ".join(f"{md5} ({name.replace('-', ' ')})" for md5, name in official.items())
    raise BenchmdError(
        f"{path} has the MD5 {digest}, the official file {expected}: it is damaged or another one. "
        f"Fetch it from {card.download[0]}, or accept it with --option md5=allow "
        "(`benchmd medmnist tune`: --any-md5); all results then name it "
        f"{card.name}-{card.layouts[UNOFFICIAL].mark}."
    )


def _items(path: Path, card: DatasetCard, split: str, digest: str) -> Iterator[RawItem]:
    prefix = SPLITS[split]
    images, labels = Rows(path, f"{prefix}_images"), Rows(path, f"{prefix}_labels")
    channels, *extent = card.signal.stored_shape
    expected = (*extent, channels) if channels > 1 else tuple(extent)  # without that axis for one
    if images.shape[1:] != expected:
        raise RecordError(
            f"{images.name} has the shape {images.shape}, expected (images, "
            f"{', '.join(map(str, expected))})"
        )
    if images.shape[0] != labels.shape[0]:
        raise RecordError(
            f"{images.name} has {images.shape[0]:,} rows and {labels.name} {labels.shape[0]:,}, "
            "expected as many"
        )
    several = card.task.kind == "multi-label"
    for row, values in enumerate(_labels(labels, card).tolist()):
        name = f"{prefix}-{row:06d}"
        yield RawItem(
            path=path.name,
            record_id=name,
            group_id=hashed_patient(card.name, name),
            split=split,
            label=None if several else card.classes[values[0]],
            labels=dict(zip(card.classes, values, strict=True)) if several else {},
            details={"row": row, "md5": digest, "part": prefix},
        )


def _labels(labels: Rows, card: DatasetCard) -> npt.NDArray[np.uint8]:
    """Labels of a split: (rows, 1) numbers of classes, or (rows, classes) of 0 and 1."""
    several = card.task.kind == "multi-label"
    columns, most = (len(card.classes), 1) if several else (1, len(card.classes) - 1)
    if labels.shape[1:] != (columns,) and (several or labels.shape[1:]):
        raise RecordError(
            f"{labels.name} has the shape {labels.shape}, expected ({labels.shape[0]}, {columns})"
        )
    values = labels.read(0, labels.shape[0]).reshape(-1, columns)
    wrong = np.flatnonzero((values > most).any(axis=1))
    if len(wrong):
        raise RecordError(
            f"{labels.name}, row {wrong[0]}: label {values[wrong[0]].max()}, expected 0 to {most}"
        )
    return values


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The record of one image, the channel first."""
    rows = rows_of(root / item.path, f"{item.details['part']}_images")
    (pixels,) = rows.read(item.details["row"])
    channels = card.signal.stored_shape[0]
    signal = np.moveaxis(pixels, -1, 0) if channels > 1 else pixels[None]
    flat = signal.reshape(channels, -1)
    official = [layout.md5 for layout in card.layouts.values() if layout.md5]
    if item.details["md5"] not in official and (flat == flat[:, :1]).all():
        part, whole = ("voxel", "a volume") if signal.ndim == 4 else ("pixel", "an image")
        raise RecordError(f"every {part} is the same; expected {whole}")
    reading = Reading([item.record(card, signal, card.signal.stored_shape[1:])])
    if warning := _warning(card, item.details["md5"]):
        reading.warnings[warning] += 1
    return reading


def _warning(card: DatasetCard, digest: str) -> str:
    official = card.layouts[CURRENT].md5
    if digest == official:
        return ""
    if EARLIER in card.layouts and digest == card.layouts[EARLIER].md5:
        return "of the file of version 2, which the results of the paper are of"
    return f"of an unofficial file, MD5 {digest}; the official one's is {official}"
