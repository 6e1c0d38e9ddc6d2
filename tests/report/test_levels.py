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
from stored import searches
from stores import (
    SEARCH,
    make_ladder,
    make_pretraining,
    make_search,
    make_transfer,
    people,
    write_predictions,
)

from benchmd_ray.report.compared import contest_rows, difference
from benchmd_ray.report.ensembles import ensembles
from benchmd_ray.report.names import names_of
from benchmd_ray.report.pools import pools
from benchmd_ray.report.scored import Scored, Units, measured, read_scored
from benchmd_ray.report.tuning_frames import tuned_pairs

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
        read=lambda: Units(targets, scores, pd.DataFrame({"unit_id": units, "group_id": names})),
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


@pytest.mark.slow
def test_equal_ensembles_of_two_families_differ_as_often_as_the_level_says(tmp_path):
    make_search(tmp_path, **make_ladder())
    runs = []
    for fold in range(2):
        runs.append(make_transfer(tmp_path, setting="finetune-full", fold=fold))
        upstream = make_pretraining(tmp_path, "random-kernels", fold=fold)
        tuned = {"upstream": upstream, "fold": fold, "changes": {"tuned": SEARCH}}
        runs.append(make_transfer(tmp_path, "random-kernels", **tuned))
    names, records, p = names_of(runs).of_runs, searches([tmp_path]), []
    for draw in range(DRAWS // 2):
        for result in equal(runs, draw, seed=9):
            splits = {"test": (people(2 * PATIENTS), result.targets, result.scores)}
            write_predictions(result.run, "cpsc", splits, classes=CLASSES)
        results = measured([r for run in runs for r in read_scored(run).scored], ("auroc",), 2)
        pooled, _ = pools(results, names)
        (pair,) = ensembles(tuned_pairs(pooled, records, runs), pooled, ("auroc",), 2).pairs
        assert [len(pool.runs) for pool in (pair.tuned, pair.start)] == [2, 2]
        p.append(difference(pair.tuned, pair.start, "auroc").p)
    error = ERROR * np.sqrt(2)
    assert LEVEL - 3 * error < np.mean(np.array(p) < LEVEL) < LEVEL + 3 * error


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
