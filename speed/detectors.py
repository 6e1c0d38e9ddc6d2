r"""``PYTHONPATH=FOLDER python -m speed.detectors`` from the project's root.

Detectors of what is out of distribution, in scores a second: ours, which take 4,096 records at a
time as in the benchmark, against a plain loop over pytorch-ood's, which are given 256 at a time.
Each detector is fitted on a bank of training records and scores ``--records`` others. Before
anything is timed both must give the same scores, as `studies.pytorch_ood` compares them; those that
are defined differently are timed as well, but have no ratio and count in no total.

pytorch-ood is not a dependency: FOLDER is where ``python -m pip install --no-deps --target FOLDER
pytorch-ood==0.4.0`` put it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from typing import Any

from threadpoolctl import threadpool_limits

from speed import measure
from studies.pytorch_ood import DECLARED, VERSION, Pair, drawn


def timed(pair: Pair, options: argparse.Namespace) -> measure.Seconds:
    """Seconds of fitting and scoring, and of both together."""
    tasks: dict[str, measure.Task] = {
        "ours_fit": partial(pair.method.fit, pair.bank),
        "ours_score": partial(pair.ours, pair.seen),
        "peer_fit": partial(pair.peer.fit, pair.bank),
        "peer_score": partial(pair.theirs.scores, pair.seen),
    }
    seconds = measure.alternating(options, tasks)
    ours = added(seconds["ours_fit"], seconds["ours_score"])
    return {"ours": ours, "peer": added(seconds["peer_fit"], seconds["peer_score"]), **seconds}


def added(a: list[float], b: list[float]) -> list[float]:
    """Seconds of two tasks, repetition by repetition."""
    return [x + y for x, y in zip(a, b, strict=True)]


def measured(options: argparse.Namespace) -> None:
    """Compare and time each detector, and print; the total is of those with the same scores."""
    bank, seen = drawn(options)
    table: dict[str, dict[str, Any]] = {}
    total: measure.Seconds = {}
    for name in options.detectors:
        pair = Pair(name, bank, seen)
        figures = table[name] = dict(pair.agreement)
        seconds = timed(pair, options)
        figures["seconds"] = {key: measure.spread(s)["median"] for key, s in seconds.items()}
        if figures["same_scores"]:
            figures["ratio"] = measure.ratio(seconds, "ours", "peer")["median"]
            scoring = measure.ratio(seconds, "ours_score", "peer_score")
            figures["ratio_of_scoring"] = scoring["median"]
            total = {key: added(total[key], s) if total else s for key, s in seconds.items()}
        print(name, figures["seconds"], file=sys.stderr, flush=True)
    ratios = [figures["ratio"] for figures in table.values() if "ratio" in figures]
    if not ratios:
        raise SystemExit("None of the detectors is defined alike, so there is no ratio to give.")
    measure.report(
        "detectors",
        options,
        total,
        unit="scores/s, fitting included",
        units=options.records * len(ratios),
        ratio_of_scoring=measure.ratio(total, "ours_score", "peer_score")["median"],
        geometric_mean_of_ratios=measure.rounded(statistics.geometric_mean(ratios)),
        pytorch_ood=VERSION,
        detectors=table,
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    declared = {**DECLARED, "records": (100_000, "that are scored")}
    options = measure.options(__doc__, arguments, declared, repetitions=1, warm_up=0)
    with threadpool_limits(options.threads):  # of NumPy and scikit-learn, as of PyTorch
        measured(options)


if __name__ == "__main__":
    main()
