"""What an encoder's pretraining saw: patients of pretrainings made here, names of published ones.

A pretraining stores the hashed patients of each of its catalogs. The hashes of two datasets are
keyed by their names: only records of one origin can be compared, and only those have to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from typing_extensions import TypedDict

from benchmd_ray.data.origins import require_datasets
from benchmd_ray.files.integrity import made_again, read_hashed_json
from benchmd_ray.schema.typed import typed

SEEN = "seen.json"
"""In the folder of a pretraining: the hashed patients of each catalog, by its digest."""
Seen = Mapping[str, Iterable[str]]


class SeenForm(TypedDict):
    patients: dict[str, list[str]]


class Published(TypedDict):
    """A published encoder, as its card states it: ``published`` in ``run.json``."""

    name: str
    title: str
    licence: str
    pretrained_on: list[str]
    """Names of datasets that have a card or are in the folder ``origins``."""
    also: list[str]
    """Other data that it was pretrained on, in words."""
    unlisted: str
    """What of its pretraining data is not known by name; empty if all are listed."""


def read_seen(folder: Path) -> Seen:
    """Hashed patients by catalog; empty for a pretraining that recorded none or is not here."""
    path = folder / SEEN
    if not path.is_file():
        return {}
    content = read_hashed_json(path, made_again(folder), SeenForm, of=folder)
    patients: dict[str, list[str]] = content["patients"]
    return patients


def checked_published(content: object, where: str) -> Published:
    """What a published encoder states; see `Published`.

    Raises:
        BenchmdError: It has another form, or names a dataset that has no card and no origin: with
            a misspelt name no contaminated row would be marked.
    """
    published: Published = typed(Published, content, where)
    require_datasets(published["pretrained_on"], where)
    return published
