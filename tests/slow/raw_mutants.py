"""Mutants of raw files that keep their format's structure, so that they get past its first checks.

Each mutator turns a file's content into another: fields with extreme values, lengths, signs and
types, parts that are repeated, nested, lost or packed otherwise, with the checksums made right.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

Rng = np.random.Generator
Mutator = Callable[[bytes, Rng], bytes]

ODD = (
    *(b"0", b"-0", b"-1", b"+1", b"1", b"65536", b"99999999", b"2147483648", b"4294967296"),
    *(b"9223372036854775808", b"-9223372036854775809", b"9" * 400, b"9" * 5000, b"0x7f", b"1_0"),
    *(b"0.5", b"1e-400", b"1e308", b"1e999", b"nan", b"inf", b"-inf", b"1e", b".", b"-"),
    *(
        b"",
        b" ",
        b"\t",
        b"\n",
        b"\r",
        b"\0",
        b"\xff\xfe",
        b"\xc3\xa9",
        b"#",
        b"=",
        b",",
        b'"',
        b"'",
    ),
    *(b"../../x", b"/etc/passwd", b"~", b"LOCAL", b"LIST", b"True", b"None", b"%s%n", b"{0}"),
    *(b"x" * 100_000, b"-" * 100_000, b"[" * 5000, b"{" * 5000, b"(" * 100_000, b"," * 100_000),
    *(b"2020-13-45", b"!!int x", b"!!python/name:os.system", b"&a [*a]", b"&b", b"*b", b"<<: *b"),
    *(b"<!DOCTYPE x [<!ENTITY a 'b'>]>", b"&a;", b"<x>" * 5000, b"<![CDATA["),
)
"""Texts in whose place others are expected."""
INTEGERS = (0, 1, 2, 7, 8, 16, 255, 32767, 32768, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
"""Whole numbers in whose place others are expected; the low bytes of each are taken."""


def one(choices, rng: Rng):
    """One of several."""
    return choices[int(rng.integers(len(choices)))]


def integer(size: int, order: str, rng: Rng) -> bytes:
    """An odd whole number in so many bytes."""
    return (one(INTEGERS, rng) % 2 ** (8 * size)).to_bytes(size, order)


def mutate_text(content: bytes, rng: Rng) -> bytes:
    """Words and lines replaced, lost, repeated and exchanged."""
    for _ in range(int(rng.integers(1, 4))):
        lines = content.split(b"\n")
        at = int(rng.integers(min(len(lines), 40)))
        match int(rng.integers(8)):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, one(lines, rng))
            case 2:
                lines[at:at] = [lines[at]] * one((2, 300, 5000), rng)
            case 3:
                lines = [lines[i] for i in rng.permutation(len(lines))]
            case _:
                words = re.split(rb"([\w.+-]+)", lines[at])
                place = int(rng.integers(len(words) // 2)) * 2 + 1 if len(words) > 1 else 0
                words[place] = one(ODD, rng)
                lines[at] = b"".join(words)
        content = b"\n".join(lines)
    return content


def mutate_gzip(content: bytes, rng: Rng) -> bytes:
    """Another text packed, which may repeat a line for megabytes."""
    held = gzip.decompress(content)
    if held[344:348] == b"n+1\0":
        return gzip.compress(mutate_nifti(held, rng), 1)
    text = mutate_text(held, rng)
    if rng.random() < 0.02:
        text += (text.split(b"\n")[-2] + b"\n") * int(2**24 / 100)
    return gzip.compress(text, 1)


def mutate_edf(content: bytes, rng: Rng) -> bytes:
    """Fields of the header, which have fixed widths."""
    widths = [8, 80, 80, 8, 8, 8, 44, 8, 8, 4]
    try:
        channels = min(64, max(1, int(content[252:256])))
    except ValueError:
        channels = 1
    for width in (16, 80, 8, 8, 8, 8, 8, 80, 8, 32):
        widths += [width] * channels
    starts = np.cumsum([0, *widths])
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        field = int(rng.integers(len(widths)))
        start, width = int(starts[field]), widths[field]
        data[start : start + width] = one(ODD, rng)[:width].ljust(width)
    if rng.random() < 0.2:  # annotations
        at = data.find(b"\x14")
        data[at : at + 1] = one((b"\x14\x14", b"\x15", b"\0", b"+1e999\x14", b"\x14" * 1000), rng)
    return bytes(data)


NUMERIC = [
    (0x0028, element)
    for element in (0x02, 0x06, 0x10, 0x11, 0x100, 0x101, 0x102, 0x103, 0x1101, 0x1102, 0x3002)
]
TEXTUAL = [(0x0028, e) for e in (0x04, 0x08, 0x30, 0x1050, 0x1051, 0x1052, 0x1053)]
TEXTUAL += [(0x0020, e) for e in (0x0D, 0x0E, 0x13, 0x32, 0x37)]
TEXTUAL += [(0x0002, 0x10), (0x0008, 0x05), (0x0008, 0x60), (0x0010, 0x1010), (0x0018, 0x50)]
PIXELS = (0x7FE0, 0x0010)


def mutate_dicom(content: bytes, rng: Rng) -> bytes:
    """Values and lengths of elements, in explicit little-endian files or as far as they are it."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        tag = one(one(([PIXELS], NUMERIC, TEXTUAL), rng), rng)
        found = re.search(re.escape(struct.pack("<HH", *tag)) + rb"[A-Z]{2}", data, re.DOTALL)
        if not found:
            continue
        at, long = found.end(), found[0][4:] in (b"OW", b"OB", b"UN", b"UT", b"SQ")
        at, size = (at + 2, 4) if long else (at, 2)
        length = int.from_bytes(data[at : at + size], "little")
        kind = int(rng.integers(4))
        if kind == 0 or tag == PIXELS:
            data[at : at + size] = integer(size, "little", rng)
        elif kind == 1 and length < 10_000:
            del data[found.start() : at + size + length]
        elif kind == 2 and length < 10_000:
            data[at:at] = data[found.start() : at + size + length]
        elif tag in NUMERIC:
            data[at + size : at + size + 2] = integer(2, "little", rng)
        else:
            text = one((one(ODD, rng), b"\\".join([one(ODD, rng)] * 3)), rng)[:60_000]
            text += b" " * (len(text) % 2)
            data[at : at + size + length] = len(text).to_bytes(size, "little") + text
    return bytes(data)


