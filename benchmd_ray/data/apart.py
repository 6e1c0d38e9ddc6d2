"""Calls in a separate process, so that a damaged file costs one call only.

Files that nobody vouches for are read by C and C++ libraries, which may crash, loop or fill the
memory. The process serves one call after the other while its owner lives; if it dies, the owner
learns at which part of the call. The module that it runs ends with a call of `serve`.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import math
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

CPU_SECONDS = 300.0
"""Processor time that a part of a call may take; a file takes up to 20 s."""
SILENT_SECONDS = 1800.0
"""A part that takes longer without so much processor time waits for a disk or a mount."""
MEMORY = 8 * 2**30
"""Bytes that the process may hold; by the readers' own bounds a file needs less than 6 GiB."""
NO_MEMORY, LITTLE_MEMORY = 86, 87
"""Exit codes where memory was not enough: all of `MEMORY`, or less, as this account is limited."""
NOWHERE = -1
"""Place of a process that has begun no part."""
ENDING_SECONDS = 10.0
"""For which an end is awaited after the last word."""
Answer = Callable[[dict[str, Any]], tuple[dict[str, Any], bytes | memoryview]]
"""What serves a call: from a request of plain values to an answer of plain values, and data."""


class Died(Exception):
    """The process ended, or had to be ended, within a call."""

    def __init__(self, place: int, how: str, *, outside: bool) -> None:
        """Say at which part of the call (`NOWHERE` before the first) it died, and how it did.

        ``how`` follows "it": ``crashed …``. ``outside``: the part is not to blame, as the process
        could not start or was killed, such as by the system for lack of memory.
        """
        super().__init__(how)
        self.place, self.how, self.outside = place, how, outside


class Apart:
    """The process as its owner sees it; started by the first call and after a death."""

    def __init__(self, module: str) -> None:
        """Name the module of this package that is run."""
        self.command = (sys.executable, "-P", "-m", module)  # -P: not from the working folder
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def call(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytearray]:
        """The answer to a request, and its data.

        Raises:
            Died: The process ended; the next call starts a new one.
        """
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        os.pwrite(self._place.fileno(), _PLACE.pack(NOWHERE), 0)
        try:
            _send(process.stdin, request, b"")
            self._await(process)
            return _receive(process.stdout)
        except (EOFError, OSError):
            raise self._death(process) from None
        except BaseException:  # also an interrupt: half an answer must not stay behind
            self.close()
            raise

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
            self._place.close()
            self._printed.close()
            atexit.unregister(self.close)
        self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        """The running process, or a new one where it has ended or is a forked parent's."""
        if self._process and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self.close()
        self._owner = os.getpid()
        self._place, self._printed = tempfile.TemporaryFile(), tempfile.TemporaryFile("a+b")
        self._process = subprocess.Popen(
            [*self.command, str(self._owner), str(self._place.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            pass_fds=[self._place.fileno()],
            start_new_session=True,  # an interrupt is for its owner, who then ends it
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        atexit.register(self.close)
        return self._process

    def _at(self) -> int:
        return int(_PLACE.unpack(os.pread(self._place.fileno(), _PLACE.size, 0))[0])

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until it answers or ends; raises `Died` after `SILENT_SECONDS` at one part."""
        place, answers = NOWHERE, process.stdout
        while not select.select([answers], [], [], SILENT_SECONDS)[0]:  # type: ignore[type-var]
            if self._at() == place:
                self.close()
                how = f"was not read within {SILENT_SECONDS:,.0f} s, in which the process waited"
                raise Died(place, how, outside=True)
            place = self._at()

    def _death(self, process: subprocess.Popen[bytes]) -> Died:
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)
        place = self._at()
        self._printed.seek(0)
        printed = self._printed.read()[-1000:].decode("utf-8", "replace").strip().splitlines()
        self.close()
        how, outside = _how(process.returncode)
        if place == NOWHERE:
            last = f", the last words: {printed[-1]}" if printed else ""
            how = f"was not begun: the process for it ended with {process.returncode}{last}"
        return Died(place, how, outside=outside or place == NOWHERE)


def _how(code: int) -> tuple[str, bool]:
    """How a process ended, and whether that says nothing about the part it was at."""
    if code == NO_MEMORY:
        return f"took more than the {MEMORY / 2**30:g} GiB of memory that a file may take", False
    if code == LITTLE_MEMORY:
        return "took more memory than this account may use (ulimit -d)", True
    if code == -signal.SIGXCPU:
        return f"took more than {CPU_SECONDS:g} s of processor time", False
    if code >= 0:
        return f"ended the process that read it (exit code {code})", False
    name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
    if name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
        return f"was being read when the process was ended from outside ({name})", True
    return f"crashed the process that read it ({name})", False


# --- within the process -----------------------------------------------------------------------

_PLACE = struct.Struct("=q")
_LIBRARY = ctypes.CDLL(None)
_place_file: int | None = None
"""Where the process notes its place; None in any other process."""


def begin(place: int) -> None:
    """Begin a part of a call, which has `CPU_SECONDS`; no effect outside of `serve`."""
    if _place_file is None:
        return
    os.pwrite(_place_file, _PLACE.pack(place), 0)
    os.ftruncate(2, 0)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    until = math.ceil(time.process_time() + CPU_SECONDS)
    resource.setrlimit(
        resource.RLIMIT_CPU, (until if most == resource.RLIM_INFINITY else min(until, most), most)
    )


def serve(answer: Answer) -> None:
    """Answer requests from standard input on standard output, until the input ends."""
    global _place_file
    owner, _place_file = map(int, sys.argv[1:])
    end_with_parent()
    if os.getppid() != owner:  # it ended before
        sys.exit()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # which would hold what was read
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limited = 0 <= most < MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most if limited else MEMORY, most))
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # libraries may print there
    while True:
        try:
            request, _ = _receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            _send(answers, *answer(request))
        except MemoryError:
            os._exit(LITTLE_MEMORY if limited else NO_MEMORY)


def end_with_parent() -> None:
    """Let the system end this process with the thread that started it, where it can."""
    if sys.platform == "linux":
        _LIBRARY.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def _send(file: IO[bytes], head: dict[str, Any], data: bytes | memoryview) -> None:
    """Write a message: the lengths of both parts, a head in JSON, data."""
    text = json.dumps(head).encode()
    file.write(struct.pack(">QQ", len(text), len(data)) + text)
    file.write(data)
    file.flush()


def _receive(file: IO[bytes]) -> tuple[dict[str, Any], bytearray]:
    """Read a message; raises `EOFError` where it is not complete."""
    head, data = (bytearray(n) for n in struct.unpack(">QQ", _filled(file, bytearray(16))))
    return json.loads(_filled(file, head)), _filled(file, data)


def _filled(file: IO[bytes], buffer: bytearray) -> bytearray:
    if file.readinto(buffer) != len(buffer):  # type: ignore[attr-defined]
        raise EOFError
    return buffer
