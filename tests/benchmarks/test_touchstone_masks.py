"""Reading masks of one case: layouts, formats, geometry, and what is refused."""

import dataclasses
import gzip
import os
import struct
import unicodedata
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK
from made_masks import boxes, card, write, write_masks
from made_nifti import nifti
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from benchmd_ray.benchmarks.touchstone.case import score_case
from benchmd_ray.benchmarks.touchstone.layouts import cases_of, files_of
from benchmd_ray.benchmarks.touchstone.masks import Labels, axes_of, claimed, read_labels, resampled
from benchmd_ray.benchmarks.touchstone.tasks import task_named
from benchmd_ray.data.readers import nrrd
from benchmd_ray.data.records import RecordError
from benchmd_ray.errors import BenchmdError

FORMS = ("NFC", "NFD")
FLIPPED = (-1, 0, 0, 0, 1, 0, 0, 0, 1)


def asked(folder, reference, prediction, layouts=("plain", "plain"), resample=False):
    task = task_named(str(card(folder)))
    return {
        "task": dataclasses.asdict(task),
        "tolerances": task.tolerances(),
        "reference": dataclasses.asdict(files_of(reference, task)),
        "prediction": dataclasses.asdict(files_of(prediction, task)),
        "layouts": list(layouts),
        "resample": resample,
    }


def scores(folder, reference, prediction, **how):
    rows, notes = score_case(asked(folder, reference, prediction, **how))
    return {row["class"]: row for row in rows}, notes


@pytest.fixture
def pair(tmp_path):
    return (
        write(tmp_path / "reference.nii.gz", boxes()),
        write(tmp_path / "prediction.nii.gz", boxes(shift=1)),
    )


def test_both_layouts_give_the_same_scores(tmp_path, pair):
    expected, _ = scores(tmp_path, *pair)
    folders = [write_masks(tmp_path / f"{n}", boxes(shift=n)) for n in (0, 1)]
    turned = [write(tmp_path / f"{n}.nrrd", (3 - boxes(shift=n)) % 3) for n in (0, 1)]
    for reference, prediction, layouts in (
        (*folders, ("", "")),
        (pair[0], folders[1], ("plain", "")),
        (folders[0], pair[1], ("", "plain")),
        (*turned, ("reversed", "reversed")),
    ):
        assert scores(tmp_path, reference, prediction, layouts=layouts)[0] == expected
    near = expected["near"]
    assert near["volume_ref_ml"] == pytest.approx(4 * 6 * 7 * 1.2 / 1000)
    assert near["dsc"] == pytest.approx(2 * 5 * 28 / (6 * 28 + 6 * 28 - 1))  # one of six rows apart


def test_masks_are_found_by_the_names_of_another_layout(tmp_path, pair):
    folder = write_masks(tmp_path / "case", boxes(shift=1), {"near_one": 1, "far": 2, "other": 3})
    assert scores(tmp_path, pair[0], folder)[0] == scores(tmp_path, *pair)[0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"spacing": (1.5, 0.8, 1.1)}, "spacing 1.5 × 0.8 × 1.1 mm, expected 1.5 × 0.8 × 1 mm"),
        ({"origin": (0.0, 5.0, 0.0)}, r"first voxel at \(0, 5, 0\) mm, expected \(0, 0, 0\)"),
        ({"direction": FLIPPED}, "axes RPS, expected LPS"),
        ({"direction": (0, 1, 0, 1, 0, 0, 0, 0, 1)}, "axes PLS, expected LPS"),
    ],
)
def test_another_geometry_is_refused_with_what_was_found_and_expected(
    tmp_path, pair, changed, said
):
    other = write(tmp_path / "other.nii.gz", boxes(shift=1), **changed)
    with pytest.raises(RecordError, match=f"other.nii.gz has another grid: .*{said}.*--resample"):
        scores(tmp_path, pair[0], other)


def test_another_shape_and_another_order_of_axes_are_refused(tmp_path, pair):
    cropped = write(tmp_path / "cropped.nii.gz", boxes()[1:])
    turned = write(tmp_path / "turned.nii.gz", boxes().transpose(2, 1, 0).copy())
    for other, said in (
        (cropped, "shape 11 × 14 × 16, expected 12"),
        (turned, "shape 16 × 14 × 12"),
    ):
        with pytest.raises(RecordError, match=said):
            scores(tmp_path, pair[0], other)


def test_a_tolerance_of_whole_steps_does_not_depend_on_the_bits_of_a_header(tmp_path):
    """NIfTI holds 0.8 mm in 32 bits, which is a little more."""
    found = []
    for suffix in ("nii.gz", "nrrd"):
        for name, shift in (("reference", 0), ("prediction", 5)):
            labels = np.zeros((6, 20, 6), np.uint8)
            labels[2:4, 2 + shift : 8 + shift, 2:4], labels[0, 0, 0] = 1, 2
            write(tmp_path / f"{name}.{suffix}", labels)
        sides = (tmp_path / f"{name}.{suffix}" for name in ("reference", "prediction"))
        request = asked(tmp_path, *sides) | {"tolerances": {"near": 4.0, "far": 4.0}}
        found.append(score_case(request)[0][0]["nsd"])
    assert found == [1.0, 1.0]


