"""Frames of tuning: searches, and tuned settings compared with their start.

The counterpart of a tuned result has the same technique and transfer setting, the same records, and
the settings of the search's first trial for encoder, transfer and pretraining.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.report.compared import difference, p_delong
from benchmd_ray.report.frames import KEY
from benchmd_ray.report.names import technique_words
from benchmd_ray.report.pools import Pool
from benchmd_ray.report.protocols import ENSEMBLES, pretraining_of, searches_behind
from benchmd_ray.report.scored import Scored, measured, of_predictions
from benchmd_ray.report.table import shown
from benchmd_ray.runs.predictions import Predictions, predictions_path, read_predictions
from benchmd_ray.runs.store import Run
from benchmd_ray.settings.definition import EncoderSettings, Settings, TransferSettings
from benchmd_ray.tuning.records import RULE, SearchRecord

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class TunedPair:
    """Tuned results, and results of the settings that their search started from."""

    tuned: Pool
    start: Pool | None
    """Results of the start on the same records; None if missing."""
    search: str
    """Name of the search."""
    record: SearchRecord | None
    """The search; None if it is not in the stores."""

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Both pools, or only the tuned one."""
        return (self.tuned,) if self.start is None else (self.tuned, self.start)


FRESH = (
    "Fresh evaluations use other folds and seeds than the race, but the same patients, so they are "
    "still slightly optimistic: rely on the source's scored splits and the targets, which no "
    "search sees."
)
HIGHEST = (
    "it is the best of many and so optimistic; rely on the source's scored splits and the targets, "
    "which no search sees."
)
"""Caution on inner scores, by a search's rule of choice."""
SAME = ("catalog", "fold", "precision")
"""Determinants of a transfer that no search changes, so they must equal those of the tuned run."""


def search_rows(records: Sequence[SearchRecord]) -> Iterator[Row]:
    """One row per search; records and patients are summed over its sources."""
    for record in records:
        yield {
            "search": record.name,
            **{name: _listed(record, name) for name in ("modality", "source", "policy")},
            "technique": technique_words([record.technique])[record.technique],
            "setting": record.setting,
            "network": networks(record),
            "sampler": record.sampler,
            "stopping": record.stopping,
            "choosing": record.choosing,
            "objectives": ", ".join(record.objectives),
            "searched": len(record.space),
            "trials": len(record.trials),
            **record.counts,
            "evaluations": record.evaluations,
            "evaluated": int(record.trials[["evaluations", "fresh_evaluations"]].sum().sum()),
            "chosen": record.best,
            **_choice(record),
            "seconds": record.seconds,
            "device_hours": record.device_hours,
            "shared_seconds": record.shared_seconds,
            "device": record.device,
            **{
                f"{fold}_{what}": sum(int(about[what][fold]) for about in record.sources)
                for fold in ("train", "validation")
                for what in ("records", "patients")
            },
        }


def networks(record: SearchRecord) -> str:
    """Networks of a search, that of the start first: ``resnet18 or resnet50``."""
    encoders = [settings.get("encoder", {}) for settings in record.settings]
    started = [str(size.get("network", EncoderSettings().network)) for size in encoders]
    searched = record.space.get("encoder.network", {}).get("values", ())
    return " or ".join(dict.fromkeys([*started, *map(str, searched)]))


def _choice(record: SearchRecord) -> dict[str, float]:
    """Scores on which a search based its choice, and the deciding difference."""
    decision, nearest = record.decision, next(iter(record.finalists), {})
    finalist = next((row for row in record.finalists if row["number"] == record.best), nearest)
    return {
        "start_value": record.first_value if decision is None else decision["start"],
        "chosen_value": record.value if decision is None else decision["expected"],
        "difference": finalist.get("difference", np.nan),
        "difference_low": finalist.get("low", np.nan),
    }


def tuned_pairs(
    pools: Sequence[Pool], records: Sequence[SearchRecord], runs: Sequence[Run]
) -> list[TunedPair]:
    """Tuned results of one source and policy, each with its counterpart."""
    named = {record.name: record for record in records}
    runs_by_name = {run.folder.name: run for run in runs}
    pairs = []
    for pool in pools:
        if pool.key["protocol"] == "tuned":
            run = pool.first.run
            search = searches_behind(run, pretraining_of(run, runs_by_name))[0]
            record = named.get(search)
            start = None if record is None else _start(pool, pools, record, runs_by_name)
            pairs.append(TunedPair(pool, start, search, record))
    return pairs


