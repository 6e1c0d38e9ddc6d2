"""Pretraining on some catalogs, transfer on others."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import made_catalogs
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from benchmd_ray.cli import main
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.export.model import export_run
from benchmd_ray.files.integrity import read_hashed_json, write_hashed_json
from benchmd_ray.runs.places import store_folder
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.runs.pretraining_data import SEEN
from benchmd_ray.runs.store import read_run
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.execute import evaluate_run, pretrain_run, transfer_run
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.naming import transferring
from benchmd_ray.service.plan import make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.service.simulate import Resources
from benchmd_ray.service.tune_dry_run import estimate_searches
from benchmd_ray.settings.definition import ENCODERS, Settings, updated
from benchmd_ray.storage.bucket import open_bucket
from benchmd_ray.storage.location import location
from benchmd_ray.training.jobs import PretrainJob
from benchmd_ray.training.launch import launch
from benchmd_ray.training.reporter import SilentReporter, read_metrics
from benchmd_ray.training.weights import model_description

SMALL = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {
        "pretrain": {"steps": 3, "batch_size": 8},
        "transfer": {"epochs": 2, "batch_size": 16},
        "execution": {"device": "cpu"},
    },
)
SET = (
    *("encoder=tiny", "pretrain.steps=3", "pretrain.batch_size=8", "transfer.epochs=2"),
    "execution.device=cpu",
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def paths(ecg_catalogs):
    return {name: catalog.path for name, catalog in ecg_catalogs.items()}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def upstream(paths, store):
    """A pretraining on two targets as one."""
    return pretrain_run("mae", [paths["georgia"], paths["cpsc"]], store, SMALL)


def images(name, seed, splits, folder, patients="p", **changes):
    """A catalog of noise of a MedMNIST dataset; patients are numbered over all splits."""
    card, drawn, parts, number = dataset_card(name), np.random.default_rng(seed), {}, 0
    changes = {"normaliser": "source-statistics", "parameters": {}, **changes}
    signal = replace(card.signal, **changes)
    card = replace(card, modality=replace(card.modality, signal=signal))
    for split, rows in splits.items():
        records = []
        for row in range(rows):
            values = drawn.integers(20 * seed, 100 + 20 * seed, card.signal.stored_shape)
            target = np.eye(len(card.classes), dtype=int)[row % len(card.classes)].tolist()
            key = f"{patients}{number}"
            about = (f"{split}{row}", key, f"{split}{row}", values.astype(np.uint8), 1.0)
            records.append(Record(*about, card.signal.stored_shape[1:], target))
            number += 1
        parts[split] = [records]
    return made_catalogs.write_catalog(folder, card, parts)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Catalogs of two sources of one signal, which their statistics normalise."""
    folder, splits = tmp_path_factory.mktemp("pair"), {"train": 12, "validation": 8, "test": 8}
    first = images("breastmnist", 1, splits, folder / "breastmnist", "a")
    return first, images("pneumoniamnist", 4, splits, folder / "pneumoniamnist", "b")


def test_several_catalogs_are_one_pretraining_whatever_their_order(upstream, paths, store):
    about = upstream.description
    assert about["source"] == "cpsc+georgia"
    digests = sorted(open_catalog(paths[name]).digest for name in ("cpsc", "georgia"))
    assert about["determinants"]["catalogs"] == digests
    assert [(e["dataset"], e["records"]) for e in about["pretrained_on"]] == [
        (name, open_catalog(paths[name]).rows("test")) for name in ("cpsc", "georgia")
    ]
    again = pretrain_run("mae", [paths["cpsc"], paths["georgia"]], store, SMALL)
    assert again.folder == upstream.folder
    assert pretrain_run("mae", paths["cpsc"], store, SMALL).folder != upstream.folder


def test_a_transfer_states_what_a_published_encoder_was_pretrained_on(upstream, paths):
    stated = {
        "name": "net",
        "title": "Net",
        "licence": "MIT",
        "also": ["an archive"],
        "unlisted": "",
    }
    source = open_catalog(paths["ptb-xl"])
    for names, message in ((["georgia", "mimic-cxr"], ""), (["georgai"], r"georgai.*georgia")):
        published = {**stated, "pretrained_on": names}
        pretrained = replace(upstream, description={**upstream.description, "published": published})
        if not message:
            about = transferring(source, SMALL, pretrained).description
            assert about["published"] == published
            continue
        with pytest.raises(BenchmdError, match=message):
            transferring(source, SMALL, pretrained)
    assert "published" not in transferring(source, SMALL, upstream).description


