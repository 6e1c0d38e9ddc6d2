"""Splits and label settings: deterministic, disjoint, nested."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmd_ray.data.splits import balanced_splits, hashed_split, label_subset, stable_fraction
from benchmd_ray.errors import BenchmdError

one_class = st.lists(st.integers(0, 6), min_size=1, max_size=200).map(
    lambda labels: np.eye(7, dtype=np.int8)[labels]
)
any_labels = arrays(
    np.int8, st.tuples(st.integers(1, 120), st.integers(1, 5)), elements=st.integers(-1, 1)
).filter(lambda targets: (targets == 1).any())
sizes = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(sorted)


def test_fraction_is_stable_and_uniform():
    assert stable_fraction("ptb-xl/15709") == pytest.approx(0.8519931482809592, abs=1e-15)
    drawn = np.sort([stable_fraction(str(i)) for i in range(4000)])
    assert np.abs(drawn - (np.arange(4000) + 0.5) / 4000).max() < 0.03


def test_four_fifths_of_the_patients_train():
    splits = [hashed_split("a", str(i)) for i in range(4000)]
    assert set(splits) == {"train", "validation"}
    assert 0.78 < splits.count("train") / 4000 < 0.82
    assert splits == [hashed_split("a", str(i)) for i in range(4000)]
    assert splits != [hashed_split("b", str(i)) for i in range(4000)]


@given(one_class, st.integers(1, 30), st.integers(0, 5))
def test_single_label_setting_holds_that_many_of_each_class(targets, per_class, seed):
    rows = label_subset(targets, per_class, "single-label", seed)
    assert np.array_equal(rows, np.unique(rows))
    assert np.array_equal(
        targets[rows].sum(axis=0), np.minimum(per_class, targets.sum(axis=0, dtype=int))
    )


@settings(max_examples=300)
@given(any_labels, st.integers(1, 12), st.integers(0, 5))
def test_multi_label_setting_fills_or_exhausts_each_class(targets, per_class, seed):
    rows = label_subset(targets, per_class, "multi-label", seed)
    assert np.array_equal(rows, np.unique(rows))
    held, there = (targets[rows] == 1).sum(axis=0), (targets == 1).sum(axis=0)
    assert (held >= np.minimum(per_class, there)).all()
    assert len(rows) <= per_class * targets.shape[1]
    assert (targets[rows] == 1).any(axis=1).all()


@settings(max_examples=300)
@given(any_labels, sizes, st.integers(0, 3))
def test_multi_label_settings_are_nested(targets, per_class, seed):
    small, large = (set(label_subset(targets, n, "multi-label", seed)) for n in per_class)
    full = set(label_subset(targets, None, "multi-label", seed))
    assert small <= large <= full <= set(range(len(targets)))


@given(one_class, sizes, st.integers(0, 3))
def test_single_label_settings_are_nested(targets, per_class, seed):
    small, large = (set(label_subset(targets, n, "single-label", seed)) for n in per_class)
    assert small <= large <= set(range(len(targets)))


def test_rows_that_count_for_several_classes_displace_none():
    rng = np.random.default_rng(3)
    for seed in range(20):
        targets = (rng.random((400, 5)) < 0.3).astype(np.int8)
        small, medium, large = (
            set(label_subset(targets, n, "multi-label", seed)) for n in (8, 64, 256)
        )
        assert small < medium <= large


def test_class_that_other_classes_filled_draws_no_more():
    targets = np.ones((10, 3), np.int8)
    assert len(label_subset(targets, 4, "multi-label", 0)) == 4


def test_unlabelled_rows_are_never_drawn():
    targets = np.array([[-1, -1], [1, 0], [-1, 0], [-1, -1], [0, 1]], np.int8)
    assert label_subset(targets, None, "multi-label", 0).tolist() == [1, 2, 4]
    assert label_subset(targets, 9, "multi-label", 0).tolist() == [1, 4]


def test_a_row_without_its_one_class_is_not_labelled():
    targets = np.array([[-1, 0, 0], [1, 0, 0], [0, 0, 0], [0, -1, 1]], np.int8)
    assert label_subset(targets, None, "single-label", 0).tolist() == [1, 3]
    assert label_subset(targets, 9, "single-label", 0).tolist() == [1, 3]
    assert label_subset(targets, None, "multi-label", 0).tolist() == [0, 1, 2, 3]


def test_draw_depends_on_the_seed_alone():
    targets = np.eye(7, dtype=np.int8)[np.random.default_rng(0).integers(0, 7, 500)]
    first = label_subset(targets, 8, "single-label", 1)
    assert np.array_equal(first, label_subset(targets, 8, "single-label", 1))
    assert not np.array_equal(first, label_subset(targets, 8, "single-label", 2))


@pytest.mark.parametrize("rows", [0, 3])
def test_split_without_positives_is_refused(rows):
    with pytest.raises(BenchmdError, match=f"none of the {rows} training records has a positive"):
        label_subset(np.zeros((rows, 2), np.int8), 8, "multi-label", 0)


SHARES = {"train": 0.7, "validation": 0.15, "test": 0.15}


@pytest.mark.parametrize("seed", range(20))
def test_balanced_splits_keep_patients_together_and_classes_in_their_shares(seed):
    rng = np.random.default_rng(seed)
    patients = [f"p{n}" for n in rng.integers(0, 150, 400)]
    kind = {patient: rng.choice(["a", "b", "c"], p=[0.7, 0.25, 0.05]) for patient in set(patients)}
    labels = [(kind[patient],) for patient in patients]
    splits = balanced_splits("d", patients, labels, SHARES)
    of_patient = {}
    for patient, split in zip(patients, splits, strict=True):
        of_patient.setdefault(patient, set()).add(split)
    assert all(len(held) == 1 for held in of_patient.values())
    for name in "abc":
        own = [next(iter(of_patient[patient])) for patient in kind if kind[patient] == name]
        for split, share in SHARES.items():
            held = own.count(split)
            # within one patient of the share, and at least one where there are enough
            assert abs(held - share * len(own)) <= 1 + (len(own) < 20)
            assert held >= 1 or len(own) < 3
    order = rng.permutation(len(patients))
    again = balanced_splits("d", [patients[n] for n in order], [labels[n] for n in order], SHARES)
    assert again == [splits[n] for n in order]
    assert balanced_splits("other", patients, labels, SHARES) != splits


def test_a_patient_of_several_classes_counts_for_the_rarest():
    patients = [f"p{n}" for n in range(40)]
    labels = [("common", "rare") if n % 10 == 0 else ("common",) for n in range(40)]
    splits = balanced_splits("d", patients, labels, SHARES)
    rare = [splits[n] for n in range(0, 40, 10)]
    assert set(rare) == set(SHARES)


def test_shares_need_not_sum_to_one():
    patients = [f"p{n}" for n in range(100)]
    splits = balanced_splits("d", patients, [("a",)] * 100, {"train": 3, "test": 1})
    assert (splits.count("train"), splits.count("test")) == (75, 25)
