import json
import math
import re
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from told import Interrupted, Told

from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import write_hash
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.training.checkpoints import latest_checkpoint
from benchmd_ray.training.jobs import RESULT, PretrainJob, TransferJob
from benchmd_ray.training.launch import launch
from benchmd_ray.training.reporter import SilentReporter, read_metrics
from benchmd_ray.training.selection import crossed
from benchmd_ray.tuning.sampling import ValidationRecords, sampled
from benchmd_ray.tuning.spaces import applied
from benchmd_ray.tuning.stages import Pretraining, Transfer, TrialContext, with_linear
from benchmd_ray.tuning.trial import limited, run_trial, seed_of, why_failed

LR = "transfer.optimiser.lr"
FINETUNE = ("transfer.mode=finetune", "transfer.labels=full")


@pytest.fixture
def work(tmp_path, arm):
    """Makes what trials have in common."""

    def make(*arms, stage=None, rungs=(1, 3), technique="mae", name="search", **changes):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return TrialContext(
            technique, stage or Transfer(), arms or (arm(),), folder, rungs, **changes
        )

    return make


@pytest.fixture
def trained(tmp_path):
    """Runs an ordinary transfer; its AUROC and the best AUROC so far after each epoch."""

    def run(settings, catalog, upstream, name="ordinary"):
        folder = tmp_path / name
        folder.mkdir()
        launch(TransferJob(settings, catalog, folder, upstream))
        each = [line["validation_auroc"] for line in read_metrics(folder)]
        best = np.maximum.accumulate(each).tolist()
        return json.loads((folder / RESULT).read_text("utf-8"))["validation_auroc"], best

    return run


def test_a_linear_trial_is_an_ordinary_transfer_on_the_inner_catalog(work, arm, trained):
    made, values, told = arm(), {LR: 0.05, "transfer.label_smoothing": 0.1}, Told()
    run_trial(work(made), 4, values, told, seconds=100.0)
    score, best = trained(applied(made.settings, values), made.catalogs[0], made.upstream)
    assert told.scores == [(1, best[0], False), (3, best[2], False), (4, score, True)]
    assert all(dict(reached.scores) == {"ecg": reached.score} for reached in told.all)
    assert 100 < told.all[0].seconds <= told.all[1].seconds <= told.all[2].seconds < 160
    other, _ = trained(made.settings, made.catalogs[0], made.upstream, "other")
    assert other != score  # the values were used


def test_each_evaluation_has_a_catalog_and_a_seed_of_its_own(
    work, arm, trained, searched_source, tmp_path
):
    made = arm()
    inner = {e: inner_catalog(searched_source, tmp_path / "inner", e).path for e in (0, 1, 6)}
    told, search = Told(), work(replace(made, catalogs=inner), rungs=(1, 3))
    run_trial(search, 0, {LR: 0.02}, told, evaluations=(0, 1, 6))
    whole = [(one.evaluation, one.score) for one in told.all if one.whole]
    assert [one.complete for one in told.all if one.whole] == [False, False, True]
    assert {one.evaluation for one in told.all if not one.whole} == {0}  # only there is stopped
    settings = applied(made.settings, {LR: 0.02})
    seeds = [seed_of(settings.seed, e) for e in inner]
    assert len(set(seeds)) == 3
    for (evaluation, score), seed in zip(whole, seeds, strict=True):
        own = replace(settings, seed=seed)
        name = f"ordinary-{evaluation}"
        assert score == trained(own, inner[evaluation], made.upstream, name)[0]
    again = Told()
    run_trial(search, 1, {LR: 0.02}, again, evaluations=(6,))
    assert again.scores[-1][1] == whole[2][1]


