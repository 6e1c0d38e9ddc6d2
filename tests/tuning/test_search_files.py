import itertools
import json
import math
from dataclasses import replace

import pandas as pd
import pytest
import yaml
from kinds import MODALITIES

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
from benchmd_ray.ssl.brought import own_encoder
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.ladder import chosen
from benchmd_ray.tuning.limits import Budget, Limits, Place, chosen_so_far
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.parameters import MOST_TRIALS, nested
from benchmd_ray.tuning.records import FORMAT, read_search
from benchmd_ray.tuning.spaces import Parameter, Space, applied
from benchmd_ray.tuning.stages import Arm, FamilyWork, Pretraining, Transfer, TrialContext
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.written import differing, folds, write_result, write_trials

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
MAE, KERNELS = "mae finetune", "random-kernels linear"
COUNT = "encoder.options.kernels"
KERNEL_SPACE = Space("kernels", (Parameter(COUNT, "log int", 500, low=10, high=5000),))
DETERMINANTS = {"made": "up", "portfolio": []}


def with_kernels(settings):
    transfer = replace(settings.transfer, mode="linear", solver="logistic")
    return replace(settings, encoder=own_encoder("random-kernels"), transfer=transfer)


@pytest.fixture
def make(tmp_path):
    """Makes a search: its folder, its study and what its trials share."""

    def opened(*modalities, stage=None, tuned="", kernels=False, **method):
        stem = "tune-ecg-mae-finetune-small"
        folder = tmp_path / "searches" / f"{stem}-{digest(DETERMINANTS)[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        arms = tuple(
            Arm(name, replace(load_settings(assignments=START, base=base), tuned=tuned))
            for name in modalities or ("ecg",)
            for base in (default_settings(MODALITIES[name]),)
        )
        method = Method(**{"sampler": "random"} | method)
        settings = tuple(arm.settings for arm in arms)
        families = [Family("mae", "finetune-small", SPACE, settings)]
        works = {MAE: FamilyWork("mae", stage or Transfer(), arms, (1, 2))}
        if kernels:
            linear = tuple(replace(arm, settings=with_kernels(arm.settings)) for arm in arms)
            settings = tuple(arm.settings for arm in linear)
            families.append(Family("random-kernels", "linear-small", KERNEL_SPACE, settings))
            works[KERNELS] = FamilyWork("random-kernels", Transfer(), linear, ())
        study = Study(folder / "study.log", families, method, DEVICES)
        plan = {
            "format": FORMAT,
            "families": [
                {
                    "technique": family.technique,
                    "setting": family.setting,
                    "space": family.space.as_dict(),
                    "settings": [as_dict(settings) for settings in family.settings],
                }
                for family in families
            ],
            "sources": [
                {
                    "modality": arm.modality,
                    "source": f"source of {arm.modality}",
                    "policy": "clean",
                    "catalog": "c",
                    "inner": "i",
                    "sketch": "",
                    "records": {"train": 8, "validation": 2},
                    "patients": {"train": 8, "validation": 2},
                }
                for arm in arms
            ],
            "metric": "auroc",
            "sampler": method.sampler,
            "cautious": method.cautious,
            "seed": 0,
            "device": "cpu",
            "lenders": {},
            "determinants": DETERMINANTS,
        }
        write_hashed_json(folder / SEARCH, plan)
        return folder, study, TrialContext(works, folder)

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
    study.ended(2, 0, seconds=SECONDS / 4)
    study.ended(3, 0, seconds=SECONDS / 8, reason="the loss became NaN at step 3")
    study.evaluated(4, 0, {"ecg": 0.75}, SECONDS / 16)


def climb(study, score, evaluations=20):
    """A search of so many evaluations, half of them explored; scores by trial and evaluation."""
    budget = Budget(trials=None, evaluations=evaluations)
    limits = Limits(study, budget, Place(1.0, 0.0, 1), lambda: False, Display())
    while (job := limits.next_job()) is not None:
        study.evaluated(job.number, job.evaluation, {"ecg": score(job)}, 1.0)


def written(folder, study, work, seconds=100.0):
    """What is read back of what is written."""
    bases = {
        name: [default_settings(MODALITIES[arm.modality]) for arm in family.arms]
        for name, family in work.families.items()
    }
    write_trials(folder, study, work)
    write_result(folder, study, work, bases, {"seconds": seconds, "shared_seconds": 7.0})
    return read_search(folder)


