"""One file of any format that a reader knows, as a signal of a catalog: for `listed`."""

from __future__ import annotations

import codecs
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from benchmd_ray.data.card_files import Files
from benchmd_ray.data.datasets.record_rows import label_place, read_record_rows, without_blanks
from benchmd_ray.data.readers.arrays import Array, read_array
from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.readers.dicom import open_dicom, pixels, read_dicom, rescaled, unusual
from benchmd_ray.data.readers.edf import read_edf
from benchmd_ray.data.readers.headers import VOLTAGES, microvolts
from benchmd_ray.data.readers.image import read_image
from benchmd_ray.data.readers.metaimage import read_mhd
from benchmd_ray.data.readers.nifti import read_nifti
from benchmd_ray.data.readers.volume import MAX_SLICES, MAX_VOXELS, Volume, read_series
from benchmd_ray.data.readers.wfdb import read_wfdb
from benchmd_ray.data.records import RecordError, RecordExcluded, require_once
from benchmd_ray.data.tables import is_sample, separator_of, stated_separator
from benchmd_ray.data.transforms import (
    fitted,
    quantise,
    resample,
    segments,
    stretched,
    window_starts,
)
from benchmd_ray.errors import composed
from benchmd_ray.modality.signals import Signal, valid_area

VERSION = 4
PACKAGES = {"SimpleITK": (".nii", ".nii.gz", ".mhd"), "mne": (".edf",)}
"""What is needed to read files, by the endings of their names."""
MAX_CSV_BYTES = 2**28
TEXT = ".txt"
TIMES = ("t", "time", "timestamp", "seconds", "sample", "index", "")
"""Names of columns of samples, in lower case, that are not a channel unless the card says so."""

Values = npt.NDArray[np.float64]
OverTime = tuple[Values, float | None]
"""(channel, time) in the signal's unit, and the rate in Hz where it is known."""
Picture = tuple[Array, list[str]]
"""(y, x) or (y, x, channel), and what is unusual about it."""


class FilePart(NamedTuple):
    """What a file gives for one record."""

    signal: npt.NDArray[np.int16] | npt.NDArray[np.uint8]
    scale: float
    valid_size: tuple[int, ...]

    @property
    def is_constant(self) -> bool:
        """Whether it holds only one value in each channel, of which no normaliser makes sense."""
        inside = valid_area(self.signal.shape[1:], self.valid_size)
        valid = self.signal[:, *inside].reshape(len(self.signal), -1)
        return bool((valid == valid[:, :1]).all())


def suffixes(signal: Signal) -> tuple[str, ...]:
    """Endings of the files that a signal of these axes is read from, in lower case.

    A text is read only where a card or a table names it: most are notes.
    """
    return tuple(end for end in _formats(signal) if end != TEXT)


def ending(name: str, signal: Signal) -> str:
    """How a file's name ends, as it is written, if a signal of these axes is read from such."""
    endings = [end for end in _formats(signal) if name.lower().endswith(end)]
    return name[-max(map(len, endings)) :] if endings else ""


def packages_for(paths: Iterable[str]) -> tuple[str, ...]:
    """Packages of `extras.EXTRAS` that reading files takes, by how their names end."""
    names = [path.lower() for path in paths]
    return tuple(
        package for package, ends in PACKAGES.items() if any(name.endswith(ends) for name in names)
    )


def is_volume(signal: Signal) -> bool:
    """Whether it has slices, so that a folder of DICOM files is one record."""
    return len(signal.axes) == 4


def read_file(
    path: Path, signal: Signal, files: Files, warnings: Counter[str] | None = None
) -> list[FilePart]:
    """What a file, or the folder of a DICOM series, gives: the parts it is cut into, or all of it.

    Signals over time, (channel, time), are resampled to the signal's rate, in its unit: WFDB and
    EDF files say their rate and voltage, others hold the unit itself. Short ones are padded with
    zeros on both sides. Images, (y, x) or (y, x, channel), keep their aspect ratio (decision D3).
    Volumes, (z, y, x) or (channel, z, y, x), are cut into windows of slices, which are resized
    whatever their aspect ratio (decision D5); short ones are padded with their smallest value
    behind the last slice. What is unusual about the file is counted in ``warnings``.
    """
    formats = _formats(signal)
    end = ".dcm" if path.is_dir() else ending(path.name, signal).lower()
    if end not in formats:
        raise RecordError(
            f"its name has another ending than files of {signal.name}: expected one of "
            f"{', '.join(formats)}"
        )
    content = formats[end](path, signal, files)
    if signal.axes[-1] == "time":
        values, rate = content
        return _over_time(values, rate or files.rate, signal, files)
    if is_volume(signal):
        oddities = [name for volume in content for name in getattr(volume, "warnings", ())]
        parts = _volume(content, signal, files)
    else:
        picture, oddities = content
        parts = [_image(picture, signal)]
    if warnings is not None:
        warnings.update(dict.fromkeys(oddities, 1))
    return parts


