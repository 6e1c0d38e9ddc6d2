"""Compare groups of scans: does an algorithm do as well on one as on another?

Which organs a scan shows depends on its group: a trauma scan shows fewer than one of a whole
trunk. So groups are compared organ by organ first. A mean over organs takes values from which the
organ's mean was subtracted, so that it says how a scan does on the organs that it shows (`CENTRED`,
moved back by the mean over classes). The mean as published (`RAW`) is next to it, and compares
other organs in other groups.

Kruskal & Wallis's test is applied to each algorithm separately, on scans as independent units:
boxes of several algorithms hold the same scans, and all together would always differ. Where it is
below 0.05, each pair of groups is tested (Mann & Whitney, Bonferroni). `ALL` is the mean over the
algorithms on the cases that all of them have; as published, over those that each case has.
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
    """Groups of each variable, pairs of groups, and groups excluded.

    ``p_holm`` is Kruskal's p adjusted over the classes of one variable and algorithm.

    Returns:
        Frames with the columns `GROUPS`, `PAIRS` and `EXCLUDED`.
    """
    cases = np.array(scores.cases)
    patients = np.array([metadata.patient(case) for case in cases], np.str_)
    rows: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    excluded: list[dict[str, Any]] = []
    for variable in metadata.labels:
        labels = metadata.groups(variable, scores.cases)
        for algorithm, values in _of_algorithms(scores, metric):
            key = {"variable": variable, "algorithm": algorithm}
            compared = organs(values, scores.classes)
            if algorithm == ALL:
                compared[RAW] = published_mean(scores.values(metric))
            tables = {
                name: compared_groups(
                    column,
                    patients,
                    labels,
                    least=LEAST,
                    gate=LEVEL if algorithm == ALL or name == CENTRED else 0.0,
                )
                for name, column in compared.items()
            }
            p = holm([tables[name].kruskal_p for name in scores.classes])
            adjusted = dict(zip(scores.classes, p.tolist(), strict=True))
            for name, test in tables.items():
                rows += _rows(test, {**key, "class": name}, adjusted.get(name, np.nan))
                pairs += [
                    {**key, "class": name, "a": a, "b": b, "p_bonferroni": p}
                    for a, b, _, p in test.posthoc
                ]
            if algorithm == ALL:
                excluded += [
                    {"variable": variable, "group": group, "patients": count}
                    for group, count in tables[CENTRED].excluded
                ]
    frames = zip((rows, pairs, excluded), (GROUPS, PAIRS, EXCLUDED), strict=True)
    groups, posthoc, left = (pd.DataFrame(part, columns=list(names)) for part, names in frames)
    return groups, posthoc, left


def _of_algorithms(scores: Scores, metric: str) -> Iterator[tuple[str, Floats]]:
    """(cases, classes) of the mean algorithm, on the common cases, then of each on its own."""
    yield ALL, scores.common_values(metric).mean(axis=1)
    values = scores.values(metric)
    for place, name in enumerate(scores.algorithms):
        yield name, values[:, place]


def compared_samples(
    scores: Scores, metadata: Metadata, variable: str, metric: str
) -> dict[str, Floats]:
    """What the test of a variable compares: each patient's `CENTRED` value of `ALL`, by group."""
    patients = np.array([metadata.patient(case) for case in scores.cases], np.str_)
    labels = metadata.groups(variable, scores.cases)
    values = organs(scores.common_values(metric).mean(axis=1), scores.classes)[CENTRED]
    return dict(compared_groups(values, patients, labels, least=LEAST, gate=0.0).samples)


def organs(values: Floats, classes: Sequence[str]) -> dict[str, Floats]:
    """What groups are compared by: each class, and the centred mean over those that a case has.

    Args:
        values: (cases, classes); NaN where a case has none.
        classes: Their names.
    """
    centred = _mean(values - _mean(values, 0), 1) + _mean(_mean(values, 0), 0)
    return {**{name: values[:, c] for c, name in enumerate(classes)}, CENTRED: centred}


def published_mean(values: Floats) -> Floats:
    """Mean over the organs of each case, of the mean over the algorithms that have it, (cases,).

    Args:
        values: (cases, algorithms, classes).
    """
    return _mean(_mean(values, 1), 1)


def _mean(values: Floats, axis: int) -> Floats:
    """Mean of what is there; NaN where nothing is."""
    there = ~np.isnan(values)
    return ratio(np.where(there, values, 0.0).sum(axis=axis), there.sum(axis=axis))


def _rows(test: GroupTest, key: dict[str, str], adjusted: float) -> Iterator[dict[str, Any]]:
    for group, values in test.samples.items():
        q25, median, q75 = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        yield {
            **key,
            "group": group,
            "patients": len(values),
            "mean": float(values.mean()),
            "q25": q25,
            "median": median,
            "q75": q75,
            "kruskal_p": test.kruskal_p,
            "p_holm": adjusted,
        }
