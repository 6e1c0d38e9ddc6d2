"""Families of a search: which ones a request has, where each starts and what it varies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmd_ray.data.pooled import digests, members_of, open_pretraining
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.evaluation.registry import USUAL, built_in_space
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.models.encoder import require_fitting
from benchmd_ray.service.choice import (
    Choice,
    require_known,
    technique_settings,
    with_setting,
)
from benchmd_ray.service.cost import Inputs
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.service.resolved import resolve_settings
from benchmd_ray.service.steps import pretrain_step, transfer_step
from benchmd_ray.settings.definition import Settings
from benchmd_ray.ssl import BASELINES, SCRATCH, technique_named
from benchmd_ray.ssl.brought import at_hand, own_encoder
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.portfolio import Portfolio
from benchmd_ray.tuning.spaces import PRETRAIN, SETTINGS, Space, shared, space_for, starting_at
from benchmd_ray.tuning.stages import Stage, stage_of, with_linear

USUAL_SETTINGS = ("linear", "knn", "finetune-full")
"""Settings that are searched, unless some are named."""


Changes = tuple[Mapping[str, Any], ...]
"""Settings by group; later ones override earlier ones."""


@dataclass(frozen=True)
class Tuning:
    """The user's request to ``benchmd tune``."""

    choice: Choice
    """Catalogs, modalities, the benchmark's start, changes of settings, seeds; the first seed is
    the search's."""
    techniques: tuple[str, ...] = ()
    """Techniques that are searched; empty: all that fit the signal and whose weights are here."""
    searched: tuple[str, ...] = ()
    """Settings of `SETTINGS` that are searched, of equal labels; empty: all `USUAL_SETTINGS` that a
    technique allows."""
    space: Path | None = None
    """YAML file of the user's own search space, for the family that a search starts from."""
    held: tuple[str, ...] = ()
    """Settings of the spaces that stay fixed."""
    method: Method = field(default_factory=Method)
    """How trials are proposed and chosen; ``universal`` is one search over all modalities."""
    portfolio: Portfolio = field(default_factory=Portfolio)
    """Portfolio from which each search takes settings learned on other datasets."""
    budget: Budget = field(default_factory=Budget)
    """Budget of each search."""
    single: bool = False
    """Whether start and choice are also trained on all labels, once for each seed."""
    at_once: int | None = None
    """Jobs running at the same time; None runs as many as fit."""
    memory_gib: float | None = None
    """Memory that a job may allocate; None divides an embedded machine's memory among them."""
    fixed: tuple[str, ...] = ()
    """Settings that no family searches, if it has them."""
    reductions: Changes = ()
    """Changes that make networks small, before those of the choice."""


def family_stage(family: Family) -> Stage:
    """The stage that a family's trials train."""
    return stage_of(family.technique, family.setting)


def family_choice(tuning: Tuning, technique: str, setting: str = "") -> Choice:
    """The choice of a technique's runs: the benchmark's start may be for others alone."""
    choice, start = tuning.choice, tuning.choice.chosen_start
    if start.technique not in (None, technique) or (
        setting and start.setting not in (None, setting)
    ):
        evaluated = choice.evaluated or choice.bench
        choice = replace(
            choice, bench=USUAL, start="", evaluated=evaluated, techniques=(), settings=()
        )
    reductions, overrides = tuning.reductions, choice.overrides
    if own_encoder(technique) is not None:
        reductions = _without_encoder(reductions)
        if technique not in tuning.techniques:
            overrides = _without_encoder(overrides)
    choice = replace(choice, overrides=(*reductions, *overrides))
    settings = ("linear" if setting == PRETRAIN else setting,) if setting else ()
    return replace(choice, techniques=(technique,), settings=settings)


def _without_encoder(changes: Changes) -> Changes:
    return tuple(
        {group: values for group, values in each.items() if group != "encoder"} for each in changes
    )


def space_of(technique: str, setting: str, kind: Modality, path: Path | None = None) -> Space:
    """The search space of the user, otherwise of a benchmark, otherwise of the technique."""
    built_in = None if path else built_in_space(technique, setting, kind)
    return space_for(technique, setting, kind, path, built_in=built_in)


