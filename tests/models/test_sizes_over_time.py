"""Sizes of networks of signals over time: parameters, operations and maps, from papers' tables."""

import pytest
import torch
from kinds import SIGNALS
from made_networks import BUILT_IN, MONAI, RESNETS_1D, encoder_of, kind

from benchmd_ray.models.encoder import values_held
from benchmd_ray.service import cost
from benchmd_ray.settings.definition import EncoderSettings
from benchmd_ray.training.collect import evaluation_batch

ECG = SIGNALS["ecg"]


def size(module):
    return sum(p.numel() for p in module.parameters())


PARAMETERS = {  # of width w and c channels: layers added up by hand, norms with 2 per channel
    "resnet18-1d": lambda w, c: 7 * c * w + 936 * w**2 + 150 * w,
    "resnet50-1d": lambda w, c: 7 * c * w + 3882 * w**2 + 830 * w,
    "xresnet1d101": lambda w, c: 5 * c * w // 2 + 1735 * w**2 // 4 + 408 * w,
    "xresnet1d101, growth 2": lambda w, c: 5 * c * w // 2 + 32143 * w**2 // 4 + 1648 * w,
}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("width", [2, 32, 64, 128])
@pytest.mark.parametrize("channels", [1, 2, 3, 12])
def test_they_have_the_parameters_of_their_tables(name, width, channels):
    network, growing, _ = name.partition(", growth 2")
    with torch.device("meta"):
        options = {"growth": 2} if growing else {}
        encoder = encoder_of(network, kind(1000, channels), width=width, **options)
    assert size(encoder) == PARAMETERS[name](width, channels)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "parameters", "features"),
    [
        ("resnet18-1d", 3_848_832, 512),
        ("resnet50-1d", 15_959_168, 2048),
        ("xresnet1d101", 1_804_672, 256),
        ("monai-densenet121", 5_524_416, 1024),
        ("monai-efficientnet-b0", 3_865_372, 1280),
        ("monai-seresnet50", 18_490_160, 2048),
    ],
)
def test_an_ecg_is_encoded_by_networks_of_these_sizes(network, parameters, features):
    encoder = encoder_of(network, ECG).eval()
    assert size(encoder) == cost.encoder_parameters(ECG, EncoderSettings(network=network))
    assert size(encoder) == parameters
    with torch.no_grad():
        found = encoder(torch.randn(1, *ECG.input_shape))
    assert found.shape == (1, features) == (1, encoder.width)
    assert found.isfinite().all()


def convolved(inputs, outputs, places):
    """A convolution of so many places without bias, and its norm."""
    return inputs * outputs * places + 2 * outputs


def densenet121(axes, channels):
    """Huang et al., table 1: growth 32, bottlenecks of 128, transitions that halve."""
    total, features = convolved(channels, 64, 7**axes), 64
    for block, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            total += 2 * features + convolved(features, 128, 1) + 128 * 32 * 3**axes
            features += 32
        total += 2 * features  # the norm of a transition, or the last
        if block < 3:
            total += features * features // 2
            features //= 2
    return total


def efficientnet_b0(axes, channels):
    """Tan and Le, table 1: expansion, kernel, channels and layers of each stage."""
    total, inputs = convolved(channels, 32, 3**axes), 32
    stages = [(1, 3, 16, 1), (6, 3, 24, 2), (6, 5, 40, 2), (6, 3, 80, 3), (6, 5, 112, 3)]
    for expansion, kernel, outputs, layers in [*stages, (6, 5, 192, 4), (6, 3, 320, 1)]:
        for _ in range(layers):
            inner, squeezed = inputs * expansion, inputs // 4
            total += convolved(inputs, inner, 1) if expansion > 1 else 0
            total += inner * kernel**axes + 2 * inner  # each channel by itself
            total += 2 * inner * squeezed + squeezed + inner
            total += convolved(inner, outputs, 1)
            inputs = outputs
    return total + convolved(inputs, 1280, 1)


