"""Independent random trials without training, executed by Ray Tune.

For evaluations that take seconds, such as fitting a detector to stored features. No proposal
depends on earlier results.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmd_ray.cluster.connection import connected
from benchmd_ray.errors import BenchmdError
from benchmd_ray.tuning.parameters import Parameter
from benchmd_ray.tuning.search import quiet_tune

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

RESULT = "result"
"""Metric with a trial's values as JSON."""
TrialFunction = Callable[[Mapping[str, Any], Any], Mapping[str, Any]]
"""Function from values by name, and data shared by all trials, to plain values."""


def tried(
    work: TrialFunction, data: Any, parameters: Sequence[Parameter], trials: int
) -> list[dict[str, Any]]:
    """Results of all trials, starting with the trial of the parameters' defaults.

    Raises:
        BenchmdError: It is called in a Ray task, where trials cannot run, or all trials or that of
            the defaults failed.
    """
    import ray

    if ray.is_initialized() and ray.get_runtime_context().get_task_id() is not None:
        raise BenchmdError(
            "trials cannot run within a task of a plan: search with the benchmark's own command, "
            "not with --evaluate."
        )

    defaults = {parameter.name: parameter.default for parameter in parameters}
    with connected(cpus=2), quiet_tune(), tempfile.TemporaryDirectory() as folder:
        import optuna
        from ray import tune
        from ray.tune.search import ConcurrencyLimiter
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        search = OptunaSearch(
            partial(_suggest, parameters),
            metric="number",
            mode="max",
            sampler=optuna.samplers.RandomSampler(seed=0),
            points_to_evaluate=[defaults],
        )
        limited = ConcurrencyLimiter(search, max_concurrent=2)
        results = tune.Tuner(
            tune.with_resources(tune.with_parameters(_trial, work=work, data=data), {"cpu": 1}),
            tune_config=tune.TuneConfig(search_alg=limited, num_samples=trials, reuse_actors=True),
            run_config=tune.RunConfig(name="trials", storage_path=folder, verbose=0),
        ).fit()
    return in_order([result.metrics for result in results if result.metrics], defaults)


def in_order(
    results: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Results of trials, starting with that of the defaults."""
    ended = [metrics for metrics in results if RESULT in metrics]
    ended.sort(key=lambda metrics: bool(metrics["config"] != defaults))
    if not ended:
        raise BenchmdError("no trial of the search ended: see Ray's log for the reason.")
    if ended[0]["config"] != defaults:
        raise BenchmdError("the trial of the defaults failed: see Ray's log for the reason.")
    return [json.loads(metrics[RESULT]) for metrics in ended]


def _suggest(parameters: Sequence[Parameter], trial: BaseTrial) -> None:  # Ray Tune pickles it
    for parameter in parameters:
        parameter.suggest(trial)


def _trial(config: dict[str, Any], work: TrialFunction, data: Any) -> None:
    from ray import tune

    tune.report({"number": 0.0, RESULT: json.dumps(work(config, data))})
