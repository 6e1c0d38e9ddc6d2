"""Tuning in the report: searches as their folders have them, tuned runs next to their start."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kinds import MODALITIES
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.stats import t
from sklearn.metrics import roc_auc_score
from stored import runs, searches
from stores import (
    FAMILIES,
    SEARCH,
    SPACE,
    make_ladder,
    make_pretraining,
    make_search,
    make_transfer,
    make_trials,
    people,
    scores_of,
    search_name,
    targets_of,
    write_predictions,
)
from test_report_figures import texts
from test_written import rows_of

from benchmd_ray.benchmarks.benchmd.published import auroc as paper_auroc
from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import write_hash, write_hashed_json
from benchmd_ray.report import tables
from benchmd_ray.report.analysis import Analysis, analyse
from benchmd_ray.report.canvas import styled
from benchmd_ray.report.figures_settings import labels_of
from benchmd_ray.report.names import names_of
from benchmd_ray.report.page import page
from benchmd_ray.report.page_tuning import gained, tuning_sentences
from benchmd_ray.report.report_figures import draw
from benchmd_ray.report.table import plain
from benchmd_ray.report.tuning_frames import networks
from benchmd_ray.report.write import write_tables
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.scores.comparison import exchange_p
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.tuning import record_form
from benchmd_ray.tuning.records import COLUMNS, FORMAT, read_search, trials_schema

ECG = MODALITIES["ecg"].task
NAME = SEARCH
TOPICS = ("history", "slice", "curves", "parallel")
RESAMPLES = 60


def lr(value, **more):
    return {"transfer": {"optimiser": {"lr": value}}, **more}


def scored(store, technique="mae", *, upstream=None, skill=0.5, targets=True, **about):
    """A transfer run with predictions of its source's validation split and of a target."""
    run = make_transfer(store, technique, upstream=upstream, **about)
    for number, (dataset, split) in enumerate((("ptb-xl", "validation"), ("georgia", "test"))):
        truth = targets_of(ECG.classes, 120, ECG.kind, number)
        drawn = [number, about.get("seed", 0), sum(run.folder.name.encode())]
        made = scores_of(truth, ECG.kind, skill, drawn)
        held = {split: (people(120, number), truth, made)}
        if targets or dataset == "ptb-xl":
            write_predictions(run, dataset, held, role="target" if number else "source")
    return run


