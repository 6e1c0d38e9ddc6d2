"""Frames of comparisons: gaps between datasets, changes, pairs, rankings, subgroups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.report.frames import PLACE, SPLITS
from benchmd_ray.report.pools import Pool
from benchmd_ray.report.protocols import comparable_with, letters_of, same_transfer
from benchmd_ray.report.scored import THREADS
from benchmd_ray.scores.comparison import EXCHANGES, LEAST_EXCHANGE_P, delong, exchange_p, holm
from benchmd_ray.scores.seeds import (
    Difference,
    OverSeeds,
    difference_over_seeds,
    unpaired_difference,
)
from benchmd_ray.scores.stability import ranking_stability
from benchmd_ray.scores.subgroups import age_band, by_subgroup
from benchmd_ray.scores.support import ALIKE, caution

SCRATCH = "scratch"
"""The technique that the others are compared with."""
Row = dict[str, Any]
Floats = npt.NDArray[np.float64]


def gap_rows(pools: Sequence[Pool], metrics: Sequence[str]) -> list[Row]:
    """In distribution (the source's own validation split) minus each other dataset.

    Means are over the classes that can be scored on both; a dataset with a ``test`` split is
    represented by it. Holm's correction is over the datasets of a technique and setting.
    """
    names = ("modality", "source", "policy", "setting", "technique", "protocol")
    home = {
        tuple(pool.key[name] for name in names): pool
        for pool in pools
        if pool.key["dataset"] == pool.key["source"] and pool.key["split"] == "validation"
    }
    rows, families = [], []
    for pool in _one_split(pools):
        place = tuple(pool.key[name] for name in names)
        if place not in home or pool.key["dataset"] == pool.key["source"]:
            continue
        for metric in metrics:
            rows.append(_gap(home[place], pool, metric))
            families.append((*place, metric))
    for family in dict.fromkeys(families):
        together = [row for row, of in zip(rows, families, strict=True) if of == family]
        for row, p in zip(together, holm([row["p"] for row in together]).tolist(), strict=True):
            row["p_holm"] = p
    return rows


def _gap(home: Pool, pool: Pool, metric: str) -> Row:
    """A row of `gap_rows`, before correction."""
    whole = home, pool
    common = home.scored_classes & pool.scored_classes
    if home.scored_classes != pool.scored_classes:  # means over different classes otherwise
        home, pool = home.over(common), pool.over(common)
    sides, same = (_of_pool(home, metric), _of_pool(pool, metric)), _runs(home) == _runs(pool)
    gap = vars(unpaired_difference(*sides, same_models=same)).copy()
    if home is not whole[0]:
        over = _over(metric, (home, pool), whole, len(common))
        gap["caution"] = "; ".join(filter(None, (over, gap["caution"])))
    value = {"gap": gap.pop("value")}
    values = {"in_distribution": home.value(metric), "target": pool.value(metric)}
    return {**pool.key, "metric": metric, **values, **value, **gap}


def _of_pool(pool: Pool, metric: str) -> OverSeeds:
    values = pool.values(metric)[:, 0].tolist()
    return OverSeeds.of(values, pool.drawn(metric), pool.basis(metric))


def _runs(pool: Pool) -> list[str]:
    return [member.run.digest for member in pool.members]


def _over(metric: str, common: Sequence[Pool], whole: Sequence[Pool], classes: int) -> str:
    """The caution of a gap over common classes only; empty if these are all classes."""
    values, before = ([pool.value(metric) for pool in pools] for pools in (common, whole))
    if np.isnan(values).all() and not np.isnan(before).any():
        return "no value: a mean of recalls over different classes"
    changed = not np.array_equal(values, before, equal_nan=True)
    return f"over {count_of(classes, 'class')} that both can score" if changed else ""


def shared_patients(pools: Sequence[Pool]) -> list[str]:
    """Notes on datasets with patients of the source's own validation split."""
    home = {
        pool.key["source"]: set(pool.first.units["group_id"])
        for pool in pools
        if pool.key["dataset"] == pool.key["source"] and pool.key["split"] == "validation"
    }
    overlaps = set()
    for pool in _one_split(pools):
        source, dataset = pool.key["source"], pool.key["dataset"]
        both = home.get(source, set()) & set(pool.first.units["group_id"])
        if both and dataset != source:
            overlaps.add((dataset, source, len(both), pool.first.patients))
    return [
        f"{dataset}: {both:,} of its {patients:,} patients are also in {source} (validation); the "
        "interval of the gap assumes that no patient is in both."
        for dataset, source, both, patients in sorted(overlaps)
    ]


def _one_split(pools: Sequence[Pool]) -> list[Pool]:
    """Pools of one split per dataset: its last one in `SPLITS`."""
    best: dict[tuple[str, ...], Pool] = {}
    for pool in sorted(pools, key=lambda p: [*SPLITS, p.key["split"]].index(p.key["split"])):
        best[tuple(value for name, value in pool.key.items() if name != "split")] = pool
    return [pool for pool in pools if any(pool is last for last in best.values())]


def change_rows(pools: Sequence[Pool], metrics: Sequence[str]) -> Iterator[Row]:
    """Each technique minus scratch on the same records."""
    for together in _together(pools):
        base = [pool for pool in together if pool.key["technique"] == SCRATCH]
        for pool in together:
            for scratch in base:
                if pool is scratch or not _base_of(scratch, [pool]):
                    continue
                for metric in metrics:
                    change = difference(pool, scratch, metric)
                    yield {
                        **pool.key,
                        "metric": metric,
                        **vars(change),
                        "p_delong": p_delong(scratch, pool) if metric == "auroc" else np.nan,
                    }


def difference(a: Pool, b: Pool, metric: str) -> Difference:
    """Metric of a minus metric of b on the same records, over seeds.

    With one seed on both sides p for AUROC is from the exchange test, otherwise from Student's t.
    """
    exact = None
    if metric == "auroc" and _by_exchange(a, b):
        first = a.first
        exact = exchange_p(first.targets, b.first.scores, first.scores, first.groups)
    return _over_seeds(a, b, metric, exact)


def _by_exchange(a: Pool, b: Pool) -> bool:
    return len(a.members) == len(b.members) == 1


def _over_seeds(a: Pool, b: Pool, metric: str, exact: float | None) -> Difference:
    """Metric of a minus metric of b, mean over classes, on the same records.

    It is taken seed by seed if both have the same seeds, otherwise between the means over seeds;
    then the interval does not cover seeds.
    """
    basis = a.basis(metric)
    if a.seeds == b.seeds:
        values = a.values(metric)[:, 0] - b.values(metric)[:, 0]
        drawn = [x - y for x, y in zip(a.drawn(metric), b.drawn(metric), strict=True)]
        return difference_over_seeds(values.tolist(), drawn, basis, exact=exact)
    value = a.value(metric) - b.value(metric)
    drawn = [a.resampled(metric) - b.resampled(metric)]
    return difference_over_seeds([value], drawn, basis, exact=exact)


def p_delong(a: Pool, b: Pool) -> float:
    """P-value of DeLong's test of the mean AUROC.

    NaN with several seeds, as it compares two single models, and where a test is not allowed or the
    interval would be rough.
    """
    basis = a.basis("auroc")
    several = len(a.members) > 1 or len(b.members) > 1
    if several or basis.no_test or basis.no_interval or basis.rough:
        return float("nan")
    first, other = a.first, b.first
    return delong(first.targets, first.scores, other.scores, first.groups).p


def contest_rows(pools: Sequence[Pool]) -> Mapping[str, list[Row]]:
    """Rows of the AUROC frames ``pairs`` (Holm's correction within a place) and ``ranking``."""
    rows: dict[str, list[Row]] = {"pairs": [], "ranking": []}
    for place, members in contests(pools):
        pairs = list(combinations(members, 2))
        differences = [difference(b, a, "auroc") for a, b in pairs]
        least = [LEAST_EXCHANGE_P if _by_exchange(a, b) else 0.0 for a, b in pairs]
        corrected = holm([change.p for change in differences], least).tolist()
        names = [(a.key["technique"], b.key["technique"]) for a, b in pairs]
        for (a, b), change, p in zip(names, differences, corrected, strict=True):
            row = dict(vars(change))
            if np.isnan(p) and not np.isnan(change.p):  # see `holm`
                reason = f"{EXCHANGES:,} exchanges cannot reach significance among so many tests"
                row["caution"] = "; ".join(filter(None, (change.caution, f"no p (Holm): {reason}")))
            value = {"difference": row.pop("value")}
            rows["pairs"].append({**place, "a": a, "b": b, **value, **row, "p_holm": p})
        if not np.isnan([pool.value("auroc") for pool in members]).any():
            rows["ranking"] += _ranking(place, members, dict(zip(names, corrected, strict=True)))
    return rows


def contests(pools: Sequence[Pool]) -> Iterator[tuple[Mapping[str, str], list[Pool]]]:
    """Places where several techniques are scored on the same records, and their pools.

    Each letter of a protocol (settings of the pretraining) is a separate place; techniques without
    a letter belong to all of them. ``fixed`` results of scratch are also compared with ``custom``
    results that differ only in their pretraining.
    """
    for together in _together(pools):
        protocols = sorted({pool.key["protocol"] for pool in together})
        for protocol in letters_of(protocols):
            members = [p for p in together if comparable_with(p.key["protocol"], protocol)]
            if all(pool.key["technique"] != SCRATCH for pool in members):
                scratch = [pool for pool in together if pool.key["technique"] == SCRATCH]
                members = [*(pool for pool in scratch if _base_of(pool, members)), *members]
            if len(members) > 1:
                place = {name: members[0].key[name] for name in PLACE}
                yield place | {"protocol": protocol}, members


def _together(pools: Sequence[Pool]) -> list[list[Pool]]:
    """Groups of pools on the same records that differ only by technique and protocol."""
    places: dict[tuple[str, ...], list[Pool]] = {}
    names = [name for name in PLACE if name != "protocol"]
    for pool in pools:
        key = (*(pool.key[name] for name in names), pool.first.rows_digest)
        places.setdefault(key, []).append(pool)
    return list(places.values())


def apart(pools: Sequence[Pool]) -> list[str]:
    """Notes on techniques that were scored on different records."""
    places: dict[str, dict[str, list[str]]] = {}
    for pool in pools:
        digests = places.setdefault(_place(pool.key), {})
        digests.setdefault(pool.first.rows_digest, []).append(pool.key["technique"])
    return [
        f"{where}: {' and '.join(', '.join(names) for names in digests.values())} were scored on "
        "different records or labels and are not compared. Evaluate the runs again with one "
        "catalog."
        for where, digests in places.items()
        if len(digests) > 1
    ]


def other_seeds(pools: Sequence[Pool]) -> list[str]:
    """Notes on techniques that were run with different seeds."""
    notes: dict[tuple[str, str, str], list[str]] = {}
    for place, members in contests(pools):
        seeds: dict[tuple[int, ...], list[str]] = {}
        for pool in members:
            seeds.setdefault(pool.seeds, []).append(pool.key["technique"])
        if len(seeds) > 1:
            seed_text = "; ".join(
                f"{', '.join(names)}: {', '.join(map(str, numbers))}"
                for numbers, names in seeds.items()
            )
            settings = notes.setdefault((place["source"], place["protocol"], seed_text), [])
            settings += [place["setting"]] if place["setting"] not in settings else []
    return [
        f"{source}, {protocol}, {', '.join(settings)}: the techniques have different seeds "
        f"({seed_text}). If two techniques have different seeds, the interval and p of their "
        f"difference do not cover seeds."
        for (source, protocol, seed_text), settings in notes.items()
    ]


def _place(key: Mapping[str, str]) -> str:
    return (
        f"{key['source']}, {key['dataset']} ({key['split']}), {key['setting']}, {key['protocol']}"
    )


def _base_of(scratch: Pool, others: Sequence[Pool]) -> bool:
    """Whether other results differ from these of scratch only by their pretraining."""
    return all(
        comparable_with(scratch.key["protocol"], other.key["protocol"])
        or same_transfer(scratch.first.run, other.first.run)
        for other in others
    )


def _ranking(
    place: Mapping[str, str], members: Sequence[Pool], p: Mapping[tuple[str, str], float]
) -> Iterator[Row]:
    """Rows of the ranking of techniques, best first, from the Holm-corrected p of each pair."""
    values = {pool.key["technique"]: pool.value("auroc") for pool in members}
    drawn = {pool.key["technique"]: pool.resampled("auroc") for pool in members}
    stability, basis = ranking_stability(values, drawn, p), members[0].basis("auroc")
    why = basis.no_test or basis.no_interval or basis.rough or ALIKE
    for technique in stability.order:
        rank, low, high = stability.rank[technique]
        untested = why if np.isnan(low) else ""
        yield {
            **place,
            "technique": technique,
            "rank": rank,
            "low": low,
            "high": high,
            "tau": np.nan if basis.no_interval else stability.tau,
            "caution": caution(interval=untested, τ=basis.no_interval),
        }


SUBGROUP_FRAMES = ("subgroups", "subgroup_pairs", "excluded")
VARIABLES = ("age", "sex", "site", "device", "view")
"""Metadata columns whose groups are compared; ages are in bands of ten years."""


def subgroup_rows(pools: Sequence[Pool], resamples: int) -> Mapping[str, list[Row]]:
    """Rows of the frames ``subgroups``, ``subgroup_pairs`` and ``excluded``."""
    rows: dict[str, list[Row]] = {name: [] for name in SUBGROUP_FRAMES}
    with ThreadPoolExecutor(THREADS) as threads:
        for frames in threads.map(partial(_subgroups_of_pool, resamples=resamples), pools):
            for name, part in frames.items():
                rows[name] += part
    return rows


def labels_of(units: pd.DataFrame, variable: str) -> list[str | None]:
    """Group of each unit by a variable; None where the source does not state it."""
    if variable == "age":
        return [age_band(None if pd.isna(years) else float(years)) for years in units["age"]]
    return [None if pd.isna(value) else str(value) for value in units[variable]]


def _subgroups_of_pool(pool: Pool, resamples: int) -> Mapping[str, list[Row]]:
    rows: dict[str, list[Row]] = {name: [] for name in SUBGROUP_FRAMES}
    for variable in VARIABLES:
        labels = labels_of(pool.first.units, variable)
        if any(label is not None for label in labels):
            for name, part in _of_variable(pool, variable, labels, resamples).items():
                rows[name] += [{**pool.key, "variable": variable, **row} for row in part]
    return rows


def _of_variable(
    pool: Pool, variable: str, labels: Sequence[str | None], resamples: int
) -> Mapping[str, list[Row]]:
    first = pool.first
    groups_found = by_subgroup(
        first.targets,
        [member.scores for member in pool.members],
        first.groups,
        labels,
        first.task,
        variable=variable,
        resamples=resamples,
    )
    return {
        "subgroups": [
            {
                "group": group.name,
                "records": group.rows,
                "patients": group.patients,
                "value": group.value,
                "low": group.low,
                "high": group.high,
                "p": groups_found.p,
                "caution": group.caution,
            }
            for group in groups_found.groups
        ],
        "subgroup_pairs": [
            {
                "a": pair.a,
                "b": pair.b,
                "difference": difference["value"],
                **{name: difference[name] for name in ("low", "high", "p", "caution")},
                "p_holm": pair.p_holm,
            }
            for pair in groups_found.pairs
            for difference in [vars(pair.difference)]
        ],
        "excluded": [{"group": name, "patients": count} for name, count in groups_found.excluded],
    }
