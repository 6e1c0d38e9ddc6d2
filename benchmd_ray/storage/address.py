"""Addresses on S3 as text, ``s3://bucket/prefix``; no server is accessed."""

from __future__ import annotations

import hashlib
import os
import re

from benchmd_ray.errors import BenchmdError

SCHEME = "s3://"
ADDRESS = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/+(.*))?")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Variables that name the server, since buckets with the same name may be on different servers."""


def split_address(address: str) -> tuple[str, str]:
    """Bucket and prefix of ``s3://bucket/prefix``; `BenchmdError` if it is not valid."""
    match = ADDRESS.fullmatch(address)
    parts = [part for part in (match[2] or "").split("/") if part] if match else [".."]
    if not match or any(part in (".", "..") for part in parts):
        raise BenchmdError(
            f"{without_key(address)!r} is not an address on S3: expected "
            "s3://BUCKET/PREFIX, with credentials in the AWS environment or configuration."
        )
    return match[1], "/".join(parts)


def without_key(address: str) -> str:
    """An address for a message, without text before an @, which may be a key."""
    return re.sub("//.*@", "//…@", address)


def normal(address: str) -> str:
    """The canonical form of a valid address, without double or trailing slashes."""
    name, prefix = split_address(address)
    return f"{SCHEME}{name}/{prefix}".rstrip("/")


def local_name(address: str) -> str:
    """Name of the local folder for an address and its server."""
    endpoint = next(filter(None, map(os.environ.get, ENDPOINTS)), "")
    return f"s3-{hashlib.sha256(f'{endpoint} {address}'.encode()).hexdigest()[:16]}"
