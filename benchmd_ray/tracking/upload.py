"""Upload to Weights & Biases: one W&B run per training run, trial, search and report.

Scores on targets are in the summary of their transfer. A separate process reads the runs' folders,
so a slow or unreachable W&B, or an error there, can neither fail nor delay a run. It sends
settings, metrics, scores of whole splits, versions, CPU or GPU model, the report and, on request,
system load. It never sends predictions, records, reasons of failures, keys, paths, or names of
machines and users.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from benchmd_ray.files.atomic import append_text, digest
from benchmd_ray.runs.files import DONE, RUN, SEARCH, SEARCHES
from benchmd_ray.runs.history import read_metrics, trained_by
from benchmd_ray.runs.predictions import CLASSIFIED
from benchmd_ray.runs.store import read_run
from benchmd_ray.tracking.dashboard import Dashboard
from benchmd_ray.tracking.values import (
    named,
    shown_of_search,
    start_among,
    tell_comparison,
    tell_scores,
    tell_search,
    tell_trial,
    trial_config,
    trials_of,
)
from benchmd_ray.tuning.records import SearchRecord, read_search

FOLDER = "wandb"
"""Folder of a store for W&B's files."""
POLL_SECONDS = 5.0
MOST_OPEN = 32
"""Most W&B runs of transfers that stay open for scores on targets."""
REACH_SECONDS = 30.0
"""Seconds for which the first run waits for W&B; after that all runs are written offline."""
END_SECONDS = 60.0
"""Seconds for which the end of a plan waits for unsent data."""
KEPT = (
    *("kind", "technique", "setting", "modality", "source", "policy", "provenance", "options"),
    *("seed", "fold", "protocol", "device", "settings", "versions", "published"),
)
"""Fields of a run's description that are sent as W&B's configuration."""


@dataclass(frozen=True)
class Followed:
    """An item of a plan for W&B."""

    name: str
    """Unique, readable name; for an evaluation the name of its transfer."""
    modality: str
    technique: str
    dataset: str
    """The scored dataset: the source of a transfer, the target of an evaluation."""
    makes_run: bool = True
    """Whether it makes a run with metrics."""
    more: int = 0
    """Number of evaluations of its run that follow."""
    evaluation: str = CLASSIFIED.evaluation
    """The evaluation whose predictions it makes; empty if none."""


