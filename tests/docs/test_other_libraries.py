"""The code of docs/other_libraries.md, each section where its library is installed."""

import importlib
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import benchmd_ray
from benchmd_ray.data.records import decode_signals

PAGE = (Path(__file__).parents[2] / "docs" / "other_libraries.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
LIBRARIES = {
    "scikit-learn": "sklearn",
    "PyTorch Lightning": "lightning",
    "Hugging Face datasets": "datasets",
    "Croissant": "mlcroissant",
}


def test_every_section_is_run():
    assert set(SECTIONS) == set(LIBRARIES)


@pytest.mark.slow
@pytest.mark.parametrize("section", LIBRARIES)
def test_the_page_works(section, ecg_catalogs, tmp_path, monkeypatch):
    try:
        importlib.import_module(LIBRARIES[section])
    except ImportError:
        pytest.skip(f"{LIBRARIES[section]} is not installed")
    opened = ecg_catalogs["ptb-xl"]
    shutil.copytree(opened.path, tmp_path / "catalogs" / "ptb-xl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    names = {"ecg": benchmd_ray.catalog("catalogs/ptb-xl")}
    (code,) = re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL)
    exec(code, names)
    if section == "Hugging Face datasets":
        table = next(opened.tables("train"))
        stored = decode_signals(table["signal"], opened.signal)[0] * table["scale"][0].as_py()
        np.testing.assert_allclose(names["signal"], stored, rtol=1e-6)
        assert names["label"] == table["target"][0].as_py()
    if section == "Croissant":
        assert names["patient"]
    if section == "scikit-learn":
        assert names["probabilities"].shape == (opened.rows("test"), len(opened.card.classes))
