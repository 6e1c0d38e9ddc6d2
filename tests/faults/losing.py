"""What is lost in tests of faults, and what is said of it."""

import contextlib

import psutil
from click.testing import CliRunner
from json_lines import json_lines

from benchmd_ray.cli import main
from benchmd_ray.service.logged import LOG

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
