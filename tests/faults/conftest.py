"""A simulated cluster of several nodes on this machine, and commands that work on it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
from losing import Command
from moto.server import ThreadedMotoServer

STARTUP_SECONDS = 60.0
SILENCE = "10"
"""Seconds for which processes of Ray wait for a silent head."""

NODES = """
import json, sys
import ray._private.services, ray._private.utils
from ray.cluster_utils import Cluster
ray._private.utils.write_ray_address = lambda *_, **__: None  # address=auto is not for this one
# Without what serves a dashboard, which takes most of a node's start, but where metrics are read.
ray._private.services.start_api_server = lambda *_, **__: (None, None)
system = json.loads(sys.argv[1])
cluster, nodes = Cluster(), {}
for line in sys.stdin:
    asked = json.loads(line)
    if "kill" in asked:
        nodes.pop(asked["kill"]).kill_all_processes(
            check_alive=False, allow_graceful=False, wait=True
        )
        told = {}
    else:
        missing = None if "metrics_export_port" in asked else ImportError("no dashboard")
        ray._private.utils.get_dashboard_dependency_error = lambda missing=missing: missing
        head = {} if nodes else {"include_dashboard": False, "_system_config": system}
        node = cluster.add_node(include_log_monitor=False, **asked, **head)  # none is read
        nodes[node.node_id] = node
        raylet = node.all_processes["raylet"][0].process.pid
        told = {"node": node.node_id, "raylet": raylet, "address": cluster.address}
    print("told", json.dumps(told), flush=True)
"""
SYSTEM = {
    # A node that died is noticed after seconds instead of half a minute.
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
    "memory_monitor_refresh_ms": 0,  # what else works on this machine ends no test
    "prestart_worker_first_driver": False,  # each idle process costs a second of a CPU
}


@dataclass(frozen=True)
class Node:
    """One simulated node."""

    name: str
    raylet: int
    """Process id of the one whose children are the node's workers."""

    def processes(self, title: str) -> list[psutil.Process]:
        """Its processes at work whose title holds a text, such as the name of an actor's class."""
        found = []
        for process in psutil.Process(self.raylet).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if title in " ".join(process.cmdline()):
                    found.append(process)
        return found


class Nodes:
    """A running cluster. The first node is its head, which ends with it."""

    def __init__(self, folder: Path, *cpus: int) -> None:
        """Start a node with so many CPUs each; the folder takes Ray's own files."""
        self._folder = folder
        self._server = subprocess.Popen(
            [sys.executable, "-c", NODES, json.dumps(SYSTEM)],
            env={**os.environ, "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "nodes.txt").open("w"),
            text=True,
            start_new_session=True,
        )
        self.nodes: list[Node] = []
        self.address = ""
        for count in cpus:
            self.add(num_cpus=count)

    def add(self, **asked: Any) -> Node:
        """Add a node, with arguments of ``Cluster.add_node``, and wait until it is there."""
        told = self._ask(asked)
        self.address = told["address"]
        self.nodes.append(Node(told["node"], told["raylet"]))
        return self.nodes[-1]

    def kill(self, node: Node) -> None:
        """Kill a node's processes; the cluster notices by itself."""
        self.nodes.remove(node)
        self._ask({"kill": node.name})

    def processes(self, title: str) -> list[psutil.Process]:
        """Processes at work on all nodes, see `Node.processes`."""
        return [process for node in self.nodes for process in node.processes(title)]

    def stop(self) -> None:
        """End all of it; once is enough."""
        if self._server.returncode is not None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self._server.pid)
            everything = own.children(recursive=True)
            for process in [own, *everything]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(everything, timeout=10)
        self._server.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        for line in self._server.stdout:  # Ray prints there, too
            if line.startswith("told "):
                return dict(json.loads(line.removeprefix("told ")))
        pytest.fail(f"the cluster ended: {(self._folder / 'nodes.txt').read_text()[-2000:]}")


@pytest.fixture(scope="session")
def start_cluster(surroundings: None) -> Iterator[Callable[..., Nodes]]:
    """Starts clusters of nodes with so many CPUs each; they end with the session at the latest."""
    started = []

    def start(*cpus: int) -> Nodes:
        # Sockets lie there, whose paths must be short.
        nodes = Nodes(Path(tempfile.mkdtemp(prefix="bf-", dir="/tmp")), *cpus)
        started.append(nodes)
        return nodes

    yield start
    for nodes in started:
        nodes.stop()


@pytest.fixture(scope="module")
def start_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Command]]:
    """Starts ``benchmd`` with these arguments; what is at work after a module's tests is killed."""
    started: list[Command] = []
    logs = tmp_path_factory.mktemp("commands")

    def start(*arguments: Any, **environment: str) -> Command:
        started.append(Command(logs / f"{len(started)}.txt", *arguments, **environment))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def command(start_command: Callable[..., Command]) -> Iterator[Callable[..., Command]]:
    """Starts ``benchmd`` with these arguments; what is still at work after the test is killed."""
    started: list[Command] = []

    def start(*arguments: Any, **environment: str) -> Command:
        started.append(start_command(*arguments, **environment))
        return started[-1]

    yield start
    for each in started:
        each.kill()


class Storage:
    """A server of S3 in this process, which keeps what it has while it is away."""

    def __init__(self) -> None:
        self._port = 0
        self.back()

    def back(self) -> None:
        """Listen, with all that was stored before."""
        self._server = ThreadedMotoServer("127.0.0.1", self._port, verbose=False)
        self._server.start()
        _, self._port = self._server.get_host_and_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def away(self) -> None:
        """Listen no more."""
        self._server.stop()


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    """A server, where the environment says that one is; it has the bucket ``lab``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", SILENCE)
        patch.setenv("RAY_metrics_report_interval_ms", "500")
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        server = Storage()
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        boto3.client("s3").create_bucket(Bucket="lab")
        yield server
        server.away()
