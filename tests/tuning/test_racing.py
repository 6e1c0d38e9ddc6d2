"""Racing and the choice at the end of it, on scores that a formula gives."""

import math

import numpy as np
import pytest
from racing_alone import Killed, raced
from scipy import stats
from sklearn.metrics import roc_auc_score

from benchmd_ray.files.integrity import Damaged
from benchmd_ray.scores.comparison import delong_shares
from benchmd_ray.tuning.confirm import (
    SamplingVariance,
    corrected,
    decided,
    level_of,
    share,
)
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.racing import (
    paired,
    promoted,
    rungs,
    standard_error,
    steps_within,
    usual_evaluations,
)
from benchmd_ray.tuning.sampling import sampling_of
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study

LR = "transfer.optimiser.lr"
SPACE = Space(
    "made",
    (
        Parameter(LR, "log float", 1e-4, low=1e-5, high=0.1),
        Parameter("transfer.optimiser.weight_decay", "float", 0.25, low=0.0, high=0.5),
        Parameter("transfer.batch_size", "choice", 32, values=(16, 32, 64)),
    ),
)
RATIO = 0.25


@pytest.fixture
def make(tmp_path):
    def opened(name="study", **method):
        named = {"sampler": "random", "evaluations": 9} | method
        return Study(tmp_path / f"{name}.log", SPACE, Method(**named))

    return opened


# How often a trial is evaluated.


@pytest.mark.parametrize(
    ("patients", "often"), [(1, 3), (624, 3), (4999, 3), (5000, 2), (9999, 2), (10_000, 1)]
)
def test_the_less_data_the_more_evaluations(patients, often):
    assert usual_evaluations(patients) == often


@pytest.mark.parametrize(
    ("evaluations", "found"),
    [(1, (1,)), (3, (1, 3)), (5, (1, 5)), (8, (1, 3, 8)), (10, (1, 3, 10)), (20, (1, 3, 9, 20))],
)
def test_rungs_are_powers_of_three_and_the_end(evaluations, found):
    assert rungs(evaluations) == found


