"""Mixtures of two examples of a step, with their targets: mixup and CutMix.

Sources: Zhang et al. (https://arxiv.org/abs/1710.09412); Yun et al.
(https://arxiv.org/abs/1905.04899), here with the block wholly inside the signal, so that it has
exactly the drawn share. If both are enabled, each step uses one of them with equal probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from benchmd_ray.data.batches import Batch, Worker, to_device
from benchmd_ray.modality.tasks import EXCLUSIVE, UNKNOWN, TaskKind
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.augmentation.changes import AXES, MIXING, block, per_example
from benchmd_ray.training.engine import alone, gather
from benchmd_ray.training.seeds import AUGMENTATION


@dataclass(frozen=True)
class Mixtures:
    """The mixtures of a step, in the order of the batch over all workers."""

    cut: bool
    """Whether a block of the other example is used (CutMix), instead of the mean of both
    (mixup).
    """
    partners: npt.NDArray[np.int64]
    """Index of the other example: (batch,)."""
    shares: npt.NDArray[np.float32]
    """Share of the example itself: (batch,)."""
    places: npt.NDArray[np.float32]
    """Position of the block along each axis, in [0, 1): (batch, 3)."""


def drawn_mixtures(
    real: npt.NDArray[np.bool_], how: AugmentationSettings, seed: int, step: int
) -> Mixtures:
    """Draw mixtures of the ``real`` examples, (batch,) over all workers; padding is not mixed."""
    generator = np.random.default_rng([AUGMENTATION, seed, step, MIXING])
    cut = bool(how.cutmix) and (not how.mixup or bool(generator.random() < 0.5))
    alpha, rows = (how.cutmix if cut else how.mixup), np.flatnonzero(real)
    partners, shares = np.arange(len(real)), np.ones(len(real), np.float32)
    places = np.zeros((len(real), AXES), np.float32)
    partners[rows] = generator.permutation(rows)
    shares[rows] = generator.beta(alpha, alpha, len(rows))
    places[rows] = generator.random((len(rows), AXES), np.float32)
    return Mixtures(cut, partners, shares, places)


def mixture_draws(
    batch: Batch, how: AugmentationSettings, seed: int, step: int, worker: Worker
) -> dict[str, torch.Tensor]:
    """`drawn_mixtures` of a worker's share, on its device: tensors by name, none if disabled.

    ``partners`` (batch,), and ``mixup`` or ``cutmix`` (batch, 4) with share and position.
    """
    if not how.mixes:
        return {}
    real = batch.rows >= 0 if alone() else gather(batch.weights).cpu().numpy() > 0
    drawn = drawn_mixtures(real, how, seed, step)
    share = slice(worker.rank * len(batch.rows), (worker.rank + 1) * len(batch.rows))
    numbers = np.concatenate([drawn.shares[:, None], drawn.places], axis=1)
    return {
        "partners": to_device(drawn.partners[share], worker.device),
        "cutmix" if drawn.cut else "mixup": to_device(numbers[share], worker.device),
    }


def mixed(
    signals: torch.Tensor, targets: torch.Tensor, draws: Mapping[str, torch.Tensor], kind: TaskKind
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix pairs of examples of a worker's share, by what `mixture_draws` has drawn.

    Targets are then between 0 and 1, or -1 if either target is unknown.
    """
    others, of_others = (gather(values)[draws["partners"]] for values in (signals, targets))
    if "cutmix" in draws:
        numbers = draws["cutmix"]
        inside = block(signals, 1 - numbers[:, 0], numbers[:, 1:])
        signals = torch.where(inside, others, signals)
        shares = 1 - inside.flatten(1).float().mean(dim=1)  # the edges were rounded
    else:
        shares = draws["mixup"][:, 0]
        signals = others + per_example(shares, others) * (signals - others)
    return signals, mixed_targets(targets, of_others, shares, kind)


def mixed_targets(
    targets: torch.Tensor, others: torch.Tensor, shares: torch.Tensor, kind: TaskKind
) -> torch.Tensor:
    """Weighted means of two targets (batch, classes) of 1, 0 or -1 (unknown), class by class.

    ``shares`` (batch,) are the weights of the first. The result is -1 if either is unknown; with
    exclusive classes an example without a positive class counts as unknown.
    """
    if kind in EXCLUSIVE:
        labelled = [(values == 1).any(dim=1, keepdim=True) for values in (targets, others)]
    else:
        labelled = [values != UNKNOWN for values in (targets, others)]
    first, other = (values.clamp(min=0).float() for values in (targets, others))
    means = shares[:, None] * first + (1 - shares[:, None]) * other
    return torch.where(labelled[0] & labelled[1], means, float(UNKNOWN))