def start_of(work):
    return work.families[MAE].arms[0].settings


def test_trials_of_every_state_are_read_back(make):
    folder, study, work = make()
    fill(study)
    record = written(folder, study, work)
    states = ["complete", "complete", "stopped", "failed", "complete", "unfinished", "unfinished"]
    assert list(record.trials["state"]) == states
    for trial, row in zip(study.trials(), record.trials.to_dict("records"), strict=True):
        assert (row["number"], row["family"]) == (trial.number, MAE)
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
        assert row["scores"] == tuple(trial.evaluations.items())
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
    folder, study, work = make()
    fill(study)
    record = written(folder, study, work, seconds=123.4567)
    assert record.best == 1  # the first among equals
    assert (record.value, record.first_value) == (0.75, 0.625)
    assert math.isnan(record.optimism)  # of one evaluation each
    assert record.counts == {"complete": 3, "stopped": 1, "failed": 1, "unfinished": 2}
    assert record.folds == (0, 1, 2, 3, 4)
    assert record.seconds == 123.4567
    assert record.shared_seconds == 7.0
    worked = SECONDS * (1 + 1 / 2 + 1 / 4 + 1 / 8) + 3.0 + 3.0  # the last two as reported
    assert record.device_hours == pytest.approx(worked / 3600 * DEVICES)
    best = applied(start_of(work), study.trials()[1].values)
    assert [updated(Settings(), settings) for settings in record.chosen_settings] == [best]
    assert record.start("ecg", "source of ecg", "clean") == start_of(work)


def test_there_is_no_result_while_the_start_has_no_score(make):
    folder, study, work = make()
    assert written(folder, study, work).trials.empty
    study.propose()
    study.propose()
    study.reported(0, 1, 0.5, 1.0)
    study.evaluated(1, 0, {"ecg": 0.5}, 1.0)
    record = written(folder, study, work)
    assert not record.is_finished
    assert not (folder / RESULT).exists()
    assert not (folder / BEST).exists()
    study.ended(0, 0, seconds=1.0, reason="it failed")
    record = written(folder, study, work)
    assert not record.is_finished
    assert record.counts["failed"] == 1
    assert study.hopeless
    assert (folder / TRIALS).exists()


def test_the_choice_follows_from_the_table_of_trials(make):
    """Whatever the search: from scores of evaluations alone, of two families."""
    for seed in range(4):
        folder, study, work = make(kernels=True, seed=seed, cautious=seed == 3)
        study_file = folder / "study.log"

        def score(job):
            better = 0.05 if job.family == KERNELS else 0.0
            return 0.6 + better + 0.01 * ((7 * job.number + 3 * job.evaluation) % 11) / 11

        climb(study, score)
        record = written(folder, study, work)
        table = pd.read_parquet(folder / TRIALS)
        scores = {
            row.number: {point["evaluation"]: point["value"] for point in row.scores}
            for row in table.itertuples()
            if row.state in ("complete", "unfinished") and len(row.scores)
        }
        assert sum(map(len, scores.values())) == 20
        assert chosen(scores, cautious=record.cautious) == record.best > 0
        assert record.chosen.name == KERNELS
        assert record.value == pytest.approx(table["value"][record.best])
        study_file.unlink()


def test_settings_of_families_are_columns_of_one_table(make):
    folder, study, work = make(kernels=True)
    climb(study, lambda job: 0.5 + 0.1 * (job.family == KERNELS))
    record = written(folder, study, work)
    assert [family.name for family in record.families] == [MAE, KERNELS]
    of_kernels = record.trials["family"] == KERNELS
    assert record.trials[COUNT].notna().tolist() == of_kernels.tolist()
    assert record.trials[LR].notna().tolist() == (~of_kernels).tolist()
    content = yaml.safe_load((folder / BEST).read_text("utf-8"))
    kernels = record.trials[COUNT][record.best]
    assert content["encoder"]["options"]["kernels"] == kernels
    text = (folder / BEST).read_text("utf-8")
    assert "--technique random-kernels --setting linear-small" in text


