"""What a dry run of a search tells: families, what is varied, evaluations, time and disk."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmd_ray.console.progress import duration
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.dry_run import print_estimates
from benchmd_ray.service.families import Tuning, family_choice
from benchmd_ray.service.plan import Plan, make_plan
from benchmd_ray.service.searches import of_sources, planned_searches
from benchmd_ray.service.simulate import Resources
from benchmd_ray.service.tune_dry_run import _after, estimate_searches
from benchmd_ray.tuning.ladder import expected_evaluations
from benchmd_ray.tuning.limits import Budget, Place


@pytest.fixture
def estimated(tmp_path):
    """The estimate of the only search, and its text."""

    def estimate(tuning, cpus=4):
        (run,) = estimate_searches([tuning], tmp_path, Resources(cpus, 0), tflops=0.1)
        assert not list(tmp_path.glob("searches/*"))
        return run, "\n".join(run.lines())

    return estimate


def test_it_names_families_and_what_each_varies(write_manifest, estimated):
    catalogs = tuple(write_manifest(name) for name in ("ptb-xl", "georgia"))
    tuning = Tuning(Choice(catalogs), budget=Budget(trials=12))
    (plan,) = planned_searches(tuning, gpu=False)
    _, text = estimated(tuning)
    others = ", ".join(family.name for family in plan.families[1:])
    assert text.startswith(f"{plan.name}: on ptb-xl (ecg)")
    assert f"Starts at scratch finetune; also {others}." in text
    assert "At most 12 trials, 4 at once, sampler tpe." in text
    assert "Scored by AUROC on 1 / 5 of the 100 train records of ptb-xl, by patient." in text
    assert re.search(r"\nscratch finetune \(the worst third stops at [\d, ]+ epochs\):", text)
    for name in ("random-kernels linear:", "random-kernels knn:"):
        assert f"\n{name}\n" in text
    assert "one of transformer, resnet18-1d, xresnet1d101" in text
    assert "transfer.optimiser.schedule is cosine" in text
    assert f" with at most {expected_evaluations(12, 3, 10)} evaluations" in text


def test_why_families_are_not_searched_is_told(write_manifest, estimated):
    held = ("encoder.options.kernels", "encoder.options.biases")
    _, text = estimated(Tuning(Choice((write_manifest("ptb-xl"),)), held=held))
    assert "Not searched: nothing is left to search in the search space random-kernels" in text


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"evaluations": 40, "trials": None}, "At most 40 evaluations,"),
        ({"hours": 1.5, "trials": None}, "At most 1.5 h wall-clock time,"),
        ({"trials": 9, "device_hours": 2.0}, "At most 9 trials or 2 device hours,"),
    ],
)
def test_the_first_limit_that_is_reached_gives_the_duration(
    write_manifest, estimated, budget, words
):
    tuning = Tuning(
        Choice((write_manifest("ptb-xl"),)), ("scratch",), budget=Budget(**budget), at_once=2
    )
    run, text = estimated(tuning)
    assert words in text
    limits = [3600 * budget[name] for name in ("hours",) if name in budget]
    limits += [3600 * budget["device_hours"] / 2] if "device_hours" in budget else []
    if budget.get("evaluations"):
        (plan,) = planned_searches(tuning, gpu=False)
        choice = family_choice(tuning, "scratch", "finetune-full")
        (item,) = of_sources(make_plan(choice, device="cpu", tflops=0.1), plan)
        limits = [20 * 0.8 * item.seconds]
    assert run.seconds == pytest.approx(min(limits))
    assert f"The search takes about {duration(run.seconds)}" in text


def test_disk_is_that_of_the_inner_catalogs_that_may_be_written(write_manifest, estimated):
    choice = Choice((write_manifest("ptb-xl"),))
    for budget, most in (
        (Budget(trials=3), 10),
        (Budget(trials=None, hours=1.0), 30),
        (Budget(trials=None, evaluations=12), 12),
        (Budget(trials=None, evaluations=2), 5),  # of the models that are averaged
    ):
        _, text = estimated(Tuning(choice, ("scratch",), budget=budget))
        assert f"for {most} inner catalogs, each a copy" in text


def test_a_shared_pretraining_is_counted_once(write_manifest, estimated):
    choice = Choice((write_manifest("ptb-xl"),))
    runs = {
        setting: estimated(Tuning(choice, ("mae",), (setting,)), cpus=1)
        for setting in ("linear", "pretrain")
    }
    linear, text = runs["linear"]
    assert "Shared by trials and the runs after them: 1 pretraining, about " in text
    whole, text = runs["pretrain"]
    assert "Shared by" not in text
    (plan,) = planned_searches(Tuning(choice, ("mae",), ("linear",)), gpu=False)
    choice = family_choice(Tuning(choice), "mae", "linear")
    pretrained, _ = of_sources(make_plan(choice, device="cpu", tflops=0.1), plan)
    assert linear.after_seconds < pretrained.seconds / 10
    assert whole.after_seconds > 2 * pretrained.seconds  # a fold model of start and choice each


def test_models_on_all_labels_take_longer(write_manifest, estimated):
    base = Tuning(Choice((write_manifest("ptb-xl"),), seeds=(0, 1)), ("scratch",))
    folds, text = estimated(base, cpus=1)
    assert "models on all labels" not in text
    single, text = estimated(replace(base, single=True), cpus=1)
    assert "to train the others, and the models on all labels and to score all." in text
    assert single.after_seconds == pytest.approx(3 * folds.after_seconds)


def test_on_medmnist_both_splits_are_seen(write_manifest, estimated):
    rows = {"train": 546, "validation": 78, "test": 156}
    small = ("encoder.network=resnet18", "encoder.options.width=4", "transfer.epochs=20")
    choice = Choice((write_manifest("breastmnist", rows=rows),), assignments=small)
    tuning = Tuning(choice, ("scratch",), budget=Budget(trials=3))
    (plan,) = planned_searches(tuning, gpu=False)
    _, text = estimated(tuning, cpus=1)
    seen = "1 / 5 of the 624 train and validation records of breastmnist, by patient"
    assert f"Scored by AUROC on {seen}." in text
    assert "one of transformer, resnet18, resnet50" in text
    choice = family_choice(tuning, "scratch", "finetune-full")
    (trained,) = of_sources(make_plan(choice, device="cpu", tflops=0.1), plan)
    takes = duration(trained.seconds * 0.8 * 624 / 546)
    assert f"An evaluation of a family's start takes about: scratch finetune {takes}." in text


def test_a_search_of_few_labels_counts_their_records(write_manifest, estimated):
    choice = Choice((write_manifest("ptb-xl"),))
    _, text = estimated(Tuning(choice, ("scratch",), ("finetune-small",), budget=Budget(trials=3)))
    assert re.search(r"1 / 5 of the \d+ labelled train records of ptb-xl, by patient", text)


def test_all_searches_add_up(tmp_path, monkeypatch, capsys):
    """From cards alone, of datasets that nobody has downloaded."""
    for module in ("tune_dry_run", "dry_run"):
        monkeypatch.setattr(f"benchmd_ray.service.{module}.duration", lambda s: f"<{s:.6f}>")
    choice = Choice((), datasets=("breastmnist", "adrenalmnist3d"), bench="medmnist")
    tuning = Tuning(choice, ("scratch",), ("finetune-full",), budget=Budget(trials=10))
    print_estimates(estimate_searches([tuning, tuning], tmp_path, Resources(64, 8), tflops=60), "")
    text = capsys.readouterr().out
    *_, total, basis = text.split("\n\nA search: ")[-1].split("\n\n")
    searches = re.findall(r"The search takes about <([\d.]+)>", text)
    after = re.findall(r"kept from the search: about <([\d.]+)>", text)
    assert len(searches) == len(after) == 4
    sums = re.fullmatch(
        r"In total: (\d+) searches one after the other, about <([\d.]+)>, and the runs after them, "
        r"about <([\d.]+)>; about ([\d.,]+) GPU hours\.",
        total,
    )
    assert int(sums[1]) == len(searches)
    assert float(sums[2]) == pytest.approx(sum(map(float, searches)), rel=1e-6)
    assert float(sums[3]) == pytest.approx(sum(map(float, after)), rel=1e-6)
    assert basis.startswith("Planned from the datasets' cards")


@pytest.mark.parametrize(("gpus", "hours"), [(1.0, 2 * 0.5), (0.0, 2 * (2 + 4))])
def test_only_hours_of_the_searchs_device_are_counted_afterwards(write_manifest, gpus, hours):
    choice = Choice((write_manifest("ptb-xl"),), techniques=("scratch",))
    item = make_plan(choice, device="cpu", tflops=0.1).items[0]
    items = [
        replace(item, name=name, seconds=3600.0, gpus=gpu, cpus=cpus, after=None)
        for name, gpu, cpus in (("fine-tuning", 0.5 * gpus, 2), ("nearest neighbours", 0.0, 4))
    ]
    search = SimpleNamespace(
        tuning=Tuning(choice),
        plan=SimpleNamespace(families=(SimpleNamespace(name="scratch"),)),
        runs={"scratch": Plan(tuple(items), "")},
        shared={},
        place=Place(2.0, 0.5 * gpus, 2),
        resources=Resources(8, int(gpus)),
    )
    assert _after(search)[1] == pytest.approx(hours)
