"""The only client of object stores: lists, reads, writes and deletes objects below a prefix.

Addresses of servers, regions and credentials come from the environment; obstore keeps them only in
memory. It also retries requests and bodies that were cut off. Failing calls raise `BucketError`,
which says what to check.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from benchmd_ray.errors import BenchmdError, BucketError
from benchmd_ray.extensions.extras import importing
from benchmd_ray.files.atomic import MAX_BYTES, replacing
from benchmd_ray.storage.address import CLOCK, ENDPOINTS, normal, split_address, without_key

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    Store = S3Store | GCSStore | AzureStore

CONNECT_SECONDS = 5
READ_SECONDS = 120
REQUEST_SECONDS = 3600
RETRY_SECONDS, ATTEMPTS = 5, 3
"""For how long, and how often, a request is sent to a server that is away.

For longer `storage.patience` retries, as no signal is handled while obstore waits.
"""
PART, STRETCH, PIECE = 8 * 2**20, 64 * 2**20, 2**20
"""Bytes of the parts in which a larger object is uploaded, of the stretches in which it is
downloaded, and of what is held of a stretch in memory.
"""
PARALLEL, MOST_PARTS = 4, 9000
TRANSFERS, LARGE_UPLOADS = threading.BoundedSemaphore(16), threading.BoundedSemaphore(2)
"""Downloads of objects or parts, and uploads in parts, that this process does at once: many runs
are pulled at a time, and a slow line must carry each request within `READ_SECONDS`.
"""
VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "AZURITE_")
DENIED = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"}
"""Codes of refused credentials, in addition to HTTP status 401 and 403."""
REPLACED = 412
"""Status where an object is no longer the version that was asked for."""
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
SIGNING_IN = re.compile(
    r"token request|/latest/api/token|/latest/meta-data|169\.254\.|Account must be specified"
)
"""In an error of the client that looked for credentials, perhaps at the machine's own service."""
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN (those of an "
    "AWS_PROFILE by `aws configure export-credentials --format env`), or give the machine a role",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, the file of a service account's key or of `gcloud auth "
    "application-default login`, or give the machine a service account",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, "
    "or give the machine an identity",
}
NOT_EXPIRED = (
    "(on a cluster: on every node). They must not have expired and must allow listing, reading "
    "and writing."
)


class Unlistable(BucketError):
    """A key has an empty part, ``..`` or a control character, which the client refuses."""


class Version(NamedTuple):
    """What identifies the content of an object, for conditional writes."""

    etag: str
    generation: str | None = None
    """Google's number of the version."""


NO_VERSION = Version('"0"', "1")
"""That of no object."""


@dataclass(frozen=True)
class Object:
    etag: str
    size: int
    modified: float


@dataclass(frozen=True)
class Content:
    """A small object."""

    data: bytes
    version: Version
    modified: float
    """When it was written, in seconds by the server's clock."""


def open_bucket(address: str) -> Bucket:
    """The bucket at ``s3://bucket/prefix``; it is not accessed yet.

    Raises:
        BenchmdError: The address is invalid, obstore is not installed or its configuration is
            wrong.
    """
    address = normal(address)
    variables = {name: x for name, x in os.environ.items() if name.startswith(VARIABLES)}
    for name, x in variables.items():
        if not x.isprintable():
            raise BenchmdError(
                f"the environment variable {name} has a line break or another control character, "
                "perhaps from a file that ends with one: set it without."
            )
    environment = (f"{name}={x}" for name, x in variables.items())
    service, name, _ = split_address(address)
    return Bucket(address, _store(service, name, tuple(sorted(environment))))


@functools.lru_cache(maxsize=8)
def _store(service: str, name: str, environment: tuple[str, ...]) -> Store:
    """A client for this environment, which threads may share."""
    with importing("obstore", "An object store"):
        from obstore.store import AzureStore, GCSStore, S3Store
    if "AWS_PROFILE" in os.environ and "AWS_ACCESS_KEY_ID" not in os.environ and service == "s3":
        raise BenchmdError(
            "AWS_PROFILE is set, but profiles are not read: set the profile's keys by "
            '`eval "$(aws configure export-credentials --format env)"`, or unset it.'
        )
    insecure = any(os.environ.get(each, "").startswith("http://") for each in ENDPOINTS[service])
    client: dict[str, Any] = {
        "allow_http": insecure,
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=READ_SECONDS),
        "timeout": timedelta(seconds=REQUEST_SECONDS),
    }
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if bundle and not insecure:
        try:
            client["root_certificate"] = Path(bundle).read_bytes()
        except OSError as error:
            raise BenchmdError(f"AWS_CA_BUNDLE, a file of certificates: {error}.") from error
    options: dict[str, Any] = {
        "client_options": client,
        "retry_config": {
            "max_retries": ATTEMPTS - 1,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        },
    }
    with _explained("set up a client for", f"{service}://{name}"):
        if service == "s3":  # not every server can delete several objects at once
            return S3Store(name, disable_bulk_delete=True, **options)
        return (GCSStore if service == "gs" else AzureStore)(name, **options)