def mutate_png(content: bytes, rng: Rng) -> bytes:
    """Chunks with right checksums: other sizes, depths and kinds, lost, repeated, inflated."""
    chunks, at = [], 8
    while at + 12 <= len(content):
        (size,) = struct.unpack_from(">I", content, at)
        chunks.append([content[at + 4 : at + 8], content[at + 8 : at + 8 + size]])
        at += 12 + size
    for _ in range(int(rng.integers(1, 3))):
        chunk = one(chunks, rng)
        match int(rng.integers(5)):
            case 0:
                at = int(rng.integers(7))
                field, size = (at * 4, 4) if at < 2 else (6 + at, 1)
                header = bytearray(chunks[0][1])
                header[field : field + size] = integer(size, "big", rng)
                chunks[0][1] = bytes(header)
            case 1:
                chunks.remove(chunk)
                chunks = chunks or [chunk]
            case 2:
                chunks.insert(int(rng.integers(len(chunks))), chunk)
            case 3:
                text = zlib.compress(bytes(one((10, 2**16, 2**24), rng)))
                kind = one((b"IDAT", b"zTXt", b"iCCP", b"iTXt", b"PLTE", b"tRNS", b"eXIf"), rng)
                head = b"" if kind == b"IDAT" else b"k\0\0"
                chunks.insert(int(rng.integers(1, len(chunks) + 1)), [kind, head + text])
            case _:
                chunk[1] = chunk[1][: int(rng.integers(len(chunk[1]) + 1))]
    return content[:8] + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def mutate_jpeg(content: bytes, rng: Rng) -> bytes:
    """Segments before the scan: sizes of the frame, tables, lengths, orientation."""
    data, at, segments = bytearray(content), 2, []
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        segments.append((at, 2 + size))
        at += 2 + size
    segments.append((at, 14))
    for _ in range(int(rng.integers(1, 4))):
        start, size = one(segments, rng)
        match int(rng.integers(4)):
            case 0:
                data[start + 2 : start + 4] = integer(2, "big", rng)
            case 1 if data[start + 1] in (0xC0, 0xC2):
                offset, width = one(((4, 1), (5, 2), (7, 2), (9, 1), (11, 1)), rng)
                data[start + offset : start + offset + width] = integer(width, "big", rng)
            case 2:
                orientation = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12" + integer(2, "big", rng)
                orientation += integer(4, "big", rng) + integer(4, "big", rng)
                data[2:2] = b"\xff\xe1" + struct.pack(">H", len(orientation) + 2) + orientation
                return bytes(data)
            case _:
                place = start + 4 + int(rng.integers(max(1, size - 4)))
                data[place : place + 1] = integer(1, "big", rng)
    return bytes(data)


