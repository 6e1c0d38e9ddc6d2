import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import yaml
from kinds import MODALITIES
from racing_alone import raced

from benchmd_ray.console.progress import Display
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import digest
from benchmd_ray.files.integrity import write_hashed_json
from benchmd_ray.runs.files import BEST, RESULT, SEARCH, TRIALS
from benchmd_ray.settings.definition import (
    Settings,
    as_dict,
    default_settings,
    load_settings,
    updated,
)
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.records import FORMAT, read_search
from benchmd_ray.tuning.spaces import Parameter, Space, applied
from benchmd_ray.tuning.stages import Arm, Pretraining, Transfer, TrialContext
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.written import differing, nested, write_result, write_trials

LR, SCHEDULE = "transfer.optimiser.lr", "transfer.optimiser.schedule"
WARM_UP, BATCH = "transfer.optimiser.warmup_steps", "transfer.batch_size"
SPACE = Space(
    "made",
    (
        Parameter(LR, "log float", 1e-4, low=1e-5, high=0.1),
        Parameter(SCHEDULE, "choice", "constant", values=("constant", "cosine")),
        Parameter(WARM_UP, "int", 4, low=0, high=20, when={SCHEDULE: ("cosine",)}),
        Parameter(BATCH, "choice", 64, values=(32, 64, 128)),
    ),
)
START = (
    "seed=3",
    "encoder.depth=4",
    "transfer.mode=finetune",
    "transfer.labels=small",
    "transfer.epochs=20",
    "transfer.dropout=0.3",
    "transfer.layer_decay=0.65",
    "execution.device=cpu",
    "execution.precision=float32",
)
DEVICES = 2.0
SECONDS = 36.0
RATIO = 0.25


SOUGHT = {"made": "up", "portfolio": []}


@pytest.fixture
def make(tmp_path):
    """Makes a search: its folder, study, work and limits."""

    def opened(*modalities, stage=None, **method):
        folder = tmp_path / "searches" / f"tune-ecg-mae-finetune-small-{digest(SOUGHT)[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        arms = tuple(
            Arm(name, {0: tmp_path}, load_settings(assignments=START, base=base))
            for name in modalities or ("ecg",)
            for base in (default_settings(MODALITIES[name]),)
        )
        method = Method(**{"choosing": "highest"} | method)
        study = Study(folder / "study.log", SPACE, method, devices=DEVICES)
        work = TrialContext("mae", stage or Transfer(), arms, folder, (1, 2))
        place = Place(DEVICES, 0.0, 1)
        limits = Limits(study, Budget(), place, lambda: False, Display())
        plan = {
            "format": FORMAT,
            "technique": "mae",
            "setting": "finetune-small",
            "sources": [
                {
                    "modality": arm.modality,
                    "source": f"source of {arm.modality}",
                    "policy": "clean",
                    "catalog": "c",
                    "inner": "i",
                    "records": {"train": 8, "validation": 2},
                    "patients": {"train": 8, "validation": 2},
                }
                for arm in arms
            ],
            "objectives": ["auroc"],
            "sampler": "tpe",
            "stopping": "racing",
            "evaluations": method.evaluations,
            "choosing": method.choosing,
            "seed": 0,
            "space": SPACE.as_dict(),
            "settings": [as_dict(arm.settings) for arm in arms],
            "device": "cpu",
            "determinants": SOUGHT,
        }
        write_hashed_json(folder / SEARCH, plan)
        return folder, study, work, limits

    return opened


def fill(study):
    """Trials of every state: complete, stopped, failed, unfinished, unfinished without a word."""
    for number in range(7):
        study.propose()
        if number < 6:
            study.reported(number, 1, 0.5 + number / 64, 3.0)
    study.reported(2, 2, 0.546875, 4.0)
    study.evaluated(0, 0, {"ecg": 0.625}, SECONDS)
    study.evaluated(1, 0, {"ecg": 0.75}, SECONDS / 2)
    study.ended(2, seconds=SECONDS / 4)
    study.ended(3, seconds=SECONDS / 8, reason="the loss became NaN at step 3")
    study.evaluated(4, 0, {"ecg": 0.75}, SECONDS / 16)


def written(folder, study, work, limits, seconds=100.0):
    """What is read back of what is written."""
    limits.look()
    bases = [default_settings(MODALITIES[arm.modality]) for arm in work.arms]
    decision = study.decision(RATIO)
    write_trials(folder, study, work, decision)
    spent = {"seconds": seconds, "shared_seconds": 7.0}
    write_result(folder, limits, work, bases, spent, decision)
    return read_search(folder)


