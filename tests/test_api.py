"""The Python interface, against files read without it and against commands' results."""

import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score
from small_runs import SMALL
from torch.utils.data import DataLoader

import benchmd_ray
from benchmd_ray import api
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.settings.definition import load_settings
from benchmd_ray.training.weights import load_classifier


def stored(catalog: Catalog, split: str):
    """Rows of a split, read by pyarrow alone: ids, signals in mV, targets."""
    names = [s["file"] for s in catalog.manifest["shards"] if s["split"] == split]
    tables = [pq.read_table(catalog.path / name) for name in names]
    signals = [
        np.frombuffer(row, np.int16).reshape(12, 5000) * np.float32(scale)
        for table in tables
        for row, scale in zip(table["signal"].to_pylist(), table["scale"].to_pylist(), strict=True)
    ]
    ids = [name for table in tables for name in table["record_id"].to_pylist()]
    targets = [values for table in tables for values in table["target"].to_pylist()]
    return ids, np.stack(signals), np.array(targets)


def by_range(signals: np.ndarray) -> np.ndarray:
    extent = np.ptp(signals, axis=(1, 2), keepdims=True)
    return signals / np.where(extent == 0, np.inf, extent)


def test_the_package_imports_nothing_heavy_and_names_what_it_has():
    code = (
        "import sys, benchmd_ray; print(sorted(set(benchmd_ray.__all__) - set(dir(benchmd_ray))));"
        "heavy = {'numpy', 'torch', 'ray', 'pyarrow', 'pandas'};"
        "import benchmd_ray.api; print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["[]", "[]"]
    assert benchmd_ray.__all__ == api.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        benchmd_ray.nothing  # noqa: B018


def test_a_split_is_a_dataset_of_pytorch(ecg_catalogs):
    ids, signals, targets = stored(ecg_catalogs["ptb-xl"], "train")
    data = benchmd_ray.catalog(ecg_catalogs["ptb-xl"].path).torch("train")
    assert len(data) == len(ids)
    one, label = data[3]
    np.testing.assert_allclose(one, by_range(signals)[3], atol=1e-6)
    assert one.dtype == torch.float32
    assert label == targets[3].argmax()
    batches = list(DataLoader(data, batch_size=16))
    np.testing.assert_allclose(torch.cat([x for x, _ in batches]), by_range(signals), atol=1e-6)
    np.testing.assert_array_equal(torch.cat([y for _, y in batches]), targets.argmax(axis=1))
    assert data[-1][1] == targets[-1].argmax()
    with pytest.raises(IndexError):
        data[len(data)]


def test_a_split_in_its_unit_and_in_another_process(ecg_catalogs):
    _, signals, _ = stored(ecg_catalogs["georgia"], "test")
    data = benchmd_ray.catalog(ecg_catalogs["georgia"].path).torch("test", physical=True)
    signal, size, _ = data[2]
    np.testing.assert_allclose(signal, signals[2], rtol=1e-6)
    assert size.tolist() == [5000]
    sent = pickle.dumps(data)
    assert len(sent) < 10**6  # the signals are not sent
    np.testing.assert_array_equal(pickle.loads(sent)[2][0], data[2][0])


def test_a_split_without_records_is_refused(ecg_catalogs):
    data = benchmd_ray.catalog(ecg_catalogs["georgia"].path)
    with pytest.raises(BenchmdError, match="no record in split 'train'"):
        data.torch("train")


@pytest.mark.ray
def test_a_split_is_a_dataset_of_ray(ecg_catalogs):
    ids, signals, targets = stored(ecg_catalogs["georgia"], "test")
    rows = benchmd_ray.catalog(ecg_catalogs["georgia"].path).ray("test").take_all()
    assert [row["record_id"] for row in rows] == ids
    np.testing.assert_allclose(np.stack([row["signal"] for row in rows]), signals, rtol=1e-6)
    np.testing.assert_array_equal(np.stack([row["target"] for row in rows]), targets)


def test_a_frame_has_all_but_the_signals(ecg_catalogs):
    opened = benchmd_ray.catalog(ecg_catalogs["ptb-xl"].path)
    frame = opened.frame()
    assert frame["split"].value_counts().to_dict() == {
        name: opened.info.rows(name) for name in opened.splits
    }
    ids, _, targets = stored(ecg_catalogs["ptb-xl"], "train")
    train = frame[frame["split"] == "train"]
    assert train["record_id"].tolist() == ids
    found = train[[f"target.{name}" for name in opened.classes]].to_numpy()
    np.testing.assert_array_equal(found, targets)
    assert train["age"].notna().any()
    assert "ptb-xl" in repr(opened)


def predictions(run, dataset):
    path = run.folder / "predictions" / "classification" / f"{dataset}.parquet"
    return pq.read_table(path)


@pytest.mark.slow
def test_a_classifier_predicts_of_signals_what_its_run_has_stored(ecg_catalogs, trained):
    _, _, run = trained
    ids, signals, _ = stored(ecg_catalogs["georgia"], "test")
    model = benchmd_ray.classifier(run)
    found = model.predict(signals, rate=500, channels=ecg_catalogs["georgia"].signal.channels)
    table = predictions(run, "georgia").to_pandas().set_index("record_id").loc[ids]
    np.testing.assert_allclose(found, np.stack(table["scores"]), atol=1e-5)
    assert model.classes == ecg_catalogs["ptb-xl"].task.classes
    one = model.predict(torch.from_numpy(signals[4]))
    assert isinstance(one, torch.Tensor)
    np.testing.assert_allclose(one[0], found[4], atol=1e-5)


@pytest.mark.slow
def test_an_encoder_gives_the_features_of_its_module(ecg_catalogs, trained):
    _, upstream, run = trained
    _, signals, _ = stored(ecg_catalogs["georgia"], "test")
    module = load_classifier(run.folder).encoder.eval()
    with torch.no_grad():
        expected = module(torch.from_numpy(by_range(signals)))
    model = benchmd_ray.encoder(str(run.folder))
    np.testing.assert_allclose(model.features(signals), expected, atol=1e-5)
    assert model.width == expected.shape[1]
    before = benchmd_ray.encoder(upstream).features(signals)
    assert np.abs(before - expected.numpy()).max() > 1e-3  # fine-tuning has changed it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rate": 250}, "250 Hz, and the model takes 500 Hz"),
        ({"channels": ["II", "I"]}, "put them into that order"),
        ({"signals": np.zeros((12, 4000))}, r"\(12, 4000\), and the model takes \(12, 5000\)"),
        ({"signals": np.full((1, 12, 5000), np.nan)}, "NaN or infinite"),
        ({"signals": [["a"]]}, "expected real numbers"),
        ({"signals": np.zeros((0, 12, 5000))}, "shape"),
        ({"sizes": [[6000]]}, "from 1 to 5000"),
    ],
)
def test_signals_that_a_model_does_not_take_are_refused(trained, changed, message):
    signals = np.zeros((1, 12, 5000), np.float32)
    with pytest.raises(BenchmdError, match=message):
        benchmd_ray.encoder(trained[1]).features(**{"signals": signals, **changed})


