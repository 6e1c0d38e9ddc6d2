"""The budget of a search: how much explores, how much climbs, and when it ends."""

import math

import pytest
from racing_alone import raced

from benchmd_ray.console.progress import Display
from benchmd_ray.errors import BenchmdError
from benchmd_ray.settings.definition import Settings
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study

SPACE = Space("made", (Parameter("transfer.optimiser.lr", "log float", 1e-3, low=1e-5, high=0.1),))
FAMILY = Family("mae", "linear", SPACE, (Settings(),))


@pytest.fixture
def make(tmp_path):
    """Opens a study; of the same name, the same one again."""

    def opened(name="study"):
        return Study(tmp_path / f"{name}.log", [FAMILY], Method(sampler="random"))

    return opened


def score(number, values, evaluation):
    return 0.7 + 0.01 * ((7 * number + 3 * evaluation) % 11)


def counts(study):
    return [len(trial.evaluations) for trial in study.trials()]


@pytest.mark.parametrize(
    ("evaluations", "trials"), [(1, 1), (3, 3), (9, 9), (10, 5), (21, 10), (40, 20)]
)
def test_half_of_the_evaluations_explores_unless_they_are_few(make, evaluations, trials):
    study = make()
    raced(study, Budget(trials=None, evaluations=evaluations), score)
    assert study.begun == trials
    # A last one is left over if the start would have it without another trial.
    assert sum(counts(study)) in (evaluations - 1, evaluations)


def test_of_trials_only_the_best_get_ten_evaluations(make):
    study = make()
    raced(study, Budget(trials=12), score)
    assert sorted(counts(study), reverse=True) == [*[10] * 4, *[1] * 8]


@pytest.mark.parametrize("unit", ["evaluations", "device_hours"])
def test_a_budget_of_trials_too_ends_exploring_and_the_rest_climbs(make, unit):
    study = make()
    raced(study, Budget(trials=4, **{unit: 30 if unit == "evaluations" else 30 / 3600}), score)
    assert study.begun == 4
    assert sum(counts(study)) == 30


def test_half_of_the_hours_explores(make):
    study = make()
    limits = raced(study, Budget(trials=None, device_hours=20 / 3600), score)
    assert study.begun == 10
    assert limits.device_hours == pytest.approx(20 / 3600)
    assert max(counts(study)) > 1


def test_by_the_clock_exploring_ends_at_half_of_the_hours(make):
    study = make()
    for worked, exploring in ((4.99, True), (5.01, False)):
        budget, place = Budget(trials=None, hours=10.0), Place(1.0, 0.0, 2)
        limits = Limits(study, budget, place, lambda: False, Display(), worked=3600 * worked)
        assert limits.exploring is exploring
        assert not limits.out_of_time
    late = Limits(study, budget, place, lambda: False, Display(), worked=36001.0)
    assert late.out_of_time
    assert late.next_job() is None


def test_exploring_that_has_ended_stays_so_unless_the_budget_grows(make):
    study = make()
    raced(study, Budget(trials=6), score)
    before = counts(study)
    raced(study, Budget(trials=6), score)
    raced(study, Budget(trials=4), score)
    assert (study.begun, counts(study)) == (6, before)
    raced(study, Budget(trials=9), score)
    assert study.begun == 9
    assert [after >= count for after, count in zip(counts(study), before, strict=False)] == [
        True
    ] * 6


def test_more_evaluations_continue_a_ladder(make):
    study, whole = make(), make("whole")
    for evaluations in (12, 13, 30, 30):
        raced(study, Budget(trials=6, evaluations=evaluations), score)
    raced(whole, Budget(trials=6, evaluations=30), score)
    assert counts(study) == counts(whole)


def test_a_search_whose_start_failed_ends(make):
    """In its first evaluation or a later one: nothing can be compared with it."""
    for last in (0, 2):

        def lost(number, values, evaluation, last=last):
            return math.nan if (number, evaluation) == (0, last) else 0.7

        study = make(f"lost-{last}")
        raced(study, Budget(trials=6), lost)
        assert study.hopeless
        assert study.best() is None
        assert study.begun == (1 if last == 0 else 6)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"trials": None}, "the search has no budget"),
        ({"trials": 0}, "--trials is 0, expected a number above 0"),
        ({"hours": math.nan}, "--hours is nan"),
        ({"device_hours": -1.0}, "--device-hours is -1"),
        ({"evaluations": 10**6}, "--evaluations is 1000000, expected 100,000 at most"),
    ],
)
def test_a_budget_that_is_none_is_refused(budget, message):
    with pytest.raises(BenchmdError, match=message):
        Budget(**budget)
