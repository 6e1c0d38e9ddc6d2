"""LIDC-IDRI: what four radiologists marked, as labels of windows; scans and annotations found."""

from __future__ import annotations

import re
import shutil
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.datasets import lidc
from benchmd_ray.data.datasets.lidc import extent, positive_slices, read_annotation
from benchmd_ray.data.raw import DUPLICATE, Choices, RawItem
from benchmd_ray.data.readers import xml
from benchmd_ray.data.readers.volume import Volume, read_series
from benchmd_ray.data.records import RecordError, RecordExcluded, hashed_patient
from benchmd_ray.data.splits import hashed_split

CARD = dataset_card("lidc-idri")
SMALL, LARGE = 0, 1
NAMESPACES = ('xmlns="http://www.nih.gov"', "")


def chosen(policy: str = "clean", **options: str) -> Choices:
    defaults = {name: option.default for name, option in CARD.options.items()}
    return Choices(policy, options=defaults | options)


def point(z, x=5, y=5, **changes):
    return roi(z, [(x, y)], **changes)


def circle(z, diameter, **changes):
    """An outline of so many pixels across, along x."""
    return roi(z, [(0, 5), (diameter, 5), (diameter // 2, 4), (diameter // 2, 6)], **changes)


def roi(z, points, *, uid=None, inclusion="TRUE", height=None):
    edges = "".join(
        f"<edgeMap><xCoord>{x}</xCoord><yCoord>{y}</yCoord></edgeMap>" for x, y in points
    )
    uid = f"2.25.7.{z}" if uid is None else uid
    height = -100 + 2 * z if height is None else height
    return (
        f"<roi><imageZposition>{height}.0 </imageZposition><imageSOP_UID>{uid}</imageSOP_UID>"
        f"<inclusion>{inclusion}</inclusion>{edges}</roi>"
    )


def nodule(*rois):
    return f"<unblindedReadNodule><noduleID>1</noduleID>{''.join(rois)}</unblindedReadNodule>"


def message(*sessions, series="2.25.1", namespace=NAMESPACES[0], date="2008-08-18"):
    """An annotation; each session is a list of nodules."""
    read = "".join(
        f"<readingSession><servicingRadiologistID>1</servicingRadiologistID>{''.join(nodules)}"
        "<nonNodule><nonNoduleID>9</nonNoduleID><imageZposition>-98.0</imageZposition>"
        "<imageSOP_UID>2.25.7.1</imageSOP_UID><locus><xCoord>1</xCoord><yCoord>2</yCoord></locus>"
        "</nonNodule></readingSession>"
        for nodules in sessions
    )
    return (
        f'<?xml version="1.0"?><LidcReadMessage {namespace}><ResponseHeader>'
        f"<SeriesInstanceUid>{series}</SeriesInstanceUid><DateService>{date}</DateService>"
        f"</ResponseHeader>{read}</LidcReadMessage>"
    )


@pytest.fixture
def annotation(tmp_path):
    """An annotation as it is read."""

    def make(*sessions, **changes):
        path = tmp_path / "a.xml"
        path.write_text(message(*sessions, **changes))
        return read_annotation(path)

    return make


def scan(slices=30, spacing=(2.0, 0.5, 1.0)):
    """A volume without voxels: y 0.5 mm, x 1 mm."""
    heights = np.stack([np.zeros(slices), np.zeros(slices), -100 + 2.0 * np.arange(slices)], 1)
    uids = tuple(f"2.25.7.{z}" for z in range(slices))
    return Volume((slices, 8, 8), spacing, heights, np.array([0, 0, 1.0]), np.zeros, uids)


def labels(annotation, agreement=3, **changes):
    positive, unplaced = positive_slices(annotation, scan(**changes), agreement, CARD)
    assert unplaced == 0
    return positive


def test_labels_stand_in_the_order_of_the_modality():
    assert CARD.classes == CARD.task.classes == ("small nodule", "large nodule")
    assert CARD.classes == dataset_card("lndb").classes


def test_a_slice_is_positive_when_three_of_four_radiologists_marked_it(annotation):
    marked = [4, 3, 2, 1, 0]
    sessions = [
        [nodule(*(circle(z, 6) for z, readers in enumerate(marked) if reader < readers))]
        for reader in range(4)
    ]
    positive = labels(annotation(*sessions))
    assert positive[:5, LARGE].tolist() == [True, True, False, False, False]
    assert not positive[:, SMALL].any()
    for agreement in (1, 2, 4):
        found = labels(annotation(*sessions), agreement)[:5, LARGE]
        assert found.tolist() == [readers >= agreement for readers in marked]


def test_one_radiologist_counts_once_however_many_nodules_he_marks(annotation):
    one = [nodule(point(3)), nodule(point(3, 1, 1)), nodule(point(3, 7, 7))]
    assert not labels(annotation(one, [], [nodule(point(3))], []))[:, SMALL].any()
    assert labels(annotation(one, [nodule(point(3))], [nodule(point(3, 6, 6))], []))[3, SMALL]


def test_small_and_large_marks_of_a_slice_are_counted_apart(annotation):
    small, large = nodule(point(2)), nodule(circle(2, 9))
    positive = labels(annotation([small], [small], [large], [large]))
    assert not positive.any()
    positive = labels(annotation([small, large], [small, large], [small], [large]))
    assert positive[2].tolist() == [True, True]


@pytest.mark.parametrize(("pixels", "expected"), [(2, SMALL), (3, LARGE), (4, LARGE)])
def test_size_is_the_measured_extent_of_the_outlines(annotation, pixels, expected):
    # 1 mm per pixel along x; the slice where the nodule is widest decides for all of them
    sessions = [[nodule(circle(4, 1), circle(5, pixels), circle(6, 1))]] * 4
    positive = labels(annotation(*sessions))
    assert positive[4:7, expected].all()
    assert not positive[:, 1 - expected].any()


def test_a_nodule_without_ratings_is_measured_like_any_other(annotation):
    rated = nodule(circle(4, 2)).replace("<roi>", "<characteristics/><roi>", 1)
    assert labels(annotation(*[[rated]] * 4))[4].tolist() == [True, False]


@pytest.mark.parametrize("shape", [(1, 2), (7, 2), (60, 2), (300, 2)])
def test_extent_is_the_largest_distance_of_all_pairs(shape):
    points = np.random.default_rng(shape[0]).integers(0, 40, shape).astype(float)
    spacing = (0.7, 1.3)
    scaled = points * [spacing[1], spacing[0]]
    every = np.hypot(*(scaled[:, None] - scaled[None]).transpose(2, 0, 1))
    assert extent(points, spacing) == pytest.approx(every.max())


def test_holes_are_no_marks(annotation):
    session = [nodule(circle(3, 6), circle(4, 6, inclusion="FALSE"))]
    positive = labels(annotation(*[session] * 4))
    assert positive[3, LARGE]
    assert not positive[4].any()


def test_marks_without_a_known_slice_are_placed_by_height(annotation):
    sessions = [
        [nodule(circle(3, 6, uid=""))],
        [nodule(circle(3, 6, uid="2.25.8"))],
        [nodule(circle(3, 6, uid="", height=-93))],
    ]
    assert labels(annotation(*sessions))[:, LARGE].nonzero()[0].tolist() == [3]
    away = annotation([nodule(circle(3, 6, uid="", height=-400))])
    assert positive_slices(away, scan(), 1, CARD)[1] == 1


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_annotations_read_with_and_without_a_namespace(annotation, namespace):
    found = annotation([nodule(point(1))], [], namespace=namespace)
    assert found.series == "2.25.1"
    assert [len(nodules) for nodules in found.readers] == [1, 0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<!DOCTYPE x [<!ENTITY a "b">]><LidcReadMessage/>', "declares a document type"),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><LidcReadMessage/>', "declares a document type"),
        ("<IdriReadMessage/>", "of another kind; expected a LidcReadMessage"),
        ("<LidcReadMessage>", "is not XML"),
        ("", "is not XML"),
        (message([nodule(point(1, "left"))]), "a edgeMap whose xCoord is not a number"),
        (message([nodule(point(1, "nan"))]), "xCoord is not a number"),
        (message([nodule(point(1, height="low"))]), "a roi whose imageZposition is not a number"),
        (message([nodule(roi(1, [(1, 1)] * 10_001))]), "an outline has 10,001 points"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_refused(tmp_path, text, reason):
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(RecordError, match=reason):
        read_annotation(tmp_path / "a.xml")


def test_missing_and_huge_annotations_are_refused(tmp_path, monkeypatch):
    with pytest.raises(RecordError, match="the annotation cannot be opened"):
        read_annotation(tmp_path / "none.xml")
    (tmp_path / "a.xml").write_text(message([]))
    monkeypatch.setattr(xml, "MAX_BYTES", 100)
    with pytest.raises(RecordError, match="expected at most 100"):
        read_annotation(tmp_path / "a.xml")


@pytest.fixture
def make_scan(tmp_path, write_slice):
    """Writes a series with its annotation and returns the raw folder."""

    def make(
        sessions, slices=30, patient="LIDC-IDRI-0042", series="2.25.1", folder=None, **changes
    ):
        place = tmp_path / "raw" / patient / "2.25.9" / (folder or series)
        for z in range(slices):
            values = np.full((8, 8), 1024 + z, np.int16)
            own = {"SOPInstanceUID": f"2.25.7.{z}", "SeriesInstanceUID": series} | changes
            write_slice(place / f"{z:06d}.dcm", values, -100 + 2.0 * z, **own)
        if sessions is not None:
            (place / "158.xml").write_text(message(*sessions, series=series))
        return tmp_path / "raw"

    return make


def read_only(root, choices=None):
    found = lidc.discover(root, CARD, choices or chosen())
    (item,) = found.items
    return lidc.read(root, item, CARD)


def many(slices, *, large=True):
    return [[nodule(*(circle(z, 6) if large else point(z) for z in slices))]] * 4


def test_a_window_is_positive_with_four_slices_and_not_with_three(make_scan):
    root = make_scan(many([20, 21, 22, 23, 24, 25, 26]), slices=48)
    targets = [record.target for record in read_only(root).records]
    assert targets == [[0, 1], [0, 0]]


def test_small_nodules_need_four_slices_in_one_window_too(make_scan):
    marks = [[nodule(point(z)) for z in (1, 5, 9, 13, 30, 31, 32)]] * 3
    targets = [record.target for record in read_only(make_scan([*marks, []], slices=48)).records]
    assert targets == [[1, 0], [0, 0]]


def test_windows_partition_the_scan_and_the_last_is_shifted_back(make_scan):
    root = make_scan(many([25, 26, 27, 28]), slices=30)
    records = read_only(root).records
    first_slices = [record.signal[0, 0, 0, 0] for record in records]
    assert first_slices == [0, 6]  # HU of a slice is its number
    assert [record.signal[0, -1, 0, 0] for record in records] == [23, 29]
    assert [record.target for record in records] == [[0, 0], [0, 1]]
    assert len({record.record_id for record in records}) == 2
    assert {record.unit_id for record in records} == {hashed_patient("lidc-idri", "2.25.1")}
    assert {record.valid_size for record in records} == {(24, 256, 256)}
    assert {record.scale for record in records} == {1.0}


def test_a_scan_of_few_slices_is_padded_with_air_and_counted(make_scan):
    reading = read_only(make_scan(many([1, 2, 3, 4]), slices=7))
    (record,) = reading.records
    assert record.valid_size == (7, 256, 256)
    assert (record.signal[0, 7:] == -1024).all()
    assert record.signal[0, :7, 3, 3].tolist() == list(range(7))
    assert record.target == [0, 1]
    assert reading.warnings == {"it has fewer than 24 slices and is padded with air": 1}


def test_warnings_of_the_series_reach_the_reading(make_scan):
    root = make_scan(many([1, 2, 3, 4]))
    next(root.rglob("000017.dcm")).unlink()
    reading = read_only(root)
    assert reading.warnings == {"slices are missing between others": 1}
    assert len(reading.records) == 2


def test_a_mark_on_a_lost_slice_is_counted(make_scan):
    root = make_scan(many([15, 16, 17, 18]))
    next(root.rglob("000016.dcm")).unlink()
    warnings = read_only(root).warnings
    assert warnings["a mark lies on none of its slices and is not used"] == 1


def test_agreement_can_be_chosen(make_scan):
    root = make_scan([many([1, 2, 3, 4])[0], [], [], []])
    assert [record.target for record in read_only(root).records] == [[0, 0]] * 2
    one = read_only(root, chosen(readers="1"))
    assert one.records[0].target == [0, 1]


def test_a_scan_that_too_few_radiologists_read_is_excluded(make_scan):
    root = make_scan(many([1, 2, 3, 4])[:2])
    with pytest.raises(RecordExcluded, match="fewer than 3 radiologists read it"):
        read_only(root)


def test_age_sex_and_device_come_from_the_header(make_scan):
    who = {"PatientAge": "093Y", "PatientSex": "F", "Manufacturer": "GE"}
    reading = read_only(make_scan(many([1]), ManufacturerModelName="LightSpeed", **who))
    expected = {"age": 90.0, "sex": "female", "device": "GE LightSpeed"}
    assert reading.records[0].metadata == expected
    without = read_only(make_scan(many([1]), PatientAge="", PatientSex="O"))
    assert without.records[0].metadata == {"age": None, "sex": None, "device": None}


def test_annotations_apart_from_the_images_are_matched_by_series(make_scan):
    root = make_scan(many([1, 2, 3, 4]))
    inside = next(root.rglob("*.xml"))
    apart = root / "LIDC-XML-only" / "tcia-lidc-xml" / "185" / "069.xml"
    apart.parent.mkdir(parents=True)
    inside.rename(apart)
    assert read_only(root).records[0].target == [0, 1]


def test_folders_that_do_not_name_their_series_are_identified_by_a_header(make_scan):
    root = make_scan(many([1, 2, 3, 4]), folder="3000566.000000-03192")
    assert read_only(root).records[0].target == [0, 1]


def test_of_several_annotations_of_a_scan_the_latest_is_taken(make_scan):
    root = make_scan(many([1, 2, 3, 4]))
    (root / "0.xml").write_text(message(*many([]), date="2012-03-09"))
    (root / "zz.xml").write_text(message(*many([1, 2, 3, 4], large=False), date="1999-01-01"))
    assert [record.target for record in read_only(root).records] == [[0, 0]] * 2


@pytest.mark.parametrize("name", ["no-such-encoding", "shift_jis", "utf-7", "undefined", "idna"])
def test_an_annotation_of_an_encoding_that_cannot_be_read_is_counted(make_scan, name):
    root = make_scan(many([1, 2, 3, 4]))
    odd = f'<?xml version="1.0" encoding="{name}"?><{lidc.ROOT}/>'
    (root / "odd.xml").write_text(odd)
    with pytest.raises(RecordError, match="the annotation is not XML, or damaged"):
        lidc.read_annotation(root / "odd.xml")
    found = lidc.discover(root, CARD, chosen())
    assert (len(found.items), found.missing) == (1, ["an annotation file that can be read"])


def test_several_annotations_of_a_scan_are_counted(make_scan):
    root = make_scan(many([1, 2, 3, 4]))
    for number in range(2):
        (root / f"{number}.xml").write_text(message(*many([]), date="2012-03-09"))
    found = lidc.discover(root, CARD, chosen())
    assert (len(found.items), found.excluded) == (1, {DUPLICATE: 2})


def test_hidden_files_of_a_mac_are_no_annotations_and_no_slices(make_scan):
    root = make_scan(many([1, 2, 3, 4]))
    for path in [*root.rglob("*.xml"), *root.rglob("*.dcm")]:
        path.with_name(f"._{path.name}").write_bytes(b"\x00\x05\x16\x07")
    found = lidc.discover(root, CARD, chosen())
    assert (len(found.items), found.missing, found.excluded) == (1, [], {})
    assert read_only(root).records[0].target == [0, 1]


def test_a_link_that_leads_back_ends(make_scan):
    root = make_scan(many([1, 2, 3, 4]))
    (root / "LIDC-IDRI-0042" / "back").symlink_to(root, target_is_directory=True)
    assert len(lidc.discover(root, CARD, chosen()).items) == 1


def test_chest_x_rays_and_their_annotations_are_passed_over(make_scan, write_slice):
    root = make_scan(many([1, 2, 3, 4]))
    other = root / "LIDC-IDRI-0042" / "2.25.11" / "2.25.12"
    for modality, name in (("DX", "a"), ("CR", "b")):
        folder = other.with_name(f"2.25.{len(name)}2{ord(name)}")
        write_slice(folder / "1.dcm", np.ones((8, 8)), 0.0, Modality=modality)
        (folder / "x.xml").write_text("<IdriReadMessage><ResponseHeader/></IdriReadMessage>")
    found = lidc.discover(root, CARD, chosen())
    assert (len(found.items), found.missing, found.excluded) == (1, [], {})


def test_scans_without_annotation_and_annotations_without_scan_are_counted(make_scan):
    make_scan(many([1]))
    root = make_scan(None, patient="LIDC-IDRI-0043", series="2.25.2")
    (root / "lone.xml").write_text(message([], series="2.25.3"))
    (root / "broken.xml").write_text("<LidcReadMessage")
    found = lidc.discover(root, CARD, chosen())
    assert len(found.items) == 1
    assert found.excluded == {"it has no annotation": 1}
    assert found.missing == [
        f"the scan of annotation {hashed_patient('lidc-idri', '2.25.3')}",
        "an annotation file that can be read",
    ]


def test_a_folder_whose_header_cannot_be_read_is_counted(make_scan):
    root = make_scan(many([1]))
    folder = root / "LIDC-IDRI-0044" / "odd"
    folder.mkdir(parents=True)
    (folder / "1.dcm").write_bytes(b"nothing")
    found = lidc.discover(root, CARD, chosen())
    assert found.excluded == {"the header of its first slice cannot be read": 1}


def test_the_same_scan_in_two_folders_is_taken_once(make_scan, build_here, tmp_path):
    root = make_scan(many([1, 2, 3, 4]), folder="first")
    shutil.copytree(next(root.rglob("first")), root / "LIDC-IDRI-0042" / "second")
    built = build_here("lidc-idri", root, tmp_path / "out")
    assert built.manifest["raw"]["records"] == 1
    assert built.manifest["excluded"] == {DUPLICATE: 2}  # the scan and its annotation


def test_a_folder_of_another_series_than_its_name_is_quarantined(make_scan):
    root = make_scan(many([1]))
    for path in list(root.rglob("*.dcm")):
        path.rename(path.with_suffix(".old"))
    make_scan(None, folder="2.25.1", series="2.25.2")
    with pytest.raises(RecordError, match="none of its files belongs to the series"):
        read_only(root)


def test_no_patient_or_file_name_enters_the_catalog(make_scan, build_here, tmp_path):
    make_scan(many([1, 2, 3, 4]))
    root = make_scan(many([1]), patient="LIDC-IDRI-0043", series="2.25.2")
    broken = root / "LIDC-IDRI-0043" / "2.25.9" / "2.25.2" / "000007.dcm"
    broken.write_bytes(b"LIDC-IDRI-0043")
    (root / "lone.xml").write_text(message([], series="2.25.3"))
    built = build_here("lidc-idri", root, tmp_path / "out", max_quarantined=0.5)
    (entry,) = built.manifest["quarantined"]
    assert entry["file"] is None
    assert "…: it cannot be read as a DICOM file" in entry["reason"]
    text = (built.path / "manifest.json").read_text()
    stored = b"".join(path.read_bytes() for path in (built.path / "shards").iterdir())
    for secret in ("0042", "0043", "2.25.1", "2.25.2", "2.25.3", "2.25.9", ".dcm"):
        assert secret not in text
        assert secret.encode() not in stored


def test_splits_go_by_patient(synthetic_ct):
    found = lidc.discover(synthetic_ct["lidc-idri"], CARD, chosen())
    by_patient = defaultdict(set)
    for item in found.items:
        patient = re.search(r"LIDC-IDRI-\d+", item.path)[0]
        assert item.split == hashed_split("lidc-idri", patient)
        assert item.group_id == hashed_patient("lidc-idri", patient)
        by_patient[item.group_id].add(item.record_id)
    assert max(map(len, by_patient.values())) == 2
    assert [item.record_id for item in found.items] == sorted(i.record_id for i in found.items)


def test_released_splits_are_seventy_and_fifteen_in_a_hundred_by_patient():
    splits = [lidc._split(CARD, f"LIDC-IDRI-{n:04d}", "released") for n in range(1, 1011)]
    held = Counter(splits)
    assert held["train"] / 1010 == pytest.approx(0.70, abs=0.04)
    assert held["validation"] / 1010 == pytest.approx(0.15, abs=0.04)
    assert held[None] == 1010 - held["train"] - held["validation"]


def test_released_counts_those_that_the_rule_leaves_out(synthetic_ct):
    root = synthetic_ct["lidc-idri"]
    clean = lidc.discover(root, CARD, chosen())
    released = lidc.discover(root, CARD, chosen("released"))
    reason = "the paper's rule puts it neither into training nor validation"
    assert released.excluded[reason] == len(clean.items) - len(released.items) > 0
    assert released.missing == []
    ids = {item.record_id for item in released.items}
    assert ids < {item.record_id for item in clean.items}


def test_catalog_holds_the_slices_of_the_series(ct_catalogs: dict[str, Catalog], synthetic_ct):
    import pyarrow.parquet as pq

    from benchmd_ray.data.records import decode_signals
    from benchmd_ray.data.transforms import resized_slice

    root, built = synthetic_ct["lidc-idri"], ct_catalogs["lidc-idri"]
    item = max(lidc.discover(root, CARD, chosen()).items, key=lambda i: i.split == "train")
    volume = read_series(root / item.path, item.details["series"])
    expected = np.stack([resized_slice(values, 256) for values in volume.slices()])
    held = {}
    for path, *_ in built.shards(item.split):
        table = pq.read_table(path)
        signals = decode_signals(table["signal"], built.signal)
        held |= dict(zip(table["record_id"].to_pylist(), signals, strict=True))
    own = sorted(name for name in held if name.startswith(item.record_id))
    assert np.array_equal(held[own[0]][0], expected[:24])
    assert np.array_equal(held[own[-1]][0], expected[-24:])


@pytest.mark.data
@pytest.mark.parametrize("name", ["069", "071"])
def test_real_annotations_hold_what_the_text_says(real_data, name):
    path = real_data / "lidc" / f"{name}.xml"
    found, text = read_annotation(path), path.read_text()
    sessions = text.split("<readingSession>")[1:]
    assert len(found.readers) == len(sessions) == 4
    assert found.series == re.search(r"<SeriesInstanceUid>([\d.]+)<", text)[1]
    for nodules, session in zip(found.readers, sessions, strict=True):
        blocks = re.findall(r"<unblindedReadNodule>(.*?)</unblindedReadNodule>", session, re.S)
        assert len(nodules) == len(blocks)
        for outlines, block in zip(nodules, blocks, strict=True):
            included = [r for r in re.findall(r"<roi>(.*?)</roi>", block, re.S) if "TRUE" in r]
            assert [len(o.points) for o in outlines] == [r.count("<edgeMap>") for r in included]
            for outline, part in zip(outlines, included, strict=True):
                assert outline.uid in part
                assert outline.height == float(re.search(r"imageZposition>\s*([-\d.]+)", part)[1])
                first = [float(re.search(rf"<{c}Coord>(\d+)<", part)[1]) for c in "xy"]
                assert outline.points[0].tolist() == first


@pytest.mark.data
def test_real_annotations_give_the_labels_of_a_count_by_hand(real_data):
    # Patient 1: 2.5 mm slices of 0.703125 mm pixels; all four outlined one nodule of 3 cm.
    text = (real_data / "lidc" / "069.xml").read_text()
    marked = defaultdict(lambda: defaultdict(set))
    for reader, session in enumerate(text.split("<readingSession>")[1:]):
        for block in re.findall(r"<unblindedReadNodule>(.*?)</unblindedRead", session, re.S):
            size = "large" if block.count("<edgeMap>") > 1 else "small"
            for z in re.findall(r"<imageZposition>\s*([-\d.]+)", block):
                marked[size][float(z)].add(reader)
    annotation = read_annotation(real_data / "lidc" / "069.xml")
    heights = np.arange(-340, -7.4, 2.5)
    origins = np.stack([np.zeros_like(heights), np.zeros_like(heights), heights], axis=1)
    volume = Volume(
        (len(heights), 512, 512),
        (2.5, 0.703125, 0.703125),
        origins,
        np.array([0, 0, 1.0]),
        np.zeros,
    )
    positive, unplaced = positive_slices(annotation, volume, 3, CARD)
    assert unplaced == 0
    for column, size in enumerate(("small", "large")):
        expected = {z for z, readers in marked[size].items() if len(readers) >= 3}
        assert set(heights[positive[:, column]]) == expected
    assert positive[:, LARGE].sum() >= 4
    assert 0 < positive[:, SMALL].sum() < 4


@pytest.mark.data
def test_real_scans_and_patients_are_as_many_as_the_card_says(real_data):
    table = pd.read_csv(
        real_data / "lidc" / "PatientId_SeriesUID.csv", header=None, names=["patient", "series"]
    )
    assert table["series"].nunique() == CARD.layouts["tcia"].records == 1018
    assert table["patient"].nunique() == 1010
    ids = {hashed_patient("lidc-idri", series) for series in table["series"]}
    assert len(ids) == 1018
    for name in ("069", "071"):
        series = read_annotation(real_data / "lidc" / f"{name}.xml").series
        assert series in set(table["series"])


def test_items_carry_only_plain_values(synthetic_ct):
    import json

    items = lidc.discover(synthetic_ct["lidc-idri"], CARD, chosen()).items
    again = RawItem(**json.loads(json.dumps({"path": items[0].path, "record_id": "a",
        "group_id": "b", "split": "train", "details": items[0].details})))  # fmt: skip
    assert again.details == items[0].details
