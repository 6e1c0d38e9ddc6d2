"""Groups and commands: common options, help, and display of errors."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmd_ray._version import __version__
from benchmd_ray.cli.allowed import named_plugins
from benchmd_ray.console.interrupts import stoppable
from benchmd_ray.console.terminal import (
    OutputClosed,
    echo,
    guarded,
    traceback_lines,
    visible,
)
from benchmd_ray.errors import BenchmdError, Stopped
from benchmd_ray.files.atomic import FULL, full_number

NOT_ALLOWED = "choose a folder that you may write to, or change its permissions"
REMEDIES = {
    errno.EACCES: NOT_ALLOWED,
    errno.EPERM: NOT_ALLOWED,
    errno.EROFS: NOT_ALLOWED,
    errno.ENOTDIR: "a part of the path is a file, choose another folder",
    errno.EISDIR: "expected a file, or a path that does not exist",
    errno.ENOENT: "check the path; its folder does not exist or cannot be made",
    **{
        number: f"{remedy}, then start the same command again"
        for number, (_, remedy) in FULL.items()
    },
}
"""Remedies by error number of the system."""


SECTIONS: dict[str, tuple[str, ...]] = {
    "Start here": ("demo", "doctor"),
    "Data and encoders": ("catalog", "encoder", "cache"),
    "Benchmarks": ("run", "probe", "tune", "bench"),
    "Results": ("report", "compare", "list", "watch", "prune", "pack", "board"),
    "Single runs": ("pretrain", "transfer", "evaluate", "predict", "export"),
    "Clusters": ("submit", "jobs"),
    "Settings and shell": ("settings", "completion"),
}
"""Commands in the order of the help; those of benchmarks come last."""
LONGEST_SENTENCE = 200
"""Longest description of a command in a list, in characters."""


def _add_cards(ctx: click.Context, param: click.Parameter, folders: tuple[Path, ...]) -> None:
    from benchmd_ray.modality.card_folders import add_card_folders

    if folders:
        add_card_folders(folders)


def _quieten(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from benchmd_ray.console import progress

        def restore(before: bool = progress.shown) -> None:
            progress.shown = before

        ctx.call_on_close(restore)
        progress.shown = False


VERBOSE = "benchmd_ray.cli.verbose"
"""Key of a context's ``meta``: whether to log more."""


def _tell_more(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        import logging

        ctx.find_root().meta[VERBOSE] = True
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        logger = logging.getLogger("benchmd_ray")
        ctx.call_on_close(partial(logger.setLevel, logger.level))
        logger.setLevel(logging.INFO)


def verbose() -> bool:
    """Whether the running command was given ``--verbose``."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.find_root().meta.get(VERBOSE))


MANY = 16
"""Number of options from which on a command's help groups them by purpose and shows rare ones only
in ``--help-all``.
"""
OPTION_SECTIONS: dict[str, tuple[str, ...]] = {
    "Search": ("sampler", "cautious", "universal", "single", "search_only"),
    "Space": ("space", "held", "portfolio", "learned"),
    "Budget": ("trials", "evaluations", "hours", "device_hours", "at_once", "memory_gib"),
    "Plan without running": ("dry_run", "items", "tflops", "gpus", "as_json"),
    "Where and with what": (
        *("store", "settings_file", "assignments", "address", "cpus", "weights"),
        *("allow_plugin", "cards"),
    ),
    "Weights & Biases": (
        *("wandb_mode", "wandb_project", "wandb_entity", "wandb_tags", "wandb_system"),
    ),
    "Messages and help": ("quiet", "verbose", "_click_default_help", "help_all"),
}
"""Options by purpose, by names of their parameters; all others select what to run."""
RARE = frozenset(
    {
        *("also", "evaluated", "policies", "any_md5"),
        *("sampler", "search_only", "evaluations", "cautious", "universal", "portfolio", "learned"),
        *("device_hours", "at_once", "memory_gib", "tflops", "gpus", "as_json"),
        *("allow_plugin", "cards", "verbose"),
        *("wandb_project", "wandb_entity", "wandb_tags", "wandb_system"),
    }
)
"""Options that most users never need, by the names of their parameters."""
ALL_OPTIONS = "benchmd_ray.cli.all_options"
"""Key of a context's ``meta``: whether help lists the rare options, too."""


def _print_all(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        ctx.meta[ALL_OPTIONS] = True
        for line in ctx.get_help().splitlines():
            echo(line)
        ctx.exit()


class Command(click.Command):
    """A command that accepts folders of cards, and allows the plug-ins that its user names."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options by purpose; for a command with many options only the common ones."""
        options = [p for p in self.get_params(ctx) if p.get_help_record(ctx) is not None]
        if len(options) < MANY:
            super().format_options(ctx, formatter)
            return
        titles = {name: title for title, names in OPTION_SECTIONS.items() for name in names}
        sections: dict[str, list[tuple[str, str]]] = {
            "What": [],
            **{t: [] for t in OPTION_SECTIONS},
        }
        for option in options:
            record, name = option.get_help_record(ctx), option.name or ""
            if record is not None and (ctx.meta.get(ALL_OPTIONS) or name not in RARE):
                sections[titles.get(name, "What")].append(record)
        for title, rows in sections.items():
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
            help="Folder with your own dataset and modality cards (repeatable); or BENCHMD_CARDS. "
            "Default: ./cards, if it has any.",
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
            help="Print log messages, and where in the code an error occurred.",
        )
        params = [*(params or []), cards, quiet, verbose]
        if len(params) + 1 >= MANY:  # with --help
            help_all = click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_all,
                help="Show all options, the rarely used ones too, and exit.",
            )
            params.append(help_all)
        super().__init__(name, params=params, **named)

    def invoke(self, ctx: click.Context) -> Any:
        if names := list(named_plugins(ctx.params)):
            from benchmd_ray.extensions.plugins import allow

            allow(*names)
        return super().invoke(ctx)


