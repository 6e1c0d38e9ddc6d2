"""What detectors that learn are calibrated on, and where their threshold is.

Nothing here has records that are scored: those that calibrate are of other patients (`ood.sets`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Calibration,
    Floats,
    Head,
    Method,
    State,
    auroc,
    finite,
)
from benchmd_ray.benchmarks.ood.sets import OutSet
from benchmd_ray.benchmarks.ood.table import JOINED
from benchmd_ray.data.splits import stable_fraction

DRAWS, TOGETHER = 10, 3
"""How many draws of a use-case calibrate detectors, and how many sets of unrelated records one
has."""
HELD = 0.2
"""Share of the calibrating patients that choose the threshold."""


@dataclass(frozen=True)
class Draw:
    """Sets that calibrate together."""

    sets: tuple[OutSet, ...]
    shared: bool
    """Whether it calibrates for other sets; else only for records of the very set."""
    only_for: str = ""
    """Of all others of its use-case, the kind of set that it calibrates for."""

    @property
    def name(self) -> str:
        """Names of its sets."""
        if self.only_for:
            return f"all but {self.only_for}"
        return JOINED.join(each.name for each in self.sets)

    def regime(self, one: OutSet) -> str:
        """How it calibrates for a set; empty where it does not."""
        if one.control or one.use_case != self.sets[0].use_case:
            return ""
        if self.only_for:
            return "other-sources" if one.kind == self.only_for else ""
        if one.origin not in {each.origin for each in self.sets}:
            return "other-sources" if self.shared else ""
        return "same-source" if {each.kind for each in self.sets} == {one.kind} else ""


def calibration_draws(sets: Sequence[OutSet]) -> list[Draw]:
    """Which sets calibrate, the same for all detectors.

    Of unrelated records fixed draws of three sets (of one where there are only three or fewer), of
    the other use-cases one set each; at most `DRAWS`, and one more for a set that is in all of
    them. Each set also calibrates by itself, for other patients of the same set. Sets that are too
    small calibrate nothing.
    """
    found: list[Draw] = []
    every = representatives(sets)
    for case in dict.fromkeys(one.use_case for one in every):
        kinds = [one for one in every if one.use_case == case]
        shared = _shared(kinds, case == "unrelated")
        found += [Draw(draw, True) for draw in shared]
        found += [Draw((one,), False) for one in kinds if (one,) not in shared]
    return found


def representatives(sets: Sequence[OutSet]) -> list[OutSet]:
    """Of each kind of set, by use-case, the one that calibrates: of faults the most severe.

    Those that are too small or no out-of-distribution records are excluded.
    """
    kinds: dict[tuple[str, str], OutSet] = {}
    for one in sets:
        last = one.fault is None or one.severity == one.fault.severities[-1]
        if one.use_case != "shifted" and one.learnable and last:
            kinds[one.use_case, one.kind] = one
    return [*kinds.values()]


def _shared(sets: list[OutSet], unrelated: bool) -> list[tuple[OutSet, ...]]:
    together = TOGETHER if unrelated and len(sets) > TOGETHER else 1
    draws = sorted(
        combinations(sets, together),
        key=lambda draw: stable_fraction("/".join(each.name for each in draw)),
    )
    kept = draws[:DRAWS]
    for one in sets:
        if all(one in draw for draw in kept):
            kept += [draw for draw in draws if one not in draw][:1]
    return kept


def calibrated(
    method: Method,
    state: State,
    given: Calibration,
    patients: Sequence[str],
    bank: Bank,
) -> tuple[State, float]:
    """A detector that learned of four fifths of the patients, and its threshold by the others.

    The threshold has the highest balanced accuracy, unless the detector learns its own.
    """
    held = np.array([stable_fraction(f"ood/threshold/{name}") < HELD for name in patients])
    if len(np.unique(given.out[held])) < 2 or len(np.unique(given.out[~held])) < 2:
        held = np.zeros(len(held), bool)
    first = given.at(~held)
    other = given.at(held) if held.any() else given
    if method.calibrate is None:
        learned = _of_grid(method, first, bank)
    else:
        learned = method.calibrate(state, first, other, bank.head)
    if method.threshold is not None:
        return learned, method.threshold
    scores = finite(method.scores(learned, other.seen, bank.head), method.name)
    return learned, best_threshold(scores, other.out)


def combinations_of(method: Method) -> Iterator[dict[str, object]]:
    """All values of a detector's grid, by hyperparameter."""
    for values in product(*method.grid.values()):
        yield dict(zip(method.grid, values, strict=True))


def _of_grid(method: Method, given: Calibration, bank: Bank) -> State:
    """The state with the values of the grid that have the highest AUROC, the first of several."""
    states = [method.fit(bank, **values) for values in combinations_of(method)]
    return max(states, key=lambda state: auroc_of(method, state, given, bank.head))


def auroc_of(method: Method, state: State, given: Calibration, head: Head) -> float:
    """AUROC of a detector on records that calibrate."""
    scores = finite(method.scores(state, given.seen, head), method.name)
    return auroc(scores[~given.out], scores[given.out])


def best_threshold(scores: Floats, out: npt.NDArray[np.bool_]) -> float:
    """The score above which records are rejected, with the highest balanced accuracy.

    Of several such it is the middle of the first gap.

    Args:
        scores: (records,).
        out: (records,), with both kinds.
    """
    levels = np.unique(scores)
    limits = np.concatenate(([levels[0] - 1], (levels[1:] + levels[:-1]) / 2, [levels[-1] + 1]))
    own, other = np.sort(scores[~out]), np.sort(scores[out])
    accepted = np.searchsorted(own, limits, side="right") / len(own)
    rejected = 1 - np.searchsorted(other, limits, side="right") / len(other)
    return float(limits[int((accepted + rejected).argmax())])
