import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kendalltau, rankdata, wilcoxon

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.intervals import interval
from benchmd_ray.evaluation.stability import (
    Spread,
    _cliques,
    critical_difference,
    ranking_stability,
    ranks,
)

NAMES = ("scratch", "e-mix", "shed", "mae")


def some_values(seed, *, rows=40, columns=4, levels=5):
    rng = np.random.default_rng(seed)
    return rng.integers(0, levels, (rows, columns)) / levels


def dominated(datasets, techniques, seed=0):
    """The first technique wins everywhere, by another margin each time; the others are noise."""
    rng = np.random.default_rng(seed)
    table = 0.7 + 0.01 * rng.random((datasets, techniques))
    table[:, 0] += 0.1 + 0.01 * np.arange(datasets)
    return table


def test_ranks_are_by_row_and_best_first():
    got = ranks([[0.9, 0.7, 0.8], [0.5, 0.5, 0.6], [0.1, np.nan, 0.2]])
    np.testing.assert_array_equal(got, [[1, 3, 2], [2.5, 2.5, 1], [np.nan] * 3])
    values = some_values(0)
    np.testing.assert_array_equal(ranks(values), [rankdata(-row) for row in values])
    assert ranks(np.empty((0, 3))).shape == (0, 3)
    with pytest.raises(BenchmdError, match=r"values have shape \(3,\), expected \(resamples, tech"):
        ranks([1, 2, 3])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 6))
def test_stability_agrees_with_scipy_resample_by_resample(seed, columns, levels):
    values = some_values(seed, columns=columns, levels=levels)
    names = [f"t{i}" for i in range(columns)]
    full = dict(zip(names, values[0], strict=True))
    found = ranking_stability(full, dict(zip(names, values[1:].T, strict=True)))
    expected = rankdata(-values[0])
    drawn = np.array([rankdata(-row) for row in values[1:]])
    with np.errstate(all="ignore"):
        taus = np.array([kendalltau(row, expected).statistic for row in drawn])
    for index, name in enumerate(names):
        assert found.rank[name] == (expected[index], *interval(drawn[:, index]))
    mean = np.nanmean(taus) if not np.isnan(taus).all() else np.nan
    np.testing.assert_allclose(found.tau, [mean, *interval(taus)], atol=1e-12)
    assert [found.rank[n].value for n in found.order] == sorted(expected)
    assert list(found.rank) == list(found.order)


def test_order_that_no_patient_changes():
    values = {"mae": 0.9, "scratch": 0.7, "shed": 0.8}
    noise = np.random.default_rng(0).uniform(-0.01, 0.01, 200)
    found = ranking_stability(values, {name: value + noise for name, value in values.items()})
    assert found.order == ("mae", "shed", "scratch")
    assert found.rank == {"mae": (1, 1, 1), "shed": (2, 2, 2), "scratch": (3, 3, 3)}
    assert found.tau == (1, 1, 1)
    assert isinstance(found.tau, Spread)


def test_order_of_chance_does_not_agree_with_itself():
    rng = np.random.default_rng(1)
    values = {name: 0.8 - 0.001 * i for i, name in enumerate(NAMES)}
    found = ranking_stability(values, {name: rng.normal(0.8, 0.05, 500) for name in NAMES})
    assert abs(found.tau.value) < 0.1
    assert all((low, high) == (1, 4) for _, low, high in found.rank.values())


def test_techniques_that_tie_share_a_rank_and_have_no_tau():
    found = ranking_stability(dict.fromkeys(NAMES, 0.5), {n: np.full(9, 0.5) for n in NAMES})
    assert found.order == NAMES
    assert set(found.rank.values()) == {(2.5, 2.5, 2.5)}
    assert np.isnan(found.tau).all()
    alone = ranking_stability({"mae": 0.9}, {"mae": [0.8, 0.9]})
    assert alone.rank["mae"] == (1, 1, 1)
    assert np.isnan(alone.tau).all()


def test_resamples_without_a_value_are_left_out():
    values = {"a": 0.9, "b": 0.8}
    found = ranking_stability(values, {"a": [0.9, np.nan, 0.9], "b": [0.8, 1.0, 0.8]})
    assert found.rank["a"] == (1, 1, 1)
    assert found.tau.value == 1
    nothing = ranking_stability(values, {"a": np.full(5, np.nan), "b": np.full(5, np.nan)})
    assert nothing.order == ("a", "b")
    assert np.isnan([*nothing.rank["a"][1:], *nothing.tau]).all()
    unscored = ranking_stability({"a": 0.1, "b": math.nan}, {"a": [0.1], "b": [0.2]})
    assert unscored.order == ("a", "b")
    assert np.isnan([unscored.rank["a"].value, unscored.rank["b"].value]).all()


