"""What a benchmark from outside may declare, and what its mistakes lead to."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints, entry_points

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from stores import make_transfer, predict_all

from benchmd_ray.benchmarks.benchmd import BENCHMARK
from benchmd_ray.benchmarks.benchmd.published import unlike
from benchmd_ray.cluster.hardware import hardware
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import dataset_card, kind_of
from benchmd_ray.data.records import Record
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation import registry
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, Asked, Evaluation, Shared
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.tables import TABLES, declared
from benchmd_ray.report.write import write_tables
from benchmd_ray.runs.predictions import (
    Form,
    predictions_path,
    shared_in,
    write_predictions,
)
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.plan import make_plan
from benchmd_ray.settings.definition import Settings

CPU = hardware(Worker().device)
ECG = kind_of("ecg")


def scores(predictions, resamples):
    return pd.DataFrame(
        {
            "split": ["test"],
            "metric": ["rows"],
            "class": ["mean"],
            "value": [len(predictions.table)],
        }
    )


def compute(asked):
    return pa.table({"score": [0.5, 0.25]})


COUNTED = Evaluation(Form("counted", 1, lambda predictions: ""), compute, scores)
OTHER = replace(BENCHMARK, name="other", starts=(replace(BENCHMARK.starts[0], name="long"),))
COUNTING = replace(OTHER, evaluations=(CLASSIFICATION, COUNTED))


@pytest.fixture
def also(monkeypatch):
    """Puts benchmarks next to the package's."""
    own = registry.benchmarks()

    def put(*made):
        found = own | {each.name: each for each in made}
        monkeypatch.setattr(registry, "_found", lambda named: (found, {}))

    return put


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"starts": (OTHER.starts[0],) * 2}, "other has two starts named long"),
        ({"evaluations": (CLASSIFICATION, COUNTED, COUNTED)}, "two evaluations named counted"),
        ({"evaluations": (COUNTED,)}, "no classification among its evaluations"),
    ],
)
def test_names_within_a_benchmark_are_unique(changes, message):
    with pytest.raises(BenchmdError, match=message):
        replace(OTHER, **changes)


def test_an_evaluation_that_nothing_scores_is_refused():
    with pytest.raises(BenchmdError, match="counted has no scores: give the function"):
        replace(COUNTED, scores=None)


