"""Trials of a search on S3: another machine resumes them, and believes no archive."""

import io
import os
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from told import Interrupted, Told

from benchmd_ray.errors import Gone
from benchmd_ray.files.integrity import name_of, write_hash
from benchmd_ray.runs.places import store_folder
from benchmd_ray.storage.bucket import open_bucket
from benchmd_ray.storage.location import Address
from benchmd_ray.training.checkpoints import checkpoint_step
from benchmd_ray.tuning import stages, trial_files
from benchmd_ray.tuning.stages import Pretraining, Transfer, TrialContext
from benchmd_ray.tuning.trial import run_trial
from benchmd_ray.tuning.trial_files import (
    Archive,
    get_scores,
    leave_only,
    local_folder,
    put_scores,
    remove_idle,
    start_here,
    weights_here,
    worked_seconds,
)

LR = "transfer.optimiser.lr"
FINETUNE = ("transfer.mode=finetune", "transfer.labels=full")


@pytest.fixture
def search(s3):
    return Address(f"{s3}/study/searches/tune-made-0123456789ab")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Goes on as another machine, whose cache has nothing of this one's."""

    def on(name):
        monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / name))

    on("first")
    return on


@pytest.fixture
def often(monkeypatch):
    """Trials are published after every report."""
    monkeypatch.setattr(trial_files, "PUT_SECONDS", 0.0)
    monkeypatch.setattr(trial_files, "SHARE", 1e9)
    monkeypatch.setattr(stages, "NOTE_SECONDS", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [Transfer(), Pretraining()], ids=["transfer", "pretraining"])
def test_another_machine_goes_on_from_the_newest_checkpoint(
    arm, search, machine, often, s3, pretrained_ecg, tmp_path, stage
):
    upstream = Address(f"{s3}/study/pretrained-0123456789ab")
    bucket = open_bucket(str(upstream))
    for name in ("model.safetensors", "model.json"):
        bucket.write(name, (pretrained_ecg / name).read_bytes())
    own = arm(*FINETUNE, upstream=None if stage.pretrains else upstream)
    values = {LR: 1e-2}
    work = TrialContext("mae", stage, (own,), search, (1, 3))
    calm = replace(work, folder=tmp_path / "calm", arms=(arm(*FINETUNE),))
    whole, first, second = Told(), Told(3), Told()
    run_trial(calm, 0, values, whole)
    with pytest.raises(Interrupted):
        run_trial(work, 0, values, first, resumed=False)
    machine("second")
    unpacked = Archive(search, 0)
    unpacked.restore()
    folder = local_folder(search) / "trials" / "00000" / "000" / "1"
    assert checkpoint_step(folder / ("pretrain" if stage.pretrains else "transfer")) >= 2
    run_trial(work, 0, values, second)
    assert first.scores + second.scores == whole.scores
    leave_only(search, [])
    assert not open_bucket(f"{search}/trials").objects()


def test_a_short_trial_that_is_new_asks_nothing_of_the_bucket(arm, machine):
    """Where nothing listens, whatever is asked fails."""
    search = Address("s3://no/study/searches/a")
    work = TrialContext("scratch", Transfer(), (arm(*FINETUNE),), search, ())
    told = Told()
    run_trial(work, 0, {}, told, resumed=False)
    assert told.scores[-1][-1]


def made(search, number, seconds, **files):
    folder = local_folder(search) / "trials" / f"{number:05d}"
    folder.mkdir(parents=True)
    (folder / "seconds").write_text(f"{seconds:.3f}")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_older_work_never_takes_the_place_of_newer(search, machine, often):
    made(search, 7, 10.0, state=b"older")
    Archive(search, 7).tick()
    machine("second")
    folder = made(search, 7, 20.0, state=b"newer")
    Archive(search, 7).restore()
    assert (folder / "state").read_bytes() == b"newer"
    machine("third")
    folder = made(search, 7, 5.0, state=b"still older")
    Archive(search, 7).restore()
    assert (folder / "state").read_bytes() == b"older"


@pytest.mark.parametrize(
    "said", [b"1e308", b"1e18", b"inf", b"-1", b"nan", b"5" + bytes(100), b"x"]
)
def test_what_no_trial_takes_is_not_taken_for_its_seconds(search, machine, often, said):
    folder = made(search, 4, 3.0)
    (folder / "seconds").write_bytes(said)
    Archive(search, 4).tick()
    machine("second")
    folder = made(search, 4, 2.0)
    Archive(search, 4).restore()
    assert worked_seconds(folder) == 2.0


def test_an_archive_holds_the_newest_checkpoint_and_no_start(search, machine, often):
    folder = made(search, 1, 1.0)
    job = folder / "000" / "1" / "pretrain"
    for step in (2, 4):
        own = job / "checkpoints" / f"step_{step:09d}"
        own.mkdir(parents=True)
        (own / "state.pt").write_bytes(b"state")
        (own / "checkpoint.json").write_text("{}")
    half = job / "checkpoints" / ".partial-step_000000006"
    half.mkdir()
    (half / "state.pt").write_bytes(b"half")
    (job / "metrics.jsonl").write_text("{}")
    (job / "start.safetensors").write_bytes(b"start")
    Archive(search, 1).tick()
    data = open_bucket(f"{search}/trials").read("00001.tar").data
    names = tarfile.open(fileobj=io.BytesIO(data)).getnames()
    step = "000/1/pretrain/checkpoints/step_000000004"
    expected = ["000/1/pretrain/metrics.jsonl", f"{step}/checkpoint.json", f"{step}/state.pt"]
    assert sorted(names) == sorted([*expected, "seconds"])


def archive(*members):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as made:
        for member, content in members:
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return held.getvalue()


