"""What signal the files of a folder seem to hold, for `guess`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmd_ray.data.datasets.any_file import ARRAYS, IMAGES, OVER_TIME, TIMES, VOLUMES
from benchmd_ray.data.datasets.record_rows import label_place, read_record_rows
from benchmd_ray.data.readers import edf, wfdb_header
from benchmd_ray.data.readers.arrays import Array, read_array
from benchmd_ray.data.readers.headers import microvolts
from benchmd_ray.data.readers.image import read_image
from benchmd_ray.data.readers.metaimage import read_mhd
from benchmd_ray.data.readers.nifti import read_nifti
from benchmd_ray.data.records import RecordError
from benchmd_ray.data.tables import header_of, is_sample
from benchmd_ray.errors import BenchmdError

KNOWN = tuple(dict.fromkeys([*IMAGES, *OVER_TIME, *VOLUMES]))
"""Endings of files that a catalog can be built of."""
SECONDS = 10
"""Length of a signal over time at most, until the user says another."""
RATE = 100.0
"""Hz, of files that state none."""
LONGEST_TEXT = 2**20
"""Bytes of a text file whose samples are counted."""
LOOKED_AT = 20
"""Pictures whose size is looked at."""
LARGEST, SMALLEST = 224, 28
"""Pixels of a side of stored pictures."""


@dataclass
class Guess:
    """What a folder seems to hold."""

    files: dict[str, Any]
    """Keys of the card's `Files`."""
    classes: list[str]
    signal: dict[str, Any] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    """What was taken for what."""
    unknown: list[str] = field(default_factory=list)
    """What the user has to say."""
    cautions: list[str] = field(default_factory=list)
    """What makes results wrong if it is left as it is."""
    patients: int = 0
    """How many patients there are; 0 where they are not known."""
    private_names: bool = False
    """Whether names of files hold patients."""
    inside: str = ""
    """The one folder in the folder in which all of it is."""


def ending_of(name: str) -> str:
    """The ending of the name of a file of a known format, as it is written."""
    return name[-max(len(end) for end in KNOWN if name.lower().endswith(end)) :]


def add_signal(guess: Guess, files: Sequence[Path]) -> None:
    example = files[0]
    end = ending_of(example.name).lower()
    try:
        if end in ARRAYS:
            _add_array_signal(guess, read_array(example))
        elif end in VOLUMES and end not in IMAGES:
            shape = (read_mhd(example) if end == ".mhd" else read_nifti(example)).shape
            guess.signal = _volume_signal(1, shape, "int16", "HU" if end == ".mhd" else "1")
        elif end in IMAGES:
            is_dicom = end in (".dcm", ".dicom")
            if is_dicom:
                guess.signal = _image_signal(guess, 1, LARGEST)
                guess.unknown.append("DICOM files are taken for pictures, each one a record")
                return
            pictures = [read_image(path, 3) for path in _some(files)]
            is_grey = all((pixels == pixels[..., :1]).all() for pixels in pictures)
            largest = max(max(pixels.shape[:2]) for pixels in pictures)
            guess.signal = _image_signal(guess, 1 if is_grey else 3, largest)
        elif "rows" in guess.files:
            rows = read_record_rows(example, [label_place(guess.files["rows"])])
            guess.signal = _time_signal(guess, [""], None, "1", rows.samples.shape[1])
        else:
            names, rate, unit = _over_time(example, end)
            lines = _most_lines(_some(files)) if rate is None else 0
            samples = max(0, lines - any(names))  # a line is of names
            guess.signal = _time_signal(guess, names, rate, unit, samples)
    except RecordError as error:
        raise BenchmdError(f"{example} cannot be read: {error}.") from error


