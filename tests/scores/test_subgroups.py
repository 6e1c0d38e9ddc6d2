import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kruskal, mannwhitneyu, norm, rankdata

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.comparison import holm
from benchmd_ray.scores.metrics import auroc
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.subgroups import (
    AGE_BANDS,
    age_band,
    by_subgroup,
    compared_groups,
)
from benchmd_ray.scores.support import support


def study(seed=0, *, patients=150, rows=400, classes=3, worse=0.0):
    """Single-label rows of patients of three sites; a share `worse` of c's scores is noise."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, patients, rows)
    site = np.array(["a", "b", "c"])[rng.integers(0, 3, patients)][groups]
    targets = np.eye(classes, dtype=np.int8)[rng.integers(0, classes, rows)]
    scores = 0.8 * rng.dirichlet(np.ones(classes), rows) + 0.2 * targets
    noise = rng.dirichlet(np.ones(classes), rows)
    blurred = site == "c"
    scores[blurred] = worse * noise[blurred] + (1 - worse) * scores[blurred]
    return targets, [scores], groups, site.tolist()


def options(**changes):
    return {"task": "single-label", "variable": "site", "resamples": 60} | changes


def slow_variance(targets, scores):
    """DeLong's variance of an AUROC, pair by pair; each row is a patient."""
    positive, negative = scores[targets == 1], scores[targets == 0]
    won = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    of_positive, of_negative = won.mean(axis=1), won.mean(axis=0)
    return of_positive.var(ddof=1) / len(positive) + of_negative.var(ddof=1) / len(negative)


def test_two_groups_are_compared_as_two_sets_of_patients():
    """By DeLong's variances, which the bootstrap's come near."""
    rng = np.random.default_rng(0)
    targets = (rng.random((600, 1)) < 0.4).astype(np.int8)
    labels = np.repeat(["a", "b"], (400, 200))
    scores = 1 / (1 + np.exp(-rng.normal(targets * np.where(labels == "a", 1.5, 0.7)[:, None])))
    found = by_subgroup(
        targets, [scores], np.arange(600), labels, "multi-label", variable="x", resamples=2000
    )
    (pair,) = found.pairs
    values, variance = [], 0.0
    for name in "ab":
        inside = labels == name
        values.append(auroc(targets[inside], scores[inside]).mean)
        variance += slow_variance(targets[inside, 0], scores[inside, 0])
    assert pair.difference.value == pytest.approx(values[0] - values[1])
    z = (values[0] - values[1]) / math.sqrt(variance)
    assert 2.5 < z < 6
    for p in (pair.difference.p, found.p):  # the first by intervals, which are a little longer
        assert math.log10(p) == pytest.approx(math.log10(2 * norm.sf(z)), abs=1)
    assert pair.p_holm == pair.difference.p
    assert (pair.difference.p < 0.05) == (not pair.difference.low <= 0 <= pair.difference.high)


def test_pairs_are_corrected_together():
    found = by_subgroup(*study(4, worse=0.8), **options(resamples=200))
    assert [(pair.a, pair.b) for pair in found.pairs] == list(combinations("abc", 2))
    corrected = holm([pair.difference.p for pair in found.pairs])
    assert [pair.p_holm for pair in found.pairs] == corrected.tolist()
    assert found.p < 0.01
    p = {(pair.a, pair.b): pair.p_holm for pair in found.pairs}
    assert max(p["a", "c"], p["b", "c"]) < 0.01
    assert p["a", "b"] > 0.05


def test_groups_are_compared_over_the_classes_that_both_can_score():
    targets, (scores,), groups, labels = study(12)
    site = np.array(labels)
    targets[(site == "b") & (targets[:, 2] == 1)] = [1, 0, 0]  # no positive of the last class
    found = by_subgroup(targets, [scores], groups, labels, **options())
    each = {
        name: np.array(auroc(targets[site == name], scores[site == name]).per_class)
        for name in "abc"
    }
    for pair in found.pairs:
        common = [0, 1] if "b" in (pair.a, pair.b) else [0, 1, 2]
        expected = each[pair.a][common].mean() - each[pair.b][common].mean()
        assert pair.difference.value == pytest.approx(expected)


