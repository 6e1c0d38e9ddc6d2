"""Image files of every mode and orientation, and how an image is fitted into a square."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets.images import image_record
from benchmd_ray.data.raw import RawItem
from benchmd_ray.data.readers.image import read_image, to_grey_levels
from benchmd_ray.data.records import RecordError
from benchmd_ray.data.transforms import fitted

SHAPES = [(224, 224), (300, 200), (200, 300), (223, 224), (225, 224), (96, 61), (1000, 7),
          (7, 1000), (448, 447), (1, 1), (2, 500), (3, 2)]  # fmt: skip
SHOWN_BY_ORIENTATION = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: np.swapaxes(x, 0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.swapaxes(x[::-1, ::-1], 0, 1),
    8: lambda x: np.rot90(x, 1),
}
"""What a viewer shows of stored pixels, by the EXIF orientation of the standard."""


@pytest.fixture
def grey() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (23, 17), np.uint8)


@pytest.fixture
def colour() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (23, 17, 3), np.uint8)


def luma(colours: np.ndarray) -> np.ndarray:
    """ITU-R BT.601."""
    return colours.astype(float) @ [0.299, 0.587, 0.114]


def save(image: Image.Image, path: Path, **options) -> Path:
    image.save(path, **options)
    return path


def png_header(path: Path, width: int, height: int) -> Path:
    """A PNG file that claims a size and holds no pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    ends = chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + ends)
    return path


@pytest.mark.parametrize("suffix", ["png", "tif", "bmp", "ppm"])
def test_grey_and_colour_files_read_as_they_are(tmp_path, grey, colour, suffix):
    path = save(Image.fromarray(grey), tmp_path / f"grey.{suffix}")
    assert np.array_equal(read_image(path, 1), grey)
    assert np.array_equal(read_image(path, 3), np.repeat(grey[..., None], 3, axis=2))
    path = save(Image.fromarray(colour), tmp_path / f"colour.{suffix}")
    assert np.array_equal(read_image(path, 3), colour)
    assert np.abs(read_image(path, 1) - luma(colour)).max() <= 1


@pytest.mark.parametrize("largest", [255, 4095, 65535])
@pytest.mark.parametrize("plain", [False, True])
def test_pgm_files_of_any_depth_are_read(tmp_path, largest, plain):
    values = np.random.default_rng(largest).integers(0, largest + 1, (7, 5))
    data = " ".join(map(str, values.ravel())).encode()
    if not plain:
        data = values.astype(">u2" if largest > 255 else np.uint8).tobytes()
    path = tmp_path / "x.pgm"
    path.write_bytes(b"%s\n5 7\n%d\n" % (b"P2" if plain else b"P5", largest) + data)
    expected = values
    if largest > 255:  # scaled over its own range (decision D6)
        expected = (values - values.min()) * (255 / (values.max() - values.min()))
    assert np.abs(read_image(path, 1) - expected).max() <= (largest > 255)


def test_ppm_files_with_more_than_8_bits_per_colour_are_refused(tmp_path):
    path = tmp_path / "x.ppm"
    path.write_bytes(b"P6\n2 1\n65535\n" + bytes(range(12)))
    with pytest.raises(RecordError, match="16 bits per colour; expected 8"):
        read_image(path, 3)


def test_jpeg_files_read_as_pillow_decodes_them(tmp_path, colour):
    path = save(Image.fromarray(colour), tmp_path / "x.jpg", quality=95)
    with Image.open(path) as image:
        assert np.array_equal(read_image(path, 3), np.asarray(image))


def test_transparency_is_laid_over_black(tmp_path, grey, colour):
    opacity = np.arange(grey.size).reshape(grey.shape) % 256
    with_opacity = np.dstack([colour, opacity]).astype(np.uint8)
    path = save(Image.fromarray(with_opacity, "RGBA"), tmp_path / "rgba.png")
    expected = colour * (opacity[..., None] / 255)
    assert np.abs(read_image(path, 3) - expected).max() <= 1
    assert np.abs(read_image(path, 1) - luma(expected)).max() <= 2
    pair = np.dstack([grey, opacity]).astype(np.uint8)
    path = save(Image.fromarray(pair, "LA"), tmp_path / "la.png")
    assert np.abs(read_image(path, 1) - grey * (opacity / 255)).max() <= 1


def test_a_palette_is_looked_up(tmp_path, colour):
    paletted = Image.fromarray(colour).quantize(16)
    table = np.reshape(paletted.getpalette(), (-1, 3))
    path = save(paletted, tmp_path / "p.png")
    assert np.array_equal(read_image(path, 3), table[np.asarray(paletted)])
    see_through = save(paletted, tmp_path / "t.png", transparency=3)
    expected = table[np.asarray(paletted)] * (np.asarray(paletted) != 3)[..., None]
    assert np.array_equal(read_image(see_through, 3), expected)


