r"""``python -m speed.auroc`` from the project's root.

The AUROC of each class that follows every epoch of a training: the package sorts each class once
and counts in whole numbers, against scikit-learn's ``roc_auc_score`` class by class. Both must
give the same values first.
"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmd_ray.scores.metrics import auroc, probabilities
from speed import measure

TOLERANCE = 1e-12


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    options.add_argument("--rows", type=int, default=20_000, help="scored records (20000)")
    options.add_argument("--classes", type=int, default=5, help="of a single-label task (5)")
    chosen = measure.parsed(options, arguments)
    if chosen.classes < 2 or chosen.rows < 2 * chosen.classes:
        options.error("--classes has to be 2 or more, and --rows twice that")
    draws = np.random.default_rng(chosen.seed)
    targets = np.eye(chosen.classes, dtype=np.int8)[np.arange(chosen.rows) % chosen.classes]
    logits = (draws.normal(size=targets.shape) + targets).round(2)  # some are tied
    scores = probabilities(logits, "single-label")
    columns = range(chosen.classes)

    def one_sort() -> list[float]:
        return list(auroc(targets, scores).per_class)

    def scikit_learn() -> list[float]:
        return [float(roc_auc_score(targets[:, c], scores[:, c])) for c in columns]

    np.testing.assert_allclose(one_sort(), scikit_learn(), rtol=0, atol=TOLERANCE)
    measure.report(
        "auroc",
        chosen,
        measure.alternating(
            {"one_sort": one_sort, "scikit_learn": scikit_learn},
            repetitions=chosen.repetitions,
            warm_up=chosen.warm_up,
        ),
        units=1,
        unit="epochs/s",
        ours="one_sort",
        peer="scikit_learn",
    )


if __name__ == "__main__":
    main()
