"""WFDB records: a header (``.hea``) beside ``.dat`` or MATLAB v4 (``.mat``) samples.

Format: https://physionet.org/physiotools/wag/header-5.htm. The ``wfdb`` package decodes; this
module mends headers that it refuses and checks the samples against the header's checksums.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import wfdb

from benchmd_ray.data.records import RecordError

VOLTAGE = {"v": 1e3, "mv": 1.0, "uv": 1e-3, "µv": 1e-3, "nv": 1e-6}
"""Millivolts in one unit, by the unit's name in lower case."""


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
    comments: tuple[str, ...]
    """The header's comment lines without the leading ``#``."""


def read_wfdb(header: Path) -> Waveform:
    """Read one record.

    Raises:
        RecordError: The header or the samples cannot be read, are shorter than the header says,
            hold invalid samples, or do not match the header's checksums.
    """
    record = _decode(header)
    if record.d_signal is None or record.sig_name is None or None in record.sig_name:
        raise RecordError("the header describes no signal, or one without a name")
    gains = np.asarray(record.adc_gain, np.float64)
    if not (np.isfinite(gains) & (gains > 0)).all():
        raise RecordError(f"a gain of {gains.min():g} steps per unit; expected positive numbers")
    digital = np.asarray(record.d_signal, np.int64).T
    invalid = int(np.count_nonzero(digital == -32768)) if "16" in record.fmt else 0
    if invalid:
        raise RecordError(f"{invalid} samples are marked invalid (NaN); expected none")
    _verify_checksums(digital, record.checksum, record.sig_name)
    unknown = sorted({unit for unit in record.units if unit.lower() not in VOLTAGE})
    if unknown:
        raise RecordError(f"unit {unknown[0]!r} is no voltage; expected one of V, mV, µV, nV")
    millivolts = np.array([VOLTAGE[unit.lower()] for unit in record.units])
    return Waveform(
        samples=(digital - np.asarray(record.baseline)[:, None]).astype(np.int32),
        steps_per_mv=gains / millivolts,
        names=tuple(record.sig_name),
        rate=float(record.fs),
        comments=tuple(record.comments),
    )


def read_comments(header: Path) -> dict[str, str]:
    """The ``# Key: value`` lines of a header, keys in lower case.

    Raises:
        RecordError: The header is not a text file.
    """
    try:
        text = header.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"the header cannot be read: {error}") from error
    pairs = re.findall(r"^#[ \t]*(\w+)[ \t]*:(.*)$", text, re.MULTILINE)
    return {key.lower(): value.strip() for key, value in pairs}


def _decode(header: Path) -> Any:
    """The ``wfdb`` record with digital samples."""
    try:
        lines = header.read_text(encoding="utf-8").splitlines()
        name, space, rest = lines[0].partition(" ") if lines else ("", "", "")
        _require_rate(rest)
        signals = {line.split()[0] for line in lines[1:] if line.strip() and line[0] != "#"}
        for signal in signals:
            if Path(signal).name != signal:
                raise RecordError(f"the header names {signal!r}, no file in its own folder")
        if "." not in name:
            return wfdb.rdrecord(str(header.with_suffix("")), physical=False)
        # CinC 2020 headers name the record with its file's ending, which WFDB does not allow.
        lines[0] = f"{Path(name).stem}{space}{rest}"
        with tempfile.TemporaryDirectory() as folder:
            mended = Path(folder, f"{Path(name).stem}.hea")
            mended.write_text("\n".join(lines) + "\n", encoding="utf-8")
            for signal in signals:
                shutil.copy(header.with_name(signal), folder)
            return wfdb.rdrecord(str(mended.with_suffix("")), physical=False)
    except RecordError:
        raise
    except Exception as error:  # wfdb raises whatever its parsing meets
        raise RecordError(f"not a readable WFDB record: {type(error).__name__}: {error}") from error


def _require_rate(record_line: str) -> None:
    """WFDB's default would silently stand for a rate that cannot be read."""
    fields = record_line.split()
    if len(fields) > 1 and not re.match(r"(?!0+(\.0*)?([/(]|$))\d+(\.\d*)?([/(]|$)", fields[1]):
        raise RecordError(f"a sampling rate of {fields[1]!r}; expected a positive number of Hz")


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
