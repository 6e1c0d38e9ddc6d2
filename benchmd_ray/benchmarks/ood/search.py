"""A search of detectors' hyperparameters in tasks of Ray, on records that calibrate.

A trial has values for all detectors, drawn without looking at results, the defaults first. For each
set those values are taken that are best on average on the other sets of its use-case; fixed and
tuned detectors are then compared on the records that are scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmd_ray.benchmarks.ood.detect import scored_table
from benchmd_ray.benchmarks.ood.detectors import (
    Detectors,
    Draw,
    Learned,
    auroc_of,
    best_threshold,
    joined,
    prepared,
    representatives,
)
from benchmd_ray.benchmarks.ood.methods import METHODS
from benchmd_ray.benchmarks.ood.methods.method import Bank, Calibration, Seen
from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.benchmarks.ood.observe import NetworkObserver
from benchmd_ray.benchmarks.ood.sets import OutSet, inside, out_sets
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import Asked
from benchmd_ray.schema.plain_yaml import read_yaml_file
from benchmd_ray.schema.typed import typed
from benchmd_ray.tuning.independent import tried
from benchmd_ray.tuning.parameters import Kind, Parameter

TRIALS = 20
Values = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class SearchedValue:
    """A line of the search space."""

    kind: Kind
    default: float
    low: float | None = None
    high: float | None = None
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class DetectorTrial:
    values: Values
    aurocs: dict[str, dict[str, float]]
    """Of each detector, by the set that it was asked to tell from what is in distribution."""


def space() -> dict[str, tuple[Parameter, ...]]:
    """What is searched of each detector."""
    path = Path(__file__).with_name("space.yaml")
    where = f"the search space {path.name}"
    lines = typed(dict[str, dict[str, SearchedValue]], read_yaml_file(path, where), where)
    return {
        name: tuple(_parameter(f"{name}.{key}", entry) for key, entry in entries.items())
        for name, entries in lines.items()
    }


def _parameter(name: str, entry: SearchedValue) -> Parameter:
    default = int(entry.default) if entry.kind.endswith("int") else entry.default
    return Parameter(name, entry.kind, default, entry.low, entry.high, values=entry.values)


@dataclass(frozen=True)
class CalibrationData:
    """What all trials read: plain arrays."""

    bank: Bank
    inside: Seen
    outside: Mapping[str, Seen]

    def against(self, *names: str) -> Calibration:
        """What is in distribution, and these sets."""
        sets = [self.outside[name] for name in names]
        out = np.repeat([False, True], [len(self.inside), sum(map(len, sets))])
        return Calibration(joined([self.inside, *sets]), out)


def searched(asked: Asked, trials: int = TRIALS) -> pa.Table:
    """Scores of fixed and of tuned detectors for all sets; see `detect.detected`."""
    network = Network.of(asked.run, asked.worker, asked.settings.execution.precision)
    inside_records = inside(asked.catalog)
    sets = list(out_sets(asked.catalog, inside_records, asked.also))
    methods = {name: METHODS[name] for name in space()}
    observer = NetworkObserver.of(network, asked.settings)
    detectors = prepared(observer, inside_records, sets, methods, calibrates=False)
    kinds = representatives(sets)
    if not kinds:
        raise BenchmdError(
            f"no set of {asked.catalog.path} has enough records to search by: name more catalogs "
            "with --also."
        )
    seen = {kind.name: detectors.seen(kind.calibrating, kind) for kind in kinds}
    arrays = CalibrationData(detectors.bank, detectors.seen(inside_records.calibrating), seen)
    results = run_trials(arrays, [*detectors.methods], trials)
    detectors = _tuned(detectors, arrays, kinds, results)
    return scored_table(detectors, inside_records, sets, asked, list(map(vars, results)))


def run_trials(arrays: CalibrationData, names: Sequence[str], trials: int) -> list[DetectorTrial]:
    """Trials: the defaults, and then values drawn at random.

    Raises:
        BenchmdError: This is a Ray task, in which trials have no room, or the trial of the defaults
            failed.
    """
    searchable = space()
    parameters = [parameter for name in names for parameter in searchable[name]]
    return [DetectorTrial(**result) for result in tried(one_trial, arrays, parameters, trials)]


def one_trial(config: Mapping[str, Any], arrays: CalibrationData) -> dict[str, Any]:
    """Fit detectors with values by name, such as ``knn.neighbours``, and ask them of each set."""
    values = by_detector(config)
    states = {name: METHODS[name].fit(arrays.bank, **chosen) for name, chosen in values.items()}
    aurocs: dict[str, dict[str, float]] = {name: {} for name in states}
    for other in arrays.outside:
        both = arrays.against(other)
        for name, state in states.items():
            aurocs[name][other] = auroc_of(METHODS[name], state, both, arrays.bank.head)
    return {"values": values, "aurocs": aurocs}


def by_detector(config: Mapping[str, Any]) -> Values:
    """Values by detector and hyperparameter, of those by name."""
    values: Values = {}
    for name, value in config.items():
        method, _, key = name.partition(".")
        values.setdefault(method, {})[key] = value
    return values


def best(trials: Sequence[DetectorTrial], name: str, others: Sequence[str]) -> dict[str, Any]:
    """Values of a detector with the highest mean AUROC on some sets, the first of several."""
    means = [np.mean([trial.aurocs[name][other] for other in others]) for trial in trials]
    chosen: dict[str, Any] = trials[int(np.argmax(means))].values[name]
    return chosen


def _tuned(
    detectors: Detectors,
    arrays: CalibrationData,
    kinds: Sequence[OutSet],
    trials: Sequence[DetectorTrial],
) -> Detectors:
    """Detectors that are calibrated for each set on all others of its use-case."""
    draws, learned = [], {}
    for kind in kinds:
        alike = (other for other in kinds if other.use_case == kind.use_case)
        others = tuple(other for other in alike if other.origin != kind.origin)
        if not others:
            continue
        draw = Draw(others, True, only_for=kind.kind)
        names, tuned = [other.name for other in others], {}
        both = arrays.against(*names)
        for name, method in detectors.methods.items():
            values = best(trials, name, names)
            state = method.fit(arrays.bank, **values)
            scores = method.scores(state, both.seen, arrays.bank.head)
            tuned[name] = Learned(state, best_threshold(scores, both.out))
        draws.append(draw)
        learned[draw.name] = tuned
    return replace(detectors, draws=draws, learned=learned)
