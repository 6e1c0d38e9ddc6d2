"""Downloads of open files from a local server: whole and with their hash, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
from collections import namedtuple
from dataclasses import replace

import pytest
from click.testing import CliRunner

from benchmd_ray.cli import main
from benchmd_ray.data import cards
from benchmd_ray.data import download as downloads
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.download import OpenFile, download, open_file
from benchmd_ray.errors import BenchmdError

CONTENT = bytes(range(256)) * 5000


class Server:
    """What a local server sends, and what it was asked for."""

    def __init__(self):
        self.content, self.sent, self.status, self.asked = CONTENT, len(CONTENT), 200, []
        self.says_size = True


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            state.asked.append(self.path)
            self.send_response(state.status)
            if state.says_size:
                self.send_header("Content-Length", str(len(state.content)))
            self.end_headers()
            if state.status == 200:
                with contextlib.suppress(ConnectionError):  # who refuses the size reads no more
                    self.wfile.write(state.content[: state.sent])

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_port}/files/breastmnist.npz"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def file(server):
    digest = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
    return OpenFile("breastmnist.npz", server.address, digest, "CC BY 4.0")


def test_a_file_is_downloaded_once_after_its_size_and_licence_are_said(file, server, tmp_path):
    lines = []
    path = download(file, tmp_path / "raw", lines.append)
    assert path == tmp_path / "raw" / "breastmnist.npz"
    assert path.read_bytes() == CONTENT
    assert lines == [f"breastmnist.npz: 1,280,000 bytes from {file.address}, licence CC BY 4.0"]
    assert download(file, tmp_path / "raw", lines.append) == path
    assert lines[1:] == [f"already here: {path}"]
    assert server.asked == ["/files/breastmnist.npz"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"content": CONTENT[::-1]}, r"with the MD5 [0-9a-f]{32}, expected .* Nothing was kept"),
        ({"sent": 1000}, r"connection ended after 1,000 of 1,280,000 bytes\)\. Try again"),
        ({"sent": 0}, r"connection ended after 0 of 1,280,000 bytes"),
        ({"status": 404}, r"cannot be downloaded \(the server answers 404\).* by hand into"),
    ],
)
def test_what_is_damaged_or_cut_off_leaves_nothing_and_can_be_repeated(
    change, message, file, server, tmp_path
):
    before = {name: getattr(server, name) for name in change}
    vars(server).update(change)
    with pytest.raises(BenchmdError, match=message):
        download(file, tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []
    vars(server).update(before)
    assert download(file, tmp_path, lambda _: None).read_bytes() == CONTENT


def test_an_answer_without_end_is_cut_off(file, server, tmp_path, monkeypatch):
    server.says_size = False
    monkeypatch.setattr("benchmd_ray.data.download.MOST_BYTES", len(CONTENT) - 1)
    with pytest.raises(BenchmdError, match="it sends more than the expected"):
        download(file, tmp_path / "raw", lambda _: None)
    assert not list((tmp_path / "raw").iterdir())


def test_no_network_is_said_with_what_to_do(file, tmp_path):
    absent = replace(file, address="http://127.0.0.1:9/breastmnist.npz")
    with pytest.raises(BenchmdError, match=r"cannot be downloaded \(.*refused.*\)\. Try again, or"):
        download(absent, tmp_path / "raw", lambda _: None)
    assert not (tmp_path / "raw").exists()


def test_another_file_of_that_name_is_kept_and_nothing_is_downloaded(file, server, tmp_path):
    other = tmp_path / "breastmnist.npz"
    other.write_text("mine")
    with pytest.raises(BenchmdError, match=r"is not the file of .*: move it, or download"):
        download(file, tmp_path, lambda _: None)
    assert (other.read_text(), server.asked) == ("mine", [])


def test_a_disk_without_space_is_said_before_anything_is_read(file, tmp_path, monkeypatch):
    usage = namedtuple("Usage", "free")
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda _: usage(1000))
    with pytest.raises(BenchmdError, match=r"1,280,000 bytes are needed in .*, 1,000 are free"):
        download(file, tmp_path / "raw", lambda _: None)
    assert not (tmp_path / "raw").exists()
    (tmp_path / "a file").write_text("")
    with pytest.raises(BenchmdError, match="a file is not a folder that can be written"):
        download(file, tmp_path / "a file" / "raw", lambda _: None)


def test_cards_of_medmnist_state_their_file_and_others_none():
    medmnist = [card for card in cards.cards().values() if card.collection == "medmnist"]
    assert len(medmnist) > 18
    for card in medmnist:
        file = open_file(card)
        name, size = card.name.rpartition("-")[::2]
        assert file.name == (f"{name}_{size}.npz" if size.isdecimal() else f"{card.name}.npz")
        assert file.address == f"https://zenodo.org/records/10519652/files/{file.name}"
        assert file.md5 == card.layouts["version-3"].md5
    with pytest.raises(BenchmdError, match=r"ptb-xl cannot be downloaded: .*catalog show ptb-xl"):
        open_file(dataset_card("ptb-xl"))
    hidden = replace(
        dataset_card("breastmnist"), download=("https://zenodo.org/files/%2e%2e%2f.npz",)
    )
    with pytest.raises(BenchmdError, match="not a plain name"):
        open_file(hidden)


def test_the_command_names_the_build_that_follows(file, server, tmp_path, monkeypatch):
    card = dataset_card("breastmnist")
    layouts = {"version-3": replace(card.layouts["version-3"], md5=file.md5)}
    changed = replace(card, download=(server.address,), layouts=layouts)
    monkeypatch.setattr(cards, "dataset_card", lambda name: changed)
    out = tmp_path / "raw"
    result = CliRunner().invoke(main, ["catalog", "get", "breastmnist", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].endswith("licence CC BY 4.0")
    assert f"--raw {out} --out catalogs/breastmnist" in result.stdout.splitlines()[-1]
