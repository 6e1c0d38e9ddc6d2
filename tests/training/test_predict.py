"""Predictions of a model on a hand-made catalog, against the model applied record by record."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from kinds import MODALITIES, SIGNALS
from torch.utils.data import DataLoader

from benchmd_ray.cluster.hardware import from_json, hardware
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.map_style import SplitDataset
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, Asked
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hash, write_hashed_json
from benchmd_ray.modality.tasks import Task
from benchmd_ray.models.encoder import Encoder, make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.models.segmenter import Segmenter
from benchmd_ray.runs.predictions import (
    CLASSIFIED,
    Form,
    Outdated,
    predictions_path,
    read_predictions,
)
from benchmd_ray.settings.definition import AugmentationSettings, load_settings
from benchmd_ray.training.applied import FeatureEncoder, SignalClassifier
from benchmd_ray.training.predict import merging
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
        ({"raw_records": str(10**30)}, None, "a count of raw records is not a number"),
        ({"raw_expected": "-1"}, None, "a count of raw records is not a number"),
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


def exported(folder, model, signal=FUNDUS, task=TASK, **more):
    """A folder with a model, as a run has it."""
    module, size = model
    folder.mkdir(exist_ok=True)
    export_model(folder, module.state_dict(), size, signal, SOURCE, task, **more)
    return folder


def loaded(catalog):
    """Signals in their unit with valid sizes and targets, by loaders of PyTorch."""
    data = SplitDataset(catalog, "test", physical=True)
    parts = zip(*DataLoader(data, batch_size=3), strict=True)
    return [torch.cat(part) for part in parts]


def test_padded_signals_in_their_unit_are_predicted_as_those_of_the_catalog(
    tmp_path, target, write_catalog, records, model
):
    catalog = write_catalog(target, {"test": [records]}, OWN)
    signals, sizes, labels = loaded(catalog)
    np.testing.assert_array_equal(signals, np.stack([record.signal for record in records]))
    assert sizes.tolist() == [list(size) for size in SIZES]
    assert labels.tolist() == [int(np.argmax(record.target)) for record in records]
    found = SignalClassifier(exported(tmp_path / "run", model))
    expected = [slow_scores(model[0], record, SOURCE) for record in records]
    scores = found.predict(signals.numpy(), sizes=sizes, card=catalog.card)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    one = found.predict(signals[3], sizes=SIZES[3], card=catalog.card)
    np.testing.assert_allclose(one[0], expected[3], atol=1e-5)
    whole = found.predict(signals.numpy(), card=catalog.card)
    assert np.abs(whole - expected).max() > 0.01  # its padding would be taken for signal
    with pytest.raises(BenchmdError, match="another task than the model"):
        found.predict(signals, card=dataset_card("ptb-xl"))


def test_features_can_be_learned_from_and_any_layout_of_an_array_is_taken(tmp_path, records, model):
    encoder = FeatureEncoder(exported(tmp_path / "run", model))
    signals = np.stack([record.signal for record in records]).astype(np.float64)
    features = encoder.features(torch.from_numpy(signals))
    torch.nn.Linear(encoder.width, 2)(features).sum().backward()
    for other in (
        signals[:, :, ::-1][:, :, ::-1],
        signals.astype(">f4"),
        np.asfortranarray(signals),
    ):
        np.testing.assert_allclose(encoder.features(other), features, atol=1e-5)
    mirrored = encoder.features(np.ascontiguousarray(signals[:, :, ::-1]))
    np.testing.assert_array_equal(encoder.features(signals[:, :, ::-1]), mirrored)


def test_what_the_encoder_does_not_see_may_be_left_out(tmp_path):
    signal = replace(SIGNALS["ldct"], stored_shape=(1, 24, 40, 40), input_shape=(1, 24, 32, 32))
    size = load_settings(assignments=["encoder=tiny"]).encoder
    torch.manual_seed(0)
    model = Encoder(signal, size).eval()
    weights = {f"encoder.{name}": value for name, value in model.state_dict().items()}
    export_model(tmp_path, weights, size, signal, None)
    encoder = FeatureEncoder(tmp_path)
    whole = np.random.default_rng(0).uniform(-1500, 300, (2, 1, 24, 40, 40)).astype(np.float32)
    seen = whole[..., 4:36, 4:36]
    with torch.no_grad():
        expected = model(torch.from_numpy(((seen + 1350) / 1500).clip(0, 1)))
    np.testing.assert_allclose(encoder.features(whole), expected, atol=1e-5)
    np.testing.assert_allclose(encoder.features(seen), expected, atol=1e-5)


def test_a_model_of_shapes_sees_half_of_them(tmp_path, records, model):
    shape = AugmentationSettings(shape=True)
    plain = FeatureEncoder(exported(tmp_path / "plain", model))
    halved = FeatureEncoder(exported(tmp_path / "shape", model, augmentation=shape))
    x = np.stack([record.signal for record in records[:2]])
    mean, std = (np.reshape(SOURCE[name], (3, 1, 1)) for name in ("mean", "std"))
    np.testing.assert_allclose(  # half of what is normalised
        halved.features(x), plain.features(mean + (x - mean) / 2), atol=1e-4
    )
    assert std.min() > 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sizes": [[1.5, 2.0]]}, r"float64 of shape \(1, 2\), expected whole numbers"),
        ({"sizes": [[3]]}, r"expected whole numbers of shape \(1, 2\)"),
        ({"sizes": [[0, 3]]}, "from 1 to 224, 224"),
        ({"sizes": "a"}, "expected whole numbers"),
        ({"rate": 100.0}, "100 Hz, and the model has no rate"),
        ({"signals": np.zeros((1, 3, 224, 224), complex)}, "complex128, expected real numbers"),
    ],
)
def test_what_is_said_of_signals_is_checked(tmp_path, model, asked, message):
    encoder = FeatureEncoder(exported(tmp_path / "run", model))
    with pytest.raises(BenchmdError, match=message):
        encoder.features(**{"signals": np.zeros((1, 3, 224, 224)), **asked})


def test_a_device_that_there_is_not_is_refused(tmp_path, model):
    folder = exported(tmp_path / "run", model)
    with pytest.raises(BenchmdError, match="unknown device 'gpu'"):
        FeatureEncoder(folder, "gpu")
    assert FeatureEncoder(folder, torch.device("cpu")).device == torch.device("cpu")


def test_a_network_that_segments_has_no_features(tmp_path):
    shape = (1, 16, 32, 32)
    signal = replace(SIGNALS["ldct"], stored_shape=shape, input_shape=shape, patch=(16, 16, 16))
    assignments = ["encoder.network=monai-unet", "encoder.options={width: 4, depth: 2}"]
    size = load_settings(assignments=assignments).encoder
    task = Task("segmentation", ("background", "liver"))
    model = Segmenter(make_encoder(signal, size), 2)
    export_model(tmp_path, model.state_dict(), size, signal, None, task)
    with pytest.raises(BenchmdError, match="maps instead of features"):
        FeatureEncoder(tmp_path)
    with pytest.raises(BenchmdError, match="segments: name one that classifies"):
        SignalClassifier(tmp_path)


def test_a_signals_unit_is_that_of_its_scale(write_catalog):
    card = dataset_card("georgia")
    values = np.arange(12 * 5000, dtype=np.int16).reshape(12, 5000) % 100
    record = Record("r", "p", "r", values, 0.005, (4000,), [1, *[0] * (len(card.classes) - 1)])
    ((signal,), (size,), (label,)) = loaded(write_catalog(card, {"test": [[record]]}))
    np.testing.assert_allclose(signal, values * 0.005, rtol=1e-6)
    assert (size.tolist(), int(label)) == ([4000], 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_of_a_loader_give_the_same(target, write_catalog, records, how):
    data = SplitDataset(write_catalog(target, {"test": [records]}, OWN), "test", SOURCE)
    loader = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context=how)
    found = torch.cat([signals for signals, _ in loader])
    np.testing.assert_array_equal(found, torch.stack([data[row][0] for row in range(len(data))]))
