"""Run a submitted command on the image of one case.

The command is not trusted: it has no network where the system allows that, few environment
variables, and limits of time and memory. Its output is stored.
"""

from __future__ import annotations

import math
import os
import re
import resource
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import starmap
from pathlib import Path
from typing import IO

from benchmd_ray.data.apart import end_with_parent
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.files.atomic import replacing

INPUT, OUTPUT = "{input}", "{output}"
KEPT_BYTES = 2**15
"""Of what a command prints: so much of its beginning, and of its end."""
WATCH_SECONDS = 0.02
ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""Variables that a command is given: others may hold keys."""
ALONE = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
WITHOUT_NETWORK = ("unshare", "--map-root-user", "--net", "--")
ISOLATIONS = ((*ALONE, "--", "/bin/sh", "-c", '"$@"; exit $?', "command"), WITHOUT_NETWORK)
"""What runs a command in a network of its own, which has no other members, and where the system
lets it also with process numbers of its own: when the first process ends, all others do."""
GUARD = 'read group; read nothing; kill -s KILL -- "-$group"'
"""For a shell: it reads a process group, and ends that when its standard input ends, as the system
closes that of a worker that is killed."""
SHARED_SECONDS = 0.25
"""Between two looks at how much of their memory several processes share, which takes longer."""
GROWN = 1.1
"""Factor by which they have grown when a look does not wait."""


@dataclass(frozen=True)
class Submission:
    """How a case is predicted."""

    command: str
    """With `INPUT`, the image, and `OUTPUT`, where its labels are to be written: a NIfTI file, or a
    folder that the command makes, with a file for each class."""
    seconds: float = 600.0
    """That a case may take."""
    memory: int = 8 * 2**30
    """Bytes that all its processes may hold."""
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not all(any(mark in part for part in self.words()) for mark in (INPUT, OUTPUT)):
            raise BenchmdError(
                f"--command is {self.command!r}, expected {INPUT} and {OUTPUT} in it, such as "
                f"'docker run --rm --network none … {INPUT} {OUTPUT}'."
            )

    def words(self) -> list[str]:
        """The command's words; no shell reads them."""
        try:
            return shlex.split(self.command)
        except ValueError as error:
            raise BenchmdError(f"--command cannot be split into words: {error}.") from error


@dataclass(frozen=True)
class Ran:
    """How a command ended on a case."""

    seconds: float
    peak: int
    """Bytes that its processes held at once."""
    fault: str = ""
    """Why there is no output to score."""


def predict(submission: Submission, image: Path, output: Path, log: Path) -> Ran:
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="benchmd-") as scratch:
        values = {INPUT: str(image), OUTPUT: str(output)}
        words = [_filled(word, values) for word in submission.words()]
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        start, guard = time.monotonic(), _guard()
        try:
            process = subprocess.Popen(
                [*isolation(), *words],
                cwd=scratch,
                env=environment | {"TMPDIR": scratch},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=partial(_limit, submission.memory),
            )
            _tell(guard, process.pid)
            ran = _watched(process, submission, start, log)
        except OSError as error:
            return Ran(0.0, 0, f"the command cannot be run: {error.strerror}")
        finally:
            guard.kill()  # before its input ends: the number of the group may be used again
            guard.communicate()
    if not ran.fault and not os.path.lexists(output):
        return Ran(ran.seconds, ran.peak, "the command wrote no output")
    return ran


@cache
def isolation() -> tuple[str, ...]:
    """The first of `ISOLATIONS` that the system lets this user have; empty where it lets none."""
    for words in ISOLATIONS:
        with suppress(OSError, subprocess.SubprocessError):
            tried = subprocess.run([*words, "true"], capture_output=True, timeout=10)
            if tried.returncode == 0:
                return words
    return ()


def _filled(word: str, values: dict[str, str]) -> str:
    marks = "|".join(map(re.escape, values))
    return re.sub(marks, lambda mark: values[mark[0]], word)


