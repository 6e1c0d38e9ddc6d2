"""A small store with everything in it, and all that commands do with what they read back of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from click.testing import CliRunner

from benchmd_ray.cli import main
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import modality
from benchmd_ray.report.against_paper import against_paper
from benchmd_ray.report.analysis import analyse
from benchmd_ray.runs.history import seconds_worked
from benchmd_ray.runs.listing import listed
from benchmd_ray.runs.retention import prune
from benchmd_ray.runs.store import read_run, read_stores, require_weights
from benchmd_ray.service.estimate import measured_runs
from benchmd_ray.service.naming import finished_upstream, transferring
from benchmd_ray.service.resolved import resolve_settings
from benchmd_ray.service.scored import is_scored
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.checkpoints import _undamaged_step
from benchmd_ray.training.jobs import transfer_result
from benchmd_ray.training.weights import load_classifier, load_encoder, model_description
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.records import read_searches
from benchmd_ray.tuning.spaces import space_for
from benchmd_ray.tuning.study import Study

SETTINGS = """
encoder: tiny
pretrain: {steps: 4, batch_size: 8}
transfer: {epochs: 2, batch_size: 16}
execution: {device: cpu, keep: checkpoints, log_every: 1, checkpoint_every: 2}
"""
SPACE = """
transfer.optimiser.lr: {kind: log float, low: 1.0e-5, high: 1.0e-1}
transfer.batch_size: {kind: choice, values: [16, 32]}
"""


def make_store(folder: Path, catalogs: list[Path]) -> Path:
    """A store of runs, predictions and a search, below a folder that holds the user's files.

    Args:
        folder: Takes ``settings.yaml``, ``space.yaml`` and the store ``runs``.
        catalogs: A source's and a target's.
    """
    (folder / "settings.yaml").write_text(SETTINGS)
    (folder / "space.yaml").write_text(SPACE)
    arguments = ["tune", "--technique", "mae", "--setting", "linear", "--trials", "2", "--single"]
    arguments += ["--settings", str(folder / "settings.yaml"), "--seed", "0", "--seed", "1"]
    arguments += ["--space", str(folder / "space.yaml")]
    for path in catalogs:
        arguments += ["--catalog", str(path)]
    done = CliRunner().invoke(main, [*arguments, "--store", str(folder / "runs")])
    assert done.exit_code == 0, done.output
    return folder / "runs"


def uses(store: Path, source: Catalog, *, report: bool) -> Iterator[Callable[[], object]]:
    """What commands do with a store, but training; reports, which take longest, if asked for."""
    stored, searched = read_stores([store]), read_searches([store])
    notes = [*stored.notes, *searched.notes]
    found = stored.found
    yield lambda: [(listed(run), seconds_worked(run.folder)) for run in found]
    if report:
        yield lambda: analyse(
            found, searches=searched.found, skipped=notes, resamples=2, curves=False
        )
        yield lambda: against_paper(found, resamples=2)
    yield lambda: measured_runs(store)
    yield lambda: prune(store, "predictions", dry_run=True)
    settings = resolve_settings(Settings(), gpu=False)
    for folder in sorted({path.parent for path in store.glob("*/run.json")}):
        yield lambda folder=folder: require_weights(read_run(folder))
        yield lambda folder=folder: (model_description(folder), load_encoder(folder))
        yield lambda folder=folder: _undamaged_step(folder)
        if folder.name.startswith("transfer"):
            yield lambda folder=folder: load_classifier(folder)
            yield lambda folder=folder: transfer_result(folder)
            yield lambda folder=folder: is_scored(read_run(folder), source, whole=True)
        else:
            yield lambda folder=folder: transferring(
                source, settings, finished_upstream(folder, source)
            )
    for path in sorted(store.glob("searches/*/study.log")):
        space = space_for("mae", "linear", modality("ecg"), store.parent / "space.yaml")
        families = [Family("mae", "linear", space, ())]
        yield lambda path=path, families=families: Study(path, families, Method()).trials()
    for path in sorted(store.glob("inner/catalogs/ptb-xl-*")):
        yield lambda path=path: verify(open_catalog(path))


def use(store: Path, source: Catalog, *, report: bool = True) -> list[str]:
    """Do all of it; what was refused. Any other error than a refusal is raised."""
    refused = []
    for each in uses(store, source, report=report):
        try:
            each()
        except BenchmdError as error:
            refused.append(str(error))
    return refused
