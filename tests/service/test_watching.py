"""What is shown of a store while it is worked on."""

import math

import pytest
from click.testing import CliRunner
from stores import (
    evaluated,
    make_ladder,
    make_pretraining,
    make_search,
    make_transfer,
    make_trials,
    search_name,
)

from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import append_text, locked
from benchmd_ray.files.integrity import line
from benchmd_ray.runs.store import working
from benchmd_ray.service.watching import FAILURES, sparkline, watched


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], ""),
        ([3.0], "▁"),
        ([2.0, 2.0], "▁▁"),
        ([0.0, 7.0], "▁█"),
        ([7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0], "█▇▆▅▄▃▂▁"),
        ([0.0, math.nan, 7.0], "▁ █"),
        ([math.nan, math.inf], "  "),
    ],
)
def test_a_sparkline_rises_from_the_least_to_the_largest(values, shown):
    assert sparkline(values) == shown


def test_of_many_values_a_sparkline_has_the_means():
    assert sparkline([0, 2, 6, 8, 12, 16], width=3) == "▁▄█"
    assert len(sparkline(list(range(1000)))) == 24


def test_runs_at_work_tell_how_far_they_are_and_when_they_end(tmp_path):
    run = make_pretraining(tmp_path, "mae", finished=False, changes={"pretrain": {"steps": 1000}})
    for done, loss in ((420, 0.5), (440, 0.25)):
        values = {"done": done, "loss": loss, "per_second": 0.1}
        append_text(run.folder / "metrics.jsonl", line(values))
    make_transfer(tmp_path, seed=3)
    assert watched([tmp_path]) == ["2 runs: 1 done, 1 waiting"]
    with locked(run.folder / ".lock", "the run"):
        first, empty, title, shown = watched([tmp_path])
    assert (first, empty, title) == ("2 runs: 1 done, 1 working", "", "working")
    assert shown.startswith("  ptb-xl mae pretrain  440/1,000 steps (44%), loss ▂")
    assert shown.endswith("▁█▄ 0.25, 0.1/s, 1 h 33 min left")


def test_failures_have_their_reason_and_cannot_move_the_cursor(tmp_path):
    for seed in range(FAILURES + 2):
        run = make_transfer(tmp_path, seed=seed, finished=False)
        with pytest.raises(BenchmdError), working(run):
            raise BenchmdError(f"NaN\x1b[2J after {seed}")
    lines = CliRunner().invoke(main, ["watch", str(tmp_path)]).output.splitlines()
    assert lines[2] == "failed"
    assert len(lines) == 3 + FAILURES + 1
    assert r"NaN\x1b[2J after " in lines[3]
    assert lines[-1] == "  and 2 more: benchmd list --state failed names them"


def test_the_best_so_far_is_of_the_trials_with_the_most_evaluations(tmp_path):
    rows = make_trials(4)
    scores = ([0.5] * 4, [0.9], [0.6] * 3, [0.55] * 3)
    for row, values in zip(rows, scores, strict=True):
        row |= {"state": "complete", **evaluated(values, scores[0])}
    make_search(tmp_path, rows=rows, finished=False)
    (line,) = (line for line in watched([tmp_path]) if "best inner AUROC" in line)
    assert line.endswith(
        "4 trials (4 complete), 11 evaluations; best inner AUROC so far 0.600 "
        "(trial 2, mae linear, start 0.500)"
    )


def test_a_search_over_families_tells_which_one_won(tmp_path):
    make_search(tmp_path, **make_ladder(12))
    (line,) = (line for line in watched([tmp_path]) if "was chosen" in line)
    assert "12 trials (10 complete, 1 stopped, 1 failed) of 3 families, 36 evaluations; " in line
    assert "trial 1 (random-kernels linear) was chosen, inner AUROC 0.665 (start 0.609)" in line


def test_a_fold_run_at_work_is_named_by_its_fold(tmp_path):
    run = make_transfer(tmp_path, fold=3, finished=False, changes={"tuned": "tune-ecg"})
    with locked(run.folder / ".lock", "the run"):
        *_, line = watched([tmp_path])
    assert line.startswith("  ptb-xl scratch linear, tuned, fold 3  ")


def test_searches_tell_what_they_found_so_far_and_in_the_end(tmp_path):
    folder = make_search(tmp_path, finished=False)
    (shown,) = (each for each in watched([tmp_path]) if folder.name in each)
    assert "12 trials (" in shown
    assert "best inner AUROC so far 0." in shown
    kept = make_search(tmp_path, search_name("kept"), result={"best": 0, "value": 0.5})
    (shown,) = (each for each in watched([tmp_path]) if kept.name in each)
    assert "it keeps its start, inner AUROC 0." in shown
    (kept / "trials.parquet").write_bytes(b"cut off")
    assert "trials.parquet" in next(line for line in watched([tmp_path]) if "Skip" in line)
    make_transfer(tmp_path / "runs")
    lines = watched([tmp_path, tmp_path / "runs"])
    assert lines[0] == "1 run: 1 done"
    with pytest.raises(BenchmdError, match="typo has no run"):
        watched([tmp_path, tmp_path / "typo"])
    chosen = make_search(tmp_path, search_name("chosen"))
    (shown,) = (each for each in watched([tmp_path]) if chosen.name in each)
    assert "was chosen, inner AUROC 0." in shown


def test_the_command_shows_it_once_where_there_is_no_terminal(tmp_path):
    make_transfer(tmp_path / "runs")
    done = CliRunner().invoke(main, ["watch", str(tmp_path / "runs")])
    assert (done.exit_code, done.output) == (0, "1 run: 1 done\n")
    nothing = CliRunner().invoke(main, ["watch", str(tmp_path)])
    assert nothing.exit_code == 1
