"""Addresses in object stores as text, ``s3://bucket/prefix``; no server is accessed.

``s3://`` names S3 and what speaks its protocol, ``gs://`` Google Cloud Storage, ``az://`` a
container of Azure Blob Storage.
"""

from __future__ import annotations

import hashlib
import os
import re

from benchmd_ray.errors import BenchmdError

SCHEMES = ("s3://", "gs://", "az://")
FORMS = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
ADDRESS = re.compile(
    r"((?:s3|gs|az)://)([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])(?:/+([^\0-\x1f\x7f]*))?"
)
ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
}
"""Variables that name the server, since buckets with the same name may be on different servers."""
ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
CLOCK = "lease-clock-"
"""Beginning of the names of objects that are written for a moment to learn the server's time."""


def is_address(text: str) -> bool:
    """Whether a text names a place in an object store rather than a path."""
    return text.startswith(SCHEMES)


def is_broken(text: str) -> bool:
    """Whether it is an address that was made a path, ``s3:/bucket``."""
    return text.startswith(("s3:/", "gs:/", "az:/")) and not is_address(text)


def split_address(address: str) -> tuple[str, str, str]:
    """Service (``s3``, ``gs`` or ``az``), bucket and prefix of an address.

    Raises:
        BenchmdError: It is not valid.
    """
    match = ADDRESS.fullmatch(address)
    parts = [part for part in (match[3] or "").split("/") if part] if match else [".."]
    if not match or any(part in (".", "..") for part in parts):
        raise BenchmdError(
            f"{without_key(address)!r} is not an address in an object store: expected {FORMS}, "
            "with credentials in the environment."
        )
    return match[1].rstrip(":/"), match[2], "/".join(parts)


def without_key(address: str) -> str:
    """An address for a message, without text before an @, which may be a key."""
    return re.sub("//.*@", "//…@", address)


def normal(address: str) -> str:
    """The canonical form of a valid address, without double or trailing slashes."""
    service, name, prefix = split_address(address)
    return f"{service}://{name}/{prefix}".rstrip("/")


def local_name(address: str) -> str:
    """Name of the local folder for an address and its server."""
    service = address[:2]
    server = next(filter(None, map(os.environ.get, ENDPOINTS[service])), "")
    if service == "az":
        server += f" {os.environ.get(ACCOUNT, '')}"
    return f"{service}-{hashlib.sha256(f'{server} {address}'.encode()).hexdigest()[:16]}"
