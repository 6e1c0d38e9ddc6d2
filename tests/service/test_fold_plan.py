"""The plan of the fold runs of a search: names, order, seeds and what each starts from."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from stored import runs

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.files.atomic import sha256
from benchmd_ray.files.integrity import read_hashed_json, write_hashed_json
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.protocols import ENSEMBLES
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.searches import Tuning, planned_searches
from benchmd_ray.service.steps import Fit, Pretrain
from benchmd_ray.service.tune_and_train import Candidate, fold_plan
from benchmd_ray.settings.definition import as_dict, default_settings
from benchmd_ray.ssl import protocol_encoder
from benchmd_ray.training.jobs import Fold, TransferJob, trained_with
from benchmd_ray.training.reporter import SilentReporter
from benchmd_ray.training.transfer import transfer
from benchmd_ray.training.weights import write_weights
from benchmd_ray.tuning.spaces import applied
from benchmd_ray.tuning.trial import seed_of
from benchmd_ray.tuning.written import differing, nested

CHANGES = {"transfer": {"optimiser": {"lr": 0.02}}, "tuned": "tune-ecg"}
SMALL = (
    *("encoder=tiny", "transfer.epochs=2", "transfer.batch_size=16", "execution.device=cpu"),
    *("pretrain.batch_size=8", "pretrain.steps=3"),
)
DATASETS = ("ptb-xl", "georgia", "cpsc")


def folds_of(number, evaluations=(0, 1, 6)):
    kept = Path("kept") / str(number)
    return {
        "ptb-xl": [Fold(e, Path("inner") / str(e), kept / f"{e:03d}") for e in evaluations],
    }


@pytest.fixture
def planned(write_manifest, tmp_path):
    """The plan of a start and a choice, each named by technique and setting."""
    catalogs = tuple(write_manifest(name) for name in DATASETS)

    def plan(start, chosen=None, *, changes=CHANGES, seed=3, **options):
        choice = Choice(catalogs, techniques=(start[0],), seeds=(seed, 5), **options)
        tuning = Tuning(choice, (start[1],))
        (search,) = planned_searches(tuning, gpu=False)
        first = Candidate(*start, folds_of(0))
        best = None if chosen is None else Candidate(*chosen, folds_of(7), changes)
        about = {"device": "cpu", "tflops": 1.0}
        return search, fold_plan(tuning, search, first, best, tmp_path, **about).items

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
    ("family", "step", "kept"),
    [(("mae", "pretrain"), Pretrain, True), (("random-kernels", "linear"), Fit, False)],
)
def test_what_pretrains_within_a_trial_does_so_on_each_fold(planned, family, step, kept):
    """Kernels are fitted within seconds: those of the search are not taken over."""
    search, items = planned(("scratch", "finetune-full"), family)
    assert_sound(items)
    pretrained = [item for item in items if item.kind == "pretrain"]
    assert {type(item.step) for item in pretrained} == {step}
    prefix = f"{search.name}/ptb-xl/clean/{family[0]}"
    assert [item.name for item in pretrained] == [
        f"{prefix}/fold-{fold}/pretrain" for fold in (0, 1, 6)
    ]
    for item, fold in zip(pretrained, folds_of(7)["ptb-xl"], strict=True):
        model = fold.model / "pretrain" if kept else None
        assert item.fold == replace(fold, model=model)
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


@pytest.mark.parametrize(
    ("technique", "setting"), [("scratch", "finetune-full"), ("mae", "linear")]
)
def test_fold_runs_have_the_settings_of_the_trials_whose_weights_were_kept(
    write_manifest, tmp_path, technique, setting
):
    """Otherwise they would be trained again."""
    choice = Choice((write_manifest("ptb-xl"),), techniques=(technique,), assignments=SMALL)
    tuning = Tuning(choice, (setting,), held=("transfer.epochs", "transfer.batch_size"))
    (search,) = planned_searches(tuning, gpu=False)
    values = {"transfer.optimiser.lr": 0.02, "transfer.label_smoothing": 0.1}
    (start,), kind = search.starts, search.sources[0].kind
    base = default_settings(kind, protocol_encoder(technique))
    changes = nested(differing(base, applied(start, values)) | {"tuned": search.name})
    first = Candidate(technique, setting, folds_of(0))
    best = Candidate(technique, setting, folds_of(7), changes)
    items = fold_plan(tuning, search, first, best, tmp_path, device="cpu", tflops=1.0).items
    transfers = [item.settings for item in items if item.kind == "transfer"]
    trials = [
        replace(settings, seed=seed_of(0, fold.evaluation))
        for settings in (start, applied(start, values))
        for fold in folds_of(0)["ptb-xl"]
    ]
    assert [trained_with(settings, "digest") for settings in transfers] == [
        trained_with(settings, "digest") for settings in trials
    ]


def test_two_policies_of_a_source_are_two_searches_with_runs_of_their_own(write_manifest, tmp_path):
    catalogs = tuple(write_manifest("ptb-xl", policy) for policy in ("clean", "released"))
    tuning = Tuning(Choice(catalogs, techniques=("mae",)), ("linear",))
    for search in planned_searches(tuning, gpu=False):
        start = Candidate("mae", "linear", folds_of(0))
        items = fold_plan(tuning, search, start, None, tmp_path, device="cpu", tflops=1.0).items
        assert {item.policy for item in items} == {search.sources[0].policy}
        assert [item.kind for item in items] == ["pretrain", *3 * ["transfer"]]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_fold_runs_of_two_families_are_trained_and_scored_once(ecg_catalogs, tmp_path):
    """The start is trained from scratch, one of its folds taken over, and the choice is kernels."""
    source, store = ecg_catalogs["ptb-xl"], tmp_path / "runs"
    evaluations = (0, 7)
    inner = {e: inner_catalog(source, tmp_path / "inner", e).path for e in evaluations}
    catalogs = (source.path, ecg_catalogs["georgia"].path)
    choice = Choice(catalogs, techniques=("scratch",), assignments=SMALL)
    tuning = Tuning(choice, ("finetune-full",), held=("transfer.epochs", "transfer.batch_size"))
    (search,) = planned_searches(tuning, gpu=False)
    kept = tmp_path / "kept"
    kept.mkdir()
    settings = replace(search.starts[0], seed=seed_of(0, 7))  # those of the trial
    transfer(TransferJob(settings, inner[7], kept), Worker(), SilentReporter())
    tensors = load_file(kept / "model.safetensors")
    tensors["head.bias"] += 1
    about = {**read_hashed_json(kept / "model.json", ""), "weights": None}
    about["weights"] = write_weights(kept / "model.safetensors", tensors)
    write_hashed_json(kept / "model.json", about)
    of_start = [Fold(0, inner[0]), Fold(7, inner[7], kept)]
    of_choice = [Fold(e, inner[e], tmp_path / "nothing") for e in evaluations]
    changes = {"encoder": {"options": {"kernels": 12}}, "tuned": search.name}
    plan = fold_plan(
        tuning,
        search,
        Candidate("scratch", "finetune-full", {"ptb-xl": of_start}),
        Candidate("random-kernels", "linear", {"ptb-xl": of_choice}, changes),
        store,
        device="cpu",
        tflops=1.0,
    )
    outcome = run_plan(plan, store, say=print, quiet=True)
    assert outcome.whole, outcome.lines()
    assert len(outcome.done) == len(plan.items) == 4 + 6
    fold_runs = runs([store])
    assert sorted(run.description["fold"]["evaluation"] for run in fold_runs) == [0, 0, 0, 7, 7, 7]
    (taken,) = (r for r in fold_runs if r.model_sha256 == sha256(kept / "model.safetensors"))
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
