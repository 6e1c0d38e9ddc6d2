"""Random kernels as a technique: fitted to training records, transferred, exported."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.feed import read_columns
from benchmd_ray.data.map_style import SplitDataset
from benchmd_ray.errors import BenchmdError
from benchmd_ray.export.model import export_run
from benchmd_ray.runs.store import read_run
from benchmd_ray.scores.metrics import probabilities
from benchmd_ray.service.choice import Choice, settings_for, technique_settings
from benchmd_ray.service.execute import pretrain_run, transfer_run, transfer_settings
from benchmd_ray.service.naming import pretraining
from benchmd_ray.service.steps import transfer_step
from benchmd_ray.settings.definition import EncoderSettings, updated
from benchmd_ray.training.jobs import TransferJob, transfer_result
from benchmd_ray.training.predict import classified
from benchmd_ray.training.transfer import require_transferable
from benchmd_ray.training.weights import load_classifier, load_encoder

KERNELS = "random-kernels"


@pytest.fixture(scope="module")
def settings(source):
    small = {"encoder": {"options": {"kernels": 40}}, "execution": {"device": "cpu"}}
    chosen = updated(transfer_settings(source.path, KERNELS), small)
    assert (chosen.transfer.solver, chosen.encoder.network) == ("logistic", KERNELS)
    return chosen


@pytest.fixture(scope="module")
def linear(source, settings, tmp_path_factory):
    """A transfer's run; its store has the fitted kernels."""
    store = tmp_path_factory.mktemp("store")
    return transfer_run(source.path, store, settings, upstream=KERNELS)


def signals(source, split):
    dataset = SplitDataset(source, split, source.statistics)
    return torch.stack([dataset[row][0] for row in range(len(dataset))])


def test_kernels_tell_the_classes_apart_and_are_scored_as_the_model_predicts(source, linear):
    model = load_classifier(linear.folder).eval()
    with torch.inference_mode():
        logits = model(signals(source, "validation")).numpy()
    scores = probabilities(logits, source.task.kind)
    targets = read_columns(source, "validation").targets
    expected = np.mean([roc_auc_score(*pair) for pair in zip(targets.T, scores.T, strict=True)])
    result = transfer_result(linear.folder)
    assert result["validation_auroc"] == pytest.approx(expected, abs=1e-6)
    assert expected > 0.9  # sines of other frequencies, one lead raised
    predictions = classified(linear.folder, source, linear.settings, Worker()).to_pandas()
    stored = np.stack(predictions[predictions["split"] == "validation"]["scores"].to_numpy())
    np.testing.assert_allclose(stored, scores, atol=1e-5)


def test_features_of_the_training_records_are_standardised(source, linear):
    upstream = read_run(linear.folder.parent / linear.description["upstream"])
    encoder = load_encoder(upstream.folder).eval()
    assert torch.equal(encoder.kernels_0, load_encoder(linear.folder).kernels_0), (
        "the transfer has other kernels"
    )
    features = encoder(signals(source, "train"))
    assert features.shape == (source.rows("train"), 40 * 9)
    torch.testing.assert_close(
        features.mean(dim=0), torch.zeros(features.shape[1]), atol=1e-3, rtol=0
    )


def test_the_same_seed_gives_the_same_run_and_another_seed_another(source, settings, tmp_path):
    first = pretrain_run(KERNELS, source.path, tmp_path / "a", settings)
    again = pretrain_run(KERNELS, source.path, tmp_path / "b", settings)
    other = pretrain_run(KERNELS, source.path, tmp_path / "a", updated(settings, {"seed": 1}))
    assert first.model_sha256 == again.model_sha256 != other.model_sha256
    assert first.folder.name == again.folder.name != other.folder.name
    # What it does not read does not name it.
    longer = updated(settings, {"pretrain": {"steps": 7}, "transfer": {"epochs": 3}})
    assert pretrain_run(KERNELS, source.path, tmp_path / "a", longer).folder == first.folder


def test_neighbours_vote_by_kernels(source, settings, tmp_path):
    knn = updated(settings, {"transfer": {"mode": "knn", "neighbours": 3}})
    run = transfer_run(source.path, tmp_path, knn, upstream=KERNELS)
    assert transfer_result(run.folder)["validation_auroc"] > 0.8


def test_detectors_read_its_features_and_head(linear):
    network = Network.of(linear.folder, Worker(), "float32")
    assert network.model.encoder.width == 40 * 9