def prevalent(rng, patients=150):
    """Three groups in which a disease is 10, 30 and 50 % frequent, and detected equally well.

    Scores are those of a model that takes it for 30 % frequent everywhere.
    """
    labels = np.repeat(["a", "b", "c"], patients)
    share = np.repeat([0.1, 0.3, 0.5], patients)
    targets = (rng.random((3 * patients, 1)) < share[:, None]).astype(np.int8)
    signal = rng.normal(1.2 * targets)
    scores = 1 / (1 + np.exp(-(math.log(0.3 / 0.7) + 1.2 * signal - 0.72)))
    return targets, scores, labels


def rejected(studies, resamples=100):
    """How often groups are said to differ: in AUROC, and by ranks of the truth's probability."""
    found = np.zeros(2)
    for seed in range(studies):
        targets, scores, labels = prevalent(np.random.default_rng(seed))
        people = np.arange(len(labels))
        tested = by_subgroup(
            targets, [scores], people, labels, "multi-label", variable="x", resamples=resamples
        )
        truth = np.where(targets == 1, scores, 1 - scores)[:, 0]
        found += [tested.p < 0.05, compared_groups(truth, people, labels).kruskal_p < 0.05]
    return found / studies


@pytest.mark.slow
def test_groups_of_equal_auroc_and_other_prevalences_keep_the_level():
    """4 to 6 %, within three standard errors of 600 studies; ranks of the truth do not."""
    of_auroc, of_ranks = rejected(600)
    assert 0.04 - 0.024 < of_auroc < 0.06 + 0.024
    assert of_ranks > 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "area"),
    [([(12, 30), (100, 900)], 0.976), ([(15, 135), (100, 900)], 0.955), ([(20, 60)] * 8, 0.8)],
)
def test_small_groups_near_1_and_many_groups_differ_no_more_often(sizes, area):
    rng, said = np.random.default_rng(0), []
    labels = np.repeat([f"g{n}" for n in range(len(sizes))], [sum(size) for size in sizes])
    targets = np.concatenate([np.repeat([1, 0], size) for size in sizes])[:, None].astype(np.int8)
    people, shift = np.arange(len(labels)), math.sqrt(2) * norm.ppf(area)
    for _ in range(200):
        scores = norm.cdf(rng.normal(shift * targets))
        found = by_subgroup(
            targets, [scores], people, labels, "multi-label", variable="x", resamples=100
        )
        said.append((found.p < 0.05, any(pair.p_holm < 0.05 for pair in found.pairs)))
    assert np.mean(said, axis=0).max() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_kruskal_of_values_by_its_formula():
    rng = np.random.default_rng(2)
    values, labels = rng.random(90), rng.choice(["a", "b", "c"], 90)
    found = compared_groups(values, np.arange(90), labels)
    places, h = rankdata(values), 0.0
    for name in "abc":
        own = places[labels == name]
        h += own.sum() ** 2 / len(own)
    h = 12 / (90 * 91) * h - 3 * 91
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


def test_differences_of_groups_are_means_over_the_seeds():
    targets, (scores,), groups, labels = study(4, worse=0.3)
    blurred = 0.2 * scores + 0.8 * np.random.default_rng(0).dirichlet(np.ones(3), len(scores))
    both = by_subgroup(targets, [scores, blurred], groups, labels, **options())
    each = [by_subgroup(targets, [one], groups, labels, **options()) for one in (scores, blurred)]
    for pair, *alone in zip(both.pairs, *(one.pairs for one in each), strict=True):
        expected = np.mean([one.difference.value for one in alone])
        assert pair.difference.value == pytest.approx(expected)


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
    assert [p.difference.p for p in copies.pairs] == pytest.approx(
        [p.difference.p for p in once.pairs]
    )
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
    assert moved.pairs == once.pairs


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
    assert found.pairs == without.pairs


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
    assert math.isnan(found.p)  # one group is not a comparison
    assert found.pairs == ()


