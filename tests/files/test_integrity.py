"""Logs that are read back."""

import logging

import pytest

from benchmd_ray.files import integrity
from benchmd_ray.files.integrity import line, read_lines


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(line({"step": step, "name": "a\u2028b"}) for step in range(4)))
    return path


def test_lines_are_read_back(log, caplog):
    assert [values["step"] for values in read_lines(log)] == [0, 1, 2, 3]
    assert read_lines(log)[0]["name"] == "a\u2028b"  # which some take for a line's end
    assert read_lines(log.with_name("missing")) == []
    assert not caplog.records


def test_a_damaged_line_is_skipped_with_a_warning(log, caplog):
    text = log.read_text()
    log.write_text(text.replace('"step": 1', '"step": 7'))
    with caplog.at_level(logging.WARNING):
        assert [values["step"] for values in read_lines(log)] == [0, 2, 3]
        read_lines(log)
    assert caplog.messages == [f"{log}: 1 damaged line skipped"]  # once per process


def test_a_last_line_that_was_cut_off_is_no_damage(log, caplog):
    text = log.read_text()
    log.write_text(text[:-5])
    with caplog.at_level(logging.WARNING):
        assert [values["step"] for values in read_lines(log)] == [0, 1, 2]
    assert not caplog.records


def test_a_log_that_is_longer_than_any_is_skipped_with_a_warning(log, caplog, monkeypatch):
    monkeypatch.setattr(integrity, "MAX_LOG_LINES", 3)
    with caplog.at_level(logging.WARNING):
        assert read_lines(log) == []
    assert caplog.messages == [f"{log}: it is skipped, as it is too large for a log"]


def test_a_reason_that_is_a_sentence_ends_with_one_full_stop():
    assert str(integrity.Damaged("a.json", "x is 1.", "Remove it.")) == (
        "a.json is damaged: x is 1. Remove it."
    )
