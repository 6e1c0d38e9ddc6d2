"""Frames on groups of people and devices: AUROC of each group, and whether groups differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.evaluation.intervals import resampled
from benchmd_ray.evaluation.metrics import metric
from benchmd_ray.evaluation.seeds import Pooled, pooled_seeds
from benchmd_ray.evaluation.subgroups import Subgroup, age_band, by_subgroup
from benchmd_ray.results.report.pools import Pool
from benchmd_ray.results.report.scored import THREADS

Row = dict[str, Any]
VARIABLES = ("age", "sex", "site", "device", "view")
"""Columns of metadata whose groups are compared; age in bands of ten years."""


def subgroup_rows(pools: Sequence[Pool], resamples: int) -> Mapping[str, list[Row]]:
    """Rows of the frames ``subgroups``, ``posthoc`` and ``left_out``.

    The AUROC of a group is pooled over the seeds. The tests compare what the scores, averaged over
    the seeds, give to the truth. A variable that the dataset does not state has no rows.
    """
    rows: dict[str, list[Row]] = {"subgroups": [], "posthoc": [], "left_out": []}
    with ThreadPoolExecutor(THREADS) as threads:
        for found in threads.map(partial(_of_pool, resamples=resamples), pools):
            for name, made in found.items():
                rows[name] += made
    return rows


def labels_of(units: pd.DataFrame, variable: str) -> list[str | None]:
    """Group of each unit by a variable; None where the source does not say."""
    if variable == "age":
        return [age_band(None if pd.isna(years) else float(years)) for years in units["age"]]
    return [None if pd.isna(value) else str(value) for value in units[variable]]


def _of_pool(pool: Pool, resamples: int) -> Mapping[str, list[Row]]:
    rows: dict[str, list[Row]] = {"subgroups": [], "posthoc": [], "left_out": []}
    for variable in VARIABLES:
        labels = labels_of(pool.first.units, variable)
        if any(label is not None for label in labels):
            for name, made in _of_variable(pool, variable, labels, resamples).items():
                rows[name] += [{**pool.key, "variable": variable, **row} for row in made]
    return rows


def _of_variable(
    pool: Pool, variable: str, labels: Sequence[str | None], resamples: int
) -> Mapping[str, list[Row]]:
    first, one = pool.first, len(pool.members) == 1
    tested = by_subgroup(
        first.targets,
        pool.mean_scores,
        first.groups,
        labels,
        first.task,
        variable=variable,
        resamples=resamples if one else 1,  # of several seeds the intervals are made below
    )
    named = np.array([label or "" for label in labels], np.str_)
    rows = []
    for group in tested.groups:
        found: Pooled | Subgroup = group
        value = group.value
        if not one:
            found = _auroc(pool, named == group.name, resamples)
            value = found.mean
        rows.append(
            {
                "group": group.name,
                "records": group.rows,
                "patients": group.patients,
                "value": value,
                "low": found.low,
                "high": found.high,
                "kruskal_p": tested.kruskal_p,
            }
        )
    return {
        "subgroups": rows,
        "posthoc": [{"a": a, "b": b, "p_bonferroni": p} for a, b, _, p in tested.posthoc],
        "left_out": [{"group": name, "patients": count} for name, count in tested.left_out],
    }


def _auroc(pool: Pool, inside: npt.NDArray[np.bool_], resamples: int) -> Pooled:
    """AUROC of some units, over the seeds."""
    patients, values, drawn = pool.first.groups[inside], [], []
    for member in pool.members:
        targets, scores = member.targets[inside], member.scores[inside]
        values.append(metric("auroc", targets, scores, member.task).mean)
        drawn.append(
            resampled(
                "auroc", targets, scores, patients, member.task, resamples=resamples, threads=1
            )[:, 0]
        )
    return pooled_seeds(values, drawn, bounds=(0.0, 1.0))
