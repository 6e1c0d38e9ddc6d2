"""Random kernels against their definition in loops."""

from itertools import product

import numpy as np
import pytest
import torch

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models import random_kernels
from benchmd_ray.models.encoder import make_encoder, values_held
from benchmd_ray.models.networks import RANDOM_KERNELS
from benchmd_ray.models.random_kernels import Group
from benchmd_ray.settings.definition import EncoderSettings
from benchmd_ray.training.collect import evaluation_batch

SHAPES = {"time": (3, 60), "image": (2, 18, 25), "volume": (1, 7, 9, 12)}


def signal(shape):
    axes = ("channel", *(("time",), ("y", "x"), ("z", "y", "x"))[len(shape) - 2])
    patch, over_time = (1,) * (len(shape) - 1), len(shape) == 2
    dtype, rate = ("int16", 100) if over_time else ("uint8", None)
    return Signal("made", axes, shape, shape, dtype, "mV", patch, "none", rate=rate)


def kernels_of(shape, seed=0, **options):
    torch.manual_seed(seed)
    return make_encoder(signal(shape), EncoderSettings(network=RANDOM_KERNELS, options=options))


def fitted(shape, seed=0, **options):
    network = kernels_of(shape, seed, **options)
    network.fit(draws(shape), torch.Generator().manual_seed(seed))
    return network


def draws(shape, records=5, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(records, *shape))).float()


