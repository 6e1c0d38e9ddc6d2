"""docs/data.md: its commands on synthetic files, from top to bottom."""

import re
import shlex
import shutil
from pathlib import Path

import h5py
import pytest
from click.testing import CliRunner
from in_process import build_in_process

from benchmd_ray.cli import main
from benchmd_ray.data.catalog import open_catalog

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")


def rows(name):
    """Records of a catalog, by split."""
    opened = open_catalog(Path("catalogs") / name)
    return {split: opened.rows(split) for split in opened.manifest["splits"]}


@pytest.mark.nightly
def test_the_commands_of_the_page_work_as_written(
    synthetic_raw, synthetic_cxr, ct_catalogs, tmp_path, monkeypatch
):
    build_in_process(monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ct_catalogs["lidc-idri"].path, "catalogs/lidc-idri")
    raw = synthetic_raw | synthetic_cxr
    (block,) = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    printed = {}
    for line in block.splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program == "benchmd"
        if "FOLDER" in words:
            words[words.index("FOLDER")] = str(raw[words[2]])
        if words[:2] == ["catalog", "build"]:
            words.append("--allow-missing")
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, f"{line}: {result.output}"
        printed[" ".join(words[1:3])] = result.output
    assert "mimic-cxr" in printed["list"]
    assert "physionet.org" in printed["show ptb-xl"]
    assert len(list(Path("figures").glob("*.png"))) >= 3
    assert rows("ptb-xl")["train"] > 0
    assert rows("lidc-again") == rows("lidc-idri")
    with h5py.File("lidc.h5") as file:
        assert len(file) > 0
    files = printed["files mimic-cxr"].splitlines()
    assert len(files) > 10
    assert all(name.endswith(".jpg") for name in files if "/" in name)
