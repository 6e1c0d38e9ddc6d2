"""Commands of README.md and docs/running.md on catalogs and runs, executed with small settings."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmd_ray.cli import main

ROOT = Path(__file__).parents[2]
SMALL = """\
encoder: tiny
pretrain: {steps: 2, batch_size: 8}
transfer: {epochs: 1, batch_size: 8}
execution: {device: cpu}
"""
TRAINING = ("run", "pretrain", "transfer")
EXECUTED = (*TRAINING, "report", "compare", "list", "watch", "export", "evaluate")
OTHERS = ("imagenet", "catalogs/skin", "hf:FOLDER", "module:function")
"""What other tests execute: weights that were trained elsewhere, data that a user brings."""
NAMED = re.compile(r"runs/(?:pretrain-ecg-mae|transfer)-…")


def lines_of(page: str) -> list[str]:
    """Its commands on catalogs and runs, in order, each once."""
    blocks = re.findall(r"```\w*\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    lines = (re.sub(r"\s#.*", "", line).strip() for block in blocks for line in block.splitlines())
    words = {line: line.split() for line in lines if line.startswith("benchmd ")}
    return [
        line
        for line, each in words.items()
        if each[1] in EXECUTED and not any(other in line for other in OTHERS)
    ]


COMMANDS = list(dict.fromkeys([*lines_of("docs/running.md"), *lines_of("README.md")]))


def test_the_pages_have_such_commands():
    assert {line.split()[1] for line in COMMANDS} == {*EXECUTED}


@pytest.mark.nightly
@pytest.mark.ray
def test_commands_on_catalogs_and_runs_work_as_written(ecg_catalogs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("catalogs").mkdir()
    for name in ("ptb-xl", "georgia"):
        os.symlink(ecg_catalogs[name].path, Path("catalogs") / name)
    os.symlink(ecg_catalogs["cpsc"].path, "later")
    Path("small.yaml").write_text(SMALL)
    planned = [line for line in COMMANDS if " run " in line]
    for line in sorted(COMMANDS, key=lambda one: (one not in planned, COMMANDS.index(one))):
        kind = "pretrain-ecg-mae-*" if "pretrain-ecg-mae" in line else "transfer-ecg-mae-linear-*"
        given = NAMED.sub(lambda _, kind=kind: str(min(Path("runs").glob(kind))), line)
        words = shlex.split(given.replace("catalogs/cpsc", "later"))[1:]
        if words[0] in TRAINING and words != ["run", "--dry-run"]:
            words += ["--settings", "small.yaml"]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, (line, result.output, result.exception)
    assert (tmp_path / "report" / "report.html").is_file()
    assert (tmp_path / "model" / "README.md").is_file()
    assert min(
        Path("runs").glob("transfer-ecg-mae-linear-*/predictions/classification/cpsc.parquet")
    )
