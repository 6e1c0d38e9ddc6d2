"""W&B sees every item, learns nothing private, and can neither fail nor delay a run."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import time
from pathlib import Path

import pytest
from wandb.proto import wandb_internal_pb2

from benchmd_ray.errors import BenchmdError
from benchmd_ray.results import tracking
from benchmd_ray.results.tracking import Followed, Tracker, chosen_mode, report_files
from benchmd_ray.service.execute import pretrain_run, transfer_run
from benchmd_ray.settings import ENCODERS, Settings, updated

SMALL = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {
        "pretrain": {"steps": 4, "batch_size": 8},
        "transfer": {"epochs": 2, "batch_size": 16},
        "execution": {"log_every": 2},
    },
)
KEY = "0123456789abcdef0123456789abcdef01234567"


def item(name: str, kind: str, dataset: str = "ptb-xl") -> Followed:
    return Followed(name, kind, "ecg", "mae", dataset)


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path / "home-of-somebody"))


@pytest.fixture(scope="module")
def done(ecg_catalogs, tmp_path_factory):
    store = tmp_path_factory.mktemp("tracked")
    source, target = (ecg_catalogs[name].path for name in ("ptb-xl", "georgia"))
    upstream = pretrain_run("mae", source, store, SMALL)
    run = transfer_run(source, store, SMALL, upstream=upstream.folder, targets=(target,))
    return store, upstream.folder, run.folder


def records(folder: Path) -> list[wandb_internal_pb2.Record]:
    """What an offline run holds for W&B: records in the log format of LevelDB."""
    (path,) = folder.glob("*.wandb")
    data, block = path.read_bytes(), 32768
    place, part, found = 7, b"", []  # after W&B's own header
    while place + 7 <= len(data):
        if block - place % block < 7:  # no header fits into the rest of a block
            place += block - place % block
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            found.append(record)
            part = b""
    return found


def about(folder: Path) -> wandb_internal_pb2.RunRecord:
    (run,) = [r.run for r in records(folder) if r.WhichOneof("record_type") == "run"][:1]
    return run


def summaries(folder: Path) -> dict[str, object]:
    found = {}
    for record in records(folder):
        if record.WhichOneof("record_type") == "summary":
            for entry in record.summary.update:
                found["/".join(entry.nested_key) or entry.key] = json.loads(entry.value_json)
    return found


@pytest.mark.ray
@pytest.mark.slow
def test_every_item_is_a_run_of_its_own_offline_without_a_key(done, tmp_path):
    store, upstream, run = done
    report = tmp_path / "report"
    (report / "figures").mkdir(parents=True)
    (report / "report.html").write_text("<p>numbers</p>")
    tracker = Tracker(store, "auto")
    tracker.started(item("p", "pretrain"), upstream)
    tracker.finished(item("p", "pretrain"), upstream)
    tracker.finished(item("t", "transfer"), run)
    tracker.finished(item("e", "evaluate", "georgia"), run)
    tracker.reported(report)
    assert "wandb sync" in tracker.closed()
    assert not (store / "wandb" / "errors.log").exists()
    folders = {about(f).display_name: f for f in (store / "wandb").glob("offline-run-*")}
    assert set(folders) == {"p", "t", "e", "report"}
    assert {about(folders[n]).run_group for n in "pte"} == {"ecg/mae"}
    assert [about(folders[n]).job_type for n in "pte"] == ["pretrain", "transfer", "evaluate"]
    steps = [r.history.step.num for r in records(folders["p"]) if r.HasField("history")]
    lines = (upstream / "metrics.jsonl").read_text().splitlines()
    assert steps == [json.loads(line)["done"] for line in lines]
    config = {u.key: json.loads(u.value_json) for u in about(folders["t"]).config.update}
    assert config["settings"]["transfer"]["epochs"] == 2
    assert config["technique"] == "mae"
    selected = json.loads((run / "training.json").read_text())["validation_auroc"]
    assert summaries(folders["t"])["ptb-xl/validation/auroc"] == pytest.approx(selected, abs=1e-6)
    assert "georgia/test/auroc" in summaries(folders["e"])
    artifacts = [r.artifact for r in records(folders["report"]) if r.HasField("artifact")]
    assert "report.html" in str(artifacts)
    _require_private(folders.values(), store)


def _require_private(folders, store):
    """Names of machine, user, home and store are in no record but where a file lies here."""
    private = {socket.gethostname(), str(Path.home()), str(store), KEY}
    if getpass.getuser() != "root":  # a word that stands anywhere
        private.add(getpass.getuser())
    for folder in folders:
        for record in records(folder):
            for entry in record.artifact.manifest.contents if record.HasField("artifact") else ():
                entry.local_path = ""  # read by `wandb sync`, not sent
            held = record.SerializeToString()
            for word in map(re.escape, private):  # a short host name is part of many hashes
                found = re.search(rf"(?<!\w){word}(?!\w)".encode(), held)
                assert found is None, (word, record.WhichOneof("record_type"))


@pytest.mark.ray
@pytest.mark.slow
def test_an_unreachable_service_neither_fails_nor_delays(done, tmp_path, monkeypatch):
    store = tmp_path / "store"
    store.mkdir()
    with socket.socket() as closed:  # a port where nothing listens
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setattr(tracking, "END_SECONDS", 90.0)
        tracker = Tracker(store, "auto", reach_seconds=3.0)
        assert tracker.mode == "online"
        start = time.monotonic()
        tracker.started(item("p", "pretrain"), done[1])
        tracker.finished(item("p", "pretrain"), done[1])
        tracker.failed(item("t", "transfer"), "the disk /home/somebody/x is full")
        assert time.monotonic() - start < 1.0
        said = tracker.closed()
    assert "not reachable" in said
    (folder,) = (store / "wandb").glob("offline-run-*")
    assert about(folder).display_name == "p"
    assert all(KEY.encode() not in p.read_bytes() for p in store.rglob("*") if p.is_file())


def test_the_process_that_follows_ends_when_it_cannot_be_told_everything(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "END_SECONDS", 0.0)
    tracker = Tracker(tmp_path, "offline")
    start = time.monotonic()
    assert "could not be told everything" in tracker.closed()
    assert time.monotonic() - start < 5.0
    tracker._process.join(10)
    assert not tracker._process.is_alive()


def test_a_broken_run_is_written_down_and_nothing_else(tmp_path):
    tracker = Tracker(tmp_path, "offline")
    tracker.finished(item("p", "pretrain"), tmp_path / "no-run")
    tracker.closed()
    assert "no-run is no run" in (tmp_path / "wandb" / "errors.log").read_text()


def test_the_mode_follows_key_and_environment(monkeypatch, tmp_path):
    assert chosen_mode("auto") == "offline"
    Path(os.environ["NETRC"]).write_text(f"machine api.wandb.ai login user password {KEY}\n")
    Path(os.environ["NETRC"]).chmod(0o600)
    assert chosen_mode("auto") == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert chosen_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert chosen_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert chosen_mode("auto") == "off"
    assert chosen_mode("offline") == "offline"
    with pytest.raises(BenchmdError, match="onlin"):
        chosen_mode("onlin")


class Told:
    """Stands for a W&B run."""

    def __init__(self):
        self.summary = {}

    def finish(self, exit_code):
        self.exit_code = exit_code


def test_why_an_item_failed_is_not_told(tmp_path):
    told, following = Told(), tracking._Following(tmp_path, "offline", "benchmd", 1.0)
    following.open["t"] = tracking._Open(told, tmp_path)
    following.failed(item("t", "transfer"), "record p10000032/s1 on node-7 is not finite")
    assert (told.summary, told.exit_code) == ({"failed": True}, 1)
    assert not following.open


def test_of_a_folder_nothing_but_the_report_is_sent(tmp_path):
    sent = ["report.html", "auroc.csv", "auroc_per_run.csv", "pairs.tex", "figures/a.png"]
    for name in (*sent, "patients.csv", "runs/t/predictions/ptb-xl.parquet", "figures/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in report_files(tmp_path)]
    assert sorted(found) == sorted(sent)
