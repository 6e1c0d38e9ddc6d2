"""Files of any format as signals of a catalog."""

from __future__ import annotations

import dataclasses
import gzip
import math
import struct
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch
from kinds import SIGNALS
from made_nifti import nifti
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

from benchmd_ray.data.card_files import Files
from benchmd_ray.data.datasets.any_file import read_file
from benchmd_ray.data.manifest import _sums
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.data.readers.dicom_padding import WARNING
from benchmd_ray.data.records import RecordError

WRIST = dataclasses.replace(
    SIGNALS["ecg"],
    name="wrist",
    stored_shape=(2, 100),
    input_shape=(2, 100),
    channels=("x", "y"),
    unit="g",
    rate=50.0,
)


@pytest.mark.parametrize("samples", [1, 40, 41, 99])
def test_short_signals_lie_in_the_middle_where_normalisers_look_for_them(tmp_path, samples):
    values = np.random.default_rng(samples).normal(size=(2, samples))
    np.save(tmp_path / "x.npy", values)
    if samples == 1:
        with pytest.raises(RecordError, match="every channel is constant"):
            read_file(tmp_path / "x.npy", WRIST, Files(rate=50.0))
        return
    (part,) = read_file(tmp_path / "x.npy", WRIST, Files(rate=50.0))
    start = (100 - samples) // 2
    inside = part.signal[:, start : start + samples] * part.scale
    assert np.abs(inside - values).max() < 1e-3
    assert (part.valid_size, part.signal.shape) == ((samples,), (2, 100))
    assert not part.signal[:, :start].any()
    assert not part.signal[:, start + samples :].any()


SCAN = dataclasses.replace(
    SIGNALS["ldct"],
    name="scan",
    stored_shape=(1, 8, 20, 24),
    input_shape=(1, 8, 20, 24),
    patch=(8, 4, 4),
    unit="1",
)
FILM = dataclasses.replace(
    SIGNALS["cxr"],
    name="film",
    stored_shape=(1, 40, 20),
    input_shape=(1, 40, 20),
    patch=(4, 4),
    dtype="int16",
)


def values_of(part) -> np.ndarray:
    return part.signal * part.scale


def write_array(path: Path, values: np.ndarray, key: str = "held") -> None:
    if path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".npz":
        np.savez_compressed(path, **{key: values})
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset(key, data=values, chunks=True, compression="gzip", shuffle=True)


ENDINGS = pytest.mark.parametrize("end", [".npy", ".npz", ".h5", ".hdf5"])


@ENDINGS
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_hold_channels_by_time_or_time_by_channels(tmp_path, end, order):
    values = np.random.default_rng(0).normal(size=(2, 230)).astype(np.float32)
    found = []
    for stored in (values, values.T):
        write_array(tmp_path / f"x{end}", np.array(stored, order=order))
        parts = read_file(tmp_path / f"x{end}", WRIST, Files(rate=50.0))
        found.append(np.concatenate([values_of(part) for part in parts], axis=1))
    assert np.abs(found[0] - values[:, :200]).max() < 1e-3
    assert np.array_equal(*found)


@ENDINGS
def test_arrays_hold_images_and_volumes(tmp_path, end):
    rng = np.random.default_rng(1)
    image = rng.integers(-900, 900, (40, 20)).astype(np.int16)
    write_array(tmp_path / f"image{end}", image)
    (part,) = read_file(tmp_path / f"image{end}", FILM, Files())
    assert np.abs(values_of(part)[0] - image).max() < 0.02
    volume = rng.normal(size=(8, 20, 24))
    write_array(tmp_path / f"volume{end}", volume)
    (part,) = read_file(tmp_path / f"volume{end}", SCAN, Files())
    assert np.abs(values_of(part)[0] - volume).max() < 1e-3
    assert part.valid_size == (8, 20, 24)
    colour = dataclasses.replace(SIGNALS["derm"], stored_shape=(3, 32, 32), input_shape=(3, 32, 32))
    pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
    for stored in (pixels, pixels.transpose(2, 0, 1)):
        write_array(tmp_path / f"colour{end}", stored)
        (part,) = read_file(tmp_path / f"colour{end}", colour, Files())
        assert np.array_equal(part.signal, pixels.transpose(2, 0, 1))


