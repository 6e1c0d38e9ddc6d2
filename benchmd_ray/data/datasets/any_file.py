"""One file of any format that a reader knows, as a signal of a catalog: for `listed`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from benchmd_ray.data.cards import Files
from benchmd_ray.data.readers.bounded import BoundedFile, read_bounded
from benchmd_ray.data.readers.dicom import read_dicom
from benchmd_ray.data.readers.edf import read_edf
from benchmd_ray.data.readers.image import Pixels, read_image
from benchmd_ray.data.readers.wfdb import read_wfdb
from benchmd_ray.data.records import RecordError, RecordLeftOut, shown_names
from benchmd_ray.data.transforms import fitted, quantise, resample, segments
from benchmd_ray.signals import Signal

VERSION = 1
"""Raised whenever what is stored of a file changes."""
MAX_VALUES = 2**27
"""Values of an array or a table that is read whole."""
MAX_CSV_BYTES = 2**28
MICROVOLTS = {"µV": 1.0, "uV": 1.0, "mV": 1e3, "V": 1e6}
"""Of a unit of voltage, which EDF files are read in."""

Values = npt.NDArray[np.float64]


class Part(NamedTuple):
    """What a file gives for one record."""

    signal: npt.NDArray[np.int16] | npt.NDArray[np.uint8]
    """``stored_shape`` of the signal."""
    scale: float
    valid_size: tuple[int, ...]


def suffixes(signal: Signal) -> tuple[str, ...]:
    """Endings of the files that a signal of these axes is read from, in lower case."""
    return tuple(OVER_TIME if signal.axes[-1] == "time" else IMAGES)


def read_file(path: Path, signal: Signal, files: Files) -> list[Part]:
    """What a file gives: one part, or the segments of a longer signal over time.

    Images are fitted into the square (decision D3). Signals over time are resampled to the signal's
    rate, in its unit: WFDB and EDF files say theirs, other files hold it. Shorter ones are padded
    with zeros on both sides.

    Args:
        path: The file, its format known by its ending.
        signal: What is stored.
        files: What the card says of the files.

    Raises:
        RecordError: Its format is unknown or of other signals, or it cannot be read as the signal.
        RecordLeftOut: It has no sample.
    """
    readers: dict[str, Any] = OVER_TIME if signal.axes[-1] == "time" else IMAGES
    read = readers.get(path.suffix.lower())
    if read is None:
        raise RecordError(
            f"files that end in {path.suffix or 'nothing'} hold no {signal.name}: expected one of "
            f"{', '.join(readers)}"
        )
    if signal.axes[-1] != "time":
        return [_image(read(path, signal), signal)]
    values, rate = read(path, signal, files)
    return _over_time(values, rate or files.rate, signal, files)


def _image(pixels: Pixels, signal: Signal) -> Part:
    if signal.dtype != "uint8" or len(signal.axes) != 3:
        raise RecordError(
            f"images hold no {signal.name}: expected the axes channel, y and x, uint8"
        )
    if (pixels == pixels[0, 0]).all():
        raise RecordError(f"every pixel is {pixels[0, 0]}; expected an image")
    stored, valid = fitted(pixels, signal.stored_shape[-1])
    return Part(np.ascontiguousarray(stored), 1.0, valid)


def _over_time(values: Values, rate: float | None, signal: Signal, files: Files) -> list[Part]:
    """Segments of a signal, (channel, time), in its unit."""
    length = signal.stored_shape[-1]
    if rate is None or signal.rate is None:
        raise RecordError("its sampling rate is not known: state it in the card, as rate of files")
    if not np.isfinite(values).all():
        raise RecordError("it holds values that are not finite")
    if values.shape[-1] == 0:
        raise RecordLeftOut("it holds no sample")
    if (values == values[:, :1]).all():
        raise RecordError("every channel is constant; expected a signal")
    resampled = resample(values, rate, signal.rate)
    held = resampled.shape[-1]
    if files.cut == "segments" and held >= length:
        parts = segments(resampled, length)
    else:
        start = max(0, held - length) // 2 if files.cut == "centre" else 0
        parts = [resampled[..., start : start + length]]
    return [_padded(part, length) for part in parts]


def _padded(part: npt.NDArray[Any], length: int) -> Part:
    stored, scale = quantise(np.asarray(part, np.float64))
    valid = stored.shape[-1]
    before = (length - valid) // 2  # as images are, so that normalisers find what is valid
    return Part(np.pad(stored, ((0, 0), (before, length - valid - before))), scale, (valid,))


def _chosen(names: Sequence[str], signal: Signal, files: Files) -> list[int]:
    """Places of the signal's channels in a file: by name where both name them, else as they come.

    Raises:
        RecordError: One is missing, or there are other numbers of channels.
    """
    wanted = [files.channels.get(name, name) for name in signal.channels]
    if wanted and any(names):
        plain = [name.strip().lower() for name in names]
        missing = [name for name in wanted if plain.count(name.strip().lower()) != 1]
        if not missing:
            return [plain.index(name.strip().lower()) for name in wanted]
        raise RecordError(
            f"channel {missing[0]} is there {plain.count(missing[0].strip().lower())} times, "
            f"expected once; the channels are {shown_names(names)}"
        )
    count = signal.stored_shape[0]
    if len(names) != count:
        raise RecordError(f"it has {len(names)} channels, expected {count}")
    return list(range(count))


def _wfdb(path: Path, signal: Signal, files: Files) -> tuple[Values, float | None]:
    held = read_wfdb(path.with_suffix(".hea"))
    rows = _chosen(held.names, signal, files)
    millivolts = held.samples[rows] / held.steps_per_mv[rows][:, None]
    return millivolts * 1e3 / _microvolts(signal), held.rate


def _edf(path: Path, signal: Signal, files: Files) -> tuple[Values, float | None]:
    if not signal.channels:
        raise RecordError(f"the signal {signal.name} names no channels: EDF files have many")
    names = [files.channels.get(name, name) for name in signal.channels]
    held = read_edf(path, names)
    rates = set(held.rates.values())
    if len(rates) > 1:
        raise RecordError(f"its channels have several rates: {', '.join(map(str, sorted(rates)))}")
    values = np.stack([held.signals[name] for name in names])
    return np.asarray(values, np.float64) / _microvolts(signal), rates.pop()


def _microvolts(signal: Signal) -> float:
    if signal.unit not in MICROVOLTS:
        raise RecordError(
            f"its channels are voltages, and {signal.name} is in {signal.unit}: expected one of "
            f"{', '.join(MICROVOLTS)}"
        )
    return MICROVOLTS[signal.unit]


def _npy(path: Path, signal: Signal, files: Files) -> tuple[Values, float | None]:
    values = _array(path)
    if values.ndim == 1 and signal.stored_shape[0] == 1:
        values = values[None]
    if values.ndim != 2:
        raise RecordError(
            f"its array has shape {values.shape}, expected ({signal.stored_shape[0]}, samples)"
        )
    _chosen([""] * len(values), signal, files)
    return np.asarray(values, np.float64), None


def _array(path: Path) -> npt.NDArray[Any]:
    """The array of an NPY file, nothing of which is unpickled.

    Raises:
        RecordError: It is no such file, or has another size than it says.
    """
    try:
        with BoundedFile(path, 8 * MAX_VALUES + 2**16, at_once=8 * MAX_VALUES) as file:
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise RecordError("it is no NPY file of version 1 or 2")
            header: Any = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, fortran, dtype = header(file, max_header_size=4096)
            count = math.prod(shape)
            if dtype.kind not in "iuf" or count > MAX_VALUES:
                raise RecordError(f"its array has type {dtype} and shape {shape}, expected numbers")
            data = file.read()
            if len(data) != count * dtype.itemsize:
                raise RecordError(f"it has {len(data):,} bytes of values, its header says {shape}")
    except (OSError, ValueError) as error:
        raise RecordError(f"it is no NPY file ({type(error).__name__})") from error
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _csv(path: Path, signal: Signal, files: Files) -> tuple[Values, float | None]:
    """A row for each sample, a column for each channel; named in the first row, or not."""
    text = read_bounded(path, MAX_CSV_BYTES, "the table of samples")
    first = text[:4096].split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    mark = max(",;\t", key=first.count)
    named = not all(map(_is_number, first.split(mark)))
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(text),
            pa.csv.ReadOptions(autogenerate_column_names=not named, use_threads=False),
            pa.csv.ParseOptions(delimiter=mark),
        )
    except (pa.ArrowInvalid, ValueError) as error:
        raise RecordError("it is no table of samples: a row for each, the same columns") from error
    rows = _chosen(table.column_names if named else [""] * table.num_columns, signal, files)
    columns = [table.column(row) for row in rows]
    if not all(pa.types.is_integer(c.type) or pa.types.is_floating(c.type) for c in columns):
        raise RecordError("it holds samples that are no numbers")
    return np.stack([c.to_numpy().astype(np.float64) for c in columns]), None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pixels(path: Path, signal: Signal) -> Pixels:
    return read_image(path, signal.stored_shape[0])


def _dicom(path: Path, signal: Signal) -> Pixels:
    return read_dicom(path, channels=signal.stored_shape[0])


IMAGES: dict[str, Callable[[Path, Signal], Pixels]] = {
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".pgm", ".ppm"), _pixels),
    **dict.fromkeys((".dcm", ".dicom"), _dicom),
}
"""Readers of images, by the ending of a file."""
OVER_TIME: dict[str, Callable[[Path, Signal, Files], tuple[Values, float | None]]] = {
    ".hea": _wfdb,
    ".edf": _edf,
    ".npy": _npy,
    ".csv": _csv,
    ".tsv": _csv,
}
"""Readers of signals over time: (channel, time) in the signal's unit, and the rate if known."""
