"""Several catalogs as one that encoders are pretrained on."""

from dataclasses import replace

import made_catalogs
import numpy as np
import pytest
import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.data.pooled import combined_statistics, open_pretraining, pooled
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.settings.definition import Settings, updated

SETTINGS = updated(Settings(seed=3), {"execution": {"device": "cpu", "feed": "resident"}})
ROWS = {"breastmnist": 7, "pneumoniamnist": 11}


def records(name, split, rows):
    """Images of grey noise, each of another brightness and valid size."""
    card, drawn = dataset_card(name), np.random.default_rng([rows, len(split)])
    made = []
    for row in range(rows):
        values = drawn.integers(row, 200 + row, card.signal.stored_shape).astype(np.uint8)
        target = np.eye(len(card.classes), dtype=int)[row % len(card.classes)].tolist()
        extent = card.signal.stored_shape[1] - row % 3
        size = (extent,) * (len(card.signal.stored_shape) - 1)
        made.append(Record(f"{name}{split}{row}", f"p{row}", f"u{row}", values, 1.0, size, target))
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[Catalog]:
    made = []
    for name, rows in ROWS.items():
        splits = {"train": np.array_split(np.arange(rows), 2), "validation": [np.arange(3)]}
        cut = {
            split: [[records(name, split, 20)[i] for i in part] for part in parts]
            for split, parts in splits.items()
        }
        path = tmp_path_factory.mktemp("catalogs") / name
        made.append(open_catalog(made_catalogs.write_catalog(path, dataset_card(name), cut)))
    return made


def stored(feed, batch=6, steps=12):
    batches = feed.endless(batch)
    return [next(batches) for _ in range(steps)]


def test_statistics_are_those_of_the_concatenated_records(sources):
    values = []
    for catalog in sources:
        for record in records(catalog.card.name, "train", 20)[: catalog.rows("train")]:
            height, width = record.valid_size
            top, left = (28 - height) // 2, (28 - width) // 2
            values.append(record.signal[0, top : top + height, left : left + width].ravel())
    every = np.concatenate(values).astype(np.float64)
    combined = combined_statistics(sources)
    assert combined["mean"] == pytest.approx([every.mean()], rel=1e-6)
    assert combined["std"] == pytest.approx([every.std()], rel=1e-6)
    assert pooled(sources).statistics == pooled(sources[::-1]).statistics


def test_only_training_records_are_read_each_once_an_epoch_whatever_the_order_named(sources):
    pool, again = pooled(sources), pooled(sources[::-1])
    assert pool.dataset == again.dataset == "breastmnist+pneumoniamnist"
    assert pool.digest == again.digest not in {catalog.digest for catalog in sources}
    assert pool.rows("train") == sum(ROWS.values())
    assert pool.rows("validation") == 0
    feeds = [whole_split_feed(c, "train", SETTINGS, Worker(), c.statistics) for c in (pool, again)]
    first, second = (stored(feed, 6, 3) for feed in feeds)
    rows = np.concatenate([batch.rows for batch in first])
    assert sorted(rows) == list(range(18))
    assert all(torch.equal(a.signals, b.signals) for a, b in zip(first, second, strict=True))
    every = [
        record.signal
        for name, count in ROWS.items()
        for record in records(name, "train", 20)[:count]
    ]
    for batch in first:
        for row, signal, size in zip(batch.rows, batch.signals, batch.sizes, strict=True):
            assert np.array_equal(signal.numpy(), every[row])
            assert size.tolist() == [28 - (row - 7 * (row >= 7)) % 3] * 2


def test_the_order_is_that_of_the_seed_and_of_two_workers_as_of_one(sources):
    pool = pooled(sources)
    alone = stored(whole_split_feed(pool, "train", SETTINGS, Worker(), pool.statistics))
    shares = [
        stored(whole_split_feed(pool, "train", SETTINGS, Worker(rank, 2), pool.statistics))
        for rank in range(2)
    ]
    expected = np.concatenate(
        [np.random.default_rng([3, epoch]).permutation(18) for epoch in range(4)]
    )
    assert np.concatenate([batch.rows for batch in alone]).tolist() == expected.tolist()
    for whole, *parts in zip(alone, *shares, strict=True):
        assert torch.equal(whole.signals, torch.cat([part.signals for part in parts]))


@pytest.mark.ray
@pytest.mark.slow
def test_a_stream_reads_each_record_of_all_once(sources, ray_cluster):
    pool = pooled(sources)
    streaming = updated(SETTINGS, {"execution": {"feed": "streaming"}})
    feed = whole_split_feed(pool, "train", streaming, Worker(), pool.statistics)
    rows = np.concatenate([batch.rows for batch in stored(feed, 6, 3)])
    assert sorted(rows) == list(range(18))


def test_one_source_is_itself_and_a_target_is_read_whole(sources, tmp_path):
    assert open_pretraining([sources[0].path]).path == sources[0].path
    assert open_pretraining([sources[0].path]).rows("validation") == 3
    card = dataset_card("georgia")
    signal = np.zeros(card.signal.stored_shape, np.int16)
    ecgs = [
        Record(f"r{i}", f"r{i}", f"r{i}", signal, 0.001, (5000,), [1] + [0] * 6) for i in (1, 2)
    ]
    path = made_catalogs.write_catalog(tmp_path / "georgia", card, {"test": [ecgs]})
    target = open_pretraining([path])
    assert (target.rows("train"), target.dataset, target.statistics) == (2, "georgia", None)


def test_what_cannot_be_one_pretraining_is_refused(sources, tmp_path):
    with pytest.raises(BenchmdError, match="both catalogs of breastmnist, whose records would co"):
        pooled([sources[0], sources[0]])
    path = made_catalogs.write_catalog(tmp_path / "ptb-xl", dataset_card("ptb-xl"), {})
    with pytest.raises(BenchmdError, match="is not as of breastmnist: its axes are channel, time"):
        pooled([sources[0], open_catalog(path)])
    signal = replace(sources[1].signal, patch=(7, 7))
    card = replace(sources[1].card, modality=replace(sources[1].card.modality, signal=signal))
    with pytest.raises(BenchmdError, match=r"its patch is \(7, 7\), expected \(4, 4\)"):
        pooled([sources[0], replace(sources[1], card=card)])
