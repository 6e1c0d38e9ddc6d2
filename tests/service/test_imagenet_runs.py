"""ImageNet weights through the service: pretraining, transfer and predictions, without Ray."""

import json
from dataclasses import replace
from pathlib import Path

import made_catalogs
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from benchmd_ray.benchmarks.benchmd.published import auroc as paper_auroc
from benchmd_ray.cli import main
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.models.imagenet import read_imagenet
from benchmd_ray.report.analysis import analyse
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.runs.store import read_run
from benchmd_ray.service import execute
from benchmd_ray.service.execute import base_settings, pretrain_run, transfer_run
from benchmd_ray.settings.definition import ENCODERS, Settings, as_dict, default_settings, updated
from benchmd_ray.training.launch import launch as launch_job
from benchmd_ray.training.weights import load_encoder

SHORT = {
    "pretrain": {"steps": 4, "batch_size": 4},
    "transfer": {"epochs": 2, "batch_size": 8},
    "execution": {"device": "cpu", "log_every": 1, "checkpoint_every": 2},
}


def images(dataset, split, count):
    """Records with noise, brighter where an odd record shows every finding."""
    card = dataset_card(dataset)
    generator = np.random.default_rng(len(split))
    for row in range(count):
        signal = generator.integers(0, 120, card.signal.stored_shape) + 100 * (row % 2)
        name = f"{split}{row}"
        target = [row % 2] * len(card.classes)
        if card.task.kind == "single-label":
            target = np.eye(len(card.classes), dtype=int)[row % len(card.classes)].tolist()
        yield Record(name, name, name, signal.astype(np.uint8), 1.0, (200, 224), target)


def write_catalog(path, dataset, splits, statistics):
    """A catalog of images, as `open_catalog` takes it."""
    made = {split: [list(images(dataset, split, count))] for split, count in splits.items()}
    return made_catalogs.write_catalog(path, dataset_card(dataset), made, statistics=statistics)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("catalogs") / "mimic-cxr"
    splits = {"train": 8, "validation": 6}
    return write_catalog(folder, "mimic-cxr", splits, {"mean": [110.0], "std": [61.0]})


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_catalog(tmp_path_factory.mktemp("catalogs") / "t", "vindr-cxr", {"test": 6}, None)


def short(path, technique):
    return updated(base_settings(path, technique), SHORT)


@pytest.fixture
def weights(vit_tiny_file):
    return vit_tiny_file


def benchmd(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments), "--set", "execution.device=cpu"])


def test_the_weights_are_a_finished_run_at_once(source, weights, tmp_path):
    done = benchmd(
        "pretrain", "--catalog", source, "--technique", "imagenet", "--weights", weights,
        "--store", tmp_path / "runs",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    note, folder = done.output.splitlines()
    assert note == "from model.safetensors, without: head.bias, head.weight"
    run = read_run(Path(folder))
    assert run.finished
    assert run.folder.name.startswith("pretrain-cxr-imagenet-")
    expected = read_imagenet(weights, load_encoder(run.folder).signal).tensors
    state = load_encoder(run.folder).state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], value) for name, value in expected.items())
    about = json.loads((run.folder / "run.json").read_text())
    assert about["technique"] == "imagenet"
    assert about["protocol"] == "fixed"
    assert about["determinants"]["weights"] == sha256(weights)
    assert about["weights"] == {"file": weights.name, "skipped": ["head.bias", "head.weight"]}
    for file in run.folder.rglob("*.json"):
        assert str(weights.parent) not in file.read_text()


def test_the_hash_of_the_run_goes_by_the_weights_and_not_by_their_place(
    source, weights, vit_tiny_tensors, tmp_path
):
    def run(file, seed=0):
        settings = replace(base_settings(source, "imagenet"), seed=seed)
        return pretrain_run("imagenet", source, tmp_path / "runs", settings, weights=file)

    copy, other = tmp_path / "copy.safetensors", tmp_path / "other.safetensors"
    copy.write_bytes(weights.read_bytes())
    save_file({**vit_tiny_tensors, "cls_token": torch.ones(1, 1, 192)}, other)
    assert run(copy).folder == run(weights).folder == run(weights, seed=1).folder
    assert run(other).folder != run(weights).folder


