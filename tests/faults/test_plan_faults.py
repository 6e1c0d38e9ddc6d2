"""Catalogs, plans and searches that lose nodes, their driver, the head or their storage."""

import contextlib
import re
import socket
import time
import urllib.request
from functools import partial

import psutil
import pyarrow.parquet as pq
import pytest
from losing import LONG, calmly, freeze, logged, lose
from stored import runs

from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.files.atomic import sha256
from benchmd_ray.runs.history import read_history
from benchmd_ray.runs.places import store_folder
from benchmd_ray.service.live import units_done
from benchmd_ray.storage.bucket import open_bucket

# Two simulated clusters at once are too much for two cores.
pytestmark = [pytest.mark.ray, pytest.mark.nightly, pytest.mark.xdist_group("faults")]

DATASETS = ("ptb-xl", "georgia", "cpsc")
SMALL = """
encoder: tiny
pretrain: {steps: 80, batch_size: 8}
transfer: {epochs: 2, batch_size: 16}
execution: {device: cpu, log_every: 1, checkpoint_every: 2}
"""
SCRATCH = "ptb-xl/clean/scratch/seed-0/linear"
PRETRAIN = "ptb-xl/clean/mae/seed-0/pretrain"


@pytest.fixture(scope="module")
def cluster(storage, start_cluster):
    """A head without CPUs and two nodes with one each; tests that lose a node replace it."""
    nodes = start_cluster(0, 1, 1)
    yield nodes
    nodes.stop()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("settings") / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def plan(ecg_catalogs, small):
    """Arguments of the command that executes the plan."""
    catalogs = [f"--catalog={ecg_catalogs[name].path}" for name in DATASETS]
    chosen = ["--technique=scratch", "--technique=mae", "--setting=linear", "--tflops=1"]
    return ["run", *catalogs, *chosen, f"--settings={small}"]


@pytest.fixture(scope="module")
def reference(plan, tmp_path_factory):
    """What the plan makes undisturbed: SHA-256 of predictions by run and dataset."""
    store = tmp_path_factory.mktemp("undisturbed")
    calmly(*plan, "--store", store)
    return hashes(store)


def hashes(store):
    return {path.relative_to(store).as_posix(): sha256(path) for path in store.rglob("*.parquet")}


def test_a_node_lost_in_a_build_changes_no_byte_of_the_catalog(
    cluster, command, synthetic_raw, ecg_catalogs, tmp_path
):
    out = tmp_path / "ptb-xl"
    options = ("--raw", synthetic_raw["ptb-xl"], "--out", out, "--allow-missing")
    build = command("catalog", "build", "ptb-xl", *options, "--address", cluster.address)
    node, _ = build.until("a task", lambda: freeze(cluster, "ray::Map(build_row)"), LONG)
    assert not (out / "manifest.json").exists()
    lose(cluster, node)
    assert build.wait(LONG) == 0, build.output
    cluster.add(num_cpus=1)
    assert open_catalog(out).digest == ecg_catalogs["ptb-xl"].digest
    shards = [(path.name, sha256(path)) for path in sorted((out / "shards").iterdir())]
    expected = sorted((ecg_catalogs["ptb-xl"].path / "shards").iterdir())
    assert shards == [(path.name, sha256(path)) for path in expected]


def trials(store):
    """State and AUROC of each trial of the only search."""
    (path,) = store.glob("searches/*/trials.parquet")
    rows = pq.read_table(path).to_pylist()
    return [(row["number"], row["state"], row["value"]) for row in rows]


def test_a_search_loses_a_node_and_finds_the_same(cluster, command, ecg_catalogs, small, tmp_path):
    options = [f"--catalog={ecg_catalogs['ptb-xl'].path}", "--technique=scratch", "--trials=2"]
    options += ["--evaluations=2", "--sampler=random", "--search-only", f"--settings={small}"]
    options += ["--fix=encoder.network", "--fix=transfer.epochs"]
    options += ["--set=transfer.epochs=60"]  # time to be lost in
    store = tmp_path / "runs"
    search = command("tune", *options, "--store", store, "--address", cluster.address)
    search.until("two trials", lambda: len([*store.glob("searches/*/trials/*")]) > 1, LONG)
    node, _ = search.until("one's process", lambda: freeze(cluster, "ImplicitFunc"), LONG)
    time.sleep(1.0)  # for the driver to note an end that came just before
    lose(cluster, node)
    assert search.wait(LONG) == 0, search.output
    cluster.add(num_cpus=1)
    calmly("tune", *options, "--store", tmp_path / "calm", "--at-once", 1)
    assert trials(store) == trials(tmp_path / "calm")
    assert [state for _, state, _ in trials(store)] == ["complete"] * 2
    assert logged(store, "trial lost")
    assert len(logged(store, "trial complete")) == 2
    assert "reason" not in logged(store, "search ended")[0]


