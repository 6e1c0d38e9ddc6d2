import json
import subprocess
import sys
from pathlib import Path

import pytest
from json_lines import json_lines

from benchmd_ray.errors import BenchmdError
from benchmd_ray.service.logged import LOG, VARIABLE, Log, LoggedPlan, LoggedSearch, quieted
from benchmd_ray.service.plan import Choice, make_plan


@pytest.fixture
def plan():
    return make_plan(Choice(modalities=("ecg",), techniques=("scratch",)), tflops=1.0)


def written(store, *keys):
    lines = json_lines(store / LOG)
    return [tuple(line.get(key) for key in keys) for line in lines]


def test_a_plan_is_logged_from_begin_to_end_with_tries_reasons_and_nodes(plan, tmp_path):
    first, second = plan.items[:2]
    folder = tmp_path / "transfer-ptb-xl-0123456789ab"
    with LoggedPlan(tmp_path, plan) as log:
        log.started(first, None)
        log.again(first, "lost", "its node went away", "ab" * 28)
        log.started(first, folder)
        log.finished(first, folder, "cd" * 28)
        log.started(second, None)
        log.failed(second, f"{Path.home()}/runs is full")
        log.noted("node came")
    events = written(tmp_path, "event", "item", "attempt", "reason", "node", "run")
    assert events == [
        ("plan started", None, None, None, None, None),
        ("item started", first.name, 1, None, None, None),
        ("item lost", first.name, 1, "its node went away", "ab" * 28, None),
        ("item started", first.name, 2, None, None, folder.name),
        ("item finished", first.name, 2, None, "cd" * 28, folder.name),
        ("item started", second.name, 1, None, None, None),
        ("item failed", second.name, 1, "~/runs is full", None, None),
        ("note", None, None, None, None, None),
        ("plan ended", None, None, None, None, None),
    ]
    lines = json_lines(tmp_path / LOG)
    assert lines[-1]["finished"] == lines[-1]["failed"] == 1
    assert lines[0]["items"] == len(plan.items)
    assert len({line["session"] for line in lines}) == 1
    assert all(line["time"].endswith("+00:00") for line in lines)
    levels = [line["level"] for line in lines]
    assert levels == ["info", "info", "warning", *["info"] * 3, "error", "warning", "info"]


def test_a_plan_that_ends_before_its_end_says_why(plan, tmp_path):
    with pytest.raises(BenchmdError), LoggedPlan(tmp_path, plan):
        raise BenchmdError("no such catalog")
    assert written(tmp_path, "event", "level", "reason")[-1] == (
        "plan ended",
        "error",
        "no such catalog",
    )


def test_a_search_is_logged_with_its_trials(tmp_path):
    log = LoggedSearch(tmp_path)
    row = {"number": 3, "value": 0.75, "step": 5, "seconds": 1.23456, "reason": None}
    with log.searching("tune-ecg"):
        log.trial_lost("tune-ecg", 3, "its process or its node was lost")
        log.trial_ended("tune-ecg", row | {"state": "complete"})
        log.trial_ended("tune-ecg", row | {"state": "failed", "value": None, "reason": "memory"})
    assert written(tmp_path, "event", "search", "trial", "score", "seconds", "reason") == [
        ("search started", "tune-ecg", None, None, None, None),
        ("trial lost", "tune-ecg", 3, None, None, "its process or its node was lost"),
        ("trial complete", "tune-ecg", 3, 0.75, 1.235, None),
        ("trial failed", "tune-ecg", 3, None, 1.235, "memory"),
        ("search ended", "tune-ecg", None, None, None, None),
    ]


WRITE = """
import sys
from pathlib import Path
from benchmd_ray.service.logged import Log
log = Log(Path(sys.argv[1]))
for number in range(200):
    log.write("note", number=number, message="x" * 400)
"""


@pytest.mark.slow
def test_commands_that_share_a_store_write_whole_lines(tmp_path):
    both = [subprocess.Popen([sys.executable, "-c", WRITE, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(180) for process in both] == [0, 0]
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert len(lines) == 400
    of_one = [line["number"] for line in lines if line["session"] == lines[0]["session"]]
    assert of_one == list(range(200))


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path):
    Log(tmp_path).write("one")
    with (tmp_path / LOG).open("a") as file:
        file.write('{"event": "tw')
    Log(tmp_path).write("three")
    assert written(tmp_path, "event") == [("one",), ("three",)]


@pytest.mark.parametrize(("value", "printed"), [("json", 1), ("", 0)])
def test_lines_are_printed_where_that_is_wanted(tmp_path, monkeypatch, capsys, value, printed):
    monkeypatch.setenv(VARIABLE, value)
    Log(tmp_path).write("note", message="a")
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line) for line in lines] == json_lines(tmp_path / LOG)[:printed]


def test_a_log_that_cannot_be_written_costs_nothing_and_says_so_once(plan, tmp_path, caplog):
    (tmp_path / LOG).mkdir()
    with pytest.raises(BenchmdError, match="the real error"), LoggedPlan(tmp_path, plan):
        raise BenchmdError("the real error")
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / LOG} cannot be written: [Errno 21] Is a directory: '{tmp_path / LOG}'"
    ]
    LoggedSearch(tmp_path).trial_lost("tune-ecg", 3, "its process was lost")


def test_nothing_else_is_said_where_the_log_is_printed(monkeypatch):
    said = []
    monkeypatch.delenv(VARIABLE, raising=False)
    assert quieted(False, said.append) == (False, said.append)
    monkeypatch.setenv(VARIABLE, "json")
    quiet, say = quieted(False, said.append)
    say("a line")
    assert (quiet, said) == (True, [])
