"""Conditions of single datasets: views and states, of which records leave, and others of patients.

What is held out is read from the raw tables independently of the datasets' modules.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter

import edfio
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from benchmd_ray.benchmarks.ood.sets import inside, out_sets
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.datasets.eeg import OF_STATE
from benchmd_ray.data.discovery import chosen, locate
from benchmd_ray.data.holding_out import BY_RECORD, OTHERS, TRAINS
from benchmd_ray.data.records import HELD_OUT, hashed_patient
from benchmd_ray.data.verify import cautions, verify
from benchmd_ray.demo.eeg import write_eeg
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import digest, sha256

STAGES = {"0": "wake", "1": "n1", "2": "n2", "3": "n3", "4": "n3", "5": "rem"}
STATES = ("n3", "movement", "unscored", "flat")


def rows_of(catalog):
    columns = ["record_id", "group_id", "unit_id", "split", "target", "held_out"]
    splits = catalog.manifest["splits"]
    tables = [t.to_pandas() for split in splits for t in catalog.tables(split, columns)]
    return pd.concat(tables, ignore_index=True)


def require_apart(catalog):
    """What is true whatever is held out: nobody who trains has a held-out record."""
    rows = rows_of(catalog)
    held, trained = rows[rows["split"] == HELD_OUT], rows[rows["split"] == "train"]
    assert len(held)
    assert not {*held["group_id"]} & {*trained["group_id"]}
    assert rows["record_id"].is_unique
    assert (np.stack(held["target"]) == -1).all()
    assert not set(catalog.held_out) & set(catalog.task.classes)
    assert not verify(catalog).faults
    return rows


def held_names(rows):
    return rows[rows["split"] == HELD_OUT].set_index("record_id")["held_out"].to_dict()


@pytest.fixture(scope="module")
def every_raw(synthetic_cxr, synthetic_eeg, synthetic_mammo, synthetic_photos, synthetic_ct):
    return synthetic_cxr | synthetic_eeg | synthetic_mammo | synthetic_photos | synthetic_ct


@pytest.mark.parametrize(
    "name",
    [
        *("mimic-cxr", "chexpert", "vindr-mammo", "bcn20000", "messidor-2", "shhs", "isruc"),
        "lidc-idri",
    ],
)
def test_where_nothing_is_held_out_items_state_no_conditions(every_raw, name):
    """Items decide digests: catalogs of before stay what they are."""
    card = dataset_card(name)
    found = DATASETS[name].discover(every_raw[name], card, chosen(card, "clean", None, {}))
    assert found.items
    assert {item.conditions for item in found.items} == {()}
    assert not found.only_held_out
    assert not any("states" in item.details for item in found.items)
    assert {*found.states.values()} <= BY_RECORD.get(card.modality.name, set())


# Sleep stages


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """Nights of which the 18th validates and has a flat epoch, with indices of apnoea."""
    root = write_eeg(
        tmp_path_factory.mktemp("nights"), source_records=18, target_records=4, epochs=24
    )
    path = root["shhs"] / "datasets" / "shhs1-dataset-0.21.0.csv"
    table = pd.read_csv(path)
    indices = ["45.2", "12", "29.99", "", "30", "", "", "7", "", "31.5"]
    table["ahi_a0h3"] = (indices + [""] * len(table))[: len(table)]
    table.to_csv(path, index=False)
    return root


@pytest.fixture(scope="module")
def epochs(nights):
    """Of each staged epoch with a signal: its patient, its code, and whether it is flat."""
    found = {}
    for path in sorted(nights["shhs"].rglob("*-profusion.xml")):
        person = re.search(r"shhs1-(\d+)", path.name)[1]
        codes = re.findall(r"<SleepStage>(\d)</SleepStage>", path.read_text())
        edf = edfio.read_edf(next(nights["shhs"].rglob(f"shhs1-{person}.edf")))
        channels = [s.data for s in edf.signals if s.label.upper().startswith("EEG")]
        assert len(channels) == 2
        patient = hashed_patient("shhs", person)
        for number, code in enumerate(codes[: len(channels[0]) // 3750]):
            parts = [values[number * 3750 :][:3750] for values in channels]
            flat = all(np.ptp(part) == 0 for part in parts)
            found[f"{patient}-{number:04d}"] = (patient, code, flat)
    return found


@pytest.fixture(scope="module")
def ordinary(nights, build_once, tmp_path_factory):
    return build_once("shhs", nights["shhs"], tmp_path_factory.mktemp("ordinary") / "shhs")


@pytest.fixture(scope="module")
def of_states(nights, build_once, tmp_path_factory):
    out = tmp_path_factory.mktemp("states") / "shhs"
    return build_once("shhs", nights["shhs"], out, hold_out=STATES)


def state_of(code, flat):
    if code in "69":
        return {"6": "movement", "9": "unscored"}[code]
    return "flat" if flat else STAGES[code]


def test_epochs_of_a_held_out_state_are_those_of_patients_who_do_not_train(
    of_states, ordinary, epochs
):
    rows = require_apart(of_states)
    trained = {*(r := rows_of(ordinary)).loc[r["split"] == "train", "group_id"]}
    wanted = {
        name: state
        for name, (patient, code, flat) in epochs.items()
        if (state := state_of(code, flat)) in STATES and patient not in trained
    }
    assert {*wanted.values()} == {*STATES}
    assert held_names(rows) == wanted
    kept = {n for n, (_, code, flat) in epochs.items() if state_of(code, flat) not in STATES}
    assert {*rows.loc[rows["split"] != HELD_OUT, "record_id"]} == kept
    assert of_states.task.classes == ("wake", "n1", "n2", "rem")


def test_states_of_nights_that_train_are_excluded_and_counted(of_states, ordinary, epochs):
    trained = {*(r := rows_of(ordinary)).loc[r["split"] == "train", "group_id"]}
    own = [state_of(code, flat) for patient, code, flat in epochs.values() if patient in trained]
    excluded, before = of_states.manifest["excluded"], ordinary.manifest["excluded"]
    assert excluded[OF_STATE] == own.count("n3") > 0
    reasons = {"movement": "an epoch of movement", "unscored": "an epoch that is not scored"}
    reasons["flat"] = "an epoch whose channels are both constant"
    for state, reason in reasons.items():
        assert excluded.get(reason, 0) == own.count(state) < before[reason]
    assert own.count("unscored") > 0 < own.count("flat")
    assert excluded["a stage without signal"] == before["a stage without signal"]
    assert of_states.manifest["raw"] == ordinary.manifest["raw"]


def test_statistics_are_of_epochs_that_train(of_states, epochs):
    sums, count = np.zeros(2), 0
    for table in of_states.tables("train"):
        names = table["record_id"].to_pylist()
        assert not {state_of(*epochs[name][1:]) for name in names} & {*STATES}
        for signal, scale in zip(
            table["signal"].to_pylist(), table["scale"].to_pylist(), strict=True
        ):
            sums += np.frombuffer(signal, np.int16).reshape(2, -1).sum(axis=1) * float(scale)
            count += 3750
    np.testing.assert_allclose(of_states.statistics["mean"], sums / count, rtol=1e-4, atol=1e-6)


def test_severe_apnoea_is_of_patients_and_joins_states(nights, build_once, tmp_path, epochs):
    catalog = build_once(
        "shhs", nights["shhs"], tmp_path / "x", hold_out=("severe apnoea", "n3", "flat")
    )
    rows = require_apart(catalog)
    table = pd.read_csv(nights["shhs"] / "datasets" / "shhs1-dataset-0.21.0.csv")
    severe = {hashed_patient("shhs", str(n)) for n in table.loc[table["ahi_a0h3"] >= 30, "nsrrid"]}
    assert len(severe) == 3
    assert {*rows.loc[rows["group_id"].isin(severe), "split"]} == {HELD_OUT}
    held = held_names(rows)
    own = [name for name, (patient, *_) in epochs.items() if patient in severe]
    for name in own:
        state = state_of(*epochs[name][1:])
        more = f"; {state}" if state in ("n3", "flat") else ""
        usual = state not in ("movement", "unscored")
        assert held.get(name) == (f"severe apnoea{more}" if usual else None)
    assert {held[name] for name in held if name not in own} == {"n3", "flat"}


def test_without_its_column_nobody_has_severe_apnoea(synthetic_eeg, build_once, tmp_path):
    with pytest.raises(BenchmdError, match=r"unknown condition of shhs 'severe apnoea'.*n3, rem"):
        build_once("shhs", synthetic_eeg["shhs"], tmp_path / "x", hold_out=("severe apnoea",))


def test_a_target_keeps_its_other_stages(nights, build_once, tmp_path):
    before = rows_of(build_once("isruc", nights["isruc"], tmp_path / "before"))
    catalog = build_once("isruc", nights["isruc"], tmp_path / "x", hold_out=("n3",))
    rows = require_apart(catalog)
    n3 = np.stack(before["target"])[:, 3] == 1
    assert {*held_names(rows)} == {*before.loc[n3, "record_id"]}
    assert {*rows.loc[rows["split"] == "test", "record_id"]} == {*before.loc[~n3, "record_id"]}
    with pytest.raises(BenchmdError, match=r"unknown condition of isruc 'movement'.*flat, n1"):
        build_once("isruc", nights["isruc"], tmp_path / "y", hold_out=("movement",))


def test_a_catalog_says_of_which_conditions_it_holds_out_nothing(
    nights, epochs, ordinary, build_once, tmp_path
):
    """Without the night that validates and has a flat epoch."""
    raw, rows = tmp_path / "shhs", rows_of(ordinary)
    shutil.copytree(nights["shhs"], raw)
    trained = {*rows.loc[rows["split"] == "train", "group_id"]}
    flat = {patient for patient, _, constant in epochs.values() if constant} - trained
    for path in [*raw.rglob("*.edf"), *raw.rglob("*.xml")]:
        if hashed_patient("shhs", path.name.split("-")[1].removesuffix(".edf")) in flat:
            path.unlink()
    catalog = build_once("shhs", raw, tmp_path / "x", hold_out=("n3", "flat"))
    assert "flat" not in catalog.manifest["splits"][HELD_OUT]["conditions"]
    assert sum("no record with flat is held out" in text for text in cautions(catalog)) == 1
    assert not any("no record with n3" in text for text in cautions(catalog))
    names = {one.name for one in out_sets(catalog, inside(catalog), [])}
    assert names & {"n3", "flat"} == {"n3"}


def tampered(catalog, path, column, change):
    """A copy whose first held-out record has another value in a column, described as it is."""
    shutil.copytree(catalog.path, path)
    shard = next(path.glob(f"shards/{HELD_OUT}-*"))
    table = pq.read_table(shard)
    place, values = table.schema.get_field_index(column), table[column].to_pylist()
    values[0] = change(values[0])
    changed = table.set_column(place, table.schema.field(place), pa.array(values))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), shard)
    manifest = json.loads((path / "manifest.json").read_text())
    for stated in manifest["shards"]:
        if stated["file"].endswith(shard.name):
            stated |= {"bytes": shard.stat().st_size, "sha256": sha256(shard)}
    del manifest["digest"]
    (path / "manifest.json").write_text(json.dumps(manifest | {"digest": digest(manifest)}))
    return open_catalog(path)


def test_patients_are_shared_by_states_and_never_with_training(of_states, tmp_path):
    rows = rows_of(of_states)
    held, validated = (
        {*rows.loc[rows["split"] == split, "group_id"]} for split in (HELD_OUT, "validation")
    )
    assert held & validated
    trains = rows.loc[rows["split"] == "train", "group_id"].iloc[0]
    moved = tampered(of_states, tmp_path / "a", "group_id", lambda _: trains)
    assert "heldout and train share 1 patient" in " ".join(verify(moved).faults)
    other = tampered(of_states, tmp_path / "b", "held_out", lambda _: "severe apnoea")
    assert "heldout and validation share 1 patient" in " ".join(verify(other).faults)


# Views and findings


@pytest.fixture(scope="module")
def mimic(synthetic_cxr, tmp_path_factory):
    """MIMIC-CXR with a fracture in some studies."""
    root = tmp_path_factory.mktemp("fractures") / "mimic-cxr"
    shutil.copytree(synthetic_cxr["mimic-cxr"], root)
    path = root / "mimic-cxr-2.0.0-chexpert.csv.gz"
    table = pd.read_csv(path, dtype=str)
    table["Fracture"] = ["1.0" if row % 9 == 4 else "" for row in range(len(table))]
    table.to_csv(path, index=False)
    return root


def test_laterals_leave_by_image_and_findings_by_patient(mimic, build_once, tmp_path):
    before = rows_of(build_once("mimic-cxr", mimic, tmp_path / "before"))
    catalog = build_once("mimic-cxr", mimic, tmp_path / "x", hold_out=("Fracture", "lateral"))
    rows = require_apart(catalog)
    names = ["split", "metadata", "chexpert"]
    split, views, labels = (
        pd.read_csv(mimic / f"mimic-cxr-2.0.0-{name}.csv.gz", dtype=str) for name in names
    )
    broken = {*labels.loc[labels["Fracture"] == "1.0", "study_id"]}
    stated = split.merge(views[["dicom_id", "ViewPosition"]], on="dicom_id").set_index("dicom_id")
    stated = stated.loc[before["record_id"]]
    lateral, fracture = stated["ViewPosition"] == "LATERAL", stated["study_id"].isin(broken)
    leaves = stated["subject_id"].isin(stated.loc[fracture, "subject_id"])
    trains = (stated["split"] == "train") & ~leaves
    wanted = {
        name: "; ".join(["Fracture"] * int(fracture[name]) + ["lateral"] * int(lateral[name]))
        for name in stated.index
        if fracture[name] or (lateral[name] and not trains[name])
    }
    assert {"Fracture", "lateral", "Fracture; lateral"} == {*wanted.values()}
    assert held_names(rows) == wanted
    kept = {*rows.loc[rows["split"] != HELD_OUT, "record_id"]}
    assert kept == {*stated.index[~lateral & ~leaves]}
    excluded = catalog.manifest["excluded"]
    assert excluded[TRAINS] == (lateral & trains).sum() > 0
    assert excluded[OTHERS] == (leaves & ~fracture & ~lateral).sum()
    assert catalog.task.classes == dataset_card("mimic-cxr").task.classes


def test_held_out_views_calibrate_as_their_patients_do_in_distribution(mimic, build_once, tmp_path):
    """A patient calibrates or is scored, never both."""
    catalog = build_once("mimic-cxr", mimic, tmp_path / "x", hold_out=("lateral",))
    own = inside(catalog)
    (lateral,) = (one for one in out_sets(catalog, own, []) if one.name == "lateral")
    assert lateral.use_case == "faulty"
    first, second = (
        {patient for records in part for patient in records.patients}
        for part in (own.calibrating, own.scored)
    )
    calibrating, scored = (
        {patient for records in part for patient in records.patients}
        for part in (lateral.calibrating, lateral.scored)
    )
    assert first & calibrating
    assert second & scored
    assert not first & scored
    assert not second & calibrating


def test_what_trains_does_not_depend_on_what_is_held_out(mimic, build_once, tmp_path):
    """Other pixels in all images that do not train change neither training nor statistics."""
    first = build_once("mimic-cxr", mimic, tmp_path / "first", hold_out=("lateral",))
    rows, raw = rows_of(first), tmp_path / "mimic-cxr"
    before = rows_of(build_once("mimic-cxr", mimic, tmp_path / "before"))
    shutil.copytree(mimic, raw)
    kept = {*rows.loc[rows["split"] != HELD_OUT, "record_id"]}
    others = [name for name in before["record_id"] if name not in kept]
    assert len(others) > len(rows) - len(kept) > 0
    noise = np.random.default_rng(5)
    for path in locate("mimic-cxr", raw, others).values():
        Image.fromarray(noise.integers(200, 255, (80, 60), np.uint8)).save(path)
    second = build_once("mimic-cxr", raw, tmp_path / "second", hold_out=("lateral",))
    assert second.statistics == first.statistics

    def shards(catalog):
        return {s["file"]: s["sha256"] for s in catalog.manifest["shards"]}

    differing = {file for file in shards(first) if shards(first)[file] != shards(second)[file]}
    assert {file.split("/")[1].split("-")[0] for file in differing} == {HELD_OUT}


def test_laterals_of_a_target_are_moved(synthetic_cxr, build_once, tmp_path):
    raw = synthetic_cxr["chexpert"]
    before = rows_of(build_once("chexpert", raw, tmp_path / "before"))
    rows = require_apart(build_once("chexpert", raw, tmp_path / "x", hold_out=("lateral",)))
    names = {*before["record_id"]}
    lateral = {name for name in names if name.endswith("lateral")}
    assert 0 < len(lateral) < len(names)
    assert held_names(rows) == dict.fromkeys(lateral, "lateral")
    assert {*rows.loc[rows["split"] == "test", "record_id"]} == names - lateral
    every = (*dataset_card("chexpert").task.classes, "No Finding")
    with pytest.raises(BenchmdError, match="no record of chexpert is left: hold out fewer"):
        build_once("chexpert", raw, tmp_path / "y", hold_out=every)


@pytest.fixture(scope="module")
def mammograms(synthetic_mammo, tmp_path_factory):
    """VinDr-Mammo with its table of findings, one row for each box."""
    root = tmp_path_factory.mktemp("findings") / "vindr-mammo"
    shutil.copytree(synthetic_mammo["vindr-mammo"], root)
    breasts = pd.read_csv(root / "breast-level_annotations.csv", dtype=str)
    with (root / "finding_annotations.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["study_id", "image_id", "finding_categories", "finding_birads"])
        for number, row in enumerate(breasts.itertuples()):
            writer.writerow([row.study_id, row.image_id, "['No Finding']", ""])
            if number % 11 == 2:
                named = "['Architectural Distortion', 'Mass']"
                writer.writerow([row.study_id, row.image_id, named, "BI-RADS 4"])
    return root


def test_a_view_of_the_breast_and_a_finding(mammograms, build_once, tmp_path):
    names = ("MLO", "Architectural Distortion")
    rows = require_apart(build_once("vindr-mammo", mammograms, tmp_path / "x", hold_out=names))
    breasts = pd.read_csv(mammograms / "breast-level_annotations.csv").set_index("image_id")
    breasts = breasts[breasts["breast_birads"].isin(dataset_card("vindr-mammo").task.classes)]
    findings = pd.read_csv(mammograms / "finding_annotations.csv")
    odd = findings["finding_categories"].str.contains("Architectural")
    distorted = breasts.index.isin(findings.loc[odd, "image_id"])
    mlo = breasts["view_position"] == "MLO"
    leaves = breasts["study_id"].isin(breasts.loc[distorted, "study_id"])
    trains = (breasts["split"] == "training") & ~leaves
    wanted = {*breasts.index[distorted | (mlo & ~trains)]}
    assert {*held_names(rows)} == wanted
    assert {*Counter(held_names(rows).values())} >= {"MLO", "Architectural Distortion"}
    assert {*rows.loc[rows["split"] != HELD_OUT, "record_id"]} == {*breasts.index[~mlo & ~leaves]}
    assert {*rows["split"]} == {"train", "validation", HELD_OUT}
    with pytest.raises(BenchmdError, match="unknown condition of vindr-mammo 'No Finding'"):
        build_once("vindr-mammo", mammograms, tmp_path / "y", hold_out=("No Finding",))


def test_without_the_table_of_findings_views_are_known(synthetic_mammo, build_once, tmp_path):
    raw = synthetic_mammo["vindr-mammo"]
    with pytest.raises(BenchmdError, match="BI-RADS 5, CC, MLO"):
        build_once("vindr-mammo", raw, tmp_path / "x", hold_out=("Architectural Distortion",))


# Photographs


def test_parts_of_a_class_are_held_out(synthetic_photos, build_once, tmp_path):
    raw = synthetic_photos["bcn20000"]
    catalog = build_once("bcn20000", raw, tmp_path / "x", hold_out=("VASC", "SCC"))
    rows = require_apart(catalog)
    table = pd.read_csv(raw / "ISIC_2019_Training_GroundTruth.csv").set_index("image")
    there = {*rows_of(build_once("bcn20000", raw, tmp_path / "before"))["record_id"]}
    wanted = {
        name: "VASC" if row.VASC else "SCC"
        for name, row in table.iterrows()
        if name in there and (row.VASC or row.SCC)
    }
    assert {*wanted.values()} == {"VASC", "SCC"}
    assert held_names(rows) == wanted
    assert catalog.task.classes == dataset_card("bcn20000").task.classes
    assert catalog.manifest["splits"]["train"]["classes"]["other"] > 0
    with pytest.raises(BenchmdError, match="unknown condition of bcn20000 'NV'"):
        build_once("bcn20000", raw, tmp_path / "y", hold_out=("NV",))  # all of its class


def test_ungradable_photographs_are_there_where_they_are_held_out(
    synthetic_photos, build_once, tmp_path
):
    raw = synthetic_photos["messidor-2"]
    before = build_once("messidor-2", raw, tmp_path / "before")
    catalog = build_once("messidor-2", raw, tmp_path / "x", hold_out=("ungradable",))
    rows, ordinary = require_apart(catalog), rows_of(before)
    grades = pd.read_csv(raw / "messidor_data.csv", dtype=str)
    there = {path.stem.lower() for path in (raw / "IMAGES").iterdir()}
    names = {name.rpartition(".")[0] for name in grades.loc[grades["adjudicated_gradable"] == "0"]
             ["image_id"]}  # fmt: skip
    assert len(names) == before.manifest["excluded"]["it is not gradable"] > 0
    assert held_names(rows) == {n: "ungradable" for n in names if n.lower() in there}
    assert not names & {*ordinary["record_id"]}
    patients = {*rows.loc[rows["split"] == HELD_OUT, "group_id"]}
    other_eyes = {*ordinary.loc[ordinary["group_id"].isin(patients), "record_id"]}
    assert catalog.manifest["excluded"][OTHERS] == len(other_eyes) > 0
    kept = {*rows.loc[rows["split"] != HELD_OUT, "record_id"]}
    assert kept == {*ordinary["record_id"]} - other_eyes
    assert catalog.manifest["raw"] == before.manifest["raw"]


def test_ungradable_photographs_are_excluded_where_another_condition_is_held_out(
    synthetic_photos, build_once, tmp_path
):
    raw = synthetic_photos["messidor-2"]
    before = build_once("messidor-2", raw, tmp_path / "before")
    catalog = build_once("messidor-2", raw, tmp_path / "x", hold_out=("ICDR 4",))
    assert {*held_names(require_apart(catalog)).values()} == {"ICDR 4"}
    count = "it is not gradable"
    assert catalog.manifest["excluded"][count] == before.manifest["excluded"][count] > 0
    with pytest.raises(BenchmdError, match="Did you mean 'ungradable'"):
        build_once("messidor-2", raw, tmp_path / "y", hold_out=("ungradeable",))


# Windows of scans


@pytest.mark.slow
def test_scans_with_a_window_of_a_class_leave_with_their_patients(
    synthetic_ct, ct_catalogs, build_once, tmp_path
):
    before = rows_of(ct_catalogs["lidc-idri"])
    catalog = build_once(
        "lidc-idri", synthetic_ct["lidc-idri"], tmp_path / "x", hold_out=("large nodule",)
    )
    rows = require_apart(catalog)
    large = np.stack(before["target"])[:, 1] == 1
    scans, patients = {*before.loc[large, "unit_id"]}, {*before.loc[large, "group_id"]}
    assert 0 < large.sum() < before["unit_id"].isin(scans).sum()  # windows without it leave, too
    assert {*rows.loc[rows["split"] == HELD_OUT, "record_id"]} == {
        *before.loc[before["unit_id"].isin(scans), "record_id"]
    }
    assert {*held_names(rows).values()} == {"large nodule"}
    assert catalog.task.classes == ("small nodule",)
    kept = rows[rows["split"] != HELD_OUT].set_index("record_id")
    stays = before[~before["group_id"].isin(patients)].set_index("record_id")
    assert {*kept.index} == {*stays.index}
    for name in stays.index:
        assert kept.loc[name, "target"][0] == stays.loc[name, "target"][0]
        assert kept.loc[name, "split"] == stays.loc[name, "split"]
    others = before.loc[before["group_id"].isin(patients) & ~before["unit_id"].isin(scans)]
    assert catalog.manifest["excluded"][OTHERS] == others["unit_id"].nunique() > 0


@pytest.mark.slow
def test_a_scan_that_cannot_be_read_has_no_condition(synthetic_ct, build_once, tmp_path):
    raw = tmp_path / "lidc-idri"
    shutil.copytree(synthetic_ct["lidc-idri"], raw)
    (first, *_) = sorted(raw.rglob("*.dcm"))[1:]
    first.write_bytes(b"")
    catalog = build_once(
        "lidc-idri", raw, tmp_path / "x", hold_out=("large nodule",), max_quarantined=0.2
    )
    assert len(catalog.manifest["quarantined"]) == 1
    require_apart(catalog)
