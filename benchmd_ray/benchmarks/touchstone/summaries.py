"""Summaries of each algorithm: means, distances, missed and spurious organs, speed.

``own`` means are those of the paper, over an algorithm's own cases; ``common`` ones are over the
cases of all algorithms, and all else is based on them. Averages are means of class means. The sd of
an own average is the mean of the classes' sds, as published, not an sd of anything per case; common
averages have a bootstrap interval over cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

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
    flat = values.reshape(len(values), values[0].size)
    drawn = resampled_means(flat, patients, resamples=resamples, seed=seed)
    drawn = drawn.reshape(resamples, *values.shape[1:])
    there = np.asarray(~np.isnan(values).any(axis=1), np.bool_)
    counts = there.sum(axis=0)
    units = np.array([len(np.unique(patients[column])) for column in there.T], np.intp)
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


def cells(scores: Scores, drawn: Mapping[str, DrawnMeans]) -> pd.DataFrame:
    """Own and common means of each metric, algorithm and class, and their mean (`MEAN`).

    ``own_sd`` is the sample sd (n - 1); of the mean over classes the mean of the classes' sds.
    """
    table = []
    for metric, common in drawn.items():
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
            for c, own_cells in enumerate(rows):
                interval = (float(common.means[a, c]), *common.interval(a, c))
                sizes_of_class = int(common.counts[c]), int(common.units[c])
                table.append((metric, algorithm, *own_cells, *interval, *sizes_of_class))
    return pd.DataFrame(table, columns=CELLS)


CELLS = (
    *("metric", "algorithm", "class", "own_mean", "own_sd", "own_n"),
    *("value", "low", "high", "n", "patients"),
)


def distances(scores: Scores) -> pd.DataFrame:
    """Quantiles of HD95 (mm); a missed organ is infinitely far, so there is no mean."""
    rows = scores.rows[scores.rows["hd95"].notna()]
    table = []
    for (algorithm, name), group in rows.groupby(["algorithm", "class"], sort=False):
        values = group["hd95"].to_numpy(np.float64)
        quantiles = np.quantile(values, (0.25, 0.5, 0.75, 0.95), method="inverted_cdf")
        table.append((algorithm, name, len(values), int(np.isinf(values).sum()), *quantiles))
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
                "spurious_ml": float(spurious["volume_pred_ml"].median()),
            }
        )
    return pd.DataFrame(table)


def speed(scores: Scores) -> pd.DataFrame:
    """Seconds per volume: mean, median and 95 % quantile over an algorithm's cases."""
    times = scores.rows.groupby(["algorithm", "case"], sort=False)["seconds"].max()
    table = []
    for algorithm in scores.algorithms:
        seconds = times[algorithm].dropna()
        quantiles = seconds.quantile((0.5, 0.95))
        table.append((algorithm, seconds.mean(), *quantiles, len(seconds)))
    return pd.DataFrame(table, columns=["algorithm", "seconds", "median", "q95", "volumes"])


def worst(scores: Scores, metric: str = "dsc") -> pd.DataFrame:
    """Common cases of each class with the lowest mean over algorithms."""
    values = scores.common_values(metric)
    volumes = scores.values("volume_ref_ml")
    table = []
    for c, name in enumerate(scores.classes):
        means = values[:, :, c].mean(axis=1)
        order = np.argsort(means, kind="stable")[:WORST].tolist()  # NaN last
        for place, row in enumerate(order, 1):
            if np.isnan(means[row]):
                break
            of_case = values[row, :, c]
            best, last = of_case.argmax(), of_case.argmin()
            ends = (scores.algorithms[best], of_case[best], scores.algorithms[last], of_case[last])
            case, volume = scores.cases[row], volumes[row, 0, c]
            table.append((name, place, case, means[row], *ends, volume))
    columns = ("class", "place", "case", "value", "best", "best_value", "worst", "worst_value")
    return pd.DataFrame(table, columns=[*columns, "volume_ref_ml"])
