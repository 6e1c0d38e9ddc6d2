import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores import resampling
from benchmd_ray.scores.metrics import auroc_per_class
from benchmd_ray.scores.resampling import (
    group_multiplicities,
    metric_over_folds,
    resampled,
    resampled_means,
)
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.sums import mean_over_classes
from benchmd_ray.scores.support import support


@pytest.fixture(autouse=True)
def no_kept_draws():
    """Each test makes its own draws."""
    resampling._few_weights.cache_clear()


def random_predictions(seed, *, rows=50, classes=3, levels=6, patients=15):
    """Targets with unknowns, scores with many ties, several rows per patient."""
    rng = np.random.default_rng(seed)
    targets = rng.choice([1, 0, -1], size=(rows, classes), p=[0.3, 0.5, 0.2]).astype(np.int8)
    targets[:, 0] = rng.random(rows) < 0.8  # here the negatives are the rarer side
    scores = rng.integers(0, levels, (rows, classes)) / levels
    return targets, scores, np.array([f"p{i:03}" for i in rng.integers(0, patients, rows)])


def bootstrap_auroc(targets, scores, groups, **options):
    """AUROC of each class in each resample, (resamples, classes)."""
    return resampled("auroc", targets, scores, groups, "multi-label", **options)[:, 1:]


def auroc_spread(targets, scores, groups, **options):
    """Standard deviation of the mean AUROC over the resamples."""
    return resampled("auroc", targets, scores, groups, "multi-label", **options)[:, 0].std()


def pair_auroc(target, score, weight):
    """Slow reference: the weighted share of (positive, negative) pairs in the right order."""
    p, n = target == 1, target == 0
    pairs = weight[p][:, None] * weight[n][None, :]
    better = score[p][:, None] - score[n][None, :]
    won = np.where(better > 0, 1.0, np.where(better == 0, 0.5, 0.0))
    return (won * pairs).sum() / pairs.sum() if pairs.sum() else np.nan


def binormal(rng, rows, separation=1.2, share=0.5):
    """One class whose AUROC is Phi(separation / sqrt 2)."""
    target = (rng.random(rows) < share).astype(np.int8)
    return target[:, None], (rng.normal(size=rows) + separation * target)[:, None]


@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_agrees_with_scikit_learn_and_counting_pairs(levels):
    targets, scores, groups = random_predictions(0, levels=levels)
    names, group_of_row = np.unique(groups, return_inverse=True)
    got = bootstrap_auroc(targets, scores, groups, resamples=60, seed=5)
    multiplicities = group_multiplicities(len(names), range(60), seed=5)
    for row, counts in zip(got, multiplicities, strict=True):
        weight = counts[group_of_row]
        for value, target, score in zip(row, targets.T, scores.T, strict=True):
            assert value == pytest.approx(pair_auroc(target, score, weight), nan_ok=True)
            drawn = (target >= 0) & (weight > 0)
            if len(set(target[drawn])) == 2:
                expected = roc_auc_score(target[drawn], score[drawn], sample_weight=weight[drawn])
                assert value == pytest.approx(expected)
            else:
                assert np.isnan(value)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 30), st.integers(2, 12), st.integers(1, 6))
