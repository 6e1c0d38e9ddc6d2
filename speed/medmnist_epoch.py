r"""``python -m speed.medmnist_epoch --npz breastmnist.npz`` from the project's root.

An epoch of MedMNIST's recipe (`benchmarks.medmnist.recipes`), in examples a second: the package's
feed and fine-tuning against a plain PyTorch loop over the same arrays (``TensorDataset``
of normalised images, ``DataLoader``, Adam, `MultiStepLR`, scikit-learn's AUROC). An epoch is what
the recipe needs of one: training on all training images, scoring the validation images, and a copy
of the weights where they are the best so far. Both have the same network with the same first
weights, and continue through the recipe epoch by epoch, in turn.

Both see the images in the same order. Before anything is timed each trains one epoch, of which the
loss of the first step must agree; this also warms up. After it rounding drives them apart, as it
does two runs of either: Adam's first steps are as long for a gradient of rounding as for any other.
How far is reported. Needs no Ray. Reading the file is left out of both; the package reads its
arrays as it reads a catalog's, or those of ``--catalog``, built from the same file.

Without ``--npz`` the images are random, of the shape that ``--dataset`` has.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmd_ray.benchmarks.medmnist.recipes import medmnist_settings
from benchmd_ray.data.batches import Columns, ResidentFeed, Worker, epoch_order
from benchmd_ray.data.cards import kind_of
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.scores.units import Units
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.training.augmentation import augmented, evaluated
from benchmd_ray.training.collect import collect, evaluation_batch
from benchmd_ray.training.engine import autocast, make_engine
from benchmd_ray.training.notice import Agreement
from benchmd_ray.training.selection import Best, TransferData
from benchmd_ray.training.transfer import finetune_epoch, finetuning_steps
from speed import measure

TOLERANCE = {"cpu": 1e-5, "cuda": 1e-2}
"""Largest difference between the losses of the first step; a GPU chooses other sums for each."""
SHOWN = 5
"""Steps whose losses are shown next to each other."""
SPLITS = {"train": "train", "validation": "val"}
"""Our split → how the arrays' names begin."""

Arrays = dict[str, tuple[npt.NDArray[np.uint8], npt.NDArray[np.int8]]]
"""Of each split the images (rows, *stored_shape) and the targets (rows, classes)."""


def read_arrays(path: Path, kind: Modality) -> Arrays:
    """The arrays of a file of MedMNIST, the channel first.

    Raises:
        BenchmdError: The images have another shape than the dataset's.
    """
    found: Arrays = {}
    with np.load(path) as held:
        for split, prefix in SPLITS.items():
            images, labels = held[f"{prefix}_images"], held[f"{prefix}_labels"]
            images = (
                images[:, None] if kind.signal.stored_shape[0] == 1 else np.moveaxis(images, -1, 1)
            )
            if images.shape[1:] != kind.signal.stored_shape:
                raise BenchmdError(
                    f"{path.name} has images of the shape {images.shape[1:]}, {kind.name} of "
                    f"{kind.signal.stored_shape}: name the file's dataset with --dataset."
                )
            found[split] = np.ascontiguousarray(images), targets_of(labels, kind)
    return found


def targets_of(labels: npt.NDArray[np.integer[Any]], kind: Modality) -> npt.NDArray[np.int8]:
    """Targets (rows, classes) of labels: numbers of classes (rows, 1), or 0 and 1 of each class."""
    if kind.task.kind == "multi-label":
        return labels.astype(np.int8)
    rows: npt.NDArray[np.int8] = np.eye(len(kind.task.classes), dtype=np.int8)[labels.reshape(-1)]
    return rows


