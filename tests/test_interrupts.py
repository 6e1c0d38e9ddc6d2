"""Signals that come where no exception can go on."""

from __future__ import annotations

import os
import signal
import time
import warnings

import click
import pytest
from click.testing import CliRunner

from benchmd_ray.cli.group import Commands


class Collected:
    """Something whose end is where a signal comes: what its handler raises is ignored there."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_stops_though_python_ignored_the_first_interrupt(number, recwarn):
    @click.group(cls=Commands)
    def group() -> None:
        pass

    @group.command
    def work() -> None:
        it = Collected(number)
        del it
        warnings.warn("what compiled code says of what was cut off", RuntimeWarning, stacklevel=1)
        click.echo("ignored")
        time.sleep(10)

    result = CliRunner().invoke(group, ["work"])
    assert result.output.splitlines() == [
        "ignored",
        "interrupted: the same command resumes where it stopped",
    ]
    assert result.exit_code == 128 + number
    assert not recwarn.list
