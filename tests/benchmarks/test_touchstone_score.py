"""Score runs: what they write, how they resume, and what is quarantined."""

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import shared_ray
from click.testing import CliRunner
from made_masks import SPACING, boxes, card, score_in_process, sides, write, write_masks
from touchstone_scores import CLASSES, algorithm

from benchmd_ray.benchmarks.touchstone import files
from benchmd_ray.benchmarks.touchstone.cases import SCHEMA, read_manifest, read_scored
from benchmd_ray.benchmarks.touchstone.commands import segment
from benchmd_ray.benchmarks.touchstone.files import ScoreRequest, score
from benchmd_ray.benchmarks.touchstone.joining import joined
from benchmd_ray.benchmarks.touchstone.scored import read_scores
from benchmd_ray.benchmarks.touchstone.submission import Submission
from benchmd_ray.benchmarks.touchstone.tasks import read_task
from benchmd_ray.errors import BenchmdError, Stopped
from benchmd_ray.files.atomic import digest
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hashed_json
from benchmd_ray.service.each import Call, FailedCall, each

LAYOUTS = ("plain", "plain")


@pytest.fixture
def here(monkeypatch):
    score_in_process(monkeypatch)


def asked(folder, predictions, labels, out="run", **how):
    named = {"task": read_task(card(folder)), "layouts": LAYOUTS} | how
    return ScoreRequest(predictions=predictions, labels=labels, out=folder / out, **named)


def run(*given, say=lambda line: None, **how):
    return score(asked(*given, **how), say=say)


def test_a_run_has_a_row_for_each_case_and_class(tmp_path, here):
    outcome = run(tmp_path, *sides(tmp_path, 4), name="shifted")
    frame = read_scored(tmp_path / "run")
    assert list(frame.columns) == SCHEMA.names
    assert frame[["case", "class"]].to_numpy().tolist() == [
        [f"case{n:03}", name] for n in range(4) for name in ("near", "far")
    ]
    assert set(frame["algorithm"]) == {"shifted"}
    assert frame["seconds"].isna().all()
    manifest = read_manifest(tmp_path / "run")
    assert manifest == outcome.manifest
    assert (manifest.task.name, manifest.tolerance) == ("two", {"near": 1.5, "far": 1.5})
    assert manifest.quarantined == 0
    assert not (tmp_path / "run" / "parts").exists()


@pytest.mark.parametrize("name", ["a$b", "a\nb", "a\x1b[2Jb", "a\u202eb", "a" * 501])
def test_a_name_that_no_comparison_takes_is_refused_before_anything_is_scored(
    tmp_path, monkeypatch, name
):
    monkeypatch.setattr(files, "work", None)
    predictions, labels = sides(tmp_path, 1)
    with pytest.raises(BenchmdError, match=r"--name: the algorithm is named .* without"):
        run(tmp_path, predictions, labels, name=name)
    if len(name) < 256:
        renamed = predictions.rename(tmp_path / name)
        with pytest.raises(BenchmdError, match=r"the algorithm is named .* without"):
            run(tmp_path, renamed, labels)
    assert not (tmp_path / "run").exists()
    with pytest.raises(BenchmdError, match=r"the algorithm is named .* without"):
        joined([algorithm(name, [[0.5] * len(CLASSES)] * 3)])


def test_other_names_are_scored_and_compared(tmp_path, here):
    outcome = run(tmp_path, *sides(tmp_path, 1), name="Ünet #2 (µ, 50 %)")
    assert outcome.manifest.algorithm == "Ünet #2 (µ, 50 %)"
    assert read_scores([tmp_path / "run"]).algorithms == ("Ünet #2 (µ, 50 %)",)


def test_a_rerun_scores_only_what_is_new_or_changed(tmp_path, here, monkeypatch):
    predictions, labels = sides(tmp_path, 3)
    run(tmp_path, predictions, labels)
    before = read_scored(tmp_path / "run")
    called = []
    work = files.work
    monkeypatch.setattr(files, "work", lambda given: called.append(given["output"]) or work(given))
    run(tmp_path, predictions, labels)
    assert called == []
    write(predictions / "case001.nii.gz", boxes(1))
    write(predictions / "case003.nii.gz", boxes(3))
    write(labels / "case003.nii.gz", boxes(3))
    run(tmp_path, predictions, labels)
    assert [path[-7:] for path in called] == ["case001", "case003"]
    after = read_scored(tmp_path / "run")
    assert after[after["case"] == "case000"].equals(before[before["case"] == "case000"])
    assert set(after[after["case"] == "case001"]["dsc"]) == {1.0}


