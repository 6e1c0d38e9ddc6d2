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
    help="The cluster's dashboard. Default: RAY_API_SERVER_ADDRESS, or http://127.0.0.1:8265.",
)
JOB = click.argument("job", metavar="ID")

LOCAL = {"completion", "demo", "jobs", "submit"}
"""Commands that are useful only on the local machine."""

CARRIED = {"settings_file", "space", "split_table", "weights"}
"""Parameters that name local files, which are copied to a job."""

CARRIED_BYTES = 64 * 2**20
"""Largest file that is copied; larger ones belong on shared storage."""


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
    help="Nodes to request from a cluster that grows on demand, such as '8*CPU=16,GPU=1'; plans "
    "use only existing nodes.",
)
@click.option("--name", help="Part of the job's id. Default: the command.")
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

    COMMAND is a benchmd command after `--`, with paths as on the nodes: absolute, or s3://…. Files
    given to --settings, --space, --split-table and --weights are local and are copied to the job,
    and so is this package. The same command submitted again resumes where the first job stopped.
    With --follow the exit code is the job's.

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
    """The command of a job, and the files to copy, by path in the job's folder.

    Raises:
        click.UsageError: It is not a benchmd command, or its options are wrong.
        BenchmdError: It is not useful on a cluster, or a path is not valid there.
    """
    chosen, names, rest = _command(command)
    with chosen.make_context(" ".join(["benchmd", *names]), list(rest)) as context:
        params = context.params
    if params.get("address"):
        raise BenchmdError("omit --address after `--`: a job uses the cluster that it runs on.")
    files: dict[str, Path] = {}
    for param in chosen.params:
        for path in _paths(params.get(param.name or "")):
            if param.name in CARRIED and (inside := _carried(param, path)):
                files[inside] = path
                rest = _replaced(rest, param, path, inside)
            elif not path.is_absolute():
                raise BenchmdError(
                    f"{_named(param)} is the relative path {str(path)!r}, which would be inside "
                    "the job's folder: name an absolute path on shared storage, or s3://…."
                )
    _require_known(params)
    return [*names, *rest], files


def _require_known(params: Mapping[str, Any]) -> None:
    """Refuse settings and techniques that do not exist, before the job is submitted."""
    from benchmd_ray.settings.definition import load_settings
    from benchmd_ray.ssl import SCRATCH, technique_named

    load_settings(params.get("settings_file"), params.get("assignments", ()))
    for name in (params.get("technique"), *params.get("techniques", ())):
        if (
            name and name != SCRATCH and ":" not in name
        ):  # custom ones are only known on the cluster
            technique_named(name, also=(SCRATCH,))


def _command(words: Sequence[str]) -> tuple[click.Command, list[str], list[str]]:
    """The command, its name parts, and the arguments after them."""
    command: click.Command = main
    names, rest = [], list(words)
    while isinstance(command, click.Group):
        commands = {name: one for name, one in command.commands.items() if name not in LOCAL}
        if not rest:
            raise BenchmdError(f"name a command after `--`: one of {', '.join(sorted(commands))}.")
        if rest[0] in LOCAL and rest[0] in command.commands:
            raise BenchmdError(f"`benchmd {rest[0]}` is useful only on this machine.")
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
    """Path of a local file in the job's folder; empty for weights that are on the nodes."""
    nodes_have_it = param.name == "weights" and path.is_absolute()
    if path.is_file() and path.stat().st_size <= CARRIED_BYTES:
        return f"files/{param.name}-{path.name}"
    if nodes_have_it:
        return ""
    if not path.is_file():
        raise BenchmdError(f"{_named(param)}: there is no local file {path}.")
    raise BenchmdError(
        f"{_named(param)}: {path} has {path.stat().st_size:,} bytes, more than the "
        f"{CARRIED_BYTES:,} that can be copied to a job: put it on shared storage under the same "
        "absolute path on all nodes."
    )


def _replaced(rest: list[str], param: click.Parameter, path: Path, inside: str) -> list[str]:
    """Arguments in which an option names its file in the job's folder."""
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
    """Print a job's output and exit with its code; Ctrl-C only ends the printing."""
    from benchmd_ray.service.submit import follow

    try:
        with _Printed() as printed:
            code = follow(job, printed.take, address)
    except KeyboardInterrupt:
        echo(
            f"the job continues; follow it: benchmd jobs logs --follow {job}; stop it: benchmd "
            f"jobs stop {job}",
            err=True,
        )
        ctx.exit(130)
    ctx.exit(code)


class _Printed:
    """Prints complete lines of a text that arrives in pieces; the rest at the context's end."""

    def __init__(self) -> None:
        self._rest = ""

    def __enter__(self) -> _Printed:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rest:
            echo(self._rest)

    def take(self, text: str) -> None:
        """Print the lines that this piece completes."""
        *lines, self._rest = f"{self._rest}{text}".split("\n")
        for line in lines:
            echo(line.removesuffix("\r"))


@main.group()
def jobs() -> None:
    """List, follow and stop the jobs of a Ray cluster."""


@jobs.command("list")
@ADDRESS
def jobs_list(address: str | None) -> None:
    """List the jobs: status, start (UTC), duration and command."""
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
