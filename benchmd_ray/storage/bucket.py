"""The only client of S3: lists, reads, writes and deletes objects below a prefix.

Address, region and credentials come from the standard AWS environment and configuration; boto3
keeps them only in memory. Failing calls raise `BucketError`, which says what to check.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from benchmd_ray.errors import BenchmdError, BucketError
from benchmd_ray.extensions.extras import importing
from benchmd_ray.files.atomic import MAX_BYTES, replacing
from benchmd_ray.storage.address import normal, split_address, without_key

CONNECT_SECONDS = 5
READ_SECONDS = 60
ATTEMPTS = 3
SMALL = 8 * 2**20
"""Largest size in bytes of a file that is read into memory before it is sent, as it may grow
meanwhile.
"""
ENVIRONMENT = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_ACCESS_KEY_ID")
REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412", "409", "404")
"""Error codes of a conditional write whose condition does not hold."""
MISSING = ("NoSuchKey", "404", "NotFound")
SAME = ("304", "NotModified")
LATER = ("RequestTimeout", "SlowDown", "Throttling", "TooManyRequests", "429")
"""Error codes that allow a retry, in addition to HTTP status 500 and above."""
DENIED = {
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "Forbidden",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "401",
    "403",
}
NETWORK = (
    "Check the address, the network, the AWS environment (AWS_ENDPOINT_URL, AWS_PROFILE, "
    "AWS_REGION, …) and the permissions."
)
CREDENTIALS = (
    "AWS_PROFILE, or AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN (on a "
    "cluster: on every node), which must not have expired and must allow listing, reading and "
    "writing."
)
NO_BUCKET = (
    "There is no such bucket there: check its name and AWS_ENDPOINT_URL, or make the bucket first."
)


@dataclass(frozen=True)
class Object:
    etag: str
    size: int
    modified: float


@dataclass(frozen=True)
class Content:
    """A small object."""

    data: bytes
    etag: str
    age: float
    """Seconds since it was written; both times are the server's."""


def open_bucket(address: str) -> Bucket:
    """The bucket at ``s3://bucket/prefix``; it is not accessed yet.

    Raises:
        BenchmdError: The address is invalid, boto3 is not installed or its configuration is wrong.
    """
    return Bucket(normal(address), _client(tuple(os.environ.get(name) for name in ENVIRONMENT)))


@functools.lru_cache(maxsize=4)
def _client(environment: tuple[str | None, ...]) -> Any:
    """An S3 client for this environment, which threads may share."""
    with importing("boto3", "S3"):
        boto3 = importlib.import_module("boto3")
        config = importlib.import_module("botocore.config").Config
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
    from boto3.exceptions import Boto3Error
    from botocore import exceptions
    from botocore.exceptions import BotoCoreError, ClientError
    from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError

    torn = (RetriesExceededError, S3DownloadFailedError)
    lost = (
        *torn,  # the object was replaced meanwhile, or its content was cut off repeatedly
        exceptions.ConnectionError,
        exceptions.HTTPClientError,
        exceptions.IncompleteReadError,
    )
    try:
        yield
    except (Boto3Error, BotoCoreError, ClientError, *torn) as error:
        message = without_key(str(error)).rstrip(".")
        explained = BucketError(f"cannot {what} {address}: {message}. {_advice(error)}")
        explained.away = isinstance(error, lost) or _status(error) >= 500
        explained.away |= _status(error) == 429 or _code(error) in LATER
        raise explained from error


def _advice(error: Exception) -> str:
    from botocore.exceptions import NoCredentialsError, PartialCredentialsError

    code = _code(error)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return f"Set {CREDENTIALS}"
    if code in DENIED:
        return f"The server refuses these credentials: check {CREDENTIALS}"
    return NO_BUCKET if code == "NoSuchBucket" else NETWORK


def _code(error: Exception) -> str:
    return str(_answer(error).get("Error", {}).get("Code", ""))


