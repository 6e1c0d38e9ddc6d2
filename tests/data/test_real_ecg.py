"""Real ECGs, against independent reading of the same files."""

from __future__ import annotations

import ast
import csv
import shutil
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import wfdb
from scipy.io import loadmat

from benchmd_ray.data.cards import code_classes, code_kinds, dataset_card
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


@pytest.mark.slow
def test_every_record_reads_as_wfdb_reads_it(real_data):
    read = 0
    for header in sorted((real_data).rglob("*.hea")):
        try:
            theirs = wfdb.rdrecord(str(header.with_suffix("")), physical=False)
        except wfdb.io.header.HeaderSyntaxError:  # named with its file's ending
            continue
        ours, read = read_wfdb(header), read + 1
        assert np.array_equal(ours.samples.T, theirs.d_signal - np.array(theirs.baseline))
        assert list(ours.steps_per_mv) == theirs.adc_gain
        assert (list(ours.names), ours.rate) == (theirs.sig_name, theirs.fs)
        assert {unit.lower() for unit in theirs.units} == {"mv"}
    assert read > 500


def test_header_that_wfdb_itself_refuses_reads(real_data):
    header = real_data / "cinc2021" / "chapman_extra" / "E00666.hea"
    with pytest.raises(wfdb.io.header.HeaderSyntaxError):
        wfdb.rdrecord(str(header.with_suffix("")))
    item = RawItem(header.name, "E00666", "E00666", "test")
    (record,) = cinc.read(header.parent, item, dataset_card("georgia")).records
    assert np.array_equal(record.signal, loadmat(header.with_suffix(".mat"))["val"])
    assert record.metadata == {"age": 77.0, "sex": "male"}
    # inferior ischaemia outranks the four st-t and q wave findings next to it
    assert list(record.target) == [0, 0, 1, 0, 0, 0, 0]


@pytest.mark.slow
def test_every_ptbxl_record_reads_with_its_exact_samples(real_data):
    root, card = real_data / "ptb-xl-500", dataset_card("ptb-xl")
    found = ptbxl.discover(root, card, Choices())
    assert (len(found.items), found.missing, found.excluded) == (500, [], {})
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
    assert labels["HR00001"] == "normal"  # NORM 100, LVOLT 0, SR 0
    assert labels["HR00002"] == "normal"  # NORM 80, SBRAD 0
    assert len(set(labels.values())) == 7


def test_kinds_of_the_codes_are_those_that_ptbxl_states(real_data):
    statements = pd.read_csv(real_data / "ptb-xl-500" / "scp_statements.csv", index_col=0)
    stated = statements[["diagnostic", "form", "rhythm"]].notna()
    expected = {code: set(row.index[row]) for code, row in stated.iterrows()}
    assert len(expected) == 71
    assert code_kinds("ptbxl_scp.csv") == expected


def test_ptbxl_classes_before_and_after_likelihoods_that_are_not_stated(real_data):
    """The counts that docs/differences.md states, from PTB-XL's own tables."""
    root = real_data / "ptb-xl-500"
    statements = pd.read_csv(root / "scp_statements.csv", index_col=0)
    mapped = code_classes("ptbxl_scp.csv")
    database = pd.read_csv(root / "ptbxl_database.csv")
    codes = pd.DataFrame(
        [
            (row.ecg_id, code, float(likelihood))
            for row in database.itertuples()
            for code, likelihood in ast.literal_eval(row.scp_codes).items()
        ],
        columns=["ecg_id", "code", "likelihood"],
    ).join(statements[["diagnostic", "form", "rhythm"]].notna(), on="code")
    codes["class"] = codes["code"].map(mapped)

    def dominant(codes: pd.DataFrame) -> pd.Series:
        order = ["atrial fibrillation/flutter", "myocardial infarction", "conduction disturbance",
                 "ischemic st-t changes", "hypertrophy", "other", "normal"]  # fmt: skip
        ranked = codes.assign(
            normal=codes["class"] == "normal", tie=codes["class"].map(order.index)
        ).sort_values(["normal", "likelihood", "tie"], ascending=[True, False, True])
        return ranked.groupby("ecg_id")["class"].first()

    before = dominant(codes)
    unstated = codes["likelihood"] == 0
    assert {kind: (int((unstated & codes[kind]).sum()), int(codes[kind].sum()))
            for kind in ("diagnostic", "rhythm")} == {
        "diagnostic": (7, 627), "rhythm": (462, 475)
    }  # fmt: skip
    forms = codes["form"] & ~codes["diagnostic"]
    assert (int((unstated & forms).sum()), int(forms.sum())) == (112, 126)
    normal = set(codes.loc[(codes["code"] == "NORM") & (codes["likelihood"] >= 80), "ecg_id"])
    codes.loc[unstated & codes["rhythm"], "likelihood"] = 100.0
    after = dominant(codes[~(unstated & codes["form"] & codes["ecg_id"].isin(normal))])

    items = ptbxl.discover(root, dataset_card("ptb-xl"), Choices()).items
    assert [item.label for item in items] == after.tolist()
    names = dataset_card("ptb-xl").classes
    assert [(before == name).sum() for name in names] == [271, 69, 48, 76, 17, 8, 11]
    assert [(after == name).sum() for name in names] == [287, 66, 46, 65, 8, 20, 8]
    assert (before != after).sum() == 28


def test_challenge_records_of_ptbxl_are_found_by_the_database(real_data, tmp_path):
    source = real_data / "cinc2021" / "sample-data" / "cinc2021"
    for path in source.glob("HR*"):
        shutil.copy(path, tmp_path)
    shutil.copy(real_data / "ptb-xl-500" / "ptbxl_database.csv", tmp_path)
    found = ptbxl.discover(tmp_path, dataset_card("ptb-xl"), Choices())
    assert found.layout == "cinc"
    assert found.excluded == {NO_ROW: 10}
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
