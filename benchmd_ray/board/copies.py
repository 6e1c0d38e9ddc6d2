"""Predictions that are those of another submitter, or nearly.

A sketch of 512 numbers keeps the angle between two models' scores (feature hashing: Weinberger et
al. 2009), once of the scores and once of their ranks, so that a copy is found that has small noise,
or whose scores were changed monotonically.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

Floats = npt.NDArray[np.float64]
Sketch = npt.NDArray[np.float32]
WIDTH = 256
"""Numbers of each of the two parts of a sketch."""
ALIKE = 0.995
"""Correlation from which predictions count as nearly the same."""
HALVES = (slice(WIDTH), slice(WIDTH, None))
DIGITS = 5
"""Of a correlation: further ones depend on the processor."""
BLOCK = 16
"""Entries that are compared with all others at a time."""
MOST = 10
"""Others that are named for one."""


def sketch(scores: Floats) -> Sketch:
    """Sketch of scores (units, classes): (2 × `WIDTH`,), each half of length 1, or 0."""
    places, signs = _hashing(scores.size)
    halves = []
    for values in (scores, rankdata(scores, axis=0)):
        centred = (values - values.mean(axis=0)).ravel()
        half = np.bincount(places, centred * signs, WIDTH)
        length = float(np.linalg.norm(half))
        halves.append(half / length if length > 0 else half)
    return np.concatenate(halves).astype(np.float32)


@lru_cache(maxsize=8)
def _hashing(size: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int8]]:
    rng = np.random.default_rng(size)
    places = rng.integers(0, WIDTH, size)
    return places, (2 * rng.integers(0, 2, size) - 1).astype(np.int8)


def copies(
    sketches: Sequence[Sketch], owners: Sequence[object]
) -> Iterator[list[tuple[int, float]]]:
    """For each entry those of other owners that are alike in scores or in their order.

    Args:
        sketches: Of each entry, (runs, 2 × `WIDTH`).
        owners: Whose each is.

    Yields:
        Numbers of at most `MOST` entries with the correlation, the largest first.
    """
    whole = np.concatenate(sketches)
    starts = np.cumsum([0, *map(len, sketches[:-1])])
    numbers = {name: number for number, name in enumerate(dict.fromkeys(owners))}
    owner = np.array([numbers[name] for name in owners])
    for first in range(0, len(sketches), BLOCK):
        last = min(first + BLOCK, len(sketches))
        rows = whole[starts[first] : starts[last - 1] + len(sketches[last - 1])]
        runs = np.maximum(*(rows[:, part] @ whole[:, part].T for part in HALVES))
        inner = starts[first:last] - starts[first]
        block = np.maximum.reduceat(np.maximum.reduceat(runs, starts, axis=1), inner, axis=0)
        block[owner[first:last, None] == owner] = -1
        for alike in block:
            order = np.argsort(-alike, kind="stable")[:MOST]
            yield [(int(n), round(float(alike[n]), DIGITS)) for n in order if alike[n] >= ALIKE]
