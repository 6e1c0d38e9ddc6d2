"""Scores of all detectors for all sets, as a table: every number of this benchmark is of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.benchmarks.evaluation import Asked
from benchmd_ray.benchmarks.ood.calibrate import FEWEST, calibrated, calibration_draws
from benchmd_ray.benchmarks.ood.methods import METHODS
from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Calibration,
    Floats,
    Method,
    Seen,
    State,
    finite,
)
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
from benchmd_ray.benchmarks.ood.table import IN, KEYS, SKIPPED, THRESHOLDS

PIXEL_RECORDS = 5000
"""Training records whose pictures detectors are fitted on, drawn by a fixed seed."""
ACCEPTED = 0.95
"""Share of in-distribution records that a threshold without other records accepts."""


@dataclass(frozen=True)
class Asking:
    """Detectors that are fitted for a network, and their records."""

    observer: Observer
    own: Inside
    bank: Bank
    pixel_bank: Bank
    states: dict[str, State]
    skipped: dict[str, str]

    def seen(self, records: Sequence[Records], of: OutSet | None = None) -> Seen:
        """What the network makes of records, with their pictures."""
        how = (None, 0) if of is None else (of.fault, of.severity)
        seen = self.observer.seen(records, *how)
        return Seen(
            seen.features, seen.logits, {**seen.more, "pixels": self.observer.pixels(records, *how)}
        )


def detected(asked: Asked) -> pa.Table:
    """Scores of all sets by all detectors that fit the network.

    Args:
        asked: The run, the catalog that is in distribution, and the others.

    Returns:
        Rows with `KEYS` and a column for each detector: larger is more out; null where a detector
        was not asked.

    Raises:
        BenchmdError: Something in and out of distribution cannot be told apart by origin, or a
            detector gives NaN.
    """
    network = Network.of(asked.run, asked.worker, asked.settings.execution.precision)
    own = inside(asked.catalog)
    asking = _fitted(Observer.of(network, asked.settings), own)
    sets = list(out_sets(asked.catalog, own, asked.also))
    abnormal = own.abnormal(normal_classes(asked.catalog.card))
    blocks = [
        *_inside_blocks(asking, abnormal),
        *(_block(asking, one) for one in sets),
        *_calibrated_blocks(asking, sets, abnormal),
    ]
    return _table(blocks, asking.skipped)


def _fitted(observer: Observer, own: Inside) -> Asking:
    network = observer.network
    bank, pixel_bank = (bank_of(observer, own, pixels=pixels) for pixels in (False, True))
    asking = Asking(observer, own, bank, pixel_bank, {}, {})
    negative = bool((bank.seen.features < 0).any())
    for name, method in METHODS.items():
        why = unfit(method, network.head.exclusive, negative, {*pixel_bank.seen.more})
        if why:
            asking.skipped[name] = why
            continue
        asking.states[name] = method.fit(pixel_bank if "pixels" in method.needs else bank)
    return asking


def bank_of(observer: Observer, own: Inside, *, pixels: bool) -> Bank:
    """What detectors are fitted on.

    Args:
        observer: Asks the network.
        own: In-distribution records.
        pixels: With the records' pictures, and then of `PIXEL_RECORDS` of them at most.
    """
    trained, head = own.trained, observer.network.head
    seen = observer.seen([trained])
    if pixels:
        chosen = np.zeros(len(trained), bool)
        chosen[np.random.default_rng(0).permutation(len(trained))[:PIXEL_RECORDS]] = True
        few = seen.at(chosen)
        more = {**few.more, "pixels": observer.pixels([trained.at(chosen)])}
        return Bank(Seen(few.features, few.logits, more), trained.targets[chosen], head)
    targets = np.concatenate([records.targets for records in own.calibrating])
    return Bank(seen, trained.targets, head, observer.seen(own.calibrating), targets)


def unfit(method: Method, exclusive: bool, negative: bool, available: set[str]) -> str:
    """Why a detector is left out; empty where it is not."""
    if method.exclusive_only and not exclusive:
        return "it needs a softmax, and a record may have several labels"
    if method.non_negative and negative:
        return "it assumes features that are never negative"
    for need in method.needs:
        if not any(name.startswith(need) for name in available):
            return f"the network has no {need.strip()}"
    return ""


def _scores(
    asking: Asking, names: Sequence[str], seen: Seen, ids: Sequence[str]
) -> dict[str, Floats]:
    head, called = asking.observer.network.head, np.array(ids)
    return {
        name: finite(METHODS[name].score(asking.states[name], seen, head), name, called)
        for name in names
    }


def _alone(asking: Asking) -> list[str]:
    return [name for name in asking.states if METHODS[name].calibrate is None]


def _learning(asking: Asking) -> list[str]:
    return [name for name in asking.states if METHODS[name].calibrate is not None]


def _keys(records: Sequence[Records]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"record_id": [], "unit_id": [], "group_id": []}
    for each in records:
        columns["record_id"] += each.names
        unit = each.table["unit_id"].to_pylist()
        columns["unit_id"] += [f"{each.catalog.dataset}/{name}" for name in unit]
        columns["group_id"] += each.patients
    return columns


def _inside_blocks(asking: Asking, abnormal: npt.NDArray[np.bool_]) -> Iterator[dict[str, Any]]:
    own, names = asking.own, _alone(asking)
    for part, records in (("calibration", own.calibrating), ("test", own.scored)):
        keys = _keys(records)
        scores = _scores(asking, names, asking.seen(records), keys["record_id"])
        known = abnormal.tolist() if part == "test" else None
        yield {**keys, "part": part, "set": IN, "abnormal": known, "regime": "none", **scores}


def _block(asking: Asking, one: OutSet) -> dict[str, Any]:
    keys = _keys(one.records)
    scores = _scores(asking, _alone(asking), asking.seen(one.records, one), keys["record_id"])
    part = np.where(one.calibrates, "calibration", "test").tolist()
    return {**keys, **_of_set(one), "part": part, "regime": "none", **scores}


def _of_set(one: OutSet) -> dict[str, Any]:
    return {
        "set": one.name,
        "use_case": one.use_case,
        "severity": one.severity,
        "control": one.control,
    }


def _calibrated_blocks(
    asking: Asking, sets: Sequence[OutSet], abnormal: npt.NDArray[np.bool_]
) -> Iterator[dict[str, Any]]:
    """Rows of detectors that learn of records of both kinds: each set with its own."""
    names, own = _learning(asking), asking.own
    inside = asking.seen(own.calibrating), asking.seen(own.scored)
    halves = {each.name: asking.seen(each.records, each) for each in sets}
    head = asking.observer.network.head
    for one, regime, draw in _regimes(sets):
        given, patients = _calibration(own, inside[0], [(each, halves[each.name]) for each in draw])
        on = " + ".join(each.name for each in draw)
        where = "\t".join((one.name, regime, on))
        learned = {
            name: calibrated(METHODS[name], asking.states[name], given, patients, head)
            for name in names
        }
        test = ~one.calibrates
        for seen, keys in (
            (inside[1], {**_keys(own.scored), "set": IN, "abnormal": abnormal.tolist()}),
            (halves[one.name].at(test), {**_chosen(_keys(one.records), test), **_of_set(one)}),
        ):
            scores = {
                name: finite(METHODS[name].score(state, seen, head), name)
                for name, (state, _) in learned.items()
            }
            limits = {name: {where: threshold} for name, (_, threshold) in learned.items()}
            how = {"regime": regime, "against": one.name, "calibrated_on": on, "part": "test"}
            yield {**keys, **how, **scores, THRESHOLDS: limits}


def _regimes(sets: Sequence[OutSet]) -> Iterator[tuple[OutSet, str, tuple[OutSet, ...]]]:
    """Each set that is scored, with the sets that calibrate for it."""
    for one in sets:
        for draw in calibration_draws(one, sets):
            yield one, "other-sources", draw
        if np.count_nonzero(one.calibrates) >= FEWEST and not one.control:
            yield one, "same-source", (one,)


def _calibration(
    own: Inside, inside: Seen, outs: Sequence[tuple[OutSet, Seen]]
) -> tuple[Calibration, list[str]]:
    """Records of both kinds, and their patients."""
    patients = _keys(own.calibrating)["group_id"]
    kinds, parts = [np.zeros(len(inside), bool)], [inside]
    for each, seen in outs:
        patients += _chosen(_keys(each.records), each.calibrates)["group_id"]
        parts.append(seen.at(each.calibrates))
        kinds.append(np.ones(len(parts[-1]), bool))
    return Calibration(_joined(parts), np.concatenate(kinds)), patients


def _chosen(keys: dict[str, list[Any]], rows: npt.NDArray[np.bool_]) -> dict[str, list[Any]]:
    return {
        name: [value for value, taken in zip(values, rows, strict=True) if taken]
        for name, values in keys.items()
    }


def _joined(parts: Sequence[Seen]) -> Seen:
    names = set(parts[0].more)
    more = {name: np.concatenate([part.more[name] for part in parts]) for name in names}
    return Seen(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.logits for part in parts]),
        more,
    )


def _table(blocks: Sequence[dict[str, Any]], skipped: dict[str, str]) -> pa.Table:
    names = [name for name in METHODS if any(name in block for block in blocks)]
    thresholds: dict[str, dict[str, float]] = {name: {} for name in names}
    columns: dict[str, list[pa.Array]] = {name: [] for name in (*KEYS, *names)}
    for block in blocks:
        rows = len(block["record_id"])
        for name, found in block.pop(THRESHOLDS, {}).items():
            thresholds[name] |= found
        for name in columns:
            kind = KEYS.get(name, pa.float64())
            value = block.get(name)
            if name not in block or value is None:
                array = pa.nulls(rows, kind)
            elif isinstance(value, str | int | bool):
                array = pa.array([value] * rows, kind)
            else:
                array = pa.array(value, kind)
            columns[name].append(array)
    fields = [
        pa.field(name, kind, metadata={SKIPPED: json.dumps(skipped)} if name == "set" else None)
        for name, kind in KEYS.items()
    ]
    fields += [
        pa.field(name, pa.float64(), metadata={THRESHOLDS: json.dumps(thresholds[name])})
        for name in names
    ]
    arrays = [
        pa.chunked_array(columns[name], field.type)
        for name, field in zip((*KEYS, *names), fields, strict=True)
    ]
    return pa.table(arrays, schema=pa.schema(fields))
