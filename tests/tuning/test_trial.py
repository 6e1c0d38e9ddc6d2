import json
import math
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from told import Interrupted, Told

from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.training.checkpoints import latest_checkpoint
from benchmd_ray.training.jobs import RESULT, PretrainJob, TransferJob, transfer_result
from benchmd_ray.training.launch import launch
from benchmd_ray.training.reporter import SilentReporter, read_metrics
from benchmd_ray.training.selection import crossed
from benchmd_ray.training.weights import load_classifier, load_encoder
from benchmd_ray.tuning.spaces import applied
from benchmd_ray.tuning.stages import (
    FamilyWork,
    FittedTransfer,
    Pretraining,
    Transfer,
    TrialContext,
    stage_of,
    with_linear,
)
from benchmd_ray.tuning.trial import limited, run_trial, seed_of, why_failed

LR = "transfer.optimiser.lr"
FINETUNE = ("transfer.mode=finetune", "transfer.labels=full")


@pytest.fixture
def trained(tmp_path):
    """Runs an ordinary transfer; its AUROC and the best AUROC so far after each epoch."""

    def run(settings, catalog, upstream, name="ordinary"):
        folder = tmp_path / name
        folder.mkdir()
        launch(TransferJob(settings, catalog, folder, upstream))
        scores = [line["validation_auroc"] for line in read_metrics(folder)]
        best = np.maximum.accumulate(scores).tolist()
        return json.loads((folder / RESULT).read_text("utf-8"))["validation_auroc"], best

    return run


def test_a_linear_trial_is_an_ordinary_transfer_on_the_inner_catalog(
    work, run, arm, trained, inner_ecg
):
    linear, values, told = arm(), {LR: 0.05, "transfer.label_smoothing": 0.1}, Told()
    run(work(linear), values, told, number=4, seconds=100.0)
    score, best = trained(applied(linear.settings, values), inner_ecg.path, linear.upstream)
    assert told.scores == [(1, best[0], False), (3, best[2], False), (4, score, True)]
    assert all(dict(reached.scores) == {"ecg": reached.score} for reached in told.all)
    assert 100 < told.all[0].seconds <= told.all[1].seconds <= told.all[2].seconds < 160
    other, _ = trained(linear.settings, inner_ecg.path, linear.upstream, "other")
    assert other != score  # the values were used


def test_an_evaluation_has_its_own_catalog_and_seed(
    work, run, arm, trained, searched_source, tmp_path
):
    linear, scores, seeds = arm(), [], []
    settings = applied(linear.settings, {LR: 0.02})
    for evaluation in (0, 1, 6):
        catalog = inner_catalog(searched_source, tmp_path / "inner", evaluation).path
        told = Told()
        run(work(linear), {LR: 0.02}, told, evaluation=evaluation, catalogs=[catalog])
        assert [reached.whole for reached in told.all] == [False] * 2 * (evaluation == 0) + [True]
        seeds.append(seed_of(settings.seed, evaluation))
        score, _ = trained(
            replace(settings, seed=seeds[-1]), catalog, linear.upstream, f"ordinary-{evaluation}"
        )
        assert told.all[-1].score == score
        scores.append(score)
    assert len(set(seeds)) == 3
    assert len(set(scores)) > 1


@pytest.mark.parametrize("mode", ["linear", "finetune"])
def test_an_epoch_is_chosen_on_other_patients_than_a_trial_is_scored_on(
    work, run, arm, inner_ecg, tmp_path, monkeypatch, mode
):
    monkeypatch.setattr("benchmd_ray.training.selection.FEWEST", 2)
    searched, told = arm(f"transfer.mode={mode}"), Told()
    run(work(searched), {LR: 0.01}, told)
    settings, folder = applied(searched.settings, {LR: 0.01}), tmp_path / "ordinary"
    folder.mkdir()
    launch(TransferJob(settings, inner_ecg.path, folder, searched.upstream, halved=True))
    lines = read_metrics(folder)
    assert [score for _, score, _ in told.scores] == [
        crossed(lines[:1]),
        crossed(lines[:3]),
        crossed(lines),
    ]


