"""Touchstone: segmentations are scored from files, and whole algorithms compared.

Source: Bassi, Li et al., Touchstone Benchmark: Are We on the Right Way for Evaluating AI Algorithms
for Medical Segmentation? (NeurIPS 2024 Datasets and Benchmarks, https://arxiv.org/abs/2411.03670).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from benchmd_ray.benchmarks.benchmark import Benchmark, Start
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modalities import Modality
from benchmd_ray.settings import Settings

if TYPE_CHECKING:
    import pandas as pd


def _settings(kind: Modality, technique: str, variant: str) -> Settings:
    raise BenchmdError("segmentation networks are not trained here yet.")


def _like(kind: Modality, technique: str, settings: Settings) -> Settings | None:
    return None


def _datasets() -> tuple[str, ...]:
    return ()


def _rows(datasets: Collection[str]) -> pd.DataFrame:
    from benchmd_ray.benchmarks.touchstone.score_rows import named_rows

    return named_rows()


BENCHMARK = Benchmark(
    name="touchstone",
    version=1,
    title="Touchstone: segmentations scored from files, and whole algorithms compared",
    datasets=_datasets,
    starts=(Start("unet", "a small UNet of MONAI", _settings, _like),),
    rows=_rows,
    tables="benchmd_ray.benchmarks.touchstone.report_rows:TABLES",
    figures="benchmd_ray.benchmarks.touchstone.report_rows:TOPICS",
    commands={"segment": "benchmd_ray.benchmarks.touchstone.commands:segment"},
    about="Bassi, Li et al., Touchstone Benchmark: Are We on the Right Way for Evaluating AI "
    "Algorithms for Medical Segmentation? (https://arxiv.org/abs/2411.03670). `benchmd segment "
    "compare` compares algorithms; BENCHMD_SCORES names folders of scores for `benchmd report`.",
)
