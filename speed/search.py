r"""``python -m speed.search`` from the project's root.

A search of linear evaluation, in trials a second: Ray Tune places the trials, which share what the
frozen encoder makes of the records, against the same trials one after the other in this process,
each of which encodes the records anew. Both work on one trial at a time, which must reach the same
AUROC both ways. Starting Ray and importing PyTorch, which a separate command for each trial
would take as well, are left out of both.

The JSON also says what a trial costs next to its work: from the end of one to its successor's first
step, and how many steps of fine-tuning at that size take as long.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmd_ray.cluster.connection import connected
from benchmd_ray.data.build import build
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.demo import WRITERS
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.search_session import Searched
from benchmd_ray.service.searches import Tuning, planned_searches
from benchmd_ray.service.tune import run_searches
from benchmd_ray.training.jobs import TransferJob
from benchmd_ray.training.launch import launch
from benchmd_ray.training.reporter import RunReporter
from benchmd_ray.training.selection import crossed
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.spaces import applied
from benchmd_ray.tuning.trial import Arm, Reached, Transfer, TrialContext, run_trial
from speed import measure

TOLERANCE = 5e-3
"""Largest difference between the AUROC of a trial both ways: rounding may swap neighbours."""
SIZE = ("encoder.width=128", "encoder.depth=6", "encoder.mlp=256", "encoder.head_dim=16")


class Compared:
    """A search and its trials one by one, on the same catalog."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        """Make the source."""
        self.folder, self.trials, self.rounds = folder, chosen.trials, itertools.count()
        source = chosen.catalog or folder / "ptb-xl"
        if chosen.catalog is None:
            raw = WRITERS["ecg"](folder / "raw")["ptb-xl"]
            build("ptb-xl", raw, source, allow_missing=True, max_quarantined=0.1)
        choice = Choice(
            catalogs=(source,),
            techniques=("scratch",),
            assignments=(*SIZE, f"transfer.epochs={chosen.epochs}", "execution.device=cpu"),
        )
        self.tuning = Tuning(
            choice,
            held=("transfer.epochs",),
            method=Method(sampler="random", stopping="none", choosing="highest", seed=chosen.seed),
            evaluations=1,
            budget=Budget(trials=chosen.trials),
            at_once=1,
        )
        (self.plan,) = planned_searches(self.tuning, gpu=False)
        self.inner = inner_catalog(open_catalog(source), folder / "inner")
        self.searched: Searched | None = None

    def search(self) -> None:
        """The search, in a store of its own."""
        store = self.folder / f"store-{next(self.rounds)}"
        made = run_searches(self.tuning, [self.plan], store, say=lambda line: None, quiet=True)
        self.searched = made[0]

    def one_by_one(self) -> list[float]:
        """AUROC of each of the last search's trials, done again without what trials share."""
        assert self.searched is not None
        found = []
        for trial in self.searched.trials:
            settings = applied(self.plan.starts[0], trial.values)
            folder = self.folder / f"single-{next(self.rounds)}"
            folder.mkdir()
            reporter = _First(folder)
            job = TransferJob(settings, self.inner.path, folder, halved=True)
            launch(job, reporter=reporter)
            found.append(reporter.score)
        return found

    def require_same(self) -> float:
        """The largest difference between a trial's AUROC both ways.

        Raises:
            AssertionError: It is no rounding.
        """
        self.search()
        assert self.searched is not None
        ours = [trial.score for trial in self.searched.trials]
        gap = max(abs(a - b) for a, b in zip(ours, self.one_by_one(), strict=True))
        if not gap <= TOLERANCE:
            raise AssertionError(f"a trial's AUROC differs by {gap:g}")
        return gap

    def overhead(self, wall: float) -> dict[str, float]:
        """What a trial costs next to its work, and that in steps of fine-tuning.

        Args:
            wall: Seconds of the last search.
        """
        assert self.searched is not None
        worked = sum(trial.seconds for trial in self.searched.trials)
        between = (wall - worked) / self.trials
        prepared = statistics.median(self._prepared() for _ in range(5))
        step = self._step()
        return {
            "seconds_between_trials": between,
            "seconds_to_first_step": prepared,
            "seconds_of_a_fine_tuning_step": step,
            "steps_a_trial_costs": (between + prepared) / step,
        }

    def _prepared(self) -> float:
        """Seconds from the start of a transfer to its first step, its features being kept."""
        folder = self.folder / f"single-{next(self.rounds)}"
        folder.mkdir()
        reporter, start = _First(folder), time.perf_counter()
        job = TransferJob(self.plan.starts[0], self.inner.path, folder, features=self.folder / "f")
        launch(job, reporter=reporter)
        return reporter.first - start

    def _step(self) -> float:
        """Seconds of a step of fine-tuning, by the second epoch of a short one."""
        settings = applied(self.plan.starts[0], {"transfer.epochs": 3})
        transfer = replace(settings.transfer, mode="finetune")
        arm = Arm("ecg", {0: self.inner.path}, replace(settings, transfer=transfer))
        times: list[float] = []

        def report(reached: Reached) -> None:
            times.append(time.perf_counter())

        folder = self.folder / f"single-{next(self.rounds)}"
        run_trial(TrialContext("scratch", Transfer(), (arm,), folder, (1, 2)), 0, {}, report)
        steps = -(-self.inner.rows("train") // transfer.batch_size)
        return (times[1] - times[0]) / steps


class _First(RunReporter):
    """Notes when the first step begins, and the score as a trial has it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, silent=True)
        self.first, self.lines = 0.0, list[Any]()

    @property
    def score(self) -> float:
        found = crossed(self.lines)
        return max(line["validation_auroc"] for line in self.lines) if found != found else found

    def start(self, what: str, total: int, unit: str, done: int) -> None:
        super().start(what, total, unit, done)
        self.first = time.perf_counter()

    def report(self, done: int, values: Any) -> None:
        super().report(done, values)
        self.lines.append(values)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    options.add_argument("--catalog", type=Path, help="of an ECG source (else a synthetic one)")
    options.add_argument("--trials", type=int, default=20, help="of the search (20)")
    options.add_argument("--epochs", type=int, default=20, help="of each trial (20)")
    options.set_defaults(repetitions=1, warm_up=0, threads=1)  # the comparison warms up
    chosen = measure.parsed(options, arguments)
    if chosen.trials < 2:
        options.error("--trials has to be 2 or more")
    with tempfile.TemporaryDirectory() as folder, connected(cpus=2):
        compared = Compared(chosen, Path(folder))
        difference = compared.require_same()
        seconds = measure.alternating(
            {"search": compared.search, "one_by_one": compared.one_by_one},
            repetitions=chosen.repetitions,
            warm_up=chosen.warm_up,
        )
        measure.report(
            "search",
            chosen,
            seconds,
            units=chosen.trials,
            unit="trials/s",
            ours="search",
            peer="one_by_one",
            wall_seconds={name: measure.spread(values) for name, values in seconds.items()},
            largest_difference_of_auroc=difference,
            **compared.overhead(seconds["search"][-1]),
        )


if __name__ == "__main__":
    main()
