r"""``python -m studies.build_scale --modality cxr`` from the project's root.

Memory and throughput of `benchmd_ray.data.build.build` while the number of records grows: the
synthetic source of a modality in 1, 4 and 16 times ``--records``, each built in a process of its
own with an embedded Ray, on one CPU and on two. The smallest size fills a shard for each CPU.

``peak_mib`` is the largest sum of the proportional set sizes of that process, Ray's daemons and its
workers, looked at once a second by this one, which is not bound to the CPUs of the build;
``over_idle_mib`` is what lies above the same sum just before the build. ``ratio`` is the throughput
at the largest size over that at the smallest, on the first of ``--cpus``; ``memory_ratio`` and
``over_idle_ratio`` the same for the two figures of memory: near 1 where the memory of a stream
stays flat.

Raw megabytes are those of all files of the raw folder. They have been read before, so that no
build waits for a disk; the rates are those of decoding, transforming and writing. Ray's start is
not timed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmd_ray.benchmarks.benchmd.published import sources as paper_sources
from benchmd_ray.cluster.connection import connected, ray_data
from benchmd_ray.data.build import CHUNK_BYTES, build
from benchmd_ray.data.cards import cards
from benchmd_ray.data.records import schema
from benchmd_ray.demo import WRITERS
from speed import measure

SAMPLE_SECONDS = 1.0
DECLARED = {
    "modality": ("ecg", "whose source is built", sorted(WRITERS)),
    "records": (int, "raw records of the smallest size (a shard for each CPU)"),
    "cpus": ([1, 2], "CPUs of Ray"),
    "factors": ([1, 4, 16], "sizes"),
    "one": (str, "build this dataset once, from --raw to --into (used by the command itself)"),
    "raw": (Path, "raw folder of --one"),
    "into": (Path, "catalog of --one"),
}
TRAINING_SHARE = 0.7
"""Of a synthetic source at least so many records are of the training split."""


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, repeats=False)
    if options.one:
        figures = one_build(options.one, options.raw, options.into, cpus=options.cpus[0])
        json.dump(figures, sys.stdout)
        return
    options.records = options.records or shard_records(options.modality, max(options.cpus))
    with tempfile.TemporaryDirectory() as folder:
        builds = list(all_builds(options, Path(folder)))
    compared = [build for build in builds if build["cpus"] == options.cpus[0]]
    first, last = compared[0], compared[-1]
    ratios = {
        "ratio": last["rows_per_second"] / first["rows_per_second"],
        "memory_ratio": last["peak_mib"] / first["peak_mib"],
        "over_idle_ratio": last["over_idle_mib"] / max(1, first["over_idle_mib"]),
    }
    measure.print_result("build_scale", options, builds=builds, **measure.rounded_all(ratios))


def shard_records(modality: str, shards: int) -> int:
    """Raw records of a source that fill so many shards of its training split."""
    (card,) = (
        c for c in cards().values() if c.modality.name == modality and c.name in paper_sources()
    )
    rows = max(layout.rows_per_record for layout in card.layouts.values())
    row: int = schema(card).field("signal").type.byte_width
    return math.ceil(shards * max(1, CHUNK_BYTES // (rows * row)) / TRAINING_SHARE)


def all_builds(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The builds of all sizes."""
    for factor in options.factors:
        raws = WRITERS[options.modality](
            folder / f"raw-{factor}",
            source_records=factor * options.records,
            target_records=1,
            seed=options.seed,
        )
        name, raw = next(iter(raws.items()))
        raw_bytes = sum(path.stat().st_size for path in raw.rglob("*") if path.is_file())
        for cpus in options.cpus:
            out = folder / f"catalog-{factor}-{cpus}"
            command = [sys.executable, "-m", "studies.build_scale", "--cpus", str(cpus)]
            build = watched([*command, "--one", name, "--raw", str(raw), "--into", str(out)])
            rates = {
                "raw_records_per_second": build["raw_records"] / build["seconds"],
                "rows_per_second": build["rows"] / build["seconds"],
                "raw_mb_per_second": raw_bytes / 1e6 / build["seconds"],
            }
            yield {"factor": factor, "cpus": cpus, **build, **measure.rounded_all(rates)}


def watched(command: list[str]) -> dict[str, Any]:
    """What a build in a process of its own prints, and its memory."""
    peak = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, tree_mib(root))
            time.sleep(SAMPLE_SECONDS)
        assert process.stdout is not None  # it is a pipe
        printed = process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    result: dict[str, Any] = json.loads(printed)
    peak = max(peak, result["idle_mib"])
    return result | {"peak_mib": round(peak), "over_idle_mib": round(peak - result["idle_mib"])}


def one_build(dataset: str, raw: Path, out: Path, *, cpus: int) -> dict[str, Any]:
    """Build once; its seconds and rows, and the memory before it."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])  # Ray's workers inherit it
    for path in raw.rglob("*"):
        if path.is_file():
            path.read_bytes()
    with connected(cpus=cpus):
        ray_data().range(cpus).map(lambda row: row).materialize()  # workers are up
        idle = tree_mib(psutil.Process())
        begin = time.perf_counter()
        catalog = build(dataset, raw, out, allow_missing=True, max_quarantined=0.2)
        seconds = time.perf_counter() - begin
    return {
        "raw_records": catalog.manifest["raw"]["records"],
        "rows": sum(catalog.rows(split) for split in catalog.manifest["splits"]),
        "seconds": measure.rounded(seconds),
        "idle_mib": round(idle),
    }


def tree_mib(root: psutil.Process) -> float:
    """Proportional set size of a process and its descendants, MiB; 0 when it has ended."""
    total = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0.0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it ended meanwhile
            continue
    return total / 2**20


if __name__ == "__main__":
    main()
