"""What transfer trains and selects on: labels, feed, score of an epoch, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmd_ray.data.batches import Columns, Feed, Odds, Rows, Worker
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import chosen_rows_feed, read_columns, read_units, whole_split_feed
from benchmd_ray.data.resident import split_table
from benchmd_ray.data.sizes import streams
from benchmd_ray.data.splits import balanced_folds, label_subset, rarest_class
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.tasks import TaskKind
from benchmd_ray.scores.metrics import auroc, probabilities, require_scorable
from benchmd_ray.scores.sums import Floats, Targets
from benchmd_ray.scores.units import Units
from benchmd_ray.settings.definition import Settings

Weights = dict[str, torch.Tensor]
HALVES = ("first_half_auroc", "second_half_auroc")
"""Names of the scores on halves of the validation split, in metrics."""
FEWEST = 20
"""Patients below which a validation split has no halves."""


@dataclass
class Best:
    """The best epoch so far."""

    score: float = -1.0
    epoch: int = -1
    weights: Weights = field(default_factory=dict)

    def offer(self, score: float, epoch: int, weights: Callable[[], Weights]) -> None:
        """Take an epoch that is better than all before; among equals the first stays."""
        if score > self.score:
            self.score, self.epoch, self.weights = score, epoch, weights()


@dataclass(frozen=True)
class TransferData:
    """The labels that a run trains and selects on."""

    task: TaskKind
    rows: Rows
    """Rows of the training split that the run trains on, ascending."""
    columns: Columns
    """Of all rows of the training split."""
    validation_targets: npt.NDArray[np.int8]
    """Of all rows of the validation split; none of a segmentation, whose masks the feed gives."""
    validation_units: Units
    """What these rows are scored as part of."""
    second_half: npt.NDArray[np.bool_] | None = None
    """Of these rows, those of the second half of the patients, where halves are scored too."""
    into: Path | None = None
    """File that gets the probabilities of what was scored last, (rows, classes)."""
    device: str = "cpu"
    """That ranks what is scored, as torch names it."""

    def scores(self, logits: npt.NDArray[Any]) -> dict[str, float]:
        """Mean AUROC of the validation split and its halves, by name, of logits (rows, classes)."""
        scores = probabilities(logits, self.task)
        if self.into is not None:
            np.save(self.into, scores.astype(np.float32), allow_pickle=False)
        targets = self.validation_units.targets(self.validation_targets)
        scores = self.validation_units.scores(scores)
        metrics = {"validation_auroc": self._auroc(targets, scores)}
        if self.second_half is not None:
            second = self.second_half[self.validation_units.first]
            for name, half in zip(HALVES, (~second, second), strict=True):
                metrics[name] = self._auroc(targets[half], scores[half])
        return metrics

    def _auroc(self, targets: Targets, scores: Floats) -> float:
        if self.device == "cpu":
            return auroc(targets, scores).mean
        return auroc(targets, scores, partial(auroc_on, self.device)).mean


def auroc_on(device: str, target: Targets, score: Floats) -> float:
    """AUROC of one class, sorted on a device: the number of `benchmd_ray.scores.ranking.auroc`."""
    rows = torch.as_tensor(score, dtype=torch.float64, device=device)
    positive = rows[torch.as_tensor(target, device=device) == 1]
    ascending, several = rows.sort().values, len(positive)
    below = torch.searchsorted(ascending, positive).sum()
    up_to = torch.searchsorted(ascending, positive, right=True).sum()
    won = int(below + up_to) - several**2
    return won / (2 * several * (len(rows) - several))


def transfer_data(settings: Settings, catalog: Catalog, *, halved: bool = False) -> TransferData:
    """Rows and targets of the label setting, checked.

    ``halved`` scores halves of the validation split, too.

    Raises:
        BenchmdError: The validation split has no class that can be scored, or a segmentation is
            to have few labels or permuted ones.
    """
    columns = read_columns(catalog, "train")
    if catalog.task.segments:
        return _mask_data(settings, catalog, columns)
    targets = columns.targets.astype(np.int8)
    rows = label_subset(
        targets,
        settings.transfer.labels_per_class,
        catalog.task.kind,
        settings.seed,
    )
    if settings.transfer.shuffle_labels:
        order = np.random.default_rng([settings.seed, 0x5F1]).permutation(len(rows))
        targets[rows] = targets[rows[order]]
    validation = read_columns(catalog, "validation").targets.astype(np.int8)
    units = Units(read_units(catalog, "validation"))
    where = f"{catalog.path}, split validation"
    require_scorable(units.targets(validation), catalog.task.classes, where)
    labelled = replace(columns, targets=targets)
    halves = _second_half(catalog, validation) if halved else None
    return TransferData(catalog.task.kind, rows, labelled, validation, units, halves)


def _second_half(catalog: Catalog, targets: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_] | None:
    """Rows of the second half of the validation split's patients, classes in balance."""
    table = split_table(catalog, "validation", ["group_id"])
    patients = np.array(table["group_id"].to_pylist(), np.str_)
    if len(np.unique(patients)) < FEWEST:
        return None
    second = np.zeros(len(patients), bool)
    second[balanced_folds(patients, rarest_class(targets == 1), 2, seed=0)[1]] = True
    return second


