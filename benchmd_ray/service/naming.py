"""Resolve a run: its encoder, the determinants of its result and the name of its folder."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.sizes import shuffle_rows, streams
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import protocol_of, settings_among
from benchmd_ray.extensions.parts import EVERY, package_versions, versions_of
from benchmd_ray.models.imagenet import StartWeights
from benchmd_ray.models.networks import network_part, network_source
from benchmd_ray.runs.store import Run, read_run
from benchmd_ray.service.resolved import ResolvedRun
from benchmd_ray.settings.definition import (
    ENCODERS,
    AugmentationSettings,
    EncoderSettings,
    ExecutionSettings,
    Settings,
    as_dict,
    updated,
)
from benchmd_ray.ssl import SCRATCH, method_source, protocol_encoder, technique_named
from benchmd_ray.ssl.brought import technique_label


def pretraining(
    technique: str, source: Catalog, settings: Settings, start: StartWeights | None
) -> ResolvedRun:
    """Resolve a pretraining on a source, from external or from random weights."""
    label = technique_label(technique)
    about: dict[str, Any] = {"kind": "pretrain", "technique": label, "setting": "pretrain"}
    if start is not None:
        whose = f"the technique {technique}"
        encoder = _adopted(settings.encoder, start.encoder, technique, whose)
        settings = replace(settings, encoder=encoder)
    determinants = _determinants(settings, source, "pretrain") | {"technique": label}
    method = technique_named(technique).method
    used = {*EVERY, "pretraining", str(method)}
    if start is not None:
        determinants["weights"] = start.sha256
    if technique_named(technique).imagenet:
        used.add("imagenet")
    if (code := method_source(technique)) is not None:
        determinants["method_source"] = code
    if method is None:  # nothing is trained or drawn
        kept = ["stage", "encoder", "network_source", "catalog", "technique", "weights"]
        used &= {"imagenet"}
        if technique_named(technique).network is not None:  # drawn, and fitted to records
            kept.append("seed")
            used |= {"feed", "normalisation"}
        determinants = {name: determinants[name] for name in kept if name in determinants}
    determinants["parts"] = versions_of({*used, network_part(settings.encoder.network)})
    if start is not None:
        about["weights"] = {"file": start.file, "skipped": start.skipped}
    name = f"pretrain-{source.signal.name}-{file_name(label)}"
    description = _description(settings, source, about, determinants)
    return ResolvedRun(settings, technique, source, None, name, description)


def transferring(source: Catalog, settings: Settings, pretrained: Run | None) -> ResolvedRun:
    """Resolve a transfer to a source's labels, from a finished pretraining or random weights."""
    technique = SCRATCH if pretrained is None else str(pretrained.description["technique"])
    if pretrained is not None:
        encoder = updated(EncoderSettings(), pretrained.description["settings"]["encoder"])
        encoder = _adopted(settings.encoder, encoder, technique, pretrained.folder.name)
        settings = replace(settings, encoder=encoder)
    determinants = _determinants(settings, source, "transfer") | {
        "upstream": None if pretrained is None else pretrained.model_sha256,
        "parts": versions_of(transfer_parts(settings)),
    }
    stated, mode = determinants["transfer"], settings.transfer.mode
    if mode != "knn":
        del stated["neighbours"]
    if mode != "linear" or settings.transfer.solver == "adamw":
        del stated["solver"]
    else:  # solved, not trained by steps
        read = ("mode", "labels", "shuffle_labels", "solver")
        determinants["transfer"] = {name: stated[name] for name in read}
    if mode == "knn":  # nothing is trained
        read = ("mode", "labels", "neighbours", "shuffle_labels")
        determinants["transfer"] = {name: stated[name] for name in read}
        whole = settings.transfer.labels == "full" and not settings.transfer.shuffle_labels
        if pretrained is not None and whole:  # nor is anything random
            del determinants["seed"]
    if pretrained is not None:  # distinguishes runs even if the pretraining cannot be read
        determinants["upstream_parts"] = pretrained.description["determinants"].get("parts", {})
    setting = settings.transfer.setting
    about = {
        "kind": "transfer",
        "technique": technique,
        "setting": setting,
        "upstream": None if pretrained is None else pretrained.folder.name,
    }
    description = _description(settings, source, about, determinants, pretrained=pretrained)
    name = f"transfer-{source.signal.name}-{file_name(technique)}-{setting}"
    return ResolvedRun(settings, technique, source, pretrained, name, description)


