"""What a detector is: a state fitted on in-distribution records, and a score of others by it.

A larger score is more out of distribution. Detectors are pure functions of a network's
outputs; what they fit is named arrays, so that it can be kept with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import BenchmdError, require_plain_name

Floats = npt.NDArray[np.float64]
BLOCK = 4096
"""Records that are scored at a time: what is computed of them is bounded, and stays in caches."""
State = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Seen:
    """Outputs of a network for some records."""

    features: npt.NDArray[np.float32]
    """(records, width), of the last layer before the head."""
    logits: npt.NDArray[np.float32]
    more: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """Other quantities by name, (records, …): ``layer 3``, ``reconstruction``, ``pixels``."""

    def __len__(self) -> int:
        return len(self.features)

    def at(self, rows: npt.NDArray[np.generic] | slice) -> Seen:
        """Some of the records."""
        more = {name: values[rows] for name, values in self.more.items()}
        return Seen(self.features[rows], self.logits[rows], more)


@dataclass(frozen=True)
class Head:
    """The linear head of a network: logits = features · weightᵀ + bias."""

    weight: Floats
    bias: Floats
    exclusive: bool
    """Whether a record is of exactly one class; else each class is a label of its own."""


@dataclass(frozen=True)
class Bank:
    """In-distribution records that a detector is fitted on: those that the network learned from."""

    seen: Seen
    targets: npt.NDArray[np.int8]
    """(records, classes): 1, 0, or -1 for unknown."""
    head: Head
    validation: Seen | None = None
    """Other in-distribution records, on which a temperature is fitted."""
    validation_targets: npt.NDArray[np.int8] | None = None

    def groups(self) -> dict[str, npt.NDArray[np.intp]]:
        """Rows of each class, by its number; of a multi-label task of each label, and ``none``.

        Groups of fewer than two records are excluded.

        Raises:
            BenchmdError: All are.
        """
        rows = {str(k): np.flatnonzero(column == 1) for k, column in enumerate(self.targets.T)}
        if not self.head.exclusive:
            rows["none"] = np.flatnonzero((self.targets == 0).all(axis=1))
        kept = {name: members for name, members in rows.items() if len(members) >= 2}
        if not kept:
            raise BenchmdError("no class has two training records: detectors cannot be fitted.")
        return kept


@dataclass(frozen=True)
class Calibration:
    """Records of both kinds that a detector that learns is calibrated on, none of them scored."""

    seen: Seen
    out: npt.NDArray[np.bool_]

    def at(self, rows: npt.NDArray[np.bool_]) -> Calibration:
        """Some of the records."""
        return Calibration(self.seen.at(rows), self.out[rows])


@dataclass(frozen=True)
class Detector:
    name: str
    title: str
    fit: Callable[..., State]
    """From a `Bank`, and by name its hyperparameters, to what it learns of in-distribution records
    only; the state holds the hyperparameters."""
    score: Callable[[State, Seen, Head], Floats]
    """(records,): larger is more out."""
    source: str
    calibrate: Callable[[State, Calibration, Calibration, Head], State] | None = None
    """What it learns of records of both kinds, added to its state; None where it needs none. The
    second ones are of other patients, by which it may choose, such as an epoch."""
    asks: Callable[[Any, State, Any], Any] | None = None
    """What it computes of signals by the network and its state: from an `ood.network.Network`, the
    state and normalised signals to a tensor (records, …); it is in `Seen.more` under the
    detector's name."""
    once: Callable[[State, Seen, Head], npt.NDArray[np.float32]] | None = None
    """What calibrations and scores read of records, computed once for all of them; it is in
    `Seen.more` under the detector's name."""
    shared: Callable[[Bank], float] | None = None
    """Seconds of a training that several detectors share: the fit of all but one finds it done."""
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of hyperparameters of which a calibration takes those with the highest AUROC."""
    threshold: float | None = None
    """Scores above it are rejected, where a detector learns its threshold, too."""
    exclusive_only: bool = False
    non_negative: bool = False
    images_only: bool = False
    needs: tuple[str, ...] = ()
    """Names, or beginnings of names, of the quantities in `Seen.more` that it reads."""

    def __post_init__(self) -> None:
        require_plain_name("detector", self.name)

    def scores(self, state: State, seen: Seen, head: Head) -> Floats:
        """`score` of any number of records, `BLOCK` at a time: (records,)."""
        blocks = range(0, len(seen), BLOCK)
        parts = [self.score(state, seen.at(slice(start, start + BLOCK)), head) for start in blocks]
        return np.concatenate(parts) if parts else np.empty(0)


def finite(scores: Floats, method: str, names: npt.NDArray[np.str_] | None = None) -> Floats:
    """The scores themselves; NaN or infinity is an error that names the first such record."""
    wrong = np.flatnonzero(~np.isfinite(scores))
    if len(wrong):
        which = f"record {wrong[0]}" if names is None else f"the record {names[wrong[0]]}"
        raise BenchmdError(
            f"the detector {method} gives {scores[wrong[0]]} for {which} and in all "
            f"{len(wrong)} of {len(scores)} scores that are not finite. Check the network's "
            "features of it, or exclude the detector."
        )
    return scores


def nothing(_: Bank) -> State:
    """The state of a detector that fits nothing."""
    return {}
