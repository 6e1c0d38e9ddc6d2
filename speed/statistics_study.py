r"""``python -m speed.statistics_study`` from the project's root.

Do intervals hold the truth and tests their level, with few patients and rare classes? Patients,
classes and scores are drawn from a population of which the truth is known, the functions of the
package that the report uses give intervals and p-values, and the JSON says for each situation and
each statistic in how many draws it was given at all, and of these in how many

- an interval held the truth (``coverage``, 0.95 is nominal), and
- a test of two techniques that are equally good gave p below 0.05 (``level``).

The Monte-Carlo standard error of a share s of n draws is ``sqrt(s (1 - s) / n)``: 0.007 at 0.95 and
1,000 draws. ``docs/statistics.md`` has the table and what follows from it. A statistic that is
marked as rough is counted by itself.

Scores are normal: the class's own rows are shifted by d, so that its AUROC is Φ(d / √2) exactly.
They vary between techniques, between training seeds, between patients and between the records of a
patient, by stated shares of the variance. The truth of other metrics is that of a sample of a
million records.

All situations with 1,000 draws and 500 resamples take about half an hour of one CPU; ``--quick``
takes 100 draws and 200 resamples, a few minutes. ``--only`` chooses situations by a part of their
name.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit
from scipy.stats import norm

from benchmd_ray.modality.tasks import TaskKind
from benchmd_ray.report.figures_parts import over_targets
from benchmd_ray.scores.comparison import delong, exchange_p, holm
from benchmd_ray.scores.metrics import METRICS, metric
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.scores.seeds import (
    Difference,
    OverSeeds,
    difference_over_seeds,
    pooled_seeds,
    unpaired_difference,
)
from benchmd_ray.scores.stability import critical_difference, ranking_stability
from benchmd_ray.scores.subgroups import by_subgroup
from benchmd_ray.scores.support import Support, support
from speed import measure

Floats = npt.NDArray[np.float64]
LEVEL = 0.05
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
    """Names of `STUDIES`."""
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


@dataclass
class Tally:
    """Counts of one statistic."""

    draws: int = 0
    given: int = 0
    hit: int = 0

    def add(self, given: bool, hit: bool) -> None:
        """Count one draw."""
        self.draws += 1
        self.given += given
        self.hit += given and hit


Tallies = dict[str, Tally]


def add_interval(
    tallies: Tallies, name: str, ends: tuple[float, float], truth: float, caution: str
) -> None:
    """Count an interval: whether it is given, marked as rough, and whether it holds the truth."""
    low, high = ends
    rough = "rough" in caution
    given = bool(low <= high)
    for mark, counts in (("", given and not rough), (", rough", given and rough)):
        tally = tallies.setdefault(f"coverage: {name}{mark}", Tally())
        tally.add(counts, low - 1e-12 <= truth <= high + 1e-12)


def add_test(tallies: Tallies, name: str, p: float) -> None:
    """Count a test of equals: whether it is given, and whether it says that they differ."""
    tallies.setdefault(f"level: {name}", Tally()).add(not math.isnan(p), p < LEVEL)


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
    other = rng.random(len(label)) < situation.mixed
    label = np.where(other, rng.integers(0, situation.classes, len(label)), label)
    own = np.eye(situation.classes, dtype=np.int8)[label]

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
            seeds.append(expit(alike + alone + own * moved - 1.5))
        scores.append(seeds)
    return Sample(own, scores, patient)


@lru_cache(maxsize=64)
def truth_of(situation: Situation, name: str) -> tuple[float, ...]:
    """A metric in the population: over all classes, then of each."""
    if name == "auroc":
        return (float(situation.truth.mean()), *situation.truth.tolist())
    times = max(1, LARGE // (sum(situation.counts) * situation.records))
    counts = tuple(count * times for count in situation.counts)
    large = replace(situation, name="large", counts=counts, seeds=1, seed_sd=0.0)
    sample = draw(large, np.random.default_rng(12345), [situation.auroc])
    found = metric(name, sample.targets, sample.scores[0][0], TASK)
    return (found.mean, *found.per_class)


@dataclass(frozen=True)
class Drawn:
    """One technique's values of a metric and their resamples, by seed."""

    values: list[Floats]
    """(1 + classes,), over all classes first."""
    resampled: list[Floats]
    """(resamples, 1 + classes)."""


