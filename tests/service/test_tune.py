"""Searches from their first trial to the runs after them: interrupted, killed, extended, on S3."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from unittest.mock import ANY

import pandas as pd
import pytest
from click.testing import CliRunner
from services import SERVICES
from stored import runs
from waiting import until

from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError, Busy, Stopped
from benchmd_ray.files.atomic import locked, sha256, write_json
from benchmd_ray.runs.places import store_folder
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.service.tune import run_searches
from benchmd_ray.service.watching import state_of
from benchmd_ray.settings.definition import as_dict, default_settings, load_settings
from benchmd_ray.storage.bucket import open_bucket
from benchmd_ray.training.reporter import read_metrics
from benchmd_ray.tuning import ray_tune
from benchmd_ray.tuning.ladder import chosen
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.records import read_search
from benchmd_ray.tuning.stages import Arm, FamilyWork, Transfer, TrialContext
from benchmd_ray.tuning.trial import run_trial, seed_of
from benchmd_ray.tuning.trial_files import MODELS, job_name

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SMALL = """
encoder: tiny
pretrain: {steps: 6, batch_size: 8}
transfer: {epochs: 3, batch_size: 16, optimiser: {lr: 1.0e-5}}
execution: {device: cpu, log_every: 1}
"""
SPACE = """
transfer.optimiser.lr: {kind: log float, low: 1.0e-5, high: 1.0e-1, default: 1.0e-4}
transfer.label_smoothing: {kind: float, low: 0.0, high: 0.3, default: 0.0}
"""
LR = "transfer.optimiser.lr"
TWELVE = Budget(trials=None, evaluations=12)
"""Six are for trials, of which the best have the others."""
STARTS = Budget(trials=3, evaluations=12)
"""The starts of three families: other families would be proposed by the time that each took."""
FEW = {"searched": ("finetune-small",), "budget": TWELVE}


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "small.yaml").write_text(SMALL)
    (folder / "space.yaml").write_text(SPACE)
    return folder


@pytest.fixture(scope="session")
def tuning(ecg_catalogs, files):
    """A search on the small ECG source; one job at a time is repeatable."""

    def make(catalogs=None, space=SPACE, **changes):
        path = files / "space.yaml"
        if space != SPACE:
            path = files / f"{abs(hash(space))}.yaml"
            path.write_text(space)
        catalogs = catalogs or [ecg_catalogs[name].path for name in ("ptb-xl", "georgia")]
        usual = {
            "techniques": ("scratch",),
            "searched": ("finetune-full",),
            "method": Method(sampler="random"),
            "budget": Budget(trials=3),
            "at_once": 1,
        }
        choice = Choice(tuple(catalogs), file=files / "small.yaml")
        return Tuning(choice, space=path, **(usual | changes))

    return make


def searched(tuning, store, observer=None):
    plans = planned_searches(tuning, gpu=False)
    silent = {"say": lambda line: None, "quiet": True}
    (search,) = run_searches(tuning, plans, store, observer=observer, **silent)
    return search


def results(folder):
    """What a search found, but for its times."""
    trials = read_search(folder).trials
    return trials.drop(columns=["seconds", "device_hours", "started", "finished"])


def scores_in(folder):
    """Scores by trial and evaluation, of nothing but the table of trials."""
    table = pd.read_parquet(folder / "trials.parquet")
    sound = table[table["state"].isin(["complete", "unfinished"])]
    scores = {
        int(number): {point["evaluation"]: point["value"] for point in points}
        for number, points in zip(sound["number"], sound["scores"], strict=True)
    }
    return {number: row for number, row in scores.items() if row}


@pytest.fixture(scope="module")
def without_targets(ecg_catalogs, tmp_path_factory):
    """Folder of copies of the catalogs of which only the source's splits can be read."""
    folder = tmp_path_factory.mktemp("training")
    for name in ("ptb-xl", "georgia"):
        shutil.copytree(ecg_catalogs[name].path, folder / name)
    for shard in (folder / "georgia" / "shards").iterdir():
        shard.unlink()
    return folder


@pytest.fixture(scope="module")
def whole(tuning, without_targets, tmp_path_factory):
    """An undisturbed search of twelve evaluations."""
    return searched(tuning([without_targets], **FEW), tmp_path_factory.mktemp("whole"))


# A search over families and the runs after it.


