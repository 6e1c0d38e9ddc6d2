"""The simulations: populations are what they say, and what the report prints holds in them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from studies.intervals import main, run
from studies.populations import SITUATIONS, Situation, draw, truth_of

DRAWS, RESAMPLES = 80, 100


def situation(name: str) -> Situation:
    (found,) = [one for one in SITUATIONS if one.name.startswith(name)]
    return found


def test_the_truth_is_that_of_a_large_sample() -> None:
    """With seeds that differ, and with records of a patient that are alike."""
    small = Situation("x", (300, 300, 300), records=2, auroc=(0.9, 0.7, 0.8), seeds=40, seed_sd=0.5)
    sample = draw(small, np.random.default_rng(0), [small.auroc])
    for place, truth in enumerate(truth_of(small, "auroc")[1:]):
        values = [roc_auc_score(sample.targets[:, place], s[:, place]) for s in sample.scores[0]]
        error = np.std(values, ddof=1) / math.sqrt(len(values))
        assert np.mean(values) == pytest.approx(truth, abs=4 * error + 0.01)
    one = replace(small, seeds=1, seed_sd=0.0, counts=(9000, 9000, 9000))
    sample = draw(one, np.random.default_rng(1), [one.auroc])
    value = average_precision_score(sample.targets, sample.scores[0][0], average="macro")
    assert truth_of(one, "auprc")[0] == pytest.approx(value, abs=0.01)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("7 classes of 200 patients, rarest class 2", "coverage"),
        ("5 patients with 10 records", "coverage level"),
        ("20 patients with 10 records", ""),
        ("AUROC 0.95, 10 of 200", ""),
    ],
)
def test_tests_hold_their_level_and_intervals_the_truth_or_there_are_none(
    name: str, missing: str
) -> None:
    held = run(situation(name), DRAWS, RESAMPLES, seed=3).statistics
    given = {what: one for what, one in held.items() if one["given"]}
    for kind in ("coverage", "level"):
        assert any(what.startswith(kind) for what in held)
        assert any(what.startswith(kind) for what in given) != (kind in missing)
    for what, one in given.items():
        share, error = one["share"], math.sqrt(0.05 * 0.95 / one["given"])
        assert share is not None
        if what.startswith("level"):
            assert share <= 0.06 + 3 * error, what
        elif "rough" not in what:
            assert share >= 0.93 - 3 * error, what


def test_the_study_prints_json_and_repeats_itself(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--draws", "6", "--resamples", "20", "--only", "gap to 20 patients"]
    found = []
    for _ in range(2):
        main(arguments)
        printed = capsys.readouterr()
        found.append(json.loads(printed.out))
        assert printed.err.startswith("1/1 gap to 20 patients, 2 classes: ")
    first, second = (one["situations"][0]["statistics"] for one in found)
    assert first == second
    assert first["level: gap in auroc"]["given"] == 6
    assert found[0]["settings"] == {"draws": 6, "resamples": 20, "seed": 0}
