import errno
import multiprocessing
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from benchmd_ray.console.progress import Display
from benchmd_ray.errors import BenchmdError, BucketError, DiskFull, Gone, NoRoom, Transient
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.ray_tune import LOST_NODES, Jobs, Judge, Watch
from benchmd_ray.tuning.search import _after_crash, _failure_report
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.stages import Arm, Transfer, TrialContext
from benchmd_ray.tuning.study import Study

SPACE = Space("made", (Parameter("transfer.optimiser.lr", "log float", 1e-3, low=1e-5, high=0.1),))


@pytest.fixture
def limits(tmp_path):
    study = Study(tmp_path / "study.log", SPACE, Method(sampler="random", stopping="none"))
    return Limits(study, Budget(trials=3), Place(1.0, 0.0, 2), lambda: False, Display())


@pytest.fixture
def told():
    return []


@pytest.fixture
def judge(limits, told, tmp_path):
    work = TrialContext("mae", Transfer(), (), tmp_path, ())
    work.trial_folder(0).mkdir(parents=True)
    return Judge(limits, told.append, work)


def trial(proposal, last=None, error=""):
    """A job as Ray Tune holds it, with its last result and what was written of its errors."""

    class Made(Trial):
        error_file = None

    made = Made("made", config={"whole": False, **proposal}, stub=True)
    made.run_metadata.last_result = last or {}
    if error:
        (path := Path(tempfile.mkdtemp()) / "error.txt").write_text(f"Failure # 1\n{error}")
        made.error_file = str(path)
    return made


def reported(**values):
    at = {"evaluation": 0, "step": 1, "score": 0.5, "seconds": 2.0}
    return {"failed": "", "whole": False, "complete": False, **at} | values


def test_a_trial_goes_from_proposal_to_its_end(limits, judge, told, tmp_path):
    proposal = Jobs(limits).suggest("a")
    assert (proposal["number"], proposal["values"]) == (0, SPACE.start)
    assert limits.running == {0}
    assert judge.on_trial_result(None, trial(proposal), reported()) == "CONTINUE"
    ended = reported(whole=True, complete=True, seconds=3.0, **{"scores/ecg": 0.75})
    assert judge.on_trial_result(None, trial(proposal), ended) == "STOP"
    assert (limits.running, told) == (set(), [0])
    (known,) = limits.study.trials()
    assert (known.state, known.score, known.seconds) == ("complete", 0.75, 3.0)
    assert not list((tmp_path / "trials").iterdir())


def test_an_interrupted_sessions_trials_come_first_and_the_budget_ends_it(limits):
    for _ in range(2):
        limits.study.propose()
    limits.waiting, limits.room = limits.study.unfinished(), lambda wanted: 3
    proposals = Jobs(limits)
    numbers = [proposals.suggest("x")["number"] for _ in range(3)]
    assert numbers == [0, 1, 2]
    assert proposals.suggest("x") is None  # what is running may earn more
    for number in range(3):
        limits.study.evaluated(number, 0, {"ecg": 0.5}, 1.0)
    limits.running.clear()
    assert proposals.suggest("x") == Searcher.FINISHED


def race(study, seconds=1.0, gain=0.1):
    """Three trials with one evaluation each, the last the best, or else the first."""
    for number in range(3):
        study.propose()
        study.evaluated(number, 0, {"ecg": 0.5 + number * gain}, seconds)


def test_finalists_come_when_the_race_is_over(limits):
    race(limits.study)
    jobs = Jobs(limits)
    for numbers in ([0, 2], [1]):  # the next best where the best is not above the start
        given = [jobs.suggest("x") for _ in numbers]
        assert [job["number"] for job in given] == numbers
        assert all(job["evaluations"] == tuple(limits.study.method.batches[0]) for job in given)
        assert jobs.suggest("x") is None
        limits.running.clear()
        for job in given:
            for evaluation in job["evaluations"]:
                limits.study.evaluated(job["number"], evaluation, {"ecg": 0.5}, 2.0)
    assert jobs.suggest("x") == Searcher.FINISHED


def test_no_finalist_is_granted_while_the_start_is_still_in_the_race(limits):
    """Else two processes would do the same evaluations."""
    race(limits.study)
    jobs = Jobs(limits)
    handle = limits.study._handle(0)
    handle.set_user_attr("granted", [0, -1])  # an evaluation of the race that is being worked on
    limits.running.add(0)
    assert jobs.suggest("x") is None
    handle.set_user_attr("granted", [0])
    limits.running.clear()
    assert jobs.suggest("x")["number"] == 0