def seresnet50(axes, channels):
    """Hu et al., table 1: a ResNet-50 with squeezes to a sixteenth."""
    total, inputs = convolved(channels, 64, 7**axes), 64
    for stage, layers in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        outputs, squeezed = 4 * width, width // 4
        for layer in range(layers):
            total += convolved(inputs, width, 1) + convolved(width, width, 3**axes)
            total += convolved(width, outputs, 1) + 2 * outputs * squeezed + squeezed + outputs
            total += 0 if layer else convolved(inputs, outputs, 1)
            inputs = outputs
    return total


@pytest.mark.parametrize(
    ("network", "table", "features", "published"),
    [
        ("monai-densenet121", densenet121, 1024, 7_978_856),  # of images, with 1000 classes
        ("monai-efficientnet-b0", efficientnet_b0, 1280, 5_288_548),
        ("monai-seresnet50", seresnet50, 2048, 28_088_024),
    ],
)
def test_those_of_monai_have_the_parameters_of_their_tables(network, table, features, published):
    assert table(2, 3) + 1000 * (features + 1) == published
    for channels in (1, 2, 12):
        with torch.device("meta"):
            assert size(encoder_of(network, kind(640, channels))) == table(1, channels)


def test_operations_are_those_of_the_tables():
    """Multiplications and additions of one ECG: places of a stage times weights."""
    w, c = 64, 12
    stem, *stages = 2500, 1250, 625, 313, 157
    squares = sum(
        places * of for places, of in zip(stages, (12, 44, 176, 704), strict=True)
    )  # each stage has 11 squares of its width, the first 12
    expected = 2 * (7 * c * w * stem + squares * w**2)
    assert cost.forward_flops(ECG, EncoderSettings(network="resnet18-1d")) == expected
    halved = sum(
        4 * before + 9 * after + 13 * after * (depth - 1)
        for before, after, depth in zip(stages[:-1], stages[1:], (4, 23, 3), strict=True)
    )
    squares = 15 * stem // 4 + 40 * stages[0] + halved
    expected = 2 * (5 * c * w // 2 * stem + squares * w**2)
    assert cost.forward_flops(ECG, EncoderSettings(network="xresnet1d101")) == expected
    training = cost.training_flops(ECG, EncoderSettings(network="xresnet1d101"))
    assert training == 3 * expected


def largest(encoder):
    """Values of the largest map of an example, of all that modules give."""
    seen = []
    with torch.device("meta"):
        for module in encoder.modules():
            if not list(module.children()):
                module.register_forward_hook(lambda _, __, y: seen.append(y[0].numel()))
        encoder(torch.zeros(2, *encoder.signal.input_shape))
    return max(seen)


@pytest.mark.parametrize(
    ("network", "options"),
    [
        *((network, {"stem": stem}) for network in RESNETS_1D for stem in ("small", "imagenet")),
        *(("xresnet1d101", {"growth": growth}) for growth in (1, 2)),
    ],
)
@pytest.mark.parametrize("samples", [1, 40, 1001, 5000])
def test_the_largest_map_is_what_the_network_makes_of_an_example(network, options, samples):
    with torch.device("meta"):
        encoder = encoder_of(network, kind(samples), width=4, **options)
    assert values_held(encoder) == encoder.largest_map == largest(encoder)


@pytest.mark.slow
@pytest.mark.parametrize("network", MONAI)
@pytest.mark.parametrize("samples", [1001, 3750, 5000])  # of few samples, what is padded counts
def test_the_largest_map_of_monai_s_networks_is_known_but_for_rounding(network, samples):
    with torch.device("meta"):
        encoder = encoder_of(network, kind(samples))
    assert 0.97 * values_held(encoder) <= largest(encoder) <= 1.01 * values_held(encoder)


def test_steps_without_gradients_hold_as_many_examples_as_maps_allow():
    with torch.device("meta"):
        found = {name: evaluation_batch(encoder_of(name, ECG)) for name in BUILT_IN}
    assert found == {
        "resnet18-1d": 256,
        "resnet50-1d": 2**26 // (2048 * 157),
        "xresnet1d101": 2**26 // (256 * 1250),
    }
