"""DICOM images by pydicom: stored values, and grey levels or colours as decision D6 has them.

Format: DICOM PS3.3 (image pixel and modality LUT modules) and PS3.5 (transfer syntaxes).
"""

from __future__ import annotations

import copy
import re
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pydicom
from PIL import Image
from pydicom import uid
from pydicom.encaps import get_frame
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.processing import apply_color_lut, apply_modality_lut

from benchmd_ray.data.readers.bounded import BoundedFile
from benchmd_ray.data.readers.codec import (
    CodecError,
    NotDecoded,
    decompress,
    frame_size,
)
from benchmd_ray.data.readers.dicom_begin import PREAMBLE, has_preamble, state_syntax
from benchmd_ray.data.readers.dicom_padding import WARNING, is_mostly_padding
from benchmd_ray.data.readers.dicom_values import AGAIN, numbers, refusing, text
from benchmd_ray.data.readers.image import MAX_PIXELS, Pixels, to_grey_levels
from benchmd_ray.data.records import RecordError

VERSION = 3

Stored = npt.NDArray[np.generic]

GREY = ("MONOCHROME1", "MONOCHROME2")
PALETTE = "PALETTE COLOR"
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
PLUGINS: dict[str, str] = {
    uid.JPEGBaseline8Bit: "pillow",
    uid.JPEGExtended12Bit: "pillow",  # of 8 bits; those of 12 are GDCM's, see `codec`
    uid.JPEGLossless: "gdcm",
    uid.JPEGLosslessSV1: "gdcm",
    uid.JPEGLSLossless: "pyjpegls",
    uid.JPEGLSNearLossless: "pyjpegls",
    uid.JPEG2000Lossless: "pylibjpeg",
    uid.JPEG2000: "pylibjpeg",
    uid.HTJ2KLossless: "pylibjpeg",
    uid.HTJ2KLosslessRPCL: "pylibjpeg",
    uid.HTJ2K: "pylibjpeg",
    uid.RLELossless: "pydicom",
}
NATIVE = (
    uid.ImplicitVRLittleEndian,
    uid.ExplicitVRLittleEndian,
    uid.ExplicitVRBigEndian,
    uid.DeflatedExplicitVRLittleEndian,
)
PIXEL_DATA = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
MAX_BYTES = 2**29
"""Larger files are refused before they are read; the largest, of mammograms, have 80 MB."""
MAX_INFLATED = 2**27
MAX_READS = 2**20
"""Of the parts of a file, some three for each element of its header; a header has hundreds."""
CONVERT = "convert the file to Explicit VR Little Endian"


def read_dicom(
    path: Path,
    channels: int = 1,
    *,
    frame: int | None = None,
    warnings: Counter[str] | None = None,
) -> Pixels:
    """Read a DICOM image for display: uint8, (y, x) for one channel, (y, x, 3) for three.

    Grey images: modality LUT (a table, or slope and intercept), scaled to 0–255 over the image's
    own range, MONOCHROME1 inverted (decision D6). Colour images: palettes are looked up, YBR
    becomes RGB, more than 8 bits are scaled by the range that they can hold. One channel of a
    colour image is ITU-R BT.601. Of several frames, ``frame`` has to name one, from 0.
    """
    dataset = open_dicom(path)
    values = pixels(dataset, frame=frame)
    kind = text(dataset, "PhotometricInterpretation")
    if kind in GREY:
        scaled = rescaled(values, dataset, frame=frame or 0)
        grey = to_grey_levels(scaled)
        if warnings is not None:
            warnings.update(unusual(values, scaled, dataset))
        if kind == "MONOCHROME1":
            grey = 255 - grey
        return grey if channels == 1 else np.repeat(grey[..., None], 3, axis=2)
    bits = _whole(dataset, "BitsStored")
    if kind == PALETTE:
        with refusing("its colour palette cannot be looked up"):
            values = apply_color_lut(values, _little_endian_palette(dataset))
        bits = 8 * values.dtype.itemsize
    colours = _eight_bits(values, bits)
    return colours if channels == 3 else np.array(Image.fromarray(colours).convert("L"))


def open_dicom(path: Path, *, stop_before_pixels: bool = False) -> pydicom.Dataset:
    """Parse a DICOM file; take its values with `numbers` and `text`, as they are parsed only then.

    A file without preamble is taken where it names its SOP class at once.
    """
    with (
        refusing("it cannot be read as a DICOM file"),
        BoundedFile(path, MAX_BYTES, reads=MAX_READS) as file,
    ):
        is_bare = not has_preamble(file)
        _refuse_inflated(file, 0 if is_bare else PREAMBLE + 4)
        dataset = pydicom.dcmread(file, stop_before_pixels=stop_before_pixels, force=is_bare)
        if is_bare:
            state_syntax(dataset)
    return dataset


