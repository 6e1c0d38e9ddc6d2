"""The storage interface of a run store.

`runs.places` chooses the `Backing` of a store: for a folder this one, with only local locks; for an
address `runs.remote.Mirrored`, whose local folder mirrors the bucket.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmd_ray.errors import Busy
from benchmd_ray.files.atomic import locked
from benchmd_ray.files.integrity import write_hashed_json
from benchmd_ray.runs.files import DONE, LOCK, MODEL

Finish = Callable[[dict[str, Any], bool], None]
"""Writes ``done.json`` with this content; the flag keeps the last checkpoint."""
KEEPS_WEIGHTS, PRUNING = ".keeps-weights-", ".pruning.lock"
"""Files of a store: prefix of the locks of running plans and searches, and the lock for setting or
counting them.
"""


@dataclass(frozen=True)
class Backing:
    """A store in a folder.

    Runs are identified by their folder. In a bucket, methods that access the bucket raise
    `BucketError` if it cannot be reached, and `Busy` if another machine is working.
    """

    store: Path
    in_bucket: ClassVar[bool] = False
    """Whether the store is in a bucket, its folder being this machine's mirror."""

    def refresh(self, run: Path) -> None:
        """Bring the small files of a run up to date."""

    def refresh_store(self) -> dict[Path, str]:
        """Bring the small files of all runs and searches up to date; returns notes on failures."""
        return {}

    def fetch_weights(self, run: Path) -> None:
        """Fetch the weights of a finished run into its folder, if the store has them."""

    def with_weights(self) -> set[str]:
        """Names of the runs whose weights the store has."""
        return {path.parent.name for path in self.store.glob(f"*/{MODEL}")}

    @contextmanager
    def working(self, run: Path) -> Iterator[Finish]:
        """Lock a run to work on it; raises `Busy` if another process does.

        Yields the function that ends the work; `Transient` if it cannot be published.
        """
        with lock_of_run(run):
            yield lambda done, _: write_hashed_json(run / DONE, done, of=run)

    @contextmanager
    def searching(self, search: Path) -> Iterator[Callable[[], None]]:
        """Lock a search to work on it; raises `Busy` if another process does.

        The yielded function raises `Transient` if another machine has taken over; leaving the
        context raises it if the results cannot be published.
        """
        with locked(search / LOCK, f"the search {search}"):
            yield lambda: None

    @contextmanager
    def scoring(self, run: Path, dataset: str, evaluation: str) -> Iterator[None]:
        """Lock an evaluation's predictions for a dataset; raises `Busy` if another process does."""
        with lock_of_scoring(run, dataset, evaluation):
            yield

    def publish_rest(self, run: Path, *, keep_checkpoint: bool) -> None:
        """Publish finished work of this machine that could not be published earlier."""

    @contextmanager
    def unused(self, run: Path) -> Iterator[None]:
        """Hold all local locks of a run; raises `Busy` if another process uses it."""
        with ExitStack() as stack:
            stack.enter_context(lock_of_run(run))
            for path in sorted(run.glob(f"{LOCK}-*")):
                evaluation, _, dataset = path.name.removeprefix(f"{LOCK}-").partition(".")
                stack.enter_context(lock_of_scoring(run, dataset, evaluation))
            yield

    @contextmanager
    def keeping_weights(self) -> Iterator[None]:
        """Protect all weights of the store for a plan or a search that may need them."""
        mark = self.store / f"{KEEPS_WEIGHTS}{uuid.uuid4().hex}"
        with ExitStack() as stack:
            with self._pruning_gate():
                stack.enter_context(locked(mark, f"the store {self.store}"))
                stack.callback(mark.unlink, missing_ok=True)
            yield

    @contextmanager
    def removing_weights(self, *, of_own: bool) -> Iterator[Callable[[], None]]:
        """Allow removal of weights while no other plan or search is working; none can start then.

        Yields a function that raises `Transient` if this no longer holds. `Busy` if another plan or
        search is working in the store or a process is removing weights. ``of_own``: whether this
        process itself is keeping weights.
        """
        with self._pruning_gate(), self._pruning_alone() as require:
            self.require_unneeded(of_own=of_own)
            yield require

    def require_unneeded(self, *, of_own: bool) -> None:
        """Raise `Busy` if another plan or search protects weights."""
        if self._keepers() > of_own:
            raise Busy("another plan or search is working in this store.")

    @contextmanager
    def _pruning_alone(self) -> Iterator[Callable[[], None]]:
        """Tell other machines that weights are being removed."""
        yield lambda: None

    def _pruning_gate(self) -> AbstractContextManager[None]:
        return locked(self.store / PRUNING, f"the store {self.store}", wait=True)

    def _keepers(self) -> int:
        """Number of plans and searches that protect weights; locks of killed ones are removed."""
        count = 0
        for mark in sorted(self.store.glob(f"{KEEPS_WEIGHTS}*")):
            try:
                with locked(mark, f"the store {self.store}"):
                    mark.unlink(missing_ok=True)
            except Busy:
                count += 1
        return count

    def sizes(self, run: Path, names: Sequence[str]) -> dict[str, int]:
        """Bytes of the given files and folders of a run, as far as the store has them."""
        paths = [run / name for name in names]
        return {path.name: bytes_of(path) for path in paths if path.exists()}

    @contextmanager
    def pruning(self, run: Path, names: Sequence[str]) -> Iterator[None]:
        """Remove files and folders of a finished, `unused` run from the storage behind its folder.

        Inside the context the caller removes those in the folder, and may append to the run's
        history.
        """
        yield

    def has_copy_of(self, path: Path) -> bool:
        """Whether a file of a run is a copy of one stored elsewhere."""
        return False


def lock_of_run(run: Path) -> AbstractContextManager[None]:
    """Hold the local lock of the work on a run; raises `Busy` if another process does."""
    return locked(run / LOCK, f"the run {run}")


def lock_of_scoring(run: Path, dataset: str, evaluation: str) -> AbstractContextManager[None]:
    """Hold the local lock of scoring a dataset with a run; raises `Busy` if it is taken."""
    what = f"the predictions of {run} for {dataset} ({evaluation})"
    return locked(run / f"{LOCK}-{evaluation}.{dataset}", what)


def bytes_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