def test_agrees_with_counting_pairs_on_anything(seed, rows, patients, levels):
    targets, scores, groups = random_predictions(seed, rows=rows, patients=patients, levels=levels)
    names, group_of_row = np.unique(groups, return_inverse=True)
    got = bootstrap_auroc(targets, scores, groups, resamples=4)
    for row, counts in zip(got, group_multiplicities(len(names), range(4)), strict=True):
        expected = [
            pair_auroc(t, s, counts[group_of_row]) for t, s in zip(targets.T, scores.T, strict=True)
        ]
        if len(names) > 1:
            np.testing.assert_allclose(row, expected, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_negated_scores_give_one_minus_auroc(seed):
    targets, scores, groups = random_predictions(seed)
    np.testing.assert_allclose(
        bootstrap_auroc(targets, -scores, groups, resamples=5),
        1 - bootstrap_auroc(targets, scores, groups, resamples=5),
        atol=1e-12,
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([np.exp, np.arctan, lambda s: 3 * s - 7]))
def test_monotone_transform_changes_nothing(seed, transform):
    targets, scores, groups = random_predictions(seed)
    np.testing.assert_array_equal(
        bootstrap_auroc(targets, transform(scores), groups, resamples=5),
        bootstrap_auroc(targets, scores, groups, resamples=5),
    )


def test_row_order_does_not_matter():
    targets, scores, groups = random_predictions(1)
    order = np.random.default_rng(0).permutation(len(groups))
    np.testing.assert_array_equal(
        bootstrap_auroc(targets, scores, groups, resamples=50),
        bootstrap_auroc(targets[order], scores[order], groups[order], resamples=50),
    )


def test_chunks_do_not_change_the_values(monkeypatch):
    predictions = random_predictions(2)
    whole = bootstrap_auroc(*predictions, resamples=50)
    for elements, threads in ((7 * 50, 3), (1, 2), (1, 1)):
        monkeypatch.setattr(resampling, "_RANKED_ELEMENTS", elements)
        got = bootstrap_auroc(*predictions, resamples=50, threads=threads)
        np.testing.assert_array_equal(got, whole)


def test_draws_depend_on_seed_and_number_only():
    counts = group_multiplicities(20, range(100), seed=3)
    assert (counts.sum(axis=1) == 20).all()
    assert len(np.unique(counts, axis=0)) == 100
    np.testing.assert_array_equal(group_multiplicities(20, range(40, 50), seed=3), counts[40:50])
    assert (group_multiplicities(20, range(100), seed=4) != counts).any()
    drawn = np.random.default_rng((3, 7)).integers(0, 20, 20)
    np.testing.assert_array_equal(counts[7], [np.sum(drawn == group) for group in range(20)])
    # every group is equally likely: mean 1, standard error about 0.1 over 100 draws
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.5)


def test_same_patients_give_paired_resamples():
    targets, scores, groups = random_predictions(4, levels=1000)
    a = bootstrap_auroc(targets, scores, groups, resamples=200)
    noise = np.random.default_rng(0).normal(scale=0.01, size=scores.shape)
    b = bootstrap_auroc(targets, scores + noise, groups, resamples=200)
    paired = np.nanstd(mean_over_classes(a) - mean_over_classes(b))
    assert paired < 0.3 * np.nanstd(mean_over_classes(a))


def test_class_without_positives_is_not_scored():
    targets, scores, groups = random_predictions(5)
    targets[:, 1] = 0
    values = bootstrap_auroc(targets, scores, groups, resamples=100)
    np.testing.assert_array_equal(np.isnan(values).all(axis=0), [False, True, False])
    kept = [0, 2]
    without = auroc_spread(targets[:, kept], scores[:, kept], groups, resamples=100)
    assert auroc_spread(targets, scores, groups, resamples=100) == without


def test_class_lost_in_a_resample_is_excluded_of_its_mean():
    targets, scores, groups = random_predictions(6)
    targets[:, 1] = groups == groups[0]  # one patient carries the class
    values = bootstrap_auroc(targets, scores, groups, resamples=300)
    lost = np.isnan(values[:, 1])
    drawn = group_multiplicities(len(set(groups)), range(300))[
        :, sorted(set(groups)).index(groups[0])
    ]
    np.testing.assert_array_equal(lost, drawn == 0)
    np.testing.assert_allclose(
        mean_over_classes(values)[lost], np.nanmean(values[lost][:, [0, 2]], axis=1)
    )
    assert 0.25 < lost.mean() < 0.5  # 1/e in the limit


@pytest.mark.parametrize("rows", [0, 1, 12])
def test_one_patient_gives_no_values(rows):
    targets = np.resize(np.array([[1], [0]], np.int8), (rows, 1))
    found = bootstrap_auroc(targets, np.arange(rows)[:, None], np.full(rows, "p"), resamples=10)
    assert np.isnan(found).all()


