"""Nothing is tried that was learned on records which are tuned or scored, whatever they are called.

Searches are planned on catalogs with records, written as searches write them, and learned from.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
from made_catalogs import write_catalog
from stores import evaluated, make_search, make_trials

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import digest
from benchmd_ray.service import searches
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.learning import learned_in
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.tuning.portfolio import Portfolio, read_portfolio, write_portfolio
from benchmd_ray.tuning.records import read_search

LR = "transfer.optimiser.lr"
SPACE = f"{LR}: {{kind: log float, low: 1.0e-5, high: 0.1, default: 1.0e-4}}\n"
HASH = "0123456789abcdef"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def make(tmp_path):
    """Makes a catalog of ECGs that are drawn by a seed, under any name; returns its folder."""

    def made(name, seed, card="ptb-xl"):
        card = replace(dataset_card(card), name=name)
        splits = {}
        for split, count in (("train", 8), ("validation", 4), ("test", 4)):
            records = [
                Record(
                    f"{split}-{n}", f"{split}-{n}", f"{split}-{n}", signal, 1.0, shape[1:], target
                )
                for n, signal in enumerate(signals_of(seed, card, split, count))
                for shape in [card.signal.stored_shape]
                for target in [[int(n % len(card.classes) == c) for c in range(len(card.classes))]]
            ]
            splits[split] = [records]
        return write_catalog(tmp_path / "catalogs" / f"{name}-{seed}", card, splits)

    return made


def signals_of(seed, card, split, count):
    rng = np.random.default_rng([seed, *split.encode()])
    return rng.integers(-999, 999, (count, *card.signal.stored_shape), np.int16)


def sketch(seed):
    """The sketch of a made catalog, by definition."""
    card = dataset_card("ptb-xl")
    counts = {"train": 8, "validation": 4, "test": 4}
    signals = [s for split, n in counts.items() for s in signals_of(seed, card, split, n)]
    hashes = [hashlib.blake2b(s.tobytes(), digest_size=8).hexdigest() for s in signals]
    return "".join(sorted(hashes))


def planned(tmp_path, *catalogs, portfolio=Portfolio()):  # noqa: B008
    space = tmp_path / "space.yaml"
    space.write_text(SPACE)
    tuning = Tuning(
        Choice(catalogs),
        techniques=("mae",),
        searched=("linear",),
        space=space,
        portfolio=portfolio,
    )
    (plan,) = planned_searches(tuning, gpu=False)
    return plan


def searched(store, plan):
    """Write the search of a plan, whose score falls with the distance of the rate from 0.01."""
    about = plan.describe([open_catalog(source.catalog) for source in plan.sources])
    rows = make_trials(24, plan.families[0].space.as_dict())
    for row in rows:
        row[LR] = plan.families[0].space.start[LR] if row["number"] == 0 else row[LR]
        value = 0.8 - 0.05 * abs(math.log10(row[LR] / 1e-2))
        row |= {**evaluated([value] * 3), "state": "complete"}
    families = about.pop("families")
    return make_search(store, plan.name, rows=rows, families=families, **about)


def test_a_search_states_sketches_and_a_portfolio_keeps_them(tmp_path, make):
    record = read_search(searched(tmp_path / "a", planned(tmp_path, make("hospital", 1))))
    assert record.sources[0]["sketch"] == sketch(1)
    assert record.lenders == {}
    portfolio = learned_in([tmp_path / "a"])
    assert portfolio.sketches == {"hospital": sketch(1)}
    again = planned(tmp_path, make("another", 2), portfolio=portfolio)
    assert {settings.datasets for settings in again.portfolio} == {("hospital",)}
    assert sketch(1) not in str(again.determinants)  # which runs and logs state, too
    record = read_search(searched(tmp_path / "b", again))
    assert (record.borrowed, record.lenders) == (len(again.portfolio), {"hospital": sketch(1)})
    of_both = learned_in([tmp_path / "b"])  # without the store of the first search
    assert of_both.sketches == {"another": sketch(2), "hospital": sketch(1)}
    assert of_both.after == {"another": ("hospital",)}
    path = tmp_path / "portfolio.json"
    write_portfolio(path, of_both)
    assert read_portfolio(path) == of_both


def test_what_was_learned_on_the_same_records_is_not_tried(tmp_path, make):
    searched(tmp_path / "a", planned(tmp_path, make("hospital", 1)))
    first = learned_in([tmp_path / "a"])
    searched(tmp_path / "b", planned(tmp_path, make("another", 2), portfolio=first))
    second = learned_in([tmp_path / "b"])

    def lenders(*catalogs, portfolio=first):
        plan = planned(tmp_path, *catalogs, portfolio=portfolio)
        return {settings.datasets for settings in plan.portfolio}

    own, other = make("own", 1), make("own", 3)
    assert lenders(own) == set()  # its source has the records of "hospital"
    assert lenders(other) == {("hospital",)}
    target = make("target", 1, "georgia")
    assert lenders(other, target) == set()
    assert lenders(other, make("target", 4, "georgia")) == {("hospital",)}
    # "another" has none of the records of "own", but its search began near what "hospital" taught.
    assert lenders(own, portfolio=second) == set()
    assert lenders(make("own", 2), portfolio=second) == set()
    assert lenders(other, portfolio=second) == {("another", "hospital")}


def test_settings_learned_on_the_same_records_are_not_tried(tmp_path, make):
    searched(tmp_path / "a", planned(tmp_path, make("hospital", 1)))
    learned = learned_in([tmp_path / "a"])
    candidate = replace(learned.candidates[0], values={LR: 1e-2}, gain=0.9)
    far = replace(candidate, dataset="far", values={LR: 1e-3}, gain=0.02)
    sketches = {**learned.sketches, "far": HASH}
    portfolio = replace(learned, candidates=(candidate, far), sketches=sketches)
    rates = {
        seed: [s.values[LR] for s in planned(tmp_path, catalog, portfolio=portfolio).portfolio]
        for seed, catalog in ((1, make("own", 1)), (3, make("own", 3)))
    }
    assert rates == {1: [1e-3], 3: [1e-2, 1e-3]}


def test_catalogs_are_read_only_where_names_and_kinds_allow_settings(tmp_path, make, monkeypatch):
    searched(tmp_path / "a", planned(tmp_path, make("hospital", 1)))
    portfolio = learned_in([tmp_path / "a"])
    read = []
    monkeypatch.setattr(searches, "sketch_of", lambda catalog: read.append(catalog.dataset) or "")
    source, target = make("own", 3), make("target", 4, "georgia")
    planned(tmp_path, make("hospital", 3), target, portfolio=portfolio)
    kind = replace(portfolio.candidates[0].kind, technique="scratch")
    others = [replace(candidate, kind=kind) for candidate in portfolio.candidates]
    planned(tmp_path, source, target, portfolio=replace(portfolio, candidates=(*others,)))
    assert read == []
    assert planned(tmp_path, source, target, portfolio=portfolio).portfolio
    assert read == ["own", "target"]


@pytest.mark.parametrize("sketch", ["0", HASH.upper(), HASH * 2, "x" * 16, f"{HASH}\n", 7])
def test_a_file_with_another_sketch_is_refused(tmp_path, sketch):
    about = {
        **{"modality": "ecg", "source": "own", "policy": "clean", "catalog": "a", "inner": "b"},
        **{name: {"train": 3, "validation": 1} for name in ("records", "patients")},
    }
    folder = make_search(tmp_path, sources=[{**about, "sketch": sketch}])
    with pytest.raises(BenchmdError, match=r"damaged: sources\[0\]\.sketch is .*, expected"):
        read_search(folder)
    lent = {"portfolio": [{"family": "mae linear", "values": {}, "datasets": ["lent"]}]}
    name = f"tune-{digest(lent)[:12]}"
    folder = make_search(tmp_path, name, determinants=lent, lenders={"lent": sketch})
    with pytest.raises(BenchmdError, match=r"damaged: lenders\.lent is .*, expected"):
        read_search(folder)
    path = tmp_path / "portfolio.json"
    write_portfolio(path, Portfolio())
    path.write_text(
        path.read_text().replace('"sketches": {}', f'"sketches": {{"own": {_json(sketch)}}}')
    )
    with pytest.raises(BenchmdError, match=r"sketches\.own is .*, expected"):
        read_portfolio(path)


def _json(value):
    return repr(value).replace("'", '"')


@pytest.mark.parametrize("lenders", [{}, {"lent": "", "other": ""}, {"other": ""}])
def test_a_search_has_sketches_of_the_datasets_that_lent_it_settings(tmp_path, lenders):
    lent = {"portfolio": [{"family": "mae linear", "values": {}, "datasets": ["lent"]}]}
    folder = make_search(tmp_path, f"tune-{digest(lent)[:12]}", determinants=lent, lenders=lenders)
    with pytest.raises(BenchmdError, match="its lenders are not the datasets of its portfolio"):
        read_search(folder)


@pytest.mark.parametrize("names", [(), ("hospital", "other"), ("other",)])
def test_a_portfolio_has_a_sketch_of_every_dataset_that_it_names(tmp_path, make, names):
    searched(tmp_path / "a", planned(tmp_path, make("hospital", 1)))
    portfolio = replace(learned_in([tmp_path / "a"]), sketches=dict.fromkeys(names, HASH))
    with pytest.raises(
        BenchmdError, match=r"a sketch of the dataset '(hospital|other)', expected both"
    ):
        write_portfolio(tmp_path / "portfolio.json", portfolio)
