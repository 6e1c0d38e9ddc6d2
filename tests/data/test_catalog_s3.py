"""Catalogs on S3: a server in this process, and a local catalog of the same files next to it."""

import http.server
import json
import os
import sys
import threading
import time
from dataclasses import replace

import boto3
import numpy as np
import pytest
from click.testing import CliRunner

from benchmd_ray.cli import main
from benchmd_ray.data import build as building
from benchmd_ray.data.catalog import MANIFEST, confined, open_catalog
from benchmd_ray.data.feed import read_columns, read_units, resident_feed
from benchmd_ray.data.hdf5 import export_hdf5
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.data.streaming import StreamingFeed
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError, BucketError, Busy, Transient
from benchmd_ray.files.atomic import sha256
from benchmd_ray.report.catalogs import contents
from benchmd_ray.service.datasets import from_catalogs
from benchmd_ray.service.execute import pretrain_run, transfer_run
from benchmd_ray.settings.definition import Settings, load_settings
from benchmd_ray.storage import bucket as buckets
from benchmd_ray.storage import lease as leases
from benchmd_ray.storage.bucket import Bucket, open_bucket
from benchmd_ray.storage.location import Address, location
from benchmd_ray.training.reporter import read_metrics

SECRET = "do-not-write-me-down"
TINY = load_settings(
    assignments=[
        "encoder=tiny",
        "execution.device=cpu",
        "execution.log_every=1",
        "pretrain.batch_size=8",
        "pretrain.steps=3",
        "transfer.epochs=2",
        "transfer.batch_size=16",
    ],
    base=Settings(),
)