def test_a_score_of_nan_ends_a_trial_with_evaluations_to_come(limits, judge, told):
    job = Jobs(limits).suggest("a")
    result = reported(whole=True, **{"scores/ecg": float("nan")})
    assert judge.on_trial_result(None, trial(job), result) == "STOP"
    (known,) = limits.study.trials()
    assert (known.state, known.reason, told) == ("failed", "its score is NaN", [0])
    assert limits.trouble is None


def test_trouble_around_a_trial_is_no_failure_of_it(limits, judge, told):
    proposal = Jobs(limits).suggest("a")
    result = {"failed": "no space left", "trouble": True, "seconds": 1.0}
    assert judge.on_trial_result(None, trial(proposal), result) == "STOP"
    assert limits.study.trials()[0].state == "unfinished"
    assert told == []
    assert Watch(limits).stop_all()
    with pytest.raises(Transient, match=r"trial 0 could not run: no space left\. When that is"):
        raise limits.trouble


def test_an_error_of_the_driver_ends_the_search_as_what_it_is(limits, tmp_path):
    def full(number):
        raise OSError(28, "No space left on device")

    judge = Judge(limits, full, TrialContext("mae", Transfer(), (), tmp_path, ()))
    proposal = Jobs(limits).suggest("a")
    result = reported(failed="the loss became NaN")
    assert judge.on_trial_result(None, trial(proposal), result) == "STOP"
    assert isinstance(limits.trouble, OSError)
    assert Jobs(limits).suggest("b") == Searcher.FINISHED


def test_a_job_whose_process_was_lost_comes_again_and_goes_on_counting(limits, judge, told):
    jobs = Jobs(limits)
    first = jobs.suggest("a")
    judge.on_trial_error(None, trial(first, {"seconds": 600.0}))
    assert limits.running == set()
    again = jobs.suggest("b")
    assert again == {**first, "seconds": 600.0, "resumed": True}
    assert not first["resumed"]
    judge.on_trial_error(None, trial(again, {"seconds": 700.0}))
    (known,) = limits.study.trials()
    assert (known.state, known.seconds, told) == ("failed", 700.0, [0])
    assert known.reason == "its process was lost, more than once"


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"seconds": 1.0}, "its node was lost"),
        (None, "its node was lost before it started"),
    ],
)
def test_lost_nodes_are_hardly_counted(limits, judge, told, last, said):
    jobs, reasons = Jobs(limits), []
    limits.lost = lambda number, reason: reasons.append(reason)
    error = "ray.exceptions.ActorDiedError: The actor died because its node has died. Node Id: 1f"
    for _ in range(LOST_NODES - 1):
        job = jobs.suggest("a")
        assert job["number"] == 0
        judge.on_trial_error(None, trial(job, last, error))
    assert reasons == [said] * (LOST_NODES - 1)
    assert told == []
    judge.on_trial_error(None, trial(jobs.suggest("a"), last, error))
    assert limits.study.trials()[0].reason == f"{said}, more than once"  # it may be the reason


def test_a_job_that_was_lost_after_its_last_report_is_over(limits, judge, told):
    job = Jobs(limits).suggest("a")
    limits.study.evaluated(0, 0, {"ecg": 0.5}, 3.0)
    judge.on_trial_error(None, trial(job, {"seconds": 3.0}))
    assert (limits.waiting, limits.running, told) == ([], set(), [0])


def test_a_job_that_comes_again_does_only_what_is_left(limits, judge):
    job = limits.study.propose()
    limits.study._grant(0, limits.study.method.fresh)
    every = (0, *limits.study.method.fresh)
    at_work = trial(vars(job) | {"evaluations": every}, {"seconds": 3.0})
    for evaluation in (0, 5, 6):
        limits.study.evaluated(0, evaluation, {"ecg": 0.5}, 3.0)
    judge.on_trial_error(None, at_work)
    assert Jobs(limits).suggest("a")["evaluations"] == (7, 8, 9)


