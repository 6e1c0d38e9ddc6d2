import shutil
from pathlib import Path

import pytest
from stored import runs

from benchmd_ray.results.report.analysis import analyse
from benchmd_ray.service import demo as module


@pytest.mark.slow
@pytest.mark.ray
def test_the_demo_fills_the_table_from_a_relative_folder(
    ray_cluster, tmp_path, monkeypatch, synthetic_raw
):
    short = ("pretrain.steps=2", "pretrain.batch_size=8", "transfer.epochs=1")
    monkeypatch.setattr(module, "SETTINGS", (*module.SETTINGS, *short))

    def write(folder):
        return {
            name: Path(shutil.copytree(raw, folder / name)) for name, raw in synthetic_raw.items()
        }

    monkeypatch.setitem(module.WRITERS, "ecg", write)
    monkeypatch.chdir(tmp_path)
    said = []
    outcome = module.demo(Path("demo"), said.append, modalities=["ecg"])
    assert outcome.whole
    assert len(outcome.done) == 3 + 8 + 8 * 3
    rows = analyse(runs([Path("demo/runs")]), resamples=20).rows
    assert set(zip(rows["technique"], rows["setting"], strict=True)) == {
        (technique, setting)
        for technique in ("scratch", "e-mix", "shed", "mae")
        for setting in ("linear", "finetune-small")
    }
    assert set(rows["dataset"]) == {"ptb-xl", "chapman-shaoxing", "georgia", "cpsc"}
    assert any("two workers by Ray Train and DeepSpeed" in line for line in said)
    (mae,) = (tmp_path / "demo" / "runs").glob("pretrain-ecg-mae-*")
    assert '"workers": 2' in (mae / "run.json").read_text("utf-8")
    again = module.demo(Path("demo"), said.append, modalities=["ecg"])
    assert (again.done, set(again.before)) == ((), set(outcome.done))
