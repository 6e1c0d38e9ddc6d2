"""What a run costs, counted: floating-point operations, parameters and bytes on disk.

A multiplication and an addition count as two operations, as usual; norms, activations, softmax and
the optimiser are not counted. They are small next to the matrix products.
"""

from __future__ import annotations

import functools
import json
import warnings
from dataclasses import dataclass
from typing import NamedTuple

from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.networks import NETWORK
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.settings.definition import (
    EncoderSettings,
    Settings,
    TransferSettings,
    as_dict,
    updated,
)
from benchmd_ray.ssl import PROJECTION, technique_named

FLOAT = 4
"""Bytes of a float32."""
PREDICTION_BYTES = 64
"""Bytes of a row of predictions in addition to its scores, about: names, target, metadata."""
METRICS_BYTES = 110
"""Bytes of a line of metrics, about."""
SMALL = 1e16
"""Operations of work that shares a GPU, at most: a GPU does them in a few minutes, in which the
process also starts, reads and scores."""
FILES_BYTES = 8192
"""Bytes of a run's descriptions and history, about."""


@dataclass(frozen=True)
class Inputs:
    """What decides the work and the size of a step."""

    technique: str
    settings: Settings
    source: PlannedDataset
    target: PlannedDataset | None = None
    """Dataset that is scored, where it is not the source."""
    labelled: int | None = None
    """Training records of a transfer, where they are counted; else `labelled_rows`."""
    also: tuple[PlannedDataset, ...] = ()
    """Other datasets that an evaluation reads."""

    @property
    def signal(self) -> Signal:
        """What is encoded."""
        return self.source.kind.signal


@dataclass(frozen=True)
class Workload:
    """What one step computes, all workers together."""

    step: str
    modality: str
    encoder: EncoderSettings
    batch: int
    workers: int
    method: str = ""
    """Technique whose method is what a unit computes; empty where units depend on none."""
    units: int = 0
    """Steps (pretraining) or epochs (transfer)."""
    unit_flops: float = 0.0
    unit_head_steps: int = 0
    """Linear evaluation: steps of the head only in one unit; they cost time, hardly operations."""
    once_flops: float = 0.0
    """Operations in addition to the units, forward only: encoding, scoring."""
    starts: bool = True
    """Whether it begins a run, which takes time before the first unit."""

    @property
    def small(self) -> bool:
        """Whether it fills no GPU, as steps of a head alone do: others may work next to it."""
        flops = self.units * self.unit_flops + self.once_flops
        return self.unit_head_steps > 0 or flops <= SMALL

    def alike(self, other: Workload) -> bool:
        """Whether a unit of the other work is the very same."""
        first, second = (
            (w.step, w.modality, w.encoder, w.batch, w.workers, w.method, w.unit_head_steps)
            for w in (self, other)
        )
        close = abs(self.unit_flops - other.unit_flops) <= 1e-6 * self.unit_flops
        return first == second and close


def training_records(inputs: Inputs) -> int:
    return inputs.labelled or labelled_rows(inputs.settings.transfer, inputs.source)


def labelled_rows(transfer: TransferSettings, source: PlannedDataset) -> int:
    """Training records of a label setting, at most: the classes of a record are not known here."""
    whole, wanted = source.rows.get("train", 0), transfer.labels_per_class
    if wanted is None:
        return max(1, whole)
    positives = source.positives or (whole,) * len(source.kind.task.classes)
    return max(1, min(whole, sum(min(wanted, count) for count in positives)))


def forward_flops(signal: Signal, encoder: EncoderSettings) -> float:
    """Operations of encoding one example; networks other than ours are run once to count them."""
    if encoder.network != NETWORK:
        counted = _counted(signal, encoder)
        return counted.flops * counted.windows
    return patch_flops(signal, encoder) + blocks_flops(signal, encoder)


def patch_flops(signal: Signal, encoder: EncoderSettings) -> float:
    """Operations of embedding the patches of one example."""
    signal = signal.with_patch(encoder.patch_size)
    return 2.0 * signal.tokens * signal.patch_size * encoder.width


def blocks_flops(signal: Signal, encoder: EncoderSettings) -> float:
    """Operations of all transformer blocks on one example, CLS among its tokens."""
    tokens = signal.with_patch(encoder.patch_size).tokens + 1
    inner = encoder.heads * encoder.head_dim
    projections = 2.0 * tokens * encoder.width * 4 * inner  # queries, keys, values; and back
    attention = 2.0 * 2 * tokens**2 * inner  # scores, and the mixture of the values
    mlp = 2.0 * 2 * tokens * encoder.width * encoder.mlp
    return encoder.depth * (projections + attention + mlp)


def training_flops(signal: Signal, encoder: EncoderSettings) -> float:
    """Operations of training on one example: the backward pass costs two forward passes.

    The patch embedding costs one less: its input takes no gradient.
    """
    if encoder.network != NETWORK:  # one that segments is trained on one window of each example
        return 3 * _counted(signal, encoder).flops
    return 3 * forward_flops(signal, encoder) - patch_flops(signal, encoder)


