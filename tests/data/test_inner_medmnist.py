"""Inner catalogs of a dataset of MedMNIST: of its official training and validation split."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmd_ray.data.cards import cards, dataset_card
from benchmd_ray.data.catalog import Catalog, confined, open_catalog
from benchmd_ray.data.feed import read_columns
from benchmd_ray.data.inner import Labelled, inner_catalog, splits_seen
from benchmd_ray.data.records import decode_signals
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError

COUNTS = {"train": 20, "val": 7, "test": 9}
SEEN = {"train": "train", "validation": "val"}


@pytest.fixture
def file(tmp_path):
    """A file of random images, of which no two are alike."""
    rng, held = np.random.default_rng(5), {}
    for prefix, count in COUNTS.items():
        held[f"{prefix}_images"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        held[f"{prefix}_labels"] = (np.arange(count) % 2).astype(np.uint8)[:, None]
    path = tmp_path / "raw" / "breastmnist.npz"
    path.parent.mkdir()
    np.savez_compressed(path, **held)
    return path


@pytest.fixture
def source(file, tmp_path, build_here, monkeypatch) -> Catalog:
    """Its catalog, of several shards each split."""
    monkeypatch.setattr("benchmd_ray.data.build.CHUNK_BYTES", 4 * 28 * 28)
    return build_here("breastmnist", file.parent, tmp_path / "c", options={"md5": "allow"})


def rows_of(catalog: Catalog, split: str) -> list[dict]:
    """All columns of a split in order."""
    return pa.concat_tables(list(catalog.tables(split))).to_pylist()


def require_official(inner: Catalog, source: Catalog, file, copies=0) -> None:
    """The inner catalog holds the file's two splits, cut anew, and nothing of the third."""
    raw = np.load(file)
    assert set(inner.manifest["splits"]) == set(SEEN)
    seen = {row["record_id"]: row["signal"] for split in SEEN for row in rows_of(source, split)}
    made = {row["record_id"]: row["signal"] for split in SEEN for row in rows_of(inner, split)}
    assert made == seen
    assert inner.rows("train") + inner.rows("validation") == len(seen)
    official = [raw[f"{prefix}_images"] for prefix in SEEN.values()]
    assert len(seen) == sum(map(len, official)) - copies
    signals = [decode_signals(t["signal"], inner.signal) for s in SEEN for t in inner.tables(s)]
    held = sorted(image.tobytes() for image in np.concatenate(signals)[:, 0])
    tested = {image.tobytes() for image in raw["test_images"]}
    expected = (image.tobytes() for image in np.concatenate(official))
    assert held == sorted(image for image in expected if image not in tested)
    test = rows_of(source, "test")
    assert len(test) == len(raw["test_images"])
    assert not {row["record_id"] for row in test} & set(made)
    assert verify(inner).faults == ()


def test_the_official_training_and_validation_split_are_what_a_search_sees(source, file, tmp_path):
    assert len(source.shards("train")) > 1
    inner = inner_catalog(source, tmp_path / "inner")
    require_official(inner, source, file)
    seen = {row["signal"] for split in SEEN for row in rows_of(inner, split)}
    assert not {row["signal"] for row in rows_of(source, "test")} & seen


@pytest.mark.data
def test_of_the_official_file_too(real_data, build_here, tmp_path):
    file = real_data / "medmnist" / "breastmnist.npz"
    source = build_here("breastmnist", file.parent, tmp_path / "c", allow_missing=False)
    inner = inner_catalog(source, tmp_path / "inner")
    require_official(inner, source, file, copies=1)  # of a test image
    # table 2 of the paper, but the copy
    assert inner.rows("train") + inner.rows("validation") == 546 + 78 - 1


def test_it_is_made_with_the_test_split_unreadable(source, file, tmp_path):
    whole = {row["record_id"] for split in SEEN for row in rows_of(source, split)}
    for shard in source.shards("test"):
        shard.path.unlink()
    inner = inner_catalog(source, tmp_path / "inner")
    assert {row["record_id"] for split in SEEN for row in rows_of(inner, split)} == whole


def test_of_few_labels_a_search_sees_no_validation_image(source, tmp_path):
    inner = inner_catalog(source, tmp_path / "inner", labelled=Labelled(4, 0))
    rows = [row for split in SEEN for row in rows_of(inner, split)]
    train = {row["record_id"]: row["target"] for row in rows_of(source, "train")}
    assert {row["record_id"] for row in rows} < train.keys()
    assert sorted(train[row["record_id"]] for row in rows) == [[0, 1]] * 4 + [[1, 0]] * 4


def test_a_search_can_open_no_test_image(source, tmp_path):
    inner = inner_catalog(source, tmp_path / "inner")
    with confined([inner.path]):
        assert len(read_columns(inner, "validation").targets) == inner.rows("validation")
        for catalog in (source, inner):
            with pytest.raises(BenchmdError, match=r"must not be opened|no record in split 'test'"):
                read_columns(catalog, "test")
        with pytest.raises(BenchmdError, match="a search sees the inner catalogs of its sources"):
            open_catalog(source.path)


def test_an_altered_validation_shard_is_refused(source, tmp_path):
    path = source.shards("validation")[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BenchmdError, match=r"validation-.*is damaged: its SHA-256 is not the one"):
        inner_catalog(source, tmp_path / "inner")


def test_only_these_collections_have_a_validation_split_to_choose_by():
    rows = {"train": 10, "validation": 2, "test": 3}
    found = {
        card.collection
        for card in cards().values()
        for splits in card.evaluation_splits.values()
        if card.role == "source" and "validation" in splits_seen(rows, splits)
    }
    assert found == {"decathlon", "medmnist"}
    scored = dataset_card("breastmnist").evaluation_splits["clean"]
    assert splits_seen({"train": 10, "test": 3}, scored) == ("train",)
