import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
from click.testing import CliRunner
from stored import runs
from waiting import until

from benchmd_ray.cli import main
from benchmd_ray.console.progress import duration
from benchmd_ray.errors import BenchmdError, Busy, Stopped
from benchmd_ray.files.atomic import locked, write_json
from benchmd_ray.runs.places import store_folder
from benchmd_ray.service.capacity import Capacity
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.dry_run import print_estimates
from benchmd_ray.service.plan import make_plan
from benchmd_ray.service.search_session import Searched
from benchmd_ray.service.searches import Tuning, of_sources, planned_searches, started
from benchmd_ray.service.simulate import Resources
from benchmd_ray.service.trial_place import place_of
from benchmd_ray.service.tune import run_searches
from benchmd_ray.service.tune_and_train import retraining_plan
from benchmd_ray.service.tune_dry_run import estimate_searches
from benchmd_ray.service.watching import state_of
from benchmd_ray.settings.definition import as_dict, default_settings, load_settings
from benchmd_ray.storage.bucket import open_bucket
from benchmd_ray.tuning import ray_tune
from benchmd_ray.tuning.known import Trial
from benchmd_ray.tuning.limits import Budget, Place
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.racing import expected_evaluations
from benchmd_ray.tuning.records import read_search
from benchmd_ray.tuning.stages import Arm, Transfer, TrialContext
from benchmd_ray.tuning.trial import run_trial
from benchmd_ray.tuning.written import SearchOutcome

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


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "small.yaml").write_text(SMALL)
    (folder / "space.yaml").write_text(SPACE)
    return folder


@pytest.fixture(scope="session")
def tuning(ecg_catalogs, files):
    """What is asked for: a search on the small ECG source; one trial at a time is repeatable."""

    def make(catalogs=None, space=SPACE, searched="linear", technique="scratch", **changes):
        path = files / "space.yaml"
        if space != SPACE:
            path = files / f"{abs(hash(space))}.yaml"
            path.write_text(space)
        chosen = catalogs or [ecg_catalogs[name].path for name in ("ptb-xl", "georgia")]
        choice = Choice(tuple(chosen), techniques=(technique,), file=files / "small.yaml")
        usual = {
            "method": Method(sampler="random", stopping="none", choosing="highest"),
            "evaluations": 2,
            "budget": Budget(trials=3),
            "at_once": 1,
        }
        return Tuning(choice, (searched,), path, **(usual | changes))

    return make


def searched(tuning, store, observer=None):
    plans = planned_searches(tuning, gpu=False)
    silent = {"say": lambda line: None, "quiet": True}
    (found,) = run_searches(tuning, plans, store, observer=observer, **silent)
    return found


def results(folder):
    """What a search found out, but for its times."""
    trials = read_search(folder).trials
    return trials.drop(columns=["seconds", "device_hours", "started", "finished"])


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
    """An undisturbed search of four trials."""
    made = tuning([without_targets], budget=Budget(trials=4), searched="finetune-small")
    return searched(made, tmp_path_factory.mktemp("whole"))


pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def commanded(ecg_catalogs, files, tmp_path_factory):
    """Store and output of `benchmd tune`."""
    store = tmp_path_factory.mktemp("commanded") / "runs"
    arguments = ["--technique", "mae", "--setting", "linear", "--trials", "4", "--stopping", "none"]
    arguments += ["--evaluations", "2", "--choose", "highest"]
    for name in ("ptb-xl", "georgia"):
        arguments += ["--catalog", str(ecg_catalogs[name].path)]
    arguments += ["--settings", str(files / "small.yaml"), "--space", str(files / "space.yaml")]
    done = CliRunner().invoke(main, ["tune", *arguments, "--store", str(store)])
    assert done.exit_code == 0, done.output
    return store, done.output


def test_the_start_and_the_best_are_trained_and_scored(commanded):
    store, output = commanded
    (folder,) = (store / "searches").iterdir()
    record = read_search(folder)
    best = record.trials.set_index("number")["value"].idxmax()
    assert record.best == best != 0  # the start's learning rate is the smallest
    assert f"highest: trial {best}, AUROC" in output
    transfers = [run for run in runs([store]) if run.description["kind"] == "transfer"]
    rates = {run.settings.tuned: run.settings.transfer.optimiser.lr for run in transfers}
    assert rates == {"": 1e-5, folder.name: record.trials[LR][best]}
    assert len({run.description["upstream"] for run in transfers}) == 1  # one pretraining serves
    for run in transfers:
        names = sorted(path.stem for path in (run.folder / "predictions").glob("*/*.parquet"))
        assert names == ["georgia", "ptb-xl"]