def _status(error: Exception) -> int:
    return int(_answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _answer(error: Exception) -> dict[str, Any]:
    answer: dict[str, Any] = getattr(error, "response", None) or {}
    return answer


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

    def _pages(self, **asked: str) -> Iterator[dict[str, Any]]:
        """Pages of a listing, without the folder markers written by consoles."""
        with _explained("list", self.address):
            paginator = self._client.get_paginator("list_objects_v2")
            for page in paginator.paginate(Bucket=self._place[0], **asked):
                files = [item for item in page.get("Contents", ()) if item["Key"][-1:] != "/"]
                yield {**page, "Contents": files}

    def objects(self, below: str = "") -> dict[str, Object]:
        """All objects whose key starts with ``below``, by key."""
        _, prefix = self._place
        items = [item for page in self._pages(Prefix=prefix + below) for item in page["Contents"]]
        return {
            item["Key"].removeprefix(prefix): Object(
                item["ETag"], item["Size"], item["LastModified"].timestamp()
            )
            for item in items
        }

    def entries(self) -> tuple[dict[str, int], list[str]]:
        """Objects and folders directly at the address: bytes by key, and names of folders."""
        _, prefix = self._place
        sizes: dict[str, int] = {}
        folders: list[str] = []
        for page in self._pages(Prefix=prefix, Delimiter="/"):
            sizes |= {item["Key"].removeprefix(prefix): item["Size"] for item in page["Contents"]}
            below = [item["Prefix"] for item in page.get("CommonPrefixes", ())]
            folders += [path.removeprefix(prefix).rstrip("/") for path in below]
        return sizes, folders

    def read(
        self, key: str, earlier: Content | None = None, *, beginning: int | None = None
    ) -> Content | None:
        """Read an object that fits in memory; None if it does not exist.

        ``earlier``, the result of an earlier call, is returned without reading if the object is
        unchanged. With ``beginning`` only the first bytes of a longer object are read.
        """
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": earlier.etag} if earlier else {}
        with _explained("read from", self.address):
            try:
                answer, data = self._fetch(self._named(key) | condition, beginning)
            except ClientError as error:
                if _code(error) in MISSING:
                    return None
                if earlier and _code(error) in SAME:
                    return earlier
                raise
        return Content(data, answer["ETag"], _age(answer))

    def _fetch(self, asked: dict[str, str], beginning: int | None) -> tuple[dict[str, Any], bytes]:
        """Get an object with its body; boto3 retries requests, but not bodies that were cut off."""
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        for attempt in range(1, ATTEMPTS + 1):
            answer = self._client.get_object(**asked)
            length = answer.get("ContentLength", 0)
            longer = beginning is not None and length > beginning
            try:
                with closing(answer["Body"]) as body:
                    if longer or length <= MAX_BYTES:
                        return answer, body.read(beginning if longer else None)
                raise BenchmdError(
                    f"s3://{asked['Bucket']}/{asked['Key']} has more than {MAX_BYTES:,} bytes, "
                    "expected a file of ours."
                )
            except (HTTPClientError, IncompleteReadError):
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("every attempt returns or raises")

    def write(
        self, key: str, data: bytes, *, replaces: str | None = None, new: bool = False
    ) -> str | None:
        """Write a small object atomically; returns its ETag, or None if a condition does not hold.

        Conditions: the existing object has the ETag ``replaces``, or does not exist (``new``).
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
        """Write an object from an open file of ``size`` bytes atomically; returns its ETag."""
        if size <= SMALL:
            return str(self.write(key, file.read()))
        named = self._named(key)
        with _explained("write to", self.address):
            self._client.upload_fileobj(file, *named.values())
            return str(self._client.head_object(**named)["ETag"])

    def download(self, key: str, path: Path, size: int) -> bool:
        """Download an object to a file atomically; returns whether it exists.

        Raises:
            BucketError: It is longer than ``size``, its size in the listing.
        """
        from botocore.exceptions import ClientError

        with _explained("read from", self.address):
            try:
                with replacing(path) as partial, _Listed(partial, size, self._named(key)) as file:
                    self._client.download_fileobj(*self._named(key).values(), file)
            except ClientError as error:
                if _code(error) in MISSING:
                    return False
                raise
        return True

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, in this order."""
        with _explained("delete from", self.address):
            for key in keys:  # one by one, as not every server can delete several
                self._client.delete_object(**self._named(key))


class _Listed(io.BufferedWriter):
    """A file that refuses to become longer than listed."""

    def __init__(self, path: Path, size: int, named: Mapping[str, str]) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._size, self._address = size, f"s3://{named['Bucket']}/{named['Key']}"

    def write(self, data: Any) -> int:
        """Write; raises `BucketError` if the file would become longer."""
        if self.tell() + len(data) > self._size:
            raise BucketError(
                f"{self._address} is longer than the {self._size:,} bytes that were listed: it was "
                "replaced meanwhile. Run the same command again, which lists it again."
            )
        return super().write(data)


def _age(answer: dict[str, Any]) -> float:
    """Seconds since an object was written, both times by the server's clock."""
    from email.utils import parsedate_to_datetime

    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return float((now - answer["LastModified"]).total_seconds())
