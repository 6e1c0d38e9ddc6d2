"""The demo: the whole benchmark on small synthetic ECGs, by the ordinary code path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmd_ray.cluster import connected
from benchmd_ray.data.catalog import build
from benchmd_ray.data.synthetic import write_ecg
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

TRANSFERS = ({"mode": "linear"}, {"mode": "finetune", "labels": "small"})
ON_RAY = "mae"
"""The technique that is pretrained by two workers with DeepSpeed as a Ray Train job."""


def demo(folder: Path, say: Callable[[str], None], address: str | None = None) -> list[Run]:
    """Write data, build catalogs, pretrain, transfer and evaluate; what is done stays done.

    Args:
        folder: Everything is written below it.
        say: Takes a line for the user at each stage.
        address: Ray cluster; None works embedded.

    Returns:
        The transfer runs.
    """
    say("1/4 raw data: synthetic ECGs in the layouts of PTB-XL and PhysioNet/CinC")
    raw = folder / "raw"
    folders = write_ecg(raw)
    with connected(address, cpus=3):
        say("2/4 catalogs: Ray Data")
        for name, path in folders.items():
            catalog = build(name, path, folder / "catalogs" / name, allow_missing=True)
            splits = catalog.manifest["splits"].items()
            counts = ", ".join(f"{split} {held['records']}" for split, held in splits)
            say(f"    {name}: {counts}, {len(catalog.manifest['quarantined'])} quarantined")
        source, *targets = (folder / "catalogs" / name for name in folders)
        say("3/4 pretraining: each technique; mae on two workers by Ray Train and DeepSpeed")
        store = folder / "runs"
        upstreams: list[Path | None] = [None]
        for technique in METHODS:
            settings = SETTINGS
            if technique == ON_RAY:
                settings = updated(SETTINGS, {"execution": {"workers": 2}})
            upstreams.append(pretrain_run(technique, source, store, settings, address).folder)
    say("4/4 transfer to the source's labels, zero-shot evaluation on the targets")
    return [
        transfer_run(
            source,
            store,
            updated(SETTINGS, {"transfer": dict(transfer)}),
            upstream=upstream,
            targets=tuple(targets),
            address=address,
        )
        for transfer in TRANSFERS
        for upstream in upstreams
    ]
