import pickle
import sys

import pytest
import torch
from kinds import MODALITIES, SIGNALS
from safetensors.torch import save_file
from torch.nn import functional
from transformers import ViTConfig, ViTModel

from benchmd_ray.data.cards import kind_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.imagenet import (
    imagenet_weights,
    patch_filters,
    read_imagenet,
    require_images,
)
from benchmd_ray.settings.definition import ENCODERS, PretrainSettings
from benchmd_ray.ssl import METHODS, method_named

DERM, CXR = SIGNALS["derm"], SIGNALS["cxr"]
IMAGES = ("cxr", "mammo", "derm", "fundus")


def loaded(path, modality):
    encoder = Encoder(modality, ENCODERS["vit-tiny"])
    encoder.load_state_dict(read_imagenet(path, modality).tensors)
    return encoder.eval()


def reference(tensors):
    """The network of the transformers library with the same weights."""
    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        hidden_act="gelu",
        layer_norm_eps=1e-6,
        image_size=224,
        patch_size=16,
        num_channels=3,
        qkv_bias=True,
    )
    names = {
        "embeddings.cls_token": "cls_token",
        "embeddings.position_embeddings": "pos_embed",
        "embeddings.patch_embeddings.projection": "patch_embed.proj",
        "attention.o_proj": "attn.proj",
        "layernorm_before": "norm1",
        "layernorm_after": "norm2",
        "layernorm": "norm",
        "layers": "blocks",
    }
    model = ViTModel(config, add_pooling_layer=False).eval()
    state = {}
    for name in model.state_dict():
        own = name
        for theirs, timms in names.items():
            own = own.replace(theirs, timms)
        if "_proj." in own:  # queries, keys and values lie in one matrix
            block, _, last = own.partition(".attention.")
            letter, _, kind = last.partition("_proj")
            state[name] = tensors[f"{block}.attn.qkv{kind}"].chunk(3)["qkv".index(letter)]
        else:
            state[name] = tensors[own]
    model.load_state_dict(state)
    return model


def pictures(count, modality, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *modality.input_shape, generator=generator)


def test_every_hidden_state_is_that_of_another_implementation(vit_tiny_tensors, vit_tiny_file):
    encoder, signals = loaded(vit_tiny_file, DERM), pictures(3, DERM)
    with torch.inference_mode():
        hidden = encoder.encode(encoder.embed(signals))
        expected = reference(vit_tiny_tensors)(pixel_values=signals).last_hidden_state
        features = encoder(signals)
    assert hidden.shape == (3, 197, 192)
    assert expected.std() > 0.5
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(features, expected[:, 0], atol=1e-5, rtol=0)  # CLS, after the norm


def test_a_grey_image_is_seen_as_its_copy_in_three_colours(vit_tiny_file):
    grey, colour = loaded(vit_tiny_file, CXR), loaded(vit_tiny_file, DERM)
    signals = pictures(2, CXR)
    with torch.inference_mode():
        torch.testing.assert_close(
            grey.embed(signals), colour.embed(signals.expand(-1, 3, -1, -1)), atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            grey(signals), colour(signals.expand(-1, 3, -1, -1)), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("channels", [1, 3])
def test_the_patch_embedding_is_the_convolution(channels):
    generator = torch.Generator().manual_seed(channels)
    filters = torch.randn(8, 3, 16, 16, generator=generator)
    modality = {1: CXR, 3: DERM}[channels]
    encoder = Encoder(modality, ENCODERS["tiny"])
    signals = pictures(2, modality)
    convolved = functional.conv2d(signals.expand(-1, 3, -1, -1), filters, stride=16)
    found = encoder.patches(signals) @ patch_filters(filters, channels).T
    torch.testing.assert_close(found, convolved.flatten(2).mT, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", IMAGES)
def test_the_whole_file_is_used_but_for_the_classifier(vit_tiny_file, vit_tiny_tensors, name):
    weights = read_imagenet(vit_tiny_file, SIGNALS[name])
    assert (weights.file, weights.sha256) == ("model.safetensors", sha256(vit_tiny_file))
    assert weights.skipped == ("head.bias", "head.weight")
    kept = len(vit_tiny_tensors) - len(weights.skipped)
    assert len(weights.tensors) == kept == len(Encoder(DERM, ENCODERS["vit-tiny"]).state_dict())
    assert {value.dtype for value in weights.tensors.values()} == {torch.float32}


def test_a_file_without_a_classifier_or_in_half_precision_serves(vit_tiny_tensors, tmp_path):
    halves = {k: v.half() for k, v in vit_tiny_tensors.items() if not k.startswith("head.")}
    save_file(halves, tmp_path / "half.safetensors")
    weights = read_imagenet(tmp_path / "half.safetensors", DERM)
    assert weights.skipped == ()
    assert torch.equal(weights.tensors["norm.bias"], halves["norm.bias"].float())


def test_vit_tiny_has_5_5_million_parameters_and_with_its_classifier_the_papers_9_7():
    with torch.device("meta"):
        encoder = Encoder(DERM, ENCODERS["vit-tiny"])
    parameters = sum(p.numel() for p in encoder.parameters())
    assert parameters == 5_524_416
    assert parameters + 192 * 21_843 + 21_843 == pytest.approx(9.7e6, rel=0.005)


@pytest.mark.parametrize("technique", METHODS)
def test_self_supervised_methods_train_every_weight(vit_tiny_file, technique):
    encoder = loaded(vit_tiny_file, CXR).train()
    method = method_named(technique)(encoder, PretrainSettings())
    loss = method(pictures(2, CXR), method.draw(2, torch.Generator().manual_seed(0)))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in encoder.parameters())


def changed(tensors, **changes):
    """Tensors with some replaced, added, or left out (None)."""
    result = {**tensors, **{name.replace("__", "."): v for name, v in changes.items()}}
    return {name: value for name, value in result.items() if value is not None}


ONE = torch.zeros(192)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks__7__attn__qkv__bias": None}, r"blocks\.7\.attn\.qkv\.bias is missing\. Download"),
        (
            {
                "norm__weight": None,
                "norm__bias": None,
                "fc_norm__weight": ONE,
                "fc_norm__bias": ONE + 1,
            },
            r"norm\.weight is missing; norm\.bias is missing; fc_norm\.(weight|bias) is of a "
            r"variant that pools before its norm",
        ),
        ({"pre_logits__fc__bias": ONE}, r"pre_logits\.fc\.bias is of a variant with a repres"),
        ({"dist_token": ONE}, r"dist_token is of a distilled variant"),
        ({"blocks__12__norm1__bias": ONE}, r"blocks\.12\.norm1\.bias is not of this network"),
        (
            {"pos_embed": torch.zeros(1, 577, 192)},
            r"pos_embed is \S+ \(1, 577, 192\), expected .*numbers \(1, 197, 192\)\. Down",
        ),
        (
            {"patch_embed__proj__weight": torch.zeros(192, 1, 16, 16)},
            r"proj\.weight is torch\.float32 \(192, 1, 16, 16\), .* \(192, 3, 16, 16\)",
        ),
        ({"cls_token": torch.zeros(1, 1, 192, dtype=torch.int64)}, r"cls_token is torch\.int64 \("),
    ],
)
def test_a_file_of_another_network_is_refused_by_name(vit_tiny_tensors, tmp_path, changes, message):
    path = tmp_path / "other.safetensors"
    save_file(changed(vit_tiny_tensors, **changes), path)
    with pytest.raises(BenchmdError, match=message):
        read_imagenet(path, DERM)