def drawn(sample: Sample, technique: int, name: str, resamples: int) -> Drawn:
    """A metric and its resamples, as the report makes them."""
    values, draws = [], []
    for scores in sample.scores[technique]:
        found = metric(name, sample.targets, scores, TASK)
        values.append(np.array([found.mean, *found.per_class]))
        made = np.empty((0, len(values[-1])))
        if not math.isinf(METRICS[name].least):
            rows = (sample.targets, scores, sample.patient)
            made = resampled(name, *rows, TASK, resamples=resamples, threads=1)
        draws.append(made)
    return Drawn(values, draws)


def compared(sample: Sample, name: str, a: Drawn, b: Drawn, exact: float | None) -> Difference:
    """Two techniques on the same records, b minus a, as the report compares them."""
    return difference_over_seeds(
        [float(y[0] - x[0]) for x, y in zip(a.values, b.values, strict=True)],
        [y[:, 0] - x[:, 0] for x, y in zip(a.resampled, b.resampled, strict=True)],
        sample.support.basis(name),
        exact=exact,
    )


def exchanged(sample: Sample, a: int, b: int) -> float | None:
    """The p of the exchange test, which is for one seed."""
    if len(sample.scores[a]) > 1:
        return None
    first, second = sample.scores[a][0], sample.scores[b][0]
    return exchange_p(sample.targets, first, second, sample.patient)


def study_pairs(situation: Situation, rng: np.random.Generator, resamples: int) -> Tallies:
    """Two techniques that are equally good.

    Intervals of the first, over all classes and of the rarest, which comes first; interval and
    tests of the difference.
    """
    tallies: Tallies = {}
    sample = draw(situation, rng, [situation.auroc] * 2)
    for name in situation.metrics:
        first, second = (drawn(sample, technique, name, resamples) for technique in (0, 1))
        for column, what in ((0, "mean"), (1, "rarest class")):
            pooled = pooled_seeds(
                [float(one[column]) for one in first.values],
                [one[:, column] for one in first.resampled],
                sample.support.basis(name, column),
            )
            truth = truth_of(situation, name)[column]
            ends = (pooled.low, pooled.high)
            add_interval(tallies, f"{name}, {what}", ends, truth, pooled.caution)
        exact = exchanged(sample, 0, 1) if name == "auroc" else None
        found = compared(sample, name, first, second, exact)
        ends = (found.low, found.high)
        add_interval(tallies, f"difference in {name}", ends, 0.0, found.caution)
        how = "t" if exact is None else "exchange"
        add_test(tallies, f"difference in {name} ({how})", found.p)
    if situation.seeds == 1:
        basis = sample.support.basis("auroc")
        (a,), (b,) = sample.scores
        p = delong(sample.targets, a, b, sample.patient).p
        given = not (basis.no_test or basis.no_interval or basis.rough)
        add_test(tallies, "difference in auroc (DeLong)", p if given else math.nan)
    return tallies


