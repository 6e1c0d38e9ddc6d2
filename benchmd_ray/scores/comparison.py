"""Tests of one technique against another on the same patients, and Holm's correction.

The exchange test needs no variance estimate, so its level is right with few patients and rare
classes; DeLong's test is the field's standard. Both compare the mean AUROC over classes of fixed
trained models; `benchmd_ray.scores.seeds` adds the variation between training seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr
from scipy.stats import rankdata, wilcoxon

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.metrics import checked_groups, checked_predictions
from benchmd_ray.scores.support import support

Floats = npt.NDArray[np.float64]
Targets = npt.NDArray[np.int8]
Patients = npt.NDArray[np.intp]

LEVEL = 0.05
"""Level of significance of differences between techniques, groups or values."""
_ROUNDING = 1e-12
"""Differences and standard errors below this are rounding: metrics lie between 0 and 1."""
EXCHANGES, AT_A_TIME = 20_000, 1_000
"""Maximum number of exchanges of a test, and the number drawn at a time. The test stops once `_FEW`
exchanges gave a difference at least as far from 0 as the observed one.
"""
LEAST_EXCHANGE_P = 1 / (EXCHANGES + 1)
_FEW = 10
_BLOCK = 4096
"""Patients whose exchanges are drawn at a time (33 MB)."""


def holm(p_values: npt.ArrayLike, least: npt.ArrayLike = 0.0) -> Floats:
    """P-values corrected for their number, (tests,), in the order given (Holm 1979).

    NaN stays NaN and does not count as a test. ``least`` is the smallest p that each test can give.
    A test whose smallest p, multiplied by the number of tests, is not below `LEVEL` cannot be
    significant: it becomes NaN and does not count. Tests are dropped in this way one by one, the
    largest smallest p first.
    """
    p = np.array(p_values, np.float64)
    if p.ndim != 1:
        raise BenchmdError(f"p-values have shape {p.shape}, expected (tests,)")
    if ((p < 0) | (p > 1)).any():
        wrong = p[(p < 0) | (p > 1)][0]
        raise BenchmdError(f"p-values must lie within 0 to 1, but got {wrong:g}")
    smallest = np.where(np.isnan(p), -1.0, np.broadcast_to(least, p.shape))
    while smallest.size and smallest.max() * np.count_nonzero(smallest >= 0) >= LEVEL:
        smallest[smallest == smallest.max()] = -1.0
    tested = np.flatnonzero(smallest >= 0)
    order = tested[np.argsort(p[tested], kind="stable")]
    corrected = np.full(len(p), np.nan)
    steps = p[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(order) else steps
    return corrected


def exchange_p(
    targets: npt.ArrayLike,
    scores_a: npt.ArrayLike,
    scores_b: npt.ArrayLike,
    groups: npt.ArrayLike,
    *,
    at_a_time: int = AT_A_TIME,
    most: int = EXCHANGES,
    seed: int = 0,
    folds: npt.NDArray[np.intp] | None = None,
) -> float:
    """Two-sided p of the difference of two mean AUROCs on the same rows (exchange test).

    A permutation test within patients (Bandos, Rockette & Gur 2005): under the null hypothesis the
    two techniques may swap their ranks in any patient. The p is the share of exchanges whose
    difference is at least as far from 0 as the observed one, which is counted as an exchange too
    (Phipson & Smyth 2010). It is 1 for techniques that order all pairs alike and NaN where no class
    can be scored. Every ``at_a_time`` exchanges the test checks whether it can stop.

    Targets are (rows, classes), 1, 0, or -1 for unknown, which is masked per class; higher scores
    mean more likely positive; groups are (rows,), the patient of each row. With ``folds``, (rows,),
    of a cross-validation the AUROC of a class is its mean over folds, each ranked by itself.
    """
    shares = exchange_shares(targets, scores_a, scores_b, groups, folds)
    if not shares.size:
        return math.nan
    return exchange_of_shares(shares, at_a_time=at_a_time, most=most, seed=seed)


def exchange_of_shares(shares: Floats, *, at_a_time: int, most: int, seed: int) -> float:
    """`exchange_p` of the `exchange_shares` of patients."""
    # Stopping early keeps the level. Let n be the first number of draws, of those after which the
    # test may stop, with (1 + _FEW) / (n + 1) <= α, or the most where there is none. A p <= α needs
    # a stop at n or later, and hence a share of the first n that is <= α by itself.
    rng, reached, drawn = np.random.default_rng(seed), 0, 0
    while reached < _FEW and drawn < most:
        count = min(at_a_time, most - drawn)
        reached, drawn = reached + _exchanged(shares, count, rng), drawn + count
    return (1 + reached) / (drawn + 1)


def _exchanged(shares: Floats, draws: int, rng: np.random.Generator) -> int:
    whole = shares.sum()
    shares = shares[shares != 0]
    drawn = np.full(draws, -whole)
    for first in range(0, len(shares), _BLOCK):
        block = shares[first : first + _BLOCK]
        bits = np.frombuffer(rng.bytes(draws * -(-len(block) // 8)), np.uint8).reshape(draws, -1)
        kept = np.unpackbits(bits, axis=1, count=len(block)).astype(np.float64)
        drawn += 2 * (kept @ block)
    return int(np.count_nonzero(np.abs(drawn) >= abs(whole) - _ROUNDING))


def exchange_shares(
    targets: npt.ArrayLike,
    scores_a: npt.ArrayLike,
    scores_b: npt.ArrayLike,
    groups: npt.ArrayLike,
    folds: npt.NDArray[np.intp] | None = None,
) -> Floats:
    """Each patient's share in the difference of the mean AUROC, b minus a, (patients,), sorted.

    The shares add up to the difference. With the signs of some patients flipped, they add up to the
    difference after the techniques have swapped ranks in these patients. Empty where no class can
    be scored. For a pair of a positive i and a negative j let h(x, y) say whether rank x of i is
    above rank y of j. The pair's difference depends on two signs, and equals

        ½ sᵢ [h(b, b) - h(a, a) + h(b, a) - h(a, b)] + ½ sⱼ [h(b, b) - h(a, a) - h(b, a) + h(a, b)]

    for all four combinations. Summed over all negatives j, the term of row i counts how many of
    their ranks, by both techniques, lie below the two ranks of i: O(n log n).
    """
    labels, a, b, patient = _checked(targets, scores_a, scores_b, groups)
    places = np.zeros(len(labels), np.intp) if folds is None else folds
    shares, scored = np.zeros(int(patient.max(initial=-1)) + 1), 0
    for target, *scores in zip(labels.T, a.T, b.T, strict=True):
        within = [
            _shares_of(target[rows], [score[rows] for score in scores], patient[rows], len(shares))
            for rows in (places == fold for fold in np.unique(places))
        ]
        if ranked := [part for part in within if part is not None]:
            scored += 1
            shares += np.mean(ranked, axis=0)
    return shares / scored if scored else np.empty(0)


def _shares_of(
    target: Targets, scores: Sequence[Floats], patient: Patients, patients: int
) -> Floats | None:
    """`exchange_shares` of one class; None without a positive or a negative."""
    positive, negative = target == 1, target == 0
    pairs = np.count_nonzero(positive) * np.count_nonzero(negative)
    if not pairs:
        return None
    shares = np.zeros(patients)
    rows = positive | negative
    ranks = np.zeros((2, len(target)))
    ranks[:, rows] = [rankdata(score[rows]) for score in scores]
    for side, other, sign in ((positive, negative, 1), (negative, positive, -1)):
        both = np.sort(ranks[:, other].ravel())
        side_ranks = ranks[:, side]
        twice = np.searchsorted(both, side_ranks, "left") + np.searchsorted(
            both, side_ranks, "right"
        )
        gained = sign * (twice[1] - twice[0]) / (4 * pairs)
        shares += np.bincount(patient[side], gained, minlength=patients)
    return shares


@dataclass(frozen=True)
class DeLong:
    """DeLong's test of the mean AUROC over classes: technique b minus technique a."""

    difference: float
    """Mean AUROC of b minus that of a; NaN where no class can be scored."""
    se: float
    degrees: float
    p: float
    """Two-sided p from Student's t; 1 for techniques that order all pairs alike. NaN where `se` is
    NaN, and where it is 0 but the difference is not: every patient then shows exactly the same
    difference, so its variance cannot be estimated.
    """


