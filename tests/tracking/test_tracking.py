"""W&B sees every item, learns nothing private, and can neither fail nor delay a run."""

from __future__ import annotations

import getpass
import json
import math
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import stored
import torch
import wandb
from stores import (
    SEARCH,
    make_ladder,
    make_pretraining,
    make_search,
    make_transfer,
    predict_all,
    search_name,
)
from waiting import until
from wandb.proto import wandb_internal_pb2

from benchmd_ray.cluster.hardware import hardware
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import append_text
from benchmd_ray.files.integrity import line
from benchmd_ray.report.analysis import analyse
from benchmd_ray.runs.files import RUN
from benchmd_ray.runs.history import trained_by
from benchmd_ray.service import tracked
from benchmd_ray.service.execute import pretrain_run, transfer_run
from benchmd_ray.settings.definition import ENCODERS, Settings, updated
from benchmd_ray.tracking import upload as tracking
from benchmd_ray.tracking.dashboard import Dashboard, chosen_mode
from benchmd_ray.tracking.upload import Followed, Tracker
from benchmd_ray.tracking.values import trials_of

SMALL = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {
        "pretrain": {"steps": 4, "batch_size": 8},
        "transfer": {"epochs": 2, "batch_size": 16},
        "execution": {"log_every": 2},
    },
)
KEY = "0123456789abcdef0123456789abcdef01234567"


OFFLINE = Dashboard("offline")


def item(name: str, kind: str, dataset: str = "ptb-xl", more: int = 0) -> Followed:
    evaluates, pretrains = kind == "evaluate", kind == "pretrain"
    evaluation = "" if pretrains else "classification"
    names = (name, "ecg", "mae", dataset)
    return Followed(*names, makes_run=not evaluates, more=more, evaluation=evaluation)


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


def settings_sent(folder: Path) -> dict[str, object]:
    return {u.key: json.loads(u.value_json) for u in about(folder).config.update}


def summaries(folder: Path) -> dict[str, object]:
    found = {}
    for record in records(folder):
        if record.WhichOneof("record_type") == "summary":
            for entry in record.summary.update:
                found["/".join(entry.nested_key) or entry.key] = json.loads(entry.value_json)
    return found


@pytest.mark.slow
def test_every_training_is_a_run_and_has_all_its_scores_offline_without_a_key(done, tmp_path):
    store, upstream, run = done
    report = tmp_path / "report"
    (report / "figures").mkdir(parents=True)
    (report / "report.html").write_text("<p>numbers</p>")
    tracker = Tracker(store, Dashboard("auto", "study", "lab", ("first",)))
    tracker.started(item("p", "pretrain"), upstream)
    tracker.finished(item("p", "pretrain"), upstream)
    tracker.started(item("t", "transfer", more=2), run)
    tracker.finished(item("t", "transfer", more=2), run)
    tracker.reported(report)
    tracker.failed(item("t", "evaluate", "chapman-shaoxing"), "record p10000032/s1 is not finite")
    tracker.finished(item("t", "evaluate", "georgia"), run)
    assert "wandb sync" in tracker.closed()
    assert not (store / "wandb" / "errors.log").exists()
    folders = {about(f).display_name: f for f in (store / "wandb").glob("offline-run-*")}
    assert set(folders) == {"p", "t", "report"}
    assert {about(folders[n]).run_group for n in "pt"} == {"ecg/mae"}
    assert [about(folders[n]).job_type for n in "pt"] == ["pretrain", "transfer"]
    for folder in folders.values():
        assert (about(folder).project, about(folder).entity) == ("study", "lab")
    assert [list(about(folders[n]).tags) for n in "pt"] == [["first"], ["first"]]
    exits = [r.exit.exit_code for r in records(folders["t"]) if r.HasField("exit")]
    assert exits == [0]
    steps = [r.history.step.num for r in records(folders["p"]) if r.HasField("history")]
    lines = (upstream / "metrics.jsonl").read_text().splitlines()
    assert steps == [json.loads(line)["done"] for line in lines]
    config = settings_sent(folders["t"])
    assert config["settings"]["transfer"]["epochs"] == 2
    assert config["technique"] == "mae"
    updates = [u for r in records(folders["t"]) if r.HasField("config") for u in r.config.update]
    (trained,) = (json.loads(u.value_json) for u in updates if u.key == "hardware")
    assert trained == [str(one) for one in trained_by(run)] == [str(hardware(torch.device("cpu")))]
    selected = json.loads((run / "training.json").read_text())["validation_auroc"]
    assert summaries(folders["t"])["ptb-xl/validation/auroc"] == pytest.approx(selected, abs=1e-6)
    assert "georgia/test/auroc" in summaries(folders["t"])
    assert summaries(folders["t"])["chapman-shaoxing/failed"] is True
    tables = {p.name.partition("_")[0] for p in (folders["t"] / "files").rglob("*.table.json")}
    assert tables == {"ptb-xl", "georgia"}
    logged = {
        name: {e.key or e.nested_key[0] for r in records(folders[name]) for e in r.history.item}
        for name in "pt"
    }
    assert {"pretrain/loss", "pretrain/per_second"} <= logged["p"]
    assert {"transfer/loss", "transfer/validation_auroc"} <= logged["t"]
    assert not any("loss" in key and "/" not in key for held in logged.values() for key in held)
    (html,) = (folders["report"] / "files" / "media").rglob("*.html")
    assert html.read_text() == "<p>numbers</p>"
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


