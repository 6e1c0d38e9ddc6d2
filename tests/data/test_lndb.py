"""LNDb: tables, masks and centres as labels of windows; scans found."""

from __future__ import annotations

import csv
import math
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import SimpleITK

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.datasets import lndb
from benchmd_ray.data.datasets.lndb import nodule_class
from benchmd_ray.data.raw import DUPLICATE, Choices
from benchmd_ray.data.records import RecordError
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import digest, write_json

CARD = dataset_card("lndb")
SMALL, LARGE = "small nodule", "large nodule"
COLUMNS = ["LNDbID", "RadID", "RadFindingID", "FindingID", "x", "y", "z", "AgrLevel", "Nodule",
           "Volume", "Text"]  # fmt: skip


def chosen(policy: str = "clean", **options: str) -> Choices:
    defaults = {name: option.default for name, option in CARD.options.items()}
    return Choices(policy, options=defaults | options)


def row(number=1, **changes):
    """A nodule of 1 mm³ above 3 mm that radiologist 1 marked as finding 1."""
    usual = {"LNDbID": number, "RadID": "1", "RadFindingID": "1", "FindingID": 1, "x": 0, "y": 0,
             "z": 10.0, "AgrLevel": 1, "Nodule": 1, "Volume": 15.2, "Text": 5}  # fmt: skip
    return usual | changes


@pytest.fixture
def make_raw(tmp_path, write_mhd):
    """Writes scans of the given depth, masks {(scan, reader): {finding: slices}} and tables."""

    def make(
        rows, depths=(48,), masks=None, readers=1, columns=COLUMNS, listed=None, origin=(0, 0, 0.0)
    ):
        root = tmp_path / "raw"
        masks = masks or {}
        for number, depth in enumerate(depths, 1):
            values = np.arange(depth, dtype=np.int16)[:, None, None] + np.zeros((1, 8, 8), np.int16)
            place = (*origin[:2], origin[2] + 1000 * (number - 1))
            write_mhd(root / f"data{number % 6}" / f"LNDb-{number:04d}.mhd", values, origin=place)
            for reader in range(1, readers + 1):
                labels = np.zeros(values.shape, np.uint8)
                for finding, slices in masks.get((number, reader), {}).items():
                    labels[slices, 3, finding % 8] = finding
                write_mhd(root / "masks" / f"LNDb-{number:04d}_rad{reader}.mhd", labels)
        tables = root / "trainset_csv"
        tables.mkdir(exist_ok=True)
        numbers = range(1, len(depths) + 1) if listed is None else listed
        scans = [{"LNDbID": number, "RadN": readers} for number in numbers]
        pd.DataFrame(scans).to_csv(tables / "trainCTs.csv", index=False)
        pd.DataFrame(rows, columns=columns).to_csv(tables / "trainNodules_gt.csv", index=False)
        return root

    return make


def readings(root, choices=None):
    found = lndb.discover(root, CARD, choices or chosen())
    return [lndb.read(root, item, CARD) for item in found.items]


def positives(root, column, choices=None):
    """Slices of the first scan that are positive for a class, by windows of one slice each."""
    item = lndb.discover(root, CARD, choices or chosen()).items[0]
    held = {}

    def keep(volume, positive, *_, **__):
        held["positive"] = positive
        raise RecordError("kept")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lndb, "scan_windows", keep)
        with pytest.raises(RecordError, match="kept"):
            lndb.read(root, item, CARD)
    return held["positive"][:, CARD.classes.index(column)].nonzero()[0].tolist()


def test_slices_of_a_nodule_are_those_of_its_masks(make_raw):
    masks = {(1, 1): {1: [4, 5], 2: [30]}, (1, 2): {7: [5, 6], 1: [40]}}
    rows = [row(RadID="1,2", RadFindingID="1,7", AgrLevel=2, Volume=500, z=20)]
    assert positives(make_raw(rows, masks=masks, readers=2), LARGE) == [4, 5, 6]


