"""Submit commands to a Ray cluster as jobs, follow and stop them."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import benchmd_ray
from benchmd_ray.cluster.connection import ENVIRONMENT, NODES, asked_nodes
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import PACKAGE
from benchmd_ray.extensions.private_parts import private_part
from benchmd_ray.files.atomic import resource_folder, slug
from benchmd_ray.service.job_variables import HOOK, PYTHON, write_variables

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
"""The dashboard of a head on this machine, or the local end of a tunnel to one."""

ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"

STOP_SECONDS = 60
"""Seconds a stopping job may take to write checkpoints before Ray kills it."""

PLAIN = re.compile(r"(PROFILE|REGION|CACHE|MODE|ENDPOINT_URL(_S3)?)$")
"""Variables whose values are not secrets and may be part of a path."""
SHORTEST_SECRET = 8
"""Shortest value treated as a secret: shorter ones occur in commands by chance."""

CLOSING_SECONDS = 15
"""Seconds a job may need to end after its last output."""

TALKATIVE = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
"""Ray's loggers that report every package and connection."""

RESOURCES = ("data_catalog", "search_spaces")
"""Folders that are next to the package in a checkout, and inside it once installed."""


def job_server(address: str | None) -> str:
    """The address of the cluster's job server, its dashboard."""
    address = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    if not re.match(r"https?://[^/]+", address):
        raise BenchmdError(
            f"{address!r} is not an address to submit jobs to: expected the URL of the cluster's "
            f"dashboard, such as {DEFAULT_ADDRESS}."
        )
    return address.rstrip("/")


@contextmanager
def asking(address: str | None, job: str = "") -> Iterator[Any]:
    """A client of the cluster's job server; its failures are raised as errors with a remedy."""
    server = job_server(address)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import aiohttp
    import requests
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield JobSubmissionClient(server)
    except (AuthenticationError, aiohttp.WSServerHandshakeError) as error:
        raise BenchmdError(
            f"the cluster at {server} needs a token and did not accept what it was sent: set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to what the cluster was started with."
        ) from error
    except (ConnectionError, requests.RequestException, aiohttp.ClientError) as error:
        raise BenchmdError(
            f"no job server of a cluster answers at {server} ({error}). Start one with "
            "`ray start --head`, open a tunnel to the head (`ssh -L 8265:127.0.0.1:8265 HEAD`), or "
            f"name its dashboard by --address or {ADDRESS_VARIABLE}."
        ) from error
    except RuntimeError as error:
        if job and re.search(r"status code 404|does not exist", str(error)):
            raise BenchmdError(
                f"the cluster at {server} knows no job {job!r}; `benchmd jobs list` lists them."
            ) from error
        raise BenchmdError(f"the job server at {server} refused: {error}") from error


def submit(
    arguments: Sequence[str],
    *,
    address: str | None = None,
    files: Mapping[str, Path] | None = None,
    variables: Sequence[str] = (),
    nodes: str = "",
    name: str | None = None,
) -> str:
    """Submit a benchmd command to a cluster; returns the id of the job.

    The job includes this package, so the cluster needs only its dependencies.

    Args:
        arguments: The command, without ``benchmd``.
        address: URL of the dashboard.
        files: Files to include, by path in the job's folder.
        variables: Names of variables of this process that are passed to the job; the cluster shows
            only the names.
        nodes: Nodes requested from the cluster, in the format of `cluster.asked_nodes`.
        name: Part of the job's id; None takes the command's.
    """
    ray_constants = private_part("ray._private", "ray_constants")
    values = _values(variables, arguments)
    asked_nodes(nodes)
    title = slug(name or arguments[0]) or "job"
    job = f"benchmd-{title}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"
    with asking(address) as client, tempfile.TemporaryDirectory() as staged:
        _require_same_ray(client)
        _stage(Path(staged), files or {}, values)
        client.submit_job(
            entrypoint=f'exec "${PYTHON}" -P -m benchmd_ray.cli {shlex.join(arguments)}',
            submission_id=job,
            metadata={
                "command": shlex.join(["benchmd", *arguments]),
                "variables": ",".join(values),
                "version": benchmd_ray.__version__,
            },
            runtime_env={
                "working_dir": staged,
                "env_vars": ENVIRONMENT
                | ({NODES: nodes} if nodes else {})
                | {
                    "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
                    # The variable behind `worker_process_setup_hook`; set directly it also applies
                    # to the process that starts the command.
                    ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR: HOOK,
                },
            },
        )
    return job