def test_interrupted_and_resumed_gives_the_same_bytes(tmp_path, here, monkeypatch):
    predictions, labels = sides(tmp_path, 5)
    write(predictions / "case002.nii.gz", boxes()[1:])  # one is quarantined
    run(tmp_path, predictions, labels, out="whole")
    work, done = files.work, []

    def interrupted(given):
        if len(done) == 3:
            raise Stopped(signal.SIGINT)
        done.append(given)
        return work(given)

    monkeypatch.setattr(files, "work", interrupted)
    with pytest.raises(Stopped):
        run(tmp_path, predictions, labels)
    with pytest.raises(BenchmdError, match="not a finished score run"):
        read_scored(tmp_path / "run")
    done.clear()
    monkeypatch.setattr(files, "work", lambda given: done.append(given) or work(given))
    run(tmp_path, predictions, labels)
    assert len(done) == 2
    for name in ("scores.parquet", "quarantine.json", "manifest.json"):
        whole, own = ((tmp_path / each / name).read_bytes() for each in ("whole", "run"))
        assert whole == own, name


def test_a_broken_case_is_quarantined_with_its_reason_and_tried_again(tmp_path, here):
    predictions, labels = sides(tmp_path, 3)
    (predictions / "case001.nii.gz").write_bytes(b"no file")
    outcome = run(tmp_path, predictions, labels)
    assert set(outcome.quarantined) == {"case001"}
    assert outcome.quarantined["case001"].startswith("prediction: case001.nii.gz: it is not")
    kept = json.loads((tmp_path / "run" / "quarantine.json").read_text())
    assert [entry["case"] for entry in kept] == ["case001"]
    assert set(read_scored(tmp_path / "run")["case"]) == {"case000", "case002"}
    write(predictions / "case001.nii.gz", boxes(1))
    assert run(tmp_path, predictions, labels).quarantined == {}


def test_cases_of_one_side_only_are_counted_and_named(tmp_path, here):
    predictions, labels = sides(tmp_path, 3)
    (predictions / "case000.nii.gz").unlink()
    write(predictions / "other.nii.gz", boxes())
    said = []
    outcome = score(asked(tmp_path, predictions, labels), say=said.append)
    assert outcome.manifest.unpredicted == ("case000",)
    assert outcome.manifest.unreferenced == ("other",)
    assert said == [
        "1 case without a prediction, not scored: case000",
        "1 case without a reference, not scored: other",
    ]


def test_folders_without_a_common_case_are_refused(tmp_path, here):
    _, labels = sides(tmp_path, 1)
    write(tmp_path / "others" / "x.nii.gz", boxes())
    with pytest.raises(
        BenchmdError, match=r"no case in common: 'x' is one of the first, 'case000'"
    ):
        run(tmp_path, tmp_path / "others", labels)


def test_labels_without_a_layout_are_refused_where_layouts_differ(tmp_path, here):
    predictions, labels = sides(tmp_path, 1)
    with pytest.raises(BenchmdError, match=r"--predictions-layout \(plain, reversed\)"):
        run(tmp_path, predictions, labels, layouts=("plain", ""))
    write_masks(tmp_path / "masks" / "case000", boxes())
    assert run(tmp_path, tmp_path / "masks", labels, layouts=("plain", "")).manifest.cases


def test_a_folder_of_other_scores_is_refused_with_what_differs(tmp_path, here):
    predictions, labels = sides(tmp_path, 1)
    run(tmp_path, predictions, labels)
    with pytest.raises(
        BenchmdError,
        match=r"scores with another tolerance, was .*1.5.*, is .*3.0.*Choose another --out",
    ):
        run(tmp_path, predictions, labels, tolerance="3")
    with pytest.raises(BenchmdError, match="has other files, such as "):
        run(tmp_path, predictions, labels, out=".")


def test_scores_that_were_changed_are_noticed(tmp_path, here):
    run(tmp_path, *sides(tmp_path, 1))
    path = tmp_path / "run" / "scores.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    with pytest.raises(Damaged, match="its SHA-256 is not the one that was recorded"):
        read_scored(tmp_path / "run")


