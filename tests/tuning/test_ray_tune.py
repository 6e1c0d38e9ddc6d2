import errno
import math
import multiprocessing
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from benchmd_ray.console.progress import Display
from benchmd_ray.errors import BenchmdError, BucketError, DiskFull, Gone, NoRoom, Transient
from benchmd_ray.settings.definition import Settings
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.ray_tune import LOST_NODES, RESTARTS, Jobs, Judge, Watch
from benchmd_ray.tuning.search import _after_crash, is_of_trial, trial_loop
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.stages import TrialContext
from benchmd_ray.tuning.study import Study

SPACE = Space("made", (Parameter("transfer.optimiser.lr", "log float", 1e-3, low=1e-5, high=0.1),))
FAMILY = Family("mae", "linear", SPACE, (Settings(),))
GPU_MEMORY = {"failed": "ran out of memory: CUDA", "memory": True, "lost": False}


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path / "study.log", [FAMILY], Method(sampler="random"))


@pytest.fixture
def limits(study):
    return Limits(study, Budget(trials=3), Place(1.0, 0.0, 2), lambda: False, Display())


@pytest.fixture
def ended():
    """Numbers of trials in the order in which their jobs ended."""
    return []


@pytest.fixture
def work(tmp_path):
    return TrialContext({}, tmp_path)


@pytest.fixture
def judge(limits, ended, work):
    return Judge(limits, ended.append, work)


@pytest.fixture
def begin(limits, judge, tmp_path):
    """Begins the next job as Ray Tune does."""

    class Begun(Trial):
        error_file = str(tmp_path / "error.txt")

    jobs = Jobs(limits, lambda evaluation: [f"inner-{evaluation}"])

    def begun():
        config = jobs.suggest("a")
        if not isinstance(config, dict):
            return config
        trial = Begun("made", config=dict(config), stub=True, max_failures=RESTARTS)
        judge.on_trial_add(None, trial)
        return trial

    return begun


def report(judge, trial, **values):
    at = {"step": 1, "score": 0.5, "seconds": 2.0, "failed": "", "whole": False}
    result = at | values
    decision = judge.on_trial_result(None, trial, result)
    trial.run_metadata.last_result = result
    return decision


def finish(judge, trial, score=0.75, **values):
    decision = report(judge, trial, **{"whole": True, "seconds": 3.0, "scores/ecg": score} | values)
    trial.set_status("TERMINATED")
    return decision


def lose(judge, trial, *, error="its process died", **last):
    """Lose a job's process, as Ray Tune restarts it or, after too many losses, does not."""
    with Path(trial.error_file).open("a") as file:
        file.write(f"Failure # 1 (occurred at some time)\n{error}\n")
    trial.set_status("RUNNING")
    trial.run_metadata.last_result = last or trial.run_metadata.last_result
    trial.run_metadata.num_failures += 1
    restarted = trial.should_recover()
    trial.set_status("ERROR" if restarted else "RUNNING")
    judge.on_trial_error(None, trial)
    trial.set_status("PENDING" if restarted else "ERROR")
    if restarted:
        judge.on_trial_add(None, trial)
    return restarted


CONTROLLER = SimpleNamespace(get_trials=list)


def test_the_start_is_trained_with_its_family_s_settings_as_they_are(begin, limits):
    """What a space states besides, such as an option's default, would name another run."""
    start, other = begin(), begin()
    assert start.config["values"] == {}
    assert limits.study.trials()[0].values == SPACE.start
    assert other.config["values"] == limits.study.trials()[1].values != {}


def test_a_job_goes_from_proposal_to_its_end(limits, judge, begin, ended, work):
    work.job_folder(0, 0).mkdir(parents=True)
    trial = begin()
    assert trial.config == {
        "number": 0,
        "evaluation": 0,
        "family": "mae linear",
        "values": {},
        "seconds": 0.0,
        "catalogs": ["inner-0"],
        "keep": True,
        "gpus": 0.0,
        "unfinished": ["00000-000"],
    }
    assert limits.running == {(0, 0)}
    assert report(judge, trial) == "CONTINUE"
    assert finish(judge, trial) == "STOP"
    assert (limits.running, ended) == (set(), [0])
    (ended_trial,) = limits.study.trials()
    assert (ended_trial.state, ended_trial.score, ended_trial.seconds) == ("complete", 0.75, 3.0)
    assert not list((work.local / "trials").iterdir())


