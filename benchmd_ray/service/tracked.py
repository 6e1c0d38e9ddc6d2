"""A plan's execution followed in Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmd_ray.results.tracking import Followed, Tracker
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

    def finished(self, item: Item, folder: Path) -> None:
        """See `Observer`."""
        self._tracker.finished(followed(item), folder)

    def failed(self, item: Item, reason: str) -> None:
        """See `Observer`."""
        self._tracker.failed(followed(item), reason)

    def closed(self) -> None:
        """See `Observer`."""
        self._say(self._tracker.closed())


def followed(item: Item) -> Followed:
    """An item as W&B shows it."""
    return Followed(item.name, item.kind, item.modality, item.technique, item.dataset)