def test_one_bootstrap_gives_the_mean_and_the_classes():
    targets, scores, groups = random_predictions(7, rows=200, patients=80)
    values = resampled("auroc", targets, scores, groups, "single-label", resamples=400, seed=2)
    np.testing.assert_array_equal(values[:, 0], mean_over_classes(values[:, 1:]))
    points = auroc_per_class(targets, scores)
    for point, column in zip([points.mean(), *points], values.T, strict=True):
        low, high = np.quantile(column, (0.1, 0.9))
        assert low < point < high


def test_mean_over_classes_leaves_out_nan():
    got = mean_over_classes(np.array([[0.5, 0.7], [np.nan, 0.7], [np.nan, np.nan]]))
    np.testing.assert_allclose(got, [0.6, 0.7, np.nan])


def test_spread_shrinks_with_patients():
    rng = np.random.default_rng(0)
    spreads = [
        auroc_spread(*binormal(rng, rows), np.arange(rows), resamples=400)
        for rows in (100, 400, 1600)
    ]
    assert 1.4 < spreads[0] / spreads[1] < 2.9  # about 2, as one over the root of n
    assert 1.4 < spreads[1] / spreads[2] < 2.9


def test_copies_of_a_patients_records_do_not_shrink_the_spread():
    targets, scores = binormal(np.random.default_rng(1), 150)
    patients = np.arange(150)
    once = auroc_spread(targets, scores, patients, resamples=400)
    copies = [np.repeat(a, 9, axis=0) for a in (targets, scores, patients)]
    assert auroc_spread(*copies, resamples=400) == once
    naive = auroc_spread(copies[0], copies[1], np.arange(1350), resamples=400)
    assert naive < 0.5 * once  # a third, in the limit


def test_draws_of_few_patients_are_made_once_and_cannot_be_changed(monkeypatch):
    given = *binormal(np.random.default_rng(2), 40), np.arange(40)
    once = auroc_spread(*given, resamples=50)
    monkeypatch.setattr(resampling, "group_multiplicities", None)
    assert auroc_spread(*given, resamples=50) == once
    with pytest.raises(ValueError, match="read-only"):
        resampling._weights(40, range(50), 0)[0, 0] = 9


def test_arguments_out_of_range_are_refused():
    targets, scores, groups = random_predictions(8)
    with pytest.raises(BenchmdError, match=r"groups have shape \(49,\), expected \(50,\)"):
        bootstrap_auroc(targets, scores, groups[1:])
    with pytest.raises(BenchmdError, match=r"resamples must be at least 1, but got 0"):
        bootstrap_auroc(targets, scores, groups, resamples=0)
    with pytest.raises(BenchmdError, match=r"scores are not finite in 50 of 50 rows"):
        bootstrap_auroc(targets, scores * np.nan, groups)


def test_resampled_means_are_of_whole_patients_and_carry_missing_values():
    rng = np.random.default_rng(0)
    values, patients = rng.random((30, 3)), rng.integers(0, 12, 30)
    values[rng.random(values.shape) < 0.4] = np.nan
    found = resampled_means(values, patients, resamples=20, seed=3)
    names = np.unique(patients)
    for row, counts in zip(found, group_multiplicities(len(names), range(20), seed=3), strict=True):
        drawn = np.concatenate([np.flatnonzero(patients == n) for n in np.repeat(names, counts)])
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(row, np.nanmean(values[drawn], axis=0))


def test_means_of_nothing_drawn_and_of_one_patient_are_nan():
    values = np.array([[1.0], [np.nan], [np.nan]])
    found = resampled_means(values, [0, 1, 2], resamples=50)
    assert np.isnan(found).any()
    assert set(found[~np.isnan(found)].tolist()) == {1.0}
    assert np.isnan(resampled_means(values, [0, 0, 0], resamples=5)).all()
    with pytest.raises(BenchmdError, match="resamples must be at least 1"):
        resampled_means(values, [0, 1, 2], resamples=0)


