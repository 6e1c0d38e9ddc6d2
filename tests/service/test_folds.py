"""Runs that are trained on folds: identity, what they are trained and scored on, kept weights."""

import logging
import os
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.data.map_style import SplitDataset
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError, Stopped
from benchmd_ray.files.atomic import sha256
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hashed_json
from benchmd_ray.runs.listing import listed
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.runs.pretraining_data import read_seen
from benchmd_ray.runs.retention import prune
from benchmd_ray.runs.store import read_run
from benchmd_ray.scores.metrics import probabilities
from benchmd_ray.service import execute
from benchmd_ray.service.datasets import from_catalogs
from benchmd_ray.service.estimate import measured_runs
from benchmd_ray.service.naming import pretraining, transferring
from benchmd_ray.service.steps import Finetune, Fit, Linear, Neighbours, Pretrain, Request
from benchmd_ray.service.unseen import patients_of
from benchmd_ray.settings.definition import ENCODERS, Settings, updated
from benchmd_ray.ssl.brought import own_encoder
from benchmd_ray.storage.location import Address, put_file
from benchmd_ray.training.jobs import (
    PRETRAINED,
    RESULT,
    Fold,
    PretrainJob,
    TransferJob,
    transfer_result,
)
from benchmd_ray.training.pretrain import pretrain
from benchmd_ray.training.reporter import SilentReporter
from benchmd_ray.training.transfer import transfer
from benchmd_ray.training.weights import load_classifier, model_description
from benchmd_ray.tuning.trial import seed_of

SMALL = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {
        "pretrain": {"steps": 3, "batch_size": 8},
        "transfer": {"epochs": 2, "batch_size": 16},
        "execution": {"device": "cpu", "precision": "float32"},
    },
)
FINETUNE = updated(SMALL, {"transfer": {"mode": "finetune"}})
KERNELS = updated(
    Settings(encoder=replace(own_encoder("random-kernels"), options={"kernels": 12})),
    {"transfer": {"solver": "logistic"}, "execution": {"device": "cpu", "precision": "float32"}},
)
NAMES = ("model.safetensors", "model.json", RESULT)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def source(ecg_catalogs):
    return ecg_catalogs["ptb-xl"]


