"""Which entries a board tells apart: ranks with intervals, groups, and the best for their cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from benchmd_ray.board.bundle import PackedRun
from benchmd_ray.board.recompute import Entry, key_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import settings_among, starts
from benchmd_ray.modality.modalities import modality
from benchmd_ray.report.contamination import is_marked
from benchmd_ray.report.frames import mode_and_labels
from benchmd_ray.report.protocols import TUNED
from benchmd_ray.scores.stability import paired_ranks
from benchmd_ray.scores.support import Basis
from benchmd_ray.ssl import BASELINES, BROUGHT, SCRATCH, TECHNIQUES

CUSTOM, PUBLISHED, CONTAMINATED = (
    "custom settings",
    "published weights",
    "contaminated",
)
DIVISIONS = ("fixed protocol", TUNED, CUSTOM, PUBLISHED, CONTAMINATED)
"""What is ranked apart, in the order of the pages; protocols of other starts come last."""


@dataclass(frozen=True)
class Placed:
    """An entry among those that it is compared with."""

    entry: Entry
    rank: float
    low: float
    """Lower end of the 95 % interval of its rank, see `scores.stability.paired_ranks`."""
    high: float
    group: int
    """1: the best, and those that no test tells from it; 2: the best of the others, …"""
    behind: tuple[float, float, float]
    """AUROC minus the best one's, and its simultaneous 95 % interval; NaN for the best."""
    on_front: bool
    """Whether no entry of any division is as good for less, or better for as much."""


def division(entry: Entry, dataset: str) -> str:
    """What an entry is ranked among, as far as its statements are consistent."""
    run = entry.first
    seen = [p.contamination for r in entry.runs for p in r.predictions if p.dataset == dataset]
    if any(map(is_marked, seen)):
        return CONTAMINATED
    if run.technique.startswith(BROUGHT):
        return PUBLISHED
    if run.protocol == TUNED or run.settings.get("tuned"):
        return TUNED
    return f"{run.protocol} protocol" if all(map(_follows, entry.runs)) else CUSTOM


def _follows(run: PackedRun) -> bool:
    """Whether a run's stated settings are those of the protocol that it names."""
    start = starts().get(run.protocol)
    if start is None or run.technique not in (SCRATCH, *TECHNIQUES, *BASELINES):
        return False  # other techniques would be looked up, and theirs is no fixed protocol
    parts = settings_among(run.settings)
    with suppress(BenchmdError):  # a modality that is not known here
        return start.followed(modality(run.modality), run.technique, parts)
    return False


def labels_of(entry: Entry) -> str:
    return mode_and_labels(entry.first.setting)[1]


def placed(
    entries: Sequence[Entry], dataset: str, basis: Basis, on_front: Mapping[int, bool]
) -> list[Placed]:
    """Entries of one division on one dataset, the best first.

    Args:
        entries: With a result on the dataset.
        dataset: Its name.
        basis: What its mean AUROC rests on.
        on_front: Whether an entry is on the front, by `id`.
    """
    order = sorted(entries, key=lambda entry: _sorting(entry, dataset))
    values = np.array([entry.results[dataset].value for entry in order])
    draws = np.stack([entry.results[dataset].draws for entry in order], axis=1)
    untested = basis.no_interval or basis.no_test or basis.rough
    told = paired_ranks(values, draws[:0] if untested else draws, basis.degrees)
    behind = values - values[0]
    ends = np.stack((behind, behind - told.margin[0], behind + told.margin[0]), axis=1)
    ends[0] = np.nan
    whole = zip(order, told.rank, told.low, told.high, told.group, ends.tolist(), strict=True)
    return [
        Placed(
            entry, float(place), float(low), float(high), int(group), tuple(of), on_front[id(entry)]
        )
        for entry, place, low, high, group, of in whole
    ]


def _sorting(entry: Entry, dataset: str) -> tuple[float, tuple[str, ...]]:
    value = entry.results[dataset].value
    return math.inf if math.isnan(value) else -value, (*entry.bundle.identity, *key_of(entry.first))


def front(costs: Sequence[float], values: Sequence[float]) -> list[bool]:
    """Whether no other point is at least as good for less, or better for as much.

    A point without a cost or a value is never on the front.
    """
    result = [False] * len(costs)
    usable = [n for n in range(len(costs)) if math.isfinite(costs[n]) and math.isfinite(values[n])]
    best = -math.inf
    for n in sorted(usable, key=lambda n: (costs[n], -values[n])):
        alike = best == values[n] and any(
            result[m] and costs[m] == costs[n] and values[m] == values[n] for m in usable
        )
        result[n] = values[n] > best or alike
        best = max(best, values[n])
    return result


def cost_of(entry: Entry) -> float:
    """Device hours of a model, mean over its runs; NaN where it states none."""
    hours = [run.device_hours or math.nan for run in entry.runs]
    return float(np.mean(hours))
