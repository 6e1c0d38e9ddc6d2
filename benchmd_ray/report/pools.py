"""Results pooled over runs that differ only by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.modality.tasks import EXCLUSIVE, UNKNOWN
from benchmd_ray.report.contamination import together
from benchmd_ray.report.frames import KEY, place
from benchmd_ray.report.names import RowName
from benchmd_ray.report.protocols import fold_of
from benchmd_ray.report.rows import contamination_of, key_of
from benchmd_ray.report.scored import Scored, Units
from benchmd_ray.scores.seeds import Pooled, pooled_seeds
from benchmd_ray.scores.sums import mean_over_classes
from benchmd_ray.scores.support import Basis

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pool:
    """Results of one technique on one split of a dataset, one per seed, on the same records."""

    key: Mapping[str, str]
    """Key of the result, by the names of `frames.KEY`."""
    seeds: tuple[int, ...]
    """Seed of each member, or its index if two have the same seed."""
    members: tuple[Scored, ...]
    averaged: tuple[Scored, ...] = ()
    """Results of the individual runs that an ensemble averages."""

    @property
    def row(self) -> RowName:
        return RowName(self.key["technique"], self.key["protocol"])

    @property
    def runs(self) -> tuple[Scored, ...]:
        """The individual runs."""
        return self.averaged or self.members

    @property
    def first(self) -> Scored:
        """The first member; all have the same records, targets and classes."""
        return self.members[0]

    @property
    def folds(self) -> tuple[tuple[str, int], ...]:
        """Inner catalog and seed of each fold model; empty for runs on all labels."""
        runs = [member.run for member in self.members]
        return tuple((fold_of(run), int(run.description["seed"])) for run in runs if fold_of(run))

    @cached_property
    def contamination(self) -> str:
        """What of the scored records the pretraining of its runs saw."""
        return together(contamination_of(member) for member in self.runs)

    def values(self, metric: str) -> Floats:
        """Values of each seed, (seeds, 1 + classes): the mean over classes first."""
        return np.array([member.whole[metric] for member in self.members])

    def value(self, metric: str) -> float:
        """Mean over the seeds of the mean over classes."""
        return float(self.values(metric)[:, 0].mean())

    def drawn(self, metric: str, column: int = 0) -> list[Floats]:
        """(resamples,) for each seed, from the same draws; column 0 is the mean over classes."""
        return [member.resampled[metric][:, column] for member in self.members]

    def basis(self, metric: str, column: int = 0) -> Basis:
        return self.first.support.basis(metric, column)

    def resampled(self, metric: str) -> Floats:
        """Mean over the seeds of the mean over classes, (resamples,)."""
        return np.asarray(np.mean(self.drawn(metric), axis=0))

    def pooled(self, metric: str, column: int) -> Pooled:
        """Pool the seeds; column 0 is the mean over classes."""
        if len(self.members) == 1:
            return self.first.pooled(metric, column)
        values = self.values(metric)[:, column].tolist()
        return pooled_seeds(values, self.drawn(metric, column), self.basis(metric, column))

    @property
    def scored_classes(self) -> set[str]:
        """Classes with a positive and a negative."""
        counts = zip(self.first.classes, self.first.support.rarer, strict=True)
        return {name for name, rarer in counts if rarer}

    def over(self, classes: Collection[str]) -> Pool:
        """The same results, with means over a subset of classes.

        In single-label tasks accuracy counts records and does not change, and balanced accuracy, a
        mean of recalls, becomes NaN.
        """
        return replace(self, members=tuple(_over(member, classes) for member in self.members))

    def where(self) -> str:
        """Its place for messages."""
        names = ("source", "dataset", "split", "policy", "setting", "technique")
        return ", ".join(self.key[name] for name in names)


def _over(result: Scored, classes: Collection[str]) -> Scored:
    chosen = np.array([name in classes for name in result.classes])
    whole, resampled = dict(result.whole), dict(result.resampled)
    for name, values in result.whole.items():
        if result.task in EXCLUSIVE and name == "accuracy":
            continue
        undefined = result.task in EXCLUSIVE and name == "balanced_accuracy"
        kept = chosen & (not undefined)
        draws = result.resampled[name].copy()
        draws[:, 0] = mean_over_classes(draws[:, 1:][:, kept])
        mean = mean_over_classes(values[None, 1:][:, kept])
        whole[name], resampled[name] = np.append(mean, values[1:]), draws

    def read() -> Units:
        targets = np.where(chosen, result.targets, UNKNOWN).astype(np.int8)
        return result.read()._replace(targets=targets)

    return replace(
        result, read=cache(read), known=None, whole=whole, resampled=resampled, intervals={}
    )


def pools(results: Sequence[Scored], names: Mapping[Path, RowName]) -> tuple[list[Pool], list[str]]:
    """Results pooled over seeds in display order, and notes on what was excluded.

    ``names`` has the row of each run, by folder.
    """
    by_key: dict[tuple[str, ...], list[Scored]] = {}
    for result in results:
        key = key_of(result, names[result.run.folder])
        by_key.setdefault(tuple(key.values()), []).append(result)
    pooled, notes = [], []
    for values, members in by_key.items():
        key = dict(zip(KEY, values, strict=True))
        kept, lines = _kept(members)
        notes += lines
        seeds, lines = _seeds(kept)
        pool = Pool(key, seeds, tuple(kept))
        notes += [f"{pool.where()}: {line}" for line in lines]
        pooled.append(pool)
    return sorted(pooled, key=lambda pool: place(pool.key)), notes


def _kept(members: Sequence[Scored]) -> tuple[list[Scored], list[str]]:
    """Members on the same records, each run once, in order of fold and seed."""
    counts = Counter(member.facts.rows for member in members)
    most = max(counts, key=lambda rows: counts[rows])
    notes, kept = [], {}
    for member in sorted(members, key=lambda m: (_order(m), m.run.folder.name)):
        name = f"{member.run.folder.name}: its predictions for {member.dataset} ({member.split})"
        if member.facts.rows != most:
            notes.append(
                f"{name} are excluded: they use another catalog than the other seeds. "
                "Evaluate the runs again with one catalog."
            )
        elif (digest := member.run.digest) in kept:
            notes.append(f"{name} are in several stores and counted once.")
        else:
            kept[digest] = member
    return list(kept.values()), notes


def _order(member: Scored) -> tuple[int, int, str]:
    about = member.run.description
    return about.get("fold", {}).get("evaluation", 0), about["seed"], str(about.get("upstream"))


def _seeds(members: Sequence[Scored]) -> tuple[tuple[int, ...], list[str]]:
    seeds = tuple(int(member.run.description["seed"]) for member in members)
    if len(set(seeds)) == len(seeds):
        return seeds, []
    numbers = tuple(range(len(seeds)))
    return numbers, [
        f"the seeds {', '.join(map(str, seeds))} of the transfer have several pretrainings each; "
        "they are renumbered from 0 and pooled."
    ]