def test_a_nodule_without_mask_is_its_centre_and_two_slices_either_side(make_raw):
    rows = [row(z=20.4, Volume=14.13716694), row(FindingID=2, z=0.6, Volume=14.13716694)]
    root = make_raw(rows, masks={(1, 1): {9: [40]}})
    assert positives(root, SMALL) == [0, 1, 2, 3, 18, 19, 20, 21, 22]
    assert positives(root, LARGE) == []


def test_a_mask_wins_over_the_centre(make_raw):
    rows = [row(z=20, Volume=14.13716694)]
    assert positives(make_raw(rows, masks={(1, 1): {1: [33, 34]}}), SMALL) == [33, 34]


def test_a_missing_mask_file_leaves_the_centre(make_raw):
    root = make_raw([row(z=20, Volume=400)], masks={(1, 1): {1: [30]}})
    (root / "masks" / "LNDb-0001_rad1.raw").unlink()
    found = lndb.discover(root, CARD, chosen())
    assert found.missing == ["LNDb-0001_rad1.raw"]
    assert positives(root, LARGE) == [18, 19, 20, 21, 22]


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        (0.5, SMALL),
        (14.0, SMALL),
        (14.13716694, SMALL),  # what the tables state for nodules that are not outlined
        (14.137166941154069, SMALL),
        (14.13716695, SMALL),
        (14.15, LARGE),
        (math.pi / 6 * 3.01**3, LARGE),
        (10279.15, LARGE),
    ],
)
def test_size_is_the_diameter_of_the_sphere_of_the_volume(volume, expected):
    assert nodule_class(volume) == expected


def test_findings_that_are_no_nodules_do_not_count(make_raw):
    rows = [row(Nodule=0, AgrLevel=0), row(FindingID=2, Nodule=0, AgrLevel=0, z=30)]
    root = make_raw(rows, masks={(1, 1): {1: [4, 5, 6]}})
    assert [record.target for record in readings(root)[0].records] == [[0, 0], [0, 0]]


def test_agreement_is_that_of_the_table_and_can_be_raised(make_raw):
    rows = [row(Volume=90, z=10), row(FindingID=2, AgrLevel=2, Volume=90, z=30)]
    root = make_raw(rows)
    assert positives(root, LARGE) == [8, 9, 10, 11, 12, 28, 29, 30, 31, 32]
    two = chosen(readers="2")
    assert positives(root, LARGE, two) == [28, 29, 30, 31, 32]


def test_a_window_is_positive_with_two_slices_and_not_with_one(make_raw):
    masks = {(1, 1): {1: [22, 23, 24], 2: [30]}}
    rows = [row(Volume=90), row(RadFindingID="2", FindingID=2, Volume=14.13716694)]
    (reading,) = readings(make_raw(rows, masks=masks))
    assert [record.target for record in reading.records] == [[0, 1], [0, 0]]


def test_slices_of_two_nodules_of_one_size_add_up(make_raw):
    masks = {(1, 1): {1: [3], 2: [9], 3: [9]}}
    rows = [row(RadFindingID=str(n), FindingID=n, Volume=90) for n in (1, 2, 3)]
    (reading,) = readings(make_raw(rows[1:], masks=masks))
    assert reading.records[0].target == [0, 0]  # two nodules on one slice are one slice
    (reading,) = readings(make_raw(rows, masks=masks))
    assert reading.records[0].target == [0, 1]


def test_last_window_is_kept(make_raw):
    """The released code drops the slices behind the last whole step."""
    rows = [row(z=33, Volume=90)]
    (reading,) = readings(make_raw(rows, depths=(35,)))
    assert [record.signal[0, 0, 0, 0] for record in reading.records] == [0, 11]
    assert reading.records[-1].signal[0, -1, 0, 0] == 34
    assert [record.target for record in reading.records] == [[0, 0], [0, 1]]


def test_a_short_scan_is_padded_and_counted(make_raw):
    (reading,) = readings(make_raw([row(z=9, Volume=90)], depths=(10,)))
    (record,) = reading.records
    assert record.valid_size == (10, 256, 256)
    assert (record.signal[0, 10:] == -1024).all()
    assert record.target == [0, 1]
    assert reading.warnings == {"it has fewer than 24 slices and is padded with air": 1}


