"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.settings.definition import ExecutionSettings, OptimiserSettings
from benchmd_ray.training import checkpoints
from benchmd_ray.training.checkpoints import load_checkpoint, saving
from benchmd_ray.training.engine import TorchEngine


def engine():
    torch.manual_seed(0)
    settings = OptimiserSettings(lr=1e-2)
    return TorchEngine(nn.Linear(4, 3), settings, ExecutionSettings(), Worker())


def trained(one, count=3):
    for _ in range(count):
        one.backward(one(torch.ones(2, 4)).square().mean())
        one.update()
    return one.weights()


def test_what_is_written_later_is_the_state_at_the_time_of_saving(tmp_path, monkeypatch):
    go_on, write = threading.Event(), checkpoints.save_checkpoint
    monkeypatch.setattr(
        checkpoints, "save_checkpoint", lambda *given: (go_on.wait(10), write(*given))
    )
    one, other = engine(), engine()
    expected = trained(one)
    with saving(tmp_path, one, later=True) as save:
        save(3, {"losses": [0.5]})
        further = trained(one)
        go_on.set()
    held = load_checkpoint(tmp_path, other)
    assert (held.step, held.position) == (3, {"losses": [0.5]})
    for name, value in other.weights().items():
        assert torch.equal(value, expected[name])
        assert not torch.equal(value, further[name])
    for name, value in trained(other).items():  # AdamW's moments are of that time, too
        assert torch.equal(value, further[name])


def test_the_one_before_is_written_first_and_the_last_at_the_end(tmp_path):
    one = engine()
    with saving(tmp_path, one, later=True) as save:
        for step in range(1, 6):
            trained(one, 1)
            save(step, {})
    assert [path.name for path in checkpoints.checkpoints(tmp_path)] == [
        "step_000000005",
        "step_000000004",
    ]


@pytest.mark.parametrize("inside", [False, True])
def test_what_cannot_be_written_is_an_error_and_hides_no_other(tmp_path, inside, monkeypatch):
    def full(*_):
        raise BenchmdError("the disk is full")

    monkeypatch.setattr(checkpoints, "save_checkpoint", full)

    def session():
        with saving(tmp_path, engine(), later=True) as save:
            save(1, {})
            if inside:
                raise BenchmdError("of the training")

    with pytest.raises(BenchmdError, match="of the training" if inside else "the disk is full"):
        session()
