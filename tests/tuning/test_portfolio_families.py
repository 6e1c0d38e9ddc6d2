"""What a search of several families teaches: of each family, settings that beat its own start."""

from dataclasses import replace

import pytest
from stores import EPOCHS, KERNELS, evaluated, make_search, make_trials

from benchmd_ray.settings.definition import Settings
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.gains import learned
from benchmd_ray.tuning.portfolio import SearchKind, chosen_settings
from benchmd_ray.tuning.record_form import parameter_of
from benchmd_ray.tuning.records import read_search
from benchmd_ray.tuning.spaces import Space

SCRATCH, RANDOM = "scratch finetune", "random-kernels linear"
EPOCH, KERNEL = *EPOCHS, *KERNELS
KINDS = {
    SCRATCH: SearchKind(1, "scratch", "finetune", "auroc"),
    RANDOM: SearchKind(1, "random-kernels", "linear", "auroc"),
}
FAMILIES = [
    {"technique": "scratch", "setting": "finetune-full", "space": EPOCHS, "settings": [{}]},
    {"technique": "random-kernels", "setting": "linear", "space": KERNELS, "settings": [{}]},
]


@pytest.fixture
def make(tmp_path):
    """Makes a search whose families take turns.

    Of each, the score rises with the setting by 0.1, from 0.6 (scratch) or 0.8 (random kernels):
    lowest at the start, then from the highest down.
    """

    def made(source="ptb-xl", trials=40, climbed=lambda number: 3):
        rows = []
        for number in range(trials):
            name, space = ((SCRATCH, EPOCHS), (RANDOM, KERNELS))[number % 2]
            ((setting, about),) = space.items()
            place = 0.0 if number < 2 else 1 - number // 2 / (trials // 2)
            value = int(about["low"] + place * (about["high"] - about["low"]))
            score = 0.6 + 0.2 * (number % 2) + 0.1 * place
            rows.append(
                {
                    **make_trials(1, space, name)[0],
                    **{"number": number, "state": "complete", setting: value},
                    **evaluated([score] * (10 if number == 0 else climbed(number))),
                }
            )
        about = {"modality": "ecg", "source": source, "policy": "clean", "catalog": source}
        counts = {"train": 30, "validation": 10}
        about |= {"inner": source, "records": counts, "patients": counts}
        store = tmp_path / source
        return read_search(make_search(store, rows=rows, families=FAMILIES, sources=[about]))

    return made


def of(*records):
    """What is learned from searches: settings, with their gains, by family."""
    kinds = {(record.name, name): kind for record in records for name, kind in KINDS.items()}
    portfolio = learned(records, kinds)
    return {
        name: [c for c in portfolio.candidates if c.kind == kind] for name, kind in KINDS.items()
    }


def highest(record, setting):
    """The highest values of a setting among the trials, which have the highest scores."""
    return record.trials[setting].dropna().sort_values(ascending=False).tolist()


def test_each_family_teaches_settings_above_its_own_start(make):
    """The start of the search has a lower score than all trials of the other family."""
    record = make()
    candidates = of(record)
    for name, setting in ((SCRATCH, EPOCH), (RANDOM, KERNEL)):
        (candidate,) = candidates[name]
        assert candidate.values == {setting: highest(record, setting)[0]}
        assert candidate.gain == pytest.approx(0.095)


def test_each_search_teaches_of_its_dataset(make):
    candidates = of(make("ptb-xl"), make("shhs"))
    for name in (SCRATCH, RANDOM):
        assert [candidate.dataset for candidate in candidates[name]] == ["ptb-xl", "shhs"]


@pytest.mark.parametrize("climbed", [1, 3])
def test_trials_that_climbed_teach_and_all_where_none_did(make, climbed):
    """The start always climbs, which says nothing of the others."""
    record = make(climbed=lambda number: climbed if number in (20, 21, 22, 23) else 1)
    candidates = of(record)
    for name, setting, numbers in ((SCRATCH, EPOCH, (20, 22)), (RANDOM, KERNEL, (21, 23))):
        values = {candidate.values[setting] for candidate in candidates[name]}
        of_numbers = record.trials.set_index("number")[setting]
        expected = of_numbers[[*numbers]].max() if climbed > 1 else highest(record, setting)[0]
        assert values == {expected}


def test_lent_settings_and_failed_trials_teach_nothing(make):
    record = make()
    number, state = record.trials["number"], record.trials["state"]
    failed = record.trials.assign(state=state.where((number < 2) | (number > 5), "failed"))
    for other in (replace(record, borrowed=4), replace(record, trials=failed)):
        candidates = of(other)
        for name, setting in ((SCRATCH, EPOCH), (RANDOM, KERNEL)):
            (candidate,) = candidates[name]
            assert candidate.values[setting] not in highest(record, setting)[:1]


def test_a_family_without_a_scored_start_or_with_few_trials_teaches_nothing(make):
    record = make()
    number = record.trials["number"]
    failed = record.trials.assign(
        state=record.trials["state"].where(number != 1, "failed"),
        value=record.trials["value"].where(number != 3, 0.5),  # not to be taken for the start
    )
    for trials in (failed, record.trials[(number % 2 == 0) | (number < 14)]):
        candidates = of(replace(record, trials=trials))
        assert candidates[SCRATCH]
        assert not candidates[RANDOM]


def test_a_search_takes_what_its_families_can_use(make):
    """A family that it does not have is skipped, and two families of a kind both try settings."""
    record = make()
    portfolio = learned([record], {(record.name, name): kind for name, kind in KINDS.items()})
    kernels = Space("made", tuple(parameter_of(*entry) for entry in KERNELS.items()))
    mine = Family("random-kernels", "linear", kernels, (Settings(),))
    few = replace(mine, setting="linear-small", technique="my_kernels:Kernels")
    kinds = {family.name: KINDS[RANDOM] for family in (mine, few)}
    asked = []

    def usable(dataset):
        asked.append(dataset)
        return True

    settings = chosen_settings(portfolio, kinds, (mine, few), usable)
    best = [s.values[KERNEL] for s in settings if s.family == mine.name]
    assert {s.family for s in settings} == {*kinds}
    assert [s.family for s in settings][:2] == [mine.name, few.name]
    assert best == highest(record, KERNEL)[:1]
    other = {mine.name: replace(KINDS[RANDOM], axes=3)}
    asked.clear()
    assert chosen_settings(portfolio, other, (mine,), usable) == ()
    assert asked == []
