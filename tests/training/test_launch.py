import json

import pytest
import torch
from safetensors.torch import load_file

from benchmd_ray.errors import BenchmdError, NoRoom
from benchmd_ray.ssl import METHODS
from benchmd_ray.training import launch as module
from benchmd_ray.training import restarts
from benchmd_ray.training.checkpoints import MODEL, latest_checkpoint
from benchmd_ray.training.launch import ERROR, launch
from benchmd_ray.training.pretrain import PretrainJob
from benchmd_ray.training.reporter import read_metrics
from benchmd_ray.training.transfer import TransferJob

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

PLAIN = ("execution.max_failures=0", "execution.checkpoint_every=3")


@pytest.fixture
def make_job(source, make_settings, tmp_path):
    """A job in a folder of its own."""

    def make(name, *assignments, technique=None):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        settings = make_settings(*PLAIN, *assignments)
        if technique:
            return PretrainJob(settings, technique, source.path, folder)
        return TransferJob(settings, source.path, folder)

    return make


@pytest.fixture
def launch_all(cache, monkeypatch):
    """Runs several jobs one after the other in one Ray Train job, which takes long to start."""

    def start(*jobs):
        cache_of_workers = str(cache)

        def several(config):  # sent by value, so it names nothing of this file
            import os

            from benchmd_ray.training.launch import worker_loop

            os.environ["BENCHMD_CACHE"] = cache_of_workers
            for job in jobs:
                worker_loop({"job": job})

        with monkeypatch.context() as patch:
            patch.setattr(module, "worker_loop", several)
            if jobs[0].settings.execution.workers > 1:
                launch(jobs[0])
            else:  # else it would run in this process
                module._launch_on_ray(jobs[0])

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


def test_two_workers_compute_what_one_does(make_job, launch_all):
    alone = {
        name: make_job(f"one-{name}", *assignments, technique=technique)
        for name, (assignments, technique) in CASES.items()
    }
    for job in alone.values():
        launch(job)
    both = {
        name: make_job(f"two-{name}", *assignments, "execution.workers=2", technique=technique)
        for name, (assignments, technique) in CASES.items()
    }
    # And one that a single process began and two workers end.
    begun = make_job("begun", "pretrain.steps=3", technique="mae")
    launch(begun)
    resumed = make_job("begun", "execution.workers=2", technique="mae")
    launch_all(*both.values(), resumed)
    for name, job in both.items():
        require_same(job, alone[name])
    require_same(resumed, alone["mae"])
    assert [line["done"] for line in read_metrics(resumed.folder)] == [1, 2, 3, 4, 5]
    score = "validation_auroc"
    assert losses(both["finetune"], score) == pytest.approx(
        losses(alone["finetune"], score), abs=1e-3
    )
    checkpoint = json.loads((latest_checkpoint(resumed.folder) / "checkpoint.json").read_text())
    assert checkpoint["workers"] == 2
    left = {path.name for path in both["mae"].folder.iterdir()}
    assert left == {"checkpoints", "metrics.jsonl", "model.json", "model.safetensors"}


def test_one_worker_of_ray_train_computes_what_the_process_does(make_job, launch_all):
    settings = {
        "mae": ((), "mae"),
        "deepspeed": (("execution.engine=deepspeed",), "mae"),
        "finetune": (FINETUNE, None),
    }
    made = {
        place: {
            name: make_job(f"{place}-{name}", *assignments, technique=technique)
            for name, (assignments, technique) in settings.items()
        }
        for place in ("here", "ray")
    }
    for job in made["here"].values():
        launch(job)
    launch_all(*made["ray"].values())
    for name, job in made["ray"].items():
        require_same(job, made["here"][name])
    assert losses(made["here"]["mae"]) == pytest.approx(losses(made["here"]["deepspeed"]), abs=1e-6)


