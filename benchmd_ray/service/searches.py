"""Plan searches for a choice: their families, what each varies, where it starts and its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.inner import Labelled, splits_seen
from benchmd_ray.data.origins import of_one_origin
from benchmd_ray.data.pooled import digests, members_of, open_pretraining
from benchmd_ray.data.sketches import have_common, sketch_of
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.evaluation.registry import USUAL, built_in_space
from benchmd_ray.extensions.parts import versions_of
from benchmd_ray.files.atomic import digest
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.models.encoder import NETWORKS, require_fitting
from benchmd_ray.models.networks import network_part, network_source
from benchmd_ray.service.choice import (
    Choice,
    chosen_datasets,
    require_known,
    technique_settings,
    with_setting,
)
from benchmd_ray.service.cost import Inputs, labelled_rows
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.service.learning import search_kind
from benchmd_ray.service.naming import file_name, transfer_parts
from benchmd_ray.service.plan import Item, Plan
from benchmd_ray.service.resolved import resolve_settings
from benchmd_ray.service.steps import pretrain_step, transfer_step
from benchmd_ray.settings.definition import EncoderSettings, ExecutionSettings, Settings, as_dict
from benchmd_ray.ssl import BASELINES, SCRATCH, method_source, technique_named
from benchmd_ray.ssl.brought import at_hand, own_encoder, technique_label
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.parameters import NETWORK
from benchmd_ray.tuning.portfolio import Portfolio, PortfolioSettings, chosen_settings
from benchmd_ray.tuning.records import FORMAT
from benchmd_ray.tuning.spaces import PRETRAIN, SETTINGS, Space, shared, space_for, starting_at
from benchmd_ray.tuning.stages import Stage, stage_of, with_linear

USUAL_SETTINGS = ("linear", "knn", "finetune-full")
"""Settings that are searched, unless some are named."""


@dataclass(frozen=True)
class Tuning:
    """The user's request to ``benchmd tune``."""

    choice: Choice
    """Catalogs, modalities, the benchmark's start, changes of settings, seeds. The first seed is
    used for trials; techniques and transfer settings are those of the start.
    """
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


@dataclass(frozen=True)
class SearchPlan:
    families: tuple[Family, ...]
    """The first one's start is that of the search; the others follow by cost, cheapest first."""
    sources: tuple[PlannedDataset, ...]
    """One source, or several that share their settings."""
    method: Method
    portfolio: tuple[PortfolioSettings, ...] = ()
    """Settings that are tried right after the families' starts."""
    related: tuple[PlannedDataset, ...] = ()
    """Targets of a source's origin: the search sees none of the patients scored there."""
    notes: tuple[str, ...] = ()
    """Why families are not searched."""

    @property
    def determinants(self) -> dict[str, Any]:
        """What determines the search, except its budget, which may be extended."""
        return {
            "families": [_determinants(family) for family in self.families],
            "parts": versions_of(self._parts),
            "catalogs": [source.digest for source in self.sources],
            "method": vars(self.method),
            "portfolio": [
                {"family": tried.family, "values": tried.values, "datasets": [*tried.lenders]}
                for tried in self.portfolio
            ],
            "related": sorted(str(target.digest) for target in self.related),
        }

    @property
    def _parts(self) -> set[str]:
        used = {"augmentation", "inner splits", "search"}
        for family in self.families:
            searched = [p.values for p in family.space.parameters if p.name == NETWORK]
            used |= {network_part(str(name)) for names in searched for name in names}
            used |= {part for start in family.settings for part in transfer_parts(start)}
            if family.technique != SCRATCH:
                method = technique_named(family.technique).method
                used |= {"pretraining", *([] if method is None else [method])}
        return used

    @property
    def metric(self) -> str:
        """Name of the score by which trials are compared: ``auroc``, or ``dsc`` for masks."""
        return self.sources[0].kind.task.selected_by

    @property
    def name(self) -> str:
        """Name of its folder: a readable part and a hash of its determinants."""
        where = "universal" if self.method.universal else self.sources[0].kind.signal.name
        family, *others = self.families
        what = f"{file_name(technique_label(family.technique))}-{family.setting}"
        if others:
            _, _, labels = family.setting.partition("-")
            what = f"{len(self.families)}-families-{labels or 'full'}"
        return f"tune-{where}-{what}-{digest(self.determinants)[:12]}"

    @property
    def labelled(self) -> Labelled | None:
        """The labels that a search of a few-label setting uses; None for all."""
        return labels_of(self.families[0].settings[0])

    def describe(self, inner: Sequence[Catalog]) -> dict[str, Any]:
        """Content of ``search.json``, with the first inner catalog of each source."""
        return {
            "format": FORMAT,
            "families": [
                {
                    "technique": technique_label(family.technique),
                    "setting": family.setting,
                    "space": family.space.as_dict(),
                    "settings": [as_dict(settings) for settings in family.settings],
                }
                for family in self.families
            ],
            "sources": [
                {
                    "modality": source.modality,
                    "source": source.name,
                    "policy": source.policy,
                    "catalog": source.digest,
                    "inner": catalog.digest,
                    "sketch": _sketch(source),
                    "records": of_splits(catalog, "records"),
                    "patients": of_splits(catalog, "patients"),
                }
                for source, catalog in zip(self.sources, inner, strict=True)
            ],
            "lenders": {k: v for tried in self.portfolio for k, v in tried.lenders.items()},
            "metric": self.metric,
            "sampler": self.method.sampler,
            "cautious": self.method.cautious,
            "seed": self.method.seed,
            "device": self.families[0].settings[0].execution.device,
            "determinants": self.determinants,
        }


