"""Feeds whose normalisation depends on each row's scale or valid size, and on statistics."""

from __future__ import annotations

import dataclasses
import itertools
import threading

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmd_ray.data import resident
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import (
    chosen_rows_feed,
    read_columns,
    read_units,
    resident_feed,
    whole_split_feed,
)
from benchmd_ray.data.records import Record
from benchmd_ray.data.streaming import StreamingFeed
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import locked, replacing, sha256
from benchmd_ray.settings.definition import ExecutionSettings, Settings
from benchmd_ray.storage.location import Address

STATISTICS = {"mean": [150.0, 90.0, 70.0], "std": [44.0, 33.0, 22.0]}
OTHER = {"mean": [100.0, 101.0, 102.0], "std": [10.0, 20.0, 30.0]}
SHARDS = (4, 1, 6)
ROWS = sum(SHARDS)


@pytest.fixture(params=["eeg", "derm"])
def made(request, changed_card, write_catalog, monkeypatch, tmp_path):
    """A catalog in shards of unequal length and its records; scales and valid sizes all differ."""
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    card = changed_card("rows", modality=request.param, role="source")
    kind = card.signal
    generator = np.random.default_rng(9)
    records = []
    for row in range(ROWS):
        signal = generator.integers(0, 250, kind.stored_shape).astype(kind.dtype)
        scale, valid = (
            (0.125 * (row + 1), (3750,))
            if request.param == "eeg"
            else (1.0, (224 - row, 19 * (row + 1)))
        )
        target = np.eye(5, dtype=int)[row % 5].tolist()
        records.append(Record(f"r{row}", f"p{row}", f"u{row // 2}", signal, scale, valid, target))
    ends = [0, *itertools.accumulate(SHARDS)]
    parts = [records[start:end] for start, end in itertools.pairwise(ends)]
    statistics = {name: held[: kind.stored_shape[0]] for name, held in STATISTICS.items()}
    return write_catalog(card, {"train": parts}, statistics), records


def slow(record, statistics):
    """One record, in float64."""
    x = record.signal.astype(np.float64)
    if x.ndim == 2:
        return np.clip((x * record.scale + 125) / 250, 0, 1)
    result, (height, width) = np.zeros_like(x), record.valid_size
    top, left = (224 - height) // 2, (224 - width) // 2
    for c, y, z in itertools.product(range(3), range(height), range(width)):
        place = c, top + y, left + z
        result[place] = (x[place] - statistics["mean"][c]) / statistics["std"][c]
    return result


def require_rows(batches, records, statistics=STATISTICS):
    """Each signal is its own row's; returns the rows in order."""
    seen = []
    for batch in batches:
        for row, signal, target in zip(batch.rows, batch.signals, batch.targets, strict=True):
            if row >= 0:
                np.testing.assert_allclose(
                    signal.numpy(), slow(records[row], statistics), atol=1e-5
                )
                assert target.tolist() == list(records[row].target)
                seen.append(int(row))
    return seen


def test_resident_rows_are_normalised_by_their_own_scale_and_size(made):
    catalog, records = made
    feed = resident_feed(catalog, "train", seed=3, statistics=STATISTICS)
    assert require_rows(feed.ordered(4), records) == list(range(ROWS))
    assert sorted(require_rows(feed.epoch(4, 1), records)) == list(range(ROWS))
    subset = np.array([1, 4, 5, 10])
    chosen = resident_feed(
        catalog, "train", seed=3, subset=subset, worker=Worker(1, 2), statistics=STATISTICS
    )
    assert require_rows(chosen.ordered(4), records) == [5, 10]


def test_chosen_rows_keep_their_scale_and_size(made):
    catalog, records = made
    rows, columns = np.array([0, 3, 4, 9]), read_columns(catalog, "train")
    for feed, names in (("resident", rows), ("streaming", range(4))):
        settings = Settings(execution=ExecutionSettings(feed=feed))
        chosen = chosen_rows_feed(
            catalog,
            "train",
            rows,
            columns,
            settings=settings,
            worker=Worker(),
            statistics=STATISTICS,
        )
        own = {name: records[row] for name, row in zip(names, rows, strict=True)}
        assert sorted(require_rows(chosen.epoch(3, 0), own)) == list(names)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("world", [1, 2])
def test_streamed_rows_are_normalised_by_their_own_scale_and_size(made, world):
    catalog, records = made
    for give in (lambda feed: feed.epoch(4, 1), lambda feed: feed.ordered(4)):
        seen = []
        for rank in range(world):
            worker = Worker(rank, world)
            feed = StreamingFeed(
                catalog, "train", seed=3, worker=worker, shuffle_rows=3, statistics=STATISTICS
            )
            seen += require_rows(give(feed), records)
        assert sorted(seen) == list(range(ROWS))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("feed", ["resident", "streaming"])
def test_rows_are_normalised_by_the_given_statistics(made, feed):
    catalog, records = made
    settings = Settings(execution=ExecutionSettings(feed=feed))
    given = whole_split_feed(catalog, "train", settings, Worker(), OTHER)
    assert require_rows(given.ordered(4), records, OTHER) == list(range(ROWS))


@pytest.mark.parametrize("kind", [resident_feed, StreamingFeed])
def test_statistics_are_never_those_of_the_catalog_itself(made, kind):
    catalog, _ = made
    assert catalog.statistics is not None
    if catalog.modality == "eeg":
        assert kind(catalog, "train", seed=0).rows == ROWS
        return
    with pytest.raises(BenchmdError, match="signals of derm are normalised by the mean"):
        kind(catalog, "train", seed=0)
    assert kind(catalog, "train", seed=0, statistics=OTHER).rows == ROWS


def test_who_decodes_signals_leaves_columns_alone_that_another_writes(made, monkeypatch):
    local, _ = made
    tables = list(local.tables("train"))
    monkeypatch.setattr(Catalog, "tables", lambda *_: iter(tables))
    catalog = dataclasses.replace(local, path=Address("s3://lab/rows"))
    columns = resident._columns_path(catalog, "train")
    decoding = threading.Thread(target=resident.resident_signals, args=(catalog, "train"))
    with locked(columns.with_suffix(".lock"), "the columns"), replacing(columns) as partial:
        pq.write_table(tables[0], partial)
        stated = f"{sha256(partial)}  {columns.name}\n"
        columns.with_name(f"{columns.name}.sha256").write_text(stated)
        decoding.start()
        decoding.join(0.5)
        assert decoding.is_alive()
    decoding.join(30)
    assert len(pq.read_table(columns)) == len(tables[0])


def test_columns_and_units_are_in_row_order(made):
    catalog, records = made
    columns = read_columns(catalog, "train")
    assert columns.scales.tolist() == [record.scale for record in records]
    assert columns.sizes.tolist() == [list(record.valid_size) for record in records]
    assert columns.targets.tolist() == [record.target for record in records]
    assert read_units(catalog, "train") == [record.unit_id for record in records]
    picked = columns.at(np.array([7, 0]))
    assert picked.scales.tolist() == [records[7].scale, records[0].scale]
    assert picked.sizes.tolist() == [list(records[7].valid_size), list(records[0].valid_size)]
