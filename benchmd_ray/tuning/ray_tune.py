"""What Ray Tune asks of a search: what to do next, what to make of a result, when to end.

What Ray Tune calls a trial is a job here: some evaluations of a trial of the study.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ray.tune import Stopper
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from benchmd_ray.errors import Transient
from benchmd_ray.files import remove
from benchmd_ray.tuning.limits import LOSSES, Ended, Limits
from benchmd_ray.tuning.study import Job
from benchmd_ray.tuning.trial import Work


class _NotKept:
    """Ray Tune writes its objects away now and then, and nothing is ever read back from that."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Jobs(_NotKept, Searcher):  # type: ignore[misc]
    """The study's jobs, those first that an earlier session was at."""

    def __init__(self, limits: Limits, queue: list[Job]) -> None:
        super().__init__()
        self._limits, self._queue = limits, queue

    def suggest(self, trial_id: str) -> Any:
        """The next job as a configuration, the word that there is none, or None: ask later."""
        limits = self._limits
        with _noted(limits):
            job = None
            if self._queue and not limits.out_of_time:
                job = self._queue.pop(0)
            elif not limits.out_of_time:
                job = limits.next_job()
            if job is not None:
                limits.running.add(job.number)
                limits.look()
                return dict(vars(job))
            if limits.running and not limits.out_of_time:
                return None
        return Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing: `Judge` has reported to the study."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study is kept by itself."""
        open(checkpoint_path, "wb").close()

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: Ray Tune is never restored."""


class Judge(_NotKept, FIFOScheduler):  # type: ignore[misc]
    """Tells the study what trials report, and stops those that ended or that it gives up."""

    def __init__(self, limits: Limits, ended: Ended, work: Work) -> None:
        super().__init__()
        self._limits, self._ended, self._work = limits, ended, work
        self._newest: dict[int, tuple[int, int]] = {}
        """Newest evaluation and step of each trial."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Take a result; flat, as Ray Tune flattens nested values with slashes."""
        goes_on = False
        with _noted(self._limits):
            number = int(trial.config["number"])
            goes_on = self._goes_on(number, result)
            reached = (int(result.get("evaluation", 0)), int(result.get("step", 0)))
            if goes_on and reached > self._newest.get(number, (-1, 0)):
                self._newest[number] = reached
                trial.run_metadata.num_failures = 0  # nodes may go as often as they like
        return str(TrialScheduler.CONTINUE if goes_on else TrialScheduler.STOP)

    def _goes_on(self, number: int, result: dict[str, Any]) -> bool:
        study, seconds = self._limits.study, float(result["seconds"])
        if result["failed"] and result.get("trouble"):
            self._limits.trouble = Transient(
                f"trial {number} could not work: {result['failed']}. When that is mended, run the "
                "same command again: it resumes with this trial."
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
        """A trial's process was lost; Ray Tune starts it again unless that was too often."""
        number, before = int(trial.config["number"]), float(trial.config["seconds"])
        seconds = max(before, float((trial.last_result or {}).get("seconds", 0.0)))
        with _noted(self._limits):
            self._limits.lost(number, "its process or its node was lost")
        if trial.num_failures < LOSSES:
            left = self._limits.study.left(number)
            trial.config["seconds"] = seconds
            trial.config["evaluations"] = left or trial.config["evaluations"]
            return
        with _noted(self._limits):
            reason = "its process was lost, more than once"
            self._limits.study.ended(number, seconds=seconds, reason=reason)
            self._finish(number)

    def _finish(self, number: int) -> None:
        self._limits.running.discard(number)
        self._limits.look()
        with suppress(OSError):  # the next session removes what is left
            remove(self._work.trial_folder(number))
        self._ended(number)


@contextmanager
def _noted(limits: Limits) -> Iterator[None]:
    """An error in here ends the search as what it is; Ray Tune would take it for a lost trial."""
    try:
        yield
    except Exception as error:
        limits.trouble = limits.trouble or error


class Watch(_NotKept, Stopper):  # type: ignore[misc]
    """Ends the search when it is halted or its hours are over, and shows how far it is."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Never by a single trial's result."""
        return False

    def stop_all(self) -> bool:
        """Whether to end all trials; those at work stay unfinished."""
        limits = self._limits
        limits.shown.show(limits.ended, limits.text)
        return limits.out_of_time
