"""What is learned of the finished searches of a store, and used by the next ones."""

import math
from dataclasses import replace

import pytest
from click.testing import CliRunner
from stores import evaluated, make_ladder, make_search, make_trials, search_name

from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import digest
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.learning import learned_in
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.service.simulate import Resources
from benchmd_ray.service.tune_dry_run import estimate_searches
from benchmd_ray.settings.definition import Settings
from benchmd_ray.storage.bucket import open_bucket
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.gains import learned
from benchmd_ray.tuning.portfolio import (
    Candidate,
    Portfolio,
    SearchKind,
    chosen_settings,
    read_portfolio,
    write_portfolio,
)
from benchmd_ray.tuning.records import read_searches
from benchmd_ray.tuning.spaces import Parameter, Space

LR = "transfer.optimiser.lr"
KIND = SearchKind(1, "pretrained", "linear", "auroc")


def made(store, source, modality, top, name, **more):
    """A search whose score falls with the distance of the learning rate from ``top``."""
    rows = []
    for row in make_trials(24):
        if row["number"] == 0:
            row[LR] = 1e-5
        value = 0.8 - 0.05 * abs(math.log10(row[LR] / top))
        rows.append({**row, "state": "complete", **evaluated([value] * 3)})
    about = {
        **{"modality": modality, "source": source, "policy": "clean", "catalog": "a", "inner": "b"},
        "records": {"train": 30, "validation": 10},
        "patients": {"train": 30, "validation": 10},
    }
    make_search(store, search_name(name), rows=rows, sources=[about], **more)


def kinds_of(record):
    """The kind of each family of a search."""
    return {(record.name, family.name): KIND for family in record.families}


@pytest.fixture
def store(tmp_path):
    made(tmp_path, "ptb-xl", "ecg", 1e-2, "tune-a")
    made(tmp_path, "shhs", "eeg", 3e-4, "tune-b")
    made(tmp_path, "mimic-cxr", "cxr", 1e-3, "tune-c")
    return tmp_path


def test_the_best_settings_of_each_search_are_learned_with_their_gain(store):
    portfolio = learned_in([store])
    records = {one.sources[0]["source"]: one for one in read_searches([store]).found}
    assert {c.dataset for c in portfolio.candidates} == {"ptb-xl", "shhs", "mimic-cxr"}
    for candidate in portfolio.candidates:
        trials = records[candidate.dataset].trials
        best = trials.loc[trials["value"].idxmax()]
        assert candidate.values[LR] == best[LR]
        assert candidate.gain == pytest.approx(best["value"] - trials["value"][0], abs=1e-5)
        assert candidate.gain > 0.03
    gains = [candidate.gain for candidate in portfolio.candidates]
    assert gains == sorted(gains, reverse=True)
    assert {c.dataset for c in portfolio.candidates if c.kind == KIND} == {"ptb-xl", "shhs"}
    assert {c.kind.axes for c in portfolio.candidates if c.dataset == "mimic-cxr"} == {2}


def test_searches_on_files_that_no_card_names_are_learned_from(store):
    made(store, "pneumoniamnist-unofficial", "medmnist-2d", 1e-3, "tune-d")
    images = {c.dataset for c in learned_in([store]).candidates if c.kind.axes == 2}
    assert images == {"mimic-cxr", "pneumoniamnist-unofficial"}


def test_the_command_learns_and_a_plan_uses_it(store, write_manifest):
    done = CliRunner().invoke(main, ["tune", "--learn", str(store)])
    assert done.exit_code == 0, done.output
    path = store / "portfolio.json"
    portfolio = read_portfolio(path)
    assert portfolio == learned_in([store])
    names = []
    for given in (portfolio, Portfolio()):
        choice = Choice((write_manifest("ptb-xl"),))
        tuning = Tuning(choice, ("mae",), ("linear",), portfolio=given)
        (plan,) = planned_searches(tuning, gpu=False)
        names.append(plan.name)
        first = [one.values[LR] for one in plan.portfolio]
        assert all("ptb-xl" not in one.datasets for one in plan.portfolio)
        own = [c.values[LR] for c in portfolio.candidates if c.dataset == "ptb-xl"]
        assert not set(first) & set(own)
        assert bool(first) == (given is portfolio)
    assert names[0] != names[1]  # what is tried first decides a search
    made = Tuning(choice, ("mae",), ("linear",), portfolio=portfolio)
    said = "\n".join(estimate_searches([made], store, Resources(1, 0), tflops=0.1)[0].lines())
    assert "First, after the starts: 1 setting learned on shhs." in said


