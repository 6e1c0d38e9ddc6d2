"""Values of DICOM headers, parsed when they are taken; no message quotes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pydicom
from pydicom.dataelem import RawDataElement
from pydicom.errors import InvalidDicomError

from benchmd_ray.data.plain_numbers import BLANKS, number_of
from benchmd_ray.data.readers.codec import silenced
from benchmd_ray.data.records import RecordError

VERSION = 2
MAX_VALUE = 2**16
"""Bytes of an element that is taken as numbers or text: they become objects a hundred times as
large."""
AGAIN = "Fetch it again."


def numbers(dataset: pydicom.Dataset, keyword: str, count: int) -> tuple[float, ...] | None:
    """The ``count`` finite numbers of an element; None where it is absent or empty."""
    values: tuple[float, ...] = ()
    with refusing(f"{keyword} cannot be read"):
        value = _value(dataset, keyword)
        if value is None or value == "":
            return None
        values = tuple(map(_number, [value] if isinstance(value, int | float) else value))
    if len(values) != count or not all(map(math.isfinite, values)):
        raise RecordError(f"{keyword} is not {count} finite number(s)")
    return values


def _number(value: Any) -> float:
    """A value of an element; NaN where its text is no plain number: pydicom takes others, too."""
    written = getattr(value, "original_string", None)
    if written is None:
        return float(value)
    number = number_of(written.strip(f"{BLANKS}\0"))
    return math.nan if number is None else number


def text(dataset: pydicom.Dataset, keyword: str) -> str | None:
    """The text of an element without blanks around it; None where it is absent or empty."""
    content = ""
    with refusing(f"{keyword} cannot be read"):
        value = _value(dataset, keyword)
        content = "" if value is None else str(value).strip()
    return content or None


def _value(dataset: pydicom.Dataset, keyword: str) -> Any:
    """Value of an element, parsed now unless it is too long; None where it is absent."""
    raw = dataset.get_item(keyword) if keyword in dataset else None
    if isinstance(raw, RawDataElement) and len(raw.value or b"") > MAX_VALUE:
        raise RecordError(f"{keyword} has {len(raw.value or b''):,} bytes. {AGAIN}")
    return dataset.get(keyword)


@contextmanager
def refusing(reason: str) -> Iterator[None]:
    """Turn what pydicom and the decoders raise into a `RecordError`; neither quotes nor warns."""
    try:
        with silenced():
            yield
    except (RecordError, MemoryError):
        raise
    except Exception as error:
        # a file of another kind, or one that the system does not open, is not damaged
        whole = isinstance(error, InvalidDicomError) or getattr(error, "errno", None)
        again = "" if whole else f". {AGAIN}"
        raise RecordError(f"{reason} ({type(error).__name__}){again}") from None
