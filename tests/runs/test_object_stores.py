"""What holds for every service: S3, Google Cloud Storage and Azure Blob Storage."""

import contextlib
import io
import os
import random
import threading
import time

import boto3
import pytest
from services import SERVICES
from stored import runs
from stores import described
from waiting import until

from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError, BucketError, Busy
from benchmd_ray.runs.places import backing_of, shown, store_folder
from benchmd_ray.runs.store import open_run, read_run, require_weights, working
from benchmd_ray.storage import bucket as buckets
from benchmd_ray.storage import lease as leases
from benchmd_ray.storage import segments
from benchmd_ray.storage.bucket import NO_VERSION, Bucket, open_bucket
from benchmd_ray.storage.lease import Lease, LeaseLost
from benchmd_ray.storage.location import location, log_at
from benchmd_ray.storage.segments import JournalSegments

ABOUT = described(a=1)
pytestmark = pytest.mark.parametrize("service", SERVICES, indirect=True)


@pytest.fixture
def machine(service, tmp_path, monkeypatch):
    """The mirror that a machine has of a store."""

    def on(name):
        monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / name))
        return store_folder(f"{service.address}/study/one")

    return on


def train(run, content):
    (run.folder / "metrics.jsonl").write_text('{"done": 1}\n')
    (run.folder / "model.json").write_text("{}")
    (run.folder / "model.safetensors").write_bytes(content)


def test_conditions_of_puts_hold(service):
    bucket = open_bucket(f"{service.address}/lab")
    first = bucket.write("x", b"1", new=True)
    assert bucket.write("x", b"2", new=True) is None
    assert bucket.write("x", b"2", replaces=NO_VERSION) is None
    second = bucket.write("x", b"2", replaces=first)
    assert bucket.write("x", b"3", replaces=first) is None
    assert bucket.write("y", b"3", replaces=second) is None
    content = bucket.read("x")
    assert (content.data, content.version) == (b"2", second)
    assert bucket.read("x", content) is content
    assert bucket.objects()["x"].etag == second.etag
    assert abs(bucket.now("x") - content.modified) < 30
    bucket.delete(["x", "y"])
    assert bucket.entries() == ({}, [])
    missing = f"{service.address}-none/lab"
    for ask in (open_bucket(missing).objects, lambda: open_bucket(missing).write("x", b"")):
        with pytest.raises(BucketError, match="There is no such bucket there"):
            ask()


def test_a_key_that_the_client_refuses_hides_its_run_only(service, machine):
    for name in ("r", "s"):
        with working(run := open_run(machine("a"), name, ABOUT)):
            train(run, b"weights")
    if not service.address.startswith("s3:"):
        pytest.skip("only S3's server takes such a key")
    address = service.address.removeprefix("s3://").partition("/")[0]
    boto3.client("s3").put_object(Bucket=address, Key=f"study/one/{run.folder.name}//x", Body=b"")
    skipped = backing_of(machine("b")).refresh_store()
    assert [folder.name for folder in skipped] == [run.folder.name]
    assert "Remove or rename that object" in next(iter(skipped.values()))
    assert len(list(machine("b").glob("r-*/run.json"))) == 1


def test_nothing_is_begun_after_an_error(service):
    begun, failed = [], threading.Event()

    def work(number):
        begun.append(number)
        if number == 0:
            assert failed.wait(10)
        if number == 1:
            failed.set()
            raise BucketError("no")

    with pytest.raises(BucketError, match=r"^no$"):
        buckets.together(work, range(50), threads=2)
    assert len(begun) < 6


def test_a_variable_with_a_line_break_is_named(service, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "secret\n")
    with pytest.raises(BenchmdError, match="AWS_SESSION_TOKEN has a line break") as refused:
        open_bucket(f"{service.address}/lab")
    assert "secret" not in str(refused.value)


def test_large_objects_come_whole_and_no_longer_than_listed(service, tmp_path, monkeypatch):
    monkeypatch.setattr(buckets, "STRETCH", buckets.PART + 7)
    bucket, content = open_bucket(f"{service.address}/lab"), os.urandom(2 * buckets.PART + 1)
    etag = bucket.upload(io.BytesIO(content), len(content), "folder/large")
    listed = bucket.objects("folder")["folder/large"]
    assert (listed.etag, listed.size) == (etag, len(content))
    assert bucket.entries() == ({}, ["folder"])
    assert bucket.download("folder/large", tmp_path / "large", listed.size)
    assert (tmp_path / "large").read_bytes() == content
    with pytest.raises(BucketError, match="longer than the 9 bytes that were listed"):
        bucket.download("folder/large", tmp_path / "other", 9)