@pytest.mark.parametrize("down", [1, -1])
def test_centres_follow_origin_spacing_and_direction(make_raw, write_mhd, down):
    axes = (1, 0, 0, 0, 1, 0, 0, 0, down)
    root = make_raw([row(x=0, y=0, z=-291.2, Volume=90)])
    values = np.arange(40, dtype=np.int16)[:, None, None] + np.zeros((1, 8, 8), np.int16)
    geometry = {"origin": (5, 6, -300.0 if down == 1 else -222.0), "spacing": (0.7, 0.7, 2.0)}
    path = write_mhd(root / "data1" / "LNDb-0001.mhd", values, direction=axes, **geometry)
    write_mhd(root / "masks" / "LNDb-0001_rad1.mhd", values.astype(np.uint8) * 0)
    image = SimpleITK.ReadImage(str(path))
    index = image.TransformPhysicalPointToIndex((5.0, 6.0, -291.2))[2]
    centre = index if down == 1 else 39 - index  # slices are stored from the feet to the head
    assert positives(root, LARGE) == list(range(centre - 2, centre + 3))
    (reading,) = readings(root)
    first = reading.records[0].signal[0, :, 0, 0]
    assert first.tolist() == (list(range(24)) if down == 1 else list(range(39, 15, -1)))


def test_a_mask_is_turned_with_its_scan(make_raw, write_mhd):
    root = make_raw([row(Volume=90)], masks={(1, 1): {1: [2, 3]}})
    values = np.zeros((48, 8, 8), np.int16)
    path = root / "data1" / "LNDb-0001.mhd"
    write_mhd(path, values, direction=(1, 0, 0, 0, 1, 0, 0, 0, -1))
    assert positives(root, LARGE) == [44, 45]


def test_a_centre_outside_of_the_scan_is_counted(make_raw):
    rows = [row(z=60, Volume=90), row(FindingID=2, z=-2, Volume=90)]
    (reading,) = readings(make_raw(rows))
    assert reading.warnings == {"a nodule's centre lies outside of it and is not used": 1}
    assert [record.target for record in reading.records] == [[0, 0], [0, 0]]


def test_a_mask_of_another_shape_is_refused(make_raw, write_mhd):
    root = make_raw([row()])
    write_mhd(root / "masks" / "LNDb-0001_rad1.mhd", np.zeros((47, 8, 8), np.uint8))
    item = lndb.discover(root, CARD, chosen()).items[0]
    message = r"the mask of radiologist 1 has shape \(47, 8, 8\) .* the scan \(48, 8, 8\)"
    with pytest.raises(RecordError, match=message):
        lndb.read(root, item, CARD)


def test_slices_that_are_no_squares_are_stretched_and_counted(make_raw, write_mhd):
    root = make_raw([row()])
    write_mhd(root / "data1" / "LNDb-0001.mhd", np.zeros((48, 8, 12), np.int16))
    write_mhd(root / "masks" / "LNDb-0001_rad1.mhd", np.zeros((48, 8, 12), np.uint8))
    (reading,) = readings(root)
    assert reading.warnings == {"its slices are not square and are stretched": 1}
    assert {record.valid_size for record in reading.records} == {(24, 256, 256)}


def test_columns_may_stand_in_any_order(make_raw):
    rows = [row(z=20, Volume=90)]
    first = readings(make_raw(rows))[0].records
    shuffled = [COLUMNS[n] for n in (10, 3, 7, 0, 9, 8, 2, 6, 5, 4, 1)]
    second = readings(make_raw(rows, columns=shuffled))[0].records
    assert [r.target for r in first] == [r.target for r in second] == [[0, 1], [0, 0]]


