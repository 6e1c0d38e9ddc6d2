import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.files.atomic import TEMPORARY, sha256
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.runs.files import MODEL
from benchmd_ray.settings.definition import ENCODERS, LABEL_SETTINGS
from benchmd_ray.training import features
from benchmd_ray.training.features import FeatureStore, feature_store, weights_digest
from benchmd_ray.training.jobs import SHARED, TransferJob, transfer_result
from benchmd_ray.training.predict import classified
from benchmd_ray.training.transfer import transfer

CPU = torch.device("cpu")


@pytest.fixture
def run(source, make_settings, recorder, tmp_path):
    """Evaluates linearly in this process; gives folder, losses and scores."""

    def start(name, *assignments, kept=True):
        folder = tmp_path / name
        folder.mkdir()
        settings = make_settings("transfer.mode=linear", *assignments)
        features = tmp_path / "features" if kept else None
        reporter = recorder()
        transfer(TransferJob(settings, source.path, folder, None, features), Worker(), reporter)
        return folder, reporter.lines

    return start


@pytest.fixture
def kept(tmp_path):
    """Names of the files that are kept."""
    return lambda: {path.name for path in (tmp_path / "features").glob("*.npy")}


def test_kept_features_give_the_same_bits_and_are_encoded_once(run, kept, monkeypatch):
    plain, lines = run("plain", kept=False)
    first, lines_first = run("first")
    assert len(kept()) == 2
    monkeypatch.setattr(Encoder, "forward", pytest.fail)
    for name in ("training_feed", "whole_split_feed"):  # nor are the records read
        monkeypatch.setattr(features, name, pytest.fail)
    again, lines_again = run("again")
    assert lines == lines_first == lines_again
    assert sha256(plain / MODEL) == sha256(first / MODEL) == sha256(again / MODEL)
    assert transfer_result(plain) == transfer_result(again)


def test_settings_of_the_head_and_dropout_share_the_features(run, kept, monkeypatch):
    run("first")
    held = kept()
    monkeypatch.setattr(Encoder, "forward", pytest.fail)
    head = ("transfer.optimiser.lr=0.1", "transfer.batch_size=7", "transfer.label_smoothing=0.2")
    run("head", *head)
    run("dropout", "encoder.dropout=0.3", "transfer.layer_decay=0.5")
    assert kept() == held


@pytest.mark.parametrize(
    ("change", "files"),
    [
        ("seed=1", 2),  # other random weights
        ("encoder.norm_eps=1e-3", 2),  # the same weights, used otherwise
        ("encoder.pool=cls", 2),
        ("execution.precision=bf16", 2),
    ],
)
def test_whatever_changes_the_features_gives_other_files(run, kept, change, files, monkeypatch):
    monkeypatch.setitem(LABEL_SETTINGS, "small", 2)
    run("first")
    held = kept()
    found, lines = run("other", change)
    assert held < kept()
    assert len(kept() - held) == files
    plain, expected = run("plain", change, kept=False)
    assert lines == expected
    assert sha256(found / MODEL) == sha256(plain / MODEL)


def test_few_labels_are_rows_of_the_features_of_all(run, kept, monkeypatch):
    monkeypatch.setitem(LABEL_SETTINGS, "small", 2)
    run("all")
    files = kept()
    plain, expected = run("plain", "transfer.labels=small", kept=False)
    monkeypatch.setattr(Encoder, "forward", pytest.fail)
    for labels in ("small", "full"):
        few, lines = run(labels, f"transfer.labels={labels}")
        assert kept() == files
        assert (lines == expected) == (labels == "small")
    small = sha256(few.with_name("small") / MODEL)
    assert small == sha256(plain / MODEL)


@pytest.mark.parametrize("mode", ["linear", "knn"])
def test_scored_splits_are_encoded_once_for_all_heads(
    source, make_settings, recorder, tmp_path, monkeypatch, mode
):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    settings, folder, rows = make_settings(f"transfer.mode={mode}"), tmp_path / "run", []
    folder.mkdir()
    transfer(TransferJob(settings, source.path, folder, None, SHARED), Worker(), recorder())
    plain = classified(folder, source, settings, Worker())
    assert predicted(folder, source, settings) == plain.to_pydict()
    forward = Encoder.forward

    def counted(self, signals):
        rows.append(len(signals))
        return forward(self, signals)

    monkeypatch.setattr(Encoder, "forward", counted)
    assert predicted(folder, source, settings) == plain.to_pydict()
    assert rows == []
    others = replace(source, manifest=source.manifest | {"digest": "1" * 64})
    assert predicted(folder, others, settings) == plain.to_pydict()
    assert sum(rows) >= sum(source.rows(split) for split in source.evaluation_splits)


def predicted(folder, catalog, settings):
    return classified(folder, catalog, settings, Worker(), features=SHARED).to_pydict()


