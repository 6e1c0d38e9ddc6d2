r"""``python -m speed.feed`` from the project's root.

Batches of normalised signals on the device, in records a second: the package's resident feed
against a PyTorch ``DataLoader`` whose workers open one raw WFDB file per record, pick its leads
and normalise it, with the package's own reader. Both give the same records in the same order; the
first batch is compared. Starting the loader's workers is not timed, and the files have been read
before, so that neither waits for a disk.

By default a small synthetic raw dataset is written to a temporary folder and its catalog built
(on an embedded Ray, not timed). Real data: ``--catalog FOLDER --raw FOLDER``, policy ``clean``.

``--arrays`` only needs PyTorch, NumPy and PyYAML: random int16 signals, one ``.npy`` file per
record behind the ``DataLoader``, against the resident feed over one array of them all,
memory-mapped (on a GPU: resident there).
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmd_ray.data.batches import ResidentFeed, Worker, epoch_order
from benchmd_ray.data.normalise import NORMALISERS
from benchmd_ray.modality.modalities import modality as modality_named
from benchmd_ray.modality.signals import Signal
from speed import measure
from speed.sources import array_feed, ecg_catalog

Batches = Iterator[torch.Tensor]
"""(batch, *input_shape) float32 each."""
DECLARED = {
    "arrays": (False, "random arrays, no raw files"),
    "catalog": (Path, "catalog of ECGs (a synthetic one)"),
    "raw": (Path, "the raw folder it was built from"),
    "records": (256, "at most so many"),
    "batch": (64, "records of a batch"),
    "workers": (2, "of the DataLoader"),
}


class RawRecords(Dataset[torch.Tensor]):
    """One raw file per record, read when it is asked for."""

    def __init__(self, read: Callable[[Any], Any], items: Sequence[Any], signal: Signal):
        """Take how an item becomes a stored signal, and the items in row order."""
        self._read, self._items = read, items
        # not `normaliser`, whose function cannot be sent to the DataLoader's workers
        self._normalise = NORMALISERS[signal.normaliser].function
        self._parameters = signal.normaliser_parameters()

    def __len__(self) -> int:
        """Number of records."""
        return len(self._items)

    def __getitem__(self, row: int) -> torch.Tensor:
        """The normalised signal of a record."""
        stored = torch.from_numpy(np.asarray(self._read(self._items[row])))
        return self._normalise(stored[None], torch.ones(1), {}, self._parameters)[0]


class EpochBatches(Sampler[list[int]]):
    """The rows of each batch of ``epoch``, in the order of the package's feed."""

    def __init__(self, rows: int, batch: int, seed: int) -> None:
        self._rows, self._batch, self._seed, self.epoch = rows, batch, seed, 0

    def __iter__(self) -> Iterator[list[int]]:
        """Rows of each batch."""
        order = epoch_order(self._seed, self.epoch, self._rows).tolist()
        yield from (order[i : i + self._batch] for i in range(0, len(order), self._batch))


class FilesFeed:
    """The peer: a ``DataLoader`` over raw files."""

    def __init__(self, records: RawRecords, options: argparse.Namespace) -> None:
        self._device = options.device
        self._batches = EpochBatches(len(records), options.batch, options.seed)
        self._loader = DataLoader(
            records,
            batch_sampler=self._batches,
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
            pin_memory=options.device == "cuda",
            # the workers must not inherit the threads of this process, Ray's among them
            multiprocessing_context="forkserver" if options.workers else None,
        )

    def epoch(self, epoch: int) -> Batches:
        """Batches of an epoch."""
        self._batches.epoch = epoch
        for batch in self._loader:
            yield batch.to(self._device, non_blocking=True)


def load_stored(path: Path) -> Any:
    """The stored signal of a ``.npy`` file."""
    return np.load(path)