def test_a_trial_out_of_memory_on_a_share_of_a_gpu_gets_a_whole_one(limits, judge, told):
    limits.place, jobs = Place(1.0, 0.25, 4), Jobs(limits)
    limits.study.devices = 0.25
    result = {"failed": "ran out of memory: CUDA", "memory": True, "seconds": 2.0}
    first = jobs.suggest("a")
    assert judge.on_trial_result(None, trial(first, result), result) == "STOP"
    again = jobs.suggest("b")
    assert (again["number"], first["whole"], again["whole"]) == (0, False, True)
    result |= {"seconds": 5.0}
    assert judge.on_trial_result(None, trial(again, result), result) == "STOP"
    (known,) = limits.study.trials()
    assert (known.state, known.reason, told) == ("failed", result["failed"], [0])
    assert known.device_hours == pytest.approx((0.25 * 2.0 + 3.0) / 3600)


def test_jobs_follow_the_room_that_there_is(limits, judge):
    room = {"at_once": 0}
    limits.room = lambda wanted: room["at_once"]
    limits.budget = Budget(trials=9)
    assert limits.wanted == 9
    jobs, watch = Jobs(limits), Watch(limits)
    assert not watch.stop_all()
    assert jobs.suggest("a") is None  # every node is gone, and the search goes on
    room["at_once"] = 2  # Ray Tune asks for nothing but jobs while none works
    assert [jobs.suggest("b")["number"], jobs.suggest("c")["number"]] == [0, 1]
    assert jobs.suggest("d") is None
    room["at_once"] = 1
    watch.stop_all()
    ended = reported(whole=True, complete=True, **{"scores/ecg": 0.75})
    judge.on_trial_result(None, trial({"number": 0, "seconds": 0.0}), ended)
    assert jobs.suggest("e") is None  # one of two still works, and there is room for one
    assert limits.wanted == 8


def test_a_whole_gpu_is_waited_for_and_shares_do_not_take_it(limits, judge):
    limits.place, limits.at_once, limits.budget = Place(1.0, 0.25, 4), 4, Budget(trials=9)
    limits.room = lambda wanted: 4
    jobs = Jobs(limits)
    given = [jobs.suggest("x") for _ in range(4)]
    memory = {"failed": "ran out of memory: CUDA", "memory": True, "seconds": 2.0}
    judge.on_trial_result(None, trial(given[1], memory), memory)
    assert jobs.suggest("y") is None
    ended = reported(whole=True, complete=True, **{"scores/ecg": 0.75})
    for number in (0, 2):
        judge.on_trial_result(None, trial(given[number]), ended)
        assert jobs.suggest("y") is None
    judge.on_trial_result(None, trial(given[3]), ended)
    assert (jobs.suggest("y")["number"], limits.running) == (1, {1})
    assert jobs.suggest("z") is None  # it has the whole GPU


def test_workers_of_a_lost_process_are_freed_when_nothing_works(limits, judge):
    limits.place = Place(4.0, 0.0, 2, workers=2)
    jobs = Jobs(limits)
    first, second = jobs.suggest("a"), jobs.suggest("b")
    judge.on_trial_error(None, trial(first))
    assert jobs.suggest("c") is None
    ended = reported(whole=True, complete=True, **{"scores/ecg": 0.75})
    judge.on_trial_result(None, trial(second), ended)
    assert jobs.suggest("d") == Searcher.FINISHED
    assert [job.number for job in limits.study.unfinished()] == [0]


def test_a_job_that_ray_tune_could_not_begin_comes_again(limits, judge):
    jobs, controller = Jobs(limits), SimpleNamespace(get_trials=list)
    begun = trial(jobs.suggest("a"))
    judge.on_trial_add(None, begun)
    judge.choose_trial_to_run(controller)
    assert limits.running == {0}
    begun.status = "ERROR"
    judge.choose_trial_to_run(controller)
    assert limits.running == set()
    assert jobs.suggest("b")["number"] == 0


def test_no_room_for_too_long_ends_a_search(limits):
    def room(wanted):
        raise NoRoom("no trial can run")

    limits.room = room
    assert Watch(limits).stop_all()
    assert isinstance(limits.trouble, NoRoom)


@pytest.mark.parametrize(("slots", "hours"), [(1, 5.0), (2, 2.5), (8, 2.5)])
def test_hours_are_kept_for_the_choice_of_which_two_jobs_work_at_once(tmp_path, slots, hours):
    study = Study(tmp_path / "study.log", SPACE, Method(sampler="random", evaluations=3))
    race(study, 720.0)
    limits = Limits(
        study, Budget(hours=10.0), Place(1.0, 0.0, slots), lambda: False, Display(), 0.0
    )
    assert limits.to_come == study.method.confirming
    assert limits.each == pytest.approx(0.2)
    limits.start -= 3600 * (10.0 - hours - 0.01)
    assert not limits.used
    limits.start -= 3600 * 0.02
    assert limits.used