def delong(
    targets: npt.ArrayLike,
    scores_a: npt.ArrayLike,
    scores_b: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
) -> DeLong:
    """DeLong's test of the difference of two mean AUROCs on the same rows.

    DeLong, DeLong & Clarke-Pearson 1988, from mid-ranks (Sun & Xu 2014). With several rows per
    patient (``groups``, (rows,)) the variance of a class is clustered (Obuchowski 1997). Classes
    share their patients, so the variance of the mean includes their covariances. Targets and scores
    are as in `exchange_p`.
    """
    rows = np.arange(len(np.asarray(targets))) if groups is None else groups
    labels, a, b, patient = _checked(targets, scores_a, scores_b, rows)
    parts = _each_class(labels, a, b, patient)
    if not parts:
        return DeLong(math.nan, math.nan, math.nan, math.nan)
    difference = float(np.mean([part.difference for part in parts]))
    degrees = support(labels, patient).basis("auroc").degrees
    if not any(part.differs for part in parts):
        return DeLong(0.0, 0.0, degrees, 1.0)
    sums = np.array([part.up + part.down for part in parts])
    together, patients = sums.sum(axis=0), sums.shape[1]
    between = float(together @ together - np.square(sums).sum()) * patients / max(patients - 1, 1)
    variance = (sum(part.variance for part in parts) + between) / len(parts) ** 2
    if math.isnan(variance):
        return DeLong(difference, math.nan, math.nan, math.nan)
    se = math.sqrt(max(variance, 0.0))
    if se <= _ROUNDING:
        return DeLong(difference, 0.0, degrees, 1.0 if abs(difference) <= _ROUNDING else math.nan)
    return DeLong(difference, se, degrees, 2 * float(stdtr(degrees, -abs(difference) / se)))