@pytest.mark.slow
def test_an_unreachable_service_neither_fails_nor_delays(done, tmp_path, monkeypatch):
    store = tmp_path / "store"
    store.mkdir()
    with socket.socket() as closed:  # a port where nothing listens
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setattr(tracking, "END_SECONDS", 90.0)
        tracker = Tracker(store, Dashboard("auto"), reach_seconds=3.0)
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


def test_of_many_transfers_few_stay_open_and_each_gets_its_scores(tmp_path, monkeypatch):
    told, begun = [], []
    following = tracking._Following(tmp_path, OFFLINE, 1.0)

    class Shown:
        def __init__(self, name):
            self.name, self.config, self.summary = name, self, {}
            begun.append(name)

        def update(self, *_, **__):
            pass

        def log(self, line, step):
            told.append((self.name, step))

        def finish(self, exit_code=0):
            assert exit_code == 0

    def read(folder):
        said = {"determinants": {"catalog": ""}, "kind": "transfer"}
        return SimpleNamespace(description=said, folder=folder, digest=folder.name)

    scored = []
    monkeypatch.setattr(tracking, "read_run", read)
    monkeypatch.setattr(tracking, "trained_by", lambda _: ())
    monkeypatch.setattr(tracking, "MOST_OPEN", 2)
    monkeypatch.setattr(tracking, "tell_scores", lambda run, *about: scored.append(run.name))
    monkeypatch.setattr(following, "_init", lambda identity, name, *_: Shown(name))
    names = [f"t{n}" for n in range(5)]
    for name in names:
        (tmp_path / name).mkdir()
        append_text(tmp_path / name / "metrics.jsonl", line({"done": 1, "loss": 1.0}))
        following.finished(item(name, "transfer", more=1), tmp_path / name)
        assert len(following.open) <= 2
    for name in names:
        following.poll()
        following.finished(item(name, "evaluate", "georgia"), tmp_path / name)
    assert not following.open
    assert scored == [*names, *names]
    assert sorted(told) == [(name, 1) for name in names]  # no line twice
    assert sorted(begun) == sorted([*names, *names[:3]])  # three were opened again


def test_where_and_how_runs_are_shown_is_chosen(tmp_path, monkeypatch):
    told = {}
    monkeypatch.setattr(wandb, "init", lambda **arguments: told.update(arguments))
    dashboard = Dashboard("offline", "study", "lab", ("first",), system=True)
    following = tracking._Following(tmp_path, dashboard, 1.0)
    following._init("id", "name", "group", "transfer", {"provenance": "synthetic"})
    assert (told["project"], told["entity"]) == ("study", "lab")
    assert told["tags"] == ["first", "synthetic"]
    assert not told["settings"].x_disable_stats
    assert told["settings"].x_disable_machine_info
    following = tracking._Following(tmp_path, OFFLINE, 1.0)
    following._init("id", "name", "group", "transfer", {"provenance": "whole"})
    assert (told["project"], told["entity"], told["tags"]) == ("benchmd", None, [])
    assert told["settings"].x_disable_stats


def test_the_process_that_follows_ends_when_it_cannot_be_told_everything(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "END_SECONDS", 0.0)
    tracker = Tracker(tmp_path, OFFLINE)
    start = time.monotonic()
    assert "Not everything could be sent to W&B" in tracker.closed()
    assert time.monotonic() - start < 5.0
    tracker._process.join(10)
    assert not tracker._process.is_alive()


