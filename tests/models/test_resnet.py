"""ResNets against transformers' own, against 2-D networks on slices, and published figures."""

import math

import numpy as np
import pytest
import torch
from kinds import SIGNALS
from made_networks import randomised
from PIL import Image
from torch import nn
from torch.nn import functional

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.encoder import (
    compares_examples,
    make_encoder,
    require_tokens,
    values_held,
)
from benchmd_ray.models.heads import Classifier
from benchmd_ray.models.resnet import RESNETS, AcsConv, BatchNorm
from benchmd_ray.settings.definition import ENCODERS, EncoderSettings, updated
from benchmd_ray.training.collect import evaluation_batch
from benchmd_ray.training.finetuning import layer_factors


def kind(extent, *, channels=1, volumes=False):
    """A signal of square images or cubes."""
    axes = ("channel", "z", "y", "x") if volumes else ("channel", "y", "x")
    shape = (channels, *[extent] * (len(axes) - 1))
    patch = (1 if extent % 4 else 4,) * (len(axes) - 1)
    return Signal("made", axes, shape, shape, "uint8", "grey level", patch, "none")


def resnet(network, modality, **options):
    return make_encoder(modality, EncoderSettings(network=network, options=options))


def layers(module):
    """Convolutions and norms by turns, in a fixed order: shortcuts after what they pass by."""
    late = [m for name, m in module.named_modules() if "shortcut" not in name]
    return [m for m in late if hasattr(m, "weight")], [
        m for name, m in module.named_modules() if "shortcut" in name and hasattr(m, "weight")
    ]


def copy_weights(source, target):
    """Weights and running statistics; kernels keep the shape of the target."""
    for ones, others in zip(layers(source), layers(target), strict=True):
        for one, other in zip(ones, others, strict=True):
            for name, value in one.state_dict().items():
                held = other.state_dict()[name]
                held.copy_(value.reshape(held.shape))


def signals(modality, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, *modality.input_shape, generator=generator, dtype=torch.float64)


def features(encoder, x):
    with torch.no_grad():
        return encoder(x)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("network", ["resnet18", "resnet50"])
