"""Charts of a board: what they draw, and costs and names that only a forger states."""

import warnings

import numpy as np
import pytest
from made_bundles import ROWS, forge, make_bundle, write_official

from benchmd_ray.board.build import board_of
from benchmd_ray.board.charts import HOURS, MOST_LISTED, MOST_POINTS, chart
from benchmd_ray.board.content import content
from benchmd_ray.board.official import read_official
from benchmd_ray.board.pages import pages
from benchmd_ray.report.canvas import svg_of

NAME = "<b>x 名前"


def made_rows(count, front=(1, 4, 6)):
    rng = np.random.default_rng(0)
    values = np.sort(rng.uniform(0.5, 0.9, count))[::-1].tolist()
    return [
        {
            **{"number": n, "name": f"entry {n}", "whose": "A lab (0123)", "caution": ""},
            **{"auroc": value, "auroc_low": value - 0.1, "auroc_high": value + 0.1},
            **{"group": 1 + (n > 5), "device_hours": None if n == 2 else 400.0 - n},
            "on_front": n in front,
        }
        for n, value in enumerate(values, start=1)
    ]


def drawn_points(axes):
    return {point for line in axes.lines for point in zip(*line.get_data(), strict=True)}


def test_a_chart_has_the_highest_entries_by_number_and_the_front():
    rows = made_rows(350, front=(1, 4, 340))
    drawn = chart("georgia, labels full", rows, "")
    left, right = drawn.figure.axes
    labels = [label.get_text() for label in left.get_yticklabels()]
    assert labels == [f"{n}. entry {n}\nA lab (0123)" for n in range(1, MOST_LISTED + 1)]
    listed = {(row["auroc"], n) for n, row in enumerate(rows[:MOST_LISTED])}
    assert listed <= drawn_points(left)
    expected = {(row["device_hours"], row["auroc"]) for row in [*rows[:MOST_POINTS], rows[339]]} - {
        (None, rows[1]["auroc"])
    }
    (front,) = [line for line in right.lines if line.get_linestyle() == "-"]
    assert expected == drawn_points(right)
    full = [line for line in right.lines if line.get_markerfacecolor() == line.get_color()]
    assert sorted(full[0].get_ydata()) == sorted(rows[n]["auroc"] for n in (0, 2, 3, 4))  # group 1
    assert [*front.get_xdata()] == [60.0, 396.0, 399.0]
    numbers = {text.get_text(): text.xy for text in right.texts}
    assert numbers["4"] == (396.0, rows[3]["auroc"])
    assert numbers.keys().isdisjoint({"2", f"{MOST_LISTED + 1}"})
    assert "5 of 350 entries in group 1" in drawn.title
    assert f"Left: the {MOST_LISTED} highest of 350" in drawn.caption
    assert right.get_xscale() == "linear"  # as hours differ by less than a power of ten


def test_without_costs_a_chart_has_one_panel_and_without_tests_no_groups():
    rows = [row | {"device_hours": None, "group": 1} for row in made_rows(3)]
    drawn = chart("georgia, labels full", rows, "15 patients")
    assert len(drawn.figure.axes) == 1
    assert not drawn.figure.legends
    assert "Right" not in drawn.caption
    assert drawn.title == "georgia, labels full: 3 entries, not tested"


@pytest.mark.parametrize("hours", [0.0, 1e-300, 9e18])
def test_a_stated_cost_does_not_hide_those_of_others(hours):
    rows = made_rows(20)
    rows[0]["device_hours"] = hours
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = chart("georgia, labels full", rows, "")
        svg_of(drawn.figure)
    axes = drawn.figure.axes[1]
    assert axes.get_xscale() == "log"
    low, high = axes.get_xlim()
    assert HOURS[0] / 100 < low < high < 100 * HOURS[1]
    edge = HOURS[0] if hours < 1 else HOURS[1]
    assert (edge, rows[0]["auroc"]) in drawn_points(axes)


def test_an_entry_without_a_score_is_drawn_as_nothing():
    rows = [row | dict.fromkeys(("auroc", "auroc_low", "auroc_high")) for row in made_rows(2, ())]
    drawn = chart("georgia, labels full", rows, "no class")
    assert len(drawn.figure.axes) == 1
    assert "<svg" in svg_of(drawn.figure)


def test_a_name_is_text_in_a_chart_and_beside_it_whose_it_is(tmp_path):
    def rename(about):
        about["submitter"] = NAME
        for run in about["runs"]:
            run["row"] = NAME + " " * 30 + "of a famous lab"

    folders = [forge(make_bundle(tmp_path / "a"), rename), make_bundle(tmp_path / "b", noise=1)]
    official = read_official(write_official(tmp_path / "official.parquet", ROWS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # also of letters that the font lacks
        board = board_of(folders, official, title="A board", resamples=20)
        assert not board.refused, board.refused
        data = content(board)
        of = dict(pages(data))
    assert '<img src="data:image/svg+xml' in of[data["datasets"][0]["page"]]
    (evil,) = [entry for entry in data["entries"] if entry["submitter"] == NAME]
    rows = [evil | evil["scores"][0] | {"number": 1}]
    svg = svg_of(chart("georgia", rows, "").figure)
    assert "1. &lt;b&gt;x 名前 of a famous lab, linear" in svg
    assert "&lt;b&gt;x 名前 (not signed)" in svg
    assert "<b>" not in svg
    alone = content(board_of(folders[:1], official, title="A board", resamples=20))
    page = dict(pages(alone))[data["datasets"][0]["page"]]
    assert "<img" not in page
    assert "being the only entry" in page
