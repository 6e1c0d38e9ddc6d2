"""Scores of all detectors for all sets, as a table: every number of this benchmark is of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.benchmarks.ood.cards import digest_of_use_cases
from benchmd_ray.benchmarks.ood.conform import coarse
from benchmd_ray.benchmarks.ood.detectors import Detectors, prepared
from benchmd_ray.benchmarks.ood.methods import METHODS, USUAL
from benchmd_ray.benchmarks.ood.methods.method import Floats, Method, Seen
from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.benchmarks.ood.observe import Observer
from benchmd_ray.benchmarks.ood.sets import (
    Inside,
    OutSet,
    Records,
    inside,
    normal_classes,
    out_sets,
)
from benchmd_ray.benchmarks.ood.table import ABOUT, IN, KEYS, THRESHOLDS
from benchmd_ray.console.progress import progress
from benchmd_ray.errors import count_of
from benchmd_ray.evaluation.evaluation import Asked

GALLERY = 3
"""Records of a set that are shown: the most and as many of the least suspicious."""

Block = dict[str, Any]
"""Columns of rows: lists, or one value for all."""


def detected(
    asked: Asked,
    methods: Mapping[str, Method] = METHODS,
    sources: Mapping[str, str] | None = None,
) -> pa.Table:
    """Scores of all sets by all detectors that fit the network.

    Args:
        asked: The run, the catalog that is in distribution, and the others.
        methods: The detectors by name.
        sources: SHA-256 of the source of those that are not the package's.

    Returns:
        Rows with `KEYS` and a column for each detector: larger is more out; null where a detector
        was not asked.

    Raises:
        BenchmdError: Something in and out of distribution cannot be told apart by origin, or a
            detector gives NaN.
    """
    network = Network.of(asked.run, asked.worker, asked.settings.execution.precision)
    own = inside(asked.catalog)
    sets = list(out_sets(asked.catalog, own, asked.also))
    observer = Observer.of(network, asked.settings, sources or {})
    found = prepared(observer, own, sets, methods)
    return scored_table(found, own, sets, asked)


def scored_table(
    found: Detectors,
    own: Inside,
    sets: Sequence[OutSet],
    asked: Asked,
    trials: Sequence[Mapping[str, Any]] = (),
) -> pa.Table:
    """Scores of all sets by detectors that have learned all that they will.

    Args:
        found: The detectors.
        own: In-distribution records.
        sets: The others.
        asked: The catalogs.
        trials: Of a search, which the table keeps.
    """
    abnormal = own.abnormal(normal_classes(asked.catalog.card))
    test = found.seen(own.scored)
    blocks = [
        _inside_block(found, own.calibrating, "calibration", None),
        _inside_block(found, own.scored, "test", abnormal),
        *_coarse_blocks(found, own, sets),
    ]
    blocks += _calibrated_inside(found, own, test, abnormal)
    shown = progress("asking detectors", len(sets), "sets")
    for number, one in enumerate(sets, 1):
        if sum(map(len, one.scored)):
            seen = found.seen(one.scored, one)
            blocks += [_block(found, one, seen), *_calibrated_outside(found, one, seen)]
        shown.update(number)
    shown.close()
    about = {
        "skipped": found.skipped | _without_records(sets),
        "sources": dict(found.observer.sources),
        "use_cases": digest_of_use_cases(
            asked.catalog.dataset, [other.dataset for other in asked.also]
        ),
        "trials": list(trials),
        "costs": found.costs,
        "coarse": {one.name: _extent(one) for one in sets if one.extent},
        "shape": list(found.observer.shown_shape),
    }
    limits = {
        name: {draw: own[name].threshold for draw, own in found.learned.items() if name in own}
        for name in found.methods
    }
    return _table(blocks, limits, about)


def _without_records(sets: Sequence[OutSet]) -> dict[str, str]:
    """Sets that lack records, and why."""
    found = {}
    for one in sets:
        if one.excluded:
            count = count_of(one.excluded, "record")
            found[one.name] = f"{count} of patients that are in distribution: excluded"
        if not sum(map(len, one.scored)):
            found[one.name] = "all of its records calibrate, none is there to score"
    return found


def _keys(records: Sequence[Records]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"record_id": [], "unit_id": [], "group_id": []}
    for each in records:
        columns["record_id"] += each.names
        unit = each.table["unit_id"].to_pylist()
        columns["unit_id"] += [f"{each.catalog.dataset}/{name}" for name in unit]
        columns["group_id"] += each.patients
    return columns


def _uncalibrated(found: Detectors, seen: Seen, ids: Sequence[str]) -> dict[str, Floats]:
    return {name: found.scores(name, found.states[name], seen, ids) for name in found.uncalibrated}


def _inside_block(
    found: Detectors,
    records: Sequence[Records],
    part: str,
    abnormal: npt.NDArray[np.bool_] | None,
) -> Block:
    keys, seen = _keys(records), found.seen(records)
    scores = _uncalibrated(found, seen, keys["record_id"])
    return {
        **keys,
        "part": part,
        "set": IN,
        "abnormal": None if abnormal is None else abnormal.tolist(),
        "regime": "none",
        "logits": seen.logits,
        "picture": _gallery(found, records, None, scores) if part == "test" else None,
        **scores,
    }


def _extent(one: OutSet) -> str:
    return " × ".join(map(str, one.extent))


def _coarse_blocks(found: Detectors, own: Inside, sets: Sequence[OutSet]) -> Iterator[Block]:
    """In-distribution records as coarse as sets that are coarser: each extent once."""
    for extent in dict.fromkeys(one.extent for one in sets if one.extent):
        alike = OutSet("", "shifted", (), own.scored, coarse(extent), 1, extent=extent)
        keys, seen = _keys(own.scored), found.seen(own.scored, alike)
        scores = _uncalibrated(found, seen, keys["record_id"])
        where = {"part": "test", "set": IN, "regime": "none", "alike": _extent(alike)}
        yield {**keys, **where, **scores}


def _block(found: Detectors, one: OutSet, seen: Seen) -> Block:
    keys = _keys(one.scored)
    scores = _uncalibrated(found, seen, keys["record_id"])
    last = one.fault is None or one.severity == one.fault.severities[-1]
    return {
        **keys,
        **_of_set(one),
        "part": "test",
        "regime": "none",
        "logits": seen.logits,
        "picture": _gallery(found, one.scored, one, scores) if last else None,
        **scores,
    }


def _of_set(one: OutSet) -> Block:
    return {
        "set": one.name,
        "use_case": one.use_case,
        "severity": one.severity,
        "control": one.control,
    }


def _gallery(
    found: Detectors, records: Sequence[Records], one: OutSet | None, scores: Mapping[str, Floats]
) -> list[bytes | None]:
    """Pictures of the records that the usual detector suspects most and least, of others None."""
    total = sum(map(len, records))
    name = next((name for name in USUAL if name in scores), None)
    if name is None or not total:
        return [None] * total
    order = np.argsort(scores[name], kind="stable")
    chosen = {int(place) for place in (*order[:GALLERY], *order[-GALLERY:])}
    pictures: list[bytes | None] = []
    start = 0
    for each in records:
        some = np.isin(np.arange(start, start + len(each)), sorted(chosen))
        drawn = iter(found.observer.shown(each.at(some), one) if some.any() else ())
        pictures += [next(drawn) if taken else None for taken in some]
        start += len(each)
    return pictures


def _calibrated_inside(
    found: Detectors, own: Inside, seen: Seen, abnormal: npt.NDArray[np.bool_]
) -> Iterator[Block]:
    """In-distribution records by calibrated detectors, once for each draw."""
    keys = _keys(own.scored)
    for draw in found.draws:
        scores = {
            name: found.scores(name, learned.state, seen, keys["record_id"])
            for name, learned in found.learned[draw.name].items()
        }
        how = {"part": "test", "regime": "calibrated", "calibrated_on": draw.name}
        yield {**keys, **how, "set": IN, "abnormal": abnormal.tolist(), **scores}


def _calibrated_outside(found: Detectors, one: OutSet, seen: Seen) -> Iterator[Block]:
    """A set by the detectors that were calibrated on other sets, or on other patients of it."""
    keys = _keys(one.scored)
    for draw in found.draws:
        if not (regime := draw.regime(one)):
            continue
        scores = {
            name: found.scores(name, learned.state, seen, keys["record_id"])
            for name, learned in found.learned[draw.name].items()
        }
        how = {"part": "test", "regime": regime, "calibrated_on": draw.name}
        yield {**keys, **how, **_of_set(one), **scores}


def _table(
    blocks: Iterable[Block],
    limits: Mapping[str, Mapping[str, float]],
    about: Mapping[str, Any],
) -> pa.Table:
    fields = [
        pa.field(name, kind, metadata={ABOUT: json.dumps(about)} if name == "set" else None)
        for name, kind in KEYS.items()
    ]
    fields += [
        pa.field(name, pa.float64(), metadata={THRESHOLDS: json.dumps(own)})
        for name, own in limits.items()
    ]
    schema = pa.schema(fields)
    tables = [
        pa.table([_array(block.get(f.name), f.type, block) for f in schema], schema=schema)
        for block in blocks
    ]
    return pa.concat_tables(tables)


def _array(value: Any, kind: pa.DataType, block: Block) -> pa.Array:
    rows = len(block["record_id"])
    if value is None:
        return pa.nulls(rows, kind)
    if isinstance(value, str | int | bool):
        return pa.array([value] * rows, kind)
    if pa.types.is_list(kind):
        flat = np.ascontiguousarray(value, np.float32)
        ends = np.arange(0, flat.size + 1, flat.shape[1] or 1, dtype=np.int32)
        return pa.ListArray.from_arrays(ends, flat.reshape(-1))
    return pa.array(value, kind)
