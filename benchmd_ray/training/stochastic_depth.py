"""Stochastic depth in fine-tuning: the rates of an encoder's blocks; see `models.drop_path`."""

from __future__ import annotations

from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.drop_path import DropPath
from benchmd_ray.models.heads import Classifier
from benchmd_ray.models.segmenter import Segmenter
from benchmd_ray.training.decay import blocks_of

SETTING = "transfer.stochastic_depth"


def set_stochastic_depth(model: Classifier | Segmenter, rate: float, network: str) -> None:
    """Set the rates of an encoder's blocks, which rise linearly with depth.

    Of D blocks, block i (from 0, the one next to the signal) has rate · (i + 1) / D (Huang et al.,
    equation 4).

    Args:
        model: Encoder and head.
        rate: ``transfer.stochastic_depth``, that of the last block.
        network: Name of the encoder's network, for the message.

    Raises:
        BenchmdError: The encoder has no ``blocks`` in an order, or they have no `DropPath`.
    """
    if not rate:
        return
    blocks = blocks_of(model.encoder, SETTING, rate, network, off=0)
    for number, block in enumerate(blocks, 1):
        path = getattr(block, "drop_path", None)
        if not isinstance(path, DropPath):
            raise BenchmdError(
                f"{SETTING} is {rate:g}, and a {type(block).__name__} of the encoder network "
                f"{network} has no `drop_path`: pass its branch through a "
                "benchmd_ray.models.drop_path.DropPath of that name before it is added, or leave "
                f"{SETTING} at 0."
            )
        path.rate = rate * number / len(blocks)
