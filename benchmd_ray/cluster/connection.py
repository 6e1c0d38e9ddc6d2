"""The only place that starts or joins Ray, and the environment for it."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmd_ray.cluster.head import watched
from benchmd_ray.console.interrupts import deferred
from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import BenchmdError, NoRoom, count_of
from benchmd_ray.extensions.plugins import ALLOWED, NAMED
from benchmd_ray.extensions.private_parts import private_part, replaced
from benchmd_ray.files.atomic import is_disk_full

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # by default a report waits for up to 2 s
    "RAY_DATA_USE_DATASOURCE_V2": "0",  # the V2 reader is slower and loses duplicate paths
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # commands show their own progress
    "RAY_task_oom_retries": "3",  # by default a task that lacks memory is retried forever
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread that calls Ray after its end would start it again
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # it would end commands at SIGTERM (exit code 134)
}
"""Variables set before Ray is imported, and for every worker; an embedded Ray inherits them."""

WITHIN_A_JOB = {"RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
"""Lets a submitted job that has the same variables join Ray."""

NODES = "BENCHMD_NODES"
"""Variable for the nodes that a cluster must have before a command starts, see `asked_nodes`."""

ONE = r"[\w.:/-]+=\d+(?:\.\d+)?"
"""Pattern of a resource and its amount in it."""

NODES_SECONDS = 900.0

EMBEDDED_STORE_BYTES = 512 * 2**20
"""Size of an embedded Ray's object store; shards are written by tasks and do not pass through
it.
"""


CONNECT_SECONDS = 5.0


def _require_listening(address: str) -> None:
    """Fail at once (`OSError`) if nothing listens; Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def _inherited() -> dict[str, str]:
    names = ("BENCHMD_CACHE", ALLOWED, NAMED)
    return {name: os.environ[name] for name in names if name in os.environ}


class _SearchPath(list[str]):
    """The module search path that Ray gives workers, without the working folder.

    That folder may contain modules of others, such as in a store; the driver does not search it
    either.
    """

    def extend(self, folders: Iterable[str]) -> None:
        super().extend(folder for folder in folders if folder != os.path.abspath(os.curdir))


def _job() -> Any:
    from ray.job_config import JobConfig

    job = JobConfig()
    job._py_driver_sys_path = _SearchPath()
    return job