def test_rounding_of_a_header_is_no_other_geometry(tmp_path, pair):
    near = write(
        tmp_path / "near.nii.gz", boxes(shift=1), spacing=(1.5004, 0.8, 1.0), origin=(0.004, 0, 0)
    )
    assert scores(tmp_path, pair[0], near)[0] == scores(tmp_path, *pair)[0]


def test_resampling_undoes_a_flip_without_loss(tmp_path, pair):
    flipped = write(
        tmp_path / "flipped.nii.gz",
        boxes(shift=1)[:, :, ::-1].copy(),
        direction=FLIPPED,
        origin=(15.0, 0, 0),
    )
    found, notes = scores(tmp_path, pair[0], flipped, resample=True)
    assert notes.resampled
    assert found == scores(tmp_path, *pair)[0]


def test_resampling_takes_the_nearest_voxel_and_background_outside(tmp_path):
    fine = read_labels(
        write(tmp_path / "f.nii.gz", np.full((4, 4, 4), 7, np.uint8), spacing=(1, 1, 1))
    )
    coarse = read_labels(
        write(tmp_path / "c.nii.gz", np.zeros((2, 2, 4), np.uint8), spacing=(2, 2, 2))
    ).geometry
    found = resampled(Labels(fine.values, fine.geometry), coarse).values
    assert found[:, :, :2].tolist() == [[[7, 7], [7, 7]], [[7, 7], [7, 7]]]
    assert not found[:, :, 2:].any()


def test_labels_outside_the_task_are_refused_or_noted(tmp_path, pair):
    labels = boxes(shift=1)
    labels[0, 0, 0] = 5
    other = write(tmp_path / "other.nii.gz", labels)
    with pytest.raises(RecordError, match="labels 5 are outside the task, whose layout has 1, 2"):
        scores(tmp_path, pair[0], other)
    _, notes = scores(tmp_path, pair[0], other, layouts=("plain", "reversed"))
    assert notes.ignored == [5]
    labels[0, 0, 0] = 10  # beyond what that layout has
    write(other, labels)
    with pytest.raises(RecordError, match="labels 10 are outside"):
        scores(tmp_path, pair[0], other, layouts=("plain", "reversed"))


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.5, "the value 0.5, expected whole labels"), (-1, "values from -1"), (np.nan, "from nan")],
)
def test_numbers_that_are_no_labels_are_refused(tmp_path, pair, value, said):
    labels = boxes(shift=1).astype(np.float32)
    labels[3, 3, 3] = value
    with pytest.raises(RecordError, match=said):
        scores(tmp_path, pair[0], write(tmp_path / "odd.nrrd", labels))


def test_whole_numbers_in_a_file_of_floats_are_labels(tmp_path, pair):
    floats = write(tmp_path / "f.nii.gz", boxes(shift=1).astype(np.float64))
    assert scores(tmp_path, pair[0], floats)[0] == scores(tmp_path, *pair)[0]


@pytest.mark.parametrize("values", [(1, 2), (0.3,), (-1,)])
def test_a_mask_of_several_values_or_probabilities_is_refused(tmp_path, pair, values):
    folder = write_masks(tmp_path / "case", boxes(shift=1))
    odd = np.zeros(boxes().shape, np.float32)
    odd.flat[: len(values)] = values
    write(folder / "segmentations" / "far.nii.gz", odd)
    with pytest.raises(
        RecordError, match=r"far\.nii\.gz has the values .*expected a mask of 0 and 1"
    ):
        scores(tmp_path, pair[0], folder)


def test_overlapping_masks_are_counted_and_scored_each_from_its_own_file(tmp_path, pair):
    folder = write_masks(tmp_path / "case", boxes(shift=1))
    everywhere = np.ones(boxes().shape, np.uint8)
    write(folder / "segmentations" / "far.nii.gz", everywhere)
    found, notes = scores(tmp_path, pair[0], folder)
    assert notes.overlapping == int((boxes(shift=1) == 1).sum())
    assert found["near"] == scores(tmp_path, *pair)[0]["near"]


