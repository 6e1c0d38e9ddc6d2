"""Settings of a run. The defaults are the fixed protocol.

Source: BenchMD v2, section 4 and appendix B, with the decisions of ``docs/differences.md``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic_core import from_json, to_json

from benchmd_ray.errors import BenchmdError, shown, sort_of, unknown_name
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.schema.plain_yaml import read_yaml, read_yaml_file
from benchmd_ray.schema.ranges import (
    Count,
    From0,
    Positive,
    Share,
    ShareAbove0,
    ShareBelow1,
    ShareBelow1OrNull,
    ShareBetween,
    WholeFrom0,
    Within,
    ranges_of,
)
from benchmd_ray.schema.typed import PlainValue, typed, types_of

T = TypeVar("T")

LABEL_SETTINGS: dict[str, int | None] = {"small": 8, "medium": 64, "large": 256, "full": None}
"""Labels per class of each label setting; None takes all."""


DROPS = "ascending numbers between 0 and 1"
WORKERS = "from 0 to execution.workers"


def _require(holds: bool, name: str, got: object, expected: object) -> None:
    if not holds:
        raise BenchmdError(f"setting {name} is {shown(got)}, expected {expected}.")


def _require_ranges(group: Any, name: str) -> None:
    for key, within in ranges_of(group.__class__).items():
        value = getattr(group, key)
        _require(within.holds(value), f"{name}.{key}".strip("."), value, within)


@dataclass(frozen=True)
class EncoderSettings:
    """The encoder: size of the transformer, or another network with its own options."""

    # bounds far above any published transformer, to catch slips and damage
    width: Annotated[int, Within(1, 2**16)] = 256
    """Width of a token's embedding."""
    depth: Annotated[int, Within(1, 1024)] = 12
    """Number of transformer blocks."""
    heads: Annotated[int, Within(1, 2**10)] = 8
    """Attention heads of a block."""
    head_dim: Annotated[int, Within(1, 2**12)] = 64
    """Width of one head's queries, keys and values."""
    mlp: Annotated[int, Within(1, 2**18)] = 512
    """Hidden width of a block's MLP."""
    dropout: ShareBelow1 = 0.1
    """Dropout after attention and in the MLP."""
    embedding_dropout: ShareBelow1 = 0.1
    """Dropout of the embedded tokens."""
    qkv_bias: bool = False
    """Whether queries, keys and values have a bias."""
    final_norm: bool = False
    """LayerNorm after the last block."""
    norm_eps: ShareBetween = 1e-5
    """Added to the variance in every LayerNorm."""
    pool: Literal["mean", "cls"] = "mean"
    """Features: the mean over all tokens with CLS, or CLS only."""
    patch_size: WholeFrom0 = 0
    """Extent of a patch in samples, or in pixels along y and x; 0: the modality's own."""
    network: str = "transformer"
    """The benchmark's transformer; resnet18 or resnet50 for images, with the suffix -2.5d, -3d or
    -acs for volumes and -1d for signals over time; xresnet1d101 for signals over time;
    monai-densenet121, monai-efficientnet-b0 or monai-seresnet50 for all of them, and monai-unet,
    monai-segresnet, monai-unetr or monai-swinunetr for masks, which need the extra monai;
    transformers for a folder of that library (`--from hf:FOLDER`); random-kernels for all of them,
    by the technique of that name; or your own network: the name of an entry point or
    package.module:name (docs/own_encoder.md).
    """
    options: dict[str, PlainValue] = field(default_factory=dict)
    """Options of networks other than the transformer, by name; a ResNet reads width, stem, resize
    and dropout (`models.resnet.ResNetOptions`), xresnet1d101 width, growth and dropout
    (`models.xresnet.XResNetOptions`), a MONAI network resize and dropout, a segmentation network
    width, depth, patch, hidden and dropout (`models.segmentation_networks.SegmentationOptions`), a
    network of transformers config, random-kernels kernels and biases
    (`models.random_kernels.RandomKernelsOptions`). These networks read no other settings of this
    group.
    """

    def __post_init__(self) -> None:
        _require_ranges(self, "encoder")
        read = self.network != "transformer" or not self.options
        _require(read, "encoder.options", self.options, "none: the transformer has no options")


