"""Options and completions that several commands share."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from benchmd_ray.cli.allowed import ALLOW
from benchmd_ray.console.terminal import echo, json_text

if TYPE_CHECKING:
    from benchmd_ray.service.choice import Choice

F = TypeVar("F", bound=Callable[..., Any])


class Real(click.FloatRange):
    """A finite number within a range; `click.FloatRange` would accept nan and infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class FolderType(click.Path):
    """A folder, or an address in an object store if allowed; a file only if allowed."""

    def __init__(
        self, remote: Callable[[str], Any] | None = None, *, file_okay: bool = False
    ) -> None:
        """`remote` converts an address to a location; without it an address is refused."""
        super().__init__(path_type=Path, file_okay=file_okay)
        self._remote = remote

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """The folder or the location."""
        from benchmd_ray.storage.address import FORMS, is_address, is_broken

        text = os.fspath(value)
        if is_broken(text):  # nor a folder's name
            why = f"{text} is not an address in an object store: expected {FORMS}."
            self.fail(why, param, ctx)
        if not is_address(text):
            return super().convert(value, param, ctx)
        if self._remote is None:  # otherwise a folder s3: would be made
            why = "expected a folder: only catalogs and stores may be in an object store."
            self.fail(why, param, ctx)
        return self._remote(text)


class UpstreamType(FolderType):
    """A run's folder, or the name of a technique with an external encoder."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """The folder, or the technique's name as text."""
        from benchmd_ray.ssl.brought import brought_name

        return brought_name(os.fspath(value)) or super().convert(value, param, ctx)


def _location(address: str) -> Any:
    from benchmd_ray.storage.location import location

    return location(address)


def _mirror(address: str) -> Any:
    from benchmd_ray.runs.places import store_folder

    return store_folder(address)


FOLDER = FolderType()
CATALOG = FolderType(_location)
"""For options and arguments that name a catalog or a folder of catalogs."""
DATA = FolderType(_location, file_okay=True)
"""A catalog, a file, or a folder of files."""
STORE = FolderType(_mirror)
"""For options and arguments that name a store or runs; for an address, the folder that
mirrors it.
"""
SMALL_START = "small"
"""How the start of a benchmark that ``--small`` names ends."""
RUNS = Path("runs")
"""The default store."""
UPSTREAM = UpstreamType(_mirror)
"""For an option that names the start of a transfer."""
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING = click.Path(path_type=Path, dir_okay=False, exists=True)


LONGEST_TAG = 64
"""Most characters of a tag in W&B."""


def wandb_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """W&B options of a command; they become its ``dashboard`` argument."""

    @functools.wraps(command)
    def tracked(
        *arguments: Any,
        wandb_mode: str,
        wandb_project: str,
        wandb_entity: str | None,
        wandb_tags: tuple[str, ...],
        wandb_system: bool,
        **options: Any,
    ) -> Any:
        from benchmd_ray.tracking.dashboard import Dashboard

        if odd := [tag for tag in wandb_tags if not 1 <= len(tag) <= LONGEST_TAG]:
            raise click.BadParameter(
                f"{odd[0]!r} is a tag of {len(odd[0])} characters, expected 1 to {LONGEST_TAG}.",
                param_hint="--wandb-tag",
            )
        dashboard = Dashboard(
            mode=wandb_mode,
            project=wandb_project,
            entity=wandb_entity,
            tags=wandb_tags,
            system=wandb_system,
        )
        return command(*arguments, dashboard=dashboard.settled(), **options)

    for option in reversed(WANDB):
        tracked = option(tracked)
    return tracked


