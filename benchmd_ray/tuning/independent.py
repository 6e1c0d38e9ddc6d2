"""Independent random trials without training, as tasks of Ray.

For evaluations that take seconds, such as fitting a detector to stored features. No proposal
depends on earlier results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from benchmd_ray.cluster.connection import connected
from benchmd_ray.console.progress import progress
from benchmd_ray.errors import BenchmdError, first_line
from benchmd_ray.tuning.parameters import Parameter

TrialFunction = Callable[[Mapping[str, Any], Any], Mapping[str, Any]]
"""Function from values by name, and data shared by all trials, to plain values."""


def tried(
    work: TrialFunction, data: Any, parameters: Sequence[Parameter], trials: int
) -> list[dict[str, Any]]:
    """Results of all trials that did not fail, starting with that of the parameters' defaults.

    Raises:
        BenchmdError: It is called in a Ray task, where trials cannot run, or the trial of the
            defaults failed.
    """
    import ray
    from ray.exceptions import RayError

    if ray.is_initialized() and ray.get_runtime_context().get_task_id() is not None:
        raise BenchmdError(
            "trials cannot run within a task of a plan: search with the benchmark's own command, "
            "not with --evaluate."
        )
    results = []
    with connected(cpus=2), closing(progress("settings", trials, "trials")) as display:
        task, shared = ray.remote(num_cpus=1)(work), ray.put(data)
        tasks = [task.remote(values, shared) for values in drawn(parameters, trials)]
        for number, running in enumerate(tasks):
            display.update(number)
            try:
                results.append(dict(ray.get(running)))
            except RayError as error:
                if number == 0:
                    why = first_line(getattr(error, "cause", None) or error)
                    raise BenchmdError(f"the trial of the defaults failed: {why}") from error
        display.update(trials)
    return results


def drawn(parameters: Sequence[Parameter], trials: int) -> list[dict[str, Any]]:
    """Values of each trial by name: the defaults, and then values at random."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial({parameter.name: parameter.default for parameter in parameters})
    asked = [study.ask() for _ in range(trials)]
    return [{p.name: p.suggest(trial) for p in parameters} for trial in asked]
