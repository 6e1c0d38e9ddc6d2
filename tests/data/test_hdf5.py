"""Catalogs to HDF5 and back: the same records, and nothing of a file that is not ours."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from in_process import Here

from benchmd_ray.cli import main
from benchmd_ray.data import hdf5
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.hdf5 import export_hdf5, import_hdf5
from benchmd_ray.data.manifest import write_shard
from benchmd_ray.data.records import METADATA
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import locked, write_json

ODD = {"age": [None, 0.0, 61.5], "sex": ["", None, "female"], "site": ["Ærø", "2", None]}
"""Values that a file has to tell apart: nothing, zero and an empty text."""


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    """Files are read here: a process apart takes a second to start."""
    monkeypatch.setattr(hdf5, "PROCESS", Here(hdf5.answer))


@pytest.fixture(scope="session")
def exported(ct_catalogs, tmp_path_factory) -> Path:
    """A file of the synthetic LIDC-IDRI, not to be changed."""
    path = tmp_path_factory.mktemp("hdf5") / "lidc.h5"
    export_hdf5(ct_catalogs["lidc-idri"], path)
    return path


@pytest.fixture(scope="module")
def two_scans(build_once, synthetic_ct, tmp_path_factory) -> tuple[Catalog, Path]:
    """A catalog of two LNDb scans and its file, not to be changed."""
    raw = tmp_path_factory.mktemp("two-scans") / "raw"
    for path in synthetic_ct["lndb"].rglob("*"):
        if path.suffix == ".csv" or path.name[:9] in ("LNDb-0002", "LNDb-0004"):
            place = raw / path.relative_to(synthetic_ct["lndb"])
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    catalog = build_once("lndb", raw, raw.parent / "small")
    export_hdf5(catalog, raw.parent / "small.h5")
    return catalog, raw.parent / "small.h5"


@pytest.fixture
def small(two_scans, tmp_path) -> Catalog:
    """A catalog of two LNDb scans, to be changed."""
    return open_catalog(shutil.copytree(two_scans[0].path, tmp_path / "small"))


@pytest.fixture
def file(small, two_scans, tmp_path) -> Path:
    """Its file, to be damaged."""
    return Path(shutil.copy(two_scans[1], tmp_path / "small.h5"))


def tables(catalog: Catalog) -> dict[str, pa.Table]:
    """All rows of each split, in order."""
    return {
        split: pa.concat_tables(pq.read_table(path) for path, *_ in catalog.shards(split))
        for split in catalog.manifest["splits"]
    }


def refused(path: Path, out: Path, message: str) -> None:
    with pytest.raises(BenchmdError, match=message):
        import_hdf5(path, out)
    assert {path.name for path in out.glob("*")} <= {".lock"}


@pytest.mark.slow
def test_records_come_back_byte_for_byte(ct_catalogs, exported, tmp_path):
    original = ct_catalogs["lidc-idri"]
    imported = import_hdf5(exported, tmp_path / "out")
    assert set(tables(original)) == {"train", "validation"}
    for split, table in tables(original).items():
        assert tables(imported)[split].equals(table, check_metadata=True)
    assert imported.manifest == original.manifest
    assert imported.digest == original.digest
    assert verify(imported) == verify(original)


@pytest.mark.slow
def test_images_and_waveforms_come_back_too(build_here, synthetic_cxr, synthetic_eeg, tmp_path):
    for name, raw in (("chexpert", synthetic_cxr), ("shhs", synthetic_eeg)):
        original = build_here(name, raw[name], tmp_path / name)
        export_hdf5(original, tmp_path / f"{name}.h5")
        imported = import_hdf5(tmp_path / f"{name}.h5", tmp_path / f"{name}-back")
        for split, table in tables(original).items():
            assert tables(imported)[split].equals(table)
        assert imported.manifest == original.manifest


def test_missing_values_stay_apart_from_zero_and_empty_texts(small, tmp_path):
    part = small.manifest["shards"][0]
    table = pq.read_table(small.path / part["file"])
    for name, kind in METADATA.items():
        values = (ODD.get(name, [None]) * len(table))[: len(table)]
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values, kind))
    part |= write_shard(table, small.path / part["file"], small.signal)
    export_hdf5(small, tmp_path / "odd.h5")
    imported = import_hdf5(tmp_path / "odd.h5", tmp_path / "out")
    assert pq.read_table(imported.path / part["file"]).equals(table)


def test_layout_can_be_read_by_any_hdf5_library(ct_catalogs, exported):
    original = ct_catalogs["lidc-idri"]
    with h5py.File(exported) as found:
        assert found.attrs["dataset"] == "lidc-idri"
        assert found.attrs["policy"] == "clean"
        assert found.attrs["digest"] == original.digest
        assert json.loads(found.attrs["classes"]) == ["small nodule", "large nodule"]
        assert json.loads(found.attrs["options"]) == {"readers": "3"}
        table = tables(original)["train"]
        group = found["train"]
        assert group["signal"].shape == (len(table), 1, 24, 256, 256)
        assert group["signal"].chunks == (1, 1, 24, 256, 256)
        assert group["signal"].compression == "gzip"
        assert group["signal"].fletcher32
        stored = np.frombuffer(table["signal"][3].as_py(), np.int16).reshape(1, 24, 256, 256)
        assert np.array_equal(group["signal"][3], stored)
        assert group["target"][:].tolist() == table["target"].to_pylist()
        assert group["record_id"].asstr()[:].tolist() == table["record_id"].to_pylist()


def test_same_catalog_gives_the_same_bytes(small, tmp_path):
    for name in ("a", "b"):
        export_hdf5(small, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_damaged_catalog_is_not_exported(small, tmp_path):
    shard = small.path / small.manifest["shards"][0]["file"]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(BenchmdError, match="its SHA-256 is not the one"):
        export_hdf5(small, tmp_path / "a.h5")
    assert not (tmp_path / "a.h5").exists()


def test_folders_that_hold_something_are_left_alone(file, small, tmp_path):
    with pytest.raises(BenchmdError, match="is there already: choose another --out"):
        import_hdf5(file, small.path)
    (tmp_path / "note").write_text("mine")
    with pytest.raises(BenchmdError, match="is there already"):
        import_hdf5(file, tmp_path / "note")
    (tmp_path / "empty").mkdir()
    assert import_hdf5(file, tmp_path / "empty").digest == small.digest


def test_full_disk_leaves_nothing_behind(file, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    refused(file, tmp_path / "out", "no space left while writing")


EXPORT = """
import resource, sys
from pathlib import Path
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.hdf5 import export_hdf5
catalog, path, limit = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit),) * 2)
try:
    export_hdf5(open_catalog(Path(catalog)), Path(path))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_an_export_that_reaches_the_largest_size_of_a_file_says_so(two_scans, tmp_path, share):
    """HDF5's library ends the process where a write fails: none may."""
    catalog, whole = two_scans
    limit = int(whole.stat().st_size * share)
    command = [sys.executable, "-c", EXPORT, catalog.path, tmp_path / "a.h5", limit]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    expected = f"DiskFull no space left within the largest size of a file while writing {tmp_path}"
    assert done.stdout.startswith(expected)
    assert not list(tmp_path.iterdir())


