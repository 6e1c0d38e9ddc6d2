"""CT volumes: order, geometry and HU of DICOM series and MetaImage files; windows of slices."""

from __future__ import annotations

import resource

import numpy as np
import pydicom
import pytest
import SimpleITK

from benchmd_ray.data.readers import volume as module
from benchmd_ray.data.readers.metaimage import read_mhd
from benchmd_ray.data.readers.volume import read_series
from benchmd_ray.data.records import RecordError
from benchmd_ray.data.transforms import padded_window, resized_slice, window_starts


def slices_of(count, seed=0):
    """Stored values of slices that all differ, (count, 6, 4) int16."""
    return np.random.default_rng(seed).integers(0, 3000, (count, 6, 4)).astype(np.int16)


@pytest.fixture
def series(tmp_path, write_slice):
    """Writes slices 2.5 mm apart, from -40 mm on, under names in reversed order."""

    def write(stored, **changes):
        for number, values in enumerate(stored):
            own = {name: value(number) for name, value in changes.items() if callable(value)}
            own = changes | own | {"InstanceNumber": len(stored) - number}
            name = f"{len(stored) - number:06d}.dcm"
            write_slice(tmp_path / "series" / name, values, -40 + 2.5 * number, **own)
        return tmp_path / "series"

    return write


def test_slices_come_from_feet_to_head_whatever_their_names(series):
    stored = slices_of(5)
    volume = read_series(series(stored))
    assert volume.shape == (5, 6, 4)
    assert volume.spacing == (2.5, 0.75, 0.5)
    assert volume.positions == pytest.approx([-40, -37.5, -35, -32.5, -30])
    assert np.array_equal(np.stack(list(volume.slices())), stored.astype(float) - 1024)
    assert volume.warnings == ()


def test_values_are_rescaled_by_each_slices_own_slope_and_intercept(series):
    stored = slices_of(3)
    folder = series(stored, RescaleSlope=lambda n: 1 + n / 2, RescaleIntercept=lambda n: -1000 - n)
    for number, values in enumerate(read_series(folder).slices()):
        assert np.allclose(values, stored[number] * (1 + number / 2) - 1000 - number)


@pytest.mark.parametrize("orientation", [[1, 0, 0, 0, -1, 0], [-1, 0, 0, 0, 1, 0]])
def test_order_does_not_follow_the_direction_of_the_normal(series, orientation):
    stored = slices_of(4)
    volume = read_series(series(stored, ImageOrientationPatient=orientation))
    assert np.array_equal(next(volume.slices()), stored[0].astype(float) - 1024)
    assert (np.diff(volume.positions) > 0).all()


def test_positions_of_a_tilted_gantry_are_taken_along_the_normal(series):
    tilt = np.deg2rad(20)
    column = [0, np.cos(tilt), -np.sin(tilt)]
    volume = read_series(series(slices_of(4), ImageOrientationPatient=[1, 0, 0, *column]))
    assert volume.spacing[0] == pytest.approx(2.5 * np.cos(tilt))
    assert volume.normal == pytest.approx([0, np.sin(tilt), np.cos(tilt)])


def test_the_named_series_is_taken_out_of_several(series, write_slice):
    stored = slices_of(3)
    folder = series(stored)
    write_slice(folder / "scout.dcm", np.zeros((9, 9)), 3.0, SeriesInstanceUID="2.25.2")
    with pytest.raises(RecordError, match="belong to 2 series; expected one"):
        read_series(folder)
    with pytest.raises(RecordError, match="none of its files belongs to the series"):
        read_series(folder, "2.25.3")
    volume = read_series(folder, "2.25.1")
    assert volume.shape == (3, 6, 4)
    assert volume.warnings == ("it holds files of other series, which are not read",)


def test_of_slices_at_one_position_the_first_is_kept(series, write_slice):
    stored = slices_of(3)
    folder = series(stored)
    again = {"SOPInstanceUID": "2.25.99", "InstanceNumber": 9}
    write_slice(folder / "000000.dcm", stored[0] + 1, -37.5, **again)
    volume = read_series(folder)
    assert np.array_equal(np.stack(list(volume.slices())), stored.astype(float) - 1024)
    assert "2.25.99" not in volume.uids
    assert volume.warnings == ("several slices at one position; the first is kept",)