def test_kept_features_give_the_same_and_are_encoded_once(
    work, run, monkeypatch, trained, arm, inner_ecg
):
    search, told = work(), (Told(), Told(), Told())
    run(search, {LR: 1e-3}, told[0])
    files = {path.name: path.stat().st_mtime_ns for path in (search.local / "features").iterdir()}
    monkeypatch.setattr(Encoder, "forward", pytest.fail)
    run(search, {LR: 1e-3}, told[1], number=1)
    run(search, {LR: 0.1}, told[2], number=2)
    after = {path.name: path.stat().st_mtime_ns for path in (search.local / "features").iterdir()}
    assert {n for n in after if n.endswith("npy")} == {n for n in files if n.endswith("npy")}
    assert told[0].scores == told[1].scores != told[2].scores
    monkeypatch.undo()
    ordinary, _ = trained(arm().settings, inner_ecg.path, arm().upstream)
    assert told[0].scores[-1] == (4, ordinary, True)


def test_scratch_takes_no_pretraining(work, run, arm, trained, inner_ecg):
    told = Told()
    run(work(arm(upstream=None), technique="scratch"), {}, told)
    assert told.scores[-1][1] == trained(arm().settings, inner_ecg.path, None)[0]


@pytest.mark.parametrize("head", [("linear", "logistic"), ("knn", "adamw")])
def test_a_head_without_epochs_is_never_stopped_within_its_evaluation(work, run, arm, head):
    mode, solver = head
    searched, told = arm(f"transfer.mode={mode}", f"transfer.solver={solver}"), Told()
    run(work(searched), {}, told)
    assert [(step, whole) for step, _, whole in told.scores] == [(1, True)]


def test_fewer_epochs_than_rungs_are_reported_as_they_are(work, run):
    told = Told()
    run(work(), {"transfer.epochs": 3}, told)
    assert [(step, whole) for step, _, whole in told.scores] == [(1, False), (3, True)]


@pytest.mark.parametrize("stop_at", [1, 3, 4])
def test_an_interrupted_fine_tuning_ends_as_if_it_had_not_been(work, run, arm, tmp_path, stop_at):
    values = {LR: 1e-2, "transfer.layer_decay": 0.75}  # its first epoch is the best
    whole, first, second = Told(), Told(stop_at), Told()
    run(work(arm(*FINETUNE), folder=tmp_path / "whole"), values, whole)
    pieces = work(arm(*FINETUNE))
    with pytest.raises(Interrupted):
        run(pieces, values, first)
    checkpoint = latest_checkpoint(pieces.job_folder(0, 0) / "1" / "transfer")
    assert (checkpoint is None) == (stop_at == 1)  # its work up to there is not done again
    run(pieces, values, second)
    assert first.scores + second.scores == whole.scores


def test_files_of_another_trial_with_the_same_number_are_not_resumed(work, run, arm, tmp_path):
    """Of a removed search of the same name, on a machine that still has its files."""
    fresh, told = Told(), Told()
    run(work(arm(*FINETUNE), folder=tmp_path / "fresh"), {LR: 1e-3}, fresh)
    search = work(arm(*FINETUNE))
    with pytest.raises(Interrupted):
        run(search, {LR: 1e-2}, Told(3))
    run(search, {LR: 1e-3}, told)
    assert told.scores == fresh.scores


# Families that pretrain within a trial.

PRETRAIN = {"stage": Pretraining(), "rungs": (2, 4)}


@pytest.fixture
def pretrained(tmp_path, trained, inner_ecg):
    """AUROC by linear evaluation of a pretraining that stops at a step."""

    def run(arm, values, until):
        settings, folder = applied(arm.settings, values), tmp_path / f"pretrained-{until}"
        folder.mkdir()
        job = PretrainJob(settings, "mae", inner_ecg.path, folder, until)
        launch(job, reporter=SilentReporter())
        return trained(with_linear(settings), inner_ecg.path, folder, f"linear-{until}")[0]

    return run


