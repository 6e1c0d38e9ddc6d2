import json
import math
import warnings

import numpy as np
import optuna
import pytest
from forging import log_lines

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import Damaged, line, unchecked
from benchmd_ray.tuning.method import STARTUP_TRIALS, Method
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.written import front

LR, DECAY = "transfer.optimiser.lr", "transfer.optimiser.weight_decay"
BATCH, SCHEDULE = "transfer.batch_size", "transfer.optimiser.schedule"
WARM_UP, SMOOTHING = "transfer.optimiser.warmup_steps", "transfer.label_smoothing"
SPACE = Space(
    "made",
    (
        Parameter(LR, "log float", 1e-3, low=1e-5, high=0.1),
        Parameter(DECAY, "float", 0.25, low=0.0, high=0.5),
        Parameter(SCHEDULE, "choice", "constant", values=("constant", "cosine")),
        Parameter(WARM_UP, "int", 4, low=0, high=20, step=2, when={SCHEDULE: ("cosine",)}),
        Parameter(BATCH, "log int", 64, low=16, high=256),
        Parameter(SMOOTHING, "float", 0.1, low=0.0, high=0.2, step=0.1),
    ),
)
SAMPLERS = ("random", "tpe")


@pytest.fixture
def make(tmp_path):
    """Opens a study; of the same name, the same one again."""

    def opened(name="study", space=SPACE, devices=1.0, **method):
        return Study(tmp_path / f"{name}.log", space, Method(**method), devices)

    return opened


def objective(values):
    """Best at a learning rate of 1e-2, a little better with much decay."""
    return 0.9 - 0.1 * abs(math.log10(values[LR]) + 2) + 0.05 * values.get(DECAY, 0)


def complete(study, count, score=objective):
    """Propose and complete trials one after the other."""
    made = []
    for _ in range(count):
        made.append(study.propose())
        study.evaluated(made[-1].number, 0, {"ecg": score(made[-1].values)}, 1.0)
    return made


def test_the_first_trial_is_the_start_of_the_space(make):
    study = make()
    first = study.propose()
    assert first.number == 0
    assert first.values == SPACE.start
    assert WARM_UP not in first.values  # of the cosine alone
    assert study.propose().values != SPACE.start


def test_a_trial_is_unfinished_until_it_is_told_how_it_ended(make):
    study = make(stopping="none")
    assert study.trials() == []
    assert study.best() is None
    for _ in range(4):
        study.propose()
    assert not study.reported(1, 2, 0.75, 3.0)
    study.ended(1, seconds=5.0)
    study.ended(2, seconds=6.0, reason="the loss became NaN")
    study.evaluated(3, 0, {"ecg": 0.625}, 7.0)
    zero, one, two, three = study.trials()
    assert [t.state for t in study.trials()] == ["unfinished", "stopped", "failed", "complete"]
    assert (one.curve, one.seconds, one.reason) == (((2, 0.75),), 5.0, "")
    assert (two.reason, two.seconds) == ("the loss became NaN", 6.0)
    assert (three.score, three.scores) == (0.625, {"ecg": 0.625})
    assert all(math.isnan(trial.score) for trial in (zero, one, two))
    assert zero.started
    assert not zero.finished
    assert all(t.started.endswith("+00:00") and t.finished >= t.started for t in (one, two, three))
    assert study.best() == three
    assert [job.number for job in study.unfinished()] == [0]
    assert study.begun == 4