def test_what_searches_on_s3_found_is_learned_into_the_bucket(store, s3, tmp_path, monkeypatch):
    bucket = open_bucket(f"{s3}/study")
    for path in store.rglob("*"):
        if path.is_file():
            bucket.write(path.relative_to(store).as_posix(), path.read_bytes())
    monkeypatch.setenv("BENCHMD_CACHE", str(tmp_path / "cache"))
    done = CliRunner().invoke(main, ["tune", "--learn", f"{s3}/study"])
    assert done.exit_code == 0, done.output
    assert f"{s3}/study/portfolio.json" in done.output
    (tmp_path / "copy.json").write_bytes(bucket.read("portfolio.json").data)
    assert read_portfolio(tmp_path / "copy.json") == learned_in([store])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dry-run"], "--learn does not search"),
        (["--catalog", "catalogs"], "--learn does not search"),
        (["--trials", "9"], "--learn does not search: use it without --trials"),
    ],
)
def test_learning_takes_no_search(store, arguments, said):
    done = CliRunner().invoke(main, ["tune", "--learn", str(store), *arguments])
    assert done.exit_code == 2
    assert said in done.output


def test_a_portfolio_of_many_searches_can_be_read_again(tmp_path):
    values = {f"transfer.augmentation.some_long_name_{n}": 0.123456 for n in range(20)}
    many = tuple(Candidate(f"dataset-{n % 20}", KIND, values, 0.01) for n in range(60))
    portfolio = Portfolio(candidates=many, sketches={c.dataset: "" for c in many})
    write_portfolio(tmp_path / "portfolio.json", portfolio)
    assert read_portfolio(tmp_path / "portfolio.json") == portfolio


def test_what_a_portfolio_gave_is_not_learned_again(store):
    """It would come back to its own dataset by way of another."""
    (record,) = (one for one in read_searches([store]).found if one.sources[0]["source"] == "shhs")
    kinds = kinds_of(record)
    assert len(learned([record], kinds).candidates) == 1
    assert not learned([replace(record, borrowed=24)], kinds).candidates
    best = record.trials.sort_values("value")["number"].iloc[-1]
    values = [c.values[LR] for c in learned([replace(record, borrowed=best)], kinds).candidates]
    assert values
    assert record.trials.set_index("number")[LR][best - 1 if best > 1 else best] not in values


def test_trials_with_more_evaluations_are_learned_before_lucky_ones(store):
    (record,) = (one for one in read_searches([store]).found if one.sources[0]["source"] == "shhs")
    ranked = record.trials.sort_values("value", ascending=False)["number"]
    lucky = record.trials["number"].isin(ranked[:6])
    few = record.trials.assign(evaluations=record.trials["evaluations"].where(~lucky, 1))
    candidates = learned([replace(record, trials=few)], kinds_of(record)).candidates
    assert candidates
    assert not {c.values[LR] for c in candidates} & {*record.trials[LR][lucky]}


def test_each_family_of_a_search_is_learned_of_for_its_kind(tmp_path):
    make_search(tmp_path, search_name("tune-many"), **make_ladder(60))
    (record,) = read_searches([tmp_path]).found
    portfolio = learned_in([tmp_path])
    by_kind = {(c.kind.technique, c.kind.mode): c for c in portfolio.candidates}
    assert ("random-kernels", "linear") in by_kind
    assert by_kind.keys() <= {
        ("scratch", "finetune"),
        ("random-kernels", "linear"),
        ("pretrained", "linear"),
    }
    for (technique, _), candidate in by_kind.items():
        name = {"scratch": "scratch finetune", "pretrained": "mae linear"}
        family = next(
            f for f in record.families if f.name == name.get(technique, "random-kernels linear")
        )
        assert candidate.values.keys() <= family.space.keys()


def test_nor_what_comes_near_to_it_by_way_of_another_dataset(store):
    """A search goes on near what it was given, and so do the searches that learn from it."""
    (record,) = (one for one in read_searches([store]).found if one.sources[0]["source"] == "shhs")
    portfolio = learned([replace(record, lenders={"ptb-xl": ""})], kinds_of(record))
    assert {portfolio.origins(one.dataset) for one in portfolio.candidates} == {("ptb-xl", "shhs")}
    space = Space("made", (Parameter(LR, "log float", 1e-2, low=1e-5, high=0.1),))
    family = Family("mae", "linear", space, (Settings(),))

    def given(own):
        kinds = {family.name: KIND}
        return chosen_settings(portfolio, kinds, [family], lambda name: name != own)

    assert given("sleep-edf")
    assert not given("ptb-xl")


