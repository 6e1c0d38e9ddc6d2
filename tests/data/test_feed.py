import dataclasses
import itertools
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kinds import SIGNALS

from benchmd_ray.data.batches import ResidentFeed, Stored, Worker, epoch_order, share, step_rows
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import chosen_rows_feed, read_columns, resident_feed, whole_split_feed
from benchmd_ray.data.manifest import write_shard
from benchmd_ray.data.records import Record, to_table
from benchmd_ray.data.resident import resident_signals
from benchmd_ray.data.sizes import row_bytes, shuffle_rows, streams
from benchmd_ray.data.streaming import StreamingFeed
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.files.integrity import write_hash
from benchmd_ray.settings.definition import ExecutionSettings, Settings

ECG = SIGNALS["ecg"]
SHARDS = (7, 3, 5, 6, 4)
ROWS = sum(SHARDS)


@pytest.fixture(scope="module")
def stored():
    """Signals and targets of a split, row by row; every row differs."""
    generator = np.random.default_rng(3)
    signals = generator.integers(-3000, 3000, (ROWS, 12, 5000)).astype(np.int16)
    signals *= generator.integers(1, 10, (ROWS, 1, 1), dtype=np.int16)
    targets = np.eye(7, dtype=np.int8)[generator.integers(0, 7, ROWS)]
    return signals, targets


def record(i, signal, target):
    """Every row has its own scale and valid size, which an ECG's normalisation leaves alone."""
    scale = (i + 1) / 1024
    return Record(f"r{i}", f"p{i}", f"r{i}", signal, scale, (5000 - i,), target.tolist())


@pytest.fixture(scope="module")
def catalog(stored, tmp_path_factory):
    """A catalog of one split in shards of unequal length."""
    signals, targets = stored
    path, shards, start = tmp_path_factory.mktemp("catalog"), [], 0
    (path / "shards").mkdir()
    for number, rows in enumerate(SHARDS):
        records = [record(i, signals[i], targets[i]) for i in range(start, start + rows)]
        file = f"shards/train-{number:05d}.parquet"
        written = write_shard(to_table(records, "train", dataset_card("ptb-xl")), path / file, ECG)
        shards.append({"file": file, "split": "train", "rows": rows, **written})
        start += rows
    manifest = {
        "splits": {"train": {"records": ROWS}},
        "shards": shards,
        "digest": "0123456789abcdef" * 4,
        "statistics": None,
    }
    return Catalog(path, manifest, dataset_card("ptb-xl"))


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cache(module_cache, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(module_cache))


def normalised(signal):
    """Independent of the code: float64, one record at a time."""
    values = signal.astype(np.float64)
    return values / (values.max() - values.min())


def batch_rows(batches):
    return [batch.rows.tolist() for batch in batches]


def flat(batches):
    return [row for rows in batch_rows(batches) for row in rows]


def workers(world):
    return [Worker(rank=rank, world=world) for rank in range(world)]


def require_matching(batches, stored):
    """Every signal and target belongs to the row that the batch names; padding weighs nothing."""
    signals, targets = stored
    for batch in batches:
        assert batch.signals.dtype == torch.float32
        assert len(batch.rows) == len(batch.signals) == len(batch.targets) == len(batch.weights)
        assert batch.weights.tolist() == [float(row >= 0) for row in batch.rows]
        assert torch.isfinite(batch.signals).all()
        for row, signal, target in zip(batch.rows, batch.signals, batch.targets, strict=True):
            if row >= 0:
                np.testing.assert_allclose(signal.numpy(), normalised(signals[row]), atol=1e-6)
                assert target.tolist() == targets[row].tolist()


def require_stored(batches, feed, stored):
    """Every stored signal is that of its row, and what the feed makes of it, too."""
    for batch in batches:
        assert batch.signals.dtype == torch.int16
        np.testing.assert_array_equal(batch.signals.numpy(), stored[0][batch.rows])
        seen = feed.normalise(batch.signals, batch.scales, batch.sizes)
        for row, signal in zip(batch.rows, seen, strict=True):
            np.testing.assert_allclose(signal.numpy(), normalised(stored[0][row]), atol=1e-6)


