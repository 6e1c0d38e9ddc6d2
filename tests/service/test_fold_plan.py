"""The plan of the fold runs of a search: names, order, seeds and what each starts from."""

from dataclasses import replace
from pathlib import Path

import pytest
from stored import runs

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.files.atomic import sha256
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.protocols import ENSEMBLES
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.plan import Plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.service.steps import Fit, Pretrain
from benchmd_ray.service.tune_and_train import candidate_plan
from benchmd_ray.settings.definition import as_dict
from benchmd_ray.training.jobs import Fold, TransferJob
from benchmd_ray.training.reporter import SilentReporter, read_metrics
from benchmd_ray.training.transfer import transfer
from benchmd_ray.tuning.trial import seed_of

CHANGES = {"transfer": {"optimiser": {"lr": 0.02}}, "tuned": "tune-ecg"}
DATASETS = ("ptb-xl", "georgia", "cpsc")


def folds_of(number, evaluations=(0, 1, 6)):
    kept = Path("kept") / str(number)
    return {
        "ptb-xl": [Fold(e, Path("inner") / str(e), kept / f"{e:03d}") for e in evaluations],
    }


def family_of(choice, technique, setting):
    """The family of a search of it alone."""
    (plan, *_) = planned_searches(Tuning(choice, (technique,), (setting,)), gpu=False)
    return plan.families[0]


@pytest.fixture
def planned(write_manifest, tmp_path):
    """The plan of a start and a choice, each a technique and a setting."""
    catalogs = tuple(write_manifest(name) for name in DATASETS)

    def plan(start, chosen=None, *, changes=CHANGES, seed=3, **options):
        choice = Choice(catalogs, seeds=(seed, 5), **options)
        tuning = Tuning(choice, (start[0],), (start[1],))
        (search,) = planned_searches(tuning, gpu=False)
        candidates = [(search.families[0], {}, folds_of(0))]
        if chosen is not None:
            candidates.append((family_of(choice, *chosen), changes, folds_of(7)))
        items = [
            item
            for candidate in candidates
            for item in candidate_plan(tuning, search, *candidate, tmp_path, tflops=1.0).items
        ]
        return search, [*{item.name: item for item in items}.values()]

    return plan


def assert_sound(items):
    """Names are unique, and each item is behind the one that it starts from."""
    names = set()
    for item in items:
        assert item.name not in names
        assert item.after is None or item.after in names
        names.add(item.name)


def test_the_start_has_a_run_for_each_fold_which_is_scored_on_source_and_targets(planned):
    _, items = planned(("scratch", "finetune-full"))
    assert_sound(items)
    expected = [
        f"ptb-xl/clean/scratch/fold-{fold}/finetune-full{target}"
        for fold in (0, 1, 6)
        for target in ("", "/cpsc", "/georgia")
    ]
    assert [item.name for item in items] == expected
    transfers = [item for item in items if item.kind == "transfer"]
    assert [item.fold for item in transfers] == folds_of(0)["ptb-xl"]
    assert {item.fold for item in items if item.kind == "evaluate"} == {None}
    for item in items:
        fold = int(item.name.split("fold-")[1].split("/")[0])
        assert item.seed == item.settings.seed == seed_of(3, fold)
    assert len({item.seed for item in items}) == 3
    assert {item.catalog.name for item in transfers} == {"ptb-xl-clean"}  # which is scored


def test_the_choice_has_its_settings_and_is_named_by_the_search(planned):
    search, items = planned(("scratch", "finetune-full"), ("scratch", "finetune-full"))
    assert_sound(items)
    of_search = [item for item in items if item.name.startswith(f"{search.name}/ptb-xl/")]
    start = [item for item in items if item not in of_search]
    assert [f"{search.name}/{item.name}" for item in start] == [item.name for item in of_search]
    assert {item.settings.transfer.optimiser.lr for item in of_search} == {0.02}
    assert {item.settings.tuned for item in of_search} == {"tune-ecg"}
    assert {item.settings.tuned for item in start} == {""}
    for first, best in zip(start, of_search, strict=True):
        assert best.seed == first.seed
        assert best.settings.execution == first.settings.execution
        differing = {
            name
            for name, value in as_dict(best.settings).items()
            if value != as_dict(first.settings)[name]
        }
        assert differing == {"transfer", "tuned"}
    kept = [item.fold.model for item in of_search if item.fold is not None]
    assert kept == [fold.model for fold in folds_of(7)["ptb-xl"]]


