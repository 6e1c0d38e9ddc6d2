"""No text from outside moves the cursor, hides another or makes a line of its own."""

import ast
import io
import json
import logging
import subprocess
import sys
import types
import unicodedata

import boto3
import pytest
from click.testing import CliRunner
from stores import described, make_search, make_transfer

from benchmd_ray.cli import main
from benchmd_ray.console import progress
from benchmd_ray.console.terminal import echo, guarded, json_text, visible
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.catalogs import describe
from benchmd_ray.report.formats import aligned
from benchmd_ray.runs.store import open_run, working
from benchmd_ray.service import submit as service
from benchmd_ray.storage.bucket import open_bucket

HOSTILE = "a\x1b[2Jb\nc\rd\x9be\u202ef\u2028g\x7fh\x85i\u2066j\udcffk\x00"
SHOWN = r"a\x1b[2Jb\nc\rd\x9be\u202ef\u2028g\x7fh\x85i\u2066j\udcffk\x00"
BREAK = "\x1b[31mred\x1b[0m\nerror: all is lost\u202e"


def printed(*arguments):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    lines = (result.stdout + result.stderr).split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert not any(line.startswith("error: all is lost") for line in lines)
    return lines


def test_what_is_not_printable_is_escaped_as_python_does():
    assert visible(HOSTILE) == SHOWN
    assert ast.literal_eval(f"'{visible(HOSTILE)}'") == HOSTILE
    for code in (*range(0x3100), *range(0xD800, 0xE100), *range(0xFE00, 0x10000), 0x1F600, 0xE0041):
        character = chr(code)
        kind = unicodedata.category(character)
        raw = character == " " or kind[0] not in "CZ"
        assert (visible(character) == character) == raw, hex(code)


def test_a_call_prints_one_line(capsys):
    echo(HOSTILE)
    echo(BREAK, err=True)
    echo()
    out, err = capsys.readouterr()
    assert out == f"{SHOWN}\n\n"
    assert err == "\\x1b[31mred\\x1b[0m\\nerror: all is lost\\u202e\n"


def test_json_is_valid_and_prints():
    value = {HOSTILE: [HOSTILE, 1.5, None]}
    text = json_text(value)
    assert text.isprintable()
    assert text.isascii()
    assert json.loads(text) == value


def test_cells_of_a_table_are_escaped_before_they_are_aligned():
    import pandas as pd

    head, rule, first, second = aligned(pd.DataFrame({"name": ["x", BREAK], "n": ["1", "2"]}))
    assert {len(head), len(rule), len(first), len(second)} == {len(rule)}
    assert second == f"{visible(BREAK)}  2"


def test_logs_of_any_handler_are_escaped():
    stream = io.StringIO()
    logger, handler = logging.getLogger("hostile"), logging.StreamHandler(stream)
    logger.addHandler(handler)
    try:
        with guarded():
            logger.warning("the run %s", BREAK)
            try:
                raise ValueError(BREAK)
            except ValueError:
                logger.exception("it failed")
    finally:
        logger.removeHandler(handler)
    first, second, *trace = stream.getvalue().splitlines()
    assert (first, second) == (f"the run {visible(BREAK)}", "it failed")
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == f"ValueError: {visible(BREAK)}"
    assert any("raise ValueError(BREAK)" in line for line in trace)


GUARDED = """
import logging, sys, threading, warnings
from benchmd_ray.console.terminal import guarded
def fail(): raise ValueError(sys.argv[1])
with guarded():
    warnings.warn(sys.argv[1])
    logging.getLogger("any").warning(sys.argv[1])
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
fail()
"""


def test_warnings_logs_and_tracebacks_of_a_process_are_escaped():
    process = subprocess.run([sys.executable, "-c", GUARDED, BREAK], capture_output=True, text=True)
    assert process.returncode == 1
    lines = process.stderr.split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    crashes = [line for line in lines if line == f"ValueError: {visible(BREAK)}"]
    assert len(crashes) == 2
    assert lines.count(visible(BREAK)) == 1
    assert f"<string>:6: UserWarning: {visible(BREAK)}" in lines


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_names_escaped(monkeypatch, terminal):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    shown = progress.progress(BREAK, 2, "records")
    shown.update(1, {BREAK: 0.5})
    shown.close()
    board = progress.board(2, "runs")
    board.show(1, BREAK)
    board.close()
    text = stream.getvalue()
    assert text.count(visible(BREAK)) >= 2
    for raw in ("\x1b[31m", "\nerror", "\u202e"):
        assert raw not in text


def failed_run(store):
    run = make_transfer(store, finished=False)
    with pytest.raises(BenchmdError), working(run):
        raise BenchmdError(BREAK)
    return run


def test_names_and_reasons_of_a_store_are_escaped(tmp_path):
    store = tmp_path / f"store{BREAK}"
    run = failed_run(store)
    (line,) = (line for line in printed("list", store) if run.folder.name in line)
    assert "red" in line
    (store / f"bad-{BREAK}").mkdir()
    (store / f"bad-{BREAK}" / "run.json").write_text("{}")
    lines = printed("list", store)
    assert [line for line in lines if line.startswith("damaged: ")]
    assert any(r"bad-\x1b[31mred\x1b[0m\nerror: all is lost\u202e" in line for line in lines)
    make_search(store, finished=False)
    assert "searches" in printed("watch", store)
    assert any(r"\x1b[31mred" in line for line in printed("prune", store))
    printed("watch", store / BREAK)