def test_storage_that_fails_for_a_while_delays_a_plan(cluster, storage, command, plan, reference):
    store = store_folder("s3://lab/runs")
    run = command(*plan, "--store=s3://lab/runs", "--address", cluster.address)
    run.until("training", partial(trains, store), LONG)
    storage.away()
    run.until("an outage", lambda: logged(store, "item lost"), LONG)
    storage.back()
    assert run.wait(LONG) == 0, run.output
    assert hashes(store) == reference
    published = open_bucket("s3://lab/runs").objects()
    for one in runs([store]):
        assert f"{one.folder.name}/done.json" in published
        ends = [x["event"] for x in read_history(one.folder) if x["event"] == "finished"]
        assert len(ends) <= 1
    assert all("cannot" in line["reason"] for line in logged(store, "item lost"))
    assert logged(store, "plan ended")[0]["failed"] == 0


def scraped(port):
    """Series that a node serves, with the labels that this package gives them."""
    with contextlib.suppress(OSError):
        url = f"http://127.0.0.1:{port}/metrics"
        text = urllib.request.urlopen(url, timeout=5).read().decode()
        return set(re.findall(r"^(ray_benchmd_\w+)", text, re.M))
    return set()


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def trains(store):
    return any(map(units_done, store.glob("pretrain-*")))


def at_work(cluster, store):
    """Freeze the process of an evaluation that has not just ended; True once all of them have."""
    found = freeze(cluster, f"ray::{SCRATCH}/")
    if found is not None:
        time.sleep(1.0)  # for the driver to note an end that came just before
    begun, ended = (len(logged(store, f"item {e}", f"{SCRATCH}/")) for e in ("started", "finished"))
    if found is not None and begun > ended:
        return found
    if found is not None:
        found[1].resume()
    return ended == 2


def lost_in_an_evaluation(cluster, command, plan, folder):
    """Begin the plan and lose a node in an evaluation, whose process may be there for an instant.

    Returns:
        The command at work, its store, the frozen pretraining and the node that is lost.
    """
    for number in range(5):
        store = folder / f"runs-{number}"
        first = command(*plan, "--store", store, "--address", cluster.address)
        first.until("training", partial(trains, store), LONG)
        training, trainer = first.until("training", lambda: freeze(cluster, PRETRAIN), LONG)
        caught = first.until("an evaluation", partial(at_work, cluster, store), LONG)
        if caught is not True:
            assert logged(store, "item started", f"{SCRATCH}/")
            assert caught[0] != training
            lose(cluster, caught[0])
            return first, store, trainer, caught[0]
        first.kill()
        with contextlib.suppress(psutil.NoSuchProcess):  # Ray may have ended it with its driver
            trainer.kill()
    pytest.fail("no evaluation was caught at its work, in five plans")


def test_a_plan_survives_the_loss_of_a_node_its_driver_and_the_head(
    cluster, start_cluster, command, plan, reference, tmp_path
):
    first, store, trainer, node = lost_in_an_evaluation(cluster, command, plan, tmp_path)
    (lost, *_) = first.until("its loss", lambda: logged(store, "item lost"), LONG)
    assert (lost["node"], lost["reason"]) == (node.name, "its node went away")
    cluster.add(num_cpus=1)
    first.until(
        "evaluations", lambda: len(logged(store, "item finished", f"{SCRATCH}/")) == 2, LONG
    )
    gone = f"node {node.name} went away"
    first.until(
        "a note", lambda: any(x["message"].startswith(gone) for x in logged(store, "note")), LONG
    )
    # The driver is killed while the pretraining is at work.
    first.kill()
    trainer.resume()
    trainer.wait(LONG)  # it ends without its driver, and is not taken for the next one's
    second = command(*plan, "--store", store, "--address", cluster.address)
    second.until("training", lambda: freeze(cluster, PRETRAIN), LONG)
    # The head is lost.
    began = time.monotonic()
    head, *others = cluster.nodes
    cluster.kill(head)
    assert second.wait(LONG) == 1
    assert time.monotonic() - began < 60
    assert re.search(r"error: the head of the Ray cluster at .* has not answered", second.output)
    for other in others:
        lose(cluster, other)
    # Another one is there, at first without nodes to work on.
    again, port = start_cluster(0), free_port()
    third = command(*plan, "--store", store, "--address", again.address)
    third.until("waiting", lambda: "waiting up to 600 s for nodes" in third.output, LONG)
    again.add(num_cpus=1, metrics_export_port=port)
    wanted = {"ray_benchmd_training_loss", "ray_benchmd_training_units_per_second"}
    third.until("metrics", lambda: wanted <= scraped(port), LONG)
    assert third.wait(LONG) == 0, third.output
    again.stop()
    assert hashes(store) == reference
    for run in runs([store]):
        events = [line["event"] for line in read_history(run.folder)]
        assert events.count("finished") == 1
        assert (events == ["started", "finished"]) == ("pretrain" not in run.folder.name)
    ends = [(line["level"], line.get("reason", "")[:26]) for line in logged(store, "plan ended")]
    assert ends == [("error", "the head of the Ray cluste"), ("info", "")]
    assert len(logged(store, "plan started")) == 3
    done = [line["item"] for line in logged(store, "item finished")]
    assert len(done) == len(set(done)) == 7