def test_what_fresh_evaluations_decide_is_trained_and_nothing_else(tuning, tmp_path):
    made = tuning(
        method=Method(sampler="random"), budget=Budget(trials=5), evaluations=3, at_once=2
    )
    found = searched(made, tmp_path)
    record = read_search(found.folder)
    assert found.chosen.trial.number == record.best
    finalists = record.trials[record.trials["fresh_evaluations"] > 0]
    assert 0 in set(finalists["number"])
    assert len(finalists) > 1
    assert set(finalists["fresh_evaluations"]) <= {5, 10}
    decided = record.decision or {"finalists": []}
    better = [one["number"] for one in decided["finalists"] if one["low"] > 0]
    assert record.best == (better[0] if better else 0)
    assert ("keeps the start" in "\n".join(found.lines)) == (record.best == 0)
    plan = retraining_plan(made, [found], tmp_path, device="cpu", tflops=1.0)
    assert any(item.settings.tuned for item in plan.items) == (record.best > 0)


@pytest.mark.slow
def test_what_was_chosen_stays_while_an_extended_search_is_interrupted(tuning, tmp_path):
    method = Method(sampler="random", stopping="none")
    made = tuning(method=method, budget=Budget(trials=2), evaluations=2, at_once=1)
    with pytest.raises(Stopped):
        searched(made, tmp_path, Interrupting(0))
    (folder,) = (tmp_path / "searches").iterdir()
    assert read_search(folder).result is None  # nothing was chosen yet
    # As if it had been killed between a table and its hash.
    (folder / "trials.parquet.sha256").write_text(f"{'0' * 64}  trials.parquet\n")
    searched(made, tmp_path)
    before = (folder / "result.json").read_bytes()
    more = replace(made, budget=Budget(trials=4))
    with pytest.raises(Stopped):
        searched(more, tmp_path, Interrupting(2))
    assert len(complete(folder)) == 3
    assert (folder / "result.json").read_bytes() == before
    assert read_search(folder).best == json.loads(before)["best"]


def test_the_best_settings_are_a_file_for_run(commanded, ecg_catalogs):
    store, _ = commanded
    (folder,) = (store / "searches").iterdir()
    record = read_search(folder)
    source = ecg_catalogs["ptb-xl"]
    settings = load_settings(folder / "best.yaml", base=default_settings(source.card.modality))
    assert settings.tuned == (folder.name if record.best else "")
    wanted = record.result["settings"][0]
    for part in ("encoder", "pretrain", "transfer"):
        assert as_dict(settings)[part] == wanted[part]


def test_a_search_leaves_no_weights_behind(commanded):
    store, _ = commanded
    held = {path.relative_to(store).parts[0] for path in store.rglob("*.safetensors")}
    assert "searches" not in held
    assert not [path for path in (store / "searches").rglob("*") if path.is_dir()][1:]


def test_trials_are_scored_on_the_inner_catalog_alone(tuning, whole, tmp_path):
    (plan,) = planned_searches(tuning(searched="finetune-small"), gpu=False)
    first, second = sorted((whole.folder.parent.parent / "inner" / "catalogs").glob("ptb-xl-*"))
    arm = Arm("ecg", {0: first, 1: second}, plan.starts[0])
    for trial in whole.trials[:2]:
        told = []
        work = TrialContext("scratch", Transfer(), (arm,), tmp_path, ())
        run_trial(work, trial.number, trial.values, told.append, evaluations=(0, 1))
        whole_ones = [one for one in told if one.whole]
        assert tuple((one.evaluation, one.score) for one in whole_ones) == trial.evaluations


class Interrupting:
    """Observes a search, and sends SIGTERM where one of its trials has ended."""

    def __init__(self, last=1):
        self.numbers, self.last = [], last

    def trial_ended(self, search, about, trial):
        self.numbers.append(trial["number"])
        if trial["number"] == self.last:
            os.kill(os.getpid(), signal.SIGTERM)

    def closed(self):
        pass


def complete(folder):
    trials = read_search(folder).trials
    return trials[trials["state"] == "complete"]


