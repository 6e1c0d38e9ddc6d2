"""A signal in the middle of training: a checkpoint, and the same end as without it."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import Stopped
from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.files import MODEL
from benchmd_ray.training import notice
from benchmd_ray.training.checkpoints import latest_checkpoint
from benchmd_ray.training.engine import make_engine
from benchmd_ray.training.jobs import PretrainJob, TransferJob, transfer_result
from benchmd_ray.training.launch import launch
from benchmd_ray.training.reporter import METRICS, read_metrics

DROPPING = ("encoder.dropout=0.1", "encoder.embedding_dropout=0.1")
PRETRAIN = ("pretrain.steps=9", "execution.log_every=4", "pretrain.optimiser.schedule=cosine")
FINETUNE = ("transfer.mode=finetune", "transfer.epochs=3", "transfer.optimiser.schedule=cosine")


@pytest.fixture
def run(source, make_settings, tmp_path):
    """Launches a job in a folder of its own."""

    def start(name, *assignments, technique=None):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        settings = make_settings(*DROPPING, *assignments)
        if technique:
            launch(PretrainJob(settings, technique, source.path, folder))
        else:
            launch(TransferJob(settings, source.path, folder))
        return folder

    return start


@pytest.fixture
def signal_after(monkeypatch):
    """Sends a signal to this process within so many steps from now, once."""

    def arm(steps, number=signal.SIGTERM):
        left = iter(range(steps, 0, -1))

        def make(*arguments):
            engine = make_engine(*arguments)
            update = engine.update

            def stepping():
                update()
                if next(left, 0) == 1:
                    os.kill(os.getpid(), number)

            monkeypatch.setattr(engine, "update", stepping)
            return engine

        monkeypatch.setattr("benchmd_ray.training.pretrain.make_engine", make)
        monkeypatch.setattr("benchmd_ray.training.transfer.make_engine", make)

    return arm


def lines(folder):
    """What was reported, without the speed."""
    held = read_metrics(folder)
    return [{name: line[name] for name in line if name != "per_second"} for line in held]


def stopped(run, *arguments, number=signal.SIGTERM, **named):
    before = [signal.getsignal(each) for each in notice.SIGNALS]
    with pytest.raises(Stopped) as stop:
        run("broken", *arguments, **named)
    assert stop.value.args == (number,)
    assert [signal.getsignal(each) for each in notice.SIGNALS] == before
    assert not notice.noted()


@pytest.mark.parametrize("number", notice.SIGNALS)
def test_a_signal_amid_two_log_lines_changes_nothing_of_a_pretraining(run, signal_after, number):
    whole = run("whole", *PRETRAIN, technique="mae")
    signal_after(6, number)
    stopped(run, *PRETRAIN, number=number, technique="mae")
    broken = whole.parent / "broken"
    assert latest_checkpoint(broken).name == "step_000000006"
    signal_after(1)  # and once more, before the log line that the first one split
    stopped(run, *PRETRAIN, technique="mae")
    assert latest_checkpoint(broken).name == "step_000000007"
    assert [line["done"] for line in lines(broken)] == [4]
    run("broken", *PRETRAIN, technique="mae")
    assert lines(broken) == lines(whole)
    assert [line["done"] for line in lines(broken)] == [4, 8, 9]
    assert sha256(broken / MODEL) == sha256(whole / MODEL)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
@pytest.mark.parametrize("steps", [1, 5, 6])
def test_a_signal_amid_an_epoch_changes_nothing_of_a_fine_tuning(run, signal_after, engine, steps):
    settings = (*FINETUNE, f"execution.engine={engine}")
    whole = run("whole", *settings)  # three batches an epoch
    signal_after(steps)
    stopped(run, *settings)
    broken = whole.parent / "broken"
    assert latest_checkpoint(broken).name == f"step_00000000{(steps - 1) // 3}"
    run("broken", *settings)
    assert lines(broken) == lines(whole)
    assert transfer_result(broken) == transfer_result(whole)
    assert sha256(broken / MODEL) == sha256(whole / MODEL)


def test_a_signal_in_the_last_step_ends_the_work_before_it_counts_as_done(run, signal_after):
    whole = run("whole", *PRETRAIN, technique="mae")
    signal_after(9)
    stopped(run, *PRETRAIN, technique="mae")
    broken = run("broken", *PRETRAIN, technique="mae")
    assert (broken / METRICS).read_text().count("\n") == 3
    assert sha256(broken / MODEL) == sha256(whole / MODEL)


def test_a_second_signal_interrupts_at_once():
    def twice():
        with notice.heeding():
            os.kill(os.getpid(), signal.SIGTERM)
            assert notice.noted() == signal.SIGTERM
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("it went on")

    with pytest.raises(Stopped, match="2"):
        twice()
    assert not notice.noted()


def test_several_workers_stop_after_the_same_step_and_look_about_once_a_second(monkeypatch):
    """Two workers as threads, of which the second is told to end after its 150th step."""
    own, meet, looks = threading.local(), threading.Barrier(2), {}

    def gathering(x):
        looks[own.rank, own.step] = x
        meet.wait(10)
        return torch.cat([looks[rank, own.step] for rank in (0, 1)])

    monkeypatch.setattr(notice, "gather", gathering)
    monkeypatch.setattr(notice.time, "monotonic", lambda: own.clock)
    monkeypatch.setattr(notice, "noted", lambda: 15 if own.rank and own.step >= 150 else 0)

    def work(rank):
        own.rank, own.step, own.clock = rank, 0, 0.0
        agreement = notice.Agreement(Worker(rank=rank, world=2))
        for own.step in range(1, 1000):
            own.clock += 5.0 if own.step == 1 else 0.02 + 0.005 * rank  # the first one is slow
            if number := agreement.stop():
                return own.step, number
        return None

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(work, (0, 1)))
    assert ends[0] == ends[1]
    step, number = ends[0]
    assert number == 15
    assert 150 <= step <= 200  # a second is 40 steps
    assert len(looks) / 2 <= 9
