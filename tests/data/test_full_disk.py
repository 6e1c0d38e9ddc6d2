"""Builds on a full disk end with what to do, leave nothing half-written, and resume."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray

from benchmd_ray.cluster import connection as cluster
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.errors import BenchmdError

FULL = """
import errno, os, pathlib

written = pathlib.Path.write_bytes

def write_bytes(path, data):
    if path.name.endswith(os.environ["FULL"]):
        written(path, data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")
    return written(path, data)

if "FULL" in os.environ:
    pathlib.Path.write_bytes = write_bytes
"""
"""Imported by every process that Python starts: writing some files finds the disk full."""


@pytest.fixture(scope="module")
def whole(synthetic_photos, build_once, tmp_path_factory):
    """The catalog that no full disk met."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return build_once("aptos-2019", synthetic_photos["aptos-2019"], out)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["-00000.parquet", "manifest.json"])
def test_a_full_disk_ends_a_build_that_resumes(synthetic_photos, whole, tmp_path, ending):
    """Workers write shards, the command its manifest."""
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "sitecustomize.py").write_text(FULL)
    raw, out = synthetic_photos["aptos-2019"], tmp_path / "out"
    command = [sys.executable, "-m", "benchmd_ray.cli", "catalog", "build", "aptos-2019"]
    command += ["--raw", str(raw), "--out", str(out), "--allow-missing"]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = str(tmp_path / "patch")
    failed = subprocess.run(
        command, env=environment | {"FULL": ending}, capture_output=True, text=True
    )
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    *_, said = failed.stderr.splitlines()
    assert said.startswith(f"error: no space left while writing {out}")
    assert said.endswith("free some space and run the command again.")
    assert not (out / "manifest.json").exists()
    assert not list(out.rglob(".partial-*"))
    resumed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert open_catalog(out).digest == whole.digest


@pytest.mark.parametrize(
    ("free", "message"),
    [
        (100, r"cannot start Ray on this machine: no space left in .*RAY_TMPDIR.* command again"),
        (2**40, "cannot start Ray on this machine: the node timed out"),
    ],
)
def test_ray_that_does_not_start_for_want_of_space_says_so(monkeypatch, tmp_path, free, message):
    def init(**_):
        raise Exception("the node timed out")

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(BenchmdError, match=message):
        cluster._start(None, 1)