def test_a_pretraining_is_scored_by_linear_evaluation_at_each_rung(work, run, arm, pretrained):
    searched = arm("transfer.mode=finetune", "transfer.labels=small", upstream=None)
    values, told = {"pretrain.optimiser.lr": 1e-2, "pretrain.mask_rate": 0.5}, Told()
    search = work(searched, **PRETRAIN)
    run(search, values, told)
    expected = [pretrained(searched, values, until) for until in (2, 4, None)]
    assert told.scores == [
        (2, expected[0], False),
        (4, expected[1], False),
        (6, expected[2], True),
    ]
    assert len(set(expected)) > 1
    folder = search.job_folder(0, 0) / "1"
    assert {path.name for path in folder.iterdir()} == {"pretrain", "transfer"}
    assert len(list((folder / "pretrain" / "checkpoints").iterdir())) == 2  # of many, the last
    assert not (search.local / "features").exists()  # of encoders that are used once


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [2, 4, 6])
def test_an_interrupted_pretraining_ends_as_if_it_had_not_been(work, run, arm, tmp_path, stop_at):
    values = {"pretrain.optimiser.lr": 1e-2}
    whole, first, second = Told(), Told(stop_at), Told()
    run(work(arm(upstream=None), folder=tmp_path / "whole", **PRETRAIN), values, whole)
    pieces = work(arm(upstream=None), **PRETRAIN)
    with pytest.raises(Interrupted):
        run(pieces, values, first)
    run(pieces, values, second)
    assert first.scores + second.scores == whole.scores


def test_a_pretraining_that_ended_between_rungs_goes_on(work, run, arm, tmp_path, monkeypatch):
    often, told, whole = "execution.checkpoint_every=1", Told(), Told()
    run(work(arm(often, upstream=None), folder=tmp_path / "whole", **PRETRAIN), {}, whole)

    class Ends(SilentReporter):
        def __init__(self, clock):
            pass

        def report(self, done, values):
            if done == 4:  # step 3 has a checkpoint, beyond the rung at 2
                raise Interrupted

    pieces = work(arm(often, upstream=None), **PRETRAIN)
    with monkeypatch.context() as patch:
        patch.setattr("benchmd_ray.tuning.stages._Ticking", Ends)
        with pytest.raises(Interrupted):
            run(pieces, {}, told)
    checkpoint = latest_checkpoint(pieces.job_folder(0, 0) / "1" / "pretrain")
    assert checkpoint.name == "step_000000003"
    run(pieces, {}, told)
    assert told.scores == whole.scores


KERNELS = ("encoder.network=random-kernels", "transfer.mode=knn")


@pytest.fixture
def kernels(arm):
    """An arm of a few random kernels."""
    searched = arm(*KERNELS, upstream=None)
    return replace(searched, settings=applied(searched.settings, {"encoder.options.kernels": 24}))


def test_a_family_has_the_stage_of_its_technique():
    assert isinstance(stage_of("random-kernels", "linear"), FittedTransfer)
    assert isinstance(stage_of("mae", "pretrain"), Pretraining)
    assert {type(stage_of(name, "linear")) for name in ("scratch", "mae", "imagenet")} == {Transfer}


def test_random_kernels_are_fitted_within_the_evaluation_by_its_seed(
    work, run, kernels, trained, searched_source, tmp_path
):
    stage, weights = stage_of("random-kernels", "knn"), []
    for evaluation in (0, 1):
        catalog = inner_catalog(searched_source, tmp_path / "inner", evaluation).path
        search, told = work(kernels, stage=stage, technique="random-kernels"), Told()
        values = {"encoder.options.biases": 3}
        run(search, values, told, evaluation=evaluation, catalogs=[catalog], keep=True)
        settings = applied(kernels.settings, values)
        settings = replace(settings, seed=seed_of(settings.seed, evaluation))
        folder = tmp_path / f"fitted-{evaluation}"
        folder.mkdir()
        launch(PretrainJob(settings, "random-kernels", catalog, folder), reporter=SilentReporter())
        score, _ = trained(settings, catalog, folder, f"ordinary-{evaluation}")
        assert told.scores == [(1, score, True)]
        kept = search.local / "models" / f"00000-{evaluation:03d}"
        fitted = load_file(kept / "pretrain" / "model.safetensors")
        expected = load_file(folder / "model.safetensors")
        assert fitted.keys() == expected.keys()
        assert all(torch.equal(fitted[name], expected[name]) for name in expected)
        weights.append(fitted["encoder.kernels_0"])
        assert not (search.local / "features").exists()  # which no other trial could use
    assert not torch.equal(*weights)


