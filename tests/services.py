"""Servers of the three kinds of object stores on this machine, for tests of one service each.

``@pytest.mark.parametrize("service", SERVICES, indirect=True)`` runs a test with each: S3 in the
quick tier, Google's fake in that of all tests, Azurite at night where it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import azurite
import fake_gcs
import pytest

NO_AZURITE = "Azurite is not installed: npm install -g azurite"
SERVICES = [
    "s3",
    pytest.param("gs", marks=pytest.mark.slow),
    pytest.param(
        "az",
        marks=[
            pytest.mark.nightly,
            pytest.mark.skipif(azurite.program() is None, reason=NO_AZURITE),
        ],
    ),
]


@dataclass
class Service:
    """A bucket that is empty at first, and its server, which keeps what it has while it is away."""

    address: str
    server: Any

    def stop(self) -> None:
        """Listen no more."""
        self.server.stop()

    def start(self) -> None:
        """Listen again."""
        self.server.start()


class FakeGoogle:
    """The fake of Google's server, with the bucket ``benchmd-test``."""

    def __init__(self) -> None:
        self._state = fake_gcs.State()
        self._state.buckets["benchmd-test"] = {}
        self.start()

    def start(self) -> None:
        """Listen."""
        self._server = fake_gcs.Server(port_of("GOOGLE_BASE_URL"), self._state)

    def stop(self) -> None:
        """Listen no more."""
        self._server.stop()


class Azurite:
    """Microsoft's emulator, with the container ``benchmd-test``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.start()
        self._server.make_container("benchmd-test")

    def start(self) -> None:
        """Listen."""
        self._server = azurite.Server(port_of("AZURITE_BLOB_STORAGE_URL"), self._folder)

    def stop(self) -> None:
        """Listen no more."""
        self._server.stop()


def port_of(variable: str) -> int:
    """The port of this machine that a variable names."""
    return int(os.environ[variable].rpartition(":")[2])


@contextmanager
def started(name: str, folder: Path) -> Iterator[Service]:
    """The service ``gs`` or ``az``, where the environment says that it is."""
    server = FakeGoogle() if name == "gs" else Azurite(folder)
    yield Service(f"{name}://benchmd-test", server)
    server.stop()
