"""Figures of the report: they hold the frame's numbers, and claim no more than these allow."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import psutil
import pytest
from analysis_frames import SOURCES, invented, made, without_intervals
from matplotlib.backends.backend_agg import FigureCanvasAgg
from sklearn.metrics import roc_auc_score

from benchmd_ray.data import forked
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report import canvas, figures_groups, figures_ranks
from benchmd_ray.report.analysis import _roc
from benchmd_ray.report.canvas import (
    OTHER_LOOKS,
    TECHNIQUE_LOOKS,
    compact,
    new_figure,
    styled,
    svg_of,
    technique_looks,
    write,
    write_all,
)
from benchmd_ray.report.figures_curves import (
    draw_main_curves,
    draw_other_curves,
    mean_curve,
    pooled_bins,
)
from benchmd_ray.report.figures_forest import draw_forests
from benchmd_ray.report.figures_groups import (
    draw_differing_subgroups,
    draw_other_subgroups,
    letters,
)
from benchmd_ray.report.figures_labels import draw_label_efficiency
from benchmd_ray.report.figures_parts import (
    FigureContext,
    Titled,
    in_distribution,
    over_targets,
    studies,
)
from benchmd_ray.report.figures_ranks import (
    draw_critical_differences,
    draw_main_difference,
    draw_rankings,
)
from benchmd_ray.report.figures_scores import draw_results
from benchmd_ray.report.figures_training import draw_training
from benchmd_ray.report.figures_wording import differences, judged, sizes
from benchmd_ray.report.frames import KEY, with_mode
from benchmd_ray.report.report_figures import draw, figures
from benchmd_ray.scores.stability import critical_difference
from benchmd_ray.scores.sums import BINS

PROTOCOLS = ("custom", "tuned", "shuffled", "start ensemble")
SECTIONS = [
    "Results",
    "Label efficiency",
    "Significance",
    "Subgroups",
    "ROC and calibration",
    "Training",
]


@pytest.fixture(scope="module")
def images():
    """Six techniques, three datasets, five settings, two seeds."""
    return invented(("cxr",), effect=0.01)


@pytest.fixture(scope="module")
def drawn(images):
    return {one.name: one for one in figures(images, resamples=1000)}


@pytest.fixture(scope="module")
def small():
    return invented(("eeg",), techniques=("scratch", "MAE"), settings=("linear",), seeds=1)


def only(topic, analysis):
    """Figures of one topic by name."""
    looks = technique_looks(analysis.scores["technique"])
    with styled():
        found = list(
            topic(FigureContext(analysis, looks, studies(analysis.scores, analysis.modalities)))
        )
    return {one.name: one for one in found}


def panels(titled):
    return [axes for axes in titled.figure.axes if axes.get_title(loc="left")]


def panel(titled, start):
    (found,) = [a for a in panels(titled) if a.get_title(loc="left").startswith(start)]
    return found


def line(axes, label):
    (found,) = [one for one in axes.lines if one.get_label() == label]
    return found


def auroc(analysis, **where):
    rows = analysis.scores
    rows = rows[(rows["metric"] == "auroc") & (rows["class"] == "mean")]
    return chosen(rows, **where)


def chosen(rows, **where):
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows


def segments(axes):
    """Ends of the intervals that are drawn, in order of x."""
    found = [np.asarray(s) for held in axes.collections for s in held.get_segments()]
    return {round(float(s[0, 0]), 6): tuple(np.round(s[:, 1], 9)) for s in found}


# --- what is drawn is what the frame holds


def test_sections_come_in_the_order_of_the_report_and_names_are_unique(drawn, images):
    order = [SECTIONS.index(one.section) for one in drawn.values()]
    assert order == sorted(order)
    assert set(order) == set(range(len(SECTIONS)))
    assert len(drawn) == 5 + 2 + (2 + 1) + 3 + 2 * 3 + 2  # each name once


def test_figures_of_classification_have_nothing_of_a_single_record(drawn):
    assert len(drawn) > 20
    assert all(one.aggregate for one in drawn.values())


@pytest.mark.slow
def test_figures_are_few_unless_all_are_asked_for(images, drawn):
    main = {one.name: one for one in figures(images, which="main")}
    assert list(main) == [name for name in drawn if name in main]
    subgroups = [name for name in main if name.startswith("subgroups")]
    assert set(main) - set(subgroups) == {
        *("change", "gap", "auroc", "label-efficiency"),
        *(f"{topic}-cxr-mimic-cxr-chexpert-test" for topic in ("roc", "reliability")),
    }
    tests = images.subgroups[images.subgroups["setting"] == "finetune-full"]
    tests = tests.drop_duplicates(["dataset", "split", "variable", "technique"])
    for (dataset, split), held in tests.groupby(["dataset", "split"]):
        survives = held["p"].min() * held["p"].count() < 0.05
        assert (f"subgroups-cxr-mimic-cxr-{dataset}-{split}" in subgroups) == survives
    assert {one.name for one in main.values() if one.folded} == {
        name for name in main if name.startswith(("roc", "reliability"))
    }
    assert draw(images, which="none") == ([], [])


def test_a_dataset_with_two_splits_has_a_row_for_each(images):
    twice = images.changes[images.changes["dataset"] == "chexpert"].assign(split="validation")
    both = replace(images, changes=pd.concat([images.changes, twice], ignore_index=True))
    (axes,) = panels(only(draw_forests, both)["change"])
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert {"chexpert (test)", "chexpert (validation)", "vindr-cxr"} <= set(labels)


def test_the_one_diagram_is_of_targets_and_has_no_shuffled_labels():
    analysis = invented(tuple(SOURCES), techniques=("scratch", "e-Mix", "MAE"), seeds=1)
    shuffled = analysis.scores.assign(protocol="shuffled")
    both = replace(analysis, scores=pd.concat([analysis.scores, shuffled], ignore_index=True))
    assert list(only(draw_main_difference, both)) == ["critical-difference-targets"]
    few = only(draw_main_difference, invented(("eeg",), techniques=("scratch", "MAE")))
    assert all(hasattr(one, "reason") for one in few.values())


@pytest.mark.slow
def test_all_modalities_have_about_twenty_figures():
    main = figures(invented(tuple(SOURCES), settings=("linear", "finetune-full")), which="main")
    assert len([one for one in main if one.section != "Subgroups"]) <= 20


@pytest.mark.parametrize("technique", ["scratch", "ImageNet, then MAE"])
def test_auroc_in_distribution_is_the_frame_s_with_intervals_and_the_paper_s(
    drawn, images, technique
):
    axes = panel(drawn["auroc"], "cxr, mimic-cxr: in distribution")
    rows = auroc(images, dataset="mimic-cxr", technique=technique)
    points = line(axes, technique)
    assert points.get_ydata() == pytest.approx(rows["value"])
    assert line(axes, f"{technique}, paper").get_ydata() == pytest.approx(rows["paper"])
    assert line(axes, f"{technique}, paper").get_markerfacecolor() == "white"
    ends = segments(axes)
    for x, low, high in zip(points.get_xdata(), rows["low"], rows["high"], strict=True):
        assert ends[round(x, 6)] == pytest.approx((low, high))


def test_a_technique_without_a_paper_s_number_has_no_hollow_mark(drawn):
    axes = panel(drawn["auroc"], "cxr, mimic-cxr: in distribution")
    assert "e-Mix" in [one.get_label() for one in axes.lines]
    assert "e-mix, paper" not in [one.get_label() for one in axes.lines]


def test_targets_are_averaged_and_several_seeds_average_the_interval_s_ends(drawn, images):
    axes = panel(drawn["auroc"], "cxr: mean of targets chexpert, vindr-cxr")
    rows = auroc(images, role="target", technique="MAE")
    mean = rows.groupby("setting", sort=False)[["value", "low", "high"]].mean()
    points = line(axes, "MAE")
    assert points.get_ydata() == pytest.approx(mean["value"])
    ends = segments(axes)
    for x, low, high in zip(points.get_xdata(), mean["low"], mean["high"], strict=True):
        assert ends[round(x, 6)] == pytest.approx((low, high))


def test_targets_of_one_seed_add_their_intervals_in_quadrature():
    rows = auroc(invented(("cxr",), seeds=1, settings=("linear",)), technique="MAE")
    found = over_targets(rows, one_seed=True).iloc[0]
    targets = rows[rows["role"] == "target"]
    half = np.sqrt(((targets["high"] - targets["value"]) ** 2).sum()) / 2
    assert found["high"] - found["value"] == pytest.approx(half)
    assert found["value"] - found["low"] == pytest.approx(half)  # invented intervals are even
    wide = over_targets(rows, one_seed=False).iloc[0]
    assert wide["high"] > found["high"]


def test_a_technique_that_lacks_a_target_has_no_mean_over_targets(images):
    scores = images.scores
    lacking = (scores["technique"] == "MAE") & (scores["dataset"] == "chexpert")
    whole = auroc(replace(images, scores=scores[~lacking]))
    assert "MAE" not in set(over_targets(whole, one_seed=False)["technique"])
    assert "ShED" in set(over_targets(whole, one_seed=False)["technique"])


def marks(axes, technique):
    """Of a forest plot: value, place on the y axis, and whether it is filled, from the top."""
    held = [one for one in axes.lines if one.get_label() == technique]
    return sorted(
        (float(y), float(x), one.get_markerfacecolor() != "white")
        for one in held
        for x, y in zip(one.get_xdata(), one.get_ydata(), strict=True)
    )


@pytest.mark.parametrize(
    ("name", "setting"),
    [("change", "finetune-full"), ("change-by-setting-cxr-mimic-cxr", None)],
)
def test_changes_are_the_frame_s_a_row_for_each_dataset(drawn, images, name, setting):
    (axes,) = panels(drawn[name])
    rows = chosen(images.changes, technique="ShED", metric="auroc")
    rows = chosen(rows, setting=setting) if setting else rows
    labels = [text.get_text() for text in axes.get_yticklabels()]
    found = marks(axes, "ShED")
    assert len(found) == len(labels) == len(rows)
    (ends,) = [
        {round(float(s[0, 1]), 6): s[:, 0] for c in axes.collections for s in c.get_segments()}
    ]
    for y, value, filled in found:
        dataset, _, short = labels[round(y)].partition("\n")
        row = chosen(rows, dataset=dataset.partition(" ")[0])
        row = row[np.isclose(row["value"], value)].iloc[0]
        assert ends[round(y, 6)] == pytest.approx((row["low"], row["high"]))
        assert filled == (row["p"] < 0.05)
        assert (short == "") == (setting is not None)
    assert labels[0].startswith("mimic-cxr (validation)")
    assert axes.get_xlim()[0] < 0 < axes.get_xlim()[1]


def test_gaps_are_the_frame_s(drawn, images):
    (axes,) = panels(drawn["gap"])
    rows = chosen(images.gaps, technique="MAE", metric="auroc", setting="finetune-full")
    assert [value for _, value, _ in marks(axes, "MAE")] == pytest.approx(rows["gap"])
    assert [t.get_text() for t in axes.get_yticklabels()] == list(rows["dataset"])


def test_each_panel_of_a_forest_has_limits_of_its_own(images):
    other = invented(("eeg",), effect=0.01)
    wide = other.changes.assign(**{c: 9 * other.changes[c] for c in ("value", "low", "high")})
    both = replace(
        images,
        modalities=("cxr", "eeg"),
        scores=pd.concat([images.scores, other.scores], ignore_index=True),
        changes=pd.concat([images.changes, wide], ignore_index=True),
    )
    cxr, eeg = panels(only(draw_forests, both)["change"])
    assert cxr.get_title(loc="left").startswith("cxr")
    assert np.ptp(eeg.get_xlim()) > 3 * np.ptp(cxr.get_xlim())
    for axes, rows in ((cxr, images.changes), (eeg, wide)):
        rows = chosen(rows, metric="auroc", setting="finetune-full")
        assert axes.get_xlim()[0] < rows["low"].min() <= rows["high"].max() < axes.get_xlim()[1]


def test_legends_stand_between_title_and_panels(drawn):
    for name in ("change", "auroc", "label-efficiency"):
        figure = drawn[name].figure
        FigureCanvasAgg(figure).draw()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert box.y1 < figure._suptitle.get_window_extent().y0
        assert all(axes.title.get_window_extent().y1 < box.y0 for axes in panels(drawn[name]))


def test_label_efficiency_joins_the_fine_tuned_settings_with_bands(drawn, images):
    axes = panel(drawn["label-efficiency-cxr-mimic-cxr"], "chexpert")
    rows = auroc(images, dataset="chexpert", technique="ImageNet")
    rows = rows[rows["setting"] != "linear"]
    curve = line(axes, "ImageNet")
    assert curve.get_ydata() == pytest.approx(rows["value"])
    assert curve.get_xdata()[:3] == pytest.approx(np.log2([8, 64, 256]))
    assert curve.get_linestyle() != "none"
    labels = [one.get_label() for one in axes.lines]
    band = axes.collections[labels.index("ImageNet")]
    vertices = band.get_paths()[0].vertices[:, 1]
    assert {*np.round(rows["low"], 9), *np.round(rows["high"], 9)} <= {*np.round(vertices, 9)}


def test_axes_of_auroc_reach_down_to_chance(drawn):
    names = ("auroc", "label-efficiency-cxr-mimic-cxr", "subgroups-cxr-mimic-cxr-chexpert-test")
    for name in names:
        assert max(axes.get_ylim()[0] for axes in panels(drawn[name])) <= 0.5, name


def test_ranks_are_the_frame_s_best_on_top_with_tau_in_the_title(drawn, images):
    titled = drawn["ranking-cxr-mimic-cxr"]
    assert len(panels(titled)) == 3 * 4  # datasets, numbers of labels
    axes = panel(titled, "chexpert (test, target), all labels")
    assert axes.get_title(loc="left").endswith("τ\u00a00.70")
    rows = chosen(images.ranking, dataset="chexpert", labels="full").sort_values("rank")
    drawn_ranks = [float(one.get_xdata()[0]) for one in axes.lines if len(one.get_xdata()) == 1]
    assert drawn_ranks == rows["rank"].tolist()
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [*map(with_mode, rows["technique"], rows["setting"])]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def test_the_title_of_ranks_counts_the_first_that_tests_put_ahead(images):
    ranking = images.ranking
    title = only(draw_rankings, images)["ranking-cxr-mimic-cxr"].title
    ahead = int((ranking["high"] == 1).sum())
    cells = len(ranking.drop_duplicates(["dataset", "labels"]))
    assert f"ahead of all others in {ahead}\u00a0of\u00a0{cells}" in title
    few = replace(images, ranking=without_intervals(ranking))
    title = only(draw_rankings, few)["ranking-cxr-mimic-cxr"].title
    assert "too few patients to test whether rows differ" in title


def test_critical_difference_diagram_is_that_of_the_cells():
    analysis = invented(tuple(SOURCES)[:3], settings=("linear", "finetune-full"), effect=0.02)
    found = only(draw_critical_differences, analysis)
    titled = found["critical-difference-targets"]
    names = ["scratch", "e-Mix", "ShED", "MAE"]
    rows = auroc(analysis, role="target")
    table = rows[rows["technique"].isin(names)].pivot_table(
        index=["source", "dataset", "setting"], columns="technique", values="value"
    )[names]
    sources = table.index.get_level_values("source").tolist()
    expected = critical_difference(table.to_numpy(), names, sources)
    (axes,) = titled.figure.axes
    for name, rank in zip(expected.names, expected.mean_ranks, strict=True):
        marks = line(axes, name)
        assert marks.get_xdata() == pytest.approx([rank])
        assert marks.get_marker() == TECHNIQUE_LOOKS[name].marker
    assert f"{expected.cells} cells of 3 sources" in titled.title
    assert "nothing can be concluded" in titled.title
    bars = [one for one in axes.lines if one.get_linewidth() > 3]
    assert len(bars) == len(expected.cliques)
    # ImageNet is for images alone: its diagram has their cells alone
    images = found["critical-difference-targets-all-techniques"]
    assert "over 4 cells of 1 source" in images.caption


@pytest.mark.slow
def test_a_critical_difference_of_enough_sources_joins_what_is_not_shown_to_differ():
    parts = []
    for number in range(9):
        scores = invented(("ecg",), settings=("linear", "finetune-full"), draw=number).scores
        own = scores[scores["role"] == "source"]
        parts.append(own.assign(source=f"s{number}", dataset=f"s{number}"))
    analysis = made(scores=pd.concat(parts, ignore_index=True))
    found = only(draw_critical_differences, analysis)
    titled = found["critical-difference-distribution"]
    assert "18 cells of 9 sources" in titled.title
    assert "nothing can be concluded" not in titled.title
    assert "Bars join techniques of which no pair is shown to differ" in titled.caption
    assert "the mean over its cells" in titled.caption


def test_techniques_that_one_modality_alone_lacks_do_not_empty_the_diagram():
    analysis = invented(("ecg", "eeg", "cxr"), settings=("linear",))
    scores = analysis.scores
    alone = (scores["modality"] == "cxr") & ~scores["technique"].isin(["scratch", "ImageNet"])
    found = only(draw_critical_differences, replace(analysis, scores=scores[~alone]))
    caption = found["critical-difference-targets"].caption
    assert "(ecg and eeg)" in caption
    assert {"MAE", "ShED"} <= {
        one.get_label() for one in found["critical-difference-targets"].figure.axes[0].lines
    }


def test_subgroups_are_the_frame_s_and_excluded_groups_are_named(drawn, images):
    titled = drawn["subgroups-cxr-mimic-cxr-chexpert-test"]
    rows = chosen(images.subgroups, dataset="chexpert", setting="finetune-full", variable="sex")
    axes = panel(titled, "sex")
    for technique, one in rows.groupby("technique"):
        assert line(axes, technique).get_ydata() == pytest.approx(one["value"])
        p = one["p"].iloc[0]
        text = "<\u00a00.001" if p < 0.001 else f"{p:.2g}"
        assert f"{technique}\u00a0{text}" in axes.get_title(loc="left").replace("\n", " ")
    assert "device AT-6 C (7)" in titled.caption
    assert "n 250" in axes.get_xticklabels()[0].get_text()
    clear = rows[rows["p"] < 0.05]["technique"].nunique()
    assert len(axes.texts) == 2 * clear  # a letter for each group of each such technique


@pytest.mark.parametrize("seed", range(20))
def test_groups_share_a_letter_exactly_when_they_do_not_differ(seed):
    rng = np.random.default_rng(seed)
    groups = [f"g{i}" for i in range(rng.integers(2, 8))]
    pairs = list(combinations(groups, 2))
    differ = {frozenset(pair) for pair in pairs if rng.random() < 0.4}
    found = letters(groups, differ)
    for a, b in pairs:
        assert bool(set(found[a]) & set(found[b])) == (frozenset((a, b)) not in differ)


def test_roc_of_one_seed_is_the_frame_s_with_the_area(small):
    titled = only(draw_main_curves, small)["roc-eeg-shhs-isruc-test"]
    axes = panel(titled, "n2")
    rows = chosen(small.roc, dataset="isruc", technique="MAE", **{"class": "n2"})
    area = chosen(
        small.scores, dataset="isruc", technique="MAE", metric="auroc", **{"class": "n2"}
    )["value"].iloc[0]
    curve = line(axes, f"MAE {area:.3f}")
    assert curve.get_xdata() == pytest.approx(rows["fpr"])
    assert curve.get_ydata() == pytest.approx(rows["tpr"])


def ranked(seed, places, rows=40):
    """Targets and scores of classes by where their positives rank, 0 first; -1 at random."""
    rng = np.random.default_rng(seed)
    target = np.zeros((rows, len(places)), np.int8)
    score = rng.permuted(np.tile(np.linspace(0.1, 0.9, rows), (len(places), 1)), axis=1).T
    for index, place in enumerate(places):
        if place is None:
            target[rng.permutation(rows)[:12], index] = 1
            score[:, index] = np.round(score[:, index] + 0.2 * target[:, index], 1)
        else:
            target[np.argsort(-score[:, index])[place], index] = 1
    return target, score


@pytest.mark.parametrize("seeds", [1, 2])
def test_area_under_each_drawn_roc_curve_is_the_one_in_its_legend(small, seeds):
    place = chosen(small.scores, dataset="isruc", technique="MAE", metric="auroc").iloc[0]
    names = ("n1", "n2", "n3")
    curves, areas = [], []
    for seed in range(seeds):
        # one positive last; one first, with two seeds once last; twelve, with ties
        target, score = ranked(seed, (-1, -seed, None))
        for index, name in enumerate(names):
            points = _roc(target[:, index], score[:, index])
            key = {k: place[k] for k in KEY} | {"class": name, "seed": seed}
            curves.append(pd.DataFrame({**key, **points}))
            areas.append({"class": name, "value": roc_auc_score(target[:, index], score[:, index])})
    means = pd.DataFrame(areas).groupby("class")["value"].mean()
    rows = [{**place, "class": name, "value": means[name]} for name in names]
    bins = small.calibration.iloc[:0]
    held = {"roc": pd.concat(curves), "calibration": bins, "scores": pd.DataFrame(rows)}
    analysis = replace(small, **held)
    titled = only(draw_main_curves, analysis)["roc-eeg-shhs-isruc-test"]
    assert means["n1"] == 0
    assert means["n2"] == 1 / seeds
    for name in names:
        (curve,) = [one for one in panel(titled, name).lines if one.get_label().startswith("MAE")]
        area = np.trapezoid(curve.get_ydata(), curve.get_xdata())
        assert area == pytest.approx(float(curve.get_label().split()[1]), abs=0.001)
        assert (np.diff(curve.get_xdata()) >= -1e-12).all()
        assert (np.diff(curve.get_ydata()) >= -1e-12).all()


def test_mean_of_long_roc_curves_has_few_points_and_the_mean_area():
    rng = np.random.default_rng(3)
    parts, areas = [], []
    for seed in range(5):
        target = (rng.random(5000) < 0.3).astype(np.int8)
        score = rng.normal(size=5000) + 0.5 * seed * target
        parts.append(pd.DataFrame({"seed": seed, **_roc(target, score)}))
        areas.append(roc_auc_score(target, score))
    x, y = mean_curve(pd.concat(parts))
    assert len(x) <= 201
    assert np.trapezoid(y, x) == pytest.approx(np.mean(areas), abs=0.005)


def test_title_of_roc_names_no_class_of_few_patients(small):
    scores = small.scores
    rare, few = scores["class"] == "n1", scores["class"] == "n2"
    scores = scores.assign(
        value=scores["value"].mask(rare, 0.0).mask(few, 1.0),
        caution=scores["caution"]
        .mask(rare, "no interval: 3 patients on the rarer side")
        .mask(few, "rough interval: 9 patients on the rarer side"),
    )
    title = only(draw_main_curves, replace(small, scores=scores))["roc-eeg-shhs-isruc-test"].title
    assert "areas under the curves, of classes with 10 patients on both sides, from" in title
    assert "(n1," not in title
    assert "(n2," not in title
    none = replace(small, scores=scores.assign(caution="no interval: 8 patients"))
    title = only(draw_main_curves, none)["roc-eeg-shhs-isruc-test"].title
    assert title.endswith("no class has 10 patients on both sides")


def test_captions_say_that_intervals_cover_several_seeds_only_where_they_do(drawn, small):
    assert "widened to cover training seeds too" in drawn["auroc"].caption
    assert "widened" not in drawn["ranking-cxr-mimic-cxr"].caption
    for one in only(draw_results, small).values():
        assert "widened" not in one.caption
    assert "as if no patient were in both" in drawn["gap"].caption


def test_bins_of_several_seeds_are_pooled_by_their_counts():
    bins = pd.DataFrame(
        {
            "technique": "MAE",
            "seed": [0, 1, 1],
            "predicted": [0.01, 0.03, 0.99],
            "observed": [0.0, 0.5, 1.0],
            "count": [30, 10, 4],
        }
    )
    first, last = pooled_bins(bins).to_dict("records")
    assert first["predicted"] == pytest.approx((30 * 0.01 + 10 * 0.03) / 40)
    assert first["observed"] == pytest.approx(5 / 40)
    assert (first["count"], last["count"]) == (20, 2)  # of a seed
    assert (first["place"], last["place"]) == (0, BINS - 1)


def test_reliability_of_one_seed_is_the_frame_s_few_records_hollow(small):
    titled = only(draw_main_curves, small)["reliability-eeg-shhs-isruc-test"]
    axes = panel(titled, "rem")
    rows = chosen(small.calibration, dataset="isruc", technique="MAE", **{"class": "rem"})
    rows = rows[rows["count"] > 0]
    assert line(axes, "MAE").get_xdata() == pytest.approx(rows["predicted"])
    assert line(axes, "MAE").get_ydata() == pytest.approx(rows["observed"])
    assert len(line(axes, "MAE, few").get_xdata()) == (rows["count"] < 10).sum() > 0


def test_training_curves_are_means_over_seeds(drawn, images):
    titled = drawn["training-cxr-mimic-cxr"]
    rows = chosen(images.training, technique="MAE", setting="linear", name="validation_auroc")
    axes = next(a for a in titled.figure.axes if a.get_ylabel() == "validation AUROC")
    assert line(axes, "MAE").get_ydata() == pytest.approx(rows.groupby("done")["value"].mean())
    titled = drawn["pretraining-cxr-mimic-cxr"]
    assert len(panel(titled, "ShED").lines) == 2  # one for each seed


# --- titles claim no more than the intervals allow


def frame_of(*rows):
    columns = ["technique", "dataset", "setting", "value", "low", "high", "p"]
    found = [("MAE", "georgia", "linear", *row) for row in rows]
    return judged(pd.DataFrame(found, columns=columns))


def test_a_difference_is_shown_only_when_its_test_says_so():
    held = differences(
        frame_of((0.3, -0.01, 0.6, 0.05), (0.04, 0.01, 0.07, 0.2)), "change", "gains", "losses"
    )
    assert held == (
        "change: none of 2 is shown, largest "
        "+0.300\u00a0[−0.010,\u00a00.600] (MAE, georgia, linear)"
    )
    clear = differences(
        frame_of((0.3, -0.01, 0.6, 0.06), (0.04, 0.01, 0.07, 0.049), (-0.03, -0.05, -0.01, 0.001)),
        "change",
        "gains",
        "losses",
    )
    assert clear == (
        "change: 2 of 3 shown (1 gains, 1 losses), largest "
        "+0.040\u00a0[0.010,\u00a00.070] (MAE, georgia, linear)"
    )
    one = differences(frame_of((0.3, 0.0, 0.6, 0.05)), "change", "gains", "losses")
    assert one.startswith("change: no difference is shown, largest +0.300")
    few = (0.3, np.nan, np.nan, np.nan)
    assert differences(frame_of(few), "change", "gains", "losses") == (
        "change: not tested, too few patients"
    )
    some = differences(frame_of((0.3, 0.1, 0.5, 0.01), few), "change", "gains", "losses")
    assert "change: 1 of 1 shown (1 gains), largest" in some
    assert some.endswith("; 1 with too few patients not tested")


CLAIMS = re.compile(
    r"\d of \d+ (shown|pairs)|at the end higher|differ;|ahead of [a-zA-Z]|interval in [1-9]"
)


def titles_of(analysis):
    topics = (draw_forests, draw_results, draw_label_efficiency, draw_critical_differences)
    topics += (draw_differing_subgroups, draw_other_subgroups)
    found = [one for topic in topics for one in only(topic, analysis).values()]
    return [one.title for one in found if isinstance(one, Titled)]


@pytest.mark.slow
def test_no_title_claims_a_difference_where_no_test_shows_one(images):
    def open_(table, value):
        return table.assign(low=-abs(table[value]) - 0.1, high=abs(table[value]) + 0.1, p=0.4)

    bare = replace(
        images,
        scores=images.scores.assign(low=0.0, high=1.0, value=0.7),
        gaps=open_(images.gaps, "gap"),
        changes=open_(images.changes, "value"),
        pairs=open_(images.pairs, "difference").assign(p_holm=1.0),
        subgroups=images.subgroups.assign(p=0.4),
    )
    found = titles_of(bare)
    for title in found:
        assert not CLAIMS.search(title), title
    told = " ".join(found)
    assert len(re.findall(r"none of \d+ is shown, largest", told)) == 2
    assert "AUROC from 8 to all labels per class: the intervals at both ends of each" in told
    assert "no difference between groups is shown by age, sex and device" in told


def test_no_title_claims_anything_of_too_few_patients(images):
    few = {
        name: without_intervals(getattr(images, name))
        for name in ("scores", "gaps", "changes", "pairs", "ranking")
    }
    few["scores"] = few["scores"].assign(patients=8)
    found = titles_of(replace(images, **few, subgroups=images.subgroups.iloc[:0]))
    for title in found:
        assert not CLAIMS.search(title), title
        assert not re.search(r"shown|significant|\bp [=<]|\bdiffer;", title), title
    told = " ".join(found)
    assert told.count("not tested, too few patients") == 2
    assert "no curve has intervals of 20 patients at both ends" in told


def test_titles_do_claim_what_is_shown(drawn):
    claims = [name for name, one in drawn.items() if CLAIMS.search(one.title)]
    assert {"change", "gap-by-setting-cxr-mimic-cxr", "label-efficiency"} <= set(claims)


def test_captions_say_intervals_patients_resamples_and_seeds(drawn):
    for name, one in drawn.items():
        if one.section not in ("Training",) and not name.startswith("critical"):
            drawn_from = "by Student's t from a bootstrap over patients (1,000 resamples)"
            without = name.startswith(("ranking", "reliability"))
            assert (drawn_from in one.caption) != without, name
            assert "2,400 records of 2,100 patients" in one.caption, name
            assert "2 training seeds" in one.caption, name


def test_captions_leave_an_unknown_number_of_resamples_out(small):
    assert "resamples" not in only(draw_results, small)["auroc"].caption


def test_one_seed_is_said_to_say_nothing_about_another(small):
    caption = only(draw_results, small)["auroc"].caption
    assert "One training seed: the intervals do not cover variation between seeds." in caption


# --- looks


def test_each_technique_looks_the_same_in_all_figures(drawn):
    seen = 0
    for one in drawn.values():
        for axes in one.figure.axes:
            for found in axes.lines:
                name = str(found.get_label()).removesuffix(", paper").removesuffix(", few")
                if name in TECHNIQUE_LOOKS and found.get_marker() not in (None, "None", ""):
                    assert found.get_color() == TECHNIQUE_LOOKS[name].colour
                    assert found.get_marker() == TECHNIQUE_LOOKS[name].marker
                    seen += 1
        for legend in one.figure.legends:
            for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
                if text.get_text() in TECHNIQUE_LOOKS:
                    assert handle.get_color() == TECHNIQUE_LOOKS[text.get_text()].colour
                    assert handle.get_marker() == TECHNIQUE_LOOKS[text.get_text()].marker
    assert seen > 300


def test_looks_are_told_apart_without_colour_and_by_their_colour():
    looks = [*TECHNIQUE_LOOKS.values(), *OTHER_LOOKS]
    for part in ("colour", "marker", "line"):
        assert len({getattr(look, part) for look in looks}) == len(looks), part


def test_other_techniques_get_looks_by_name_and_leave_the_benchmark_s_alone():
    looks = technique_looks(["plugin-b", "MAE", "plugin-a"])
    assert looks["MAE"] is TECHNIQUE_LOOKS["MAE"]
    assert (looks["plugin-a"], looks["plugin-b"]) == OTHER_LOOKS[:2]
    assert technique_looks(["plugin-a", "plugin-b"]) == looks


@pytest.mark.slow
def test_text_is_large_enough_not_cut_and_does_not_overlap(drawn):
    for name, one in drawn.items():
        if name.endswith(("validation", "vindr-cxr-test")):
            continue  # as those of the other dataset
        with styled():  # as a PNG is made
            canvas._lay_out(one.figure)
            one.figure.set_dpi(canvas.DPI)
            FigureCanvasAgg(one.figure).draw()
        renderer = one.figure.canvas.get_renderer()
        width, height = one.figure.bbox.size
        boxes = []
        for text in texts(one.figure):
            assert text.get_fontsize() >= 7, (name, text.get_text())
            box = text.get_window_extent(renderer)
            assert -1 <= box.x0 < box.x1 <= width + 1, (name, text.get_text())
            assert -1 <= box.y0 < box.y1 <= height + 1, (name, text.get_text())
            if not text.get_rotation() % 90:  # the box of a slanted text is mostly empty
                boxes.append((box, text.get_text()))
        for (a, first), (b, second) in combinations(boxes, 2):
            wide = min(a.x1, b.x1) - max(a.x0, b.x0)
            tall = min(a.y1, b.y1) - max(a.y0, b.y0)
            assert wide < 3 or tall < 3, (name, first, second)


def texts(figure):
    """Every text that is drawn."""
    found = list(figure.texts)  # the title among them
    legends = [*figure.legends, *(a.get_legend() for a in figure.axes if a.get_legend())]
    found += [text for legend in legends for text in legend.get_texts()]
    for axes in figure.axes:
        found += [axes.xaxis.label, axes.yaxis.label, *axes.texts]
        found += [axes.title, axes._left_title]
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            labels = [tick.label1 for tick in axis.get_major_ticks()]
            ticks = zip(axis.get_ticklocs(), labels, strict=True)
            found += [text for place, text in ticks if min(limits) <= place <= max(limits)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


# --- degenerate analyses


def test_an_empty_analysis_has_no_figure_and_says_why():
    found, excluded = draw(made())
    assert found == []
    assert {one.name for one in excluded} >= {"auroc", "change", "pretraining", "transfer"}
    assert all(one.reason for one in excluded)


def test_one_technique_is_drawn_without_comparisons():
    found, excluded = draw(invented(("eeg",), techniques=("MAE",), settings=("linear",), seeds=1))
    names = {one.name for one in found}
    assert {"auroc", "gap", "roc-eeg-shhs-isruc-test"} <= names
    reasons = {one.name: one.reason for one in excluded}
    assert reasons["change"] == "no row has enough patients to be compared with a baseline"
    assert reasons["ranking-eeg-shhs"] == "fewer than two rows are ranked on the same records"
    assert "fewer than two settings of labels" in reasons["label-efficiency"]


def test_without_intervals_points_are_drawn_and_nothing_is_claimed(small):
    names = ("scores", "gaps", "changes", "pairs", "ranking", "subgroups")
    bare = replace(small, **{name: without_intervals(getattr(small, name)) for name in names})
    bare = replace(bare, subgroups=bare.subgroups.assign(p=np.nan))
    topics = (draw_forests, draw_results, draw_rankings, draw_other_subgroups)
    topics += (draw_main_curves, draw_other_curves)
    found = {name: one for topic in topics for name, one in only(topic, bare).items()}
    points = line(panel(found["auroc"], "eeg, shhs"), "MAE")
    assert points.get_ydata() == pytest.approx(
        auroc(small, dataset="shhs", technique="MAE")["value"]
    )
    assert "(no\u00a0interval)" in found["auroc"].title
    for one in found.values():
        assert not CLAIMS.search(one.title), one.title


def test_a_value_outside_its_percentile_interval_is_drawn(small):
    changes = small.changes.assign(low=small.changes["value"] + 0.01)
    outside = only(draw_forests, replace(small, changes=changes))["change"]
    found = [value for _, value, _ in marks(panel(outside, "eeg, shhs"), "MAE")]
    assert found == pytest.approx(chosen(changes, metric="auroc")["value"])


# --- studies


def test_policies_are_named_only_where_there_are_several(images):
    assert [study.label for study in studies(images.scores, ("cxr",))] == ["cxr, mimic-cxr"]
    other = pd.concat([images.scores, images.scores.assign(policy="released")])
    assert [study.label for study in studies(other, ("cxr",))] == [
        "cxr, mimic-cxr, clean",
        "cxr, mimic-cxr, released",
    ]


def test_a_study_has_all_protocols_but_no_shuffled_labels_and_averages(images):
    scores = [images.scores.assign(protocol=name, technique=name) for name in PROTOCOLS]
    every = pd.concat([images.scores, *scores], ignore_index=True)
    (study,) = studies(every, ("cxr",))
    assert set(study.of(every)["protocol"]) == {"fixed", "custom", "tuned"}
    found = only(draw_results, replace(images, scores=every)).values()
    legends = {
        text.get_text()
        for one in found
        for legend in one.figure.legends
        for text in legend.get_texts()
    }
    assert {"custom", "tuned"} <= legends
    assert not {"shuffled", "start ensemble"} & legends


@pytest.mark.slow
def test_fourteen_rows_are_told_apart_in_all_figures():
    names = ("scratch", "MAE", *(f"hf encoder-{n}" for n in range(12)))
    analysis = invented(("eeg",), techniques=names, settings=("linear", "finetune-full"), seeds=1)
    looks = technique_looks(names)
    assert len({(look.colour, look.marker) for look in looks.values()}) == len(looks)
    assert {one.name for one in figures(analysis)} >= {"auroc", "change", "ranking-eeg-shhs"}


@pytest.mark.parametrize(
    ("found", "most"),
    [
        (("linear", "finetune-small"), "linear"),
        (("knn", "finetune-large"), "knn"),
        (("knn", "linear"), "linear"),
        (("linear", "finetune-small", "finetune-full"), "finetune-full"),
        (("finetune-small", "finetune-large", "finetune-medium"), "finetune-large"),
        (("knn-small", "linear-medium", "finetune-small"), "linear-medium"),
    ],
)
def test_a_figure_of_one_setting_has_that_of_the_most_labels_and_names_the_others(found, most):
    analysis = invented(("eeg",), techniques=("scratch", "MAE"), settings=found, seeds=1)
    figure = only(draw_forests, analysis)["change"]
    values = {float(x) for x in line(panels(figure)[0], "MAE").get_xdata()}
    rows = chosen(analysis.changes, metric="auroc", setting=most, technique="MAE")
    assert values <= set(rows["value"])
    (said,) = re.findall(r"Not drawn, but in the tables: (.*?)\.", figure.caption)
    assert set(said.split(", ")) == set(found) - {most}


def test_studies_that_leave_out_other_settings_are_named():
    frames = [
        invented((kind,), techniques=("scratch", "MAE"), settings=settings, seeds=1)
        for kind, settings in (("ecg", ("linear", "finetune-small")), ("eeg", ("linear",)))
    ]
    names = ("scores", "changes", "gaps")
    both = {name: pd.concat([getattr(one, name) for one in frames]) for name in names}
    caption = only(draw_forests, made(**both))["change"].caption
    assert "Not drawn, but in the tables: of ecg, ptb-xl finetune-small." in caption


def test_only_the_source_s_own_validation_split_is_in_distribution(images):
    scores = images.scores
    test = scores[scores["role"] == "source"].assign(split="test")
    other = scores[scores["role"] == "source"].assign(dataset="nih-cxr-ap")
    found = in_distribution(pd.concat([scores, test, other]))
    assert set(found["dataset"]) == {"mimic-cxr"}
    assert set(found["split"]) == {"validation"}
    unseen = scores[scores["role"] != "source"]
    assert set(in_distribution(pd.concat([unseen, test]))["split"]) == {"test"}


def test_a_source_that_is_scored_on_its_test_split_alone_has_its_figures(small):
    def tested(frame):
        own = frame["dataset"] == frame["source"]
        return frame.assign(split=frame["split"].mask(own, "test"))

    moved = replace(small, scores=tested(small.scores), changes=tested(small.changes))
    own = panel(only(draw_results, moved)["auroc"], "eeg, shhs: in distribution (test)")
    rows = auroc(small, dataset="shhs", technique="MAE")
    assert line(own, "MAE").get_ydata() == pytest.approx(rows["value"])
    (axes,) = panels(only(draw_forests, moved)["change"])
    assert "shhs (test)" in [text.get_text() for text in axes.get_yticklabels()]


@pytest.mark.parametrize(
    ("records", "patients", "said"),
    [(1, 1, "1 record of 1 patient"), (1200, 3, "1,200 records of 3 patients")],
)
def test_one_is_not_many(small, records, patients, said):
    rows = auroc(small, dataset="isruc").assign(
        records=records, patients=patients, scored="records"
    )
    assert f"isruc (test) {said}." in sizes(rows)


# --- files


WRITTEN = ("auroc", "training", "roc")


def test_techniques_that_tie_for_the_lowest_mean_rank_are_all_named():
    table = np.array([[0.8, 0.8, 0.6], [0.7, 0.7, 0.5]])
    found = critical_difference(table, ("scratch", "MAE", "ShED"), ("ptb-xl", "shhs"))
    assert found.mean_ranks[0] == found.mean_ranks[1]
    said = figures_ranks._finding(found, "on targets")
    assert "lowest mean rank scratch and MAE 1.50" in said


@pytest.mark.parametrize(
    ("p", "said"),
    [
        (
            {"age": math.nan, "sex": math.nan},
            "too few patients for a test of groups by age and sex",
        ),
        (
            {"age": 0.4, "sex": math.nan},
            "no difference between groups is shown by age; too few patients for a test by sex",
        ),
        (
            {"age": 0.01, "sex": 0.3},
            "groups differ by age (1 of 1 techniques), p\u00a0<\u00a00.05 "
            "unadjusted; none shown by sex",
        ),
    ],
)
def test_groups_that_were_not_tested_are_not_said_to_be_alike(p, said):
    rows = [{"variable": name, "technique": "MAE", "p": value} for name, value in p.items()]
    assert figures_groups._finding(pd.DataFrame(rows), list(p)) == said


@pytest.mark.slow
def test_figures_that_processes_write_have_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(canvas, "EACH", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    folders, told = [tmp_path / "one", tmp_path / "all"], []
    for folder in folders:
        folder.mkdir()
    analysis = invented(("eeg",), techniques=("scratch", "MAE"), settings=("linear",), seeds=1)
    held = {f.name: f.figure for f in figures(analysis)}
    for name, figure in list(held.items())[:3]:
        write(figure, folders[0], name)
    again = [(f.name, f.figure) for f in figures(analysis)][:3]
    write_all(again, folders[1], told.append)
    first, second = ({path.name: path.read_bytes() for path in f.iterdir()} for f in folders)
    assert len(first) == 6
    assert first == second
    assert told == [1, 2, 3]
    assert not forked._work  # this process wrote none of them
    assert again[0][1].get_layout_engine() is not None
    for name, figure in again:
        assert svg_of(figure) == (folders[1] / f"{name}.svg").read_text("utf-8")


def test_a_figure_of_an_unchanged_drawing_is_kept(tmp_path):
    def drawn(value):
        with styled():
            figure = new_figure("title", 2.0)
            figure.add_subplot().plot([0, value])
        return figure

    png, svg = write(drawn(1), tmp_path, "a")
    before = png.stat().st_ino, png.read_bytes()
    assert write(drawn(1), tmp_path, "a") == [png, svg]
    assert (png.stat().st_ino, png.read_bytes()) == before  # not written again
    write(drawn(2), tmp_path, "a")
    assert png.read_bytes() != before[1]
    again = tmp_path / "again"
    again.mkdir()
    assert write(drawn(2), again, "a")[0].read_bytes() == png.read_bytes()
    png.write_bytes(b"cut off")
    write(drawn(2), tmp_path, "a")
    assert png.read_bytes() == (again / "a.png").read_bytes()


@pytest.mark.slow
def test_a_figure_that_a_process_cannot_write_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(canvas, "EACH", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with styled():
        made_here = [(f"f{n}", new_figure("title", 2.0)) for n in range(3)]
    (tmp_path / "file").write_text("")
    with pytest.raises((OSError, BenchmdError)):
        write_all(made_here, tmp_path / "file" / "x", print)
    monkeypatch.setattr(canvas, "write", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(BenchmdError, match="was killed, perhaps"):
        write_all(made_here, tmp_path, print)


@pytest.mark.slow
def test_processes_that_write_figures_end_with_the_command(tmp_path):
    """And import nothing of the folder that the command is called in."""
    code = """
        import os, sys
        from pathlib import Path
        from benchmd_ray.report import canvas
        canvas.EACH = 1
        with canvas.styled():
            held = [(f"f{n}", canvas.new_figure("title", 2.0)) for n in range(40)]
        told = lambda count: print(count, flush=True)
        canvas.write_all(held, Path(sys.argv[1]), told)
    """
    for name in ("socket.py", "matplotlib.py", "multiprocessing.py"):
        (tmp_path / name).write_text("open('imported', 'w')")
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-P", "-c", textwrap.dedent(code), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as done:
        assert done.stdout.readline().strip() == b"1"
        children = psutil.Process(done.pid).children(recursive=True)
        done.kill()
    assert len(children) == 2
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert not (tmp_path / "imported").exists()


@pytest.mark.slow
def test_the_same_analysis_gives_the_same_bytes_and_small_files(tmp_path):
    chosen = ("finetune-small", "finetune-full")
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        names = ("scratch", "MAE")
        for one in figures(invented(("eeg",), techniques=names, settings=chosen, seeds=1)):
            if one.name.startswith(WRITTEN) and not one.name.endswith("validation"):
                write(one.figure, folder, one.name)
    first, second = (sorted(folder.iterdir()) for folder in (tmp_path / "a", tmp_path / "b"))
    assert [path.name for path in first] == [path.name for path in second]
    assert len(first) == 2 * len(WRITTEN)
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes(), a.name


@pytest.mark.slow
def test_the_largest_figures_are_small_files(drawn, images, tmp_path):
    name = "reliability-cxr-mimic-cxr-chexpert-test"
    paths = write(drawn[name].figure, tmp_path, name)
    # the fixed protocol has 100 epochs
    training = images.training
    longer = training[training["kind"] == "transfer"]
    longer = pd.concat(longer.assign(done=longer["done"] + 40 * i) for i in range(3))
    longer = longer[longer["done"] <= 100]
    titled = only(draw_training, replace(images, training=longer))["training-cxr-mimic-cxr"]
    paths += write(titled.figure, tmp_path, "training")
    assert max(p.stat().st_size for p in paths if p.suffix == ".svg") < 300_000
    assert "With more than 50 epochs, an evenly spaced subset is drawn" in titled.caption
    shown = next(one for one in titled.figure.axes[0].lines if one.get_label() == "MAE")
    assert len(shown.get_xdata()) == 50
    assert shown.get_xdata()[-1] == 100


def test_coordinates_are_rounded_and_nothing_else():
    svg = '<path d="M 1.23456 10.005999 L 2 3.1"/><use x="7.999999" transform="scale(0.0156)"/>'
    assert compact(f"{svg}<text>0.98765</text>") == (
        '<path d="M 1.23 10.01 L 2 3.1"/><use x="8.00" transform="scale(0.0156)"/>'
        "<text>0.98765</text>"
    )