def mutate_tiff(content: bytes, rng: Rng) -> bytes:
    """Entries of the directory: tags, types, counts and values, and where the directory is."""
    order = "little" if content[:2] == b"II" else "big"
    data = bytearray(content)
    start = int.from_bytes(data[4:8], order)
    count = int.from_bytes(data[start : start + 2], order)
    for _ in range(int(rng.integers(1, 4))):
        entry = start + 2 + 12 * int(rng.integers(max(1, count)))
        offset, size = one(((entry, 2), (entry + 2, 2), (entry + 4, 4), (entry + 8, 4)), rng)
        if rng.random() < 0.1:
            offset, size = one(((4, 4), (start, 2), (start + 2 + 12 * count, 4)), rng)
        data[offset : offset + size] = integer(size, order, rng)
    return bytes(data)


def mutate_bmp(content: bytes, rng: Rng) -> bytes:
    """Fields of the two headers."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        fields = ((10, 4), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2), (30, 4), (34, 4), (46, 4))
        at, size = one(fields, rng)
        data[at : at + size] = integer(size, "little", rng)
    return bytes(data)


def mutate_npy(content: bytes, rng: Rng) -> bytes:
    """The header of an array, and its values."""
    end = content.find(b"\n") + 1
    header, values = content[10:end], content[end:]
    match int(rng.integers(5)):
        case 0:
            numbers = re.split(rb"(\d+)", header)
            numbers[min(1 + 2 * int(rng.integers(5)), len(numbers) - 1)] = one(ODD, rng)
            header = b"".join(numbers)
        case 1:
            kind = one((b"|O", b"<f8", b"<u4", b"|S9", b"<M8[s]", b"|V1", b"<U5000"), rng)
            header = re.sub(rb"'\|?[<>|]?\w+'", b"'" + kind + b"'", header, count=2)
        case 2:
            header = mutate_text(header, rng)
        case 3:
            header = header.replace(b"False", one((b"True", b"None", b"1"), rng))
            values = values[: int(rng.integers(len(values) + 1))]
        case _:
            rows = one((3 * 10**6, 2**40), rng)
            header = re.sub(rb"\(\d+", b"(%d" % rows, header)
            values += bytes(one((0, 2**24), rng))
    size = len(header) if rng.random() < 0.9 else one((0, 65535), rng)
    return content[:8] + struct.pack("<H", size % 65536) + header + values


def mutate_npz(content: bytes, rng: Rng) -> bytes:
    """Headers of arrays, and entries and directory of the archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [[name, archive.read(name)] for name in archive.namelist()]
    for _ in range(int(rng.integers(1, 3))):
        entry = one(entries, rng)
        if rng.random() < 1 / 6:
            entry[0] = one((entries[0][0], "../x.npy", "/x.npy", "x" * 300, "x\0.npy"), rng)
        else:
            entry[1] = mutate_npy(entry[1], rng)
    packed = io.BytesIO()
    method = one((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA), rng)
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, body in entries:
            archive.writestr(zipfile.ZipInfo(name), body, method)
    data = bytearray(packed.getvalue())
    if rng.random() < 0.3:  # the directory: method, checksum, sizes, offset
        at = data.rfind(b"PK\1\2")
        offset, size = one(((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (42, 4)), rng)
        data[at + offset : at + offset + size] = integer(size, "little", rng)
    return bytes(data)


NIFTI_FIELDS = (
    (0, 4), *((40 + 2 * n, 2) for n in range(8)), (70, 2), (72, 2), (76, 4), (80, 4), (84, 4),
    (88, 4), (108, 4), (112, 4), (116, 4), (252, 2), (254, 2), (256, 4), (280, 4), (300, 4),
    (344, 4), (348, 4),
)  # fmt: skip
"""Places and widths of the header: extents, types, spacing, offset, scale, directions."""


def mutate_nifti(content: bytes, rng: Rng) -> bytes:
    """Fields of the header."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        at, size = one(NIFTI_FIELDS, rng)
        odd = (integer(size, "little", rng), rng.bytes(size), struct.pack("<f", 1e30)[:size])
        data[at : at + size] = one(odd, rng)
    return bytes(data) if rng.random() < 0.8 else bytes(data[: int(rng.integers(len(data)))])


def mutate_hdf5(content: bytes, rng: Rng) -> bytes:
    """Datasets and attributes of other shapes, types, packing and places."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.h5")
        path.write_bytes(content)
        with h5py.File(path, "r+") as file:
            names = ["/"]
            file.visit(names.append)
            for _ in range(int(rng.integers(1, 3))):
                with contextlib.suppress(KeyError, OSError):  # the first change may be in the way
                    _change(file, one(names, rng), rng)
        return path.read_bytes()