def tuned_run(store, upstream, **about):
    changes = lr(3e-3, tuned=NAME)
    return scored(store, upstream=upstream, changes=changes, fixed=False, skill=1.2, **about)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with a search, the runs of its start and of what it found, and other settings."""
    store = tmp_path_factory.mktemp("tuning") / "runs"
    upstream = make_pretraining(store, "mae")
    found = {
        "start": scored(store, upstream=upstream),
        "tuned": tuned_run(store, upstream),
        "other": scored(store, upstream=upstream, changes=lr(1e-5), fixed=False),
        "scratch": scored(store, "scratch"),
    }
    make_search(store)
    return store, found


@pytest.fixture(scope="module")
def analysis(made):
    store, _ = made
    return analyse(runs([store]), searches=searches([store]), resamples=RESAMPLES)


def row_of(analysis, dataset="georgia", **key):
    rows = analysis.tuned[analysis.tuned["dataset"] == dataset]
    for name, value in key.items():
        rows = rows[rows[name] == value]
    (row,) = rows.to_dict("records")
    return row


def predictions(run, dataset):
    table = pq.read_table(predictions_path(run.folder, dataset))
    names = ("target", "scores")
    return *(np.array(table[name].to_pylist()) for name in names), table["group_id"].to_pylist()


# --- tuned against start


def test_the_difference_is_the_paired_one_of_tuned_and_start(made, analysis):
    _, found = made
    truth, ours, groups = predictions(found["tuned"], "georgia")
    _, first, _ = predictions(found["start"], "georgia")
    row = row_of(analysis)
    values = [roc_auc_score(truth, one, average="macro") for one in (ours, first)]
    assert (row["value"], row["start"]) == pytest.approx(tuple(values))
    draws = [
        resampled("auroc", truth, one, groups, ECG.kind, resamples=RESAMPLES)[:, 0]
        for one in (ours, first)
    ]
    counts = [min(len({g for g, t in zip(groups, own, strict=True) if t == s}) for s in (0, 1))
              for own in truth.T if 0 < sum(own) < len(own)]  # fmt: skip
    assert min(counts) >= 5
    patients = len(set(groups))
    share = (1 / np.array(counts)) / sum(1 / np.array(counts))
    degrees = min(1 / (share**2 / (np.array(counts) - 1)).sum(), patients - 1)
    half = (draws[0] - draws[1]).std(ddof=1) * t.ppf(0.975, degrees)
    difference = values[0] - values[1]
    ends = (row["difference_low"], row["difference_high"])
    assert ends == pytest.approx((difference - half, difference + half), rel=0.05)
    assert row["difference"] == pytest.approx(difference)
    assert row["p"] == exchange_p(truth, first, ours, groups)


def test_the_resamples_are_paired_by_patient(made, analysis):
    """By a slow bootstrap of its own: another draw, so that only the width can agree."""
    _, found = made
    truth, ours, groups = predictions(found["tuned"], "georgia")
    _, first, _ = predictions(found["start"], "georgia")
    rng, groups, drawn = np.random.default_rng(5), np.array(groups), []
    rows_by_patient = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    for _ in range(150):
        chosen = rng.integers(len(rows_by_patient), size=len(rows_by_patient))
        rows = np.concatenate([rows_by_patient[place] for place in chosen])
        pair = [roc_auc_score(truth[rows], one[rows], average="macro") for one in (ours, first)]
        drawn.append(pair[0] - pair[1])
    low, high = np.percentile(drawn, [2.5, 97.5])
    row = row_of(analysis)
    width = row["difference_high"] - row["difference_low"]
    assert width == pytest.approx(high - low, rel=0.35)


def test_the_paper_and_the_cost_stand_beside_a_start_of_the_fixed_protocol(made, analysis):
    row = row_of(analysis)
    assert row["start_name"] == "MAE, linear"
    assert row["paper"] == paper_auroc()["georgia", "linear", "mae"]
    (record,) = analysis.records
    assert (row["search"], row["trials"]) == (NAME, 12)
    assert row["device_hours"] == record.device_hours > 0


def test_tuned_rows_stand_beside_the_others_of_their_technique(analysis):
    shown, _ = plain(tables.results(analysis))
    rows = shown[(shown["dataset"] == "georgia") & shown["technique"].str.startswith("MAE")]
    assert rows["technique"].tolist() == ["MAE", "MAE, tuned", "MAE (lr 1e-05)"]
    assert rows["protocol"].tolist() == ["fixed", "tuned", "custom"]
    assert "–" in rows["paper"].tolist()[1]
    assert len(set(rows.index)) == 3
    assert np.ptp(rows.index) == 2


def test_the_start_is_found_among_several_customs_and_seeds_are_paired(tmp_path):
    store = tmp_path / "runs"
    start = updated(Settings(), lr(1e-5))  # one of several customs
    make_search(store, start=start)
    for seed in (0, 1):
        upstream = make_pretraining(store, "mae", seed=seed)
        shorter = make_pretraining(
            store, "mae", seed=seed, changes={"pretrain": {"steps": 1}}, fixed=False
        )
        for value in (1e-5, 1e-3, 1e-2):
            scored(
                store, upstream=upstream, changes=lr(value), fixed=False, seed=seed, targets=False
            )
        scored(store, upstream=shorter, changes=lr(1e-5), fixed=False, seed=seed, targets=False)
        tuned_run(store, upstream, seed=seed, targets=False)
    found = runs([store])
    analysis = analyse(found, searches=searches([store]), resamples=20)
    row = row_of(analysis, "ptb-xl", protocol="tuned")
    named = names_of(found).of_runs
    expected = {
        named[run.folder]
        for run in found
        if run.description["kind"] == "transfer"
        and run.settings.transfer == start.transfer
        and not any(
            other.settings.pretrain.steps == 1
            for other in found
            if other.folder.name == run.description["upstream"]
        )
    }
    (started,) = expected
    assert started.protocol == "custom"
    assert row["start_name"] == f"{started.technique}, linear"
    scores = analysis.scores.query("metric == 'auroc' and `class` == 'mean'")
    scores = scores.set_index("technique")["value"]
    assert row["start"] == scores[started.technique]
    assert (scores == row["start"]).sum() == 1
    assert row["models"] == 2
    assert np.isnan(row["paper"])
    assert np.isnan(row["p_delong"])


def test_a_tuned_pretraining_makes_its_transfers_tuned_and_scratch_its_base(tmp_path):
    store = tmp_path / "runs"
    name = search_name("tune-ecg-mae-pretrain")
    make_search(store, name, setting="pretrain")
    fixed = make_pretraining(store, "mae")
    found = {"pretrain": {"mask_rate": 0.5}, "tuned": name}
    better = make_pretraining(store, "mae", changes=found, fixed=False)
    scored(store, upstream=fixed)
    scored(store, upstream=better, fixed=False, skill=1.0)
    scored(store, "scratch")
    analysis = analyse(runs([store]), searches=searches([store]), resamples=20)
    row = row_of(analysis)
    assert (row["protocol"], row["start_name"], row["search"]) == ("tuned", "MAE, linear", name)
    changes = analysis.changes[analysis.changes["metric"] == "auroc"]
    assert set(changes["protocol"]) == {"fixed", "tuned"}
    assert {*analysis.pairs["a"], *analysis.pairs["b"]} == {"scratch", "MAE", "MAE, tuned"}


def test_what_is_tuned_is_compared_with_what_is_not_and_keeps_its_mark(analysis):
    changes = analysis.changes.drop_duplicates("technique").set_index("technique")["protocol"]
    assert changes.to_dict() == {"MAE": "fixed", "MAE, tuned": "tuned", "MAE (lr 1e-05)": "custom"}
    assert "MAE, tuned" in {*analysis.pairs["a"], *analysis.pairs["b"]}


def test_the_descriptions_and_notes_name_the_search(analysis):
    settings = analysis.descriptions.set_index("technique")["settings"]
    assert settings["MAE, tuned"].startswith(f"found by {NAME}; transfer.optimiser.lr 0.003")
    assert any(note.startswith("tuned: settings that a search found") for note in analysis.notes)
    assert any("A search's own scores are no result" in note for note in analysis.notes)


def test_runs_of_a_search_that_is_elsewhere_and_starts_that_did_not_run_are_named(tmp_path):
    store, other = tmp_path / "runs", tmp_path / "other"
    upstream = make_pretraining(store, "mae")
    tuned_run(store, upstream)
    make_search(other)
    lost = analyse(runs([store]), resamples=5)
    assert np.isnan(row_of(lost)["difference"])
    assert any("not in the stores of this report" in note for note in lost.notes)
    assert "Tuning" in page(lost, [])
    assert tuning_sentences(lost) == []
    alone = analyse(runs([store]), searches=searches([store, other]), resamples=5)
    assert np.isnan(row_of(alone)["start"])
    assert row_of(alone)["trials"] == 12
    (note,) = [note for note in alone.notes if "were not scored on" in note]
    assert "georgia, ptb-xl" in note
    for table in ("tuned", "searches"):
        assert getattr(tables, table)(alone).rows == 1 + (table == "tuned")


def of_ladder(store, **about):
    """The analysis of a run and of a search over several families, and its rows of trials."""
    ladder = make_ladder(12, **about)
    make_search(store, **ladder)
    scored(store)
    return ladder["rows"], analyse(runs([store]), searches=searches([store]), resamples=5)


def paired(row, start):
    """Differences to the start of a row's scores, by number of the evaluation."""
    first = {point["evaluation"]: point["value"] for point in start["scores"]}
    return [point["value"] - first[point["evaluation"]] for point in row["scores"]]


