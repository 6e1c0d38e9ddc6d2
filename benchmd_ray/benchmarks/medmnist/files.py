"""From files of MedMNIST to searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmd_ray.benchmarks.medmnist.recipes import baseline_settings, reductions
from benchmd_ray.data.build import build
from benchmd_ray.data.cards import DatasetCard, cards
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.medmnist_cards import COLLECTION, CURRENT
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.models.encoder import require_fitting
from benchmd_ray.service.choice import Choice, technique_settings
from benchmd_ray.service.families import Tuning, space_of
from benchmd_ray.ssl import SCRATCH
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.portfolio import read_portfolio
from benchmd_ray.tuning.spaces import starting_at


def built(
    card: DatasetCard,
    raw: Path,
    out: Path,
    say: Callable[[str], None],
    *,
    any_md5: bool,
    cpus: int | None,
) -> Catalog:
    """The catalog of a file of MedMNIST, built unless it exists."""
    options = {"md5": "allow" if any_md5 else "require"}
    catalog = build(card.name, raw, out, options=options, cpus=cpus or 1)
    rows = ", ".join(f"{name} {catalog.rows(name):,}" for name in catalog.manifest["splits"])
    say(f"{catalog.dataset}: {rows}; {catalog.path}")
    return catalog


def cards_of(
    paths: Sequence[Path], say: Callable[[str], None] = lambda text: None
) -> dict[str, tuple[DatasetCard, Path]]:
    """Card and file of each dataset by name, of files or of all files in folders."""
    cards_by_name = {card.layouts[CURRENT].pattern: card for card in _every_card()}
    chosen: dict[str, tuple[DatasetCard, Path]] = {}
    for path in paths:
        files = [path]
        if path.is_dir():
            archives = sorted(path.glob("*.npz"))
            files = [file for file in archives if file.name in cards_by_name]
            if other := [file.name for file in archives if file.name not in cards_by_name]:
                say(f"skipped, as MedMNIST has no file of that name: {', '.join(other)}")
        if not files or files[0].name not in cards_by_name:
            raise BenchmdError(
                f"{path} is named as no file of MedMNIST, and holds none, expected one such as "
                "breastmnist.npz or breastmnist_64.npz: give it its name; `benchmd catalog list` "
                "has those of the datasets."
            )
        for file in files:
            card = cards_by_name[file.name]
            if card.name in chosen:
                raise BenchmdError(
                    f"{chosen[card.name][1]} and {file} are both files of {card.name}: name one."
                )
            chosen[card.name] = (card, file)
    return chosen


def usual_cards() -> list[DatasetCard]:
    """Those of MedMNIST's datasets at their usual size, 28."""
    return [card for card in _every_card() if "-" not in card.name]


def _every_card() -> list[DatasetCard]:
    return [card for card in cards().values() if card.collection == COLLECTION]


def file_tunings(
    chosen: Sequence[DatasetCard], folder: Path | None, *, starts: tuple[str, ...], **asked: Any
) -> list[tuple[DatasetCard, Tuning]]:
    """Searches on datasets: from each baseline that fits one of them, or from the usual ones.

    Catalogs in ``folder`` may not exist yet; None plans by the cards.
    """
    tunings: list[tuple[DatasetCard, Tuning]] = []
    for start in starts or ("",):
        fitting = [card for card in chosen if not start or _fits(card, start)]
        if not fitting:  # says what is wrong
            file_tuning(chosen[0], folder, start=start, **asked)
        tunings += [(card, file_tuning(card, folder, start=start, **asked)) for card in fitting]
    return sorted(tunings, key=lambda pair: pair[0].name)


def _fits(card: DatasetCard, start: str) -> bool:
    try:
        require_fitting(card.signal, baseline_settings(card.modality, start).encoder)
    except BenchmdError:
        return False
    return True


def file_tuning(
    card: DatasetCard,
    folder: Path | None,
    *,
    start: str,
    small: bool,
    techniques: tuple[str, ...] = (),
    assignments: tuple[str, ...] = (),
    space: Path | None,
    held: tuple[str, ...],
    single: bool = False,
    seeds: tuple[int, ...],
    **limits: Any,
) -> Tuning:
    """A search on a dataset from a baseline or the usual one (empty), over all families."""
    if small and space is None and (techniques or (SCRATCH,))[0] == SCRATCH:
        space = Path(__file__).with_name("small.yaml")
    reduced = reductions(card.modality) if small else ()
    choice = Choice(
        catalogs=() if folder is None else (folder / card.name,),
        datasets=(card.name,),
        seeds=seeds,
        assignments=assignments,
        bench="medmnist",
        start=start,
    )
    if not techniques or SCRATCH in techniques:
        of_scratch = replace(choice, overrides=(*reduced, *choice.overrides))
        _require_within_space(of_scratch, card.modality, space, held)
    return Tuning(
        choice,
        techniques=techniques,
        space=space,
        held=held,
        method=Method(seed=seeds[0]),
        budget=Budget(**limits),
        portfolio=read_portfolio(),
        single=single,
        reductions=reduced,
    )


def _require_within_space(
    choice: Choice, modality: Modality, space: Path | None, held: tuple[str, ...]
) -> None:
    """Refuse a baseline that the signals or the space of networks from scratch do not fit."""
    begun, _ = technique_settings(choice, modality, SCRATCH)
    require_fitting(modality.signal, begun.encoder)
    searched = space_of(SCRATCH, choice.settings[0], modality, space)
    names = {parameter.name for parameter in searched.parameters}
    starting_at(searched, begun, names.intersection(held))  # `held` may be of another family
