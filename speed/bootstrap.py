r"""``python -m speed.bootstrap`` from the project's root.

A bootstrap over patients of a ranking metric, in resamples a second: the package ranks each class
once and weighs its rows in every resample, against scikit-learn's function called for each
resample and class on the resampled rows. The peer is measured for ``--peer-resamples`` resamples
and multiplied up to ``--resamples``. Ours is measured whole, the sorting and checking included.
Before anything is timed both must give the same values for the peer's resamples.

Single-label predictions of a softmax drawn at random; the scores of a class hardly have ties. The
peer is given the patients' draws and takes one thread, as scikit-learn does; ours takes
``--threads``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmd_ray.scores.metrics import probabilities
from benchmd_ray.scores.resampling import group_multiplicities, resampled
from speed import measure

Floats = npt.NDArray[np.float64]
PEERS: dict[str, Callable[..., float]] = {"auroc": roc_auc_score, "auprc": average_precision_score}
TOLERANCE = 1e-9
"""Largest difference between two values of the metric: sums of a million floats are rounded."""
SEPARATION = 1.5
"""What is added to the right class's logit, in standard deviations of the logits."""
DECLARED = {
    "metric": ("auroc", "what is resampled", sorted(PEERS)),
    "rows": (1_000_000, "predictions"),
    "classes": (7, "of each prediction"),
    "rows_per_patient": (1, "predictions of a patient"),
    "resamples": (1000, "of the bootstrap"),
    "peer_resamples": (2, "measured of the peer"),
}


def predictions(settings: argparse.Namespace) -> tuple[npt.NDArray[np.int8], Floats]:
    """Targets and scores, (rows, classes); each class has two thirds of the rows of the last."""
    generator = np.random.default_rng(settings.seed)
    shares = 1.5 ** -np.arange(settings.classes)
    labels = generator.choice(settings.classes, settings.rows, p=shares / shares.sum())
    targets = np.eye(settings.classes, dtype=np.int8)[labels]
    logits = generator.normal(size=targets.shape) + SEPARATION * targets
    return targets, probabilities(logits, "single-label")


def scikit_learn_loop(
    metric: str,
    targets: npt.NDArray[np.int8],
    scores: Floats,
    patient: npt.NDArray[np.intp],
    draws: npt.NDArray[np.integer],
) -> Floats:
    """The metric of each class in each resample, (resamples, classes)."""
    values = np.empty((len(draws), targets.shape[1]))
    for number, counts in enumerate(draws):
        rows = np.repeat(np.arange(len(patient)), counts[patient])
        for index in range(values.shape[1]):
            values[number, index] = PEERS[metric](targets[rows, index], scores[rows, index])
    return values


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    settings = measure.options(__doc__, arguments, DECLARED, repetitions=1, warm_up=0)
    count, few = settings.resamples, settings.peer_resamples
    if count < few or settings.rows < 2 * settings.rows_per_patient:
        raise SystemExit("as many resamples as the peer's and at least two patients are needed.")
    targets, scores = predictions(settings)
    patient = np.arange(settings.rows) // settings.rows_per_patient
    draws = group_multiplicities(int(patient[-1]) + 1, range(few), seed=settings.seed)

    def weighted(resamples: int) -> Floats:
        return resampled(
            settings.metric,
            targets,
            scores,
            patient,
            "single-label",
            resamples=resamples,
            seed=settings.seed,
            threads=settings.threads,
        )

    loop = partial(scikit_learn_loop, settings.metric, targets, scores, patient, draws)
    values, expected = weighted(few)[:, 1:], loop()
    np.testing.assert_allclose(values, expected, rtol=0, atol=TOLERANCE)
    if few > 1 and not np.ptp(expected, axis=0).min() > 10 * TOLERANCE:
        raise AssertionError("the resamples hardly differ, too little to compare")
    measure.compare(
        "bootstrap",
        settings,
        {"weighted": partial(weighted, count), "scikit_learn_loop": loop},
        unit="resamples/s",
        units=count,
        share_of_peer=few / count,
        resamples_measured={"weighted": count, "scikit_learn_loop": few},
        largest_difference_of_values=float(np.abs(values - expected).max()),
    )


if __name__ == "__main__":
    main()
