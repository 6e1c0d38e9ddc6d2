"""A portfolio: settings that beat the start on other datasets, which a search tries early.

It is learned from finished searches. Each of their families contributes a few candidates, which are
its trials above its start, and a random forest over its trials that estimates the gain of any
settings on its dataset. A family of a search gets candidates of its kind, which are chosen
greedily: each next one has the largest additional gain, on average over datasets, over the best of
the start and the candidates before it (as in Feurer et al., Auto-sklearn 2.0,
https://arxiv.org/abs/2007.04074). Everything learned on a dataset that the search tunes or scores,
on one of its origin, or on one with records in common (`data.sketches`) is excluded first,
including results of searches that tried such settings.

The file has names of settings with plain values; only those in the search space are used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmd_ray.data.sketches import Sketch, merged
from benchmd_ray.errors import BenchmdError, is_name, shown
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.files.integrity import MAX_JSON_BYTES, read_json
from benchmd_ray.schema.typed import PlainValue, typed
from benchmd_ray.storage.location import Location, write
from benchmd_ray.tuning.families import FAMILY, Family
from benchmd_ray.tuning.ladder import RUNGS
from benchmd_ray.tuning.parameters import Parameter
from benchmd_ray.tuning.record_form import parameter_of
from benchmd_ray.tuning.records import FamilyRecord, SearchRecord

VERSION = 7
SHIPPED = "portfolio.json"
MOST = 6
"""Settings that a search tries."""
CANDIDATES = 3
"""Settings that a family of a search contributes."""
MOST_CANDIDATES, MOST_DATASETS = 3000, 300
FEWEST = 8
"""Scored trials that a search needs to estimate gains."""
TREES = 200
MOST_NUMBERS = 5_000_000
"""Most trials times inputs of a forest; larger searches are skipped."""


@dataclass(frozen=True)
class SearchKind:
    """Families of one kind can learn from each other."""

    axes: int
    technique: str
    """``scratch``, ``random-kernels``, or ``pretrained`` for all others."""
    mode: str
    metric: str
    """``auroc``, or ``dsc`` of masks."""


@dataclass(frozen=True)
class Candidate:
    """Settings that beat the start of their family."""

    dataset: str
    kind: SearchKind
    values: dict[str, PlainValue]
    gains: dict[str, float]
    """Estimated gain over the start, by dataset."""


@dataclass(frozen=True)
class PortfolioSettings:
    """Settings that a portfolio gives a search."""

    family: str
    values: dict[str, PlainValue]
    lenders: dict[str, str]
    """Sketches of the datasets from which they originate, by dataset."""

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(self.lenders)


@dataclass(frozen=True)
class Portfolio:
    """Candidates of all kinds."""

    version: int = VERSION
    candidates: tuple[Candidate, ...] = ()
    after: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Origins of the settings that searches on a dataset got from a portfolio, by dataset."""
    sketches: dict[str, Sketch] = field(default_factory=dict)
    """Of all datasets."""

    @property
    def datasets(self) -> set[str]:
        """All datasets that it names."""
        names = {name for c in self.candidates for name in (c.dataset, *c.gains)}
        return names.union(self.after, *self.after.values())

    def origins(self, dataset: str) -> tuple[str, ...]:
        """All datasets from which settings learned on this one originate."""
        return tuple(sorted({dataset, *self.after.get(dataset, ())}))


def read_portfolio(path: Path | None = None) -> Portfolio:
    """Read a portfolio; None takes the one that ships with the package."""
    path = path or resource_folder("search_spaces") / SHIPPED
    where, remedy = f"the portfolio {path}", "Learn it again with `benchmd tune --learn STORE`."
    content = read_json(path, remedy)
    if content.get("version") != VERSION:
        version = shown(content.get("version"))
        raise BenchmdError(f"{where} has the version {version}, expected {VERSION}. {remedy}")
    portfolio: Portfolio = typed(Portfolio, content, where)
    _require_bounded(portfolio, where, remedy)
    return portfolio


def _require_bounded(portfolio: Portfolio, where: str, remedy: str) -> None:
    names = portfolio.datasets
    for name in sorted(names):
        if not is_name(name):
            raise BenchmdError(f"{where} names a dataset {shown(name)}: not a plain name. {remedy}")
    for what, count, most in (
        ("settings", len(portfolio.candidates), MOST_CANDIDATES),
        ("datasets", len(names), MOST_DATASETS),
    ):
        if count > most:
            raise BenchmdError(f"{where} has {count:,} {what}, expected {most:,} at most. {remedy}")
    if unpaired := sorted(names ^ portfolio.sketches.keys()):
        raise BenchmdError(
            f"{where} has settings or a sketch of the dataset {shown(unpaired[0])}, expected both. "
            f"{remedy}"
        )


def write_portfolio(place: Location, portfolio: Portfolio) -> None:
    """Write a portfolio atomically."""
    _require_bounded(portfolio, "the portfolio", "Learn from fewer searches.")
    text = json.dumps(asdict(portfolio), indent=1, sort_keys=True, allow_nan=False) + "\n"
    if len(text) > MAX_JSON_BYTES:
        raise BenchmdError(
            f"the portfolio has {len(text):,} bytes, expected {MAX_JSON_BYTES:,} at most. "
            "Learn from fewer searches."
        )
    write(place, text.encode())


def chosen_settings(
    portfolio: Portfolio,
    kinds: Mapping[str, SearchKind],
    families: Sequence[Family],
    usable: Callable[[str], bool],
) -> tuple[PortfolioSettings, ...]:
    """Settings that a search tries right after its families' starts, in order.

    ``kinds``: of each family by name. ``usable``: whether settings learned on a dataset may be
    used; asked only about datasets with candidates of these kinds. Families take turns.
    """
    of_families = (_of_family(portfolio, kinds[f.name], f, usable) for f in families)
    turns = (settings for turn in zip_longest(*of_families) for settings in turn if settings)
    return tuple(islice(turns, MOST))


