"""Models that travel: loaded without the package, against what runs have stored and reports say."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import wfdb
import yaml
from click.testing import CliRunner
from safetensors.numpy import load_file
from stores import make_transfer, predict_all, write_done
from torch import nn

import benchmd_ray
from benchmd_ray.cli import main
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.export.portable import noise, traced
from benchmd_ray.extensions import extras
from benchmd_ray.files.atomic import sha256
from benchmd_ray.files.integrity import Damaged, write_hashed_json
from benchmd_ray.modality.modalities import modality
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.runs.store import read_run
from benchmd_ray.training import weights
from benchmd_ray.training.weights import export_model, model_description

OF_TORCH = {"torch", "torchgen", "functorch", "numpy", "safetensors", "sympy", "mpmath", "networkx"}
OF_TORCH |= {"jinja2", "markupsafe", "filelock", "fsspec", "typing_extensions", "setuptools"}
ISOLATED = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import numpy, pickle, torch, torch.export
def refuse(*_, **__):
    raise AssertionError("a pickle was read")
pickle.load = pickle.loads = torch.load = torch._C._pickle_load_obj = refuse
given = numpy.load("given.npz")
signals, sizes = (torch.from_numpy(given[name]) for name in ("signals", "sizes"))
{code}
numpy.save("found.npy", {output}.numpy())
assert "benchmd_ray" not in {{name for name, held in sys.modules.items() if held}}
"""


def blocks(folder):
    """Code of the card, by the first line of each block."""
    card = (folder / "README.md").read_text("utf-8")
    return {b.splitlines()[0]: b for b in re.findall(r"```python\n(.*?)```", card, re.S)}


