"""Real ECGs, against independent reading of the same files."""

from __future__ import annotations

import csv
import shutil
from collections import Counter

import numpy as np
import pytest
import wfdb
from scipy.io import loadmat

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import cinc, ptbxl
from benchmd_ray.data.datasets.ecg import LEADS, read_records, released_labels
from benchmd_ray.data.raw import NO_ROW, Choices, RawItem
from benchmd_ray.data.readers.wfdb import read_comments, read_wfdb

pytestmark = pytest.mark.data


def test_every_cinc_record_reads_with_its_exact_samples(real_data):
    headers = sorted((real_data / "cinc2021").rglob("*.hea"))
    assert len(headers) == len(list((real_data / "cinc2021").rglob("*.mat"))) > 50
    for header in headers:
        waveform = read_wfdb(header)
        assert np.array_equal(waveform.samples, loadmat(header.with_suffix(".mat"))["val"])
        assert waveform.names == LEADS
        assert (waveform.rate, set(waveform.steps_per_mv)) == (500.0, {1000.0})
        assert read_comments(header)["dx"].replace(",", "").isdigit()


def test_header_that_wfdb_itself_refuses_reads(real_data):
    header = real_data / "cinc2021" / "chapman_extra" / "E00666.hea"
    with pytest.raises(wfdb.io.header.HeaderSyntaxError):
        wfdb.rdrecord(str(header.with_suffix("")))
    item = RawItem(header.name, "E00666", "E00666", "test")
    (record,) = cinc.read(header.parent, item, dataset_card("georgia")).records
    assert np.array_equal(record.signal, loadmat(header.with_suffix(".mat"))["val"])
    assert record.metadata == {"age": 77.0, "sex": "male"}
    # inferior ischaemia outranks the four st-t and q wave findings beside it
    assert list(record.target) == [0, 0, 1, 0, 0, 0, 0]


def test_every_ptbxl_record_reads_with_its_exact_samples(real_data):
    root, card = real_data / "ptb-xl-500", dataset_card("ptb-xl")
    found = ptbxl.discover(root, card, Choices())
    assert (len(found.items), found.missing, found.left_out) == (500, [], {})
    for item in found.items:
        (record,) = read_records(root, item, card).records
        samples = np.memmap((root / item.path).with_suffix(".dat"), "<i2", "r").reshape(-1, 12)
        assert record.signal.dtype == np.int16
        assert np.array_equal(record.signal, samples.T)
        assert record.scale == 0.001


def test_ptbxl_splits_patients_and_ages(real_data):
    root = real_data / "ptb-xl-500"
    items = ptbxl.discover(root, dataset_card("ptb-xl"), Choices()).items
    assert Counter(i.split for i in items) == {"train": 353, "validation": 81, "test": 66}
    assert len({i.group_id for i in items}) == 466
    splits: dict[str, set[str]] = {}
    for item in items:
        splits.setdefault(item.group_id, set()).add(item.split)
    assert all(len(own) == 1 for own in splits.values())
    with (root / "ptbxl_database.csv").open(newline="") as file:
        ages = [float(row["age"]) if row["age"] else None for row in csv.DictReader(file)]
    capped = [None if age is None else min(age, 90.0) for age in ages]
    assert [i.metadata["age"] for i in items] == capped


def test_ptbxl_labels_by_hand(real_data):
    root = real_data / "ptb-xl-500"
    items = ptbxl.discover(root, dataset_card("ptb-xl"), Choices()).items
    labels = {i.record_id: i.label for i in items}
    assert labels["HR00001"] == "other"  # NORM 100, LVOLT 0, SR 0
    assert labels["HR00002"] == "normal"  # NORM 80, SBRAD 0
    assert len(set(labels.values())) == 7


def test_challenge_records_of_ptbxl_are_found_by_the_database(real_data, tmp_path):
    source = real_data / "cinc2021" / "sample-data" / "cinc2021"
    for path in source.glob("HR*"):
        shutil.copy(path, tmp_path)
    shutil.copy(real_data / "ptb-xl-500" / "ptbxl_database.csv", tmp_path)
    found = ptbxl.discover(tmp_path, dataset_card("ptb-xl"), Choices())
    assert found.layout == "cinc"
    assert found.left_out == {NO_ROW: 10}
    assert (len(found.items), len(found.missing)) == (0, 500)


@pytest.mark.parametrize(
    ("name", "records"), [("chapman-shaoxing", 10247), ("georgia", 10344), ("cpsc", 6877)]
)
def test_released_tables_of_the_targets_give_the_papers_counts(real_data, name, records):
    card = dataset_card(name)
    labels = released_labels(real_data / "benchmd-ecg-splits" / card.split_table, card)
    assert len(labels) == records == card.layouts["cinc"].records
    counts = Counter(label for split, label in labels.values() if split == "validation")
    expected = {k: count for k, count in card.expected["released"]["validation"].items() if count}
    assert counts == expected


def test_released_table_of_the_source_gives_the_papers_totals(real_data):
    card = dataset_card("ptb-xl")
    labels = released_labels(real_data / "benchmd-ecg-splits" / card.split_table, card)
    assert Counter(split for split, _ in labels.values()) == {"train": 17476, "validation": 4361}
    for split, expected in card.expected["released"].items():
        counts = Counter(label for own, label in labels.values() if own == split)
        total = sum(expected.values())
        # the paper drew anew which of several classes a record takes
        assert all(abs(counts[k] - count) < 0.01 * total for k, count in expected.items())