@pytest.mark.parametrize("mode", ["linear", "finetune"])
def test_an_epoch_is_chosen_on_other_patients_than_a_trial_is_scored_on(
    work, arm, tmp_path, monkeypatch, mode
):
    monkeypatch.setattr("benchmd_ray.training.selection.FEWEST", 2)
    made, told = arm(f"transfer.mode={mode}"), Told()
    run_trial(work(made), 0, {LR: 0.01}, told)
    settings, folder = applied(made.settings, {LR: 0.01}), tmp_path / "ordinary"
    folder.mkdir()
    launch(TransferJob(settings, made.catalogs[0], folder, made.upstream, halved=True))
    lines = read_metrics(folder)
    assert [score for _, score, _ in told.scores] == [
        crossed(lines[:1]),
        crossed(lines[:3]),
        crossed(lines),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["linear", "finetune"])
def test_scores_of_records_are_kept_of_fresh_evaluations(
    work, arm, searched_source, tmp_path, monkeypatch, caplog, mode
):
    """Of the epoch that was chosen on the other patients: they give the score of the evaluation."""
    monkeypatch.setattr("benchmd_ray.training.selection.FEWEST", 2)
    made = arm(f"transfer.mode={mode}")
    inner = {e: inner_catalog(searched_source, tmp_path / "inner", e) for e in (0, 5)}
    paths = {e: catalog.path for e, catalog in inner.items()}
    search, told = work(replace(made, catalogs=paths), fresh_from=5), Told()
    run_trial(search, 3, {LR: 0.01}, told, evaluations=(0,))
    assert not (search.folder / "fresh").exists()
    run_trial(search, 3, {LR: 0.01}, told, evaluations=(5,))
    scores = np.load(search.scores_file(3, 5))
    records = ValidationRecords.of(inner[5], made.settings)
    targets = records.targets
    halves = [
        np.mean(
            [
                roc_auc_score(targets[half, n], scores[half, n])
                for n in range(targets.shape[1])
                if 0 < targets[half, n].sum() < half.sum()
            ]
        )
        for half in (records.second_half, ~records.second_half)
    ]
    assert told.all[-1].score == pytest.approx(np.mean(halves))
    same = sampled(search, inner, 3, (5,))
    assert same is None  # the start has none yet
    run_trial(search, 0, {}, Told(), evaluations=(5,))
    found = sampled(search, inner, 3, (5,))
    assert 0 < found.of_mean == found.of_each
    path = search.scores_file(0, 5)
    path.write_bytes(path.read_bytes()[:-4] + b"0000")
    assert sampled(search, inner, 3, (5,)) is None
    assert re.search("without scores per record: .*npy is damaged", caplog.text)
    for forged in (np.array(["0.5"]), np.zeros((3, 1), "S0"), np.zeros(2, [("a", "f4")])):
        np.save(path, forged, allow_pickle=False)
        write_hash(path)
        assert sampled(search, inner, 3, (5,)) is None


def test_kept_features_give_the_same_and_are_encoded_once(work, monkeypatch, trained, arm):
    made, told = work(), (Told(), Told(), Told())
    run_trial(made, 0, {LR: 1e-3}, told[0])
    kept = {path.name: path.stat().st_mtime_ns for path in (made.folder / "features").iterdir()}
    monkeypatch.setattr(Encoder, "forward", pytest.fail)
    run_trial(made, 1, {LR: 1e-3}, told[1])
    run_trial(made, 2, {LR: 0.1}, told[2])
    held = {path.name: path.stat().st_mtime_ns for path in (made.folder / "features").iterdir()}
    assert {name for name in held if name.endswith("npy")} == {n for n in kept if n.endswith("npy")}
    assert told[0].scores == told[1].scores != told[2].scores
    monkeypatch.undo()
    ordinary, _ = trained(arm().settings, arm().catalogs[0], arm().upstream)
    assert told[0].scores[-1] == (4, ordinary, True)


def test_scratch_takes_no_pretraining(work, arm, trained):
    told = Told()
    run_trial(work(arm(), technique="scratch"), 0, {}, told)
    assert told.scores[-1][1] == trained(arm().settings, arm().catalogs[0], None)[0]