@pytest.fixture(scope="module")
def transferred(source, target, tmp_path_factory, vit_tiny_tensors):
    """An imagenet run and a linear evaluation from it, by the commands."""
    folder = tmp_path_factory.mktemp("transferred")
    save_file(vit_tiny_tensors, folder / "w.safetensors")
    store = folder / "runs"
    upstream = benchmd(
        "pretrain", "--catalog", source, "--technique", "imagenet", "--store", store,
        "--weights", folder / "w.safetensors",
    ).output.splitlines()[-1]  # fmt: skip
    done = benchmd(
        "transfer", "--catalog", source, "--from", upstream, "--target", target, "--store", store
    )
    assert done.exit_code == 0, done.output
    return read_run(Path(upstream)), read_run(Path(done.output.splitlines()[-1]))


def test_a_transfer_with_the_default_settings_is_the_fixed_protocol(transferred):
    upstream, run = transferred
    assert run.finished
    assert run.description["technique"] == "imagenet"
    assert run.settings.encoder == ENCODERS["vit-tiny"]
    assert run.description["protocol"] == "fixed"
    before, after = load_file(upstream.folder / MODEL), load_file(run.folder / MODEL)
    assert all(torch.equal(after[name], value) for name, value in before.items())  # frozen


def test_its_predictions_are_those_of_its_features(transferred, source):
    _, run = transferred
    predictions = read_predictions(predictions_path(run.folder, "mimic-cxr"))
    targets, scores, _ = predictions.of_split("validation")
    signals = np.stack([record.signal for record in images("mimic-cxr", "validation", 6)])
    pixels = (torch.from_numpy(signals).float() - 110) / 61
    pixels[:, :, :12], pixels[:, :, 212:] = 0, 0  # the padding of 200 valid rows of 224
    head = load_file(run.folder / MODEL)
    with torch.inference_mode():
        features = load_encoder(run.folder).eval()(pixels)
    expected = torch.sigmoid(features @ head["head.weight"].T + head["head.bias"])
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-5)
    assert targets.shape == (6, 5)


def test_the_papers_numbers_stand_beside(transferred):
    _, run = transferred
    rows = analyse([run], resamples=2).rows.dropna(subset="paper")
    assert dict(zip(rows["dataset"], rows["paper"], strict=True)) == {
        name: paper_auroc()[name, "linear", "imagenet"] for name in ("mimic-cxr", "vindr-cxr")
    }


@pytest.mark.slow
def test_mae_goes_on_from_the_weights(source, weights, tmp_path):
    settings = updated(short(source, "imagenet+mae"), {"pretrain": {"optimiser": {"lr": 1e-12}}})
    run = pretrain_run("imagenet+mae", source, tmp_path, settings, weights=weights)
    assert run.description["technique"] == "imagenet+mae"
    assert run.folder.name.startswith("pretrain-cxr-imagenet-mae-")
    encoder = load_encoder(run.folder)
    for name, value in read_imagenet(weights, encoder.signal).tensors.items():
        torch.testing.assert_close(encoder.state_dict()[name], value, atol=1e-9, rtol=1e-6)
    assert "head.1.weight" in load_file(run.folder / MODEL)  # MAE's own
    assert not list(run.folder.glob("start*"))
    learnt = pretrain_run(
        "imagenet+mae", source, tmp_path, short(source, "imagenet+mae"), weights=weights
    )
    assert sha256(learnt.folder / MODEL) != sha256(run.folder / MODEL)
    transfer = transfer_run(source, tmp_path, short(source, "mae"), upstream=learnt.folder)
    assert transfer.description["technique"] == "imagenet+mae"
    assert transfer.settings.encoder == ENCODERS["vit-tiny"]


class Killed(Exception):
    """Stands for whatever ends a process in the middle."""


