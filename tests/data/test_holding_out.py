"""Conditions that are kept out of all training, against the owner's table."""

from __future__ import annotations

import ast
import json
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.data.hdf5 import export_hdf5, import_hdf5
from benchmd_ray.data.holding_out import OTHERS, held_out
from benchmd_ray.data.raw import Discovery, RawItem
from benchmd_ray.data.records import HELD_OUT, hashed_patient
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import digest, resource_folder, sha256
from benchmd_ray.report.catalogs.describe_catalog import describe_catalog
from benchmd_ray.settings.definition import Settings

AF, HYPERTROPHY = "atrial fibrillation/flutter", "hypertrophy"
CODES = pd.read_csv(resource_folder("data_catalog") / "tables" / "ptbxl_scp.csv", index_col="code")


@pytest.fixture(scope="module")
def raw(synthetic_raw, tmp_path_factory):
    """The synthetic PTB-XL with noise in some of its records."""
    root = tmp_path_factory.mktemp("noisy") / "ptb-xl"
    shutil.copytree(synthetic_raw["ptb-xl"], root)
    table = pd.read_csv(root / "ptbxl_database.csv")
    table["static_noise"] = ["I-V1" if row % 17 == 3 else np.nan for row in range(len(table))]
    table["burst_noise"] = [" " if row % 17 == 4 else np.nan for row in range(len(table))]
    table.to_csv(root / "ptbxl_database.csv", index=False)
    return root


@pytest.fixture(scope="module")
def names():
    return (AF, HYPERTROPHY, "static_noise")


@pytest.fixture(scope="module")
def catalog(raw, names, build_once, tmp_path_factory):
    return build_once("ptb-xl", raw, tmp_path_factory.mktemp("held") / "ptb-xl", hold_out=names)


@pytest.fixture(scope="module")
def expected(raw):
    """Of each record its patient and its held-out conditions, read independently."""
    table = pd.read_csv(raw / "ptbxl_database.csv")
    found = {}
    for row in table.itertuples():
        stated = {CODES.loc[code, "class"] for code in ast.literal_eval(row.scp_codes)}
        own = stated & {AF, HYPERTROPHY}
        own |= {"static_noise"} if isinstance(row.static_noise, str) else set()
        patient = hashed_patient("ptb-xl", str(int(row.patient_id)))
        found[f"HR{row.ecg_id:05d}"] = (patient, own)
    return found


def rows_of(catalog):
    splits = catalog.manifest["splits"]
    columns = ["record_id", "group_id", "split", "target", "held_out"]
    tables = [t.to_pandas() for split in splits for t in catalog.tables(split, columns)]
    return pd.concat(tables, ignore_index=True)


def test_records_with_a_condition_and_they_alone_are_held_out(catalog, expected):
    rows = rows_of(catalog)
    held = rows[rows["split"] == HELD_OUT].set_index("record_id")["held_out"]
    wanted = {name: "; ".join(sorted(own)) for name, (_, own) in expected.items() if own}
    assert len(wanted) > 10
    assert held.to_dict() == wanted
    assert rows.loc[rows["split"] != HELD_OUT, "held_out"].isna().all()


def test_patients_of_held_out_records_are_in_no_other_split(catalog, expected):
    rows = rows_of(catalog)
    patients = {patient for patient, own in expected.values() if own}
    assert not patients & set(rows.loc[rows["split"] != HELD_OUT, "group_id"])
    others = sum(patient in patients and not own for patient, own in expected.values())
    assert catalog.manifest["excluded"].get(OTHERS, 0) == others
    assert len(rows) + others == len(expected)


def test_held_out_classes_are_not_classes_of_the_task(catalog):
    assert AF not in catalog.task.classes
    assert HYPERTROPHY not in catalog.task.classes
    assert len(catalog.task.classes) == 5
    rows = rows_of(catalog)
    known = np.stack(rows.loc[rows["split"] != HELD_OUT, "target"])
    assert (known.sum(axis=1) == 1).all()
    assert (np.stack(rows.loc[rows["split"] == HELD_OUT, "target"]) == -1).all()
    assert not verify(catalog).faults
    assert catalog.options == {"hold-out": f"{AF}, {HYPERTROPHY}, static_noise"}


def test_statistics_are_of_the_training_split_alone(catalog, expected):
    values = []
    for table in catalog.tables("train"):
        for signal, scale in zip(
            table["signal"].to_pylist(), table["scale"].to_pylist(), strict=True
        ):
            values.append(np.frombuffer(signal, np.int16).reshape(12, -1) * float(scale))
    mean = np.concatenate(values, axis=1).mean(axis=1)
    np.testing.assert_allclose(catalog.statistics["mean"], mean, rtol=1e-5, atol=1e-6)


