"""Data and objectives of transfer: labels, feed, losses and scores of tasks, best epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
from benchmd_ray.modality.tasks import SEGMENTATION, Task, TaskKind
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.heads import Classifier, classification_head, classification_loss
from benchmd_ray.models.segmenter import Segmenter, segmentation_loss
from benchmd_ray.scores.metrics import auroc, probabilities, require_scorable
from benchmd_ray.scores.sums import Floats, Targets
from benchmd_ray.scores.units import Units
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.collect import collect, evaluation_batch
from benchmd_ray.training.segmentation import collect_overlaps, mean_dice

Weights = dict[str, torch.Tensor]
HALVES = ("first_half_auroc", "second_half_auroc")
"""Names in metrics of the scores on halves of the validation split."""
FEWEST = 20
"""Fewest patients for which a validation split is halved."""


@dataclass
class Best:
    """The best epoch so far."""

    score: float = -1.0
    epoch: int = -1
    weights: Weights = field(default_factory=dict)

    def offer(self, score: float, epoch: int, weights: Callable[[], Weights]) -> None:
        """Keep an epoch if it is better than all before; of equal ones the first stays."""
        if score > self.score:
            self.score, self.epoch, self.weights = score, epoch, weights()


@dataclass(frozen=True)
class TransferData:
    """Labels for training and selection."""

    task: TaskKind
    rows: Rows
    """Rows of the training split that the run trains on, ascending."""
    columns: Columns
    """Targets of all rows of the training split."""
    validation_targets: npt.NDArray[np.int8]
    """Targets of all rows of the validation split; none for segmentation, whose masks come from the
    feed.
    """
    validation_units: Units
    """Scored units of these rows."""
    second_half: npt.NDArray[np.bool_] | None = None
    """Rows of the second half of the patients, if halves are scored too."""
    device: str = "cpu"
    """Torch device for computing ranks."""

    def scores(self, logits: npt.NDArray[Any]) -> dict[str, float]:
        """Mean AUROC of the validation split and its halves by name, by logits (rows, classes)."""
        scores = probabilities(logits, self.task)
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
    """AUROC of one class, sorted on a device; equals `scores.ranking.auroc`."""
    rows = torch.as_tensor(score, dtype=torch.float64, device=device)
    positive = rows[torch.as_tensor(target, device=device) == 1]
    ascending, several = rows.sort().values, len(positive)
    below = torch.searchsorted(ascending, positive).sum()
    up_to = torch.searchsorted(ascending, positive, right=True).sum()
    won = int(below + up_to) - several**2
    return won / (2 * several * (len(rows) - several))


def transfer_data(settings: Settings, catalog: Catalog, *, halved: bool = False) -> TransferData:
    """Validated rows and targets of a label setting; with ``halved`` halves are scored too."""
    columns = read_columns(catalog, "train")
    if catalog.task.segments:
        return _mask_data(settings, catalog, columns)
    targets = columns.targets.astype(np.int8)
    labels = settings.transfer.labels_per_class
    rows = label_subset(targets, labels, catalog.task.kind, settings.seed)
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
    """Rows of the second half of the validation patients, stratified by class."""
    table = split_table(catalog, "validation", ["group_id"])
    patients = np.array(table["group_id"].to_pylist(), np.str_)
    if len(np.unique(patients)) < FEWEST:
        return None
    second = np.zeros(len(patients), bool)
    second[balanced_folds(patients, rarest_class(targets == 1), 2, seed=0)[1]] = True
    return second


def crossed(lines: Sequence[Mapping[str, float]]) -> float:
    """Score of a training with the epoch chosen on other patients than those scored.

    The mean of each half's score at the best epoch of the other half, since the maximum of many
    noisy scores would be biased upward. NaN if halves were not scored.
    """
    table = np.array([[line.get(name, np.nan) for name in HALVES] for line in lines])
    table = table.reshape(-1, 2)
    table[~np.isfinite(table).all(axis=1)] = -1.0
    if not (table >= 0).any():
        return float("nan")
    first, second = table[table.argmax(axis=0)]
    return float(first[1] + second[0]) / 2


def _mask_data(settings: Settings, catalog: Catalog, columns: Columns) -> TransferData:
    """All masks of the training split; label subsets and shuffled labels are refused."""
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
            f"{catalog.path}, split validation, has none of {', '.join(catalog.card.classes[1:])}, "
            "so no epoch could be chosen: expected a mask "
            "with a class but the background."
        )
    none = np.empty((0, 0), np.int8)
    return TransferData(catalog.task.kind, np.arange(len(columns)), columns, none, Units([]))


def training_streams(catalog: Catalog, settings: Settings, data: TransferData) -> bool:
    """Whether training records are streamed: all are used, and they do not fit in memory."""
    return _whole(catalog, settings, data) and streams(catalog, "train", settings.execution)


def _whole(catalog: Catalog, settings: Settings, data: TransferData) -> bool:
    return len(data.rows) == catalog.rows("train") and not settings.transfer.shuffle_labels


def training_feed(catalog: Catalog, settings: Settings, worker: Worker, data: TransferData) -> Feed:
    """A streaming feed if the whole split is used and exceeds memory; otherwise resident."""
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
    """Sampling probabilities of records with targets (records, classes), by their rarest class.

    They are proportional to n^-balance, where n is the number of positive records of the rarest
    positive class; records without a positive class count as a class. At 1 all classes of a
    single-label task are seen equally often; below 1 it is the sampling of Lample and Conneau, by
    class instead of language (https://arxiv.org/abs/1901.07291, section 3.1).
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
    """Refuse ``transfer.class_balance`` for masks, and for a training split that streams."""
    balance, expected = settings.transfer.class_balance, ""
    if catalog.task.segments:
        expected = "the task is a segmentation, whose records have no class: expected 0"
    elif training_streams(catalog, settings, data):
        expected = (
            "its training split streams, shard by shard: expected 0, or a resident split "
            "(execution.feed=resident, or a larger execution.resident_gib)"
        )
    if balance and expected:
        raise BenchmdError(
            f"transfer.class_balance is {balance:g} on {catalog.path}, and {expected}. In a "
            "search, use --fix transfer.class_balance."
        )


Model = Classifier | Segmenter
Forward = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Objective:
    """Inputs, loss and selection score of training on a kind of task."""

    loss: Callable[..., torch.Tensor]
    """Function of outputs, targets and label ``smoothing`` for the loss of each example,
    (batch,).
    """
    scores: Callable[[Forward, Feed, Model, TransferData], dict[str, float]]
    """Scores of the validation split by a forward pass in eval mode, by their names in metrics: the
    selection score, and maybe others.
    """


def objective_of(kind: TaskKind) -> Objective:
    if kind == SEGMENTATION:
        return Objective(segmentation_loss, _dice)
    return Objective(partial(classification_loss, task=kind), _auroc)


def model_of(encoder: Encoder, task: Task, settings: Settings) -> Model:
    """An encoder with a new head for a task."""
    classes = len(task.classes)
    if task.segments:
        return Segmenter(encoder, classes)
    hidden, dropout = settings.transfer.head_width, settings.transfer_encoder.dropout
    head = classification_head(encoder.width, classes, hidden, dropout)
    return Classifier(encoder, classes, head)


def _auroc(forward: Forward, feed: Feed, model: Model, data: TransferData) -> dict[str, float]:
    return data.scores(collect(forward, feed, evaluation_batch(model.encoder)))


def _dice(forward: Forward, feed: Feed, model: Model, data: TransferData) -> dict[str, float]:
    assert isinstance(model, Segmenter)
    size, classes = evaluation_batch(model.encoder), model.head.out_channels
    return {"validation_dsc": mean_dice(collect_overlaps(forward, feed, size, classes))}
