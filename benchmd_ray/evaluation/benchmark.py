"""Declaration of a benchmark: datasets, starts, published results, search spaces."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
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
RESERVED = ("start", "tuned", "tuned ensemble", "start ensemble", "custom", "shuffled", "published")
"""Protocol names that no start may have."""
SOLVED = ("linear", "logistic")
"""Mode and solver of a transfer whose head is solved, not trained by steps."""


def _called(
    what: str, expected: Any, work: Callable[..., Any], *arguments: Any, **more: Any
) -> Any:
    """Call a declaration's function; failures and wrong types are errors that name it."""
    try:
        result = work(*arguments, **more)
    except BenchmdError:
        raise
    except Exception as error:  # external code may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise BenchmdError(
            f"{what} fails with {type(error).__name__}: {first_line(error)} "
            f"({Path(place.filename).name}, line {place.lineno}). Correct it and run again."
        ) from error
    names = expected is tuple and isinstance(result, tuple)
    if not isinstance(result, expected) or (names and not all(isinstance(n, str) for n in result)):
        words = {tuple: "a tuple of names", Mapping: "a mapping", Settings: "Settings"}
        expectation = words.get(expected, expected)
        raise BenchmdError(f"{what} returns {shown(result)}, expected {expectation}.")
    return result


def _guard(declared: object, what: str, expected: Mapping[str, Any]) -> None:
    for name, kind in expected.items():
        work = getattr(declared, name)
        if isinstance(work, partial) and work.func is _called:  # of a copy
            work = work.args[2]
        if work is not None:
            guarded = partial(_called, f"{what}: {name}", kind, work)
            object.__setattr__(declared, name, guarded)


def _of_technique(protocol: Settings, technique: str, run_settings: Settings) -> Settings:
    """A protocol with the encoder and the solver that a technique brings along, if any."""
    from benchmd_ray.ssl import BASELINES, HUB, NAMED, with_solver
    from benchmd_ray.ssl.brought import own_encoder

    if technique.startswith((HUB, NAMED)):  # its card or folder decides, not the user
        return replace(protocol, encoder=run_settings.encoder)
    encoder = own_encoder(technique)
    if technique in BASELINES:
        protocol = with_solver(protocol, technique)
    return protocol if encoder is None else replace(protocol, encoder=encoder)


def no_variants(kind: Modality) -> tuple[str, ...]:
    """Variants of a start with a single recipe: none."""
    return ()


@dataclass(frozen=True)
class Start:
    """Named settings of a benchmark: its runs follow this protocol, and searches start there."""

    name: str
    """Name in tables of its runs' protocol."""
    meaning: str
    """Its description in reports: ``the fixed protocol's settings``."""
    settings: Callable[[Modality, str, str], Settings]
    """Function from modality, technique and variant (empty for the default one) to the settings.

    Raises:
        BenchmdError: The start does not fit the modality.
    """
    like: Callable[[Modality, str, Settings], Settings | None]
    """Function from modality, technique and a run's settings to the settings required by this
    protocol; None if no run of the protocol can be like this.
    """
    variants: Callable[[Modality], tuple[str, ...]] = no_variants
    """Names of its recipes for a modality, such as networks."""
    technique: str | None = None
    """Its only technique; None for the chosen ones, or all."""
    setting: str | None = None
    """Its only transfer setting; None for the chosen ones, or all."""
    note: str = ""
    """Note that reports add if they have results of it."""

    def __post_init__(self) -> None:
        require_plain_name("start", self.name)
        if self.name in RESERVED:
            raise BenchmdError(f"a start cannot be named {self.name}: choose another name.")
        expected = {"settings": Settings, "like": Settings | None, "variants": tuple}
        _guard(self, f"the start {self.name}", expected)

    def followed(self, kind: Modality, technique: str, settings: Mapping[str, Any]) -> bool:
        """Whether a run with these settings, by part, follows the protocol.

        The encoder and the solver of techniques that have their own are part of it. Of a transfer
        that trains nothing by steps, only the settings that are stated count.
        """
        run_settings = updated(Settings(), settings)
        protocol = self.like(kind, technique, run_settings)
        if protocol is None:
            return False
        expected = as_dict(_of_technique(protocol, technique, run_settings))
        actual, transfer = as_dict(run_settings), run_settings.transfer
        untrained = transfer.mode == "knn" or (transfer.mode, transfer.solver) == SOLVED
        for part, stated in settings.items():
            names = stated if untrained and part == "transfer" else expected[part]
            if any(expected[part][name] != actual[part][name] for name in names):
                return False
        return True


@dataclass(frozen=True)
class Published:
    """Published AUROC, shown next to ours."""

    source: str
    """Source: ``BenchMD v2, tables 1 and 2``."""
    words: str
    """Notes for readers, shown after the source."""
    auroc: Callable[[], Mapping[Key, float]]
    unlike: Callable[..., str | None]
    """Function that returns why a result is not comparable, or None if it is. Arguments: the
    protocol, the source, the role of the scored dataset, and the keywords ``split``, ``options``
    and ``raw`` (see `benchmarks.benchmd.published`).
    """

    def __post_init__(self) -> None:
        expected = {"auroc": Mapping, "unlike": str | None}
        _guard(self, f"what was published in {self.source}", expected)


@dataclass(frozen=True)
class Benchmark:
    name: str
    version: int
    """Raised whenever its datasets, its starts or its scores change, for readers of `benchmd bench
    show`. It is not part of a run's name, unlike settings and versions of parts and evaluations.
    """
    title: str
    datasets: Callable[[], tuple[str, ...]]
    """Names of the cards of its datasets, including sources."""
    starts: tuple[Start, ...]
    """Its starts, the default one first."""
    evaluations: tuple[Evaluation, ...] = (CLASSIFICATION,)
    """Evaluations of each finished transfer, in addition to the default one on its source."""
    published: Published | None = None
    space: Callable[[str, str, Modality], Path | None] | None = None
    """Function from technique, searched setting and modality to the file of a search space; None
    uses the technique's.
    """
    rows: Callable[[Collection[str]], pd.DataFrame] | None = None
    """Function from names of datasets to score rows without a run, such as published ones, with
    columns of `report.frames.FRAMES`, ``rows``.
    """
    tables: str = ""
    """Import path, ``package.module:TABLES``, of its own tables for reports, a sequence of
    `report.tables.Declared`."""
    figures: str = ""
    """Import path, ``package.module:TOPICS``, of its own figures for reports, a sequence of
    functions like those of `report.report_figures.TOPICS`."""
    demo: str = ""
    """Import path, ``package.module:NAME``, of an `Evaluation` for one small run of the demo."""
    screen: str = ""
    """Import path, ``package.module:function``, from the folder of a model to the detector that was
    fitted to it, or None: a function from records with the columns of a catalog to their scores,
    and the threshold above which they are rejected."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Its own commands, `benchmd NAME …`: import paths, ``package.module:group``, by name."""
    about: str = ""
    """Source and further information for users."""

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
                "CLASSIFICATION, by which a transfer selects its epoch, or SEGMENTATION for masks."
            )
        _guard(self, f"the benchmark {self.name}", {"datasets": tuple, "space": Path | None})

    def start_named(self, name: str, kind: Modality) -> tuple[Start, str]:
        """A start and its variant, by the name of either; the default start for an empty name."""
        if not name:
            return self.starts[0], ""
        for start in self.starts:
            if name == start.name or name in start.variants(kind):
                return start, "" if name == start.name else name
        valid = [n for start in self.starts for n in (start.name, *start.variants(kind))]
        raise unknown_name(f"start of {self.name}", name, valid)