def read_row(
    path: Path, details: Mapping[str, Any], signal: Signal, files: Files
) -> list[FilePart]:
    """What one row of a file with a record in each gives, see `record_rows`.

    ``details`` has the ``row`` and, unless these are as the card says, the ``texts``: columns that
    are not samples.
    """
    texts = details.get("texts", [label_place(files.rows)])
    samples = read_record_rows(path, texts).samples[details["row"]]
    known = np.flatnonzero(~np.isnan(samples))
    whole = samples[: known[-1] + 1] if len(known) else samples[:0]
    return _over_time(whole[None], files.rate, signal, files)


def _formats(signal: Signal) -> dict[str, Callable[[Path, Signal, Files], Any]]:
    if signal.axes[-1] == "time":
        return OVER_TIME
    return VOLUMES if is_volume(signal) else IMAGES


def _image(values: Array, signal: Signal) -> FilePart:
    if (values == values[0, 0]).all():
        raise RecordError("every pixel is the same; expected an image")
    if values.ndim != 2 + (signal.stored_shape[0] > 1):
        raise RecordError(
            f"it has the shape {values.shape}, expected {signal.stored_shape[0]} channels"
        )
    box = (signal.stored_shape[1], signal.stored_shape[2])
    if signal.dtype == "uint8":
        stored, valid = fitted(_of_bytes(values, signal), box)
        return FilePart(np.ascontiguousarray(stored), 1.0, valid)
    planes = np.moveaxis(np.atleast_3d(_finite(values)), -1, 0).astype(np.float32)
    pairs = [fitted(np.ascontiguousarray(plane), box, float(plane.min())) for plane in planes]
    steps, scale = quantise(np.concatenate([plane for plane, _ in pairs]).astype(np.float64))
    return FilePart(steps, scale, pairs[0][1])


def _of_bytes(values: Array, signal: Signal) -> npt.NDArray[np.uint8]:
    if values.dtype != np.uint8:
        raise RecordError(
            f"its values are of type {values.dtype}, those of {signal.name} uint8: expected the "
            "same, or a card that says int16"
        )
    return values


def _finite(values: Array) -> Array:
    with np.errstate(over="ignore"):
        single = np.asarray(values, np.float32)
    if not np.isfinite(single).all():
        raise RecordError("it holds values that are not finite, or too large for float32")
    return values


