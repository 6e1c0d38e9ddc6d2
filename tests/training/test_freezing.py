"""Frozen blocks: which they are, and that nothing of them changes."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from kinds import SIGNALS
from safetensors.torch import load_file
from torch import nn

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.runs.files import MODEL
from benchmd_ray.settings.definition import ENCODERS, EncoderSettings
from benchmd_ray.training.finetuning import freeze, frozen_parts
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.pretrain import pretrain
from benchmd_ray.training.transfer import require_transferable, transfer

FINETUNE = ("transfer.mode=finetune", "execution.checkpoint_seconds=0")
BELOW = ("encoder.cls", "encoder.positions", "encoder.patch_embedding.")


@pytest.fixture(scope="session")
def pretrained(source, make_settings, recorder, tmp_path_factory):
    """Folder of a pretraining run."""
    folder = tmp_path_factory.mktemp("pretrained")
    job = PretrainJob(make_settings("pretrain.steps=2"), "mae", source.path, folder)
    pretrain(job, Worker(), recorder())
    return folder


@pytest.fixture
def run(source, make_settings, recorder, interrupted, pretrained, tmp_path):
    """Fine-tunes in this process, in a folder of that name."""

    def start(name, *assignments, stop_at=None, upstream=pretrained):
        folder, reporter = tmp_path / name, recorder(stop_at)
        folder.mkdir(exist_ok=True)
        settings = make_settings(*FINETUNE, *assignments)
        try:
            transfer(TransferJob(settings, source.path, folder, upstream), Worker(), reporter)
        except interrupted:
            assert stop_at is not None
        return SimpleNamespace(folder=folder, lines=reporter.lines)

    return start


def encoder_of(network="transformer"):
    signal, size = SIGNALS["derm"], replace(ENCODERS["tiny"], depth=10)
    signal = replace(signal, stored_shape=(3, 32, 32), input_shape=(3, 32, 32))
    if network != "transformer":
        size = EncoderSettings(network=network, options={"width": 2})
    torch.manual_seed(0)
    return make_encoder(signal, size)


@pytest.mark.parametrize("network", ["transformer", "resnet18"])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.25, 0.7, 0.99])
def test_the_share_next_to_the_signal_is_frozen(network, share):
    model = Classifier(encoder_of(network), 2)
    freeze(model, share, network)
    depth = len(model.encoder.blocks)
    count = math.floor(round(share * depth, 6))
    assert count < depth
    for name, parameter in model.named_parameters():
        below = name.startswith((*BELOW, "encoder.stem."))
        own = [name.startswith(f"encoder.blocks.{i}.") for i in range(count)]
        assert parameter.requires_grad == (not (share and (below or any(own)))), name
    assert len(frozen_parts(model, share)) == (1 + count if share else 0)


def test_running_statistics_of_frozen_blocks_stay():
    model = Classifier(encoder_of("resnet18"), 2)
    freeze(model, 0.5, "resnet18")
    before = copy.deepcopy(model.state_dict())
    model.train()
    for part in frozen_parts(model, 0.5):
        part.eval()
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(torch.randn(4, 3, 32, 32)).square().sum().backward()
    optimiser.step()
    for name, value in model.state_dict().items():
        frozen = name.startswith(("encoder.stem", *(f"encoder.blocks.{i}." for i in range(4))))
        assert torch.equal(value, before[name]) == frozen, name


@pytest.mark.parametrize("execution", ["engine=torch", "engine=deepspeed", "zero_stage=2"])
def test_what_is_frozen_is_exported_as_pretrained(run, pretrained, execution):
    how = ("transfer.freeze=0.5", "transfer.layer_decay=0.9", f"execution.{execution}")
    done = run("run", *how)
    before, after = load_file(pretrained / MODEL), load_file(done.folder / MODEL)
    for name, value in after.items():
        if not name.startswith("head"):
            frozen = name.startswith((*BELOW, "encoder.blocks.0."))
            assert torch.equal(value, before[name]) == frozen, name
    broken = run("broken", *how, stop_at=2)
    resumed = run("broken", *how)
    assert resumed.lines == done.lines[1:]
    for name, value in load_file(broken.folder / MODEL).items():
        assert torch.equal(value, after[name]), name


def test_random_weights_are_not_frozen(run, source, make_settings, tmp_path):
    with pytest.raises(BenchmdError, match=r"freeze is 0\.5, and the run starts from random"):
        run("scratch", "transfer.freeze=0.5", upstream=None)
    settings = make_settings("transfer.mode=linear", "transfer.freeze=0.5")
    require_transferable(TransferJob(settings, source.path, tmp_path), source)  # reads it not


def test_a_network_without_blocks_is_refused():
    model = SimpleNamespace(encoder=nn.Linear(1, 1))
    with pytest.raises(BenchmdError, match=r"freeze is 0\.5 and the encoder network mine:Net has"):
        freeze(model, 0.5, "mine:Net")
    freeze(model, 0.0, "mine:Net")
