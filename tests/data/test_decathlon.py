"""Pairs of images and masks: found, read, and brought back to the grid of their files."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import SimpleITK
from in_process import build_in_process
from made_nifti import nifti

from benchmd_ray.data import build as building
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import decathlon
from benchmd_ray.data.discovery import discovered
from benchmd_ray.data.geometry import geometry_of, in_file, write_nifti
from benchmd_ray.data.raw import Choices
from benchmd_ray.data.records import RecordError, checked, targets_of
from benchmd_ray.data.verify import verify
from benchmd_ray.demo.segmentation import FLIPS, write_segmentation
from benchmd_ray.errors import BenchmdError

CARD = dataset_card("hippocampus")
OWN = Choices(options={"spacing": "own"})


def pair(root, values, mask, *, spacing=(1, 1, 1), direction=(1, 1, 1), name="a", of_mask=None):
    """Write an image and its mask; ``of_mask`` changes what the mask's file says."""
    for folder, array in (("imagesTr", values), ("labelsTr", mask)):
        image = SimpleITK.GetImageFromArray(array)
        image.SetSpacing(spacing)
        image.SetOrigin((-20.0, 3.5, 40.0))
        image.SetDirection(np.diag(direction).astype(float).ravel().tolist())
        if folder == "labelsTr" and of_mask is not None:
            of_mask(image)
        (root / folder).mkdir(parents=True, exist_ok=True)
        SimpleITK.WriteImage(image, str(root / folder / f"{name}.nii.gz"))
    return root


def drawn(shape=(9, 14, 11), seed=0):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 900, shape).astype(np.int16)
    return values, rng.integers(0, 3, shape).astype(np.uint8)


def first(root, choices=OWN, card=CARD):
    item = decathlon.discover(root, card, choices).items[0]
    return checked(decathlon.read(root, item, card).records[0], card)


def voxels(path):
    return SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path)))


@pytest.mark.parametrize("direction", FLIPS)
def test_a_mask_goes_back_to_the_very_voxels_of_its_file(tmp_path, direction):
    values, mask = drawn()
    root = pair(tmp_path, values, mask, spacing=(0.7, 1.1, 2.5), direction=direction)
    record = first(root)
    out = tmp_path / "back.nii.gz"
    write_nifti(in_file(record.target, record.geometry), out)
    np.testing.assert_array_equal(voxels(out), mask)
    held, expected = (SimpleITK.ReadImage(str(p)) for p in (out, root / "labelsTr" / "a.nii.gz"))
    for name in ("GetSize", "GetSpacing", "GetOrigin", "GetDirection"):
        np.testing.assert_allclose(getattr(held, name)(), getattr(expected, name)(), atol=1e-5)


def test_volumes_are_turned_to_left_back_and_head_and_padded(tmp_path):
    values, mask = drawn()
    record = first(pair(tmp_path, values, mask, direction=(-1, -1, 1)))
    turned = values[:, ::-1, ::-1]
    assert record.valid_size == turned.shape
    y, x = (64 - 14) // 2, (48 - 11) // 2
    np.testing.assert_array_equal(record.signal[0, :9, y : y + 14, x : x + 11], turned)
    np.testing.assert_array_equal(record.target[:9, y : y + 14, x : x + 11], mask[:, ::-1, ::-1])
    assert record.target.sum() == mask.sum()
    assert record.signal[0, 9:].min() == record.signal[0, 9:].max() == values.min()
    assert record.scale == 1.0


def test_floating_point_values_keep_their_ratios(tmp_path):
    values, mask = drawn()
    record = first(pair(tmp_path, values.astype(np.float32) / 7, mask))
    y, x = (64 - 14) // 2, (48 - 11) // 2
    stored = record.signal[0, :9, y : y + 14, x : x + 11] * record.scale
    np.testing.assert_allclose(stored, values / 7, atol=record.scale)


def test_masks_of_whole_floating_point_numbers_are_taken(tmp_path):
    values, mask = drawn()
    record = first(pair(tmp_path, values, mask.astype(np.float32)))
    assert record.target.dtype == np.uint8
    assert record.target.sum() == mask.sum()


def scaled_pair(root, stored, values, slope):
    for folder, array, own in (("imagesTr", values, 1), ("labelsTr", stored, slope)):
        (root / folder).mkdir()
        (root / folder / "a.nii").write_bytes(nifti(array, codes=(0, 0), scaling=(own, 0)))
    return root


