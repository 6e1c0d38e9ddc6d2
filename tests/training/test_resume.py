import json
import os
import signal
import subprocess
import sys

import pytest
from tiers import by_tier
from waiting import until

from benchmd_ray.data.batches import ResidentFeed, Worker
from benchmd_ray.files.atomic import sha256
from benchmd_ray.files.integrity import line
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.history import METRICS, read_metrics
from benchmd_ray.training.checkpoints import CHECKPOINT, latest_checkpoint
from benchmd_ray.training.jobs import RESULT, PretrainJob, TransferJob, transfer_result
from benchmd_ray.training.pretrain import pretrain
from benchmd_ray.training.reporter import RunReporter
from benchmd_ray.training.selection import TransferData
from benchmd_ray.training.transfer import transfer

DROPPING = ("encoder.dropout=0.1", "encoder.embedding_dropout=0.1")


class Killing(RunReporter):
    """A run's reporter whose process ends at a given report."""

    def __init__(self, folder, stop_at, error):
        super().__init__(folder, silent=True)
        self._stop_at, self._error = stop_at, error

    def report(self, done, values):
        super().report(done, values)
        if done == self._stop_at:
            raise self._error


@pytest.fixture
def run(source, make_settings, interrupted, tmp_path):
    """Starts a core in a folder; ``stop_at`` interrupts it there."""

    def start(name, *assignments, technique=None, stop_at=None):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        settings = make_settings(*assignments)
        if technique:
            core, job = pretrain, PretrainJob(settings, technique, source.path, folder)
        else:
            core, job = transfer, TransferJob(settings, source.path, folder)
        if stop_at is None:
            core(job, Worker(), RunReporter(folder, silent=True))
        else:
            with pytest.raises(interrupted):
                core(job, Worker(), Killing(folder, stop_at, interrupted()))
        return folder

    return start


def lines(folder):
    """What was reported, without the speed."""
    return [
        {name: value for name, value in line.items() if name != "per_second"}
        for line in read_metrics(folder)
    ]


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
@pytest.mark.parametrize("technique", ["e-mix", "shed", "mae"])
def test_resumed_pretraining_is_uninterrupted_pretraining(run, technique, engine):
    settings = (
        *DROPPING,
        "pretrain.steps=8",
        "execution.checkpoint_every=3",
        f"execution.engine={engine}",
        "pretrain.optimiser.schedule=cosine",
        "pretrain.optimiser.warmup_steps=2",
    )
    whole = run("whole", *settings, technique=technique)
    broken = run("broken", *settings, technique=technique, stop_at=5)
    assert latest_checkpoint(broken).name == "step_000000003"
    assert not (broken / MODEL).exists()
    assert [line["done"] for line in lines(broken)] == [1, 2, 3, 4, 5]
    run("broken", *settings, technique=technique)
    assert sha256(broken / MODEL) == sha256(whole / MODEL)
    assert lines(broken) == lines(whole)
    assert [line["done"] for line in lines(broken)] == list(range(1, 9))


def test_a_resumed_run_says_so(run, capsys):
    settings = ("pretrain.steps=8", "execution.checkpoint_every=2")
    folder = run("broken", *settings, technique="mae", stop_at=5)
    assert "resumes" not in capsys.readouterr().err
    run("broken", *settings, technique="mae")
    assert f"{folder.name} resumes after 4 of 8 steps" in capsys.readouterr().err


def test_a_run_may_stop_many_times(run):
    settings = (*DROPPING, "pretrain.steps=8", "execution.checkpoint_every=2")
    whole = run("whole", *settings, technique="mae")
    for stop_at in (1, 3, 5, 7):
        run("broken", *settings, technique="mae", stop_at=stop_at)
    run("broken", *settings, technique="mae")
    assert sha256(broken_model := whole.parent / "broken" / MODEL) == sha256(whole / MODEL)
    assert lines(broken_model.parent) == lines(whole)


