"""The first table of a report, against the frames that it is made of."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from analysis_frames import SOURCES, invented

from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.formats import csv_text
from benchmd_ray.report.frames import with_mode
from benchmd_ray.report.matrix import (
    ALIKE,
    PAPER,
    caption_of,
    matrix_html,
    matrix_latex,
    matrix_markdown,
    matrix_of,
    method_text,
    written,
)

SETTINGS = ("linear", "finetune-full")


@pytest.fixture(scope="module")
def analysis():
    return invented(("ecg", "cxr"), settings=SETTINGS)


@pytest.fixture(scope="module")
def matrix(analysis):
    return matrix_of(analysis)


def mean_auroc(analysis):
    scores = analysis.scores
    return scores[(scores["metric"] == "auroc") & (scores["class"] == "mean")]


def highest(scores):
    return scores.loc[scores["value"].idxmax()]


def test_every_result_and_every_published_number_has_a_cell(analysis, matrix):
    frame = matrix.frame
    ours, papers = frame[frame["protocol"] != PAPER], frame[frame["protocol"] == PAPER]
    scores = mean_auroc(analysis)
    names = ["setting", "technique", "dataset"]
    for held, column in ((ours, "value"), (papers, "paper")):
        expected = scores.dropna(subset=column).set_index(names)[column].sort_index()
        pd.testing.assert_series_equal(
            held.set_index(names)["value"].sort_index(), expected, check_names=False
        )


def test_the_best_is_the_highest_and_what_no_test_tells_from_it_is_alike(analysis, matrix):
    """Place by place, by a slow look at the frames."""
    scores, checked = mean_auroc(analysis), set()
    for row in matrix.frame[matrix.frame["protocol"] != PAPER].to_dict("records"):
        rivals = scores[scores["dataset"] == row["dataset"]]  # of both settings: all labels
        best, name = (with_mode(r["technique"], r["setting"]) for r in (highest(rivals), row))
        expected = "best"
        if name != best:
            pairs = analysis.pairs[analysis.pairs["dataset"] == row["dataset"]]
            (p,) = pairs.loc[
                [{*pair} == {best, name} for pair in pairs[["a", "b"]].values], "p_holm"
            ]
            expected = "" if p < 0.05 else "alike"
        assert row["mark"] == expected
        checked.add(expected)
    assert checked == {"best", "alike", ""}


def test_where_nothing_could_be_tested_all_are_alike(analysis):
    untested = replace(analysis, pairs=analysis.pairs.assign(p_holm=np.nan))
    frame = matrix_of(untested).frame
    counts = frame[frame["protocol"] != PAPER]["mark"].value_counts()
    assert set(counts.index) == {"best", "alike"}
    assert counts["best"] == sum(1 + len(SOURCES[k][1]) for k in ("ecg", "cxr"))


def test_tuned_rows_compete_with_the_others_and_keep_their_mark(analysis):
    renamed = {"MAE": "MAE, tuned", "MAE, linear": "MAE, tuned, linear"}
    renamed["MAE, fine-tuning"] = "MAE, tuned, fine-tuning"
    tuned = {
        name: getattr(analysis, name).replace(dict.fromkeys(("technique", "a", "b"), renamed))
        for name in ("scores", "pairs", "ranking", "gaps")
    }
    is_tuned = tuned["scores"]["technique"] == "MAE, tuned"
    scores = tuned["scores"].assign(value=tuned["scores"]["value"].mask(is_tuned, 0.999))
    tuned["scores"] = scores.assign(protocol=scores["protocol"].mask(is_tuned, "tuned"))
    tuned["gaps"]["protocol"] = tuned["gaps"]["protocol"].mask(is_tuned, "tuned")
    made = matrix_of(replace(analysis, **tuned))
    frame = made.frame[made.frame["protocol"] == "tuned"]
    assert set(frame["mark"]) == {"best"}  # both modes have 0.999
    assert frame["mean_rank"].notna().all()
    assert "MAE, tuned" in {method_text(what) for what in made.methods}


def test_marks_are_of_rows_on_the_same_records_only(analysis):
    """Two groups of rows at one place, as of two catalogs: each has its best."""
    pairs = analysis.pairs
    first = {"scratch", "MAE"}
    sides = [[name.partition(",")[0] in first for name in pairs[end]] for end in ("a", "b")]
    apart = replace(analysis, pairs=pairs[np.equal(*sides)])
    frame = matrix_of(apart).frame
    ours = frame[(frame["protocol"] != PAPER) & (frame["dataset"] == "cpsc")]
    best = ours.loc[ours["mark"] == "best", "technique"]
    assert len(best) == 2
    assert sum(name in first for name in best) == 1


def test_one_technique_alone_is_not_the_best_of_anything():
    alone = invented(("eeg",), techniques=("MAE",), settings=("linear",))
    assert set(matrix_of(alone).frame["mark"]) == {""}


def test_gaps_and_ranks_are_means_over_the_targets_of_a_source(analysis, matrix):
    frame = matrix.frame
    own = frame[(frame["modality"] == "ecg") & (frame["protocol"] != PAPER)]
    for (setting, technique), rows in own.groupby(["setting", "technique"]):
        values = rows.set_index("dataset")["value"]
        targets = values[list(SOURCES["ecg"][1])]
        np.testing.assert_allclose(rows["gap"], values["ptb-xl"] - targets.mean())
        ranks = [(own[own["dataset"] == t]["value"] >= v).sum() for t, v in targets.items()]
        np.testing.assert_allclose(
            rows["mean_rank"], np.mean(ranks), err_msg=f"{technique}, {setting}"
        )


def test_who_does_not_take_part_everywhere_has_no_mean_rank(analysis):
    ranking = analysis.ranking
    missing = (ranking["technique"] == "MAE") & (ranking["dataset"] == "cpsc")
    frame = matrix_of(replace(analysis, ranking=ranking[~missing])).frame
    ecg = frame[(frame["modality"] == "ecg") & (frame["protocol"] != PAPER)]
    assert ecg.loc[ecg["technique"] == "MAE", "mean_rank"].isna().all()
    assert ecg.loc[ecg["technique"] == "ShED", "mean_rank"].notna().all()


def test_columns_are_targets_first_and_rows_setting_by_setting(matrix):
    text = written(matrix)
    assert text.heads == [
        *("chapman-shaoxing", "cpsc", "georgia", "ptb-xl (validation)", "gap", "rank"),
        *("chexpert", "vindr-cxr", "mimic-cxr (validation)", "gap", "rank"),
    ]
    assert text.groups == [("ecg", 6), ("cxr", 5)]
    methods = [(what[0], what[2], what[1]) for what, _ in text.rows]
    linear = [(t, p) for setting, t, p in methods if setting == "linear"]
    assert linear[:3] == [("scratch", "fixed"), ("scratch", PAPER), ("e-Mix", "fixed")]
    assert [setting for setting, *_ in methods] == sorted(
        (setting for setting, *_ in methods), key=SETTINGS.index
    )


def test_averages_of_runs_and_shuffled_labels_are_no_rows(analysis):
    scores = mean_auroc(analysis)
    others = [scores.assign(protocol=name) for name in ("tuned ensemble", "shuffled")]
    more = replace(analysis, scores=pd.concat([analysis.scores, *others]))
    assert set(matrix_of(more).frame["protocol"]) == {"fixed", PAPER}


def test_it_is_written_for_papers(matrix):
    text = written(matrix)
    best = sum(each.mark == "best" for _, cells in text.rows for each in cells)
    alike = sum(each.mark == "alike" for _, cells in text.rows for each in cells)
    assert min(best, alike) > 0
    table = matrix_markdown(matrix)
    assert (table.count("**") // 2, table.count(f" {ALIKE} |")) == (best, alike)
    latex = matrix_latex(matrix)
    assert latex.count(r"\textbf{") == best
    assert latex.count(r"$^{\approx}$") == alike
    rows = [line for line in latex.splitlines() if line.endswith(r" \\") and "emph" not in line]
    cells = {line.count(" & ") + 1 for line in rows if "multicolumn" not in line}
    assert cells == {1 + len(text.heads)}
    spans = [int(n) for n in re.findall(r"multicolumn\{(\d+)\}\{c\}", latex)]
    rules = [tuple(map(int, ends)) for ends in re.findall(r"cmidrule\(lr\)\{(\d+)-(\d+)\}", latex)]
    assert [last - first + 1 for first, last in rules] == spans
    assert all(one[1] + 1 == other[0] for one, other in pairwise(rules))
    assert ALIKE not in latex


def interval_of(cell):
    return cell.findall("span[@class='interval']")


def test_the_page_has_each_cell_once_with_its_interval(analysis, matrix):
    table = ElementTree.fromstring(matrix_html(matrix)).find("div/table")
    text = written(matrix)
    assert "".join(table.find("caption").itertext()) == caption_of(text)
    bodies = table.findall("tbody")
    assert [body.find("tr/th[@scope='rowgroup']").text for body in bodies] == list(SETTINGS)
    rows = [row for body in bodies for row in body.findall("tr")[1:]]
    assert len(rows) == len(text.rows)
    for row, (what, cells) in zip(rows, text.rows, strict=True):
        found = row.findall("td")
        intervals = ["".join(span.text for span in interval_of(cell)) for cell in found]
        said = [
            "".join(cell.itertext()).removesuffix(interval).rstrip(ALIKE)
            for cell, interval in zip(found, intervals, strict=True)
        ]
        assert said == [each.text for each in cells]
        assert [cell.find("b") is not None for cell in found] == [
            each.mark == "best" for each in cells
        ]
        titled = ["title" in cell.attrib for cell in found]
        assert titled == [each.cell is not None and what[1] != PAPER for each in cells]
        assert [bool(interval) for interval in intervals] == titled
    scratch = mean_auroc(analysis).query("dataset == 'cpsc' and setting == 'linear'").iloc[0]
    title = rows[0].findall("td")[1].attrib["title"]
    assert title == f"95 % interval {scratch['low']:.3f} to {scratch['high']:.3f}, 2 seeds"
    (printed,) = interval_of(rows[0].findall("td")[1])
    assert printed.text == f"[{scratch['low']:.3f}, {scratch['high']:.3f}]"
    assert ElementTree.fromstring(matrix_html(matrix)).attrib["data-matrix"] == csv_text(
        matrix.frame
    ).replace("\n", " ")  # as XML reads an attribute


def test_names_from_a_store_are_text():
    evil = invented(("ecg",), techniques=("scratch", "MAE"), settings=("linear",))
    name = {"MAE": "<script>x</script>|_&"}
    columns = dict.fromkeys(("technique", "a", "b"), name)
    named = {n: getattr(evil, n).replace(columns) for n in ("scores", "pairs", "ranking", "gaps")}
    made = matrix_of(replace(evil, **named))
    assert "<script>" not in matrix_html(made)
    assert "<script>" not in matrix_markdown(made)
    assert r"\_\&" in matrix_latex(made)


def test_without_a_classification_there_is_none():
    assert matrix_of(Analysis()) is None
