r"""``python -m studies.memory --of detectors`` from the project's root.

How much memory does scoring take beyond its inputs? Each in a process of its own; needs Linux.

- ``detectors``: the peak of resident memory that deep KNN and Mahalanobis take beyond a bank of
  ``--records``, fitted and scoring ``--queries``;
- ``segmentation``: the peak that scoring a case takes beyond the two label maps, of ``--shape``.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from speed import measure

MIB = 2**20
DETECTORS = ("knn", "mahalanobis")
DECLARED = {
    "of": ("detectors", "what scores", ("detectors", "segmentation")),
    "records": (1_000_000, "of the detectors' bank"),
    "queries": (2_000, "records that detectors score"),
    "width": (256, "of the features"),
    "classes": (10, "of the bank"),
    "shape": ((300, 512, 512), "of the case, z, y, x"),
    "spacing": ((1.5, 0.75, 0.75), "mm"),
    "tolerance": (2.0, "mm"),
}


def resident(field: str) -> float:
    """MiB of this process's memory: ``VmRSS`` now, ``VmHWM`` at most."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"this system does not report {field} of a process")


def of_detector(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Memory and seconds of one of our detectors; to be called in a process of its own."""
    from benchmd_ray.benchmarks.ood.methods import METHODS
    from studies.ood_records import Problem

    problem, method = Problem(options.width, options.classes, options.seed), METHODS[name]
    if options.threads:
        torch.set_num_threads(options.threads)
    with threadpool_limits(options.threads):
        bank = problem.bank(options.records)
        queries = problem.seen(problem.features(options.queries, out=0.25)[0])
        before, start = resident("VmRSS"), time.perf_counter()
        state = method.fit(bank)
        fitted, between = resident("VmHWM"), time.perf_counter()
        method.scores(state, queries, bank.head)
        scored, end = resident("VmHWM"), time.perf_counter()
    bank_mib = bank.seen.features.nbytes / MIB
    figures = {
        "bank_mib": bank_mib,
        "before_mib": before,
        "state_mib": sum(values.nbytes for values in state.values()) / MIB,
        "over_bank_mib_of_fitting": fitted - before,
        "over_bank_mib": scored - before,
        "over_bank_in_banks": (scored - before) / bank_mib,
        "seconds_of_fitting": between - start,
        "seconds_of_scoring": end - between,
    }
    return measure.rounded_all(figures)


def of_segmentation(options: argparse.Namespace) -> dict[str, float]:
    """Memory of scoring a case; to be called in a process of its own."""
    from speed.segmentation import Case

    options.labels = None
    case = Case(options)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    case.ours()
    peak = resident("VmHWM")
    figures = {
        "label_maps_mib": (case.reference.nbytes + case.prediction.nbytes) / MIB,
        "before_mib": before,
        "peak_mib": peak,
        "over_label_maps_mib": peak - before,
    }
    return measure.rounded_all(figures)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, repeats=False)
    if options.classes < 2 or options.records < 20 * options.classes:
        raise SystemExit("two classes or more are needed, and a bank of twenty records for each.")
    work = {name: partial(of_detector, name, options) for name in DETECTORS}
    if options.of == "segmentation":
        work = {"segmentation": partial(of_segmentation, options)}
    memory = {}
    for name, measured in work.items():
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            memory[name] = process.submit(measured).result()
        print(name, memory[name], file=sys.stderr, flush=True)
    measure.print_result("memory", options, memory=memory)


if __name__ == "__main__":
    main()
