"""Scores of algorithms as score rows of reports, from folders that the variable `NAMED` lists."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from benchmd_ray.benchmarks.touchstone.cases import MANIFEST, read_manifest
from benchmd_ray.benchmarks.touchstone.contests import pairs, ranked
from benchmd_ray.benchmarks.touchstone.joining import Scores, require_comparable
from benchmd_ray.benchmarks.touchstone.metadata import Metadata
from benchmd_ray.benchmarks.touchstone.scored import read_scores
from benchmd_ray.benchmarks.touchstone.summaries import cells, draw
from benchmd_ray.errors import BenchmdError

NAMED = "BENCHMD_SCORES"
"""Folders of score runs, or of released CSVs, separated as in ``PATH``."""
EVALUATION = "segmentation"
COMMON, OWN = "common cases", "own cases"
"""Protocols: cases that all algorithms have, and each algorithm's own, as published."""
RANK, LEVEL = "rank", "level with the best"
RESAMPLES = 1000


def named_rows() -> pd.DataFrame:
    """Score rows of all folders that the user names."""
    folders = [Path(name) for name in os.environ.get(NAMED, "").split(os.pathsep) if name]
    test_sets = list(_by_task(folders))
    names = [name for name, _ in test_sets]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BenchmdError(
            f"{NAMED} has two test sets named {twice[0]}: rename the folder of one, or name one of "
            "the two."
        )
    parts = [score_rows(task, scores) for task, scores in test_sets]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _by_task(folders: list[Path]) -> Iterator[tuple[str, Scores]]:
    """Runs of one task together, each folder of released scores separately."""
    runs: dict[str, list[Path]] = {}
    for folder in folders:
        if (folder / MANIFEST).is_file():
            runs.setdefault(read_manifest(folder).task.name, []).append(folder)
        else:
            yield folder.name, read_scores((), folder)
    for task, folders_of_task in runs.items():
        yield task, read_scores(folders_of_task)


def score_rows(dataset: str, scores: Scores) -> pd.DataFrame:
    """Means of each algorithm and class on common and own cases, and ranks.

    ``technique`` is the algorithm, ``regime`` the metric's title with its tolerance.
    """
    require_comparable(scores)
    drawn = {metric: draw(scores, metric, Metadata(), RESAMPLES) for metric in scores.metrics}
    titles = {metric: scores.title(metric) for metric in scores.metrics}
    means = cells(scores, drawn)
    ranking = ranked(scores, drawn, pairs(scores, drawn))[0]
    sizes = means.set_index(["metric", "algorithm", "class"])[["n", "patients"]]
    ranking = ranking.join(sizes, on=["metric", "algorithm", "class"])
    own_means = {"value": means["own_mean"], "records": means["own_n"], "patients": 0}
    parts = [
        _part(
            means, {**means[["value", "low", "high", "patients"]], "records": means["n"]}, titles
        ),
        _part(means, own_means, titles).assign(protocol=OWN),
    ]
    for name, value in ((RANK, ranking["rank"]), (LEVEL, ranking["level"].astype("float64"))):
        ends = {end: ranking[end] for end in ("low", "high") if name == RANK}
        sized = {"records": ranking["n"], "patients": ranking["patients"], "metric": name}
        parts.append(_part(ranking, {"value": value, **ends, **sized}, titles))
    return pd.concat(parts, ignore_index=True).assign(
        evaluation=EVALUATION, dataset=dataset, scored="cases", role="target", split="test"
    )


def _part(
    rows: pd.DataFrame, columns: Mapping[str, object], titles: Mapping[str, str]
) -> pd.DataFrame:
    named = {
        "technique": rows["algorithm"],
        "metric": rows["metric"],
        "regime": [titles[name] for name in rows["metric"]],
        "class": rows["class"],
        "protocol": COMMON,
        **columns,
    }
    return pd.DataFrame(named)
