"""Adapters of a study to Ray Tune: the next job, reactions to results, and the end.

A trial of Ray Tune is a job here: one or more evaluations of a trial of the study.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray.tune import Stopper
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from benchmd_ray.errors import Transient
from benchmd_ray.files.atomic import remove
from benchmd_ray.tuning.limits import LOSSES, LOST_NODES, Ended, Limits
from benchmd_ray.tuning.stages import TrialContext
from benchmd_ray.tuning.trial_log import Job


class _NotKept:
    """Ray Tune pickles its objects now and then, but nothing is ever restored from them."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Jobs(_NotKept, Searcher):  # type: ignore[misc]
    """The study's jobs, interrupted ones first."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def suggest(self, trial_id: str) -> Any:
        """The next job as a configuration, FINISHED at the end, or None to be asked again later."""
        limits = self._limits
        with _noted(limits):
            job = limits.start_next()
            if job is not None:
                whole = job.number in limits.study.whole
                gpus = 1.0 if whole else limits.place.gpus
                unfinished = [other.number for other in limits.study.unfinished()]
                return {**vars(job), "whole": whole, "gpus": gpus, "unfinished": unfinished}
            drained = limits.draining and not limits.running
            waits = limits.running or limits.waiting or limits.full
            if waits and not drained and not limits.out_of_time:
                return None
        return Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Does nothing: `Judge` reports to the study."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the study stores itself."""
        open(checkpoint_path, "wb").close()

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: Ray Tune is never restored."""


class Judge(_NotKept, FIFOScheduler):  # type: ignore[misc]
    """Reports results to the study, and stops trials that ended or fall behind.

    A lost job is restarted as a new job; Ray Tune never restarts one.
    """

    def __init__(self, limits: Limits, ended: Ended, work: TrialContext) -> None:
        super().__init__()
        self._limits, self._ended, self._work = limits, ended, work
        self._newest: dict[int, tuple[int, int]] = {}
        """Newest evaluation and step of each trial."""
        self._losses: dict[tuple[int, bool], int] = {}
        """Processes that each trial has lost since then, and whether with their nodes."""
        self._jobs: dict[int, Any] = {}
        """Of each trial at work, what Ray Tune calls so."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Note the job of a trial."""
        self._jobs[int(trial.config["number"])] = trial

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The next job; also detects jobs that Ray Tune failed to start in a warm process.

        This happens silently if the process did not release its last job in time.
        """
        for number in sorted(self._limits.running):
            job = self._jobs.get(number)
            if job is not None and job.status == Trial.ERROR:
                self._lost(job, "its process could not start", by_node=False)
        return super().choose_trial_to_run(tune_controller)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Handle a result; nested values are flattened, with names joined by slashes."""
        goes_on = False
        with _noted(self._limits):
            number = int(trial.config["number"])
            if result.get("lost"):
                self._lost(trial, result["failed"], by_node=bool(result.get("away")))
            elif not (result.get("memory") and self._takes_whole(trial)):
                goes_on = self._goes_on(number, result)
            reached = (int(result.get("evaluation", 0)), int(result.get("step", 0)))
            if goes_on and reached > self._newest.get(number, (-1, 0)):
                self._newest[number] = reached
                for by_node in (False, True):
                    self._losses.pop((number, by_node), None)
        return str(TrialScheduler.CONTINUE if goes_on else TrialScheduler.STOP)

    def _takes_whole(self, trial: Any) -> bool:
        """Restart a trial that ran out of memory on a shared GPU, on a whole one."""
        if trial.config["whole"] or not 0 < self._limits.place.gpus < 1:
            return False
        number = int(trial.config["number"])
        reason = "it ran out of memory on its share of a GPU and is restarted on a whole one"
        self._limits.lost(number, reason)
        self._limits.study.worked(number, self._seconds(trial))  # on its share
        self._limits.study.whole.add(number)
        self._again(trial)
        return True

    def _goes_on(self, number: int, result: dict[str, Any]) -> bool:
        study, seconds = self._limits.study, float(result["seconds"])
        if result["failed"] and result.get("trouble"):
            reason = result["failed"].rstrip(".")
            self._limits.trouble = Transient(
                f"trial {number} could not run: {reason}. When that is fixed, run the same command "
                "again: it resumes with this trial."
            )
            return False
        if result["failed"]:
            study.ended(number, seconds=seconds, reason=result["failed"])
        elif result["whole"]:
            prefix = "scores/"
            scores = {k.removeprefix(prefix): v for k, v in result.items() if prefix in k}
            sound = study.evaluated(number, int(result["evaluation"]), scores, seconds)
            if sound and not result["complete"]:
                self._limits.look()
                return True
        elif study.reported(number, int(result["step"]), float(result["score"]), seconds):
            study.ended(number, seconds=seconds)
        else:
            self._limits.look()
            return True
        self._finish(number)
        return False

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """A trial's process was lost."""
        error_text, last = last_error(trial), last_reported(trial)
        if GONE.search(error_text) or last.get("node") in dead_nodes():
            begun = "seconds" in last
            reason = "its node was lost" if begun else "its node was lost before it started"
            self._lost(trial, reason, by_node=True)
        else:
            self._lost(trial, "its process was lost", by_node=False)

    def _lost(self, trial: Any, reason: str, *, by_node: bool) -> None:
        """Restart a trial in another process, unless it was lost too often.

        ``by_node``: whether its node or storage failed.
        """
        number, limits = int(trial.config["number"]), self._limits
        with _noted(limits):
            limits.lost(number, reason)
            losses = self._losses[number, by_node] = self._losses.get((number, by_node), 0) + 1
            # Resources that Ray Train reserved for its workers are freed when nothing runs any
            # more.
            limits.draining |= limits.place.workers > 1
            if losses < (LOST_NODES if by_node else LOSSES):
                self._again(trial)
                return
            limits.study.ended(number, seconds=self._seconds(trial), reason=f"{reason}, {OFTEN}")
            self._finish(number)

    @staticmethod
    def _seconds(trial: Any) -> float:
        return max(float(trial.config["seconds"]), float(last_reported(trial).get("seconds", 0.0)))

    def _again(self, trial: Any) -> None:
        limits, number = self._limits, int(trial.config["number"])
        limits.running.discard(number)
        left = limits.study.left(number)
        if not left:  # it was lost after its last report
            self._finish(number)
            return
        again = Job(number, dict(trial.config["values"]), left, self._seconds(trial))
        limits.waiting.insert(0, again)
        limits.look()

    def _finish(self, number: int) -> None:
        self._limits.running.discard(number)
        self._limits.look()
        with suppress(OSError):  # the next session removes what is left
            remove(self._work.trial_folder(number))
        self._ended(number)


