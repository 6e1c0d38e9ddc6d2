"""One Ray cluster for a test run, joined by all its processes.

The first process that needs it starts a supervisor (``python shared_ray.py FOLDER PID``), which
starts Ray and stops it when the test run has ended, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from ports import free_ports

CPUS = max(6, os.cpu_count() or 1)
"""Enough for two test processes that need three at once."""

RUN = "BENCHMD_TEST_RUN"
"""Variable with the process ID of the test run: pytest, or the controller of xdist."""

JOB = "BENCHMD_TEST_JOB"
"""Variable that holds, in Ray's workers, the ID of the test process they work for."""

FOLDER = "BENCHMD_TEST_RAY"
"""Variable with the cluster's temporary folder."""

START_SECONDS = 120.0


def pytest_configure() -> None:
    """Set folder and token of the cluster for all processes of the test run."""
    if RUN in os.environ and psutil.pid_exists(int(os.environ[RUN])):
        return  # this is a worker of xdist
    os.environ[RUN] = str(os.getpid())
    # Paths of the sockets in it must be short.
    os.environ[FOLDER] = str(Path(tempfile.gettempdir()) / f"ray-{secrets.token_hex(4)}")
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)


def address() -> str:
    """``host:port`` of the cluster, which the first caller starts.

    Raises:
        RuntimeError: It does not start.
    """
    folder = Path(os.environ[FOLDER])
    port, log = folder / "port", folder / "log.txt"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        _start(folder)
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and not (folder / "failed").exists():
        if port.is_file():
            return f"127.0.0.1:{port.read_text()}"
        time.sleep(0.05)
    raise RuntimeError(f"Ray does not start: {log.read_text() if log.is_file() else 'no log'}")


def processes() -> Iterator[psutil.Process]:
    """Ray's workers of this test process, and their child processes."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(JOB) == str(os.getpid()):
                yield process


def _start(folder: Path) -> None:
    with (folder / "log.txt").open("w") as log:
        subprocess.Popen(
            [sys.executable, __file__, str(folder), os.environ[RUN]],
            env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def serve(folder: Path, run: int) -> None:
    """Start Ray, write its port to a file, and stop it when the process ``run`` has ended."""
    (port,) = free_ports(1)
    options = ["--head", "--block", "--include-dashboard=false", "--node-ip-address=127.0.0.1"]
    options += [f"--port={port}", f"--num-cpus={CPUS}", f"--temp-dir={folder}"]
    options += ["--object-store-memory=500000000"]
    # Each prestarted worker costs a second of a core, needed or not.
    options += ['--system-config={"prestart_worker_first_driver": false}']
    owner = psutil.Process(run)
    ray = subprocess.Popen([Path(sys.executable).with_name("ray"), "start", *options])
    try:
        while not _listens(port) and ray.poll() is None:
            time.sleep(0.1)
        partial = folder / "port.partial"
        partial.write_text(str(port))
        partial.rename(folder / ("failed" if ray.poll() is not None else "port"))
        while owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.5)
    except psutil.NoSuchProcess:
        pass  # it has ended meanwhile
    finally:
        processes = psutil.Process().children(recursive=True)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=20)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