def pixels(dataset: pydicom.Dataset, *, frame: int | None = None) -> Stored:
    """Stored values before the modality LUT: (y, x), of a palette, too, or (y, x, 3) RGB.

    Of several frames, ``frame`` has to name one, from 0.
    """
    shape = _require_header(dataset, frame)
    syntax = _syntax(dataset)
    if syntax in PLUGINS:
        values = _decompressed(dataset, syntax, frame or 0)
    else:
        with refusing("its pixel data cannot be read"):
            values, _ = get_decoder(syntax).as_array(dataset, index=frame or 0)
    if values.shape != shape:
        raise RecordError(f"decoding gives shape {values.shape}, the header says {shape}. {AGAIN}")
    return np.asarray(values)


def rescaled(values: Stored, dataset: pydicom.Dataset, *, frame: int = 0) -> Stored:
    """Stored values through the modality LUT, if any: HU for CT, else in the header's unit."""
    if "ModalityLUTSequence" in dataset:
        with refusing("its modality LUT cannot be used"):
            values = apply_modality_lut(values, dataset)
        return values
    owner = _transformation(dataset, frame)
    slope, intercept = numbers(owner, "RescaleSlope", 1), numbers(owner, "RescaleIntercept", 1)
    if slope is None and intercept is None:
        return values
    if slope == (0.0,):
        raise RecordError("RescaleSlope is 0; expected another number")
    scaled: npt.NDArray[np.float64] = values.astype(np.float64) * (slope or (1.0,))[0]
    return np.asarray(scaled + (intercept or (0.0,))[0])


def unusual(values: Stored, scaled: Stored, dataset: pydicom.Dataset) -> list[str]:
    """Warnings of an image, of its stored and its `rescaled` values."""
    prefix = {"float32": "Float", "float64": "DoubleFloat"}.get(values.dtype.name, "")
    bounds: list[float] = []
    for name in ("Value", "RangeLimit"):
        with suppress(RecordError):  # of an image that is read all the same
            bounds += numbers(dataset, f"{prefix}PixelPadding{name}", 1) or ()
    return [WARNING] if is_mostly_padding(values, scaled, bounds) else []


def _transformation(dataset: pydicom.Dataset, frame: int) -> pydicom.Dataset:
    """Where slope and intercept stand: the dataset, or a functional group of an enhanced image."""
    owner = dataset
    with refusing("its functional groups cannot be read"):
        groups = dataset.get("PerFrameFunctionalGroupsSequence") or []
        for group in [*(dataset.get("SharedFunctionalGroupsSequence") or []), *groups[frame:][:1]]:
            transformations = group.get("PixelValueTransformationSequence")
            owner = transformations[0] if transformations else owner
    return owner


def _little_endian_palette(dataset: pydicom.Dataset) -> pydicom.Dataset:
    """The dataset with a palette as pydicom takes it, which reads a table's words little-endian."""
    if dataset.original_encoding[1]:
        return dataset
    swapped = copy.copy(dataset)
    for colour in ("Red", "Green", "Blue"):
        keyword = f"{colour}PaletteColorLookupTableData"
        if keyword in dataset:
            words = np.frombuffer(dataset[keyword].value, np.uint16)
            setattr(swapped, keyword, words.byteswap().tobytes())
    return swapped


def _eight_bits(values: Stored, bits: int) -> Pixels:
    """Colours of ``bits`` bits as 8 bits: their whole range becomes 0–255."""
    if values.dtype == np.uint8:
        return np.asarray(values, np.uint8)
    if values.dtype.kind != "u":
        raise RecordError(f"its colours are {values.dtype}; expected unsigned integers")
    scaled = np.rint(values.astype(np.float64) * (255 / (2.0**bits - 1)))
    return np.asarray(scaled.clip(0, 255), np.uint8)


def _whole(dataset: pydicom.Dataset, keyword: str, default: int | None = None) -> int:
    values = numbers(dataset, keyword, 1)
    value = float(default or 0) if values is None else values[0]
    if value < 1 or value != int(value):
        raise RecordError(f"{keyword} is not a positive whole number, or missing")
    return int(value)


