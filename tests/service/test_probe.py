"""Probes of encoders: their plan, their errors, and their numbers."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from threadpoolctl import threadpool_limits

from benchmd_ray.cli import main
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import read_columns
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.neighbours import TEMPERATURE
from benchmd_ray.report.analysis import analyse_stores
from benchmd_ray.report.probes import probe_scores, probe_table, write_probes
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.service import probe, spot
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.estimate import Spot
from benchmd_ray.service.plan import make_plan
from benchmd_ray.service.probe import encodings, probe_choice, probe_plan, require_room
from benchmd_ray.service.steps import Request

CHANGES = (
    {
        "encoder": "tiny",
        "pretrain": {"steps": 3, "batch_size": 8},
        "execution": {"device": "cpu"},
    },
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path_factory.getbasetemp() / "probe-cache"))


@pytest.fixture(autouse=True)
def speed(monkeypatch):
    monkeypatch.setattr(spot, "measure_here", lambda *about: Spot("cpu", 1e10, 1e10))


def planned(encoders, catalogs, tmp_path, *, seeds=(0, 1), changes=CHANGES, **options):
    choice = probe_choice(encoders, changes, catalogs=tuple(catalogs), seeds=seeds)
    return choice, probe_plan(choice, tmp_path / "store", device="cpu", **options)


def executed(plan, store):
    """Executes a plan in this process: the runs by item."""
    runs = {}
    for item in plan.items:
        upstream = runs.get(item.after)
        place = (item.technique, item.catalog, store, item.settings, upstream)
        with threadpool_limits(1):  # as in a task
            runs[item.name] = item.step.run(Request(*place))
    return runs


def test_seeds_draw_labels_and_leave_the_encoder_as_it_is(write_manifest, tmp_path):
    catalogs = [write_manifest("ptb-xl"), write_manifest("georgia")]
    choice, plan = planned(("mae", "random-kernels"), catalogs, tmp_path, seeds=(3, 5))
    pretrainings = {item.name for item in plan.items if item.kind == "pretrain"}
    assert {item.seed for item in plan.items if item.kind == "pretrain"} == {3}
    transfers = [item for item in plan.items if item.kind == "transfer"]
    assert {item.after for item in transfers} == pretrainings
    assert sorted((i.seed, i.setting) for i in transfers if i.technique == "mae") == [
        *((3, name) for name in ("knn", "linear", "linear-large", "linear-medium", "linear-small")),
        *((5, name) for name in ("linear-large", "linear-medium", "linear-small")),
    ]
    assert {item.settings.transfer.solver for item in transfers} == {"logistic"}
    targets = [item for item in plan.items if item.kind == "evaluate"]
    assert sorted(i.after for i in targets) == sorted(i.name for i in transfers)
    left = encodings(plan, choice)
    assert [(e.encoder, e.catalog, e.records) for e in left] == [
        ("mae", "ptb-xl", 130),
        ("mae", "georgia", 50),
        ("random-kernels", "ptb-xl", 130),
        ("random-kernels", "georgia", 50),
    ]


def test_an_encoder_that_is_named_twice_is_refused():
    with pytest.raises(BenchmdError, match="two of the encoders are called mae"):
        probe_choice(("mae", "scratch", "mae"))


def test_pairs_that_do_not_fit_are_named_before_any_work(write_manifest, tmp_path):
    catalogs = [write_manifest("ptb-xl"), write_manifest("mimic-cxr")]
    with pytest.raises(BenchmdError, match=r"imagenet on ptb-xl: .*2-D images.*--skip-unfit"):
        planned(("imagenet", "mae"), catalogs, tmp_path, changes=())
    _, plan = planned(("imagenet", "mae"), catalogs, tmp_path, changes=(), skip_unfit=True)
    pairs = {(item.technique, item.source) for item in plan.items}
    assert pairs == {("imagenet", "mimic-cxr"), ("mae", "ptb-xl"), ("mae", "mimic-cxr")}
    assert any("imagenet on ptb-xl: skipped" in note for note in plan.notes)


def test_too_little_room_is_refused(write_manifest, tmp_path, monkeypatch):
    choice, plan = planned(("scratch",), [write_manifest("ptb-xl")], tmp_path)
    left = encodings(plan, choice)
    require_room(plan, tmp_path, left, frozenset())
    usage = type("Usage", (), {"free": 10})()
    monkeypatch.setattr(probe.shutil, "disk_usage", lambda place: usage)
    with pytest.raises(BenchmdError, match="are needed for runs and features, and 10 B are free"):
        require_room(plan, tmp_path, left, frozenset())
    done = frozenset(item.name for item in plan.items)
    require_room(plan, tmp_path, encodings(plan, choice, done), done)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--encoder", "mae", "--catalog", "nowhere"), "nowhere"),
        (("--encoder", "hf:nowhere", "--catalog", "{}"), "nowhere"),
        (("--encoder", "meea", "--catalog", "{}"), "meea"),
    ],
)
def test_what_does_not_exist_is_named(write_manifest, tmp_path, arguments, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [text.format(write_manifest("mimic-cxr")) for text in arguments]
    result = CliRunner().invoke(main, ["probe", *arguments])
    assert result.exit_code == 1
    assert message in result.output.split("error: ")[1]
    assert not (tmp_path / "probes").exists()


@pytest.fixture
def place(ecg_catalogs):
    return [ecg_catalogs[name].path for name in ("ptb-xl", "chapman-shaoxing")]


@pytest.mark.slow
def test_each_record_is_encoded_once_and_the_numbers_are_those_of_run(place, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    _, plan = planned(("scratch",), place, tmp_path, seeds=(0,))
    few = [i for i in plan.items if i.setting in ("knn", "linear-small", "linear-medium")]
    plan, rows, forward = replace(plan, items=tuple(few)), [], Encoder.forward

    def counted(self, signals):
        rows.append(len(signals))
        return forward(self, signals)

    monkeypatch.setattr(Encoder, "forward", counted)
    runs = executed(plan, tmp_path / "store")
    source, target = map(open_catalog, place)
    scored = {"train", "validation", *source.evaluation_splits}
    records = sum(source.rows(s) for s in scored)
    records += sum(target.rows(s) for s in target.evaluation_splits)
    assert records <= sum(rows) <= records + 3 * 8  # the last batch of a split may be padded
    analysis = analyse_stores(sorted({r.folder for r in runs.values()}), resamples=20, curves=False)
    table = probe_table(analysis)
    assert table["catalog"].str.partition(" (")[0].tolist() == [
        "ptb-xl",
        "ptb-xl → chapman-shaoxing",
    ]
    scores = probe_scores(analysis)
    nearest = scores[(scores["setting"] == "knn") & (scores["dataset"] == "ptb-xl")]
    assert table["k-NN"][0].startswith(f"{nearest['value'].item():.3f}")
    assert {path.name for path in write_probes(analysis, tmp_path / "report")} == {
        "probes.csv",
        "probes.md",
        "probes.png",
    }
    rows.clear()
    plain = make_plan(
        Choice(
            catalogs=tuple(place),
            techniques=("scratch",),
            settings=("linear-small", "knn"),
            overrides=(probe.SOLVED, *CHANGES),
        ),
        device="cpu",
    )
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "other"))
    others = executed(plain, tmp_path / "other-store")
    assert sum(rows) >= records
    for name, run in others.items():
        assert run.folder.name == runs[name].folder.name
        for dataset in {source.dataset, target.dataset}:
            first, second = (
                read_predictions(predictions_path(r.folder, dataset)).table
                for r in (run, runs[name])
            )
            assert first.equals(second)


def test_neighbours_vote_as_those_of_scikit_learn(place, tmp_path):
    from sklearn.neighbors import NearestNeighbors

    _, plan = planned(("scratch",), place[:1], tmp_path, seeds=(0,))
    items = [item for item in plan.items if item.setting == "knn"]
    run = executed(replace(plan, items=tuple(items)), tmp_path / "store")[items[0].name]
    source, stored = open_catalog(place[0]), {}
    for path in (Path(os.environ["BENCHMD_CACHE"]) / "features").glob("*.npy"):
        about = pd.read_json(path.with_suffix(".json"), typ="series")
        if about["catalog"] == source.digest:
            stored[about["split"]] = np.load(path)
    nearest = items[0].settings.transfer.neighbours
    count = min(nearest, len(stored["train"]))
    model = NearestNeighbors(n_neighbors=count, metric="cosine").fit(stored["train"])
    table = read_predictions(predictions_path(run.folder, "ptb-xl")).table.to_pandas()
    targets = read_columns(source, "train").targets
    for split, rows in table.groupby("split"):
        distances, places = model.kneighbors(stored[split])
        votes = np.exp((1 - distances) / TEMPERATURE)[:, :, None]
        share = (votes * (targets[places] == 1)).sum(1) / votes.sum(1)
        found = np.array(rows["scores"].to_list())
        np.testing.assert_allclose(found, share.clip(1e-6, 1 - 1e-6), atol=1e-4)
