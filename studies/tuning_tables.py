"""What searches gained over their start, pooled over tasks, as tables in Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.scores.intervals import StandardError, difference_interval
from benchmd_ray.scores.seeds import error_over_seeds
from studies.tuning_tasks import STRATEGIES, TASKS

DRAWS = 1000
"""Resamples of patients."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Gained:
    """What a search gained over its start on what it did not see."""

    search: str
    values: dict[str, float]
    """By scored split: tuned minus start in AUROC, the mean over seeds; 0 where it is kept."""
    drawn: list[float]
    """Their mean in resamples of the patients, none where the start is kept: (draws,)."""
    start: dict[str, float]
    kept: bool
    device_seconds: float
    start_seconds: float
    """Device seconds of an evaluation of the start: where a machine had other work, it is longer,
    and as many device seconds are worth less."""
    trials: int
    evaluations: int

    @property
    def mean(self) -> float:
        """Over the scored splits."""
        return float(np.mean(list(self.values.values())))


@dataclass(frozen=True)
class Difference:
    """A difference in AUROC on one task, in each repetition."""

    source: str
    """Of the task, which shares patients, seeds and pretraining with other tasks of it."""
    values: Floats
    """(repetitions,)."""
    draws: Floats
    """In the same resamples of the patients, (repetitions, draws)."""

    @classmethod
    def of(cls, task: str, repetitions: Sequence[Gained]) -> Difference:
        """Tuned minus start."""
        draws = [gain.drawn or [0.0] * DRAWS for gain in repetitions]
        values = [one.mean for one in repetitions]
        return cls(TASKS[task].source, np.array(values), np.array(draws))

    def minus(self, other: Difference) -> Difference:
        """What one gained more than the other, in the same repetitions."""
        return Difference(self.source, self.values - other.values, self.draws - other.draws)


def pooled(of_tasks: Sequence[Difference]) -> tuple[float, float, float]:
    """Mean difference over tasks, each counting the same, with its 95 % interval.

    The variance is the one of several seeds on the same patients (`scores.seeds`), with repetitions
    for seeds. Sources are independent: their parts add up, and the degrees of freedom of the spread
    between repetitions are Satterthwaite's. NaN where nothing varies, and of a single repetition,
    which does not show how searches differ.
    """
    sources = dict.fromkeys(task.source for task in of_tasks)
    patients = 0.0
    spreads: list[tuple[float, float]] = []
    for source in sources:
        of_source = [task for task in of_tasks if task.source == source]
        values = np.sum([task.values for task in of_source], axis=0) / len(of_tasks)
        draws = np.sum([task.draws for task in of_source], axis=0) / len(of_tasks)
        error = error_over_seeds(values, draws[:, ~np.isnan(draws).any(axis=0)], math.inf)
        (of_patients, _), *rest = error.parts or ((math.nan, math.inf),)
        patients += of_patients
        spreads += rest
    spread = sum(variance for variance, _ in spreads)
    mean = float(np.mean([task.values.mean() for task in of_tasks]))
    if not patients + spread > 0 or any(len(task.values) == 1 for task in of_tasks):
        return mean, math.nan, math.nan
    freedom = math.inf
    if spread:
        freedom = spread**2 / sum(variance**2 / own for variance, own in spreads)
    parts = ((patients, math.inf), (spread, freedom))
    low, high = difference_interval(mean, StandardError(math.sqrt(patients + spread), parts))
    return mean, low, high