def _determinants(family: Family) -> dict[str, Any]:
    parts = ("encoder", "pretrain", "transfer", "seed")
    starts = [as_dict(settings) for settings in family.settings]
    technique = family.technique
    return {
        "technique": technique_label(technique),
        "method_source": None if technique == SCRATCH else method_source(technique),
        "network_source": [network_source(encoder) for encoder in _networks(family)],
        "setting": family.setting,
        "starts": [{name: start[name] for name in parts} for start in starts],
        "precision": [settings.execution.precision for settings in family.settings],
        "space": family.space.as_dict(),
        "pretrained_on": family.pretrained_on,
    }


def _networks(family: Family) -> list[EncoderSettings]:
    """Encoders of a family's starts, and one for each custom network in its space."""
    searched = (p.values for p in family.space.parameters if p.name == NETWORK)
    names = [name for values in searched for name in values if name not in NETWORKS]
    return [
        *(settings.encoder for settings in family.settings),
        *(EncoderSettings(network=name) for name in names),
    ]


def execution_of(plan: SearchPlan) -> ExecutionSettings:
    """How jobs are executed: as those of the family with the most workers."""
    return max(
        (settings.execution for family in plan.families for settings in family.settings),
        key=lambda execution: execution.workers,
    )


def family_stage(family: Family) -> Stage:
    """The stage that a family's trials train."""
    return stage_of(family.technique, family.setting)


def family_choice(tuning: Tuning, technique: str, setting: str = "") -> Choice:
    """The choice of a technique's runs: the benchmark's start is for its own technique alone."""
    choice, start = tuning.choice, tuning.choice.chosen_start
    if start.technique not in (None, technique):
        evaluated = choice.evaluated or choice.bench
        choice = replace(
            choice, bench=USUAL, start="", evaluated=evaluated, techniques=(), settings=()
        )
    if technique not in tuning.techniques and own_encoder(technique) is not None:
        overrides = tuple(
            {group: values for group, values in changes.items() if group != "encoder"}
            for changes in choice.overrides
        )
        choice = replace(choice, overrides=overrides)
    settings = ("linear" if setting == PRETRAIN else setting,) if setting else ()
    return replace(choice, techniques=(technique,), settings=settings)


def of_sources(plan: Plan, search: SearchPlan) -> list[Item]:
    """Items of a plan that belong to a search's sources, and the pretrainings that they need."""
    sources = {(source.name, source.policy) for source in search.sources}
    chosen = [item for item in plan.items if (item.source, item.policy) in sources]
    names = {item.name for item in chosen} | {item.after for item in chosen}
    return [item for item in plan.items if item.name in names]


def of_splits(catalog: Catalog, name: str) -> dict[str, int]:
    """Number of ``records`` or ``patients`` in the two splits of an inner catalog."""
    splits = catalog.manifest["splits"]
    return {split: int(splits[split][name]) for split in ("train", "validation")}


def labels_of(settings: Settings) -> Labelled | None:
    """The labels that a search of a few-label setting uses; None for all."""
    per_class = settings.transfer.labels_per_class
    return None if per_class is None else Labelled(per_class, settings.seed)


def records_seen(source: PlannedDataset, start: Settings) -> int:
    """Most records of a source that a search sees; of a few-label setting, those of its labels."""
    if labels_of(start) is not None:
        return labelled_rows(start.transfer, source)
    return sum(source.rows[split] for split in splits_seen(source.rows, source.scored))


