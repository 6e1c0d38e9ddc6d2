"""Nested cross-validation: a search in each fold, and what its choices are worth together.

In each fold a search chooses among the patients that are not held out, and its choice and its start
are scored on those that are. Folds may choose differently: the results over all folds are those of
searching, not of one setting.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.report.ensembles import FEWEST, averaged
from benchmd_ray.report.frames import mixed, with_mode
from benchmd_ray.report.names import RowName
from benchmd_ray.report.over_folds import held_out_fold, joined
from benchmd_ray.report.pools import Pool, pools
from benchmd_ray.report.protocols import (
    ENSEMBLES,
    START,
    TUNED,
    fold_of,
    pretraining_of,
    searches_behind,
)
from benchmd_ray.report.scored import Scored
from benchmd_ray.report.tuning_frames import TunedPair, is_start, tuned_pairs
from benchmd_ray.runs.store import Run
from benchmd_ray.tuning.records import SearchRecord

Measure = Callable[[Sequence[Scored]], list[Scored]]
SEVERAL = "families by fold"
"""Begins the name of a row whose folds chose different encoders."""
IN_EACH = " in each fold"
"""Follows ``tuned`` in the names of rows."""


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
    """What the folds chose, and what is not shown and why."""

    def add(self, tuned: Pool, start: Pool, records: tuple[SearchRecord, ...]) -> None:
        """Add a choice and its start; several of one name are numbered, a start is there once."""
        is_average = bool(tuned.averaged)
        place = self.averages if is_average else self.pools
        tuned, start = _numbered(tuned, place), _numbered(start, place)
        name = re.sub("-[0-9a-f]{12}$", "", records[0].name)
        about = f"{name}, in each of {len(records)} folds"
        self.pairs.append(TunedPair(tuned, start, about, records))
        # A start on all labels is a row of its own already.
        for pool in (tuned, start) if is_average or start.folds else (tuned,):
            if all(pool.key != other.key for other in place):
                place.append(pool)


def _numbered(pool: Pool, others: Sequence[Pool]) -> Pool:
    """The pool, under a name that no other results have."""
    name, number = pool.key["technique"], 1
    while any(pool.key == other.key and _runs(pool) != _runs(other) for other in others):
        number += 1
        pool = replace(pool, key={**pool.key, "technique": f"{name} ({number})"})
    return pool


def _runs(pool: Pool | None) -> list[str]:
    """Digests of the runs that a pool is made of."""
    return [] if pool is None else [m.run.digest for one in pool.runs for m in one.models]


class _Fold(NamedTuple):
    """All results and searches of one fold."""

    results: list[Scored]
    records: list[SearchRecord]


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
    whole, by_name = Nested(), {run.folder.name: run for run in runs}
    for (_, number_of_folds, _), folds in _by_catalog(results, records).items():
        made = {
            number: [r for r in fold.results if _is_made(r.run, fold.records, by_name)]
            for number, fold in folds.items()
        }
        searched = [n for n in folds if made[n] or any(r.is_finished for r in folds[n].records)]
        every = [result for fold in folds.values() for result in fold.results]
        if len(searched) < 2:  # a catalog like any other
            whole.others.extend(every)
            continue
        before = len(whole.pairs)
        _add_searches(whole, folds, number_of_folds, names, runs, measure)
        pairs = whole.pairs[before:]
        shown = {
            run
            for pool in (*(p.tuned for p in pairs), *(p.start for p in pairs))
            for run in _runs(pool)
        }
        of_searches = {id(result) for some in made.values() for result in some}
        whole.others.extend(result for result in every if id(result) not in of_searches)
        lost = {r.run.digest for some in made.values() for r in some} - shown
        if lost:
            source = every[0].run.description["source"]
            whole.notes.append(
                f"{source}: {count_of(len(lost), 'run')} of searches in its folds are not shown: "
                "their searches are not in the stores of this report, have not chosen in every "
                "fold, or have no counterpart in every fold."
            )
    return whole


def _by_catalog(
    results: Sequence[Scored], records: Sequence[SearchRecord]
) -> dict[tuple[Any, ...], dict[int, _Fold]]:
    """Folds by number, of each catalog that was cut into folds."""
    wholes: dict[tuple[Any, ...], dict[int, _Fold]] = {}
    places: dict[str, _Fold] = {}
    for result in results:
        stated = held_out_fold(result)
        key = (stated["catalog"], stated["folds"], stated["leave_one_out"])
        fold = wholes.setdefault(key, {}).setdefault(stated["number"], _Fold([], []))
        fold.results.append(result)
        places.setdefault(str(result.run.description["determinants"]["catalog"]), fold)
    for record in records:
        fold_of_record = places.get(str(record.sources[0]["catalog"]))
        if fold_of_record is not None and len(record.sources) == 1:
            fold_of_record.records.append(record)
    return wholes


def _is_made(run: Run, records: Sequence[SearchRecord], runs_by_name: Mapping[str, Run]) -> bool:
    """Whether a search in the run's fold made it, not a user with the settings that it found."""
    behind = searches_behind(run, pretraining_of(run, runs_by_name))
    return bool(fold_of(run)) or any(r.name in behind and _is_choice(run, r) for r in records)


