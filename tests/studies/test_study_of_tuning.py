"""The study of tuning: what a search gained, pooled over tasks, and the tables of it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kinds import MODALITIES
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score
from stored import searches
from stores import (
    SEARCH,
    make_pretraining,
    make_search,
    make_transfer,
    people,
    scores_of,
    targets_of,
    write_predictions,
)

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import StoredItems
from benchmd_ray.runs.store import read_stores
from benchmd_ray.service.learning import learned_in
from benchmd_ray.tuning.portfolio import Portfolio, write_portfolio
from studies import tuning as tuning_study
from studies.tuning import Study, gained
from studies.tuning_tables import DRAWS, Difference, Gained, pooled, report
from studies.tuning_tasks import TASKS

ECG = MODALITIES["ecg"].task
ROOT = Path(__file__).resolve().parents[2]
SKILLS = {"": 0.5, SEARCH: 1.2}
SCORED = (("ptb-xl", "validation"), ("ptb-xl", "test"), ("georgia", "test"))
ONE = Gained("tune-a", {"x, test": 0.02}, [0.02] * DRAWS, {"x, test": 0.8}, False, 60.0, 5.0, 9, 12)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search with the runs of its start and of what it chose, two seeds each."""
    store = tmp_path_factory.mktemp("study") / "runs"
    upstream = make_pretraining(store, "mae")
    make_search(store)
    for tuned, skill in SKILLS.items():
        lr = {"transfer": {"optimiser": {"lr": 3e-3}}, "tuned": tuned} if tuned else {}
        for seed in (0, 1):
            about: dict[str, Any] = {"changes": lr, "fixed": not tuned, "seed": seed}
            run = make_transfer(store, "mae", upstream=upstream, **about)
            held: dict[str, dict[str, Any]] = {}
            for number, (dataset, split) in enumerate(SCORED):
                truth = targets_of(ECG.classes, 120, ECG.kind, number)
                scores = scores_of(truth, ECG.kind, skill, [number, seed, len(tuned)])
                held.setdefault(dataset, {})[split] = people(120, number), truth, scores
            for dataset, splits in held.items():
                role = "source" if dataset == "ptb-xl" else "target"
                write_predictions(run, dataset, splits, role=role)
    return store


def test_a_gain_is_the_difference_of_mean_aurocs_where_no_epoch_was_chosen(store: Path) -> None:
    found = gained(store, SEARCH)
    expected = {}
    for number, (dataset, split) in list(enumerate(SCORED))[1:]:
        truth = targets_of(ECG.classes, 120, ECG.kind, number)
        means = {
            tuned: np.mean(
                [
                    roc_auc_score(
                        truth, scores_of(truth, ECG.kind, skill, [number, seed, len(tuned)])
                    )
                    for seed in (0, 1)
                ]
            )
            for tuned, skill in SKILLS.items()
        }
        expected[f"{dataset}, {split}"] = means[SEARCH] - means[""]
        assert found.start[f"{dataset}, {split}"] == pytest.approx(means[""])
    assert found.values == pytest.approx(expected)
    assert not found.kept
    first = searches([store])[0].trials.iloc[0]
    assert found.start_seconds == pytest.approx(3600 * first["device_hours"])  # of one evaluation
    drawn = np.array(found.drawn)
    assert len(drawn) == DRAWS
    assert drawn.mean() == pytest.approx(found.mean, abs=0.01)
    assert 0.005 < drawn.std() < 0.05


