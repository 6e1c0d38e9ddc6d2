"""The study of tuning on tiny made tasks: searches, the judge and the tables."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp
from sklearn.metrics import roc_auc_score

from benchmd_ray.tuning.portfolio import write_portfolio
from studies import tuning, tuning_features, tuning_portfolio, tuning_tables
from studies.tuning_before import search_before
from studies.tuning_heads import Sample, aurocs, families_of
from studies.tuning_tasks import Records, Task, one_hot

TASK = Task("waves", "shape", 60)


def waves(patients: int = 60) -> Records:
    """Two records of each patient; a class has a slow wave, the other a fast one, in noise."""
    draws = np.random.default_rng(0)
    groups = np.repeat(np.arange(patients), 2)
    fast = groups % 2
    phases = draws.uniform(0, 6, len(groups))[:, None]
    time = np.arange(64) * np.where(fast, 0.6, 0.4)[:, None]
    signals = np.sin(time + phases) + draws.normal(0, 0.8, (len(groups), 64))
    labels = {"shape": one_hot(fast)}
    return Records(signals[:, None].astype(np.float32), labels, groups.astype(str))


@pytest.fixture(scope="module")
def models() -> tuning.Models:
    """The made task with features of random numbers, of which one tells the class."""
    records, draws = waves(), np.random.default_rng(1)
    told = records.labels["shape"][:, :1] + draws.normal(0, 0.5, (len(records.groups), 1))
    noise = draws.normal(size=(len(records.groups), 20))
    features = {
        "pretrained": noise.astype(np.float32),
        "untrained": np.hstack([told, noise[:, :3]]).astype(np.float32),
        "kernels": draws.normal(size=(len(records.groups), 300, 9)).astype(np.float16),
    }
    sample = Sample.draw(TASK, records, features, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("studies.tuning_heads.POOL", {1: 300})
        return tuning.Models(sample, 3, families_of(1))


def test_no_patient_is_both_labelled_and_judged(models: tuning.Models) -> None:
    sample = models.sample
    assert len(sample.labelled) == 60
    assert not {*sample.groups[sample.labelled]} & {*sample.groups[sample.judged]}
    for evaluation in (0, 7):
        fold = sample.fold(evaluation)
        others = np.setdiff1d(sample.labelled, fold)
        assert not {*sample.groups[fold]} & {*sample.groups[others]}
    assert sorted(np.concatenate([sample.fold(e) for e in range(5)])) == [*sample.labelled]


def test_the_score_of_an_epoch_is_that_on_patients_that_did_not_choose_it(
    models: tuning.Models,
) -> None:
    """A single model is no choice: its score is the mean of the halves."""
    sample = models.sample
    trained = models("untrained knn", {"transfer.neighbours": 9}, 1)
    targets = sample.targets[sample.fold(1)]
    halves = [
        roc_auc_score(targets[half][:, 1], trained.logits[half, 1] - trained.logits[half, 0])
        for half in sample.halves(1)
    ]
    assert trained.score == pytest.approx(np.mean(halves), abs=0.02)  # classes' mean ranks differ
    assert np.allclose(trained.predict(sample.fold(1)), trained.logits)


def test_aurocs_are_those_of_scikit_learn() -> None:
    draws = np.random.default_rng(0)
    targets = one_hot(draws.integers(3, size=50))
    logits = draws.normal(size=(4, 50, 3)).round(1)  # with ties
    expected = [roc_auc_score(targets, model, average="macro") for model in logits]
    assert aurocs(targets, logits) == pytest.approx(expected)
    assert np.isnan(aurocs(np.ones((5, 2), np.int8))).all()


@pytest.mark.slow
def test_the_search_finds_the_family_that_tells_the_classes(
    models: tuning.Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "EVALUATIONS", 12)
    family, values, notes = tuning.search(models, models.families)
    assert family.startswith("untrained")
    assert notes["claimed"] > 0.1
    assert notes["trials"] == 6
    start = models.judged("pretrained linear", models.families[0].space.start)
    assert models.judged(family, values)["ensemble"] > start["ensemble"] + 0.1


def test_the_search_before_takes_what_is_clearly_better(models: tuning.Models) -> None:
    """And keeps the start otherwise."""

    def evaluate(gain: float, family: str, values: Any, evaluation: int) -> Any:
        rows, lr = models.sample.fold(evaluation), values["transfer.optimiser.lr"]
        draws = np.random.default_rng([evaluation, int(1e6 * lr)])
        truth = models.sample.targets[rows]
        logits = (gain * (lr > 5e-3)) * truth + draws.normal(size=truth.shape)
        return tuning.Trained(float(aurocs(truth, logits[None])[0]), logits, lambda rows: logits)

    start = models.families[0].space.start
    for gain, is_better in ((5.0, True), (0.0, False)):
        _, values, _ = search_before(partial(evaluate, gain), models.families[0], models.sample, 0)
        assert (values["transfer.optimiser.lr"] > 5e-3) == is_better
        assert (values == start) != is_better


def noted(strategy: str, source: str, task: str, repetition: int, gain: float) -> dict[str, Any]:
    scores = {name: {"single": 0.7, "ensemble": 0.75} for name in ("start", "tuned")}
    scores["tuned"] = {"single": 0.7 + gain / 2, "ensemble": 0.75 + gain}
    about = {"strategy": strategy, "source": source, "task": task, "repetition": repetition}
    return about | scores | {"family": "kernels linear", "keeps start": gain == 0, "claimed": 0.1}


def test_sources_count_once_in_the_mean_and_in_its_interval(tmp_path: Path) -> None:
    gains = {("A", "a1"): (0.02, 0.04), ("A", "a2"): (0.0, 0.0), ("B", "b"): (0.03, 0.05)}
    notes = [
        noted(strategy, source, task, repetition, factor * gain)
        for strategy, factor in (("all families", 1.0), ("random", 0.5))
        for (source, task), values in gains.items()
        for repetition, gain in enumerate(values)
    ]
    notes.append(noted("random", "B", "b", 2, 0.9))  # the other has not searched it yet
    path = tmp_path / "searches.json"
    path.write_text(json.dumps(notes), "utf-8")
    text = tuning_tables.report(path)
    by_source = [0.015, 0.04]
    low, high = ttest_1samp(by_source, 0).confidence_interval()
    assert "6 label sets of 2 sources" in text
    assert "| A | 0.750 | +0.015 | +0.008 |" in text.replace("+0.007", "+0.008")
    assert f"{np.mean(by_source):+.3f} [{low:+.3f}, {high:+.3f}] | +0.014 [" in text
    path.write_text("[]", "utf-8")
    with pytest.raises(SystemExit, match="has no label set"):
        tuning_tables.report(path)


@pytest.mark.slow  # three searches
def test_what_is_done_is_not_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From raw records to the tables, of one strategy."""
    monkeypatch.setattr(tuning, "TASKS", (TASK,))
    monkeypatch.setattr(tuning, "SETS", {"waves": ("Made", None)})
    monkeypatch.setattr("studies.tuning_tasks.SETS", {"waves": ("Made", None)})
    monkeypatch.setattr(tuning, "read_records", lambda name, data: waves())
    monkeypatch.setattr(tuning, "EVALUATIONS", 6)
    monkeypatch.setattr(tuning_features, "STEPS", 2)
    monkeypatch.setattr(tuning_features, "POOL", {1: 300})
    monkeypatch.setattr("studies.tuning_heads.POOL", {1: 300})
    (tmp_path / "done").mkdir()
    work = tuning.Work(tmp_path, tmp_path, TASK, 0, ("all families", "random"))
    threads = torch.get_num_threads()
    assert "all families, random in" in tuning.perform(work)
    torch.set_num_threads(threads)
    assert work.left() == []
    assert {path.name for path in (tmp_path / "features").glob("*.npy")} == {
        f"waves-{encoder}.npy" for encoder in tuning_features.ENCODERS
    }
    tuning.collect(tmp_path)
    tuning.main(["--report", str(tmp_path / "searches.json")])
    assert "| Made | " in capsys.readouterr().out
    (entry,) = json.loads((tmp_path / "trials.json").read_text("utf-8"))
    assert [entry["task"], entry["repetition"]] == [TASK.name, 0]
    assert [trial["number"] for trial in entry["tried"]] == [*range(len(entry["tried"]))]
    assert {trial["family"] for trial in entry["tried"]} == {f.name for f in families_of(1)}


