"""Catalogs of small datasets, cut into folds by patient."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from made_wrist import write_card, write_wrist

from benchmd_ray import api
from benchmd_ray.cli import main
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.folds import fold_catalogs, sentence
from benchmd_ray.data.hdf5 import export_hdf5, import_hdf5
from benchmd_ray.data.records import targets_of
from benchmd_ray.data.resident import patients_of, split_table
from benchmd_ray.data.splits import folds_by_patient
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import digest
from benchmd_ray.modality.card_folders import CARDS
from benchmd_ray.service.datasets import from_catalogs
from benchmd_ray.storage.location import location


@pytest.fixture
def wrist(tmp_path, monkeypatch, build_here):
    """Builds a catalog of volunteers with these splits."""
    monkeypatch.setenv(CARDS, str(tmp_path / "cards"))

    def make(splits, volunteers=15, out=tmp_path / "catalog", **about):
        if not (tmp_path / "cards").is_dir():
            write_card(tmp_path / "cards", splits, **about)
        if not (tmp_path / f"raw{volunteers}").is_dir():
            write_wrist(tmp_path / f"raw{volunteers}", volunteers)
        return build_here("wrist", tmp_path / f"raw{volunteers}", out)

    return make


@pytest.mark.parametrize("splits", [{"cross_validation": 4}, {"leave_one_out": "patient"}])
def test_each_patient_is_held_out_once_and_trains_the_other_folds(wrist, splits):
    catalog = wrist(splits)
    assert not verify(catalog).faults
    folds = fold_catalogs(catalog)
    everyone = patients_of(catalog, ["folds"])
    assert len(folds) == splits.get("cross_validation", 15)
    held_out = Counter()
    for fold in folds:
        of_split = {split: patients_of(fold, [split]) for split in fold.manifest["splits"]}
        assert set(of_split) == {"train", "validation", "test"}
        assert set().union(*of_split.values()) == everyone
        assert sum(map(len, of_split.values())) == len(everyone)
        held_out.update(of_split["test"])
        targets = split_table(fold, "train", ["target"])["target"]
        assert targets_of(targets, fold.card.target).any(axis=0).all()
        assert fold.evaluation_splits == ("test",)
    assert held_out == dict.fromkeys(everyone, 1)


def test_the_statistics_of_a_fold_are_those_of_its_training(wrist):
    fold = fold_catalogs(wrist({"cross_validation": 3}))[1]
    table = next(fold.tables("train"))
    values = [
        np.frombuffer(row["signal"], np.int16).reshape(3, -1) * np.float64(row["scale"])
        for row in table.to_pylist()
    ]
    expected = np.concatenate(values, axis=1)
    np.testing.assert_allclose(fold.statistics["mean"], expected.mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(fold.statistics["std"], expected.std(axis=1), rtol=1e-4)


def test_classes_and_sizes_are_in_balance_over_folds():
    rng = np.random.default_rng(0)
    patients = [f"p{number}" for number in range(83)]
    labels = [["abc"[place]] for place in rng.choice(3, 83, p=[0.6, 0.3, 0.1])]
    folds = folds_by_patient("any", patients, labels, 5)
    assert sorted(patient for fold in folds for patient in fold) == sorted(patients)
    of = dict(zip(patients, labels, strict=True))
    for name in "abc":
        counts = [sum(name in of[patient] for patient in fold) for fold in folds]
        assert max(counts) - min(counts) <= 1
    assert {len(fold) for fold in folds} == {16, 17}
    order = rng.permutation(83)
    mixed = ([patients[at] for at in order], [labels[at] for at in order])
    assert folds_by_patient("any", *mixed, 5) == folds


def test_copies_of_a_recording_hold_their_patients_out_together(wrist, tmp_path):
    write_wrist(tmp_path / "raw15")
    signals = tmp_path / "raw15" / "signals"
    shutil.copy(signals / "v03_0.csv", signals / "v07_1.csv")
    catalog = wrist({"leave_one_out": "patient"})
    assert len(catalog.manifest["folds"]["patients"]) == 14
    assert not verify(catalog).faults


def test_a_build_says_its_folds_and_mends_them(wrist, tmp_path):
    catalog = wrist({"cross_validation": 4})
    text = "4-fold cross-validation by patient: 30 records of 15 patients, 3 or 4 a fold"
    assert sentence(catalog) == text
    for command in ("show", "verify"):
        done = CliRunner().invoke(main, ["catalog", command, str(catalog.path)])
        assert done.exit_code == 0, done.output
        assert text in done.output
    digests = [fold.digest for fold in fold_catalogs(catalog)]
    shutil.rmtree(catalog.path / "folds" / "2")
    assert "folds/2 holds no catalog" in verify(catalog).faults[0]
    assert [fold.digest for fold in fold_catalogs(wrist({"cross_validation": 4}))] == digests


def test_an_altered_fold_is_found(wrist):
    catalog = wrist({"cross_validation": 3})
    shutil.rmtree(catalog.path / "folds" / "0")
    shutil.copytree(catalog.path / "folds" / "1", catalog.path / "folds" / "0")
    assert "is not the fold 0 of" in verify(catalog).faults[0]


def test_leave_one_out_says_its_size(wrist):
    text = "leave-one-out by patient: 30 records of 15 patients, 15 folds"
    assert sentence(wrist({"leave_one_out": "patient"})) == text


def test_what_takes_one_catalog_says_to_run_or_name_a_fold(wrist):
    catalog = wrist({"cross_validation": 3})
    expected = r"cut into 3 folds .*`benchmd run --catalog .*/catalog` .* such as .*/folds/0"
    with pytest.raises(BenchmdError, match=expected):
        open_catalog(catalog.path)
    for command in ("transfer --catalog", "pretrain --technique mae --catalog"):
        done = CliRunner().invoke(main, [*command.split(), str(catalog.path)])
        assert "cut into 3 folds" in done.output
    assert open_catalog(catalog.path / "folds" / "0").held_out_fold["number"] == 0


@pytest.mark.parametrize(
    ("splits", "volunteers", "about", "expected"),
    [
        ({"cross_validation": 16}, 15, {}, "wrist has 15 patients, too few for 16 folds"),
        ({"cross_validation": 1}, 15, {}, r"splits.* expected .*cross_validation: 5.* 2 to 20"),
        ({"cross_validation": "x"}, 15, {}, r"splits.* expected .*cross_validation: 5"),
        ({"leave_one_out": 3}, 15, {}, r"splits.* expected .*leave_one_out: patient"),
        ({"cross_validation": 5, "a": "train"}, 15, {}, r"splits.* expected "),
        ({"cross_validation": 5}, 15, {"role": "target"}, "target is only scored, .*leave splits"),
        (
            {"cross_validation": 5},
            15,
            {"evaluation_splits": {"clean": ["validation"]}},
            "leave evaluation_splits out",
        ),
        ({"leave_one_out": "patient"}, 3, {}, "rarest class, tremor, is of 1 patient. Expected 3"),
    ],
)
def test_what_cannot_be_cut_into_folds_is_refused(wrist, splits, volunteers, about, expected):
    with pytest.raises(BenchmdError, match=expected):
        wrist(splits, volunteers, **about)


def test_too_many_patients_to_leave_each_out(wrist):
    with pytest.raises(BenchmdError, match=r"102 patients.*at most 100.*cross_validation: 5"):
        wrist({"leave_one_out": "patient"}, 102)


def test_a_catalog_in_folds_fits_no_estimator(wrist, tmp_path):
    catalog = wrist({"cross_validation": 3})
    with pytest.raises(BenchmdError, match="cut into 3 folds"):
        api.Classifier(kernels=100).fit(api.CatalogData(catalog))
    with pytest.raises(BenchmdError, match="cut into 3 folds"):
        api.catalog(catalog.path)
    fold = api.catalog(catalog.path / "folds" / "1")
    model = api.Classifier(kernels=100).fit(fold)
    assert len(model.predict_proba(fold)) == fold.info.rows("test")


def test_folds_on_s3_are_those_of_a_folder(wrist, s3, monkeypatch, tmp_path):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    local = wrist({"cross_validation": 3})
    remote = wrist({"cross_validation": 3}, out=location(f"{s3}/wrist"))
    assert not verify(remote).faults
    digests = [[fold.digest for fold in fold_catalogs(whole)] for whole in (local, remote)]
    assert digests[0] == digests[1]
    names = [(dataset.name, dataset.fold) for dataset in from_catalogs([remote.path]).datasets]
    assert names == [("wrist", 0), ("wrist", 1), ("wrist", 2)]


def test_a_fold_is_handed_on_as_one_file(wrist, tmp_path):
    fold = fold_catalogs(wrist({"cross_validation": 3}))[2]
    export_hdf5(fold, tmp_path / "fold.h5")
    imported = import_hdf5(tmp_path / "fold.h5", tmp_path / "imported")
    assert imported.held_out_fold == fold.held_out_fold
    assert imported.statistics == fold.statistics
    assert patients_of(imported, ["test"]) == patients_of(fold, ["test"])


def test_a_build_deletes_no_file_of_others_in_the_folders_of_folds(wrist, tmp_path):
    out = wrist({"cross_validation": 3}).path
    thesis = tmp_path / "victim" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("mine")
    shutil.rmtree(out / "folds" / "1")
    (out / "folds" / "1").symlink_to(thesis.parent)
    with pytest.raises(BenchmdError, match=r"holds something else than a catalog, .*folds/1"):
        wrist({"cross_validation": 3})
    (out / "folds" / "1").unlink()
    (out / "folds" / "0" / "mine.txt").write_text("mine")
    with pytest.raises(BenchmdError, match=r"holds something else .*mine\.txt"):
        wrist({"cross_validation": 3})
    (out / "folds" / "0" / "mine.txt").unlink()
    assert len(fold_catalogs(wrist({"cross_validation": 3}))) == 3
    assert thesis.read_text() == "mine"


def forge(path, **changes):
    """Change the held-out fold that a manifest states, and its digest with it."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["held_out_fold"] |= changes
    del manifest["digest"]
    file.write_text(json.dumps(manifest | {"digest": digest(manifest)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": 1}, "is not the fold 0 of"),
        ({"number": 77}, "it is the fold 77 of 3, counted from 0"),
        ({"folds": 10**6}, "held_out_fold"),
        ({"leave_one_out": True}, "is not the fold 0 of"),
        ({"catalog": "../x"}, "held_out_fold"),
    ],
)
def test_a_forged_fold_is_refused(wrist, changes, message):
    catalog = wrist({"cross_validation": 3})
    forge(catalog.path / "folds" / "0", **changes)
    with pytest.raises(BenchmdError, match=message):
        from_catalogs([catalog.path])
    assert verify(catalog).faults


def test_folds_that_were_exchanged_are_refused(wrist):
    catalog = wrist({"cross_validation": 3})
    zero, one = (catalog.path / "folds" / name for name in "01")
    zero.rename(zero.with_name("aside"))
    one.rename(zero)
    zero.with_name("aside").rename(one)
    forge(zero, number=0)
    forge(one, number=1)
    with pytest.raises(BenchmdError, match="is not the fold 0 of"):
        from_catalogs([catalog.path])


def test_a_policy_that_the_card_has_not_is_refused(wrist):
    path = fold_catalogs(wrist({"cross_validation": 3}))[0].path
    file = path / "manifest.json"
    manifest = json.loads(file.read_text()) | {"policy": "released"}
    del manifest["digest"]
    file.write_text(json.dumps(manifest | {"digest": digest(manifest)}))
    with pytest.raises(BenchmdError, match="its policy 'released' is not one of wrist"):
        open_catalog(path)
