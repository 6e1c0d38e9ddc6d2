"""Training on several nodes while workers and nodes are killed, stopped and told to end."""

from __future__ import annotations

import signal
import time

import pytest
from json_lines import json_lines
from safetensors.torch import load_file

from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.history import read_history
from benchmd_ray.service.logged import LOG
from benchmd_ray.training.checkpoints import checkpoint_step
from benchmd_ray.training.ray_train import RESTARTS, STOP
from benchmd_ray.training.reporter import read_metrics

# Two simulated clusters at once are too much for two cores.
pytestmark = [pytest.mark.ray, pytest.mark.nightly, pytest.mark.xdist_group("faults")]

STEPS = 320
STALL_SECONDS = 15
WORKER = "RayTrainWorker"
SETTINGS = (
    "encoder=tiny",
    "encoder.dropout=0",  # its draws depend on the number of workers
    "encoder.embedding_dropout=0",
    f"pretrain.steps={STEPS}",
    "pretrain.batch_size=4",
    "pretrain.optimiser.schedule=cosine",
    "execution.workers=2",
    "execution.cpus_per_worker=2",
    "execution.log_every=1",
    "execution.checkpoint_every=10",
    f"execution.stall_seconds={STALL_SECONDS}",
    "execution.wait_seconds=2",
)


def chosen(settings):
    """Arguments of a command with these settings."""
    return [f"--set={each}" for each in settings]


class Training:
    """A command that pretrains with two workers, and its run."""

    def __init__(self, start, store, *arguments):
        asked = ("pretrain", "--technique=mae", "--store", store, *chosen(SETTINGS), *arguments)
        self.command, self._store = start(*asked), store

    @property
    def folder(self):
        (folder,) = self._store.glob("pretrain-*")
        return folder

    def losses(self):
        return [line["loss"] for line in read_metrics(self.folder)]

    def restarts(self):
        return json_lines(self.folder / RESTARTS)

    def until_step(self, step):
        def reached():
            folders = list(self._store.glob("pretrain-*"))
            lines = read_metrics(folders[0]) if folders else []
            return lines and lines[-1]["done"] >= step

        self.command.until(f"step {step}", reached, 180)

    def until_restart(self, number):
        """Wait until workers were started again so often and took some steps more."""
        self.command.until(f"restart {number}", lambda: len(self.restarts()) == 2 * number, 180)
        self.until_step(max(len(self.losses()), checkpoint_step(self.folder)) + 3)

    def finish(self):
        assert self.command.wait(180) == 0, self.command.output
        assert [line["done"] for line in read_metrics(self.folder)] == list(range(1, STEPS + 1))


@pytest.fixture(scope="module")
def cluster(start_cluster):
    """A head that holds no worker, and two nodes that hold one each."""
    nodes = start_cluster(1, 2, 3)
    yield nodes
    nodes.stop()


@pytest.fixture(scope="module")
def given(cluster, ecg_catalogs):
    """What all commands of this module are given."""
    return (f"--catalog={ecg_catalogs['ptb-xl'].path}", "--address", cluster.address)


@pytest.fixture(scope="module")
def undisturbed(start_command, given, tmp_path_factory):
    """A run to which nothing happened."""
    training = Training(start_command, tmp_path_factory.mktemp("undisturbed"), *given)
    training.finish()
    assert training.restarts() == []
    return training


@pytest.fixture(scope="module")
def suffered(start_command, cluster, given, undisturbed, tmp_path_factory):
    """The same run, to which everything happened; with the worker that was killed."""
    least = "--set=execution.least_workers=1"
    training = Training(start_command, tmp_path_factory.mktemp("suffered"), *given, least)
    training.until_step(5)
    slow = cluster.processes(WORKER)[1]
    slow.suspend()
    time.sleep(1.0)  # much less than what counts as standing still
    slow.resume()
    training.until_step(15)
    assert not training.restarts()
    killed = cluster.processes(WORKER)[0]
    killed.kill()
    training.until_restart(1)
    cluster.processes(WORKER)[1].send_signal(signal.SIGTERM)
    training.until_restart(2)
    still = cluster.processes(WORKER)[0]
    still.suspend()
    training.until_restart(3)
    assert not still.is_running()
    training.until_step(31)  # some more with both, after a checkpoint
    cluster.kill(cluster.nodes[1])
    training.until_restart(4)
    (only,) = cluster.processes(WORKER)
    only.suspend()  # else it is done before a node can come
    cluster.add(num_cpus=2)
    asked = training.folder / STOP
    training.command.until("a request to stop for the new node", asked.exists, STALL_SECONDS)
    only.resume()
    training.until_restart(5)
    training.finish()
    return training, killed.pid