def _is_choice(run: Run, record: SearchRecord) -> bool:
    """Whether a run is of the family that its search chose."""
    family, about = record.chosen, run.description
    return family is not None and (
        family.setting == "pretrain"
        or (about["technique"], about["setting"]) == (family.technique, family.setting)
    )


def _add_searches(
    whole: Nested,
    folds: Mapping[int, _Fold],
    number_of_folds: int,
    names: Mapping[Path, RowName],
    runs: Sequence[Run],
    measure: Measure,
) -> None:
    """Add what searches of each kind chose in the folds of a catalog."""
    alike: dict[str, dict[int, list[SearchRecord]]] = {}
    for number, fold in sorted(folds.items()):
        for record in fold.records:
            if record.is_finished:
                alike.setdefault(_kind(record), {}).setdefault(number, []).append(record)
    pooled = {number: pools(fold.results, names)[0] for number, fold in folds.items()}
    for of_fold in alike.values():
        first = next(iter(of_fold.values()))[0]
        where = f"{first.sources[0]['source']}: the searches in its folds"
        several = [number for number, found in of_fold.items() if len(found) > 1]
        if (done := len(of_fold)) < number_of_folds:
            whole.notes.append(
                f"{where}: {done} of {number_of_folds} have chosen, so what they are worth is not "
                f"shown ({first.name}). `benchmd tune` with the catalog that was cut into folds "
                "does the others."
            )
        elif several:
            whole.notes.append(
                f"{where}: fold {several[0]} has several of one kind, so what they are worth is "
                "not shown. Report on a store that has one for each fold."
            )
        else:
            records = tuple(of_fold[number][0] for number in range(number_of_folds))
            sides = [_pairs(record, pooled[number], runs) for number, record in enumerate(records)]
            _add(whole, sides, records, measure)


def _kind(record: SearchRecord) -> str:
    """What searches of one kind have in common."""
    families = [
        (family.name, family.space, [{**s, "seed": 0} for s in family.settings])
        for family in record.families
    ]
    return json.dumps([families, record.sampler, record.cautious, record.seed], sort_keys=True)


_Models = dict[tuple[int, int], Scored]
"""Results of single models by evaluation and seed."""
_Place = tuple[str, str, str, bool]
"""Dataset, split, setting of a pretraining's transfer, and whether results are of fold models."""


def _pairs(
    record: SearchRecord, pools_of_fold: Sequence[Pool], runs: Sequence[Run]
) -> dict[_Place, tuple[Pool, Pool]]:
    """A search's choice and its start in its fold, on the same records; none that is not unique."""
    by_name = {run.folder.name: run for run in runs}
    if record.best:
        found = [
            (pair.tuned, pair.start)
            for pair in tuned_pairs(pools_of_fold, [record], runs)
            if pair.search == record.name and pair.start is not None
            if _is_choice(pair.tuned.first.run, record)
        ]
    else:
        found = [(p, p) for p in pools_of_fold if is_start(p.first.run, record, by_name)]
    pairs: dict[_Place, tuple[Pool, Pool]] = {}
    places = Counter[_Place]()
    for tuned, start in found:
        setting = tuned.key["setting"] if record.families[0].setting == "pretrain" else ""
        place = (tuned.key["dataset"], tuned.key["split"], setting, bool(tuned.folds))
        pairs[place] = (tuned, start)
        places[place] += 1
    return {place: pair for place, pair in pairs.items() if places[place] == 1}


