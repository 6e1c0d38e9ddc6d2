r"""``python -m speed.tuning_study --data FOLDER --out FOLDER`` from the project's root.

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.build import build
from benchmd_ray.extensions.parts import PARTS
from benchmd_ray.files.atomic import replacing
from benchmd_ray.files.integrity import SUFFIX
from benchmd_ray.report.scored import Scored, read_scored
from benchmd_ray.runs.files import RESULT, SEARCH, SEARCHES, TRIALS
from benchmd_ray.runs.store import read_stores
from benchmd_ray.scores.intervals import StandardError, difference_interval
from benchmd_ray.scores.metrics import auroc
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.scores.seeds import error_over_seeds
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.searches import Tuning, learned_in, planned_searches
from benchmd_ray.service.tune_and_train import search_and_train
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.portfolio import Portfolio
from benchmd_ray.tuning.records import read_search

LAPTOP = (
    *("encoder.width=64", "encoder.depth=4", "encoder.heads=4", "encoder.head_dim=16"),
    *("encoder.mlp=128", "pretrain.steps=400", "pretrain.batch_size=32"),
    *("pretrain.optimiser.lr=1e-3", "transfer.batch_size=16", "transfer.optimiser.lr=1e-3"),
    "execution.device=cpu",
)
"""Settings of the README's examples."""
DRAWS = 1000
"""Resamples of patients."""
SEEDS = 3
"""Of the runs after a search."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """What is searched."""

    source: str
    raw: str
    """Folder of the source's files in the data."""
    technique: str
    setting: str
    settings: tuple[str, ...]
    """Of the start."""
    targets: tuple[tuple[str, str], ...] = ()
    """Name and folder of each."""
    bench: str = "benchmd"
    start: str = ""
    options: dict[str, str] = field(default_factory=dict)
    """Of the source's catalog."""
    space: str | None = None
    """File of the space, else the usual one."""
    held: tuple[str, ...] = ("transfer.epochs",)
    share: float = 1.0
    """Of the study's minutes: evaluations take longer in some tasks than in others."""


SMALL = "benchmd_ray/benchmarks/medmnist/small.yaml"
NARROW = ("encoder.width=64", "encoder.depth=4", "encoder.heads=4", "encoder.mlp=128")
MEDMNIST: dict[str, Any] = {
    **{"technique": "scratch", "setting": "finetune-full", "bench": "medmnist"},
    **{"space": SMALL, "held": ()},
}
ECG = (("georgia", "cinc2021"), ("chapman-shaoxing", "cinc2021"))
TASKS = {
    "BreastMNIST": Task(
        "breastmnist",
        "medmnist",
        settings=("encoder.options.width=8", "transfer.epochs=20", *NARROW),
        start="resnet18",
        share=2.0,
        **MEDMNIST,
    ),
    "PneumoniaMNIST (unofficial), 256 labels a class": Task(
        *("pneumoniamnist", "medmnist-unofficial", "scratch", "finetune-large"),
        settings=(
            *("encoder.network=resnet18", "encoder.options.width=8", "transfer.epochs=5"),
            *("transfer.optimiser.lr=1e-3", "transfer.batch_size=32", *NARROW),
        ),
        options={"md5": "allow"},
        space=SMALL,
        held=(),
        share=0.8,
    ),
    "AdrenalMNIST3D": Task(
        "adrenalmnist3d",
        "medmnist",
        settings=(
            *("encoder.options.width=8", "encoder.options.resize=14", "transfer.epochs=4"),
            *NARROW,
        ),
        start="resnet18-2.5d",
        share=2.5,
        **MEDMNIST,
    ),
    "PTB-XL-500, linear": Task(
        *("ptb-xl", "ptb-xl-500", "mae", "linear", (*LAPTOP, "transfer.epochs=15"), ECG),
        share=0.2,
    ),
    "PTB-XL-500, fine-tuning": Task(
        *("ptb-xl", "ptb-xl-500", "mae", "finetune-full", (*LAPTOP, "transfer.epochs=5"), ECG),
        share=1.4,
    ),
    "NIH AP, fine-tuning": Task(
        *("nih-cxr-ap", "nih-cxr-1000", "mae", "finetune-full"),
        (*LAPTOP, "transfer.epochs=4", "encoder.patch_size=32"),
        (("nih-cxr-pa", "nih-cxr-1000"),),
    ),
}
WANTED = "a portfolio is learned from the searches of all tasks by new: run these first"
FILES = {"pneumoniamnist": "pneumoniamnist_content_complete.npz"}
"""Files of MedMNIST under another name than the official one."""


