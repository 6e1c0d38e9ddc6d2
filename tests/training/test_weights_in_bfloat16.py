"""Mixed precision of our transformer: weights are rounded together, tokens stay in bfloat16."""

import copy

import pytest
import torch
from torch.nn import functional

from benchmd_ray.data.batches import Worker
from benchmd_ray.modality.modalities import modalities
from benchmd_ray.models.encoder import LayerNorm, make_encoder
from benchmd_ray.settings.definition import (
    EncoderSettings,
    ExecutionSettings,
    OptimiserSettings,
    PretrainSettings,
)
from benchmd_ray.ssl import method_named
from benchmd_ray.training.engine import DeepSpeedEngine, TorchEngine

SIGNAL = modalities()["ecg"].signal
SMALL = EncoderSettings(width=32, depth=2, heads=2, head_dim=8, mlp=64, dropout=0.0)
BF16 = ExecutionSettings(precision="bf16")


@pytest.fixture(autouse=True)
def usual_linear(monkeypatch):
    """ZeRO stage 3 replaces the function for the whole process, with other rounding."""
    monkeypatch.setattr(functional, "linear", torch._C._nn.linear)


def method(technique):
    torch.manual_seed(0)
    return method_named(technique)(make_encoder(SIGNAL, SMALL), PretrainSettings()).eval()


def inputs(module):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, *SIGNAL.input_shape, generator=generator), module.draw(6, generator)


def gradients(module):
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("engine", [TorchEngine, DeepSpeedEngine])
@pytest.mark.parametrize("technique", ["mae", "shed", "e-mix"])
def test_rounding_weights_together_changes_no_bit_of_autocast(technique, engine):
    plain = method(technique)
    given = inputs(plain)
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain(*given)
    expected.backward()
    module = copy.deepcopy(plain)
    module.zero_grad()
    stepper = engine(module, OptimiserSettings(), BF16, Worker())
    loss = stepper(*given)
    stepper.backward(loss)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)
    alike, expected_alike = gradients(module), gradients(plain)
    assert alike.keys() == expected_alike.keys()
    for name, gradient in alike.items():
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, expected_alike[name]), name


def test_frozen_weights_take_part_without_gradients():
    module = method("mae")
    module.encoder.blocks[0].requires_grad_(False)
    given = inputs(module)
    stepper = TorchEngine(module, OptimiserSettings(), BF16, Worker())
    stepper.backward(stepper(*given))
    frozen = {f"encoder.blocks.0.{name}" for name, _ in module.encoder.blocks[0].named_parameters()}
    assert gradients(module).keys() == dict(module.named_parameters()).keys() - frozen


def test_weights_that_changed_in_place_are_used_at_the_next_pass():
    module = method("shed")
    given = inputs(module)
    stepper = TorchEngine(module, OptimiserSettings(), BF16, Worker())
    before = stepper(*given)
    with torch.no_grad():
        module.encoder.positions.mul_(2)
    assert not torch.equal(stepper(*given), before)
    with torch.no_grad():
        module.encoder.positions.div_(2)
    assert torch.equal(stepper(*given), before)


def test_tokens_stay_in_bfloat16_and_features_in_float32():
    encoder = make_encoder(SIGNAL, SMALL).eval()
    signals = torch.randn(4, *SIGNAL.input_shape, generator=torch.Generator().manual_seed(0))
    kinds = []
    for block in encoder.blocks:
        block.register_forward_hook(lambda _, x, y: kinds.append((x[0].dtype, y.dtype)))
    expected = encoder(signals)
    with torch.autocast("cpu", torch.bfloat16):
        features = encoder(signals)
    assert kinds == [(torch.float32,) * 2] * 2 + [(torch.bfloat16,) * 2] * 2
    assert features.dtype == torch.float32
    error = torch.linalg.vector_norm(features - expected) / torch.linalg.vector_norm(expected)
    assert 0 < error < 2**-6  # bfloat16 has a relative rounding error of 2⁻⁹


def test_statistics_of_bfloat16_tokens_are_in_float32():
    norm = LayerNorm(512)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
    # A mean near 32 that was rounded to bfloat16 would be off by up to 0.125.
    x = (32 + torch.randn(40, 512, generator=torch.Generator().manual_seed(0))).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(x)
    wide = x.double()
    centred = wide - wide.mean(dim=1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=1, keepdim=True) + norm.eps).sqrt()
    expected = scaled * norm.weight.double() + norm.bias.double()
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), expected, rtol=2**-6, atol=2**-6)
