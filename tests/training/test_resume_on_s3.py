"""A run whose machine is killed resumes elsewhere: nothing but the bucket is shared."""

import os
import signal
import subprocess
import sys

import pytest
from waiting import until

from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.history import read_history
from benchmd_ray.runs.mirror import newest_checkpoint
from benchmd_ray.storage.bucket import open_bucket
from benchmd_ray.training.reporter import read_metrics

ADDRESS = "s3://benchmd-test/runs"
COMMAND = (
    "import sys\n"
    "from benchmd_ray.runs import publication\n"
    "from benchmd_ray.storage import lease as leases\n"
    "publication.PUBLISH_SECONDS = 0.2\n"
    "leases.LEASE_SECONDS = float(sys.argv.pop(1))\n"
    "leases.MARGIN_SECONDS = leases.LEASE_SECONDS - 135\n"
    "from benchmd_ray.cli import main\n"
    "main()\n"
)
ARGUMENTS = (
    "pretrain",
    "--technique=mae",
    "--set=encoder=tiny",
    "--set=pretrain.steps=400",
    "--set=pretrain.batch_size=4",
    "--set=execution.checkpoint_every=20",
    "--set=execution.log_every=5",
)


@pytest.fixture
def bucket(s3):
    return open_bucket(ADDRESS)


@pytest.fixture
def start(source, tmp_path):
    """Starts the command on a machine, which is a cache folder."""

    def on(machine, store=ADDRESS, lease=600):
        command = [sys.executable, "-c", COMMAND, str(lease), *ARGUMENTS]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["BENCHMD_CACHE"] = str(tmp_path / machine)
        return subprocess.Popen(
            [*command, "--catalog", str(source.path), "--store", str(store)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return on


def lines(folder):
    """What was reported, without the speed."""
    return [{k: v for k, v in line.items() if k != "per_second"} for line in read_metrics(folder)]


def names(bucket):
    return {key.partition("/")[2] for key in bucket.objects()}


@pytest.mark.slow
def test_a_run_killed_on_one_machine_goes_on_bit_equal_on_another(bucket, start, tmp_path):
    whole = start("whole", tmp_path / "runs")
    assert whole.wait(timeout=300) == 0, whole.stderr.read()
    first = start("a")
    until("checkpoint", lambda: newest_checkpoint(names(bucket)), 300)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    assert newest_checkpoint(names(bucket))
    assert "model.safetensors" not in names(bucket)

    early = start("b")  # the lease of the killed one is not over
    _, errors = early.communicate(timeout=300)
    assert early.returncode == 1
    assert "another machine is working on the run s3://benchmd-test/runs/" in errors

    second = start("b", lease=0)  # now it is
    out, errors = second.communicate(timeout=300)
    assert second.returncode == 0, errors
    (expected,) = (tmp_path / "runs").glob("*/done.json")
    name = expected.parent.name
    assert out.strip().splitlines()[-1] == f"{ADDRESS}/{name}"
    (mirror,) = (tmp_path / "b" / "stores").iterdir()
    assert sha256(mirror / name / "model.safetensors") == sha256(
        expected.parent / "model.safetensors"
    )
    assert lines(mirror / name) == lines(expected.parent)
    history = read_history(mirror / name)
    assert [line["event"] for line in history] == ["started", "killed", "started", "finished"]
    assert history[0]["from"] == 0
    assert history[2]["from"] > 0
    third = start("a")  # it learns that the run is done
    out, errors = third.communicate(timeout=300)
    assert third.returncode == 0, errors
    assert out.strip().splitlines()[-1] == f"{ADDRESS}/{name}"
    (mirror,) = (tmp_path / "a" / "stores").iterdir()
    assert lines(mirror / name) == lines(expected.parent)
    assert not (mirror / name / "checkpoints").exists()
