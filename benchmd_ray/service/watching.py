"""Terminal view of a store: runs in progress, failures, searches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmd_ray.console.progress import duration
from benchmd_ray.errors import BenchmdError, Transient, count_of
from benchmd_ray.files.atomic import digest
from benchmd_ray.files.integrity import StoredItems
from benchmd_ray.runs.files import RESULT, TRIALS, predictions_of
from benchmd_ray.runs.history import read_metrics
from benchmd_ray.runs.index import indexed
from benchmd_ray.runs.listing import Listed, counts, listed
from benchmd_ray.runs.store import Run, read_stores
from benchmd_ray.tuning.families import FAMILY
from benchmd_ray.tuning.records import SearchRecord, read_searches

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24
"""Characters of a sparkline."""
FAILURES = 8
"""Most failed runs that are listed."""
OTHERS = ("done", "per_second", "loss")
"""Values of a line of metrics with a special display."""


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Values as bars from smallest to largest, at most `width`; gaps for non-finite values."""
    parts = np.array_split(np.array(values, float), min(width, len(values))) if values else []
    means = [
        part[np.isfinite(part)].mean() if np.isfinite(part).any() else math.nan for part in parts
    ]
    finite = [mean for mean in means if not math.isnan(mean)]
    low, span = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)

    def bar(mean: float) -> str:
        if math.isnan(mean):
            return " "
        share = (mean - low) / span if span else 0.0
        return BARS[round(share * (len(BARS) - 1))]

    return "".join(map(bar, means))


def watched(stores: Sequence[Path]) -> list[str]:
    """Lines on the activity in stores of runs and searches.

    Raises:
        BenchmdError: A folder has neither a run nor a search.
    """
    runs: list[Listed] = []
    damaged = 0
    with indexed() as index:
        for store in stores:
            try:
                stored = read_stores([store], index)  # this also mirrors searches of an address
            except BenchmdError as error:
                if isinstance(error, Transient) or not read_searches([store]).found:
                    raise
            else:
                runs += [listed(run, index) for run in stored.found]
                damaged += len(stored.damaged)
    lines = [counts(runs, damaged)]
    for title, parts in (
        ("working", _working(runs)),
        ("failed", _failed(runs)),
        ("searches", _searched(read_searches(stores))),
    ):
        if rows := list(parts):
            lines += ["", title, *(f"  {line}" for line in rows)]
    return lines


def _working(runs: Sequence[Listed]) -> Iterator[str]:
    working = [row for row in runs if row.state == "working"]
    width = max((len(_name(row.run)) for row in working), default=0)
    for row in working:
        yield f"{_name(row.run):<{width}}  {_far(row.run)}"


def _name(run: Run) -> str:
    """``ptb-xl mae pretrain, seed 1``, ``ptb-xl mae linear, tuned, fold 3``."""
    about, seed = run.description, run.settings.seed
    name = f"{about['source']} {about['technique']} {about['setting']}"
    name += ", tuned" if run.settings.tuned else ""
    if "fold" in about:
        return f"{name}, fold {about['fold']['evaluation']}"
    return name + (f", seed {seed}" if seed else "")


def _far(run: Run) -> str:
    """Progress of a run, its loss curve, and its time left."""
    pretrains = run.description["kind"] == "pretrain"
    total = run.settings.pretrain.steps if pretrains else run.settings.transfer.epochs
    unit = "steps" if pretrains else "epochs"
    lines = read_metrics(run.folder)
    if not lines:
        return f"0/{total:,} {unit}, starting"
    last, parts = lines[-1], []
    done, rate = int(last["done"]), last.get("per_second", 0.0)
    parts.append(f"{done:,}/{total:,} {unit} ({min(1.0, done / max(1, total)):.0%})")
    losses = [line["loss"] for line in lines if "loss" in line]
    if losses:
        parts.append(f"loss {sparkline(losses)} {losses[-1]:.4g}")
    parts += [f"{name} {value:.4g}" for name, value in last.items() if name not in OTHERS]
    if rate > 0 and done < total:
        parts.append(f"{rate:.3g}/s, {duration((total - done) / rate)} left")
    return ", ".join(parts)


def _failed(runs: Sequence[Listed]) -> Iterator[str]:
    failed = [row for row in runs if row.state == "failed"]
    for row in failed[:FAILURES]:
        yield f"{_name(row.run)} ({row.run.folder.name}): {row.reason}"
    if len(failed) > FAILURES:
        yield f"and {len(failed) - FAILURES:,} more: benchmd list --state failed names them"


def _searched(searches: StoredItems[SearchRecord]) -> Iterator[str]:
    for record in searches.found:
        yield f"{record.name}: {_of_search(record)}"
    yield from searches.notes


def _of_search(record: SearchRecord) -> str:
    """``37 trials (5 stopped, 32 complete) of 3 families, 58 evaluations; best inner AUROC …``."""
    trials, metric = record.trials, f"inner {record.metric.upper()}"
    of_states = ", ".join(f"{n:,} {state}" for state, n in record.counts.items() if n)
    text = f"{count_of(len(trials), 'trial')} ({of_states})"
    if len(record.families) > 1:
        text += f" of {len(record.families)} families"
    text += f", {count_of(int(trials['evaluations'].sum()), 'evaluation')}"
    if record.best == 0:
        return f"{text}; it keeps its start, {metric} {record.first_value:.3f}"
    if record.best is not None:
        text += f"; trial {record.best} ({record.family_of(record.best).name}) was chosen"
        return f"{text}, {metric} {record.value:.3f} (start {record.first_value:.3f})"
    scored = trials[trials["value"].notna()]
    others = scored[scored["number"] != 0]
    if others.empty:
        return text
    best = others[others["evaluations"] == others["evaluations"].max()].nlargest(1, "value").iloc[0]
    first = scored.loc[scored["number"] == 0, "value"]
    start = f", start {first.iloc[0]:.3f}" if len(first) else ""
    return (
        f"{text}; best {metric} so far {best['value']:.3f} "
        f"(trial {best['number']}, {best[FAMILY]}{start})"
    )


def state_of(paths: Sequence[Path]) -> str:
    """A state that changes whenever a report on these runs and stores would change."""
    state: list[tuple[object, ...]] = []
    stored = read_stores([*paths])
    for run in stored.found:
        state.append((run.digest, run.finished))
        for path in predictions_of(run.folder) if run.finished else ():
            file = path.stat()
            state.append((run.digest, path.name, file.st_size, file.st_mtime_ns))
    searches = read_searches([*paths])
    for search in searches.found:
        for name in (TRIALS, RESULT):
            path = search.folder / name
            if path.is_file():
                file = path.stat()
                state.append((search.name, name, file.st_size, file.st_mtime_ns))
    state.append((sorted(map(str, stored.damaged)), sorted(map(str, searches.damaged))))
    return digest(state)
