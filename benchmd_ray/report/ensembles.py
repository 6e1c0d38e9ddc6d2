"""Ensembles: the seeds of a tuned result as one model that averages their probabilities.

Averaging alone often improves a model. So the settings that the search started from are averaged
over the same seeds, and the two ensembles are compared only with each other. Intervals and p are
over patients, for the models that are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.pools import Pool
from benchmd_ray.report.protocols import ensembles_of
from benchmd_ray.report.scored import Scored, measured, of_predictions
from benchmd_ray.report.tuning_frames import TunedPair
from benchmd_ray.runs.predictions import Predictions, predictions_path, read_predictions

FEWEST = 2
"""Seeds of an ensemble."""


def ensembles(
    pairs: Sequence[TunedPair], metrics: Sequence[str], resamples: int
) -> tuple[list[TunedPair], list[str]]:
    """Ensembles of tuned results and of their counterparts, and notes on what was skipped.

    Both are over the seeds that both have. With fewer than two of these, only the tuned settings
    have one, of all their seeds.
    """
    averages: list[TunedPair] = []
    notes: list[str] = []
    for pair in pairs:
        both = () if pair.start is None else set(pair.tuned.seeds) & set(pair.start.seeds)
        chosen = pair.pools if len(both) >= FEWEST else (pair.tuned,)
        seeds = both if len(both) >= FEWEST else pair.tuned.seeds
        if len(seeds) < FEWEST:
            continue
        numbered = [pool for pool in chosen if pool.seeds != _seeds_of_runs(pool)]
        if numbered:
            notes.append(
                f"Skipped: the average of {numbered[0].key['protocol']} on "
                f"{numbered[0].key['dataset']}, as a seed has several pretrainings."
            )
            continue
        runs = [
            tuple(m for m, seed in zip(pool.members, pool.seeds, strict=True) if seed in seeds)
            for pool in chosen
        ]
        try:
            done = measured([averaged(members) for members in runs], metrics, resamples)
        except BenchmdError as error:
            notes.append(f"Skipped: {error}")
            continue
        names = ensembles_of(pair.tuned.key["protocol"])[: len(chosen)]
        tuned, *start = (
            Pool({**pool.key, "protocol": name}, (0,), (one,), members)
            for pool, name, one, members in zip(chosen, names, done, runs, strict=True)
        )
        averages.append(replace(pair, tuned=tuned, start=start[0] if start else None))
    return averages, notes


def _seeds_of_runs(pool: Pool) -> tuple[int, ...]:
    return tuple(int(member.run.description["seed"]) for member in pool.members)


def averaged(members: Sequence[Scored]) -> Scored:
    """The mean of the probabilities of runs on one split, without metrics.

    Probabilities are averaged per record, before windows are pooled to scans: as one model would.

    Raises:
        BenchmdError: Predictions cannot be read, or are of different records.
    """
    tables = [_records(member) for member in members]
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
    (average,) = of_predictions(members[0].run, Predictions(table, dict(members[0].about)))
    return average


def _records(member: Scored) -> pa.Table:
    """The predictions behind a result, sorted by record."""
    path = predictions_path(member.run.folder, member.dataset)
    table = read_predictions(path).table
    return table.filter(pc.equal(table["split"], member.split)).sort_by("record_id")