def test_masks_of_one_case_on_different_grids_are_refused(tmp_path, pair):
    folder = write_masks(tmp_path / "case", boxes(shift=1))
    write(folder / "segmentations" / "far.nii.gz", boxes() // 2, spacing=(3, 1, 1))
    with pytest.raises(RecordError, match=r"far\.nii\.gz has another grid.*as near\.nii\.gz"):
        scores(tmp_path, pair[0], folder)


def test_a_folder_without_a_mask_of_each_class_is_refused(tmp_path, pair):
    folder = write_masks(tmp_path / "case", boxes(), {"near": 1})
    with pytest.raises(RecordError, match="no mask of far"):
        scores(tmp_path, pair[0], folder)


def test_one_class_in_two_files_is_refused(tmp_path, pair):
    folder = write_masks(tmp_path / "case", boxes(), {"near": 1, "near_one": 1, "far": 2})
    with pytest.raises(RecordError, match="near appears twice"):
        scores(tmp_path, pair[0], folder)


def test_two_files_of_one_case_are_refused(tmp_path):
    task = task_named(str(card(tmp_path)))
    for suffix in ("nii.gz", "nrrd"):
        write(tmp_path / "labels" / f"one.{suffix}", boxes())
    with pytest.raises(BenchmdError, match=r"the case one twice, one\.nii\.gz and one\.nrrd"):
        cases_of(tmp_path / "labels", task)


def test_cases_have_one_name_in_either_form_of_unicode(tmp_path):
    task, name = task_named(str(card(tmp_path))), "f\u00e4ll"
    files = {
        form: tmp_path / form / unicodedata.normalize(form, f"{name}.nii.gz") for form in FORMS
    }
    for path in files.values():
        write(path, boxes())
    found = {form: cases_of(tmp_path / form, task) for form in FORMS}
    assert [list(cases) for cases in found.values()] == [[name], [name]]
    assert {form: Path(cases[name].labels) for form, cases in found.items()} == files


def test_a_folder_without_cases_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BenchmdError, match="has no case: expected files"):
        cases_of(tmp_path / "empty", task_named(str(card(tmp_path))))


def test_an_image_next_to_the_labels_is_not_a_mask(tmp_path):
    task = task_named(str(card(tmp_path)))
    write(tmp_path / "all" / "one" / "ct.nii.gz", boxes())
    write(tmp_path / "all" / "one" / "combined_labels.nii.gz", boxes())
    found = cases_of(tmp_path / "all", task)["one"]
    assert Path(found.labels).name == "combined_labels.nii.gz"


@pytest.mark.parametrize("name", ["x.nii.gz", "x.nii", "x.nrrd"])
def test_a_file_that_is_cut_off_is_refused(tmp_path, name):
    path = write(tmp_path / name, boxes())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(RecordError):
        read_labels(path)


def test_a_header_that_claims_more_than_is_taken_is_refused_before_anything_is_held(tmp_path):
    path = write(tmp_path / "x.nii", boxes())
    content = bytearray(path.read_bytes())
    content[42:48] = struct.pack("<3h", 30000, 30000, 30000)
    path.write_bytes(content)
    with pytest.raises(RecordError, match="too large"):
        read_labels(path)
    text = b"NRRD0004\ntype: uchar\ndimension: 3\nsizes: 90000 90000 90000\nencoding: gzip\n\n"
    (tmp_path / "y.nrrd").write_bytes(text)
    with pytest.raises(RecordError, match="too large"):
        read_labels(tmp_path / "y.nrrd")


def test_a_nrrd_header_does_not_reach_for_other_files(tmp_path):
    fields = ("type: uchar", "dimension: 3", "sizes: 2 2 2", "encoding: raw")
    text = "\n".join(("NRRD0004", *fields, "data file: /etc/passwd", "", ""))
    (tmp_path / "x.nrrd").write_text(text)
    with pytest.raises(RecordError, match="in another file"):
        read_labels(tmp_path / "x.nrrd")


def test_sizes_are_known_from_headers(tmp_path):
    expected = boxes().size
    for name in ("a.nii.gz", "a.nii", "a.nrrd"):
        assert claimed(write(tmp_path / name, boxes())) == (expected, 1)
        assert claimed(write(tmp_path / name, boxes().astype(np.float64))) == (expected, 8)
    assert claimed(dicom_series(tmp_path / "series", boxes())) == (expected, 8)
    assert claimed(segmentation(tmp_path / "x.dcm", boxes()))[0] > 0
    (tmp_path / "broken.nii.gz").write_bytes(b"no file")
    assert claimed(tmp_path / "broken.nii.gz") == (0, 0)


def test_axes_are_named_by_where_they_point():
    assert axes_of((1, 0, 0, 0, 1, 0, 0, 0, 1)) == "LPS"
    assert axes_of((-1, 0, 0, 0, -1, 0, 0, 0, 1)) == "RAS"
    tilted = (1, 0, 0, 0, 0.8, -0.6, 0, 0.6, 0.8)
    assert axes_of(tilted).startswith("LPS (1, 0, 0, 0, 0.8")


# --- DICOM --------------------------------------------------------------------------------------


def file_of(path, dataset):
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = generate_uid()
    path.parent.mkdir(parents=True, exist_ok=True)
    pydicom.dcmwrite(path, dataset, enforce_file_format=True)
    return path


def image(shape, bits):
    dataset = Dataset()
    dataset.Rows, dataset.Columns = shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = bits
    dataset.HighBit, dataset.PixelRepresentation = bits - 1, 0
    return dataset


def dicom_series(folder, labels):
    """A series whose pixels are labels, on the grid of `made_masks.write`."""
    series = generate_uid()
    for number, plane in enumerate(labels):
        one = image(plane.shape, 8)
        one.SOPClassUID, one.Modality = "1.2.840.10008.5.1.4.1.1.2", "CT"
        one.SeriesInstanceUID, one.InstanceNumber = series, number + 1
        one.ImagePositionPatient = [0, 0, 1.5 * number]
        one.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        one.PixelSpacing, one.SliceThickness = [0.8, 1.0], 1.5
        one.PixelData = plane.tobytes()
        file_of(folder / f"{number:03}.dcm", one)
    return folder