@pytest.mark.parametrize("name", ["manifest.json", "quarantine.json", "plan.json"])
def test_a_flipped_bit_in_what_a_run_says_of_itself_is_noticed(tmp_path, here, name):
    predictions, labels = sides(tmp_path, 2)
    (predictions / "case001.nii.gz").write_bytes(b"broken")
    run(tmp_path, predictions, labels)
    path = tmp_path / "run" / name
    content = path.read_text()
    changed = content.replace("case001", "case101").replace("predictions", "predictionz")
    assert changed != content
    path.write_text(changed)
    read = partial(run, tmp_path, predictions, labels) if name == "plan.json" else read_scored
    given = () if name == "plan.json" else (tmp_path / "run",)
    with pytest.raises(Damaged, match=rf"{name} is damaged: its .*SHA-256"):
        read(*given)


def test_memory_is_asked_for_by_the_voxels_of_headers(tmp_path, here, monkeypatch):
    predictions, labels = sides(tmp_path, 2)
    for folder in (predictions, labels):
        write(folder / "case001.nii.gz", np.zeros((40, 50, 60), np.uint8))
    calls = []
    monkeypatch.setattr(files, "each", lambda given, *_, **__: calls.extend(given) or iter(()))
    run(tmp_path, predictions, labels)
    per_voxel = files.COPIES + files.VOXEL_BYTES  # of bytes
    small, large = (files.PROCESS_BYTES + per_voxel * n for n in (12 * 14 * 16, 120_000))
    assert [(call.name, call.memory) for call in calls] == [("case001", large), ("case000", small)]


def command(*arguments):
    return [sys.executable, "-m", "benchmd_ray.cli", "segment", "score", *map(str, arguments)]


