"""What finished searches teach: settings above their start, and estimates of what others gain.

Each family of a search contributes a few candidates, which are its trials above its start, and a
random forest over its trials that estimates the gain of any settings on its dataset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from benchmd_ray.data.sketches import merged
from benchmd_ray.tuning.families import FAMILY
from benchmd_ray.tuning.ladder import RUNGS
from benchmd_ray.tuning.parameters import Parameter
from benchmd_ray.tuning.portfolio import Candidate, Portfolio, SearchKind
from benchmd_ray.tuning.record_form import parameter_of
from benchmd_ray.tuning.records import FamilyRecord, SearchRecord

CANDIDATES = 3
"""Settings that a family of a search contributes at most."""
FEWEST = 8
"""Scored trials that a family needs to estimate gains."""
TREES = 200
MOST_NUMBERS = 5_000_000
"""Most trials times inputs of a forest; larger families are skipped."""


def learned(
    records: Sequence[SearchRecord], kinds: Mapping[tuple[str, str], SearchKind]
) -> Portfolio:
    """A portfolio of finished searches on one source each.

    ``kinds``: of each search and family, by their names.
    """
    models: dict[SearchKind, list[_Model]] = {}
    for record in records:
        for family in record.families:
            kind = kinds.get((record.name, family.name))
            if kind is not None and (model := _Model.of(record, family)) is not None:
                models.setdefault(kind, []).append(model)
    candidates = [c for kind, alike in models.items() for c in _candidates(kind, alike)]
    portfolio = Portfolio(candidates=_that_can_be_tried(candidates))
    return _with_origins(portfolio, [model.record for alike in models.values() for model in alike])


def _candidates(kind: SearchKind, models: Sequence[_Model]) -> list[Candidate]:
    """What searches of one kind contribute, with the gains that all of them estimate."""
    tried = [(model.dataset, values) for model in models for values in model.above_the_start()]
    if not tried:
        return []
    estimates = [model.gains([values for _, values in tried]) for model in models]
    gains = pd.DataFrame(estimates, [model.dataset for model in models])
    means = gains.groupby(level=0).mean().round(5).to_dict()
    return [
        Candidate(dataset, kind, values, means[number])
        for number, (dataset, values) in enumerate(tried)
    ]


def _with_origins(portfolio: Portfolio, records: Sequence[SearchRecord]) -> Portfolio:
    """Add what its datasets were learned after, and all sketches."""
    names = portfolio.datasets
    after: dict[str, set[str]] = {}
    sketches: dict[str, set[str]] = {}
    for record in records:
        dataset = _dataset(record)
        if dataset not in names:
            continue
        if record.lenders:
            after.setdefault(dataset, set()).update(record.lenders)
        for name, sketch in {dataset: record.sources[0]["sketch"], **record.lenders}.items():
            sketches.setdefault(name, set()).add(sketch)
    return replace(
        portfolio,
        after={name: tuple(sorted(lenders)) for name, lenders in sorted(after.items())},
        sketches={name: merged(parts) for name, parts in sorted(sketches.items())},
    )


def _that_can_be_tried(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Drop candidates without a gain, or nowhere better than another of the same searches."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: -math.fsum(c.gains.values())):
        search = candidate.dataset, candidate.kind
        rivals = [rival.gains for rival in kept if (rival.dataset, rival.kind) == search]
        gains = candidate.gains.items()
        beaten = any(all(rival[name] >= gain for name, gain in gains) for rival in rivals)
        if max(candidate.gains.values()) > 0 and not beaten:
            kept.append(candidate)
    return tuple(kept)


class _Model:
    """Estimates gains of any settings in a family of a search from its scored trials."""

    def __init__(self, record: SearchRecord, family: FamilyRecord, trials: pd.DataFrame) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self.record, self._trials = record, trials
        self.dataset = _dataset(record)
        self._parameters = _parameters(family)
        points = [self._point(row) for row in trials.to_dict("records")]
        self._start = points[0]
        self._forest = RandomForestRegressor(TREES, random_state=0, n_jobs=1)
        self._forest.fit(points, trials["value"], sample_weight=trials["evaluations"])

    @classmethod
    def of(cls, record: SearchRecord, family: FamilyRecord) -> _Model | None:
        """Fit the model; None for too few or many trials, or a start without a score."""
        trials = record.trials
        is_scored = np.isfinite(trials["value"]) & (trials["state"] != "failed")
        trials = trials[(trials[FAMILY] == family.name) & is_scored]
        width = sum(len(parameter.values) or 1 for parameter in _parameters(family))
        if len(trials) < FEWEST or len(trials) * width > MOST_NUMBERS:
            return None
        start = record.families.index(family)  # the families' starts are the first trials
        return cls(record, family, trials) if trials["number"].iloc[0] == start else None

    def above_the_start(self) -> list[dict[str, Any]]:
        """Settings that beat the start: those with the most evaluations, then the best.

        Settings from a portfolio are excluded, as they were learned on other datasets, and trials
        that did not climb if others did.
        """
        trials, starts = self._trials, len(self.record.families)
        lent = range(starts, starts + self.record.borrowed)
        rivals = trials.iloc[1:][~trials["number"].iloc[1:].isin(lent)]
        least = min(RUNGS[1], rivals["evaluations"].max())
        is_above = (rivals["value"] > trials["value"].iloc[0]) & (rivals["evaluations"] >= least)
        above = rivals[is_above].sort_values(
            ["evaluations", "value"], ascending=False, kind="stable"
        )
        return [
            {p.name: p.taken(row[p.name]) for p in self._parameters if not pd.isna(row[p.name])}
            for row in above.head(CANDIDATES).to_dict("records")
        ]

    def gains(self, settings: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Estimated scores minus the start's estimated score: (settings,).

        The start's observed score would be biased relative to a forest, which shrinks toward the
        mean.
        """
        points = [self._start, *map(self._point, settings)]
        scores: np.ndarray = self._forest.predict(points)
        gains: np.ndarray = scores[1:] - scores[0]
        return gains

    def _point(self, values: Mapping[Any, Any]) -> list[float]:
        """Settings as numbers: a range as 0 to 1, a choice as indicators."""
        return [number for p in self._parameters for number in _numbers(p, values.get(p.name))]


def _dataset(record: SearchRecord) -> str:
    return str(record.sources[0]["source"])


def _parameters(family: FamilyRecord) -> list[Parameter]:
    return [parameter_of(name, about) for name, about in family.space.items()]


def _numbers(parameter: Parameter, value: Any) -> list[float]:
    if pd.isna(value):
        value = parameter.default
    if parameter.low is None or parameter.high is None:
        return [float(value == choice) for choice in parameter.values]
    low, high = parameter.low, parameter.high
    value = min(max(value, low), high)
    if parameter.kind.startswith("log"):
        low, high, value = math.log(low), math.log(high), math.log(value)
    return [(value - low) / (high - low) if low < high else 0.0]
