"""JPEG, PNG, TIFF and BMP files by Pillow: an upright array of grey levels or colours."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from benchmd_ray.data.records import RecordError

VERSION = 1
"""Raised whenever what it reads of the same file changes."""

Pixels = npt.NDArray[np.uint8]

MAX_PIXELS = 100_000_000
"""Larger images are refused before they are decoded: up to 30 bytes are held for each pixel. The
largest, digitised mammograms, have 40 million."""
FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "PPM")
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Modes of more than 8 bits."""


def read_image(path: Path, channels: int) -> Pixels:
    """Read an image.

    It is turned upright as its EXIF orientation says, a palette is looked up, transparency is laid
    over black, and grey levels of more than 8 bits are scaled to 0–255 over the image's own range
    (decision D6).

    Args:
        path: The file.
        channels: 1 for grey levels (ITU-R BT.601 of a colour image), 3 for red, green, blue.

    Returns:
        uint8, (y, x) for one channel, (y, x, 3) for three.

    Raises:
        RecordError: The file is missing, damaged, too large or no image, or has more than 8 bits
            per colour, of which Pillow would take the upper 8.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # faulty EXIF data, large images: checked here
            with Image.open(path, formats=FORMATS) as image:
                width, height = image.size
                if width * height > MAX_PIXELS:
                    raise RecordError(
                        f"the image has {width} × {height} pixels, expected at most {MAX_PIXELS:,}"
                    )
                if image.mode not in DEEP and any(_deep(tile[3]) for tile in image.tile):
                    raise RecordError("it has 16 bits per colour; expected 8 (or 16 of grey)")
                image.load()
                return _as_grey_levels(_upright(image), channels)
    except RecordError:
        raise
    except MemoryError:
        raise
    except Image.DecompressionBombError as error:  # Pillow's own bound, when the header is read
        raise RecordError(
            f"the image has too many pixels, expected at most {MAX_PIXELS:,}"
        ) from error
    except UnidentifiedImageError as error:
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


def _deep(stated: object) -> bool:
    """Whether an image's tile has values of more than 8 bits; PPM files state the largest."""
    largest = stated[1] if isinstance(stated, tuple) and len(stated) == 2 else 0
    return ";16" in str(stated) or (isinstance(largest, int) and largest > 255)


def _upright(image: Image.Image) -> Image.Image:
    turned = ImageOps.exif_transpose(image)
    return image if turned is None else turned


def _as_grey_levels(image: Image.Image, channels: int) -> Pixels:
    if image.mode in DEEP:
        grey = to_grey_levels(np.asarray(image))
        return grey if channels == 1 else np.repeat(grey[..., None], 3, axis=2)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
        image = image.convert("RGB")
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    return np.array(image.convert("L" if channels == 1 else "RGB"))


def to_grey_levels(values: npt.NDArray[np.generic]) -> Pixels:
    """Values scaled linearly so that their own minimum is 0 and their maximum 255 (decision D6).

    Args:
        values: Any real values, at least two of them different.

    Raises:
        RecordError: They are all equal, or one is not finite.
    """
    x = np.asarray(values, np.float64)
    low, high = float(x.min()), float(x.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise RecordError("it holds values that are not finite")
    if low == high:
        raise RecordError(f"every pixel is {low:g}; expected an image")
    return np.rint((x - low) * (255 / (high - low))).astype(np.uint8)
