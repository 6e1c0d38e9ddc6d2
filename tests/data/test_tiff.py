"""TIFF files written byte by byte: what zero means in each depth, and how many pages there are."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from made_tiff import page, write
from PIL import Image

from benchmd_ray.data.readers import tiff
from benchmd_ray.data.readers.image import read_image, to_grey_levels
from benchmd_ray.data.readers.tiff import the_page
from benchmd_ray.data.records import RecordError

RAMP = np.tile(np.arange(4, 252, 8), (6, 1))
"""Dark on the left; (6, 31)."""


def of_type(kind: str) -> np.ndarray:
    """The ramp over most of a type's range, so that no sign is mistaken."""
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        return (RAMP / 255 - 0.3).astype(dtype)
    low, step = np.iinfo(dtype).min, 2 ** (8 * dtype.itemsize - 8)
    return (low + RAMP.astype(object) * step).astype(dtype)


def inverted(values: np.ndarray) -> np.ndarray:
    """The same picture where zero is white: of whole numbers, counted from the largest."""
    if values.dtype.kind == "f":
        return (-values).astype(values.dtype)  # which NumPy gives in native order
    info = np.iinfo(values.dtype)
    return (info.max + info.min - values.astype(object)).astype(values.dtype)


DEPTHS = [
    *("<u1", ">u1", "<u2", ">u2", "<u4", "<i1", ">i1", "<i2", ">i2", "<i4", ">i4"),
    *("<f4", ">f4"),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", DEPTHS)
def test_a_ramp_is_dark_on_the_left_whatever_zero_means(tmp_path, kind, packed):
    values, expected = of_type(kind), RAMP
    if kind[1:] != "u1":  # scaled over its own range (decision D6)
        expected = (RAMP - 4) * (255 / 240)
    for photometric, stored in ((1, values), (0, inverted(values))):
        path = write(
            tmp_path / "x.tif", page(stored, photometric), order=kind[0], packed=packed
        )  # fmt: skip
        assert np.abs(read_image(path, 1) - expected).max() <= 0.5 + 1e-4, photometric
        assert np.array_equal(read_image(path, 3), np.stack([read_image(path, 1)] * 3, -1))


def test_a_file_whose_zero_is_white_is_in_memory_once(tmp_path):
    path = write(tmp_path / "x.tif", page(np.zeros((1024, 1024), np.uint16), 0))
    tracemalloc.start()
    try:
        assert the_page(path).is_inverted
        assert tracemalloc.get_traced_memory()[1] < 1.1 * path.stat().st_size
    finally:
        tracemalloc.stop()


def test_grey_levels_are_scaled_in_place_and_the_values_stay(tmp_path):
    values = np.random.default_rng(0).normal(size=(512, 512))
    before = values.copy()
    tracemalloc.start()
    try:
        levels = to_grey_levels(values)
        assert tracemalloc.get_traced_memory()[1] < 1.2 * values.nbytes
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(values, before)
    low, high = before.min(), before.max()
    expected = np.rint((before - low) * (255 / (high - low)))
    np.testing.assert_array_equal(levels, expected)


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("order", ["<", ">"])
def test_less_than_8_bits_are_dark_on_the_left_whatever_zero_means(tmp_path, bits, order):
    most = 2**bits - 1
    levels = np.tile(np.linspace(0, most, 16).round().astype(np.uint8), (4, 1))
    for photometric, stored in ((1, levels), (0, most - levels)):
        lines = np.unpackbits(stored[..., None], -1)[..., 8 - bits :].reshape(4, -1)
        own = page(np.packbits(lines, -1), photometric, width=16, bits=bits)
        found = read_image(write(tmp_path / "x.tif", own, order=order), 1)
        assert np.array_equal(found, levels * (255 // most))


def test_a_file_that_does_not_say_what_zero_means_is_refused(tmp_path):
    path = write(tmp_path / "x.tif", page(of_type("<u2"), None))
    with pytest.raises(RecordError, match=r"zero is black or white \(PhotometricInterpretation\)"):
        read_image(path, 1)


@pytest.mark.parametrize("kind", [">u4", "<f8"])
def test_samples_that_are_not_decoded_are_named(tmp_path, kind):
    for photometric in (0, 1):
        own = page(RAMP.astype(kind), photometric)
        path = write(tmp_path / "x.tif", own, order=kind[0])
        with pytest.raises(RecordError, match=r"pages of 1 sample\(s\) of \d\d bits are not deco"):
            read_image(path, 1)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
def test_several_pages_are_refused_with_their_number(tmp_path, order, big):
    kind = f"{order}u2"
    one, other = page(of_type(kind), 1), page(of_type(kind)[:, ::-1], 1)
    path = write(tmp_path / "x.tif", one, other, other, order=order, big=big)
    with pytest.raises(RecordError, match="it has 3 pages, expected one: save each page"):
        read_image(path, 1)
    if not (big and order == ">"):  # which Pillow does not know
        assert read_image(write(path, one, order=order, big=big), 1)[0, -1] == 255


def test_pages_that_pillow_wrote_are_counted(tmp_path):
    pages = [Image.fromarray(RAMP.astype(np.uint8) + n) for n in range(5)]
    pages[0].save(tmp_path / "x.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(RecordError, match="it has 5 pages, expected one"):
        read_image(tmp_path / "x.tif", 1)


@pytest.mark.parametrize("of_copy", [{"subfile": 1}, {"subfile": 4}, {"old_subfile": 2}])
@pytest.mark.parametrize("first", [True, False])
def test_smaller_copies_and_masks_are_no_pages(tmp_path, of_copy, first):
    whole = page(inverted(of_type("<u2")), 0)
    copy = page(of_type("<u2")[::2, ::-2], 1, **of_copy)
    path = write(tmp_path / "x.tif", *((copy, whole) if first else (whole, copy)))
    grey = read_image(path, 1)
    assert grey.shape == RAMP.shape
    assert (grey[0, 0], grey[0, -1]) == (0, 255)


def test_directories_in_a_circle_or_without_end_are_left(tmp_path, monkeypatch):
    path = write(tmp_path / "x.tif", page(of_type("<u1"), 1), page(of_type("<u1"), 1))
    content = bytearray(path.read_bytes())
    content[-4:] = content[4:8]  # the last page's next is the first
    path.write_bytes(content)
    with pytest.raises(RecordError, match="it has 2 pages"):
        read_image(path, 1)
    monkeypatch.setattr(tiff, "MAX_READS", 20)
    with pytest.raises(RecordError, match="more parts than any such file"):
        read_image(path, 1)


@pytest.mark.parametrize(("order", "version"), [("<", b"\0*"), (">", b"*\0")])
def test_a_version_of_swapped_bytes_changes_nothing(tmp_path, order, version):
    """Pillow takes such files, too."""
    path = write(tmp_path / "x.tif", page(inverted(of_type(f"{order}u2")), 0), order=order)
    content = path.read_bytes()
    path.write_bytes(content[:2] + version + content[4:])
    assert read_image(path, 1)[0, 0] == 0


def test_a_directory_behind_the_end_is_refused(tmp_path):
    path = write(tmp_path / "x.tif", page(of_type("<u1"), 1))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordError, match="directory is behind its end"):
        read_image(path, 1)


# Pictures of other formats that hold several.


def test_frames_of_an_animated_png_are_counted(tmp_path):
    frames = [Image.fromarray(np.roll(RAMP, n, 1).astype(np.uint8)) for n in range(4)]
    frames[0].save(tmp_path / "x.png", save_all=True, append_images=frames[1:])
    with pytest.raises(RecordError, match="the image has 4 frames, expected one"):
        read_image(tmp_path / "x.png", 1)


def test_a_stereo_pair_is_two_frames_and_a_preview_is_none(tmp_path):
    pictures = [Image.fromarray(RAMP.astype(np.uint8)) for _ in range(2)]
    path = tmp_path / "x.jpg"
    pictures[0].save(path, "MPO", save_all=True, append_images=pictures[1:])
    assert read_image(path, 1).shape == RAMP.shape  # the other is of undefined kind
    content = bytearray(path.read_bytes())
    place = content.rindex(struct.pack("<L", 0x030000), 0, 128) + 16  # the second picture's entry
    content[place : place + 4] = struct.pack("<L", 0x020002)  # one of two views
    path.write_bytes(content)
    with pytest.raises(RecordError, match="the image has 2 frames, expected one"):
        read_image(path, 1)


@pytest.mark.parametrize(
    ("head", "size"),
    [(b"P4\n31 6\n", 24), (b"P5\n31 6\n255\n", 186), (b"P5\n31 6\n4095\n", 372),
     (b"P5\n31 6\n65535\n", 372), (b"P6\n31 6\n255\n", 558)],
)  # fmt: skip
def test_pictures_behind_each_other_in_a_ppm_file_are_counted(tmp_path, head, size):
    one = head + bytes(n % 15 for n in range(size))
    for content, shape in ((one, RAMP.shape), (one + b"\n", RAMP.shape)):
        (tmp_path / "x.ppm").write_bytes(content)
        assert read_image(tmp_path / "x.ppm", 1).shape == shape
    (tmp_path / "x.ppm").write_bytes(one * 3)
    with pytest.raises(RecordError, match="the image has 3 frames, expected one"):
        read_image(tmp_path / "x.ppm", 1)