@pytest.mark.parametrize(("slope", "times"), [(1.0000001, 1), (0.5, 2)])
def test_masks_behind_a_slope_are_those_that_were_meant(tmp_path, slope, times):
    values, mask = drawn()
    record = first(scaled_pair(tmp_path, mask * times, values, slope))
    assert sorted(record.target[record.target > 0]) == sorted(mask[mask > 0])


def test_a_slope_that_makes_no_mask_is_named(tmp_path):
    values, mask = drawn()
    root = scaled_pair(tmp_path, mask, values, 0.25)
    with pytest.raises(RecordError, match=r"its mask: it has the value 0\.\d+ by slope 0\.25 and"):
        first(root)


def test_a_place_that_headers_have_twice_is_counted(tmp_path):
    values, mask = drawn()
    for folder, array in (("imagesTr", values), ("labelsTr", mask)):
        (tmp_path / folder).mkdir()
        moved = np.column_stack([np.eye(3), (10, -5, 3)])
        content = nifti(array, codes=(1, 2), matrix=moved)
        (tmp_path / folder / "a.nii").write_bytes(content)
    item = decathlon.discover(tmp_path, CARD, OWN).items[0]
    reading = decathlon.read(tmp_path, item, CARD)
    said = "its qform (code 1) and sform (code 2) place voxels apart; the sform is taken"
    assert reading.warnings == {said: 1, f"its mask: {said}": 1}
    assert reading.records[0].geometry.file.origin == (-10, 5, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: np.where(m == 2, 3, m), r"value 3, expected whole numbers from 0 to 2 \(backg"),
        (lambda m: m + np.float32(0.5), r"mask has the value \d\.5, expected whole"),
        (lambda m: m.astype(np.int16) - 1, r"mask has the value -1, expected whole"),
        (lambda m: m[:-1], r"its mask has the extents \(11, 14, 8\), expected that of the image"),
    ],
)
def test_masks_of_other_values_or_extents_are_refused(tmp_path, change, message):
    values, mask = drawn()
    with pytest.raises(RecordError, match=message):
        first(pair(tmp_path, values, change(mask)))


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("SetSpacing", (1, 1, 1.01), "spacing"),
        ("SetOrigin", (-20, 3.5, 41), "origin"),
        ("SetDirection", (-1, 0, 0, 0, 1, 0, 0, 0, 1), "direction"),
    ],
)
def test_a_mask_on_another_grid_is_refused(tmp_path, name, value, found):
    root = pair(tmp_path, *drawn(), of_mask=lambda image: getattr(image, name)(value))
    with pytest.raises(RecordError, match=f"its mask has the {found} .*, expected that of the ima"):
        first(root)


def test_a_volume_larger_than_what_is_stored_is_refused(tmp_path):
    values, mask = drawn((49, 20, 20))
    with pytest.raises(RecordError, match=r"extents \(49, 20, 20\) \(z, y, x\), more than the "):
        first(pair(tmp_path, values, mask))


def test_resampled_volumes_are_in_their_place(tmp_path):
    mask = np.zeros((20, 30, 24), np.uint8)
    mask[4:16, 6:24, 4:20] = 1
    mask[4:16, 6:14, 4:20] = 2
    values = mask.astype(np.int16) * 100
    root = pair(tmp_path, values, mask, spacing=(2, 1, 1), direction=(-1, 1, 1))
    choices = Choices(options={"spacing": "2x1x1"})
    record = first(root, choices)
    assert record.valid_size == (10, 30, 48)
    assert record.geometry.stored.spacing == (1.0, 1.0, 2.0)
    back = SimpleITK.GetArrayFromImage(in_file(record.target, record.geometry))
    for label in (1, 2):  # a slice of 12 at either end may go to the neighbour
        both = ((back == label) & (mask == label)).sum()
        assert 2 * both / ((back == label).sum() + (mask == label).sum()) > 0.9


@pytest.mark.parametrize("text", ["", "0", "1x2", "1x1x99", "fine", "nan"])
def test_a_spacing_that_is_none_is_refused(tmp_path, text):
    root = pair(tmp_path, *drawn())
    with pytest.raises(
        BenchmdError, match=r"option spacing of hippocampus is .*, expected own, or"
    ):
        decathlon.discover(root, CARD, Choices(options={"spacing": text}))