def segmentation(path, labels, names=("near", "far"), kind="BINARY"):
    """A DICOM segmentation of the slices that have any, on the same grid."""
    frames = [
        (number, z) for number in (1, 2) for z in range(len(labels)) if (labels[z] == number).any()
    ]
    dataset = image(labels.shape[1:], 1)
    dataset.SOPClassUID, dataset.Modality = "1.2.840.10008.5.1.4.1.1.66.4", "SEG"
    dataset.SegmentationType, dataset.NumberOfFrames = kind, len(frames)
    dataset.SegmentSequence = []
    for number, name in enumerate(names, 1):
        item = Dataset()
        item.SegmentNumber, item.SegmentLabel = number, name
        dataset.SegmentSequence.append(item)
    shared, measures, oriented = Dataset(), Dataset(), Dataset()
    measures.PixelSpacing, measures.SliceThickness = [0.8, 1.0], 1.5
    measures.SpacingBetweenSlices = 1.5
    oriented.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    shared.PixelMeasuresSequence, shared.PlaneOrientationSequence = [measures], [oriented]
    dataset.SharedFunctionalGroupsSequence = [shared]
    dataset.PerFrameFunctionalGroupsSequence = []
    for number, z in frames:
        group, named, place = Dataset(), Dataset(), Dataset()
        named.ReferencedSegmentNumber, place.ImagePositionPatient = number, [0, 0, 1.5 * z]
        group.SegmentIdentificationSequence, group.PlanePositionSequence = [named], [place]
        dataset.PerFrameFunctionalGroupsSequence.append(group)
    bits = np.concatenate([(labels[z] == number).reshape(-1) for number, z in frames])
    packed = np.packbits(bits, bitorder="little").tobytes()
    dataset.PixelData = packed + b"\0" * (len(packed) % 2)
    return file_of(path, dataset)


def test_a_dicom_series_of_labels_scores_as_the_same_nifti(tmp_path, pair):
    series = dicom_series(tmp_path / "series", boxes(shift=1))
    assert scores(tmp_path, pair[0], series)[0] == scores(tmp_path, *pair)[0]


def test_a_dicom_segmentation_scores_as_the_same_nifti(tmp_path, pair):
    """Slices without any segment are absent from the file, on either side or both."""
    expected = scores(tmp_path, *pair)[0]
    own = segmentation(tmp_path / "own.dcm", boxes())
    other = segmentation(tmp_path / "other.dcm", boxes(shift=1), names=("Near", "FAR"))
    for reference, prediction in ((pair[0], other), (own, pair[1]), (own, other)):
        assert scores(tmp_path, reference, prediction)[0] == expected


def test_dicom_segmentations_of_different_slices_are_compared_on_all_of_them(tmp_path):
    low, high = np.zeros((12, 14, 16), np.uint8), np.zeros((12, 14, 16), np.uint8)
    low[1:4, 2:5, 2:5], low[6, 8, 8], high[3:9, 2:5, 2:5], high[9, 8, 8] = 1, 2, 1, 2
    expected = scores(
        tmp_path, write(tmp_path / "l.nii.gz", low), write(tmp_path / "h.nii.gz", high)
    )[0]
    own, other = (segmentation(tmp_path / f"{n}.dcm", x) for n, x in (("l", low), ("h", high)))
    assert scores(tmp_path, own, other)[0] == expected
    assert scores(tmp_path, other, own)[0]["near"]["dsc"] == expected["near"]["dsc"]


