"""Compute all frames of a report once; figures, page and tables only read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.metrics import roc_curve

from benchmd_ray.console.progress import progress
from benchmd_ray.report.compared import (
    apart,
    change_rows,
    contest_rows,
    gap_rows,
    other_seeds,
    shared_patients,
)
from benchmd_ray.report.contamination import with_contamination
from benchmd_ray.report.ensembles import ensembles
from benchmd_ray.report.frames import FRAMES, Part, frame, frame_of_parts, place
from benchmd_ray.report.names import Names, names_of, require_baseline
from benchmd_ray.report.nested import Nested, nested
from benchmd_ray.report.notes import notes
from benchmd_ray.report.over_folds import is_of_fold, over_folds
from benchmd_ray.report.pools import Pool, pools
from benchmd_ray.report.protocols import fold_of
from benchmd_ray.report.rows import (
    Row,
    beside,
    brought_rows,
    other_rows,
    score_rows,
    unfinished,
    with_predictions,
)
from benchmd_ray.report.scored import Scored, measured, read_scored
from benchmd_ray.report.subgroup_frames import subgroup_rows
from benchmd_ray.report.training_frames import of_pools, older_parts, ran_rows, training_rows
from benchmd_ray.report.tuning_frames import (
    family_rows,
    fold_notes,
    search_rows,
    tuned_pairs,
    tuned_rows,
    tuning_notes,
)
from benchmd_ray.runs.index import Index, indexed
from benchmd_ray.runs.store import Run, read_stores
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.sums import BINS
from benchmd_ray.tuning.records import SearchRecord, read_searches

POINTS = 200
"""Most points of a ROC curve."""
Floats = npt.NDArray[np.float64]
Points = dict[str, npt.NDArray[np.generic]]
"""Columns of a curve, all of the same length."""
Curve = Callable[[npt.NDArray[np.int8], Floats], Points]


def roc_frame(pools: Sequence[Pool]) -> pd.DataFrame:
    """ROC curves of every class and seed, at most `POINTS` points each."""
    return _curves("roc", pools, _roc)


def calibration_frame(pools: Sequence[Pool]) -> pd.DataFrame:
    """Mean score and share of positives in the bins of the metric ``calibration_error``."""
    return _curves("calibration", pools, _calibration)


def _curves(name: str, pools: Sequence[Pool], curve: Curve) -> pd.DataFrame:
    return frame_of_parts(name, [part for pool in pools for part in _of_pool(pool, curve)])


def _of_pool(pool: Pool, curve: Curve) -> Iterator[Part]:
    for seed, member in zip(pool.seeds, pool.members, strict=True):
        for index, name in enumerate(member.classes):
            target, score = member.targets[:, index], member.scores[:, index]
            is_labelled = target >= 0
            if 0 < np.count_nonzero(target == 1) < np.count_nonzero(is_labelled):
                points = curve(target[is_labelled], score[is_labelled])
                yield {**pool.key, "class": name, "seed": seed}, points


def _roc(target: npt.NDArray[np.int8], score: Floats) -> Points:
    fpr, tpr, _ = roc_curve(target, score)
    if len(fpr) > POINTS:
        # evenly along the curve, whose length in this sense is at most 2
        along = fpr + tpr
        places = np.searchsorted(along, np.linspace(0, along[-1], POINTS))
        places = np.unique(np.append(places, (0, len(fpr) - 1)))[: len(fpr)]
        fpr, tpr = fpr[places], tpr[places]
    return {"fpr": fpr, "tpr": tpr}


def _calibration(target: npt.NDArray[np.int8], score: Floats) -> Points:
    place = np.minimum((np.clip(score, 0, 1) * BINS).astype(np.intp), BINS - 1)
    count = np.bincount(place, minlength=BINS)
    bins = np.flatnonzero(count)
    return {
        "predicted": np.bincount(place, score, minlength=BINS)[bins] / count[bins],
        "observed": np.bincount(place, target, minlength=BINS)[bins] / count[bins],
        "count": count[bins],
    }


RUNS_AT_ONCE = 16
"""Runs whose predictions are read and measured together."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """Results of runs, pooled over seeds, with 95 % intervals. Columns: `frames.FRAMES`."""

    rows: pd.DataFrame = field(default_factory=partial(frame, "rows", ()))
    """The long table: every metric of every run on every split, and the rows that benchmarks
    add.
    """
    scores: pd.DataFrame = field(default_factory=partial(frame, "scores", ()))
    """Every metric, over all classes (``mean``) and per class, including ensembles."""
    gaps: pd.DataFrame = field(default_factory=partial(frame, "gaps", ()))
    """In distribution (the source's validation split) minus another dataset, for each metric."""
    changes: pd.DataFrame = field(default_factory=partial(frame, "changes", ()))
    """Each row minus its baseline on the same records, for each metric."""
    pairs: pd.DataFrame = field(default_factory=partial(frame, "pairs", ()))
    """Pairs of rows on the same records with as many labels: AUROC of b minus that of a."""
    ranking: pd.DataFrame = field(default_factory=partial(frame, "ranking", ()))
    """Rank of each row among those on the same records, and what the ranking is worth."""
    descriptions: pd.DataFrame = field(default_factory=partial(frame, "descriptions", ()))
    """What each row is: technique, network, pretraining, and settings that most do not have."""
    subgroups: pd.DataFrame = field(default_factory=partial(frame, "subgroups", ()))
    """AUROC of groups of patients and devices."""
    subgroup_pairs: pd.DataFrame = field(default_factory=partial(frame, "subgroup_pairs", ()))
    """Which groups differ from which."""
    excluded: pd.DataFrame = field(default_factory=partial(frame, "excluded", ()))
    """Groups too small to be scored."""
    roc: pd.DataFrame = field(default_factory=partial(frame, "roc", ()))
    """ROC curve of each class and seed."""
    calibration: pd.DataFrame = field(default_factory=partial(frame, "calibration", ()))
    """Scores against the share of positives of each class and seed, in bins."""
    training: pd.DataFrame = field(default_factory=partial(frame, "training", ()))
    """Loss, source validation AUROC and learning rate over the training."""
    ran: pd.DataFrame = field(default_factory=partial(frame, "ran", ()))
    """One row per run: its hardware and software."""
    searches: pd.DataFrame = field(default_factory=partial(frame, "searches", ()))
    """One row per search: trials, scores and cost."""
    families: pd.DataFrame = field(default_factory=partial(frame, "families", ()))
    """One row per family of a search: its best trial against the start, and its cost."""
    tuned: pd.DataFrame = field(default_factory=partial(frame, "tuned", ()))
    """Tuned settings minus those that their search started from, in AUROC."""
    modalities: tuple[str, ...] = ()
    """Names of the runs' modalities, in the order of their cards."""
    records: list[SearchRecord] = field(default_factory=list)
    """The searches themselves, with every trial."""
    runs: list[Run] = field(default_factory=list)
    """All runs."""
    resamples: int = 1000
    """Resamples of the bootstrap over patients."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know."""


@dataclass(frozen=True, eq=False)
class SourceResults:
    """Results of all runs that were trained on one source under one policy."""

    pools: list[Pool]
    notes: list[str]
    nested: Nested
    """Results of searches over all folds."""

    @property
    def rows(self) -> list[Part]:
        """Score rows of the individual runs."""
        return [
            ({**shared, "setting": pool.key["setting"]}, columns)
            for pool in self.every
            for shared, columns in (score_rows(member, pool.row) for member in pool.members)
        ]

    @property
    def every(self) -> list[Pool]:
        """All results of single models."""
        return sorted([*self.pools, *self.nested.pools], key=lambda pool: place(pool.key))


def paper(pool: Pool) -> float:
    """The published AUROC of a pool; NaN unless all its runs have the same one."""
    if pool.averaged:
        return float("nan")
    entries = [beside(member, pool.key["protocol"]) for member in pool.members]
    values = {None if entry is None or entry.unlike else entry.value for entry in entries}
    (value,) = values if len(values) == 1 else (None,)
    return float("nan") if value is None else value


def analyse(
    runs: Sequence[Run],
    *,
    searches: Sequence[SearchRecord] = (),
    skipped: Sequence[str] = (),
    resamples: int = 1000,
    curves: bool = True,
    baseline: str | None = None,
    index: Index | None = None,
) -> Analysis:
    """Compute all frames of a report.

    Args:
        runs: Pretraining and transfer runs.
        searches: Searches of their stores.
        skipped: Notes on files of the stores that could not be read.
        resamples: Bootstrap resamples of patients.
        curves: Whether to fill ``roc`` and ``calibration``, which only figures need.
        baseline: Name of the row, or technique, that others are compared with in ``changes``;
            without one, training from scratch (`compared.baseline_of`).
        index: What is known of the files of the runs' stores.

    Raises:
        BenchmdError: No run is finished and has predictions, predictions cannot be read, or no row
            is called like the baseline.
    """
    usable, named = with_predictions(runs), names_of(runs)  # refused before anything is read
    if baseline is not None:
        require_baseline(baseline, named, usable)
    lines = [*skipped, *unfinished(runs), *older_parts(runs)]
    rows: dict[str, list[pd.DataFrame]] = {name: [frame(name, ())] for name in FRAMES}
    in_folds: set[str] = set()  # searches whose folds are told of together
    for block in blocks(runs, named, tuple(METRICS), resamples, searches, index):
        lines += block.notes
        pairs = tuned_pairs(block.pools, searches, runs)
        averages = ensembles(pairs, block.pools, tuple(METRICS), resamples)
        lines += [*averages.notes, *fold_notes(pairs, block.pools)]
        whole = [*block.every, *averages.pools, *block.nested.averages]
        frames_of_block = _frames_of(block, whole, resamples, curves=curves, baseline=baseline)
        for name, part in frames_of_block.items():
            rows[name].append(part)
        in_folds |= {record.name for pair in block.nested.pairs for record in pair.records}
        pairs = [*pairs, *averages.pairs, *block.nested.pairs]
        pairs.sort(key=lambda pair: place(pair.tuned.key))
        rows["tuned"].append(frame("tuned", tuned_rows(pairs, paper)))
    others, skipped_too = other_rows(runs, named.of_runs, resamples)
    rows["rows"].append(others)
    datasets = {name for part in rows["rows"] for name in part["dataset"].unique()}
    brought, skipped_rows = brought_rows(datasets)
    rows["rows"].append(brought)
    lines += [*skipped_too, *skipped_rows]
    rows["searches"].append(frame("searches", search_rows(searches)))
    rows["families"].append(frame("families", family_rows(searches)))
    rows["training"].append(frame("training", training_rows(runs, named.of_runs)))
    rows["ran"].append(frame("ran", ran_rows(runs, named.of_runs)))
    rows["descriptions"].append(frame("descriptions", named.descriptions))
    frames = {name: pd.concat(parts, ignore_index=True) for name, parts in rows.items()}
    frames["descriptions"] = with_contamination(frames["descriptions"], frames["rows"])
    alone = [record for record in searches if record.name not in in_folds]
    lines += tuning_notes(frames["tuned"], alone, frames["scores"]["protocol"])
    kinds = sorted((run.modality for run in runs), key=lambda kind: kind.order)
    return Analysis(
        modalities=tuple(dict.fromkeys(kind.name for kind in kinds)),
        notes=[*notes(frames["rows"]), *lines],
        records=list(searches),
        runs=list(runs),
        resamples=resamples,
        **frames,
    )


def analyse_stores(
    paths: Sequence[Path], *, resamples: int, curves: bool, baseline: str | None = None
) -> Analysis:
    """The analysis of all runs and searches of these paths; what cannot be read is noted.

    Raises:
        BenchmdError: As `analyse` does, or a path has no run.
    """
    with indexed() as index:
        stored, searched = read_stores([*paths], index), read_searches([*paths])
        return analyse(
            stored.found,
            searches=searched.found,
            skipped=[*stored.notes, *searched.notes],
            resamples=resamples,
            curves=curves,
            baseline=baseline,
            index=index,
        )


def blocks(
    all_runs: Sequence[Run],
    named: Names,
    metrics: Sequence[str],
    resamples: int,
    searches: Sequence[SearchRecord] = (),
    index: Index | None = None,
) -> Iterator[SourceResults]:
    """Measured and pooled results, source by source, with progress.

    ``searches`` and ``index`` are those of the runs' stores.

    Raises:
        BenchmdError: No run is finished and has predictions, or predictions cannot be read.
    """
    runs = with_predictions(all_runs)
    display, done = progress("statistics", len(runs), "runs"), 0
    for together in _by_source(runs):
        scored: list[Scored] = []
        skipped: list[str] = []
        of_folds: list[Scored] = []
        for start in range(0, len(together), RUNS_AT_ONCE):
            some = together[start : start + RUNS_AT_ONCE]
            read = [read_scored(run, index) for run in some]
            results = [result for part in read for result in part.scored]
            of_folds += [result for result in results if is_of_fold(result.run)]
            single = [result for result in results if not is_of_fold(result.run)]
            scored += measured(single, metrics, resamples)
            skipped += [note for part in read for note in part.skipped]
            done += len(some)
            display.update(done)
        measure = partial(measured, metrics=metrics, resamples=resamples)
        of_searches = nested(of_folds, named.of_runs, searches, all_runs, measure)
        others = of_searches.others
        scored += measure([result for result in others if fold_of(result.run)])
        whole, about_folds = over_folds(
            [result for result in others if not fold_of(result.run)], named.of_runs
        )
        scored += measure(whole)
        pooled, lines = pools(scored, named.of_runs)
        lines = [
            *skipped,
            *about_folds,
            *of_searches.notes,
            *lines,
            *apart(pooled),
            *other_seeds(pooled),
            *shared_patients(pooled),
        ]
        lines += of_pools(pooled, all_runs)
        yield SourceResults(pooled, lines, of_searches)
    display.close()


def _by_source(runs: Sequence[Run]) -> list[list[Run]]:
    sources: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        key = (*(str(run.description[name]) for name in ("modality", "source", "policy")),)
        sources.setdefault(key, []).append(run)
    return [sources[key] for key in sorted(sources)]


def _frames_of(
    block: SourceResults,
    whole: Sequence[Pool],
    resamples: int,
    *,
    curves: bool,
    baseline: str | None,
) -> dict[str, pd.DataFrame]:
    """The frames of one block without those of training; ensembles are only in the scores."""
    block_pools, metrics = block.every, tuple(METRICS)
    of_one_model = [pool for pool in block_pools if not pool.first.parts]
    several = {**subgroup_rows(of_one_model, resamples), **contest_rows(block_pools)}
    drawn = of_one_model if curves else ()
    return {
        "rows": frame_of_parts("rows", block.rows),
        "scores": frame("scores", pooled_rows(sorted(whole, key=lambda p: place(p.key)), metrics)),
        "gaps": frame("gaps", gap_rows(block_pools, metrics)),
        "changes": frame("changes", change_rows(block_pools, metrics, baseline)),
        **{name: frame(name, rows) for name, rows in several.items()},
        "roc": roc_frame(drawn),
        "calibration": calibration_frame(drawn),
    }


def pooled_rows(pools_of_block: Sequence[Pool], metrics: Sequence[str]) -> Iterator[Row]:
    """Each metric of each pool, over all classes and per class; NaN if it cannot be scored."""
    for pool in pools_of_block:
        positives, records = pool.first.facts.positives, pool.first.facts.size
        names = ("mean", *pool.first.classes)
        folders = "; ".join(m.run.folder.name for one in pool.runs for m in one.models)
        for metric in metrics:
            values = pool.values(metric)
            for column, name in enumerate(names):
                pooled = pool.pooled(metric, column)
                first = (metric, name) == ("auroc", "mean")
                yield {
                    **pool.key,
                    "metric": metric,
                    "class": name,
                    "value": pooled.mean,
                    "sd": pooled.sd,
                    "low": pooled.low,
                    "high": pooled.high,
                    "seeds": len(pool.runs),
                    "seed_values": tuple(values[:, column].tolist()),
                    "records": records,
                    "patients": pool.first.patients,
                    "positives": positives[column - 1] if column else sum(positives),
                    "scored": pool.first.predicted.scored,
                    "paper": paper(pool) if first else float("nan"),
                    "caution": pooled.caution,
                    "contamination": pool.contamination,
                    "runs": folders,
                }
