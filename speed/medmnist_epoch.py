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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmd_ray.benchmarks.medmnist.recipes import medmnist_settings
from benchmd_ray.data.batches import ResidentFeed, Worker, epoch_order
from benchmd_ray.data.cards import kind_of
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.scores.units import Units
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.training.augmentation import augmented
from benchmd_ray.training.collect import collect, evaluated, evaluation_batch
from benchmd_ray.training.engine import autocast, make_engine
from benchmd_ray.training.notice import Agreement
from benchmd_ray.training.selection import Best, TransferData
from benchmd_ray.training.transfer import finetune_epoch, finetuning_steps
from speed import measure
from speed.sources import array_columns, array_feed

TOLERANCE = {"cpu": 1e-5, "cuda": 1e-2}
"""Largest difference between the losses of the first step; a GPU chooses other sums for each."""
COMPARED = 5
"""Steps whose losses are printed next to each other."""
SPLITS = {"train": "train", "validation": "val"}
"""Our split → how the arrays' names begin."""
DECLARED = {
    "npz": (Path, "file of the dataset (random images)"),
    "catalog": (Path, "catalog of the same file, for ours"),
    "dataset": ("breastmnist", "such as breastmnist-64"),
    "network": (str, "(resnet18, or resnet18-3d for volumes)"),
    "width": (int, "channels of a ResNet's first stage (64)"),
    "resize": (int, "extent to resize to (none)"),
    "records": (int, "at most so many training images"),
    "epochs": (1, "epochs of a repetition"),
    "precision": ("float32", "of both", ("float32", "bf16")),
    "engine": ("torch", "of ours", ("torch", "deepspeed")),
}

Arrays = dict[str, tuple[npt.NDArray[np.uint8], npt.NDArray[np.int8]]]
"""Of each split the images (rows, *stored_shape) and the targets (rows, classes)."""


