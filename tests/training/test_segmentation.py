"""Training on masks: patches, overlaps, and whole runs of a small UNet."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_catalogs import write_catalog
from masks import EXTENTS, mask_splits, small_card, write_masks
from safetensors.torch import load_file

from benchmd_ray.data.batches import Batch, Worker
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.tasks import SEGMENTATION
from benchmd_ray.models.segmenter import Segmenter
from benchmd_ray.runs.files import MODEL
from benchmd_ray.scores.dice import dice, presence
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.augmentation import changed, draws_of
from benchmd_ray.training.checkpoints import latest_checkpoint
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.launch import launch
from benchmd_ray.training.pretrain import require_pretrainable
from benchmd_ray.training.reporter import RunReporter, read_metrics
from benchmd_ray.training.segmentation import mean_dice, overlaps, patches
from benchmd_ray.training.transfer import require_transferable, transfer
from benchmd_ray.training.weights import load_classifier, load_segmenter

pytest.importorskip("monai")

UNET = (
    "encoder.network=monai-unet",
    "encoder.options.width=4",
    "encoder.options.depth=2",
    "transfer.mode=finetune",
    "transfer.batch_size=4",
    "transfer.epochs=3",
    "execution.checkpoint_seconds=0",
)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    return write_masks(tmp_path_factory.mktemp("volumes") / "catalog")


@pytest.fixture
def train(volumes, make_settings, tmp_path):
    """Trains in this process."""
    numbers = itertools.count()

    def start(*assignments, folder=None, reporter=None, catalog=volumes):
        folder = folder or tmp_path / f"run{next(numbers)}"
        folder.mkdir(exist_ok=True)
        job = TransferJob(make_settings(*UNET, *assignments), catalog.path, folder)
        transfer(job, Worker(), reporter or RunReporter(folder, silent=True))
        return folder

    return start


def batch_of(count, seed=0, extents=EXTENTS):
    """Signals that hold the place of each voxel, so that a patch shows where it was cut."""
    place = torch.arange(float(np.prod(extents))).view(1, 1, *extents).expand(count, -1, *extents)
    masks = (place[:, 0] % 3).to(torch.uint8)
    return Batch(np.arange(count), place.clone(), masks)


def test_patches_are_parts_of_their_volumes_with_their_masks():
    whole = batch_of(64)
    cut = patches(whole, (8, 8, 8), 3, 5, Worker())
    assert cut.signals.shape == (64, 1, 8, 8, 8)
    first = cut.signals[:, 0, 0, 0, 0].long().numpy()
    z, rest = np.divmod(first, EXTENTS[1] * EXTENTS[2])
    y, x = np.divmod(rest, EXTENTS[2])
    for row in range(64):
        area = (slice(z[row], z[row] + 8), slice(y[row], y[row] + 8), slice(x[row], x[row] + 8))
        torch.testing.assert_close(cut.signals[row, 0], whole.signals[row, 0][area])
        torch.testing.assert_close(cut.targets[row], whole.targets[row][area])
    assert {*z.tolist()} == set(range(9))  # every place can be drawn, the last one too
    assert {*x.tolist()} == set(range(9))
    assert y.max() > 12


def test_patches_depend_on_seed_and_step_alone():
    whole = batch_of(6)
    one = patches(whole, (8, 8, 8), 3, 5, Worker()).signals
    assert torch.equal(one, patches(whole, (8, 8, 8), 3, 5, Worker()).signals)
    assert not torch.equal(one, patches(whole, (8, 8, 8), 3, 6, Worker()).signals)
    assert not torch.equal(one, patches(whole, (8, 8, 8), 4, 5, Worker()).signals)


@pytest.mark.parametrize("world", [2, 3])
def test_workers_see_the_patches_of_one(world):
    whole = batch_of(6)
    one = patches(whole, (8, 16, 8), 1, 2, Worker())
    size = 6 // world
    for rank in range(world):
        rows = slice(rank * size, (rank + 1) * size)
        share = Batch(whole.rows[rows], whole.signals[rows], whole.targets[rows])
        own = patches(share, (8, 16, 8), 1, 2, Worker(rank, world))
        assert torch.equal(own.signals, one.signals[rows])
        assert torch.equal(own.targets, one.targets[rows])


def test_a_window_as_large_as_the_volume_is_the_volume():
    whole = batch_of(2)
    assert patches(whole, EXTENTS, 0, 0, Worker()) is whole


def moved_with_masks(signals, masks, how, seed, step, worker):
    batch = Batch(np.arange(len(signals)), signals, masks)
    draws = draws_of(batch, how, seed, step, worker)
    return changed(signals, masks, draws, how, SEGMENTATION)


MOVES = ({"flip": 1.0}, {"shift": 1 / 7}, {"flip": 1.0, "shift": 1 / 7}, {"affine": 1.0})


@pytest.mark.parametrize("strengths", MOVES, ids=lambda strengths: "+".join(strengths))
def test_masks_move_with_their_volumes(strengths):
    generator = torch.Generator().manual_seed(0)
    masks = torch.randint(0, 3, (5, *EXTENTS), generator=generator, dtype=torch.uint8)
    masks = masks.repeat_interleave(3, 1).repeat_interleave(3, 2).repeat_interleave(3, 3)
    how = (AugmentationSettings(**strengths), 7, 3, Worker(1, 2))
    _, moved = moved_with_masks(masks[:, None].float(), masks, *how)
    assert moved.dtype == torch.uint8
    assert not torch.equal(moved, masks)
    # Where all of what is interpolated is one label, its indicator is 1 and the mask has it.
    for label in range(3):
        share = moved_with_masks((masks == label)[:, None].float(), masks, *how)[0][:, 0]
        assert (moved[share > 0.999] == label).all()
        assert (moved[share < 0.001] != label).all()
        assert (share > 0.999).any()


def test_masks_keep_their_place_where_values_change():
    masks = torch.ones((2, *EXTENTS), dtype=torch.uint8)
    how = AugmentationSettings(noise=1, masking=1, intensity=1, blur=1, shape=True)
    signals = torch.randn(2, 1, *EXTENTS)
    changed_signals, same = moved_with_masks(signals, masks, how, 0, 0, Worker())
    assert torch.equal(same, masks)
    assert not torch.equal(changed_signals, signals)


def test_overlaps_are_counts_of_voxels():
    generator = np.random.default_rng(0)
    ours, truth = generator.integers(0, 20, (2, 3, 5, 6, 7)).astype(np.uint8)
    found = overlaps(torch.from_numpy(ours), torch.from_numpy(truth), 20)
    for row, label in itertools.product(range(3), range(20)):
        a, b = ours[row] == label, truth[row] == label
        assert found[row, label].tolist() == [(a & b).sum(), a.sum(), b.sum()]


def test_dice_is_not_known_where_the_reference_is_empty():
    counts = np.array([[[3, 4, 5], [0, 4, 0], [0, 0, 4], [0, 0, 0]]])
    np.testing.assert_allclose(dice(counts), [[6 / 9, np.nan, 0, np.nan]])
    assert presence(counts).tolist() == [["both", "spurious", "missed", "absent"]]


def test_the_score_of_an_epoch_is_the_mean_over_classes_of_means_over_cases():
    counts = np.array(
        [
            [[9, 9, 9], [1, 2, 2], [0, 1, 0]],
            [[9, 9, 9], [0, 0, 5], [3, 3, 3]],
        ]
    )
    assert mean_dice(counts) == pytest.approx(((0.5 + 0) / 2 + 1.0) / 2)
    assert np.isnan(mean_dice(counts[:, :1]))


def test_training_learns_and_keeps_the_best_epoch(train, volumes):
    folder = train("transfer.epochs=40", "transfer.optimiser.lr=1e-2")
    lines = read_metrics(folder)
    scores = [line["validation_dsc"] for line in lines]
    result = json.loads((folder / "training.json").read_text())
    assert result["validation_dsc"] == max(scores)
    assert result["best_epoch"] == scores.index(max(scores))
    assert result["training_records"] == 8
    assert max(scores) > 0.6 > scores[0]
    assert lines[-1]["loss"] < lines[0]["loss"]
    model, feed = load_segmenter(folder).eval(), resident_feed(volumes, "validation", seed=0)
    values = []
    with torch.no_grad():
        for batch in feed.ordered(1):
            label = model(batch.signals).argmax(dim=1).numpy()
            for number in (1, 2):
                a, b = label == number, batch.targets.numpy() == number
                values.append(2 * (a & b).sum() / (a.sum() + b.sum()))
    assert np.mean(np.reshape(values, (4, 2)).mean(axis=0)) == pytest.approx(max(scores), abs=1e-6)


def test_an_epoch_is_plain_training(train, volumes, make_settings):
    """Losses of two epochs against a loop written out: order, patches, schedule, loss."""
    from benchmd_ray.models.encoder import make_encoder
    from benchmd_ray.models.segmenter import segmentation_loss
    from benchmd_ray.training.seeds import WEIGHTS, derived_seed

    extra = ("encoder.options.patch=8", "transfer.epochs=2", "transfer.augmentation.flip=1")
    folder, settings = train(*extra), make_settings(*UNET, *extra)
    torch.manual_seed(derived_seed(WEIGHTS, 0))
    encoder = make_encoder(volumes.signal, settings.transfer_encoder)
    torch.manual_seed(derived_seed(WEIGHTS, 0, 1))
    model = Segmenter(encoder, 3).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    feed, losses = resident_feed(volumes, "train", seed=0), []
    for epoch in range(2):
        each = []
        for number, batch in enumerate(feed.epoch(4, epoch)):
            step = epoch * 2 + number
            torch.manual_seed(derived_seed(3, 0, step, 0))
            cut = patches(batch, (8, 8, 8), 0, step, Worker())
            how = (AugmentationSettings(flip=1), 0, step, Worker())
            signals, masks = moved_with_masks(cut.signals, cut.targets, *how)
            loss = segmentation_loss(model(signals), masks).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            each.append(loss.item() * len(batch.rows))
        losses.append(sum(each) / 8)
    assert [line["loss"] for line in read_metrics(folder)] == pytest.approx(losses, abs=1e-5)


class Killing(RunReporter):
    """Ends the process at an epoch."""

    def __init__(self, folder, stop_at, error):
        super().__init__(folder, silent=True)
        self._stop_at, self._error = stop_at, error

    def report(self, done, values):
        super().report(done, values)
        if done == self._stop_at:
            raise self._error


def reported(folder):
    return [{k: v for k, v in line.items() if k != "per_second"} for line in read_metrics(folder)]


def test_resumed_training_is_uninterrupted_training(train, interrupted, tmp_path):
    strengths = "{flip: 1, shift: 0.143, affine: 0.5, noise: 0.1}"
    extra = ("encoder.options.patch=8", f"transfer.augmentation={strengths}")
    extra += ("encoder.options.dropout=0.2", "transfer.epochs=4")
    whole, folder = train(*extra), tmp_path / "interrupted"
    folder.mkdir()
    with pytest.raises(interrupted):
        train(*extra, folder=folder, reporter=Killing(folder, 3, interrupted()))
    assert latest_checkpoint(folder) is not None
    train(*extra, folder=folder)
    assert reported(folder) == reported(whole)
    for name, value in load_file(whole / MODEL).items():
        assert torch.equal(load_file(folder / MODEL)[name], value), name


def test_accumulated_parts_of_a_batch_are_the_batch(train):
    whole, parts = train(), train("execution.accumulation=2")
    one, other = ([line["loss"] for line in read_metrics(f)] for f in (whole, parts))
    assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.ray
@pytest.mark.slow
def test_two_workers_compute_what_one_does(volumes, make_settings, tmp_path, ray_cluster):
    extra = ("encoder.options.patch=8", "transfer.augmentation.flip=1", "transfer.batch_size=3")
    folders = {}
    for workers in (1, 2):
        folder = tmp_path / f"by{workers}"
        folder.mkdir()
        settings = make_settings(*UNET, *extra, f"execution.workers={workers}")
        launch(TransferJob(settings, volumes.path, folder))
        folders[workers] = folder
    one, two = (read_metrics(folder) for folder in folders.values())
    assert [x["loss"] for x in one] == pytest.approx([x["loss"] for x in two], abs=2e-5)
    scores = [[x["validation_dsc"] for x in lines] for lines in (one, two)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    held, other = (load_file(folder / MODEL) for folder in folders.values())
    for name, value in held.items():
        if name.endswith("weight"):  # biases before a normalisation have no gradient but rounding
            assert (other[name] - value).abs().mean() < 1e-4, name


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (
            ("transfer.mode=linear",),
            "is a segmentation, for which frozen features are not available",
        ),
        (("transfer.labels=small",), r"transfer\.labels is small, .*: expected full: a mask is n"),
        (("transfer.shuffle_labels=true",), r"shuffle_labels is True, .*: expected false"),
        (("encoder.network=transformer", "encoder.options={}"), "transformer, which does not seg"),
        (("encoder.options.patch=1",), r"encoder\.options\.patch is 1 for small-mr"),
    ],
)
def test_what_makes_no_sense_with_masks_is_refused(volumes, make_settings, assignments, message):
    base = UNET if "transformer" not in assignments[0] else UNET[3:]
    settings = make_settings(*base, *(a for a in assignments if a != "encoder.options={}"))
    with pytest.raises(BenchmdError, match=message):
        require_transferable(TransferJob(settings, volumes.path, volumes.path), volumes)


def test_a_pretraining_on_masks_is_refused(volumes, make_settings, tmp_path):
    with pytest.raises(BenchmdError, match="trained from random weights: omit the technique mae"):
        require_pretrainable(PretrainJob(make_settings(), "mae", volumes.path, tmp_path), volumes)


def test_a_validation_split_that_shows_nothing_is_refused(make_settings, tmp_path):
    card = small_card()
    splits = mask_splits(card)
    nothing = np.zeros(EXTENTS, np.uint8)
    splits["validation"] = [
        [replace(record, target=nothing) for record in shard] for shard in splits["validation"]
    ]
    empty = open_catalog(write_catalog(tmp_path / "empty", card, splits))
    with pytest.raises(BenchmdError, match="split validation, has none of anterior, posterior"):
        require_transferable(TransferJob(make_settings(*UNET), empty.path, tmp_path), empty)


def test_a_model_of_masks_classifies_nothing(train):
    folder = train("transfer.epochs=1")
    with pytest.raises(BenchmdError, match="segments: name one that classifies"):
        load_classifier(folder)


NETWORKS = {
    "monai-unet": {"width": 4, "depth": 3, "patch": 32},
    "monai-segresnet": {"width": 8, "depth": 3, "patch": 32},
    "monai-unetr": {"width": 4, "hidden": 48, "patch": 32},
    "monai-swinunetr": {"width": 12},
}
"""Options of a small one of each."""


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_each_network_trains_and_is_read_back(network, make_settings, tmp_path):
    card = small_card((32, 64, 32))
    path, counts = tmp_path / "catalog", {"train": 4, "validation": 2, "test": 2}
    catalog = open_catalog(write_catalog(path, card, mask_splits(card, counts)))
    options = [f"encoder.options.{name}={value}" for name, value in NETWORKS[network].items()]
    settings = make_settings(
        f"encoder.network={network}", *options, *UNET[3:], "transfer.batch_size=2"
    )
    job = TransferJob(settings, catalog.path, tmp_path)
    transfer(job, Worker(), RunReporter(tmp_path, silent=True))
    losses = [line["loss"] for line in read_metrics(tmp_path)]
    assert losses[-1] < losses[0]
    model = load_segmenter(tmp_path).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 1, 32, 64, 32)).shape == (1, 3, 32, 64, 32)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_masks_are_not_mixed(volumes, make_settings, name):
    settings = make_settings(*UNET, f"transfer.augmentation.{name}=0.2")
    with pytest.raises(BenchmdError, match=rf"{name} is 0\.2, and the task on small-mr is a segm"):
        require_transferable(TransferJob(settings, volumes.path, volumes.path), volumes)
