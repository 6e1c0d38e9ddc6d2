import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kruskal, mannwhitneyu, rankdata

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.metrics import auroc
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.subgroups import (
    AGE_BANDS,
    age_band,
    by_subgroup,
    compared_groups,
    probability_of_truth,
)
from benchmd_ray.scores.support import support


def study(seed=0, *, patients=150, rows=400, classes=3, worse=0.0):
    """Single-label rows of patients of three sites; site "c" has its truth blurred by `worse`."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, patients, rows)
    site = np.array(["a", "b", "c"])[rng.integers(0, 3, patients)][groups]
    targets = np.eye(classes, dtype=np.int8)[rng.integers(0, classes, rows)]
    scores = 0.5 * rng.dirichlet(np.ones(classes), rows) + 0.5 * targets
    blurred = site == "c"
    scores[blurred] = worse / classes + (1 - worse) * scores[blurred]
    return targets, [scores], groups, site.tolist()


def options(**changes):
    return {"task": "single-label", "variable": "site", "resamples": 60} | changes


def loop_samples(targets, scores, groups, labels, task):
    """Slow reference: each patient's mean, patient by patient; no patient is in two groups."""
    samples = {}
    for patient in sorted(set(groups)):
        values, label = [], None
        for row in np.flatnonzero(groups == patient):
            given = []
            for target, score in zip(targets[row], scores[row], strict=True):
                if target == 1:
                    given.append(score)
                elif target == 0 and task == "multi-label":
                    given.append(1 - score)
            if given:
                values.append(sum(given) / len(given))
            label = labels[row]
        if values:
            samples.setdefault(label, []).append(sum(values) / len(values))
    return dict(sorted(samples.items()))


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_tests_agree_with_scipy_on_one_value_per_patient(task):
    targets, scores, groups, labels = study(worse=0.2)
    if task == "multi-label":
        rng = np.random.default_rng(1)
        targets = rng.choice([1, 0, -1], size=targets.shape, p=[0.3, 0.5, 0.2]).astype(np.int8)
    found = by_subgroup(targets, scores, groups, labels, **options(task=task))
    samples = loop_samples(targets, scores[0], groups, labels, task)
    assert [g.name for g in found.groups] == ["a", "b", "c"]
    expected = kruskal(*samples.values())
    assert (found.kruskal_h, found.kruskal_p) == pytest.approx(tuple(expected))
    assert [pair[:2] for pair in found.posthoc] == list(combinations("abc", 2))
    for a, b, u, p in found.posthoc:
        test = mannwhitneyu(samples[a], samples[b], alternative="two-sided")
        assert u == pytest.approx(test.statistic)
        assert p == pytest.approx(min(1, 3 * test.pvalue))


def test_kruskal_by_its_formula():
    targets, scores, groups, labels = study(2)
    found = by_subgroup(targets, scores, groups, labels, **options())
    samples = list(loop_samples(targets, scores[0], groups, labels, "single-label").values())
    places, n = rankdata(np.concatenate(samples)), sum(map(len, samples))
    start, total = 0, 0.0
    for sample in samples:
        total += places[start : start + len(sample)].sum() ** 2 / len(sample)
        start += len(sample)
    h = 12 / (n * (n + 1)) * total - 3 * (n + 1)
    assert found.kruskal_h == pytest.approx(h)
    assert found.kruskal_p == pytest.approx(chi2.sf(h, 2))


@pytest.mark.parametrize("seeds", [1, 3])
def test_each_group_has_its_auroc_and_interval_over_the_seeds(seeds):
    targets, (scores,), groups, labels = study(3, worse=0.1)
    rng = np.random.default_rng(0)
    several = [0.9 * scores + 0.1 * rng.random(scores.shape) for _ in range(seeds)]
    found = by_subgroup(targets, several, groups, labels, **options(resamples=80, seed=4))
    for group in found.groups:
        own = np.array(labels) == group.name
        values = [auroc(targets[own], each[own]).mean for each in several]
        assert group.value == pytest.approx(np.mean(values))
        draws = [
            resampled(
                "auroc", targets[own], each[own], groups[own], "single-label", resamples=80, seed=4
            )[:, 0]
            for each in several
        ]
        basis = support(targets[own], groups[own]).basis("auroc")
        pooled = pooled_seeds(values, draws, basis)
        assert (group.low, group.high) == (pooled.low, pooled.high)
        assert (group.rows, group.patients) == (own.sum(), len(set(groups[own])))
        assert (group.unscored, group.caution) == ((), "")
    assert found.variable == "site"
    assert found.excluded == ()