def shifted(rng, patients, folds, apart):
    """Scores of a cross-validation of two classes: each fold's model has an offset of its own."""
    targets = rng.permutation(np.arange(patients) % 2)
    fold = rng.permutation(np.arange(patients) % folds)
    score = rng.normal(size=patients) + apart * targets + 5 * rng.normal(size=folds)[fold]
    both = np.stack([1 - targets, targets], axis=1)
    probability = 1 / (1 + np.exp(-score))
    return both, np.stack([1 - probability, probability], axis=1), fold


def test_a_metric_over_folds_is_the_mean_of_scikit_learn_in_each():
    targets, scores, folds = shifted(np.random.default_rng(0), 60, 5, 1.0)
    value = metric_over_folds("auroc", targets, scores, "single-label", folds)
    of_folds = [roc_auc_score(targets[folds == f, 1], scores[folds == f, 1]) for f in range(5)]
    np.testing.assert_allclose([value.mean, *value.per_class], np.mean(of_folds))
    pooled = metric_over_folds("accuracy", targets, scores, "single-label", folds)
    assert pooled.mean == np.mean(targets.argmax(axis=1) == scores.argmax(axis=1))


def test_a_fold_without_a_class_is_no_part_of_its_mean():
    targets, scores, folds = shifted(np.random.default_rng(1), 30, 3, 1.0)
    targets[folds == 2] = (1, 0)
    value = metric_over_folds("auroc", targets, scores, "single-label", folds)
    of_folds = [roc_auc_score(targets[folds == f, 1], scores[folds == f, 1]) for f in (0, 1)]
    np.testing.assert_allclose(value.mean, np.mean(of_folds))


def test_scores_without_information_give_one_half_over_folds_and_not_pooled():
    """Folds whose share of a class and whose model's offset go together, as in leave-one-out."""
    rng, within, naive = np.random.default_rng(2), [], []
    for _ in range(200):
        fold = np.arange(50) % 5
        share = np.array([0.2, 0.35, 0.5, 0.65, 0.8])
        target = (rng.random(50) < share[fold]).astype(int)
        score = rng.normal(size=50) - 4 * share[fold]  # trained without them, it expects fewer
        both, scores = np.stack([1 - target, target], axis=1), np.stack([-score, score], axis=1)
        within.append(metric_over_folds("auroc", both, scores, "single-label", fold).mean)
        naive.append(roc_auc_score(target, score))
    assert abs(np.mean(within) - 0.5) < 0.02
    assert np.mean(naive) < 0.4


def test_resamples_over_folds_are_those_of_a_slow_loop():
    targets, scores, folds = shifted(np.random.default_rng(3), 40, 4, 1.0)
    groups = np.array([f"p{number:02}" for number in np.random.default_rng(4).permutation(40)])
    drawn = resampled("auroc", targets, scores, groups, "single-label", resamples=5, folds=folds)
    for draw in range(5):
        rng, values = np.random.default_rng((0, draw)), []
        for fold in range(4):
            rows = np.flatnonzero(folds == fold)
            rows = rows[np.argsort(groups[rows])]
            chosen = rows[rng.integers(0, len(rows), len(rows))]
            if len(set(targets[chosen, 1])) == 2:
                values.append(roc_auc_score(targets[chosen, 1], scores[chosen, 1]))
        np.testing.assert_allclose(drawn[draw], np.mean(values))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patients", "folds", "truth"), [(60, 5, 0.7), (100, 5, 0.9), (40, 4, 0.8)]
)
def test_intervals_over_folds_cover_the_truth(patients, folds, truth):
    rng, covered, draws = np.random.default_rng(5), 0, 300
    apart = np.sqrt(2) * norm.ppf(truth)
    groups = np.arange(patients)
    for _ in range(draws):
        about = shifted(rng, patients, folds, apart)
        value = metric_over_folds("auroc", *about[:2], "single-label", about[2]).mean
        drawn = resampled(
            "auroc", *about[:2], groups, "single-label", resamples=200, folds=about[2]
        )
        basis = support(about[0], groups).basis("auroc")
        pooled = pooled_seeds([value], [drawn[:, 0]], basis)
        covered += pooled.low <= truth <= pooled.high
    assert 0.92 * draws <= covered <= 0.995 * draws
