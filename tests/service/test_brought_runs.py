"""Encoders that were trained elsewhere, through runs and plans."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers
from test_imagenet_runs import write_catalog

from benchmd_ray.api import transfer
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.map_style import SplitDataset
from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions import plugins
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.runs.store import read_run
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.execute import evaluate_run, transfer_run, transfer_settings
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.plan import make_plan
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.settings.definition import updated
from benchmd_ray.ssl.brought import own_encoder
from benchmd_ray.training.weights import load_encoder

MODULE = """
import torch
from torch import nn


class Beats(nn.Module):
    def __init__(self, signal, size):
        super().__init__()
        self.layer = nn.Conv1d(signal.input_shape[0], 8, 15, stride=8)

    def forward(self, signals):
        return self.layer(signals).relu().mean(-1)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("catalogs") / "mimic-cxr"
    statistics = {"mean": [110.0], "std": [61.0]}
    return write_catalog(folder, "mimic-cxr", {"train": 8, "validation": 6}, statistics)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_catalog(tmp_path_factory.mktemp("catalogs") / "t", "vindr-cxr", {"test": 6}, None)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A ViT of transformers."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=32, image_size=32, patch_size=16)
    transformers.ViTModel(config).save_pretrained(tmp_path / "secret-place" / "vit")
    return tmp_path / "secret-place" / "vit"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["knn", "linear", "finetune"])
def test_a_vit_of_transformers_is_transferred_and_stays_usable(
    source, target, folder, tmp_path, mode
):
    technique = f"hf:{folder}"
    changes = {
        "transfer": {"mode": mode, "epochs": 2, "batch_size": 8},
        "execution": {"device": "cpu"},
    }
    settings = updated(transfer_settings(source, technique), changes)
    run = transfer_run(source, tmp_path / "runs", settings, upstream=technique, targets=(target,))
    again = transfer_run(source, tmp_path / "runs", settings, upstream=technique)
    assert again.folder == run.folder
    upstream = read_run(tmp_path / "runs" / run.description["upstream"])
    assert run.description["technique"] == upstream.description["technique"] == "hf:vit"
    for text in (tmp_path / "runs").rglob("*.json"):
        assert "secret-place" not in text.read_text()
    catalog = open_catalog(source)
    signals = torch.stack([x for x, _ in SplitDataset(catalog, "train", catalog.statistics)])
    own = transformers.ViTModel.from_pretrained(folder).eval()
    small = torch.nn.functional.interpolate(
        signals.expand(-1, 3, -1, -1), (32, 32), mode="bilinear", antialias=True
    )
    with torch.no_grad():
        expected = own(small).last_hidden_state[:, 0]
        torch.testing.assert_close(load_encoder(upstream.folder).eval()(signals), expected)
        trained = load_encoder(run.folder).eval()(signals)
    assert torch.allclose(trained, expected, atol=1e-5) == (mode != "finetune")
    first = read_predictions(predictions_path(run.folder, "vindr-cxr")).table
    shutil.rmtree(folder)  # the run holds all that it needs
    shutil.rmtree(run.folder / "predictions")
    path = evaluate_run(run, target, settings)
    assert read_predictions(path).table.equals(first)


def test_your_own_module_is_transferred_where_you_name_it(ecg_catalogs, tmp_path, monkeypatch):
    (tmp_path / "my_beats.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_beats", raising=False)
    about = {"settings": {"transfer": {"mode": "knn"}, "execution": {"device": "cpu"}}}
    place = (ecg_catalogs["ptb-xl"].path, tmp_path / "runs")
    with pytest.raises(BenchmdError, match="code that you did not name yourself"):
        transfer(*place, upstream="my_beats:Beats", **about)
    monkeypatch.setenv(plugins.ALLOWED, "my_beats:Beats")
    run = transfer(*place, upstream="my_beats:Beats", **about)
    assert run.description["technique"] == "model:my_beats:Beats"
    assert transfer(*place, upstream="my_beats:Beats", **about).folder == run.folder
    (tmp_path / "my_beats.py").write_text(MODULE.replace("relu", "tanh"))
    sys.modules.pop("my_beats")
    assert transfer(*place, upstream="my_beats:Beats", **about).folder != run.folder


def test_a_plan_takes_them_for_the_signals_that_they_fit(source, ecg_catalogs, folder, tmp_path):
    catalogs = (source, ecg_catalogs["ptb-xl"].path)
    names = (f"hf:{folder}", "scratch")
    plan = make_plan(
        Choice(catalogs, techniques=names, settings=("knn",)), tmp_path / "runs", tflops=0.02
    )
    found = {(item.modality, item.setting, item.name.split("/")[2]) for item in plan.items}
    assert found == {
        ("cxr", "pretrain", "hf:vit"),
        ("cxr", "knn", "hf:vit"),
        ("cxr", "knn", "scratch"),
        ("ecg", "knn", "scratch"),
    }
    assert "networks of transformers are for images" in " ".join(plan.notes)


def test_two_folders_of_one_name_are_refused(source, folder, tmp_path):
    other = Path(shutil.copytree(folder, tmp_path / "elsewhere" / "vit"))
    names = (f"hf:{folder}", f"hf:{other}")
    with pytest.raises(BenchmdError, match="two folders of encoders are called hf:vit"):
        make_plan(
            Choice((source,), techniques=names, settings=("knn",)), tmp_path / "runs", tflops=0.02
        )


def test_nearest_neighbours_of_one_encoder_are_one_run_of_all_seeds(source, folder, tmp_path):
    def run(*changes):
        base = transfer_settings(source, f"hf:{folder}")
        settings = updated(base, {"transfer": {"mode": "knn"}, "execution": {"device": "cpu"}})
        for change in changes:
            settings = updated(settings, change)
        return transfer_run(source, tmp_path / "runs", settings, upstream=f"hf:{folder}")

    first = run()
    unread = {"epochs": 3, "optimiser": {"lr": 0.5}, "layer_decay": 0.5}
    assert run({"seed": 1}).folder == run({"transfer": unread}).folder == first.folder
    assert run({"transfer": {"neighbours": 3}}).folder != first.folder
    few = {"transfer": {"labels": "small"}}
    assert run(few).folder != run(few, {"seed": 1}).folder


def test_their_heads_and_fine_tuning_are_searched(source, folder):
    technique = f"hf:{folder}"
    (plan,) = planned_searches(Tuning(Choice((source,)), (technique,)), gpu=False)
    assert {family.setting for family in plan.families} == {"linear", "knn", "finetune-full"}
    for family in plan.families:
        assert family.settings[0].encoder == own_encoder(technique)
        assert not [name for name in family.space.start if name.startswith("encoder.network")]
    assert {family.name.partition(" ")[0] for family in plan.families} == {f"hf:{folder.name}"}
    assert str(folder.parent) not in plan.name + json.dumps(plan.determinants)
    with pytest.raises(BenchmdError, match="trains nothing in pretraining"):
        planned_searches(Tuning(Choice((source,)), (technique,), ("pretrain",)), gpu=False)
