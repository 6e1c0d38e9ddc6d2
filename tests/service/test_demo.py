from pathlib import Path

import pytest

from benchmd_ray.results import tables
from benchmd_ray.service import demo as module
from benchmd_ray.settings import updated


@pytest.mark.slow
@pytest.mark.ray
def test_the_demo_fills_the_table_from_a_relative_folder(
    ray_cluster, tmp_path, monkeypatch, synthetic_raw
):
    short = {"pretrain": {"steps": 2, "batch_size": 8}, "transfer": {"epochs": 1}}
    monkeypatch.setattr(module, "SETTINGS", updated(module.SETTINGS, short))
    monkeypatch.setitem(module.WRITERS, "ecg", lambda folder: synthetic_raw)
    monkeypatch.chdir(tmp_path)
    said = []
    runs = module.demo(Path("demo"), said.append, modalities=["ecg"])
    cells = tables.all_cells(runs, resamples=20)
    assert {(c.technique, c.setting) for c in cells} == {
        (technique, setting)
        for technique in ("scratch", "e-mix", "shed", "mae")
        for setting in ("linear", "finetune-small")
    }
    assert {c.dataset for c in cells} == {"ptb-xl", "chapman-shaoxing", "georgia", "cpsc"}
    assert any("two workers by Ray Train and DeepSpeed" in line for line in said)
    (mae,) = (tmp_path / "demo" / "runs").glob("pretrain-ecg-mae-*")
    assert '"workers": 2' in (mae / "run.json").read_text("utf-8")