ENCODERS: dict[str, EncoderSettings] = {
    "tiny": EncoderSettings(width=32, depth=2, heads=2, head_dim=16, mlp=64),
    "small": EncoderSettings(width=64, depth=4, heads=4, head_dim=16, mlp=128),
    "paper": EncoderSettings(),
    "base": EncoderSettings(width=768, depth=12, heads=12, head_dim=64, mlp=3072),
    "large": EncoderSettings(width=1024, depth=24, heads=16, head_dim=64, mlp=4096),
    "vit-tiny": EncoderSettings(
        width=192,
        depth=12,
        heads=3,
        head_dim=64,
        mlp=768,
        dropout=0.0,
        embedding_dropout=0.0,
        qkv_bias=True,
        final_norm=True,
        norm_eps=1e-6,
        pool="cls",
    ),
}
"""Named sizes: about 0.03, 0.17, 9.6, 86, 303 and 5.5 million parameters.

``vit-tiny`` is the network that ImageNet weights are loaded into (`models.imagenet`).
"""


@dataclass(frozen=True)
class OptimiserSettings:
    """AdamW and its learning-rate schedule; with a weight decay of 0 AdamW is Adam."""

    lr: Positive = 1e-4
    """Peak learning rate."""
    weight_decay: From0 = 1e-4
    """Decoupled weight decay."""
    schedule: Literal["constant", "cosine", "steps"] = "constant"
    """Learning rate after the warm-up: constant, cosine decay to zero after the last step, or
    multiplied by `drop_factor` at each of `drops`.
    """
    warmup_steps: WholeFrom0 = 0
    """Steps of linear warm-up from zero."""
    drops: list[float] = field(default_factory=lambda: [0.5, 0.75])
    """Fractions of all steps, ascending, at which the schedule "steps" reduces the rate."""
    drop_factor: ShareAbove0 = 0.1
    """Factor on the learning rate at each drop."""

    def __post_init__(self) -> None:
        _require_ranges(self, "optimiser")
        ascending = all(a < b for a, b in pairwise([0.0, *self.drops, 1.0]))
        _require(ascending, "optimiser.drops", self.drops, DROPS)

    def lr_at(self, step: int, total: int) -> float:
        """Learning rate of step ``step`` (from 0) of ``total``."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.lr
        if (
            self.schedule == "steps"
        ):  # rounded so that a share of whole epochs ends exactly with their last step
            return self.lr * self.drop_factor ** sum(step / total >= share for share in self.drops)
        done = (step - self.warmup_steps) / max(1, total - self.warmup_steps)
        return self.lr * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class PretrainSettings:
    """Pretraining on the source's training split, without labels."""

    steps: Count = 100_000
    """Optimiser steps."""
    batch_size: Annotated[int, Within(2)] = 64
    """Examples per step over all workers (32 for ldct, see `default_settings`)."""
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    """Optimiser and schedule."""
    mixing_alpha: Positive = 1.0
    """e-Mix: λ ~ Beta(α, α)."""
    temperature: Positive = 0.2
    """e-Mix: temperature of the cosine logits."""
    corruption_rate: ShareBetween = 0.85
    """ShED: share of the tokens that are moved."""
    mask_rate: ShareBetween = 0.75
    """MAE: share of the tokens that are masked."""
    options: dict[str, PlainValue] = field(default_factory=dict)
    """Options of your own method, by name."""

    def __post_init__(self) -> None:
        _require_ranges(self, "pretrain")


