"""Plans of searches: their sources, families, settings of a portfolio, and what names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.inner import Labelled, splits_seen
from benchmd_ray.data.origins import of_one_origin
from benchmd_ray.data.sketches import have_common, sketch_of
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.extensions.parts import versions_of
from benchmd_ray.files.atomic import digest
from benchmd_ray.models.encoder import NETWORKS
from benchmd_ray.models.networks import network_part, network_source
from benchmd_ray.service.choice import (
    chosen_datasets,
)
from benchmd_ray.service.cost import labelled_rows
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.service.families import Tuning, families_of, require_families
from benchmd_ray.service.learning import search_kind
from benchmd_ray.service.naming import file_name, transfer_parts
from benchmd_ray.service.plan import Item, Plan
from benchmd_ray.settings.definition import EncoderSettings, ExecutionSettings, Settings, as_dict
from benchmd_ray.ssl import SCRATCH, method_source, technique_named
from benchmd_ray.ssl.brought import technique_label
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.parameters import NETWORK
from benchmd_ray.tuning.portfolio import Portfolio, PortfolioSettings, chosen_settings
from benchmd_ray.tuning.records import FORMAT


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


def of_sources(plan: Plan, search: SearchPlan) -> list[Item]:
    """Items of a plan that belong to a search's sources, and the pretrainings that they need."""
    sources = {(source.name, source.policy, source.fold) for source in search.sources}
    chosen = [i for i in plan.items if (i.source, i.policy, i.held_out) in sources]
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
    """The requested searches: one for each source, or one over all modalities.

    A source that is cut into folds has one for each, which never sees the patients held out.
    """
    require_families(tuning)
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


def _planned(
    tuning: Tuning, group: Sequence[PlannedDataset], targets: Sequence[PlannedDataset], *, gpu: bool
) -> SearchPlan:
    """Plan one search on a group of sources."""
    if tuning.method.universal:
        _require_modalities(group)
    families, notes = families_of(tuning, group, gpu=gpu)
    related = tuple(
        target
        for target in targets
        if any(
            target.policy == source.policy and of_one_origin(target.name, source.name)
            for source in group
        )
    )
    about = (families, tuple(group), tuning.method)
    plan = SearchPlan(*about, related=related, notes=notes)
    return replace(plan, portfolio=_tried_first(tuning.portfolio, plan, targets))


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