@pytest.mark.slow
def test_a_pretraining_is_no_classifier(trained):
    with pytest.raises(BenchmdError, match="no head"):
        benchmd_ray.classifier(trained[1].folder)


@pytest.mark.slow
def test_runs_are_those_of_the_commands(ecg_catalogs, trained, capsys):
    from benchmd_ray.cli import main

    store, upstream, _ = trained
    sets = ["encoder=tiny", "pretrain.steps=4", "pretrain.batch_size=16", "execution.device=cpu"]
    command = ["pretrain", "--catalog", str(ecg_catalogs["ptb-xl"].path), "--technique", "mae"]
    given = [f"--set={each}" for each in [*sets, "transfer.epochs=2", "transfer.batch_size=16"]]
    main([*command, "--store", str(store), *given], standalone_mode=False)
    assert capsys.readouterr().out.strip() == str(upstream.folder)
    assert upstream.settings.pretrain.steps == 4


@pytest.mark.slow
def test_results_are_score_rows_of_stored_predictions(trained):
    store, _, run = trained
    rows = benchmd_ray.read_results(store, resamples=50).rows
    table = predictions(run, "georgia")
    targets, scores = (np.stack(table[name].to_pandas()) for name in ("target", "scores"))
    for place, name in enumerate(run.modality.task.classes):
        chosen = rows.query("dataset == 'georgia' and metric == 'auroc'")
        (value,) = chosen[chosen["class"] == name]["value"]
        if 0 < targets[:, place].sum() < len(targets):
            assert value == pytest.approx(roc_auc_score(targets[:, place], scores[:, place]))
        else:
            assert np.isnan(value)


