"""Fine-tuning a ResNet on small volumes: its running statistics, its recipe, its augmentation."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmd_ray.benchmarks.medmnist.recipes import medmnist_settings
from benchmd_ray.data.batches import Worker, epoch_order
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, Asked
from benchmd_ray.files.atomic import sha256
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.predictions import read_predictions
from benchmd_ray.scores.metrics import auroc
from benchmd_ray.settings.definition import AugmentationSettings, EncoderSettings, as_dict, updated
from benchmd_ray.training.augmentation import augmented
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.pretrain import require_pretrainable
from benchmd_ray.training.seeds import AUGMENTATION, WEIGHTS, derived_seed
from benchmd_ray.training.selection import Best
from benchmd_ray.training.transfer import require_transferable, transfer
from benchmd_ray.training.weights import load_classifier, model_description

SHAPE = (1, 8, 8, 8)
AXES = ("channel", "z", "y", "x")
BYTES = {"low": 0, "high": 255}
SHAPES = Modality(
    "shapes",
    Signal("shapes", AXES, SHAPE, SHAPE, "uint8", "grey level", (4,) * 3, "fixed-range", BYTES),
    Task("single-label", ("ball", "box")),
    batch_size=8,
)
TRAIN, VALIDATION, BATCH = 17, 12, 8  # the last batch of an epoch has one example
SEED = 3


def volumes(rows, seed):
    """Records of balls and boxes by turns, somewhere in the volume."""
    generator = np.random.default_rng([seed, rows])
    grid = np.indices(SHAPE[1:])
    records = []
    for row in range(rows):
        away = np.abs(grid - generator.uniform(2.5, 4.5, (3, 1, 1, 1)))
        form = (away**2).sum(axis=0) < 8 if row % 2 == 0 else away.max(axis=0) < 2
        signal = (255 * form[None]).astype(np.uint8)
        name, target = f"{seed}-{row}", [1 - row % 2, row % 2]
        records.append(Record(name, name, name, signal, 1.0, SHAPE[1:], target))
    return records


@pytest.fixture
def shapes(changed_card, make_catalog):
    """Catalog of a source of volumes."""
    splits = {"clean": ("validation",)}
    changed_card("shapes", modality=SHAPES, role="source", evaluation_splits=splits)
    records = {"train": volumes(TRAIN, 0), "validation": volumes(VALIDATION, 1)}
    return make_catalog(records, "shapes")


def recipe(*, network="resnet18-3d", shape=True, **execution):
    """MedMNIST's recipe on a narrow network, in four epochs: it drops after two and three."""
    changes = {
        "seed": SEED,
        "encoder": {"options": {"width": 2}},
        "transfer": {"epochs": 4, "batch_size": BATCH, "augmentation": {"shape": shape}},
        "execution": {"device": "cpu", "checkpoint_seconds": 0.0, **execution},
    }
    return updated(medmnist_settings(SHAPES, network), changes)


@pytest.fixture
def run(shapes, recorder, interrupted, tmp_path):
    """Fine-tunes in this process, in a folder of that name."""

    def start(name, settings, stop_at=None):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        reporter = recorder(stop_at)
        try:
            transfer(TransferJob(settings, shapes.path, folder), Worker(), reporter)
        except interrupted:
            assert stop_at is not None
        return folder, reporter

    return start


def all_of(catalog, split):
    (batch,) = resident_feed(catalog, split, seed=0).ordered(64)
    return batch.signals, batch.targets


def slow_recipe(catalog, settings):
    """MedMNIST's recipe as a plain loop with Adam and a rate that drops after epochs."""
    torch.manual_seed(derived_seed(WEIGHTS, SEED))
    encoder = make_encoder(SHAPES.signal, settings.encoder)
    torch.manual_seed(derived_seed(WEIGHTS, SEED, 1))
    model = Classifier(encoder, 2)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.001)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [2, 3], gamma=0.1)
    signals, targets = all_of(catalog, "train")
    seen, known = all_of(catalog, "validation")
    losses, scores, step = [], [], 0
    for epoch in range(4):
        order, total = epoch_order(SEED, epoch, TRAIN), 0.0
        model.train()
        for start in range(0, TRAIN, BATCH):
            rows = order[start : start + BATCH]
            factors = np.random.default_rng([AUGMENTATION, SEED, step]).random(
                len(rows), np.float32
            )
            x = torch.stack([signals[r] * float(f) for r, f in zip(rows, factors, strict=True)])
            loss = torch.nn.functional.cross_entropy(model(x), targets[rows.copy()].argmax(dim=1))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total, step = total + loss.item() * len(rows), step + 1
        schedule.step()
        model.eval()
        with torch.no_grad():
            p = torch.softmax(model(seen * 0.5), dim=1)
        losses.append(total / TRAIN)
        scores.append(auroc(known.numpy(), p.double().numpy()).mean)
    return model, losses, scores


def keep_last(best, score, epoch, weights):
    best.auroc, best.epoch, best.weights = score, epoch, weights()


