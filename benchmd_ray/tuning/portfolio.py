"""A portfolio: settings that beat the start on other datasets, which a search tries early.

It is learned from finished searches. A search contributes a few candidates, which are its trials
above the start, and a random forest over its trials that estimates the gain of any settings on its
dataset. Candidates are chosen greedily: each next one has the largest additional gain, on average
over datasets, over the best of the start and the candidates before it (as in Feurer et al.,
Auto-sklearn 2.0, https://arxiv.org/abs/2007.04074). Everything learned on the tuned dataset, or on
one of the same origin, is excluded first, including results of searches that started from such
settings.

The file has names of settings with plain values; only those in the search space are used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmd_ray.errors import BenchmdError, is_name, shown
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.files.integrity import MAX_JSON_BYTES, read_json
from benchmd_ray.schema.typed import PlainValue, typed
from benchmd_ray.storage.location import Location, write
from benchmd_ray.tuning.families import FAMILY, Family
from benchmd_ray.tuning.ladder import RUNGS
from benchmd_ray.tuning.records import NUMERIC, FamilyRecord, SearchRecord

VERSION = 6
SHIPPED = "portfolio.json"
MOST = 6
CANDIDATES = 3
MOST_CANDIDATES, MOST_DATASETS = 3000, 300
FEWEST = 8
"""Scored trials that a search needs to estimate gains."""
TREES = 200
MOST_NUMBERS = 5_000_000
"""Most trials times inputs of a forest; larger searches are skipped."""


@dataclass(frozen=True)
class SearchKind:
    """Searches of one kind can learn from each other."""

    axes: int
    technique: str
    """``scratch``, ``random-kernels``, or ``pretrained`` for all others."""
    mode: str
    metric: str
    """``auroc``, or ``dsc`` of masks."""


@dataclass(frozen=True)
class Candidate:
    """Settings that beat the start of a search."""

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
    datasets: tuple[str, ...]


@dataclass(frozen=True)
class Portfolio:
    """Candidates of all kinds."""

    version: int = VERSION
    candidates: tuple[Candidate, ...] = ()
    after: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Origins of the settings that searches on a dataset got from a portfolio, by dataset."""

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
    candidates = portfolio.candidates
    names = {name for candidate in candidates for name in (candidate.dataset, *candidate.gains)}
    names |= {name for datasets in portfolio.after.values() for name in datasets}
    for name in sorted(names):
        if not is_name(name):
            raise BenchmdError(f"{where} names a dataset {shown(name)}: not a plain name. {remedy}")
    for what, count, most in (
        ("settings", len(candidates), MOST_CANDIDATES),
        ("datasets", len(names), MOST_DATASETS),
    ):
        if count > most:
            raise BenchmdError(f"{where} has {count:,} {what}, expected {most:,} at most. {remedy}")


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
    used. Families take turns.
    """

    def allowed(dataset: str) -> bool:
        return all(map(usable, portfolio.origins(dataset)))

    usable_candidates = [c for c in portfolio.candidates if allowed(c.dataset)]
    of_families = [
        _of_family(portfolio, kinds[family.name], family, usable_candidates, allowed)
        for family in families
    ]
    turns = (settings for turn in zip_longest(*of_families) for settings in turn if settings)
    return tuple(islice(turns, MOST))


def _of_family(
    portfolio: Portfolio,
    kind: SearchKind,
    family: Family,
    candidates: Sequence[Candidate],
    allowed: Callable[[str], bool],
) -> list[PortfolioSettings]:
    of_kind = [candidate for candidate in candidates if candidate.kind == kind]
    names = sorted({name for c in of_kind for name in c.gains if allowed(name)})
    if not of_kind or not names:
        return []
    gains = np.array([[c.gains.get(name, 0.0) for name in names] for c in of_kind])
    chosen: list[PortfolioSettings] = []
    for number in complementary(gains):
        values = family.space.filled(of_kind[number].values)
        if values not in (family.space.start, *(settings.values for settings in chosen)):
            origins = portfolio.origins(of_kind[number].dataset)
            chosen.append(PortfolioSettings(family.name, values, origins))
    return chosen


def complementary(gains: np.ndarray) -> Iterator[int]:
    """Greedy order of candidates: each next one adds the largest gain to the best so far.

    ``gains`` is (candidates, datasets); candidates without a gain are excluded.
    """
    reached = np.zeros(gains.shape[1])
    while True:
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
    models = []
    for record in records:
        for family in record.families:
            kind = kinds.get((record.name, family.name))
            if kind is not None and (model := _Model.of(record, family)) is not None:
                models.append((record, family, kind, model))
    candidates = []
    after: dict[str, set[str]] = {}
    for record, family, kind, _ in models:
        dataset = str(record.sources[0]["source"])
        if record.lenders:
            after.setdefault(dataset, set()).update(record.lenders)
        for values in _above_the_start(record, family):
            gains: dict[str, list[float]] = {}
            for other, _, other_kind, model in models:
                if other_kind == kind:
                    name = str(other.sources[0]["source"])
                    gains.setdefault(name, []).append(model.gain(values))
            means = {name: round(math.fsum(g) / len(g), 5) for name, g in sorted(gains.items())}
            candidates.append(Candidate(dataset, kind, values, means))
    learned_after = {name: tuple(sorted(names)) for name, names in sorted(after.items())}
    return Portfolio(VERSION, _that_can_be_tried(candidates), learned_after)


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

    Settings from a portfolio are excluded, as they were learned on other datasets.
    """
    trials = record.trials
    of_family = trials[trials[FAMILY] == family.name]
    begun = of_family["number"].min()
    borrowed = range(len(record.families), len(record.families) + record.borrowed)
    start = of_family.loc[of_family["number"] == begun, "value"].iloc[0]
    eligible = ~of_family["number"].isin([begun, *borrowed]) & (of_family["state"] != "failed")
    least = min(RUNGS[1], int(of_family["evaluations"].max()))
    above = of_family[eligible & (of_family["value"] > start) & (of_family["evaluations"] >= least)]
    above = above.sort_values(["evaluations", "value"], ascending=False, kind="stable")
    return [
        {
            name: _as_searched(row[name], about)
            for name, about in family.space.items()
            if not _missing(row[name])
        }
        for row in _rows(above.head(CANDIDATES))
    ]


