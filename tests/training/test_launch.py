import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from benchmd_ray.cluster.hardware import hardware
from benchmd_ray.errors import BenchmdError, NoRoom
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.history import SESSIONS, trained_by
from benchmd_ray.ssl import METHODS
from benchmd_ray.training import launch as module
from benchmd_ray.training import ray_train
from benchmd_ray.training.checkpoints import latest_checkpoint
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.launch import launch
from benchmd_ray.training.ray_train import ERROR
from benchmd_ray.training.reporter import read_metrics

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

PLAIN = ("execution.max_failures=0", "execution.checkpoint_every=3")


@pytest.fixture(scope="module")
def make_job_in(source, make_settings):
    """A job in a folder of its own below another."""

    def make(root, name, *assignments, technique=None):
        folder = root / name
        folder.mkdir(exist_ok=True)
        settings = make_settings(*PLAIN, *assignments)
        if technique:
            return PretrainJob(settings, technique, source.path, folder)
        return TransferJob(settings, source.path, folder)

    return make


@pytest.fixture
def make_job(make_job_in, tmp_path):
    """A job in a folder of its own."""
    return partial(make_job_in, tmp_path)


@pytest.fixture(scope="module")
def launch_all(cache):
    """Runs several jobs one after the other in the last one's Ray Train job.

    For these take long to start.
    """

    def start(*jobs):
        cache_of_workers = str(cache)

        def several(config):  # sent by value, so it names nothing of this file
            import os

            from benchmd_ray.training.ray_train import worker_loop

            os.environ["BENCHMD_CACHE"] = cache_of_workers
            for job in jobs:
                worker_loop({"job": job})

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ray_train, "worker_loop", several)
            if jobs[-1].settings.execution.workers > 1:
                launch(jobs[-1])
            else:  # else it would run in this process
                module._launch_on_ray(jobs[-1])

    return start


def losses(job, name="loss"):
    return [line[name] for line in read_metrics(job.folder)]


def require_same(job, other, tolerance=2e-5):
    assert len(losses(job)) == len(losses(other)) > 2
    assert losses(job) == pytest.approx(losses(other), abs=tolerance)
    found = load_file(job.folder / MODEL)
    for name, value in load_file(other.folder / MODEL).items():
        # Adam moves a weight by its rate however small its gradient: single ones differ by more.
        assert (found[name] - value).abs().mean() < tolerance, name


FINETUNE = ("transfer.mode=finetune", "transfer.batch_size=15")  # the last batch holds 12


CASES = {technique: ((), technique) for technique in METHODS} | {"finetune": (FINETUNE, None)}
TWO = ("execution.workers=2",)
SPLIT = (*TWO, "execution.zero_stage=2")
BEGUN = ("pretrain.steps=3",)


@pytest.fixture(scope="module")
def alone(make_job_in, tmp_path_factory):
    """Jobs that this process ran."""
    root = tmp_path_factory.mktemp("alone")
    jobs = {
        name: make_job_in(root, name, *assignments, technique=technique)
        for name, (assignments, technique) in CASES.items()
    }
    for job in jobs.values():
        launch(job)
    return jobs


@pytest.fixture(scope="module")
def by_two(make_job_in, launch_all, tmp_path_factory):
    """The same jobs by two workers, and some more, in one Ray Train job that fails in the end."""
    make = partial(make_job_in, tmp_path_factory.mktemp("two"))
    jobs = {
        name: make(name, *assignments, *TWO, technique=technique)
        for name, (assignments, technique) in CASES.items()
    }
    # One that a single process began and two workers end.
    launch(make("resumed", *BEGUN, technique="mae"))
    jobs["resumed"] = make("resumed", *TWO, technique="mae")
    # With ZeRO the second resumes from the checkpoint of the first.
    jobs["begun"] = make("split", *SPLIT, *BEGUN, technique="mae")
    jobs["split"] = make("split", *SPLIT, technique="mae")
    jobs["split finetune"] = make("split-finetune", *SPLIT, *FINETUNE)
    # The last fails, of a checkpoint that is there.
    jobs["failed"] = make("resumed", *TWO, "encoder.mlp=48", technique="mae")
    with pytest.raises(BenchmdError, match=r"checkpoint .*step_000000005 .* another architecture"):
        launch_all(*jobs.values())
    return jobs