def test_files_that_are_none_of_ours_are_refused(file, tmp_path):
    refused(tmp_path / "none.h5", tmp_path / "out", r"none\.h5 is missing: expected a file of")
    (tmp_path / "text.h5").write_text("not HDF5 at all")
    refused(tmp_path / "text.h5", tmp_path / "out", "it is damaged or foreign")
    with h5py.File(tmp_path / "foreign.h5", "w") as foreign:
        foreign["x"] = np.zeros(3)
    refused(tmp_path / "foreign.h5", tmp_path / "out", "its attribute 'format' is not")
    content = file.read_bytes()
    (tmp_path / "cut.h5").write_bytes(content[: len(content) // 2])
    refused(tmp_path / "cut.h5", tmp_path / "out", "it is damaged or foreign")


def test_damaged_samples_are_found(file, tmp_path):
    content = bytearray(file.read_bytes())
    with h5py.File(file) as found:
        place = found["test"]["signal"].id.get_chunk_info(1)
    content[place.byte_offset + place.size // 2] ^= 0xFF
    file.write_bytes(content)
    refused(file, tmp_path / "out", "it is damaged or foreign")


def replace(group, name, **made):
    """Put another dataset in place of one."""
    del group[name]
    return group.create_dataset(name, **made)


def soft_link(f):
    del f["test"]["target"]
    f["test"]["target"] = h5py.SoftLink("/test/valid_size")


def group_link(f):
    f.move("test", "kept")
    f["test"] = h5py.SoftLink("/kept")


def external_link(f):
    del f["test"]["target"]
    f["test"]["target"] = h5py.ExternalLink("/etc/passwd", "/x")


def external_storage(f):
    rows = len(f["test"]["scale"])
    replace(f["test"], "scale", shape=(rows,), dtype="f4", external=[("/etc/passwd", 0, 4 * rows)])


def virtual(f):
    rows = len(f["test"]["scale"])
    layout = h5py.VirtualLayout((rows,), "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.h5", "scale", (rows,))
    del f["test"]["scale"]
    f["test"].create_virtual_dataset("scale", layout)


def other_filter(f):
    values = f["test"]["scale"][:]
    replace(f["test"], "scale", data=values, chunks=True, compression="lzf")


def never_written(f):
    shape = f["test"]["signal"].shape
    replace(f["test"], "signal", shape=shape, dtype="i2", chunks=(1, *shape[1:]))


def huge(f):
    shape = (10**9, *f["test"]["signal"].shape[1:])
    replace(f["test"], "signal", shape=shape, dtype="i2", chunks=(1, *shape[1:]))


def objects(f):
    rows = len(f["test"]["record_id"])
    replace(f["test"], "record_id", data=["x"] * rows, dtype=h5py.string_dtype(), chunks=True)


def references(f):
    rows = len(f["test"]["record_id"])
    replace(f["test"], "record_id", shape=(rows,), dtype=h5py.ref_dtype, chunks=True)


def large_chunks(f):
    rows = len(f["test"]["scale"])
    replace(f["test"], "scale", shape=(rows,), maxshape=(None,), dtype="f4", chunks=(2**27,))


def wrong_type(f):
    values = f["test"]["target"][:].astype(np.float64)
    replace(f["test"], "target", data=values, chunks=True)


def wrong_shape(f):
    values = f["test"]["target"][:, :1]
    replace(f["test"], "target", data=values, chunks=True)


def big_endian(f):
    values = f["test"]["scale"][:].astype(">f4")
    replace(f["test"], "scale", data=values, chunks=True)


def no_scale(f):
    f["test"]["scale"][1] = np.nan


def beyond_the_signal(f):
    f["test"]["valid_size"][0] = (100_000, -5, 256)


def very_old(f):
    f["test"]["metadata/age_known"][0] = True
    f["test"]["metadata/age"][0] = 112


def other_value(f):
    f["test"]["target"][0] = [7, 0]


def other_label(f):
    f["test"]["target"][0] = 1 - f["test"]["target"][0]


def twice(f):
    f["test"]["record_id"][1] = f["test"]["record_id"][0]


def extra(f):
    f["test"]["more"] = np.zeros(3)


def extra_group(f):
    f.create_group("train")


def group_for_dataset(f):
    del f["test"]["target"]
    f["test"].create_group("target")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (soft_link, "target is a link, which is not followed"),
        (group_link, "it holds .*'kept', 'manifest', 'test'.* expected"),
        (external_link, "target is a link, which is not followed"),
        (external_storage, "scale is not a dataset within the file"),
        (virtual, "scale is not a dataset within the file"),
        (other_filter, "scale is compressed by a filter that is not taken"),
        (never_written, "has rows that were never written"),
        (huge, r"has shape \(1000000000, 1, 24, 256, 256\)"),
        (objects, "record_id has type object, expected texts"),
        (references, "record_id has type object, expected texts"),
        (large_chunks, "scale has chunks of more than 67,108,864 bytes"),
        (wrong_type, "target has type float64, expected int8"),
        (wrong_shape, r"target has shape \(\d+, 1\), expected"),
        (big_endian, "scale has type >f4, expected float32"),
        (no_scale, "a scale is not a positive number"),
        (beyond_the_signal, "a valid size is not within the signal"),
        (very_old, "an age is not within 0 to 90 years"),
        (other_value, "its targets are not 1, 0 or -1"),
        (other_label, "its rows give other splits than its manifest states"),
        (twice, "a record appears twice"),
        (extra, "its group test holds other datasets than expected"),
        (extra_group, "it holds .*'train'.* expected"),
        (group_for_dataset, "target is not a dataset within the file"),
    ],
)
def test_altered_files_are_refused(file, tmp_path, damage, message):
    with h5py.File(file, "a") as found:
        damage(found)
    refused(file, tmp_path / "out", message)


def restate(file: Path, **changes) -> None:
    """Alter the manifest of a file."""
    with h5py.File(file, "a") as found:
        held = json.loads(found["manifest"][()].tobytes())
        for key, value in changes.items():
            if value is None:
                del held[key]
            else:
                held[key] = value(held[key]) if callable(value) else value
        text = np.frombuffer(json.dumps(held).encode(), np.uint8)
        replace(found, "manifest", data=text)


def first_shard(**changes):
    return lambda shards: [shards[0] | changes, *shards[1:]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"card": lambda card: card | {"name": "../x"}}, "its card: '../x' is not a valid name"),
        (
            {"card": lambda card: card | {"modality": "ecg"}},
            "its card: modality is 'ecg', expected",
        ),
        ({"card": lambda card: card | {"version": 0}}, "by version 0 of the card"),
        ({"policy": "mine"}, "policy is 'mine', expected 'clean' or 'released'"),
        ({"layout": "mine"}, "its layout 'mine' is not one of"),
        ({"plan": None}, "it lacks plan"),
        ({"raw": []}, r"raw is \[\], expected an object"),
        ({"raw": {}}, "raw lacks records"),
        (
            {"raw": lambda raw: raw | {"records": "all"}},
            r"raw\.records is 'all', expected ",
        ),
        ({"warnings": {"odd": None}}, r"warnings\.odd is None, expected a whole number"),
        (
            {"quarantined": [{"record": 1, "file": None, "reason": ""}]},
            r"\[0\]\.record is 1, expected ",
        ),
        ({"quarantined": [7]}, r"quarantined\[0\] is 7, expected an object"),
        ({"shards": first_shard(file="../../evil.parquet")}, r"shards\[0\]\.file is '../../evil"),
        ({"shards": first_shard(file="shards/train-00000.parquet")}, "is of an odd split"),
        ({"shards": first_shard(rows=10**9)}, "the rows of its shards are not those"),
        (
            {"shards": first_shard(rows=-1)},
            r"rows is -1, expected a number greater than 0",
        ),
        ({"shards": lambda shards: [*shards, shards[0]]}, "the rows of its shards are not those"),
        ({"statistics": {"mean": [0.0], "std": [1.0]}}, "its rows give other statistics"),
    ],
)
def test_an_altered_manifest_is_refused(file, tmp_path, changes, message):
    restate(file, **changes)
    refused(file, tmp_path / "out", message)


