"""The demo: the whole benchmark on small synthetic data, by the ordinary code path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmd_ray.cluster import connected
from benchmd_ray.data.build import build
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.synthetic import WRITERS
from benchmd_ray.errors import unknown_name
from benchmd_ray.results.store import Run
from benchmd_ray.service.execute import pretrain_run, transfer_run
from benchmd_ray.settings import ENCODERS, Settings, updated
from benchmd_ray.ssl import METHODS

SETTINGS = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {
        "pretrain": {"steps": 150, "batch_size": 32, "optimiser": {"lr": 1e-3}},
        "transfer": {"epochs": 15, "batch_size": 32, "optimiser": {"lr": 1e-3}},
    },
)
"""Small enough for two cores and a few minutes."""

TECHNIQUES = {"ecg": tuple(METHODS)}
"""Pretraining techniques of a modality; the others have `FEWER`."""
FEWER = ("mae",)
TRANSFERS = ({"mode": "linear"}, {"mode": "finetune", "labels": "small"})
ON_RAY = ("ecg", "mae")
"""What is pretrained by two workers with DeepSpeed as a Ray Train job."""


def demo(
    folder: Path,
    say: Callable[[str], None],
    address: str | None = None,
    modalities: Sequence[str] = (),
) -> list[Run]:
    """Write data, build catalogs, pretrain, transfer and evaluate; what is done stays done.

    Args:
        folder: Everything is written below it.
        say: Takes a line for the user at each stage.
        address: Ray cluster; None works embedded.
        modalities: Names of modalities; none takes all.

    Returns:
        The transfer runs.

    Raises:
        BenchmdError: A modality does not exist, or the work failed.
    """
    chosen = list(modalities or WRITERS)
    for name in chosen:
        if name not in WRITERS:
            raise unknown_name("modality", name, WRITERS)
    runs: list[Run] = []
    with connected(address, cpus=3):
        for number, name in enumerate(chosen, 1):
            say(f"{number}/{len(chosen)} {name}: synthetic raw data, catalogs by Ray Data")
            source, *targets = _catalogs(name, folder, say)
            runs += _runs(name, source, targets, folder / "runs", say, address)
    return runs


def _catalogs(modality: str, folder: Path, say: Callable[[str], None]) -> list[Catalog]:
    """Catalogs of a modality's datasets, the source first."""
    out = folder / "catalogs"
    listed = out / f"{modality}.txt"  # written when all are built
    if listed.is_file():
        return [open_catalog(out / name) for name in listed.read_text("utf-8").split()]
    found = []
    for name, raw in WRITERS[modality](folder / "raw").items():
        catalog = build(name, raw, out / name, allow_missing=True, max_quarantined=0.1)
        splits = catalog.manifest["splits"].items()
        counts = ", ".join(f"{split} {held['records']}" for split, held in splits)
        say(f"    {name}: {counts}, {len(catalog.manifest['quarantined'])} quarantined")
        found.append(catalog)
    listed.write_text("\n".join(catalog.path.name for catalog in found), "utf-8")
    return found


def _runs(
    modality: str,
    source: Catalog,
    targets: list[Catalog],
    store: Path,
    say: Callable[[str], None],
    address: str | None,
) -> list[Run]:
    """The transfer runs of a modality, after its pretraining."""
    upstreams: list[Path | None] = [None]
    for technique in TECHNIQUES.get(modality, FEWER):
        settings = SETTINGS
        if (modality, technique) == ON_RAY:
            say(f"    {technique} on two workers by Ray Train and DeepSpeed")
            settings = updated(SETTINGS, {"execution": {"workers": 2}})
        upstreams.append(pretrain_run(technique, source.path, store, settings, address).folder)
    return [
        transfer_run(
            source.path,
            store,
            updated(SETTINGS, {"transfer": dict(transfer)}),
            upstream=upstream,
            targets=tuple(target.path for target in targets),
            address=address,
        )
        for transfer in TRANSFERS
        for upstream in upstreams
    ]