def test_stability_refuses_what_does_not_fit():
    with pytest.raises(BenchmdError, match="values are of a, resamples of b: expected the same"):
        ranking_stability({"a": 1.0}, {"b": [1.0]})
    with pytest.raises(BenchmdError, match="no technique to rank"):
        ranking_stability({}, {})
    with pytest.raises(BenchmdError, match=r"of b have shape \(3,\), those of a \(2,\)"):
        ranking_stability({"a": 1.0, "b": 1.0}, {"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]})


# Demšar 2006, table 6: AUC of C4.5 with m and cf untuned or tuned
DEMSAR = """
.763 .768 .771 .798   .599 .591 .590 .569   .954 .971 .968 .967   .628 .661 .654 .657
.882 .888 .886 .898   .936 .931 .916 .931   .661 .668 .609 .685   .583 .583 .563 .625
.775 .838 .866 .875   1.00 1.00 1.00 1.00   .940 .962 .965 .962   .619 .666 .614 .669
.972 .981 .975 .975   .957 .978 .946 .970"""


def demsar():
    table = np.array(DEMSAR.split(), float).reshape(14, 4)
    table[12, 2] += 1e-4  # the paper ranks these two of "voting" apart, by digits not printed
    return table


def test_published_ranks_and_friedman():
    found = critical_difference(demsar(), ("c45", "m", "cf", "m+cf"))
    assert found.names == ("m+cf", "m", "cf", "c45")
    assert found.mean_ranks == pytest.approx((1.964, 2.000, 2.893, 3.143), abs=5e-4)
    uncorrected = 12 * 14 / (4 * 5) * (np.square(found.mean_ranks).sum() - 4 * 25 / 4)
    assert uncorrected == pytest.approx(9.28, abs=5e-3)
    # the paper does not correct for ties: pairs of equal ranks in 3 datasets, four in one
    ties = 3 * (2**3 - 2) + (4**3 - 4)
    corrected = uncorrected / (1 - ties / (14 * (4**3 - 4)))
    assert found.friedman == pytest.approx(corrected)
    assert found.p == pytest.approx(chi2.sf(corrected, 3))
    assert (found.datasets, found.left_out, found.note) == (14, 0, "")


def test_published_wilcoxon_of_two():
    """Demšar 2006, section 3.1.3: C4.5 and C4.5+m differ at 0.05."""
    found = critical_difference(demsar()[:, :2], ("c45", "m"))
    ((a, b, p),) = found.pairs
    assert (a, b) == ("m", "c45")
    assert p < 0.05
    assert found.cliques == ()
    assert np.isnan([found.friedman, found.p]).all()  # the pair says it


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(6, 9), st.integers(1, 30))
def test_pairs_with_ties_and_zeros_agree_with_flipping_all_signs(seed, datasets, levels):
    table = np.random.default_rng(seed).integers(0, levels, (datasets, 2)) / 10
    differences = np.round(table[:, 0] - table[:, 1], 9)
    sizes = rankdata(np.abs(differences[differences != 0]))
    observed = abs((sizes * np.sign(differences[differences != 0])).sum())
    sums = [abs(np.dot(sizes, signs)) for signs in product((-1, 1), repeat=len(sizes))]
    ((_, _, p),) = critical_difference(table, ("a", "b")).pairs
    assert p == pytest.approx(np.mean(np.array(sums) >= observed - 1e-9))


@pytest.mark.parametrize("datasets", [6, 15, 50])
def test_pairs_without_ties_agree_with_scipy(datasets):
    table = np.random.default_rng(datasets).normal([0.2, 0], 0.4, (datasets, 2))
    ((_, _, p),) = critical_difference(table, ("a", "b")).pairs
    assert p == pytest.approx(wilcoxon(*table.T, method="exact").pvalue)


def test_holm_is_over_all_pairs():
    table = dominated(12, 4)
    found = critical_difference(table, NAMES)
    raw = {}
    for a, b, _ in found.pairs:
        columns = [NAMES.index(a), NAMES.index(b)]
        ((_, _, raw[a, b]),) = critical_difference(table[:, columns], (a, b)).pairs
    steps, most = sorted(raw, key=raw.get), 0.0
    corrected = {pair: p for *pair_, p in found.pairs for pair in [tuple(pair_)]}
    for place, pair in enumerate(steps):
        most = max(most, min(1, raw[pair] * (len(steps) - place)))
        assert corrected[pair] == pytest.approx(most)


def test_a_winner_stands_apart_from_the_rest():
    found = critical_difference(dominated(12, 4), NAMES)
    assert found.names[0] == "scratch"
    assert found.mean_ranks[0] == 1
    assert [set(c) for c in found.cliques] == [{"e-mix", "shed", "mae"}]
    assert found.p < 0.001


def brute_cliques(count, significant):
    runs = [(i, j) for i in range(count) for j in range(i + 2, count + 1)]
    runs = [
        (i, j) for i, j in runs
        if not any((a, b) in significant for a in range(i, j) for b in range(a + 1, j))
    ]  # fmt: skip
    return [r for r in runs if not any(o != r and o[0] <= r[0] and r[1] <= o[1] for o in runs)]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 7), st.floats(0, 1), st.integers(0, 2**32))
