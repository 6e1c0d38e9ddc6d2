"""Out-of-distribution detection on a board: its official records, and the scores of detectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.schema.typed import Name
from benchmd_ray.scores.detection import resampled_detection
from benchmd_ray.scores.ranking import auroc
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.support import Basis, support
from benchmd_ray.scores.units import Units

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AboutSet:
    """A set of records of detection."""

    name: Name
    use_case: Name
    """Empty in distribution."""


@dataclass(frozen=True, eq=False)
class Detected:
    """The official records of detection, sorted by the hash of set and record."""

    sets: Sequence[AboutSet]
    records: Sequence[bytes]
    """Hashes."""
    numbers: npt.NDArray[np.int32]
    """(records,): the place of each one's set in ``sets``."""
    unit_names: Sequence[str]
    patient_names: Sequence[str]

    @cached_property
    def units(self) -> Units:
        """What is scored; a record and its faulty copy are two."""
        pairs = zip(self.numbers.tolist(), self.unit_names, strict=True)
        return Units([f"{number} {name}" for number, name in pairs])

    @cached_property
    def _of_units(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.intp]]:
        """Set and patient of each unit, by number."""
        groups = np.unique(np.array(self.patient_names), return_inverse=True)[1]
        return self.numbers[self.units.first], groups[self.units.first]

    @property
    def use_cases(self) -> dict[str, list[int]]:
        """Places of the sets of each use-case in ``sets``."""
        cases: dict[str, list[int]] = {}
        for place, about in enumerate(self.sets):
            cases.setdefault(about.use_case, []).append(place)
        return {case: places for case, places in cases.items() if case}

    @property
    def counts(self) -> dict[str, int]:
        """Number of sets of each use-case."""
        return {case: len(places) for case, places in self.use_cases.items()}

    def results(self, scores: Sequence[Floats], resamples: int) -> Iterator[dict[str, Any]]:
        """AUROC of a detector by use-case, mean over its sets.

        Args:
            scores: (records, 1) of each seed.
            resamples: Of the patients.
        """
        pooled = [self.units.scores(each)[:, 0] for each in scores]
        for case, places in self.use_cases.items():
            of_sets = [self._of_set(place, pooled, resamples) for place in places]
            values, draws, bases = zip(*of_sets, strict=True)
            drawn = not any(basis.no_interval for basis in bases)
            seeds = pooled_seeds(
                np.mean(values, axis=0).tolist(),
                np.mean(draws, axis=0) if drawn else [np.empty(0)] * len(scores),
                min(bases, key=lambda basis: basis.fewest),
            )
            ends = {"auroc": seeds.mean, "auroc_low": seeds.low, "auroc_high": seeds.high}
            yield {"use_case": case, "sets": len(places), **ends}

    def _of_set(
        self, place: int, scores: Sequence[Floats], resamples: int
    ) -> tuple[list[float], list[Floats], Basis]:
        """AUROC of each seed on a set, its resamples if it has an interval, and its basis."""
        numbers, patients = self._of_units
        inside = [n for n, about in enumerate(self.sets) if not about.use_case]
        chosen = np.isin(numbers, [place, *inside])
        out, groups = (numbers[chosen] == place).astype(np.int8), patients[chosen]
        basis = support(out[:, None], groups).basis("auroc", 1)
        each = [of_seed[chosen] for of_seed in scores]
        values = [auroc(out, one) for one in each]
        if basis.no_interval:
            return values, [], basis
        return values, [resampled_detection(out, one, groups, resamples) for one in each], basis
