"""Submissions that are commands: measured, bounded, without network; their failure is their own."""

import json
import re
import shlex
import subprocess
import sys
import time
import uuid

import psutil
import pytest
from made_masks import boxes, card, score_in_process, write
from waiting import until

from benchmd_ray.benchmarks.touchstone import submission as submissions
from benchmd_ray.benchmarks.touchstone.cases import read_manifest, read_scored
from benchmd_ray.benchmarks.touchstone.files import ScoreRequest, score
from benchmd_ray.benchmarks.touchstone.submission import Submission, isolation, predict
from benchmd_ray.benchmarks.touchstone.tasks import read_task
from benchmd_ray.errors import BenchmdError

COPY = "import shutil, sys; shutil.copy(*sys.argv[1:3])"


def python(code, *more):
    return shlex.join([sys.executable, "-c", code, "{input}", "{output}", *more])


def ran(folder, code, **limits):
    folder.mkdir(exist_ok=True)
    image = write(folder / "image.nii.gz", boxes())
    output = folder / "out" / "one.nii.gz"
    found = predict(Submission(python(code), **limits), image, output, folder / "log.txt")
    return found, output, (folder / "log.txt").read_text()


def test_a_command_is_measured_and_what_it_printed_is_kept(tmp_path):
    code = f"import time; held = bytearray(60 << 20); time.sleep(0.3); print('seen'); {COPY}"
    found, output, log = ran(tmp_path, code)
    assert found.fault == ""
    assert output.is_file()
    assert 0.3 < found.seconds < 5
    assert 60 << 20 < found.peak < 200 << 20
    assert log == "--- stdout\nseen\n\n--- stderr\n\n"


def test_what_fails_says_how_with_its_last_words(tmp_path):
    found, _, log = ran(tmp_path, "import sys; print('why', file=sys.stderr); sys.exit(3)")
    assert found.fault == "the command failed (exit code 3): why"
    assert "why" in log
    assert "SIGABRT" in ran(tmp_path, "import os; os.abort()")[0].fault
    assert "(exit code 1)" in ran(tmp_path, "import sys; sys.exit(1)")[0].fault
    late = "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 6)"
    assert re.search(r"failed \((exit code 168|signal 40)", ran(tmp_path, late)[0].fault)
    assert ran(tmp_path, "pass")[0].fault == "the command wrote no output"


