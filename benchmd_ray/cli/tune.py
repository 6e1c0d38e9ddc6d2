"""``benchmd tune``: search models and hyperparameters, then score the start and the choice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import (
    BENCH,
    CATALOG,
    CPUS,
    FILE,
    GPUS,
    HELD,
    MODALITY,
    POLICY,
    PRETRAIN_ON,
    SMALL,
    START,
    STORE,
    TFLOPS,
    WEIGHTS,
    Real,
    chosen,
    complete_technique,
    complete_transfer,
    execution_options,
    wandb_options,
)
from benchmd_ray.console.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmd_ray.service.families import Tuning
    from benchmd_ray.tracking.dashboard import Dashboard


SMALL_HOURS = 1 / 6
"""Of a search with --small that states no limit; the models it delivers are trained afterwards."""
SMALL_FIXED = (
    *("encoder.network", "encoder.patch_size"),
    *("pretrain.steps", "pretrain.batch_size", "transfer.epochs"),
)
"""Settings that decide the work, which a search with --small does not change."""


@main.command()
@click.option(
    "--catalog",
    "catalogs",
    type=CATALOG,
    multiple=True,
    metavar="PATH",
    help="A catalog, or a folder of catalogs, also in a bucket (repeatable). Targets are evaluated "
    "after the search.",
)
@PRETRAIN_ON
@MODALITY
@click.option(
    "--technique",
    "techniques",
    multiple=True,
    shell_complete=complete_technique,
    help="Technique that is searched (repeatable); the search starts from the first. Default: all "
    "that fit the signal and whose weights are on this machine.",
)
@click.option(
    "--setting",
    "searched",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_transfer,
    help="What is searched (repeatable, of equal labels): linear, knn or finetune-full, or with "
    "few labels linear-small, …; or pretrain alone. Default: all that a technique allows.",
)
@click.option(
    "--universal",
    is_flag=True,
    help="Search one set of settings for all modalities, by their mean score.",
)
@click.option("--space", type=FILE, help="YAML file of your own search space.")
@HELD
@click.option(
    "--trials",
    type=click.IntRange(1),
    help="Trials of each search. Default: 50, unless another limit is given.",
)
@click.option(
    "--evaluations", type=click.IntRange(1), help="Evaluations of all trials of each search."
)
@click.option("--hours", type=float, help="Wall-clock hours of each search.")
@click.option(
    "--device-hours", type=float, help="GPU hours (CPU hours without one) of each search."
)
@click.option(
    "--cautious",
    is_flag=True,
    help="Keep the start unless a trial is above it by more than one standard error.",
)
@click.option(
    "--sampler",
    type=click.Choice(["tpe", "random"]),
    default="tpe",
    show_default=True,
    help="Optuna's sampler.",
)
@click.option(
    "--portfolio",
    type=FILE,
    help="File of settings that beat the default ones on other datasets, tried right after these; "
    "none: do not try any. Default: the file of the package.",
)
@click.option(
    "--learn",
    "learned",
    type=STORE,
    multiple=True,
    metavar="STORE",
    help="Write a portfolio learned from the searches of this store into the first such store, "
    "then stop (repeatable).",
)
@click.option(
    "--at-once", type=click.IntRange(1), help="Concurrent evaluations. Default: as many as fit."
)
@click.option("--memory-gib", type=Real(1), help="Memory limit of an evaluation in GiB, 1 or more.")
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    default=(0,),
    help="Seed of the search; of several (repeatable) the others are for --single.",
)
@POLICY
@BENCH
@START
@SMALL
@WEIGHTS
@click.option(
    "--single",
    is_flag=True,
    help="Also train start and choice on all labels, once for each --seed.",
)
@click.option("--search-only", is_flag=True, help="Do not train and score what was chosen.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be searched and how long it would take, then stop.",
)
@GPUS
@TFLOPS
@CPUS
@wandb_options
@execution_options
def tune(*, store: Path, dashboard: Dashboard, **options: Any) -> None:
    """Search models and hyperparameters on the source's training records.

    Without --technique all families of models are searched that fit the signal and whose weights
    are on this machine: random kernels, published encoders with a linear, MLP or k-NN head or
    fine-tuned, and networks from scratch.

    A search never sees scored splits or targets: each evaluation of a trial is trained and scored
    on patient-wise folds of the training split (and of the validation split if that is not scored,
    as in MedMNIST). The first trial, the start, has the given settings, by default those of the
    fixed protocol. Half of the budget tries settings, each once; with the rest the best third earns
    more evaluations, again and again. The highest mean is chosen. Afterwards the fold models of
    start and choice are averaged and scored on the splits and targets that the search never saw;
    see the report. The same command resumes an interrupted search; a larger budget continues it.

    \b
    benchmd tune --catalog catalogs --dry-run
    benchmd tune --catalog catalogs --small               # try it, within minutes
    benchmd tune --catalog catalogs --hours 2
    benchmd tune --catalog catalogs --technique mae --setting finetune-full --trials 60
    benchmd tune --catalog catalogs --technique e-mix --setting pretrain --hours 12
    benchmd tune --catalog catalogs --technique mae --setting linear --universal
    """
    from benchmd_ray.runs.store import shown
    from benchmd_ray.service.tune_and_train import search_and_train

    if options["learned"]:
        context = click.get_current_context()
        named = [
            option.opts[0]
            for option in context.command.params
            if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
            and option.name != "learned"
        ]
        if named:
            raise click.UsageError(f"--learn does not search: use it without {named[0]}.")
        _learn(options["learned"])
        return
    if not options["catalogs"] and not options["dry_run"]:
        raise click.UsageError(
            "name a --catalog, see the plan with --dry-run, or name a store to --learn from."
        )
    if options["gpus"] is not None and not options["dry_run"]:
        raise click.UsageError("--gpus goes with --dry-run: nothing was started.")
    tuning = _tuning(options)
    if options["dry_run"]:
        to_run = "To search, build catalogs (`benchmd catalog build`) and name them with --catalog."
        print_searches([tuning], store, options, to_run)
        return
    used = {name: options[name] for name in ("address", "cpus", "tflops", "search_only")}
    if not search_and_train(tuning, store, say=echo, dashboard=dashboard, **used):
        sys.exit(1)
    following = "watch" if options["search_only"] else "report"  # which shows the scores of runs
    echo(f"next: benchmd {following} {shown(store)}")


def print_searches(
    tunings: Sequence[Tuning], store: Path, options: Mapping[str, Any], to_run: str
) -> None:
    """Print what searches would do on the machine of the options; see `print_estimates`."""
    from benchmd_ray.service.dry_run import print_estimates, resources_of
    from benchmd_ray.service.tune_dry_run import estimate_searches

    resources = resources_of(options["address"], options["cpus"], options["gpus"])
    estimates = estimate_searches(tunings, store, resources, tflops=options["tflops"])
    print_estimates(estimates, to_run)


def _learn(stores: Sequence[Path]) -> None:
    from benchmd_ray.runs.places import location_of
    from benchmd_ray.service.learning import learned_in
    from benchmd_ray.storage.location import Address
    from benchmd_ray.tuning.portfolio import SHIPPED, write_portfolio

    for store in stores:
        if not store.is_dir():
            raise click.UsageError(f"--learn: there is no store {store}.")
    portfolio, place = learned_in(stores, echo), location_of(stores[0]) / SHIPPED
    write_portfolio(place, portfolio)
    datasets = sorted({candidate.dataset for candidate in portfolio.candidates})
    echo(
        f"{len(portfolio.candidates)} settings that scored above their start on "
        f"{', '.join(datasets)}: {place}"
    )
    if isinstance(place, Address):
        echo("next: download it, and benchmd tune … --portfolio FILE")
    else:
        echo(f"next: benchmd tune … --portfolio {place}")


def _tuning(options: dict[str, Any]) -> Tuning:
    from benchmd_ray.service.families import Tuning
    from benchmd_ray.tuning.limits import Budget
    from benchmd_ray.tuning.method import Method
    from benchmd_ray.tuning.portfolio import Portfolio, read_portfolio

    choice = chosen({**options, "techniques": ()})
    limits = {name: options[name] for name in ("trials", "evaluations", "hours", "device_hours")}
    if all(value is None for value in limits.values()):
        limits |= {"hours": SMALL_HOURS} if options["small"] else {"trials": Budget().trials}
    method = Method(
        sampler=options["sampler"],
        cautious=options["cautious"],
        universal=options["universal"],
        seed=options["seeds"][0],
    )
    kept = ("techniques", "searched", "space", "held", "single", "at_once", "memory_gib")
    portfolio = Portfolio()
    if options["portfolio"] != Path("none"):
        portfolio = read_portfolio(options["portfolio"])
    return Tuning(
        choice,
        method=method,
        budget=Budget(**limits),
        portfolio=portfolio,
        fixed=SMALL_FIXED if options["small"] else (),
        **{name: options[name] for name in kept},
    )