@pytest.mark.parametrize("number", [1, 4])
def test_the_best_settings_load_as_they_were(make, number):
    folder, study, work = make(seed=number)
    for trial in range(6):
        study.propose()
        study.evaluated(trial, 0, {"ecg": 0.75 if trial == number else 0.5}, 1.0)
    written(folder, study, work)
    base = default_settings(MODALITIES["ecg"])
    best = applied(start_of(work), study.trials()[number].values)
    settings = load_settings(folder / BEST, base=base)
    assert settings.tuned == folder.name
    assert settings.encoder == best.encoder
    assert settings.pretrain == best.pretrain
    expected = replace(best.transfer, mode=base.transfer.mode, labels=base.transfer.labels)
    assert settings.transfer == expected
    assert (settings.execution, settings.seed) == (base.execution, base.seed)
    text = (folder / BEST).read_text("utf-8")
    assert f"trial {number}." in text
    assert "too high for having been the highest: 0.7500; the start: 0.5000" in text
    content = yaml.safe_load(text)
    assert content.keys() <= {"tuned", "encoder", "pretrain", "transfer"}
    assert not {"mode", "labels"} & content["transfer"].keys()


@pytest.mark.parametrize("tuned", ["", "tune-before"])
def test_settings_that_a_search_keeps_are_not_called_tuned_by_it(make, tuned):
    folder, study, work = make(tuned=tuned)
    for trial in range(3):
        study.propose()
        study.evaluated(trial, 0, {"ecg": 0.5 - trial / 8}, 1.0)
    assert written(folder, study, work).best == 0
    settings = load_settings(folder / BEST, base=default_settings(MODALITIES["ecg"]))
    assert settings.tuned == tuned
    text = (folder / BEST).read_text("utf-8")
    assert f"the search {folder.name} chose: its start, which it keeps." in text
    assert "AUROC on the search's validation records: 0.5000." in text


def test_best_settings_that_are_the_fixed_protocols_again_are_written_for_all(make):
    """A value that is the protocol's in one modality and not in the other holds in both."""
    folder, study, work = make("ecg", "ldct", universal=True)
    assert default_settings(MODALITIES["ldct"]).transfer.batch_size == 32
    sizes = []
    for trial in range(8):
        study.propose()
        aurocs = {"ecg": 0.5 + trial / 64, "ldct": 0.5 + trial / 32}
        study.reported(trial, 1, aurocs["ecg"], 1.0)
        study.evaluated(trial, 0, aurocs, 1.0)
        record = written(folder, study, work)
        best = study.best()
        sizes.append(best.values[BATCH])
        for name in ("ecg", "ldct"):
            settings = load_settings(folder / BEST, base=default_settings(MODALITIES[name]))
            assert settings.transfer.batch_size == best.values[BATCH]
            assert settings.transfer.optimiser.lr == best.values[LR]
    assert set(sizes) == {32, 64, 128}
    assert list(record.trials["score:ldct"]) == [0.5 + trial / 32 for trial in range(8)]
    assert list(record.trials["score:ecg"]) == [0.5 + trial / 64 for trial in range(8)]
    assert record.trials["curve"][1] == ((1, 0.515625), (2, study.trials()[1].score))
    assert set(record.trials["steps"]) == {2}  # modalities


def test_a_choice_of_a_trial_without_a_score_is_damage(make):
    folder, study, work = make()
    fill(study)
    written(folder, study, work)
    result = json.loads((folder / RESULT).read_text("utf-8"))
    for best in (3, 99):
        changed = {k: v for k, v in result.items() if k not in ("sha256", "of")} | {"best": best}
        write_hashed_json(folder / RESULT, changed, of=folder)
        with pytest.raises(BenchmdError, match=f"it names trial {best}, which has no score"):
            read_search(folder)


def test_a_pretraining_goes_to_its_last_step(make):
    folder, study, work = make(stage=Pretraining())
    study.propose()
    study.evaluated(0, 0, {"ecg": 0.5}, 1.0)
    record = written(folder, study, work)
    assert record.trials["curve"][0] == ((100_000, 0.5),)
    assert record.trials["steps"][0] == 100_000


def test_files_are_replaced_whole(make):
    folder, study, work = make()
    fill(study)
    written(folder, study, work)
    names = {path.name for path in folder.iterdir()}
    study.evaluated(5, 0, {"ecg": 0.875}, 1.0)
    assert written(folder, study, work).best == 5
    assert {path.name for path in folder.iterdir()} == names  # nothing half-written stays
    assert json.loads((folder / RESULT).read_text("utf-8"))["value"] == 0.875


