"""Mixed precision of our transformer: weights are rounded together, tokens stay in bfloat16."""

import copy

import pytest
import torch
from torch.nn import functional

from benchmd_ray.data.batches import Worker
from benchmd_ray.modality.modalities import modalities
from benchmd_ray.models.encoder import LayerNorm, make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.settings.definition import (
    EncoderSettings,
    ExecutionSettings,
    OptimiserSettings,
    PretrainSettings,
)
from benchmd_ray.ssl import method_named
from benchmd_ray.ssl.mae import MAE
from benchmd_ray.training.engine import DeepSpeedEngine, TorchEngine
from benchmd_ray.training.forward import compiled

SIGNAL = modalities()["ecg"].signal
SMALL = EncoderSettings(width=32, depth=2, heads=2, head_dim=8, mlp=64, dropout=0.0)
BF16 = ExecutionSettings(precision="bf16")


@pytest.fixture(autouse=True)
def usual_linear(monkeypatch):
    """DeepSpeed's ZeRO stage 3 replaces it for the whole process by one that rounds otherwise."""
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
def test_weights_are_rounded_as_by_autocast(technique, engine):
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
        expected = expected_alike[name]
        if name.startswith("encoder."):  # a gradient of a copy in bfloat16 is rounded as well
            expected = expected.bfloat16().float()
        assert torch.equal(gradient, expected), name


def test_frozen_weights_take_part_without_gradients():
    module = method("mae")
    module.encoder.blocks[0].requires_grad_(False)
    given = inputs(module)
    stepper = TorchEngine(module, OptimiserSettings(), BF16, Worker())
    stepper.backward(stepper(*given))
    frozen = {f"encoder.blocks.0.{name}" for name, _ in module.encoder.blocks[0].named_parameters()}
    assert gradients(module).keys() == dict(module.named_parameters()).keys() - frozen


def test_weights_that_are_not_used_have_no_gradient():
    model = Classifier(make_encoder(SIGNAL, SMALL), 3)
    block, model.encoder.blocks = model.encoder.blocks[1], model.encoder.blocks[:1]
    model.encoder.unused = block
    stepper = TorchEngine(model, OptimiserSettings(lr=0.1, weight_decay=0.1), BF16, Worker())
    before = copy.deepcopy(block.state_dict())
    stepper.backward(stepper(torch.randn(2, *SIGNAL.input_shape)).sum())
    stepper.update()
    assert all(torch.equal(x, before[name]) for name, x in block.state_dict().items())


class Teacher(MAE):
    """A custom method that averages its encoder's weights within its forward pass."""

    def __init__(self, encoder, settings):
        super().__init__(encoder, settings)
        self.teacher = copy.deepcopy(encoder).requires_grad_(False)

    def forward(self, signals, draws, gather=None):
        with torch.no_grad():
            self.teacher.positions.lerp_(self.encoder.positions + 1, 0.5)
        return super().forward(signals, draws)


def test_a_custom_method_may_change_weights_in_its_forward_pass():
    torch.manual_seed(0)
    module = Teacher(make_encoder(SIGNAL, SMALL), PretrainSettings())
    given, before = inputs(module), module.teacher.positions.clone()
    TorchEngine(module, OptimiserSettings(), BF16, Worker())(*given)
    torch.testing.assert_close(module.teacher.positions, before + 0.5)


def flat(module):
    return torch.cat([gradient.flatten() for gradient in gradients(module).values()])


@pytest.mark.parametrize("technique", ["mae", "shed", "e-mix"])
def test_gradients_are_those_of_float32_within_rounding(technique):
    found = []
    for precision in ("float32", "bf16"):
        module = method(technique)
        given = inputs(module)
        execution = ExecutionSettings(precision=precision)
        stepper = TorchEngine(module, OptimiserSettings(), execution, Worker())
        stepper.backward(stepper(*given))
        found.append(gradients(module))
    for name, expected in found[0].items():
        error = torch.linalg.vector_norm(found[1][name] - expected)
        assert error < 0.05 * torch.linalg.vector_norm(expected), name


@pytest.mark.slow
def test_a_compiled_pass_rounds_alike():
    module = method("mae")
    given = inputs(module)
    stepper = TorchEngine(module, OptimiserSettings(), BF16, Worker())
    losses, found = [], []
    for work in (stepper, compiled(lambda *x: stepper(*x))):
        module.zero_grad()
        losses.append(work(*given))
        stepper.backward(losses[-1])
        found.append(flat(module))
    torch.testing.assert_close(*losses, rtol=2**-8, atol=0)
    assert torch.linalg.vector_norm(found[0] - found[1]) < 0.01 * found[0].norm()


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
