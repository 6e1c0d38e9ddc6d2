"""Each benchmark runs from the project's root and prints one JSON object with a ratio."""

from __future__ import annotations

import contextlib
import importlib
import io
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
from tiers import by_tier

from benchmd_ray.data import build as building
from benchmd_ray.data.catalog import Catalog
from speed import gpu
from speed.peer_detectors import MISSING, PEERS, installed

PROJECT = Path(__file__).resolve().parents[2]
COMMON = {
    "benchmark",
    "settings",
    "machine",
    "unit",
    "rates",
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


def run(name: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a benchmark prints, in this process."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        importlib.import_module(f"speed.{name}").main([*arguments])
    result: dict[str, Any] = json.loads(printed.getvalue())
    return result


def run_process(*command: str) -> dict[str, Any]:
    """The JSON that a Python process prints, for benchmarks that measure memory or start Ray."""
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def benchmark(name: str, *arguments: str) -> dict[str, Any]:
    """A benchmark's JSON with small sizes, its common part checked."""
    result = run(name, "--repetitions", "2", "--threads", "1", *arguments)
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


def test_encoder_step_compares_with_einsum_attention() -> None:
    small = ["--device", "cpu", "--size", "tiny", "--batch", "2", "--peak-tflops", "1"]
    result = benchmark("encoder_step", *small)
    assert result["flops_per_step"] == 2 * encoder_flops(result["parameters"])
    assert result["hours_per_100000_steps"]["ours_float32"] > 0
    for name, achieved in result["tflops_per_second"].items():
        assert result["share_of_peak"][name] == pytest.approx(achieved, rel=1e-3)


def encoder_flops(parameters: int) -> int:
    """Matrix products of one ECG through the tiny encoder and head, forward and backward."""
    width, inner, mlp, patch, tokens, classes, depth = 32, 32, 64, 300, 201, 7, 2
    block = 4 * width * inner + 2 * width * mlp
    norms_and_biases = 4 * width + width + mlp + width
    assert parameters == (
        patch * width + width + width + tokens * width + depth * (block + norms_and_biases)
    )
    attention = 2 * tokens * tokens * inner
    blocks = 3 * depth * (tokens * block + attention)
    embedding = 2 * (tokens - 1) * patch * width  # signals take no gradient
    return 2 * (blocks + embedding + 3 * width * classes)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("encoder_step", ["--size", "tiny", "--batch", "2"]),
        ("feed", ["--arrays", "--records", "8", "--batch", "4", "--workers", "0"]),
    ],
)
def test_benchmark_of_the_device_needs_little_more_than_torch(
    name: str, arguments: list[str]
) -> None:
    names = ["ray", "pyarrow", "deepspeed", "wfdb", "click", "tqdm", "scipy", "sklearn", "pandas"]
    small = ["--device", "cpu", "--repetitions", "1", "--threads", "1", *arguments]
    code = BLOCKED.format(names=names, arguments=[name, *small], module=f"speed.{name}")
    require_common(run_process("-c", code), name)


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
    assert 0 < result["header_share_of_reading"] < 1


@pytest.mark.ray
def test_catalog_build_compares_with_one_process() -> None:
    result = benchmark("catalog_build", "--records", "40", "--cpus", "2")
    assert result["start_up_seconds"] > 0
    assert result["including_start_up"] > 0


@pytest.mark.nightly
def test_build_scale_gives_rate_and_memory_of_each_size() -> None:
    small = ["--modality", "ecg", "--records", "10", "--cpus", "1", "--factors", "1", "4"]
    result = run_process("-m", "speed.build_scale", *small)
    builds = result["builds"]
    assert [build["raw_records"] for build in builds] == [10, 40]
    for build in builds:
        assert 0 < build["rows"] <= build["raw_records"]
        assert build["rows_per_second"] == pytest.approx(build["rows"] / build["seconds"], rel=0.01)
        assert build["over_idle_mib"] == pytest.approx(build["peak_mib"] - build["idle_mib"], abs=1)
    first, last = builds[0], builds[-1]
    for name, of in (("ratio", "rows_per_second"), ("memory_ratio", "peak_mib")):
        assert result[name] == pytest.approx(last[of] / first[of], rel=0.01)
    assert result["over_idle_ratio"] == pytest.approx(
        last["over_idle_mib"] / max(1, first["over_idle_mib"]), rel=0.01
    )
    assert "/" not in json.dumps(result["settings"])