@dataclass(frozen=True)
class AugmentationSettings:
    """Augmentation of signals in fine-tuning (`training.augmentation`).

    Each is a strength from 0 (off) to 1; the change of an example is drawn between none and that
    strength. The standard deviation (sd) is that of the example over all its channels, so that a
    strength does not depend on the normalisation. Searches may vary each of them.
    """

    flip: Share = 0.0
    """Images and volumes: twice the probability of mirroring each axis; 1 gives 50 %."""
    shift: Share = 0.0
    """Largest shift along each axis, as a fraction of its extent; border values are repeated."""
    affine: Share = 0.0
    """Images and volumes: rotation by up to 30° and scaling by up to 1.5 or 1/1.5, times this."""
    blur: Share = 0.0
    """Images and volumes: Gaussian blur with an sd of up to two pixels, times this."""
    intensity: Share = 0.0
    """Contrast (of signals over time: gain) changed by up to ± 50 %, and an offset of up to ± 0.5
    sd, both times this; the same for all channels.
    """
    noise: Share = 0.0
    """White Gaussian noise with an sd of up to this fraction of the example's."""
    masking: Share = 0.0
    """Largest fraction of the time, area or volume in which a block is replaced by the channel
    means.
    """
    lead_dropout: Share = 0.0
    """Signals over time: probability that a lead is set to its mean; at least one lead stays."""
    wander: Share = 0.0
    """Signals over time: a slow sine is added to each lead, with 0.5 to 5 cycles per signal and an
    amplitude of up to this times the sd.
    """
    mixup: Share = 0.0
    """Classification: an example and its target are mixed with another one's with weights λ and 1 −
    λ, λ ~ Beta(α, α) with this α.
    """
    cutmix: Share = 0.0
    """Classification: a block with the fraction 1 − λ of an example is replaced by another one's; λ
    as in mixup.
    """
    shape: bool = False
    """For volumes of which only the shape matters: values are multiplied by a random number in [0,
    1], and by 0.5 in evaluation.
    """

    def __post_init__(self) -> None:
        _require_ranges(self, "transfer.augmentation")

    @property
    def mixes(self) -> bool:
        """Whether examples of a batch are mixed with each other."""
        return bool(self.mixup or self.cutmix)


