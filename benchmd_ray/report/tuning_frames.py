"""Frames of tuning: searches and their families, and tuned settings compared with their start.

A search delivers fold models: runs of its choice and of its start, each trained on the inner
catalog of an evaluation and scored as any run. The counterpart of a tuned result are the results of
the search's start, on the same records and, of fold models, the same folds with the same seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.report.compared import difference, p_delong
from benchmd_ray.report.frames import KEY, SETTINGS, with_mode
from benchmd_ray.report.names import technique_words
from benchmd_ray.report.pools import Pool
from benchmd_ray.report.protocols import ENSEMBLES, TUNED, pretraining_of, searches_behind
from benchmd_ray.runs.store import Run
from benchmd_ray.settings.definition import EncoderSettings, Settings, TransferSettings
from benchmd_ray.tuning.families import FAMILY
from benchmd_ray.tuning.records import FamilyRecord, SearchRecord

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class TunedPair:
    """Tuned results, and results of the settings that their search started from."""

    tuned: Pool
    start: Pool | None
    """Results of the start on the same records; None if missing."""
    search: str
    """Name of the search."""
    records: tuple[SearchRecord, ...]
    """The search, or those of all folds; none if it is not in the stores."""


SEEN = (
    "A search's own scores are no result: they are on records by which it chose. Rely on the "
    "source's scored splits and the targets, which no search sees."
)
SAME = ("catalog", "precision")
"""Determinants of a transfer that no search changes, so they must equal those of the tuned run."""


def search_rows(records: Sequence[SearchRecord]) -> Iterator[Row]:
    """One row per search; records and patients are summed over its sources."""
    for record in records:
        names, chosen = family_names(record), record.chosen
        yield {
            **_about(record),
            "families": "; ".join(names.values()),
            "network": " or ".join(dict.fromkeys(map(networks, record.families))),
            "sampler": record.sampler,
            "metric": record.metric,
            "searched": len({name for family in record.families for name in family.space}),
            "trials": len(record.trials),
            **record.counts,
            "evaluations": int(record.trials["evaluations"].sum()),
            "chosen": record.best,
            "family": "" if chosen is None else names[chosen.name],
            "start_value": record.first_value,
            "chosen_value": record.value,
            "optimism": record.optimism,
            "folds": len(record.folds),
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


def family_rows(records: Sequence[SearchRecord]) -> Iterator[Row]:
    """One row per family of a search: its best trial, compared with the start, and its cost."""
    for record in records:
        names = family_names(record)
        for family in record.families:
            trials = record.trials[record.trials[FAMILY] == family.name]
            best, evaluations = best_of(record, family), int(trials["evaluations"].sum())
            hours = float(trials["device_hours"].sum())
            yield {
                **_about(record),
                "family": names[family.name],
                "trials": len(trials),
                "best": None if best is None else int(best["number"]),
                "is_chosen": best is not None and best["number"] == record.best,
                "value": np.nan if best is None else best["value"],
                "evaluations": 0 if best is None else int(best["evaluations"]),
                **_against_start(record, best),
                "hours_per_evaluation": hours / evaluations if evaluations else np.nan,
            }


def _against_start(record: SearchRecord, best: pd.Series | None) -> Row:
    if best is None or best["number"] == 0:
        return {"difference": np.nan, "error": np.nan}
    return {"difference": best["value"] - record.first_value, "error": best["error"]}


def best_of(record: SearchRecord, family: FamilyRecord) -> pd.Series | None:
    """The chosen trial of a family, else its best with the most evaluations, else the start.

    None if no trial of it has a score.
    """
    trials = record.trials[record.trials[FAMILY] == family.name]
    trials = trials[trials["value"].notna() & ~trials["state"].isin(["failed", "stopped"])]
    others = trials[trials["number"] != 0]
    if record.best in set(trials["number"]):
        return trials[trials["number"] == record.best].iloc[0]
    if others.empty:
        return trials.iloc[0] if len(trials) else None
    most = others[others["evaluations"] == others["evaluations"].max()]
    best: pd.Series = most.nlargest(1, "value").iloc[0]
    return best


def family_names(record: SearchRecord) -> dict[str, str]:
    """Families in words, ``random kernels, linear``, by their names."""
    words = technique_words(family.technique for family in record.families)
    return {
        family.name: with_mode(words[family.technique], family.setting)
        for family in record.families
    }


def networks(family: FamilyRecord) -> str:
    """Networks of a family, that of its start first: ``resnet18 or resnet50``."""
    encoders = [settings.get("encoder", {}) for settings in family.settings]
    started = [str(size.get("network", EncoderSettings().network)) for size in encoders]
    searched = family.space.get("encoder.network", {}).get("values", ())
    return " or ".join(dict.fromkeys([*started, *map(str, searched)]))


def _about(record: SearchRecord) -> Row:
    names = ("modality", "source", "policy")
    return {"search": record.name, **{name: _listed(record, name) for name in names}}


def tuned_pairs(
    pools: Sequence[Pool], records: Sequence[SearchRecord], runs: Sequence[Run]
) -> list[TunedPair]:
    """Tuned results of one source and policy, each with its counterpart."""
    named = {record.name: record for record in records}
    runs_by_name = {run.folder.name: run for run in runs}
    pairs = []
    for pool in pools:
        if pool.key["protocol"] == TUNED:
            run = pool.first.run
            search = searches_behind(run, pretraining_of(run, runs_by_name))[0]
            record = named.get(search)
            start = None if record is None else _start(pool, pools, record, runs_by_name)
            records_of_pair = () if record is None else (record,)
            pairs.append(TunedPair(*_on_common_folds(pool, start), search, records_of_pair))
    return pairs


def _on_common_folds(tuned: Pool, start: Pool | None) -> tuple[Pool, Pool | None]:
    """Both sides on the folds that both have; runs on all labels as they are."""
    if start is None or not tuned.folds:
        return tuned, start
    return _on_folds(tuned, start.folds), _on_folds(start, tuned.folds)


def _on_folds(pool: Pool, folds: Sequence[tuple[str, int]]) -> Pool:
    places = [place for place, fold in enumerate(pool.folds) if fold in folds]
    seeds = tuple(pool.folds[place][1] for place in places)
    return replace(pool, seeds=seeds, members=tuple(pool.members[place] for place in places))


def tuned_rows(pairs: Iterable[TunedPair], paper: Callable[[Pool], float]) -> Iterator[Row]:
    """One row per tuned result; NaN if its counterpart is missing."""
    for pair in pairs:
        counts = [len(record.trials) for record in pair.records]
        yield _row(pair.tuned, pair.start, paper) | {
            "search": pair.search,
            "trials": sum(counts) if counts else None,
            "device_hours": sum(r.device_hours for r in pair.records) if counts else np.nan,
        }


def tuning_notes(
    tuned: pd.DataFrame, records: Sequence[SearchRecord], protocols: Iterable[str]
) -> list[str]:
    """Notes for readers of tuned results; ``protocols`` are those of all rows."""
    notes = [f"searches: {SEEN}"] if records else []
    for record in records:
        if not record.is_finished:
            failed, trials = record.counts["failed"], len(record.trials)
            all_failed = f"all {trials} trials failed, the first of them: {record.first_reason}"
            why = all_failed if trials and failed == trials else "no trial is complete yet"
            notes.append(f"{record.name}: {why}.")
        elif record.best == 0:
            notes.append(f"{record.name}: no trial beat the start, so nothing is tuned.")
    if not {*protocols}.isdisjoint(ENSEMBLES.values()):
        notes.append(
            "tuned ensemble, start ensemble: the average of the probabilities of the fold models "
            "of a search's choice and of its start; tuned, start: the mean of their scores. A fold "
            "model is trained without one of the search's folds. Each is compared only with its "
            "counterpart of the same folds, as averaging alone raises scores; interval and p of "
            "ensembles cover patients, not training."
        )
    lost = tuned[~tuned["protocol"].isin(ENSEMBLES.values()) & tuned["start_name"].isna()]
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


def fold_notes(pairs: Sequence[TunedPair], pools: Sequence[Pool]) -> list[str]:
    """Notes on tuned fold models that are compared without some of their folds."""
    every = {tuple(pool.key.values()): len(pool.members) for pool in pools}
    notes = {}
    for pair in pairs:
        whole, common = every[tuple(pair.tuned.key.values())], len(pair.tuned.members)
        if pair.start is not None and common < whole:
            name = with_mode(pair.tuned.key["technique"], pair.tuned.key["setting"])
            notes[pair.search, name] = (
                f"{pair.search}: {name}: compared with the start on the {count_of(common, 'fold')} "
                f"of its {whole} on which the start was trained too."
            )
    return [*notes.values()]


def _listed(record: SearchRecord, name: str) -> str:
    return ", ".join(dict.fromkeys(str(about[name]) for about in record.sources))


def _start(
    pool: Pool, pools: Sequence[Pool], record: SearchRecord, runs_by_name: Mapping[str, Run]
) -> Pool | None:
    """Results of the settings that a search started from, with the most folds or seeds in common.

    Fold models need a fold in common.
    """
    technique, setting = _started(record, pool)
    names = [name for name in KEY if name not in ("technique", "protocol", "setting")]
    fit = [
        other
        for other in pools
        if other is not pool
        and all(other.key[name] == pool.key[name] for name in names)
        and other.key["setting"] == setting
        and other.first.facts.rows == pool.first.facts.rows
        and bool(other.folds) == bool(pool.folds)
        and (not pool.folds or {*pool.folds} & {*other.folds})
        and _same(other.first.run, pool.first.run)
        and _starts(other.first.run, record, technique, runs_by_name)
    ]

    def common(other: Pool) -> tuple[int, bool]:
        return len({*pool.folds} & {*other.folds}), other.seeds == pool.seeds

    return max(fit, key=common, default=None)


def of_start(
    pools: Sequence[Pool], record: SearchRecord, runs_by_name: Mapping[str, Run]
) -> list[Pool]:
    """Results of the fold models of a search's start."""
    return [pool for pool in pools if pool.folds and is_start(pool.first.run, record, runs_by_name)]


