"""Tables of `studies.tuning`: differences to the start by source, and their means over sources."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

STATED = "all families"
"""Strategy of the stated contrast."""
Floats = npt.NDArray[np.float64]
Notes = Mapping[str, Mapping[tuple[str, int], dict[str, Any]]]
"""Notes by strategy, and by task and repetition."""


def report(path: Path) -> str:
    """Tables in Markdown: the stated contrast, then all strategies on the label sets of all.

    Raises:
        SystemExit: There are none.
    """
    notes = read_notes(path)
    stated = {STATED: notes[STATED]} if STATED in notes else {}
    both = [table(stated)] if stated and len(notes) > 1 else []
    return "\n".join([*both, table(compared(notes, path))])


def table(notes: Notes) -> str:
    strategies, cells = [*notes], {name: by_source(of_name) for name, of_name in notes.items()}
    sources = [*cells[strategies[0]]]
    lines = [
        f"{len(notes[strategies[0]])} label sets of {len(sources)} sources. AUROC on the judge; "
        "differences of the ensembles of five fold models to that of the start.",
        "",
        "| source | start | " + " | ".join(strategies) + " |",
        "|---" * (len(strategies) + 2) + "|",
    ]
    starts = by_source(notes[strategies[0]], "start")
    for source in sources:
        values = " | ".join(f"{cells[name][source]:+.3f}" for name in strategies)
        lines.append(f"| {source} | {starts[source]:.3f} | {values} |")
    means = " | ".join(interval(cells[name]) for name in strategies)
    lines += [f"| **mean [95 %]** | {np.mean([*starts.values()]):.3f} | {means} |", ""]
    lines += [
        "| strategy | one model | minus all families | keeps the start | worse by over 0.01 "
        "| own score of the choice, minus the start's | random kernels, pretrained, untrained |",
        "|---|---|---|---|---|---|---|",
        *(strategy_row(name, notes, cells) for name in strategies),
    ]
    return "\n".join(lines) + "\n"


def strategy_row(name: str, notes: Notes, cells: Mapping[str, Mapping[str, float]]) -> str:
    of_name = notes[name].values()
    over = {s: cells[name][s] - cells[STATED][s] for s in cells[name]} if STATED in cells else {}
    families = [note["family"].split()[0] for note in of_name]
    shares = [families.count(encoder) for encoder in ("kernels", "pretrained", "untrained")]
    return " | ".join(
        (
            f"| {name}",
            interval(by_source(notes[name], "single")),
            "–" if name == STATED or not over else interval(over),
            f"{sum(note['keeps start'] for note in of_name)} of {len(of_name)}",
            str(sum(gain(note) < -0.01 for note in of_name)),
            f"{np.mean([note['claimed'] for note in of_name]):+.3f}",
            ", ".join(map(str, shares)) + " |",
        )
    )


def read_notes(path: Path) -> Notes:
    notes: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for note in json.loads(path.read_text("utf-8")):
        notes.setdefault(note["strategy"], {})[note["task"], note["repetition"]] = note
    return notes


def compared(notes: Notes, path: Path) -> Notes:
    """Notes of the label sets that all strategies of a file have searched."""
    common = set.intersection(*(set(of_strategy) for of_strategy in notes.values() or [()]))
    if not common:
        raise SystemExit(f"{path} has no label set that all of its strategies have searched.")
    order = sorted(notes, key=lambda name: (name != STATED, name))
    return {name: {key: notes[name][key] for key in sorted(common)} for name in order}


def gain(note: Mapping[str, Any], models: str = "ensemble") -> float:
    return float(note["tuned"][models] - note["start"][models])


def by_source(notes: Mapping[Any, dict[str, Any]], value: str = "ensemble") -> dict[str, float]:
    """Mean of each source: of its tasks' means over repetitions.

    ``value``: the difference of ensembles or of single models, or the AUROC of the ``start``.
    """
    tasks: dict[tuple[str, str], list[float]] = {}
    for note in notes.values():
        number = note["start"]["ensemble"] if value == "start" else gain(note, value)
        tasks.setdefault((note["source"], note["task"]), []).append(number)
    sources: dict[str, list[float]] = {}
    for (source, _), values in tasks.items():
        sources.setdefault(source, []).append(float(np.mean(values)))
    return {source: float(np.mean(values)) for source, values in sources.items()}


def interval(sources: Mapping[str, float]) -> str:
    """Mean over sources with Student's 95 % interval; sources are independent, each counts once."""
    mean, half = mean_and_half(list(sources.values()))
    return (
        f"{mean:+.3f} –"
        if math.isnan(half)
        else f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"
    )


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of the width of its 95 % interval; NaN of fewer than two values."""
    if len(values) < 2:
        return float(np.mean(values)), math.nan
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)), float(student.ppf(0.975, len(values) - 1)) * error
