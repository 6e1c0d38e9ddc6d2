"""Which entries a board tells apart: ranks with intervals, groups, and the best for their cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmd_ray.board.bundle import PackedRun
from benchmd_ray.board.official import AboutDataset, Official
from benchmd_ray.board.recompute import Entry
from benchmd_ray.board.rerun import kind_of_source
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import settings_among, starts
from benchmd_ray.report.contamination import is_marked
from benchmd_ray.report.frames import LABELS, mode_and_labels, rank_of
from benchmd_ray.report.protocols import TUNED
from benchmd_ray.scores.stability import paired_ranks
from benchmd_ray.scores.support import Basis
from benchmd_ray.ssl import BASELINES, BROUGHT, SCRATCH, TECHNIQUES

CUSTOM, PUBLISHED, CONTAMINATED = "custom settings", "published weights", "contaminated"
DIVISIONS = ("fixed protocol", TUNED, CUSTOM, PUBLISHED, CONTAMINATED)
"""What is ranked apart, in the order of the pages; protocols of other starts come last."""
NO_FRONT = (TUNED, PUBLISHED, CONTAMINATED)
"""Divisions of entries whose costs are not all stated: searches, pretrainings by others."""
Contest = tuple[str, str, str]
"""Dataset, labels, division: what entries are compared within."""


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
    """Whether no other is as good for less, or better for as much."""


def contests(current: Sequence[Entry], official: Official) -> dict[Contest, list[Placed]]:
    """Entries by dataset, labels and division, the best first."""
    groups: dict[Contest, list[Entry]] = {}
    for entry in current:
        labels = mode_and_labels(entry.first.setting)[1]
        for name in entry.results:
            of = division(entry, official.datasets[name].about)
            groups.setdefault((name, labels, of), []).append(entry)
    names = (*official.datasets,)
    order = sorted(
        groups,
        key=lambda of: (names.index(of[0]), rank_of(LABELS, of[1]), rank_of(DIVISIONS, of[2])),
    )
    return {of: _placed(groups[of], of, official.datasets[of[0]].basis) for of in order}


def division(entry: Entry, dataset: AboutDataset) -> str:
    """What an entry is ranked among, as far as its statements are consistent."""
    run = entry.first
    if any(is_marked(part.contamination) for part in entry.parts(dataset.name)):
        return CONTAMINATED
    if run.technique.startswith(BROUGHT):
        return PUBLISHED
    if run.protocol == TUNED or any(each.settings["tuned"] for each in entry.runs):
        return TUNED
    follows = run.modality == dataset.modality and all(map(_follows, entry.runs))
    return f"{run.protocol} protocol" if follows else CUSTOM


def _follows(run: PackedRun) -> bool:
    """Whether a run's stated settings are those of the protocol that it names."""
    start = starts().get(run.protocol)
    if start is None or run.technique not in (SCRATCH, *TECHNIQUES, *BASELINES):
        return False  # other techniques would be looked up, and theirs is no fixed protocol
    pretrained = run.technique in TECHNIQUES and TECHNIQUES[run.technique].method
    if pretrained and "pretrain" not in run.settings:
        return False
    with suppress(BenchmdError):  # a modality that is not known here
        kind = kind_of_source(run.source, run.modality)
        return start.followed(kind, run.technique, settings_among(run.settings))
    return False


def _placed(entries: Sequence[Entry], contest: Contest, basis: Basis) -> list[Placed]:
    dataset, _, of = contest
    order = sorted(entries, key=lambda entry: _sorting(entry, dataset))
    values = np.array([entry.results[dataset].value for entry in order])
    draws = np.stack([entry.results[dataset].draws for entry in order], axis=1)
    ranks = paired_ranks(values, draws[:0] if untested(basis) else draws, basis.degrees)
    behind = values - values[0]
    ends = np.stack((behind, behind - ranks.margin[0], behind + ranks.margin[0]), axis=1)
    ends[0] = np.nan
    on_front = front(np.array([*map(cost_of, order)]), values) & (of not in NO_FRONT)
    columns = (ranks.rank, ranks.low, ranks.high, ranks.group, ends, on_front)
    rows = zip(order, *(column.tolist() for column in columns), strict=True)
    return [Placed(*row) for row in rows]


def untested(basis: Basis) -> str:
    """Why entries are not told apart by these patients; empty where they are."""
    if not basis.counts:
        return "no class has records with it and records without it"
    return basis.no_test or basis.no_interval or basis.rough


def _sorting(entry: Entry, dataset: str) -> tuple[float, tuple[str, ...]]:
    value = entry.results[dataset].value
    return math.inf if math.isnan(value) else -value, (*entry.bundle.identity, *entry.first.entry)


def front(costs: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether no other point is at least as good for less, or better for as much.

    A point without a cost or a value is never on the front.
    """
    cost, value = costs[:, None], values[:, None]
    beaten = (costs <= cost) & (values >= value) & ((costs < cost) | (values > value))
    return np.isfinite(costs) & np.isfinite(values) & ~beaten.any(axis=1)


def cost_of(entry: Entry) -> float:
    """Device hours of a model, mean over its runs; NaN where one states none."""
    hours = (run.device_hours for run in entry.runs)
    return float(np.mean([math.nan if of_run is None else of_run for of_run in hours]))
