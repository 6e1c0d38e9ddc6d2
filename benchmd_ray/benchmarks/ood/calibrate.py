"""What detectors that learn are calibrated on, and where their threshold is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.formulas import auroc
from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Calibration,
    Detector,
    Floats,
    Head,
    State,
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
        """Names of its sets, or what it is not of."""
        if self.only_for:
            return f"all but {self.only_for}"
        return JOINED.join(out_set.name for out_set in self.sets)

    def regime(self, out_set: OutSet) -> str:
        """How it calibrates for a set; empty where it does not."""
        if out_set.control or out_set.use_case != self.sets[0].use_case:
            return ""
        if self.only_for:
            return "other-sources" if out_set.kind == self.only_for else ""
        if out_set.origin not in {member.origin for member in self.sets}:
            return "other-sources" if self.shared else ""
        return "same-source" if {member.kind for member in self.sets} == {out_set.kind} else ""


def calibration_draws(sets: Sequence[OutSet]) -> list[Draw]:
    """Which sets calibrate, the same for all detectors.

    Of unrelated records fixed draws of three sets, of the other use-cases one set each; at most
    `DRAWS`, and one more for a set that is in all of them. Each set also calibrates by itself, for
    other patients of the same set.
    """
    draws: list[Draw] = []
    every = representatives(sets)
    for case in dict.fromkeys(out_set.use_case for out_set in every):
        kinds = [out_set for out_set in every if out_set.use_case == case]
        shared = _shared(kinds, case == "unrelated")
        draws += [Draw(draw, True) for draw in shared]
        draws += [Draw((out_set,), False) for out_set in kinds if (out_set,) not in shared]
    return draws


def representatives(sets: Sequence[OutSet]) -> list[OutSet]:
    """The set of each kind that calibrates: of faults the most severe, none that is too small."""
    kinds: dict[tuple[str, str], OutSet] = {}
    for out_set in sets:
        last = out_set.fault is None or out_set.severity == out_set.fault.severities[-1]
        if out_set.use_case != "shifted" and out_set.learnable and last:
            kinds[out_set.use_case, out_set.kind] = out_set
    return [*kinds.values()]


def _shared(sets: list[OutSet], unrelated: bool) -> list[tuple[OutSet, ...]]:
    together = TOGETHER if unrelated and len(sets) > TOGETHER else 1
    draws = sorted(
        combinations(sets, together),
        key=lambda draw: stable_fraction("/".join(member.name for member in draw)),
    )
    kept = draws[:DRAWS]
    for out_set in sets:
        if all(out_set in draw for draw in kept):
            kept += [draw for draw in draws if out_set not in draw][:1]
    return kept


def calibrated(
    method: Detector,
    state: State,
    calibration: Calibration,
    patients: Sequence[str],
    bank: Bank,
) -> tuple[State, float]:
    """A detector that learned from four fifths of the patients, and its threshold by the others.

    The threshold has the highest balanced accuracy, unless the detector learns its own.
    """
    choosing = np.array([stable_fraction(f"ood/threshold/{name}") < HELD for name in patients])
    if (
        len(np.unique(calibration.out[choosing])) < 2
        or len(np.unique(calibration.out[~choosing])) < 2
    ):
        choosing = np.zeros(len(choosing), bool)
    first = calibration.at(~choosing)
    other = calibration.at(choosing) if choosing.any() else calibration
    if method.calibrate is None:
        learned = _of_grid(method, first, bank)
    else:
        learned = method.calibrate(state, first, other, bank.head)
    if method.threshold is not None:
        return learned, method.threshold
    scores = finite(method.scores(learned, other.seen, bank.head), method.name)
    return learned, best_threshold(scores, other.out)


def combinations_of(method: Detector) -> Iterator[dict[str, object]]:
    """All combinations of values of a detector's grid."""
    for values in product(*method.grid.values()):
        yield dict(zip(method.grid, values, strict=True))


def _of_grid(method: Detector, calibration: Calibration, bank: Bank) -> State:
    """The state with the highest AUROC, the first of several."""
    states = [method.fit(bank, **values) for values in combinations_of(method)]
    return max(states, key=lambda state: auroc_of(method, state, calibration, bank.head))


def auroc_of(method: Detector, state: State, calibration: Calibration, head: Head) -> float:
    """AUROC of a detector on records that calibrate."""
    scores = finite(method.scores(state, calibration.seen, head), method.name)
    return auroc(scores[~calibration.out], scores[calibration.out])


def best_threshold(scores: Floats, out: npt.NDArray[np.bool_]) -> float:
    """The score (records,) above which rejecting has the highest balanced accuracy.

    Of several such it is the middle of the first gap.
    """
    levels = np.unique(scores)
    limits = np.concatenate(([levels[0] - 1], (levels[1:] + levels[:-1]) / 2, [levels[-1] + 1]))
    inside, outside = np.sort(scores[~out]), np.sort(scores[out])
    accepted = np.searchsorted(inside, limits, side="right") / len(inside)
    rejected = 1 - np.searchsorted(outside, limits, side="right") / len(outside)
    return float(limits[int((accepted + rejected).argmax())])
