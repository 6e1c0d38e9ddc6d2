"""Plan searches for a choice: what each varies, where it starts and its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.inner import seen_splits, splits_seen
from benchmd_ray.data.origins import of_one_origin
from benchmd_ray.data.pooled import digests, members_of, open_pretraining
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.evaluation.registry import built_in_space
from benchmd_ray.extensions.parts import versions_of
from benchmd_ray.files.atomic import digest
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.models.encoder import NETWORKS, require_fitting
from benchmd_ray.models.networks import network_part, network_source
from benchmd_ray.scores.support import TEST_PATIENTS
from benchmd_ray.service.choice import (
    ALL_TECHNIQUES,
    Choice,
    chosen_datasets,
    require_known,
    technique_settings,
    with_setting,
)
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.service.learning import search_kind
from benchmd_ray.service.naming import file_name, transfer_parts
from benchmd_ray.service.plan import Item, Plan
from benchmd_ray.service.resolved import resolve_settings
from benchmd_ray.settings.definition import (
    EncoderSettings,
    Settings,
    TransferSettings,
    as_dict,
)
from benchmd_ray.ssl import BASELINES, SCRATCH, method_source, technique_named
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.parameters import NETWORK
from benchmd_ray.tuning.portfolio import Portfolio, PortfolioSettings, chosen_settings
from benchmd_ray.tuning.racing import usual_evaluations
from benchmd_ray.tuning.records import FORMAT
from benchmd_ray.tuning.spaces import PRETRAIN, SETTINGS, Space, shared, space_for, starting_at
from benchmd_ray.tuning.stages import Stage, stage_of, with_linear

Inner = Mapping[int, Catalog]
"""Inner catalogs of a source by number of the evaluation."""


@dataclass(frozen=True)
class Tuning:
    """The user's request to ``benchmd tune``."""

    choice: Choice
    """Catalogs, modalities, techniques, initial settings, seeds. The first seed is used for trials;
    the transfer settings are ignored.
    """
    searched: tuple[str, ...] = ("linear",)
    """Settings of `SETTINGS`, one search each."""
    space: Path | None = None
    """YAML file of the user's own search space."""
    held: tuple[str, ...] = ()
    """Settings of the space that stay fixed."""
    method: Method = field(default_factory=Method)
    """How trials are proposed, stopped and chosen; ``universal`` is one search over all
    modalities.
    """
    evaluations: int | None = None
    """Evaluations of a trial that is not stopped; None: by the size of the data
    (`tuning.racing`).
    """
    portfolio: Portfolio = field(default_factory=Portfolio)
    """Portfolio from which each search takes settings learned on other datasets."""
    budget: Budget = field(default_factory=Budget)
    """Budget of each search."""
    at_once: int | None = None
    """Trials running at the same time; None runs as many as fit."""
    memory_gib: float | None = None
    """Memory that a trial may allocate; None divides an embedded machine's memory among trials."""

    def __post_init__(self) -> None:
        if self.choice.chosen_start.setting is not None:
            replace(self.choice, settings=self.searched)  # raises the same errors as its runs would


