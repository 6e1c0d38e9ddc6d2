import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.support import Basis, caution, effective, support, weaker


def of_classes(*counts, patients=None, records=1):
    """Targets and patients of single-label rows: so many patients of each class."""
    label = np.repeat(np.arange(len(counts)), counts)
    own = np.eye(len(counts), dtype=np.int8)[np.repeat(label, records)]
    return own, np.repeat(np.arange(len(label)), records)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 12))
def test_patients_of_each_side_are_counted(seed, rows, patients):
    rng = np.random.default_rng(seed)
    targets = rng.choice([1, 0, -1], size=(rows, 3)).astype(np.int8)
    groups = np.array([f"p{n}" for n in rng.integers(0, patients, rows)])
    found = support(targets, groups)
    known = groups[(targets != -1).any(axis=1)]
    assert found.patients == len(set(known))
    assert found.effective == pytest.approx(effective(list(Counter(known.tolist()).values())))
    for index, rarer in enumerate(found.rarer):
        sides = [Counter(groups[targets[:, index] == side].tolist()).values() for side in (0, 1)]
        assert rarer == pytest.approx(min(effective(list(held)) for held in sides))


def test_records_of_a_patient_count_once():
    once, many = (support(*of_classes(3, 9, records=n)) for n in (1, 20))
    assert once == many
    assert (once.patients, once.rarer) == (12, (3, 3))


@pytest.mark.parametrize(
    ("patients", "interval", "test"),
    [(1, False, False), (9, False, False), (10, True, False), (19, True, False), (20, True, True)],
)
def test_patients_that_intervals_and_tests_take(patients, interval, test):
    basis = Basis(patients, ())
    assert (basis.no_interval == "", basis.no_test == "") == (interval, test)
    counted = f"{patients} patient{'s' * (patients > 1)}"
    assert {basis.no_interval, basis.no_test} <= {"", counted}


@pytest.mark.parametrize(
    ("rarer", "missing", "rough"),
    [
        (1, "1 patient on the rarer side", ""),
        (4, "4 patients on the rarer side", ""),
        (5, "", "5 patients on the rarer side"),
        (9, "", "9 patients on the rarer side"),
        (10, "", ""),
    ],
)
def test_patients_that_the_interval_of_a_class_takes(rarer, missing, rough):
    held = support(*of_classes(rarer, 40, 40))
    for metric in ("auroc", "balanced_accuracy", "f1"):
        basis = held.basis(metric, 1)
        assert (basis.no_interval, basis.rough, basis.no_test) == (missing, rough, missing)
        assert (held.basis(metric, 2).no_interval, held.basis(metric, 2).rough) == ("", "")
        of_mean = held.basis(metric)
        assert bool(of_mean.no_interval) == bool(missing)
        assert bool(of_mean.rough) == bool(rough)
        assert of_mean.no_test == ""
    for metric in ("accuracy", "brier"):
        assert (held.basis(metric).no_interval, held.basis(metric, 1).rough) == ("", "")


def test_a_mean_says_how_many_classes_are_rare():
    held = support(*of_classes(2, 4, 8, 40, 0))
    assert held.rarer == (2, 4, 8, 40 - 26, 0)
    assert (
        held.basis("auroc").no_interval
        == "2 of 4 classes have fewer than 5 patients on the rarer side"
    )
    few = support(*of_classes(8, 9, 40)).basis("auroc")
    assert few.no_interval == ""
    assert few.rough == "2 of 3 classes have fewer than 10 patients on the rarer side"
    one = support(*of_classes(8, 20, 40)).basis("auroc")
    assert one.rough == "1 of 3 classes has fewer than 10 patients on the rarer side"


def test_a_metric_that_few_records_raise_has_no_interval_however_many_patients():
    basis = support(*of_classes(500, 500)).basis("calibration_error")
    assert METRICS["calibration_error"].least == basis.least == math.inf
    assert basis.no_interval == "few records raise the metric"


@pytest.mark.parametrize(("rarer", "given"), [(99, False), (100, True)])
def test_average_precision_takes_more_positives(rarer, given):
    basis = support(*of_classes(rarer, 300, 300)).basis("auprc")
    assert (basis.no_interval == "") == given
    if not given:
        assert basis.no_interval == ("1 of 3 classes has fewer than 100 patients on the rarer side")


