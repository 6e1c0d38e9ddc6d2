import subprocess
import sys

import pytest

from benchmd_ray.errors import BenchmdError
from benchmd_ray.results.store import open_run, read_run, runs, working


def test_equal_determinants_give_the_same_folder_and_others_another(tmp_path):
    first = open_run(tmp_path, "transfer-ecg", {"determinants": {"a": 1, "b": 2}})
    again = open_run(tmp_path, "transfer-ecg", {"determinants": {"b": 2, "a": 1}})
    other = open_run(tmp_path, "transfer-ecg", {"determinants": {"a": 1, "b": 3}})
    assert first.folder == again.folder != other.folder


def test_a_run_that_is_refused_leaves_no_folder(tmp_path):
    def refuse():
        raise BenchmdError("no")

    store, about = tmp_path / "store", {"determinants": {"a": 1}}
    with pytest.raises(BenchmdError, match="no"):
        open_run(store, "r", about, refuse)
    assert not store.exists()
    there = open_run(store, "r", about, lambda: None)
    assert open_run(store, "r", about, refuse).folder == there.folder  # checked when it was made


def test_a_run_is_finished_only_when_its_work_ended_well(tmp_path):
    run = open_run(tmp_path, "r", {"determinants": {}})
    with pytest.raises(RuntimeError, match="work"), working(run):
        raise RuntimeError("the work failed")
    assert not run.finished
    with working(run):
        assert not run.finished
    assert run.finished


def test_two_processes_do_not_work_on_one_run(tmp_path):
    run = open_run(tmp_path, "r", {"determinants": {}})
    code = (
        "import sys, pathlib\n"
        "from benchmd_ray.results.store import read_run, working\n"
        "with working(read_run(pathlib.Path(sys.argv[1]))):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(run.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout.readline() == "held\n"
    with pytest.raises(BenchmdError, match="another process is working on the run"), working(run):
        pass
    other.kill()  # a lock of a process that is killed is freed
    other.wait()
    with working(run):
        pass


def test_half_written_files_of_a_killed_process_are_removed(tmp_path):
    run = open_run(tmp_path, "r", {"determinants": {}})
    (run.folder / ".partial-1-model.safetensors").write_text("half")
    with working(run):
        pass
    assert not list(run.folder.glob(".partial-*"))


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(BenchmdError, match=r"is no run \(no run.json\)"):
        read_run(tmp_path)
    with pytest.raises(BenchmdError, match="holds no run"):
        runs([tmp_path])


def test_a_store_and_its_runs_count_once(tmp_path):
    run = open_run(tmp_path, "r", {"determinants": {}})
    assert [r.folder for r in runs([tmp_path, run.folder])] == [run.folder]