def _volume(channels: Sequence[Volume | Array], signal: Signal, files: Files) -> list[FilePart]:
    count, depth, *box = signal.stored_shape
    if len(channels) != count:
        raise RecordError(f"it has {len(channels)} channels, expected {count}")
    shape = (count, channels[0].shape[0], *box)
    if math.prod(shape) > MAX_VOXELS:
        raise RecordError(f"resized it has {shape} voxels, expected at most {MAX_VOXELS:,}")
    slices = np.empty(shape, np.float32)
    for channel, volume in zip(slices, channels, strict=True):
        planes = volume.slices() if isinstance(volume, Volume) else volume
        for number, plane in enumerate(planes):
            if signal.dtype == "uint8":
                _of_bytes(plane, signal)
            channel[number] = stretched(_finite(plane), (box[0], box[1]))
    lowest = slices.min()
    if lowest == slices.max():
        raise RecordError("every voxel is the same; expected a volume")
    total = slices.shape[1]
    starts = window_starts(total, depth)
    if files.cut != "segments":
        starts = [max(0, total - depth) // 2 if files.cut == "centre" else 0]
    behind = ((0, 0), (0, max(0, depth - total)), (0, 0), (0, 0))
    parts = []
    for start in starts:
        window = np.pad(slices[:, start : start + depth], behind, constant_values=lowest)
        if signal.dtype == "uint8":
            steps, scale = np.rint(window).astype(np.uint8), 1.0
        else:
            steps, scale = quantise(window.astype(np.float64))
        parts.append(FilePart(steps, scale, (min(total, depth), *box)))
    return parts


def _over_time(values: Values, rate: float | None, signal: Signal, files: Files) -> list[FilePart]:
    length = signal.stored_shape[-1]
    if rate is None or signal.rate is None:
        raise RecordError("its sampling rate is not known: state it in the card, as rate of files")
    if values.shape[-1] == 0:
        raise RecordExcluded("it holds no sample")
    if (values == values[:, :1]).all():
        raise RecordError("every channel is constant; expected a signal")
    resampled = resample(_finite(values), rate, signal.rate)
    samples = resampled.shape[-1]
    if files.cut == "segments" and samples >= length:
        parts = segments(resampled, length)
    else:
        start = max(0, samples - length) // 2 if files.cut == "centre" else 0
        parts = [resampled[..., start : start + length]]
    return [_padded(part, length) for part in parts]


def _padded(part: npt.NDArray[Any], length: int) -> FilePart:
    stored, scale = quantise(np.asarray(part, np.float64))
    valid = stored.shape[-1]
    before = (length - valid) // 2  # as images are, so that normalisers find what is valid
    return FilePart(np.pad(stored, ((0, 0), (before, length - valid - before))), scale, (valid,))


def _chosen(names: Sequence[str], signal: Signal, files: Files) -> list[int]:
    """Places of the signal's channels in a file: by name where both name them, else in order."""
    wanted = [files.channels.get(name, name) for name in signal.channels]
    if wanted and any(names):
        plain = [_plain_name(name) for name in names]
        for name in wanted:
            require_once("channel", name, plain.count(_plain_name(name)), names)
        return [plain.index(_plain_name(name)) for name in wanted]
    count = signal.stored_shape[0]
    if len(names) != count:
        raise RecordError(f"it has {len(names)} channels, expected {count}")
    return list(range(count))


def _plain_name(name: str) -> str:
    return composed(name).strip().lower()


def _wfdb(path: Path, signal: Signal, files: Files) -> OverTime:
    read = read_wfdb(path, lambda names: _chosen(names, signal, files))
    millivolts = read.samples / read.steps_per_mv[:, None]
    return millivolts * (1e3 / _microvolts(signal)), read.rate


def _edf(path: Path, signal: Signal, files: Files) -> OverTime:
    if not signal.channels:
        raise RecordError(f"the signal {signal.name} names no channels: EDF files have many")
    names = [files.channels.get(name, name) for name in signal.channels]
    recording = read_edf(path, names)
    rates = [recording.rates[name] for name in names]
    unit = _microvolts(signal)
    if len(set(rates)) == 1:
        stacked = np.stack([recording.signals[name] for name in names])
        stacked /= unit
        return stacked, rates[0]
    if signal.rate is None:
        raise RecordError("its channels have several rates, and the signal has none")
    values = [
        resample(recording.signals[name] / unit, rate, signal.rate)
        for name, rate in zip(names, rates, strict=True)
    ]
    shortest = min(map(len, values))  # by rounding, a sample
    return np.stack([channel[:shortest] for channel in values]), signal.rate


def _microvolts(signal: Signal) -> float:
    unit = microvolts(signal.unit)
    if unit is None:
        raise RecordError(
            f"its channels are voltages, and {signal.name} is in {signal.unit}: expected one of "
            f"{VOLTAGES}"
        )
    return unit


def _samples(path: Path, signal: Signal, files: Files) -> OverTime:
    """An array (channel, time), or (time, channel) where only that has as many channels."""
    values, count = read_array(path, files.key), signal.stored_shape[0]
    if values.ndim == 1 and count == 1:
        values = values[None]
    if values.ndim == 2 and values.shape[1] == count != values.shape[0]:
        values = values.T
    if values.ndim != 2 or len(values) != count:
        raise RecordError(f"its array has the shape {values.shape}, expected ({count}, samples)")
    return np.asarray(values, np.float64), None


def _plane(path: Path, signal: Signal, files: Files) -> Picture:
    """An array (y, x), (y, x, channel) or (channel, y, x)."""
    values, count = read_array(path, files.key), signal.stored_shape[0]
    if values.ndim == 3 and values.shape[-1] != count == values.shape[0]:
        values = np.moveaxis(values, 0, -1)
    if values.ndim == 3 and values.shape[-1] == count == 1:
        values = values[..., 0]
    if values.ndim not in (2, 3) or values.shape[2:] not in ((), (count,)):
        raise RecordError(f"its array has the shape {values.shape}, expected (y, x, {count})")
    return np.ascontiguousarray(values), []


def _planes(path: Path, signal: Signal, files: Files) -> list[Array]:
    values = read_array(path, files.key)
    values = values[None] if values.ndim == 3 else values
    if values.ndim != 4 or values.shape[1] > MAX_SLICES:
        raise RecordError(f"its array has the shape {values.shape}, expected (z, y, x)")
    return list(values)


def _csv(path: Path, signal: Signal, files: Files) -> OverTime:
    """A row for each sample, a column for each channel; named in the first row, or not."""
    text = read_bounded(path, MAX_CSV_BYTES, "the table of samples")
    text = text.removeprefix(codecs.BOM_UTF8)
    stated = stated_separator(_first_line(text))
    text = text.partition(b"\n")[2] if stated else text
    first = composed(_first_line(text)).strip()
    mark = stated or separator_of(first)
    if mark not in first and " " in first:
        text, mark, first = without_blanks(text), " ", " ".join(first.split())
    cells = [cell.strip().strip('"') for cell in first.split(mark)]
    plain = [cell for cell in cells if cell.lower() not in TIMES]
    counted = plain == [str(number) for number in range(len(plain))] != ["0"]  # as pandas counts
    named = counted or not all(map(is_sample, cells))
    if counted and any(files.channels.get(name, name) in plain for name in signal.channels):
        counted = False  # the card calls them so
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(text),
            pa.csv.ReadOptions(autogenerate_column_names=not named, use_threads=False),
            pa.csv.ParseOptions(delimiter=mark),
        )
    except (pa.ArrowInvalid, ValueError) as error:
        raise RecordError(
            "it is not a table of samples: a row for each, the same columns"
        ) from error
    if named and (counted or not signal.channels):
        times = [name for name in table.column_names if name.strip().lower() in TIMES]
        table = table.drop_columns(list(dict.fromkeys(times)))
    by_name = named and not counted
    rows = _chosen(table.column_names if by_name else [""] * table.num_columns, signal, files)
    columns = [table.column(row) for row in rows]
    if not all(pa.types.is_integer(c.type) or pa.types.is_floating(c.type) for c in columns):
        raise RecordError("it holds samples that are not numbers")
    return np.stack([c.to_numpy().astype(np.float64) for c in columns]), None


