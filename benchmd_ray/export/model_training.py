"""What determined the weights of an exported model, in a few rows; ``config.json`` has it all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmd_ray.export.model_origin import Origin
from benchmd_ray.report.protocols import base_protocol, pretraining_of, searches_behind
from benchmd_ray.runs.store import Run
from benchmd_ray.settings.in_use import in_use


def training_rows(run: Run, origin: Origin) -> dict[str, object]:
    """Names and values: the protocol as reports have it, and the settings that were read."""
    about = run.description
    determinants = about["determinants"]
    rows: dict[str, object] = {
        "run": run.folder.name,
        "technique": about["technique"],
        **({"weights trained elsewhere": origin.sha256} if origin.sha256 else {}),
    }
    network = {"network": about["settings"]["encoder"]["network"]}
    if not origin.trains:
        return rows | network | {"training": "none"}
    stage = "transfer" if about["kind"] == "transfer" else "pretrain"
    flat = dict(_flat(determinants.get(stage, {}), f"{stage}."))
    return {
        **rows,
        "setting": about["setting"],
        "protocol": _protocol(run),
        **({"pretraining": about["upstream"]} if about.get("upstream") else {}),
        **network,
        "seed": about["seed"],
        "precision": determinants.get("precision"),
        **in_use(flat, str(about["technique"])),
    }


def _protocol(run: Run) -> str:
    """The protocol, with the searches that found tuned settings."""
    pretraining = pretraining_of(run, {}) if run.description["kind"] == "transfer" else None
    protocol = base_protocol(run, pretraining)
    if protocol != "tuned":
        return protocol
    return f"tuned: settings found by {', '.join(searches_behind(run, pretraining))}"


def _flat(settings: Mapping[str, Any], above: str) -> Iterable[tuple[str, object]]:
    """Settings that are set, by their full names, without augmentation that is off."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        elif value is not None and (value or not above.endswith(".augmentation.")):
            yield f"{above}{name}", value
