r"""``python -m speed.bootstrap`` from the project's root.

A bootstrap over patients of a ranking metric, in resamples a second: the package ranks each class
once and weighs its rows in every resample, against scikit-learn's function called for each
resample and class on the resampled rows. The peer is measured for ``--peer-resamples`` resamples
and multiplied up to ``--resamples``; the JSON says so. Ours is measured whole, the sorting and
checking included. Before anything is timed both must give the same values for the peer's
resamples.

Single-label predictions of a softmax drawn at random; the scores of a class hardly have ties. The
peer is given the patients' draws and takes one thread, as scikit-learn does; ours takes
``--threads``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmd_ray.scores.metrics import probabilities
from benchmd_ray.scores.resampling import group_multiplicities, resampled
from speed import measure

PEERS: dict[str, Callable[..., float]] = {
    "auroc": roc_auc_score,
    "auprc": average_precision_score,
}
TOLERANCE = 1e-9
"""Largest difference between two values of the metric: sums of a million floats are rounded."""
SEPARATION = 1.5
"""What the right class's logit has more, in standard deviations of the logits."""


class Bootstrap:
    """Predictions, and both ways to resample them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Draw targets and scores, and the peer's resamples."""
        self.metric, self.seed, self.threads = arguments.metric, arguments.seed, arguments.threads
        generator = np.random.default_rng(arguments.seed)
        rows, classes = arguments.rows, arguments.classes
        rarer = 1.5 ** -np.arange(classes)  # each class has two thirds of the rows of the last
        true = generator.choice(classes, rows, p=rarer / rarer.sum())
        self.targets = np.eye(classes, dtype=np.int8)[true]
        logits = generator.normal(size=(rows, classes)) + SEPARATION * self.targets
        self.scores = probabilities(logits, "single-label")
        self.patient = np.arange(rows) // arguments.rows_per_patient
        self.draws = group_multiplicities(
            int(self.patient[-1]) + 1, range(arguments.peer_resamples), seed=self.seed
        )

    def weighted(self, resamples: int) -> npt.NDArray[np.float64]:
        """Ours: (resamples, 1 + classes)."""
        return resampled(
            self.metric,
            self.targets,
            self.scores,
            self.patient,
            "single-label",
            resamples=resamples,
            seed=self.seed,
            threads=self.threads,
        )

    def scikit_learn_loop(self) -> npt.NDArray[np.float64]:
        """The peer: (peer's resamples, classes)."""
        score_class = PEERS[self.metric]
        values = np.empty((len(self.draws), self.targets.shape[1]))
        for number, counts in enumerate(self.draws):
            rows = np.repeat(np.arange(len(self.patient)), counts[self.patient])
            targets, scores = self.targets[rows], self.scores[rows]
            for index in range(values.shape[1]):
                values[number, index] = score_class(targets[:, index], scores[:, index])
        return values


def require_same_values(bootstrap: Bootstrap) -> float:
    """Resample both ways; the largest difference between two values.

    Raises:
        AssertionError: The values differ, or the resamples do not.
    """
    peer = bootstrap.scikit_learn_loop()
    ours = bootstrap.weighted(len(peer))[:, 1:]
    np.testing.assert_allclose(ours, peer, rtol=0, atol=TOLERANCE)
    if len(peer) > 1 and not np.ptp(peer, axis=0).min() > 10 * TOLERANCE:
        raise AssertionError("the resamples hardly differ, too little to compare")
    return float(np.abs(ours - peer).max())


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    options.add_argument("--metric", choices=sorted(PEERS), default="auroc", help="(auroc)")
    options.add_argument("--rows", type=int, default=1_000_000, help="predictions (1000000)")
    options.add_argument("--classes", type=int, default=7, help="of each prediction (7)")
    options.add_argument("--rows-per-patient", type=int, default=1, help="(1)")
    options.add_argument("--resamples", type=int, default=1000, help="of the bootstrap (1000)")
    options.add_argument("--peer-resamples", type=int, default=2, help="measured of the peer (2)")
    options.set_defaults(repetitions=1, warm_up=0)  # the comparison of the values runs both
    chosen = measure.parsed(options, arguments)
    if min(chosen.classes, chosen.rows_per_patient, chosen.peer_resamples) < 1:
        options.error("--classes, --rows-per-patient and --peer-resamples have to be 1 or more")
    if chosen.resamples < chosen.peer_resamples or chosen.rows < 2 * chosen.rows_per_patient:
        options.error("as many resamples as the peer's and at least two patients are needed")
    bootstrap = Bootstrap(chosen)
    difference = require_same_values(bootstrap)
    seconds = measure.alternating(
        {
            "weighted": lambda: bootstrap.weighted(chosen.resamples),
            "scikit_learn_loop": bootstrap.scikit_learn_loop,
        },
        repetitions=chosen.repetitions,
        warm_up=chosen.warm_up,
    )
    share_measured = chosen.peer_resamples / chosen.resamples
    seconds["scikit_learn_loop"] = [s / share_measured for s in seconds["scikit_learn_loop"]]
    measure.report(
        "bootstrap",
        chosen,
        seconds,
        units=chosen.resamples,
        unit="resamples/s",
        ours="weighted",
        peer="scikit_learn_loop",
        wall_seconds={name: measure.spread(values) for name, values in seconds.items()},
        resamples_measured={
            "weighted": chosen.resamples,
            "scikit_learn_loop": chosen.peer_resamples,
        },
        peer_is_extrapolated=chosen.peer_resamples < chosen.resamples,
        largest_difference_of_values=difference,
    )


if __name__ == "__main__":
    main()
