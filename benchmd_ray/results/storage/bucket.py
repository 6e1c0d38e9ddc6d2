"""A prefix of an S3 bucket: its objects listed, read, written and deleted, with clear errors.

Address, region and credentials come from the standard AWS environment and configuration; they are
kept in memory by boto3 alone.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from benchmd_ray.errors import BenchmdError, Transient
from benchmd_ray.files import replacing

SCHEME = "s3://"
ADDRESS = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/+(.*))?")
CONNECT_SECONDS = 5
READ_SECONDS = 60
ATTEMPTS = 3
"""Of one request: an error is reported instead of tried without end."""
SMALL = 8 * 2**20
"""Bytes up to which a file is read whole first: it may grow while it is sent."""
ENVIRONMENT = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_ACCESS_KEY_ID")
REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412", "409", "404")
"""Codes of a conditional write whose condition does not hold."""
MISSING = ("NoSuchKey", "404", "NotFound")


class BucketError(Transient):
    """The bucket cannot be reached, or refuses."""


@dataclass(frozen=True)
class Object:
    """What a listing says of an object."""

    etag: str
    size: int
    """Bytes."""
    modified: float
    """Seconds since 1970, by the server's clock."""


@dataclass(frozen=True)
class Content:
    """A small object."""

    data: bytes
    etag: str
    age: float
    """Seconds since it was written; both times are the server's."""


def split_address(address: str) -> tuple[str, str]:
    """Bucket and prefix of ``s3://bucket/prefix``.

    Raises:
        BenchmdError: The address is none.
    """
    match = ADDRESS.fullmatch(address)
    parts = [part for part in (match[2] or "").split("/") if part] if match else [".."]
    if not match or any(part in (".", "..") for part in parts):
        raise BenchmdError(
            f"{_without_key(address)!r} is no address of a store: expected "
            "s3://BUCKET/PREFIX, with credentials in the AWS environment or configuration."
        )
    return match[1], "/".join(parts)


def _without_key(address: str) -> str:
    """An address for a message: what stands before an @ may be a key."""
    return re.sub("//.*@", "//…@", address)


def normal(address: str) -> str:
    """The one form of an address: no slash twice or at its end.

    Raises:
        BenchmdError: The address is none.
    """
    name, prefix = split_address(address)
    return f"{SCHEME}{name}/{prefix}".rstrip("/")


def open_bucket(address: str) -> Bucket:
    """The bucket at ``s3://bucket/prefix``; nothing is asked of it yet.

    Raises:
        BenchmdError: The address is none, boto3 is not installed or its configuration is wrong.
    """
    return Bucket(normal(address), _client(tuple(os.environ.get(name) for name in ENVIRONMENT)))


@functools.lru_cache(maxsize=4)
def _client(environment: tuple[str | None, ...]) -> Any:
    """An S3 client for what the environment says now; it may be shared by threads."""
    try:
        boto3 = importlib.import_module("boto3")
        config = importlib.import_module("botocore.config").Config
    except ImportError as error:
        raise BenchmdError(
            f"a store on S3 needs boto3 ({error}): pip install 'benchmd-ray[s3]'."
        ) from error
    retries = {"total_max_attempts": ATTEMPTS, "mode": "standard"}
    with _explained("set up a client for", "S3"):
        return boto3.session.Session().client(
            "s3",
            config=config(
                connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries=retries
            ),
        )


@contextmanager
def _explained(what: str, address: str) -> Iterator[None]:
    """Turn what boto3 raises into one error that says what to look at.

    Raises:
        BucketError: A call failed.
    """
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise BucketError(
            f"cannot {what} {address}: {error}. Check the address, the network, the AWS "
            "environment (AWS_ENDPOINT_URL, AWS_PROFILE, AWS_REGION, …) and the permissions."
        ) from error


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@dataclass(frozen=True)
class Bucket:
    """Objects below an address; keys are relative to it."""

    address: str
    _client: Any

    @property
    def _place(self) -> tuple[str, str]:
        name, prefix = split_address(self.address)
        return name, f"{prefix}/" if prefix else ""

    def _named(self, key: str) -> dict[str, str]:
        name, prefix = self._place
        return {"Bucket": name, "Key": prefix + key}

    def objects(self, below: str = "") -> dict[str, Object]:
        """All objects whose key starts with ``below``, by key.

        Raises:
            BucketError: The bucket cannot be listed.
        """
        name, prefix = self._place
        found = {}
        with _explained("list", self.address):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=name, Prefix=prefix + below):
                for item in page.get("Contents", ()):
                    key = item["Key"].removeprefix(prefix)
                    modified = item["LastModified"].timestamp()
                    found[key] = Object(item["ETag"], item["Size"], modified)
        return found

    def read(self, key: str) -> Content | None:
        """A small object; None where there is none.

        Raises:
            BucketError: It cannot be read.
        """
        from botocore.exceptions import ClientError

        with _explained("read from", self.address):
            try:
                answer = self._client.get_object(**self._named(key))
                data = answer["Body"].read()
            except ClientError as error:
                if _code(error) in MISSING:
                    return None
                raise
        return Content(data, answer["ETag"], _age(answer))

    def write(
        self, key: str, data: bytes, *, replaces: str | None = None, new: bool = False
    ) -> str | None:
        """Write a small object, whole or not at all.

        Args:
            key: Its key.
            data: Its content.
            replaces: Write only while the object there has this ETag.
            new: Write only while there is none.

        Returns:
            Its ETag; None where the condition does not hold, and nothing was written.

        Raises:
            BucketError: It cannot be written.
        """
        from botocore.exceptions import ClientError

        condition = {"IfMatch": replaces} if replaces else {"IfNoneMatch": "*"} if new else {}
        with _explained("write to", self.address):
            try:
                answer = self._client.put_object(**self._named(key), Body=data, **condition)
            except ClientError as error:
                if condition and _code(error) in REFUSED:
                    return None
                raise
        return str(answer["ETag"])

    def upload(self, file: BinaryIO, size: int, key: str) -> str:
        """Write an object from an opened file of ``size`` bytes, whole or not at all.

        Returns:
            Its ETag.

        Raises:
            BucketError: It cannot be written.
        """
        if size <= SMALL:
            return str(self.write(key, file.read()))
        named = self._named(key)
        with _explained("write to", self.address):
            self._client.upload_fileobj(file, *named.values())
            return str(self._client.head_object(**named)["ETag"])

    def download(self, key: str, path: Path) -> bool:
        """Write an object's content into a file, whole or not at all.

        Returns:
            Whether there is such an object.

        Raises:
            BucketError: It cannot be read.
        """
        from botocore.exceptions import ClientError

        with _explained("read from", self.address):
            try:
                with replacing(path) as partial, partial.open("wb") as file:
                    self._client.download_fileobj(*self._named(key).values(), file)
            except ClientError as error:
                if _code(error) in MISSING:
                    return False
                raise
        return True

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, in this order.

        Raises:
            BucketError: One cannot be deleted.
        """
        with _explained("delete from", self.address):
            for key in keys:  # one by one: not every server knows to delete several
                self._client.delete_object(**self._named(key))


def _age(answer: dict[str, Any]) -> float:
    """Seconds since an object was written, both times from the answer that holds it."""
    from email.utils import parsedate_to_datetime

    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return float((now - answer["LastModified"]).total_seconds())