# --- order -----------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), epoch=st.integers(0, 10_000), rows=st.integers(1, 300))
def test_an_epoch_holds_every_row_once(seed, epoch, rows):
    assert sorted(epoch_order(seed, epoch, rows)) == list(range(rows))


@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 40),
    size=st.integers(1, 50),
    steps=st.integers(1, 8),
)
def test_steps_are_the_epochs_one_after_the_other(seed, rows, size, steps):
    found = np.concatenate([step_rows(seed, step, size, rows) for step in range(steps)])
    epochs = -(-steps * size // rows)
    expected = np.concatenate([epoch_order(seed, epoch, rows) for epoch in range(epochs)])
    assert found.tolist() == expected[: steps * size].tolist()


@given(seed=st.integers(0, 2**32), step=st.integers(0, 1000), rows=st.integers(1, 40))
def test_the_order_depends_on_seed_epoch_and_step_alone(seed, step, rows):
    found = step_rows(seed, step, 8, rows).tolist()
    epoch_order.cache_clear()
    np.random.seed(step % 7)
    assert step_rows(seed, step, 8, rows).tolist() == found


def test_seeds_and_epochs_give_different_orders():
    orders = {tuple(epoch_order(seed, epoch, 50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert tuple(range(50)) not in orders


def test_a_cached_order_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        epoch_order(0, 0, 10)[0] = 3


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@given(rows=st.integers(1, 50))
def test_shares_together_are_the_batch_and_equally_long(world, rows):
    batch = np.arange(100, 100 + rows)
    shares = [share(batch, worker) for worker in workers(world)]
    length = -(-rows // world)
    assert {len(part) for part in shares} == {length}
    together = np.concatenate(shares)
    assert together.tolist() == [*batch.tolist(), *[-1] * (length * world - rows)]


# --- resident --------------------------------------------------------------------------------


def test_resident_signals_and_targets_are_those_of_their_rows(catalog, stored):
    feed = resident_feed(catalog, "train", seed=0)
    assert feed.rows == ROWS
    batches = list(feed.ordered(8))
    assert flat(batches) == list(range(ROWS))
    assert [len(batch.rows) for batch in batches] == [8, 8, 8, 1]
    require_matching(batches, stored)


def test_each_ecg_spans_exactly_one(catalog):
    for batch in resident_feed(catalog, "train", seed=0).ordered(8):
        span = batch.signals.amax(dim=(1, 2)) - batch.signals.amin(dim=(1, 2))
        assert span.tolist() == pytest.approx([1.0] * len(span), abs=1e-6)


def test_a_resident_epoch_holds_every_row_once_in_its_order(catalog, stored):
    feed = resident_feed(catalog, "train", seed=4)
    batches = list(feed.epoch(8, 2))
    assert flat(batches) == epoch_order(4, 2, ROWS).tolist()
    assert flat(feed.epoch(8, 3)) != flat(batches)
    require_matching(batches, stored)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_any_number_of_workers_sees_the_same_batches(catalog, stored, world):
    alone = resident_feed(catalog, "train", seed=1)
    feeds = [resident_feed(catalog, "train", seed=1, worker=worker) for worker in workers(world)]
    for give in (
        lambda feed: feed.epoch(8, 0),
        lambda feed: feed.ordered(8),
        lambda feed: itertools.islice(feed.endless(24), 4),
    ):
        shares = [list(give(feed)) for feed in feeds]
        if isinstance(shares[0][0], Stored):
            require_stored(itertools.chain(*shares), alone, stored)
        else:
            require_matching(itertools.chain(*shares), stored)
        together = [
            [row for batch in batches for row in batch.rows if row >= 0]
            for batches in zip(*shares, strict=True)
        ]
        assert together == batch_rows(give(alone))


@pytest.mark.parametrize("first", [1, 3, 11])
def test_going_on_from_a_step_is_skipping(catalog, first):
    feed = resident_feed(catalog, "train", seed=6)
    skipped = itertools.islice(feed.endless(8), first, first + 5)
    assert batch_rows(itertools.islice(feed.endless(8, first), 5)) == batch_rows(skipped)


def test_a_subset_gives_its_own_rows_only(catalog, stored):
    subset = np.array([2, 5, 11, 20, 24])
    feed = resident_feed(catalog, "train", seed=0, subset=subset)
    assert feed.rows == 5
    assert flat(feed.ordered(2)) == subset.tolist()
    assert flat(feed.epoch(2, 1)) == subset[epoch_order(0, 1, 5)].tolist()
    assert sorted(flat(itertools.islice(feed.endless(5), 1))) == subset.tolist()
    require_matching(feed.ordered(2), stored)


def test_padding_of_a_subset_stays_in_the_subset(catalog, stored):
    subset = np.array([9, 13, 17])
    feed = resident_feed(catalog, "train", seed=0, subset=subset, worker=Worker(rank=1, world=2))
    (batch,) = feed.ordered(8)
    assert batch.rows.tolist() == [17, -1]
    np.testing.assert_allclose(batch.signals[1].numpy(), normalised(stored[0][9]), atol=1e-6)


def test_targets_can_be_replaced(catalog, stored):
    other = stored[1][::-1].copy()
    columns = dataclasses.replace(read_columns(catalog, "train"), targets=other)
    feed = chosen_rows_feed(
        catalog,
        "train",
        np.arange(ROWS),
        columns,
        settings=Settings(),
        worker=Worker(),
        statistics=None,
    )
    for batch in feed.ordered(8):
        assert batch.targets.tolist() == other[batch.rows].tolist()


def test_columns_are_read_in_row_order(catalog, stored):
    columns = read_columns(catalog, "train")
    assert len(columns) == ROWS
    np.testing.assert_array_equal(columns.targets, stored[1])
    np.testing.assert_array_equal(columns.scales, np.arange(1, ROWS + 1) / 1024)
    np.testing.assert_array_equal(columns.sizes, 5000 - np.arange(ROWS)[:, None])


def test_a_split_is_decoded_once_and_mapped(catalog, monkeypatch, tmp_path):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "new"))
    assert cache_folder() == tmp_path / "new"
    resident_feed(catalog, "train", seed=0)
    (file,) = (tmp_path / "new").glob("*.npy")
    assert catalog.digest.startswith(file.name.split("-")[0])
    before = file.stat().st_mtime_ns
    resident_feed(catalog, "train", seed=0)
    assert file.stat().st_mtime_ns == before


def test_a_cached_split_of_another_length_is_named(catalog, monkeypatch, tmp_path):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path))
    path = tmp_path / f"{catalog.digest[:32]}-train.npy"
    np.save(path, np.zeros((2, 12, 5000), np.int16))
    write_hash(path)
    message = rf"holds int16 \(2, 12, 5000\), expected \({ROWS}, 12, 5000\)\. Remove it and"
    with pytest.raises(BenchmdError, match=message):
        resident_feed(catalog, "train", seed=0)


@pytest.mark.parametrize("damage", ["flipped", "cut off", "unhashed"])
def test_a_damaged_cached_split_is_decoded_again(catalog, monkeypatch, tmp_path, damage):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path))
    whole = np.array(resident_signals(catalog, "train"))
    path = tmp_path / f"{catalog.digest[:32]}-train.npy"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-1000] ^= 4
    path.write_bytes(data[:-5] if damage == "cut off" else data)
    if damage == "unhashed":
        path.with_name(f"{path.name}.sha256").unlink()
    assert np.array_equal(resident_signals(catalog, "train"), whole)
    assert np.array_equal(np.load(path), whole)


