"""Published encoders: input, network, features and file of each card, against its authors'."""

import dataclasses
import os
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.signal
import torch
import transformers
from PIL import Image
from published_files import TimmViT, drawn, published, small
from safetensors.torch import save_file
from torch import nn
from wfdb import rdrecord

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.encoder_cards import encoder_cards
from benchmd_ray.models.fetched import read_tensors
from benchmd_ray.models.filters import BandPass, Decimation, Resampling
from benchmd_ray.models.pillow_resize import PillowResize, grey
from benchmd_ray.models.published import PublishedEncoder, load_published
from benchmd_ray.models.published_form import TensorNames

CARDS = encoder_cards().sound
LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
IMAGES = [name for name, card in CARDS.items() if card.input.image is not None]
VOLUMES = [name for name, card in CARDS.items() if card.input.volume is not None]
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def image_signal(channels=3, y=224, x=224, dtype="uint8"):
    shape = (channels, y, x)
    return Signal("made", ("channel", "y", "x"), shape, shape, dtype, "grey level", (1, 1), "none")


def ecg(rate=500, samples=5000, channels=LEADS):
    shape = (len(channels), samples)
    of = ("made", ("channel", "time"), shape, shape, "int16", "mV", (1,), "none")
    return Signal(*of, channels=channels, rate=rate)


def volume_signal(extents=(40, 36, 32), unit="HU", channels=1):
    shape = (channels, *extents)
    axes = ("channel", "z", "y", "x")
    return Signal("made", axes, shape, shape, "int16", unit, (1, 1, 1), "none")


def encoder_of(card, signal):
    return PublishedEncoder(signal, card.settings).eval()


def loaded(card, signal, path):
    encoder = encoder_of(card, signal)
    load_published(encoder, read_tensors(path, card), card.weights.names, path)
    return encoder


def made_images(channels, y, x, count=2):
    generator = np.random.default_rng(channels + y + x)
    coarse = generator.integers(0, 256, (count, channels, 9, 7), np.uint8)
    large = [
        [Image.fromarray(c).resize((x, y), Image.Resampling.NEAREST) for c in i] for i in coarse
    ]
    noise = generator.integers(0, 60, (count, channels, y, x), np.uint8)
    return np.asarray([[np.asarray(c) for c in image] for image in large]) // 2 + noise


def opened(image):
    """A stored image (channel, y, x) as Pillow opens its file, in colours."""
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).convert("RGB")


# What the authors do to an image, by the name of the card.


def of_transformers(name, **settings):
    def pixels(image):
        processor = getattr(transformers, f"{name}ImageProcessorPil")(**settings)
        return processor(image, return_tensors="np").pixel_values[0]

    return pixels


def of_torchvision(image):
    """Resize(256, bicubic), CenterCrop(224), ToTensor and Normalize of torchvision, of an image."""
    shorter, longer = sorted(image.size)
    side = int(256 * longer / shorter)
    resized = image.resize((256, side) if image.width <= image.height else (side, 256), 3)
    left, top = (round((extent - 224) / 2) for extent in resized.size)
    return standardised(np.asarray(resized.crop((left, top, left + 224, top + 224))))


def standardised(pixels):
    """Of (y, x, channel) from 0 to 255."""
    mean, std = (np.asarray(IMAGENET[name]) for name in ("image_mean", "image_std"))
    return ((pixels / 255 - mean) / std).transpose(2, 0, 1)


def of_floats(image):
    """Resized as floats, by which torchvision's processor of DINOv3 does it: Pillow's mode F."""
    bands = [
        Image.fromarray(np.asarray(band, np.float32)).resize((224, 224), Image.Resampling.BILINEAR)
        for band in image.split()
    ]
    return standardised(np.stack([np.asarray(band) for band in bands], axis=-1))


def bit(side, crop, **more):
    size, crop_size = {"shortest_edge": side}, {"height": crop, "width": crop}
    return of_transformers("Bit", size=size, crop_size=crop_size, resample=3, **more)


