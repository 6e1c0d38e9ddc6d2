"""What a benchmark declares: datasets, starts, published results, search spaces."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmd_ray.errors import BenchmdError, first_line, require_plain_name, shown, unknown_name
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, OF_TRANSFERS, Evaluation
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.settings.definition import Settings, as_dict, updated

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, str, str]
"""A published result: dataset, transfer setting, technique."""
RESERVED = ("tuned", "tuned ensemble", "start ensemble", "custom", "shuffled", "published")
"""Protocols that no start may be named like."""


def _called(
    what: str, expected: Any, work: Callable[..., Any], *arguments: Any, **more: Any
) -> Any:
    """The result of a declaration's function; failures and wrong types are errors that name it."""
    try:
        result = work(*arguments, **more)
    except BenchmdError:
        raise
    except Exception as error:  # whatever code from outside does
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise BenchmdError(
            f"{what} fails with {type(error).__name__}: {first_line(error)} "
            f"({Path(place.filename).name}, line {place.lineno}). Correct it and run again."
        ) from error
    names = expected is tuple and isinstance(result, tuple)
    if not isinstance(result, expected) or (names and not all(isinstance(n, str) for n in result)):
        words = {tuple: "a tuple of names", Mapping: "a mapping", Settings: "Settings"}
        expectation = words.get(expected, expected)
        raise BenchmdError(f"{what} gives {shown(result)}, expected {expectation}.")
    return result


def _guard(declared: object, what: str, expected: Mapping[str, Any]) -> None:
    for name, kind in expected.items():
        work = getattr(declared, name)
        if isinstance(work, partial) and work.func is _called:  # of a copy
            work = work.args[2]
        if work is not None:
            guarded = partial(_called, f"{what}: {name}", kind, work)
            object.__setattr__(declared, name, guarded)


def no_variants(kind: Modality) -> tuple[str, ...]:
    """For a start that is one recipe."""
    return ()


@dataclass(frozen=True)
class Start:
    """Settings that a benchmark names: runs with them follow its protocol, searches begin there."""

    name: str
    """Protocol of its runs, as tables name it."""
    meaning: str
    """Its description in reports: ``the fixed protocol's settings``."""
    settings: Callable[[Modality, str, str], Settings]
    """From modality, technique and variant (empty for the usual one) to the settings.

    Raises:
        BenchmdError: It does not fit the modality.
    """
    like: Callable[[Modality, str, Settings], Settings | None]
    """From modality, technique and the settings of a run to those that the run has if it follows
    this protocol; None where none of its runs can have them."""
    variants: Callable[[Modality], tuple[str, ...]] = no_variants
    """Names of its recipes for a modality, such as networks."""
    technique: str | None = None
    """The only technique; None takes those that are chosen, or all."""
    setting: str | None = None
    """The only transfer setting; None takes those that are chosen, or all."""
    note: str = ""
    """What a report adds where it has results of it."""

    def __post_init__(self) -> None:
        require_plain_name("start", self.name)
        if self.name in RESERVED:
            raise BenchmdError(f"a start cannot be named {self.name}: choose another name.")
        expected = {"settings": Settings, "like": Settings | None, "variants": tuple}
        _guard(self, f"the start {self.name}", expected)

    def followed(self, kind: Modality, technique: str, settings: Mapping[str, Any]) -> bool:
        """Whether a run has these settings, of the parts that determine it."""
        run_settings = updated(Settings(), settings)
        protocol = self.like(kind, technique, run_settings)
        return protocol is not None and all(
            as_dict(protocol)[p] == as_dict(run_settings)[p] for p in settings
        )


@dataclass(frozen=True)
class Published:
    """Published AUROC, shown next to ours."""

    source: str
    """Where it is from: ``BenchMD v2, tables 1 and 2``."""
    words: str
    """What a reader must know of it, after its source."""
    auroc: Callable[[], Mapping[Key, float]]
    unlike: Callable[..., str | None]
    """Why a result cannot be compared, None where it can: of the protocol, the source and the role
    of the scored dataset, and by name ``split``, ``options`` and ``raw``
    (see `benchmarks.benchmd.published`)."""

    def __post_init__(self) -> None:
        expected = {"auroc": Mapping, "unlike": str | None}
        _guard(self, f"what was published in {self.source}", expected)


@dataclass(frozen=True)
class Benchmark:
    name: str
    version: int
    """Raised whenever its datasets, its starts or its scores change, for readers of `benchmd bench
    show`. What names a run are its settings and the versions of parts and evaluations instead."""
    title: str
    datasets: Callable[[], tuple[str, ...]]
    """Names of the cards of its datasets, sources among them."""
    starts: tuple[Start, ...]
    """The usual one first."""
    evaluations: tuple[Evaluation, ...] = (CLASSIFICATION,)
    """What is asked of each finished transfer; the usual one of its source always is."""
    published: Published | None = None
    space: Callable[[str, str, Modality], Path | None] | None = None
    """From technique, searched setting and modality to a file of its own search space; None takes
    the technique's."""
    rows: Callable[[Collection[str]], pd.DataFrame] | None = None
    """From names of datasets to score rows that no run has made, such as published ones, with
    columns of `report.frames.FRAMES`, ``rows``."""
    tables: str = ""
    """Import path, ``package.module:TABLES``, of its own tables for reports, a sequence of
    `report.tables.Declared`."""
    figures: str = ""
    """Import path, ``package.module:TOPICS``, of its own figures for reports, a sequence of
    functions like those of `report.report_figures.TOPICS`."""
    demo: str = ""
    """Import path, ``package.module:NAME``, of what the demo asks of one small run, an
    `Evaluation`."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Its own commands, `benchmd NAME …`: import paths, ``package.module:group``, by name."""
    about: str = ""
    """Source and what else its user should know."""

    def __post_init__(self) -> None:
        require_plain_name("benchmark", self.name)
        if not self.starts:
            raise BenchmdError(f"the benchmark {self.name} has no start: expected one or more.")
        for what, names in (
            ("start", [start.name for start in self.starts]),
            ("evaluation", [evaluation.name for evaluation in self.evaluations]),
        ):
            if both := sorted({name for name in names if names.count(name) > 1}):
                raise BenchmdError(
                    f"the benchmark {self.name} has two {what}s named {both[0]}: rename one."
                )
        if not any(required in self.evaluations for required in OF_TRANSFERS):
            raise BenchmdError(
                f"the benchmark {self.name} has no classification among its evaluations: add "
                "CLASSIFICATION, by which a transfer chooses its epoch, or SEGMENTATION, where it "
                "is of masks."
            )
        _guard(self, f"the benchmark {self.name}", {"datasets": tuple, "space": Path | None})

    def start_named(self, name: str, kind: Modality) -> tuple[Start, str]:
        """A start and its variant, by the name of either; the usual start for an empty name."""
        if not name:
            return self.starts[0], ""
        for start in self.starts:
            if name == start.name or name in start.variants(kind):
                return start, "" if name == start.name else name
        valid = [n for start in self.starts for n in (start.name, *start.variants(kind))]
        raise unknown_name(f"start of {self.name}", name, valid)
