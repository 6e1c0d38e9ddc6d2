"""Faults made from stored signals: what they change, and what they must not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmd_ray.benchmarks.ood.faults import Recorded, faults_of, made
from benchmd_ray.benchmarks.ood.faults.fault import PADDING
from benchmd_ray.benchmarks.ood.faults.images import BLOCKS
from benchmd_ray.data.cards import cards
from benchmd_ray.data.normalise import NORMALISERS, normaliser
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import modalities, modality
from benchmd_ray.modality.signals import valid_area

ECG, EEG, CXR, DERM, CT = (modality(n).signal for n in ("ecg", "eeg", "cxr", "derm", "ldct"))
MAMMO, FUNDUS = (modality(n).signal for n in ("mammo", "fundus"))
SMALL_CT = replace(CT, name="small-ct", stored_shape=(1, 24, 64, 64), input_shape=(1, 24, 48, 48))


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
        values = np.round((1500 if signal.unit == "µV" else 900) * wave + rng.normal(0, 40, shape))
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


@pytest.mark.slow
@pytest.mark.parametrize("signal", all_signals(), ids=lambda s: f"{s.name}{s.stored_shape}")
def test_every_fault_fits_every_signal_that_it_claims(signal):
    if np.prod(signal.stored_shape) > 2e5:
        severities = 1
    else:
        severities = 3
    whole, padded = (
        record(signal),
        record(signal, valid=[-(-n // 2) for n in signal.stored_shape[1:]]),
    )
    for fault in faults_of(signal).values():
        own = padded if fault.name == "padding" else whole
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
        if fault.name == "padding":
            assert (values[padding] != 0).mean() > 0.9
            np.testing.assert_array_equal(values[~padding], own.values[~padding])
        else:
            assert (values[padding] == 0).all(), fault.name


@pytest.mark.parametrize("signal", [ECG, EEG, CXR, DERM, SMALL_CT], ids=lambda s: s.name)
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


@pytest.mark.parametrize("signal", [ECG, EEG, CXR, DERM, SMALL_CT], ids=lambda s: s.name)
def test_more_severe_is_further_away(signal):
    # Other leads, other phases; each has a test of its own.
    apart = ("chest-swap", "wrong-rate", "higher-rate", "off-centre", "pectoral-cut-off")
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


@pytest.mark.parametrize(
    ("signal", "valid", "name"),
    [
        (ECG, (5000,), "gain-10"),
        (EEG, (3000,), "beyond-range"),
        (CT, (24, 256, 256), "beyond-range"),
        (CXR, (180, 200), "padding"),
        (MAMMO, (224, 150), "padding"),
        (DERM, (150, 224), "padding"),
        (FUNDUS, (201, 203), "padding"),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_the_normalisation_removes_a_negative_control_exactly(signal, valid, name):
    own = record(signal, valid=valid)
    (control,) = (fault for fault in faults_of(signal).values() if fault.control)
    assert control.name == name
    values = made(own, control, 1, "r", 0)
    assert (values != own.values).any()
    before, after = (seen(signal, v, own.step, own.valid_size) for v in (own.values, values))
    np.testing.assert_array_equal(before, after)


PARAMETERS = {
    "fixed-range": {"low": -500.0, "high": 300.0, "onto_low": -1.0},
    "window": {"centre": 40.0, "width": 400.0},
    "source-mean": {"low": 0.0, "high": 255.0},
}


@pytest.mark.parametrize("signal", [ECG, CXR, SMALL_CT], ids=lambda s: s.name)
@pytest.mark.parametrize("name", NORMALISERS)
def test_padding_is_a_control_where_the_normaliser_removes_it(signal, name):
    signal = replace(signal, normaliser=name, parameters=PARAMETERS.get(name, {}))
    own = record(signal, valid=[2 * extent // 3 for extent in signal.stored_shape[1:]])
    values = made(own, PADDING, 1, "r", 0)
    before, after = (seen(signal, v, own.step, own.valid_size) for v in (own.values, values))
    assert ("padding" in faults_of(signal)) == np.array_equal(before, after)


@pytest.mark.parametrize("signal", [ECG, EEG, SMALL_CT], ids=lambda s: s.name)
@pytest.mark.parametrize("name", NORMALISERS)
def test_what_lies_beyond_the_range_is_a_control_where_the_normaliser_clips(signal, name):
    narrow = PARAMETERS.get(name, {})
    if name == "fixed-range":
        narrow = {"low": -0.5, "high": 0.3} if signal.unit == "mV" else narrow | {"high": 50.0}
    if name == "window" and signal.unit != "HU":
        narrow = {"centre": 0.1, "width": 0.9}
    signal = replace(signal, normaliser=name, parameters=narrow)
    found = faults_of(signal).get("beyond-range")
    assert (found is not None) == (name in ("fixed-range", "window"))
    if found is None:
        return
    own = record(signal)
    values = made(own, found, 1, "r", 0)
    before, after = (seen(signal, v, own.step, own.valid_size) for v in (own.values, values))
    np.testing.assert_array_equal(before, after)
    low, high = before.min(), before.max()
    inside = (before > low) & (before < high)
    middle = tuple(
        slice((a - b) // 2, (a - b) // 2 + b)
        for a, b in zip(signal.stored_shape, signal.input_shape, strict=True)
    )
    np.testing.assert_array_equal(values[middle][inside[0]], own.values[middle][inside[0]])
    assert (np.abs(values - own.values) > 0).mean() > 0.05
    assert (np.abs(values) >= np.abs(own.values)).all()


def test_stored_steps_stay_within_their_type():
    own = record(SMALL_CT)
    own.values[0, 0, 0, :2] = 2**15 - 1, -(2**15)
    values = made(own, faults_of(SMALL_CT)["beyond-range"], 1, "r", 0)
    np.testing.assert_array_equal(values[0, 0, 0, :2], own.values[0, 0, 0, :2])


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


def test_a_higher_rate_lowers_the_frequency_and_loses_the_end():
    time = np.arange(5000) / 500
    values = np.tile(1000 * np.sin(2 * np.pi * 6 * time), (12, 1)).astype(np.float32)
    values[:, 2600:] = 9999
    slower = made(Recorded(values, 0.001, (5000,), ECG), faults_of(ECG)["higher-rate"], 3, "r", 0)
    np.testing.assert_allclose(slower[:, ::2], values[:, :2500], rtol=1e-6)
    spectrum = np.abs(np.fft.rfft(slower[0]))
    assert np.fft.rfftfreq(5000, 1 / 500)[spectrum.argmax()] == pytest.approx(3, abs=0.1)


UNRELATED = {"white-noise", "brown-noise"}


@pytest.mark.parametrize(
    ("signal", "more"),
    [
        (ECG, {"sine", "square"}),
        (EEG, {"sine", "square"}),
        (CXR, {"text"}),
        (DERM, {"text"}),
        (CT, set()),
    ],
    ids=["ecg", "eeg", "cxr", "derm", "ldct"],
)
def test_signals_that_show_nothing_of_the_record_are_unrelated(signal, more):
    faults = faults_of(signal).values()
    assert {f.name for f in faults if f.use_case == "unrelated"} == UNRELATED | more
    assert {f.severities for f in faults if f.use_case == "unrelated"} == {(1,)}


@pytest.mark.parametrize(("signal", "rate"), [(ECG, 500), (EEG, 125)], ids=["ecg", "eeg"])
def test_a_sine_has_one_low_frequency_in_each_channel(signal, rate):
    own = record(signal)
    values = made(own, faults_of(signal)["sine"], 1, "r", 0)
    samples = values.shape[1]
    power = np.abs(np.fft.rfft(values * np.hanning(samples), axis=1)) ** 2
    top = power.argmax(axis=1)
    hertz = np.fft.rfftfreq(samples, 1 / rate)[top]
    assert (hertz > rate / 520).all()
    assert (hertz < rate / 49).all()
    assert len(set(top)) > 1
    for row, middle in zip(power, top, strict=True):
        assert row[middle - 2 : middle + 3].sum() > 0.999 * row.sum()
    np.testing.assert_allclose(values.std(axis=1), own.values.std(), rtol=0.1)


@pytest.mark.parametrize("signal", [ECG, EEG], ids=lambda s: s.name)
def test_a_square_wave_has_two_levels_and_a_period(signal):
    own = record(signal)
    values = made(own, faults_of(signal)["square"], 1, "r", 0)
    np.testing.assert_allclose(np.abs(values), own.values.std(), rtol=1e-5)
    for row in values:
        edges = np.flatnonzero(np.diff(row))
        halves = np.diff(edges)
        assert halves.max() - halves.min() <= 1
        assert 24 <= halves.min() <= halves.max() <= 251


@pytest.mark.parametrize("signal", [ECG, EEG], ids=lambda s: s.name)
def test_brown_noise_over_time_is_integrated_white_noise(signal):
    own = record(signal)
    values = made(own, faults_of(signal)["brown-noise"], 1, "r", 0)
    np.testing.assert_allclose(values.std(axis=1), own.values.std(), rtol=1e-4)
    np.testing.assert_allclose(values.mean(axis=1) / own.values.std(), 0, atol=1e-4)
    for row in np.diff(values, axis=1):
        assert abs(np.corrcoef(row[1:], row[:-1])[0, 1]) < 0.06
    for row in values:
        assert np.corrcoef(row[1:], row[:-1])[0, 1] > 0.98


@pytest.mark.parametrize("signal", [CXR, DERM, CT], ids=lambda s: s.name)
def test_the_power_of_brown_noise_falls_with_the_square_of_the_frequency(signal):
    own = record(signal)
    values = made(own, faults_of(signal)["brown-noise"], 1, "r", 0)
    power = np.abs(np.fft.fftn(values[0])) ** 2
    along = np.meshgrid(*(np.fft.fftfreq(n) for n in values.shape[1:]), indexing="ij")
    frequency = np.linalg.norm(along, axis=0)
    near = (frequency > 0.03) & (frequency < 0.2)
    slope, _ = np.polyfit(np.log(frequency[near]), np.log(power[near]), 1)
    assert slope == pytest.approx(-2, abs=0.15)
    size = float(own.values.std())
    assert float(values.std()) == pytest.approx(size, rel=0.1)
    assert float(values.mean()) == pytest.approx(float(own.values.mean()), abs=0.1 * size)


@pytest.mark.parametrize("name", ["sine", "square", "brown-noise"])
def test_a_flat_record_is_given_a_signal_all_the_same(name):
    for signal in (ECG, CXR, SMALL_CT):
        if name in faults_of(signal):
            flat = Recorded(np.full(signal.stored_shape, 77, np.float32), 1.0, (), signal)
            flat = replace(flat, valid_size=signal.stored_shape[1:])
            assert made(flat, faults_of(signal)[name], 1, "r", 0).std() > 0.5


def test_text_is_black_and_white_and_fills_the_valid_area():
    own = record(DERM, valid=(150, 224))
    area = valid_area(DERM.stored_shape[1:], own.valid_size)
    fault, shares = faults_of(DERM)["text"], []
    for name in "abcdefgh":
        values = made(own, fault, 1, name, 0)[(slice(None), *area)]
        assert set(np.unique(values)) == {0, 255}
        np.testing.assert_array_equal(values[0], values[1])
        np.testing.assert_array_equal(values[0], values[2])
        for line in np.array_split(values[0], 6):  # of 25 pixels: a line of letters is in each
            assert {0, 255} == set(np.unique(line[:, :40])) == set(np.unique(line[:, -40:]))
        shares.append((values == 255).mean())
    assert min(shares) < 0.4  # white on black
    assert max(shares) > 0.6
    assert len(set(shares)) == len(shares)


@pytest.mark.parametrize("extents", [(28, 28), (5, 7), (64, 91), (301, 90)])
def test_text_fits_any_extent(extents):
    shape = (1, *extents)
    signal = replace(CXR, stored_shape=shape, input_shape=shape, patch=(1, 1))
    values = made(record(signal), faults_of(signal)["text"], 1, "r", 0)
    assert values.shape == shape
    assert set(np.unique(values)) == {0, 255}


def test_two_films_are_the_picture_twice_squeezed():
    own = record(CXR)
    values = made(own, faults_of(CXR)["two-films"], 1, "r", 0)
    np.testing.assert_array_equal(values[..., :112], values[..., 112:])
    ramp = np.broadcast_to(np.arange(224, dtype=np.float32), (1, 224, 224)).copy()
    values = made(replace(own, values=ramp), faults_of(CXR)["two-films"], 1, "r", 0)
    expected = np.broadcast_to(np.arange(112) * 2 + 0.5, (1, 224, 112))
    np.testing.assert_allclose(values[..., 2:110], expected[..., 2:110], atol=0.51)
    odd = replace(CXR, stored_shape=(1, 30, 31), input_shape=(1, 30, 31), patch=(1, 1))
    values = made(record(odd), faults_of(odd)["two-films"], 1, "r", 0)
    np.testing.assert_array_equal(values[..., :15], values[..., 16:])


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_the_chest_wall_is_lost_on_the_brighter_side(severity):
    lost = {1: 22, 2: 45, 3: 90}[severity]
    values = np.round(np.linspace(255, 0, 224, dtype=np.float32)) * np.ones((1, 224, 1), np.float32)
    fault = faults_of(MAMMO)["pectoral-cut-off"]
    own = Recorded(values, 1.0, (224, 224), MAMMO)
    cut = made(own, fault, severity, "r", 0)
    np.testing.assert_array_equal(cut[..., :-lost], values[..., lost:])
    assert (cut[..., -lost:] == 0).all()
    other = made(replace(own, values=values[..., ::-1].copy()), fault, severity, "r", 0)
    np.testing.assert_array_equal(other, cut[..., ::-1])


@pytest.mark.parametrize("signal", [CXR, DERM], ids=lambda s: s.name)
def test_compression_shows_blocks_of_eight_pixels(signal):
    ramp = np.round(np.linspace(20, 235, 224)).astype(np.float32) * np.ones((224, 1), np.float32)
    own = Recorded(np.stack([ramp] * len(record(signal).values)), 1.0, (224, 224), signal)
    values = made(own, faults_of(signal)["compressed"], 3, "r", 0)
    steps = np.abs(np.diff(values[0], axis=1)).mean(axis=0)
    border = np.arange(1, 224) % 8 == 0
    assert steps[border].sum() > 190  # most of the ramp's 215 grey levels
    assert steps[~border].sum() == 0
    assert np.abs(values - own.values).max() < 25
    assert (values.max(axis=0) - values.min(axis=0)).max() <= 2  # grey stays grey


def test_a_ruler_lies_along_one_side():
    own = Recorded(np.full(DERM.stored_shape, 128, np.float32), 1.0, (224, 224), DERM)
    fault, sides = faults_of(DERM)["ruler"], set()
    for name in "abcdefghijklmnop":
        for severity, width in ((1, 11), (2, 22), (3, 45)):
            values = made(own, fault, severity, name, 0)
            changed = (values != 128).all(axis=0)
            (turns,) = (k for k in range(4) if np.rot90(changed, k)[:width].all())
            ruler = np.rot90(values, turns, axes=(1, 2))
            assert (ruler[:, width:] == 128).all()
            light, dark = ruler[:, :width] > 200, ruler[:, :width] < 50
            assert (light | dark).all()
            assert (dark[:, 0].sum(axis=1) == 21).all()  # 224 pixels, a tick each 11
            assert not dark[:, width // 2 :].any()
        sides.add(turns)
    assert sides == {0, 1, 2, 3}


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
    np.testing.assert_array_equal(by["window-applied"], np.clip(x, -160, 240))
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
    assert {"two-films", "pectoral-cut-off"} <= set(faults_of(MAMMO)) - set(faults_of(DERM))
    assert "ruler" in set(faults_of(FUNDUS)) - set(faults_of(CXR))
    for channels, extent, whether in ((1, BLOCKS, True), (3, BLOCKS, True), (2, BLOCKS, False)):
        shape = (channels, extent, extent)
        square = replace(CXR, stored_shape=shape, input_shape=shape, patch=(1, 1))
        assert ("compressed" in faults_of(square)) == whether
        shape = (channels, BLOCKS - 1, BLOCKS)
        small = replace(CXR, stored_shape=shape, input_shape=shape, patch=(1, 1))
        assert "compressed" not in faults_of(small)
