from benchmd_ray.console.progress import LineProgress, progress


def test_lines_tell_share_rate_time_left_and_values(capsys):
    shown = LineProgress("work", 10, "steps", done=2, interval=0.0)
    shown.update(4, {"loss": 0.5})
    shown.close()
    (line,) = capsys.readouterr().err.splitlines()  # the last line is not written twice
    assert line.startswith("work: 4/10 steps (40%), ")
    assert line.endswith(" s left, loss 0.5")


def test_a_long_time_left_is_told_in_hours(capsys):
    shown = LineProgress("work", 20_765, "steps", interval=0.0)
    shown._start -= 10
    shown.update(10)
    assert ", 5 h 46 min left" in capsys.readouterr().err


def test_a_line_is_written_once_an_interval_and_at_the_end(capsys):
    shown = LineProgress("work", 100, "steps", interval=3600.0)
    for done in range(100):
        shown.update(done)
    assert capsys.readouterr().err == ""
    shown.close()
    assert "99/100" in capsys.readouterr().err


def test_work_that_has_not_begun_is_said_to_start(capsys):
    shown = LineProgress("work", 10, "steps", interval=0.0)
    shown.update(0)
    assert capsys.readouterr().err.rstrip().endswith("starting")


def test_elsewhere_than_on_a_terminal_lines_are_written(capsys):
    assert isinstance(progress("work", 1, "steps"), LineProgress)