def linked(name, kind, target):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def extended(kind, content):
    """A header that says something of the next member; readers of archives load it whole."""
    member = tarfile.TarInfo("header")
    member.type = kind
    return member, content


@pytest.mark.parametrize(
    "data",
    [
        b"no archive",
        archive((tarfile.TarInfo("../../out"), b"x")),
        archive((tarfile.TarInfo("/tmp/out-of-an-archive"), b"x")),
        archive((tarfile.TarInfo(".partial-a"), b"x")),
        archive(linked("seconds", tarfile.SYMTYPE, "/etc/passwd")),
        archive(linked("seconds", tarfile.LNKTYPE, "seconds")),
        archive(linked("seconds", tarfile.FIFOTYPE, "")),
        archive(extended(tarfile.XHDTYPE, b"20 comment=whatever\n"), (tarfile.TarInfo("a"), b"x")),
        archive(extended(tarfile.GNUTYPE_LONGNAME, b"seconds\0"), (tarfile.TarInfo("a"), b"x")),
        archive((tarfile.TarInfo("a"), bytes(2000)))[:1500],
        archive((tarfile.TarInfo("a"), bytes(512)))[:1024],
        archive(*((tarfile.TarInfo(str(n)), b"") for n in range(20))),
        archive((tarfile.TarInfo("/".join("abcdefghijk")), b"x")),
    ],
    ids=[
        "other",
        "up",
        "absolute",
        "hidden",
        "link",
        "hard link",
        "pipe",
        "extended",
        "long name",
        "cut",
        "without end",
        "many",
        "deep",
    ],
)
def test_what_is_no_archive_of_a_trial_is_passed_over(search, machine, data, caplog, monkeypatch):
    monkeypatch.setattr(trial_files, "MOST_FILES", 10)
    (local_folder(search) / "trials" / "00003").mkdir(parents=True)  # as a trial makes it
    open_bucket(f"{search}/trials").write("00003.tar", data)
    Archive(search, 3).restore()
    trials = local_folder(search) / "trials"
    assert [path.name for path in trials.iterdir()] == ["00003"]
    assert not [*(trials / "00003").iterdir()]
    assert not (local_folder(search) / "out").exists()
    assert not Path("/tmp/out-of-an-archive").exists()
    assert "00003.tar is damaged" in caplog.text
    assert "the trial starts over" in caplog.text


def test_a_server_that_is_away_costs_a_trial_nothing(search, machine, often, caplog, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    made(search, 2, 3.0)
    Archive(search, 2).tick()
    assert "the trial continues and is uploaded later" in caplog.text


def test_scores_of_records_reach_the_driver(search, machine):
    path = local_folder(search) / "fresh" / "00001-005.npy"
    path.parent.mkdir(parents=True)
    np.save(path, np.eye(3))
    write_hash(path)
    put_scores(search, path)
    machine("driver")
    there = local_folder(search) / "fresh" / path.name
    get_scores(search, there)
    assert (np.load(there, allow_pickle=False) == np.eye(3)).all()
    assert there.with_name(f"{path.name}.sha256").is_file()


def test_what_is_over_is_removed_here_and_there(search, machine, often):
    for number in (1, 2):
        made(search, number, 1.0)
        Archive(search, number).tick()
    made(search, 3, 1.0)  # which has ended
    remove_idle(search, 1, (1, 2))
    trials = local_folder(search) / "trials"
    assert sorted(path.name for path in trials.iterdir()) == ["00001", "00002"]
    os.utime(trials / "00002" / "seconds", (0, time.time() - 3700))  # it works elsewhere now
    remove_idle(search, 1, (1, 2))
    assert [path.name for path in trials.iterdir()] == ["00001"]
    assert set(open_bucket(f"{search}/trials").objects()) == {"00001.tar", "00002.tar"}
    (trials / ".partial-00002.tar").touch()  # as if it was being packed
    (trials / ".partial-00001.tar").touch()
    leave_only(search, [2])
    assert [path.name for path in trials.iterdir()] == [".partial-00002.tar"]
    leave_only(search, [])
    assert not [*trials.iterdir()]
    assert not open_bucket(f"{search}/trials").objects()


def test_weights_that_have_gone_are_no_fault_of_a_trial(search, machine, tmp_path, s3):
    run = Address(f"{s3}/study/mae-0123456789ab")
    open_bucket(str(run)).write("model.json", b"{}")
    for place in (run, tmp_path / "pruned"):
        with pytest.raises(Gone, match=r"no longer has model\.safetensors, which tri"):
            weights_here(place, search)
    start = Address(f"{s3}/study/inner/a.safetensors")
    for place in (start, tmp_path / "a.safetensors"):
        with pytest.raises(Gone, match=r"no longer has a\.safetensors\.sha256"):
            start_here(place, search)
    open_bucket(str(run)).write("model.safetensors", b"weights")
    folder = weights_here(run, search)
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert weights_here(folder, search) == folder
    assert weights_here(None, search) is start_here(None, search) is None


def test_a_machine_works_in_a_folder_of_its_own(search, machine, tmp_path, monkeypatch):
    assert local_folder(tmp_path) == tmp_path
    first = local_folder(search)
    assert first.is_relative_to(tmp_path / "first" / "searches")
    assert first != local_folder(search.parent / "tune-made-ba9876543210")
    # Wherever the cache is, checkpoints say the same of what they are.
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "b3d1b6a2-7c4e-4e0f-9a55-0123456789ff"))
    for folder in (first, local_folder(search)):
        assert name_of(folder / "trials" / "00003") == "0123456789ab/trials/00003"
    assert not first.is_relative_to(store_folder("s3://benchmd-test/study"))