def label_map(path, labels, *, numbers=(1, 2), background=0, described=(), bits=8, **elements):
    """A DICOM label map of the slices that have any, on the same grid; near and far by numbers."""
    values = np.full(labels.shape, background, np.uint8 if bits == 8 else np.uint16)
    for label, number in enumerate(numbers, 1):
        values[labels == label] = number
    slices = [z for z in range(len(labels)) if labels[z].any()]
    path = segmentation(path, labels)
    dataset = pydicom.dcmread(path)
    dataset.SOPClassUID, dataset.SegmentationType = "1.2.840.10008.5.1.4.1.1.66.7", "LABELMAP"
    dataset.BitsAllocated = dataset.BitsStored = bits
    dataset.HighBit, dataset.NumberOfFrames = bits - 1, len(slices)
    for item, number in zip(dataset.SegmentSequence, numbers, strict=True):
        item.SegmentNumber = number
    for number in described:
        item = Dataset()
        item.SegmentNumber, item.SegmentLabel = number, f"other {number}"
        dataset.SegmentSequence.append(item)
    dataset.PerFrameFunctionalGroupsSequence = []
    for z in slices:
        group, place = Dataset(), Dataset()
        place.ImagePositionPatient = [0, 0, 1.5 * z]
        group.PlanePositionSequence = [place]
        dataset.PerFrameFunctionalGroupsSequence.append(group)
    dataset.PixelData = values[slices].tobytes()
    for keyword, value in elements.items():
        dataset.add_new(keyword, "US" if isinstance(value, int) else "CS", value)
    return file_of(path, dataset)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"described": (0,)},  # the background as a segment of its own
        {"numbers": (7, 3), "described": (0, 9)},
        {"numbers": (1, 700), "bits": 16},
        {"background": 255, "PixelPaddingValue": 255},
        {"PhotometricInterpretation": "PALETTE COLOR"},
    ],
)
def test_a_dicom_label_map_scores_as_the_same_nifti(tmp_path, pair, how):
    expected = scores(tmp_path, *pair)[0]
    own = label_map(tmp_path / "own.dcm", boxes(), **how)
    other = label_map(tmp_path / "other.dcm", boxes(shift=1), **how)
    binary = segmentation(tmp_path / "binary.dcm", boxes())
    for reference, prediction in ((pair[0], other), (own, pair[1]), (own, other), (binary, other)):
        assert scores(tmp_path, reference, prediction)[0] == expected
    assert claimed(own) == (7 * 14 * 16, how.get("bits", 8) // 8)


def test_a_dicom_label_map_of_values_that_are_no_segments_is_refused(tmp_path, pair):
    odd = boxes(shift=1)
    odd[3, 3, 3] = 3
    path = label_map(tmp_path / "x.dcm", odd)
    dataset = pydicom.dcmread(path)
    values = bytearray(dataset.PixelData)
    values[0] = 9
    dataset.PixelData = bytes(values)
    file_of(path, dataset)
    with pytest.raises(RecordError, match="its pixels have the values 9, which no segment is des"):
        scores(tmp_path, pair[0], path)
    for kind in ("BINARY", "FRACTIONAL"):
        other = label_map(tmp_path / "y.dcm", boxes(), SegmentationType=kind)
        with pytest.raises(RecordError, match="of the type BINARY or LABELMAP"):
            scores(tmp_path, pair[0], other)


@pytest.mark.parametrize("keeps_meta", [True, False])
def test_slices_without_preamble_are_slices(tmp_path, pair, keeps_meta):
    series = dicom_series(tmp_path / "series", boxes(shift=1))
    (series / "notes.txt").write_bytes(b"\x08\0 no slice")
    for path in series.glob("*.dcm"):
        content = path.read_bytes()
        start = 132 if keeps_meta else 144 + int.from_bytes(content[140:144], "little")
        path.write_bytes(content[start:])
    assert scores(tmp_path, pair[0], series)[0] == scores(tmp_path, *pair)[0]


def test_a_dicom_segmentation_without_the_tasks_segments_is_refused(tmp_path, pair):
    other = segmentation(tmp_path / "x.dcm", boxes(), names=("heart", "lung"))
    with pytest.raises(RecordError, match="no segment that is named as a class"):
        scores(tmp_path, pair[0], other)
    fractional = segmentation(tmp_path / "y.dcm", boxes(), kind="FRACTIONAL")
    with pytest.raises(RecordError, match="of the type BINARY or LABELMAP"):
        scores(tmp_path, pair[0], fractional)


@pytest.mark.data
def test_the_spleen_of_a_real_pair_scores_as_surface_distance_does(real_data):
    """0.684 × 0.684 × 5 mm; figures of the package surface-distance 0.1, of these files."""
    task, folder = task_named("spleen"), real_data / "segmentation" / "spleen"
    reference, prediction = (folder / f"spleen1_label_{n}.nii.gz" for n in ("gt", "auto"))
    found = []
    for tolerance in ("1", "2", "3"):
        request = {
            "task": dataclasses.asdict(task),
            "tolerances": task.tolerances(tolerance),
            "reference": dataclasses.asdict(files_of(reference, task)),
            "prediction": dataclasses.asdict(files_of(prediction, task)),
            "layouts": ["", ""],
            "resample": False,
        }
        (row,), _ = score_case(request)
        found.append(row["nsd"])
    np.testing.assert_allclose(found, [0.610, 0.702, 0.775], atol=5e-4)
    assert row["hd95"] == pytest.approx(9.57, abs=5e-3)


@pytest.mark.data
@pytest.mark.parametrize("one_file_each", [False, True])
def test_nine_organs_of_a_real_case_have_the_dice_that_nibabel_gives(real_data, one_file_each):
    """Two outputs of TotalSegmentator; figures counted over its label maps, as read by nibabel."""
    task, folder = task_named("abdomen9"), real_data / "segmentation" / "totalsegmentator"
    fast = folder / ("example_seg_fast" if one_file_each else "example_seg_fast.nii.gz")
    request = {
        "task": dataclasses.asdict(task),
        "tolerances": task.tolerances(),
        "reference": dataclasses.asdict(files_of(folder / "example_seg.nii.gz", task)),
        "prediction": dataclasses.asdict(files_of(fast, task)),
        "layouts": ["totalsegmentator"] * 2,
        "resample": False,
    }
    rows, _ = score_case(request)
    expected = [0.9774, 0.9641, 0.9731, 0.9202, 0.9814, 0.9536, 0.9175, 0.9419, 0.8087]
    np.testing.assert_allclose([row["dsc"] for row in rows], expected, atol=5e-5)


@pytest.mark.data
def test_labels_on_real_dicom_slices_are_those_of_the_nifti_but_for_turned_axes(
    real_data, tmp_path
):
    folder = real_data / "segmentation" / "totalsegmentator"
    mask = folder / "example_seg_dicom.nii.gz"
    labels = read_labels(mask).values.astype(np.uint8)
    headers = [pydicom.dcmread(path) for path in (folder / "example_ct_dicom").iterdir()]
    headers.sort(key=lambda header: header.ImagePositionPatient[2])
    series, slices = generate_uid(), tmp_path / "series"
    for number, (header, plane) in enumerate(zip(headers, labels, strict=True)):
        header.SeriesInstanceUID, header.SOPClassUID = series, "1.2.840.10008.5.1.4.1.1.2"
        header.PixelData = plane[::-1].astype(np.uint16).tobytes()  # the file runs to the front
        header.RescaleIntercept, header.RescaleSlope = 0, 1
        file_of(slices / f"CT.{number}", header)
    task = task_named("abdomen9")
    request = {
        "task": dataclasses.asdict(task),
        "tolerances": task.tolerances(),
        "reference": dataclasses.asdict(files_of(mask, task)),
        "prediction": dataclasses.asdict(files_of(slices, task)),
        "layouts": ["totalsegmentator"] * 2,
        "resample": False,
    }
    with pytest.raises(RecordError, match="axes LPS, expected LAS"):
        score_case(request)
    rows, _ = score_case(request | {"resample": True})
    there = [row for row in rows if row["code"] != "absent"]
    assert there
    assert {(row["code"], row["dsc"], row["nsd"], row["hd95"]) for row in there} == {
        ("both", 1.0, 1.0, 0.0)
    }


def changed_header(path, place, kind, *values):
    content = bytearray(path.read_bytes())
    content[place : place + struct.calcsize(kind)] = struct.pack(kind, *values)
    path.write_bytes(content)
    return path


SROW_X, PIXDIM, QOFFSET = 280, 80, 268


@pytest.mark.parametrize(
    ("place", "values", "said"),
    [
        (SROW_X, (-1, 0.6928203, 0, 0, 0, -0.4, 0, 0), "its directions are not at right angles"),
        (PIXDIM, (4.0,), r"4 × 0.8 × 1.5 mm by pixdim and 1 × 0.8 × 1.5 mm by sform"),
        (QOFFSET, (50.0,), "its qform and sform place voxels 50 mm apart"),
        (SROW_X, (1.0, 0.0, 0.0), "its qform and sform place voxels"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(tmp_path, place, values, said):
    path = write(tmp_path / "x.nii", boxes())
    read_labels(path)
    with pytest.raises(RecordError, match=said):
        read_labels(changed_header(path, place, f"<{len(values)}f", *values))


def test_places_in_two_spaces_are_noted_and_the_sforms_is_taken(tmp_path, pair):
    expected = scores(tmp_path, *pair)[0]
    path = write(tmp_path / "x.nii", boxes(shift=1))
    changed_header(changed_header(path, QOFFSET, "<f", 50.0), 252, "<h", 2)
    found, notes = scores(tmp_path, pair[0], path)
    assert found == expected
    said = "x.nii: its qform (code 2) and sform (code 1) place voxels apart; the sform is taken"
    assert notes.warnings == [said]


def test_another_place_by_the_sform_is_refused_and_the_qform_named(tmp_path, pair):
    """SimpleITK places both by their qforms, which are equal."""
    path = changed_header(write(tmp_path / "x.nii", boxes(shift=1)), SROW_X + 12, "<f", 10.0)
    changed_header(path, 254, "<h", 2)
    reader = SimpleITK.ImageFileReader()
    reader.SetFileName(str(path))
    assert reader.Execute().GetOrigin() == (0, 0, 0)
    said = r"first voxel at \(-10, 0, 0\) mm, expected \(0, 0, 0\) .* qform \(code 1\) and sform"
    with pytest.raises(RecordError, match=said):
        scores(tmp_path, pair[0], path)


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("name", ["x.nii.gz", "x.nrrd"])
def test_labels_of_every_whole_type_score_alike(tmp_path, pair, kind, name):
    expected = scores(tmp_path, *pair)[0]
    if name == "x.nrrd":
        path = write(tmp_path / name, boxes(shift=1).astype(kind))
    else:
        values = nifti(boxes(shift=1).astype(kind), spacing=(1, 0.8, 1.5), codes=(0, 0))
        (tmp_path / name).write_bytes(gzip.compress(values))
        path = tmp_path / name
    assert scores(tmp_path, pair[0], path)[0] == expected
    assert claimed(path) == (boxes().size, int(kind[1]))
    folder = tmp_path / "masks" / "segmentations"
    folder.mkdir(parents=True)
    for label, own in enumerate(("near", "far"), 1):
        write(folder / f"{own}.nrrd", (boxes(shift=1) == label).astype(kind))
    assert scores(tmp_path, pair[0], folder.parent)[0] == expected


def test_nrrd_types_are_read_by_all_their_names(tmp_path):
    for name, size in nrrd.TYPES.items():
        head = f"NRRD0004\ntype: {name}\ndimension: 3\nsizes: 2 1 1\nspacings: 1 1 1\n"
        content = f"{head}encoding: raw\nendian: little\n\n".encode() + bytes(2 * size)
        (tmp_path / "x.nrrd").write_bytes(content)
        assert read_labels(tmp_path / "x.nrrd").values.tolist() == [[[0, 0]]], name


@pytest.mark.parametrize("scaling", [(1.0000001, 0), (0.5, 0), (2 / 255, 0)])
def test_labels_and_masks_behind_a_slope_score_as_those_without(tmp_path, pair, scaling):
    expected = scores(tmp_path, *pair)[0]
    place = {"spacing": (1, 0.8, 1.5), "codes": (0, 0), "scaling": scaling}

    def stored(labels):
        return np.rint(labels / scaling[0]).astype(np.uint8)

    path = tmp_path / "x.nii"
    path.write_bytes(nifti(stored(boxes(shift=1)), **place))
    assert scores(tmp_path, pair[0], path)[0] == expected
    assert claimed(path) == (boxes().size, 4)
    folder = tmp_path / "masks"
    folder.mkdir()
    for label, own in enumerate(("near", "far"), 1):
        values = stored(boxes(shift=1) == label)
        (folder / f"{own}.nii").write_bytes(nifti(values, **place))
    assert scores(tmp_path, pair[0], folder)[0] == expected


def test_a_slope_that_makes_no_labels_is_named(tmp_path, pair):
    path = tmp_path / "x.nii"
    path.write_bytes(nifti(boxes(shift=1), spacing=(1, 0.8, 1.5), codes=(0, 0), scaling=(0.5, 0)))
    with pytest.raises(RecordError, match=r"x\.nii: it has the value 0\.5 by slope 0\.5 and"):
        scores(tmp_path, pair[0], path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["x.nii", "x.nii.gz"])
def test_voxels_that_are_not_finite_are_counted_and_refused(tmp_path, name, value):
    values = boxes().astype(np.float64)
    values[3, 4, 5], values[-1, -1, -1] = value, value
    with pytest.raises(RecordError, match="2 of its voxels are not finite numbers"):
        read_labels(write(tmp_path / name, values))


def nrrd_file(path, *fields, samples=bytes(24)):
    """A NRRD file of 4 x 3 x 2 bytes with these fields."""
    head = ("NRRD0005", "type: uchar", "dimension: 3", "sizes: 4 3 2", "encoding: raw", *fields)
    path.write_bytes("\n".join((*head, "", "")).encode() + samples)
    return path


AXES = "space directions: (1,0,0) (0,0,2) (0,-3,0)"


@pytest.mark.parametrize(
    ("space", "signs"),
    [
        ("left-posterior-superior", (1, 1, 1)),
        ("RAS", (-1, -1, 1)),
        ("right-anterior-superior", (-1, -1, 1)),
        ("Left-Anterior-Superior", (1, -1, 1)),
    ],
)
def test_a_nrrd_space_says_where_axes_point(tmp_path, space, signs):
    fields = (f"space: {space}", AXES, "space origin: (10,20,30)")
    place = read_labels(nrrd_file(tmp_path / "x.nrrd", *fields)).geometry
    axes = np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]]) * signs  # each axis a row
    assert place.spacing == (3, 2, 1)
    np.testing.assert_allclose(np.reshape(place.direction, (3, 3)).T, axes)
    np.testing.assert_allclose(place.origin, np.array([10, 20, 30]) * signs)


def test_a_nrrd_file_without_a_space_is_warned_of(tmp_path):
    labels = read_labels(nrrd_file(tmp_path / "x.nrrd", "spacings: 1 2 3"))
    assert labels.geometry.spacing == (3, 2, 1)
    assert labels.warnings == (nrrd.NO_SPACE,)
    assert read_labels(nrrd_file(tmp_path / "y.nrrd", "space: LPS", AXES)).warnings == ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (["space: scanner-xyz", AXES], "space is 'scanner-xyz', .* expected left-posterior"),
        (["space: RAS", "spacings: 1 1 1"], "a space and no space directions"),
        (["space: RAS", "space directions: (1,0.5,0) (0,1,0) (0,0,1)"], "not at right angles"),
        (["space: RAS", "spacedirections: (1,0.5,0) (0,1,0) (0,0,1)"], "not at right angles"),
        (["space: RAS", "space directions: (1,0,0) (0,1,0) none"], "expected three vectors"),
        (["space: RAS", "space directions: (1,0,0) (0,1,0) (0,0,0)"], "none of length 0"),
        (["space: RAS", "space directions: (1_0,0,0) (0,1,0) (0,0,1)"], "expected three vectors"),
        (["space: RAS", AXES, "space origin: (0,0,inf)"], "space origin .* three numbers"),
        (["space: RAS", AXES, "spacings: 1 1 1"], "expected one of them"),
        (["spacings: 1 nan 3"], "spacings are '1 nan 3', expected three numbers above 0"),
        (["spacings: 1 -2 3"], "expected three numbers above 0"),
        (["spacings: 1 2 3", 'units: "cm" "cm" "cm"'], "lengths are in cm, expected mm"),
    ],
)
def test_a_nrrd_place_that_would_be_taken_otherwise_is_refused(tmp_path, fields, said):
    with pytest.raises(RecordError, match=said):
        read_labels(nrrd_file(tmp_path / "x.nrrd", *fields))


