"""Training MONAI's networks on volumes with masks: small baselines, not the paper's algorithms."""

from __future__ import annotations

from pathlib import Path

from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.settings.definition import Settings, updated

NETWORKS = ("monai-unet", "monai-segresnet", "monai-unetr", "monai-swinunetr")
"""The usual one first."""
PATCH = 96
"""Voxels along each axis of what a network sees at once; less where the stored volumes have less.
As in MONAI's examples for abdominal CT."""
EPOCHS = 50


def datasets() -> tuple[str, ...]:
    """Names of the cards of volumes with masks."""
    from benchmd_ray.data.cards import cards

    return tuple(name for name, card in cards().items() if card.task.segments)


def start_settings(kind: Modality, technique: str, variant: str) -> Settings:
    """AdamW with cosine decay from 0.001; a patch per volume and epoch; Dice and cross-entropy."""
    network = variant or NETWORKS[0]
    if network not in NETWORKS:
        raise unknown_name("network of Touchstone", network, NETWORKS)
    if not kind.task.segments:
        raise BenchmdError(
            f"the networks of Touchstone segment, and the task of {kind.name} is {kind.task.kind}: "
            "name catalogs of volumes with masks, or choose another --bench."
        )
    optimiser = {"lr": 1e-3, "weight_decay": 1e-5, "schedule": "cosine"}
    changes = {
        "encoder": {"network": network, "options": {"patch": PATCH}},
        "transfer": {
            "mode": "finetune",
            "labels": "full",
            "epochs": EPOCHS,
            "batch_size": kind.batch_size,
            "optimiser": optimiser,
        },
    }
    return updated(Settings(), changes)


def variants(kind: Modality) -> tuple[str, ...]:
    """Names of the networks for a modality."""
    return NETWORKS if kind.task.segments else ()


def like(kind: Modality, technique: str, settings: Settings) -> Settings | None:
    """The recipe for the network of a run on volumes with masks."""
    network = settings.encoder.network
    if technique != "scratch" or not kind.task.segments or network not in NETWORKS:
        return None
    return start_settings(kind, technique, network)


def space(technique: str, setting: str, kind: Modality) -> Path | None:
    """The file of the search space of masks."""
    fits = technique == "scratch" and setting == "finetune-full" and kind.task.segments
    return Path(__file__).with_name("segmentation.yaml") if fits else None