def test_a_transfer_starts_from_a_pretraining_on_other_datasets(upstream, paths, store):
    target = (paths["chapman-shaoxing"],)
    run = transfer_run(paths["ptb-xl"], store, SMALL, upstream=upstream.folder, targets=target)
    assert run.description["pretrained_on"] == upstream.description["pretrained_on"]
    assert run.description["protocol"] == ""
    trained, before = (
        load_file(run.folder / "model.safetensors"),
        load_file(upstream.folder / "model.safetensors"),
    )
    encoder = [name for name in trained if name.startswith("encoder.")]
    assert all(torch.equal(trained[name], before[name]) for name in encoder)
    assert read_predictions(predictions_path(run.folder, "chapman-shaoxing")).splits == ["test"]
    with pytest.raises(BenchmdError, match=r"pretraining on georgia saw \d+ of the \d+ patients"):
        evaluate_run(run, paths["georgia"], SMALL)
    longer, seen = updated(SMALL, {"transfer": {"epochs": 4}}), (paths["georgia"],)
    before = sorted(store.iterdir())
    with pytest.raises(BenchmdError, match="pretraining on georgia saw"):
        transfer_run(paths["ptb-xl"], store, longer, upstream=upstream.folder, targets=seen)
    assert sorted(store.iterdir()) == before


def test_normalisation_is_the_catalogs_or_the_pretrainings(pair, tmp_path):
    first, second = pair
    before = pretrain_run("mae", first, tmp_path, SMALL)
    runs = {
        choice: transfer_run(
            second,
            tmp_path,
            updated(SMALL, {"transfer": {"normalisation": choice}}),
            upstream=before.folder,
        )
        for choice in ("catalog", "pretraining")
    }
    assert len({run.folder for run in runs.values()}) == 2
    for choice, path in (("catalog", second), ("pretraining", first)):
        run = runs[choice]
        assert run.settings.transfer.normalisation == choice
        described = model_description(run.folder)
        assert described["statistics"] == open_catalog(path).statistics
        assert described["normalisation"] == choice
    scores = [
        read_predictions(predictions_path(run.folder, "pneumoniamnist")).of_split("test")[1]
        for run in runs.values()
    ]
    assert not np.allclose(*scores)
    same = updated(SMALL, {"transfer": {"normalisation": "pretraining"}})
    own = transfer_run(first, tmp_path, same, upstream=before.folder)
    assert own.settings.transfer.normalisation == "catalog"
    assert "normalisation" not in own.description["determinants"]["transfer"]
    assert own.folder == transfer_run(first, tmp_path, SMALL, upstream=before.folder).folder


def test_patches_are_those_of_the_pretraining(pair, tmp_path):
    splits = {"train": 12, "validation": 8, "test": 8}
    other = images("pneumoniamnist", 4, splits, tmp_path / "pneumoniamnist", patch=(14, 14))
    before = pretrain_run("mae", pair[0], tmp_path / "runs", SMALL)
    run = transfer_run(other, tmp_path / "runs", SMALL, upstream=before.folder)
    assert open_catalog(other).signal.patch != open_catalog(pair[0]).signal.patch
    assert run.settings.encoder.patch_size == open_catalog(pair[0]).signal.patch[-1]


def test_predictions_use_the_normalisation_that_was_trained_with(pair, tmp_path):
    first, second = pair
    before = pretrain_run("mae", first, tmp_path, SMALL)
    settings = updated(SMALL, {"transfer": {"normalisation": "pretraining"}})
    run = transfer_run(second, tmp_path, settings, upstream=before.folder)
    exported = export_run(run, tmp_path / "exported").folder
    assert model_description(exported)["statistics"] == open_catalog(first).statistics
    assert "Its encoder was pretrained on breastmnist." in (exported / "README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 250.0}, "its rate is 500 Hz, expected 250 Hz"),
        ({"unit": "µV"}, "its unit is mV, expected µV"),
        (
            {"stored_shape": (12, 2500), "input_shape": (12, 2500)},
            "its size is 12 × 5000, expected 12 × 2500",
        ),
        ({"channels": tuple("ABCDEFGHIJKL")}, "its channels lack A, B, C"),
        (
            {"normaliser": "fixed-range", "parameters": {"low": -1.0, "high": 1.0}},
            "normalised by record-range, expected fixed-range low=-1",
        ),
        (
            {
                "axes": ("channel", "z", "y", "x"),
                **dict.fromkeys(("stored_shape", "input_shape"), (1, 8, 8, 8)),
                **{"patch": (4, 4, 4), "channels": (), "rate": None},
            },
            "its axes are channel, time, expected channel, z, y, x",
        ),
    ],
)
def test_a_pretraining_whose_signal_does_not_fit_is_refused_before_any_work(
    upstream, paths, tmp_path, monkeypatch, changes, message
):
    from benchmd_ray.service import naming

    kind = replace(upstream.modality, signal=replace(upstream.modality.signal, **changes))
    other = read_run(upstream.folder)
    other.__dict__["modality"] = kind
    monkeypatch.setattr(naming, "read_run", lambda folder: other)
    with pytest.raises(BenchmdError, match=re.escape(message)):
        transfer_run(paths["ptb-xl"], tmp_path / "runs", SMALL, upstream=upstream.folder)
    assert not (tmp_path / "runs").exists()


