"""The one place that starts Ray or joins a running one, and the environment both need."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
            "runtime_env": {"env_vars": ENVIRONMENT},
        }
        try:
            if address:
                ray.init(address=address, **common)
            else:
                ray.init(
                    address="local",
                    num_cpus=max(cpus, os.cpu_count() or 1),
                    include_dashboard=False,
                    object_store_memory=EMBEDDED_STORE_BYTES,
                    **common,
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BenchmdError(
                f"cannot reach Ray at {address or 'an embedded address'}: {error}. Start one with "
                "`ray start --head`, or leave --address out to run embedded."
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
