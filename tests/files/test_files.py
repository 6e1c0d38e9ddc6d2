import errno
import json
import shutil
import subprocess
import sys
import tracemalloc

import pytest

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import (
    MAX_VALUES,
    TEMPORARY,
    digest,
    locked,
    parse_json,
    remove_partial,
    replacing,
    sha256,
    without_home,
    write_json,
)
from benchmd_ray.files.integrity import MAX_JSON_BYTES, Damaged, read_json, read_line


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "file"
    with replacing(path) as partial:
        partial.write_text("half")
        assert not path.exists()
        assert partial.parent == path.parent
        assert partial.name.startswith(TEMPORARY)
        partial.write_text("whole")
    assert path.read_text() == "whole"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def write_and_fail(path, error, folder=False):
    """Fail with ``error`` when ``path``, a file or a folder, is half-written."""
    with replacing(path) as partial:
        if folder:
            partial.mkdir()
            partial = partial / "half"
        partial.write_text("half")
        raise error


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_leaves_the_old_and_nothing_half_written(tmp_path, folder, error):
    path = tmp_path / "kept"
    path.write_text("old")
    with pytest.raises(error):
        write_and_fail(path, error(), folder)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_with_what_to_do(tmp_path, number):
    message = r"no space left .*big \([\d,]+ bytes free\).* run the command again"
    with pytest.raises(BenchmdError, match=message):
        write_and_fail(tmp_path / "big", OSError(number, "full"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("free", "named"), [(2**19, True), (2**30, False)])
def test_a_library_that_fails_on_a_full_disk_is_understood(tmp_path, monkeypatch, free, named):
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    error = RuntimeError("stream write failed")
    with pytest.raises(BenchmdError if named else RuntimeError):
        write_and_fail(tmp_path / "big", error)
    assert not list(tmp_path.iterdir())


def test_other_errors_of_the_system_pass_as_they_are(tmp_path):
    with pytest.raises(PermissionError), replacing(tmp_path / "file"):
        raise PermissionError(errno.EACCES, "no")


def test_what_an_interrupted_process_left_is_removed(tmp_path):
    (tmp_path / "kept").write_text("kept")
    (tmp_path / f"{TEMPORARY}1-file").write_text("half")
    (tmp_path / f"{TEMPORARY}1-folder").mkdir()
    (tmp_path / f"{TEMPORARY}1-folder" / "half").write_text("half")
    remove_partial(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_json_is_written_whole(tmp_path):
    write_json(tmp_path / "a.json", {"µ": [1, None]})
    before = (tmp_path / "a.json").read_text("utf-8")
    assert json.loads(before) == {"µ": [1, None]}
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"wrong": object()})
    assert (tmp_path / "a.json").read_text("utf-8") == before
    assert len(list(tmp_path.iterdir())) == 1


def test_sha256_is_the_standard_one(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256(tmp_path / "abc") == expected


def test_equal_values_have_equal_digests():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest([1, 2]) != digest([2, 1])


def test_a_lock_excludes_another_holder_and_is_freed(tmp_path):
    path = tmp_path / "new" / ".lock"
    with locked(path, "the run r"):
        with (
            pytest.raises(BenchmdError, match=r"another process is working on the run r"),
            locked(path, "the run r"),
        ):
            pass
        with pytest.raises(BenchmdError), locked(path, "the run r"):
            pass  # the refused holder did not free it
    with locked(path, "the run r"):
        pass


def test_an_error_frees_the_lock(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path / ".lock", "it"):
        raise KeyError("stop")
    with locked(tmp_path / ".lock", "it"):
        pass


def test_a_killed_process_frees_its_lock(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from benchmd_ray.files.atomic import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), 'it'):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    path = tmp_path / ".lock"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"held\n"
            with pytest.raises(BenchmdError, match="another process"), locked(path, "it"):
                pass
        finally:
            process.kill()
    with locked(path, "it"):
        pass


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/home/ana/runs is full", "~/runs is full"),
        ("no file '/home/ana'", "no file '~'"),
        ("/home/ana", "~"),
        ("/home/anabel/runs", "/home/anabel/runs"),
        ("/home/ana-2", "/home/ana-2"),
        ("/mnt/home/ana/runs", "/mnt/home/ana/runs"),
    ],
)
def test_the_home_folder_is_told_as_a_tilde(monkeypatch, text, told):
    monkeypatch.setenv("HOME", "/home/ana")
    assert without_home(text) == told
    monkeypatch.setenv("HOME", "/")
    assert without_home(text) == text


@pytest.mark.parametrize("item", ["[]", "{}", '{"a":[]}', "0"])
def test_json_of_very_many_values_is_refused_before_it_fills_the_memory(tmp_path, item):
    path, most = tmp_path / "run.json", MAX_JSON_BYTES // (len(item) + 1) - 10
    path.write_text('{"a": [' + ",".join([item] * most) + "]}")
    assert 2**23 < path.stat().st_size < MAX_JSON_BYTES
    tracemalloc.start()
    with pytest.raises(
        Damaged, match=r"run\.json is damaged: .*about [\d,]+ values, expected at mo"
    ):
        read_json(path, "Remove it.")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * MAX_JSON_BYTES  # its own bytes
    assert read_line('{"a": [' + ",".join(["[]"] * (MAX_VALUES + 1)) + "]}") is None


def test_json_of_many_values_is_read(tmp_path):
    content = {"a": [[n, {}] for n in range(100_000)], "b": ",[{" * 1000}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json", "") == content
    assert parse_json(json.dumps(content)) == content
    with pytest.raises(ValueError, match="Expecting value"):
        parse_json("")
