"""Folders of stores for paths and addresses, and names of stores for messages.

The only module that imports the client of stores on S3, and only for such a store.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.files.integrity import read_hashed_json, write_hashed_json
from benchmd_ray.runs.backing import Backing
from benchmd_ray.runs.files import SEARCHES
from benchmd_ray.storage.address import SCHEME, local_name, normal
from benchmd_ray.storage.location import Address, Location

MARKER = ".store.json"
"""File in the mirror of a store on S3 with the store's address."""
MIRROR = re.compile(r"s3-[0-9a-f]{16}")
RUN_NAME = re.compile(r".+-[0-9a-f]{12}")


def store_folder(text: str) -> Path:
    """The folder of a store, run or search: the path, or the mirror of ``s3://bucket/prefix``.

    The bucket is not accessed.
    """
    if not text.startswith(SCHEME):
        return Path(text)
    address = normal(text)
    parent, _, last = address.rpartition("/")
    if RUN_NAME.fullmatch(last) and parent != SCHEME.rstrip("/"):
        store, _, above = parent.rpartition("/")
        if above == SEARCHES and last.startswith("tune-") and store != SCHEME.rstrip("/"):
            return store_folder(store) / SEARCHES / last
        return store_folder(parent) / last
    folder = (cache_folder() / "stores" / local_name(address)).resolve()
    if not (folder / MARKER).is_file():
        write_hashed_json(folder / MARKER, {"address": address})
    return folder


def shown(folder: Path) -> str:
    """The name of a store, a run or a search in messages: its path, or its address on S3."""
    for store in (folder, *folder.parents[:2]):
        if (store / MARKER).is_file():
            return "/".join([_address(store), *folder.relative_to(store).parts])
    return str(folder)


def location_of(store: Path) -> Location:
    """Location of a store for all machines: its folder, or its address on S3."""
    return Address(_address(store)) if (store / MARKER).is_file() else store


def backing_of(store: Path) -> Backing:
    """The backing of a store in this folder.

    Raises:
        BenchmdError: The folder is named like a mirror but is not one, or S3 cannot be used here.
    """
    if (store / MARKER).is_file():
        from benchmd_ray.runs.remote import mirrored

        return mirrored(store, _address(store))
    if MIRROR.fullmatch(store.name) and store.parent.name == "stores":
        raise BenchmdError(
            f"{store} is another machine's mirror of a store on S3: name the store by its address, "
            "s3://…, on every machine."
        )
    return Backing(store)


def _address(store: Path) -> str:
    remedy = f"Remove the folder {store}, this machine's mirror of a store on S3, and run again."
    return str(read_hashed_json(store / MARKER, remedy, {"address": str})["address"])
