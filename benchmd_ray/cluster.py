"""The one place that starts Ray or joins a running one, and the environment both need."""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmd_ray.errors import BenchmdError

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # by default a report waits for up to 2 s
    "RAY_DATA_USE_DATASOURCE_V2": "0",  # the V2 reader is slower and loses duplicate paths
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # commands show their own progress
}
"""Set before Ray is imported, and for every worker."""

EMBEDDED_STORE_BYTES = 512 * 2**20
"""Object store of an embedded Ray: shards are written by tasks and do not pass through it."""


CONNECT_SECONDS = 5.0


def _require_listening(address: str) -> None:
    """Fail soon where nothing listens: Ray itself tries for minutes.

    Raises:
        OSError: Nothing listens at host:port.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def _cache() -> dict[str, str]:
    """The cache folder of this process, for workers of a cluster that was started elsewhere."""
    return {name: os.environ[name] for name in ("BENCHMD_CACHE",) if name in os.environ}


def own_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def embedded(address: str | None = None) -> bool:
    """Whether `connected` would start a Ray in this process, as there is none to work on."""
    ray = sys.modules.get("ray")
    running = ray is not None and ray.is_initialized()
    return not (running or address or os.environ.get("RAY_ADDRESS"))


@contextmanager
def connected(address: str | None = None, *, cpus: int = 1) -> Iterator[None]:
    """A Ray to work on: the cluster at ``address``, or an embedded one for the time being.

    Args:
        address: ``auto``, ``host:port`` or ``ray://…`` of a running cluster. None takes
            ``RAY_ADDRESS`` where it is set (so it is in a submitted job) and else starts a local
            Ray in this process. A Ray that is running in this process is used as it is.
        cpus: Logical CPUs that the work needs at once; a local Ray offers at least these.

    Raises:
        BenchmdError: The cluster cannot be reached or is too small.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    address = address or os.environ.get("RAY_ADDRESS")
    started = not ray.is_initialized()
    if started:
        common: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "runtime_env": {"env_vars": ENVIRONMENT | _cache()},
        }
        try:
            if address:
                _require_listening(address)
                ray.init(address=address, **common)
            else:
                ray.init(
                    address="local",
                    num_cpus=max(cpus, own_cpus()),
                    include_dashboard=False,
                    object_store_memory=EMBEDDED_STORE_BYTES,
                    **common,
                )
        except (OSError, RuntimeError, ValueError) as error:
            if not address:
                raise BenchmdError(f"cannot start Ray on this machine: {error}") from error
            raise BenchmdError(
                f"cannot reach Ray at {address}: {error}. Start it with `ray start --head`, set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to what that cluster was started with, or "
                "leave --address out to run embedded."
            ) from error
    try:
        available = ray.cluster_resources().get("CPU", 0)
        if available < cpus:
            raise BenchmdError(
                f"the work needs {cpus} CPUs at once and the cluster has {available:g}. "
                "Take fewer workers (execution.workers) or a larger cluster."
            )
        yield
    finally:
        if started:
            ray.shutdown()


def require_shared(folder: Path) -> None:
    """Refuse to let a cluster work in a folder that not all of its nodes see.

    Raises:
        BenchmdError: A node does not; one alone sees what its driver sees.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    probe = folder / f".partial-probe-{uuid.uuid4().hex}"
    probe.touch()
    try:
        look = ray.remote(num_cpus=0, max_retries=0)(_is_file)
        there = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
        seen = ray.get([look.options(scheduling_strategy=node).remote(probe) for node in there])
    finally:
        probe.unlink(missing_ok=True)
    if not all(seen):
        raise BenchmdError(
            f"{seen.count(False)} of the cluster's {len(nodes)} nodes do not see {folder}, where "
            "the run's checkpoints are written: name a store that all nodes see under the same "
            "path; with a store on S3, set BENCHMD_CACHE to such a folder on every node."
        )


def _is_file(path: Path) -> bool:
    return path.is_file()


def ray_data() -> Any:
    """The module ``ray.data``, set to keep order, to read by the V1 reader and to be quiet."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.use_datasource_v2 = False
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    # With reservation on, tasks of a short job start one by one for the first second.
    context.op_resource_reservation_enabled = False
    return ray.data