def crossed(lines: Sequence[Mapping[str, float]]) -> float:
    """Score of a training whose epoch is chosen on other patients than it is scored on.

    The epoch that is best on one half of the validation split is scored on the other half, and the
    mean of both is taken: the highest of many noisy scores would be too high, the more so the
    longer and the less steadily a model is trained.

    Returns:
        NaN where the halves were not scored.
    """
    places = crossing(lines)
    if places is None:
        return float("nan")
    first, second = (lines[place] for place in places)
    return (first[HALVES[1]] + second[HALVES[0]]) / 2


def crossing(lines: Sequence[Mapping[str, float]]) -> tuple[int, int] | None:
    """Places of the lines that are best on the first and on the second half, see `crossed`."""
    table = np.array([[line.get(name, np.nan) for name in HALVES] for line in lines])
    table = table.reshape(-1, 2)
    table[~np.isfinite(table).all(axis=1)] = -1.0
    if not (table >= 0).any():
        return None
    first, second = table.argmax(axis=0)
    return int(first), int(second)


def _mask_data(settings: Settings, catalog: Catalog, columns: Columns) -> TransferData:
    """All masks of the training split.

    Raises:
        BenchmdError: Fewer are asked for, or permuted ones, or the validation split shows nothing.
    """
    transfer = settings.transfer
    for name, holds, expected in (
        ("labels", transfer.labels == "full", "full: a mask is not a label of one class"),
        ("shuffle_labels", not transfer.shuffle_labels, "false: masks belong to their volumes"),
    ):
        if not holds:
            raise BenchmdError(
                f"transfer.{name} is {getattr(transfer, name)}, and the task of {catalog.dataset} "
                f"is a segmentation: expected {expected}."
            )
    counts = catalog.manifest["splits"]["validation"]["classes"]
    if not any(counts[name] for name in catalog.card.classes[1:]):
        raise BenchmdError(
            f"{catalog.path}, split validation, shows none of "
            f"{', '.join(catalog.card.classes[1:])}, so no epoch could be chosen: expected a mask "
            "with a class but the background."
        )
    none = np.empty((0, 0), np.int8)
    return TransferData(catalog.task.kind, np.arange(len(columns)), columns, none, Units([]))


def training_streams(catalog: Catalog, settings: Settings, data: TransferData) -> bool:
    """Whether the training records are streamed: all are used, and they are too large to hold."""
    return _whole(catalog, settings, data) and streams(catalog, "train", settings.execution)


def _whole(catalog: Catalog, settings: Settings, data: TransferData) -> bool:
    return len(data.rows) == catalog.rows("train") and not settings.transfer.shuffle_labels


def training_feed(catalog: Catalog, settings: Settings, worker: Worker, data: TransferData) -> Feed:
    """Streaming where the whole split is used and too large to hold; else the rows are held."""
    transfer, odds = settings.transfer, None
    if transfer.class_balance and transfer.mode == "finetune":
        odds = class_odds(data.columns.targets[data.rows], transfer.class_balance)
    if odds is None and _whole(catalog, settings, data):
        return whole_split_feed(catalog, "train", settings, worker, catalog.statistics)
    return chosen_rows_feed(
        catalog,
        "train",
        data.rows,
        data.columns,
        settings=settings,
        worker=worker,
        statistics=catalog.statistics,
        odds=odds,
    )


def class_odds(targets: npt.NDArray[Any], balance: float) -> Odds:
    """Chances of training records by how rare their rarest class is.

    Each is proportional to n^-balance, where n is the number of records that are positive in its
    rarest positive class; those that are positive in none count as a class. At 1 each class of a
    single-label task is seen as often as any other. Between 0 and 1 it is the sampling of Lample
    and Conneau (https://arxiv.org/abs/1901.07291, section 3.1), by classes.

    Args:
        targets: (records, classes), 1, 0 or -1 (unknown).
        balance: ``transfer.class_balance``, in [0, 1].
    """
    positive = targets == 1
    without = ~positive.any(axis=1, keepdims=True)
    members = np.concatenate([positive, without], axis=1)
    counts = members.sum(axis=0)
    rarest = np.where(members, counts, len(targets)).min(axis=1)
    weights = rarest.astype(np.float64) ** -balance
    odds: Odds = weights / weights.sum()
    return odds


def require_balanceable(settings: Settings, catalog: Catalog, data: TransferData) -> None:
    """Refuse to draw records by their classes where they have none, or are read one by one.

    Raises:
        BenchmdError: ``transfer.class_balance`` is above 0, and the task is a segmentation or the
            training split streams.
    """
    balance, expected = settings.transfer.class_balance, ""
    if catalog.task.segments:
        expected = "the task is a segmentation, whose records have no class: expected 0"
    elif training_streams(catalog, settings, data):
        expected = (
            "its training split streams, shard by shard: expected 0, or a split that is held in "
            "memory (execution.feed=resident, or a larger execution.resident_gib)"
        )
    if balance and expected:
        raise BenchmdError(
            f"transfer.class_balance is {balance:g} on {catalog.path}, and {expected}. A search "
            "holds it with --fix transfer.class_balance."
        )