@pytest.mark.slow
def test_resumed_mae_from_imagenet_is_uninterrupted_mae_from_imagenet(
    source, weights, tmp_path, monkeypatch
):
    def run(store):
        settings = short(source, "imagenet+mae")
        return pretrain_run("imagenet+mae", source, store, settings, weights=weights)

    whole = run(tmp_path / "whole")
    with monkeypatch.context() as patch:

        def killing(job, on_ray, **_):
            cut = replace(job.settings.pretrain, steps=3)  # a checkpoint at 2 and 3, then killed
            launch_job(replace(job, settings=replace(job.settings, pretrain=cut)), on_ray=on_ray)
            (job.folder / MODEL).unlink()
            raise Killed

        patch.setattr(execute, "launch", killing)
        with pytest.raises(Killed):
            run(tmp_path / "broken")
    broken = run(tmp_path / "broken")
    assert sha256(broken.folder / MODEL) == sha256(whole.folder / MODEL)


def test_only_the_techniques_own_encoder_is_called_fixed(source, weights, tmp_path):
    def run(technique, encoder):
        settings = updated(
            default_settings(dataset_card("mimic-cxr").modality), {"encoder": encoder}
        )
        return pretrain_run(technique, source, tmp_path, settings, weights=weights)

    for encoder in ("paper", "vit-tiny"):  # the default stands for the technique's own
        chosen = run("imagenet", encoder)
        assert chosen.description["protocol"] == "fixed"
        assert chosen.settings.encoder == ENCODERS["vit-tiny"]
    dropping = run("imagenet", {**as_dict(ENCODERS["vit-tiny"]), "dropout": 0.2})
    assert dropping.description["protocol"] == ""
    assert dropping.settings.encoder.dropout == 0.2
    with pytest.raises(BenchmdError, match="another encoder than the technique imagenet has: omit"):
        run("imagenet", "tiny")


def test_a_scratch_run_of_that_encoder_is_not_the_fixed_protocol(source, tmp_path):
    settings = updated(short(source, "scratch"), {"encoder": "vit-tiny"})
    assert transfer_run(source, tmp_path, settings).description["protocol"] == ""
    assert base_settings(source, "scratch") == Settings()


def refused(store, *arguments, **options):
    with pytest.raises(BenchmdError) as error:
        pretrain_run(*arguments, **options)
    assert not store.exists()
    return str(error.value)


def test_what_cannot_be_pretrained_is_refused_and_leaves_no_run(
    source, target, weights, tmp_path, vit_tiny_tensors
):
    store, settings = tmp_path / "runs", short(source, "imagenet")
    ecg = made_catalogs.write_catalog(tmp_path / "ptb-xl", dataset_card("ptb-xl"), {})
    for technique in ("imagenet", "imagenet+mae"):
        message = refused(store, technique, ecg, store, settings, weights=weights)
        assert "ImageNet weights are for 2-D images (cxr, mammo, derm, fundus)" in message
        message = refused(store, technique, target, store, settings, weights=weights)
        assert "targets are never trained on" in message
    message = refused(store, "mae", source, store, Settings(), weights=weights)
    assert "the technique mae does not start from ImageNet weights" in message
    save_file({**vit_tiny_tensors, "cls_token": torch.ones(192)}, tmp_path / "bad.safetensors")
    message = refused(
        store, "imagenet", source, store, settings, weights=tmp_path / "bad.safetensors"
    )
    assert "cls_token is torch.float32 (192,)" in message
    odd = updated(settings, {"pretrain": {"batch_size": 7}, "execution": {"workers": 2}})
    assert "expected a multiple" in refused(store, "mae", source, store, odd)
    if not torch.cuda.is_available():
        cuda = updated(settings, {"execution": {"device": "cuda"}})
        assert "PyTorch sees no GPU" in refused(store, "shed", source, store, cuda)


def test_a_transfer_that_is_refused_leaves_no_run(source, target, tmp_path):
    store = tmp_path / "runs"
    workers = updated(short(source, "scratch"), {"execution": {"workers": 2}})
    with pytest.raises(BenchmdError, match="runs on one worker"):
        transfer_run(source, store, workers)
    ecg = made_catalogs.write_catalog(tmp_path / "georgia", dataset_card("georgia"), {})
    with pytest.raises(
        BenchmdError, match=r"is a catalog of ecg \(normal.*the source is one of cxr \(atel"
    ):
        transfer_run(source, store, short(source, "scratch"), targets=(target, ecg))
    assert not store.exists()