def test_a_search_names_the_family_that_won_and_by_how_much(tmp_path):
    rows, analysis = of_ladder(tmp_path)
    (search,) = analysis.searches.to_dict("records")
    best = max((row for row in rows if row["evaluations"] == 6), key=lambda row: row["value"])
    assert best["family"] == "random-kernels linear"
    assert (search["chosen"], search["family"]) == (best["number"], "random kernels, linear")
    assert search["families"] == "scratch, fine-tuning; random kernels, linear; MAE, linear"
    assert (search["chosen_value"], search["start_value"]) == (best["value"], rows[0]["value"])
    assert search["evaluations"] == sum(row["evaluations"] for row in rows)
    table, _ = plain(tables.searches(analysis))
    assert table["chosen trial"].tolist() == [str(best["number"])]
    sentences = " ".join(tuning_sentences(analysis))
    gain = np.mean(paired(best, rows[0]))
    assert f"chose random kernels, linear (trial {best['number']}): on the search's" in sentences
    assert f"validation records +{gain:.3f} ± {best['error']:.3f} (standard error)" in sentences
    mae = max(
        (row for row in rows if row["family"] == "mae linear" and row["evaluations"] == 6),
        key=lambda row: row["value"],
    )
    assert f"+{best['value'] - mae['value']:.3f} over the best trial of MAE, linear" in sentences
    assert "is too high for having been the highest, by about 0.010." in sentences
    for text in (sentences, " ".join(analysis.notes)):
        assert "A search's own scores are no result" in text


def test_families_are_compared_by_their_best_trials_and_their_cost(tmp_path):
    rows, analysis = of_ladder(tmp_path)
    assert analysis.families["trials"].tolist() == [4, 4, 4]
    assert analysis.families["is_chosen"].tolist() == [False, True, False]
    for family, found in zip(FAMILIES, analysis.families.to_dict("records"), strict=True):
        members = [row for row in rows if row["family"] == family]
        done = [row for row in members if row["number"] and row["evaluations"]]
        most = max(row["evaluations"] for row in done)
        best = max(
            (row for row in done if row["evaluations"] == most), key=lambda row: row["value"]
        )
        differences = paired(best, rows[0])
        assert (found["best"], found["evaluations"]) == (best["number"], most)
        assert found["difference"] == pytest.approx(np.mean(differences))
        expected = np.std(differences, ddof=1) / math.sqrt(most)
        assert found["error"] == pytest.approx(expected)
        hours = sum(row["device_hours"] for row in members)
        count = sum(row["evaluations"] for row in members)
        assert found["hours_per_evaluation"] == pytest.approx(hours / count)
    table, _ = plain(tables.families(analysis))
    assert table["chosen"].tolist() == ["", "yes", ""]


def test_a_search_that_keeps_its_start_says_so_and_has_no_tuned_row(tmp_path):
    rows, analysis = of_ladder(tmp_path, better=False)
    (row,) = analysis.searches.to_dict("records")
    assert (row["chosen"], row["start_value"]) == (0, rows[0]["value"])
    table, _ = plain(tables.searches(analysis))
    assert table["chosen trial"].tolist() == ["keeps the start"]
    assert analysis.tuned.empty
    note = f"{NAME}: no trial beat the start, so nothing is tuned."
    assert note in analysis.notes
    sentences = " ".join(tuning_sentences(analysis))
    assert "No trial beat the start in 1 of 1 search, which keeps it" in sentences
    assert f"{NAME} keeps its start, scratch, fine-tuning (inner AUROC 0.609)." in sentences
    history, *_ = draw(Analysis(records=analysis.records))[0]
    assert "no trial is above the start" in history.title
    first = analysis.families.iloc[0]
    assert (first["best"], first["is_chosen"], np.isnan(first["difference"])) == (0, True, True)