def test_missing_slices_are_warned_of_and_not_made_up(series):
    folder = series(slices_of(6))
    (folder / "000003.dcm").unlink()
    volume = read_series(folder)
    assert volume.shape[0] == 5
    assert volume.spacing[0] == 2.5
    assert volume.warnings == ("slices are missing between others",)


@pytest.mark.parametrize(
    ("steps", "warned"),
    [
        ([2.5, 2.5, 3.5, 2.5], True),
        ([2.5, 2.5, 1.0, 2.5], True),
        ([2.5, 2.6, 2.4, 2.5], False),  # rounded positions
        ([2.5, 2.5, 5.0, 2.5], False),  # a gap has a warning of its own
    ],
)
def test_steps_that_vary_are_warned_of(series, steps, warned):
    heights = np.cumsum([0, *steps])
    place = lambda number: [0.0, 0.0, float(heights[number])]  # noqa: E731
    volume = read_series(series(slices_of(5), ImagePositionPatient=place))
    assert ("the distance between slices varies" in volume.warnings) is warned


def test_hidden_files_are_no_slices(series):
    folder = series(slices_of(3))
    (folder / "._000001.dcm").write_bytes(b"\x00\x05\x16\x07")
    assert read_series(folder).shape[0] == 3


def test_varying_thickness_is_warned_of(series):
    volume = read_series(series(slices_of(3), SliceThickness=lambda n: 2.5 + n))
    assert volume.warnings == ("the slices' thickness varies",)