def test_models_are_kept_of_the_start_and_of_evaluations_after_the_first(limits, judge, begin):
    limits.budget = Budget(trials=2)
    jobs = []
    while isinstance(trial := begin(), Trial) and len(jobs) < 6:
        jobs.append((trial.config["number"], trial.config["evaluation"], trial.config["keep"]))
        finish(judge, trial)
    assert jobs == [
        (0, 0, True),
        (1, 0, False),
        (0, 1, True),
        (1, 1, True),
        (0, 2, True),
        (1, 2, True),
    ]


def test_two_evaluations_of_one_trial_run_at_once(limits, study, judge, begin, ended):
    for number in range(2):
        study.propose()
        study.evaluated(number, 0, {"ecg": 0.5 + number}, 1.0)
    limits.budget, limits.room = Budget(trials=2), lambda wanted: 4
    trials = [begin() for _ in range(4)]
    assert limits.running == {(0, 1), (1, 1), (0, 2), (1, 2)}
    for trial in reversed(trials):
        finish(judge, trial)
    assert ended == [1, 0, 1, 0]
    assert [len(trial.evaluations) for trial in study.trials()] == [3, 3]


def test_jobs_of_an_interrupted_session_come_first_and_the_budget_ends_it(limits, study, begin):
    for _ in range(2):
        study.propose()
    limits.room = lambda wanted: 3
    assert [begin().config["number"] for _ in range(3)] == [0, 1, 2]
    assert begin() is None  # what is running may earn more
    for number in range(3):
        study.ended(number, 0, seconds=1.0, reason="it failed")
    limits.running.clear()
    assert begin() == Searcher.FINISHED


def test_a_trial_that_falls_behind_is_stopped(limits, judge, begin, ended):
    limits.budget, limits.room = Budget(trials=9), lambda wanted: 4
    trials = [begin() for _ in range(4)]
    decisions = [report(judge, trial, score=0.9 - n / 10) for n, trial in enumerate(trials)]
    assert decisions == ["CONTINUE", "CONTINUE", "STOP", "STOP"]
    assert [t.state for t in limits.study.trials()] == ["unfinished"] * 2 + ["stopped"] * 2
    assert ended == [2, 3]


def test_a_score_of_nan_fails_a_trial(limits, judge, begin, ended):
    assert finish(judge, begin(), score=math.nan) == "STOP"
    (trial,) = limits.study.trials()
    assert (trial.state, trial.reason, ended) == ("failed", "its score is NaN", [0])
    assert limits.trouble is None


def test_an_error_of_the_driver_ends_the_search_as_what_it_is(limits, work, judge, begin):
    def full(number):
        raise OSError(28, "No space left on device")

    judge._ended = full
    trial = begin()
    assert report(judge, trial, failed="the loss became NaN", lost=False, memory=False) == "STOP"
    assert isinstance(limits.trouble, OSError)
    assert begin() == Searcher.FINISHED


def test_catalogs_that_cannot_be_written_end_the_search_and_not_the_trial(limits, study):
    def full(evaluation):
        raise DiskFull("no space left")

    assert Jobs(limits, full).suggest("a") == Searcher.FINISHED
    assert isinstance(limits.trouble, DiskFull)
    assert [(job.number, job.evaluation) for job in study.unfinished()] == [(0, 0)]


# Losses.


def test_ray_tune_restarts_a_job_whose_process_was_lost(limits, judge, begin, ended):
    reasons = []
    limits.lost = lambda number, reason: reasons.append((number, reason))
    trial, other = begin(), begin()
    assert lose(judge, trial, seconds=600.0)
    assert limits.running == {(0, 0), (1, 0)}
    judge.choose_trial_to_run(CONTROLLER)
    assert limits.waiting == []
    assert trial.config["seconds"] == 600.0
    assert trial.config["unfinished"] == ["00000-000", "00001-000"]
    assert finish(judge, trial, seconds=700.0) == "STOP"
    finish(judge, other)
    assert limits.study.trials()[0].seconds == 700.0
    assert (reasons, ended) == ([(0, "its process was lost")], [0, 1])


def test_a_process_that_is_lost_again_and_again_fails_its_trial(limits, judge, begin, ended):
    begin()
    trial = begin()
    assert [lose(judge, trial, seconds=100.0 * n) for n in range(1, 5)] == [True] * 3 + [False]
    _, failed = limits.study.trials()
    assert (failed.state, failed.seconds, ended) == ("failed", 400.0, [1])
    assert failed.reason == "its process was lost again and again"
    assert limits.running == {(0, 0)}