def test_two_workers_compute_what_one_does(alone, by_two):
    for name in CASES:
        require_same(by_two[name], alone[name])
    resumed = by_two["resumed"]
    require_same(resumed, alone["mae"])
    assert [line["done"] for line in read_metrics(resumed.folder)] == [1, 2, 3, 4, 5]
    score = "validation_auroc"
    assert losses(by_two["finetune"], score) == pytest.approx(
        losses(alone["finetune"], score), abs=1e-3
    )
    checkpoint = json.loads((latest_checkpoint(resumed.folder) / "checkpoint.json").read_text())
    assert checkpoint["workers"] == 2
    left = {path.name for path in by_two["mae"].folder.iterdir()}
    assert left == {
        "checkpoints", "hardware.jsonl", "metrics.jsonl", "model.json", "model.safetensors"
    }  # fmt: skip


def test_each_session_records_the_hardware_of_its_workers(alone, by_two):
    def recorded(job):
        lines = (job.folder / SESSIONS).read_text().splitlines()
        return [(line["from"], len(line["workers"])) for line in map(json.loads, lines)]

    here = hardware(torch.device("cpu"))
    assert trained_by(alone["mae"].folder) == (here,)
    assert recorded(alone["mae"]) == recorded(by_two["mae"]) == [(0, 1)]  # two alike count once
    (worker,) = trained_by(by_two["mae"].folder)
    assert (worker.model, worker.instructions) == (here.model, here.instructions)
    resumed = recorded(by_two["resumed"])[:2]
    assert resumed == [(0, 1), (3, 1)]


def test_a_run_that_is_resumed_on_other_hardware_records_both(make_job, monkeypatch):
    here = hardware(torch.device("cpu"))
    elsewhere = replace(here, model="Another processor")
    launch(make_job("run", *BEGUN, technique="mae"))
    monkeypatch.setattr(ray_train, "hardware", lambda device: elsewhere)
    job = make_job("run", technique="mae")
    launch(job)
    assert trained_by(job.folder) == (here, elsewhere)
    linear = make_job("linear", "transfer.mode=linear")
    launch(linear)
    monkeypatch.undo()
    launch(linear)  # which begins anew: nothing of the first session is left
    assert trained_by(linear.folder) == (here,)


def test_one_worker_of_ray_train_computes_what_the_process_does(make_job, launch_all, alone):
    deepspeed = ("execution.engine=deepspeed",)
    made = {
        "mae": make_job("mae", technique="mae"),
        "deepspeed": make_job("deepspeed", *deepspeed, technique="mae"),
        "finetune": make_job("finetune", *FINETUNE),
    }
    here = alone | {"deepspeed": make_job("here", *deepspeed, technique="mae")}
    launch(here["deepspeed"])
    launch_all(*made.values())
    for name, job in made.items():
        require_same(job, here[name])
    assert losses(here["mae"]) == pytest.approx(losses(here["deepspeed"]), abs=1e-6)


def test_two_workers_with_zero_stage_2_compute_what_one_does(make_job_in, alone, by_two):
    both = by_two["split"]
    require_same(both, alone["mae"])
    require_same(by_two["split finetune"], alone["finetune"])
    whole = load_file(both.folder / MODEL)
    (both.folder / MODEL).unlink()
    # One worker without ZeRO takes their checkpoint.
    launch(make_job_in(both.folder.parent, "split", technique="mae"))
    assert all(torch.equal(whole[name], x) for name, x in load_file(both.folder / MODEL).items())


def test_what_a_worker_failed_of_is_what_the_user_reads(by_two):
    folder = by_two["failed"].folder  # its message is looked at where it is raised
    assert "another architecture" in json.loads((folder / ERROR).read_text())["message"]
    assert not (folder / "ray_train").exists()


