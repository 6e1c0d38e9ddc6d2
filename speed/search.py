r"""``python -m speed.search`` from the project's root.

A search of linear evaluation, in evaluations a second: Ray Tune places them, and they share what
the frozen encoder makes of the records, against the same evaluations one after the other in this
process, each of which encodes the records anew. Both do one at a time, which must reach the same
AUROC both ways; none is stopped early. Starting Ray and importing PyTorch, which a separate command
for each evaluation would take as well, count for neither.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmd_ray.cluster.connection import connected
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.search_session import Searched
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.service.tune import run_searches
from benchmd_ray.training.jobs import TransferJob
from benchmd_ray.training.launch import launch
from benchmd_ray.training.reporter import RunReporter
from benchmd_ray.training.selection import crossed
from benchmd_ray.tuning import ladder
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.parameters import MOST_TRIALS
from benchmd_ray.tuning.spaces import applied
from benchmd_ray.tuning.trial import seed_of
from speed import measure
from speed.sources import ecg_catalog

TOLERANCE = 5e-3
"""Largest difference between an evaluation's AUROC both ways: rounding may swap neighbours."""
SIZE = ("encoder.width=128", "encoder.depth=6", "encoder.mlp=256", "encoder.head_dim=16")
DECLARED = {
    "catalog": (Path, "of an ECG source (else a synthetic one)"),
    "evaluations": (20, "of the search"),
    "epochs": (20, "of each evaluation"),
}


class Scores(RunReporter):
    """Keeps the score of a run as an evaluation has it."""

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
    """A search and its evaluations one by one, on the same catalog."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        """Make the source and plan the search."""
        self.folder, self.rounds = folder, itertools.count()
        source = options.catalog or ecg_catalog(folder, 560).path
        choice = Choice(
            catalogs=(source,),
            assignments=(*SIZE, f"transfer.epochs={options.epochs}", "execution.device=cpu"),
        )
        self.tuning = Tuning(
            choice,
            techniques=("scratch",),
            searched=("linear",),
            held=("transfer.epochs",),
            method=Method(sampler="random", seed=options.seed),
            budget=Budget(trials=None, evaluations=options.evaluations),
            at_once=1,
        )
        (self.plan,) = planned_searches(self.tuning, gpu=False)
        self.inner = partial(inner_catalog, open_catalog(source), folder / "inner")
        self.searched: Searched

    def search(self) -> None:
        """The search, in a store of its own."""
        store = self.folder / f"store-{next(self.rounds)}"
        with patch.object(ladder, "FEWEST", MOST_TRIALS + 1):
            (self.searched,) = run_searches(
                self.tuning, [self.plan], store, say=lambda line: None, quiet=True
            )

    def one_by_one(self) -> list[float]:
        """AUROC of each of the last search's evaluations, done again without what they share."""
        scores = []
        (start,) = self.plan.families[0].settings
        for trial in self.searched.trials:
            for evaluation in trial.evaluations:
                settings = applied(start, trial.values)
                settings = replace(settings, seed=seed_of(start.seed, evaluation))
                folder = self.folder / f"single-{next(self.rounds)}"
                folder.mkdir()
                reporter = Scores(folder)
                job = TransferJob(settings, self.inner(evaluation).path, folder, halved=True)
                launch(job, reporter=reporter)
                scores.append(reporter.score)
        return scores

    def require_same(self) -> float:
        """The largest difference between the AUROC of an evaluation both ways.

        Raises:
            AssertionError: It is more than rounding.
        """
        self.search()
        scores = [score for trial in self.searched.trials for score in trial.evaluations.values()]
        pairs = zip(scores, self.one_by_one(), strict=True)
        difference = max(abs(score - expected) for score, expected in pairs)
        if not difference <= TOLERANCE:
            raise AssertionError(f"the AUROC of an evaluation differs by {difference:g}")
        return difference


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, repetitions=1, warm_up=0, threads=1)
    if options.evaluations < 2:
        raise SystemExit("--evaluations has to be 2 or more.")
    with tempfile.TemporaryDirectory() as folder, connected(cpus=2):
        ways = BothWays(options, Path(folder))
        difference = ways.require_same()
        tasks = {"search": ways.search, "one_by_one": ways.one_by_one}
        measure.compare(
            "search",
            options,
            tasks,
            unit="evaluations/s",
            units=options.evaluations,
            largest_difference_of_auroc=difference,
        )


if __name__ == "__main__":
    main()
