"""Tasks of two classes, normal and abnormal, against the owners' tables."""

from __future__ import annotations

import ast

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from benchmd_ray.benchmarks.ood.cards import in_distribution, use_cases
from benchmd_ray.benchmarks.ood.sets import inside, normal_classes
from benchmd_ray.cli import main
from benchmd_ray.data.binary import UNLABELLED, in_two_classes, normal_names
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.hdf5 import export_hdf5, import_hdf5
from benchmd_ray.data.raw import Discovery, RawItem
from benchmd_ray.data.records import HELD_OUT
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError

CLASSES = ("normal", "abnormal")


def classes_of(catalog):
    """Class of each record that is not held out, by its id."""
    found = {}
    for split in set(catalog.manifest["splits"]) - {HELD_OUT}:
        for table in catalog.tables(split, ["record_id", "target"]):
            targets = np.array(table["target"].to_pylist())
            assert (targets.sum(axis=1) == 1).all()
            names = [CLASSES[place] for place in targets.argmax(axis=1)]
            found |= dict(zip(table["record_id"].to_pylist(), names, strict=True))
    return found


@pytest.fixture(scope="module")
def reports(synthetic_cxr, build_once, tmp_path_factory):
    """MIMIC-CXR with cardiomegaly held out, in two classes."""
    out = tmp_path_factory.mktemp("binary") / "mimic-cxr"
    return build_once(
        "mimic-cxr",
        synthetic_cxr["mimic-cxr"],
        out,
        hold_out=("cardiomegaly",),
        two_classes=("No Finding",),
    )


def test_images_without_finding_are_normal_and_all_others_abnormal(reports, synthetic_cxr):
    raw = synthetic_cxr["mimic-cxr"]
    labels, split = (
        pd.read_csv(raw / f"mimic-cxr-2.0.0-{name}.csv.gz", dtype=str)
        for name in ("chexpert", "split")
    )
    clear = {*labels.loc[labels["No Finding"] == "1.0", "study_id"]}
    study = split.set_index("dicom_id")["study_id"]
    found = classes_of(reports)
    assert found == {name: CLASSES[study[name] not in clear] for name in found}
    assert {*found.values()} == {*CLASSES}
    held = {n for t in reports.tables(HELD_OUT) for n in t["record_id"].to_pylist()}
    large = {*labels.loc[labels["Cardiomegaly"] == "1.0", "study_id"]}
    assert held
    assert {*study[[*held]]} <= large
    assert not {*study[[*found]]} & large


def test_card_and_options_say_so(reports, tmp_path):
    assert reports.task.kind == "single-label"
    assert reports.task.classes == reports.card.classes == CLASSES
    assert reports.modality == "cxr"
    assert reports.signal == dataset_card("mimic-cxr").signal
    assert reports.options == {"hold-out": "cardiomegaly", "two-classes": "No Finding"}
    assert not verify(reports).faults
    assert open_catalog(reports.path).digest == reports.digest
    export_hdf5(reports, tmp_path / "x.h5")
    assert import_hdf5(tmp_path / "x.h5", tmp_path / "again").digest == reports.digest
    assert normal_names(dataset_card("mimic-cxr")) == ()


def test_abnormal_records_in_distribution_are_those_of_that_class(reports):
    own = inside(reports)
    wanted = np.concatenate([part.targets[:, 1] == 1 for part in own.scored])
    assert 0 < wanted.sum() < len(wanted)
    assert own.abnormal(normal_classes(reports.card)).tolist() == wanted.tolist()
    assert normal_classes(dataset_card("bcn20000")) == ("nev",)


def test_it_is_another_catalog(reports, synthetic_cxr, build_once):
    raw = synthetic_cxr["mimic-cxr"]
    with pytest.raises(BenchmdError, match="built from other raw files, policy, options"):
        build_once("mimic-cxr", raw, reports.path, hold_out=("cardiomegaly",))
    again = build_once(
        "mimic-cxr",
        raw,
        reports.path,
        hold_out=("cardiomegaly",),
        two_classes=("No Finding", "No Finding"),
    )
    assert again.digest == reports.digest


def test_a_class_is_normal(synthetic_raw, build_once, tmp_path):
    raw = synthetic_raw["ptb-xl"]
    ordinary = build_once("ptb-xl", raw, tmp_path / "before")
    catalog = build_once("ptb-xl", raw, tmp_path / "x", two_classes=("normal",))
    place = ordinary.card.classes.index("normal")
    wanted = {
        name: CLASSES[target[place] != 1]
        for split in ordinary.manifest["splits"]
        for table in ordinary.tables(split, ["record_id", "target"])
        for name, target in zip(
            table["record_id"].to_pylist(), table["target"].to_pylist(), strict=True
        )
    }
    assert classes_of(catalog) == wanted
    assert catalog.statistics == ordinary.statistics
    assert not catalog.held_out
    rhythm = build_once("ptb-xl", raw, tmp_path / "y", two_classes=("SR",))  # a code
    rows = pd.read_csv(raw / "ptbxl_database.csv")
    sinus = {
        f"HR{row.ecg_id:05d}"
        for row in rows.itertuples()
        if "SR" in ast.literal_eval(row.scp_codes)
    }
    found = classes_of(rhythm)
    assert {name for name in found if found[name] == "normal"} == sinus & {*found}


