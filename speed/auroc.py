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
    declared = {"rows": (20_000, "scored records"), "classes": (5, "of a single-label task")}
    settings = measure.options(__doc__, arguments, declared)
    if settings.classes < 2 or settings.rows < 2 * settings.classes:
        raise SystemExit("--classes has to be 2 or more, and --rows at least twice as many.")
    generator = np.random.default_rng(settings.seed)
    targets = np.eye(settings.classes, dtype=np.int8)[np.arange(settings.rows) % settings.classes]
    logits = (generator.normal(size=targets.shape) + targets).round(2)  # some are tied
    scores = probabilities(logits, "single-label")

    def one_sort() -> list[float]:
        return list(auroc(targets, scores).per_class)

    def scikit_learn() -> list[float]:
        columns = range(settings.classes)
        return [float(roc_auc_score(targets[:, c], scores[:, c])) for c in columns]

    np.testing.assert_allclose(one_sort(), scikit_learn(), rtol=0, atol=TOLERANCE)
    tasks = {"one_sort": one_sort, "scikit_learn": scikit_learn}
    measure.compare("auroc", settings, tasks, unit="epochs/s", units=1)


if __name__ == "__main__":
    main()