def _of_family(
    portfolio: Portfolio, kind: SearchKind, family: Family, usable: Callable[[str], bool]
) -> Iterator[PortfolioSettings]:
    def allowed(dataset: str) -> bool:
        return all(map(usable, portfolio.origins(dataset)))

    candidates = [c for c in portfolio.candidates if c.kind == kind and allowed(c.dataset)]
    names = sorted(filter(allowed, {name for c in candidates for name in c.gains}))
    gains = [[c.gains.get(name, 0.0) for name in names] for c in candidates]
    tried = [family.space.start]
    for number in complementary(np.reshape(gains, (len(candidates), len(names)))):
        values = family.space.filled(candidates[number].values)
        if values not in tried:
            tried.append(values)
            origins = portfolio.origins(candidates[number].dataset)
            lenders = {name: portfolio.sketches.get(name, "") for name in origins}
            yield PortfolioSettings(family.name, values, lenders)


def complementary(gains: np.ndarray) -> Iterator[int]:
    """Greedy order of candidates: each next one adds the largest gain to the best so far.

    ``gains`` is (candidates, datasets); candidates without a gain are excluded.
    """
    reached = np.zeros(gains.shape[1])
    while gains.size:
        added = np.maximum(gains - reached, 0.0).mean(axis=1)
        best = int(added.argmax())
        if added[best] <= 0:
            return
        yield best
        reached = np.maximum(reached, gains[best])


def learned(
    records: Sequence[SearchRecord], kinds: Mapping[tuple[str, str], SearchKind]
) -> Portfolio:
    """A portfolio of finished searches on one source each.

    ``kinds``: of each search and family, by their names.
    """
    models = [
        (record, family, kinds[record.name, family.name], model)
        for record in records
        for family in record.families
        if (record.name, family.name) in kinds and (model := _Model.of(record, family))
    ]
    candidates = []
    for record, family, kind, _ in models:
        for values in _above_the_start(record, family):
            gains: dict[str, list[float]] = {}
            for other, _, other_kind, model in models:
                if other_kind == kind:
                    gains.setdefault(_dataset(other), []).append(model.gain(values))
            means = {name: round(math.fsum(g) / len(g), 5) for name, g in sorted(gains.items())}
            candidates.append(Candidate(_dataset(record), kind, values, means))
    portfolio = Portfolio(candidates=_that_can_be_tried(candidates))
    return _with_origins(portfolio, [record for record, *_ in models])


def _dataset(record: SearchRecord) -> str:
    return str(record.sources[0]["source"])


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


def _above_the_start(record: SearchRecord, family: FamilyRecord) -> list[dict[str, Any]]:
    """Settings of a family that beat its start: those with the most evaluations, then the best.

    Settings from a portfolio are excluded, as they were learned on other datasets, and trials that
    did not climb if others did.
    """
    trials = _trials(record, family)
    lent = range(len(record.families), len(record.families) + record.borrowed)
    rivals = trials[~trials["number"].isin([*lent, trials["number"].iloc[0]])]
    least = min(RUNGS[1], rivals["evaluations"].max())
    above = rivals[
        (rivals["value"] > trials["value"].iloc[0]) & (rivals["evaluations"] >= least)
    ].sort_values(["evaluations", "value"], ascending=False, kind="stable")
    return [
        {p.name: p.taken(row[p.name]) for p in _parameters(family) if not pd.isna(row[p.name])}
        for row in above.head(CANDIDATES).to_dict("records")
    ]


def _trials(record: SearchRecord, family: FamilyRecord) -> pd.DataFrame:
    """Scored trials of a family in order of number."""
    trials = record.trials
    is_scored = np.isfinite(trials["value"]) & (trials["state"] != "failed")
    return trials[(trials[FAMILY] == family.name) & is_scored]


def _parameters(family: FamilyRecord) -> list[Parameter]:
    return [parameter_of(name, about) for name, about in family.space.items()]


class _Model:
    """Estimates the score of any settings in a family of a search from its trials."""

    def __init__(self, parameters: Sequence[Parameter], trials: pd.DataFrame) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self._parameters = parameters
        points = [self._point(row) for row in trials.to_dict("records")]
        self._start = points[0]
        self._forest = RandomForestRegressor(TREES, random_state=0, n_jobs=1)
        self._forest.fit(points, trials["value"], sample_weight=trials["evaluations"])

    @classmethod
    def of(cls, record: SearchRecord, family: FamilyRecord) -> _Model | None:
        """Fit the model; None for too few or many trials, or a start without a score."""
        trials, parameters = _trials(record, family), _parameters(family)
        width = sum(len(parameter.values) or 1 for parameter in parameters)
        if len(trials) < FEWEST or len(trials) * width > MOST_NUMBERS:
            return None
        start = record.families.index(family)  # the families' starts are the first trials
        return cls(parameters, trials) if trials["number"].iloc[0] == start else None

    def _point(self, values: Mapping[Any, Any]) -> list[float]:
        """Settings as numbers: a range as 0 to 1, a choice as indicators."""
        return [number for p in self._parameters for number in _numbers(p, values.get(p.name))]

    def gain(self, values: Mapping[str, Any]) -> float:
        """Estimated score minus the start's estimated score.

        The start's observed score would be biased relative to a forest, which shrinks toward the
        mean.
        """
        reached, begun = self._forest.predict([self._point(values), self._start])
        return float(reached - begun)


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
