"""Each benchmark runs from the project's root and prints one JSON object with a ratio."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import build_in_process
from printed import PROJECT, run, run_process
from tiers import by_tier
from torch import nn

from benchmd_ray.data import build as building
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.modality.modalities import modalities
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.settings.definition import ENCODERS
from speed import gpu, random_kernels
from studies.pytorch_ood import MISSING, PEERS, installed

COMMON = {
    "benchmark",
    "settings",
    "machine",
    "unit",
    "rates",
    "wall_seconds",
    "ours",
    "peer",
    "ratio",
    "ratio_range",
    "ratio_of_fastest",
}
BLOCKED = """
import runpy, sys
for name in {names!r}:
    sys.modules[name] = None
sys.argv = {arguments!r}
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where benchmarks work: in the project's root, with a cache of their own."""
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path))
    monkeypatch.chdir(PROJECT)


def benchmark(name: str, *arguments: str) -> dict[str, Any]:
    """A benchmark's JSON with small sizes, its common part checked."""
    result = run(f"speed.{name}", "--repetitions", "2", "--threads", "1", *arguments)
    require_common(result, name)
    return result


def require_common(result: dict[str, Any], name: str) -> None:
    """Check what every benchmark prints."""
    assert result.keys() >= COMMON
    assert result["benchmark"] == name
    assert result["rates"].keys() >= {result["ours"], result["peer"]}
    assert all(rate["least"] > 0 for rate in result["rates"].values())
    least, most = result["ratio_range"]
    assert 0 < least <= result["ratio"] <= most
    assert result["machine"]["torch"] == torch.__version__
    assert result["machine"]["threads"] == 1
    assert "/" not in json.dumps(result["settings"])  # no path of the machine


def test_attention_as_two_einsums_gives_the_same_features() -> None:
    signal, settings = modalities()["ecg"].signal, ENCODERS["tiny"]
    encoder, peer = (Encoder(signal, settings).eval() for _ in range(2))
    peer.blocks = nn.ModuleList(gpu.EinsumBlock(settings) for _ in peer.blocks).eval()
    peer.load_state_dict(encoder.state_dict())
    signals = torch.randn(3, *signal.input_shape)
    torch.testing.assert_close(peer(signals), encoder(signals), rtol=0, atol=1e-5)


@pytest.mark.nightly
def test_the_feed_of_arrays_needs_little_more_than_torch() -> None:
    names = ["ray", "pyarrow", "deepspeed", "wfdb", "click", "tqdm", "scipy", "sklearn", "pandas"]
    small = ["--device", "cpu", "--repetitions", "1", "--threads", "1"]
    few = ["--arrays", "--records", "8", "--batch", "4", "--workers", "0"]
    code = BLOCKED.format(names=names, arguments=["feed", *small, *few], module="speed.feed")
    require_common(run_process("-c", code), "feed")


def epochs_without_ray(*arguments: str) -> dict[str, Any]:
    """The JSON of `medmnist_epoch` where neither Ray nor DeepSpeed is, its own part checked."""
    name, small = "medmnist_epoch", ["--device", "cpu", "--repetitions", "2", "--threads", "1"]
    code = BLOCKED.format(
        names=["ray", "deepspeed", "wfdb", "pydicom"],
        arguments=[name, *small, "--width", "2", *arguments],
        module=f"speed.{name}",
    )
    result = run_process("-c", code)
    require_common(result, name)
    first, *rest = result["differences_of_the_first_losses"]
    assert 0 <= first < 1e-5
    assert all(np.isfinite(rest))
    for way, seconds in result["seconds_per_epoch"].items():
        fastest = result["training_examples"] / seconds["least"]
        assert result["rates"][way]["most"] == pytest.approx(fastest, rel=1e-3)
        assert result["cpu_seconds_per_epoch"][way]["least"] > 0
    return result


