"""Scores of several algorithms on the same cases, joined and checked.

In the files that Touchstone releases, algorithms have different cases and three would share a name
(https://github.com/MrGiovanni/Touchstone): here that is counted, or an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.benchmarks.touchstone.cases import SCHEMA
from benchmd_ray.benchmarks.touchstone.tasks import MEAN
from benchmd_ray.errors import LONGEST_NAME, BenchmdError, count_of, is_name, shown

if TYPE_CHECKING:
    from benchmd_ray.benchmarks.touchstone.planes import Planes

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
METRICS = ("dsc", "nsd")
"""Metrics with means, the first decides where one is needed."""
SAME_VOLUME = 1e-6
"""Share by which the volumes of one reference may differ: they are computed alike."""
MOST_NAMED = 5
"""Names that a message lists."""


@dataclass(frozen=True, eq=False)
class AlgorithmScores:
    name: str
    """Shown in tables; unique among those that are compared."""
    source: str
    """Where they are from, for messages."""
    task: str
    classes: tuple[str, ...]
    """In the order of tables."""
    rows: pd.DataFrame
    """Columns of `cases.SCHEMA`."""
    pretrained_on: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader must know, such as cases without scores."""
    planes: Callable[[str, str, Path | None], Planes] | None = None
    """From case, class and the path of an image to planes of masks, where there are any."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Per-case scores of all algorithms on one task."""

    task: str
    classes: tuple[str, ...]
    algorithms: tuple[str, ...]
    rows: pd.DataFrame
    by_name: Mapping[str, AlgorithmScores]

    @cached_property
    def cases(self) -> tuple[str, ...]:
        """Cases of any algorithm, sorted."""
        return tuple(sorted(self.rows["case"].unique()))

    @cached_property
    def has(self) -> Bools:
        """(cases, algorithms), whether an algorithm was scored on a case."""
        scored = np.zeros((len(self.cases), len(self.algorithms)), bool)
        scored[self._places[0], self._places[1]] = True
        return scored

    @cached_property
    def common(self) -> Bools:
        """(cases,), whether all algorithms were scored on a case."""
        return np.asarray(self.has.all(axis=1))

    @cached_property
    def _places(self) -> tuple[npt.NDArray[np.intp], ...]:
        axes = {"case": self.cases, "algorithm": self.algorithms, "class": self.classes}
        return tuple(
            pd.Index(names).get_indexer(pd.Index(self.rows[column]))
            for column, names in axes.items()
        )

    def values(self, column: str) -> Floats:
        """(cases, algorithms, classes) of a column of the rows; NaN where there is none."""
        shape = (len(self.cases), len(self.algorithms), len(self.classes))
        cube = np.full(shape, np.nan)
        cube[self._places] = self.rows[column].to_numpy(np.float64)
        return cube

    def common_values(self, column: str) -> Floats:
        """The same, NaN where any algorithm has no value for the case and class."""
        values = self.values(column)
        there = ~np.isnan(values).any(axis=1, keepdims=True) & self.common[:, None, None]
        return np.where(there, values, np.nan)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Those of `METRICS` that every algorithm has values of."""
        counts = self.rows.groupby("algorithm")[list(METRICS)].count()
        return tuple(name for name in METRICS if (counts[name] > 0).all())

    def title(self, metric: str) -> str:
        """Of a metric, NSD with its tolerance."""
        if metric != "nsd":
            return metric.upper()
        stated = self.rows.loc[self.rows["nsd"].notna(), "tolerance"].unique()
        if len(stated) != 1:
            return "NSD@task's tolerances"
        if math.isnan(stated[0]):
            return "NSD (authors', tolerance not stated)"
        return f"NSD@{stated[0]:g}mm"

    def without(self, names: Sequence[str]) -> Scores:
        """The same without some algorithms."""
        kept = {name: scores for name, scores in self.by_name.items() if name not in names}
        rows = self.rows[self.rows["algorithm"].isin(kept)].reset_index(drop=True)
        return Scores(self.task, self.classes, tuple(kept), rows, kept)


def joined(algorithms: Sequence[AlgorithmScores]) -> Scores:
    """All scores in one frame, after checking that they can be compared."""
    if not algorithms:
        raise BenchmdError("there is nothing to compare: name one folder of scores or more.")
    seen: dict[str, AlgorithmScores] = {}
    for algorithm in algorithms:
        _require_sound(algorithm)
        if algorithm.name in seen:
            raise BenchmdError(
                f"{seen[algorithm.name].source} and {algorithm.source} have one display name, "
                f"{algorithm.name}: rename one, else one would replace the other in every table."
            )
        seen[algorithm.name] = algorithm
    first = algorithms[0]
    for algorithm in algorithms[1:]:
        _require_alike(first, algorithm)
    rows = pd.concat(
        [algorithm.rows[SCHEMA.names].assign(algorithm=algorithm.name) for algorithm in algorithms],
        ignore_index=True,
    )
    _require_one_reference(rows, seen)
    return Scores(first.task, first.classes, tuple(seen), rows, seen)


def require_comparable(scores: Scores) -> None:
    """Refuse algorithms that share no case, or of which one has no score."""
    if not scores.common.any():
        raise BenchmdError(
            f"{', '.join(scores.algorithms)} have no case in common: compare those that were "
            "scored on the same cases."
        )
    if not scores.metrics:
        counts = scores.rows.groupby("algorithm")[METRICS[0]].count()
        without = [name for name in scores.algorithms if not counts[name]]
        raise BenchmdError(
            f"{_some(without)}: no case has a {METRICS[0].upper()}, as no reference has any of the "
            "classes: exclude it."
        )


def completed(scores: Scores) -> Scores:
    """Count cases that an algorithm lacks as missed, as challengeR does with its worst value.

    DSC and NSD are 0 and HD95 is infinite where the reference has the class; notes count the cases.
    """
    rows, named = [scores.rows], dict(scores.by_name)
    # of each class a row with a score, where any algorithm has one: the reference has the class
    reference_rows = scores.rows.sort_values("dsc").drop_duplicates(["case", "class"]).sort_index()
    for place, name in enumerate(scores.algorithms):
        lacking = [scores.cases[row] for row in np.flatnonzero(~scores.has[:, place])]
        if not lacking:
            continue
        lost = reference_rows[reference_rows["case"].isin(lacking)]
        there, code = lost["dsc"].notna(), lost["code"]
        zero = there.map({True: 0.0, False: np.nan})
        rows.append(
            lost.assign(
                algorithm=name,
                seconds=np.nan,
                dsc=zero,
                nsd=zero.where(lost["nsd"].notna(), np.nan),
                hd95=zero.where(~there, np.inf),
                volume_pred_ml=0.0,
                code=code.where(code.isna(), there.map({True: "missed", False: "absent"})),
            )
        )
        algorithm = named[name]
        note = f"{name}: {count_of(len(lacking), 'case')} without a score, counted as missed."
        named[name] = replace(algorithm, notes=(*algorithm.notes, note))
    joint = pd.concat(rows, ignore_index=True)
    return Scores(scores.task, scores.classes, scores.algorithms, joint, named)


def require_shown(source: object, what: str, name: str) -> None:
    """Refuse a name that tables and figures cannot show, see `errors.is_name`."""
    if not is_name(name):
        raise BenchmdError(
            f"{source}: the {what} is named {shown(name)}, expected up to {LONGEST_NAME} printable "
            "characters without $."
        )


def _require_sound(algorithm: AlgorithmScores) -> None:
    rows = algorithm.rows
    if missing := [name for name in SCHEMA.names if name not in rows]:
        raise BenchmdError(f"{algorithm.source}: the scores lack the column {missing[0]}.")
    if rows.empty:
        raise BenchmdError(f"{algorithm.source}: there is no case: score its predictions first.")
    if twice := sorted(set(rows.loc[rows.duplicated(["case", "class"]), "case"])):
        raise BenchmdError(
            f"{algorithm.source}: {count_of(len(twice), 'case')} repeated ({_some(twice)}): keep "
            "one row for each case and class."
        )
    if others := sorted(set(rows["class"]) - set(algorithm.classes)):
        raise BenchmdError(
            f"{algorithm.source}: the class {shown(others[0])} is not of the task "
            f"{algorithm.task}, expected {', '.join(algorithm.classes)}."
        )
    require_shown(algorithm.source, "algorithm", algorithm.name)
    for name in algorithm.classes:
        require_shown(algorithm.source, "class", name)
    if MEAN in algorithm.classes:
        raise BenchmdError(
            f"{algorithm.source}: a class is named {MEAN}, as the mean over classes is: rename or "
            "remove it."
        )
    for name in METRICS:
        values = rows[name]
        if wrong := sorted(set(rows.loc[(values < 0) | (values > 1), "case"])):
            raise BenchmdError(
                f"{algorithm.source}: {name} of {_some(wrong)} is not within 0 to 1: scores are "
                "fractions, divide percentages by 100."
            )


def _require_alike(first: AlgorithmScores, second: AlgorithmScores) -> None:
    pair = f"{first.source} and {second.source}"
    if second.task != first.task:
        raise BenchmdError(
            f"{pair} are of two tasks, {first.task} and {second.task}: compare each by itself."
        )
    if set(second.classes) != set(first.classes):
        differ = sorted(set(second.classes) ^ set(first.classes))
        raise BenchmdError(
            f"{pair} have other classes ({_some(differ)}): score both with the same task card."
        )
    mine, theirs = (_tolerances(algorithm) for algorithm in (first, second))
    for name in sorted(mine.keys() & theirs.keys()):
        if not np.array_equal(mine[name], theirs[name], equal_nan=True):
            raise BenchmdError(
                f"{pair} have NSD of {name} at other tolerances ({_mm(mine[name])} and "
                f"{_mm(theirs[name])}): such numbers cannot be compared, score one again."
            )


def _require_one_reference(rows: pd.DataFrame, seen: Mapping[str, AlgorithmScores]) -> None:
    """Refuse scores against different references: the volumes of their organs differ."""
    stated = rows[rows["volume_ref_ml"].notna()]
    volumes = stated.groupby(["case", "class"])["volume_ref_ml"]
    low, high = volumes.min(), volumes.max()
    if (apart := (high - low > SAME_VOLUME * high)).any():
        case, name = apart[apart].index[0]
        cell = stated[(stated["case"] == case) & (stated["class"] == name)].set_index("algorithm")
        first, other = cell["volume_ref_ml"].idxmin(), cell["volume_ref_ml"].idxmax()
        raise BenchmdError(
            f"{seen[first].source} and {seen[other].source} were scored against two references: "
            f"{name} of {case} has {low[case, name]:g} mL and {high[case, name]:g} mL, and "
            f"{count_of(int(apart.sum()), 'volume')} differ. Score one again."
        )


def _tolerances(algorithm: AlgorithmScores) -> dict[str, Floats]:
    rows = algorithm.rows[algorithm.rows["nsd"].notna()]
    return {str(n): np.sort(r.unique()) for n, r in rows.groupby("class")["tolerance"]}


def _mm(values: Floats) -> str:
    return ", ".join("not stated" if math.isnan(v) else f"{v:g} mm" for v in values)


def _some(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(map(str, names[:MOST_NAMED])) + (f" and {rest} others" if rest > 0 else "")


def unequal(scores: Scores) -> list[str]:
    """Notes on cases that only some algorithms have, and on values that only some have."""
    lines = []
    counts = scores.has.sum(axis=0)
    everything, common = len(scores.cases), int(scores.common.sum())
    if common < everything:
        named = zip(scores.algorithms, counts.tolist(), strict=True)
        fewer = [f"{name} {count:,}" for name, count in named if count < everything]
        lines.append(
            f"common cases: {common:,} of {everything:,} cases were scored by all algorithms; "
            f"fewer than all: {', '.join(fewer)}. Ranks, tests and intervals use the common cases."
        )
    there = ~np.isnan(scores.values("dsc"))
    if nothing := int((~there.any(axis=(1, 2))).sum()):
        lines.append(
            f"without a class: {count_of(nothing, 'case')} of {everything:,} have none of the "
            "classes in the reference, so no score counts there."
        )
    differ = (there != there.max(axis=1, keepdims=True)) & scores.has[:, :, None]
    for place, name in enumerate(scores.algorithms):
        if count := int(differ[:, place].sum()):
            lines.append(
                f"{name}: {count_of(count, 'score')} missing where another algorithm has one: its "
                "own means rest on fewer cases, common ones exclude these."
            )
    return lines
