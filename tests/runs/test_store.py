import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from stored import runs
from stores import described

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.history import HISTORY, append, read_history, seconds_worked
from benchmd_ray.runs.store import (
    Busy,
    open_run,
    read_run,
    read_stores,
    require_weights,
    scoring,
    working,
)


def test_equal_determinants_give_the_same_folder_and_others_another(tmp_path):
    first = open_run(tmp_path, "transfer-ecg", described(a=1, b=2))
    again = open_run(tmp_path, "transfer-ecg", described(b=2, a=1))
    other = open_run(tmp_path, "transfer-ecg", described(a=1, b=3))
    assert first.folder == again.folder != other.folder


def test_a_run_that_is_refused_leaves_no_folder(tmp_path):
    def refuse():
        raise BenchmdError("no")

    store, about = tmp_path / "store", described(a=1)
    with pytest.raises(BenchmdError, match="no"):
        open_run(store, "r", about, refuse)
    assert not store.exists()
    there = open_run(store, "r", about, lambda: None)
    assert open_run(store, "r", about, refuse).folder == there.folder  # checked when it was made


def test_a_run_is_finished_only_when_its_work_ended_well(tmp_path):
    run = open_run(tmp_path, "r", described())
    with pytest.raises(RuntimeError, match="work"), working(run):
        raise RuntimeError("the work failed")
    assert not run.finished
    with working(run):
        assert not run.finished
    assert run.finished


def test_two_processes_do_not_work_on_one_run(tmp_path, held_elsewhere):
    run = open_run(tmp_path, "r", described())
    other = held_elsewhere(run.folder)
    with pytest.raises(Busy, match="another process is working on the run"), working(run):
        pass
    other.kill()  # a lock of a process that is killed is freed
    other.wait()
    with working(run):
        pass


def test_a_run_is_shown_by_its_name_and_state(tmp_path):
    about = {"technique": "mae", "setting": "linear", "source": "ptb-xl"}
    run = open_run(tmp_path, "r", described() | {"kind": "transfer"} | about)
    expected = f"<run {run.folder.name}: transfer, mae, linear, ptb-xl, not finished>"
    assert repr(run) == expected
    with working(run):
        pass
    assert repr(run) == expected.replace("not finished", "finished")


def test_a_store_just_below_is_named(tmp_path):
    open_run(tmp_path / "demo" / "runs", "r", described())
    found = re.escape("has no run: name a run's folder or a store of runs. Did you mean ")
    with pytest.raises(BenchmdError, match=found + re.escape(str(tmp_path / "demo" / "runs"))):
        read_stores([tmp_path / "demo"])


def test_half_written_files_of_a_killed_process_are_removed(tmp_path):
    run = open_run(tmp_path, "r", described())
    (run.folder / ".partial-1-model.safetensors").write_text("half")
    with working(run):
        pass
    assert not list(run.folder.glob(".partial-*"))


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(BenchmdError, match=r"is not a run \(no run.json\)"):
        read_run(tmp_path)
    with pytest.raises(BenchmdError, match="has no run"):
        runs([tmp_path])


def test_a_store_and_its_runs_count_once(tmp_path):
    run = open_run(tmp_path, "r", described())
    assert [r.folder for r in runs([tmp_path, run.folder])] == [run.folder]


def test_work_on_a_run_that_another_process_finished_meanwhile_is_not_begun(tmp_path):
    run = open_run(tmp_path, "r", described())
    with working(run):
        pass
    with pytest.raises(Busy, match="has just finished the run"):
        working(run).__enter__()


def test_one_process_at_a_time_writes_a_datasets_predictions(tmp_path):
    run = open_run(tmp_path, "r", described())
    with scoring(run, "georgia"):
        with pytest.raises(Busy, match=r"working on the predictions of .* for georgia"):
            scoring(run, "georgia").__enter__()
        with scoring(run, "cpsc"), working(run):
            pass


def test_done_says_when_how_long_and_with_which_weights(tmp_path):
    run = open_run(tmp_path, "r", described())
    assert run.done == {}
    with pytest.raises(BenchmdError, match="has no weights"):
        _ = run.model_sha256
    before = datetime.now(UTC) - timedelta(seconds=1)
    with working(run):
        (run.folder / "model.safetensors").write_bytes(b"weights")
    assert run.model_sha256 == sha256(run.folder / "model.safetensors")
    assert before < datetime.fromisoformat(run.done["finished"]) < datetime.now(UTC)
    (run.folder / "model.safetensors").unlink()
    assert run.model_sha256 == run.done["model_sha256"]


def test_every_session_is_in_the_history(tmp_path):
    run = open_run(tmp_path, "r", described({"device": "cpu"}))
    message = f"no luck in {Path.home()}/data\nsecond line"
    work = working(run, "cuda")
    work.__enter__()
    work.__exit__(BenchmdError, BenchmdError(message), None)
    work = working(run)
    work.__enter__()
    work.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    (run.folder / "checkpoints" / "step_000000020").mkdir(parents=True)
    with working(run):
        pass
    lines = read_history(run.folder)
    assert [line["event"] for line in lines] == [
        "started", "failed", "started", "failed", "started", "finished",
    ]  # fmt: skip
    assert [lines[i]["device"] for i in (0, 2, 4)] == ["cuda", "cpu", "cpu"]
    assert [lines[i]["from"] for i in (0, 2, 4)] == [0, 0, 20]
    assert lines[1]["reason"] == "no luck in ~/data"
    assert lines[3]["reason"] == "interrupted"
    assert seconds_worked(run.folder) == pytest.approx(sum(lines[i]["seconds"] for i in (1, 3, 5)))
    assert all(datetime.fromisoformat(line["time"]).tzinfo is UTC for line in lines)


def test_a_killed_session_counts_until_it_last_wrote_its_metrics(tmp_path):
    run = open_run(tmp_path, "r", described())
    append(run.folder, "started", device="cpu")
    start = datetime.fromisoformat(read_history(run.folder)[0]["time"]).timestamp()
    assert seconds_worked(run.folder) == 0  # nothing is known of it
    metrics = run.folder / "metrics.jsonl"
    metrics.write_text("{}")
    os.utime(metrics, (start + 40, start + 40))
    assert seconds_worked(run.folder) == pytest.approx(40, abs=1e-3)
    with (run.folder / HISTORY).open("a") as file:
        file.write('{"event": "fini')  # cut off as it was killed
    with working(run):
        metrics.write_text("{}{}")  # the next session's
    lines = read_history(run.folder)
    assert [line["event"] for line in lines] == ["started", "killed", "started", "finished"]
    assert lines[1]["seconds"] == pytest.approx(40, abs=1e-2)
    assert run.done["seconds"] == pytest.approx(40 + lines[3]["seconds"], abs=0.02)
    text = (run.folder / HISTORY).read_text()
    assert [json.loads(line)["event"] for line in text.splitlines()] == [
        line["event"] for line in lines
    ]


def test_weights_of_an_unfinished_run_are_not_called_pruned(tmp_path):
    run = open_run(tmp_path, "r", described())
    with pytest.raises(BenchmdError, match="is not finished: run its `benchmd pretrain` again"):
        require_weights(run)


def test_checkpoints_stay_only_where_they_are_asked_for(tmp_path):
    for keep, there in (("models", False), ("predictions", False), ("checkpoints", True)):
        run = open_run(tmp_path, "r", described(keep=keep))
        with working(run, keep=keep):
            (run.folder / "checkpoints" / "step_000000020").mkdir(parents=True)
        assert (run.folder / "checkpoints").exists() == there
