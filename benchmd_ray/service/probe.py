"""Cheap probes of many encoders on many catalogs: a plan whose encoders are those of one seed.

Linear evaluation and nearest neighbours take all labels, once; further seeds draw other few labels
for the same encoder, so that all probes share its features (`training.features`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.models.encoder import require_fitting
from benchmd_ray.service import cost
from benchmd_ray.service.choice import Choice, chosen_datasets, require_known, technique_settings
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.service.dry_run import size
from benchmd_ray.service.plan import Item, Plan, make_plan
from benchmd_ray.ssl.brought import technique_label

WHOLE, FEW = ("linear", "knn"), ("linear-small", "linear-medium", "linear-large")
"""Settings with all labels, and those whose labels are drawn by each seed."""
SECONDS = 1.0
"""About the seconds of a probe whose features are stored."""
SPARE = 1.1
"""Factor on the estimated bytes."""
SOLVED: Mapping[str, Any] = {"transfer": {"solver": "logistic"}}


@dataclass(frozen=True)
class Encoding:
    """One encoder on one catalog, whose records are encoded once."""

    encoder: str
    catalog: str
    records: int
    seconds: float
    feature_bytes: int


def probe_choice(
    encoders: Sequence[str],
    changes: Iterable[Mapping[str, Any]] = (),
    **options: Any,
) -> Choice:
    """The choice of the probes of encoders, which are named as techniques are.

    Raises:
        BenchmdError: An encoder is named twice.
    """
    labels = [technique_label(name) for name in encoders]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise BenchmdError(
            f"two of the encoders are called {twice[0]}, which tables could not distinguish: name "
            "each once, or rename a folder."
        )
    overrides = (SOLVED, *changes)
    return Choice(
        techniques=tuple(encoders), settings=(*WHOLE, *FEW), overrides=overrides, **options
    )


def probe_plan(
    choice: Choice, store: Path, *, device: str | None = None, skip_unfit: bool = False
) -> Plan:
    """The plan of all probes.

    Raises:
        BenchmdError: As of `make_plan`, or an encoder does not take a catalog's signal.
    """
    require_known(choice)
    unfit = _unfit(choice)
    if unfit and not skip_unfit:
        pairs = "; ".join(f"{label} on {name}: {why}" for (label, name), why in unfit.items())
        raise BenchmdError(
            f"nothing was started, since encoders do not fit catalogs: {pairs}. Omit these "
            "encoders or catalogs, or skip the pairs with --skip-unfit."
        )
    plan = make_plan(choice, store, device=device)
    kept = [i for i in plan.items if (technique_label(i.technique), i.source) not in unfit]
    notes = [f"{label} on {name}: skipped, {why}." for (label, name), why in unfit.items()]
    others = [note for note in plan.notes if ": skipped, " not in note or " on " in note]
    items = tuple(_with_shared_encoders(kept, choice.seeds[0]))
    if not items:
        raise BenchmdError(f"nothing is left to probe: {' '.join(notes)}")
    return replace(plan, items=items, notes=(*others, *notes))


def encodings(plan: Plan, choice: Choice, done: frozenset[str] = frozenset()) -> list[Encoding]:
    """What is encoded for the items that are not done, in the order of the plan."""
    datasets = {(d.name, d.policy): d for d in chosen_datasets(choice).datasets}
    encoded: dict[tuple[str, str, str], Encoding] = {}
    for item in plan.items:
        key = (item.technique, item.dataset, item.source)
        if item.name in done or item.kind == "pretrain" or key in encoded:
            continue
        dataset, source = datasets[item.dataset, item.policy], datasets[item.source, item.policy]
        splits = {*dataset.scored, *(("train", "validation") if dataset is source else ())}
        records = sum(dataset.rows.get(split, 0) for split in splits)
        width = cost.features_width(source.kind.signal, item.settings.encoder)
        about = (technique_label(item.technique), item.dataset, records, item.seconds)
        encoded[key] = Encoding(*about, records * width * cost.FLOAT)
    return list(encoded.values())


def require_room(plan: Plan, store: Path, left: Sequence[Encoding], done: frozenset[str]) -> None:
    """Refuse to start without room for runs and features."""
    needed: dict[int, tuple[Path, int, int]] = {}
    runs = sum(item.disk_bytes for item in plan.items if item.name not in done)
    for folder, count in ((store, runs), (cache_folder(), sum(e.feature_bytes for e in left))):
        place = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.is_dir())
        device = place.stat().st_dev
        before = needed.get(device, (folder, 0, 0))[1]
        needed[device] = (folder, before + int(SPARE * count), shutil.disk_usage(place).free)
    for folder, count, free in needed.values():
        if count > free:
            raise BenchmdError(
                f"{folder}: about {size(count)} are needed for runs and features, and {size(free)} "
                "are free: free some space, name fewer encoders or catalogs, or set BENCHMD_CACHE "
                "and --store to a larger disk."
            )


def _unfit(choice: Choice) -> dict[tuple[str, str], str]:
    """Why encoders do not take the signals or tasks of sources, by encoder and dataset."""
    sources = [d for d in chosen_datasets(choice).datasets if d.role == "source"]
    pairs = {}
    for technique in choice.techniques:
        for source in sources:
            if why := _misfit(choice, technique, source):
                pairs[technique_label(technique), source.name] = why
    return pairs


def _misfit(choice: Choice, technique: str, source: PlannedDataset) -> str:
    if source.kind.task.segments:
        return "its labels are masks, for which frozen features are not available"
    settings, reason = technique_settings(choice, source.kind, technique)
    if reason is not None:
        return reason
    try:
        require_fitting(source.kind.signal, settings.encoder)
    except BenchmdError as error:
        return str(error).rstrip(".")
    return ""


def _with_shared_encoders(items: Iterable[Item], first: int) -> Iterator[Item]:
    """Items whose encoders are of the first seed; only the first of each encodes."""
    encoded: set[tuple[str, ...]] = set()
    for item in items:
        if item.seed != first and (item.kind == "pretrain" or item.setting in WHOLE):
            continue
        after = item.after
        if item.kind == "transfer" and after is not None:
            after = after.replace(f"/seed-{item.seed}/", f"/seed-{first}/")
        seconds, encoder = item.seconds, after or f"{item.technique} {item.seed}"
        if item.kind == "evaluate":
            encoder = item.technique
        if item.kind != "pretrain":
            key = (encoder, item.source, item.dataset)
            seconds = min(seconds, SECONDS) if key in encoded else seconds
            encoded.add(key)
        yield replace(item, after=after, seconds=seconds)
