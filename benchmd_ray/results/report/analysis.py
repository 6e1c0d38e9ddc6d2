"""Everything that a report says, computed once from runs and their predictions.

`analyse` reads the predictions of finished runs, pools those that differ by their seeds alone, and
fills one frame for each kind of statement. Figures, page and tables read these frames and compute
nothing. Statistics are those of `benchmd_ray.scores`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from benchmd_ray.progress import progress
from benchmd_ray.results.report.cells import Cell, cell, cell_order, unfinished, with_predictions
from benchmd_ray.results.report.compared import (
    apart,
    change_rows,
    contest_rows,
    gap_rows,
    other_seeds,
    shared_patients,
)
from benchmd_ray.results.report.curves import calibration_frame, roc_frame
from benchmd_ray.results.report.frames import FRAMES, frame
from benchmd_ray.results.report.hardware_notes import of_pools
from benchmd_ray.results.report.notes import notes
from benchmd_ray.results.report.people import subgroup_rows
from benchmd_ray.results.report.pools import Pool, pools
from benchmd_ray.results.report.protocols import Protocols, protocols
from benchmd_ray.results.report.scored import Scored, measured, read_scored
from benchmd_ray.results.report.training_frames import ran_rows, training_rows
from benchmd_ray.results.report.tuning_frames import search_rows, tuned_rows, tuning_notes
from benchmd_ray.results.store import Run
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.tuning.records import SearchRecord

Row = dict[str, Any]

RUNS_AT_ONCE = 16
"""Runs whose predictions are read and measured together."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """Results of runs. The columns of each frame are those of `frames.FRAMES`.

    A result is named by the columns of `frames.KEY`; its seeds are pooled. Intervals are of 95 %.
    """

    cells: list[Cell] = field(default_factory=list)
    """AUROC of each run on each split of each dataset, in the table's order."""
    scores: pd.DataFrame = field(default_factory=partial(frame, "scores", ()))
    """Every metric, over all classes (``mean``) and of each class."""
    gaps: pd.DataFrame = field(default_factory=partial(frame, "gaps", ()))
    """In distribution (the source's validation split) minus another dataset, for each metric."""
    changes: pd.DataFrame = field(default_factory=partial(frame, "changes", ()))
    """Each technique minus scratch on the same records, for each metric."""
    pairs: pd.DataFrame = field(default_factory=partial(frame, "pairs", ()))
    """Pairs of techniques on the same records: AUROC of b minus that of a."""
    ranking: pd.DataFrame = field(default_factory=partial(frame, "ranking", ()))
    """Rank of each technique among those on the same records, and what the ranking is worth."""
    subgroups: pd.DataFrame = field(default_factory=partial(frame, "subgroups", ()))
    """AUROC of groups of people and devices."""
    posthoc: pd.DataFrame = field(default_factory=partial(frame, "posthoc", ()))
    """Which groups differ from which."""
    left_out: pd.DataFrame = field(default_factory=partial(frame, "left_out", ()))
    """Groups too small to be scored."""
    roc: pd.DataFrame = field(default_factory=partial(frame, "roc", ()))
    """ROC curve of each class and seed."""
    calibration: pd.DataFrame = field(default_factory=partial(frame, "calibration", ()))
    """Scores against the share of positives of each class and seed, in bins."""
    training: pd.DataFrame = field(default_factory=partial(frame, "training", ()))
    """Loss, source validation AUROC and learning rate over the training."""
    ran: pd.DataFrame = field(default_factory=partial(frame, "ran", ()))
    """One row per run: where and with what it ran."""
    searches: pd.DataFrame = field(default_factory=partial(frame, "searches", ()))
    """One row per search: its trials, what they scored and what they cost."""
    tuned: pd.DataFrame = field(default_factory=partial(frame, "tuned", ()))
    """Tuned settings minus those that their search started from, in AUROC."""
    modalities: tuple[str, ...] = ()
    """Names of the runs' modalities, in the order that their cards state."""
    records: list[SearchRecord] = field(default_factory=list)
    """The searches themselves, with every trial."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know."""


@dataclass(frozen=True, eq=False)
class Block:
    """Results of all runs that were trained on one source by one policy."""

    cells: list[Cell]
    pools: list[Pool]
    notes: list[str]

    def of(self, pool: Pool) -> list[Cell]:
        """Results of the single runs of a pool."""
        place = (pool.key["dataset"], pool.key["split"])
        runs = {member.run.folder.name for member in pool.members}
        return [c for c in self.cells if (c.dataset, c.split) == place and c.run in runs]

    def paper(self, pool: Pool) -> float:
        """The paper's AUROC beside a pool, NaN where there is none or not for all its runs."""
        beside = {cell.paper for cell in self.of(pool)}
        (value,) = beside if len(beside) == 1 else (None,)
        return float("nan") if value is None else value


