"""Training records drawn by how rare their classes are."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmd_ray.data.batches import Columns, ResidentFeed, Worker, drawn_order, epoch_order
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.files import MODEL
from benchmd_ray.training.jobs import TransferJob
from benchmd_ray.training.selection import class_odds, require_balanceable, training_feed
from benchmd_ray.training.transfer import require_transferable, transfer

FINETUNE = ("transfer.mode=finetune", "execution.checkpoint_seconds=0")


def slow_odds(targets, balance):
    weights = []
    for row in targets:
        own = [c for c, value in enumerate(row) if value == 1]
        counts = [sum(other[c] == 1 for other in targets) for c in own]
        lacking = sum(not any(v == 1 for v in other) for other in targets)
        weights.append(float(min(counts) if own else lacking) ** -balance)
    return np.array(weights) / sum(weights)


@pytest.mark.parametrize("balance", [0.0, 0.3, 1.0])
def test_odds_are_those_of_the_rarest_positive_class(balance):
    targets = np.random.default_rng(0).choice([-1, 0, 1], (60, 4), p=[0.2, 0.6, 0.2])
    targets[:, 3] = np.arange(60) == 7
    np.testing.assert_allclose(class_odds(targets, balance), slow_odds(targets, balance))


def test_at_1_classes_are_alike_and_at_0_records():
    targets = np.repeat(np.eye(3, dtype=np.int8), [50, 9, 1], axis=0)
    sums = [class_odds(targets, 1.0)[targets[:, c] == 1].sum() for c in range(3)]
    np.testing.assert_allclose(sums, 1 / 3)
    np.testing.assert_allclose(class_odds(targets, 0.0), 1 / 60)
    orders = np.concatenate(
        [drawn_order(0, epoch, class_odds(targets, 1.0)) for epoch in range(99)]
    )
    shares = targets[orders].mean(axis=0)
    np.testing.assert_allclose(shares, 1 / 3, atol=0.03)


def feed_of(world=1, rank=0, odds=None):
    columns = Columns(
        np.arange(10, dtype=np.int8)[:, None],
        np.ones(10, np.float32),
        np.ones((10, 1), np.int32),
    )
    signals = np.arange(10, dtype=np.int16)[:, None, None]
    rows, own = np.array([0, 1, 2, 4, 5, 7, 9]), Worker(rank, world)
    given = {"seed": 3, "worker": own, "subset": rows, "odds": odds}
    return ResidentFeed(signals, columns, lambda signals, *_: signals.float(), **given)


def test_an_epoch_has_as_many_records_and_the_same_ones_for_any_number_of_workers():
    odds = np.array([0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    own = np.array([0, 1, 2, 4, 5, 7, 9])
    for epoch in range(3):
        alone = list(feed_of(odds=odds).epoch(3, epoch))
        rows = np.concatenate([batch.rows for batch in alone])
        np.testing.assert_array_equal(rows, own[drawn_order(3, epoch, odds)])
        for batch in alone:
            assert batch.signals.flatten().tolist() == batch.rows.tolist()
        shares = zip(*(feed_of(2, rank, odds).epoch(3, epoch) for rank in (0, 1)), strict=True)
        together = [np.concatenate([batch.rows for batch in step]) for step in shares]
        assert [r[r >= 0].tolist() for r in together] == [b.rows.tolist() for b in alone]
        later = np.concatenate([b.rows for b in feed_of(odds=odds).epoch(3, epoch, 1)])
        assert later.tolist() == rows[3:].tolist()
    plain = np.concatenate([batch.rows for batch in feed_of().epoch(3, 1)])
    np.testing.assert_array_equal(plain, own[epoch_order(3, 1, 7)])
    assert sorted(np.concatenate([b.rows for b in feed_of(odds=odds).ordered(3)])) == own.tolist()


@pytest.fixture
def run(source, make_settings, recorder, interrupted, tmp_path):
    """Trains in this process, in a folder of that name."""

    def start(name, *assignments, stop_at=None):
        folder, reporter = tmp_path / name, recorder(stop_at)
        folder.mkdir(exist_ok=True)
        settings = make_settings(*FINETUNE, *assignments)
        try:
            transfer(TransferJob(settings, source.path, folder), Worker(), reporter)
        except interrupted:
            assert stop_at is not None
        return SimpleNamespace(folder=folder, lines=reporter.lines)

    return start


def test_a_resumed_run_draws_the_same(run):
    how = "transfer.class_balance=1"
    whole, broken = run("whole", how), run("broken", how, stop_at=2)
    resumed = run("broken", how)
    assert resumed.lines == whole.lines[1:]
    for name, value in load_file(whole.folder / MODEL).items():
        assert torch.equal(load_file(broken.folder / MODEL)[name], value), name
    assert run("plain").lines != whole.lines


def test_linear_evaluation_takes_every_record_once(run):
    linear = "transfer.mode=linear"
    one, other = run("one", linear), run("other", linear, "transfer.class_balance=1")
    assert sha256(one.folder / MODEL) == sha256(other.folder / MODEL)


def test_few_labels_are_drawn_from_alone(source, make_settings):
    settings = make_settings(*FINETUNE, "transfer.class_balance=1", "transfer.labels=small")
    rows = np.array([1, 5, 6, 30])
    data = require_transferable(TransferJob(settings, source.path, source.path), source)
    few = SimpleNamespace(task=data.task, rows=rows, columns=data.columns)
    feed = training_feed(source, settings, Worker(), few)
    seen = np.concatenate([b.rows for epoch in range(9) for b in feed.epoch(4, epoch)])
    assert feed.rows == 4
    assert set(seen) == set(rows)


def test_where_records_stream_or_have_no_class_it_is_refused(source, make_settings):
    settings = make_settings(*FINETUNE, "transfer.class_balance=0.5", "execution.feed=streaming")
    job = TransferJob(settings, source.path, source.path)
    with pytest.raises(BenchmdError, match=r"class_balance is 0\.5 on .*streams.*--fix transfer"):
        require_transferable(job, source)
    masks = SimpleNamespace(task=SimpleNamespace(segments=True), path="catalog")
    with pytest.raises(
        BenchmdError, match=r"class_balance is 0\.5 on catalog, and the task is a s"
    ):
        require_balanceable(settings, masks, None)
    require_balanceable(make_settings(*FINETUNE, "execution.feed=streaming"), masks, None)
