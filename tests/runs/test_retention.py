import json

import pytest
from click.testing import CliRunner
from stored import runs
from stores import described

from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import TEMPORARY, sha256
from benchmd_ray.runs.history import read_history, seconds_worked
from benchmd_ray.runs.places import backing_of
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.runs.retention import drop_copies, needed_weights, prune, release
from benchmd_ray.runs.store import open_run, require_weights, working

STATE, MODEL, SCORES = b"state" * 100, b"weights" * 10, b"scores"


def make(store, name, *, kind="transfer", upstream=None, finished=True, scored=True):
    """A run with everything that training and evaluation leave, and a checkpoint."""
    about = described({"kind": kind, "upstream": upstream}, name=name)
    run = open_run(store, name, about)
    checkpoint = run.folder / "checkpoints" / "step_000000007"
    work = working(run, keep="checkpoints")
    work.__enter__()
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.pt").write_bytes(STATE)
    (checkpoint / "checkpoint.json").write_text("{}")
    (run.folder / "metrics.jsonl").write_text('{"done": 7}\n')
    if finished:
        (run.folder / "model.json").write_text("{}")
        (run.folder / "model.safetensors").write_bytes(MODEL)
        work.__exit__(None, None, None)
        if scored and kind == "transfer":
            (run.folder / "predictions" / "classification").mkdir(parents=True)
            predictions_path(run.folder, "georgia").write_bytes(SCORES)
    else:
        work.__exit__(RuntimeError, RuntimeError("stopped"), None)
    return run


def content(run):
    """Files of a run, but locks and its history."""
    return {
        path.relative_to(run.folder).as_posix(): path.read_bytes()
        for path in run.folder.rglob("*")
        if path.is_file() and not path.name.startswith(".lock") and path.name != "history.jsonl"
    }


def test_checkpoints_of_finished_runs_go_and_of_unfinished_ones_stay(tmp_path):
    done, going = make(tmp_path, "done"), make(tmp_path, "going", finished=False)
    before, unfinished = content(done), content(going)
    pruned = prune(tmp_path, "models")
    assert pruned.bytes_of("checkpoints") == len(STATE) + 2
    assert pruned.bytes_of("weights") == 0
    expected = {name: held for name, held in before.items() if "checkpoints" not in name}
    assert content(done) == expected
    assert expected["model.safetensors"] == MODEL
    assert content(going) == unfinished


def test_predictions_metrics_and_settings_stay_when_weights_go(tmp_path):
    run = make(tmp_path, "done")
    weights = sha256(run.folder / "model.safetensors")
    pruned = prune(tmp_path, "predictions")
    assert pruned.bytes_of("weights") == len(MODEL)
    kept = {
        "run.json",
        "done.json",
        "metrics.jsonl",
        "model.json",
        "predictions/classification/georgia.parquet",
    }
    assert set(content(run)) == kept
    assert run.finished
    assert run.model_sha256 == weights
    line = read_history(run.folder)[-1]
    assert (line["event"], line["removed"]) == ("pruned", ["checkpoints", "weights"])
    assert seconds_worked(run.folder) == pytest.approx(run.done["seconds"], abs=0.01)
    with pytest.raises(BenchmdError, match=r"its weights were pruned: .*execution\.keep=models"):
        require_weights(run)


def test_a_scoring_that_was_killed_is_none(tmp_path):
    run = make(tmp_path, "transfer-a", scored=False)
    path = predictions_path(run.folder, "georgia")
    path.parent.mkdir(parents=True)
    path.with_name(f"{TEMPORARY}{path.name}").write_bytes(SCORES)
    assert needed_weights([run]) == {run.folder.name: "they were not used for scoring yet"}
    path.write_bytes(SCORES)
    assert needed_weights([run]) == {}


def test_a_dry_run_says_the_same_and_removes_nothing(tmp_path):
    run = make(tmp_path, "done")
    (run.folder / ".partial-1-x").write_bytes(b"half")
    before = content(run)
    said = prune(tmp_path, "predictions", dry_run=True)
    assert content(run) == before
    assert prune(tmp_path, "predictions") == said
    assert said.bytes_of("leftovers") == 4
    assert prune(tmp_path, "predictions").removals == ()


def test_weights_that_something_needs_stay_and_the_reason_is_given(tmp_path):
    upstream = make(tmp_path, "pretrain-a", kind="pretrain")
    going = make(tmp_path, "transfer-a", upstream=upstream.folder.name, finished=False)
    unused = make(tmp_path, "pretrain-b", kind="pretrain")
    unscored = make(tmp_path, "transfer-b", scored=False)
    used = make(tmp_path, "pretrain-c", kind="pretrain")
    scored = make(tmp_path, "transfer-c", upstream=used.folder.name)
    pruned = prune(tmp_path, "predictions")
    assert pruned.left == (
        f"{upstream.folder.name}: its weights stay: {going.folder.name} is not finished",
        f"{unused.folder.name}: its weights stay: there is no transfer from it yet",
        f"{unscored.folder.name}: its weights stay: they were not used for scoring yet",
    )
    has = {run.folder.name: (run.folder / "model.safetensors").exists() for run in runs([tmp_path])}
    assert [name for name, there in has.items() if not there] == sorted(
        [used.folder.name, scored.folder.name, going.folder.name]
    )
    assert not (upstream.folder / "checkpoints").exists()  # the rest of it goes