def test_the_recipe_is_adam_with_a_rate_that_drops_after_epochs(run, shapes, monkeypatch):
    monkeypatch.setattr(Best, "offer", keep_last)  # so that the last weights can be compared
    folder, reporter = run("run", recipe())
    model, losses, scores = slow_recipe(shapes, recipe())
    assert reporter.column("loss") == pytest.approx(losses, abs=1e-5)
    assert reporter.column("validation_auroc") == pytest.approx(scores, abs=1e-6)
    found = load_classifier(folder).state_dict()
    assert any("running_var" in name for name in found)
    for name, value in model.state_dict().items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4, msg=name)
    assert found["encoder.stem.1.num_batches_tracked"] == 4 * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "execution", [{"engine": "torch"}, {"engine": "deepspeed"}, {"zero_stage": 3}]
)
def test_running_statistics_survive_an_interruption(run, execution):
    settings = recipe(**execution)
    whole, uninterrupted = run("whole", settings)
    broken, _ = run("broken", settings, stop_at=3)
    _, resumed = run("broken", settings)
    assert resumed.started[3] == 2
    assert resumed.lines == uninterrupted.lines[2:]
    assert sha256(broken / MODEL) == sha256(whole / MODEL)


def test_the_best_epoch_keeps_the_statistics_of_its_own_time(run, monkeypatch):
    kept = []

    def offer(best, score, epoch, weights):
        kept.append(weights())
        if epoch == 1:
            best.auroc, best.epoch, best.weights = score, epoch, kept[-1]

    monkeypatch.setattr(Best, "offer", offer)
    folder, _ = run("run", recipe())
    name = "encoder.blocks.7.body.1.running_mean"
    found = load_file(folder / MODEL)[name]
    assert torch.equal(found, kept[1][name])
    assert not torch.equal(found, kept[3][name])


def test_shapes_are_halved_wherever_the_model_is_evaluated(run, shapes):
    folder, reporter = run("run", recipe())
    assert model_description(folder)["augmentation"]["shape"] is True
    held = read_predictions(
        CLASSIFICATION.predict(Asked(folder, open_catalog(shapes.path), recipe(), Worker()))
    )
    signals, targets = all_of(shapes, "validation")
    model = load_classifier(folder).eval()
    with torch.no_grad():
        expected, whole = (torch.softmax(model(x), dim=1) for x in (signals * 0.5, signals))
    scores = np.array(held.table["scores"].to_pylist())
    np.testing.assert_allclose(scores, expected, atol=1e-6, rtol=0)
    assert np.abs(scores - whole.numpy()).max() > 1e-5  # whole signals would be noticed
    best = json.loads((folder / "training.json").read_text())["validation_auroc"]
    assert auroc(targets.numpy(), scores).mean == pytest.approx(best, abs=1e-9)
    assert best == max(reporter.column("validation_auroc"))


def test_linear_evaluation_reads_no_augmentation(run, shapes):
    linear = {"transfer": {"mode": "linear"}}
    one, _ = run("one", updated(recipe(), linear))
    other, _ = run("other", updated(recipe(shape=False), linear))
    assert sha256(one / MODEL) == sha256(other / MODEL)
    assert model_description(one)["augmentation"] == as_dict(AugmentationSettings())


@pytest.mark.parametrize("change", [{"workers": 2}, {"accumulation": 2}])
def test_batches_that_are_normalised_stay_whole(shapes, tmp_path, change):
    job = TransferJob(recipe(**change), shapes.path, tmp_path)
    with pytest.raises(BenchmdError, match=r"resnet18-3d normalises over the batch.*1 for both"):
        require_transferable(job, shapes)
    encoder = updated(EncoderSettings(), {"network": "transformer"})
    other = dataclasses.replace(job.settings, encoder=encoder)
    require_transferable(dataclasses.replace(job, settings=other), shapes)


def test_methods_that_work_on_tokens_refuse_a_resnet(shapes, tmp_path):
    job = PretrainJob(recipe(), "e-mix", shapes.path, tmp_path)
    with pytest.raises(BenchmdError, match="e-mix works on the tokens of an encoder"):
        require_pretrainable(job, shapes)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"network": "resnet18"}, "shapes has channel, z, y, x: choose resnet18 or resnet50 with"),
        ({"options": {"depth": 3}}, r"unknown setting in 'encoder\.options' 'depth'"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_anything_starts(
    shapes, tmp_path, encoder, message
):
    settings = updated(recipe(), {"encoder": encoder})
    with pytest.raises(BenchmdError, match=message):
        require_transferable(TransferJob(settings, shapes.path, tmp_path), shapes)


def ones(rows):
    return torch.ones(rows, 1, 2, 2, 2)


def test_each_shape_has_a_factor_that_workers_do_not_change():
    def drawn(seed, step, rank=0, world=1, rows=12):
        how = AugmentationSettings(shape=True)
        x = augmented(ones(rows // world), how, seed, step, Worker(rank, world))
        assert torch.equal(x, x[:, :1, :1, :1, :1].expand_as(x))  # one factor for all of a volume
        return x[:, 0, 0, 0, 0]

    alone = drawn(0, 5)
    assert len(set(alone.tolist())) == 12
    assert torch.equal(torch.cat([drawn(0, 5, rank, 3) for rank in range(3)]), alone)
    assert torch.equal(drawn(0, 5, rows=20)[:12], alone)  # nor does padding
    assert not torch.equal(drawn(0, 6), alone)
    assert not torch.equal(drawn(1, 5), alone)
    many = torch.cat([drawn(0, step, rows=1000) for step in range(5)])
    assert many.min() >= 0
    assert many.max() <= 1
    counts = torch.histc(many, 10, 0, 1)
    assert (counts - 500).abs().max() < 110  # five standard deviations
