"""Safe terminal output: single lines that cannot move the cursor or hide text.

Names of runs, keys of buckets, reasons and commands are untrusted. All output passes through
`echo`, which prints one line and escapes control characters, line breaks, escape sequences and
bidirectional marks. Progress bars, which print by themselves, get `visible` text.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any


def visible(text: object) -> str:
    r"""Escape unprintable characters as Python does: ``\x1b``, ``\u202e``."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


class OutputClosed(BrokenPipeError):
    """The program that read the output has ended, as `head` does after some lines."""


def echo(line: object = "", *, err: bool = False) -> None:
    """Print one line; line breaks in it are escaped.

    Raises:
        OutputClosed: Nobody reads it any more.
    """
    stream = sys.stderr if err else sys.stdout
    try:
        stream.write(f"{visible(line)}\n")
        stream.flush()
    except BrokenPipeError as error:
        raise OutputClosed(*error.args) from error


def json_text(value: Any, **options: Any) -> str:
    """JSON of printable ASCII characters; `options` are those of `json.dumps`."""
    return json.dumps(value, **options).replace("\x7f", "\\u007f")


def traceback_lines(error: BaseException) -> Iterator[str]:
    """The lines of a traceback; the error's own text is reduced to one safe line."""
    for part in traceback.format_exception(error):
        text = part.strip("\n")
        yield from map(visible, text.split("\n") if text.startswith("  File ") else [text])


@contextmanager
def guarded() -> Iterator[None]:
    """Context in which output of `logging` and `warnings` is escaped.

    Tracebacks of uncaught errors are escaped until the process ends: Python prints them last.
    """
    sys.excepthook, threading.excepthook = _print_crash, _print_crash_of_thread
    before, form = logging.getLogRecordFactory(), warnings.formatwarning
    logging.setLogRecordFactory(_Record)
    warnings.formatwarning = _warning
    try:
        yield
    finally:
        logging.setLogRecordFactory(before)
        warnings.formatwarning = form


class _Record(logging.LogRecord):
    """A log record whose message is one safe line for every handler, such as Ray's."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        if self.exc_info and self.exc_info[1] is not None:
            self.exc_text = "\n".join(traceback_lines(self.exc_info[1]))

    def getMessage(self) -> str:
        return visible(super().getMessage())


def _warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return visible(f"{filename}:{lineno}: {category.__name__}: {message}") + "\n"


def _print_crash(
    kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    for line in traceback_lines(error):
        echo(line, err=True)


def _print_crash_of_thread(crash: threading.ExceptHookArgs) -> None:
    if crash.exc_value is not None and crash.exc_type is not SystemExit:
        _print_crash(crash.exc_type, crash.exc_value, crash.exc_traceback)
