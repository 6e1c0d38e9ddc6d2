import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kendalltau, rankdata, wilcoxon

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.stability import (
    RankInterval,
    _cliques,
    critical_difference,
    drawn_ranks,
    paired_ranks,
    ranking_stability,
    ranks,
)

NAMES = ("scratch", "e-mix", "shed", "mae")


def own(datasets):
    """A source for each of some cells."""
    return [f"s{n}" for n in range(datasets)]


def untested(names):
    return dict.fromkeys(combinations(names, 2), math.nan)


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
    drawn = dict(zip(names, values[1:].T, strict=True))
    found = ranking_stability(full, drawn, untested(names))
    expected = rankdata(-values[0])
    with np.errstate(all="ignore"):
        taus = [kendalltau(rankdata(-row), expected).statistic for row in values[1:]]
    for index, name in enumerate(names):
        assert found.rank[name].rank == expected[index]
        assert np.isnan(found.rank[name][1:]).all()
    mean = np.nanmean(taus) if not np.isnan(taus).all() else np.nan
    np.testing.assert_allclose(found.tau, mean, atol=1e-12)
    assert [found.rank[n].rank for n in found.order] == sorted(expected)
    assert list(found.rank) == list(found.order)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_a_rank_may_be_any_that_no_test_rules_out(seed, columns):
    rng = np.random.default_rng(seed)
    names = [f"t{i}" for i in range(columns)]
    values = dict(zip(names, rng.permutation(columns) / 10, strict=True))
    p = {pair: float(rng.choice([0.01, 0.049, 0.05, 0.6])) for pair in combinations(names, 2)}
    found = ranking_stability(values, {name: [values[name]] for name in names}, p)
    for name in names:
        better = worse = 0
        for pair, value in p.items():
            if name in pair and value < 0.05:
                other = pair[0] if pair[1] == name else pair[1]
                better += values[other] > values[name]
                worse += values[other] < values[name]
        rank, low, high = found.rank[name]
        assert (low, high) == (1 + better, columns - worse)
        assert low <= rank <= high


def test_ranks_of_techniques_that_a_test_tells_apart():
    values = {"mae": 0.9, "scratch": 0.7, "shed": 0.8}
    noise = np.random.default_rng(0).uniform(-0.01, 0.01, 200)
    drawn = {name: value + noise for name, value in values.items()}
    certain = ranking_stability(values, drawn, dict.fromkeys(combinations(values, 2), 0.003))
    assert certain.order == ("mae", "shed", "scratch")
    assert certain.rank == {"mae": (1, 1, 1), "shed": (2, 2, 2), "scratch": (3, 3, 3)}
    assert certain.tau == 1
    assert isinstance(certain.rank["mae"], RankInterval)
    p = {("mae", "scratch"): 0.01, ("mae", "shed"): 0.3, ("scratch", "shed"): 0.2}
    assert ranking_stability(values, drawn, p).rank == {
        "mae": (1, 1, 2), "shed": (2, 1, 3), "scratch": (3, 2, 3)
    }  # fmt: skip
    p["mae", "shed"] = math.nan  # not tested
    found = ranking_stability(values, drawn, p).rank
    assert np.isnan([*found["mae"][1:], *found["shed"][1:]]).all()
    assert found["scratch"] == (3, 2, 3)


def test_order_of_chance_does_not_agree_with_itself():
    rng = np.random.default_rng(1)
    values = {name: 0.8 - 0.001 * i for i, name in enumerate(NAMES)}
    drawn = {name: rng.normal(0.8, 0.05, 500) for name in NAMES}
    assert abs(ranking_stability(values, drawn, untested(NAMES)).tau) < 0.1


def test_techniques_that_tie_share_a_rank_and_have_no_tau():
    p = dict.fromkeys(combinations(NAMES, 2), 1.0)
    drawn = {name: np.full(9, 0.5) for name in NAMES}
    found = ranking_stability(dict.fromkeys(NAMES, 0.5), drawn, p)
    assert found.order == NAMES
    assert set(found.rank.values()) == {(2.5, 1, 4)}
    assert math.isnan(found.tau)
    single = ranking_stability({"mae": 0.9}, {"mae": [0.8, 0.9]}, {})
    assert single.rank["mae"] == (1, 1, 1)
    assert math.isnan(single.tau)


