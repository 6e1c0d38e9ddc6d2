"""A plan's execution, or a search, followed in Weights & Biases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmd_ray.results.tracking import Followed, Tracker
from benchmd_ray.service.outcome import Again
from benchmd_ray.service.plan import Item


class TrackedPlan:
    """An `Observer` that hands on to W&B what happens, and says at the end what became of it."""

    def __init__(self, store: Path, mode: str, say: Callable[[str], None]) -> None:
        """Start following.

        Args:
            store: Folder of all runs.
            mode: Of W&B, but not ``off``.
            say: Takes a line for the user.

        Raises:
            BenchmdError: There is no such mode.
        """
        self._tracker, self._say = Tracker(store, mode), say

    def started(self, item: Item, folder: Path | None) -> None:
        """See `Observer`."""
        self._tracker.started(followed(item), folder)

    def finished(self, item: Item, folder: Path, node: str = "") -> None:
        """See `Observer`."""
        self._tracker.finished(followed(item), folder)

    def failed(self, item: Item, reason: str, node: str = "") -> None:
        """See `Observer`."""
        self._tracker.failed(followed(item), reason)

    def again(self, item: Item, why: Again, reason: str, node: str = "") -> None:
        """Nothing: its next start tells enough."""

    def noted(self, line: str) -> None:
        """Nothing."""

    def closed(self) -> None:
        """See `Observer`."""
        self._say(self._tracker.closed())


class TrackedSearch:
    """Hands on to W&B how the trials of a search ended; its errors never touch the search."""

    def __init__(self, store: Path, mode: str, say: Callable[[str], None]) -> None:
        """Start following.

        Args:
            store: Folder of all runs and searches.
            mode: Of W&B, but not ``off``.
            say: Takes a line for the user.

        Raises:
            BenchmdError: There is no such mode.
        """
        self._tracker, self._say = Tracker(store, mode), say

    def trial_ended(self, search: str, about: Mapping[str, Any], trial: Mapping[str, Any]) -> None:
        """A trial ended; it is reported once, also where a search is resumed.

        Args:
            search: Name of the search.
            about: Its technique, setting and modality.
            trial: The trial's row of the search's ``trials.parquet``.
        """
        with contextlib.suppress(Exception):
            self._tracker.trial_ended(search, about, trial)

    def closed(self) -> None:
        """Nothing more will be reported; say what became of it."""
        line = "Not everything could be sent to W&B."
        with contextlib.suppress(Exception):
            line = self._tracker.closed()
        self._say(line)


def followed(item: Item) -> Followed:
    """An item as W&B shows it."""
    step = item.step
    names = (item.name, step.kind, item.modality, item.technique, item.dataset)
    evaluation = step.evaluation.name if step.scores else ""
    return Followed(*names, makes_run=step.makes_run, evaluation=evaluation)
