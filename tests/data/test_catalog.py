"""Building, resuming and verifying catalogs."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from in_process import build_in_process
from made_catalogs import change_manifest, write_manifest

from benchmd_ray.data import build as building
from benchmd_ray.data import chunks
from benchmd_ray.data.build import build
from benchmd_ray.data.catalog import FORMAT, REMEDY, Catalog, open_catalog
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.manifest import write_shard
from benchmd_ray.data.records import decode_signals, schema
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import sha256, write_json

TARGETS = ("chapman-shaoxing", "georgia", "cpsc")


@pytest.fixture
def small_chunks(monkeypatch) -> None:
    """Shards of ten records."""
    monkeypatch.setattr(building, "CHUNK_BYTES", 10 * 120_000)


@pytest.fixture
def in_process(monkeypatch) -> None:
    """Chunks built here and one after the other, as a Ray task would."""
    build_in_process(monkeypatch)


@pytest.fixture
def built(ecg_catalogs, tmp_path) -> Catalog:
    """A copy of a catalog, to be damaged."""
    shutil.copytree(ecg_catalogs["georgia"].path, tmp_path / "georgia")
    return open_catalog(tmp_path / "georgia")


def table(built: Catalog) -> pd.DataFrame:
    shards = [path for split in built.manifest["splits"] for path, *_ in built.shards(split)]
    return pd.concat([pq.read_table(path).drop("signal").to_pandas() for path in shards])


def build_georgia(raw: Path, out: Path, **changes) -> Catalog:
    return build("georgia", raw, out, **({"allow_missing": True} | changes))


def partial_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if ".partial-" in path.name]


@pytest.fixture
def georgia(tmp_path, synthetic_raw) -> Path:
    """A raw folder of 20 records, to be changed."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(1, 21):
        for path in (synthetic_raw["georgia"] / "g1").glob(f"E{number:05d}.*"):
            shutil.copy(path, raw)
    return raw


def test_catalog_holds_every_record_once_with_its_signal(ecg_catalogs, synthetic_raw):
    built = ecg_catalogs["ptb-xl"]
    rows = table(built)
    assert sorted(rows["record_id"]) == [f"HR{i:05d}" for i in range(1, 141)]
    for split in ("train", "validation", "test"):
        for path, count, *_ in built.shards(split):
            shard = pq.read_table(path)
            signals = decode_signals(shard["signal"], built.signal)
            assert len(signals) == count
            for row in range(0, count, 7):
                name = shard["record_id"][row].as_py().removeprefix("HR")
                raw = synthetic_raw["ptb-xl"] / f"records500/00000/{name}_hr.dat"
                assert np.array_equal(signals[row], np.fromfile(raw, "<i2").reshape(-1, 12).T)


def test_manifest_counts_are_those_of_the_rows(ecg_catalogs):
    for built in ecg_catalogs.values():
        for split, rows in table(built).groupby("split"):
            stated = built.manifest["splits"][split]
            positives = np.stack(rows["target"]).sum(axis=0)
            assert list(stated["classes"].values()) == positives.tolist()
            assert stated["records"] == len(rows) == built.rows(split) == positives.sum()
            assert stated["patients"] == rows["group_id"].nunique()
        assert not verify(built).faults


def test_statistics_are_those_of_the_training_signals_in_mv(ecg_catalogs):
    built = ecg_catalogs["ptb-xl"]
    leads = []
    for path, *_ in built.shards("train"):
        shard = pq.read_table(path)
        scale = shard["scale"].to_numpy()[:, None, None]
        leads.append(decode_signals(shard["signal"], built.signal) * scale.astype(float))
    signals = np.concatenate(leads)
    assert built.manifest["statistics"]["mean"] == pytest.approx(signals.mean(axis=(0, 2)))
    assert built.manifest["statistics"]["std"] == pytest.approx(signals.std(axis=(0, 2)))
    assert ecg_catalogs["cpsc"].manifest["statistics"] is None


def test_splits_never_share_a_patient(ecg_catalogs):
    rows = table(ecg_catalogs["ptb-xl"])
    assert rows.groupby("group_id")["split"].nunique().max() == 1
    assert rows.groupby("group_id").size().max() > 1
    assert set(rows["split"]) == {"train", "validation", "test"}