@dataclass(frozen=True)
class TransferSettings:
    """Transfer to the source's labels: linear evaluation, fine-tuning or nearest neighbours."""

    mode: Literal["linear", "finetune", "knn"] = "linear"
    """linear trains only the head on a frozen encoder; finetune trains head and encoder; knn trains
    nothing and lets the nearest training records vote by their features (`models.neighbours`).
    """
    labels: Literal["small", "medium", "large", "full"] = "full"
    """Label setting: 8, 64 or 256 labels per class, or all."""
    solver: Literal["adamw", "logistic"] = "adamw"
    """Linear evaluation: adamw trains the head by steps and keeps the epoch that is best on the
    validation split; logistic is logistic regression to its end, whose penalty is chosen by folds
    of the training labels (`training.logistic`), and reads neither epochs nor optimiser."""
    hidden: Annotated[int, Within(0, 2**16)] = 0
    """Linear evaluation by adamw: width of a hidden layer between features and classes, with GELU
    and dropout after it (`models.heads.classification_head`); 0: the head is linear."""
    epochs: Count = 100
    """Passes over the chosen training records."""
    batch_size: Count = 64
    """Examples per step over all workers; at most the number of labels (32 for ldct)."""
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    """Optimiser and schedule."""
    label_smoothing: ShareBelow1 = 0.0
    """Share of each label that is spread over all classes (in multi-label tasks over both
    values).
    """
    dropout: ShareBelow1OrNull = None
    """Fine-tuning: the encoder's dropout; linear evaluation: that after the hidden layer, if there
    is one; null: that of encoder.dropout."""
    embedding_dropout: ShareBelow1OrNull = None
    """Fine-tuning: dropout of the embedded tokens; null: that of encoder.embedding_dropout."""
    layer_decay: ShareAbove0 = 1.0
    """Fine-tuning: factor on the learning rate from each layer to the one below it."""
    augmentation: AugmentationSettings = field(default_factory=AugmentationSettings)
    """Fine-tuning: augmentation of training signals."""
    class_balance: Share = 0.0
    """Fine-tuning: training records are sampled with probabilities proportional to n^-balance,
    where n is the size of their rarest class (`training.selection.class_odds`); 0: each once per
    epoch, 1: classes equally often. Needs a split in memory.
    """
    stochastic_depth: ShareBelow1 = 0.0
    """Fine-tuning: probability that an example skips the branch of the last block (in the
    transformer each of its two branches); it decreases linearly in the blocks below.
    """
    freeze: ShareBelow1 = 0.0
    """Fine-tuning of a pretrained encoder: share of its blocks, counted from the input and
    including the layers below them, that are frozen; rounded down to whole blocks.
    """
    averaging: ShareBelow1 = 0.0
    """Fine-tuning: decay per step of an exponential moving average of the weights, which is
    evaluated, kept and exported; 0: no averaging.
    """
    neighbours: Count = 20
    """Nearest neighbours: number of training records that vote, at most all."""
    normalisation: Literal["catalog", "pretraining"] = "catalog"
    """Whose training statistics normalise the signals, if these need any: those of the catalog, or
    those that a pretraining on other catalogs was given.
    """
    shuffle_labels: bool = False
    """Permute the training labels among the records: a sanity check that must score 0.5."""

    def __post_init__(self) -> None:
        _require_ranges(self, "transfer")

    @property
    def labels_per_class(self) -> int | None:
        """Labels per class of the label setting; None takes all."""
        return LABEL_SETTINGS[self.labels]

    @property
    def setting(self) -> str:
        """Name in tables: ``linear``, ``knn``, or ``<mode>-<labels>`` such as ``finetune-full``."""
        whole = self.labels == "full" and self.freezes
        return self.mode if whole else f"{self.mode}-{self.labels}"

    @property
    def by_epochs(self) -> bool:
        """Whether something is trained epoch by epoch, and the best epoch is kept."""
        return self.mode == "finetune" or (self.mode == "linear" and self.solver == "adamw")

    @property
    def head_width(self) -> int:
        """Width of the head's hidden layer; 0 for a linear head."""
        return self.hidden if self.mode == "linear" and self.by_epochs else 0

    @property
    def freezes(self) -> bool:
        """Whether the encoder is frozen, so that each record is encoded once."""
        return self.mode != "finetune"