RAD = {"image_mean": [0.5307] * 3, "image_std": [0.2583] * 3}
PIXELS = {
    "dinov2-small": bit(256, 224, **IMAGENET),
    "dinov2-base": bit(256, 224, **IMAGENET),
    "rad-dino": bit(518, 518, **RAD),
    "dinov3-vits16": of_floats,
    "siglip-base-patch16-224": of_transformers("Siglip"),
    "vit-base-patch16-224-in21k": of_transformers("ViT"),
    "phikon": of_transformers("ViT", **IMAGENET),
    "clip-vit-base-patch16": of_transformers("CLIP"),
    "pubmed-clip-vit-base-patch32": of_transformers("CLIP"),
    "resnet-50": of_transformers("ConvNext", size={"shortest_edge": 224}, **IMAGENET),
    "vit-mae-base": of_torchvision,
    "retfound-cfp": of_torchvision,
}


def class_token(network, pixels):
    return network(pixels).last_hidden_state[:, 0]


def class_token_and_mean(network, pixels):
    tokens = network(pixels).last_hidden_state
    return torch.cat((tokens[:, 0], tokens[:, 1:].mean(1)), 1)


def of_tower(network, pixels):
    return network.vision_model(pixels).pooler_output


def of_mae(network, pixels):
    vit = network.vit
    count = (pixels.shape[-1] // network.config.patch_size) ** 2
    vit.config.mask_ratio = vit.embeddings.config.mask_ratio = 0.0
    in_order = torch.arange(count).expand(len(pixels), -1) / count  # noise that keeps the order
    return vit(pixels, noise=in_order).last_hidden_state[:, 0]


FEATURES = {
    "dinov2-small": class_token_and_mean,
    "dinov2-base": class_token_and_mean,
    "rad-dino": class_token,
    "dinov3-vits16": lambda network, pixels: network(pixels).pooler_output,
    "siglip-base-patch16-224": of_tower,
    "vit-base-patch16-224-in21k": class_token,
    "phikon": class_token,
    "clip-vit-base-patch16": of_tower,
    "pubmed-clip-vit-base-patch32": of_tower,
    "resnet-50": lambda network, pixels: network.resnet(pixels).last_hidden_state.mean((2, 3)),
    "vit-mae-base": of_mae,
    "retfound-cfp": lambda network, pixels: network(pixels)[:, 0],
    "hubert-ecg-small": lambda network, row: network(row).last_hidden_state.mean(1),
    "medicalnet-resnet18": lambda network, volumes: network(volumes),
    "medicalnet-resnet50": lambda network, volumes: network(volumes),
    "ct-fm": lambda network, volumes: network(volumes)[-1].mean((2, 3, 4)),
}
"""The authors' features, by the name of the card, of their network and its input."""


def of_medicalnet(volume):
    """As brains18.py normalises it, with the mean in place of noise where voxels are 0."""
    inside = volume[volume > 0]
    return np.where(volume > 0, (volume - inside.mean()) / inside.std(), 0)


INPUTS = {
    "medicalnet-resnet18": of_medicalnet,
    "medicalnet-resnet50": of_medicalnet,
    "ct-fm": lambda volume: np.clip((volume + 1024) / 3072, 0, 1),
}


@pytest.mark.parametrize("name", CARDS)
def test_features_of_a_published_file_are_those_of_the_authors_network(name, tmp_path):
    card = small(CARDS[name])
    network, path = published(card, tmp_path)
    if card.input.image is not None:
        signal, records = image_signal(), made_images(3, 224, 224)
        inputs = np.stack([PIXELS[name](opened(image)) for image in records])
    elif card.input.time is not None:
        signal = ecg()
        records = np.random.default_rng(1).normal(size=(2, 12, 5000)).cumsum(-1)
        inputs = np.stack([as_hubert_ecg_does(record) for record in records])
    else:
        signal = volume_signal()
        records = np.random.default_rng(1).integers(-300, 900, (2, 1, 40, 36, 32))
        inputs = np.stack([INPUTS[name](record) for record in records])
    encoder = loaded(card, signal, path)
    with torch.no_grad():
        features = encoder(torch.from_numpy(records.astype(np.float32)))
        expected = FEATURES[name](network, torch.from_numpy(inputs.astype(np.float32)))
    assert features.shape == (2, encoder.width) == expected.shape
    assert expected.std() > 0.01
    assert (expected[0] - expected[1]).abs().max() > 1e-3
    scale = float(expected.abs().max())
    tolerance = 1e-4 if card.input.time else 1e-5
    np.testing.assert_allclose(features / scale, expected / scale, atol=tolerance)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize(
    ("channels", "y", "x"), [(3, 224, 224), (1, 224, 224), (1, 28, 28), (3, 28, 28), (3, 90, 61)]
)
def test_pixels_are_those_of_the_authors_processor(name, channels, y, x):
    card, images = CARDS[name], made_images(channels, y, x)
    adapter = adapter_of(card, image_signal(channels, y, x))
    pixels = adapter(torch.from_numpy(images)).numpy()
    expected = np.stack([PIXELS[name](opened(image)) for image in images])
    np.testing.assert_allclose(pixels, expected, atol=3e-6)  # rounding of the standardisation
    mean, std = (np.reshape(v, (-1, 1, 1)) for v in (card.input.image.mean, card.input.image.std))
    levels, wanted = ((values * std + mean) * 255 for values in (pixels, expected))
    if card.input.image.rounded:
        np.testing.assert_array_equal(levels.round(), wanted.round())
        assert abs(levels - levels.round()).max() < 1e-3


def adapter_of(card, signal):
    return encoder_of(small(card), signal).adapter


def as_hubert_ecg_does(record, rate=500):
    """Leads (12, time) in the order of PTB-XL to one row, by SciPy."""
    up = {500: (1, 1), 100: (5, 1), 360: (25, 18)}[rate]
    x = scipy.signal.resample_poly(record, *up, axis=-1) if rate != 500 else record
    x = scipy.signal.lfilter(scipy.signal.firwin(150, [0.05, 47], pass_zero=False, fs=500), 1, x)
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    x = 2 * (x - low) / (high - low + 1e-8) - 1
    x = np.pad(x[:, :2500], ((0, 0), (0, max(0, 2500 - x.shape[1]))))
    return scipy.signal.decimate(x.reshape(-1), 5)


@pytest.mark.data
def test_a_real_ecg_becomes_the_row_that_scipy_makes(real_data):
    path = next((real_data / "ptb-xl-500/records500").rglob("*.hea"))
    record = rdrecord(path.with_suffix("")).p_signal.T
    names = tuple(reversed(LEADS))  # stored in another order than the network's
    row = adapter_of(CARDS["hubert-ecg-small"], ecg(channels=names))(
        torch.from_numpy(np.ascontiguousarray(record[::-1])[None])
    )
    expected = as_hubert_ecg_does(record)
    assert row.shape == (1, 6000) == (1, *expected.shape)
    assert abs(row[0].numpy() - expected).max() < 1e-4 * abs(expected).max()


@pytest.mark.parametrize(("rate", "samples"), [(100, 1000), (360, 3600), (500, 700)])
def test_ecgs_of_other_rates_and_lengths_are_resampled_and_padded(rate, samples):
    record = np.random.default_rng(rate).normal(size=(12, samples)).cumsum(-1)
    row = adapter_of(CARDS["hubert-ecg-small"], ecg(rate, samples))(torch.from_numpy(record[None]))
    expected = as_hubert_ecg_does(record, rate)
    np.testing.assert_allclose(row[0], expected, atol=1e-4 * abs(expected).max())


def test_small_volumes_are_enlarged_and_dark_ones_stay_finite():
    adapter = adapter_of(CARDS["ct-fm"], volume_signal((12, 20, 16)))
    (volume,) = adapter(torch.full((1, 1, 12, 20, 16), 512.0))
    assert volume.shape == (1, 16, 20, 16)
    assert torch.allclose(volume, torch.tensor(0.5))
    adapter = adapter_of(CARDS["medicalnet-resnet18"], volume_signal(unit="scanner's own"))
    assert torch.equal(adapter(torch.zeros(1, 1, 40, 36, 32)), torch.zeros(1, 1, 40, 36, 32))


# The cards themselves


def test_each_card_says_what_its_encoder_saw_and_where_that_was_checked():
    assert not encoder_cards().broken
    assert len(CARDS) >= 14
    assert {m for card in CARDS.values() for m in card.modalities} >= {
        *("cxr", "ecg", "fundus", "pathology", "ct", "mr")
    }
    for card in CARDS.values():
        assert card.checked.keys() >= {"weights", "network", "input", "feature", "licence"}
        assert all(text.strip() for text in [*card.pretrained_on.values(), *card.also.values()])
        if not card.weights.sha256:
            assert re.search("no (revision or )?SHA-256", card.checked["weights"]), card.name
        if not card.weights.revision:
            assert "no revision" in card.checked["weights"], card.name
    assert {"nih-cxr-ap", "nih-cxr-pa", "mimic-cxr"} <= CARDS["rad-dino"].pretrained_on.keys()


@pytest.mark.parametrize(
    ("part", "changes", "fault"),
    [
        (
            None,
            {"also": {}, "pretrained_on": {}, "unlisted": ""},
            "expected what it was pretrained",
        ),
        (None, {"pretrained_on": {"nih-cxr": "paper"}}, "dataset in pretrained_on.*nih-cxr-ap"),
        (None, {"checked": {}}, "expected where its facts were checked"),
        ("weights", {"file": "model.pkl"}, "file is 'model.pkl', expected the name of one of"),
        ("weights", {"file": "../model.pth"}, "file is '../model.pth', expected"),
        ("weights", {"page": "https://example.org"}, "a repository of the hub, or else a page"),
        ("weights", {"repository": "rad-dino"}, "repository is 'rad-dino', expected owner/name"),
        ("weights", {"revision": "main"}, "revision is 'main', expected"),
        ("network", {"config": {"hidden_size": 8}}, "config has no model_type"),
        ("network", {"library": "monai", "config": {"network": "unet"}}, "network of MONAI 'unet'"),
    ],
)
def test_cards_that_cannot_be_right_are_refused(part, changes, fault):
    card = CARDS["rad-dino"]
    with pytest.raises(BenchmdError, match=fault):
        dataclasses.replace(card if part is None else getattr(card, part), **changes)


def test_inputs_that_cannot_be_right_are_refused():
    image, time, volume = (CARDS[name].input for name in ("rad-dino", "hubert-ecg-small", "ct-fm"))
    for part, changes, fault in [
        (image.image, {"shorter_side": 500}, "expected 518 to 4096 pixels"),
        (image.image, {"std": (0.2, 0.2)}, "standard deviation, above 0, of 1 or 3 channels"),
        (time.time, {"band": (0.5, 300)}, "two Hz below rate / 2"),
        (time.time, {"decimate": 7}, "decimate does not divide 30000 samples"),
        (volume.volume, {"window": (100, 100)}, "expected low and high"),
        (volume.volume, {"size": (8, 8)}, "expected voxels along z, y and x"),
        (image, {"time": time.time}, "expected one of image, time and volume"),
    ]:
        with pytest.raises(BenchmdError, match=fault):
            dataclasses.replace(part, **changes)


def test_cards_of_users_are_next_to_those_of_the_package(tmp_path, monkeypatch):
    folder = tmp_path / "encoders"
    folder.mkdir()
    text = (resource_folder("model_catalog") / "phikon.yaml").read_text("utf-8")
    (folder / "ours.yaml").write_text(text.replace("name: phikon", "name: ours"), "utf-8")
    (folder / "faulty.yaml").write_text(text.replace("vit\n", "vit\n  more: 1\n"), "utf-8")
    monkeypatch.setenv("BENCHMD_CARDS", str(tmp_path))
    cards = encoder_cards()
    assert cards["ours"].settings == cards["phikon"].settings
    with pytest.raises(BenchmdError, match=r"faulty\.yaml"):
        cards["faulty"]


WIDTHS = dict.fromkeys(CARDS, 768) | {
    "dinov2-base": 1536,
    "dinov3-vits16": 384,
    "resnet-50": 2048,
    "retfound-cfp": 1024,
    "hubert-ecg-small": 512,
    "medicalnet-resnet18": 512,
    "medicalnet-resnet50": 2048,
    "ct-fm": 512,
}
"""Features, as the authors state them."""


@pytest.mark.parametrize("name", CARDS)
def test_networks_of_full_size_have_the_stated_features_and_weights(name):
    card = CARDS[name]
    signal = ecg() if card.input.time else volume_signal() if card.input.volume else image_signal()
    with torch.device("meta"):
        encoder = PublishedEncoder(signal, card.settings)
    assert encoder.width == WIDTHS[name]
    if card.weights.bytes and not card.weights.names.prefix:  # the file holds nothing else
        count = sum(value.numel() for value in encoder.network.state_dict().values())
        assert card.weights.bytes == pytest.approx(4 * count, rel=1e-3)


# Signals and files that do not fit


@pytest.mark.parametrize(
    ("name", "signal", "fault"),
    [
        ("dinov2-small", ecg(), "it takes images, and made has the axes channel, time"),
        (
            "dinov2-small",
            image_signal(dtype="int16"),
            "256 grey levels, and made has 3 channels of",
        ),
        ("dinov2-small", image_signal(channels=2), "images of 1 or 3 channels .* has 2 channels"),
        ("hubert-ecg-small", ecg(channels=LEADS[:11]), "takes the leads I, .* and made lacks V6"),
        ("hubert-ecg-small", image_signal(), "it takes signals over time"),
        ("hubert-ecg-small", ecg(rate=499.99), "cannot be resampled to 500 Hz"),
        ("ct-fm", volume_signal(unit="grey level"), "it takes HU, and made is in grey level"),
        ("ct-fm", volume_signal(channels=4), "volumes of one channel, and made has 4"),
    ],
)
def test_signals_that_do_not_fit_are_refused(name, signal, fault):
    with pytest.raises(BenchmdError, match=f"does not fit made: .*{fault}.* Choose another"):
        encoder_of(small(CARDS[name]), signal)


def test_a_network_that_cannot_take_its_input_is_refused():
    card = small(CARDS["vit-base-patch16-224-in21k"])
    config = card.network.config | {"image_size": 64}
    other = dataclasses.replace(card, network=dataclasses.replace(card.network, config=config))
    with pytest.raises(BenchmdError, match=r"cannot take inputs of \(3, 224, 224\): .*card"):
        encoder_of(other, image_signal())


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("phikon", "encoder.layer.1.layernorm_after.weight"),
        ("medicalnet-resnet18", "module.layer1.0.conv1.weight"),
    ],
)
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("missing", "lacks 1"),
        ("foreign", "holds 1 weights that|has more: 1 weights"),
        ("misshapen", "other sizes"),
        ("NaN", "NaN or infinite values in"),
    ],
)
def test_weights_that_do_not_fit_are_refused(name, tensor, change, fault, tmp_path):
    card = small(CARDS[name])
    _, path = published(card, tmp_path)
    tensors = read_tensors(path, card)
    if change == "missing":
        del tensors[tensor]
    elif change == "foreign":
        tensors[tensor.replace(".1.", ".7.").replace("layer1.0", "layer1.9")] = torch.ones(3)
    else:
        tensors[tensor] = torch.ones(3) if change == "misshapen" else tensors[tensor] * torch.nan
    encoder = encoder_of(card, image_signal() if card.input.image else volume_signal())
    with pytest.raises(BenchmdError, match=fault):
        load_published(encoder, tensors, card.weights.names, path)


