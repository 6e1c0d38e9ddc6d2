"""Progress of long work: a bar on a terminal, one plain line per interval elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from benchmd_ray.console.terminal import echo, visible

shown = True
"""Whether this process shows any."""


class Progress(Protocol):
    """Shows how far some work is."""

    def update(self, done: int, values: Mapping[str, float] | None = None) -> None:
        """Show that ``done`` units are done, with current values such as the loss."""

    def close(self) -> None:
        """End the display."""


class SilentProgress:
    """Shows nothing: for workers other than the first, and for tests."""

    def update(self, done: int, values: Mapping[str, float] | None = None) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class TerminalProgress:
    """A tqdm bar with rate and time left."""

    def __init__(self, what: str, total: int, unit: str, done: int = 0) -> None:
        from tqdm import tqdm  # only who shows a bar needs it

        what, unit = visible(what), visible(unit)
        self._bar = tqdm(total=total, initial=done, desc=what, unit=f" {unit}", leave=True)

    def update(self, done: int, values: Mapping[str, float] | None = None) -> None:
        """Move the bar."""
        if values:
            texts = {visible(k): f"{v:.4g}" for k, v in values.items()}
            self._bar.set_postfix(texts, refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()


class LineProgress:
    """One line on standard error every ``interval`` seconds, and one at the end."""

    def __init__(
        self, what: str, total: int, unit: str, done: int = 0, interval: float = 10.0
    ) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._interval = interval
        self._first = self._done = done
        self._start = self._shown = time.monotonic()
        self._values: Mapping[str, float] = {}
        self._written = -1

    def update(self, done: int, values: Mapping[str, float] | None = None) -> None:
        """Write a line when the interval has passed."""
        self._done, self._values = done, values or self._values
        if time.monotonic() - self._shown >= self._interval:
            self._write()

    def close(self) -> None:
        """Write the last line, unless it stands there."""
        if self._written != self._done:
            self._write()

    def _write(self) -> None:
        self._shown, self._written = time.monotonic(), self._done
        elapsed = self._shown - self._start
        rate = (self._done - self._first) / elapsed if elapsed > 0 else 0.0
        left = f"{duration((self._total - self._done) / rate)} left" if rate > 0 else "starting"
        values = "".join(f", {k} {v:.4g}" for k, v in self._values.items())
        share = self._done / max(1, self._total)
        echo(
            f"{self._what}: {self._done}/{self._total} {self._unit} ({share:.0%}), "
            f"{rate:.3g}/s, {left}{values}",
            err=True,
        )


def duration(seconds: float) -> str:
    """A time to read: ``40 s``, ``23 min``, ``7 h 40 min``."""
    if math.isnan(seconds):
        return "unknown time"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.1f} days"


def progress(what: str, total: int, unit: str, done: int = 0) -> Progress:
    """A bar where standard error is a terminal, else plain lines; nothing where none is wanted."""
    if not shown:
        return SilentProgress()
    display = TerminalProgress if sys.stderr.isatty() else LineProgress
    return display(what, total, unit, done)


class Board(Protocol):
    """Shows how far many pieces of work are that continue at the same time."""

    def show(self, done: int, text: str) -> None:
        """Show that ``done`` pieces are done, and what continues."""

    def close(self) -> None:
        """End the display."""


class SilentBoard:
    """Shows nothing."""

    def show(self, done: int, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class TerminalBoard:
    """A bar with the text next to it, as wide as the terminal."""

    def __init__(self, total: int | None, unit: str) -> None:
        form = f"{{n_fmt}}/{{total_fmt}} {unit} |{{bar:12}}| {{desc}}"
        if total is None:
            form = f"{{n_fmt}} {unit}, {{desc}}"
        from tqdm import tqdm

        self._bar = tqdm(total=total, bar_format=form, dynamic_ncols=True, leave=True)

    def show(self, done: int, text: str) -> None:
        """Move the bar."""
        self._bar.n = done
        self._bar.set_description_str(visible(text))  # refreshes too

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()


class LineBoard:
    """One line on standard error every ``interval`` seconds, and one at the end."""

    def __init__(self, total: int | None, unit: str, interval: float = 10.0) -> None:
        self._total, self._unit, self._interval = total, unit, interval
        self._shown = time.monotonic()
        self._line = self._written = ""

    def show(self, done: int, text: str) -> None:
        """Write a line when the interval has passed."""
        count = f"{done}" if self._total is None else f"{done}/{self._total}"
        self._line = f"{count} {self._unit}, {text}"
        if time.monotonic() - self._shown >= self._interval:
            self._write()

    def close(self) -> None:
        """Write the last line, unless it stands there."""
        if self._line and self._line != self._written:
            self._write()

    def _write(self) -> None:
        self._shown, self._written = time.monotonic(), self._line
        echo(self._line, err=True)


def board(total: int | None, unit: str) -> Board:
    """A bar where standard error is a terminal, else plain lines; without a total where None.

    Nothing where none is wanted.
    """
    if not shown:
        return SilentBoard()
    return (TerminalBoard if sys.stderr.isatty() else LineBoard)(total, unit)


@contextmanager
def above() -> Iterator[None]:
    """What is printed within stands above the bars of a terminal, not amid them."""
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stderr):
        yield