def require_families(tuning: Tuning) -> None:
    choice = replace(tuning.choice, bench=USUAL, start="", settings=())
    require_known(replace(choice, techniques=tuning.techniques))
    for name in tuning.searched:
        if name not in SETTINGS:
            raise unknown_name("setting to search", name, SETTINGS)
    _require_start(tuning)
    labels = {name.partition("-")[2] or "full" for name in tuning.searched}
    if len(labels) > 1 or (PRETRAIN in tuning.searched and len(tuning.searched) > 1):
        raise BenchmdError(
            f"one search cannot compare {', '.join(tuning.searched)}: expected settings with the "
            f"same labels, and {PRETRAIN} alone. Search them one by one."
        )
    if not tuning.method.universal:
        return
    if len(tuning.choice.catalogs) == 0:
        raise BenchmdError("a universal search needs catalogs of several modalities: --catalog.")
    if len(tuning.techniques) != 1:
        raise BenchmdError("a universal search is of one technique: name it with --technique.")


def _require_start(tuning: Tuning) -> None:
    """Refuse a named start of a family that is not searched."""
    start = tuning.choice.chosen_start
    for option, only, names in (
        ("technique", start.technique, tuning.techniques),
        ("setting", start.setting, tuning.searched),
    ):
        if tuning.choice.start and names and only not in (None, *names):
            raise BenchmdError(
                f"{tuning.choice.start} of {tuning.choice.bench} is for the {option} {only}, and "
                f"only {', '.join(names)} would be searched: add --{option} {only}, or omit "
                "--start."
            )


def families_of(
    tuning: Tuning, group: Sequence[PlannedDataset], *, gpu: bool
) -> tuple[tuple[Family, ...], tuple[str, ...]]:
    """Families of a search on a group of sources, and why others are not searched.

    The first one's start is that of the search; the others follow by cost, the cheapest first.
    """
    starts, notes = _starts(tuning, group, gpu=gpu)
    by_cost = sorted(starts, key=lambda key: _cost(key[0], key[1], starts[key][0], group[0]))
    first = next((key for key in by_cost if _is_start(tuning, *key)), by_cost[0])
    families = []
    for key in (first, *(key for key in by_cost if key != first)):
        path = tuning.space if key == first else None
        try:
            families.append(_family(tuning, group, *key, starts[key], path))
        except BenchmdError as error:
            if path is not None or _is_required(tuning, key[0]):
                raise
            notes.append(str(error))
    if not families:
        raise BenchmdError(f"nothing is left to search: {' '.join(notes)}")
    return tuple(families), (*dict.fromkeys(notes),)


def _starts(
    tuning: Tuning, group: Sequence[PlannedDataset], *, gpu: bool
) -> tuple[dict[tuple[str, str], tuple[Settings, ...]], list[str]]:
    """Settings that each technique and setting starts from, and why others are not searched."""
    starts, notes = {}, []
    for technique, setting in _candidates(tuning, group):
        try:
            starts[technique, setting] = tuple(
                _start(tuning, source, technique, setting, gpu=gpu) for source in group
            )
        except BenchmdError as error:
            if _is_required(tuning, technique):
                raise
            notes.append(str(error))
    if not starts:
        reasons = " ".join(dict.fromkeys(notes))
        raise BenchmdError(
            f"there is no family of models to search with {' or '.join(tuning.searched)}"
            f"{f' ({reasons})' * bool(reasons)}: name techniques with --technique."
        )
    return starts, notes


def _candidates(tuning: Tuning, group: Sequence[PlannedDataset]) -> Iterator[tuple[str, str]]:
    """Techniques and settings of the families to try, those that a user named as named."""
    kind, techniques = group[0].kind, tuning.techniques
    if not techniques:
        techniques = (tuning.choice.chosen_start.technique or SCRATCH, SCRATCH)
        if not kind.task.segments:  # as networks of masks are trained from random weights
            brought = at_hand(kind.signal, tuning.choice.weights)
            techniques = (*techniques, *BASELINES, *brought)
    start = tuning.choice.chosen_start
    for technique in dict.fromkeys(techniques):
        is_bound = not tuning.searched and start.technique in (None, technique)
        only = start.setting if is_bound else None
        for setting in (only,) if only else tuning.searched or USUAL_SETTINGS:
            is_named = only or (tuning.searched and technique in tuning.techniques)
            if is_named or setting.partition("-")[0] in _modes(technique, kind):
                yield technique, setting


