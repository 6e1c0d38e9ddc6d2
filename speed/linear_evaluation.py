r"""``python -m speed.linear_evaluation --size paper`` from the project's root.

Linear evaluation, in epochs a second: the package encodes each record once and trains the head on
the features for all epochs (the time of encoding included), against the plain way, in which every
batch of every epoch passes through the frozen encoder. The plain way is measured for
``--epochs-measured`` epochs and multiplied up to ``--epochs``. ``ceiling`` is the ratio if nothing
but encoding took time: the number of epochs. Before anything is timed both heads are trained for
the measured epochs and must have the same weights; this also warms up. Both run in float32.

Random int16 signals of the ECG's shape by default, or the training split of a ``--catalog``.
Scoring the validation split after each epoch is left out of both.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import read_columns, resident_feed
from benchmd_ray.modality.modalities import modality as modality_named
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.heads import classification_loss
from benchmd_ray.settings.definition import ENCODERS, Settings, updated
from benchmd_ray.training.collect import collect, evaluating
from benchmd_ray.training.engine import adamw
from benchmd_ray.training.features import head_epoch, head_steps
from speed import measure
from speed.sources import array_feed

TOLERANCE = 1e-2
"""Largest distance between the weights of both heads, as a share of how far training moved them."""
LR = 1e-2
"""Learning rate: large, so that a few steps move the head well beyond rounding."""


class Evaluation:
    """Both ways to train a head, from the same weights."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Make the data, the frozen encoder and the first head."""
        optimiser = {"lr": LR}
        transfer = {"epochs": options.epochs, "batch_size": options.batch, "optimiser": optimiser}
        self.settings = updated(
            Settings(encoder=ENCODERS[options.size], seed=options.seed),
            {"transfer": transfer, "execution": {"precision": "float32"}},
        )
        self.worker = Worker(device=torch.device(options.device))
        modality, seed = modality_named("ecg"), options.seed
        if options.catalog:
            catalog = open_catalog(options.catalog)
            modality = catalog.card.modality
            rows = np.arange(min(options.records, catalog.rows("train")))
            targets = read_columns(catalog, "train").targets[rows]
            self.feed = resident_feed(catalog, "train", seed=seed, worker=self.worker, subset=rows)
        else:
            signal, classes = modality.signal, len(modality.task.classes)
            generator = np.random.default_rng(seed)
            shape = (options.records, *signal.stored_shape)
            signals = generator.integers(-2000, 2000, shape, np.int16)
            labels = generator.integers(classes, size=options.records)
            targets = np.eye(classes, dtype=np.int8)[labels]
            self.feed = array_feed(signals, targets, signal, seed=seed, worker=self.worker)
        self.task = modality.task.kind
        self.targets = torch.from_numpy(targets).to(self.worker.device)
        encoder = Encoder(modality.signal, self.settings.encoder).requires_grad_(False)
        self.encode = evaluating(encoder, self.worker, "float32")
        self.first = nn.Linear(encoder.width, len(modality.task.classes)).state_dict()

    def head(self) -> nn.Linear:
        """A head with the first weights."""
        classes, width = self.first["weight"].shape
        head = nn.Linear(width, classes)
        head.load_state_dict(self.first)
        return head.to(self.worker.device)

    def encoded_once(self, epochs: int) -> nn.Linear:
        """Ours: the head after some epochs on features."""
        features = torch.from_numpy(collect(self.encode, self.feed, 256)).to(self.worker.device)
        head = self.head()
        steps = head_steps(head, self.settings, len(features), self.worker, self.task)
        for epoch in range(epochs):
            head_epoch(steps, features, self.targets, self.settings, epoch)
        return head

    def through_the_encoder(self, epochs: int) -> nn.Linear:
        """The peer: the head after some epochs through the frozen encoder."""
        head, transfer = self.head(), self.settings.transfer
        optimiser = adamw(head.parameters(), transfer.optimiser, self.worker.device)
        for epoch in range(epochs):
            for batch in self.feed.epoch(min(transfer.batch_size, self.feed.rows), epoch):
                with torch.no_grad():
                    features = self.encode(batch.signals)
                loss = classification_loss(head(features), batch.targets, self.task).mean()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        return head

    def require_same_head(self, epochs: int) -> float:
        """Train both ways; the distance of the heads as a share of how far training moved them.

        Single weights are not compared: where a gradient is rounding, AdamW's step is as long as
        ever.

        Raises:
            AssertionError: The heads differ, or training did not move them.
        """
        ours, peer = (
            train(epochs).weight.detach().cpu()
            for train in (self.encoded_once, self.through_the_encoder)
        )
        moved = torch.linalg.vector_norm(peer - self.first["weight"])
        distance = float(torch.linalg.vector_norm(ours - peer) / moved)
        if not distance < TOLERANCE:
            raise AssertionError(f"the distance of the heads is {distance:.2g} of the training's")
        return distance


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    declared = {
        "size": ("paper", "of the encoder", sorted(ENCODERS)),
        "catalog": (Path, "catalog with a training split"),
        "records": (int, "at most so many (4096; 16 on a CPU)"),
        "batch": (int, "records of a step (64; 8 on a CPU)"),
        "epochs": (100, "of linear evaluation"),
        "epochs_measured": (2, "of the peer"),
    }
    options = measure.options(__doc__, arguments, declared, device=True, warm_up=0)
    on_gpu = options.device == "cuda"
    options.records = options.records or (4096 if on_gpu else 16)
    options.batch = options.batch or (64 if on_gpu else 8)
    evaluation = Evaluation(options)
    options.records = evaluation.feed.rows
    few, epochs = options.epochs_measured, options.epochs
    distance = evaluation.require_same_head(few)
    measure.compare(
        "linear_evaluation",
        options,
        {
            "encoded_once": partial(evaluation.encoded_once, epochs),
            "through_the_encoder": partial(evaluation.through_the_encoder, few),
        },
        unit="epochs/s",
        units=epochs,
        share_of_peer=few / epochs,
        epochs_measured={"encoded_once": epochs, "through_the_encoder": few},
        ceiling=epochs,
        relative_distance_of_heads=distance,
    )


if __name__ == "__main__":
    main()