@pytest.mark.slow
def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    """Also a process that left its session and its parent."""
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(987.5)'],"
        " start_new_session=True)\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    found, _, _ = ran(tmp_path, code, seconds=1.5)
    assert found.fault == "it took more than the 1.5 seconds of a case"
    assert time.monotonic() - start < 10
    left = [p for p in psutil.process_iter(["cmdline"]) if "987.5" in str(p.info["cmdline"])]
    assert [p for p in left if p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("processes", [1, 3])
def test_what_takes_too_much_memory_is_ended(tmp_path, processes):
    """By the limit of one process, or by what several hold together."""
    own = "import time; held = bytearray(b'1') * (150 << 20); time.sleep(20)"
    code = (
        "import subprocess, sys\n"
        f"own = [subprocess.Popen([sys.executable, '-c', {own!r}]) for _ in range({processes})]\n"
        "sys.exit(max(abs(one.wait()) for one in own))"
    )
    limit = (100 if processes == 1 else 300) << 20
    found, _, _ = ran(tmp_path, code, memory=limit, seconds=15)
    if processes == 1:
        assert found.fault.startswith("the command failed (exit code 1): MemoryError")
    else:
        assert found.fault == "it held more than the 0.292969 GiB that a case may take"
    assert found.seconds < 10


def test_memory_that_processes_share_counts_once(tmp_path):
    code = (
        "import os, time\n"
        "held = bytearray(b'1') * (120 << 20)\n"
        "for _ in range(5):\n"
        "    if not os.fork():\n"
        "        time.sleep(1.5)\n"
        "        os._exit(0)\n"
        f"time.sleep(1)\n{COPY}"
    )
    found, _, _ = ran(tmp_path, code, memory=400 << 20)
    assert found.fault == ""
    assert 120 << 20 < found.peak < 300 << 20


def test_a_brief_peak_of_memory_is_seen(tmp_path):
    code = f"held = bytearray(b'1') * (150 << 20); import time; time.sleep(0.1); del held\n{COPY}"
    found, _, _ = ran(tmp_path, code)
    assert 150 << 20 < found.peak * submissions.GROWN < 300 << 20


def test_a_command_ends_with_the_worker_that_watches_it(tmp_path):
    """Also where the worker has no time to end it."""
    image = write(tmp_path / "image.nii.gz", boxes())
    word = f"sleep-of-{uuid.uuid4()}"
    code = "import time; time.sleep(60)"
    own = python(code, word)
    worker = (
        "import sys\n"
        "from pathlib import Path\n"
        "from benchmd_ray.benchmarks.touchstone.submission import Submission, predict\n"
        "image, folder = map(Path, sys.argv[1:3])\n"
        "predict(Submission(sys.argv[3]), image, folder / 'out' / 'x.nii.gz', folder / 'log')\n"
    )
    at_work = subprocess.Popen([sys.executable, "-c", worker, image, tmp_path, own])

    def commands():
        found = psutil.process_iter(["pid", "cmdline"])
        others = [p for p in found if p.info["pid"] != at_work.pid]
        return [p for p in others if p.info["cmdline"] and p.info["cmdline"][-1] == word]

    until("the command", commands)
    at_work.kill()
    at_work.wait()
    until("its end", lambda: not commands())


def test_only_the_ends_of_long_output_are_kept(tmp_path):
    code = "import sys; sys.stdout.write('first' + 'x' * 5_000_000 + 'last')"
    _, _, log = ran(tmp_path, code)
    assert len(log) < 3 * submissions.KEPT_BYTES
    assert "first" in log
    assert "last" in log
    assert "bytes …" in log


@pytest.mark.skipif(not isolation(), reason="the system does not allow namespaces")
def test_a_command_has_no_network(tmp_path):
    code = (
        "import socket, sys\n"
        "names = [name for _, name in socket.if_nameindex()]\n"
        "print(names)\n"
        "try: socket.create_connection(('127.0.0.1', 9), 1)\n"
        "except OSError as error: print(error.strerror)"
    )
    _, _, log = ran(tmp_path, code)
    assert "['lo']" in log
    assert "unreachable" in log


def test_a_command_does_not_see_keys_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-pass-me-on")
    _, _, log = ran(tmp_path, "import os; print(dict(os.environ))")
    assert "PATH" in log
    assert "do-not-pass-me-on" not in log


def test_no_shell_reads_a_command(tmp_path):
    image = write(tmp_path / "a; touch broken" / "image.nii.gz", boxes())
    own = Submission(python("import sys; print(sys.argv[3])", "$(touch broken)"))
    predict(own, image, tmp_path / "out" / "x.nii.gz", tmp_path / "log.txt")
    assert "$(touch broken)" in (tmp_path / "log.txt").read_text()
    assert not list(tmp_path.rglob("broken"))


@pytest.mark.parametrize(
    ("command", "said"),
    [("run {input}", "expected {input} and {output}"), ("run '{input} {output}", "into words")],
)
def test_a_command_without_input_and_output_is_refused(command, said):
    with pytest.raises(BenchmdError, match=said):
        Submission(command)


def test_a_command_that_is_not_there_is_a_fault_of_its_own(tmp_path):
    found = predict(
        Submission("/no/such/program {input} {output}"),
        write(tmp_path / "image.nii.gz", boxes()),
        tmp_path / "out" / "x.nii.gz",
        tmp_path / "log.txt",
    )
    assert "failed" in found.fault or "cannot be run" in found.fault


# --- scored -------------------------------------------------------------------------------------


def scored(folder, code, monkeypatch, **limits):
    """A run over three images, which are their own references."""
    score_in_process(monkeypatch)
    for number in range(3):
        write(folder / "images" / f"case{number}_0000.nii.gz", boxes(number))
        write(folder / "labels" / f"case{number}.nii.gz", boxes(number))
    asked = ScoreRequest(
        task=read_task(card(folder)),
        predictions=folder / "images",
        labels=folder / "labels",
        out=folder / "run",
        layouts=("plain", "plain"),
        name="own",
        submission=Submission(python(code), **limits),
    )
    return score(asked, say=lambda line: None)


@pytest.mark.slow
def test_a_submission_is_run_and_scored_with_its_seconds(tmp_path, monkeypatch):
    long = f"import time; time.sleep(0.5); {COPY}"  # enough for its memory to be looked at
    outcome = scored(tmp_path, long, monkeypatch)
    frame = read_scored(tmp_path / "run")
    assert set(frame["case"]) == {"case0", "case1", "case2"}
    assert set(frame["dsc"]) == {1.0}
    assert (frame["seconds"] > 0).all()
    assert frame.groupby("case")["seconds"].nunique().eq(1).all()
    assert all(one["peak_mib"] > 0 for one in outcome.manifest.cases.values())
    kept = tmp_path / "run" / "predictions"
    assert read_manifest(tmp_path / "run").predictions == str(kept)
    assert sorted(path.name for path in kept.iterdir()) == [f"case{n}.nii.gz" for n in range(3)]
    assert (tmp_path / "run" / "logs" / "case0.txt").is_file()
    assert len(outcome.manifest.with_network) == (0 if isolation() else 3)


def test_an_output_may_be_a_folder_of_masks(tmp_path, monkeypatch):
    code = (
        "import os, sys, SimpleITK as s\n"
        "image = s.ReadImage(sys.argv[1]); os.mkdir(sys.argv[2])\n"
        "for name, label in (('near', 1), ('far', 2)):\n"
        "    s.WriteImage(image == label, f'{sys.argv[2]}/{name}.nii.gz')"
    )
    scored(tmp_path, code, monkeypatch)
    assert set(read_scored(tmp_path / "run")["dsc"]) == {1.0}
    assert (tmp_path / "run" / "predictions" / "case0" / "near.nii.gz").is_file()


def test_a_failure_is_that_of_its_case(tmp_path, monkeypatch):
    code = f"import sys\nif 'case1' in sys.argv[1]: sys.exit('not this one')\n{COPY}"
    outcome = scored(tmp_path, code, monkeypatch)
    assert outcome.quarantined == {"case1": "the command failed (exit code 1): not this one"}
    assert set(read_scored(tmp_path / "run")["case"]) == {"case0", "case2"}
    kept = json.loads((tmp_path / "run" / "quarantine.json").read_text())
    assert kept == [{"case": "case1", "reason": "the command failed (exit code 1): not this one"}]


def test_an_output_is_checked_as_any_prediction(tmp_path, monkeypatch):
    code = "import sys; open(sys.argv[2], 'w').write('no volume')"
    outcome = scored(tmp_path, code, monkeypatch)
    assert set(outcome.quarantined) == {"case0", "case1", "case2"}
    assert "case0.nii.gz: it is not a NIfTI-1 file" in outcome.quarantined["case0"]


@pytest.mark.skipif(len(isolation()) < 5, reason="the system does not allow namespaces")
def test_what_a_finished_command_left_running_ends_with_it(tmp_path):
    """Also what nothing connects with it any more."""
    word = f"1{uuid.uuid4().int % 10**8}"
    code = f"import subprocess\nsubprocess.run(['setsid', '-f', 'sleep', {word!r}])\n{COPY}"
    found, output, _ = ran(tmp_path, code)
    assert found.fault == ""
    assert output.is_file()
    left = [p for p in psutil.process_iter(["cmdline"]) if word in (p.info["cmdline"] or ())]
    assert [p for p in left if p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("what", ["folder", "hard link"])
def test_a_command_cannot_hand_in_a_reference(tmp_path, monkeypatch, what):
    """By a link in the place of the folder of its output, or by another name of the file."""
    given = {
        "folder": "import os, sys\nfrom pathlib import Path\n"
        "there = Path(sys.argv[2]).parent\nos.rmdir(there)\nos.symlink(sys.argv[3], there)",
        "hard link": "import os, sys\nfrom pathlib import Path\n"
        "os.link(Path(sys.argv[3]) / Path(sys.argv[2]).name, sys.argv[2])",
    }
    labels = tmp_path / "labels"
    code = given[what].replace("sys.argv[3]", repr(str(labels)))
    outcome = scored(tmp_path, code, monkeypatch)
    assert set(outcome.quarantined) == {"case0", "case1", "case2"}
    expected = {"folder": "output's folder was replaced", "hard link": "is a hard link to another"}
    assert expected[what] in outcome.quarantined["case1"]
    assert sorted(path.name for path in labels.iterdir()) == [f"case{n}.nii.gz" for n in range(3)]


def test_an_image_may_be_named_like_a_mark(tmp_path):
    image = write(tmp_path / "x{output}.nii.gz", boxes())
    output = tmp_path / "out" / "one.nii.gz"
    found = predict(Submission(python(COPY)), image, output, tmp_path / "log.txt")
    assert found.fault == ""
    assert output.is_file()


def test_an_output_that_is_a_link_is_not_followed(tmp_path, monkeypatch):
    """It could name the reference."""
    code = "import os, sys; os.symlink(sys.argv[1], sys.argv[2])"
    outcome = scored(tmp_path, code, monkeypatch)
    assert outcome.quarantined["case0"] == "its output case0.nii.gz is a link or not a regular file"
    assert not list((tmp_path / "run" / "predictions").iterdir())


@pytest.mark.ray
@pytest.mark.slow
def test_a_submission_is_run_on_ray(ray_cluster, tmp_path):
    for number in range(3):
        write(tmp_path / "images" / f"case{number}.nii.gz", boxes(number))
    asked = ScoreRequest(
        task=read_task(card(tmp_path)),
        predictions=tmp_path / "images",
        labels=tmp_path / "images",
        out=tmp_path / "run",
        layouts=("plain", "plain"),
        submission=Submission(python(COPY), memory=2**29),
    )
    assert score(asked, say=lambda line: None).quarantined == {}
    assert set(read_scored(tmp_path / "run")["dsc"]) == {1.0}
