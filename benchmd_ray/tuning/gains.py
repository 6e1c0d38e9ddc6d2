"""What finished searches teach: of each family the best trial, where it is above its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from benchmd_ray.data.sketches import merged
from benchmd_ray.tuning.families import FAMILY
from benchmd_ray.tuning.ladder import RUNGS
from benchmd_ray.tuning.portfolio import Candidate, Portfolio, SearchKind
from benchmd_ray.tuning.record_form import parameter_of
from benchmd_ray.tuning.records import FamilyRecord, SearchRecord

FEWEST = 8
"""Scored trials that a family needs; the best of fewer is mostly lucky."""


def learned(
    records: Sequence[SearchRecord], kinds: Mapping[tuple[str, str], SearchKind]
) -> Portfolio:
    """A portfolio of finished searches on one source each.

    ``kinds``: of each search and family, by their names.
    """
    candidates: list[Candidate] = []
    after: dict[str, set[str]] = {}
    sketches: dict[str, set[str]] = {}
    for record in records:
        source = record.sources[0]
        dataset = str(source["source"])
        for family in record.families:
            kind = kinds.get((record.name, family.name))
            if kind is None or (best := _best(record, family)) is None:
                continue
            candidates.append(Candidate(dataset, kind, *best))
            if record.lenders:
                after.setdefault(dataset, set()).update(record.lenders)
            for name, sketch in {dataset: source["sketch"], **record.lenders}.items():
                sketches.setdefault(name, set()).add(sketch)
    return Portfolio(
        candidates=tuple(sorted(candidates, key=lambda candidate: -candidate.gain)),
        after={name: tuple(sorted(lenders)) for name, lenders in sorted(after.items())},
        sketches={name: merged(parts) for name, parts in sorted(sketches.items())},
    )


def _best(record: SearchRecord, family: FamilyRecord) -> tuple[dict[str, object], float] | None:
    """Settings of the best trial above a family's start, and its gain; None if there is none.

    It is the best of those with the most evaluations. Settings from a portfolio are excluded, as
    they were learned on other datasets, and trials that did not climb if others did.
    """
    trials = record.trials
    is_scored = trials["value"].notna() & (trials["state"] != "failed")
    trials = trials[(trials[FAMILY] == family.name) & is_scored]
    starts = len(record.families)  # the first trials, one for each family
    if len(trials) < FEWEST or trials["number"].iloc[0] != record.families.index(family):
        return None
    start, lent = trials["value"].iloc[0], range(starts, starts + record.borrowed)
    rivals = trials.iloc[1:][~trials["number"].iloc[1:].isin(lent)]
    least = min(RUNGS[1], rivals["evaluations"].max())
    above = rivals[(rivals["value"] > start) & (rivals["evaluations"] >= least)]
    if above.empty:
        return None
    best = above.sort_values(["evaluations", "value"], ascending=False, kind="stable").iloc[0]
    values = {
        name: parameter_of(name, about).taken(best[name])
        for name, about in family.space.items()
        if not pd.isna(best[name])
    }
    return values, round(float(best["value"] - start), 5)
