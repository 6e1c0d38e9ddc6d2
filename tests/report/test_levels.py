"""Tests keep their level for every kind of pair that a report makes.

Rows that are equally good are drawn for a few hundred sets of patients and go through the report's
own functions, from predictions to p after Holm's correction. A share of ``DRAWS`` draws has a
standard error of 1.3 points at 5 %.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from kinds import MODALITIES
from stores import make_pretraining, make_transfer, people

from benchmd_ray.report.compared import contest_rows
from benchmd_ray.report.names import names_of
from benchmd_ray.report.pools import pools
from benchmd_ray.report.scored import Scored, measured

CLASSES = MODALITIES["ecg"].task.classes[:3]
PATIENTS, DRAWS = 60, 300
LEVEL, ERROR = 0.05, 0.013


def scratch(store, **changes):
    return make_transfer(store, changes=changes, fixed=not changes)


def pretrained(store, source="ptb-xl", **about):
    upstream = make_pretraining(store, "mae", source=source)
    return make_transfer(store, "mae", upstream=upstream, **about)


ROWS = {
    "scratch": scratch,
    "another architecture": lambda store: scratch(store, encoder={"network": "resnet18-1d"}),
    "pretrained": pretrained,
    "another mode": lambda store: pretrained(store, setting="finetune-full"),
    "another catalog": lambda store: pretrained(store, source="georgia"),
    "tuned": lambda store: scratch(store, tuned="tune-ecg", transfer={"epochs": 7}),
}
PAIRS = [
    ("scratch", "another architecture"),
    ("pretrained", "another mode"),
    ("pretrained", "another catalog"),
    ("scratch", "tuned"),
]


def equal(runs, draw, *, seed=0, catalog="one"):
    """Results of runs that are equally good.

    They share half of the variance of their scores, and records of a patient half of theirs.
    """
    rng = np.random.default_rng([draw, seed])
    rows = 2 * PATIENTS
    patient = np.repeat(np.arange(PATIENTS), 2)
    truth = rng.integers(len(CLASSES), size=PATIENTS)[patient]
    targets = np.eye(len(CLASSES), dtype=np.int8)[truth]

    def noise():
        of_patient, of_record = (rng.normal(size=(n, len(CLASSES))) for n in (PATIENTS, rows))
        return (of_patient[patient] + of_record) / np.sqrt(2)

    shared = noise()
    units = np.array(people(rows)["unit_id"])
    for run in runs:
        scores = 1 / (1 + np.exp(-targets - (shared + noise()) / np.sqrt(2)))
        yield scored(run, catalog, units, patient, targets, scores)


def scored(run, catalog, units, patient, targets, scores):
    task = replace(run.modality.task, classes=CLASSES)
    names = [f"p{number:03d}" for number in patient]
    return Scored(
        run=run,
        about={"dataset": "cpsc", "modality": "ecg", "role": "target", "policy": "clean"}
        | {"catalog": catalog, "task": json.dumps(asdict(task))},
        split="test",
        classes=CLASSES,
        targets=targets,
        scores=scores,
        units=pd.DataFrame({"unit_id": units, "group_id": names}),
        values={},
        resampled={},
    )


def p_of_pairs(results, names):
    pooled, _ = pools(measured(results, ("auroc",), 2), names)
    return [row["p_holm"] for row in contest_rows(pooled)["pairs"]]


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_equal_rows_are_found_to_differ_as_often_as_the_level_says(tmp_path, pair):
    runs = [ROWS[name](tmp_path) for name in pair]
    names = names_of(runs).of_runs
    seed = 1 + PAIRS.index(pair)
    p = np.array([p_of_pairs([*equal(runs, draw, seed=seed)], names) for draw in range(DRAWS)])
    assert p.shape == (DRAWS, 1)
    assert LEVEL - 3 * ERROR < np.mean(p < LEVEL) < LEVEL + 3 * ERROR


@pytest.mark.slow
def test_any_false_pair_of_all_kinds_together_is_as_rare_as_the_level_says(tmp_path):
    runs = [make(tmp_path) for make in ROWS.values()]
    names = names_of(runs).of_runs
    p = np.array([p_of_pairs([*equal(runs, draw)], names) for draw in range(DRAWS // 2)])
    assert p.shape == (DRAWS // 2, len([*combinations(ROWS, 2)]))
    assert np.mean((p < LEVEL).any(axis=1)) < LEVEL + 3 * ERROR * np.sqrt(2)


def test_rows_on_other_records_or_with_other_labels_are_no_pair(tmp_path):
    runs = [make(tmp_path) for make in ROWS.values()]
    fewer = pretrained(tmp_path, setting="finetune-small")
    names = names_of([*runs, fewer]).of_runs
    first, *others = equal([*runs, fewer], 0)
    elsewhere = [*equal(runs[:1], 0, catalog="another")]
    pooled, _ = pools(measured([*elsewhere, *others], ("auroc",), 2), names)
    named = {name for row in contest_rows(pooled)["pairs"] for name in (row["a"], row["b"])}
    assert len(named) == len(runs) - 1
    assert not [name for name in named if name.startswith("scratch, linear")]
    pooled, _ = pools(measured([first, others[-1]], ("auroc",), 2), names)
    assert contest_rows(pooled) == {"pairs": [], "ranking": []}