def test_two_tensors_of_one_name_are_refused(tmp_path):
    card = small(CARDS["phikon"])
    _, path = published(card, tmp_path)
    tensors = read_tensors(path, card)
    names = replace(card.weights.names, renamed={"encoder.layer.1.": "encoder.layer.0."})
    with pytest.raises(BenchmdError, match=r"two tensors of .* become .*weights\.names"):
        load_published(encoder_of(card, image_signal()), tensors, names, path)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol", "ignore:'torch.load' received")
def test_objects_and_torchscript_in_a_file_are_refused_without_being_run(tmp_path):
    card, target = small(CARDS["medicalnet-resnet18"]), tmp_path / "run"
    network, path = published(card, tmp_path)

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(target),)

    torch.save({"state_dict": network.state_dict(), "optimiser": Trap()}, path)
    with pytest.raises(BenchmdError, match="cannot be read as tensors alone"):
        read_tensors(path, card)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(BenchmdError, match="cannot be read as tensors alone"):
        read_tensors(path, card)
    assert not target.exists()
    pickle.loads(pickle.dumps(Trap()))  # it would have
    assert target.exists()

    # not a linear layer, whose function DeepSpeed may have replaced in this process
    torch.jit.trace(nn.ReLU(), torch.ones(1, 2)).save(str(path))
    with pytest.raises(BenchmdError, match="TorchScript and files with objects"):
        read_tensors(path, card)


