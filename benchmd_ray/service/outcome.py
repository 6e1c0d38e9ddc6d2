"""Outcome of a plan, and observers of its execution."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any, Literal

from benchmd_ray.console.progress import duration
from benchmd_ray.service.plan import Item

Again = Literal["retried", "preempted", "lost"]
"""Why an item is tried again: a transient error; its process had to make room; its node or storage
went away. Only the first counts as a try.
"""


class Observer:
    """Is notified of events while a plan is executed; its errors never affect the work.

    A node is Ray's identifier, empty if unknown.
    """

    def started(self, item: Item, folder: Path | None) -> None:
        """An item starts or is tried again; `folder` is that of its run, if known."""

    def finished(self, item: Item, folder: Path, node: str = "") -> None:
        """An item was finished, here or by another process; `folder` is that of its run."""

    def failed(self, item: Item, reason: str, node: str = "") -> None:
        """An item failed for good."""

    def again(self, item: Item, why: Again, reason: str, node: str = "") -> None:
        """A try of an item ended without a result; it is tried again."""

    def noted(self, line: str) -> None:
        """Something else happened that a user should know, such as a node that went away."""

    def closed(self) -> None:
        """No more events will follow."""


class Observers(Observer):
    """Several observers as one that never fails."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._broken: list[Observer] = []

    def _notify(self, event: str, *about: Any, **named: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, event)(*about, **named)
            except Exception as error:  # no error of an observer may cost a run
                if observer not in self._broken:
                    name = type(observer).__name__
                    logging.getLogger(__name__).warning("the observer %s failed: %r", name, error)
                    self._broken.append(observer)


for _event in ("started", "finished", "failed", "again", "noted", "closed"):
    setattr(Observers, _event, partialmethod(Observers._notify, _event))


@dataclass(frozen=True)
class Failure:
    """An item that failed for good."""

    item: Item
    reason: str
    folder: Path | None
    """Folder of its run with history and metrics, if it got that far."""


@dataclass(frozen=True)
class PlanOutcome:
    folders: dict[str, Path]
    """Folder of the run by the name of the item, for finished items."""
    done: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    """Items that were finished before this plan."""
    elsewhere: tuple[str, ...] = ()
    """Items that another process finished meanwhile."""
    failed: tuple[Failure, ...] = ()
    not_run: tuple[tuple[str, str], ...] = ()
    """Items that depend on a failed item, directly or not, with the name of the failed item."""
    seconds: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether everything is done."""
        return not self.failed and not self.not_run

    def lines(self) -> list[str]:
        """Text for the user, with failures last."""
        counts = [f"{len(self.done)} done in {duration(self.seconds)}"] if self.done else []
        for names, what in (
            (self.before, "done before"),
            (self.elsewhere, "done by another process"),
            (self.failed, "failed"),
            (self.not_run, "not run, as they depend on a failed one"),
        ):
            if names:
                counts.append(f"{len(names)} {what}")
        lines = [", ".join(counts or ["nothing to do"])]
        for failure in self.failed:
            lines.append(f"failed: {failure.item.name}: {failure.reason}")
            if failure.folder is not None:
                lines.append(f"    history and metrics: {failure.folder}")
        lines += [f"not run: {name} (after {cause})" for name, cause in self.not_run]
        return lines