def test_a_family_without_a_score_has_only_its_trials(tmp_path):
    ladder = make_ladder(12)
    ladder["rows"] = [row for row in ladder["rows"] if row["family"] != "mae linear"]
    make_search(tmp_path, **ladder)
    scored(tmp_path)
    analysis = analyse(runs([tmp_path]), searches=searches([tmp_path]), resamples=5)
    lost = analysis.families.iloc[2]
    assert (lost["trials"], lost["evaluations"]) == (0, 0)
    assert np.isnan([lost["value"], lost["difference"], lost["hours_per_evaluation"]]).all()
    assert "best trial of MAE" not in " ".join(tuning_sentences(analysis))


def test_a_search_without_a_result_is_in_the_table(tmp_path):
    make_search(tmp_path, rows=make_trials(3), finished=False)
    scored(tmp_path)
    analysis = analyse(runs([tmp_path]), searches=searches([tmp_path]), resamples=5)
    shown, _ = plain(tables.searches(analysis))
    assert shown["chosen trial"].tolist() == ["–"]
    assert any("no trial is complete yet" in note for note in analysis.notes)


# --- tables and page


def test_the_tables_of_tuning_are_written_in_all_forms(analysis, tmp_path):
    write_tables(analysis, tmp_path)
    for name, rows in (("tuned", 2), ("searches", 1), ("families", 1)):
        for kind in ("csv", "md"):
            assert NAME in (tmp_path / f"{name}.{kind}").read_text("utf-8")
        assert len(rows_of((tmp_path / f"{name}.tex").read_text("utf-8"))) == 2 + rows
    shown = (tmp_path / "tuned.md").read_text("utf-8")
    row = row_of(analysis)
    ends = f"[{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"
    assert f"{row['difference']:+.3f} {ends}".replace("-", "−") in shown
    assert f"{row['start']:.3f} [{row['start_low']:.3f}, {row['start_high']:.3f}]" in shown


def test_the_searches_table_counts_trials_and_cost(analysis):
    (row,) = analysis.searches.to_dict("records")
    counts = Counter(trial["state"] for trial in make_trials(12))
    assert {state: row[state] for state in counts} == counts
    assert (row["trials"], row["searched"]) == (12, len(SPACE))
    assert (row["train_records"], row["validation_patients"]) == (300, 50)
    best = max((t["value"], t["number"]) for t in make_trials(12) if t["value"] is not None)
    assert (row["chosen_value"], row["chosen"]) == best
    assert row["start_value"] == make_trials(12)[0]["value"]
    assert row["evaluations"] == counts["complete"]


def test_the_page_has_a_section_of_tuning_with_its_figures(analysis):
    figures, _ = draw(Analysis(records=analysis.records))
    other = replace(figures[0], section="Training", name="first")
    figures = [other, *figures]
    text = page(analysis, figures)
    section = text[text.index('<section id="tuning"') :]
    section = section[: section.index("</section>")]
    assert section.count("<figure ") == len([f for f in figures if f.section == "Tuning"]) == 4
    assert 'id="table-families"' in section
    assert 'id="table-tuned"' in section
    assert 'id="table-searches"' in section
    assert "own scores are no result" in section
    assert "Figures: Tuning" not in text
    numbers = [int(part.split('"')[0]) for part in text.split('<figure id="figure-')[1:]]
    assert numbers == list(range(1, len(figures) + 1))


def test_without_a_search_nothing_speaks_of_tuning(made, tmp_path):
    _, found = made
    alone = analyse([found["start"], found["scratch"]], resamples=5)
    assert alone.tuned.empty
    assert alone.searches.empty
    assert 'id="tuning"' not in page(alone, [])
    assert not [note for note in alone.notes if "search" in note]
    assert not [path for path in write_tables(alone, tmp_path) if "tuned" in path.name]
    assert not [one for group in draw(Analysis()) for one in group if NAME in one.name]


def test_names_of_a_search_are_shown_and_never_run(analysis):
    evil = "<script>alert(1)</script>"
    held = {
        "tuned": analysis.tuned.assign(search=evil, technique=evil),
        "searches": analysis.searches.assign(search=evil, family=evil),
        "families": analysis.families.assign(search=evil, family=evil),
    }
    text = page(replace(analysis, **held), [])
    assert evil not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.slow
