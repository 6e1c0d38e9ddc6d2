"""The average of several runs as one model, against the mean of what the runs give."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file
from safetensors.torch import save_file
from sklearn.metrics import roc_auc_score
from stores import (
    ECG_DATA,
    make_pretraining,
    make_search,
    make_transfer,
    predict_all,
    search_name,
    write_done,
)

import benchmd_ray
from benchmd_ray.benchmarks.ood import network as network_module
from benchmd_ray.benchmarks.ood.network import Network
from benchmd_ray.cli import main
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.errors import BenchmdError
from benchmd_ray.export.averaged_runs import exported_runs, fold_runs
from benchmd_ray.files.atomic import sha256
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hashed_json
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.runs.places import store_folder
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.runs.store import read_run
from benchmd_ray.service.imported import trained_of
from benchmd_ray.settings.definition import as_dict, updated
from benchmd_ray.storage.bucket import open_bucket
from benchmd_ray.training.applied import SignalClassifier
from benchmd_ray.training.weights import export_model, load_classifier

FILMS, ECG = dataset_card("nih-cxr-ap"), dataset_card("ptb-xl")


def trained(store, card, evaluation, *, encoder_seed=None, statistics=None, **about):
    """A fold run of random weights, finished; each normalises signals in another way."""
    kind = card.modality
    about.setdefault("changes", {"encoder": "tiny"})
    run = make_transfer(store, modality=kind, source=card.name, fold=evaluation, **about)
    torch.manual_seed(evaluation if encoder_seed is None else encoder_seed)
    size = run.settings.encoder
    encoder = make_encoder(kind.signal, size)
    torch.manual_seed(evaluation)
    model = Classifier(encoder, len(kind.task.classes))
    with torch.no_grad():
        model.head.weight *= 20  # probabilities that differ
    channels = kind.signal.stored_shape[0]
    if statistics is None:
        statistics = {
            "mean": [90.0 + 40 * evaluation] * channels,
            "std": [30.0 + 20 * evaluation] * channels,
        }
    export_model(run.folder, model.state_dict(), size, kind.signal, statistics, kind.task)
    stated = read_hashed_json(run.folder / "model.json", "")
    write_done(run, model_sha256=stated["weights"])
    return read_run(run.folder)


def films(records=3):
    """X-rays of noise, two of them padded."""
    drawn = np.random.default_rng(0).integers(0, 256, (records, *FILMS.signal.stored_shape))
    return drawn.astype(np.float32), [(224, 224), (100, 224), (224, 60)][:records]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    store = tmp_path_factory.mktemp("films") / "runs"
    return [trained(store, FILMS, evaluation) for evaluation in range(3)]


@pytest.fixture(scope="module")
def average(runs):
    """The exported average of `runs`, not to be changed."""
    return benchmd_ray.export_model(runs, runs[0].folder.parent.parent / "model")


@pytest.fixture
def changed(average, tmp_path):
    """Writes a copy of the exported average with other content."""

    def change(tensors=None, **content):
        folder = tmp_path / "changed"
        folder.mkdir(exist_ok=True)
        weights = load_file(average / "model.safetensors") if tensors is None else tensors
        save_file(
            {k: torch.tensor(v) for k, v in weights.items()},
            folder / "model.safetensors",
        )
        config = read_hashed_json(average / "config.json", "") | content
        config["weights"] = sha256(folder / "model.safetensors")
        write_hashed_json(folder / "config.json", config)
        return folder

    return change


def mean_of(runs, signals, sizes=None):
    """The mean probabilities of single runs."""
    parts = [SignalClassifier(run.folder).predict(signals, sizes=sizes) for run in runs]
    return np.mean(np.asarray(parts, np.float64), axis=0)


def test_the_average_is_the_mean_of_the_probabilities(runs, average):
    signals, sizes = films()
    model = benchmd_ray.classifier(average)
    expected = mean_of(runs, signals, sizes)
    np.testing.assert_allclose(model.predict(signals, sizes=sizes), expected, atol=1e-6)
    assert np.ptp(expected, axis=0).max() > 0.01
    single = SignalClassifier(runs[0].folder).predict(signals, sizes=sizes)
    assert np.abs(single - expected).max() > 0.01
    assert model.classes == FILMS.task.classes


def test_exclusive_probabilities_are_averaged_and_add_up_to_1(tmp_path):
    runs = [trained(tmp_path / "runs", ECG, evaluation) for evaluation in range(2)]
    out = benchmd_ray.export_model([run.folder for run in runs], tmp_path / "model")
    signals = np.random.default_rng(1).normal(size=(4, 12, 5000))
    found = benchmd_ray.classifier(out).predict(signals)
    np.testing.assert_allclose(found, mean_of(runs, signals), atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_each_member_normalises_by_its_own_statistics(runs, average, changed):
    signals, sizes = films()
    config = read_hashed_json(average / "config.json", "")
    statistics = [member["statistics"] for member in config["members"]]
    expected = [read_hashed_json(run.folder / "model.json", "")["statistics"] for run in runs]
    assert statistics == expected
    assert config["statistics"] is None
    first = [{**member, "statistics": statistics[0]} for member in config["members"]]
    other = benchmd_ray.classifier(changed(members=first)).predict(signals, sizes=sizes)
    assert np.abs(other - mean_of(runs, signals, sizes)).max() > 1e-3


@pytest.mark.parametrize("equal", [True, False])
def test_an_encoder_that_all_members_have_is_stored_once(tmp_path, equal):
    statistics = {"mean": [100.0], "std": [50.0]} if equal else None
    about = {"encoder_seed": 5, "statistics": statistics}
    runs = [trained(tmp_path / "runs", FILMS, number, **about) for number in range(3)]
    out = benchmd_ray.export_model(runs, tmp_path / "model")
    stored = load_file(out / "model.safetensors").keys()
    assert {name.split(".")[0] for name in stored} == {"encoder", "members"}
    assert sorted(n for n in stored if n.startswith("members.")) == sorted(
        f"members.{number}.head.{part}" for number in range(3) for part in ("weight", "bias")
    )
    model, passes = benchmd_ray.classifier(out), []
    model.models[0].encoder.register_forward_hook(lambda *_: passes.append(1))
    signals, sizes = films()
    expected = mean_of(runs, signals, sizes)
    np.testing.assert_allclose(model.predict(signals, sizes=sizes), expected, atol=1e-6)
    assert len(passes) == (1 if equal else 3)  # signals of other statistics are other signals


@pytest.mark.slow
@pytest.mark.parametrize(("card", "about"), [(FILMS, {}), (ECG, {"encoder_seed": 5})])
def test_programs_give_the_average(tmp_path, card, about):
    import onnxruntime

    runs = [trained(tmp_path / "runs", card, number, **about) for number in range(3)]
    out = benchmd_ray.export_model(runs, tmp_path / "model", torch_export=True, onnx=True)
    if card is FILMS:
        signals, sizes = films()
        inputs = {"signals": signals, "sizes": np.array(sizes)}
    else:
        drawn = np.random.default_rng(1).normal(size=(4, 12, 5000))
        signals, sizes, inputs = drawn, None, {"signals": drawn.astype(np.float32)}
    expected = mean_of(runs, signals, sizes)
    program = torch.export.load(out / "model.pt2").module()
    found = program(*map(torch.from_numpy, inputs.values()))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    session = onnxruntime.InferenceSession(out / "model.onnx")
    np.testing.assert_allclose(session.run(None, inputs)[0], expected, atol=1e-6)
    card_text = (out / "README.md").read_text("utf-8")
    assert "`model.onnx` differs from the model by at most" in card_text


@pytest.mark.parametrize("shared", [True, False])
def test_detectors_see_the_features_of_all_members_and_the_mean_of_their_logits(tmp_path, shared):
    about = {"encoder_seed": 5, "statistics": {"mean": [99.0], "std": [9.0]}} if shared else {}
    runs = [trained(tmp_path / "runs", FILMS, number, **about) for number in range(3)]
    out = benchmd_ray.export_model(runs, tmp_path / "model")
    signals, sizes = films()
    batch = (signals.astype(np.uint8), np.ones(3, np.float32), np.array(sizes, np.int32))
    folders = [out, *(run.folder for run in runs)]
    networks = [replace(Network.of(f, Worker(), "float32"), needs=("odin",)) for f in folders]
    average, *singles = (network.seen(network.quantities(*batch)) for network in networks)
    logits = np.mean([single.logits for single in singles], axis=0)
    np.testing.assert_allclose(average.logits, logits, atol=1e-5)
    parts = singles[:1] if shared else singles
    features = np.concatenate([single.features for single in parts], axis=1)
    np.testing.assert_allclose(average.features, features, atol=1e-6)
    layer = np.concatenate([single.more["layer 1"] for single in parts], axis=1)
    np.testing.assert_allclose(average.more["layer 1"], layer, atol=1e-6)
    head = networks[0].head
    np.testing.assert_allclose(average.features @ head.weight.T + head.bias, logits, atol=1e-4)
    assert average.more["odin"].shape == singles[0].more["odin"].shape
    assert networks[0].digest != networks[1].digest


def test_detectors_refuse_more_features_than_they_can_take(average, monkeypatch):
    monkeypatch.setattr(network_module, "WIDEST", 95)
    with pytest.raises(BenchmdError, match=r"3 models of .* have 96 features .* take 95: name one"):
        Network.of(average, Worker(), "float32")


def test_an_average_is_no_single_model(average):
    match = r"is an average of 3 models, of which none is used by itself: name one of its runs"
    for load in (benchmd_ray.encoder, load_classifier, trained_of):
        with pytest.raises(BenchmdError, match=match):
            load(average)
    arguments = ["transfer", "--catalog", "nothing", "--from", str(average)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert re.search(match, " ".join(result.output.split()))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([{"statistics": None}], "members"),
        ([{"statistics": None}] * 101, "members"),
        ([{"mean": [0.0]}] * 3, "members, 0 lacks statistics|members.* lacks statistics"),
        ([{"statistics": None}] * 3, "this source has none or constant ones"),
        ([{"statistics": {"mean": [0.0] * 2, "std": [1.0] * 2}}] * 3, "expected 1 means"),
        ([{"statistics": {"mean": [0.0], "std": [0.0]}}] * 3, "deviation is 0, expected above 0"),
        ([{"statistics": {"mean": [0.0], "std": ["x"]}}] * 3, "expected a number"),
        ([{"statistics": {"mean": [0.0], "std": [1.0]}}] * 2, "weights of none of 2 members"),
        ([{"statistics": {"mean": [0.0], "std": [1.0]}}] * 4, "weights of another architecture"),
    ],
)
def test_members_that_no_export_writes_are_refused(changed, members, message):
    with pytest.raises(BenchmdError, match=message):
        benchmd_ray.classifier(changed(members=members))


def test_weights_that_no_export_writes_are_refused(average, changed):
    tensors = load_file(average / "model.safetensors")
    first = {k.removeprefix("members.0."): v for k, v in tensors.items() if ".0.encoder." in k}
    for more in ({"head.weight": np.zeros(2, np.float32)}, first):
        with pytest.raises(Damaged, match="weights of none of 3 members"):
            benchmd_ray.classifier(changed(tensors | more))
    wider = tensors | {"members.2.head.bias": np.zeros(99, np.float32)}
    with pytest.raises(BenchmdError, match=r"another architecture: .*head\.bias"):
        benchmd_ray.classifier(changed(wider))
    infinite = tensors | {"members.1.head.bias": tensors["members.1.head.bias"] * np.nan}
    with pytest.raises(BenchmdError, match=r"NaN or infinite values in members\.1\.head\.bias"):
        benchmd_ray.classifier(changed(infinite))


def refused(runs, tmp_path, message):
    with pytest.raises(BenchmdError, match=message):
        benchmd_ray.export_model(runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_that_differ_in_more_than_seed_and_fold_are_refused(tmp_path):
    store = tmp_path / "runs"
    run, other = (make_transfer(store, seed=seed) for seed in (0, 1))
    rate = {"transfer": {"optimiser": {"lr": 0.5}}}
    for differing, what in (
        (make_transfer(store, setting="finetune-full"), r"setting, settings \(transfer\)"),
        (make_transfer(store, changes=rate), r"settings \(transfer\):"),
        (make_transfer(store, parts={"network": 2}), "parts:"),
        (make_transfer(store, source="georgia"), "source, catalog:"),
        (make_transfer(store, "mae"), "technique:"),
    ):
        refused([run, other, differing], tmp_path, rf"-[0-9a-f]+ and .* differ in {what}")
    refused([run, other, run], tmp_path, "is named twice: name each run once")
    refused([run, make_pretraining(store, "mae")], tmp_path, "is a pretraining: only classifiers")
    refused([], tmp_path, "0 runs are named, expected 1 to 100")
    refused([run] * 101, tmp_path, "101 runs are named, expected 1 to 100")
    neighbours = {"transfer": {"mode": "knn"}}
    knn = [make_transfer(store, changes=neighbours, seed=seed) for seed in (0, 1)]
    refused(knn, tmp_path, "features and labels of all training records")
    masks = dataset_card("hippocampus")
    segmenting = [make_transfer(store, modality=masks.modality, source=masks.name)] * 2
    refused(segmenting, tmp_path, "a segmentation model, which cannot be exported yet")


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Three fold runs that were scored, the last of them on less, and their exported average."""
    store = tmp_path_factory.mktemp("scored") / "runs"
    runs = [trained(store, ECG, evaluation) for evaluation in range(3)]
    for run in runs:
        data = {**ECG_DATA, "cpsc": {"test": 60}} if run is not runs[2] else ECG_DATA
        predict_all(run, data)
    out = store.parent / "model"
    result = CliRunner().invoke(main, ["export", *(str(r.folder) for r in runs), "--out", str(out)])
    assert result.exit_code == 0, result.output
    return runs, out


