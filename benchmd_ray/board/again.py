"""The command that runs an entry again, and its settings as text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from benchmd_ray.board.bundle import PackedRun
from benchmd_ray.board.recompute import Entry
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import modality
from benchmd_ray.settings.definition import Settings, as_dict, default_settings, updated
from benchmd_ray.settings.in_use import in_use
from benchmd_ray.ssl import protocol_encoder

AXES = ("transfer.mode", "transfer.labels", "tuned")
"""Settings that the command names otherwise, or not at all."""


def settings_of(run: PackedRun) -> dict[str, object]:
    """Settings in use by full name."""
    stated = as_dict(updated(Settings(), run.settings))
    return in_use(flat({name: stated[name] for name in run.settings}), run.technique)


def flat(values: Mapping[str, Any], start: str = "") -> dict[str, object]:
    """Nested settings by full name."""
    result: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{start}{name}.")
        else:
            result[f"{start}{name}"] = value
    return result


def command(entry: Entry) -> str:
    """The command line; what a bundle says is quoted for a shell."""
    run = entry.first
    words = ["benchmd", "run"]
    for name in dict.fromkeys((run.source, *sorted(entry.results))):
        words += ["--catalog", f"catalogs/{name}"]
    words += ["--technique", run.technique, "--setting", run.setting]
    for each in entry.runs:
        words += ["--seed", str(each.seed)]
    for name, value in changed(run).items():
        words += ["--set", f"{name}={json.dumps(value)}"]
    lines = [" ".join(map(shlex.quote, words[:2]))]
    for option, value in zip(words[2::2], words[3::2], strict=True):
        lines.append(f"    {option} {shlex.quote(value)}")
    return " \\\n".join(lines)


def changed(run: PackedRun) -> dict[str, object]:
    """Settings that differ from the defaults of the modality."""
    with suppress(BenchmdError):  # a modality that is not known here
        usual = flat(
            as_dict(default_settings(modality(run.modality), protocol_encoder(run.technique)))
        )
        return {
            name: value
            for name, value in settings_of(run).items()
            if name not in AXES and usual.get(name) != value
        }
    return {}
