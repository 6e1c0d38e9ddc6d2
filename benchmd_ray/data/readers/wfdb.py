"""WFDB records: a header (``.hea``) next to ``.dat`` or MATLAB v4 (``.mat``) samples of 16 bits.

Format: https://physionet.org/physiotools/wag/header-5.htm and signal-5.htm, format 16. The header
is parsed here, ten times as fast as by the ``wfdb`` package; that decodes the samples, once the
header claims no more of them than its files have. They are compared with the header's checksums.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from wfdb.io._signal import _rd_segment

from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.records import RecordError

VERSION = 1
"""Raised whenever what it reads of the same file changes."""
VOLTAGE = {"v": 1e3, "mv": 1.0, "uv": 1e-3, "nv": 1e-6}
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
RATE, GAIN, UNIT = 250.0, 200.0, "mV"
"""Where a header says none; a gain of 0 says none."""

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
    (?: [ \t]+ (?P<gain>-?{NUMBER}(?:e[+-]?\d{{1,2}})?)
        (?:\((?P<baseline>-?\d{{1,9}})\))? (?:/(?P<unit>[\w^%?/-]{{1,20}}))?
    (?: [ \t]+ \d{{1,9}}
    (?: [ \t]+ (?P<zero>-?\d{{1,9}})
    (?: [ \t]+ -?\d{{1,9}}
    (?: [ \t]+ (?P<checksum>-?\d{{1,9}})
    (?: [ \t]+ \d{{1,9}}
    (?: [ \t]+ (?P<name>[^#\s][^#\t]{{0,200}}) )? )? )? )? )? )? )?
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
    rate, count, signals = read_header(header)
    count = _require_samples(signals, count, header.parent)
    names = [signal["name"] for signal in signals]
    if None in names:
        raise RecordError("the header describes a signal without a name")
    gains = np.array([float(signal["gain"] or 0) or GAIN for signal in signals])
    if not (np.isfinite(gains) & (gains > 0)).all():
        raise RecordError(f"a gain of {gains.min():g} steps per unit; expected positive numbers")
    digital = _decoded(signals, count, header.parent)
    if invalid := int(np.count_nonzero(digital == INVALID)):
        raise RecordError(f"{invalid} samples are marked invalid (NaN); expected none")
    _verify_checksums(digital, signals)
    units = [signal["unit"] or UNIT for signal in signals]
    unknown = sorted({unit for unit in units if unit.lower() not in VOLTAGE})
    if unknown:
        raise RecordError(f"unit {unknown[0]!r} is not a voltage; expected one of V, mV, µV, nV")
    baselines = [int(signal["baseline"] or signal["zero"] or 0) for signal in signals]
    return Waveform(
        samples=(digital - np.array(baselines)[:, None]).astype(np.int32),
        steps_per_mv=gains / [VOLTAGE[unit.lower()] for unit in units],
        names=tuple(names),
        rate=rate,
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


def _decoded(signals: list[re.Match[str]], count: int, folder: Path) -> npt.NDArray[np.int64]:
    """Digital samples: (channel, time)."""
    several = len(signals)
    try:
        channels = _rd_segment(
            file_name=[signal["file"] for signal in signals],
            dir_name=str(folder.resolve()),
            pn_dir=None,
            fmt=["16"] * several,
            n_sig=several,
            sig_len=count,
            byte_offset=[int(signal["offset"] or 0) for signal in signals],
            samps_per_frame=[1] * several,
            skew=[0] * several,
            init_value=[0] * several,
            sampfrom=0,
            sampto=count,
            channels=list(range(several)),
            ignore_skew=True,
        )
        return np.stack(channels).astype(np.int64)
    except MemoryError:
        raise
    except Exception as error:  # whatever its decoding meets, which may quote the header
        raise RecordError(f"not a readable WFDB record ({type(error).__name__})") from error


def read_header(header: Path) -> tuple[float, int, list[re.Match[str]]]:
    """Rate in Hz, samples of a channel (0: all there are) and each signal (`SIGNAL`) of a header.

    Raises:
        RecordError: A line is none of `RECORD` and `SIGNAL`, or there are more or fewer signals
            than it says.
    """
    lines = [line.strip() for line in _text(header).replace("µ", "u").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    record = RECORD.fullmatch(lines[0]) if lines else None
    if record is None:
        raise RecordError("not a readable WFDB record: its header does not begin with one")
    channels = int(record["channels"])
    if channels != len(lines) - 1 or not 1 <= channels <= MAX_CHANNELS:
        raise RecordError(
            f"its header names {channels} signals and describes {len(lines) - 1}; expected as "
            f"many, 1 to {MAX_CHANNELS}"
        )
    rate = float(record["rate"] or RATE)
    if rate == 0:
        raise RecordError("a sampling rate of 0 Hz; expected a positive number")
    signals = [_signal(line, number) for number, line in enumerate(lines[1:], 1)]
    return rate, int(record["samples"] or 0), signals


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


def _require_samples(signals: list[re.Match[str]], count: int, folder: Path) -> int:
    """Samples of each channel, once each file has as many as the header says.

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
    return count


def _verify_checksums(digital: npt.NDArray[np.int64], signals: list[re.Match[str]]) -> None:
    """Compare with the header's 16-bit sums of all samples, written signed or unsigned."""
    for samples, signal in zip(digital, signals, strict=True):
        found = int(samples.sum())
        if signal["checksum"] is not None and (found - int(signal["checksum"])) % 65536:
            raise RecordError(
                f"channel {signal['name']}: the samples' checksum is {found % 65536}, "
                f"the header says {int(signal['checksum']) % 65536}; the file is damaged, fetch "
                "it again"
            )