def test_epochs_of_images_of_a_catalog_compare_with_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, held = np.random.default_rng(0), {}
    for prefix, rows in (("train", 130), ("val", 12), ("test", 4)):
        held[f"{prefix}_images"] = generator.integers(0, 256, (rows, 28, 28), np.uint8)
        held[f"{prefix}_labels"] = (np.arange(rows) % 2).astype(np.uint8)[:, None]
    path = tmp_path / "breastmnist.npz"
    np.savez(path, **held)
    build_in_process(monkeypatch)
    options = {"md5": "allow"}
    out = tmp_path / "catalog"
    building.build("breastmnist", tmp_path, out, allow_missing=True, options=options)
    result = epochs_without_ray("--npz", str(path), "--catalog", str(out))
    assert (result["training_examples"], result["batch_size"]) == (130, 128)
    assert result["steps_per_epoch"] == 2
    scores = result["validation_auroc_of_first_epoch"]
    assert scores["ours"] == pytest.approx(scores["plain_loop"], abs=1 / 36 + 1e-4)  # one pair


@pytest.mark.nightly
def test_epochs_of_random_shapes_compare_with_a_plain_loop() -> None:
    small = ["--dataset", "adrenalmnist3d", "--records", "6", "--epochs", "2"]
    result = epochs_without_ray(*small)
    assert result["settings"]["network"] == "resnet18-3d"
    assert result["steps_per_epoch"] == 1


@pytest.mark.nightly
def test_feed_of_arrays_compares_with_a_dataloader() -> None:
    small = ["--device", "cpu", "--records", "10", "--batch", "4", "--workers", "1"]
    result = benchmark("feed", "--arrays", *small)
    assert result["source"] == "arrays"


@pytest.mark.ray
def test_feed_compares_with_a_dataloader_of_raw_files() -> None:
    small = ["--device", "cpu", "--records", "40", "--batch", "8", "--workers", "1"]
    result = benchmark("feed", *small)
    assert result["source"] == "synthetic"
    assert 0 < result["settings"]["records"] < 40  # the training split's


@pytest.mark.ray
def test_catalog_build_compares_with_one_process() -> None:
    result = benchmark("catalog_build", "--records", "40", "--cpus", "2")
    assert result["start_up_seconds"] > 0
    assert result["including_start_up"] > 0


@pytest.mark.ray
def test_a_search_compares_with_evaluations_one_after_the_other(
    ecg_catalogs: dict[str, Catalog],
) -> None:
    few = ["--catalog", str(ecg_catalogs["ptb-xl"].path), "--evaluations", "3", "--epochs", "1"]
    result = benchmark("search", *few)
    assert result["largest_difference_of_auroc"] == 0


def test_linear_evaluation_compares_with_the_frozen_encoder() -> None:
    small = ["--device", "cpu", "--size", "tiny", "--records", "12", "--batch", "5"]
    result = benchmark("linear_evaluation", *small, "--epochs", "10")
    assert result["epochs_measured"] == {"encoded_once": 10, "through_the_encoder": 2}
    assert result["peer_is_extrapolated"]
    assert result["ceiling"] == 10
    assert result["relative_distance_of_heads"] < 1e-2


@pytest.mark.nightly
def test_linear_evaluation_measures_all_epochs_where_told() -> None:
    small = ["--device", "cpu", "--size", "tiny", "--records", "4", "--batch", "2"]
    result = benchmark("linear_evaluation", *small, "--epochs", "2", "--epochs-measured", "2")
    assert not result["peer_is_extrapolated"]


def test_auroc_of_an_epoch_compares_with_scikit_learn() -> None:
    result = benchmark("auroc", "--rows", "50", "--classes", "3")
    assert result["settings"]["classes"] == 3


def test_figures_compare_with_those_drawn_one_by_one() -> None:
    few = ["--figures", "4", "--repetitions", "1"]
    assert benchmark("figures", *few)["unit"] == "figures/s"


@pytest.mark.ray
def test_a_stream_compares_with_the_local_shuffle_of_ray_data() -> None:
    result = benchmark("stream", "--records", "60", "--buffer", "8")
    assert result["unit"] == "rows/s"


