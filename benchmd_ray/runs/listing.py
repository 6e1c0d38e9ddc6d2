"""The state of runs, as ``benchmd runs`` lists them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from benchmd_ray.errors import Busy, count_of
from benchmd_ray.files.atomic import locked
from benchmd_ray.runs import history
from benchmd_ray.runs.files import LOCK
from benchmd_ray.runs.history import METRICS, last_metrics, read_metrics
from benchmd_ray.runs.index import Index
from benchmd_ray.runs.store import Run

State = Literal["done", "working", "interrupted", "failed", "waiting"]
"""``working``: a process of this machine works on it. ``interrupted``: its last session was stopped
or killed, or runs on another machine. ``waiting``: no session has started.
"""
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Listed:
    """A run with its state."""

    run: Run
    state: State
    at: int
    """Steps or epochs according to its metrics."""
    seconds: float
    reason: str
    score: float = math.nan
    """A transfer's best validation score on its source so far; NaN without one."""

    @property
    def fold(self) -> int | None:
        """Number of the evaluation whose inner catalog a fold run is trained on; else None."""
        number: int | None = self.run.description.get("fold", {}).get("evaluation")
        return number

    @property
    def unit(self) -> str:
        """Unit of ``at``."""
        return "steps" if self.run.description["kind"] == "pretrain" else "epochs"

    @property
    def line(self) -> str:
        text = f"{self.state:<11} {self.at:>7,} {self.unit:<6} {self.seconds:>9,.0f} s  "
        scored = not math.isnan(self.score)
        metric = self.run.modality.task.selected_by.upper() if scored else ""
        text += f"{metric:<5} {self.score:.3f}  " if scored else " " * len("AUROC 0.000  ")
        which = f"seed {self.run.description['seed']}" if self.fold is None else f"fold {self.fold}"
        if held_out := self.run.description.get("held_out_fold"):
            which += f", fold {held_out['number']} of the dataset held out"
        return "  ".join(filter(None, (text + self.run.folder.name, which, self.reason)))

    @property
    def data(self) -> dict[str, Any]:
        """Data for programs; times in seconds."""
        about = self.run.description
        names = ("kind", "modality", "source", "policy", "technique", "setting", "protocol", "seed")
        progress = {
            name: getattr(self, name)
            for name in ("fold", "state", "at", "unit", "seconds", "reason")
        }
        score = {"validation_score": self.score, "metric": self.run.modality.task.selected_by}
        folder = str(self.run.folder)
        return {"run": folder, **{name: about[name] for name in names}, **progress, **score}


def listed(run: Run, index: Index | None = None) -> Listed:
    """The state of a run, from its folder."""
    at, score = _reached(run, index or Index())
    if run.finished:
        return Listed(run, "done", at, float(run.done.get("seconds", 0.0)), "", score)
    lines = history.read_history(run.folder)
    last = lines[-1] if lines else {"event": ""}
    seconds, reason = history.seconds_worked(run.folder), str(last.get("reason", ""))
    if _held(run):
        return Listed(run, "working", at, seconds, "", score)
    if last["event"] == "failed" and reason != history.INTERRUPTED:
        return Listed(run, "failed", at, seconds, reason, score)
    return Listed(run, "interrupted" if lines else "waiting", at, seconds, "", score)


def counts(runs: Sequence[Listed], damaged: int = 0) -> str:
    """``12 runs: 10 done, 1 failed, 1 damaged``; ``damaged`` runs are not among ``runs``."""
    parts: dict[str, int] = {s: sum(run.state == s for run in runs) for s in STATES}
    parts["damaged"] = damaged
    states = ", ".join(f"{n:,} {state}" for state, n in parts.items() if n)
    number = count_of(len(runs) + damaged, "run")
    return f"{number}: {states}" if states else number


def _reached(run: Run, index: Index) -> tuple[int, float]:
    """Steps or epochs done, and the best score as in `Listed`."""
    if run.description["kind"] != "transfer":
        last = last_metrics(run.folder)
        return 0 if last is None else int(last["done"]), math.nan
    best = f"validation_{run.modality.task.selected_by}"
    known = index.known(run.folder, METRICS, lambda: _of_metrics(read_metrics(run.folder)))
    return known["done"], known["best"].get(best, math.nan)


def _of_metrics(lines: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The last epoch of a run's metrics, and the highest value of each validation score."""
    best: dict[str, float] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith("validation_") and not math.isnan(value):
                best[name] = max(float(value), best.get(name, -math.inf))
    return {"done": int(lines[-1]["done"]) if lines else 0, "best": best}


def _held(run: Run) -> bool:
    if not (run.folder / LOCK).is_file():
        return False
    try:
        with locked(run.folder / LOCK, "the run", shared=True):
            return False
    except Busy:
        return True
