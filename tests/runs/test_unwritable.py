"""Paths that cannot be written or are of the wrong kind: one line that says what to do."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from benchmd_ray.cli import main

CARD = "name: own\nmodality: derm\ntask: {classes: [a, b]}\nfiles: {levels: [class]}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A raw folder, cards, and a file where a folder could be."""
    rng = np.random.default_rng(0)
    for kind in "ab":
        (tmp_path / "raw" / kind).mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 256, (6, 6, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "raw" / kind / f"{number}.png")
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "own.yaml").write_text(CARD)
    table = CARD.replace("name: own", "name: tab").replace("levels: [class]", "table: t.csv")
    (tmp_path / "cards" / "tab.yaml").write_text(table)
    (tmp_path / "raw" / "t.csv").mkdir()
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCHMD_CARDS", "")  # which --cards adds to
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("build own --raw raw --out file/x", "file/x: not a directory: a part of the path is a"),
        ("build own --raw raw --out /proc/x", "/proc/x: .*: check the path"),
        ("build own --raw file --out c", "'--raw': Directory 'file' is a file"),
        ("build own --raw nowhere --out c", "nowhere.* does not exist"),
        ("build tab --raw raw --out c", "t.csv cannot be opened: Is a directory"),
        ("new x --from raw --out file/z", "file/z.*: a part of the path is a file"),
        ("new x --from nowhere", "the folder nowhere does not exist"),
        ("list --cards file", "file is not a folder of cards: check --cards"),
        ("list --cards nowhere", "nowhere is not a folder of cards"),
        ("build onw --raw raw --out c", "unknown dataset 'onw'. Did you mean 'own'?"),
    ],
)
def test_one_line_says_what_to_do(folder, arguments, message):
    words = f"catalog {arguments}".split()
    cards = [] if "--cards" in words else ["--cards", "cards"]
    before = sorted(folder.rglob("*"))
    done = CliRunner().invoke(main, [*words, *cards])
    assert done.exit_code != 0
    assert isinstance(done.exception, SystemExit)
    (line,) = [text for text in done.stderr.splitlines() if text.lower().startswith("error:")]
    pattern = message.replace(".", r"\.").replace(r"\.*", ".*").replace("?", r"\?")
    assert re.search(pattern, line), line
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_may_not_be_written_is_named(folder, monkeypatch, number):
    def refuse(path, *_, **__):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    done = CliRunner().invoke(main, "catalog new x --from raw --out own".split())
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert "own" in line
    assert "choose a folder that you may write to" in line