@pytest.fixture
def small_chunks(monkeypatch):
    """Several shards of the small datasets."""
    monkeypatch.setattr(building, "CHUNK_BYTES", 10 * 120_000)


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A machine with nothing in its cache folder."""

    def on(name):
        monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / f"cache-{name}"))

    on("a")
    return on


@pytest.fixture(scope="module")
def published(ecg_catalogs, s3_server):
    """Catalogs of the session copied to S3, as they are; not to be changed."""
    bucket = open_bucket("s3://benchmd-catalogs")
    boto3.client("s3").create_bucket(Bucket="benchmd-catalogs")
    for name in ("ptb-xl", "georgia"):
        folder = ecg_catalogs[name].path
        for path in sorted(folder.glob("**/*.*")):
            if path.is_file() and path.name != ".lock":
                key = f"lab/{name}/{path.relative_to(folder).as_posix()}"
                bucket.write(key, path.read_bytes())
    return {name: location(f"{bucket.address}/lab/{name}") for name in ("ptb-xl", "georgia")}


@pytest.fixture
def fetched(monkeypatch):
    """Keys that are read, in turn."""
    keys, read = [], Bucket.read

    def noted(bucket, key, *arguments, **named):
        keys.append(key)
        return read(bucket, key, *arguments, **named)

    monkeypatch.setattr(Bucket, "read", noted)
    return keys


def objects(address):
    return open_bucket(str(address)).objects()


def files(folder):
    return {f"shards/{path.name}": path.read_bytes() for path in (folder / "shards").iterdir()}


# Building


@pytest.mark.usefixtures("small_chunks")
def test_a_catalog_built_on_s3_is_byte_for_byte_the_local_one(
    s3, build_here, synthetic_raw, node, tmp_path
):
    out = location(f"{s3}/catalogs//georgia/")
    built = build_here("georgia", synthetic_raw["georgia"], out)
    local = build_here("georgia", synthetic_raw["georgia"], tmp_path / "local")
    assert str(built.path) == "s3://benchmd-test/catalogs/georgia"
    assert built.digest == local.digest
    held = {key: open_bucket(str(out)).read(key).data for key in objects(out)}
    assert json.loads(held.pop("lease.json"))["state"] == "free"
    assert held.pop(MANIFEST) == (local.path / MANIFEST).read_bytes()
    assert held == files(local.path)
    assert len(held) == 4
    assert not verify(built).faults
    assert build_here("georgia", synthetic_raw["georgia"], out).digest == local.digest


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("last", ["shards/test-00002.parquet", "parts/test-00001.json", MANIFEST])
def test_a_build_that_was_killed_goes_on_where_it_stopped(
    s3, build_here, synthetic_raw, node, tmp_path, monkeypatch, last
):
    """Killed just before an object is put: no put is ever half done."""
    out, write, written = location(f"{s3}/georgia"), Bucket.write, []

    def killed(bucket, key, data, **condition):
        whole = f"{bucket.address}/{key}".removeprefix(f"{out}/")
        if whole == last:
            raise KeyboardInterrupt
        written.append(whole)
        return write(bucket, key, data, **condition)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            build_here("georgia", synthetic_raw["georgia"], out)
    with pytest.raises(BenchmdError, match=rf"^{out} holds an unfinished catalog \(no manifest"):
        open_catalog(out)
    before = {name for name in written if name.startswith("parts/")}
    last, written[:] = None, []
    monkeypatch.setattr(Bucket, "write", killed)
    resumed = build_here("georgia", synthetic_raw["georgia"], out)
    again = {name for name in written if name.startswith("parts/")}
    assert not before & again
    assert len(before | again) == 4
    local = build_here("georgia", synthetic_raw["georgia"], tmp_path / "local")
    assert resumed.digest == local.digest
    assert not verify(resumed).faults
    assert not [key for key in objects(out) if key.startswith("parts/")]


@pytest.mark.usefixtures("small_chunks")
def test_two_machines_do_not_build_one_catalog_at_once(
    s3, build_here, synthetic_raw, node, monkeypatch
):
    out, build_row = location(f"{s3}/georgia"), building.build_row

    def other(row, card):
        monkeypatch.setattr(building, "build_row", build_row)
        node("b")
        with pytest.raises(Busy, match=f"machine is working on the catalog {out}: its last sign"):
            build_here("georgia", synthetic_raw["georgia"], out)
        monkeypatch.setattr(leases, "LEASE_SECONDS", 0.0)  # as after a long silence of the first
        build_here("georgia", synthetic_raw["georgia"], out)
        monkeypatch.setattr(building, "build_row", lambda *_: pytest.fail("it is not alone"))
        return build_row(row, card)

    monkeypatch.setattr(building, "build_row", other)
    with pytest.raises(Transient, match="another machine has taken over the catalog s3://"):
        build_here("georgia", synthetic_raw["georgia"], out)
    assert not verify(open_catalog(out)).faults


def test_a_prefix_that_holds_something_else_is_refused(s3, build_here, synthetic_raw, node):
    open_bucket(s3).write("mixed/shards/notes.txt", b"mine")
    open_bucket(s3).write("mixed/other/x", b"mine")
    with pytest.raises(BenchmdError, match=r"s3://.*/mixed holds something else .* \(in all 2\)"):
        build_here("georgia", synthetic_raw["georgia"], location(f"{s3}/mixed"))
    assert set(objects(f"{s3}/mixed")) == {"shards/notes.txt", "other/x"}


def test_a_lost_shard_on_s3_is_built_again(s3, build_here, synthetic_raw, node):
    out = location(f"{s3}/georgia")
    first = build_here("georgia", synthetic_raw["georgia"], out)
    open_bucket(str(out)).delete([first.manifest["shards"][0]["file"]])
    (fault,) = verify(first).faults
    assert fault.startswith("shards/test-00000.parquet: it is missing")
    with pytest.raises(BenchmdError, match=r"s3://\S+/test-00000.parquet is damaged: it is miss"):
        first.require_split("test")
    assert build_here("georgia", synthetic_raw["georgia"], out).digest == first.digest
    assert not verify(first).faults


# Reading


@pytest.mark.slow
def test_feeds_of_a_catalog_on_s3_are_those_of_the_local_one(
    published, ecg_catalogs, node, fetched
):
    local, remote = ecg_catalogs["ptb-xl"], open_catalog(published["ptb-xl"])
    there = resident_feed(remote, "train", seed=3, statistics=remote.statistics)
    here = resident_feed(local, "train", seed=3, statistics=local.statistics)
    for batch, expected in zip(there.ordered(64), here.ordered(64), strict=True):
        assert batch.signals.equal(expected.signals)
        assert batch.targets.equal(expected.targets)
    assert sorted(fetched) == sorted([MANIFEST, "train-00000.parquet"])  # one pass over the split
    for split in ("train", "validation"):
        assert read_units(remote, split) == read_units(local, split)
        for name, column in vars(read_columns(local, split)).items():
            np.testing.assert_array_equal(getattr(read_columns(remote, split), name), column)
    assert fetched.count("train-00000.parquet") == 1
    assert fetched.count("validation-00000.parquet") == 1
    node("b")  # which has nothing yet
    read_columns(remote, "train")
    assert fetched.count("train-00000.parquet") == 2


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_stream_from_s3_gives_the_local_batches(published, ecg_catalogs):
    local, remote = ecg_catalogs["ptb-xl"], open_catalog(published["ptb-xl"])

    def batches(catalog):
        feed = StreamingFeed(catalog, "train", seed=1, statistics=local.statistics)
        return list(feed.epoch(40, 0))

    for batch, expected in zip(batches(remote), batches(local), strict=True):
        assert batch.rows.tolist() == expected.rows.tolist()
        assert batch.signals.equal(expected.signals)
        assert batch.targets.equal(expected.targets)
    shards = [dict(shard, sha256="0" * 64) for shard in remote.manifest["shards"]]
    other = replace(remote, manifest=remote.manifest | {"shards": shards})
    with pytest.raises(BenchmdError, match=r"^s3://\S+parquet is damaged: its SHA-256 is not"):
        batches(other)


def test_training_from_s3_gives_the_local_losses_and_predictions(
    published, ecg_catalogs, node, tmp_path
):
    found = {}
    for name, at in (
        ("s3", published),
        ("local", {name: catalog.path for name, catalog in ecg_catalogs.items()}),
    ):
        node(name)
        upstream = pretrain_run("mae", at["ptb-xl"], tmp_path / name, TINY)
        run = transfer_run(
            at["ptb-xl"],
            tmp_path / name,
            TINY,
            upstream=upstream.folder,
            targets=(at["georgia"],),
        )
        lines = [line for r in (upstream, run) for line in read_metrics(r.folder)]
        found[name] = (
            [{k: v for k, v in line.items() if k != "per_second"} for line in lines],
            {
                path.name: sha256(path)
                for path in (run.folder / "predictions" / "classification").iterdir()
            },
            run.folder.name,
        )
    assert len(found["s3"][1]) == 4  # each with its hash
    assert found["s3"] == found["local"]


def test_a_search_opens_no_catalog_on_s3_but_its_own(published, ecg_catalogs, node, tmp_path):
    source, target = open_catalog(published["ptb-xl"]), published["georgia"]
    inner = inner_catalog(source, tmp_path / "inner")
    assert inner.digest == inner_catalog(ecg_catalogs["ptb-xl"], tmp_path / "other").digest
    with confined([inner.path]):
        open_catalog(inner.path)
        for refused in (lambda: open_catalog(target), lambda: source.shards("validation")):
            with pytest.raises(BenchmdError, match=r"^s3://\S+ must not be opened: a search sees"):
                refused()
        with pytest.raises(BenchmdError, match="must not be opened"):
            list(source.tables("train"))
    with confined([target]), confined([target, source.path]):
        open_catalog(location(f"{target}/"))
        with pytest.raises(BenchmdError, match="must not be opened"):
            open_catalog(source.path)


def test_an_altered_shard_on_s3_is_refused_where_it_is_read(s3, build_here, synthetic_raw, node):
    built = build_here("georgia", synthetic_raw["georgia"], location(f"{s3}/georgia"))
    (shard,) = built.shards("test")
    bucket = open_bucket(str(built.path))
    data = bytearray(bucket.read("shards/test-00000.parquet").data)
    data[len(data) // 2] ^= 1
    bucket.write("shards/test-00000.parquet", bytes(data))
    built.require_unaltered("test")  # which reads none of S3
    for read in (
        shard.table,
        lambda: read_columns(built, "test"),
        lambda: resident_feed(built, "test", seed=0),
    ):
        with pytest.raises(BenchmdError, match=r"is damaged: its SHA-256 is not the one"):
            read()
    assert "its SHA-256 is not the one" in verify(built).faults[0]


def test_a_catalog_that_was_replaced_is_read_anew(s3, build_here, synthetic_raw, node, fetched):
    out = location(f"{s3}/one")
    first = build_here("georgia", synthetic_raw["georgia"], out)
    fetched.clear()
    assert open_catalog(out).digest == open_catalog(out).digest == first.digest
    open_bucket(str(out)).delete(objects(out))
    with pytest.raises(BenchmdError, match=r"holds no catalog \(no manifest.json\)"):
        open_catalog(out)
    second = build_here("cpsc", synthetic_raw["cpsc"], out)
    assert second.dataset == "cpsc"
    open_bucket(str(out)).write(MANIFEST, b"[1]")
    with pytest.raises(BenchmdError, match=r"s3://\S+ is damaged: it is a list, expected"):
        open_catalog(out)


# Commands


def test_commands_take_addresses_of_catalogs(published, ecg_catalogs, node, tmp_path):
    def run(*arguments):
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.output

    source = published["ptb-xl"]
    digest = ecg_catalogs["ptb-xl"].digest
    assert run("catalog", "verify", source).splitlines()[-1] == (
        f"{source}: ptb-xl, 3 shards, digest {digest[:16]}: whole"
    )
    assert f"{source}: ptb-xl" in run("catalog", "show", source)
    here, there = (contents.examples(c, 1) for c in (ecg_catalogs["ptb-xl"], open_catalog(source)))
    assert str(here) == str(there)
    run("catalog", "export", published["georgia"], "--out", tmp_path / "s3.h5")
    export_hdf5(ecg_catalogs["georgia"], tmp_path / "local.h5")
    assert sha256(tmp_path / "s3.h5") == sha256(tmp_path / "local.h5")
    plan = run("run", "--dry-run", "--catalog", source.parent, "--tflops=1", "--items")
    assert "georgia" in plan
    refused = CliRunner().invoke(main, ["catalog", "build", "georgia", "--raw=s3://a/b", "--out=x"])
    assert "expected a folder: only catalogs and stores may be in an object store" in refused.output


def test_a_folder_of_catalogs_on_s3_is_looked_through(published, s3, node):
    lab = published["ptb-xl"].parent
    found = from_catalogs([lab])
    assert [dataset.name for dataset in found.datasets] == ["ptb-xl", "georgia"]
    assert [dataset.catalog for dataset in found.datasets] == list(published.values())
    assert from_catalogs([lab.parent, published["georgia"]]).datasets == found.datasets
    open_bucket(s3).write("deep/ecg/cpsc/shards/test-00000.parquet", b"")
    with pytest.raises(BenchmdError, match=r"s3://\S+/deep holds no catalog \(no manifest.json in"):
        from_catalogs([location(f"{s3}/deep")])
    manifest = open_bucket(str(lab)).read(f"georgia/{MANIFEST}").data
    open_bucket(s3).write(f"deep/ecg/georgia/{MANIFEST}", manifest)
    (note,) = from_catalogs([location(f"{s3}/deep")]).notes
    assert note == (
        f"{s3}/deep/ecg/cpsc: skipped, an unfinished catalog (run its `benchmd catalog build`)."
    )


def test_addresses_have_one_form(tmp_path):
    assert location("s3://lab//a/b/") == Address("s3://lab/a/b")
    assert str(Address("s3://lab/a") / "b") == "s3://lab/a/b"
    assert location("s3:/lab").is_absolute() is False  # a path, however odd
    for wrong in ("s3://", "s3://lab/../x", "s3://key:secret@lab/x", "s3://Lab/x"):
        with pytest.raises(BenchmdError, match="is not an address in an object store"):
            location(wrong)


# What goes wrong


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers every request as a server that does not know the key."""

    def refuse(self):
        key = "<AWSAccessKeyId>somebody</AWSAccessKeyId>"
        body = f"<Error><Code>{self.server.code}</Code><Message>no</Message>{key}</Error>".encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = refuse

    def log_message(self, *_):
        pass


