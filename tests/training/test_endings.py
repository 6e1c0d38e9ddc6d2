"""How a Ray Train job and its workers end, without a cluster."""

import contextlib
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray.train

from benchmd_ray.errors import BenchmdError, BucketError, Stopped, Transient
from benchmd_ray.integrity import read_hashed_json
from benchmd_ray.settings import load_settings
from benchmd_ray.training import launch as module


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
    monkeypatch.setitem(module.CORES, SimpleNamespace, fail)
    with pytest.raises(type(error), match=str(error)):
        module.worker_loop({"job": job})
    told = job.folder / module.ERROR
    assert told.is_file() == (type(error) is BenchmdError)
    if told.is_file():
        assert read_hashed_json(told, "") == {"message": "wrong"}


@pytest.mark.parametrize("error", [ray.train.TrainingFailedError("no workers"), ValueError("died")])
def test_a_notice_is_what_a_job_ended_of_whatever_died_of_it(job, error, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr(module, "_trainer", lambda *_: SimpleNamespace(fit=fail))
    monkeypatch.setattr(module, "following", lambda _: contextlib.nullcontext())
    if isinstance(error, ValueError):
        with pytest.raises(Transient, match="failed: died"):
            module._attempt(job, 0)
    else:
        assert module._attempt(job, 0).event == "lost"
    monkeypatch.setattr(module, "noted", lambda: signal.SIGTERM)
    with pytest.raises(Stopped, match=str(int(signal.SIGTERM))):
        module._attempt(job, 0)
    assert not list(job.folder.iterdir())


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, "60"), (600.0, "600")])
def test_workers_wait_for_their_room_as_long_as_the_job_does(job, seconds, expected, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr("ray.train.torch.TorchTrainer", lambda *_, **__: None)
    execution = replace(job.settings.execution, wait_seconds=seconds)
    job.settings = replace(job.settings, execution=execution)
    module._trainer(job, 0, job.folder / "ray_train")
    assert os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] == expected