def test_a_start_that_is_lost_again_and_again_ends_the_search_and_has_not_failed(
    limits, judge, begin
):
    """With a failed start nothing could be compared, whatever the next session finds."""
    trial = begin()
    assert [lose(judge, trial) for _ in range(4)] == [True] * 3 + [False]
    assert limits.study.trials()[0].state == "unfinished"
    with pytest.raises(Transient, match="trial 0 could not run: its process was lost"):
        raise limits.trouble


def test_lost_nodes_are_hardly_counted(limits, judge, begin, ended):
    error = "The actor died because its node has died. Node Id: 1f"
    reasons = []
    limits.lost = lambda number, reason: reasons.append(reason)
    begin()
    trial = begin()
    assert [lose(judge, trial, error=error) for _ in range(LOST_NODES)] == [True] * LOST_NODES
    assert reasons == ["its node was lost"] * LOST_NODES
    lost = [lose(judge, trial, error=error) for _ in range(RESTARTS + 1)]
    assert lost == [True] * RESTARTS + [False]
    failed = limits.study.trials()[1]
    assert (failed.reason, ended) == ("its node was lost again and again", [1])


def test_of_several_errors_the_last_one_says_what_was_lost(limits, judge, begin):
    reasons, trial = [], begin()
    limits.lost = lambda number, reason: reasons.append(reason)
    lose(judge, trial, error="The actor died because its node has died.")
    lose(judge, trial, error="Worker exit type: SYSTEM_ERROR")
    assert reasons == ["its node was lost", "its process was lost"]


def test_trouble_around_a_trial_is_tried_again_and_is_no_failure_of_it(limits, judge, begin, ended):
    trial = begin()
    last = {"failed": "no space left.", "lost": True, "memory": False, "seconds": 1.0}
    for _ in range(RESTARTS):
        assert report(judge, trial, **last) == "CONTINUE"
        assert lose(judge, trial)
        assert limits.trouble is None
    report(judge, trial, **last)
    assert not lose(judge, trial)
    assert limits.study.trials()[0].state == "unfinished"
    assert ended == []
    assert Watch(limits).stop_all()
    with pytest.raises(Transient, match=r"trial 0 could not run: no space left\. When that is"):
        raise limits.trouble


def test_a_job_that_ray_tune_gave_up_comes_again(limits, judge, begin):
    """In silence where it could not start in a warm process, even if restarts are left."""
    trial = begin()
    judge.choose_trial_to_run(CONTROLLER)
    assert limits.running == {(0, 0)}
    trial.set_status("ERROR")
    judge.choose_trial_to_run(CONTROLLER)
    assert limits.running == set()
    assert begin().config["number"] == 0


def test_a_lost_job_of_a_trial_that_failed_meanwhile_does_not_come_again(limits, judge, begin):
    trial = begin()
    limits.study.ended(0, 1, seconds=1.0, reason="another evaluation failed")
    trial.set_status("ERROR")
    judge.choose_trial_to_run(CONTROLLER)
    assert (limits.running, limits.waiting) == (set(), [])


def test_workers_of_a_lost_process_are_freed_when_nothing_works(limits, judge, begin):
    limits.place = Place(4.0, 0.0, 2, workers=2)
    start, second = begin(), begin()
    for trial in (start, second):
        trial.max_failures = 0  # as nothing may start before workers are freed
    lose(judge, second)
    judge.choose_trial_to_run(CONTROLLER)
    assert begin() is None
    finish(judge, start)
    assert begin() == Searcher.FINISHED
    assert [job.number for job in limits.study.unfinished()] == [1]
    states = []
    for _ in range(RESTARTS):
        limits.draining = False  # a new Ray Tune
        again = begin()
        again.max_failures = 0
        lose(judge, again)
        judge.choose_trial_to_run(CONTROLLER)
        states.append(limits.study.trials()[1].state)
    assert states == ["unfinished", "unfinished", "failed"]


def test_a_lost_job_of_workers_of_a_trial_that_failed_meanwhile_is_over(limits, judge, begin):
    limits.place = Place(4.0, 0.0, 2, workers=2)
    trial = begin()
    trial.max_failures = 0
    limits.study.ended(0, 1, seconds=1.0, reason="another evaluation failed")
    lose(judge, trial)
    judge.choose_trial_to_run(CONTROLLER)
    assert (limits.running, limits.waiting, limits.trouble) == (set(), [], None)


def test_a_trial_that_ends_ray_tune_itself_fails_the_second_time(limits, begin, ended):
    begin()
    _after_crash(limits, RuntimeError("first\nit died"), ended.append)
    assert limits.study.trials()[0].state == "unfinished"
    _after_crash(limits, None, ended.append)
    assert limits.study.trials()[0].reason == "its process was lost: Ray Tune gave no reason"
    limits.running.clear()
    with pytest.raises(Transient, match="Ray Tune failed: it died"):
        _after_crash(limits, RuntimeError("it died"), ended.append)


