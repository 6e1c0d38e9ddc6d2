"""Ports of this machine on which tests listen later than they choose them."""

import contextlib
import itertools
import os
import socket

_candidates = itertools.count(20_000 + os.getpid() % 10_000)
"""Neither Ray's workers (10002 to 19999) nor outgoing connections (from 32768) take these."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 where nothing listens, and none twice."""
    found: list[int] = []
    while len(found) < count:
        port = next(_candidates)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    return found
