import io
import sys

import pytest

from benchmd_ray.console import progress as module
from benchmd_ray.console.progress import Display, board, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def no_interval(monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.0)


def started(seconds, *arguments):
    """Progress of work that began some seconds ago."""
    display = progress(*arguments)
    display._bar.start_t -= seconds
    return display


@pytest.mark.usefixtures("no_interval")
def test_lines_tell_share_rate_time_left_and_values(capsys):
    display = started(4, "work", 10, "steps", 2)
    display.update(4, {"loss": 0.5})
    display.close()
    display.close()
    *_, line = capsys.readouterr().err.splitlines()
    assert line == "work: 4/10 steps (40%),  0.50 steps/s, 00:12 left, loss=0.5"


@pytest.mark.usefixtures("no_interval")
def test_a_long_time_left_is_told_in_hours(capsys):
    started(10, "work", 20_765, "steps").update(10)
    assert ", 5:45:55 left" in capsys.readouterr().err


def test_a_line_is_written_once_an_interval_and_at_the_end(capsys):
    display = progress("work", 100, "steps")
    for done in range(100):
        display.update(done)
    assert capsys.readouterr().err == ""
    display._bar.last_print_t -= 10.1
    display.update(99)
    display.update(100)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("work: 99/100 steps (99%)")
    display.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("work: 100/100 steps (100%)")


@pytest.mark.usefixtures("no_interval")
def test_work_that_has_not_begun_has_no_time_left(capsys):
    progress("work", 10, "steps").update(0)
    assert capsys.readouterr().err == "work: 0/10 steps (0%), ? steps/s, ? left\n"


def test_work_that_ends_before_it_begins_leaves_no_line(capsys):
    progress("training", 3, "steps").close()
    assert capsys.readouterr().err == ""


def test_lines_of_work_within_other_work_stand_by_themselves(capsys):
    outer, inner = board(3, "runs"), progress("scores", 2, "cases")
    outer.show(1, "1 running")
    inner.update(2)
    inner.close()
    outer.close()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("scores: 2/2 cases (100%)")
    assert second == "1/3 runs, 1 running"


def test_a_board_without_a_total_counts(capsys):
    display = board(None, "trials")
    display.show(7, "2 running")
    display.close()
    assert capsys.readouterr().err == "7 trials, 2 running\n"


def test_on_a_terminal_a_bar_shows_rate_time_left_and_values(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    display = started(4, "work", 10, "steps", 2)
    display.update(4, {"loss": 0.5})
    display.close()
    last = terminal.getvalue().split("\r")[-1]
    assert last.startswith("work:  40%|")
    assert "4/10 [" in last
    assert "loss=0.5" in last


def test_nothing_is_shown_where_progress_is_silent(monkeypatch, capsys):
    silent = [Display()]
    monkeypatch.setattr(module, "shown", False)
    silent += [progress("work", 10, "steps"), board(3, "runs")]
    for display in silent:
        display.update(1, {"loss": 0.5})
        display.show(2, "text")
        display.close()
    assert capsys.readouterr().err == ""