@pytest.mark.slow
def test_the_command_scores_one_pair_of_files(tmp_path):
    write(tmp_path / "labels.nii.gz", boxes())
    write(tmp_path / "other.nii.gz", boxes(shift=1))
    own = command(tmp_path / "other.nii.gz", tmp_path / "labels.nii.gz", "--task", card(tmp_path))
    own += ["--out", str(tmp_path / "run"), "--labels-layout", "plain"]
    done = subprocess.run(
        [*own, "--predictions-layout", "plain"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "other, two, 1 case" in done.stdout
    assert "@1.5mm" in done.stdout


# --- on Ray -----------------------------------------------------------------------------------


def working():
    """Work of a case that may kill its worker, which cannot import this module."""

    def named(given):
        if given == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        if given == "raises":
            raise ValueError("of this item")
        return given

    return named


@pytest.mark.ray
@pytest.mark.slow
def test_what_kills_its_worker_again_is_lost_and_the_rest_is_done(ray_cluster):
    calls = [Call(name, name, 2**20) for name in ("one", "kills", "two", "raises")]
    found = dict(each(calls, working(), cpus=0.1))
    assert (found["one"], found["two"]) == ("one", "two")
    assert isinstance(found["kills"], FailedCall)
    assert "lost 3 times" in found["kills"].reason
    assert found["raises"] == FailedCall("ValueError: of this item")


@pytest.mark.ray
@pytest.mark.slow
def test_a_case_that_asks_for_more_memory_than_there_is_does_not_wait_for_ever(ray_cluster):
    assert dict(each([Call("one", "one", 2**60)], working())) == {"one": "one"}


@pytest.mark.ray
@pytest.mark.slow
def test_killed_workers_cost_no_case(ray_cluster, tmp_path, monkeypatch):
    """Two workers are killed while they score; scores are those of an undisturbed process."""
    predictions, labels = sides(tmp_path, 30)
    with monkeypatch.context() as patch:
        score_in_process(patch)
        run(tmp_path, predictions, labels, out="whole")
    killed = []

    def kill():
        while len(killed) < 2:
            time.sleep(0.01)
            if len(list((tmp_path / "run" / "parts").glob("*.json"))) < 5 * (1 + len(killed)):
                continue
            workers = []
            for process in shared_ray.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name().startswith("ray::case"):
                        workers.append(process)
            if workers:
                workers[0].kill()
                killed.append(workers[0].pid)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    outcome = run(tmp_path, predictions, labels)
    thread.join(5)
    assert len(killed) == 2
    assert outcome.quarantined == {}
    whole, own = ((tmp_path / n / "scores.parquet").read_bytes() for n in ("whole", "run"))
    assert whole == own


@pytest.mark.ray
@pytest.mark.slow
def test_a_decoder_that_crashes_costs_its_case_only(ray_cluster, tmp_path, monkeypatch):
    """The process apart ends by a signal, as a native library would end it."""
    predictions, labels = sides(tmp_path, 3)
    module = tmp_path / "sitecustomize.py"
    module.write_text(
        "import os, signal, sys\n"
        "if 'benchmd_ray.benchmarks.touchstone.case' in ' '.join(sys.orig_argv):\n"
        "    from benchmd_ray.data.readers import nifti\n"
        "    whole = nifti.read_voxels\n"
        "    def read_voxels(path):\n"
        "        if path.parent.name == 'predictions' and path.name == 'case001.nii.gz':\n"
        "            os.kill(os.getpid(), signal.SIGSEGV)\n"
        "        return whole(path)\n"
        "    nifti.read_voxels = read_voxels\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    outcome = in_new_workers(tmp_path, predictions, labels)
    assert outcome.quarantined == {
        "case001": "the prediction crashed the process that read it (SIGSEGV)"
    }
    assert set(read_scored(tmp_path / "run")["case"]) == {"case000", "case002"}


def in_new_workers(folder, predictions, labels):
    """A run whose processes apart are started anew, by this process."""
    from benchmd_ray.benchmarks.touchstone import scoring

    scoring.PROCESS.close()
    given = []

    def in_turn(calls, work, **_):
        given.extend(calls)
        for call in given:
            yield call.name, work(call.given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "each", in_turn)
        try:
            return run(folder, predictions, labels)
        finally:
            scoring.PROCESS.close()


def test_the_scorers_version_is_in_what_names_a_run(tmp_path, here, monkeypatch):
    predictions, labels = sides(tmp_path, 1)
    run(tmp_path, predictions, labels)
    monkeypatch.setattr(files, "versions_of", lambda names: {"segmentation scores": 99})
    with pytest.raises(BenchmdError, match="scores with another scorer"):
        run(tmp_path, predictions, labels)


def test_a_prediction_of_the_reference_is_perfect_in_millilitres(tmp_path, here):
    sides(tmp_path, 1, shift=0)
    run(tmp_path, tmp_path / "predictions", tmp_path / "labels")
    frame = read_scored(tmp_path / "run").set_index("class")
    assert frame.loc["near", "volume_ref_ml"] == pytest.approx(
        (boxes() == 1).sum() * np.prod(SPACING) / 1000
    )
    assert (frame["volume_ref_ml"] == frame["volume_pred_ml"]).all()


def test_files_of_another_folder_are_scored_anew_whatever_their_times(tmp_path, here):
    predictions, labels = sides(tmp_path, 1, shift=0)
    write(tmp_path / "others" / "case000.nii.gz", boxes(shift=2))
    paths = [*predictions.iterdir(), *(tmp_path / "others").iterdir()]
    size = max(path.stat().st_size for path in paths)
    for path in paths:  # as unpacked from an archive
        path.write_bytes(path.read_bytes().ljust(size, b"\0"))
        os.utime(path, (10**9, 10**9))
    run(tmp_path, predictions, labels, name="own")
    assert set(read_scored(tmp_path / "run")["dsc"]) == {1.0}
    run(tmp_path, tmp_path / "others", labels, name="own")
    assert (read_scored(tmp_path / "run")["dsc"] < 1).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part["rows"][0].update(dsc=7.5),
        lambda part: part["rows"][0].update(algorithm="x"),
        lambda part: part["rows"][0].update(dsc="abc"),
        lambda part: part["rows"][0].update(code="fine"),
        lambda part: part["rows"].pop(),
        lambda part: part.update(rows=[]),
        lambda part: part.update(rows=[5, 6]),
        lambda part: part.update(noted=5),
        lambda part: part.update(case=None),
    ],
)
def test_results_of_an_interrupted_run_that_cannot_be_are_scored_anew(tmp_path, here, change):
    predictions, labels = sides(tmp_path, 2)
    run(tmp_path, predictions, labels, name="own")
    expected = (tmp_path / "run" / "scores.parquet").read_bytes()
    for path, part in interrupted(tmp_path / "run").items():
        if part["case"] == "case001":
            change(part)
        write_hashed_json(path, part)
    run(tmp_path, predictions, labels, name="own")
    assert (tmp_path / "run" / "scores.parquet").read_bytes() == expected


def interrupted(folder):
    """Make a finished run one that was interrupted after its last case; its parts by file."""
    found, cases = read_scored(folder), read_manifest(folder).cases
    plan = digest(read_hashed_json(folder / "plan.json", ""))
    (folder / "manifest.json").unlink()
    (folder / "parts").mkdir()
    return {
        folder / "parts" / f"{name}.json": {
            "plan": plan,
            "case": name,
            "rows": found[found["case"] == name].to_dict("records"),
            "noted": cases[name],
        }
        for name in cases
    }


def test_a_flipped_bit_in_the_results_of_an_interrupted_run_becomes_no_score(tmp_path, here):
    predictions, labels = sides(tmp_path, 2)
    run(tmp_path, predictions, labels, name="own")
    expected = (tmp_path / "run" / "scores.parquet").read_bytes()
    for path, part in interrupted(tmp_path / "run").items():
        write_hashed_json(path, part)
        if part["case"] == "case001":
            digits = f"{part['rows'][0]['dsc']:.4f}"
            assert digits in path.read_text()
            path.write_text(path.read_text().replace(digits, f"{digits[:2]}1{digits[3:]}"))
    said = []
    run(tmp_path, predictions, labels, name="own", say=said.append)
    assert (tmp_path / "run" / "scores.parquet").read_bytes() == expected
    (line,) = said
    assert line.endswith("case001.json is damaged: its case is scored again")


@pytest.mark.parametrize("content", ["[]", "5", "[" * 100_000, "no JSON"])
def test_a_plan_that_is_none_is_refused(tmp_path, here, content):
    predictions, labels = sides(tmp_path, 1)
    run(tmp_path, predictions, labels)
    (tmp_path / "run" / "plan.json").write_text(content)
    with pytest.raises(Damaged, match=r"plan\.json is damaged: .* Score anew into another folder"):
        run(tmp_path, predictions, labels)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--seconds", "nan"), "'nan' is not a finite number"),
        (("--memory", "inf"), "is not in the range"),
        (("--memory", "1e12"), "is not in the range"),
        (("--gpus", "nan"), "'nan' is not a finite number"),
        ((), "--command needs --name"),
    ],
)
def test_limits_that_are_none_are_refused(tmp_path, options, said):
    predictions, labels = sides(tmp_path, 1)
    words = ["score", predictions, labels, "--task", card(tmp_path), "--out", tmp_path / "run"]
    words += ["--command", "cp {input} {output}", *options]
    found = CliRunner().invoke(segment, [*map(str, words)])
    assert found.exit_code != 0
    assert said in found.output + str(found.exception)


