"""Trials of a search on S3: another machine resumes them, and believes no archive."""

import io
import json
import os
import tarfile
import time
from pathlib import Path

import pytest
from told import Interrupted, Told

from benchmd_ray.errors import Gone
from benchmd_ray.files.integrity import name_of
from benchmd_ray.runs.places import store_folder
from benchmd_ray.storage.bucket import open_bucket
from benchmd_ray.storage.location import Address
from benchmd_ray.training.checkpoints import checkpoint_step
from benchmd_ray.tuning import stages, trial_files
from benchmd_ray.tuning.stages import Pretraining, Transfer
from benchmd_ray.tuning.trial_files import (
    Archive,
    keep_best,
    keep_models,
    leave_only,
    local_folder,
    remove_idle,
    start_here,
    weights_here,
    worked_seconds,
)
from benchmd_ray.tuning.trial_log import Job

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
    arm, work, run, search, machine, often, s3, pretrained_ecg, tmp_path, stage
):
    upstream = Address(f"{s3}/study/pretrained-0123456789ab")
    bucket = open_bucket(str(upstream))
    for name in ("model.safetensors", "model.json"):
        bucket.write(name, (pretrained_ecg / name).read_bytes())
    remote = arm(*FINETUNE, upstream=None if stage.pretrains else upstream)
    values = {LR: 1e-2}
    there = work(remote, stage=stage, folder=search)
    calm = work(arm(*FINETUNE), stage=stage, folder=tmp_path / "calm")
    whole, first, second = Told(), Told(3), Told()
    run(calm, values, whole)
    with pytest.raises(Interrupted):
        run(there, values, first)
    machine("second")
    Archive(search, "00000-000").restore()
    folder = there.job_folder(0, 0) / "1"
    assert checkpoint_step(folder / ("pretrain" if stage.pretrains else "transfer")) >= 2
    run(there, values, second, keep=True)
    assert first.scores + second.scores == whole.scores
    leave_only(search, [])
    assert not open_bucket(f"{search}/trials").objects()
    kept = {"model.json", "model.safetensors", "training.json"}
    if stage.pretrains:
        kept |= {"pretrain/model.json", "pretrain/model.safetensors"}
    assert set(open_bucket(f"{search}/models/00000-000").objects()) == kept


def made(search, name, seconds, **files):
    folder = local_folder(search) / "trials" / name
    folder.mkdir(parents=True)
    (folder / "seconds").write_text(f"{seconds:.3f}")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_older_work_never_takes_the_place_of_newer(search, machine, often):
    made(search, "00007-000", 10.0, state=b"older")
    Archive(search, "00007-000").tick()
    machine("second")
    folder = made(search, "00007-000", 20.0, state=b"newer")
    Archive(search, "00007-000").restore()
    assert (folder / "state").read_bytes() == b"newer"
    machine("third")
    folder = made(search, "00007-000", 5.0, state=b"still older")
    Archive(search, "00007-000").restore()
    assert (folder / "state").read_bytes() == b"older"


@pytest.mark.parametrize(
    "said", [b"1e308", b"1e18", b"inf", b"-1", b"nan", b"5" + bytes(100), b"x"]
)
def test_what_no_trial_takes_is_not_taken_for_its_seconds(search, machine, often, said):
    folder = made(search, "00004-000", 3.0)
    (folder / "seconds").write_bytes(said)
    Archive(search, "00004-000").tick()
    machine("second")
    folder = made(search, "00004-000", 2.0)
    Archive(search, "00004-000").restore()
    assert worked_seconds(folder) == 2.0


def test_an_archive_holds_the_newest_checkpoint_and_no_start(search, machine, often):
    folder = made(search, "00001-000", 1.0)
    job = folder / "1" / "pretrain"
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
    Archive(search, "00001-000").tick()
    data = open_bucket(f"{search}/trials").read("00001-000.tar").data
    names = tarfile.open(fileobj=io.BytesIO(data)).getnames()
    step = "1/pretrain/checkpoints/step_000000004"
    expected = ["1/pretrain/metrics.jsonl", f"{step}/checkpoint.json", f"{step}/state.pt"]
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
    (local_folder(search) / "trials" / "00003-000").mkdir(parents=True)  # as a trial makes it
    open_bucket(f"{search}/trials").write("00003-000.tar", data)
    Archive(search, "00003-000").restore()
    trials = local_folder(search) / "trials"
    assert [path.name for path in trials.iterdir()] == ["00003-000"]
    assert not [*(trials / "00003-000").iterdir()]
    assert not (local_folder(search) / "out").exists()
    assert not Path("/tmp/out-of-an-archive").exists()
    assert "00003-000.tar is damaged" in caplog.text
    assert "the trial starts over" in caplog.text


