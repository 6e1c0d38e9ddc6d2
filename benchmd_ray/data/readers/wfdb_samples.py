"""Files of samples of WFDB records, in every format that the ``wfdb`` package decodes.

Format: https://physionet.org/physiotools/wag/signal-5.htm.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from wfdb.io import _signal

from benchmd_ray.data.readers.headers import in_any_case
from benchmd_ray.data.readers.wfdb_header import Described
from benchmd_ray.data.records import RecordError

VERSION = 1
FORMATS: tuple[str, ...] = tuple(_signal.DAT_FMTS)
COMPRESSED: tuple[str, ...] = tuple(_signal.COMPRESSED_FMTS)
"""Of these, FLAC: the offset is in samples."""
INVALID: dict[str, int | None] = _signal.INVALID_SAMPLE_VALUE
"""What a sample that was not recorded is stored as, by format."""

Samples = npt.NDArray[Any]
"""Whole numbers of the format's size."""


def frames_of(path: Path, signals: Sequence[Described], stated: int, most: int) -> int:
    """Frames that are read from a file of some signals, once it has them.

    The header states them, or 0 for all that there are; more than ``most`` are refused.
    """
    form, offset = signals[0].format, signals[0].offset
    size = sum(signal.frame for signal in signals)
    try:
        there = _held(in_any_case(path), form) - offset
    except OSError as error:
        why = type(error).__name__
        raise RecordError(
            f"its samples' file, next to the header, cannot be opened ({why})"
        ) from error
    if form in COMPRESSED:
        unit, frames = "samples of each channel", stated or there // signals[0].frame
        needed = frames * signals[0].frame
    else:
        per_sample = Fraction(_signal.BYTES_PER_SAMPLE[form]).limit_denominator(3)
        unit, frames = "bytes of samples", stated or int(there / per_sample) // size
        needed = _signal._required_byte_num("read", form, frames * size)
    if not 0 < frames <= most:
        raise RecordError(f"{frames:,} samples of each channel; expected 1 to {most:,}")
    if there < needed:
        raise RecordError(
            f"its samples' file is cut off: {there:,} {unit}, expected {needed:,}. Fetch it again."
        )
    return frames


def channels_of(
    path: Path, signals: Sequence[Described], frames: int, first: Sequence[int]
) -> list[Samples]:
    """Digital samples of every signal of a file, each (frames x its samples of a frame,).

    ``first`` has the first sample of each signal, for the format of differences.
    """
    path, form, offset = in_any_case(path), signals[0].format, signals[0].offset
    sizes = [signal.frame for signal in signals]
    try:
        if form in COMPRESSED:
            stored = _signal._rd_compressed_file(
                path.name,
                str(path.parent.resolve()),
                None,
                form,
                offset,
                len(sizes),
                sizes,
                0,
                frames,
            )
        else:
            kind = np.dtype(_signal.DATA_LOAD_TYPES[form])
            needed = _signal._required_byte_num("read", form, frames * sum(sizes))
            stored = np.fromfile(path, kind, needed // kind.itemsize, offset=offset)
        channels: list[Samples] = _signal._rd_dat_signals(
            file_name=path.name,
            dir_name=None,
            pn_dir=None,
            fmt=form,
            n_sig=len(sizes),
            sig_len=frames,
            byte_offset=0,
            samps_per_frame=sizes,
            skew=[0] * len(sizes),
            init_value=list(first),
            sampfrom=0,
            sampto=frames,
            no_file=True,
            sig_data=stored,
        )
    except MemoryError:
        raise
    except Exception as error:  # whatever its decoding meets, which may quote the header
        raise RecordError(f"not a readable WFDB record ({type(error).__name__})") from error
    return channels


def _held(path: Path, form: str) -> int:
    """Bytes of a file; samples of each channel, where it is compressed."""
    size = path.stat().st_size
    if form not in COMPRESSED or not path.is_file():
        return size
    import soundfile

    try:
        return int(soundfile.info(str(path)).frames)
    except RuntimeError as error:
        raise RecordError(
            f"its samples' file cannot be read: format {form} is FLAC, and it is not"
        ) from error
