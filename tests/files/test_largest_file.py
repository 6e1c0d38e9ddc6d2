"""What reaches the largest size of a file, a quota or the end of a disk says so and leaves nothing.

A child process is given a limit of its own (`RLIMIT_FSIZE`), which its libraries meet in earnest.
"""

import errno
import io
import json
import os
import subprocess
import sys

import pytest

from benchmd_ray.cli.group import _of_system
from benchmd_ray.errors import BenchmdError, DiskFull
from benchmd_ray.files.atomic import append_text, full_number, removed_on_failure, replacing

LIMIT = 20_000
WRITERS = """
import io, json, os, resource, sys, tarfile
from pathlib import Path
import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file
matplotlib.use("Agg")
import matplotlib.pyplot as plt
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import append_text, replacing

noise = np.random.default_rng(0).random(100_000)
table = pa.table({"a": noise})
figure = plt.figure()
plt.imshow(noise.reshape(250, 400))

def stream(path):
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)

def array(path):
    with path.open("wb") as file:
        np.save(file, noise)

def archive(path):
    with tarfile.open(path, "w:") as file:
        about = tarfile.TarInfo("x")
        about.size = noise.nbytes
        file.addfile(about, io.BytesIO(noise.tobytes()))

def silent(path):
    try:
        path.write_bytes(noise.tobytes())
    except OSError:
        pass
    raise RuntimeError("stream write failed") from None

WRITERS = {
    "bytes": lambda path: path.write_bytes(noise.tobytes()),
    "text": lambda path: path.write_text("x" * 100_000),
    "table": lambda path: pq.write_table(table, path),
    "stream": stream,
    "array": array,
    "tensors": lambda path: save_file({"x": noise}, path),
    "png": lambda path: figure.savefig(path, format="png", dpi=300),
    "svg": lambda path: figure.savefig(path, format="svg"),
    "archive": archive,
    "silent": silent,
}
folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
said = {}
for name, write in WRITERS.items():
    try:
        with replacing(folder / name) as partial:
            write(partial)
        said[name] = "written"
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
for name, count in (("log", 3), ("log", 100_000)):
    try:
        append_text(folder / name, "y" * count)
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps([said, sorted(os.listdir(folder))]))
"""
NAMES = "bytes text table stream array tensors png svg archive silent log".split()


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """What each writer said in a process of short files, and which files were there at the end."""
    folder = tmp_path_factory.mktemp("limited")
    command = [sys.executable, "-c", WRITERS, str(folder), str(LIMIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said, files = json.loads(done.stdout)
    return folder, said, files


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_size_of_a_file_is_a_clear_error(limited, name):
    folder, said, _ = limited
    start = f"DiskFull: no space left within the largest size of a file while writing {folder}/"
    assert said[name].startswith(start), said[name]
    assert said[name].endswith("raise it (`ulimit -f`) and run the command again.")


def test_nothing_half_written_stays(limited):
    folder, _, files = limited
    assert files == ["log"]
    assert (folder / "log").read_text() == "yyy"


def test_a_log_keeps_its_lines_where_the_disk_is_full(tmp_path, monkeypatch):
    path, real = tmp_path / "log", io.FileIO.write
    append_text(path, "one\n")

    class Full(io.FileIO):
        def write(self, data):
            if self.seek(0, os.SEEK_END) > 5:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(self, bytes(data)[:2])

    monkeypatch.setattr(os, "fdopen", lambda number, mode, buffering: Full(number, "r+"))
    with pytest.raises(DiskFull, match=r"no space left while writing .*log \("):
        append_text(path, "two\n")
    monkeypatch.undo()
    append_text(path, "three\n")
    assert path.read_text() == "one\nthree\n"


def write_half(path, error):
    with replacing(path) as partial:
        partial.write_text("half")
        raise error


class SafetensorError(Exception):
    """As the library's: an error of its own with the system's in its text."""


def caused(error, by):
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.EDQUOT, "Disk quota exceeded"), errno.EDQUOT),
        (SafetensorError("I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (RuntimeError("write failed: errno = 122, 'Disk quota exceeded'"), errno.EDQUOT),
        (OSError("1000 requested and 84 written"), errno.ENOSPC),
        (caused(RuntimeError("close failed"), OSError(errno.EFBIG, "File too large")), errno.EFBIG),
        (PermissionError(errno.EACCES, "no"), 0),
        (ValueError("3 requested"), 0),
        (BenchmdError("the bucket says: No space left on device"), 0),
        (KeyboardInterrupt("No space left on device"), 0),
    ],
)
def test_a_full_disk_is_known_by_number_text_and_cause(tmp_path, error, number):
    assert full_number(error) == number
    expected = DiskFull if number else type(error)
    with pytest.raises(expected) as raised:
        write_half(tmp_path / "file", error)
    assert not list(tmp_path.iterdir())
    assert number or raised.value is error


def test_the_error_names_the_file_that_was_written(tmp_path):
    with (
        pytest.raises(DiskFull, match=r"while writing .*/inner "),
        removed_on_failure(tmp_path / "half", tmp_path / "outer"),
        replacing(tmp_path / "inner"),
    ):
        raise OSError(errno.EFBIG, "File too large")


def test_a_command_says_what_to_do_where_a_file_has_no_name():
    said = _of_system(OSError(errno.EFBIG, "File too large"))
    assert said == (
        "[Errno 27] File too large: raise it (`ulimit -f`), then start the same command again."
    )
    assert "free some space" in _of_system(OSError(errno.ENOSPC, "full", "/a/b"))