@dataclass(frozen=True)
class Strategy:
    """How a task is searched."""

    method: Method
    evaluations: int | None
    portfolio: bool = False


STRATEGIES = {
    "random": Strategy(Method(sampler="random", stopping="none", choosing="highest"), 1),
    "before": Strategy(Method(sampler="tpe", stopping="asha", choosing="highest"), 1),
    "new": Strategy(Method(), None),
    "new + portfolio": Strategy(Method(), None, portfolio=True),
}
"""random and before: one inner split and one seed, and the highest score. before is the method that
the new one took the place of, in the spaces that both search."""


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
                own = self.out / "raw" / name
                own.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / FILES[name], own / f"{name}.npz")
                folder = own
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
        own = {str(json.loads(note.read_text("utf-8"))["search"]) for note in notes}

        def refuse(why: str) -> None:
            raise SystemExit(f"{self.done}: {why}")

        return learned_in([self.done], refuse, own.__contains__)

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
            held = json.loads(self.note(task, "new", repetition).read_text("utf-8"))
            if held["search"] == plan.name:  # nothing would be searched in another way
                _write(note, held | {"strategy": strategy})
                return
        if not search_and_train(tuning, store, say=print, cpus=2):
            raise SystemExit(f"{task}, {strategy}, repetition {repetition} did not end well.")
        found = gained(store, plan.name)
        if strategy == "new":
            self.keep(store / SEARCHES / plan.name)
        about = {"task": task, "strategy": strategy, "repetition": repetition}
        about |= {"minutes": self.minutes, "version": PARTS["search"].version}
        _write(note, about | asdict(found))

    def keep(self, search: Path) -> None:
        """Copy what a portfolio is learned from."""
        own = self.done / SEARCHES / search.name
        own.mkdir(parents=True, exist_ok=True)
        for name in (SEARCH, TRIALS, TRIALS + SUFFIX, RESULT):
            shutil.copy(search / name, own)


def _write(note: Path, about: dict[str, Any]) -> None:
    with replacing(note) as partial:
        partial.write_text(json.dumps(about) + "\n", "utf-8")


def _source(task: str) -> str:
    return TASKS[task].source


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


@dataclass(frozen=True)
class Gained:
    """What a search gained over its start on what it did not see."""

    search: str
    values: dict[str, float]
    """By scored split: tuned minus start in AUROC, the mean over seeds; 0 where it is kept."""
    drawn: list[float]
    """Their mean in resamples of the patients, none where the start is kept: (draws,)."""
    start: dict[str, float]
    kept: bool
    device_seconds: float
    start_seconds: float
    """Device seconds of an evaluation of the start: where a machine had other work, it is longer,
    and as many device seconds are worth less."""
    trials: int
    evaluations: int

    @property
    def mean(self) -> float:
        """Over the scored splits."""
        return float(np.mean(list(self.values.values())))


def gained(store: Path, name: str) -> Gained:
    """Differences of a search's runs, of the same records and seeds."""
    record = read_search(store / SEARCHES / name)
    sides: dict[bool, dict[tuple[str, int], Scored]] = {False: {}, True: {}}
    for run in read_stores([store]).found:
        about, tuned = run.description, run.settings.tuned
        own = about["kind"] == "transfer" and about["setting"] == record.setting
        if own and tuned in ("", name):
            for one in read_scored(run).scored:
                if (one.dataset, one.split) != (about["source"], "validation"):  # chose the epoch
                    place = f"{one.dataset}, {one.split}", run.settings.seed
                    if place in sides[bool(tuned)]:
                        raise SystemExit(f"{store} has runs of several versions: remove the old.")
                    sides[bool(tuned)][place] = one
    values, drawn, start = {}, [], {}
    for key in dict.fromkeys(key for key, _ in sides[False]):
        begun = {seed: one for (other, seed), one in sides[False].items() if other == key}
        found = {seed: one for (other, seed), one in sides[True].items() if other == key}
        start[key] = float(np.mean([_auroc(one) for one in begun.values()]))
        if bool(found) != (record.best != 0):
            raise SystemExit(f"{store}: {name} lacks the runs of what it chose.")
        if not found:  # it keeps the start
            values[key] = 0.0
            continue
        if found.keys() != begun.keys():
            raise SystemExit(f"{store}: runs of {name} and of its start have other seeds.")
        values[key] = float(np.mean([_auroc(found[s]) - _auroc(begun[s]) for s in found]))
        drawn.append(np.mean([_drawn(found[s]) - _drawn(begun[s]) for s in found], axis=0))
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


