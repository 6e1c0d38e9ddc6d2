"""A head with a hidden layer on frozen features: trained, named, stored, loaded, exported."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional

import benchmd_ray
from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.data.batches import Worker, epoch_order
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.errors import BenchmdError
from benchmd_ray.export.model import export_run
from benchmd_ray.export.portable import ONNX, TORCH, noise
from benchmd_ray.files.integrity import write_hashed_json
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.service.execute import transfer_run
from benchmd_ray.training.jobs import TransferJob
from benchmd_ray.training.seeds import WEIGHTS, derived_seed, seed_step
from benchmd_ray.training.selection import Best
from benchmd_ray.training.transfer import transfer
from benchmd_ray.training.weights import DESCRIPTION, load_classifier, model_description

HIDDEN = ("transfer.hidden=8", "transfer.dropout=0.3", "seed=2")


@pytest.fixture(scope="module")
def stored(source, make_settings, tmp_path_factory):
    """The run of a transfer in a store."""
    settings = make_settings(*HIDDEN)
    return transfer_run(source.path, tmp_path_factory.mktemp("store"), settings)


@pytest.fixture
def run(source, make_settings, recorder, tmp_path):
    """Transfers in this process: their folder and reporter."""

    def start(name, *assignments):
        folder, reporter = tmp_path / name, recorder()
        folder.mkdir()
        transfer(TransferJob(make_settings(*assignments), source.path, folder), Worker(), reporter)
        return folder, reporter

    return start


def keep_last(best, score, epoch, weights):
    best.score, best.epoch, best.weights = score, epoch, weights()


def plain_loop(source, settings):
    """Losses of each epoch, and the layers (first, second) after the last, by torch only."""
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed))
    encoder = Encoder(source.signal, settings.encoder).eval()
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed, 1))
    first, second = nn.Linear(encoder.width, 8), nn.Linear(8, len(source.task.classes))
    batches = list(resident_feed(source, "train", seed=0).ordered(64))
    features = torch.cat([encoder(batch.signals) for batch in batches]).detach()
    labels = torch.cat([batch.targets for batch in batches]).argmax(dim=1)
    parameters = [*first.parameters(), *second.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=settings.transfer.optimiser.lr, weight_decay=1e-4)
    losses, step = [], 0
    for epoch in range(settings.transfer.epochs):
        order = np.array(epoch_order(settings.seed, epoch, len(labels)))
        total = 0.0
        for start in range(0, len(order), settings.transfer.batch_size):
            rows = order[start : start + settings.transfer.batch_size]
            seed_step(settings.seed, step, 0)
            inside = functional.dropout(functional.gelu(first(features[rows])), 0.3)
            loss = functional.cross_entropy(second(inside), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total, step = total + loss.item() * len(rows), step + 1
        losses.append(total / len(order))
    return losses, first, second


def test_training_on_features_is_a_plain_loop(run, source, make_settings, monkeypatch):
    monkeypatch.setattr(Best, "offer", keep_last)
    folder, reporter = run("run", *HIDDEN)
    losses, first, second = plain_loop(source, make_settings(*HIDDEN))
    assert reporter.column("loss") == pytest.approx(losses, abs=1e-5)
    head = load_classifier(folder).head.state_dict()
    expected = {f"0.{name}": value for name, value in first.state_dict().items()}
    expected |= {f"3.{name}": value for name, value in second.state_dict().items()}
    assert head.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(head[name], value, atol=1e-5, rtol=0)


def test_validation_is_scored_without_dropout(run, source, monkeypatch):
    monkeypatch.setattr(Best, "offer", keep_last)
    folder, reporter = run("run", "transfer.hidden=8", "transfer.dropout=0.9", "transfer.epochs=1")
    model = load_classifier(folder).eval()
    data = list(resident_feed(source, "validation", seed=0).ordered(64))
    with torch.no_grad():
        logits = torch.cat([model(batch.signals) for batch in data])
    labels = torch.cat([batch.targets for batch in data]).numpy()
    scores = logits.softmax(dim=1).numpy()
    expected = np.mean([roc_auc_score(*pair) for pair in zip(labels.T, scores.T, strict=True)])
    assert reporter.column("validation_auroc")[-1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["finetune", "knn", "linear"])
def test_what_does_not_read_it_is_the_same_model(run, mode):
    chosen = [f"transfer.mode={mode}", "transfer.epochs=1", "transfer.solver=logistic"]
    plain, _ = run("plain", *chosen)
    other, _ = run("other", *chosen, "transfer.hidden=8")
    tensors = load_file(plain / MODEL), load_file(other / MODEL)
    torch.testing.assert_close(*tensors, atol=1e-4, rtol=1e-4)
    assert "hidden" not in model_description(other)


def test_the_hidden_layer_names_a_run_where_it_is_read(source, make_settings, stored, tmp_path):
    def name(*assignments):
        settings = make_settings("transfer.epochs=1", *assignments)
        return transfer_run(source.path, tmp_path, settings).folder.name

    assert stored.description["determinants"]["transfer"]["hidden"] == 8
    linear = name()
    assert linear == name("transfer.hidden=0")
    assert linear != name("transfer.hidden=8") != name("transfer.hidden=4")
    logistic = "transfer.solver=logistic"
    assert name(logistic) == name(logistic, "transfer.hidden=8")


def test_predictions_are_those_of_the_model(stored, source):
    batches = list(resident_feed(source, "validation", seed=0).ordered(64))
    model = load_classifier(stored.folder).eval()
    with torch.no_grad():
        expected = torch.cat([model(batch.signals) for batch in batches]).softmax(dim=1).numpy()
    table = read_predictions(predictions_path(stored.folder, source.dataset)).table.to_pandas()
    scores = np.stack(table[table["split"] == "validation"]["scores"].to_numpy())
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_a_description_of_another_width_is_refused(run):
    folder, _ = run("run", *HIDDEN, "transfer.epochs=1")
    for width in (9, 2**50):
        description = model_description(folder) | {"hidden": width}
        write_hashed_json(folder / DESCRIPTION, description)
        with pytest.raises(BenchmdError, match="holds weights of another architecture"):
            load_classifier(folder)


def test_detectors_refuse_it(stored):
    with pytest.raises(BenchmdError, match=r"detectors read .* linear head.*transfer\.hidden=0"):
        Network.of(stored.folder, Worker(), "float32")


@pytest.mark.slow
def test_programs_give_the_same_probabilities(stored, source, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "model"
    export_run(stored, out, torch_export=True, onnx=True, catalog=source.path)
    model = benchmd_ray.classifier(stored, "cpu")
    signals = noise(source.signal, source.statistics).inputs[0]
    expected = model.predict(signals)
    assert model.module.module.head[3].in_features == 8
    torch.testing.assert_close(benchmd_ray.classifier(out, "cpu").predict(signals), expected)
    program = torch.export.load(out / TORCH).module()
    torch.testing.assert_close(program(signals), expected, atol=1e-5, rtol=0)
    session = onnxruntime.InferenceSession(out / ONNX)
    given = {session.get_inputs()[0].name: signals.numpy()}
    np.testing.assert_allclose(session.run(None, given)[0], expected, atol=1e-5)
