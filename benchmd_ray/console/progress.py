"""Progress of long work: a tqdm bar on a terminal, one plain line per interval elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from benchmd_ray.console.terminal import echo, visible

if TYPE_CHECKING:  # only a bar needs it, which workers do not show
    from tqdm import tqdm

shown = True
INTERVAL = 10.0
LINE = (
    "{desc}{n_fmt}/{total_fmt}{unit} ({percentage:.0f}%), {rate_noinv_fmt}, {remaining} left"
    "{postfix}"
)
"""A plain line of work with a total, in tqdm's fields."""


class Display:
    """Shows progress, or nothing without a bar, as for workers other than the first."""

    def __init__(self, bar: tqdm[NoReturn] | None = None) -> None:
        self._bar = bar

    def update(self, done: int, values: Mapping[str, float] | None = None) -> None:
        """Show that ``done`` units are done, with current values such as the loss."""
        if self._bar is None:
            return
        if values:
            texts = {visible(name): f"{value:.4g}" for name, value in values.items()}
            self._bar.set_postfix(texts, refresh=False)
        self._bar.update(done - self._bar.n)

    def show(self, done: int, text: str) -> None:
        """Show that ``done`` units are done, with a text on what is running."""
        if self._bar is not None:
            self._bar.set_description_str(visible(text), refresh=False)
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Close the display; its last state stays if any work was done."""
        if self._bar is not None:
            self._bar.leave = self._bar.n != self._bar.initial or not self._bar.total
            self._bar.close()


class _Lines:
    """A stream for tqdm that prints each new state of a bar as a line on standard error."""

    def __init__(self) -> None:
        self._last = ""

    def write(self, text: str) -> None:
        line = text.strip()
        if line and line != self._last:
            self._last = line
            echo(line, err=True)

    def flush(self) -> None:
        """Does nothing: every line is written at once."""


def progress(what: str, total: int, unit: str, done: int = 0) -> Display:
    """A bar with rate and time left; lines if standard error is not a terminal."""
    return _progress(total, f" {unit}", done, None, LINE, what=f"{visible(what)}: ")


def board(total: int | None, unit: str) -> Display:
    """A bar with a text about the running work."""
    count = "{n_fmt}" if total is None else "{n_fmt}/{total_fmt}"
    bar = ", " if total is None else " |{bar:12}| "
    return _progress(total, unit, 0, f"{count} {unit}{bar}{{desc}}", f"{count} {unit}, {{desc}}")


def _progress(
    total: int | None, unit: str, done: int, bar: str | None, line: str, what: str | None = None
) -> Display:
    if not shown:
        return Display()
    from tqdm import tqdm

    options: dict[str, Any] = {"bar_format": bar, "dynamic_ncols": True}
    if not sys.stderr.isatty():
        options = {"bar_format": line, "file": _Lines(), "smoothing": 0}
        options |= {"mininterval": INTERVAL, "delay": 1.0}  # no line before the first interval
        options |= {"position": 0}  # also for nested bars: nothing moves a cursor
    display: tqdm[NoReturn] = tqdm(
        total=total, initial=done, desc=what, unit=unit, miniters=0, leave=False, **options
    )
    display.delay = 0.0  # so that short work prints its last line
    return Display(display)


def duration(seconds: float) -> str:
    """Format seconds for humans: ``40 s``, ``23 min``, ``7 h 40 min``."""
    if math.isnan(seconds):
        return "unknown time"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.1f} days"


@contextmanager
def above() -> Iterator[None]:
    """Context for printing above the bars of a terminal."""
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stderr):
        yield
