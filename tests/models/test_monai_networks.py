"""Networks of MONAI: as MONAI makes them, refused where they do not fit. Of signals over time:
`test_networks_over_time`, `test_sizes_over_time`."""

import copy
import dataclasses
import sys

import numpy as np
import pytest
import torch
from kinds import SIGNALS
from monai.networks import nets
from torch import nn
from torch.nn import functional

from benchmd_ray.benchmarks.medmnist.recipes import medmnist_settings
from benchmd_ray.data.cards import kind_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.encoder import (
    compares_examples,
    make_encoder,
    require_fitting,
    require_tokens,
    values_held,
)
from benchmd_ray.models.heads import Classifier, classification_loss
from benchmd_ray.models.monai_networks import MONAI_NETWORKS
from benchmd_ray.models.networks import network_source
from benchmd_ray.models.resnet import BatchNorm
from benchmd_ray.settings.definition import EncoderSettings, Settings, updated
from benchmd_ray.training.finetuning import layer_factors
from benchmd_ray.training.pretrain import require_whole_batches

NAMES = sorted(MONAI_NETWORKS)
WIDTHS = {"monai-densenet121": 1024, "monai-efficientnet-b0": 1280, "monai-seresnet50": 2048}
PUBLISHED = {
    "monai-densenet121": 7_978_856,  # of images of three channels and 1000 classes
    "monai-efficientnet-b0": 5_288_548,
    "monai-seresnet50": 28_088_024,
}


def kind(extent, *, channels=1, dimensions=2):
    """A signal of square images or cubes."""
    axes = ("channel", *("z", "y", "x")[3 - dimensions :])
    shape, patch = (channels, *[extent] * dimensions), (4,) * dimensions
    if extent % 4:
        patch = (1,) * dimensions
    return Signal("made", axes, shape, shape, "uint8", "grey level", patch, "none")


def encoder_of(network, images, **options):
    return make_encoder(images, EncoderSettings(network=network, options=options))


def monai_s_own(network, dimensions, channels, classes):
    """The network as a user of MONAI makes it, with its classifier."""
    common = {"spatial_dims": dimensions, "in_channels": channels}
    if network == "monai-densenet121":
        return nets.DenseNet121(**common, out_channels=classes)
    if network == "monai-efficientnet-b0":
        return nets.EfficientNetBN("efficientnet-b0", False, num_classes=classes, **common)
    return nets.SEResNet50(**common, num_classes=classes)


