"""What headers of signals over time share: encodings of text, units of voltage, names of files."""

from __future__ import annotations

import codecs
from pathlib import Path

from benchmd_ray.data.records import RecordError

VERSION = 1
MICROVOLTS = {
    "v": 1e6,
    "mv": 1e3,
    "uv": 1.0,
    "μv": 1.0,  # the Greek letter, to which the micro sign is folded
    "\x83êv": 1.0,  # in Shift JIS, read as Latin-1
    "¦ìv": 1.0,  # in GB 2312 and EUC-JP, likewise
    "nv": 1e-3,
}
"""µV in one unit, by its case-folded name."""
VOLTAGES = "V, mV, µV, nV"

STEPS = (1e-12, 1e12)
"""µV that a step of a sample may stand for; those of recorders are of 0.001 to 10."""


def require_step(channel: str, step: float) -> None:
    """Refuse a scale, in µV of a step, that no recorder has and float32 may not hold."""
    if not STEPS[0] <= abs(step) <= STEPS[1]:
        raise RecordError(
            f"{channel}: a step of its samples stands for {step:g} µV; expected {STEPS[0]:g} to "
            f"{STEPS[1]:g}"
        )


def microvolts(unit: str) -> float | None:
    """µV in one unit of voltage, whose case does not matter; None where it is not a voltage."""
    return MICROVOLTS.get(unit.strip().casefold())


def decoded(text: bytes) -> str:
    """Text in UTF-8 or else in Latin-1, in which any bytes are a text."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("latin-1")


def printable(name: str) -> str:
    """A name without what is not printed and without the blanks around it."""
    return "".join(filter(str.isprintable, name)).strip()


def text_of(content: bytes) -> str:
    """Text of a header in UTF-8, UTF-16 with a byte order mark, or line by line in Latin-1."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            content = content.decode("utf-16").encode("utf-8")
        except UnicodeDecodeError as error:
            raise RecordError(
                f"the header cannot be read: it begins as UTF-16 and is not ({error.reason}); "
                "expected UTF-8"
            ) from None
    return "\n".join(map(decoded, content.removeprefix(codecs.BOM_UTF8).splitlines()))


def in_any_case(path: Path) -> Path:
    """The file, or else the only one of its folder whose name differs in case."""
    if path.exists():
        return path
    try:
        alike = [other for other in path.parent.iterdir() if is_alike(other.name, path.name)]
    except OSError:
        return path
    return alike[0] if len(alike) == 1 else path


def is_alike(name: str, other: str) -> bool:
    """Whether two names of files differ at most in case."""
    return name.casefold() == other.casefold()