@contextlib.contextmanager
def _without_working_folder() -> Iterator[None]:
    name = "PYTHONSAFEPATH"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class Tracker:
    """Passes events of a plan or a search to the uploading process.

    No method raises or waits, except `closed`, which waits for at most `END_SECONDS`.
    """

    def __init__(
        self, store: Path, dashboard: Dashboard, *, reach_seconds: float = REACH_SECONDS
    ) -> None:
        """Start the upload of the runs in ``store``; W&B's files go to its `FOLDER`."""
        dashboard = dashboard.settled()
        self.mode, self.folder = dashboard.mode, store / FOLDER
        self._before = self._offline()
        spawn = multiprocessing.get_context("spawn")  # without state of Ray or torch
        following = _Following(store.resolve(), dashboard, reach_seconds)
        with _without_working_folder():
            taken, self._given = spawn.Pipe(duplex=False)
            self._process = spawn.Process(
                target=_follow, args=(taken, following, os.getpid()), daemon=True
            )
            self._process.start()
        taken.close()
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A full pipe blocks only this thread.
        threading.Thread(target=self._give, name="wandb messages", daemon=True).start()

    def _give(self) -> None:
        while True:
            try:
                self._given.send(self._messages.get())
            except OSError:  # the process ended before it received all events
                return
            except Exception:  # errors of sending are not reported
                log = logging.getLogger(__name__)
                log.warning("something could not be sent to W&B", exc_info=True)

    def started(self, item: Followed, run: Path | None = None) -> None:
        """An item was started; its metrics are followed if its run's folder is known."""
        self._messages.put(("started", item, run))

    def finished(self, item: Followed, run: Path) -> None:
        self._messages.put(("finished", item, run))

    def failed(self, item: Followed, reason: str) -> None:
        """An item failed for good; the reason is not sent."""
        self._messages.put(("failed", item, reason))

    def reported(self, folder: Path, *, synthetic: bool = False) -> None:
        """Send a report, all files of a folder."""
        self._messages.put(("reported", synthetic, folder.resolve()))

    def trial_ended(self, search: str, about: Mapping[str, Any], trial: Mapping[str, Any]) -> None:
        """An evaluation of a trial ended; ``trial`` is its row of ``trials.parquet``."""
        self._messages.put(("trial_ended", (search, dict(about)), dict(trial)))

    def compared(self, search: str) -> None:
        """The final runs of a search ended: choice and start can be compared."""
        self._messages.put(("compared", search, None))

    def _offline(self) -> set[Path]:
        return set(self.folder.glob("offline-run-*"))

    def closed(self) -> str:
        """Wait for unsent data for at most `END_SECONDS`; returns a line for the user."""
        self._messages.put(("closed", None, None))
        self._process.join(END_SECONDS)
        late = self._process.is_alive()
        if late:
            self._process.kill()
        if late or self._process.exitcode:
            return f"Not everything could be sent to W&B; the written files are in {self.folder}."
        later = f"`wandb sync {self.folder}/offline-run-*` sends them"
        if self.mode == "offline":
            return f"W&B: runs written offline; {later}."
        if self._offline() - self._before:
            return f"W&B was not reachable for all runs: these were written offline; {later}."
        return f"W&B: runs sent, copies in {self.folder}."