def kill_where(holds, made, files, store, *options):
    """Search by the command, until something holds of the trials that the store has."""
    arguments = ["--technique", "scratch", "--setting", "finetune-small", *options]
    for path in made.choice.catalogs:
        arguments += ["--catalog", str(path)]
    arguments += ["--settings", str(files / "small.yaml"), "--space", str(files / "space.yaml")]
    arguments += ["--at-once", "1", "--search-only", "--store", str(store)]
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
    made = tuning(budget=Budget(trials=4), searched="finetune-small")
    store, observer, later = tmp_path_factory.mktemp("disturbed"), Interrupting(), Interrupting()
    with pytest.raises(Stopped):
        searched(made, store, observer)
    (folder,) = (store / "searches").iterdir()
    stopped = complete(folder)
    options = "--trials 4 --evaluations 2 --sampler random --stopping none --choose highest"
    kill_where(
        lambda trials: len(trials.query("state == 'complete'")) > len(stopped),
        made,
        files,
        store,
        *options.split(),
    )
    killed = pd.read_parquet(folder / "trials.parquet").query("state == 'complete'")
    curves = killed["curve"].map(lambda curve: tuple((p["step"], p["value"]) for p in curve))
    killed = killed.assign(curve=curves)
    found = searched(made, store, later)
    return found, (stopped, killed), (observer.numbers, later.numbers)


def test_an_interrupted_and_killed_search_ends_like_an_undisturbed_one(disturbed, whole):
    found, (stopped, killed), (first, last) = disturbed
    assert len(stopped) < len(killed) <= 4
    assert first == list(range(len(first)))
    assert last == list(range(4 - len(last), 4))  # of none twice
    assert len(last) <= 4 - len(killed)
    pd.testing.assert_frame_equal(results(found.folder), results(whole.folder))
    for before in (stopped, killed):
        pd.testing.assert_frame_equal(read_search(found.folder).trials[: len(before)], before)


def test_a_race_that_is_killed_in_its_choice_ends_like_an_undisturbed_one(tuning, files, tmp_path):
    asked = {"method": Method(sampler="random"), "budget": Budget(trials=4)}
    made = tuning(searched="finetune-small", **asked)
    calm = searched(made, tmp_path / "calm")
    options = ["--trials", "4", "--evaluations", "2", "--sampler", "random"]
    begun = lambda trials: trials["fresh_evaluations"].sum() > 0  # noqa: E731
    kill_where(begun, made, files, tmp_path / "killed", *options)
    folder = tmp_path / "killed" / "searches" / calm.folder.name
    assert not (folder / "result.json").exists()
    found = searched(made, tmp_path / "killed")
    assert {"stopped", "complete"} == set(results(calm.folder)["state"])
    pd.testing.assert_frame_equal(results(folder), results(calm.folder))
    assert read_search(folder).decision == read_search(calm.folder).decision
    assert found.chosen.trial.number == calm.chosen.trial.number


def test_a_search_reads_no_target(disturbed, whole):
    """`disturbed` could read them, `whole` could not."""
    pd.testing.assert_frame_equal(results(whole.folder), results(disturbed[0].folder))


def test_a_search_is_extended(tuning, whole, tmp_path):
    store = tmp_path / "runs"
    shutil.copytree(whole.folder.parent.parent, store)
    six = searched(tuning(budget=Budget(trials=6), searched="finetune-small"), store)
    assert six.folder == store / "searches" / whole.folder.name
    assert len(results(six.folder)) == 6
    pd.testing.assert_frame_equal(results(six.folder)[:4], results(whole.folder))


def test_a_journal_that_has_lost_trials_is_refused(tuning, whole, tmp_path):
    store = tmp_path / "runs"
    shutil.copytree(whole.folder.parent.parent, store)
    (store / "searches" / whole.folder.name / "study.log").unlink()
    with pytest.raises(BenchmdError, match="has 4 trials, and its journal 0"):
        searched(tuning(budget=Budget(trials=6), searched="finetune-small"), store)


def test_weights_that_all_trials_start_from_must_be_there(tuning, tmp_path):
    asked = {"technique": "mae", "searched": "finetune-small"}
    searched(tuning(budget=Budget(trials=1), **asked), tmp_path)
    (path,) = tmp_path.glob("pretrain-*/model.safetensors")
    path.unlink()
    with pytest.raises(BenchmdError, match="its weights were pruned"):
        searched(tuning(budget=Budget(trials=2), **asked), tmp_path)