def test_the_command_reports_the_searches_of_a_store_and_none_of_a_run(made, tmp_path):
    store, found = made
    command = ["report", str(store), "--out", str(tmp_path / "a"), "--figures", "none"]
    result = CliRunner().invoke(main, [*command, "--resamples", "5"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a" / "searches.csv").is_file()
    command = [
        "report",
        str(found["tuned"].folder),
        "--out",
        str(tmp_path / "b"),
        "--figures",
        "none",
    ]
    result = CliRunner().invoke(main, [*command, "--resamples", "5"])
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "b" / "searches.csv").exists()
    assert (tmp_path / "b" / "tuned.csv").is_file()


# --- figures


def figures_of(store, **search):
    make_search(store, **search)
    drawn, excluded = draw(Analysis(records=searches([store])))
    return {one.name: one for one in drawn}, {one.name: one.reason for one in excluded}


def test_texts_of_a_large_search_do_not_overlap_and_are_not_cut(tmp_path):
    mae = {"best": 2}  # of the family with many settings
    drawn, _ = figures_of(tmp_path, **make_ladder(40), result=mae)
    assert list(drawn) == [f"{topic}-{NAME}" for topic in TOPICS]
    for name, one in drawn.items():
        with styled():
            FigureCanvasAgg(one.figure).draw()
        renderer = one.figure.canvas.get_renderer()
        width, height = one.figure.bbox.size
        boxes = []
        for text in texts(one.figure):
            box = text.get_window_extent(renderer)
            assert text.get_fontsize() >= 7
            assert -1 <= box.x0 < box.x1 <= width + 1, (name, text.get_text())
            assert -1 <= box.y0 < box.y1 <= height + 1, (name, text.get_text())
            boxes.append((box, text.get_text()))
        for (a, first), (b, second) in combinations(boxes, 2):
            wide = min(a.x1, b.x1) - max(a.x0, b.x0)
            tall = min(a.y1, b.y1) - max(a.y0, b.y0)
            assert wide < 2 or tall < 2, (name, first, second)


def lines_of(figure, label):
    return [one for one in figure.axes[0].lines if one.get_label() == label]


def test_history_has_each_trial_by_its_family_and_evaluations(tmp_path):
    ladder = make_ladder(40)
    drawn, _ = figures_of(tmp_path, **ladder)
    (axes,) = drawn[f"history-{NAME}"].figure.axes
    marks, colours = set(), set()
    for family, label in zip(
        FAMILIES, ("scratch, fine-tuning", "random kernels, linear", "MAE, linear"), strict=True
    ):
        rows = [row for row in ladder["rows"] if row["family"] == family]
        sizes = {}
        for points in lines_of(axes.figure, label):
            marks.add(points.get_marker())
            colours.add(points.get_color())
            (count,) = {rows_of_number(rows, n)["evaluations"] for n in points.get_xdata()}
            sizes[count] = points.get_markersize()
            expected = [row for row in rows if row["evaluations"] == count]
            assert points.get_xdata().tolist() == [row["number"] for row in expected]
            assert points.get_ydata() == pytest.approx([row["value"] for row in expected])
        assert {*sizes} == {row["evaluations"] for row in rows} - {0}
        assert [sizes[count] for count in sorted(sizes)] == sorted({*sizes.values()})
    assert len(marks) == len(colours) == len(FAMILIES)
    spans = {
        segment[0][0]: (segment[1][1] - segment[0][1]) / 2
        for errors in axes.collections
        for segment in errors.get_segments()
    }
    rows = ladder["rows"]
    assert spans == pytest.approx({r["number"]: r["error"] for r in rows if r["error"] is not None})
    for label, state in (("stopped", "stopped"), ("failed", "failed")):
        (points,) = lines_of(axes.figure, label)
        expected = [row["number"] for row in rows if row["state"] == state]
        assert points.get_xdata().tolist() == expected
    (record,) = searches([tmp_path])
    assert lines_of(axes.figure, "chosen")[0].get_xdata() == [record.best]
    assert lines_of(axes.figure, "start")[0].get_xdata() == [0]


def rows_of_number(rows, number):
    (row,) = (row for row in rows if row["number"] == number)
    return row


def test_settings_are_drawn_of_the_chosen_family(tmp_path):
    ladder = make_ladder(40)
    drawn, _ = figures_of(tmp_path, **ladder)
    for topic in ("slice", "curves", "parallel"):
        assert "Search of random kernels, linear (" in drawn[f"{topic}-{NAME}"].title
    (axes,) = drawn[f"slice-{NAME}"].figure.axes
    assert axes.get_title(loc="left") == "kernels"
    members = [row for row in ladder["rows"] if row["family"] == "random-kernels linear"]
    values = [row["value"] for row in members if row["evaluations"]]
    assert axes.collections[0].get_offsets()[:, 1].tolist() == values
    assert "start of the search" not in " ".join(
        text.get_text() for text in axes.figure.legends[0].get_texts()
    )
    assert "Search over 3 families (ecg, ptb-xl)" in drawn[f"history-{NAME}"].title


def test_scores_of_masks_are_named_so(tmp_path):
    drawn, _ = figures_of(tmp_path, metric="dsc")
    assert drawn[f"history-{NAME}"].figure.axes[0].get_ylabel() == "inner DSC"


def test_a_slice_has_a_panel_for_each_setting_on_its_scale(tmp_path):
    drawn, _ = figures_of(tmp_path)
    axes = drawn[f"slice-{NAME}"].figure.axes
    assert len(axes) == len(SPACE)
    for panel, about in zip(axes, SPACE.values(), strict=True):
        assert panel.get_xscale() == ("log" if about["kind"].startswith("log") else "linear")
        if about["kind"] == "choice":
            names = [label.get_text() for label in panel.get_xticklabels()]
            assert names == [str(value) for value in about["values"]]


def test_a_setting_that_had_no_part_in_a_trial_has_no_point_there(tmp_path):
    rows = make_trials(12)
    absent = ("transfer.optimiser.warmup_steps", "transfer.batch_size", "encoder.qkv_bias")
    done = [row for row in rows if row["state"] == "complete"]
    for row in done[1:4]:
        row |= dict.fromkeys(absent)
    drawn, _ = figures_of(tmp_path, rows=rows)
    panels = drawn[f"slice-{NAME}"].figure.axes
    for panel, name in zip(panels, SPACE, strict=True):
        points = panel.collections[0].get_offsets().filled(np.nan)
        shown = int(np.isfinite(points).all(axis=1).sum())
        assert shown == len(done) - 3 * (name in absent), name
    lines = [one for one in drawn[f"parallel-{NAME}"].figure.axes[0].lines if len(one.get_xdata())]
    broken = [one for one in lines if np.isnan(np.asarray(one.get_ydata(), float)).sum() == 3]
    assert len(broken) == 3


def test_a_search_without_a_complete_trial_is_read_and_has_reasons_for_no_figures(tmp_path):
    lost = {"state": "failed", "curve": [], "scores": [], "value": None, "evaluations": 0}
    rows = [{**row, **lost} for row in make_trials(3)]
    drawn, excluded = figures_of(tmp_path, rows=rows, finished=False)
    assert not [name for name in drawn if NAME in name]
    assert set(excluded) >= {f"{topic}-{NAME}" for topic in TOPICS}
    (record,) = searches([tmp_path])
    assert (record.best, record.chosen, record.counts["failed"]) == (None, None, 3)
    assert np.isnan(record.value)
    assert record.device_hours == pytest.approx(sum(row["device_hours"] for row in rows))


def test_a_setting_that_was_the_same_in_all_trials_has_no_axis(tmp_path):
    rows = make_trials(12)
    name = "transfer.optimiser.schedule"
    assert len({row[name] for row in rows}) > 1
    drawn, _ = figures_of(tmp_path / "varied", rows=rows)
    of_all = len(drawn[f"slice-{NAME}"].figure.axes)
    drawn, _ = figures_of(tmp_path, rows=[{**row, name: rows[0][name]} for row in rows])
    figure = drawn[f"slice-{NAME}"].figure
    assert len(figure.axes) == of_all - 1
    assert "schedule" not in " ".join(axes.get_title(loc="left") for axes in figure.axes)
    parallel = drawn[f"parallel-{NAME}"].figure
    assert "schedule" not in " ".join(text.get_text() for text in texts(parallel))


def test_the_first_screen_says_what_tuning_gained(analysis):
    (said,) = gained(analysis)
    held = analysis.tuned.query("role == 'target'").dropna(subset=["difference"])
    (row,) = held.to_dict("records")
    assert f"{row['difference']:+.3f} [".replace("-", "−") in said
    assert "(MAE, tuned on georgia)" in said
    text = page(analysis, [])
    assert text.index(said[:12]) < text.index('id="notes"')


def test_a_search_names_its_networks(analysis):
    row = analysis.searches.iloc[0]
    assert row["network"] == "transformer"
    titles = [one.title for one in draw(Analysis(records=analysis.records))[0]]
    assert all("(ecg, ptb-xl; transformer)" in title for title in titles)
    (record,) = analysis.records
    space = {"encoder.network": {"kind": "choice", "values": ["resnet18", "transformer"]}}
    (family,) = record.families
    assert networks(replace(family, space=space)) == "transformer or resnet18"


def test_settings_are_named_by_what_tells_them_apart():
    assert labels_of(["transfer.optimiser.lr", "transfer.epochs"]) == {
        "transfer.optimiser.lr": "lr",
        "transfer.epochs": "epochs",
    }
    both = ["pretrain.optimiser.lr", "transfer.optimiser.lr"]
    assert labels_of(both) == {name: name for name in both}


# --- folders of searches


def test_a_search_is_read_as_it_was_written(tmp_path):
    rows = make_trials(12)
    start = updated(Settings(), lr(1e-3))
    folder = make_search(tmp_path, rows=rows, start=start)
    record = read_search(folder)
    assert record.trials["number"].tolist() == list(range(12))
    for name in ("state", *SPACE):
        assert record.trials[name].tolist() == [row[name] for row in rows]
    expected = [tuple((p["step"], p["value"]) for p in row["curve"]) for row in rows]
    assert record.trials["curve"].tolist() == expected
    assert record.start("ecg", "ptb-xl", "clean") == start
    assert record.start("cxr", "mimic-cxr", "clean") is None
    assert list(record.trials.columns)[: len(COLUMNS)] == list(COLUMNS)


def test_a_universal_search_has_a_column_for_each_modality(tmp_path):
    names = ("modality", "source", "policy", "catalog", "inner")
    sources = [
        {**dict.fromkeys(names, "x"), "modality": kind, "source": source, "policy": "clean",
         "records": {"train": 3, "validation": 2}, "patients": {"train": 3, "validation": 2}}
        for kind, source in (("ecg", "ptb-xl"), ("cxr", "mimic-cxr"))
    ]  # fmt: skip
    rows = [{**row, "score:ecg": 0.6, "score:cxr": 0.7} for row in make_trials(3)]
    two = [{"seed": seed} for seed in (1, 2)]
    name = search_name("tune-universal-mae-linear")
    family = {"technique": "mae", "setting": "linear", "space": SPACE, "settings": two}
    make_search(tmp_path, name, rows=rows, sources=sources, families=[family])
    (record,) = searches([tmp_path])
    assert record.trials["score:cxr"].tolist() == [0.7] * 3
    first = record.start("cxr", "mimic-cxr", "clean")
    assert first is not None
    assert first.seed == 2
    frame = analyse([scored(tmp_path)], searches=[record], resamples=5).searches
    assert frame[["modality", "train_records"]].to_numpy().tolist() == [["ecg, cxr", 6]]


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("search.json", '{"format": 1, "techn', "it is not valid JSON"),
        ("search.json", "[]", "it is a list"),
        ("search.json", '{"format": 1}', "it has no sha256"),
        ("search.json", '{"format": 1, "sha256": "0"}', "its SHA-256 differs"),
        ("search.json", {"format": FORMAT + 1}, "another version of benchmd wrote it"),
        ("search.json", {"format": FORMAT, "metric": "auroc"}, "it lacks families, sources"),
        ("trials.parquet", "PAR1 cut off", "its SHA-256 is not the one that was recorded"),
        ("result.json", {"best": 3}, "it lacks value, first_value"),
        ("result.json", "", "it is not valid JSON"),
    ],
)
def test_a_damaged_folder_is_refused_with_its_file_and_the_remedy(tmp_path, file, content, match):
    folder = make_search(tmp_path)
    if isinstance(content, str):
        (folder / file).write_text(content)
    else:
        write_hashed_json(folder / file, content, of=folder)
    with pytest.raises(BenchmdError, match=match) as caught:
        searches([tmp_path])
    assert str(folder / file) in str(caught.value)