def test_tests_are_of_scores_averaged_over_the_seeds():
    targets, (scores,), groups, labels = study(4, worse=0.3)
    other = np.full_like(scores, 1 / 3)
    found = by_subgroup(targets, [scores, other], groups, labels, **options())
    averaged = by_subgroup(targets, [(scores + other) / 2], groups, labels, **options())
    assert found.kruskal_p == averaged.kruskal_p
    assert found.posthoc == averaged.posthoc


def test_a_group_of_a_rare_class_has_no_interval_and_says_why():
    targets, scores, groups, labels = study(12)
    inside = np.array(labels) == "b"
    targets[inside] = [1, 0, 0]
    targets[np.flatnonzero(inside)[:3]] = [0, 1, 0]
    group = by_subgroup(targets, scores, groups, labels, **options()).groups[1]
    assert not math.isnan(group.value)
    assert np.isnan([group.low, group.high]).all()
    assert group.unscored == (2,)
    assert group.caution == "no interval: 3 patients on the rarer side"


def test_a_group_that_is_worse_is_found_and_equal_groups_are_not():
    different = by_subgroup(*study(4, worse=0.5), **options())
    assert different.kruskal_p < 1e-4
    p = {(a, b): value for a, b, _, value in different.posthoc}
    assert p["a", "c"] < 0.001
    assert p["b", "c"] < 0.001
    assert p["a", "b"] > 0.05
    wrong = [
        by_subgroup(*study(s, classes=2), **options(resamples=1)).kruskal_p < 0.05
        for s in range(60)
    ]
    assert np.mean(wrong) < 0.14


def test_copies_of_a_patients_rows_do_not_change_the_tests():
    targets, scores, groups, labels = study(5, worse=0.2)
    once = by_subgroup(targets, scores, groups, labels, **options())
    copies = by_subgroup(
        np.repeat(targets, 3, axis=0),
        [np.repeat(each, 3, axis=0) for each in scores],
        np.repeat(groups, 3),
        np.repeat(labels, 3).tolist(),
        **options(),
    )
    assert copies.kruskal_p == pytest.approx(once.kruskal_p)
    assert copies.posthoc == once.posthoc
    assert [g.value for g in copies.groups] == pytest.approx([g.value for g in once.groups])


def test_row_order_does_not_matter():
    targets, scores, groups, labels = study(6)
    labels = np.random.default_rng(0).permutation(labels)  # patients are in several groups
    order = np.random.default_rng(1).permutation(len(groups))
    once = by_subgroup(targets, scores, groups, labels.tolist(), **options())
    moved = by_subgroup(
        targets[order],
        [scores[0][order]],
        groups[order],
        labels[order].tolist(),
        **options(),
    )
    assert moved.groups == once.groups
    assert moved.kruskal_p == pytest.approx(once.kruskal_p)


def test_small_groups_and_rows_without_label_are_excluded_and_named():
    targets, scores, groups, labels = study(7)
    labels = [None if g in (0, 1, 2) else "rare" if g in (3, 4) else x
              for g, x in zip(groups, labels, strict=True)]  # fmt: skip
    found = by_subgroup(targets, scores, groups, labels, **options())
    unknown = len(set(groups) & {0, 1, 2})
    assert found.excluded == (("rare", len(set(groups) & {3, 4})), ("unknown", unknown))
    assert [g.name for g in found.groups] == ["a", "b", "c"]
    kept = np.array([x in ("a", "b", "c") for x in labels])
    without = by_subgroup(
        targets[kept], [scores[0][kept]], groups[kept],
        [x for x in labels if x in ("a", "b", "c")], **options(),
    )  # fmt: skip
    assert found.groups == without.groups
    assert (found.kruskal_h, found.posthoc) == (without.kruskal_h, without.posthoc)


