import getpass
import json
import os
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score
from stored import runs

from benchmd_ray.cluster.hardware import from_json, hardware
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import digest, write_json
from benchmd_ray.files.integrity import read_hashed_json, write_hashed_json
from benchmd_ray.runs.history import SESSIONS, trained_by
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.service.execute import evaluate_run, pretrain_run, transfer_run
from benchmd_ray.settings.definition import ENCODERS, Settings, updated

SMALL = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {"pretrain": {"steps": 3, "batch_size": 8}, "transfer": {"epochs": 3, "batch_size": 16}},
)
FINETUNE = updated(SMALL, {"transfer": {"mode": "finetune", "labels": "small"}})


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def done(ecg_catalogs, tmp_path_factory):
    store = tmp_path_factory.mktemp("runs")
    source = ecg_catalogs["ptb-xl"].path
    upstream = pretrain_run("mae", source, store, SMALL)
    target = ecg_catalogs["georgia"].path
    run = transfer_run(source, store, SMALL, upstream=upstream.folder, targets=(target,))
    return store, upstream, run


def test_predictions_hold_every_record_of_the_evaluation_splits(done, ecg_catalogs):
    _, _, run = done
    for name in ("ptb-xl", "georgia"):
        catalog = ecg_catalogs[name]
        table = pq.read_table(predictions_path(run.folder, name))
        assert len(table) == sum(catalog.rows(s) for s in catalog.evaluation_splits)
        assert len(set(table["record_id"].to_pylist())) == len(table)
        assert np.allclose(np.array(table["scores"].to_pylist()).sum(axis=1), 1)
    assert read_predictions(predictions_path(run.folder, "ptb-xl")).splits == [
        "test",
        "validation",
    ]


def test_the_table_scores_the_validation_as_training_selected_it(done):
    _, _, run = done
    predictions = read_predictions(predictions_path(run.folder, "ptb-xl"))
    targets, scores, _ = predictions.of_split("validation")
    scorable = [c for c in range(7) if 0 < (targets[:, c] == 1).sum() < len(targets)]
    mean = np.mean([roc_auc_score(targets[:, c] == 1, scores[:, c]) for c in scorable])
    selected = json.loads((run.folder / "training.json").read_text())["validation_auroc"]
    assert mean == pytest.approx(selected, abs=1e-6)


def test_a_finished_run_is_not_done_twice(done, ecg_catalogs):
    store, upstream, _ = done
    source = ecg_catalogs["ptb-xl"].path
    stamps = {p: p.stat().st_mtime_ns for p in store.rglob("*") if p.is_file()}
    again = pretrain_run("mae", source, store, SMALL)
    assert again.folder == upstream.folder
    target = ecg_catalogs["georgia"].path
    transfer_run(source, store, SMALL, upstream=upstream.folder, targets=(target,))
    assert {p: p.stat().st_mtime_ns for p in store.rglob("*") if p.is_file()} == stamps


def test_how_a_run_is_executed_does_not_name_it_but_what_it_computes_does(done, ecg_catalogs):
    store, upstream, _ = done
    source = ecg_catalogs["ptb-xl"].path
    elsewhere = updated(SMALL, {"execution": {"log_every": 7, "checkpoint_every": 3}})
    assert pretrain_run("mae", source, store, elsewhere).folder == upstream.folder
    seeded = replace(SMALL, seed=1)
    assert pretrain_run("mae", source, store, seeded).folder != upstream.folder


def test_fine_tuning_starts_from_the_pretrained_encoder(done, ecg_catalogs):
    store, upstream, _ = done
    source = ecg_catalogs["ptb-xl"].path
    scratch = transfer_run(source, store, FINETUNE)
    pretrained = transfer_run(source, store, FINETUNE, upstream=upstream.folder)
    assert scratch.description["technique"] == "scratch"
    assert pretrained.description["technique"] == "mae"
    weights = [(r.folder / "model.safetensors").read_bytes() for r in (scratch, pretrained)]
    assert weights[0] != weights[1]


