"""The directories of a TIFF file (6.0, BigTIFF): its pages, and how each means its numbers.

Pillow decodes the pixels, but takes the first page, and inverts some depths where zero is white and
others not.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmd_ray.data.readers.bounded import ANY, BoundedFile, read_bounded
from benchmd_ray.data.records import RecordError

VERSION = 1
CLASSIC, BIG = (b"II*\0", b"MM\0*", b"II\0*", b"MM*\0"), (b"II+\0", b"MM\0+")
"""How files begin, some with swapped bytes; those of the latter have offsets of 64 bits."""
SUBFILE, OLD_SUBFILE, BITS, PHOTOMETRIC, SAMPLES, FORMAT = 254, 255, 258, 262, 277, 339
"""Tags: what a page is, bits of a sample, what zero means, samples of a pixel, their type."""
WIDTHS = {1: "B", 3: "H", 4: "I", 16: "Q"}
COPY_OR_MASK = 0b101
"""Bits of `SUBFILE`: a smaller copy of another page, its transparency."""
WHITE_IS_ZERO, BLACK_IS_ZERO = 0, 1
MAX_READS = 2**20
"""Of the entries of all directories; a page has some fifteen."""
MAX_BYTES = 2**29
"""Of a file whose zero is white, which is held whole; the largest image of 32 bits has 0.4 GB."""


@dataclass(frozen=True)
class Page:
    number: int
    """From 0, for smaller copies of it may be in front."""
    bits: int
    samples: int
    is_signed: bool
    is_inverted: bool
    """Whether zero is white, so that larger numbers are darker."""
    content: Path | io.BytesIO
    """What Pillow reads: zero is black there in any case."""


def the_page(path: Path) -> Page | None:
    """The page of a TIFF file; None for files of other formats."""
    with BoundedFile(path, ANY, reads=MAX_READS) as file:
        begin = file.read(4)
        if begin not in (*CLASSIC, *BIG):
            return None
        pages = list(_pages(file, "<" if begin[:1] == b"I" else ">", is_big=begin in BIG))
    whole = [number for number, tags in enumerate(pages) if not _is_copy(tags)]
    whole = whole or list(range(len(pages)))
    if len(whole) != 1:
        raise RecordError(f"it has {len(whole):,} pages, expected one: save each page as a file")
    tags = pages[whole[0]]
    samples = tags.get(SAMPLES, (1, 0, ""))[0]
    photometric, place, kind = tags.get(PHOTOMETRIC, (None, 0, ""))
    if photometric is None and samples == 1:
        raise RecordError(
            "it does not say whether zero is black or white (PhotometricInterpretation): save it "
            "with a program that does"
        )
    content: Path | io.BytesIO = path
    if is_inverted := photometric == WHITE_IS_ZERO and samples == 1:
        content = io.BytesIO(read_bounded(path, MAX_BYTES, "the file"))  # which it holds once
        struct.pack_into(kind, content.getbuffer(), place, BLACK_IS_ZERO)
    return Page(
        number=whole[0],
        bits=tags.get(BITS, (1, 0, ""))[0],
        samples=samples,
        is_signed=tags.get(FORMAT, (1, 0, ""))[0] == 2,
        is_inverted=is_inverted,
        content=content,
    )


def _is_copy(tags: dict[int, tuple[int, int, str]]) -> bool:
    subfile, old = (tags.get(tag, (0, 0, ""))[0] for tag in (SUBFILE, OLD_SUBFILE))
    return bool(subfile & COPY_OR_MASK) or old == 2


def _pages(
    file: BoundedFile, order: str, *, is_big: bool
) -> Iterator[dict[int, tuple[int, int, str]]]:
    """Tags of each page: the first value, the byte where it is, and its type for `struct`."""
    count_of, entry, link = ("Q", "HHQ8s", "Q") if is_big else ("H", "HHI4s", "I")
    (offset,) = _numbers(file, 8 if is_big else 4, order + link)
    seen: set[int] = set()
    while offset and offset not in seen:
        seen.add(offset)
        (count,) = _numbers(file, offset, order + count_of)
        place, size = offset + struct.calcsize(order + count_of), struct.calcsize(order + entry)
        tags: dict[int, tuple[int, int, str]] = {}
        for _ in range(count):
            tag, kind, length, value = _numbers(file, place, order + entry)
            form = order + WIDTHS.get(kind, "")
            if kind in WIDTHS and 0 < length * struct.calcsize(form) <= len(value):
                at = place + size - len(value)
                tags[tag] = (struct.unpack_from(form, value)[0], at, form)
            elif tag == BITS:  # of several samples, elsewhere in the file
                (where,) = struct.unpack(order + link, value)
                tags[tag] = (
                    (_numbers(file, where, form)[0], where, form) if kind == 3 else (0, 0, "")
                )
            place += size
        yield tags
        (offset,) = _numbers(file, place, order + link)


def _numbers(file: BoundedFile, offset: int, kind: str) -> tuple[Any, ...]:
    file.seek(min(offset, file.bytes))
    part = file.read(struct.calcsize(kind))
    if len(part) < struct.calcsize(kind):
        raise RecordError(
            "it cannot be read as an image (a TIFF directory is behind its end). Fetch it again."
        )
    return struct.unpack(kind, part)
