"""Mutates files of a store and does with the store what commands do; prints what came out.

``python fuzz_stores.py STORE`` takes a job on each line of its input, ``[kind, seed, inputs]`` as
JSON, and prints a line of JSON for each. The store is as `untrusted.make_store` makes it, and is
copied before it is changed. Each job has a process of its own, with bounded memory.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from store_mutants import (
    Mutator,
    mutate_array,
    mutate_json,
    mutate_lines,
    mutate_parquet,
    mutate_shard,
    mutate_weights,
)

from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.records import decode_signals, decode_targets
from benchmd_ray.data.resident import resident_signals
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import modality
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.page import page
from benchmd_ray.report.report_figures import figures
from benchmd_ray.report.scored import kept, read_scored
from benchmd_ray.runs.history import (
    close_killed,
    last_metrics,
    read_history,
    read_metrics,
    seconds_worked,
    trained_by,
)
from benchmd_ray.runs.listing import listed
from benchmd_ray.runs.retention import prune
from benchmd_ray.runs.store import read_stores, require_weights
from benchmd_ray.service.estimate import measured_runs
from benchmd_ray.training.checkpoints import _undamaged_step
from benchmd_ray.training.jobs import transfer_result
from benchmd_ray.training.weights import load_classifier, load_encoder
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.records import read_searches
from benchmd_ray.tuning.spaces import space_for
from benchmd_ray.tuning.study import Study

MEGABYTES = 6144
"""Address space of a job: libraries and threads take about half of it."""
SECONDS = 10
"""Of processor time, after which an input hangs; of the clock, six times as many."""
Use = Callable[[], list[str]]
"""Does something with what was mutated; returns what it said of files that it skipped."""


@dataclass(frozen=True)
class Place:
    """A copy of the parts of a store that a kind of file needs."""

    store: Path
    space: Path
    """Of the search."""
    reported: bool
    """Whether the report is made of it, which takes longer than all else."""

    @property
    def folder(self) -> Path:
        """The run or search that is mutated; mutants may rename it."""
        (folder,) = [*self.store.glob("pretrain-*"), *self.store.glob("transfer-*")]
        return folder

    @property
    def catalog(self) -> Path:
        """The catalog that is mutated."""
        return self.store / "catalog"


def of_runs(place: Place) -> Iterator[Use]:
    """What `list`, `prune`, `report` and the next plan do with runs."""
    stored = read_stores([place.store])
    yield lambda: stored.notes
    for run in stored.found:
        yield lambda run=run: _no(listed(run), seconds_worked(run.folder), require_weights(run))
    yield lambda: _no(measured_runs(place.store), prune(place.store, "predictions", dry_run=True))
    yield from of_reports(place)


def of_reports(place: Place) -> Iterator[Use]:
    """What `report` says of runs and searches."""

    def report() -> list[str]:
        stored, searched = read_stores([place.store]), read_searches([place.store])
        notes = [*stored.notes, *searched.notes]
        if not place.reported:
            read = [read_scored(run) for run in stored.found if run.finished]
            return [*notes, *(note for each in read for note in each.skipped)]
        made = analyse(stored.found, searches=searched.found, skipped=notes, resamples=2)
        assert "</html>" in page(made, [])
        assert searched.notes or not searched.found or figures(made)
        return [note for note in made.notes if note.startswith("Skipped")]

    yield report


def of_models(place: Place) -> Iterator[Use]:
    """What loads a run's weights and results."""
    folder = place.folder
    yield lambda: _no(load_encoder(folder))
    yield lambda: _no(load_classifier(folder), transfer_result(folder))


def of_checkpoints(place: Place) -> Iterator[Use]:
    """What resuming reads before it loads; a damaged one counts as refused."""
    yield lambda: ["damaged"] if _undamaged_step(place.folder) < 4 else []