def test_a_shared_pretraining_is_there_once_and_on_the_whole_training_split(planned):
    _, items = planned(("mae", "linear"), ("mae", "linear"))
    assert_sound(items)
    (pretrained,) = (item for item in items if item.kind == "pretrain")
    assert (pretrained.name, pretrained.fold) == ("ptb-xl/clean/mae/seed-3/pretrain", None)
    transfers = [item for item in items if item.kind == "transfer"]
    assert {item.after for item in transfers} == {pretrained.name}
    assert len(transfers) == 6


@pytest.mark.parametrize(
    ("family", "step"),
    [(("mae", "pretrain"), Pretrain), (("random-kernels", "linear"), Fit)],
)
def test_what_pretrains_within_a_trial_does_so_on_each_fold(planned, family, step):
    search, items = planned(("scratch", "finetune-full"), family)
    assert_sound(items)
    pretrained = [item for item in items if item.kind == "pretrain"]
    assert {type(item.step) for item in pretrained} == {step}
    prefix = f"{search.name}/ptb-xl/clean/{family[0]}"
    assert [item.name for item in pretrained] == [
        f"{prefix}/fold-{fold}/pretrain" for fold in (0, 1, 6)
    ]
    for item, fold in zip(pretrained, folds_of(7)["ptb-xl"], strict=True):
        assert item.fold == replace(fold, model=fold.model / "pretrain")
        assert item.seed == seed_of(3, fold.evaluation)
    transfers = [i for i in items if i.kind == "transfer" and i.technique == family[0]]
    assert [item.after for item in transfers] == [item.name for item in pretrained]
    assert [item.name for item in transfers] == [
        f"{prefix}/fold-{fold}/linear" for fold in (0, 1, 6)
    ]


def test_a_choice_of_another_family_stands_next_to_the_start(planned):
    _, items = planned(("scratch", "finetune-full"), ("mae", "knn"))
    assert_sound(items)
    (pretrained,) = (item for item in items if item.kind == "pretrain")
    assert (pretrained.technique, pretrained.fold) == ("mae", None)
    transfers = [item for item in items if item.kind == "transfer"]
    assert [(i.technique, i.setting) for i in transfers] == 3 * [("scratch", "finetune-full")] + (
        3 * [("mae", "knn")]
    )
    assert {item.after for item in transfers if item.technique == "mae"} == {pretrained.name}


def test_evaluations_that_were_asked_for_are_made_of_each_fold(planned):
    _, items = planned(("scratch", "finetune-full"), ("scratch", "finetune-full"), evaluated="ood")
    assert_sound(items)
    asked = [item for item in items if item.step.evaluation.name == "ood"]
    assert len(asked) == 6
    assert {item.dataset for item in asked} == {"ptb-xl"}


def test_two_policies_of_a_source_are_two_searches_with_runs_of_their_own(write_manifest, tmp_path):
    catalogs = tuple(write_manifest("ptb-xl", policy) for policy in ("clean", "released"))
    tuning = Tuning(Choice(catalogs), ("mae",), ("linear",))
    for search in planned_searches(tuning, gpu=False):
        start = search.families[0], {}, folds_of(0)
        items = candidate_plan(tuning, search, *start, tmp_path, tflops=1.0).items
        assert {item.policy for item in items} == {search.sources[0].policy}
        assert [item.kind for item in items] == ["pretrain", *3 * ["transfer"]]


