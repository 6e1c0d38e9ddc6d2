"""Frames of subgroups: AUROC of groups of people and devices, and which of them differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pandas as pd

from benchmd_ray.report.pools import Pool
from benchmd_ray.report.scored import THREADS
from benchmd_ray.scores.subgroups import age_band, by_subgroup

Row = dict[str, Any]
SUBGROUP_FRAMES = ("subgroups", "subgroup_pairs", "excluded")
VARIABLES = ("age", "sex", "site", "device", "view")
"""Columns of metadata whose groups are compared; age in bands of ten years."""


def subgroup_rows(pools: Sequence[Pool], resamples: int) -> Mapping[str, list[Row]]:
    """Rows of the frames ``subgroups``, ``subgroup_pairs`` and ``excluded``."""
    rows: dict[str, list[Row]] = {name: [] for name in SUBGROUP_FRAMES}
    with ThreadPoolExecutor(THREADS) as threads:
        for frames in threads.map(partial(_subgroups_of_pool, resamples=resamples), pools):
            for name, part in frames.items():
                rows[name] += part
    return rows


def labels_of(units: pd.DataFrame, variable: str) -> list[str | None]:
    """Group of each unit by a variable; None where the source does not state it."""
    if variable == "age":
        return [age_band(None if pd.isna(years) else float(years)) for years in units["age"]]
    return [None if pd.isna(value) else str(value) for value in units[variable]]


def _subgroups_of_pool(pool: Pool, resamples: int) -> Mapping[str, list[Row]]:
    rows: dict[str, list[Row]] = {name: [] for name in SUBGROUP_FRAMES}
    seen = {"contamination": pool.contamination}
    for variable in VARIABLES:
        labels = labels_of(pool.first.units, variable)
        if any(label is not None for label in labels):
            for name, part in _of_variable(pool, variable, labels, resamples).items():
                rows[name] += [{**pool.key, **seen, "variable": variable, **row} for row in part]
    return rows


def _of_variable(
    pool: Pool, variable: str, labels: Sequence[str | None], resamples: int
) -> Mapping[str, list[Row]]:
    first = pool.first
    groups_found = by_subgroup(
        first.targets,
        [member.scores for member in pool.members],
        first.groups,
        labels,
        first.task,
        variable=variable,
        resamples=resamples,
    )
    return {
        "subgroups": [
            {
                "group": group.name,
                "records": group.rows,
                "patients": group.patients,
                "value": group.value,
                "low": group.low,
                "high": group.high,
                "p": groups_found.p,
                "caution": group.caution,
            }
            for group in groups_found.groups
        ],
        "subgroup_pairs": [
            {
                "a": pair.a,
                "b": pair.b,
                "difference": difference["value"],
                **{name: difference[name] for name in ("low", "high", "p", "caution")},
                "p_holm": pair.p_holm,
            }
            for pair in groups_found.pairs
            for difference in [vars(pair.difference)]
        ],
        "excluded": [{"group": name, "patients": count} for name, count in groups_found.excluded],
    }