def test_trials_that_do_not_fit_are_refused(tmp_path):
    rows = make_trials(4)
    folder = make_search(tmp_path, rows=rows)
    path = folder / "trials.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["transfer.epochs"]), path)
    write_hash(path)
    with pytest.raises(BenchmdError, match=r"lacks the columns transfer\.epochs"):
        read_search(folder)
    odd = make_search(tmp_path / "state", rows=[rows[0], {**rows[1], "state": "halted"}])
    with pytest.raises(BenchmdError, match=r"unknown state of a trial in .*'halted'"):
        read_search(odd)
    twice = make_search(tmp_path / "twice", rows=[rows[0], rows[0]])
    with pytest.raises(BenchmdError, match="appears twice"):
        read_search(twice)
    lost = make_search(tmp_path / "best", rows=rows, result={"best": 77})
    with pytest.raises(BenchmdError, match="it names trial 77"):
        read_search(lost)
    broken = [rows[0], {**rows[2], "value": None}]
    empty = make_search(tmp_path / "value", rows=broken, finished=False)
    with pytest.raises(BenchmdError, match="trial 2 is complete and has no value"):
        read_search(empty)


NOISE = {"kind": "float", "low": 0.0, "high": 1.0, "default": 0.0}
CHOICE = {"kind": "choice", "values": [1, 2], "default": 1}


