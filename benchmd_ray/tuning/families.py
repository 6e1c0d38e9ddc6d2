"""Families of models that a search chooses among: a technique, a transfer setting, a space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmd_ray.settings.definition import Settings
from benchmd_ray.ssl.brought import technique_label
from benchmd_ray.tuning.spaces import Space

FAMILY = "family"
"""Name of a trial's family among its parameters in the journal, and of its column."""


@dataclass(frozen=True)
class Family:
    """Models that differ in the settings of one space, such as ``mae linear``."""

    technique: str
    setting: str
    """One of `spaces.SETTINGS`."""
    space: Space
    settings: tuple[Settings, ...]
    """Settings at the space's start, one for each source, with device and precision resolved."""
    pretrained_on: tuple[str, ...] = ()
    """Digests of the catalogs that its pretraining is on, if not the source's own."""
    held: frozenset[str] = frozenset()
    """Settings that the user fixed at the start."""

    @property
    def name(self) -> str:
        """``mae linear``, ``scratch finetune``: unique within a search."""
        return name_of_family(technique_label(self.technique), self.setting)


def name_of_family(technique: str, setting: str) -> str:
    return f"{technique} {setting.partition('-')[0]}"


def by_name(families: Sequence[Family]) -> dict[str, Family]:
    """Families by their names; the first one's start is the search's."""
    return {family.name: family for family in families}
