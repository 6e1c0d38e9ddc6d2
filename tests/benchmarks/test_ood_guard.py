"""A detector in front of a model, and the other commands of detection, as a user calls them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from brief import train_briefly
from click.testing import CliRunner
from made_tiff import page
from made_tiff import write as tiff
from PIL import Image
from safetensors.numpy import load_file, save_file

import benchmd_ray
from benchmd_ray.benchmarks.ood import guard as guards
from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.cli import main
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.loose import ignored_files, read_loose
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import Asked
from benchmd_ray.files.atomic import sha256
from benchmd_ray.files.integrity import Damaged, write_hashed_json
from benchmd_ray.service.execute import transfer_run
from benchmd_ray.service.scored import open_also
from benchmd_ray.settings.definition import Settings, updated

pytestmark = pytest.mark.slow

SMALL = updated(
    Settings(),
    {
        "encoder": {"width": 16, "depth": 4, "heads": 2, "head_dim": 8, "mlp": 16},
        "transfer": {"mode": "finetune", "labels": "full", "epochs": 1, "batch_size": 16},
    },
)


@pytest.fixture(scope="module")
def place(synthetic_raw, synthetic_eeg, build_once, tmp_path_factory):
    """Catalogs of ECG, of another hospital, and of EEG."""
    out = tmp_path_factory.mktemp("guarded")
    return {
        "ptb-xl": build_once("ptb-xl", synthetic_raw["ptb-xl"], out / "ptb-xl"),
        "georgia": build_once("georgia", synthetic_raw["georgia"], out / "others" / "georgia"),
        "isruc": build_once("isruc", synthetic_eeg["isruc"], out / "others" / "isruc"),
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMD_CACHE", str(tmp_path_factory.mktemp("cache")))
        train_briefly(patch)
        yield


@pytest.fixture(scope="module")
def run(place, cache, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    return transfer_run(place["ptb-xl"].path, store, SMALL, within=True)


@pytest.fixture(scope="module")
def fitted(run, place):
    """Fits a detector and keeps it with the run."""
    asked = Asked(run.folder, place["ptb-xl"], SMALL, Worker())
    return lambda detector="": guards.fit(asked, detector)


def called(*arguments):
    return CliRunner().invoke(main, [str(each) for each in arguments])


def noise(path, seed=0):
    np.save(path, np.random.default_rng(seed).normal(size=(12, 5000)))


def test_the_guard_takes_a_catalog_a_file_and_a_folder_and_reads_each_once(
    fitted, run, place, tmp_path
):
    fitted()
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, seed in ((first, 0), (second, 1)):
        folder.mkdir()
        noise(folder / "same.npy", seed)
    np.save(second / "constant.npy", np.full((12, 5000), 3.0))
    (second / "broken.npy").write_bytes(b"no array")
    for name in ("notes.txt", "film.GIF"):
        (second / name).write_bytes(b"x")
    out, catalog = tmp_path / "verdicts.csv", place["georgia"]
    data = (first / "same.npy", second, second / "same.npy", second, catalog.path)
    chosen = [word for path in data for word in ("--data", path)]
    said = called("guard", run.folder, *chosen, "--out", out)
    assert said.exit_code == 0, said.output
    rows = pd.read_csv(out)
    records = catalog.rows("test")
    assert len(rows) == 4 + records
    assert rows.groupby("data").size().to_dict() == {
        str(first / "same.npy"): 1,
        str(second): 3,
        str(catalog.path): records,
    }
    same = rows[rows["record"] == "same.npy"].set_index("data")["score"]
    assert same[str(first / "same.npy")] != same[str(second)]
    verdicts = rows["verdict"].value_counts()
    assert verdicts["unreadable"] == 2
    unread = rows[rows["verdict"] == "unreadable"].set_index("record")
    assert unread["score"].isna().all()
    assert "constant" in unread["reason"]["constant.npy"]
    assert rows.loc[rows["verdict"] != "unreadable", "reason"].isna().all()
    words = {"accept": "accepted", "reject": "rejected", "unreadable": "unreadable"}
    counts = ", ".join(f"{verdicts[w]} {words[w]}" for w in words if w in verdicts)
    line = f"{len(rows)} records: {counts}; 2 files ignored: .gif, .txt\n"
    assert line in said.output


def test_an_exported_average_is_guarded(run, place, cache, tmp_path):
    other = transfer_run(
        place["ptb-xl"].path, run.folder.parent, replace(SMALL, seed=1), within=True
    )
    model = benchmd_ray.export_model([run, other], tmp_path / "model")
    source, files = place["ptb-xl"].path, tmp_path / "new"
    files.mkdir()
    noise(files / "a.npy")
    out, wrong = tmp_path / "out.csv", place["georgia"].path
    done = called("guard", model, "--catalog", wrong, "--data", files, "--out", out)
    assert "was trained on another catalog" in done.output
    done = called("guard", model, "--catalog", source, "--data", files, "--out", out)
    assert done.exit_code == 0, done.output
    first = pd.read_csv(out)
    assert (model / "guard" / "mahalanobis-layers.safetensors").is_file()
    done = called("guard", model, "--data", files, "--out", out)
    assert done.exit_code == 0, done.output
    pd.testing.assert_frame_equal(pd.read_csv(out), first)
    state = load_file(model / "guard" / "mahalanobis-layers.safetensors")
    one = called("guard", run.folder, "--catalog", source, "--data", files, "--out", out)
    assert one.exit_code == 0, one.output
    single = load_file(run.folder / "guard" / "mahalanobis-layers.safetensors")
    assert state.keys() == single.keys()
    assert any(state[name].shape != single[name].shape for name in state)


def test_the_guard_is_asked_about_catalogs_of_other_signals(
    fitted, run, place, synthetic_cxr, build_once, tmp_path
):
    fitted()
    out = tmp_path / "verdicts.csv"
    said = called("guard", run.folder, "--data", place["isruc"].path, "--out", out)
    assert said.exit_code == 0, said.output
    assert len(pd.read_csv(out)) == place["isruc"].rows("test")
    films = build_once("vindr-cxr", synthetic_cxr["vindr-cxr"], tmp_path / "vindr-cxr")
    said = called("guard", run.folder, "--data", films.path, "--out", out)
    assert said.exit_code == 1
    assert "cannot be shown to a network of ecg" in said.output


def test_a_mistyped_detector_is_first_the_beginning_of_one(run, tmp_path):
    said = called("guard", run.folder, "--data", tmp_path, "--detector", "maha")
    assert said.exit_code == 1
    assert "Did you mean 'mahalanobis'?" in said.output


def header(kind, size):
    """A safetensors file of one array of a type."""
    stated = {"mean": {"dtype": kind, "shape": [1], "data_offsets": [0, size]}}
    text = json.dumps(stated).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


@pytest.mark.parametrize(("kind", "size"), [("BF16", 2), ("F8_E4M3", 1)])
def test_arrays_of_types_that_numpy_lacks_are_damaged(fitted, run, kind, size):
    network = fitted("mahalanobis").network
    weights, path = guards._paths(run.folder, "mahalanobis")
    weights.write_bytes(header(kind, size))
    state_of(path, weights)
    with pytest.raises(Damaged, match="fit the detector again with --catalog"):
        guards.read_guard(run.folder, network, "mahalanobis")


def state_of(path, weights):
    about = {
        name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"
    }
    write_hashed_json(path, {**about, "state": sha256(weights)})


CHANGES = {
    "huge": lambda v: np.full_like(v, 10**6 if v.dtype.kind in "iu" else 1e9),
    "negative": lambda v: np.full_like(v, -5),
    "empty": lambda v: np.zeros((0, *v.shape[1:]), v.dtype),
    "vector": lambda v: np.zeros(7, v.dtype),
    "nan": lambda v: np.full(v.shape, np.nan),
    "infinite": lambda v: np.full(v.shape, np.inf),
}
LEARNING = ("mahalanobis-layers", "knn", "odin", "gmm", "vim", "she", "nnguide", "residual")


@pytest.mark.parametrize("name", LEARNING)
def test_a_state_that_no_fit_gives_is_damaged_or_works(fitted, run, name):
    """Whatever is in it, nothing but `Damaged` comes of it, with what to do."""
    network = Network.of(run.folder, Worker(), "float32")
    fitted(name)
    weights, path = guards._paths(run.folder, name)
    whole = load_file(weights)
    assert guards.read_guard(run.folder, network, name).detector == name
    for key, value in whole.items():
        for change, make in CHANGES.items():
            save_file({**whole, key: make(value)}, weights)
            state_of(path, weights)
            try:
                guards.read_guard(run.folder, network, name)
            except Damaged as error:
                assert "fit the detector again" in str(error)  # noqa: PT017
            else:
                assert change not in ("nan", "infinite"), key


def test_files_that_a_header_names_are_not_ignored_and_a_constant_image_says_why(tmp_path):
    ecg, film = dataset_card("ptb-xl").modality, dataset_card("vindr-cxr").modality
    for name in ("a.hea", "a.dat", "b.dat", "c.txt", ".hidden"):
        (tmp_path / name).write_bytes(b"")
    names = sorted(path.name for path in ignored_files(tmp_path, ecg.signal))
    assert names == ["b.dat", "c.txt"]
    assert len(ignored_files(tmp_path, film.signal)) == 4
    Image.fromarray(np.full((30, 30), 7, np.uint8)).save(tmp_path / "grey.png")
    (one,) = read_loose(tmp_path, ["grey.png"], film.signal, film.task)
    assert one.table is None
    assert one.reason == "every pixel is the same; expected an image"


def test_new_pictures_of_both_polarities_are_one_and_several_pages_say_why(tmp_path):
    film, ramp = dataset_card("vindr-cxr").modality, np.tile(np.arange(40, dtype=np.uint16), (9, 1))
    tiff(tmp_path / "black.tif", page(ramp, 1))
    tiff(tmp_path / "white.tif", page(~ramp, 0))
    tiff(tmp_path / "pages.tif", page(ramp, 1), page(ramp, 1))
    names = ["black.tif", "white.tif", "pages.tif"]
    black, white, pages = read_loose(tmp_path, names, film.signal, film.task)
    assert black.table["signal"].equals(white.table["signal"])
    assert pages.reason == "it has 2 pages, expected one: save each page as a file"


def test_tune_takes_folders_of_catalogs_and_names_the_next_command(run, place, monkeypatch):
    from benchmd_ray.benchmarks.ood import report_rows
    from benchmd_ray.runs import predictions
    from benchmd_ray.service import execute

    asked = []

    def evaluate(run, catalog, settings, **options):
        asked.append(options["also"])
        return run.folder / "predictions"

    monkeypatch.setattr(execute, "evaluate_run", evaluate)
    monkeypatch.setattr(predictions, "read_predictions", lambda *_: None)
    monkeypatch.setattr(report_rows, "tuned_frame", lambda _: pd.DataFrame({"set": ["x"]}))
    own, others = place["ptb-xl"].path, place["georgia"].path.parent
    said = called("ood", "tune", run.folder, "--catalog", own, "--also", others)
    assert said.exit_code == 0, said.output
    assert asked == [(place["georgia"].path, place["isruc"].path)]
    assert f"next: benchmd report {run.folder.parent}\n" in said.output


def test_two_catalogs_of_a_dataset_are_refused_in_also(run, place, tmp_path):
    """They would be stored as one, of which every record counts twice."""
    other = tmp_path / "again"
    shutil.copytree(place["georgia"].path, other)
    both = (place["georgia"].path, other)
    with pytest.raises(BenchmdError) as refused:
        open_also(both)
    assert all(str(path) in str(refused.value) for path in both)
    also = [word for path in both for word in ("--also", path)]
    for command in (
        ("ood", "tune", run.folder, "--catalog", place["ptb-xl"].path),
        ("run", "--catalog", place["ptb-xl"].path, "--evaluate", "ood", "--dry-run"),
    ):
        said = called(*command, *also)
        assert said.exit_code == 1, said.output
        assert all(str(path) in said.output for path in both)


def test_a_catalog_that_is_also_trained_on_is_read_once(place):
    arguments = ["run", "--evaluate", "ood", "--technique", "scratch", "--setting", "linear"]
    both = place["ptb-xl"].path.parent
    said = called(*arguments, "--dry-run", "--catalog", both, "--also", place["isruc"].path)
    assert said.exit_code == 0, said.output


def test_a_plan_of_detection_does_not_ask_for_targets(place):
    own, isruc = place["ptb-xl"].path, place["isruc"].path
    arguments = ["run", "--catalog", own, "--technique", "scratch", "--dry-run"]
    said = called(*arguments, "--evaluate", "ood", "--also", isruc)
    assert "no catalog of a target" not in said.output
    assert "so it is scored on its own splits only" in called(*arguments).output


def test_a_build_says_that_it_holds_nothing_out(synthetic_raw, tmp_path, monkeypatch):
    from benchmd_ray.data import build

    def refuse(*_, **__):
        raise BenchmdError("it is built.")

    monkeypatch.setattr(build, "build", refuse)
    raw, out = synthetic_raw["georgia"], tmp_path / "georgia"
    said = called("ood", "build", "georgia", "--raw", raw, "--out", out)
    assert (
        "georgia: nothing held out; synthetic faults and unrelated datasets still apply"
        in said.output
    )
    assert "it is built" in said.output