def planned_searches(tuning: Tuning, *, gpu: bool) -> list[SearchPlan]:
    """The requested searches: one for each source, or one over all modalities."""
    _require_known(tuning)
    chosen = chosen_datasets(tuning.choice)
    sources = [dataset for dataset in chosen.datasets if dataset.role == "source"]
    targets = [d for d in (*chosen.datasets, *chosen.also) if d.role == "target"]
    groups = [sources] if tuning.method.universal else [[source] for source in sources]
    plans = [_planned(tuning, group, targets, gpu=gpu) for group in groups]
    names = {p.name for plan in plans for family in plan.families for p in family.space.parameters}
    for name in tuning.held:
        if not any(name in family.held for plan in plans for family in plan.families):
            raise unknown_name("setting to hold with --fix:", name, names)
    return plans


def _require_known(tuning: Tuning) -> None:
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


def space_of(technique: str, setting: str, kind: Modality, path: Path | None = None) -> Space:
    """The search space of the user, otherwise of a benchmark, otherwise of the technique."""
    built_in = None if path else built_in_space(technique, setting, kind)
    return space_for(technique, setting, kind, path, built_in=built_in)


def _planned(
    tuning: Tuning, group: Sequence[PlannedDataset], targets: Sequence[PlannedDataset], *, gpu: bool
) -> SearchPlan:
    """Plan one search on a group of sources."""
    if tuning.method.universal:
        _require_modalities(group)
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
    related = tuple(
        target
        for target in targets
        if any(
            target.policy == source.policy and of_one_origin(target.name, source.name)
            for source in group
        )
    )
    plan = SearchPlan(
        tuple(families),
        tuple(group),
        tuning.method,
        related=related,
        notes=(*dict.fromkeys(notes),),
    )
    return replace(plan, portfolio=_tried_first(tuning.portfolio, plan, targets))


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
    for technique in dict.fromkeys(techniques):
        for setting in tuning.searched or USUAL_SETTINGS:
            is_named = tuning.searched and technique in tuning.techniques
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
    if technique != SCRATCH and stage_of(technique, setting).pretrains:
        steps.append(pretrain_step(technique))
    works = [step.work(inputs) for step in steps]
    return sum(work.units * work.unit_flops + work.once_flops for work in works)


def _start(
    tuning: Tuning, source: PlannedDataset, technique: str, setting: str, *, gpu: bool
) -> Settings:
    """The settings that a family starts from on a source."""
    choice = family_choice(tuning, technique)
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
        names = {parameter.name for parameter in space.parameters} & {*tuning.held}
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


def _tried_first(
    portfolio: Portfolio, plan: SearchPlan, targets: Sequence[PlannedDataset]
) -> tuple[PortfolioSettings, ...]:
    """Settings of a portfolio for a search on one source.

    Those learned on a dataset of the same origin as its source or a target, or with records that
    these have, are excluded. Catalogs are read only for datasets that origins do not exclude.
    """
    if len(plan.sources) > 1:
        return ()
    (source,) = plan.sources
    scored = [source, *(target for target in targets if target.modality == source.modality)]

    @cache
    def sketches() -> list[str]:
        return [_sketch(dataset) for dataset in scored]

    @cache
    def usable(name: str) -> bool:
        if any(of_one_origin(dataset.name, name) for dataset in scored):
            return False
        sketch = portfolio.sketches.get(name, "")
        return not sketch or not any(have_common(sketch, other) for other in sketches())

    kinds = {
        family.name: search_kind(
            family.technique, family.setting, source.kind.signal, source.kind.task.selected_by
        )
        for family in plan.families
    }
    return chosen_settings(portfolio, kinds, plan.families, usable)


def _sketch(dataset: PlannedDataset) -> str:
    """The sketch of a dataset's catalog; empty if only its card is known."""
    return "" if dataset.catalog is None else sketch_of(open_catalog(dataset.catalog))


def _require_modalities(group: Sequence[PlannedDataset]) -> None:
    modalities = [source.modality for source in group]
    if len(modalities) < 2 or len(set(modalities)) < len(modalities):
        names = ", ".join(f"{source.name} ({source.modality})" for source in group)
        raise BenchmdError(
            "a universal search needs one source from each of two or more modalities, but got "
            f"{names}: name their catalogs, or omit --universal."
        )


def _trains_nothing(technique: str) -> bool:
    return technique == SCRATCH or technique_named(technique).method is None
