"""Summaries of each algorithm: means, distances, missed and spurious organs, speed.

``own`` means are those of the paper, over an algorithm's own cases; ``common`` ones are over the
cases of all algorithms, and all else is based on them. Averages are means of class means. The sd of
an own average is the mean of the classes' sds, as published, not an sd of anything per case; common
averages have a bootstrap interval over cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.benchmarks.touchstone.joining import Floats, Scores
from benchmd_ray.benchmarks.touchstone.metadata import Metadata
from benchmd_ray.benchmarks.touchstone.tasks import MEAN
from benchmd_ray.scores.intervals import StandardError, difference_interval, value_interval
from benchmd_ray.scores.resampling import resampled_means
from benchmd_ray.scores.sums import mean_over_classes, ratio
from benchmd_ray.scores.support import INTERVAL_PATIENTS

WORST = 10
"""Cases of each class in the table of the worst."""
PRESENT, ABSENT = ("both", "missed"), ("absent", "spurious")
"""Codes of classes that are in the reference, and of those that are not."""


@dataclass(frozen=True, eq=False)
class DrawnMeans:
    """Means of one metric on common cases and in resamples of patients; last column: average."""

    values: Floats
    """(cases, algorithms, classes) of the common cases; NaN where there is none."""
    patients: npt.NDArray[np.str_]
    """(cases,)."""
    means: Floats
    """(algorithms, classes + 1)."""
    draws: Floats
    """(resamples, algorithms, classes + 1)."""
    counts: npt.NDArray[np.intp]
    """(classes + 1,) cases that a mean rests on; of the last, those with any class."""
    units: npt.NDArray[np.intp]
    """(classes + 1,) patients; of the last, those of the class with the fewest."""

    def interval(self, algorithm: int, column: int) -> tuple[float, float]:
        """95 % interval of a mean; NaN with fewer than ten patients."""
        units = int(self.units[column])
        if units < INTERVAL_PATIENTS:
            return math.nan, math.nan
        draws = self.draws[:, algorithm, column]
        draws = draws[~np.isnan(draws)]
        return value_interval(
            float(self.means[algorithm, column]), _error(draws, units), draws, units
        )

    def difference(self, a: int, b: int, column: int) -> tuple[float, float, float]:
        """Mean of a minus that of b, and its 95 % interval."""
        value = float(self.means[a, column] - self.means[b, column])
        units = int(self.units[column])
        draws = self.draws[:, a, column] - self.draws[:, b, column]
        if units < INTERVAL_PATIENTS:
            return value, math.nan, math.nan
        low, high = difference_interval(value, _error(draws[~np.isnan(draws)], units))
        return value, low, high


def _error(draws: Floats, units: int) -> StandardError:
    # drawn from n patients, the spread is that of n as a population: (n - 1) / n too small
    se = float(draws.std(ddof=1)) * math.sqrt(units / (units - 1)) if len(draws) > 1 else math.nan
    return StandardError(se, ((se**2, units - 1.0),))


def draw(
    scores: Scores, metric: str, metadata: Metadata, resamples: int, seed: int = 0
) -> DrawnMeans:
    """Means and their resamples.

    Patients are drawn with all of their cases (Wiesenfarth et al. 2021); a class that a resample
    loses is excluded from its mean over classes.
    """
    values = scores.common_values(metric)[scores.common]
    cases = np.array(scores.cases)[scores.common]
    patients = np.array([metadata.patient(case) for case in cases], np.str_)
    shape = values.shape
    drawn = resampled_means(
        values.reshape(len(values), shape[1] * shape[2]), patients, resamples=resamples, seed=seed
    ).reshape(resamples, *shape[1:])
    there = np.asarray(~np.isnan(values).any(axis=1), np.bool_)
    counts, units = there.sum(axis=0), _patients(there, patients)
    scored = counts > 0
    means = ratio(np.where(np.isnan(values), 0.0, values).sum(axis=0), counts)
    return DrawnMeans(
        values=values,
        patients=patients,
        means=np.column_stack([means, mean_over_classes(means[:, scored])]),
        draws=np.concatenate([drawn, mean_over_classes(drawn[..., scored])[..., None]], axis=-1),
        counts=np.append(counts, there.any(axis=1).sum()),
        units=np.append(units, units[scored].min(initial=len(cases))),
    )


def _patients(there: npt.NDArray[np.bool_], patients: npt.NDArray[np.str_]) -> npt.NDArray[np.intp]:
    return np.array([len(np.unique(patients[column])) for column in there.T], np.intp)


def cells(scores: Scores, drawn: Mapping[str, DrawnMeans]) -> pd.DataFrame:
    """Own and common means of each metric, algorithm and class, and their mean (`MEAN`).

    ``own_sd`` is the sample sd (n - 1); of the mean over classes the mean of the classes' sds.
    """
    return pd.DataFrame(_cells(scores, drawn))


def _cells(scores: Scores, drawn: Mapping[str, DrawnMeans]) -> Iterator[dict[str, Any]]:
    for metric, metric_draws in drawn.items():
        values = scores.values(metric)
        for a, algorithm in enumerate(scores.algorithms):
            columns = [values[~np.isnan(values[:, a, c]), a, c] for c in range(len(scores.classes))]
            means = [float(v.mean()) if len(v) else math.nan for v in columns]
            sds = [float(v.std(ddof=1)) if len(v) > 1 else math.nan for v in columns]
            sizes = [len(v) for v in columns]
            rows = zip(
                (*scores.classes, MEAN),
                (*means, float(mean_over_classes(np.array(means)))),
                (*sds, float(mean_over_classes(np.array(sds)))),
                (*sizes, int((~np.isnan(values[:, a])).any(axis=1).sum())),
                strict=True,
            )
            for c, (name, mean, sd, size) in enumerate(rows):
                low, high = metric_draws.interval(a, c)
                yield {
                    "metric": metric,
                    "algorithm": algorithm,
                    "class": name,
                    "own_mean": mean,
                    "own_sd": sd,
                    "own_n": size,
                    "value": float(metric_draws.means[a, c]),
                    "low": low,
                    "high": high,
                    "n": int(metric_draws.counts[c]),
                    "patients": int(metric_draws.units[c]),
                }


def distances(scores: Scores) -> pd.DataFrame:
    """Quantiles of HD95 (mm); a missed organ is infinitely far, so there is no mean."""
    rows = scores.rows[scores.rows["hd95"].notna()]
    table = []
    for (algorithm, name), group in rows.groupby(["algorithm", "class"], sort=False):
        values = np.sort(group["hd95"].to_numpy(np.float64))
        quantiles = {
            title: float(np.quantile(values, share, method="inverted_cdf"))
            for title, share in (("q25", 0.25), ("median", 0.5), ("q75", 0.75), ("q95", 0.95))
        }
        infinite = int(np.isinf(values).sum())
        row = {"algorithm": algorithm, "class": name, "n": len(values), "infinite": infinite}
        table.append({**row, **quantiles})
    columns = ["algorithm", "class", "n", "infinite", "q25", "median", "q75", "q95"]
    return pd.DataFrame(table, columns=columns)


def missed(scores: Scores) -> pd.DataFrame:
    """Organs without overlap, missed ones, and spurious ones.

    Missed and spurious are NaN where scores do not say which (`scores.dice.Presence`): a DSC of 0
    is a missed organ or one predicted elsewhere.
    """
    table = []
    for (algorithm, name), group in scores.rows.groupby(["algorithm", "class"], sort=False):
        code, has_codes = group["code"], bool(group["code"].notna().any())
        present, absent = (int(code.isin(codes).sum()) for codes in (PRESENT, ABSENT))
        spurious = group[code == "spurious"]
        table.append(
            {
                "algorithm": algorithm,
                "class": name,
                "with": present if has_codes else int(group["dsc"].notna().sum()),
                "zero": int((group["dsc"] == 0).sum()),
                "missed": int((code == "missed").sum()) if has_codes else math.nan,
                "without": absent if has_codes else int(group["dsc"].isna().sum()),
                "spurious": len(spurious) if has_codes else math.nan,
                "spurious_ml": float(spurious["volume_pred_ml"].median())
                if len(spurious)
                else math.nan,
            }
        )
    return pd.DataFrame(table)


def speed(scores: Scores) -> pd.DataFrame:
    """Seconds per volume: mean, median and 95 % quantile over an algorithm's cases."""
    times = scores.rows.groupby(["algorithm", "case"], sort=False)["seconds"].max().reset_index()
    table = []
    for algorithm in scores.algorithms:
        seconds = times.loc[times["algorithm"] == algorithm, "seconds"].dropna()
        q95 = float(seconds.quantile(0.95)) if len(seconds) else math.nan
        table.append(
            {
                "algorithm": algorithm,
                "seconds": float(seconds.mean()),
                "median": float(seconds.median()),
                "q95": q95,
                "volumes": len(seconds),
            }
        )
    return pd.DataFrame(table)


def worst(scores: Scores, metric: str = "dsc") -> pd.DataFrame:
    """Common cases of each class with the lowest mean over algorithms."""
    values = scores.common_values(metric)
    volumes = scores.values("volume_ref_ml")
    table = []
    for c, name in enumerate(scores.classes):
        of_class = values[:, :, c]
        order = np.argsort(of_class.mean(axis=1), kind="stable")  # NaN last
        for place, row in enumerate(order[:WORST].tolist(), 1):
            scores_of_case = of_class[row]
            if np.isnan(scores_of_case).any():
                break
            best, last = int(scores_of_case.argmax()), int(scores_of_case.argmin())
            table.append(
                {
                    "class": name,
                    "place": place,
                    "case": scores.cases[row],
                    "value": float(scores_of_case.mean()),
                    "best": scores.algorithms[best],
                    "best_value": float(scores_of_case[best]),
                    "worst": scores.algorithms[last],
                    "worst_value": float(scores_of_case[last]),
                    "volume_ref_ml": float(volumes[row, 0, c]),
                }
            )
    columns = ("class", "place", "case", "value", "best", "best_value", "worst", "worst_value")
    return pd.DataFrame(table, columns=[*columns, "volume_ref_ml"])
