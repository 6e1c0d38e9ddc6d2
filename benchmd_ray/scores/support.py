"""How many patients a value rests on, and whether they are enough for an interval or a test.

Patients are counted, not records. Where some have many more records r than others, the count is
Kish's (1965) effective number (Σ r)² / Σ r². The count of a class is that of its rarer side,
positive or negative. The rules follow from simulations (``docs/statistics.md``):

- fewer than 10 patients: no interval; fewer than 20: no test;
- a class with fewer than 5 patients on its rarer side: no interval for the class, nor for a mean
  over classes that includes it; with 5 to 9 the interval is marked as rough;
- metrics that few records raise need more, or have no interval (`metrics.Metric.least`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from benchmd_ray.modality.tasks import UNKNOWN
from benchmd_ray.scores.metrics import METRICS, checked_groups

INTERVAL_PATIENTS = 10
TEST_PATIENTS = 20
ROUGH_IN_CLASS = 10
"""Patients on the rarer side of a class below which an interval is rough."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Support:
    """Effective numbers of patients behind some rows."""

    patients: int
    effective: float
    """Effective number of patients in all rows."""
    known: tuple[float, ...]
    """Effective number in the rows with a known label, by class."""
    rarer: tuple[float, ...]
    """Effective number on the rarer side of each class; 0 where it cannot be scored."""
    mirrored: bool
    """Whether there are two classes, each the opposite of the other, which rest on the same
    patients.
    """

    def basis(self, metric: str, column: int = 0) -> Basis:
        """What a metric's value rests on: the mean over classes (column 0) or a class (from 1)."""
        least = METRICS[metric].least
        scored = tuple(count for count in self.rarer if count)
        counts = (self.rarer[column - 1],) if column else scored[: 1 if self.mirrored else None]
        patients = self.known[column - 1] if column else self.effective
        return Basis(patients, counts if least else (), least)


def support(targets: npt.ArrayLike, groups: npt.ArrayLike) -> Support:
    """Count the patients (rows,) of targets (rows, classes) of 1, 0, or -1 for unknown."""
    labels = np.asarray(targets)
    patient = checked_groups(groups, len(labels))
    rarer = [
        min(effective(np.bincount(patient[target == side])) for side in (0, 1))
        for target in labels.T
    ]
    two = np.flatnonzero(rarer)
    opposite = len(two) == 2 and bool((labels[:, two].sum(axis=1) == 1).all())
    whole = np.bincount(patient[(labels != UNKNOWN).any(axis=1)])
    effective_patients = tuple(
        effective(np.bincount(patient[target != UNKNOWN])) for target in labels.T
    )
    return Support(
        patients=int(np.count_nonzero(whole)),
        effective=effective(whole),
        known=effective_patients,
        rarer=tuple(rarer),
        mirrored=opposite,
    )


def effective(records: npt.ArrayLike) -> float:
    """Effective number of patients with these numbers of records; 0 without any."""
    counts = np.asarray(records, np.float64)
    squares = float(np.square(counts).sum())
    return float(counts.sum()) ** 2 / squares if squares else 0.0


@dataclass(frozen=True)
class Basis:
    """The counts that decide whether a value or difference has an interval and a test."""

    patients: float
    counts: tuple[float, ...]
    """Patients on the rarer side of each class; empty where classes do not matter."""
    least: float = METRICS["auroc"].least
    """Patients that an interval needs on the rarer side of a class."""

    @cached_property
    def fewest(self) -> float:
        """Patients on the rarer side of the rarest class, or all patients."""
        return min((self.patients, *self.counts))

    @cached_property
    def degrees(self) -> float:
        """Degrees of freedom of the variance, for t; NaN where the rarest class has one patient.

        Satterthwaite's approximation (1946) for a mean over independent classes whose variances are
        inversely proportional to their patients; at most the number of patients minus 1.
        """
        if self.fewest < 1 + _ROUNDING:
            return math.nan
        counts = np.array(self.counts or (self.patients,), np.float64)
        share = 1 / counts / (1 / counts).sum()
        return float(min(1 / (share**2 / (counts - 1)).sum(), self.patients - 1))

    @cached_property
    def no_interval(self) -> str:
        """Why there is no interval; empty where there is one."""
        if math.isinf(self.least):
            return "few records raise the metric"
        if _fewer(self.patients, INTERVAL_PATIENTS):
            return _counted(self.patients)
        return self._below(self.least)

    @cached_property
    def no_test(self) -> str:
        """Why nothing is tested; empty where something may be.

        With few patients on the rarer side of the only class, an exchange test has too few possible
        exchanges.
        """
        if _fewer(self.patients, TEST_PATIENTS):
            return _counted(self.patients)
        return self._below(self.least) if len(self.counts) == 1 else ""

    @cached_property
    def rough(self) -> str:
        """Why the interval is rough; empty where it is not, or where there is none."""
        return "" if self.no_interval else self._below(ROUGH_IN_CLASS)

    def _below(self, least: float) -> str:
        few = sum(_fewer(count, least) for count in self.counts)
        if not few:
            return ""
        if len(self.counts) == 1:
            return f"{_counted(self.counts[0])} on the rarer side"
        have = "has" if few == 1 else "have"
        return (
            f"{few} of {len(self.counts)} classes {have} fewer than {least:g} patients on the "
            "rarer side"
        )


def weaker(a: Basis, b: Basis) -> Basis:
    """What a difference between two sets of patients rests on: the smaller counts."""
    counts = min(a.counts, b.counts, key=lambda counts: min(counts, default=math.inf))
    return Basis(min(a.patients, b.patients), counts, max(a.least, b.least))


ALIKE = "the resamples do not differ"
"""Why a difference may have no interval and no test although there are enough patients."""


def caution(rough: str = "", **missing: str) -> str:
    """What a reader must know about a result, such as ``no interval, no p: 8 patients``.

    The reasons for a missing interval or p, or for a rough interval; empty where there are none.
    """
    reasons: dict[str, list[str]] = {}
    named = {f"no {name}": why for name, why in missing.items()} | {"rough interval": rough}
    for name, why in named.items():
        if why:
            reasons.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())


def _fewer(patients: float, least: float) -> bool:
    return patients < least - _ROUNDING


def _counted(patients: float) -> str:
    whole = math.floor(patients + _ROUNDING)
    effective = "" if patients - whole < 2 * _ROUNDING else "effective "
    return f"{whole} {effective}patient{'' if whole == 1 else 's'}"
