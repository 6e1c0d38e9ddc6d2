"""Modalities: a signal, its default task, and its batch size in the fixed protocol.

Each is a card of ``data_catalog/modalities``, the seven of BenchMD among them (BenchMD v2, section
3 and appendix C; ``docs/differences.md`` names where this departs). Cards of datasets name a
modality and may override its signal and task.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmd_ray.errors import BenchmdError, FieldError, require_plain_name, shown
from benchmd_ray.modality.card_folders import Cards, card_folders, read_cards, require_own_name
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task

FOLDER = "modalities"


@dataclass(frozen=True)
class Modality:
    """A signal with its default task."""

    name: str
    signal: Signal
    task: Task
    batch_size: int
    """Examples of a training step in the fixed protocol."""
    place: int | None = None
    """Position in tables; modalities without one come last, by name."""

    def __post_init__(self) -> None:
        require_plain_name("modality", self.name)
        if self.batch_size < 1:
            message = f"batch_size is {self.batch_size}, expected 1 or more."
            raise FieldError("batch_size", message)

    @property
    def order(self) -> tuple[bool, int, str]:
        """Sort key of tables and figures."""
        return self.place is None, self.place or 0, self.name

    def fits(self, other: Modality) -> bool:
        """Whether a model of one can be scored on the other: signals and tasks must be equal."""
        return (self.signal, self.task) == (other.signal, other.task)


def modalities() -> dict[str, Modality]:
    """Modalities with a valid card, by name, in the order of tables."""
    kinds = _read_all(card_folders()).sound.values()
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.order)}


@functools.cache
def _read_all(folders: tuple[Path, ...]) -> Cards[Modality]:
    paths = (path for folder in folders for path in sorted((folder / FOLDER).glob("*.yaml")))
    return read_cards("modality", paths, _read)


def _read(path: Path) -> dict[str, Modality]:
    # commands that name no modality do not load YAML
    from benchmd_ray.schema.plain_yaml import read_yaml_file
    from benchmd_ray.schema.typed import typed

    where = f"the card {path}"
    content = read_yaml_file(path, where)
    if not isinstance(content, Mapping):
        raise BenchmdError(f"{where} holds {shown(content)}, expected its keys.")
    if isinstance(content.get("signal"), dict):
        content["signal"].setdefault("name", path.stem)
    kind = typed(Modality, content, where)
    require_own_name(path, content, where)
    return {kind.name: kind}


def broken_modalities() -> dict[str, str]:
    """Faults of broken cards, by name of the file."""
    return _read_all(card_folders()).broken


def modality(name: str) -> Modality:
    """The modality of a name; otherwise an error with the valid names or the card's fault."""
    return _read_all(card_folders())[name]
