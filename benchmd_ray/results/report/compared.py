"""Frames that compare: gaps between datasets, changes against scratch, pairs, rankings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.evaluation.comparison import Difference, delong, holm, unpaired
from benchmd_ray.evaluation.seeds import difference_over_seeds
from benchmd_ray.evaluation.stability import ranking_stability
from benchmd_ray.results.report.cells import SPLITS
from benchmd_ray.results.report.frames import PLACE
from benchmd_ray.results.report.pools import Pool
from benchmd_ray.results.report.protocols import comparable_with, letters_of, same_transfer

BOUNDS = (-1.0, 1.0)
"""Differences of metrics, which lie between 0 and 1."""
SCRATCH = "scratch"
"""The technique that the others are compared with."""
Row = dict[str, Any]
Floats = npt.NDArray[np.float64]


def gap_rows(pools: Sequence[Pool], metrics: Sequence[str]) -> Iterator[Row]:
    """In distribution (the source's own validation split) minus each other dataset.

    A dataset is scored by its split ``test`` where it has one.
    """
    names = ("modality", "source", "policy", "setting", "technique", "protocol")
    own = {
        tuple(pool.key[name] for name in names): pool
        for pool in pools
        if pool.key["dataset"] == pool.key["source"] and pool.key["split"] == "validation"
    }
    for pool in _one_split(pools):
        home = own.get(tuple(pool.key[name] for name in names))
        if home is None or pool.key["dataset"] == pool.key["source"]:
            continue
        for metric in metrics:
            gap = difference(home, pool, metric, unpaired)
            yield {
                **pool.key,
                "metric": metric,
                "in_distribution": home.value(metric),
                "target": pool.value(metric),
                "gap": gap.value,
                "low": gap.low,
                "high": gap.high,
            }


def shared_patients(pools: Sequence[Pool]) -> list[str]:
    """Names the datasets with patients of a source's own validation split among theirs."""
    own = {
        pool.key["source"]: set(pool.first.units["group_id"])
        for pool in pools
        if pool.key["dataset"] == pool.key["source"] and pool.key["split"] == "validation"
    }
    found = set()
    for pool in _one_split(pools):
        source, dataset = pool.key["source"], pool.key["dataset"]
        both = own.get(source, set()) & set(pool.first.units["group_id"])
        if both and dataset != source:
            found.add((dataset, source, len(both), pool.first.patients))
    return [
        f"{dataset}: {both:,} of its {patients:,} patients are also in {source} (validation); the "
        "interval of the gap takes the two as if no patient were in both."
        for dataset, source, both, patients in sorted(found)
    ]


def _one_split(pools: Sequence[Pool]) -> list[Pool]:
    """Pools without the other splits of a dataset: the last of `SPLITS` stays."""
    best: dict[tuple[str, ...], Pool] = {}
    for pool in sorted(pools, key=lambda p: [*SPLITS, p.key["split"]].index(p.key["split"])):
        best[tuple(value for name, value in pool.key.items() if name != "split")] = pool
    return [pool for pool in pools if any(pool is one for one in best.values())]


def change_rows(pools: Sequence[Pool], metrics: Sequence[str]) -> Iterator[Row]:
    """Each technique minus scratch on the same records, the seeds of both pooled."""
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


def difference(
    a: Pool, b: Pool, metric: str, subtract: Callable[[Floats, Floats], Floats] = np.subtract
) -> Difference:
    """Metric of a minus that of b, over the seeds.

    With the same seeds on both sides the difference is taken seed by seed. Otherwise it is that of
    the means over the seeds, and its interval says nothing about seeds.

    Args:
        a: Results of one technique.
        b: Results of another on the same records, or of the same on others.
        metric: The metric whose mean over classes is compared.
        subtract: Resamples of a minus those of b; for other records `unpaired`.
    """
    if a.seeds == b.seeds:
        values = a.values(metric)[:, 0] - b.values(metric)[:, 0]
        drawn = [subtract(x, y) for x, y in zip(a.drawn(metric), b.drawn(metric), strict=True)]
        return difference_over_seeds(values.tolist(), drawn, bounds=BOUNDS)
    value = a.value(metric) - b.value(metric)
    drawn = [subtract(a.resampled(metric), b.resampled(metric))]
    return difference_over_seeds([value], drawn, bounds=BOUNDS)


def p_delong(a: Pool, b: Pool) -> float:
    """Smallest p of DeLong's test over the classes, corrected by Holm.

    NaN where a technique has several seeds: the test compares two single models.
    """
    if len(a.members) > 1 or len(b.members) > 1:
        return float("nan")
    one, other = a.first, b.first
    found = delong(one.targets, one.scores, other.scores, one.groups)
    corrected = holm([test.p for test in found])
    return float("nan") if np.isnan(corrected).all() else float(np.nanmin(corrected))


def pair_rows(pools: Sequence[Pool]) -> Iterator[Row]:
    """Every pair of techniques on the same records in AUROC, Holm over the pairs of a place."""
    for place, members in contests(pools):
        pairs = list(combinations(members, 2))
        found = [difference(b, a, "auroc") for a, b in pairs]
        corrected = holm([each.p for each in found])
        for (a, b), each, p in zip(pairs, found, corrected, strict=True):
            yield {
                **place,
                "a": a.key["technique"],
                "b": b.key["technique"],
                "difference": each.value,
                "low": each.low,
                "high": each.high,
                "p": each.p,
                "p_holm": float(p),
            }


def ranking_rows(pools: Sequence[Pool]) -> Iterator[Row]:
    """Rank of each technique in AUROC among those on the same records, 1 the best."""
    for place, members in contests(pools):
        values = {pool.key["technique"]: pool.value("auroc") for pool in members}
        drawn = {pool.key["technique"]: pool.resampled("auroc") for pool in members}
        if np.isnan(list(values.values())).any():
            continue
        yield from _stability_rows(place, values, drawn)


def contests(pools: Sequence[Pool]) -> Iterator[tuple[Mapping[str, str], list[Pool]]]:
    """Places where several techniques meet on the same records, and their pools.

    Where the protocols of a place have letters (settings of the pretraining), each letter is a
    place, which the techniques without one take part in. Scratch takes part too where it is called
    ``fixed`` and the others, of the same transfer, ``custom`` for their pretraining.
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
    """Pools on the same records that differ by their technique and protocol alone."""
    found: dict[tuple[str, ...], list[Pool]] = {}
    names = [name for name in PLACE if name != "protocol"]
    for pool in pools:
        key = (*(pool.key[name] for name in names), pool.first.rows_digest)
        found.setdefault(key, []).append(pool)
    return list(found.values())


def apart(pools: Sequence[Pool]) -> list[str]:
    """Notes on techniques that cannot be compared, for their records are not the same."""
    places: dict[str, dict[str, list[str]]] = {}
    for pool in pools:
        held = places.setdefault(_place(pool.key), {})
        held.setdefault(pool.first.rows_digest, []).append(pool.key["technique"])
    return [
        f"{where}: {' and '.join(', '.join(names) for names in held.values())} were scored on "
        "different records or labels and are not compared. Evaluate the runs again with one "
        "catalog."
        for where, held in places.items()
        if len(held) > 1
    ]


def other_seeds(pools: Sequence[Pool]) -> list[str]:
    """Notes on techniques that were run with different seeds."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for place, members in contests(pools):
        seeds: dict[tuple[int, ...], list[str]] = {}
        for pool in members:
            seeds.setdefault(pool.seeds, []).append(pool.key["technique"])
        if len(seeds) > 1:
            said = "; ".join(
                f"{', '.join(names)}: {', '.join(map(str, held))}" for held, names in seeds.items()
            )
            settings = found.setdefault((place["source"], place["protocol"], said), [])
            settings += [place["setting"]] if place["setting"] not in settings else []
    return [
        f"{source}, {protocol}, {', '.join(settings)}: the techniques have different seeds "
        f"({said}). Where two differ in them, the interval and p of their difference say nothing "
        "about seeds."
        for (source, protocol, said), settings in found.items()
    ]


def _place(key: Mapping[str, str]) -> str:
    return (
        f"{key['source']}, {key['dataset']} ({key['split']}), {key['setting']}, {key['protocol']}"
    )


def _base_of(scratch: Pool, others: Sequence[Pool]) -> bool:
    """Whether results from scratch are what others differ from by their pretraining alone."""
    return all(
        comparable_with(scratch.key["protocol"], other.key["protocol"])
        or same_transfer(scratch.first.run, other.first.run)
        for other in others
    )


def _stability_rows(
    place: Mapping[str, str], values: Mapping[str, float], drawn: Mapping[str, Floats]
) -> Iterator[Row]:
    stability = ranking_stability(values, drawn)
    tau, tau_low, tau_high = stability.tau
    for technique in stability.order:
        rank, low, high = stability.rank[technique]
        yield {
            **place,
            "technique": technique,
            "rank": rank,
            "low": low,
            "high": high,
            "tau": tau,
            "tau_low": tau_low,
            "tau_high": tau_high,
        }