@pytest.mark.parametrize("metric", by_tier([], ["auroc"], ["auprc"]))
def test_bootstrap_compares_with_scikit_learn(metric: str) -> None:
    small = ["--metric", metric, "--rows", "3000", "--classes", "3", "--rows-per-patient", "2"]
    result = benchmark("bootstrap", *small, "--resamples", "20", "--peer-resamples", "4")
    assert result["resamples_measured"] == {"weighted": 20, "scikit_learn_loop": 4}
    assert result["peer_is_extrapolated"]
    assert result["largest_difference_of_values"] < 1e-9
    for name, seconds in result["wall_seconds"].items():
        assert result["rates"][name]["least"] == pytest.approx(20 / seconds["most"], rel=1e-3)


@pytest.mark.skipif(not installed(), reason=MISSING)
def test_detectors_compare_with_those_of_pytorch_ood() -> None:
    small = ["--records", "600", "--bank", "300", "--width", "16", "--classes", "4"]
    result = benchmark("detectors", *small)
    assert result["detectors"].keys() == PEERS.keys()
    alike = {name: d for name, d in result["detectors"].items() if d["same_scores"]}
    assert len(PEERS) - len(alike) == 3
    for name, detector in result["detectors"].items():
        assert ("ratio" in detector) == (name in alike)
        assert bool(detector.get("differs")) == (name not in alike)
    parts = {
        side: [d["seconds"][f"{side}_score"] for d in alike.values()] for side in ("ours", "peer")
    }
    for side, seconds in parts.items():
        assert result["wall_seconds"][f"{side}_score"]["median"] == pytest.approx(
            sum(seconds), rel=0.5
        )
    assert result["rates"]["ours"]["least"] == pytest.approx(
        600 * len(alike) / result["wall_seconds"]["ours"]["most"], rel=1e-3
    )


def test_segmentation_scores_as_its_peers_do() -> None:
    small = ["--shape", "40", "64", "64", "--spacing", "3", "2", "2"]
    result = benchmark("segmentation", *small)
    assert result["classes"] == 9
    assert {"ours", "monai"} <= result["wall_seconds"].keys()
    assert max(result["largest_differences"].values()) < 1e-4
    assert result["ratios"]["monai"]["median"] == result["ratio"]


@pytest.mark.nightly
def test_detectors_say_how_to_install_their_peer() -> None:
    code = (
        "import importlib.util as u, sys; find = u.find_spec; "
        "u.find_spec = lambda name, *more: None if name == 'pytorch_ood' else find(name, *more); "
        "from speed.detectors import main; main([])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [MISSING]


SMALL = ["--device", "cpu", "--size", "tiny", "--steps", "12", "--batch", "2", "--threads", "1"]


def test_training_is_measured_with_what_a_bare_gpu_machine_has(tmp_path):
    names = "ray deepspeed click scipy sklearn tqdm optuna pydicom mne wfdb h5py wandb"
    out = tmp_path / "found.json"
    parts = ("copy", "e-mix eager", "mae eager", "float32", "finetune ecg eager", "scoring")
    arguments = ["gpu", "--out", str(out), *SMALL, "--only", *parts]
    code = BLOCKED.format(names=names.split(), arguments=arguments, module="speed.gpu")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())
    found = result["results"]
    assert len(found) == 13
    assert result["skipped"] == []
    assert not [each for each in found.values() if "failed" in each]
    assert found["resumed ecg mae eager"].items() >= {"repeated": 0, "stopped": 0}.items()
    assert found["profile ecg mae eager"]["host_ms_per_step"] > 0
    assert min(found["scoring ecg"]["records_per_second"].values()) > 0
    ours, peer = found["pretrain ecg mae eager"], found["reference ecg mae float32"]
    for each in (ours, peer):
        minutes = 100_000 / each["steps_per_second"] / 60
        assert each["minutes_per_100000_steps"] == pytest.approx(minutes, rel=1e-3)
    over_peer = result["ratios"]["pretrain ecg mae eager / reference ecg mae float32"]
    rates = ours["steps_per_second"] / peer["steps_per_second"]
    assert over_peer == pytest.approx(rates, rel=1e-3)
    assert result["machine"]["attention"]
    table = {line[:39].strip(): line[39:].split() for line in done.stdout.splitlines()}
    assert float(table["pretrain ecg mae eager"][1]) == pytest.approx(ours["ms_per_step"], rel=1e-2)