def pretrain_flops(signal: Signal, encoder: EncoderSettings, technique: str, batch: int) -> float:
    """Operations of pretraining on one example of a batch.

    e-Mix encodes each example and a mixture and compares all mixtures with all examples; ShED and
    MAE have a head on every token. A method of your own is taken to train on one encoding.
    """
    signal = signal.with_patch(encoder.patch_size)
    width, tokens = features_width(signal, encoder), signal.tokens
    method = technique_named(technique).method
    flops = training_flops(signal, encoder)
    if method == "e-mix":
        embedding = 0.0 if encoder.network != NETWORK else 2 * patch_flops(signal, encoder)
        compared = 2.0 * PROJECTION * (2 * width + batch)
        return 2 * flops - embedding + 3 * compared
    head = {"shed": 1, "mae": signal.patch_size}.get(method or "", 0)
    return flops + 3 * 2.0 * tokens * width * head


def encoder_parameters(signal: Signal, encoder: EncoderSettings) -> int:
    if encoder.network != NETWORK:
        return _counted(signal, encoder).parameters
    signal = signal.with_patch(encoder.patch_size)
    width, inner = encoder.width, encoder.heads * encoder.head_dim
    norm, bias = 2 * width, 3 * inner if encoder.qkv_bias else 0
    attention = width * 3 * inner + bias + inner * width + width
    mlp = width * encoder.mlp + encoder.mlp + encoder.mlp * width + width
    ends = (signal.patch_size + 1) * width + width + (signal.tokens + 1) * width
    final = norm if encoder.final_norm else 0
    return ends + encoder.depth * (2 * norm + attention + mlp) + final


def features_width(signal: Signal, encoder: EncoderSettings) -> int:
    """Width of the features that an encoder gives a head."""
    return encoder.width if encoder.network == NETWORK else _counted(signal, encoder).width


def head_parameters(signal: Signal, encoder: EncoderSettings, head: str | int) -> int:
    """Parameters of the head of a technique, or of a classifier for so many classes."""
    width, signal = features_width(signal, encoder), signal.with_patch(encoder.patch_size)
    if isinstance(head, int):
        return (width + 1) * head
    method = technique_named(head).method
    outputs = {"shed": 1, "mae": signal.patch_size, "e-mix": PROJECTION}
    norm = 2 * width if method == "e-mix" else 0
    return norm + (width + 1) * outputs[method] if method in outputs else 0


class _Counted(NamedTuple):
    """Of another network than the transformer."""

    flops: float
    """Operations on what it sees at once."""
    parameters: int
    width: int
    """Of its features, or maps."""
    windows: int
    """How often it sees a part of an example: 1 where it sees the whole."""


def _counted(signal: Signal, encoder: EncoderSettings) -> _Counted:
    return _counted_once(signal, json.dumps(as_dict(encoder), sort_keys=True))


@functools.cache
def _counted_once(signal: Signal, settings: str) -> _Counted:
    """Count on tensors without values; with values where the network needs them.

    The settings are JSON, as a key of the cache.
    """
    encoder = updated(EncoderSettings(), json.loads(settings))
    try:
        return _counted_on("meta", signal, encoder)
    except (NotImplementedError, RuntimeError):
        return _counted_on("cpu", signal, encoder)


def _counted_on(device: str, signal: Signal, encoder: EncoderSettings) -> _Counted:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from benchmd_ray.models.encoder import input_extents, make_encoder
    from benchmd_ray.models.segmenter import windows_of

    with (
        torch.device(device),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),  # of a user's network that loads its weights
    ):
        warnings.simplefilter("ignore")
        module = make_encoder(signal, encoder).eval()
        extents = input_extents(module, signal)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(torch.zeros(1, signal.input_shape[0], *extents))
    parameters = sum(p.numel() for p in module.parameters())
    windows = windows_of(signal.input_shape[1:], extents)
    return _Counted(float(counter.get_total_flops()), parameters, module.width, windows)


@dataclass(frozen=True)
class Disk:
    """Bytes of a run."""

    kept: int
    """What stays when it is done: metrics, predictions and, as `ExecutionSettings.keep` says,
    weights and checkpoints. Weights that go count as long as the run works, not until the last run
    that needs them is done."""
    working: int = 0
    """What it has in addition while it works: two checkpoints, and one that is being written."""


def disk_of_run(inputs: Inputs, *, head: str | int, copies: int = 0, lines: int = 0) -> Disk:
    """Bytes of a run without predictions.

    Args:
        inputs: What is run.
        head: As in `head_parameters`.
        copies: How often a checkpoint has the weights: with AdamW's two moments 3 times, with those
            of the best epoch 4 times; 0 writes no checkpoint.
        lines: Lines of metrics.
    """
    encoder, keep = inputs.settings.encoder, inputs.settings.execution.keep
    size = encoder_parameters(inputs.signal, encoder)
    size += head_parameters(inputs.signal, encoder, head)
    checkpoint = copies * size * FLOAT
    kept, working = lines * METRICS_BYTES + FILES_BYTES, 3 * checkpoint
    if keep == "predictions":
        return Disk(kept, working + size * FLOAT)
    left = 2 * checkpoint if keep == "checkpoints" else 0
    return Disk(kept + size * FLOAT + left, working - left)


def prediction_bytes(classes: int, rows: int) -> int:
    """Bytes of the predictions for so many rows."""
    return rows * (8 * classes + PREDICTION_BYTES) + FILES_BYTES