def _limit(memory: int) -> None:
    """Limits of the command's first process and all that it starts."""
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory if most == resource.RLIM_INFINITY else min(memory, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _watched(
    process: subprocess.Popen[bytes], submission: Submission, start: float, log: Path
) -> Ran:
    assert process.stdout is not None
    assert process.stderr is not None
    printed = [_Kept(process.stdout), _Kept(process.stderr)]
    tree = _Tree(process.pid)
    fault, peak = "", tree.held()
    while process.poll() is None:
        peak = max(peak, tree.held())
        if peak > submission.memory:
            fault = f"it held more than the {submission.memory / 2**30:g} GiB that a case may take"
        elif time.monotonic() - start > submission.seconds:
            fault = f"it took more than the {count_of(submission.seconds, 'second')} of a case"
        if fault:
            break
        time.sleep(WATCH_SECONDS)
    seconds = time.monotonic() - start
    tree.held()
    tree.end()
    process.wait()
    texts = [output.text() for output in printed]
    if not log.parent.is_symlink():  # the command could have put a link there
        with replacing(log) as partial:
            partial.write_text("--- stdout\n{}\n--- stderr\n{}\n".format(*texts), "utf-8")
    if not fault and process.returncode:
        how = _ended(process.returncode)
        last = (texts[1].strip() or texts[0].strip()).rpartition("\n")[2][:200]
        last = "".join(c if c.isprintable() else "�" for c in last)
        fault = f"the command failed ({how}){': ' + last if last else ''}"
    return Ran(seconds, peak, fault)


def _ended(code: int) -> str:
    """How a process ended; shells add 128 to the number of a signal."""
    number = -code if code < 0 else code - 128
    name = ""
    with suppress(ValueError):
        name = signal.Signals(number).name
    if code < 0:
        return name or f"signal {number}"
    return f"exit code {code}{', ' if name else ''}{name}"


def _tell(guard: subprocess.Popen[bytes], group: int) -> None:
    assert guard.stdin is not None
    with suppress(OSError):
        guard.stdin.write(f"{group}\n".encode())
        guard.stdin.flush()


def _guard() -> subprocess.Popen[bytes]:
    """A process that kills the command if its worker dies: nobody else would enforce its limits."""
    return subprocess.Popen(
        ["/bin/sh", "-c", GUARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class _Tree:
    """A process and its descendants, also those that left its session."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._shared, self._resident, self._looked = 0, 0, -math.inf
        self._seen: dict[int, str] = {}
        """When each process began, by its number: numbers are used again."""

    def held(self) -> int:
        """Bytes of memory in use; shared memory counts once."""
        page = os.sysconf("SC_PAGE_SIZE")
        parents = {pid: (parent, begun, pages) for pid, parent, begun, pages in _processes()}
        members = {self._root} | {
            p for p, b in self._seen.items() if p in parents and parents[p][1] == b
        }
        while more := {pid for pid, (parent, *_) in parents.items() if parent in members} - members:
            members |= more
        alive = members & parents.keys()
        self._seen |= {pid: parents[pid][1] for pid in alive}
        resident = {pid: parents[pid][2] * page for pid in alive}
        if len(alive) < 2:
            return sum(resident.values())
        total = sum(resident.values())
        if total > GROWN * self._resident or time.monotonic() - self._looked > SHARED_SECONDS:
            self._shared = sum(starmap(_proportional, resident.items()))
            self._resident, self._looked = total, time.monotonic()
        return self._shared

    def end(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._root, signal.SIGKILL)
        now = {pid: begun for pid, _, begun, _ in _processes()}
        for pid, begun in self._seen.items():
            if now.get(pid) == begun:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, int, str, int]]:
    """PID, parent, start time and resident pages of each process of this machine."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            text = Path("/proc", name, "stat").read_text("ascii", "replace")
            fields = text.rpartition(")")[2].split()
            yield int(name), int(fields[1]), fields[19], int(fields[21])


def _proportional(pid: int, resident: int) -> int:
    """Proportional set size in bytes: n-th of pages that n processes share; else ``resident``."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc", str(pid), "smaps_rollup").read_text("ascii").splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return resident


class _Kept:
    """Output of a pipe, without the middle where it is long."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._first, self._last, self._cut = pipe, b"", b"", 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while part := os.read(self._pipe.fileno(), 2**16):
                room = KEPT_BYTES - len(self._first)
                self._first += part[:room]
                whole = self._last + part[room:]
                self._last = whole[-KEPT_BYTES:]
                self._cut += len(whole) - len(self._last)

    def text(self) -> str:
        """The output so far if an undiscovered process holds the pipe open."""
        self._thread.join(5.0)
        between = f"\n… {self._cut:,} bytes …\n".encode() if self._cut else b""
        return (self._first + between + self._last).decode("utf-8", "replace")
