r"""``python -m studies.tuning --data FOLDER --out FOLDER`` from the project's root.

Does a search find settings that are better where they are scored? On real data, each strategy
searches each task with the same device seconds, several times with other seeds; what it chose and
the start are trained on the whole training split with the same seeds and scored on splits and
targets that no search saw. The differences are paired by record, and pooled over tasks.

Nothing else may work on the machine meanwhile: a search of so many device seconds would get less
done. The table shows what an evaluation of the start took in each repetition.

FOLDER of ``--data`` has the files of the README's examples: ``medmnist/``, ``ptb-xl-500/``,
``medmnist-unofficial/``, ``cinc2021/`` and ``nih-cxr-1000/``. What is done is kept in ``--out``,
and the same command resumes; its folder ``done`` holds all that the tables are made of, and
``--report FOLDER`` writes the tables of such a folder, of what all strategies in it (or those of
``--strategy``) have.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmd_ray.data.build import build
from benchmd_ray.extensions.parts import PARTS
from benchmd_ray.files.atomic import replacing
from benchmd_ray.files.integrity import SUFFIX
from benchmd_ray.report.scored import Scored, read_scored
from benchmd_ray.runs.files import RESULT, SEARCH, SEARCHES, TRIALS
from benchmd_ray.runs.store import read_stores
from benchmd_ray.scores.metrics import auroc
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.learning import learned_in
from benchmd_ray.service.searches import Tuning, planned_searches
from benchmd_ray.service.tune_and_train import search_and_train
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.portfolio import Portfolio
from benchmd_ray.tuning.records import SearchRecord, read_search
from studies.tuning_tables import DRAWS, Floats, Gained, report
from studies.tuning_tasks import STRATEGIES, TASKS, Strategy, Task

SEEDS = 3
"""Of the runs after a search."""
WANTED = "a portfolio is learned from the searches of all tasks by new: run these first"
FILES = {"pneumoniamnist": "pneumoniamnist_content_complete.npz"}
"""Files of MedMNIST under another name than the official one."""


@dataclass(frozen=True)
class Study:
    """Where a study works, and with how much."""

    data: Path
    out: Path
    minutes: float
    """Of two devices, for each search."""

    def catalog(self, name: str, raw: str, options: dict[str, str]) -> Path:
        """Path of a catalog, which is built unless it is there."""
        path, folder = self.out / "catalogs" / name, self.data / raw
        if not (path / "manifest.json").is_file():
            if name in FILES:
                folder_of_name = self.out / "raw" / name
                folder_of_name.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / FILES[name], folder_of_name / f"{name}.npz")
                folder = folder_of_name
            build(name, folder, path, options=options, allow_missing=True)
        return path

    def tuning(self, task: Task, strategy: Strategy, repetition: int) -> Tuning:
        """What a strategy asks of a task."""
        source = self.catalog(task.source, task.raw, task.options)
        targets = [self.catalog(name, raw, {}) for name, raw in task.targets]
        first = 100 * repetition
        choice = Choice(
            catalogs=(source, *targets),
            techniques=(task.technique,),
            seeds=tuple(range(first, first + SEEDS)),
            assignments=task.settings,
            bench=task.bench,
            start=task.start,
        )
        portfolio = self.portfolio(repetition) if strategy.portfolio else Portfolio()
        return Tuning(
            choice,
            (task.setting,),
            space=Path(task.space) if task.space else None,
            held=task.held,
            method=replace(strategy.method, seed=first),
            budget=Budget(trials=None, device_hours=2 * task.share * self.minutes / 60),
            evaluations=strategy.evaluations,
            portfolio=portfolio,
        )

    def portfolio(self, repetition: int) -> Portfolio:
        """What a repetition's searches without a portfolio teach."""
        notes = [self.note(name, "new", repetition) for name in TASKS]
        if not all(note.is_file() for note in notes):
            raise SystemExit(f"{WANTED} (repetition {repetition}).")
        searches = {str(json.loads(note.read_text("utf-8"))["search"]) for note in notes}

        def refuse(why: str) -> None:
            raise SystemExit(f"{self.done}: {why}")

        return learned_in([self.done], refuse, searches.__contains__)

    def store(self, task: str, repetition: int) -> Path:
        """The store of a repetition of the tasks with the same source: these share pretraining."""
        return self.out / "stores" / f"{TASKS[task].source}-{repetition}"

    def note(self, task: str, strategy: str, repetition: int) -> Path:
        """What says that a search is done, and which it was."""
        return self.done / f"{_plain(task)}-{repetition}-{_plain(strategy)}.json"

    @property
    def done(self) -> Path:
        """Notes, and a store of the searches by new, of which portfolios are learned."""
        return self.out / "done"

    def search(self, task: str, strategy: str, repetition: int) -> None:
        """Search and train, and note what it gained, unless it is done."""
        note = self.note(task, strategy, repetition)
        if note.is_file():
            if json.loads(note.read_text("utf-8"))["minutes"] != self.minutes:
                raise SystemExit(f"{note} is of other --minutes: take these, or another --out.")
            return
        print(f"{task}, {strategy}, repetition {repetition}", flush=True)
        tuning = self.tuning(TASKS[task], STRATEGIES[strategy], repetition)
        store = self.store(task, repetition)
        (plan,) = planned_searches(tuning, gpu=False)
        if STRATEGIES[strategy].portfolio and not plan.portfolio:
            note_of_new = json.loads(self.note(task, "new", repetition).read_text("utf-8"))
            if note_of_new["search"] == plan.name:  # nothing would be searched in another way
                _write(note, note_of_new | {"strategy": strategy})
                return
        if not search_and_train(tuning, store, say=print, cpus=2):
            raise SystemExit(f"{task}, {strategy}, repetition {repetition} did not end well.")
        gain = gained(store, plan.name)
        if strategy == "new":
            self.keep(store / SEARCHES / plan.name)
        about = {"task": task, "strategy": strategy, "repetition": repetition}
        about |= {"minutes": self.minutes, "version": PARTS["search"].version}
        _write(note, about | asdict(gain))

    def keep(self, search: Path) -> None:
        """Copy what a portfolio is learned from."""
        target = self.done / SEARCHES / search.name
        target.mkdir(parents=True, exist_ok=True)
        for name in (SEARCH, TRIALS, TRIALS + SUFFIX, RESULT):
            shutil.copy(search / name, target)


