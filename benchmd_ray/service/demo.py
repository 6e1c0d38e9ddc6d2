"""The demo: the whole benchmark on small synthetic data, by the ordinary code path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmd_ray.cluster.connection import connected, embedded, own_cpus
from benchmd_ray.data.build import build
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.provenance import mark_synthetic
from benchmd_ray.demo import PACKAGES, WRITERS
from benchmd_ray.errors import count_of, unknown_name
from benchmd_ray.evaluation.registry import benchmarks, named_by
from benchmd_ray.extensions.extras import is_installed, require
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.plan import Choice, Item, Plan, make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.steps import Evaluate
from benchmd_ray.service.tune_and_train import search_and_train
from benchmd_ray.ssl import BASELINES, METHODS, SCRATCH
from benchmd_ray.tuning.limits import Budget

SETTINGS = (
    "encoder=tiny",
    "pretrain.steps=150",
    "pretrain.batch_size=32",
    "pretrain.optimiser.lr=1e-3",
    "transfer.epochs=20",
    "transfer.batch_size=32",
    "transfer.optimiser.lr=1e-3",
    "execution.log_every=10",
    "execution.checkpoint_every=50",
)
"""Settings small enough for two cores and a few minutes."""

TECHNIQUES = {"ecg": (SCRATCH, *METHODS, *BASELINES)}
"""Techniques by modality; `FEWER` for all others."""
FEWER = (SCRATCH, "mae")
TRANSFERS = ("linear", "finetune-small")
USUAL = ("ecg",)
"""Default modalities."""
SEARCHED = ("mae", "linear")
"""Technique and transfer setting whose settings are searched."""
SEARCH = Tuning(
    Choice(),
    techniques=(SEARCHED[0], *BASELINES),
    searched=SEARCHED[1:],
    budget=Budget(evaluations=24),
)
ON_RAY = ("ecg", "mae")
"""Run that is pretrained by two workers with DeepSpeed as a Ray Train job, if DeepSpeed is
installed.
"""
TFLOPS = 0.02
"""Approximate speed of a CPU core; the time left is corrected by actual run times."""


def demo(
    folder: Path,
    say: Callable[[str], None],
    address: str | None = None,
    modalities: Sequence[str] = USUAL,
    *,
    on_ray: bool = False,
) -> bool:
    """Write data, build catalogs, execute one plan of all runs, and search; finished work is kept.

    The first modality is also searched and evaluated by other benchmarks. With `on_ray` two workers
    share a pretraining (`ON_RAY`). Returns whether everything was done.
    """
    chosen = chosen_modalities(modalities)
    cpus, runs = own_cpus() if embedded(address) else None, folder / "runs"
    with connected(address, cpus=3):
        catalogs: list[list[Catalog]] = []
        for number, name in enumerate(chosen, 1):
            say(f"{number}/{len(chosen)} {name}: synthetic raw data, catalogs by Ray Data")
            catalogs.append(catalogs_of(name, folder, say))
        plan = demo_plan([catalog for datasets in catalogs for catalog in datasets], on_ray=on_ray)
        plan = with_evaluations(plan, catalogs[0])
        say(f"{count_of(len(plan.items), 'run')}, several at a time: pretrain, transfer, evaluate")
        if any(item.settings.execution.workers > 1 for item in plan.items):
            say(f"    {' '.join(ON_RAY)} on two workers by Ray Train and DeepSpeed")
        outcome = run_plan(plan, runs, say=say, address=address, cpus=cpus)
        for line in outcome.lines():
            say(line)
        families = ", ".join(SEARCH.techniques)
        say(f"a search of {SEARCH.budget.evaluations} evaluations of {chosen[0]}: {families}")
        choice = _choice(catalogs[0], (), ())
        tuning = replace(SEARCH, choice=choice)
        whole = search_and_train(tuning, runs, say=say, address=address, cpus=cpus)
    return outcome.whole and whole


def _choice(
    catalogs: Sequence[Catalog], techniques: Sequence[str], settings: Sequence[str]
) -> Choice:
    return Choice(
        catalogs=tuple(catalog.path for catalog in catalogs),
        techniques=tuple(techniques),
        settings=tuple(settings),
        assignments=SETTINGS,
    )


def demo_plan(catalogs: Sequence[Catalog], *, on_ray: bool) -> Plan:
    """The runs of the demo on these catalogs."""
    plan = make_plan(_choice(catalogs, (SCRATCH, *METHODS, *BASELINES), TRANSFERS), tflops=TFLOPS)
    items = tuple(
        _on_two_workers(item) if on_ray and item.setting == "pretrain" else item
        for item in plan.items
        if item.technique in TECHNIQUES.get(item.modality, FEWER)
    )
    return replace(plan, items=items)


def with_evaluations(plan: Plan, catalogs: Sequence[Catalog]) -> Plan:
    """Add other benchmarks' evaluations of the fine-tuning from random weights to the plan.

    The first catalog is the source's; the others are read.
    """
    items = {item.name: item for item in plan.items}
    for evaluation in (named_by(each.demo) for each in benchmarks().values() if each.demo):
        choice = replace(
            _choice(catalogs[:1], (SCRATCH,), TRANSFERS[-1:]),
            also=tuple(catalog.path for catalog in catalogs[1:]),
            evaluated=evaluation.name,
        )
        for item in make_plan(choice, tflops=TFLOPS).items:
            if item.step.evaluation.name == evaluation.name:
                item = replace(item, step=Evaluate(evaluation))
            items.setdefault(item.name, item)
    return replace(plan, items=tuple(items.values()))


def _on_two_workers(item: Item) -> Item:
    if (item.modality, item.technique) != ON_RAY or not is_installed("deepspeed"):
        return item
    execution = replace(item.settings.execution, workers=2)
    return replace(item, cpus=2.0, settings=replace(item.settings, execution=execution))


def chosen_modalities(modalities: Sequence[str]) -> list[str]:
    """The modalities without duplicates; by default all with synthetic data."""
    for name in modalities:
        if name not in WRITERS:
            raise unknown_name("modality", name, WRITERS)
    chosen = list(dict.fromkeys(modalities or WRITERS))
    packages = {package: name for name in chosen for package in PACKAGES.get(name, ())}
    others = ", ".join(name for name in WRITERS if name not in PACKAGES)
    purpose = f"the demo of {' and '.join(dict.fromkeys(packages.values()))}"
    require(purpose, *packages, instead=f"Or name others with --modality: {others}.")
    return chosen


def catalogs_of(
    modality: str,
    folder: Path,
    say: Callable[[str], None],
    *,
    sizes: Mapping[str, int] | None = None,
    hold_out: Callable[[str, Path], Sequence[str]] | None = None,
) -> list[Catalog]:
    """Catalogs of a modality's synthetic datasets, source first; existing ones are kept.

    `sizes` are arguments of its writer; `hold_out` gives the conditions that the source's catalog
    holds out, from its name and raw folder.
    """
    out = folder / "catalogs"
    listed = out / f"{modality}.txt"  # written after all are built
    if listed.is_file():
        return [open_catalog(out / name) for name in listed.read_text("utf-8").split()]
    found: list[Catalog] = []
    for name, raw in WRITERS[modality](folder / "raw", **(sizes or {})).items():
        mark_synthetic(raw)
        held = hold_out(name, raw) if hold_out and not found else ()
        catalog = build(
            name, raw, out / name, hold_out=held, allow_missing=True, max_quarantined=0.1
        )
        splits = catalog.manifest["splits"].items()
        counts = ", ".join(f"{split} {own['records']}" for split, own in splits)
        say(f"    {name}: {counts}, {len(catalog.manifest['quarantined'])} quarantined")
        found.append(catalog)
    listed.write_text("\n".join(catalog.path.name for catalog in found), "utf-8")
    return found
