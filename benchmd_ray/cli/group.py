"""The command group, and how errors are shown."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from benchmd_ray._version import __version__
from benchmd_ray.cli.allowed import Command, verbose
from benchmd_ray.console.interrupts import stoppable
from benchmd_ray.console.terminal import echo, guarded, traceback_lines, visible
from benchmd_ray.errors import BenchmdError, Stopped
from benchmd_ray.files.atomic import FULL, full_number

NOT_ALLOWED = "choose a folder that you may write to, or change its permissions"
REMEDIES = {
    errno.EACCES: NOT_ALLOWED,
    errno.EPERM: NOT_ALLOWED,
    errno.EROFS: NOT_ALLOWED,
    errno.ENOTDIR: "a part of the path is a file, choose another folder",
    errno.EISDIR: "expected a file, or a path that is free",
    errno.ENOENT: "check the path; its folder does not exist or cannot be made",
    **{
        number: f"{remedy}, then start the same command again"
        for number, (_, remedy) in FULL.items()
    },
}
"""What to do where the system refuses, by its number of the error."""


SECTIONS: dict[str, tuple[str, ...]] = {
    "Start here": ("demo", "doctor"),
    "Data": ("catalog", "cache"),
    "Benchmarks": ("run", "tune", "bench"),
    "Results": ("report", "compare", "list", "watch", "prune"),
    "Single runs": ("pretrain", "transfer", "evaluate", "export"),
    "Clusters": ("submit", "jobs"),
    "Settings and shell": ("settings", "completion"),
}
"""Commands in the order in which help lists them; those of benchmarks come last."""
LONGEST_SENTENCE = 200
"""Of a command in a list, in characters."""


class Commands(click.Group):
    """Prints errors that a user can mend without a traceback, and exits with 1."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, of_benchmarks: bool = False, **named: Any) -> None:
        """Take a group's arguments.

        Args:
            args: Of `click.Group`.
            of_benchmarks: Whether benchmarks' own commands are among its commands.
            named: Of `click.Group`.
        """
        super().__init__(*args, **named)
        self._of_benchmarks = of_benchmarks

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands."""
        own = super().list_commands(ctx)
        if self._of_benchmarks:
            from benchmd_ray.evaluation.registry import commands

            own += [name for name in commands() if name not in own]
        return sorted(own)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        own = super().get_command(ctx, cmd_name)
        if own is None and self._of_benchmarks:
            from benchmd_ray.evaluation.registry import commands, named_by

            path = commands().get(cmd_name)
            return named_by(path) if path else None
        return own

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with a whole sentence each; the program's by what they are for."""
        left = self.list_commands(ctx)
        sections = []
        for title, names in SECTIONS.items() if self._of_benchmarks else ():
            sections.append((title, [name for name in names if name in left]))
            left = [name for name in left if name not in names]
        sections.append(("Single benchmarks" if sections else "Commands", left))
        for title, own in sections:
            found = [(name, self.get_command(ctx, name)) for name in own]
            rows = [
                (name, command.get_short_help_str(LONGEST_SENTENCE))
                for name, command in found
                if command is not None and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def main(self, *args: Any, **named: Any) -> Any:
        """Parse a command line and run what it names; see `click.Command.main`."""
        with guarded():
            return super().main(*args, **named)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
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
        except OSError as error:  # a full disk, a folder that cannot be written, …
            echo(f"error: {_of_system(error)}", err=True)
        ctx.exit(1)


@contextmanager
def _visible_usage() -> Iterator[None]:
    """Escape what click's errors quote of a command line: click prints them by itself."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = visible(error.message)
        raise


def _of_system(error: OSError) -> str:
    """What the system refused, where, and what to do."""
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
    The way of the data:
      benchmd catalog build   raw files       -> a catalog (Parquet shards, manifest)
      benchmd pretrain        source catalog  -> a pretrained encoder
      benchmd transfer        labels          -> a classifier, scored on source and targets
      benchmd run             catalogs        -> all of these, whatever is missing
      benchmd tune            source catalogs -> better settings, trained and scored
      benchmd report          predictions     -> tables, figures, one page

    Settings default to the fixed protocol of the paper. A run is named by the hash of what
    determines it: repeated commands do nothing twice and resume where they were interrupted.

    \b
    Try it without any data:  benchmd demo
    """
