"""Counted cost of a run: floating-point operations, parameters and bytes on disk.

A multiply-add counts as two operations. Norms, activations, softmax and the optimiser are not
counted: they are small compared with the matrix products.
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
    ExecutionSettings,
    Settings,
    TransferSettings,
    as_dict,
    updated,
)
from benchmd_ray.ssl import PROJECTION, technique_named

FLOAT = 4
"""Bytes of a float32."""
PREDICTION_BYTES = 64
"""Approximate bytes of a row of predictions besides its scores: names, target, metadata."""
METRICS_BYTES = 110
"""Approximate bytes of a line of metrics."""
SMALL = 1e16
"""Most operations of work that shares a GPU. A GPU does them in a few minutes, during which the
process also starts, reads and scores.
"""
FILES_BYTES = 8192
"""Approximate bytes of a run's descriptions and history."""


@dataclass(frozen=True)
class Inputs:
    """Inputs that decide the work and the disk size of a step."""

    technique: str
    settings: Settings
    source: PlannedDataset
    target: PlannedDataset | None = None
    """Dataset that is scored, if it is not the source."""
    labelled: int | None = None
    """Training records of a transfer if counted, otherwise `labelled_rows`."""
    also: tuple[PlannedDataset, ...] = ()
    """Other datasets that an evaluation reads."""

    @property
    def signal(self) -> Signal:
        """Signal that is encoded."""
        return self.source.kind.signal


@dataclass(frozen=True)
class Workload:
    """Computation of a step, over all workers."""

    step: str
    modality: str
    encoder: EncoderSettings
    batch: int
    workers: int
    method: str = ""
    """Technique whose pretraining method a unit runs; empty for transfers."""
    units: int = 0
    """Steps (pretraining) or epochs (transfer)."""
    unit_flops: float = 0.0
    unit_head_steps: int = 0
    """Linear evaluation: steps of the head in one unit, which cost time but, without a hidden
    layer, hardly any operations.
    """
    once_flops: float = 0.0
    """Operations besides the units, forward only: encoding, scoring."""
    starts: bool = True
    """Whether it starts a run, which takes time before the first unit."""

    @property
    def small(self) -> bool:
        """Whether it leaves room on a GPU for other work, as training only a head does."""
        flops = self.units * self.unit_flops + self.once_flops
        return self.unit_head_steps > 0 or flops <= SMALL

    def gpu_share(self, execution: ExecutionSettings) -> float:
        """Share of a GPU that it gets with one worker."""
        return execution.gpu_share if self.small else execution.gpu_share_large

    def alike(self, other: Workload) -> bool:
        """Whether a unit of the other work is identical."""
        first, second = (
            (w.step, w.modality, w.encoder, w.batch, w.workers, w.method, w.unit_head_steps)
            for w in (self, other)
        )
        close = abs(self.unit_flops - other.unit_flops) <= 1e-6 * self.unit_flops
        return first == second and close


def training_records(inputs: Inputs) -> int:
    return inputs.labelled or labelled_rows(inputs.settings.transfer, inputs.source)


def labelled_rows(transfer: TransferSettings, source: PlannedDataset) -> int:
    """Upper bound of the training records of a label setting; record classes are unknown here."""
    whole, wanted = source.rows.get("train", 0), transfer.labels_per_class
    if wanted is None:
        return max(1, whole)
    positives = source.positives or (whole,) * len(source.kind.task.classes)
    return max(1, min(whole, sum(min(wanted, count) for count in positives)))


def forward_flops(signal: Signal, encoder: EncoderSettings) -> float:
    """Operations of encoding one example; for custom networks, counted by running them once."""
    if encoder.network != NETWORK:
        counted = _counted(signal, encoder)
        return counted.flops * counted.windows
    return patch_flops(signal, encoder) + blocks_flops(signal, encoder)


def patch_flops(signal: Signal, encoder: EncoderSettings) -> float:
    """Operations of embedding the patches of one example."""
    signal = signal.with_patch(encoder.patch_size)
    return 2.0 * signal.tokens * signal.patch_size * encoder.width


def blocks_flops(signal: Signal, encoder: EncoderSettings) -> float:
    """Operations of all transformer blocks on one example, including the CLS token."""
    tokens = signal.with_patch(encoder.patch_size).tokens + 1
    inner = encoder.heads * encoder.head_dim
    projections = (
        2.0 * tokens * encoder.width * 4 * inner
    )  # queries, keys, values, and output projection
    attention = 2.0 * 2 * tokens**2 * inner  # attention scores, and the weighted sum of values
    mlp = 2.0 * 2 * tokens * encoder.width * encoder.mlp
    return encoder.depth * (projections + attention + mlp)


