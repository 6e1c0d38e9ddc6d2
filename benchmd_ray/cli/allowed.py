"""Which plug-ins a command line allows: those that the user names in it, and in files of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

NAMES = ("technique", "techniques", "assignments", "upstream")
"""Parameters whose values name plug-ins."""
FILES = ("settings_file", "space")
"""Parameters that name YAML files, which may name plug-ins."""


def _allow(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> None:
    from benchmd_ray.extensions.plugins import IMPORT_PATH, allow

    for name in names:
        if not IMPORT_PATH.fullmatch(name):
            raise click.BadParameter(f"{name!r} is not of the form package.module:name.")
    allow(*names)


ALLOW = click.option(
    "--allow-plugin",
    multiple=True,
    metavar="MODULE:NAME",
    expose_value=False,
    callback=_allow,
    help="Import this method or encoder network where a run or a search names it (repeatable).",
)


def _add_cards(ctx: click.Context, param: click.Parameter, folders: tuple[Path, ...]) -> None:
    from benchmd_ray.modality.card_folders import add_card_folders

    if folders:
        add_card_folders(folders)


def _quieten(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given:
        from benchmd_ray.console import progress

        def restore(before: bool = progress.shown) -> None:
            progress.shown = before

        ctx.call_on_close(restore)
        progress.shown = False


VERBOSE = "benchmd_ray.cli.verbose"
"""Of a context's ``meta``: whether more is to be told."""


def _tell_more(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given:
        import logging

        ctx.find_root().meta[VERBOSE] = True
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        logger = logging.getLogger("benchmd_ray")
        ctx.call_on_close(partial(logger.setLevel, logger.level))
        logger.setLevel(logging.INFO)


def verbose() -> bool:
    """Whether the command at work was given ``--verbose``."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.find_root().meta.get(VERBOSE))


MANY = 16
"""Options of a command from which on its help lists them by what they are for."""
SECTIONS: dict[str, tuple[str, ...]] = {
    "Search": ("sampler", "stopping", "evaluations", "choosing", "cost", "universal"),
    "Space": ("space", "held", "portfolio", "no_portfolio", "learned"),
    "Budget": ("trials", "hours", "device_hours", "at_once", "memory_gib", "search_only"),
    "Plan without running": ("dry_run", "items", "tflops", "gpus", "cpus", "as_json"),
    "Where and with what": (
        *("store", "settings_file", "assignments", "address", "weights"),
        *("allow_plugin", "cards"),
    ),
    "Weights & Biases": (
        *("wandb_mode", "wandb_project", "wandb_entity", "wandb_tags", "wandb_system"),
    ),
    "Messages": ("quiet", "verbose", "_click_default_help"),
}
"""Options by what they are for, by the names of their parameters; others are what is chosen."""


class Command(click.Command):
    """A command that takes folders of cards, and allows the plug-ins that its user names."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options; of a command with many by what they are for."""
        options = [p for p in self.get_params(ctx) if p.get_help_record(ctx) is not None]
        if len(options) < MANY:
            super().format_options(ctx, formatter)
            return
        titles = {name: title for title, names in SECTIONS.items() for name in names}
        found: dict[str, list[tuple[str, str]]] = {"What": [], **{t: [] for t in SECTIONS}}
        for option in options:
            record = option.get_help_record(ctx)
            assert record is not None  # others are not among them
            found[titles.get(option.name or "", "What")].append(record)
        for title, rows in found.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def __init__(
        self, name: str | None, *, params: list[click.Parameter] | None = None, **named: Any
    ) -> None:
        cards = click.Option(
            ["--cards"],
            type=click.Path(path_type=Path),
            multiple=True,
            expose_value=False,
            is_eager=True,
            callback=_add_cards,
            help="Folder with your own cards of datasets and modalities (repeatable); also "
            "BENCHMD_CARDS.",
        )
        quiet = click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=_quieten,
            help="Show no progress.",
        )
        verbose = click.Option(
            ["-v", "--verbose"],
            is_flag=True,
            expose_value=False,
            callback=_tell_more,
            help="Tell more: what is logged, and where in the code an error is.",
        )
        super().__init__(name, params=[*(params or []), cards, quiet, verbose], **named)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        if names := list(_named(ctx.params)):
            from benchmd_ray.extensions.plugins import allow

            allow(*names)
        return super().invoke(ctx)


def _named(params: Mapping[str, Any]) -> Iterator[str]:
    """What could be an import path among the values of parameters."""
    from benchmd_ray.ssl import HUB, OWN

    for key in NAMES:
        given = params.get(key) or ()
        for text in given if isinstance(given, tuple) else (str(given),):
            name = text.rpartition("=")[2].strip()
            if ":" in name and not name.startswith(HUB):  # a folder
                yield name.removeprefix(OWN)
    for key in FILES:
        path = params.get(key)
        if path is None:
            continue
        names = [text for text in _strings(path) if ":" in text]
        if names and not _read_back(path):
            yield from names


def _read_back(path: Path) -> bool:
    """Whether a file is in a store, a run, a search or a catalog: its names are not the user's own.

    It is also where it is named by a link that is there.
    """
    folders = {*Path(os.path.abspath(path)).parents, *path.resolve().parents}
    return any(_written(folder) for folder in folders)


def _written(folder: Path) -> bool:
    """Whether a folder is a store, a run, a search or a catalog."""
    from benchmd_ray.data.catalog import MANIFEST
    from benchmd_ray.data.manifest_form import SHARDS
    from benchmd_ray.runs.files import RUN, SEARCH, SEARCHES

    if (folder / MANIFEST).exists() and (folder / SHARDS).exists():
        return True
    patterns = (RUN, SEARCH, f"*/{RUN}", f"{SEARCHES}/*/{SEARCH}")
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def _strings(path: Path) -> Iterator[str]:
    """All texts of a YAML file; none of one that cannot be read, which the command reports."""
    from benchmd_ray.errors import BenchmdError
    from benchmd_ray.schema.plain_yaml import read_yaml_file

    try:
        waiting = [read_yaml_file(path, str(path))]
    except BenchmdError:
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