@pytest.mark.parametrize(("encoding", "times"), [("raw", 1), ("gzip", 1032)])
def test_a_small_nrrd_file_claims_no_more_than_it_can_hold(tmp_path, encoding, times):
    path = tmp_path / "x.nrrd"
    head = f"NRRD0004\ntype: uchar\ndimension: 3\nspacings: 1 1 1\nencoding: {encoding}\nsizes: "
    size = len(head) + len("1 1 000000\n\n")
    path.write_text(f"{head}1 1 {size * times + 1}\n\n".ljust(size))
    assert claimed(path) == (0, 0)
    with pytest.raises(RecordError, match=r"cut off: expected .* bytes, the file has"):
        read_labels(path)


def test_a_small_nifti_file_claims_no_more_than_it_can_hold(tmp_path):
    content = bytearray(nifti(boxes()))
    content[42:48] = struct.pack("<3h", 500, 500, 400)
    for name, stored in (("x.nii", bytes(content)), ("x.nii.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(stored)
        assert claimed(tmp_path / name) == (0, 0)
        with pytest.raises(RecordError, match="cut off"):
            read_labels(tmp_path / name)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "does not say how far its voxels are apart"),
        ('spacings: 1 1 1\nspace units: "m" "m" "m"\n', "its lengths are in m, expected mm"),
    ],
)
def test_a_nrrd_header_without_millimetres_is_refused(tmp_path, line, said):
    head = f"NRRD0004\ntype: uchar\ndimension: 3\nsizes: 2 2 2\nencoding: raw\n{line}\n"
    (tmp_path / "x.nrrd").write_bytes(head.encode() + bytes(8))
    with pytest.raises(RecordError, match=said):
        read_labels(tmp_path / "x.nrrd")


