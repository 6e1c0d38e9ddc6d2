"""Touchstone: segmentations are scored from files, and whole algorithms compared.

Source: Bassi, Li et al., Touchstone Benchmark: Are We on the Right Way for Evaluating AI Algorithms
for Medical Segmentation? (NeurIPS 2024 Datasets and Benchmarks, https://arxiv.org/abs/2411.03670).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from benchmd_ray.benchmarks.touchstone.recipes import (
    datasets,
    like,
    space,
    start_settings,
    variants,
)
from benchmd_ray.evaluation.benchmark import Benchmark, Start
from benchmd_ray.evaluation.evaluation import SEGMENTATION

if TYPE_CHECKING:
    import pandas as pd


def _rows(datasets: Collection[str]) -> pd.DataFrame:
    from benchmd_ray.benchmarks.touchstone.scored import named_rows

    return named_rows()


BENCHMARK = Benchmark(
    name="touchstone",
    version=1,
    title="Touchstone: segmentations scored from files, and whole algorithms compared",
    datasets=datasets,
    starts=(
        Start(
            "small-baseline",
            "a network of MONAI on patches, from random weights",
            start_settings,
            like,
            variants,
            technique="scratch",
            setting="finetune-full",
            note="a small baseline; none of the paper's algorithms.",
        ),
    ),
    evaluations=(SEGMENTATION,),
    space=space,
    rows=_rows,
    tables="benchmd_ray.benchmarks.touchstone.report_rows:TABLES",
    figures="benchmd_ray.benchmarks.touchstone.report_rows:TOPICS",
    commands={"segment": "benchmd_ray.benchmarks.touchstone.commands:segment"},
    about="Bassi, Li et al., Touchstone Benchmark: Are We on the Right Way for Evaluating AI "
    "Algorithms for Medical Segmentation? (https://arxiv.org/abs/2411.03670). `benchmd segment "
    "compare` compares algorithms; BENCHMD_SCORES names folders of scores for `benchmd report`.",
)
