"""Differences between groups of patients: sex, age, site, device, view.

Whether the groups' AUROCs are equal is tested by Welch's test of their logits
(`intervals.equality_p`), and each pair of groups over the classes that both can score, with Holm's
correction. AUROC does not depend on how frequent a disease is in a group; no other difference
between groups is adjusted for. Other values of patients, such as Dice scores, are compared by ranks
(`compared_groups`). Small groups and rows without a label (``unknown``) are excluded and named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.stats import kruskal, mannwhitneyu

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.tasks import UNKNOWN, TaskKind
from benchmd_ray.scores.comparison import holm
from benchmd_ray.scores.intervals import equality_p
from benchmd_ray.scores.metrics import checked_predictions, metric
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.scores.seeds import Difference, OverSeeds, pooled_seeds, unpaired_difference
from benchmd_ray.scores.sums import mean_over_classes
from benchmd_ray.scores.support import TEST_PATIENTS, support

Floats = npt.NDArray[np.float64]

UNKNOWN_GROUP = "unknown"
"""Name under which rows without a label are excluded."""
AGE_BANDS = (*(f"{start}–{start + 9}" for start in range(0, 90, 10)), "90+")
"""Bands of ten years; catalogs store ages above 90 as 90."""


def age_band(years: float | None) -> str | None:
    """The band of `AGE_BANDS` for an age; None for None and NaN."""
    if years is None or math.isnan(years):
        return None
    if years < 0 or math.isinf(years):
        raise BenchmdError(f"an age must be 0 years or more, but got {years:g}; None is unknown")
    return AGE_BANDS[min(int(years // 10), len(AGE_BANDS) - 1)]


@dataclass(frozen=True)
class Subgroup:
    """AUROC of one group's patients."""

    name: str
    rows: int
    patients: int
    value: float
    low: float
    """Lower end of the 95 % interval over the group's patients and the seeds; NaN where there is
    none."""
    high: float
    unscored: tuple[int, ...]
    """Indices of the classes with no positive or no negative in this group. If they differ between
    groups, so do the classes of their means.
    """
    caution: str
    """Why there is no interval, or why it is rough; empty where there is nothing to say."""


@dataclass(frozen=True)
class Pair:
    """Two groups, compared."""

    a: str
    b: str
    difference: Difference
    p_holm: float
    """Its p after Holm's correction over all pairs of the variable; NaN without a test."""


@dataclass(frozen=True)
class Subgroups:
    """The groups of one variable, compared."""

    variable: str
    groups: tuple[Subgroup, ...]
    excluded: tuple[tuple[str, int], ...]
    """Name and patients of each group excluded: those too small, then ``unknown``."""
    pairs: tuple[Pair, ...]
    p: float
    """p-value for equal AUROC in all groups (`intervals.equality_p`), over the classes that can be
    scored in all of them. Groups without an interval, or with a rough one, are not tested. NaN
    without a test.
    """


def by_subgroup(
    targets: npt.ArrayLike,
    scores: Sequence[npt.ArrayLike],
    groups: npt.ArrayLike,
    labels: Sequence[str | None],
    task: TaskKind,
    *,
    variable: str,
    resamples: int = 1000,
    seed: int = 0,
) -> Subgroups:
    """AUROC of each group with `support.TEST_PATIENTS` patients or more, and tests between them.

    A patient whose rows are in several groups (two views, two ages) counts in each of them, and the
    tests take the groups as independent.

    Targets are (rows, classes), 1, 0, or -1 for unknown; there are scores for each training seed;
    groups (rows,) are the patient of each row; labels (rows,) are the group of each row: None, NaN,
    empty or ``unknown`` where it is unknown. The variable says what the labels are, such as sex.
    """
    checked = checked_predictions(targets, scores[0])[0]
    seed_scores = [checked_predictions(targets, array)[1] for array in scores]
    patients, named = np.asarray(groups), _named(labels)
    _check(patients, named, len(checked))
    counts = {str(name): len(np.unique(patients[named == name])) for name in np.unique(named)}
    unknown = counts.pop(UNKNOWN_GROUP, 0)
    large = [name for name, count in counts.items() if count >= TEST_PATIENTS]
    small = [(name, count) for name, count in counts.items() if count < TEST_PATIENTS]

    def of_group(name: str) -> _Group:
        inside = named == name
        inner = [array[inside] for array in seed_scores]
        return _group(name, checked[inside], inner, patients[inside], task, resamples, seed)

    groups_of = [of_group(name) for name in large]
    pairs = list(combinations(groups_of, 2))
    differences = [_difference(a, b) for a, b in pairs]
    corrected = holm([difference.p for difference in differences]).tolist()
    return Subgroups(
        variable=variable,
        groups=tuple(map(_subgroup, groups_of)),
        excluded=(*small, *([(UNKNOWN_GROUP, unknown)] if unknown else [])),
        pairs=tuple(
            Pair(a.name, b.name, difference, p)
            for (a, b), difference, p in zip(pairs, differences, corrected, strict=True)
        ),
        p=_equality(groups_of),
    )


