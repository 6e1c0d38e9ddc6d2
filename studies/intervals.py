r"""``python -m studies.intervals`` from the project's root.

Do intervals hold the truth and tests their level, with few patients and rare classes? Patients,
classes and scores are drawn from a population of which the truth is known, the functions of the
package that the report uses give intervals and p-values, and the JSON says for each situation and
each statistic in how many draws it was given at all, and of these in how many

- an interval held the truth (``coverage``, 0.95 is nominal), and
- a test of two techniques that are equally good gave p below 0.05 (``level``).

The Monte-Carlo standard error of a share s of n draws is ``sqrt(s (1 - s) / n)``: 0.007 at 0.95 and
1,000 draws. ``docs/simulations.md`` has the tables, and ``docs/statistics.md`` what follows from
them. A statistic that is marked as rough is counted by itself.

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
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations

import numpy as np
import pandas as pd

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
from speed import measure
from studies.populations import SITUATIONS, TASK, Floats, Sample, Situation, draw, truth_of

LEVEL = 0.05


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
    is_given = bool(low <= high)
    for mark, counts in (("", is_given and not rough), (", rough", is_given and rough)):
        tally = tallies.setdefault(f"coverage: {name}{mark}", Tally())
        tally.add(counts, low - 1e-12 <= truth <= high + 1e-12)


def add_test(tallies: Tallies, name: str, p: float) -> None:
    """Count a test of equals: whether it is given, and whether it says that they differ."""
    tallies.setdefault(f"level: {name}", Tally()).add(not math.isnan(p), p < LEVEL)


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
        scores_of_metric = metric(name, sample.targets, scores, TASK)
        values.append(np.array([scores_of_metric.mean, *scores_of_metric.per_class]))
        resamples_of_metric = np.empty((0, len(values[-1])))
        if not math.isinf(METRICS[name].least):
            rows = (sample.targets, scores, sample.patient)
            resamples_of_metric = resampled(name, *rows, TASK, resamples=resamples, threads=1)
        draws.append(resamples_of_metric)
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
        difference = compared(sample, name, first, second, exact)
        ends = (difference.low, difference.high)
        add_interval(tallies, f"difference in {name}", ends, 0.0, difference.caution)
        how = "t" if exact is None else "exchange"
        add_test(tallies, f"difference in {name} ({how})", difference.p)
    if situation.seeds == 1:
        basis = sample.support.basis("auroc")
        (a,), (b,) = sample.scores
        p = delong(sample.targets, a, b, sample.patient).p
        is_given = not (basis.no_test or basis.no_interval or basis.rough)
        add_test(tallies, "difference in auroc (DeLong)", p if is_given else math.nan)
    return tallies


def study_gaps(situation: Situation, rng: np.random.Generator, resamples: int) -> Tallies:
    """One technique on 200 patients of its source and on a target, equally good on both."""
    tallies: Tallies = {}
    counts = tuple(200 // situation.classes for _ in situation.counts)
    source = replace(situation, name="source", counts=counts, seed_sd=0.0)
    at_home, away = (draw(population, rng, [situation.auroc]) for population in (source, situation))
    for name in situation.metrics:
        sides = []
        for sample in (at_home, away):
            technique = drawn(sample, 0, name, resamples)
            values = [float(one[0]) for one in technique.values]
            draws = [one[:, 0] for one in technique.resampled]
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
        techniques = [drawn(sample, number, "auroc", resamples) for number in range(4)]
        pairs = list(combinations(range(4), 2))
        raw_p = [
            compared(sample, "auroc", techniques[a], techniques[b], exchanged(sample, a, b)).p
            for a, b in pairs
        ]
        p = {
            (names[a], names[b]): p_of_pair
            for (a, b), p_of_pair in zip(pairs, holm(raw_p).tolist(), strict=True)
        }
        values = {
            name: float(technique.values[0][0])
            for name, technique in zip(names, techniques, strict=True)
        }
        draws = {name: one.resampled[0][:, 0] for name, one in zip(names, techniques, strict=True)}
        ranks = ranking_stability(values, draws, p).rank
        truth = {name: float(np.mean(np.flatnonzero(np.equal(steps, own)) + 1))
                 for name, own in zip(names, steps, strict=True)}  # fmt: skip
        is_given = not any(math.isnan(place.low) for place in ranks.values())
        holds = all(place.low <= truth[name] <= place.high for name, place in ranks.items())
        tallies[f"coverage: all ranks, {what}"] = Tally(1, int(is_given), int(is_given and holds))
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
        comparison = by_subgroup(
            sample.targets, sample.scores[0], sample.patient, labels, TASK,
            variable="group", resamples=resamples,
        )  # fmt: skip
        what = f"{len(shares)} groups"
        for one in comparison.groups:
            ends, truth = (one.low, one.high), float(situation.truth.mean())
            if not one.unscored:
                add_interval(tallies, f"auroc of a group of {what}", ends, truth, one.caution)
        add_test(tallies, f"equal AUROC of {what} (Welch)", comparison.p)
    return tallies


def study_sources(situation: Situation, rng: np.random.Generator, resamples: int) -> Tallies:
    """Four techniques over sources, equally good: every source favours some of them by chance."""
    tallies: Tallies = {}
    cells, names = 6, ("a", "b", "c", "d")
    for sources in (8, 12):
        of_source = rng.normal(0, 0.02, (sources, 1, len(names)))  # its models and patients
        table = 0.8 + of_source + rng.normal(0, 0.01, (sources, cells, len(names)))
        of_cell = [f"s{n // cells}" for n in range(sources * cells)]
        diagram = critical_difference(table.reshape(-1, len(names)), names, of_cell)
        add_test(tallies, f"Friedman over {sources} sources", diagram.p)
        least = min((p for *_, p in diagram.pairs), default=math.nan)
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
        for name, interval, at in (("value", value, value.mean), ("change", change, change.value)):
            rows[name].append(
                {"role": "target", "source": "s", "dataset": f"t{number}", "split": "test",
                 "policy": "clean", "setting": "linear", "technique": "mae", "value": at,
                 "low": interval.low, "high": interval.high, "caution": interval.caution}
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
                tally_of_all = total.setdefault(what, Tally())
                tally_of_all.draws += tally.draws
                tally_of_all.given += tally.given
                tally_of_all.hit += tally.hit
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
    situations = [situation for situation in SITUATIONS if chosen.only in situation.name]
    if not situations:
        options.error(f"no situation has {chosen.only!r} in its name")
    with ProcessPoolExecutor(chosen.processes) as pool:
        waiting = [pool.submit(run, s, draws, resamples, chosen.seed) for s in situations]
        for number, future in enumerate(as_completed(waiting), 1):
            name, seconds = future.result().situation.name, future.result().seconds
            sys.stderr.write(f"{number}/{len(situations)} {name}: {seconds:.0f} s\n")
        results = [future.result() for future in waiting]
    output = {
        "study": "statistics",
        "settings": {"draws": draws, "resamples": resamples, "seed": chosen.seed},
        "machine": measure.machine(),
        "situations": [asdict(result) for result in results],
    }
    json.dump(output, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
