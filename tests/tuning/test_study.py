import json
import math
import warnings

import numpy as np
import optuna
import pytest
from forging import log_lines

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import Damaged, line
from benchmd_ray.settings.definition import Settings
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.method import MODELLED, RANDOM_TRIALS, Method
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study

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
OTHER = Space("other", (Parameter(SMOOTHING, "float", 0.0, low=0.0, high=0.3),))
SAMPLERS = ("random", "tpe")
STARTUP_TRIALS = 1 + RANDOM_TRIALS
"""Trials of a search of one family before a model proposes."""
FAMILY, SECOND, THIRD = "scratch finetune", "mae linear", "random-kernels linear"


@pytest.fixture
def make(tmp_path):
    """Opens a study; of the same name, the same one again."""

    def opened(name="study", families=1, devices=1.0, first=(), **method):
        every = [
            Family("scratch", "finetune-full", SPACE, (Settings(),)),
            Family("mae", "linear", OTHER, (Settings(),)),
            Family("random-kernels", "linear", OTHER, (Settings(),)),
        ]
        return Study(tmp_path / f"{name}.log", every[:families], Method(**method), devices, first)

    return opened


def objective(values):
    """Best at a learning rate of 1e-2, a little better with much decay."""
    return 0.9 - 0.1 * abs(math.log10(values[LR]) + 2) + 0.05 * values.get(DECAY, 0)


def complete(study, count, score=objective, seconds=1.0):
    """Propose and complete trials one after the other."""
    jobs = []
    for _ in range(count):
        jobs.append(study.propose())
        study.evaluated(jobs[-1].number, 0, {"ecg": score(jobs[-1].values)}, seconds)
    return jobs


def test_the_first_trial_is_the_start_of_the_space(make):
    study = make()
    first = study.propose()
    assert (first.number, first.evaluation, first.family) == (0, 0, FAMILY)
    assert first.values == SPACE.start
    assert WARM_UP not in first.values  # of the cosine alone
    assert study.propose().values != SPACE.start


def test_a_trial_is_unfinished_until_it_is_told_how_it_ended(make):
    study = make()
    assert study.trials() == []
    assert study.best() is None
    for _ in range(4):
        study.propose()
    assert not study.reported(1, 2, 0.75, 3.0)
    study.ended(1, 0, seconds=5.0)
    study.ended(2, 0, seconds=6.0, reason="the loss became NaN")
    study.evaluated(3, 0, {"ecg": 0.625}, 7.0)
    zero, one, two, three = study.trials()
    assert [t.state for t in study.trials()] == ["unfinished", "stopped", "failed", "complete"]
    assert (one.curve, one.seconds, one.reason) == (((2, 0.75),), 5.0, "")
    assert (two.reason, two.seconds) == ("the loss became NaN", 6.0)
    assert (three.score, three.scores) == (0.625, {"ecg": 0.625})
    assert all(math.isnan(trial.score) for trial in (zero, one, two))
    assert zero.started
    assert not zero.finished
    assert [job.number for job in study.unfinished()] == [0]
    assert all(t.started.endswith("+00:00") and t.finished >= t.started for t in (one, two, three))
    assert study.best() is None  # as the start has no score
    study.evaluated(0, 0, {"ecg": 0.5}, 8.0)
    assert study.best() == study.trials()[3]
    assert study.unfinished() == []
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


# Families.


def test_the_starts_of_families_come_first_and_then_what_is_to_be_tried_early(make):
    first = [(SECOND, {SMOOTHING: 0.25})]
    study = make(families=3, first=first)
    jobs = complete(study, 4, lambda _: 0.5)
    assert [job.family for job in jobs] == [FAMILY, SECOND, THIRD, SECOND]
    assert [job.values for job in jobs] == [SPACE.start, OTHER.start, OTHER.start, first[0][1]]
    assert [trial.family for trial in make(families=3, first=first).trials()] == [
        job.family for job in jobs
    ]


def test_random_trials_are_spread_over_families(make):
    study = make(families=3, sampler="random")
    families = [job.family for job in complete(study, 3 + 9, lambda _: 0.5)][3:]
    assert {families.count(name) for name in (FAMILY, SECOND, THIRD)} == {3}