def _follow(messages: Any, followed: _Following, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles the interrupt
    with contextlib.suppress(OSError):  # W&B's own messages would break the progress display
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    due = time.monotonic() + POLL_SECONDS
    while os.getppid() == parent:
        if time.monotonic() >= due:  # also where one message comes after the other
            followed.guarded(followed.poll)
            due = time.monotonic() + POLL_SECONDS
        try:
            if not messages.poll(max(0.0, due - time.monotonic())):
                continue
            event, item, content = messages.recv()
        except EOFError:
            break
        if event == "closed":
            break
        followed.guarded(getattr(followed, event), item, content)
    followed.end()


@dataclass
class _Open:
    """An unfinished W&B run."""

    wandb_run: Any
    folder: Path
    """Folder of the run whose metrics are followed."""
    kind: str
    """Kind of its metrics: pretrain or transfer."""
    lines: int = 0
    """Number of lines of its metrics that were sent."""
    more: int = 0
    """Number of evaluations that are still awaited."""
    training: bool = False


@dataclass
class _Search:
    about: Mapping[str, Any]
    trials: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """The reported ones by number."""
    waiting: set[int] = field(default_factory=set)
    """Numbers of those to be sent at the next poll."""
    sent: dict[int, int] = field(default_factory=dict)
    """Number of evaluations of each trial that were sent."""


@dataclass
class _Following:
    store: Path
    dashboard: Dashboard
    reach_seconds: float
    open: dict[str, _Open] = field(default_factory=dict)
    """Open runs by the name of the item that makes the run."""
    announced: dict[str, tuple[Followed, Path]] = field(default_factory=dict)
    """Started items whose run has no description yet, by name."""
    searches: dict[str, _Search] = field(default_factory=dict)

    def guarded(self, action: Callable[..., object], *arguments: Any) -> None:
        """Call a function that uses W&B; errors go to a file."""
        try:
            action(*arguments)
        except Exception as error:
            folder = self.store / FOLDER
            folder.mkdir(parents=True, exist_ok=True)
            append_text(folder / "errors.log", f"{type(error).__name__}: {error}\n")

    def started(self, item: Followed, folder: Path | None) -> None:
        if folder is not None and item.makes_run:
            self.announced[item.name] = item, folder
            self._look()

    def _look(self) -> None:
        for item, folder in list(self.announced.values()):
            if (folder / RUN).is_file():
                del self.announced[item.name]
                self._opened(item, folder)

    def finished(self, item: Followed, folder: Path) -> None:
        """A transfer stays open until its evaluations are done."""
        self.announced.pop(item.name, None)
        trained = item.makes_run or item.name not in self.open
        entry = self._opened(item, folder)
        if item.makes_run:
            self._tell_metrics(entry)
            entry.training, entry.more = False, item.more
        else:
            entry.more -= 1
        try:
            if trained:
                hardware = {"hardware": [str(machine) for machine in trained_by(folder)]}
                entry.wandb_run.config.update(hardware, allow_val_change=True)
            if item.evaluation:
                tell_scores(entry.wandb_run, folder, item.dataset, item.evaluation)
        finally:
            self._close_if_done(item.name)

    def failed(self, item: Followed, _: str) -> None:
        """Mark an item as failed, without the reason, which may name a record, file or machine."""
        self.announced.pop(item.name, None)
        entry = self.open.get(item.name)
        if entry is None:
            return
        what = "" if item.makes_run else f"{named(item.dataset, item.evaluation)}/"
        entry.wandb_run.summary[f"{what}failed"] = True
        if item.makes_run:
            self._tell_metrics(entry)
            del self.open[item.name]
            entry.wandb_run.finish(exit_code=1)
        else:
            entry.more -= 1
            self._close_if_done(item.name)

    def _close_if_done(self, name: str) -> None:
        """Close finished runs, and the oldest if there are too many; they can be opened again."""
        if self.open[name].more <= 0:
            self.open.pop(name).wandb_run.finish()
        waiting = [name for name, entry in self.open.items() if not entry.training]
        for name in waiting[:-MOST_OPEN]:
            self.open.pop(name).wandb_run.finish()

    def reported(self, synthetic: bool, folder: Path) -> None:
        import wandb

        from benchmd_ray.report.page import NAME

        config = {"provenance": "synthetic"} if synthetic else {}
        identity = digest(["report", time.time_ns()])[:16]
        run = self._init(identity, "report", "report", "report", config)
        artifact = wandb.Artifact("report", "report")
        artifact.add_dir(str(folder))
        run.log_artifact(artifact)
        run.log({"report": wandb.Html((folder / NAME).read_text("utf-8"), inject=False)})
        run.finish()

    def trial_ended(self, named: tuple[str, Mapping[str, Any]], trial: Mapping[str, Any]) -> None:
        name, about = named
        search = self.searches.setdefault(name, _Search(about))
        search.trials[int(trial["number"])] = trial
        search.waiting.add(int(trial["number"]))

    def _tell_trials(self, name: str, search: _Search, *, all_sessions: bool = False) -> None:
        """Send trials that are waiting, or all with evaluations that were not sent."""
        trials = trials_of(self.store, name, search.trials.values())
        for trial in trials:
            number, sent = int(trial["number"]), search.sent.get(int(trial["number"]), 0)
            if number in search.waiting or (all_sessions and trial["evaluations"] > sent):
                config = shown_of_search(name, search.about) | trial_config(trial)
                identity = digest(["trial", name, number])[:16]
                run = self._init(identity, f"{name}/{number}", name, "trial", config)
                tell_trial(run, trial, start_among(trials), sent)
                search.sent[number] = int(trial["evaluations"])
                run.finish(exit_code=int(trial["state"] == "failed"))
        search.waiting.clear()

    def _searched(self, name: str, search: _Search) -> None:
        """Send all trials, also of other sessions, and the search with a table of them."""
        self._tell_trials(name, search, all_sessions=True)
        trials = trials_of(self.store, name, search.trials.values())
        run = self._of_search(name, search.about)
        tell_search(run, trials, self._record(name))
        run.finish()

    def _of_search(self, name: str, about: Mapping[str, Any]) -> Any:
        config = shown_of_search(name, about)
        return self._init(digest(["search", name])[:16], name, name, "search", config)

    def _record(self, name: str) -> SearchRecord | None:
        folder = self.store / SEARCHES / name
        return read_search(folder) if (folder / SEARCH).is_file() else None

    def compared(self, name: str, _: None) -> None:
        from benchmd_ray.tracking.comparison import comparison

        record = self._record(name)
        if record is not None and record.is_finished:
            rows, provenance = comparison(self.store, record)
            modalities = ", ".join(source["modality"] for source in record.sources)
            about = {"modality": modalities, "provenance": provenance}
            run = self._of_search(name, about)
            tell_comparison(run, rows)
            run.finish()

    def poll(self) -> None:
        self._look()
        for entry in self.open.values():
            if entry.training:
                self._tell_metrics(entry)
        for name, search in self.searches.items():
            if search.waiting:
                self._tell_trials(name, search)

    def end(self) -> None:
        for entry in self.open.values():  # interrupted trials continue under the same id
            if entry.training:
                self.guarded(self._tell_metrics, entry)
            self.guarded(entry.wandb_run.finish, int(not (entry.folder / DONE).is_file()))
        for name, search in self.searches.items():
            self.guarded(self._searched, name, search)

    def _opened(self, item: Followed, folder: Path) -> _Open:
        if item.name not in self.open:
            run = read_run(folder)
            config = {name: run.description[name] for name in KEPT if name in run.description}
            config["catalog"] = run.description["determinants"]["catalog"]
            config["run"] = run.folder.name
            kind, group = str(run.description["kind"]), f"{item.modality}/{item.technique}"
            entry = self._init(run.digest[:16], item.name, group, kind, config)
            self.open[item.name] = _Open(entry, folder, kind, training=item.makes_run)
        return self.open[item.name]

    def _tell_metrics(self, entry: _Open) -> None:
        lines = read_metrics(entry.folder)
        for line in lines[entry.lines :]:
            metrics = {f"{entry.kind}/{name}": value for name, value in line.items()}
            entry.wandb_run.log(metrics, step=int(line["done"]))
        entry.lines = len(lines)

    def _init(
        self, identity: str, name: str, group: str, kind: str, config: Mapping[str, Any]
    ) -> Any:
        """Start a W&B run; if W&B is unreachable, this and all later runs are written offline."""
        import wandb

        synthetic = ["synthetic"] if config.get("provenance") == "synthetic" else []
        arguments: dict[str, Any] = {
            "project": self.dashboard.project,
            "entity": self.dashboard.entity,
            "tags": [*self.dashboard.tags, *synthetic],
            "id": identity,
            "name": name,
            "group": group,
            "job_type": kind,
            "config": dict(config),
            "dir": str(self.store),
            "resume": "allow",
            "reinit": "create_new",
        }
        if self.dashboard.mode == "online":
            try:
                return wandb.init(**arguments, settings=self._settings("online"))
            except (wandb.errors.Error, OSError):
                self.dashboard = replace(self.dashboard, mode="offline")
                arguments["id"] += "-offline"  # W&B uses the other status for failures
        return wandb.init(**arguments, settings=self._settings("offline"))

    def _settings(self, mode: Literal["online", "offline"]) -> Any:
        """W&B settings that send nothing about machine, user or code."""
        import wandb

        staging = self.store / FOLDER / "staging"
        staging.mkdir(parents=True, exist_ok=True)
        os.environ["WANDB_DATA_DIR"] = os.environ["WANDB_CACHE_DIR"] = str(staging)
        return wandb.Settings(
            mode=mode,
            init_timeout=self.reach_seconds,
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            save_code=False,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=not self.dashboard.system,
            x_save_requirements=False,
            email="",
            host="",
            program="",
            username="",
        )