def test_a_race_without_a_trial_above_the_start_takes_all_hours(tmp_path):
    study = Study(tmp_path / "study.log", SPACE, Method(sampler="random", evaluations=3))
    race(study, 720.0, gain=-0.1)
    devices = Place(1.0, 0.0, 2)
    enough, little = (
        Limits(study, Budget(device_hours=hours), devices, lambda: False, Display(), 0.0)
        for hours in (1.3, 0.7)
    )
    assert not enough.used  # 0.6 are
    study.propose()
    study.evaluated(3, 0, {"ecg": 0.6}, 180.0)
    for limits in (enough, little):
        limits.look()
        assert not limits.spent
    assert enough.used  # what is left is for the choice
    assert not little.used  # for which it is not enough


def finished(study, job, score=0.5, seconds=720.0):
    for place, each in enumerate(job.evaluations, 1):
        study.evaluated(job.number, each, {"ecg": score}, job.seconds + place * seconds)


def test_what_a_trial_has_earned_comes_before_the_choice_unless_it_costs_a_cut(tmp_path):
    """Else the best of single evaluations ends the race."""
    for hours, granted in ((3.3, [(0, (1, 2)), (2, (1, 2))]), (3.8, [(0, (5, 6, 7, 8, 9))])):
        path = tmp_path / f"{hours}.log"
        study = Study(path, SPACE, Method(sampler="random", evaluations=3))
        race(study, 720.0)
        budget, place = Budget(trials=None, device_hours=hours), Place(1.0, 0.0, 2)
        limits = Limits(study, budget, place, lambda: False, Display())
        assert limits.used
        for number, evaluations in granted:
            job = limits.next_job()
            assert (job.number, job.evaluations) == (number, evaluations)
            finished(study, job, 0.5 + 0.1 * number)
            limits.look()
        assert limits.next_job().evaluations == (5, 6, 7, 8, 9)


def test_a_cut_begins_where_hours_are_left_for_half_of_it(tmp_path):
    """Of the start and a finalist, 0.2 hours an evaluation; what is begun is finished."""
    for hours, cuts in ((1.5, 0), (1.7, 1), (3.5, 1), (3.7, 2)):
        study = Study(tmp_path / f"{hours}.log", SPACE, Method(sampler="random", evaluations=3))
        race(study, 720.0)
        budget, place = Budget(trials=3, device_hours=hours), Place(1.0, 0.0, 1)
        limits = Limits(study, budget, place, lambda: False, Display())
        study.promote = lambda: None
        while job := limits.next_job():
            finished(study, job, 0.5 + 0.1 * job.number + 0.01 * (job.evaluations[0] % 10))
            limits.look()
        trials = study.trials()
        assert [len(trial.fresh) for trial in trials] == [5 * cuts, 0, 5 * cuts]
        assert limits.device_hours == pytest.approx(0.6 + 2 * cuts)
        assert study.undecided(budget.numbers) is (cuts < 2)


def test_a_cut_that_was_begun_is_for_the_finalist_too(tmp_path):
    """Of a start that takes longer than was estimated, until nothing is left."""
    study = Study(tmp_path / "study.log", SPACE, Method(sampler="random", evaluations=3))
    race(study, 720.0)
    budget, place = Budget(trials=3, device_hours=1.7), Place(1.0, 0.0, 1)
    limits = Limits(study, budget, place, lambda: False, Display())
    study.promote = lambda: None
    finished(study, limits.next_job(), seconds=2 * 720.0)
    limits.look()
    assert limits.spent
    assert limits.next_job().number == 2


@pytest.mark.parametrize(("hours", "tested"), [(2.5, [0, 0, 2, 1]), (2.35, [0, 0, 0, 1])])
def test_the_next_finalist_has_its_turn_where_hours_are_left_for_its_cut(tmp_path, hours, tested):
    """The start has the cut already."""
    study = Study(tmp_path / f"{hours}.log", SPACE, Method(sampler="random", evaluations=3))
    for number in range(4):
        study.propose()
        study.evaluated(number, 0, {"ecg": 0.5 + number * 0.1}, 360.0)
    budget, place = Budget(trials=4, device_hours=hours), Place(1.0, 0.0, 1)
    limits = Limits(study, budget, place, lambda: False, Display())
    study.promote = lambda: None
    while job := limits.next_job():
        finished(study, job, 0.9 - 0.1 * job.number, 720.0)
        limits.look()
    assert [trial.tested for trial in study.trials()] == tested