WANDB = (
    click.option(
        "--wandb",
        "wandb_mode",
        default="off",
        show_default=True,
        metavar="MODE",
        help="Log to Weights & Biases: auto (online with a key, otherwise offline), online or "
        "offline.",
    ),
    click.option(
        "--wandb-project",
        default="benchmd",
        show_default=True,
        metavar="NAME",
        help="W&B project.",
    ),
    click.option("--wandb-entity", metavar="NAME", help="W&B user or team. Default: yours."),
    click.option(
        "--wandb-tag", "wandb_tags", multiple=True, metavar="TAG", help="W&B tag (repeatable)."
    ),
    click.option(
        "--wandb-system", is_flag=True, help="Log the load of the machine to W&B, without names."
    ),
)


def complete_dataset(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of datasets, for the shell."""
    from benchmd_ray.data.cards import cards

    return [name for name in cards() if name.startswith(incomplete)]


def complete_modality(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of modalities, for the shell."""
    from benchmd_ray.data.cards import cards

    names = dict.fromkeys(card.modality.name for card in cards().values())
    return [name for name in names if name.startswith(incomplete)]


def complete_technique(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of techniques, including scratch and published encoders, for the shell."""
    from benchmd_ray.ssl import BASELINES, NAMED, SCRATCH, TECHNIQUES

    first = () if getattr(ctx, "info_name", "") == "pretrain" else (SCRATCH,)
    names = [*first, *TECHNIQUES, *BASELINES]
    if incomplete.startswith(NAMED[0]):
        names += [NAMED + name for name in complete_encoder(ctx, param, "")]
    return [name for name in names if name.startswith(incomplete)]


def complete_encoder(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of published encoders, for the shell."""
    from benchmd_ray.models.encoder_cards import encoder_cards

    return [name for name in encoder_cards().sound if name.startswith(incomplete)]


def complete_setting(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of settings, and after ``=`` the values of those with fixed choices, for the shell."""
    from benchmd_ray.settings.definition import ENCODERS, setting_names
    from benchmd_ray.settings.explain import values

    name, equals, begun = incomplete.partition("=")
    names = {setting: values(setting) for setting in setting_names()} | {"encoder": tuple(ENCODERS)}
    if not equals:
        return [f"{each}=" for each in names if each.startswith(name)]
    return [f"{name}={value}" for value in names.get(name, ()) if value.startswith(begun)]


def complete_bench(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of benchmarks, for the shell."""
    from benchmd_ray.evaluation.registry import benchmarks

    return [name for name in benchmarks() if name.startswith(incomplete)]


def complete_transfer(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of transfer settings, for the shell."""
    from benchmd_ray.service.choice import TRANSFERS

    also = ("pretrain",) if getattr(ctx, "info_name", "") == "tune" else ()
    return [name for name in (*also, *TRANSFERS) if name.startswith(incomplete)]


MODALITY = click.option(
    "--modality",
    "modalities",
    multiple=True,
    shell_complete=complete_modality,
    help="Only this modality (repeatable).",
)
POLICY = click.option(
    "--policy", "policies", multiple=True, help="Only catalogs built with this policy (repeatable)."
)
PRETRAIN_ON = click.option(
    "--pretrain-on",
    type=CATALOG,
    multiple=True,
    metavar="PATH",
    help="Pretrain on this catalog, of a source or a target, instead of each source's own "
    "(repeatable: one pretraining on all of them, which must have the same signals).",
)
WEIGHTS = click.option(
    "--weights", type=FILE, help="File of ImageNet weights. Default: downloaded when needed."
)
BENCH = click.option(
    "--bench",
    default="benchmd",
    show_default=True,
    metavar="NAME",
    shell_complete=complete_bench,
    help="Name of a benchmark (`benchmd bench list`), or the import path of your own.",
)
START = click.option(
    "--start",
    default="",
    metavar="NAME",
    help="Baseline that settings start from (`benchmd bench show NAME`). Default: the benchmark's.",
)
SMALL = click.option(
    "--small",
    is_flag=True,
    help="Small networks, trained for minutes on two cores: the start `small` of BenchMD. Their "
    "scores say little of the fixed protocol's.",
)
HELD = click.option(
    "--fix", "held", multiple=True, metavar="A.B", help="Do not search this setting (repeatable)."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
GPUS = click.option(
    "--gpus",
    type=click.IntRange(0),
    help="With --dry-run: GPUs to plan for. Default: those of this machine or cluster.",
)
TFLOPS = click.option(
    "--tflops",
    type=float,
    help="Estimate for another machine: sustained TFLOP/s of each device.",
)
ADDRESS = click.option(
    "--address", help="Work on the Ray cluster at this address. Default: an embedded Ray."
)
SETTINGS = click.option("--settings", "settings_file", type=FILE, help="YAML file of settings.")
SET = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="A.B=VALUE",
    shell_complete=complete_setting,
    help="Change one setting, after --settings; `benchmd settings` lists them all.",
)
CPUS = click.option("--cpus", type=click.IntRange(1), help="CPUs to use at once. Default: all.")


def execution_options(command: F) -> F:
    """Options of every command that computes."""
    for option in (
        click.option(
            "--address", help="Ray cluster to work on (auto, host:port). Default: an embedded Ray."
        ),
        ALLOW,
        SET,
        SETTINGS,
        click.option(
            "--store",
            type=STORE,
            default=RUNS,
            show_default=True,
            help="Folder of all runs (on a cluster, on shared storage), or s3://…, gs://…, az://….",
        ),
    ):
        command = option(command)
    return command


def chosen(options: Mapping[str, Any], **more: Any) -> Choice:
    """The `Choice` from a command's options for catalogs, settings and a benchmark."""
    from benchmd_ray.evaluation.registry import benchmark
    from benchmd_ray.service.choice import Choice

    names = ("catalogs", "modalities", "techniques", "seeds", "policies", "weights", "start")
    more.setdefault("pretrain_on", options.get("pretrain_on", ()))
    if options.get("small"):
        if options["start"]:
            raise click.UsageError("--small is a start: use it without --start.")
        starts = [start.name for start in benchmark(options["bench"]).starts]
        smaller = [name for name in starts if name.endswith(SMALL_START)]
        more["start"] = smaller[0] if smaller else SMALL_START
    return Choice(
        **{name: options[name] for name in names} | more,
        bench=benchmark(options["bench"]).name,
        file=options["settings_file"],
        assignments=options["assignments"],
    )


def or_runs(ctx: click.Context, param: click.Parameter, paths: tuple[Path, ...]) -> Any:
    """The given stores, or the default one."""
    return paths or (RUNS,)


def print_json(value: Any) -> None:
    """Print plain values as JSON, others as text; NaN and infinity become null."""

    def finite(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {str(name): finite(each) for name, each in part.items()}
        if isinstance(part, list | tuple):
            return [finite(each) for each in part]
        return None if isinstance(part, float) and not math.isfinite(part) else part

    text = json_text(finite(value), indent=1, default=str, allow_nan=False)
    for line in text.split("\n"):
        echo(line)


def assigned(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE arguments as a dictionary."""
    for value in values:
        if not value.partition("=")[1] or value.startswith("="):
            raise click.BadParameter(f"{value!r} is not of the form NAME=VALUE.")
    return dict(value.split("=", 1) for value in values)


def raw_options(command: F) -> F:
    """Options of every command that lists a raw folder."""
    for option in (
        click.option(
            "--option",
            "options",
            multiple=True,
            callback=assigned,
            metavar="NAME=VALUE",
            help="Set an option of the dataset; `benchmd catalog show NAME` lists them.",
        ),
        click.option(
            "--hold-out",
            multiple=True,
            metavar="CONDITION",
            help="Exclude patients with this class, finding, code or flag from all training, to be "
            "detected as out of distribution (repeatable).",
        ),
        click.option(
            "--split-table", type=FILE, help="BenchMD's released split table (--policy released)."
        ),
        click.option(
            "--policy",
            default="clean",
            show_default=True,
            help="clean: leak-free splits and labels. released: as BenchMD released them.",
        ),
        click.option("--raw", type=FOLDER, required=True, help="Folder with the raw files."),
    ):
        command = option(command)
    return command
