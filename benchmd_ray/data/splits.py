"""Splits by patient, and label settings, all deterministic."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.tasks import EXCLUSIVE, UNKNOWN, TaskKind

VERSION = 1
"""Raised whenever what it makes of the same values changes."""
FOLDS = "folds"
"""Split of all records of a dataset that is cross-validated, see `data.folds`."""
TARGET_SPLIT = {"clean": "test", "released": "validation"}
"""Split of the records of a target that are scored, by policy (decision D19)."""


def stable_fraction(key: str) -> float:
    """A number in [0, 1) that depends only on ``key``, uniform over keys."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) / 2**64


def hashed_split(dataset: str, key: str) -> str:
    """``train`` for 80 % of the keys, ``validation`` for the others.

    The key is the patient (policy ``clean``, decision D7), or what the paper's rule draws by.
    """
    return "train" if stable_fraction(f"{dataset}/{key}") < 0.8 else "validation"


def balanced_splits(
    dataset: str,
    patients: Sequence[str],
    labels: Sequence[Sequence[str]],
    shares: Mapping[str, float],
) -> list[str]:
    """Split of each record, by patient and with each class in the same shares.

    A patient counts for the rarest class of their records. Within a class a stable hash gives the
    order; each split gets a patient of every class that has enough.
    ``patients`` and ``labels`` are of each record; ``shares`` need not sum to 1.
    """
    splits: dict[str, str] = {}
    for same_class in _by_rarest_class(dataset, patients, labels):
        parts = _parts(len(same_class), list(shares.values()))
        names = [split for split, part in zip(shares, parts, strict=True) for _ in range(part)]
        splits |= dict(zip(same_class, names, strict=True))
    return [splits[patient] for patient in patients]


def folds_by_patient(
    dataset: str, patients: Sequence[str], labels: Sequence[Sequence[str]], folds: int
) -> list[list[str]]:
    """Patients of each fold, of equal sizes and with each class in balance.

    Patients are dealt to the folds in turn, class by class; classes and arguments as in
    `balanced_splits`. Sizes, and numbers of a class, differ by one at most.
    """
    ordered = [name for same in _by_rarest_class(dataset, patients, labels) for name in same]
    return [sorted(ordered[fold::folds]) for fold in range(folds)]


def _by_rarest_class(
    dataset: str, patients: Sequence[str], labels: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Patients by the rarest class of their records, each in the order of a stable hash."""
    labels_of: dict[str, set[str]] = {}
    for patient, names in zip(patients, labels, strict=True):
        labels_of.setdefault(patient, set()).update(names)
    counts = Counter(name for names in labels_of.values() for name in names)
    members: dict[str, list[str]] = {}
    for patient, names_of_patient in labels_of.items():
        rarest = min(names_of_patient, key=lambda name: (counts[name], name), default="")
        members.setdefault(rarest, []).append(patient)
    for same_class in members.values():
        same_class.sort(key=lambda patient: (stable_fraction(f"{dataset}/{patient}"), patient))
    return [members[name] for name in sorted(members)]


def _parts(count: int, shares: Sequence[float]) -> list[int]:
    """A number cut in shares, by largest remainder; each at least one where there are enough."""
    least = int(count >= len(shares))
    wanted = [count * share / sum(shares) for share in shares]
    parts = [max(least, int(value)) for value in wanted]
    while sum(parts) != count:
        step = 1 if sum(parts) < count else -1
        open_to = [at for at, part in enumerate(parts) if step > 0 or part > least]
        parts[max(open_to, key=lambda at: step * (wanted[at] - parts[at]))] += step
    return parts


def label_subset(
    targets: npt.NDArray[np.int8], per_class: int | None, task: TaskKind, seed: int
) -> npt.NDArray[np.int64]:
    """Rows of a label setting, ascending.

    Nested: the rows for 8 labels a class are among those for 64, for any one seed. Single-label
    draws within each class. Multi-label goes class by class until each has that many positives or
    is exhausted; a row counts as labelled where one of its labels is known.
    ``targets`` are (rows, classes) of the training split: 1, 0 or -1 for unknown. A class with
    fewer than ``per_class`` gives all; None takes all labelled rows.

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

    Classes take turns, one positive at a time, so that a larger setting continues where a smaller
    one stopped: a row that counts for several classes never displaces another.
    """
    taken = np.zeros(len(positive), bool)
    counts = np.zeros(positive.shape[1], np.int64)
    waiting = [iter(rows) for rows in positives]
    for wanted in range(1, per_class + 1):
        for column, rows in enumerate(waiting):
            row = next((r for r in rows if not taken[r]), None) if counts[column] < wanted else None
            if row is not None:
                taken[row] = True
                counts += positive[row]
    return taken


def balanced_folds(
    patients: npt.NDArray[np.str_], classes: npt.NDArray[np.intp], parts: int, seed: int
) -> list[npt.NDArray[np.intp]]:
    """Rows of each fold, by patient and with classes, (rows,) see `rarest_class`, in balance."""
    from sklearn.model_selection import StratifiedGroupKFold  # half a second

    cut = StratifiedGroupKFold(parts, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        return [rows for _, rows in cut.split(patients, classes, patients)]


def rarest_class(positive: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """The rarest positive class of each record, (rows,), by which it is stratified.

    Of (rows, classes); the number of classes where none is positive.
    """
    counts = positive.sum(axis=0)
    filled_counts = np.where(positive, counts, len(positive) + 1)
    rarest = np.where(positive.any(axis=1), filled_counts.argmin(axis=1), positive.shape[1])
    return np.asarray(rarest, np.intp)
