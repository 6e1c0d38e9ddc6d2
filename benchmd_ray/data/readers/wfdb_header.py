"""Headers of WFDB records, and what they say of signals and segments.

Format: https://physionet.org/physiotools/wag/header-5.htm. Files must be in the header's folder.
The numbers of a signal are looked at once it is wanted: what is wrong with others does not matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.readers.headers import (
    VOLTAGES,
    in_any_case,
    microvolts,
    printable,
    require_step,
    text_of,
)
from benchmd_ray.data.records import LONGEST_NAME, RecordError

VERSION = 1
MAX_HEADER_BYTES = 2**16
"""Larger headers are refused; those of 12 leads have about 1 kB."""
MAX_CHANNELS = 256
"""Of a record; an ECG has 12 to 15."""
MAX_SEGMENTS = 4096
MAX_WHOLE = 2**31
"""Of a baseline, a zero level or a sample that a header states."""
RATE, GAIN, UNIT = 250.0, 200.0, "mV"
"""Where a header says none; a gain of 0 says none."""
GAP = "~"
"""Name of a segment without samples, and of a file in a header that only describes signals."""

NUMBER = r"(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})"
RECORD = re.compile(
    rf"""
    (?P<name>[\w.-]{{1,200}}) (?:/(?P<segments>\d{{1,6}}))? [ \t]+ (?P<channels>\d{{1,6}})
    (?: [ \t]+ (?P<rate>{NUMBER}) (?:/{NUMBER})? (?:\(-?{NUMBER}\))?
        (?: [ \t]+ (?P<samples>\d{{1,12}}) (?:[ \t][^#]{{0,60}})? )? )?
    """,
    re.VERBOSE | re.ASCII,
)
"""Name[/segments], number of channels, rate[/counter's rate][(counter)], samples of a channel,
time, date."""
SEGMENT = re.compile(r"([\w-]{1,200}|~)[ \t]+(\d{1,12})", re.ASCII)
FILE = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
FORMAT = re.compile(
    r"(?P<format>\d{1,4})(?:x(?P<frame>\d{1,6}))?(?::(?P<skew>\d{1,9}))?(?:\+(?P<offset>\d{1,12}))?",
    re.ASCII,
)
"""Format[xsamples per frame][:skew][+offset]."""
GAINS = re.compile(
    rf"(?P<gain>-?{NUMBER}(?:e[+-]?\d{{1,2}})?)(?:\((?P<baseline>-?\d{{1,10}})\))?"
    r"(?:/(?P<unit>\S{1,40}))?",
    re.ASCII,
)
"""Gain[(baseline)][/unit]."""
WHOLE = re.compile(r"-?\d{1,10}", re.ASCII)


@dataclass(frozen=True)
class Described:
    """What a header says of one signal; the second half is looked at once the signal is wanted."""

    number: int
    """In the header, from 1."""
    file: str
    """In the header's folder; `GAP` in a header that only describes signals."""
    format: str
    frame: int
    """Samples of each frame."""
    skew: int
    """Frames by which its samples are late in the file."""
    offset: int
    """Bytes of the file before the samples; of a compressed file, samples."""
    fields: tuple[str, ...]
    """As written, where they are: gain, resolution, zero level, first sample, checksum, block."""
    name: str
    """Empty where the header gives none."""

    @property
    def label(self) -> str:
        """For messages, shortened."""
        return f"channel {self.name[:LONGEST_NAME]}"

    @property
    def unit(self) -> str:
        """As it is written, or the format's default."""
        gains = GAINS.fullmatch(self.fields[0] if self.fields else "0")
        return (gains["unit"] if gains else None) or UNIT


@dataclass(frozen=True)
class Scale:
    """Numbers of a signal that is wanted."""

    per_mv: float
    """Steps of one millivolt."""
    baseline: int
    first: int
    checksum: int | None


@dataclass(frozen=True)
class WfdbHeader:
    """A header, and what the samples are that it describes."""

    path: Path
    rate: float
    """Frames per second."""
    frames: int
    """0: all that the files have."""
    signals: tuple[Described, ...]
    segments: tuple[tuple[str, int], ...] = ()
    """Name and frames of each segment, of a record of several."""
    is_variable: bool = False
    """Whether segments have some of the signals, found by name; else all, in the same order."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the signals, in their order."""
        return tuple(signal.name for signal in self.signals)


def read_header(path: Path) -> WfdbHeader:
    """A header; of a record of several segments with the signals that their headers describe."""
    header = _parsed(path)
    if not header.segments:
        return header
    stated = sum(frames for _, frames in header.segments)
    if header.frames not in (0, stated):
        raise RecordError(
            f"its segments have {stated:,} samples of each channel, its header says "
            f"{header.frames:,}; expected as many. Fetch it again."
        )
    is_variable = header.segments[0][1] == 0
    segments = tuple(segment for segment in header.segments if segment[1])
    named = [name for name, _ in header.segments if name != GAP]
    if not segments or not named:
        raise RecordError("it has no segment with samples")
    signals = segment_header(header, named[0], 1).signals
    return WfdbHeader(path, header.rate, stated, signals, segments, is_variable)


def header_text(path: Path) -> str:
    return text_of(read_bounded(path, MAX_HEADER_BYTES, "the header"))


def _parsed(path: Path) -> WfdbHeader:
    lines = [line.strip() for line in header_text(path).split("\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    record = RECORD.fullmatch(lines[0]) if lines else None
    if record is None:
        raise RecordError("not a readable WFDB record: its header does not begin with one")
    what, most, count = "signals", MAX_CHANNELS, int(record["channels"])
    if record["segments"] is not None:
        what, most, count = "segments", MAX_SEGMENTS, int(record["segments"])
    if count != len(lines) - 1 or not 1 <= count <= most:
        raise RecordError(
            f"its header names {count} {what} and describes {len(lines) - 1}; expected as "
            f"many, 1 to {most:,}"
        )
    rate = float(record["rate"] or RATE)
    if rate == 0:
        raise RecordError("a sampling rate of 0 Hz; expected a positive number")
    frames = int(record["samples"] or 0)
    if what == "segments":
        segments = tuple(_segment_line(line, place) for place, line in enumerate(lines[1:], 1))
        return WfdbHeader(path, rate, frames, (), segments)
    signals = tuple(_described(line, number) for number, line in enumerate(lines[1:], 1))
    for name in {signal.file for signal in signals} - {GAP}:
        if len({signal.format for signal in signals if signal.file == name}) != 1:
            raise RecordError(
                "signals of one file are described with several formats; expected one"
            )
    return WfdbHeader(path, rate, frames, signals)


def _segment_line(line: str, number: int) -> tuple[str, int]:
    segment = SEGMENT.fullmatch(line)
    if segment is None:
        raise RecordError(
            f"segment {number} is not described as one of the header's own folder: expected a "
            "name and a number of samples"
        )
    return segment[1], int(segment[2])


def segment_header(header: WfdbHeader, name: str, number: int) -> WfdbHeader:
    segment = _parsed(in_any_case(header.path.with_name(f"{name}.hea")))
    if segment.segments:
        raise RecordError(f"segment {number} has segments itself; expected samples")
    if segment.rate != header.rate:
        raise RecordError(
            f"segment {number} is sampled at {segment.rate:g} Hz, the record at {header.rate:g} "
            "Hz; expected one rate"
        )
    return segment


def _described(line: str, number: int) -> Described:
    file, *rest = line.split(maxsplit=8)
    stored = FORMAT.fullmatch(rest[0]) if rest else None
    if stored is None:
        raise _undescribed(number)
    if file != GAP and not FILE.fullmatch(file):
        raise RecordError(f"signal {number} names no file in the header's own folder")
    return Described(
        number=number,
        file=file,
        format=stored["format"],
        frame=int(stored["frame"] or 1) or 1,
        skew=int(stored["skew"] or 0),
        offset=int(stored["offset"] or 0),
        fields=tuple(rest[1:7]),
        name=printable(rest[7]) if len(rest) == 8 else "",
    )


def _undescribed(number: int) -> RecordError:
    return RecordError(f"not a readable WFDB record: signal {number} is not described as one")


def scale_of(signal: Described) -> Scale:
    """Numbers of a signal that is wanted."""
    gains = GAINS.fullmatch(signal.fields[0] if signal.fields else "0")
    whole = signal.fields[1:]
    if gains is None or not all(map(WHOLE.fullmatch, whole)):
        raise _undescribed(signal.number)
    zero, first, checksum = (int(whole[i]) if len(whole) > i else None for i in (1, 2, 3))
    baseline = int(gains["baseline"] or zero or 0)
    if max(abs(baseline), abs(first or 0)) > MAX_WHOLE:
        raise _undescribed(signal.number)
    gain = float(gains["gain"]) or GAIN
    if not 0 < gain < float("inf"):
        raise RecordError(f"a gain of {gain:g} steps per unit; expected positive numbers")
    scale = microvolts(signal.unit)
    if scale is None:
        raise RecordError(
            f"{signal.label}: unit {signal.unit!r} is not a voltage; expected one of {VOLTAGES}"
        )
    require_step(signal.label, scale / gain)
    first = first if first is not None else zero or 0  # as the format has it
    return Scale(gain / (scale / 1e3), baseline, first, checksum)
