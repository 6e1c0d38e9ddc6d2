"""Progress of long work: a bar on a terminal, one plain line per interval elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Protocol

from tqdm import tqdm


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
        self._bar = tqdm(total=total, initial=done, desc=what, unit=f" {unit}", leave=True)

    def update(self, done: int, values: Mapping[str, float] | None = None) -> None:
        """Move the bar."""
        if values:
            self._bar.set_postfix({k: f"{v:.4g}" for k, v in values.items()}, refresh=False)
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
        left = f"{(self._total - self._done) / rate:.0f} s left" if rate > 0 else "starting"
        values = "".join(f", {k} {v:.4g}" for k, v in self._values.items())
        share = self._done / max(1, self._total)
        sys.stderr.write(
            f"{self._what}: {self._done}/{self._total} {self._unit} ({share:.0%}), "
            f"{rate:.3g}/s, {left}{values}\n"
        )
        sys.stderr.flush()


def progress(what: str, total: int, unit: str, done: int = 0) -> Progress:
    """A bar where standard error is a terminal, else plain lines."""
    display = TerminalProgress if sys.stderr.isatty() else LineProgress
    return display(what, total, unit, done)
