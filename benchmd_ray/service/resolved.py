"""A run, resolved once from the user's request and then only read.

Its settings are final, including device, precision and encoder. Planning resolves the settings
(`resolve_settings`); naming adds the rest once the run that it starts from is finished.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.pooled import members_of
from benchmd_ray.runs.files import RUN
from benchmd_ray.runs.store import Run, read_run, run_folder
from benchmd_ray.settings.definition import Settings
from benchmd_ray.storage.location import Location
from benchmd_ray.training.jobs import SHARED, PretrainJob, TransferJob


@dataclass(frozen=True)
class ResolvedRun:
    """Full definition of a run, independent of its store."""

    settings: Settings
    technique: str
    source: Catalog
    """Catalog of its source; a transfer is scored on it."""
    upstream: Run | None
    """Finished pretraining that a transfer starts from; None starts from random weights."""
    name: str
    """Readable first part of its folder's name."""
    description: dict[str, Any]
    """Content of ``run.json``; its determinants, including versions of code parts, name the
    folder.
    """
    inner: Catalog | None = None
    """Inner catalog of the source that a fold run is trained on."""
    kept: Location | None = None
    """Folder with weights that a search kept of this training, see `Fold.model`."""

    @property
    def trained_on(self) -> Catalog:
        return self.inner or self.source

    def run(self, store: Path) -> Run:
        """Its run in a store; the folder need not exist."""
        folder = run_folder(store, self.name, self.description)
        return read_run(folder) if (folder / RUN).is_file() else Run(folder, self.description)

    def job(self, folder: Path) -> PretrainJob | TransferJob:
        if self.description["kind"] == "pretrain":
            paths = [catalog.path for catalog in members_of(self.trained_on)]
            more = tuple(paths[1:])
            return PretrainJob(self.settings, self.technique, paths[0], folder, more=more)
        upstream = None if self.upstream is None else self.upstream.folder
        features = SHARED if self.settings.transfer.freezes else None
        return TransferJob(self.settings, self.trained_on.path, folder, upstream, features)


def resolve_settings(settings: Settings, *, gpu: bool) -> Settings:
    """Replace ``auto`` in device and precision, as both are part of a run's name."""
    device, precision = settings.execution.device, settings.execution.precision
    if device == "auto":
        device = "cuda" if gpu else "cpu"
    if precision == "auto":
        precision = "bf16" if device == "cuda" else "float32"
    execution = replace(settings.execution, device=device, precision=precision)
    return replace(settings, execution=execution)
