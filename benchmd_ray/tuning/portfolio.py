"""A portfolio: settings that beat the start on other datasets, which a search tries early.

It is learned from finished searches (`tuning.gains`). A family of a search gets the settings of its
kind, those with the largest gain over their start first. Everything learned on a dataset that the
search tunes or scores, on one of its origin, or on one with records in common (`data.sketches`) is
excluded first, including results of searches that tried such settings.

The file has names of settings with plain values; only those in the search space are used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, zip_longest
from pathlib import Path

from benchmd_ray.data.sketches import Sketch
from benchmd_ray.errors import BenchmdError, is_name, shown
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.files.integrity import MAX_JSON_BYTES, read_json
from benchmd_ray.schema.typed import PlainValue, typed
from benchmd_ray.storage.location import Location, write
from benchmd_ray.tuning.families import Family

VERSION = 8
SHIPPED = "portfolio.json"
MOST = 6
"""Settings that a search tries."""
MOST_CANDIDATES, MOST_DATASETS = 3000, 300


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
    gain: float
    """Difference of its score to that of the start."""


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
        return {candidate.dataset for candidate in self.candidates}.union(
            self.after, *self.after.values()
        )

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
    tried = [family.space.start]
    for candidate in sorted(candidates, key=lambda candidate: -candidate.gain):
        values = family.space.filled(candidate.values)
        if values not in tried:
            tried.append(values)
            origins = portfolio.origins(candidate.dataset)
            lenders = {name: portfolio.sketches.get(name, "") for name in origins}
            yield PortfolioSettings(family.name, values, lenders)