@dataclass(frozen=True)
class SearchPlan:
    technique: str
    setting: str
    """One of `SETTINGS`."""
    sources: tuple[PlannedDataset, ...]
    """One source, or several that share their settings."""
    starts: tuple[Settings, ...]
    """Settings of the first trial for each source, with device and precision resolved."""
    space: Space
    method: Method
    portfolio: tuple[PortfolioSettings, ...] = ()
    """Settings that are tried right after the start."""
    pretrained_on: tuple[str, ...] = ()
    """Digests of the catalogs that all trials' pretraining is on, if not the source's own."""

    @property
    def stage(self) -> Stage:
        """The training stage that is searched: pretraining or transfer."""
        return stage_of(self.setting)

    @property
    def determinants(self) -> dict[str, Any]:
        """What determines the search, except its budget, which may be extended."""
        parts = ("encoder", "pretrain", "transfer", "seed")
        starts = [as_dict(settings) for settings in self.starts]
        for start in starts:
            for name in ("solver", "hidden", "normalisation"):  # names of before these could be set
                if start["transfer"][name] == getattr(TransferSettings(), name):
                    del start["transfer"][name]
        return {
            "technique": self.technique,
            "method_source": None if self.technique == SCRATCH else method_source(self.technique),
            "parts": versions_of(self._parts),
            "network_source": [network_source(encoder) for encoder in self._networks],
            "setting": self.setting,
            "catalogs": [source.digest for source in self.sources],
            "starts": [{name: start[name] for name in parts} for start in starts],
            "precision": [settings.execution.precision for settings in self.starts],
            "space": self.space.as_dict(),
            "method": vars(self.method),
            "portfolio": [asdict(settings) for settings in self.portfolio],
            **({"pretrained_on": self.pretrained_on} if self.pretrained_on else {}),
        }

    @property
    def _parts(self) -> set[str]:
        searched = [p.values for p in self.space.parameters if p.name == NETWORK]
        used = {network_part(str(name)) for names in searched for name in names}
        for settings in self.starts:
            used |= transfer_parts(settings) | {"augmentation", "inner splits", "search"}
        if self.technique != SCRATCH:
            used |= {"pretraining", str(technique_named(self.technique).method)}
        return used

    @property
    def _networks(self) -> list[EncoderSettings]:
        """Encoders of the starts, and one for each custom network in the space."""
        searched = (p.values for p in self.space.parameters if p.name == NETWORK)
        names = [name for values in searched for name in values if name not in NETWORKS]
        return [
            *(settings.encoder for settings in self.starts),
            *(EncoderSettings(network=name) for name in names),
        ]

    @property
    def metric(self) -> str:
        """Name of the score by which trials are compared: ``auroc``, or ``dsc`` for masks."""
        return self.sources[0].kind.task.selected_by

    @property
    def name(self) -> str:
        """Name of its folder: a readable part and a hash of its determinants."""
        where = "universal" if self.method.universal else self.sources[0].kind.signal.name
        what = f"{file_name(self.technique)}-{self.setting}"
        return f"tune-{where}-{what}-{digest(self.determinants)[:12]}"

    @property
    def evaluations(self) -> tuple[int, ...]:
        """Numbers of all evaluations that a trial can get."""
        fresh = () if self.method.choosing == "highest" else self.method.fresh
        return (*range(self.method.evaluations), *fresh)

    def describe(self, inner: Sequence[Inner]) -> dict[str, Any]:
        """Content of ``search.json``, with the inner catalogs of each source."""
        return {
            "format": FORMAT,
            "technique": self.technique,
            "setting": self.setting,
            "sources": [
                {
                    "modality": source.modality,
                    "source": source.name,
                    "policy": source.policy,
                    "catalog": source.digest,
                    "inner": inner_digest(catalogs),
                    "records": of_splits(catalogs[0], "records"),
                    "patients": of_splits(catalogs[0], "patients"),
                }
                for source, catalogs in zip(self.sources, inner, strict=True)
            ],
            "objectives": [self.metric, *(["device_hours"] if self.method.cost else [])],
            "sampler": self.method.sampler,
            "stopping": self.method.stopping,
            "evaluations": self.method.evaluations,
            "choosing": self.method.choosing,
            "seed": self.method.seed,
            "space": self.space.as_dict(),
            "settings": [as_dict(settings) for settings in self.starts],
            "device": self.starts[0].execution.device,
            "determinants": self.determinants,
        }


def started(tuning: Tuning, plan: SearchPlan) -> Choice:
    setting = "linear" if plan.setting == PRETRAIN else plan.setting
    modalities = tuple(source.modality for source in plan.sources)
    return replace(
        tuning.choice, modalities=modalities, techniques=(plan.technique,), settings=(setting,)
    )


def of_sources(plan: Plan, search: SearchPlan) -> list[Item]:
    """Items of a plan that belong to a search's sources, and the pretrainings that they need."""
    names = {source.name for source in search.sources}
    needed = {item.after for item in plan.items if item.source in names}
    return [item for item in plan.items if item.source in names or item.name in needed]


def inner_digest(catalogs: Inner) -> str:
    """Digest of the records of all evaluations."""
    return digest([catalogs[number].digest for number in sorted(catalogs)])


def of_splits(catalog: Catalog, name: str) -> dict[str, int]:
    """Number of ``records`` or ``patients`` in the two splits of an inner catalog."""
    splits = catalog.manifest["splits"]
    return {split: int(splits[split][name]) for split in ("train", "validation")}


def planned_searches(tuning: Tuning, *, gpu: bool) -> list[SearchPlan]:
    """The requested searches, in order of modality, technique and setting."""
    _require_known(tuning)
    chosen = chosen_datasets(tuning.choice)
    sources = [dataset for dataset in chosen.datasets if dataset.role == "source"]
    targets = [dataset for dataset in chosen.datasets if dataset.role == "target"]
    groups = [sources] if tuning.method.universal else [[source] for source in sources]
    plans: list[SearchPlan] = []
    reasons: list[str] = []
    names: set[str] = set()
    for group in groups:
        for technique in dict.fromkeys(tuning.choice.techniques or ALL_TECHNIQUES):
            for setting in dict.fromkeys(tuning.searched):
                try:
                    plan = _planned(tuning, group, technique, setting, names=names, gpu=gpu)
                    plans.append(
                        replace(plan, portfolio=_tried_first(tuning.portfolio, plan, targets))
                    )
                except _SkippedError as reason:
                    reasons.append(str(reason))
    if not plans:
        raise BenchmdError("nothing is left to search: " + " ".join(dict.fromkeys(reasons)))
    for name in tuning.held:
        if name not in names:
            raise unknown_name("setting to hold with --fix:", name, names)
    return plans


