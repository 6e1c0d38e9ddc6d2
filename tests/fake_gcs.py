"""The smallest server of Google Cloud Storage's XML API that its client needs.

No emulator on PyPI speaks this API, which obstore uses. This one honours generations: a put with
``x-goog-if-generation-match`` is refused if the object has another one (0: if there is an object).
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

Answer = tuple[int, bytes, dict[str, object]]


@dataclass
class Stored:
    """One generation of an object."""

    data: bytes
    generation: int
    seconds: float = field(default_factory=time.time)

    @property
    def modified(self) -> str:
        """When it was written, as listings show it."""
        return datetime.fromtimestamp(self.seconds, UTC).isoformat(timespec="seconds")

    @property
    def etag(self) -> str:
        """As of Google, the same for the same content."""
        return f'"{hashlib.md5(self.data).hexdigest()}"'


class State:
    """Buckets, which outlast the server."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.numbers = itertools.count(1_700_000_000)
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Answers requests of ``/BUCKET/KEY``."""

    server: Server

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _answer(self, status: int, body: bytes = b"", **headers: object) -> Answer:
        return status, body, headers

    def _send(self, status: int, body: bytes, headers: dict[str, object]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str) -> Answer:
        return self._answer(
            status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        )

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        url = urlsplit(self.path)
        name, _, key = unquote(url.path).lstrip("/").partition("/")
        query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        state = self.server.state
        with state.lock:
            if name not in state.buckets:
                answer = self._error(404, "NoSuchBucket")
            elif "uploads" in query or "uploadId" in query:
                answer = self._multipart(state.buckets[name], key, query, body)
            elif key:
                work = getattr(self, f"_{self.command.lower()}")
                answer = work(state.buckets[name], key, body)
            else:
                answer = self._list(state.buckets[name], query)
        self._send(*answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _any

    def _list(self, objects: dict[str, Stored], query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        contents, folders = [], set()
        for key, each in sorted(objects.items()):
            rest = key.removeprefix(prefix)
            if not key.startswith(prefix):
                continue
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            about = f"<Key>{escape(key)}</Key><Size>{len(each.data)}</Size>"
            about += f"<ETag>{escape(each.etag)}</ETag><LastModified>{each.modified}</LastModified>"
            contents.append(f"<Contents>{about}</Contents>")
        below = [f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders]
        text = f"<ListBucketResult>{''.join(contents + sorted(below))}</ListBucketResult>"
        return self._answer(200, text.encode())

    def _get(self, objects: dict[str, Stored], key: str, _: bytes) -> Answer:
        if (each := objects.get(key)) is None:
            return self._error(404, "NoSuchKey")
        if self.headers["If-None-Match"] == each.etag:
            return self._answer(304)
        if self.headers["If-Match"] not in (None, each.etag):
            return self._error(412, "PreconditionFailed")
        about = {"ETag": each.etag, "x_goog_generation": each.generation}
        about["Last_Modified"] = formatdate(each.seconds, usegmt=True)
        if wanted := self.headers["Range"]:
            first, last = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
            data = each.data[first : last + 1]
            about["Content_Range"] = f"bytes {first}-{first + len(data) - 1}/{len(each.data)}"
            return self._answer(206, data, **about)
        return self._answer(200, each.data, **about)

    _head = _get

    def _put(self, objects: dict[str, Stored], key: str, body: bytes) -> Answer:
        expected = self.headers["x-goog-if-generation-match"]
        there = objects[key].generation if key in objects else 0
        if expected is not None and int(expected) != there:
            return self._error(412, "PreconditionFailed")
        each = self._store(objects, key, body)
        return self._answer(200, ETag=each.etag, x_goog_generation=each.generation)

    def _store(self, objects: dict[str, Stored], key: str, data: bytes) -> Stored:
        each = objects[key] = Stored(data, next(self.server.state.numbers))
        return each

    def _delete(self, objects: dict[str, Stored], key: str, _: bytes) -> Answer:
        if objects.pop(key, None) is None:
            return self._error(404, "NoSuchKey")
        return self._answer(204)

    def _multipart(
        self, objects: dict[str, Stored], key: str, query: dict[str, str], body: bytes
    ) -> Answer:
        uploads = self.server.state.uploads
        if "uploads" in query:
            number = f"u{next(self.server.state.numbers)}"
            uploads[number] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId>"
            return self._answer(200, f"{text}</InitiateMultipartUploadResult>".encode())
        parts = uploads[query["uploadId"]]
        if self.command == "PUT":
            parts[int(query["partNumber"])] = body
            return self._answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')
        if self.command == "DELETE":
            del uploads[query["uploadId"]]
            return self._answer(204)
        each = self._store(objects, key, b"".join(parts[number] for number in sorted(parts)))
        text = f"<CompleteMultipartUploadResult><ETag>{escape(each.etag)}</ETag>"
        text += "</CompleteMultipartUploadResult>"
        return self._answer(200, text.encode(), x_goog_generation=each.generation)


class Server(ThreadingHTTPServer):
    """Listens at a port of this machine."""

    daemon_threads = True

    def __init__(self, port: int, state: State) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.state = state
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Listen no more."""
        self.shutdown()
        self.server_close()