@pytest.mark.parametrize(("evaluations", "models"), [(1, 5), (5, 5), (6, 6), (10, 10), (30, 10)])
def test_five_to_ten_models_of_the_choice_are_averaged(make, evaluations, models):
    _, study, _ = make()
    study.propose()
    trial = replace(study.trials()[0], scored={e: {"ecg": 0.5} for e in range(evaluations)})
    assert folds(trial) == range(models)


def test_what_differs_is_told_by_name():
    base = default_settings(MODALITIES["ecg"])
    settings = load_settings(assignments=START, base=base)
    differences = differing(base, settings)
    assert differences == {
        "encoder.depth": 4,
        "transfer.epochs": 20,
        "transfer.dropout": 0.3,
        "transfer.layer_decay": 0.65,
    }
    assert differing(base, base) == {}
    assert nested(differences) == {
        "encoder": {"depth": 4},
        "transfer": {"epochs": 20, "dropout": 0.3, "layer_decay": 0.65},
    }
    options = replace(base, pretrain=replace(base.pretrain, options={"rate": 0.5}))
    assert differing(base, options) == {"pretrain.options.rate": 0.5}
    assert updated(base, nested(differing(base, options))) == options


# What a search may use.


@pytest.mark.parametrize(
    ("name", "value"),
    itertools.product(
        ("trials", "evaluations", "hours", "device_hours"), (0, -1, math.inf, math.nan)
    ),
)
def test_a_budget_that_is_no_number_above_0_is_refused(name, value):
    option = name.replace("_", "-")
    with pytest.raises(BenchmdError, match=rf"--{option} is {value:g}, expected a number above 0"):
        Budget(**{"trials": 5, name: value})


def test_a_search_without_a_budget_is_refused():
    with pytest.raises(BenchmdError, match=r"no budget: give one of --trials, --evaluations, --h"):
        Budget(trials=None)
    for name in ("trials", "evaluations"):
        with pytest.raises(BenchmdError, match=rf"--{name} is .*expected {MOST_TRIALS:,} at most"):
            Budget(**{"trials": 1, name: MOST_TRIALS + 1})
    assert Budget(trials=None, device_hours=0.5).trials is None
    assert Budget().trials == 50


@pytest.mark.parametrize(
    ("budget", "explores", "spent"),
    [
        (Budget(trials=7), False, False),
        (Budget(trials=8), True, False),
        (Budget(trials=None, evaluations=13), False, False),  # 6 of them
        (Budget(trials=None, evaluations=16), True, False),
        (Budget(trials=None, evaluations=8), True, False),  # too few to climb
        (Budget(trials=None, hours=1.0), True, False),
        (Budget(trials=None, hours=1e-12), False, True),
        (Budget(trials=None, device_hours=0.02), False, True),
        (Budget(trials=None, device_hours=0.05), False, False),
        (Budget(trials=None, device_hours=0.1), True, False),
    ],
)
def test_the_budget_divides_and_ends_a_search(make, budget, explores, spent):
    _, study, _ = make()
    fill(study)  # 7 trials; 73.5 seconds on two devices, 0.04 hours
    limits = Limits(study, budget, Place(DEVICES, 0.0, 1), lambda: False, Display())
    assert limits.exploring is explores
    assert limits.spent is spent
    assert limits.out_of_time is (budget.hours == 1e-12)
    halted = Limits(study, budget, Place(DEVICES, 0.0, 1), lambda: True, Display())
    assert halted.spent
    assert halted.out_of_time


def test_progress_names_the_trial_that_would_be_chosen(make):
    _, study, _ = make()
    fill(study)
    limits = Limits(study, Budget(), Place(DEVICES, 0.0, 1), lambda: False, Display())
    limits.running = {(5, 0), (6, 0)}
    limits.look()
    assert limits.text == (
        "exploring, 2 running, 1 stopped early, 1 failed, "
        f"chosen so far: trial 1, {MAE}, 0.750 over 1 evaluation, +0.125 vs the start"
    )
    start = study.trials()[0]
    assert chosen_so_far(start, start) == (
        f"chosen so far: the start, {MAE}, 0.625 over 1 evaluation"
    )
    assert limits.ended == 5
