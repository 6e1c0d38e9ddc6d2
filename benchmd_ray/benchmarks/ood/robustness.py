"""Robustness of a classification: AUROC and calibration under simulated faults.

In the manner of ImageNet-C (Hendrycks & Dietterich 2019, https://arxiv.org/abs/1903.12261) and
MedMNIST-C (Di Salvo et al. 2024, https://arxiv.org/abs/2406.17536), for all signals. Everything is
computed from the class scores of each record under each fault and severity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.benchmarks.ood.scores import content_key
from benchmd_ray.runs.predictions import CLASSIFIED, Predictions, fault_of_columns
from benchmd_ray.scores.calibration import SquaredError, squared_error
from benchmd_ray.scores.metrics import metric
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.scores.seeds import Difference, Pooled, difference_over_seeds, pooled_seeds
from benchmd_ray.scores.support import Basis, support

Floats = npt.NDArray[np.float64]
CLEAN, MEAN = "clean", "all"
"""Names of the records as they are, and of the mean over faults."""
COLUMNS: dict[str, pa.DataType] = {
    "fault": pa.dictionary(pa.int32(), pa.string()),
    "severity": pa.int8(),
    "control": pa.bool_(),
    "altered": pa.bool_(),
}
"""Columns of the table in addition to those of a classification. ``control`` is a fault that the
normalisation removes; ``altered`` says whether the record's stored signal is another one with the
fault: other padding alters no record without padding."""
Key = tuple[str, int]
"""Fault and severity."""


def fault(predictions: Predictions) -> str:
    """What is wrong with a table of scores under faults; empty where nothing is."""
    table = predictions.table
    if why := fault_of_columns(table, COLUMNS, ()):
        return why
    if why := CLASSIFIED.fault(predictions):
        return why
    rows = table.select(["split", "fault", "severity", "control"]).to_pandas()
    if (rows["severity"].ne(0) != rows["fault"].ne(CLEAN)).any():
        return f"a severity is 0 of a fault, or not 0 of {CLEAN} records"
    columns = ["split", "fault", "severity"]
    if (rows.groupby(columns, observed=True)["control"].nunique() > 1).any():
        return "a fault is a control of some records only"
    parts = [part for _, part in _parts(table)]
    identifiers = ["record_id", "unit_id", "group_id", "target"]
    by_split: dict[str, pa.Table] = {}
    for part in parts:
        first = by_split.setdefault(part["split"][0].as_py(), part)
        if first["fault"][0].as_py() != CLEAN:
            return f"a split has no {CLEAN} records, or they are not first"
        if not part.select(identifiers).equals(first.select(identifiers)):
            return "a fault is not of the same records as others"
        if pc.count_distinct(part["record_id"]).as_py() != len(part):
            return "a record appears twice"
    keys = [key for key, _ in _parts(table)]
    return "a fault appears twice" if len(set(keys)) < len(keys) else ""


def _parts(table: pa.Table) -> list[tuple[tuple[str, str, int], pa.Table]]:
    """The rows of each split, fault and severity, which follow each other, in their order."""
    names = [table[name].to_pylist() for name in ("split", "fault", "severity")]
    parts, start = [], 0
    for key, rows in groupby(zip(*names, strict=True)):
        length = sum(1 for _ in rows)
        parts.append((key, table.slice(start, length)))
        start += length
    return parts


@dataclass(frozen=True, eq=False)
class Condition:
    """What was scored of a split under one fault and severity."""

    auroc: float
    """Mean over the classes that can be scored."""
    draws: Floats
    """(resamples,): the same resamples of patients for all conditions of a split."""
    error: float
    """Expected calibration error."""
    squared: SquaredError
    control: bool
    unchanged: bool
    """Whether all class scores equal those of the clean records exactly."""
    altered: int
    """Number of records whose stored signal it alters."""


@dataclass(frozen=True, eq=False)
class SplitRobustness:
    """One run on one split."""

    split: str
    conditions: Mapping[Key, Condition]
    basis: Basis
    """What AUROC rests on."""
    of_error: Basis
    """What calibration rests on."""
    records: int
    patients: int
    positives: int

    @property
    def faults(self) -> list[str]:
        """Names of the faults that change something."""
        names = [key[0] for key, value in self.conditions.items() if not value.control]
        return [name for name in dict.fromkeys(names) if name != CLEAN]

    @property
    def controls(self) -> list[Condition]:
        return [condition for condition in self.conditions.values() if condition.control]

    @property
    def clean(self) -> Condition:
        return self.conditions[CLEAN, 0]

    def mean(self, keys: Sequence[Key]) -> Condition:
        """The mean of conditions."""
        chosen = [self.conditions[key] for key in keys]
        return replace(
            chosen[0],
            auroc=float(np.mean([condition.auroc for condition in chosen])),
            draws=np.mean([condition.draws for condition in chosen], axis=0),
            error=float(np.mean([condition.error for condition in chosen])),
            squared=SquaredError(
                float(np.mean([condition.squared.value for condition in chosen])),
                np.mean([condition.squared.draws for condition in chosen], axis=0),
            ),
        )

    def of_fault(self, name: str) -> Condition:
        """The mean over the severities of a fault."""
        return self.mean([key for key in self.conditions if key[0] == name])

    @cached_property
    def faulty(self) -> Condition:
        """The mean over faults, each the mean over its severities."""
        means = {(name, 0): self.of_fault(name) for name in self.faults}
        return replace(self, conditions=means).mean([*means])


def measured(predictions: Predictions, resamples: int) -> list[SplitRobustness]:
    """Each split of a run's predictions; score rows and reports ask for the same."""
    key = (str(resamples), *content_key(predictions))
    if key not in _MEASURED:
        _MEASURED[key] = [_measured(predictions, split, resamples) for split in predictions.splits]
    return _MEASURED[key]