def analyse(
    found: Sequence[Run],
    *,
    searches: Sequence[SearchRecord] = (),
    skipped: Sequence[str] = (),
    resamples: int = 1000,
    curves: bool = True,
) -> Analysis:
    """Compute everything that a report says.

    Args:
        found: Pretraining and transfer runs, as `store.runs` reads them.
        searches: Searches of their stores, as `tuning.records.searches` reads them.
        skipped: Notes on what could not be read of the stores.
        resamples: Of the patients, for the intervals.
        curves: Whether to fill ``roc`` and ``calibration``, which figures alone show.

    Raises:
        BenchmdError: No run is finished and has predictions, or predictions cannot be read.
    """
    with_predictions(found)  # refused before anything is read
    named = protocols(found)
    cells: list[Cell] = []
    said = [*skipped, *unfinished(found), *named.notes]
    rows: dict[str, list[pd.DataFrame]] = {name: [frame(name, ())] for name in FRAMES}
    for block in blocks(found, named, tuple(METRICS), resamples):
        cells += block.cells
        said += block.notes
        for name, made in _frames_of(block, resamples, curves=curves).items():
            rows[name].append(made)
        tuned = tuned_rows(block.pools, searches, found, block.paper)
        rows["tuned"].append(frame("tuned", tuned))
    rows["searches"].append(frame("searches", search_rows(searches)))
    rows["training"].append(frame("training", training_rows(found)))
    rows["ran"].append(frame("ran", ran_rows(found, named.names)))
    frames = {name: pd.concat(parts, ignore_index=True) for name, parts in rows.items()}
    said += tuning_notes(frames["tuned"], searches)
    cells.sort(key=cell_order)
    kinds = sorted((run.modality for run in found), key=lambda kind: kind.order)
    return Analysis(
        cells=cells,
        modalities=tuple(dict.fromkeys(kind.name for kind in kinds)),
        notes=[*notes(cells), *said],
        records=list(searches),
        **frames,
    )


def blocks(
    found: Sequence[Run], named: Protocols, metrics: Sequence[str], resamples: int
) -> Iterator[Block]:
    """Results of runs, measured and pooled, source by source; shows progress.

    Raises:
        BenchmdError: No run is finished and has predictions, or predictions cannot be read.
    """
    runs = with_predictions(found)
    display, done = progress("statistics", len(runs), "runs"), 0
    for together in _by_source(runs):
        scored: list[Scored] = []
        skipped: list[str] = []
        for start in range(0, len(together), RUNS_AT_ONCE):
            some = together[start : start + RUNS_AT_ONCE]
            read = [read_scored(run) for run in some]
            scored += measured([one for each in read for one in each.scored], metrics, resamples)
            skipped += [note for each in read for note in each.skipped]
            done += len(some)
            display.update(done)
        held, said = pools(scored, named.names)
        cells = [cell(one, named.names[one.run.folder]) for pool in held for one in pool.members]
        said = [*skipped, *said, *apart(held), *other_seeds(held), *shared_patients(held)]
        said += of_pools(held, found)
        yield Block(cells, held, said)
    display.close()


def _by_source(runs: Sequence[Run]) -> list[list[Run]]:
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        key = (*(str(run.description[name]) for name in ("modality", "source", "policy")),)
        found.setdefault(key, []).append(run)
    return [found[key] for key in sorted(found)]


def _frames_of(block: Block, resamples: int, *, curves: bool) -> dict[str, pd.DataFrame]:
    """The frames of one block, but those of the training."""
    held, metrics = block.pools, tuple(METRICS)
    several = {**subgroup_rows(held, resamples), **contest_rows(held)}
    drawn = held if curves else ()
    return {
        "scores": frame("scores", score_rows(block, metrics)),
        "gaps": frame("gaps", gap_rows(held, metrics)),
        "changes": frame("changes", change_rows(held, metrics)),
        **{name: frame(name, rows) for name, rows in several.items()},
        "roc": roc_frame(drawn),
        "calibration": calibration_frame(drawn),
    }


def score_rows(block: Block, metrics: Sequence[str]) -> Iterator[Row]:
    """Each metric of each pool, over all classes and of each; NaN where it cannot be scored."""
    for pool in block.pools:
        positives = (pool.first.targets == 1).sum(axis=0)
        names = ("mean", *pool.first.classes)
        for metric in metrics:
            values = pool.values(metric)
            for column, name in enumerate(names):
                pooled = pool.pooled(metric, column)
                beside = (metric, name) == ("auroc", "mean")
                yield {
                    **pool.key,
                    "metric": metric,
                    "class": name,
                    "value": pooled.mean,
                    "sd": pooled.sd,
                    "low": pooled.low,
                    "high": pooled.high,
                    "seeds": pooled.seeds,
                    "seed_values": tuple(values[:, column].tolist()),
                    "records": len(pool.first.targets),
                    "patients": pool.first.patients,
                    "positives": int(positives[column - 1] if column else positives.sum()),
                    "scored": pool.first.predicted.scored,
                    "paper": block.paper(pool) if beside else float("nan"),
                    "caution": pooled.caution,
                }
