"""Commands at work in tests of faults, what they lose, and what is said of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from json_lines import json_lines

from benchmd_ray.cli import main
from benchmd_ray.service.logged import LOG
from benchmd_ray.storage.bucket import open_bucket

LONG = 240.0
"""Seconds within which a command must end, on a busy machine too."""


def calmly(*arguments):
    """Run a command in this process, on the Ray of all tests, where nothing disturbs it."""
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exit_code == 0, done.output


def logged(store, event, item=""):
    lines = json_lines(store / LOG)
    return [x for x in lines if x["event"] == event and item in x.get("item", "")]


def freeze(cluster, title):
    """Stop the process with that title, once there is one, in the middle of its work."""
    for node in cluster.nodes:
        for process in node.processes(title):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
                return node, process
    return None


def lose(cluster, node):
    """Lose a node with all its processes, also those that are frozen."""
    with contextlib.suppress(psutil.NoSuchProcess):
        own = psutil.Process(node.raylet).children(recursive=True)
    cluster.kill(node)
    for process in own:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


class Command:
    """A ``benchmd`` command at work in a process of its own."""

    program: tuple[str, ...] = (sys.executable, "-m", "benchmd_ray.cli")

    def __init__(self, log: Path, *arguments: Any, **environment: str) -> None:
        self._log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [*self.program, *map(str, arguments)],
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it printed so far, errors too."""
        return self._log.read_text("utf-8")

    def wait(self, timeout: float) -> int:
        """Its exit status."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still at work after {timeout:g} s: {self.output[-3000:]}")

    def until(self, what: str, happened: Callable[[], Any], timeout: float) -> Any:
        """Wait until something happened, which is returned; the command must be at work so long."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if found := happened():
                return found
            if self.process.poll() is not None:
                pytest.fail(
                    f"ended ({self.process.returncode}) before {what}: {self.output[-3000:]}"
                )
            time.sleep(0.02)
        pytest.fail(f"no {what} within {timeout:g} s: {self.output[-3000:]}")

    def kill(self) -> None:
        """End it and what it started at once, as a lost machine would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def evaluated(address):
    """Lines of the journal that note the end of an evaluation."""
    bucket = open_bucket(address)
    journals = [key for key in bucket.objects("searches/") if "/journal/" in key]
    text = "".join(bucket.read(key).data.decode() for key in sorted(journals))
    return text.count('"scored"')