def tuned_rows(pairs: Iterable[TunedPair], paper: Callable[[Pool], float]) -> Iterator[Row]:
    """One row per tuned result; NaN if its counterpart is missing."""
    for pair in pairs:
        record = pair.record
        yield _row(pair.tuned, pair.start, paper) | {
            "search": pair.search,
            "trials": None if record is None else len(record.trials),
            "device_hours": np.nan if record is None else record.device_hours,
        }


def tuning_notes(tuned: pd.DataFrame, records: Sequence[SearchRecord]) -> list[str]:
    """Notes for readers of tuned results."""
    notes = []
    choosing = {record.choosing for record in records}
    if "confirmed" in choosing:
        notes.append(f"searches: {RULE}. {FRESH}")
    if "highest" in choosing:
        notes.append(f"searches that choose the highest value: {HIGHEST}")
    for record in records:
        if record.result is None:
            failed, trials = record.counts["failed"], len(record.trials)
            all_failed = f"all {trials} trials failed, the first of them: {record.first_reason}"
            why = all_failed if trials and failed == trials else "no trial is complete yet"
            notes.append(f"{record.name}: {why}.")
        elif record.best == 0:
            notes.append(
                f"{record.name}: no trial beat the start, so nothing is tuned: {_kept(record)}."
            )
    averages = tuned["protocol"].isin(ENSEMBLES)
    notes += _ensemble_notes(tuned[averages], tuned[~averages])
    lost = tuned[~averages & tuned["start_protocol"].isna()]
    unknown = sorted(set(lost["search"]) - {record.name for record in records})
    notes += [
        f"{name}: this search is not in the stores of this report, so its start is missing and "
        "nothing is compared. Name its store too."
        for name in unknown
    ]
    lost = lost[~lost["search"].isin(unknown)]
    for (name, technique, setting), rows in lost.groupby(["search", "technique", "setting"]):
        notes.append(
            f"{name}: {technique}, {setting}: the settings that the search started from were not "
            f"scored on the same records of {', '.join(sorted(set(rows['dataset'])))}, so nothing "
            "is compared there. Run them too."
        )
    return notes


def _kept(record: SearchRecord) -> str:
    """Why a search keeps its start."""
    if record.choosing == "highest":
        return "no other trial has a higher value"
    if not record.finalists:
        return "no other trial was evaluated again"
    finalist = record.finalists[0]
    return (
        f"{count_of(len(record.finalists), 'trial')} evaluated again, none significantly better "
        f"(largest difference {shown(finalist['difference'], 'signed')}, lower bound "
        f"{shown(finalist['low'], 'signed')})"
    )


def _ensemble_notes(averages: pd.DataFrame, single: pd.DataFrame) -> list[str]:
    if averages.empty:
        return []
    notes = [
        "tuned ensemble: one model that averages the probabilities of all seeds with tuned "
        "settings; start ensemble: the same with the settings that the search started from, over "
        "the same seeds. Ensembles are compared only with each other, as averaging alone raises "
        "scores; interval and p cover patients, not seeds."
    ]
    started = set(single.dropna(subset="start_protocol")["search"])
    lost = averages[averages["start_protocol"].isna() & averages["search"].isin(started)]
    return notes + [
        f"{name}: {technique}, {setting}: tuned runs and those of the start share fewer than two "
        "seeds, so there is no start ensemble. Run both with the same seeds."
        for name, technique, setting in dict.fromkeys(
            lost[["search", "technique", "setting"]].itertuples(index=False, name=None)
        )
    ]


def _listed(record: SearchRecord, name: str) -> str:
    return ", ".join(dict.fromkeys(str(about[name]) for about in record.sources))


def _start(
    pool: Pool, pools: Sequence[Pool], record: SearchRecord, runs_by_name: Mapping[str, Run]
) -> Pool | None:
    """Results of the settings that a search started from, if possible with the same seeds."""
    first = record.start(*(pool.key[name] for name in ("modality", "source", "policy")))
    if first is None:
        return None
    names = [name for name in KEY if name not in ("technique", "protocol")]
    fit = [
        other
        for other in pools
        if other is not pool
        and all(other.key[name] == pool.key[name] for name in names)
        and other.first.run.description["technique"] == pool.first.run.description["technique"]
        and other.first.rows_digest == pool.first.rows_digest
        and _same(other.first.run, pool.first.run)
        and _has(other.first.run, pretraining_of(other.first.run, runs_by_name), first)
    ]
    return max(fit, key=lambda one: one.seeds == pool.seeds, default=None)