def test_a_manifest_that_is_no_text_is_refused(file, tmp_path):
    with h5py.File(file, "a") as found:
        replace(found, "manifest", data=np.zeros(4))
    refused(file, tmp_path / "out", "its manifest is not text")


def test_a_manifest_in_millions_of_chunks_is_refused_soon(file, tmp_path):
    with h5py.File(file, "r+") as opened:
        del opened["manifest"]
        opened.create_dataset("manifest", (2**22,), "u1", chunks=(1,))
    before = sum(os.times()[:4])  # also of processes that have ended
    refused(file, tmp_path / "out", "its manifest is not text")
    assert sum(os.times()[:4]) - before < 10


def test_a_shard_is_all_that_is_held_at_once(exported, tmp_path, monkeypatch):
    most, table = [], hdf5._table

    def counted(group, rows, *others):
        most.append(rows.stop - rows.start)
        return table(group, rows, *others)

    monkeypatch.setattr(hdf5, "_table", counted)
    imported = import_hdf5(exported, tmp_path / "out")
    assert most == [shard["rows"] for shard in imported.manifest["shards"]]
    assert max(most) < imported.rows("train") / 4


def test_commands_export_and_import(small, tmp_path):
    runner, path = CliRunner(), tmp_path / "small.h5"
    done = runner.invoke(main, ["catalog", "export", str(small.path), "--out", str(path)])
    assert (done.exit_code, small.digest[:16] in done.output) == (0, True)
    done = runner.invoke(main, ["catalog", "import", str(path), "--out", str(tmp_path / "back")])
    assert done.exit_code == 0
    assert open_catalog(tmp_path / "back").digest == small.digest
    again = runner.invoke(main, ["catalog", "import", str(path), "--out", str(tmp_path / "back")])
    assert again.exit_code == 1
    write_json(tmp_path / "other.json", {})
    wrong = runner.invoke(
        main, ["catalog", "import", str(tmp_path / "other.json"), "--out", str(tmp_path / "x")]
    )
    assert wrong.exit_code == 1
    assert "error: " in wrong.output