def test_what_has_no_partner_is_told(tmp_path):
    for name in ("a", "b", "c"):
        pair(tmp_path, *drawn(), name=name)
    (tmp_path / "labelsTr" / "b.nii.gz").unlink()
    (tmp_path / "imagesTr" / "c.nii.gz").unlink()
    found = decathlon.discover(tmp_path, CARD, OWN)
    assert [item.record_id for item in found.items] == ["a"]
    assert found.missing == ["labelsTr/b.nii.gz"]
    assert found.excluded == {decathlon.NO_IMAGE: 1}


def test_two_masks_of_one_name_are_refused(tmp_path):
    pair(tmp_path, *drawn())
    image = SimpleITK.ReadImage(str(tmp_path / "labelsTr" / "a.nii.gz"))
    SimpleITK.WriteImage(image, str(tmp_path / "labelsTr" / "a.nii"))
    with pytest.raises(BenchmdError, match="1 masks of one name in two formats"):
        decathlon.discover(tmp_path, CARD, OWN)


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(BenchmdError, match="expected the folders imagesTr and labelsTr or images"):
        decathlon.discover(tmp_path, CARD, OWN)


@pytest.mark.parametrize("choice", [{"hold_out": ("x",)}, {"two_classes": ("x",)}])
def test_conditions_of_records_are_refused(tmp_path, choice):
    pair(tmp_path, *drawn())
    with pytest.raises(BenchmdError, match="has masks and no conditions of records"):
        decathlon.discover(tmp_path, CARD, dataclasses.replace(OWN, **choice))


def test_splits_depend_on_names_and_each_has_its_share(tmp_path):
    root = write_segmentation(tmp_path, source_records=20)["hippocampus"]
    splits = {i.record_id: i.split for i in decathlon.discover(root, CARD, OWN).items}
    counts = [list(splits.values()).count(name) for name in ("train", "validation", "test")]
    assert counts == [14, 2, 4]
    again = {i.record_id: i.split for i in decathlon.discover(root, CARD, OWN).items}
    assert again == splits


def test_names_are_hashed_where_they_name_patients(tmp_path):
    pair(tmp_path, *drawn(), name="Anna-Meier")
    card = dataclasses.replace(CARD, private_names=True)
    (item,) = decathlon.discover(tmp_path, card, OWN).items
    assert "Anna" not in item.record_id + item.group_id


def test_a_built_catalog_has_masks_and_geometry(tmp_path, monkeypatch):
    raw = write_segmentation(tmp_path / "raw", source_records=12)["hippocampus"]
    build_in_process(monkeypatch)
    catalog = building.build("hippocampus", raw, tmp_path / "out", allow_missing=True)
    assert verify(catalog).faults == ()
    assert catalog.manifest["splits"]["train"]["classes"]["posterior"] == catalog.rows("train")
    seen = 0
    for split in catalog.manifest["splits"]:
        for table in catalog.tables(split):
            masks = targets_of(table["target"], catalog.card.target)
            rows = zip(
                table["record_id"].to_pylist(), table["geometry"].to_pylist(), masks, strict=True
            )
            for name, geometry, mask in rows:
                back = SimpleITK.GetArrayFromImage(in_file(mask, geometry_of(geometry)))
                expected = voxels(raw / "labelsTr" / f"{name}.nii.gz")
                np.testing.assert_array_equal(back, expected)
                seen += 1
    assert seen == 12


def test_a_broken_pair_is_quarantined(tmp_path, monkeypatch):
    raw = write_segmentation(tmp_path / "raw", source_records=12)["hippocampus"]
    pair(raw, *drawn((9, 70, 9)), name="hippocampus_900")
    build_in_process(monkeypatch)
    catalog = building.build(
        "hippocampus", raw, tmp_path / "out", allow_missing=True, max_quarantined=0.2
    )
    (entry,) = catalog.manifest["quarantined"]
    assert entry["record"] == "hippocampus_900"
    assert "more than the (48, 64, 48) that hippocampus stores" in entry["reason"]


@pytest.mark.data
def test_real_masks_go_back_to_their_files(real_data):
    raw = real_data / "segmentation" / "hippocampus"
    if not raw.is_dir():
        pytest.skip(f"no {raw}")
    _, found, card = discovered(CARD, raw, "clean", None, {})
    for item in found.items[::40]:
        record = checked(decathlon.read(raw, item, card).records[0], card)
        back = SimpleITK.GetArrayFromImage(in_file(record.target, record.geometry))
        np.testing.assert_array_equal(back, voxels(raw / item.details["mask"]))