# Models that are kept.


def test_the_model_of_an_evaluation_is_kept_whole(work, run, arm, tmp_path):
    search = work(arm(*FINETUNE))
    run(search, {}, Told(), number=2)
    assert not (search.local / "models").exists()
    told = Told()
    run(search, {}, told, number=3, evaluation=4, keep=True)
    kept = search.local / "models" / "00003-004"
    assert {path.name for path in kept.iterdir()} == {"model.safetensors", "model.json", RESULT}
    trained = search.job_folder(3, 4) / "1" / "transfer"
    score = transfer_result(trained)["validation_auroc"]
    assert json.loads((kept / RESULT).read_text())["validation_auroc"] == score
    state, expected = load_classifier(kept).state_dict(), load_classifier(trained).state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert [path.name for path in kept.parent.iterdir()] == ["00003-004"]


def test_a_model_is_kept_before_its_evaluation_counts_as_ended(work, run):
    """Otherwise a killed process would leave an evaluation without its model."""
    search, kept = work(), []

    def report(reached):
        kept.append((search.local / "models" / "00000-001").is_dir())

    run(search, {}, report, evaluation=1, keep=True)
    assert kept == [True]


def test_models_of_a_pretraining_are_kept_with_it(work, run, arm):
    search = work(arm(upstream=None), **PRETRAIN)
    run(search, {}, Told(), evaluation=1, keep=True)
    kept = search.local / "models" / "00000-001"
    state = load_classifier(kept).encoder.state_dict()
    expected = load_encoder(kept / "pretrain").state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


# Several modalities.


def test_two_arms_report_their_mean_after_each(work, run, arm, trained, inner_ecg, tmp_path):
    arms = (arm("seed=1", modality="one"), arm("seed=2", modality="two"))
    told, values, search = Told(), {LR: 0.02}, work(*arms, rungs=(1,))
    run(search, values, told, keep=True)
    one, two = (
        trained(applied(a.settings, values), inner_ecg.path, a.upstream, a.modality)[0]
        for a in arms
    )
    assert one != two
    assert told.scores == [(1, one, False), (2, pytest.approx((one + two) / 2, abs=1e-15), True)]
    assert dict(told.all[0].scores) == {"one": one}
    assert dict(told.all[1].scores) == {"one": one, "two": two}
    for place, score in (("1", one), ("2", two)):
        result = json.loads((search.local / "models" / "00000-000" / place / RESULT).read_text())
        assert result["validation_auroc"] == score
    # An arm that is done is neither forgotten nor counted as one that is whole.
    silent = Told()
    run(work(*arms, rungs=(), folder=tmp_path / "silent"), values, silent)
    assert silent.scores == told.scores[1:]


# What a trial may not do.


@pytest.mark.parametrize("stage", [Transfer(), Pretraining()])
def test_a_trial_opens_nothing_but_its_inner_catalog(
    work, run, inner_ecg, searched_source, ecg_catalogs, stage
):
    tried = []

    def report(reached):
        if reached.whole:
            return
        open_catalog(inner_ecg.path)
        for catalog in ecg_catalogs.values():
            with pytest.raises(BenchmdError, match="must not be opened: a search sees"):
                open_catalog(catalog.path)
            with pytest.raises(BenchmdError, match="must not be opened"):
                catalog.shards(next(iter(catalog.manifest["splits"])))
            tried.append(catalog.dataset)

    run(work(stage=stage), {}, report)
    assert set(tried) == set(ecg_catalogs) > {searched_source.dataset}
    for catalog in ecg_catalogs.values():
        assert open_catalog(catalog.path) == catalog