def size(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("network", NAMES)
def test_they_are_as_large_as_published_and_as_monai_s_own(network):
    with torch.device("meta"):
        images = encoder_of(network, kind(64, channels=3))
        assert size(images) + 1000 * (images.width + 1) == PUBLISHED[network]
        for dimensions, channels in ((2, 1), (3, 2)):
            encoder = encoder_of(network, kind(32, channels=channels, dimensions=dimensions))
            own = monai_s_own(network, dimensions, channels, 5)
            assert size(encoder) + 5 * (encoder.width + 1) == size(own)


@pytest.mark.parametrize("network", NAMES)
@pytest.mark.parametrize(("dimensions", "extent"), [(2, 224), (3, 64)])
def test_features_are_one_vector_and_the_largest_map_is_known(network, dimensions, extent):
    seen = []
    with torch.device("meta"):
        encoder = encoder_of(network, kind(extent, dimensions=dimensions))
        for module in encoder.modules():
            if not list(module.children()):
                module.register_forward_hook(lambda _, __, found: seen.append(found[0].numel()))
        found = encoder(torch.zeros(3, *encoder.signal.input_shape))
    assert found.shape == (3, encoder.width) == (3, WIDTHS[network])
    assert values_held(encoder) <= max(seen) < 1.2 * values_held(encoder)  # with the padding


@pytest.mark.parametrize("network", NAMES)
def test_training_gives_what_monai_s_own_gives(network):
    torch.manual_seed(0)
    own = monai_s_own(network, 2, 1, 2)
    *_, head = (m for m in own.modules() if isinstance(m, nn.Linear))
    encoder = encoder_of(network, kind(32))
    names = encoder.network.state_dict().keys()
    encoder.network.load_state_dict({n: v for n, v in own.state_dict().items() if n in names})
    x = torch.randn(4, 1, 32, 32)
    for training in (True, False):  # then with the running statistics of the first
        results = []
        for module in (own.train(training), encoder.train(training)):
            torch.manual_seed(1)  # of the dropout
            results.append(module(x))
        torch.testing.assert_close(head(results[1]), results[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("network", NAMES)
def test_every_weight_of_a_network_of_volumes_gets_a_gradient(network):
    encoder = encoder_of(network, kind(32, dimensions=3))
    encoder(torch.randn(2, 1, 32, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
    dead = [name for name, p in encoder.named_parameters() if not p.grad.any()]
    assert len(dead) < 0.1 * len(list(encoder.parameters())), dead  # blocks that were dropped


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("network", NAMES)
def test_real_images_are_learnt(network, real_data):
    images = kind_of("breastmnist")
    with np.load(real_data / "medmnist" / "breastmnist.npz") as held:
        pixels, labels = (held[f"train_{name}"][:8] for name in ("images", "labels"))
    x = torch.from_numpy(pixels)[:, None].float() / 127.5 - 1
    targets = functional.one_hot(torch.from_numpy(labels[:, 0]).long(), 2)
    assert 0 < labels.sum() < 8
    torch.manual_seed(0)
    settings = medmnist_settings(images, network, resize=32)
    model = Classifier(make_encoder(images.signal, settings.encoder), 2)
    optimiser = torch.optim.Adam(model.parameters(), settings.transfer.optimiser.lr)
    losses = []
    for _ in range(4):
        loss = classification_loss(model(x), targets, images.task).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("network", NAMES)
def test_a_batch_of_one_that_shrinks_to_a_point_is_trained(network):
    encoder = encoder_of(network, kind(32)).train()
    assert sum(isinstance(m, BatchNorm) for m in encoder.modules()) > 40
    assert not any(isinstance(m, nn.BatchNorm2d) for m in encoder.modules())
    assert encoder(torch.randn(1, 1, 32, 32)).isfinite().all()


def test_signals_are_resized_by_the_nearest_pixel_and_features_dropped():
    torch.manual_seed(0)
    encoder = encoder_of("monai-densenet121", kind(16), resize=32, dropout=0.5).eval()
    whole = encoder_of("monai-densenet121", kind(32)).eval()
    whole.load_state_dict(encoder.state_dict())
    x = torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        kept = encoder(x)
        assert torch.equal(kept, whole(x.repeat_interleave(2, 2).repeat_interleave(2, 3)))
        encoder.dropout.train()
        dropped = encoder(x)
    assert torch.equal(dropped[dropped != 0], 2 * kept[dropped != 0])
    assert (dropped[kept != 0] != 0).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_28_pixels_fit_where_a_network_rounds_up():
    with torch.device("meta"):
        x = torch.zeros(2, 1, 28, 28)
        assert encoder_of("monai-seresnet50", kind(28))(x).shape == (2, 2048)
        for network in ("monai-densenet121", "monai-efficientnet-b0"):
            with pytest.raises(RuntimeError):
                monai_s_own(network, 2, 1, 2).eval()(x)  # else it need not be refused
            with pytest.raises(BenchmdError, match=r"32 pixels or more .* these have 28.*re"):
                encoder_of(network, kind(28))
            assert encoder_of(network, kind(28), resize=64)(x).shape == (2, WIDTHS[network])


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (
            SIGNALS["ecg"],
            {"resize": 64},
            r"resize is 64, and monai-densenet121 .* not resize signals over time",
        ),
        (kind(32), {"width": 8}, r"'encoder\.options' 'width'.*resize"),
        (kind(32), {"dropout": 1.0}, r"encoder\.options\.dropout is 1\.0"),
        (kind(32), {"resize": -1}, r"encoder\.options\.resize is -1"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(images, options, message):
    settings = EncoderSettings(network="monai-densenet121", options=options)
    with pytest.raises(BenchmdError, match=message):
        require_fitting(images, settings)


def test_without_monai_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "monai", None)
    monkeypatch.setitem(sys.modules, "monai.networks", None)
    settings = EncoderSettings(network="monai-seresnet50")
    with pytest.raises(BenchmdError, match=r"seresnet50 needs.*install 'benchmd-ray\[monai\]'"):
        require_fitting(kind(32), settings)
    make_encoder(kind(32), EncoderSettings(network="resnet18", options={"width": 2}))


@pytest.mark.parametrize("change", [{"workers": 2}, {"accumulation": 2}])
def test_batches_stay_whole_and_methods_of_tokens_are_refused(change):
    size = EncoderSettings(network="monai-seresnet50")
    settings = updated(dataclasses.replace(Settings(), encoder=size), {"execution": change})
    with pytest.raises(BenchmdError, match="monai-seresnet50 normalises over the batch"):
        require_whole_batches(settings, kind(32))
    with pytest.raises(BenchmdError, match=r"mae works on the tokens.*is monai-seresnet50"):
        require_tokens(kind(32), size, "mae")
    assert network_source(size) is None


def test_it_can_be_copied_and_has_no_layers_with_rates_of_their_own():
    with torch.device("meta"):
        encoder = copy.deepcopy(encoder_of("monai-efficientnet-b0", kind(32)))
        model = Classifier(encoder, 2)
    assert compares_examples(encoder)
    with pytest.raises(BenchmdError, match=r"monai-efficientnet-b0 has no `blocks`"):
        layer_factors(model, 0.5, "monai-efficientnet-b0")
