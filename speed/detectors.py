r"""``PYTHONPATH=FOLDER python -m speed.detectors`` from the project's root.

Detectors of what is out of distribution, in scores a second: ours, which take 4,096 records at a
time as in the benchmark, against a plain loop over pytorch-ood's, which are given 256 at a time.
Each detector is fitted on a bank of training records and scores ``--records`` others. Before
anything is timed both must give the same scores (`speed.peer_detectors` says how each is told to);
those that are defined differently are timed as well, but have no ratio and count in no total.

pytorch-ood is not a dependency: FOLDER is where ``python -m pip install --no-deps --target FOLDER
pytorch-ood==0.4.0`` put it.

``--memory`` needs no pytorch-ood. It gives the peak of resident memory that deep KNN and
Mahalanobis take beyond a bank of ``--memory-records``, each in a process of its own, fitted and
scoring ``--memory-queries``.

Features are drawn at random: not negative, correlated, around a centre for each class; a quarter of
the records that are scored are around another one. The head is that of nearest centres with noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import spearmanr
from threadpoolctl import threadpool_limits

from benchmd_ray.benchmarks.ood.methods import METHODS
from benchmd_ray.benchmarks.ood.methods.method import Bank, Floats, Head, Seen
from speed import measure
from speed.peer_detectors import MISSING, PEERS, VERSION, difference, installed

CHECKED = 4096
"""Records that both score before anything is timed."""
BLOCK = 32768
"""Records that are drawn at once."""
IN_MEMORY = ("knn", "mahalanobis")
MIB = 2**20


class Problem:
    """Centres of classes and a head, from which records are drawn."""

    def __init__(self, width: int, classes: int, seed: int) -> None:
        """Draw centres, and make the head of them."""
        self.generator, self.width, self.classes = np.random.default_rng(seed), width, classes
        self.centres = self.generator.normal(size=(classes, width)).astype(np.float32)
        mixing = self.generator.normal(size=(width, width)) * 2 / np.sqrt(width)
        self.mixing = mixing.astype(np.float32)
        self.head = Head(np.zeros((classes, width)), np.zeros(classes), exclusive=True)
        features, label = self.features(max(2000, 20 * classes))
        means = np.stack([features[label == k].mean(axis=0) for k in range(classes)])
        weight = means - means.mean(axis=0)
        weight = weight + self.generator.normal(size=weight.shape) * weight.std() / 4
        bias = -(weight * means).sum(axis=1) / 2
        size = 2 / (features @ weight.T + bias).std()  # logits are within about ± 8
        self.head = Head(weight * size, bias * size, exclusive=True)

    def features(
        self, records: int, out: float = 0.0
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.intp]]:
        """(records, width) and their classes; a share of them is around another centre."""
        label = self.generator.integers(self.classes, size=records)
        features = np.empty((records, self.width), np.float32)
        for start in range(0, records, BLOCK):
            own = label[start : start + BLOCK]
            around = self.centres[own]
            around[self.generator.random(len(own)) < out] = self.centres[0][::-1]
            noise = self.generator.standard_normal((len(own), self.width), np.float32)
            np.maximum(0.6 * around + noise @ self.mixing, 0, out=features[start : start + BLOCK])
        return features, label

    def seen(self, features: npt.NDArray[np.float32]) -> Seen:
        """Features with the head's logits."""
        weight, bias = (v.astype(np.float32) for v in (self.head.weight, self.head.bias))
        return Seen(features, features @ weight.T + bias)

    def bank(self, records: int) -> Bank:
        """Records of the classes alone."""
        features, label = self.features(records)
        targets = np.eye(self.classes, dtype=np.int8)[label]
        return Bank(self.seen(features), targets, self.head)


class Pair:
    """Our detector and theirs, fitted."""

    def __init__(self, name: str, bank: Bank, seen: Seen) -> None:
        """Fit both."""
        self.name, self.bank, self.seen = name, bank, seen
        self.method, self.peer = METHODS[name], PEERS[name]
        self.state, self.theirs = self.method.fit(bank), self.peer.fit(bank)
        if self.peer.align:
            self.peer.align(self.theirs.detector, self.state)

    def ours(self, seen: Seen) -> Floats:
        """Our scores."""
        return self.method.scores(self.state, seen, self.bank.head)

    def compared(self) -> dict[str, Any]:
        """What the check found.

        Raises:
            AssertionError: The scores should be the same and are not.
        """
        few = self.peer.comparable(self.seen.at(slice(CHECKED)))
        ours, theirs = self.ours(few), self.theirs.scores(few) * self.peer.factor(self.bank)
        found = difference(ours, theirs)
        if not self.peer.differs and not found < self.peer.tolerance:
            raise AssertionError(f"{self.name}: scores differ by {found:.2g} standard deviations")
        said: dict[str, Any] = {"peer": self.peer.theirs, "same_scores": not self.peer.differs}
        said["records_compared"] = len(few)
        said |= {key: value for key in ("note", "differs") if (value := getattr(self.peer, key))}
        said["rank_correlation"] = round(float(spearmanr(ours, theirs).statistic), 6)
        if not self.peer.differs:
            said["largest_difference_in_sd"] = measure.rounded(found)
        return said

    def tasks(self) -> dict[str, Callable[[], object]]:
        """What is timed."""
        return {
            "ours_fit": partial(self.method.fit, self.bank),
            "ours_score": partial(self.ours, self.seen),
            "peer_fit": partial(self.peer.fit, self.bank),
            "peer_score": partial(self.theirs.scores, self.seen),
        }