def _write(note: Path, about: dict[str, Any]) -> None:
    with replacing(note) as partial:
        partial.write_text(json.dumps(about) + "\n", "utf-8")


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def both_sides(store: Path, record: SearchRecord) -> dict[bool, dict[tuple[str, int], Scored]]:
    """Scores of the start (False) and of what a search chose, by scored split and seed.

    Raises:
        SystemExit: Two runs are of one place.
    """
    sides: dict[bool, dict[tuple[str, int], Scored]] = {False: {}, True: {}}
    for run in read_stores([store]).found:
        about, tuned = run.description, run.settings.tuned
        is_of_search = about["kind"] == "transfer" and about["setting"] == record.setting
        if not is_of_search or tuned not in ("", record.name):
            continue
        for scored in read_scored(run).scored:
            if (scored.dataset, scored.split) == (about["source"], "validation"):
                continue  # it chose the epoch
            place = f"{scored.dataset}, {scored.split}", run.settings.seed
            if place in sides[bool(tuned)]:
                raise SystemExit(f"{store} has runs of several versions: remove the old.")
            sides[bool(tuned)][place] = scored
    return sides


def gained(store: Path, name: str) -> Gained:
    """Differences of a search's runs, of the same records and seeds."""
    record = read_search(store / SEARCHES / name)
    sides = both_sides(store, record)
    values, drawn, start = {}, [], {}
    for key in dict.fromkeys(key for key, _ in sides[False]):
        begun, tuned_by_seed = (
            {seed: scored for (place, seed), scored in sides[is_tuned].items() if place == key}
            for is_tuned in (False, True)
        )
        start[key] = float(np.mean([_auroc(scored) for scored in begun.values()]))
        if bool(tuned_by_seed) != (record.best != 0):
            raise SystemExit(f"{store}: {name} lacks the runs of what it chose.")
        if not tuned_by_seed:  # it keeps the start
            values[key] = 0.0
            continue
        if tuned_by_seed.keys() != begun.keys():
            raise SystemExit(f"{store}: runs of {name} and of its start have other seeds.")
        values[key] = float(
            np.mean([_auroc(tuned_by_seed[s]) - _auroc(begun[s]) for s in tuned_by_seed])
        )
        drawn.append(
            np.mean([_drawn(tuned_by_seed[s]) - _drawn(begun[s]) for s in tuned_by_seed], axis=0)
        )
    trials = record.trials
    done = trials["evaluations"] + trials["fresh_evaluations"]
    return Gained(
        name,
        values,
        np.nanmean(drawn, axis=0).round(4).tolist() if drawn else [],
        start,
        record.best == 0,
        3600 * record.device_hours,
        3600 * float(trials["device_hours"].iloc[0] / done.iloc[0]),
        len(trials),
        int(done.sum()),
    )


def _auroc(scored: Scored) -> float:
    return auroc(scored.targets, scored.scores).mean


def _drawn(scored: Scored) -> Floats:
    """AUROC in resamples of the patients, the same for all runs on the same records: (draws,)."""
    about = (scored.targets, scored.scores, scored.groups, scored.task)
    return resampled("auroc", *about, resamples=DRAWS)[:, 0]


def main(arguments: list[str] | None = None) -> None:
    """Search what is not done, and print the tables."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, help="folder of the real files")
    options.add_argument("--out", type=Path, help="folder of the study")
    options.add_argument("--minutes", type=float, default=10, help="of each search, on two cores")
    options.add_argument("--repetitions", type=int, default=3)
    options.add_argument("--task", action="append", choices=TASKS, help="else all (repeatable)")
    options.add_argument("--strategy", action="append", choices=STRATEGIES, help="else all")
    options.add_argument("--report", type=Path, help="only the tables of a folder of what is done")
    chosen = options.parse_args(arguments)
    if not math.isfinite(chosen.minutes) or chosen.minutes <= 0 or chosen.repetitions < 1:
        options.error("--minutes and --repetitions have to be above 0")
    if chosen.report is None and None in (chosen.data, chosen.out):
        options.error("either --report, or --data and --out")
    if chosen.report is None:
        study = Study(chosen.data, chosen.out, chosen.minutes)
        strategies, tasks = chosen.strategy or STRATEGIES, chosen.task or TASKS
        portfolios = any(STRATEGIES[name].portfolio for name in strategies)
        for repetition in range(chosen.repetitions * portfolios):
            searched = tasks if "new" in strategies else ()
            for task in TASKS:
                if task not in searched and not study.note(task, "new", repetition).is_file():
                    options.error(f"{WANTED} ({task}, repetition {repetition}).")
        for repetition in range(chosen.repetitions):
            for strategy in strategies:
                for task in tasks:
                    study.search(task, strategy, repetition)
    print(report(chosen.report or chosen.out / "done", chosen.strategy or ()))


if __name__ == "__main__":
    main()