def random_arrays(kind: Modality, records: int, seed: int) -> Arrays:
    """Random images, and for validation a quarter as many; every class is there."""
    generator, found = np.random.default_rng(seed), Arrays()
    classes = len(kind.task.classes)
    for split, rows in (("train", records), ("validation", max(2 * classes, records // 4))):
        images = generator.integers(0, 256, (rows, *kind.signal.stored_shape), np.uint8)
        shape = (rows, classes) if kind.task.kind == "multi-label" else rows
        labels = generator.integers(2, size=shape) if rows != shape else np.arange(rows) % classes
        found[split] = images, targets_of(labels, kind)
    return found


class Setup:
    """What both ways are given: arrays, settings, and a model's first weights."""

    def __init__(self, arguments: argparse.Namespace, kind: Modality, arrays: Arrays) -> None:
        self.kind, self.arrays, self.catalog = kind, arrays, arguments.catalog
        self.worker = Worker(device=torch.device(arguments.device))
        execution = {"engine": arguments.engine, "precision": arguments.precision}
        encoder = {"options": {"width": arguments.width} if arguments.width else {}}
        changes = {"seed": arguments.seed, "encoder": encoder, "execution": execution}
        self.settings: Settings = updated(
            medmnist_settings(kind, arguments.network, arguments.resize), changes
        )
        self.model = Classifier(
            make_encoder(kind.signal, self.settings.encoder), len(kind.task.classes)
        )

    @property
    def rows(self) -> int:
        """Training images."""
        return len(self.arrays["train"][1])

    @property
    def batch_size(self) -> int:
        """Images of a step."""
        return min(self.settings.transfer.batch_size, self.rows)


class Ours:
    """The package's feed and fine-tuning."""

    def __init__(self, setup: Setup) -> None:
        self._setup, settings = setup, setup.settings
        transfer, worker = settings.transfer, setup.worker
        self.model = deepcopy(setup.model)
        self._engine = make_engine(self.model, transfer.optimiser, settings.execution, worker)
        self._feed, self._validation = (self._feed_of(split) for split in SPLITS)
        columns, targets = self._columns("train"), setup.arrays["validation"][1]
        units = Units([str(row) for row in range(len(targets))])
        rows = np.arange(setup.rows)
        self._data = TransferData(setup.kind.task.kind, rows, columns, targets, units)
        self._best, self._epoch = Best(), 0
        count = transfer.epochs * -(-setup.rows // setup.batch_size)
        self._steps = finetuning_steps(self._engine, settings, setup.kind.task.kind, count)

    def _columns(self, split: str) -> Columns:
        targets, shape = self._setup.arrays[split][1], self._setup.kind.signal.stored_shape
        sizes = np.tile(np.array(shape[1:], np.int32), (len(targets), 1))
        return Columns(targets, np.ones(len(targets), np.float32), sizes)

    def _feed_of(self, split: str) -> ResidentFeed:
        setup, seed = self._setup, self._setup.settings.seed
        if setup.catalog:
            return resident_feed(open_catalog(setup.catalog), split, seed=seed, worker=setup.worker)
        normalise = normaliser(setup.kind.signal, None)
        return ResidentFeed(
            setup.arrays[split][0], self._columns(split), normalise, seed=seed, worker=setup.worker
        )

    def epoch(self) -> tuple[list[float], float]:
        """One epoch: the loss of each step, and the AUROC on validation."""
        setup, settings = self._setup, self._setup.settings
        agreement = Agreement(setup.worker)
        sums, _ = finetune_epoch(
            self._engine,
            self._steps,
            self._feed,
            settings,
            self._epoch,
            setup.kind.task.kind,
            begun=[],
            agreement=agreement,
        )
        self._engine.module.eval()
        forward = evaluated(self._engine, settings.transfer.augmentation.shape)
        size = evaluation_batch(self.model.encoder)
        score = self._data.scores(collect(forward, self._validation, size))["validation_auroc"]
        self._best.offer(score, self._epoch, self._engine.weights)
        self._epoch += 1
        starts = range(0, setup.rows, setup.batch_size)
        counts = [min(setup.batch_size, setup.rows - start) for start in starts]
        return [total / rows for total, rows in zip(sums.tolist(), counts, strict=True)], score


class Plain:
    """The peer: a loop as a tutorial has it."""

    def __init__(self, setup: Setup) -> None:
        self._setup, transfer = setup, setup.settings.transfer
        self._device = setup.worker.device
        self.model = deepcopy(setup.model).to(self._device)
        self._several = setup.kind.task.kind == "multi-label"
        self._train, self._validation = (self._dataset(split) for split in SPLITS)
        optimiser = transfer.optimiser
        self._optimiser = torch.optim.Adam(self.model.parameters(), lr=optimiser.lr)
        drops = [int(share * transfer.epochs) for share in optimiser.drops]
        self._schedule = torch.optim.lr_scheduler.MultiStepLR(
            self._optimiser, drops, optimiser.drop_factor
        )
        self._best, self._epoch, self._step = -1.0, 0, 0
        self._kept: dict[str, torch.Tensor] = {}

    def _dataset(self, split: str) -> TensorDataset:
        images, targets = (torch.from_numpy(array) for array in self._setup.arrays[split])
        x = images.float() / 255
        if len(self._setup.kind.signal.axes) == 3:  # images are normalised, volumes are not
            x = (x - 0.5) / 0.5
        return TensorDataset(x, targets.float() if self._several else targets.argmax(dim=1))

    def _batches(
        self, dataset: TensorDataset, size: int, order: list[int] | None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        pinned = self._device.type == "cuda"
        for x, y in DataLoader(dataset, size, sampler=order, pin_memory=pinned):
            yield x.to(self._device, non_blocking=True), y.to(self._device, non_blocking=True)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        with autocast(self._device, self._setup.settings.execution.precision):
            logits: torch.Tensor = self.model(x)
        return logits.float()

    def epoch(self) -> tuple[list[float], float]:
        """One epoch: the loss of each step, and the AUROC on validation."""
        setup, losses = self._setup, []
        settings = setup.settings
        loss_of: Callable[..., torch.Tensor] = (
            functional.binary_cross_entropy_with_logits
            if self._several
            else functional.cross_entropy
        )
        order = epoch_order(settings.seed, self._epoch, setup.rows).tolist()
        self.model.train()
        for x, y in self._batches(self._train, setup.batch_size, order):
            augmentation = settings.transfer.augmentation
            x = augmented(x, augmentation, settings.seed, self._step, setup.worker)
            loss = loss_of(self._logits(x), y)
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
            losses.append(loss.detach())
            self._step += 1
        self._schedule.step()
        score = self._score()
        if score > self._best:
            self._best, self._kept = score, deepcopy(self.model.state_dict())
        self._epoch += 1
        return torch.stack(losses).tolist(), score

    @torch.no_grad()
    def _score(self) -> float:
        self.model.eval()
        forward = evaluated(self._logits, self._setup.settings.transfer.augmentation.shape)
        size = evaluation_batch(self.model.encoder)
        batches = self._batches(self._validation, size, None)
        logits = torch.cat([forward(x) for x, _ in batches]).cpu()
        scores = logits.sigmoid() if self._several else logits.softmax(dim=1)
        targets = self._setup.arrays["validation"][1]
        return float(roc_auc_score(targets, scores.numpy()))


def require_same(ours: Ours, plain: Plain, device: str) -> dict[str, Any]:
    """Train an epoch both ways; what became of it.

    Raises:
        AssertionError: The numbers of steps or the losses of the first step differ.
    """
    (losses, score), (expected, plain_score) = ours.epoch(), plain.epoch()
    if len(losses) != len(expected):
        raise AssertionError(f"{len(losses)} steps an epoch, the plain loop has {len(expected)}")
    differences = [abs(a - b) for a, b in zip(losses, expected, strict=True)]
    if differences[0] > TOLERANCE[device]:
        raise AssertionError(f"the losses of the first step differ by {differences[0]}")
    return {
        "steps_per_epoch": len(losses),
        "differences_of_the_first_losses": [measure.rounded(d) for d in differences[:SHOWN]],
        "loss_of_first_epoch": {
            "ours": measure.rounded(float(np.mean(losses))),
            "plain_loop": measure.rounded(float(np.mean(expected))),
        },
        "validation_auroc_of_first_epoch": {
            "ours": measure.rounded(score),
            "plain_loop": measure.rounded(plain_score),
        },
    }


def task(epoch: Callable[[], object], epochs: int, cpu: list[float]) -> Callable[[], None]:
    """A task of some epochs, which notes the seconds that they take of this process's CPU."""

    def run() -> None:
        start = time.process_time()
        for _ in range(epochs):
            epoch()
        cpu.append(time.process_time() - start)

    return run


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    measure.add_device(options)
    options.add_argument("--npz", type=Path, help="file of the dataset (random images)")
    options.add_argument("--catalog", type=Path, help="catalog of the same file, for ours")
    options.add_argument("--dataset", default="breastmnist", help="such as breastmnist-64")
    options.add_argument("--network", default="", help="(resnet18, or resnet18-3d for volumes)")
    options.add_argument("--width", type=int, help="channels of a ResNet's first stage (64)")
    options.add_argument("--resize", type=int, default=0, help="extent to resize to (none)")
    options.add_argument("--records", type=int, help="at most so many training images")
    options.add_argument("--epochs", type=int, default=1, help="epochs of a repetition (1)")
    options.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    options.add_argument("--engine", choices=("torch", "deepspeed"), default="torch")
    options.set_defaults(warm_up=0)  # the comparison of the losses runs both
    chosen = measure.parsed(options, arguments)
    if chosen.catalog and (chosen.records or not chosen.npz):
        options.error("--catalog needs --npz, the file that it was built from, and no --records")
    kind = kind_of(chosen.dataset)
    chosen.network = chosen.network or ("resnet18" if len(kind.signal.axes) == 3 else "resnet18-3d")
    arrays = (
        read_arrays(chosen.npz, kind)
        if chosen.npz
        else random_arrays(kind, chosen.records or 512, chosen.seed)
    )
    if chosen.records:
        images, targets = arrays["train"]
        arrays["train"] = images[: chosen.records], targets[: chosen.records]
    setup = Setup(chosen, kind, arrays)
    ours, plain = Ours(setup), Plain(setup)
    compared = require_same(ours, plain, chosen.device)
    cpu: measure.Seconds = {"ours": [], "plain_loop": []}
    seconds = measure.alternating(
        {
            "ours": task(ours.epoch, chosen.epochs, cpu["ours"]),
            "plain_loop": task(plain.epoch, chosen.epochs, cpu["plain_loop"]),
        },
        repetitions=chosen.repetitions,
        warm_up=chosen.warm_up,
        device=chosen.device,
    )
    cpu = {name: each[chosen.warm_up :] for name, each in cpu.items()}
    measure.report(
        "medmnist_epoch",
        chosen,
        seconds,
        units=setup.rows * chosen.epochs,
        unit="training examples/s",
        ours="ours",
        peer="plain_loop",
        seconds_per_epoch=per_epoch(seconds, chosen.epochs),
        cpu_seconds_per_epoch=per_epoch(cpu, chosen.epochs),
        cpu_ratio=measure.ratio(cpu, "ours", "plain_loop")["median"],
        training_examples=setup.rows,
        batch_size=setup.batch_size,
        parameters=parameters(setup.model),
        **compared,
    )


def per_epoch(seconds: measure.Seconds, epochs: int) -> dict[str, dict[str, float]]:
    """Median and range of an epoch's seconds."""
    return {name: measure.spread([s / epochs for s in each]) for name, each in seconds.items()}


def parameters(model: nn.Module) -> int:
    """Values that are trained."""
    return sum(p.numel() for p in model.parameters())


if __name__ == "__main__":
    main()