def test_an_image_keeps_its_aspect_ratio_in_a_box_that_is_no_square(tmp_path):
    image = np.full((10, 10), 5.0)
    image[:, 5:] = 9.0
    np.save(tmp_path / "x.npy", image)
    (part,) = read_file(tmp_path / "x.npy", FILM, Files())
    assert part.valid_size == (20, 20)
    held = values_of(part)[0]
    assert np.allclose(held[:10], 5.0, atol=1e-3)
    assert np.allclose(held[30:], 5.0, atol=1e-3)
    assert np.allclose(held[10:30, [0, -1]], [5.0, 9.0], atol=1e-3)


@pytest.mark.parametrize(
    ("cut", "starts"), [("segments", [0, 8, 13]), ("first", [0]), ("centre", [6])]
)
def test_volumes_are_cut_into_windows_of_slices(tmp_path, cut, starts):
    volume = np.random.default_rng(2).normal(size=(21, 20, 24))
    np.save(tmp_path / "x.npy", volume)
    parts = read_file(tmp_path / "x.npy", SCAN, Files(cut=cut))
    assert len(parts) == len(starts)
    for part, start in zip(parts, starts, strict=True):
        assert np.abs(values_of(part)[0] - volume[start : start + 8]).max() < 1e-3


def test_short_volumes_are_padded_behind_as_those_of_ct_are(tmp_path):
    volume = np.random.default_rng(3).integers(-1024, 1000, (5, 20, 24)).astype(np.int16)
    np.save(tmp_path / "x.npy", volume)
    (part,) = read_file(tmp_path / "x.npy", SCAN, Files())
    held = values_of(part)[0]
    assert part.valid_size == (5, 20, 24)
    assert np.abs(held[:5] - volume).max() < 0.02
    assert np.abs(held[5:] - volume.min()).max() < 0.02


def by_hand(path: Path) -> np.ndarray:
    """(z, y, x) of an NIfTI file, turned to left, back and head by its sform; a slow formula."""
    data = gzip.decompress(path.read_bytes())
    (kind,) = struct.unpack("<h", data[70:72])
    extents = struct.unpack("<8h", data[40:56])[1:4]
    slope, inter = struct.unpack("<2f", data[112:120])
    assert struct.unpack("<h", data[254:256])[0] > 0, "there is an sform"
    rows = np.array(struct.unpack("<12f", data[280:328])).reshape(3, 4)[:, :3]
    dtype = {2: "u1", 4: "<i2", 8: "<i4", 16: "<f4", 64: "<f8", 512: "<u2"}[kind]
    start = int(struct.unpack("<f", data[108:112])[0])
    values = np.frombuffer(data, dtype, math.prod(extents), start).reshape(extents, order="F")
    axes = [int(np.argmax(np.abs(row))) for row in rows]  # the file's axis along x, y, z
    turned = values.transpose(axes)
    for world, axis in enumerate(axes):
        rising = rows[world, axis] > 0  # NIfTI's x runs to the right, y to the front
        if rising != (world == 2):
            turned = np.flip(turned, world)
    return turned.transpose(2, 1, 0) * (slope or 1.0) + inter


def nifti_files(real_data: Path) -> list[Path]:
    found = sorted((real_data / "segmentation").rglob("*.nii.gz"))
    return [path for path in found if path.stat().st_size < 2_000_000][::25]


def test_real_nifti_volumes_are_those_of_their_bytes(real_data):
    for path in nifti_files(real_data):
        expected = by_hand(path)
        signal = dataclasses.replace(
            SCAN,
            stored_shape=(1, *expected.shape),
            input_shape=(1, *expected.shape),
            patch=expected.shape,
        )
        if expected.min() == expected.max():
            continue
        (part,) = read_file(path, signal, Files())
        step = np.abs(expected).max() / 32767
        assert np.abs(values_of(part)[0] - expected).max() <= step