def test_slices_that_are_shifted_within_their_plane_are_no_volume(tmp_path, pair):
    series = dicom_series(tmp_path / "series", boxes(shift=1))
    for path in series.iterdir():
        header = pydicom.dcmread(path)
        x, y, z = header.ImagePositionPatient
        header.ImagePositionPatient = [x, y + 0.5 * z, z]
        header.save_as(path)
    with pytest.raises(RecordError, match="no regular grid: each is shifted within its plane"):
        scores(tmp_path, pair[0], series)


def test_a_class_without_a_segment_is_empty_and_noted(tmp_path, pair):
    other = segmentation(tmp_path / "x.dcm", boxes(), names=("near", "farr"))
    found, notes = scores(tmp_path, pair[0], other)
    assert found["far"]["code"] == "missed"
    assert notes.without_segment == ["x.dcm has no segment of far, and others: 'farr'"]


def test_names_that_tables_cannot_hold_are_refused(tmp_path):
    task = task_named(str(card(tmp_path)))
    write(tmp_path / "cases" / "a.nii.gz", boxes())
    for name in (b"caf\xe9.nii.gz", b"x\nwritten: y.nii.gz"):
        path = os.fsencode(tmp_path / "cases") + b"/" + name
        with open(path, "wb"):
            pass
        with pytest.raises(BenchmdError, match="is not of printable characters"):
            cases_of(tmp_path / "cases", task)
        os.remove(path)
    assert list(cases_of(tmp_path / "cases", task)) == ["a"]


