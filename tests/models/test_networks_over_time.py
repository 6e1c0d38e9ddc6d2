"""Networks of signals over time: against networks of images and a slow formula."""

import math

import pytest
import torch
from kinds import SIGNALS
from made_networks import BUILT_IN, MONAI, RESNETS_1D, encoder_of, kind, randomised
from torch import nn
from torch.nn import functional

from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.parts import PARTS
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.encoder import (
    NETWORKS,
    compares_examples,
    make_encoder,
    require_fitting,
    require_tokens,
)
from benchmd_ray.models.heads import Classifier
from benchmd_ray.models.networks import PART_OF, network_part, network_source
from benchmd_ray.models.xresnet import Bottleneck
from benchmd_ray.settings.definition import EncoderSettings
from benchmd_ray.training.finetuning import layer_factors

ECG, EEG = SIGNALS["ecg"], SIGNALS["eeg"]


def signals(signal, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, *signal.input_shape, generator=generator, dtype=torch.float64)


# What they compute -------------------------------------------------------------------------------


@pytest.mark.parametrize("stem", ["small", "imagenet"])
@pytest.mark.parametrize("samples", [40, 61])
@pytest.mark.parametrize("network", RESNETS_1D)
def test_a_resnet_gives_what_the_network_of_images_gives_of_one_row(network, samples, stem):
    shape = (3, 1, samples)
    row = Signal("row", ("channel", "y", "x"), shape, shape, "uint8", "grey level", (1, 1), "none")
    options = {"width": 4, "stem": stem}
    encoder = randomised(encoder_of(network, kind(samples, 3), **options))
    images = encoder_of(network.removesuffix("-1d"), row, **options).double().eval()
    state = images.state_dict()
    for name, value in encoder.state_dict().items():
        if value.dim() == 3:  # kernels see the row in their middle
            middle = state[name].shape[2] // 2
            state[name].zero_()[:, :, middle] = value
        else:
            state[name].copy_(value)
    x = signals(kind(samples, 3))
    with torch.no_grad():
        found = encoder(x)
        torch.testing.assert_close(found, images(x.unsqueeze(2)), atol=1e-10, rtol=1e-8)
    assert found.std(dim=0).max() > 1e-3


