"""Two machines are two cache folders; the bucket is a server of moto in this process."""

import contextlib
import errno
import json
import logging
import os
import re
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stored import runs
from stores import described, write_done
from waiting import until

from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError, BucketError, Busy, DiskFull, Transient
from benchmd_ray.files.atomic import remove, sha256
from benchmd_ray.files.integrity import hash_path, write_hash
from benchmd_ray.runs import mirror as mirrors
from benchmd_ray.runs import publication as publications
from benchmd_ray.runs.history import read_history
from benchmd_ray.runs.mirror import Mirror, is_light, newest_checkpoint
from benchmd_ray.runs.places import backing_of, shown, store_folder
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.runs.publication import Publication
from benchmd_ray.runs.remote import Mirrored
from benchmd_ray.runs.retention import drop_copies, prune
from benchmd_ray.runs.store import (
    open_run,
    read_run,
    read_stores,
    require_weights,
    scoring,
    working,
)
from benchmd_ray.storage import bucket as buckets
from benchmd_ray.storage import lease as leases
from benchmd_ray.storage.bucket import Bucket, Content, open_bucket
from benchmd_ray.storage.lease import Lease, LeaseLost

SECRET = "do-not-write-me-down"
ABOUT = described(a=1)


@pytest.fixture
def s3(s3):
    """The bucket of a store."""
    return open_bucket(f"{s3}/study/one")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The mirror that a machine has of the store."""

    def on(name):
        monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / name))
        return store_folder("s3://benchmd-test/study/one")

    return on


def checkpoint(run, step, content):
    folder = run.folder / "checkpoints" / f"step_{step:09d}"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "state.pt").write_bytes(content)
    (folder / "checkpoint.json").write_text("{}")
    for older in folder.parent.iterdir():
        if older != folder:
            remove(older)
    return folder


def train(run, content=b"weights"):
    """What training leaves of a run, but its checkpoints."""
    (run.folder / "metrics.jsonl").write_text('{"done": 1}\n')
    (run.folder / "model.json").write_text("{}")
    (run.folder / "model.safetensors").write_bytes(content)


def predictions(run, dataset="georgia", content=b"scores"):
    path = predictions_path(run.folder, dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    write_hash(path)
    return path


class Killed(BaseException):
    """Stands for a process that is gone: nothing of it runs any more."""


def begin(run):
    """Work on a run without an end, as a process that will be killed."""
    work = working(run)
    work.__enter__()
    return work


def kill(work, monkeypatch):
    """End the work so that nothing more reaches the bucket."""
    with monkeypatch.context() as patch:
        patch.setattr(Publication, "try_push", lambda _: False)
        patch.setattr(Lease, "release", lambda _: None)
        patch.setattr("benchmd_ray.runs.history.append", lambda *_, **__: None)
        work.__exit__(Killed, Killed(), None)


def published(s3):
    return {key.partition("/")[2] for key in s3.objects()}


# Addresses


def test_an_address_names_the_same_folder_however_it_is_written(machine):
    store = machine("a")
    assert store_folder("s3://benchmd-test//study/one/") == store
    assert store_folder("s3://benchmd-test/study/two") != store
    assert shown(store) == "s3://benchmd-test/study/one"
    run = store_folder("s3://benchmd-test/study/one/pretrain-ecg-mae-0123456789ab")
    assert run == store / "pretrain-ecg-mae-0123456789ab"
    assert shown(run) == "s3://benchmd-test/study/one/pretrain-ecg-mae-0123456789ab"
    search = store_folder("s3://benchmd-test/study/one/searches/tune-ecg-mae-0123456789ab")
    assert search == store / "searches" / "tune-ecg-mae-0123456789ab"
    assert store_folder("runs/here") == Path("runs/here")
    assert shown(Path("runs/here")) == "runs/here"


@pytest.mark.parametrize("text", ["s3://", "s3://B/x", "s3://key:secret@bucket/x", "s3://bu/../x"])
def test_what_is_no_address_is_refused(text, machine):
    with pytest.raises(
        BenchmdError, match="is not an address in an object store: expected s3://BUCKET"
    ):
        store_folder(text)


def test_a_key_in_an_address_is_not_repeated():
    with pytest.raises(BenchmdError, match=r"^'s3://…@bucket/x' is not an address") as refused:
        store_folder("s3://key:sec/ret@bucket/x")
    assert "ret" not in str(refused.value).partition(" is no")[0]


def test_another_machines_mirror_is_not_taken_for_a_store_of_its_own(machine, s3):
    store = machine("a")
    (store / ".store.json").unlink()
    with pytest.raises(BenchmdError, match=r"another machine's mirror.*s3://"):
        open_run(store, "r", ABOUT)


def test_no_object_leads_out_of_a_runs_folder():
    for name in ("../x", "a/../../x", "/etc/x", ".lock", "predictions/.x", "a\\..\\x", ""):
        assert not is_light(name)
    for name in (300 * "x", f"predictions/x/{150 * 'é'}.parquet", "a\0b"):  # no file can have it
        assert not is_light(name)
    for name in ("run.json", "done.json", "predictions/classification/georgia.parquet"):
        assert is_light(name)
    for name in (
        "model.safetensors",
        "lease.json",
        "predictions",
        "checkpoints",
        "predictions/test",
    ):
        assert not is_light(name)


def test_objects_that_no_file_can_be_named_by_are_passed_over(s3, machine):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)
    s3.write(f"{run.folder.name}/{300 * 'x'}", b"{}")
    s3.write(f"{300 * 'y'}/run.json", b"{}")
    assert [found.folder.name for found in runs([machine("b")])] == [run.folder.name]


def test_without_obstore_the_error_says_what_to_install(machine, monkeypatch):
    buckets._store.cache_clear()
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(
        BenchmdError, match=r"needs .* obstore, .*pip install 'benchmd-ray\[cloud\]'"
    ):
        open_run(machine("a"), "r", ABOUT)


# One run, two machines


def test_a_run_done_on_one_machine_is_done_on_the_other(s3, machine):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)
    with scoring(run, "georgia"):
        predictions(run)
    there = open_run(machine("b"), "r", ABOUT)
    assert there.folder != run.folder
    assert there.finished
    assert there.done == run.done
    for name in (
        "metrics.jsonl",
        "model.json",
        "history.jsonl",
        "predictions/classification/georgia.parquet",
    ):
        assert (there.folder / name).read_bytes() == (run.folder / name).read_bytes()
    (found,) = runs([machine("b")])
    assert found.folder == there.folder


def test_weights_are_pulled_when_they_are_needed(s3, machine):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)
    there = read_run(machine("b") / run.folder.name)
    assert not (there.folder / "model.safetensors").exists()
    assert there.model_sha256 == sha256(run.folder / "model.safetensors")
    require_weights(there)
    assert sha256(there.folder / "model.safetensors") == there.model_sha256


def test_foreign_weights_are_refused(s3, machine):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)
    s3.write(f"{run.folder.name}/model.safetensors", b"others")
    there = read_run(machine("b") / run.folder.name)
    with pytest.raises(
        BenchmdError, match=r"its SHA-256 is not the one .* Remove the folder s3://"
    ):
        require_weights(there)
    assert not (there.folder / "model.safetensors").exists()


def test_predictions_of_one_machine_reach_the_other(s3, machine):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)
    there = read_run(machine("b") / run.folder.name)
    with scoring(there, "georgia"):
        predictions(there)
    with scoring(run, "georgia"):
        path = predictions_path(run.folder, "georgia")
        assert path.read_bytes() == b"scores"  # seen within, so nothing is done twice


def test_masks_are_published_before_their_table_and_not_pulled(s3, machine):
    run = open_run(machine("a"), "transfer-ecg", ABOUT)
    with working(run):
        train(run)
    with scoring(run, "georgia"):
        path = predictions(run)
        for folder in ("georgia", "georgia.mean-mask", "georgia-2"):
            masks = path.with_name(folder)
            masks.mkdir()
            (masks / "case.nii.gz").write_bytes(b"mask")
            (masks / ".partial-case.nii.gz").write_bytes(b"half")
    name = f"{run.folder.name}/predictions/classification/georgia"
    held = {key for key in s3.objects() if "/predictions/" in key}
    masks = {f"{name}/case.nii.gz", f"{name}.mean-mask/case.nii.gz"}
    assert held == {f"{name}.parquet", f"{name}.parquet.sha256", *masks}
    there = open_run(machine("b"), "transfer-ecg", ABOUT)
    assert there.finished
    folder = there.folder / "predictions" / "classification"
    assert sorted(p.name for p in folder.iterdir()) == ["georgia.parquet", "georgia.parquet.sha256"]


def test_done_is_put_last_and_only_light_files_and_checkpoints_are_published(
    s3, machine, monkeypatch
):
    keys, upload, write = [], Bucket.upload, Bucket.write

    def uploaded(bucket, file, size, key):
        keys.append(key)
        return upload(bucket, file, size, key)

    def written(bucket, key, data, **condition):
        keys.append(key)
        return write(bucket, key, data, **condition)

    monkeypatch.setattr(Bucket, "upload", uploaded)
    monkeypatch.setattr(Bucket, "write", written)
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        (run.folder / "error.json").write_text("{}")
        (run.folder / ".partial-1").write_text("half")
        (run.folder / "ray_train").mkdir()
        (run.folder / "ray_train" / "x").write_text("x")
        train(run)
    names = [key.partition("/")[2] for key in keys]
    assert names[-2:] == ["done.json", "lease.json"]  # which is freed after
    assert names.index("run.json") < names.index("model.safetensors")
    expected = {"run.json", "history.jsonl", "metrics.jsonl", "model.json", "model.safetensors"}
    assert published(s3) == expected | {"done.json", "lease.json"}


def test_neither_credentials_nor_local_paths_are_written(s3, machine, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "benchmd_ray")
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    checkpoint(run, 1, b"state")
    work.__exit__(RuntimeError, RuntimeError(f"failed in {Path.home()}/x"), None)
    files = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    objects = [s3.read(key).data for key in s3.objects()]
    for content in [*files, *objects, caplog.text.encode()]:
        assert SECRET.encode() not in content
    for content in objects:
        assert str(tmp_path).encode() not in content
        assert str(Path.home()).encode() not in content


# Leases


def test_two_machines_do_not_work_on_one_run(s3, machine):
    run, there = open_run(machine("a"), "r", ABOUT), open_run(machine("b"), "r", ABOUT)
    with working(run):
        with pytest.raises(Busy, match="another machine is working on the run s3://"):
            begin(there)
        train(run)
    with pytest.raises(Busy, match="has just finished"):
        begin(there)
    assert there.finished


def test_what_a_put_that_hung_left_is_put_again_before_the_end(s3, machine):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    train(run)
    publishing(run, work).push()
    s3.write(f"{run.folder.name}/metrics.jsonl", b"of a session that is over")
    s3.delete([f"{run.folder.name}/model.json"])
    work.__exit__(None, None, None)
    for name in ("metrics.jsonl", "model.json"):
        there = s3.read(f"{run.folder.name}/{name}").data
        assert there == (run.folder / name).read_bytes()


def test_two_machines_do_not_score_one_dataset(s3, machine):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)
    there = read_run(machine("b") / run.folder.name)
    with scoring(run, "georgia"):
        with pytest.raises(Busy, match="another machine is working on the predictions of"):
            scoring(there, "georgia").__enter__()
        with scoring(there, "cpsc"):
            pass
        predictions(run)


def test_two_processes_of_one_machine_do_not_work_on_one_run(s3, machine):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run), pytest.raises(Busy, match="another process is working on the run"):
        begin(run)


def test_a_silent_machine_is_taken_over_and_publishes_nothing_more(s3, machine, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 3600)
    run, there = open_run(machine("a"), "r", ABOUT), open_run(machine("b"), "r", ABOUT)
    silent = begin(run)
    with pytest.raises(Busy):
        begin(there)
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)  # it is over
    with working(there):
        monkeypatch.setattr(leases, "LEASE_SECONDS", 180.0)
        train(there, b"of b")
        train(run, b"of a")
        with pytest.raises(LeaseLost, match="has taken over the run"):
            silent.__exit__(None, None, None)
        assert not run.finished
    assert s3.read(f"{run.folder.name}/model.safetensors").data == b"of b"
    again = read_run(run.folder)
    assert again.finished
    require_weights(again)
    assert (run.folder / "model.safetensors").read_bytes() == b"of b"
    assert (run.folder / "history.jsonl").read_bytes() == (
        there.folder / "history.jsonl"
    ).read_bytes()


def test_the_first_to_finish_a_run_has_finished_it(s3, machine, tmp_path):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    train(run)
    other = write_done(open_run(tmp_path / "other", "r", ABOUT), finished="by another")
    s3.write(f"{run.folder.name}/done.json", other.read_bytes())
    with pytest.raises(LeaseLost, match=r"another machine has finished s3://.*: check again"):
        work.__exit__(None, None, None)
    assert open_run(machine("a"), "r", ABOUT).done["finished"] == "by another"


def test_a_machine_that_lost_its_lease_stops_publishing_while_it_works(
    s3, machine, monkeypatch, caplog
):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(publications, "PUBLISH_SECONDS", 0.05)
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    data = json.dumps({"session": "another", "state": "held", "count": 1}).encode()
    s3.write(f"{run.folder.name}/lease.json", data)
    publication = work.gen.gi_frame.f_locals["finish"].__self__
    until("the end of its publishing", lambda: not publication._thread.is_alive())
    before = s3.objects()
    checkpoint(run, 7, b"mine")
    with pytest.raises(LeaseLost):
        work.__exit__(None, None, None)
    assert s3.objects() == before
    assert caplog.text.count("has taken over") == 1


def test_a_killed_session_of_this_machine_is_followed_at_once_with_what_it_had(
    s3, machine, monkeypatch
):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    checkpoint(run, 5, b"not published")
    kill(work, monkeypatch)
    with pytest.raises(Busy):  # its lease is held
        begin(open_run(machine("b"), "r", ABOUT))
    with working(run):
        state = run.folder / "checkpoints" / "step_000000005" / "parts" / "state.pt"
        assert state.read_bytes() == b"not published"
        train(run)
    events = [line["event"] for line in read_history(run.folder)]
    assert events == ["started", "killed", "started", "finished"]


class Store:
    """A bucket of one object in memory, with a clock of its own."""

    def __init__(self):
        self.time, self.held, self.count = 0.0, None, 0
        self.dying, self.losing = False, False

    def read(self, key, *, beginning):
        if self.held is None:
            return None
        data, etag, written = self.held
        return Content(data, etag, written)

    def now(self, beside):
        return self.time

    def write(self, key, data, *, replaces=None, new=False):
        fits = self.held is None if new else self.held is not None and self.held[1] == replaces
        if not fits:
            return None
        self.count += 1
        self.held = (data, str(self.count), self.time)
        if self.dying:
            raise Killed
        if self.losing:
            raise BucketError("the answer is lost")
        return str(self.count)


SESSION = ("acquire", "work", "publish", "release")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["acquire", "die", "renew", "lose", "work", "publish", "kill", "release", "wait"]
        ),
        st.integers(0, 2),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(steps=STEPS)
@example(  # killed as it takes over anew what another machine went on with
    steps=[
        *((event, machine) for machine in (0, 1) for event in SESSION),
        *((event, 0) for event in ("die", "acquire", "publish")),
    ]
)
@example(  # renews after a renewal whose answer was lost, and is silent until that one has expired
    steps=[
        *((event, 0) for event in ("acquire", "wait", "lose", "wait", "renew", "wait", "wait")),
        *((event, 1) for event in SESSION),
    ]
)
def test_no_order_of_events_gives_two_holders_or_loses_what_was_published(steps, tmp_path_factory):
    """Three machines that work, publish, die and wait: a model of `published`.

    The bucket's progress never falls, and nobody publishes but the one holder.
    """
    folder, store = tmp_path_factory.mktemp("leases"), Store()
    held, there = [None, None, None], 0
    copies = [0, 0, 0]  # what each machine's folder has
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "clock", lambda: store.time)
        for action, i in steps:
            lease = held[i]
            if action == "wait":
                store.time += 60
            elif action == "acquire" and lease is None:
                lease = Lease(store, "k", folder / str(i), "the run")
                try:
                    current = lease.acquire()
                except Busy:
                    continue
                if not current:
                    copies[i] = there
                    lease.note_current()
                assert copies[i] >= there
                held[i] = lease
            elif action == "die" and lease is None:  # right after the lease was written
                store.dying = True
                with contextlib.suppress(Busy, Killed):
                    Lease(store, "k", folder / str(i), "the run").acquire()
                store.dying = False
            elif lease is None or action == "die":
                continue
            elif action == "kill":
                held[i] = None
            elif action == "lose":
                store.losing = True
                with contextlib.suppress(BucketError, LeaseLost):
                    lease.renew()
                store.losing = False
            elif action == "work":
                copies[i] += 1
            elif action == "release":
                lease.release()
                held[i] = None
            else:
                try:
                    lease.renew() if action == "renew" else lease.require()
                except LeaseLost:
                    held[i] = None
                    continue
                others = [x for x in held if x is not None and x is not lease and x.trusted]
                assert not others
                if action == "publish":
                    assert copies[i] >= there
                    there = copies[i]


def test_a_server_without_conditional_puts_is_refused(tmp_path):
    class Heedless(Store):
        def write(self, key, data, *, replaces=None, new=False):
            return super().write(
                key, data, **({"replaces": self.held[1]} if self.held else {"new": True})
            )

    with pytest.raises(BenchmdError, match="ignores the conditions If-None-Match and If-Match"):
        Lease(Heedless(), "k", tmp_path / "r", "the run").acquire()


def test_who_is_killed_as_it_takes_a_lease_has_it(tmp_path):
    store = Store()
    store.dying = True
    with pytest.raises(Killed):
        Lease(store, "k", tmp_path / "r", "the run").acquire()
    store.dying = False
    with pytest.raises(Busy):
        Lease(store, "k", tmp_path / "other", "the run").acquire()
    Lease(store, "k", tmp_path / "r", "the run").acquire()


def test_a_write_whose_answer_was_lost_is_known_as_ones_own(tmp_path):
    class Forgetful(Store):
        def write(self, *arguments, **condition):
            super().write(*arguments, **condition)
            return None  # as a repeated request, which finds its own first one

    store = Forgetful()
    lease = Lease(store, "k", tmp_path / "r", "the run")
    lease.acquire()
    lease.renew()
    assert lease.trusted
    with pytest.raises(Busy):
        Lease(store, "k", tmp_path / "other", "the run").acquire()


def test_a_lease_that_is_damaged_is_nobodys_own(tmp_path):
    store = Store()
    Lease(store, "k", tmp_path / "r", "the run").acquire()
    store.write("k", b"damaged", replaces=store.held[1])
    for name in ("other", "r"):
        with pytest.raises(Busy):
            Lease(store, "k", tmp_path / name, "the run").acquire()


# Checkpoints


def test_another_machine_goes_on_from_the_checkpoint_of_a_killed_one(s3, machine, monkeypatch):
    monkeypatch.setattr(publications, "PUBLISH_SECONDS", 0.05)
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    (run.folder / "metrics.jsonl").write_text('{"done": 1}\n{"done": 2}\n')
    checkpoint(run, 2, b"two")
    until("a checkpoint", lambda: newest_checkpoint(published(s3)))
    kill(work, monkeypatch)
    modified = s3.objects()[f"{run.folder.name}/metrics.jsonl"].modified
    until("the next second", lambda: time.time() > modified + 1)
    there = open_run(machine("b"), "r", ABOUT)
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)
    with working(there):
        monkeypatch.setattr(leases, "LEASE_SECONDS", 180.0)
        folder = there.folder / "checkpoints" / "step_000000002"
        assert (folder / "parts" / "state.pt").read_bytes() == b"two"
        assert (folder / "checkpoint.json").is_file()
        assert (there.folder / "metrics.jsonl").read_text() == '{"done": 1}\n{"done": 2}\n'
        train(there)
    lines = read_history(there.folder)
    assert [line["event"] for line in lines] == ["started", "killed", "started", "finished"]
    assert lines[2]["from"] == 2
    # It counts until its metrics were published, not until they were pulled.
    start = datetime.fromisoformat(lines[0]["time"]).timestamp()
    assert lines[1]["seconds"] <= max(0.0, modified - start) + 1e-3
    assert not [name for name in published(s3) if name.startswith("checkpoints")]
    assert not (there.folder / "checkpoints").exists()


def test_a_checkpoint_that_was_not_put_whole_does_not_count(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    publication = publishing(run, work)
    checkpoint(run, 2, b"two")
    publication.push()
    checkpoint(run, 4, b"four")
    upload = Bucket.upload

    def failing(bucket, file, size, key):
        if key.endswith("/checkpoint.json"):
            raise BucketError("cannot write")
        return upload(bucket, file, size, key)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "upload", failing)
        with pytest.raises(BucketError):
            publication.push()
    kill(work, monkeypatch)
    assert any("step_000000004" in name for name in published(s3))
    assert newest_checkpoint(published(s3)).startswith("step_000000002.")
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)
    there = open_run(machine("b"), "r", ABOUT)
    work = begin(there)
    assert [p.name for p in (there.folder / "checkpoints").iterdir()] == ["step_000000002"]
    monkeypatch.setattr(leases, "LEASE_SECONDS", 180.0)
    publication = publishing(there, work)
    checkpoint(there, 6, b"six")
    publication.push()
    steps = {n.split("/")[1].partition(".")[0] for n in published(s3) if n.startswith("check")}
    assert steps == {"step_000000006"}  # half-written ones of the dead are removed too
    kill(work, monkeypatch)


def publishing(run, work):
    """A publication besides that of the work that continues, under the same lease."""
    lease = work.gen.gi_frame.f_locals["finish"].__self__._lease
    return Publication(backing_of(run.folder.parent).mirror(run.folder), lease)


def test_a_checkpoint_is_published_though_training_replaces_it_meanwhile(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    publication = publishing(run, work)
    checkpoint(run, 2, b"two")
    upload = Bucket.upload

    def slow(bucket, file, size, key):
        if key.endswith("state.pt"):
            checkpoint(run, 4, b"four")
        return upload(bucket, file, size, key)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "upload", slow)
        publication.push()
    name = newest_checkpoint(published(s3))
    assert name.startswith("step_000000002.")
    held = s3.read(f"{run.folder.name}/checkpoints/{name}/parts/state.pt")
    assert held.data == b"two"
    publication.push()
    assert newest_checkpoint(published(s3)).startswith("step_000000004.")
    kill(work, monkeypatch)


def test_files_of_two_checkpoints_of_one_step_are_never_published_as_one(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    publication = publishing(run, work)
    folder, usual = checkpoint(run, 2, b"two"), Path.open

    def replacing(path, *args, **kwargs):
        if path.name == "state.pt":
            patch.undo()
            folder.rename(folder.with_name(".partial-old"))
            checkpoint(run, 2, b"again")
        return usual(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", replacing)
        publication.push()
    assert newest_checkpoint(published(s3)) is None
    publication.push()
    name = newest_checkpoint(published(s3))
    assert s3.read(f"{run.folder.name}/checkpoints/{name}/parts/state.pt").data == b"again"
    kill(work, monkeypatch)


def test_an_object_that_fits_into_no_memory_is_refused(s3, monkeypatch):
    s3.write("large", bytes(101))
    s3.write("fitting", bytes(100))
    monkeypatch.setattr(buckets, "MAX_BYTES", 100)
    with pytest.raises(BenchmdError, match="one/large has more than 100 bytes"):
        s3.read("large")
    assert s3.read("fitting").data == bytes(100)
    assert s3.read("large", beginning=50).data == bytes(50)
    assert s3.read("fitting", beginning=100).data == bytes(100)


@pytest.mark.parametrize("size", [1000, 20_000])
def test_an_object_that_grew_since_it_was_listed_is_not_downloaded(s3, tmp_path, size, monkeypatch):
    """A large one comes in parts at the same time."""
    monkeypatch.setattr(buckets, "STRETCH", 1500)
    s3.write("log", b"x" * size)
    listed, path = s3.objects()["log"], tmp_path / "log"
    assert s3.download("log", path, listed.size)
    assert path.read_bytes() == b"x" * size
    s3.write("log", b"y" * (size + 1))
    message = rf"one/log is longer than the {size:,} bytes that were listed: .* same command again"
    with pytest.raises(BucketError, match=message):
        s3.download("log", path, listed.size)
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
    assert path.read_bytes() == b"x" * size
    s3.write("log", b"z")
    assert s3.download("log", path, listed.size)
    assert path.read_bytes() == b"z"


def test_a_mirror_takes_no_more_of_a_run_than_was_listed(s3, machine, monkeypatch, tmp_path):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    train(run, b"weights")
    work.__exit__(None, None, None)
    real, key = Bucket.objects, f"{run.folder.name}/metrics.jsonl"

    def objects(bucket, below=""):
        listed = real(bucket, below)
        s3.write(key, b"longer than any listing" * 100)
        return listed

    monkeypatch.setattr(Bucket, "objects", objects)
    with pytest.raises(
        BucketError, match=r"metrics\.jsonl is longer than the 12 bytes that were l"
    ):
        open_run(machine("b"), "r", ABOUT)
    assert not list(tmp_path.joinpath("b").rglob("metrics.jsonl"))


def test_a_lease_that_is_too_long_is_held_until_it_has_expired(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    monkeypatch.setattr(buckets, "MAX_BYTES", 10_000)
    s3.write(f"{run.folder.name}/lease.json", b'{"state": "free"' + 20_000 * b" " + b"}")
    with pytest.raises(Busy):
        begin(run)
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)
    work = begin(run)
    assert len(s3.read(f"{run.folder.name}/lease.json").data) < leases.LONGEST
    kill(work, monkeypatch)


def test_a_pair_that_is_replaced_while_it_is_published_is_a_pair_again(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    publication, path = publishing(run, work), run.folder / "table.parquet"
    upload = Bucket.upload

    def replaced(content):
        path.write_bytes(content)
        write_hash(path)

    def slow(bucket, file, size, key):
        etag = upload(bucket, file, size, key)
        if key.endswith("table.parquet") and path.read_bytes() == b"older":
            replaced(b"newer")
        return etag

    replaced(b"older")
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "upload", slow)
        publication.push()
    for own in (path, hash_path(path)):
        assert s3.read(f"{run.folder.name}/{own.name}").data == own.read_bytes()
    assert path.read_bytes() == b"newer"
    kill(work, monkeypatch)


def test_a_stale_mirror_takes_over_what_another_machine_did(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    checkpoint(run, 9, b"far, but never published")
    (run.folder / "metrics.jsonl").write_text('{"done": 9}\n')
    kill(work, monkeypatch)
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)
    there = open_run(machine("b"), "r", ABOUT)
    work = begin(there)
    monkeypatch.setattr(leases, "LEASE_SECONDS", 180.0)
    checkpoint(there, 3, b"three")
    (there.folder / "metrics.jsonl").write_text('{"done": 3}\n')
    work.__exit__(RuntimeError, RuntimeError("stopped"), None)
    with working(read_run(run.folder)):
        (only,) = (run.folder / "checkpoints").iterdir()
        assert only.name == "step_000000003"
        assert (run.folder / "metrics.jsonl").read_text() == '{"done": 3}\n'
        train(run)
    events = [(line["event"], line.get("reason")) for line in read_history(run.folder)]
    assert ("failed", "RuntimeError: stopped") in events


def test_large_files_are_published_and_pulled_whole(s3, machine, monkeypatch):
    content = os.urandom(9 * 2**20)  # in several parts
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run, content)
    there = read_run(machine("b") / run.folder.name)
    require_weights(there)
    assert (there.folder / "model.safetensors").read_bytes() == content


# What lasts


def test_the_last_checkpoint_stays_where_it_is_asked_for(s3, machine):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run, keep="checkpoints"):
        checkpoint(run, 2, b"two")
        train(run)
    assert newest_checkpoint(published(s3)).startswith("step_000000002.")
    assert (run.folder / "checkpoints" / "step_000000002").is_dir()


def test_a_run_removed_from_the_bucket_is_not_brought_back(s3, machine):
    store = machine("a")
    run = open_run(store, "r", ABOUT)
    with working(run):
        train(run)
    s3.delete(list(s3.objects()))
    again = open_run(store, "r", ABOUT)
    assert not again.finished
    assert not (again.folder / "model.safetensors").exists()
    with working(again):
        train(again)
    assert "done.json" in published(s3)


def searched(store, *names):
    """A search that is published, with such files next to its plan."""
    search = store / "searches" / "tune-made-0123456789ab"
    with backing_of(store).searching(search):
        for name in ("search.json", *names):
            (search / name).write_text(name)
    return search


def test_a_search_removed_from_the_bucket_is_not_brought_back(s3, machine):
    search = searched(machine("a"), "trials.parquet", "result.json")
    assert f"searches/{search.name}/result.json" in s3.objects()
    s3.delete(list(s3.objects()))
    with backing_of(search.parent.parent).searching(search):
        assert not [path for path in search.iterdir() if not path.name.startswith(".")]


def test_a_search_is_what_the_bucket_has_of_it(s3, machine):
    """All but the journal follows from it; a killed session may have left what is older."""
    search = searched(machine("a"), "trials.parquet")
    (search / "trials.parquet").write_text("not published")
    (search / "best.yaml").write_text("never published")
    searched(machine("b"), "trials.parquet", "result.json")
    s3.write(f"searches/{search.name}/trials.parquet", b"newest")
    backing_of(search.parent.parent).refresh_store()
    assert (search / "trials.parquet").read_text() == "newest"
    assert (search / "result.json").is_file()
    assert not (search / "best.yaml").exists()


def test_reading_leaves_the_work_of_this_machine_alone(s3, machine, monkeypatch, held_elsewhere):
    monkeypatch.setattr(publications, "PUBLISH_SECONDS", 3600)
    run = open_run(machine("a"), "r", ABOUT)
    other = held_elsewhere(run.folder)
    (run.folder / "metrics.jsonl").write_text("newer")
    s3.write(f"{run.folder.name}/metrics.jsonl", b"older")
    (found,) = runs([machine("a")])
    assert (found.folder / "metrics.jsonl").read_text() == "newer"
    other.kill()
    other.wait()


def test_reading_does_not_disturb_a_session_that_was_overtaken(s3, machine, monkeypatch):
    store = machine("a")
    run, there = open_run(store, "r", ABOUT), open_run(machine("b"), "r", ABOUT)
    overtaken = begin(run)
    folder = checkpoint(run, 3, b"mine")
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)
    with working(there):
        monkeypatch.setattr(leases, "LEASE_SECONDS", 180.0)
        train(there)
    (found,) = runs([store])
    assert not found.finished
    assert folder.is_dir()
    overtaken.__exit__(Killed, Killed(), None)
    (found,) = runs([store])
    assert found.finished
    assert not folder.exists()


# Outages


def test_an_unreachable_bucket_is_one_clear_error(machine, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    store, start = machine("a"), time.monotonic()
    for ask in (lambda: open_run(store, "r", ABOUT), lambda: runs([store])):
        with pytest.raises(BenchmdError, match=r"cannot list s3://benchmd-test/study/one.*AWS_END"):
            ask()
    assert time.monotonic() - start < 20


def test_a_bucket_that_is_not_there_is_named(s3, machine):
    with pytest.raises(BenchmdError, match=r"cannot list s3://benchmd-none/x: .*NoSuchBucket"):
        runs([store_folder("s3://benchmd-none/x")])


@pytest.fixture
def outage(monkeypatch):
    """Calls fail while it is on."""
    state = {"on": False, "refused": 0}
    for name in ("objects", "read", "write", "upload", "download", "delete"):
        real = getattr(Bucket, name)

        def call(bucket, *arguments, _real=real, **named):
            if state["on"]:
                state["refused"] += 1
                raise BucketError(f"cannot reach {bucket.address}")
            return _real(bucket, *arguments, **named)

        monkeypatch.setattr(Bucket, name, call)
    return state


def test_work_goes_on_through_an_outage_and_is_published_later(
    s3, machine, monkeypatch, outage, caplog
):
    monkeypatch.setattr(publications, "PUBLISH_SECONDS", 0.05)
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        outage["on"] = True
        checkpoint(run, 2, b"two")
        until("further tries", lambda: outage["refused"] > 2)
        assert caplog.text.count("the work continues and is published later: cannot reach") == 1
        outage["on"] = False
        until("a checkpoint", lambda: newest_checkpoint(published(s3)))
        assert newest_checkpoint(published(s3)).startswith("step_000000002.")
        train(run)
    assert "can be published again" in caplog.text
    assert run.finished


def test_done_work_that_cannot_be_published_is_kept_and_published_later(s3, machine, outage):
    store = machine("a")
    run = open_run(store, "r", ABOUT)
    work = begin(run)
    train(run)
    outage["on"] = True
    with pytest.raises(Transient, match=r"finished but could not be published: .*It is kept in"):
        work.__exit__(None, None, None)
    assert not run.finished
    with pytest.raises(BenchmdError, match="cannot reach"):
        open_run(store, "r", ABOUT)
    outage["on"] = False
    assert "done.json" not in published(s3)
    assert open_run(store, "r", ABOUT).finished
    assert {"done.json", "model.safetensors"} <= published(s3)
    assert read_run(machine("b") / run.folder.name).finished


@pytest.fixture
def overtaken(machine, outage, monkeypatch):
    """Machine A did work that it could not publish, and machine B has begun it anew since.

    The store of A, its run, the run at B and the work on that.
    """
    store = machine("a")
    run = open_run(store, "r", ABOUT)
    work = begin(run)
    train(run, b"of a")
    outage["on"] = True
    with pytest.raises(BenchmdError, match="could not be published"):
        work.__exit__(None, None, None)
    outage["on"] = False
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)
    there = open_run(machine("b"), "r", ABOUT)
    return store, run, there, begin(there)


def test_done_work_is_not_published_over_that_of_another_machine(s3, overtaken, monkeypatch):
    store, run, there, work = overtaken
    monkeypatch.setattr(leases, "LEASE_SECONDS", 180.0)
    assert not open_run(store, "r", ABOUT).finished  # B is at it
    train(there, b"of b")
    work.__exit__(None, None, None)
    assert open_run(store, "r", ABOUT).done == there.done
    assert s3.read(f"{run.folder.name}/model.safetensors").data == b"of b"


def test_done_work_gives_way_to_a_machine_that_went_on_and_was_killed(s3, overtaken, monkeypatch):
    store, _, there, work = overtaken
    checkpoint(there, 4, b"of b")
    publishing(there, work).push()
    kill(work, monkeypatch)
    again = open_run(store, "r", ABOUT)
    assert not again.finished
    assert "done.json" not in published(s3)
    state = again.folder / "checkpoints" / "step_000000004" / "parts" / "state.pt"
    assert state.read_bytes() == b"of b"
    assert not (again.folder / ".done.json").exists()


def test_a_run_that_was_pulled_in_part_is_not_finished_here(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)
    download = Bucket.download

    def failing(bucket, key, path, size):
        if key.endswith("model.json"):
            raise BucketError("cannot read")
        return download(bucket, key, path, size)

    store = machine("b")
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "download", failing)
        with pytest.raises(BucketError):
            open_run(store, "r", ABOUT)
        assert not (store / run.folder.name / "done.json").exists()
    assert open_run(store, "r", ABOUT).finished


def test_what_a_killed_process_was_pulling_is_pulled_again(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    publication = publishing(run, work)
    train(run)
    publication.push()
    download, note = Bucket.download, Mirror.note

    def dying(bucket, key, path, size):
        download(bucket, key, path, size)
        if key.endswith("metrics.jsonl"):
            monkeypatch.setattr(Mirror, "note", lambda *_: None)
            raise Killed
        return True

    monkeypatch.setattr(Bucket, "download", dying)
    with pytest.raises(Killed):
        runs([machine("b")])
    monkeypatch.setattr(Bucket, "download", download)
    monkeypatch.setattr(Mirror, "note", note)
    (run.folder / "metrics.jsonl").write_text('{"done": 2}\n')
    publication.push()
    (found,) = runs([machine("b")])
    assert (found.folder / "metrics.jsonl").read_text() == '{"done": 2}\n'
    kill(work, monkeypatch)


def test_a_run_that_cannot_be_pulled_stops_no_other(s3, machine, monkeypatch):
    sound, many, blocked = (open_run(machine("a"), name, ABOUT) for name in "smb")
    for run in (sound, many, blocked):
        with working(run):
            train(run)
    for number in range(20):
        s3.write(f"{many.folder.name}/{number}", b"")
    store = machine("b")
    (store / blocked.folder.name / "metrics.jsonl").mkdir(parents=True)
    (store / blocked.folder.name / "metrics.jsonl" / "x").touch()
    monkeypatch.setattr(mirrors, "MOST_FILES", 15)
    held = read_stores([store])
    assert [found.folder.name for found in held.found] == [sound.folder.name]
    one, other = sorted(held.damaged.values())
    assert re.match(rf"s3:.*/{blocked.folder.name} cannot be copied to .* have the same name", one)
    assert re.match(rf"s3:.*/{many.folder.name} has \d\d small files .* at most 15 and ", other)
    for name, message in (("m", "small files"), ("b", "cannot be copied")):
        with pytest.raises(BenchmdError, match=message):
            open_run(store, name, ABOUT)


def test_weights_stay_where_a_run_that_may_need_them_cannot_be_pulled(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT | {"kind": "transfer"})
    with working(run):
        train(run)
    with scoring(run, "georgia"):
        predictions(run)
    other = open_run(machine("a"), "o", ABOUT)
    kill(begin(other), monkeypatch)
    for number in range(20):
        s3.write(f"{other.folder.name}/{number}", b"")
    monkeypatch.setattr(mirrors, "MOST_FILES", 15)
    for store in (machine("a"), machine("b")):  # one of which has an older copy
        skipped, why = prune(store, "predictions").left
        assert "small files" in skipped
        assert why.startswith("all weights stay")
    assert "model.safetensors" in published(s3)


def test_what_is_refused_to_be_pulled_takes_nothing_away(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    folder = checkpoint(run, 3, b"mine")
    kill(work, monkeypatch)
    monkeypatch.setattr(mirrors, "MOST_FILES", 0)
    (run.folder / ".lease.json").unlink()  # so that this copy is not known as the newest
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)
    with pytest.raises(BenchmdError, match="small files"):
        begin(run)
    assert (folder / "parts" / "state.pt").read_bytes() == b"mine"


def test_a_full_disk_ends_what_is_pulled(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = machine("b")
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "download", full)
        with pytest.raises(DiskFull, match=r"cannot be copied .*free some space"):
            read_stores([store])
    assert runs([store])[0].finished


def test_predictions_whose_pull_was_begun_are_not_published(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)
    with scoring(run, "georgia"):
        path = predictions(run)
    (there,) = runs([machine("b")])
    mirror, name = backing_of(machine("b")).mirror(there.folder), path.relative_to(run.folder)
    mirror.note({name.as_posix(): mirror.index()[name.as_posix()][:1]})
    monkeypatch.setattr(Bucket, "write", None)
    assert read_run(there.folder).finished
    (again,) = runs([machine("b")])
    assert len(mirror.index()[name.as_posix()]) == 4
    assert (again.folder / name).read_bytes() == b"scores"


def test_a_checkpoint_of_objects_that_are_no_files_is_refused(s3, machine, monkeypatch):
    run = open_run(machine("a"), "r", ABOUT)
    work = begin(run)
    checkpoint(run, 2, b"two")
    publishing(run, work).push()
    kill(work, monkeypatch)
    (part,) = [name for name in published(s3) if name.endswith("/state.pt")]
    s3.write(f"{run.folder.name}/{part}/below", b"x")
    there = open_run(machine("b"), "r", ABOUT)
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)
    with pytest.raises(BenchmdError, match=r"cannot be copied .* have the same name"):
        begin(there)


def test_predictions_that_cannot_be_published_are_published_later(s3, machine, outage):
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)
    work = scoring(run, "georgia")
    work.__enter__()
    predictions(run)
    outage["on"] = True
    with pytest.raises(Transient, match="are written but could not be published"):
        work.__exit__(None, None, None)
    outage["on"] = False
    assert "predictions/classification/georgia.parquet" not in published(s3)
    read_run(run.folder)
    assert "predictions/classification/georgia.parquet" in published(s3)


def test_messages_name_the_address_of_a_store(s3, machine):
    with pytest.raises(BenchmdError, match=re.escape("s3://benchmd-test/study/one has no run")):
        runs([machine("a")])


# Pruning


def test_a_plan_of_another_machine_keeps_the_weights_of_a_store(s3, machine):
    run = open_run(machine("a"), "r", ABOUT | {"kind": "transfer"})
    with working(run):
        train(run)
    with scoring(run, "georgia"):
        predictions(run)
    with backing_of(machine("b")).keeping_weights():
        assert any(name.startswith("keeps-weights/") for name in s3.objects())
        assert "all weights stay" in prune(machine("a"), "predictions").left[0]
    assert not [name for name in s3.objects() if name.startswith("keeps-weights/")]
    assert "model.safetensors" in published(s3)
    assert prune(machine("a"), "predictions").bytes_of("weights") == 7


class Keeper(threading.Thread):
    """A plan that begins on another machine and ends when it is told to."""

    def __init__(self, backing):
        super().__init__(daemon=True)
        self.backing, self.begun, self.end = backing, threading.Event(), threading.Event()

    def run(self):
        with self.backing.keeping_weights():
            self.begun.set()
            self.end.wait(20)

    def stop(self):
        self.end.set()
        self.join(20)
        assert not self.is_alive()


def marked(s3):
    """Wait until a plan has left its mark."""
    until("a mark", lambda: any(key.startswith("keeps-weights/") for key in s3.objects()))


@pytest.fixture
def two(machine, monkeypatch):
    """What is behind a store on two machines, which look often for what they wait for."""
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.01)
    return [backing_of(machine(name)) for name in "ab"]


def test_who_prunes_sees_a_plan_that_begins_before_it_looks(s3, two, monkeypatch):
    here, there = two
    keeper, look = Keeper(there), Mirrored._keepers

    def late(backing):
        keeper.start()
        marked(s3)
        return look(backing)

    monkeypatch.setattr(Mirrored, "_keepers", late)
    with pytest.raises(Busy, match="another plan"), here.removing_weights(of_own=False):
        pass
    assert keeper.begun.wait(20)  # once the other has given way
    keeper.stop()


def test_a_plan_that_begins_after_who_prunes_has_looked_waits_for_it(s3, two):
    here, there = two
    keeper = Keeper(there)
    with here.removing_weights(of_own=False) as require:
        keeper.start()
        marked(s3)
        assert not keeper.begun.wait(0.2)
        require()
    assert keeper.begun.wait(20)
    keeper.stop()


def test_who_prunes_and_was_silent_for_too_long_removes_nothing_more(s3, two, monkeypatch):
    here, there = two
    passed = [0.0]
    monkeypatch.setattr(leases, "clock", lambda: time.monotonic() + passed[0])
    monkeypatch.setattr(Bucket, "now", lambda *_: time.time() + passed[0])
    with here.removing_weights(of_own=False) as require:
        require()
        passed[0] = 200.0
        with there.keeping_weights(), pytest.raises(LeaseLost):
            require()


def test_a_dry_run_puts_nothing(s3, machine):
    run = open_run(machine("a"), "r", ABOUT | {"kind": "transfer"})
    with working(run):
        train(run)
    before = s3.objects()
    prune(machine("b"), "predictions", dry_run=True)
    assert s3.objects() == before


def test_pruning_frees_the_bucket_and_all_mirrors_learn_of_it(s3, machine):
    store = machine("a")
    run = open_run(store, "r", ABOUT | {"kind": "transfer"})
    with working(run, keep="checkpoints"):
        checkpoint(run, 2, b"two")
        train(run)
    with scoring(run, "georgia"):
        predictions(run)
    there = read_run(machine("b") / run.folder.name)
    require_weights(there)
    said = prune(store, "predictions", dry_run=True)
    assert "model.safetensors" in published(s3)
    assert prune(store, "predictions") == said
    assert said.bytes_of("checkpoints") == 5
    assert said.bytes_of("weights") == 7
    light = {"run.json", "history.jsonl", "metrics.jsonl", "model.json", "done.json"}
    leases = {"lease.json", "lease-classification.georgia.json"}
    scores = {
        "predictions/classification/georgia.parquet",
        "predictions/classification/georgia.parquet.sha256",
    }
    assert published(s3) - {""} == light | leases | scores  # but for the lease of the pruning
    (again,) = runs([machine("b")])
    assert again.finished
    assert not (again.folder / "model.safetensors").exists()
    assert read_history(again.folder)[-1]["event"] == "pruned"
    with pytest.raises(BenchmdError, match="its weights were pruned"):
        require_weights(again)


def test_nothing_is_pruned_of_what_another_machine_uses(s3, machine):
    done = open_run(machine("a"), "r", ABOUT | {"kind": "transfer"})
    with working(done):
        train(done)
    with scoring(done, "georgia"):
        predictions(done)
    going = open_run(machine("a"), "s", ABOUT | {"kind": "transfer"})
    with scoring(done, "cpsc"), working(going):
        before = set(s3.objects())
        pruned = prune(machine("b"), "predictions")
        assert pruned.removals == ()
        assert any("another machine is working on" in line for line in pruned.left)
        assert set(s3.objects()) - {"pruning.json"} == before
    pruned = prune(machine("b"), "predictions")
    assert pruned.bytes_of("weights") == 7


def test_only_this_machines_copies_go_with_mirror(s3, machine):
    store = machine("a")
    run = open_run(store, "r", ABOUT)
    with working(run):
        train(run)
    before = s3.objects()
    assert drop_copies(store).bytes_of("weights") == 7
    assert not (run.folder / "model.safetensors").exists()
    assert s3.objects() == before
    require_weights(run)
    assert (run.folder / "model.safetensors").read_bytes() == b"weights"


def test_commands_take_addresses(s3, machine):
    machine("a")
    run = open_run(machine("a"), "r", ABOUT)
    with working(run):
        train(run)
    machine("b")
    done = CliRunner().invoke(main, ["prune", s3.address, "--dry-run"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{s3.address}\n")
    wrong = CliRunner().invoke(main, ["prune", "s3://benchmd-none/x"])
    assert wrong.exit_code == 1
    assert "error: cannot list s3://benchmd-none/x" in wrong.output


def test_the_same_bucket_on_another_server_is_another_store(monkeypatch, tmp_path):
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path))
    folders = set()
    for endpoint in ("http://one.example", "http://two.example"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        folders.add(store_folder("s3://lab/study"))
        assert store_folder("s3://lab/study") in folders
    assert len(folders) == 2