def test_workers_that_are_lost_are_told_and_started_again(suffered):
    training, killed = suffered
    found = training.restarts()
    ended, again = found[::2], found[1::2]
    events = ["lost", "preempted", "stalled", "lost", "growing"]
    assert [line["event"] for line in ended] == events
    assert [line["workers"] for line in ended] == [2, 2, 2, 2, 1]
    for before, after in zip(ended, again, strict=True):
        assert after["event"] == "restarted"
        assert 0 < after["from"] <= before["done"] < STEPS
        workers = "2 workers" if before["workers"] == 2 else "1 worker"
        line = f"after {before['done']} steps with {workers}: {before['reason']}"
        assert line in training.command.output
    # A loss is told by Ray, or by the other worker, whichever notices it first.
    by_the_other = "lost the connection to another"
    assert any(text in ended[0]["reason"] for text in (f"is gone (pid {killed},", by_the_other))
    assert ended[1]["reason"] == "a worker was asked to end (SIGTERM)"
    assert again[1]["from"] == ended[1]["done"]  # a checkpoint of that very step
    assert ended[2]["reason"].startswith("a worker stalled for execution.stall_seconds")
    assert any(text in ended[3]["reason"] for text in ("is gone (", by_the_other))
    assert [line["workers"] for line in again] == [2, 2, 2, 1, 2]  # one node was left, one came
    assert f"after {again[3]['from']} steps with 1 of 2 workers" in training.command.output
    assert ended[4]["reason"] == "there is room for all workers again"
    assert again[4]["from"] == ended[4]["done"]  # a checkpoint of that very step


def test_workers_that_are_lost_change_nothing(suffered, undisturbed):
    """Bit for bit with as many workers, but for rounding with fewer."""
    training, _ = suffered
    both = training.restarts()[-3]["from"]  # from there on one worker for a while
    assert both >= 30
    assert training.losses()[:both] == undisturbed.losses()[:both]
    assert training.losses() == pytest.approx(undisturbed.losses(), abs=1e-4)
    found = load_file(training.folder / MODEL)
    for name, value in load_file(undisturbed.folder / MODEL).items():
        assert (found[name] - value).abs().mean() < 1e-4, name
    left = {path.name for path in training.folder.iterdir()}
    assert left - {path.name for path in undisturbed.folder.iterdir()} == {RESTARTS}


SMALL_STEPS = 400
"""So many that none ends between its first steps and the signal that they wait for."""
SMALL = (
    "encoder=tiny",
    f"pretrain.steps={SMALL_STEPS}",
    "pretrain.batch_size=4",
    "transfer.epochs=2",
    "execution.log_every=7",
    "execution.retries=0",
)


@pytest.fixture(scope="module")
def alone(start_command, given, tmp_path_factory):
    """An undisturbed pretraining of one process."""
    store = tmp_path_factory.mktemp("alone")
    calm = start_command("pretrain", "--technique=mae", given[0], "--store", store, *chosen(SMALL))
    assert calm.wait(180) == 0, calm.output
    (folder,) = store.glob("pretrain-*")
    return folder


def require_same(folder, alone):
    whole, found = read_metrics(alone), read_metrics(folder)
    assert [line["loss"] for line in found] == [line["loss"] for line in whole]
    assert sha256(folder / MODEL) == sha256(alone / MODEL)
    events = [line["event"] for line in read_history(folder)]
    assert events == ["started", "failed", "started", "finished"]
    begun = [line["from"] for line in read_history(folder) if line["event"] == "started"]
    assert 0 == begun[0] < begun[1] < SMALL_STEPS


def training_in(store):
    """Folder of a pretraining that has taken some steps."""
    return next((f for f in store.glob("pretrain-*") if read_metrics(f)), None)


def test_a_run_of_a_plan_whose_process_is_told_to_end_goes_on_elsewhere(
    command, cluster, given, alone, tmp_path
):
    wanted = ("--technique=mae", "--setting=linear", "--store", tmp_path)
    plan = command("run", *given, *wanted, *chosen(SMALL))
    title = "ray::ptb-xl/clean/mae/seed-0/pretrain"
    (process,) = plan.until("its process", lambda: cluster.processes(title), 90)
    folder = plan.until("training", lambda: training_in(tmp_path), 90)
    process.send_signal(signal.SIGTERM)
    assert plan.wait(120) == 0, plan.output
    assert "its process was asked to end (SIGTERM); resumes elsewhere" in plan.output
    lines = [line for line in json_lines(tmp_path / LOG) if "pretrain" in line.get("item", "")]
    told, done = (line for line in lines if line["event"] != "item started")
    assert [told["event"], done["event"]] == ["item preempted", "item finished"]
    assert told["node"] != done["node"]
    require_same(folder, alone)


def test_a_command_that_is_told_to_end_goes_on_where_it_stopped(command, given, alone, tmp_path):
    same = ("pretrain", "--technique=mae", given[0], "--store", tmp_path, *chosen(SMALL))
    told = command(*same)
    folder = told.until("training", lambda: training_in(tmp_path), 60)
    told.process.send_signal(signal.SIGTERM)
    assert told.wait(30) == 128 + signal.SIGTERM
    assert "interrupted: the same command resumes where it stopped" in told.output
    again = command(*same)
    assert again.wait(180) == 0, again.output
    require_same(folder, alone)