def test_the_card_has_the_scores_of_the_average(scored):
    runs, out = scored
    card = (out / "README.md").read_text("utf-8")
    tables = [pq.read_table(predictions_path(run.folder, "georgia")) for run in runs]
    scores = np.mean([table["scores"].to_pylist() for table in tables], axis=0)
    auroc = roc_auc_score(np.array(tables[0]["target"].to_pylist()), scores, average="macro")
    assert re.search(rf"^\| georgia \| AUROC ↑ \| {auroc:.3f} \[", card, re.M)
    assert "the scores of the average, not the mean of its models' scores" in card
    assert "cpsc" not in card  # which only two have scored
    assert "this split chose the best one" not in card  # the model's own fold did


def test_the_card_says_what_is_averaged(scored):
    runs, out = scored
    card = (out / "README.md").read_text("utf-8")
    seeds = ", ".join(str(run.description["seed"]) for run in runs)
    assert (
        "It is the average of the probabilities of 3 models of the same settings, each trained "
        f"without one fold of the training records (evaluations 0, 1, 2), with the seeds {seeds}."
    ) in card
    assert f"| run | {', '.join(run.folder.name for run in runs)} |" in card
    assert f"| seed | {seeds} |" in card


def test_the_description_states_what_members_share_and_where_they_differ(scored):
    runs, out = scored
    config = read_hashed_json(out / "config.json", "")
    trained = config["trained"]
    assert trained["technique"] == "scratch"
    assert trained["determinants"]["catalog"] == "digest of ptb-xl"
    assert not {"seed", "fold", "run"} & trained.keys()
    assert [member["trained"] for member in config["members"]] == [
        {
            "run": run.folder.name,
            "seed": run.description["seed"],
            "fold": run.description["fold"],
            "determinants": {
                "seed": run.description["seed"],
                "fold": run.description["fold"]["inner"],
            },
        }
        for run in runs
    ]


