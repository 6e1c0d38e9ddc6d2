"""EDF and EDF+ files: signals in µV, each with its own sampling rate, and annotations.

Format: https://www.edfplus.info/specs/edf.html and https://www.edfplus.info/specs/edfplus.html.
The header is compared with the file's size; then ``mne`` decodes the channels that are asked for
and ``edfio`` annotations, both from files that hold nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.plain_numbers import BLANKS, number_of, whole_of
from benchmd_ray.data.readers.bounded import ANY, BoundedFile
from benchmd_ray.data.readers.headers import (
    VOLTAGES,
    decoded,
    microvolts,
    printable,
    require_step,
)
from benchmd_ray.data.records import RecordError, require_once
from benchmd_ray.errors import composed
from benchmd_ray.extensions.extras import importing

VERSION = 3

Samples = npt.NDArray[np.float64]

READING = "reading EDF files"
"""What needs `mne` and `edfio`, for messages."""
ANNOTATIONS = "EDF Annotations"
MAX_SAMPLES = 2**27
"""Of the channels that are decoded; more are refused. Four at 500 Hz have so many in 18 hours."""
AT_ONCE = 2**18
"""Samples of a channel that are decoded at a time."""
MAX_ANNOTATION_BYTES = 2**22
"""Of the channels of annotations; more are refused. A hypnogram has about 20 kB."""
_SIGNAL_FIELDS = (
    ("label", 16), ("transducer", 80), ("unit", 8), ("physical minimum", 8),
    ("physical maximum", 8), ("digital minimum", 8), ("digital maximum", 8), ("prefilter", 80),
    ("samples", 8), ("reserved", 32),
)  # fmt: skip
"""Fields of the header that are there once per signal, and their width in bytes."""


@dataclass(frozen=True)
class Channel:
    """What a header says of one signal."""

    name: str
    unit: str
    samples: int
    """In each data record."""
    start: int
    """Samples of other channels before its own, in each data record."""
    physical: tuple[str, str]
    """Smallest and largest value in the unit, as written."""
    digital: tuple[str, str]
    """Smallest and largest sample, as written."""


@dataclass(frozen=True)
class EdfHeader:
    """A header that agrees with the size of its file."""

    channels: tuple[Channel, ...]
    records: int
    seconds: float
    """Duration of a data record; 0 in a file of only annotations."""
    discontinuous: bool
    """True for EDF+D: there may be gaps between the data records."""


@dataclass(frozen=True)
class Recording:
    """Signals of an EDF file."""

    signals: dict[str, Samples]
    """(time,) in µV, by the name that was asked for."""
    rates: dict[str, float]
    """Sampling rate of each in Hz."""


class TimedAnnotation(NamedTuple):
    """An EDF+ annotation."""

    onset: float
    """Seconds after the start."""
    duration: float | None
    """Seconds; None where the file gives none."""
    text: str


def read_header(path: Path) -> EdfHeader:
    """Read a header and compare it with the size of the file."""
    try:
        with BoundedFile(path, ANY) as file:
            size = file.bytes
            fixed = file.read(256)
            if len(fixed) < 256:
                raise RecordError(f"it is cut off after {len(fixed)} bytes. Fetch it again.")
            if fixed[:8].strip(b" \0") != b"0":
                raise RecordError("it is not an EDF file: it does not begin with '0'")
            signals = _whole(fixed[252:256], "number of signals")
            if signals < 1:
                raise RecordError(f"its header names {signals} signals; expected at least one")
            table = file.read(256 * signals)
    except OSError as error:
        raise RecordError(f"it cannot be opened: {error.strerror or error}") from error
    start = _whole(fixed[184:192], "size of the header")
    if start != 256 * (signals + 1) or len(table) < 256 * signals:
        again = ". Fetch it again." if len(table) < 256 * signals else ""
        raise RecordError(
            f"its header of {signals} signals says it is {start} bytes long, the file has {size}; "
            f"expected {256 * (signals + 1)}{again}"
        )
    channels = _channels(table, signals)
    seconds = _number(fixed[244:252], "duration of a data record")
    if seconds < 0 or (seconds == 0 and any(c.name != ANNOTATIONS for c in channels)):
        raise RecordError(f"its data records last {seconds:g} s; expected a positive duration")
    stated = _whole(fixed[236:244], "number of data records")
    records = _records(stated, size - start, 2 * sum(c.samples for c in channels))
    return EdfHeader(channels, records, seconds, fixed[192:197] == b"EDF+D")


def read_edf(path: Path, channels: Sequence[str]) -> Recording:
    """Read some channels in µV, each at its own rate; case and blanks of names do not matter.

    Discontinuous files (EDF+D) are refused.
    """
    header = read_header(path)
    if header.discontinuous:
        raise RecordError("it is discontinuous (EDF+D); expected a recording without gaps")
    chosen = {name: _find(header, name) for name in channels}
    samples = header.records * sum(channel.samples for channel in set(chosen.values()))
    if samples > MAX_SAMPLES:
        raise RecordError(
            f"its channels have {samples:,} samples, expected at most {MAX_SAMPLES:,}"
        )
    scales = {name: _scale(channel) for name, channel in chosen.items()}
    data = _data(path, header)
    return Recording(
        signals={
            name: _signal(data[:, channel.start :][:, : channel.samples], *scales[name])
            for name, channel in chosen.items()
        },
        rates={name: channel.samples / header.seconds for name, channel in chosen.items()},
    )


def read_annotations(path: Path) -> list[TimedAnnotation]:
    """Annotations of an EDF+ file in order of their onset."""
    header = read_header(path)
    channels = [channel for channel in header.channels if channel.name == ANNOTATIONS]
    if not channels:
        raise RecordError(f"it has no channel {ANNOTATIONS!r}; expected an EDF+ file")
    if 2 * header.records * sum(channel.samples for channel in channels) > MAX_ANNOTATION_BYTES:
        raise RecordError(f"its annotations have more than {MAX_ANNOTATION_BYTES:,} bytes")
    with importing("edfio", READING):
        import edfio
    data = _data(path, header)
    parts = [data[:, channel.start :][:, : channel.samples] for channel in channels]
    content = _file_of(parts, label=ANNOTATIONS, kind="EDF+D" if header.discontinuous else "EDF+C")
    try:
        annotations = edfio.read_edf(io.BytesIO(content), header_encoding="latin-1").annotations
        read = (TimedAnnotation(a.onset, a.duration, a.text) for a in annotations)
        return sorted(read, key=lambda annotation: annotation.onset)
    except MemoryError:
        raise
    except Exception as error:  # edfio raises whatever its parsing meets, and may quote the header
        raise RecordError(f"its annotations cannot be read ({type(error).__name__})") from None


def _data(path: Path, header: EdfHeader) -> npt.NDArray[np.int16]:
    start = 256 * (len(header.channels) + 1)
    shape = (header.records, sum(channel.samples for channel in header.channels))
    try:
        return np.memmap(path, "<i2", "r", start, shape)
    except (OSError, ValueError) as error:  # it has become shorter
        raise RecordError(f"it cannot be read as EDF ({type(error).__name__})") from error


def plain(name: str) -> str:
    """A channel's name as it is compared: in lower case and without blanks."""
    return "".join(composed(name).replace("\0", "").split()).lower()