@dataclass(frozen=True, eq=False)
class _Group:
    """The rows of a group, and its AUROC."""

    name: str
    targets: npt.NDArray[np.int8]
    patients: npt.NDArray[np.generic]
    values: Floats
    """(seeds, classes); NaN for a class that cannot be scored in the group."""
    draws: Floats
    """(seeds, resamples, classes)."""

    def over(self, classes: npt.NDArray[np.bool_]) -> OverSeeds:
        targets = np.where(classes, self.targets, UNKNOWN)
        basis = support(targets, self.patients).basis("auroc")
        values = mean_over_classes(self.values[:, classes])
        draws = mean_over_classes(self.draws[:, :, classes])
        return OverSeeds.of(values.tolist(), list(draws), basis)

    @property
    def scored(self) -> npt.NDArray[np.bool_]:
        """(classes,), whether each can be scored in the group."""
        return np.asarray(~np.isnan(self.values[0]))


def _equality(groups: Sequence[_Group]) -> float:
    every = np.ones(groups[0].values.shape[1], bool) if groups else np.zeros(0, bool)
    bases = [group.over(every).basis for group in groups]
    tested = [
        group
        for group, basis in zip(groups, bases, strict=True)
        if not (basis.no_test or basis.no_interval or basis.rough) and group.scored.any()
    ]
    common = np.logical_and.reduce([group.scored for group in tested]) if tested else every
    estimates = [group.over(common).estimate for group in tested]
    return equality_p(estimates) if common.any() else math.nan


def _difference(a: _Group, b: _Group) -> Difference:
    common = a.scored & b.scored
    if not common.any():
        return Difference(math.nan, math.nan, math.nan, math.nan, "no class can be scored in both")
    return unpaired_difference(a.over(common), b.over(common), same_models=True)


@dataclass(frozen=True)
class GroupTest:
    """Values of groups of patients, compared."""

    samples: dict[str, Floats]
    """Values of the patients of each group with enough of them, in order of name."""
    excluded: tuple[tuple[str, int], ...]
    """Name and patients of each group excluded: those too small, then ``unknown``."""
    kruskal_h: float
    """Kruskal & Wallis's H; NaN with fewer than two groups."""
    kruskal_p: float
    """Its p; 1 where all patients have the same value."""
    posthoc: tuple[tuple[str, str, float, float], ...]
    """For each pair of groups: names, Mann-Whitney U of the first, two-sided p after Bonferroni."""


def compared_groups(
    values: npt.ArrayLike,
    patients: npt.ArrayLike,
    labels: Sequence[str | None],
    *,
    least: int = TEST_PATIENTS,
    gate: float = 1.0,
    seed: int = 0,
) -> GroupTest:
    """Test whether values differ between groups; a patient counts once, as its rows' mean.

    All are (rows,): values are NaN where missing, labels are as in `by_subgroup`. A group needs
    ``least`` patients; pairs are tested if the p over all groups is at most ``gate``. A patient
    belongs to the group of most of its rows; ties are broken by the seed.
    """
    rows, people, named = np.asarray(values, np.float64), np.asarray(patients), _named(labels)
    _check(people, named, len(rows))
    is_valid = ~np.isnan(rows)
    rows, people, named = rows[is_valid], people[is_valid], named[is_valid]
    names = [str(name) for name in np.unique(named) if name != UNKNOWN_GROUP]
    samples = _one_value_per_patient(rows, people, named, names, seed)
    small = [(name, len(sample)) for name, sample in samples.items() if len(sample) < least]
    samples = {name: sample for name, sample in samples.items() if len(sample) >= least}
    unknown = len(np.unique(people[named == UNKNOWN_GROUP]))
    h, p = _kruskal(list(samples.values()))
    excluded = (*small, *([(UNKNOWN_GROUP, unknown)] if unknown else []))
    return GroupTest(samples, excluded, h, p, _posthoc(samples) if p <= gate else ())


