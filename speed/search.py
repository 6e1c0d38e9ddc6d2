r"""``python -m speed.search`` from the project's root.

A search of linear evaluation, in trials a second: Ray Tune places the trials, which share what the
frozen encoder makes of the records, against the same trials one after the other in this process,
each of which encodes the records anew. Both work on one trial at a time, which must reach the same
AUROC both ways. Starting Ray and importing PyTorch, which a separate command for each trial
would take as well, are left out of both.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

from benchmd_ray.cluster.connection import connected
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.inner import inner_catalog
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
from speed import measure
from speed.sources import ecg_catalog

TOLERANCE = 5e-3
"""Largest difference between the AUROC of a trial both ways: rounding may swap neighbours."""
SIZE = ("encoder.width=128", "encoder.depth=6", "encoder.mlp=256", "encoder.head_dim=16")
DECLARED = {
    "catalog": (Path, "of an ECG source (else a synthetic one)"),
    "trials": (20, "of the search"),
    "epochs": (20, "of each trial"),
}


class Scores(RunReporter):
    """Keeps the score of a run as a trial has it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, silent=True)
        self.lines = list[Any]()

    @property
    def score(self) -> float:
        """AUROC of the best epoch, chosen and scored on other patients where there are enough."""
        score = crossed(self.lines)
        return max(line["validation_auroc"] for line in self.lines) if score != score else score

    def report(self, done: int, values: Any) -> None:
        """Keep the values of an epoch."""
        super().report(done, values)
        self.lines.append(values)


class BothWays:
    """A search and its trials one by one, on the same catalog."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        """Make the source and plan the search."""
        self.folder, self.rounds = folder, itertools.count()
        source = options.catalog or ecg_catalog(folder, 560).path
        choice = Choice(
            catalogs=(source,),
            techniques=("scratch",),
            assignments=(*SIZE, f"transfer.epochs={options.epochs}", "execution.device=cpu"),
        )
        method = Method(sampler="random", stopping="none", choosing="highest", seed=options.seed)
        self.tuning = Tuning(
            choice,
            held=("transfer.epochs",),
            method=method,
            evaluations=1,
            budget=Budget(trials=options.trials),
            at_once=1,
        )
        (self.plan,) = planned_searches(self.tuning, gpu=False)
        self.inner = inner_catalog(open_catalog(source), folder / "inner")
        self.searched: Searched

    def search(self) -> None:
        """The search, in a store of its own."""
        store = self.folder / f"store-{next(self.rounds)}"
        (self.searched,) = run_searches(
            self.tuning, [self.plan], store, say=lambda line: None, quiet=True
        )

    def one_by_one(self) -> list[float]:
        """AUROC of each of the last search's trials, done again without what trials share."""
        scores = []
        for trial in self.searched.trials:
            settings = applied(self.plan.starts[0], trial.values)
            folder = self.folder / f"single-{next(self.rounds)}"
            folder.mkdir()
            reporter = Scores(folder)
            job = TransferJob(settings, self.inner.path, folder, halved=True)
            launch(job, reporter=reporter)
            scores.append(reporter.score)
        return scores

    def require_same(self) -> float:
        """The largest difference between a trial's AUROC both ways.

        Raises:
            AssertionError: It is more than rounding.
        """
        self.search()
        pairs = zip(self.searched.trials, self.one_by_one(), strict=True)
        difference = max(abs(trial.score - expected) for trial, expected in pairs)
        if not difference <= TOLERANCE:
            raise AssertionError(f"a trial's AUROC differs by {difference:g}")
        return difference


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, repetitions=1, warm_up=0, threads=1)
    if options.trials < 2:
        raise SystemExit("--trials has to be 2 or more.")
    with tempfile.TemporaryDirectory() as folder, connected(cpus=2):
        ways = BothWays(options, Path(folder))
        difference = ways.require_same()
        tasks = {"search": ways.search, "one_by_one": ways.one_by_one}
        measure.compare(
            "search",
            options,
            tasks,
            unit="trials/s",
            units=options.trials,
            largest_difference_of_auroc=difference,
        )


if __name__ == "__main__":
    main()
