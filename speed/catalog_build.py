r"""``python -m speed.catalog_build --records 600`` from the project's root.

Building a catalog, in raw records a second: `benchmd_ray.data.build.build` (Ray Data, embedded,
as many tasks at once as there are CPUs) against one process that finds and reads the same files
with the same functions and writes the same shards in a loop. The shards of both are compared byte
by byte. The package also writes checksums, counts and statistics into its manifest, the loop does
not.

All repetitions share one embedded Ray, whose start is not timed; ``including_start_up`` gives the
rate of the very first build with Ray's start. The files have been read before, so that neither
waits for a disk. Synthetic PTB-XL by default; real data: ``--raw FOLDER`` (layout of
``--dataset``, policy ``clean``).
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmd_ray.cluster.connection import connected
from benchmd_ray.data.build import CHUNK_BYTES, build
from benchmd_ray.data.cards import DatasetCard, dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.manifest import write_shard
from benchmd_ray.data.raw import Choices, RawItem
from benchmd_ray.data.records import Record, RecordError, RecordExcluded, schema, to_table
from benchmd_ray.files.atomic import sha256
from speed import measure
from speed.sources import raw_ecgs


def readable(card: DatasetCard, raw: Path, items: list[RawItem]) -> Iterator[Record]:
    """Records of some raw files, without those that cannot be read or are excluded."""
    for item in items:
        try:
            yield from DATASETS[card.name].read(raw, item, card).records
        except (RecordError, RecordExcluded):
            continue


def build_in_one_process(dataset: str, raw: Path, out: Path) -> int:
    """Build as a loop does; the number of raw files."""
    card = dataset_card(dataset)
    choices = Choices(options={name: option.default for name, option in card.options.items()})
    discovery = DATASETS[dataset].discover(raw, card, choices)
    rows = card.layouts[discovery.layout].rows_per_record
    size = max(1, CHUNK_BYTES // (rows * schema(card).field("signal").type.byte_width))
    for split in sorted({item.split for item in discovery.items}):
        items = [item for item in discovery.items if item.split == split]
        for number, start in enumerate(range(0, len(items), size)):
            records = list(readable(card, raw, items[start : start + size]))
            if records:
                shard = out / "shards" / f"{split}-{number:05d}.parquet"
                write_shard(to_table(records, split, card), shard, card.signal)
    return len(discovery.items)


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of each shard."""
    return {path.name: sha256(path) for path in sorted((folder / "shards").glob("*"))}


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    declared = {
        "raw": (Path, "raw folder (a synthetic one)"),
        "dataset": ("ptb-xl", "its card"),
        "records": (600, "synthetic records"),
        "cpus": (int, "logical CPUs of Ray, at least (all)"),
    }
    settings = measure.options(__doc__, arguments, declared, warm_up=0)
    if settings.raw is None and settings.dataset != "ptb-xl":
        raise SystemExit("synthetic records are of ptb-xl; name a --raw folder.")
    with tempfile.TemporaryDirectory() as folder:
        compare(settings, Path(folder))


def compare(settings: argparse.Namespace, folder: Path) -> None:
    """Build again and again, each time into a new folder."""
    raw = settings.raw or raw_ecgs(folder, settings.records, settings.seed)
    numbers = itertools.count()

    def ours(out: Path) -> None:
        build(settings.dataset, raw, out, allow_missing=True)

    def loop(out: Path) -> int:
        return build_in_one_process(settings.dataset, raw, out)

    def anew(builder: Callable[[Path], object]) -> None:
        builder(folder / f"catalog-{next(numbers)}")

    settings.records = loop(folder / "peer")  # also reads all files once
    begin = time.perf_counter()
    with connected(cpus=settings.cpus or measure.cpus()):
        started = time.perf_counter()
        ours(folder / "ours")
        first = time.perf_counter()
        if checksums(folder / "ours") != checksums(folder / "peer"):
            raise AssertionError("the shards of both differ")
        measure.compare(
            "catalog_build",
            settings,
            {"build": partial(anew, ours), "one_process": partial(anew, loop)},
            unit="records/s",
            units=settings.records,
            start_up_seconds=measure.rounded(started - begin),
            including_start_up=measure.rounded(settings.records / (first - begin)),
        )


if __name__ == "__main__":
    main()