def _named(labels: Sequence[str | None]) -> npt.NDArray[np.str_]:
    # a label that is not equal to itself is NaN, as tables hold where text is missing
    return np.array([str(x) if x and x == x else UNKNOWN_GROUP for x in labels], np.str_)


def _check(patients: npt.NDArray[np.generic], named: npt.NDArray[np.str_], rows: int) -> None:
    for name, array in (("groups", patients), ("labels", named)):
        if array.shape != (rows,):
            raise BenchmdError(
                f"{name} have shape {array.shape}, expected ({rows},): one for each row of targets"
            )


def _group(
    name: str,
    targets: npt.NDArray[np.int8],
    scores: Sequence[Floats],
    patients: npt.NDArray[np.generic],
    task: TaskKind,
    resamples: int,
    seed: int,
) -> _Group:
    values = [metric("auroc", targets, seed_scores, task).per_class for seed_scores in scores]
    draws = [
        resampled(
            "auroc", targets, seed_scores, patients, task, resamples=resamples, seed=seed, threads=1
        )
        for seed_scores in scores
    ]
    return _Group(name, targets, patients, np.array(values), np.array(draws)[:, :, 1:])


def _subgroup(group: _Group) -> Subgroup:
    counts = support(group.targets, group.patients)
    values, draws = mean_over_classes(group.values), mean_over_classes(group.draws)
    pooled = pooled_seeds(values.tolist(), list(draws), counts.basis("auroc"))
    return Subgroup(
        name=group.name,
        rows=len(group.targets),
        patients=counts.patients,
        value=pooled.mean,
        low=pooled.low,
        high=pooled.high,
        unscored=tuple(np.flatnonzero(~group.scored).tolist()),
        caution=pooled.caution,
    )


def _one_value_per_patient(
    truth: Floats,
    patients: npt.NDArray[np.generic],
    named: npt.NDArray[np.str_],
    large: Sequence[str],
    seed: int,
) -> dict[str, Floats]:
    usable = np.isin(named, large) & ~np.isnan(truth)
    names, patient = np.unique(patients[usable], return_inverse=True)
    group = np.searchsorted(np.array(large, np.str_), named[usable])
    rows = np.zeros((len(names), len(large)))
    np.add.at(rows, (patient, group), 1)
    sums = np.zeros_like(rows)
    np.add.at(sums, (patient, group), truth[usable])
    if not rows.size:
        return {}
    # a random share below one row decides between groups with as many rows
    assigned = (rows + np.random.default_rng(seed).random(rows.shape) * (rows > 0)).argmax(axis=1)
    every = np.arange(len(names))
    # means of equal values must be equal: ranks would turn rounding into an order
    values = np.round(sums[every, assigned] / rows[every, assigned], 12)
    return {name: values[assigned == i] for i, name in enumerate(large) if (assigned == i).any()}


def _kruskal(samples: Sequence[Floats]) -> tuple[float, float]:
    if len(samples) < 2:
        return math.nan, math.nan
    if np.ptp(np.concatenate(samples)) == 0:
        return 0.0, 1.0  # all tie, where the statistic is 0 / 0
    test = kruskal(*samples)
    return float(test.statistic), float(test.pvalue)


def _posthoc(samples: dict[str, Floats]) -> tuple[tuple[str, str, float, float], ...]:
    pairs = list(combinations(samples, 2))
    tests = []
    for a, b in pairs:
        test = mannwhitneyu(samples[a], samples[b], alternative="two-sided")
        tests.append((a, b, float(test.statistic), min(1.0, float(test.pvalue) * len(pairs))))
    return tuple(tests)