def _change(file: h5py.File, name: str, rng: Rng) -> None:
    """Change one object of an HDF5 file, or one of its attributes."""
    held = file[name]
    attributes = list(held.attrs)
    if (attributes and rng.random() < 0.4) or name == "/":
        key = one(attributes or ["x"], rng)
        odd = one(ODD, rng)[:60_000].replace(b"\0", b"0").decode("latin-1")
        held.attrs[key] = one((odd, 2**63, float("nan"), np.zeros(5000), h5py.Empty("f")), rng)
        return
    small = isinstance(held, h5py.Dataset) and 0 < (held.size or 0) < 10**7
    values = np.atleast_1d(np.asarray(held[()] if small else np.zeros(3)))
    shape, kind = values.shape, values.dtype
    del file[name]
    match int(rng.integers(9)):
        case 0:  # claimed and never written
            most = 2 ** int(rng.integers(10, 40))
            file.create_dataset(name, (most, *shape[1:]), kind, chunks=(1, *shape[1:]) or True)
        case 1:  # inflates
            file.create_dataset(name, (2**24,), "u1", chunks=(2**20,), compression=9)[:] = 0
        case 2:
            wanted = one(("f8", "i1", "u8", "S10", "f2", "c16"), rng)
            with np.errstate(all="ignore"):
                converted = values.astype(wanted) if kind.kind in "iufb" else np.zeros(3, wanted)
            file.create_dataset(name, data=converted)
        case 3:
            file.create_dataset(name, data=values[: int(rng.integers(len(values) + 1))])
        case 4:
            file.create_dataset(name, data=np.concatenate([values, values]))
        case 5:
            file[name] = one((h5py.SoftLink("/"), h5py.ExternalLink("/etc/passwd", "/x")), rng)
        case 6:
            file.create_group(name)
        case 7:
            file.create_dataset(name, data=h5py.Empty("f"))
        case _:
            if kind.kind == "f":
                values = values.copy()
                values.flat[int(rng.integers(values.size))] = one((np.nan, np.inf, -6e4), rng)
            elif kind.kind in "iu":
                values = values.copy()
                values.flat[int(rng.integers(values.size))] = np.iinfo(kind).max
            file.create_dataset(name, data=values, dtype=kind)


MUTATORS: dict[str, Mutator] = {
    **dict.fromkeys((".hea", ".mhd", ".txt", ".csv", ".xml", ".yaml"), mutate_text),
    **dict.fromkeys((".edf", ".rec"), mutate_edf),
    ".bmp": mutate_bmp,
    ".dcm": mutate_dicom,
    ".gz": mutate_gzip,
    ".h5": mutate_hdf5,
    ".jpg": mutate_jpeg,
    ".nii": mutate_nifti,
    ".npy": mutate_npy,
    ".npz": mutate_npz,
    ".png": mutate_png,
    ".tif": mutate_tiff,
}
"""By the ending of a file's name; samples without a structure have none."""
