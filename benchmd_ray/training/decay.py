"""Layer-wise decay of the learning rate in fine-tuning.

Source: Bao et al., BEiT (https://arxiv.org/abs/2106.08254), appendix; He et al., Masked
Autoencoders (https://arxiv.org/abs/2111.06377), table 9, whose released code counts as here.
"""

from __future__ import annotations

from torch import nn

from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.heads import Classifier
from benchmd_ray.models.segmenter import Segmenter

FIRST = ("patch_embedding", "cls", "positions", "stem")
"""Parts of an encoder below its first block."""


def layer_factors(
    model: Classifier | Segmenter, decay: float, network: str
) -> dict[str, float] | None:
    """Factor of the learning rate of each parameter.

    Of an encoder with D blocks, block i (from 0, the one next to the signal) has decay^(D − i);
    patch embedding, CLS token and positions, or a ResNet's stem, have decay^(D + 1); head, final
    norm and whatever else a network of your own has next to ``blocks`` have 1. AdamW multiplies
    weight decay with the learning rate, so that it falls with it.

    Args:
        model: Encoder and head.
        decay: ``transfer.layer_decay``.
        network: Name of the encoder's network, for the message.

    Returns:
        Factors by the name of the parameter; None where all have the same rate (decay 1).

    Raises:
        BenchmdError: The encoder has no ``blocks`` in an order.
    """
    if decay == 1.0:
        return None
    blocks = blocks_of(model.encoder, "transfer.layer_decay", decay, network, off=1)
    return {name: decay ** _below_head(name, len(blocks)) for name, _ in model.named_parameters()}


def blocks_of(
    encoder: nn.Module, setting: str, value: float, network: str, *, off: float
) -> nn.ModuleList | nn.Sequential:
    """The layers of an encoder, the first next to the signal.

    Args:
        encoder: Has them as ``blocks``.
        setting: What needs them, for the message.
        value: Of the setting.
        network: Name of the encoder's network.
        off: Value of the setting that needs none.

    Raises:
        BenchmdError: The encoder has no ``blocks`` in an order.
    """
    blocks = getattr(encoder, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential) or not len(blocks):
        raise BenchmdError(
            f"{setting} is {value:g} and the encoder network {network} has no `blocks` (a "
            "torch.nn.ModuleList or Sequential of its layers, the first next to the signal): name "
            f"them so, or leave {setting} at {off:g}."
        )
    return blocks


def _below_head(name: str, depth: int) -> int:
    """How many layers a parameter lies below the head: 0 for the head's own."""
    whose, part, *rest = name.split(".")
    if whose == "encoder" and part in FIRST:
        return depth + 1
    if whose == "encoder" and part == "blocks":
        return depth - int(rest[0])
    return 0
