"""WFDB records: a header (``.hea``) next to ``.dat`` or MATLAB v4 (``.mat``) samples of 16 bits.

Format: https://physionet.org/physiotools/wag/header-5.htm and signal-5.htm, format 16. A header is
compared with the size of its files before a sample is read, and with the checksums after.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.records import RecordError

VOLTAGE = {"v": 1e3, "mv": 1.0, "uv": 1e-3, "µv": 1e-3, "nv": 1e-6}
"""Millivolts in one unit, by the unit's name in lower case."""
MAX_HEADER_BYTES = 2**16
"""Larger headers are refused; those of 12 leads have about 1 kB."""
MAX_CHANNELS = 256
"""Of a record; an ECG has 12 to 15."""
MAX_SAMPLES = 2**26
"""Of a record, over all channels; 12 leads at 500 Hz have so many in three hours."""
SAMPLE_BYTES = 2
INVALID = -(2**15)
"""What a sample that was not recorded is stored as."""
DEFAULT_RATE, DEFAULT_GAIN = 250.0, 200.0
"""What the format defines where a header states none; a gain of 0 counts as none."""

NUMBER = r"\d{0,12}(?:\.\d{0,12})?(?:[eE][+-]?\d{1,3})?"
RECORD = re.compile(
    rf"""
    [^\s/]+ [ \t]+ (?P<channels>\d{{1,6}})
    (?: [ \t]+ (?P<rate>{NUMBER}) (?:/{NUMBER})? (?:\(-?{NUMBER}\))?
        (?: [ \t]+ (?P<samples>\d{{1,12}}) (?:[ \t].*)? )? )?
    """,
    re.VERBOSE | re.ASCII,
)
"""Name, number of channels, rate[/counter's rate][(counter)], samples of a channel, time, date."""
SIGNAL = re.compile(
    rf"""
    (?P<file>\S+) [ \t]+
    (?P<format>\d{{1,4}}) (?:x(?P<frame>\d{{1,6}}))? (?::(?P<skew>\d{{1,9}}))?
        (?:\+(?P<offset>\d{{1,12}}))?
    (?: [ \t]+ (?P<gain>-?{NUMBER}) (?:\((?P<baseline>-?\d{{1,9}})\))? (?:/(?P<unit>\S{{1,20}}))?
    (?: [ \t]+ \d{{1,9}}
    (?: [ \t]+ (?P<zero>-?\d{{1,9}})
    (?: [ \t]+ -?\d{{1,9}}
    (?: [ \t]+ (?P<checksum>-?\d{{1,9}})
    (?: [ \t]+ \d{{1,9}}
    (?: [ \t]+ (?P<name>\S.*) )? )? )? )? )? )? )?
    """,
    re.VERBOSE | re.ASCII,
)
"""File, format[xsamples per frame][:skew][+offset], gain[(baseline)][/unit], resolution, zero
level, first sample, checksum, block size, description."""


@dataclass(frozen=True)
class Waveform:
    """Digital samples of several channels and what turns them into millivolts."""

    samples: npt.NDArray[np.int32]
    """(channel, time), the zero level already taken off."""
    steps_per_mv: npt.NDArray[np.float64]
    """(channel,) sample steps of one millivolt."""
    names: tuple[str, ...]
    """Channel names as the header writes them."""
    rate: float
    """Sampling rate in Hz."""


@dataclass(frozen=True)
class _Channel:
    """A line of a header."""

    file: str
    offset: int
    gain: float
    baseline: int
    unit: str
    checksum: int | None
    name: str


def read_wfdb(header: Path) -> Waveform:
    """Read one record.

    Raises:
        RecordError: The header or the samples cannot be read, are shorter than the header says,
            hold invalid samples, or do not match the header's checksums; or the samples are of
            another format than 16.
    """
    rate, length, channels = _header(header)
    digital = _samples(header.parent, length, channels)
    invalid = int(np.count_nonzero(digital == INVALID))
    if invalid:
        raise RecordError(f"{invalid} samples are marked invalid (NaN); expected none")
    for values, channel in zip(digital, channels, strict=True):
        _verify_checksum(values, channel)
    millivolts = [VOLTAGE[channel.unit.lower()] for channel in channels]
    baselines = np.array([channel.baseline for channel in channels], np.int32)
    return Waveform(
        samples=digital.astype(np.int32) - baselines[:, None],
        steps_per_mv=np.array([channel.gain for channel in channels]) / millivolts,
        names=tuple(channel.name for channel in channels),
        rate=rate,
    )


def read_comments(header: Path) -> dict[str, str]:
    """The ``# Key: value`` lines of a header, keys in lower case.

    Raises:
        RecordError: The header cannot be read or is no text file.
    """
    pairs = re.findall(r"^#[ \t]*(\w+)[ \t]*:(.*)$", _text(header), re.MULTILINE)
    return {key.lower(): value.strip() for key, value in pairs}