def test_runs_of_two_versions_are_not_taken_for_one(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = read_stores([store])
    twice = StoredItems([*held.found, *held.found], held.damaged)
    monkeypatch.setattr(tuning_study, "read_stores", lambda _: twice)
    with pytest.raises(SystemExit, match="has runs of several versions"):
        gained(store, SEARCH)


def test_an_interval_of_patients_is_that_of_the_mean_of_independent_tasks() -> None:
    generator = np.random.default_rng(0)
    tasks = []
    for name, mean, count in (("one", 0.05, 2), ("two", -0.01, 2)):
        draws = generator.normal(mean, 0.01, DRAWS)  # the same patients in all repetitions
        tasks.append(Difference(name, np.full(count, mean), np.tile(draws, (count, 1))))
    value, low, high = pooled(tasks)
    assert value == pytest.approx(0.02)
    half = 1.96 * 0.01 * np.sqrt(2) / 2
    assert (low, high) == (
        pytest.approx(0.02 - half, abs=0.001),
        pytest.approx(0.02 + half, abs=0.001),
    )
    once = [Difference(one.source, one.values[:1], one.draws[:1]) for one in tasks]
    value, low, high = pooled([once[0], tasks[1]])
    assert (value, np.isnan(low), np.isnan(high)) == (pytest.approx(0.02), True, True)
    kept = Difference("one", np.zeros(3), np.zeros((3, DRAWS)))
    value, low, high = pooled([kept, kept])
    assert (value, np.isnan(low), np.isnan(high)) == (0.0, True, True)


def test_intervals_over_patients_and_repetitions_cover_the_truth() -> None:
    """Two of the tasks share their patients; sources have spreads of their own."""
    generator, covered = np.random.default_rng(1), 0
    for _ in range(400):
        tasks = []
        for source, spread in (("a", 0.02), ("b", 0.01), ("c", 0.005), ("d", 0.03)):
            patients = generator.normal(0.0, 0.01)
            noise = generator.normal(0.0, 0.01, DRAWS)
            for _ in range(2 if source == "a" else 1):
                values = 0.03 + patients + generator.normal(0.0, spread, 3)
                tasks.append(Difference(source, values, values[:, None] + noise))
        _, low, high = pooled(tasks)
        covered += low <= 0.03 <= high
    assert 0.93 <= covered / 400 <= 0.99


def noted(folder: Path, strategy: str, repetition: int, one: Gained, **about: Any) -> None:
    task = about.pop("task", "BreastMNIST")
    stated = {"task": task, "strategy": strategy, "repetition": repetition}
    stated |= {"minutes": 4.0, "version": 4} | about
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"note-{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(stated | asdict(one)), "utf-8")


def test_tables_compare_what_all_strategies_have(tmp_path: Path) -> None:
    for repetition, gain in enumerate((0.02, 0.04, 0.9)):
        one = replace(ONE, values={"x": gain}, drawn=[gain] * DRAWS, search=f"tune-{repetition}")
        noted(tmp_path, "new", repetition, one)
        if repetition < 2:  # the third is not done yet
            noted(tmp_path, "before", repetition, replace(one, search="tune-b"), version=3)
            noted(tmp_path, "new + portfolio", repetition, replace(one, search="tune-0"))
    write_portfolio(tmp_path / "portfolio.json", Portfolio())  # as `benchmd tune --learn` does
    told = report(tmp_path)
    assert "4 minutes of two devices a search" in told
    assert "before 3, new 4, new + portfolio 4." in told
    half = student.ppf(0.975, 1) * np.std([0.02, 0.04], ddof=1) / np.sqrt(2)
    gained = f"+0.030 [{0.03 - half:+.3f}, {0.03 + half:+.3f}] | +0.030 (BreastMNIST)"
    assert f"| new | 1 | 2 | – | {gained} | – |" in told
    assert f"| new + portfolio | 1 | 2 | 2 | {gained} | +0.000 – |" in told
    assert f"| before | 1 | 2 | 0 | {gained} | +0.000 – |" in told
    alone = report(tmp_path, ["new"])
    assert "| new | 1 | 3 | – | +0.320" in alone
    noted(tmp_path, "new", 3, ONE, minutes=9.0)
    with pytest.raises(SystemExit, match="no searches of equal minutes"):
        report(tmp_path)


def test_tasks_of_one_source_are_pooled_by_repetition(tmp_path: Path) -> None:
    """Of an interrupted study one has a repetition more."""
    for task, repetitions in (("PTB-XL-500, linear", 3), ("PTB-XL-500, fine-tuning", 2)):
        for repetition in range(repetitions):
            one = replace(ONE, values={"x": 0.01 * repetition}, drawn=[0.01 * repetition] * DRAWS)
            noted(tmp_path, "new", repetition, one, task=task)
    told = report(tmp_path)
    assert "of a source have them: 1 searches" in told
    assert "| new | 2 | 4 |" in told


def test_a_portfolio_is_learned_from_a_repetition_s_searches_by_new(
    store: Path, tmp_path: Path
) -> None:
    study = Study(tmp_path, tmp_path / "out", 1.0)
    study.keep(store / "searches" / SEARCH)
    for task in TASKS:
        own = replace(ONE, search=SEARCH)
        study.note(task, "new", 0).write_text(json.dumps(asdict(own)))
        study.note(task, "new", 1).write_text(json.dumps(asdict(ONE)))
    expected = learned_in([store])
    assert expected.candidates
    assert study.portfolio(0) == expected
    with pytest.raises(BenchmdError, match="nothing can be learned from 0 searches"):
        study.portfolio(1)


def test_a_portfolio_needs_the_searches_that_it_is_learned_from(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="learned from the searches of all tasks by new"):
        Study(tmp_path, tmp_path / "out", 1.0).portfolio(0)


@pytest.mark.parametrize(
    ("name", "given"), [("tune-a", ()), ("tune-b", ()), ("tune-a", ("settings",))]
)
def test_a_portfolio_that_gives_nothing_leaves_the_search_by_new(
    name: str, given: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this version: tune-b is of another."""
    study, task = Study(tmp_path, tmp_path / "out", 4.0), "BreastMNIST"
    noted(study.done, "new", 0, ONE)
    of_new, own = (study.note(task, strategy, 0) for strategy in ("new", "new + portfolio"))
    (study.done / "note-0.json").rename(of_new)
    searched: list[Path] = []
    plan = SimpleNamespace(name=name, portfolio=given)
    monkeypatch.setattr(Study, "tuning", lambda *_: None)
    monkeypatch.setattr(tuning_study, "planned_searches", lambda *_, **__: (plan,))
    monkeypatch.setattr(
        tuning_study, "search_and_train", lambda _, store, **__: searched.append(store)
    )
    if given or name != ONE.search:
        with pytest.raises(SystemExit, match="did not end well"):
            study.search(task, "new + portfolio", 0)
        assert searched == [study.store(task, 0)]
        assert not own.exists()
    else:
        study.search(task, "new + portfolio", 0)
        expected = json.loads(of_new.read_text("utf-8")) | {"strategy": "new + portfolio"}
        assert json.loads(own.read_text("utf-8")) == expected
        assert not searched


@pytest.mark.slow
def test_the_study_of_the_documentation_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tuning_study.main(["--report", str(ROOT / "docs" / "tuning_study")])
    printed = capsys.readouterr().out.replace("-0.", "−0.")
    page = (ROOT / "docs" / "tuning.md").read_text("utf-8")
    intervals = re.compile(r"[+−]0\.\d{3} \[[+−]0\.\d{3}, [+−]0\.\d{3}\]")
    stated = intervals.findall(page.rpartition("\n## ")[2])
    assert len(stated) >= 4  # of each strategy, pooled over the tasks
    assert [value for value in stated if value not in printed] == []
