"""A description of a published encoder is outside data: bounded before anything is made of it."""

import json
import time

import pytest
import torch
from kinds import SIGNALS
from tiny_encoder import CONFIG

from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.networks import PUBLISHED
from benchmd_ray.settings.definition import EncoderSettings

IMAGE = {"image": {"size": [32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}}
VOLUME = {"volume": {"size": [32, 32, 32]}}
TIME = {"channels": ["I"], "rate": 100.0, "samples": 1000}


def vit(**changes):
    return {"library": "transformers", "config": CONFIG | changes, "feature": "class-token"}


def monai(name, **arguments):
    return {"library": "monai", "config": {"network": name, **arguments}, "feature": "mean"}


def image(**changes):
    return {"image": IMAGE["image"] | changes}


def made(kind, text):
    with torch.device("meta"):
        return make_encoder(SIGNALS[kind], EncoderSettings(network=PUBLISHED, options=text))


@pytest.mark.parametrize(
    ("kind", "network", "taken"),
    [
        ("cxr", vit(num_hidden_layers=10**9), IMAGE),
        ("cxr", vit(hidden_size=10**9), IMAGE),
        ("cxr", vit(image_size=10**9), IMAGE),
        ("cxr", vit(model_type="../vit"), IMAGE),
        ("cxr", vit(), image(size=[10**9, 1])),
        ("cxr", vit(), image(size=[5000, 5000])),
        ("cxr", vit(), image(shorter_side=10**9)),
        ("cxr", vit(), image(std=[0.0] * 3)),
        ("cxr", vit(), image(mean=[float("nan")] * 3)),
        ("ecg", vit(), {"time": TIME | {"taps": 10**9, "band": [1.0, 2.0]}}),
        ("ecg", vit(), {"time": TIME | {"rate": 1e-300}}),
        ("ecg", vit(), {"time": TIME | {"rate": 1e300}}),
        ("ecg", vit(), {"time": TIME | {"samples": 10**12}}),
        ("ecg", vit(), {"time": TIME | {"decimate": -1}}),
        ("ldct", monai("resnet18", spatial_dims=99), VOLUME),
        ("ldct", monai("resnet18", widen_factor=1e12), VOLUME),
        ("ldct", monai("resnet18", pretrained=True), VOLUME),
        ("ldct", monai("resnet18", norm="os.system"), VOLUME),
        ("ldct", monai("resnet18", act=["relu", {"inplace": "x"}]), VOLUME),
        ("ldct", monai("segresnet-encoder", blocks_down=[10**9]), VOLUME),
        ("ldct", monai("segresnet-encoder", blocks_down=[1] * 2000), VOLUME),
        ("ldct", monai("segresnet-encoder", init_filters=2**20), VOLUME),
        ("ldct", monai("segresnet-encoder", act="__import__"), VOLUME),
        ("ldct", monai("swin-transformer", spatial_dims=99), VOLUME),
        ("ldct", monai("__class__"), VOLUME),
        ("ldct", monai("resnet18"), {"volume": {"least": 10**9}}),
        ("ldct", monai("resnet18"), {"volume": {"size": [10**6, 10**6, 10**6]}}),
    ],
)
def test_a_hostile_description_is_refused_at_once(kind, network, taken):
    text = json.dumps({"network": network, "input": taken})
    begun = time.monotonic()
    with pytest.raises(BenchmdError) as error:
        made(kind, {"description": text})
    assert time.monotonic() - begun < 4
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "[" * 100_000, '{"network": ', "x" * 2**21, '{"a": NaN}', "1" * 5000]
)
def test_what_is_no_description_is_refused(text):
    with pytest.raises(BenchmdError):
        made("cxr", {"description": text})
