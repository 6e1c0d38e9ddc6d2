"""Azurite, Microsoft's emulator of Azure Blob Storage: ``npm install -g azurite``."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import shutil
import socket
import subprocess
import time
from email.utils import formatdate
from pathlib import Path

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Those of every emulator, as its documentation prints them."""


def program() -> str | None:
    """The program, if it is installed."""
    return shutil.which("azurite-blob")


class Server:
    """A server that keeps what it has in a folder, so it has it again when started anew."""

    def __init__(self, port: int, folder: Path) -> None:
        command = [program(), "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        command += ["--blobPort", str(port), "--location", str(folder)]
        self._port = port
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for _ in range(600):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError("Azurite does not start")

    def make_container(self, name: str) -> None:
        """Make a container, which obstore cannot."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        lines = [f"{header}:{value}" for header, value in headers.items()]
        path = f"/{ACCOUNT}/{name}"
        text = "\n".join(["PUT", *[""] * 11, *lines, f"/{ACCOUNT}{path}", "restype:container"])
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        client = http.client.HTTPConnection("127.0.0.1", self._port)
        client.request(
            "PUT", f"{path}?restype=container", headers=headers | {"Content-Length": "0"}
        )
        answer = client.getresponse()
        assert answer.status == 201, answer.read()

    def stop(self) -> None:
        """Listen no more."""
        self._process.terminate()
        self._process.wait(30)