def stated(interval: tuple[float, float, float]) -> str:
    """A difference with its interval, for a table."""
    mean, low, high = interval
    return f"{mean:+.3f} –" if math.isnan(low) else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def report(folder: Path, strategies: Sequence[str] = ()) -> str:
    """Tables of what is done, in Markdown: of repetitions that all strategies have of a task.

    Args:
        folder: What is done, a file for each search.
        strategies: Those to compare; else all that there are.
    """
    notes, excluded = compared_notes(folder, strategies)
    gains = gains_of(notes)
    lines = [
        f"{notes[0]['minutes']:g} minutes of two devices a search. Version of the search: "
        + ", ".join(f"{n} {' and '.join(v)}" for n, v in _versions(notes).items())
        + ". Excluded, as not all strategies and tasks of a source have them: "
        + f"{excluded} searches.",
        "",
        "| task | strategy | repetitions | start | tuned − start | each repetition "
        "| kept the start | device seconds | of an evaluation of the start | trials "
        "| evaluations |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        for strategy, of_tasks in gains.items():
            if task in of_tasks:
                lines.append(_row(task, strategy, of_tasks[task]))
    lines += [
        "",
        "| strategy | tasks | searches | same search as new "
        "| tuned − start [95 %] | least of a task | minus new [95 %] |",
        "|---|---|---|---|---|---|---|",
        *(_pooled_row(strategy, gains) for strategy in gains),
    ]
    return "\n".join(lines) + "\n"


def compared_notes(folder: Path, strategies: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """Notes of the repetitions that all strategies have of a task, and how many are excluded.

    Raises:
        SystemExit: There are none, or they are of other minutes.
    """
    notes = [json.loads(path.read_text("utf-8")) for path in folder.glob("[!.]*-*.json")]
    notes = [note for note in notes if note["strategy"] in (strategies or STRATEGIES)]
    if len({note["minutes"] for note in notes}) != 1:
        raise SystemExit(f"{folder} has no searches of equal minutes.")
    places: dict[str, set[tuple[str, int]]] = {}
    for note in notes:
        places.setdefault(note["strategy"], set()).add((note["task"], note["repetition"]))
    common = set.intersection(*places.values())
    for task, repetition in sorted(common):  # tasks of a source are pooled by repetition
        of_source = [t for t in {name for name, _ in common} if _source(t) == _source(task)]
        if any((same_source, repetition) not in common for same_source in of_source):
            common.discard((task, repetition))
    if not common:
        raise SystemExit(f"{folder} has no repetition of a task that all strategies have.")
    compared = [note for note in notes if (note["task"], note["repetition"]) in common]
    return compared, len(notes) - len(compared)


def gains_of(notes: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[Gained]]]:
    """What searches gained by strategy and task, repetitions in their order."""
    gains: dict[str, dict[str, list[Gained]]] = {}
    for strategy in STRATEGIES:
        for note in sorted(notes, key=lambda note: int(note["repetition"])):
            if note["strategy"] == strategy:
                gain = Gained(**{field.name: note[field.name] for field in fields(Gained)})
                gains.setdefault(strategy, {}).setdefault(note["task"], []).append(gain)
    return gains


def _pooled_row(strategy: str, gains: dict[str, dict[str, list[Gained]]]) -> str:
    """A strategy's row of the table of all tasks."""
    tasks = gains[strategy]
    differences = {task: Difference.of(task, of_task) for task, of_task in tasks.items()}
    least = min((float(difference.values.mean()), t) for t, difference in differences.items())
    searches = [gain.search for of_task in tasks.values() for gain in of_task]
    same = more = "–"
    if strategy != "new" and "new" in gains:
        of_new = {gain.search for of_task in gains["new"].values() for gain in of_task}
        same = str(sum(search in of_new for search in searches))
        over_new = [
            difference.minus(Difference.of(task, gains["new"][task]))
            for task, difference in differences.items()
        ]
        more = stated(pooled(over_new))
    return (
        f"| {strategy} | {len(tasks)} | {len(searches)} | {same} "
        f"| {stated(pooled([*differences.values()]))} | {least[0]:+.3f} ({least[1]}) | {more} |"
    )


def _versions(notes: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Versions of the search by strategy."""
    versions_of: dict[str, set[str]] = {name: set() for name in STRATEGIES}
    for note in notes:
        versions_of[note["strategy"]].add(str(note["version"]))
    return {name: sorted(versions) for name, versions in versions_of.items() if versions}


def _row(task: str, strategy: str, repetitions: Sequence[Gained]) -> str:
    means = [gain.mean for gain in repetitions]
    start = np.mean([np.mean(list(one.start.values())) for one in repetitions])
    cells = [
        task,
        strategy,
        str(len(repetitions)),
        f"{start:.3f}",
        stated(pooled([Difference.of(task, repetitions)])),
        ", ".join(f"{mean:+.3f}" for mean in means),
        f"{sum(one.kept for one in repetitions)} of {len(repetitions)}",
        f"{np.mean([one.device_seconds for one in repetitions]):.0f}",
        ", ".join(f"{one.start_seconds:.3g}" for one in repetitions),
        f"{np.mean([one.trials for one in repetitions]):.0f}",
        f"{np.mean([one.evaluations for one in repetitions]):.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _source(task: str) -> str:
    return TASKS[task].source