def test_another_catalog_gives_other_files(source, make_settings, tmp_path):
    torch.manual_seed(0)
    encoder, settings = Encoder(source.signal, ENCODERS["tiny"]), make_settings()
    other = replace(source, manifest=source.manifest | {"digest": "0" * 64})
    for catalog in (source, other):
        store = feature_store(tmp_path, encoder, settings, catalog, CPU)
        store.features("train", np.arange(3), lambda: np.ones((3, 32), np.float32), False)
    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_other_hardware_gives_other_files(source, make_settings, tmp_path, monkeypatch):
    torch.manual_seed(0)
    encoder, settings = Encoder(source.signal, ENCODERS["tiny"]), make_settings()
    own = features.hardware(CPU)
    for found in (own, own, replace(own, instructions="PyTorch AVX2")):
        monkeypatch.setattr(features, "hardware", lambda device, found=found: found)
        store = feature_store(tmp_path, encoder, settings, source, CPU)
        store.features("train", np.arange(3), lambda: np.ones((3, 32), np.float32), False)
    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_another_version_of_a_library_of_networks_gives_other_files(
    source, make_settings, tmp_path, monkeypatch
):
    torch.manual_seed(0)
    encoder, settings = Encoder(source.signal, ENCODERS["tiny"]), make_settings()
    for version in ("4.50", "4.50", "5.0"):
        monkeypatch.setattr(features, "package_versions", lambda v=version: {"transformers": v})
        store = feature_store(tmp_path, encoder, settings, source, CPU)
        store.features("train", np.arange(3), lambda: np.ones((3, 32), np.float32), False)
    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_the_order_of_rows_matters_and_split_and_feed(tmp_path):
    store, number = FeatureStore(tmp_path, {"weights": "w"}, 2), iter(range(9))

    def features(split, rows, streaming):
        def encode():
            return np.full((len(rows), 2), next(number), np.float32)

        return store.features(split, np.array(rows), encode, streaming)[0, 0]

    asked = [
        ("train", [0, 1], False),
        ("train", [1, 0], False),
        ("train", [0], False),
        ("validation", [0, 1], False),
        ("train", [0, 1], True),
    ]
    assert [features(*what) for what in asked] == [0, 1, 2, 3, 4]
    assert [features(*what) for what in asked] == [0, 1, 2, 3, 4]


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def pickled(path):
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def unsaid(path):
    path.with_suffix(".json").write_text('{"sha')


def other_shape(path):
    np.save(path, np.zeros((4, 2), np.float32))
    said = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(said | {"sha256": sha256(path)}))


def of_other_weights(path):
    other = FeatureStore(path.parent / "other", {"weights": "other"}, 2)
    other.features("train", np.arange(3), lambda: np.ones((3, 2), np.float32), False)
    for file in other.folder.iterdir():
        file.replace(path.with_suffix(file.suffix))


@pytest.mark.parametrize("damage", [cut, flip, pickled, unsaid, other_shape, of_other_weights])
def test_damaged_features_are_encoded_again(tmp_path, damage):
    store, calls = FeatureStore(tmp_path, {}, 2), []

    def encode():
        calls.append(1)
        return np.arange(6, dtype=np.float32).reshape(3, 2)

    for _ in range(2):
        store.features("train", np.arange(3), encode, False)
    assert len(calls) == 1
    (path,) = tmp_path.glob("*.npy")
    damage(path)
    found = store.features("train", np.arange(3), encode, False)
    assert len(calls) == 2
    assert found.tolist() == encode().tolist()


def test_what_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    store = FeatureStore(tmp_path, {}, 2)

    def half(file, *_, **__):
        file.write(b"half")
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", half)
        with pytest.raises(OSError, match="gone"):
            store.features("train", np.arange(3), lambda: np.ones((3, 2), np.float32), False)
    assert [p.suffix for p in tmp_path.iterdir()] == [".lock"]
    assert not list(tmp_path.glob(f"{TEMPORARY}*"))


def test_two_at_once_encode_once(tmp_path):
    store, calls = FeatureStore(tmp_path, {}, 2), []
    together, twice, found = threading.Barrier(3), threading.Event(), []

    def encode():
        calls.append(1)
        if len(calls) > 1:
            twice.set()
        twice.wait(0.2)  # gives another thread the time to begin, too
        return np.ones((3, 2), np.float32)

    def ask():
        together.wait(60)
        found.append(store.features("train", np.arange(3), encode, False))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert [features.tolist() for features in found] == [[[1.0, 1.0]] * 3] * 3


def test_features_are_mapped_and_never_written_back(tmp_path):
    store = FeatureStore(tmp_path, {}, 2)

    def ask():
        return store.features("train", np.arange(3), lambda: np.ones((3, 2), np.float32), False)

    found = ask()
    assert isinstance(found, np.memmap)
    found[0, 0] = 7
    assert ask()[0, 0] == 1


def test_every_part_of_the_weights_counts():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    digests = [weights_digest(module)]
    assert weights_digest(module) == digests[0]
    module[1].num_batches_tracked += 1  # a buffer, and a number
    digests.append(weights_digest(module))
    module[0].bias.data[1] += 1e-6
    digests.append(weights_digest(module))
    digests.append(weights_digest(module.double()))
    digests.append(weights_digest(torch.nn.Sequential(module)))  # other names
    assert len(set(digests)) == 5
