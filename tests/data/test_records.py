"""Records to Arrow, to Parquet and back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kinds import MODALITIES

from benchmd_ray.data.cards import DatasetCard, dataset_card
from benchmd_ray.data.manifest import write_shard
from benchmd_ray.data.records import (
    METADATA,
    Record,
    RecordError,
    checked,
    decode_signals,
    decode_targets,
    hashed_patient,
    schema,
    to_table,
)


def card_of(name: str) -> DatasetCard:
    """A card of that modality."""
    return dataclasses.replace(dataset_card("georgia"), modality=MODALITIES[name])


ECG, CXR = card_of("ecg"), card_of("cxr")


def example(card: DatasetCard, row: int) -> Record:
    signal = card.signal
    rng = np.random.default_rng(row)
    dtype = np.dtype(signal.dtype)
    bounds = np.iinfo(dtype)
    return Record(
        record_id=f"r{row}",
        group_id=f"g{row // 2}",
        unit_id=f"u{row}",
        signal=rng.integers(bounds.min, bounds.max, signal.stored_shape, dtype),
        scale=0.25 + row,
        valid_size=tuple(size - row for size in signal.stored_shape[1:]),
        target=rng.integers(-1, 2, len(card.classes)).tolist(),
        metadata={"age": 40.5 + row, "site": "7"} if row else {},
    )


@pytest.mark.parametrize("name", ["ecg", "cxr", "ldct"])
def test_round_trip_through_parquet_keeps_every_value(tmp_path, name):
    card = card_of(name)
    signal = card.signal
    records = [example(card, row) for row in range(3)]
    path = tmp_path / "shard.parquet"
    write_shard(to_table(records, "train", card), path, signal)
    assert pq.read_schema(path) == schema(card)
    table = pq.read_table(path)
    assert np.array_equal(
        decode_signals(table["signal"], signal), np.stack([r.signal for r in records])
    )
    assert decode_targets(table["target"]).tolist() == [list(r.target) for r in records]
    assert table["scale"].to_pylist() == [0.25, 1.25, 2.25]
    assert table["valid_size"].to_pylist() == [list(r.valid_size) for r in records]
    assert table["split"].to_pylist() == ["train"] * 3
    assert table["group_id"].to_pylist() == ["g0", "g0", "g1"]
    assert table["age"].to_pylist() == [None, 41.5, 42.5]
    assert table["site"].to_pylist() == [None, "7", "7"]
    assert table["sex"].null_count == 3


def test_one_chunk_is_decoded_without_a_copy_and_slices_point_right():
    records = [example(ECG, row) for row in range(4)]
    column = to_table(records, "train", ECG)["signal"]
    decoded = decode_signals(column, ECG.signal)
    assert decoded.ctypes.data == column.chunk(0).buffers()[1].address
    assert not decoded.flags.owndata
    sliced = decode_signals(column.slice(2, 1), ECG.signal)
    assert np.array_equal(sliced[0], records[2].signal)


def test_several_chunks_and_none_are_decoded_in_order():
    tables = [to_table([example(CXR, row)], "train", CXR) for row in range(2)]
    column = pa.concat_tables(tables)["signal"]
    assert column.num_chunks == 2
    expected = np.stack([example(CXR, row).signal for row in range(2)])
    assert np.array_equal(decode_signals(column, CXR.signal), expected)
    empty = decode_signals(pa.chunked_array([], column.type), CXR.signal)
    assert empty.shape == (0, 1, 224, 224)


def test_merged_classes_make_the_targets_narrower():
    merged = {"healthy": ("wake", "n1"), "deep": ("n2", "n3", "rem")}
    narrow = dataclasses.replace(card_of("eeg"), merged_classes=merged)
    records = [example(narrow, row) for row in range(4)]
    table = to_table(records, "train", narrow)
    assert schema(narrow).field("target").type.list_size == 2
    assert schema(card_of("eeg")).field("target").type.list_size == 5
    assert decode_targets(table["target"]).tolist() == [list(r.target) for r in records]


def test_schema_states_what_a_signal_is():
    field = schema(ECG).field("signal")
    assert field.type == pa.binary(12 * 5000 * 2)
    assert field.metadata == {b"dtype": b"int16", b"shape": b"12,5000", b"unit": b"mV"}
    names = schema(ECG).names
    assert names[:5] == ["record_id", "group_id", "unit_id", "split", "signal"]
    assert names[-len(METADATA) :] == ["age", "sex", "site", "device", "view", "held_out"]


@pytest.mark.parametrize("change", [lambda s: s[:, :-1], lambda s: s.astype(np.int32)])
def test_signal_of_another_shape_or_type_is_refused(change):
    record = example(ECG, 1)
    wrong = dataclasses.replace(record, signal=change(record.signal))
    with pytest.raises(RecordError, match=r"r1: signal of shape .* expected \(12, 5000\) and"):
        checked(wrong, ECG)


def test_patients_are_hashed_per_dataset_and_key(monkeypatch):
    plain = hashed_patient("ptb-xl", "15709")
    assert plain == hashed_patient("ptb-xl", "15709")
    assert len(plain) == 16
    assert set(plain) <= set("0123456789abcdef")
    assert plain != hashed_patient("georgia", "15709")
    assert len({hashed_patient("ptb-xl", str(i)) for i in range(20_000)}) == 20_000
    monkeypatch.setenv("BENCHMD_ID_KEY", "secret")
    assert hashed_patient("ptb-xl", "15709") != plain


def sound(card: DatasetCard, row: int = 1) -> Record:
    return dataclasses.replace(example(card, row), target=[1] + [0] * (len(card.classes) - 1))


@pytest.mark.parametrize("name", ["ecg", "eeg", "cxr", "mammo", "ldct"])
def test_a_sound_record_is_taken_as_it_is(name):
    record = sound(card_of(name))
    assert checked(record, card_of(name)) is record
    bare = dataclasses.replace(record, metadata={}, valid_size=(1,) * len(record.valid_size))
    assert checked(bare, card_of(name)) is bare


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": float("nan")}, "a scale is not a positive number"),
        ({"scale": float("inf")}, "a scale is not a positive number"),
        ({"scale": 0.0}, "a scale is not a positive number"),
        ({"scale": 1e-60}, "a scale is not a positive number"),  # zero as float32
        ({"scale": 1e60}, "a scale is not a positive number"),
        ({"valid_size": (224, 225)}, r"valid size is not within the signal, \(224, 224\)"),
        ({"valid_size": (0, 224)}, "valid size is not within the signal"),
        ({"valid_size": (224,)}, "valid size is not within the signal"),
        ({"target": [1, 0]}, "targets are not 1, 0 or -1 for each of 5 classes"),
        ({"target": [1, 0, 0, 0, 2]}, "targets are not 1, 0 or -1"),
        ({"target": [0, 0, 0, 1, 1]}, "a target is not positive in exactly one class"),
        ({"target": [0, 0, 0, 0, 0]}, "a target is not positive in exactly one class"),
        ({"metadata": {"age": "061Y"}}, "its age is '061Y', expected float"),
        ({"metadata": {"age": 90.5}}, "an age is not within 0 to 90 years"),
        ({"metadata": {"age": float("nan")}}, "an age is not within 0 to 90 years"),
        ({"metadata": {"sex": 1}}, "its sex is 1, expected string"),
    ],
)
def test_a_record_with_odd_values_is_refused(change, message):
    with pytest.raises(RecordError, match=f"r1: .*{message}"):
        checked(dataclasses.replace(sound(card_of("derm")), **change), card_of("derm"))


def test_labels_of_several_findings_may_all_be_absent_or_unknown():
    for target in ([0] * 5, [1] * 5, [-1] * 5):
        checked(dataclasses.replace(sound(CXR), target=target), CXR)