def arrays_of(options: argparse.Namespace, modality: Modality) -> Arrays:
    """The arrays of a file of MedMNIST, or random ones in which every class is present."""
    if options.npz:
        arrays = read_arrays(options.npz, modality)
        images, targets = arrays["train"]
        return arrays | {"train": (images[: options.records], targets[: options.records])}
    generator, arrays = np.random.default_rng(options.seed), {}
    classes, records = len(modality.task.classes), options.records or 512
    for split, rows in (("train", records), ("validation", max(2 * classes, records // 4))):
        images = generator.integers(0, 256, (rows, *modality.signal.stored_shape), np.uint8)
        labels = (np.arange(rows)[:, None] + np.arange(classes)) % classes
        arrays[split] = images, (labels == 0).astype(np.int8)
    return arrays


def read_arrays(path: Path, modality: Modality) -> Arrays:
    """The arrays of a file of MedMNIST, the channel first.

    Raises:
        BenchmdError: The images have another shape than the dataset's.
    """
    arrays: Arrays = {}
    shape, classes = modality.signal.stored_shape, len(modality.task.classes)
    with np.load(path) as file:
        for split, prefix in SPLITS.items():
            images, targets = file[f"{prefix}_images"], file[f"{prefix}_labels"].astype(np.int8)
            images = images[:, None] if shape[0] == 1 else np.moveaxis(images, -1, 1)
            if images.shape[1:] != shape:
                raise BenchmdError(
                    f"{path.name} has images of the shape {images.shape[1:]}, {modality.name} of "
                    f"{shape}: name the file's dataset with --dataset."
                )
            if modality.task.kind != "multi-label":  # numbers of classes, (rows, 1)
                targets = np.eye(classes, dtype=np.int8)[targets.reshape(-1)]
            arrays[split] = np.ascontiguousarray(images), targets
    return arrays


class Setup:
    """What both ways share: arrays, settings, and a model's first weights."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.modality, self.catalog = kind_of(options.dataset), options.catalog
        modality = self.modality
        is_image = len(modality.signal.axes) == 3
        options.network = options.network or ("resnet18" if is_image else "resnet18-3d")
        self.arrays = arrays_of(options, modality)
        self.worker = Worker(device=torch.device(options.device))
        execution = {"engine": options.engine, "precision": options.precision}
        encoder = {"options": {"width": options.width} if options.width else {}}
        changes = {"seed": options.seed, "encoder": encoder, "execution": execution}
        recipe = medmnist_settings(modality, options.network, options.resize or 0)
        self.settings: Settings = updated(recipe, changes)
        encoder_module = make_encoder(modality.signal, self.settings.encoder)
        self.model = Classifier(encoder_module, len(modality.task.classes))
        self.rows = len(self.arrays["train"][1])
        self.batch_size = min(self.settings.transfer.batch_size, self.rows)

    def feed(self, split: str) -> ResidentFeed:
        """The package's feed of a split, of a catalog or of the arrays."""
        seed = self.settings.seed
        if self.catalog:
            return resident_feed(open_catalog(self.catalog), split, seed=seed, worker=self.worker)
        images, targets = self.arrays[split]
        signal = self.modality.signal
        return array_feed(images, targets, signal, seed=seed, worker=self.worker, scale=1.0)


class Ours:
    """The package's feed and fine-tuning."""

    def __init__(self, setup: Setup) -> None:
        self._setup, settings = setup, setup.settings
        transfer, task = settings.transfer, setup.modality.task.kind
        self.model = deepcopy(setup.model)
        self._engine = make_engine(self.model, transfer.optimiser, settings.execution, setup.worker)
        self._feed, self._validation = (setup.feed(split) for split in SPLITS)
        columns = array_columns(setup.arrays["train"][1], setup.modality.signal, 1.0)
        targets = setup.arrays["validation"][1]
        units = Units([str(row) for row in range(len(targets))])
        self._data = TransferData(task, np.arange(setup.rows), columns, targets, units)
        self._best, self._epoch = Best(), 0
        count = transfer.epochs * -(-setup.rows // setup.batch_size)
        self._steps = finetuning_steps(self._engine, settings, task, count)

    def epoch(self) -> tuple[list[float], float]:
        """One epoch: the loss of each step, and the AUROC on validation."""
        setup, settings = self._setup, self._setup.settings
        sums, _ = finetune_epoch(
            self._engine,
            self._steps,
            self._feed,
            settings,
            self._epoch,
            setup.modality.task.kind,
            begun=[],
            agreement=Agreement(setup.worker),
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
        self._is_multi_label = setup.modality.task.kind == "multi-label"
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
        if len(self._setup.modality.signal.axes) == 3:  # images are normalised, volumes are not
            x = (x - 0.5) / 0.5
        return TensorDataset(x, targets.float() if self._is_multi_label else targets.argmax(dim=1))

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
            if self._is_multi_label
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
        scores = logits.sigmoid() if self._is_multi_label else logits.softmax(dim=1)
        targets = self._setup.arrays["validation"][1]
        return float(roc_auc_score(targets, scores.numpy()))


def require_same(ours: Ours, plain: Plain, device: str) -> dict[str, Any]:
    """Train an epoch both ways, and compare the losses.

    Raises:
        AssertionError: The numbers of steps or the losses of the first step differ.
    """
    (losses, score), (expected, plain_score) = ours.epoch(), plain.epoch()
    if len(losses) != len(expected):
        raise AssertionError(f"{len(losses)} steps an epoch, the plain loop has {len(expected)}")
    differences = [abs(a - b) for a, b in zip(losses, expected, strict=True)]
    if differences[0] > TOLERANCE[device]:
        raise AssertionError(f"the losses of the first step differ by {differences[0]}")
    means = {"ours": float(np.mean(losses)), "plain_loop": float(np.mean(expected))}
    scores = {"ours": score, "plain_loop": plain_score}
    return {
        "steps_per_epoch": len(losses),
        "differences_of_the_first_losses": [measure.rounded(d) for d in differences[:COMPARED]],
        "loss_of_first_epoch": measure.rounded_all(means),
        "validation_auroc_of_first_epoch": measure.rounded_all(scores),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, device=True, warm_up=0)
    if options.catalog and (options.records or not options.npz):
        raise SystemExit("--catalog needs --npz, its file, and no --records.")
    setup = Setup(options)
    ours, plain = Ours(setup), Plain(setup)
    compared = require_same(ours, plain, options.device)
    cpu: measure.Seconds = {"ours": [], "plain_loop": []}

    def epochs(name: str, way: Ours | Plain) -> None:
        start = time.process_time()
        for _ in range(options.epochs):
            way.epoch()
        cpu[name].append(time.process_time() - start)

    ways: dict[str, Ours | Plain] = {"ours": ours, "plain_loop": plain}
    tasks = {name: partial(epochs, name, way) for name, way in ways.items()}
    seconds = measure.alternating(options, tasks)
    cpu = {name: values[options.warm_up :] for name, values in cpu.items()}

    def per_epoch(seconds: measure.Seconds) -> dict[str, dict[str, float]]:
        return {n: measure.spread([s / options.epochs for s in v]) for n, v in seconds.items()}

    measure.report(
        "medmnist_epoch",
        options,
        seconds,
        unit="training examples/s",
        units=setup.rows * options.epochs,
        seconds_per_epoch=per_epoch(seconds),
        cpu_seconds_per_epoch=per_epoch(cpu),
        cpu_ratio=measure.ratio(cpu, "ours", "plain_loop")["median"],
        training_examples=setup.rows,
        batch_size=setup.batch_size,
        parameters=sum(p.numel() for p in setup.model.parameters()),
        **compared,
    )


if __name__ == "__main__":
    main()
