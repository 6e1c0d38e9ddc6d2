"""Charts of a board: what they draw, and names that are no letters of their font."""

import re
import warnings

import numpy as np
from made_bundles import ROWS, forge, make_bundle, write_official

from benchmd_ray.board.build import board_of
from benchmd_ray.board.charts import MOST_LISTED, chart
from benchmd_ray.board.content import content
from benchmd_ray.board.official import read_official
from benchmd_ray.board.pages import pages
from benchmd_ray.report.canvas import svg_of

EVIL = "<b>x 名前"


def made_rows(count):
    rng = np.random.default_rng(0)
    values = np.sort(rng.uniform(0.5, 0.9, count))[::-1].tolist()
    return [
        {
            **{
                "name": f"entry {n}",
                "submitter": "A lab",
                "caution": "",
                "on_front": n in (0, 3, 5),
            },
            **{"auroc": value, "auroc_low": value - 0.1, "auroc_high": value + 0.1},
            **{"group": 1 + (n > 4), "device_hours": 2.0**-n if n != 1 else None},
        }
        for n, value in enumerate(values)
    ]


def test_a_chart_has_the_best_entries_by_number_and_the_front():
    rows = made_rows(40)
    drawn = chart("georgia", "fixed protocol, labels full", rows, 0)
    left, right = drawn.figure.axes
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == [f"entry {n}, A lab  {n + 1}" for n in range(MOST_LISTED)]
    points = {tuple(p) for line in left.lines for p in zip(*line.get_data(), strict=True)}
    assert {(row["auroc"], n) for n, row in enumerate(rows[:MOST_LISTED])} <= points
    full = [line for line in right.lines if line.get_markerfacecolor() == line.get_color()]
    assert sorted(full[0].get_xdata()) == sorted(2.0**-n for n in (0, 2, 3, 4))  # of group 1
    (front,) = [line for line in right.lines if line.get_linestyle() == "-"]
    assert [*front.get_xdata()] == sorted(row["device_hours"] for row in rows if row["on_front"])
    numbers = {t.get_text(): t.xy for t in right.texts}
    assert numbers["4"] == (2.0**-3, rows[3]["auroc"])
    assert "2" not in numbers  # states no cost
    assert str(MOST_LISTED + 1) not in numbers
    assert "5 of 40 entries in group 1" in drawn.title
    assert f"the {MOST_LISTED} highest of 40" in drawn.caption


def test_without_costs_a_chart_has_one_panel():
    rows = [row | {"device_hours": None} for row in made_rows(3)]
    drawn = chart("georgia", "fixed protocol, labels full", rows, 0)
    assert len(drawn.figure.axes) == 1
    assert "Right" not in drawn.caption


def test_a_name_is_text_in_a_chart(tmp_path):
    def rename(about):
        about["submitter"] = EVIL
        for run in about["runs"]:
            run["row"] = EVIL

    folder = forge(make_bundle(tmp_path / "a"), rename)
    official = read_official(write_official(tmp_path / "official.parquet", ROWS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        board = board_of([folder], official, title="A board", resamples=20)
        assert not board.refused, board.refused
        data = content(board)
        of = dict(pages(data))
    name = next(dataset["page"] for dataset in data["datasets"])
    assert re.search(r'<img src="data:image/svg\+xml', of[name])
    rows = [data["entries"][0] | data["entries"][0]["scores"][0]]
    svg = svg_of(chart("georgia", "x", rows, 0).figure)
    assert "&lt;b&gt;x 名前" in svg
    assert "<b>" not in svg
