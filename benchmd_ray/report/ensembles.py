"""Ensembles: averages of the fold models of a search's choice, and of its start."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.pools import Pool
from benchmd_ray.report.protocols import ENSEMBLES, START
from benchmd_ray.report.scored import Scored, measured, of_predictions
from benchmd_ray.report.tuning_frames import TunedPair
from benchmd_ray.runs.predictions import (
    SHARED,
    Predictions,
    predictions_path,
    read_predictions,
)

FEWEST = 2
"""Fewest fold models of an ensemble."""


@dataclass(frozen=True, eq=False)
class Ensembles:
    """Averages of the fold models of tuned results and of their starts.

    An ensemble is one model that averages the probabilities of fold models. Averaging alone often
    improves a model, so ensembles are compared only with each other, over the same folds. Intervals
    and p are over patients, for fixed models.
    """

    pairs: list[TunedPair]
    pools: list[Pool]
    """Those of the pairs, and of starts that no search replaced."""
    notes: list[str]
    """What was skipped."""


def ensembles(
    pairs: Sequence[TunedPair], pools: Sequence[Pool], metrics: Sequence[str], resamples: int
) -> Ensembles:
    """Averages of all fold models of one source and policy."""
    averages: dict[tuple[object, ...], Pool | None] = {}
    names: Counter[tuple[str, ...]] = Counter()
    result = Ensembles([], [], [])

    def average(pool: Pool) -> Pool | None:
        what = *pool.key.values(), pool.folds
        if what not in averages:
            averages[what] = None
            try:
                if len(pool.members) >= FEWEST and pool.key["protocol"] in ENSEMBLES:
                    (mean,) = measured([averaged(pool.members)], metrics, resamples)
                    averages[what] = ensemble = Pool(named(pool), (0,), (mean,), pool.members)
                    result.pools.append(ensemble)
            except BenchmdError as error:
                result.notes.append(f"Skipped: {error}")
        return averages[what]

    def named(pool: Pool) -> dict[str, str]:
        """``MAE, tuned (lr 0.1)`` becomes ``MAE, tuned ensemble of 5 (lr 0.1)``."""
        mark, protocol = pool.key["protocol"], ENSEMBLES[pool.key["protocol"]]
        name = pool.key["technique"].replace(f", {mark}", f", {protocol} of {len(pool.members)}", 1)
        key = {**pool.key, "technique": name, "protocol": protocol}
        names[tuple(key.values())] += 1  # the start of two searches, on other folds
        number = names[tuple(key.values())]
        return key | ({"technique": f"{name} ({number})"} if number > 1 else {})

    for pair in pairs:
        if pair.tuned.folds and (tuned := average(pair.tuned)) is not None:
            start = None if pair.start is None else average(pair.start)
            result.pairs.append(replace(pair, tuned=tuned, start=start))
    compared = [pair.start.key for pair in pairs if pair.start is not None]
    for pool in pools:
        if pool.key["protocol"] == START and pool.key not in compared:
            average(pool)
    return result


def averaged(members: Sequence[Scored], *, common: bool = False) -> Scored:
    """The mean of the runs' probabilities on one split, without metrics.

    Probabilities are averaged per record, before windows are pooled to scans, so the ensemble acts
    as one model. With ``common``, only over records that all have: of a cross-validation, runs are
    not scored on what they share with their own training.

    Raises:
        BenchmdError: Predictions cannot be read, or are of different records.
    """
    tables = [_records(member) for member in members]
    if common:
        names = set.intersection(*(set(table["record_id"].to_pylist()) for table in tables))
        if not names:
            raise BenchmdError(
                f"every record of {members[0].dataset} ({members[0].split}) is, or its patient is, "
                "in the training of some fold's model."
            )
        kept = pa.array(sorted(names), pa.string())
        tables = [table.filter(pc.is_in(table["record_id"], kept)) for table in tables]
    first = tables[0]
    for one, table in zip(members, tables, strict=True):
        if not table["record_id"].equals(first["record_id"]):
            raise BenchmdError(
                f"{one.run.folder.name} and {members[0].run.folder.name} have predictions of "
                f"different records of {one.dataset} ({one.split}) and are not averaged. Evaluate "
                "the runs again with one catalog."
            )
    scores = [table["scores"].combine_chunks().flatten().to_numpy() for table in tables]
    mean = pa.FixedSizeListArray.from_arrays(
        pa.array(np.mean(scores, axis=0)), first["scores"].type.list_size
    )
    table = first.set_column(first.column_names.index("scores"), "scores", mean)
    about = dict(members[0].about)
    if common:
        about |= shared_by_any(members, len(table))
    (average,) = of_predictions(members[0].run, Predictions(table, about))
    return replace(average, parts=tuple(members)) if common else average


def shared_by_any(members: Sequence[Scored], scored: int | None = None) -> dict[str, str]:
    """What the records that the training of some member has, too, mean for results of them all.

    ``scored`` are the records that are left of one split of all; None if each member has its own.
    """
    stated = [json.loads(member.about[SHARED]) for member in members if SHARED in member.about]
    if not stated:
        return {}
    whole, counts = dict(stated[0]), [each["records"] for each in stated]
    if scored is None:
        whole |= {"records": sum(counts), "of": sum(each["of"] for each in stated)}
    else:
        whole["records"] = whole["of"] - scored if whole["excluded"] else max(counts)
    return {SHARED: json.dumps(whole)}


def _records(member: Scored) -> pa.Table:
    """The predictions of a result, sorted by record."""
    path = predictions_path(member.run.folder, member.dataset)
    table = read_predictions(path).table
    return table.filter(pc.equal(table["split"], member.split)).sort_by("record_id")