@pytest.mark.parametrize("doing", ["scoring", "working"])
def test_what_another_process_uses_is_left_alone(tmp_path, held_elsewhere, doing):
    run = make(tmp_path, "held", finished=doing == "scoring")
    (run.folder / "predictions").mkdir(exist_ok=True)
    other = held_elsewhere(run.folder, doing)
    for partial in (run.folder / ".partial-a", run.folder / "predictions" / ".partial-b"):
        partial.write_bytes(b"half")
    before = content(run)
    pruned = prune(tmp_path, "predictions")
    assert release(run, "predictions") == 0
    assert content(run) == before
    assert pruned.removals == ()
    assert any("another process is working on" in line for line in pruned.left)
    other.kill()
    other.wait()
    assert prune(tmp_path, "predictions").bytes_of("leftovers") == 8
    assert not list(run.folder.rglob(".partial-*"))


def test_a_run_that_nothing_planned_needs_is_released(tmp_path):
    run = make(tmp_path, "pretrain-a", kind="pretrain")
    assert release(run, "checkpoints") == 0
    assert release(run, "models") == len(STATE) + 2
    assert release(run, "predictions") == len(MODEL)
    assert release(run, "predictions") == 0
    assert run.finished
    assert not (run.folder / "model.safetensors").exists()


def test_weights_stay_while_a_plan_or_search_is_at_work_in_the_store(tmp_path):
    """Between a pretraining and its second transfer, of which nothing is in the store yet."""
    before = make(tmp_path, "before", kind="pretrain")
    make(tmp_path, "first", upstream="before")
    with backing_of(tmp_path).keeping_weights():
        pruned = prune(tmp_path, "predictions")
        assert pruned.bytes_of("weights") == 0
        assert pruned.bytes_of("checkpoints") > 0
        assert "all weights stay: another plan or search is working in this store." in pruned.left
        assert release(before, "predictions") > 0  # of its own plan, which is the only one
    assert not list(tmp_path.glob(".keeps-weights-*"))
    assert prune(tmp_path, "predictions").bytes_of("weights") == len(MODEL)


def test_a_plan_releases_no_weights_that_another_one_may_need(tmp_path):
    run = make(tmp_path, "done")
    with backing_of(tmp_path).keeping_weights(), backing_of(tmp_path).keeping_weights():
        assert release(run, "predictions") == 0
    assert (run.folder / "model.safetensors").is_file()


def test_a_plan_that_was_killed_keeps_no_weights(tmp_path):
    make(tmp_path, "done")
    mark = tmp_path / ".keeps-weights-0123"
    mark.touch()  # whose lock the system has freed
    assert prune(tmp_path, "predictions").bytes_of("weights") == len(MODEL)
    assert not mark.exists()


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "checkpoints").mkdir()
    with pytest.raises(BenchmdError, match=r"is not a store: .*nothing was removed"):
        prune(tmp_path, "predictions")
    run = make(tmp_path / "runs", "done")
    with pytest.raises(BenchmdError, match="is not a store"):
        prune(run.folder, "predictions")
    with pytest.raises(BenchmdError, match="has no mirror: name a store in a bucket"):
        drop_copies(tmp_path / "runs")
    assert (tmp_path / "photos" / "checkpoints").is_dir()


def test_a_linked_checkpoint_folder_is_unlinked_not_emptied(tmp_path):
    run = make(tmp_path / "runs", "done")
    elsewhere = tmp_path / "elsewhere"
    (run.folder / "checkpoints").rename(elsewhere)
    (run.folder / "checkpoints").symlink_to(elsewhere)
    prune(tmp_path / "runs", "models")
    assert not (run.folder / "checkpoints").exists()
    assert (elsewhere / "step_000000007" / "state.pt").read_bytes() == STATE


def test_the_command_lists_what_it_removes(tmp_path):
    run = make(tmp_path, "done")
    arguments = ["prune", str(tmp_path), "--keep", "predictions"]
    dry = CliRunner().invoke(main, [*arguments, "--dry-run"])
    assert dry.exit_code == 0
    total = len(STATE) + 2 + len(MODEL)
    assert f"would free {total} bytes (weights {len(MODEL)}, checkpoints 502" in dry.output
    real = CliRunner().invoke(main, arguments)
    assert f"{run.folder.name}: model.safetensors, {len(MODEL)} bytes" in real.output
    assert f"  freed {total} bytes" in real.output
    again = CliRunner().invoke(main, arguments)
    assert "freed 0 bytes" in again.output
    refused = CliRunner().invoke(main, ["prune", str(tmp_path / "none")])
    assert refused.exit_code == 1
    assert "is not a store" in refused.output


def test_done_says_when_how_long_and_which_weights(tmp_path):
    run = make(tmp_path, "done")
    done = json.loads((run.folder / "done.json").read_text())
    assert set(done) == {"finished", "seconds", "model_sha256", "of", "sha256"}
    assert done["model_sha256"] == sha256(run.folder / "model.safetensors")
