"""Options of a search: sampler, stopping, evaluations, choice."""

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
    """racing: trials earn evaluations, and the lower half is stopped within the first; asha: all
    but the best third are stopped within their first evaluation; none: all get all evaluations."""
    evaluations: int = 1
    """Of a trial that is not stopped."""
    choosing: Choosing = "confirmed"
    """confirmed: the best few and the start are evaluated again (`tuning.confirm`); highest: the
    trial with the highest value, which is biased upward."""
    universal: bool = False
    """One search over several modalities, comparing mean scores."""
    cost: bool = False
    """Whether device hours are minimised as a second objective."""
    seed: int = 0

    @property
    def fresh(self) -> range:
        """Numbers of the evaluations of finalists, on cuts that the race did not use."""
        first = -(-self.evaluations // FOLDS) * FOLDS
        return range(first, first + cuts(self.evaluations) * FOLDS)

    @property
    def batches(self) -> list[range]:
        """The same, one range per cut."""
        return [self.fresh[place : place + FOLDS] for place in range(0, len(self.fresh), FOLDS)]

    @property
    def comparing(self) -> int:
        """Fresh evaluations of the start and a finalist on all cuts."""
        return 2 * len(self.fresh)

    @property
    def confirming(self) -> int:
        """Expected fresh evaluations of the start and finalists: often the first is enough."""
        return 0 if self.choosing == "highest" else self.comparing + FOLDS
