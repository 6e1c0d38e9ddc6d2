"""Encoders that were trained elsewhere: what they compute is what their own library computes."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from kinds import SIGNALS
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from benchmd_ray.cli.allowed import named_plugins
from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions import plugins
from benchmd_ray.models import hub_configs, hub_networks
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.settings.definition import EncoderSettings
from benchmd_ray.ssl import technique_named
from benchmd_ray.ssl.brought import brought_name, own_encoder, start_weights, technique_label

VIT = transformers.ViTConfig(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    image_size=48,
    patch_size=16,
)
STAGES = {"hidden_sizes": [4, 8, 8, 12], "depths": [1, 1, 1, 1]}


@pytest.fixture
def saved(tmp_path):
    """Saves a network, and gives the technique that takes it."""

    def save(network, name="net"):
        network.eval().save_pretrained(tmp_path / name)
        return f"hf:{tmp_path / name}"

    return save


@pytest.fixture
def vit():
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(VIT)


def brought(technique, signal):
    """The encoder with its weights, and what is said of these."""
    encoder = own_encoder(technique)
    start = start_weights(technique, None, signal, encoder)
    network = make_encoder(signal, encoder).eval()
    network.load_state_dict(start.tensors)
    return network, start


def images(signal):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(3, *signal.input_shape))).float()


def resized(signals, channels, extent):
    if signals.shape[1] != channels:
        signals = signals.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    return functional.interpolate(signals, (extent, extent), mode="bilinear", antialias=True)


@pytest.mark.parametrize("kind", ["cxr", "derm"])
def test_features_are_the_class_token_of_the_library(saved, vit, kind):
    signal = SIGNALS[kind]
    network, start = brought(saved(vit), signal)
    with torch.no_grad():
        found = network(images(signal))
        seen = resized(images(signal), 3, 48)
        expected = vit.vit(seen, output_hidden_states=True).last_hidden_state[:, 0]
    torch.testing.assert_close(found, expected)
    assert network.width == 16
    assert start.skipped == ()
    assert not any("classifier" in name for name in start.tensors)


@pytest.mark.parametrize(
    ("made", "features"),
    [
        (
            lambda: transformers.ResNetModel(transformers.ResNetConfig(embedding_size=4, **STAGES)),
            lambda seen: seen.pooler_output.flatten(1),
        ),
        (
            lambda: transformers.ConvNextModel(
                transformers.ConvNextConfig(num_channels=1, image_size=64, **STAGES)
            ),
            lambda seen: seen.last_hidden_state.mean((2, 3)),
        ),
        (
            lambda: transformers.SiglipVisionModel(
                transformers.SiglipVisionConfig(**{**VIT.to_dict(), "model_type": "siglip"})
            ),
            lambda seen: seen.last_hidden_state.mean(1),
        ),
    ],
)
def test_without_a_class_token_they_are_the_mean(saved, made, features):
    torch.manual_seed(0)
    own, signal = made(), SIGNALS["cxr"]
    network, _ = brought(saved(own), signal)
    seen = images(signal).expand(-1, own.config.num_channels, -1, -1)
    if extent := getattr(own.config, "image_size", None):
        seen = resized(seen, own.config.num_channels, extent)
    with torch.no_grad():
        torch.testing.assert_close(network(images(signal)), features(own(seen)))


def test_other_weights_are_told_apart_and_the_same_elsewhere_are_not(saved, vit):
    signal = SIGNALS["cxr"]
    first = brought(saved(vit, "one"), signal)[1]
    assert brought(saved(vit, "other/one"), signal)[1].sha256 == first.sha256
    with torch.no_grad():
        next(vit.vit.parameters()).add_(1e-3)
    assert brought(saved(vit, "two"), signal)[1].sha256 != first.sha256


def test_runs_say_the_folders_name_and_nothing_of_the_machine(saved, vit, tmp_path):
    technique = saved(vit)
    assert technique_label(technique) == "hf:net"
    assert str(tmp_path) not in json.dumps(own_encoder(technique).options)
    assert technique_named("hf:net").brought  # as a run has it


def test_a_folder_that_lacks_weights_is_refused(saved, vit, tmp_path):
    technique = saved(vit)
    file = tmp_path / "net" / "model.safetensors"
    held = load_file(file)
    del held["vit.layers.1.mlp.fc1.weight" if "vit.layers.1.mlp.fc1.weight" in held else max(held)]
    save_file(held, file, {"format": "pt"})
    with pytest.raises(BenchmdError, match=r"lacks 1 of \d+ weights .*expected all of them"):
        brought(technique, SIGNALS["cxr"])


def test_pickled_weights_are_refused(saved, vit, tmp_path):
    technique = saved(vit)
    (tmp_path / "net" / "model.safetensors").unlink()
    torch.save(vit.state_dict(), tmp_path / "net" / "pytorch_model.bin")
    with pytest.raises(BenchmdError, match=r"Pickled weights \(\.bin\) are not read"):
        brought(technique, SIGNALS["cxr"])


@pytest.mark.parametrize("kind", ["vit", "unheard-of"])
def test_code_in_a_folder_is_never_run(saved, vit, tmp_path, kind):
    technique, ran = saved(vit), tmp_path / "ran"
    config = tmp_path / "net" / "config.json"
    held = json.loads(config.read_text())
    names = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    config.write_text(json.dumps(held | {"model_type": kind, "auto_map": names}))
    (tmp_path / "net" / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    if kind == "vit":  # the library's own class is taken
        brought(technique, SIGNALS["cxr"])
    else:
        with pytest.raises(BenchmdError, match=r"does not know.*Code in a folder is not run"):
            brought(technique, SIGNALS["cxr"])
    assert not ran.exists()


def test_networks_of_texts_and_signals_over_time_are_refused(saved, vit):
    bert = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9
    )
    with pytest.raises(BenchmdError, match=r"takes input_ids, expected images"):
        brought(saved(transformers.BertModel(bert)), SIGNALS["cxr"])
    with pytest.raises(BenchmdError, match=r"ecg has the axes channel, time"):
        brought(saved(vit, "images"), SIGNALS["ecg"])


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(BenchmdError, match=r"has no config\.json: name a folder"):
        own_encoder(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"expected the content of a config\.json: Expecting property name"),
        ("[1]", r"expected the content of a config\.json: it is not a JSON object"),
        ('[["model_type", "vit"]]', "it is not a JSON object"),
        ("[" * 100_000, "expected the content of a config"),
        ("{}", "has no model_type: expected that of a network"),
        ('{"model_type": "vit", "hidden_size": 10}', "transformers"),
    ],
)
def test_a_config_of_a_store_is_not_believed(text, message):
    size = EncoderSettings(network="transformers", options={"config": text})
    with pytest.raises(BenchmdError, match=message):
        make_encoder(SIGNALS["cxr"], size)


@pytest.mark.parametrize("odd", ["v" * 100_000, ["v" * 100_000], {"v" * 100_000: "v"}])
def test_a_message_quotes_little_of_a_model_type(odd):
    text = json.dumps({"model_type": odd})
    with pytest.raises(BenchmdError, match=r"which transformers .* does not know") as error:
        hub_configs.config_of(text)
    assert len(str(error.value)) < 500


def test_a_function_makes_a_network_with_its_weights(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "import torch\n\n\ndef rhythm(signal, size):\n"
        "    layer = torch.nn.Conv1d(signal.input_shape[0], 4, 9, 8)\n"
        "    return torch.nn.Sequential(layer, torch.nn.AdaptiveAvgPool1d(1), torch.nn.Flatten())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    technique, signal = brought_name("my_models:rhythm"), SIGNALS["ecg"]
    assert technique == technique_label(technique) == "model:my_models:rhythm"
    with pytest.raises(BenchmdError, match="code that you did not name yourself"):
        brought(technique, signal)
    monkeypatch.setenv(plugins.ALLOWED, "my_models:rhythm")
    state = torch.random.get_rng_state()
    start = start_weights(technique, None, signal, own_encoder(technique))
    assert torch.equal(torch.random.get_rng_state(), state)
    network, again = brought(technique, signal)
    assert start.sha256 == again.sha256  # random weights come from a seed
    assert network(images(signal)).shape == (3, network.width) == (3, 4)


def test_a_module_may_be_called_model():
    assert brought_name("model:build") == "model:model:build"
    assert brought_name("model:model:build") == "model:model:build"
    assert brought_name("my_models:build") == "model:my_models:build"
    assert brought_name("hf:vit") == "hf:vit"


def test_a_folder_allows_no_module_of_its_name(monkeypatch):
    monkeypatch.setenv(plugins.ALLOWED, "")
    given = {"upstream": "hf:vit", "techniques": ("hf:vit", "model:my_models:build")}
    assert list(named_plugins(given)) == ["my_models:build"]


@pytest.mark.parametrize("text", ["runs/pretrain-ecg-mae-1", "s3://bucket/runs", "C:\\runs"])
def test_a_folder_is_no_technique(text):
    assert brought_name(text) is None


def edited(tmp_path, **changes):
    """Changes the config of the folder `net`."""
    path = tmp_path / "net" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def no_network(monkeypatch):
    """Fails where an address is looked up."""

    def refuse(*_, **__):
        pytest.fail("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("builtins.input", refuse)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "vision-encoder-decoder", "auto_map": {"AutoModel": "/tmp/x--evil.Model"}},
        {"model_type": "vision-encoder-decoder", "auto_map": {"AutoModel": "who/what--evil.Model"}},
        {"model_type": "detr", "backbone": "resnet18", "use_pretrained_backbone": True},
        {"model_type": "vit", "image_size": 0},
        {"model_type": "vit", "num_channels": -1},
        {"model_type": "vit", "num_hidden_layers": 40_000},
        {"model_type": ["vit"]},
        {"model_type": "videomae"},
    ],
)
def test_a_hostile_config_asks_for_nothing_and_is_refused(no_network, config):
    size = EncoderSettings(network="transformers", options={"config": json.dumps(config)})
    with pytest.raises(BenchmdError):
        make_encoder(SIGNALS["cxr"], size)


def test_of_a_config_only_the_fields_of_its_class_are_kept(saved, vit, tmp_path, no_network):
    technique = saved(vit)
    before = own_encoder(technique)
    edited(
        tmp_path,
        note="by ada on /home/ada/Doe^Jane",
        attn_implementation="kernels-community/x",
        quantization_config={"quant_method": "awq"},
        transformers_weights="adapter_model.bin",
        id2label={"0": "Doe^Jane"},
    )
    assert own_encoder(technique) == before
    assert json.loads(before.options["config"])["hidden_size"] == 16
    brought(technique, SIGNALS["cxr"])


def test_a_masked_autoencoder_is_the_vit_that_it_trained(saved):
    torch.manual_seed(0)
    config = transformers.ViTMAEConfig(**{**VIT.to_dict(), "model_type": "vit_mae"})
    own, signal = transformers.ViTMAEForPreTraining(config), SIGNALS["cxr"]
    network, _ = brought(saved(own), signal)
    whole = transformers.ViTMAEModel(
        transformers.ViTMAEConfig(**{**config.to_dict(), "mask_ratio": 0.0})
    )
    whole.load_state_dict(own.vit.state_dict())
    with torch.no_grad():
        expected = whole.eval()(resized(images(signal), 3, 48)).last_hidden_state[:, 0]
    torch.testing.assert_close(network(images(signal)).detach(), expected)


def test_a_network_that_draws_is_refused(saved, monkeypatch):
    monkeypatch.setattr(hub_configs, "SAME_AS", {})
    config = transformers.ViTMAEConfig(**{**VIT.to_dict(), "model_type": "vit_mae"})
    with pytest.raises(
        BenchmdError, match="returns different features for the same record each time"
    ):
        brought(saved(transformers.ViTMAEModel(config)), SIGNALS["cxr"])


def test_damaged_weights_and_those_of_another_network_are_refused(saved, vit, tmp_path):
    technique, folder, signal = saved(vit), tmp_path / "net", SIGNALS["cxr"]
    file = folder / "model.safetensors"
    data, held = file.read_bytes(), load_file(file)
    file.write_bytes(data[:-100])
    with pytest.raises(BenchmdError, match="transformers cannot read"):
        brought(technique, signal)
    save_file({k: v * float("nan") for k, v in held.items()}, file, {"format": "pt"})
    with pytest.raises(BenchmdError, match="NaN or infinite"):
        brought(technique, signal)
    file.write_bytes(data)
    edited(tmp_path, num_hidden_layers=1)
    with pytest.raises(BenchmdError, match=r"does not have, such as .*\b1\b"):
        brought(technique, signal)


@pytest.mark.parametrize("name", ["../other/model.safetensors", "evil.bin", "none.safetensors"])
def test_an_index_names_files_of_its_folder_only(saved, vit, tmp_path, name):
    technique = saved(vit)
    saved(vit, "other")
    (tmp_path / "net" / "model.safetensors").rename(tmp_path / "net" / "evil.bin")
    index = {"metadata": {}, "weight_map": {"vit.embeddings.cls_token": name}}
    (tmp_path / "net" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BenchmdError, match="which is not a file of it"):
        brought(technique, SIGNALS["cxr"])


def test_weights_in_parts_are_read(saved, vit, tmp_path):
    vit.eval().save_pretrained(tmp_path / "parts", max_shard_size="10KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    parts = brought(f"hf:{tmp_path / 'parts'}", SIGNALS["cxr"])[1]
    assert parts.sha256 == brought(saved(vit), SIGNALS["cxr"])[1].sha256


def test_a_network_of_the_package_was_not_trained_elsewhere():
    with pytest.raises(BenchmdError, match=r"resnet18 is a network of the package"):
        own_encoder("model:resnet18")


# --- sizes that do not fit the images, the weights or any machine --------------------------------


def test_a_network_whose_last_maps_are_a_point_is_read_and_trained(saved):
    """Of 28 pixels five halvings leave one: only in evaluation can one image be normalised."""
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=4, layer_type="bottleneck", **STAGES)
    own = transformers.ResNetModel(config)
    shape = (1, 28, 28)
    signal = replace(SIGNALS["cxr"], stored_shape=shape, input_shape=shape, patch=(7, 7))
    network, _ = brought(saved(own), signal)
    seen = images(signal).expand(-1, 3, -1, -1)
    with torch.no_grad():
        maps = own.eval()(seen).last_hidden_state
        assert maps.shape[2:] == (1, 1)
        torch.testing.assert_close(network(images(signal)), maps.flatten(1))
    assert make_encoder(signal, own_encoder(saved(own))).training
    norms = [m for m in network.train().modules() if isinstance(m, _BatchNorm)]
    before = [norm.running_mean.clone() for norm in norms]
    network(images(signal)[:1]).sum().backward()  # the last batch of an epoch may be one image
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)
    assert torch.equal(norms[-1].running_mean, before[-1])  # one value has no variance
    network(images(signal))
    assert not any(torch.equal(n.running_mean, b) for n, b in zip(norms, before, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"intermediate_size": 36},
            r"net holds 6 of \d+ weights with other sizes than its config\.json describes, such as "
            r"\S+: \(32,\) in model\.safetensors, \(36,\) by config\.json; expected the "
            r"config\.json that belongs to the weights\. Save both",
        ),
        (
            {"num_hidden_layers": 3},
            r"net lacks 16 of \d+ weights .*expected all of them .*download",
        ),
        (
            {"num_hidden_layers": 1},
            r"net holds 16 weights that the network .* not have.* Save both",
        ),
        (
            {"hidden_size": 256},
            r"config\.json describes a network of [\d,]+ weights, and the folder's safetensors "
            r"have [\d,]+ bytes, too few for them: expected the config\.json that belongs",
        ),
        (
            {"hidden_size": 12288, "num_hidden_layers": 1000},
            r"net/config\.json: the network that the config describes has more than the "
            r"allowed 8,589,934,592 weights: correct its numbers of layers and widths",
        ),
    ],
)
def test_a_config_of_other_sizes_than_the_weights_is_refused(
    saved, vit, tmp_path, changes, message
):
    technique = saved(vit)
    edited(tmp_path, **changes)
    with pytest.raises(BenchmdError, match=message):
        brought(technique, SIGNALS["cxr"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "vit", "num_hidden_layers": 900, "hidden_size": 12288},
            "more than .* weig",
        ),
        (
            {"model_type": "resnet", "hidden_sizes": [2**20] * 4},
            "more than the allowed 8,589,934,592 weights",
        ),
        (
            {"model_type": "swin", "window_size": 2**12},
            "more than the allowed 8,589,934,592 weights",
        ),  # buffers
        ({"model_type": "resnet", "depths": [400, 400, 400, 400]}, "at most 1,024 layers"),
        ({"model_type": "resnet", "depths": [1] * 2000}, "depths with 2,000 entries, expected at"),
        ({"model_type": "resnet", "depths": [[1] * 40] * 40}, "depths with 1,600 entries"),
        (
            {"model_type": "resnet", "depths": [2, -1, 2, 2]},
            r"depths \[2, -1, 2, 2\], expected a n",
        ),
        ({"model_type": "vit", "num_hidden_layers": -3}, "num_hidden_layers -3, expected a number"),
        ({"model_type": "resnet", "depths": {"0": 10**9}}, "depths {'0': 1000000000}, expected a"),
        (
            {"model_type": "resnet", "depths": [1, {"a": 1}]},
            "expected a number of layers, or a list",
        ),
        ({"model_type": "convnext", "image_size": 2**15}, "3 channels and 32768 x 32768 pixels"),
        ({"model_type": "convnext", "num_channels": 2**12}, "4096 channels and 224 x 224 pixels"),
        ({"model_type": "vit", "image_size": [48, 48, 48]}, "expected one or two whole numbers"),
        ({"model_type": "vit", "image_size": float("nan")}, "image_size nan, expected at most"),
        ({"model_type": "resnet", "depths": [1] * 10**6}, "expected the content of a config"),
    ],
)
def test_a_config_larger_than_any_network_is_refused_before_one_is_made(
    monkeypatch, config, message
):
    made = []
    monkeypatch.setattr(nn.Module, "float", lambda self: made.append(self) or self)
    size = EncoderSettings(network="transformers", options={"config": json.dumps(config)})
    with pytest.raises(BenchmdError, match=message):
        make_encoder(SIGNALS["cxr"], size)
    assert not made  # not even without values


def test_parts_are_counted_and_only_while_a_network_is_made(monkeypatch):
    size = EncoderSettings(network="transformers", options={"config": VIT.to_json_string()})
    parts = sum(1 for _ in make_encoder(SIGNALS["cxr"], size).network.modules())
    monkeypatch.setattr(hub_networks, "MOST_PARTS", parts // 2)
    with pytest.raises(BenchmdError, match=rf"has more than the allowed {parts // 2} parts"):
        make_encoder(SIGNALS["cxr"], size)
    monkeypatch.setattr(hub_networks, "MOST_PARTS", 0)
    assert len(nn.Sequential(nn.Identity())) == 1
