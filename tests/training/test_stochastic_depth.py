"""Stochastic depth: rates of the blocks, and what an example goes without."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kinds import SIGNALS
from torch import nn

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.models.encoder import Block, make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.models.resnet import CONVOLUTIONS, Residual
from benchmd_ray.runs.files import MODEL
from benchmd_ray.settings.definition import ENCODERS, EncoderSettings
from benchmd_ray.training.finetuning import set_stochastic_depth
from benchmd_ray.training.jobs import TransferJob
from benchmd_ray.training.transfer import transfer

TINY = replace(ENCODERS["tiny"], dropout=0.0)


@pytest.mark.parametrize("network", ["transformer", "resnet18", "resnet50"])
def test_rates_rise_linearly_to_the_last_block(network):
    size = replace(TINY, depth=8)
    if network != "transformer":
        size = EncoderSettings(network=network, options={"width": 2})
    with torch.device("meta"):
        model = Classifier(make_encoder(SIGNALS["derm"], size), 2)
    set_stochastic_depth(model, 0.3, network)
    rates = [block.drop_path.rate for block in model.encoder.blocks]
    depth = 16 if network == "resnet50" else 8
    np.testing.assert_allclose(rates, 0.3 * np.arange(1, depth + 1) / depth)


def block_of(kind):
    torch.manual_seed(0)
    if kind == "transformer":
        return Block(TINY), torch.randn(64, 5, TINY.width)
    return Residual(CONVOLUTIONS[""], 4, 4, 1, bottleneck=False), torch.randn(64, 4, 6, 6)


def draws(count, rate, seed):
    torch.manual_seed(seed)
    return [(torch.rand(64) < 1 - rate).float() / (1 - rate) for _ in range(count)]


@pytest.mark.parametrize("kind", ["transformer", "residual"])
def test_each_example_goes_without_the_branch_or_has_it_scaled(kind):
    block, x = block_of(kind)
    block.drop_path.rate = 0.4
    torch.manual_seed(7)
    found = block.train()(x)
    block.drop_path.rate = 0.0
    if kind == "transformer":
        first, second = draws(2, 0.4, 7)
        between = []
        hook = block.mlp_norm.register_forward_pre_hook(lambda _, given: between.append(given[0]))
        block(x)
        hook.remove()
        middle = x + first[:, None, None] * (between[0] - x)
        expected = middle + second[:, None, None] * block.mlp(block.mlp_norm(middle))
    else:
        (first,) = draws(1, 0.4, 7)
        expected = torch.relu(x + first[:, None, None, None] * block.body(x))
        assert torch.equal(found[first == 0], torch.relu(x)[first == 0])
    assert 0 < (first == 0).sum() < 64
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["transformer", "residual"])
def test_evaluation_goes_through_all_blocks_and_nothing_is_drawn(kind):
    block, x = block_of(kind)
    plain = block.eval()(x)
    block.drop_path.rate, state = 0.9, torch.get_rng_state()
    assert torch.equal(block(x), plain)
    block.drop_path.rate = 0.0
    block.train()(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_mean_over_draws_is_the_whole_branch():
    path = Block(TINY).drop_path.train()
    path.rate = 0.25
    torch.manual_seed(1)
    assert path(torch.ones(40_000, 1)).mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_a_resumed_run_skips_the_same(
    source, make_settings, recorder, interrupted, tmp_path, engine
):
    settings = make_settings(
        "transfer.mode=finetune",
        "execution.checkpoint_seconds=0",
        f"execution.engine={engine}",
        "transfer.stochastic_depth=0.5",
    )
    found = {}
    for name, stops in (("whole", [None]), ("broken", [2, None])):
        folder = tmp_path / name
        folder.mkdir()
        for stop_at in stops:
            try:
                transfer(TransferJob(settings, source.path, folder), Worker(), recorder(stop_at))
            except interrupted:
                assert stop_at == 2
        found[name] = sha256(folder / MODEL)
    assert found["whole"] == found["broken"]
    plain = replace(settings, transfer=replace(settings.transfer, stochastic_depth=0.0))
    (tmp_path / "plain").mkdir()
    transfer(TransferJob(plain, source.path, tmp_path / "plain"), Worker(), recorder())
    assert sha256(tmp_path / "plain" / MODEL) != found["whole"]


def test_networks_that_cannot_skip_are_refused():
    model = SimpleNamespace(encoder=nn.Linear(1, 1))
    with pytest.raises(
        BenchmdError, match=r"stochastic_depth is 0\.5 and the encoder network mine"
    ):
        set_stochastic_depth(model, 0.5, "mine:Net")
    model.encoder.blocks = nn.Sequential(nn.Linear(1, 1))
    with pytest.raises(BenchmdError, match=r"a Linear of the .* mine:Net has no `drop_path`: pass"):
        set_stochastic_depth(model, 0.5, "mine:Net")
    set_stochastic_depth(model, 0.0, "mine:Net")