@pytest.mark.parametrize(
    ("about", "match"),
    [
        ({"families": []}, r"families is \[\], expected at least 1 item"),
        ({"metric": "\x1b]0;auroc"}, "metric is .*, expected a plain name"),
        ({"space": {}}, r"space is \{\}, expected at least 1 item"),
        ({"technique": "\x1b]0;mae"}, "technique is .*, expected a plain name"),
        ({"technique": "$x_{"}, "technique is .*, expected a plain name"),
        ({"space": {"curve": NOISE}}, "called curve, as a column"),
        ({"space": {"family": NOISE}}, "called family, as a column"),
        ({"space": {"score:ecg": NOISE}}, "called score:ecg, as a column"),
        ({"space": {"a.b": NOISE | {"step": 5e-300}}}, r"setting a\.b: step is 5e-300"),
        ({"space": {"a.b": NOISE | {"step": 1e300}}}, r"setting a\.b: step is 1e\+300"),
        ({"space": {"a.b": NOISE | {"high": 2**60}}}, r"setting a\.b: high is 1152921504606846976"),
        (
            {"space": {"a.b": CHOICE | {"values": [1, 2**70]}}},
            r"setting a\.b: values is 1180591620717411303424",
        ),
        ({"space": {"a.b": CHOICE | {"values": [1, math.inf]}}}, "values.* is inf"),
        ({"space": {"a.b": CHOICE | {"default": 2**70}}}, r"setting a\.b: default is 118059162"),
        ({"space": {"a.b": CHOICE | {"values": [1, "a"]}}}, "only texts, only numbers"),
        ({"space": {"a.b": CHOICE | {"default": 3}}}, "the default 3 is outside, expected one of"),
        ({"space": {"a.b": NOISE | {"low": 1.0}}}, "low is 1 and high 1, expected low below high"),
        ({"space": {"a.b": {"kind": "int"}}}, "the kind int needs low and high"),
        ({"settings": []}, "1 sources and 0 settings of a family"),
        (
            {"settings": [{"pretrain": {"stepz": 1}}]},
            "expected settings of this version: unknown .*stepz.* Did you mean 'steps'",
        ),
        ({"seed": 2**70}, "seed is 1180591620717411303424"),
    ],
)
def test_a_plan_that_no_search_writes_is_refused(tmp_path, about, match):
    folder = make_search(tmp_path, rows=make_trials(2), finished=False)
    plan = json.loads((folder / "search.json").read_text("utf-8"))
    del plan["sha256"]
    (family,) = plan["families"]
    family |= {name: value for name, value in about.items() if name in family}
    plan |= {name: value for name, value in about.items() if name not in family}
    write_hashed_json(folder / "search.json", plan)
    with pytest.raises(BenchmdError, match=match):
        read_search(folder)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"value": 1.7e308}, "its column value has"),
        ({"seconds": math.nan}, "its column seconds has a NaN"),
        ({"seconds": math.inf}, "its column seconds has"),
        ({"evaluations": -1}, "its column evaluations has -1"),
        ({"number": -7}, "its column number has -7"),
        ({"evaluations": 0}, "a value without an evaluation"),
        ({"curve": [None]}, "a point of its column curve is missing"),
        ({"curve": [{"step": 1, "value": None}]}, "a point of its column curve is missing"),
        ({"scores": [{"evaluation": None, "value": 0.5}]}, "a point of its column scores is"),
        ({"transfer.optimiser.lr": 0.0}, r"a trial has transfer\.optimiser\.lr 0\.0, expected"),
    ],
)
def test_trials_that_no_search_writes_are_refused(tmp_path, changes, match):
    rows = make_trials(3)
    rows[2] |= changes
    folder = make_search(tmp_path, rows=rows, finished=False)
    with pytest.raises(BenchmdError, match=match):
        read_search(folder)