@pytest.fixture
def refusing(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    server.status = 403
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
def test_wrong_credentials_are_named_and_not_shown(refusing, build_here, synthetic_raw, node, code):
    refusing.code, out = code, location("s3://benchmd-test/x")
    for ask in (
        lambda: open_catalog(out),
        lambda: from_catalogs([out]),
        lambda: build_here("georgia", synthetic_raw["georgia"], out),
    ):
        with pytest.raises(
            BucketError, match=rf"{code}.*refuses these credentials: .*AWS_PRO"
        ) as e:
            ask()
        assert SECRET not in str(e.value)
        assert "somebody" not in str(e.value)


def test_without_credentials_the_error_says_where_they_come_from(node, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        BucketError, match=r"There are no usable credentials\. Set AWS_ACCESS_KEY_ID"
    ):
        open_catalog(location("s3://benchmd-test/x"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    with pytest.raises(BenchmdError, match=r"profiles are not read: .*aws configure export-cred"):
        open_catalog(location("s3://benchmd-test/x"))
    with pytest.raises(BucketError, match=r"cannot .* az://.*Set AZURE_STORAGE_ACCOUNT_NAME"):
        open_catalog(location("az://benchmd-test/x"))


def test_a_bucket_that_is_not_there_is_named(s3, build_here, synthetic_raw, node):
    for ask in (
        lambda: open_catalog(location("s3://benchmd-none/x")),
        lambda: build_here("georgia", synthetic_raw["georgia"], location("s3://benchmd-none/x")),
    ):
        with pytest.raises(BucketError, match=r"s3://benchmd-none/x.*no such bucket there"):
            ask()


def test_an_unreachable_server_is_named_soon_and_without_what_its_address_hides(node, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:{SECRET}@127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(BucketError, match=r"cannot read from s3://lab/x: .*the network") as error:
        open_catalog(location("s3://lab/x"))
    assert time.monotonic() - start < 20
    assert SECRET not in str(error.value)


def test_without_obstore_the_error_says_what_to_install(monkeypatch):
    buckets._store.cache_clear()
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(
        BenchmdError, match=r"needs .* obstore, .*pip install 'benchmd-ray\[cloud\]'"
    ):
        open_catalog(location("s3://lab/x"))


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_a_server_that_is_away_for_a_moment_is_waited_for(
    s3, s3_server, build_here, synthetic_raw, node, monkeypatch
):
    """In the middle of a build, and of a reading."""
    out, build_row, away = location(f"{s3}/georgia"), building.build_row, []

    def leave():
        away.append(threading.Timer(0.7, s3_server.start))
        s3_server.stop()
        away[-1].start()

    def leaving(row, card):
        if not away:
            leave()
        return build_row(row, card)

    monkeypatch.setattr(building, "build_row", leaving)
    built = build_here("georgia", synthetic_raw["georgia"], out)
    away[0].join()
    assert not verify(built).faults
    built.require_split("test")
    tables = built.tables("test")
    leave()
    assert sum(map(len, tables)) == built.rows("test")
    away[1].join()


@pytest.mark.parametrize(
    ("status", "code", "away"),
    [
        (503, "SlowDown", True),
        (429, "TooManyRequests", True),
        (400, "RequestTimeout", True),
        (400, "InvalidRequest", False),
        (403, "AccessDenied", False),
    ],
)
def test_a_server_that_asks_for_another_try_is_waited_for(refusing, status, code, away):
    refusing.status, refusing.code = status, code
    with pytest.raises(BucketError, match=f"status {status}.*{code}") as raised:
        open_bucket("s3://lab").read("x")
    assert raised.value.away is away


def test_a_file_that_is_replaced_while_it_is_read_in_parts_is_never_mixed(
    s3, tmp_path, monkeypatch
):
    monkeypatch.setattr(buckets, "STRETCH", size := 1000)
    bucket, real = open_bucket(s3), Bucket._get
    bucket.write("x", b"a" * 2 * size)

    def replaced(self, key, options):
        result = real(self, key, options)
        if "head" in options:  # once its version is known
            bucket.write("x", b"b" * 2 * size)
        return result

    monkeypatch.setattr(Bucket, "_get", replaced)
    with pytest.raises(BucketError, match=r"status 412.*replaced meanwhile: run") as raised:
        bucket.download("x", tmp_path / "x", 2 * size)
    assert raised.value.away  # for another try
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(Bucket, "_get", real)
    assert bucket.download("x", tmp_path / "x", 2 * size)
    assert (tmp_path / "x").read_bytes() == b"b" * 2 * size


def test_a_marker_of_a_folder_is_no_object(s3):
    bucket, client = open_bucket(f"{s3}/lab"), boto3.client("s3")
    for key in ("lab/", "lab/runs/", "lab/a", "lab/runs/b"):
        client.put_object(Bucket="benchmd-test", Key=key, Body=b"")
    assert bucket.entries() == ({"a": 0}, ["runs"])
    assert bucket.objects().keys() == {"a", "runs/b"}
    for key in ("lab/", "lab/runs/"):
        client.delete_object(Bucket="benchmd-test", Key=key)


class Cutting(http.server.BaseHTTPRequestHandler):
    """Has one object, but closes the connection in the middle of as many answers as asked."""

    def do_GET(self):
        begin = int((self.headers["Range"] or "bytes=0-").partition("=")[2].partition("-")[0])
        rest = self.server.data[begin:]
        self.send_response(206 if begin else 200)
        if begin:
            whole = len(self.server.data)
            self.send_header("Content-Range", f"bytes {begin}-{whole - 1}/{whole}")
        self.send_header("Content-Length", str(len(rest)))
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 02:48:14 GMT")
        self.end_headers()
        self.server.cuts -= 1
        self.wfile.write(rest[: len(rest) // 2] if self.server.cuts >= 0 else rest)

    def log_message(self, *_):
        pass


def test_an_answer_that_is_cut_off_is_asked_for_again(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cutting)
    server.data, server.cuts = os.urandom(100_000), 2
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    assert open_bucket("s3://lab").read("x").data == server.data
    server.cuts = 100
    with pytest.raises(BucketError, match=r"cannot read from s3://\S+: .*cut off") as raised:
        open_bucket("s3://lab").read("x")
    assert raised.value.away
    server.shutdown()
    server.server_close()
