"""Signals whose exception is lost, and commands that stop of them all the same."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from benchmd_ray.cli.group import Commands
from benchmd_ray.console import interrupts


class Collected:
    """Something whose end is where a signal comes: what its handler raises is ignored there."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def heeding():
    """What is started in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def stopped():
    """The result of a command that does `work` and is to end by a signal."""

    def run(work: Callable[[], None]) -> Result:
        @click.group(cls=Commands)
        def group() -> None:
            pass

        group.command(name="work")(work)
        return CliRunner().invoke(group, ["work"])

    return run


INTERRUPTED = "interrupted: the same command resumes where it stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_stops_though_python_ignored_the_first_interrupt(stopped, number, recwarn):
    def work() -> None:
        it = Collected(number)
        del it
        warnings.warn("what compiled code says of what was cut off", RuntimeWarning, stacklevel=1)
        click.echo("ignored")
        time.sleep(10)

    result = stopped(work)
    assert result.output.splitlines() == ["ignored", INTERRUPTED]
    assert result.exit_code == 128 + number
    assert not recwarn.list


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_stops_though_a_library_took_the_first_interrupts(stopped, number):
    def work() -> None:
        for _ in range(2):
            with contextlib.suppress(BaseException):
                os.kill(os.getpid(), number)
                time.sleep(10)
            click.echo("lost")
        time.sleep(10)

    result = stopped(work)
    assert result.output.splitlines() == ["lost", "lost", INTERRUPTED]
    assert result.exit_code == 128 + number


def test_an_interrupted_command_cleans_up_as_long_as_it_takes(stopped, monkeypatch):
    monkeypatch.setattr(interrupts, "SECONDS_TO_STOP", 0.05)

    @contextlib.contextmanager
    def slow_to_end():
        try:
            yield
        finally:
            time.sleep(0.5)
            click.echo("cleaned up")

    def work() -> None:
        with slow_to_end():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(10)
            except KeyError:
                pass
            finally:
                time.sleep(0.5)
                click.echo("ended")

    result = stopped(work)
    assert result.output.splitlines() == ["ended", "cleaned up", INTERRUPTED]


def test_what_a_cleanup_defers_is_not_reminded_of(stopped, monkeypatch):
    monkeypatch.setattr(interrupts, "SECONDS_TO_STOP", 0.05)

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            with interrupts.deferred():
                time.sleep(0.5)
            click.echo("cleaned up")

    assert stopped(work).output.splitlines() == ["cleaned up", INTERRUPTED]


def test_a_second_signal_interrupts_what_cleans_up(stopped):
    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)

    result = stopped(work)
    assert (result.output.splitlines(), result.exit_code) == ([INTERRUPTED], 128 + signal.SIGINT)


def test_an_ignored_interrupt_stays_ignored(stopped):
    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        click.echo("done")

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    result = stopped(work)
    assert (result.output, result.exit_code) == ("done\n", 0)


def test_a_lost_signal_reaches_whoever_handles_it_for_a_while(stopped, monkeypatch):
    monkeypatch.setattr(interrupts, "SECONDS_TO_STOP", 0.05)
    before = [signal.getsignal(number) for number in interrupts.SIGNALS]

    def work() -> None:
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), signal.SIGTERM)
        with interrupts.stopping() as asked:
            time.sleep(0.3)
        click.echo(f"asked: {asked.number}")
        asked.check()

    result = stopped(work)
    assert result.output.splitlines() == ["asked: 15", INTERRUPTED]
    assert [signal.getsignal(number) for number in interrupts.SIGNALS] == before