def test_a_trial_that_cannot_work_is_recorded_and_the_others_go_on(tuning, tmp_path):
    space = SPACE.replace("high: 1.0e-1", "high: 9.0e+15", 1)
    made = tuning(space=space, searched="finetune-small", budget=Budget(trials=6))
    found = searched(made, tmp_path)
    failed = [trial for trial in found.trials if trial.state == "failed"]
    assert failed
    assert all("the loss became" in trial.reason for trial in failed)
    assert found.chosen is not None
    assert len(found.trials) == 6


def test_a_lost_process_is_started_again_and_fails_the_second_time(
    tuning, whole, tmp_path, monkeypatch
):
    made = tuning(
        budget=Budget(trials=3),
        searched="finetune-small",
        method=Method(sampler="random", stopping="asha", choosing="highest"),
    )
    lost = {0: 1, 1: 2}
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
    found = searched(made, tmp_path)
    assert [trial.state for trial in found.trials] == ["complete", "failed", "complete"]
    assert found.trials[1].reason == "its process was lost, more than once"
    for number in (0, 2):
        assert found.trials[number].score == whole.trials[number].score


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


def sources(write_manifest, *names):
    return tuple(write_manifest(name) for name in names)


def universal(catalogs, **changes):
    choice = Choice(catalogs, techniques=("mae",), assignments=("encoder=tiny",))
    method = Method(universal=True, stopping="asha")
    return Tuning(choice, ("linear",), **({"method": method} | changes))


def test_a_universal_search_has_what_all_modalities_share(write_manifest):
    catalogs = sources(write_manifest, "ptb-xl", "mimic-cxr", "georgia")
    (plan,) = planned_searches(universal(catalogs), gpu=False)
    assert plan.name.startswith("tune-universal-mae-linear-")
    assert [source.name for source in plan.sources] == ["mimic-cxr", "ptb-xl"]
    assert LR in plan.space.start
    assert "encoder.patch_size" not in plan.space.start


@pytest.mark.parametrize("names", [("ptb-xl",), ("mimic-cxr", "nih-cxr-ap", "ptb-xl")])
def test_a_universal_search_takes_one_source_of_each_modality(write_manifest, names):
    with pytest.raises(BenchmdError, match="one source from each of two or more modalities"):
        planned_searches(universal(sources(write_manifest, *names)), gpu=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"searched": ("liner",)}, r"unknown setting to search 'liner'.*'linear'"),
        ({"held": ("transfer.lr",)}, r"unknown setting to hold with --fix: 'transfer.lr'"),
        ({"method": Method(cost=True)}, r"cannot be stopped early.*--stopping none"),
    ],
)
def test_what_cannot_be_searched_is_refused(write_manifest, changes, message):
    catalogs = sources(write_manifest, "ptb-xl")
    with pytest.raises(BenchmdError, match=message):
        planned_searches(Tuning(Choice(catalogs, techniques=("mae",)), **changes), gpu=False)


def test_scratch_has_no_pretraining_to_search(write_manifest):
    catalogs = sources(write_manifest, "ptb-xl")
    made = Tuning(Choice(catalogs, techniques=("scratch",)), ("pretrain",))
    with pytest.raises(BenchmdError, match="scratch trains nothing in pretraining"):
        planned_searches(made, gpu=False)


@pytest.mark.parametrize(
    ("capacity", "place"),
    [
        (Capacity(16, 8, 16, ((16, 8),)), Place(4.0, 2.0, 3, 2)),
        (Capacity(32, 6, 32, ((8, 1), (8, 1), (16, 4))), Place(4.0, 2.0, 3, 2)),
        (Capacity(5, 2, 5, ((5, 2),)), Place(4.0, 2.0, 1, 2)),
    ],
)
def test_trials_of_several_workers_hold_what_all_of_them_need(write_manifest, capacity, place):
    chosen = ("execution.workers=2", "execution.cpus_per_worker=2", "execution.device=cuda")
    catalogs = sources(write_manifest, "ptb-xl")
    choice = Choice(catalogs, techniques=("mae",), assignments=chosen)
    (plan,) = planned_searches(Tuning(choice, ("finetune-full",)), gpu=True)
    assert place_of(plan, capacity, None) == place
    (linear,) = planned_searches(Tuning(choice, ("linear",)), gpu=True)
    assert place_of(linear, capacity, None).workers == 1  # of what leaves the encoder as it is


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
    usual = ("encoder.dropout=0", "encoder.embedding_dropout=0")
    made = tuning(searched=setting, space=space, technique=technique, budget=Budget(trials=1))
    made = replace(made, evaluations=1)
    one = replace(made, choice=replace(made.choice, assignments=usual))
    chosen = replace(made.choice, assignments=(*usual, "execution.workers=2"))
    one = results(searched(one, tmp_path / "one").folder)
    two = results(searched(replace(made, choice=chosen), tmp_path / "two").folder)
    assert list(two["state"]) == ["complete"]
    assert two["value"].to_numpy() == pytest.approx(one["value"].to_numpy(), abs=0.01)
    (varied, *_) = [name for name in one if name.endswith("optimiser.lr")]
    assert two[varied].equals(one[varied])