def test_cliques_are_the_longest_runs_without_a_significant_pair(count, share, seed):
    rng = np.random.default_rng(seed)
    names = tuple("abcdefg"[:count])
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    p = {
        pair: float(rng.choice([[0.01, 0.05], [0.051, 1]][rng.random() > share])) for pair in pairs
    }
    significant = {pair for pair, value in p.items() if value <= 0.05}
    expected = tuple(names[i:j] for i, j in brute_cliques(count, significant))
    assert _cliques(names, p, 0.05) == expected


@pytest.mark.parametrize(("techniques", "needed"), [(2, 6), (3, 7), (4, 8), (6, 10)])
def test_too_few_datasets_say_so_instead_of_a_p(techniques, needed):
    names = [f"t{i}" for i in range(techniques)]
    few = critical_difference(dominated(needed - 1, techniques), names)
    assert np.isnan([few.friedman, few.p, *(p for _, _, p in few.pairs)]).all()
    assert few.cliques == ()
    assert f"Nothing can be concluded from {needed - 1} datasets" in few.note
    assert few.note.endswith(f"that takes {needed} datasets.")
    assert few.mean_ranks[0] == 1
    enough = critical_difference(dominated(needed, techniques), names)
    assert enough.note == ""
    assert next(p for a, _, p in enough.pairs if a == "t0") <= 0.05


def test_datasets_with_a_missing_technique_are_left_out_and_counted():
    table = dominated(14, 4)
    table[3, 1] = table[5, 2] = np.nan
    found = critical_difference(table, NAMES)
    kept = critical_difference(np.delete(table, [3, 5], axis=0), NAMES)
    assert (found.datasets, found.left_out) == (12, 2)
    assert (found.mean_ranks, found.pairs, found.p) == (kept.mean_ranks, kept.pairs, kept.p)
    few = critical_difference(table[:6], NAMES)
    assert "from 4 datasets (2 left out, where a technique is missing)" in few.note


def test_techniques_that_always_tie_do_not_differ():
    found = critical_difference(np.full((12, 4), 0.7), NAMES)
    assert found.mean_ranks == (2.5,) * 4
    assert (found.friedman, found.p) == (0, 1)
    assert {p for _, _, p in found.pairs} == {1}
    assert found.cliques == (NAMES,)


def test_no_dataset_has_no_ranks():
    for table in (np.empty((0, 4)), np.full((3, 4), np.nan)):
        found = critical_difference(table, NAMES)
        assert np.isnan(found.mean_ranks).all()
        assert found.names == NAMES
        assert "Nothing can be concluded from 0 datasets" in found.note
    assert "from 1 dataset:" in critical_difference(np.ones((1, 4)), NAMES).note


def test_comparison_over_datasets_holds_its_level():
    rng = np.random.default_rng(4)
    found = [
        any(p <= 0.05 for _, _, p in critical_difference(rng.random((12, 4)), NAMES).pairs)
        for _ in range(200)
    ]
    assert np.mean(found) < 0.08


def test_a_table_that_does_not_fit_is_refused():
    with pytest.raises(
        BenchmdError, match=r"the table has shape \(3, 2\), expected \(datasets, 4\)"
    ):
        critical_difference(np.ones((3, 2)), NAMES)
    with pytest.raises(BenchmdError, match="takes two techniques or more, but got 1"):
        critical_difference(np.ones((3, 1)), ["mae"])
    with pytest.raises(BenchmdError, match="level must lie between 0 and 1, but got 5"):
        critical_difference(np.ones((3, 4)), NAMES, level=5)