def test_a_server_that_is_away_costs_a_trial_nothing(search, machine, often, caplog, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    made(search, "00002-000", 3.0)
    Archive(search, "00002-000").tick()
    assert "the trial continues and is uploaded later" in caplog.text


def test_what_is_over_is_removed_here_and_there(search, machine, often):
    first, second = "00001-000", "00001-002"  # two evaluations of one trial
    for name in (first, second):
        made(search, name, 1.0)
        Archive(search, name).tick()
    made(search, "00003-000", 1.0)  # which has ended
    remove_idle(search, first, (first, second))
    trials = local_folder(search) / "trials"
    assert sorted(path.name for path in trials.iterdir()) == [first, second]
    os.utime(trials / second / "seconds", (0, time.time() - 3700))  # it works elsewhere now
    remove_idle(search, first, (first, second))
    assert [path.name for path in trials.iterdir()] == [first]
    assert set(open_bucket(f"{search}/trials").objects()) == {f"{first}.tar", f"{second}.tar"}
    (trials / f".partial-{second}.tar").touch()  # as if it was being packed
    (trials / f".partial-{first}.tar").touch()
    leave_only(search, [Job(1, 2, "mae linear", {})])
    assert [path.name for path in trials.iterdir()] == [f".partial-{second}.tar"]
    assert set(open_bucket(f"{search}/trials").objects()) == {f"{second}.tar"}
    leave_only(search, [])
    assert not [*trials.iterdir()]
    assert not open_bucket(f"{search}/trials").objects()


def trained_models(folder, *, pretrained):
    """Files of a job that trained, and perhaps pretrained."""
    for part in ("transfer", *["pretrain"] * pretrained):
        (folder / part).mkdir(parents=True)
        for name in ("model.safetensors", "model.json"):
            (folder / part / name).write_text(f"{part} {name}")
    (folder / "transfer" / "training.json").write_text(json.dumps({"best_epoch": 1}))
    return folder


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_models_of_the_start_and_of_the_best_are_kept(search, machine, tmp_path, place):
    """Whole, in a folder or on S3, of one modality or more; those of others are removed."""
    at = search if place == "s3" else tmp_path / "search"
    single = trained_models(tmp_path / "single", pretrained=False)
    pretraining = trained_models(tmp_path / "pretraining", pretrained=True)
    for number, jobs in ((0, [single]), (4, [pretraining, single]), (14, [single])):
        keep_models(at, f"{number:05d}-007", jobs)
    keep_models(at, "00004-007", [pretraining, single])  # once more, as after a killed process

    def kept():
        if place == "s3":
            return set(open_bucket(f"{at}/models").objects())
        files = (path for path in (at / "models").rglob("*") if path.is_file())
        return {path.relative_to(at / "models").as_posix() for path in files}

    names = {"model.safetensors", "model.json", "training.json"}
    expected = {f"00000-007/{name}" for name in names}
    expected |= {f"00004-007/{part}/{name}" for part in "12" for name in names}
    expected |= {f"00004-007/1/pretrain/{name}" for name in names - {"training.json"}}
    assert kept() == expected | {f"00014-007/{name}" for name in names}
    keep_best(at, [0, 4])
    assert kept() == expected
    keep_best(at, [0])
    assert kept() == {f"00000-007/{name}" for name in names}
    keep_best(tmp_path / "without-models", [0])


def test_a_model_that_is_not_whole_is_not_kept(tmp_path):
    job = trained_models(tmp_path / "job", pretrained=False)
    keep_models(tmp_path, "00001-001", [job])
    (job / "transfer" / "training.json").unlink()
    with pytest.raises(FileNotFoundError):
        keep_models(tmp_path, "00002-001", [job])
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["00001-001"]


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
        assert name_of(folder / "trials" / "00003-001") == "0123456789ab/trials/00003-001"
    assert not first.is_relative_to(store_folder("s3://benchmd-test/study"))
