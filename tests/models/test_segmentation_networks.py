"""Networks that segment, against MONAI itself; the loss against MONAI's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from kinds import SIGNALS
from masks import small_card

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.tasks import Task
from benchmd_ray.models.encoder import input_extents, make_encoder, require_fitting, values_held
from benchmd_ray.models.networks import network_part, network_source, require_task
from benchmd_ray.models.segmentation_networks import (
    SEGMENTATION_NETWORKS,
    require_segmentation_option,
)
from benchmd_ray.models.segmenter import Segmenter, segmentation_loss, windows_of
from benchmd_ray.service.cost import encoder_parameters, forward_flops, training_flops
from benchmd_ray.settings.definition import EncoderSettings

nets = pytest.importorskip("monai.networks.nets")

SMALL = {
    "monai-unet": {"width": 4, "depth": 2},
    "monai-segresnet": {"width": 8, "depth": 2},
    "monai-unetr": {"width": 4, "hidden": 24, "patch": 32},
    "monai-swinunetr": {"width": 12},
}
"""Options of a small one of each."""
SIGNAL = small_card((32, 64, 32)).signal
MASKS = Task("segmentation", ("background", "anterior", "posterior"))


def settings(network, **options):
    return EncoderSettings(network=network, options=SMALL[network] | options)


def model(network, signal=SIGNAL, **options):
    torch.manual_seed(0)
    return Segmenter(make_encoder(signal, settings(network, **options)), 3).eval()


@pytest.mark.parametrize("network", ["monai-unet", "monai-segresnet", "monai-unetr"])
def test_each_voxel_has_a_logit_of_each_class(network):
    made = model(network)
    with torch.no_grad():
        logits = made(torch.rand(1, 1, *made.window))
    assert logits.shape == (1, 3, *made.window)
    assert made.encoder.width == SMALL[network]["width"]
    assert network_part(network) == "segmentation"
    assert network_source(settings(network)) is None


@pytest.mark.slow
def test_swin_unetr_gives_logits():
    made = model("monai-swinunetr")
    with torch.no_grad():
        assert made(torch.rand(1, 1, 32, 64, 32)).shape == (1, 3, 32, 64, 32)


def test_images_are_segmented_too():
    card = small_card()
    plane = replace(
        card.signal,
        axes=("channel", "y", "x"),
        stored_shape=(1, 32, 48),
        input_shape=(1, 32, 48),
        patch=(8, 8),
    )
    with torch.no_grad():
        assert model("monai-unet", plane)(torch.rand(2, 1, 32, 48)).shape == (2, 3, 32, 48)


def test_segresnet_with_its_head_is_monais():
    made = model("monai-segresnet")
    torch.manual_seed(0)
    theirs = nets.SegResNet(
        init_filters=8, in_channels=1, out_channels=3, blocks_down=(1, 4), blocks_up=(1,)
    ).eval()
    own = made.encoder.network.state_dict()
    differing = theirs.load_state_dict(own, strict=False)
    assert all(name.startswith("conv_final.") for name in differing.missing_keys)
    assert differing.unexpected_keys == []
    last = theirs.conv_final[-1].conv
    last.weight.data, last.bias.data = made.head.weight.data, made.head.bias.data
    x = torch.rand(1, 1, 16, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(made._logits(x), theirs(x))


def test_a_signal_larger_than_the_window_is_seen_window_by_window():
    made = model("monai-unet", patch=16)
    x = torch.rand(1, 1, 32, 64, 32)
    with torch.no_grad():
        found = made(x)
        assert found.shape == (1, 3, 32, 64, 32)
        total, weights = torch.zeros(1, 3, 32, 64, 32), torch.zeros(1, 1, 32, 64, 32)
        line = torch.exp(-((torch.arange(16) - 7.5) ** 2) / (2 * (0.125 * 16) ** 2))
        weight = line[:, None, None] * line[None, :, None] * line
        weight = weight.clamp(min=1e-3)  # MONAI's least weight
        for z in range(0, 17, 8):
            for y in range(0, 49, 8):
                for w in range(0, 17, 8):
                    area = (..., slice(z, z + 16), slice(y, y + 16), slice(w, w + 16))
                    total[area] += made._logits(x[area]) * weight
                    weights[area] += weight
    torch.testing.assert_close(found, total / weights, atol=1e-4, rtol=1e-4)
    assert windows_of((32, 64, 32), (16, 16, 16)) == 3 * 7 * 3
    assert windows_of((16, 16, 16), (16, 16, 16)) == 1


def test_the_window_is_cut_to_what_the_network_halves():
    assert model("monai-unet", patch=27).window == (26, 26, 26)
    assert model("monai-unet").window == (32, 64, 32)
    assert input_extents(model("monai-unetr").encoder, SIGNAL) == (32, 32, 32)


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        ("monai-unet", {"depth": 1}, "depth 1 and hidden 0: expected"),
        ("monai-unet", {"patch": 1}, "choose a larger patch, 0 for the whole signal, or a smaller"),
        ("monai-unet", {"hidden": 48}, r"monai-unet reads no encoder\.options\.hidden"),
        ("monai-segresnet", {"width": 12}, "a width that is a multiple of 8"),
        ("monai-unetr", {"hidden": 25}, "a hidden width that is one of 12"),
        ("monai-unetr", {"depth": 3}, r"monai-unetr reads no encoder\.options\.depth"),
        ("monai-swinunetr", {"patch": 32}, "multiples of 32, one of them twice that or more"),
        ("monai-swinunetr", {"width": 16}, "a width that is a multiple of 12"),
        ("monai-unet", {"levels": 3}, "levels"),
        ("monai-unet", {"dropout": 1.5}, r"dropout is 1\.5, expected a number in \[0, 1\)"),
        ("monai-unet", {"width": -1}, "width is -1, expected 0 to 1,024"),
    ],
)
def test_what_a_network_cannot_be_is_refused(network, options, message):
    with pytest.raises(BenchmdError, match=message):
        require_fitting(SIGNAL, settings(network, **options))


def test_signals_over_time_are_refused():
    with pytest.raises(BenchmdError, match=r"monai-unet, for images and volumes, and ecg has"):
        require_fitting(SIGNALS["ecg"], settings("monai-unet"))


def test_a_search_knows_the_options():
    require_segmentation_option("monai-unet", "depth", 3)
    with pytest.raises(BenchmdError, match="levels"):
        require_segmentation_option("monai-unet", "levels", 3)
    with pytest.raises(BenchmdError, match="option of monai-swinunetr"):
        require_segmentation_option("monai-swinunetr", "depth", 3)


@pytest.mark.parametrize("network", ["transformer", "resnet18-3d", "monai-densenet121"])
def test_a_network_that_does_not_segment_is_refused_for_masks(network):
    with pytest.raises(BenchmdError, match="does not segment, and the task is a segmentation: ch"):
        require_task(MASKS, EncoderSettings(network=network))


@pytest.mark.parametrize("network", SEGMENTATION_NETWORKS)
def test_a_network_that_segments_is_refused_for_classes(network):
    with pytest.raises(BenchmdError, match="which segments, and the task is single-label"):
        require_task(Task("single-label", ("a", "b")), EncoderSettings(network=network))
    require_task(MASKS, EncoderSettings(network=network))


@pytest.mark.parametrize(
    ("extents", "smoothing"), [((6, 5), 0.0), ((4, 5, 6), 0.0), ((3, 4, 2), 0.2)]
)
def test_the_loss_is_monais_and_that_of_each_example_alone(extents, smoothing):
    losses = pytest.importorskip("monai.losses")
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 4, *extents, generator=generator)
    masks = torch.randint(0, 3, (3, *extents), generator=generator).to(torch.uint8)  # no class 3
    theirs = losses.DiceCELoss(softmax=True, to_onehot_y=True, label_smoothing=smoothing)
    each = segmentation_loss(logits, masks, smoothing)
    assert each.shape == (3,)
    for row in range(3):
        alone = theirs(logits[row : row + 1], masks[row : row + 1, None].long())
        torch.testing.assert_close(each[row], alone)
    torch.testing.assert_close(each.mean(), theirs(logits, masks[:, None].long()))


def test_a_sure_and_right_prediction_has_no_loss():
    masks = torch.randint(0, 3, (2, 4, 4, 4), generator=torch.Generator().manual_seed(0))
    logits = 50.0 * torch.nn.functional.one_hot(masks, 3).movedim(-1, 1).float()
    np.testing.assert_allclose(segmentation_loss(logits, masks), 0, atol=1e-5)


def test_costs_are_of_the_windows():
    one, small = settings("monai-unet"), settings("monai-unet", patch=16)
    assert training_flops(SIGNAL, one) == pytest.approx(3 * forward_flops(SIGNAL, one))
    windows = windows_of(SIGNAL.input_shape[1:], (16, 16, 16))
    per_window = forward_flops(SIGNAL, small) / windows
    assert training_flops(SIGNAL, small) == pytest.approx(3 * per_window)
    assert per_window == pytest.approx(forward_flops(SIGNAL, one) / 16, rel=1e-6)
    made = make_encoder(SIGNAL, one)
    assert encoder_parameters(SIGNAL, one) == sum(p.numel() for p in made.parameters())
    assert values_held(made) == 2 * 4 * 32 * 64 * 32