@pytest.mark.slow
def test_two_workers_with_zero_stage_2_compute_what_one_does(make_job, launch_all):
    alone = make_job("one", technique="mae")
    launch(alone)
    split = ("execution.workers=2", "execution.zero_stage=2")
    begun = make_job("two", *split, "pretrain.steps=3", technique="mae")
    both = make_job("two", *split, technique="mae")
    fine, fine_alone = make_job("fine", *split, *FINETUNE), make_job("fine-one", *FINETUNE)
    launch(fine_alone)
    launch_all(begun, both, fine)  # the second goes on from the checkpoint of the first
    require_same(both, alone)
    require_same(fine, fine_alone)
    whole = load_file(both.folder / MODEL)
    (both.folder / MODEL).unlink()
    launch(make_job("two", technique="mae"))  # one worker without ZeRO takes their checkpoint
    assert all(torch.equal(whole[name], x) for name, x in load_file(both.folder / MODEL).items())


def test_what_a_worker_failed_of_is_what_the_user_reads(make_job, launch_all):
    launch(make_job("run", technique="mae"))
    other = make_job("run", "execution.workers=2", "encoder.mlp=48", technique="mae")
    with pytest.raises(BenchmdError, match=r"checkpoint .*step_000000005 .* another architecture"):
        launch_all(other)
    assert "another architecture" in json.loads((other.folder / ERROR).read_text())["message"]
    assert not (other.folder / "ray_train").exists()


def test_more_workers_than_the_cluster_has_cpus_are_refused_before_anything_starts(
    make_job, monkeypatch
):
    monkeypatch.setattr(module, "_launch_on_ray", pytest.fail)
    job = make_job("run", "execution.workers=8", technique="mae")
    with pytest.raises(NoRoom, match=r"needs 9 CPUs at once and the cluster has \d+\. Take few"):
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
        return restarts.lost(error, 3)

    class ActorDiedError(Exception):
        """As Ray's, by name."""

    died = ActorDiedError("The actor died.\n\tclass_name: W\n\tpid: 71\n\tip: 10.0.0.3\nand …")
    broken = RuntimeError("[tcp/pair.cc:534] Connection closed by peer\nmore")
    waited = RuntimeError("Timed out waiting 10000ms for recv operation to complete")
    assert failed(r0=broken, r2=died) == restarts.Lost(
        "lost", "worker 2 of 3 is gone (pid 71, ip 10.0.0.3)"
    )
    assert failed(r1=broken).reason == "worker 1 of 3 lost the connection to another"
    assert failed(r0=ValueError("odd\n…")).reason == "worker 0 of 3 says 'odd'"
    assert failed(r0=waited, r1=broken).event == "stalled"
    assert failed(r0=waited, r1=died).event == "lost"  # the others waited for what is gone
    assert restarts.lost(ValueError("no controller\n…"), 2).reason == "no controller"


def test_more_workers_than_gpus_are_refused(make_job):
    job = make_job("run", "execution.workers=2", "execution.device=cuda", technique="mae")
    with pytest.raises(NoRoom, match=r"2 workers need as many GPUs and the cluster has 0"):
        launch(job)


def test_a_job_that_cannot_work_is_refused_before_anything_starts(make_job, monkeypatch):
    monkeypatch.setattr(module, "_launch_on_ray", pytest.fail)
    with pytest.raises(BenchmdError, match=r"batch_size is 7 and execution\.workers 2"):
        launch(make_job("a", "execution.workers=2", "pretrain.batch_size=7", technique="mae"))
    with pytest.raises(BenchmdError, match=r"linear evaluation .* runs on one worker"):
        launch(make_job("b", "execution.workers=2", "transfer.mode=linear"))


def test_a_streaming_run_comes_again_as_it_was(make_job):
    job = make_job("run", "execution.feed=streaming", "pretrain.steps=6", technique="mae")
    launch(job)
    again = make_job("again", "execution.feed=streaming", "pretrain.steps=6", technique="mae")
    launch(again)
    assert losses(job) == losses(again)
    assert len(losses(job)) == 6