def added(seconds: measure.Seconds) -> measure.Seconds:
    """Seconds of fitting and scoring together."""
    return {
        side: [a + b for a, b in zip(seconds[f"{side}_fit"], seconds[f"{side}_score"], strict=True)]
        for side in ("ours", "peer")
    }


def timed(chosen: argparse.Namespace) -> None:
    """Check and time all detectors in turn, and print."""
    problem = Problem(chosen.width, chosen.classes, chosen.seed)
    bank = problem.bank(chosen.bank)
    seen = problem.seen(problem.features(chosen.records, out=0.25)[0])
    table: dict[str, dict[str, Any]] = {}
    total: dict[str, list[float]] = {}
    for name in chosen.detectors:
        pair = Pair(name, bank, seen)
        said = pair.compared()
        seconds = measure.alternating(
            pair.tasks(), repetitions=chosen.repetitions, warm_up=chosen.warm_up
        )
        both = added(seconds)
        said["seconds"] = {key: measure.spread(values)["median"] for key, values in seconds.items()}
        if said["same_scores"]:
            said["ratio"] = measure.ratio(both, "ours", "peer")["median"]
            said["ratio_of_scoring"] = measure.ratio(seconds, "ours_score", "peer_score")["median"]
            for key, values in {**both, **seconds}.items():
                so_far = total.get(key, [0.0] * len(values))
                total[key] = [a + b for a, b in zip(so_far, values, strict=True)]
        table[name] = said
        print(name, said["seconds"], file=sys.stderr, flush=True)
    ratios = [said["ratio"] for said in table.values() if "ratio" in said]
    if not ratios:
        raise SystemExit("None of the detectors is defined alike, so there is no ratio to give.")
    measure.report(
        "detectors",
        chosen,
        {side: total[side] for side in ("ours", "peer")},
        units=chosen.records * len(ratios),
        unit="scores/s, fitting included",
        ours="ours",
        peer="peer",
        ratio_of_scoring=measure.ratio(total, "ours_score", "peer_score")["median"],
        geometric_mean_of_ratios=measure.rounded(statistics.geometric_mean(ratios)),
        wall_seconds={key: measure.spread(values) for key, values in total.items()},
        pytorch_ood=VERSION,
        detectors=table,
    )


def resident(field: str) -> int:
    """Bytes of this process's memory: ``VmRSS`` now, ``VmHWM`` at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this system does not say {field} of a process")


def memory_of(name: str, chosen: argparse.Namespace) -> dict[str, float]:
    """Memory and seconds of one of our detectors; to be called in a process of its own."""
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    problem, method = Problem(chosen.width, chosen.classes, chosen.seed), METHODS[name]
    with threadpool_limits(chosen.threads):
        bank = problem.bank(chosen.memory_records)
        asked = problem.seen(problem.features(chosen.memory_queries, out=0.25)[0])
        before, start = resident("VmRSS"), time.perf_counter()
        state = method.fit(bank)
        fitted, between = resident("VmHWM"), time.perf_counter()
        method.scores(state, asked, bank.head)
        scored, end = resident("VmHWM"), time.perf_counter()
    own = bank.seen.features.nbytes
    figures = {
        "bank_mib": own / MIB,
        "before_mib": before / MIB,
        "state_mib": sum(values.nbytes for values in state.values()) / MIB,
        "over_bank_mib_of_fitting": (fitted - before) / MIB,
        "over_bank_mib": (scored - before) / MIB,
        "over_bank_in_banks": (scored - before) / own,
        "seconds_of_fitting": between - start,
        "seconds_of_scoring": end - between,
    }
    return {key: measure.rounded(value) for key, value in figures.items()}


def memory(chosen: argparse.Namespace) -> None:
    """Measure each detector's memory in its own process, and print."""
    found = {}
    for name in IN_MEMORY:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            found[name] = process.submit(memory_of, name, chosen).result()
        print(name, found[name], file=sys.stderr, flush=True)
    used = ("memory", "memory_records", "memory_queries", "width", "classes", "threads", "seed")
    result = {
        "benchmark": "detectors",
        "settings": {key: getattr(chosen, key) for key in used},
        "machine": measure.machine(),
        "memory": found,
    }
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    options.add_argument("--records", type=int, default=100_000, help="that are scored (100000)")
    options.add_argument("--bank", type=int, default=20_000, help="training records (20000)")
    options.add_argument("--width", type=int, default=256, help="of the features (256)")
    options.add_argument("--classes", type=int, default=10, help="(10)")
    options.add_argument(
        "--detectors", nargs="+", choices=tuple(PEERS), default=list(PEERS), help="(all)"
    )
    options.add_argument("--memory", action="store_true", help="memory instead of time")
    options.add_argument("--memory-records", type=int, default=1_000_000, help="(1000000)")
    options.add_argument("--memory-queries", type=int, default=2_000, help="(2000)")
    options.set_defaults(repetitions=1, warm_up=0)  # the comparison of the scores runs both
    chosen = measure.parsed(options, arguments)
    if chosen.classes < 2 or min(chosen.bank, chosen.memory_records) < 20 * chosen.classes:
        options.error("two classes or more are needed, and twenty records of the bank for each")
    if min(chosen.records, chosen.memory_queries) < 2 or chosen.width < chosen.classes:
        options.error("two records or more are needed, and features no fewer than classes")
    if chosen.memory:
        memory(chosen)
    elif not installed():
        raise SystemExit(MISSING)
    else:
        with threadpool_limits(chosen.threads):  # of NumPy and scikit-learn, as of PyTorch
            timed(chosen)


if __name__ == "__main__":
    main()
