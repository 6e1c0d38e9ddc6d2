"""Labels, leads and signals of the ECG datasets, against independent computation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets.ecg import (
    LEADS,
    dominant_class,
    read_records,
    released_labels,
    stored_signal,
    twelve_leads,
)
from benchmd_ray.data.raw import RawItem
from benchmd_ray.data.readers.wfdb import Waveform, read_wfdb
from benchmd_ray.data.records import RecordError, RecordExcluded
from benchmd_ray.data.transforms import quantise, resample, segments
from benchmd_ray.errors import BenchmdError

CD, MI, STT = "conduction disturbance", "myocardial infarction", "ischemic st-t changes"
AF, HYP = "atrial fibrillation/flutter", "hypertrophy"
CLASSES = {"N": "normal", "C": CD, "M": MI, "S": STT, "O": "other", "A": AF, "H": HYP, "X": ""}


def waveform(samples, *, steps=1000.0, names=LEADS, rate=500.0) -> Waveform:
    steps_per_mv = np.broadcast_to(np.asarray(steps, float), len(samples)).copy()
    return Waveform(np.asarray(samples, np.int32), steps_per_mv, tuple(names), rate)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({"N": 100}, "normal"),
        ({"N": 100, "C": 15}, CD),  # normal only when nothing abnormal is coded
        ({"N": 100, "O": 0}, "other"),  # a likelihood of 0 is "not stated", not "absent"
        ({"C": 50, "M": 80, "A": 15}, MI),  # the highest likelihood
        ({"C": 50, "M": 50}, MI),  # ties by precedence
        ({"A": 100, "M": 100, "C": 100, "S": 100, "H": 100, "O": 100}, AF),
        ({"C": 100, "S": 100}, CD),
        ({"S": 100, "H": 100}, STT),
        ({"H": 100, "O": 100}, HYP),
        ({"X": 100, "O": 15}, "other"),  # codes of no class do not count
        ({"never heard of": 100, "N": 0}, "normal"),
    ],
)
def test_record_takes_its_likeliest_abnormal_class(codes, expected):
    for order in itertools.islice(itertools.permutations(codes.items()), 6):
        assert dominant_class(dict(order), CLASSES) == expected


def test_second_code_of_a_class_counts_by_its_higher_likelihood():
    classes = CLASSES | {"M2": MI}
    assert dominant_class({"M": 15, "C": 50, "M2": 80}, classes) == MI
    assert dominant_class({"M2": 80, "C": 50, "M": 15}, classes) == MI


@pytest.mark.parametrize("codes", [{}, {"X": 100}, {"unknown": 100, "": 100}])
def test_record_whose_codes_map_to_no_class_is_excluded(codes):
    with pytest.raises(RecordExcluded, match="its codes map to no class"):
        dominant_class(codes, CLASSES)


def test_leads_are_found_by_name_in_any_order_and_case(ecg_signal):
    order = np.random.default_rng(0).permutation(12)
    shuffled = waveform(ecg_signal[order], names=[LEADS[i].upper() for i in order])
    assert np.array_equal(stored_signal(shuffled)[0], ecg_signal)
    padded = waveform(ecg_signal, names=[f" {lead.lower()} " for lead in LEADS])
    assert np.array_equal(twelve_leads(padded.names), np.arange(12))


def test_further_channels_are_not_kept(ecg_signal):
    samples = np.concatenate([np.full((1, 5000), 9), ecg_signal])
    assert np.array_equal(stored_signal(waveform(samples, names=("RESP", *LEADS)))[0], ecg_signal)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (LEADS[:11], r"has no lead V6, expected once; its leads are I, II"),
        (("I", *LEADS[:11]), "has lead I 2 times"),
        ((*LEADS[:11], "V7"), "has no lead V6"),
    ],
)
def test_wrong_leads_are_refused(ecg_signal, names, message):
    with pytest.raises(RecordError, match=message):
        stored_signal(waveform(ecg_signal[: len(names)], names=names))


def test_digital_samples_are_kept_where_one_step_serves_all_leads(ecg_signal):
    stored, scale = stored_signal(waveform(ecg_signal, steps=204.8))
    assert stored.dtype == np.int16
    assert np.array_equal(stored, ecg_signal)
    assert scale == pytest.approx(1 / 204.8)


@pytest.mark.parametrize("reason", ["steps differ", "beyond int16"])
def test_samples_are_quantised_anew_only_where_they_must(ecg_signal, reason):
    steps = np.where(np.arange(12) == 3, 500.0, 1000.0) if reason == "steps differ" else 1000.0
    samples = ecg_signal if reason == "steps differ" else ecg_signal.astype(np.int32) * 3
    stored, scale = stored_signal(waveform(samples, steps=steps))
    millivolts = samples / np.broadcast_to(steps, 12)[:, None]
    assert np.abs(stored * scale - millivolts).max() <= scale / 2 * (1 + 1e-9)
    assert np.abs(stored).max() == 32767


@pytest.mark.parametrize("rate", [250.0, 1000.0, 257.0])
def test_other_rates_are_resampled_to_500_hz(rate):
    time = np.arange(int(rate * 10)) / rate
    hertz, phases = 7.0, np.arange(12)[:, None]
    samples = np.rint(9000 * np.sin(2 * np.pi * hertz * time + phases))
    stored, scale = stored_signal(waveform(samples, rate=rate))
    assert stored.shape == (12, 5000)
    expected = 9 * np.sin(2 * np.pi * hertz * np.arange(5000) / 500 + phases)
    inner = slice(250, -250)  # beyond the edges of the filter
    assert np.abs((stored * scale - expected)[:, inner]).max() < 0.02


def test_resampling_down_removes_what_the_new_rate_cannot_hold():
    time = np.arange(10_000) / 1000
    alias = np.sin(2 * np.pi * 430 * time)  # would appear at 70 Hz
    assert np.abs(resample(alias[None], 1000, 500)[:, 250:-250]).max() < 0.02


def test_same_rate_is_not_touched(ecg_signal):
    signal = ecg_signal.astype(float)
    assert resample(signal, 500, 500.0) is signal


@given(st.integers(0, 40), st.integers(1, 12))
def test_segments_are_whole_in_order_and_drop_only_the_remainder(total, length):
    signal = np.arange(2 * total).reshape(2, total)
    parts = segments(signal, length)
    assert len(parts) == total // length
    joined = np.concatenate(parts, axis=1) if parts else signal[:, :0]
    assert np.array_equal(joined, signal[:, : total // length * length])


@settings(max_examples=60)
@given(arrays(np.float64, (2, 30), elements=st.floats(-1e4, 1e4, allow_subnormal=False)))
def test_quantisation_is_off_by_at_most_half_a_step(signal):
    steps, scale = quantise(signal)
    assert np.abs(steps * scale - signal).max() <= scale / 2 * (1 + 1e-9)
    if np.abs(signal).max() > 1e-290:
        assert scale == pytest.approx(np.abs(signal).max() / 32767)


def test_constant_recording_is_refused(ecg_signal):
    flat = np.repeat(ecg_signal[:, :1], 5000, axis=1)
    with pytest.raises(RecordError, match="every lead is constant"):
        stored_signal(waveform(flat))


def records(root, header, **changes):
    path = header.relative_to(root).as_posix()
    item = RawItem(path, header.stem, "p1", "train", "hypertrophy", **changes)
    return read_records(root, item, dataset_card("georgia")).records


def test_record_holds_signal_scale_target_and_group(tmp_path, write_cinc, ecg_signal):
    header = write_cinc(tmp_path, "E1", ecg_signal, gain="500/mV")
    (record,) = records(tmp_path, header, metadata={"age": 61.0})
    assert np.array_equal(record.signal, ecg_signal)
    assert record.scale == pytest.approx(0.002)
    assert list(record.target) == [0, 0, 0, 0, 0, 0, 1]
    assert (record.record_id, record.unit_id, record.valid_size) == ("E1", "E1", (5000,))
    assert record.metadata == {"age": 61.0}


def test_long_recording_gives_a_record_per_10_s(tmp_path, write_cinc, ecg_signal):
    long = np.concatenate([ecg_signal, ecg_signal[::-1], ecg_signal[:, :4999]], axis=1)
    parts = records(tmp_path, write_cinc(tmp_path, "E1", long))
    assert [part.record_id for part in parts] == ["E1-0", "E1-1"]
    assert len({part.group_id for part in parts}) == 1
    assert np.array_equal(parts[0].signal, ecg_signal)
    assert np.array_equal(parts[1].signal, ecg_signal[::-1])


def test_recording_below_10_s_is_excluded(tmp_path, write_cinc, ecg_signal):
    with pytest.raises(RecordExcluded, match="shorter than 10 s"):
        records(tmp_path, write_cinc(tmp_path, "E1", ecg_signal[:, :4999]))


def test_recording_with_a_constant_segment_is_refused(tmp_path, write_cinc, ecg_signal):
    offsets = np.repeat(np.arange(12, dtype=np.int16)[:, None], 5000, axis=1)
    long = np.concatenate([ecg_signal, offsets], axis=1)
    with pytest.raises(RecordError, match="segment 1 of 2 is constant"):
        records(tmp_path, write_cinc(tmp_path, "E1", long))


def test_250_hz_file_becomes_one_full_record(tmp_path, write_cinc, ecg_signal):
    smooth = np.rint(resample(ecg_signal.astype(float), 500, 250)).astype(np.int16)
    (record,) = records(tmp_path, write_cinc(tmp_path, "E1", smooth, rate=250))
    every_second = record.signal[:, ::2] * record.scale * 1000
    assert np.abs(every_second - smooth)[:, 50:-50].max() < 20  # 0.1 % of the largest
    assert read_wfdb(tmp_path / "E1.hea").rate == 250


def test_released_labels_are_read_by_column_name(tmp_path):
    path = tmp_path / "splits.csv"
    path.write_text("label,split,patient,x\n5,val,E1,0\n0,train,E2,0\n")
    assert released_labels(path, dataset_card("georgia")) == {
        "E1": ("validation", AF),
        "E2": ("train", "normal"),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "has no column 'patient'"),
        ("patient,split,label\nE1,test,0\n", r"it has 'test'; .* like Ga_splits\.csv"),
        ("patient,split,label\nE1,val,7\n", r"it has '7'; .* like Ga_splits\.csv"),
        ("patient,split,label\nE1,val,-1\n", r"it has '-1'; .* like Ga_splits\.csv"),
        ("patient,split,label\nE1,val\n", "record 1: it has 2 values, the header 3 columns"),
    ],
)
def test_table_of_another_kind_is_refused(tmp_path, text, message):
    path = tmp_path / "splits.csv"
    path.write_text(text)
    with pytest.raises(BenchmdError, match=message):
        released_labels(path, dataset_card("georgia"))


@pytest.mark.parametrize("rate", [0.05, 49.9, 20_001.0])
def test_a_rate_that_cannot_be_right_is_refused(rate):
    samples = np.random.default_rng(0).integers(-900, 900, (12, 5000))
    with pytest.raises(RecordError, match="expected 50 to 20000 Hz"):
        stored_signal(waveform(samples, rate=rate))


@pytest.mark.parametrize("rate", [193.7796, 125 / 1.000123, 499.9999])
def test_rates_without_a_simple_ratio_are_refused_before_a_filter_is_made(rate):
    with pytest.raises(RecordError, match="expected a ratio of numbers up to 20,000"):
        resample(np.ones((2, 1000)), rate, 125.0)


@pytest.mark.parametrize("rate", [100.0, 128.0, 200.0, 256.0, 257.0, 360.0, 512.0, 1000.0, 62.5])
def test_usual_rates_have_a_simple_ratio(rate):
    for new in (125.0, 500.0):
        assert resample(np.ones(1000), rate, new).shape == (int(np.ceil(1000 * new / rate)),)


def test_a_signal_that_would_become_too_long_is_refused():
    with pytest.raises(RecordError, match="resampled it would have more than 134,217,728 samples"):
        resample(np.broadcast_to(1.0, (2, 2**24)), 50.0, 500.0)


def test_missing_split_table_is_named(tmp_path):
    card = dataset_card("georgia")
    with pytest.raises(BenchmdError, match=r"needs the split table .* \(Ga_splits\.csv\)"):
        released_labels(None, card)
    with pytest.raises(BenchmdError, match=r"none\.csv is missing"):
        released_labels(tmp_path / "none.csv", card)
