"""What trials work on: the inner catalog of a small synthetic source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.settings.definition import Settings, load_settings
from benchmd_ray.tuning.stages import Arm, FamilyWork, Transfer, TrialContext
from benchmd_ray.tuning.trial import run_trial


@pytest.fixture(scope="session")
def searched_source(ecg_catalogs: dict[str, Catalog]) -> Catalog:
    """The source among the synthetic catalogs, not to be changed."""
    (source,) = (c for c in ecg_catalogs.values() if c.card.role == "source")
    return source


@pytest.fixture(scope="session")
def inner_ecg(searched_source: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Its inner catalog, not to be changed."""
    return inner_catalog(searched_source, tmp_path_factory.mktemp("inner"))


@pytest.fixture(scope="session")
def start_settings() -> Callable[..., Settings]:
    """Settings that a small quick search starts from, with further assignments."""

    def make(*assignments: str) -> Settings:
        small = (
            "encoder=tiny",
            "encoder.patch_size=125",
            "execution.device=cpu",
            "execution.precision=float32",
            "execution.checkpoint_seconds=0",
            "pretrain.batch_size=8",
            "pretrain.steps=6",
            "pretrain.optimiser.lr=1e-3",
            "transfer.batch_size=16",
            "transfer.epochs=4",
            "transfer.optimiser.lr=1e-3",
        )
        return load_settings(assignments=[*small, *assignments])

    return make


@pytest.fixture(scope="session")
def pretrained_ecg(
    inner_ecg: Catalog,
    start_settings: Callable[..., Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Folder of a pretraining on the inner catalog, not to be changed."""
    from benchmd_ray.training.jobs import PretrainJob
    from benchmd_ray.training.launch import launch
    from benchmd_ray.training.reporter import SilentReporter

    folder = tmp_path_factory.mktemp("pretrained")
    job = PretrainJob(start_settings(), "mae", inner_ecg.path, folder)
    launch(job, reporter=SilentReporter())
    return folder


@pytest.fixture
def arm(pretrained_ecg: Path, start_settings: Callable[..., Settings]) -> Callable[..., Arm]:
    """Makes one modality of a search."""

    def make(*assignments, modality="ecg", upstream=pretrained_ecg):
        return Arm(modality, start_settings(*assignments), upstream)

    return make


@pytest.fixture
def work(tmp_path: Path, arm: Callable[..., Arm]) -> Callable[..., TrialContext]:
    """Makes what the trials of a search of one family share."""

    def make(*arms, stage=None, rungs=(1, 3), technique="mae", folder=None, **changes):
        family = FamilyWork(technique, stage or Transfer(), arms or (arm(),), rungs)
        return TrialContext({technique: family}, folder or tmp_path / "search", **changes)

    return make


@pytest.fixture
def run(inner_ecg: Catalog) -> Callable[..., None]:
    """Runs an evaluation of a trial of the only family, on the inner catalog."""

    def run(work, values, report, number=0, evaluation=0, catalogs=None, **more):
        ((name, family),) = work.families.items()
        catalogs = catalogs or [inner_ecg.path] * len(family.arms)
        run_trial(work, number, evaluation, name, values, catalogs, report, **more)

    return run