def training_flops(signal: Signal, encoder: EncoderSettings) -> float:
    """Operations of training on one example: the backward pass costs two forward passes.

    The patch embedding costs one pass less: its input needs no gradient.
    """
    if encoder.network != NETWORK:  # segmentation is trained on one window of each example
        return 3 * _counted(signal, encoder).flops
    return 3 * forward_flops(signal, encoder) - patch_flops(signal, encoder)


def pretrain_flops(signal: Signal, encoder: EncoderSettings, technique: str, batch: int) -> float:
    """Operations of pretraining on one example of a batch.

    e-Mix encodes each example and a mixture and compares all mixtures with all examples; ShED and
    MAE have a head on every token. A custom method is assumed to train on one encoding.
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
    """Width of the features that a head receives from an encoder."""
    return encoder.width if encoder.network == NETWORK else _counted(signal, encoder).width


def head_parameters(
    signal: Signal, encoder: EncoderSettings, head: str | int, hidden: int = 0
) -> int:
    """Parameters of the head of a technique, or of a classifier with this number of classes.

    ``hidden`` is the width of a classifier's hidden layer, if it has one.
    """
    width, signal = features_width(signal, encoder), signal.with_patch(encoder.patch_size)
    if isinstance(head, int):
        return (width + 1) * hidden + (hidden + 1) * head if hidden else (width + 1) * head
    method = technique_named(head).method
    outputs = {"shed": 1, "mae": signal.patch_size, "e-mix": PROJECTION}
    norm = 2 * width if method == "e-mix" else 0
    return norm + (width + 1) * outputs[method] if method in outputs else 0


def head_flops(inputs: Inputs) -> float:
    """Operations of training a head with a hidden layer on the features of one example; else 0.

    Features need no gradient, so that the first layer costs one pass less.
    """
    hidden, classes = inputs.settings.transfer.head_width, len(inputs.source.kind.task.classes)
    if not hidden:
        return 0.0
    width = features_width(inputs.signal, inputs.settings.encoder)
    return 2.0 * hidden * (2 * width + 3 * classes)


class _Counted(NamedTuple):
    """Cost of a network other than the transformer."""

    flops: float
    """Operations on what it sees at once."""
    parameters: int
    width: int
    """Width of its features or maps."""
    windows: int
    """Windows of an example; 1 if the network takes the whole."""


def _counted(signal: Signal, encoder: EncoderSettings) -> _Counted:
    return _counted_once(signal, json.dumps(as_dict(encoder), sort_keys=True))


@functools.cache
def _counted_once(signal: Signal, settings: str) -> _Counted:
    """Count on meta tensors, or on real ones if the network needs values.

    The settings are JSON text, so that they can be a cache key.
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
        warnings.catch_warnings(),  # a custom network that loads its weights
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
    """Bytes that stay after the run: metrics, predictions and, depending on
    `ExecutionSettings.keep`, weights and checkpoints. Weights that are removed later count only
    while the run works, though they stay until the last run that needs them is done.
    """
    working: int = 0
    """Additional bytes during the run: two checkpoints, and one that is being written."""


def disk_of_run(inputs: Inputs, *, head: str | int, copies: int = 0, lines: int = 0) -> Disk:
    """Bytes of a run without predictions.

    Args:
        inputs: What is run.
        head: As in `head_parameters`.
        copies: Copies of the weights in a checkpoint: 3 with AdamW's two moments, 4 with the best
            epoch's weights too; 0 if no checkpoint is written.
        lines: Lines of metrics.
    """
    encoder, keep = inputs.settings.encoder, inputs.settings.execution.keep
    size = encoder_parameters(inputs.signal, encoder)
    hidden = inputs.settings.transfer.head_width
    size += head_parameters(inputs.signal, encoder, head, hidden)
    checkpoint = copies * size * FLOAT
    kept, working = lines * METRICS_BYTES + FILES_BYTES, 3 * checkpoint
    if keep == "predictions":
        return Disk(kept, working + size * FLOAT)
    left = 2 * checkpoint if keep == "checkpoints" else 0
    return Disk(kept + size * FLOAT + left, working - left)


def prediction_bytes(classes: int, rows: int) -> int:
    """Bytes of the predictions for this number of rows."""
    return rows * (8 * classes + PREDICTION_BYTES) + FILES_BYTES
