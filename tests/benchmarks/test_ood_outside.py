"""Detectors from outside the package that do what they should not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Calibration,
    Detector,
    Head,
    Seen,
    nothing,
)
from benchmd_ray.benchmarks.ood.methods.outside import guarded
from benchmd_ray.errors import BenchmdError


def first(state, seen, head):
    return np.asarray(seen.features[:, 0], np.float64)


METHOD = Detector("first", "first feature", nothing, first, "source")
HEAD = Head(np.ones((2, 3)), np.zeros(2), exclusive=True)


@pytest.fixture
def seen():
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    return Seen(values, values[:, :2].copy(), {"pixels": values.copy()})


def test_a_sound_detector_gives_what_it_gave(seen):
    own = guarded(METHOD)
    assert own.fit(Bank(seen, np.zeros((5, 2)), HEAD)) == {}
    np.testing.assert_array_equal(own.scores({}, seen, HEAD), first({}, seen, HEAD))


def writes(state, seen, head):
    seen.features[:] = 0
    return first(state, seen, head)


def writes_more(state, seen, head):
    seen.more["pixels"] += 1
    return first(state, seen, head)


def writes_head(state, seen, head):
    head.weight[:] = 0
    return first(state, seen, head)


def writes_state(state, seen, head):
    state["own"][:] = 0
    return first(state, seen, head)


@pytest.mark.parametrize("score", [writes, writes_more, writes_head, writes_state])
def test_what_others_read_cannot_be_written_to(seen, score):
    before = seen.features.copy(), seen.more["pixels"].copy()
    with pytest.raises(BenchmdError, match="score of the detector first fails with ValueError"):
        guarded(replace(METHOD, score=score)).score({"own": np.ones(2)}, seen, HEAD)
    np.testing.assert_array_equal(seen.features, before[0])
    np.testing.assert_array_equal(seen.more["pixels"], before[1])
    assert HEAD.weight.all()


def test_the_bank_and_the_records_that_calibrate_cannot_be_written_to(seen):
    def fit(bank):
        bank.targets[:] = 1
        return {}

    def calibrate(state, given, other, head):
        given.seen.logits[:] = 1
        return {}

    own = guarded(replace(METHOD, fit=fit, calibrate=calibrate))
    with pytest.raises(BenchmdError, match="fit of the detector first fails"):
        own.fit(Bank(seen, np.zeros((5, 2)), HEAD))
    given = Calibration(seen, np.zeros(5, bool))
    with pytest.raises(BenchmdError, match="calibrate of the detector first fails"):
        own.calibrate({}, given, given, HEAD)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (np.zeros((5, 1)), r"an array of float64 of shape \(5, 1\), expected .* shape \(5,\)"),
        (np.zeros(4), r"an array of float64 of shape \(4,\), expected"),
        (np.zeros(5, complex), "an array of complex128"),
        (np.array(["a"] * 5), "an array of <U1"),
        (np.array(1.0), r"an array of float64 of shape \(\), expected"),
        (None, "a value of the type NoneType"),
        ([0.0] * 5, "a value of the type list"),
    ],
)
def test_scores_of_another_form_are_refused(seen, found, said):
    own = guarded(replace(METHOD, score=lambda *_: found))
    with pytest.raises(BenchmdError, match=f"score of the detector first gives {said}"):
        own.score({}, seen, HEAD)


@pytest.mark.parametrize("state", [None, [], {"a": 1}, {1: np.ones(2)}, {"a": np.array(["b"])}])
def test_states_of_another_form_are_refused(seen, state):
    own = guarded(replace(METHOD, fit=lambda bank: state))
    with pytest.raises(BenchmdError, match=r"fit of the detector first gives .* a dict of arrays"):
        own.fit(Bank(seen, np.zeros((5, 2)), HEAD))


def test_what_is_computed_once_has_a_row_for_each_record(seen):
    own = guarded(replace(METHOD, once=lambda *_: np.zeros((2, 3))))
    with pytest.raises(BenchmdError, match=r"once .* shape \(2, 3\), expected .* \(5, …\)"):
        own.once({}, seen, HEAD)


@pytest.mark.parametrize("name", ["set", "control", "logits", "pixels", "deep-ensemble"])
def test_names_of_other_columns_are_refused(name):
    with pytest.raises(BenchmdError, match=f"cannot be named {name}"):
        guarded(replace(METHOD, name=name))


def test_needs_and_grids_that_cannot_be_used_are_refused():
    with pytest.raises(BenchmdError, match="needs 'layer': expected a tuple"):
        guarded(replace(METHOD, needs="layer"))
    with pytest.raises(BenchmdError, match="no value of k in its grid"):
        guarded(replace(METHOD, grid={"k": ()}))