def test_a_single_slice_is_as_deep_as_it_is_thick(series):
    assert read_series(series(slices_of(1))).spacing == (2.5, 0.75, 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ImagePositionPatient": None}, r"0+\d\.dcm: ImagePositionPatient is missing"),
        ({"ImageOrientationPatient": None}, "ImageOrientationPatient is missing"),
        ({"PixelSpacing": None}, "PixelSpacing is missing"),
        ({"PixelSpacing": [0, 0]}, "PixelSpacing is not positive"),
        ({"SeriesInstanceUID": None}, "SeriesInstanceUID is missing"),
        ({"Rows": None}, "Rows is missing"),
        ({"Modality": "DX"}, "its modality is another than CT"),
        ({"ImageOrientationPatient": [0, 1, 0, 0, 0, -1]}, "do not lie across the body"),
        ({"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}, "do not lie across the body"),
        ({"ImagePositionPatient": [1, 2]}, "ImagePositionPatient is not 3 finite"),
        ({"Rows": lambda n: 6 - n, "Columns": 4}, "differ in size"),
        ({"PixelSpacing": lambda n: [0.5 + n, 0.5]}, "differ in spacing"),
        ({"ImageOrientationPatient": lambda n: [1, 0, 0, 0, 1 - 2 * (n % 2), 0]}, "orientation"),
    ],
)
def test_a_series_that_is_no_volume_is_refused(series, changes, message):
    folder = series(slices_of(3), **changes)
    with pytest.raises(RecordError, match=message):
        read_series(folder)


def test_values_without_intercept_are_not_taken_for_hu(series):
    volume = read_series(series(slices_of(2), RescaleIntercept=None))
    with pytest.raises(RecordError, match="RescaleIntercept is missing"):
        next(volume.slices())


def test_damaged_and_absent_files_are_named(series, tmp_path):
    folder = series(slices_of(3))
    content = (folder / "000002.dcm").read_bytes()
    (folder / "000002.dcm").write_bytes(content[:-20])
    volume = read_series(folder)  # the headers are whole
    with pytest.raises(RecordError, match=r"000002\.dcm: "):
        list(volume.slices())
    (folder / "000002.dcm").write_bytes(b"no DICOM")
    with pytest.raises(RecordError, match=r"000002\.dcm: it cannot be read as a DICOM file"):
        read_series(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match=r"0 slices; expected 1 to 4,096 \.dcm files"):
        read_series(tmp_path / "empty")


def test_too_large_a_series_is_refused_before_its_pixels_are_read(series, monkeypatch):
    folder = series(slices_of(4))
    monkeypatch.setattr(module, "MAX_VOXELS", 95)
    with pytest.raises(RecordError, match="4 slices of 4 × 6 are more than 95"):
        read_series(folder)


@pytest.mark.data
def test_real_slice_is_in_hu(real_data):
    path = real_data / "lidc" / "000001.dcm"
    volume = read_series([path])
    (values,) = volume.slices()
    raw = pydicom.dcmread(path)
    stored = np.frombuffer(raw.PixelData, "<i2").reshape(512, 512).astype(float)
    assert np.array_equal(values, stored * 1.0 + -1024.0)
    assert (volume.shape, volume.spacing) == ((1, 512, 512), (2.5, 0.703125, 0.703125))
    assert volume.positions == pytest.approx([-207.5])
    lung, air = values[300:330, 120:150], values[2:40, 250:260]
    assert -950 < np.median(lung) < -700
    assert -1050 < np.median(air) < -950
    tissue = np.count_nonzero((values > 0) & (values < 100)) / values.size
    assert 0.05 < tissue < 0.6


def test_mhd_is_what_simpleitk_wrote(tmp_path, write_mhd):
    values = slices_of(5) - 1024
    volume = read_mhd(write_mhd(tmp_path / "a.mhd", values, origin=(1.5, 2.5, -300)))
    assert np.array_equal(np.stack(list(volume.slices())), values)
    assert volume.spacing == (1.0, 0.75, 0.5)
    assert volume.positions == pytest.approx([-300, -299, -298, -297, -296])
    assert not volume.flipped


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"])
def test_mhd_of_every_whole_type_is_read(tmp_path, write_mhd, kind):
    info = np.iinfo(kind)
    values = np.array([[[info.min, 0], [1, info.max]]], kind)
    found = np.stack(list(read_mhd(write_mhd(tmp_path / "a.mhd", values)).slices()))
    assert found.dtype == values.dtype
    assert np.array_equal(found, values)


def test_slices_that_run_from_head_to_feet_are_turned(tmp_path, write_mhd):
    values = slices_of(4)
    down = (1, 0, 0, 0, 1, 0, 0, 0, -1)
    path = write_mhd(tmp_path / "a.mhd", values, origin=(0, 0, 50), direction=down)
    volume = read_mhd(path)
    assert volume.flipped
    assert np.array_equal(np.stack(list(volume.slices())), values[::-1])
    assert volume.positions == pytest.approx([47, 48, 49, 50])
    mask = read_mhd(write_mhd(tmp_path / "mask.mhd", values), flipped=True)
    assert np.array_equal(np.stack(list(mask.slices())), values[::-1])


@pytest.mark.parametrize("angle", [0.0, 12.0])
@pytest.mark.parametrize("down", [1, -1])
def test_slice_of_a_point_is_simpleitks(tmp_path, write_mhd, angle, down):
    turn, up = np.deg2rad(angle), float(down)
    axes = np.array(
        [[1, 0, 0], [0, np.cos(turn), -up * np.sin(turn)], [0, np.sin(turn), up * np.cos(turn)]]
    )
    values = slices_of(9)
    path = write_mhd(
        tmp_path / "a.mhd", values, origin=(3, -7, 11), direction=axes.ravel().tolist()
    )
    image, volume = SimpleITK.ReadImage(str(path)), read_mhd(path)
    for index in [(0, 0, 0), (3, 5, 8), (1, 2, 4)]:
        point = image.TransformIndexToPhysicalPoint(index)
        expected = index[2] if down == 1 else 8 - index[2]
        assert volume.slice_at(point) == expected
    beyond = image.TransformContinuousIndexToPhysicalPoint((0, 0, 8.7))
    assert volume.slice_at(beyond) is None


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ElementDataFile", "/etc/passwd", "names no file in the header's own folder"),
        ("ElementDataFile", "../a.raw", "names no file in the header's own folder"),
        ("ElementDataFile", "..", "names no file in the header's own folder"),
        ("ElementDataFile", "LOCAL", "names no file in the header's own folder"),
        ("ElementDataFile", "LIST", "names no file in the header's own folder"),
        ("ElementDataFile", "a%02d.raw 1 3 1", "names no file in the header's own folder"),
        ("ElementDataFile", "other.raw", "its samples' file is missing, expected 144 bytes"),
        ("ElementType", "MET_FLOAT", "whole numbers .* ElementType says otherwise"),
        ("CompressedData", "True", "uncompressed, .* CompressedData says otherwise"),
        ("HeaderSize", "-1", "HeaderSize says otherwise"),
        ("BinaryDataByteOrderMSB", "True", "BinaryDataByteOrderMSB says otherwise"),
        ("ElementNumberOfChannels", "3", "one channel"),
        ("DimSize", "4 6", "DimSize is not three positive whole numbers"),
        ("DimSize", "4 6 -3", "DimSize is not three positive whole numbers"),
        ("DimSize", "99999 99999 9999", "voxels, expected at most 4,096 and 536,870,912"),
        ("DimSize", "1 1 4097", "it has 4,097 slices and 4,097 voxels, expected at most"),
        ("DimSize", "999999999999 1 1", "DimSize is not three positive whole numbers"),
        ("NDims", "-1", "NDims says otherwise"),
        ("NDims", "999999999", "NDims says otherwise"),
        ("BinaryData", "False", "BinaryData says otherwise"),
        ("DimSize", "4 6 4", "its samples' file has 144 bytes, expected 192"),
        ("TransformMatrix", "1 0 0 0 0 1 0 1 0", "do not lie across the body"),
        ("TransformMatrix", "0 0 0 0 0 0 0 0 0", "are not at right angles"),
        ("TransformMatrix", "1 0 0 0 2 0 0 0 1", "are not at right angles"),
        ("TransformMatrix", "1 0 0 0 1 0 0 0", "TransformMatrix is not 9 numbers"),
        ("TransformMatrix", "nan 0 0 0 1 0 0 0 1", "TransformMatrix is not 9 numbers"),
        ("ElementSpacing", "1 0 1", "ElementSpacing is not three positive numbers"),
        ("ElementSpacing", "1 -1 1", "ElementSpacing is not three positive numbers"),
        ("ElementSpacing", "1 inf 1", "ElementSpacing is not 3 numbers"),
        ("ElementSpacing", "1 1e99 1", "ElementSpacing is not 3 numbers"),
        ("ElementSpacing", "1 1 1 1", "ElementSpacing is not 3 numbers"),
        ("CenterOfRotation", "0 0", "CenterOfRotation is not 3 numbers"),
        ("Offset", "1 2 Doe", "Offset is not 3 numbers"),
        ("Position", "1 2 3", "Offset is not 3 numbers, or appears twice"),
    ],
)
def test_a_header_that_does_not_describe_its_samples_is_refused(
    tmp_path, write_mhd, field, value, message
):
    path = write_mhd(tmp_path / "a.mhd", slices_of(3))
    lines = [line for line in path.read_text().splitlines() if not line.startswith(field)]
    place = -1 if field != "ElementDataFile" else len(lines)
    lines.insert(place, f"{field} = {value}")
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match=message):
        read_mhd(path)