def _first_line(text: bytes) -> str:
    return text[:4096].split(b"\n", 1)[0].decode("utf-8", "replace")


def _dicom(path: Path, signal: Signal, _: Files) -> Picture:
    if signal.dtype == "uint8":
        warnings = Counter[str]()
        return read_dicom(path, channels=signal.stored_shape[0], warnings=warnings), [*warnings]
    dataset = open_dicom(path)
    stored = pixels(dataset)
    values = rescaled(stored, dataset)
    return values, unusual(stored, values, dataset)


ARRAYS = (".npy", ".npz", ".h5", ".hdf5")
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".pgm", ".ppm")
IMAGES: dict[str, Callable[[Path, Signal, Files], Picture]] = {
    **dict.fromkeys(
        PICTURES, lambda path, signal, _: (read_image(path, signal.stored_shape[0]), [])
    ),
    **dict.fromkeys((".dcm", ".dicom"), _dicom),
    **dict.fromkeys(ARRAYS, _plane),
}
VOLUMES: dict[str, Callable[[Path, Signal, Files], Sequence[Volume | Array]]] = {
    **dict.fromkeys((".nii", ".nii.gz"), lambda path, *_: [read_nifti(path)]),
    ".mhd": lambda path, *_: [read_mhd(path)],
    ".dcm": lambda path, signal, _: [
        read_series(path if path.is_dir() else [path], ct=signal.unit == "HU")
    ],
    **dict.fromkeys(ARRAYS, _planes),
}
"""Readers of volumes: each channel of one, by its slices."""
OVER_TIME: dict[str, Callable[[Path, Signal, Files], OverTime]] = {
    ".hea": _wfdb,
    ".edf": _edf,
    **dict.fromkeys((".csv", ".tsv", TEXT), _csv),
    **dict.fromkeys(ARRAYS, _samples),
}
