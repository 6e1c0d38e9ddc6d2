"""Score runs and released scores as algorithms to compare; planes of runs' masks for pictures."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmd_ray.benchmarks.touchstone.cases import MANIFEST, Manifest, read_manifest, read_scored
from benchmd_ray.benchmarks.touchstone.contests import Means, pairs, ranked, read_means
from benchmd_ray.benchmarks.touchstone.imported import Algorithm, algorithms, read_csv_folder
from benchmd_ray.benchmarks.touchstone.joining import (
    SAME_VOLUME,
    AlgorithmScores,
    Floats,
    Scores,
    joined,
    require_comparable,
)
from benchmd_ray.benchmarks.touchstone.layouts import CaseFiles, cases_of, files_of
from benchmd_ray.benchmarks.touchstone.metadata import Metadata
from benchmd_ray.benchmarks.touchstone.planes import Planes, unpacked
from benchmd_ray.benchmarks.touchstone.scoring import PARTS, PROCESS
from benchmd_ray.benchmarks.touchstone.summaries import cells, draw
from benchmd_ray.data.apart import Died
from benchmd_ray.errors import BenchmdError, count_of


def read_scores(runs: Sequence[Path], folder: Path | None = None) -> Scores:
    """The scores of runs, or those of a folder of released CSVs."""
    if bool(runs) == (folder is not None):
        raise BenchmdError(
            "name folders of `benchmd segment score`, or a folder of released CSVs (--scores): "
            "their NSD are not computed alike, so one of the two."
        )
    if folder is not None:
        return joined(read_csv_folder(folder))
    manifests = [(run, read_manifest(run)) for run in runs]
    first, reference = manifests[0]
    for run, manifest in manifests:
        if manifest.scorer != reference.scorer:
            raise BenchmdError(
                f"{first} and {run} were scored by two versions of the scorer: score one again."
            )
    return joined([scores_of(run, manifest) for run, manifest in manifests])


def read_against(path: Path) -> Scores | Mapping[tuple[str, str], Means]:
    """Another test set: released CSVs, a score run, or published means."""
    if path.is_file():
        return read_means(path)
    if (path / "manifest.json").is_file():
        return read_scores([path])
    return read_scores((), path)


def scores_of(run: Path, manifest: Manifest) -> AlgorithmScores:
    rows = read_scored(run)
    card = algorithms().get(manifest.algorithm, Algorithm(manifest.algorithm))
    volumes = rows.set_index(["case", "class"])[["volume_ref_ml", "volume_pred_ml"]]

    @functools.cache
    def cases(folder: Path) -> dict[str, CaseFiles]:
        return cases_of(folder, manifest.task)

    def files(folder: Path, case: str) -> dict[str, Any]:
        if folder.is_file():
            return asdict(files_of(folder, manifest.task))
        if case not in cases(folder):
            raise BenchmdError(f"{folder}: the case {case} is not there any more.")
        return asdict(cases(folder)[case])

    def planes(case: str, name: str, image: Path | None) -> Planes:
        request = {
            "task": asdict(manifest.task),
            "reference": files(Path(manifest.labels), case),
            "prediction": files(Path(manifest.predictions), case),
            "layouts": list(manifest.layouts),
            "resample": manifest.resample,
            "draw": name,
            "image": str(image or ""),
        }
        return _planes(case, request, volumes.loc[[(case, name)]].to_numpy()[0])

    return AlgorithmScores(
        manifest.algorithm,
        str(run),
        manifest.task.name,
        manifest.task.classes,
        rows,
        card.pretrained_on,
        tuple(_without_scores(manifest)),
        planes,
    )


def _without_scores(manifest: Manifest) -> Iterator[str]:
    for count, why in (
        (manifest.quarantined, "quarantined, as a file is broken or does not fit"),
        (len(manifest.unpredicted), "without a prediction"),
        (len(manifest.unreferenced), "without a reference"),
    ):
        if count:
            yield (
                f"{manifest.algorithm}: {count_of(count, 'case')} {why}: no score, so that they "
                "are not among the common cases and do not count against it."
            )


def _planes(case: str, request: dict[str, Any], volumes: Floats) -> Planes:
    """Read in a separate process; files whose volumes (mL) changed since scoring are refused."""
    try:
        head, data = PROCESS.call(request)
    except Died as death:
        place = PARTS[death.place] if 0 <= death.place < 2 else "the image"
        raise BenchmdError(f"{case} cannot be drawn: {place} {death.how}.") from death
    if "fault" in head:
        raise BenchmdError(f"{case} cannot be drawn: {head['fault']}.")
    planes = unpacked(head, data)
    if not np.allclose(planes.volumes, volumes, rtol=SAME_VOLUME, atol=0):
        raise BenchmdError(
            f"{case}: its files are not what was scored: score them again for pictures."
        )
    return planes


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
