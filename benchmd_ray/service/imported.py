"""A folder that `benchmd export` wrote, as a pretraining of a store that transfers start from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NotRequired

import torch
from pydantic import Field
from typing_extensions import TypedDict

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.provenance import Provenance
from benchmd_ray.errors import BenchmdError, is_name
from benchmd_ray.extensions.parts import package_versions
from benchmd_ray.files.integrity import Damaged
from benchmd_ray.modality.signals import require_signal
from benchmd_ray.models.networks import network_source, taken_signal
from benchmd_ray.runs.store import Run, open_run, working
from benchmd_ray.schema.typed import Count, Name, checked, form_fault
from benchmd_ray.service.naming import file_name
from benchmd_ray.service.unseen import require_disjoint
from benchmd_ray.settings.definition import EncoderSettings, Settings, as_dict, updated
from benchmd_ray.training.weights import (
    CONFIG,
    described,
    export_model,
    load_encoder,
    model_description,
    require_one_model,
    require_statistics,
)

REMEDY = "Export the run again."


Names = Annotated[str, checked(lambda text: all(map(is_name, text.split("+"))), "plain names")]
"""Of datasets or policies, joined by ``+``."""


class Seen(TypedDict):
    """What a pretraining saw of a dataset, see `service.naming.seen_by_pretraining`."""

    dataset: Name
    policy: Name
    catalog: str
    records: NotRequired[Count]
    patients: NotRequired[Count]
    provenance: NotRequired[Provenance]


class Trained(TypedDict):
    """What ``config.json`` has to say of the run that was exported."""

    kind: str
    technique: str
    source: Names
    policy: Names
    seed: Count
    raw: Annotated[list[Count], Field(min_length=2, max_length=2)]
    provenance: Provenance
    determinants: dict[str, Any]
    pretrained_on: NotRequired[list[Seen]]


def trained_of(folder: Path) -> dict[str, Any]:
    """What an exported folder says of its run, validated."""
    stated = require_one_model(folder).get("trained")
    if fault := form_fault(Trained, stated):
        why = f"trained: {fault}; it may have been written by an earlier version"
        raise Damaged(folder / CONFIG, why, REMEDY)
    assert isinstance(stated, dict)
    return stated


def import_exported(folder: Path, store: Path, source: Catalog) -> Run:
    """The encoder of an exported folder as a finished pretraining of a store, whole or not at all.

    Its weights are compared with their hash and architecture; nothing else of the folder is read,
    which may go afterwards.

    Raises:
        BenchmdError: A file is damaged or of another version, the encoder is another one, or does
            not take the source's signals.
    """
    trained, description = trained_of(folder), model_description(folder)
    signal, _ = described(description, folder)
    try:
        encoder = updated(EncoderSettings(), description["encoder"])
    except BenchmdError as error:
        raise Damaged(folder / CONFIG, f"encoder: {error}", REMEDY) from error
    require_signal(folder, signal, taken_signal(source.signal, encoder), source.path)
    require_statistics(description["statistics"], signal, folder)
    if (description["network_source"] or None) != network_source(encoder):
        raise BenchmdError(
            f"{folder} was exported with another source of the network {encoder.network} than is "
            "here: install the one that it was trained with."
        )
    tensors = {f"encoder.{name}": v for name, v in load_encoder(folder).state_dict().items()}
    about = _description(trained, source, encoder, description)
    about["modality_card"]["signal"] = as_dict(signal)
    elsewhere = [entry for entry in about["pretrained_on"] if entry["catalog"] != source.digest]
    require_disjoint(elsewhere, {}, source)
    name = f"pretrain-{source.signal.name}-{file_name(str(trained['technique']))}"
    run = open_run(store, name, about)
    if not run.finished:
        with working(run, "cpu", "models"), torch.no_grad():
            export_model(run.folder, tensors, encoder, signal, description["statistics"])
    return run


def _description(
    trained: dict[str, Any],
    source: Catalog,
    encoder: EncoderSettings,
    description: dict[str, Any],
) -> dict[str, Any]:
    """``run.json`` of the encoder; what transfers it on had seen counts as pretrained on, too."""
    settings = replace(Settings(seed=int(trained["seed"])), encoder=encoder)
    stated = trained["determinants"]
    own = {
        "dataset": trained["source"],
        "policy": trained["policy"],
        "catalog": str(stated.get("catalog", "")),
        "provenance": trained["provenance"],
    }
    seen = [dict(entry) for entry in trained.get("pretrained_on", [])]
    trained_on_it = "pretrain" in stated and "pretrained_on" not in trained
    if (trained["kind"] == "transfer" or trained_on_it) and own["catalog"] not in [
        entry["catalog"] for entry in seen
    ]:
        seen.append(own)
    return {
        "kind": "pretrain",
        "technique": trained["technique"],
        "setting": "pretrain",
        "device": "cpu",
        "modality": source.modality,
        "modality_card": as_dict(source.card.modality),
        "source": trained["source"],
        "raw": trained["raw"],
        "provenance": trained["provenance"],
        "options": {},
        "policy": trained["policy"],
        "seed": settings.seed,
        "protocol": "",
        "settings": as_dict(settings),
        "pretrained_on": seen,
        "determinants": {
            "stage": "import",
            "technique": trained["technique"],
            "weights": description["weights"],
            "encoder": as_dict(encoder),
            "statistics": description["statistics"],
            "catalog": own["catalog"],
            "exported": stated,
        },
        "versions": package_versions(),
    }
