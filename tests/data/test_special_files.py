"""Pipes, sockets and devices among raw files: whoever opens a pipe waits for ever."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kinds import SIGNALS
from PIL import Image

from benchmd_ray.benchmarks.touchstone.masks import read_labels
from benchmd_ray.data.card_files import Files
from benchmd_ray.data.datasets import any_file
from benchmd_ray.data.guess import guessed
from benchmd_ray.data.raw import walk
from benchmd_ray.data.readers import edf
from benchmd_ray.data.readers.metaimage import mhd_fields
from benchmd_ray.data.records import RecordError

KINDS = {"pipe": "is a pipe", "socket": "a socket or a device", "device": "a socket or a device"}
ENDINGS = [
    (name, end) for name in ("ecg", "cxr", "ldct") for end in any_file.suffixes(SIGNALS[name])
]


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """Ends a test that waits."""

    def stop(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(4)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def special(path: Path, kind: str) -> Path:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        before = Path.cwd()
        os.chdir(path.parent)  # as paths of sockets are short
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(before)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_no_reader_opens_one(tmp_path, kind):
    for name, end in ENDINGS:
        path = special(tmp_path / f"{name}{end}", kind)
        with pytest.raises(RecordError, match=KINDS[kind]):
            any_file.read_file(path, SIGNALS[name], Files())
    for read, end in ((mhd_fields, "m"), (edf.read_annotations, "e")):
        with pytest.raises(RecordError, match=KINDS[kind]):
            read(special(tmp_path / end, kind))
    for end in (".nii", ".nrrd"):
        with pytest.raises(RecordError, match=KINDS[kind]):
            read_labels(special(tmp_path / f"labels{end}", kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_guess_passes_over_them(tmp_path, kind):
    for label in "ab":
        (tmp_path / label).mkdir()
        special(tmp_path / label / "0.png", kind)
        special(tmp_path / label / "0.edf", kind)
        pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / label / "1.png")
    special(tmp_path / "t.csv", kind)
    guess = guessed(tmp_path)
    assert guess.classes == ["a", "b"]
    assert guess.files == {"levels": ["class"]}


def test_a_link_that_leads_nowhere_is_a_file_and_one_to_a_folder_is_followed(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.png").touch()
    (tmp_path / "raw" / "lost.png").symlink_to(tmp_path / "none.png")
    (tmp_path / "raw" / "more").symlink_to(tmp_path / "other")
    (tmp_path / "raw" / "itself").symlink_to(tmp_path / "raw" / "itself")
    (tmp_path / "other" / "back").symlink_to(tmp_path / "raw")
    found = [(place.name, names) for place, names in walk(tmp_path / "raw", "*.png")]
    assert found == [("raw", ["lost.png"]), ("more", ["x.png"])]
    assert list(walk(tmp_path / "none", "*")) == []
