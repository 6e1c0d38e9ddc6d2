"""Checks of this machine, with remedies for what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmd_ray._version import __version__
from benchmd_ray.cluster.connection import own_cpus
from benchmd_ray.extensions.extras import EXTRAS, command_for
from benchmd_ray.files.atomic import cache_folder

State = Literal["ok", "note", "missing"]
"""``missing``: nothing works without it; ``note``: something is slower or unavailable."""
NEEDED = ("torch", "ray", "optuna", "pyarrow", "numpy", "pandas", "scipy", "scikit-learn")
PYTHONS = ((3, 11), (3, 14))
"""Supported versions, upper bound excluded."""
MEMORY_GIB, DISK_GIB, SHARED_GIB = 4.0, 5.0, 1.0
"""Free GiB below which failures are likely: of training memory, Ray's temporary files, shared
memory.
"""


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    what: str
    state: State
    found: str
    remedy: str = ""
    """What to do; empty if nothing."""

    @property
    def lines(self) -> list[str]:
        text = f"{self.state:<8} {self.what:<16} {self.found}"
        return [text, f"{'':25} {self.remedy}"] if self.remedy else [text]


def findings() -> Iterator[Finding]:
    """All checks, in the order of display."""
    yield _python()
    yield Finding("benchmd_ray", "ok", __version__)
    yield from map(_needed, NEEDED)
    yield from map(_extra, EXTRAS)
    yield from _devices()
    yield from _rooms()
    yield _cluster()


def _python() -> Finding:
    version = sys.version_info[:2]
    fits = PYTHONS[0] <= version < PYTHONS[1]
    least, most = (f"{major}.{minor}" for major, minor in (PYTHONS[0], (3, PYTHONS[1][1] - 1)))
    remedy = "" if fits else f"install Python {least} to {most} and set up .venv with it"
    return Finding("Python", "ok" if fits else "missing", platform.python_version(), remedy)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _needed(name: str) -> Finding:
    version = _version(name)
    if version is None:
        return Finding(name, "missing", "not installed", f"pip install {name}")
    return Finding(name, "ok", version)


def _extra(name: str) -> Finding:
    """Whether an extra of the installation is complete."""
    versions = {package: _version(package) for package in EXTRAS[name].packages}
    absent = [package for package, version in versions.items() if version is None]
    if absent:
        remedy = f"{EXTRAS[name].use}: {command_for(name)}"
        return Finding(f"extra {name}", "note", f"not installed: {', '.join(absent)}", remedy)
    text = ", ".join(f"{package} {version}" for package, version in versions.items())
    return Finding(f"extra {name}", "ok", text)


def _devices() -> Iterator[Finding]:
    """GPUs, CPUs and compilers."""
    if _version("torch") is None:
        return
    import torch

    from benchmd_ray.cluster.hardware import hardware
    from benchmd_ray.training.forward import can_compile

    for number in range(torch.cuda.device_count()):
        free, whole = torch.cuda.mem_get_info(number)
        model = torch.cuda.get_device_name(number)
        message = f"{model}, {free / 2**30:.0f} of {whole / 2**30:.0f} GiB free"
        yield Finding(f"GPU {number}", "ok", message)
    if not torch.cuda.is_available():
        cuda = torch.version.cuda
        why = f"PyTorch is built for CUDA {cuda}" if cuda else "PyTorch is built for CPUs only"
        remedy = (
            "check the driver with nvidia-smi"
            if cuda
            else "with a GPU: install PyTorch again from its CUDA index"
        )
        yield Finding("GPU", "note", f"none is found; {why}", remedy)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cpu = hardware(torch.device("cpu"))
    yield Finding("CPU", "ok", f"{own_cpus()} of {os.cpu_count()}, {cpu.model}")
    if can_compile(device):
        yield Finding("compiler", "ok", "torch.compile can be used")
    else:
        remedy = "install g++ for compiled steps (execution.step); without it steps are eager"
        yield Finding("compiler", "note", "torch.compile cannot be used", remedy)


def _rooms() -> Iterator[Finding]:
    """Memory and disks."""
    import psutil

    memory = psutil.virtual_memory()
    yield _room(
        "memory", memory.available, memory.total, least=MEMORY_GIB, remedy="end other programs"
    )
    for what, folder, least, remedy in (
        ("working folder", Path.cwd(), DISK_GIB, "make room, or work in another folder"),
        ("cache", cache_folder(), DISK_GIB, "set BENCHMD_CACHE to a larger disk"),
        ("temporary files", Path(os.environ.get("RAY_TMPDIR", "/tmp")), DISK_GIB, "set RAY_TMPDIR"),
        ("shared memory", Path("/dev/shm"), SHARED_GIB, "of a container: --shm-size=2g or more"),
    ):
        place = next((path for path in (folder, *folder.parents) if path.is_dir()), None)
        if place is not None and (place == folder or what != "shared memory"):
            disk = shutil.disk_usage(place)
            where = f" ({folder})"
            yield _room(what, disk.free, disk.total, least=least, remedy=remedy, where=where)


def _room(
    what: str, free: float, whole: float, *, least: float, remedy: str, where: str = ""
) -> Finding:
    message = f"{free / 2**30:.1f} of {whole / 2**30:.1f} GiB free{where}"
    short = free < least * 2**30
    return Finding(what, "note" if short else "ok", message, remedy if short else "")


def _cluster() -> Finding:
    """Whether the Ray cluster that commands would use can be reached; nothing is started."""
    address = os.environ.get("RAY_ADDRESS", "")
    if not address:
        message = "not set (RAY_ADDRESS): commands start Ray on this machine"
        return Finding("Ray cluster", "ok", message)
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return Finding("Ray cluster", "ok", f"RAY_ADDRESS is {address}")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except OSError as error:
        message = f"nothing answers at RAY_ADDRESS={address} ({error})"
        return Finding("Ray cluster", "missing", message, "start it (docs/cluster.md), or unset it")
    return Finding("Ray cluster", "ok", f"something listens at RAY_ADDRESS={address}")
