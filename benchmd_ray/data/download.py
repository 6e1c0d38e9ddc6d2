"""Downloads of open datasets that are one file whose address and hash their card states."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from benchmd_ray.console.progress import progress
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.errors import BenchmdError, first_line, shown
from benchmd_ray.files.atomic import md5, replacing

TIMEOUT = 30.0
"""Seconds without an answer."""
CHUNK = 2**20
MOST_BYTES = 2**36
"""Of a file whose server does not say how large it is."""
FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
LOST = (
    http.client.HTTPException,
    TimeoutError,
    ConnectionError,
    ssl.SSLError,
    urllib.error.URLError,
)


@dataclass(frozen=True)
class OpenFile:
    """The file of an open dataset."""

    name: str
    address: str
    md5: str
    licence: str


def open_file(card: DatasetCard) -> OpenFile:
    """The file that is downloaded for a dataset.

    Raises:
        BenchmdError: The dataset is not open, or not one file with an address and an MD5.
    """
    hashes = [layout.md5 for layout in card.layouts.values() if layout.md5]
    addresses = [text for text in card.download if text.startswith(("https://", "http://"))]
    if card.access != "open" or not hashes or not addresses:
        raise BenchmdError(
            f"{card.name} cannot be downloaded: its card does not state one open file with its "
            f"address and MD5, as those of MedMNIST do. `benchmd catalog show {card.name}` says "
            "where to get it."
        )
    name = PurePosixPath(unquote(urlsplit(addresses[0]).path)).name
    if not re.fullmatch(FILE_NAME, name):
        raise BenchmdError(
            f"the card of {card.name} names the file {shown(name)}: not a plain name."
        )
    return OpenFile(name, addresses[0], hashes[0], card.licence)


def download(file: OpenFile, folder: Path, say: Callable[[str], object]) -> Path:
    """Download a file, whole and with its hash, or not at all; nothing if it is there.

    An interrupted download leaves nothing, and starts again. ``say`` is told licence and size
    before any content is read.

    Raises:
        BenchmdError: The address cannot be reached or sends another file, another file of that name
            is there, or the disk is full.
    """
    path = folder / file.name
    if path.exists():
        if not path.is_file() or md5(path) != file.md5:
            raise BenchmdError(
                f"{path} is not the file of {file.address} (MD5 {file.md5}): move it, or download "
                "into another folder by --out."
            )
        say(f"already here: {path}")
        return path
    try:
        request = urllib.request.Request(file.address, headers={"User-Agent": "benchmd"})
        with closing(urllib.request.urlopen(request, timeout=TIMEOUT)) as answer:
            length = answer.headers.get("Content-Length", "")
            size = int(length) if re.fullmatch(r"\d{1,15}", length, re.ASCII) else 0
            if urlsplit(answer.geturl()).scheme not in ("http", "https"):
                raise ConnectionError("the server leads to an address that is not of the web")
            stated = f"{size:,} bytes" if size else "size unknown"
            say(f"{file.name}: {stated} from {file.address}, licence {file.licence}")
            _require_space(folder, size)
            with replacing(path) as partial:
                _write(answer, partial, size)
                _require_hash(partial, file)
    except urllib.error.HTTPError as error:
        raise _unreachable(file, folder, f"the server answers {error.code}") from error
    except (*LOST, ValueError) as error:
        reason = getattr(error, "reason", error)
        why = first_line(reason) if isinstance(reason, BaseException) else str(reason)
        raise _unreachable(file, folder, why) from error
    return path


def _write(answer: http.client.HTTPResponse, partial: Path, size: int) -> None:
    count, most = 0, size or MOST_BYTES
    display = progress("downloading", size or 1, "bytes")
    with closing(display), partial.open("wb") as target:
        while part := answer.read(CHUNK):
            count += len(part)
            if count > most:
                raise ConnectionError(f"it sends more than the expected {most:,} bytes")
            target.write(part)
            display.update(count)
    if count < size:
        raise ConnectionError(f"the connection ended after {count:,} of {size:,} bytes")


def _require_space(folder: Path, size: int) -> None:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise BenchmdError(f"{place} is not a folder that can be written: choose another by --out.")
    if (free := shutil.disk_usage(place).free) < size:
        raise BenchmdError(
            f"{size:,} bytes are needed in {folder}, {free:,} are free: free some space, or choose "
            "another folder by --out."
        )


def _require_hash(path: Path, file: OpenFile) -> None:
    if (actual := md5(path)) != file.md5:
        raise BenchmdError(
            f"{file.address} sent a file with the MD5 {actual}, expected {file.md5} by the card: "
            "it was damaged on the way, or is another version. Nothing was kept; try again."
        )


def _unreachable(file: OpenFile, folder: Path, why: str) -> BenchmdError:
    return BenchmdError(
        f"{file.address} cannot be downloaded ({why}). Try again, or download it by hand into "
        f"{folder}; its MD5 has to be {file.md5}."
    )