@pytest.mark.slow
def test_programs_of_pytorch_and_onnx_give_the_same(linear, source, tmp_path):
    pytest.importorskip("onnxruntime")
    export_run(linear, tmp_path / "model", torch_export=True, onnx=True, catalog=source.path)
    assert (tmp_path / "model" / "model.onnx").is_file()
    assert (tmp_path / "model" / "model.pt2").is_file()


def test_fine_tuning_is_refused(source, settings, tmp_path):
    tuned = updated(settings, {"transfer": {"mode": "finetune"}})
    with pytest.raises(BenchmdError, match=r"random kernels are not trained.*--setting linear"):
        require_transferable(TransferJob(tuned, source.path, tmp_path), source)


def test_another_network_is_refused(source, settings, tmp_path):
    other = replace(settings, encoder=EncoderSettings(network="resnet18-1d"))
    with pytest.raises(BenchmdError, match=r"random-kernels is for random-kernels"):
        pretrain_run(KERNELS, source.path, tmp_path, other)


def test_a_plan_takes_the_linear_setting_with_as_many_labels_instead_of_fine_tuning(source):
    chosen = Choice(settings=("finetune-small", "linear", "knn", "finetune-full"))
    task = source.task
    assert settings_for(chosen, task, KERNELS) == ("linear-small", "linear", "knn")
    assert settings_for(chosen, task, "mae") == chosen.settings
    assert settings_for(Choice(), task, KERNELS)[:2] == ("linear", "linear-small")


def test_a_head_of_any_encoder_may_be_solved(source, make_settings, tmp_path):
    plain = make_settings("transfer.solver=logistic")
    run = transfer_run(source.path, tmp_path, plain)
    longer = make_settings("transfer.solver=logistic", "transfer.epochs=9")
    assert transfer_run(source.path, tmp_path, longer).folder == run.folder
    trained = transfer_run(source.path, tmp_path, make_settings())
    assert trained.folder != run.folder
    assert "solver" not in trained.description["determinants"]["transfer"]
    assert EncoderSettings().network == run.settings.encoder.network


@pytest.mark.parametrize("chosen", ["encoder=tiny", "encoder.network=resnet18-1d"])
def test_a_network_that_is_chosen_for_all_is_not_that_of_random_kernels(source, chosen):
    choice = Choice(techniques=("scratch", KERNELS), assignments=(chosen,))
    (kernels, _), (scratch, _) = (
        technique_settings(choice, source.card.modality, name) for name in (KERNELS, "scratch")
    )
    assert kernels.encoder == EncoderSettings(network=KERNELS)
    assert scratch.encoder != EncoderSettings()


def test_it_is_fitted_on_one_worker(source, settings, tmp_path):
    several = updated(settings, {"execution": {"workers": 2}})
    with pytest.raises(BenchmdError, match="random-kernels is fitted to a few records"):
        pretrain_run(KERNELS, source.path, tmp_path, several)
    assert not list(tmp_path.glob("pretrain-*"))


def test_the_order_of_a_streaming_feed_names_the_run(source, settings):
    streaming = updated(settings, {"execution": {"feed": "streaming"}})
    resident, streamed = (
        pretraining(KERNELS, source, one, None).description["determinants"]
        for one in (settings, streaming)
    )
    assert "order" not in resident
    assert streamed["order"]


def test_features_that_are_not_finite_are_refused(source, settings, tmp_path, monkeypatch):
    def broken(*about):
        features = np.zeros((source.rows("train"), 360), np.float32)
        features[3, 5] = np.nan
        return features, features[:21]

    monkeypatch.setattr("benchmd_ray.training.features.frozen_features", broken)
    with pytest.raises(BenchmdError, match="have NaN or infinite values"):
        transfer_run(source.path, tmp_path, settings, upstream=KERNELS)


@pytest.mark.parametrize(("mode", "solver"), [("linear", "logistic"), ("knn", "adamw")])
def test_what_has_no_epochs_has_no_share_of_them_done(settings, mode, solver):
    solved = updated(settings, {"transfer": {"mode": mode, "solver": solver}})
    assert transfer_step(solved).total(solved) is None
    trained = updated(settings, {"transfer": {"solver": "adamw", "epochs": 7}})
    assert transfer_step(trained).total(trained) == 7