def test_two_machines_share_a_run_and_only_one_works_on_it(service, machine, monkeypatch):
    run, there = open_run(machine("a"), "r", ABOUT), open_run(machine("b"), "r", ABOUT)
    assert shown(there.folder).startswith(f"{service.address}/study/one/")
    monkeypatch.setattr(leases, "RENEW_SECONDS", 3600)
    silent = working(run)
    silent.__enter__()
    with pytest.raises(Busy, match="another machine is working on the run"):
        working(there).__enter__()
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)  # it is over
    with working(there):
        monkeypatch.setattr(leases, "LEASE_SECONDS", 180.0)
        train(there, b"of b")
        train(run, b"of a")
        with pytest.raises(LeaseLost, match="has taken over the run"):
            silent.__exit__(None, None, None)
    again = read_run(machine("c") / run.folder.name)
    assert again.finished
    require_weights(again)
    assert (again.folder / "model.safetensors").read_bytes() == b"of b"


def test_a_listing_that_lags_shows_an_older_state_and_never_half_of_one(
    service, machine, monkeypatch
):
    run, bucket = open_run(machine("a"), "r", ABOUT), open_bucket(f"{service.address}/study/one")
    with working(run):
        older = bucket.objects()
        train(run, b"weights")
    newest = bucket.objects()
    late = {key: each for key, each in newest.items() if not key.endswith("/done.json")}
    for name, listed in (("b", late), ("c", older)):
        with monkeypatch.context() as patch:
            patch.setattr(Bucket, "objects", lambda *_, listed=listed: listed)
            (found,) = runs([machine(name)])
            assert not found.finished
    for name in "bc":
        (found,) = runs([machine(name)])
        assert found.finished
    bucket.delete([*newest])
    with monkeypatch.context() as patch:  # which still shows what was deleted
        patch.setattr(Bucket, "objects", lambda *_: newest)
        assert backing_of(machine("d")).refresh_store() == {}
        assert not [*machine("d").glob("*/run.json")]


def test_a_journal_waits_for_its_server_and_has_one_writer(service, monkeypatch):
    monkeypatch.setattr(segments, "FULL", 20)
    place = location(f"{service.address}/study/journal")
    journal, tries, write = log_at(place, 1000), [], Bucket.write

    def counted(*arguments, **named):
        tries.append(arguments)
        return write(*arguments, **named)

    monkeypatch.setattr(Bucket, "write", counted)
    service.stop()

    def back():
        until("second try", lambda: len(tries) > 1)
        service.start()

    thread = threading.Thread(target=back)
    thread.start()
    for number in range(6):
        journal.append(f"{number:09d}\n".encode())
    thread.join()
    other = JournalSegments(open_bucket(str(place)), 1000)
    assert other.read() == b"".join(f"{number:09d}\n".encode() for number in range(6))
    other.append(b"more\n")
    with pytest.raises(LeaseLost, match="another process has written"):
        journal.append(b"late\n")


@pytest.mark.slow
def test_of_64_workers_that_take_leases_at_once_none_loses_what_it_wrote(service, tmp_path):
    """Each adds a line to the logs of two of eight runs, which nothing but the leases guards."""
    bucket = open_bucket(f"{service.address}/lab")
    pairs = [(worker, (worker + 3 * turn) % 8) for worker in range(64) for turn in range(2)]

    def work(worker):
        for run in [run for one, run in pairs if one == worker]:
            key, record = f"{run}/lease.json", tmp_path / f"{worker}-{run}"
            lease = Lease(bucket, key, record, "the run")
            until("the lease", lambda lease=lease: taken(lease), 300)
            with lease.renewing():
                there = bucket.read(f"{run}/log")
                line = f"{worker}\n".encode()
                bucket.write(f"{run}/log", (there.data if there else b"") + line)
                lease.require()

    def taken(lease):
        with contextlib.suppress(Busy):
            lease.acquire()
            return True
        time.sleep(random.uniform(0.1, 1.0))
        return False

    buckets.together(work, range(64), threads=64)
    for run in range(8):
        workers = [int(line) for line in bucket.read(f"{run}/log").data.splitlines()]
        assert sorted(workers) == sorted(worker for worker, own in pairs if own == run)


@pytest.mark.slow
def test_a_catalog_is_the_local_one(service, build_here, synthetic_raw, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    raw, out = synthetic_raw["georgia"], location(f"{service.address}/catalogs/georgia")
    built, local = build_here("georgia", raw, out), build_here("georgia", raw, tmp_path / "local")
    assert built.digest == local.digest
    assert not verify(built).faults
    assert build_here("georgia", raw, out).digest == local.digest
