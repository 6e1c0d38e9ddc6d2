"""The whole benchmark as a plan: items with their settings, in order of dependency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.evaluation.evaluation import usual_evaluation
from benchmd_ray.evaluation.registry import evaluations_asked
from benchmd_ray.service.choice import (
    ALL_TECHNIQUES,
    Choice,
    chosen_datasets,
    require_known,
    settings_for,
    technique_settings,
    with_setting,
)
from benchmd_ray.service.cost import Inputs, Workload
from benchmd_ray.service.datasets import Found, PlannedDataset, read_also
from benchmd_ray.service.estimate import Estimator, measured_runs
from benchmd_ray.service.pretrain_on import Pretraining
from benchmd_ray.service.resolved import ResolvedRun, resolve_settings
from benchmd_ray.service.steps import Evaluate, Step, pretrain_step, transfer_step
from benchmd_ray.settings.definition import Settings
from benchmd_ray.ssl import SCRATCH, TECHNIQUES
from benchmd_ray.ssl.brought import absence, technique_label
from benchmd_ray.storage.location import Location
from benchmd_ray.training.jobs import Fold

PAYS = 0.7
"""Share of the throughput of parallel single-worker runs that one run with several workers should
reach.
"""

__all__ = ["Choice", "Item", "Plan", "make_plan", "require_known"]


@dataclass(frozen=True)
class Item:
    """One run of a plan, or one evaluation of a run on a target."""

    name: str
    """Unique and readable: ``ptb-xl/clean/mae/seed-0/pretrain``, ``…/linear``,
    ``…/linear/georgia``, or ``…/linear/georgia/EVALUATION`` for an evaluation other than the
    classification.
    """
    step: Step
    modality: str
    source: str
    dataset: str
    """Dataset that is read: the target of an evaluation, otherwise the source."""
    policy: str
    technique: str
    setting: str
    """``pretrain``, or the name of the transfer setting in tables."""
    seed: int
    catalog: Location | None
    """Catalog of ``dataset``; None in a plan from cards only."""
    settings: Settings
    """Settings of this run, with device, precision and workers as executed."""
    after: str | None
    """Name of the item that this one starts from: a transfer's pretraining, an evaluation's
    transfer.
    """
    cpus: float
    gpus: float
    """Number or share of GPUs that it uses; 0 on a CPU."""
    seconds: float
    disk_bytes: int
    """Estimated bytes that stay when it is done."""
    peak_bytes: int = 0
    """Estimated additional bytes while it runs: its checkpoints."""
    also: tuple[Location, ...] = ()
    """Catalogs of other datasets that an evaluation reads."""
    held_out: int | None = None
    """Number of the held-out fold of a source that is cut into folds; else None."""
    fold: Fold | None = None
    """What the run of a fold is trained on; None for runs on all labels."""
    resolved: ResolvedRun | None = field(default=None, repr=False)
    """The resolved run, once the run that it starts from is finished."""

    @property
    def kind(self) -> str:
        return self.step.kind


@dataclass(frozen=True)
class Plan:
    """The runs to do, what was skipped, and the basis of the estimates."""

    items: tuple[Item, ...]
    """Items in order of dependency."""
    basis: str
    notes: tuple[str, ...] = ()
    """What was skipped and why."""


def make_plan(
    choice: Choice,
    store: Path | None = None,
    *,
    device: str | None = None,
    tflops: float | None = None,
    measure: bool | None = None,
) -> Plan:
    """Plan everything that a choice asks for, with estimates of time and disk.

    Args:
        choice: Without catalogs the plan is from the datasets' cards and cannot be run.
        store: Folder of all runs, whose measured speeds are used; it need not exist.
        device: ``cpu`` or ``cuda`` if the settings leave it open; None takes this machine's.
        tflops: Sustained TFLOP/s of one device, for another machine than the store's.
        measure: Whether to measure this machine for a few seconds; None does so if no other speed
            is known.

    Raises:
        BenchmdError: A name does not exist, a catalog or the settings cannot be used, or the plan
            is empty.
    """
    require_known(choice)
    _require_read(choice)
    chosen = chosen_datasets(choice)
    notes = [*chosen.notes]
    drafts = _drafts(choice, chosen, notes)
    if not drafts:
        raise BenchmdError(
            "nothing is left to run of what was chosen: " + " ".join(notes or ["no technique."])
        )
    kind = _device(drafts[0].settings, device)
    estimator = _estimator(drafts, chosen.datasets, store, kind, tflops=tflops, measure=measure)
    items = tuple(_item(draft, estimator, kind == "cuda") for draft in drafts)
    notes += _of_workers(drafts, estimator)
    return Plan(items, estimator.basis(), tuple(dict.fromkeys(notes)))


def _require_read(choice: Choice) -> None:
    """Refuse ``also`` if no evaluation reads catalogs besides the one that it scores."""
    name = choice.evaluated or choice.bench
    if choice.also and all(evaluation.also is None for evaluation in evaluations_asked(name)):
        raise BenchmdError(
            f"--also names catalogs, but no evaluation of {name} reads any besides the one that it "
            "scores: omit --also, or choose others with --evaluate, such as ood."
        )


@dataclass(frozen=True)
class _Draft:
    """An item without its estimates."""

    name: str
    step: Step
    technique: str
    setting: str
    settings: Settings
    source: PlannedDataset
    target: PlannedDataset | None = None
    after: str | None = None
    also: tuple[PlannedDataset, ...] = ()

    @property
    def inputs(self) -> Inputs:
        return Inputs(self.technique, self.settings, self.source, self.target, also=self.also)

    @property
    def work(self) -> Workload:
        return self.step.work(self.inputs)


def _drafts(choice: Choice, chosen: Found, notes: list[str]) -> list[_Draft]:
    """All items, dependencies first: source by source, seed by seed, technique by technique."""
    drafts: list[_Draft] = []
    datasets = chosen.datasets
    pretraining = Pretraining.of(choice, datasets, notes)
    unfit: dict[str, list[str]] = {}
    names = tuple(dict.fromkeys(choice.techniques)) or ALL_TECHNIQUES
    for source in (d for d in datasets if d.role == "source"):
        if pretraining is not None and not pretraining.fits(source, notes):
            continue
        targets = [
            d
            for d in datasets
            if (d.role, d.policy) == ("target", source.policy) and d.kind.fits(source.kind)
            if pretraining is None or d.digest not in pretraining.digests
        ]
        if not targets and not chosen.also:
            notes.append(
                f"{source.name}: no catalog of a target, so it is scored on its own splits only."
            )
        fitting = {}
        for name in names:
            settings, reason = technique_settings(choice, source.kind, name)
            if reason is None:
                fitting[name] = settings
            else:
                unfit.setdefault(f"{name}: skipped, {reason}", []).append(source.modality)
        others = [
            d
            for d in (*(d for d in datasets if d.policy == source.policy), *chosen.also)
            if pretraining is None or d.role == "source" or d.digest not in pretraining.digests
            if d.fold is None or d is source
        ]
        drafts += _drafts_of_source(
            choice, source, targets, others, techniques=fitting, pretraining=pretraining
        )
    notes += _notes_on_folds(choice, datasets)
    reasons = {why: ", ".join(dict.fromkeys(where)) for why, where in unfit.items()}
    notes += [f"{why} ({where})." for why, where in reasons.items()]
    used = dict.fromkeys(draft.technique for draft in drafts)
    notes += filter(None, map(absence, used))
    if choice.weights is None and any(
        TECHNIQUES[n].imagenet for n in used.keys() & TECHNIQUES.keys()
    ):
        notes.append(
            "ImageNet weights are downloaded when needed; without a network connection name their "
            "file with --weights."
        )
    return drafts


def _notes_on_folds(choice: Choice, datasets: Sequence[PlannedDataset]) -> Iterator[str]:
    """How often sources that are cross-validated are trained, and how they are not evaluated."""
    asked = evaluations_asked(choice.evaluated or choice.bench)
    for name, folds in Counter(d.name for d in datasets if d.fold is not None).items():
        yield (
            f"{name}: cross-validated by patient, so each run is trained {count_of(folds, 'time')},"
            " once for each held-out fold."
        )
        task = next(d.kind.task for d in datasets if d.name == name)
        fit = [e for e in asked if task.kind in e.tasks and e is not usual_evaluation(task)]
        if fit:
            named = ", ".join(evaluation.name for evaluation in fit)
            usual = usual_evaluation(task).name
            yield f"{name}: {named} skipped, as folds are only scored by {usual}."


def _drafts_of_source(
    choice: Choice,
    source: PlannedDataset,
    targets: Sequence[PlannedDataset],
    datasets: Sequence[PlannedDataset],
    *,
    techniques: Mapping[str, Settings],
    pretraining: Pretraining | None,
) -> Iterator[_Draft]:
    exported: dict[str, str] = {}
    for seed in dict.fromkeys(choice.seeds):
        for technique, settings in techniques.items():
            place = f"{source.name}/{source.policy}/{technique_label(technique)}"
            name = f"{place}/{source.fold_name}seed-{seed}"
            seeded = replace(settings, seed=seed)
            upstream = exported.get(technique)
            if pretraining is not None and pretraining.serves(technique):
                upstream = pretraining.name(technique, seed)
                if upstream not in pretraining.drafted:
                    pretraining.drafted.add(upstream)
                    yield _Draft(
                        upstream,
                        pretrain_step(technique),
                        technique,
                        "pretrain",
                        replace(pretraining.settings(choice, technique), seed=seed),
                        pretraining.whole,
                        also=pretraining.members[1:],
                    )
            elif technique != SCRATCH and upstream is None:
                upstream = f"{name}/pretrain"
                step = pretrain_step(technique)
                yield _Draft(upstream, step, technique, "pretrain", seeded, source)
                if step.of_all_seeds:
                    exported[technique] = upstream
            for setting in settings_for(choice, source.kind.task, technique):
                tuned = with_setting(seeded, setting)
                draft = _Draft(
                    f"{name}/{setting}",
                    transfer_step(tuned, usual_evaluation(source.kind.task)),
                    technique,
                    setting,
                    tuned,
                    source,
                    after=upstream,
                )
                yield draft
                yield from _evaluations(choice, draft, targets, datasets)


def _evaluations(
    choice: Choice,
    transfer: _Draft,
    targets: Sequence[PlannedDataset],
    datasets: Sequence[PlannedDataset],
) -> Iterator[_Draft]:
    """Evaluations of a transfer, except the default one on its source, which is part of it."""
    task = transfer.source.kind.task
    for evaluation in evaluations_asked(choice.evaluated or choice.bench):
        if task.kind not in evaluation.tasks:
            continue
        usual = evaluation is usual_evaluation(task)
        if transfer.source.fold is not None and not usual:
            continue  # see `_notes_on_folds`
        for dataset in (transfer.source, *targets):
            if dataset.role not in evaluation.roles or (usual and dataset is transfer.source):
                continue
            yield replace(
                transfer,
                also=read_also(evaluation, dataset, datasets),
                name=f"{transfer.name}/{dataset.name}" + ("" if usual else f"/{evaluation.name}"),
                step=Evaluate(evaluation),
                target=dataset,
                after=transfer.name,
            )


def _device(settings: Settings, available: str | None) -> str:
    """Kind of device that the settings choose, or by default the available one."""
    chosen = settings.execution.device
    return (available or _own_device()) if chosen == "auto" else chosen


def _own_device() -> str:
    return "cuda" if own_gpus() else "cpu"


def own_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _estimator(
    drafts: Sequence[_Draft],
    datasets: Sequence[PlannedDataset],
    store: Path | None,
    device: str,
    *,
    tflops: float | None,
    measure: bool | None,
) -> Estimator:
    if tflops is not None and not 0 < tflops < float("inf"):
        raise BenchmdError(f"--tflops is {tflops:g}, expected a number above 0.")
    measured = () if store is None or measure else tuple(measured_runs(store, datasets))
    estimator = Estimator(device, measured, tflops=tflops)
    if tflops is not None:
        return estimator
    if not (measure or (measure is None and estimator.empty and device == _own_device())):
        return estimator
    from benchmd_ray.service.spot import measure_here

    largest = max(drafts, key=lambda draft: draft.work.units * draft.work.unit_flops)
    spot = measure_here(largest.source.kind, largest.settings, device)
    return replace(estimator, spot=spot)


def _of_workers(drafts: Sequence[_Draft], estimator: Estimator) -> list[str]:
    """Notes on runs whose workers are slower than the same number of parallel runs."""
    notes = {}
    for draft in drafts:
        work = draft.work
        if work.workers < 2 or not work.units:
            continue
        gain = estimator.speedup(work)
        if gain is not None and gain < PAYS * work.workers:
            what = f"{draft.source.name}, {draft.technique}, {draft.setting}"
            notes[what] = (
                f"{what}: {work.workers} workers are measured to be {gain:.2g} times as fast as "
                f"one. With enough runs to do, {work.workers} single-worker runs in parallel "
                "finish more work (--set execution.workers=1)."
            )
    return list(notes.values())


def _item(draft: _Draft, estimator: Estimator, on_gpu: bool) -> Item:
    step = draft.step
    settings = step.placed(resolve_settings(draft.settings, gpu=on_gpu))
    gpus = step.gpus(draft.inputs) if on_gpu else 0.0
    disk = step.disk(draft.inputs)
    read = draft.target or draft.source
    return Item(
        name=draft.name,
        step=step,
        modality=draft.source.modality,
        source=draft.source.name,
        dataset=read.name,
        policy=draft.source.policy,
        technique=draft.technique,
        setting=draft.setting,
        seed=settings.seed,
        catalog=read.catalog,
        settings=settings,
        after=draft.after,
        cpus=float(step.workers(settings) * settings.execution.cpus_per_worker),
        gpus=gpus,
        seconds=estimator.seconds(draft.work, min(gpus, 1.0) or 1.0),
        disk_bytes=disk.kept,
        peak_bytes=disk.working,
        also=tuple(dataset.catalog for dataset in draft.also if dataset.catalog is not None),
        held_out=draft.source.fold,
    )