def test_a_job_of_a_trial_cannot_open_the_source_itself(work, run, searched_source, monkeypatch):
    """Whatever a job of a trial names: it is opened within the confinement."""
    real = TransferJob

    def of_the_source(settings, catalog, *rest, **named):
        return real(settings, searched_source.path, *rest, **named)

    monkeypatch.setattr("benchmd_ray.tuning.stages.TransferJob", of_the_source)
    with pytest.raises(BenchmdError, match=f"{searched_source.path} must not be opened"):
        run(work(), {}, Told())
    assert open_catalog(searched_source.path) == searched_source


def test_families_of_one_search_train_what_is_theirs(arm, kernels, inner_ecg, tmp_path):
    families = {
        "mae linear": FamilyWork("mae", Transfer(), (arm(),), ()),
        "random-kernels knn": FamilyWork("random-kernels", FittedTransfer(), (kernels,), ()),
    }
    search = TrialContext(families, tmp_path / "search")
    for number, family in enumerate(families):
        run_trial(search, number, 1, family, {}, [inner_ecg.path], Told(), keep=True)
    networks = [
        json.loads((search.local / "models" / f"{number:05d}-001" / "model.json").read_text())
        for number in range(2)
    ]
    assert [about["encoder"]["network"] for about in networks] == ["transformer", "random-kernels"]


# Failures.


@pytest.mark.parametrize("mode", ["linear", "finetune"])
def test_a_loss_that_is_no_number_fails_the_trial(work, run, arm, mode):
    searched, told = arm(f"transfer.mode={mode}", "transfer.batch_size=4"), Told()
    with pytest.raises(BenchmdError, match=r"the loss became (NaN|infinite) at step \d+") as caught:
        run(work(searched), {LR: 1e30}, told)
    assert not any(reached.whole for reached in told.all)
    assert why_failed(caught.value) == str(caught.value)


def held_bytes():
    """Private memory that this process has allocated, as the limit counts it."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmData")
    )
    return int(line.split()[1]) * 1024


BIG = 2**30


@pytest.mark.parametrize(("allocate", "kind"), [(np.empty, np.uint8), (torch.empty, torch.uint8)])
def test_a_large_allocation_fails_within_the_limit_and_not_after(allocate, kind):
    def take(size):
        return len(allocate(size, dtype=kind))  # whose memory is never touched

    def take_within():
        with limited(held_bytes() + BIG // 2):
            assert take(2**20) == 2**20  # what fits is given
            take(BIG)

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        take_within()
    assert why_failed(caught.value).startswith("ran out of memory: ")
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert take(BIG) == BIG


def test_a_trial_works_within_its_limit(work, run):
    limits = []

    def report(reached):
        limits.append(resource.getrlimit(resource.RLIMIT_DATA)[0])

    before, most = resource.getrlimit(resource.RLIMIT_DATA), held_bytes() + 2**30
    run(work(memory_bytes=most), {}, report)
    assert set(limits) == {most}
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_no_limit_is_set_where_there_is_none():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limited(None):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "ran out of memory: MemoryError"),
        (torch.OutOfMemoryError("CUDA: tried 3 GiB\nmore"), "ran out of memory: CUDA: tried 3 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "ran out of memory: Default"),
        (OSError(12, "Cannot allocate memory"), "ran out of memory: [Errno 12]"),
        (BenchmdError("the setting is wrong.\nSee there."), "the setting is wrong."),
        (ValueError("a\nb"), "ValueError: a"),
        (KeyError(), "KeyError: KeyError"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(error, text):
    assert why_failed(error).startswith(text)
    assert "\n" not in why_failed(error)


def test_what_a_trial_reports_is_never_better_than_its_end(work, run, arm):
    told = Told()
    run(work(arm(*FINETUNE), rungs=(1, 2, 3)), {LR: 1e-2}, told)
    scores = [reached.score for reached in told.all]
    assert scores == sorted(scores)
    assert all(math.isfinite(auroc) and 0 <= auroc <= 1 for auroc in scores)
