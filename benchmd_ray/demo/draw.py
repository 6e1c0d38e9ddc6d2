"""What the synthetic datasets share: draws, names, tables and image files."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pydicom
from PIL import Image
from pydicom.dataset import FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian
from scipy.ndimage import gaussian_filter


def generator(seed: int, dataset: str, what: str) -> np.random.Generator:
    """A separate generator for each thing that is drawn, so that sizes do not matter."""
    return np.random.default_rng([seed, *f"{dataset}/{what}".encode()])


def hex_name(seed: int, *names: object) -> str:
    """32 hex digits that stand for names."""
    text = "/".join(map(str, (seed, *names)))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def uid_of(seed: int, *names: object) -> str:
    """A DICOM UID that stands for names."""
    return f"2.25.{int(hex_name(seed, *names), 16)}"


def adult(
    rng: np.random.Generator, *, mean: float, deviation: float, oldest: int
) -> tuple[int, int]:
    """Age in years, and 0 for a man or 1 for a woman."""
    return int(np.clip(rng.normal(mean, deviation), 18, oldest)), int(rng.integers(2))


def drawn_labels(
    classes: Sequence[str], prevalence: Sequence[float], records: int, rng: np.random.Generator
) -> list[str]:
    """A class for each record: the shares to the record, in random order."""
    bounds = np.rint(np.cumsum(prevalence) * records).astype(int)
    drawn = np.searchsorted(bounds, np.arange(records), side="right")
    return [classes[column] for column in rng.permutation(drawn)]


def texture(
    shape: Sequence[int], grain: float, rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Smooth noise of mean 0 and standard deviation 1; ``grain`` is the smoothing's in samples."""
    noise = gaussian_filter(rng.standard_normal(tuple(shape), np.float32), grain, mode="wrap")
    return np.asarray((noise - noise.mean()) / noise.std(), np.float32)


def write_csv(
    path: Path,
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str] = (),
    *,
    delimiter: str = ",",
    lineterminator: str = "\n",
) -> None:
    """Write a table, gzipped if its name ends with ``.gz``; values that a row lacks are empty."""
    text = io.StringIO()
    names = columns or list(rows[0])
    writer = csv.DictWriter(
        text, names, restval="", delimiter=delimiter, lineterminator=lineterminator
    )
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def save_image(image: Image.Image, path: Path, **options: Any) -> None:
    """Write an image file, with options of Pillow; its folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


def save_dicom(
    path: Path,
    values: npt.NDArray[np.generic],
    uids: tuple[str, str],
    *,
    syntax: str = ExplicitVRLittleEndian,
    **elements: Any,
) -> None:
    """Write grey levels, (y, x) of 16 bits, as DICOM; its folder is created.

    ``uids`` are those of SOP class and instance, ``elements`` what else the header says.
    """
    dataset = pydicom.Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = map(UID, uids)
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.Rows, dataset.Columns = values.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.PixelRepresentation = int(values.dtype.kind == "i")
    dataset.RescaleSlope, dataset.RescaleIntercept = 1, 0
    for keyword, value in elements.items():
        setattr(dataset, keyword, value)
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelData = values.tobytes()
    if syntax != ExplicitVRLittleEndian:
        dataset.compress(syntax, generate_instance_uid=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
