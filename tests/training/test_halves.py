"""Scores on halves of the validation split, for an epoch that is chosen on other patients."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmd_ray.data.resident import split_table
from benchmd_ray.scores.metrics import auroc, probabilities
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training import selection
from benchmd_ray.training.selection import HALVES, auroc_on, crossed, transfer_data


@pytest.fixture
def source(ecg_catalogs):
    return ecg_catalogs["ptb-xl"]


def test_the_halves_share_no_patient_and_are_scored_apart(source, monkeypatch):
    monkeypatch.setattr(selection, "FEWEST", 2)
    data = transfer_data(Settings(), source, halved=True)
    patients = np.array(split_table(source, "validation", ["group_id"])["group_id"].to_pylist())
    second = data.second_half
    assert not set(patients[second]) & set(patients[~second])
    assert abs(second.sum() - (~second).sum()) <= 0.2 * len(second)
    logits = np.random.default_rng(0).normal(size=data.validation_targets.shape)
    found, scores = data.scores(logits), probabilities(logits, data.task)
    for name, half in (
        ("validation_auroc", slice(None)),
        (HALVES[0], ~second),
        (HALVES[1], second),
    ):
        targets = data.validation_targets[half]
        each = [
            roc_auc_score(column, own)
            for column, own in zip(targets.T, scores[half].T, strict=True)
            if 0 < column.sum() < len(column)
        ]
        assert found[name] == pytest.approx(np.mean(each))


def test_ordinary_runs_and_few_patients_have_no_halves(source, monkeypatch):
    assert transfer_data(Settings(), source).second_half is None
    monkeypatch.setattr(selection, "FEWEST", 10**6)
    data = transfer_data(Settings(), source, halved=True)
    assert data.second_half is None
    assert list(data.scores(np.zeros(data.validation_targets.shape))) == ["validation_auroc"]


def slow_crossed(lines):
    best = [max(range(len(lines)), key=lambda n: lines[n][name]) for name in HALVES]
    return (lines[best[0]][HALVES[1]] + lines[best[1]][HALVES[0]]) / 2


@pytest.mark.parametrize("seed", range(5))
def test_an_epoch_is_scored_where_it_was_not_chosen(seed):
    generator = np.random.default_rng(seed)
    lines = [dict(zip(HALVES, generator.random(2), strict=True)) for _ in range(9)]
    assert crossed(lines) == pytest.approx(slow_crossed(lines))
    odd = {HALVES[0]: math.nan, HALVES[1]: 9.0}
    assert crossed([odd, *lines, odd]) == pytest.approx(slow_crossed(lines))
    assert math.isnan(crossed([odd]))
    assert math.isnan(crossed([{"validation_auroc": 0.5}]))
    assert math.isnan(crossed([]))


def test_a_long_unsteady_training_looks_no_better_than_it_is():
    """All epochs are alike; the highest of 100 noisy scores is 0.06 too high, this is not."""
    generator, found, highest = np.random.default_rng(0), [], []
    for _ in range(200):
        table = generator.normal(0.8, 0.03, (100, 2))
        found.append(crossed([dict(zip(HALVES, row, strict=True)) for row in table]))
        highest.append(table.mean(axis=1).max())
    assert np.mean(highest) > 0.84
    assert abs(np.mean(found) - 0.8) < 0.006


def test_a_device_ranks_to_the_very_number_of_the_host(source):
    generator = np.random.default_rng(1)
    data = replace(transfer_data(Settings(), source), device="meta")
    with pytest.raises(NotImplementedError):  # it is the device that sorts
        data.scores(generator.normal(size=data.validation_targets.shape))
    for rows in (2, 50, 4001):
        targets = generator.integers(-1, 2, (rows, 4)).astype(np.int8)
        targets[:2] = ((1, 1, 0, 0), (0, 1, 0, -1))  # of two rows only one class can be scored
        scores = generator.normal(size=(rows, 4)).round(1)  # tied
        on_device = auroc(targets, scores, partial(auroc_on, "cpu"))
        host = auroc(targets, scores)
        np.testing.assert_array_equal(on_device.per_class, host.per_class)
        assert on_device.mean == host.mean