def test_groups_of_too_few_patients_whose_truth_is_known_are_not_tested():
    groups = np.arange(75)
    labels = np.repeat(["a", "b", "c"], 25).tolist()
    targets = np.eye(2, dtype=np.int8)[np.arange(75) % 2]
    targets[50:56] = -1  # of group c 19 are known
    scores = [np.random.default_rng(0).dirichlet([1, 1], 75)]
    found = by_subgroup(targets, scores, groups, labels, **options())
    assert [g.patients for g in found.groups] == [25, 25, 19]
    assert [math.isnan(pair.p_holm) for pair in found.pairs] == [False, True, True]
    rows = slice(0, 50)
    alone = by_subgroup(targets[rows], [scores[0][rows]], groups[rows], labels[:50], **options())
    assert found.p == alone.p  # of the other two groups
    assert "19 patients" in found.pairs[1].difference.caution


def test_a_patient_of_two_groups_counts_in_the_one_of_most_of_its_rows():
    """Of values that are compared by ranks: two frontal views and a lateral one."""
    patients = np.repeat(np.arange(60), 3)
    labels = ["frontal", "frontal", "lateral"] * 40 + ["lateral", "lateral", "frontal"] * 20
    values = np.random.default_rng(0).random(180)
    found = compared_groups(values, patients, labels)
    means = values.reshape(60, 3)[:, :2].mean(axis=1)
    expected = mannwhitneyu(means[:40], means[40:], alternative="two-sided")
    ((_, _, u, p),) = found.posthoc
    assert (u, p) == pytest.approx((expected.statistic, expected.pvalue))


def test_patients_level_between_groups_are_shared_out():
    patients, values = np.repeat(np.arange(400), 2), np.random.default_rng(0).random(800)
    ((_, _, u, _),) = compared_groups(values, patients, ["frontal", "lateral"] * 400).posthoc
    assert 15_000 < u < 25_000  # about half of 200 × 200; all in one group would be none


def test_group_that_can_score_no_class_has_no_value():
    targets, scores, groups, labels = study(9)
    targets[np.array(labels) == "b"] = [1, 0, 0]
    found = by_subgroup(targets, scores, groups, labels, **options())
    group = found.groups[1]
    assert np.isnan([group.value, group.low, group.high]).all()
    assert group.unscored == (0, 1, 2)
    assert group.caution == ""
    assert [math.isnan(pair.p_holm) for pair in found.pairs] == [True, False, True]


def test_constant_scores_and_values_do_not_differ():
    _, _, groups, labels = study(10)
    targets = np.eye(3, dtype=np.int8)[np.random.default_rng(0).integers(0, 3, len(groups))]
    found = by_subgroup(targets, [np.full(targets.shape, 0.1)], groups, labels, **options())
    assert {pair.difference.value for pair in found.pairs} == {0}
    assert math.isnan(found.p)  # nothing says how a difference varies
    of_values = compared_groups(np.full(len(groups), 0.1), groups, labels)
    assert (of_values.kruskal_h, of_values.kruskal_p) == (0, 1)
    assert {p for *_, p in of_values.posthoc} == {1}


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_nothing_and_one_patient(rows):
    targets = np.resize(np.array([[1, 0], [0, 1]], np.int8), (rows, 2))
    found = by_subgroup(
        targets, [np.full((rows, 2), 0.5)], np.full(rows, "p"), ["a"] * rows, **options()
    )
    assert found.groups == ()
    assert found.excluded == ((("a", 1),) if rows else ())
    assert math.isnan(found.p)


def test_groups_without_a_known_label_are_not_compared():
    found = by_subgroup(
        np.full((60, 3), -1), [np.full((60, 3), 0.5)], np.arange(60), ["a", "b"] * 30, **options()
    )
    assert [g.patients for g in found.groups] == [0, 0]
    assert math.isnan(found.p)


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