def test_fewer_epochs_than_rungs_are_reported_as_they_are(work):
    told = Told()
    run_trial(work(), 0, {"transfer.epochs": 3}, told)
    assert [(step, complete) for step, _, complete in told.scores] == [(1, False), (3, True)]


@pytest.mark.parametrize("stop_at", [1, 3, 4])
def test_an_interrupted_fine_tuning_ends_as_if_it_had_not_been(work, arm, stop_at):
    values = {LR: 1e-2, "transfer.layer_decay": 0.75}  # its first epoch is the best
    whole, first, second = Told(), Told(stop_at), Told()
    run_trial(work(arm(*FINETUNE), name="whole"), 0, values, whole)
    pieces = work(arm(*FINETUNE), name="pieces")
    with pytest.raises(Interrupted):
        run_trial(pieces, 0, values, first)
    held = latest_checkpoint(pieces.trial_folder(0) / "000" / "1" / "transfer")
    assert (held is None) == (stop_at == 1)  # its work up to there is not done again
    run_trial(pieces, 0, values, second)
    assert first.scores + second.scores == whole.scores


PRETRAIN = {"stage": Pretraining(), "rungs": (2, 4)}


@pytest.fixture
def pretrained(tmp_path, trained):
    """AUROC by linear evaluation of a pretraining that stops at a step."""

    def run(arm, values, until):
        settings, folder = applied(arm.settings, values), tmp_path / f"pretrained-{until}"
        folder.mkdir()
        launch(
            PretrainJob(settings, "mae", arm.catalogs[0], folder, until), reporter=SilentReporter()
        )
        return trained(with_linear(settings), arm.catalogs[0], folder, f"linear-{until}")[0]

    return run


def test_a_pretraining_is_scored_by_linear_evaluation_at_each_rung(work, arm, pretrained):
    made = arm("transfer.mode=finetune", "transfer.labels=small", upstream=None)
    values, told = {"pretrain.optimiser.lr": 1e-2, "pretrain.mask_rate": 0.5}, Told()
    search = work(made, **PRETRAIN)
    run_trial(search, 0, values, told)
    expected = [pretrained(made, values, until) for until in (2, 4, None)]
    assert told.scores == [
        (2, expected[0], False),
        (4, expected[1], False),
        (6, expected[2], True),
    ]
    assert len(set(expected)) > 1
    folder = search.trial_folder(0) / "000" / "1"
    assert [path.name for path in folder.iterdir()] == ["pretrain"]
    assert len(list((folder / "pretrain" / "checkpoints").iterdir())) == 2  # of many, the last
    assert not (search.folder / "features").exists()  # of encoders that are used once


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [2, 4, 6])
def test_an_interrupted_pretraining_ends_as_if_it_had_not_been(work, arm, stop_at):
    values = {"pretrain.optimiser.lr": 1e-2}
    whole, first, second = Told(), Told(stop_at), Told()
    run_trial(work(arm(upstream=None), name="whole", **PRETRAIN), 0, values, whole)
    pieces = work(arm(upstream=None), name="pieces", **PRETRAIN)
    with pytest.raises(Interrupted):
        run_trial(pieces, 0, values, first)
    run_trial(pieces, 0, values, second)
    assert first.scores + second.scores == whole.scores
    assert not list(pieces.trial_folder(0).rglob("linear-*"))


def test_a_pretraining_that_ended_between_rungs_goes_on(work, arm, monkeypatch):
    often, told, whole = "execution.checkpoint_every=1", Told(), Told()
    run_trial(work(arm(often, upstream=None), name="whole", **PRETRAIN), 0, {}, whole)

    class Ends(SilentReporter):
        def __init__(self, clock):
            pass

        def report(self, done, values):
            if done == 4:  # step 3 has a checkpoint, beyond the rung at 2
                raise Interrupted

    pieces = work(arm(often, upstream=None), name="pieces", **PRETRAIN)
    with monkeypatch.context() as patch:
        patch.setattr("benchmd_ray.tuning.stages._Ticking", Ends)
        with pytest.raises(Interrupted):
            run_trial(pieces, 0, {}, told)
    held = pieces.trial_folder(0) / "000" / "1" / "pretrain"
    assert latest_checkpoint(held).name == "step_000000003"
    run_trial(pieces, 0, {}, told)
    assert told.scores == whole.scores


