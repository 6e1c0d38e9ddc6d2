"""Detectors against those of pytorch-ood 0.4.0, where it is installed; it is not a dependency."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmd_ray.benchmarks.ood.methods import METHODS, gaussian
from benchmd_ray.benchmarks.ood.methods.method import Seen
from studies.ood_records import Problem
from studies.pytorch_ood import MISSING, PEERS, detectors, difference, installed

pytestmark = pytest.mark.skipif(not installed(), reason=MISSING)

ALIKE = [name for name, peer in PEERS.items() if not peer.differs]


@pytest.fixture(scope="module")
def case():
    """A bank, and records of which some are of none of its classes; all classes are predicted."""
    problem = Problem(width=24, classes=4, seed=1)
    bank = problem.bank(600)
    seen = problem.seen(problem.features(200, out=0.25)[0])
    assert set(seen.logits.argmax(axis=1)) == set(range(4))
    return bank, seen


def both(name, case):
    method, peer = METHODS[name], PEERS[name]
    bank, seen = case[0], peer.comparable(case[1])
    assert len(seen) > 50
    state, theirs = method.fit(bank), peer.fit(bank)
    if peer.align:
        peer.align(theirs.detector, state)
    return method.score(state, seen, bank.head), theirs.scores(seen) * peer.factor(bank)


@pytest.mark.parametrize("name", ALIKE)
def test_scores_are_those_of_pytorch_ood(name, case):
    """To the rounding of float32, which nearly all of theirs are computed in.

    A score sums up to some thousand products, whose rounding is well below 1e-4 of the scores'
    standard deviation. OpenMax raises distances to powers of 1e5: 1e-3.
    """
    ours, theirs = both(name, case)
    assert difference(ours, theirs) < PEERS[name].tolerance


@pytest.mark.parametrize(("name", "times"), [("mahalanobis", 2), ("rmd", 1)])
def test_distances_without_shrinkage_are_those_of_pytorch_ood(name, times, case, monkeypatch):
    """Theirs is half a squared distance for `mahalanobis`, in units of the undivided scatter.

    Its precision is an inverse in float32 of a scatter whose condition is about 1e3: 1e-3.
    """

    def plain(features, groups, means):
        gaps = [features[rows] - mean for rows, mean in zip(groups, means, strict=True)]
        return np.concatenate(gaps).T @ np.concatenate(gaps) / sum(map(len, gaps))

    monkeypatch.setattr(gaussian, "shrunk_covariance", plain)
    ours, theirs = both(name, case)
    assert difference(ours, times * len(case[0].seen) * theirs) < 1e-3


def test_the_temperature_is_the_one_that_their_search_tends_to(case):
    """One search of 50 small steps ends early; each starts where the last one ended."""
    bank, _ = case
    logits = torch.from_numpy(bank.seen.logits)
    classes = torch.from_numpy(bank.targets.argmax(axis=1))
    ours = float(METHODS["temperature"].fit(bank)["temperature"])
    theirs, found = detectors().TemperatureScaling(None), [1.0]
    for _ in range(30):
        theirs.fit_logits(logits, classes)
        found.append(float(theirs.t.detach()))
    away = np.abs(np.array(found) - ours)
    assert (np.diff(away) < 1e-4).all()
    assert away[-1] < 0.05 * away[0]
    least = [
        torch.nn.functional.cross_entropy(logits.double() / t, classes) for t in (ours, *found)
    ]
    assert min(least) == least[0]


def test_tails_of_openmax_are_no_less_likely_than_theirs(case):
    """Of the same largest distances; theirs is a general search that ends at a tolerance."""
    bank, _ = case
    state = METHODS["openmax"].fit(bank)
    theirs = PEERS["openmax"].fit(bank).detector._openmax
    unit = 200 / 201
    right = bank.seen.logits.argmax(axis=1) == bank.targets.argmax(axis=1)
    for k, (shape, place, scale) in enumerate(state["weibull"]):
        own = bank.seen.logits[right & (bank.targets[:, k] == 1)]
        tail = np.sort(theirs._get_dists_to_center(k, own).astype(float))[-20:]
        found = theirs.distributions[k]

        def likelihood(x, c, s):
            return float(np.sum(np.log(c / s) + (c - 1) * np.log(x / s) - (x / s) ** c))

        ours = likelihood(tail - place * unit, shape, scale * unit)
        assert ours > likelihood(tail + 10_000 - found.min_val, found.c, found.scale) - 1e-4


def test_their_openmax_depends_on_the_other_records_of_a_batch(case):
    """It takes 0 for distances to classes that none of them is predicted as; ours does not."""
    bank, seen = case
    state, theirs = METHODS["openmax"].fit(bank), PEERS["openmax"].fit(bank)
    PEERS["openmax"].align(theirs.detector, state)
    alone = Seen(seen.features[:1], seen.logits[:1])
    together, single = theirs.scores(seen)[0], theirs.scores(alone)[0]
    assert abs(together - single) > 0.01 * together
    ours = METHODS["openmax"].score
    assert ours(state, alone, bank.head)[0] == pytest.approx(ours(state, seen, bank.head)[0])
