"""The runs after a search: fold models of start and choice, and models on all labels."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmd_ray.service.choice import Choice
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.search_session import Searched
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.service.tune_and_train import final_plan
from benchmd_ray.tuning.trials import Trial
from benchmd_ray.tuning.written import folds


def trial(number, family, evaluations=5):
    scored = {e: {"ecg": 0.6 + 0.01 * number} for e in range(evaluations)}
    return Trial(number, family, {}, granted=tuple(scored), scored=scored)


CHANGES = {
    "random-kernels linear": {"encoder": {"options": {"kernels": 500}}, "tuned": "it"},
    "scratch finetune": {"transfer": {"epochs": 30}, "tuned": "it"},
}


@pytest.fixture
def finished(write_manifest, tmp_path):
    """A search whose second trial, of a family, is chosen; or its start."""

    def finish(family=None, *, evaluations=5, single=False, techniques=(), names=("ptb-xl",)):
        catalogs = tuple(write_manifest(name) for name in (*names, "georgia"))
        choice = Choice(catalogs, seeds=(0, 1), assignments=("execution.retries=3",))
        tuning = Tuning(choice, techniques, single=single)
        (plan,) = planned_searches(tuning, gpu=False)
        start = trial(0, plan.families[0].name, evaluations)
        trials = (start, trial(1, family, evaluations)) if family else (start,)
        catalogs = {e: [Path("inner") / f"{e}"] for e in folds(trials[-1])}
        kept, changes = tmp_path / "search", CHANGES.get(family, {})
        about = (changes, None, 0.1, "CPU", catalogs, kept)
        return tuning, Searched(plan, tmp_path, trials, trials[-1], *about)

    return finish


def rows(plan):
    """Kinds of transfer runs: whether of the choice, and whether on folds; with their number."""
    counts = {}
    for item in plan.items:
        if item.kind == "transfer":
            row = bool(item.settings.tuned), item.fold is not None
            counts[row] = counts.get(row, 0) + 1
    return counts


def assert_sound(plan):
    names = set()
    for item in plan.items:
        assert item.name not in names
        assert item.after is None or item.after in names
        assert item.settings.execution.retries == 3  # as the start is executed
        names.add(item.name)


@pytest.mark.parametrize("family", CHANGES)
def test_start_and_choice_have_fold_models(finished, tmp_path, family):
    tuning, searched = finished(family)
    plan = final_plan(tuning, [searched], tmp_path, tflops=1.0)
    assert_sound(plan)
    assert rows(plan) == {(False, True): 5, (True, True): 5}
    kept = {
        bool(item.settings.tuned): item.fold.model
        for item in plan.items
        if item.kind == "transfer" and item.fold.evaluation == 3
    }
    models = tmp_path / "search" / "models"
    assert kept == {False: models / "00000-003", True: models / "00001-003"}
    technique, mode = family.split()
    for item in plan.items:
        if item.settings.tuned:
            assert item.technique == technique
            assert item.name.startswith(f"{searched.plan.name}/")
            assert item.settings.transfer.mode == mode
            changed = item.settings.encoder.options.get("kernels"), item.settings.transfer.epochs
            assert (500 if technique == "random-kernels" else 30) in changed
        else:
            assert (item.technique, item.settings.transfer.epochs) == ("scratch", 100)
    scored = [item for item in plan.items if item.kind == "evaluate"]
    assert len(scored) == 10
    assert {item.dataset for item in scored} == {"georgia"}


def test_with_single_both_are_trained_on_all_labels_with_each_seed(finished, tmp_path):
    tuning, searched = finished("random-kernels linear", single=True)
    plan = final_plan(tuning, [searched], tmp_path, tflops=1.0)
    assert_sound(plan)
    assert rows(plan) == {
        (False, True): 5,
        (True, True): 5,
        (False, False): 2,
        (True, False): 2,
    }
    whole = [item for item in plan.items if item.kind == "transfer" and item.fold is None]
    assert sorted(item.settings.seed for item in whole) == [0, 0, 1, 1]


def test_a_start_that_is_kept_is_scored_once(finished, tmp_path):
    tuning, searched = finished(single=True)
    plan = final_plan(tuning, [searched], tmp_path, tflops=1.0)
    assert_sound(plan)
    assert rows(plan) == {(False, True): 5, (False, False): 2}


@pytest.mark.parametrize(("evaluations", "models"), [(1, 5), (3, 5), (6, 6), (10, 10), (30, 10)])
def test_five_to_ten_models_are_averaged(finished, tmp_path, evaluations, models):
    tuning, searched = finished("scratch finetune", evaluations=evaluations)
    plan = final_plan(tuning, [searched], tmp_path, tflops=1.0)
    assert rows(plan) == {(False, True): models, (True, True): models}
    numbers = sorted(i.fold.evaluation for i in plan.items if i.fold and i.settings.tuned)
    assert numbers == list(range(models))


def test_a_pretraining_that_trials_share_is_shared_by_the_runs(finished, tmp_path):
    tuning, searched = finished("mae finetune", single=True, techniques=("mae",))
    searched = replace(searched, changes={"transfer": {"epochs": 30}, "tuned": "it"})
    plan = final_plan(tuning, [searched], tmp_path, tflops=1.0)
    assert_sound(plan)
    pretrained = [item.name for item in plan.items if item.kind == "pretrain"]
    assert pretrained == [f"ptb-xl/clean/mae/seed-{seed}/pretrain" for seed in (0, 1)]
    after = {item.after for item in plan.items if item.kind == "transfer" and item.fold}
    assert after == {pretrained[0]}


def test_nothing_is_run_without_a_choice(finished, tmp_path):
    tuning, searched = finished("scratch finetune")
    assert final_plan(tuning, [replace(searched, chosen=None)], tmp_path) is None
    plan = final_plan(tuning, [replace(searched, chosen=None), searched], tmp_path, tflops=1.0)
    assert rows(plan) == {(False, True): 5, (True, True): 5}
