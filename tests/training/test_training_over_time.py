"""Fine-tuning networks of signals over time from random weights, on ECGs of the card's shape."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from benchmd_ray.cli import main
from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, Asked
from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.predictions import read_predictions
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.pretrain import require_pretrainable
from benchmd_ray.training.transfer import require_transferable, transfer
from benchmd_ray.training.weights import load_classifier, model_description

NARROW = {
    "resnet18-1d": ("encoder.options.width=4",),
    "resnet50-1d": ("encoder.options.width=2", "encoder.options.stem=imagenet"),
    "xresnet1d101": ("encoder.options.width=4", "encoder.options.dropout=0.1"),
}


@pytest.fixture
def job(source, make_settings, tmp_path):
    """A transfer of one epoch in a folder of that name."""

    def make(name, network, *assignments):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        settings = make_settings(
            f"encoder.network={network}",
            *NARROW[network],
            "transfer.mode=finetune",
            "transfer.epochs=1",
            *assignments,
        )
        return TransferJob(settings, source.path, folder)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("network", NARROW)
def test_an_epoch_on_ecgs_ends_with_a_model_that_predicts(network, job, source, recorder):
    done, reporter = job("run", network), recorder()
    require_transferable(done, source)
    transfer(done, Worker(), reporter)
    (loss,) = reporter.column("loss")
    assert 0 < loss < 10
    assert model_description(done.folder)["encoder"]["network"] == network
    held = load_file(done.folder / MODEL)
    assert held["encoder.stem.0.weight"].shape[1] == source.signal.input_shape[0] == 12
    model = load_classifier(done.folder).eval()
    asked = Asked(done.folder, source, done.settings, Worker())
    scores = np.array(read_predictions(CLASSIFICATION.predict(asked)).table["scores"].to_pylist())
    assert scores.shape == (21, 7)
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)
    assert scores.std(axis=0).max() > 0
    with torch.no_grad():
        assert model(torch.randn(1, 12, 5000)).isfinite().all()


def test_the_same_seed_gives_the_same_weights_and_layers_may_have_rates(job, recorder):
    for name, changes in (("one", ()), ("two", ()), ("decayed", ("transfer.layer_decay=0.5",))):
        transfer(job(name, "xresnet1d101", *changes), Worker(), recorder())
    folders = {name: job(name, "xresnet1d101").folder for name in ("one", "two", "decayed")}
    assert sha256(folders["one"] / MODEL) == sha256(folders["two"] / MODEL)
    assert sha256(folders["one"] / MODEL) != sha256(folders["decayed"] / MODEL)
    result = json.loads((folders["one"] / "training.json").read_text())
    assert 0 <= result["validation_auroc"] <= 1


def test_the_command_trains_from_scratch_and_evaluates_what_it_trained(source, tmp_path):
    chosen = ("encoder.network=resnet18-1d", "encoder.options.width=4", "execution.device=cpu")
    chosen += ("transfer.mode=finetune", "transfer.epochs=1")
    changes = [word for assignment in chosen for word in ("--set", assignment)]
    started = ["transfer", "--catalog", str(source.path), "--store", str(tmp_path / "runs")]
    done = CliRunner().invoke(main, [*started, *changes])
    assert done.exit_code == 0, done.output
    folder = Path(done.output.splitlines()[-1])
    stated = json.loads((folder / "run.json").read_text())
    assert "scratch" in json.dumps(stated)
    assert stated["determinants"]["parts"]["resnet"] == 1
    evaluated = CliRunner().invoke(main, ["evaluate", str(folder), "--catalog", str(source.path)])
    assert evaluated.exit_code == 0, evaluated.output
    assert list(folder.rglob("*.parquet"))


def test_what_cannot_be_is_refused_before_anything_starts(job, source, tmp_path):
    with pytest.raises(BenchmdError, match="xresnet1d101 normalises over the batch"):
        require_transferable(job("run", "xresnet1d101", "execution.workers=2"), source)
    other = PretrainJob(job("run", "resnet18-1d").settings, "shed", source.path, tmp_path)
    with pytest.raises(BenchmdError, match="shed works on the tokens of an encoder"):
        require_pretrainable(other, source)