def _auroc(one: Scored) -> float:
    return auroc(one.targets, one.scores).mean


def _drawn(one: Scored) -> Floats:
    """AUROC in resamples of the patients, the same for all runs on the same records: (draws,)."""
    about = (one.targets, one.scores, one.groups, one.task)
    return resampled("auroc", *about, resamples=DRAWS)[:, 0]


@dataclass(frozen=True)
class Difference:
    """A difference in AUROC on one task, in each repetition."""

    source: str
    """Of the task, which shares patients, seeds and pretraining with other tasks of it."""
    values: Floats
    """(repetitions,)."""
    draws: Floats
    """In the same resamples of the patients, (repetitions, draws)."""

    @classmethod
    def of(cls, task: str, repetitions: Sequence[Gained]) -> Difference:
        """Tuned minus start."""
        draws = [one.drawn or [0.0] * DRAWS for one in repetitions]
        values = [one.mean for one in repetitions]
        return cls(TASKS[task].source, np.array(values), np.array(draws))

    def minus(self, other: Difference) -> Difference:
        """What one gained more than the other, in the same repetitions."""
        return Difference(self.source, self.values - other.values, self.draws - other.draws)


def pooled(of_tasks: Sequence[Difference]) -> tuple[float, float, float]:
    """Mean difference over tasks, each counting the same, with its 95 % interval.

    The variance is the one of several seeds on the same patients (`scores.seeds`), with repetitions
    for seeds. Sources are independent: their parts add up, and the degrees of freedom of the spread
    between repetitions are Satterthwaite's. NaN where nothing varies, and of a single repetition,
    which does not show how searches differ.
    """
    sources = dict.fromkeys(one.source for one in of_tasks)
    patients = 0.0
    spreads: list[tuple[float, float]] = []
    for source in sources:
        own = [one for one in of_tasks if one.source == source]
        values = np.sum([one.values for one in own], axis=0) / len(of_tasks)
        draws = np.sum([one.draws for one in own], axis=0) / len(of_tasks)
        error = error_over_seeds(values, draws[:, ~np.isnan(draws).any(axis=0)], math.inf)
        (of_patients, _), *rest = error.parts or ((math.nan, math.inf),)
        patients += of_patients
        spreads += rest
    spread = sum(variance for variance, _ in spreads)
    mean = float(np.mean([one.values.mean() for one in of_tasks]))
    if not patients + spread > 0 or any(len(one.values) == 1 for one in of_tasks):
        return mean, math.nan, math.nan
    freedom = math.inf
    if spread:
        freedom = spread**2 / sum(variance**2 / own for variance, own in spreads)
    parts = ((patients, math.inf), (spread, freedom))
    low, high = difference_interval(mean, StandardError(math.sqrt(patients + spread), parts))
    return mean, low, high