def transfer_parts(settings: Settings) -> set[str]:
    """Names of the code parts (`parts.PARTS`) that a transfer with these settings uses."""
    used = {*EVERY, "heads", "transfer", network_part(settings.encoder.network)}
    if settings.transfer.mode == "knn":
        used.add("nearest neighbours")
    if settings.transfer.freezes:
        used.add("linear evaluation")
        if settings.transfer.mode == "linear" and settings.transfer.solver == "logistic":
            used.add("logistic regression")
    elif settings.transfer.augmentation != AugmentationSettings():
        used.add("augmentation")
    return used


def finished_upstream(folder: Path, source: Catalog) -> Run:
    """Open a finished pretraining run on this very catalog; others may have seen test patients."""
    run = read_run(folder)
    if run.description["kind"] != "pretrain" or not run.finished:
        raise BenchmdError(
            f"{folder} is not a finished pretraining run: name one that `benchmd pretrain` printed."
        )
    if run.description["determinants"]["catalog"] != source.digest:
        trained_on = f"{run.description['source']}, policy {run.description['policy']}"
        raise BenchmdError(
            f"{folder} was pretrained on another catalog ({trained_on}) than {source.path} "
            f"({source.dataset}, policy {source.manifest['policy']}), and may have seen its "
            "validation or test patients: pretrain on this catalog."
        )
    return run


def _adopted(
    chosen: EncoderSettings, architecture: EncoderSettings, technique: str, whose: str
) -> EncoderSettings:
    """The encoder of `whose`, with the chosen dropout, or the technique's dropout by default."""
    default = EncoderSettings()
    source = ENCODERS[protocol_encoder(technique)] if chosen == default else chosen

    def dropping(size: EncoderSettings) -> EncoderSettings:
        rates = (source.dropout, source.embedding_dropout)
        return replace(size, dropout=rates[0], embedding_dropout=rates[1])

    result = dropping(architecture)
    if chosen not in (result, default, dropping(default)):
        raise BenchmdError(
            f"the settings choose another encoder than {whose} has: omit all encoder settings "
            "except dropout and embedding_dropout."
        )
    return result


def file_name(technique: str) -> str:
    """A technique's name, which may be an import path, as part of a folder's name."""
    return re.sub("[^A-Za-z0-9.]+", "-", technique)


def _determinants(settings: Settings, source: Catalog, stage: str) -> dict[str, Any]:
    """Everything that determines a run's result.

    The number of workers, the engine and the ZeRO stage are excluded: they change only rounding and
    dropout masks. With a streaming feed the number of workers is included, as it affects the order.
    """
    everything, execution = as_dict(settings), settings.execution
    network = network_source(settings.encoder)
    return {
        **({} if network is None else {"network_source": network}),
        "stage": stage,
        "encoder": everything["encoder"],
        stage: everything[stage],
        "precision": execution.precision,
        "order": _order(source, execution),
        "seed": settings.seed,
        "catalog": source.digest,
    }


def _order(source: Catalog, execution: ExecutionSettings) -> list[int]:
    """What determines the order of training records besides the seed; none for a resident feed."""
    streaming = streams(source, "train", execution)
    return [execution.workers, shuffle_rows(source, execution)] if streaming else []


def _description(
    settings: Settings,
    source: Catalog,
    about: dict[str, Any],
    determinants: dict[str, Any],
    *,
    pretrained: Run | None = None,
) -> dict[str, Any]:
    """Content of ``run.json``."""
    everything = as_dict(settings)
    decisive = [{name: everything[name] for name in settings_among(determinants)}]
    if pretrained is not None:  # both have the same start, or the transfer has none
        decisive.append(settings_among(pretrained.description["determinants"]))
    # The run may be evaluated on another machine, so the device is only recorded in the history.
    device = everything["execution"]["device"]
    everything["execution"]["device"] = "auto"
    return {
        **about,
        "device": device,
        "modality": source.modality,
        "modality_card": as_dict(source.card.modality),
        "source": source.dataset,
        "raw": [source.manifest["raw"][name] for name in ("records", "expected")],
        "provenance": source.provenance,
        "options": source.options,
        "policy": source.manifest["policy"],
        "seed": settings.seed,
        "protocol": protocol_of(source.card.modality, about["technique"], *decisive),
        "settings": everything,
        "determinants": determinants,
        "versions": package_versions(),
    }
