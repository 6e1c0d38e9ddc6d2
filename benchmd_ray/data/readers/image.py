"""JPEG, PNG, TIFF and BMP files by Pillow: an upright array of grey levels or colours."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from benchmd_ray.data.readers.tiff import Page, the_page
from benchmd_ray.data.records import RecordError

VERSION = 2

Pixels = npt.NDArray[np.uint8]

MAX_PIXELS = 100_000_000
"""Larger images are refused before they are decoded: up to 25 bytes are held for each pixel. The
largest, digitised mammograms, have 40 million."""
FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "PPM")
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Modes of more than 8 bits."""

NATIVE = {"I;16BS": "I;16NS", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}
"""Raw modes of big-endian samples, and those that libtiff gives of them, which Pillow mixes up."""


def read_image(path: Path, channels: int) -> Pixels:
    """Read an image: uint8, (y, x) for one channel (ITU-R BT.601), (y, x, 3) for three.

    It is turned upright by its EXIF orientation, a palette is looked up, transparency is laid over
    black, and grey levels of more than 8 bits are scaled to 0–255 over the image's own range
    (decision D6). Grey levels whose zero is white (TIFF's WhiteIsZero) are inverted. Several pages
    or frames are refused, and more than 8 bits per colour, of which Pillow would take the upper 8.
    """
    page = None
    try:
        page = the_page(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # faulty EXIF data, large images: checked here
            return _decoded(path, page, channels)
    except RecordError:
        raise
    except MemoryError:
        raise
    except Image.DecompressionBombError as error:  # Pillow's own bound, when the header is read
        raise RecordError(
            f"the image has too many pixels, expected at most {MAX_PIXELS:,}"
        ) from error
    except UnidentifiedImageError as error:
        if page:
            raise RecordError(
                f"TIFF pages of {page.samples} sample(s) of {page.bits} bits are not decoded in "
                "this form: save it as 8 or 16 bits of grey, or 8 bits of colour"
            ) from error
        raise RecordError(
            f"it cannot be read as an image of {', '.join(FORMATS)}: it is another, or damaged"
        ) from error
    except Exception as error:  # Pillow raises whatever its decoders raise
        # without the file's name, or what others quote of the file
        why = getattr(error, "strerror", None) or (error if type(error) is OSError else "")
        name = type(error).__name__
        raise RecordError(
            f"it cannot be read as an image ({name}{why and ': '}{why}). Fetch it again."
        ) from error


def _decoded(path: Path, page: Page | None, channels: int) -> Pixels:
    with Image.open(page.content if page else path, formats=FORMATS) as image:
        if page:
            image.seek(page.number)
        elif (frames := _frames(image, path)) > 1:
            raise RecordError(f"the image has {frames:,} frames, expected one: save each as a file")
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise RecordError(
                f"the image has {width} × {height} pixels, expected at most {MAX_PIXELS:,}"
            )
        if image.mode not in DEEP and any(_deep(tile[3]) for tile in image.tile):
            raise RecordError("it has 16 bits per colour; expected 8 (or 16 of grey)")
        image.tile = [_in_native_order(tile) for tile in image.tile]
        image.load()
        return _as_grey_levels(ImageOps.exif_transpose(image), channels, page)


def _in_native_order(tile: Any) -> Any:
    """A tile of Pillow with the raw mode that its decoder gives."""
    if tile.codec_name != "libtiff":
        return tile
    mode, *others = tile.args
    return tile._replace(args=(NATIVE.get(mode, mode), *others))


def _deep(stated: object) -> bool:
    """Whether an image's tile has values of more than 8 bits; PPM files state the largest."""
    largest = stated[1] if isinstance(stated, tuple) and len(stated) == 2 else 0
    return ";16" in str(stated) or (isinstance(largest, int) and largest > 255)


def _frames(image: ImageFile.ImageFile, path: Path) -> int:
    """Pictures of an animation, a panorama, a stereo pair, or a PPM file; not smaller copies."""
    if image.format == "PPM":
        return _pictures_of_ppm(image, path)
    if image.format != "MPO":
        return getattr(image, "n_frames", 1)
    entries = getattr(image, "mpinfo", {}).get(0xB002, [])
    kinds = [str(entry.get("Attribute", {}).get("MPType", "")) for entry in entries[1:]]
    return 1 + sum(kind.startswith("Multi-Frame") for kind in kinds)


def _pictures_of_ppm(image: ImageFile.ImageFile, path: Path) -> int:
    """Pictures of a binary PBM, PGM or PPM file, which are one behind the other, of one size."""
    decoder, _, offset, stated = image.tile[0]
    if decoder == "ppm_plain":
        return 1
    width, height = image.size
    line = (width + 7) // 8 if image.mode == "1" else width * len(image.getbands())
    size = line * height * (1 + _deep(stated))
    with path.open("rb") as file:
        file.seek(offset + size)
        is_followed = re.match(rb"\s*P[1-7]\s", file.read(64)) is not None
        all_bytes = file.seek(0, 2)
    return max(2, round(all_bytes / (offset + size))) if is_followed else 1


def _deep_values(image: Image.Image, page: Page | None) -> npt.NDArray[np.generic] | None:
    """Grey levels that are not of 0 to 255, larger ones lighter; None where they are."""
    values = np.asarray(image)
    if page and page.is_signed and image.mode == "L":
        values = values.view(np.int8)
    elif image.mode not in DEEP:
        return None
    if page and not page.is_signed and values.dtype == np.int32 and page.bits == 32:
        values = values.view(np.uint32)
    if page and page.is_inverted:
        values = -values if values.dtype.kind == "f" else ~values
    return values


def _as_grey_levels(image: Image.Image, channels: int, page: Page | None) -> Pixels:
    if (values := _deep_values(image, page)) is not None:
        grey = to_grey_levels(values)
        return grey if channels == 1 else np.repeat(grey[..., None], 3, axis=2)
    if page and page.is_inverted:
        image = ImageOps.invert(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
        image = image.convert("RGB")
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    return np.array(image.convert("L" if channels == 1 else "RGB"))


def to_grey_levels(values: npt.NDArray[np.generic]) -> Pixels:
    """Values scaled linearly so that their minimum is 0 and their maximum 255 (decision D6)."""
    x = np.array(values, np.float64)
    low, high = float(x.min()), float(x.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise RecordError("it holds values that are not finite")
    if low == high:
        raise RecordError(f"every pixel is {low:g}; expected an image")
    x -= low
    x *= 255 / (high - low)
    return np.rint(x, out=x).astype(np.uint8)