@pytest.fixture
def on_s3(s3, tmp_path, monkeypatch):
    """The mirror that a machine has of a store."""

    def on(machine):
        monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / machine))
        return store_folder(f"{s3}/study")

    return on


@pytest.mark.nightly
def test_a_search_on_s3_is_resumed_from_another_machine_and_extended(tuning, on_s3, s3, tmp_path):
    asked = {"searched": "linear", "technique": "mae", "method": Method(sampler="random")}
    made = tuning(budget=Budget(trials=4), **asked)
    with pytest.raises(Stopped):
        searched(made, on_s3("first"), Interrupting(last=0))
    found = searched(made, on_s3("second"))
    whole = searched(made, tmp_path / "whole")
    pd.testing.assert_frame_equal(results(found.folder), results(whole.folder))
    assert found.lines[-1] == f"    written: {s3}/study/searches/{found.folder.name}"
    held = read_search(found.folder).result
    assert held["decision"] == read_search(whole.folder).result["decision"]
    # A machine that has searched nothing.
    reader = on_s3("third")
    state_of([reader])
    record = read_search(reader / "searches" / found.folder.name)
    assert record.result == held
    assert record.trials.equals(read_search(found.folder).trials)
    kept = {key.split("/")[2] for key in open_bucket(f"{s3}/study").objects("searches/")}
    assert kept >= {"journal", "trials.parquet", "result.json", "best.yaml", "lease.json"}
    assert "trials" not in kept
    assert not [*(tmp_path / "second").glob("searches/*")]
    five = searched(tuning(budget=Budget(trials=5), **asked), reader)
    assert len(five.trials) == 5
    assert [t.evaluations for t in five.trials[:4]] == [t.evaluations for t in found.trials]


def test_what_decides_a_search_names_it(write_manifest):
    catalogs = sources(write_manifest, "ptb-xl")
    base = Tuning(Choice(catalogs, techniques=("mae",)))
    others = [
        replace(base, budget=Budget(trials=7)),
        replace(base, method=Method(seed=1)),
        replace(base, held=(LR,)),
        replace(base, choice=replace(base.choice, seeds=(1,))),
        replace(base, choice=replace(base.choice, assignments=("transfer.epochs=40",))),
    ]
    names = [planned_searches(one, gpu=False)[0].name for one in (base, *others)]
    assert names[0] == names[1]  # more trials extend it
    assert len(set(names)) == len(others)


def test_trials_take_shares_of_gpus(write_manifest):
    made = Tuning(Choice(sources(write_manifest, "ptb-xl"), techniques=("mae",)))
    capacity = Capacity(cpus=16, gpus=2, all_cpus=16, each=((16, 2),))
    places = {}
    for setting in ("linear", "finetune-full", "pretrain"):
        (plan,) = planned_searches(replace(made, searched=(setting,)), gpu=True)
        place = place_of(plan, capacity, None)
        places[setting] = (place.gpus, place.at_once)
    # Of 100 records a fine-tuning is small, too.
    assert places == {"linear": (0.25, 8), "finetune-full": (0.25, 8), "pretrain": (1.0, 2)}
    (plan,) = planned_searches(replace(made, searched=("finetune-full",)), gpu=True)
    large = replace(plan.sources[0], rows={"train": 100_000, "validation": 10_000})
    assert place_of(replace(plan, sources=(large,)), capacity, None).gpus == 1.0
    two = replace(plan, sources=(*plan.sources, large), starts=plan.starts * 2)
    assert place_of(two, capacity, None).gpus == 1.0
    few = place_of(plan, capacity, 2)
    assert (few.gpus, few.at_once) == (1.0, 2)  # each has a GPU of its own
    assert place_of(plan, capacity, 4).gpus == 0.5
    (plan,) = planned_searches(made, gpu=False)
    assert place_of(plan, capacity, None).at_once == 16
    assert place_of(plan, capacity, 3).at_once == 3


