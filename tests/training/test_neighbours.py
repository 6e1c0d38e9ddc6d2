"""Nearest neighbours by the features of a frozen encoder, against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.feed import read_columns
from benchmd_ray.data.map_style import SplitDataset
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.neighbours import LEAST, TEMPERATURE, NearestNeighbours
from benchmd_ray.settings.definition import TransferSettings
from benchmd_ray.training.jobs import TransferJob, transfer_result
from benchmd_ray.training.predict import classified
from benchmd_ray.training.transfer import require_transferable, transfer
from benchmd_ray.training.weights import load_classifier, load_encoder


def peer(features, classes, nearest):
    """scikit-learn's, with the same votes; its distance is 1 - cosine."""
    return KNeighborsClassifier(
        nearest,
        metric="cosine",
        algorithm="brute",
        weights=lambda distances: np.exp((1 - distances) / TEMPERATURE),
    ).fit(features, classes)


@pytest.mark.parametrize("nearest", [1, 5, 40])
def test_shares_of_votes_are_those_of_scikit_learn(nearest):
    draws = np.random.default_rng(0)
    features, seen = draws.normal(size=(40, 6)), draws.normal(size=(30, 6))
    classes = np.arange(40) % 3
    targets = torch.from_numpy(np.eye(3)[classes])
    head = NearestNeighbours(torch.from_numpy(features), targets, "single-label", nearest)
    found = head(torch.from_numpy(seen)).softmax(dim=1).numpy()
    expected = peer(features, classes, nearest).predict_proba(seen)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert head(torch.from_numpy(seen)).isfinite().all()


def test_an_unknown_label_has_no_vote_on_its_class():
    draws = np.random.default_rng(1)
    features, seen = draws.normal(size=(20, 4)), draws.normal(size=(7, 4))
    targets = draws.integers(-1, 2, (20, 2))
    head = NearestNeighbours(
        torch.from_numpy(features), torch.from_numpy(targets), "multi-label", 6
    )
    found = head(torch.from_numpy(seen)).sigmoid().numpy()
    for row, one in enumerate(seen):
        cosine = features @ one / np.linalg.norm(features, axis=1) / np.linalg.norm(one)
        nearest = np.argsort(-cosine)[:6]
        for label in range(2):
            known = [n for n in nearest if targets[n, label] >= 0]
            votes = {n: np.exp(cosine[n] / TEMPERATURE) for n in known}
            share = sum(votes[n] for n in known if targets[n, label] == 1) / sum(votes.values())
            assert found[row, label] == pytest.approx(np.clip(share, LEAST, 1 - LEAST), abs=1e-5)


def test_a_class_that_no_neighbour_knows_has_the_share_of_all_records():
    targets = torch.tensor([[-1.0, 1.0, -1.0], [1.0, 0.0, -1.0], [0.0, 0.0, -1.0]])
    head = NearestNeighbours(torch.eye(3), targets, "multi-label", 1)
    share = head(torch.tensor([[1.0, 0.0, 0.0]])).sigmoid()
    assert share[0].tolist() == pytest.approx([0.5, 1 - LEAST, LEAST], rel=1e-3)


def test_known_neighbours_vote_however_far_they_are():
    targets = torch.tensor([[-1.0], [1.0], [1.0]])
    features = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])
    head = NearestNeighbours(features, targets, "multi-label", 3)
    assert head(features[:1]).sigmoid().item() == pytest.approx(1 - LEAST)


@pytest.mark.parametrize("labels", ["full", "small"])
def test_a_run_votes_by_the_features_of_its_frozen_encoder(
    source, make_settings, recorder, tmp_path, labels
):
    settings = make_settings(
        "transfer.mode=knn", f"transfer.labels={labels}", "transfer.neighbours=7"
    )
    job, reporter = TransferJob(settings, source.path, tmp_path), recorder()
    data = require_transferable(job, source)
    transfer(job, Worker(), reporter)
    encoder = load_encoder(tmp_path).eval()

    def features(split):
        with torch.inference_mode():
            held = SplitDataset(source, split, source.statistics)
            return encoder(torch.stack([held[row][0] for row in range(len(held))])).numpy()

    classes = data.columns.targets[data.rows].argmax(axis=1)
    rival = peer(features("train")[data.rows], classes, 7)
    expected = rival.predict_proba(features("validation"))
    found = classified(tmp_path, source, settings, Worker()).to_pandas()
    of_split = np.stack(found[found["split"] == "validation"]["scores"].to_numpy())
    np.testing.assert_allclose(of_split[:, rival.classes_], expected, atol=1e-4)
    known = read_columns(source, "validation").targets
    scored = [
        roc_auc_score(known[:, label], of_split[:, label])
        for label in range(known.shape[1])
        if 0 < known[:, label].sum() < len(known)
    ]
    result = transfer_result(tmp_path)
    assert result["validation_auroc"] == pytest.approx(np.mean(scored))
    assert (result["best_epoch"], result["training_records"]) == (0, len(data.rows))
    assert reporter.lines[-1]["validation_auroc"] == result["validation_auroc"]
    assert len(load_classifier(tmp_path).head.features) == len(data.rows)
    with pytest.raises(BenchmdError, match="detectors read the weights of a linear head"):
        Network.of(tmp_path, Worker(), "float32")


def test_it_runs_on_one_worker(source, make_settings, tmp_path):
    settings = make_settings("transfer.mode=knn", "execution.workers=2")
    with pytest.raises(BenchmdError, match=r"transfer\.mode=knn encodes each record once"):
        require_transferable(TransferJob(settings, source.path, tmp_path), source)


def test_tables_name_it():
    names = [TransferSettings(mode="knn", labels=each).setting for each in ("full", "small")]
    assert names == ["knn", "knn-small"]
