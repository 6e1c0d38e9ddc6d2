"""Losses under bfloat16 autocast: computed in float32 from the rounded outputs of the network."""

import pytest
import torch

from benchmd_ray.models.heads import classification_loss
from benchmd_ray.models.segmenter import segmentation_loss
from benchmd_ray.ssl.emix import emix_loss
from benchmd_ray.ssl.mae import mae_loss
from benchmd_ray.ssl.shed import shed_loss

ROWS = 64


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def whole(high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(1))


SHARES = whole(10, ROWS) / 10
LOSSES = {
    "e-Mix": lambda x: emix_loss(
        x[:, 0], x[:, 1], SHARES, torch.arange(ROWS), whole(ROWS, ROWS), 0.2
    ),
    "MAE": lambda x: mae_loss(x, numbers(ROWS, 12, 24).flip(0), whole(2, ROWS, 12).bool()),
    "ShED": lambda x: shed_loss(x[:, :, 0], whole(2, ROWS, 12).bool()),
    "single-label": lambda x: classification_loss(
        x[:, 0], torch.eye(24, dtype=torch.int8)[whole(24, ROWS)], "single-label", 0.1
    ),
    "multi-label": lambda x: classification_loss(
        x[:, 0], whole(3, ROWS, 24).to(torch.int8) - 1, "multi-label"
    ),
    "mixed labels": lambda x: classification_loss(
        x[:, 0], torch.eye(24)[whole(24, ROWS)] * 0.6 + 0.4 / 24, "single-label"
    ),
    "segmentation": lambda x: segmentation_loss(x[:, :3], whole(3, ROWS, 24)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_computed_in_float32_under_autocast(name):
    outputs = numbers(ROWS, 12, 24).bfloat16()
    expected = LOSSES[name](outputs.float())
    with torch.autocast("cpu", torch.bfloat16):
        loss = LOSSES[name](outputs)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
