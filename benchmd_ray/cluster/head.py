"""Monitoring of a cluster's head.

If the head is silent for a minute (``RAY_gcs_rpc_server_reconnect_timeout_s``), Ray kills every
connected process. This module ends the process shortly before, with a message.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from benchmd_ray.console.repeating import repeating
from benchmd_ray.console.terminal import echo

VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
PATIENCE = 60.0
"""Ray's default of the variable, in seconds."""
BEFORE = 0.2
"""Fraction of it by which this process ends earlier."""
LOOK_SECONDS = 2.0

_last_words: list[Callable[[str], None]] = []


@contextmanager
def last_words(take: Callable[[str], None]) -> Iterator[None]:
    """Context in which ``take`` gets the reason if this process ends as the head is lost."""
    _last_words.append(take)
    try:
        yield
    finally:
        _last_words.remove(take)


@contextmanager
def watched(address: str) -> Iterator[None]:
    """End this process with a clear message once the head has been silent for too long."""
    patience = float(os.environ.get(VARIABLE) or PATIENCE) * (1 - BEFORE)
    heard, warned = time.monotonic(), False

    def look() -> None:
        nonlocal heard, warned
        if _answers(address):
            heard, warned = time.monotonic(), False
            return
        silent = time.monotonic() - heard
        if silent > patience:
            _end(
                f"the head of the Ray cluster at {address} has not answered for {silent:.0f} s. "
                "Finished work is not lost: start the head again and run the same command, which "
                "resumes where it stopped."
            )
        if not warned:
            warned = True
            echo(
                f"the head of the Ray cluster at {address} does not answer; waiting for it for "
                f"{patience:.0f} s",
                err=True,
            )

    with repeating(look, min(LOOK_SECONDS, patience / 4)):
        yield


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), LOOK_SECONDS).close()
    except OSError:
        return False
    return True


def _end(reason: str) -> None:
    """End this process; its main thread may wait in Ray for an answer that never comes."""
    for take in _last_words:
        with suppress(Exception):
            take(reason)
    echo(f"error: {reason}", err=True)
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(1)