def array_feeds(options: argparse.Namespace, folder: Path) -> tuple[ResidentFeed, FilesFeed]:
    """Ours and the peer on random arrays."""
    modality, rows = modality_named("ecg"), options.records
    signal, generator = modality.signal, np.random.default_rng(options.seed)
    shape = (rows, *signal.stored_shape)
    np.save(folder / "signals.npy", generator.integers(-2000, 2000, shape, np.int16))
    signals = np.load(folder / "signals.npy", mmap_mode="r")
    paths = [folder / f"{row:06d}.npy" for row in range(rows)]
    for row, path in enumerate(paths):
        np.save(path, signals[row])
    targets = np.zeros((rows, len(modality.task.classes)), np.int8)
    worker = Worker(device=torch.device(options.device))
    feed = array_feed(signals, targets, signal, seed=options.seed, worker=worker)
    return feed, FilesFeed(RawRecords(load_stored, paths, signal), options)


def catalog_feeds(options: argparse.Namespace, folder: Path) -> tuple[ResidentFeed, FilesFeed]:
    """Ours and the peer on a catalog and the raw files it was built from."""
    from benchmd_ray.data.catalog import open_catalog  # not needed by --arrays
    from benchmd_ray.data.feed import resident_feed

    os.environ.setdefault("BENCHMD_CACHE", str(folder / "cache"))
    if options.catalog:
        catalog, raw = open_catalog(options.catalog), options.raw
    else:
        catalog, raw = ecg_catalog(folder, options.records), folder / "raw" / "ptb-xl"
    options.records = min(options.records, catalog.rows("train"))
    feed = resident_feed(
        catalog,
        "train",
        seed=options.seed,
        worker=Worker(device=torch.device(options.device)),
        subset=np.arange(options.records),
    )
    items = raw_items(catalog, raw, options.records)
    return feed, FilesFeed(RawRecords(partial(read_ecg, raw), items, catalog.signal), options)


def raw_items(catalog: Any, raw: Path, rows: int) -> list[Any]:
    """The raw items of the first training rows.

    Raises:
        SystemExit: The raw folder lacks one, or a file became several records.
    """
    from benchmd_ray.data.datasets import DATASETS
    from benchmd_ray.data.raw import Choices

    card, choices = catalog.card, Choices(catalog.manifest["policy"])
    items = {i.record_id: i for i in DATASETS[card.name].discover(raw, card, choices).items}
    tables = catalog.tables("train", ["record_id"])
    names = [name for table in tables for name in table["record_id"].to_pylist()][:rows]
    missing = [name for name in names if name not in items]
    if missing:
        raise SystemExit(f"{missing[0]} of the catalog is not a single file of --raw.")
    return [items[name] for name in names]


def read_ecg(raw: Path, item: Any) -> Any:
    """The stored signal of a raw file, (lead, time) int16, as the package reads it."""
    from benchmd_ray.data.datasets.ecg import stored_signal, twelve_leads
    from benchmd_ray.data.readers.wfdb import read_wfdb

    return stored_signal(read_wfdb(raw / item.path, twelve_leads))[0]


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, device=True)
    if bool(options.catalog) != bool(options.raw) or (options.arrays and options.catalog):
        raise SystemExit("--catalog and --raw go together, and without --arrays.")
    with tempfile.TemporaryDirectory() as folder:
        feeds = array_feeds if options.arrays else catalog_feeds
        feed, peer = feeds(options, Path(folder))

        def ours(epoch: int) -> Batches:
            return (batch.signals for batch in feed.epoch(options.batch, epoch))

        torch.testing.assert_close(next(ours(0)), next(peer.epoch(0)), rtol=0, atol=1e-6)
        measure.compare(
            "feed",
            options,
            {"resident_feed": epochs(ours), "dataloader_of_files": epochs(peer.epoch)},
            unit="records/s",
            units=options.records,
            source="arrays" if options.arrays else "catalog" if options.catalog else "synthetic",
        )


def epochs(feed: Callable[[int], Batches]) -> measure.Task:
    """A task: the next epoch of a feed, each time another."""
    numbers = itertools.count()

    def run() -> None:
        for _ in feed(next(numbers)):
            pass

    return run


if __name__ == "__main__":
    main()
