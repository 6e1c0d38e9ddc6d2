"""What detectors that learn are calibrated on, and where their threshold is.

None of the records that a detector is scored on is read before it is calibrated: those that
calibrate and those that are scored are of other patients (`ood.sets`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.method import Calibration, Floats, Head, Method, State
from benchmd_ray.benchmarks.ood.sets import OutSet
from benchmd_ray.data.splits import stable_fraction

FEWEST = 20
"""Records of a kind that calibration takes, and that a set has that counts in a mean."""
DRAWS, TOGETHER = 10, 3
"""How often a detector of unrelated records is calibrated, and on how many sets each time."""
HELD = 0.2
"""Share of the calibrating patients that choose the threshold."""


def calibration_draws(one: OutSet, sets: Sequence[OutSet]) -> list[tuple[OutSet, ...]]:
    """Which other sets calibrate a detector that is scored on one.

    For unrelated records, fixed draws of three other sets (of fewer where there are not so many);
    else each other set of the use-case, at most ten. None is of the same kind, or too small.
    """
    if one.control or one.use_case == "shifted":
        return []
    others: dict[str, OutSet] = {}
    for each in sets:
        fits = each.use_case == one.use_case and each.kind != one.kind and not each.control
        if fits and each.severity in (0, each.fault.severities[-1] if each.fault else 0):
            if np.count_nonzero(each.calibrates) >= FEWEST:
                others[each.kind] = each
    together = TOGETHER if one.use_case == "unrelated" and len(others) > TOGETHER else 1
    draws = list(combinations(others.values(), together))
    draws.sort(key=lambda draw: stable_fraction("/".join(each.name for each in draw)))
    return draws[:DRAWS]


def calibrated(
    method: Method,
    state: State,
    given: Calibration,
    patients: Sequence[str],
    head: Head,
) -> tuple[State, float]:
    """A detector that learned of four fifths of the patients, and its threshold by the others.

    The threshold has the highest balanced accuracy; of several such the middle of the first gap.
    """
    assert method.calibrate is not None
    held = np.array([stable_fraction(f"ood/threshold/{name}") < 0.2 for name in patients])
    if len(np.unique(given.out[held])) < 2 or len(np.unique(given.out[~held])) < 2:
        held = np.zeros(len(held), bool)
    learned = method.calibrate(state, Calibration(given.seen.at(~held), given.out[~held]), head)
    if held.any():
        chosen = Calibration(given.seen.at(held), given.out[held])
    else:
        chosen = given
    scores = method.score(learned, chosen.seen, head)
    return learned, best_threshold(scores, chosen.out)


def best_threshold(scores: Floats, out: npt.NDArray[np.bool_]) -> float:
    """The score above which records are rejected, with the highest balanced accuracy.

    Args:
        scores: (records,).
        out: (records,), with both kinds.
    """
    levels = np.unique(scores)
    limits = np.concatenate(([levels[0] - 1], (levels[1:] + levels[:-1]) / 2, [levels[-1] + 1]))
    rejected = scores[None] > limits[:, None]
    balanced = (rejected[:, out].mean(axis=1) + (~rejected[:, ~out]).mean(axis=1)) / 2
    return float(limits[int(balanced.argmax())])