def test_a_second_call_measures_what_the_first_had_no_time_for(tmp_path, capsys):
    out = tmp_path / "found.json"
    first = ["--out", str(out), *SMALL, "--only", "copy", "scoring"]
    gpu.main([*first, "--minutes", "0.0001"])
    assert json.loads(out.read_text())["skipped"] == ["copy", "scoring ecg"]
    assert "which the same command measures:\ncopy\nscoring ecg" in capsys.readouterr().out
    gpu.main([*first[:-1]])
    before = json.loads(out.read_text())["results"]
    assert list(before) == ["copy"]
    gpu.main(first)
    after = json.loads(out.read_text())
    assert list(after["results"]) == ["copy", "scoring ecg"]
    assert after["results"]["copy"] == before["copy"]
    with pytest.raises(SystemExit, match="has measurements with another batch: name another file"):
        gpu.main([*first, "--batch", "3"])


def test_a_measurement_that_ends_its_process_or_takes_too_long_ends_no_other(tmp_path):
    bench = gpu.Bench("cpu", "tiny", 2, 12, tmp_path)
    found = gpu.measured(bench, "unknown", None, 60)
    assert found == {"failed": "its process ended with exit code 1"}
    assert gpu.measured(bench, "scoring ecg", None, 0.01) is None


def test_the_limit_of_a_step_is_that_of_the_bytes_it_moves(tmp_path, monkeypatch):
    bench, name = gpu.Bench("cuda", "paper", 64, 12, tmp_path), "pretrain ecg e-mix compiled"
    monkeypatch.setitem(gpu.MOVED, name, 23.0)
    limit = gpu.limited(name, {"ms_per_step": 10.0}, bench, {"copy": {"tb_per_second": 4.6}})
    assert limit == {"ms_per_step": 10.0, "limit_ms": 5.0, "share_of_limit": 0.5}
    others = gpu.Bench("cuda", "paper", 32, 12, tmp_path)
    assert gpu.limited(name, {"ms_per_step": 10.0}, others, {"copy": {"tb_per_second": 4.6}}) == {
        "ms_per_step": 10.0
    }


@pytest.mark.parametrize("kind", by_tier([], ["ecg"], gpu.SOURCES))
def test_every_kind_of_signals_is_pretrained_on_noise(kind: str, tmp_path: Path) -> None:
    bench = gpu.Bench("cpu", "tiny", 2, 12, tmp_path)
    clock = gpu.pretrained(bench, kind, "shed", "eager", 12)
    assert [done for done, _ in clock.marks] == [3, 6, 9, 12]
    assert all(map(math.isfinite, clock.losses))


@pytest.mark.ray
@pytest.mark.slow
def test_random_kernels_compare_with_another_transform(
    ecg_catalogs: dict[str, Catalog],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rocket(name: str, signals: Any, width: int, seed: int) -> Any:
        return lambda chosen: chosen.reshape(len(chosen), -1)[:, :width]

    monkeypatch.setattr(random_kernels, "rocket", rocket)
    less = ["--features", "90", "--seeds", "1", "--repetitions", "1"]
    path = ecg_catalogs["ptb-xl"].path
    random_kernels.main(["--catalog", str(path), *less])
    result = json.loads(capsys.readouterr().out)
    assert result["widths"] == {"random_kernels": 90, "MiniRocket": 90, "MultiRocket": 90}
    assert all(0 <= value["median"] <= 1 for value in result["auroc"].values())