def test_build_scale_prints_its_figures() -> None:
    small = ["--modality", "ecg", "--records", "10", "--cpus", "1", "--factors", "1"]
    result = run_process("-m", "speed.build_scale", *small)
    (build,) = result["builds"]
    assert (build["raw_records"], result["ratio"]) == (10, 1)


def test_scaling_gives_the_rates_of_each_size_of_a_cluster() -> None:
    small = ["--nodes", "1", "--records", "40", "--items", "24", "--trials", "4", "--sleep", "0.1"]
    result = run_process("-m", "speed.scaling", *small)
    (size,) = result["sizes"]
    assert size["build"]["units"] == 40
    assert size["plan"]["units"] == size["plan"]["peer"]["units"] == 24
    for name, ratio in result["ratio"].items():
        rate = size[name]
        assert rate["per_second"] == pytest.approx(rate["units"] / rate["seconds"], rel=1e-3)
        assert ratio == 1
    assert size["plan"]["ms_per_item"] > size["plan"]["driver_cpu_ms_per_item"] / 2 > 0
    searched = size["search"]
    assert searched["units"] == 4 - 2
    assert searched["per_minute"] == pytest.approx(60 * searched["per_second"], rel=1e-3)
    assert searched["overhead_seconds"] == pytest.approx(
        1 / searched["per_second"] - 0.1, rel=0.01, abs=1e-3
    )
    assert "/" not in json.dumps(result["settings"])


def test_store_scale_times_each_size_of_a_store() -> None:
    small = ["--sizes", "8", "4", "--records", "20", "--resamples", "3"]
    result = run("store_scale", *small)
    assert [size["runs"] for size in result["sizes"]] == [4, 8]
    for size in result["sizes"]:
        assert size["seconds"].keys() == {"read", "list", "report", "report_again"}
        for name, seconds in size["seconds"].items():
            assert seconds > 0
            assert size["ms_per_run"][name] == pytest.approx(
                1000 * seconds / size["runs"], rel=0.01
            )
    assert "/" not in json.dumps(result["settings"])


def test_zero_gives_losses_and_memory_of_each_stage() -> None:
    small = ["--size", "tiny", "--modality", "eeg", "--batch", "2", "--workers", "2"]
    few = ["--stages", "0", "1", "2", "--repetitions", "1", "--loss-steps", "2"]
    result = run_process("-m", "speed.zero", *small, *few)
    for losses in result["losses"].values():
        one, *others = losses["workers"].values()
        assert len(one) == 2
        assert len(others) == 2
        assert losses["largest_difference"] == pytest.approx(
            max(abs(a - b) for other in others for a, b in zip(one, other, strict=True)), rel=1e-3
        )
        assert losses["largest_difference"] < 1e-4
    whole, *split = result["runs"]
    # Parameters, gradients and two moments; DeepSpeed splits all but the parameters, with a copy.
    inputs = 9e4  # at most, of a step
    assert 0 <= whole["held_mib"] * 2**20 - 16 * result["parameters"] < inputs
    for stage in split:
        assert 0 <= stage["held_mib"] * 2**20 - 12 * result["parameters"] < inputs
        assert stage["ms_per_step"]["least"] > 0


@pytest.mark.ray
def test_a_search_compares_with_trials_one_after_the_other(
    ecg_catalogs: dict[str, Catalog],
) -> None:
    few = ["--catalog", str(ecg_catalogs["ptb-xl"].path), "--trials", "2", "--epochs", "1"]
    result = benchmark("search", *few)
    assert result["largest_difference_of_auroc"] == 0


def test_the_price_of_a_certain_choice_is_simulated() -> None:
    result = run("search_price", "--searches", "2", "--evaluations", "12")
    highest, choice = result["found"]
    assert (highest["strategy"], choice["strategy"]) == ("highest", "choice")
    assert highest["start_kept"] < 1
    assert highest["gain"] <= result["gain"]


@pytest.mark.nightly
def test_samplers_and_ways_to_stop_are_compared() -> None:
    few = ["--methods", "--searches", "2", "--evaluations", "4"]
    found = run("search_price", *few)["found"]
    expected = {f"{s}, {w}" for s in ("tpe", "random") for w in ("racing", "asha", "none")}
    assert {one["strategy"] for one in found} == expected
    assert all(one["start_kept"] == 1 for one in found)  # four evaluations show nothing