def test_of_many_faults_the_first_of_each_kind_are_named(tmp_path):
    save_file({"embeddings.cls_token": torch.zeros(1, 1, 192)}, tmp_path / "hf.safetensors")
    with pytest.raises(
        BenchmdError,
        match=r"cls_token is missing; (.*missing; ){2}embeddings\.cls_token .* and 147",
    ):
        read_imagenet(tmp_path / "hf.safetensors", DERM)


def test_what_is_no_whole_safetensors_file_is_refused(vit_tiny_file, vit_tiny_tensors, tmp_path):
    truncated, pickled = tmp_path / "truncated.safetensors", tmp_path / "pytorch_model.bin"
    truncated.write_bytes(vit_tiny_file.read_bytes()[:-1000])
    torch.save(vit_tiny_tensors, pickled)
    (tmp_path / "empty.safetensors").touch()
    for path in (truncated, pickled, tmp_path / "empty.safetensors"):
        with pytest.raises(
            BenchmdError, match=rf"{path} is not a whole safetensors file .*pickled"
        ):
            read_imagenet(path, DERM)
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(BenchmdError, match=rf"there is no weights file {path}\. Download"):
            read_imagenet(path, DERM)


class Exploding:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_a_pickle_is_never_loaded(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps({"cls_token": Exploding()}))
    with pytest.raises(BenchmdError, match="is not a whole safetensors file"):
        read_imagenet(path, DERM)


@pytest.mark.parametrize("name", MODALITIES)
def test_only_two_dimensional_images_have_imagenet_weights(vit_tiny_file, name):
    if name in IMAGES:
        require_images(SIGNALS[name])
        return
    with pytest.raises(BenchmdError, match=rf"\(cxr, mammo, derm, fundus\), and {name} has the ax"):
        imagenet_weights(vit_tiny_file, SIGNALS[name])


@pytest.mark.parametrize("name", ["breastmnist", "pathmnist-128"])
def test_only_images_of_the_weights_size_have_imagenet_weights(name):
    require_images(kind_of("breastmnist-224").signal)
    with pytest.raises(BenchmdError, match=rf"of 224 × 224 pixels, and those of {name} have \d"):
        require_images(kind_of(name).signal)


def test_offline_the_message_says_what_to_download_by_hand(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        BenchmdError,
        match=r"cannot download model\.safetensors of timm/vit_tiny(.|\n)*by hand from "
        r"https://huggingface\.co/timm/vit_tiny_patch16_224\.augreg_in21k and .* --weights",
    ):
        imagenet_weights(None, DERM)


def test_without_the_hubs_client_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(BenchmdError, match=r"pip install 'benchmd-ray\[hub\]'.*--weights"):
        imagenet_weights(None, DERM)


def test_the_hubs_file_is_read_as_a_given_one(monkeypatch, vit_tiny_file):
    asked = []

    def download(*what):
        asked.append(what)
        return str(vit_tiny_file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    weights = imagenet_weights(None, CXR)
    assert asked == [("timm/vit_tiny_patch16_224.augreg_in21k", "model.safetensors")]
    assert weights.sha256 == imagenet_weights(vit_tiny_file, CXR).sha256
