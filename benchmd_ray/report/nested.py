"""Nested cross-validation: a search in each fold, and what its choices are worth together.

In each fold a search chooses among the patients that are not held out, and its choice and its start
are scored on those that are. Folds may choose differently: the results over all folds are those of
searching, not of one setting.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.report.ensembles import FEWEST, averaged
from benchmd_ray.report.frames import mixed
from benchmd_ray.report.names import RowName
from benchmd_ray.report.over_folds import held_out_fold, joined
from benchmd_ray.report.pools import Pool
from benchmd_ray.report.protocols import (
    ENSEMBLES,
    START,
    TUNED,
    fold_of,
    pretraining_of,
    searches_behind,
)
from benchmd_ray.report.rows import key_of
from benchmd_ray.report.scored import Scored
from benchmd_ray.report.tuning_frames import TunedPair, family_names, is_start
from benchmd_ray.runs.store import Run
from benchmd_ray.tuning.records import SearchRecord

Measure = Callable[[Sequence[Scored]], list[Scored]]
SEVERAL = "families by fold"
"""Begins the name of a row whose folds chose different encoders."""


@dataclass(frozen=True, eq=False)
class Nested:
    """Results of searches over all folds."""

    pools: list[Pool] = field(default_factory=list)
    """Single models: those of the choices, and the fold models of the starts."""
    averages: list[Pool] = field(default_factory=list)
    """Ensembles of these fold models."""
    pairs: list[TunedPair] = field(default_factory=list)
    others: list[Scored] = field(default_factory=list)
    """Results that are not of these searches."""
    notes: list[str] = field(default_factory=list)
    """What the folds chose, and what is left out."""


class _Where(NamedTuple):
    """What results of one search are compared with each other."""

    dataset: str
    setting: str
    """Setting of the transfer, for a search of a pretraining; otherwise empty."""
    of_folds: bool
    """Whether they are of fold models, not of models on all labels."""


_Models = dict[_Where, dict[int, Scored]]
"""Results by evaluation; of models on all labels by seed."""


class _Search(NamedTuple):
    record: SearchRecord
    choice: _Models
    start: _Models


def _by_search(
    results: Sequence[Scored], records: Sequence[SearchRecord]
) -> tuple[set[str], list[Scored]]:
    """Catalogs of which several folds were searched, and the results that are not of a search.

    Where only one fold was searched, its results are those of a catalog like any other.
    """
    catalogs = {record.name: _catalog(record) for record in records}
    made = [
        bool(fold_of(result.run))
        or catalogs.get(result.run.settings.tuned or "") == _trained_on(result.run)
        for result in results
    ]
    stated = [held_out_fold(result) for result in results]
    folds: dict[str, set[int]] = {}
    for about, is_made in zip(stated, made, strict=True):
        folds.setdefault(about["catalog"], set()).update([about["number"]] if is_made else ())
    searched = {catalog for catalog, numbers in folds.items() if len(numbers) > 1}
    others = [
        result
        for result, about, is_made in zip(results, stated, made, strict=True)
        if not (is_made and about["catalog"] in searched)
    ]
    return searched, others


def _catalog(record: SearchRecord) -> str:
    return str(record.sources[0]["catalog"])


def _trained_on(run: Run) -> str:
    return str(run.description["determinants"]["catalog"])


def nested(
    results: Sequence[Scored],
    names: Mapping[Path, RowName],
    records: Sequence[SearchRecord],
    runs: Sequence[Run],
    measure: Measure,
) -> Nested:
    """Results over all folds of searches that differ only in the fold.

    Args:
        results: Those of the runs of a cross-validation, without metrics.
        names: As in `pools.pools`.
        records: Searches of the runs' stores.
        runs: All runs, pretrainings too.
        measure: Gives results their metrics.
    """
    searched, others = _by_search(results, records)
    whole = Nested(others=others)
    by_catalog: dict[str, list[Scored]] = {}
    for result in results:
        by_catalog.setdefault(_trained_on(result.run), []).append(result)
    alike: dict[tuple[Any, ...], dict[int, list[SearchRecord]]] = {}
    for record in records:
        if len(record.sources) == 1 and record.result and _catalog(record) in by_catalog:
            stated = held_out_fold(by_catalog[_catalog(record)][0])
            if stated["catalog"] not in searched:
                continue
            kind = (stated["catalog"], stated["folds"], *_kind(record))
            alike.setdefault(kind, {}).setdefault(stated["number"], []).append(record)
    by_name = {run.folder.name: run for run in runs}
    for (_, folds, *_), of_fold in alike.items():
        ordered = [of_fold[number] for number in sorted(of_fold)]
        where = f"{ordered[0][0].sources[0]['source']}: the searches in its folds"
        several = [number for number, found in of_fold.items() if len(found) > 1]
        if len(of_fold) < folds:
            whole.notes.append(
                f"{where}: {len(of_fold)} of {folds} have chosen, so what they are worth is not "
                "shown. `benchmd tune` with the catalog that was cut into folds does the others."
            )
        elif several:
            whole.notes.append(
                f"{where}: fold {several[0]} has several, so what they are worth is not shown. "
                "Report on a store that has one for each fold."
            )
        else:
            whole.notes.append(f"{where} chose {_choices([record for (record,) in ordered])}.")
            searches = [
                _models(record, by_catalog[_catalog(record)], by_name) for (record,) in ordered
            ]
            _add(whole, searches, names, measure)
    return whole


def _kind(record: SearchRecord) -> tuple[Any, ...]:
    """What searches of one kind have in common."""
    families = tuple(family.name for family in record.families)
    return families, record.sampler, record.cautious, record.seed


def _choices(records: Sequence[SearchRecord]) -> str:
    """``random kernels, linear (3 folds), the start (1 fold)``."""
    words = Counter(
        family_names(record)[record.chosen.name] if record.best and record.chosen else "the start"
        for record in records
    )
    return ", ".join(f"{name} ({count_of(n, 'fold')})" for name, n in words.most_common())


def _models(
    record: SearchRecord, results: Sequence[Scored], runs_by_name: Mapping[str, Run]
) -> _Search:
    """The results of a search's choice and of its start."""
    choice: _Models = {}
    start: _Models = {}
    of_pretraining = record.families[0].setting == "pretrain"
    for result in results:
        run, about = result.run, result.run.description
        behind = searches_behind(run, pretraining_of(run, runs_by_name))
        where = _Where(
            result.dataset, str(about["setting"]) if of_pretraining else "", bool(fold_of(run))
        )
        number = int(about["fold"]["evaluation"] if where.of_folds else about["seed"])
        if record.name in behind:
            choice.setdefault(where, {})[number] = result
        elif not behind and is_start(run, record, runs_by_name):
            start.setdefault(where, {})[number] = result
    return _Search(record, choice if record.best else start, start)


