"""From one file of MedMNIST to what is searched on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmd_ray.data.build import build
from benchmd_ray.data.cards import DatasetCard, cards
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.medmnist_cards import COLLECTION, CURRENT
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.encoder import require_fitting
from benchmd_ray.service.choice import Choice, technique_settings
from benchmd_ray.service.searches import Tuning, space_of
from benchmd_ray.ssl import SCRATCH
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.portfolio import read_portfolio
from benchmd_ray.tuning.spaces import starting_at

SMALL = {
    2: ("encoder.options.width=16", "transfer.epochs=20"),
    3: ("encoder.options.width=8", "encoder.options.resize=14", "transfer.epochs=10"),
}
"""What makes a baseline small enough for minutes on two cores, by the images' dimensions."""
SMALL_TRANSFORMER = ("encoder.width=64", "encoder.depth=4", "encoder.heads=4", "encoder.mlp=128")
"""The same for the transformer that is searched next to it."""


def built(
    card: DatasetCard,
    raw: Path,
    out: Path,
    say: Callable[[str], None],
    *,
    any_md5: bool,
    cpus: int | None,
) -> Catalog:
    """The catalog of a file of MedMNIST, built unless it is there.

    Args:
        card: Of the file.
        raw: Folder of the file.
        out: Folder of the catalog.
        say: Takes a line for the user.
        any_md5: Accept a file with another MD5 than the official ones'.
        cpus: CPUs of an embedded Ray.

    Raises:
        BenchmdError: It cannot be built.
    """
    options = {"md5": "allow" if any_md5 else "require"}
    catalog = build(card.name, raw, out, options=options, cpus=cpus or 1)
    rows = ", ".join(f"{name} {catalog.rows(name):,}" for name in catalog.manifest["splits"])
    say(f"{catalog.dataset}: {rows}; {catalog.path}")
    return catalog


def card_of(file: Path) -> DatasetCard:
    """The card of a file, by its name.

    Raises:
        BenchmdError: It is named as none of MedMNIST's.
    """
    files = {
        card.layouts[CURRENT].pattern: card
        for card in cards().values()
        if card.collection == COLLECTION
    }
    if file.name not in files:
        raise BenchmdError(
            f"{file} is named as no file of MedMNIST, expected one such as breastmnist.npz or "
            "breastmnist_64.npz: give it its name; `benchmd catalog list` has those of the "
            "datasets."
        )
    return files[file.name]


def file_tuning(
    card: DatasetCard,
    path: Path,
    *,
    start: str,
    small: bool,
    assignments: tuple[str, ...] = (),
    space: Path | None,
    held: tuple[str, ...],
    trials: int,
    seeds: tuple[int, ...],
) -> Tuning:
    """What is searched on a dataset of MedMNIST, and what is trained afterwards.

    Args:
        card: Of the dataset.
        path: Of its catalog, which need not be there yet.
        start: Baseline that the search starts from; empty takes the usual one.
        small: Search narrow networks for few epochs.
        assignments: ``a.b=value`` settings of the start, over all else.
        space: File of the user's own search space.
        held: Settings of the space that keep their value.
        trials: Trials of the search.
        seeds: Of the runs after it.

    Raises:
        BenchmdError: There is no such baseline, it does not fit the dataset, or the search cannot
            start there.
    """
    dimensions = len(card.signal.axes) - 1
    if small and space is None:
        space = Path(__file__).with_name("small.yaml")
    own = (*SMALL[dimensions], *SMALL_TRANSFORMER) if small else ()
    choice = Choice(
        catalogs=(path,),
        techniques=(SCRATCH,),
        seeds=seeds,
        assignments=(*own, *assignments),
        bench="medmnist",
        start=start,
    )
    begun, _ = technique_settings(choice, card.modality, SCRATCH)
    require_fitting(card.signal, begun.encoder)
    starting_at(space_of(SCRATCH, choice.settings[0], card.modality, space), begun, held)
    return Tuning(
        choice,
        choice.settings,
        space=space,
        held=held,
        method=Method(seed=seeds[0]),
        budget=Budget(trials=trials),
        portfolio=read_portfolio(),
    )
