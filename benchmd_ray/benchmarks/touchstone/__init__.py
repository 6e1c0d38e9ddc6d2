"""Touchstone: segmentations are scored from files, and whole algorithms compared.

Source: Bassi, Li et al., Touchstone Benchmark: Are We on the Right Way for Evaluating AI Algorithms
for Medical Segmentation? (NeurIPS 2024 Datasets and Benchmarks, https://arxiv.org/abs/2411.03670).
The networks of MONAI are small baselines, none of the paper's algorithms.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.evaluation.benchmark import Benchmark, Start
from benchmd_ray.evaluation.evaluation import SEGMENTATION
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.settings.definition import Settings, updated

if TYPE_CHECKING:
    import pandas as pd

NETWORKS = ("monai-unet", "monai-segresnet", "monai-unetr", "monai-swinunetr")
"""The usual one first."""
PATCH = 96
"""Voxels along each axis of what a network sees at once; less where the stored volumes have less.
As in MONAI's examples for abdominal CT."""
EPOCHS = 50


def _datasets() -> tuple[str, ...]:
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


def _variants(kind: Modality) -> tuple[str, ...]:
    return NETWORKS if kind.task.segments else ()


def _like(kind: Modality, technique: str, settings: Settings) -> Settings | None:
    network = settings.encoder.network
    if technique != "scratch" or not kind.task.segments or network not in NETWORKS:
        return None
    return start_settings(kind, technique, network)


def _space(technique: str, setting: str, kind: Modality) -> Path | None:
    fits = technique == "scratch" and setting == "finetune-full" and kind.task.segments
    return Path(__file__).with_name("segmentation.yaml") if fits else None


def _rows(datasets: Collection[str]) -> pd.DataFrame:
    from benchmd_ray.benchmarks.touchstone.scored import named_rows

    return named_rows()


BENCHMARK = Benchmark(
    name="touchstone",
    version=1,
    title="Touchstone: segmentations scored from files, and whole algorithms compared",
    datasets=_datasets,
    starts=(
        Start(
            "small-baseline",
            "a network of MONAI on patches, from random weights",
            start_settings,
            _like,
            _variants,
            technique="scratch",
            setting="finetune-full",
            note="a small baseline; none of the paper's algorithms.",
        ),
    ),
    evaluations=(SEGMENTATION,),
    space=_space,
    rows=_rows,
    tables="benchmd_ray.benchmarks.touchstone.report_rows:TABLES",
    figures="benchmd_ray.benchmarks.touchstone.report_rows:TOPICS",
    commands={"segment": "benchmd_ray.benchmarks.touchstone.commands:segment"},
    about="Bassi, Li et al., Touchstone Benchmark: Are We on the Right Way for Evaluating AI "
    "Algorithms for Medical Segmentation? (https://arxiv.org/abs/2411.03670). `benchmd segment "
    "compare` compares algorithms; BENCHMD_SCORES names folders of scores for `benchmd report`.",
)
