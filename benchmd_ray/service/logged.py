"""The log of a store, ``log.jsonl``: one JSON line for each event of a plan or a search.

Several commands may write it at the same time; each line names its session. With
``BENCHMD_LOG=json`` the lines also go to standard error, instead of progress and messages. For a
store in a bucket it is in the mirror.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmd_ray.cluster.head import last_words
from benchmd_ray.console.terminal import echo, json_text
from benchmd_ray.errors import DiskFull
from benchmd_ray.files.atomic import append, open_regular, without_home
from benchmd_ray.runs.history import now
from benchmd_ray.runs.history import reason as reason_of
from benchmd_ray.service.outcome import Again, Observer
from benchmd_ray.service.plan import Item, Plan

LOG = "log.jsonl"
VARIABLE = "BENCHMD_LOG"
LONGEST = 500
"""Characters after which a text is cut."""


def wants_json() -> bool:
    """Whether log lines are printed instead of progress and messages."""
    return os.environ.get(VARIABLE, "").lower() == "json"


def quieted(quiet: bool, say: Callable[[str], None]) -> tuple[bool, Callable[[str], None]]:
    """Whether progress is hidden, and the function for messages, silent if the log is printed."""
    return (True, lambda line: None) if wants_json() else (quiet, say)


class Log:
    """Appends whole lines to a store's log; if that fails, the work continues."""

    def __init__(self, store: Path) -> None:
        """Create the store's folder if it is missing."""
        store.mkdir(parents=True, exist_ok=True)
        self._path, self.session = store / LOG, uuid.uuid4().hex[:12]
        self._printed, self._broken = wants_json(), False

    def write(self, event: str, level: str = "info", **about: Any) -> None:
        """Write a line without empty values; long texts are cut, the home folder becomes ``~``."""
        stated = {key: _plain(value) for key, value in about.items() if value not in ("", None)}
        content = {"time": now(), "level": level, "event": event, "session": self.session, **stated}
        line = json_text(content)
        for put in (partial(echo, err=True), self._append) if self._printed else (self._append,):
            try:
                put(line)
            except (OSError, DiskFull) as error:
                if not self._broken:
                    logger = logging.getLogger(__name__)
                    logger.warning("%s cannot be written: %s", self._path, error)
                self._broken = True

    def _append(self, line: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        with os.fdopen(open_regular(self._path, flags), "ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                line = f"\n{line}"  # another command was killed while writing a line
            append(file, f"{line}\n".encode(), self._path)


def _plain(value: Any) -> Any:
    if not isinstance(value, str):
        return round(value, 3) if isinstance(value, float) else value
    return without_home(value)[:LONGEST]


class LoggedPlan(Observer):
    """An `Observer` that writes a plan's execution to the store's log, including start and end."""

    def __init__(self, store: Path, plan: Plan) -> None:
        """Nothing is written before the context is entered."""
        self._log, self._plan = Log(store), plan
        self._tries: dict[str, int] = {}
        self._began: dict[str, float] = {}
        self._ended = {"finished": 0, "failed": 0}

    def __enter__(self) -> LoggedPlan:
        self._start = time.monotonic()
        self._log.write("plan started", items=len(self._plan.items))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.ended("" if error is None else reason_of(error))

    def ended(self, reason: str) -> None:
        """Log the end of the plan's execution; a reason means that it ended early."""
        level = "error" if reason else "info"
        seconds = time.monotonic() - self._start
        self._log.write("plan ended", level, **self._ended, seconds=seconds, reason=reason)

    def started(self, item: Item, folder: Path | None) -> None:
        """See `Observer`."""
        self._tries[item.name] = self._tries.get(item.name, 0) + 1
        self._began[item.name] = time.monotonic()
        self._write("started", item, run=_name(folder))

    def finished(self, item: Item, folder: Path, node: str = "") -> None:
        """See `Observer`."""
        self._ended["finished"] += 1
        self._write("finished", item, run=_name(folder), node=node, seconds=self._seconds(item))

    def failed(self, item: Item, reason: str, node: str = "") -> None:
        """See `Observer`."""
        self._ended["failed"] += 1
        about = {"reason": reason, "node": node, "seconds": self._seconds(item)}
        self._write("failed", item, "error", **about)

    def again(self, item: Item, why: Again, reason: str, node: str = "") -> None:
        """See `Observer`."""
        about = {"reason": reason, "node": node, "seconds": self._seconds(item)}
        self._write(why, item, "warning", **about)

    def noted(self, line: str) -> None:
        """See `Observer`."""
        self._log.write("note", "warning", message=line)

    def _seconds(self, item: Item) -> float | None:
        """Seconds since its last start; None for items that this plan did not start."""
        began = self._began.pop(item.name, None)
        return None if began is None else time.monotonic() - began

    def _write(self, event: str, item: Item, level: str = "info", **about: Any) -> None:
        attempt = self._tries.get(item.name)
        self._log.write(f"item {event}", level, item=item.name, attempt=attempt, **about)


def _name(folder: Path | None) -> str:
    return "" if folder is None else folder.name


class LoggedSearch:
    """Writes searches and their trials to the store's log."""

    def __init__(self, store: Path) -> None:
        self._log = Log(store)

    @contextmanager
    def searching(self, search: str) -> Iterator[None]:
        """Log the start and end of a search."""
        self._log.write("search started", search=search)
        try:
            with last_words(lambda reason: self._ended(search, reason)):
                yield
        except BaseException as error:
            self._ended(search, reason_of(error))
            raise
        self._ended(search, "")

    def trial_ended(self, search: str, trial: Mapping[str, Any]) -> None:
        """A trial ended; `row` is as in ``trials.parquet``."""
        state = str(trial["state"])
        about = {name: trial[name] for name in ("step", "seconds", "reason")}
        about |= {"trial": trial["number"], "score": trial["value"]}
        level = "error" if state == "failed" else "info"
        self._log.write(f"trial {state}", level, search=search, **about)

    def trial_lost(self, search: str, trial: int, reason: str) -> None:
        """A trial's process or node was lost; it resumes from its newest checkpoint."""
        self._log.write("trial lost", "warning", search=search, trial=trial, reason=reason)

    def noted(self, line: str) -> None:
        """Something unusual happened, such as a new node."""
        self._log.write("note", "warning", message=line)

    def _ended(self, search: str, reason: str) -> None:
        level = "error" if reason else "info"
        self._log.write("search ended", level, search=search, reason=reason)
