"""WFDB records: a header (``.hea``) next to ``.dat`` or MATLAB v4 (``.mat``) samples of 16 bits.

Format: https://physionet.org/physiotools/wag/header-5.htm and signal-5.htm, format 16. The ``wfdb``
package decodes, once the header is one that it reads soon and right, and that claims no more
samples than its files have; the samples are then compared with the header's checksums.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import wfdb

from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.records import RecordError

VERSION = 1
"""Raised whenever what it reads of the same file changes."""
VOLTAGE = {"v": 1e3, "mv": 1.0, "uv": 1e-3, "nv": 1e-6}
"""Millivolts in one unit, by the unit's name in lower case."""
MAX_HEADER_BYTES = 2**16
"""Larger headers are refused; those of 12 leads have about 1 kB."""
MAX_CHANNELS = 256
"""Of a record; an ECG has 12 to 15. The package takes 2 ms for each."""
MAX_SAMPLES = 2**26
"""Of a record, over all channels; 12 leads at 500 Hz have so many in three hours."""
SAMPLE_BYTES = 2
INVALID = -(2**15)
"""What a sample that was not recorded is stored as."""

NUMBER = r"(?:\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})"
RECORD = re.compile(
    rf"""
    (?P<name>[\w.-]{{1,200}}) [ \t]+ (?P<channels>\d{{1,6}})
    (?: [ \t]+ (?P<rate>{NUMBER}) (?:/{NUMBER})? (?:\(-?{NUMBER}\))?
        (?: [ \t]+ (?P<samples>\d{{1,12}}) (?:[ \t][^#]{{0,60}})? )? )?
    """,
    re.VERBOSE | re.ASCII,
)
"""Name, number of channels, rate[/counter's rate][(counter)], samples of a channel, time, date."""
SIGNAL = re.compile(
    rf"""
    (?P<file>\S{{1,200}}) [ \t]+
    (?P<format>\d{{1,4}}) (?:x(?P<frame>\d{{1,6}}))? (?::(?P<skew>\d{{1,9}}))?
        (?:\+(?P<offset>\d{{1,12}}))?
    (?: [ \t]+ -?{NUMBER} (?:e[+-]?\d{{1,2}})? (?:\(-?\d{{1,9}}\))? (?:/[\w^%?/-]{{1,20}})?
    (?: [ \t]+ \d{{1,9}}
    (?: [ \t]+ -?\d{{1,9}}
    (?: [ \t]+ -?\d{{1,9}}
    (?: [ \t]+ -?\d{{1,9}}
    (?: [ \t]+ \d{{1,9}}
    (?: [ \t]+ [^#\s][^#\t]{{0,200}} )? )? )? )? )? )? )?
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


def read_wfdb(header: Path) -> Waveform:
    """Read one record.

    Raises:
        RecordError: The header or the samples cannot be read, are shorter than the header says,
            hold invalid samples, or do not match the header's checksums; or the samples are of
            another format than 16.
    """
    record = _decode(header)
    if None in record.sig_name:
        raise RecordError("the header describes a signal without a name")
    gains = np.asarray(record.adc_gain, np.float64)
    if not (np.isfinite(gains) & (gains > 0)).all():
        raise RecordError(f"a gain of {gains.min():g} steps per unit; expected positive numbers")
    digital = np.asarray(record.d_signal, np.int64).T
    if invalid := int(np.count_nonzero(digital == INVALID)):
        raise RecordError(f"{invalid} samples are marked invalid (NaN); expected none")
    _verify_checksums(digital, record.checksum, record.sig_name)
    unknown = sorted({unit for unit in record.units if unit.lower() not in VOLTAGE})
    if unknown:
        raise RecordError(f"unit {unknown[0]!r} is not a voltage; expected one of V, mV, µV, nV")
    return Waveform(
        samples=(digital - np.asarray(record.baseline)[:, None]).astype(np.int32),
        steps_per_mv=gains / [VOLTAGE[unit.lower()] for unit in record.units],
        names=tuple(record.sig_name),
        rate=float(record.fs),
    )


def read_comments(header: Path) -> dict[str, str]:
    """The ``# Key: value`` lines of a header, keys in lower case.

    Raises:
        RecordError: The header cannot be read or is not a text file.
    """
    pairs = re.findall(r"^#[ \t]*(\w+)[ \t]*:(.*)$", _text(header), re.MULTILINE)
    return {key.lower(): value.strip() for key, value in pairs}


def _text(header: Path) -> str:
    content = read_bounded(header, MAX_HEADER_BYTES, "the header")
    try:
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RecordError(f"the header cannot be read: {error.reason}") from None


def _decode(header: Path) -> Any:
    """The ``wfdb`` record with digital samples.

    The package is given a copy of the lines that were checked: headers of CinC 2020 name the
    record with its file's ending, which it refuses, and of a micro sign it keeps nothing.
    """
    lines = [line.strip() for line in _text(header).replace("µ", "u").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    name, files = _require_plain(lines, header.parent)
    lines[0] = lines[0].replace(name, "record", 1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # The header comes first: a link of its name then fails and changes no raw file.
            Path(folder, "record.hea").write_text("\n".join(lines) + "\n", encoding="utf-8")
            for file in files:
                Path(folder, file).symlink_to(header.with_name(file).resolve())
            return wfdb.rdrecord(str(Path(folder, "record")), physical=False)
    except MemoryError:
        raise
    except Exception as error:  # wfdb raises whatever its parsing meets, and quotes the header
        raise RecordError(f"not a readable WFDB record ({type(error).__name__})") from error


def _require_plain(lines: list[str], folder: Path) -> tuple[str, set[str]]:
    """The record's name and its samples' files, where a header is one of `RECORD` and `SIGNAL`.

    Raises:
        RecordError: It is not, or claims more than there is.
    """
    record = RECORD.fullmatch(lines[0]) if lines else None
    if record is None:
        raise RecordError("not a readable WFDB record: its header does not begin with one")
    channels = int(record["channels"])
    if channels != len(lines) - 1 or not 1 <= channels <= MAX_CHANNELS:
        raise RecordError(
            f"its header names {channels} signals and describes {len(lines) - 1}; expected as "
            f"many, 1 to {MAX_CHANNELS}"
        )
    if record["rate"] and float(record["rate"]) == 0:
        raise RecordError("a sampling rate of 0 Hz; expected a positive number")
    signals = [_signal(line, number) for number, line in enumerate(lines[1:], 1)]
    _require_samples(signals, int(record["samples"] or 0), folder)
    return record["name"], {signal["file"] for signal in signals}


def _signal(line: str, number: int) -> re.Match[str]:
    """What a line says of the signal of that number."""
    found = SIGNAL.fullmatch(line)
    if found is None:
        raise RecordError(f"not a readable WFDB record: signal {number} is not described as one")
    if not re.fullmatch(r"[\w-]+(\.\w+)?", found["file"], re.ASCII):
        raise RecordError(f"signal {number} names no file in the header's own folder")
    if found["format"] != "16" or int(found["frame"] or 1) != 1 or int(found["skew"] or 0):
        raise RecordError(
            f"the samples of signal {number} are of a format that is not decoded here; expected "
            "format 16, one sample a frame, without skew"
        )
    return found


def _require_samples(signals: list[re.Match[str]], count: int, folder: Path) -> None:
    """Make sure that each file has as many samples of each channel as the header says.

    Args:
        signals: The header's lines.
        count: Samples of a channel; 0 where the header does not say, for all that there are.
        folder: Where the files are.
    """
    interleaved = Counter(signal["file"] for signal in signals)
    most = MAX_SAMPLES // len(signals)
    for signal in signals:
        frame = SAMPLE_BYTES * interleaved[signal["file"]]
        try:
            held = (folder / signal["file"]).stat().st_size - int(signal["offset"] or 0)
        except OSError as error:
            why = type(error).__name__
            raise RecordError(
                f"its samples' file, next to the header, cannot be opened ({why})"
            ) from error
        count = count or held // frame
        if not 0 < count <= most:
            raise RecordError(f"{count:,} samples of each channel; expected 1 to {most:,}")
        if held < count * frame:
            raise RecordError(
                f"its samples' file is cut off: {held:,} bytes of samples, expected "
                f"{count * frame:,}. Fetch it again."
            )


def _verify_checksums(
    digital: npt.NDArray[np.int64], expected: list[int | None] | None, names: list[str]
) -> None:
    """Compare with the header's 16-bit sums of all samples, written signed or unsigned."""
    expected = expected or [None] * len(names)
    for channel, name, checksum in zip(digital, names, expected, strict=True):
        if checksum is not None and (int(channel.sum()) - checksum) % 65536:
            raise RecordError(
                f"channel {name}: the samples' checksum is {int(channel.sum()) % 65536}, "
                f"the header says {checksum % 65536}; the file is damaged, fetch it again"
            )