def test_shared_patients_are_counted_and_refused(pair, tmp_path):
    first, _ = pair
    splits = {"train": 12, "validation": 8, "test": 8}
    whole = images("breastmnist", 2, splits | {"train": 22}, tmp_path / "b")
    shifted = images("breastmnist", 1, splits, tmp_path / "a")
    before = pretrain_run("mae", whole, tmp_path / "runs", SMALL)
    with pytest.raises(BenchmdError, match="on breastmnist saw 2 of the 8 patients that are"):
        transfer_run(shifted, tmp_path / "runs", SMALL, upstream=before.folder)
    with pytest.raises(BenchmdError, match="are of one origin, and the patients of the pretrain"):
        transfer_run(first, tmp_path / "runs", SMALL, upstream=before.folder)
    assert not list((tmp_path / "runs").glob("transfer-*"))


def test_an_exported_encoder_comes_back_as_the_run_that_it_was(upstream, paths, tmp_path, store):
    folder = export_run(upstream, tmp_path / "encoder").folder
    fine = updated(SMALL, {"transfer": {"mode": "finetune", "labels": "small"}})
    back = transfer_run(paths["ptb-xl"], tmp_path / "runs", fine, upstream=folder)
    shutil.rmtree(folder)  # the store has what it needs
    direct = transfer_run(paths["ptb-xl"], store, fine, upstream=upstream.folder)
    names = ("model.safetensors", "predictions/classification/ptb-xl.parquet")
    assert (back.folder / names[0]).read_bytes() == (direct.folder / names[0]).read_bytes()
    assert back.description["pretrained_on"] == direct.description["pretrained_on"]
    (imported,) = (tmp_path / "runs").glob("pretrain-*")
    assert read_run(imported).finished
    assert evaluate_run(back, paths["chapman-shaoxing"], SMALL).is_file()


def test_the_encoder_of_an_exported_transfer_is_taken(upstream, paths, store, tmp_path):
    run = transfer_run(paths["ptb-xl"], store, SMALL, upstream=upstream.folder)
    folder = export_run(run, tmp_path / "model").folder
    back = transfer_run(paths["ptb-xl"], tmp_path / "runs", SMALL, upstream=folder)
    datasets = [entry["dataset"] for entry in back.description["pretrained_on"]]
    assert datasets == ["cpsc", "georgia", "ptb-xl"]


def test_a_damaged_or_older_export_is_refused(upstream, paths, tmp_path):
    folder = export_run(upstream, tmp_path / "encoder").folder
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + bytes(4))
    with pytest.raises(BenchmdError, match="SHA-256"):
        transfer_run(paths["ptb-xl"], tmp_path / "runs", SMALL, upstream=folder)
    weights.write_bytes(whole)
    content = read_hashed_json(folder / "config.json", "")
    write_hashed_json(folder / "config.json", {**content, "trained": {"run": "x"}})
    with pytest.raises(BenchmdError, match=r"trained: .*written by an earlier version"):
        transfer_run(paths["ptb-xl"], tmp_path / "runs", SMALL, upstream=folder)
    for name, value, message in (
        ("statistics", {"mean": [0.0] * 12, "std": [1.0] * 11 + [-1.0]}, "is -1, expected above"),
        ("statistics", {"mean": [0.0], "std": [1.0]}, "expected 12 means and deviations"),
        ("statistics", {"mean": [[0.0]], "std": [1.0]}, r"config\.json is damaged: statistics: "),
        ("trained", {**content["trained"], "source": "x\x1b[31m"}, r"trained: .*plain names"),
        ("encoder", {**content["encoder"], "depth": 10**9}, r"config\.json is damaged: encoder: "),
    ):
        write_hashed_json(folder / "config.json", {**content, name: value})
        with pytest.raises(BenchmdError, match=message):
            transfer_run(paths["ptb-xl"], tmp_path / "runs", SMALL, upstream=folder)
    deeper = {**content, "encoder": {**content["encoder"], "depth": 3}}
    write_hashed_json(folder / "config.json", deeper)
    with pytest.raises(BenchmdError, match="holds weights of another architecture"):
        transfer_run(paths["ptb-xl"], tmp_path / "runs", SMALL, upstream=folder)
    assert not (tmp_path / "runs").exists()


