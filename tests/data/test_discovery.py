"""From records back to raw files."""

import shutil

import pytest

from benchmd_ray.data.discovery import locate
from benchmd_ray.errors import BenchmdError


def test_records_are_found_where_they_lie(synthetic_raw):
    raw = synthetic_raw["ptb-xl"]
    found = locate("ptb-xl", raw, ["HR00003", "HR00001"])
    assert list(found) == ["HR00003", "HR00001"]
    assert found["HR00001"] == raw / "records500/00000/00001_hr.hea"
    assert all(path.is_file() for path in found.values())


def test_every_record_of_a_catalog_is_found(synthetic_raw, ecg_catalogs):
    import pyarrow.parquet as pq

    for name, raw in synthetic_raw.items():
        catalog = ecg_catalogs[name]
        shards = [
            path for split in catalog.manifest["splits"] for path, *_ in catalog.shards(split)
        ]
        ids = [row for path in shards for row in pq.read_table(path)["record_id"].to_pylist()]
        found = locate(name, raw, ids)
        assert list(found) == ids
        for record, path in found.items():
            assert path.is_file()
            assert record.split("-")[0].removeprefix("HR") in path.stem


def test_parts_of_a_file_lead_to_the_file(synthetic_raw, tmp_path):
    for path in (synthetic_raw["cpsc"]).rglob("A0001.*"):
        shutil.copy(path, tmp_path)
    found = locate("cpsc", tmp_path, ["A0001", "A0001-0", "A0001-12"])
    assert set(found.values()) == {tmp_path / "A0001.hea"}


@pytest.mark.parametrize("name", ["E99999", "E0000", "E000010", "", "-1"])
def test_an_unknown_record_is_refused(synthetic_raw, name):
    with pytest.raises(
        BenchmdError, match=r"no record .* of georgia under the policy clean.* same BENCHMD_ID_KEY"
    ):
        locate("georgia", synthetic_raw["georgia"], ["E00001", name])


def test_the_choices_of_the_build_count(synthetic_raw, tmp_path):
    table = tmp_path / "Ga_splits.csv"
    table.write_text("patient,split,label\nE00001,train,6\n")
    raw, released = synthetic_raw["georgia"], {"policy": "released", "split_table": table}
    assert locate("georgia", raw, ["E00001"], **released)["E00001"].name == "E00001.hea"
    with pytest.raises(BenchmdError, match="policy released; its records are named like 'E00001'"):
        locate("georgia", raw, ["E00002"], **released)
    with pytest.raises(BenchmdError, match="unknown option of georgia 'size'"):
        locate("georgia", raw, ["E00001"], options={"size": "2"})
    with pytest.raises(BenchmdError, match="does not exist"):
        locate("georgia", tmp_path / "none", ["E00001"])
