"""Each study runs from the project's root on small sizes and prints one JSON object."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from printed import run, run_process

from studies.pytorch_ood import MISSING, PEERS, installed

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own."""
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path))


@pytest.mark.nightly
def test_build_scale_gives_rate_and_memory_of_each_size() -> None:
    small = ["--modality", "ecg", "--records", "10", "--cpus", "1", "--factors", "1", "4"]
    result = run_process("-m", "studies.build_scale", *small)
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


@pytest.mark.nightly
def test_scaling_gives_the_rates_of_each_size_of_a_cluster() -> None:
    small = ["--nodes", "1", "--records", "40", "--items", "24", "--trials", "4", "--sleep", "0.1"]
    result = run_process("-m", "studies.cluster_scale", *small)
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


@pytest.mark.nightly
def test_zero_gives_losses_and_memory_of_each_stage() -> None:
    small = ["--size", "tiny", "--modality", "eeg", "--batch", "2", "--workers", "2"]
    few = ["--stages", "0", "1", "2", "--repetitions", "1", "--loss-steps", "2"]
    result = run_process("-m", "studies.zero", *small, *few)
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


def test_searches_are_simulated_by_what_they_search() -> None:
    few = ["--searches", "2", "--amount", "12", "--processes", "1"]
    rows = run("studies.search_price", *few, "--world", "twice", "useless")["rows"]
    assert [(row["world"], row["choice"]) for row in rows] == [
        (world, choice) for world in ("twice", "useless") for choice in ("highest", "cautious")
    ]
    twice, cautious, useless, _ = rows
    assert useless["gain"] == 0 == useless["worse"]
    assert twice["keeps_start"] <= cautious["keeps_start"]
    assert twice["trials"] == cautious["trials"] > 6  # stopped ones count less than one evaluation


def test_a_search_of_several_families_is_simulated() -> None:
    from studies.search_price import FAMILIES, Kind, search

    outcomes = [
        search(Kind("useless", "random", "evaluations", 30, (*FAMILIES,)), s)[0] for s in (0, 1)
    ]
    for outcome in outcomes:
        assert outcome.gain in {gain for gain, _ in FAMILIES.values()}
        assert outcome.best_family == (outcome.gain == 0.03)


@pytest.mark.nightly
def test_segmentation_gives_the_memory_beyond_the_label_maps() -> None:
    small = ["--of", "segmentation", "--shape", "100", "256", "256", "--threads", "1"]
    result = run_process("-m", "studies.memory", *small)["memory"]["segmentation"]
    assert result["label_maps_mib"] == pytest.approx(2 * 100 * 256 * 256 / 2**20, rel=1e-3)
    own = 2 * 100 * 256 * 256 / 2**20  # each side as classes
    assert own < result["over_label_maps_mib"] < 60 * own


@pytest.mark.nightly
def test_a_score_run_whose_worker_is_killed_has_the_bytes_of_another() -> None:
    small = ["--cases", "16", "--kill", "1", "--shape", "24", "48", "48"]
    result = run_process("-m", "studies.score_run", *small)
    assert result["same_bytes"]
    assert (result["scored"], result["quarantined"]) == (16, 0)
    assert "/" not in json.dumps(result["settings"])


@pytest.mark.nightly
def test_detectors_give_the_memory_beyond_the_bank() -> None:
    small = ["--records", "20000", "--queries", "20", "--width", "64", "--threads", "1"]
    result = run_process("-m", "studies.memory", "--of", "detectors", *small)
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


@pytest.mark.skipif(not installed(), reason=MISSING)
def test_scores_of_pytorch_ood_are_ours_or_defined_otherwise() -> None:
    small = ["--records", "300", "--bank", "300", "--width", "16", "--classes", "4"]
    table = run("studies.pytorch_ood", *small, "--threads", "1")["detectors"]
    assert table.keys() == PEERS.keys()
    for figures in table.values():
        assert figures["same_scores"] == ("largest_difference_in_sd" in figures)
        assert figures["same_scores"] == ("differs" not in figures)
