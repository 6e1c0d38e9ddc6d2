"""Resolve a run: its encoder, the determinants of its result and the name of its folder."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.pooled import Pool, digests, members_of, splits_of
from benchmd_ray.data.sizes import shuffle_rows, streams
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import protocol_of, settings_among
from benchmd_ray.extensions.parts import EVERY, package_versions, versions_of
from benchmd_ray.modality.signals import require_signal
from benchmd_ray.models.imagenet import StartWeights
from benchmd_ray.models.networks import network_part, network_source
from benchmd_ray.runs.files import RUN
from benchmd_ray.runs.pretraining_data import checked_published
from benchmd_ray.runs.store import Run, read_run
from benchmd_ray.service.resolved import ResolvedRun
from benchmd_ray.settings.definition import (
    ENCODERS,
    AugmentationSettings,
    EncoderSettings,
    ExecutionSettings,
    Settings,
    TransferSettings,
    as_dict,
    updated,
)
from benchmd_ray.ssl import NAMED, SCRATCH, method_source, protocol_encoder, technique_named
from benchmd_ray.ssl.brought import published_card, technique_label
from benchmd_ray.storage.location import Location
from benchmd_ray.training.jobs import Fold


def pretraining(
    technique: str,
    source: Catalog,
    settings: Settings,
    start: StartWeights | None,
    fold: Fold | None = None,
) -> ResolvedRun:
    """Resolve a pretraining on a source or a fold of it, from external or from random weights."""
    label, inner = technique_label(technique), inner_of(fold, source)
    about: dict[str, Any] = {"kind": "pretrain", "technique": label, "setting": "pretrain"}
    if start is not None:
        whose = f"the technique {technique}"
        encoder = _adopted(settings.encoder, start.encoder, technique, whose)
        settings = replace(settings, encoder=encoder)
    determinants = _determinants(settings, source, "pretrain", inner) | {"technique": label}
    if len(members_of(source)) > 1:
        determinants["catalogs"] = sorted(digests(members_of(source)))
    method = technique_named(technique).method
    used = {*EVERY, "pretraining", str(method), *(["pool"] if isinstance(source, Pool) else [])}
    if start is not None:
        determinants["weights"] = start.sha256
    if technique_named(technique).imagenet:
        used.add("imagenet")
    if (code := method_source(technique)) is not None:
        determinants["method_source"] = code
    if method is None:  # nothing is trained or drawn
        kept = ["stage", "encoder", "network_source", "catalog", "fold", "technique", "weights"]
        used &= {"imagenet"}
        if technique_named(technique).network is not None:  # drawn, and fitted to records
            # Of a streaming feed the workers and the shuffle buffer decide which come first.
            kept += ["seed", *(["order"] if determinants["order"] else [])]
            used |= {"feed", "normalisation"}
            about["pretrained_on"] = seen_by_pretraining(source, inner)
        determinants = {name: determinants[name] for name in kept if name in determinants}
    else:
        about["pretrained_on"] = seen_by_pretraining(source, inner)
    determinants["parts"] = versions_of({*used, network_part(settings.encoder.network)})
    if technique.startswith(NAMED):
        about["published"] = published_card(technique).published
    if start is not None:
        about["weights"] = {"file": start.file, "skipped": start.skipped}
    name = f"pretrain-{source.signal.name}-{file_name(label)}"
    description = _description(settings, source, about | _stated(fold, inner), determinants)
    return ResolvedRun(settings, technique, source, None, name, description, inner, _kept(fold))


def transferring(
    source: Catalog, settings: Settings, pretrained: Run | None, fold: Fold | None = None
) -> ResolvedRun:
    """Resolve a transfer to a source's labels, from a finished pretraining or random weights.

    With ``fold`` it is trained on an inner catalog of the source.
    """
    inner = inner_of(fold, source)
    technique = SCRATCH if pretrained is None else str(pretrained.description["technique"])
    if pretrained is not None:
        encoder = updated(EncoderSettings(), pretrained.description["settings"]["encoder"])
        encoder = _adopted(settings.encoder, encoder, technique, pretrained.folder.name)
        settings = replace(settings, encoder=encoder)
    settings = _settled(settings, source, pretrained, inner)
    determinants = _determinants(settings, source, "transfer", inner) | {
        "upstream": None if pretrained is None else pretrained.model_sha256,
        "parts": versions_of(transfer_parts(settings)),
    }
    stated, mode = determinants["transfer"], settings.transfer.mode
    if settings.transfer.normalisation == TransferSettings().normalisation:
        del stated["normalisation"]  # names of before it could be set
    if mode != "knn":
        del stated["neighbours"]
    if not settings.transfer.head_width:  # a linear head, or not read
        del stated["hidden"]
    if mode != "linear" or settings.transfer.solver == "adamw":
        del stated["solver"]
    else:  # solved, not trained by steps
        read = ("mode", "labels", "shuffle_labels", "solver", "normalisation")
        determinants["transfer"] = {name: stated[name] for name in read if name in stated}
    if mode == "knn":  # nothing is trained
        read = ("mode", "labels", "neighbours", "shuffle_labels", "normalisation")
        determinants["transfer"] = {name: stated[name] for name in read if name in stated}
        whole = settings.transfer.labels == "full" and not settings.transfer.shuffle_labels
        if pretrained is not None and whole:  # nor is anything random
            del determinants["seed"]
    if pretrained is not None:  # distinguishes runs even if the pretraining cannot be read
        determinants["upstream_parts"] = pretrained.description["determinants"].get("parts", {})
    setting = settings.transfer.setting
    about: dict[str, Any] = {
        "kind": "transfer",
        "technique": technique,
        "setting": setting,
        "upstream": None if pretrained is None else pretrained.folder.name,
    }
    if pretrained is not None:
        about["pretrained_on"] = pretrained_on(pretrained)
        if "published" in pretrained.description:
            where = f"{pretrained.folder.name}/{RUN}, published"
            about["published"] = checked_published(pretrained.description["published"], where)
    about |= _stated(fold, inner)
    description = _description(settings, source, about, determinants, pretrained=pretrained)
    name = f"transfer-{source.signal.name}-{file_name(technique)}-{setting}"
    kept = _kept(fold)
    return ResolvedRun(settings, technique, source, pretrained, name, description, inner, kept)


def inner_of(fold: Fold | None, source: Catalog) -> Catalog | None:
    """The inner catalog of a fold, which must be cut from the source; None without a fold."""
    if fold is None:
        return None
    inner = open_catalog(fold.catalog.resolve())
    if inner.manifest.get("inner_of") != source.digest:
        raise BenchmdError(
            f"{inner.path} is not an inner catalog of {source.path}, on which this fold run is to "
            "be scored: name one that a search of that catalog has written."
        )
    return inner


def _stated(fold: Fold | None, inner: Catalog | None) -> dict[str, Any]:
    """What ``run.json`` states of a fold; nothing about the search, since several may share it."""
    if fold is None or inner is None:
        return {}
    return {"fold": {"evaluation": fold.evaluation, "inner": inner.digest}}


def _kept(fold: Fold | None) -> Location | None:
    return None if fold is None else fold.model


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
    """A finished pretraining run whose encoder takes the signals of a catalog."""
    run = read_run(folder)
    if run.description["kind"] != "pretrain" or not run.finished:
        raise BenchmdError(
            f"{folder} is not a finished pretraining run: name one that `benchmd pretrain` printed."
        )
    require_signal(folder, run.modality.signal, source.signal, source.path)
    return run


def seen_by_pretraining(source: Catalog, inner: Catalog | None = None) -> list[dict[str, Any]]:
    """What an encoder sees of each dataset that it is pretrained on; of a fold, its training."""
    return [
        {
            "dataset": member.dataset,
            "policy": member.manifest["policy"],
            "catalog": member.digest,
            "provenance": member.provenance,
            **{
                name: sum(
                    int((inner or member).manifest["splits"][split].get(name, 0))
                    for split in splits_of(member)
                )
                for name in ("records", "patients")
            },
        }
        for member in members_of(source)
    ]


def pretrained_on(pretrained: Run) -> list[dict[str, Any]]:
    """What a pretraining saw of which datasets; without counts if it did not record them."""
    about = pretrained.description
    if "pretrained_on" in about:
        recorded: list[dict[str, Any]] = about["pretrained_on"]
        return recorded
    if "pretrain" not in about["determinants"]:  # its weights were taken as they are
        return []
    stated = {"dataset": about["source"], "policy": about["policy"]}
    return [{**stated, "catalog": about["determinants"]["catalog"]}]


def _settled(
    settings: Settings, source: Catalog, pretrained: Run | None, inner: Catalog | None
) -> Settings:
    """Settings of a transfer whose patches and normalisation are stated by what has an effect."""
    transfer = settings.transfer
    above = {} if pretrained is None else pretrained.description["determinants"]
    on_same = above.get("fold", above.get("catalog")) == (inner or source).digest
    if pretrained is None or on_same:
        return replace(settings, transfer=replace(transfer, normalisation="catalog"))
    if not source.signal.by_statistics:
        settings = replace(settings, transfer=replace(transfer, normalisation="catalog"))
    encoder, signal = settings.encoder, pretrained.modality.signal
    if not encoder.patch_size and signal.patch != source.signal.patch:
        encoder = replace(encoder, patch_size=signal.patch[-1])
    return replace(settings, encoder=encoder)


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


def _determinants(
    settings: Settings, source: Catalog, stage: str, inner: Catalog | None
) -> dict[str, Any]:
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
        "order": _order(inner or source, execution),
        "seed": settings.seed,
        "catalog": source.digest,
        **({} if inner is None else {"fold": inner.digest}),
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
    elsewhere = {entry["catalog"] for entry in about.get("pretrained_on", ())} - {source.digest}
    follows = "fold" not in about and (about["kind"] == "pretrain" or not elsewhere)
    protocol = protocol_of(source.card.modality, about["technique"], *decisive) if follows else ""
    if follows and not protocol:  # it may differ only in what has no effect
        decisive[0] = settings_among(determinants)
        protocol = protocol_of(source.card.modality, about["technique"], *decisive)
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
        **({} if source.held_out_fold is None else {"held_out_fold": source.held_out_fold}),
        "options": source.options,
        "policy": source.manifest["policy"],
        "seed": settings.seed,
        "protocol": protocol,
        "settings": everything,
        "determinants": determinants,
        "versions": package_versions(),
    }
