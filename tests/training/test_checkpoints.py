"""Checkpoints while one takes the place of another."""

from pathlib import Path
from types import SimpleNamespace

from benchmd_ray.data.batches import Worker
from benchmd_ray.training import checkpoints
from benchmd_ray.training.checkpoints import (
    CHECKPOINT,
    checkpoint_step,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

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
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert names == ["step_000000003"]
    assert (latest_checkpoint(tmp_path) / STATE).read_text() == "again"


def test_one_that_was_moved_aside_is_taken_where_there_is_no_other(tmp_path):
    save_checkpoint(tmp_path, 3, Engine("three"), {"at": 3})
    checkpoints._aside(latest_checkpoint(tmp_path))
    engine = Engine("")
    assert checkpoint_step(tmp_path) == 3
    assert load_checkpoint(tmp_path, engine) == {"step": 3, "at": 3}
    assert engine.state == "three"
    save_checkpoint(tmp_path, 3, Engine("again"), {"at": 3})
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert names == ["step_000000003"]
