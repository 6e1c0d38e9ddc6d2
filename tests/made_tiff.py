"""TIFF files written byte by byte: any depth, order of bytes, meaning of zero, and pages."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

FORMATS = {"u": 1, "i": 2, "f": 3}


def page(values: np.ndarray, photometric: int | None, **tags: int) -> tuple[bytes, dict[str, int]]:
    """Samples and tags of a page."""
    own = {
        "width": values.shape[1],
        "height": values.shape[0],
        "bits": 8 * values.itemsize,
        "photometric": photometric,
        "format": FORMATS[values.dtype.kind],
        "samples": 1,
    } | tags
    return values.tobytes(), {key: value for key, value in own.items() if value is not None}


TAGS = {
    **{"subfile": (254, "I"), "old_subfile": (255, "H"), "width": (256, "I"), "height": (257, "I")},
    **{"bits": (258, "H"), "compression": (259, "H"), "photometric": (262, "H")},
    **{"strip": (273, "I"), "samples": (277, "H"), "rows": (278, "I"), "bytes": (279, "I")},
    **{"format": (339, "H")},
}
TYPES = {"H": 3, "I": 4, "Q": 16}


def write(path: Path, *pages, order: str = "<", big: bool = False, packed: bool = False) -> Path:
    """A file of pages, each directory behind its samples."""
    mark = b"II" if order == "<" else b"MM"
    link, count = ("Q", "Q") if big else ("I", "H")
    version = struct.pack(f"{order}3H", 43, 8, 0) if big else struct.pack(f"{order}H", 42)
    content = bytearray(mark + version)
    before = len(content)
    content += bytes(struct.calcsize(link))
    for samples, tags in pages:
        samples = zlib.compress(samples) if packed else samples
        start = len(content)
        content += samples + bytes(len(samples) % 2)
        own = tags | {"strip": start, "bytes": len(samples), "rows": tags["height"]}
        own["compression"] = 8 if packed else 1
        struct.pack_into(order + link, content, before, len(content))
        content += struct.pack(order + count, len(own))
        for name, value in sorted(own.items(), key=lambda pair: TAGS[pair[0]][0]):
            tag, kind = TAGS[name]
            field = struct.pack(order + kind, value).ljust(8 if big else 4, b"\0")
            content += struct.pack(f"{order}HH{link}", tag, TYPES[kind], 1) + field
        before = len(content)
        content += bytes(struct.calcsize(link))
    path.write_bytes(content)
    return path
