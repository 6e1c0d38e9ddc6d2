"""The average of weights over steps: its formula, its evaluation, its checkpoints."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.files import MODEL
from benchmd_ray.scores.metrics import auroc
from benchmd_ray.settings.definition import ExecutionSettings, OptimiserSettings
from benchmd_ray.training.checkpoints import latest_checkpoint
from benchmd_ray.training.engine import DeepSpeedEngine, TorchEngine
from benchmd_ray.training.finetuning import Average
from benchmd_ray.training.jobs import TransferJob
from benchmd_ray.training.selection import Best
from benchmd_ray.training.transfer import AVERAGE, finetune_epoch, require_transferable, transfer
from benchmd_ray.training.weights import load_classifier

FINETUNE = ("transfer.mode=finetune", "execution.checkpoint_seconds=0", "encoder.dropout=0.1")


@pytest.fixture
def run(source, make_settings, recorder, interrupted, tmp_path):
    """Fine-tunes in this process, in a folder of that name."""

    def start(name, *assignments, stop_at=None):
        folder, reporter = tmp_path / name, recorder(stop_at)
        folder.mkdir(exist_ok=True)
        settings = make_settings(*FINETUNE, *assignments)
        try:
            transfer(TransferJob(settings, source.path, folder), Worker(), reporter)
        except interrupted:
            assert stop_at is not None
        return SimpleNamespace(folder=folder, lines=reporter.lines, reporter=reporter)

    return start


def slow_average(history, decay):
    """Of arrays (steps + 1, …), the first before any step."""
    average = history[0].astype(np.float64)
    for t, value in enumerate(history[1:]):
        share = min(decay, (1 + t) / (10 + t))
        average = share * average + (1 - share) * value
    return average


@pytest.mark.parametrize("decay", [0.05, 0.3, 0.99])
def test_the_average_follows_its_formula(decay):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    average = Average(module, decay)
    history = [copy.deepcopy(module.state_dict())]
    for step in range(25):
        (module(torch.randn(8, 3) + 1) - 1).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        average.update(step)
        history.append(copy.deepcopy(module.state_dict()))
    with average.in_use():
        shown = copy.deepcopy(module.state_dict())
    for name, value in shown.items():
        if value.is_floating_point():  # weights and running statistics
            expected = slow_average(np.stack([h[name].numpy() for h in history]), decay)
            np.testing.assert_allclose(value.numpy(), expected, atol=1e-5)
            if name != "0.bias":  # which normalisation takes away
                assert not torch.equal(value, history[-1][name])
    assert shown["1.num_batches_tracked"] == 25
    for name, value in module.state_dict().items():  # as if it had not been shown
        assert torch.equal(value, history[-1][name])


def test_the_module_has_its_weights_back_after_an_error():
    module = nn.Linear(2, 2)
    average, before = Average(module, 0.9), module.weight.detach().clone()
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(ValueError, match="within"), average.in_use():  # noqa: PT012
        assert torch.equal(module.weight, before)
        raise ValueError("within")
    assert torch.equal(module.weight, before + 1)


def keep_last(best, score, epoch, weights):
    best.score, best.epoch, best.weights = score, epoch, weights()


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_what_is_evaluated_and_exported_is_the_average(run, source, monkeypatch, engine):
    every = []

    def noted(*args, average, **kwargs):
        if not every:
            every.append(copy.deepcopy(args[0].module.state_dict()))
        own = average.update

        def update(step):
            own(step)
            every.append(copy.deepcopy(args[0].module.state_dict()))

        average.update = update
        try:
            return finetune_epoch(*args, average=average, **kwargs)
        finally:
            average.update = own

    monkeypatch.setattr("benchmd_ray.training.transfer.finetune_epoch", noted)
    monkeypatch.setattr(Best, "offer", keep_last)
    done = run("run", "transfer.averaging=0.8", f"execution.engine={engine}")
    model = load_classifier(done.folder)
    for name, value in model.state_dict().items():
        expected = slow_average(np.stack([h[name].numpy() for h in every]), 0.8)
        np.testing.assert_allclose(value.numpy(), expected, atol=1e-5)
        assert not torch.equal(value, every[-1][name]), name
    (batch,) = resident_feed(source, "validation", seed=0).ordered(64)
    with torch.inference_mode():
        scores = model.eval()(batch.signals).softmax(dim=1)
    found = auroc(batch.targets.numpy(), scores.double().numpy()).mean
    assert done.lines[-1]["validation_auroc"] == pytest.approx(found, abs=1e-6)


def test_training_goes_the_same_way_with_an_average(run):
    plain, averaged = run("plain"), run("averaged", "transfer.averaging=0.5")
    assert [x["loss"] for x in averaged.lines] == [x["loss"] for x in plain.lines]
    assert sha256(averaged.folder / MODEL) != sha256(plain.folder / MODEL)


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["engine=torch", "engine=deepspeed", "zero_stage=2"])
def test_a_resumed_average_is_an_uninterrupted_one(run, execution):
    how = ("transfer.averaging=0.9", f"execution.{execution}")
    whole = run("whole", *how)
    broken = run("broken", *how, stop_at=2)
    assert (latest_checkpoint(broken.folder) / AVERAGE).is_file()
    resumed = run("broken", *how)
    assert resumed.reporter.started[3] == 1
    assert resumed.lines == whole.lines[1:]
    one, other = (load_file(each.folder / MODEL) for each in (whole, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)


def stepped(engine, average):
    for step in range(4):
        torch.manual_seed(step)
        engine.set_lr(1e-2)
        engine.backward(engine(torch.randn(2, 3)).square().mean())
        engine.update()
        average.update(step)
    return engine


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_deepspeed_averages_as_plain_torch_does(stage):
    found = []
    for kind, execution in (
        (TorchEngine, ExecutionSettings()),
        (DeepSpeedEngine, ExecutionSettings(zero_stage=stage)),
    ):
        torch.manual_seed(0)
        engine = kind(nn.Linear(3, 2), OptimiserSettings(), execution, Worker())
        average = Average(engine.module, 0.6)
        stepped(engine, average)
        with average.in_use():
            found.append(engine.weights())
        found.append(stepped(engine, average).weights())  # as if it had not been shown
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[2][name], atol=1e-6, rtol=0)
        torch.testing.assert_close(found[1][name], found[3][name], atol=1e-6, rtol=0)


def test_split_parameters_are_not_averaged(source, make_settings, tmp_path):
    settings = make_settings(*FINETUNE, "transfer.averaging=0.9", "execution.zero_stage=3")
    with pytest.raises(BenchmdError, match=r"averaging is 0\.9 and execution\.zero_stage 3, which"):
        require_transferable(TransferJob(settings, source.path, tmp_path), source)