def test_a_run_interrupted_in_its_feed_resumes(run, interrupted, monkeypatch):
    settings = (*DROPPING, "pretrain.steps=6", "execution.checkpoint_every=2")
    whole = run("whole", *settings, technique="mae")
    with monkeypatch.context() as patch:
        batch, calls = ResidentFeed._stored, []

        def failing(feed, *sent):
            calls.append(1)
            if len(calls) == 6:
                raise interrupted
            return batch(feed, *sent)

        patch.setattr(ResidentFeed, "_stored", failing)
        with pytest.raises(interrupted):
            run("broken", *settings, technique="mae")
    broken = run("broken", *settings, technique="mae")
    assert sha256(broken / MODEL) == sha256(whole / MODEL)


def test_a_run_interrupted_while_it_saves_goes_on_from_the_checkpoint_before(
    run, interrupted, monkeypatch
):
    settings = (*DROPPING, "pretrain.steps=6", "execution.checkpoint_every=2")
    whole = run("whole", *settings, technique="mae")
    with monkeypatch.context() as patch:

        def failing(module, optimiser, folder):
            (folder / "half").write_bytes(b"half")
            raise interrupted

        run("broken", *settings, technique="mae", stop_at=3)
        patch.setattr("benchmd_ray.training.engine.save_state", failing)
        with pytest.raises(interrupted):
            run("broken", *settings, technique="mae")
    broken = whole.parent / "broken"
    assert latest_checkpoint(broken).name == "step_000000002"
    run("broken", *settings, technique="mae")
    assert sha256(broken / MODEL) == sha256(whole / MODEL)
    names = [path.name for path in (broken / "checkpoints").iterdir()]
    assert sorted(names) == ["step_000000004", "step_000000006"]


@pytest.mark.parametrize("file", ["parameters.safetensors", "exp_avg.safetensors", CHECKPOINT])
def test_a_run_whose_newest_checkpoint_is_damaged_ends_with_the_same_weights(run, caplog, file):
    settings = (*DROPPING, "pretrain.steps=6", "execution.checkpoint_every=2")
    whole = run("whole", *settings, technique="mae")
    run("broken", *settings, technique="mae", stop_at=5)
    broken = whole.parent / "broken"
    assert latest_checkpoint(broken).name == "step_000000004"
    path = latest_checkpoint(broken) / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)
    run("broken", *settings, technique="mae")
    assert "training resumes from the checkpoint before it" in caplog.text
    assert sha256(broken / MODEL) == sha256(whole / MODEL)


def test_a_run_that_stopped_before_its_export_only_exports(run, interrupted, monkeypatch):
    with monkeypatch.context() as patch:

        def failing(*_):
            raise interrupted

        patch.setattr("benchmd_ray.training.pretrain.export_model", failing)
        with pytest.raises(interrupted):
            run("broken", technique="mae")
    with monkeypatch.context() as patch:
        patch.setattr(ResidentFeed, "_stored", failing)  # not one more step
        broken = run("broken", technique="mae")
    assert sha256(broken / MODEL) == sha256(run("whole", technique="mae") / MODEL)


def test_a_checkpoint_goes_on_in_the_other_engine(run):
    settings = ("pretrain.steps=6", "execution.checkpoint_every=3")
    whole = run("whole", *settings, "execution.engine=torch", technique="mae")
    run("broken", *settings, "execution.engine=torch", technique="mae", stop_at=4)
    broken = run("broken", *settings, "execution.engine=deepspeed", technique="mae")
    expected = [line["loss"] for line in lines(whole)]
    assert [line["loss"] for line in lines(broken)] == pytest.approx(expected, abs=1e-6)


FINETUNE = (
    *DROPPING,
    "transfer.mode=finetune",
    "transfer.epochs=6",
    "transfer.optimiser.schedule=cosine",
    "execution.checkpoint_seconds=0",
)


