"""Adapters of a study to Ray Tune: the next job, reactions to results and losses, and the end.

What Ray Tune cannot do is done here: proposals of the study, jobs as many as the cluster has room
for now, jobs of a killed session, and a whole GPU for a job whose share was too small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray.tune import Stopper
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from benchmd_ray.errors import Transient
from benchmd_ray.files.atomic import remove
from benchmd_ray.tuning.ladder import START
from benchmd_ray.tuning.limits import RESTARTS, Ended, Limits
from benchmd_ray.tuning.stages import TrialContext
from benchmd_ray.tuning.trial import Catalogs
from benchmd_ray.tuning.trial_files import job_name

LOST_NODES = 20
"""Lost nodes of a trial that do not count: with more, it may be the reason."""
GONE = re.compile(
    "node (has died|was terminated|died|went away)|NodeDied|unavailable", re.IGNORECASE
)
"""Ray's words for a process that was lost with its node or cannot be reached."""


class _NotKept:
    """Ray Tune pickles its objects now and then, but nothing is ever restored from them."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Jobs(_NotKept, Searcher):  # type: ignore[misc]
    """The study's jobs, interrupted ones first."""

    def __init__(self, limits: Limits, catalogs: Catalogs) -> None:
        super().__init__()
        self._limits, self._catalogs = limits, catalogs

    def suggest(self, trial_id: str) -> Any:
        """The next job as a configuration, FINISHED at the end, or None to be asked again later."""
        limits = self._limits
        with _noted(limits):
            job = limits.start_next()
            if job is not None:
                # The start is its family's settings as they are: what its space states besides,
                # such as an option's default, would be another run than those of its fold models.
                values = {} if job.number == START else job.values
                return vars(job) | {
                    "values": values,
                    "catalogs": self._catalogs(job.evaluation),
                    "keep": job.number == START or job.evaluation > 0,
                    "gpus": 1.0 if job.number in limits.study.whole else limits.place.gpus,
                }
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
    """Reports results to the study, and stops trials that ended or fall behind."""

    def __init__(self, limits: Limits, ended: Ended, work: TrialContext) -> None:
        super().__init__()
        self._limits, self._ended, self._work = limits, ended, work
        self._trials: dict[tuple[int, int], Any] = {}
        """What Ray Tune calls a trial, by number and evaluation of its job."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Note a job that begins or is restarted, and what its next process has to know."""
        study, key = self._limits.study, _key(trial)
        self._trials[key] = trial
        unfinished = [job_name(job.number, job.evaluation) for job in study.unfinished()]
        trial.config.update(seconds=study.job(*key).seconds, unfinished=unfinished)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The next job; also takes back jobs that Ray Tune gave up without restarting them.

        It does so, even silently, with a job that it could not start in a warm process.
        """
        limits = self._limits
        for key in sorted(limits.running):
            if key in self._trials and self._trials[key].is_finished():
                limits.running.discard(key)
        return super().choose_trial_to_run(tune_controller)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Handle a result; nested values are flattened, with names joined by slashes."""
        goes_on = False
        with _noted(self._limits):
            goes_on = self._goes_on(trial, result)
            if not goes_on:
                self._finish(trial)
        return str(TrialScheduler.CONTINUE if goes_on else TrialScheduler.STOP)

    def _goes_on(self, trial: Any, result: dict[str, Any]) -> bool:
        limits, study, (number, evaluation) = self._limits, self._limits.study, _key(trial)
        seconds, reason = float(result["seconds"]), result["failed"]
        if reason and result["lost"]:
            return True  # it is about to raise the error
        if reason and result["memory"] and 0 < trial.config["gpus"] < 1:
            limits.lost(number, "it ran out of memory on its share of a GPU and gets a whole one")
            study.worked(number, evaluation, seconds)  # on its share
            study.whole.add(number)
        elif reason:
            study.ended(number, evaluation, seconds=seconds, reason=reason)
        elif result["whole"]:
            prefix = "scores/"
            scores = {k.removeprefix(prefix): v for k, v in result.items() if prefix in k}
            study.evaluated(number, evaluation, scores, seconds)
        elif study.reported(number, int(result["step"]), float(result["score"]), seconds):
            study.ended(number, evaluation, seconds=seconds)
        else:
            limits.look()
            return True
        return False

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """A job's process was lost, or raised an error that is not the trial's."""
        limits, study, (number, evaluation) = self._limits, self._limits.study, _key(trial)
        last = dict(trial.run_metadata.last_result or {})
        raised = last["failed"].rstrip(".") if last.get("lost") else ""
        by_node = bool(GONE.search(last_error(trial)))
        reason = raised or f"its {'node' if by_node else 'process'} was lost"
        with _noted(limits):
            limits.lost(number, reason)
            study.worked(number, evaluation, float(last.get("seconds", 0.0)))
            limits.draining |= limits.place.workers > 1
            if not study.is_missing(number, evaluation):  # another evaluation failed meanwhile
                return
            if by_node and study.crashed(number) <= LOST_NODES:
                trial.run_metadata.num_failures -= 1  # as Ray Tune does for preempted nodes
            if trial.should_recover() or (limits.draining and study.crashed(number) <= RESTARTS):
                return
            if raised or number == START:  # without a start there is no search
                limits.trouble = Transient(
                    f"trial {number} could not run: {reason}. When that is fixed, run the same "
                    "command again: it resumes with this trial."
                )
                return
            seconds, reason = study.job(number, evaluation).seconds, f"{reason} again and again"
            study.ended(number, evaluation, seconds=seconds, reason=reason)
            self._finish(trial)

    def _finish(self, trial: Any) -> None:
        """Free the place of a job; if it is over, remove its files and report it."""
        limits, key = self._limits, _key(trial)
        limits.running.discard(key)
        limits.look()
        if not limits.study.is_missing(*key):
            with suppress(OSError):  # the next session removes what is left
                remove(self._work.job_folder(*key))
            self._ended(key[0])


def last_error(trial: Any) -> str:
    """Ray Tune's text of a job's last error."""
    path = Path(trial.error_file or "")
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    return text.rpartition("Failure #")[2]


def _key(trial: Any) -> tuple[int, int]:
    return int(trial.config["number"]), int(trial.config["evaluation"])


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
