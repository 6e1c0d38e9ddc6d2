"""What runs are trained on: patients and contents of those made here, names of published encoders.

A pretraining stores the hashed patients of each of its catalogs, a transfer those of its source.
Hashes of patients are keyed by their cards' ``namespace``: only equal ones can be compared.
Contents (`data.records.contents`) can be compared between all datasets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, NotRequired

import numpy as np
import numpy.typing as npt
from pydantic import Field
from typing_extensions import TypedDict

from benchmd_ray.data.origins import require_datasets
from benchmd_ray.files.integrity import made_again, read_hashed_json, write_hashed_json
from benchmd_ray.schema.typed import typed

SEEN = "seen.json"
"""In the folder of a pretraining: what it saw of each catalog, by its digest."""
LEARNED = "learned.json"
"""In the folder of a transfer: its source's records that trained it or chose its epoch."""
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{16})*$")]
"""Contents of records, 16 digits each."""
NOTHING = np.empty(0, np.uint64)


class Records(NamedTuple):
    """Records that something saw."""

    patients: Collection[str]
    contents: npt.NDArray[np.uint64] = NOTHING
    """Distinct, but those of constant signals."""


class Learned(NamedTuple):
    """The records that a transfer learned from."""

    namespace: str
    """Of its source's card."""
    id_key: str
    """Of its source's catalog, see `data.records.id_key_digest`."""
    records: Records


class SeenForm(TypedDict):
    patients: dict[str, list[str]]
    contents: NotRequired[dict[str, Hex]]
    """Earlier versions stored none."""


class LearnedForm(TypedDict):
    namespace: str
    id_key: str
    patients: list[str]
    contents: Hex


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


def read_seen(folder: Path) -> dict[str, Records]:
    """What a pretraining saw by catalog; empty for one that recorded nothing or is not here."""
    path = folder / SEEN
    if not path.is_file():
        return {}
    content = read_hashed_json(path, made_again(folder), SeenForm, of=folder)
    contents = content.get("contents", {})
    return {
        catalog: Records(patients, _numbers(contents.get(catalog, "")))
        for catalog, patients in content["patients"].items()
    }


def write_seen(folder: Path, seen: Mapping[str, Records]) -> None:
    content = {
        "patients": {catalog: sorted(records.patients) for catalog, records in seen.items()},
        "contents": {catalog: _hex(records.contents) for catalog, records in seen.items()},
    }
    write_hashed_json(folder / SEEN, content, of=folder)


def read_learned(folder: Path) -> Learned | None:
    """What a transfer learned from; None for one of an earlier version, which did not store it."""
    path = folder / LEARNED
    if not path.is_file():
        return None
    content = read_hashed_json(path, made_again(folder), LearnedForm, of=folder)
    records = Records(content["patients"], _numbers(content["contents"]))
    return Learned(content["namespace"], content["id_key"], records)


def write_learned(folder: Path, learned: Learned) -> None:
    patients, contents = learned.records
    content = {
        "namespace": learned.namespace,
        "id_key": learned.id_key,
        "patients": sorted(patients),
        "contents": _hex(contents),
    }
    write_hashed_json(folder / LEARNED, content, of=folder)


def _hex(contents: npt.NDArray[np.uint64]) -> str:
    return contents.astype(">u8").tobytes().hex()


def _numbers(text: str) -> npt.NDArray[np.uint64]:
    return np.frombuffer(bytes.fromhex(text), ">u8").astype(np.uint64)


def checked_published(content: object, where: str) -> Published:
    """What a published encoder states; see `Published`.

    Raises:
        BenchmdError: It has another form, or names a dataset that has no card and no origin: with
            a misspelt name no contaminated row would be marked.
    """
    published: Published = typed(Published, content, where)
    require_datasets(published["pretrained_on"], where)
    return published