def own_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def connected_already() -> bool:
    """Whether this process is connected to Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def embedded(address: str | None = None) -> bool:
    """Whether `connected` would start a Ray in this process."""
    return not (connected_already() or address or os.environ.get("RAY_ADDRESS"))


def _start(address: str | None, cpus: int) -> None:
    """Join the cluster at ``address``, or start a Ray that no other machine sees."""
    import ray

    common: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "job_config": _job(),
    }
    try:
        if address:
            _require_listening(address)
            environment = {"env_vars": ENVIRONMENT | _inherited()}
            with _own_signals():
                ray.init(address=address, runtime_env=environment, **common)
            return
        with _alone(), _own_signals():
            ray.init(
                address="local",
                num_cpus=max(cpus, own_cpus()),
                include_dashboard=False,
                object_store_memory=EMBEDDED_STORE_BYTES,
                **common,
            )
    except Exception as error:  # Ray raises many kinds of errors, perhaps caused by a system error
        if not address:
            raise BenchmdError(f"cannot start Ray on this machine: {_why(error)}") from error
        raise BenchmdError(
            f"cannot reach Ray at {address}: {error}. Start it with `ray start --head`, set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's values, or omit --address to "
            "run embedded."
        ) from error


def _why(error: Exception) -> str:
    """Why Ray does not start; on a full disk Ray only says that a process did not come up."""
    folder = Path(private_part("ray._common.utils", "get_default_system_temp_dir")())
    if is_disk_full(error, folder):
        return (
            f"no space left in {folder}, where it keeps its own files. Free some space, or set "
            "RAY_TMPDIR to another folder, and run the command again"
        )
    return str(error)


@contextmanager
def _alone() -> Iterator[None]:
    """Context in which Ray starts for this machine only; `ray.init` has no options for it.

    It listens on 127.0.0.1 instead of all interfaces, and starts in a third of the time without the
    autoscaler, the log monitor and the dashboard's server, none of which is used.
    """
    params = private_part("ray._private.parameter", "RayParams")
    lean = partial(params, no_monitor=True, include_log_monitor=False)
    without = ImportError("an embedded Ray has no dashboard")
    with (
        replaced("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False),
        replaced("ray._private.parameter", "RayParams", lean),
        replaced("ray._private.services", "start_api_server", lambda *_, **__: (None, None)),
        replaced("ray._private.utils", "get_dashboard_dependency_error", lambda: without),
    ):
        yield


@contextmanager
def _own_signals() -> Iterator[None]:
    """Let Ray start completely and keep this process's signal handlers; `Stopped` for a signal.

    Ray's own handler of SIGTERM would end the process at once, with another exit code.
    """
    with replaced("ray._private.utils", "set_sigterm_handler", lambda _: None), deferred():
        yield


@contextmanager
def connected(address: str | None = None, *, cpus: int = 1) -> Iterator[None]:
    """Connect to the cluster at ``address``, or start an embedded Ray for the duration.

    Args:
        address: ``auto``, ``host:port`` or ``ray://…`` of a running cluster. None takes
            ``RAY_ADDRESS`` (set in a submitted job), otherwise starts a local Ray in this process.
            An existing connection is reused.
        cpus: Logical CPUs that the work needs at once; a local Ray offers at least this number.

    Raises:
        BenchmdError: The cluster cannot be reached.
        NoRoom: The cluster is too small.
    """
    for name, value in (ENVIRONMENT | WITHIN_A_JOB).items():
        os.environ.setdefault(name, value)
    import ray

    address = address or os.environ.get("RAY_ADDRESS")
    started = not ray.is_initialized()
    try:
        if started:
            _start(address, cpus)
        first = asked_nodes(os.environ.get(NODES, "")) if started and address else []
        with _asked_for(first):
            _require_cpus(cpus)
            joined = started and address and not address.startswith("ray://")
            with watched(ray.get_runtime_context().gcs_address) if joined else nullcontext():
                yield
    finally:
        if started:
            ray.shutdown()


def _require_cpus(cpus: int) -> None:
    import ray

    available = ray.cluster_resources().get("CPU", 0)
    if available < cpus:
        raise NoRoom(
            f"the work needs {count_of(cpus, 'CPU')} at once and the cluster has {available:g}. "
            "Use fewer workers (execution.workers) or a larger cluster; from one that grows on "
            f"demand, request nodes with `benchmd submit --nodes` or {NODES}."
        )


def asked_nodes(text: str) -> list[dict[str, float]]:
    """Resources of each requested node, from a text such as ``8*CPU=16,GPU=1 2*CPU=32``."""
    nodes: list[dict[str, float]] = []
    for group in text.split():
        match = re.fullmatch(rf"(?:([1-9]\d*)\*)?({ONE}(?:,{ONE})*)", group)
        if not match:
            raise BenchmdError(
                f"{group!r} does not describe nodes: expected NUMBER*RESOURCE=AMOUNT,…, such as "
                "'8*CPU=16,GPU=1'."
            )
        parts = [part.partition("=") for part in match[2].split(",")]
        nodes += [{name: float(amount) for name, _, amount in parts}] * int(match[1] or 1)
    return nodes


def ask(bundles: list[dict[str, float]]) -> None:
    """Tell the cluster's autoscaler, if there is one, which resources are needed.

    The autoscaler keeps only the last request of any client. The nodes of `NODES` are the minimum;
    bundles that do not fit on them are requested in addition.
    """
    from ray.autoscaler.sdk import request_resources

    least = asked_nodes(os.environ.get(NODES, ""))
    free, more = [Counter(node) for node in least], []
    for bundle in bundles:
        fitting = (f for f in free if all(f[name] >= much for name, much in bundle.items()))
        if (node := next(fitting, None)) is not None:
            node.subtract(bundle)
        else:
            more.append(bundle)
    request_resources(bundles=[*least, *more])


@contextmanager
def _asked_for(nodes: list[dict[str, float]]) -> Iterator[None]:
    """Request these nodes and wait for them; at the deadline, one of each kind is enough.

    So work that depends on the cluster's size can start on a cluster that had only its head.
    """
    if not nodes:
        yield
        return
    import ray
    from ray.autoscaler.sdk import request_resources

    wanted = sum(map(Counter, nodes), Counter())
    request_resources(bundles=nodes)
    try:
        echo(f"waiting up to {NODES_SECONDS:g} s for the nodes of {NODES}", err=True)
        deadline = time.monotonic() + NODES_SECONDS
        while time.monotonic() < deadline:
            resources = ray.cluster_resources()
            if all(resources.get(name, 0) >= amount for name, amount in wanted.items()):
                break
            time.sleep(1)
        resources = ray.cluster_resources()
        if none := sorted(name for name in wanted if not resources.get(name)):
            raise BenchmdError(
                f"no node with {', '.join(none)} was added within {NODES_SECONDS:g} s: check the "
                "autoscaler (`ray status`), its limits and the cloud's, or request other nodes."
            )
        yield
    finally:
        request_resources(bundles=[])


def free_reserved() -> None:
    """Free the reservations of this program's Ray Train jobs, none of which may be running.

    A job dies with the process that waits for it, but without a dashboard its placement group
    stays, and the next job would wait forever.
    """
    import ray
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    identifier = private_part("ray._raylet", "PlacementGroupID")
    job = ray.get_runtime_context().get_job_id()
    for name, about in ray.util.placement_group_table().items():
        if name.endswith(job) and about["state"] != "REMOVED":  # the end of the name is the program
            remove_placement_group(PlacementGroup(identifier(bytes.fromhex(name))))


def require_shared(folder: Path) -> None:
    """Refuse a folder that not all nodes of the cluster share; a single node always passes."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    probe = folder / f".partial-probe-{uuid.uuid4().hex}"
    probe.touch()
    try:
        look = ray.remote(num_cpus=0, max_retries=0)(_is_file)
        strategies = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
        seen = ray.get(
            [look.options(scheduling_strategy=node).remote(probe) for node in strategies]
        )
    finally:
        probe.unlink(missing_ok=True)
    if not all(seen):
        raise BenchmdError(
            f"{seen.count(False)} of the cluster's {len(nodes)} nodes cannot see {folder}, where "
            "the run's checkpoints are written: name a store that all nodes share under the same "
            "path; with a store in a bucket, set BENCHMD_CACHE to such a folder on every node."
        )


def _is_file(path: Path) -> bool:
    return path.is_file()


def ray_data() -> Any:
    """The module ``ray.data``, configured to keep order, to use the V1 reader and to be quiet."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.use_datasource_v2 = False
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    # With reservation on, tasks of a short job start one by one for the first second.
    context.op_resource_reservation_enabled = False
    return ray.data
