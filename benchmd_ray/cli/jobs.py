"""``benchmd submit`` and ``benchmd jobs``: commands as jobs of a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmd_ray.cli.group import main
from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import BenchmdError, unknown_name

ADDRESS = click.option(
    "--address",
    metavar="URL",
    help="The cluster's dashboard; else RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265.",
)
JOB = click.argument("job", metavar="ID")

LOCAL = {"completion", "demo", "jobs", "submit"}
"""Commands that are of use only where one sits."""

CARRIED = {"settings_file", "space", "split_table", "weights"}
"""Parameters that name files of this machine, which a job takes along."""

CARRIED_BYTES = 64 * 2**20
"""Largest file that is carried; what is larger belongs on storage that all nodes see."""


@main.command(context_settings={"allow_interspersed_args": False})
@ADDRESS
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME",
    help="Give the job this variable's value (repeatable), such as AWS_PROFILE or WANDB_API_KEY; "
    "the cluster shows only its name.",
)
@click.option(
    "--nodes",
    default="",
    metavar="NODES",
    help="Nodes that a cluster which grows on demand is to have while the job works, such as "
    "'8*CPU=16,GPU=1': plans use what is there.",
)
@click.option("--name", help="Part of the job's id; else the command.")
@click.option("--follow", "following", is_flag=True, help="Print the job's output until it ends.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def submit(
    ctx: click.Context,
    *,
    address: str | None,
    variables: tuple[str, ...],
    nodes: str,
    name: str | None,
    following: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as a job of a Ray cluster; prints the job's id.

    COMMAND is one of these commands after `--`, with the paths as the nodes see them: absolute, or
    s3://…. Files named by --settings, --space, --split-table and --weights are of this machine and
    go along, and so does this package. The same command submitted again resumes where the first
    job stopped. With --follow the exit code is the job's.

    \b
    benchmd submit -- run --catalog /catalogs --store s3://lab/study
    benchmd submit --env WANDB_API_KEY --follow -- run --catalog /catalogs --store /runs \\
        --settings small.yaml --wandb online
    """
    from benchmd_ray.service import submit as service

    arguments, files = checked(command)
    job = service.submit(
        arguments, address=address, files=files, variables=variables, nodes=nodes, name=name
    )
    echo(job)
    if following:
        _follow(ctx, job, address)


def checked(command: Sequence[str]) -> tuple[list[str], dict[str, Path]]:
    """A command as a job runs it, and the files that it takes along, by path in the job's folder.

    Raises:
        click.UsageError: It is none of our commands, or its options are wrong.
        BenchmdError: It is of no use on a cluster, or a path means nothing there.
    """
    chosen, names, rest = _command(command)
    with chosen.make_context(" ".join(["benchmd", *names]), list(rest)) as context:
        params = context.params
    if params.get("address"):
        raise BenchmdError("leave --address out after `--`: a job works on the cluster it is on.")
    files: dict[str, Path] = {}
    for param in chosen.params:
        for path in _paths(params.get(param.name or "")):
            if param.name in CARRIED and (inside := _carried(param, path)):
                files[inside] = path
                rest = _replaced(rest, param, path, inside)
            elif not path.is_absolute():
                raise BenchmdError(
                    f"{_named(param)} is the relative path {str(path)!r}, which would lie in the "
                    "job's own folder: name an absolute path that all nodes see, or s3://…."
                )
    _require_known(params)
    return [*names, *rest], files


def _require_known(params: Mapping[str, Any]) -> None:
    """Refuse settings and techniques that do not exist, before the job is submitted."""
    from benchmd_ray.settings.definition import load_settings
    from benchmd_ray.ssl import SCRATCH, technique_named

    load_settings(params.get("settings_file"), params.get("assignments", ()))
    for name in (params.get("technique"), *params.get("techniques", ())):
        if name and name != SCRATCH and ":" not in name:  # one's own is known on the cluster
            technique_named(name, also=(SCRATCH,))


def _command(words: Sequence[str]) -> tuple[click.Command, list[str], list[str]]:
    """The command, its names, and the arguments after them."""
    command: click.Command = main
    names, rest = [], list(words)
    while isinstance(command, click.Group):
        commands = {name: one for name, one in command.commands.items() if name not in LOCAL}
        if not rest:
            raise BenchmdError(f"name a command after `--`: one of {', '.join(sorted(commands))}.")
        if rest[0] in LOCAL and rest[0] in command.commands:
            raise BenchmdError(f"`benchmd {rest[0]}` is of use on this machine only.")
        if rest[0] not in commands:
            raise unknown_name("command", rest[0], commands)
        names.append(rest.pop(0))
        command = commands[names[-1]]
    return command, names, rest


