import multiprocessing
import pickle

import pytest
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from benchmd_ray.errors import Transient
from benchmd_ray.progress import SilentBoard
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.ray_tune import LOSSES, Jobs, Judge, Watch
from benchmd_ray.tuning.search import _after_crash
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.trial import Transfer, Work

SPACE = Space("made", (Parameter("transfer.optimiser.lr", "log float", 1e-3, low=1e-5, high=0.1),))


@pytest.fixture
def limits(tmp_path):
    study = Study(tmp_path / "study.log", SPACE, Method(sampler="random", stopping="none"))
    return Limits(study, Budget(trials=3), Place(1.0, 0.0, 1), lambda: False, SilentBoard())


@pytest.fixture
def told():
    return []


@pytest.fixture
def judge(limits, told, tmp_path):
    work = Work("mae", Transfer(), (), tmp_path, ())
    work.trial_folder(0).mkdir(parents=True)
    return Judge(limits, told.append, work)


def trial(proposal, failures=0, last=None):
    made = Trial("made", config=dict(proposal), stub=True)
    made.run_metadata.num_failures, made.run_metadata.last_result = failures, last
    return made


def reported(**values):
    at = {"evaluation": 0, "step": 1, "score": 0.5, "seconds": 2.0}
    return {"failed": "", "whole": False, "complete": False, **at} | values


def test_a_trial_goes_from_proposal_to_its_end(limits, judge, told, tmp_path):
    proposal = Jobs(limits, []).suggest("a")
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
    proposals = Jobs(limits, limits.study.unfinished())
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
    jobs = Jobs(limits, [])
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
    jobs = Jobs(limits, [])
    handle = limits.study._handle(0)
    handle.set_user_attr("granted", [0, -1])  # an evaluation of the race that is being worked on
    limits.running.add(0)
    assert jobs.suggest("x") is None
    handle.set_user_attr("granted", [0])
    limits.running.clear()
    assert jobs.suggest("x")["number"] == 0


def test_a_score_of_nan_ends_a_trial_with_evaluations_to_come(limits, judge, told):
    job = Jobs(limits, []).suggest("a")
    result = reported(whole=True, **{"scores/ecg": float("nan")})
    assert judge.on_trial_result(None, trial(job), result) == "STOP"
    (known,) = limits.study.trials()
    assert (known.state, known.reason, told) == ("failed", "its score is NaN", [0])
    assert limits.trouble is None


def test_trouble_around_a_trial_is_no_failure_of_it(limits, judge, told):
    proposal = Jobs(limits, []).suggest("a")
    result = {"failed": "no space left", "trouble": True, "seconds": 1.0}
    assert judge.on_trial_result(None, trial(proposal), result) == "STOP"
    assert limits.study.trials()[0].state == "unfinished"
    assert told == []
    assert Watch(limits).stop_all()
    with pytest.raises(Transient, match=r"trial 0 could not work: no space left\. When that is"):
        raise limits.trouble


def test_an_error_of_the_driver_ends_the_search_as_what_it_is(limits, tmp_path):
    def full(number):
        raise OSError(28, "No space left on device")

    judge = Judge(limits, full, Work("mae", Transfer(), (), tmp_path, ()))
    proposal = Jobs(limits, []).suggest("a")
    result = reported(failed="the loss became NaN")
    assert judge.on_trial_result(None, trial(proposal), result) == "STOP"
    assert isinstance(limits.trouble, OSError)
    assert Jobs(limits, []).suggest("b") == Searcher.FINISHED


def test_a_process_that_is_started_again_goes_on_counting_its_seconds(limits, judge, told):
    proposal = Jobs(limits, []).suggest("a")
    lost = trial(proposal, failures=1, last={"seconds": 600.0})
    judge.on_trial_error(None, lost)
    assert lost.config["seconds"] == 600.0
    assert limits.study.trials()[0].state == "unfinished"
    judge.on_trial_error(None, trial(lost.config, failures=LOSSES, last={"seconds": 700.0}))
    (known,) = limits.study.trials()
    assert (known.state, known.seconds, told) == ("failed", 700.0, [0])


def test_a_process_that_is_started_again_does_only_what_is_left(limits, judge):
    job = limits.study.propose()
    limits.study._grant(0, limits.study.method.fresh)
    every = (0, *limits.study.method.fresh)
    at_work = trial(vars(job) | {"evaluations": every}, failures=1, last={"seconds": 3.0})
    for evaluation in (0, 5, 6):
        limits.study.evaluated(0, evaluation, {"ecg": 0.5}, 3.0)
    judge.on_trial_error(None, at_work)
    assert at_work.config["evaluations"] == (7, 8, 9)


@pytest.mark.parametrize(("slots", "hours"), [(1, 5.0), (2, 2.5), (8, 2.5)])
def test_hours_are_kept_for_the_choice_of_which_two_jobs_work_at_once(tmp_path, slots, hours):
    study = Study(tmp_path / "study.log", SPACE, Method(sampler="random", evaluations=3))
    race(study, 720.0)
    limits = Limits(
        study, Budget(hours=10.0), Place(1.0, 0.0, slots), lambda: False, SilentBoard(), 0.0
    )
    assert limits.reserve == pytest.approx(0.2 * study.method.confirming)  # of 12 minutes each
    limits.start -= 3600 * (10.0 - hours - 0.01)
    assert not limits.used
    limits.start -= 3600 * 0.02
    assert limits.used


def test_a_race_without_a_trial_above_the_start_takes_all_hours(tmp_path):
    study = Study(tmp_path / "study.log", SPACE, Method(sampler="random", evaluations=3))
    race(study, 720.0, gain=-0.1)
    devices = Place(1.0, 0.0, 2)
    limits = Limits(study, Budget(device_hours=0.7), devices, lambda: False, SilentBoard(), 0.0)
    assert not limits.used  # 0.6 are
    study.propose()
    study.evaluated(3, 0, {"ecg": 0.6}, 180.0)
    limits.look()
    assert limits.used  # what is left is for the choice
    assert not limits.spent


def test_losses_count_anew_after_a_newer_step(limits, judge):
    at_work = trial(Jobs(limits, []).suggest("a"))
    for step, losses in ((1, 0), (1, 1), (2, 0), (2, 1)):  # a checkpoint's step comes again
        assert judge.on_trial_result(None, at_work, reported(step=step)) == "CONTINUE"
        assert at_work.num_failures == losses
        at_work.run_metadata.num_failures = 1


def test_a_trial_that_ends_ray_tune_itself_fails_the_second_time(limits, told):
    Jobs(limits, []).suggest("a")
    _after_crash(limits, RuntimeError("first\nit died"), told.append)
    assert limits.study.trials()[0].state == "unfinished"
    _after_crash(limits, None, told.append)
    assert limits.study.trials()[0].reason == "its process was lost: no word of it"
    limits.running.clear()
    with pytest.raises(Transient, match="Ray Tune failed: it died"):
        _after_crash(limits, RuntimeError("it died"), told.append)


def test_what_follows_a_search_is_never_written_away_by_ray_tune(limits, tmp_path):
    queue = multiprocessing.get_context("spawn").Queue()
    limits.shown = queue
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(queue)
    for made in (
        Judge(limits, queue.put, Work("mae", Transfer(), (), tmp_path, ())),
        Jobs(limits, []),
        Watch(limits),
    ):
        assert pickle.dumps(made)