@dataclass(frozen=True)
class ExecutionSettings:
    """How and where a run is executed.

    These settings do not change results, except for rounding, dropout masks, the order of a
    streaming feed, and `precision`.
    """

    engine: Literal["auto", "torch", "deepspeed"] = "auto"
    """auto: DeepSpeed for several workers or ZeRO, plain torch for one process."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    step: Literal["auto", "eager", "compiled", "captured"] = "auto"
    """How training steps are executed. captured: as a CUDA graph, also compiled if that works and
    saves time overall; auto: captured on a GPU, but eager with ZeRO and for techniques that compare
    examples of several workers.
    """
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """auto: bf16 mixed precision on a GPU, float32 on a CPU."""
    zero_stage: Annotated[int, Within(0, 3)] = 0
    """DeepSpeed ZeRO stage."""
    workers: Count = 1
    """Data-parallel workers; several run as a Ray Train job."""
    accumulation: Count = 1
    """Number of parts of each worker's share of a batch, processed one after the other to need less
    memory; their gradients add up to those of the whole share.
    """
    cpus_per_worker: Count = 1
    """CPUs that Ray reserves for each worker."""
    gpu_share: ShareAbove0 = 0.25
    """Share of a GPU for a run or a trial with little computing: a few minutes of a GPU, or a
    linear evaluation. It gets the same share of GPU memory, and a whole GPU if that is not
    enough.
    """
    gpu_share_large: ShareAbove0 = 1.0
    """The same for other runs and trials of one worker. Below 1, several of them use a GPU at once,
    which pays where the steps of one do not fill it.
    """
    feed: Literal["auto", "resident", "streaming"] = "auto"
    """auto: resident if the split fits `resident_gib`, otherwise streaming."""
    resident_gib: From0 = 64.0
    """Largest split that is kept in memory, in GiB."""
    shuffle_mib: Count = 256
    """Streaming: size of the local shuffle buffer of each worker, in MiB of stored signals."""
    log_every: Count = 20
    """Steps (pretraining) between lines of metrics."""
    checkpoint_every: Count = 1000
    """Steps (pretraining) between checkpoints; transfer saves at the end of an epoch."""
    checkpoint_seconds: From0 = 60.0
    """Transfer: least time between two checkpoints."""
    max_failures: WholeFrom0 = 2
    """How often lost workers are restarted without a new checkpoint in between."""
    least_workers: int = 0
    """Fewest workers to resume with if the cluster no longer has room for all; 0: all are
    needed.
    """
    wait_seconds: From0 = 60.0
    """Seconds to wait for room for all workers before continuing with fewer or giving up."""
    stall_seconds: Annotated[float, Within(1)] = 600.0
    """Seconds for which workers wait for a stalled one before they are restarted."""
    retries: WholeFrom0 = 1
    """`benchmd run`: how often a run is retried after a lost process, an outage or another
    transient failure, but not after an error of the request.
    """
    keep: Literal["checkpoints", "models", "predictions"] = "models"
    """What is kept of a finished run besides predictions, metrics and settings: checkpoints keeps
    the last two checkpoints and the weights, models the weights, predictions neither (`benchmd
    run`: once nothing planned needs the weights).
    """

    def __post_init__(self) -> None:
        _require_ranges(self, "execution")
        _require(
            0 <= self.least_workers <= self.workers,
            "execution.least_workers",
            self.least_workers,
            WORKERS,
        )
        _require(
            not (self.engine == "torch" and self.workers > 1),
            "execution.engine",
            self.engine,
            "deepspeed or auto when execution.workers is above 1",
        )
        _require(
            not (self.engine == "torch" and self.zero_stage > 0),
            "execution.zero_stage",
            self.zero_stage,
            "0 with the torch engine",
        )


@dataclass(frozen=True)
class Settings:
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    """Encoder size: fields, or one of the names tiny, small, paper, base, large, vit-tiny."""
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    """Pretraining."""
    transfer: TransferSettings = field(default_factory=TransferSettings)
    """Transfer."""
    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    """Engine, device, workers."""
    seed: Annotated[int, Within(0, 2**63 - 1)] = 0
    """Seed of everything random: weights, order, masks, label settings."""
    tuned: str = ""
    """Name of the search that found these settings; it only changes the name of the protocol in
    tables.
    """

    def __post_init__(self) -> None:
        _require_ranges(self, "")

    @property
    def transfer_encoder(self) -> EncoderSettings:
        """The encoder, with the transfer's dropout if set."""
        rates = {name: getattr(self.transfer, name) for name in ("dropout", "embedding_dropout")}
        changes = {name: rate for name, rate in rates.items() if rate is not None}
        return dataclasses.replace(self.encoder, **changes)


def default_settings(modality: Modality, encoder: str = "paper") -> Settings:
    """The default settings for a modality, with its batch size.

    Args:
        modality: The modality.
        encoder: Name of the encoder's size; ImageNet techniques use ``vit-tiny``.
    """
    size = {"batch_size": modality.batch_size}
    return updated(Settings(), {"encoder": encoder, "pretrain": size, "transfer": size})


def as_dict(settings: Any) -> dict[str, Any]:
    """Settings as plain nested dicts, for YAML and JSON."""
    return dataclasses.asdict(settings)