def delong_shares(
    targets: npt.ArrayLike, scores_a: npt.ArrayLike, scores_b: npt.ArrayLike, groups: npt.ArrayLike
) -> Floats:
    """Contribution of each patient to the difference of two mean AUROCs, b minus a, (patients,).

    These are centred and scaled deviations whose squares add up to DeLong's variance, except for
    patients with both positives and negatives. A single patient has the whole difference, as its
    variance is unknown. Contributions to several differences can be added patient by patient, which
    gives the variance of their mean. Patients are sorted; empty where no class can be scored.
    """
    parts = _each_class(*_checked(targets, scores_a, scores_b, groups))
    if not parts:
        return np.empty(0)
    return np.asarray(np.mean([part.shares for part in parts], axis=0), np.float64)


@dataclass(frozen=True)
class _Parts:
    """The difference in one class, as sums over patients."""

    difference: float
    up: Floats
    """(patients,): mean over the negatives for each patient's positives, minus the difference."""
    down: Floats
    """(patients,): mean over the positives for each patient's negatives, minus the difference."""
    variance: float
    differs: bool
    """Whether the techniques order any pair differently."""
    shares: Floats
    """(patients,): contribution of each patient, see `delong_shares`."""


def _each_class(labels: Targets, a: Floats, b: Floats, patient: Patients) -> list[_Parts]:
    return [
        _parts(target, score_a, score_b, patient)
        for target, score_a, score_b in zip(labels.T, a.T, b.T, strict=True)
        if (target == 1).any() and (target == 0).any()
    ]


def _parts(target: Targets, a: Floats, b: Floats, patient: Patients) -> _Parts:
    positive, negative = target == 1, target == 0
    m, n = np.count_nonzero(positive), np.count_nonzero(negative)
    (up_a, down_a), (up_b, down_b) = (_won(s[positive], s[negative]) for s in (a, b))
    # differences of counts are exact: techniques of the same order differ by exactly 0
    up, down = (up_b - up_a) / n, (down_b - down_a) / m
    difference, count = float(up.mean()), int(patient.max()) + 1
    of_up, of_down = patient[positive], patient[negative]
    ups, downs = (
        np.asarray(np.bincount(rows, share, minlength=count), np.float64)
        for rows, share in ((of_up, (up - difference) / m), (of_down, (down - difference) / n))
    )
    has_up = np.bincount(of_up, minlength=count) > 0
    has_down = np.bincount(of_down, minlength=count) > 0
    variance = _clustered(ups, downs, has_up, has_down)
    shares = _shares(ups, has_up, difference) + _shares(downs, has_down, difference)
    return _Parts(difference, ups, downs, variance, bool(up.any()) or bool(down.any()), shares)


def _shares(centred: Floats, has: npt.NDArray[np.bool_], difference: float) -> Floats:
    m = np.count_nonzero(has)
    return np.where(has, difference, 0.0) if m == 1 else math.sqrt(m / (m - 1)) * centred