@pytest.fixture(scope="module")
def folds(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inner")
    return [Fold(e, inner_catalog(source, folder, e).path) for e in (0, 1)]


def seeded(settings, fold):
    return replace(settings, seed=seed_of(settings.seed, fold.evaluation))


def run(step, source, store, settings, fold, *, technique="scratch", upstream=None):
    return step.run(
        Request(technique, source.path, store, seeded(settings, fold), upstream=upstream, fold=fold)
    )


def trained(folder, settings, fold, *, upstream=None):
    """The folder in which a job on the fold's inner catalog has left its weights."""
    folder.mkdir(parents=True)
    job = TransferJob(seeded(settings, fold), fold.catalog, folder, upstream)
    transfer(job, Worker(), SilentReporter())
    return folder


def test_a_fold_names_its_run_and_is_stated_without_the_search(source, folds, tmp_path):
    whole = transferring(source, SMALL, None)
    first, second = (transferring(source, SMALL, None, fold) for fold in folds)
    names = {resolved.run(tmp_path).folder.name for resolved in (whole, first, second)}
    assert len(names) == 3
    inner = open_catalog(folds[1].catalog)
    assert second.description["fold"] == {"evaluation": 1, "inner": inner.digest}
    determinants = second.description["determinants"]
    assert (determinants["fold"], determinants["catalog"]) == (inner.digest, source.digest)
    assert whole.description | {"fold": 0, "determinants": 0} == (
        second.description | {"fold": 0, "determinants": 0}
    )
    kept = transferring(source, SMALL, None, replace(folds[1], model=tmp_path))
    assert kept.description == second.description


def test_a_run_on_a_fold_follows_no_protocol(source, folds):
    settings = replace(SMALL, encoder=ENCODERS["paper"], transfer=Settings().transfer)
    assert transferring(source, settings, None).description["protocol"] == "fixed"
    assert transferring(source, settings, None, folds[0]).description["protocol"] == ""


def test_a_fold_of_another_catalog_is_refused(source, ecg_catalogs, folds):
    other = replace(folds[0], catalog=source.path)
    with pytest.raises(BenchmdError, match="is not an inner catalog of"):
        transferring(source, SMALL, None, other)


def test_a_pretraining_on_a_fold_sees_its_training_records_only(source, folds, tmp_path):
    resolved = pretraining("random-kernels", source, KERNELS, None, folds[1])
    inner = open_catalog(folds[1].catalog)
    (entry,) = resolved.description["pretrained_on"]
    assert entry["catalog"] == source.digest  # as of one on the whole training split
    assert entry["records"] == inner.rows("train") < source.rows("train")
    fitted = run(Fit(), source, tmp_path, KERNELS, folds[1], technique="random-kernels")
    (seen,) = read_seen(fitted.folder).items()
    assert (seen[0], {*seen[1].patients}) == (source.digest, patients_of(inner, ["train"]))


@pytest.fixture(scope="module")
def scratch(source, folds, tmp_path_factory):
    """A store with a fold run from scratch, not to be changed."""
    store = tmp_path_factory.mktemp("runs")
    return run(Finetune(), source, store, FINETUNE, folds[1])


def test_a_fold_run_is_trained_on_its_fold_and_scored_on_the_whole_source(
    scratch, source, folds, tmp_path
):
    alone = trained(tmp_path / "alone", FINETUNE, folds[1])
    model = "model.safetensors"
    assert (scratch.folder / model).read_bytes() == (alone / model).read_bytes()
    training = open_catalog(folds[1].catalog).rows("train")
    assert transfer_result(scratch.folder)["training_records"] == training < source.rows("train")
    predictions = read_predictions(predictions_path(scratch.folder, source.dataset))
    assert len(predictions.table) == sum(source.rows(s) for s in source.evaluation_splits)
    again = read_run(scratch.folder)
    assert again.finished
    assert (listed(again).fold, listed(again).data["fold"]) == (1, 1)
    assert listed(again).line.endswith("fold 1")


def test_a_fold_run_is_normalised_by_the_statistics_of_its_fold(write_catalog, tmp_path):
    """Independently: the exported model on images normalised by these."""
    card = dataset_card("messidor-2")
    splits = {"train": fundus_records("train", 20), "validation": fundus_records("validation", 9)}
    source = write_catalog(card, {split: [records] for split, records in splits.items()})
    inner = inner_catalog(source, tmp_path / "inner")
    assert source.signal.by_statistics
    assert inner.statistics != source.statistics
    transfer_on = run(Linear(), source, tmp_path, SMALL, Fold(0, inner.path))
    assert model_description(transfer_on.folder)["statistics"] == inner.statistics
    table = read_predictions(predictions_path(transfer_on.folder, source.dataset)).table
    table = table.filter(pc.equal(table["split"], "validation"))
    seen = SplitDataset(source, "validation", inner.statistics)
    signals = torch.stack([seen[row][0] for row in range(len(seen))])
    with torch.inference_mode():
        logits = load_classifier(transfer_on.folder).eval()(signals).numpy()
    expected = dict(zip(ids_of(source), probabilities(logits, source.task.kind), strict=True))
    scores = dict(zip(table["record_id"].to_pylist(), table["scores"].to_pylist(), strict=True))
    assert scores.keys() == expected.keys()
    for name, row in scores.items():
        assert row == pytest.approx(expected[name], abs=1e-5)


def ids_of(catalog):
    names = [pq.read_table(path)["record_id"].to_pylist() for path, *_ in catalog.shards(VALID)]
    return [name for part in names for name in part]


VALID = "validation"


def fundus_records(split, rows):
    draw = np.random.default_rng(rows)
    records = []
    for row in range(rows):
        grey = draw.integers(40, 200)
        image = draw.integers(grey - 40, grey + 40, (3, 224, 224)).astype(np.uint8)
        target = np.eye(5, dtype=int)[row % 5].tolist()
        name = f"{split}{row}"
        records.append(Record(name, name, name, image, 1.0, (224, 224), target))
    return records


def test_kernels_are_fitted_to_each_fold(source, folds, tmp_path):
    fitted = [
        run(Fit(), source, tmp_path, KERNELS, fold, technique="random-kernels") for fold in folds
    ]
    assert len({r.model_sha256 for r in fitted}) == 2


def test_a_shared_pretraining_serves_all_folds(source, folds, tmp_path):
    shared = Pretrain().run(Request("mae", source.path, tmp_path, SMALL))
    runs = [
        run(Linear(), source, tmp_path, SMALL, fold, technique="mae", upstream=shared)
        for fold in folds
    ]
    assert {r.description["upstream"] for r in runs} == {shared.folder.name}
    nearest = [
        run(Neighbours(), source, tmp_path, SMALL_KNN, fold, technique="mae", upstream=shared)
        for fold in folds
    ]
    assert len({r.folder for r in nearest}) == 2  # though nothing is drawn


SMALL_KNN = updated(SMALL, {"transfer": {"mode": "knn"}})


def kept_of(folder, settings, fold, **about):
    """A fold with kept weights that no training gives: its head has another bias."""
    trained(folder, settings, fold, **about)
    forged(folder, **{"head.bias": tensor_of(folder) + 1})
    return replace(fold, model=folder)


def test_kept_weights_are_taken_instead_of_training(scratch, source, folds, tmp_path, monkeypatch):
    fold = kept_of(tmp_path / "kept", FINETUNE, folds[1])
    monkeypatch.setattr(execute, "launch", None)
    taken = run(Finetune(), source, tmp_path / "runs", FINETUNE, fold)
    assert taken.folder.name == scratch.folder.name
    stated = model_description(fold.model)["weights"]
    assert taken.model_sha256 == stated != scratch.model_sha256
    result = transfer_result(taken.folder)  # names its run
    assert result == transfer_result(fold.model)
    state = listed(read_run(taken.folder))
    assert (state.state, state.score) == ("done", result["validation_auroc"])
    assert predictions_path(taken.folder, source.dataset).is_file()
    assert not list(taken.folder.glob(".partial*"))


@pytest.mark.parametrize("changes", [{}, {"pretrain": {"optimiser": {"lr": 0.05}}}])
def test_kept_weights_of_a_pretraining_are_taken_if_it_had_the_same_settings(
    source, folds, tmp_path, caplog, changes
):
    fold, kept = replace(folds[1], model=tmp_path / "kept" / PRETRAINED), tmp_path / "kept"
    settings = updated(seeded(SMALL, fold), changes)
    (kept / PRETRAINED).mkdir(parents=True)
    job = PretrainJob(settings, "mae", fold.catalog, kept / PRETRAINED)
    pretrain(job, Worker(), SilentReporter())
    transfer(
        TransferJob(settings, fold.catalog, kept, kept / PRETRAINED), Worker(), SilentReporter()
    )
    name = next(iter(load_file(kept / PRETRAINED / "model.safetensors")))
    forged(kept / PRETRAINED, **{name: tensor_of(kept / PRETRAINED, name) + 1})
    run_of = run(Pretrain(), source, tmp_path / "runs", SMALL, fold, technique="mae")
    is_taken = run_of.model_sha256 == sha256(kept / PRETRAINED / "model.safetensors")
    assert is_taken == (not changes)
    assert ("pretrain: not as in this run" in caplog.text) == bool(changes)
    assert read_seen(run_of.folder)


def flipped(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def forged(folder, **changes):
    """Other tensors with their hash."""
    tensors = load_file(folder / "model.safetensors") | changes
    save_file(tensors, folder / "model.safetensors")
    stated = {**read_hashed_json(folder / "model.json", ""), "weights": None}
    stated["weights"] = sha256(folder / "model.safetensors")
    write_hashed_json(folder / "model.json", stated)


def restated(folder, name, **changes):
    write_hashed_json(folder / name, read_hashed_json(folder / name, "") | changes)


def trained_of(folder):
    return read_hashed_json(folder / RESULT, "")["trained"]


def restated_training(folder, *, without=False, **changes):
    result = read_hashed_json(folder / RESULT, "")
    stated = {} if without else {"trained": result["trained"] | changes}
    kept = {name: value for name, value in result.items() if name != "trained"}
    write_hashed_json(folder / RESULT, kept | stated)


def tensor_of(folder, name="head.bias"):
    return load_file(folder / "model.safetensors")[name]


FAULTS = {
    "missing": (lambda kept: (kept / RESULT).unlink(), "training.json is missing"),
    "flipped": (flipped, "SHA-256 is not the one that was recorded"),
    "infinite": (
        lambda kept: forged(kept, **{"head.bias": tensor_of(kept) * float("nan")}),
        "NaN or infinite values in head.bias",
    ),
    "shape": (
        lambda kept: forged(kept, **{"head.bias": tensor_of(kept)[:-1].clone()}),
        "another architecture",
    ),
    "half": (
        lambda kept: forged(kept, **{"head.bias": tensor_of(kept).half()}),
        "weights: not as in this run",
    ),
    "statistics": (
        lambda kept: restated(kept, "model.json", statistics={"mean": [0.0], "std": [1.0]}),
        "statistics: not as in this run",
    ),
    "records": (
        lambda kept: restated(kept, RESULT, training_records=7),
        "training_records: not as in this run",
    ),
    "epochs": (
        lambda kept: restated_training(
            kept, transfer={**trained_of(kept)["transfer"], "epochs": 9}
        ),
        "transfer: not as in this run",
    ),
    "fold": (
        lambda kept: restated_training(kept, catalog="another", seed=7),
        "catalog, seed: not as in this run",
    ),
    "older": (lambda kept: restated_training(kept, without=True), "trained"),
    "pipe": (lambda kept: _pipe(kept / "model.json"), "model.json is missing"),
}


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.fixture(scope="module")
def kept(folds, tmp_path_factory):
    """Kept weights, not to be changed."""
    return kept_of(tmp_path_factory.mktemp("kept") / "model", FINETUNE, folds[1]).model


@pytest.mark.parametrize("fault", FAULTS)
def test_kept_weights_that_cannot_be_used_are_trained_again(
    scratch, source, folds, kept, tmp_path, caplog, fault
):
    damage, why = FAULTS[fault]
    folder = shutil.copytree(kept, tmp_path / "kept")
    damage(folder)
    with caplog.at_level(logging.WARNING, "benchmd_ray.service.kept_weights"):
        again = run(
            Finetune(), source, tmp_path / "runs", FINETUNE, replace(folds[1], model=folder)
        )
    assert again.model_sha256 == scratch.model_sha256
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith(f"{again.folder.name} is trained, as the weights that a search kept in")
    assert why in text
    assert not list(again.folder.glob(".partial*"))


def test_kept_weights_on_another_frozen_encoder_are_not_taken(source, folds, tmp_path, caplog):
    upstream, other = (
        Pretrain().run(Request("mae", source.path, tmp_path, replace(SMALL, seed=seed)))
        for seed in (0, 1)
    )
    for pretrained, count in ((other, 1), (upstream, 0)):
        folder = tmp_path / f"kept-{pretrained.folder.name}"
        trained(folder, SMALL, folds[1], upstream=pretrained.folder)
        caplog.clear()
        fold = replace(folds[1], model=folder)
        store = tmp_path / f"runs-{count}"
        run(Linear(), source, store, SMALL, fold, technique="mae", upstream=upstream)
        assert caplog.text.count(f"its frozen encoder is not that of {upstream.folder.name}") == (
            count
        )
        assert len(caplog.records) == count


def test_kept_weights_at_an_address_are_fetched(s3, source, folds, kept, tmp_path, monkeypatch):
    at = Address("s3://benchmd-test/runs/searches/tune-ecg/models/00003-001")
    for name in NAMES:
        put_file(kept / name, at / name)
    monkeypatch.setattr(execute, "launch", None)
    taken = run(Finetune(), source, tmp_path / "runs", FINETUNE, replace(folds[1], model=at))
    assert taken.model_sha256 == model_description(kept)["weights"]


def test_an_interrupted_fold_run_resumes(scratch, source, folds, kept, tmp_path, monkeypatch):
    """Also if it was killed while it took kept weights over."""
    before = execute.launch

    def killed(job, **about):
        (job.folder / ".partial-kept").mkdir()
        (job.folder / "model.safetensors").write_bytes(b"half")
        raise Stopped(15)

    monkeypatch.setattr(execute, "launch", killed)
    with pytest.raises(Stopped):
        run(Finetune(), source, tmp_path, FINETUNE, folds[1])
    (folder,) = tmp_path.glob("transfer-*")
    assert listed(read_run(folder)).state == "interrupted"
    monkeypatch.setattr(execute, "launch", before)
    resumed = run(Finetune(), source, tmp_path, FINETUNE, folds[1])
    assert resumed.model_sha256 == scratch.model_sha256
    fold = replace(folds[1], model=kept)  # what is finished stays as it is
    assert run(Finetune(), source, tmp_path, FINETUNE, fold).model_sha256 == scratch.model_sha256


def test_a_fold_that_was_changed_is_refused(scratch, tmp_path):
    copy = shutil.copytree(scratch.folder, tmp_path / scratch.folder.name)
    about = read_hashed_json(copy / "run.json", "")
    for fold in ({"evaluation": 1, "inner": "other"}, {"evaluation": -1, "inner": ""}, None):
        changed = {**about, "fold": fold} if fold else {k: about[k] for k in about if k != "fold"}
        write_hashed_json(copy / "run.json", changed)
        with pytest.raises(Damaged, match="fold"):
            read_run(copy)


def test_fold_runs_are_no_measurement_and_are_pruned_as_others(scratch, source, tmp_path):
    shutil.copytree(scratch.folder, tmp_path / scratch.folder.name)
    assert not list(measured_runs(tmp_path, from_catalogs([source.path]).datasets))
    pruned = prune(tmp_path, "predictions")
    assert [removal.kind for removal in pruned.removals if removal.kind == "weights"] == ["weights"]