def _some(files: Sequence[Path]) -> Sequence[Path]:
    """At most `LOOKED_AT` of the files, evenly spread."""
    return files[:: -(-len(files) // LOOKED_AT)]


def _most_lines(files: Sequence[Path]) -> int:
    """Lines of the longest text file; 0 if one has more than a record has samples."""
    longest = 0
    for path in files:
        with path.open("rb") as file:
            text = file.read(LONGEST_TEXT + 1)
        longest = max(longest, text.count(b"\n"))
        if len(text) > LONGEST_TEXT or longest > SECONDS * RATE:
            return 0
    return longest


def _add_array_signal(guess: Guess, values: Array) -> None:
    of_bytes, shape = values.dtype.name == "uint8", values.shape
    if values.ndim == 1 or (values.ndim == 2 and not of_bytes):
        names = ["" for _ in range(min(shape) if values.ndim == 2 else 1)]
        guess.signal = _time_signal(guess, names, None, "1")
    elif values.ndim == 2 or (values.ndim == 3 and of_bytes and 3 in (shape[0], shape[-1])):
        channels = 1 if values.ndim == 2 else 3
        extents = shape[1:] if channels == 3 == shape[0] else shape[:2]
        guess.signal = _image_signal(guess, channels, max(extents))
    elif values.ndim in (3, 4):
        dtype = "uint8" if of_bytes else "int16"
        guess.signal = _volume_signal(1 if values.ndim == 3 else shape[0], shape[-3:], dtype, "1")
    else:
        raise RecordError(f"its array has the shape {shape}, expected one to four axes")


def _image_signal(guess: Guess, channels: int, largest: int) -> dict[str, Any]:
    """Pictures of at most 224 pixels, as large as the largest that was looked at."""
    side = min(LARGEST, max(SMALLEST, largest))
    patch = next(patch for most, patch in ((32, 4), (96, 8), (LARGEST, 16)) if side <= most)
    side = -(-side // patch) * patch
    shape = [channels, side, side]
    guess.guessed.append(
        f"pictures have up to {largest:,} pixels a side and are stored as {side} × {side}"
    )
    return {
        "axes": ["channel", "y", "x"], "stored_shape": shape, "input_shape": shape,
        "dtype": "uint8", "unit": "grey level", "patch": [patch, patch],
        "normaliser": "source-statistics",
    }  # fmt: skip


def _volume_signal(channels: int, extents: Sequence[int], dtype: str, unit: str) -> dict[str, Any]:
    """Windows of up to 32 slices, as in the first file."""
    depth = min(32, max(8, extents[0] // 8 * 8))
    side = 96 if max(extents[1:]) <= 160 else 224
    shape = [channels, depth, side, side]
    return {
        "axes": ["channel", "z", "y", "x"], "stored_shape": shape, "input_shape": shape,
        "dtype": dtype, "unit": unit, "patch": [8, 16, 16],
        "normaliser": "source-statistics" if unit == "HU" else "record-range",
    }  # fmt: skip


def _time_signal(
    guess: Guess, names: Sequence[str], rate: float | None, unit: str, samples: int = 0
) -> dict[str, Any]:
    """A signal of `SECONDS`, or of so many samples and what fills the last patch."""
    if rate is None:
        rate = RATE
        guess.files["rate"] = rate
        guess.unknown.append(
            "the files state no rate: 100 Hz is only a guess, see rate in both cards"
        )
    patch = max(1, round(rate / 4))
    length = max(patch, round(SECONDS * rate) // patch * patch)
    if samples:
        patch = min(patch, samples // 8)
        length = -(-samples // patch) * patch
    else:
        guess.guessed.append(
            f"a record has {length:,} samples: longer recordings are cut into several, and what "
            "is left of them is dropped (stored_shape and input_shape)"
        )
    named: dict[str, Any] = {"channels": list(names)} if all(names) else {}
    return {
        "axes": ["channel", "time"], "stored_shape": [len(names), length],
        "input_shape": [len(names), length], "dtype": "int16", "unit": unit, "patch": [patch],
        "normaliser": "record-range", **named, "rate": rate,
    }  # fmt: skip


def _over_time(path: Path, end: str) -> tuple[list[str], float | None, str]:
    if end == ".hea":
        header = wfdb_header.read_header(path)
        rates = [
            (signal.name, header.rate * signal.frame, signal.unit) for signal in header.signals
        ]
        return *_voltages(rates), "mV"
    if end == ".edf":
        edf_header = edf.read_header(path)
        channels = edf_header.channels
        rates = [(c.name, c.samples / edf_header.seconds, c.unit) for c in channels]
        return *_voltages(rates), "µV"
    names = header_of(path)[0]
    names = names[0].split() if len(names) == 1 else names  # separated by blanks
    if not any(names):
        raise RecordError("it is empty; expected a row for each sample")
    if all(map(is_sample, names)):
        return [""] * len(names), None, "1"
    return [name for name in names if name.lower() not in TIMES], None, "1"


def _voltages(channels: Sequence[tuple[str, float, str]]) -> tuple[list[str], float]:
    """Names, rate and unit of the channels that are voltages of one rate."""
    usable = [(name, rate) for name, rate, unit in channels if microvolts(unit) is not None]
    if not usable:
        raise RecordError("none of its channels is a voltage")
    return [name for name, rate in usable if rate == usable[0][1]], usable[0][1]
