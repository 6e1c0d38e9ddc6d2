"""Compressed DICOM pixel data, by the decoders that pydicom knows.

They are C and C++ libraries, of which some print instead of raising; damaged data can make one
abort, crash or loop, which is why builds read in a separate process (`data.apart`).
Format: ISO/IEC 10918-1 (JPEG), 14495-1 (JPEG-LS), 15444-1 (JPEG 2000).
"""

from __future__ import annotations

import logging
import os
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gdcm
import numpy as np
import numpy.typing as npt
from pydicom import uid
from pydicom.encaps import encapsulate
from pydicom.pixels.decoders.base import get_decoder

VERSION = 1
CUT_OFF = b"premature end"
"""What JPEG libraries print where they make up the rest of an image."""
NO_FRAME = (0xFFC4, 0xFFC8, 0xFFCC)
"""Markers among those of JPEG frames that start none: Huffman tables, extensions, conditioning."""


class CodecError(Exception):
    """A frame cannot be decoded."""


class NotDecoded(CodecError):
    """A frame may be whole, but is of a variety that nothing here decodes."""


def frame_size(stream: bytes) -> tuple[int, int]:
    """Width and height that a JPEG, JPEG-LS or JPEG 2000 stream claims; nothing is decoded."""
    try:
        if stream[:2] == b"\xff\xd8":
            _, height, width = _jpeg_frame(stream)
            return width, height
        # JPEG 2000, also within a JP2 file: start of stream and of size segment
        start = stream.index(b"\xff\x4f\xff\x51")
        right, bottom, left, top = struct.unpack_from(">4I", stream, start + 8)
    except (ValueError, struct.error):
        raise CodecError("its compressed data does not say its size") from None
    return right - left, bottom - top


def _jpeg_frame(stream: bytes) -> tuple[int, int, int]:
    """Bits of a sample, height and width that a JPEG or JPEG-LS stream claims."""
    offset = 2
    while True:
        marker, length = struct.unpack_from(">HH", stream, offset)
        if marker == 0xFFFF:  # fill byte
            offset += 1
        elif marker == 0xFFF7 or (0xFFC0 <= marker <= 0xFFCF and marker not in NO_FRAME):
            bits, height, width = struct.unpack_from(">BHH", stream, offset + 4)
            return bits, height, width
        else:
            offset += 2 + length


def decompress(
    frame: bytes, syntax: str, plugin: str, options: dict[str, Any]
) -> npt.NDArray[np.generic]:
    """Decode one frame: (y, x), or (y, x, sample) with colours as RGB.

    ``plugin`` is pydicom's name of a decoder, ``options`` what it has to know of the header.
    """
    try:
        with silenced(), _printed() as printed:
            if syntax == uid.JPEGExtended12Bit and _jpeg_frame(frame)[0] == 12:
                values = _twelve_bits(frame, options)
            else:
                values, _ = get_decoder(syntax).as_array(
                    encapsulate([frame]), index=0, decoding_plugin=plugin, **options
                )
            if CUT_OFF in printed():
                raise EOFError
    except (MemoryError, NotDecoded):
        raise
    except Exception as error:  # the libraries raise whatever they meet
        name = "cut off" if isinstance(error, EOFError) else type(error).__name__
        raise CodecError(f"its compressed data cannot be decoded ({name})") from None
    return np.ascontiguousarray(values)


def _twelve_bits(frame: bytes, options: dict[str, Any]) -> npt.NDArray[np.generic]:
    """A frame of extended JPEG with 12 bits, (y, x) uint16, by GDCM: pydicom does not ask it to."""
    if (options["samples_per_pixel"], options["pixel_representation"]) != (1, 0):
        raise NotDecoded("of extended JPEG with 12 bits only unsigned grey levels are decoded")
    fragment, fragments = gdcm.Fragment(), gdcm.SequenceOfFragments.New()
    fragment.SetByteStringValue(frame)
    fragments.AddFragment(fragment)
    element = gdcm.DataElement(gdcm.Tag(0x7FE0, 0x0010))
    element.SetValue(fragments.__ref__())
    image = gdcm.Image()
    image.SetNumberOfDimensions(2)
    image.SetDimensions((options["columns"], options["rows"], 1))
    image.SetDataElement(element)
    kind = gdcm.PhotometricInterpretation.GetPIType(options["photometric_interpretation"])
    image.SetPhotometricInterpretation(gdcm.PhotometricInterpretation(kind))
    syntax = gdcm.TransferSyntax.GetTSType(str(uid.JPEGExtended12Bit))
    image.SetTransferSyntax(gdcm.TransferSyntax(syntax))
    image.SetPixelFormat(gdcm.PixelFormat(1, 16, 12, 11, 0))
    decoded = image.GetBuffer()
    if decoded is None:
        raise ValueError
    samples = np.frombuffer(decoded.encode("utf-8", "surrogateescape"), np.uint16)
    return samples.reshape(options["rows"], options["columns"])


@contextmanager
def silenced() -> Iterator[None]:
    """Within, pydicom neither warns nor logs: it may quote the header."""
    logger = logging.getLogger("pydicom")  # the loggers below it have its level
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


@contextmanager
def _printed() -> Iterator[Callable[[], bytes]]:
    """Within, what libraries print is kept instead; gives a function that returns it."""
    streams = (1, 2)
    with tempfile.TemporaryFile("a+b", buffering=0) as file:

        def printed() -> bytes:
            file.seek(0)
            return file.read()

        before = [os.dup(stream) for stream in streams]
        try:
            for stream in streams:
                os.dup2(file.fileno(), stream)
            yield printed
        finally:
            for stream, kept in zip(streams, before, strict=True):
                os.dup2(kept, stream)
                os.close(kept)
