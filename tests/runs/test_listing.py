"""What a list of runs says of each, against what was done to it."""

import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from stores import make_transfer

from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files import atomic as files
from benchmd_ray.files.atomic import locked
from benchmd_ray.runs.listing import counts, listed
from benchmd_ray.runs.store import read_run, working

KILLED = (
    "import os, sys, signal\n"
    "from pathlib import Path\n"
    "from benchmd_ray.runs.store import read_run, working\n"
    "with working(read_run(Path(sys.argv[1]))):\n"
    "    os.kill(os.getpid(), signal.SIGKILL)\n"
)


@pytest.fixture
def run(tmp_path):
    return make_transfer(tmp_path / "runs", finished=False)


def test_a_run_that_nobody_began_waits(run):
    (run.folder / "metrics.jsonl").unlink()
    found = listed(run)
    assert (found.state, found.at, found.seconds, found.reason) == ("waiting", 0, 0.0, "")


def test_a_failed_run_tells_its_reason_and_how_far_it_came(run):
    with pytest.raises(BenchmdError), working(run):
        raise BenchmdError("the loss became NaN")
    found = listed(run)
    assert (found.state, found.at, found.reason) == ("failed", 10, "the loss became NaN")
    assert found.line.split()[:3] == ["failed", "10", "epochs"]
    assert f"  {run.folder.name}  seed {run.settings.seed}  the loss" in found.line


def test_a_run_that_a_signal_ended_is_interrupted(run):
    with pytest.raises(KeyboardInterrupt), working(run):
        raise KeyboardInterrupt
    assert listed(run).state == "interrupted"


def test_a_killed_run_is_interrupted_and_one_at_work_is_working(run):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(run.folder)], env={**os.environ})
    assert killed.returncode == -signal.SIGKILL
    assert listed(run).state == "interrupted"
    with locked(run.folder / ".lock", "the run"):
        assert listed(run).state == "working"
    assert listed(run).state == "interrupted"


def test_a_list_is_no_work_on_a_run(run, monkeypatch):
    (run.folder / ".lock").touch()
    held = locked(run.folder / ".lock", "the run", shared=True)  # as another list does
    held.__enter__()
    assert listed(run).state != "working"
    monkeypatch.setattr(files.time, "sleep", lambda seconds: held.__exit__(None, None, None))
    with working(run):  # which begins while that list looks
        pass


def test_a_finished_run_has_the_seconds_of_its_work(run):
    with working(run):
        (run.folder / "model.safetensors").write_bytes(b"")
    found = listed(read_run(run.folder))
    assert (found.state, found.seconds) == ("done", run.done["seconds"])


def test_the_command_lists_runs_and_counts_them(tmp_path):
    store = tmp_path / "runs"
    names = [make_transfer(store, seed=seed, finished=seed > 0).folder.name for seed in range(3)]
    result = CliRunner().invoke(main, ["list", str(store)])
    *lines, last = result.output.splitlines()
    shown = [f"{name}  seed {seed}" for seed, name in enumerate(names)]
    assert sorted(line[line.index("transfer-") :] for line in lines) == sorted(shown)
    assert last == "3 runs: 2 done, 1 waiting"
    chosen = CliRunner().invoke(main, ["list", str(store), "--state", "waiting"])
    assert [line.endswith(shown[0]) for line in chosen.output.splitlines()[:-1]] == [True]
    assert counts([]) == "0 runs"