def _paths(value: Any) -> Iterator[Path]:
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, Path):
            yield item


def _named(param: click.Parameter) -> str:
    return param.opts[-1] if isinstance(param, click.Option) else (param.name or "").upper()


def _carried(param: click.Parameter, path: Path) -> str:
    """Path of a local file in the job's folder; empty for weights that the nodes have."""
    nodes_have_it = param.name == "weights" and path.is_absolute()
    if path.is_file() and path.stat().st_size <= CARRIED_BYTES:
        return f"files/{param.name}-{path.name}"
    if nodes_have_it:
        return ""
    if not path.is_file():
        raise BenchmdError(f"{_named(param)}: there is no file {path} here to take along.")
    raise BenchmdError(
        f"{_named(param)}: {path} has {path.stat().st_size:,} bytes, more than the "
        f"{CARRIED_BYTES:,} that a job takes along: put it where all nodes see it under the same "
        "absolute path."
    )


def _replaced(rest: list[str], param: click.Parameter, path: Path, inside: str) -> list[str]:
    """Arguments in which an option names a file as it is in the job's folder."""
    replaced = list(rest)
    for number, argument in enumerate(rest):
        option, equals, value = argument.partition("=")
        if option not in param.opts:
            continue
        if equals and Path(value) == path:
            replaced[number] = f"{option}={inside}"
        elif not equals and Path(rest[number + 1]) == path:
            replaced[number + 1] = inside
    return replaced


def _follow(ctx: click.Context, job: str, address: str | None) -> None:
    """Print what a job prints and exit as it does; Ctrl-C ends only the printing."""
    from benchmd_ray.service.submit import follow

    try:
        with _Printed() as printed:
            code = follow(job, printed.take, address)
    except KeyboardInterrupt:
        echo(
            f"the job continues; see it: benchmd jobs logs --follow {job}; "
            f"end it: benchmd jobs stop {job}",
            err=True,
        )
        ctx.exit(130)
    ctx.exit(code)


class _Printed:
    """Prints the lines of a text that arrives in pieces; within, until its last line is whole."""

    def __init__(self) -> None:
        self._rest = ""

    def __enter__(self) -> _Printed:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rest:
            echo(self._rest)

    def take(self, text: str) -> None:
        """Print the lines that are whole with this piece."""
        *lines, self._rest = f"{self._rest}{text}".split("\n")
        for line in lines:
            echo(line.removesuffix("\r"))


@main.group()
def jobs() -> None:
    """List, follow and stop the jobs of a Ray cluster."""


@jobs.command("list")
@ADDRESS
def jobs_list(address: str | None) -> None:
    """List the jobs: status, when they began (UTC), for how long, and the command."""
    from benchmd_ray.service.submit import jobs as submitted

    for job in submitted(address):
        command = (job.metadata or {}).get("command") or job.entrypoint
        echo(f"{job.submission_id}  {_state(job)}  {command}")


@jobs.command("status")
@ADDRESS
@JOB
def jobs_status(address: str | None, job: str) -> None:
    """Show the state of the job ID; exits with 1 if it failed."""
    from benchmd_ray.service.submit import details

    about = details(job, address)
    echo(_state(about))
    if about.status == "FAILED":
        for line in (about.message or "no message").splitlines():
            echo(line, err=True)
        sys.exit(1)


@jobs.command("logs")
@ADDRESS
@click.option("--follow", "following", is_flag=True, help="Continue until the job ends.")
@JOB
@click.pass_context
def jobs_logs(ctx: click.Context, address: str | None, following: bool, job: str) -> None:
    """Print the output of the job ID; with --follow the exit code is the job's."""
    from benchmd_ray.service.submit import output

    if following:
        _follow(ctx, job, address)
    with _Printed() as printed:
        printed.take(output(job, address))


@jobs.command("stop")
@ADDRESS
@JOB
def jobs_stop(address: str | None, job: str) -> None:
    """Stop the job ID after it has written its checkpoints, and wait until it has ended.

    The same command submitted again resumes from there.
    """
    from benchmd_ray.service.submit import stop

    echo(f"{job}: {_state(stop(job, address))}")


def _state(job: Any) -> str:
    if not job.start_time:
        return f"{job.status.lower():9}"
    began = job.start_time / 1000
    lasted = (job.end_time / 1000 if job.end_time else time.time()) - began
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began))
    return f"{job.status.lower():9}  {moment}  {lasted:6.0f} s"