def slow_xresnet(state, x, growth):
    """The network as the paper's code has it, written down once more."""

    def layer(x, name, number, stride=1, kernel=1):
        weight = state[f"{name}.{number}.weight"]
        assert weight.shape[2] == kernel
        x = functional.conv1d(x, weight, None, stride, kernel // 2)
        mean, var, scale, shift = (
            state[f"{name}.{number + 1}.{n}"][:, None]
            for n in ("running_mean", "running_var", "weight", "bias")
        )
        return scale * (x - mean) / (var + 1e-5).sqrt() + shift

    for number, stride in ((0, 2), (3, 1), (6, 1)):
        x = layer(x, "stem", number, stride, kernel=5).relu()
    x = functional.max_pool1d(x, 3, 2, 1)
    starts = {3, 7, 30}  # blocks that halve
    for block in range(33):
        name, stride = f"blocks.{block}", 2 if block in starts else 1
        inner = layer(x, f"{name}.body", 0).relu()
        inner = layer(inner, f"{name}.body", 3, stride, kernel=5).relu()
        inner = layer(inner, f"{name}.body", 6)
        if stride == 2:
            pairs = x.split(2, dim=2)  # the last may be of one sample
            x = torch.stack([pair.mean(dim=2) for pair in pairs], dim=2)
        if block == 0 or (stride == 2 and growth == 2):
            x = layer(x, f"{name}.shortcut", 1 if stride == 2 else 0)
        x = (inner + x).relu()
    return x.sum(dim=2) / x.shape[2]


@pytest.mark.parametrize("growth", [1, 2])
@pytest.mark.parametrize("samples", [64, 77])
def test_xresnet1d101_is_its_slow_formula(samples, growth):
    torch.manual_seed(0)
    encoder = randomised(encoder_of("xresnet1d101", kind(samples, 12), width=4, growth=growth))
    x = signals(kind(samples, 12))
    with torch.no_grad():
        expected = slow_xresnet(encoder.state_dict(), x, growth)
        assert encoder.width == expected.shape[1] == 16 * growth**3
        torch.testing.assert_close(encoder(x), expected, atol=1e-10, rtol=1e-8)
        assert expected.std(dim=0).max() > 1e-3


def test_xresnet1d101_begins_with_blocks_that_are_their_shortcuts():
    torch.manual_seed(0)
    encoder = encoder_of("xresnet1d101", kind(200, 12)).eval()
    last = [block.body[-1] for block in encoder.blocks]
    assert len(last) == 33
    assert not any(norm.weight.any() for norm in last)
    block = Bottleneck(64, 16, 1).eval()
    x = torch.rand(2, 64, 9)
    assert torch.equal(block(x), x)
    for convolution, norm in (encoder.stem[3:5], encoder.blocks[9].body[3:5]):
        deviation = math.sqrt(2 / (convolution.in_channels * 5))
        assert convolution.weight.std().item() == pytest.approx(deviation, rel=0.05)
        assert (norm.weight == 1).all()


@pytest.mark.parametrize("network", BUILT_IN)
def test_places_are_halved_five_times_and_rounded_up(network):
    for samples in (1, 5, 257, 1000, 3750):
        encoder = encoder_of(network, kind(samples), width=2).eval()
        seen = []
        encoder.blocks.register_forward_hook(lambda _, __, y, seen=seen: seen.append(y.shape[2]))
        with torch.no_grad():
            assert encoder(signals(kind(samples)).float()).shape == (2, encoder.width)
        small = len(encoder.stem) == 3
        assert small == (samples <= 256 and network in RESNETS_1D)
        assert seen == [math.ceil(samples / (8 if small else 32))]


def test_the_stem_of_a_resnet_may_be_chosen():
    assert len(encoder_of("resnet18-1d", kind(2000), width=2, stem="small").stem) == 3
    assert len(encoder_of("resnet18-1d", kind(20), width=2, stem="imagenet").stem) == 4


@pytest.mark.parametrize("network", RESNETS_1D)
def test_kernels_of_a_resnet_are_drawn_as_those_of_images(network):
    torch.manual_seed(0)
    small = encoder_of(network, kind(200, 12)).stem[0].weight
    assert small.abs().max().item() == pytest.approx(1 / math.sqrt(12 * 3), rel=0.02)
    large = encoder_of(network, kind(2000, 12)).blocks[-1].body[3].weight
    deviation = math.sqrt(2 / (512 * 3))
    assert large.std().item() == pytest.approx(deviation, rel=0.03)


# Training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [*BUILT_IN, *MONAI])
def test_every_weight_gets_a_gradient(network):
    torch.manual_seed(0)
    options = {"width": 8} if network in BUILT_IN else {}
    encoder = encoder_of(network, kind(320, 12), **options)
    x = signals(kind(320, 12), batch=4).float()
    if network == "xresnet1d101":
        encoder(x).square().sum().backward()
        for block in encoder.blocks:  # they are learnt first, and what is before them after that
            assert block.body[-1].weight.grad.any()
            assert not block.body[0].weight.grad.any()
            nn.init.ones_(block.body[-1].weight)
        encoder.zero_grad()
    encoder(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
    dead = [name for name, p in encoder.named_parameters() if not p.grad.any()]
    dropped = 0.1 * len(list(encoder.parameters())) if network == "monai-efficientnet-b0" else 0
    assert len(dead) <= dropped, dead


@pytest.mark.parametrize("network", [*BUILT_IN, *MONAI])
def test_a_batch_of_one_that_shrinks_to_a_point_is_trained(network):
    options = {"width": 4} if network in BUILT_IN else {}
    encoder = encoder_of(network, kind(32), **options).train()
    found = encoder(signals(kind(32), batch=1).float())
    found.sum().backward()
    assert found.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
    assert compares_examples(encoder)


@pytest.mark.parametrize("network", BUILT_IN)
def test_features_are_dropped_in_training_alone(network):
    torch.manual_seed(0)
    encoder = encoder_of(network, kind(300), width=16, dropout=0.5).eval()
    x = signals(kind(300), batch=8).float()
    with torch.no_grad():
        kept = encoder(x)
        assert torch.equal(encoder(x), kept)
        encoder.dropout.train()
        dropped = encoder(x)
    assert torch.equal(dropped[dropped > 0], 2 * kept[dropped > 0])
    assert (dropped > 0).sum().item() == pytest.approx((kept > 0).sum().item() / 2, rel=0.15)


def test_layers_have_rates_of_their_own_from_the_stem_up():
    with torch.device("meta"):
        model = Classifier(encoder_of("xresnet1d101", ECG), 2)
    factors = layer_factors(model, 0.5, "xresnet1d101")
    assert factors["encoder.stem.6.weight"] == 0.5**34
    assert factors["encoder.blocks.0.shortcut.0.weight"] == 0.5**33
    assert factors["encoder.blocks.32.body.7.weight"] == 0.5
    assert factors["head.weight"] == 1


# What does not fit -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "signal", "options", "message"),
    [
        ("resnet18-1d", SIGNALS["cxr"], {}, r"axes channel, time, and cxr has .* or resnet50\."),
        (
            "resnet50-1d",
            SIGNALS["ldct"],
            {},
            r"ldct has channel, z, y, x: .*with -2\.5d, -3d or -a",
        ),
        ("xresnet1d101", SIGNALS["cxr"], {}, r"axes channel, time, and cxr has .* or resnet50\."),
        ("resnet18", ECG, {}, r"ecg has channel, time: choose resnet18-1d, .*xresnet1d101 or tran"),
        ("resnet50-3d", EEG, {}, r"eeg has channel, time: choose resnet18-1d, .*xresnet1d101 or t"),
        ("resnet18-1d", ECG, {"resize": 500}, r"options\.resize is 500, and resnet18-1d .*alias"),
        ("resnet18-1d", ECG, {"growth": 2}, r"'growth'.*Valid: dropout, resize, stem, width"),
        ("resnet18-1d", ECG, {"width": 0}, r"encoder\.options\.width is 0, expected 1 to"),
        ("xresnet1d101", ECG, {"resize": 500}, r"'resize'.*Valid: dropout, growth, width"),
        ("xresnet1d101", ECG, {"stem": "small"}, r"'stem'.*Valid: dropout, growth, width"),
        ("xresnet1d101", ECG, {"width": 63}, r"width is 63, expected an even number"),
        ("xresnet1d101", ECG, {"width": 0}, r"width is 0, expected 2 to 4,096"),
        ("xresnet1d101", ECG, {"growth": 3}, r"growth is 3, expected 1 to 2"),
        ("xresnet1d101", ECG, {"dropout": 1.0}, r"dropout is 1\.0, expected a number in \[0, 1\)"),
        ("xresnet1d50", ECG, {}, "encoder network 'xresnet1d50'.*Did you mean 'xresnet1d101'"),
        (
            "monai-efficientnet-b0",
            kind(31),
            {},
            r"32 samples or more .* 31: choose a ResNet",
        ),
        ("monai-densenet121", ECG, {"resize": 64}, r"resize is 64, and monai-densenet121 .*alias"),
        ("monai-seresnet50", ECG, {"width": 8}, r"'encoder\.options' 'width'.*resize"),
    ],
)
def test_what_does_not_fit_is_refused(network, signal, options, message):
    with pytest.raises(BenchmdError, match=message):
        make_encoder(signal, EncoderSettings(network=network, options=options))


def test_monai_s_networks_take_the_shortest_signals_that_they_can_halve():
    for network, least in zip(MONAI, (32, 32, 3), strict=True):
        encoder = encoder_of(network, kind(least)).eval()
        with torch.no_grad():
            assert encoder(signals(kind(least)).float()).shape == (2, encoder.width)
        with pytest.raises(BenchmdError, match=f"needs {least} samples or more"):
            encoder_of(network, kind(least - 1))


def test_every_network_is_of_the_part_that_has_its_source():
    assert NETWORKS.keys() == PART_OF.keys()
    for name, make in NETWORKS.items():
        source = getattr(make, "func", make).__module__.removeprefix("benchmd_ray.")
        assert source.replace(".", "/") + ".py" in PARTS[network_part(name)].files


def test_they_have_no_source_of_a_user():
    for network in BUILT_IN:
        encoder = EncoderSettings(network=network)
        require_fitting(ECG, encoder)
        require_fitting(EEG, encoder)
        assert network_source(encoder) is None
        with pytest.raises(BenchmdError, match=f"e-mix works on the tokens.*is {network}"):
            require_tokens(ECG, encoder, "e-mix")
