"""Networks of a user's own that have `forward` alone."""

from __future__ import annotations

import sys

import pytest
import torch
from kinds import SIGNALS

from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions import plugins
from benchmd_ray.models.encoder import make_encoder, require_tokens
from benchmd_ray.models.heads import Classifier
from benchmd_ray.settings.definition import EncoderSettings

MODULE = """
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self, signal, size):
        super().__init__()
        axes = len(signal.axes) - 1
        convolution, norm = (
            (nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d)
        )[axes - 1]
        self.layer = convolution(signal.input_shape[0], 6, 7, stride=4)
        self.norm = norm(6)
        self.dropout = nn.Dropout(0.5)

    def forward(self, signals):
        return self.dropout(self.norm(self.layer(signals))).flatten(2).mean(2)


class Maps(Small):
    def forward(self, signals):
        return self.layer(signals)


class Wrong(Small):
    def forward(self, signals):
        return super().forward(signals[:, :, :3])


class Frozen(Small):
    def __init__(self, signal, size):
        super().__init__(signal, size)
        self.norm.eval()


class Point(Small):
    def forward(self, signals):
        maps = self.layer(signals)
        return self.norm(maps.mean((2, 3), keepdim=True)).flatten(1)


class Asserting(Small):
    def forward(self, signals):
        assert signals.shape[-1] == 7, "seven pixels only"


def text(signal, size):
    return "no module"
"""


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("Small", "Maps", "Wrong", "Frozen", "Point", "Asserting", "text")
    monkeypatch.setenv(plugins.ALLOWED, ",".join(f"own_networks:{name}" for name in names))
    sys.modules.pop("own_networks", None)
    yield
    sys.modules.pop("own_networks", None)


@pytest.mark.parametrize("name", ["ecg", "derm", "ldct"])
def test_forward_is_enough_and_nothing_is_changed_by_trying_it(name):
    signal, size = SIGNALS[name], EncoderSettings(network="own_networks:Small")
    torch.manual_seed(3)
    made = make_encoder(signal, size)
    after = torch.rand(1)
    torch.manual_seed(3)
    by_hand = sys.modules["own_networks"].Small(signal, size)
    assert torch.equal(after, torch.rand(1))  # no more was drawn than the weights
    assert (made.width, made.signal, made.training) == (6, signal, True)
    state, expected = made.state_dict(), by_hand.state_dict()
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    x = torch.randn(2, *signal.input_shape)
    model = Classifier(made, 3).eval()
    with torch.no_grad():
        features = by_hand.eval()(x)
        assert torch.equal(made(x), features)
        assert model(x).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Maps",
            r"returns \(2, 6, \d+, \d+\) for two signals, expected features of shape \(2, width",
        ),
        ("Wrong", r"cannot take signals of shape \(batch, 3, 224, 224\)"),
        ("Asserting", r"cannot take signals .*: AssertionError: seven pixels only"),
        ("text", "made a str: expected a torch module"),
    ],
)
def test_what_makes_no_features_is_refused(name, message):
    with pytest.raises(BenchmdError, match=message):
        make_encoder(SIGNALS["derm"], EncoderSettings(network=f"own_networks:{name}"))


def test_a_part_that_is_kept_in_evaluation_stays_in_it():
    made = make_encoder(SIGNALS["derm"], EncoderSettings(network="own_networks:Frozen"))
    assert (made.training, made.norm.training, made.dropout.training) == (True, False, True)


def test_one_value_of_a_channel_is_enough_to_be_tried():
    made = make_encoder(SIGNALS["derm"], EncoderSettings(network="own_networks:Point"))
    assert (made.width, made.training) == (6, True)


def test_techniques_of_tokens_refuse_it():
    size = EncoderSettings(network="own_networks:Small")
    with pytest.raises(BenchmdError, match=r"mae works on the tokens .*Small, which has none"):
        require_tokens(SIGNALS["derm"], size, "mae")