@pytest.mark.parametrize("further", by_tier([()], [("transfer.layer_decay=0.6",)]))
@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_resumed_fine_tuning_is_uninterrupted_fine_tuning(run, engine, further):
    settings = (*FINETUNE, f"execution.engine={engine}", *further)
    whole = run("whole", *settings)
    broken = run("broken", *settings, stop_at=4)
    assert latest_checkpoint(broken).name == "step_000000003"
    run("broken", *settings)
    assert sha256(broken / MODEL) == sha256(whole / MODEL)
    assert lines(broken) == lines(whole)
    assert [line["done"] for line in lines(broken)] == [1, 2, 3, 4, 5, 6]
    assert transfer_result(broken) == transfer_result(whole)


@pytest.mark.slow
@pytest.mark.parametrize("scores", [[1, 3, 2, 2, 3, 2], [1, 2, 2, 2, 3, 3], [3, 1, 1, 1, 1, 1]])
def test_the_best_epoch_survives_an_interruption(run, monkeypatch, scores):
    def scoring(first):
        given = iter([score / 4 for score in scores[first:]])
        return lambda *_: {"validation_auroc": next(given)}

    monkeypatch.setattr(TransferData, "scores", scoring(0))
    whole = run("whole", *FINETUNE)
    monkeypatch.setattr(TransferData, "scores", scoring(0))
    run("broken", *FINETUNE, stop_at=4)
    monkeypatch.setattr(TransferData, "scores", scoring(3))
    broken = run("broken", *FINETUNE)
    assert json.loads((broken / RESULT).read_text())["best_epoch"] == scores.index(max(scores))
    assert transfer_result(broken) == transfer_result(whole)
    assert sha256(broken / MODEL) == sha256(whole / MODEL)


def test_linear_evaluation_begins_anew_and_reports_each_epoch_once(run):
    settings = (*DROPPING, "transfer.mode=linear", "transfer.epochs=4")
    whole = run("whole", *settings)
    broken = run("broken", *settings, stop_at=2)
    run("broken", *settings)
    assert lines(broken) == lines(whole)
    assert sha256(broken / MODEL) == sha256(whole / MODEL)


def test_a_line_that_was_cut_off_is_dropped(tmp_path):
    (tmp_path / METRICS).write_text(line({"done": 1, "loss": 2.0}) + '{"done": 2, "lo')
    assert read_metrics(tmp_path) == [{"done": 1, "loss": 2.0}]
    reporter = RunReporter(tmp_path, silent=True)
    reporter.start("pretrain", 3, "steps", 1)
    reporter.report(2, {"loss": 1.5})
    assert lines(tmp_path) == [{"done": 1, "loss": 2.0}, {"done": 2, "loss": 1.5}]


def benchmd(*arguments, **options):
    command = [sys.executable, "-m", "benchmd_ray.cli", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options
    )


def finish(process):
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()


def kill_at(process, store, step):
    """SIGKILL once a checkpoint of that step, or a later one, is there."""

    def reached():
        found = [int(path.name.split("_")[1]) for path in store.glob("*/checkpoints/step_*")]
        return process.poll() is not None or max(found, default=0) >= step

    until("checkpoint", reached)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not list(store.glob(f"*/{MODEL}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        (
            "pretrain",
            "--technique=mae",
            "--set=pretrain.steps=150",
            "--set=pretrain.batch_size=4",
            "--set=execution.checkpoint_every=4",
            "--set=execution.log_every=2",
        ),
        (
            "transfer",
            "--set=transfer.mode=finetune",
            "--set=transfer.epochs=25",
            "--set=execution.checkpoint_seconds=0",
        ),
    ],
    ids=["pretrain", "transfer"],
)
def test_a_killed_command_run_again_gives_the_same_model(command, source, tmp_path):
    def start(store):
        return benchmd(*command, "--catalog", source.path, "--set=encoder=tiny", "--store", store)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(whole))
    kill_at(start(broken), broken, 8)
    finish(start(broken))
    (expected,), (found,) = whole.glob(f"*/{MODEL}"), broken.glob(f"*/{MODEL}")
    assert sha256(found) == sha256(expected)
    assert found.parent.name == expected.parent.name
    assert lines(found.parent) == lines(expected.parent)