def test_trials_of_every_state_are_read_back(make):
    folder, study, work, limits = make(sampler="random", stopping="none")
    fill(study)
    record = written(folder, study, work, limits)
    states = ["complete", "complete", "stopped", "failed", "complete", "unfinished", "unfinished"]
    assert list(record.trials["state"]) == states
    for trial, row in zip(study.trials(), record.trials.to_dict("records"), strict=True):
        assert row["number"] == trial.number
        assert row["seconds"] == trial.seconds
        assert row["device_hours"] == pytest.approx(trial.seconds / 3600 * DEVICES)
        for name in ("started", "finished", "reason"):
            assert (row[name] if isinstance(row[name], str) else "") == getattr(trial, name)
        for name in (LR, SCHEDULE, WARM_UP, BATCH):
            if name in trial.values:
                assert row[name] == trial.values[name]
            else:
                assert row[name] is None or math.isnan(row[name])
        complete = trial.state == "complete"
        assert row["value"] == trial.score if complete else math.isnan(row["value"])
        assert row["steps"] == 20
        curve = trial.curve + (((20, trial.score),) if complete else ())
        assert row["curve"] == curve
        if curve:
            assert (row["step"], row["last_value"]) == curve[-1]
        else:
            assert math.isnan(row["step"])
            assert math.isnan(row["last_value"])
    assert [len(curve) for curve in record.trials["curve"]] == [2, 2, 2, 1, 2, 1, 0]
    assert not (set(study.trials()[0].values) & {WARM_UP})


def test_the_result_is_read_back(make):
    folder, study, work, limits = make(sampler="random", stopping="none")
    fill(study)
    record = written(folder, study, work, limits, seconds=123.4567)
    assert record.best == 1  # the first among equals
    assert (record.value, record.first_value) == (0.75, 0.625)
    assert record.result["counts"] == record.counts
    assert record.counts == {"complete": 3, "stopped": 1, "failed": 1, "unfinished": 2}
    assert record.seconds == 123.4567
    assert record.result["shared_seconds"] == 7.0
    worked = SECONDS * (1 + 1 / 2 + 1 / 4 + 1 / 8) + 3.0 + 3.0  # the last two as reported
    assert record.device_hours == pytest.approx(worked / 3600 * DEVICES)
    assert record.front == (4,)  # as good as the best, in less time
    assert (record.importance, record.importance_reason) == (
        {},
        "3 trials with a score are too few, expected 10",
    )
    best = applied(work.arms[0].settings, study.trials()[1].values)
    assert [updated(Settings(), held) for held in record.result["settings"]] == [best]
    assert record.start("ecg", "source of ecg", "clean") == work.arms[0].settings


def test_there_is_no_result_while_no_trial_is_complete(make):
    folder, study, work, limits = make()
    assert written(folder, study, work, limits).trials.empty
    study.propose()
    study.reported(0, 1, 0.5, 1.0)
    study.ended(0, seconds=1.0, reason="it failed")
    record = written(folder, study, work, limits)
    assert record.result is None
    assert record.counts["failed"] == 1
    assert not (folder / RESULT).exists()
    assert not (folder / BEST).exists()
    assert (folder / TRIALS).exists()
    study.propose()
    study.evaluated(1, 0, {"ecg": 0.5}, 1.0)
    record = written(folder, study, work, limits)
    assert record.best == 1
    assert math.isnan(record.first_value)
    assert "the start" not in (folder / BEST).read_text("utf-8")


@pytest.mark.parametrize("number", [1, 4])
def test_the_best_settings_load_as_they_were(make, number):
    folder, study, work, limits = make(sampler="random", stopping="none", seed=number)
    for trial in range(6):
        study.propose()
        study.evaluated(trial, 0, {"ecg": 0.75 if trial == number else 0.5}, 1.0)
    written(folder, study, work, limits)
    base = default_settings(MODALITIES["ecg"])
    best = applied(work.arms[0].settings, study.trials()[number].values)
    found = load_settings(folder / BEST, base=base)
    assert found.tuned == folder.name
    assert found.encoder == best.encoder
    assert found.pretrain == best.pretrain
    expected = replace(best.transfer, mode=base.transfer.mode, labels=base.transfer.labels)
    assert found.transfer == expected
    assert (found.execution, found.seed) == (base.execution, base.seed)
    text = (folder / BEST).read_text("utf-8")
    assert f"trial {number}." in text
    assert "validation records 0.7500; the start: 0.5000" in text
    content = yaml.safe_load(text)
    assert content.keys() <= {"tuned", "encoder", "pretrain", "transfer"}
    assert not {"mode", "labels"} & content["transfer"].keys()