def _add(
    whole: Nested, searches: Sequence[_Search], names: Mapping[Path, RowName], measure: Measure
) -> None:
    """Add the results over folds of searches of a kind, dataset by dataset."""
    records = tuple(search.record for search in searches)
    name = re.sub("-[0-9a-f]{12}$", "", records[0].name)
    about = (f"{name}, in each of {len(records)} folds", records)
    for where in searches[0].choice:
        choices = [search.choice.get(where, {}) for search in searches]
        starts = [search.start.get(where, {}) for search in searches]
        both = [sorted({*c} & {*s}) for c, s in zip(choices, starts, strict=True)]
        numbers = sorted(set.intersection(*map(set, both)))
        if not numbers:
            continue
        try:
            single = [
                _single(protocol, side, numbers, names, measure)
                for protocol, side in ((TUNED, choices), (START, starts))
            ]
            averages = [
                _ensemble(pool, side, both, measure)
                for pool, side in zip(single, (choices, starts), strict=True)
                if where.of_folds and min(map(len, both)) >= FEWEST
            ]
        except BenchmdError as error:
            whole.notes.append(f"Skipped: {error}")
            continue
        whole.pools.extend(single if where.of_folds else single[:1])  # its start is a row already
        whole.averages.extend(averages)
        for tuned, start in filter(None, (single, averages)):
            whole.pairs.append(TunedPair(tuned, start, *about))


def _single(
    protocol: str,
    side: Sequence[Mapping[int, Scored]],
    numbers: Sequence[int],
    names: Mapping[Path, RowName],
    measure: Measure,
) -> Pool:
    """The single models of all folds, one member for each number."""
    members = measure([joined([models[number] for models in side]) for number in numbers])
    firsts = [models[numbers[0]] for models in side]
    rows = [names[first.run.folder] for first in firsts]
    key = key_of(members[0], rows[0])
    if protocol == TUNED:
        words = {re.split(", (?:tuned|start)(?![a-z])", row.technique)[0] for row in rows}
        settings = {str(first.run.description["setting"]) for first in firsts}
        mark = ", tuned" if fold_of(firsts[0].run) else ", tuned, whole split"
        key |= {
            "technique": (words.pop() if len(words) == 1 else SEVERAL) + mark,
            "setting": settings.pop() if len(settings) == 1 else mixed(settings),
            "protocol": TUNED,
        }
    return Pool(key, tuple(range(len(members))), tuple(members))


def _ensemble(
    pool: Pool,
    side: Sequence[Mapping[int, Scored]],
    numbers: Sequence[Sequence[int]],
    measure: Measure,
) -> Pool:
    """The ensembles of all folds, named after the single models."""
    of_fold = [[models[n] for n in chosen] for models, chosen in zip(side, numbers, strict=True)]
    every = tuple(model for models in of_fold for model in models)
    if pool.key["dataset"] == pool.key["source"]:
        (whole,) = measure([joined([averaged(models) for models in of_fold])])
    else:
        (whole,) = measure([joined(every)])
    least, most = (end(map(len, of_fold)) for end in (min, max))
    number = str(least) if least == most else f"{least} to {most}"
    protocol = ENSEMBLES[pool.key["protocol"]]
    name = pool.key["technique"].replace(
        f", {pool.key['protocol']}", f", {protocol} of {number}", 1
    )
    return Pool({**pool.key, "technique": name, "protocol": protocol}, (0,), (whole,), every)
