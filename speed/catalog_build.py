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
from collections.abc import Callable
from pathlib import Path

from benchmd_ray.cluster.connection import connected
from benchmd_ray.data.build import CHUNK_BYTES, build
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.manifest import write_shard
from benchmd_ray.data.raw import Choices, RawItem
from benchmd_ray.data.records import Record, RecordError, RecordExcluded, schema, to_table
from benchmd_ray.demo import write_ecg
from benchmd_ray.files.atomic import sha256
from speed import measure


def read(dataset: str, raw: Path, items: list[RawItem]) -> list[Record]:
    """Records of some raw files, without those that cannot be read or are left out."""
    card = dataset_card(dataset)
    records: list[Record] = []
    for item in items:
        try:
            records += DATASETS[dataset].read(raw, item, card).records
        except (RecordError, RecordExcluded):
            continue
    return records


def build_in_one_process(dataset: str, raw: Path, out: Path) -> int:
    """The peer; the number of raw files."""
    card = dataset_card(dataset)
    choices = Choices(options={name: option.default for name, option in card.options.items()})
    discovery = DATASETS[dataset].discover(raw, card, choices)
    found, rows = discovery.items, card.layouts[discovery.layout].rows_per_record
    size = max(1, CHUNK_BYTES // (rows * schema(card).field("signal").type.byte_width))
    for split in sorted({item.split for item in found}):
        items = [item for item in found if item.split == split]
        for number, start in enumerate(range(0, len(items), size)):
            records = read(dataset, raw, items[start : start + size])
            if records:
                shard = out / "shards" / f"{split}-{number:05d}.parquet"
                write_shard(to_table(records, split, card), shard, card.signal)
    return len(found)


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of each shard."""
    return {path.name: sha256(path) for path in sorted((folder / "shards").glob("*"))}


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    options.add_argument("--raw", type=Path, help="raw folder (a synthetic one)")
    options.add_argument("--dataset", default="ptb-xl", help="its card (ptb-xl)")
    options.add_argument("--records", type=int, default=600, help="synthetic records (600)")
    options.add_argument("--cpus", type=int, help="logical CPUs of Ray, at least (all)")
    options.set_defaults(warm_up=0)  # the comparison of the shards runs both
    chosen = measure.parsed(options, arguments)
    with tempfile.TemporaryDirectory() as folder:
        raw = chosen.raw
        if raw is None:
            if chosen.dataset != "ptb-xl":
                options.error("synthetic records are of ptb-xl; name a --raw folder")
            raw = write_ecg(
                Path(folder, "raw"),
                source_records=chosen.records,
                target_records=1,
                seed=chosen.seed,
            )["ptb-xl"]
        compare(chosen, raw, Path(folder))


def compare(arguments: argparse.Namespace, raw: Path, folder: Path) -> None:
    """Build again and again, each time into a new folder."""
    dataset = arguments.dataset
    numbers = itertools.count()

    def new(make: Callable[[Path], object]) -> Callable[[], None]:
        def run() -> None:
            make(folder / f"catalog-{next(numbers)}")

        return run

    def ours(out: Path) -> None:
        build(dataset, raw, out, allow_missing=True)

    records = build_in_one_process(dataset, raw, folder / "peer")  # also reads all files once
    begin = time.perf_counter()
    with connected(cpus=arguments.cpus or measure.cpus()):
        started = time.perf_counter()
        ours(folder / "ours")
        first = time.perf_counter()
        if checksums(folder / "ours") != checksums(folder / "peer"):
            raise AssertionError("the shards of both differ")
        seconds = measure.alternating(
            {
                "build": new(ours),
                "one_process": new(lambda out: build_in_one_process(dataset, raw, out)),
            },
            repetitions=arguments.repetitions,
            warm_up=arguments.warm_up,
        )
    if arguments.raw:
        arguments.records = records
    measure.report(
        "catalog_build",
        arguments,
        seconds,
        units=records,
        unit="records/s",
        ours="build",
        peer="one_process",
        start_up_seconds=measure.rounded(started - begin),
        including_start_up=measure.rounded(records / (first - begin)),
    )


if __name__ == "__main__":
    main()