@pytest.mark.parametrize("content", [[1, 2], {"state": {}}, {"state_dict": 3}])
def test_files_without_the_tensors_that_a_card_names_are_refused(content, tmp_path):
    path = tmp_path / "resnet_18_23dataset.pth"
    torch.save(content, path)
    with pytest.raises(BenchmdError, match="has no tensors at state_dict"):
        read_tensors(path, small(CARDS["medicalnet-resnet18"]))


# Parts


@pytest.mark.parametrize(("rate", "to"), [(100, 500), (500, 100), (360, 500), (257, 250), (8, 8)])
def test_resampling_is_that_of_scipy(rate, to):
    signals = np.random.default_rng(rate).normal(size=(2, 3, 701))
    expected = scipy.signal.resample_poly(signals, to, rate, axis=-1)
    np.testing.assert_allclose(
        Resampling(rate, to)(torch.from_numpy(signals).float()), expected, atol=1e-5
    )


@pytest.mark.parametrize(("band", "taps", "rate"), [((0.05, 47), 150, 500), ((1, 30), 61, 100)])
def test_band_passes_are_those_of_scipy(band, taps, rate):
    signals = np.random.default_rng(taps).normal(size=(2, 3, 400)).cumsum(-1)
    filtered = scipy.signal.lfilter(
        scipy.signal.firwin(taps, band, pass_zero=False, fs=rate), 1, signals
    )
    ours = BandPass(band, taps, rate)(torch.from_numpy(signals).float())
    np.testing.assert_allclose(ours, filtered, atol=1e-5 * abs(filtered).max())


