"""Arrays of .npz files as streams, against numpy's own reading, and what a broken one says."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from benchmd_ray.data.readers import npz
from benchmd_ray.data.readers.npz import Rows, rows_of
from benchmd_ray.data.records import RecordError


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (50, 6, 5), np.uint8)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_rows_are_those_that_numpy_reads(tmp_path, images, write):
    write(tmp_path / "x.npz", images=images, labels=images[:, 0, :1])
    rows = Rows(tmp_path / "x.npz", "images")
    assert rows.shape == images.shape
    for row in (0, 1, 2, 7, 8, 49, 3, 48):  # in order, with gaps, and back again
        np.testing.assert_array_equal(rows.read(row)[0], images[row])
    np.testing.assert_array_equal(rows.read(10, 30), images[10:40])
    np.testing.assert_array_equal(Rows(tmp_path / "x.npz", "labels").read(0, 50), images[:, 0, :1])


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_both_versions_of_the_format_are_read(tmp_path, images, version):
    held = io.BytesIO()
    np.lib.format.write_array(held, images, version)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", held.getvalue())
    np.testing.assert_array_equal(Rows(tmp_path / "x.npz", "images").read(49)[0], images[49])


def test_a_stream_is_kept_and_a_file_written_anew_is_opened_again(tmp_path, images):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, images=images)
    first = rows_of(path, "images")
    assert rows_of(path, "images") is first
    np.savez_compressed(path, images=images[::-1][:40])
    np.testing.assert_array_equal(rows_of(path, "images").read(0)[0], images[49])


def test_a_row_of_a_large_array_takes_little_memory(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, images=np.zeros((2000, 256, 256), np.uint8))  # 131 MB
    tracemalloc.start()
    Rows(path, "images").read(1999)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6


def member(content: bytes, name: str = "images.npy") -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return held.getvalue()


def saved(**arrays: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)
    return held.getvalue()


def npy(array: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.lib.format.write_array(held, array, allow_pickle=True)
    return held.getvalue()


def header(text: str) -> bytes:
    """A member that is nothing but a header of version 2."""
    content = text.encode() + b"\n"
    return member(b"\x93NUMPY\x02\x00" + len(content).to_bytes(4, "little") + content)


def packed(method: int) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", method) as archive:
        archive.writestr("images.npy", npy(IMAGES))
    return held.getvalue()


FIELDS = "{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}"
IMAGES = np.random.default_rng(5).integers(0, 256, (20, 30, 30), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", r"it is not a whole \.npz file \(BadZipFile"),
        (saved(images=IMAGES)[:-200], r"it is not a whole \.npz file \(BadZipFile"),
        (saved(labels=IMAGES), "it holds no array images, but labels"),
        (member(npy(IMAGES), "images"), "it holds no array images, but nothing"),
        (member(b"text"), "images is not an array of version 1 or 2 of the format"),
        (
            member(b"\x93NUMPY\x03\x00" + npy(IMAGES)[8:]),
            "images is not an array of version 1 or 2",
        ),
        (member(b"\x93NUMPY\x02\x00" + b"\xff" * 10), "images has a header that NumPy does not"),
        (header("{'descr': " + "(" * 9000), "images has a header that NumPy does not write"),
        (header("-" * 9000), "images has a header that NumPy does not write"),
        (header(FIELDS.format("|u1", "9" * 400 + ",")), "a header that NumPy does not write"),
        (header(FIELDS.format("|u1", "524289, 0, 0")), "524,289 rows, expected at most 524,288"),
        (header(FIELDS.format("|u1", "999999999999, 28, 28")), "rows, expected at most 524,288"),
        (header(FIELDS.format("|u1", "20, 999999999999")), "its header says .20, 999999999999. a"),
        (header(FIELDS.format("|u1", "-1, 28")), "images has a header that NumPy does not write"),
        (header(FIELDS.format("oddest", "2, 2")), r"it is not a whole \.npz file \(TypeError"),
        (packed(zipfile.ZIP_LZMA), "images is compressed in a way that is not taken"),
        (packed(zipfile.ZIP_BZIP2), "images is compressed in a way that is not taken"),
        (member(npy(IMAGES)[:500]), r"images has 500 bytes, its header says \(20, 30, 30\)"),
        (saved(images=IMAGES.astype(np.int64)), "images has the type int64, C order"),
        (saved(images=np.asfortranarray(IMAGES)), "type uint8, Fortran order"),
        (saved(images=np.uint8(3)), r"order and shape \(\), expected"),
        (saved(images=np.array([print, 1], object)), "images has the type object"),
    ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=message):
        Rows(path, "images")


def test_a_directory_of_many_members_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(1000):
            archive.writestr(f"{number:09d}", b"")
    monkeypatch.setattr(npz, "MAX_AT_ONCE", 50_000)
    with pytest.raises(RecordError, match="it has a part of 55,000 bytes"):
        Rows(path, "images")


def test_a_header_that_inflates_to_gigabytes_is_not_held(tmp_path):
    path = tmp_path / "x.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("images.npy", "w") as file,
    ):
        file.write(b"\x93NUMPY\x02\x00" + (2**28).to_bytes(4, "little"))
        for _ in range(2**8):
            file.write(b" " * 2**20)
    tracemalloc.start()
    with pytest.raises(RecordError, match="images has a header that NumPy does not write"):
        Rows(path, "images")
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_damage_within_an_array_is_found_where_it_is_read(tmp_path):
    path = tmp_path / "x.npz"
    content = bytearray(saved(images=IMAGES))
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    rows = Rows(path, "images")
    with pytest.raises(RecordError, match=r"it is not a whole \.npz file \((BadZipFile|error)"):
        rows.read(0, 20)


@pytest.mark.parametrize(("row", "count"), [(-1, 1), (20, 1), (15, 6)])
def test_rows_that_are_not_there_are_refused(tmp_path, row, count):
    (tmp_path / "x.npz").write_bytes(saved(images=IMAGES))
    with pytest.raises(RecordError, match=f"images has 20 rows, and not row {row}"):
        Rows(tmp_path / "x.npz", "images").read(row, count)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(RecordError, match="FileNotFoundError"):
        rows_of(tmp_path / "x.npz", "images")
