"""What a comparison says: own and common means, tests, ranks, groups, pages."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from scipy.stats import kendalltau, kruskal, wilcoxon
from touchstone_scores import CLASSES, algorithm, simulated, write_csv

from benchmd_ray.benchmarks.touchstone import report
from benchmd_ray.benchmarks.touchstone.commands import compare_scores
from benchmd_ray.benchmarks.touchstone.comparing import compare
from benchmd_ray.benchmarks.touchstone.contests import Means, agreement
from benchmd_ray.benchmarks.touchstone.groups import ALL, CENTRED, RAW, compared_samples, organs
from benchmd_ray.benchmarks.touchstone.joining import joined
from benchmd_ray.benchmarks.touchstone.masks import Labels, VoxelGrid
from benchmd_ray.benchmarks.touchstone.metadata import Metadata
from benchmd_ray.benchmarks.touchstone.planes import centre, cut
from benchmd_ray.benchmarks.touchstone.report import group_tests_frame
from benchmd_ray.benchmarks.touchstone.report_figures import draw
from benchmd_ray.benchmarks.touchstone.report_figures import draw as draw_figures
from benchmd_ray.benchmarks.touchstone.report_page import write_comparison
from benchmd_ray.benchmarks.touchstone.report_rows import algorithms
from benchmd_ray.benchmarks.touchstone.report_rows import draw_algorithms as draw_rows
from benchmd_ray.benchmarks.touchstone.report_slices import draw_planes
from benchmd_ray.benchmarks.touchstone.scored import COMMON, NAMED, OWN, named_rows
from benchmd_ray.cli import main
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import benchmark
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.figures_parts import FigureContext, Skipped, Titled
from benchmd_ray.report.rows import whole_rows
from benchmd_ray.report.table import plain
from benchmd_ray.scores.comparison import holm
from benchmd_ray.scores.segmentation import of_labels


@pytest.fixture(scope="module")
def one():
    return compare(simulated(), resamples=200)


def test_own_means_and_sds_are_of_an_algorithms_own_cases(one):
    values = one.scores.values("dsc")
    for a, name in enumerate(one.scores.algorithms):
        held = one.cells[one.cells["algorithm"] == name].set_index("class")
        sds = [np.nanstd(values[:, a, c], ddof=1) for c in range(3)]
        for c, cls in enumerate(CLASSES):
            assert held.loc[cls, "own_mean"] == pytest.approx(np.nanmean(values[:, a, c]))
            assert held.loc[cls, "own_sd"] == pytest.approx(sds[c])
            assert held.loc[cls, "own_n"] == np.count_nonzero(~np.isnan(values[:, a, c]))
        assert held.loc["mean", "own_mean"] == pytest.approx(
            held.loc[[*CLASSES], "own_mean"].mean()
        )
        assert held.loc["mean", "own_sd"] == pytest.approx(np.mean(sds))


def test_the_average_is_of_class_means_and_not_of_cases():
    dsc = np.full((20, 3), np.nan)
    dsc[:, 0], dsc[0, 1], dsc[0, 2] = 1.0, 0.4, 0.1  # organs of one scan only
    found = compare(joined([algorithm("a", dsc), algorithm("b", dsc)]), resamples=20)
    average = found.cells[found.cells["class"] == "mean"]
    assert average["value"].tolist() == pytest.approx([0.5, 0.5])


def test_each_class_is_one_family_of_ordered_one_sided_tests(one):
    held = one.pairs[one.pairs["class"] == "liver"]
    assert len(held) == 6
    values = one.scores.common_values("dsc")[:, :, CLASSES.index("liver")]
    values = values[~np.isnan(values).any(axis=1)]
    place = {name: i for i, name in enumerate(one.scores.algorithms)}
    expected = [
        wilcoxon(values[:, place[a]], values[:, place[b]], alternative="greater").pvalue
        for a, b in zip(held["a"], held["b"], strict=True)
    ]
    np.testing.assert_allclose(held["p"], expected, rtol=1e-9)
    np.testing.assert_allclose(held["p_holm"], holm(expected))


def test_one_family_over_all_classes_is_stricter(one):
    together = compare(one.scores, family="all", resamples=20).pairs
    np.testing.assert_allclose(together["p_holm"], holm(together["p"]))
    assert (together["p_holm"] >= one.pairs["p_holm"] - 1e-15).all()


@pytest.mark.parametrize("cases", [20, 120])
def test_identical_scores_never_win_and_never_break_the_family(cases):
    dsc = np.random.default_rng(0).random((cases, 3))
    scores = joined([algorithm(n, d) for n, d in (("a", dsc), ("b", dsc), ("c", dsc * 0.5))])
    found = compare(scores, resamples=20)
    held = found.pairs.set_index(["class", "a", "b"])
    for cls in CLASSES:
        assert held.loc[(cls, "a", "b"), ["p", "p_holm"]].tolist() == [1, 1]
        assert held.loc[(cls, "a", "c"), "wins"]
    assert not found.pairs[["p", "p_holm"]].isna().any(axis=None)


def test_a_win_may_contradict_the_means_and_both_are_shown():
    rng = np.random.default_rng(0)
    steady = 0.9 + 0.01 * rng.random((60, 3))
    better = steady + 0.01
    better[:4] = 0.0  # better nearly everywhere, and missing a few
    scores = joined([algorithm("steady", steady), algorithm("better", better)])
    found = compare(scores, resamples=50)
    row = found.pairs.set_index(["class", "a", "b"]).loc[("liver", "better", "steady")]
    assert row["wins"]
    assert row["difference"] < 0
    ranks = found.ranking[found.ranking["class"] == "liver"].set_index("algorithm")
    assert ranks.loc["steady", "rank"] == 1  # average, then rank
    assert ranks.loc["better", "rank_by_cases"] == 1  # rank, then average
    figures = [each for each in draw(found) if isinstance(each, Titled)]
    assert any("against the order of the means" in each.title for each in figures)


def test_level_with_the_best_are_those_not_significantly_below_the_highest_mean(one):
    for cls in CLASSES:
        held = one.ranking[one.ranking["class"] == cls].sort_values("rank")
        tests = one.pairs[(one.pairs["class"] == cls) & (one.pairs["p_holm"] < 0.05)]
        beaten = tests.loc[tests["a"] == held["algorithm"].iloc[0], "b"]
        assert set(held.loc[~held["level"], "algorithm"]) == set(beaten)
        assert held["level"].iloc[0]


def test_ranks_in_resamples_carry_missing_organs():
    dsc = np.full((30, 3), np.nan)
    dsc[:3, 0], dsc[:, 1] = 0.5, 0.7
    found = compare(joined([algorithm("a", dsc), algorithm("b", dsc * 0.9)]), resamples=300)
    ranks = found.ranking.set_index(["class", "algorithm"])
    assert ranks.loc[("spleen", "a"), "first"] == 1  # resamples without the organ are skipped
    assert len(found.taus[found.taus["class"] == "spleen"]) < 300
    assert np.isnan(ranks.loc[("aorta", "a"), "rank"])
    assert ranks.loc[("mean", "a"), "value"] == pytest.approx(0.6)


def test_patients_with_several_scans_count_once_in_tests_and_resamples():
    scores = simulated(cases=30, absent=0.0)
    patients = {case: f"p{i // 3}" for i, case in enumerate(scores.cases)}
    found = compare(scores, metadata=Metadata(patients=patients), resamples=200)
    plain = compare(scores, resamples=200)
    assert set(found.pairs["n"]) == {10}
    assert set(plain.pairs["n"]) == {30}
    assert found.cells["value"].tolist() == plain.cells["value"].tolist()


def test_an_algorithm_that_is_too_slow_is_excluded_from_everything_but_the_speeds():
    fast, slow, unknown = (
        algorithm(n, np.random.default_rng(i).random((12, 3)), seconds=s)
        for i, (n, s) in enumerate((("fast", 2.0), ("slow", 90.0), ("unknown", math.nan)))
    )
    scores = joined([fast, slow, unknown])
    found = compare(scores, seconds_at_most=10, resamples=20)
    assert found.scores.algorithms == ("fast",)
    assert found.speed.set_index("algorithm")["excluded"].to_dict() == {
        "fast": False,
        "slow": True,
        "unknown": True,
    }
    assert any("more than 10 s for a volume, excluded: slow" in n for n in found.notes)
    assert any("not known whether at most 10 s" in n and "unknown" in n for n in found.notes)
    with pytest.raises(BenchmdError, match="no algorithm takes 1 s or less"):
        compare(scores, seconds_at_most=1)


def test_missed_and_spurious_organs_are_counted_by_their_codes():
    dsc = np.array([[0.9, 0.8, 0.0], [np.nan, 0.0, 0.7], [np.nan, np.nan, 0.6]])
    codes = ["both", "both", "missed", "spurious", "both", "both", "absent", "absent", "both"]
    volumes = [90, 80, 0, 12.5, 80, 80, 0, 0, 80]
    one = algorithm("a", dsc, code=codes, volume_pred_ml=volumes, hd95=[3, 4, np.inf] * 3)
    found = compare(joined([one]), resamples=10)
    held = found.missed.set_index("class")
    assert held.loc["aorta", ["with", "zero", "missed"]].tolist() == [3, 1, 1]
    assert held.loc["liver", ["with", "zero", "missed", "without"]].tolist() == [2, 1, 0, 1]
    assert held.loc["spleen", ["without", "spurious", "spurious_ml"]].tolist() == [2, 1, 12.5]
    quantiles = found.distances.set_index("class")
    assert quantiles.loc["aorta", "infinite"] == 3
    assert np.isinf(quantiles.loc["aorta", "median"])
    assert quantiles.loc["liver", "median"] == 4


def test_without_codes_missed_organs_are_not_guessed(one):
    assert one.missed["missed"].isna().all()
    assert one.missed["spurious"].isna().all()


def grouped(values, labels, variable="sex"):
    """A comparison of one algorithm whose cases have groups."""
    scores = joined([algorithm("a", values), algorithm("b", values)])
    named = dict(zip(scores.cases, labels, strict=True))
    return compare(scores, metadata=Metadata("meta", {variable: named}), resamples=10)


def test_the_omnibus_test_of_groups_is_of_one_algorithm_at_a_time():
    rng = np.random.default_rng(0)
    scores = joined([algorithm(f"n{i}", rng.random((40, 3)) * (i + 1) / 9) for i in range(8)])
    labels = dict(zip(scores.cases, ["m", "f"] * 20, strict=True))
    found = compare(scores, metadata=Metadata("meta", {"sex": labels}), resamples=10)
    tests = group_tests_frame(found).set_index(["algorithm", "class"])
    liver = scores.values("dsc")[:, 0, 1]
    expected = kruskal(liver[0::2], liver[1::2]).pvalue
    assert tests.loc[("n0", "liver"), "kruskal_p"] == pytest.approx(expected)
    # all boxes of algorithms and groups together would differ beyond doubt, by algorithm
    pooled = [scores.values("dsc")[g::2, a, 1] for a in range(8) for g in (0, 1)]
    assert kruskal(*pooled).pvalue < 1e-10 < tests.loc[(ALL, "liver"), "kruskal_p"]


def test_a_mean_over_organs_does_not_tell_groups_apart_by_which_organs_they_show():
    rng = np.random.default_rng(0)
    easy, hard = 0.9 + 0.02 * rng.random(80), 0.3 + 0.02 * rng.random(80)
    dsc = np.full((80, 3), np.nan)
    dsc[:40, 0], dsc[40:, 1] = easy[:40], hard[40:]
    dsc[::4, 0], dsc[1::4, 1] = easy[::4], hard[1::4]
    found = grouped(dsc, ["trunk"] * 40 + ["trauma"] * 40, "diagnosis")
    p = found.groups[found.groups["algorithm"] == ALL].groupby("class")["kruskal_p"].first()
    assert p[RAW] < 1e-6 < 0.01 < p[CENTRED]
    centred = organs(dsc, CLASSES)[CENTRED]
    assert np.nanmean(centred[:40]) == pytest.approx(np.nanmean(centred[40:]), abs=0.01)


def test_groups_do_not_depend_on_the_order_of_algorithms():
    rng = np.random.default_rng(0)
    one = algorithm("one", rng.random((40, 3)))
    cases = [f"s{i:04}" for i in range(30)]
    other = algorithm("other", np.where(rng.random((30, 3)) < 0.3, np.nan, 0.5), cases=cases)
    named = {f"s{i:04}": "ab"[i % 2] for i in range(40)}
    frames = [
        compare(joined(pair), metadata=Metadata("meta", {"sex": named}), resamples=10).groups
        for pair in ((one, other), (other, one))
    ]
    keys = ["algorithm", "class", "group"]
    forth, back = (f.sort_values(keys, ignore_index=True) for f in frames)
    pd.testing.assert_frame_equal(forth, back)
    both = forth[(forth["algorithm"] == ALL) & (forth["class"] == "spleen")]
    assert both["patients"].sum() <= 30  # the mean algorithm is of cases that all have


def test_small_groups_and_unknown_ones_are_named_with_their_size():
    labels = ["m"] * 10 + ["f"] * 10 + ["x"] * 3 + [None] * 2
    found = grouped(np.random.default_rng(0).random((25, 3)), labels)
    assert found.groups_excluded[["group", "patients"]].values.tolist() == [
        ["x", 3],
        ["unknown", 2],
    ]
    assert set(found.groups["group"]) == {"m", "f"}


def test_two_sets_agree_as_scipys_tau_says_and_open_pairs_widen_the_interval():
    rng = np.random.default_rng(0)
    names, values = ("a", "b", "c", "d"), np.array([0.9, 0.8, 0.7, 0.69])
    draws = values + 0.01 * rng.normal(size=(500, 4))
    one = Means(names, values, draws, 100)
    other = Means(("d", "c", "b", "a", "e"), np.array([60, 70, 85, 80, 1.0]), None, 0)
    found = agreement(one, other)
    assert found.tau == pytest.approx(kendalltau(values, [80, 85, 70, 60]).statistic)
    assert found.algorithms == 4
    assert found.known == 5  # c and d are too close on the first set
    assert (found.low, found.high) == pytest.approx(((4 - 1 - 1) / 6, (4 - 1 + 1) / 6))
    assert np.isnan(agreement(one, Means(("a", "b"), np.array([1.0, 2.0]), None, 0)).tau)


def test_another_test_set_is_compared_algorithm_by_algorithm(one):
    there = simulated(5)
    found = compare(one.scores, resamples=100, against=there, other="elsewhere")
    assert set(found.distance["class"]) == {*CLASSES, "mean"}
    rows = found.distance.set_index("class")
    for c, name in enumerate(CLASSES):
        means = [np.nanmean(s.common_values("dsc")[:, :, c], axis=0) for s in (one.scores, there)]
        assert rows.loc[name, "tau"] == pytest.approx(kendalltau(*means).statistic)
    assert (rows["low"] <= rows["tau"]).all()
    assert (rows["tau"] <= rows["high"]).all()
    assert "elsewhere" in report.distance(found).caption


def test_a_box_of_masks_is_drawn_in_three_planes_through_the_references_centre():
    reference = np.zeros((12, 20, 30), np.uint8)
    reference[3:9, 5:15, 10:20] = 1
    prediction = np.roll(reference, 2, axis=2)
    assert centre(reference > 0) in [(5, y, x) for y in (9, 10) for x in (14, 15)]
    grid = VoxelGrid(reference.shape, (5.0, 1.0, 1.0), (0, 0, 0), (1, 0, 0, 0, 1, 0, 0, 0, 1))
    sides = [of_labels(mask, {1: 0}, 1) for mask in (reference, prediction)]
    figure = Figure()
    axes = figure.subplots(1, 3)
    draw_planes(axes, cut(*sides, grid, 0, Labels(np.zeros(reference.shape), grid)))
    figure.canvas.draw()
    contours = [len(each.collections) for each in axes]
    assert contours == [3, 3, 3]  # the image, the reference, the prediction
    hollow = cut(sides[0], of_labels(np.zeros_like(reference), {1: 0}, 1), grid, 0)
    draw_planes(figure.subplots(1, 3), hollow)


@pytest.mark.parametrize(("air", "window"), [(-1000, (-160.0, 240.0)), (0, (5.0, 495.0))])
def test_an_image_is_shown_as_ct_where_it_has_air_else_by_its_own_values(air, window):
    mask = np.zeros((1, 1, 511), np.uint8)
    mask[..., 10:511] = 1
    values = np.full(mask.shape, air, np.int16)
    values[..., 10:511] = np.arange(501)
    grid = VoxelGrid(mask.shape, (1.0, 1.0, 99.0), (0, 0, 0), (1, 0, 0, 0, 1, 0, 0, 0, 1))
    side = of_labels(mask, {1: 0}, 1)
    found = cut(side, side, grid, 0, Labels(values, grid))
    assert found.window == pytest.approx(window, abs=2)
    other = replace(grid, spacing=(1.0, 1.0, 2.0))
    unlike = cut(side, side, grid, 0, Labels(values, other))
    assert "spacing 1 × 1 × 2 mm, expected 1 × 1 × 99 mm" in unlike.note
    assert all(plane.image is None for plane in unlike.views)


def test_worst_cases_are_those_of_the_lowest_mean_over_algorithms(one):
    values = one.scores.common_values("dsc")[:, :, 1].mean(axis=1)
    held = one.worst[one.worst["class"] == "liver"]
    expected = np.array(one.scores.cases)[np.argsort(values)[:10]]
    assert held["case"].tolist() == expected.tolist()
    assert (held["worst_value"] <= held["value"]).all()


@pytest.mark.slow
def test_the_folder_has_page_tables_and_figures_and_nothing_of_before(tmp_path):
    one = compare(simulated(classes=("liver",)), resamples=50)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "map-old.png").write_bytes(b"")
    (tmp_path / "figures" / "own.png").write_bytes(b"the user's")
    (tmp_path / "figures" / "figures.json").write_text('["map-old.png", "../own.png", 1]')
    (tmp_path / "speed.tex").write_text("old")
    said = write_comparison(one, tmp_path)
    page = (tmp_path / "comparison.html").read_text("utf-8")
    assert {"results.csv", "published.md", "common.tex", "pairs.csv"} <= {
        path.name for path in tmp_path.iterdir()
    }
    pictures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"map-dsc-liver.png", "dots-dsc.svg", "blob-dsc.png", "tau-dsc.png"} <= pictures
    assert "map-old.png" not in pictures
    assert "own.png" in pictures
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)  # it needs nothing else
    assert "without masks" in " ".join(said)
    text = (tmp_path / "published.md").read_text("utf-8")
    assert re.search(r"\| net-0 \| \d\d\.\d ± \d+\.\d \(\d+\)", text)  # n in every cell


def test_names_from_files_are_text_on_the_page(tmp_path):
    evil = "<script>alert(1)</script>"
    scores = joined([algorithm(evil, np.random.default_rng(0).random((12, 3)))])
    write_comparison(compare(scores, resamples=10), tmp_path)
    assert evil not in (tmp_path / "comparison.html").read_text("utf-8")
    assert all("script" not in p.name for p in (tmp_path / "figures").iterdir() if "<" in p.name)


@pytest.mark.parametrize(("algorithms", "cases"), [(1, 1), (1, 12), (2, 1), (3, 2)])
def test_few_algorithms_and_cases_make_a_page_that_says_what_is_missing(
    tmp_path, algorithms, cases
):
    rng = np.random.default_rng(0)
    values = [rng.random((cases, 1)) for _ in range(algorithms)]
    scores = joined([algorithm(f"n{i}", v, classes=("liver",)) for i, v in enumerate(values)])
    one = compare(scores, resamples=10)
    assert any(isinstance(each, Skipped) for each in draw(one))
    write_comparison(one, tmp_path, figures=False)
    assert (tmp_path / "comparison.html").is_file()


def test_algorithms_without_a_case_in_common_are_refused():
    one, other = (
        algorithm(n, np.full((3, 3), 0.5), cases=[f"{n}{i}" for i in range(3)]) for n in "ab"
    )
    with pytest.raises(BenchmdError, match="have no case in common"):
        compare(joined([one, other]))


def test_the_command_compares_a_folder_of_csvs(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("nnU-Net_U-Net", "_MedFormer"):
        write_csv(tmp_path / "csv" / name, rng.random((15, 3)))
    (tmp_path / "meta.csv").write_text(
        "name,sex\n" + "".join(f"s{i:04},{'mf'[i % 2]}\n" for i in range(15))
    )
    asked = [
        "segment",
        "compare",
        "--scores",
        tmp_path / "csv",
        "--resamples",
        "50",
        "--figures",
        "none",
    ]
    asked += ["--metadata", tmp_path / "meta.csv", "--out", tmp_path / "out"]
    result = CliRunner().invoke(main, list(map(str, asked)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "U-Net" in result.output
    assert (tmp_path / "out" / "groups.csv").is_file()
    both = CliRunner().invoke(main, [*map(str, asked), str(tmp_path)])
    assert both.exit_code == 1
    assert "one of the two" in both.output


def test_documented_commands_have_the_options_that_they_name():
    docs = Path(__file__).resolve().parents[2] / "docs"
    pages = [path.read_text("utf-8") for path in docs.glob("touchstone*.md")]
    lines = re.findall(r"^benchmd segment compare .*$", "\n".join(pages), re.M)
    known = {option for each in compare_scores.params for option in each.opts}
    assert len(lines) >= 4
    assert {option for line in lines for option in re.findall(r"--[a-z-]+", line)} <= known


def test_score_rows_of_named_folders_have_the_columns_of_reports(tmp_path, monkeypatch):
    assert named_rows().empty
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        write_csv(tmp_path / "jhh" / name, rng.random((15, 3)))
    monkeypatch.setenv(NAMED, str(tmp_path / "jhh"))
    rows = whole_rows(benchmark("touchstone").rows(()))
    assert set(rows["protocol"]) == {COMMON, OWN}
    assert set(rows["dataset"]) == {"jhh"}
    mean = rows[(rows["class"] == "mean") & (rows["metric"] == "dsc") & (rows["technique"] == "a")]
    assert mean["value"].nunique() == 1  # both have all cases
    assert (rows["run"] == "").all()
    analysis = Analysis(rows=rows)
    table, _ = plain(algorithms(analysis))
    assert set(table["algorithm"]) == {"a", "b"}
    (figure,) = draw_rows(FigureContext(analysis, {}, ()))
    assert figure.name == "segmentation-jhh-dsc"
    nothing = Analysis(rows=whole_rows(pd.DataFrame()))
    assert algorithms(nothing) is None
    assert not list(draw_rows(FigureContext(nothing, {}, ())))


def test_equal_algorithms_share_a_rank_and_a_title():
    dsc = np.random.default_rng(0).random((30, 3))
    one = compare(joined([algorithm(name, dsc) for name in ("a", "b")]), resamples=20)
    table, _ = plain(report.headline(one))
    assert all(rank.startswith("1.5") for rank in table["rank [95 %]"])
    drawn = [each for each in draw_figures(one) if isinstance(each, Titled)]
    assert any(each.title.startswith("Highest average DSC on common cases: a, b") for each in drawn)


def test_groups_are_drawn_by_the_patients_that_are_tested():
    dsc = np.random.default_rng(0).random((40, 3))
    cases = [f"s{i:04}" for i in range(40)]
    metadata = Metadata(
        "meta",
        {
            "sex": {case: "fm"[i % 2] for i, case in enumerate(cases)},
            "site": dict.fromkeys(cases, "x"),
        },
        {case: f"p{i // 4}{i % 2}" for i, case in enumerate(cases)},
        cases=frozenset(cases),
    )
    one = compare(joined([algorithm("a", dsc)]), metadata=metadata, resamples=20)
    found = compared_samples(one.scores, metadata, "sex", "dsc")
    rows = one.groups[(one.groups["algorithm"] == ALL) & (one.groups["class"] == CENTRED)]
    rows = rows[rows["variable"] == "sex"].set_index("group")
    for name, sample in found.items():
        assert len(sample) == rows.loc[name, "patients"] == 10
        assert np.median(sample) == pytest.approx(rows.loc[name, "median"])
    (figure,) = [each for each in draw_figures(one) if each.name == "groups"]
    titles = [axes.get_title(loc="left") + axes.get_title() for axes in figure.figure.axes]
    assert any("site (one group, no test)" in title for title in titles)
