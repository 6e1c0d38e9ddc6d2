"""Checkpoints while one takes the place of another."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import Damaged
from benchmd_ray.training import checkpoints
from benchmd_ray.training.checkpoints import (
    CHECKPOINT,
    checkpoint_step,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from benchmd_ray.training.weights import load_weights, write_weights

STATE = "state"


class Engine:
    """Its state is a text."""

    worker = Worker()

    def __init__(self, state):
        self.state = state

    def save(self, folder):
        (folder / STATE).write_text(self.state)

    def load(self, folder):
        self.state = (folder / STATE).read_text()


def kept(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_at_every_moment_of_a_save_a_whole_checkpoint_is_there(tmp_path, monkeypatch):
    seen = []

    def look():
        seen.append(latest_checkpoint(tmp_path))
        assert sorted(path.name for path in seen[-1].iterdir()) == [CHECKPOINT, STATE]

    def remove(path):  # file by file, as a process may end amid it
        for file in sorted(path.glob("*"), reverse=True):
            file.unlink()
            look()
        real.remove(path)

    def rename(path, target):
        found = real.rename(path, target)
        look()
        return found

    real = SimpleNamespace(remove=checkpoints.remove, rename=Path.rename)
    save_checkpoint(tmp_path, 1, Engine("one"), {"at": 1})
    monkeypatch.setattr(checkpoints, "remove", remove)
    monkeypatch.setattr(Path, "rename", rename)
    save_checkpoint(tmp_path, 3, Engine("three"), {"at": 3})
    save_checkpoint(tmp_path, 3, Engine("again"), {"at": 3})  # amid the epoch that begins there
    assert {path.name for path in seen} > {"step_000000003"}
    assert kept(tmp_path) == ["step_000000001", "step_000000003"]
    assert (latest_checkpoint(tmp_path) / STATE).read_text() == "again"
    save_checkpoint(tmp_path, 5, Engine("five"), {"at": 5})
    assert kept(tmp_path) == ["step_000000003", "step_000000005"]


def test_one_whose_files_are_open_on_nfs_is_removed_with_the_next(tmp_path, monkeypatch):
    """There the files of a removed folder stay in it under other names until they are closed."""

    def remove(path):
        if path.is_dir():
            raise OSError(errno.ENOTEMPTY, "Directory not empty")

    for step in (1, 2):
        save_checkpoint(tmp_path, step, Engine(""), {"at": step})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "remove", remove)
        save_checkpoint(tmp_path, 3, Engine("three"), {"at": 3})
    assert len(kept(tmp_path)) == 3
    assert (latest_checkpoint(tmp_path) / STATE).read_text() == "three"
    save_checkpoint(tmp_path, 4, Engine(""), {"at": 4})
    assert kept(tmp_path) == ["step_000000003", "step_000000004"]


def test_one_that_was_moved_aside_is_taken_where_no_other_has_its_step(tmp_path):
    save_checkpoint(tmp_path, 2, Engine("two"), {"at": 2})
    save_checkpoint(tmp_path, 3, Engine("three"), {"at": 3})
    checkpoints._aside(latest_checkpoint(tmp_path))
    engine = Engine("")
    assert checkpoint_step(tmp_path) == 3
    loaded = load_checkpoint(tmp_path, engine)
    assert (loaded.step, loaded.position, engine.state) == (3, {"at": 3}, "three")
    save_checkpoint(tmp_path, 3, Engine("again"), {"at": 3})
    assert kept(tmp_path) == ["step_000000002", "step_000000003"]


@pytest.mark.parametrize("file", [STATE, CHECKPOINT])
@pytest.mark.parametrize("damage", ["flipped", "cut off", "missing"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog, file, damage):
    for step in (2, 4):
        save_checkpoint(tmp_path, step, Engine(f"state {step}"), {"at": step})
    for step, held in ((4, 2), (2, None)):
        path = tmp_path / "checkpoints" / f"step_{step:09d}" / file
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data[:-3] if damage == "cut off" else data)
        if damage == "missing":
            path.unlink()
        engine, loaded = Engine(""), None
        loaded = load_checkpoint(tmp_path, engine)
        assert (loaded and loaded.step, engine.state) == (held, f"state {held}" if held else "")
    if not (file == CHECKPOINT and damage == "missing"):  # that is not a whole checkpoint
        assert "training resumes from the checkpoint before it" in caplog.text
        assert "training resumes from the start" in caplog.text


def test_a_checkpoint_under_the_name_of_another_step_is_damaged(tmp_path, caplog):
    save_checkpoint(tmp_path, 2, Engine("two"), {"at": 2})
    folder = latest_checkpoint(tmp_path)
    folder.rename(folder.with_name("step_000000009"))
    assert load_checkpoint(tmp_path, Engine("")) is None
    assert "it is of step 2" in caplog.text


def test_damaged_and_infinite_weights_are_refused(tmp_path):
    module = torch.nn.Linear(3, 2)
    path = tmp_path / "model.safetensors"
    stated = write_weights(path, module.state_dict())
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(Damaged, match=r"its SHA-256 is not .*rerun the command"):
            load_weights(module, path, stated)
    path.write_bytes(whole)
    load_weights(module, path, stated)
    stated = write_weights(path, {**module.state_dict(), "bias": torch.tensor([1.0, torch.inf])})
    with pytest.raises(BenchmdError, match="has NaN or infinite values in bias"):
        load_weights(module, path, stated)
