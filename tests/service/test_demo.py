import shutil
from pathlib import Path

import pytest
from stored import runs

from benchmd_ray.report.analysis import analyse
from benchmd_ray.service import demo as module


@pytest.mark.nightly
@pytest.mark.ray
def test_the_demo_fills_the_table_from_a_relative_folder(
    ray_cluster, tmp_path, monkeypatch, synthetic_raw
):
    short = ("pretrain.steps=2", "pretrain.batch_size=8", "transfer.epochs=10")
    monkeypatch.setattr(module, "SETTINGS", (*module.SETTINGS, *short))

    def write(folder):
        return {
            name: Path(shutil.copytree(raw, folder / name)) for name, raw in synthetic_raw.items()
        }

    monkeypatch.setitem(module.WRITERS, "ecg", write)
    monkeypatch.chdir(tmp_path)
    said = []
    assert module.demo(Path("demo"), said.append, on_ray=True)
    assert any(line.startswith(f"{4 + 10 + 10 * 3 + 1} done") for line in said)
    rows = analyse(runs([Path("demo/runs")]), resamples=20).rows
    trained = rows[rows["evaluation"] == "classification"]
    assert set(zip(trained["technique"], trained["setting"], strict=True)) == {
        (technique, setting)
        for technique in ("scratch", "e-mix", "shed", "mae")
        for setting in ("linear", "finetune-small")
    } | {("random-kernels", "linear"), ("random-kernels", "linear-small")}
    assert set(trained["dataset"]) == {"ptb-xl", "chapman-shaoxing", "georgia", "cpsc"}
    detected = set((tmp_path / "demo" / "runs").glob("*/predictions/ood/ptb-xl.parquet"))
    assert [path.parents[2].name[:36] for path in detected] == [
        "transfer-ecg-scratch-finetune-small-"
    ]
    (search,) = (tmp_path / "demo" / "runs" / "searches").glob("tune-ecg-2-families-full-*")
    assert (search / "best.yaml").is_file()
    assert {"tuned ensemble", "start ensemble"} & set(trained["protocol"])
    assert any("two workers by Ray Train and DeepSpeed" in line for line in said)
    (mae,) = (tmp_path / "demo" / "runs").glob("pretrain-ecg-mae-*")
    assert '"workers": 2' in (mae / "run.json").read_text("utf-8")
    said.clear()
    assert module.demo(Path("demo"), said.append, on_ray=True)
    assert any(line.startswith(f"{4 + 10 + 10 * 3 + 1} done before") for line in said)
