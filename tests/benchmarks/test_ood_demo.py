"""The demo of detection: one modality from end to end, and controls that do not hold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from benchmd_ray.benchmarks.ood.demo import (
    NOISE,
    SHOWN,
    STEPS,
    brief_detectors,
    require_controls,
    table_of,
)
from benchmd_ray.benchmarks.ood.methods import METHODS, USUAL, autoencoder
from benchmd_ray.benchmarks.ood.methods.method import Bank, Head, Seen
from benchmd_ray.benchmarks.ood.table import HALF
from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError


def row(method, case, group, value, severity="mean", chance=np.nan):
    return {
        "method": method,
        "use_case": case,
        "group": group,
        "class": severity,
        "value": value,
        "chance": chance,
    }


@pytest.fixture
def scores():
    """Score rows of AUROC in which all controls hold."""
    found = []
    for method in SHOWN:
        found += [
            row(method, "control", "gain-10", 0.5),
            row(method, "control", HALF, 0.6, chance=0.3),
            row(method, "unrelated", NOISE, 0.95),
            row(method, "faulty", "mains-50", 0.6, severity="severity 1"),
            row(method, "faulty", "mains-50", 0.8, severity="severity 2"),
            row(method, "faulty", "all", 0.1),
        ]
    return pd.DataFrame(found)


def changed(scores, group, methods, **values):
    chosen = (scores["group"] == group) & scores["method"].isin(methods)
    for name, value in values.items():
        scores.loc[chosen, name] = value
    return {"ecg": scores}


def test_scores_whose_controls_hold_pass(scores):
    require_controls({"ecg": scores})


def test_a_change_that_the_normalisation_removes_must_not_be_detected(scores):
    rows = changed(scores, "gain-10", ["energy"], value=0.5001)
    message = r"1 control .*: ecg: negative control gain-10: AUROC 0\.5001 by energy"
    with pytest.raises(BenchmdError, match=message):
        require_controls(rows)


@pytest.mark.parametrize(("p", "holds"), [(0.012, False), (0.013, True)])
def test_a_random_half_must_not_be_told_from_the_other(scores, p, holds):
    """At 0.05 by the smallest of four p-values, by Holm's correction."""
    rows = changed(scores, HALF, ["msp"], value=0.9, chance=p)
    if holds:
        require_controls(rows)
        return
    with pytest.raises(BenchmdError, match=r"ecg: random half: AUROC 0\.900 by msp \(p 0\.048\)"):
        require_controls(rows)


def test_chance_counts_all_modalities(scores):
    rows = changed(scores, HALF, ["msp"], chance=0.012)
    others = scores[scores["method"] != "msp"]
    require_controls(rows | {"eeg": others})


def test_white_noise_must_be_detected(scores):
    rows = changed(scores, NOISE, [USUAL[0]], value=0.9)
    message = r"ecg: positive control white-noise: AUROC 0\.900 by mahalanobis-layers, .* more "
    with pytest.raises(BenchmdError, match=message):
        require_controls(rows)


def test_controls_that_are_missing_have_failed(scores):
    rows = {"ecg": scores, "eeg": scores[scores["use_case"] == "faulty"]}
    with pytest.raises(BenchmdError) as failed:
        require_controls(rows)
    head, _, listed = str(failed.value).partition(": ")
    assert head == "3 controls of detection failed"
    assert listed.startswith("eeg: there is no negative control.; ")
    assert all(control.startswith("eeg: ") for control in listed.split("; "))


def test_the_table_has_means_over_sets_and_the_controls(scores):
    table = table_of({"ecg": scores}).set_index("use-case")
    assert list(table.columns) == ["modality", "sets", *SHOWN]
    assert dict(table["sets"]) == {
        "unrelated": 1,
        "faulty": 2,
        "control, cannot be seen": 1,
        "control, random half": 1,
        "control, white-noise": 1,
    }
    assert table.loc["faulty", "energy"] == pytest.approx(0.7)


def test_all_detectors_are_there_and_networks_of_their_own_are_trained_briefly(monkeypatch):
    found = brief_detectors()
    assert list(found) == list(METHODS)
    unchanged = {name for name, method in found.items() if method is METHODS[name]}
    assert set(found) - unchanged == {
        "binary-network",
        *(method.name for method in autoencoder.METHODS),
    }
    taken = []
    monkeypatch.setattr(autoencoder, "_TRAINED", {})
    monkeypatch.setattr(autoencoder, "_train", lambda *given: taken.append(given[-1]) or {})
    pictures = np.random.default_rng(0).random((3, 1, 16), np.float32)
    head = Head(np.zeros((2, 4), np.float32), np.zeros(2, np.float32), exclusive=True)
    seen = Seen(np.zeros((3, 4)), np.zeros((3, 2)), {"pixels": pictures})
    found["vae"].fit(Bank(seen, np.zeros((3, 2)), head))
    assert taken == [STEPS["autoencoder"]]


@pytest.mark.nightly
@pytest.mark.ray
def test_the_demo_of_one_modality_ends_with_controls_that_hold(ray_cluster, tmp_path):
    out = tmp_path / "demo"
    arguments = ["ood", "demo", "--modality", "eeg", "--out", str(out)]
    said = CliRunner().invoke(main, arguments)
    assert said.exit_code == 0, said.output
    for text in ("held out rem", "has it: severe apnoea", "2 done", "All controls hold"):
        assert text in said.output
    cases = ("unrelated", "faulty", "unseen", "shifted", "control, random half")
    assert all(f" {case} " in said.output for case in cases)
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 0
    assert "2 done before" in again.output


def test_an_unknown_modality_is_refused(tmp_path):
    said = CliRunner().invoke(main, ["ood", "demo", "--modality", "ekg", "--out", str(tmp_path)])
    assert said.exit_code == 1
    assert "unknown modality 'ekg'" in said.output
