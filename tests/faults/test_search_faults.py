"""Searches on S3 over several machines, which lose nodes, their driver or their storage."""

import os
import time
from pathlib import Path

import psutil
import pytest
from json_lines import json_lines
from losing import LONG, calmly, evaluated, freeze, lose

from benchmd_ray.runs.places import store_folder
from benchmd_ray.service.watching import watched
from benchmd_ray.storage.bucket import open_bucket
from benchmd_ray.tuning.records import read_searches

# Two simulated clusters at once are too much for two cores.
pytestmark = [pytest.mark.ray, pytest.mark.nightly, pytest.mark.xdist_group("faults")]

SMALL = """
encoder: tiny
transfer: {epochs: 10, batch_size: 16}
execution: {device: cpu, checkpoint_every: 1}
"""
SPACE = """
transfer.optimiser.lr: {kind: log float, low: 1.0e-5, high: 1.0e-1, default: 1.0e-4}
transfer.label_smoothing: {kind: float, low: 0.0, high: 0.3, default: 0.0}
"""
OUTAGE_SECONDS = 60.0
AHEAD = """
import time
usual = time.time
time.time = lambda: usual() + 3600
"""
TIMES = ["seconds", "device_hours", "started", "finished"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    (folder / "small.yaml").write_text(SMALL)
    (folder / "space.yaml").write_text(SPACE)
    return folder


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """Environment of another machine: a driver hands its `BENCHMD_CACHE` on to all nodes."""
    token = str(Path.home() / ".ray" / "auth_token")  # all of them are of one cluster

    def machine(name):
        home = str(tmp_path_factory.mktemp(name))
        return {"BENCHMD_CACHE": "", "HOME": home, "RAY_AUTH_TOKEN_PATH": token}

    return machine


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    """Environment of a process whose clock is an hour ahead."""
    folder = tmp_path_factory.mktemp("ahead")
    (folder / "sitecustomize.py").write_text(AHEAD)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def cluster(storage, start_cluster, caches):
    """A head without CPUs and three nodes with one each, that share no folder for their work."""
    nodes = start_cluster(0)
    for number in range(3):
        nodes.add(num_cpus=1, env_vars=caches(f"node-{number}"))
    yield nodes
    nodes.stop()


@pytest.fixture(scope="module")
def search(ecg_catalogs, small):
    """Arguments of the command: what it finds depends on no order.

    Of fewer than three trials none is stopped early.
    """
    options = [f"--catalog={ecg_catalogs['ptb-xl'].path}", "--technique=scratch"]
    options += ["--trials=2", "--evaluations=8", "--sampler=random", "--search-only"]
    files = [f"--settings={small / 'small.yaml'}", f"--space={small / 'space.yaml'}"]
    return ["tune", *options, "--setting=finetune-small", *files]


@pytest.fixture(scope="module")
def reference(search, tmp_path_factory):
    """The trials of the search in a folder, undisturbed, and what it chose."""
    store = tmp_path_factory.mktemp("undisturbed")
    calmly(*search, "--store", store, "--at-once", 1)
    return found(store)


def found(store):
    """Trials but their times, and the result but its costs, of the only search."""
    (record,) = read_searches([store]).found
    assert record.is_finished
    names = ("best", "value", "first_value", "optimism", "folds", "counts", "chosen_settings")
    return record.trials.drop(columns=TIMES), {name: getattr(record, name) for name in names}


def require_same(store, reference):
    trials, result = found(store)
    expected, chosen = reference
    assert result == chosen
    for name in expected:
        assert trials[name].equals(expected[name]), name


def lines(store, event):
    """Lines of the logs of all machines that searched."""
    return [x for x in json_lines(store / "log.jsonl") if x["event"] == event]


def mirror(monkeypatch, cache, address="s3://lab/study"):
    """The mirror that a machine has of the store."""
    for name, value in cache.items():
        monkeypatch.setenv(name, value)
    return store_folder(address)


def archives(address):
    return [key for key in open_bucket(address).objects("searches/") if key.endswith(".tar")]


def test_a_search_loses_a_node_and_twice_its_driver_and_finds_the_same(
    cluster, command, search, reference, caches, ahead, monkeypatch
):
    place = "s3://lab/study"
    options = (*search, "--store", place, "--address", cluster.address)
    first_cache, second_cache = caches("driver"), caches("other-driver")
    first = command(*options, **first_cache)
    first.until("an evaluation", lambda: evaluated(place), LONG)
    node, _ = first.until("a trial at work", lambda: freeze(cluster, "ImplicitFunc"), LONG)
    lose(cluster, node)
    mirrored = mirror(monkeypatch, first_cache)
    first.until("the loss", lambda: lines(mirrored, "trial lost"), LONG)
    first.kill()
    cluster.add(num_cpus=1, env_vars=caches("a-node-that-came"))
    before = evaluated(place)
    second = command(*options, **first_cache)  # at once, where the first one was
    second.until("more", lambda: evaluated(place) > before, LONG)
    second.kill()
    third = command(*options, **second_cache, **ahead)
    assert third.wait(LONG) == 1  # by the server's clock the second one's lease is new
    assert "another machine is working on" in third.output
    _free(place)
    third = command(*options, **second_cache, **ahead)
    assert third.wait(LONG) == 0, third.output
    require_same(mirror(monkeypatch, second_cache), reference)
    assert not archives(place)


def _free(place):
    """Remove the lease of the only search, which would be free after some minutes."""
    bucket = open_bucket(place)
    (key,) = [key for key in bucket.objects("searches/") if key.endswith("/lease.json")]
    bucket.delete([key])


def test_storage_away_for_a_minute_delays_a_search(
    cluster, command, storage, search, reference, caches, monkeypatch
):
    place, cache = "s3://lab/outage", caches("driver")
    run = command(*search, "--store", place, "--address", cluster.address, **cache)
    run.until("an evaluation", lambda: evaluated(place), LONG)
    storage.away()
    time.sleep(OUTAGE_SECONDS)
    storage.back()
    assert run.wait(2 * LONG) == 0, run.output
    require_same(mirror(monkeypatch, cache, place), reference)


def test_two_drivers_share_no_search_and_others_follow_it(
    cluster, command, search, caches, ahead, monkeypatch
):
    """Clocks of machines differ: the server's alone says how old a lease is."""
    place, first_cache, second_cache = "s3://lab/two", caches("one"), caches("two")
    options = (*search, "--store", place, "--address", cluster.address)
    first = command(*options, **first_cache)
    first.until("an evaluation", lambda: evaluated(place), LONG)
    driver = psutil.Process(first.process.pid)
    driver.suspend()  # it is not to end meanwhile
    second = command(*options, **second_cache, **ahead)
    assert second.wait(LONG) == 1
    driver.resume()
    assert "another machine is working on the search s3://lab/two/searches/tune-" in second.output
    # Another search of the same store, side by side.
    other = command(*options, "--seed=1", **second_cache)
    assert other.wait(LONG) == 0, other.output
    assert first.wait(LONG) == 0, first.output
    seen = mirror(monkeypatch, caches("reader"), place)
    assert "\n".join(watched([seen])).count("trials (") == 2
    assert len(read_searches([seen]).found) == 2