@pytest.mark.parametrize(("factor", "shape"), [(5, (2, 3000)), (2, (3, 2, 500)), (4, (1, 999))])
def test_decimation_is_that_of_scipy(factor, shape):
    signals = np.random.default_rng(factor).normal(size=shape).cumsum(-1)
    expected = scipy.signal.decimate(signals, factor, axis=-1)
    ours = Decimation(factor)(torch.from_numpy(signals).float())
    np.testing.assert_allclose(ours, expected, atol=1e-4 * abs(expected).max())


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("size", "to"), [((28, 28), (224, 224)), ((90, 61), (377, 256)), ((300, 411), (37, 50))]
)
def test_resizing_is_that_of_pillow(interpolation, size, to):
    image = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    method = getattr(Image.Resampling, interpolation.upper())
    expected = np.asarray(Image.fromarray(image).resize(to[::-1], method))
    resized = PillowResize(size, to, interpolation)(torch.from_numpy(image)[None, None].float())
    np.testing.assert_array_equal(resized[0, 0], expected)
    floats = np.asarray(Image.fromarray(image.astype(np.float32)).resize(to[::-1], method))
    unrounded = PillowResize(size, to, interpolation, rounded=False)
    np.testing.assert_allclose(
        unrounded(torch.from_numpy(image)[None, None].float())[0, 0], floats, atol=1e-3
    )


def test_grey_levels_of_colours_are_those_of_pillow():
    image = np.random.default_rng(1).integers(0, 256, (50, 40, 3), np.uint8)
    levels = grey(torch.from_numpy(image.transpose(2, 0, 1))[None])
    np.testing.assert_array_equal(levels[0, 0], np.asarray(Image.fromarray(image).convert("L")))


def test_names_of_timm_with_layer_scale_are_those_of_dinov2(tmp_path):
    card = small(CARDS["dinov2-small"])
    card = dataclasses.replace(
        card,
        network=dataclasses.replace(
            card.network, config=card.network.config | {"image_size": 224}, feature="class-token"
        ),
        weights=dataclasses.replace(card.weights, names=TensorNames(timm=True)),
    )
    theirs = TimmViT(card.network.config | {"intermediate_size": 128}, scaled=True)
    drawn(theirs)
    path = tmp_path / "model.safetensors"
    save_file(theirs.state_dict(), path)
    images = torch.from_numpy(made_images(3, 224, 224)).float()
    encoder = loaded(card, image_signal(), path)
    with torch.no_grad():
        expected = theirs(encoder.adapter(images))[:, 0]
        np.testing.assert_allclose(encoder(images), expected, atol=1e-5)