SOURCE = {
    **{"modality": "ecg", "source": "ptb-xl", "policy": "clean", "inner": "b"},
    **{"records": {"train": 3, "validation": 1}, "patients": {"train": 3, "validation": 1}},
    "catalog": "digest of ptb-xl",
}
RATE = {"transfer": {"optimiser": {"lr": 0.5}}}


def folds_of(store, count, **changes):
    return [make_transfer(store, changes=changes, fold=number) for number in range(count)]


def searched(store, stem, start, best, **source):
    """A search that chose its start, or a trial with `RATE` and other settings like the first."""
    about = {"start": start.settings, "sources": [{**SOURCE, **source}], "technique": "scratch"}
    settings = updated(start.settings, RATE) if best else start.settings
    result = {"best": best, "settings": [as_dict(settings)]}
    return make_search(store, search_name(f"tune-{stem}"), result=result, **about)


def names(runs):
    return [run.folder.name for run in runs]


def test_a_search_names_the_fold_runs_that_it_delivers(tmp_path):
    store, tuned = tmp_path / "runs", search_name("tune-a")
    start, chosen = folds_of(store, 3), folds_of(store, 4, tuned=tuned, **RATE)
    folds_of(store, 2, **RATE)  # of neither
    before = {"transfer": {"optimiser": {"lr": 0.25}}}
    folds_of(store, 2, tuned=tuned, **before)  # chosen before the search was extended
    make_transfer(store, seed=99, changes={"tuned": tuned, **RATE})  # on all labels
    assert names(fold_runs(searched(store, "a", start[0], 3))) == names(chosen)
    assert names(fold_runs(searched(store, "b", start[0], 0))) == names(start)
    for folder in (
        searched(store, "c", start[0], 0, catalog="another"),
        searched(store, "d", start[0], 3),
    ):
        with pytest.raises(BenchmdError, match=r"no finished fold run of tune-.*: run its"):
            benchmd_ray.export_model(folder, tmp_path / "out")


@pytest.mark.parametrize("on_s3", [False, True])
def test_a_search_is_named_by_its_folder_or_address(tmp_path, monkeypatch, s3, on_s3):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    store = tmp_path / "runs"
    start = folds_of(store, 3)
    search = searched(store, "a", start[0], 0)
    if on_s3:
        bucket = open_bucket(f"{s3}/study")
        for path in store.rglob("*.*"):
            bucket.write(path.relative_to(store).as_posix(), path.read_bytes())
        search = store_folder(f"{s3}/study/searches/{search.name}")
    assert names(exported_runs([search])) == names(start)