class Commands(click.Group):
    """A group that prints user errors without a traceback, and exits with 1."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, of_benchmarks: bool = False, **named: Any) -> None:
        """Take a group's arguments, and whether it includes the benchmarks' commands."""
        super().__init__(*args, **named)
        self._of_benchmarks = of_benchmarks

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of a name; an unknown one is refused with the nearest."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if near := get_close_matches(args[0].lower(), self.list_commands(ctx), 1):
                message = f"{error.message} Did you mean {near[0]!r}?"  # newer clicks add it twice
                raise click.UsageError(message, error.ctx) from error
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = super().list_commands(ctx)
        if self._of_benchmarks:
            from benchmd_ray.evaluation.registry import commands

            names += [name for name in commands() if name not in names]
        return sorted(names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None and self._of_benchmarks:
            from benchmd_ray.evaluation.registry import commands, named_by

            path = commands().get(cmd_name)
            return named_by(path) if path else None
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with a whole sentence each; the main group's by purpose."""
        left = self.list_commands(ctx)
        sections = []
        for title, names in SECTIONS.items() if self._of_benchmarks else ():
            sections.append((title, [name for name in names if name in left]))
            left = [name for name in left if name not in names]
        sections.append(("Single benchmarks" if sections else "Commands", left))
        for title, section in sections:
            commands = [(name, self.get_command(ctx, name)) for name in section]
            rows = [
                (name, command.get_short_help_str(LONGEST_SENTENCE))
                for name, command in commands
                if command is not None and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def main(self, *args: Any, **named: Any) -> Any:
        """Parse and run a command line; see `click.Command.main`."""
        with guarded():
            return super().main(*args, **named)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with stoppable(), _visible_usage():
                return super().invoke(ctx)
        except BenchmdError as error:
            if verbose():
                for line in traceback_lines(error):
                    echo(line, err=True)
            echo(f"error: {error}", err=True)
        except KeyboardInterrupt as interrupt:
            echo("interrupted: the same command resumes where it stopped", err=True)
            number = interrupt.args[0] if isinstance(interrupt, Stopped) else signal.SIGINT
            ctx.exit(128 + number)
        except OutputClosed:  # click ends without a message
            raise
        except OSError as error:  # such as a full disk or a read-only folder
            echo(f"error: {_of_system(error)}", err=True)
        ctx.exit(1)


@contextmanager
def _visible_usage() -> Iterator[None]:
    """Escape the command line in click's errors, which click prints by itself."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = visible(error.message)
        raise


def _of_system(error: OSError) -> str:
    """Message on what the system refused, where, and what to do."""
    place, number = error.filename2 or error.filename, full_number(error)
    remedy = REMEDIES.get(number or error.errno or 0)
    if place is None:
        return f"{error}: {remedy}." if number else str(error)
    remedy = remedy or "check the path, and that you may write there"
    return f"{place}: {(error.strerror or 'it failed').lower()}: {remedy}."


@click.group(
    cls=Commands, of_benchmarks=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__)
def main() -> None:
    """Benchmarks of learning on medical data; BenchMD unless --bench names another.

    \b
    Workflow:
      benchmd catalog build   raw files       -> a catalog (Parquet shards, manifest)
      benchmd pretrain        source catalog  -> a pretrained encoder
      benchmd transfer        labels          -> a classifier, scored on source and targets
      benchmd run             catalogs        -> all of these, whatever is missing
      benchmd tune            source catalogs -> better settings, trained and scored
      benchmd report          predictions     -> tables, figures, one page

    Settings default to the fixed protocol of the paper. A run is named by the hash of what
    determines it, so repeated commands do nothing twice and resume where they were interrupted.

    \b
    Try it without any data:  benchmd demo
    """
