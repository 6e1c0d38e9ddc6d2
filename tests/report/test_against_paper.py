"""Our results next to the paper's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from stored import runs
from stores import make_transfer, predict_all

from benchmd_ray.benchmarks.benchmd.published import auroc as paper_auroc
from benchmd_ray.cli import main
from benchmd_ray.report.against_paper import COLUMNS, against_paper, comparison, summary
from benchmd_ray.report.frames import TECHNIQUES
from benchmd_ray.report.table import plain, shown

TECHNIQUE_IDS = {words: name for name, words in TECHNIQUES.items()}
TECHNIQUE_IDS |= dict.fromkeys(("scratch (lr 0.001)", "scratch, shuffled labels"), "scratch")


@pytest.fixture(scope="module")
def compared(report_store):
    return against_paper(runs([report_store]), resamples=100)


def test_every_cell_that_both_have_is_there(compared, report_analysis):
    scores = report_analysis.scores
    ours = scores[(scores["metric"] == "auroc") & (scores["class"] == "mean")]
    expected = [
        row
        for row in ours.itertuples(index=False)
        if (row.dataset, row.setting, TECHNIQUE_IDS.get(row.technique, "")) in paper_auroc()
    ]
    assert list(compared.columns) == list(COLUMNS)
    assert len(compared) == len(expected) > 30
    for row, other in zip(compared.itertuples(index=False), expected, strict=True):
        paper = paper_auroc()[other.dataset, other.setting, TECHNIQUE_IDS[other.technique]]
        assert (row.value, row.low, row.high) == (other.value, other.low, other.high)
        assert row.paper == paper
        assert row.difference == pytest.approx(other.value - paper)
        assert row.inside == (other.low <= paper <= other.high)
    assert compared["inside"].nunique() == 2


def test_what_is_not_comparable_says_why(compared):
    reasons = compared.groupby(["protocol", "split", "role"])["reason"].agg(set).to_dict()
    custom = "settings other than the fixed protocol's"
    unscored = "the paper does not score the split test"
    assert reasons == {
        ("fixed", "validation", "source"): {""},
        ("fixed", "test", "target"): {""},
        ("fixed", "test", "source"): {unscored},
        ("custom", "validation", "source"): {custom},
        ("custom", "test", "target"): {custom},
        ("custom", "test", "source"): {custom},
        ("shuffled", "validation", "source"): {"trained on shuffled labels"},
        ("shuffled", "test", "target"): {"trained on shuffled labels"},
        ("shuffled", "test", "source"): {"trained on shuffled labels"},
    }


def test_the_summary_counts_and_averages(compared):
    fair = compared[compared["reason"] == ""]
    inside = int(fair["inside"].sum())
    first, by_technique, *excluded = summary(compared)
    assert first.startswith(f"{len(fair)} comparable cells of BenchMD v2, tables 1 and 2: ")
    held = f"the paper's number is in our interval in {inside} of {len(fair)} with an interval;"
    assert held in first
    assert (
        f"mean difference (ours minus the paper's) {shown(fair['difference'].mean(), 'signed')}."
        in first
    )
    for technique, rows in fair.groupby("technique"):
        mean = shown(np.mean(rows["value"] - rows["paper"]), "signed")
        expected = f"{technique} {mean} ({len(rows)})"
        assert expected in by_technique
    assert sum(int(line.split()[2].rstrip(":")) for line in excluded) == len(compared) - len(fair)


def test_without_an_interval_nothing_is_said_to_be_outside_of_it(tmp_path):
    run = make_transfer(tmp_path / "runs")
    predict_all(run, {"ptb-xl": {"validation": 16}})  # of 8 patients
    (row,) = against_paper(runs([tmp_path / "runs"])).to_dict("records")
    assert np.isnan(row["low"])
    assert pd.isna(row["inside"])
    assert row["caution"] == "no interval: 8 patients"
    frame = against_paper(runs([tmp_path / "runs"]))
    texts, caption = plain(comparison(frame))
    (line,) = texts.to_dict("records")
    assert "paper inside –" in caption or line["paper inside"] == "–"
    assert line["ours [95 %]"] == f"{row['value']:.3f}"
    assert line["caution"] == "no interval: 8 patients"
    fair = frame.assign(reason="")
    assert "the paper's number is in our interval in 0 of 0 with an interval" in summary(fair)[0]


def invoke(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments), "--resamples", "20"])


def test_the_command_lists_what_is_comparable_and_writes_all(report_store, compared, tmp_path):
    path = tmp_path / "new" / "cells.csv"
    result = invoke("compare", report_store, "--out", path)
    assert result.exit_code == 0, result.output
    fair = compared[compared["reason"] == ""]
    head, *lines = result.stdout.splitlines()
    assert "policy clean" in head
    assert "not comparable" not in lines[0]
    assert lines.index("") - 2 == len(fair)
    assert "Use --all to show results that are not comparable." in result.output
    written = pd.read_csv(path, keep_default_na=False)
    assert written["paper"].tolist() == compared["paper"].tolist()
    assert written["reason"].tolist() == compared["reason"].tolist()
    everything = invoke("compare", report_store, "--all")
    assert everything.output.count("trained on shuffled labels") == 4  # three rows, one summary
    assert "--all" not in everything.output


def test_nothing_comparable_is_no_error(tmp_path):
    run = make_transfer(tmp_path / "runs", fixed=False)
    predict_all(run, {"ptb-xl": {"validation": 80}})
    result = invoke("compare", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert "No result is comparable with BenchMD v2, tables 1 and 2." in result.output
    assert "Not comparable, 1 result: settings other than the fixed protocol's." in result.output
    other = make_transfer(tmp_path / "others", source="isic-2017", modality="derm")
    predict_all(other, {"isic-2017": {"validation": 80}})
    result = invoke("compare", tmp_path / "others")
    assert (result.exit_code, result.output.splitlines()[-1]) == (
        0,
        "No result is comparable with BenchMD v2, tables 1 and 2.",
    )


def test_runs_without_predictions_are_refused(tmp_path):
    make_transfer(tmp_path / "runs")
    for command in ("compare", "report"):
        result = CliRunner().invoke(main, [command, str(tmp_path / "runs")])
        assert result.exit_code == 1
        assert "of 1 run none is finished and has predictions" in result.output


@pytest.mark.slow
def test_the_report_is_written(tmp_path):
    run = make_transfer(tmp_path / "runs")
    predict_all(run, {"ptb-xl": {"validation": 80}, "georgia": {"test": 80}})
    out = tmp_path / "report"
    result = invoke("report", tmp_path / "runs", "--out", out)
    assert result.exit_code == 0, result.output
    assert "ptb-xl (validation)" in result.output
    assert "AUROC: one-vs-rest" in result.output
    page = (out / "report.html").read_text("utf-8")
    assert "georgia" in page
    figures = sorted(path.name for path in (out / "figures").iterdir())
    figures.remove("figures.json")  # which names them for the next report
    assert figures
    assert {name.rpartition(".")[2] for name in figures} == {"png", "svg"}
    assert f"written: {len(figures) // 2} figures in {out / 'figures'}" in result.output
    again = invoke("report", tmp_path / "runs", "--out", tmp_path / "plain", "--figures", "none")
    assert again.exit_code == 0, again.output
    assert not (tmp_path / "plain" / "figures").exists()
    assert (tmp_path / "plain" / "report.html").is_file()
