import re
from types import SimpleNamespace

import pytest
import torch
from kinds import SIGNALS
from torch import nn

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.settings.definition import ENCODERS, ExecutionSettings, OptimiserSettings
from benchmd_ray.training.engine import DeepSpeedEngine, TorchEngine
from benchmd_ray.training.finetuning import layer_factors

EEG = SIGNALS["eeg"]
ENGINES = {"torch": TorchEngine, "deepspeed": DeepSpeedEngine}
OPTIMISER = OptimiserSettings(lr=1e-2, weight_decay=0.1)


def classifier(size="tiny", seed=0):
    torch.manual_seed(seed)
    return Classifier(Encoder(EEG, ENCODERS[size]), 5).eval()  # without dropout


def slow_rate(name, decay, depth):
    """The released fine-tuning code of MAE: layer ids from 0, and decay^(last id − id)."""
    if name in ("encoder.cls", "encoder.positions") or name.startswith("encoder.patch_embedding"):
        layer = 0
    elif block := re.match(r"encoder\.blocks\.(\d+)\.", name):
        layer = int(block[1]) + 1
    else:
        layer = depth + 1
    scales = [1.0]
    for _ in range(depth + 1):
        scales.insert(0, scales[0] * decay)
    return scales[layer]


@pytest.mark.parametrize(("size", "depth"), [("tiny", 2), ("vit-tiny", 12)])
@pytest.mark.parametrize("decay", [0.5, 0.75])
def test_each_parameter_has_the_rate_of_its_layer(size, depth, decay):
    with torch.device("meta"):
        model = classifier(size)
    found = layer_factors(model, decay, "transformer")
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, factor in found.items():
        assert factor == pytest.approx(slow_rate(name, decay, depth)), name
    if size == "tiny":
        assert found["encoder.positions"] == found["encoder.patch_embedding.bias"] == decay**3
        assert found["encoder.blocks.1.qkv.weight"] == decay
        assert found["head.weight"] == 1
    else:
        assert found["encoder.norm.weight"] == found["head.bias"] == 1


def stepped(engine, first=0, count=3):
    """Train on fixed batches with a rate that changes."""
    for step in range(first, first + count):
        signals, target = batch(step)
        engine.set_lr(rate(step))
        engine.backward((engine(signals) - target).square().mean())
        engine.update()
    return engine


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randn(2, *EEG.input_shape, generator=generator),
        torch.randn(2, 5, generator=generator),
    )


def rate(step):
    return 1e-2 / (1 + step)


def make(name, model, decay=0.5, **execution):
    settings = ExecutionSettings(engine=name, **execution)
    factors = layer_factors(model, decay, "transformer")
    return ENGINES[name](model, OPTIMISER, settings, Worker(), factors)


def slow_training(decay, count=3):
    """An optimiser for every parameter alone, with its own rate."""
    model = classifier()
    own = {n: torch.optim.AdamW([p], weight_decay=0.1) for n, p in model.named_parameters()}
    for step in range(count):
        signals, target = batch(step)
        (model(signals) - target).square().mean().backward()
        for name, optimiser in own.items():
            optimiser.param_groups[0]["lr"] = rate(step) * slow_rate(name, decay, 2)
            optimiser.step()
            optimiser.zero_grad()
    return model.state_dict()


def largest_difference(one, other):
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize(("name", "stage"), [("torch", 0), *(("deepspeed", s) for s in range(4))])
def test_every_engine_steps_each_parameter_at_its_own_rate(name, stage):
    found = stepped(make(name, classifier(), zero_stage=stage)).weights()
    expected = slow_training(0.5)
    assert largest_difference(found, expected) < 1e-6
    assert largest_difference(expected, slow_training(1.0)) > 1e-3


@pytest.mark.parametrize(("writes", "reads"), [("torch", "deepspeed"), ("deepspeed", "torch")])
def test_a_state_with_rates_of_layers_goes_on_in_the_other_engine(writes, reads, tmp_path):
    writer = stepped(make(writes, classifier()), 0, 2)
    writer.save(tmp_path)
    reader = make(reads, classifier(seed=9))
    reader.load(tmp_path)
    assert largest_difference(stepped(reader, 2, 1).weights(), slow_training(0.5)) < 1e-6


def test_a_split_state_with_rates_of_layers_goes_on(tmp_path):
    stepped(make("deepspeed", classifier(), zero_stage=2), 0, 2).save(tmp_path)
    reader = make("deepspeed", classifier(seed=9), zero_stage=2)
    reader.load(tmp_path)
    assert largest_difference(stepped(reader, 2, 1).weights(), slow_training(0.5)) < 1e-6


@pytest.mark.parametrize("name", ENGINES)
def test_without_decay_there_is_one_group_and_the_bits_of_before(name):
    one = make(name, classifier(), decay=1.0)
    plain = ENGINES[name](classifier(), OPTIMISER, ExecutionSettings(engine=name), Worker())
    groups = one._optimiser if name == "torch" else one._engine.optimizer
    assert len(groups.param_groups) == 1
    found, expected = stepped(one).weights(), stepped(plain).weights()
    assert all(torch.equal(found[n], expected[n]) for n in expected)


@pytest.mark.parametrize("blocks", [None, nn.ModuleList(), nn.ModuleDict({"0": nn.Linear(1, 1)})])
def test_a_network_without_blocks_in_an_order_is_refused(blocks):
    model = SimpleNamespace(encoder=SimpleNamespace(blocks=blocks))
    with pytest.raises(BenchmdError, match=r"layer_decay is 0\.9 and .* mine:Net has no `blocks`"):
        layer_factors(model, 0.9, "mine:Net")
    assert layer_factors(model, 1.0, "mine:Net") is None
