r"""``python -m speed.linear_evaluation --size paper`` from the project's root.

Linear evaluation, in epochs a second: the package encodes each record once and trains the head on
the features for all epochs (the time of encoding included), against the plain way, in which every
batch of every epoch passes through the frozen encoder. The plain way is measured for
``--epochs-measured`` epochs and multiplied up to ``--epochs``; the JSON says so. ``ceiling`` is the
ratio if nothing but encoding took time: the number of epochs. Before anything
is timed both heads are trained for the measured epochs and must have the same weights; this also
warms up. Both run in float32.

Random int16 signals of the ECG's shape by default, or the training split of a ``--catalog``.
Scoring the validation split after each epoch is left out of both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmd_ray.data.batches import Columns, ResidentFeed, Worker
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import read_columns, resident_feed
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.modality.modalities import modality as modality_named
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.heads import classification_loss
from benchmd_ray.settings.definition import ENCODERS, Settings, updated
from benchmd_ray.training.collect import collect, evaluating
from benchmd_ray.training.engine import adamw
from benchmd_ray.training.linear import head_epoch, head_steps
from speed import measure

TOLERANCE = 1e-2
"""Largest distance between the weights of both heads, as a share of how far training moved them."""
LR = 1e-2
"""Learning rate: large, so that a few steps move the head well beyond rounding."""


def random_feed(records: int, seed: int, worker: Worker) -> tuple[ResidentFeed, Any]:
    """The resident feed of random signals, and their targets (records, classes)."""
    kind, generator = modality_named("ecg"), np.random.default_rng(seed)
    signals = generator.integers(-2000, 2000, (records, *kind.signal.stored_shape), np.int16)
    classes = len(kind.task.classes)
    targets = np.eye(classes, dtype=np.int8)[generator.integers(classes, size=records)]
    sizes = np.tile(np.array(kind.signal.stored_shape[1:], np.int32), (records, 1))
    columns = Columns(targets, np.full(records, 0.001, np.float32), sizes)
    normalise = normaliser(kind.signal, None)
    return ResidentFeed(signals, columns, normalise, seed=seed, worker=worker), targets


class Evaluation:
    """Both ways to train a head, from the same weights."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Make the data, the frozen encoder and the first head."""
        self.settings = updated(
            Settings(encoder=ENCODERS[arguments.size], seed=arguments.seed),
            {
                "transfer": {
                    "epochs": arguments.epochs,
                    "batch_size": arguments.batch,
                    "optimiser": {"lr": LR},
                },
                "execution": {"precision": "float32"},
            },
        )
        self.worker = Worker(device=torch.device(arguments.device))
        kind = modality_named("ecg")
        if arguments.catalog:
            catalog = open_catalog(arguments.catalog)
            kind, held = catalog.card.modality, read_columns(catalog, "train").targets
            rows = np.arange(min(arguments.records, len(held)))
            self.feed = resident_feed(
                catalog, "train", seed=arguments.seed, worker=self.worker, subset=rows
            )
            targets = held[rows]
        else:
            self.feed, targets = random_feed(arguments.records, arguments.seed, self.worker)
        self.task = kind.task.kind
        self.targets = torch.from_numpy(targets).to(self.worker.device)
        encoder = Encoder(kind.signal, self.settings.encoder).requires_grad_(False)
        self.encode = evaluating(encoder, self.worker, "float32")
        self.first = nn.Linear(encoder.width, len(kind.task.classes)).state_dict()

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
        head, settings = self.head(), self.settings.transfer.optimiser
        optimiser = adamw(head.parameters(), settings, self.worker.device)
        size = self.settings.transfer.batch_size
        for epoch in range(epochs):
            for batch in self.feed.epoch(min(size, self.feed.rows), epoch):
                with torch.no_grad():
                    features = self.encode(batch.signals)
                loss = classification_loss(head(features), batch.targets, self.task).mean()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        return head


def require_same_head(evaluation: Evaluation, epochs: int) -> float:
    """Train both ways; how far apart the heads end, as a share of how far training moved them.

    A single weight says little: where its gradient is rounding, AdamW's step is as long as ever.

    Raises:
        AssertionError: The heads differ, or training did not move them.
    """
    first = evaluation.first["weight"]
    ours, peer = (
        train(epochs).weight.detach().cpu()
        for train in (evaluation.encoded_once, evaluation.through_the_encoder)
    )
    moved = torch.linalg.vector_norm(peer - first)
    apart = float(torch.linalg.vector_norm(ours - peer) / moved)
    if not apart < TOLERANCE:
        raise AssertionError(f"the heads are {apart:.2g} of what training moved them apart")
    return apart


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    measure.add_device(options)
    options.add_argument("--size", choices=sorted(ENCODERS), default="paper", help="(paper)")
    options.add_argument("--catalog", type=Path, help="catalog with a training split")
    options.add_argument("--records", type=int, help="at most so many (4096; 16 on a CPU)")
    options.add_argument("--batch", type=int, help="records of a step (64; 8 on a CPU)")
    options.add_argument("--epochs", type=int, default=100, help="of linear evaluation (100)")
    options.add_argument("--epochs-measured", type=int, default=2, help="of the peer (2)")
    options.set_defaults(warm_up=0)  # the comparison of the heads runs both
    chosen = measure.parsed(options, arguments)
    on_gpu = chosen.device == "cuda"
    chosen.records = chosen.records or (4096 if on_gpu else 16)
    chosen.batch = chosen.batch or (64 if on_gpu else 8)
    evaluation = Evaluation(chosen)
    chosen.records = evaluation.feed.rows
    difference = require_same_head(evaluation, chosen.epochs_measured)

    def task(train: Callable[[int], nn.Linear], epochs: int) -> Callable[[], object]:
        return lambda: train(epochs)

    seconds = measure.alternating(
        {
            "encoded_once": task(evaluation.encoded_once, chosen.epochs),
            "through_the_encoder": task(evaluation.through_the_encoder, chosen.epochs_measured),
        },
        repetitions=chosen.repetitions,
        warm_up=chosen.warm_up,
        device=chosen.device,
    )
    share_measured = chosen.epochs_measured / chosen.epochs
    seconds["through_the_encoder"] = [s / share_measured for s in seconds["through_the_encoder"]]
    measure.report(
        "linear_evaluation",
        chosen,
        seconds,
        units=chosen.epochs,
        unit="epochs/s",
        ours="encoded_once",
        peer="through_the_encoder",
        epochs_measured={
            "encoded_once": chosen.epochs,
            "through_the_encoder": chosen.epochs_measured,
        },
        ceiling=chosen.epochs,
        peer_is_extrapolated=chosen.epochs_measured < chosen.epochs,
        relative_distance_of_heads=difference,
    )


if __name__ == "__main__":
    main()
