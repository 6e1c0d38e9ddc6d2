"""Errors a user can act on: what was wrong, where, what was expected, what to do."""

from __future__ import annotations

import difflib
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

MOST_NAMES = 40
"""Valid names that a message lists; of more, a quarter as many, the nearest."""
SHORTEST_BEGINNING = 3
"""Letters of a name that is taken as the beginning of a valid one, before it is a typing error."""


class BenchmdError(Exception):
    """Something the user can mend; commands print it without a traceback."""


class FieldError(BenchmdError, ValueError):
    """A value of a dataclass that cannot be; `schema.typed` adds which file and line it is in."""

    def __init__(self, field: str, message: str) -> None:
        """Name the field, and say what is wrong with it."""
        super().__init__(field, message)
        self.field, self.message = field, message

    def __str__(self) -> str:
        """The message."""
        return self.message


class Busy(BenchmdError):
    """Another process is at it: wait for it to end, then look again."""


class Transient(BenchmdError):
    """Nothing is wrong with what was asked for, such as a lost worker: another try may work."""


class NoRoom(Transient):
    """A cluster has too little room now, such as after a node went away."""


class Gone(Transient):
    """What the work needs is not there any more, and no other process will find it."""


class BucketError(Transient):
    """A bucket cannot be reached, or refuses."""

    away = False
    """Whether the server gave no answer of use, and may give one later."""


class DiskFull(BenchmdError):
    """There is no space left for a file; nothing half-written was kept."""


class Stopped(KeyboardInterrupt):
    """A signal, its first argument, asked the work to stop; nothing that was done is lost."""


def count_of(number: float, what: str) -> str:
    """A number of things: ``1 trial``, ``1,200 trials``, ``0.5 CPUs``, ``2 entries``."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    if number == 1:
        return f"{text} {what}"
    if what.endswith(("ry", "ty")):
        return f"{text} {what[:-1]}ies"
    return f"{text} {what}es" if what.endswith("ss") else f"{text} {what}s"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 300 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = 80
LONGEST_NAME = 500


def shown(value: object) -> str:
    """A value for a message: its `repr`, without the middle of what is long."""
    return _shortened.repr(value)


def sort_of(value: object) -> str:
    """What sort of value it is, for a message that must not show the value itself."""
    sorts: tuple[tuple[Any, str], ...] = (
        (Mapping, "names with values"),
        (bool, "true or false"),
        ((int, float), "a number"),
        (str, "text"),
        ((list, tuple), "a list"),
        (type(None), "empty"),
    )
    return next((words for kinds, words in sorts if isinstance(value, kinds)), type(value).__name__)


def composed(text: str) -> str:
    """A text in Unicode's composed form (NFC), in which names are compared.

    macOS and some programs write an ``ä`` as an ``a`` and a sign above it, others as one letter.
    """
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def same_form(*names: str) -> str:
    """What a message adds where names are equal that may have been written in several forms."""
    if all(map(str.isascii, names)):
        return ""
    return " (names are compared in Unicode's composed form, NFC)"


def is_name(name: object) -> bool:
    """Whether it is a text that may stand in a message, a table and a figure.

    Figures read what dollars enclose as mathematics.
    """
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return False
    return name.isprintable() and "$" not in name


def unknown_name(
    kind: str, got: str, valid: Iterable[str], meant: str | None = None
) -> BenchmdError:
    """An error for a name that does not exist, listing the valid ones, of many the nearest.

    Args:
        kind: What it should name.
        got: The name.
        valid: Those that there are.
        meant: What it seems to mean, where that is none of these.
    """
    names = sorted(valid)
    lower = {name.lower(): name for name in reversed(names)}
    begun = [name for name in names if len(got) >= SHORTEST_BEGINNING and name.startswith(got)]
    begun = [lower[got.lower()]] if got.lower() in lower else begun
    close = difflib.get_close_matches(got.lower(), lower, n=1, cutoff=0.5)
    near = [meant] if meant else begun or [lower[name] for name in close]
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(names) or "none"
    if len(names) > MOST_NAMES:
        nearest = difflib.get_close_matches(got, names, n=MOST_NAMES // 4, cutoff=0)
        listed = f"{', '.join(nearest)} and {len(names) - len(nearest)} others"
    return BenchmdError(f"unknown {kind} {shown(got)}.{hint} Valid: {listed}.")


NAME = r"[a-z0-9][a-z0-9-]{0,99}"
"""What datasets, signals and modalities are named like: files and folders are named by them."""


def require_plain_name(what: str, name: str, field: str = "name") -> None:
    """Refuse a name that no file or folder should have.

    Raises:
        FieldError: It is not of the form `NAME`.
    """
    if not re.fullmatch(NAME, name):
        raise FieldError(
            field,
            f"{shown(name)} is not a valid name of a {what}: use up to 100 lower-case letters, "
            "digits and hyphens.",
        )
