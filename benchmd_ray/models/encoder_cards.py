"""Cards of published encoders: what they are, where their weights are, what they saw.

The package's are in ``model_catalog``, one YAML file each; users add theirs in the folder
``encoders`` of their folders of cards (`modality.card_folders`).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from benchmd_ray.data.origins import require_datasets
from benchmd_ray.errors import BenchmdError, FieldError, require_plain_name, shown
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.modality.card_folders import Cards, card_folders, read_cards, require_own_name
from benchmd_ray.models.networks import PUBLISHED
from benchmd_ray.models.published_form import Architecture, Description, Input, TensorNames
from benchmd_ray.schema.plain_yaml import read_yaml_file
from benchmd_ray.schema.typed import checked, typed
from benchmd_ray.settings.definition import EncoderSettings

FOLDER = "encoders"
"""Of users' folders of cards."""
KINDS = (".safetensors", ".pth", ".pt", ".bin")
"""Endings of files of weights."""
REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")
FILE = re.compile(r"[\w-][\w./-]*")

Text = Annotated[str, checked(lambda text: bool(text.strip()), "text that is not empty")]


@dataclass(frozen=True)
class Weights:
    """A file of weights, in a repository of the Hugging Face hub or behind a page."""

    file: str
    """Its name, within a repository with its folders."""
    repository: str = ""
    revision: str = ""
    """Commit; empty for the repository's newest, which was not pinned."""
    page: str = ""
    """Where people download it, if it is not on the hub."""
    sha256: str = ""
    """Empty if it was not published where the card's facts were checked."""
    bytes: int = 0
    """0 if unknown."""
    names: TensorNames = field(default_factory=TensorNames)

    def __post_init__(self) -> None:
        if bool(self.repository) == bool(self.page):
            raise FieldError("repository", "expected a repository of the hub, or else a page.")
        if self.repository and not REPOSITORY.fullmatch(self.repository):
            raise FieldError(
                "repository", f"repository is {shown(self.repository)}, expected owner/name."
            )
        is_file = FILE.fullmatch(self.file) and ".." not in self.file
        if not is_file or not self.file.endswith(KINDS):
            raise FieldError(
                "file", f"file is {shown(self.file)}, expected the name of one of {KINDS}."
            )
        for name, pattern in (("revision", "[0-9a-f]{40}"), ("sha256", "[0-9a-f]{64}")):
            value = getattr(self, name)
            if value and not re.fullmatch(pattern, value):
                raise FieldError(name, f"{name} is {shown(value)}, expected {pattern}, or none.")

    @property
    def address(self) -> str:
        return self.page or f"https://huggingface.co/{self.repository}"


@dataclass(frozen=True)
class EncoderCard:
    """A published encoder."""

    name: str
    title: Text
    paper: Text
    licence: Text
    """Of the weights."""
    weights: Weights
    network: Architecture
    input: Input
    checked: dict[str, str]
    """Where its facts were checked: of the weights, the network, the input and so on."""
    modalities: tuple[str, ...] = ()
    """Modalities that it was made for; empty for any images."""
    terms: str = ""
    """What has to be accepted, and where, before the weights may be fetched; empty for nothing."""
    pretrained_on: dict[str, str] = field(default_factory=dict)
    """Datasets by the names that their cards or `data.origins` have, each with its source."""
    also: dict[str, str] = field(default_factory=dict)
    """Other datasets, each with its source."""
    unlisted: str = ""
    """What of its pretraining data is not known by name; empty if all are listed."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_plain_name("published encoder", self.name)
        require_datasets(self.pretrained_on, "pretrained_on")
        if not (self.pretrained_on or self.also or self.unlisted):
            raise FieldError(
                "pretrained_on",
                "expected what it was pretrained on: in pretrained_on, also or unlisted.",
            )
        if not self.checked:
            raise FieldError("checked", "expected where its facts were checked.")

    @property
    def settings(self) -> EncoderSettings:
        """Encoder settings that make its network."""
        text = json.dumps(asdict(Description(self.network, self.input)), sort_keys=True)
        return EncoderSettings(network=PUBLISHED, options={"description": text})

    @property
    def published(self) -> dict[str, Any]:
        """What runs record of it (`runs.pretraining_data.Published`)."""
        return {
            "name": self.name,
            "title": self.title,
            "licence": self.licence,
            "pretrained_on": sorted(self.pretrained_on),
            "also": sorted(self.also),
            "unlisted": self.unlisted,
        }


def encoder_cards() -> Cards[EncoderCard]:
    """The cards of the package and the user."""
    return _read_all(card_folders())


@functools.cache
def _read_all(folders: tuple[Path, ...]) -> Cards[EncoderCard]:
    places = (resource_folder("model_catalog"), *(folder / FOLDER for folder in folders[1:]))
    paths = (path for place in places for path in sorted(place.glob("*.yaml")))
    return read_cards("published encoder", paths, _read)


def _read(path: Path) -> dict[str, EncoderCard]:
    where = f"the card {path}"
    content = read_yaml_file(path, where)
    if not isinstance(content, Mapping):
        raise BenchmdError(f"{where} holds {shown(content)}, expected its keys.")
    card = typed(EncoderCard, content, where)
    require_own_name(path, content, where)
    return {card.name: card}