def test_another_choice_is_another_catalog(raw, catalog, build_once, tmp_path):
    with pytest.raises(BenchmdError, match="built from other raw files, policy, options"):
        build_once("ptb-xl", raw, catalog.path, hold_out=(AF,))
    other = build_once("ptb-xl", raw, tmp_path / "other", hold_out=(AF,))
    assert other.digest != catalog.digest
    again = build_once("ptb-xl", raw, catalog.path, hold_out=("static_noise", HYPERTROPHY, AF, AF))
    assert again.digest == catalog.digest  # neither order nor repetition counts


def test_training_reads_nothing_that_is_held_out(catalog, tmp_path):
    """With the shards of held-out records gone, all that is trained and validated on is read."""
    copied = tmp_path / "copied"
    shutil.copytree(catalog.path, copied)
    for shard in copied.glob(f"shards/{HELD_OUT}-*"):
        shard.unlink()
    opened = open_catalog(copied)
    for split in ("train", *opened.evaluation_splits):
        feed = whole_split_feed(opened, split, Settings(), Worker(), opened.statistics)
        assert sum(len(batch.rows) for batch in feed.ordered(64)) == catalog.rows(split)
    with pytest.raises(BenchmdError, match="missing"):
        list(opened.tables(HELD_OUT))


def test_an_exported_catalog_keeps_what_is_held_out(catalog, tmp_path):
    export_hdf5(catalog, tmp_path / "held.h5")
    assert import_hdf5(tmp_path / "held.h5", tmp_path / "again").digest == catalog.digest


def test_the_conditions_are_counted(catalog, expected):
    counts = catalog.manifest["splits"][HELD_OUT]["conditions"]
    own = [name for _, names in expected.values() for name in names]
    assert counts == {name: own.count(name) for name in sorted(set(own))}
    said = " ".join(" ".join(describe_catalog(catalog)).split())
    assert f"held out of all training: {catalog.rows(HELD_OUT)} records" in said
    assert f"static_noise {counts['static_noise']}" in said


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (("hypertrophie",), "unknown condition of ptb-xl 'hypertrophie'. Did you mean 'hypertro"),
        (
            tuple(c for c in dataset_card("ptb-xl").task.classes if c != "normal"),
            "has 1 of its 7 classes left: hold out fewer",
        ),
        (dataset_card("ptb-xl").task.classes, "no record of ptb-xl is left to train on"),
    ],
)
def test_what_cannot_be_held_out_is_refused(raw, build_once, tmp_path, chosen, message):
    with pytest.raises(BenchmdError) as refused:
        build_once("ptb-xl", raw, tmp_path / "x", hold_out=chosen)
    assert message in str(refused.value)
    assert not (tmp_path / "x" / "manifest.json").exists()


def test_a_finding_that_is_trained_on_does_not_keep_a_held_out_one_in():
    """Multi-label: with a held-out and a trained finding a record is held out (decision O5)."""
    card = dataset_card("nih-cxr-ap")
    labels = dict.fromkeys(card.classes, 0)
    both = RawItem("a", "a", "p", "train", labels=labels | {"edema": 1, "cardiomegaly": 1})
    other = RawItem("b", "b", "q", "train", labels=labels | {"edema": 1})
    found, held = held_out(Discovery("sample", [both, other]), card, ["cardiomegaly"])
    assert [item.split for item in found.items] == [HELD_OUT, "train"]
    assert found.items[0].target(held) == [-1] * 4
    assert found.items[1].target(held) == [0, 0, 1, 0]
    assert held.class_mapping["Cardiomegaly"] == ""


def test_a_held_out_row_elsewhere_is_a_fault(catalog, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(catalog.path, copied)
    path = next(copied.glob("shards/train-*"))
    table = pq.read_table(path)
    column = table["held_out"].to_pylist()
    place = table.schema.get_field_index("held_out")
    changed = table.set_column(place, table.schema.field(place), pa.array(["x", *column[1:]]))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    manifest = json.loads((copied / "manifest.json").read_text())
    for shard in manifest["shards"]:
        if shard["file"].endswith(path.name):
            shard |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
    del manifest["digest"]
    (copied / "manifest.json").write_text(json.dumps(manifest | {"digest": digest(manifest)}))
    assert "held out in the split train" in " ".join(verify(open_catalog(copied)).faults)
