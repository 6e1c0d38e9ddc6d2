"""Resamples of a detector's AUROC: those of scikit-learn with the patients' weights."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmd_ray.scores import detection
from benchmd_ray.scores.detection import resampled_detection
from benchmd_ray.scores.resampling import group_multiplicities

RESAMPLES = 7


def side(rng, patients, first, records=60):
    """Records with equal scores and several of a patient; patients are numbered from a first."""
    return rng.integers(0, 9, records).astype(float), rng.integers(first, first + patients, records)


def expected(inside, away):
    """One resample at a time, by sample weights."""
    own, others = np.unique(inside[1]), np.unique(away[1])
    if np.intersect1d(own, others).size:
        own = others = np.union1d(own, others)
        weights = [group_multiplicities(len(own), range(RESAMPLES))] * 2
    else:
        weights = [
            group_multiplicities(len(n), range(RESAMPLES), seed=k)
            for k, n in enumerate((own, others))
        ]
    out = np.repeat([0, 1], [len(inside[0]), len(away[0])])
    for first, second in zip(*weights, strict=True):
        of = [*first[np.searchsorted(own, inside[1])], *second[np.searchsorted(others, away[1])]]
        yield roc_auc_score(out, np.concatenate([inside[0], away[0]]), sample_weight=of)


@pytest.mark.parametrize("elements", [1, 150, 1 << 23])
def test_resamples_are_those_of_weighted_records_however_many_at_a_time(elements, monkeypatch):
    monkeypatch.setattr(detection, "_ELEMENTS", elements)
    rng = np.random.default_rng(0)
    inside = side(rng, 20, 0)
    sets = [side(rng, 15, 100), (inside[0] + 1, inside[1]), side(rng, 20, 10), side(rng, 9, 0, 30)]
    draws = resampled_detection(inside, sets, RESAMPLES)
    assert draws.shape == (4, RESAMPLES)
    for found, away in zip(draws, sets, strict=True):
        np.testing.assert_allclose(found, [*expected(inside, away)])
