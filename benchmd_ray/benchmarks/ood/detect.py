"""Scores of all detectors for all sets, as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmd_ray.benchmarks.ood.cards import digest_of_use_cases
from benchmd_ray.benchmarks.ood.conform import coarse
from benchmd_ray.benchmarks.ood.detectors import Detectors, Draw, prepared
from benchmd_ray.benchmarks.ood.methods import METHODS, USUAL
from benchmd_ray.benchmarks.ood.methods.method import Detector, Floats, Seen
from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.benchmarks.ood.observe import NetworkObserver
from benchmd_ray.benchmarks.ood.sets import (
    Inside,
    OutSet,
    SplitRecords,
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

ScoreColumns = dict[str, Any]


def detected(
    asked: Asked,
    methods: Mapping[str, Detector] = METHODS,
    sources: Mapping[str, str] | None = None,
) -> pa.Table:
    """Scores of all sets by all detectors that fit the network.

    ``sources`` are the SHA-256 of the source of those that are not the package's. Rows have `KEYS`
    and a column for each detector: larger is more out; null where a detector was not asked.
    """
    network = Network.of(asked.run, asked.worker, asked.settings.execution.precision)
    inside_records = inside(asked.catalog)
    sets = list(out_sets(asked.catalog, inside_records, asked.also))
    observer = NetworkObserver.of(network, asked.settings, sources or {})
    detectors = prepared(observer, inside_records, sets, methods)
    return scored_table(detectors, inside_records, sets, asked)


def scored_table(
    detectors: Detectors,
    inside_records: Inside,
    sets: Sequence[OutSet],
    asked: Asked,
    trials: Sequence[Mapping[str, Any]] = (),
) -> pa.Table:
    """Scores of all sets by detectors that are fitted and calibrated."""
    abnormal = inside_records.abnormal(normal_classes(asked.catalog.card))
    inside_columns = {"set": IN, "abnormal": abnormal.tolist()}
    calibrating, test = inside_records.calibrating, detectors.seen(inside_records.scored)
    in_calibration = {"set": IN, "part": "calibration"}
    blocks = [
        _block(detectors, calibrating, detectors.seen(calibrating), in_calibration),
        _block(detectors, inside_records.scored, test, inside_columns, has_pictures=True),
        *_coarse_blocks(detectors, inside_records, sets),
    ]
    blocks += _calibrated(
        detectors, inside_records.scored, test, lambda _: "calibrated", inside_columns
    )
    display = progress("asking detectors", len(sets), "sets")
    for number, out_set in enumerate(sets, 1):
        if sum(map(len, out_set.scored)):
            blocks += _out_blocks(detectors, out_set)
        display.update(number)
    display.close()
    about = {
        "skipped": detectors.skipped | _without_records(sets),
        "sources": dict(detectors.observer.sources),
        "use_cases": digest_of_use_cases(
            asked.catalog.dataset, [other.dataset for other in asked.also]
        ),
        "trials": list(trials),
        "costs": detectors.costs,
        "coarse": {out_set.name: _extent(out_set) for out_set in sets if out_set.extent},
        "shape": list(detectors.observer.shown_shape),
    }
    return _table(blocks, detectors, about)


def _without_records(sets: Sequence[OutSet]) -> dict[str, str]:
    """Sets that lack records, and why."""
    reasons = {}
    for out_set in sets:
        if out_set.excluded:
            count = count_of(out_set.excluded, "record")
            reasons[out_set.name] = (
                f"{count} excluded: they, or their patients, are in distribution"
            )
        if not sum(map(len, out_set.scored)):
            reasons[out_set.name] = "all of its records calibrate, none is there to score"
    return reasons


def _keys(records: Sequence[SplitRecords]) -> dict[str, list[Any]]:
    columns = ("record_id", "unit_id", "group_id")
    return {column: [name for part in records for name in part.ids(column)] for column in columns}


def _block(
    detectors: Detectors,
    records: Sequence[SplitRecords],
    seen: Seen,
    columns: ScoreColumns,
    *,
    pictures_of: OutSet | None = None,
    has_pictures: bool = False,
    has_logits: bool = True,
) -> ScoreColumns:
    """Rows of records that detectors score as they were fitted."""
    keys = _keys(records)
    scores = {
        name: detectors.scores(name, detectors.states[name], seen, keys["record_id"])
        for name in detectors.uncalibrated
    }
    pictures = _gallery(detectors, records, pictures_of, scores) if has_pictures else None
    more = {"logits": seen.logits if has_logits else None, "picture": pictures}
    return {**keys, "part": "test", "regime": "none", **columns, **more, **scores}


def _extent(out_set: OutSet) -> str:
    return " × ".join(map(str, out_set.extent))


def _coarse_blocks(
    detectors: Detectors, inside_records: Inside, sets: Sequence[OutSet]
) -> Iterator[ScoreColumns]:
    """In-distribution records as coarse as sets that are coarser: each extent once."""
    for extent in dict.fromkeys(out_set.extent for out_set in sets if out_set.extent):
        alike = OutSet("", "shifted", (), inside_records.scored, coarse(extent), 1, extent=extent)
        seen = detectors.seen(inside_records.scored, alike)
        where = {"set": IN, "alike": _extent(alike)}
        yield _block(detectors, inside_records.scored, seen, where, has_logits=False)


def _out_blocks(detectors: Detectors, out_set: OutSet) -> Iterator[ScoreColumns]:
    records, seen = out_set.scored, detectors.seen(out_set.scored, out_set)
    columns = {
        "set": out_set.name,
        "use_case": out_set.use_case,
        "severity": out_set.severity,
        "control": out_set.control,
    }
    pictures = out_set.is_most_severe
    yield _block(detectors, records, seen, columns, pictures_of=out_set, has_pictures=pictures)
    regime = partial(Draw.regime, out_set=out_set)
    yield from _calibrated(detectors, records, seen, regime, columns)


def _gallery(
    detectors: Detectors,
    records: Sequence[SplitRecords],
    out_set: OutSet | None,
    scores: Mapping[str, Floats],
) -> list[bytes | None]:
    """Pictures of the records that the usual detector suspects most and least; none for others."""
    total = sum(map(len, records))
    name = next((name for name in USUAL if name in scores), None)
    if name is None or not total:
        return [None] * total
    order = np.argsort(scores[name], kind="stable")
    chosen = {int(place) for place in (*order[:GALLERY], *order[-GALLERY:])}
    pictures: list[bytes | None] = []
    start = 0
    for part in records:
        some = np.isin(np.arange(start, start + len(part)), sorted(chosen))
        drawn = iter(detectors.observer.shown(part.at(some), out_set) if some.any() else ())
        pictures += [next(drawn) if taken else None for taken in some]
        start += len(part)
    return pictures


def _calibrated(
    detectors: Detectors,
    records: Sequence[SplitRecords],
    seen: Seen,
    regime: Callable[[Draw], str],
    columns: ScoreColumns,
) -> Iterator[ScoreColumns]:
    keys = _keys(records)
    for draw in detectors.draws:
        how = {"part": "test", "regime": regime(draw), "calibrated_on": draw.name}
        if how["regime"]:
            scores = {
                name: detectors.scores(name, learned.state, seen, keys["record_id"])
                for name, learned in detectors.learned[draw.name].items()
            }
            yield {**keys, **how, **columns, **scores}


def _table(
    blocks: Iterable[ScoreColumns], detectors: Detectors, about: Mapping[str, Any]
) -> pa.Table:
    learned = detectors.learned.items()
    limits = {
        name: {draw: of_draw[name].threshold for draw, of_draw in learned if name in of_draw}
        for name in detectors.methods
    }
    fields = [
        pa.field(name, kind, metadata={ABOUT: json.dumps(about)} if name == "set" else None)
        for name, kind in KEYS.items()
    ]
    fields += [
        pa.field(name, pa.float64(), metadata={THRESHOLDS: json.dumps(thresholds)})
        for name, thresholds in limits.items()
    ]
    schema = pa.schema(fields)
    tables = [
        pa.table([_array(block.get(f.name), f.type, block) for f in schema], schema=schema)
        for block in blocks
    ]
    return pa.concat_tables(tables)


def _array(value: Any, kind: pa.DataType, block: ScoreColumns) -> pa.Array:
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
