"""Runs followed in Weights & Biases: one W&B run per item of a plan and per trial of a search.

A report and a search have one each, too.

Everything happens in a process apart, which reads the runs' folders: an unreachable W&B, a slow one
or an error there can neither fail nor delay a run. What leaves: settings, metrics, scores of whole
splits, versions, the model of the CPU or GPU, the report. What never leaves: predictions and
records, why something failed, keys, paths, names of machines and of users.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import netrc
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from benchmd_ray.errors import unknown_name
from benchmd_ray.files import append_text, digest
from benchmd_ray.results.store import read_run
from benchmd_ray.results.tracking_values import (
    shown_of_search,
    tell_scores,
    tell_search,
    tell_trial,
    trial_config,
    trials_of,
)
from benchmd_ray.run_files import RUN
from benchmd_ray.sessions import trained_by
from benchmd_ray.training.predictions import CLASSIFIED
from benchmd_ray.training_log import read_metrics

MODES = ("auto", "online", "offline", "off")
"""auto: online where there is a key for W&B, else offline; ``WANDB_MODE`` decides where set."""
PROJECT = "benchmd"
FOLDER = "wandb"
"""Folder of a store where W&B's files lie."""
POLL_SECONDS = 5.0
REACH_SECONDS = 30.0
"""How long the first run waits for W&B; then all are written offline."""
END_SECONDS = 60.0
"""How long the end of a plan waits for what is not sent yet."""
KEPT = tuple(
    "kind technique setting modality source policy options seed protocol device settings "
    "versions".split()
)
"""What of a run's description is W&B's configuration."""


def chosen_mode(mode: str) -> str:
    """``online``, ``offline`` or ``off``.

    Raises:
        BenchmdError: There is no such mode.
    """
    if mode not in MODES:
        raise unknown_name("mode of W&B", mode, MODES)
    if mode != "auto":
        return mode
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("disabled", "off"):
        return "off"
    if mode in ("online", "offline"):
        return mode
    return "online" if os.environ.get("WANDB_API_KEY") or _login() else "offline"


def _login() -> bool:
    """Whether a key was left by ``wandb login``."""
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


@dataclass(frozen=True)
class Followed:
    """An item of a plan, as W&B shows it."""

    name: str
    """Unique and readable."""
    kind: str
    """pretrain, transfer or evaluate."""
    modality: str
    technique: str
    dataset: str
    """What is scored: the source of a transfer, the target of an evaluation."""
    makes_run: bool = True
    """Whether it makes a run of its own, with metrics."""
    evaluation: str = CLASSIFIED.evaluation
    """Whose predictions it ends with; empty where it makes none."""


@contextlib.contextmanager
def _without_working_folder() -> Iterator[None]:
    """Python processes that start within do not look for modules in the working folder."""
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
    """Takes what happens in a plan or a search and hands it to the process that follows.

    No method raises or waits, but `closed`, which waits for `END_SECONDS` at most.
    """

    def __init__(
        self,
        store: Path,
        mode: str,
        project: str = PROJECT,
        *,
        reach_seconds: float = REACH_SECONDS,
    ) -> None:
        """Start following.

        Args:
            store: Folder of the runs; W&B's files go to `FOLDER` in it.
            mode: One of `MODES` but ``off``.
            project: W&B's project.
            reach_seconds: How long the first run waits for W&B before all are written offline.

        Raises:
            BenchmdError: There is no such mode.
        """
        self.mode, self.folder = chosen_mode(mode), store / FOLDER
        self._before = self._offline()
        spawn = multiprocessing.get_context("spawn")  # no state of Ray or torch goes along
        following = _Following(store.resolve(), self.mode, project, reach_seconds)
        with _without_working_folder():
            self._messages = spawn.Queue()
            self._process = spawn.Process(
                target=_follow,
                args=(self._messages, following, os.getpid()),
                daemon=True,
            )
            self._process.start()

    def started(self, item: Followed, run: Path | None = None) -> None:
        """An item was started; its metrics are followed where its run's folder is known."""
        self._messages.put(("started", item, run))

    def finished(self, item: Followed, run: Path) -> None:
        """An item is done."""
        self._messages.put(("finished", item, run))

    def failed(self, item: Followed, reason: str) -> None:
        """An item failed for good; W&B learns that, not why."""
        self._messages.put(("failed", item, reason))

    def reported(self, folder: Path) -> None:
        """A report was written into a folder."""
        self._messages.put(("reported", None, folder.resolve()))

    def trial_ended(self, search: str, about: Mapping[str, Any], trial: Mapping[str, Any]) -> None:
        """A trial of a search ended.

        Args:
            search: Name of the search.
            about: Its technique, setting and modality.
            trial: The trial's row of the search's ``trials.parquet``.
        """
        self._messages.put(("trial_ended", (search, dict(about)), dict(trial)))

    def _offline(self) -> set[Path]:
        """Folders of the runs that are written offline."""
        return set(self.folder.glob("offline-run-*"))

    def closed(self) -> str:
        """Wait for what is not written yet, but not for long.

        Returns:
            What a user should know, in one line.
        """
        self._messages.put(("closed", None, None))
        self._process.join(END_SECONDS)
        late = self._process.is_alive()
        if late:
            self._process.kill()
        self._messages.cancel_join_thread()
        later = f"`wandb sync {self.folder}/offline-run-*` sends them"
        if late or self._process.exitcode:
            return f"Not everything could be sent to W&B; what was written is in {self.folder}."
        if self.mode == "offline":
            return f"W&B: runs written offline; {later}."
        if self._offline() - self._before:
            return f"W&B was not reachable for all runs: these were written offline; {later}."
        return f"W&B: runs sent, copies in {self.folder}."


