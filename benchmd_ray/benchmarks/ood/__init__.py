"""Medical out-of-distribution detection: does a detector notice what a model should not be asked?

Source: Cao et al., A Benchmark of Medical Out of Distribution Detection
(https://arxiv.org/abs/2007.04250), with the changes that docs/ood.md names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.benchmark import Benchmark, Start
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, Asked, Detection, Evaluation, Member
from benchmd_ray.evaluation.registry import named_by
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.runs.predictions import Form
from benchmd_ray.settings.definition import Settings, updated

if TYPE_CHECKING:
    import pyarrow as pa

NETWORK = "monai-densenet121"
LEAST, RESIZED = 32, 64
"""Pixels that the network takes at least, and what smaller images are resized to."""


def _settings(kind: Modality, technique: str, _: str) -> Settings:
    if len(kind.signal.axes) == 2:
        raise BenchmdError(
            f"the paper's network is one of images, and {kind.name} is over time: take the runs of "
            "another benchmark with `--bench benchmd --evaluate ood`."
        )
    small = min(kind.signal.input_shape[1:]) < LEAST
    changes = {
        "encoder": {"network": NETWORK, "options": {"resize": RESIZED} if small else {}},
        "transfer": {"mode": "finetune", "labels": "full", "optimiser": {"lr": 1e-3}},
    }
    return updated(Settings(), changes)


def _like(kind: Modality, technique: str, settings: Settings) -> Settings | None:
    return None if len(kind.signal.axes) == 2 else _settings(kind, technique, "")


def _datasets() -> tuple[str, ...]:
    from benchmd_ray.benchmarks.ood.cards import in_distribution
    from benchmd_ray.data.cards import cards

    return tuple(name for name in in_distribution() if len(cards()[name].signal.axes) > 2)


def _also(source: Member, chosen: Sequence[Member]) -> tuple[str, ...]:
    from benchmd_ray.benchmarks.ood.cards import use_case_of
    from benchmd_ray.benchmarks.ood.conform import conformable
    from benchmd_ray.data.origins import of_one_origin

    names = []
    for member in chosen:
        known_only = member.catalog is None and of_one_origin(source.name, member.name)
        if member.name == source.name or known_only:
            continue
        if not conformable(member.kind.signal, source.kind.signal):
            continue
        use_case_of(source.name, source.kind, member.name, member.kind)
        names.append(member.name)
    return tuple(names)


def _compute(asked: Asked) -> pa.Table:
    from benchmd_ray.benchmarks.ood.detect import detected
    from benchmd_ray.benchmarks.ood.methods import detector_sources, detectors

    return detected(asked, detectors(), detector_sources())


def _compute_released(asked: Asked) -> pa.Table:
    from benchmd_ray.benchmarks.ood.detect import detected
    from benchmd_ray.benchmarks.ood.released import RELEASED

    return detected(asked, RELEASED)


def _later(path: str, *arguments: Any) -> Any:
    """What a function gives that is imported where it is called: it takes PyTorch along."""
    return named_by(f"{__name__}.{path}")(*arguments)


def _current(schema: pa.Schema) -> bool:
    """Whether predictions are of the cards and the installed detectors as they are."""
    from benchmd_ray.benchmarks.ood.methods import detector_sources
    from benchmd_ray.benchmarks.ood.table import about_of

    return _of_cards(schema) and about_of(schema)["sources"] == detector_sources()


def _of_cards(schema: pa.Schema) -> bool:
    from benchmd_ray.benchmarks.ood.cards import digest_of_use_cases
    from benchmd_ray.benchmarks.ood.table import about_of

    stated = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    cards = digest_of_use_cases(stated["dataset"], [*json.loads(stated["also"])])
    return bool(about_of(schema)["use_cases"] == cards)


def tuned_by(trials: int) -> Evaluation:
    """The evaluation `TUNED` by a search of so many trials."""
    from benchmd_ray.benchmarks.ood.search import searched
    from benchmd_ray.benchmarks.ood.table import about_of

    def current(schema: pa.Schema) -> bool:
        return _of_cards(schema) and len(about_of(schema)["trials"]) == trials

    return replace(TUNED, compute=partial(searched, trials=trials), current=current)


def _declared(
    name: str,
    version: int,
    compute: Callable[[Asked], pa.Table],
    current: Callable[[pa.Schema], bool],
    *,
    planned: bool = False,
) -> Evaluation:
    return Evaluation(
        Form(name, version, partial(_later, "table:fault")),
        compute,
        partial(_later, "scores:score_rows"),
        roles=("source",),
        also=_also,
        passes=60.0,
        planned=planned,
        current=current,
    )


DETECTION = replace(
    _declared("ood", 4, _compute, _current, planned=True),
    detection=Detection(
        partial(_later, "board:records"),
        partial(_later, "board:scores"),
        partial(_later, "report:title_of"),
    ),
)
AS_RELEASED = _declared("ood-released", 3, _compute_released, _of_cards)
"""The paper's detectors as its code calibrates and scores them."""
TUNED = _declared("ood-tuned", 3, partial(_later, "search:searched"), _of_cards)
"""Detectors with hyperparameters that a search found, next to those with the papers'."""
ROBUSTNESS = Evaluation(
    Form("robustness", 1, partial(_later, "robustness:fault")),
    partial(_later, "corrupted:corrupted"),
    partial(_later, "robustness:score_rows"),
    passes=40.0,
    planned=False,
)
"""Classification of records with each simulated fault: no detector."""
EVALUATIONS = {evaluation.name: evaluation for evaluation in (DETECTION, AS_RELEASED, TUNED)}
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
    evaluations=(CLASSIFICATION, *EVALUATIONS.values(), ROBUSTNESS),
    tables="benchmd_ray.benchmarks.ood.report:TABLES",
    figures="benchmd_ray.benchmarks.ood.report_figures:TOPICS",
    demo="benchmd_ray.benchmarks.ood.demo:FEW",
    screen="benchmd_ray.benchmarks.ood.guard:screen_of",
    commands={
        "ood": "benchmd_ray.benchmarks.ood.commands:ood",
        "guard": "benchmd_ray.benchmarks.ood.commands:guard",
    },
    about="Cao et al., A Benchmark of Medical Out of Distribution Detection "
    "(https://arxiv.org/abs/2007.04250).",
)