def test_a_single_label_record_of_two_classes_is_refused(build_here, synthetic_eeg, tmp_path):
    built = build_here("shhs", synthetic_eeg["shhs"], tmp_path / "shhs")
    export_hdf5(built, tmp_path / "shhs.h5")
    with h5py.File(tmp_path / "shhs.h5", "a") as found:
        found["train"]["target"][0] = [0, 0, 0, 1, 1]
    refused(tmp_path / "shhs.h5", tmp_path / "out", "not positive in exactly one class")


def test_what_a_killed_import_left_is_removed(file, small, tmp_path):
    out = tmp_path / "out"
    (out / ".partial-import" / "shards").mkdir(parents=True)
    (out / ".partial-import" / "shards" / "test-00077.parquet").write_bytes(b"half")
    assert import_hdf5(file, out).digest == small.digest
    assert {path.name for path in out.iterdir()} == {".lock", "manifest.json", "shards"}
    assert not verify(open_catalog(out)).faults
    assert not list(tmp_path.glob(".partial-*"))


def test_two_imports_to_one_folder_exclude_each_other(file, tmp_path):
    out = tmp_path / "out"
    with (
        locked(out / ".lock", "it"),
        pytest.raises(BenchmdError, match="another process is working on the catalog"),
    ):
        import_hdf5(file, out)
    assert import_hdf5(file, out).rows("test")