def test_scans_without_row_and_rows_without_scan_are_counted(make_raw):
    root = make_raw([row(1), row(2)], depths=(30, 30, 30), listed=[1, 2, 5])
    (root / "data2" / "LNDb-0002.raw").unlink()
    found = lndb.discover(root, CARD, chosen())
    assert [item.record_id for item in found.items] == ["LNDb-0001"]
    assert found.missing == [
        "LNDb-0002.raw", "LNDb-0005.mhd", "LNDb-0005.raw", "LNDb-0005_rad1.mhd",
        "LNDb-0005_rad1.raw",
    ]  # fmt: skip
    assert found.excluded == {"its findings are not public: it is not in trainCTs.csv": 1}
    assert found.layout == "all"


def test_layout_of_the_training_set_alone(make_raw):
    assert lndb.discover(make_raw([row()]), CARD, chosen()).layout == "challenge"


def test_clean_scores_every_scan_and_released_those_with_findings(make_raw):
    root = make_raw([row(1, Nodule=0, AgrLevel=0), row(3)], depths=(30, 30, 30))
    clean = lndb.discover(root, CARD, chosen())
    assert [item.split for item in clean.items] == ["test"] * 3
    released = lndb.discover(root, CARD, chosen("released"))
    assert [item.record_id for item in released.items] == ["LNDb-0001", "LNDb-0003"]
    assert {item.split for item in released.items} == {"validation"}
    reason = "it has no finding, and the paper counts those with findings"
    assert released.excluded == {reason: 1}


def test_a_scan_that_is_there_twice_is_one_patient(make_raw, write_mhd):
    root = make_raw([row()], depths=(30, 30, 30))
    for part in ("mhd", "raw"):
        shutil.copy(root / "data1" / f"LNDb-0001.{part}", root / "data2" / f"LNDb-0002.{part}")
    header = root / "data2" / "LNDb-0002.mhd"
    header.write_text(header.read_text().replace("0001", "0002"))
    groups = [item.group_id for item in lndb.discover(root, CARD, chosen()).items]
    assert groups[0] == groups[1] != groups[2]


def test_a_finding_that_is_there_twice_with_two_sizes_leaves_its_scan_out(make_raw):
    small, large = row(Volume=14), row(Volume=90)
    found = lndb.discover(make_raw([small, large, row(2)], depths=(48, 48)), CARD, chosen())
    assert [item.record_id for item in found.items] == ["LNDb-0002"]
    assert found.excluded == {"the tables give it, or a nodule of it, twice and differently": 1}
    found = lndb.discover(make_raw([large, large, row(2)], depths=(48, 48)), CARD, chosen())
    assert (len(found.items), found.excluded) == (2, {})


def test_a_scan_with_two_numbers_of_radiologists_is_excluded(make_raw):
    root = make_raw([row()])
    with (root / "trainset_csv" / "trainCTs.csv").open("a") as file:
        file.write("1,1\n")
    assert not lndb.discover(root, CARD, chosen()).excluded
    with (root / "trainset_csv" / "trainCTs.csv").open("a") as file:
        file.write("1,2\n")
    assert lndb.discover(root, CARD, chosen()).excluded == {lndb.CONFLICT: 1}


def test_files_and_tables_that_are_there_twice(make_raw):
    root = make_raw([row()])
    shutil.copytree(root / "data1", root / "data9")
    found = lndb.discover(root, CARD, chosen())
    assert [item.path for item in found.items] == ["data1/LNDb-0001.mhd"]
    assert found.excluded == {DUPLICATE: 2}
    shutil.copytree(root / "trainset_csv", root / "again")
    with pytest.raises(BenchmdError, match=r"holds a table twice: .*again/trainCTs\.csv"):
        lndb.discover(root, CARD, chosen())


