"""Mixup and CutMix: partners from the batch of all workers, targets that follow, and their loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from benchmd_ray.data.batches import Batch, Worker
from benchmd_ray.models.heads import classification_loss
from benchmd_ray.runs.files import MODEL
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.augmentation import mixing
from benchmd_ray.training.augmentation.mixing import drawn_mixtures, mixed_targets, mixture_draws
from benchmd_ray.training.jobs import TransferJob
from benchmd_ray.training.launch import launch
from benchmd_ray.training.reporter import read_metrics
from benchmd_ray.training.seeds import AUGMENTATION
from benchmd_ray.training.transfer import transfer

KINDS = {"time": (3, 40), "image": (2, 12, 20), "volume": (1, 7, 10, 14)}
HOW = {
    "mixup": AugmentationSettings(mixup=0.6),
    "cutmix": AugmentationSettings(cutmix=1.0),
    "both": AugmentationSettings(mixup=0.6, cutmix=1.0),
}
BY_HOW = pytest.mark.parametrize("how", HOW.values(), ids=list(HOW))


def batch_of(kind="image", rows=11, padded=0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    signals = torch.randn(rows, *KINDS[kind], generator=generator)
    targets = torch.eye(4, dtype=torch.int8)[torch.arange(rows) % 4]
    if padded:
        signals = torch.cat([signals, signals[:padded]])
        targets = torch.cat([targets, targets[:padded]])
    return Batch(np.array([*range(rows), *[-1] * padded]), signals, targets)


def mixed(batch, how, seed, step, worker):
    draws = mixture_draws(batch, how, seed, step, worker)
    found = mixing.mixed(batch.signals, batch.targets, draws, "single-label")
    return Batch(batch.rows, *found)


def shares_of(whole, world, padded):
    """The shares of workers; the last ones are padded."""
    length = (len(whole.rows) + padded) // world
    full = batch_of(rows=len(whole.rows), padded=padded)
    return [
        Batch(full.rows[s], full.signals[s], full.targets[s])
        for s in (slice(rank * length, (rank + 1) * length) for rank in range(world))
    ]


@pytest.mark.parametrize("kind", KINDS)
@BY_HOW
def test_each_example_is_mixed_as_numpy_does(kind, how):
    given = batch_of(kind)
    seen = set()
    for step in range(6):
        found = mixed(given, how, 5, step, Worker())
        generator = np.random.default_rng([AUGMENTATION, 5, step, 8])
        cut = bool(how.cutmix) and (not how.mixup or generator.random() < 0.5)
        seen.add(cut)
        alpha = how.cutmix if cut else how.mixup
        partners = generator.permutation(11)
        shares = generator.beta(alpha, alpha, 11).astype(np.float32)
        places = generator.random((11, 3), np.float32)
        signals, targets = given.signals.numpy(), given.targets.numpy().astype(np.float64)
        for i, (j, share) in enumerate(zip(partners, shares, strict=True)):
            if cut:
                extents, expected = signals.shape[2:], signals[i].copy()
                edge = np.float32(1 - share) ** np.float32(1 / len(extents))
                edges = [round(float(np.float32(extent) * edge)) for extent in extents]
                starts = [int(p * (e - n + 1)) for p, e, n in zip(places[i], extents, edges)]  # noqa: B905
                area = (slice(None), *(slice(s, s + n) for s, n in zip(starts, edges, strict=True)))
                expected[area] = signals[j][area]
                share = 1 - np.prod(edges) / np.prod(extents)
            else:
                expected = share * signals[i] + (1 - share) * signals[j]
            np.testing.assert_allclose(found.signals[i], expected, atol=1e-5)
            expected = share * targets[i] + (1 - share) * targets[j]
            np.testing.assert_allclose(found.targets[i], expected, atol=1e-5)
    assert seen == ({False, True} if how.mixup and how.cutmix else {bool(how.cutmix)})


@BY_HOW
@pytest.mark.parametrize(("world", "padded"), [(2, 1), (3, 1), (4, 1)])
def test_any_number_of_workers_mixes_the_same(how, world, padded, monkeypatch):
    whole = batch_of()
    alone = mixed(whole, how, 1, 2, Worker())
    shares, gathered = shares_of(whole, world, padded), {}
    for name in ("signals", "targets", "weights"):
        every = torch.cat([getattr(share, name) for share in shares])
        gathered |= {id(getattr(share, name)): every for share in shares if name != "weights"}
        gathered[name] = every
    monkeypatch.setattr(mixing, "alone", lambda: False)
    monkeypatch.setattr(mixing, "gather", lambda x: gathered.get(id(x), gathered["weights"]))
    parts = [mixed(s, how, 1, 2, Worker(r, world)) for r, s in enumerate(shares)]
    assert torch.equal(torch.cat([p.signals for p in parts])[:11], alone.signals)
    assert torch.equal(torch.cat([p.targets for p in parts])[:11], alone.targets)
    padding = torch.cat([p.signals for p in parts])[11:]
    assert torch.equal(padding, shares[-1].signals[-padded:])  # as it was


@BY_HOW
def test_padded_examples_are_nobodys_partners(how):
    real = np.array([True, True, False, True, True, True, False, False])
    for step in range(50):
        drawn = drawn_mixtures(real, how, 0, step)
        assert set(drawn.partners[real]) == set(np.flatnonzero(real))
        assert (drawn.partners[~real] == np.flatnonzero(~real)).all()
        assert (drawn.shares[~real] == 1).all()
    alone = drawn_mixtures(np.array([True]), how, 0, 0)
    assert alone.partners.tolist() == [0]


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_shares_are_those_of_the_beta_distribution(alpha):
    how = AugmentationSettings(mixup=alpha)
    shares = drawn_mixtures(np.ones(4000, bool), how, 0, 0).shares
    assert stats.kstest(shares, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


def test_unknown_labels_stay_unknown():
    shares = torch.tensor([0.25, 0.25])
    own = torch.tensor([[1, 0, -1], [1, -1, 0]], dtype=torch.int8)
    other = torch.tensor([[0, 0, 1], [-1, 1, 1]], dtype=torch.int8)
    found = mixed_targets(own, other, shares, "multi-label")
    assert found.tolist() == [[0.25, 0, -1], [-1, -1, 0.75]]
    own = torch.tensor([[0, 1], [0, 0]], dtype=torch.int8)  # the second is of no class
    other = torch.tensor([[1, 0], [1, 0]], dtype=torch.int8)
    assert mixed_targets(own, other, shares, "single-label").tolist() == [[0.75, 0.25], [-1, -1]]


def test_without_strength_a_batch_is_as_it_was():
    assert mixture_draws(batch_of(), AugmentationSettings(), 0, 0, Worker()) == {}


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("task", ["single-label", "ordinal", "multi-label"])
def test_the_loss_of_a_mixture_is_the_mixture_of_losses(task, smoothing):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float32)
    own = torch.eye(4, dtype=torch.int8)[torch.arange(6) % 4]
    other = torch.eye(4, dtype=torch.int8)[torch.tensor([2, 1, 3, 3, 0, 1])]
    shares = torch.rand(6, generator=generator)
    targets = mixed_targets(own, other, shares, task)
    found = classification_loss(logits, targets, task, smoothing)
    one, two = (classification_loss(logits, t, task, smoothing) for t in (own, other))
    torch.testing.assert_close(found, shares * one + (1 - shares) * two, atol=1e-5, rtol=1e-5)


def test_whole_targets_have_the_loss_of_labels_and_unknown_ones_none():
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.tensor([[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.int8)
    soft = torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0], [-1, -1, -1, -1]])
    one, two = (classification_loss(logits, t, "single-label", 0.1) for t in (targets, soft))
    torch.testing.assert_close(one, two)
    two[2].backward()
    assert not logits.grad.any()


@pytest.mark.slow
@pytest.mark.parametrize("name", HOW)
def test_a_resumed_run_mixes_the_same(source, make_settings, recorder, interrupted, tmp_path, name):
    how = {key: getattr(HOW[name], key) for key in ("mixup", "cutmix")}
    base = ("transfer.mode=finetune", "execution.checkpoint_seconds=0")
    settings = make_settings(*base, *(f"transfer.augmentation.{k}={v}" for k, v in how.items()))
    lines = {}
    for folder, stops in (("whole", [None]), ("broken", [2, None])):
        (tmp_path / folder).mkdir()
        for stop_at in stops:
            reporter = recorder(stop_at)
            try:
                transfer(TransferJob(settings, source.path, tmp_path / folder), Worker(), reporter)
            except interrupted:
                assert stop_at == 2
        lines[folder] = reporter.lines
    assert lines["broken"] == lines["whole"][1:]
    one, other = (load_file(tmp_path / folder / MODEL) for folder in lines)
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.ray
@pytest.mark.slow
def test_two_workers_compute_what_one_does(source, make_settings, tmp_path, ray_cluster):
    found = {}
    for workers in (1, 2):
        folder = tmp_path / f"by{workers}"
        folder.mkdir()
        settings = make_settings(
            "transfer.mode=finetune",
            "transfer.batch_size=15",  # odd, as is the last batch: shares are padded
            "transfer.epochs=2",
            "transfer.averaging=0.9",
            "transfer.class_balance=0.5",
            "transfer.augmentation={mixup: 0.5, cutmix: 0.5, noise: 0.2, lead_dropout: 0.2}",
            f"execution.workers={workers}",
        )
        launch(TransferJob(settings, source.path, folder))
        found[workers] = [line["loss"] for line in read_metrics(folder)], load_file(folder / MODEL)
    assert found[1][0] == pytest.approx(found[2][0], abs=2e-5)
    for name, value in found[1][1].items():
        assert (found[2][1][name] - value).abs().mean() < 1e-4, name
