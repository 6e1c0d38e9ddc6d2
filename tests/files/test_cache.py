"""What a machine keeps and may lose: listed, and pruned by last use."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from click.testing import CliRunner

from benchmd_ray.cli import main
from benchmd_ray.data import resident
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import locked
from benchmd_ray.files.cache import LIMIT, entries, prune
from benchmd_ray.files.integrity import hash_path, write_hash


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with three files of a million bytes, last used three, two and one days ago."""
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path))
    (tmp_path / "report").mkdir()
    for days, name in ((3, "old-train.npy"), (2, "report/x.parquet"), (1, "new-columns.parquet")):
        path = tmp_path / name
        path.write_bytes(bytes(1_000_000))
        write_hash(path)
        for each in (path, hash_path(path)):
            os.utime(each, (time.time() - days * 86400,) * 2)
    (tmp_path / "stores" / "s3").mkdir(parents=True)
    (tmp_path / "stores" / "s3" / "run.npy").write_bytes(bytes(9_000_000))
    return tmp_path


EVERY = ("old-train.npy", "x.parquet", "new-columns.parquet")


def names(found):
    return [entry.path.name for entry in found]


@pytest.mark.parametrize(
    ("limit", "gone"),
    [
        (3e6, []),
        (2.5e6, ["old-train.npy"]),
        (1e6, ["old-train.npy", "x.parquet"]),
        (0, ["old-train.npy", "x.parquet", "new-columns.parquet"]),
    ],
)
def test_the_least_recently_used_goes_first(cache, limit, gone):
    assert names(prune(limit, dry_run=True)) == gone
    assert len(entries()) == 3
    assert names(prune(limit)) == gone
    assert names(entries()) == [
        n for n in ("old-train.npy", "x.parquet", "new-columns.parquet") if n not in gone
    ]
    assert not [
        path for path in cache.rglob("*.sha256") if path.name.removesuffix(".sha256") in gone
    ]
    assert (cache / "stores" / "s3" / "run.npy").is_file()


def test_what_is_used_or_written_now_stays(cache):
    from benchmd_ray.files.cache import used

    used(cache / "old-train.npy")
    with locked(cache / "report" / "x.lock", "it"):
        assert names(prune(0)) == ["new-columns.parquet"]
    assert names(prune(0)) == ["x.parquet"]
    assert names(entries()) == ["old-train.npy"]


def test_what_a_search_on_s3_left_goes_once_nobody_works_on_it(cache):
    search, other = cache / "searches" / "s3-lab-search", cache / "searches" / "s3-lab-other"
    for folder in (search, other):
        for name in ("trials/00001/model.pt", "locks/00001"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(500_000 if "model" in name else 0))
            os.utime(path, (time.time() - 4 * 86400,) * 2)
    (other / "fresh").mkdir()
    (other / "fresh" / "00001-005.npy").write_bytes(b"x")  # it is at work
    oldest = entries()[0]
    assert (oldest.path.name, oldest.bytes) == ("s3-lab-search", 500_000)
    with locked(search / "locks" / "00001", "a trial"):
        assert names(prune(0)) == list(EVERY)
    assert names(prune(0)) == ["s3-lab-search"]
    assert not search.exists()
    assert other.is_dir()


def test_decoding_a_split_keeps_within_the_limit(cache, ecg_catalogs, monkeypatch):
    catalog = ecg_catalogs["ptb-xl"]
    monkeypatch.setenv(LIMIT, "0")
    signals = resident.resident_signals(catalog, "train")
    (left,) = entries()  # what was just decoded is in use
    assert left.path.name.endswith("-train.npy")
    assert np.asarray(signals).any()
    os.utime(left.path, (left.used - 60, left.used - 60))
    before = entries()[0].used
    resident.resident_signals(catalog, "train")
    assert entries()[0].used > before


@pytest.mark.parametrize("text", ["much", "-1", "inf", "nan"])
def test_a_limit_that_is_none_is_refused(cache, ecg_catalogs, monkeypatch, text):
    monkeypatch.setenv(LIMIT, text)
    with pytest.raises(BenchmdError, match="expected a number of GiB, 0 or more"):
        resident.resident_signals(ecg_catalogs["ptb-xl"], "test")


def test_commands_list_and_prune(cache):
    listed = CliRunner().invoke(main, ["cache", "list"])
    assert f"{cache}: 3 entries, 3,000,000 bytes" in listed.output
    assert listed.output.index("old-train.npy") < listed.output.index("new-columns.parquet")
    dry = CliRunner().invoke(main, ["cache", "prune", "--keep-gib", "0", "--dry-run"])
    assert "would free 3,000,000 bytes" in dry.output
    done = CliRunner().invoke(main, ["cache", "prune", "--keep-gib", "0"])
    assert "freed 3,000,000 bytes" in done.output
    assert entries() == []