def test_a_command_needs_the_layout_of_what_it_will_write(tmp_path, here):
    _, labels = sides(tmp_path, 1)
    own = Submission("cp {input} {output}")
    question = asked(tmp_path, labels, labels, layouts=("plain", ""), submission=own, name="own")
    with pytest.raises(BenchmdError, match="the predictions are files with labels of all classes"):
        score(question, say=print)


def test_what_is_unusual_about_files_is_said_with_the_first_case(tmp_path, here):
    predictions, labels = sides(tmp_path, 3)
    for number in (1, 2):
        path = predictions / f"case00{number}.nii.gz"
        path.write_bytes(gzip.decompress(path.read_bytes()))
    words = ["score", predictions, labels, "--task", card(tmp_path), "--out", tmp_path / "run"]
    words += ["--labels-layout", "plain", "--predictions-layout", "plain"]
    found = CliRunner().invoke(segment, [*map(str, words)])
    assert found.exit_code == 0, found.output
    said = "case001.nii.gz: it is not compressed, and its name ends in .nii.gz"
    assert f"unusual files in 2 cases, such as {said}" in found.output


def test_a_folders_whole_name_is_the_algorithms(tmp_path, here):
    predictions, labels = sides(tmp_path, 1)
    predictions.rename(tmp_path / "nnUNet_v2.1")
    outcome = run(tmp_path, tmp_path / "nnUNet_v2.1", labels)
    assert outcome.manifest.algorithm == "nnUNet_v2.1"


@pytest.mark.ray
@pytest.mark.slow
def test_a_command_does_not_wait_for_a_gpu_that_is_not_there(ray_cluster):
    with pytest.raises(BenchmdError, match="99 GPUs are requested, and this machine has"):
        next(each([Call("one", 1)], str, gpus=99))
