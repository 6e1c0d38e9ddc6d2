"""The command that runs an entry again, and its settings as text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from benchmd_ray.board.bundle import PackedRun, Refused
from benchmd_ray.board.official import Official
from benchmd_ray.board.recompute import Entry
from benchmd_ray.data.cards import cards
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import Modality, modality
from benchmd_ray.settings.definition import Settings, as_dict, default_settings, updated
from benchmd_ray.settings.in_use import in_use
from benchmd_ray.ssl import protocol_encoder

MOST = 1000
"""Settings of a run; a search's space has some tens."""
AXES = ("transfer.mode", "transfer.labels", "tuned")
"""Settings that the command names otherwise, or not at all."""


def settings_of(run: PackedRun) -> dict[str, object]:
    """Settings in use by full name.

    Raises:
        Refused: They have too many options, or such with text that a page would not show.
    """
    stated = as_dict(updated(Settings(), run.settings))
    values = flat({name: stated[name] for name in run.settings})
    if len(values) > MOST or not all(f"{n}{v}".isprintable() for n, v in values.items()):
        raise Refused(f"settings: expected at most {MOST:,}, of printable text")
    return in_use(values, run.technique)


def flat(value: object, place: str = "", *, lists: bool = False) -> dict[str, object]:
    """Nested values by the names on the way to them, with ``lists`` also by numbers."""
    if isinstance(value, Mapping):
        items = [*value.items()]
    elif lists and isinstance(value, list):
        items = [*enumerate(value)]
    else:
        return {place: value}
    below = (
        flat(each, f"{place}.{name}" if place else f"{name}", lists=lists) for name, each in items
    )
    return {name: leaf for leaves in below for name, leaf in leaves.items()}


def kind_of_source(source: str, name: str) -> Modality:
    """The modality of a run by its source and the modality's name; of MedMNIST each has its own.

    Raises:
        BenchmdError: Neither is known here.
    """
    card = cards().get(source)
    return card.modality if card and card.modality.name == name else modality(name)


@lru_cache(maxsize=64)
def _usual(source: str, name: str, technique: str) -> dict[str, object]:
    """The defaults of a modality; none of one that is not known here."""
    with suppress(BenchmdError):
        kind = kind_of_source(source, name)
        return flat(as_dict(default_settings(kind, protocol_encoder(technique))))
    return {}


def command(entry: Entry, official: Official) -> str:
    """The command, one for each evaluation; what a bundle says is quoted for a shell.

    Each repeats nothing that another has finished.
    """
    others = {p.evaluation for run in entry.runs for p in run.predictions if not p.is_main}
    return "\n".join(_command(entry, official, name) for name in sorted(others) or [""])


def _command(entry: Entry, official: Official, evaluation: str) -> str:
    """The command with an evaluation besides the classification; empty for none."""
    run, abouts = entry.first, [official.datasets[name].about for name in sorted(entry.results)]
    usual = _usual(run.source, run.modality, run.technique)
    chosen = [*dict.fromkeys((run.source, *sorted(entry.results)))]
    detected = (about for about in abouts if evaluation and about.detection == evaluation)
    also = {name for about in detected for name in about.also}
    options: list[tuple[str, Any]] = [
        *(("catalog", f"catalogs/{name}") for name in chosen),
        *(("also", f"catalogs/{name}") for name in sorted(also - {*chosen})),
        ("technique", run.technique),
        ("setting", run.setting),
        *(("seed", each.seed) for each in entry.runs),
        *([("evaluate", evaluation)] if evaluation else ()),
        *(
            ("set", f"{name}={json.dumps(value)}")
            for name, value in settings_of(run).items()
            if usual and name not in AXES and usual.get(name) != value
        ),
    ]
    lines = ("benchmd run", *(f"    --{name} {shlex.quote(str(value))}" for name, value in options))
    return " \\\n".join(lines)