def _modes(technique: str, kind: Modality) -> tuple[str, ...]:
    """Ways of transfer that are tried for a technique."""
    if technique == SCRATCH or kind.task.segments:
        return ("finetune",)
    return ("linear", "knn") if technique in BASELINES else ("linear", "knn", "finetune")


def _is_required(tuning: Tuning, technique: str) -> bool:
    """Whether a technique that cannot be searched is an error: it was named, or is the start's."""
    named = tuning.choice.chosen_start.technique or SCRATCH
    return technique in (tuning.techniques or (named,))


def _is_start(tuning: Tuning, technique: str, setting: str) -> bool:
    """Whether a search may start from a family: the benchmark's, the first named, or scratch."""
    start = tuning.choice.chosen_start
    first = start.technique or (tuning.techniques or (SCRATCH,))[0]
    return technique == first and start.setting in (None, setting)


def _cost(technique: str, setting: str, settings: Settings, source: PlannedDataset) -> float:
    """Floating-point operations of an evaluation with a family's start."""
    inputs = Inputs(technique, settings, source)
    steps = [transfer_step(settings)]
    if technique != SCRATCH and stage_of(technique, setting).pretrains:  # its space refuses it
        steps.append(pretrain_step(technique))
    works = [step.work(inputs) for step in steps]
    return sum(work.units * work.unit_flops + work.once_flops for work in works)


def _start(
    tuning: Tuning, source: PlannedDataset, technique: str, setting: str, *, gpu: bool
) -> Settings:
    """The settings that a family starts from on a source."""
    choice = family_choice(tuning, technique, setting)
    start, reason = technique_settings(choice, source.kind, technique)
    if reason is not None:
        raise BenchmdError(f"{technique} cannot be searched on {source.name}: {reason}.")
    start = with_linear(start) if setting == PRETRAIN else with_setting(start, setting)
    require_fitting(source.kind.signal, start.encoder)
    return resolve_settings(replace(start, seed=choice.seeds[0]), gpu=gpu)


def _family(
    tuning: Tuning,
    group: Sequence[PlannedDataset],
    technique: str,
    setting: str,
    starts: tuple[Settings, ...],
    path: Path | None,
) -> Family:
    """A technique with a setting, on each source of a search; ``path``: of the user's space."""
    spaces, fixed, narrow = [], set(), technique not in tuning.techniques
    for source, start in zip(group, starts, strict=True):
        space = space_of(technique, setting, source.kind, path)
        held = {*tuning.held, *tuning.fixed}
        names = {parameter.name for parameter in space.parameters} & held
        spaces.append(starting_at(space, start, names, narrow=narrow))
        fixed |= names
    space = shared(spaces) if len(group) > 1 else spaces[0]
    elsewhere = _pretrained_on(tuning.choice, technique, setting)
    return Family(technique, setting, space, starts, elsewhere, frozenset(fixed))


def _pretrained_on(choice: Choice, technique: str, setting: str) -> tuple[str, ...]:
    """Digests of the catalogs of --pretrain-on, of a technique that is pretrained on them."""
    if not choice.pretrain_on or technique == SCRATCH or _trains_nothing(technique):
        return ()
    if setting == PRETRAIN:
        raise BenchmdError(
            "a search of pretrain trains on folds of its source: leave --pretrain-on out, or "
            "search a transfer setting such as linear."
        )
    catalog = open_pretraining([path.resolve() for path in choice.pretrain_on])
    return tuple(sorted(digests(members_of(catalog))))


def _trains_nothing(technique: str) -> bool:
    return technique == SCRATCH or technique_named(technique).method is None