@pytest.mark.slow
def test_merged_and_part_classes(synthetic_photos, build_once, tmp_path):
    raw = synthetic_photos["bcn20000"]
    catalog = build_once(
        "bcn20000", raw, tmp_path / "x", hold_out=("bcc", "VASC"), two_classes=("nev",)
    )
    table = pd.read_csv(raw / "ISIC_2019_Training_GroundTruth.csv").set_index("image")
    found = classes_of(catalog)
    assert found == {name: CLASSES[int(table.loc[name, "NV"] != 1)] for name in found}
    assert not {name for name in found if table.loc[name, ["BCC", "VASC"]].any()}


def item(name, split="train", conditions=(), **labels):
    return RawItem(name, name, name, split, labels=labels, conditions=conditions)


def test_records_of_which_no_label_is_known_are_excluded_and_counted():
    card = dataset_card("nih-cxr-ap")
    items = [
        item("a", conditions=("No Finding",), edema=0, atelectasis=0),
        item("b", edema=0, atelectasis=-1),
        item("c", edema=-1, atelectasis=-1),
        item("d", edema=-1, conditions=("No Finding",)),
        item("e", HELD_OUT, edema=1),
        item("f", conditions=("Mass",), edema=0),
    ]
    found, made = in_two_classes(Discovery("x", items, excluded={"y": 2}), card, ["No Finding"])
    assert [(i.record_id, i.label) for i in found.items] == [
        *(("a", "normal"), ("b", "abnormal"), ("d", "normal"), ("e", None), ("f", "abnormal"))
    ]
    assert found.excluded == {"y": 2, UNLABELLED: 1}
    assert found.items[0].target(made) == [1, 0]
    assert found.items[1].target(made) == [0, 1]
    assert found.items[3] == items[4]
    assert made.modality.name == "cxr"
    assert in_two_classes(found, card, []) == (found, card)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "normal", "message"),
    [
        ("mimic-cxr", ("No finding",), "unknown condition of mimic-cxr 'No finding'. Did you mean"),
        ("shhs", ("wake",), "labels of shhs are known only when its files are read"),
        ("messidor-2", ("ICDR 0", "ICDR 1", "ICDR 2", "ICDR 3", "ICDR 4"), "is abnormal where"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(
    synthetic_cxr, synthetic_eeg, synthetic_photos, build_once, tmp_path, name, normal, message
):
    raw = (synthetic_cxr | synthetic_eeg | synthetic_photos)[name]
    with pytest.raises(BenchmdError, match=message):
        build_once(name, raw, tmp_path / "x", two_classes=normal)
    assert not (tmp_path / "x" / "manifest.json").exists()


def test_a_class_without_records_is_refused():
    items = [item("a", conditions=("No Finding",), edema=0), item("b", HELD_OUT, edema=1)]
    with pytest.raises(BenchmdError, match="no record of nih-cxr-ap is abnormal where normal are"):
        in_two_classes(Discovery("x", items), dataset_card("nih-cxr-ap"), ["No Finding"])


def test_the_command_builds_two_classes_of_the_use_cases(synthetic_photos, build_here, tmp_path):
    """`build_here` has builds work in this process."""
    arguments = ["--raw", str(synthetic_photos["messidor-2"]), "--allow-missing"]
    command = ["ood", "build", "messidor-2", *arguments]
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "x"), "--two-classes"])
    assert result.exit_code == 0, result.output
    catalog = open_catalog(tmp_path / "x")
    assert catalog.task.classes == CLASSES
    assert catalog.options == {"hold-out": "ICDR 4, ungradable", "two-classes": "ICDR 0"}
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "y")])
    assert result.exit_code == 0, result.output
    assert len(open_catalog(tmp_path / "y").task.classes) == 4


def test_the_command_names_what_no_record_has(synthetic_cxr, build_here, tmp_path):
    raw = str(synthetic_cxr["mimic-cxr"])
    command = ["ood", "build", "mimic-cxr", "--raw", raw, "--allow-missing"]
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "x")])
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert f"no record in {raw} is known to have it: Fracture, Lung Lesion, Pneumothorax" in said
    assert open_catalog(tmp_path / "x").held_out == ("cardiomegaly", "lateral")


def test_without_normal_records_in_the_card_the_command_refuses(synthetic_ct, tmp_path):
    arguments = ["--raw", str(synthetic_ct["lidc-idri"]), "--out", str(tmp_path / "x")]
    result = CliRunner().invoke(main, ["ood", "build", "lidc-idri", *arguments, "--two-classes"])
    assert result.exit_code != 0
    said = " ".join(result.output.split())
    assert "the use-cases of lidc-idri do not say which of its records are normal" in said


def test_cards_name_each_condition_once():
    for name in in_distribution():
        own = use_cases(name)
        names = [condition for held in own.hold_out.values() for condition in held]
        assert len(names) == len({*names}), name
        assert not {*names} & {*own.two_classes}, name
