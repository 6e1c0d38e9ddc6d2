r"""``python -m speed.scale`` from the project's root.

How parts grow with what they have to do; there is no peer. For each size of each part:

- ``store``: a local store of so many finished runs: listed, watched, reported on, and once more
  after another run was added (``report_again``);
- ``catalog``: a catalog of so many tiny shards: opened, and its training split read
  (``--stream``: streamed by Ray, too);
- ``workers``: so many processes that work on the runs of one store, each run by whoever takes it
  first: all of them are finished once, and nothing is lost;
- ``plan``: so many runs planned from a choice (``--schedule``: scheduled on an embedded Ray, too,
  with work that is nothing).

Each is done once, in a process of its own: ``seconds``, ``cpu_seconds`` (with those of processes
that it starts), ``ms_per_unit`` and ``peak_mib`` (with the imports, which take some 400).
``growth`` is the CPU time per unit of the largest size over that of the smallest: at most 1 where
nothing is worse than linear.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from benchmd_ray.cli import main as benchmd
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.errors import Busy
from benchmd_ray.runs.store import read_run, read_stores, working
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.plan import make_plan
from speed import measure, stores

PER_WORKER = 8
"""Runs of the store for each of the workers."""
SIZES = {
    "store": (100, 1_000, 10_000),
    "catalog": (200, 2_000, 20_000),
    "workers": (4, 16, 64),
    "plan": (100, 1_000, 10_000),
}
DECLARED = {
    "of": ([*SIZES], "parts to measure", [*SIZES]),
    "sizes": ([0], "sizes of each part; 0: its own three"),
    "records": (200, "predictions of a run"),
    "resamples": (1000, "of the bootstrap"),
    "figures": (False, "draw the report's figures, too"),
    "stream": (False, "stream the catalog by Ray, too"),
    "schedule": (False, "schedule the plan on Ray, too"),
}
Work = Callable[[], object]
Figures = dict[str, float]


def in_own_process(work: Work, units: int) -> Figures:
    """Do some work in a fork of this process, and measure it.

    Raises:
        AssertionError: The work failed.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(work, units, sender))
    process.start()
    sender.close()
    try:
        figures: Figures = receiver.recv()
    except EOFError:
        raise AssertionError("the work failed") from None
    finally:
        process.join()
    return figures


def _measured(work: Work, units: int, sender: Connection) -> None:
    wall, before = time.perf_counter(), measure.cpu_seconds()
    work()
    seconds, cpu = time.perf_counter() - wall, measure.cpu_seconds() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    figures = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "ms_per_unit": 1000 * seconds / units,
        "cpu_ms_per_unit": 1000 * cpu / units,
        "peak_mib": peak,
    }
    sender.send(measure.rounded_all(figures))


def command(*arguments: str) -> None:
    """Run a command of the package in this process.

    Raises:
        AssertionError: It failed.
    """
    result = CliRunner().invoke(benchmd, arguments)
    if result.exit_code:
        raise AssertionError(result.output[-2000:])


def of_store(folder: Path, size: int, options: argparse.Namespace) -> dict[str, Figures]:
    """List, watch and report on a store."""
    store, out = folder / "runs", folder / "report"
    fill = partial(stores.fill, store, records=options.records)
    in_own_process(partial(fill, 0, size), size)
    figures = "all" if options.figures else "none"
    report = partial(
        command,
        *("report", str(store), "--out", str(out), "--figures", figures),
        *("--resamples", str(options.resamples)),
    )
    parts: dict[str, Work] = {
        "list_first": partial(command, "list", str(store)),
        "list": partial(command, "list", str(store)),
        "watch": partial(command, "watch", "--once", str(store)),
        "report": report,
    }
    done = {name: in_own_process(work, size) for name, work in parts.items()}
    in_own_process(partial(fill, size, size + 1), 1)
    return done | {"report_again": in_own_process(report, size)}


def of_catalog(folder: Path, size: int, options: argparse.Namespace) -> dict[str, Figures]:
    """Open and read a catalog."""
    path = folder / "catalog"
    in_own_process(partial(stores.shards, path, size), size)
    parts: dict[str, Work] = {"open": partial(open_catalog, path), "read": partial(_read, path)}
    if options.stream:
        parts["stream"] = partial(_streamed, path)
    return {name: in_own_process(work, size) for name, work in parts.items()}


def _read(path: Path) -> int:
    return sum(len(table) for table in open_catalog(path).tables("train"))


