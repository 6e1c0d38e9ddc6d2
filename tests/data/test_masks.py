"""Masks as targets: stored, counted, checked, and given in batches."""

from __future__ import annotations

import dataclasses
import json

import made_catalogs
import numpy as np
import pytest
from masks import COUNTS, EXTENTS, mask_record, mask_splits, small_card, write_masks

from benchmd_ray.data.batches import ResidentFeed, Worker
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import read_columns, resident_feed
from benchmd_ray.data.hdf5 import export_hdf5
from benchmd_ray.data.inner import Labelled, inner_catalog
from benchmd_ray.data.manifest import shard_part
from benchmd_ray.data.records import RecordError, checked, to_table
from benchmd_ray.data.sizes import row_bytes
from benchmd_ray.data.streaming import StreamingFeed
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError, FieldError
from benchmd_ray.modality.tasks import Task
from benchmd_ray.report.catalogs.contents import class_balance, examples

CARD = small_card()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    return write_masks(tmp_path_factory.mktemp("masks") / "catalog")


def truth(split):
    shards = mask_splits(CARD)[split]
    return np.stack([record.target for shard in shards for record in shard])


def test_a_segmentation_has_a_background_and_a_class():
    with pytest.raises(FieldError, match=r"segmentation task has the classes .*: expected 2 or"):
        Task("segmentation", ("background",))
    with pytest.raises(FieldError, match="a segmentation has 256 classes, expected 255 or fewer"):
        Task("segmentation", tuple(map(str, range(256))))
    task = Task("segmentation", ("background", "spleen"))
    assert task.foreground == ("spleen",)
    assert (task.exclusive, task.segments, task.selected_by) == (False, True, "dsc")
    assert task.target(task.classes, (4, 5, 6)).shape == (4, 5, 6)


def test_targets_say_which_classes_they_show():
    target = CARD.target
    masks = np.zeros((2, *EXTENTS), np.uint8)
    masks[0, 0, 0, 0] = 2
    assert target.present(masks).tolist() == [[True, False, True], [True, False, False]]
    labels = Task("multi-label", ("a", "b")).target(("a", "b"), EXTENTS)
    assert labels.present(np.array([[1, 0], [-1, 1]])).tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": np.full(EXTENTS, 3, np.uint8)}, "mask has the label 3, expected 0 to 2"),
        ({"target": np.zeros(EXTENTS, np.int8)}, "mask is int8 of shape .*, expected uint8"),
        ({"target": np.zeros((4, 4, 4), np.uint8)}, r"mask is uint8 of shape \(4, 4, 4\)"),
        ({"target": [1, 0, 0]}, "mask is int64 of shape"),
        ({"geometry": None}, "it has a mask and no geometry"),
    ],
)
def test_a_mask_that_is_none_is_refused(change, message):
    with pytest.raises(RecordError, match=message):
        checked(dataclasses.replace(mask_record(0, CARD), **change), CARD)


def test_masks_come_back_as_they_were_stored(catalog):
    assert verify(catalog).faults == ()
    for split in COUNTS:
        np.testing.assert_array_equal(read_columns(catalog, split).targets, truth(split))
    (first, *_) = catalog.tables("train")
    record = mask_splits(CARD)["train"][0][0]
    assert first["geometry"].to_pylist()[0]["file"]["extents"] == list(record.geometry.file.extents)


def test_the_manifest_counts_records_that_show_a_class(catalog):
    for split, count in COUNTS.items():
        assert catalog.manifest["splits"][split]["classes"]["background"] == count
        shown = int((truth(split) == 2).reshape(count, -1).any(axis=1).sum())
        assert catalog.manifest["splits"][split]["classes"]["posterior"] == shown


def test_a_row_takes_the_bytes_of_volume_and_mask(catalog):
    assert row_bytes(catalog) == 3 * np.prod(EXTENTS)


