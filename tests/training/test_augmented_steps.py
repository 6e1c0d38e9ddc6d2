"""Fine-tuning with augmentation: a step draws nothing itself, however it is executed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from graphs import Again
from kinds import SIGNALS
from tiers import by_tier

from benchmd_ray.data.batches import Batch, Worker
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.heads import Classifier, classification_loss
from benchmd_ray.settings.definition import (
    ENCODERS,
    ExecutionSettings,
    OptimiserSettings,
    Settings,
    updated,
)
from benchmd_ray.training import forward, transfer
from benchmd_ray.training import steps as module
from benchmd_ray.training.augmentation import changed, draws_of
from benchmd_ray.training.engine import TorchEngine
from benchmd_ray.training.seeds import seed_step
from benchmd_ray.training.steps import Chosen

EAGER, CAPTURED = (Chosen(way, False, "test") for way in ("eager", "captured"))
COMPILED = Chosen("compiled", True, "test")
EVERY = ("shift", "intensity", "noise", "masking", "mixup", "cutmix")
OF_KIND = {
    "ecg": (*EVERY, "lead_dropout", "wander"),
    "cxr": (*EVERY, "flip", "affine", "blur"),
    "ldct": (*EVERY, "flip", "affine", "blur"),
}
SIZES = (6, 6, 4)
"""Examples of the steps in turn."""


def settings_of(kind, parts=1):
    return updated(
        Settings(encoder=replace(ENCODERS["tiny"], dropout=0.0, embedding_dropout=0.0)),
        {
            "transfer": {"augmentation": dict.fromkeys(OF_KIND[kind], 0.5)},
            "execution": {"accumulation": parts},
        },
    )


def batches(kind, count):
    for number in range(count):
        draws = torch.Generator().manual_seed(number)
        size = SIZES[number % len(SIZES)]
        signals = torch.randn(size, *SIGNALS[kind].input_shape, generator=draws)
        targets = torch.eye(3, dtype=torch.int8)[torch.randint(0, 3, (size,), generator=draws)]
        yield Batch(np.arange(size), signals, targets)


def engine_of(kind, settings):
    torch.manual_seed(0)
    encoder = make_encoder(SIGNALS[kind], settings.encoder)
    optimiser = OptimiserSettings(lr=1e-3)
    return TorchEngine(Classifier(encoder, 3), optimiser, ExecutionSettings(), Worker())


def trained(kind, chosen, monkeypatch, parts=1, count=7):
    """Losses and weights of real steps."""
    monkeypatch.setattr(transfer, "choose_step", lambda *_, **__: chosen)
    monkeypatch.setattr(module, "cuda_graphs", lambda: Again)
    settings = settings_of(kind, parts)
    engine = engine_of(kind, settings)
    steps = transfer.finetuning_steps(engine, settings, "single-label", count)
    losses = [
        float(steps(n, transfer._inputs(batch, settings, n, Worker(), "single-label"), 1e-3))
        for n, batch in enumerate(batches(kind, count))
    ]
    return losses, engine.weights()


def by_hand(kind, count=7):
    """The same, each batch changed before its step."""
    settings = settings_of(kind)
    how, engine, losses = settings.transfer.augmentation, engine_of(kind, settings), []
    for number, batch in enumerate(batches(kind, count)):
        draws = draws_of(batch, how, settings.seed, number, Worker())
        signals, targets = changed(batch.signals, batch.targets, draws, how, "single-label")
        assert not torch.equal(signals, batch.signals)
        seed_step(settings.seed, number, 0)
        outputs = engine(signals)
        each = classification_loss(outputs, targets, task="single-label", smoothing=0.0)
        engine.set_lr(1e-3)
        engine.backward(each.mean(), last=True)
        engine.update()
        losses.append(float(each.detach().sum()))
    return losses, engine.weights()


def require_same(found, expected, atol):
    assert found[0] == pytest.approx(expected[0], abs=atol)
    for name, value in found[1].items():
        torch.testing.assert_close(value, expected[1][name], rtol=0, atol=atol)


@pytest.mark.parametrize("kind", by_tier(["cxr"], [], ["ecg", "ldct"]))
@pytest.mark.parametrize(("way", "parts"), [(EAGER, 1), (EAGER, 2), (CAPTURED, 1), (CAPTURED, 2)])
def test_each_way_to_execute_a_step_sees_the_same_changes(kind, way, parts, monkeypatch):
    require_same(trained(kind, way, monkeypatch, parts), by_hand(kind), atol=1e-4)


@pytest.mark.parametrize("kind", by_tier([], ["cxr"], ["ecg", "ldct"]))
def test_augmentation_is_part_of_the_graph(kind, monkeypatch):
    """Without a break: ``fullgraph`` raises an error at one. No code is generated here."""
    monkeypatch.setattr(forward, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    found = trained(kind, COMPILED, monkeypatch, count=2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] in (1, 2)  # mixup and CutMix
    require_same(found, by_hand(kind, 2), atol=1e-4)


@pytest.mark.parametrize("kind", by_tier([], ["cxr"], ["ecg", "ldct"]))
def test_compiled_steps_with_augmentation_are_the_eager_ones(kind, monkeypatch):
    torch._dynamo.reset()
    require_same(trained(kind, COMPILED, monkeypatch), by_hand(kind), atol=1e-3)
