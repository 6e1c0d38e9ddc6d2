"""Servers of the three kinds of object stores on this machine, for tests of one service each.

``@pytest.mark.parametrize("service", SERVICES, indirect=True)`` runs a test with each: S3 in the
quick tier, Google's fake in that of all tests, Azurite at night where it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import azurite
import fake_gcs
import pytest
from ports import free_ports

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
        (self.port,) = free_ports(1)
        self._state = fake_gcs.State()
        self._state.buckets["benchmd-test"] = {}
        self.start()

    def start(self) -> None:
        """Listen."""
        self._server = fake_gcs.Server(self.port, self._state)

    def stop(self) -> None:
        """Listen no more."""
        self._server.stop()


class Azurite:
    """Microsoft's emulator, with the container ``benchmd-test``."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self._folder = folder
        self.start()
        self._server.make_container("benchmd-test")

    def start(self) -> None:
        """Listen."""
        self._server = azurite.Server(self.port, self._folder)

    def stop(self) -> None:
        """Listen no more."""
        self._server.stop()


@contextmanager
def started(name: str, folder: Path) -> Iterator[Service]:
    """The service ``gs`` or ``az``, where the environment then says that it is."""
    with pytest.MonkeyPatch.context() as patch:
        server: FakeGoogle | Azurite
        if name == "gs":
            server = FakeGoogle()
            patch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{server.port}")
            patch.setenv("GOOGLE_BEARER_TOKEN", "token")
        else:
            server = Azurite(folder)
            patch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
            patch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{server.port}")
        yield Service(f"{name}://benchmd-test", server)
        server.stop()