def test_black_and_white_becomes_0_and_255(tmp_path, grey):
    path = save(Image.fromarray(grey > 100), tmp_path / "1.png")
    assert np.array_equal(read_image(path, 1), 255 * (grey > 100))


def test_more_than_8_bits_are_scaled_over_their_own_range(tmp_path, grey):
    values = grey.astype(np.uint16) * 11 + 500
    path = save(Image.fromarray(values), tmp_path / "deep.png")
    low, high = int(values.min()), int(values.max())
    expected = np.rint((values.astype(float) - low) * 255 / (high - low))
    assert np.abs(read_image(path, 1) - expected).max() <= 1
    assert read_image(path, 1).min() == 0
    assert read_image(path, 1).max() == 255
    assert read_image(path, 3).shape == (*grey.shape, 3)
    fractions = Image.fromarray((grey / 1000).astype(np.float32))
    expected = (grey - float(grey.min())) * 255 / (int(grey.max()) - int(grey.min()))
    path = save(fractions, tmp_path / "deep.tif")
    assert np.abs(read_image(path, 1) - expected).max() <= 1


def test_cmyk_becomes_colours(tmp_path, colour):
    inks = Image.fromarray(np.dstack([255 - colour, np.zeros_like(colour[..., 0])]), "CMYK")
    path = save(inks, tmp_path / "cmyk.tif")
    assert np.abs(read_image(path, 3).astype(int) - colour).max() <= 1


@pytest.mark.parametrize("orientation", SHOWN_BY_ORIENTATION)
def test_images_are_turned_upright(tmp_path, grey, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(Image.fromarray(grey), tmp_path / "x.png", exif=exif)
    assert np.array_equal(read_image(path, 1), SHOWN_BY_ORIENTATION[orientation](grey))


def test_an_orientation_that_does_not_exist_changes_nothing(tmp_path, grey):
    exif = Image.Exif()
    exif[0x0112] = 11
    path = save(Image.fromarray(grey), tmp_path / "x.png", exif=exif)
    assert np.array_equal(read_image(path, 1), grey)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "tif", "ppm"])