def of_logs(place: Place) -> Iterator[Use]:
    """What reads logs; their damaged lines are skipped."""
    folder = place.folder

    def read() -> list[str]:
        lines = [*read_metrics(folder), *read_history(folder)]
        last_metrics(folder)
        lines += trained_by(folder)
        assert np.isfinite(seconds_worked(folder))
        close_killed(folder)
        return ["nothing of it could be read"] if not lines else []

    yield read
    yield from of_reports(place)


def of_searches(place: Place) -> Iterator[Use]:
    """What reads a search."""
    yield lambda: read_searches([place.store]).notes
    yield from of_reports(place)


def of_studies(place: Place) -> Iterator[Use]:
    """What resumes a search."""
    space = space_for("mae", "linear", modality("ecg"), place.space)
    families = [Family("mae", "linear", space, ())]
    for path in place.store.glob("searches/*/study.log"):
        yield lambda path=path: _no(Study(path, families, Method()).trials())


def of_catalogs(place: Place) -> Iterator[Use]:
    """What opens a catalog and reads its rows."""
    catalog = open_catalog(place.catalog)
    yield lambda: _no(catalog.dataset, catalog.options, catalog.evaluation_splits)
    yield lambda: verify(catalog).faults
    for split in catalog.manifest["splits"]:
        yield lambda split=split: _no(*(_rows(catalog, table) for table in catalog.tables(split)))


def _rows(catalog: Catalog, table: Any) -> None:
    signals = decode_signals(table["signal"], catalog.signal)
    assert signals.shape == (len(table), *catalog.signal.stored_shape)
    assert decode_targets(table["target"]).shape == (len(table), len(catalog.card.classes))


def of_cached(place: Place) -> Iterator[Use]:
    """What maps a decoded split."""

    def read() -> list[str]:
        catalog = open_catalog(place.catalog)
        signals = resident_signals(catalog, "validation")
        assert signals.shape == (catalog.rows("validation"), *catalog.signal.stored_shape)
        return []

    yield read


def of_kept(place: Place) -> Iterator[Use]:
    """What takes a computation that was kept; damage is not refused, but computed anew."""
    yield lambda: _no(kept(*KEPT)["made"].to_numpy().reshape(40))


def _fits(held: Any) -> bool:
    return held.schema.equals(pa.schema([("made", pa.float64())])) and len(held) == 40


def _made() -> pa.Table:
    return pa.table({"made": np.ones(40)})


KEPT: tuple[Any, ...] = ({"x": np.arange(3)}, {"how": 1}, _made, _fits)


def _no(*_: object) -> list[str]:
    return []


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    file: str
    """Pattern of the one that is mutated, within the place."""
    mutate: Mutator
    uses: Callable[[Place], Iterator[Use]]
    parts: tuple[str, ...] = ("transfer-*",)
    """Patterns of the parts of the store that are needed, the first match of each."""
    reported: int = 25
    """The report is made of one input in so many."""


SEARCH = ("searches/*", "transfer-*")
KINDS = {
    "run.json": Kind("transfer-*/run.json", mutate_json, of_runs),
    "done.json": Kind("transfer-*/done.json", mutate_json, of_runs),
    "training.json": Kind("transfer-*/training.json", mutate_json, of_models),
    "model.json": Kind("transfer-*/model.json", mutate_json, of_models),
    "model.safetensors": Kind("transfer-*/model.safetensors", mutate_weights, of_models),
    "checkpoint.json": Kind(
        "pretrain-*/checkpoints/step_000000004/checkpoint.json",
        mutate_json,
        of_checkpoints,
        ("pretrain-*",),
    ),
    "metrics.jsonl": Kind("transfer-*/metrics.jsonl", mutate_lines, of_logs),
    "history.jsonl": Kind("transfer-*/history.jsonl", mutate_lines, of_logs),
    "hardware.jsonl": Kind("transfer-*/hardware.jsonl", mutate_lines, of_logs),
    "predictions": Kind(
        "transfer-*/predictions/classification/ptb-xl.parquet",
        mutate_parquet,
        of_reports,
        reported=5,
    ),
    "search.json": Kind("searches/*/search.json", mutate_json, of_searches, SEARCH),
    "result.json": Kind("searches/*/result.json", mutate_json, of_searches, SEARCH),
    "trials.parquet": Kind("searches/*/trials.parquet", mutate_parquet, of_searches, SEARCH),
    "study.log": Kind("searches/*/study.log", mutate_lines, of_studies, SEARCH[:1]),
    "manifest.json": Kind("catalog/manifest.json", mutate_json, of_catalogs, ("catalog",)),
    "shards": Kind("catalog/shards/test-*.parquet", mutate_shard, of_catalogs, ("catalog",)),
    "decoded split": Kind("cache/*-validation.npy", mutate_array, of_cached, ("catalog", "cache")),
    "kept computation": Kind("cache/report/*.parquet", mutate_parquet, of_kept, ("cache",)),
}


