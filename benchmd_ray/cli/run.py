"""``benchmd run``: the whole benchmark, or a part of it, as one plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import (
    BENCH,
    CATALOG,
    CPUS,
    GPUS,
    JSON,
    MODALITY,
    POLICY,
    PRETRAIN_ON,
    SMALL,
    START,
    TFLOPS,
    WEIGHTS,
    chosen,
    complete_technique,
    complete_transfer,
    execution_options,
    print_json,
    wandb_options,
)
from benchmd_ray.console.terminal import echo

if TYPE_CHECKING:
    from benchmd_ray.service.choice import Choice
    from benchmd_ray.service.plan import Plan


@main.command()
@click.option(
    "--catalog",
    "catalogs",
    type=CATALOG,
    multiple=True,
    metavar="PATH",
    help="A catalog, or a folder of catalogs, also in a bucket (repeatable).",
)
@click.option(
    "--also",
    type=CATALOG,
    multiple=True,
    metavar="PATH",
    help="Catalogs for evaluation only, such as those of `--bench ood` (repeatable).",
)
@PRETRAIN_ON
@MODALITY
@click.option(
    "--technique",
    "techniques",
    multiple=True,
    shell_complete=complete_technique,
    help="Only this technique (repeatable): scratch, e-mix, shed, mae, imagenet, imagenet+mae, "
    "random-kernels (a baseline without training), package.module:name (your own method), "
    "encoder:NAME (see `benchmd encoder list`), hf:FOLDER (a transformers model) or "
    "model:package.module:name (your own encoder). "
    "Default: all built-in techniques but random-kernels.",
)
@click.option(
    "--setting",
    "transfers",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_transfer,
    help="Only this transfer setting (repeatable): linear, linear-small, linear-medium, "
    "linear-large, finetune-small, finetune-medium, finetune-large, finetune-full, knn, knn-small, "
    "knn-medium, knn-large. Default: linear and the four fine-tuning settings.",
)
@click.option(
    "--seed", "seeds", type=int, multiple=True, default=(0,), help="Seed (repeatable). Default: 0."
)
@POLICY
@BENCH
@click.option(
    "--evaluate",
    "evaluated",
    metavar="BENCH",
    default="",
    help="Evaluate each transfer with this benchmark's evaluations, or this single evaluation, "
    "instead of the default ones, such as ood.",
)
@START
@SMALL
@WEIGHTS
@click.option(
    "--dry-run", is_flag=True, help="Show what would run and how long it would take, then stop."
)
@click.option("--items", is_flag=True, help="With --dry-run: list every run.")
@TFLOPS
@GPUS
@JSON
@CPUS
@wandb_options
@execution_options
def run(*, store: Path, **options: Any) -> None:
    """Run everything that is missing: pretrain, transfer, evaluate, several runs at a time.

    Each catalog states whether it is a source or a target. Finished runs are not repeated, and an
    interrupted command resumes where it stopped. Several commands may share a store.

    \b
    benchmd run --dry-run                                # the paper's benchmark, from the cards
    benchmd run --catalog catalogs --dry-run --items     # what these catalogs allow
    benchmd run --catalog catalogs --small               # try it, within minutes
    benchmd run --catalog catalogs --technique scratch --technique mae \\
        --setting linear --seed 0 --seed 1 --seed 2
    benchmd run --pretrain-on catalogs/georgia --pretrain-on catalogs/chapman-shaoxing \\
        --catalog catalogs/ptb-xl --technique scratch --technique mae
    benchmd run --catalog catalogs --bench medmnist --start resnet18 --seed 0 --seed 1 --seed 2
    """
    from benchmd_ray.evaluation.registry import asked_name

    evaluated = asked_name(options["evaluated"]) if options["evaluated"] else ""
    choice = chosen(
        options, also=options["also"], settings=options["transfers"], evaluated=evaluated
    )
    if options["dry_run"]:
        _show(choice, store, options)
        return
    if options["items"] or options["gpus"] is not None or options["as_json"]:
        raise click.UsageError("--items, --gpus and --json go with --dry-run: nothing was started.")
    if not choice.catalogs:
        raise click.UsageError("name catalogs with --catalog, or see the plan with --dry-run.")
    _execute(choice, store, options)


def _show(choice: Choice, store: Path, options: dict[str, Any]) -> None:
    from benchmd_ray.service.dry_run import estimate_run, print_estimates, resources_of

    resources = resources_of(options["address"], options["cpus"], options["gpus"])
    estimate = estimate_run(choice, store, resources, tflops=options["tflops"])
    if options["as_json"]:
        print_json(estimate.data)
        return
    to_run = "To run it, build catalogs (`benchmd catalog build`) and name them with --catalog."
    print_estimates([estimate], to_run, items=options["items"])


def _execute(choice: Choice, store: Path, options: dict[str, Any]) -> None:
    """Execute the plan and print the outcome; exits with 1 if anything failed."""
    from benchmd_ray.cluster.connection import connected, embedded
    from benchmd_ray.runs.store import shown
    from benchmd_ray.service.plan import make_plan
    from benchmd_ray.service.schedule import run_plan
    from benchmd_ray.service.tracked import observers

    def plan_for(device: str | None) -> Plan:
        return make_plan(choice, store, device=device, tflops=options["tflops"])

    def execute(plan: Plan) -> Any:
        for note in plan.notes:
            echo(f"note: {note}", err=True)
        return run_plan(
            plan,
            store,
            say=echo,
            address=options["address"],
            weights=choice.weights,
            cpus=options["cpus"],
            observers=observers(store, options["dashboard"], plan, echo),
        )

    if embedded(options["address"]):
        outcome = execute(plan_for(None))
    else:  # the plan depends on whether the cluster has GPUs
        with connected(options["address"], cpus=0):  # nodes may be added later
            device = _device_of_cluster()
            plan = plan_for(device)
            if device == "cpu" and choice.values_of("execution.device")[-1:] in ([], ["auto"]):
                echo(
                    "note: the cluster has no GPU now, so this is for CPUs: if GPU nodes are added "
                    "later, stop and use --set execution.device=cuda",
                    err=True,
                )
            outcome = execute(plan)
    for line in outcome.lines():
        echo(line)
    if outcome.folders:
        echo(f"next: benchmd report {shown(store)}")
    if not outcome.whole:
        echo("run the same command again to retry the failed runs; the rest is not repeated")
        sys.exit(1)


def _device_of_cluster() -> str:
    from benchmd_ray.service.capacity import cluster_capacity

    return "cuda" if cluster_capacity().gpus else "cpu"