def test_a_file_that_is_cut_off_is_refused(tmp_path, colour, suffix):
    path = save(Image.fromarray(np.tile(colour, (8, 8, 1))), tmp_path / f"x.{suffix}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(RecordError, match=r"cannot be read as an image .*Fetch it again"):
        read_image(path, 1)


def test_a_file_that_is_no_image_missing_or_of_another_format_is_refused(tmp_path, colour):
    (tmp_path / "a.png").write_bytes(b"no image at all")
    (tmp_path / "b.png").write_bytes(b"")
    save(Image.fromarray(colour), tmp_path / "c.gif")
    for name in ("a.png", "b.png", "c.gif", "d.png"):
        with pytest.raises(RecordError, match="cannot be read as an image") as error:
            read_image(tmp_path / name, 1)
        assert str(tmp_path) not in str(error.value)
        assert "KeyError" not in str(error.value)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_16_bits_per_colour_are_refused(tmp_path, mode):
    """Pillow would take the upper 8 of them: 12 bits in 16 become nearly black."""
    kinds = {"RGB": (2, 3), "RGBA": (6, 4), "LA": (4, 2)}
    kind, channels = kinds[mode]
    values = np.random.default_rng(0).integers(0, 4096, (20, 30, channels)).astype(">u2")
    lines = b"".join(b"\0" + line.tobytes() for line in values)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 30, 20, 16, kind, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in parts:
        content += struct.pack(">I", len(data)) + name + data
        content += struct.pack(">I", zlib.crc32(name + data))
    (tmp_path / "deep.png").write_bytes(content)
    with pytest.raises(RecordError, match="it has 16 bits per colour; expected 8"):
        read_image(tmp_path / "deep.png", 3)


@pytest.mark.parametrize("size", [(50_000, 50_000), (14_000, 14_000), (2**31 - 1, 2)])
def test_a_header_that_claims_a_gigantic_image_is_refused(tmp_path, size):
    with pytest.raises(RecordError, match="pixels"):
        read_image(png_header(tmp_path / "x.png", *size), 1)


def test_values_without_a_range_are_refused():
    for values, message in (
        (np.full((3, 3), 7), "every pixel is 7; expected an image"),
        (np.array([[0.0, np.nan]]), "not finite"),
        (np.array([[0.0, np.inf]]), "not finite"),
    ):
        with pytest.raises(RecordError, match=message):
            to_grey_levels(values)


@pytest.mark.parametrize("kind", [np.int16, np.uint16, np.int32, np.float64])
def test_grey_levels_keep_the_order_and_use_the_whole_range(kind):
    values = np.random.default_rng(2).permutation(np.arange(-300, 301).clip(
        *(0, 400) if kind == np.uint16 else (-300, 300)))  # fmt: skip
    grey = to_grey_levels(values.astype(kind))
    assert (grey.min(), grey.max(), grey.dtype) == (0, 255, np.uint8)
    assert (np.diff(grey[np.argsort(values)].astype(int)) >= 0).all()


# Fitting into a square.


def triangle_weights(size: int, new_size: int) -> np.ndarray:
    """(new, old) weights of a triangle filter as wide as the reduction, one output at a time."""
    ratio = size / new_size
    width = max(ratio, 1.0)
    weights = np.zeros((new_size, size))
    for out in range(new_size):
        centre = (out + 0.5) * ratio
        for position in range(size):
            weights[out, position] = max(0.0, 1 - abs(position + 0.5 - centre) / width)
        weights[out] /= weights[out].sum()
    return weights


def slowly_fitted(image: np.ndarray, size: int) -> tuple[np.ndarray, tuple[int, int]]:
    """The decision's words: longer side resized, aspect ratio kept, centred, padded with zeros."""
    height, width = image.shape
    if height >= width:
        new = size, max(1, round(width * size / height))
    else:
        new = max(1, round(height * size / width)), size
    resized = triangle_weights(height, new[0]) @ image @ triangle_weights(width, new[1]).T
    before = [(size - extent) // 2 for extent in new]
    after = [size - extent - start for extent, start in zip(new, before, strict=True)]
    return np.pad(resized, list(zip(before, after, strict=True))), new


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fitting_is_a_triangle_filter_along_each_axis(shape):
    image = np.random.default_rng(3).integers(0, 256, shape, np.uint8)
    square, valid = fitted(image, 224)
    expected, expected_valid = slowly_fitted(image, 224)
    assert square.shape == (1, 224, 224)
    assert valid == expected_valid
    assert max(valid) == 224
    assert np.abs(square[0] - expected).max() <= 1.5  # Pillow rounds after each axis


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_padding_is_zero_and_halved_with_the_odd_row_last(shape):
    square, valid = fitted(np.full(shape, 200, np.uint8), 224)
    top, left = (224 - valid[0]) // 2, (224 - valid[1]) // 2
    inside = np.zeros((224, 224), bool)
    inside[top : top + valid[0], left : left + valid[1]] = True
    assert (square[0][inside] == 200).all()
    assert (square[0][~inside] == 0).all()
    assert 224 - top - valid[0] - top in (0, 1)
    assert 224 - left - valid[1] - left in (0, 1)


def test_channels_are_fitted_alike(colour):
    square, valid = fitted(colour, 224)
    assert square.shape == (3, 224, 224)
    for channel in range(3):
        alone, same = fitted(np.ascontiguousarray(colour[..., channel]), 224)
        assert np.array_equal(square[channel], alone[0])
        assert same == valid


def test_an_image_of_the_right_size_stays_as_it_is():
    image = np.random.default_rng(4).integers(0, 256, (224, 224), np.uint8)
    assert np.array_equal(fitted(image, 224)[0][0], image)


def test_reduction_leaves_no_pattern_that_was_not_there():
    stripes = np.tile(np.array([0, 255], np.uint8), (448, 448))  # 896 columns
    square, valid = fitted(stripes, 224)
    assert valid == (112, 224)
    assert np.ptp(square[0, 60:160, 2:-2]) <= 1  # without antialiasing: black or white


def test_a_record_holds_the_fitted_image_and_its_valid_size(grey):
    card = dataset_card("chexpert")
    item = RawItem("x.png", "x", "g", "test", labels={"edema": 1, "cardiomegaly": 0})
    (record,) = image_record(grey, item, card).records
    square, valid = fitted(grey, 224)
    assert np.array_equal(record.signal, square)
    assert (record.valid_size, record.scale, record.unit_id) == (valid, 1.0, "x")
    assert record.target == [-1, 0, -1, 1, -1]
    with pytest.raises(RecordError, match="every pixel is 9; expected an image"):
        image_record(np.full_like(grey, 9), item, card)
    one_colour = np.full((*grey.shape, 3), (9, 80, 200), np.uint8)
    with pytest.raises(RecordError, match=r"every pixel is \[ *9 +80 +200\]; expected an image"):
        image_record(one_colour, item, card)


@pytest.mark.data
def test_every_real_film_reads(real_data):
    films = sorted((real_data / "nih-cxr-1000" / "images_224").iterdir())
    assert len(films) == 1000
    assert {read_image(path, 1).shape for path in films[::10]} == {(224, 224)}