def test_what_the_protocol_leaves_out_is_counted(ecg_catalogs, synthetic_raw):
    for name in TARGETS:
        manifest = ecg_catalogs[name].manifest
        headers = list(synthetic_raw[name].rglob("*.hea"))
        short = sum(int(path.read_text().split()[3]) < 5000 for path in headers)
        excluded = manifest["excluded"]
        assert excluded["its codes map to no class"] == 2
        assert excluded.get("it is shorter than 10 s", 0) == short == 2 * (name == "cpsc")
        assert manifest["raw"]["records"] == 35
        kept = table(ecg_catalogs[name])["record_id"].str.split("-").str[0].nunique()
        assert kept == 35 - sum(excluded.values())
    assert ecg_catalogs["cpsc"].rows("test") > 35 - 4


def test_nothing_that_names_a_person_or_a_visit_is_stored(ecg_catalogs, synthetic_raw):
    built = ecg_catalogs["ptb-xl"]
    source = pd.read_csv(synthetic_raw["ptb-xl"] / "ptbxl_database.csv", dtype=str)
    texts = set(re.findall(r'"([^"]*)"', (built.path / "manifest.json").read_text()))
    for name, column in table(built).drop(columns=["valid_size", "target"]).items():
        assert name in schema(built.card).names
        texts |= {str(value) for value in column.dropna()}
    words = {word for text in texts for word in re.split(r"\W+", text)}
    assert not words & {*source["patient_id"].str.removesuffix(".0"), "nurse", "synthetischer"}
    assert not [text for text in texts if re.search(r"\d{4}-\d\d-\d\d|befund", text)]
    raw_bytes = b"".join(path.read_bytes() for path in (built.path / "shards").iterdir())
    for secret in (b"synthetischer", b"recording_date", b"1990-0", b"nurse", b"patient_id"):
        assert secret not in raw_bytes
    kept = {path.name for path in built.path.iterdir()}
    assert kept == {".lock", "manifest.json", "shards"}


@pytest.mark.usefixtures("in_process")
def test_both_layouts_of_ptbxl_give_the_same_labels_splits_and_signals(
    ecg_catalogs, synthetic_raw, tmp_path, write_cinc
):
    raw = synthetic_raw["ptb-xl"]
    shutil.copy(raw / "ptbxl_database.csv", tmp_path)
    for path in sorted(raw.rglob("*_hr.dat")):
        signal = np.fromfile(path, "<i2").reshape(-1, 12).T
        write_cinc(tmp_path / "g1", f"HR{path.name[:5]}", signal, comments=["# Dx: 164889003"])
    other = build("ptb-xl", tmp_path, tmp_path / "out", allow_missing=True)
    assert other.manifest["layout"] == "cinc"
    assert ecg_catalogs["ptb-xl"].manifest["layout"] == "physionet"
    first, second = (table(c).set_index("record_id") for c in (ecg_catalogs["ptb-xl"], other))
    pd.testing.assert_frame_equal(first, second)
    names = [shard["sha256"] for shard in ecg_catalogs["ptb-xl"].manifest["shards"]]
    assert [shard["sha256"] for shard in other.manifest["shards"]] == names


@pytest.mark.ray
def test_rebuilding_gives_the_same_bytes(ecg_catalogs, synthetic_raw, tmp_path):
    again = build_georgia(synthetic_raw["georgia"], tmp_path / "again")
    assert again.manifest == ecg_catalogs["georgia"].manifest


@pytest.mark.usefixtures("small_chunks", "in_process")
def test_finished_catalog_is_opened_and_not_built_again(georgia, tmp_path, monkeypatch):
    first = build_georgia(georgia, tmp_path / "out")
    monkeypatch.setattr(building, "_run", None)
    assert build_georgia(georgia, tmp_path / "out").manifest == first.manifest


@pytest.mark.ray
@pytest.mark.usefixtures("small_chunks")
def test_killed_build_goes_on_where_it_stopped(synthetic_raw, tmp_path, monkeypatch):
    raw, out = synthetic_raw["georgia"], tmp_path / "out"
    whole = build_georgia(raw, tmp_path / "whole")
    assert len(whole.manifest["shards"]) == 4

    def killed_after_two(waiting):
        yield from map(chunks.build_chunk, waiting[:2])
        waiting[2].shard.write_bytes(b"half a shard")  # renamed, but its part not yet written
        for folder in ("shards", "parts", "."):
            (out / folder / ".partial-1-test-00003").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(building, "_map", killed_after_two)
        with pytest.raises(KeyboardInterrupt):
            build_georgia(raw, out)
    with pytest.raises(BenchmdError, match="holds an unfinished catalog"):
        open_catalog(out)
    done = {p.name: p.stat().st_mtime_ns for p in (out / "shards").glob("test-0000[01]*")}
    assert len(done) == 2
    resumed = build_georgia(raw, out)
    assert resumed.digest == whole.digest
    assert not partial_files(out)
    assert not verify(resumed).faults
    for name, modified in done.items():
        assert (out / "shards" / name).stat().st_mtime_ns == modified