def run_isolated(folder, tmp_path, output, signals, sizes=()):
    """What the three lines of the card give where nothing but torch and numpy can be imported."""
    place = tmp_path / "elsewhere"
    shutil.copytree(folder, place)
    np.savez(place / "given.npz", signals=signals, sizes=np.array(sizes, np.int64))
    code = blocks(folder)["import torch"]
    assert len(code.splitlines()) == 3
    blocked = sorted({*packages_distributions(), "benchmd_ray"} - OF_TORCH - {"_distutils_hack"})
    script = ISOLATED.format(blocked=blocked, code=code, output=output)
    env = {name: held for name, held in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(
        command, cwd=place, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(place / "found.npy")


def stored(catalog, split):
    """Record ids and signals in mV, read by pyarrow alone."""
    names = [s["file"] for s in catalog.manifest["shards"] if s["split"] == split]
    rows = [row for name in names for row in pq.read_table(catalog.path / name).to_pylist()]
    held = [np.frombuffer(r["signal"], np.int16) * np.float32(r["scale"]) for r in rows]
    return [r["record_id"] for r in rows], np.stack(held).reshape(len(rows), 12, 5000)


@pytest.fixture(scope="module")
def exported(trained, ecg_catalogs, tmp_path_factory):
    """The trained classifier with its PyTorch program, not to be changed."""
    out = tmp_path_factory.mktemp("exported") / "model"
    path = ecg_catalogs["ptb-xl"].path
    assert benchmd_ray.export_model(trained[2], out, catalog=path, torch_export=True) == out
    return out


@pytest.mark.slow
def test_three_lines_give_what_the_run_has_stored(trained, exported, ecg_catalogs, tmp_path):
    ids, signals = stored(ecg_catalogs["georgia"], "test")
    found = run_isolated(exported, tmp_path, "probabilities", signals)
    path = trained[2].folder / "predictions/classification/georgia.parquet"
    table = pq.read_table(path).to_pandas().set_index("record_id").loc[ids]
    np.testing.assert_allclose(found, np.stack(table["scores"]), atol=1e-5)
    assert found.shape == (len(ids), 7)


@pytest.mark.slow
def test_an_encoder_travels_with_its_features(trained, ecg_catalogs, tmp_path):
    out = benchmd_ray.export_model(str(trained[1].folder), tmp_path / "encoder", torch_export=True)
    _, signals = stored(ecg_catalogs["georgia"], "test")
    expected = benchmd_ray.encoder(trained[1]).features(signals)
    found = run_isolated(out, tmp_path, "features", signals)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(benchmd_ray.encoder(out).features(signals[:2]), expected[:2])
    held = load_file(out / "model.safetensors")
    assert {name.split(".")[0] for name in held} == {"encoder"}
    card = (out / "README.md").read_text("utf-8")
    assert "on seeded noise" in card
    assert "Features have no scores; transfers" in card


@pytest.mark.slow
def test_onnx_gives_the_same(trained, ecg_catalogs, tmp_path):
    import onnxruntime

    out = tmp_path / "model"
    benchmd_ray.export_model(trained[2], out, catalog=ecg_catalogs["georgia"].path, onnx=True)
    assert sorted(p.name for p in out.iterdir()) == [
        *("README.md", "config.json", "model.onnx", "model.safetensors")
    ]
    _, signals = stored(ecg_catalogs["georgia"], "test")
    names = {"signals": signals, "onnxruntime": onnxruntime}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(out)
        exec(blocks(out)["import onnxruntime"], names)
    expected = benchmd_ray.classifier(out).predict(signals)
    np.testing.assert_allclose(names["probabilities"], expected, atol=1e-4)
    assert "8 records of georgia (test)" in (out / "README.md").read_text("utf-8")
    require_nothing_of_the_machine(out)


def require_nothing_of_the_machine(folder):
    """No path, and no name of a module's file: both exporters write where code was."""
    for path in folder.iterdir():
        data = path.read_bytes()
        for mark in (b"site-packages", b"encoder.py", os.fsencode(os.path.dirname(__file__))):
            assert mark not in data, (path.name, mark)


@pytest.mark.slow
def test_what_the_folder_holds(trained, exported, ecg_catalogs):
    source, run = ecg_catalogs["ptb-xl"], trained[2]
    names = ["README.md", "config.json", "model.pt2", "model.safetensors"]
    assert sorted(p.name for p in exported.iterdir()) == names
    config = json.loads((exported / "config.json").read_text("utf-8"))
    assert config["task"]["classes"] == list(source.card.classes)
    signal = config["signal"]
    assert signal["stored_shape"] == list(source.signal.stored_shape)
    assert (signal["unit"], signal["rate"]) == (source.signal.unit, source.signal.rate)
    assert signal["channels"] == list(source.signal.channels)
    assert signal["normaliser"] == "record-range"
    assert config["statistics"] == source.statistics
    assert config["trained"]["determinants"]["catalog"] == source.digest
    assert config["trained"]["versions"]["torch"] == torch.__version__
    assert config["output"] == {"name": "probabilities", "width": 7}
    ours, theirs = (load_file(each / "model.safetensors") for each in (exported, run.folder))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    require_nothing_of_the_machine(exported)


@pytest.mark.slow
def test_no_record_and_no_patient_is_named(exported, ecg_catalogs):
    texts = [(exported / name).read_text("utf-8") for name in ("README.md", "config.json")]
    for catalog in ecg_catalogs.values():
        frame = benchmd_ray.catalog(catalog.path).frame()
        for name in (*frame["record_id"], *frame["group_id"], *frame["unit_id"]):
            assert not any(name in text for text in texts)


@pytest.mark.slow
def test_the_scores_of_the_card_are_those_of_the_report(trained, exported):
    store, _, run = trained
    rows = benchmd_ray.read_results(store).rows.query(f"run == '{run.folder.name}'")
    card = (exported / "README.md").read_text("utf-8")
    cells = [tuple(c.strip() for c in line.split("|")[1:-1]) for line in card.splitlines()]
    for row in rows.query("metric == 'auroc'").to_dict("records"):
        own = row["role"] == "source"
        dataset = f"{row['dataset']} ({row['split']})" if own else row["dataset"]
        value = "–" if np.isnan(row["value"]) else f"{row['value']:.3f}"
        if not np.isnan(row["low"]):
            value += f" [{row['low']:.3f}, {row['high']:.3f}]"
        named = "AUROC ↑" if row["class"] == "mean" else row["class"]
        assert any(c[:2] == (dataset, named) and value in c for c in cells), (dataset, named, value)
    assert (rows["metric"] == "auroc").sum() >= 24


@pytest.mark.slow
def test_the_card_says_what_the_data_are(exported):
    card = (exported / "README.md").read_text("utf-8")
    head = yaml.safe_load(card.split("---")[1])
    assert head["license"] == "other"
    assert {"medical", "ecg", "mae", "sample-data"} <= set(head["tags"])
    assert head["datasets"] == ["ptb-xl", "georgia"]
    assert "roc_auc" in head["metrics"]
    body = card.split("---", 2)[2]
    first = body.strip().split("\n\n")[1]
    assert "a sample of PTB-XL (ptb-xl), 140 of its 21,799 raw records" in first
    assert "not for diagnosis" in body
    assert "CC BY 4.0" in body  # the licence on PTB-XL's page
    assert "this split chose the best one, so its AUROC is slightly optimistic" in body
    assert re.search(r"`model\.pt2` differs from the model by at most \S+ on 8 records", body)
    assert "Signals are a float32 tensor for `model.pt2`, of the shape above" in body


@pytest.mark.slow
def test_an_exported_model_is_opened_as_a_run_is(trained, exported, ecg_catalogs, tmp_path):
    _, signals = stored(ecg_catalogs["georgia"], "test")
    expected = benchmd_ray.classifier(trained[2]).predict(signals[:4])
    np.testing.assert_array_equal(benchmd_ray.classifier(exported).predict(signals[:4]), expected)
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    text = (copy / "config.json").read_text("utf-8")
    (copy / "config.json").write_text(text.replace('"mV"', '"uV"'))
    with pytest.raises(BenchmdError, match=r"config\.json is damaged"):
        benchmd_ray.classifier(copy)
    (copy / "config.json").write_text(text)
    flip(copy / "model.safetensors")
    with pytest.raises(BenchmdError, match=r"model\.safetensors is damaged: its SHA-256"):
        benchmd_ray.classifier(copy)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
def test_what_cannot_be_exported_is_refused(trained, ecg_catalogs, tmp_path):
    store = tmp_path / "store"
    shutil.copytree(trained[0], store)
    run, out = store / trained[2].folder.name, tmp_path / "out"
    with pytest.raises(BenchmdError, match="nothing is not a run"):
        benchmd_ray.export_model(store / "nothing", out)
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(BenchmdError, match="exists and is not an empty folder: name another"):
        benchmd_ray.export_model(run, out)
    assert [p.name for p in out.iterdir()] == ["mine.txt"]
    predictions = run / "predictions/classification/georgia.parquet"
    flip(predictions)
    with pytest.raises(BenchmdError, match=r"georgia\.parquet is damaged"):
        benchmd_ray.export_model(run, tmp_path / "other")
    flip(predictions)
    flip(run / "model.safetensors")
    with pytest.raises(BenchmdError, match=r"model\.safetensors is damaged"):
        benchmd_ray.export_model(run, tmp_path / "other")
    flip(run / "model.safetensors")
    (run / "done.json").unlink()
    with pytest.raises(BenchmdError, match="is not finished"):
        benchmd_ray.export_model(run, tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "store"]


@pytest.mark.slow
def test_a_program_that_differs_is_not_written(trained, tmp_path, monkeypatch):
    from benchmd_ray.export import portable

    def wrong(program, folder):
        (folder / "model.pt2").write_bytes(b"")
        return lambda inputs: torch.full((len(inputs[0]), 7), 0.5)

    monkeypatch.setattr(portable, "write_torch", wrong)
    with pytest.raises(BenchmdError, match=r"model\.pt2 differs from the model by .* seeded noise"):
        benchmd_ray.export_model(trained[2], tmp_path / "out", torch_export=True)
    assert list(tmp_path.iterdir()) == []


def finished(store, card):
    """A transfer run of random weights for a dataset, finished."""
    kind = card.modality
    run = make_transfer(store, modality=kind, source=card.name, changes={"encoder": "tiny"})
    torch.manual_seed(3)
    size = run.settings.encoder
    model = Classifier(make_encoder(kind.signal, size), len(kind.task.classes))
    channels = kind.signal.stored_shape[0]
    statistics = {"mean": [100.0] * channels, "std": [50.0] * channels}
    export_model(run.folder, model.state_dict(), size, kind.signal, statistics, kind.task)
    sha = json.loads((run.folder / "model.json").read_text())["weights"]
    write_done(run, model_sha256=sha)
    return read_run(run.folder)


@pytest.mark.slow
def test_padding_of_images_is_told_by_their_sizes(write_catalog, tmp_path):
    card = dataset_card("nih-cxr-ap")
    generator = np.random.default_rng(0)
    records = []
    for number, size in enumerate([(224, 224), (224, 100), (60, 224)]):
        pixels = np.zeros(card.signal.stored_shape, np.uint8)
        top, left = ((224 - extent) // 2 for extent in size)
        drawn = generator.integers(0, 256, size, np.uint8)
        pixels[:, top : top + size[0], left : left + size[1]] = drawn
        target = [0] * len(card.classes)
        records.append(Record(f"r{number}", f"p{number}", f"r{number}", pixels, 1.0, size, target))
    catalog = write_catalog(card, {"train": [records]})
    run = finished(tmp_path / "runs", card)
    out = tmp_path / "model"
    benchmd_ray.export_model(run, out, catalog=catalog.path, torch_export=True)
    signals = np.stack([r.signal for r in records]).astype(np.float32)
    sizes = [r.valid_size for r in records]
    found = run_isolated(out, tmp_path, "probabilities", signals, sizes)
    expected = benchmd_ray.classifier(run).predict(signals, sizes=sizes)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    model = benchmd_ray.classifier(run)
    whole = model.predict(signals)
    assert np.abs(whole[1:] - expected[1:]).max() > 1e-3  # padding matters
    for scaled in (signals / 255, torch.from_numpy(signals / 255)):
        with pytest.raises(BenchmdError, match="from 0 to 1, and the model takes grey levels from"):
            model.predict(scaled)
    assert np.isfinite(model.predict(0 * signals)).all()  # black throughout
    dark = np.concatenate([signals[:1] / 255, signals[1:]])
    np.testing.assert_allclose(model.predict(dark)[1:], whole[1:], atol=1e-5)


@pytest.mark.parametrize("name", ["model.pt2", "model.safetensors", "config.json"])
def test_a_file_of_an_exported_model_that_was_changed_is_refused(tmp_path, name, monkeypatch):
    out = tmp_path / "model"
    out.mkdir()
    run = make_transfer(tmp_path / "runs")
    encoder = make_encoder(run.modality.signal, run.settings.encoder)
    tensors = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    export_model(run.folder, tensors, run.settings.encoder, run.modality.signal, None)
    about = model_description(run.folder)
    shutil.copy(run.folder / "model.safetensors", out / "model.safetensors")
    (out / "model.pt2").write_bytes(b"a program")
    programs = {"model.pt2": sha256(out / "model.pt2"), "model.onnx": "of one that was not copied"}
    write_hashed_json(out / "config.json", {**about, "programs": programs})
    assert model_description(out)["programs"] == programs
    hashed = []
    check = weights.require_sha256

    def noted(path, *stated):
        hashed.append(path.name)
        check(path, *stated)

    monkeypatch.setattr(weights, "require_sha256", noted)
    benchmd_ray.encoder(out)
    assert hashed.count("model.pt2") == 1  # not in each place that reads the description
    content = bytearray((out / name).read_bytes())
    content[len(content) // 2] ^= 1
    (out / name).write_bytes(content)
    with pytest.raises(Damaged, match=rf"{re.escape(name)} is damaged: "):
        benchmd_ray.encoder(out)


def test_features_of_patients_are_not_exported(tmp_path):
    run = make_transfer(tmp_path, changes={"transfer": {"mode": "knn"}})
    with pytest.raises(BenchmdError, match="features and labels of all training records"):
        benchmd_ray.export_model(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_catalog_that_nothing_is_compared_on_is_refused(tmp_path):
    run = make_transfer(tmp_path)
    command = ["export", str(run.folder), "--out", str(tmp_path / "out"), "--catalog", "nothing"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert "--torch-export or --onnx, or omit --catalog" in " ".join(result.output.split())
    with pytest.raises(BenchmdError, match="the catalog would not be used"):
        benchmd_ray.export_model(run, tmp_path / "out", catalog=tmp_path / "nothing")
    assert not (tmp_path / "out").exists()


def test_the_command_needs_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "is_installed", lambda name: False)
    run = make_transfer(tmp_path)
    with pytest.raises(BenchmdError, match=r"--onnx needs .* onnx, .*benchmd-ray\[onnx\]"):
        benchmd_ray.export_model(run, tmp_path / "out", onnx=True)


@pytest.mark.slow
@pytest.mark.data
def test_three_lines_take_real_ecgs_as_files_have_them(trained, exported, real_data, tmp_path):
    headers = sorted((real_data / "cinc2021" / "sample-data").rglob("*.hea"))
    read = [wfdb.rdrecord(str(header.with_suffix(""))) for header in headers]
    chosen = [each.p_signal.T for each in read if each.p_signal.shape == (5000, 12)][:12]
    assert len(chosen) == 12
    signals = np.stack(chosen).astype(np.float32)
    found = run_isolated(exported, tmp_path, "probabilities", signals)
    expected = benchmd_ray.classifier(trained[2]).predict(signals, rate=500)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(found, axis=0).max() > 0  # they differ from one another


@pytest.mark.slow
def test_the_command_writes_three_files(tmp_path):
    run = finished(tmp_path / "runs", dataset_card("georgia"))
    predict_all(run, {"georgia": {"test": 60}}, synthetic=["georgia"])
    command = ["export", str(run.folder), "--out", str(tmp_path / "new" / "model")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "new" / "model"
    assert result.output == f"written: {folder}\n"
    assert sorted(p.name for p in folder.iterdir()) == [
        *("README.md", "config.json", "model.safetensors")
    ]
    assert "numbers say nothing about patients" in (folder / "README.md").read_text("utf-8")
    again = CliRunner().invoke(main, command)
    assert again.exit_code == 1
    assert "not an empty folder" in again.output


def test_a_model_that_segments_is_refused(tmp_path):
    card = dataset_card("hippocampus")
    run = make_transfer(tmp_path, modality=card.modality, source=card.name)
    with pytest.raises(BenchmdError, match="a segmentation model, which cannot be exported yet"):
        benchmd_ray.export_model(run, tmp_path / "out")


@pytest.mark.parametrize("name", ["ecg", "eeg", "cxr", "mammo", "derm", "ldct"])
def test_noise_is_of_values_that_models_see(name):
    signal = modality(name).signal
    channels = signal.stored_shape[0]
    statistics = {"mean": [120.0] * channels, "std": [40.0] * channels}
    inputs = noise(signal, statistics).inputs
    seen = normaliser(signal, statistics)(
        inputs[0], torch.ones(8), torch.tensor(signal.stored_shape[1:]).expand(8, -1)
    )
    assert seen.shape == (8, *signal.input_shape)
    assert 0.05 < seen.std() < 2  # spread, and not clipped to the ends of a range
    assert len(inputs) == (2 if name in ("cxr", "mammo", "derm") else 1)
    torch.testing.assert_close(noise(signal, statistics).inputs[0], inputs[0], rtol=0, atol=0)


def test_a_network_that_cannot_be_traced_is_refused():
    class Deciding(nn.Module):
        def forward(self, signals, sizes):
            return signals.mean(2) if signals.sum() > 0 else signals.amax(2)

    model = SimpleNamespace(signal=modality("ecg").signal, module=Deciding())
    with pytest.raises(BenchmdError, match=r"cannot export this network .* without --torch"):
        traced(model)


@pytest.mark.slow
def test_a_catalog_of_another_signal_is_refused(trained, write_catalog, tmp_path):
    card = dataset_card("nih-cxr-ap")
    pixels = np.zeros(card.signal.stored_shape, np.uint8)
    record = Record("r", "p", "r", pixels, 1.0, (224, 224), [0] * len(card.classes))
    catalog = write_catalog(card, {"train": [[record]]})
    out = tmp_path / "out"
    with pytest.raises(BenchmdError, match="is of cxr, and the model of ecg: name one of the same"):
        benchmd_ray.export_model(trained[2], out, catalog=catalog.path, torch_export=True)
    assert not (tmp_path / "out").exists()