def test_a_search_is_lent_only_what_other_sources_taught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two sources, in which few and many neighbours win."""
    monkeypatch.setattr(
        "studies.tuning_portfolio.NAMES", {"Few": "ptb-xl", "Many": "shhs", "Same": "cinc2021"}
    )
    families = families_of(1)

    def tried(best: int) -> list[dict[str, Any]]:
        starts = [{"family": f.name, "values": dict(f.space.start), "value": 0.6} for f in families]
        others = [
            {
                "family": "pretrained knn",
                "values": {"transfer.neighbours": count},
                "value": 0.9 - abs(count - best) / 200,
            }
            for count in range(1, 101, 3)
        ]
        return [
            trial | {"number": number, "evaluations": 3}
            for number, trial in enumerate(starts + others)
        ]

    entries = [{"source": "Few", "tried": tried(4)}, {"source": "Many", "tried": tried(97)}]
    portfolio = tuning_portfolio.portfolio_of(entries, {"shhs": "0" * 16})
    assert portfolio.sketches == {"ptb-xl": "", "shhs": "0" * 16}
    path = tmp_path / "portfolio.json"
    write_portfolio(path, portfolio)
    for source, expected in (("Few", 97), ("Many", 4), ("Same", 97)):
        lent = tuning_portfolio.lent_to(path, source, families)
        assert lent
        assert {name.split()[1] for name, _ in lent} == {"knn"}
        assert all(abs(v["transfer.neighbours"] - expected) <= 12 for _, v in lent)
    assert tuning_portfolio.lent_to(tmp_path / "none.json", "Few", families) == ()