def _text(header: Path) -> str:
    content = read_bounded(header, MAX_HEADER_BYTES, "the header")
    try:
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RecordError(f"the header cannot be read: {error.reason}") from None


def _header(header: Path) -> tuple[float, int | None, list[_Channel]]:
    """Rate in Hz, samples of a channel (None: as many as there are) and the channels."""
    lines = [line.strip() for line in _text(header).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    found = RECORD.fullmatch(lines[0]) if lines else None
    if found is None:
        raise RecordError("not a readable WFDB record: its header does not begin with one")
    channels = int(found["channels"])
    if channels != len(lines) - 1 or not 1 <= channels <= MAX_CHANNELS:
        raise RecordError(
            f"its header names {channels} signals and describes {len(lines) - 1}; expected as "
            f"many, 1 to {MAX_CHANNELS}"
        )
    rate = DEFAULT_RATE if found["rate"] is None else _number(found["rate"], "a sampling rate")
    if rate <= 0:
        raise RecordError(f"a sampling rate of {rate:g} Hz; expected a positive number")
    described = [_channel(line, number) for number, line in enumerate(lines[1:], 1)]
    return rate, int(found["samples"] or 0) or None, described


def _channel(line: str, number: int) -> _Channel:
    """What a line says of the signal of that number."""
    found = SIGNAL.fullmatch(line)
    if found is None:
        raise RecordError(f"not a readable WFDB record: signal {number} is not described as one")
    if Path(found["file"]).name != found["file"]:
        raise RecordError(f"signal {number} names no file in the header's own folder")
    if found["format"] != "16" or found["frame"] not in (None, "1") or int(found["skew"] or 0):
        raise RecordError(
            f"the samples of signal {number} are of a format that is not decoded here; expected "
            "format 16, one sample a frame, without skew"
        )
    if not found["name"]:
        raise RecordError(f"signal {number} has no name")
    gain = _number(found["gain"] or "0", "a gain") or DEFAULT_GAIN
    if gain <= 0:
        raise RecordError(f"a gain of {gain:g} steps per unit; expected positive numbers")
    unit = found["unit"] or "mV"
    if unit.lower() not in VOLTAGE:
        raise RecordError(f"unit {unit!r} is no voltage; expected one of V, mV, µV, nV")
    baseline = found["baseline"] or found["zero"] or "0"
    return _Channel(
        file=found["file"],
        offset=int(found["offset"] or 0),
        gain=gain,
        baseline=int(baseline),
        unit=unit,
        checksum=None if found["checksum"] is None else int(found["checksum"]),
        name=found["name"],
    )


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise RecordError(f"{what} that is no finite number")
    return value


def _samples(folder: Path, length: int | None, channels: list[_Channel]) -> npt.NDArray[np.int16]:
    """The samples of a record, (channel, time), from one file or several."""
    groups = [list(group) for _, group in groupby(channels, key=lambda channel: channel.file)]
    if len({group[0].file for group in groups}) < len(groups):
        raise RecordError("the signals of one file are described apart; expected one after another")
    most = MAX_SAMPLES // len(channels)
    found = [_interleaved(folder / group[0].file, group, length, most) for group in groups]
    if len({values.shape[1] for values in found}) > 1:
        raise RecordError("its files hold different numbers of samples")
    return np.concatenate(found)


def _interleaved(
    path: Path, channels: list[_Channel], length: int | None, most: int
) -> npt.NDArray[np.int16]:
    """The samples of a file, (channel, time), at most so many of each channel.

    Raises:
        RecordError: It cannot be opened, or is shorter than the header says.
    """
    offset, frame = channels[0].offset, SAMPLE_BYTES * len(channels)
    try:
        held = path.stat().st_size - offset
        count = held // frame if length is None else length
        if not 0 < count <= most:
            raise RecordError(f"{count:,} samples of each channel; expected 1 to {most:,}")
        if held < count * frame:
            raise RecordError(
                f"its samples' file is cut off: {held:,} bytes of samples, expected "
                f"{count * frame:,}. Fetch it again."
            )
        values = np.fromfile(path, "<i2", count * len(channels), offset=offset)
    except OSError as error:
        why = type(error).__name__
        raise RecordError(f"its samples' file cannot be opened ({why}). Fetch it again.") from error
    return values.reshape(count, len(channels)).T


def _verify_checksum(values: npt.NDArray[np.int16], channel: _Channel) -> None:
    """Compare with the header's 16-bit sum of all samples, written signed or unsigned."""
    found = int(values.sum(dtype=np.int64)) % 65536
    if channel.checksum is not None and found != channel.checksum % 65536:
        raise RecordError(
            f"channel {channel.name}: the samples' checksum is {found}, the header says "
            f"{channel.checksum % 65536}; the file is damaged, fetch it again"
        )