def test_an_export_that_may_have_seen_the_patients_leaves_nothing_in_the_store(paths, tmp_path):
    own = pretrain_run("mae", paths["ptb-xl"], tmp_path / "elsewhere", SMALL)
    folder = export_run(own, tmp_path / "encoder").folder
    other = open_catalog(paths["ptb-xl"])
    content = read_hashed_json(folder / "config.json", "")
    seen = [{**entry, "catalog": "0" * 64} for entry in content["trained"]["pretrained_on"]]
    trained = {**content["trained"], "pretrained_on": seen}
    write_hashed_json(folder / "config.json", {**content, "trained": trained})
    with pytest.raises(BenchmdError, match="are of one origin, and the patients"):
        transfer_run(other.path, tmp_path / "runs", SMALL, upstream=folder)
    assert not list((tmp_path / "runs").glob("pretrain-*"))


def choice(paths, *pretrain_on, **more):
    return Choice(
        **{
            "catalogs": tuple(paths[name] for name in ("ptb-xl", "georgia", "chapman-shaoxing")),
            "pretrain_on": tuple(paths[name] for name in pretrain_on),
            "techniques": ("scratch", "mae"),
            "settings": ("linear",),
            "assignments": SET,
            **more,
        }
    )


def test_a_plan_pretrains_on_the_named_catalogs_and_does_not_score_them(paths):
    plan = make_plan(choice(paths, "georgia", "cpsc"), device="cpu", tflops=1.0)
    names = [item.name for item in plan.items]
    assert names == [
        "ptb-xl/clean/scratch/seed-0/linear",
        "ptb-xl/clean/scratch/seed-0/linear/chapman-shaoxing",
        "cpsc+georgia/clean/mae/seed-0/pretrain",
        "ptb-xl/clean/mae/seed-0/linear",
        "ptb-xl/clean/mae/seed-0/linear/chapman-shaoxing",
    ]
    assert plan.items[3].after == names[2]
    assert any("scratch and encoders that are taken as they are" in note for note in plan.notes)
    assert "georgia: not scored, it is pretrained on." in plan.notes
    turned = make_plan(choice(paths, "cpsc", "georgia"), device="cpu", tflops=1.0)
    assert [item.name for item in turned.items] == names


def test_a_plan_without_a_fitting_source_says_why(paths, pair):
    with pytest.raises(
        BenchmdError, match=r"no source takes an encoder .* its axes are channel, t"
    ):
        make_plan(replace(choice(paths), pretrain_on=(pair[0],)), device="cpu", tflops=1.0)


@pytest.mark.ray
@pytest.mark.slow
def test_a_plan_is_executed_and_found_again(paths, upstream, store, ray_cluster):
    plan = make_plan(choice(paths, "georgia", "cpsc"), device="cpu", tflops=1.0)
    outcome = run_plan(plan, store, say=print, quiet=True)
    assert outcome.whole
    pretrained = outcome.folders["cpsc+georgia/clean/mae/seed-0/pretrain"]
    assert read_run(pretrained).description["source"] == "cpsc+georgia"
    again = run_plan(plan, store, say=print, quiet=True)
    assert len(again.before) == len(plan.items)


