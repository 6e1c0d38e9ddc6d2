"""Predictions of a model on a hand-made catalog, against the model applied record by record."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from kinds import MODALITIES, SIGNALS

from benchmd_ray.benchmarks.evaluation import CLASSIFICATION, Asked
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.hardware import from_json, hardware
from benchmd_ray.integrity import Damaged, read_hashed_json, write_hash, write_hashed_json
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.settings import load_settings
from benchmd_ray.training.predict import merging
from benchmd_ray.training.predictions import (
    CLASSIFIED,
    Form,
    Outdated,
    predictions_path,
    read_predictions,
)
from benchmd_ray.training.weights import export_model

FUNDUS, TASK = SIGNALS["fundus"], MODALITIES["fundus"].task
MERGED = {
    "ICDR 0": ("ICDR 0",),
    "ICDR 1-2": ("ICDR 1", "ICDR 2"),
    "ICDR 3": ("ICDR 3",),
    "ICDR 4": ("ICDR 4",),
}
SOURCE = {"mean": [120.0, 60.0, 30.0], "std": [50.0, 25.0, 12.5]}
OWN = {"mean": [90.0, 91.0, 92.0], "std": [10.0, 11.0, 12.0]}
SIZES = [(224, 224), (221, 130), (64, 223), (224, 1), (99, 98), (40, 224), (224, 111)]


@pytest.fixture
def target(changed_card):
    return changed_card("coarse", modality="fundus", merged_classes=MERGED)


@pytest.fixture
def records():
    """Seven images of four people, the first two of one unit; every one differs."""
    generator = np.random.default_rng(2)
    made = []
    for row, valid in enumerate(SIZES):
        target = np.eye(4, dtype=int)[row % 4].tolist()
        signal = generator.integers(0, 256, FUNDUS.stored_shape, np.uint8)
        unit = f"u{max(row, 1)}"
        made.append(Record(f"r{row}", f"p{row // 2}", unit, signal, 1.0, valid, target))
    return made


@pytest.fixture
def model():
    torch.manual_seed(0)
    size = load_settings(assignments=["encoder=tiny"]).encoder
    model = Classifier(Encoder(FUNDUS, size), len(TASK.classes)).eval()
    with torch.no_grad():
        model.head.weight *= 20  # scores that differ
    return model, size


def slow_scores(model, record, statistics):
    """Softmax of one image, and ICDR 1 and 2 together."""
    x = np.zeros(FUNDUS.input_shape)
    height, width = record.valid_size
    top, left = (224 - height) // 2, (224 - width) // 2
    window = np.s_[top : top + height, left : left + width]
    for channel in range(3):
        mean, std = statistics["mean"][channel], statistics["std"][channel]
        x[channel][window] = (record.signal[channel][window] - mean) / std
    with torch.no_grad():
        logits = model(torch.from_numpy(x[None]).float())[0].numpy().astype(np.float64)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return [p[0], p[1] + p[2], p[3], p[4]]


def predicted(tmp_path, catalog, model, statistics):
    model, size = model
    export_model(tmp_path, model.state_dict(), size, FUNDUS, statistics, TASK)
    settings = load_settings(assignments=["encoder=tiny", "execution.feed=resident"])
    return read_predictions(CLASSIFICATION.predict(Asked(tmp_path, catalog, settings, Worker())))


def test_a_target_is_normalised_by_the_sources_statistics(
    tmp_path, target, write_catalog, records, model
):
    catalog = write_catalog(target, {"test": [records[:3], records[3:]]}, OWN)
    found = predicted(tmp_path, catalog, model, SOURCE)
    scores = np.array(found.table["scores"].to_pylist())
    expected = [slow_scores(model[0], record, SOURCE) for record in records]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    other = [slow_scores(model[0], record, OWN) for record in records]
    assert np.abs(scores - other).max() > 0.01  # the catalog's own would be noticed
    assert found.table["record_id"].to_pylist() == [record.record_id for record in records]
    assert found.classes == tuple(MERGED)
    assert found.description["dataset"] == "coarse"
    assert from_json(found.description["hardware"]) == hardware(torch.device("cpu"))


def test_single_label_scores_are_the_softmax_and_no_sigmoid_of_it(
    tmp_path, target, write_catalog, records, model
):
    catalog = write_catalog(target, {"test": [records]}, OWN)
    found = predicted(tmp_path, catalog, model, SOURCE)
    scores = np.array(found.table["scores"].to_pylist())
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-9)  # sigmoids would give 2 and more
    assert scores.min() < 0.5


def test_rows_of_a_unit_are_scored_as_one(tmp_path, target, write_catalog, records, model):
    catalog = write_catalog(target, {"test": [records]}, OWN)
    targets, scores, groups = predicted(tmp_path, catalog, model, SOURCE).of_split("test")
    each = np.array([slow_scores(model[0], record, SOURCE) for record in records])
    np.testing.assert_allclose(scores[0], np.maximum(each[0], each[1]), atol=1e-5)
    np.testing.assert_allclose(scores[1:], each[2:], atol=1e-5)
    assert targets.tolist() == [[1, 1, 0, 0], *(list(r.target) for r in records[2:])]
    assert groups.tolist() == ["p0", "p1", "p1", "p2", "p2", "p3"]


def test_units_have_the_metadata_of_their_first_row_in_the_order_of_the_scores(
    tmp_path, target, write_catalog, records, model
):
    known = [
        dataclasses.replace(
            record, metadata={"age": 30.0 + row, "sex": "female", "site": f"s{row}"}
        )
        for row, record in enumerate(records)
    ]
    known[3] = dataclasses.replace(known[3], metadata={})
    found = predicted(tmp_path, write_catalog(target, {"test": [known]}, OWN), model, SOURCE)
    units = found.units_of_split("test")
    assert units["unit_id"].tolist() == ["u1", "u2", "u3", "u4", "u5", "u6"]
    assert units["group_id"].tolist() == found.of_split("test")[2].tolist()
    assert units["age"].fillna(-1).tolist() == [30, 32, -1, 34, 35, 36]  # u1 has two rows
    assert units["site"].fillna("").tolist() == ["s0", "s2", "", "s4", "s5", "s6"]
    assert units["view"].isna().all()


def test_a_model_of_another_modality_is_refused(tmp_path, changed_card, write_catalog, model):
    card = changed_card("films", modality="mammo")
    record = Record("r", "p", "r", np.zeros((1, 224, 224), np.uint8), 1.0, (9, 9), [1, 0, 0, 0, 0])
    catalog = write_catalog(card, {"test": [[record]]}, {"mean": [1.0], "std": [1.0]})
    with pytest.raises(BenchmdError, match=r"a model of fundus, the catalog .* is of mammo: name"):
        predicted(tmp_path, catalog, model, SOURCE)


def test_a_model_of_another_version_is_named(tmp_path, target, write_catalog, records, model):
    catalog = write_catalog(target, {"test": [records]}, OWN)
    predicted(tmp_path, catalog, model, SOURCE)
    description = read_hashed_json(tmp_path / "model.json", "")
    del description["statistics"]
    write_hashed_json(tmp_path / "model.json", description)
    settings = load_settings(assignments=["execution.feed=resident"])
    with pytest.raises(BenchmdError, match=r"model\.json is damaged: it lacks statistics"):
        CLASSIFICATION.predict(Asked(tmp_path, catalog, settings, Worker()))


def test_merged_classes_sum_their_scores(target):
    scores = np.random.default_rng(0).dirichlet(np.ones(5), 20)
    by_name = dict(zip(TASK.classes, scores.T, strict=True))
    expected = np.stack([sum(by_name[name] for name in names) for names in MERGED.values()], axis=1)
    np.testing.assert_allclose(scores @ merging(target), expected)
    np.testing.assert_array_equal(expected[:, 1], scores[:, 1] + scores[:, 2])


@pytest.mark.parametrize("name", MODALITIES)
def test_classes_that_nothing_merges_keep_their_scores(changed_card, name):
    card = changed_card(modality=name)
    np.testing.assert_array_equal(merging(card), np.eye(len(card.classes)))


def test_a_class_that_is_merged_away_has_no_score(changed_card):
    only = {"worst": ("ICDR 4",), "mild": ("ICDR 1", "ICDR 2")}
    card = dataclasses.replace(changed_card(modality="fundus"), merged_classes=only)
    assert merging(card).tolist() == [[0, 0], [0, 1], [0, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize(
    ("changes", "score", "message"),
    [
        ({"raw_records": str(10**30)}, None, "a count of raw records is none"),
        ({"raw_expected": "-1"}, None, "a count of raw records is none"),
        ({}, 1.5, "a score is missing, NaN or outside 0 to 1"),
        ({}, -0.5, "a score is missing, NaN or outside 0 to 1"),
    ],
)
def test_numbers_that_no_predictions_have_are_refused(
    tmp_path, target, write_catalog, records, model, changes, score, message
):
    held = predicted(tmp_path, write_catalog(target, {"test": [records]}, OWN), model, SOURCE)
    table, place = held.table, held.table.column_names.index("scores")
    if score is not None:
        values = table["scores"].to_pylist()
        values[1][0] = score
        kind = table.schema.field(place)
        table = table.set_column(place, kind, pa.array(values, kind.type))
    table = table.replace_schema_metadata(held.description | changes)
    path = predictions_path(tmp_path, "coarse")
    pq.write_table(table, path)
    write_hash(path)
    with pytest.raises(Damaged, match=message):
        read_predictions(path)


def test_predictions_of_another_evaluation_or_version_are_refused(
    tmp_path, target, write_catalog, records, model
):
    catalog = write_catalog(target, {"test": [records]}, OWN)
    predicted(tmp_path, catalog, model, SOURCE)
    path, other = predictions_path(tmp_path, "coarse"), Form("detection", 1, lambda table: "")
    with pytest.raises(Damaged, match="evaluation 'classification', expected 'detection'"):
        read_predictions(path, other)
    now = CLASSIFIED.version
    older = rf"version {now} of the evaluation classification, .* now {now + 1}"
    with pytest.raises(Outdated, match=older):
        read_predictions(path, dataclasses.replace(CLASSIFIED, version=now + 1))
    elsewhere = predictions_path(tmp_path, "coarse", "detection")
    shutil.copytree(path.parent, elsewhere.parent)
    for form in (CLASSIFIED, other):
        with pytest.raises(Damaged, match="it is of the evaluation 'classification'"):
            read_predictions(elsewhere, form)