class _SkippedError(Exception):
    """A technique or setting that the user did not name is not applicable."""


def _require_known(tuning: Tuning) -> None:
    require_known(replace(tuning.choice, settings=()))
    for name in tuning.choice.techniques:
        if name in BASELINES:
            raise BenchmdError(
                f"{name} trains no encoder, and the penalty of its head is chosen by folds: "
                "nothing is left to search. Name other techniques, or run it with `benchmd run`."
            )
        if name != SCRATCH and technique_named(name).brought:
            raise BenchmdError(
                f"{name} is an external encoder, for which nothing can be searched: name other "
                "techniques, or transfer from it with `benchmd run`."
            )
    for name in tuning.searched:
        if name not in SETTINGS:
            raise unknown_name("setting to search", name, SETTINGS)
    method = tuning.method
    if method.universal and len(tuning.choice.catalogs) == 0:
        raise BenchmdError("a universal search needs catalogs of several modalities: --catalog.")
    if method.universal and method.cost:
        raise BenchmdError("a universal search has one objective: omit --cost.")
    if method.cost and method.stopping != "none":
        raise BenchmdError(
            "with --cost trials cannot be stopped early, as their cost would be unknown: add "
            "--stopping none."
        )


def space_of(technique: str, setting: str, kind: Modality, path: Path | None = None) -> Space:
    """The search space of the user, otherwise of a benchmark, otherwise of the technique."""
    built_in = None if path else built_in_space(technique, setting, kind)
    return space_for(technique, setting, kind, path, built_in=built_in)


def _planned(
    tuning: Tuning,
    group: Sequence[PlannedDataset],
    technique: str,
    setting: str,
    *,
    names: set[str],
    gpu: bool,
) -> SearchPlan:
    """Plan one search; the parameters of its spaces are added to ``names``."""
    named = technique in tuning.choice.techniques
    if setting == PRETRAIN and _trains_nothing(technique):
        if named:
            space_of(technique, setting, group[0].kind)  # raises with the reason
        raise _SkippedError(f"{technique} trains nothing in pretraining.")
    starts, spaces = [], []
    for source in group:
        start, reason = technique_settings(tuning.choice, source.kind, technique)
        if reason is not None:
            if named:
                raise BenchmdError(f"{technique} on {source.name}: {reason}.")
            raise _SkippedError(f"{technique}: {reason} ({source.modality}).")
        start = with_linear(start) if setting == PRETRAIN else with_setting(start, setting)
        require_fitting(source.kind.signal, start.encoder)
        start = resolve_settings(replace(start, seed=tuning.choice.seeds[0]), gpu=gpu)
        space = space_of(technique, setting, source.kind, tuning.space)
        starts.append(start)
        varied = {parameter.name for parameter in space.parameters}
        spaces.append(starting_at(space, start, [name for name in tuning.held if name in varied]))
        names |= varied
    if tuning.method.universal:
        _require_modalities(group)
    space = shared(spaces) if len(group) > 1 else spaces[0]
    patients = min(map(_patients, group))
    if tuning.method.choosing == "confirmed" and patients < TEST_PATIENTS:
        which = " and ".join(source.name for source in group)
        raise BenchmdError(
            f"a search on {which} sees {patients} patients, "
            f"and with fewer than {TEST_PATIENTS} no setting can be shown to be better than the "
            "start: use --choose highest, which does not test, or more data."
        )
    method = replace(tuning.method, evaluations=tuning.evaluations or usual_evaluations(patients))
    elsewhere = _pretrained_on(tuning.choice, technique, setting)
    return SearchPlan(
        technique,
        setting,
        tuple(group),
        tuple(starts),
        space,
        method,
        pretrained_on=elsewhere,
    )


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

    Settings learned on a dataset with the same origin as its source or targets are excluded.
    """
    if len(plan.sources) > 1:
        return ()
    (source,) = plan.sources
    scored = [source.name, *(d.name for d in targets if d.modality == source.modality)]
    kind = search_kind(
        plan.technique, plan.setting, source.kind.signal, source.kind.task.selected_by
    )

    @cache
    def usable(name: str) -> bool:
        return not any(of_one_origin(dataset, name) for dataset in scored)

    return chosen_settings(portfolio, kind, plan.space, usable)


def _patients(source: PlannedDataset) -> int:
    """Patients of a source that a search sees; without a catalog, the number of records."""
    if source.catalog is None:
        return sum(source.rows[split] for split in splits_seen(source.rows, source.scored))
    catalog = open_catalog(source.catalog)
    splits = catalog.manifest["splits"]
    return sum(int(splits[split]["patients"]) for split in seen_splits(catalog))


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