def is_start(run: Run, record: SearchRecord, runs_by_name: Mapping[str, Run]) -> bool:
    """Whether a transfer has the settings of a search's start."""
    family = record.families[0]
    settings = SETTINGS if family.setting == "pretrain" else (family.setting,)
    is_setting = run.description["setting"] in settings
    return is_setting and _starts(run, record, family.technique, runs_by_name)


def _starts(
    run: Run, record: SearchRecord, technique: str, runs_by_name: Mapping[str, Run]
) -> bool:
    place = (str(run.description[name]) for name in ("modality", "source", "policy"))
    first = record.start(*place)
    return (
        first is not None
        and run.description["technique"] == technique
        and _has(run, pretraining_of(run, runs_by_name), first)
    )


def _started(record: SearchRecord, pool: Pool) -> tuple[str, str]:
    """Technique and transfer setting of the start of a tuned result.

    Those of the search's first family, unless the result has others than any family: tuned settings
    may be used elsewhere, and a tuned pretraining in any setting.
    """
    technique, setting = str(pool.first.run.description["technique"]), pool.key["setting"]
    first = record.families[0]
    families = {(family.technique, family.setting) for family in record.families}
    return (
        first.technique if technique in dict(families) else technique,
        first.setting if (technique, setting) in families else setting,
    )


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
    # ImageNet weights only set the encoder.
    trained = "pretrain" in upstream.description["determinants"]
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
        "models": len(pool.runs),
        "contamination": pool.contamination,
    }
    lost = ("start", "start_low", "start_high", "paper", "p", "p_delong")
    differing = ("difference", "difference_low", "difference_high")
    if start is None:
        return row | {"start_name": None} | dict.fromkeys((*lost, *differing), np.nan)
    first, change = start.pooled("auroc", 0), difference(pool, start, "auroc")
    return row | {
        "start_name": with_mode(start.key["technique"], start.key["setting"]),
        "start": first.mean,
        "start_low": first.low,
        "start_high": first.high,
        "paper": paper(start),
        **dict(zip(differing, (change.value, change.low, change.high), strict=True)),
        "p": change.p,
        "p_delong": p_delong(start, pool),
        "caution": change.caution,
    }
