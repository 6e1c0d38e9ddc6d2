"""Scores of detectors: from the table of `ood.detect` to score rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from scipy.stats import rankdata

from benchmd_ray.benchmarks.ood.measures import (
    Compared,
    basis_of,
    metrics,
    resampled_auroc,
    threshold_of,
)
from benchmd_ray.benchmarks.ood.methods.formulas import auroc, entropy, probabilities
from benchmd_ray.benchmarks.ood.methods.method import Floats
from benchmd_ray.benchmarks.ood.released import balanced
from benchmd_ray.benchmarks.ood.sets import FEWEST
from benchmd_ray.benchmarks.ood.table import ALL, HALF, IN, KEYS, THRESHOLDS, about, thresholds
from benchmd_ray.errors import BenchmdError
from benchmd_ray.runs.predictions import Predictions
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.support import Basis

RELEASED = "ood-released"
"""The evaluation that is scored as the released code does, too."""
ENSEMBLE = "deep-ensemble"
HALVES, ROUNDING = 4999, 1e-12
"""Random halves of `chance_p`, and what differs by less is equal."""
RESAMPLES = 1000


@dataclass(frozen=True)
class Where:
    """What scores are of."""

    method: str
    regime: str
    use_case: str
    group: str
    severity: int = 0

    @property
    def columns(self) -> dict[str, object]:
        """Of score rows."""
        return {
            "method": self.method,
            "regime": self.regime,
            "use_case": self.use_case,
            "group": self.group,
            "class": f"severity {self.severity}" if self.severity else "mean",
            "split": "test",
        }


@dataclass(frozen=True, eq=False)
class ScoredSet:
    """Scores of a detector on a set, or their means over the sets of a use-case."""

    where: Where
    values: dict[str, float]
    draws: Floats
    """AUROC over resamples of patients; empty where there is no interval."""
    basis: Basis
    units: npt.NDArray[np.intp]
    """Numbers of the records, in and out of distribution, each once."""
    out: npt.NDArray[np.intp]
    """Those of the records that are out of distribution."""
    groups: npt.NDArray[np.intp]
    sets: int = 1

    @property
    def records(self) -> int:
        """Number of records, counted once however many sets have them."""
        return len(self.units)

    @property
    def patients(self) -> int:
        return len(self.groups)

    @property
    def positives(self) -> int:
        """Number of records that are out of distribution."""
        return len(self.out)

    @property
    def row(self) -> dict[str, object]:
        counts = {name: getattr(self, name) for name in ("records", "patients", "positives")}
        return {**self.where.columns, **counts, "effective": self.basis.fewest}


def score_rows(predictions: Predictions, resamples: int) -> pd.DataFrame:
    """Score rows of all detectors, sets and regimes; ``group`` is `ALL` for means over sets."""
    return pd.DataFrame(list(_rows(scored(predictions, resamples))))


def _rows(results: Sequence[ScoredSet]) -> Iterator[dict[str, object]]:
    for result in results:
        pooled = pooled_seeds([result.values["auroc"]], [result.draws], result.basis)
        ends = {"low": pooled.low, "high": pooled.high, "caution": pooled.caution}
        yield {**result.row, "metric": "auroc", "value": pooled.mean, **ends}
        for metric, value in result.values.items():
            if metric != "auroc":
                yield {**result.row, "metric": metric, "value": value}


def scored(predictions: Predictions, resamples: int = RESAMPLES) -> tuple[ScoredSet, ...]:
    """All detectors on all sets, then their means over the sets of each use-case.

    A mean has the sets with `FEWEST` out records or more; each set and severity counts the same.
    """
    key = (str(resamples), *content_key(predictions))
    if key not in _KNOWN:
        _KNOWN[key] = _scored(predictions, resamples)
    return _KNOWN[key]


_KNOWN: dict[tuple[str, ...], tuple[ScoredSet, ...]] = {}


def content_key(predictions: Predictions) -> tuple[str, ...]:
    """What scores follow from: what the table says of itself, and its content but for pictures."""
    hashed = hashlib.sha256()
    for name in (name for name in predictions.table.column_names if name != "picture"):
        for chunk in predictions.table[name].chunks:
            hashed.update(f"{name} {chunk.offset} {len(chunk)}\n".encode())
            for buffer in filter(None, chunk.buffers()):
                hashed.update(buffer)
    stated = predictions.description
    keys = ("of", "dataset", "catalog", "also", "evaluation")
    return (*(stated.get(key, "") for key in keys), hashed.hexdigest())


def _scored(predictions: Predictions, resamples: int) -> tuple[ScoredSet, ...]:
    table = _units(predictions)
    coarse = about(predictions)["coarse"]
    as_released = predictions.description.get("evaluation") == RELEASED
    keys = [name for name in table.columns if name in KEYS]
    none = table["regime"] == "none"
    results: list[ScoredSet] = []
    for name in (name for name in table.columns if name not in KEYS):
        scores = table[[*keys, name]].rename(columns={name: "score"})
        if table.loc[none, name].notna().any():
            of_regime = _without_calibration(scores[none], name, coarse)
            results += [_of_set(where, compared, resamples) for where, compared in of_regime]
        if table.loc[~none, name].notna().any():
            limits = thresholds(predictions, name)
            of_regime = _with_calibration(scores[~none & scores["score"].notna()], name, limits)
            results += [
                _of_set(where, compared, resamples, as_released=as_released)
                for where, compared in of_regime
            ]
    return (*results, *_means(results))


def ensemble(seeds: Sequence[Predictions]) -> Predictions:
    """Predictions of a deep ensemble: the entropy of the mean probabilities of several seeds.

    Raises:
        BenchmdError: They are not of the same records.
    """
    kept = [
        predictions.table.filter(predictions.table["logits"].is_valid()) for predictions in seeds
    ]
    keys = ["record_id", "part", "set", "severity"]
    if not all(table.select(keys).equals(kept[0].select(keys)) for table in kept):
        raise BenchmdError("the seeds of a deep ensemble were scored on other records.")
    exclusive = seeds[0].task.exclusive
    logits = [np.stack(table["logits"].to_numpy()) for table in kept]
    p = np.mean([probabilities(z, exclusive) for z in logits], axis=0)
    field = pa.field(ENSEMBLE, pa.float64(), metadata={THRESHOLDS: "{}"})
    table = kept[0].select(list(KEYS)).append_column(field, pa.array(entropy(p, exclusive)))
    runs = " ".join(predictions.description.get("of", "") for predictions in seeds)
    return Predictions(table, seeds[0].description | {"of": runs})


def _means(results: Sequence[ScoredSet]) -> Iterator[ScoredSet]:
    parts: dict[tuple[str, str, str], list[ScoredSet]] = {}
    for result in results:
        where = result.where
        if where.use_case != "control" and result.positives >= FEWEST:
            parts.setdefault((where.method, where.regime, where.use_case), []).append(result)
    for key, sets in parts.items():
        yield mean_of(sets, Where(*key, ALL))


def mean_of(sets: Sequence[ScoredSet], where: Where) -> ScoredSet:
    """Mean over sets; each set and severity counts the same."""
    shared = [name for name in sets[0].values if all(name in result.values for result in sets)]
    values = {name: float(np.mean([result.values[name] for result in sets])) for name in shared}
    drawn = all(len(result.draws) for result in sets)

    def together(name: str) -> npt.NDArray[np.intp]:
        return np.unique(np.concatenate([getattr(result, name) for result in sets]))

    return ScoredSet(
        where,
        values,
        np.mean([result.draws for result in sets], axis=0) if drawn else np.empty(0),
        min((result.basis for result in sets), key=lambda basis: basis.fewest),
        units=together("units"),
        out=together("out"),
        groups=together("groups"),
        sets=len(sets),
    )


def _units(predictions: Predictions) -> pd.DataFrame:
    """A row for each unit: of a scan with several windows their highest scores."""
    columns = [name for name in predictions.table.column_names if name not in ("logits", "picture")]
    table: pd.DataFrame = predictions.table.select(columns).to_pandas()
    if not (table["unit_id"] == table["record_id"]).all():
        # Windows of a scan differ in what they show: a scan is abnormal where one of them is.
        table["abnormal"] = table["abnormal"].astype("float64")
        keys = [name for name in columns if name in KEYS.keys() - {"record_id", "abnormal"}]
        whole = table.groupby(keys, dropna=False, sort=False).max(numeric_only=True)
        table = pd.DataFrame(whole.reset_index())
    else:
        table = table.drop(columns="record_id")
    # Numbers and categories: thousands of selections of texts would take most of the time.
    texts = [name for name in ("part", *_TEXTS) if name in table]
    table = table.astype(dict.fromkeys(texts, "category"))
    numbered = ("unit_id", "group_id")
    return table.assign(**{name: pd.factorize(table[name], sort=True)[0] for name in numbered})


_TEXTS = ("use_case", "set", "regime", "calibrated_on", "alike")


Found = Iterator[tuple[Where, list[Compared]]]
"""What scores are of, and both kinds of records, once for each calibration."""


def _without_calibration(table: pd.DataFrame, name: str, coarse: Mapping[str, str]) -> Found:
    records = table[(table["set"] == IN) & table["alike"].isna()]
    threshold = threshold_of(records.loc[records["part"] == "calibration", "score"].to_numpy())
    test = records[records["part"] == "test"]
    # The control of chance: half of the in-distribution patients are called out.
    half = test["group_id"].isin(_half(np.random.default_rng(0), np.unique(test["group_id"])))
    if half.any() and not half.all():
        control = Where(name, "none", "control", HALF)
        yield control, [Compared(test[~half], test[half], threshold)]
    others = table[(table["set"] != IN) & (table["part"] == "test")]
    by = ["use_case", "set", "severity", "control"]
    for key, rows in others.groupby(by, sort=False, observed=True):
        case, group, severity = str(key[0]), str(key[1]), int(float(str(key[2])))
        case = "control" if key[3] else case
        where = Where(name, "none", case, _group(group, severity), severity)
        alike = table[(table["set"] == IN) & (table["alike"] == coarse.get(group, ""))]
        yield where, [Compared(test, rows, threshold, alike if len(alike) else None)]


def _half(rng: np.random.Generator, patients: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return rng.permutation(patients)[: len(patients) // 2]


def chance_p(predictions: Predictions, name: str) -> float:
    """P-value of the control of chance: that a detector tells the random half from the other.

    It is the share of `HALVES` other random halves of the patients, and the one seen among them,
    whose AUROC is as far from 0.5.
    """
    table = _units(predictions)
    test = table[(table["set"] == IN) & (table["part"] == "test") & (table["regime"] == "none")]
    test = test[test["alike"].isna()]
    patients, place = np.unique(test["group_id"], return_inverse=True)
    ranks = np.bincount(place, rankdata(test[name]))
    records = np.bincount(place)
    away = []
    for seed in range(HALVES + 1):  # the first is the control's
        half = _half(np.random.default_rng(seed), np.arange(len(patients)))
        count = records[half].sum()
        won = ranks[half].sum() - count * (count + 1) / 2
        away.append(abs(won / (count * (len(test) - count)) - 0.5))
    return float(np.mean(np.array(away) >= away[0] - ROUNDING))


def _with_calibration(table: pd.DataFrame, name: str, limits: Mapping[str, float]) -> Found:
    inside = table[table["set"] == IN]
    of_draw = dict(iter(inside.groupby("calibrated_on", observed=True)))
    others = table[table["set"] != IN]
    by = ["regime", "use_case", "set", "severity"]
    for key, rows in others.groupby(by, sort=False, observed=True):
        regime, case, group, severity = str(key[0]), str(key[1]), key[2], int(float(str(key[3])))
        comparisons = [
            Compared(of_draw[on], drawn_rows, limits[str(on)])
            for on, drawn_rows in rows.groupby("calibrated_on", sort=False, observed=True)
        ]
        yield Where(name, regime, case, _group(group, severity), severity), comparisons


def _group(name: object, severity: object) -> str:
    """The set without its severity, which is another column."""
    return str(name).removesuffix(f" {severity}") if severity else str(name)


def _as_released(compared: Sequence[Compared]) -> dict[str, float]:
    """Accuracy and AUPR (out positive) of as many records of either kind, as the code has them."""
    values = []
    for comparison in compared:
        pair = comparison.inside["score"].to_numpy(), comparison.outside["score"].to_numpy()
        inside, outside = balanced(*pair)
        measured = metrics(inside, outside, comparison.threshold)
        values.append((measured["balanced accuracy"], measured["aupr out"]))
    accuracy, precision = np.mean(values, axis=0)
    return {"accuracy, drawn": float(accuracy), "aupr out, drawn": float(precision)}


def _of_set(
    where: Where, compared: list[Compared], resamples: int, *, as_released: bool = False
) -> ScoredSet:
    measured = [comparison.metrics for comparison in compared]
    values = {name: float(np.mean([scores[name] for scores in measured])) for name in measured[0]}
    apart = [comparison.among_abnormal for comparison in compared]
    some = [comparison.metrics["auroc"] for comparison in apart if comparison is not None]
    if as_released:
        values |= _as_released(compared)
    if where.use_case == "unseen" and some:
        values["auroc, abnormal"] = float(np.mean(some))
    if (alike := compared[0].alike) is not None:
        pair = (alike["score"].to_numpy(), compared[0].outside["score"].to_numpy())
        values["auroc, alike"] = auroc(*pair)
    basis, draws = basis_of(compared[0]), np.empty(0)
    if not basis.no_interval:
        draws = np.mean([resampled_auroc(comparison, resamples) for comparison in compared], axis=0)
    both = pd.concat([compared[0].inside, compared[0].outside])
    units, groups = np.unique(both["unit_id"]), np.unique(both["group_id"])
    out = np.unique(compared[0].outside["unit_id"])
    return ScoredSet(where, values, draws, basis, units, out, groups)