def test_retraining_shares_the_pretraining_that_was_not_searched(write_manifest, tmp_path):
    catalogs = sources(write_manifest, "ptb-xl", "georgia")
    choice = Choice(
        catalogs, techniques=("mae",), seeds=(0, 1), assignments=("execution.retries=3",)
    )
    made = Tuning(choice)
    (plan,) = planned_searches(made, gpu=False)
    changes = {"tuned": "it", "transfer": {"epochs": 30}}
    found = Searched(plan, tmp_path, (), SearchOutcome(_trial(3), None), changes, 0.0, "CPU")
    items = retraining_plan(made, [found], tmp_path, device="cpu", tflops=1.0).items
    kinds = pd.Series([item.kind for item in items]).value_counts().to_dict()
    assert kinds == {"pretrain": 2, "transfer": 4, "evaluate": 4}
    by_name = {item.name: item for item in items}
    for item in items:
        assert item.after is None or item.after in by_name
        assert item.settings.execution.retries == 3
        if item.kind == "transfer":
            tuned = item.name.startswith(plan.name)
            assert item.settings.tuned == ("it" if tuned else "")
            assert item.settings.transfer.epochs == (30 if tuned else 100)
    start = replace(found, chosen=SearchOutcome(_trial(0), None))
    assert len(retraining_plan(made, [start], tmp_path, device="cpu", tflops=1.0).items) == 6
    assert retraining_plan(made, [replace(found, chosen=None)], tmp_path, device="cpu") is None


def _trial(number):
    about = {"scores": {}, "evaluations": (), "fresh": (), "curve": ()}
    times = {"seconds": 1.0, "device_hours": 0.0, "started": "", "finished": ""}
    return Trial(number, "complete", {}, 0.6, 0.01, tested=0, reason="", **about, **times)


def test_a_dry_run_says_what_would_be_searched(write_manifest, tmp_path):
    catalogs = sources(write_manifest, "ptb-xl", "georgia")
    made = Tuning(Choice(catalogs, techniques=("mae",)), budget=Budget(trials=12))
    plans = planned_searches(made, gpu=False)
    text = "\n".join(estimate_searches([made], tmp_path, Resources(4, 0), tflops=0.1)[0].lines())
    assert plans[0].name in text
    assert "At most 12 trials, 4 at once, sampler tpe, up to 3 evaluations of a trial" in text
    assert "early stopping by racing" in text
    assert "AUROC on 1 / 5 of the 100 train records of ptb-xl, by patient." in text
    assert "1e-05 to 0.1" in text
    assert "transfer.optimiser.schedule is cosine" in text
    race = expected_evaluations(12, 3)
    assert f", {race} of the trials and 25 of finalists about" in text
    assert not list(tmp_path.glob("searches/*"))


