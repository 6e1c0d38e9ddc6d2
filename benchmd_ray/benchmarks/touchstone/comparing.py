"""All results of a comparison of algorithms, computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from benchmd_ray.benchmarks.touchstone.contests import Family, Means, distance, pairs, ranked
from benchmd_ray.benchmarks.touchstone.groups import compare_groups
from benchmd_ray.benchmarks.touchstone.joining import Scores, require_comparable, unequal
from benchmd_ray.benchmarks.touchstone.metadata import Metadata
from benchmd_ray.benchmarks.touchstone.summaries import (
    DrawnMeans,
    cells,
    distances,
    draw,
    missed,
    speed,
    worst,
)
from benchmd_ray.benchmarks.touchstone.tasks import MEAN
from benchmd_ray.errors import BenchmdError, count_of, shown

VERSION = 1
"""Raised whenever a comparison of the same scores comes out differently."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Algorithms compared on one task."""

    scores: Scores
    metadata: Metadata
    resamples: int
    family: Family
    cells: pd.DataFrame
    pairs: pd.DataFrame
    ranking: pd.DataFrame
    shares: pd.DataFrame
    taus: pd.DataFrame
    distances: pd.DataFrame
    missed: pd.DataFrame
    speed: pd.DataFrame
    """Of all algorithms, also of those that a limit excludes (``excluded``)."""
    worst: pd.DataFrame
    groups: pd.DataFrame
    group_pairs: pd.DataFrame
    groups_excluded: pd.DataFrame
    distance: pd.DataFrame
    other: str
    """The other test set, for captions."""
    notes: tuple[str, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.scores.metrics

    @property
    def order(self) -> list[str]:
        """Algorithms by the rank of their average of the first metric."""
        return self.order_in(self.metrics[0], MEAN)

    def order_in(self, metric: str, name: str) -> list[str]:
        """Algorithms by their mean in a class, best first."""
        return list(self.ranks(metric, name)["algorithm"])

    def ranks(self, metric: str, name: str) -> pd.DataFrame:
        """Rows of the ranking in a class, best first."""
        rows = self.ranking
        rows = rows[(rows["metric"] == metric) & (rows["class"] == name)]
        return rows.sort_values(["rank", "algorithm"])


def compare(
    scores: Scores,
    *,
    metadata: Metadata | None = None,
    seconds_at_most: float | None = None,
    family: Family = "class",
    resamples: int = 1000,
    against: Scores | Mapping[tuple[str, str], Means] | None = None,
    other: str = "",
) -> Comparison:
    """Compare algorithms; ``against`` is another test set, and ``other`` its name.

    Those that take longer than ``seconds_at_most`` for a volume on average, or an unknown time,
    are in the table of speed only.
    """
    cases = metadata or Metadata()
    fast = speed(scores)
    slow, slow_notes = _slow(fast, seconds_at_most)
    scores = scores.without(slow) if slow else scores
    if not scores.algorithms:
        raise BenchmdError(
            f"no algorithm takes {seconds_at_most:g} s or less for a volume: raise "
            "--seconds-at-most."
        )
    require_comparable(scores)
    drawn = {metric: draw(scores, metric, cases, resamples) for metric in scores.metrics}
    tests = pairs(scores, drawn, family)
    ranking, shares, taus = ranked(scores, drawn, tests)
    groups, group_pairs, excluded = compare_groups(scores, cases, scores.metrics[0])
    other_means, not_compared = _other_means(scores, against, resamples)
    return Comparison(
        scores=scores,
        metadata=cases,
        resamples=resamples,
        family=family,
        cells=cells(scores, drawn),
        pairs=tests,
        ranking=ranking,
        shares=shares,
        taus=taus,
        distances=distances(scores),
        missed=missed(scores),
        speed=fast.assign(excluded=[name in slow for name in fast["algorithm"]]),
        worst=worst(scores, scores.metrics[0]),
        groups=groups,
        group_pairs=group_pairs,
        groups_excluded=excluded,
        distance=distance(_means(scores, drawn), other_means),
        other=other,
        notes=(
            *slow_notes,
            *(note for algorithm in scores.by_name.values() for note in algorithm.notes),
            *unequal(scores),
            *_notes_on_metrics(scores),
            *_notes_on_cases(scores, cases),
            *not_compared,
        ),
    )


def _slow(fast: pd.DataFrame, limit: float | None) -> tuple[list[str], list[str]]:
    if limit is None:
        return [], []
    unknown = list(fast.loc[fast["seconds"].isna(), "algorithm"])
    slow = list(fast.loc[fast["seconds"] > limit, "algorithm"])
    notes = [
        f"speed: {why} {limit:g} s for a volume, excluded: {', '.join(names)}."
        for names, why in ((slow, "more than"), (unknown, "not known whether at most"))
        if names
    ]
    return [*slow, *unknown], notes


def _means(scores: Scores, drawn: Mapping[str, DrawnMeans]) -> dict[tuple[str, str], Means]:
    return {
        (metric, name): Means(scores.algorithms, m.means[:, c], m.draws[:, :, c], int(m.units[c]))
        for metric, m in drawn.items()
        for c, name in enumerate((*scores.classes, MEAN))
    }


def _other_means(
    scores: Scores, against: Scores | Mapping[tuple[str, str], Means] | None, resamples: int
) -> tuple[Mapping[tuple[str, str], Means], list[str]]:
    """Comparable means of the other test set, and notes on what is not compared."""
    if not isinstance(against, Scores):
        return against or {}, []
    notes = [
        f"other test set: {scores.title(metric)} here and {against.title(metric)} there are not "
        "compared."
        for metric in scores.metrics
        if metric in against.metrics and scores.title(metric) != against.title(metric)
    ]
    alike = [metric for metric in against.metrics if against.title(metric) == scores.title(metric)]
    # another seed: the two sets are drawn independently of each other
    drawn = {metric: draw(against, metric, Metadata(), resamples, seed=1) for metric in alike}
    means = _means(against, drawn)
    if set(scores.classes) != set(against.classes):
        notes.append("other test set: it has other classes, so that averages are not compared.")
        means = {key: mean for key, mean in means.items() if key[1] != MEAN}
    return means, notes


def _notes_on_metrics(scores: Scores) -> list[str]:
    first = scores.title(scores.metrics[0])
    lines = [f"{first}: means are over cases whose reference has the class."]
    if "nsd" in scores.metrics and scores.rows["tolerance"].isna().all():
        lines.append(
            "NSD: computed by those who released the scores; they do not state the tolerance, so "
            "it is not comparable with any other NSD."
        )
    return lines


def _notes_on_cases(scores: Scores, metadata: Metadata) -> list[str]:
    """Notes on cases without metadata, on their splits, and on earlier training."""
    lines = []
    if metadata.source:
        unknown = [case for case in scores.cases if case not in metadata.cases]
        if metadata.cases and len(unknown) == len(scores.cases):
            raise BenchmdError(
                f"{metadata.source} has none of the {count_of(len(scores.cases), 'case')}: it has "
                f"{shown(min(metadata.cases, default=''))}, the scores {shown(scores.cases[0])}. "
                "Name cases alike in both."
            )
        if metadata.contradicted:
            lines.append(
                f"metadata: {count_of(len(metadata.contradicted), 'patient')} of several sexes, "
                f"such as {shown(metadata.contradicted[0])}."
            )
        if unknown:
            lines.append(f"metadata: {count_of(len(unknown), 'case')} without a row in it.")
        if not metadata.patients:
            lines.append(
                "patients: the metadata name none, so each case counts as one; where a patient has "
                "several, intervals are too narrow."
            )
    splits = [metadata.splits[case] for case in scores.cases if case in metadata.splits]
    if splits:
        counts = pd.Series(splits).value_counts()
        parts = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        lines.append(
            f"splits: by the dataset's own split the cases are {parts}. An algorithm trained or "
            "pretrained on its training part has seen those cases."
        )
    pretrained = [
        f"{name} ({', '.join(algorithm.pretrained_on)})"
        for name, algorithm in scores.by_name.items()
        if algorithm.pretrained_on
    ]
    if pretrained:
        lines.append(
            f"pretrained: {'; '.join(pretrained)}. Declared in cards; whether these data hold the "
            "cases compared here must be checked before their results are read as of unseen cases."
        )
    return lines
