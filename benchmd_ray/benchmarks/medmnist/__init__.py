"""MedMNIST v2: 18 datasets of small images and volumes, its baselines and its scores."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from benchmd_ray.benchmarks.medmnist.recipes import (
    like,
    like_small,
    small_settings,
    start_settings,
    variants,
)
from benchmd_ray.data.medmnist_cards import COLLECTION, IMAGE_GROUPS
from benchmd_ray.evaluation.benchmark import Benchmark, Start
from benchmd_ray.modality.modalities import Modality

if TYPE_CHECKING:
    import pandas as pd


def _datasets() -> tuple[str, ...]:
    from benchmd_ray.data.cards import cards

    return tuple(name for name, card in cards().items() if card.collection == COLLECTION)


def _space(technique: str, setting: str, kind: Modality) -> Path | None:
    fits = technique == "scratch" and setting.startswith("finetune") and kind.name in IMAGE_GROUPS
    return Path(__file__).with_name("finetune.yaml") if fits else None


def _published_rows(datasets: Collection[str]) -> pd.DataFrame:
    from benchmd_ray.benchmarks.medmnist.report import published_rows

    return published_rows(datasets)


BENCHMARK = Benchmark(
    name="medmnist",
    version=1,
    title="MedMNIST v2: 18 datasets of small images and volumes",
    datasets=_datasets,
    starts=(
        Start(
            "baseline",
            "the recipe of MedMNIST's baselines",
            start_settings,
            like,
            variants,
            technique="scratch",
            setting="finetune-full",
            note="the recipe of MedMNIST's baselines; `benchmd medmnist report` compares.",
        ),
        Start(
            "baseline-small",
            "narrow networks of that recipe, trained for minutes (--small)",
            small_settings,
            like_small,
            technique="scratch",
            setting="finetune-full",
            note="narrow networks of MedMNIST's recipe, trained briefly to try things out; not its "
            "baselines.",
        ),
    ),
    space=_space,
    rows=_published_rows,
    tables="benchmd_ray.benchmarks.medmnist.report:TABLES",
    commands={"medmnist": "benchmd_ray.benchmarks.medmnist.commands:medmnist"},
    about="Yang et al., MedMNIST v2 (https://arxiv.org/abs/2110.14795). Each dataset is trained "
    "from scratch and scored on its own test split.",
)