@pytest.mark.slow
@pytest.mark.ray
def test_a_search_and_its_report(ecg_catalogs, tmp_path):
    store, said = tmp_path / "runs", []
    settings = {**SMALL, "transfer": {"epochs": 2, "batch_size": 16}}
    source, held = ecg_catalogs["ptb-xl"].path, ["transfer.epochs", "transfer.batch_size"]
    given = {"evaluations": 2, "fix": held, "settings": settings, "cpus": 2, "say": said.append}
    benchmd_ray.tune([source], "scratch", "finetune-full", store, **given)
    found = benchmd_ray.read_results(store, resamples=50)
    assert found.searches["trials"].tolist() == [2]
    page = benchmd_ray.write_report(store, out=tmp_path / "report", figures="none", say=said.append)
    assert page == tmp_path / "report" / "report.html"
    assert "written" in said[-1]
    assert page.stat().st_size > 10_000


def test_settings_are_checked_as_those_of_commands():
    from benchmd_ray.api import _changed
    from benchmd_ray.settings.arguments import assignments

    base = load_settings(assignments=["encoder=tiny"])
    given = {"transfer": {"optimiser": {"lr": np.float64(3e-4)}, "epochs": np.int64(3)}}
    expected = load_settings(
        assignments=["encoder=tiny", "transfer.optimiser.lr=3e-4", "transfer.epochs=3"]
    )
    assert _changed(base, given) == expected
    assert load_settings(assignments=["encoder=tiny", *assignments(given)]) == expected
    with pytest.raises(BenchmdError, match=r"Did you mean 'transfer\.optimiser\.lr'"):
        _changed(base, {"transfer": {"lr": 1}})
    with pytest.raises(BenchmdError, match="the settings are text, expected a mapping"):
        _changed(base, "transfer.epochs=3")


@pytest.mark.slow
def test_a_finished_transfer_needs_no_weights_of_its_upstream(ecg_catalogs, trained, tmp_path):
    store, upstream, run = trained
    copied = tmp_path / "store"
    shutil.copytree(store, copied)
    pretrained = copied / upstream.folder.name
    (pretrained / "model.safetensors").unlink()
    source, targets = ecg_catalogs["ptb-xl"], ecg_catalogs["georgia"].path
    again = benchmd_ray.transfer(
        benchmd_ray.catalog(source.path), copied, upstream=pretrained, targets=targets,
        settings=SMALL,
    )  # fmt: skip
    assert again.folder == (copied / run.folder.name).resolve()
    with pytest.raises(BenchmdError, match="weights were pruned"):
        benchmd_ray.encoder(pretrained)