def test_a_paired_score_may_be_above_one(tmp_path):
    """On folds where the start did worse than on the others."""
    rows = make_trials(3)
    rows[2] |= {"value": 1.02}
    record = read_search(make_search(tmp_path, rows=rows, finished=False))
    assert record.trials["value"].max() == 1.02


def test_a_table_of_trials_is_bounded(tmp_path, monkeypatch):
    folder = make_search(tmp_path, rows=make_trials(3), finished=False)
    trials = read_search(folder).trials
    points = sum(len(points) for name in ("curve", "scores") for points in trials[name])
    monkeypatch.setattr(record_form, "MOST_POINTS", points)
    read_search(folder)
    monkeypatch.setattr(record_form, "MOST_POINTS", points - 1)
    with pytest.raises(BenchmdError, match=f"3 trials and {points} points"):
        read_search(folder)


def test_a_trial_of_a_family_that_is_not_searched_is_refused(tmp_path):
    family = {**FAMILIES["mae linear"], "settings": [{}]}
    rows = make_trials(2, family="shed linear")
    folder = make_search(tmp_path, rows=rows, families=[family], finished=False)
    with pytest.raises(BenchmdError, match="of the family 'shed linear', not of the search"):
        read_search(folder)


def test_a_family_is_in_a_plan_once(tmp_path):
    family = {**FAMILIES["mae linear"], "settings": [{}]}
    folder = make_search(tmp_path, rows=make_trials(2), families=[family, family], finished=False)
    with pytest.raises(BenchmdError, match="a family is in it twice"):
        read_search(folder)


def test_a_kind_of_setting_that_is_not_known_is_refused():
    with pytest.raises(BenchmdError, match=r"kind of the searched setting a\.b 'logfloat'"):
        trials_schema([{"a.b": {"kind": "logfloat"}}])


def test_a_search_that_has_only_begun_has_no_trials(tmp_path):
    folder = make_search(tmp_path, finished=False)
    (folder / "trials.parquet").unlink()
    record = read_search(folder)
    assert len(record.trials) == 0
    assert record.counts == dict.fromkeys(record.counts, 0)
    assert draw(Analysis(records=[record]))[0] == []


def test_a_folder_that_is_no_search_is_refused_and_stores_without_any_are_fine(tmp_path):
    with pytest.raises(BenchmdError, match="is not a search"):
        read_search(tmp_path)
    assert searches([tmp_path]) == []


def test_of_two_copies_of_a_search_the_longer_is_taken(tmp_path):
    make_search(tmp_path / "a", rows=make_trials(5))
    make_search(tmp_path / "b", rows=make_trials(8))
    (record,) = searches([tmp_path / "a", tmp_path / "b", tmp_path / "a"])
    assert len(record.trials) == 8


@pytest.mark.parametrize(("version", "compared"), [(3, True), (2, False)])
def test_a_start_without_augmentation_is_compared_and_one_of_other_code_is_not(
    tmp_path, version, compared
):
    """Parts that the tuned settings use in addition have no counterpart in the start."""
    store = tmp_path / "runs"
    make_search(store)
    upstream = make_pretraining(store, "mae")
    scored(store, upstream=upstream, parts={"transfer": 3, "heads": 1})
    tuned_run(store, upstream, parts={"transfer": version, "heads": 1, "augmentation": 1})
    row = row_of(analyse(runs([store]), searches=searches([store]), resamples=20))
    assert row["protocol"].startswith("tuned")
    assert pd.notna(row["start_name"]) == compared
    assert np.isfinite(row["difference"]) == compared
