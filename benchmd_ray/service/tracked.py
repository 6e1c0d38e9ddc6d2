"""Plans and searches followed in Weights & Biases."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmd_ray.service.outcome import Observer
from benchmd_ray.service.plan import Item, Plan
from benchmd_ray.ssl.brought import technique_label
from benchmd_ray.tracking.dashboard import Dashboard
from benchmd_ray.tracking.upload import Followed, Tracker


class TrackedPlan(Observer):
    """An `Observer` that logs to W&B; its dashboard is not ``off``.

    At the end it logs the comparison of choice and start of the ``searches`` whose runs these are.
    """

    def __init__(
        self,
        store: Path,
        dashboard: Dashboard,
        plan: Plan,
        say: Callable[[str], None],
        searches: Sequence[str] = (),
    ) -> None:
        self._tracker, self._say, self._searches = Tracker(store, dashboard), say, searches
        scoring = (item.after for item in plan.items if not item.step.makes_run)
        self._more = Counter(name for name in scoring if name is not None)

    def started(self, item: Item, folder: Path | None) -> None:
        """See `Observer`."""
        self._tracker.started(self._followed(item), folder)

    def finished(self, item: Item, folder: Path, node: str = "") -> None:
        """See `Observer`."""
        self._tracker.finished(self._followed(item), folder)

    def failed(self, item: Item, reason: str, node: str = "") -> None:
        """See `Observer`."""
        self._tracker.failed(self._followed(item), reason)

    def _followed(self, item: Item) -> Followed:
        return followed(item, self._more[item.name])

    def closed(self) -> None:
        """See `Observer`."""
        for search in self._searches:
            self._tracker.compared(search)
        self._say(self._tracker.closed())


class TrackedSearch:
    """Logs the trials of a search to W&B; its errors never affect the search."""

    def __init__(self, store: Path, dashboard: Dashboard, say: Callable[[str], None]) -> None:
        self._tracker, self._say = Tracker(store, dashboard), say

    def trial_ended(self, search: str, about: Mapping[str, Any], trial: Mapping[str, Any]) -> None:
        """Log the evaluations of a trial so far."""
        with contextlib.suppress(Exception):
            self._tracker.trial_ended(search, about, trial)

    def closed(self) -> None:
        """No more events will follow; report problems."""
        line = "Not everything could be sent to W&B."
        with contextlib.suppress(Exception):
            line = self._tracker.closed()
        self._say(line)


def followed(item: Item, more: int = 0) -> Followed:
    """An item for W&B, with the number of evaluations that depend on it."""
    step = item.step
    name = item.name if step.makes_run else item.after or item.name
    about = (name, item.modality, technique_label(item.technique), item.dataset)
    evaluation = step.evaluation.name if step.scores else ""
    return Followed(*about, makes_run=step.makes_run, more=more, evaluation=evaluation)


def observers(
    store: Path,
    dashboard: Dashboard,
    plan: Plan,
    say: Callable[[str], None],
    searches: Sequence[str] = (),
) -> list[Observer]:
    """The W&B observer of a plan, if enabled; see `TrackedPlan`."""
    return [] if dashboard.mode == "off" else [TrackedPlan(store, dashboard, plan, say, searches)]