OFTEN = "more than once"
GONE = re.compile(
    "node (has died|was terminated|died|went away)|NodeDied|unavailable", re.IGNORECASE
)
"""Ray's words for a process that was lost with its node or cannot be reached."""
LAST_CHARACTERS = 10_000


def last_reported(trial: Any) -> dict[str, Any]:
    """A trial's last report; empty before it has any."""
    return dict(trial.run_metadata.last_result or {})


def last_error(trial: Any) -> str:
    """Ray Tune's text of a trial's last error."""
    path = trial.error_file
    if path is None or not Path(path).is_file():
        return ""
    text = Path(path).read_text("utf-8", errors="replace")[-LAST_CHARACTERS:]
    return text.rpartition("Failure #")[2]


def dead_nodes() -> set[str]:
    """Ray's identifiers of lost nodes."""
    import ray

    if not ray.is_initialized():
        return set()
    return {node["NodeID"] for node in ray.nodes() if not node["Alive"]}


@contextmanager
def _noted(limits: Limits) -> Iterator[None]:
    """Let an error end the search, since Ray Tune would treat it as a lost trial."""
    try:
        yield
    except Exception as error:
        limits.trouble = limits.trouble or error


class Watch(_NotKept, Stopper):  # type: ignore[misc]
    """Ends the search when it is halted or its hours are over, and shows the progress."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No single result ends the search."""
        return False

    def stop_all(self) -> bool:
        """Whether to end all trials; running ones stay unfinished."""
        limits = self._limits
        with _noted(limits):
            limits.look_around()
        limits.shown.show(limits.ended, limits.text)
        return limits.out_of_time