def test_json_of_a_store_stays_json(tmp_path):
    failed_run(tmp_path / BREAK)
    result = CliRunner().invoke(main, ["list", "--json", str(tmp_path / BREAK)])
    (run,) = json.loads(result.stdout)["runs"]
    assert run["state"] == "failed"
    assert BREAK in run["run"]
    assert all(line.isprintable() for line in result.stdout.split("\n"))


def test_keys_of_a_bucket_are_escaped(s3, monkeypatch, tmp_path):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path))
    bucket = open_bucket(f"{s3}/study")
    bucket.write(f"bad-\u202e-{'0' * 12}/run.json", b"{}")
    lines = printed("list", f"{s3}/study")
    assert any(r"bad-\u202e" in line for line in lines), lines
    key = f"study/bad-\x1b[31m-{'0' * 12}/run.json"
    boto3.client("s3").put_object(Bucket="benchmd-test", Key=key, Body=b"{}")
    lines = printed("list", f"{s3}/study")
    assert any(r"bad-\x1b[31m" in line and "rename that" in line for line in lines), lines
    printed("list", f"{s3}/study\u202e\x1b[31m")


def test_a_manifest_is_shown_escaped(tmp_path, monkeypatch):
    classes = {"small nodule": 1, "large nodule": 7}
    of_split = {"records": 5, "units": 5, "patients": 5, "classes": classes}
    manifest = {
        "policy": "clean",
        "layout": BREAK,
        "digest": BREAK,
        "options": {BREAK: BREAK},
        "splits": {"train": of_split, BREAK: of_split},
        "excluded": {BREAK: 4},
        "warnings": {BREAK: 3},
        "quarantined": [{"record": "r", "file": BREAK, "reason": BREAK}],
        "statistics": None,
        "raw": {"records": 4, "expected": 8, "missing": 6, "grouped_by": BREAK}
        | {"provenance": "sample"},
    }
    found = Catalog(tmp_path / BREAK, manifest, dataset_card("lidc-idri"))
    monkeypatch.setattr(describe, "named", lambda name: found)
    lines = printed("catalog", "show", "it")
    assert any(line.startswith("quarantined: 1") for line in lines)


def test_what_a_command_line_holds_is_escaped(tmp_path):
    for arguments in (
        ["list", "--state", BREAK],
        ["list", f"--{BREAK}"],
        [BREAK],
        ["catalog", "import", tmp_path / BREAK, "--out", tmp_path],
        ["catalog", "show", BREAK],
        ["settings", "--settings", tmp_path / BREAK],
        ["settings", "--set", f"{BREAK}=1"],
        ["run", "--dry-run", "--technique", BREAK],
        ["segment", "score", tmp_path / BREAK, tmp_path, "--task", "spleen", "--out", "x"],
    ):
        lines = printed(*arguments)
        assert any(line.lower().startswith("error") for line in lines), arguments


def job(**changes):
    held = {"submission_id": BREAK, "status": "FAILED", "start_time": 1000, "end_time": 3000}
    held |= {"metadata": {"command": f"benchmd {BREAK}"}, "entrypoint": BREAK, "message": BREAK}
    return types.SimpleNamespace(**held | changes)


def test_jobs_of_others_are_shown_escaped(monkeypatch):
    both = [job(), job(metadata=None)]
    monkeypatch.setattr(service, "jobs", lambda address: both)
    *lines, end = printed("jobs", "list")
    assert (len(lines), end) == (2, "")
    monkeypatch.setattr(service, "stop", lambda name, address: job(status=BREAK))
    printed("jobs", "stop", "one")
    monkeypatch.setattr(service, "details", lambda name, address: job(message="\x1b[2Jone\ntwo"))
    state, *message = filter(None, printed("jobs", "status", "one"))
    assert state.startswith("failed")
    assert message == [r"\x1b[2Jone", "two"]


def test_what_a_job_printed_keeps_its_lines_and_nothing_else(monkeypatch):
    pieces = ["one\r\ntw", "o\x1b[2J", "\n\nthr\x9bee\u202e"]
    expected = "one\ntwo\\x1b[2J\n\nthr\\x9bee\\u202e\n"
    monkeypatch.setattr(service, "output", lambda name, address: "".join(pieces))
    assert CliRunner().invoke(main, ["jobs", "logs", "one"]).stdout == expected

    def follow(name, say, address):
        for piece in pieces:
            say(piece)
        return 3

    monkeypatch.setattr(service, "follow", follow)
    result = CliRunner().invoke(main, ["jobs", "logs", "--follow", "one"])
    assert (result.stdout, result.exit_code) == (expected, 3)


def test_an_error_of_the_system_is_one_line(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(13, "Permission denied", str(tmp_path / BREAK))

    monkeypatch.setattr("benchmd_ray.runs.store.read_stores", refused)
    assert any(line.startswith("error: ") for line in printed("list", tmp_path))


def test_a_run_of_a_hostile_description_is_refused_or_escaped(tmp_path):
    run = open_run(tmp_path, "one", described({"technique": BREAK}))
    run.folder.mkdir(parents=True, exist_ok=True)
    printed("list", tmp_path)
    printed("watch", tmp_path)