def altered(tmp_path, values):
    """A catalog one of whose shards has another mask than the manifest was made of."""
    catalog = write_masks(tmp_path / "catalog")
    path = catalog.path / "shards" / "test-00000.parquet"
    records = mask_splits(CARD)["test"][0]
    other = [dataclasses.replace(record, target=values) for record in records]
    manifest = json.loads((catalog.path / "manifest.json").read_text())
    written = shard_part(to_table(other, "test", CARD), path, CARD)
    for shard in manifest["shards"]:
        if shard["file"].endswith(path.name):
            shard |= {"bytes": written["bytes"], "sha256": written["sha256"]}
    made_catalogs.write_manifest(catalog.path, manifest)
    return open_catalog(catalog.path)


def test_verification_finds_masks_that_were_not_counted(tmp_path):
    found = verify(altered(tmp_path, np.zeros(EXTENTS, np.uint8)))
    assert "split test: the shards' counts are not those" in found.faults[0]


def test_verification_finds_labels_that_are_none(tmp_path):
    found = verify(altered(tmp_path, np.full(EXTENTS, 7, np.uint8)))
    assert "its mask has the label 7, expected 0 to 2" in found.faults[0]


def test_batches_have_the_masks_of_their_volumes(catalog):
    masks = truth("train")
    feed = resident_feed(catalog, "train", seed=3)
    seen = []
    for batch in feed.epoch(3, 0):
        np.testing.assert_array_equal(batch.targets.numpy(), masks[batch.rows])
        assert batch.signals.shape[2:] == batch.targets.shape[1:]
        seen += batch.rows.tolist()
    assert sorted(seen) == list(range(8))
    shares = [resident_feed(catalog, "train", seed=3, worker=Worker(r, 2)) for r in range(2)]
    for one, *parts in zip(feed.epoch(4, 1), *(s.epoch(4, 1) for s in shares), strict=True):
        both = np.concatenate([part.targets for part in parts])
        np.testing.assert_array_equal(both, one.targets)


@pytest.mark.ray
@pytest.mark.slow
def test_a_stream_has_the_masks_of_its_volumes(catalog, ray_cluster):
    masks = truth("train")
    feed = StreamingFeed(catalog, "train", seed=0)
    rows = []
    for batch in feed.epoch(3, 0):
        np.testing.assert_array_equal(batch.targets.numpy(), masks[batch.rows])
        rows += batch.rows.tolist()
    assert sorted(rows) == list(range(8))


def test_an_inner_catalog_keeps_masks_and_geometry(tmp_path, catalog):
    inner = inner_catalog(catalog, tmp_path / "inner")
    assert set(inner.manifest["splits"]) == {"train", "validation"}
    assert verify(inner).faults == ()
    seen = np.concatenate(
        [read_columns(inner, split).targets for split in inner.manifest["splits"]]
    )
    whole = np.concatenate([truth("train"), truth("validation")])
    assert sorted(mask.tobytes() for mask in seen) == sorted(mask.tobytes() for mask in whole)
    (first, *_) = inner.tables("validation")
    assert first["geometry"].null_count == 0


def test_a_search_takes_no_few_of_the_masks(tmp_path, catalog):
    with pytest.raises(BenchmdError, match=r"is a segmentation, .*: search finetune-full, which"):
        inner_catalog(catalog, tmp_path / "inner", labelled=Labelled(8, 0))


def test_catalogs_of_masks_are_described(catalog):
    assert class_balance(catalog)["train"].records == 8
    found = examples(catalog, 1)
    assert "posterior" in found["posterior"][0].classes


def test_masks_are_not_exported_as_hdf5(tmp_path, catalog):
    with pytest.raises(BenchmdError, match=r"holds masks with their geometry, which HDF5 files"):
        export_hdf5(catalog, tmp_path / "catalog.h5")


@pytest.mark.parametrize("fits", [True, False])
def test_masks_go_to_a_gpu_with_their_volumes_or_not_at_all(catalog, monkeypatch, fits):
    asked = []
    monkeypatch.setattr(ResidentFeed, "_fits", lambda _, size: asked.append(size) or fits)
    feed = resident_feed(catalog, "train", seed=0, subset=np.array([1, 6]))
    assert asked == [2 * 3 * np.prod(EXTENTS)]
    assert (feed._device_signals is not None) == fits
    (batch,) = feed.ordered(2)
    np.testing.assert_array_equal(batch.targets, truth("train")[[1, 6]])