@contextmanager
def _explained(what: str, address: str) -> Iterator[None]:
    """Turn the client's errors into `BucketError`; within it only the client is called."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError, ValueError) as error:
        problem = Problem(str(error))
        message = f"cannot {what} {address}: {problem.message}. {_advice(problem, address)}"
        explained = (Unlistable if problem.is_of_a_key else BucketError)(message)
        explained.away = problem.away
        raise explained from None  # the client's text may have keys


def together(work: Callable[[Any], object], items: Iterable[Any], threads: int = 16) -> None:
    """Call for several items at once; after an error or Ctrl-C none is begun."""
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)


class Problem:
    """What an error of the client says, without the parts of addresses that may be keys."""

    def __init__(self, text: str) -> None:
        text, _, details = text.partition("\n\nDebug source:")
        status = re.search(r"status code: (\d{3}) ?([^:\n<{]*)", text)
        self.status = int(status[1]) if status else 0
        self.code = (re.findall(r"<Code>(\w+)</Code>", text) or [""])[0]
        self.signs_in = SIGNING_IN.search(text) is not None
        if status:
            said = re.search(r"<Message>([^<\n]*)", text)
            parts = [f"status {status[1]} {status[2]}".strip(), self.code, said[1] if said else ""]
            self.message = ": ".join(filter(None, parts)).rstrip(".")
        elif "IncompleteBody" in details:
            self.message = "HTTP error: the answer was cut off"
        else:
            reason = re.search(r'message: "([^"\n]*)"', details)
            message = re.sub(r"\?\S*", "", without_key(text.replace("\n", " ")))
            self.message = f"{message} ({reason[1]})" if reason else message.rstrip(".")

    @property
    def is_of_a_key(self) -> bool:
        """Whether the client refuses a key that is there."""
        return "invalid path" in self.message

    @property
    def away(self) -> bool:
        """Whether the server gave no answer of use, and may give one later."""
        later = self.status >= 500 or self.status in (408, REPLACED, 429)
        return later or self.code == "RequestTimeout" or "HTTP error" in self.message


def _advice(problem: Problem, address: str) -> str:
    service = split_address(address)[0]
    if problem.code in NO_BUCKET:
        return (
            "There is no such bucket there: check its name and "
            f"{ENDPOINTS[service][0]}, or make the bucket first."
        )
    if problem.signs_in:
        return f"There are no usable credentials. Set {CREDENTIALS[service]} {NOT_EXPIRED}"
    if problem.status in (401, 403) or problem.code in DENIED:
        return f"The server refuses these credentials: check {CREDENTIALS[service]} {NOT_EXPIRED}"
    if problem.is_of_a_key:
        return "Remove or rename that object: it has an empty part, '..' or a control character."
    if problem.status == REPLACED:
        return "An object was replaced meanwhile: run the same command again, which lists it again."
    region = ", AWS_REGION" if service == "s3" else ""
    return (
        f"Check the address, the network, the environment ({ENDPOINTS[service][0]}{region}, …) and "
        "the permissions."
    )


@dataclass(frozen=True)
class Bucket:
    """Objects below an address; keys are relative to it."""

    address: str
    _store: Store

    @property
    def _prefix(self) -> str:
        prefix = split_address(self.address)[2]
        return f"{prefix}/" if prefix else ""

    def objects(self, folder: str = "") -> dict[str, Object]:
        """All objects in a folder and those below it, by key."""
        prefix = self._prefix
        with _explained("list", self.address):
            pages = self._store.list((prefix + folder).rstrip("/") or None, chunk_size=1000)
            items = [item for page in pages for item in page]
        return self._without_markers(items)

    def entries(self) -> tuple[dict[str, int], list[str]]:
        """Objects and folders directly at the address: bytes by key, and names of folders."""
        prefix = self._prefix
        with _explained("list", self.address):
            listed = self._store.list_with_delimiter(prefix.rstrip("/") or None)
        folders = [path.removeprefix(prefix) for path in listed["common_prefixes"]]
        objects = self._without_markers(listed["objects"], folders)
        return {key: each.size for key, each in objects.items()}, folders

    def _without_markers(
        self, items: Iterable[Any], folders: Iterable[str] = ()
    ) -> dict[str, Object]:
        """Listed objects without the empty ones by which consoles mark folders."""
        objects = {
            item["path"].removeprefix(self._prefix): Object(
                _quoted(item["e_tag"]), item["size"], item["last_modified"].timestamp()
            )
            for item in items
            if f"{item['path']}/" != self._prefix and item["path"]
        }
        above = {*folders}
        for key in objects:
            parts = key.split("/")
            above |= {"/".join(parts[:count]) for count in range(1, len(parts))}
        return {key: each for key, each in objects.items() if each.size or key not in above}

    def read(
        self, key: str, earlier: Content | None = None, *, beginning: int | None = None
    ) -> Content | None:
        """Read an object that fits in memory; None if it does not exist.

        ``earlier``, the result of an earlier call, is returned without reading if the object is
        unchanged. With ``beginning`` only the first bytes of a longer object are read.
        """
        from obstore.exceptions import NotModifiedError

        condition = {"if_none_match": earlier.version.etag} if earlier else {}
        with _explained("read from", self.address):
            try:
                result = self._get(key, condition)
            except NotModifiedError:
                return earlier
        if result is None:
            return None
        meta = result.meta
        if beginning is not None and meta["size"] > beginning:
            data = next(self._chunks(result, beginning))[:beginning]
        elif meta["size"] > MAX_BYTES:
            raise BenchmdError(
                f"{self.address}/{key} has more than {MAX_BYTES:,} bytes, expected a file of ours."
            )
        else:
            data = b"".join(self._chunks(result))
        return Content(data, _version(meta), meta["last_modified"].timestamp())

    def _get(self, key: str, options: Any) -> Any:
        """The answer to a request, before its body; None if there is no such object."""
        try:
            return self._store.get(self._prefix + key, options=options)
        except FileNotFoundError as error:
            if any(code in str(error) for code in NO_BUCKET):
                raise
            return None

    def _chunks(self, result: Any, size: int = PIECE) -> Iterator[bytes]:
        with _explained("read from", self.address):
            for chunk in result.stream(min_chunk_size=size):
                yield bytes(chunk)

    def write(
        self, key: str, data: bytes, *, replaces: Version | None = None, new: bool = False
    ) -> Version | None:
        """Write a small object atomically; returns its version, or None if a condition fails.

        Conditions: the existing object has the version ``replaces``, or does not exist (``new``).
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if new else "overwrite"
        if replaces is not None:
            mode = {"e_tag": replaces.etag}
            if replaces.generation is not None:
                mode["version"] = replaces.generation
        with _explained("write to", self.address):
            try:
                result = self._store.put(self._prefix + key, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                if mode == "overwrite":
                    raise
                return None
            except FileNotFoundError as error:
                if replaces is None or any(code in str(error) for code in NO_BUCKET):
                    raise
                return None
        return _version(result)

    def upload(self, file: BinaryIO, size: int, key: str) -> str:
        """Write an object from an open file of ``size`` bytes atomically; returns its ETag."""
        if size <= PART:  # in memory, as it may grow meanwhile
            version = self.write(key, file.read())
            assert version is not None  # as there is no condition
            return version.etag
        with LARGE_UPLOADS, _explained("write to", self.address):
            result = self._store.put(
                self._prefix + key,
                file,
                chunk_size=max(PART, size // MOST_PARTS),
                max_concurrency=PARALLEL,
            )
        return _version(result).etag

    def download(self, key: str, path: Path, size: int) -> bool:
        """Download an object to a file atomically; returns whether it exists.

        Raises:
            BucketError: It is longer than ``size``, its size in the listing, or was replaced
                meanwhile.
        """
        with TRANSFERS:
            with _explained("read from", self.address):
                whole = self._get(key, {"head": size > STRETCH})
            if whole is None:
                return False
            if whole.meta["size"] > size:
                raise BucketError(
                    f"{self.address}/{key} is longer than the {size:,} bytes that were listed: it "
                    "was replaced meanwhile. Run the same command again, which lists it again."
                )
            if size <= STRETCH:
                with replacing(path) as partial, partial.open("wb") as file:
                    file.writelines(self._chunks(whole))
                return True
        self._download_stretches(key, whole.meta, path)
        return True

    def _download_stretches(self, key: str, meta: Any, path: Path) -> None:
        """Download one version of a large object, several stretches at a time."""

        def fetch(start: int) -> None:
            options = {"range": (start, start + STRETCH), "if_match": meta["e_tag"]}
            with TRANSFERS, partial.open("r+b") as file:
                with _explained("read from", self.address):
                    result = self._get(key, options)
                if result is None:
                    raise BucketError(
                        f"{self.address}/{key} vanished while it was read: try again."
                    )
                file.seek(start)
                file.writelines(self._chunks(result))

        with replacing(path) as partial:
            partial.touch()
            together(fetch, range(0, meta["size"], STRETCH), PARALLEL)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects that exist, in this order."""
        for key in keys:
            with _explained("delete from", self.address):
                try:
                    self._store.delete(self._prefix + key)
                except FileNotFoundError as error:
                    if any(code in str(error) for code in NO_BUCKET):
                        raise

    def now(self, beside: str) -> float:
        """The server's time, that of an object which is written for this next to another."""
        folder, slash, _ = beside.rpartition("/")
        key = f"{folder}{slash}{CLOCK}{uuid.uuid4().hex}.json"
        try:
            self.write(key, b'{"state": "free"}')
            with _explained("read from", self.address):
                return float(self._store.head(self._prefix + key)["last_modified"].timestamp())
        finally:
            self.delete([key])


def _version(meta: Any) -> Version:
    return Version(_quoted(meta["e_tag"]), meta["version"])


def _quoted(etag: str | None) -> str:
    """An ETag in one form, as Azure lists it without quotes."""
    return etag if etag and '"' in etag else f'"{etag}"'