def test_a_reopened_study_goes_on_with_what_was_unfinished(make):
    before = make()
    made = [before.propose() for _ in range(4)]
    before.reported(2, 1, 0.5, 12.5)
    before.evaluated(1, 0, {"ecg": 0.5}, 1.0)
    after = make()
    assert [(job.number, job.values, job.seconds) for job in after.unfinished()] == [
        (0, made[0].values, 0.0),
        (2, made[2].values, 12.5),
        (3, made[3].values, 0.0),
    ]
    assert after.trials() == before.trials()
    assert after.begun == 4
    assert after.propose().number == 4  # and it begins at the start once only


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_proposal_depends_on_the_trials_told_and_on_no_session(make, sampler):
    count = STARTUP_TRIALS + 3
    whole = complete(make("whole", sampler=sampler), count)
    pieces = []
    for part in (1, STARTUP_TRIALS - 1, count - STARTUP_TRIALS):
        np.random.seed(part)  # a session has states of its own
        pieces += complete(make("pieces", sampler=sampler), part)
    assert pieces == whole
    assert len({p.values[LR] for p in whole}) == count
    other = complete(make("other", sampler=sampler, seed=1), 3)
    assert [p.values == q.values for p, q in zip(other, whole[:3], strict=True)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_proposed_value_lies_in_the_space(make, sampler):
    study = make(sampler=sampler)
    count = STARTUP_TRIALS + 6
    made = [proposal.values for proposal in complete(study, count)]
    for values in made:
        for parameter in SPACE.parameters:
            if parameter.name in values:
                assert parameter.holds(values[parameter.name]), (parameter.name, values)
        assert (WARM_UP in values) == (values[SCHEDULE] == "cosine")
        assert values.keys() | {WARM_UP} == {parameter.name for parameter in SPACE.parameters}
    assert {values[SCHEDULE] for values in made} == {"constant", "cosine"}
    assert [dict(trial.values) for trial in study.trials()] == made


def test_a_sampler_with_a_model_finds_more_than_chance(make):
    def mean_of_last(sampler):
        made = complete(make(sampler, sampler=sampler), STARTUP_TRIALS + 12)
        return np.mean([objective(proposal.values) for proposal in made[STARTUP_TRIALS:]])

    assert mean_of_last("tpe") > mean_of_last("random") + 0.03


# Early stopping.


def slow_halving(part, fewest, order, values):
    """Trials that are stopped within the first evaluation, and at which step.

    At each step a trial continues if it is in the top part of all that have reached the step so
    far, itself among them; while these are too few for a part, if it is the best of them; and in
    any case while they are fewer than ``fewest``.
    """
    reached, stopped = {}, {}
    for trial, step in order:
        if trial in stopped:
            continue
        value = values[trial, step]
        held = reached.setdefault(step, [])
        held.append(value)
        better = sum(other > value for other in held)
        if trial and len(held) >= fewest and better >= max(1, len(held) // part):
            stopped[trial] = step
    return stopped


def random_order(generator, trials, steps):
    """Steps of each trial in turn, of trials in random order."""
    turns = generator.permutation(np.repeat(np.arange(trials), len(steps)))
    at = [0] * trials
    for trial in map(int, turns):
        yield trial, steps[at[trial]]
        at[trial] += 1


@pytest.mark.parametrize(("stopping", "part", "fewest"), [("asha", 3, 2), ("racing", 2, 4)])
@pytest.mark.parametrize("seed", range(4))
def test_trials_are_stopped_at_equal_steps_of_the_first_evaluation(
    make, seed, stopping, part, fewest
):
    generator = np.random.default_rng(seed)
    study, trials, steps = make(stopping=stopping), 14, (2, 6)
    for _ in range(trials):
        study.propose()
    values = {(t, s): round(generator.random(), 2) for t in range(trials) for s in steps}
    order, stopped = list(random_order(generator, trials, steps)), {}
    for number, (trial, step) in enumerate(order):
        if number == 15:  # a search that was killed and continues
            study = make(stopping=stopping)
        if trial not in stopped and study.reported(trial, step, values[trial, step], 1.0):
            study.ended(trial, seconds=1.0)
            stopped[trial] = step
    assert stopped == slow_halving(part, fewest, order, values)
    assert 4 <= len(stopped) < trials
    assert 0 not in stopped


@pytest.mark.parametrize("stopping", ["asha", "racing"])
def test_the_first_trial_is_never_stopped(make, stopping):
    study = make(stopping=stopping)
    for _ in range(10):
        study.propose()
    for trial in range(1, 9):
        study.reported(trial, 1, 0.9, 1.0)
        study.evaluated(trial, 0, {"ecg": 0.9}, 1.0)
    assert not study.reported(0, 1, 0.1, 1.0)
    assert study.reported(9, 1, 0.2, 1.0)  # better, and no first


def test_nothing_is_stopped_where_nothing_was_asked_for(make):
    study = make(stopping="none", evaluations=4)
    for trial in range(8):
        assert study.propose().evaluations == (0, 1, 2, 3)
        assert not study.reported(trial, 1, 1.0 - 0.1 * trial, 1.0)


def test_what_a_resumed_trial_reports_again_counts_once(make):
    study = make(stopping="asha")
    for _ in range(4):
        study.propose()
    assert not study.reported(1, 1, 0.5, 1.0)
    study.reported(2, 1, 0.9, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not make(stopping="asha").reported(1, 1, 0.5, 2.0)  # it was let continue there
    assert study.trials()[1].curve == ((1, 0.5),)
    assert study.trials()[1].seconds == 2.0
    assert make(stopping="asha").reported(3, 1, 0.8, 1.0)


# Several modalities.


def test_trials_of_several_modalities_are_compared_by_their_mean(make):
    study = make(universal=True)
    for aurocs in (
        {"ecg": 0.70, "cxr": 0.71},
        {"ecg": 0.50, "cxr": 0.95},
        {"ecg": 0.6, "cxr": 0.7},
    ):
        study.propose()
        study.evaluated(study.begun - 1, 0, aurocs, 1.0)
        trial = study.trials()[-1]
        assert trial.score == pytest.approx(np.mean(list(aurocs.values())))
        assert dict(trial.scores) == aurocs
    assert study.best().number == 1


# Importance, cost, and crashes.


def test_importance_finds_the_one_setting_that_matters(make):
    study = make(sampler="random")
    complete(study, 30, lambda values: 0.9 + 0.1 * math.log10(values[LR]))
    shares, reason = study.importance()
    assert reason == ""
    assert shares[LR] > 0.8
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(0 <= share < 0.1 for name, share in shares.items() if name != LR)


def test_importance_says_why_there_is_none(make):
    study = make(sampler="random")
    complete(study, 3)
    assert study.importance() == ({}, "3 trials with a score are too few, expected 10")
    other = make("other", sampler="random")
    complete(other, 10, lambda _: 0.5)
    assert other.importance() == ({}, "all trials have the same score")


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_cost_as_second_objective(make, sampler):
    study = make(sampler=sampler, stopping="none", cost=True)
    for number in range(STARTUP_TRIALS + 4):
        proposal = study.propose()
        for step in (1, 3):
            assert not study.reported(number, step, 0.1 * step, float(step))
        auroc, seconds = objective(proposal.values), 100.0 + number % 5
        study.evaluated(number, 0, {"ecg": auroc}, seconds)
    for trial in make(sampler=sampler, stopping="none", cost=True).trials():
        assert trial.curve == ((1, 0.1), (3, pytest.approx(0.3)))
        assert trial.score == objective(trial.values)
    assert study.best().score == max(objective(t.values) for t in study.trials())
    assert study.importance()[1] == ""


def test_with_cost_what_a_resumed_trial_reports_again_counts_once(make):
    study = make(stopping="none", cost=True)
    study.propose()
    for step in (1, 3):
        study.reported(0, step, 0.5, 1.0)
    for step in (1, 3, 9):  # a process that was lost, and began again
        study.reported(0, step, 0.5, 1.0)
    assert study.trials()[0].curve == ((1, 0.5), (3, 0.5), (9, 0.5))


@pytest.mark.parametrize("seed", range(3))
def test_the_front_holds_what_no_other_trial_beats(make, seed):
    generator = np.random.default_rng(seed)
    study = make(stopping="none", cost=True, sampler="random")
    told = {}
    for number in range(16):
        study.propose()
        auroc, seconds = generator.integers(0, 6, 2) / 5
        if number % 4 == 3:
            study.ended(number, seconds=0.0, reason="it failed")
            continue
        told[number] = (float(auroc), float(seconds))
        study.evaluated(number, 0, {"ecg": auroc}, seconds)

    def beats(one, other):
        return one != other and one[0] >= other[0] and one[1] <= other[1]

    slow = [n for n, own in told.items() if not any(beats(o, own) for o in told.values())]
    found = front(study.trials())
    assert {told[n] for n in found} == {told[n] for n in slow}  # of equals, the first
    assert set(found) <= set(slow)
    assert len(found) == len({told[n] for n in slow})
    assert [told[n][1] for n in found] == sorted(told[n][1] for n in found)


def test_device_hours_are_those_of_the_devices_of_each_session(make):
    study = make(devices=0.25, stopping="none")
    study.propose()
    study.reported(0, 1, 0.5, 3600.0)
    study.propose()
    study.evaluated(1, 0, {"ecg": 0.5}, 1800.0)
    later = make(devices=2.0, stopping="none")
    later.reported(0, 3, 0.5, 3000.0)  # of a process that knew less than the one before it
    later.evaluated(0, 0, {"ecg": 0.5}, 7200.0)
    assert [trial.device_hours for trial in later.trials()] == [0.25 + 2.0, 0.125]
    assert [trial.seconds for trial in later.trials()] == [7200.0, 1800.0]


def test_an_auroc_that_is_no_number_is_a_failure(make):
    study = make(stopping="none")
    study.propose()
    study.evaluated(0, 0, {"ecg": math.nan}, 1.0)
    assert (study.trials()[0].state, study.trials()[0].reason) == (
        "failed",
        "its score is NaN",
    )


def test_a_line_that_was_cut_off_is_removed_and_damage_is_named(make, tmp_path):
    complete(make(), 2)
    path = tmp_path / "study.log"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code": 4, "work')
    (tmp_path / "study.log.lock").touch()  # of the process that was killed meanwhile
    assert len(make().trials()) == 2
    complete(make(), 1)
    assert len(make().trials()) == 3
    path.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(BenchmdError, match=r"study\.log is damaged: .*Restore it from a copy"):
        make()


def test_a_line_of_another_value_is_damage(make, tmp_path):
    complete(make(), 2)
    path = tmp_path / "study.log"
    lines = path.read_bytes().splitlines(keepends=True)
    for number, held in enumerate(lines):
        for digit in (b"1", b"2", b"3"):
            if digit in held:
                other = held.replace(digit, b"7", 1)
                path.write_bytes(b"".join([*lines[:number], other, *lines[number + 1 :]]))
                with pytest.raises(BenchmdError, match=rf"damaged: line {number + 1} is not"):
                    make()


def test_values_that_the_space_does_not_have_are_refused(make, tmp_path):
    complete(make(), 2)
    path = tmp_path / "study.log"
    logs = [unchecked(json.loads(text)) for text in path.read_text().splitlines()]
    for log in logs:
        if log.get("user_attrs", {}).get("granted") == [0] and log["params"][LR] == 1e-3:
            log["params"][LR] = 99.0
    path.write_text("".join(map(line, logs)))
    with pytest.raises(BenchmdError, match=rf"trial 0 has {LR} 99\.0, not of the space"):
        make()


def test_a_trial_that_was_to_be_stopped_is_stopped_by_the_next_process(make):
    study = make(stopping="asha")
    for number in range(4):
        study.propose()
        stop = study.reported(number, 1, 0.9 - number / 10, 1.0)
    assert stop
    assert make(stopping="asha").reported(3, 1, 0.6, 1.0)
    again = make(stopping="asha")
    assert not again.reported(0, 1, 0.9, 1.0)
    assert [job.number for job in again.unfinished()] == [0, 1, 2, 3]
    again.end_stopped()  # it may go on from a later step, and never report that one again
    assert [trial.state for trial in again.trials()] == ["unfinished", *["stopped"] * 3]


def test_lost_processes_are_counted_over_sessions(make):
    study = make()
    for _ in range(2):
        study.propose()
    assert study.crashed(1) == 1
    assert make().crashed(1) == 2
    assert make().crashed(0) == 1
    assert [proposal.number for proposal in make().unfinished()] == [0, 1]


def test_the_journal_is_plain_text_without_secrets_of_the_machine(make, tmp_path):
    complete(make(), 2)
    lines = [json.loads(line) for line in (tmp_path / "study.log").read_text().splitlines()]
    assert lines
    assert str(tmp_path) not in (tmp_path / "study.log").read_text()


def test_nothing_is_said_to_the_user(make, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = make(universal=True)
        for _ in range(STARTUP_TRIALS + 2):
            study.propose()
            study.reported(study.begun - 1, 1, 0.5, 1.0)
            study.evaluated(study.begun - 1, 0, {"ecg": 0.5, "cxr": 0.5}, 1.0)
        study.importance()
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == optuna.logging.ERROR


@pytest.mark.parametrize(
    ("name", "noted"),
    [
        ("evaluations", [[0, {}]]),
        ("evaluations", [[0, {"ecg": math.nan}]]),
        ("evaluations", [[0, {"ecg": 1e308}]]),
        ("evaluations", [[10**30, {"ecg": 0.5}]]),
        ("granted", [-1]),
        ("granted", "ab"),
        ("device_hours", math.nan),
        ("device_hours", -1.0),
        ("seconds", 1e308),
        ("tested", -1),
        ("tested", 1e9),
        ("crashes", "x"),
        ("crashes", 10**400),
        ("curve", [[10**30, 0.5]]),
        ("curve", [[1.5, 0.5]]),
        ("curve", [[1, 1e308]]),
        ("granted", [0] * 10_001),
    ],
)
def test_what_no_search_notes_of_a_trial_is_damage(make, tmp_path, name, noted):
    """Whoever forges a line of the journal makes its checksum, too."""
    study = make()
    for _ in range(2):
        study.propose()
    study.evaluated(1, 0, {"ecg": 0.5}, 1.0)
    (path,) = tmp_path.rglob("*.log")
    lines = log_lines(path)
    forged = {"op_code": 8, "worker_id": lines[-1]["worker_id"], "trial_id": 1}
    forged["user_attr"] = {name: noted}
    with path.open("a", encoding="utf-8") as file:
        file.write(line(forged))
    with pytest.raises(Damaged, match="trial 1 has"):
        make()


@pytest.mark.parametrize(
    "over",
    [
        {"budget": [2], "settled": 7},
        {"budget": [2], "settled": ["0"]},
        {"budget": [2], "settled": [2]},
        {"budget": [2], "settled": [-1]},
        {"budget": [2], "settled": {}},
        {"budget": ["x"], "settled": []},
        {"budget": ["nan"], "settled": []},
        {"budget": [2]},
        [],
    ],
)
def test_an_end_of_the_race_that_no_search_notes_is_damage(make, tmp_path, over):
    complete(make(), 2)
    (path,) = tmp_path.rglob("*.log")
    forged = {"op_code": 2, "worker_id": log_lines(path)[-1]["worker_id"], "study_id": 0}
    with path.open("a", encoding="utf-8") as file:
        file.write(line(forged | {"user_attr": {"over": {"budget": [2], "settled": [1]}}}))
    assert make().race_is_over([2])
    with path.open("a", encoding="utf-8") as file:
        file.write(line(forged | {"user_attr": {"over": over}}))
    with pytest.raises(Damaged, match=r"(Value|Type|Key)Error: "):
        make()