@pytest.mark.parametrize("field", ["NDims", "BinaryData", "ElementSpacing", "DimSize"])
def test_a_header_without_a_field_that_is_needed_is_refused(tmp_path, write_mhd, field):
    path = write_mhd(tmp_path / "a.mhd", slices_of(3))
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{field} ")]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match=field):
        read_mhd(path)


@pytest.mark.parametrize("offset", ["Offset", "Position", "Origin"])
@pytest.mark.parametrize("matrix", ["TransformMatrix", "Rotation", "Orientation"])
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_fields_by_all_their_names_are_read_as_by_simpleitk(
    tmp_path, write_mhd, offset, matrix, kind
):
    turn = np.deg2rad(7)
    axes = np.array([[np.cos(turn), np.sin(turn), 0], [-np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    values = slices_of(5).astype(kind)
    place = {"origin": (3.25, -7.1, 1e-3 / 3), "direction": axes.ravel().tolist()}
    path = write_mhd(tmp_path / "a.mhd", values, **place)
    text = path.read_text().replace("Offset", offset).replace("TransformMatrix", matrix)
    path.write_text(text)
    image, volume = SimpleITK.ReadImage(str(path)), read_mhd(path)
    found = np.stack(list(volume.slices()))
    assert np.array_equal(found, SimpleITK.GetArrayFromImage(image))
    assert found.dtype == kind
    assert volume.spacing == image.GetSpacing()[::-1]
    assert volume.normal.tolist() == list(image.GetDirection()[2::3])
    for number, origin in enumerate(volume.origins):
        assert origin.tolist() == pytest.approx(
            image.TransformIndexToPhysicalPoint((0, 0, number)), abs=1e-12
        )


def test_a_large_volume_is_not_held(tmp_path, write_mhd):
    path = write_mhd(tmp_path / "a.mhd", slices_of(3))
    text = path.read_text()
    size = next(line for line in text.splitlines() if line.startswith("DimSize"))
    path.write_text(text.replace(size, "DimSize = 2048 2048 128"))
    with path.with_suffix(".raw").open("wb") as file:
        file.truncate(2 * 2**29)  # 1 GiB of zeros, which takes no disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    volume = read_mhd(path)
    assert volume.read_slice(127).shape == (2048, 2048)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # kB


def test_odd_headers_are_refused(tmp_path, write_mhd):
    path = write_mhd(tmp_path / "a.mhd", slices_of(3))
    text = path.read_text()
    path.write_text(text + "ElementDataFile = b.raw\n")
    with pytest.raises(RecordError, match="a field twice"):
        read_mhd(path)
    path.write_text("ElementDataFile : /etc/passwd\n" + text)
    with pytest.raises(RecordError, match="a line that is not a field"):
        read_mhd(path)
    path.write_bytes(b"\xff\xfe" + text.encode())
    with pytest.raises(RecordError, match="the header cannot be read: it is not ASCII text"):
        read_mhd(path)
    with pytest.raises(RecordError, match="the header cannot be opened: No such file"):
        read_mhd(tmp_path / "none.mhd")


def triangle(length, size):
    """Weights of a triangle filter as wide as the reduction, (size, length), by its definition."""
    scale = length / size
    reach = max(scale, 1.0)
    centre = (np.arange(size)[:, None] + 0.5) * scale
    weights = np.clip(1 - np.abs(np.arange(length) + 0.5 - centre) / reach, 0, None)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("shape", [(512, 512), (512, 804), (64, 64), (256, 256), (300, 700)])
def test_resizing_is_a_triangle_filter(shape):
    values = np.random.default_rng(3).integers(-1024, 3000, shape).astype(np.float64)
    expected = triangle(shape[0], 256) @ values @ triangle(shape[1], 256).T
    resized = resized_slice(values, 256)
    assert resized.dtype == np.int16
    assert resized.shape == (256, 256)
    assert np.abs(resized - expected).max() < 0.51


def test_resizing_keeps_constants_and_never_wraps_around():
    assert (resized_slice(np.full((70, 40), -1024), 256) == -1024).all()
    assert (resized_slice(np.full((30, 30), 1e6), 256) == 32767).all()
    assert (resized_slice(np.full((30, 30), -1e6), 256) == -32768).all()


def test_windows_hold_every_slice_and_only_the_last_one_overlaps():
    for length in [*range(1, 60), 240, 251, 631]:
        starts = window_starts(length, 24)
        slices = {s for start in starts for s in range(start, min(start + 24, length))}
        assert slices == set(range(length))
        assert len(starts) == -(-length // 24), length
        assert starts[:-1] == [24 * number for number in range(len(starts) - 1)], length
        assert starts[-1] == max(0, length - 24) or length % 24 == 0, length


def test_a_short_volume_is_padded_behind():
    volume = np.arange(2 * 3 * 3, dtype=np.int16).reshape(2, 3, 3)
    padded = padded_window(volume, 0, 5, -1024)
    assert padded.shape == (5, 3, 3)
    assert np.array_equal(padded[:2], volume)
    assert (padded[2:] == -1024).all()
    assert np.array_equal(padded_window(volume, 1, 1, -1024), volume[1:])
