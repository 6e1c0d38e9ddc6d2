"""How DICOM files begin: with a preamble, or, as some archives write them, without (PS3.10, 7)."""

from __future__ import annotations

import re
from pathlib import Path

import pydicom
from pydicom import uid
from pydicom.filereader import read_partial

from benchmd_ray.data.readers.bounded import ANY, BoundedFile
from benchmd_ray.data.readers.codec import silenced
from benchmd_ray.data.records import RecordError

VERSION = 1
PREAMBLE = 128
BEGINS = (b"\x02\0", b"\x08\0")
SOP_CLASS = 0x00080016
STORED = r"1\.2\.840\.10008\.5\.1\.4\.[0-9.]{1,48}"
SYNTAXES = {
    (True, True): uid.ImplicitVRLittleEndian,
    (False, True): uid.ExplicitVRLittleEndian,
    (False, False): uid.ExplicitVRBigEndian,
}
"""By whether VRs are implicit, and bytes little-endian."""
UNDEFINED = 0xFFFFFFFF
"""Length of compressed pixel data."""


def has_preamble(file: BoundedFile) -> bool:
    """Whether a file has the preamble; if so, it is positioned at its first byte."""
    file.seek(0)
    begin = file.read(PREAMBLE + 4)
    file.seek(0)
    if begin[PREAMBLE:] == b"DICM":
        return True
    if not (begin[:2] in BEGINS and _names_its_class(file)):
        raise RecordError(
            f"it cannot be read as a DICOM file: it has neither a preamble (DICM behind "
            f"{PREAMBLE} bytes) nor, without one, a data set that begins with its SOP class"
        )
    file.seek(0)
    return False


def is_dicom(path: Path) -> bool:
    """Whether a path is a file that begins as DICOM files do."""
    if not path.is_file():
        return False
    try:
        with BoundedFile(path, ANY) as file:
            has_preamble(file)
    except (RecordError, OSError):
        return False
    return True


def _names_its_class(file: BoundedFile) -> bool:
    try:
        with silenced():
            begin = read_partial(file, lambda tag, *_: tag > SOP_CLASS, force=True)
            return bool(re.fullmatch(STORED, str(begin.get("SOPClassUID", ""))))
    except MemoryError:
        raise
    except Exception:  # it raises whatever it meets in files of other kinds
        return False


def state_syntax(dataset: pydicom.FileDataset) -> None:
    """Give a data set without meta information the transfer syntax that it was parsed by."""
    if "TransferSyntaxUID" in dataset.file_meta:
        return
    element = dataset.get_item("PixelData") if "PixelData" in dataset else None
    if getattr(element, "length", 0) == UNDEFINED:
        raise RecordError(
            "its pixel data is compressed, and without a preamble nothing says how: convert the "
            "file to Explicit VR Little Endian"
        )
    is_implicit, is_little_endian = dataset.original_encoding
    dataset.file_meta.TransferSyntaxUID = SYNTAXES[bool(is_implicit), bool(is_little_endian)]