def test_patients_of_many_records_make_all_count_as_fewer():
    records = [1] * 10 + [30, 30]
    groups = np.repeat(np.arange(12), records)
    targets = np.eye(2, dtype=np.int8)[(groups >= 6).astype(int)]
    found = support(targets, groups)
    assert found.patients == 12
    assert found.effective == pytest.approx(70**2 / (10 + 2 * 900))
    assert found.rarer == pytest.approx([64**2 / (4 + 2 * 900)] * 2)
    basis = found.basis("accuracy")
    assert basis.no_interval == basis.no_test == "2 effective patients"
    assert found.basis("auroc", 1).degrees == pytest.approx(64**2 / 1804 - 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_the_effective_number_is_at_most_the_number_and_does_not_depend_on_scale(records):
    found = effective(records)
    assert 1 - 1e-9 <= found <= len(records) + 1e-9
    assert effective(np.multiply(7, records)) == pytest.approx(found)
    assert effective([records[0]] * 9) == pytest.approx(9)
    assert effective([]) == effective([0, 0]) == 0


def test_degrees_of_freedom_of_one_class_and_of_all_patients():
    held = support(*of_classes(6, 40, 40))
    assert held.basis("auroc", 1).degrees == pytest.approx(5)
    assert held.basis("accuracy", 1).degrees == held.basis("accuracy").degrees == 85
    assert math.isnan(support(*of_classes(1, 40)).basis("auroc").degrees)


def test_degrees_of_freedom_of_a_mean_are_satterthwaites():
    counts = (5, 20, 30)
    degrees = support(*of_classes(*counts, 200)).basis("auroc").degrees
    variances = [1 / n for n in (*counts, 55)]  # the last class has fewer negatives
    expected = sum(variances) ** 2 / sum(
        v**2 / (n - 1) for v, n in zip(variances, (*counts, 55), strict=True)
    )
    assert degrees == pytest.approx(expected)
    assert 4 < degrees < 4 + 19 + 29 + 54
    assert support(*of_classes(8, 8, 8)).basis("auroc").degrees == pytest.approx(3 * 7)
    assert support(*of_classes(3, 3, 3, 3)).basis("auroc").degrees == pytest.approx(4 * 2)
    many = support(np.ones((12, 9), int) - 2 * np.eye(12, 9, dtype=int), np.arange(12))
    assert many.patients == 12  # unknown targets: -1


def test_degrees_never_exceed_those_of_all_patients():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (30, 14))
    held = support(labels, np.arange(30))
    assert min(held.rarer) > 5
    assert held.basis("auroc").degrees == 29


def test_two_classes_that_mirror_each_other_count_once():
    one, both = of_classes(6, 60)[0][:, :1], of_classes(6, 60)[0]
    patients = np.arange(66)
    assert support(both, patients).mirrored
    assert support(both, patients).basis("auroc").degrees == 5
    assert support(both, patients).basis("auroc").counts == (6,)
    assert support(one, patients).basis("auroc").degrees == 5
    labels = np.stack([both[:, 0], np.roll(both[:, 0], 3)], axis=1)
    assert not support(labels, patients).mirrored
    assert support(labels, patients).basis("auroc").degrees == 10


def test_a_difference_of_two_sets_of_patients_rests_on_the_fewer():
    many, few = support(*of_classes(300, 300)), support(*of_classes(7, 8))
    for basis in (
        weaker(many.basis("auroc"), few.basis("auroc")),
        weaker(few.basis("auroc"), many.basis("auroc")),
    ):
        assert (basis.patients, basis.counts, basis.degrees) == (15, (7,), 6)
        assert (basis.no_interval, basis.no_test) == ("", "15 patients")
    assert weaker(many.basis("accuracy"), few.basis("accuracy")) == Basis(15, (), 0)
    raised = many.basis("calibration_error")
    assert weaker(raised, raised).no_interval


def test_what_is_missing_for_one_reason_is_said_once():
    assert caution() == ""
    assert caution(interval="8 patients", p="8 patients") == "no interval, no p: 8 patients"
    assert caution(interval="", p="15 patients") == "no p: 15 patients"
    said = caution("6 patients", interval="", p="15 patients")
    assert said == "no p: 15 patients; rough interval: 6 patients"
    assert caution("6 patients", p="6 patients") == "no p, rough interval: 6 patients"


def test_groups_that_do_not_fit_are_refused():
    targets, groups = of_classes(3, 3)
    with pytest.raises(BenchmdError, match=r"groups have shape \(5,\), expected \(6,\)"):
        support(targets, groups[1:])
    assert support(np.empty((0, 2), np.int8), []).rarer == (0, 0)


def test_patients_without_a_known_label_do_not_count():
    rng = np.random.default_rng(0)
    targets = np.full((100, 2), -1)
    targets[:12, 0] = np.arange(12) % 2
    targets[:50, 1] = rng.integers(0, 2, 50)
    people = np.arange(100)
    held = support(targets, people)
    assert (held.patients, held.effective, held.known) == (50, 50, (12, 50))
    own, same = held.basis("auroc", 1), support(targets[:12, :1], people[:12]).basis("auroc", 1)
    assert own == same
    assert own.no_test == "12 patients"
    assert held.basis("auroc", 2).no_test == ""