@pytest.mark.parametrize(
    ("error", "of_trial"),
    [
        (BenchmdError("the loss became NaN"), True),
        (ValueError("odd"), True),
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (DiskFull("no space left while writing x"), False),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), False),
        (BucketError("refused"), False),
        (OSError(errno.EIO, "Input/output error"), False),
        (OSError(errno.ESTALE, "Stale file handle"), False),
        (NoRoom("no node"), False),
        (Gone("the weights were pruned"), False),
    ],
    ids=repr,
)
def test_what_is_wrong_around_a_trial_is_not_held_against_it(
    work, tmp_path, monkeypatch, error, of_trial
):
    """It is reported with its reason, and raised for Ray Tune unless it is the trial's."""
    reports = []

    def fails(*_, **__):
        raise error

    monkeypatch.setattr("ray.tune.report", reports.append)
    monkeypatch.setattr("benchmd_ray.tuning.search.run_trial", fails)
    monkeypatch.setattr("benchmd_ray.tuning.search.AWAY_SECONDS", 0.0)
    for folder in (tmp_path, tmp_path / "removed"):
        assert is_of_trial(error, TrialContext({}, folder)) is of_trial
    config = {"gpus": 0.0, "seconds": 5.0}
    if of_trial:
        trial_loop(config, work)
    else:
        with pytest.raises(type(error)):
            trial_loop(config, work)
    (result,) = reports
    assert (result["lost"], result["memory"]) == (not of_trial, False)
    assert result["failed"]
    assert result["seconds"] >= 5.0


# Resources.


def test_a_trial_out_of_memory_on_a_share_of_a_gpu_gets_a_whole_one(limits, judge, begin, ended):
    limits.place, limits.study.devices = Place(1.0, 0.25, 4), 0.25
    first = begin()
    assert report(judge, first, seconds=2.0, **GPU_MEMORY) == "STOP"
    first.set_status("TERMINATED")
    again = begin()
    assert (again.config["number"], first.config["gpus"], again.config["gpus"]) == (0, 0.25, 1.0)
    assert ended == []
    assert report(judge, again, seconds=5.0, **GPU_MEMORY) == "STOP"
    (failed,) = limits.study.trials()
    assert (failed.state, failed.reason, ended) == ("failed", GPU_MEMORY["failed"], [0])
    assert failed.device_hours == pytest.approx((0.25 * 2.0 + 3.0) / 3600)


def test_a_whole_gpu_is_waited_for_and_shares_do_not_take_it(limits, judge, begin):
    limits.place, limits.at_once, limits.budget = Place(1.0, 0.25, 4), 4, Budget(trials=9)
    limits.room = lambda wanted: 4
    trials = [begin() for _ in range(4)]
    report(judge, trials[1], **GPU_MEMORY)
    assert begin() is None
    for number in (0, 2):
        finish(judge, trials[number])
        assert begin() is None
    finish(judge, trials[3])
    assert begin().config["number"] == 1
    assert limits.running == {(1, 0)}
    assert begin() is None  # it has the whole GPU


def test_jobs_follow_the_room_that_there_is(limits, judge, begin):
    room = {"at_once": 0}
    limits.room, limits.budget = lambda wanted: room["at_once"], Budget(trials=9)
    assert limits.wanted == 9
    watch = Watch(limits)
    assert not watch.stop_all()
    assert begin() is None  # every node is gone, and the search goes on
    room["at_once"] = 2  # Ray Tune asks for nothing but jobs while none works
    first, second = begin(), begin()
    assert [trial.config["number"] for trial in (first, second)] == [0, 1]
    assert begin() is None
    room["at_once"] = 1
    watch.stop_all()
    finish(judge, first)
    assert begin() is None  # one of two still works, and there is room for one
    assert limits.wanted == 8


def test_no_room_for_too_long_ends_a_search(limits):
    def room(wanted):
        raise NoRoom("nothing can run")

    limits.room = room
    assert Watch(limits).stop_all()
    assert isinstance(limits.trouble, NoRoom)


def test_what_follows_a_search_is_never_written_away_by_ray_tune(limits, work):
    queue = multiprocessing.get_context("spawn").Queue()
    limits.shown = queue
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(queue)
    for adapter in (Judge(limits, queue.put, work), Jobs(limits, queue.put), Watch(limits)):
        assert pickle.dumps(adapter)
