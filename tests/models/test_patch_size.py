import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from kinds import MODALITIES, SIGNALS
from torch.nn import functional

from benchmd_ray.errors import BenchmdError
from benchmd_ray.models import encoder as module
from benchmd_ray.models.encoder import Encoder, make_encoder
from benchmd_ray.models.imagenet import require_imagenet_patches
from benchmd_ray.settings.definition import ENCODERS, EncoderSettings, PretrainSettings
from benchmd_ray.ssl import METHODS, method_named

TINY = ENCODERS["tiny"]
CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
CASES = [
    ("ecg", 50, (50,), 100),
    ("eeg", 125, (125,), 30),
    ("cxr", 32, (32, 32), 49),
    ("derm", 56, (56, 56), 16),
    ("ldct", 28, (24, 28, 28), 64),
]


@pytest.mark.parametrize(("name", "size", "patch", "tokens"), CASES)
def test_patches_of_another_size_are_what_a_convolution_cuts(name, size, patch, tokens):
    modality = SIGNALS[name]
    encoder = make_encoder(modality, replace(TINY, patch_size=size)).eval()
    assert (encoder.signal.patch, encoder.signal.tokens) == (patch, tokens)
    assert encoder.positions.shape == (1, tokens + 1, 32)
    signals = torch.randn(2, *modality.input_shape, generator=torch.Generator().manual_seed(0))
    filters = encoder.patch_embedding.weight.unflatten(1, (modality.input_shape[0], *patch))
    bias = encoder.patch_embedding.bias
    convolved = CONVOLUTIONS[len(patch)](signals, filters, bias, stride=patch)
    assert convolved.flatten(2).shape == (2, 32, tokens)
    found = encoder.embed(signals)
    torch.testing.assert_close(found, convolved.flatten(2).mT, atol=1e-4, rtol=1e-4)
    assert encoder(signals).shape == (2, 32)


@pytest.mark.parametrize("name", MODALITIES)
def test_the_modalitys_own_patches_are_what_nothing_chosen_gives(name):
    modality = SIGNALS[name]
    assert modality.with_patch(0) is modality
    assert modality.with_patch(modality.patch[-1]) == modality
    other = replace(modality, patch=(2,) * len(modality.patch))
    assert other.with_patch(0) is other
    assert other.with_patch(1).with_patch(1) == other.with_patch(1)


@pytest.mark.parametrize("technique", METHODS)
def test_methods_see_the_tokens_of_the_settings(technique):
    encoder = make_encoder(SIGNALS["eeg"], replace(TINY, patch_size=250))
    method = method_named(technique)(encoder, PretrainSettings(mask_rate=0.4))
    draws = method.draw(3, torch.Generator().manual_seed(0))
    if technique == "mae":
        assert draws["masked"].sum(dim=1).tolist() == [6] * 3  # of 15
        assert method.head[1].out_features == 2 * 250
    loss = method(torch.randn(3, 2, 3750), draws)
    assert torch.isfinite(loss)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        (
            "ecg",
            30,
            r"is 30, which does not divide the 5000 samples of ecg along time .* 20, 25, 40,",
        ),
        ("eeg", 4000, r"the 3750 samples .* such as 1875, 3750, or 0 .* own \(30\)"),
        ("cxr", 15, r"the 224 pixels of cxr along y and x .* 8, 14, 16, 28, or 0 .* own \(16\)"),
        ("ldct", 24, r"the 224 pixels of ldct along y and x .* 14, 16, 28, 32, or"),
    ],
)
def test_a_size_that_does_not_divide_the_signal_is_refused(name, size, message):
    with pytest.raises(BenchmdError, match=message):
        make_encoder(SIGNALS[name], replace(TINY, patch_size=size))


@pytest.mark.parametrize("name", ["ecg", "eeg", "cxr", "ldct"])
def test_every_divisor_is_taken(name):
    modality = SIGNALS[name]
    along = modality.input_shape[-1]
    for size in range(1, along + 1):
        if along % size == 0:
            axes = 1 if modality.axes[-1] == "time" else 2
            assert modality.with_patch(size).tokens == (along // size) ** axes
            values = math.prod(modality.input_shape)
            assert modality.with_patch(size).patch_size * (along // size) ** axes == values


def test_a_network_of_ones_own_is_given_the_patches(monkeypatch):
    given = []

    class Own(Encoder):
        def __init__(self, modality, size):
            given.append(modality.patch)
            super().__init__(modality, size)

    monkeypatch.setattr(module, "plugin", lambda *_, **__: Own)
    own = EncoderSettings(width=8, depth=1, network="mine:Own", patch_size=125)
    assert make_encoder(SIGNALS["eeg"], own).signal.tokens == 30
    assert given == [(125,)]


@pytest.mark.parametrize("size", [0, 16])
def test_imagenet_weights_have_patches_of_16(size):
    require_imagenet_patches(SIGNALS["cxr"], replace(ENCODERS["vit-tiny"], patch_size=size))


def test_imagenet_weights_with_other_patches_are_refused():
    with pytest.raises(BenchmdError, match=r"of 16 × 16 pixels, and encoder\.patch_size is 32 for"):
        require_imagenet_patches(SIGNALS["cxr"], replace(ENCODERS["vit-tiny"], patch_size=32))


def test_shed_needs_two_tokens():
    encoder = SimpleNamespace(signal=SIGNALS["eeg"].with_patch(3750), width=8)
    with pytest.raises(
        BenchmdError, match=r"a whole signal of eeg is a single token: choose a smaller"
    ):
        method_named("shed")(encoder, PretrainSettings())
