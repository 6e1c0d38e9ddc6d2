"""Settings that won on other datasets: learned, ordered, and never from the dataset itself."""

import json
from dataclasses import asdict, replace

import pytest

from benchmd_ray.errors import BenchmdError
from benchmd_ray.settings.definition import Settings
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.portfolio import (
    VERSION,
    Candidate,
    Portfolio,
    SearchKind,
    chosen_settings,
    read_portfolio,
    write_portfolio,
)
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study, fixed_trial

LR, SCHEDULE = "transfer.optimiser.lr", "transfer.optimiser.schedule"
SPACE = Space(
    "made",
    (
        Parameter(LR, "log float", 1e-4, low=1e-5, high=0.1),
        Parameter(SCHEDULE, "choice", "constant", values=("constant", "cosine")),
        Parameter("transfer.batch_size", "int", 64, low=16, high=256, when={SCHEDULE: ("cosine",)}),
    ),
)
KIND = SearchKind(1, "pretrained", "linear", "auroc")
KERNELS = replace(KIND, technique="random-kernels")


def candidate(dataset, values, gain=0.1, kind=KIND):
    return Candidate(dataset, kind, values, gain)


def tried(portfolio, usable=lambda name: True, **kinds):
    """What a search of families of these kinds tries of a portfolio; by default of one."""
    kinds = kinds or {"mae linear": KIND}
    families = [Family(*name.split(), SPACE, (Settings(),)) for name in kinds]
    return chosen_settings(portfolio, kinds, families, usable)


def test_the_largest_gains_come_first_and_nothing_of_the_dataset_that_is_tuned():
    portfolio = Portfolio(
        VERSION,
        (
            candidate("own", {LR: 0.05}, 0.5),
            candidate("one", {LR: 0.01}, 0.01),
            candidate("two", {LR: 0.001}, 0.02),
            candidate("two", {LR: 0.01}, 0.005),  # tried already
            candidate("one", {LR: 0.003}, 9.0, replace(KIND, axes=2)),
            candidate("one", {LR: 0.004}, 9.0, replace(KIND, mode="finetune")),
            candidate("one", {LR: 0.005}, 9.0, replace(KIND, metric="dsc")),
            candidate("one", {LR: 0.006}, 9.0, KERNELS),
        ),
    )
    found = tried(portfolio, lambda name: name != "own")
    assert [(one.values[LR], one.datasets) for one in found] == [
        (0.001, ("two",)),
        (0.01, ("one",)),
    ]


def test_nothing_is_taken_that_was_learned_after_the_dataset_that_is_tuned():
    """Its settings were tried first on another dataset, whose trials are near them."""
    held = (candidate("after", {LR: 0.05}, 0.5), candidate("one", {LR: 0.01}, 0.01))
    portfolio = Portfolio(VERSION, held, {"after": ("own",)})
    found = tried(portfolio, lambda name: name != "own")
    assert [one.values[LR] for one in found] == [0.01]
    (first, *_) = tried(portfolio)
    assert (first.values[LR], first.datasets) == (0.05, ("after", "own"))


def test_a_value_is_taken_only_where_the_space_holds_it():
    odd = {LR: 99.0, SCHEDULE: "cosine", "transfer.batch_size": 32, "encoder.network": "evil:Net"}
    portfolio = Portfolio(VERSION, (candidate("one", odd),))
    (found,) = tried(portfolio)
    assert found.values == {LR: 1e-4, SCHEDULE: "cosine", "transfer.batch_size": 32}
    plain = candidate("one", {LR: 0.01, "transfer.batch_size": 32})
    (plain,) = tried(Portfolio(VERSION, (plain,)))
    assert plain.values == {LR: 0.01, SCHEDULE: "constant"}  # of the cosine alone
    start = Portfolio(VERSION, (candidate("one", dict(SPACE.start)),))
    assert tried(start) == ()


def test_families_take_turns_and_each_has_what_was_learned_on_its_kind():
    portfolio = Portfolio(
        VERSION,
        (
            *(candidate("one", {LR: 0.01 * n}, 0.1 * n) for n in (1, 2, 3, 4)),
            *(candidate("two", {LR: 0.02 * n}, 0.5 * n, KERNELS) for n in (1, 2, 3, 4)),
        ),
    )
    kinds = {"mae linear": KIND, "random-kernels linear": KERNELS, "scratch finetune": None}
    settings = tried(portfolio, **kinds)
    assert [s.family for s in settings] == 3 * ["mae linear", "random-kernels linear"]
    assert [s.values[LR] for s in settings] == pytest.approx([0.04, 0.08, 0.03, 0.06, 0.02, 0.04])
    assert [s.datasets for s in settings] == 3 * [("one",), ("two",)]