def test_a_family_that_costs_much_waits_unless_it_has_the_best_trial(make):
    """Fine-tuning takes a hundred times as long as a linear head."""
    for best, waits in ((SECOND, True), (FAMILY, False)):
        study, families = make(f"{best}", families=2, sampler="random"), []
        for _ in range(14):
            job = study.propose()
            families.append(job.family)
            seconds = 100.0 if job.family == FAMILY else 1.0
            score = 0.9 if job.family == best and job.number > 1 else 0.5
            study.evaluated(job.number, 0, {"ecg": score}, seconds)
        later = families[6:]
        assert (FAMILY not in later) is waits
        assert SECOND in later


def test_a_model_proposes_more_of_the_better_family(make):
    study = make(families=2)
    for _ in range(30):
        job = study.propose()
        score = 0.8 + 0.02 * job.values[SMOOTHING] if job.family == SECOND else 0.5
        study.evaluated(job.number, 0, {"ecg": score}, 1.0)
    families = [trial.family for trial in study.trials()][2 + RANDOM_TRIALS :]
    assert families.count(SECOND) > 2 * families.count(FAMILY)


def test_a_model_of_a_family_sees_its_trials_only(make):
    """Proposals of a family of few trials are random, however many others there are."""
    study = make(families=2)
    jobs = complete(study, 2 + RANDOM_TRIALS + 6, lambda values: 0.5)
    assert sum(job.family == SECOND for job in jobs) >= MODELLED
    for job in jobs:
        space = SPACE if job.family == FAMILY else OTHER
        names = {parameter.name for parameter in space.parameters}
        assert job.values.keys() <= names


# Early stopping within the first evaluation.


def slow_halving(order, values):
    """Trials that are stopped within the first evaluation, and at which step.

    At each step a trial stops if it is in the worst third of all that have reached the step so far,
    itself among them; none while they are fewer than three.
    """
    reached, stopped = {}, {}
    for trial, step in order:
        if trial in stopped:
            continue
        value = values[trial, step]
        scores = reached.setdefault(step, [])
        scores.append(value)
        better = sum(other > value for other in scores)
        if trial and len(scores) >= 3 and better >= len(scores) - len(scores) // 3:
            stopped[trial] = step
    return stopped


def random_order(generator, trials, steps):
    """Steps of each trial in turn, of trials in random order."""
    turns = generator.permutation(np.repeat(np.arange(trials), len(steps)))
    at = [0] * trials
    for trial in map(int, turns):
        yield trial, steps[at[trial]]
        at[trial] += 1


@pytest.mark.parametrize("seed", range(4))
def test_trials_are_stopped_at_equal_steps_of_the_first_evaluation(make, seed):
    generator = np.random.default_rng(seed)
    study, trials, steps = make(), 14, (2, 6)
    for _ in range(trials):
        study.propose()
    values = {(t, s): round(generator.random(), 2) for t in range(trials) for s in steps}
    order, stopped = list(random_order(generator, trials, steps)), {}
    for number, (trial, step) in enumerate(order):
        if number == 15:  # a search that was killed and continues
            study = make()
        if trial not in stopped and study.reported(trial, step, values[trial, step], 1.0):
            study.ended(trial, 0, seconds=1.0)
            stopped[trial] = step
    assert stopped == slow_halving(order, values)
    assert 4 <= len(stopped) < trials
    assert 0 not in stopped


def test_the_start_is_never_stopped(make):
    study = make()
    for _ in range(10):
        study.propose()
    for trial in range(1, 9):
        study.reported(trial, 1, 0.9, 1.0)
        study.evaluated(trial, 0, {"ecg": 0.9}, 1.0)
    assert not study.reported(0, 1, 0.1, 1.0)
    assert study.reported(9, 1, 0.2, 1.0)  # better, and no start


def test_trials_are_stopped_among_those_of_their_family(make):
    """A step of one family says nothing of a step of another."""
    study = make(families=2)
    for _ in range(8):
        study.propose()
    of = {trial.number: trial.family for trial in study.trials()}
    second = [number for number in of if of[number] == SECOND]
    first = [number for number in of if of[number] == FAMILY]
    for number in first[:4]:
        study.reported(number, 1, 0.9, 1.0)
    assert not any(study.reported(number, 1, 0.5, 1.0) for number in second[:2])
    assert study.reported(second[2], 1, 0.4, 1.0)


