"""Faults made from stored signals: what they change, and what they must not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmd_ray.benchmarks.ood.faults import Recorded, faults_of, made
from benchmd_ray.data.cards import cards
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modalities import modalities, modality
from benchmd_ray.signals import valid_area

ECG, EEG, CXR, DERM, CT = (modality(n).signal for n in ("ecg", "eeg", "cxr", "derm", "ldct"))


def record(signal, seed=0, valid=None):
    """A smooth signal in the range of its kind, padded where it is not valid."""
    rng = np.random.default_rng(seed)
    shape = signal.stored_shape
    grids = np.meshgrid(*(np.linspace(0, 1, n) for n in shape[1:]), indexing="ij")
    phases = rng.uniform(0, 6, shape[0])
    wave = np.stack([np.sin(9 * sum((k + 1) * g for k, g in enumerate(grids)) + p) for p in phases])
    if signal.dtype == "uint8":
        values = np.round(127 + 90 * wave + rng.normal(0, 5, shape)).clip(0, 255)
    elif signal.unit == "HU":
        values = np.round(-700 + 600 * wave + rng.normal(0, 20, shape))
    else:
        values = np.round(900 * wave + rng.normal(0, 40, shape))
    size = valid or shape[1:]
    whole = np.zeros(shape, np.float32)
    area = (slice(None), *valid_area(shape[1:], size))
    whole[area] = values[area]
    step = {"mV": 0.001, "µV": 0.1}.get(signal.unit, 1.0)
    return Recorded(whole, step, tuple(size), signal)


def seen(signal, values, step, size):
    statistics = {"mean": [100.0] * signal.stored_shape[0], "std": [50.0] * signal.stored_shape[0]}
    work = normaliser(signal, statistics)
    given = torch.from_numpy(values)[None], torch.tensor([step]), torch.tensor([list(size)])
    return work(*given).numpy()


def all_signals():
    found = {kind.signal for kind in modalities().values()}
    found |= {card.signal for card in cards().values() if "mnist" in card.name}
    return sorted(found, key=str)


@pytest.mark.parametrize("signal", all_signals(), ids=lambda s: f"{s.name}{s.stored_shape}")
def test_every_fault_fits_every_signal_that_it_claims(signal):
    if np.prod(signal.stored_shape) > 2e5:
        severities = 1
    else:
        severities = 3
    own = record(signal)
    for fault in faults_of(signal).values():
        for severity in fault.severities[-severities:]:
            values = made(own, fault, severity, "r", 0)
            assert values.shape == signal.stored_shape
            assert values.dtype == np.float32
            assert np.isfinite(values).all()
            if signal.dtype == "uint8":
                assert values.min() >= 0
                assert values.max() <= 255
                np.testing.assert_array_equal(values, np.round(values))
            assert (values != own.values).any(), fault.name


@pytest.mark.parametrize(
    ("signal", "valid"),
    [(ECG, (4000,)), (EEG, (3000,)), (CXR, (180, 200)), (DERM, (150, 224)), (CT, (16, 256, 256))],
    ids=["ecg", "eeg", "cxr", "derm", "ldct"],
)
def test_padding_stays_as_it_is(signal, valid):
    own = record(signal, valid=valid)
    padding = np.ones(signal.stored_shape, bool)
    padding[(slice(None), *valid_area(signal.stored_shape[1:], valid))] = False
    for fault in faults_of(signal).values():
        values = made(own, fault, fault.severities[-1], "r", 0)
        assert (values[padding] == 0).all(), fault.name


@pytest.mark.parametrize("signal", [ECG, EEG, CXR, DERM], ids=lambda s: s.name)
def test_faults_are_functions_of_record_fault_severity_and_seed(signal):
    """Fault F16: nothing is drawn from a global generator."""
    own = record(signal)
    for fault in faults_of(signal).values():
        first = made(own, fault, fault.severities[-1], "r", 0)
        np.random.seed(1)
        np.testing.assert_array_equal(first, made(own, fault, fault.severities[-1], "r", 0))
    noise = faults_of(signal)["white-noise"]
    for other in (("s", 0), ("r", 1)):
        assert (made(own, noise, 1, *other) != made(own, noise, 1, "r", 0)).any()


@pytest.mark.parametrize("signal", [ECG, EEG, CXR, DERM], ids=lambda s: s.name)
def test_more_severe_is_further_away(signal):
    apart = ("chest-swap", "wrong-rate", "off-centre")  # other leads, other phases
    for fault in faults_of(signal).values():
        if len(fault.severities) < 3 or fault.name in apart:
            continue
        far = np.zeros(3)
        for seed in range(4):
            own = record(signal, seed)
            for severity in fault.severities:
                values = made(own, fault, severity, str(seed), 0)
                far[severity - 1] += np.sqrt(((values - own.values) ** 2).mean())
        assert (np.diff(far) > 0).all(), (fault.name, far)


@pytest.mark.parametrize("signal", [ECG, CT], ids=lambda s: s.name)
def test_the_normalisation_removes_a_negative_control_exactly(signal):
    own = record(signal)
    controls = [fault for fault in faults_of(signal).values() if fault.control]
    assert len(controls) == 1
    values = made(own, controls[0], 1, "r", 0)
    assert (values != own.values).any()
    before, after = (seen(signal, v, own.step, own.valid_size) for v in (own.values, values))
    np.testing.assert_array_equal(before, after)


def test_exchanged_arms_keep_einthovens_law():
    rng = np.random.default_rng(0)
    left, right, foot = rng.normal(size=(3, 5000)).astype(np.float32) * 500
    values = np.zeros((12, 5000), np.float32)
    values[0], values[1], values[2] = left - right, foot - right, foot - left
    values[3] = right - (left + foot) / 2
    values[4], values[5] = left - (right + foot) / 2, foot - (left + right) / 2
    own = Recorded(values, 0.001, (5000,), ECG)
    swapped = made(own, faults_of(ECG)["arm-reversal"], 1, "r", 0)
    expected = values.copy()
    expected[0], expected[1], expected[2] = right - left, foot - left, foot - right
    expected[3], expected[4] = left - (right + foot) / 2, right - (left + foot) / 2
    np.testing.assert_allclose(swapped, expected, rtol=1e-6, atol=1e-3)
    np.testing.assert_allclose(swapped[0] + swapped[2], swapped[1], atol=1e-2)


def test_chest_electrodes_are_exchanged_and_in_the_end_all_reversed():
    own = record(ECG)
    fault = faults_of(ECG)["chest-swap"]
    first, last = made(own, fault, 1, "r", 0), made(own, fault, 3, "r", 0)
    np.testing.assert_array_equal(first[[7, 6]], own.values[[6, 7]])
    np.testing.assert_array_equal(last[6:], own.values[6:][::-1])
    np.testing.assert_array_equal(last[:6], own.values[:6])


@pytest.mark.parametrize("hertz", [50, 60])
def test_the_mains_add_power_at_their_frequency_alone(hertz):
    own = record(ECG)
    values = made(own, faults_of(ECG)[f"mains-{hertz}"], 3, "r", 0)
    power = np.abs(np.fft.rfft(values - own.values, axis=1)) ** 2
    place = np.fft.rfftfreq(5000, 1 / 500)
    near = np.abs(place - hertz) < 0.3
    assert power[:, near].sum() > 0.999 * power.sum()


def test_a_lower_rate_raises_the_frequency():
    time = np.arange(5000) / 500
    values = np.tile(1000 * np.sin(2 * np.pi * 3 * time), (12, 1)).astype(np.float32)
    faster = made(Recorded(values, 0.001, (5000,), ECG), faults_of(ECG)["wrong-rate"], 3, "r", 0)
    spectrum = np.abs(np.fft.rfft(faster[0]))
    assert np.fft.rfftfreq(5000, 1 / 500)[spectrum.argmax()] == pytest.approx(6, abs=0.2)


@pytest.mark.parametrize("name", ["mirrored", "upside-down", "inverted"])
def test_twice_is_nothing(name):
    own = record(CXR)
    fault = faults_of(CXR)[name]
    once = made(own, fault, 1, "r", 0)
    again = made(Recorded(once, 1.0, own.valid_size, CXR), fault, 1, "r", 0)
    np.testing.assert_array_equal(again, own.values)


def worst(own):
    faults = faults_of(own.signal)
    return {name: made(own, fault, fault.severities[-1], "r", 0) for name, fault in faults.items()}


def test_images_change_as_their_names_say():
    own = record(DERM)
    x = own.values
    by = {
        name: made(own, fault, fault.severities[-1], "r", 0)
        for name, fault in faults_of(DERM).items()
    }
    np.testing.assert_array_equal(by["inverted"], 255 - x)
    np.testing.assert_array_equal(by["channels-reversed"], x[::-1])
    np.testing.assert_allclose(by["over-exposed"], np.minimum(3 * x, 255), atol=1)
    np.testing.assert_allclose(by["darker"], 255 * (x / 255) ** 3, atol=1)
    np.testing.assert_allclose(by["depth-mistaken"], x / 16, atol=1)
    assert (by["part-lost"][:, 112:] == 0).all()
    np.testing.assert_array_equal(by["part-lost"][:, :112], x[:, :112])
    assert by["blurred"].std() < 0.7 * x.std()
    gaps = by["rotated-90"] - np.rot90(x, axes=(1, 2))
    assert np.abs(gaps).max() <= 1  # square: nothing has to be fitted


def test_what_is_off_centre_shows_more_black():
    white = Recorded(np.full((1, 224, 224), 255, np.float32), 1.0, (224, 224), CXR)
    fault = faults_of(CXR)["off-centre"]
    black = [(made(white, fault, severity, "r", 0) == 0).mean() for severity in (1, 2, 3)]
    assert 0.1 < black[0] < black[1] < black[2] < 0.8


def test_volumes_change_as_their_names_say():
    own = record(CT)
    x = own.values
    by = {
        name: made(own, fault, fault.severities[-1], "r", 0)
        for name, fault in faults_of(CT).items()
    }
    np.testing.assert_array_equal(by["without-intercept"], x + 1024)
    np.testing.assert_array_equal(by["upside-down"], x[:, ::-1])
    np.testing.assert_array_equal(by["window-applied"], np.clip(x, -200, 1300))
    assert (by["slices-lost"][:, 0:4] == x[:, :1]).all()
    assert (by["half-lost"][:, 12:] == -1000).all()
    assert np.abs(by["air"] + 1000).max() < 80


def test_a_severity_that_a_fault_does_not_have_is_refused():
    fault = faults_of(ECG)["inverted"]
    with pytest.raises(BenchmdError, match="inverted has no severity 2, expected one of 1"):
        made(record(ECG), fault, 2, "r", 0)


def test_faults_fit_the_kind_of_signal():
    assert "arm-reversal" not in faults_of(EEG)
    assert "unit-mistaken" not in faults_of(ECG)
    assert "mains-60" in faults_of(EEG)  # 125 Hz
    assert "channels-reversed" not in faults_of(CXR)
    assert "without-intercept" not in faults_of(cards()["adrenalmnist3d"].signal)