def told(found: tuple[float, float, float]) -> str:
    """A difference with its interval, for a table."""
    mean, low, high = found
    return f"{mean:+.3f} –" if math.isnan(low) else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def report(folder: Path, strategies: Sequence[str] = ()) -> str:
    """Tables of what is done, in Markdown: of repetitions that all strategies have of a task.

    Args:
        folder: What is done, a file for each search.
        strategies: Those to compare; else all that there are.
    """
    notes = [json.loads(path.read_text("utf-8")) for path in folder.glob("[!.]*-*.json")]
    notes = [note for note in notes if note["strategy"] in (strategies or STRATEGIES)]
    if len({note["minutes"] for note in notes}) != 1:
        raise SystemExit(f"{folder} has no searches of equal minutes.")
    places: dict[str, set[tuple[str, int]]] = {}
    for note in notes:
        places.setdefault(note["strategy"], set()).add((note["task"], note["repetition"]))
    common = set.intersection(*places.values())
    for task, repetition in sorted(common):  # tasks of a source are pooled by repetition
        of_source = [t for t in {name for name, _ in common} if _source(t) == _source(task)]
        if any((other, repetition) not in common for other in of_source):
            common.discard((task, repetition))
    if not common:
        raise SystemExit(f"{folder} has no repetition of a task that all strategies have.")
    whole = len(notes)
    notes = [note for note in notes if (note["task"], note["repetition"]) in common]
    held: dict[str, dict[str, list[Gained]]] = {}
    for strategy in STRATEGIES:
        for note in sorted(notes, key=lambda note: int(note["repetition"])):
            if note["strategy"] == strategy:
                one = Gained(**{each.name: note[each.name] for each in fields(Gained)})
                held.setdefault(strategy, {}).setdefault(note["task"], []).append(one)
    of_new = {one.search for of_tasks in held.get("new", {}).values() for one in of_tasks}
    lines = [
        f"{notes[0]['minutes']:g} minutes of two devices a search. Version of the search: "
        + ", ".join(f"{n} {' and '.join(v)}" for n, v in _versions(notes).items())
        + ". Excluded, as not all strategies and tasks of a source have them: "
        + f"{whole - len(notes)} searches.",
        "",
        "| task | strategy | repetitions | start | tuned − start | each repetition "
        "| kept the start | device seconds | of an evaluation of the start | trials "
        "| evaluations |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for task in TASKS:
        for strategy, tasks in held.items():
            if task in tasks:
                lines.append(_row(task, strategy, tasks[task]))
    lines += [
        "",
        "| strategy | tasks | searches | same search as new "
        "| tuned − start [95 %] | least of a task | minus new [95 %] |",
        "|---|---|---|---|---|---|---|",
    ]
    gains = {
        strategy: {task: Difference.of(task, each) for task, each in tasks.items()}
        for strategy, tasks in held.items()
    }
    for strategy, tasks in held.items():
        own = gains[strategy]
        least = min((float(one.values.mean()), task) for task, one in own.items())
        every = [one.search for of_task in tasks.values() for one in of_task]
        same = more = "–"
        if strategy != "new" and "new" in gains:
            same = str(sum(search in of_new for search in every))
            more = told(pooled([one.minus(gains["new"][task]) for task, one in own.items()]))
        lines.append(
            f"| {strategy} | {len(tasks)} | {len(every)} | {same} "
            f"| {told(pooled([*own.values()]))} | {least[0]:+.3f} ({least[1]}) | {more} |"
        )
    return "\n".join(lines) + "\n"


def _versions(notes: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Versions of the search by strategy."""
    found: dict[str, set[str]] = {name: set() for name in STRATEGIES}
    for note in notes:
        found[note["strategy"]].add(str(note["version"]))
    return {name: sorted(versions) for name, versions in found.items() if versions}


def _row(task: str, strategy: str, repetitions: Sequence[Gained]) -> str:
    means = [one.mean for one in repetitions]
    start = np.mean([np.mean(list(one.start.values())) for one in repetitions])
    cells = [
        task,
        strategy,
        str(len(repetitions)),
        f"{start:.3f}",
        told(pooled([Difference.of(task, repetitions)])),
        ", ".join(f"{mean:+.3f}" for mean in means),
        f"{sum(one.kept for one in repetitions)} of {len(repetitions)}",
        f"{np.mean([one.device_seconds for one in repetitions]):.0f}",
        ", ".join(f"{one.start_seconds:.3g}" for one in repetitions),
        f"{np.mean([one.trials for one in repetitions]):.0f}",
        f"{np.mean([one.evaluations for one in repetitions]):.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


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
            made = tasks if "new" in strategies else ()
            for task in TASKS:
                if task not in made and not study.note(task, "new", repetition).is_file():
                    options.error(f"{WANTED} ({task}, repetition {repetition}).")
        for repetition in range(chosen.repetitions):
            for strategy in strategies:
                for task in tasks:
                    study.search(task, strategy, repetition)
    print(report(chosen.report or chosen.out / "done", chosen.strategy or ()))


if __name__ == "__main__":
    main()
