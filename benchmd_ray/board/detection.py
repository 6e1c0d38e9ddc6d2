"""Out-of-distribution detection on a board: its official records, and the scores of detectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from benchmd_ray.schema.typed import Name
from benchmd_ray.scores.detection import Side, resampled_detection
from benchmd_ray.scores.ranking import auroc
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.sums import Floats
from benchmd_ray.scores.support import Basis, support
from benchmd_ray.scores.units import Units

MOST_SETS, MOST_CASES = 500, 10


@dataclass(frozen=True)
class AboutSet:
    """A set of records of detection."""

    name: Name
    use_case: Annotated[str, Field(pattern="^([a-z][a-z-]{0,39})?$")]
    """Empty in distribution."""


@dataclass(frozen=True, eq=False)
class Detected:
    """The official records of detection, sorted by the hash of set and record."""

    sets: Sequence[AboutSet]
    """One is in distribution."""
    records: Sequence[bytes]
    """Hashes."""
    numbers: npt.NDArray[np.int32]
    """(records,): the place of each one's set in ``sets``."""
    unit_names: Sequence[str]
    patient_names: Sequence[str]

    @cached_property
    def use_cases(self) -> dict[str, list[int]]:
        """Places of the sets of each use-case in ``sets``, also of the empty one."""
        cases: dict[str, list[int]] = {}
        for place, about in enumerate(self.sets):
            cases.setdefault(about.use_case, []).append(place)
        return cases

    @property
    def counts(self) -> dict[str, int]:
        """Number of sets of each use-case."""
        return {case: len(places) for case, places in self.use_cases.items() if case}

    @cached_property
    def _units(self) -> Units:
        """What is scored; a record and its faulty copy are two."""
        pairs = zip(self.numbers.tolist(), self.unit_names, strict=True)
        return Units([f"{number} {name}" for number, name in pairs])

    @cached_property
    def _rows(self) -> list[npt.NDArray[np.intp]]:
        """Units of each set."""
        numbers = self.numbers[self._units.first]
        return [np.flatnonzero(numbers == place) for place in range(len(self.sets))]

    @cached_property
    def _patients(self) -> npt.NDArray[np.intp]:
        """(units,): the patient of each, by number."""
        numbers = np.unique(np.array(self.patient_names), return_inverse=True)[1]
        return numbers[self._units.first]

    @cached_property
    def _bases(self) -> list[Basis]:
        """What the AUROC of each set rests on."""
        (inside,) = self.use_cases[""]
        pairs = ((self._rows[inside], rows) for rows in self._rows)
        return [
            support(_kinds(*pair)[:, None], self._patients[np.concatenate(pair)]).basis("auroc", 1)
            for pair in pairs
        ]

    def results(self, scores: Sequence[Floats], resamples: int) -> Iterator[dict[str, Any]]:
        """AUROC of a detector by use-case, mean over its sets.

        Args:
            scores: (records,) of each seed.
            resamples: Of the patients.
        """
        pooled = [self._units.scores(each[:, None])[:, 0] for each in scores]
        for case in self.counts:
            places = self.use_cases[case]
            bases = [self._bases[place] for place in places]
            drawn = 0 if any(basis.no_interval for basis in bases) else resamples
            values, draws = zip(*(self._means(each, places, drawn) for each in pooled), strict=True)
            seeds = pooled_seeds(values, draws, min(bases, key=lambda basis: basis.fewest))
            ends = {"auroc": seeds.mean, "auroc_low": seeds.low, "auroc_high": seeds.high}
            yield {"use_case": case, "sets": len(places), **ends, "caution": seeds.caution}

    def _means(self, scores: Floats, places: Sequence[int], resamples: int) -> tuple[float, Floats]:
        """AUROC of a seed, mean over sets, and its resamples."""

        def side(place: int) -> Side:
            rows = self._rows[place]
            return scores[rows], self._patients[rows]

        inside, sets = side(self.use_cases[""][0]), [side(place) for place in places]
        values = [
            auroc(_kinds(inside[0], out), np.concatenate((inside[0], out))) for out, _ in sets
        ]
        draws = resampled_detection(inside, sets, resamples) if resamples else np.empty((1, 0))
        return float(np.mean(values)), draws.mean(axis=0)


def _kinds(inside: npt.ArrayLike, outside: npt.ArrayLike) -> npt.NDArray[np.int8]:
    """0 for each record in distribution, then 1 for each out of it."""
    return np.repeat(np.array([0, 1], np.int8), [np.size(inside), np.size(outside)])
