"""Figures of section "ROC and calibration": curves of each class, a line for each technique."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmd_ray.report.canvas import TechniqueLook, new_figure
from benchmd_ray.report.figures_panels import SMALL, technique_legend, title_height
from benchmd_ray.report.figures_parts import (
    Drawn,
    FigureContext,
    Skipped,
    SourceStudy,
    Titled,
    heading,
    mean_auroc,
    of_metric,
    of_setting,
    places_of,
    techniques_of,
)
from benchmd_ray.report.figures_wording import GLUE, how_drawn, joined, plain, sizes, spanned
from benchmd_ray.scores.sums import BINS
from benchmd_ray.scores.support import ROUGH_IN_CLASS

SECTION = "ROC and calibration"
IN_PANEL, SHORT = 6, 20
"""Curves and letters of a name that a legend within a panel has at most."""
FEW = 10
"""Records below which a bin is drawn hollow, as its share is uncertain."""
Draw = Callable[[FigureContext, SourceStudy, tuple[str, str], str], Titled]
Floats = npt.NDArray[np.float64]
MOST = 201
"""Most points of a mean curve over seeds."""


def draw_main_curves(report: FigureContext) -> Iterator[Drawn]:
    """ROC and calibration of each study on its first target, or else on its source."""
    yield from _draw_curves(report, slice(1))


def draw_other_curves(report: FigureContext) -> Iterator[Drawn]:
    """The same on other datasets and splits."""
    yield from _draw_curves(report, slice(1, None))


def _draw_curves(report: FigureContext, which: slice) -> Iterator[Drawn]:
    """A figure for each study, dataset and split, a panel for each class."""
    analysis = report.analysis
    yield from _each(report, analysis.roc, "roc", draw_roc, which)
    yield from _each(report, analysis.calibration, "reliability", draw_reliability, which)


def _each(
    report: FigureContext, frame: pd.DataFrame, topic: str, draw: Draw, which: slice
) -> Iterator[Drawn]:
    for study in report.studies:
        setting = report.detail(study)
        rows = study.of(frame)
        rows = rows[rows["setting"] == setting]
        if rows.empty:
            yield Skipped(f"{topic}-{study.slug}", f"no class can be drawn ({setting})")
        places = places_of(study, rows)
        places.sort(key=lambda place: place[0] == study.source)  # targets first
        for place in places[which]:
            yield draw(report, study, place, setting)


def draw_roc(
    report: FigureContext, study: SourceStudy, place: tuple[str, str], setting: str
) -> Titled:
    """ROC curve of each class and technique, with the area in the legend."""
    roc, scores = (
        of_setting(study, frame, place, setting)
        for frame in (report.analysis.roc, of_metric(report.analysis.scores))
    )
    classes = classes_of(roc)
    title = f"{heading(study, place)}, {setting}: {_areas(scores, classes)}"
    techniques = techniques_of(roc)
    apart = len(techniques) > IN_PANEL or max(map(len, techniques)) > SHORT
    figure, columns = _canvas(title, len(classes), 2.6, extra=1.2 if apart else 0.4)
    rows = -(-len(classes) // columns)
    for number, name in enumerate(classes):
        axes = figure.add_subplot(rows, columns, number + 1)
        of_class = roc[roc["class"] == name], scores[scores["class"] == name]
        _roc_panel(axes, *of_class, report.looks, legend=not apart)
        axes.set_title(_class_title(name, scores), fontsize=8)
        if number % columns == 0:
            axes.set_ylabel("true positive rate")
        axes.set_xlabel("false positive rate", fontsize=SMALL)
    if apart:
        technique_legend(figure, techniques, report.looks, lines=True, markers=False)
    several = roc["seed"].nunique() > 1
    where = "the tables have" if apart else "the legends have"
    caption = joined(
        f"One class against all others; {where} the area under each curve.",
        "Curves: mean of the seeds' curves at right angles to the diagonal, so that the area under "
        "one is the mean of the seeds' areas."
        if several
        else "",
        f"In the title: {how_drawn(report)}.",
        report.not_drawn([study]),
        sizes(mean_auroc(scores)),
    )
    name = f"roc-{study.slug}-{place[0]}-{place[1]}"
    return Titled(name, SECTION, title, caption, figure, folded=True, aggregate=True)


def draw_reliability(
    report: FigureContext, study: SourceStudy, place: tuple[str, str], setting: str
) -> Titled:
    """Share of positives against predicted probability, and records per bin."""
    bins, scores = (
        of_setting(study, frame, place, setting)
        for frame in (report.analysis.calibration, report.analysis.scores)
    )
    errors = of_metric(scores, "calibration_error")
    classes = classes_of(bins)
    title = f"{heading(study, place)}, {setting}: {_errors(errors)}"
    figure, columns = _canvas(title, len(classes), 3.1, extra=0.8)
    techniques = techniques_of(bins)
    outer = figure.add_gridspec(-(-len(classes) // columns), columns)
    for number, name in enumerate(classes):
        inner = outer[number // columns, number % columns].subgridspec(2, 1, height_ratios=(3, 1))
        upper = figure.add_subplot(inner[0])
        lower = figure.add_subplot(inner[1], sharex=upper)
        here = pooled_bins(bins[bins["class"] == name])
        _reliability_panel(upper, lower, here, techniques, report.looks)
        upper.set_title(textwrap.fill(name, 34), fontsize=8)
        if number % columns == 0:
            upper.set_ylabel("share of positives")
            lower.set_ylabel("records\n(log)")
        lower.set_xlabel("predicted probability", fontsize=SMALL)
    technique_legend(figure, techniques, report.looks, lines=True)
    unit = scores["scored"].iloc[0]
    caption = joined(
        f"Mean predicted probability and share of positives in {BINS} bins of equal width; on the "
        f"diagonal a model is calibrated. Hollow: fewer than {FEW} {unit} in the bin. Below, "
        f"{unit} per bin, logarithmic. Bins of several seeds are pooled, and counts their mean. In "
        "the title the expected calibration error, mean over classes, without an interval, as few "
        f"{unit} raise it.",
        report.not_drawn([study]),
        sizes(mean_auroc(scores)),
    )
    name = f"reliability-{study.slug}-{place[0]}-{place[1]}"
    return Titled(name, SECTION, title, caption, figure, folded=True, aggregate=True)


def classes_of(frame: pd.DataFrame) -> list[str]:
    """Classes of a frame in the order of the task."""
    return list(dict.fromkeys(frame["class"]))


def mean_curve(curves: pd.DataFrame) -> tuple[Floats, Floats]:
    """A ROC curve (fpr, tpr); over several seeds their mean at right angles to the diagonal.

    Along a curve fpr + tpr increases, and the integral of tpr − fpr over it is twice the area above
    the diagonal. So averaging tpr − fpr at each fpr + tpr gives a curve with the mean area.
    """
    if curves["seed"].nunique() == 1:
        return curves["fpr"].to_numpy(float), curves["tpr"].to_numpy(float)
    turned = [
        (
            (curve["fpr"] + curve["tpr"]).to_numpy(float),
            (curve["tpr"] - curve["fpr"]).to_numpy(float),
        )
        for _, curve in curves.groupby("seed")
    ]
    along = np.unique(np.concatenate([sums for sums, _ in turned]))
    if len(along) > MOST:
        along = np.linspace(0, 2, MOST)
    above = np.mean([np.interp(along, sums, heights) for sums, heights in turned], axis=0)
    return (along - above) / 2, (along + above) / 2


def pooled_bins(bins: pd.DataFrame) -> pd.DataFrame:
    """Bins of a class with seeds pooled: predicted, observed, count (mean over seeds), place."""
    seeds = bins.groupby("technique")["seed"].nunique()
    place = np.minimum((bins["predicted"].to_numpy(float) * BINS).astype(int), BINS - 1)
    weighted = bins.assign(
        place=place,
        predicted=bins["predicted"] * bins["count"],
        observed=bins["observed"] * bins["count"],
    )
    total = weighted.groupby(["technique", "place"])[["predicted", "observed", "count"]].sum()
    total = total[total["count"] > 0].reset_index()
    return total.assign(
        predicted=total["predicted"] / total["count"],
        observed=total["observed"] / total["count"],
        count=total["count"] / total["technique"].map(seeds),
    )


def _canvas(title: str, classes: int, row: float, extra: float = 0.4) -> tuple[Figure, int]:
    columns = min(classes, 4 if classes > 6 else 3)
    rows = -(-classes // columns)
    return new_figure(title, rows * row + extra + title_height(title)), columns


def _roc_panel(
    axes: Axes,
    curves: pd.DataFrame,
    scores: pd.DataFrame,
    looks: Mapping[str, TechniqueLook],
    *,
    legend: bool,
) -> None:
    areas = scores.set_index("technique")["value"]
    for technique in techniques_of(curves):
        x, y = mean_curve(curves[curves["technique"] == technique])
        label = f"{technique} {plain(float(areas.get(technique, np.nan)))}"
        axes.plot(x, y, label=label, linewidth=1.2, **looks[technique].stroke)
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.7, zorder=0)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.01)
    axes.set_aspect("equal")
    axes.set_xticks([0, 0.5, 1])
    axes.set_yticks([0, 0.5, 1])
    if not legend:
        return
    axes.legend(
        loc="lower right",
        fontsize=7.0,
        handlelength=2.6,
        borderpad=0.2,
        labelspacing=0.2,
        framealpha=0.8,
        edgecolor="none",
    )


def _reliability_panel(
    upper: Axes,
    lower: Axes,
    bins: pd.DataFrame,
    techniques: Sequence[str],
    looks: Mapping[str, TechniqueLook],
) -> None:
    upper.plot([0, 1], [0, 1], color="#999999", linewidth=0.7, zorder=0)
    for technique in techniques:
        rows, look = bins[bins["technique"] == technique], looks[technique]
        upper.plot(
            rows["predicted"],
            rows["observed"],
            label=technique,
            marker=look.marker,
            markersize=3.2,
            linewidth=1.0,
            **look.stroke,
        )
        few = rows[rows["count"] < FEW]
        upper.plot(
            few["predicted"],
            few["observed"],
            label=f"{technique}, few",
            color=look.colour,
            linestyle="none",
            marker=look.marker,
            markersize=3.2,
            markerfacecolor="white",
        )
        _counts(lower, rows, technique, look)
    upper.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    upper.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    upper.tick_params(labelbottom=False)
    lower.set_yscale("log")
    lower.set_ylim(bottom=0.8)
    lower.yaxis.set_major_formatter("{x:,.0f}")
    lower.tick_params(axis="y", labelsize=SMALL)


def _counts(axes: Axes, rows: pd.DataFrame, technique: str, look: TechniqueLook) -> None:
    """Draw the records of each bin as steps, with gaps at empty bins."""
    counts = np.full(BINS, np.nan)
    counts[rows["place"]] = rows["count"]
    edges, heights = np.linspace(0, 1, BINS + 1), np.append(counts, counts[-1])
    axes.step(edges, heights, where="post", label=technique, linewidth=1.0, **look.stroke)


def _class_title(name: str, scores: pd.DataFrame) -> str:
    positives = scores[scores["class"] == name]["positives"]
    count = f" ({int(positives.max()):,}{GLUE}positive)" if len(positives) else ""
    return textwrap.fill(f"{name}{count}", 34)


def _areas(scores: pd.DataFrame, classes: Sequence[str]) -> str:
    """The lowest and highest area among classes with enough patients on both sides."""
    rows = scores[scores["class"].isin(list(classes))].dropna(subset=["value"])
    if rows.empty:
        return "no area under a curve is known"
    every, rows = rows, rows[rows["caution"] == ""]
    if rows.empty:
        return f"no class has {ROUGH_IN_CLASS} patients on both sides"
    ends = []
    for end in ("idxmin", "idxmax"):
        row = rows.loc[rows["value"].agg(end)]
        number = spanned(row["value"], row["low"], row["high"])
        ends.append(f"{number} ({row['class']}, {row['technique']})")
    of = (
        f", of classes with {ROUGH_IN_CLASS} patients on both sides,"
        if len(rows) < len(every)
        else ""
    )
    return f"areas under the curves{of} from {ends[0]} to {ends[1]}"


def _errors(errors: pd.DataFrame) -> str:
    rows = errors[errors["class"] == "mean"].dropna(subset=["value"])
    if rows.empty:
        return "no calibration error is known"
    ends = [
        f"{plain(row['value'])} ({row['technique']})"
        for row in (rows.loc[rows["value"].agg(end)] for end in ("idxmin", "idxmax"))
    ]
    if len(rows) == 1:
        return f"expected calibration error {ends[0]}"
    return f"expected calibration error from {ends[0]} to {ends[1]}"
