"""Populations whose truth is known, and the situations in which `studies.intervals` samples them.

Scores are normal: the class's own rows are shifted by d, so that its AUROC is Φ(d / √2) exactly.
They vary between techniques, between training seeds, between patients and between the records of a
patient, by stated shares of the variance. The truth of other metrics is that of a sample of a
million records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from scipy.stats import norm

from benchmd_ray.modality.tasks import TaskKind
from benchmd_ray.scores.metrics import METRICS, metric
from benchmd_ray.scores.support import Support, support

Floats = npt.NDArray[np.float64]
TASK: TaskKind = "single-label"
COMMON, TECHNIQUE = 0.5, 0.3
"""Shares of the variance of a score that all techniques, and all seeds of a technique, have in
common; the rest is the seed's own."""
LARGE = 1_000_000
"""Records of the sample that the truth of other metrics is taken from."""


@dataclass(frozen=True)
class Situation:
    """A population, and how many are drawn of it."""

    name: str
    counts: tuple[int, ...]
    """Patients of each class; where there is a prevalence, all patients and how many classes."""
    records: int = 1
    """Of each patient; drawn from 1 to twice as many less one where they vary."""
    varying: bool = False
    auroc: tuple[float, ...] = (0.8,)
    """Of each class, or one for all."""
    within: float = 0.5
    """Share of a score's variance that a patient's records have in common."""
    mixed: float = 0.0
    """Share of records that are of another class than their patient."""
    prevalence: float | None = None
    """Of the first of two classes, drawn patient by patient."""
    seeds: int = 1
    seed_sd: float = 0.0
    """Standard deviation between seeds of the shift d."""
    what: tuple[str, ...] = ("pairs",)
    """Names of `studies.intervals.STUDIES`."""
    metrics: tuple[str, ...] = ("auroc",)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.counts)

    @property
    def truth(self) -> Floats:
        """AUROC of each class in the population, over the seeds."""
        shift = np.sqrt(2) * norm.ppf(np.broadcast_to(self.auroc, self.classes))
        return np.asarray(norm.cdf(shift / math.sqrt(2 + self.seed_sd**2)))


@dataclass(frozen=True)
class Sample:
    """What was drawn: patients with their records, and scores of techniques and seeds."""

    targets: npt.NDArray[np.int8]
    scores: list[list[Floats]]
    """By technique and seed: (records, classes)."""
    patient: npt.NDArray[np.intp]

    @property
    def support(self) -> Support:
        """Its patients, counted."""
        return support(self.targets, self.patient)


def draw(
    situation: Situation, rng: np.random.Generator, techniques: Sequence[Sequence[float]]
) -> Sample:
    """Draw patients and scores.

    Args:
        situation: The population.
        rng: Source of all that is drawn.
        techniques: Of each the AUROC of the classes, or one for all.
    """
    label = np.repeat(np.arange(situation.classes), situation.counts)
    if situation.prevalence is not None:
        label = (rng.random(len(label)) >= situation.prevalence).astype(np.intp)
    records = np.full(len(label), situation.records)
    if situation.varying:
        records = rng.integers(1, 2 * situation.records, len(label))
    patient = np.repeat(np.arange(len(label)), records)
    label = label[patient]
    is_mixed = rng.random(len(label)) < situation.mixed
    label = np.where(is_mixed, rng.integers(0, situation.classes, len(label)), label)
    targets = np.eye(situation.classes, dtype=np.int8)[label]

    def noise() -> Floats:
        people = rng.normal(size=(int(patient.max()) + 1, situation.classes))
        single = rng.normal(size=(len(label), situation.classes))
        within = situation.within
        return np.asarray(math.sqrt(within) * people[patient] + math.sqrt(1 - within) * single)

    common, scores = math.sqrt(COMMON) * noise(), []
    for aurocs in techniques:
        shift = math.sqrt(2) * norm.ppf(np.broadcast_to(aurocs, situation.classes))
        alike = common + math.sqrt(TECHNIQUE) * noise()
        seeds = []
        for _ in range(situation.seeds):
            moved = shift + situation.seed_sd * rng.normal()
            alone = math.sqrt(1 - COMMON - TECHNIQUE) * noise()
            seeds.append(expit(alike + alone + targets * moved - 1.5))
        scores.append(seeds)
    return Sample(targets, scores, patient)