def test_a_transfer_takes_the_encoder_size_of_its_upstream(done, ecg_catalogs, tmp_path):
    _, upstream, _ = done
    source = ecg_catalogs["ptb-xl"].path
    settings = updated(SMALL, {"encoder": "paper"})
    settings = updated(settings, {"encoder": {"dropout": 0.3}})
    run = transfer_run(source, tmp_path, settings, upstream=upstream.folder)
    assert run.description["settings"]["encoder"]["depth"] == ENCODERS["tiny"].depth
    assert run.description["settings"]["encoder"]["dropout"] == 0.3
    other = updated(SMALL, {"encoder": {"width": 48}})
    with pytest.raises(BenchmdError, match="choose another encoder than"):
        transfer_run(source, tmp_path, other, upstream=upstream.folder)


def test_only_the_protocols_own_settings_are_called_fixed(done):
    _, upstream, run = done
    assert not upstream.description["protocol"]
    assert not run.description["protocol"]


def test_a_target_is_evaluated_later_with_the_same_scores(done, ecg_catalogs):
    _, _, run = done
    path = evaluate_run(run, ecg_catalogs["cpsc"].path, SMALL)
    assert path.is_file()
    again = evaluate_run(run, ecg_catalogs["cpsc"].path, SMALL)
    assert again == path


