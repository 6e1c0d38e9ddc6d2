"""WFDB records: a header (``.hea``) next to the files of its samples, or of its segments.

Format: https://physionet.org/physiotools/wag/. The header is parsed here, so that its claims are
checked before anything is read; the ``wfdb`` package decodes samples, which are compared with
checksums. Only the signals that are asked for are decoded and checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.readers.wfdb_header import (
    GAP,
    Described,
    Scale,
    WfdbHeader,
    header_text,
    read_header,
    scale_of,
    segment_header,
)
from benchmd_ray.data.readers.wfdb_samples import (
    FORMATS,
    INVALID,
    Samples,
    channels_of,
    frames_of,
)
from benchmd_ray.data.records import RecordError

VERSION = 2
MAX_SAMPLES = 2**26
"""Of a record, over all channels of the files that are read; 12 leads at 500 Hz have so many in
three hours."""

LOWEST, HIGHEST = -(2**31), 2**31 - 1

Digital = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Waveform:
    """Digital samples of several channels and what turns them into millivolts."""

    samples: Digital | npt.NDArray[np.float64]
    """(channel, time), the zero level already taken off; whole numbers, unless a channel's gain
    differs between segments."""
    steps_per_mv: npt.NDArray[np.float64]
    """(channel,) sample steps of one millivolt."""
    names: tuple[str, ...]
    rate: float
    """Sampling rate in Hz."""


def read_wfdb(
    path: Path, choose: Callable[[Sequence[str]], Sequence[int]] | None = None
) -> Waveform:
    """Read the signals of a record that ``choose`` places by name, or all; they must have one rate.

    A name is empty where the header gives none.
    """
    header = read_header(path)
    rows = list(range(len(header.signals)) if choose is None else choose(header.names))
    parts = _parts(header, rows)
    frames = {signal.frame for part, places in parts for signal in _at(part, places)}
    if len(frames) != 1:
        raise RecordError(
            f"the channels have {' and '.join(map(str, sorted(frames)))} samples in a frame; "
            "expected channels of one rate"
        )
    total = sum(part.frames * _frame_size(part, places) for part, places in parts)
    if total > MAX_SAMPLES:
        raise RecordError(f"{total:,} samples; expected at most {MAX_SAMPLES:,}")
    pieces = [_read_part(part, places) for part, places in parts]
    steps = np.stack([steps for _, steps in pieces])
    if (steps == steps[0]).all():
        samples: Any = np.concatenate([samples for samples, _ in pieces], axis=1)
    else:
        samples = np.concatenate(
            [samples * (steps[0] / scale)[:, None] for samples, scale in pieces], axis=1
        )
    names = tuple(header.names[row] for row in rows)
    return Waveform(samples, steps[0], names, header.rate * frames.pop())


def read_comments(path: Path) -> dict[str, str]:
    """The ``# Key: value`` lines of a header, keys in lower case."""
    pairs = re.findall(r"^#[ \t]*(\w+)[ \t]*:(.*)$", header_text(path), re.MULTILINE)
    return {key.lower(): value.strip() for key, value in pairs}


def _at(header: WfdbHeader, places: Sequence[int]) -> list[Described]:
    return [header.signals[place] for place in places]


def _frame_size(header: WfdbHeader, places: Sequence[int]) -> int:
    files = {signal.file for signal in _at(header, places)}
    return sum(signal.frame for signal in header.signals if signal.file in files)


def _parts(header: WfdbHeader, rows: Sequence[int]) -> list[tuple[WfdbHeader, list[int]]]:
    """What the samples are read from: headers with files, and the places of the signals in them."""
    if not header.segments:
        return [(_with_frames(header, rows), list(rows))]
    headers: dict[str, WfdbHeader] = {}
    parts = []
    for number, (name, frames) in enumerate(header.segments, 1):
        if name == GAP:
            raise _missing("every channel", frames, header.frames, number)
        if name not in headers:
            headers[name] = segment_header(header, name, number)
        places = _places(header, headers[name], rows, number, frames)
        part = _with_frames(headers[name], places, frames)
        if part.frames != frames:
            raise RecordError(
                f"segment {number} has {part.frames:,} samples of each channel, the record's "
                f"header says {frames:,}; expected as many. Fetch it again."
            )
        parts.append((part, places))
    return parts