def test_levels_of_the_choice_are_simulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from speed import search_price

    kinds = (((4,), {"height": 0.0}), ((4, 6), {"height": 0.2, "evaluations": 1}))
    monkeypatch.setattr(search_price, "LEVELS", kinds)
    search_price.main(["--levels", "--searches", "3"])
    useless, gaining = json.loads(capsys.readouterr().out)["found"]
    assert (useless["trials"], gaining["trials"]) == ([4], [4, 6])
    assert useless["gain"] == 0
    assert gaining["gain"] in [pytest.approx(0.2 * n / 3, rel=1e-3) for n in range(4)]
    assert useless["start_kept"] + useless["no_better_than_start"] == pytest.approx(1)


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
def test_segmentation_gives_the_memory_beyond_the_label_maps() -> None:
    small = ["--memory", "--shape", "100", "256", "256", "--threads", "1"]
    result = run_process("-m", "speed.segmentation", *small)["memory"]
    assert result["label_maps_mib"] == pytest.approx(2 * 100 * 256 * 256 / 2**20, rel=1e-3)
    own = 2 * 100 * 256 * 256 / 2**20  # each side as classes
    assert own < result["over_label_maps_mib"] < 60 * own


def test_a_score_run_whose_worker_is_killed_has_the_bytes_of_another() -> None:
    small = ["--cases", "16", "--kill", "1", "--shape", "24", "48", "48"]
    result = run_process("-m", "speed.score_run", *small)
    assert result["same_bytes"]
    assert (result["scored"], result["quarantined"]) == (16, 0)
    assert "/" not in json.dumps(result["settings"])


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


def test_detectors_give_the_memory_beyond_the_bank() -> None:
    small = ["--memory-records", "20000", "--memory-queries", "20", "--width", "64"]
    result = run_process("-m", "speed.detectors", "--memory", "--threads", "1", *small)
    assert result["memory"].keys() == {"knn", "mahalanobis"}
    for figures in result["memory"].values():
        assert figures["bank_mib"] == pytest.approx(20000 * 64 * 4 / 2**20, rel=1e-3)
        assert 0 <= figures["over_bank_mib_of_fitting"] <= figures["over_bank_mib"]
        assert figures["over_bank_in_banks"] == pytest.approx(
            figures["over_bank_mib"] / figures["bank_mib"], rel=1e-3, abs=1e-3
        )
        assert figures["seconds_of_fitting"] > 0
        assert figures["seconds_of_scoring"] > 0
    assert result["memory"]["knn"]["state_mib"] == pytest.approx(4.883, rel=1e-3)
    assert "/" not in json.dumps(result["settings"])


def test_training_is_measured_with_what_a_bare_gpu_machine_has(tmp_path):
    names = "ray deepspeed click scipy sklearn tqdm optuna pydicom mne wfdb h5py wandb"
    out = tmp_path / "found.json"
    small = ["--device", "cpu", "--size", "tiny", "--steps", "12", "--batch", "2"]
    parts = ("mae eager", "reference", "resumed", "finetune ecg eager", "scoring")
    only = [word for part in parts for word in ("--only", part)]
    arguments = ["gpu", "--out", str(out), *small, *only]
    code = BLOCKED.format(names=names.split(), arguments=arguments, module="speed.gpu")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())
    found = result["found"]
    assert result["left"] == []
    assert not [each for each in found.values() if isinstance(each, dict) and "failed" in each]
    assert found["resumed ecg mae"] == 0
    assert found["profile ecg mae eager"]["host_ms_per_step"] > 0
    assert min(found["scoring ecg"]["records_per_second"].values()) > 0
    ours, peer = found["pretrain ecg mae eager"], found["reference ecg mae float32"]
    for each in (ours, peer):
        minutes = 100_000 / each["steps_per_second"] / 60
        assert each["minutes_per_100000_steps"] == pytest.approx(minutes, rel=1e-3)


@pytest.mark.parametrize("kind", by_tier([], ["ecg"], gpu.DATASETS))
def test_every_kind_of_signals_is_pretrained_on_noise(kind: str, tmp_path: Path) -> None:
    setting = gpu.Setting("cpu", "tiny", 2, 12, tmp_path, math.inf, None)
    clock = gpu.pretrained(setting, setting.catalog(kind), "shed", gpu.ON_CPU["eager"], 12)
    assert [done for done, _ in clock.marks] == [3, 6, 9, 12]
    assert all(map(math.isfinite, clock.losses))
