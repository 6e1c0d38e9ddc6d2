"""Who goes where: splits by patient and label settings, all deterministic."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import BenchmdError
from benchmd_ray.tasks import EXCLUSIVE, UNKNOWN, TaskKind

TARGET_SPLIT = {"clean": "test", "released": "validation"}
"""Split of the records of a target that are scored, by policy (decision D19)."""


def stable_fraction(key: str) -> float:
    """A number in [0, 1) that depends on ``key`` alone, uniform over keys."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) / 2**64


def hashed_split(dataset: str, key: str) -> str:
    """``train`` for 80 % of the keys, ``validation`` for the others.

    Args:
        dataset: Name of the dataset.
        key: The patient (policy ``clean``, decision D7), or what the paper's rule draws by.
    """
    return "train" if stable_fraction(f"{dataset}/{key}") < 0.8 else "validation"


def label_subset(
    targets: npt.NDArray[np.int8], per_class: int | None, task: TaskKind, seed: int
) -> npt.NDArray[np.int64]:
    """Rows of a label setting, ascending.

    Nested: the rows for 8 labels a class are among those for 64, for any one seed.

    Args:
        targets: (rows, classes), 1, 0 or -1 (unknown), of the training split.
        per_class: Labels a class; all labelled rows when None, all there are when a class has
            fewer.
        task: Single-label draws within each class, and a row without its one class is not
            labelled; multi-label goes class by class until each has that many positives or is
            exhausted, and a row is labelled where one of its labels is known.
        seed: Seed of the draw.

    Raises:
        BenchmdError: No row is labelled.
    """
    positive = targets == 1
    if not positive.any():
        raise BenchmdError(
            f"none of the {len(targets)} training records has a positive label; the label "
            "setting would be empty. Check the catalog's counts with `benchmd catalog verify`."
        )
    if per_class is None:
        labelled = positive if task in EXCLUSIVE else targets != UNKNOWN
        return np.flatnonzero(labelled.any(axis=1))
    order = np.random.default_rng([seed, 0x1AB]).permutation(len(targets))
    positives = [order[column[order]] for column in positive.T]
    if task in EXCLUSIVE:
        return np.sort(np.concatenate([rows[:per_class] for rows in positives]))
    return np.flatnonzero(_filled(positive, positives, per_class))


def _filled(
    positive: npt.NDArray[np.bool_], positives: list[npt.NDArray[np.int64]], per_class: int
) -> npt.NDArray[np.bool_]:
    """Rows taken until each class holds ``per_class`` positives or is exhausted.

    The classes take turns, one positive at a time, so that a larger setting goes on where a
    smaller one stopped: a row that counts for several classes never displaces another.
    """
    taken = np.zeros(len(positive), bool)
    held = np.zeros(positive.shape[1], np.int64)
    waiting = [iter(rows) for rows in positives]
    for wanted in range(1, per_class + 1):
        for column, rows in enumerate(waiting):
            row = next((r for r in rows if not taken[r]), None) if held[column] < wanted else None
            if row is not None:
                taken[row] = True
                held += positive[row]
    return taken