@pytest.mark.parametrize("tuned", ["", "tune-before"])
def test_settings_that_a_search_keeps_are_not_called_tuned_by_it(make, tuned):
    folder, study, work, limits = make(sampler="random", stopping="none")
    (arm,) = work.arms
    work = replace(work, arms=(replace(arm, settings=replace(arm.settings, tuned=tuned)),))
    for trial in range(3):
        study.propose()
        study.evaluated(trial, 0, {"ecg": 0.5 - trial / 8}, 1.0)
    assert written(folder, study, work, limits).best == 0
    found = load_settings(folder / BEST, base=default_settings(MODALITIES["ecg"]))
    assert found.tuned == tuned
    text = (folder / BEST).read_text("utf-8")
    assert f"the search {folder.name} chose: its start, which it keeps." in text


def test_best_settings_that_are_the_fixed_protocols_again_are_written_for_all(make):
    """A value that is the protocol's in one modality and not in the other holds in both."""
    folder, study, work, limits = make(
        "ecg", "ldct", universal=True, sampler="random", stopping="none"
    )
    assert default_settings(MODALITIES["ldct"]).transfer.batch_size == 32
    sizes = []
    for trial in range(8):
        study.propose()
        aurocs = {"ecg": 0.5 + trial / 64, "ldct": 0.5 + trial / 32}
        study.reported(trial, 1, aurocs["ecg"], 1.0)
        study.evaluated(trial, 0, aurocs, 1.0)
        record = written(folder, study, work, limits)
        best = study.best()
        sizes.append(best.values[BATCH])
        for name in ("ecg", "ldct"):
            found = load_settings(folder / BEST, base=default_settings(MODALITIES[name]))
            assert found.transfer.batch_size == best.values[BATCH]
            assert found.transfer.optimiser.lr == best.values[LR]
    assert set(sizes) == {32, 64, 128}
    assert list(record.trials["score:ldct"]) == [0.5 + trial / 32 for trial in range(8)]
    assert list(record.trials["score:ecg"]) == [0.5 + trial / 64 for trial in range(8)]
    assert record.trials["curve"][1] == ((1, 0.515625), (2, study.trials()[1].score))
    assert set(record.trials["steps"]) == {2}  # modalities


def confirmed(study, trials, gain):
    """A race in which trial 2 is better than all by ``gain``."""
    noise = np.random.default_rng(1).normal(0.0, 0.01, (trials, 40))
    raced(study, trials, lambda n, values, e: 0.75 + gain * (n == 2) + noise[n, e])


def test_what_fresh_evaluations_decided_is_read_back(make):
    folder, study, work, limits = make(sampler="random", choosing="confirmed", evaluations=3)
    confirmed(study, 7, gain=0.2)
    record = written(folder, study, work, limits)
    decision = study.decision(RATIO)
    assert record.best == decision.number == 2
    assert record.decision["expected"] == decision.expected
    assert record.decision["start"] == decision.start
    for finalist in decision.finalists:
        row = record.trials.iloc[finalist.number]
        assert (row["difference"], row["difference_low"]) == (finalist.difference, finalist.low)
        assert row["fresh_value"] == pytest.approx(finalist.score)
        assert row["fresh_evaluations"] == len(study.method.fresh) == 10
    assert (record.trials["fresh_evaluations"] > 0).sum() == 1 + len(decision.finalists)
    errors = [trial.error for trial in study.trials()]
    np.testing.assert_equal(record.trials["error"].to_numpy(), errors)
    text = (folder / BEST).read_text("utf-8")
    assert f"fresh evaluations: {decision.expected:.4f} expected" in text


def test_a_search_that_keeps_its_start_says_so(make):
    folder, study, work, limits = make(sampler="random", choosing="confirmed", evaluations=3)
    confirmed(study, 7, gain=0.0)
    record = written(folder, study, work, limits)
    assert record.best == 0
    assert updated(Settings(), record.result["settings"][0]) == work.arms[0].settings
    assert "its start, which it keeps" in (folder / BEST).read_text("utf-8")