def _add(
    whole: Nested,
    sides: Sequence[Mapping[_Place, tuple[Pool, Pool]]],
    records: tuple[SearchRecord, ...],
    measure: Measure,
) -> None:
    """Add the results over folds of a kind of search, dataset by dataset."""
    for place in dict.fromkeys(place for side in sides for place in side):
        pairs = [side[place] for side in sides if place in side]
        dataset, split, _, of_folds = place
        where = f"{records[0].sources[0]['source']} on {dataset} ({split})"
        models = [[_numbers(pool) for pool in pair] for pair in pairs]
        numbers = sorted(set.intersection(*(set(one) for each in models for one in each)))
        if not of_folds and all(tuned is start for tuned, start in pairs):
            continue
        if len(pairs) < len(sides) or not numbers:
            whole.notes.append(
                f"{where}: the choice and the start of a search were not scored on the same "
                "records in every fold, so they are not compared there."
            )
            continue
        choices, starts = ([each[side] for each in models] for side in (0, 1))
        try:
            tuned = _single(choices, numbers, _row_of([tuned for tuned, _ in pairs]), measure)
            start = _single(starts, numbers, pairs[0][1].key, measure)
            whole.add(tuned, start, records)
            if of_folds and len(numbers) >= FEWEST:
                average = _ensemble(tuned, choices, numbers, measure)
                whole.add(average, _ensemble(start, starts, numbers, measure), records)
        except BenchmdError as error:
            whole.notes.append(f"Skipped: {error}")
            continue
        if of_folds and (note := _chosen(pairs)) not in whole.notes:
            whole.notes.append(note)


def _chosen(pairs: Sequence[tuple[Pool, Pool]]) -> str:
    """What the searches chose, the choice and the start of each fold."""
    words = Counter(
        "the start" if tuned is start else with_mode(_words(tuned), tuned.key["setting"])
        for tuned, start in pairs
    )
    text = ", ".join(f"{name} ({count_of(n, 'fold')})" for name, n in words.most_common())
    return f"{pairs[0][0].key['source']}: the searches in its folds chose {text}."


def _numbers(pool: Pool) -> _Models:
    """Its members by evaluation and seed, which are those of an evaluation in all folds."""
    about = [(member, member.run.description) for member in pool.members]
    return {(a.get("fold", {}).get("evaluation", -1), a["seed"]): member for member, a in about}


def _words(pool: Pool) -> str:
    """A row's name without what tells tuned ones and starts apart."""
    return re.split(", (?:tuned|start)(?![a-z])", pool.key["technique"])[0]


def _row_of(choices: Sequence[Pool]) -> dict[str, str]:
    """Key of the choices of all folds."""
    words, settings = ({*map(_words, choices)}, {pool.key["setting"] for pool in choices})
    mark = f", {TUNED}{IN_EACH}" + ("" if choices[0].folds else ", whole split")
    return {
        **choices[0].key,
        "technique": (words.pop() if len(words) == 1 else SEVERAL) + mark,
        "setting": settings.pop() if len(settings) == 1 else mixed(settings),
        "protocol": TUNED,
    }


def _single(
    side: Sequence[_Models],
    numbers: Sequence[tuple[int, int]],
    key: Mapping[str, str],
    measure: Measure,
) -> Pool:
    """The single models of all folds, one member for each number."""
    members = measure([joined([models[number] for models in side]) for number in numbers])
    key = {**key, "split": members[0].split}
    return Pool(key, tuple(range(len(members))), tuple(members))


def _ensemble(
    pool: Pool, side: Sequence[_Models], numbers: Sequence[tuple[int, int]], measure: Measure
) -> Pool:
    """The ensembles of all folds, named after the single models."""
    of_fold = [[models[number] for number in numbers] for models in side]
    every = tuple(model for models in of_fold for model in models)
    is_source = pool.key["dataset"] == pool.key["source"]
    (whole,) = measure([joined([averaged(m) for m in of_fold] if is_source else every)])
    mark = pool.key["protocol"] if pool.key["protocol"] in ENSEMBLES else START
    ensemble = f", {ENSEMBLES[mark]} of {len(numbers)}"
    name = pool.key["technique"].replace(f", {mark}", ensemble, 1)
    key = {**pool.key, "technique": name, "protocol": ENSEMBLES[mark]}
    return Pool(key, (0,), (whole,), every)