@lru_cache(maxsize=64)
def truth_of(situation: Situation, name: str) -> tuple[float, ...]:
    """A metric in the population: over all classes, then of each."""
    if name == "auroc":
        return (float(situation.truth.mean()), *situation.truth.tolist())
    times = max(1, LARGE // (sum(situation.counts) * situation.records))
    counts = tuple(count * times for count in situation.counts)
    large = replace(situation, name="large", counts=counts, seeds=1, seed_sd=0.0)
    sample = draw(large, np.random.default_rng(12345), [situation.auroc])
    values = metric(name, sample.targets, sample.scores[0][0], TASK)
    return (values.mean, *values.per_class)


def rarest(positives: int, patients: int = 200, classes: int = 7) -> tuple[int, ...]:
    """Patients of each class: a rare one, and equally many of the others."""
    rest, more = divmod(patients - positives, classes - 1)
    return (positives, *(rest + (n < more) for n in range(classes - 1)))


def evenly(patients: int, classes: int) -> tuple[int, ...]:
    """Patients of each class, as even as can be."""
    rest, more = divmod(patients, classes)
    return tuple(rest + (n < more) for n in range(classes))


def _situations() -> list[Situation]:
    every = tuple(METRICS)
    situations = [
        Situation(f"7 classes of 200 patients, rarest class {n}", rarest(n))
        for n in (1, 2, 3, 5, 10, 30)
    ]
    situations += [
        Situation(f"{n} patients with 10 records each, 2 classes", evenly(n, 2), records=10)
        for n in (3, 5, 10, 20, 35, 50, 100)
    ]
    situations += [
        Situation(f"{n} positive of 100 patients, 2 classes", (n, 100 - n))
        for n in (1, 2, 3, 5, 10)
    ]
    situations += [
        Situation(
            "AUROC 0.95, prevalence 0.1, 200 patients", (100, 100), auroc=(0.95,), prevalence=0.1
        ),
        Situation("AUROC 0.95, 10 of 200 patients positive", (10, 190), auroc=(0.95,)),
        Situation("AUROC 0.99, 20 of 200 patients positive", (20, 180), auroc=(0.99,)),
        Situation("AUROC 0.998, 20 of 200 patients positive", (20, 180), auroc=(0.998,)),
        Situation("AUROC 0.9, 10 of 20 patients positive", (10, 10), auroc=(0.9,)),
    ]
    situations += [
        Situation(f"{n} seeds, as different as patients, 60 patients", evenly(60, 2), seeds=n,
                  seed_sd=0.25)
        for n in (2, 3, 5)
    ]  # fmt: skip
    situations += [
        Situation(f"{n} seeds, much more different, 200 patients", evenly(200, 2), seeds=n,
                  seed_sd=0.5)
        for n in (2, 3, 5)
    ]  # fmt: skip
    situations += [
        Situation("3 seeds, alike, 35 patients with 5 records each", evenly(35, 2), records=5,
                  seeds=3),
        Situation("20 patients, 7 classes", evenly(20, 7)),
        Situation("35 patients, 7 classes", evenly(35, 7)),
        Situation("all metrics: 21 patients, 3 classes", evenly(21, 3), metrics=every),
        Situation("all metrics: 50 patients, 5 classes of 5 to 20",
                  (5, 8, 8, 9, 20), auroc=(0.9, 0.7, 0.8, 0.85, 0.75), metrics=every,
                  what=("pairs", "gaps")),
        Situation("all metrics: 40 patients with 1 to 19 records of any class",
                  evenly(40, 4), records=10, varying=True, mixed=0.3, metrics=every,
                  what=("pairs", "gaps")),
        Situation("all metrics: 300 patients, 7 classes, 20 in the rarest", rarest(20, 300),
                  auroc=(0.95, 0.7, 0.75, 0.8, 0.85, 0.9, 0.8), metrics=every,
                  what=("pairs", "gaps")),
        Situation("all metrics: 300 patients, 2 balanced classes", evenly(300, 2), metrics=every,
                  what=("pairs", "gaps")),
        Situation("gap to 12 patients, 2 classes", evenly(12, 2), what=("gaps",)),
        Situation("gap to 20 patients, 2 classes", evenly(20, 2), what=("gaps",)),
        Situation("gap to 50 patients, 7 classes", evenly(50, 7), what=("gaps",)),
        Situation("gap at AUROC 0.99, 10 of 50 patients positive", (10, 40), auroc=(0.99,),
                  what=("gaps",)),
        Situation("gap at AUROC 0.97, 20 of 200 patients positive", (20, 180), auroc=(0.97,),
                  what=("gaps",)),
        Situation("ranks, groups, targets: 60 patients, 3 classes", evenly(60, 3),
                  what=("ranks", "groups", "targets")),
        Situation("ranks, groups, targets: 200 patients with 2 records each, 5 classes",
                  evenly(200, 5), records=2, what=("ranks", "groups", "targets")),
        Situation("techniques over sources", (1,), what=("sources",)),
    ]  # fmt: skip
    return situations


SITUATIONS = tuple(_situations())
"""All situations, in the order of the table."""
