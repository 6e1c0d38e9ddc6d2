"""Parquet files that are small and would fill the memory are refused before they are decoded."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmd_ray.files import parquet
from benchmd_ray.files.integrity import Damaged
from benchmd_ray.files.parquet import LEAST_BYTES, read_table

ROWS = 2_000_000


def constant(value, kind, rows=ROWS):
    return pa.repeat(pa.scalar(value, kind), rows)


def lists(fixed):
    values = constant(0.0, pa.float64(), 10 * ROWS)
    if fixed:
        return pa.FixedSizeListArray.from_arrays(values, 10)
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def texts(**how):
    numbers = pa.array(np.zeros(20_000, np.int32))
    return pa.DictionaryArray.from_arrays(numbers, pa.array(["x" * 50_000])), how


BOMBS = {
    "lists of one length": lambda: (lists(fixed=True), {}),
    "one row with a long list": lambda: (lists(fixed=False), {}),
    "numbers": lambda: (constant(0, pa.int64(), 10 * ROWS), {}),
    "missing numbers": lambda: (pa.nulls(10 * ROWS, pa.float64()), {}),
    "one long text often": texts,
    "texts by what they share": lambda: (
        pa.array([f"{'x' * 15_000}{n}" for n in range(10_000)]),
        {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    ),
    "lists of one text": lambda: (
        pa.ListArray.from_arrays(pa.array([0, 9_000], pa.int32()), pa.repeat("y" * 20_000, 9_000)),
        {},
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_decodes_to_much_is_refused_before_it_fills_the_memory(tmp_path, name):
    path = tmp_path / "bomb.parquet"
    column, how = BOMBS[name]()
    pq.write_table(pa.table({"a": column}), path, store_schema=False, **how)
    assert path.stat().st_size < 2**20
    del column
    before = pa.total_allocated_bytes()
    with pytest.raises(Damaged, match=r"is damaged: it (claims|decodes to more than) .* Remove it"):
        read_table(path, path, "Remove it.")
    assert pa.total_allocated_bytes() - before < 2**22


def plain(rows=1000):
    draw = np.random.default_rng(0)
    return pa.table(
        {
            "id": [f"r{n}" for n in range(rows)],
            "split": pa.array(["test", "val"] * (rows // 2)),
            "site": pa.array([None] * rows, pa.string()),
            "long": pa.array(["é" * 3] * rows, pa.large_string()),
            "scores": pa.FixedSizeListArray.from_arrays(pa.array(draw.random(rows * 5)), 5),
            "words": pa.array([["a", "b"], None] * (rows // 2)),
            "age": pa.array(draw.random(rows), pa.float32()),
        }
    ).replace_schema_metadata({"of": "a run"})


@pytest.mark.parametrize("rows", [0, 1000])
@pytest.mark.parametrize("size", [7, 2**18])
def test_what_was_written_is_read_with_its_types_and_metadata(tmp_path, monkeypatch, rows, size):
    monkeypatch.setattr(parquet, "READ_ROWS", size)
    path, table = tmp_path / "a.parquet", plain(rows)
    pq.write_table(table, path, row_group_size=300)
    found = read_table(path, path, "")
    assert found.equals(table)
    assert found.equals(pq.read_table(path), check_metadata=True)
    assert read_table(path, path, "", columns=["age", "id"]).column_names == ["age", "id"]
    with pytest.raises(Damaged, match="it lacks the columns none"):
        read_table(path, path, "", columns=["id", "none"])


def test_a_larger_file_may_decode_to_more(tmp_path, monkeypatch):
    path, table = tmp_path / "a.parquet", plain()
    pq.write_table(table, path)
    monkeypatch.setattr(parquet, "LEAST_BYTES", 100)
    assert read_table(path, path, "").equals(table)
    monkeypatch.setattr(parquet, "MOST_TIMES", 1)
    with pytest.raises(Damaged, match="it claims 1,000 rows"):
        read_table(path, path, "")


def test_texts_of_others_may_be_in_any_encoding(tmp_path):
    path = tmp_path / "a.parquet"
    column = pa.array([f"{'x' * 2_000}{n}" for n in range(100_000)])
    pq.write_table(
        pa.table({"a": column}), path, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"
    )
    with parquet.opened(path, path, "") as file:
        assert next(file.iter_batches(3)).num_rows == 3
    assert column.nbytes > LEAST_BYTES