def test_a_dry_run_counts_a_shared_pretraining_once(write_manifest, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmd_ray.service.tune_dry_run.duration", lambda s: f"<{s:.6f}>")
    catalogs = sources(write_manifest, "ptb-xl")

    def after(setting):
        made = Tuning(Choice(catalogs, techniques=("mae",)), searched=(setting,))
        text = "\n".join(
            estimate_searches([made], tmp_path, Resources(4, 0), tflops=0.1)[0].lines()
        )
        (line,) = (each for each in text.splitlines() if "Afterwards" in each)
        return float(re.search(r"<([\d.]+)>", line)[1]), text

    linear, text = after("linear")
    (shared,) = re.findall(r"one pretraining, about <([\d.]+)>", text)
    assert linear < float(shared) / 10
    assert after("pretrain")[0] > 2 * float(shared)


def test_a_dry_run_on_medmnist_names_both_splits_that_are_seen(write_manifest, tmp_path):
    rows = {"train": 546, "validation": 78, "test": 156}
    catalogs = (write_manifest("breastmnist", rows=rows),)
    small = ("encoder.network=resnet18", "encoder.options.width=4", "transfer.epochs=20")
    chosen = Choice(catalogs, techniques=("scratch",), assignments=small)
    made = Tuning(chosen, searched=("finetune-full",), budget=Budget(trials=3))
    (plan,) = planned_searches(made, gpu=False)
    text = "\n".join(estimate_searches([made], tmp_path, Resources(1, 0), tflops=0.1)[0].lines())
    seen = "1 / 5 of the 624 train and validation records of breastmnist, by patient"
    assert f"Scored by AUROC on {seen}." in text
    assert "one of transformer, resnet18, resnet50" in text
    (trained,) = of_sources(make_plan(started(made, plan), device="cpu", tflops=0.1), plan)
    share = 0.8 * 624 / 546
    takes = (
        f"An evaluation with the start's settings takes about {duration(trained.seconds * share)}"
    )
    assert takes in text


def test_a_dry_run_from_scratch_on_ecgs_names_the_networks_over_time(write_manifest, tmp_path):
    chosen = Choice((write_manifest("ptb-xl"),), techniques=("scratch",))
    made = Tuning(chosen, searched=("finetune-small",), budget=Budget(trials=3))
    text = "\n".join(estimate_searches([made], tmp_path, Resources(1, 0), tflops=0.1)[0].lines())
    assert "one of transformer, resnet18-1d, xresnet1d101" in text
    assert "encoder.options.width" in text


def test_a_dry_run_adds_up_what_all_searches_take(tmp_path, monkeypatch, capsys):
    """From cards alone, of datasets that nobody has downloaded."""
    monkeypatch.setattr("benchmd_ray.service.tune_dry_run.duration", lambda s: f"<{s:.6f}>")
    datasets = ("breastmnist", "adrenalmnist3d")
    choice = Choice((), datasets=datasets, bench="medmnist", seeds=(0, 1, 2))
    choice = replace(choice, techniques=("scratch",))
    made = Tuning(choice, ("finetune-full",), budget=Budget(trials=10))
    monkeypatch.setattr("benchmd_ray.service.dry_run.duration", lambda s: f"<{s:.6f}>")
    print_estimates(estimate_searches([made, made], tmp_path, Resources(64, 8), tflops=60), "")
    text = capsys.readouterr().out
    *_, total, basis = text.split("\n\nA search: ")[-1].split("\n\n")
    searches = re.findall(r"of finalists about <([\d.]+)>", text)
    after = re.findall(r"fewer, about <([\d.]+)>", text)
    assert len(searches) == len(after) == 4
    found = re.fullmatch(
        r"In total: (\d+) searches one after the other, about <([\d.]+)>, and the runs after them, "
        r"about <([\d.]+)>; about ([\d.,]+) GPU hours\.",
        total,
    )
    assert int(found[1]) == len(searches)
    assert float(found[2]) == pytest.approx(sum(map(float, searches)), rel=1e-6)
    assert float(found[3]) == pytest.approx(sum(map(float, after)), rel=1e-6)
    assert basis.startswith("Planned from the datasets' cards")


def test_networks_of_ones_own_that_are_searched_decide_a_search(
    write_manifest, tmp_path, monkeypatch
):
    """Their source does: trials of another version cannot be compared."""
    own = tmp_path / "own.yaml"
    own.write_text(
        "encoder.network: {kind: choice, values: [transformer, mine]}\n"
        "transfer.epochs: {kind: int, low: 1, high: 100}\n"
    )
    made = Tuning(
        Choice((write_manifest("ptb-xl"),), techniques=("scratch",)),
        searched=("finetune-full",),
        space=own,
    )
    names = []
    for version in "ab":
        for module in ("tuning.entries", "service.searches"):
            monkeypatch.setattr(
                f"benchmd_ray.{module}.network_source",
                lambda size: version if size.network == "mine" else None,  # noqa: B023
            )
        (plan,) = planned_searches(made, gpu=False)
        assert plan.determinants["network_source"] == [None, version]
        names.append(plan.name)
    assert names[0] != names[1]


def test_the_folder_says_what_was_searched(whole):
    plan = json.loads((whole.folder / "search.json").read_text())
    assert plan["sources"][0]["source"] == "ptb-xl"
    records = plan["sources"][0]["records"]
    assert records["train"] > 3 * records["validation"] > 0
    write_json(whole.folder / "copy.json", plan)  # plain values throughout