def test_resamples_without_a_value_are_skipped():
    values, p = {"a": 0.9, "b": 0.8}, {("a", "b"): 0.01}
    found = ranking_stability(values, {"a": [0.9, np.nan, 0.9], "b": [0.8, 1.0, 0.8]}, p)
    assert found.rank["a"] == (1, 1, 1)
    assert found.tau == 1
    nothing = ranking_stability(values, {name: np.full(5, np.nan) for name in values}, p)
    assert nothing.order == ("a", "b")
    assert math.isnan(nothing.tau)
    unscored = ranking_stability({"a": 0.1, "b": math.nan}, {"a": [0.1], "b": [0.2]}, p)
    assert unscored.order == ("a", "b")
    assert np.isnan([unscored.rank["a"].rank, unscored.rank["b"].rank]).all()


def test_stability_refuses_what_does_not_fit():
    with pytest.raises(BenchmdError, match="values are of a, resamples of b: expected the same"):
        ranking_stability({"a": 1.0}, {"b": [1.0]}, {})
    with pytest.raises(BenchmdError, match="no technique to rank"):
        ranking_stability({}, {}, {})
    with pytest.raises(BenchmdError, match=r"of b have shape \(3,\), those of a \(2,\)"):
        ranking_stability({"a": 1.0, "b": 1.0}, {"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]}, {})


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
    found = critical_difference(demsar(), ("c45", "m", "cf", "m+cf"), own(14))
    assert found.names == ("m+cf", "m", "cf", "c45")
    assert found.mean_ranks == pytest.approx((1.964, 2.000, 2.893, 3.143), abs=5e-4)
    uncorrected = 12 * 14 / (4 * 5) * (np.square(found.mean_ranks).sum() - 4 * 25 / 4)
    assert uncorrected == pytest.approx(9.28, abs=5e-3)
    # the paper does not correct for ties: pairs of equal ranks in 3 datasets, four in one
    ties = 3 * (2**3 - 2) + (4**3 - 4)
    corrected = uncorrected / (1 - ties / (14 * (4**3 - 4)))
    assert found.friedman == pytest.approx(corrected)
    assert found.p == pytest.approx(chi2.sf(corrected, 3))
    assert (found.cells, found.sources, found.skipped, found.note) == (14, 14, 0, "")


def test_published_wilcoxon_of_two():
    """Demšar 2006, section 3.1.3: C4.5 and C4.5+m differ at 0.05."""
    found = critical_difference(demsar()[:, :2], ("c45", "m"), own(14))
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
    ((_, _, p),) = critical_difference(table, ("a", "b"), own(datasets)).pairs
    assert p == pytest.approx(np.mean(np.array(sums) >= observed - 1e-9))


@pytest.mark.parametrize("datasets", [6, 15, 50])
def test_pairs_without_ties_agree_with_scipy(datasets):
    table = np.random.default_rng(datasets).normal([0.2, 0], 0.4, (datasets, 2))
    ((_, _, p),) = critical_difference(table, ("a", "b"), own(datasets)).pairs
    assert p == pytest.approx(wilcoxon(*table.T, method="exact").pvalue)


def test_holm_is_over_all_pairs():
    table = dominated(12, 4)
    found = critical_difference(table, NAMES, own(12))
    raw = {}
    for a, b, _ in found.pairs:
        columns = [NAMES.index(a), NAMES.index(b)]
        ((_, _, raw[a, b]),) = critical_difference(table[:, columns], (a, b), own(12)).pairs
    steps, most = sorted(raw, key=raw.get), 0.0
    corrected = {pair: p for *pair_, p in found.pairs for pair in [tuple(pair_)]}
    for place, pair in enumerate(steps):
        most = max(most, min(1, raw[pair] * (len(steps) - place)))
        assert corrected[pair] == pytest.approx(most)


def test_a_winner_stands_apart_from_the_rest():
    found = critical_difference(dominated(12, 4), NAMES, own(12))
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
@pytest.mark.parametrize("cells", [1, 5])
def test_too_few_sources_say_so_instead_of_a_p(techniques, needed, cells):
    names = [f"t{i}" for i in range(techniques)]

    def of_sources(count):
        table = np.repeat(dominated(count, techniques), cells, axis=0)
        return critical_difference(table, names, [s for s in own(count) for _ in range(cells)])

    few = of_sources(needed - 1)
    assert np.isnan([few.friedman, few.p, *(p for _, _, p in few.pairs)]).all()
    assert few.cliques == ()
    assert (few.cells, few.sources) == (cells * (needed - 1), needed - 1)
    assert f"Nothing can be concluded from {needed - 1} sources" in few.note
    assert few.note.endswith(f"; {needed} sources are needed.")
    assert few.mean_ranks[0] == 1
    enough = of_sources(needed)
    assert enough.note == ""
    assert next(p for a, _, p in enough.pairs if a == "t0") <= 0.05


def test_cells_of_a_source_are_averaged_before_anything_is_tested():
    rng = np.random.default_rng(2)
    sources = rng.permutation(np.repeat(own(9), rng.integers(1, 6, 9))).tolist()
    table = rng.normal([0.8, 0.81, 0.79, 0.78], 0.02, (len(sources), 4))
    found = critical_difference(table, NAMES, sources)
    places = [[s == name for s in sources] for name in own(9)]
    by_source = critical_difference([table[p].mean(axis=0) for p in places], NAMES, own(9))
    p = {frozenset(pair): value for *pair, value in by_source.pairs}
    assert {frozenset(pair): value for *pair, value in found.pairs} == pytest.approx(p)
    assert found.p == pytest.approx(by_source.p)
    mean = np.mean([ranks(table)[p].mean(axis=0) for p in places], axis=0)
    assert found.mean_ranks == pytest.approx(sorted(mean))


def test_cells_with_a_missing_technique_are_skipped_and_counted():
    table = dominated(14, 4)
    table[3, 1] = table[5, 2] = np.nan
    found = critical_difference(table, NAMES, own(14))
    kept = critical_difference(np.delete(table, [3, 5], axis=0), NAMES, own(12))
    assert (found.cells, found.sources, found.skipped) == (12, 12, 2)
    assert (found.mean_ranks, found.pairs, found.p) == (kept.mean_ranks, kept.pairs, kept.p)
    few = critical_difference(table[:6], NAMES, own(6))
    assert "from 4 sources (2 cells skipped, where a technique is missing)" in few.note


def test_techniques_that_always_tie_do_not_differ():
    found = critical_difference(np.full((12, 4), 0.7), NAMES, own(12))
    assert found.mean_ranks == (2.5,) * 4
    assert (found.friedman, found.p) == (0, 1)
    assert {p for _, _, p in found.pairs} == {1}
    assert found.cliques == (NAMES,)


def test_no_cell_has_no_ranks():
    for table in (np.empty((0, 4)), np.full((3, 4), np.nan)):
        found = critical_difference(table, NAMES, own(len(table)))
        assert np.isnan(found.mean_ranks).all()
        assert found.names == NAMES
        assert (found.cells, found.sources) == (0, 0)
        assert "Nothing can be concluded from 0 sources" in found.note
    assert "from 1 source:" in critical_difference(np.ones((1, 4)), NAMES, ["s"]).note


def test_comparison_over_sources_holds_its_level_where_cells_depend_on_each_other():
    """Each source favours some techniques by chance, in all of its cells."""
    rng, sources, cells = np.random.default_rng(4), 12, 5
    of_cell = np.repeat(own(sources), cells).tolist()
    wrong = np.zeros(2)
    for _ in range(200):
        table = np.repeat(rng.normal(0.8, 0.02, (sources, 4)), cells, axis=0)
        table += rng.normal(0, 0.01, table.shape)
        for place, names in enumerate((of_cell, own(sources * cells))):
            pairs = critical_difference(table, NAMES, names).pairs
            wrong[place] += any(p <= 0.05 for _, _, p in pairs)
    assert wrong[0] / 200 < 0.08
    assert wrong[1] / 200 > 0.4  # as if all cells were independent


def test_a_table_that_does_not_fit_is_refused():
    for shape, cells in (((3, 2), 3), ((3, 4), 2)):
        with pytest.raises(
            BenchmdError,
            match=rf"has shape \({shape[0]}, {shape[1]}\), expected \({cells}, 4\): a row",
        ):
            critical_difference(np.ones(shape), NAMES, own(cells))
    with pytest.raises(BenchmdError, match="needs two techniques or more, but got 1"):
        critical_difference(np.ones((3, 1)), ["mae"], own(3))
    with pytest.raises(BenchmdError, match="level must lie between 0 and 1, but got 5"):
        critical_difference(np.ones((3, 4)), NAMES, own(3), level=5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(2, 6))
def test_drawn_ranks_agree_with_scipy_and_their_shares_add_up(seed, columns, levels):
    values = some_values(seed, columns=columns, levels=levels)
    found = drawn_ranks(values[0], values[1:])
    np.testing.assert_allclose(found.shares.sum(axis=0), 1)
    np.testing.assert_allclose(found.shares.sum(axis=1), 1)
    placed = np.array([rankdata(-row) for row in values[1:]])
    np.testing.assert_allclose(found.shares @ np.arange(1, columns + 1), placed.mean(axis=0))
    for row, tau in zip(values[1:], found.taus, strict=True):
        np.testing.assert_allclose(tau, kendalltau(row, values[0]).statistic)
    for technique, low, high in zip(placed.T, found.low, found.high, strict=True):
        assert (technique < low).mean() <= 0.025
        assert (technique > high).mean() <= 0.025
        assert low in technique
        assert high in technique


def test_ranks_without_a_resample_are_not_guessed():
    found = drawn_ranks([0.9, 0.8], np.full((5, 2), np.nan))
    assert found.rank.tolist() == [1, 2]
    assert np.isnan(found.shares).all()
    assert np.isnan(found.low).all()
    assert not found.taus.size
    with pytest.raises(
        BenchmdError, match=r"expected \(techniques,\) and \(resamples, techniques\)"
    ):
        drawn_ranks([0.9, 0.8], np.ones((5, 3)))


@pytest.mark.parametrize("count", [5, 20])
def test_equal_techniques_are_rarely_told_apart(count):
    rng = np.random.default_rng(count)
    studies, several = 200, 0
    for _ in range(studies):
        values = 0.8 + 0.01 * rng.standard_normal(count)
        drawn = values + 0.01 * rng.standard_normal((300, count))
        several += paired_ranks(values, drawn).group.max() > 1
    assert several / studies <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)


def test_what_is_better_by_the_same_in_all_resamples_is_above():
    drawn = np.array([1.0, 0.5, 0.8]) + np.outer(np.linspace(-0.01, 0.01, 100), [0, 0, 1])
    found = paired_ranks([1.0, 0.5, 0.8], drawn)  # perfect, guessing, and one between
    assert found.group.tolist() == [1, 3, 2]
    assert (found.low.tolist(), found.high.tolist()) == ([1, 3, 2], [1, 3, 2])
    assert paired_ranks([0.1 + 0.2, 0.3], np.full((100, 2), 0.3)).group.tolist() == [1, 1]


def test_pairs_that_differ_are_told_apart_and_copies_change_nothing():
    rng = np.random.default_rng(0)
    values = np.array([0.7, 0.9, 0.5, 0.89])
    drawn = values + 0.01 * rng.standard_normal((500, 4))
    told = paired_ranks(values, drawn)
    assert told.group.tolist() == [2, 1, 3, 1]
    assert told.low.tolist() == [3, 1, 4, 1]
    assert told.high.tolist() == [3, 2, 4, 2]
    # the critical value by hand
    pairs = [drawn[:, a] - drawn[:, b] for a, b in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))]
    largest = np.max([np.abs(d - d.mean()) / d.std(ddof=1) for d in pairs], axis=0)
    expected = np.quantile(largest, 0.95) * pairs[0].std(ddof=1)
    assert told.margin[0, 1] == pytest.approx(expected)
    copied = paired_ranks([*values, *[0.7] * 30], np.hstack([drawn, *[drawn[:, :1]] * 30]))
    np.testing.assert_allclose(copied.margin[:4, :4], told.margin)
    assert copied.group.tolist() == [2, 1, 3, 1, *[2] * 30]
    assert (paired_ranks(values, drawn, degrees=5).margin > told.margin)[0, 1]
    untested = paired_ranks(values, drawn[:0])
    assert untested.group.tolist() == [1] * 4
    assert np.isnan(untested.low).all()