def updated(settings: T, changes: Mapping[str, Any], where: str = "") -> T:
    """Apply nested ``changes`` to ``settings``.

    Raises:
        BenchmdError: A key does not exist (the message lists the valid ones and the nearest), or
            a value has the wrong type or is outside its range.
    """
    kinds = types_of(type(settings))
    new: dict[str, Any] = {}
    for key, value in ((str(k), v) for k, v in changes.items()):
        path = f"{where}{key}"
        if key not in kinds:
            scope = f"in {where.rstrip('.')!r} " if where else ""
            raise unknown_name(f"setting {scope}".strip(), key, kinds, _meant(key, where))
        old = getattr(settings, key)
        if isinstance(old, dict):
            new[key] = old | typed(dict[str, PlainValue], value, f"setting {path}")
        elif not dataclasses.is_dataclass(old):
            new[key] = typed(kinds[key], value, f"setting {path}")
        elif kinds[key] is EncoderSettings and isinstance(value, str):
            if value not in ENCODERS:
                raise unknown_name("encoder size", value, ENCODERS)
            new[key] = ENCODERS[value]
        elif isinstance(value, Mapping):
            new[key] = updated(old, value, f"{path}.")
        else:
            raise BenchmdError(
                f"setting {path} is {shown(value)}, expected a group with the keys "
                f"{', '.join(types_of(kinds[key]))}."
            )
    return dataclasses.replace(settings, **new)  # type: ignore[type-var]


def settings_of(recorded: Mapping[str, Any]) -> Settings:
    """Settings as a run recorded them; groups that many runs have alike are made once.

    Raises:
        BenchmdError: As `updated` does.
        ValueError: They are nested deeper than the encoder of JSON follows.
    """
    groups = {k: _group(k, to_json(v)) for k, v in recorded.items() if isinstance(v, dict)}
    others = {name: value for name, value in recorded.items() if name not in groups}
    return updated(dataclasses.replace(_DEFAULTS, **groups), others)


@functools.lru_cache(maxsize=1024)
def _group(name: str, content: bytes) -> Any:
    return getattr(updated(_DEFAULTS, {name: from_json(content)}), name)


_DEFAULTS = Settings()


def setting_names(group: type = Settings, above: str = "") -> Iterator[str]:
    """All settings by their full names, such as ``transfer.optimiser.lr``."""
    for name, kind in types_of(group).items():
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from setting_names(kind, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def _meant(key: str, where: str) -> str | None:
    """The full name of a setting given without its group, if unique."""
    names = [name for name in setting_names() if name.startswith(where)]
    matches = [name for name in names if name.rpartition(".")[2] == key]
    return matches[0] if len(matches) == 1 else None


def load_settings(
    path: Path | None = None, assignments: Iterable[str] = (), base: Settings | None = None
) -> Settings:
    """Load settings: the defaults, then a YAML file, then ``a.b=c`` assignments.

    Raises:
        BenchmdError: The file cannot be read or a key or value is not valid.
    """
    return reduce(updated, read_changes(path, assignments), base or Settings())


def read_changes(
    path: Path | None = None, assignments: Iterable[str] = ()
) -> tuple[Mapping[str, Any], ...]:
    """Read changes from a YAML file and from ``a.b=c`` assignments, for `updated` in this order.

    Raises:
        BenchmdError: The file cannot be read, or the file or an assignment is malformed.
    """
    changes: list[Mapping[str, Any]] = []
    if path is not None:
        content = read_yaml_file(path, f"the settings file {path}")
        if not isinstance(content or {}, Mapping):
            raise BenchmdError(f"{path} is {sort_of(content)}, expected keys and values.")
        changes.append(content or {})
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise BenchmdError(f"--set {shown(assignment)} is not of the form a.b=value.")
        value: Any = read_yaml(text, f"the value of --set {shown(assignment)}")
        for part in reversed(name.strip().split(".")):
            value = {part: value}
        changes.append(value)
    return tuple(changes)