@pytest.fixture
def one_nifti(real_data, tmp_path) -> bytes:
    path = min(nifti_files(real_data), key=lambda p: p.stat().st_size)
    return gzip.decompress(path.read_bytes())


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[:-1], "cut off"),
        (lambda d: d[:200], "not a NIfTI-1 file"),
        (lambda d: d + bytes(3 * 2**20), "longer than its header says"),
        (lambda d: changed(d, 344, b"ni1\0"), "not a NIfTI-1 file"),
        (lambda d: changed(d, 42, struct.pack("<h", -5)), "extents"),
        (lambda d: changed(d, 40, struct.pack("<8h", 3, *[32767] * 7)), "too large"),
        (lambda d: changed(d, 40, struct.pack("<h", 4)) and changed(
            changed(d, 40, struct.pack("<h", 4)), 48, struct.pack("<h", 9)), "extents"),
        (lambda d: changed(d, 70, struct.pack("<h", 128)), "of type 128"),
        (lambda d: changed(d, 108, struct.pack("<f", 1e30)), "begin at byte"),
        (lambda d: changed(changed(d, 80, struct.pack("<f", float("nan"))), 252, bytes(4)),
         "mm by pixdim, and there is no sform"),
        (lambda d: changed(d, 280, struct.pack("<f", float("inf"))), "directions"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", [".nii", ".nii.gz"])
def test_odd_nifti_files_are_refused(tmp_path, one_nifti, change, message, end):
    data = change(one_nifti)
    path = tmp_path / f"x{end}"
    path.write_bytes(gzip.compress(data) if end == ".nii.gz" else data)
    with pytest.raises(RecordError, match=message):
        read_file(path, SCAN, Files())


def padded_dicom(path: Path, values: np.ndarray) -> Path:
    """A picture of unsigned 16 bits whose left half is padding, 0."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    dataset.SOPClassUID = meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    dataset.SOPInstanceUID = meta.MediaStorageSOPInstanceUID = "2.25.1"
    dataset.Rows, dataset.Columns = values.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 16, 15
    dataset.PixelRepresentation, dataset.PixelPaddingValue = 0, 0
    values = values.copy()
    values[:, : values.shape[1] // 2] = 0
    dataset.PixelData = values.astype(np.uint16).tobytes()
    dataset.save_as(path, enforce_file_format=True)
    return path


@pytest.mark.parametrize("dtype", ["int16", "uint8"])
def test_padding_that_decides_the_range_of_a_picture_is_counted(tmp_path, dtype):
    values = np.random.default_rng(8).integers(40_000, 41_000, (40, 20))
    path = padded_dicom(tmp_path / "x.dcm", values)
    signal = dataclasses.replace(FILM, dtype=dtype)
    warnings = Counter[str]()
    read_file(path, signal, Files(), warnings)
    assert warnings == {WARNING: 1}
    padded_dicom(path, values - 39_990)
    read_file(path, signal, Files(), warnings)
    assert warnings == {WARNING: 1}


def test_a_place_that_a_nifti_header_has_twice_is_counted_once_for_its_windows(tmp_path):
    values = np.random.default_rng(9).integers(0, 900, (20, 20, 24)).astype(np.int16)
    moved = np.column_stack([np.eye(3), (10, -5, 3)])
    (tmp_path / "x.nii").write_bytes(nifti(values, codes=(1, 2), matrix=moved))
    warnings = Counter[str]()
    assert len(read_file(tmp_path / "x.nii", SCAN, Files(), warnings)) == 3
    said = "its qform (code 1) and sform (code 2) place voxels apart; the sform is taken"
    assert warnings == {said: 1}


def test_a_damaged_gzip_file_is_refused(tmp_path, one_nifti):
    data = bytearray(gzip.compress(one_nifti))
    data[-6] ^= 1  # of its checksum
    (tmp_path / "x.nii.gz").write_bytes(data)
    with pytest.raises(RecordError, match="damaged"):
        read_file(tmp_path / "x.nii.gz", SCAN, Files())


def test_channels_of_different_rates_are_resampled_each(tmp_path, write_edf):
    time = np.arange(0, 20, 0.01)
    slow, fast = np.sin(time[::4]), np.cos(time)
    write_edf(tmp_path / "x.edf", {"x": (slow * 100, 25), "y": (fast * 100, 100)})
    signal = dataclasses.replace(WRIST, unit="µV", stored_shape=(2, 1000), input_shape=(2, 1000))
    (part,) = read_file(tmp_path / "x.edf", signal, Files())
    expected = 100 * np.stack([np.sin(time[::2]), np.cos(time[::2])])
    assert np.abs(values_of(part) - expected)[:, 50:-50].max() < 1.0


@pytest.mark.parametrize(
    "head",
    ["time,left,right", "Timestamp,left,right", "left,right", ",a,b", "0,1", "\ufeffleft,right"],
)
def test_a_column_of_times_is_no_channel(tmp_path, head):
    values = np.random.default_rng(4).normal(size=(100, 2))
    columns = [np.arange(100)[:, None]] * (head.count(",") == 2) + [values]
    np.savetxt(
        tmp_path / "x.csv",
        np.hstack(columns),
        delimiter=",",
        header=head,
        comments="",
        encoding="utf-8",
    )
    signal = dataclasses.replace(WRIST, channels=())
    (part,) = read_file(tmp_path / "x.csv", signal, Files(rate=50.0))
    assert np.abs(values_of(part) - values.T).max() < 1e-3


def test_arrays_by_name(tmp_path):
    one, other = np.random.default_rng(5).normal(size=(2, 2, 100))
    np.savez(tmp_path / "x.npz", one=one, other=other)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["one"], file["deep/other"] = one, other
    for name, key in (("x.npz", "other"), ("x.h5", "deep/other")):
        (part,) = read_file(tmp_path / name, WRIST, Files(rate=50.0, key=key))
        assert np.abs(values_of(part) - other).max() < 1e-3
        with pytest.raises(RecordError, match=r"several arrays and the card names none.*one"):
            read_file(tmp_path / name, WRIST, Files(rate=50.0))
        with pytest.raises(RecordError, match=r"no array third.*other"):
            read_file(tmp_path / name, WRIST, Files(rate=50.0, key="third"))


@pytest.mark.parametrize("end", [".npz", ".h5"])
@pytest.mark.parametrize("stored", ["h\u00f6he", "ho\u0308he"])
def test_an_array_is_found_whatever_form_its_name_has(tmp_path, end, stored):
    values = np.random.default_rng(0).normal(size=(2, 100))
    write_array(tmp_path / f"x{end}", values, stored)
    (part,) = read_file(tmp_path / f"x{end}", WRIST, Files(rate=50.0, key="h\u00f6he"))
    assert np.abs(values_of(part) - values).max() < 1e-3


@pytest.mark.parametrize("first", ["sep=;\r\n", '\ufeff"sep=;"\n', "sep=|\n"])
def test_samples_of_a_spreadsheet_that_states_its_separator(tmp_path, first):
    values = np.random.default_rng(0).normal(size=(100, 2))
    mark = first.strip().strip('"')[-1]
    lines = "".join(f"{mark.join(map(str, row))}\n" for row in values.tolist())
    (tmp_path / "x.csv").write_text(f"{first}ho\u0308he{mark}x\n{lines}", "utf-8")
    signal = dataclasses.replace(WRIST, channels=("x", "h\u00f6he"))
    (part,) = read_file(tmp_path / "x.csv", signal, Files(rate=50.0))
    assert np.abs(values_of(part) - values.T[::-1]).max() < 1e-3


def hdf5(path: Path, write) -> None:
    with h5py.File(path, "w") as file:
        write(file)


def linked(file: h5py.File) -> None:
    file["x"] = h5py.ExternalLink("/etc/passwd", "x")


def outside(file: h5py.File) -> None:
    file.create_dataset("x", (2, 100), "<f8", external=[("/etc/passwd", 0, 1600)])


def huge(file: h5py.File) -> None:
    file.create_dataset("x", (2**20, 2**20), "<f8", chunks=(1, 2**10))


def objects(file: h5py.File) -> None:
    file.create_dataset("x", data=["a", "b"], dtype=h5py.string_dtype())


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (linked, "a link, which is not followed"),
        (outside, "not a dataset within the file"),
        (huge, "expected numbers, at most"),
        (objects, "expected numbers"),
    ],
)
def test_odd_hdf5_files_are_refused(tmp_path, write, message):
    hdf5(tmp_path / "x.h5", write)
    with pytest.raises(RecordError, match=message):
        read_file(tmp_path / "x.h5", WRIST, Files(rate=50.0, key="x"))


@pytest.mark.parametrize("end", [".npy", ".npz"])
def test_nothing_is_unpickled(tmp_path, end):
    values = np.array([{"a": 1}], object)
    (np.save if end == ".npy" else np.savez)(tmp_path / f"x{end}", values)
    with pytest.raises(RecordError, match="expected numbers"):
        read_file(tmp_path / f"x{end}", WRIST, Files(rate=50.0))


@pytest.mark.parametrize("end", [".npy", ".npz", ".h5", ".nii", ".nii.gz", ".mhd"])
def test_files_of_noise_are_refused(tmp_path, end):
    rng = np.random.default_rng(6)
    signal = SCAN if end in (".nii", ".nii.gz", ".mhd") else WRIST
    for size in (0, 10, 5000):
        (tmp_path / f"x{end}").write_bytes(rng.bytes(size))
        with pytest.raises(RecordError):
            read_file(tmp_path / f"x{end}", signal, Files(rate=50.0))


def test_a_folder_of_dicom_slices_is_one_volume(tmp_path, write_slice):
    shape = (12, 16)
    rng = np.random.default_rng(7)
    slices = rng.integers(0, 2000, (10, *shape)).astype(np.int16)
    for number, values in enumerate(slices):
        path = tmp_path / "scan" / f"{9 - number}.dcm"
        write_slice(path, values, 2.0 * number, Modality="MR", RescaleIntercept=None)
    signal = dataclasses.replace(
        SCAN, stored_shape=(1, 10, *shape), input_shape=(1, 10, *shape), patch=(10, 4, 4)
    )
    (part,) = read_file(tmp_path / "scan", signal, Files())
    assert np.abs(values_of(part)[0] - slices).max() < 0.04
    with pytest.raises(RecordError, match="another than CT"):
        read_file(tmp_path / "scan", dataclasses.replace(signal, unit="HU"), Files())


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_images_of_any_number_of_channels_are_resized_plane_by_plane(tmp_path, channels):
    own = dataclasses.replace(
        SIGNALS["cxr"], name="own", stored_shape=(channels, 32, 32), input_shape=(channels, 32, 32)
    )
    pixels = np.random.default_rng(channels).integers(0, 256, (48, 24, channels), np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    (part,) = read_file(tmp_path / "x.npy", own, Files())
    assert part.valid_size == (32, 16)
    for plane, stored in zip(np.moveaxis(pixels, -1, 0), part.signal, strict=True):
        expected = Image.fromarray(plane).resize((16, 32), Image.Resampling.BILINEAR)
        assert np.array_equal(stored[:, 8:24], np.asarray(expected))
        assert not stored[:, :8].any()


OWN = {
    "wrist": (WRIST, lambda rng: rng.normal(3.0, 1.0, (2, 60))),
    "film": (FILM, lambda rng: rng.normal(300.0, 90.0, (40, 12))),
    "scan": (
        dataclasses.replace(SCAN, normaliser="none", parameters={}),
        lambda rng: rng.normal(-500.0, 90.0, (5, 20, 24)),
    ),
    "photograph": (
        dataclasses.replace(FILM, dtype="uint8"),
        lambda rng: rng.integers(50, 256, (40, 12), np.uint8),
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_statistics_and_normalisers_pass_over_padding(tmp_path, name):
    signal, draw = OWN[name]
    rng = np.random.default_rng(len(name))
    values = [draw(rng) for _ in range(4)]
    parts = []
    for number, one in enumerate(values):
        np.save(tmp_path / f"{number}.npy", one)
        parts += read_file(tmp_path / f"{number}.npy", signal, Files(rate=signal.rate))
    stored_bytes = [part.signal.tobytes() for part in parts]
    table = pa.table(
        {
            "signal": pa.array(stored_bytes, pa.binary(len(stored_bytes[0]))),
            "scale": [part.scale for part in parts],
            "valid_size": [part.valid_size for part in parts],
        }
    )
    sums = _sums(table, signal)
    channels = signal.stored_shape[0]
    whole = np.concatenate([one.reshape(channels, -1) for one in values], axis=1).astype(float)
    assert sums["count"] == [whole.shape[1]] * channels
    np.testing.assert_allclose(np.divide(sums["sum"], sums["count"]), whole.mean(axis=1), rtol=1e-3)
    np.testing.assert_allclose(sums["squares"], np.square(whole).sum(axis=1), rtol=1e-3)
    mean, std = whole.mean(axis=1), whole.std(axis=1)
    standard = dataclasses.replace(signal, normaliser="source-statistics", parameters={})
    normalise = normaliser(standard, {"mean": mean.tolist(), "std": std.tolist()})
    stored = (
        np.stack([part.signal for part in parts]),
        np.array([part.scale for part in parts], np.float32),
        np.array([part.valid_size for part in parts]),
    )
    seen = normalise(*map(torch.from_numpy, stored)).numpy()
    for one, found in zip(values, seen, strict=True):
        each = (one.reshape(channels, -1) - mean[:, None]) / std[:, None]
        assert np.sort(found[found != 0]) == pytest.approx(
            np.sort(each[each != 0].ravel()), abs=2e-3
        )


def test_a_constant_area_is_zero_by_its_own_range():
    own = dataclasses.replace(WRIST, input_shape=(2, 50))
    signals = np.full((2, 2, 100), 7, np.int16)
    signals[:, :, :10] = np.arange(10)
    signals[1, 0, 60] = 9
    about = (torch.ones(2), torch.tensor([[100], [100]]))
    found = normaliser(own, None)(torch.from_numpy(signals), *about)
    assert not found[0].any()
    assert found[1].max() - found[1].min() == 1


@pytest.mark.parametrize("head", ["0,1", ",0,1"])
def test_columns_that_are_only_counted_are_channels_in_their_order(tmp_path, head):
    values = np.random.default_rng(6).normal(size=(100, 2))
    columns = [np.arange(100)[:, None]] * (head.count(",") == 2) + [values]
    written = {"delimiter": ",", "header": head, "comments": ""}
    np.savetxt(tmp_path / "x.csv", np.hstack(columns), **written)
    (part,) = read_file(tmp_path / "x.csv", WRIST, Files(rate=50.0))  # of channels x and y
    assert np.abs(values_of(part) - values.T).max() < 1e-3
    swapped = Files(rate=50.0, channels={"x": "1", "y": "0"})
    (part,) = read_file(tmp_path / "x.csv", WRIST, swapped)
    assert np.abs(values_of(part) - values.T[::-1]).max() < 1e-3


@pytest.mark.parametrize("worst", [np.nan, np.inf, 1e300])
def test_values_that_cannot_be_stored_are_refused(tmp_path, worst):
    kinds = (("w", WRIST, (2, 100)), ("f", FILM, (40, 20)), ("s", SCAN, (8, 20, 24)))
    for name, signal, shape in kinds:
        values = np.random.default_rng(7).normal(size=shape)
        values.flat[3] = worst
        np.save(tmp_path / f"{name}.npy", values)
        with pytest.raises(RecordError, match="not finite, or too large for float32"):
            read_file(tmp_path / f"{name}.npy", signal, Files(rate=50.0))


VOLTS = dataclasses.replace(WRIST, name="leads", unit="mV", channels=("II", "V"), rate=100.0)


def test_other_channels_of_a_recording_do_not_matter(tmp_path, write_edf):
    """A pulse in no volts, of another rate, or without a sample, next to two leads."""
    values = np.round(np.random.default_rng(0).normal(0, 1, (2, 100)), 2)
    pulse = np.full((1, 100), -32768)
    steps = np.concatenate([np.rint(values * 200).astype(int), pulse])
    (tmp_path / "X.DAT").write_bytes(steps.T.astype("<i2").tobytes())
    lines = [f"x.dat 16 200/{unit} 16 0 0" for unit in ("mV", "mV", "NU")]
    lines = [f"{line} {int(own.sum()) % 65536} 0" for line, own in zip(lines, steps, strict=True)]
    text = "\n".join([f"{line} {name}" for line, name in zip(lines, ("II", "V", "P"), strict=True)])
    (tmp_path / "X.HEA").write_bytes(b"x 3 100 100\n" + text.encode() + b"\n# \xe4lter\n")
    edf = write_edf(
        tmp_path / "x.edf", {"V": (values[1] * 1e3, 100), "P": (values[0, :50], 50),
                             "II": (values[0] * 1e3, 100)}, limit=5e3,
    )  # fmt: skip
    content = edf.read_bytes().replace(b"uV      uV      uV      ", b"uV      mmHg    uV      ")
    edf.write_bytes(content)
    for path in (tmp_path / "X.HEA", edf):
        (part,) = read_file(path, VOLTS, Files())
        assert values_of(part) == pytest.approx(values, abs=0.08 if path == edf else 1e-3)
    with pytest.raises(RecordError, match="channel P: unit 'NU' is not a voltage"):
        read_file(tmp_path / "X.HEA", dataclasses.replace(VOLTS, channels=("II", "P")), Files())
    with pytest.raises(RecordError, match="channel P: unit 'mmHg' is not a voltage"):
        read_file(edf, dataclasses.replace(VOLTS, channels=("II", "P")), Files())