@pytest.mark.parametrize("kind", [resident_feed, StreamingFeed])
def test_a_split_without_records_is_refused(catalog, kind):
    with pytest.raises(BenchmdError, match=r"no record in split 'validation'; it holds train"):
        kind(catalog, "validation", seed=0)


def test_a_shard_of_another_size_is_refused_before_it_is_used(catalog, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    shutil.copytree(catalog.path, tmp_path / "copy")
    catalog = replace(catalog, path=tmp_path / "copy")
    shard = catalog.shards("train")[0][0]
    content = shard.read_bytes()
    shard.write_bytes(content + b"x")
    with pytest.raises(BenchmdError, match="is missing or of another size than manifest"):
        resident_feed(catalog, "train", seed=0)
    shard.unlink()
    with pytest.raises(BenchmdError, match="is missing or of another size"):
        StreamingFeed(catalog, "train", seed=0)


def test_chosen_rows_are_the_same_whether_the_split_streams_or_not(catalog, stored):
    signals, targets = stored
    rows = np.array([1, 8, 9, 20, 24])  # of all shards but the third
    for feed in ("resident", "streaming"):
        settings = Settings(execution=ExecutionSettings(feed=feed))
        columns = read_columns(catalog, "train")
        chosen = chosen_rows_feed(
            catalog, "train", rows, columns, settings=settings, worker=Worker(), statistics=None
        )
        (batch,) = chosen.ordered(8)
        expected = np.stack([normalised(signals[row]) for row in rows])
        np.testing.assert_allclose(batch.signals.numpy(), expected, atol=1e-6)
        np.testing.assert_array_equal(batch.targets.numpy(), targets[rows])


def test_chosen_rows_that_memory_cannot_hold_are_refused(catalog):
    def chosen(rows, gib):
        settings = Settings(execution=ExecutionSettings(feed="streaming", resident_gib=gib))
        columns = read_columns(catalog, "train")
        return chosen_rows_feed(
            catalog, "train", rows, columns, settings=settings, worker=Worker(), statistics=None
        )

    gib = 20 * 12 * 5000 * 2 / 2**30
    assert chosen(np.arange(20), gib).rows == 20
    with pytest.raises(BenchmdError, match=rf"21 of the {ROWS} records .* execution.resident_gib"):
        chosen(np.arange(21), gib)


def test_a_gpu_takes_the_rows_to_use_and_no_others(catalog, stored, monkeypatch):
    asked, subset = [], np.array([2, 5, 11, 20, 24])
    monkeypatch.setattr(ResidentFeed, "_fits", lambda feed, size: asked.append(size) or True)
    feed = resident_feed(catalog, "train", seed=0, subset=subset, worker=Worker(rank=1, world=2))
    assert asked == [5 * 12 * 5000 * 2]
    assert feed._device_signals.shape == (5, 12, 5000)
    assert [batch.rows.tolist() for batch in feed.ordered(8)] == [[20, 24, -1]]
    for batches in (feed.ordered(2), feed.epoch(3, 1)):
        require_matching(batches, stored)
    require_stored(itertools.islice(feed.endless(4), 3), feed, stored)


# --- choice ----------------------------------------------------------------------------------


def test_a_split_streams_when_it_is_larger_than_the_settings_allow(catalog):
    gib = ROWS * 12 * 5000 * 2 / 2**30
    assert not streams(catalog, "train", ExecutionSettings(resident_gib=gib))
    assert streams(catalog, "train", ExecutionSettings(resident_gib=gib * 0.999))


def test_the_shuffle_buffer_is_measured_in_mib(catalog):
    assert row_bytes(catalog) == 12 * 5000 * 2
    for mib, rows in ((1, 8), (2, 17), (256, 2236)):
        assert shuffle_rows(catalog, ExecutionSettings(shuffle_mib=mib)) == rows


@pytest.mark.parametrize(
    ("feed", "kind"), [("resident", ResidentFeed), ("streaming", StreamingFeed)]
)
def test_the_kind_of_feed_can_be_forced(catalog, feed, kind):
    for gib in (0.0, 64.0):
        settings = Settings(execution=ExecutionSettings(feed=feed, resident_gib=gib))
        assert isinstance(whole_split_feed(catalog, "train", settings, Worker(), None), kind)


# --- streaming -------------------------------------------------------------------------------


def streaming(catalog, worker=None, seed=5):
    return StreamingFeed(catalog, "train", seed=seed, worker=worker, shuffle_rows=6)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("world", [1, 2])
def test_a_streamed_epoch_holds_every_row_once(catalog, stored, world):
    for give in (lambda feed: feed.epoch(8, 1), lambda feed: feed.ordered(8)):
        parts = [list(give(streaming(catalog, worker))) for worker in workers(world)]
        lengths = [[len(batch.rows) for batch in part] for part in parts]
        assert all(length == lengths[0] for length in lengths)
        assert all(length == 8 // world for length in lengths[0][:-1])
        seen = [row for part in parts for row in flat(part) if row >= 0]
        assert sorted(seen) == list(range(ROWS))
        for part in parts:
            require_matching(part, stored)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_streamed_split_in_order_is_in_row_order(catalog):
    assert flat(streaming(catalog).ordered(4)) == list(range(ROWS))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_streamed_order_is_shuffled_and_comes_again(catalog):
    one, again = (flat(streaming(catalog).epoch(4, 0)) for _ in range(2))
    assert one == again
    assert one != list(range(ROWS))
    assert flat(streaming(catalog).epoch(4, 1)) != one
    assert flat(streaming(catalog, seed=6).epoch(4, 0)) != one
    # Rows of one shard do not stay together, nor in their order.
    shard = np.repeat(np.arange(len(SHARDS)), SHARDS)[one]
    assert np.count_nonzero(np.diff(shard)) > len(SHARDS) - 1


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_stream_without_end_is_its_epochs_one_after_the_other(catalog, stored):
    feed = streaming(catalog)
    batches = list(itertools.islice(feed.endless(5), 10))
    require_stored(batches, feed, stored)
    expected = [flat(streaming(catalog).epoch(5, epoch)) for epoch in (0, 1)]
    assert flat(batches) == [*expected[0], *expected[1]]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(("world", "first"), [(1, 3), (1, 8), (2, 5)])
def test_a_stream_that_goes_on_from_a_step_skips(catalog, world, first):
    for worker in workers(world):
        feed = streaming(catalog, worker)
        whole = list(itertools.islice(feed.endless(6), first + 2))
        rest = list(itertools.islice(feed.endless(6, first), 2))
        assert batch_rows(rest) == batch_rows(whole[first:])
        assert {len(batch.rows) for batch in whole} == {6 // world}
        assert torch.equal(rest[-1].signals, whole[-1].signals)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_batch_smaller_than_the_workers_still_streams(catalog):
    shares = [list(streaming(catalog, worker).epoch(1, 0)) for worker in workers(2)]
    assert len(shares[0]) == len(shares[1])
    seen = [row for share in shares for row in flat(share) if row >= 0]
    assert sorted(seen) == list(range(ROWS))


def test_fewer_shards_than_workers_are_refused(catalog):
    with pytest.raises(BenchmdError, match=r"has 5 shards for 6 workers; .*feed=resident"):
        streaming(catalog, Worker(rank=0, world=6))
    assert streaming(catalog, Worker(rank=4, world=5)).rows == ROWS


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_shard_that_lost_rows_is_noticed(catalog):
    shards = [dict(shard) for shard in catalog.manifest["shards"]]
    shards[2]["rows"] += 1
    longer = replace(catalog, manifest=catalog.manifest | {"shards": shards})
    with pytest.raises(BenchmdError, match=r"gave worker 0 25 rows, expected 26; .* verify"):
        list(streaming(longer).ordered(8))