def test_what_is_skipped_is_told(store, tmp_path):
    (path,) = (tmp_path / "searches").glob("tune-a*/trials.parquet")
    path.write_bytes(b"cut off")
    done = CliRunner().invoke(main, ["tune", "--learn", str(store)])
    assert done.exit_code == 0, done.output
    assert "skipped: " in done.output
    assert "trials.parquet" in done.output


def test_a_search_with_a_value_that_its_space_does_not_have_is_skipped(store):
    datasets = {c.dataset for c in learned_in([store]).candidates}
    rows = [row | {"transfer.optimiser.schedule": "evil:Net"} for row in make_trials(24)]
    make_search(store, search_name("tune-d"), rows=rows)
    notes = []
    assert {c.dataset for c in learned_in([store], notes.append).candidates} == datasets
    (note,) = notes
    assert "a trial has transfer.optimiser.schedule 'evil:Net', expected one of" in note


def test_what_was_learned_on_a_target_or_its_origin_is_not_used(store, write_manifest):
    """Its patients would have a say in settings that are scored on them."""
    made(store, "nih-cxr-ap", "cxr", 1e-3, "tune-d")
    portfolio = learned_in([store])
    source, target = write_manifest("vindr-mammo"), write_manifest("nih-cxr-pa")
    same = replace(portfolio, candidates=tuple(c for c in portfolio.candidates if c.kind.axes == 2))

    def given(*catalogs):
        tuning = Tuning(Choice(catalogs), ("mae",), ("linear",), portfolio=same)
        return {
            (plan.sources[0].name, name)
            for plan in planned_searches(tuning, gpu=False)
            for one in plan.portfolio
            for name in one.datasets
        }

    assert ("mimic-cxr", "nih-cxr-ap") in given(write_manifest("mimic-cxr"))
    assert not given(write_manifest("mimic-cxr"), target)
    both = given(source, write_manifest("mimic-cxr"), target)
    assert {sought for sought, _ in both} == {"vindr-mammo"}  # whose targets are others


def test_a_search_without_a_result_is_not_learned_from(store, tmp_path):
    for path in (tmp_path / "searches").glob("tune-a*/result.json*"):
        path.unlink()
    assert "ptb-xl" not in {c.dataset for c in learned_in([store]).candidates}


def test_a_search_whose_start_was_tuned_is_not_learned_from(store):
    """It looks near that start, which may have been tuned on what is tuned next."""
    made(store, "isic-2017", "derm", 1e-2, "tune-d", start=Settings(tuned="tune-b"))
    told = []
    datasets = {c.dataset for c in learned_in([store], told.append).candidates}
    assert datasets == {"ptb-xl", "shhs", "mimic-cxr"}
    (text,) = told
    assert "skipped tune-d-" in text
    assert "its start was tuned" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["\x1b]0;one", 3, {"a": 1}])
def test_a_search_that_was_given_what_has_no_plain_name_is_skipped(store, name):
    held = learned_in([store])
    given = {"portfolio": [{"family": "mae linear", "values": {LR: 0.1}, "datasets": [name]}]}
    make_search(store, f"tune-d-{digest(given)[:12]}", determinants=given)
    told = []
    assert learned_in([store], told.append) == held
    (text,) = told
    assert "portfolio[0].datasets[0] is " in text
    assert text.isprintable()


def test_a_folder_with_a_name_that_cannot_be_shown_is_skipped(store):
    folder = store / "searches" / "tune-\x1b]0;x"
    folder.mkdir()
    (folder / "search.json").write_text("{}")
    told = []
    learned_in([store], told.append)
    (text,) = told
    assert "is not a name of a search" in text
    assert text.isprintable()


def test_a_portfolio_that_could_not_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmd_ray.tuning.portfolio.MAX_JSON_BYTES", 40)
    with pytest.raises(BenchmdError, match=r"the portfolio has .* bytes, expected 40 at most"):
        write_portfolio(tmp_path / "portfolio.json", Portfolio())
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_learned_from_is_refused(tmp_path):
    absent = CliRunner().invoke(main, ["tune", "--learn", str(tmp_path / "typo")])
    assert absent.exit_code == 2
    assert f"--learn: there is no store {tmp_path / 'typo'}" in absent.output
    rows = make_trials(3)
    make_search(tmp_path, rows=rows)
    with pytest.raises(BenchmdError, match="nothing can be learned from 1 search of"):
        learned_in([tmp_path])