@pytest.mark.parametrize("missing", [None, "", "unknown", math.nan])
def test_every_way_to_lack_a_label_is_unknown(missing):
    targets, scores, groups, labels = study(8)
    labels = [missing if x == "c" else x for x in labels]
    found = by_subgroup(targets, scores, groups, labels, **options())
    assert [g.name for g in found.groups] == ["a", "b"]
    assert [name for name, _ in found.excluded] == ["unknown"]


def test_minimum_is_twenty_patients_not_rows():
    groups = np.repeat(np.arange(39), 4)
    labels = ["many" if g < 20 else "few" for g in groups]
    targets = np.eye(2, dtype=np.int8)[np.arange(156) % 2]
    found = by_subgroup(
        targets, [np.full((156, 2), 0.5)], groups, labels, "single-label", variable="x", resamples=9
    )
    assert [(g.name, g.patients, g.rows) for g in found.groups] == [("many", 20, 80)]
    assert found.excluded == (("few", 19),)
    assert np.isnan([found.kruskal_h, found.kruskal_p]).all()  # one group is not a comparison
    assert found.posthoc == ()


def test_groups_of_too_few_patients_whose_truth_is_known_are_not_tested():
    groups = np.arange(75)
    labels = np.repeat(["a", "b", "c"], 25).tolist()
    targets = np.eye(2, dtype=np.int8)[np.arange(75) % 2]
    targets[50:56] = -1  # of group c 19 are known
    scores = [np.random.default_rng(0).dirichlet([1, 1], 75)]
    found = by_subgroup(targets, scores, groups, labels, **options())
    assert [g.patients for g in found.groups] == [25, 25, 19]
    assert [pair[:2] for pair in found.posthoc] == [("a", "b")]
    rows = slice(0, 50)
    without = by_subgroup(targets[rows], [scores[0][rows]], groups[rows], labels[rows], **options())
    assert found.kruskal_p == without.kruskal_p


def test_a_patient_counts_once_in_the_tests():
    """Two frontal views and a lateral one: with the frontal, by its rows there."""
    groups = np.repeat(np.arange(60), 3)
    labels = ["frontal", "frontal", "lateral"] * 40 + ["lateral", "lateral", "frontal"] * 20
    targets = np.eye(2, dtype=np.int8)[np.arange(180) % 2]
    given = np.random.default_rng(0).random(180)
    scores = np.where(targets == 1, given[:, None], 1 - given[:, None])
    found = by_subgroup(targets, [scores], groups, labels, **options(variable="view"))
    means = given.reshape(60, 3)[:, :2].mean(axis=1)
    expected = mannwhitneyu(means[:40], means[40:], alternative="two-sided")
    ((_, _, u, p),) = found.posthoc
    assert (u, p) == pytest.approx((expected.statistic, expected.pvalue))
    assert [g.patients for g in found.groups] == [60, 60]


def test_patients_level_between_groups_are_shared_out():
    groups = np.repeat(np.arange(400), 2)
    labels = ["frontal", "lateral"] * 400
    targets = np.eye(2, dtype=np.int8)[np.arange(800) % 2]
    scores = np.random.default_rng(0).dirichlet([1, 1], 800)
    ((_, _, u, _),) = by_subgroup(targets, [scores], groups, labels, **options()).posthoc
    assert 15_000 < u < 25_000  # about half of 200 × 200; all in one group would be none


def test_group_that_can_score_no_class_has_no_value():
    targets, scores, groups, labels = study(9)
    targets[np.array(labels) == "b"] = [1, 0, 0]
    found = by_subgroup(targets, scores, groups, labels, **options())
    group = found.groups[1]
    assert np.isnan([group.value, group.low, group.high]).all()
    assert group.unscored == (0, 1, 2)
    assert group.caution == ""
    assert not math.isnan(found.kruskal_p)  # the probability given to the truth exists


def test_constant_scores_do_not_differ():
    _, _, groups, labels = study(10)
    targets = np.tile(np.array([[1, 0, 0]], np.int8), (len(groups), 1))
    scores = [np.full(targets.shape, 0.1)]  # sums of several 0.1 round in different ways
    for task in ("single-label", "multi-label"):
        found = by_subgroup(targets, scores, groups, labels, **options(task=task))
        assert (found.kruskal_h, found.kruskal_p) == (0, 1)
        assert {p for *_, p in found.posthoc} == {1}


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_nothing_and_one_patient(rows):
    targets = np.resize(np.array([[1, 0], [0, 1]], np.int8), (rows, 2))
    found = by_subgroup(
        targets, [np.full((rows, 2), 0.5)], np.full(rows, "p"), ["a"] * rows, **options()
    )
    assert found.groups == ()
    assert found.excluded == ((("a", 1),) if rows else ())
    assert np.isnan([found.kruskal_h, found.kruskal_p]).all()


