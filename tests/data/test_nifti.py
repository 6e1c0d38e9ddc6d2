"""NIfTI files: types of voxels, slopes, and where voxels are; headers are written by hand."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import SimpleITK
from made_nifti import KINDS, nifti, write
from scipy.spatial.transform import Rotation

from benchmd_ray.data.readers.nifti import read_nifti, read_voxels, whole_labels
from benchmd_ray.data.records import RecordError

VALUES = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
SIZES = (0.8, 1.25, 3.0)
"""mm along x, y, z."""
TURN = Rotation.from_euler("zyx", (25, -15, 40), degrees=True)
TO_LPS = np.diag([-1.0, -1.0, 1.0])


def matrix_of(turn: Rotation, origin: tuple[float, ...]) -> np.ndarray:
    """(3, 4) from voxels to mm, x to the right, y to the front, z to the head."""
    return np.column_stack([turn.as_matrix() * SIZES, origin])


def quaternion_of(turn: Rotation) -> np.ndarray:
    quaternion = turn.as_quat()  # x, y, z, w
    return quaternion[:3] * (1 if quaternion[3] >= 0 else -1)


def by_simpleitk(path) -> SimpleITK.Image:
    reader = SimpleITK.ImageFileReader()
    reader.SetImageIO("NiftiImageIO")
    reader.SetFileName(str(path))
    return reader.Execute()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_of_one_number_is_read(tmp_path, kind, order):
    dtype = np.dtype(kind)
    info = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    values = VALUES.astype(dtype)
    values[0, 0, 0], values[1, 2, 3] = info.min, info.max
    voxels = read_voxels(write(tmp_path / "x.nii", values, order=order))
    assert voxels.values.dtype == dtype
    assert voxels.values.dtype.isnative
    np.testing.assert_array_equal(voxels.values, values)
    volume = read_nifti(tmp_path / "x.nii")  # whose x and y run to the left and the back
    np.testing.assert_array_equal(np.stack(list(volume.slices())), values[:, ::-1, ::-1])


@pytest.mark.parametrize(
    ("kind", "named"),
    [(1, r"1 \(bits\)"), (32, r"32 \(complex numbers\)"), (128, r"128 \(colours"), (99, "99")],
)
def test_voxels_of_several_numbers_are_refused_by_name(tmp_path, kind, named):
    with pytest.raises(RecordError, match=f"voxels are of type {named}.*expected one number each"):
        read_voxels(write(tmp_path / "x.nii", VALUES, kind=kind))


@pytest.mark.parametrize(
    ("codes", "is_of_matrix", "warned"),
    [
        ((1, 0), False, False),
        ((0, 1), True, False),
        ((0, 4), True, False),
        ((1, 2), True, True),  # SimpleITK takes the quaternion
        ((1, 4), True, True),
        ((2, 1), True, True),
        ((3, -1), False, False),
    ],
)
def test_the_place_is_that_of_the_sform_before_the_qform(tmp_path, codes, is_of_matrix, warned):
    other = Rotation.from_euler("z", 180, degrees=True)
    path = write(
        tmp_path / "x.nii",
        VALUES,
        spacing=SIZES,
        codes=codes,
        quaternion=quaternion_of(other),
        offset=(1, 2, 3),
        matrix=matrix_of(TURN, (10, -5, 3)),
    )
    voxels = read_voxels(path)
    turn, origin = (TURN, (10, -5, 3)) if is_of_matrix else (other, (1, 2, 3))
    np.testing.assert_allclose(voxels.grid.spacing, SIZES, rtol=1e-6)
    np.testing.assert_allclose(voxels.grid.origin, TO_LPS @ origin, atol=1e-6)
    expected = TO_LPS @ turn.as_matrix()
    np.testing.assert_allclose(np.reshape(voxels.grid.direction, (3, 3)), expected, atol=1e-6)
    said = [f"its qform (code {codes[0]}) and sform (code {codes[1]}) place voxels apart; "
            "the sform is taken"]  # fmt: skip
    assert list(voxels.warnings) == (said if warned else [])
    assert read_nifti(path).warnings == voxels.warnings


@pytest.mark.parametrize("units", [0, 1, 2, 3])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("codes", "turn"),
    [((1, 0), TURN), ((2, 0), Rotation.from_euler("x", 180, degrees=True)), ((0, 1), TURN),
     ((1, 1), TURN), ((0, 0), TURN)],
)  # fmt: skip
def test_a_place_that_a_header_has_once_is_simpleitks(tmp_path, codes, turn, sign, units):
    matrix = matrix_of(turn, (10, -5, 3)) @ np.diag([1, 1, sign, 1])
    path = write(
        tmp_path / "x.nii",
        VALUES,
        spacing=SIZES,
        codes=codes,
        quaternion=quaternion_of(turn),
        offset=(10, -5, 3),
        sign=sign,
        matrix=matrix,
        units=units,
    )
    grid, image = read_voxels(path).grid, by_simpleitk(path)
    assert grid.extents == image.GetSize()
    np.testing.assert_allclose(grid.spacing, image.GetSpacing(), rtol=1e-6)
    np.testing.assert_allclose(grid.origin, image.GetOrigin(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(grid.direction, image.GetDirection(), atol=1e-6)


def test_a_negative_size_of_a_voxel_is_its_size(tmp_path):
    path = write(tmp_path / "x.nii", VALUES, spacing=np.multiply(SIZES, [1, -1, 1]))
    voxels = read_voxels(path)
    np.testing.assert_allclose(voxels.grid.spacing, SIZES, rtol=1e-6)
    assert "by pixdim; the signs are passed over" in voxels.warnings[0]
    plain = read_voxels(write(tmp_path / "y.nii", VALUES, spacing=SIZES))
    assert voxels.grid == plain.grid
    assert plain.warnings == ()


@pytest.mark.parametrize("size", [0, np.nan])
def test_sizes_that_pixdim_does_not_have_are_those_of_the_sform(tmp_path, size):
    sizes, matrix = (SIZES[0], size, SIZES[2]), matrix_of(TURN, (10, -5, 3))
    path = write(tmp_path / "x.nii", VALUES, spacing=sizes, codes=(0, 1), matrix=matrix)
    voxels = read_voxels(path)
    np.testing.assert_allclose(voxels.grid.spacing, SIZES, rtol=1e-6)
    assert "by pixdim; the sizes of the sform are taken" in voxels.warnings[0]
    for codes in ((0, 0), (1, 0)):
        write(path, VALUES, spacing=sizes, codes=codes, matrix=matrix)
        with pytest.raises(RecordError, match="mm by pixdim, and there is no sform: expected num"):
            read_voxels(path)


def test_what_is_not_in_use_of_a_place_does_not_matter(tmp_path):
    odd = {"quaternion": [np.nan] * 3, "offset": [np.inf] * 3}
    matrix = matrix_of(TURN, (10, -5, 3))
    place = {"spacing": SIZES, "codes": (0, 1), "matrix": matrix}
    grid = read_voxels(write(tmp_path / "x.nii", VALUES, **place, **odd)).grid
    assert grid == read_voxels(write(tmp_path / "y.nii", VALUES, **place)).grid
    place = {"spacing": SIZES, "codes": (1, 0), "quaternion": quaternion_of(TURN)}
    grid = read_voxels(write(tmp_path / "x.nii", VALUES, **place, matrix=matrix * np.nan)).grid
    assert grid == read_voxels(write(tmp_path / "y.nii", VALUES, **place)).grid


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"codes": (1, 1), "quaternion": [np.nan] * 3, "matrix": np.eye(4)[:3]}, r"\(qform\) are"),
        ({"codes": (0, 1), "matrix": np.full((3, 4), np.inf)}, r"\(sform\) are not finite"),
        ({"codes": (0, 1), "matrix": np.zeros((3, 4))}, "an axis of its sform has length 0"),
    ],
)
def test_a_place_in_use_that_is_not_numbers_is_refused(tmp_path, place, message):
    with pytest.raises(RecordError, match=message):
        read_voxels(write(tmp_path / "x.nii", VALUES, **place))


@pytest.mark.parametrize(
    ("extents", "is_volume"),
    [((5, 4, 3, 2, 1, 1), True), ((7, 4, 3, 2, 1, 1, 1, 1), True), ((4, 4, 3, 2, 1, 9), True),
     ((5, 4, 3, 2, 1, 3), False), ((5, 4, 3, 2, 2, 1), False), ((8, 4, 3, 2, 1, 1), False)],
)  # fmt: skip
def test_axes_of_length_1_behind_the_third_are_none(tmp_path, extents, is_volume):
    content = bytearray(nifti(VALUES))
    struct.pack_into(f"<{len(extents)}h", content, 40, *extents)
    (tmp_path / "x.nii").write_bytes(content)
    if is_volume:
        np.testing.assert_array_equal(read_voxels(tmp_path / "x.nii").values, VALUES)
    else:
        with pytest.raises(RecordError, match="extents"):
            read_voxels(tmp_path / "x.nii")


@pytest.mark.parametrize("kind", KINDS)
def test_slope_and_intercept_are_applied(tmp_path, kind):
    path = write(tmp_path / "x.nii", VALUES.astype(kind), scaling=(0.5, -3))
    np.testing.assert_array_equal(read_voxels(path).values, VALUES * 0.5 - 3)


@pytest.mark.parametrize("slope", [0, np.nan])
def test_without_a_slope_the_intercept_is_not_one(tmp_path, slope):
    """So says the standard; SimpleITK adds it."""
    path = write(tmp_path / "x.nii", VALUES, scaling=(slope, 5))
    np.testing.assert_array_equal(read_voxels(path).values, VALUES)
    assert read_voxels(path).values.dtype == np.int16


@pytest.mark.parametrize("scaling", [(np.inf, 0), (2, np.nan), (2, -np.inf)])
def test_a_slope_or_intercept_that_is_not_finite_is_refused(tmp_path, scaling):
    with pytest.raises(RecordError, match=r"scl_inter.* is not a finite number"):
        read_voxels(write(tmp_path / "x.nii", VALUES, scaling=scaling))


def test_values_that_a_slope_makes_infinite_are_refused(tmp_path):
    path = write(tmp_path / "x.nii", VALUES.astype(np.float32) * 1e30, scaling=(1e30, 0))
    with pytest.raises(RecordError, match="23 of its voxels are not finite numbers"):
        read_voxels(path)


@pytest.mark.parametrize(
    ("stored", "scaling"),
    [
        (np.array([0, 1, 2, 104], np.uint8), (1.0000001, 0)),
        (np.array([0, 1, 2, 65535], np.uint16), (1.0000001, 0)),
        (np.array([0, 2, 4], np.uint8), (0.5, 0)),
        (np.array([-32768, -27727, -22686, 32767], np.int16), (13 / 65535, 13 * 32768 / 65535)),
        (np.array([-(2**31), -1817101461, 2**31 - 1], np.int32), (13 / (2**32 - 1), 6.5)),
    ],
)
def test_labels_behind_a_slope_are_the_whole_numbers_that_were_meant(tmp_path, stored, scaling):
    """The fourth and fifth as programs write labels that were floats: over the whole type."""
    path = write(tmp_path / "x.nii", stored.reshape(1, 1, -1), scaling=scaling)
    voxels = read_voxels(path)
    exact = stored * np.float64(scaling[0]) + scaling[1]
    np.testing.assert_array_equal(
        whole_labels(voxels.values, voxels.scaling).ravel(), np.rint(exact)
    )


@pytest.mark.parametrize(
    ("stored", "scaling"),
    [
        ([0, 1], (0.5, 0)),  # half a label
        ([0, 1, 2], (0.7, 0)),  # both would be label 1
        ([0, 128, 255], (1 / 255, 0)),  # probabilities
        ([0, 1], (1, 0.5)),
    ],
)
def test_numbers_behind_a_slope_that_are_no_labels_are_refused_with_it(tmp_path, stored, scaling):
    values = np.array(stored, np.uint8).reshape(1, 1, -1)
    voxels = read_voxels(write(tmp_path / "x.nii", values, scaling=scaling))
    with pytest.raises(RecordError, match=rf"the value 0\.\d+ by slope {scaling[0]:.6g}"):
        whole_labels(voxels.values, voxels.scaling)


@pytest.mark.parametrize(
    ("name", "pack", "warned"),
    [
        ("x.nii", gzip.compress, "it is compressed by gzip, and its name ends in .nii"),
        ("x.nii.gz", bytes, "it is not compressed, and its name ends in .nii.gz"),
        ("x.nii", bytes, None),
        ("x.NII.GZ", gzip.compress, None),
    ],
)
def test_a_name_that_says_otherwise_than_the_content_is_warned_of(tmp_path, name, pack, warned):
    (tmp_path / name).write_bytes(pack(nifti(VALUES)))
    voxels = read_voxels(tmp_path / name)
    np.testing.assert_array_equal(voxels.values, VALUES)
    assert list(voxels.warnings) == ([warned] if warned else [])


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_that_is_cut_off_or_too_long_is_refused(tmp_path, pack):
    path, content = tmp_path / "x.nii.gz", nifti(VALUES)
    path.write_bytes(pack(content[:-1]))
    with pytest.raises(RecordError, match="it is cut off: expected 400 bytes"):
        read_voxels(path)
    path.write_bytes(pack(content + bytes(2**21)))
    with pytest.raises(RecordError, match="it is longer than its header says: expected 400 bytes"):
        read_voxels(path)
    if pack is gzip.compress:
        path.write_bytes(pack(content)[:-6])
        with pytest.raises(RecordError, match=r"is damaged \(EOFError\)"):
            read_voxels(path)