def _same(run: Run, other: Run) -> bool:
    """Whether two runs were trained on the same records, in the same precision, by the same code.

    Parts of the code that only one of them uses, such as augmentation, are not compared.
    """
    ours, theirs = (compared.description["determinants"] for compared in (run, other))
    parts, others = (determinants.get("parts", {}) for determinants in (ours, theirs))
    return all(ours.get(name) == theirs.get(name) for name in SAME) and all(
        parts[name] == others[name] for name in parts.keys() & others.keys()
    )


def _has(run: Run, upstream: Run | None, first: Settings) -> bool:
    """Whether a transfer and its pretraining have these settings, apart from those in the key."""
    settings = run.settings
    if (settings.encoder, _plain(settings.transfer)) != (first.encoder, _plain(first.transfer)):
        return False
    if upstream is None:  # from scratch, or missing
        return run.description.get("upstream") is None
    trained = (
        "pretrain" in upstream.description["determinants"]
    )  # ImageNet weights only set the encoder
    return not trained or upstream.settings.pretrain == first.pretrain


def _plain(transfer: TransferSettings) -> TransferSettings:
    """Settings of a transfer without those in the key of a result."""
    default = TransferSettings()
    return replace(transfer, mode=default.mode, labels=default.labels)


def _row(pool: Pool, start: Pool | None, paper: Callable[[Pool], float]) -> Row:
    ours = pool.pooled("auroc", 0)
    row = {
        **pool.key,
        **{name: getattr(ours, name) for name in ("low", "high", "caution")},
        "value": ours.mean,
        "seeds": len(pool.runs),
        "contamination": pool.contamination,
    }
    lost = ("start", "start_low", "start_high", "paper", "p", "p_delong")
    differing = ("difference", "difference_low", "difference_high")
    if start is None:
        return row | {"start_protocol": None} | dict.fromkeys((*lost, *differing), np.nan)
    first, change = start.pooled("auroc", 0), difference(pool, start, "auroc")
    return row | {
        "start_protocol": start.key["protocol"],
        "start": first.mean,
        "start_low": first.low,
        "start_high": first.high,
        "paper": paper(start),
        **dict(zip(differing, (change.value, change.low, change.high), strict=True)),
        "p": change.p,
        "p_delong": p_delong(start, pool),
        "caution": change.caution,
    }


FEWEST = 2
"""Fewest seeds of an ensemble."""


def ensembles(
    pairs: Sequence[TunedPair], metrics: Sequence[str], resamples: int
) -> tuple[list[TunedPair], list[str]]:
    """Ensembles of tuned results and their counterparts, and notes on what was skipped.

    An ensemble is one model that averages the probabilities of seeds. Averaging alone often
    improves a model, so the start is averaged over the same seeds, and ensembles are compared only
    with each other. With fewer than two common seeds there is only an ensemble of all tuned seeds.
    Intervals and p are over patients, for fixed models.
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
                f"Skipped: the average of {numbered[0].key['technique']} on "
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
        tuned, *start = (
            Pool(_ensemble_key(pair.tuned, protocol), (0,), (result,), members)
            for protocol, result, members in zip(ENSEMBLES, done, runs, strict=False)
        )
        averages.append(replace(pair, tuned=tuned, start=start[0] if start else None))
    return averages, notes


def _ensemble_key(tuned: Pool, protocol: str) -> dict[str, str]:
    """Of an average for a tuned row: ``MAE, tuned`` becomes ``MAE, tuned ensemble``."""
    name = tuned.key["technique"].replace(", tuned", f", {protocol}", 1)
    return {**tuned.key, "technique": name, "protocol": protocol}


def _seeds_of_runs(pool: Pool) -> tuple[int, ...]:
    return tuple(int(member.run.description["seed"]) for member in pool.members)


def averaged(members: Sequence[Scored]) -> Scored:
    """The mean of the runs' probabilities on one split, without metrics.

    Probabilities are averaged per record, before windows are pooled to scans, so the ensemble acts
    as one model.

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
    """The predictions of a result, sorted by record."""
    path = predictions_path(member.run.folder, member.dataset)
    table = read_predictions(path).table
    return table.filter(pc.equal(table["split"], member.split)).sort_by("record_id")