@pytest.mark.parametrize("most", [1, 2, 3, 5, 20, 26, 27, 100, 100_000])
def test_steps_within_are_a_ninth_and_a_third_of_the_most(most):
    found = steps_within(most)
    assert found == tuple(s for s in (most // 9 or 1) * np.array([1, 3]) if s < most)


# What trials are worth.


@pytest.mark.parametrize("seed", range(3))
def test_trials_of_unequal_evaluations_are_compared_where_the_start_was_too(seed):
    """Folds differ far more than trials; the value finds the trial's gain all the same."""
    generator = np.random.default_rng(seed)
    folds = generator.normal(0.8, 0.1, 9)
    start = dict(enumerate(folds))
    for gain in (-0.02, 0.0, 0.03):
        for count in (1, 3, 9):
            own = {e: folds[e] + gain for e in range(count)}
            assert paired(own, start) == pytest.approx(folds.mean() + gain)
    assert paired({0: 0.7, 1: 0.9}, {}) == pytest.approx(0.8)
    assert paired({0: 0.7, 1: 0.9}, {1: 0.8}) == pytest.approx(0.8 + 0.1)


def test_the_standard_error_is_scipys():
    scores = [0.7, 0.75, 0.81, 0.66]
    assert standard_error(scores) == pytest.approx(stats.sem(scores))
    assert math.isnan(standard_error([0.7]))


def slow_promotion(goodness, granted, rung):
    """By the definition: of those among the best third and not yet granted more, the best."""
    third = len(goodness) // 3
    ranked = sorted(goodness, key=lambda n: (goodness[n], -n), reverse=True)
    return next((n for n in ranked[:third] if granted[n] == rung), None)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_third_earns_more(seed):
    generator = np.random.default_rng(seed)
    numbers = list(map(int, generator.permutation(12)[: generator.integers(0, 12)]))
    goodness = {n: float(generator.integers(0, 6)) for n in numbers}
    granted = {n: int(generator.choice([3, 9])) for n in numbers}
    assert promoted(goodness, granted, 3) == slow_promotion(goodness, granted, 3)


def test_a_race_gives_evaluations_to_the_best_and_never_compares_unequal_ones(make):
    """Trials differ by little, and folds by more."""
    generator = np.random.default_rng(0)
    folds, gains = generator.normal(0.0, 0.2, 40), generator.permutation(28) / 1000
    study = make(choosing="highest")

    def score(number, values, evaluation):
        return 0.7 + folds[evaluation] + gains[number]

    raced(study, 28, score)
    trials = study.trials()
    counts = [len(trial.evaluations) for trial in trials]
    assert counts[0] == 9  # the start, as others have so many
    assert sum(counts) <= 1.6 * (28 + 28 / 3 * 2 + 28 / 9 * 6)
    for trial in trials:
        assert [e for e, _ in trial.evaluations] == list(range(len(trial.evaluations)))
        gain = gains[trial.number] - gains[0]
        assert trial.score == pytest.approx(trials[0].score + gain)
    assert study.best().number == gains.argmax()
    assert {trial.state for trial in trials} == {"complete", "stopped"}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_killed_and_resumed_equals_undisturbed(make, sampler):
    generator = np.random.default_rng(3)
    noise = generator.normal(0.0, 0.05, (40, 60))

    def score(number, values, evaluation):
        return 0.8 - 0.05 * abs(math.log10(values[LR]) + 2) + noise[number, evaluation]

    whole = make("whole", sampler=sampler)
    raced(whole, 14, score)
    pieces, kills = make("pieces", sampler=sampler), 0
    while True:
        try:
            raced(pieces, 14, score, kill_after=int(generator.integers(1, 9)))
            break
        except Killed:
            kills += 1
            pieces = make("pieces", sampler=sampler)
    assert kills > 5

    def found(study):
        return [
            (
                t.number,
                t.state,
                dict(t.values),
                t.score,
                t.evaluations,
                t.fresh,
                t.tested,
                t.seconds,
            )
            for t in study.trials()
        ]

    assert found(pieces) == found(whole)
    assert pieces.decision(RATIO) == whole.decision(RATIO)
    assert whole.decision(RATIO).finalists


def test_more_trials_extend_a_race(make):
    noise = np.random.default_rng(5).normal(0.0, 0.05, (40, 60))

    def score(number, values, evaluation):
        return 0.8 - 0.05 * abs(math.log10(values[LR]) + 2) + noise[number, evaluation]

    study = make()
    raced(study, 8, score)
    before = {t.number: (t.evaluations, t.fresh) for t in study.trials()}
    tested = [t.tested for t in study.trials()]
    raced(study, 20, score)
    assert study.begun == 20
    for trial in study.trials()[:8]:
        evaluations, fresh = before[trial.number]
        assert trial.evaluations[: len(evaluations)] == evaluations
        assert trial.fresh[: len(fresh)] == fresh
    confirmed = [t.number for t in study.trials() if t.fresh]
    assert study.finalists((20, None, None))[0] in confirmed
    places = [t.tested for t in study.trials()]
    before = zip(places[: len(tested)], tested, strict=True)
    assert all(now == then for now, then in before if then)
    assert max(places) > max(tested) > 0
    assert sorted(filter(None, places)) == list(range(1, len(confirmed)))


def test_in_an_extended_search_others_have_their_turn(make):
    """Trial 4 was the best of the race and is not shown to be better, so that 9 was never tried."""

    def score(number, values, evaluation):
        noise = 0.002 * ((7 * number + 3 * evaluation) % 5)
        gain = {4: 0.3 if evaluation < 10 else 0.002, 9: 0.1}.get(number, -0.1 * (number > 0))
        return 0.6 + gain + noise

    study = make()
    raced(study, 8, score)
    assert [t.number for t in study.trials() if t.fresh] == [0, 4]
    assert study.decision(RATIO).number == 0
    raced(study, 12, score)
    tested = {t.number: (t.tested, len(t.fresh)) for t in study.trials() if t.fresh}
    assert tested[4] == (1, 10)
    assert tested[9][0] == 2
    assert study.decision(RATIO).number == 9
    assert not study.undecided((12, None, None))


def test_a_race_that_is_over_goes_on_only_with_more(make):
    study = make()
    raced(study, 8, lambda number, values, evaluation: 0.7 + 0.01 * number)
    over = {(8, None, None): True, (7, None, None): True, (8, 2.0, None): True}
    over |= {(9, None, None): False, (None, 2.0, None): False}
    for budget, expected in over.items():
        assert study.race_is_over(budget) is expected
    before = [t.fresh for t in study.trials()]
    raced(study, 7, lambda number, values, evaluation: 0.7)
    assert [t.fresh for t in study.trials()] == before


@pytest.mark.parametrize("budget", [["much", None, None], [[], None, None], 3])
def test_a_budget_that_no_search_writes_is_damage(make, budget):
    study = make()
    study.propose()
    study._study.set_user_attr("over", {"budget": budget, "settled": []})
    with pytest.raises(Damaged, match=r"study\.log"):
        make()


def test_a_start_that_is_late_gets_what_others_have(make):
    """With several slots they may end before it; else the most evaluated would be the best."""
    study = make(stopping="racing")
    for _ in range(5):
        study.propose()
    for number in range(1, 5):
        study.evaluated(number, 0, {"ecg": 0.6 + 0.01 * number}, 1.0)
    job = study.promote()
    assert (job.number, job.evaluations) == (4, (1, 2))
    for each in job.evaluations:
        study.evaluated(4, each, {"ecg": 0.5}, 2.0)
    assert study.promote() is None
    study.evaluated(0, 0, {"ecg": 0.55}, 1.0)
    job = study.promote()
    assert (job.number, job.evaluations) == (0, (1, 2))
    for each in job.evaluations:
        study.evaluated(0, each, {"ecg": 0.7}, 2.0)
    assert study.best().number == 0


# The choice.


def test_finalists_are_evaluated_on_cuts_that_the_race_did_not_see():
    for evaluations, often in ((1, 5), (2, 10), (3, 10), (8, 10), (10, 10), (12, 10), (50, 10)):
        fresh = Method(evaluations=evaluations).fresh
        assert len(fresh) == often
        assert [len(batch) for batch in Method(evaluations=evaluations).batches] == [5] * (
            len(fresh) // 5
        )
        assert fresh[0] % 5 == 0
        assert fresh[0] // 5 > (evaluations - 1) // 5


@pytest.mark.parametrize("seed", range(5))
def test_a_bound_is_that_of_the_corrected_resampled_t_test(seed):
    generator = np.random.default_rng(seed)
    start, one, two = generator.normal([[0.8], [0.83], [0.82]], 0.02, (3, 10))
    keyed = {n: dict(enumerate(scores)) for n, scores in ((4, one), (7, two))}
    found = decided(dict(enumerate(start)), keyed, RATIO, {4: 0.0084, 7: 0.028})
    for finalist in found.finalists:
        differences = {4: one, 7: two}[finalist.number] - start
        error = math.sqrt((1 / 10 + RATIO) * differences.var(ddof=1))
        p = 1 - stats.t.cdf(differences.mean() / error, 9)
        assert (finalist.low > 0) == (p < {7: 0.028, 4: 0.0084}[finalist.number])
        assert finalist.difference == pytest.approx(differences.mean())
    chosen = [f.number for f in found.finalists if f.low > 0]
    assert found.number == (chosen[0] if chosen else 0)


def test_where_the_best_is_not_above_the_start_on_the_first_cut_the_next_has_its_turn(make):
    """Trial 4 was the best in the race only; trial 2, which is better, has its turn after it."""

    def score(number, values, evaluation):
        gain = {2: 0.1, 4: 0.15 if evaluation < 10 else -0.05}.get(number, -0.1 * (number > 0))
        return 0.7 + gain + 0.001 * ((7 * number + evaluation) % 5)

    study = make()
    raced(study, 6, score)
    fresh = {trial.number: len(trial.fresh) for trial in study.trials() if trial.fresh}
    assert fresh == {0: 10, 2: 10, 4: 5}
    decision = study.decision(RATIO)
    assert decision.number == 2
    assert [one.number for one in decision.finalists] == [2, 4]


def test_a_finalist_stays_one_while_it_is_evaluated_again(make):
    """With two slots, else another one would take the second."""
    study = make(evaluations=3)
    raced_alone = [0.7, 0.9, 0.85, 0.8, 0.6]
    for number, score in enumerate(raced_alone):
        study.propose()
        study.evaluated(number, 0, {"ecg": score}, 1.0)
    finalists = study.finalists()
    assert finalists == (1, 2, 3)
    given = [study.confirm(), study.confirm()]
    assert [job.number for job in given] == [0, 1]
    assert study.finalists() == finalists
    assert study.confirm() is None
    for job in given:
        for each in job.evaluations:
            study.evaluated(job.number, each, {"ecg": 0.7}, 2.0)
    assert study.confirm().number == 2  # the first was not above the start
    assert [trial.tested for trial in study.trials()] == [0, 1, 2, 0, 0]


def test_a_stop_is_remembered_wherever_a_process_was_killed(make, tmp_path):
    """A stop and what it rests on are one line of the journal."""
    study = make()
    for number in range(6):
        study.propose()
        study.reported(number, 1, 0.9 - 0.1 * number, 1.0)
    lines = (tmp_path / "study.log").read_text().splitlines(keepends=True)
    stopped = [study.reported(number, 1, 0.0, 1.0) for number in range(6)]
    assert stopped == [False, False, False, True, True, True]
    for count in range(len(lines) // 2, len(lines) + 1):
        (tmp_path / "killed.log").write_text("".join(lines[:count]))
        again = make("killed")
        for number in range(again.begun):
            assert again.reported(number, 1, 0.9 - 0.1 * number, 1.0) == stopped[number]


def test_the_level_is_shared_by_however_many_are_compared_and_looks_at_them():
    assert sum(map(share, range(1, 100))) == pytest.approx(1.0)
    assert [share(place) for place in (1, 2, 3)] == pytest.approx([0.7, 0.21, 0.063])
    looks = [level_of(place, seen, 2) for place in range(1, 100) for seen in (1, 2)]
    assert sum(looks) == pytest.approx(0.05)
    assert sum(level_of(place, 1, 1) for place in range(1, 100)) == pytest.approx(0.05)
    assert level_of(1, 1, 2) == pytest.approx(0.007)


def test_the_start_is_kept_where_nothing_is_better(make):
    study = make()
    raced(study, 6, lambda number, values, evaluation: 0.8 - number / 100)
    assert study.finalists() == ()
    assert all(not trial.fresh for trial in study.trials())
    assert study.decision(RATIO) is None


def test_a_search_whose_start_failed_ends(make):
    """In the race, or where it is evaluated again: nothing can be compared with it."""
    for last in (0, 2, 12):

        def score(number, values, evaluation, last=last):
            lost = number == 0 and evaluation == last
            return math.nan if lost else 0.7 + 0.01 * number + 0.001 * (evaluation % 3)

        study = make(f"lost-{last}")
        raced(study, 9, score)
        assert study.trials()[0].state == "failed"
        assert study.finalists() == ()
        assert study.decision(RATIO) is None
        assert study.begun == {0: 1, 2: 3, 12: 9}[last]


def test_a_finalist_that_failed_is_not_chosen(make):
    def score(number, values, evaluation):
        lost = number == 5 and evaluation == 16
        return math.nan if lost else 0.7 + 0.1 * (number == 5) + 0.001 * ((number + evaluation) % 5)

    study = make()
    raced(study, 9, score)
    trial = study.trials()[5]
    assert (trial.state, len(trial.fresh)) == ("failed", 6)
    assert 5 not in study.confirmed()
    decision = study.decision(RATIO)
    assert decision is None or decision.number != 5


def test_a_finalist_at_work_earns_nothing_in_the_race_meanwhile(make):
    """Else two processes would do the same evaluations."""
    study = make(evaluations=3)
    raced(study, 8, lambda number, values, evaluation: 0.7 + 0.01 * (number in (3, 4)))
    third = next(trial.number for trial in study.trials()[1:] if len(trial.evaluations) == 1)
    study._grant(third, study.method.fresh[:5])
    assert study.left(third) == tuple(study.method.fresh[:5])
    study._handle(third).set_user_attr("evaluations", [[0, {"ecg": 0.9}]])
    for number in range(8, 12):
        study.propose()
        study.evaluated(number, 0, {"ecg": 0.1}, 1.0)
    assert study.promote() is None
    for each in study.left(third):
        study.evaluated(third, each, {"ecg": 0.9}, 1.0)
    assert study.promote().number == third


def test_a_choice_is_made_where_hours_ended_within_the_second_cut():
    """The start has it, the finalist has not."""
    start = {each: 0.7 + 0.01 * (each % 3) for each in range(10)}
    trial = {each: start[each] + 0.1 + 0.001 * each for each in range(5)}
    found = decided(start, {4: trial}, RATIO, {4: 0.007})
    assert found.number == 4
    assert found.start == pytest.approx(np.mean([start[each] for each in range(5)]))
    error = math.sqrt((1 / 5 + RATIO) * np.var([0.001 * each for each in range(5)], ddof=1))
    bound, gain = stats.t.ppf(1 - 0.007, 4) * error, found.expected - found.start
    cut = stats.truncnorm((bound - gain) / error, np.inf, gain, error)
    assert cut.mean() == pytest.approx(0.1 + 0.002)


def test_what_one_cut_settled_and_what_two_did_have_levels_of_their_own(make):
    """An earlier choice does not hide a better one that an extended search finds."""
    study = make(evaluations=3)
    study.judge = lambda: study.decision(RATIO)
    noise = np.random.default_rng(2).normal(0.0, 0.02, (12, 30))
    gains = {2: 0.2, 7: 0.21}

    def score(number, values, evaluation):
        wide = 4 * noise if number == 7 else noise
        return 0.7 + gains.get(number, 0.0) + wide[number, evaluation]

    raced(study, 6, score)
    assert len(study.trials()[2].fresh) == 5
    first = study.judge()
    raced(study, 10, score)
    last, trials = study.judge(), study.trials()
    assert [trials[number].tested for number in (2, 7)] == [1, 2]
    assert [len(trials[number].fresh) for number in (2, 7)] == [5, 10]
    levels = {2: 0.01 * 0.7, 7: 0.04 * 0.21}
    start = dict(trials[0].fresh)
    own = {number: dict(trials[number].fresh) for number in (2, 7)}
    race = {n: [s - dict(trials[0].evaluations)[e] for e, s in trials[n].evaluations] for n in own}
    assert first == decided(start, {2: own[2]}, RATIO, levels, None, race)
    assert last == decided(start, own, RATIO, levels, None, race)
    assert first.number == 2
    assert last.number == 7
    raced(study, 12, score)  # who had a turn has no other one
    assert [len(study.trials()[number].fresh) for number in (2, 7)] == [5, 10]


@pytest.mark.parametrize("seed", range(5))
def test_of_the_race_a_bound_takes_the_spread_and_not_the_height(seed):
    generator = np.random.default_rng(seed)
    start, trial = (dict(enumerate(row)) for row in generator.normal(0.8, 0.03, (2, 10)))
    race = generator.normal(0.0, 0.03, 4)
    sampling = {4: SamplingVariance(of_mean=1e-4, of_each=3e-4)}
    lows = [
        decided(start, {4: trial}, RATIO, {4: 0.03}, sampling, {4: race + height}).finalists[0].low
        for height in (0.0, 0.3)
    ]
    assert lows[0] == pytest.approx(lows[1])
    own = np.array(list(trial.values())) - np.array(list(start.values()))
    spread = (9 * own.var(ddof=1) + 3 * race.var(ddof=1)) / 12
    error = math.sqrt(1e-4 + max(0.0, spread - 3e-4) / 10)
    assert lows[0] == pytest.approx(own.mean() - stats.t.ppf(1 - 0.03, 12) * error)


@pytest.mark.parametrize(("true", "off"), [(0.0, 0.02), (0.02, 0.01), (0.04, 0.0), (0.08, 0.0)])
def test_a_gain_that_was_chosen_is_corrected_for_it(true, off):
    """What is above a bound is on average too high; the correction rather is too low."""
    error, bound = 0.015, 0.03
    seen = np.random.default_rng(0).normal(true, error, 20_000)
    chosen = seen[seen > bound][:400]
    found = np.array([corrected(one, error, bound) for one in chosen])
    assert (found <= chosen).all()
    assert (found >= 0).all()
    assert true - 0.01 < found.mean() < true + off
    assert found.mean() - true < 0.6 * (chosen.mean() - true)


@pytest.mark.parametrize("seed", range(5))
def test_the_correction_gives_the_mean_of_a_normal_that_is_cut_off(seed):
    generator = np.random.default_rng(seed)
    error, bound = generator.uniform(0.01, 0.02), generator.uniform(0.02, 0.04)
    difference = bound + 1.5 * error
    mean = corrected(difference, error, bound)
    assert mean > 0
    cut = stats.truncnorm((bound - mean) / error, np.inf, mean, error)
    assert cut.mean() == pytest.approx(difference)
    assert corrected(difference, 0.0, bound) == difference


def patients_of(seed, count=400):
    """Labels, and for two cuts of five folds of two halves the patients that each has."""
    generator = np.random.default_rng(seed)
    targets = (generator.random(count) < 0.4).astype(np.int8)
    cuts = []
    for _ in range(2):
        order = generator.permutation(count)
        cuts += [np.array_split(fold, 2) for fold in np.array_split(order, 5)]
    return generator, targets, cuts


def scored(generator, targets, noise):
    """Scores of a model of a given quality, that differ by training."""
    return targets + 1.2 * noise + 0.8 * generator.normal(size=len(targets))


def difference_of(targets, start, trial, halves):
    each = [
        roc_auc_score(targets[half], trial[half]) - roc_auc_score(targets[half], start[half])
        for half in halves
    ]
    return float(np.mean(each))


def shares_of(targets, start, trial, halves):
    found = {}
    for half in halves:
        each = delong_shares(targets[half, None], start[half, None], trial[half, None], half) / 2
        found |= dict(zip(np.sort(half).tolist(), each.tolist(), strict=True))
    return found


@pytest.mark.slow
def test_what_is_due_to_the_patients_is_what_other_patients_would_give():
    """Two trained models on many other samples of patients: the variance of the difference."""
    held, predicted = [], []
    for seed in range(100):
        own, targets, cuts = patients_of(seed)
        noise = own.normal(size=len(targets))  # what is hard about a patient is so for both
        start, trial = (scored(own, targets, noise) for _ in range(2))
        held.append(np.mean([difference_of(targets, start, trial, halves) for halves in cuts]))
        shares = [shares_of(targets, start, trial, halves) for halves in cuts]
        predicted.append(sampling_of(shares).of_mean)
    assert np.mean(predicted) == pytest.approx(np.var(held, ddof=1), rel=0.3)


def decisions(count, quality):
    """What is chosen of one finalist, in so many simulated confirmations with scores of records."""
    found = []
    for seed in range(count):
        generator, targets, cuts = patients_of(1000 + seed)
        noise = generator.normal(size=len(targets))
        start, trial, shares = {}, {}, []
        for number, halves in enumerate(cuts):
            begun, theirs = (scored(generator, targets, noise) for _ in range(2))
            theirs = theirs + quality * targets
            start[number] = 0.8
            trial[number] = 0.8 + difference_of(targets, begun, theirs, halves)
            shares.append(shares_of(targets, begun, theirs, halves))
        sampling = {1: sampling_of(shares)}
        with_records = decided(start, {1: trial}, RATIO, {1: 0.035}, sampling).number
        found.append((with_records, decided(start, {1: trial}, RATIO, {1: 0.035}).number))
    return np.array(found)


@pytest.mark.slow
def test_the_bound_from_scores_of_records_holds_its_level_and_finds_more():
    kept = decisions(200, 0.0)
    assert kept[:, 0].mean() <= 0.065  # 0.035, and what chance makes of 200
    gained = decisions(60, 0.45)
    assert gained[:, 0].mean() >= gained[:, 1].mean()
    assert gained[:, 0].mean() > 0.5
