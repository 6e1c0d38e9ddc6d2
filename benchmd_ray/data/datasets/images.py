"""What the image datasets share: classes of labels, an image's way to a record."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.raw import RawItem, Reading
from benchmd_ray.data.readers.dicom import read_dicom
from benchmd_ray.data.readers.image import Pixels
from benchmd_ray.data.records import RecordError
from benchmd_ray.data.transforms import fitted
from benchmd_ray.errors import shown

VERSION = 1
NO_LABEL = "it has no label"


def class_of(card: DatasetCard, label: str) -> tuple[str, str]:
    """Class of an owner's label, and otherwise why there is none."""
    if not label:
        return "", NO_LABEL
    if label not in card.class_mapping:
        return "", f"its label {shown(label)} is unknown"
    name = card.class_mapping[label]
    return name, "" if name else f"its label {label!r} has no class"


def read_dicom_image(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The record of one DICOM file, in grey levels."""
    warnings = Counter[str]()
    pixels = read_dicom(root / item.path, channels=1, warnings=warnings)
    return replace(image_record(pixels, item, card), warnings=warnings)


def image_record(pixels: Pixels, item: RawItem, card: DatasetCard) -> Reading:
    """The record of an image, (y, x) or (y, x, channel) with the modality's channels."""
    if (pixels == pixels[0, 0]).all():
        raise RecordError(f"every pixel is {pixels[0, 0]}; expected an image")
    signal, valid = fitted(pixels, card.signal.stored_shape[-1])
    return Reading([item.record(card, signal, valid)])