def _won(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Pairs that each positive and each negative row wins and loses: (positives,), (negatives,).

    The mid-rank of a positive among all rows minus its mid-rank among the positives is the number
    of negatives below it, a tie counting one half.
    """
    ranks = rankdata(np.concatenate([positives, negatives]))
    above = ranks[: len(positives)] - rankdata(positives)
    below = ranks[len(positives) :] - rankdata(negatives)
    return above, len(positives) - below


def _clustered(
    up: Floats, down: Floats, has_up: npt.NDArray[np.bool_], has_down: npt.NDArray[np.bool_]
) -> float:
    """Variance of a mean over pairs from its centred parts (patients,) (Obuchowski 1997).

    NaN where the positives or the negatives come from a single patient.
    """
    with_up, with_down = np.count_nonzero(has_up), np.count_nonzero(has_down)
    with_any = np.count_nonzero(has_up | has_down)
    if with_up < 2 or with_down < 2:
        return math.nan
    return float(
        with_up / (with_up - 1) * (up @ up)
        + with_down / (with_down - 1) * (down @ down)
        + 2 * with_any / (with_any - 1) * (up @ down)
    )


def _checked(
    targets: npt.ArrayLike, scores_a: npt.ArrayLike, scores_b: npt.ArrayLike, groups: npt.ArrayLike
) -> tuple[Targets, Floats, Floats, Patients]:
    labels, a = checked_predictions(targets, scores_a)
    _, b = checked_predictions(targets, scores_b)
    return labels, a, b, checked_groups(groups, len(labels))


EXACT = 50
"""Largest number of differences for which p is exact."""
_DIGITS = 12
"""Decimals to which differences are compared: 0.9 - 0.8 and 0.8 - 0.7 are ties."""


class SignedRank(NamedTuple):
    """P-values of differences: 1 where all differences are 0, NaN where nothing was compared."""

    greater: float
    less: float

    @property
    def two_sided(self) -> float:
        """Twice the smaller, at most 1."""
        return min(1.0, 2 * min(self.greater, self.less))


def signed_rank(differences: npt.ArrayLike, *, exact: int = EXACT) -> SignedRank:
    """Wilcoxon's signed-rank test of differences (cases,); NaN for a case without a difference.

    The p is exact for up to ``exact`` differences.
    """
    values = np.asarray(differences, np.float64)
    if values.ndim != 1:
        raise BenchmdError(f"differences have shape {values.shape}, expected (cases,)")
    values = np.round(values[~np.isnan(values)], _DIGITS)
    if not values.size:
        return SignedRank(math.nan, math.nan)
    nonzero = values[values != 0]
    if not nonzero.size:
        return SignedRank(1.0, 1.0)
    if len(nonzero) <= exact:
        return _exact(rankdata(np.abs(nonzero)), nonzero > 0)
    greater, less = (
        float(wilcoxon(nonzero, alternative=side, method="asymptotic").pvalue)
        for side in ("greater", "less")
    )
    return SignedRank(greater, less)


def _exact(absolute_ranks: Floats, positive: npt.NDArray[np.bool_]) -> SignedRank:
    doubled = np.rint(2 * absolute_ranks).astype(np.int64)  # mid-ranks as integers
    total, above = int(doubled.sum()), int(doubled[positive].sum())
    share = np.zeros(total + 1)
    share[0] = 1.0
    for rank in doubled:
        share[rank:] += share[: total + 1 - rank].copy()
        share /= 2
    tails = (share[: total - above + 1].sum(), share[: above + 1].sum())  # it is symmetric
    return SignedRank(*(float(min(1.0, tail)) for tail in tails))


def ordered_pairs(values: npt.ArrayLike) -> Floats:
    """One-sided p that technique a (row) is above technique b (column), (techniques, techniques).

    The diagonal is NaN. Values are (cases, techniques), higher is better. A pair is compared on the
    cases where both techniques have a value.
    """
    table = np.asarray(values, np.float64)
    if table.ndim != 2:
        raise BenchmdError(f"values have shape {table.shape}, expected (cases, techniques)")
    count = table.shape[1]
    p_values = np.full((count, count), np.nan)
    for a in range(count):
        for b in range(a + 1, count):
            p_values[a, b], p_values[b, a] = signed_rank(table[:, a] - table[:, b])
    return p_values


def holm_together(families: npt.ArrayLike) -> Floats:
    """P-values of any shape corrected as one family (`comparison.holm`); NaN is a missing test."""
    p_values = np.asarray(families, np.float64)
    return holm(p_values.ravel()).reshape(p_values.shape)