def _values(variables: Sequence[str], arguments: Sequence[str]) -> dict[str, str]:
    """Values of the variables, which must not occur in the command."""
    if any("=" in name for name in variables):
        raise BenchmdError("--env takes only the name of a variable: set its value here before.")
    missing = [name for name in variables if name not in os.environ]
    if missing:
        raise BenchmdError(
            f"--env {missing[0]}: this variable is not set here. Name a variable to pass to the "
            "job; the value itself is never part of the command."
        )
    values = {name: os.environ[name] for name in variables}
    for name, value in values.items():
        secret = len(value) >= SHORTEST_SECRET and not PLAIN.search(name)
        if secret and any(value in argument for argument in arguments):
            raise BenchmdError(
                f"the value of {name} is in the command, which is visible to everybody with access "
                "to the cluster: remove it there."
            )
    return values


def _require_same_ray(client: Any) -> None:
    import ray

    version = client._do_request("GET", "/api/version").json()["ray_version"]
    if version != ray.__version__:
        raise BenchmdError(
            f"the cluster has Ray {version} and this environment {ray.__version__}: install the "
            "same version on both, the one in requirements.lock."
        )


def _stage(folder: Path, files: Mapping[str, Path], variables: dict[str, str]) -> None:
    """Fill a job's folder: the package with its entry points, files, variables."""
    source = Path(benchmd_ray.__file__).parent
    package = folder / source.name
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, package, ignore=unwanted)
    for name in RESOURCES:
        shutil.copytree(resource_folder(name), package / name, ignore=unwanted, dirs_exist_ok=True)
    metadata = distribution(PACKAGE)
    about = folder / f"{source.name}-{metadata.version}.dist-info"
    about.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (about / name).write_text(metadata.read_text(name) or "", "utf-8")
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    write_variables(folder, variables)


def jobs(address: str | None = None) -> list[Any]:
    """Ray's details of the jobs of a cluster, newest last."""
    with asking(address) as client:
        submitted = [job for job in client.list_jobs() if job.submission_id]
    return sorted(submitted, key=lambda job: job.start_time or 0)


def details(job: str, address: str | None = None) -> Any:
    """Ray's details of one job: status, start and end (ms), metadata, exit code."""
    with asking(address, job) as client:
        return client.get_job_info(job)


def output(job: str, address: str | None = None) -> str:
    """Output of a job so far."""
    with asking(address, job) as client:
        return str(client.get_job_logs(job))


def follow(job: str, say: Callable[[str], None], address: str | None = None) -> int:
    """Pass on a job's output until it ends; returns its exit code, 143 if it was stopped."""

    async def hand_on() -> None:
        async for text in client.tail_job_logs(job):
            say(text)

    import requests

    with asking(address, job) as client:
        client.get_job_info(job)  # for an unknown job the server sends an empty log
        try:
            asyncio.run(hand_on())
            about = ended(client, job, CLOSING_SECONDS)
        except (BenchmdError, RuntimeError, requests.RequestException) as error:
            raise BenchmdError(
                f"the connection to {job_server(address)} closed before job {job} ended. The job "
                f"continues; follow it with `benchmd jobs logs --follow {job}`, after reopening "
                "the tunnel if you use one."
            ) from error
    if about.status == "STOPPED":
        return 143
    return about.driver_exit_code if about.driver_exit_code is not None else 1


def stop(job: str, address: str | None = None) -> Any:
    """Ask a job to stop and wait until it ends; Ray kills it after `STOP_SECONDS`."""
    with asking(address, job) as client:
        client.stop_job(job)
        return ended(client, job)


def ended(client: Any, job: str, seconds: float = STOP_SECONDS + 30) -> Any:
    """Wait for a job that is about to end, and return its details."""
    deadline = time.monotonic() + seconds
    while not (about := client.get_job_info(job)).status.is_terminal():
        if time.monotonic() > deadline:
            raise BenchmdError(
                f"job {job} is still {about.status.lower()} after {seconds:.0f} s; see "
                f"`benchmd jobs logs {job}`."
            )
        time.sleep(0.2)
    return about