def test_it_agrees_with_the_resnet_of_transformers(network, small):
    from transformers import ResNetConfig, ResNetModel

    wide = 4 if network == "resnet50" else 1
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8 * wide * 2**stage for stage in range(4)],
        depths=[2, 2, 2, 2] if network == "resnet18" else [3, 4, 6, 3],
        layer_type="basic" if network == "resnet18" else "bottleneck",
    )
    expected = ResNetModel(config)
    if small:  # a 3 × 3 convolution and no maximum
        expected.embedder.embedder.convolution = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        expected.embedder.pooler = nn.Identity()
    randomised(expected)
    modality = kind(28 if small else 70, channels=3)
    encoder = resnet(network, modality, width=8).double().eval()
    copy_weights(expected, encoder)
    x = signals(modality)
    with torch.no_grad():
        wanted = expected(x).pooler_output.flatten(1)
    assert encoder.width == wanted.shape[1] == 64 * wide
    torch.testing.assert_close(features(encoder, x), wanted, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(
    ("network", "extent", "classes", "published"),
    [
        ("resnet18", 224, 1000, 11_689_512),  # torchvision's, with its classifier
        ("resnet50", 224, 1000, 25_557_032),
        ("resnet18", 28, 10, 11_173_962),  # those with the small stem, for CIFAR-10
        ("resnet50", 28, 10, 23_520_842),
    ],
)
def test_they_are_as_large_as_published(network, extent, classes, published):
    with torch.device("meta"):
        encoder = resnet(network, kind(extent))
    size = sum(p.numel() for p in encoder.parameters())
    assert size + classes * (encoder.width + 1) == published


@pytest.mark.parametrize("layers_", [18, 50])
def test_volumes_take_as_many_weights_but_for_cubes(layers_):
    sizes = {}
    for way in ("", "-2.5d", "-acs", "-3d"):
        with torch.device("meta"):
            encoder = resnet(f"resnet{layers_}{way}", kind(28, volumes=bool(way)))
        kernels = [m.weight for m in encoder.modules() if isinstance(m, nn.Conv2d | nn.Conv3d)]
        sizes[way] = sum(math.prod(k.shape[:2]) * k.shape[-1] ** 2 for k in kernels)
        if way == "-3d":
            assert all(k.shape[2] == k.shape[3] == k.shape[4] for k in kernels)
        else:
            assert sum(k.numel() for k in kernels) == sizes[way]
    assert len(set(sizes.values())) == 1


@pytest.mark.parametrize("layers_", [18, 50])
def test_slices_go_through_the_network_of_images_one_by_one(layers_):
    images, volumes = kind(28), kind(28, volumes=True)
    flat = randomised(resnet(f"resnet{layers_}", images, width=4))
    encoder = resnet(f"resnet{layers_}-2.5d", volumes, width=4).double().eval()
    copy_weights(flat, encoder)
    x = signals(volumes)
    seen = range(0, 28, 8)  # three strides of 2 leave every eighth
    expected = torch.stack([features(flat, x[:, :, z]) for z in seen]).mean(dim=0)
    torch.testing.assert_close(features(encoder, x), expected, atol=1e-10, rtol=1e-8)


def test_cubes_with_a_middle_slice_alone_are_slices():
    volumes = kind(28, volumes=True)
    flat = randomised(resnet("resnet18-2.5d", volumes, width=4))
    cubes = resnet("resnet18-3d", volumes, width=4).double().eval()
    for ones, others in zip(layers(flat), layers(cubes), strict=True):
        for one, other in zip(ones, others, strict=True):
            if isinstance(one, BatchNorm):
                other.load_state_dict(one.state_dict())
                continue
            other.weight.data.zero_()
            other.weight.data[:, :, other.kernel_size[0] // 2] = one.weight.data[:, :, 0]
    x = signals(volumes)
    torch.testing.assert_close(features(cubes, x), features(flat, x), atol=1e-10, rtol=1e-8)
    turned = x.transpose(2, 4)  # and they see all three axes alike
    for module in cubes.modules():
        if isinstance(module, nn.Conv3d):
            module.weight.data = module.weight.data.transpose(2, 4).contiguous()
    torch.testing.assert_close(features(cubes, turned), features(flat, x), atol=1e-10, rtol=1e-8)


def slow_acs(x, weight, stride, padding):
    """Each plane's slices, one after the other, in two dimensions."""
    third, rest = divmod(len(weight), 3)
    parts = weight.split([third + (rest > 0), third + (rest > 1), third])
    planes = []
    for axis, part in zip((2, 3, 4), parts, strict=True):
        kept = range(0, x.shape[axis], stride)
        slices = [functional.conv2d(x.select(axis, i), part, None, stride, padding) for i in kept]
        planes.append(torch.stack(slices, dim=axis))
    return torch.cat(planes, dim=1)


@pytest.mark.parametrize("outputs", [6, 7, 8])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2), (7, 2)])
@pytest.mark.parametrize("extents", [(8, 8, 8), (7, 8, 9)])
def test_acs_convolves_each_plane_with_its_third(outputs, kernel, stride, extents):
    torch.manual_seed(0)
    convolution = AcsConv(5, outputs, kernel, stride, kernel // 2, bias=False).double()
    x = torch.randn(2, 5, *extents, dtype=torch.float64)
    expected = slow_acs(x, convolution.weight, stride, kernel // 2)
    torch.testing.assert_close(convolution(x), expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("network", sorted(n for n in RESNETS if not n.endswith("-1d")))
def test_grey_stands_in_all_three_colours(network):
    volumes = "-" in network
    grey, colour = kind(12, volumes=volumes), kind(12, channels=3, volumes=volumes)
    encoder = resnet(network, grey, width=4)
    same = resnet(network, colour, width=4)
    same.load_state_dict(encoder.state_dict())
    randomised(encoder), randomised(same)
    x = signals(grey)
    copied = torch.cat([x, x, x], dim=1)
    found = features(encoder, x)
    assert found.shape == (2, encoder.width)
    assert found.std(dim=0).max() > 1e-3
    torch.testing.assert_close(features(same, copied), found)


@pytest.mark.parametrize(("extent", "resize"), [(28, 224), (28, 96), (60, 32)])
def test_images_are_resized_as_pillow_takes_the_nearest_pixel(extent, resize):
    # None of these has a centre right between two pixels, which rounding would decide.
    encoder = resnet("resnet18", kind(extent, channels=3), width=4, resize=resize)
    whole = resnet("resnet18", kind(resize, channels=3), width=4)
    whole.load_state_dict(encoder.state_dict())
    randomised(encoder), randomised(whole)
    assert len(encoder.stem) == len(whole.stem) == (4 if resize > 64 else 3)
    pixels = np.random.default_rng(0).integers(0, 256, (extent, extent, 3), np.uint8)
    large = np.array(Image.fromarray(pixels).resize((resize, resize), Image.Resampling.NEAREST))
    x, y = (torch.from_numpy(p / 255.0).permute(2, 0, 1)[None] for p in (pixels, large))
    torch.testing.assert_close(features(encoder, x), features(whole, y))


def test_kernels_are_drawn_as_in_the_released_code():
    torch.manual_seed(0)
    small = resnet("resnet18", kind(28))
    for convolution in (small.stem[0], small.blocks[7].body[3], small.blocks[2].shortcut[0]):
        bound = 1 / math.sqrt(convolution.weight[0].numel())  # PyTorch's own
        assert convolution.weight.abs().max().item() == pytest.approx(bound, rel=0.02)
        assert convolution.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    imagenet = resnet("resnet18", kind(28), stem="imagenet")
    for convolution in (imagenet.stem[0], imagenet.blocks[7].body[3]):
        deviation = math.sqrt(2 / (convolution.out_channels * math.prod(convolution.kernel_size)))
        assert convolution.weight.std().item() == pytest.approx(deviation, rel=0.03)
        assert convolution.weight.abs().max() > 3 * deviation  # a normal has tails
    cubes = resnet("resnet18-3d", kind(28, volumes=True), width=16).blocks[0].body[0].weight
    assert torch.equal(cubes[:, :, 0], cubes[:, :, 1])
    assert torch.equal(cubes[:, :, 0], cubes[:, :, 2])
    assert cubes.abs().max().item() == pytest.approx(1 / math.sqrt(16 * 9) / 3, rel=0.02)
    acs = resnet("resnet18-acs", kind(28, volumes=True), width=16).blocks[0].body[0].weight
    assert acs.abs().max().item() == pytest.approx(1 / math.sqrt(16 * 9), rel=0.02)


@pytest.mark.parametrize("network", ["resnet18", "resnet18-3d"])
def test_a_batch_of_one_whose_maps_are_points_takes_the_running_statistics(network):
    modality = kind(28, volumes="3d" in network)
    encoder = resnet(network, modality, width=4, stem="imagenet").train()  # 28, 14, 7, 4, 2, 1
    last = encoder.blocks[-1].body[-1]
    encoder(signals(modality, batch=4).float())
    before, first = last.running_mean.clone(), encoder.stem[1].running_mean.clone()
    encoder(signals(modality, batch=1).float()).sum().backward()
    assert torch.equal(last.running_mean, before)
    assert not torch.equal(encoder.stem[1].running_mean, first)  # where there are several values
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
    x = torch.randn(1, 16 * 2, 1, 1)
    norm = BatchNorm(32)
    norm.running_mean.uniform_()
    expected = (x - norm.running_mean.view(1, -1, 1, 1)) / math.sqrt(1 + norm.eps)
    torch.testing.assert_close(norm(x), expected)


def test_layers_have_rates_of_their_own_from_the_stem_up():
    with torch.device("meta"):
        model = Classifier(resnet("resnet18", kind(28)), 2)
    factors = layer_factors(model, 0.5, "resnet18")
    assert factors["encoder.stem.0.weight"] == 0.5**9
    assert factors["encoder.blocks.0.body.0.weight"] == 0.5**8
    assert factors["encoder.blocks.7.body.0.weight"] == 0.5
    assert factors["head.weight"] == 1


@pytest.mark.parametrize(
    ("network", "modality", "options", "message"),
    [
        ("resnet18", kind(28, volumes=True), {}, r"made has channel, z, y, x.*-2.5d, -3d or -acs"),
        ("resnet50-acs", kind(28), {}, r"axes channel, z, y, x, and made.*resnet18 or resnet50\."),
        (
            "resnet18",
            SIGNALS["ecg"],
            {},
            "ecg has channel, time: choose resnet18-1d, resnet50-1d, x",
        ),
        ("resnet18", kind(28, channels=2), {}, "1 or 3 channels, and made has 2"),
        ("resnet18", kind(28), {"widht": 8}, "'widht'.*Did you mean 'width'"),
        ("resnet18", kind(28), {"stem": "large"}, "'large'.*Valid: auto, imagenet, small"),
        ("resnet18", kind(28), {"width": 0}, r"encoder\.options\.width is 0"),
        ("resnet18", kind(28), {"dropout": 1.0}, r"encoder\.options\.dropout is 1\.0"),
        ("resnet34", kind(28), {}, "encoder network 'resnet34'.*Did you mean 'resnet"),
    ],
)
def test_what_does_not_fit_is_refused(network, modality, options, message):
    with pytest.raises(BenchmdError, match=message):
        resnet(network, modality, **options)


@pytest.mark.parametrize("network", ["resnet18", "resnet50", "resnet18-3d", "resnet50-acs"])
@pytest.mark.parametrize(
    ("extent", "options"), [(13, {}), (13, {"stem": "imagenet"}), (9, {"resize": 70}), (70, {})]
)
def test_the_largest_map_is_what_the_network_makes_of_an_example(network, extent, options):
    seen = []
    with torch.device("meta"):
        encoder = resnet(network, kind(extent, volumes="-" in network), width=4, **options)
        for module in (*encoder.stem, *encoder.blocks):
            module.register_forward_hook(lambda _, __, found: seen.append(found[0].numel()))
        encoder(torch.zeros(2, *encoder.signal.input_shape))
    assert values_held(encoder) == encoder.largest_map == max(seen)


def test_steps_without_gradients_hold_smaller_batches_of_volumes():
    def size(network, extent, **options):
        with torch.device("meta"):
            return evaluation_batch(
                resnet(network, kind(extent, volumes="-" in network), **options)
            )

    assert size("resnet50", 28) == 256
    assert size("resnet18-3d", 28) == 2**26 // (64 * 28**3) == 47
    assert size("resnet50-3d", 28) == 2**26 // (256 * 28**3) == 11
    assert size("resnet18", 28, resize=224) == 2**26 // (64 * 112**2) == 83


def test_features_are_dropped_in_training_alone():
    torch.manual_seed(0)
    encoder = resnet("resnet18", kind(12), width=16, dropout=0.5).eval()
    x = signals(kind(12), batch=8).float()
    kept = features(encoder, x)
    assert torch.equal(features(encoder, x), kept)
    encoder.dropout.train()
    dropped = features(encoder, x)
    assert torch.equal(dropped[dropped > 0], 2 * kept[dropped > 0])
    assert (dropped > 0).sum().item() == pytest.approx((kept > 0).sum().item() / 2, rel=0.15)


def test_methods_that_need_tokens_are_told_apart():
    with pytest.raises(BenchmdError, match=r"mae works on the tokens.*network is resnet50"):
        require_tokens(SIGNALS["derm"], updated(EncoderSettings(), {"network": "resnet50"}), "mae")
    require_tokens(SIGNALS["derm"], EncoderSettings(), "mae")
    assert compares_examples(resnet("resnet18", kind(28), width=2))
    assert not compares_examples(make_encoder(kind(28), ENCODERS["tiny"]))
