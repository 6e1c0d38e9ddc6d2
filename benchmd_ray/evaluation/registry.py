"""Registry of benchmarks: entry points of installed packages, and import paths.

The four shipped benchmarks are entry points of the group `GROUP` too. A custom module is named on
the command line (``--bench package.module:NAME``) or in `NAMED`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from importlib.metadata import EntryPoint, distributions, entry_points
from itertools import chain
from pathlib import Path
from typing import Any

from benchmd_ray.errors import BenchmdError, first_line, unknown_name
from benchmd_ray.evaluation.benchmark import Benchmark, Start
from benchmd_ray.evaluation.evaluation import OF_TRANSFERS, Evaluation
from benchmd_ray.extensions.plugins import IMPORT_PATH, NAMED
from benchmd_ray.modality.modalities import Modality

PACKAGE = "benchmd-ray"
GROUP = "benchmd_ray.benchmarks"
"""Entry point group of packages with benchmarks: ``name = package.module:BENCHMARK``."""
USUAL = "benchmd"
"""The default benchmark."""


def add_benchmark(path: str) -> str:
    """Add the benchmark of an import path, also for child processes; returns its name."""
    paths = [path for path in os.environ.get(NAMED, "").split(",") if path]
    name = _loaded(path).name
    os.environ[NAMED] = ",".join(dict.fromkeys([*paths, path]))
    if name in broken_benchmarks():
        raise BenchmdError(broken_benchmarks()[name])
    return name


def benchmarks() -> dict[str, Benchmark]:
    """All valid benchmarks by name: of this package, of installed packages, of the user."""
    return _found(os.environ.get(NAMED, ""))[0]


def broken_benchmarks() -> dict[str, str]:
    """Faults of invalid benchmarks, by name or import path."""
    return _found(os.environ.get(NAMED, ""))[1]


def benchmark(name: str = USUAL) -> Benchmark:
    """The benchmark of that name, or of that import path."""
    if IMPORT_PATH.fullmatch(name):
        name = add_benchmark(name)
    if name in broken_benchmarks():
        raise BenchmdError(broken_benchmarks()[name])
    if USUAL not in benchmarks():
        raise BenchmdError(
            f"no benchmark {USUAL}: its entry point is missing. Install {PACKAGE}, in a "
            "checkout by `pip install -e .`."
        )
    if name not in benchmarks():
        raise unknown_name("benchmark", name, benchmarks())
    return benchmarks()[name]


def starts() -> dict[str, Start]:
    """The starts of all benchmarks by name, the default benchmark's default one first."""
    return {start.name: start for benchmark in benchmarks().values() for start in benchmark.starts}


def evaluations() -> dict[str, Evaluation]:
    return _evaluations(benchmarks())


def _evaluations(sound: dict[str, Benchmark]) -> dict[str, Evaluation]:
    return {e.name: e for declared in sound.values() for e in declared.evaluations}


def evaluation_named(name: str) -> Evaluation:
    """The evaluation of that name."""
    if name not in evaluations():
        raise unknown_name("evaluation", name, sorted(evaluations()))
    return evaluations()[name]


def asked_name(name: str) -> str:
    """The name of a benchmark, also by import path, or of an evaluation."""
    alone = evaluations().keys() - benchmarks().keys()
    if name not in alone and not IMPORT_PATH.fullmatch(name) and name not in benchmarks():
        raise unknown_name("benchmark or evaluation", name, [*benchmarks(), *sorted(alone)])
    return name if name in alone else benchmark(name).name


def evaluations_asked(name: str) -> tuple[Evaluation, ...]:
    """Evaluations of each transfer: those of a benchmark, or the default ones and a named one."""
    if name in benchmarks():
        return tuple(evaluation for evaluation in benchmark(name).evaluations if evaluation.planned)
    return tuple(dict.fromkeys((*OF_TRANSFERS, evaluations()[name])))