@pytest.fixture(scope="module")
def commanded(ecg_catalogs, files, tmp_path_factory):
    """Store and output of `benchmd tune` over two techniques, which is killed once meanwhile."""
    store = tmp_path_factory.mktemp("commanded") / "runs"
    arguments = ["--technique", "scratch", "--technique", "random-kernels", "--seed", "0"]
    arguments += ["--trials", "3", "--evaluations", "12", "--portfolio", "none"]
    for name in ("ptb-xl", "georgia"):
        arguments += ["--catalog", str(ecg_catalogs[name].path)]
    arguments += ["--settings", str(files / "small.yaml"), "--space", str(files / "space.yaml")]
    arguments += ["--at-once", "1", "--store", str(store)]
    killed_once(lambda trials: trials["evaluations"].sum() >= 6, store, arguments)
    done = CliRunner().invoke(main, ["tune", *arguments])
    assert done.exit_code == 0, done.output
    return store, done.output


@pytest.fixture(scope="module")
def of_families(commanded, tuning, tmp_path_factory):
    """The same search, undisturbed."""
    changes = {"techniques": ("scratch", "random-kernels"), "searched": ()}
    changes |= {"budget": STARTS, "method": Method()}
    return searched(tuning(**changes), tmp_path_factory.mktemp("calm"))


def test_a_search_over_families_that_is_killed_ends_like_an_undisturbed_one(commanded, of_families):
    (folder,) = (commanded[0] / "searches").iterdir()
    assert folder.name == of_families.folder.name
    assert f"{folder.name} resumes: " in commanded[1]
    assert re.search(r" begun before, \d+ evaluations? done", commanded[1])
    pd.testing.assert_frame_equal(results(folder), results(of_families.folder))
    record, calm = read_search(folder), read_search(of_families.folder)
    assert record.best == calm.best
    trials = record.trials
    assert len(record.families) == 3
    assert list(trials["family"][:3]) == [family.name for family in record.families]
    assert list(trials["evaluations"]) == [4, 4, 4]


def test_anybody_can_recompute_the_choice(commanded, whole):
    for folder in (*(commanded[0] / "searches").iterdir(), whole.folder):
        record = read_search(folder)
        assert chosen(scores_in(folder)) == record.best


def test_start_and_choice_have_fold_models_that_are_scored(commanded):
    store, output = commanded
    (folder,) = (store / "searches").iterdir()
    record = read_search(folder)
    assert record.folds == (0, 1, 2, 3, 4)
    assert record.best != 0  # the start's learning rate is the smallest
    assert f"chosen: trial {record.best} (" in output
    transfers = [run for run in runs([store]) if run.description["kind"] == "transfer"]
    by_row = {}
    for run in transfers:
        fold = run.description["fold"]["evaluation"]
        by_row.setdefault(run.settings.tuned, []).append(fold)
        assert run.description["seed"] == seed_of(0, fold)
        names = sorted(path.stem for path in (run.folder / "predictions").glob("*/*.parquet"))
        assert names == ["georgia", "ptb-xl"]
    assert {name: sorted(folds) for name, folds in by_row.items()} == {
        "": [0, 1, 2, 3, 4],
        folder.name: [0, 1, 2, 3, 4],
    }
    (start,) = {run.settings.transfer.optimiser.lr for run in transfers if not run.settings.tuned}
    assert start == 1e-5


def test_weights_that_the_search_kept_are_not_trained_again(commanded):
    store, _ = commanded
    (folder,) = (store / "searches").iterdir()
    record, count = read_search(folder), 0
    for run in runs([store]):
        if run.description["kind"] != "transfer":
            continue
        number = record.best if run.settings.tuned else 0
        evaluation = run.description["fold"]["evaluation"]
        kept = folder / MODELS / job_name(number, evaluation) / "model.safetensors"
        was_trained = "per_second" in read_metrics(run.folder)[0]
        assert was_trained == (not kept.is_file())
        if kept.is_file():
            assert run.model_sha256 == sha256(kept)
            count += 1
    evaluations = record.trials.set_index("number")["evaluations"]
    assert count == evaluations[0] + evaluations[record.best] - 1  # all but the choice's first
    assert count > 2


