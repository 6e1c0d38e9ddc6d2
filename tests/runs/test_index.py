"""What the index of a store may save, and what it must not."""

import json
import os
import threading

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from stores import make_transfer

from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import write_json
from benchmd_ray.files.integrity import hashed, line
from benchmd_ray.runs import index as indexes
from benchmd_ray.runs import store as stores
from benchmd_ray.runs.index import Index, index_path, indexed
from benchmd_ray.runs.store import read_run, read_stores

SEEDS = range(3)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store whose files are indexed at once."""
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(indexes, "LEAST", 1)
    monkeypatch.setattr(indexes, "SETTLED_NS", 0)
    for seed in SEEDS:
        make_transfer(tmp_path / "runs", seed=seed)
    return tmp_path / "runs"


@pytest.fixture
def read(monkeypatch):
    """Names of the runs whose ``run.json`` is read."""
    names, whole = [], stores._description

    def reading(folder):
        names.append(folder.name)
        return whole(folder)

    monkeypatch.setattr(stores, "_description", reading)
    return names


def listing(store):
    result = CliRunner().invoke(main, ["list", str(store), "--json"])
    assert result.exit_code == 0
    return json.loads(result.output)


def test_unchanged_runs_are_read_once_and_listed_alike(store, read):
    first = listing(store)
    assert len(read) == len(first["runs"]) == len(SEEDS)
    read.clear()
    assert listing(store) == first
    assert read == []
    assert [run.done["seconds"] for run in read_stores([store]).found] == [
        json.loads((run.folder / "done.json").read_text())["seconds"]
        for run in read_stores([store]).found
    ]


def test_times_before_1970_keep_no_store_from_being_listed(store, read):
    os.utime(next(store.glob("*/run.json")), (-10, -10))
    for _ in range(2):
        assert len(listing(store)["runs"]) == len(SEEDS)
    assert len(read) == 2 * len(SEEDS)  # there is no index


def test_a_single_run_is_read_without_the_index(store, monkeypatch):
    listing(store)
    monkeypatch.setattr(indexes, "read_table", None)
    assert read_run(next(store.glob("*/run.json")).parent).finished


def test_one_more_run_is_the_only_one_that_is_read(store, read):
    listing(store)
    read.clear()
    added = make_transfer(store, seed=7)
    assert len(listing(store)["runs"]) == len(SEEDS) + 1
    assert read == [added.folder.name]


def test_a_file_that_was_written_in_place_is_read_again_whatever_its_time(store):
    listing(store)
    path = read_stores([store]).found[0].folder / "run.json"
    before = os.stat(path)
    content = path.read_bytes().replace(b'"clean"', b'"dirty"', 1)
    with path.open("r+b") as file:  # as long, and of the same inode
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.stat(path)
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        *(before.st_size, before.st_mtime_ns, before.st_ino),
    )
    assert ["SHA-256 differs" in note for note in listing(store)["damaged"]] == [True]


def test_a_removed_run_is_not_listed_and_leaves_the_index(store):
    listing(store)
    folder = read_stores([store]).found[0].folder
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()
    make_transfer(store, seed=7)
    assert folder.name not in str(listing(store))
    names = pq.read_table(index_path(store))["file"].to_pylist()
    assert not any(name.startswith(folder.name) for name in names)


def test_scores_of_metrics_that_grew_are_of_all_of_them(store):
    run = read_stores([store]).found[0]
    first = {row["run"]: row["validation_score"] for row in listing(store)["runs"]}
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write(line({"done": 99, "loss": 0.1, "validation_auroc": 0.999}))
    (row,) = [row for row in listing(store)["runs"] if row["run"] == str(run.folder)]
    assert first[str(run.folder)] < row["validation_score"] == 0.999
    assert row["at"] == 99


@pytest.mark.parametrize("damage", ["cut off", "changed", "other code", "no file"])
def test_an_index_that_cannot_be_used_is_made_anew(store, read, damage, monkeypatch):
    first = listing(store)
    path, content = index_path(store), index_path(store).read_bytes()
    if damage == "cut off":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        middle = len(content) // 3
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage == "other code":
        monkeypatch.setattr(indexes, "_code", lambda: b"another")
    else:
        path.unlink()
    read.clear()
    assert listing(store) == first
    assert len(read) == len(SEEDS)
    read.clear()
    assert listing(store) == first
    assert read == []


def test_a_store_cannot_bring_its_index_along(store, read):
    listing(store)
    (store / index_path(store).name).write_bytes(index_path(store).read_bytes())
    index_path(store).unlink()
    read.clear()
    listing(store)
    assert len(read) == len(SEEDS)
    assert not index_path(store).is_relative_to(store)


def test_a_damaged_run_is_not_recorded(store, read):
    path = read_stores([store]).found[0].folder / "run.json"
    content = json.loads(path.read_bytes())
    changed = {**content, "determinants": {**content["determinants"], "catalog": "another"}}
    path.write_text(json.dumps(hashed({k: v for k, v in changed.items() if k != "sha256"})))
    for _ in range(2):
        read.clear()
        assert ["folder ends in" in note for note in listing(store)["damaged"]] == [True]
        assert read == [path.parent.name]


def test_files_that_have_just_changed_are_not_indexed(store, read, monkeypatch):
    monkeypatch.setattr(indexes, "SETTLED_NS", 10**12)
    for _ in range(2):
        read.clear()
        listing(store)
        assert len(read) == len(SEEDS)


def test_few_new_entries_are_not_worth_writing(store, monkeypatch):
    monkeypatch.setattr(indexes, "LEAST", 1000)
    listing(store)
    assert not index_path(store).exists()


def test_of_several_that_write_at_once_one_remains_and_it_is_right(store, read):
    first = listing(store)

    def again():
        for _ in range(5):
            index = Index()
            read_stores([store], index)
            for entries in index._stores.values():
                entries.new = indexes.LEAST
            index.save()

    threads = [threading.Thread(target=again) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert listing(store) == first  # their hash may be that of another
    read.clear()
    assert listing(store) == first
    assert read == []
    assert not [path for path in index_path(store).parent.iterdir() if "partial" in path.name]


def test_a_cache_that_cannot_be_written_costs_only_time(store, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(indexes, "replacing_hashed", full)
    assert len(listing(store)["runs"]) == len(SEEDS)
    assert not index_path(store).exists()


def fails(store):
    with indexed() as index:
        read_stores([store], index)
        raise BenchmdError("of the caller")


def test_an_error_of_the_caller_does_not_lose_what_was_read(store):
    with pytest.raises(BenchmdError, match="of the caller"):
        fails(store)
    assert index_path(store).is_file()


@pytest.mark.parametrize("levels", [90, 150, 230, 300])
@pytest.mark.parametrize("name", ["versions", "settings"])
def test_deeply_nested_values_are_listed_alike_every_time(store, name, levels):
    folder = next(store.glob("*/run.json")).parent
    content = json.loads((folder / "run.json").read_text())
    del content["sha256"]
    nested = {}
    for _ in range(levels):
        nested = {"a": nested}
    content[name]["encoder"] = {"options": nested}
    write_json(folder / "run.json", hashed(content))
    first = listing(store)
    assert len(first["runs"]) == len(SEEDS) - (name == "settings")
    assert [folder.name in why for why in first["damaged"]] == [True] * (name == "settings")
    assert listing(store) == first


def test_a_run_nested_deeper_than_python_follows_is_damaged(store):
    path = next(store.glob("*/run.json"))
    path.write_text(path.read_text().replace("{", '{"a": ' + "[" * 5000 + "]" * 5000 + ",", 1))
    for _ in range(2):
        (why,) = listing(store)["damaged"]
        assert "is not valid JSON" in why
