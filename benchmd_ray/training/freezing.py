"""The lower part of a pretrained encoder, which fine-tuning leaves as it is.

Source: Yosinski et al. 2014 (https://arxiv.org/abs/1411.1792): features next to the signal are the
most general ones, and few records are too few to learn them anew.
"""

from __future__ import annotations

from torch import nn

from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.heads import Classifier
from benchmd_ray.models.segmenter import Segmenter
from benchmd_ray.training.decay import FIRST, blocks_of

ROUNDING = 1e-9
"""What a share of the blocks may lack of a whole number: 0.7 of 10 are 7."""


def freeze(model: Classifier | Segmenter, share: float, network: str) -> None:
    """Take the gradients of an encoder's lower part away.

    Of D blocks the share · D next to the signal, rounded down, and what is below them: patch
    embedding, CLS token and positions, or a ResNet's stem (`decay.FIRST`).

    Args:
        model: Encoder and head.
        share: ``transfer.freeze``, in [0, 1).
        network: Name of the encoder's network, for the message.

    Raises:
        BenchmdError: The encoder has no ``blocks`` in an order.
    """
    if not share:
        return
    blocks_of(model.encoder, "transfer.freeze", share, network, off=0)
    for part in frozen_parts(model, share):
        part.requires_grad_(False)
    for name, parameter in model.encoder.named_parameters(recurse=False):
        if name in FIRST:
            parameter.requires_grad_(False)


def frozen_parts(model: nn.Module, share: float) -> list[nn.Module]:
    """Modules that `freeze` freezes, which training leaves in eval mode.

    So the running statistics of a batch normalisation stay as they are, and nothing is dropped
    within. Embedded tokens are dropped as ever, above what is frozen.

    Args:
        model: Encoder and head, of which the encoder has ``blocks``.
        share: ``transfer.freeze``.
    """
    if not share:
        return []
    encoder: nn.Module = model.encoder  # type: ignore[assignment]
    first = [part for name, part in encoder.named_children() if name in FIRST]
    blocks = list(encoder.blocks)  # type: ignore[arg-type]
    return [*first, *blocks[: int(share * len(blocks) + ROUNDING)]]


def require_pretrained(share: float, *, pretrained: bool) -> None:
    """Refuse to keep random weights as they are.

    Args:
        share: ``transfer.freeze``.
        pretrained: Whether the run starts from another one's weights.

    Raises:
        BenchmdError: It does not, and the share is above 0.
    """
    if share and not pretrained:
        raise BenchmdError(
            f"transfer.freeze is {share:g}, and the run starts from random weights (scratch), "
            "which must be trained: expected 0, or a run that is pretrained."
        )
