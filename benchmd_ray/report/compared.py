"""Frames that compare: gaps between datasets, changes against a baseline, pairs, rankings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import count_of
from benchmd_ray.report.frames import (
    KERNELS,
    PLACE,
    SCRATCH,
    SETTINGS,
    SPLITS,
    mode_and_labels,
    rank_of,
    with_mode,
)
from benchmd_ray.report.pools import Pool
from benchmd_ray.report.protocols import APART
from benchmd_ray.report.scored import THREADS
from benchmd_ray.scores.comparison import EXCHANGES, LEAST_EXCHANGE_P, delong, exchange_p, holm
from benchmd_ray.scores.seeds import (
    Difference,
    OverSeeds,
    difference_over_seeds,
    unpaired_difference,
)
from benchmd_ray.scores.stability import ranking_stability
from benchmd_ray.scores.support import ALIKE, caution

Row = dict[str, Any]
Floats = npt.NDArray[np.float64]


def gap_rows(pools: Sequence[Pool], metrics: Sequence[str]) -> list[Row]:
    """In distribution (the source's own validation split) minus each other dataset.

    Means are over the classes that can be scored on both; a dataset with a ``test`` split is
    represented by it. Holm's correction is over the datasets of a technique and setting.
    """
    names = ("modality", "source", "policy", "setting", "technique")
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
    texts = zip(("contamination_source", "contamination"), whole, strict=True)
    seen = {column: side.contamination for column, side in texts}
    return {**pool.key, "metric": metric, **values, **value, **gap, **seen}


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


def change_rows(
    pools: Sequence[Pool], metrics: Sequence[str], baseline: str | None
) -> Iterator[Row]:
    """Each row minus its baseline, the one of this name if there is one (`baseline_of`)."""
    for _, named in contests(pools):
        together = [*named.values()]
        for pool in together:
            base = baseline_of(pool, together, baseline)
            if base is None or base is pool:
                continue
            for metric in metrics:
                yield {
                    **pool.key,
                    "metric": metric,
                    "baseline": with_mode(base.key["technique"], base.key["setting"]),
                    **vars(difference(pool, base, metric)),
                    "p_delong": p_delong(base, pool) if metric == "auroc" else np.nan,
                    "contamination": pool.contamination,
                    "contamination_baseline": base.contamination,
                }


def baseline_of(pool: Pool, together: Sequence[Pool], name: str | None) -> Pool | None:
    """What a row is compared with among those on its records; itself where it is the baseline.

    A ``name`` is that of a row, with or without its mode, or a technique. Without one, training
    from scratch that was not tuned, else tuned, else random kernels. Of several the one with the
    same mode, then network, then settings of the transfer; of other modes, linear before others.
    """
    if name is None:
        scratch = [other for other in together if _technique(other) == SCRATCH]
        chosen = [other for other in scratch if other.key["protocol"] != "tuned"] or scratch
        chosen = chosen or [other for other in together if _technique(other) == KERNELS]
    else:
        chosen = [
            other
            for other in together
            if name in (other.key["technique"], with_mode(*_named(other)))
        ] or [other for other in together if _technique(other) == name]
    ours = pool.first.run.settings

    def unlike(other: Pool) -> tuple[object, ...]:
        theirs, mode = other.first.run.settings, other.key["setting"]
        return (
            mode != pool.key["setting"],
            ours.encoder.network != theirs.encoder.network,
            ours.transfer != theirs.transfer,
            mode_and_labels(mode)[0] != "linear",
            rank_of(SETTINGS, mode),
        )

    return min(chosen, key=unlike, default=None)


def _technique(pool: Pool) -> str:
    return str(pool.first.run.description["technique"])


def _named(pool: Pool) -> tuple[str, str]:
    return pool.key["technique"], pool.key["setting"]


def difference(a: Pool, b: Pool, metric: str) -> Difference:
    """Metric of a minus metric of b on the same records, over seeds.

    With one seed on both sides p for AUROC is from the exchange test, otherwise from Student's t.
    """
    exact = None
    if metric == "auroc" and _by_exchange(a, b):
        first = a.first
        about = (first.targets, b.first.scores, first.scores, first.groups)
        exact = exchange_p(*about, folds=first.folds)
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

    NaN with several seeds or over folds, as it compares two single models, and where a test is not
    allowed or the interval would be rough.
    """
    basis = a.basis("auroc")
    several = len(a.members) > 1 or len(b.members) > 1 or bool(a.first.parts or b.first.parts)
    if several or basis.no_test or basis.no_interval or basis.rough:
        return float("nan")
    first, other = a.first, b.first
    return delong(first.targets, first.scores, other.scores, first.groups).p


def contest_rows(pools: Sequence[Pool]) -> Mapping[str, list[Row]]:
    """Rows of the AUROC frames ``pairs`` (Holm's correction within a place) and ``ranking``."""
    rows: dict[str, list[Row]] = {"pairs": [], "ranking": []}
    for place, named in contests(pools):
        pairs = list(combinations(named, 2))
        pools_of_pairs = [(named[a], named[b]) for a, b in pairs]
        with ThreadPoolExecutor(THREADS) as threads:
            differences = [
                *threads.map(lambda pair: difference(pair[1], pair[0], "auroc"), pools_of_pairs)
            ]
        least = [LEAST_EXCHANGE_P if _by_exchange(*pair) else 0.0 for pair in pools_of_pairs]
        corrected = holm([change.p for change in differences], least).tolist()
        for (a, b), change, p in zip(pairs, differences, corrected, strict=True):
            row = dict(vars(change))
            if np.isnan(p) and not np.isnan(change.p):  # see `holm`
                reason = f"{EXCHANGES:,} exchanges cannot reach significance among so many tests"
                row["caution"] = "; ".join(filter(None, (change.caution, f"no p (Holm): {reason}")))
            value = {"difference": row.pop("value")}
            row |= {f"contamination_{x}": named[y].contamination for x, y in (("a", a), ("b", b))}
            rows["pairs"].append({**place, "a": a, "b": b, **value, **row, "p_holm": p})
        if not np.isnan([pool.value("auroc") for pool in named.values()]).any():
            rows["ranking"] += _ranking(place, named, dict(zip(pairs, corrected, strict=True)))
    return rows


def contests(pools: Sequence[Pool]) -> Iterator[tuple[Mapping[str, str], dict[str, Pool]]]:
    """Places where several rows meet, and these by name: on the same records, with as many labels.

    Whatever made the features and however they were used; only shuffled labels and fold models,
    which have fewer labels, stay apart. Rows of a place on other records are another contest, and
    no two rows of a place have one name.
    """
    for members in _by_place(pools).values():
        digests: dict[str, dict[str, Pool]] = {}
        for name, pool in zip(row_names([*map(_named, members)]), members, strict=True):
            digests.setdefault(pool.first.facts.rows, {})[name] = pool
        for named in digests.values():
            if len(named) > 1:
                yield _place(members[0].key), named


def _by_place(pools: Sequence[Pool]) -> dict[tuple[str, ...], list[Pool]]:
    places: dict[tuple[str, ...], list[Pool]] = {}
    for pool in pools:
        if pool.key["protocol"] not in APART and not pool.folds:
            places.setdefault((*_place(pool.key).values(),), []).append(pool)
    return places


def _place(key: Mapping[str, str]) -> dict[str, str]:
    labels = mode_and_labels(key["setting"])[1]
    return {name: labels if name == "labels" else key[name] for name in PLACE}


def row_names(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Names of the rows of a place, each of a name and setting: with the mode if there are several.

    ``MAE, linear`` and ``MAE, fine-tuning``, or only ``MAE``.
    """
    several = len({mode_and_labels(setting)[0] for _, setting in rows}) > 1
    return [with_mode(name, setting) if several else name for name, setting in rows]


def apart(pools: Sequence[Pool]) -> list[str]:
    """Notes on rows that were scored on different records."""
    places: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for place, members in _by_place(pools).items():
        digests = places.setdefault(place, {})
        for pool, name in zip(members, row_names([*map(_named, members)]), strict=True):
            digests.setdefault(pool.first.facts.rows, []).append(name)
    return [
        f"{source}, {dataset} ({split}), labels {labels}: "
        f"{' and '.join('; '.join(names) for names in digests.values())} were scored on different "
        "records or labels and are not compared. Evaluate the runs again with one catalog."
        for (_, source, dataset, _, split, _, labels), digests in places.items()
        if len(digests) > 1
    ]


def other_seeds(pools: Sequence[Pool]) -> list[str]:
    """Notes on rows that were run with different seeds."""
    notes: dict[tuple[str, str], dict[str, None]] = {}
    for place, named in contests(pools):
        seeds: dict[tuple[int, ...], list[str]] = {}
        for name, pool in named.items():
            seeds.setdefault(pool.seeds, []).append(name)
        if len(seeds) > 1:
            most = max(seeds, key=lambda numbers: len(seeds[numbers]))
            seed_text = "; ".join(
                f"{'the others' if numbers == most else ' and '.join(names)}: "
                f"{', '.join(map(str, numbers))}"
                for numbers, names in sorted(seeds.items(), key=lambda item: item[0] == most)
            )
            notes.setdefault((place["source"], seed_text), {})[place["labels"]] = None
    return [
        f"{source}, labels {', '.join(labels)}: the rows have different seeds ({seed_text}). "
        "Between two with different seeds, the interval and p of the difference do not cover seeds."
        for (source, seed_text), labels in notes.items()
    ]


def _ranking(
    place: Mapping[str, str], members: Mapping[str, Pool], p: Mapping[tuple[str, str], float]
) -> Iterator[Row]:
    """Rows of the ranking, best first, from the p of each pair after Holm."""
    values = {name: pool.value("auroc") for name, pool in members.items()}
    drawn = {name: pool.resampled("auroc") for name, pool in members.items()}
    stability = ranking_stability(values, drawn, p)
    basis = next(iter(members.values())).basis("auroc")
    why = basis.no_test or basis.no_interval or basis.rough or ALIKE
    for name in stability.order:
        rank, low, high = stability.rank[name]
        untested = why if np.isnan(low) else ""
        technique, setting = _named(members[name])
        yield {
            **place,
            "setting": setting,
            "technique": technique,
            "rank": rank,
            "low": low,
            "high": high,
            "tau": np.nan if basis.no_interval else stability.tau,
            "caution": caution(interval=untested, τ=basis.no_interval),
            "contamination": members[name].contamination,
        }