def test_what_a_resumed_trial_reports_again_counts_once(make):
    study = make()
    for _ in range(4):
        study.propose()
    assert not study.reported(1, 1, 0.5, 1.0)
    study.reported(2, 1, 0.9, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = make()
        assert not again.reported(1, 1, 0.5, 2.0)  # it was let continue there
    assert again.trials()[1].curve == ((1, 0.5),)
    assert again.trials()[1].seconds == 2.0
    assert make().reported(3, 1, 0.4, 1.0)


def test_a_stop_is_remembered_wherever_a_process_was_killed(make, tmp_path):
    """A stop and what it rests on are one line of the journal."""
    study = make()
    for number in range(6):
        study.propose()
        study.reported(number, 1, 0.9 - 0.1 * number, 1.0)
    lines = (tmp_path / "study.log").read_text().splitlines(keepends=True)
    stopped = [study.reported(number, 1, 0.0, 1.0) for number in range(6)]
    assert stopped == [False, False, True, True, True, True]
    for count in range(len(lines) // 2, len(lines) + 1):
        (tmp_path / "killed.log").write_text("".join(lines[:count]))
        again = make("killed")
        for number in range(again.begun):
            assert again.reported(number, 1, 0.9 - 0.1 * number, 1.0) == stopped[number]


# The ladder.


def test_a_trial_climbs_and_is_resumed_where_it_was(make):
    study = make()
    complete(study, 4, lambda values: 0.5)
    jobs = [study.climb() for _ in range(8)]
    assert [(job.number, job.evaluation) for job in jobs] == [
        *((number, 1) for number in range(4)),
        *((number, 2) for number in range(4)),
    ]
    assert study.climb() is None  # until these have ended
    study.evaluated(2, 1, {"ecg": 0.75}, 5.0)
    study.worked(3, 2, 7.0)
    again = make()
    unfinished = [(job.number, job.evaluation, job.seconds) for job in again.unfinished()]
    expected = [(0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (3, 1), (3, 2)]
    assert unfinished == [(n, e, 7.0 if (n, e) == (3, 2) else 0.0) for n, e in expected]
    assert again.granted == {number: {0, 1, 2} for number in range(4)}
    assert again.is_missing(3, 1)
    assert not again.is_missing(2, 1)
    assert not again.is_missing(2, 5)


def test_a_failed_evaluation_ends_its_trial_and_the_others_of_it(make):
    study = make()
    complete(study, 3, lambda values: 0.5)
    for _ in range(3):
        study.climb()
    study.ended(1, 1, seconds=2.0, reason="the loss became NaN")
    assert not study.evaluated(1, 1, {"ecg": 0.9}, 3.0)
    study.ended(1, 1, seconds=3.0)
    trial = study.trials()[1]
    assert (trial.state, trial.reason) == ("failed", "the loss became NaN")
    assert {1} & study.scores().keys() == set()
    assert [job.number for job in study.unfinished()] == [0, 2]
    study.ended(0, 1, seconds=1.0, reason="it failed")
    assert study.hopeless
    assert study.best() is None


def test_seconds_and_device_hours_are_those_of_all_evaluations(make):
    study = make()
    complete(study, 2, lambda values: 0.5, seconds=3600.0)
    study.climb()
    study.evaluated(0, 1, {"ecg": 0.5}, 1800.0)
    assert [trial.seconds for trial in study.trials()] == [5400.0, 3600.0]
    assert [trial.device_hours for trial in study.trials()] == [1.5, 1.0]


def test_the_end_of_exploring_is_noted_with_its_budget(make):
    study = make()
    study.propose()
    assert study.explored_within() is None
    study.note_explored([40, None, 2.5, None])
    assert make().explored_within() == (40, math.inf, 2.5, math.inf)


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


# Cost and crashes.


def test_device_hours_are_those_of_the_devices_of_each_session(make):
    study = make(devices=0.25)
    study.propose()
    study.reported(0, 1, 0.5, 3600.0)
    study.propose()
    study.evaluated(1, 0, {"ecg": 0.5}, 1800.0)
    later = make(devices=2.0)
    later.reported(0, 3, 0.5, 3000.0)  # of a process that knew less than the one before it
    later.evaluated(0, 0, {"ecg": 0.5}, 7200.0)
    assert [trial.device_hours for trial in later.trials()] == [0.25 + 2.0, 0.125]
    assert [trial.seconds for trial in later.trials()] == [7200.0, 1800.0]


def test_an_auroc_that_is_no_number_is_a_failure(make):
    study = make()
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
    path.write_bytes(whole + b'{"trial": 1, "scor')
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
    logs = log_lines(path)
    for log in logs:
        if log.get("trial") == 0 and "values" in log:
            log["values"][LR] = 99.0
    path.write_text("".join(map(line, logs)))
    with pytest.raises(BenchmdError, match=rf"trial 0 has {LR} 99\.0, not of the space"):
        make()


def test_a_trial_that_was_to_be_stopped_is_stopped_by_the_next_process(make):
    study = make()
    for number in range(4):
        study.propose()
        stop = study.reported(number, 1, 0.9 - number / 10, 1.0)
    assert stop
    assert make().reported(3, 1, 0.6, 1.0)
    again = make()
    assert not again.reported(0, 1, 0.9, 1.0)
    assert [job.number for job in again.unfinished()] == [0, 1, 2, 3]
    again.end_stopped()  # it may go on from a later step, and never report that one again
    assert [trial.state for trial in again.trials()] == ["unfinished"] * 2 + ["stopped"] * 2


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
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == optuna.logging.ERROR


@pytest.mark.parametrize(
    ("name", "noted"),
    [
        ("scored", {"0": {}}),
        ("scored", {"0": {"ecg": math.nan}}),
        ("scored", {"0": {"ecg": 1e308}}),
        ("scored", {"0": {"ecg": 0.5, "cxr": 0.5}, "1": {"ecg": 0.5}}),
        ("scored", {str(10**30): {"ecg": 0.5}}),
        ("scored", {"x": {"ecg": 0.5}}),
        ("granted", [-1]),
        ("granted", "ab"),
        ("granted", [0] * 10_001),
        ("device_hours", math.nan),
        ("device_hours", -1.0),
        ("worked", {"0": 1e308}),
        ("worked", {"0": "x"}),
        ("worked", 3.0),
        ("crashes", "x"),
        ("crashes", 10**400),
        ("curve", [[10**30, 0.5]]),
        ("curve", [[1.5, 0.5]]),
        ("curve", [[1, 1e308]]),
        ("curve", [[1, math.nan]]),
        ("ended", "complete"),
        ("values", {LR: 99.0}),
        ("values", {LR: "x"}),
        ("values", {"transfer.mode": "knn"}),
        ("family", "of another search"),
        ("family", 7),
        ("invented", 1),
        ("trial", 7),
        ("trial", -1),
        ("trial", "1"),
    ],
)
def test_what_no_search_notes_of_a_trial_is_damage(make, tmp_path, name, noted):
    """Whoever forges a line of the journal makes its checksum, too."""
    complete(make(), 2)
    (path,) = tmp_path.rglob("*.log")
    with path.open("a", encoding="utf-8") as file:
        file.write(line({"trial": 1, name: noted}))
    what = r"((unknown|a name in) .*)?trial 1[ :.\[]|a line is of the trial|its evaluations are"
    with pytest.raises(Damaged, match=rf"study\.log is damaged: ({what})"):
        make()


@pytest.mark.parametrize(
    "note", [["x"], ["nan"], [None, "nan", 1.0, 1.0], [1, 2, 3], [[]], [{}], 7, {"a": 1}]
)
def test_an_end_of_exploring_that_no_search_notes_is_damage(make, tmp_path, note):
    complete(make(), 2)
    (path,) = tmp_path.rglob("*.log")
    with path.open("a", encoding="utf-8") as file:
        file.write(line({"explored": note}))
    with pytest.raises(Damaged, match=r"study\.log is damaged: explored"):
        make()


def test_a_journal_of_another_version_is_not_read(make, tmp_path):
    (tmp_path / "study.log").write_text(line({"op_code": 0, "study_name": "search"}))
    with pytest.raises(Damaged, match=r"it has the format None, expected 2: of another version"):
        make()


def test_a_score_that_is_no_number_stops_no_trial(make):
    study = make()
    for _ in range(4):
        study.propose()
    for number in range(4):
        assert not study.reported(number, 1, math.nan, 2.0)
    assert [(trial.curve, trial.seconds) for trial in make().trials()] == [((), 2.0)] * 4