def test_device_comes_from_the_table_of_acquisitions(make_raw):
    root = make_raw([row()], depths=(30, 30))
    (root / "LNDbAcqParams.csv").write_text(
        "LNDbID,Modality,Manufacturer,ManufacturerModelName\n1,CT,SIEMENS,Sensation 16\n"
    )
    items = lndb.discover(root, CARD, chosen()).items
    assert [item.metadata["device"] for item in items] == ["SIEMENS Sensation 16", None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Volume": "large"}, "'large' is not a number"),
        ({"Volume": "inf"}, "'inf' is not a number"),
        ({"AgrLevel": "1.5"}, "'1.5' is not a whole number"),
        ({"LNDbID": -1}, "'-1' is not a whole number"),
        ({"RadID": "1,2"}, "RadID is '1,2' and RadFindingID '1'; expected as many"),
        ({"RadID": ""}, "'' is not a number"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(make_raw, changes, message):
    with pytest.raises(BenchmdError, match=message):
        lndb.discover(make_raw([row(**changes)]), CARD, chosen())


def test_missing_tables_and_columns_are_named(make_raw):
    root = make_raw([row()])
    table = root / "trainset_csv" / "trainNodules_gt.csv"
    table.write_text(table.read_text().replace("AgrLevel", "Agreement"))
    with pytest.raises(BenchmdError, match="has no column 'AgrLevel'"):
        lndb.discover(root, CARD, chosen())
    table.unlink()
    with pytest.raises(BenchmdError, match=r"trainNodules_gt\.csv is missing"):
        lndb.discover(root, CARD, chosen())


def test_real_rows_of_the_table(make_raw):
    """Rows of the published table: one outlined by three, one of each kind that has no mask."""
    rows = [
        row(13, RadID="1,2,3", RadFindingID="1,3,1", AgrLevel=3, Volume=19.1811695, z=814),
        row(13, RadID="2", RadFindingID="2", FindingID=5, Volume=14.13716694, z=770),
        row(13, RadID="3", RadFindingID="2", FindingID=7, Nodule=0, AgrLevel=0, z=589),
    ]
    columns = [*COLUMNS, "FindingCount"]
    root = make_raw(rows, columns=columns)
    with (root / "trainset_csv" / "trainNodules_gt.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    nodules = lndb._nodules(read, 1)
    assert nodules is not None
    assert [nodule["class"] for nodule in nodules] == [LARGE, SMALL]
    assert nodules[0]["marks"] == [["1", 1], ["2", 3], ["3", 1]]


def test_catalog_counts_scans_beside_windows(ct_catalogs):
    built = ct_catalogs["lndb"]
    assert verify(built).faults == ()
    table = pq.read_table(built.shards("test")[0][0]).schema
    assert table.field("target").type.list_size == 2
    parts = [pq.read_table(path).to_pandas() for path, *_ in built.shards("test")]
    rows = pd.concat([part[["unit_id", "target"]] for part in parts])
    scans = rows.groupby("unit_id")["target"].apply(lambda t: np.stack(list(t)).max(axis=0))
    stated = built.manifest["splits"]["test"]
    assert stated["units"] == len(scans) < stated["records"] == len(rows)
    assert list(stated["unit_classes"].values()) == np.stack(list(scans)).sum(axis=0).tolist()
    assert list(stated["classes"].values()) == np.stack(list(rows["target"])).sum(axis=0).tolist()


def test_published_counts_are_compared_with_scans(make_raw, build_here, tmp_path):
    masks = {(1, 1): {1: [22, 23, 24, 25]}}  # one scan, two positive windows
    root = make_raw([row(Volume=90)], masks=masks)
    built = build_here("lndb", root, tmp_path / "out", policy="released")
    assert built.manifest["splits"]["validation"]["classes"] == {SMALL: 0, LARGE: 2}
    notes = verify(built).notes
    assert "validation, large nodule: 1 scan, published 203 (-202, -99.5%)" in notes


def test_altered_counts_of_scans_are_found(ct_catalogs, tmp_path):
    shutil.copytree(ct_catalogs["lndb"].path, tmp_path / "copy")
    held = open_catalog(tmp_path / "copy").manifest
    del held["digest"]
    held["splits"]["test"]["unit_classes"][LARGE] += 1
    write_json(tmp_path / "copy" / "manifest.json", held | {"digest": digest(held)})
    (fault,) = verify(open_catalog(tmp_path / "copy")).faults
    assert fault.startswith("split test: the shards' counts are not those of manifest.json")