_MEASURED: dict[tuple[str, ...], list[SplitRobustness]] = {}


def _measured(predictions: Predictions, split: str, resamples: int) -> SplitRobustness:
    conditions: dict[Key, Condition] = {}
    task = predictions.task.kind
    clean = None
    for (of, name, severity), part in _parts(predictions.table):
        if of != split:
            continue
        targets, scores, groups = Predictions(part, predictions.description).of_split(split)
        clean = scores if clean is None else clean
        conditions[name, severity] = Condition(
            auroc=metric("auroc", targets, scores, task).mean,
            draws=resampled("auroc", targets, scores, groups, task, resamples=resamples)[:, 0],
            error=metric("calibration_error", targets, scores, task).mean,
            squared=squared_error(targets, scores, groups, task, resamples=resamples),
            control=part["control"][0].as_py(),
            unchanged=bool(np.array_equal(scores, clean)),
            altered=int(pc.sum(part["altered"]).as_py()),
        )
    counts = support(targets, groups)
    positives = int((targets == 1).sum())
    basis = counts.basis("auroc")
    return SplitRobustness(
        split,
        conditions,
        basis,
        counts.basis("brier"),
        len(targets),
        counts.patients,
        positives,
    )


def score_rows(predictions: Predictions, resamples: int) -> pd.DataFrame:
    """Score rows: AUROC and calibration error of each condition, and their means over faults."""
    rows = []
    for split in measured(predictions, resamples):
        cells = [(*key, condition) for key, condition in split.conditions.items()]
        if split.faults:
            cells.append((MEAN, 0, split.faulty))
        for name, severity, condition in cells:
            pooled = pooled_auroc([condition], split.basis)
            shared = {
                "split": split.split,
                "use_case": "control" if condition.control else CLEAN if name == CLEAN else "fault",
                "group": name,
                "class": f"severity {severity}" if severity else "mean",
                "records": split.records,
                "patients": split.patients,
                "positives": split.positives,
                "effective": split.basis.fewest,
            }
            ends = {"low": pooled.low, "high": pooled.high, "caution": pooled.caution}
            rows.append({**shared, "metric": "auroc", "value": pooled.mean, **ends})
            rows.append({**shared, "metric": "calibration_error", "value": condition.error})
    return pd.DataFrame(rows).assign(scored=predictions.task.scored)


def pooled_auroc(seeds: Sequence[Condition], basis: Basis) -> Pooled:
    """AUROC under a condition over the seeds of a network."""
    return pooled_seeds([seed.auroc for seed in seeds], [seed.draws for seed in seeds], basis)


def change(seeds: Sequence[Condition], clean: Sequence[Condition], basis: Basis) -> Difference:
    """AUROC under a condition minus that of the clean records, over the seeds of a network.

    Each resample of patients is used for both.
    """
    pairs = list(zip(seeds, clean, strict=True))
    return difference_over_seeds(
        [seed.auroc - other.auroc for seed, other in pairs],
        [seed.draws - other.draws for seed, other in pairs],
        basis,
    )


def calibration(seeds: Sequence[Condition], basis: Basis) -> tuple[float, float, float]:
    """Root of the debiased squared calibration error over seeds, with its 95 % interval.

    An estimate below 0 counts as 0; the interval's ends are NaN where there is none.
    """
    squared = difference_over_seeds(
        [seed.squared.value for seed in seeds], [seed.squared.draws for seed in seeds], basis
    )
    value, low, high = np.sqrt(np.maximum((squared.value, squared.low, squared.high), 0))
    return float(value), float(low), float(high)