def test_what_does_not_fit_is_refused(done, ecg_catalogs, tmp_path):
    store, upstream, run = done
    source, target = ecg_catalogs["ptb-xl"].path, ecg_catalogs["georgia"].path
    with pytest.raises(BenchmdError, match="targets are never trained on"):
        transfer_run(target, store, SMALL)
    with pytest.raises(BenchmdError, match="name catalogs of targets"):
        transfer_run(source, store, SMALL, targets=(source,))
    other = shutil.copytree(source, tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["dataset"] = manifest["card"]["name"] = "another-source"
    del manifest["digest"]
    write_json(other / "manifest.json", manifest | {"digest": digest(manifest)})
    with pytest.raises(BenchmdError, match=r"card is of a source, to be trained on.*role: target"):
        transfer_run(source, store, SMALL, targets=(other,))
    again = shutil.copytree(source, tmp_path / "again")
    manifest = json.loads((again / "manifest.json").read_text())
    manifest["raw"]["records"] += 1
    del manifest["digest"]
    write_json(again / "manifest.json", manifest | {"digest": digest(manifest)})
    with pytest.raises(BenchmdError, match=r"another catalog of ptb-xl, .*another name and role"):
        transfer_run(source, store, SMALL, targets=(again,))
    with pytest.raises(BenchmdError, match="is not a finished pretraining run"):
        transfer_run(source, store, SMALL, upstream=run.folder)
    with pytest.raises(BenchmdError, match="is a pretraining run: name a transfer run"):
        evaluate_run(upstream, source, SMALL)
    with pytest.raises(BenchmdError, match="Did you mean 'shed'"):
        pretrain_run("shet", source, store, SMALL)


def build_released(build_here, dataset, names, raw, folder):
    table = folder / "splits.csv"
    rows = [f"{name},{'val' if i % 4 else 'train'},{i % 7}" for i, name in enumerate(names)]
    table.write_text("\n".join(["patient,split,label", *rows]) + "\n")
    return build_here(dataset, raw[dataset], folder / dataset, policy="released", split_table=table)


def test_where_a_run_was_trained_does_not_bind_its_evaluation(ecg_catalogs, tmp_path):
    chosen = updated(SMALL, {"execution": {"device": "cpu"}})
    run = transfer_run(ecg_catalogs["ptb-xl"].path, tmp_path, chosen)
    assert (run.description["device"], run.settings.execution.device) == ("cpu", "auto")
    assert run.settings.execution.precision == "float32"


def test_catalogs_of_two_policies_are_not_mixed(done, build_here, tmp_path, synthetic_raw):
    _, _, run = done
    names = sorted(p.stem for p in synthetic_raw["georgia"].rglob("*.hea"))
    released = build_released(build_here, "georgia", names, synthetic_raw, tmp_path)
    with pytest.raises(BenchmdError, match="built with policy released, the source with clean"):
        evaluate_run(run, released.path, SMALL)


def test_a_pretraining_on_other_splits_is_refused(done, build_here, tmp_path, synthetic_raw):
    _, upstream, _ = done
    names = [f"HR{i:05d}" for i in range(1, 141)]
    other = build_released(build_here, "ptb-xl", names, synthetic_raw, tmp_path)
    with pytest.raises(BenchmdError, match=r"saw \d+ of the \d+ patients that are scored"):
        transfer_run(other.path, tmp_path, SMALL, upstream=upstream.folder)


@pytest.mark.ray
@pytest.mark.slow
def test_a_clusters_address_puts_even_one_worker_on_the_cluster(
    ecg_catalogs, tmp_path, monkeypatch
):
    """With relative paths, too: its processes have working folders of their own."""
    source = ecg_catalogs["ptb-xl"].path
    alone = transfer_run(source, tmp_path / "alone", FINETUNE)
    monkeypatch.chdir(source.parent)
    store = Path(os.path.relpath(tmp_path, source.parent))
    run = transfer_run(Path(source.name), store, FINETUNE, address="auto")
    assert run.finished
    names = ("model.safetensors", "predictions/classification/ptb-xl.parquet")
    for name in names:
        assert (run.folder / name).read_bytes() == (alone.folder / name).read_bytes()


def test_a_model_with_a_foreign_architecture_is_refused(done, ecg_catalogs, tmp_path):
    import shutil

    _, upstream, _ = done
    copy = tmp_path / upstream.folder.name
    shutil.copytree(upstream.folder, copy)
    model = read_hashed_json(copy / "model.json", "")
    model["encoder"]["width"] = 48
    write_hashed_json(copy / "model.json", model)
    with pytest.raises(BenchmdError, match="differs: width is 48 there and 32 here"):
        transfer_run(ecg_catalogs["ptb-xl"].path, tmp_path, SMALL, upstream=copy)


def test_an_interrupted_transfer_leaves_no_run_that_counts_as_done(ecg_catalogs, tmp_path):
    source = ecg_catalogs["ptb-xl"].path
    diverging = updated(FINETUNE, {"transfer": {"optimiser": {"lr": 1e30}}})
    with pytest.raises(BenchmdError, match=r"loss became (NaN|infinite) at step \d+ .*1e\+30"):
        transfer_run(source, tmp_path, diverging)
    (run,) = runs([tmp_path])
    assert not run.finished
    assert not (run.folder / "predictions").exists()


def test_a_run_records_its_hardware_and_nothing_that_identifies_the_machine(done):
    _, upstream, run = done
    here = hardware(torch.device("cpu"))
    assert trained_by(upstream.folder) == trained_by(run.folder) == (here,)
    private = {socket.gethostname(), getpass.getuser(), str(Path.home())} - {"root"}
    for dataset in ("ptb-xl", "georgia"):
        found = read_predictions(predictions_path(run.folder, dataset)).description
        assert from_json(found["hardware"]) == here
    for folder in (upstream.folder, run.folder):
        text = (folder / SESSIONS).read_text()
        assert not [w for w in private if re.search(rf"(?<!\w){re.escape(w)}(?!\w)", text)]
        assert here.model not in json.dumps(json.loads((folder / "run.json").read_text()))


def test_no_patient_and_no_raw_path_reaches_the_predictions(done, synthetic_raw):
    _, _, run = done
    content = predictions_path(run.folder, "ptb-xl").read_bytes()
    assert str(synthetic_raw["ptb-xl"]).encode() not in content
    columns = pq.read_table(predictions_path(run.folder, "ptb-xl")).column_names
    assert set(columns) == {
        "record_id", "unit_id", "group_id", "split", "scores", "target",
        "age", "sex", "site", "device", "view",
    }  # fmt: skip


def test_an_opened_catalog_is_the_one_that_was_built(ecg_catalogs):
    built: Catalog = ecg_catalogs["cpsc"]
    assert open_catalog(built.path).digest == built.digest


def test_altered_shards_are_refused_before_anything_is_computed(done, ecg_catalogs, tmp_path):
    import shutil

    _, _, run = done
    copy = replace(run, folder=shutil.copytree(run.folder, tmp_path / "run"))
    predictions_path(copy.folder, "georgia").unlink()
    copies = {}
    for name, split in (("ptb-xl", "validation"), ("georgia", "test")):
        copies[name] = open_catalog(shutil.copytree(ecg_catalogs[name].path, tmp_path / name))
        shard = copies[name].shards(split)[0][0]
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(bytes(content))
    with pytest.raises(BenchmdError, match="is damaged: its SHA-256 is not the one"):
        transfer_run(copies["ptb-xl"].path, tmp_path / "runs", SMALL)
    with pytest.raises(BenchmdError, match="is damaged: its SHA-256 is not the one"):
        evaluate_run(copy, copies["georgia"].path, SMALL)
