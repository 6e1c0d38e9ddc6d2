"""Progress of a plan's execution: running items, and the time left."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmd_ray.console.progress import duration
from benchmd_ray.evaluation.evaluation import CLASSIFICATION
from benchmd_ray.runs.history import last_metrics
from benchmd_ray.service.plan import Item
from benchmd_ray.ssl.brought import technique_label

SHOWN = 3
"""Most running items that are listed."""


@dataclass(frozen=True)
class Progressing:
    """A running item."""

    item: Item
    folder: Path | None
    """Folder of its run, if known."""
    started: float
    """On the monotonic clock."""
    before: float = 0.0
    """Share of its training done by an earlier process."""

    @property
    def seconds(self) -> float:
        """Seconds since it started."""
        return time.monotonic() - self.started

    @property
    def share(self) -> float:
        """Share of the remaining work that this process has done; 0 if unknown."""
        return max(0.0, (self.fraction or 0.0) - self.before) / max(1e-9, 1 - self.before)

    @property
    def fraction(self) -> float | None:
        """Share of its training that is done; None if unknown."""
        total = self.item.step.total(self.item.settings)
        done = None if total is None or self.folder is None else units_done(self.folder)
        return None if done is None or total is None else min(1.0, done / total)

    @property
    def late(self) -> bool:
        """Whether it takes longer than estimated and its progress is unknown."""
        return self.fraction is None and self.seconds > self.item.seconds


def units_done(folder: Path) -> float | None:
    """Steps or epochs by the last line of a run's metrics; None without one."""
    last = last_metrics(folder)
    return None if last is None else float(last["done"])


def status_text(
    running: Sequence[Progressing],
    failed: int,
    elsewhere: int,
    done_per_minute: float,
    *,
    left: float,
) -> str:
    """``2 running (ptb-xl mae pretrain 45 %, …), 0 failed, 1.2 runs/min, 23 min left``.

    For late items it shows the time so far, and that the time left is a lower bound.
    """
    parts = [f"{len(running)} running{_named(running)}"]
    if elsewhere:
        parts.append(f"{elsewhere} elsewhere")
    parts.append(f"{failed} failed")
    if done_per_minute:
        parts.append(f"{done_per_minute:.2g} runs/min")
    more = "more than " if any(at.late for at in running) and not math.isnan(left) else ""
    return ", ".join([*parts, f"{more}{duration(left)} left"])


def _named(running: Sequence[Progressing]) -> str:
    if not running:
        return ""
    names = []
    for at in running[:SHOWN]:
        done = at.fraction
        far = f", {duration(at.seconds)} so far" if at.late else ""
        names.append(label(at.item) + (far if done is None else f" {done:.0%}"))
    return f" ({', '.join(names)}{', …' if len(running) > SHOWN else ''})"


def label(item: Item) -> str:
    """Short text for an item: ``ptb-xl mae pretrain``, ``ptb-xl mae linear on georgia``."""
    name = f"{item.source} {technique_label(item.technique)} {item.setting}"
    fold = re.search(r"/fold-(\d+)/seed-", item.name)  # of a cross-validation
    seed = (f" fold {fold[1]}" if fold else "") + (f" seed {item.seed}" if item.seed else "")
    usual = item.step.makes_run or item.step.evaluation.name == CLASSIFICATION.name
    evaluation = "" if usual else f" {item.step.evaluation.name}"
    return name + seed + evaluation + (f" on {item.dataset}" if item.dataset != item.source else "")


def longest_first(items: Sequence[Item]) -> list[Item]:
    """Items in the order in which they should start.

    Items with several workers come first, as there is less room for them later; then by the
    duration of the longest chain of dependent items.
    """
    chain: dict[str, float] = {}
    after = _by_predecessor(items)
    for item in reversed(items):  # dependants come after what they depend on
        follow = [chain[other.name] for other in after.get(item.name, [])]
        chain[item.name] = item.seconds + max(follow, default=0.0)
    return sorted(items, key=lambda item: (item.settings.execution.workers == 1, -chain[item.name]))


def _by_predecessor(items: Iterable[Item]) -> dict[str, list[Item]]:
    after: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        if item.after is not None:
            after[item.after].append(item)
    return after