def test_more_workers_than_the_cluster_has_cpus_are_refused_before_anything_starts(
    make_job, monkeypatch
):
    monkeypatch.setattr(module, "_launch_on_ray", pytest.fail)
    job = make_job("run", "execution.workers=8", technique="mae")
    with pytest.raises(NoRoom, match=r"needs 9 CPUs at once and the cluster has \d+\. Use few"):
        launch(job)
    wide = make_job("run", "execution.workers=2", "execution.cpus_per_worker=8", technique="mae")
    with pytest.raises(BenchmdError, match=r"needs 17 CPUs at once"):
        launch(wide)
    assert not list(job.folder.iterdir())


def test_fewer_workers_that_share_the_batch_may_go_on_where_that_is_allowed(make_job):
    def numbers(*assignments, technique="mae"):
        return module._possible(make_job("run", *assignments, technique=technique))

    eight = ("execution.workers=8", "pretrain.batch_size=24")
    assert numbers(*eight) == [8]
    assert numbers(*eight, "execution.least_workers=2") == [8, 6, 4, 3, 2]
    twice = ("execution.least_workers=1", "execution.accumulation=2")
    assert numbers(*eight, *twice) == [6, 4, 3, 2, 1]
    three = ("execution.workers=3", "execution.least_workers=1", "transfer.mode=finetune")
    assert numbers(*three, technique=None) == [3, 2, 1]  # shares of a batch are padded
    with pytest.raises(BenchmdError, match=r"least_workers is 3, expected from 0 to execution\.wo"):
        make_job("run", "execution.workers=2", "execution.least_workers=3")


def test_where_there_is_no_room_it_says_so(make_job):
    wide = ("execution.workers=2", "execution.cpus_per_worker=64", "execution.wait_seconds=0")
    job = make_job("run", *wide, technique="mae")
    with pytest.raises(NoRoom, match=r"no room for 2 workers of 64 CPUs each .*least_workers=1"):
        module._room(job, 0)


def test_what_workers_were_lost_of_is_told_in_a_line():
    def failed(**failures):
        error = ValueError("Training failed due to worker errors:\n…")
        error.worker_failures = {int(rank[1:]): failure for rank, failure in failures.items()}
        return ray_train.end_of(error, 3)

    class ActorDiedError(Exception):
        """As Ray's, by name."""

    died = ActorDiedError("The actor died.\n\tclass_name: W\n\tpid: 71\n\tip: 10.0.0.3\nand …")
    broken = RuntimeError("[tcp/pair.cc:534] Connection closed by peer\nmore")
    waited = RuntimeError("Timed out waiting 10000ms for recv operation to complete")
    assert failed(r0=broken, r2=died) == ray_train.JobEnd(
        "lost", "worker 2 of 3 is gone (pid 71, ip 10.0.0.3)"
    )
    assert failed(r1=broken).reason == "worker 1 of 3 lost the connection to another"
    assert failed(r0=ValueError("odd\n…")).reason == "worker 0 of 3 says 'odd'"
    assert failed(r0=waited, r1=broken).event == "stalled"
    assert failed(r0=waited, r1=died).event == "lost"  # the others waited for what is gone
    assert ray_train.end_of(ValueError("no controller\n…"), 2).reason == "no controller"


def test_more_workers_than_gpus_are_refused(make_job):
    job = make_job("run", "execution.workers=2", "execution.device=cuda", technique="mae")
    with pytest.raises(NoRoom, match=r"2 workers need as many GPUs and the cluster has 0"):
        launch(job)


def test_a_job_that_cannot_work_is_refused_before_anything_starts(make_job, monkeypatch):
    monkeypatch.setattr(module, "_launch_on_ray", pytest.fail)
    with pytest.raises(BenchmdError, match=r"batch_size is 7 and execution\.workers 2"):
        launch(make_job("a", "execution.workers=2", "pretrain.batch_size=7", technique="mae"))
    with pytest.raises(BenchmdError, match=r"mode=linear encodes each .* runs on one worker"):
        launch(make_job("b", "execution.workers=2", "transfer.mode=linear"))


def test_a_streaming_run_comes_again_as_it_was(make_job):
    job = make_job("run", "execution.feed=streaming", "pretrain.steps=6", technique="mae")
    launch(job)
    again = make_job("again", "execution.feed=streaming", "pretrain.steps=6", technique="mae")
    launch(again)
    assert losses(job) == losses(again)
    assert len(losses(job)) == 6