def study_gaps(situation: Situation, rng: np.random.Generator, resamples: int) -> Tallies:
    """One technique on 200 patients of its source and on a target, equally good on both."""
    tallies: Tallies = {}
    counts = tuple(200 // situation.classes for _ in situation.counts)
    source = replace(situation, name="source", counts=counts, seed_sd=0.0)
    at_home, away = (draw(one, rng, [situation.auroc]) for one in (source, situation))
    for name in situation.metrics:
        sides = []
        for sample in (at_home, away):
            made = drawn(sample, 0, name, resamples)
            values = [float(one[0]) for one in made.values]
            draws = [one[:, 0] for one in made.resampled]
            sides.append(OverSeeds.of(values, draws, sample.support.basis(name)))
        gap = unpaired_difference(*sides, same_models=True)
        add_interval(tallies, f"gap in {name}", (gap.low, gap.high), 0.0, gap.caution)
        add_test(tallies, f"gap in {name}", gap.p)
    return tallies


def study_ranks(situation: Situation, rng: np.random.Generator, resamples: int) -> Tallies:
    """Four techniques: all equal, and with two equal ones of three qualities."""
    tallies: Tallies = {}
    for steps, what in (((0, 0, 0, 0), "all equal"), ((0, 0, 0.04, 0.08), "two equal")):
        base = np.asarray(situation.auroc)
        sample = draw(situation, rng, [tuple(np.atleast_1d(base - step)) for step in steps])
        names = ("a", "b", "c", "d")
        made = [drawn(sample, number, "auroc", resamples) for number in range(4)]
        pairs = list(combinations(range(4), 2))
        found = [
            compared(sample, "auroc", made[a], made[b], exchanged(sample, a, b)).p for a, b in pairs
        ]
        p = {
            (names[a], names[b]): each
            for (a, b), each in zip(pairs, holm(found).tolist(), strict=True)
        }
        values = {name: float(one.values[0][0]) for name, one in zip(names, made, strict=True)}
        draws = {name: one.resampled[0][:, 0] for name, one in zip(names, made, strict=True)}
        ranks = ranking_stability(values, draws, p).rank
        truth = {name: float(np.mean(np.flatnonzero(np.equal(steps, own)) + 1))
                 for name, own in zip(names, steps, strict=True)}  # fmt: skip
        given = not any(math.isnan(place.low) for place in ranks.values())
        holds = all(place.low <= truth[name] <= place.high for name, place in ranks.items())
        tallies[f"coverage: all ranks, {what}"] = Tally(1, int(given), int(given and holds))
        false = [q for (a, b), q in p.items() if truth[a] == truth[b]]
        least = math.nan if np.isnan(false).any() else min(false)
        add_test(tallies, f"any false pair after Holm, {what}", least)
    return tallies


def study_groups(situation: Situation, rng: np.random.Generator, resamples: int) -> Tallies:
    """Groups of patients that differ in nothing: two of the same size, and four of other sizes."""
    tallies: Tallies = {}
    sample = draw(situation, rng, [situation.auroc])
    people = int(sample.patient.max()) + 1
    for shares in ((0.5, 0.5), (0.4, 0.3, 0.2, 0.1)):
        group = rng.choice([f"g{n}" for n in range(len(shares))], people, p=shares)
        labels = group[sample.patient].tolist()
        found = by_subgroup(
            sample.targets, sample.scores[0], sample.patient, labels, TASK,
            variable="group", resamples=resamples,
        )  # fmt: skip
        what = f"{len(shares)} groups"
        for one in found.groups:
            ends, truth = (one.low, one.high), float(situation.truth.mean())
            if not one.unscored:
                add_interval(tallies, f"auroc of a group of {what}", ends, truth, one.caution)
        add_test(tallies, f"equal AUROC of {what} (Welch)", found.p)
    return tallies


def study_sources(situation: Situation, rng: np.random.Generator, resamples: int) -> Tallies:
    """Four techniques over sources, equally good: every source favours some of them by chance."""
    tallies: Tallies = {}
    cells, names = 6, ("a", "b", "c", "d")
    for sources in (8, 12):
        own = rng.normal(0, 0.02, (sources, 1, len(names)))  # its models and patients
        table = 0.8 + own + rng.normal(0, 0.01, (sources, cells, len(names)))
        of_cell = [f"s{n // cells}" for n in range(sources * cells)]
        found = critical_difference(table.reshape(-1, len(names)), names, of_cell)
        add_test(tallies, f"Friedman over {sources} sources", found.p)
        least = min((p for *_, p in found.pairs), default=math.nan)
        add_test(tallies, f"any pair over {sources} sources (Wilcoxon, Holm)", least)
    return tallies


def study_targets(situation: Situation, rng: np.random.Generator, resamples: int) -> Tallies:
    """Mean over three targets of the AUROC and of the change against scratch, as figures show."""
    tallies: Tallies = {}
    rows: dict[str, list[Mapping[str, object]]] = {"value": [], "change": []}
    for number in range(3):
        sample = draw(situation, rng, [situation.auroc] * 2)
        a, b = (drawn(sample, technique, "auroc", resamples) for technique in (0, 1))
        basis = sample.support.basis("auroc")
        value = pooled_seeds([float(a.values[0][0])], [a.resampled[0][:, 0]], basis)
        change = compared(sample, "auroc", a, b, None)
        for name, one, at in (("value", value, value.mean), ("change", change, change.value)):
            rows[name].append(
                {"role": "target", "source": "s", "dataset": f"t{number}", "split": "test",
                 "policy": "clean", "setting": "linear", "technique": "mae", "value": at,
                 "low": one.low, "high": one.high, "caution": one.caution}
            )  # fmt: skip
    for name, truth in (("value", float(situation.truth.mean())), ("change", 0.0)):
        (row,) = over_targets(pd.DataFrame(rows[name]), one_seed=True).to_dict("records")
        add_interval(tallies, f"mean over targets: {name}", (row["low"], row["high"]), truth, "")
    return tallies


STUDIES: dict[str, Callable[[Situation, np.random.Generator, int], Tallies]] = {
    "pairs": study_pairs,
    "gaps": study_gaps,
    "ranks": study_ranks,
    "groups": study_groups,
    "sources": study_sources,
    "targets": study_targets,
}


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
    made = [
        Situation(f"7 classes of 200 patients, rarest class {n}", rarest(n))
        for n in (1, 2, 3, 5, 10, 30)
    ]
    made += [
        Situation(f"{n} patients with 10 records each, 2 classes", evenly(n, 2), records=10)
        for n in (3, 5, 10, 20, 35, 50, 100)
    ]
    made += [
        Situation(f"{n} positive of 100 patients, 2 classes", (n, 100 - n))
        for n in (1, 2, 3, 5, 10)
    ]
    made += [
        Situation(
            "AUROC 0.95, prevalence 0.1, 200 patients", (100, 100), auroc=(0.95,), prevalence=0.1
        ),
        Situation("AUROC 0.95, 10 of 200 patients positive", (10, 190), auroc=(0.95,)),
        Situation("AUROC 0.99, 20 of 200 patients positive", (20, 180), auroc=(0.99,)),
        Situation("AUROC 0.998, 20 of 200 patients positive", (20, 180), auroc=(0.998,)),
        Situation("AUROC 0.9, 10 of 20 patients positive", (10, 10), auroc=(0.9,)),
    ]
    made += [
        Situation(f"{n} seeds, as different as patients, 60 patients", evenly(60, 2), seeds=n,
                  seed_sd=0.25)
        for n in (2, 3, 5)
    ]  # fmt: skip
    made += [
        Situation(f"{n} seeds, much more different, 200 patients", evenly(200, 2), seeds=n,
                  seed_sd=0.5)
        for n in (2, 3, 5)
    ]  # fmt: skip
    made += [
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
    return made


SITUATIONS = tuple(_situations())
"""All situations, in the order of the table."""


@dataclass(frozen=True)
class Result:
    """What a situation gave."""

    situation: Situation
    seconds: float
    statistics: dict[str, dict[str, float | int | None]] = field(default_factory=dict)


def run(situation: Situation, draws: int, resamples: int, seed: int) -> Result:
    """Draw a situation many times; draw i depends on the seed, the situation's name and i."""
    start = time.perf_counter()
    total: Tallies = {}
    for number in range(draws):
        entropy = [seed, number, *situation.name.encode()]
        for name in situation.what:
            rng = np.random.default_rng([*entropy, *name.encode()])
            for what, tally in STUDIES[name](situation, rng, resamples).items():
                held = total.setdefault(what, Tally())
                held.draws += tally.draws
                held.given += tally.given
                held.hit += tally.hit
    statistics = {
        what: {
            "draws": tally.draws,
            "given": tally.given,
            "share": round(tally.hit / tally.given, 4) if tally.given else None,
        }
        for what, tally in total.items()
    }
    return Result(situation, round(time.perf_counter() - start, 1), statistics)


def main(arguments: list[str] | None = None) -> None:
    """Simulate and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--draws", type=int, default=1000, help="of each situation (1000)")
    options.add_argument("--resamples", type=int, default=1000, help="of the bootstrap (1000)")
    options.add_argument("--seed", type=int, default=0, help="seed of everything drawn (0)")
    options.add_argument("--only", default="", help="situations whose name holds this")
    options.add_argument("--processes", type=int, default=1, help="situations at a time (1)")
    options.add_argument("--quick", action="store_true", help="100 draws, 200 resamples")
    chosen = options.parse_args(arguments)
    draws, resamples = (100, 200) if chosen.quick else (chosen.draws, chosen.resamples)
    if min(draws, resamples, chosen.processes) < 1:
        options.error("--draws, --resamples and --processes have to be 1 or more")
    found = [situation for situation in SITUATIONS if chosen.only in situation.name]
    if not found:
        options.error(f"no situation has {chosen.only!r} in its name")
    with ProcessPoolExecutor(chosen.processes) as pool:
        waiting = [pool.submit(run, one, draws, resamples, chosen.seed) for one in found]
        for number, one in enumerate(as_completed(waiting), 1):
            done = one.result()
            sys.stderr.write(f"{number}/{len(found)} {done.situation.name}: {done.seconds:.0f} s\n")
        results = [one.result() for one in waiting]
    result = {
        "study": "statistics",
        "settings": {"draws": draws, "resamples": resamples, "seed": chosen.seed},
        "machine": measure.machine(),
        "situations": [asdict(one) for one in results],
    }
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
