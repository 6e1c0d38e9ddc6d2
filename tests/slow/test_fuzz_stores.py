"""Damaged files of stores and catalogs: they are refused or read, and nothing else happens.

``BENCHMD_FUZZ_INPUTS`` sets how many inputs each kind of file gets (15).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_stores import KEPT, KINDS

from benchmd_ray.data.resident import resident_signals
from benchmd_ray.report.scored import kept

INPUTS = int(os.environ.get("BENCHMD_FUZZ_INPUTS", "15"))
ALWAYS_READ = ("kept computation", "metrics.jsonl", "history.jsonl", "hardware.jsonl")
"""Kinds of which damage is made anew, or skipped line by line."""
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def whole(untrusted, ecg_catalogs, tmp_path_factory):
    """A store with a catalog and a cache in it, whose files are mutated in copies."""
    folder = tmp_path_factory.mktemp("fuzzed")
    store = shutil.copytree(untrusted, folder, dirs_exist_ok=True) / "runs"
    source = ecg_catalogs["ptb-xl"]
    shutil.copytree(source.path, store / "catalog")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMD_CACHE", str(store / "cache"))
        resident_signals(source, "validation")
        kept(*KEPT)
    return store


@pytest.fixture(scope="module")
def process(whole: Path) -> Iterator[subprocess.Popen[str]]:
    """Reads mutated files, job after job."""
    command = [sys.executable, str(Path(__file__).with_name("fuzz_stores.py")), str(whole)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as started:
        yield started
        started.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_refused_or_read(process, kind, record_property):
    print(json.dumps([kind, zlib.crc32(kind.encode()), INPUTS]), file=process.stdin, flush=True)
    result = json.loads(process.stdout.readline())
    assert "ended" not in result, f"the process ended with {result['ended']}"
    assert result["faults"] == []
    outcomes = result["outcomes"]
    assert sum(outcomes.values()) == INPUTS
    assert outcomes.keys() <= {"refused", "read"}
    assert kind in ALWAYS_READ or outcomes.get("refused", 0) > INPUTS / 20
    record_property("outcomes", {**outcomes, "slowest_seconds": result["slowest"]})
