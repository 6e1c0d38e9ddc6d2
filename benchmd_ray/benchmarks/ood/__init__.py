"""Medical out-of-distribution detection: does a detector notice what a model should not be asked?

Source: Cao et al., A Benchmark of Medical Out of Distribution Detection
(https://arxiv.org/abs/2007.04250), with the changes that docs/ood.md names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmd_ray.benchmarks.benchmark import Benchmark, Start
from benchmd_ray.benchmarks.evaluation import CLASSIFICATION, Asked, Evaluation, Member
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modalities import Modality
from benchmd_ray.settings import Settings, updated
from benchmd_ray.training.predictions import Form, Predictions

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

NETWORK = "monai-densenet121"


def _settings(kind: Modality, technique: str, _: str) -> Settings:
    """DenseNet-121 on images and volumes, trained from random weights."""
    if len(kind.signal.axes) == 2:
        raise BenchmdError(
            f"the paper's network is one of images, and {kind.name} is over time: take the runs of "
            "another benchmark with `--bench benchmd --evaluate ood`."
        )
    changes = {
        "encoder": {"network": NETWORK},
        "transfer": {"mode": "finetune", "labels": "full", "optimiser": {"lr": 1e-3}},
    }
    return updated(Settings(), changes)


def _like(kind: Modality, technique: str, settings: Settings) -> Settings | None:
    return None if len(kind.signal.axes) == 2 else _settings(kind, technique, "")


def _datasets() -> tuple[str, ...]:
    from benchmd_ray.benchmarks.ood.cards import in_distribution

    return in_distribution()


def _also(own: Member, chosen: Sequence[Member]) -> tuple[str, ...]:
    from benchmd_ray.benchmarks.ood.cards import use_case_of

    others = [each for each in chosen if each.name != own.name]
    for each in others:
        use_case_of(own.name, own.kind, each.name, each.kind)
    return tuple(each.name for each in others)


def _compute(asked: Asked) -> pa.Table:
    from benchmd_ray.benchmarks.ood.detect import detected

    return detected(asked)


def _fault(predictions: Predictions) -> str:
    from benchmd_ray.benchmarks.ood.table import fault

    return fault(predictions)


def _scores(predictions: Predictions, resamples: int) -> pd.DataFrame:
    from benchmd_ray.benchmarks.ood.scores import score_rows

    return score_rows(predictions, resamples)


DETECTION = Evaluation(
    Form("ood", 1, _fault), _compute, _scores, roles=("source",), also=_also, passes=30.0
)
BENCHMARK = Benchmark(
    name="ood",
    version=1,
    title="Medical out-of-distribution detection",
    datasets=_datasets,
    starts=(
        Start(
            "densenet121",
            "the paper's network",
            _settings,
            _like,
            technique="scratch",
            setting="finetune-full",
        ),
    ),
    evaluations=(CLASSIFICATION, DETECTION),
    tables="benchmd_ray.benchmarks.ood.report:TABLES",
    figures="benchmd_ray.benchmarks.ood.report_figures:TOPICS",
    commands="benchmd_ray.benchmarks.ood.commands:ood",
    about="Cao et al., A Benchmark of Medical Out of Distribution Detection "
    "(https://arxiv.org/abs/2007.04250).",
)
