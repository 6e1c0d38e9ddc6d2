r"""``python -m speed.feed`` from the project's root.

Batches of normalised signals on the device, in records a second: the package's resident feed
against a PyTorch ``DataLoader`` whose workers open one raw WFDB file per record, pick its leads
and normalise it, with the package's own reader. Both give the same records in the same order; the
first batch is compared. Starting the loader's workers is not timed, and the files have been read
before, so that neither waits for a disk.

By default a small synthetic raw dataset is written to a temporary folder and its catalog built
(on an embedded Ray, not timed). Real data: ``--catalog FOLDER --raw FOLDER``, policy ``clean``.

``--arrays`` needs PyTorch, NumPy and PyYAML alone: random int16 signals, one ``.npy`` file per
record behind the ``DataLoader``, against the resident feed over one array of them all,
memory-mapped (on a GPU: resident there).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmd_ray.data.batches import Columns, ResidentFeed, Worker, epoch_order
from benchmd_ray.data.normalise import NORMALISERS, normaliser
from benchmd_ray.modality.modalities import modality as modality_named
from benchmd_ray.modality.signals import Signal
from speed import measure

Signals = Iterator[torch.Tensor]
"""Batches, (batch, *input_shape) float32."""
Feeds = tuple[Callable[[int], Signals], Callable[[int], Signals], dict[str, float]]
"""Ours and the peer, by epoch, and further figures."""


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
    """The rows of each batch of one epoch, which is set from outside."""

    def __init__(self, rows: int, batch: int, order: Callable[[int], Any]) -> None:
        self._rows, self._batch, self._order = rows, batch, order
        self.epoch = 0

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-self._rows // self._batch)

    def __iter__(self) -> Iterator[list[int]]:
        """Rows of each batch."""
        order = self._order(self.epoch).tolist()
        yield from (order[i : i + self._batch] for i in range(0, len(order), self._batch))


class FilesFeed:
    """The peer: a ``DataLoader`` over raw files."""

    def __init__(
        self,
        records: RawRecords,
        order: Callable[[int], Any],
        arguments: argparse.Namespace,
    ) -> None:
        self._device = arguments.device
        self._batches = EpochBatches(len(records), arguments.batch, order)
        self._loader = DataLoader(
            records,
            batch_sampler=self._batches,
            num_workers=arguments.workers,
            persistent_workers=arguments.workers > 0,
            pin_memory=arguments.device == "cuda",
            # the workers must not inherit the threads of this process, Ray's among them
            multiprocessing_context="forkserver" if arguments.workers else None,
        )

    def epoch(self, epoch: int) -> Signals:
        """Batches of an epoch."""
        self._batches.epoch = epoch
        for batch in self._loader:
            yield batch.to(self._device, non_blocking=True)


def load_stored(path: Path) -> Any:
    """The stored signal of a ``.npy`` file."""
    return np.load(path)


def array_feeds(arguments: argparse.Namespace, folder: Path) -> Feeds:
    """Ours and the peer on random arrays."""
    modality, rows = modality_named("ecg"), arguments.records
    signal = modality.signal
    generator = np.random.default_rng(arguments.seed)
    whole = np.lib.format.open_memmap(
        folder / "signals.npy", "w+", np.int16, (rows, *signal.stored_shape)
    )
    files = [folder / f"{row:06d}.npy" for row in range(rows)]
    for row, path in enumerate(files):
        whole[row] = generator.integers(-2000, 2000, signal.stored_shape, np.int16)
        np.save(path, whole[row])
    whole.flush()
    mapped = np.load(folder / "signals.npy", mmap_mode="r")
    columns = Columns(
        np.zeros((rows, len(modality.task.classes)), np.int8),
        np.full(rows, 0.001, np.float32),
        np.tile(np.array(signal.stored_shape[1:], np.int32), (rows, 1)),
    )
    worker = Worker(device=torch.device(arguments.device))
    normalise = normaliser(signal, None)
    feed = ResidentFeed(mapped, columns, normalise, seed=arguments.seed, worker=worker)
    peer = FilesFeed(
        RawRecords(load_stored, files, signal),
        lambda epoch: epoch_order(arguments.seed, epoch, rows),
        arguments,
    )
    return lambda epoch: (b.signals for b in feed.epoch(arguments.batch, epoch)), peer.epoch, {}


def catalog_feeds(arguments: argparse.Namespace, folder: Path) -> Feeds:
    """Ours and the peer on a catalog and the raw files it was built from."""
    from benchmd_ray.data.build import build  # not needed by --arrays
    from benchmd_ray.data.catalog import open_catalog
    from benchmd_ray.data.feed import resident_feed
    from benchmd_ray.demo import write_ecg

    os.environ.setdefault("BENCHMD_CACHE", str(folder / "cache"))
    if arguments.catalog:
        catalog, raw = open_catalog(arguments.catalog), arguments.raw
    else:
        raw = write_ecg(folder / "raw", source_records=arguments.records, target_records=1)[
            "ptb-xl"
        ]
        catalog = build("ptb-xl", raw, folder / "catalog", allow_missing=True)
    rows = min(arguments.records, catalog.rows("train"))
    feed = resident_feed(
        catalog,
        "train",
        seed=arguments.seed,
        worker=Worker(device=torch.device(arguments.device)),
        subset=np.arange(rows),
    )
    arguments.records = rows
    reader = RawSignals(catalog, raw)
    peer = FilesFeed(
        RawRecords(reader, reader.items(rows), catalog.signal),
        lambda epoch: epoch_order(arguments.seed, epoch, rows),
        arguments,
    )
    share = reader.header_share(reader.items(rows))
    return (
        lambda epoch: (b.signals for b in feed.epoch(arguments.batch, epoch)),
        peer.epoch,
        {"header_share_of_reading": measure.rounded(share)},
    )


class RawSignals:
    """The stored signal of a raw item, by the reader and lead order of the package."""

    def __init__(self, catalog: Any, raw: Path) -> None:
        """Take a catalog and the raw folder it was built from."""
        self._catalog, self._raw = catalog, raw

    def items(self, rows: int) -> list[Any]:
        """The raw items of the first training rows.

        Raises:
            SystemExit: The raw folder lacks one, or a file became several records.
        """
        import pyarrow.parquet as pq

        from benchmd_ray.data.datasets import DATASETS
        from benchmd_ray.data.raw import Choices

        card, policy = self._catalog.card, self._catalog.manifest["policy"]
        found = DATASETS[card.name].discover(self._raw, card, Choices(policy)).items
        by_name = {item.record_id: item for item in found}
        shards = [path for path, *_ in self._catalog.shards("train")]
        names = pq.read_table(shards, columns=["record_id"])["record_id"].to_pylist()[:rows]
        lacking = [name for name in names if name not in by_name]
        if lacking:
            raise SystemExit(f"{lacking[0]} of the catalog is no single file of --raw.")
        return [by_name[name] for name in names]

    def __call__(self, item: Any) -> Any:
        """(lead, time) int16."""
        from benchmd_ray.data.datasets.ecg import stored_signal, twelve_leads
        from benchmd_ray.data.readers.wfdb import read_wfdb

        return stored_signal(read_wfdb(self._raw / item.path, twelve_leads))[0]

    def header_share(self, items: Sequence[Any]) -> float:
        """Share of the time of reading records that their headers take."""
        from benchmd_ray.data.readers.wfdb_header import read_header

        headers = [self._raw / item.path for item in items]
        parsed = measure.seconds_of(lambda: [read_header(header) for header in headers])
        return parsed / measure.seconds_of(lambda: [self(item) for item in items])


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    measure.add_device(options)
    options.add_argument("--arrays", action="store_true", help="random arrays, no raw files")
    options.add_argument("--catalog", type=Path, help="catalog of ECGs (a synthetic one)")
    options.add_argument("--raw", type=Path, help="the raw folder it was built from")
    options.add_argument("--records", type=int, default=256, help="at most so many (256)")
    options.add_argument("--batch", type=int, default=64, help="records of a batch (64)")
    options.add_argument("--workers", type=int, default=2, help="of the DataLoader (2)")
    chosen = measure.parsed(options, arguments)
    if bool(chosen.catalog) != bool(chosen.raw) or (chosen.arrays and chosen.catalog):
        options.error("--catalog and --raw go together, and without --arrays")
    with tempfile.TemporaryDirectory() as folder:
        make = array_feeds if chosen.arrays else catalog_feeds
        ours, peer, more = make(chosen, Path(folder))
        torch.testing.assert_close(next(ours(0)), next(peer(0)), rtol=0, atol=1e-6)
        seconds = measure.alternating(
            {"resident_feed": epochs(ours), "dataloader_of_files": epochs(peer)},
            repetitions=chosen.repetitions,
            warm_up=chosen.warm_up,
            device=chosen.device,
        )
    measure.report(
        "feed",
        chosen,
        seconds,
        units=chosen.records,
        unit="records/s",
        ours="resident_feed",
        peer="dataloader_of_files",
        source="arrays" if chosen.arrays else "catalog" if chosen.catalog else "synthetic",
        **more,
    )


def epochs(feed: Callable[[int], Signals]) -> Callable[[], None]:
    """A task: the next epoch of a feed, each time another."""
    state = {"epoch": 0}

    def run() -> None:
        for _ in feed(state["epoch"]):
            pass
        state["epoch"] += 1

    return run


if __name__ == "__main__":
    main()