class Recorded:
    """What a W&B run was sent."""

    def __init__(self):
        self.steps, self.config, self.ended = [], self, False

    def update(self, *_, **__):
        pass

    def log(self, line, step):
        self.steps.append(step)

    def finish(self, exit_code=0):
        self.ended = True


def test_a_run_that_is_described_after_it_was_announced_is_followed_from_then_on(
    tmp_path, monkeypatch
):
    """The messages come without a pause, as those of a large plan do."""
    made, (messages, give) = {}, multiprocessing.Pipe(duplex=False)
    following = tracking._Following(tmp_path, OFFLINE, 1.0)

    def init(identity, name, *_):
        made[name] = Recorded()
        return made[name]

    def read(folder):
        assert (folder / RUN).is_file(), f"{folder} is not a run"
        said = {"determinants": {"catalog": ""}, "kind": "pretrain"}
        return SimpleNamespace(description=said, folder=folder, digest="")

    for name, value in (("POLL_SECONDS", 0.05), ("read_run", read), ("trained_by", lambda _: ())):
        monkeypatch.setattr(tracking, name, value)
    monkeypatch.setattr(following, "_init", init)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    thread = threading.Thread(target=tracking._follow, args=(messages, following, os.getppid()))
    thread.start()
    folder, own, other = tmp_path / "late", item("late", "pretrain"), item("other", "pretrain")
    folder.mkdir()
    give.send(("started", own, folder))

    def while_others_are_told(happened):
        for _ in range(10):
            give.send(("failed", other, ""))
        return happened()

    polls = []
    usual = following.poll
    monkeypatch.setattr(following, "poll", lambda: (polls.append(1), usual())[1])
    until("look at it", partial(while_others_are_told, lambda: len(polls) > 1))
    assert not made
    (folder / RUN).touch()
    until("run of W&B", partial(while_others_are_told, lambda: "late" in made))
    for done in range(1, 40):
        append_text(folder / "metrics.jsonl", line({"done": done, "loss": 1.0}))
    told = made["late"]
    until("lines", partial(while_others_are_told, lambda: len(told.steps) == 39))
    assert not told.ended  # they come while it works
    give.send(("finished", own, folder))
    give.send(("closed", None, None))
    thread.join(60)
    assert told.ended
    assert told.steps == list(range(1, 40))
    assert not (tmp_path / "wandb" / "errors.log").exists()


@pytest.mark.slow
def test_the_process_that_follows_imports_nothing_of_the_working_folder(tmp_path):
    script, folder = tmp_path / "script" / "run.py", tmp_path / "theirs"
    for place in (script.parent, folder):
        place.mkdir()
    for name in ("socket.py", "wandb.py", "multiprocessing.py"):
        (folder / name).write_text("open('imported', 'w')")
    script.write_text(
        "from pathlib import Path\n"
        "from benchmd_ray.tracking.upload import Dashboard, Tracker\n"
        "if __name__ == '__main__':\n"
        f"    print(Tracker(Path({str(tmp_path)!r}), Dashboard('offline')).closed())\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (folder / "imported").exists()


def test_a_broken_run_is_written_down_and_nothing_else(tmp_path):
    following = tracking._Following(tmp_path, OFFLINE, 1.0)
    following.guarded(lambda: following.finished(item("p", "pretrain"), tmp_path / "no-run"))
    assert "no-run is not a run" in (tmp_path / "wandb" / "errors.log").read_text()


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
        self.logged = []

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self, exit_code):
        self.exit_code = exit_code


def test_why_an_item_failed_is_not_told(tmp_path):
    told, following = Told(), tracking._Following(tmp_path, OFFLINE, 1.0)
    following.open["t"] = tracking._Open(told, tmp_path, "transfer")
    following.failed(item("t", "transfer"), "record p10000032/s1 on node-7 is not finite")
    assert (told.summary, told.exit_code) == ({"failed": True}, 1)
    assert not following.open


OF_SEARCH = {"modality": "ecg", "host": "node-7", "provenance": "synthetic"}


def searched(store):
    """Folder of a search over families, and its trials with a reason that is private."""
    ladder = make_ladder(12)
    ladder["rows"][10]["reason"] = f"OSError: {Path.home()}/x of {os.uname().nodename} is not there"
    make_search(store, **ladder)
    return trials_of(store, SEARCH, ())


def folders_of(store):
    return {about(f).display_name: f for f in (store / "wandb").glob("offline-run-*")}


