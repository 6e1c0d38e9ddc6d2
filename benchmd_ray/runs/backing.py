"""What a store of runs asks of the place where it is: the one interface of storage.

`runs.places` says which `Backing` a store has. A store in a folder has this one, which
is all that such a store meets: local locks, and files that are where they are. A store on S3 has
`runs.remote.Mirrored`, whose folder here is a mirror of the bucket.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from benchmd_ray.errors import Busy
from benchmd_ray.files.atomic import locked
from benchmd_ray.files.integrity import write_hashed_json
from benchmd_ray.runs.files import DONE, LOCK, MODEL


class RunWork(Protocol):
    """The work of a session on a run."""

    def finish(self, done: dict[str, Any], *, keep_checkpoint: bool) -> None:
        """Write ``done.json``, the content of which is `done`: the run is finished.

        Raises:
            Transient: The bucket of its store cannot be reached, or another machine has taken over.
        """


@dataclass(frozen=True)
class LocalWork:
    """Work on a run of a store in a folder."""

    run: Path

    def finish(self, done: dict[str, Any], *, keep_checkpoint: bool) -> None:
        """Write ``done.json``; a checkpoint stays where it is."""
        write_hashed_json(self.run / DONE, done, of=self.run)


KEEPS_WEIGHTS, PRUNING = ".keeps-weights-", ".pruning.lock"
"""In a store: beginning of the locks of plans and searches at work, and the lock of those who set
one or look for them."""


@dataclass(frozen=True)
class Backing:
    """What is behind a store in a folder: nothing but the folder.

    Runs are named by their folder. On S3, whatever asks the bucket raises `BucketError` where it
    cannot be reached, and `Busy` where another machine is at it.
    """

    store: Path
    on_s3: ClassVar[bool] = False
    """Whether the store is on S3, its folder being this machine's mirror."""

    def refresh(self, run: Path) -> None:
        """Bring what is small of a run up to date."""

    def refresh_store(self) -> dict[Path, str]:
        """Bring what is small of all runs and searches up to date.

        Returns:
            By folder, why some could not be; they are skipped.
        """
        return {}

    def fetch_weights(self, run: Path) -> None:
        """Make sure that the weights of a finished run are in its folder, if the store has them."""

    def with_weights(self) -> set[str]:
        """Names of the runs whose weights the store has."""
        return {path.parent.name for path in self.store.glob(f"*/{MODEL}")}

    @contextmanager
    def working(self, run: Path) -> Iterator[RunWork]:
        """Work on a run, alone.

        Raises:
            Busy: Another process works on it.
        """
        with lock_of_run(run):
            yield LocalWork(run)

    @contextmanager
    def searching(self, search: Path) -> Iterator[Callable[[], None]]:
        """Work on a search, alone.

        Yields:
            Makes sure that nobody else has taken over, and raises `Transient` otherwise.

        Raises:
            Busy: Another process works on it.
            Transient: What it found could not be published at the end.
        """
        with locked(search / LOCK, f"the search {search}"):
            yield lambda: None

    @contextmanager
    def scoring(self, run: Path, dataset: str, evaluation: str) -> Iterator[None]:
        """Write an evaluation's predictions of a finished run for a dataset, alone.

        Raises:
            Busy: Another process is at it.
        """
        with lock_of_scoring(run, dataset, evaluation):
            yield

    def publish_rest(self, run: Path, *, keep_checkpoint: bool) -> None:
        """Publish what this machine has done of a run and could not publish then."""

    @contextmanager
    def unused(self, run: Path) -> Iterator[None]:
        """Hold all local locks of a run, so that nobody works on it or scores with it.

        Raises:
            Busy: Another process holds one.
        """
        with ExitStack() as stack:
            stack.enter_context(lock_of_run(run))
            for path in sorted(run.glob(f"{LOCK}-*")):
                evaluation, _, dataset = path.name.removeprefix(f"{LOCK}-").partition(".")
                stack.enter_context(lock_of_scoring(run, dataset, evaluation))
            yield

    @contextmanager
    def keeping_weights(self) -> Iterator[None]:
        """Have all weights of the store stay, for a plan or a search that may need any of them."""
        mark = self.store / f"{KEEPS_WEIGHTS}{uuid.uuid4().hex}"
        with ExitStack() as stack:
            with self._pruning_gate():
                stack.enter_context(locked(mark, f"the store {self.store}"))
                stack.callback(mark.unlink, missing_ok=True)
            yield

    @contextmanager
    def removing_weights(self, *, of_own: bool) -> Iterator[Callable[[], None]]:
        """Remove weights, while no other plan or search may need them; none begins meanwhile.

        Args:
            of_own: Whether this process is one that keeps them.

        Yields:
            Makes sure that this is still so, and raises `Transient` otherwise.

        Raises:
            Busy: Another plan or search is working in the store, or another process removes some.
        """
        with self._pruning_gate(), self._pruning_alone() as require:
            self.require_unneeded(of_own=of_own)
            yield require

    def require_unneeded(self, *, of_own: bool) -> None:
        """Make sure that no other plan or search may need weights now, see `removing_weights`."""
        if self._keepers() > of_own:
            raise Busy("another plan or search is working in this store.")

    @contextmanager
    def _pruning_alone(self) -> Iterator[Callable[[], None]]:
        """Have other machines know that weights are being removed."""
        yield lambda: None

    def _pruning_gate(self) -> AbstractContextManager[None]:
        return locked(self.store / PRUNING, f"the store {self.store}", wait=True)

    def _keepers(self) -> int:
        """How many plans and searches keep weights; marks of those that were killed are removed."""
        count = 0
        for mark in sorted(self.store.glob(f"{KEEPS_WEIGHTS}*")):
            try:
                with locked(mark, f"the store {self.store}"):
                    mark.unlink(missing_ok=True)
            except Busy:
                count += 1
        return count

    def leftovers(self, run: Path) -> list[Path]:
        """What killed processes left in a run's folder, but for what `files.TEMPORARY` names."""
        return []

    def sizes(self, run: Path, names: Sequence[str]) -> dict[str, int]:
        """Bytes of those of these files and folders of a run that the store has."""
        paths = [run / name for name in names]
        return {path.name: bytes_of(path) for path in paths if path.exists()}

    @contextmanager
    def pruning(self, run: Path, names: Sequence[str]) -> Iterator[None]:
        """Remove files and folders of a finished run, which is `unused`, from behind its folder.

        Those in the folder are removed within by who called, who may add to the run's history.
        """
        yield

    def has_copy_of(self, path: Path) -> bool:
        """Whether a file of a run is a copy of what is stored elsewhere too."""
        return False


def lock_of_run(run: Path) -> AbstractContextManager[None]:
    """The local lock of the work on a run; `Busy` where another process holds it."""
    return locked(run / LOCK, f"the run {run}")


def lock_of_scoring(run: Path, dataset: str, evaluation: str) -> AbstractContextManager[None]:
    """The local lock of scoring a dataset with a run; `Busy` where another process holds it."""
    what = f"the predictions of {run} for {dataset} ({evaluation})"
    return locked(run / f"{LOCK}-{evaluation}.{dataset}", what)


def bytes_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
