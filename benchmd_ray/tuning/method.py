"""How a search proposes, evaluates, stops and chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmd_ray.data.inner import FOLDS
from benchmd_ray.tuning.confirm import cuts
from benchmd_ray.tuning.samplers import Sampler

Stopping = Literal["racing", "asha", "none"]
Choosing = Literal["confirmed", "highest"]


@dataclass(frozen=True)
class Method:
    """How a search proposes, evaluates and stops trials, and how it chooses."""

    sampler: Sampler = "tpe"
    stopping: Stopping = "racing"
    """racing: trials earn evaluations, and the lower half is stopped within the first; asha: every
    trial that is not among the best third within its first evaluation is stopped there, others get
    all evaluations; none: all get all."""
    evaluations: int = 1
    """Of a trial that goes to the end."""
    choosing: Choosing = "confirmed"
    """confirmed: the best few and the start are evaluated again (`tuning.confirm`); highest: the
    trial with the highest value, which is too high for having been the highest."""
    universal: bool = False
    """One search over several modalities, whose trials are compared by their mean score."""
    cost: bool = False
    """Whether device hours are a second objective, to be small."""
    seed: int = 0

    @property
    def fresh(self) -> range:
        """Numbers of the evaluations of finalists: of cuts that no trial of the race was on."""
        first = -(-self.evaluations // FOLDS) * FOLDS
        return range(first, first + cuts(self.evaluations) * FOLDS)

    @property
    def batches(self) -> list[range]:
        """The same, a whole cut each."""
        return [self.fresh[place : place + FOLDS] for place in range(0, len(self.fresh), FOLDS)]

    @property
    def comparing(self) -> int:
        """Fresh evaluations of the start and a finalist on all cuts."""
        return 2 * len(self.fresh)

    @property
    def confirming(self) -> int:
        """Fresh evaluations of the start and finalists, about: often the first continues."""
        return 0 if self.choosing == "highest" else self.comparing + FOLDS