def history(folder, name):
    return [
        (r.history.step.num, json.loads(item.value_json))
        for r in records(folder)
        if r.HasField("history")
        for item in r.history.item
        if name in (item.key, *item.nested_key)
    ]


def table_of(folder, name):
    (path,) = (folder / "files").rglob(f"{name}_*.table.json")
    table = json.loads(path.read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


@pytest.mark.slow
def test_each_trial_of_a_search_is_a_run_and_all_are_a_table(tmp_path):
    trials = searched(tmp_path)
    lines = []
    search = tracked.TrackedSearch(tmp_path, Dashboard("auto"), lines.append)
    # Others ended in an earlier session, which sent them, or are sent at the end.
    for number in (1, 6, 10):
        search.trial_ended(SEARCH, OF_SEARCH, trials[number])
    search.closed()
    assert "wandb sync" in lines[0]
    assert not (tmp_path / "wandb" / "errors.log").exists()
    folders = folders_of(tmp_path)
    scored = [n for n, trial in enumerate(trials) if trial["evaluations"]]
    assert set(folders) == {SEARCH, *(f"{SEARCH}/{number}" for number in (*scored, 6, 10))}
    assert {about(f).run_group for f in folders.values()} == {SEARCH}
    assert {tuple(about(f).tags) for f in folders.values()} == {("synthetic",)}
    first = folders[f"{SEARCH}/1"]
    assert about(first).job_type == "trial"
    config = settings_sent(first)
    kernels = trials[1]["encoder.options.kernels"]
    assert {name: value for name, value in config.items() if name != "_wandb"} == {
        **{"search": SEARCH, "modality": "ecg", "provenance": "synthetic", "trial": 1},
        **{"family": "random-kernels linear", "encoder_options_kernels": kernels},
    }
    steps, means = zip(*history(first, "paired_mean"), strict=True)
    ours, start = ([p["value"] for p in trials[n]["scores"]] for n in (1, 0))
    expected = [np.mean(start) + np.mean(np.subtract(ours, start)[:count]) for count in range(1, 7)]
    assert steps == (1, 2, 3, 4, 5, 6)
    assert means == pytest.approx(expected)
    summary = summaries(first)
    assert summary["score"] == pytest.approx(trials[1]["value"])
    gain = trials[1]["value"] - trials[0]["value"]
    assert summary["difference_to_start"] == pytest.approx(gain)
    assert (summary["state"], summary["evaluations"]) == ("complete", 6)
    assert "score" not in summaries(folders[f"{SEARCH}/6"])
    exits = [r.exit.exit_code for r in records(folders[f"{SEARCH}/10"]) if r.HasField("exit")]
    assert exits == [1]
    rows = table_of(folders[SEARCH], "trials")
    assert [(row["trial"], row["family"], row["state"]) for row in rows] == [
        (trial["number"], trial["family"], trial["state"]) for trial in trials
    ]
    assert [row["score"] for row in rows] == [trial["value"] for trial in trials]
    assert not {"reason", "scores", "curve"} & {*rows[0]}
    summary = summaries(folders[SEARCH])
    assert (summary["choice/trial"], summary["choice/family"]) == (1, "random-kernels linear")
    assert summary["choice/score"] == trials[1]["value"]
    assert (summary["choice/start_score"], summary["choice/folds"]) == (trials[0]["value"], 6)
    assert summary["trials/complete"] == 10
    _require_private(folders.values(), tmp_path)
    for folder in folders.values():
        sent = b"".join(r.SerializeToString() for r in records(folder))
        assert b"is not there" not in sent
        assert b"node-7" not in sent


@pytest.mark.slow
@pytest.mark.parametrize("better", [True, False])
def test_the_search_gets_the_comparison_of_choice_and_start(tmp_path, better):
    make_search(tmp_path, **make_ladder(12, better=better))
    for fold in range(2):
        runs = [make_transfer(tmp_path, setting="finetune-full", fold=fold)]
        if better:
            upstream = make_pretraining(tmp_path, "random-kernels", fold=fold)
            tuned = {"upstream": upstream, "changes": {"tuned": SEARCH}}
            runs.append(make_transfer(tmp_path, "random-kernels", fold=fold, **tuned))
        for run in runs:
            predict_all(run, {"ptb-xl": {"validation": 240}}, skill=0.5)
    make_search(tmp_path, search_name("another"))
    plan = SimpleNamespace(items=())
    observer = tracked.TrackedPlan(tmp_path, OFFLINE, plan, print, [SEARCH])
    observer.closed()
    assert not (tmp_path / "wandb" / "errors.log").exists()
    ((name, folder),) = folders_of(tmp_path).items()
    assert name == SEARCH
    analysis = analyse(stored.runs([tmp_path]), searches=stored.searches([tmp_path]), resamples=200)
    summary, rows = summaries(folder), table_of(folder, "final")
    prefix = "final/ptb-xl/validation"
    protocols = ("tuned", "tuned ensemble") if better else ("start", "start ensemble")
    assert [row["protocol"] for row in rows] == [*protocols]
    whole = analysis.scores.query("metric == 'auroc' and `class` == 'mean'").set_index("protocol")
    for row, protocol in zip(rows, protocols, strict=True):
        key = f"{prefix}/{protocol.replace(' ', '_')}"
        assert summary[key] == row["value"] == pytest.approx(whole["value"][protocol])
        if better:
            start = whole["value"][protocol.replace("tuned", "start")]
            assert summary[f"{key}_start"] == pytest.approx(start)
            assert summary[f"{key}_difference"] == pytest.approx(row["value"] - start)
            assert 0 < summary[f"{key}_p"] <= 1
    _require_private([folder], tmp_path)


def test_a_trial_that_climbs_is_sent_from_where_it_was(tmp_path):
    trials = searched(tmp_path)
    told = Told()
    tracking.tell_trial(told, trials[1], trials[0], sent=3)
    assert [step for step, _ in told.logged] == [4, 5, 6]


def test_the_modalities_of_a_universal_search_are_results_not_settings():
    told = Told()
    row = trial(4, value=0.6) | {"score:ecg": 0.5, "score:cxr": math.nan}
    tracking.tell_trial(told, row, None)
    assert told.summary["score/ecg"] == 0.5
    assert "score/cxr" not in told.summary
    names = {"trial", "family", "transfer_optimiser_lr", "encoder_pool"}
    assert set(tracking.trial_config(row)) == names


def test_a_search_without_a_folder_shows_the_trials_that_were_told(tmp_path):
    rows = [trial(7), trial(2, "failed"), trial(7, "stopped")]
    found = trials_of(tmp_path, SEARCH, rows)
    assert [(row["number"], row["state"]) for row in found] == [(2, "failed"), (7, "stopped")]


def trial(number, state="complete", *, value=math.nan):
    """A row of a search's trials, with values as pandas has them."""
    return {
        **{"number": np.int64(number), "family": "mae linear", "state": state, "reason": None},
        **{"value": value, "evaluations": 0, "scores": None, "seconds": np.float64(2.5)},
        **{"started": "2026-01-02T03:04:05+00:00", "finished": None, "curve": None},
        **{"transfer.optimiser.lr": 0.01, "encoder.pool": "cls"},
        "transfer.layer_decay": math.nan,
    }


class Broken:
    """Stands for a tracker that can do nothing."""

    def __init__(self, store, mode):
        pass

    def __getattr__(self, name):
        raise RuntimeError(f"{name} is broken")


def test_what_goes_wrong_never_touches_a_search(tmp_path, monkeypatch):
    following = tracking._Following(tmp_path, OFFLINE, 1.0)
    following.guarded(lambda: following.trial_ended((SEARCH, OF_SEARCH), {"state": "complete"}))
    assert "number" in (tmp_path / "wandb" / "errors.log").read_text()
    monkeypatch.setattr(tracked, "Tracker", Broken)
    said = []
    search = tracked.TrackedSearch(tmp_path, OFFLINE, said.append)
    search.trial_ended(SEARCH, OF_SEARCH, trial(0))
    search.closed()
    assert said == ["Not everything could be sent to W&B."]


def test_runs_that_were_written_offline_earlier_say_nothing_of_this_session(tmp_path, monkeypatch):
    class Idle:
        """Stands for the process that follows."""

        exitcode = 0

        def __init__(self, **_):
            pass

        def start(self):
            pass

        def join(self, _):
            pass

        def is_alive(self):
            return False

    monkeypatch.setattr(multiprocessing.get_context("spawn"), "Process", Idle)
    (tmp_path / "wandb" / "offline-run-20260101_000000-a").mkdir(parents=True)
    assert Tracker(tmp_path, Dashboard("online")).closed().startswith("W&B: runs sent")
    tracker = Tracker(tmp_path, Dashboard("online"))
    (tmp_path / "wandb" / "offline-run-20260102_000000-b").mkdir()
    assert "not reachable for all runs" in tracker.closed()