# Several modalities.


def test_two_arms_report_their_mean_after_each(work, arm, trained):
    made = (arm("seed=1", modality="one"), arm("seed=2", modality="two"))
    told, values = Told(), {LR: 0.02}
    run_trial(work(*made, rungs=(1,)), 0, values, told)
    one, two = (
        trained(applied(a.settings, values), a.catalogs[0], a.upstream, a.modality)[0] for a in made
    )
    assert one != two
    assert told.scores == [(1, one, False), (2, pytest.approx((one + two) / 2, abs=1e-15), True)]
    assert dict(told.all[0].scores) == {"one": one}
    assert dict(told.all[1].scores) == {"one": one, "two": two}
    # An arm that is done is neither forgotten nor counted as one that is whole.
    silent = Told()
    run_trial(work(*made, rungs=(), name="silent"), 0, values, silent)
    assert silent.scores == told.scores[1:]


# What a trial may not do.


@pytest.mark.parametrize("stage", [Transfer(), Pretraining()])
def test_a_trial_opens_nothing_but_its_inner_catalog(
    work, arm, searched_source, ecg_catalogs, stage
):
    tried = []

    def report(reached):
        if reached.complete:
            return
        open_catalog(arm().catalogs[0])
        for catalog in ecg_catalogs.values():
            with pytest.raises(BenchmdError, match="must not be opened: a search sees"):
                open_catalog(catalog.path)
            with pytest.raises(BenchmdError, match="must not be opened"):
                catalog.shards(next(iter(catalog.manifest["splits"])))
            tried.append(catalog.dataset)

    run_trial(work(stage=stage), 0, {}, report)
    assert set(tried) == set(ecg_catalogs) > {searched_source.dataset}
    for catalog in ecg_catalogs.values():
        assert open_catalog(catalog.path) == catalog


def test_a_job_of_a_trial_cannot_open_the_source_itself(work, arm, searched_source, monkeypatch):
    """Whatever a job of a trial names: it is opened within the confinement."""
    real = TransferJob

    def of_the_source(settings, catalog, *rest, **named):
        return real(settings, searched_source.path, *rest, **named)

    monkeypatch.setattr("benchmd_ray.tuning.stages.TransferJob", of_the_source)
    with pytest.raises(BenchmdError, match=f"{searched_source.path} must not be opened"):
        run_trial(work(), 0, {}, Told())
    assert open_catalog(searched_source.path) == searched_source


# Failures.


@pytest.mark.parametrize("mode", ["linear", "finetune"])
def test_a_loss_that_is_no_number_fails_the_trial(work, arm, mode):
    made, told = arm(f"transfer.mode={mode}", "transfer.batch_size=4"), Told()
    with pytest.raises(BenchmdError, match=r"the loss became (NaN|infinite) at step \d+") as caught:
        run_trial(work(made), 0, {LR: 1e30}, told)
    assert not any(reached.complete for reached in told.all)
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


def test_a_trial_works_within_its_limit(work, arm):
    seen = []

    def report(reached):
        seen.append((resource.getrlimit(resource.RLIMIT_DATA)[0], reached.complete))

    before, most = resource.getrlimit(resource.RLIMIT_DATA), held_bytes() + 2**30
    run_trial(work(memory_bytes=most), 0, {}, report)
    assert {limit for limit, complete in seen if not complete} == {most}
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


def test_what_a_trial_reports_is_never_better_than_its_end(work, arm):
    told = Told()
    run_trial(work(replace(arm(*FINETUNE)), rungs=(1, 2, 3)), 0, {LR: 1e-2}, told)
    found = [reached.score for reached in told.all]
    assert found == sorted(found)
    assert all(math.isfinite(auroc) and 0 <= auroc <= 1 for auroc in found)