def test_runs_on_all_labels_have_each_seed_and_no_fold(write_manifest, tmp_path):
    choice = Choice((write_manifest("ptb-xl"), write_manifest("georgia")), seeds=(0, 4))
    tuning = Tuning(choice, ("mae",), ("linear",))
    (search,) = planned_searches(tuning, gpu=False)
    for changes, prefix in (({}, ""), (CHANGES, f"{search.name}/")):
        family = search.families[0]
        items = candidate_plan(tuning, search, family, changes, None, tmp_path, tflops=1.0).items
        assert_sound(items)
        assert {item.fold for item in items} == {None}
        names = [item.name for item in items if item.kind == "transfer"]
        assert names == [f"{prefix}ptb-xl/clean/mae/seed-{seed}/linear" for seed in (0, 4)]
        assert [item.name for item in items if item.kind == "pretrain"] == [
            f"ptb-xl/clean/mae/seed-{seed}/pretrain" for seed in (0, 4)
        ]


SMALL = (
    *("encoder=tiny", "transfer.epochs=2", "transfer.batch_size=16", "execution.device=cpu"),
    *("pretrain.batch_size=8", "pretrain.steps=3"),
)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_fold_runs_of_two_families_are_trained_and_scored_once(ecg_catalogs, tmp_path):
    """The start is trained from scratch, one of its folds taken over, and the choice is kernels."""
    source, store = ecg_catalogs["ptb-xl"], tmp_path / "runs"
    evaluations = (0, 7)
    inner = {e: inner_catalog(source, tmp_path / "inner", e).path for e in evaluations}
    catalogs = (source.path, ecg_catalogs["georgia"].path)
    choice = Choice(catalogs, assignments=SMALL)
    held = ("transfer.epochs", "transfer.batch_size")
    tuning = Tuning(choice, ("scratch",), ("finetune-full",), held=held)
    (search,) = planned_searches(tuning, gpu=False)
    kept = tmp_path / "kept"
    kept.mkdir()
    settings = replace(search.families[0].settings[0], seed=seed_of(0, 7))
    transfer(TransferJob(settings, inner[7], kept), Worker(), SilentReporter())
    of_start = [Fold(0, inner[0]), Fold(7, inner[7], kept)]
    of_choice = [Fold(e, inner[e], tmp_path / "nothing") for e in evaluations]
    changes = {"encoder": {"options": {"kernels": 12}}, "tuned": search.name}
    kernels = family_of(choice, "random-kernels", "linear")
    candidates = (
        (search.families[0], {}, {"ptb-xl": of_start}),
        (kernels, changes, {"ptb-xl": of_choice}),
    )
    items = [
        item
        for candidate in candidates
        for item in candidate_plan(tuning, search, *candidate, store, tflops=1.0).items
    ]
    plan = Plan((*items,), "")
    outcome = run_plan(plan, store, say=print, quiet=True)
    assert outcome.whole, outcome.lines()
    assert len(outcome.done) == len(plan.items) == 4 + 6
    fold_runs = runs([store])
    assert sorted(run.description["fold"]["evaluation"] for run in fold_runs) == [0, 0, 0, 7, 7, 7]
    transfers = [run for run in fold_runs if run.description["kind"] == "transfer"]
    (taken,) = (run for run in transfers if "per_second" not in read_metrics(run.folder)[0])
    assert taken.model_sha256 == sha256(kept / "model.safetensors")
    assert (taken.description["technique"], taken.description["seed"]) == ("scratch", seed_of(0, 7))
    for run in fold_runs:
        inner_catalog_of = open_catalog(inner[run.description["fold"]["evaluation"]])
        assert run.description["determinants"]["fold"] == inner_catalog_of.digest
    again = run_plan(plan, store, say=print, quiet=True)
    assert len(again.before) == len(plan.items)
    scores = analyse(fold_runs, resamples=20, curves=False).scores
    scores = scores[~scores["protocol"].isin(ENSEMBLES.values())]
    seeds = scores.groupby(["technique", "dataset"])["seeds"].agg(set).to_dict()
    rows = ("scratch, start", "random kernels, tuned")
    assert seeds == {(row, dataset): {2} for row in rows for dataset in ("georgia", "ptb-xl")}