def _streamed(path: Path) -> None:
    from benchmd_ray.cluster.connection import connected
    from benchmd_ray.data.streaming import StreamingFeed

    with connected(cpus=2):
        feed = StreamingFeed(open_catalog(path), "train", seed=0)
        rows = sum(len(batch.rows) for batch in feed.epoch(64, 0))
    if rows < feed.rows:
        raise AssertionError(f"{rows} of {feed.rows} rows were streamed")


def of_workers(folder: Path, size: int, _: argparse.Namespace) -> dict[str, Figures]:
    """Processes that work on one store at once, and what is in it afterwards."""
    store, count = folder / "runs", PER_WORKER * size
    in_own_process(partial(stores.fill, store, 0, count, finished=False), count)
    return {"work": in_own_process(partial(_worked, store, size, count), count)}


def _worked(store: Path, workers: int, count: int) -> None:
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=work_on, args=(store, number, workers)) for number in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if failed := [process.exitcode for process in processes if process.exitcode]:
        raise AssertionError(f"{len(failed)} workers failed")
    require_whole(store, count)


def work_on(store: Path, number: int, workers: int) -> None:
    """Take each run of a store that nobody else works on, and finish it.

    Each worker begins elsewhere and comes by again, so that they meet.
    """
    folders = sorted(path.parent for path in store.glob("*/run.json"))
    start = number * len(folders) // (2 * workers)
    for folder in folders[start:] + folders[:start]:
        with contextlib.suppress(Busy), working(read_run(folder)):
            with (folder / "worked").open("a", encoding="utf-8") as file:
                file.write(f"{number}\n")


def require_whole(store: Path, count: int) -> None:
    """Make sure that each run of a store was worked on once, and is finished and readable.

    Raises:
        AssertionError: One was not, or twice, or its history was lost.
    """
    stored = read_stores([store])
    if stored.damaged or len(stored.found) != count:
        raise AssertionError(f"{len(stored.found)} of {count} runs: {stored.damaged}")
    for run in stored.found:
        worked = (run.folder / "worked").read_text("utf-8").split()
        history = (run.folder / "history.jsonl").read_text("utf-8").splitlines()
        if not run.finished or len(worked) != 1 or len(history) != 2:
            raise AssertionError(f"{run!r} was worked on by {worked}: {history}")


def of_plan(folder: Path, size: int, options: argparse.Namespace) -> dict[str, Figures]:
    """Make a plan of linear evaluations, and schedule it."""
    path = folder / "catalog"
    in_own_process(partial(stores.shards, path, 1), 1)
    parts: dict[str, Work] = {"make": partial(make_plan, chosen(path, size), tflops=1.0)}
    if options.schedule:
        parts["schedule"] = partial(_scheduled, path, folder, size)
    return {name: in_own_process(work, size) for name, work in parts.items()}


def chosen(catalog: Path, seeds: int) -> Choice:
    """Linear evaluation of so many seeds."""
    return Choice(
        catalogs=(catalog,),
        techniques=("scratch",),
        settings=("linear",),
        seeds=tuple(range(seeds)),
        assignments=("execution.device=cpu",),
    )


def _scheduled(path: Path, folder: Path, size: int) -> None:
    from benchmd_ray.cluster.connection import connected
    from studies.cluster_scale import empty_plan

    with connected(cpus=2):
        empty_plan(open_catalog(path), folder / "runs", size)


PARTS = {"store": of_store, "catalog": of_catalog, "workers": of_workers, "plan": of_plan}


def measured(part: str, sizes: Sequence[int], options: argparse.Namespace) -> dict[str, Any]:
    """The figures of each size of a part, and their growth."""
    figures = {}
    for size in sorted(sizes):
        with tempfile.TemporaryDirectory() as name:
            with patch.dict(os.environ, {"BENCHMD_CACHE": str(Path(name, "cache"))}):
                figures[size] = PARTS[part](Path(name), size, options)
    first, last = figures[min(figures)], figures[max(figures)]
    growth = {name: last[name]["cpu_ms_per_unit"] / first[name]["cpu_ms_per_unit"] for name in last}
    sizes_of = [{"units": size, **of_size} for size, of_size in figures.items()]
    return {"sizes": sizes_of, "growth": measure.rounded_all(growth)}


def _sizes(part: str, asked: Sequence[int]) -> Sequence[int]:
    return asked if all(asked) else SIZES[part]


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, repeats=False, may_be_0={"sizes"})
    if options.records < 20:
        raise SystemExit("--records has to be 20 or more.")
    with contextlib.redirect_stderr(io.StringIO()):
        parts = {part: measured(part, _sizes(part, options.sizes), options) for part in options.of}
    measure.print_result("scale", options, **parts)


if __name__ == "__main__":
    main()