def test_a_study_tries_them_right_after_the_starts_of_its_families(tmp_path):
    values = {LR: 0.01, SCHEDULE: "constant"}
    kernels = Parameter("encoder.options.kernels", "int", 100, low=10, high=1000)
    first, second = "mae linear", "random-kernels linear"
    of_families = (
        Family("mae", "linear", SPACE, (Settings(),)),
        Family("random-kernels", "linear", Space("kernels", (kernels,)), (Settings(),)),
    )
    tried_first = ((second, {kernels.name: 500}), (first, values))
    method = Method(sampler="random")
    study = Study(tmp_path / "study.log", of_families, method, 1.0, tried_first)
    for number in range(6):
        study.propose()
        study.evaluated(number, 0, {"ecg": 0.5}, 1.0)
    trials = [(trial.family, dict(trial.values)) for trial in study.trials()]
    assert trials[:4] == [
        (first, SPACE.start),
        (second, {kernels.name: 100}),
        *((name, dict(settings)) for name, settings in tried_first),
    ]
    assert {name for name, _ in trials[4:]} == {first, second}
    assert len({str(trial) for trial in trials}) == 6


def test_a_portfolio_of_another_form_is_refused(tmp_path):
    path = tmp_path / "portfolio.json"
    candidates = (candidate("one", {LR: 0.1}),)
    write_portfolio(path, Portfolio(VERSION, candidates, sketches={"one": ""}))
    assert read_portfolio(path).candidates[0].values == {LR: 0.1}
    held = json.loads(path.read_text("utf-8"))
    for changed, said in (
        ({"version": VERSION + 1}, "has the version"),
        ({"candidates": [{"dataset": 3}]}, "portfolio"),
        ({"run": "it"}, "portfolio"),
    ):
        path.write_text(json.dumps(held | changed))
        with pytest.raises(BenchmdError, match=said):
            read_portfolio(path)


def test_the_portfolio_that_ships_is_small_and_can_be_read():
    shipped = read_portfolio()
    assert len(shipped.candidates) <= 60
    assert all(candidate.gain > 0 for candidate in shipped.candidates)


def test_a_value_is_taken_as_the_space_has_it():
    """What JSON says in another way, and what rounds to a step."""
    space = Space(
        "made",
        (
            Parameter("transfer.epochs", "int", 10, low=10, high=100, step=10),
            Parameter("transfer.batch_size", "choice", 16, values=(16, 32)),
            Parameter("transfer.dropout", "float", 0.0, low=0.0, high=1.0),
        ),
    )
    given = {"transfer.epochs": 19.9999999999, "transfer.batch_size": 32.0, "transfer.dropout": 1}
    values = space.filled(given)
    assert [*values.values()] == [20, 32, 1.0]
    assert [*map(type, values.values())] == [int, int, float]
    assert fixed_trial(space, values).params == values


@pytest.mark.parametrize(
    ("candidates", "said"),
    [
        ([candidate("one", {})] * 3001, "has 3,001 settings, expected 3,000 at most"),
        ([candidate(f"d{i}", {}) for i in range(301)], "has 301 datasets, expected 300 at"),
        ([candidate("\x1b]0;one", {})], "names a dataset .*not a plain name"),
        ([candidate("a\nb", {})], "names a dataset 'a.*not a plain name"),
    ],
)
def test_a_portfolio_is_bounded_and_names_can_be_shown(tmp_path, candidates, said):
    held = asdict(Portfolio(VERSION, tuple(candidates)))
    path = tmp_path / "portfolio.json"
    path.write_text(json.dumps(held), "utf-8")
    with pytest.raises(BenchmdError, match=said):
        read_portfolio(path)
    with pytest.raises(BenchmdError, match=said):
        write_portfolio(path, Portfolio(VERSION, tuple(candidates)))
    assert json.loads(path.read_text("utf-8")) == json.loads(json.dumps(held))