def _channels(table: bytes, signals: int) -> tuple[Channel, ...]:
    """Channels of the second part of a header, which holds field by field."""
    fields: dict[str, list[bytes]] = {}
    start = 0
    for name, width in _SIGNAL_FIELDS:
        fields[name] = [table[start + i * width :][:width] for i in range(signals)]
        start += signals * width
    text = {name: [decoded(value.strip(b"\0 \t\r\n")) for value in fields[name]] for name in fields}
    samples = [_whole(value, "number of samples") for value in fields["samples"]]
    if min(samples) < 0 or max(samples) == 0:
        raise RecordError(f"a signal has {min(samples)} samples in a data record; expected some")
    starts = [0, *accumulate(samples)]
    return tuple(
        Channel(
            name=printable(text["label"][i]),
            unit=text["unit"][i],
            samples=samples[i],
            start=starts[i],
            physical=(text["physical minimum"][i], text["physical maximum"][i]),
            digital=(text["digital minimum"][i], text["digital maximum"][i]),
        )
        for i in range(signals)
    )


def _records(stated: int, available: int, size: int) -> int:
    """Number of data records of ``size`` bytes in the ``available`` ones behind the header."""
    if stated == -1:  # the recorder did not come to write it
        stated = available // size
    elif available != stated * size:
        what = "cut off" if available < stated * size else "longer than its header says"
        raise RecordError(
            f"it is {what}: {available:,} bytes of data, expected {stated:,} records of {size:,}. "
            "Fetch it again."
        )
    if stated < 1:
        raise RecordError("it holds no whole data record")
    return stated


