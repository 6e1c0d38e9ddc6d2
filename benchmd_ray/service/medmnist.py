"""From one file of MedMNIST to what is searched on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmd_ray.data.build import build
from benchmd_ray.data.cards import DatasetCard, cards
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.medmnist_cards import COLLECTION, CURRENT
from benchmd_ray.errors import unknown_name
from benchmd_ray.files import resource_folder
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.searches import Tuning
from benchmd_ray.ssl import SCRATCH
from benchmd_ray.tuning.search import Budget
from benchmd_ray.tuning.study import Method

START = {2: "resnet18", 3: "resnet18-3d"}
"""Baseline that a search starts from where none is chosen, by the images' dimensions."""
SMALL = {
    2: ("encoder.options.width=16", "transfer.epochs=20"),
    3: ("encoder.options.width=8", "encoder.options.resize=14", "transfer.epochs=10"),
}
"""What makes a baseline small enough for minutes on two cores, by the images' dimensions."""
SMALL_TRANSFORMER = ("encoder.width=64", "encoder.depth=4", "encoder.heads=4", "encoder.mlp=128")
"""The same for the transformer that is searched beside it."""


def built(
    file: Path, folder: Path, say: Callable[[str], None], *, any_md5: bool, cpus: int | None
) -> Catalog:
    """The catalog of a file of MedMNIST, built unless it is there.

    Args:
        file: Named as MedMNIST names it.
        folder: Of catalogs; it gets one named as the dataset.
        say: Takes a line for the user.
        any_md5: Accept a file with another MD5 than the official ones'.
        cpus: CPUs of an embedded Ray.

    Raises:
        BenchmdError: Its name is none of MedMNIST's, or it cannot be built.
    """
    card = _card_of(file)
    options = {"md5": "allow" if any_md5 else "require"}
    catalog = build(card.name, file.parent, folder / card.name, options=options, cpus=cpus or 1)
    rows = ", ".join(f"{name} {catalog.rows(name):,}" for name in catalog.manifest["splits"])
    say(f"{catalog.dataset}: {rows}; {catalog.path}")
    return catalog


def _card_of(file: Path) -> DatasetCard:
    files = {
        card.layouts[CURRENT].pattern: card
        for card in cards().values()
        if card.collection == COLLECTION
    }
    if file.name not in files:
        raise unknown_name("file of MedMNIST", file.name, files)
    return files[file.name]


def file_tuning(
    catalog: Catalog,
    *,
    baseline: str | None,
    small: bool,
    space: Path | None,
    held: tuple[str, ...],
    trials: int,
    seeds: tuple[int, ...],
) -> Tuning:
    """What is searched on a catalog of MedMNIST, and what is trained afterwards.

    Args:
        catalog: Of one of its datasets.
        baseline: What the search starts from; None takes that of `START`.
        small: Search narrow networks for few epochs.
        space: File of the user's own search space.
        held: Settings of the space that keep their value.
        trials: Trials of the search.
        seeds: Of the runs after it.
    """
    dimensions = len(catalog.modality.axes) - 1
    if small and space is None:
        space = resource_folder("search_spaces") / "medmnist-small.yaml"
    choice = Choice(
        catalogs=(catalog.path,),
        techniques=(SCRATCH,),
        seeds=seeds,
        assignments=(*SMALL[dimensions], *SMALL_TRANSFORMER) if small else (),
        baseline=baseline or START[dimensions],
    )
    return Tuning(
        choice,
        choice.settings,
        space=space,
        held=held,
        method=Method(seed=seeds[0]),
        budget=Budget(trials=trials),
    )