def test_an_installed_package_does_not_replace_a_benchmark_of_this_one(monkeypatch):
    entry = EntryPoint("benchmd", f"{__name__}:IMPOSTOR", registry.GROUP)
    entries = EntryPoints([entry, *entry_points(group=registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    sound, broken = registry._found.__wrapped__("")
    assert sound["benchmd"] is BENCHMARK
    assert "there is a benchmark benchmd already" in broken[entry.value]


IMPOSTOR = replace(BENCHMARK, version=99)


def test_older_metadata_in_a_checkout_hides_no_benchmark(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([]))
    sound, broken = registry._found.__wrapped__("")
    assert list(sound) == ["benchmd", "medmnist", "ood", "touchstone"]
    assert broken == {}


def test_two_tables_of_one_name_are_refused(also):
    also(replace(OTHER, tables=f"{__name__}:TAKEN"))
    with pytest.raises(BenchmdError, match="other has a table auroc, but the name is taken"):
        declared()
    also(replace(OTHER, tables=f"{__name__}:NOTHING"))
    with pytest.raises(BenchmdError, match=r"NOTHING, .* cannot be imported \(AttributeError"):
        declared()


TAKEN = (next(table for table in TABLES if table.name == "auroc"),)


def counted(run, catalog):
    return write_predictions(pa.table({"score": [0.5]}), run.folder, catalog, CPU, COUNTED.form)


@pytest.fixture
def catalog(write_catalog):
    card = dataset_card("messidor-2")
    pixels = np.zeros(card.signal.stored_shape, np.uint8)
    record = Record("r1", "p1", "u1", pixels, 1.0, (8, 8), [1, 0, 0, 0, 0])
    return write_catalog(card, {"test": [[record]]})


@pytest.fixture
def run(tmp_path):
    made = make_transfer(tmp_path / "runs")
    predict_all(made, {"ptb-xl": {"validation": 80}})
    return made


def test_scores_of_another_evaluation_are_rows_once_however_many_copies(
    tmp_path, run, also, catalog
):
    also(COUNTING)
    counted(run, catalog)
    copied = make_transfer(tmp_path / "copy")
    counted(copied, catalog)
    assert copied.digest == run.digest
    rows = analyse([run, copied], resamples=20).rows
    (row,) = rows[rows["evaluation"] == "counted"].itertuples()
    assert (row.metric, row.value, row.run) == ("rows", 1.0, run.folder.name)


def test_whatever_fails_in_code_from_outside_is_a_note_of_the_report(run, also, catalog):
    def wrong(predictions, resamples):
        return pd.DataFrame({"colour": ["red"]})

    for broken, message in (
        (lambda *_: 1 / 0, "ZeroDivisionError: division by zero"),
        (wrong, "score rows have the column colour"),
    ):
        evaluations = (CLASSIFICATION, replace(COUNTED, scores=broken))
        also(replace(OTHER, evaluations=evaluations, rows=lambda datasets: 1 / 0))
        counted(run, catalog)
        analysis = analyse([run], resamples=20)
        assert len(analysis.scores)
        (said,) = [note for note in analysis.notes if "the evaluation counted of" in note]
        assert message in said
        assert any("the benchmark other gives no score rows" in note for note in analysis.notes)


def test_predictions_of_another_form_are_not_written(tmp_path, catalog):
    form = Form("counted", 1, lambda predictions: "it has no column depth")
    with pytest.raises(BenchmdError, match=r"made a table .*: it has no column depth"):
        replace(COUNTED, form=form).predict(Asked(tmp_path, catalog, Settings(), Worker()))
    assert not predictions_path(tmp_path, "messidor-2", "counted").exists()


def test_predictions_without_records_do_not_claim_that_shared_ones_are_excluded(tmp_path, catalog):
    shared = Shared("ptb-xl", frozenset({"r1"}), 1)
    asked = Asked(tmp_path, catalog, Settings(), Worker(), shared=shared)
    assert shared_in(COUNTED.predict(asked)).startswith("1 of 1 record scored though the training")


def test_settings_of_a_search_are_evaluated_as_the_benchmark_it_began_with(
    also,
):
    also(COUNTING)
    choice = Choice(modalities=("ecg",), techniques=("scratch",))
    names = {
        bench: {item.name for item in make_plan(made, tflops=10.0).items}
        for bench, made in (("", choice), ("other", replace(choice, evaluated="other")))
    }
    added = names["other"] - names[""]
    assert added
    assert all(name.endswith("/counted") for name in added)


@pytest.mark.parametrize("protocol", ["fixed", "fixed 2", "fixed 1a"])
def test_only_the_fixed_protocol_is_compared_with_the_paper(protocol):
    about = {"split": "test", "options": (), "raw": ((1, 1), (1, 1))}
    assert unlike(protocol, "ptb-xl", "target", **about) is None
    for other in ("fixed-long", "shuffled-fixed", "custom"):
        said = unlike(protocol.replace("fixed", other), "ptb-xl", "target", **about)
        assert said == "settings other than the fixed protocol's"


def test_a_table_that_is_empty_now_leaves_no_file_of_before(run, tmp_path, also):
    out = tmp_path / "report"
    also(replace(OTHER, tables=f"{__name__}:ONCE"))
    analysis = analyse([run], resamples=20)
    write_tables(analysis, out)
    assert (out / "once.csv").is_file()
    LEFT.clear()
    paths = write_tables(analysis, out)
    assert {path.name for path in paths} == {path.name for path in out.iterdir()}
    assert not (out / "once.csv").exists()


LEFT = [1.0]
ONCE = (replace(TAKEN[0], name="once", data=lambda _: pd.DataFrame({"n": LEFT}), printed=None),)


def boom(*_, **__):
    raise RuntimeError("no such thing")


def started(**changes):
    return replace(BENCHMARK, starts=(replace(BENCHMARK.starts[0], name="long", **changes),))


@pytest.mark.parametrize(
    ("made", "use", "message"),
    [
        (
            replace(BENCHMARK, datasets=boom),
            lambda own: own.datasets(),
            r"the benchmark benchmd: datasets fails with RuntimeError: no such thing "
            r"\(test_declared\.py, line \d+\)\. Correct it",
        ),
        (
            replace(BENCHMARK, datasets=lambda: (1, 2)),
            lambda own: own.datasets(),
            r"datasets returns \(1, 2\), expected a tuple of names",
        ),
        (
            started(settings=boom),
            lambda own: own.starts[0].settings(ECG, "mae", ""),
            "the start long: settings fails with RuntimeError",
        ),
        (
            started(like=lambda *_: {"seed": 1}),
            lambda own: own.starts[0].followed(ECG, "mae", {}),
            r"the start long: like returns .*, expected .*Settings \| None",
        ),
        (
            started(variants=boom),
            lambda own: own.start_named("other", ECG),
            "the start long: variants fails",
        ),
        (
            replace(BENCHMARK, published=replace(BENCHMARK.published, auroc=lambda: 3)),
            lambda own: own.published.auroc(),
            "published in BenchMD v2, tables 1 and 2: auroc returns 3, expected a mapping",
        ),
    ],
    ids=["fails", "names", "settings", "like", "variants", "published"],
)
def test_a_mistake_in_a_declaration_is_one_line_that_names_it(made, use, message):
    with pytest.raises(BenchmdError, match=message):
        use(made)


def test_a_copy_of_a_declaration_names_itself_and_is_guarded_once():
    copied = replace(replace(BENCHMARK, name="a", datasets=boom), name="b")
    with pytest.raises(BenchmdError, match=r"^the benchmark b: datasets fails with RuntimeError"):
        copied.datasets()
