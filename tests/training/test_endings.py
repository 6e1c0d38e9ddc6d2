"""How a Ray Train job and its workers end, without a cluster."""

import contextlib
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray.train

from benchmd_ray.errors import BenchmdError, BucketError, Stopped, Transient
from benchmd_ray.files.integrity import read_hashed_json
from benchmd_ray.settings.definition import load_settings
from benchmd_ray.training import launch, ray_train


@pytest.fixture
def job(tmp_path):
    return SimpleNamespace(folder=tmp_path, settings=load_settings())


@pytest.mark.parametrize("error", [BenchmdError("wrong"), BucketError("storage is away")])
def test_only_what_another_try_cannot_mend_is_written_for_the_user(job, error, monkeypatch):
    def fail(*_):
        raise error

    context = SimpleNamespace(
        get_local_rank=lambda: 1, get_world_rank=lambda: 1, get_world_size=lambda: 2
    )
    execution = replace(job.settings.execution, device="cpu")
    job.settings = replace(job.settings, execution=execution)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("ray.train.get_context", lambda: context)
    monkeypatch.setitem(ray_train.CORES, SimpleNamespace, fail)
    with pytest.raises(type(error), match=str(error)):
        ray_train.worker_loop({"job": job})
    told = job.folder / ray_train.ERROR
    assert told.is_file() == (type(error) is BenchmdError)
    if told.is_file():
        assert read_hashed_json(told, "") == {"message": "wrong"}


@pytest.mark.parametrize("error", [ray.train.TrainingFailedError("no workers"), ValueError("died")])
def test_a_notice_is_what_a_job_ended_of_whatever_died_of_it(job, error, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr(launch, "trainer_of", lambda *_: SimpleNamespace(fit=fail))
    monkeypatch.setattr(launch, "following", lambda _: contextlib.nullcontext())
    if isinstance(error, ValueError):
        with pytest.raises(Transient, match="failed: died"):
            launch._attempt(job, 0)
    else:
        assert launch._attempt(job, 0).event == "lost"
    monkeypatch.setattr(launch, "noted", lambda: signal.SIGTERM)
    with pytest.raises(Stopped, match=str(int(signal.SIGTERM))):
        launch._attempt(job, 0)
    assert not list(job.folder.iterdir())


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, "60"), (600.0, "600")])
def test_workers_wait_for_their_room_as_long_as_the_job_does(job, seconds, expected, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr("ray.train.torch.TorchTrainer", lambda *_, **__: None)
    execution = replace(job.settings.execution, wait_seconds=seconds)
    job.settings = replace(job.settings, execution=execution)
    ray_train.trainer_of(job, 0, job.folder / "ray_train")
    assert os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] == expected
