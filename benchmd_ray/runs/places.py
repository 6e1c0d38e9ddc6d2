"""Folders of stores for paths and addresses, and names of stores for messages.

The only module that imports the client of stores in a bucket, and only for such a store.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.files.integrity import read_hashed_json, write_hashed_json
from benchmd_ray.runs.backing import Backing
from benchmd_ray.runs.files import SEARCHES
from benchmd_ray.storage.address import SCHEMES, is_address, local_name, normal
from benchmd_ray.storage.location import Address, Location

MARKER = ".store.json"
"""File in the mirror of a store in a bucket with the store's address."""
MIRROR = re.compile(r"(?:s3|gs|az)-[0-9a-f]{16}")
RUN_NAME = re.compile(r".+-[0-9a-f]{12}")


def store_folder(text: str) -> Path:
    """The folder of a store, run or search: the path, or the mirror of an address.

    The bucket is not accessed.
    """
    if not is_address(text):
        return Path(text)
    address = normal(text)
    parent, _, last = address.rpartition("/")
    if RUN_NAME.fullmatch(last) and f"{parent}/" not in SCHEMES:
        store, _, above = parent.rpartition("/")
        if above == SEARCHES and last.startswith("tune-") and f"{store}/" not in SCHEMES:
            return store_folder(store) / SEARCHES / last
        return store_folder(parent) / last
    folder = (cache_folder() / "stores" / local_name(address)).resolve()
    if not (folder / MARKER).is_file():
        write_hashed_json(folder / MARKER, {"address": address})
    return folder


def shown(folder: Path) -> str:
    """The name of a store, a run or a search in messages: its path, or its address in a bucket."""
    for store in (folder, folder.parent, folder.parent.parent):
        if os.path.isfile(f"{store}/{MARKER}"):
            return "/".join([_address(store), *folder.relative_to(store).parts])
    return str(folder)


def location_of(store: Path) -> Location:
    """Location of a store for all machines: its folder, or its address in a bucket."""
    return Address(_address(store)) if (store / MARKER).is_file() else store


def backing_of(store: Path) -> Backing:
    """The backing of a store in this folder.

    Raises:
        BenchmdError: The folder is named like a mirror but is not one, or obstore is not installed.
    """
    if (store / MARKER).is_file():
        from benchmd_ray.runs.remote import mirrored

        return mirrored(store, _address(store))
    if MIRROR.fullmatch(store.name) and store.parent.name == "stores":
        raise BenchmdError(
            f"{store} is another machine's mirror of a store in a bucket: name the store by its "
            "address, s3://…, gs://… or az://…, on every machine."
        )
    return Backing(store)


def _address(store: Path) -> str:
    remedy = (
        f"Remove the folder {store}, this machine's mirror of a store in a bucket, and run again."
    )
    return str(read_hashed_json(store / MARKER, remedy, {"address": str})["address"])
