"""Builds that a signal stops: one exit code, one sentence, nothing left, and they resume."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tiers import by_tier

from benchmd_ray.data.catalog import open_catalog

COMMAND = (sys.executable, "-m", "benchmd_ray.cli", "catalog", "build", "aptos-2019")
MOMENTS = ("lock", "gcs_server", "raylet", "default_worker", "benchmd_ray.data.reading")
"""What there is: the catalog's lock, or a process of Ray or one that reads."""


@pytest.fixture
def raw(synthetic_photos, tmp_path) -> Path:
    """A raw folder with an image that cannot be read before `give`."""
    raw = Path(shutil.copytree(synthetic_photos["aptos-2019"], tmp_path / "raw"))
    first = min((raw / "train_images").iterdir())
    first.rename(tmp_path / "held-back")
    os.mkfifo(first)  # whoever opens it waits
    return raw


def give(raw: Path) -> None:
    """Let the image be read that was held back."""
    first = min((raw / "train_images").iterdir())
    first.unlink()
    (raw.parent / "held-back").rename(first)


def heeding_interrupts() -> None:
    """What runs in the background ignores Ctrl-C, and so does all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(raw: Path, out: Path) -> subprocess.Popen[str]:
    """A build as a process and a group of its own."""
    return subprocess.Popen(
        [*COMMAND, "--raw", str(raw), "--out", str(out), "--allow-missing"],
        env={key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
        start_new_session=True,
        preexec_fn=heeding_interrupts,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(command: subprocess.Popen[str]) -> list[psutil.Process]:
    """All that it started and that are running."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(command.pid).children(recursive=True)
    return []


def until(moment: str, command: subprocess.Popen[str], out: Path) -> None:
    """Wait for a moment of a build."""
    until = time.monotonic() + 120
    while time.monotonic() < until and command.poll() is None:
        if moment == "lock" and (out / ".lock").exists():
            return
        for process in processes_of(command):
            with contextlib.suppress(psutil.Error):
                if moment in " ".join(process.cmdline()):
                    return
        time.sleep(0.02)
    pytest.fail(f"there was no {moment}: {command.communicate()}")


def stopped(command: subprocess.Popen[str], number: signal.Signals, *, group: bool) -> str:
    """What a build says that is stopped by a signal; nothing of it is left running."""
    everything = processes_of(command)
    if group:  # as a terminal does
        os.killpg(command.pid, number)
    else:
        command.send_signal(number)
    until = time.monotonic() + 60
    while command.poll() is None and time.monotonic() < until:
        everything += processes_of(command)
        time.sleep(0.05)
    if command.poll() is None:
        command.kill()
        pytest.fail(f"it still ran a minute after {number.name}: {command.communicate()}")
    assert command.returncode == 128 + number, command.communicate()
    assert psutil.wait_procs(everything, timeout=60)[1] == []
    output, errors = command.communicate(timeout=60)
    assert output == ""
    return errors


@pytest.mark.parametrize(
    "stop",
    by_tier(
        [],
        [(signal.SIGTERM, MOMENTS[-1], 0.0), (signal.SIGINT, "raylet", 0.0)],
        [
            *((signal.SIGTERM, moment, 0.0) for moment in MOMENTS),
            (signal.SIGTERM, "raylet", 1.0),
            (signal.SIGINT, MOMENTS[-1], 0.0),
        ],
    ),
)
def test_a_stopped_build_leaves_nothing_and_resumes(raw, tmp_path, stop, build_once):
    """By a signal at a moment of the build, or some seconds later."""
    (number, moment, later), out = stop, tmp_path / "out"
    command = started(raw, out)
    until(moment, command, out)
    time.sleep(later)
    said = stopped(command, number, group=number == signal.SIGINT)
    assert said.splitlines() == ["interrupted: the same command resumes where it stopped"]
    assert not (out / "manifest.json").exists()
    assert not list(out.rglob(".partial-*"))
    if (moment, number) == (MOMENTS[-1], signal.SIGTERM):
        give(raw)
        again = started(raw, out)
        assert again.wait(120) == 0, again.communicate()
        whole = build_once("aptos-2019", raw, tmp_path / "whole")
        assert open_catalog(out).digest == whole.digest