def outputs_in_loops(record, kernel, group, stride):
    """A kernel at each place, one product at a time; outside of the signal there are zeros."""
    axes = kernel.ndim - 1
    pads = [(group.extent - 1) * d // 2 * group.is_padded for d in group.dilation]
    padded = np.pad(record, [(0, 0), *((pad, pad) for pad in pads)])
    reach = [(group.extent - 1) * d for d in group.dilation]
    places = [range(0, padded.shape[1 + a] - reach[a], stride[a]) for a in range(axes)]
    outputs = []
    for place in product(*places):
        total = 0.0
        for offset in product(range(group.extent), repeat=axes):
            at = tuple(p + o * d for p, o, d in zip(place, offset, group.dilation, strict=True))
            total += float(kernel[(slice(None), *offset)] @ padded[(slice(None), *at)])
        outputs.append(total)
    return np.array(outputs)


def all_kernels(network):
    for number, group in enumerate(network.groups):
        for kernel in getattr(network, f"kernels_{number}").numpy():
            yield group, kernel


@pytest.mark.parametrize("kind", SHAPES)
def test_features_are_shares_above_the_biases_and_largest_outputs(kind, monkeypatch):
    monkeypatch.setattr(
        random_kernels, "POSITIONS", {1: 25, 2: 9, 3: 4}
    )  # so that there is a stride
    shape = SHAPES[kind]
    network = fitted(shape, kernels=20, biases=3)
    assert max(network.stride) > 1
    record = draws(shape, seed=1).numpy()[0]
    outputs = [
        outputs_in_loops(record.astype(float), kernel.astype(float), group, network.stride)
        for group, kernel in all_kernels(network)
    ]
    biases = network.biases.double().numpy()
    shares = [
        (values[None] > bias[:, None]).mean(axis=1)
        for values, bias in zip(outputs, biases, strict=True)
    ]
    expected = np.concatenate([*shares, [values.max() for values in outputs]])
    features = network(torch.from_numpy(record)[None])[0].numpy()
    assert features.shape == (network.width,) == (80,)
    np.testing.assert_allclose(features, expected, atol=1e-5)


@pytest.mark.slow  # of a volume
@pytest.mark.parametrize("kind", SHAPES)
def test_a_bias_is_a_quantile_of_the_outputs_on_one_training_record(kind):
    shape = SHAPES[kind]
    network, records = fitted(shape, kernels=12, biases=2), draws(shape).numpy().astype(float)
    for (group, kernel), biases in zip(all_kernels(network), network.biases.numpy(), strict=True):
        of_records = [
            outputs_in_loops(record, kernel.astype(float), group, network.stride)
            for record in records
        ]
        assert any(
            all(np.abs(outputs - bias).min() < 1e-5 for bias in biases) for outputs in of_records
        )


def test_weights_have_zero_mean_over_the_extent_and_a_drawn_number_of_channels():
    network = kernels_of((12, 100), kernels=400)
    used = []
    for _, kernel in all_kernels(network):
        np.testing.assert_allclose(kernel.mean(axis=1), 0, atol=1e-6)
        used.append((np.abs(kernel) > 0).any(axis=1).sum())
    counts = np.bincount(used, minlength=13)
    assert counts[0] == 0
    # 2^u with u uniform: the chance of n channels is log((n + 1) / n) / log(13)
    expected = [np.log2((n + 1) / n) / np.log2(13) * 400 for n in range(1, 13)]
    assert np.abs(counts[1:] - expected).max() < 4 * np.sqrt(max(expected))


@pytest.mark.parametrize("kind", SHAPES)
def test_features_do_not_depend_on_block_or_batch(kind, monkeypatch):
    shape = SHAPES[kind]
    network, records = fitted(shape, kernels=50), draws(shape, 4, seed=2)
    whole = network(records)
    monkeypatch.setattr(random_kernels, "BLOCK", 3)
    torch.testing.assert_close(network(records), whole)
    one_by_one = torch.cat([network(record[None]) for record in records])
    torch.testing.assert_close(one_by_one, whole)


def test_a_seed_gives_the_same_kernels_and_another_others_of_the_same_shapes():
    first, again, other = (fitted(SHAPES["image"], seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert {n: v.shape for n, v in first.items()} == {n: v.shape for n, v in other.items()}
    assert not torch.equal(first["kernels_0"], other["kernels_0"])


def test_standardised_features_have_mean_zero_and_deviation_one_where_they_vary():
    network = fitted(SHAPES["time"], kernels=30)
    records = draws(SHAPES["time"], 40, seed=3)
    network.standardise(network(records))
    features = network(records)
    torch.testing.assert_close(features.mean(dim=0), torch.zeros(network.width), atol=1e-4, rtol=0)
    deviation = features.std(dim=0)
    varying = deviation > 1e-3
    assert varying.float().mean() > 0.9
    torch.testing.assert_close(
        deviation[varying], torch.ones(int(varying.sum())), atol=1e-3, rtol=0
    )


def test_the_largest_dilation_reaches_along_each_axis():
    groups = kernels_of((1, 24, 90, 200), kernels=200).groups
    widest = max(groups, key=lambda group: group.dilation)
    reach = [(widest.extent - 1) * step for step in widest.dilation]
    assert all(n - widest.extent < r <= n - 1 for r, n in zip(reach, (24, 90, 200), strict=True))
    assert min(groups, key=lambda group: group.dilation).dilation == (1, 1, 1)
    assert sum(groups.values()) == 200
    assert isinstance(widest, Group)


@pytest.mark.parametrize("shape", [(12, 1000), (1, 224, 224), (1, 24, 224, 224)])
def test_what_is_in_memory_does_not_grow_with_the_number_of_kernels(shape):
    with torch.device("meta"):
        few, many = (kernels_of(shape, kernels=number) for number in (100, 10_000))
    assert values_held(many) == max(values_held(few), many.width)
    assert evaluation_batch(many) * values_held(many) <= 2**26


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((12, 6), {}, r"at least 7 values along each axis, and the signal is of 6"),
        ((1, 2, 30, 30), {}, r"at least 3 values along each axis.*2 × 30 × 30"),
        ((1, 30), {"kernels": 0}, r"encoder\.options\.kernels is 0"),
        ((1, 30), {"kernel": 5}, r"kernels"),
    ],
)
def test_what_cannot_be_is_refused(shape, options, message):
    with pytest.raises(BenchmdError, match=message):
        kernels_of(shape, **options)