def test_a_decision_for_another_trial_is_damage(make):
    folder, study, work, limits = make(sampler="random", choosing="confirmed", evaluations=3)
    confirmed(study, 7, gain=0.2)
    written(folder, study, work, limits)
    result = json.loads((folder / RESULT).read_text("utf-8"))
    other = result["decision"] | {"number": result["best"] + 1}
    for changed in ({"best": 0}, {"decision": other}):
        held = {k: v for k, v in result.items() if k not in ("sha256", "of")}
        write_hashed_json(folder / RESULT, held | changed, of=folder)
        with pytest.raises(BenchmdError, match="its decision"):
            read_search(folder)


def test_a_pretraining_goes_to_its_last_step(make):
    folder, study, work, limits = make(stage=Pretraining())
    study.propose()
    study.evaluated(0, 0, {"ecg": 0.5}, 1.0)
    record = written(folder, study, work, limits)
    assert record.trials["curve"][0] == ((100_000, 0.5),)
    assert record.trials["steps"][0] == 100_000


def test_files_are_replaced_whole(make):
    folder, study, work, limits = make(sampler="random")
    fill(study)
    written(folder, study, work, limits)
    names = {path.name for path in folder.iterdir()}
    study.evaluated(5, 0, {"ecg": 0.875}, 1.0)
    assert written(folder, study, work, limits).best == 5
    assert {path.name for path in folder.iterdir()} == names  # nothing half-written stays
    assert json.loads((folder / RESULT).read_text("utf-8"))["value"] == 0.875


def test_what_differs_is_told_by_name():
    base = default_settings(MODALITIES["ecg"])
    settings = load_settings(assignments=START, base=base)
    found = differing(base, settings)
    assert found == {
        "encoder.depth": 4,
        "transfer.epochs": 20,
        "transfer.dropout": 0.3,
        "transfer.layer_decay": 0.65,
    }
    assert differing(base, base) == {}
    assert nested(found) == {
        "encoder": {"depth": 4},
        "transfer": {"epochs": 20, "dropout": 0.3, "layer_decay": 0.65},
    }
    options = replace(base, pretrain=replace(base.pretrain, options={"rate": 0.5}))
    assert differing(base, options) == {"pretrain.options.rate": 0.5}
    assert updated(base, nested(differing(base, options))) == options


# What a search may use.


@pytest.mark.parametrize(
    ("name", "value"),
    itertools.product(("trials", "hours", "device_hours"), (0, -1, math.inf, math.nan)),
)
def test_a_budget_that_is_no_number_above_0_is_refused(name, value):
    shown = name.replace("_", "-")
    with pytest.raises(BenchmdError, match=rf"--{shown} is {value:g}, expected a number above 0"):
        Budget(**{"trials": 5, name: value})


def test_a_search_without_a_budget_is_refused():
    with pytest.raises(BenchmdError, match=r"no budget: give one of --trials, --hours"):
        Budget(trials=None)
    assert Budget(trials=None, device_hours=0.5).trials is None
    assert Budget().trials == 50


@pytest.mark.parametrize(
    ("budget", "used"),
    [
        (Budget(trials=7), False),
        (Budget(trials=8), False),
        (Budget(trials=None, hours=1.0), False),
        (Budget(trials=None, hours=1e-12), True),
        (Budget(trials=None, device_hours=0.02), True),
        (Budget(trials=None, device_hours=0.05), False),
    ],
)
def test_the_budget_ends_a_search(make, budget, used):
    _, study, _, _ = make(sampler="random", stopping="none")
    fill(study)  # 7 trials; 72.75 seconds on two devices, 0.04 hours
    limits = Limits(study, budget, Place(DEVICES, 0.0, 1), lambda: False, Display())
    assert limits.used is used
    assert limits.begun is (budget.trials == 7)
    assert limits.out_of_time is (budget.hours == 1e-12)
    halted = Limits(study, budget, Place(DEVICES, 0.0, 1), lambda: True, Display())
    assert halted.used
    assert halted.out_of_time


def test_progress_names_the_best_trial(make):
    _, study, _, limits = make(sampler="random", stopping="none")
    fill(study)
    limits.running = {5, 6}
    limits.look()
    assert limits.text == "2 running, 1 stopped early, 1 failed, best 0.750 (trial 1)"
    assert limits.ended == 5