def _places(
    header: WfdbHeader, segment: WfdbHeader, rows: Sequence[int], number: int, frames: int
) -> list[int]:
    if header.is_variable:
        for row in rows:
            name = header.names[row]
            if not name or max(header.names.count(name), segment.names.count(name)) > 1:
                raise RecordError(
                    f"segment {number}: signals of records of a variable layout are matched by "
                    f"name, and {header.signals[row].label} has none or shares it; expected names "
                    "of their own"
                )
            if name not in segment.names:
                raise _missing(header.signals[row].label, frames, header.frames, number)
        return [segment.names.index(header.names[row]) for row in rows]
    if segment.names != header.names:
        raise RecordError(f"segment {number} has other channels than those before; expected them")
    return list(rows)


def _missing(what: str, count: int, total: int, number: int) -> RecordError:
    return RecordError(
        f"{what}: {count:,} of {total:,} samples are missing (segment {number} has none of them); "
        "expected none"
    )


def _with_frames(header: WfdbHeader, places: Sequence[int], stated: int = 0) -> WfdbHeader:
    """A header whose files have the frames that it states, or else the record of its segment."""
    frames = header.frames or stated
    for name in dict.fromkeys(signal.file for signal in _at(header, places)):
        of_file = [signal for signal in header.signals if signal.file == name]
        if of_file[0].format not in FORMATS:
            raise RecordError(
                f"the samples of signal {of_file[0].number} are of a format that is not decoded "
                f"here; expected one of {', '.join(FORMATS)}"
            )
        most = MAX_SAMPLES // sum(signal.frame for signal in of_file)
        frames = frames_of(header.path.with_name(name), of_file, frames, most)
    return replace(header, frames=frames)


def _read_part(
    header: WfdbHeader, places: Sequence[int]
) -> tuple[Digital, npt.NDArray[np.float64]]:
    """Samples (channel, time) without their zero level, and (channel,) steps of a millivolt."""
    wanted = _at(header, places)
    scales = {place: scale_of(header.signals[place]) for place in places}
    length = header.frames - max(signal.skew for signal in wanted)
    if length < 1:
        raise RecordError("its channels are skewed by more samples than they have")
    values: dict[int, Samples] = {}
    for name in dict.fromkeys(signal.file for signal in wanted):
        of_file = [place for place, signal in enumerate(header.signals) if signal.file == name]
        first = [scales[place].first if place in scales else 0 for place in of_file]
        path = header.path.with_name(name)
        decoded = channels_of(path, _at(header, of_file), header.frames, first)
        values |= {place: decoded[of_file.index(place)] for place in places if place in of_file}
    samples = np.empty((len(places), length * wanted[0].frame), np.int32)
    for row, place in enumerate(places):
        signal, scale = header.signals[place], scales[place]
        _verify_checksum(values[place], signal, scale)
        kept = values[place][signal.skew * signal.frame :][: samples.shape[1]]
        if missing := int(np.count_nonzero(kept == INVALID[signal.format])):
            raise RecordError(
                f"{signal.label}: {missing:,} samples are marked invalid (NaN); expected none"
            )
        lowest, highest = (int(bound) - scale.baseline for bound in (kept.min(), kept.max()))
        if lowest < LOWEST or highest > HIGHEST:
            raise RecordError(
                f"{signal.label}: its samples are from {lowest:,} to {highest:,} steps from zero; "
                "expected whole numbers of 32 bits"
            )
        samples[row] = kept.astype(np.int64) - scale.baseline
    return samples, np.array([scales[place].per_mv for place in places])


def _verify_checksum(values: Samples, signal: Described, scale: Scale) -> None:
    """Compare with the header's 16-bit sum of all samples, written signed or unsigned."""
    total = int(values.sum(dtype=np.int64))
    if scale.checksum is not None and (total - scale.checksum) % 65536:
        raise RecordError(
            f"{signal.label}: the samples' checksum is {total % 65536}, the header says "
            f"{scale.checksum % 65536}; the file is damaged, fetch it again"
        )