def test_rows_without_a_known_label_have_no_probability():
    targets = np.array([[1, 0, -1], [-1, -1, -1], [0, 0, -1]], np.int8)
    scores = np.array([[0.7, 0.2, 0.1]] * 3)
    single = probability_of_truth(targets, scores, "single-label")
    np.testing.assert_allclose(single, [0.7, np.nan, np.nan])
    multi = probability_of_truth(targets, scores, "multi-label")
    np.testing.assert_allclose(multi, [(0.7 + 0.8) / 2, np.nan, (0.3 + 0.8) / 2])
    found = by_subgroup(
        np.full((60, 3), -1), [np.full((60, 3), 0.5)], np.arange(60), ["a", "b"] * 30, **options()
    )
    assert [g.patients for g in found.groups] == [0, 0]
    assert math.isnan(found.kruskal_p)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 120))
def test_age_bands_are_ten_years(years):
    band = age_band(years)
    assert band in AGE_BANDS
    low, _, high = band.partition("–")
    if high:
        assert int(low) <= years < int(high) + 1
    else:
        assert (band, years >= 90) == ("90+", True)


def test_age_bands_are_in_order_and_complete():
    assert AGE_BANDS[0] == "0–9"
    assert AGE_BANDS[-2:] == ("80–89", "90+")
    assert len(AGE_BANDS) == 10
    assert list(AGE_BANDS) == sorted(AGE_BANDS)
    assert age_band(None) is None
    assert age_band(math.nan) is None
    assert age_band(np.float32(9.99)) == "0–9"
    for wrong in (-1.0, math.inf):
        with pytest.raises(BenchmdError, match="an age must be 0 years or more, but got"):
            age_band(wrong)


def test_arguments_that_do_not_fit_are_refused():
    targets, scores, groups, labels = study(11)
    with pytest.raises(BenchmdError, match=r"labels have shape \(399,\), expected \(400,\)"):
        by_subgroup(targets, scores, groups, labels[1:], **options())
    with pytest.raises(BenchmdError, match=r"groups have shape \(399,\), expected \(400,\)"):
        by_subgroup(targets, scores, groups[1:], labels, **options())
    with pytest.raises(BenchmdError, match=r"probabilities within 0 to 1, but .* are not"):
        by_subgroup(targets, [9 * scores[0]], groups, labels, **options())
    with pytest.raises(BenchmdError, match="unknown task 'single'"):
        by_subgroup(targets, scores, groups, labels, **options(task="single"))


def test_values_of_groups_are_compared_as_scipy_does():
    rng = np.random.default_rng(0)
    values, labels = rng.random(60), list(rng.choice(["a", "b", "c"], 60))
    labels[:8], values[8] = ["", None, "unknown", "rare", "rare", "a", "b", "c"], np.nan
    held = [values[(np.array(labels) == n) & ~np.isnan(values)] for n in ("a", "b", "c")]
    found = compared_groups(values, np.arange(60), labels, least=5)
    assert found.kruskal_p == pytest.approx(kruskal(*held).pvalue)
    assert found.excluded == (("rare", 2), ("unknown", 3))
    assert [pair[:2] for pair in found.posthoc] == [("a", "b"), ("a", "c"), ("b", "c")]
    expected = min(1, 3 * mannwhitneyu(held[0], held[1]).pvalue)
    assert found.posthoc[0][3] == pytest.approx(expected)
    assert compared_groups(values, np.arange(60), labels, least=5, gate=0).posthoc == ()


def test_a_patient_of_several_rows_counts_once_among_the_values_of_a_group():
    values = np.array([0.1, 0.3, 0.5, 0.7] * 5)
    patients = np.repeat(np.arange(10), 2)
    found = compared_groups(values, patients, ["a", "a", "b", "b"] * 5, least=2)
    assert {name: one.tolist() for name, one in found.samples.items()} == {
        "a": [0.2] * 5,
        "b": [0.6] * 5,
    }