def settings_among(determinants: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among a run's determinants, by part, as for `Start.followed`."""
    parts = ("encoder", "pretrain", "transfer")
    return {name: determinants[name] for name in parts if name in determinants}


def protocol_of(kind: Modality, technique: str, *settings: Mapping[str, Any]) -> str:
    """Name of the first start whose protocol a run follows, or empty.

    ``settings`` are those of the run and of its pretraining, by part, as for `Start.followed`.
    """
    for start in starts().values():
        if all(start.followed(kind, technique, part) for part in settings):
            return start.name
    return ""


def usual_start() -> str:
    """Name of the default protocol, which tables do not show."""
    return benchmarks()[USUAL].starts[0].name


def published_for(dataset: str, setting: str, technique: str) -> tuple[Benchmark, float] | None:
    """The benchmark that published an AUROC for this result, and the AUROC."""
    for declared in benchmarks().values():
        value = declared.published and declared.published.auroc().get((dataset, setting, technique))
        if value:
            return declared, value
    return None


def built_in_space(technique: str, setting: str, kind: Modality) -> Path | None:
    """The file of a benchmark's search space for a search, if there is one."""
    for declared in benchmarks().values():
        if declared.space and (path := declared.space(technique, setting, kind)):
            return path
    return None


@functools.cache
def _found(named: str) -> tuple[dict[str, Benchmark], dict[str, str]]:
    sound: dict[str, Benchmark] = {}
    broken: dict[str, str] = {}
    paths: dict[str, str] = {}
    for entry in _entries():
        paths[entry.value if entry.name in paths else entry.name] = entry.value
    paths |= {path: path for path in named.split(",") if path}
    for name, path in paths.items():
        try:
            benchmark = _loaded(path)
            for what, taken in (
                ("benchmark", {benchmark.name} & sound.keys()),
                ("start", _starts(benchmark) & {*chain(*map(_starts, sound.values()))}),
                ("evaluation", _others(benchmark, sound)),
            ):
                if taken:
                    raise BenchmdError(
                        f"{path}: there is a {what} {min(taken)} already: choose another name."
                    )
            sound[benchmark.name] = benchmark
        except BenchmdError as error:
            broken[name] = str(error)
    return sound, broken


def _entries() -> list[EntryPoint]:
    """Entry points of all packages, ours first so that their names cannot be taken.

    Metadata of an older build in a checkout would hide ours in `entry_points`, so all are searched.
    """
    shipped = [entry for dist in distributions(name=PACKAGE) for entry in dist.entry_points]
    entries = {entry for entry in shipped if entry.group == GROUP} | {*entry_points(group=GROUP)}
    return sorted(entries, key=_order)


def _order(entry: EntryPoint) -> tuple[bool, bool, str, str]:
    is_other = entry.dist is None or entry.dist.name != PACKAGE
    return is_other, entry.name != USUAL, entry.name, entry.value


def _starts(benchmark: Benchmark) -> set[str]:
    return {start.name for start in benchmark.starts}


def _others(benchmark: Benchmark, sound: dict[str, Benchmark]) -> set[str]:
    """Names of evaluations that conflict with another one of the same name."""
    taken = _evaluations(sound)
    return {e.name for e in benchmark.evaluations if taken.get(e.name, e) is not e}


def _loaded(path: str) -> Benchmark:
    try:
        benchmark = EntryPoint("", path, GROUP).load()
    except Exception as error:  # whatever a module of the user does
        raise BenchmdError(
            f"the benchmark {path} cannot be imported ({type(error).__name__}: "
            f"{first_line(error)}): install it, or put its folder into PYTHONPATH on every node."
        ) from error
    if not isinstance(benchmark, Benchmark):
        raise BenchmdError(
            f"{path} is of the type {type(benchmark).__name__}, expected a "
            "benchmd_ray.evaluation.benchmark.Benchmark."
        )
    return benchmark


def commands() -> dict[str, str]:
    """Import paths of the benchmarks' commands, by name; the first of a name counts."""
    paths: dict[str, str] = {}
    for declared in benchmarks().values():
        paths = {**declared.commands, **paths}
    return paths


def screen_of(folder: Path) -> Any:
    """The detector that was fitted to a model, of the first benchmark that has one; or None."""
    paths = [declared.screen for declared in benchmarks().values() if declared.screen]
    screens = (named_by(path)(folder) for path in paths)
    return next((screen for screen in screens if screen is not None), None)


def named_by(path: str) -> Any:
    """Import the object at an import path of a benchmark."""
    try:
        return EntryPoint("", path, GROUP).load()
    except Exception as error:  # whatever a module of the user does
        raise BenchmdError(
            f"{path}, which a benchmark names, cannot be imported ({type(error).__name__}: "
            f"{first_line(error)})."
        ) from error