def test_headers_without_extents_ask_for_no_memory(tmp_path):
    path = write(tmp_path / "x.nii", boxes())
    assert claimed(changed_header(path, 42, "<3h", -512, 512, 600)) == (0, 0)


def test_a_series_whose_uids_were_emptied_is_one_of_labels(tmp_path, pair):
    """Those who anonymise do so."""
    series = dicom_series(tmp_path / "series", boxes(shift=1))
    for path in series.iterdir():
        header = pydicom.dcmread(path)
        header.SeriesInstanceUID = header.SOPInstanceUID = ""
        header.save_as(path)
    assert scores(tmp_path, pair[0], series)[0] == scores(tmp_path, *pair)[0]


def test_a_reason_says_which_side_it_is_of(tmp_path, pair):
    (tmp_path / "bad").mkdir()
    broken = tmp_path / "bad" / "reference.nii.gz"
    broken.write_bytes(b"no file")
    with pytest.raises(RecordError, match=r"^reference: reference\.nii\.gz: it is not a N"):
        scores(tmp_path, broken, pair[1])
    other = write(tmp_path / "bad" / "other.nii.gz", boxes() * 5)
    with pytest.raises(RecordError, match=r"^prediction: other\.nii\.gz: labels 5, 10 .*-layout"):
        scores(tmp_path, pair[0], other)
