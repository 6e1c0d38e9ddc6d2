"""The state of runs, as ``benchmd runs`` lists them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from benchmd_ray.errors import Busy, count_of
from benchmd_ray.files.atomic import locked
from benchmd_ray.runs import history
from benchmd_ray.runs.files import LOCK
from benchmd_ray.runs.history import last_metrics, read_metrics
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

    @property
    def fold(self) -> int | None:
        """Number of the evaluation whose inner catalog a fold run is trained on; else None."""
        number: int | None = self.run.description.get("fold", {}).get("evaluation")
        return number

    @property
    def unit(self) -> str:
        """Unit of ``at``."""
        return "steps" if self.run.description["kind"] == "pretrain" else "epochs"

    @cached_property
    def score(self) -> float:
        """A transfer's best validation score on its source so far; NaN without one."""
        if self.run.description["kind"] != "transfer":
            return math.nan
        name = f"validation_{self.run.modality.task.selected_by}"
        scores = (float(line.get(name, math.nan)) for line in read_metrics(self.run.folder))
        return max((score for score in scores if not math.isnan(score)), default=math.nan)

    @property
    def line(self) -> str:
        text = f"{self.state:<11} {self.at:>7,} {self.unit:<6} {self.seconds:>9,.0f} s  "
        scored = not math.isnan(self.score)
        metric = self.run.modality.task.selected_by.upper() if scored else ""
        text += f"{metric:<5} {self.score:.3f}  " if scored else " " * len("AUROC 0.000  ")
        which = f"seed {self.run.settings.seed}" if self.fold is None else f"fold {self.fold}"
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


def listed(run: Run) -> Listed:
    """The state of a run, from its folder."""
    if run.finished:
        done = run.done
        return Listed(run, "done", _reached(run), float(done.get("seconds", 0.0)), "")
    lines = history.read_history(run.folder)
    last = lines[-1] if lines else {"event": ""}
    seconds, reason = history.seconds_worked(run.folder), str(last.get("reason", ""))
    if _held(run):
        return Listed(run, "working", _reached(run), seconds, "")
    if last["event"] == "failed" and reason != history.INTERRUPTED:
        return Listed(run, "failed", _reached(run), seconds, reason)
    return Listed(run, "interrupted" if lines else "waiting", _reached(run), seconds, "")


def counts(runs: Sequence[Listed], damaged: int = 0) -> str:
    """``12 runs: 10 done, 1 failed, 1 damaged``; ``damaged`` runs are not among ``runs``."""
    parts: dict[str, int] = {s: sum(run.state == s for run in runs) for s in STATES}
    parts["damaged"] = damaged
    states = ", ".join(f"{n:,} {state}" for state, n in parts.items() if n)
    number = count_of(len(runs) + damaged, "run")
    return f"{number}: {states}" if states else number


def _reached(run: Run) -> int:
    last = last_metrics(run.folder)
    return 0 if last is None else int(last["done"])


def _held(run: Run) -> bool:
    if not (run.folder / LOCK).is_file():
        return False
    try:
        with locked(run.folder / LOCK, "the run", shared=True):
            return False
    except Busy:
        return True
