"""Augmentation: what was there before keeps its results, and all else follows slow formulas."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from kinds import MODALITIES, SIGNALS
from scipy import ndimage, stats

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.augmentation import augmented, changes, require_applicable
from benchmd_ray.training.augmentation.changes import (
    block,
    blurred,
    by_change,
    drawn_numbers,
    flipped,
    masked,
    noisy,
    normal,
    scaled,
    shifted,
    transformed,
    wandering,
    without_leads,
)
from benchmd_ray.training.collect import evaluated
from benchmd_ray.training.seeds import AUGMENTATION

KINDS = {"time": (3, 40), "image": (2, 14, 28), "volume": (1, 7, 14, 14)}
ALL = ("shift", "intensity", "noise", "masking")
MIXED = ("mixup", "cutmix")
OF_SPACE, OF_TIME = ("flip", "affine", "blur"), ("lead_dropout", "wander")


def batch(kind="image", rows=6, seed=0):
    return torch.randn(rows, *KINDS[kind], generator=torch.Generator().manual_seed(seed))


def drawn(rows, numbers, seed=0):
    return torch.rand(rows, numbers, generator=torch.Generator().manual_seed(seed))


def names_of(kind):
    return (*ALL, *(OF_TIME if kind == "time" else OF_SPACE))


def before(signals, name, seed, step, worker):
    """What the setting was before it had strengths: none, flip, shift, flip+shift or shape."""
    columns = {"none": 0, "flip": 3, "shift": 3, "flip+shift": 6, "shape": 1}[name]
    share = len(signals)
    numbers = np.random.default_rng([AUGMENTATION, seed, step]).random(
        (share * worker.world, columns), np.float32
    )
    found = []
    for signal, own in zip(signals.numpy(), numbers[worker.rank * share :][:share], strict=True):
        extents = signal.shape[1:]
        if "flip" in name:
            for axis in range(len(extents)):
                signal = np.flip(signal, axis + 1) if own[axis] < 0.5 else signal
            own = own[3:]
        if "shift" in name:
            for axis, extent in enumerate(extents):
                most = extent // 7
                by = int(own[axis] * (2 * most + 1)) - most
                around = [(most * (a == axis + 1),) * 2 for a in range(signal.ndim)]
                padded = np.pad(signal, around, "edge")
                signal = padded.take(range(most - by, most - by + extent), axis + 1)
        found.append(signal * own[0] if name == "shape" else signal)
    return torch.from_numpy(np.stack(found))


MEANT = {
    "none": {},
    "flip": {"flip": 1.0},
    "shift": {"shift": 1 / 7},
    "flip+shift": {"flip": 1.0, "shift": 1 / 7},
    "shape": {"shape": True},
}


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 65), (1, 28, 28, 28), (2, 7, 20, 13)])
@pytest.mark.parametrize("name", MEANT)
def test_what_was_there_before_has_the_bits_of_before(name, shape):
    signals = torch.randn(9, *shape, generator=torch.Generator().manual_seed(1))
    how = AugmentationSettings(**MEANT[name])
    for seed, step, worker in ((0, 0, Worker()), (5, 77, Worker()), (5, 77, Worker(1, 3))):
        found = augmented(signals, how, seed, step, worker)
        assert torch.equal(found, before(signals, name, seed, step, worker))


@pytest.mark.parametrize("extent", [7, 8, 14, 20, 28, 64, 128, 224, 256, 993])
def test_a_seventh_with_three_digits_shifts_as_far_as_a_seventh(extent):
    signals, numbers = torch.arange(float(extent)).expand(50, 1, -1), drawn(50, 3)
    assert torch.equal(shifted(signals, numbers, 1 / 7), shifted(signals, numbers, 0.143))


def test_half_a_strength_flips_half_as_often():
    signals = torch.tensor([0.0, 1.0]).expand(4000, 1, 2)
    for strength in (0.5, 1.0):
        share = flipped(signals, drawn(4000, 3), strength)[:, 0, 0].mean().item()
        assert share == pytest.approx(strength / 2, abs=0.04)


def test_extremes_of_a_shift_stay_within():
    signals = torch.arange(10.0).expand(2, 1, -1)
    numbers = torch.tensor([[0.0] * 3, [float(np.nextafter(np.float32(1), np.float32(0)))] * 3])
    left, right = shifted(signals, numbers, 0.2)
    assert left.tolist() == [[2, 3, 4, 5, 6, 7, 8, 9, 9, 9]]
    assert right.tolist() == [[0, 0, 0, 1, 2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_changed_at_the_strength_0(kind):
    signals = batch(kind)
    assert augmented(signals, AugmentationSettings(), 0, 0, Worker()) is signals
    for name in names_of(kind):
        how = AugmentationSettings(**{name: 1e-9})
        near = augmented(signals, how, 0, 0, Worker())
        torch.testing.assert_close(near, signals, atol=2e-5, rtol=0, msg=name)
        far = augmented(signals, AugmentationSettings(**{name: 1.0}), 0, 0, Worker())
        assert (far - signals).abs().mean() > 0.02, name
        assert torch.isfinite(far).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("together", [False, True])
def test_any_number_of_workers_sees_the_same(kind, together):
    names, signals = names_of(kind), batch(kind, 12)
    for some in [names] if together else [(name,) for name in names]:
        how = AugmentationSettings(**dict.fromkeys(some, 0.7), shape=together)
        alone = augmented(signals, how, 3, 5, Worker())
        for world in (2, 3):
            parts = [
                augmented(part, how, 3, 5, Worker(rank, world))
                for rank, part in enumerate(signals.chunk(world))
            ]
            torch.testing.assert_close(torch.cat(parts), alone, atol=1e-6, rtol=1e-5)
        padded = augmented(torch.cat([signals, signals[:2]]), how, 3, 5, Worker())
        torch.testing.assert_close(padded[:12], alone, atol=1e-6, rtol=1e-5)
        assert torch.equal(augmented(signals, how, 3, 5, Worker()), alone)
        for other in ((4, 5), (3, 6)):
            assert not torch.equal(augmented(signals, how, *other, Worker()), alone)


def test_each_change_has_draws_of_its_own():
    """A stream of each but the first three, whatever else is enabled."""
    streams = ("affine", "blur", "intensity", "noise", "masking", "lead_dropout", "wander")
    widths = dict(zip(streams, (4, 1, 2, 3, 4, 5, 11), strict=True))
    how = AugmentationSettings(**dict.fromkeys(streams, 0.5), flip=1, shift=1, shape=True)
    signals = torch.zeros(4, 5, 8)
    numbers = by_change(drawn_numbers(how, signals, 3, 7, Worker(1, 2)), how, 5)
    assert list(numbers) == ["flip", "shift", "shape", *streams]
    for number, name in enumerate(streams, 1):
        rows = np.random.default_rng([AUGMENTATION, 3, 7, number]).random(
            (8, widths[name]), np.float32
        )
        assert torch.equal(numbers[name], torch.from_numpy(rows[4:]))
    together = torch.cat([numbers[name] for name in ("flip", "shift", "shape")], dim=1)
    rows = np.random.default_rng([AUGMENTATION, 3, 7]).random((8, 7), np.float32)
    assert torch.equal(together, torch.from_numpy(rows[4:]))


def test_normal_values_are_normal_and_independent():
    values = normal(torch.Size([40, 3, 1001]), drawn(40, 2)).numpy()
    flat = values.reshape(40, -1)
    assert stats.kstest(flat.ravel(), "norm").pvalue > 1e-3
    assert abs(flat.mean()) < 0.01
    assert abs(np.corrcoef(flat) - np.eye(40)).max() < 0.1
    lags = [np.corrcoef(flat[:, :-lag].ravel(), flat[:, lag:].ravel())[0, 1] for lag in (1, 2, 501)]
    halves = np.corrcoef(flat[:, :1501].ravel(), flat[:, 1501:3002].ravel())[0, 1]
    assert max(map(abs, (*lags, halves))) < 0.02
    assert len(np.unique(flat)) > 0.95 * flat.size


def test_noise_has_the_spread_that_is_drawn():
    signals = 5 * batch("time", 200)[:, :1].repeat(1, 1, 50)
    numbers = drawn(200, 3)
    added = (noisy(signals, numbers, 0.4) - signals).flatten(1)
    wanted = 0.4 * numbers[:, 0] * signals.flatten(1).std(dim=1, correction=0)
    assert ((added.std(dim=1) - wanted).abs() <= 0.1 * wanted).all()


@pytest.mark.parametrize("kind", KINDS)
def test_intensity_is_a_factor_about_the_means_and_an_offset(kind):
    signals, numbers = batch(kind).double(), drawn(6, 2).double()
    found = scaled(signals, numbers, 0.8)
    for x, (a, b), y in zip(signals.numpy(), numbers.numpy(), found.numpy(), strict=True):
        centre = np.stack([np.full_like(c, c.mean()) for c in x])
        expected = centre + (x - centre) * (1 + 0.8 * (a - 0.5)) + 0.8 * (b - 0.5) * x.std()
        np.testing.assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_has_its_share_and_lies_within(kind):
    signals, numbers = batch(kind, 400), drawn(400, 4)
    shares = 0.6 * numbers[:, 0]
    inside = block(signals, shares, numbers[:, 1:]).numpy()
    extents = signals.shape[2:]
    for x, share, places in zip(inside, shares.numpy(), numbers[:, 1:].numpy(), strict=True):
        expected = np.zeros(extents, bool)
        edges = [round(float(e * share ** (1 / len(extents)))) for e in extents]
        free = [extent - edge for extent, edge in zip(extents, edges, strict=True)]
        starts = [math.floor(p * (f + 1)) for p, f in zip(places[: len(free)], free, strict=True)]
        expected[tuple(slice(s, s + n) for s, n in zip(starts, edges, strict=True))] = True
        np.testing.assert_array_equal(x[0], expected)
    found = masked(signals, numbers, 0.6)
    outside = np.broadcast_to(~inside, signals.shape)
    np.testing.assert_array_equal(found.numpy()[outside], signals.numpy()[outside])
    x, y = signals[3].numpy(), found[3].numpy()
    for before_, after in zip(x, y, strict=True):
        np.testing.assert_allclose(after[inside[3, 0]], before_.mean(), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_counts_for_nothing_and_stays_0(kind):
    """Where it is added at the end of the last axis, the rest is changed as without it."""
    signals, numbers = batch(kind) + 3, drawn(6, 3)
    padded = torch.nn.functional.pad(signals, (0, 30))
    inside = slice(0, signals.shape[-1])
    found = scaled(padded, numbers[:, :2], 0.8)[..., inside]
    torch.testing.assert_close(found, scaled(signals, numbers[:, :2], 0.8))
    torch.testing.assert_close(changes.means(padded), changes.means(signals))
    torch.testing.assert_close(changes.spread(padded), changes.spread(signals))
    for name in (*ALL[1:], *(OF_TIME if kind == "time" else ("blur",))):
        how = AugmentationSettings(**{name: 0.9})
        draws = by_change(drawn_numbers(how, padded, 3, 7, Worker()), how, padded.shape[1])
        changed = changes.altered(padded, how, draws)
        assert not changed[..., signals.shape[-1] :].any(), name
        assert (changed[..., inside] != signals).any(), name


def test_a_whole_block_and_none():
    signals = batch("image", 2)
    inside = block(signals, torch.tensor([0.0, 1.0]), torch.full((2, 3), 0.999999))
    assert not inside[0].any()
    assert inside[1].all()


@pytest.mark.parametrize("kind", ["image", "volume"])
def test_blur_is_that_of_scipy(kind):
    signals, numbers = batch(kind).double(), drawn(6, 1).double()
    numbers[0] = 0
    found = blurred(signals, numbers, 0.75).numpy()
    for x, (number,), y in zip(signals.numpy(), numbers.numpy(), found, strict=True):
        for channel, own in zip(x, y, strict=True):
            deviation = 2 * 0.75 * number
            expected = channel
            if deviation:
                expected = ndimage.gaussian_filter(channel, deviation, mode="nearest", radius=5)
            np.testing.assert_allclose(own, expected, atol=1e-9)


def matrix_of(numbers, strength, extents):
    """From a place of the result to that of the signal, along the axes as they are stored."""
    axes = len(extents)
    pairs = [(0, 1)] if axes == 2 else [(0, 1), (0, 2), (1, 2)]
    matrix = np.eye(axes)  # of x, y (and z)
    reverse = extents[::-1]
    for (a, b), number in zip(pairs, numbers[: len(pairs)], strict=True):
        thin = min(reverse[a], reverse[b]) / max(reverse[a], reverse[b])
        angle = strength * (2 * number - 1) * np.radians(30) * thin
        turn = np.eye(axes)
        turn[a, a] = turn[b, b] = np.cos(angle)
        turn[a, b], turn[b, a] = -np.sin(angle), np.sin(angle)
        matrix = matrix @ turn
    return (matrix * 1.5 ** -(strength * (2 * numbers[-1] - 1)))[::-1, ::-1]


@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("kind", ["image", "volume"])
def test_rotation_and_scaling_are_those_of_scipy(kind, nearest):
    signals, numbers = batch(kind), drawn(6, 4)
    found = transformed(signals, numbers, 0.9, nearest=nearest).numpy()
    wrong = 0
    for x, own, y in zip(signals.numpy(), numbers.double().numpy(), found, strict=True):
        extents = x.shape[1:]
        matrix, centre = matrix_of(own, 0.9, extents), (np.array(extents) - 1) / 2
        for channel, result in zip(x, y, strict=True):
            offset = centre - matrix @ centre
            expected = ndimage.affine_transform(
                channel, matrix, offset, order=0 if nearest else 1, mode="nearest"
            )
            wrong += (np.abs(result - expected) > 1e-3).sum()
    assert wrong <= (0.01 if nearest else 0) * found.size  # a place half between two is either's


def test_leads_are_lost_but_one():
    signals, numbers = batch("time", 300), drawn(300, 3)
    found = without_leads(signals, numbers, 0.4).numpy()
    for x, own, y in zip(signals.numpy(), numbers.numpy(), found, strict=True):
        for lead in range(3):
            lost = own[lead] < 0.4 and lead != own.argmax()
            expected = np.full_like(x[lead], x[lead].mean()) if lost else x[lead]
            np.testing.assert_allclose(y[lead], expected, atol=1e-6)
    kept = without_leads(signals, numbers, 1.0) == signals
    assert kept.all(dim=2).sum(dim=1).tolist() == [1] * 300


def test_the_baseline_wanders_slowly():
    signals, numbers = batch("time", 20).double(), drawn(20, 7).double()
    found = wandering(signals, numbers, 0.5).numpy()
    time = np.arange(40) / 40
    for x, own, y in zip(signals.numpy(), numbers.numpy(), found, strict=True):
        cycles = 0.5 * 10 ** own[0]
        assert 0.5 <= cycles <= 5
        for lead in range(3):
            wave = x.std() * np.sin(2 * np.pi * (cycles * time + own[4 + lead]))
            np.testing.assert_allclose(y[lead], x[lead] + 0.5 * own[1 + lead] * wave, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_constant_signals_stay_finite(kind):
    how = AugmentationSettings(**dict.fromkeys(names_of(kind), 1.0), shape=True)
    assert torch.isfinite(augmented(torch.zeros(4, *KINDS[kind]), how, 0, 0, Worker())).all()


def test_only_shapes_are_evaluated_otherwise():
    signals = batch()
    assert torch.equal(evaluated(lambda x: x, True)(signals), signals * 0.5)
    assert evaluated(lambda x: x, False)(signals) is signals


@pytest.mark.parametrize(
    ("name", "signal", "message"),
    [
        (
            "wander",
            "derm",
            r"wander is 0\.2, and derm has the axes channel, y, x: expected 0",
        ),
        ("lead_dropout", "ldct", r"lead_dropout is 0\.2, and ldct has the axes channel, z, y, x"),
        (
            "flip",
            "ecg",
            r"flip is 0\.2, and ecg has .*only for images and volumes.*wander",
        ),
        ("affine", "eeg", r"affine is 0\.2, and eeg"),
        ("blur", "eeg", r"blur is 0\.2, and eeg"),
    ],
)
def test_what_is_not_for_such_signals_is_refused(name, signal, message):
    with pytest.raises(BenchmdError, match=rf"transfer\.augmentation\.{message}"):
        require_applicable(
            AugmentationSettings(**{name: 0.2}), SIGNALS[signal], MODALITIES[signal].task
        )


def test_each_strength_is_for_some_signals_and_all_are_tested():
    names = {f.name for f in dataclasses.fields(AugmentationSettings)} - {"shape"}
    assert names == {*ALL, *OF_SPACE, *OF_TIME, *MIXED}
    for name, signal in SIGNALS.items():
        kind = {2: "time", 3: "image", 4: "volume"}[len(signal.axes)]
        how = AugmentationSettings(**dict.fromkeys((*names_of(kind), *MIXED), 0.5), shape=True)
        require_applicable(how, SIGNALS[name], MODALITIES[name].task)