def copied(kind: Kind, whole: Path, target: Path, *, reported: bool) -> Place:
    """A new copy of what a kind of file needs; files that are not mutated are linked."""
    store = target / "store"
    for pattern in kind.parts:
        part = next(path for path in sorted(whole.glob(pattern)) if pattern != "cache" or path)
        shutil.copytree(part, store / part.relative_to(whole), copy_function=os.link)
    return Place(store, whole.parent / "space.yaml", reported)


def outcomes_of(name: str, seed: int, inputs: int, whole: Path) -> dict[str, Any]:
    """Mutate and use, and count what came out; the first input is the file as it was written."""
    kind, rng = KINDS[name], np.random.default_rng(seed)
    outcomes: Counter[str] = Counter()
    faults, slowest = [], 0.0
    for number in range(inputs + 1):
        with tempfile.TemporaryDirectory() as folder:
            place = copied(kind, whole, Path(folder), reported=number % kind.reported == 0)
            os.environ["BENCHMD_CACHE"] = str(place.store / "cache")
            path = next(iter(sorted(place.store.glob(kind.file))))
            _unlink(path.parent, place.store)
            start = time.process_time()
            if number:
                kind.mutate(path, rng)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(6 * SECONDS)
            try:
                refused = used(kind.uses(place))
                if number:
                    outcomes["refused" if refused else "read"] += 1
                else:
                    assert not refused, "refused as it was written"
            except BaseException as error:
                outcomes["anything else"] += 1
                faults.append(f"{name} #{number}: {type(error).__name__}: {error}"[:300])
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            slowest = max(slowest, time.process_time() - start)
    return {"outcomes": outcomes, "faults": faults[:20], "slowest": round(slowest, 3)}


def _unlink(folder: Path, store: Path) -> None:
    """Make copies of the linked files that may be changed: in a folder, within and above it."""
    held = [*folder.rglob("*")]
    for up in folder.parents:
        held += up.iterdir() if store in up.parents else ()
    for path in filter(Path.is_file, held):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)


def used(uses: Iterator[Use]) -> bool:
    """Whether any use refused what was mutated, or said that it skips it."""
    refused = False
    while True:
        try:
            use = next(uses, None)
            if use is None:
                return refused
            refused |= bool(use())
        except BenchmdError:
            refused = True


class Hangs(BaseException):
    """An input takes too long; nothing that reads it takes this for damage."""


def hangs(*_: object) -> None:
    """Ends what takes too long."""
    raise Hangs


def main(whole: Path) -> None:
    """Do each job in a forked process."""
    logging.disable()
    for line in sys.stdin:
        name, seed, inputs = json.loads(line)
        child = os.fork()
        if not child:
            resource.setrlimit(resource.RLIMIT_AS, (MEGABYTES * 2**20,) * 2)
            signal.signal(signal.SIGPROF, hangs)
            signal.signal(signal.SIGALRM, hangs)
            sys.stdout.write(json.dumps(outcomes_of(name, seed, inputs, whole)) + "\n")
            sys.stdout.flush()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            sys.stdout.write(json.dumps({"ended": status}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