def test_a_search_is_named_by_what_it_is_pretrained_on(paths):
    assigned = ("execution.device=cpu",)
    made = [
        planned_searches(
            Tuning(
                choice(paths, *others, techniques=(), settings=(), assignments=assigned),
                ("mae",),
                ("linear",),
            ),
            gpu=False,
        )[0].name
        for others in ((), ("georgia", "cpsc"), ("cpsc", "georgia"))
    ]
    assert made[1] == made[2] != made[0]
    searched = choice(paths, "georgia", "cpsc", techniques=(), settings=())
    overrides = ({"execution": {"device": "cpu"}},)
    tuning = Tuning(replace(searched, overrides=overrides), ("mae",))
    (estimate,) = estimate_searches([tuning], paths["cpsc"], Resources(2, 0), tflops=1.0)
    assert any("Shared by trials and the runs after them: 1" in text for text in estimate.takes)
    searched = Tuning(
        choice(paths, "cpsc", techniques=(), settings=(), assignments=assigned),
        ("mae",),
        ("pretrain",),
    )
    with pytest.raises(BenchmdError, match="a search of pretrain trains on folds of its source"):
        planned_searches(searched, gpu=False)


def test_commands_take_several_catalogs(paths, upstream, store, tmp_path):
    both = ["--catalog", str(paths["cpsc"]), "--catalog", str(paths["georgia"])]
    settings = [word for value in SET for word in ("--set", value)]
    command = ["pretrain", *both, "--technique", "mae", "--store", str(tmp_path), *settings]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    folder = Path(result.stdout.strip())
    assert json.loads((folder / "run.json").read_text())["source"] == "cpsc+georgia"
    dry = [
        *("run", "--dry-run", "--tflops", "1", "--json", "--catalog", str(paths["ptb-xl"])),
        *("--pretrain-on", str(paths["cpsc"]), "--technique", "mae", "--setting", "linear"),
    ]
    result = CliRunner().invoke(main, [*dry, *settings, "--store", str(tmp_path)])
    assert result.exit_code == 0, result.output
    first = json.loads(result.stdout)["items"][0]
    assert first["name"] == "cpsc/clean/mae/seed-0/pretrain"


def test_a_killed_pretraining_on_several_resumes_as_if_it_had_not_stopped(
    upstream, paths, tmp_path
):
    catalogs = [paths["cpsc"], paths["georgia"]]
    jobs = {until: tmp_path / str(until) for until in (2, None)}
    for until, folder in jobs.items():
        folder.mkdir()
        stops = (2, None) if until else (None,)
        for stop in stops:
            job = PretrainJob(SMALL, "mae", catalogs[0], folder, stop, tuple(catalogs[1:]))
            launch(job, reporter=SilentReporter())
    weights = [load_file(folder / "model.safetensors") for folder in jobs.values()]
    own = load_file(upstream.folder / "model.safetensors")
    assert all(torch.equal(own[name], each[name]) for each in weights for name in own)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("feed", ["resident", "streaming"])
def test_two_workers_pretrain_on_several_as_one_does(paths, tmp_path, ray_cluster, feed):
    catalogs, losses = [paths["cpsc"], paths["georgia"]], []
    for workers in (1, 2):
        execution = {"workers": workers, "log_every": 1, "feed": feed}
        rested = {"dropout": 0.0, "embedding_dropout": 0.0}  # which workers draw apart
        settings = updated(SMALL, {"execution": execution, "encoder": rested})
        run = pretrain_run("mae", catalogs, tmp_path / str(workers), settings)
        losses.append([line["loss"] for line in read_metrics(run.folder)])
    assert np.isfinite(losses).all()
    if feed == "resident":  # a stream's order is the workers'
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_stores_and_catalogs_on_s3_serve_as_folders_do(upstream, paths, s3, tmp_path, monkeypatch):
    bucket = open_bucket(f"{s3}/catalogs")
    for name in ("cpsc", "georgia"):
        for path in sorted(paths[name].rglob("*")):
            if path.is_file():
                bucket.write(f"{name}/{path.relative_to(paths[name])}", path.read_bytes())
    there = [location(f"{s3}/catalogs/{name}") for name in ("georgia", "cpsc")]
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "a"))
    run = pretrain_run("mae", there, store_folder(f"{s3}/runs"), SMALL)
    assert run.folder.name == upstream.folder.name
    assert run.model_sha256 == upstream.model_sha256
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "b"))
    store = store_folder(f"{s3}/runs")
    before = read_run(store / run.folder.name)
    done = transfer_run(paths["ptb-xl"], store, SMALL, upstream=before.folder)
    assert (done.folder / SEEN).is_file()
    with pytest.raises(BenchmdError, match="pretraining on georgia saw"):
        evaluate_run(done, paths["georgia"], SMALL)
