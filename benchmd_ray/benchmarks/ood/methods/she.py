"""SHE: −the product of a feature vector and the mean one of the predicted class.

Means are of correctly classified records. A record without a predicted label is of the class of
those without any.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State


def predicted(logits: npt.ArrayLike, exclusive: bool) -> npt.NDArray[np.intp]:
    """(records,): the most likely class; of labels one past the last where none is likely."""
    z = np.asarray(logits, np.float64)
    chosen = z.argmax(axis=1)
    return np.asarray(chosen if exclusive else np.where(z.max(axis=1) > 0, chosen, z.shape[1]))


def _fit(bank: Bank) -> State:
    """(classes, or labels and none, width); of one without records the mean of all."""
    f = np.asarray(bank.seen.features, np.float64)
    guess = predicted(bank.seen.logits, bank.head.exclusive)
    labels = bank.seen.logits.shape[1]
    means = np.tile(f.mean(axis=0), (labels + (not bank.head.exclusive), 1))
    for name, rows in bank.groups().items():
        place = labels if name == "none" else int(name)
        right = rows[guess[rows] == place]
        means[place] = f[right if len(right) else rows].mean(axis=0)
    return {"means": means}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    means = state["means"][predicted(seen.logits, head.exclusive)]
    return -np.asarray((np.asarray(seen.features, np.float64) * means).sum(axis=1))


METHOD = Detector("she", "SHE", _fit, _score, "Zhang et al., ICLR 2023")