def test_code_is_imported_where_the_caller_allows_it(ecg_catalogs, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMD_ALLOW_PLUGINS", "")
    path = ecg_catalogs["ptb-xl"].path
    settings = {"encoder": {"network": "own_network:made"}}
    with pytest.raises(BenchmdError, match=r"did not name yourself.*benchmd_ray\.allow"):
        benchmd_ray.transfer(path, tmp_path, settings=settings)
    with pytest.raises(BenchmdError, match="not of the form"):
        benchmd_ray.allow("own_network.made")
    benchmd_ray.allow("own_network:made")
    with pytest.raises(BenchmdError, match="No module named 'own_network'"):
        benchmd_ray.transfer(path, tmp_path, settings=settings)


def test_places_that_cannot_be_are_refused(ecg_catalogs, tmp_path, monkeypatch):
    with pytest.raises(BenchmdError, match="an address given as a path: give it as text"):
        benchmd_ray.pretrain(ecg_catalogs["ptb-xl"].path, "mae", Path("s3://lab/runs"))
    with pytest.raises(BenchmdError, match="only catalogs and stores may be in an object store"):
        benchmd_ray.build("ptb-xl", "s3://lab/raw", tmp_path / "out")
    monkeypatch.setenv("HOME", str(ecg_catalogs["ptb-xl"].path.parent))
    assert len(benchmd_ray.catalog("~/ptb-xl").torch("train")) > 0


def test_a_refused_folder_of_cards_leaves_no_trace(tmp_path):
    for _ in range(2):
        with pytest.raises(BenchmdError, match="nocards is not a folder of cards"):
            benchmd_ray.build("ptb-xl", tmp_path, tmp_path / "out", cards=tmp_path / "nocards")
    with pytest.raises(BenchmdError, match="unknown dataset"):
        benchmd_ray.build("nothing", tmp_path, tmp_path / "out")


def test_a_catalog_knows_its_place_wherever_the_process_goes(ecg_catalogs, tmp_path, monkeypatch):
    path = ecg_catalogs["ptb-xl"].path
    monkeypatch.chdir(path.parent)
    opened = benchmd_ray.catalog(path.name)
    monkeypatch.chdir(tmp_path)
    assert len(opened.torch("train")[0][0]) == 12


def test_a_target_is_normalised_as_its_source(write_catalog):
    fundus, derm = dataset_card("messidor-2"), dataset_card("bcn20000")
    pixels = np.full((3, 224, 224), 100, np.uint8)
    image = Record("r", "p", "r", pixels, 1.0, (224, 224), [1, 0, 0, 0, 0])
    statistics = {"mean": [90.0, 80.0, 70.0], "std": [10.0, 10.0, 10.0]}
    source = write_catalog(fundus, {"train": [[image]]}, statistics)
    target = benchmd_ray.catalog(
        write_catalog(dataset_card("aptos-2019"), {"test": [[image]]}).path
    )
    found = target.torch("test", source=benchmd_ray.catalog(source.path))[0][0]
    np.testing.assert_allclose(found[:, 0, 0], [1, 2, 3], atol=1e-6)
    with pytest.raises(BenchmdError, match=r"name the catalog of the source, torch\(split, source"):
        target.torch("test")
    other = benchmd_ray.catalog(write_catalog(derm, {"train": [[image]]}, statistics).path)
    with pytest.raises(BenchmdError, match=r"is of derm, and .* of fundus: name a source"):
        target.torch("test", source=other)


def test_a_dataset_of_ray_needs_a_ray(ecg_catalogs, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(BenchmdError, match=r"Ray is not connected: call ray\.init"):
        benchmd_ray.catalog(ecg_catalogs["georgia"].path).ray("test")


@pytest.mark.nightly
@pytest.mark.ray
def test_what_the_documentation_shows_works(synthetic_raw, tmp_path, monkeypatch, ray_cluster):
    """The code of docs/python.md, from top to bottom, on synthetic files."""
    text = (Path(__file__).parents[1] / "docs" / "python.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("raw").mkdir()
    for name, folder in (("ptb-xl", "ptb-xl"), ("georgia", "cinc2021")):
        Path("raw", folder).symlink_to(synthetic_raw[name], target_is_directory=True)
    signals = np.random.default_rng(0).normal(size=(3, 12, 5000))
    names = {"signals": signals}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 5
    assert names["probabilities"].shape == (3, len(names["classifier"].classes))
    assert len(names["found"].rows) > 0
    assert Path("report/report.html").is_file()
    assert (names["folder"] / "model.pt2").is_file()