@pytest.mark.usefixtures("small_chunks", "in_process")
def test_part_whose_shard_was_lost_or_cut_is_built_again(synthetic_raw, tmp_path, monkeypatch):
    raw, out = synthetic_raw["georgia"], tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(building, "manifest_of", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_georgia(raw, out)
    (out / "shards" / "test-00000.parquet").unlink()
    (out / "shards" / "test-00001.parquet").write_bytes(b"cut")
    (out / "shards" / "test-00009.parquet").write_bytes(b"of an earlier attempt")
    resumed = build_georgia(raw, out)
    assert not verify(resumed).faults
    assert len(list((out / "shards").iterdir())) == 4


@pytest.mark.usefixtures("in_process")
def test_parts_of_other_inputs_are_not_taken_over(georgia, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(building, "manifest_of", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_georgia(georgia, tmp_path / "out")
    (georgia / "E00001.hea").unlink()
    resumed = build_georgia(georgia, tmp_path / "out")
    assert "E00001" not in set(table(resumed)["record_id"])


@pytest.mark.usefixtures("in_process")
def test_unreadable_record_is_quarantined_with_its_reason(georgia, tmp_path):
    content = (georgia / "E00002.mat").read_bytes()
    (georgia / "E00002.mat").write_bytes(content[:1000])
    built = build_georgia(georgia, tmp_path / "out", max_quarantined=0.05)
    (entry,) = built.manifest["quarantined"]
    assert entry["file"] == "E00002.hea"
    assert "samples' file is cut off" in entry["reason"]
    assert "E00002" not in set(table(built)["record_id"])


@pytest.mark.usefixtures("small_chunks", "in_process")
def test_too_many_unreadable_records_stop_the_build_and_can_be_mended(georgia, tmp_path):
    content = (georgia / "E00002.mat").read_bytes()
    (georgia / "E00002.mat").write_bytes(content[:1000])
    out = tmp_path / "out"
    message = r"1 of 20 records .* 4\.9%: E00002\.hea: its samples' file is cut off"
    with pytest.raises(BenchmdError, match=message):
        build_georgia(georgia, out, max_quarantined=0.049)
    assert not (out / "manifest.json").exists()
    assert [path.name for path in (out / "parts").iterdir()] == ["test-00001.json"]
    (georgia / "E00002.mat").write_bytes(content)
    mended = build_georgia(georgia, out, max_quarantined=0.0)
    assert mended.manifest["quarantined"] == []
    assert mended.rows("test") == 19


@pytest.mark.usefixtures("in_process")
def test_catalog_without_records_says_why(georgia, tmp_path):
    for path in georgia.glob("*.hea"):
        path.write_text(re.sub("Dx: .*", "Dx: 999", path.read_text()))
    with pytest.raises(BenchmdError, match=r"would be empty.* 20: its codes map to no class"):
        build_georgia(georgia, tmp_path / "out")


@pytest.mark.usefixtures("small_chunks", "in_process")
def test_full_disk_leaves_no_partial_file_and_can_be_resumed(georgia, tmp_path, monkeypatch):
    whole = build_georgia(georgia, tmp_path / "whole")
    write_bytes, calls = Path.write_bytes, []

    def full(path, content):
        calls.append(path)
        if path.name.endswith(".parquet") and len(calls) > 2:
            write_bytes(path, content[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, content)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(BenchmdError, match=r"no space left while writing .*00001\.parquet"):
            build_georgia(georgia, out)
    assert not partial_files(out)
    assert [path.name for path in (out / "shards").iterdir()] == ["test-00000.parquet"]
    assert build_georgia(georgia, out).digest == whole.digest


def test_missing_raw_folder_says_what_is_expected(tmp_path):
    with pytest.raises(BenchmdError, match=r"raw folder .* does not exist\. Expected for georgia:"):
        build_georgia(tmp_path / "none", tmp_path / "out")


def test_raw_folder_of_another_layout_is_refused(synthetic_raw, tmp_path):
    with pytest.raises(BenchmdError, match=r"holds no record of georgia\. Expected for georgia:"):
        build_georgia(synthetic_raw["cpsc"], tmp_path / "out")


def test_incomplete_raw_folder_is_refused_unless_allowed(synthetic_raw, tmp_path):
    with pytest.raises(BenchmdError, match=r"holds 35 records of georgia, .* expects 10,344 .*"):
        build_georgia(synthetic_raw["georgia"], tmp_path / "out", allow_missing=False)
    assert not (tmp_path / "out").exists()


def test_unknown_dataset_and_policy_suggest_the_nearest(georgia, tmp_path):
    with pytest.raises(BenchmdError, match=r"unknown dataset 'gorgia'\. Did you mean 'georgia'"):
        build("gorgia", georgia, tmp_path / "out")
    with pytest.raises(BenchmdError, match=r"policy of georgia: 'cleam'\. Did you mean 'clean'"):
        build_georgia(georgia, tmp_path / "out", policy="cleam")


@pytest.mark.usefixtures("in_process")
def test_released_policy_needs_and_follows_its_table(georgia, tmp_path):
    with pytest.raises(BenchmdError, match="needs the split table"):
        build_georgia(georgia, tmp_path / "out", policy="released")
    splits = tmp_path / "Ga_splits.csv"
    splits.write_text("patient,split,label\nE00001,train,6\nE00002,val,5\nE99999,val,0\n")
    built = build_georgia(georgia, tmp_path / "out", policy="released", split_table=splits)
    rows = table(built).set_index("record_id")
    assert rows["split"].to_dict() == {"E00001": "train", "E00002": "validation"}
    assert rows["target"]["E00001"].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert built.manifest["excluded"] == {"it is not in the released split table": 18}
    assert built.manifest["raw"]["missing"] == 1
    assert built.evaluation_splits == ("validation",)
    notes = verify(built).notes
    assert "validation, normal: 0 records, published 725 (-725, -100.0%)" in notes


@pytest.mark.usefixtures("in_process")
def test_folder_with_another_catalog_is_not_overwritten(georgia, tmp_path):
    first = build_georgia(georgia, tmp_path / "out")
    (georgia / "E00001.hea").unlink()
    with pytest.raises(
        BenchmdError, match="built from other raw files, policy, options or version"
    ):
        build_georgia(georgia, tmp_path / "out")
    assert open_catalog(tmp_path / "out").manifest == first.manifest


def test_verify_accepts_what_was_built_and_notes_departures(built):
    found = verify(built)
    assert found.faults == ()
    assert found.notes[0] == "35 raw records, the card expects 10,344"
    assert "no patient IDs: every record is treated as a separate patient" in found.notes


def first_shard(built: Catalog) -> Path:
    return built.shards("test")[0][0]


def test_verify_finds_a_missing_shard(built):
    first_shard(built).unlink()
    (fault,) = verify(built).faults
    assert fault == f"shards/test-00000.parquet: it is missing. {REMEDY}"


def test_verify_finds_an_altered_shard(built):
    content = bytearray(first_shard(built).read_bytes())
    content[len(content) // 2] ^= 1
    first_shard(built).write_bytes(content)
    (fault,) = verify(built).faults
    assert "its SHA-256 is not the one that was recorded" in fault


def test_verify_finds_a_foreign_shard(built):
    shutil.copy(first_shard(built), built.path / "shards" / "test-00007.parquet")
    (fault,) = verify(built).faults
    assert fault.startswith("shards/test-00007.parquet: not named in manifest.json")


def edited(built: Catalog, **changes) -> Catalog:
    change_manifest(built.path, **changes)
    return open_catalog(built.path)


def manifest_of(built: Catalog) -> dict:
    return json.loads((built.path / "manifest.json").read_text())


@pytest.mark.parametrize("key", ["statistics", "excluded", "splits"])
def test_a_catalog_whose_manifest_was_edited_is_not_opened(built, key):
    write_json(built.path / "manifest.json", manifest_of(built) | {key: {}})
    with pytest.raises(BenchmdError, match="is damaged: its digest is not that of its content"):
        open_catalog(built.path)


def test_a_flipped_bit_in_a_manifest_is_found_at_each_opening(ecg_catalogs, tmp_path):
    folder = shutil.copytree(ecg_catalogs["ptb-xl"].path, tmp_path / "copy")
    whole = (folder / "manifest.json").read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 200):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(place % 8)
        (folder / "manifest.json").write_bytes(flipped)
        if json_content(flipped) == json_content(whole):  # white space
            continue
        with pytest.raises(BenchmdError, match="manifest"):
            open_catalog(folder)


def json_content(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


@pytest.mark.parametrize("key", ["patients", "classes"])
def test_verify_finds_counts_that_are_not_those_of_the_shards(built, key):
    splits = json.loads(json.dumps(built.manifest["splits"]))
    if key == "classes":
        splits["test"]["classes"]["normal"] += 1
    else:
        splits["test"][key] += 1
    (fault,) = verify(edited(built, splits=splits)).faults
    assert fault == (
        "split test: the shards' counts are not those of manifest.json. Remove the folder and "
        "build the catalog again."
    )


def test_verify_finds_patients_in_two_splits(built):
    shard = pq.read_table(first_shard(built)).slice(0, 3)
    values = {name: shard[name] for name in shard.column_names}
    values["split"] = ["train"] * 3
    moved = built.path / "shards" / "train-00000.parquet"
    write_shard(type(shard).from_pydict(values, shard.schema), moved, built.signal)
    positives = np.stack(shard["target"].to_pylist()).sum(axis=0).tolist()
    classes = dict(zip(built.task.classes, positives, strict=True))
    stated = {"records": 3, "units": 3, "patients": 3, "classes": classes}
    entry = {"file": "shards/train-00000.parquet", "split": "train", "rows": 3}
    entry |= {"bytes": moved.stat().st_size, "sha256": sha256(moved)}
    changed = edited(
        built,
        shards=[*built.manifest["shards"], entry],
        splits=built.manifest["splits"] | {"train": stated},
    )
    (fault,) = verify(changed).faults
    assert fault.startswith("test and train share 3 patients. Remove the folder and build")
    assert verify(changed).notes == ()


def test_folder_without_catalog_damaged_and_foreign_ones_are_refused(built, tmp_path):
    with pytest.raises(BenchmdError, match="holds no catalog"):
        open_catalog(tmp_path / "nothing")
    with pytest.raises(BenchmdError, match=r"by version 0 of the card georgia, which is now 1"):
        edited(built, card=built.manifest["card"] | {"version": 0})
    with pytest.raises(BenchmdError, match=rf"has format 99, expected {FORMAT}"):
        edited(built, format=99)
    (built.path / "manifest.json").write_text('{"format": 1, "data')
    with pytest.raises(BenchmdError, match=r"manifest\.json is damaged"):
        open_catalog(built.path)


@pytest.mark.parametrize("text", ["[]", "null", "7", '"text"'])
def test_a_manifest_that_is_no_object_is_damaged(built, text):
    (built.path / "manifest.json").write_text(text)
    with pytest.raises(BenchmdError, match=r"damaged: it is [\w ]+, expected an object. Remove"):
        open_catalog(built.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"digest": "../../x"}, "its digest is not"),
        ({"policy": "../x"}, r"policy is '\.\./x', expected 'clean' or 'released'"),
        ({"file": "../../etc/train-00000.parquet"}, r"shards\[0\]\.file is '../../etc/train-"),
        ({"file": "/shards/train-00000.parquet"}, r"shards\[0\]\.file is '/shards"),
        (
            {"split": "../train"},
            r"its shard shards/test-00000.* is of an odd split, '\.\./t",
        ),
        (
            {"splits": {"../train": {}}},
            r"splits\.\.\./train is '\.\./train', expected",
        ),
    ],
)
def test_a_manifest_whose_names_lead_elsewhere_is_damaged(built, change, message):
    manifest = manifest_of(built)
    target = manifest if set(change) <= set(manifest) else manifest["shards"][0]
    target |= change
    if "digest" in change:
        write_json(built.path / "manifest.json", manifest)
    else:
        write_manifest(built.path, manifest)
    with pytest.raises(BenchmdError, match=f"is damaged: {message}"):
        open_catalog(built.path)


@pytest.mark.parametrize("key", ["file", "split", "rows", "bytes", "sha256", None])
def test_a_manifest_that_lacks_something_of_a_shard_is_damaged(built, key):
    shard, *others = manifest_of(built)["shards"]
    changed = {k: v for k, v in shard.items() if k != key} if key else 1
    said = rf"shards\[0\] lacks {key}" if key else r"shards\[0\] is 1, expected an object"
    with pytest.raises(BenchmdError, match=f"is damaged: {said}"):
        edited(built, shards=[changed, *others])


def test_a_shard_of_more_bytes_than_any_is_damaged(built):
    shard, *others = manifest_of(built)["shards"]
    with pytest.raises(BenchmdError, match=r"is damaged: shards\[0\]\.bytes is 1000"):
        edited(built, shards=[shard | {"bytes": 10**400}, *others])


@pytest.mark.parametrize("key", ["raw", "card", "plan", "splits", "shards"])
def test_a_manifest_that_lacks_something_is_damaged(built, key):
    for changes in ({key: None}, {key: 1.5}):
        with pytest.raises(BenchmdError, match=f"is damaged: {key} is .*, expected "):
            edited(built, **changes)


def test_verify_finds_a_shard_of_another_schema(built):
    path = first_shard(built)
    pq.write_table(pq.read_table(path).drop("target"), path)
    shards = json.loads(json.dumps(built.manifest["shards"]))
    shards[0] |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
    found = verify(edited(built, shards=shards))
    assert found.faults == (
        "shards/test-00000.parquet: its columns are not those of the dataset. Remove it and build "
        "the catalog again.",
    )
    assert found.notes == ()


def test_verify_names_missing_files(built):
    raw = built.manifest["raw"] | {"missing": 3}
    assert "3 files named in its tables but missing" in verify(edited(built, raw=raw)).notes


def test_split_without_records_is_named(ecg_catalogs):
    ecg_catalogs["ptb-xl"].require_split("train")
    with pytest.raises(BenchmdError, match=r"has no record in split 'train'; it holds test \(33\)"):
        ecg_catalogs["georgia"].require_split("train")
    assert ecg_catalogs["ptb-xl"].evaluation_splits == ("validation", "test")


def test_a_finished_catalog_that_lost_a_shard_is_built_anew(built, in_process, synthetic_raw):
    before = built.digest
    (shard,) = (built.path / built.manifest["shards"][0]["file"],)
    shard.unlink()
    again = build("georgia", synthetic_raw["georgia"], built.path, allow_missing=True)
    assert again.digest == before
    assert not verify(again).faults


def test_an_error_that_no_reader_foresees_quarantines_its_file(
    in_process, tmp_path, synthetic_raw, monkeypatch
):
    dataset = DATASETS["georgia"]

    def read(root, item, card):
        if item.record_id == "E00003":
            raise ZeroDivisionError("rate 0")
        return dataset.read(root, item, card)

    odd = dataclasses.replace(dataset, read=read)
    monkeypatch.setitem(DATASETS, "georgia", odd)
    built = build_georgia(synthetic_raw["georgia"], tmp_path / "out", max_quarantined=0.1)
    (entry,) = built.manifest["quarantined"]
    assert entry["reason"] == "ZeroDivisionError in _read"


def test_raw_folders_behind_links_are_read(in_process, tmp_path, synthetic_raw):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "linked").symlink_to(synthetic_raw["georgia"], target_is_directory=True)
    linked = build_georgia(tmp_path / "raw", tmp_path / "a")
    assert linked.rows("test") == build_georgia(synthetic_raw["georgia"], tmp_path / "b").rows(
        "test"
    )


def test_shards_that_another_node_wrote_elsewhere_are_missed(
    in_process, tmp_path, synthetic_raw, monkeypatch
):
    part = chunks.build_chunk

    def elsewhere(chunk):
        result = part(chunk)
        chunk.shard.unlink()
        return result

    monkeypatch.setattr(chunks, "build_chunk", elsewhere)
    with pytest.raises(BenchmdError, match="storage that all nodes of the cluster share"):
        build_georgia(synthetic_raw["georgia"], tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_worker_that_dies_is_told_with_the_records_it_had(georgia, tmp_path, monkeypatch):
    class Dying:
        """A Ray Data job whose second task is killed."""

        context = SimpleNamespace()

        def from_items(self, rows, **_):
            self.rows = rows
            return self

        def map(self, function, *, fn_args, **_):
            self.function = lambda row: function(row, *fn_args)
            return self

        def iter_rows(self):
            yield self.function(self.rows[0])
            raise RuntimeError("the worker died\nand much more")

    monkeypatch.setattr(building, "CHUNK_BYTES", 10 * 120_000)
    with monkeypatch.context() as patch:
        patch.setattr(building, "ray_data", Dying)
        patch.setattr(building, "connected", lambda *_, **__: contextlib.nullcontext())
        message = (
            r"at the records E00011 to E00020 .*RuntimeError: the worker died\)\. Run the same"
        )
        with pytest.raises(BenchmdError, match=message):
            build_georgia(georgia, tmp_path / "out")
    assert len(list((tmp_path / "out" / "parts").iterdir())) == 1
    build_in_process(monkeypatch)
    assert build_georgia(georgia, tmp_path / "out").rows("test") > 0