def _syntax(dataset: pydicom.Dataset) -> uid.UID:
    meta: pydicom.Dataset = getattr(dataset, "file_meta", pydicom.Dataset())
    syntax = text(meta, "TransferSyntaxUID") or "none"
    if syntax in PLUGINS or syntax in NATIVE:
        return uid.UID(syntax)
    named = syntax if re.fullmatch(r"1\.2\.840\.10008\.[0-9.]{1,40}", syntax) else "none known"
    raise RecordError(f"its transfer syntax ({named}) is not decoded here; {CONVERT}")


def _require_header(dataset: pydicom.Dataset, frame: int | None) -> tuple[int, ...]:
    """Shape of the image that the header describes, once it is one that is taken."""
    if not any(keyword in dataset for keyword in PIXEL_DATA):
        raise RecordError("it holds no pixel data: it is not an image, or it is cut off")
    rows, columns = _whole(dataset, "Rows"), _whole(dataset, "Columns")
    frames = _whole(dataset, "NumberOfFrames", 1)
    samples, bits = _whole(dataset, "SamplesPerPixel", 1), _whole(dataset, "BitsAllocated")
    if rows * columns > MAX_PIXELS:
        raise RecordError(
            f"the image has {columns} × {rows} pixels, expected at most {MAX_PIXELS:,}"
        )
    if frame is None and frames > 1:
        raise RecordError(f"the image has {frames:,} frames, expected one")
    if frame is not None and not 0 <= frame < frames:
        raise RecordError(f"frame {frame} is not among the image's {frames:,}")
    kind = text(dataset, "PhotometricInterpretation")
    if kind not in (*GREY, PALETTE, *COLOUR):
        raise RecordError(
            "its photometric interpretation is missing or not known; expected one of "
            f"{', '.join((*GREY, PALETTE, *COLOUR))}"
        )
    if samples != (3 if kind in COLOUR else 1) or bits not in (1, 8, 16, 32, 64):
        raise RecordError(
            f"{samples} sample(s) of {bits} bits are not taken for {kind}; expected "
            f"{3 if kind in COLOUR else 1} of 1, 8, 16, 32 or 64 bits"
        )
    return (rows, columns, 3) if kind in COLOUR else (rows, columns)


def _decompressed(dataset: pydicom.Dataset, syntax: uid.UID, index: int) -> Stored:
    rows, columns = _whole(dataset, "Rows"), _whole(dataset, "Columns")
    options = {
        "rows": rows,
        "columns": columns,
        "samples_per_pixel": _whole(dataset, "SamplesPerPixel", 1),
        "number_of_frames": 1,
        "bits_allocated": _whole(dataset, "BitsAllocated"),
        "bits_stored": _whole(dataset, "BitsStored"),
        "pixel_representation": int((numbers(dataset, "PixelRepresentation", 1) or (0,))[0]),
        "planar_configuration": int((numbers(dataset, "PlanarConfiguration", 1) or (0,))[0]),
        "photometric_interpretation": text(dataset, "PhotometricInterpretation"),
        "pixel_keyword": "PixelData",
    }
    frame = b""
    with refusing("its compressed pixel data cannot be read"):
        frames = _whole(dataset, "NumberOfFrames", 1)
        frame = get_frame(dataset.PixelData, index, number_of_frames=frames)
    try:
        if syntax != uid.RLELossless and frame_size(frame) != (columns, rows):
            width, height = frame_size(frame)  # it could be any, and fill the memory
            raise RecordError(
                f"its compressed data has {width} × {height} pixels, the header says "
                f"{columns} × {rows}. {AGAIN}"
            )
        return decompress(frame, syntax, PLUGINS[syntax], options)
    except NotDecoded as error:
        raise RecordError(f"{error}; {CONVERT}") from None
    except CodecError as error:
        raise RecordError(f"{error}. {AGAIN}") from None


def _refuse_inflated(file: BoundedFile, start: int) -> None:
    """Refuse a deflated file, its meta information at byte ``start``, that inflates to too much."""
    file.seek(start)
    meta = pydicom.filereader.read_dataset(
        file, False, True, stop_when=lambda tag, vr, length: tag.group != 2
    )
    if meta.get("TransferSyntaxUID") == uid.DeflatedExplicitVRLittleEndian:
        inflater, inflated = zlib.decompressobj(-zlib.MAX_WBITS), 0
        while (block := file.read(2**14)) and inflated <= MAX_INFLATED:
            inflated += len(inflater.decompress(block))
        if inflated > MAX_INFLATED:
            raise RecordError(f"it inflates to more than {MAX_INFLATED:,} bytes")
    file.seek(0)