def _rows(trials: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): row[name] for name in row} for row in trials.to_dict("records")]


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _as_searched(value: Any, about: Mapping[str, Any]) -> Any:
    """Undo the conversion of whole numbers to floats in a table column with missing values."""
    if about["kind"] == "choice":
        if value not in about["values"]:
            raise BenchmdError(
                f"a search has a trial with {shown(value)}, expected one of {about['values']}: "
                "move the search's folder out of its store."
            )
        return about["values"][about["values"].index(value)]
    return int(value) if about["kind"].endswith("int") else float(value)


class _Model:
    """Estimates the score of any settings in a search from its trials."""

    def __init__(self, family: FamilyRecord, rows: pd.DataFrame) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self._space = family.space
        points = np.array([self._point(row) for row in _rows(rows)])
        self._start = points[0].tolist()
        self._forest = RandomForestRegressor(TREES, random_state=0, n_jobs=1)
        self._forest.fit(points, rows["value"], sample_weight=rows["evaluations"])

    @classmethod
    def of(cls, record: SearchRecord, family: FamilyRecord) -> _Model | None:
        """Fit the model; None for too few or many trials, no start, or several sources."""
        trials = record.trials[record.trials[FAMILY] == family.name]
        rows = trials[np.isfinite(trials["value"])]
        width = sum(len(about.get("values", "1")) for about in family.space.values())
        enough = len(rows) >= FEWEST and len(record.sources) == 1
        is_begun = enough and rows["number"].iloc[0] == trials["number"].iloc[0]
        return cls(family, rows) if is_begun and len(rows) * width <= MOST_NUMBERS else None

    def _point(self, values: Mapping[str, Any]) -> list[float]:
        """Settings as numbers: a range as 0 to 1, a choice as indicators."""
        numbers = []
        for name, about in self._space.items():
            value: Any = values.get(name)
            if _missing(value):
                value = about["default"]
            if about["kind"] == "choice":
                numbers += [float(value == choice) for choice in about["values"]]
            elif about["kind"] in NUMERIC:
                low, high = float(about["low"]), float(about["high"])
                place = min(max(float(value), low), high)
                if about["kind"].startswith("log"):
                    low, high, place = math.log(low), math.log(high), math.log(place)
                numbers.append((place - low) / (high - low) if low < high else 0.0)
        return numbers

    def gain(self, values: Mapping[str, Any]) -> float:
        """Estimated score minus the start's estimated score.

        The start's observed score would be biased relative to a forest, which shrinks toward the
        mean.
        """
        reached, begun = self._forest.predict([self._point(values), self._start])
        return float(reached - begun)