def test_by_the_clock_a_cut_begins_where_it_can_end(tmp_path):
    """Of two jobs at once, in 5 × 12 minutes."""
    study = Study(tmp_path / "study.log", SPACE, Method(sampler="random", evaluations=3))
    race(study, 720.0)
    budget, place = Budget(trials=3, hours=10.0), Place(1.0, 0.0, 2)
    study.promote = lambda: None
    for worked, begins in ((9.02, False), (8.98, True)):
        limits = Limits(study, budget, place, lambda: False, Display(), worked=3600 * worked)
        assert (limits.next_job() is not None) is begins


def test_hours_of_what_is_at_work_are_not_left(tmp_path):
    study = Study(tmp_path / "study.log", SPACE, Method(sampler="random", evaluations=3))
    race(study, 720.0)
    place = Place(1.0, 0.0, 8)
    limits = Limits(study, Budget(trials=None, device_hours=20.0), place, lambda: False, Display())
    assert not limits.used
    for _ in range(70):
        study.propose()
    limits.look()
    assert not limits.used  # 14 hours, and 0.6; 5 are kept
    for _ in range(3):
        study.propose()
    assert limits.used


def test_losses_count_anew_after_a_newer_step(limits, judge):
    jobs = Jobs(limits)
    for step in (1, 2, 3, 3):  # at last a checkpoint's step comes again
        assert limits.study.trials()[0:1] == [] or limits.study.trials()[0].state == "unfinished"
        at_work = trial(jobs.suggest("a"))
        assert judge.on_trial_result(None, at_work, reported(step=step)) == "CONTINUE"
        judge.on_trial_error(None, at_work)
    assert limits.study.trials()[0].state == "failed"


def test_a_trial_that_ends_ray_tune_itself_fails_the_second_time(limits, told):
    Jobs(limits).suggest("a")
    _after_crash(limits, RuntimeError("first\nit died"), told.append)
    assert limits.study.trials()[0].state == "unfinished"
    _after_crash(limits, None, told.append)
    assert limits.study.trials()[0].reason == "its process was lost: Ray Tune gave no reason"
    limits.running.clear()
    with pytest.raises(Transient, match="Ray Tune failed: it died"):
        _after_crash(limits, RuntimeError("it died"), told.append)


def test_what_follows_a_search_is_never_written_away_by_ray_tune(limits, tmp_path):
    queue = multiprocessing.get_context("spawn").Queue()
    limits.shown = queue
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(queue)
    for made in (
        Judge(limits, queue.put, TrialContext("mae", Transfer(), (), tmp_path, ())),
        Jobs(limits),
        Watch(limits),
    ):
        assert pickle.dumps(made)


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (BenchmdError("the loss became NaN"), ""),
        (ValueError("odd"), ""),
        (MemoryError(), ""),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ""),
        (DiskFull("no space left while writing x"), "trouble"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "trouble"),
        (BucketError("refused"), "trouble"),
        (OSError(errno.EIO, "Input/output error"), "lost"),
        (OSError(errno.ESTALE, "Stale file handle"), "lost"),
        (NoRoom("no node"), "lost"),
        (Gone("the weights were pruned"), "trouble"),
    ],
    ids=repr,
)
def test_what_is_wrong_around_a_trial_is_not_held_against_it(tmp_path, error, becomes):
    for folder in (tmp_path, tmp_path / "removed"):
        found = _failure_report(error, TrialContext("mae", Transfer(), (), folder, ()))
        assert [name for name in ("trouble", "lost") if found[name]] == [becomes] * bool(becomes)


def test_what_has_gone_is_gone_for_workers_too(tmp_path):
    arm = Arm("ecg", {}, updated(Settings(), {"execution": {"workers": 2}}))
    work = TrialContext("mae", Transfer(), (arm,), tmp_path, ())
    for error, becomes in ((Transient("a worker was lost"), "lost"), (Gone("pruned"), "trouble")):
        found = _failure_report(error, work)
        assert [name for name in ("trouble", "lost") if found[name]] == [becomes]