def test_a_report_is_written_of_a_search_and_its_runs(commanded, tmp_path):
    store, _ = commanded
    arguments = ["report", str(store), "--out", str(tmp_path), "--resamples", "20"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    (folder,) = (store / "searches").iterdir()
    page = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*.html"))
    assert folder.name in page


def test_the_best_settings_are_a_file_for_run(commanded, ecg_catalogs):
    store, _ = commanded
    (folder,) = (store / "searches").iterdir()
    record = read_search(folder)
    source, settings = ecg_catalogs["ptb-xl"], record.chosen_settings[0]
    base = default_settings(source.card.modality)
    best = load_settings(folder / "best.yaml", base=base)
    assert best.tuned == folder.name
    if record.chosen.technique == "scratch":
        for part in ("encoder", "pretrain"):
            assert as_dict(best)[part] == settings[part]
    omitted = dict.fromkeys(("mode", "labels"))
    assert {**as_dict(best)["transfer"], **omitted} == {**settings["transfer"], **omitted}


def test_a_search_leaves_no_files_of_jobs_behind(commanded):
    store, _ = commanded
    (folder,) = (store / "searches").iterdir()
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {MODELS}
    weights = {path.relative_to(folder).parts[0] for path in folder.rglob("*.safetensors")}
    assert weights == {MODELS}


def test_trials_are_scored_on_the_inner_catalog_alone(tuning, whole, tmp_path):
    (family,) = whole.plan.families
    trained = FamilyWork("scratch", Transfer(), (Arm("ecg", family.settings[0]),), ())
    work = TrialContext({family.name: trained}, tmp_path / whole.folder.name)
    for number, evaluation in ((0, 1), (1, 0)):
        trial, reports = whole.trials[number], []
        catalogs = whole.catalogs[evaluation]
        run_trial(work, number, evaluation, family.name, trial.values, catalogs, reports.append)
        assert reports[-1].whole
        assert reports[-1].score == trial.evaluations[evaluation]


class Interrupting:
    """Observes a search, and sends SIGTERM when a trial has ended."""

    def __init__(self, last=1):
        self.reached, self.last = [], last

    def trial_ended(self, search, about, trial):
        self.reached.append((trial["number"], trial["state"], trial["evaluations"]))
        if trial["number"] == self.last:
            os.kill(os.getpid(), signal.SIGTERM)

    def closed(self):
        pass


def killed_once(holds, store, arguments):
    """Search by the command, until something holds of the trials that the store has."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmd_ray.cli", "tune", *arguments],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )

    def reached():
        assert process.poll() is None
        tables = store.glob("searches/*/trials.parquet")  # replaced meanwhile
        return any(holds(pd.read_parquet(io.BytesIO(table.read_bytes()))) for table in tables)

    try:
        until("the trials to kill it at", reached, 300)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def disturbed(tuning, files, tmp_path_factory):
    """The same search, stopped after some trials, killed after some more and run to its end.

    With what was complete after each, and the trials of which observers were told.
    """
    request = tuning(**FEW)
    store, observer, later = tmp_path_factory.mktemp("disturbed"), Interrupting(), Interrupting(99)
    with pytest.raises(Stopped):
        searched(request, store, observer)
    (folder,) = (store / "searches").iterdir()
    stopped = scores_in(folder)
    arguments = "--technique scratch --setting finetune-small --evaluations 12 --sampler random"
    arguments = [*arguments.split(), "--at-once", "1", "--search-only", "--portfolio", "none"]
    for path in request.choice.catalogs:
        arguments += ["--catalog", str(path)]
    arguments += ["--settings", str(files / "small.yaml"), "--space", str(files / "space.yaml")]
    arguments += ["--store", str(store)]
    killed_once(lambda trials: trials["evaluations"].max() > 1, store, arguments)
    killed = scores_in(folder)
    search = searched(request, store, later)
    return search, (stopped, killed), (observer.reached, later.reached)


def test_an_interrupted_and_killed_search_ends_like_an_undisturbed_one(disturbed, whole):
    search, (stopped, killed), (first, last) = disturbed
    assert len(stopped) < len(killed)
    assert sum(map(len, killed.values())) < sum(map(len, scores_in(search.folder).values()))
    assert len({*first, *last}) == len(first) + len(last)  # observers are told of nothing twice
    pd.testing.assert_frame_equal(results(search.folder), results(whole.folder))
    assert read_search(search.folder).best == read_search(whole.folder).best
    end = scores_in(search.folder)
    for before in (stopped, killed):
        for number, scores in before.items():
            assert scores.items() <= end[number].items()


def test_a_search_reads_no_target(disturbed, whole):
    """`disturbed` could read them, `whole` could not."""
    pd.testing.assert_frame_equal(results(whole.folder), results(disturbed[0].folder))


def test_a_search_is_extended(tuning, whole, tmp_path):
    store = tmp_path / "runs"
    shutil.copytree(whole.folder.parent.parent, store)
    larger = Budget(trials=None, evaluations=16)
    longer = searched(tuning(**(FEW | {"budget": larger})), store)
    assert longer.folder == store / "searches" / whole.folder.name
    before, after = scores_in(whole.folder), scores_in(longer.folder)
    assert sum(map(len, after.values())) > sum(map(len, before.values()))
    for number, scores in before.items():
        assert scores.items() <= after[number].items()


def test_a_journal_that_has_lost_trials_is_refused(tuning, whole, tmp_path):
    store = tmp_path / "runs"
    shutil.copytree(whole.folder.parent.parent, store)
    (store / "searches" / whole.folder.name / "study.log").unlink()
    trials = len(whole.trials)
    with pytest.raises(BenchmdError, match=f"has {trials} trials, and its journal 0"):
        searched(tuning(**FEW), store)


def test_weights_that_all_trials_start_from_must_be_there(tuning, tmp_path):
    request = {"techniques": ("mae",), "searched": ("finetune-small",)}
    searched(tuning(budget=Budget(trials=1), **request), tmp_path)
    (path,) = tmp_path.glob("pretrain-*/model.safetensors")
    path.unlink()
    with pytest.raises(BenchmdError, match="its weights were pruned"):
        searched(tuning(budget=Budget(trials=2), **request), tmp_path)


def test_a_trial_that_cannot_work_is_recorded_and_the_others_go_on(tuning, tmp_path):
    space = SPACE.replace("high: 1.0e-1", "high: 9.0e+15", 1)
    budget = Budget(trials=6, evaluations=7)
    search = searched(tuning(space=space, searched=("finetune-small",), budget=budget), tmp_path)
    failed = [trial for trial in search.trials if trial.state == "failed"]
    assert failed
    assert all("the loss became" in trial.reason for trial in failed)
    assert search.chosen is not None
    assert len(search.trials) == 6


def test_a_lost_process_is_started_again_and_fails_the_second_time(
    tuning, whole, tmp_path, monkeypatch
):
    request = tuning(searched=("finetune-small",), budget=Budget(evaluations=3))
    lost = {0: 1, 1: 4}
    usual = ray_tune.Judge.on_trial_result

    def killing(self, controller, trial, result):
        number = trial.config["number"]
        if result.get("whole") is False and lost.get(number, 0):
            lost[number] -= 1
            os.kill(result["pid"], signal.SIGKILL)
            return "CONTINUE"
        if not result.get("whole") and not result["failed"]:
            return "CONTINUE"  # nothing is stopped early here
        return usual(self, controller, trial, result)

    monkeypatch.setattr(ray_tune.Judge, "on_trial_result", killing)
    search = searched(request, tmp_path)
    assert [trial.state for trial in search.trials] == ["complete", "failed", "complete"]
    assert search.trials[1].reason == "its process was lost again and again"
    for number in (0, 2):
        evaluations = whole.trials[number].evaluations
        assert evaluations.get(0, ANY) == search.trials[number].evaluations[0]


def test_the_budgets_end_a_search(tuning, tmp_path):
    hours = searched(tuning(budget=Budget(trials=None, hours=1e-9)), tmp_path / "a")
    assert hours.trials == ()
    assert "nothing to choose" in hours.lines[-1]
    devices = searched(tuning(budget=Budget(trials=None, device_hours=1e-9)), tmp_path / "b")
    assert [trial.number for trial in devices.trials] == [0]


def test_one_process_at_a_time_works_on_a_search(tuning, tmp_path):
    (plan,) = planned_searches(tuning(), gpu=False)
    held = locked(tmp_path / "searches" / plan.name / ".lock", "it")
    with held, pytest.raises(Busy, match="working on the search"):
        searched(tuning(), tmp_path)


DROPOUT = ("dropout", "embedding_dropout")
PRETRAINED = "pretrain.optimiser.lr: {kind: log float, low: 1.0e-5, high: 1.0e-2}\n"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("setting", "space", "technique"),
    [("finetune-small", SPACE, "scratch"), ("pretrain", PRETRAINED, "mae")],
)
def test_a_trial_of_several_workers_finds_what_one_finds(
    tuning, tmp_path, setting, space, technique
):
    """But for rounding: nothing is dropped, whose draws depend on the number of workers."""
    budget = Budget(evaluations=1)
    request = tuning(searched=(setting,), space=space, techniques=(technique,), budget=budget)

    def with_changes(**changes):
        overrides = (*request.choice.overrides, {"encoder": dict.fromkeys(DROPOUT, 0.0)}, changes)
        return replace(request, choice=replace(request.choice, overrides=overrides))

    one, on_two = with_changes(), with_changes(execution={"workers": 2})
    one = results(searched(one, tmp_path / "one").folder)
    two = results(searched(on_two, tmp_path / "two").folder)
    assert list(two["state"]) == ["complete"]
    assert two["value"].to_numpy() == pytest.approx(one["value"].to_numpy(), abs=0.01)
    (varied, *_) = [name for name in one if name.endswith("optimiser.lr")]
    assert two[varied].equals(one[varied])


@pytest.fixture
def on_s3(service, tmp_path, monkeypatch):
    """The mirror that a machine has of a store."""

    def on(machine):
        monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / machine))
        return store_folder(f"{service.address}/study")

    return on


class Losing(Interrupting):
    """Observes a search, and takes its storage away for 30 s when a first trial has ended."""

    def __init__(self, service):
        super().__init__(last=None)
        self.service, self.back = service, None

    def trial_ended(self, search, about, trial):
        super().trial_ended(search, about, trial)
        if self.back is None:
            self.service.stop()
            self.back = threading.Timer(30, self.service.start)
            self.back.start()


@pytest.mark.nightly
@pytest.mark.parametrize("service", SERVICES, indirect=True)
def test_a_search_in_a_bucket_is_ended_twice_and_resumed_from_other_machines_and_extended(
    tuning, on_s3, service, files, tmp_path
):
    """Killed on the first machine, stopped on the second, without storage for 30 s on the third."""
    s3, request = service.address, {"searched": ("linear",), "techniques": ("mae",)}
    made, bucket = tuning(budget=TWELVE, **request), open_bucket(f"{s3}/study")
    arguments = "--technique mae --setting linear --evaluations 12 --sampler random --at-once 1"
    arguments = [*arguments.split(), "--search-only", "--portfolio", "none", "--store"]
    arguments += [bucket.address, "--settings", files / "small.yaml", "--space"]
    arguments += [files / "space.yaml", *(f"--catalog={path}" for path in made.choice.catalogs)]
    killed_once(lambda trials: len(trials) > 0, on_s3("first"), map(str, arguments))
    bucket.delete([key for key in bucket.objects() if "lease" in key])  # as after 180 s
    with pytest.raises(Stopped):
        searched(made, on_s3("second"), Interrupting(last=3))
    losing = Losing(service)
    found = searched(made, on_s3("third"), losing)
    losing.back.join()
    whole = searched(made, tmp_path / "whole")
    pd.testing.assert_frame_equal(results(found.folder), results(whole.folder))
    assert found.lines[-1] == f"    written: {s3}/study/searches/{found.folder.name}"
    result = (found.folder / "result.json").read_bytes()
    assert read_search(found.folder).best == read_search(whole.folder).best
    # A machine that has searched nothing.
    reader = on_s3("fourth")
    state_of([reader])
    record = read_search(reader / "searches" / found.folder.name)
    assert (record.folder / "result.json").read_bytes() == result
    assert record.trials.equals(read_search(found.folder).trials)
    kept = {key.split("/")[2] for key in open_bucket(f"{s3}/study").objects("searches/")}
    assert kept >= {"journal", "models", "trials.parquet", "result.json", "best.yaml"}
    assert "lease.json" in kept
    assert "trials" not in kept
    assert not [*(tmp_path / "third").glob("searches/*")]
    longer = searched(tuning(budget=Budget(trials=None, evaluations=14), **request), reader)
    pairs = [*zip(found.trials, longer.trials, strict=False)]
    assert all(old.evaluations.items() <= new.evaluations.items() for old, new in pairs)
    assert any(old.evaluations.items() < new.evaluations.items() for old, new in pairs)


def test_the_folder_says_what_was_searched(whole):
    plan = json.loads((whole.folder / "search.json").read_text())
    assert plan["sources"][0]["source"] == "ptb-xl"
    records = plan["sources"][0]["records"]
    assert records["train"] > 3 * records["validation"] > 0
    write_json(whole.folder / "copy.json", plan)  # plain values throughout