def _follow(messages: Any, followed: _Following, parent: int) -> None:
    """The process that talks to W&B, until it is told to end or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to end
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
            left = max(0.0, due - time.monotonic())
            event, item, content = messages.get(timeout=left)
        except queue.Empty:
            continue
        if event == "closed":
            break
        followed.guarded(lambda: getattr(followed, event)(item, content))  # noqa: B023
    followed.end()


@dataclass
class _Open:
    """A W&B run that is not finished yet."""

    wandb_run: Any
    folder: Path
    """Of the run whose metrics are followed."""
    lines: int = 0
    """Lines of its metrics that were sent."""


@dataclass
class _Search:
    """A search of which trials ended."""

    about: Mapping[str, Any]
    trials: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass
class _Following:
    """What the process apart knows."""

    store: Path
    mode: str
    project: str
    reach_seconds: float
    open: dict[str, _Open] = field(default_factory=dict)
    """By the item's name."""
    announced: dict[str, tuple[Followed, Path]] = field(default_factory=dict)
    """Items that were started and whose run is not described yet, by name."""
    searches: dict[str, _Search] = field(default_factory=dict)

    def guarded(self, action: Callable[[], object]) -> None:
        """Do something with W&B; whatever goes wrong is written down and nothing else."""
        try:
            action()
        except Exception as error:
            folder = self.store / FOLDER
            folder.mkdir(parents=True, exist_ok=True)
            append_text(folder / "errors.log", f"{type(error).__name__}: {error}\n")

    def started(self, item: Followed, folder: Path | None) -> None:
        if folder is not None and item.makes_run:
            self.announced[item.name] = item, folder
            self._look()

    def _look(self) -> None:
        """Open what was announced and is described by now."""
        for item, folder in list(self.announced.values()):
            if (folder / RUN).is_file():
                del self.announced[item.name]
                self._opened(item, folder)

    def finished(self, item: Followed, folder: Path) -> None:
        self.announced.pop(item.name, None)
        entry = self._opened(item, folder)
        if item.makes_run:
            self._tell_metrics(entry)
        trained = {"hardware": [str(one) for one in trained_by(folder)]}
        entry.wandb_run.config.update(trained, allow_val_change=True)
        if item.evaluation:
            tell_scores(entry.wandb_run, folder, item.dataset, item.evaluation)
        entry.wandb_run.finish()
        del self.open[item.name]

    def failed(self, item: Followed, _: str) -> None:
        """The reason stays here: it may name a record, a file or a machine."""
        self.announced.pop(item.name, None)
        entry = self.open.pop(item.name, None)
        if entry is not None:
            self._tell_metrics(entry)
            entry.wandb_run.summary["failed"] = True
            entry.wandb_run.finish(exit_code=1)

    def reported(self, _: None, folder: Path) -> None:
        import wandb

        run = self._init(digest(["report", time.time_ns()])[:16], "report", "report", "report", {})
        artifact = wandb.Artifact("report", "report")
        files = report_files(folder)
        for path in files:
            artifact.add_file(str(path), path.relative_to(folder).as_posix())
        run.log_artifact(artifact)
        images = [path for path in files if path.suffix == ".png"]
        run.log({f"figures/{path.stem}": wandb.Image(str(path)) for path in images})
        run.finish()

    def trial_ended(self, named: tuple[str, Mapping[str, Any]], trial: Mapping[str, Any]) -> None:
        search, about = named
        held = self.searches.setdefault(search, _Search(about))
        held.trials.append(trial)
        number = int(trial["number"])
        config = shown_of_search(search, about) | trial_config(trial)
        identity = digest(["trial", search, number])[:16]
        run = self._init(identity, f"{search}/{number}", search, "trial", config)
        tell_trial(run, trial)
        run.finish(exit_code=int(trial["state"] == "failed"))

    def _searched(self, search: str) -> None:
        """All trials in one table: those of earlier sessions, too."""
        held = self.searches[search]
        config = shown_of_search(search, held.about)
        run = self._init(digest(["search", search])[:16], search, search, "search", config)
        tell_search(run, trials_of(self.store, search, held.trials))
        run.finish()

    def poll(self) -> None:
        self._look()
        for entry in self.open.values():
            self._tell_metrics(entry)

    def end(self) -> None:
        for entry in self.open.values():  # interrupted: they continue under the same id
            self.guarded(lambda: self._tell_metrics(entry))  # noqa: B023
            self.guarded(lambda: entry.wandb_run.finish(exit_code=1))  # noqa: B023
        for search in self.searches:
            self.guarded(lambda: self._searched(search))  # noqa: B023

    def _opened(self, item: Followed, folder: Path) -> _Open:
        if item.name not in self.open:
            run = read_run(folder)
            config = {name: run.description[name] for name in KEPT if name in run.description}
            config["catalog"] = run.description["determinants"]["catalog"]
            config |= {"run": run.folder.name, "scored": item.dataset}
            identity = digest([item.kind, item.evaluation, item.dataset, run.digest])[:16]
            group = f"{item.modality}/{item.technique}"
            entry = self._init(identity, item.name, group, item.kind, config)
            self.open[item.name] = _Open(entry, folder)
        return self.open[item.name]

    def _tell_metrics(self, entry: _Open) -> None:
        lines = read_metrics(entry.folder)
        for line in lines[entry.lines :]:
            entry.wandb_run.log(dict(line), step=int(line["done"]))
        entry.lines = len(lines)

    def _init(
        self, identity: str, name: str, group: str, kind: str, config: Mapping[str, Any]
    ) -> Any:
        """A W&B run; where W&B is not reachable, this and all that follow are written offline."""
        import wandb

        arguments: dict[str, Any] = {
            "project": self.project,
            "id": identity,
            "name": name,
            "group": group,
            "job_type": kind,
            "config": dict(config),
            "dir": str(self.store),
            "resume": "allow",
            "reinit": "create_new",
        }
        if self.mode == "online":
            try:
                settings = _private(self.store, "online", self.reach_seconds)
                return wandb.init(**arguments, settings=settings)
            except (wandb.errors.Error, OSError):
                self.mode = "offline"
                arguments["id"] += "-offline"  # W&B keeps the other one for what failed
        settings = _private(self.store, "offline", self.reach_seconds)
        return wandb.init(**arguments, settings=settings)


def _private(store: Path, mode: Literal["online", "offline"], reach_seconds: float) -> Any:
    """W&B's settings: nothing about the machine, the user, the program or its code."""
    import wandb

    staging = store / FOLDER / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    os.environ["WANDB_DATA_DIR"] = os.environ["WANDB_CACHE_DIR"] = str(staging)
    return wandb.Settings(
        mode=mode,
        init_timeout=reach_seconds,
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        save_code=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        email="",
        host="",
        program="",
        username="",
    )


def report_files(folder: Path) -> list[Path]:
    """Files of a report in its folder: whatever else lies there, such as runs, is not sent."""
    from benchmd_ray.results.report import page, table_files

    named = [folder / name for name in sorted((page.NAME, *table_files.file_names()))]
    drawn = sorted(p for p in (folder / "figures").glob("*") if p.suffix in (".png", ".svg"))
    return [path for path in (*named, *drawn) if path.is_file()]
