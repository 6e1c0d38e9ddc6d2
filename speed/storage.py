r"""``python -m speed.storage`` from the project's root.

Publishing and pulling the files of a run, many small and some large ones: the package
(its index, hashes of state and lease checks included) against a plain loop over boto3's client and
a plain loop over obstore's, which is its library. Each peer moves the same files one after the
other between a folder and the same server.

The server is ``AWS_ENDPOINT_URL``; without one, moto's in a process of its own, which answers
each request 20 ms later, as one that is not on this machine does, and computes one answer at a
time.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import shutil
import socket
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from benchmd_ray.runs.mirror import Mirror, download
from benchmd_ray.runs.publication import Publication
from benchmd_ray.storage.bucket import open_bucket, together
from benchmd_ray.storage.lease import Lease
from speed import measure

NAMES = {"ours": "ours", "boto3_loop": "boto3", "obstore_loop": "obstore"}
"""Ends of the methods of `Clients`, by task; the first peer is the second."""
DECLARED = {
    "files": (2000, "small files"),
    "small_kib": (4, "KiB of each"),
    "large": (10, "large files"),
    "large_mb": (200, "MB of each"),
    "latency_ms": (20, "ms by which moto's server answers later, as one that is far away does"),
}


def serve(port: int, seconds: float) -> None:
    """Be moto's server, which answers each request so much later."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    answer = DomainDispatcherApplication(create_backend_app)

    def late(environment: Any, start: Any) -> Any:
        time.sleep(seconds)
        return answer(environment, start)

    run_simple("127.0.0.1", port, late, threaded=True)


def moto(seconds: float) -> multiprocessing.process.BaseProcess:
    """A server in a process of its own, which the environment then names."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(port, seconds))
    server.start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }
    for _ in range(600):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.1)
    raise SystemExit("moto's server does not start.")


class Clients:
    """The same files by the package, by boto3 and by obstore, in a bucket of their own."""

    def __init__(self, bucket: str, source: Path, scratch: Path) -> None:
        import boto3

        self._bucket, self._source, self._scratch = bucket, source, scratch
        self._boto3: Any = boto3.client("s3")
        self._paths = sorted(path for path in source.iterdir() if path.suffix == ".bin")

    def _mirror(self, folder: Path) -> Mirror:
        return Mirror(folder, open_bucket(f"s3://{self._bucket}/ours"))

    def publish_ours(self) -> None:
        """Publish as a session does, from an empty index."""
        mirror = self._mirror(self._source)
        mirror.note(dict.fromkeys(mirror.index()))
        lease = Lease(mirror.bucket, "lease.json", self._scratch / "lease.json", "the measurement")
        lease.acquire()
        files = [(path.name, path) for path in self._paths]
        Publication(mirror, lease).push_files(files)
        lease.release()

    def pull_ours(self) -> None:
        """Pull as a mirror does, into an empty folder."""
        folder = self._emptied(self._source.name)
        mirror = self._mirror(folder)
        download(mirror, [path.name for path in self._paths], mirror.objects())

    def publish_boto3(self) -> None:
        """One file after the other."""
        for path in self._paths:
            self._boto3.upload_file(str(path), self._bucket, f"boto3/{path.name}")

    def pull_boto3(self) -> None:
        """One file after the other."""
        folder = self._emptied("boto3")
        for path in self._paths:
            target = str(folder / path.name)
            self._boto3.download_file(self._bucket, f"boto3/{path.name}", target)

    def publish_obstore(self) -> None:
        """One file after the other."""
        store = self._obstore()
        for path in self._paths:
            store.put(f"obstore/{path.name}", path)

    def pull_obstore(self) -> None:
        """One file after the other."""
        store, folder = self._obstore(), self._emptied("obstore")
        for path in self._paths:
            with (folder / path.name).open("wb") as file:
                for chunk in store.get(f"obstore/{path.name}"):
                    file.write(chunk)

    def _obstore(self) -> Any:
        from obstore.store import S3Store

        return S3Store(self._bucket, client_options={"allow_http": True})

    def _emptied(self, name: str) -> Path:
        folder = self._scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def require_same(self, *folders: str) -> None:
        """Compare what was pulled with the source; raises `AssertionError`."""
        for name in folders:
            for path in self._paths:
                assert (self._scratch / name / path.name).read_bytes() == path.read_bytes()


def timed(settings: argparse.Namespace, count: int, size: int) -> dict[str, measure.Seconds]:
    """Seconds of publishing and of pulling so many files of this size, by task."""
    import boto3

    generator = np.random.default_rng(settings.seed)
    bucket = f"benchmd-speed-{uuid.uuid4().hex[:8]}"
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        source, scratch = Path(folder) / "run", Path(folder) / "scratch"
        source.mkdir()
        scratch.mkdir()
        for number in range(count):
            (source / f"{number:05d}.bin").write_bytes(generator.bytes(size))
        client: Any = boto3.client("s3")
        client.create_bucket(Bucket=bucket)
        clients = Clients(bucket, source, scratch)
        for step in ("publish", "pull"):
            tasks = {name: getattr(clients, f"{step}_{short}") for name, short in NAMES.items()}
            seconds[step] = measure.alternating(settings, tasks)
        clients.require_same("run", "boto3", "obstore")
        objects = open_bucket(f"s3://{bucket}")
        together(lambda key: objects.delete([key]), objects.objects())
        client.delete_bucket(Bucket=bucket)
    return seconds


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    settings = measure.options(__doc__, arguments, DECLARED, repetitions=1, warm_up=0)
    server = None if os.environ.get("AWS_ENDPOINT_URL") else moto(settings.latency_ms / 1000)
    try:
        small = timed(settings, settings.files, settings.small_kib * 1024)
        large = timed(settings, settings.large, settings.large_mb * 10**6)
    finally:
        if server is not None:
            server.terminate()
    parts = {
        f"{step}_{what}": seconds
        for what, steps in (("small", small), ("large", large))
        for step, seconds in steps.items()
    }
    measure.report(
        "storage",
        settings,
        small["pull"],
        unit="small files/s",
        units=settings.files,
        server="moto" if server else "AWS_ENDPOINT_URL",
        seconds_of_all={
            part: {task: measure.spread(values) for task, values in seconds.items()}
            for part, seconds in parts.items()
        },
        ratios_of_all={
            part: {peer: measure.ratio(seconds, "ours", peer) for peer in seconds if peer != "ours"}
            for part, seconds in parts.items()
        },
    )


if __name__ == "__main__":
    main()
