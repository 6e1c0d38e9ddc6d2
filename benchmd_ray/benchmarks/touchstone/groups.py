"""Compare groups of scans: does an algorithm do as well on one as on another?

Scans of different groups show different organs, so groups are compared organ by organ. Means over
organs are of values after subtracting each organ's mean (`CENTRED`, moved back by the mean over
classes); the published mean (`RAW`) is reported next to it.

Each algorithm is tested separately (Kruskal & Wallis), with scans as independent units: pooling
algorithms would count each scan several times. Below 0.05, pairs of groups are tested (Mann &
Whitney, Bonferroni). `ALL` is the mean over algorithms on their common cases; as published, over
those that each case has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmd_ray.benchmarks.touchstone.joining import Floats, Scores
from benchmd_ray.benchmarks.touchstone.metadata import Metadata
from benchmd_ray.scores.comparison import LEVEL, holm
from benchmd_ray.scores.subgroups import GroupTest, compared_groups
from benchmd_ray.scores.sums import ratio

ALL = "all algorithms"
CENTRED, RAW = "mean, centred per class", "mean, as published"
LEAST = 5
"""Patients that a group takes, as for the chi-squared approximation of Kruskal & Wallis's test."""
GROUPS = (
    *("variable", "algorithm", "class", "group", "patients", "mean"),
    *("q25", "median", "q75", "kruskal_p", "p_holm"),
)
PAIRS = ("variable", "algorithm", "class", "a", "b", "p_bonferroni")
EXCLUDED = ("variable", "group", "patients")


def compare_groups(
    scores: Scores, metadata: Metadata, metric: str = "dsc"
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Frames `GROUPS`, `PAIRS` and `EXCLUDED`.

    ``p_holm`` is Kruskal's p adjusted over the classes of a variable and algorithm.
    """
    patients = np.array([metadata.patient(case) for case in scores.cases], np.str_)
    rows: list[tuple[Any, ...]] = []
    pairs: list[tuple[Any, ...]] = []
    excluded: list[tuple[Any, ...]] = []
    for variable in metadata.labels:
        labels = metadata.groups(variable, scores.cases)
        for algorithm, values in _of_algorithms(scores, metric):
            compared = organs(values, scores.classes)
            if algorithm == ALL:
                compared[RAW] = _mean(_mean(scores.values(metric), 1), 1)
            tables = {}
            for name, column in compared.items():
                gate = LEVEL if algorithm == ALL or name == CENTRED else 0.0
                tables[name] = compared_groups(column, patients, labels, least=LEAST, gate=gate)
            p = holm([tables[name].kruskal_p for name in scores.classes])
            adjusted = dict(zip(scores.classes, p.tolist(), strict=True))
            for name, test in tables.items():
                key = (variable, algorithm, name)
                rows += [
                    (*key, *summary, test.kruskal_p, adjusted.get(name, np.nan))
                    for summary in _summaries(test)
                ]
                pairs += [(*key, a, b, p) for a, b, _, p in test.posthoc]
            if algorithm == ALL:
                excluded += [(variable, *group) for group in tables[CENTRED].excluded]
    return (
        pd.DataFrame(rows, columns=GROUPS),
        pd.DataFrame(pairs, columns=PAIRS),
        pd.DataFrame(excluded, columns=EXCLUDED),
    )


def _of_algorithms(scores: Scores, metric: str) -> Iterator[tuple[str, Floats]]:
    """(cases, classes) of the mean over algorithms on common cases, then of each on its own."""
    yield ALL, scores.common_values(metric).mean(axis=1)
    values = scores.values(metric)
    for place, name in enumerate(scores.algorithms):
        yield name, values[:, place]


def compared_samples(
    scores: Scores, metadata: Metadata, variable: str, metric: str
) -> dict[str, Floats]:
    """Each patient's `CENTRED` value of `ALL`, by group: what the test of a variable compares."""
    patients = np.array([metadata.patient(case) for case in scores.cases], np.str_)
    labels = metadata.groups(variable, scores.cases)
    values = organs(scores.common_values(metric).mean(axis=1), scores.classes)[CENTRED]
    return dict(compared_groups(values, patients, labels, least=LEAST, gate=0.0).samples)


def organs(values: Floats, classes: Sequence[str]) -> dict[str, Floats]:
    """(cases,) values of each class, and the centred mean over those that a case has."""
    centred = _mean(values - _mean(values, 0), 1) + _mean(_mean(values, 0), 0)
    return {**{name: values[:, c] for c, name in enumerate(classes)}, CENTRED: centred}


def _mean(values: Floats, axis: int) -> Floats:
    """Mean without NaN; NaN where nothing is left."""
    there = ~np.isnan(values)
    return ratio(np.where(there, values, 0.0).sum(axis=axis), there.sum(axis=axis))


def _summaries(test: GroupTest) -> Iterator[tuple[Any, ...]]:
    """Group, patients, mean and quartiles."""
    for group, values in test.samples.items():
        yield group, len(values), values.mean(), *np.quantile(values, (0.25, 0.5, 0.75))