def _find(header: EdfHeader, name: str) -> Channel:
    matches = [channel for channel in header.channels if plain(channel.name) == plain(name)]
    require_once("channel", name, len(matches), (channel.name for channel in header.channels))
    return matches[0]


def _scale(channel: Channel) -> tuple[float, float]:
    """What turns the samples of a channel into µV: factor and offset."""
    if channel.samples == 0:
        raise RecordError(
            f"channel {channel.name}: it has 0 samples in a data record; expected some"
        )
    unit = microvolts(channel.unit)
    if unit is None:
        raise RecordError(
            f"channel {channel.name}: unit {channel.unit!r} is not a voltage; "
            f"expected one of {VOLTAGES}"
        )
    low, high = (_number(text, "physical range") for text in channel.physical)
    lowest, highest = (_number(text, "digital range") for text in channel.digital)
    step = (high - low) / ((highest - lowest) or 1) * unit
    offset = low * unit - lowest * step
    if low == high or lowest >= highest:
        raise RecordError(
            f"channel {channel.name}: samples from {lowest:g} to {highest:g} stand for values from "
            f"{low:g} to {high:g}; expected two ranges that are not empty"
        )
    if not -(2**15) <= lowest < highest <= 2**15:
        raise RecordError(
            f"channel {channel.name}: samples from {lowest:g} to {highest:g}; expected whole "
            "numbers of 16 bits"
        )
    require_step(f"channel {channel.name}", step)
    require_step(f"channel {channel.name}", abs(step) + abs(offset) / 2**16)
    return step, offset


def _signal(data: npt.NDArray[np.int16], step: float, offset: float) -> Samples:
    """A channel in µV, (time,), decoded block by block of data records, (records, samples)."""
    records, samples = data.shape
    signal = np.empty((records, samples))
    at_once = max(1, AT_ONCE // samples)
    for start in range(0, records, at_once):
        part = data[start : start + at_once]
        signal[start : start + at_once] = _decoded(part).reshape(part.shape)
    signal *= step
    signal += offset
    return signal.reshape(-1)


def _decoded(data: npt.NDArray[np.int16]) -> Samples:
    """Samples, (time,), of a channel's part of some data records, (records, samples)."""
    with importing("mne", READING):
        import mne
    records, samples = data.shape
    file = io.BytesIO(_file_of([data], label="0"))
    raw = mne.io.read_raw_edf(file, preload=True, stim_channel=None, verbose="ERROR")
    values = np.rint(raw.get_data()[0] * 1e6)  # volts
    if values.shape != (records * samples,):
        raise RecordError(f"its channel decodes to {len(values):,} samples, not those it has")
    return np.asarray(values, np.float64)


def _file_of(parts: Sequence[npt.NDArray[np.int16]], *, label: str, kind: str = "") -> bytes:
    """An EDF file of some channels of another, (records, samples) each, whose unit is a step."""
    records, signals = len(parts[0]), len(parts)
    fields = dict.fromkeys(("physical minimum", "digital minimum"), "-32768")
    fields |= dict.fromkeys(("physical maximum", "digital maximum"), "32767")
    fields |= {"label": label, "unit": "uV"}
    fixed = (("0", 168), ("01.01.85", 8), ("00.00.00", 8), (256 * (signals + 1), 8), (kind, 44))
    head = [*fixed, (records, 8), ("1", 8), (signals, 4)]
    for name, width in _SIGNAL_FIELDS:
        stated = [part.shape[1] if name == "samples" else fields.get(name, "") for part in parts]
        head += [(text, width) for text in stated]
    content = "".join(str(text).ljust(width) for text, width in head).encode("ascii")
    return content + np.hstack(parts).tobytes()


def _whole(text: bytes, what: str) -> int:
    value = whole_of(text.decode("latin-1").split("\0")[0].strip(BLANKS))
    if value is None:
        raise _faulty(what)
    return value


def _number(text: str | bytes, what: str) -> float:
    text = text.decode("latin-1") if isinstance(text, bytes) else text
    value = number_of(text.split("\0")[0].strip(BLANKS).replace(",", "."))
    if value is None:
        raise _faulty(what)
    return value


def _faulty(what: str) -> RecordError:
    """Without the bytes: where some are missing before, these are of the patient's field."""
    return RecordError(f"its header is damaged: {what} is not a number")
