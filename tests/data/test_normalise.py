"""Normalisation of every modality against a slow computation, one record at a time in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kinds import MODALITIES, SIGNALS

from benchmd_ray.data.normalise import NORMALISERS, normaliser
from benchmd_ray.data.transforms import fitted
from benchmd_ray.errors import BenchmdError

STATISTICS = {
    1: {"mean": [61.5], "std": [40.25]},
    3: {"mean": [180.0, 120.5, 90.0], "std": [30.0, 45.5, 12.0]},
}
VALID = [(224, 224), (223, 101), (100, 224), (1, 7), (98, 44), (57, 2)]
"""Odd and even heights and widths."""
IMAGES = [name for name, signal in SIGNALS.items() if signal.dtype == "uint8"]
ROWS = len(VALID)


def stored(name):
    """Stored signals of random values, padding included; scales and valid sizes of each row."""
    kind = SIGNALS[name]
    generator = np.random.default_rng([len(name), ROWS])
    rows = ROWS if name != "ldct" else 2
    shape = (rows, *kind.stored_shape)
    if kind.dtype == "uint8":
        signals = generator.integers(0, 256, shape, np.uint8)
        return signals, np.ones(rows, np.float32), np.array(VALID, np.int32)
    signals = generator.integers(-2500, 2500, shape, np.int16)
    scales = np.linspace(0.03125, 2, rows, dtype=np.float32)
    return signals, scales, np.tile(np.array(kind.stored_shape[1:], np.int32), (rows, 1))


def inside(valid, side=224):
    """True within the centred valid area, pixel by pixel."""
    height, width = valid
    top, left = (side - height) // 2, (side - width) // 2
    mask = np.zeros((side, side), bool)
    for y in range(height):
        for x in range(width):
            mask[top + y, left + x] = True
    return mask


def slow(name, signal, scale, valid, statistics):
    """The protocol's formula for one record."""
    x = signal.astype(np.float64)
    if name == "ecg":
        return x / (x.max() - x.min())
    if name == "eeg":
        return (np.clip(x * scale, -125, 125) + 125) / 250
    if name == "ldct":
        return (np.clip(x * scale, -1350, 150) + 1350)[:, :, 16:-16, 16:-16] / 1500
    result = np.zeros_like(x)
    for channel, plane in enumerate(x):
        mean = statistics["mean"][channel]
        spread = 255 if name == "mammo" else statistics["std"][channel]
        result[channel][inside(valid)] = (plane[inside(valid)] - mean) / spread
    return result


def normalised(name, signals, scales, sizes):
    kind = SIGNALS[name]
    statistics = STATISTICS[kind.input_shape[0]] if name in IMAGES else None
    normalise = normaliser(kind, statistics)
    return normalise(*(torch.from_numpy(array) for array in (signals, scales, sizes)))


@pytest.mark.parametrize("name", MODALITIES)
def test_agrees_with_the_formula_record_by_record(name):
    signals, scales, sizes = stored(name)
    found = normalised(name, signals, scales, sizes)
    assert found.dtype == torch.float32
    assert found.shape == (len(signals), *SIGNALS[name].input_shape)
    statistics = STATISTICS.get(SIGNALS[name].input_shape[0])
    for row, signal in enumerate(signals):
        expected = slow(name, signal, float(scales[row]), sizes[row], statistics)
        np.testing.assert_allclose(found[row].numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("name", IMAGES)
def test_padding_is_zero_after_normalisation_whatever_was_stored_there(name):
    signals, scales, sizes = stored(name)
    found = normalised(name, signals, scales, sizes).numpy()
    for row, valid in enumerate(VALID):
        assert not found[row][:, ~inside(valid)].any()
        assert np.count_nonzero(found[row][:, inside(valid)]) > 0.98 * found.shape[1] * np.prod(
            valid
        )


@pytest.mark.parametrize("shape", [(300, 101), (101, 300), (224, 224), (50, 49), (3, 448)])
@pytest.mark.parametrize("name", IMAGES)
def test_the_padding_of_a_fitted_image_is_where_it_is_looked_for(name, shape):
    channels = SIGNALS[name].input_shape[0]
    white = np.full(shape if channels == 1 else (*shape, channels), 255, np.uint8)
    signal, valid = fitted(white, 224)
    arrays = signal[None], np.ones(1, np.float32), np.array([valid], np.int32)
    found = normalised(name, *arrays).numpy()[0]
    np.testing.assert_array_equal(found != 0, signal == 255)


def test_eeg_in_other_steps_is_the_same_and_clips_at_125_microvolts():
    microvolts = np.zeros((1, 2, 3750))
    microvolts[0, :, :7] = [-4000, -125, -62.5, 0, 62.5, 125, 4000]
    found = []
    for scale in (0.125, 0.5):
        steps = (microvolts / scale).astype(np.int16)
        found.append(normalised("eeg", steps, np.float32([scale]), np.array([[3750]])))
    assert torch.equal(*found)
    assert found[0][0, 1, :7].tolist() == [0, 0, 0.25, 0.5, 0.75, 1, 1]


def test_ct_keeps_the_centre_of_each_slice_in_the_lung_window():
    slices = np.full((1, 1, 24, 256, 256), -1350, np.int16)
    slices[0, 0, 5, 16, 16], slices[0, 0, 5, 239, 239] = 150, 3000  # the corners of the centre
    slices[0, 0, 5, 15, 16] = slices[0, 0, 5, 239, 240] = 150  # beside them
    slices[0, 0, 7, 128, 128], slices[0, 0, 7, 128, 129] = -600, -3000
    found = normalised("ldct", slices, np.ones(1, np.float32), np.array([[24, 256, 256]]))
    assert (found[0, 0, 5, 0, 0], found[0, 0, 5, 223, 223]) == (1, 1)
    assert found[0, 0, 7, 112, 112:114].tolist() == [0.5, 0]
    assert float(found.sum()) == 2.5


@pytest.mark.parametrize("name", MODALITIES)
def test_statistics_are_demanded_where_they_are_used(name):
    kind = SIGNALS[name]
    constant = {"mean": [3.0] * kind.input_shape[0], "std": [0.0] * kind.input_shape[0]}
    if not NORMALISERS[kind.normaliser].by_statistics:
        assert name in ("ecg", "eeg", "ldct")
        normaliser(kind, None)
        normaliser(kind, constant)
        return
    for statistics in (None, constant):
        with pytest.raises(BenchmdError, match=rf"signals of {name} are normalised by the mean"):
            normaliser(kind, statistics)


@pytest.mark.parametrize("name", [name for name in IMAGES if name != "mammo"])
def test_a_split_standardised_by_its_own_statistics_has_mean_0_and_deviation_1(name):
    signals, scales, _ = stored(name)
    axes = (0, 2, 3)
    own = {"mean": signals.mean(axis=axes).tolist(), "std": signals.std(axis=axes).tolist()}
    whole = np.full((ROWS, 2), 224, np.int32)
    arrays = (torch.from_numpy(array) for array in (signals, scales, whole))
    found = normaliser(SIGNALS[name], own)(*arrays).numpy()
    np.testing.assert_allclose(found.mean(axis=axes), 0, atol=1e-4)
    np.testing.assert_allclose(found.std(axis=axes), 1, atol=1e-4)
