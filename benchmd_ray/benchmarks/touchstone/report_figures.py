"""Figures of a comparison: means, maps of significance, ranks, their agreement, groups, speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import ScalarFormatter

from benchmd_ray.benchmarks.touchstone.comparing import Comparison
from benchmd_ray.benchmarks.touchstone.groups import ALL, CENTRED, compared_samples
from benchmd_ray.benchmarks.touchstone.joining import Floats
from benchmd_ray.benchmarks.touchstone.report_parts import (
    BEST,
    BLUE,
    COMMON,
    GROUPS,
    ORANGE,
    PAIRS,
    PERCENT,
    RESULTS,
    SPEED,
    class_title,
)
from benchmd_ray.benchmarks.touchstone.tasks import MEAN
from benchmd_ray.files.atomic import slug
from benchmd_ray.report.canvas import new_figure
from benchmd_ray.report.figures_panels import FAINT, SMALL, grid
from benchmd_ray.report.figures_parts import Drawn, Skipped, Titled
from benchmd_ray.scores.comparison import LEVEL

YELLOW, DARK = "#F0C929", "#2F4B6E"
TINY, GLUE = 6.5, "\N{NO-BREAK SPACE}"
NO_ORDER = "one algorithm or one case: there is no order to resample"
ROW = 0.15
"""Inches of an algorithm's row."""


def draw(comparison: Comparison) -> Iterator[Drawn]:
    """All figures, those of each metric in turn."""
    for metric in comparison.metrics:
        yield _averages(comparison, metric)
        yield _dots(comparison, metric)
        yield from _maps(comparison, metric)
        yield _blobs(comparison, metric)
        yield _violins(comparison, metric)
    yield _speed(comparison)
    yield from _groups(comparison)


def _algorithms(axes: Axes, order: Sequence[str], size: float = SMALL) -> None:
    axes.set_yticks(range(len(order)), list(order), fontsize=size)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def _points(axes: Axes, rows: pd.DataFrame) -> None:
    """Means with intervals, filled where level with the best, and the own mean as a bar."""
    places = np.arange(len(rows))
    value, low, high = (PERCENT * rows[name].to_numpy(float) for name in ("value", "low", "high"))
    axes.hlines(places, low, high, color=BLUE, linewidth=1.3, zorder=2)
    level = rows["level"].to_numpy(bool)
    for chosen, face in ((level, BLUE), (~level, "white")):
        axes.scatter(value[chosen], places[chosen], s=20, facecolor=face, edgecolor=BLUE, zorder=3)
    own_means = PERCENT * rows["own_mean"].to_numpy(float)
    axes.scatter(own_means, places, s=26, marker="|", color=ORANGE, zorder=4, linewidth=1.4)
    for place in range(len(rows)):
        axes.axhline(place, color=FAINT, linewidth=0.4, zorder=0)


def _key(figure: Figure, *, level: bool) -> None:
    handles = [
        Line2D([], [], color=BLUE, marker="o", markersize=4, label="common cases, 95 %"),
        Line2D([], [], color=ORANGE, marker="|", linestyle="", label="own cases"),
    ]
    if level:
        handles[:1] = [
            Line2D([], [], color=BLUE, marker="o", markersize=4, linestyle="", label=text, mfc=face)
            for text, face in (("level with the best", BLUE), ("significantly below it", "white"))
        ]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, fontsize=SMALL)


def _joined(comparison: Comparison, metric: str, name: str) -> pd.DataFrame:
    """Means and ranks of a class, the best algorithm first."""
    ranks = comparison.ranks(metric, name)[["metric", "class", "algorithm", "level", "first"]]
    return ranks.merge(comparison.cells, on=["metric", "class", "algorithm"])


def _by_class(
    title: str, comparison: Comparison, names: Sequence[str], label: str
) -> tuple[Figure, list[Axes]]:
    """A panel for each class, with a line for each algorithm."""
    row = ROW * len(comparison.scores.algorithms) + 0.75
    figure, panels = grid(title, len(names), columns=3, row=row)
    for axes in panels:
        axes.tick_params(axis="x", labelsize=7)
    for axes in panels[-3:]:
        axes.set_xlabel(label)
    return figure, panels


def _averages(comparison: Comparison, metric: str) -> Drawn:
    rows = _joined(comparison, metric, MEAN)
    highest = rows.loc[rows["value"] == rows["value"].max(), "algorithm"]
    title = (
        f"Highest average {comparison.scores.title(metric)} on common cases: "
        f"{', '.join(highest)} {PERCENT * rows['value'].iloc[0]:.1f}"
    )
    if len(highest) == 1 and not np.isnan(rows["first"].iloc[0]):
        title += f", first in {PERCENT * rows['first'].iloc[0]:.0f}{GLUE}% of resamples"
    figure, (axes,) = grid(title, 1, columns=1, row=0.21 * len(rows) + 0.4, extra=0.5)
    _points(axes, rows.assign(level=True))
    _algorithms(axes, list(rows["algorithm"]), 8.5)
    axes.set_xlabel(f"average {comparison.scores.title(metric)} (%)")
    _key(figure, level=False)
    caption = (
        f"Mean of the class means over common cases ({int(rows['n'].iloc[0]):,} with any "
        f"class), 95 % intervals over cases ({comparison.resamples:,} resamples); orange bars: on "
        "each algorithm's own cases."
    )
    return Titled(slug("average", metric), RESULTS, title, caption, figure)


def _dots(comparison: Comparison, metric: str) -> Drawn:
    names = comparison.scores.classes
    frames = {name: _joined(comparison, metric, name) for name in names}
    level = {name: int(rows["level"].sum()) for name, rows in frames.items()}
    title = f"{comparison.scores.title(metric)} of each class; algorithms level with the best: "
    title += ", ".join(f"{class_title(name)}{GLUE}({n})" for name, n in level.items() if n)
    label = f"{comparison.scores.title(metric)} (%)"
    figure, panels = _by_class(title, comparison, names, label)
    for axes, (name, rows) in zip(panels, frames.items(), strict=True):
        _points(axes, rows)
        _algorithms(axes, list(rows["algorithm"]), 7)
        axes.set_title(f"{class_title(name)} (n = {int(rows['n'].iloc[0]):,})")
    _key(figure, level=True)
    caption = (
        "Mean over the common cases whose reference has the class, with 95 % intervals over cases. "
        "Filled: the highest mean and those not significantly below it (one-sided Wilcoxon "
        "signed-rank, Holm). Orange bars: mean on each algorithm's own cases, as published."
    )
    return Titled(slug("dots", metric), COMMON, title, caption, figure)


def _matrix(
    pairs: pd.DataFrame, metric: str, name: str, order: Sequence[str], column: str
) -> Floats:
    cells = pairs[(pairs["metric"] == metric) & (pairs["class"] == name)]
    table = cells.pivot(index="a", columns="b", values=column)
    return table.reindex(index=list(order), columns=list(order)).to_numpy(np.float64)


def _maps(comparison: Comparison, metric: str) -> Iterator[Drawn]:
    if len(comparison.scores.algorithms) < 2:
        yield Skipped(slug("map", metric), "there is one algorithm, so no pair")
        return
    for name in comparison.scores.classes:
        yield _map(comparison, metric, name)


def _map(comparison: Comparison, metric: str, name: str) -> Drawn:
    order = comparison.order_in(metric, name)
    wins = _matrix(comparison.pairs, metric, name, order, "wins")
    differences = PERCENT * _matrix(comparison.pairs, metric, name, order, "difference")
    against = int(((wins == 1) & (differences < 0)).sum())
    count = len(order)
    title = (
        f"{class_title(name)}, {comparison.scores.title(metric)}: {int(np.nansum(wins))} of "
        f"{count * (count - 1)} ordered pairs are significant"
    )
    if against:
        title += f", {against} of them against the order of the means"
    figure = new_figure(title, max(0.19 * count + 2.0, 3.5))
    left, right = figure.subplots(1, 2)
    masked = np.ma.masked_invalid(wins.T)  # column above row
    left.imshow(masked, cmap=ListedColormap([DARK, YELLOW]), vmin=0, vmax=1, aspect="auto")
    won = np.nansum(wins, axis=1).astype(int)
    ticks = [f"{algorithm} ({number})" for algorithm, number in zip(order, won, strict=True)]
    handles = [
        Patch(color=YELLOW, label="column above row, p < 0.05"),
        Patch(color=DARK, label="not significant"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, fontsize=SMALL)
    highest = max(float(np.nanmax(np.abs(differences), initial=0.0)), 1e-9)
    norm = TwoSlopeNorm(0.0, -highest, highest)
    right.imshow(np.ma.masked_invalid(differences.T), cmap="RdBu", norm=norm, aspect="auto")
    _numbers(right, differences.T, highest)
    for axes, labels in ((left, ticks), (right, order)):
        axes.set_xticks(range(count), labels, rotation=90, fontsize=TINY)
        axes.set_yticks(range(count), order, fontsize=TINY)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xticks(np.arange(count + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(count + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.6)
        axes.tick_params(which="minor", length=0)
    left.set_title("significance (wins)")
    right.set_title("mean of column − mean of row (points)")
    family = "all classes" if comparison.family == "all" else "the class"
    caption = (
        f"Algorithms in the order of their means. Left: whether the column is above the row by the "
        f"one-sided Wilcoxon signed-rank test, p adjusted by Holm over the {count * (count - 1)} "
        f"ordered pairs of {family}, level {LEVEL}; in brackets the number of wins. A signed-rank "
        "win is not a higher mean: right, the difference of means in percentage points; the table "
        "of pairs has its intervals."
    )
    return Titled(slug("map", metric, name), PAIRS, title, caption, figure)


def _numbers(axes: Axes, values: Floats, highest: float) -> None:
    size = 5.0 if len(values) > 12 else 7.0
    for row, column in zip(*np.nonzero(~np.isnan(values)), strict=True):
        value = values[row, column]
        digits = 0 if abs(value) >= 9.95 else 1
        colour = "white" if abs(value) > 0.6 * highest else "#222222"
        text = f"{value:.{digits}f}".replace("-", "−")
        axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)


def _blobs(comparison: Comparison, metric: str) -> Drawn:
    names = (*comparison.scores.classes, MEAN)
    count = len(comparison.scores.algorithms)
    shares = comparison.shares[comparison.shares["metric"] == metric]
    if shares.empty:
        return Skipped(slug("blob", metric), NO_ORDER)
    best = comparison.ranks(metric, MEAN).iloc[0]
    ends = dict.fromkeys(f"{best[end]:.0f}" for end in ("low", "high"))
    title = (
        f"Ranks by {comparison.scores.title(metric)} in resamples: {best['algorithm']} is first on "
        f"average in {PERCENT * best['first']:.0f}{GLUE}%, rank {' to '.join(ends)} in 95{GLUE}%"
    )
    figure, panels = _by_class(title, comparison, names, "rank")
    for axes, name in zip(panels, names, strict=True):
        order = comparison.order_in(metric, name)
        cells = shares[shares["class"] == name]
        places = cells["algorithm"].map({a: i for i, a in enumerate(order)})
        axes.scatter(
            cells["rank"], places, s=100 * cells["share"], color=BLUE, alpha=0.75, linewidth=0
        )
        rows = comparison.ranks(metric, name)
        axes.scatter(rows["rank"], range(count), marker="x", s=14, color="black", linewidth=0.8)
        axes.hlines(range(count), rows["low"], rows["high"], color="#555555", linewidth=0.7)
        _algorithms(axes, order, 7)
        axes.set_xlim(0.3, count + 0.7)
        axes.set_xticks([r for r in range(1, count + 1) if count < 8 or r == 1 or not r % 3])
        axes.set_title(f"{class_title(name)}, τ {rows['tau'].iloc[0]:.2f}")
    caption = (
        f"Area of a blob: share of {comparison.resamples:,} resamples of the common cases in which "
        "an algorithm has the rank; cross: rank on all of them; line: 95 % of the resamples. τ: "
        "mean Kendall's τ-b of the resamples' order with that of all."
    )
    return Titled(slug("blob", metric), BEST, title, caption, figure)


def _violins(comparison: Comparison, metric: str) -> Drawn:
    names = (*comparison.scores.classes, MEAN)
    taus = comparison.taus[comparison.taus["metric"] == metric]
    samples = [taus.loc[taus["class"] == name, "tau"].to_numpy(float) for name in names]
    if any(len(sample) < 2 for sample in samples):
        return Skipped(slug("tau", metric), NO_ORDER)
    means = [float(sample.mean()) for sample in samples]
    low, high = int(np.argmin(means)), int(np.argmax(means))
    title = (
        f"The order by {comparison.scores.title(metric)} is most stable for "
        f"{class_title(names[high])} (mean τ {means[high]:.2f}), least for "
        f"{class_title(names[low])} ({means[low]:.2f})"
    )
    figure, (axes,) = grid(title, 1, columns=1, row=2.6, extra=0.5)
    drawn = axes.violinplot(samples, showextrema=False, widths=0.8)
    for body in drawn["bodies"]:  # type: ignore[attr-defined]
        body.set_facecolor(BLUE)
        body.set_alpha(0.45)
    ends = np.array([np.quantile(sample, (0.25, 0.75)) for sample in samples])
    places = np.arange(1, len(names) + 1)
    axes.vlines(places, ends[:, 0], ends[:, 1], color="black", linewidth=2.2)
    axes.scatter(places, means, color="white", edgecolor="black", s=22, zorder=3)
    axes.set_xticks(places, [class_title(name) for name in names], fontsize=SMALL)
    axes.set_ylabel("Kendall's τ-b")
    caption = (
        f"Agreement of the order of the algorithms in each of {comparison.resamples:,} resamples "
        "of the common cases with the order on all of them; dot: mean, bar: middle half. 1 is the "
        "same order."
    )
    return Titled(slug("tau", metric), BEST, title, caption, figure)


def _speed(comparison: Comparison) -> Drawn:
    metric, cells = comparison.metrics[0], comparison.cells
    rows = cells[(cells["metric"] == metric) & (cells["class"] == MEAN)]
    rows = rows.merge(comparison.speed[["algorithm", "seconds"]], on="algorithm")
    rows = rows.dropna(subset=["seconds"])
    if len(rows) < 2:
        return Skipped("speed", "fewer than two algorithms state the seconds that volumes took")
    best = rows.sort_values("seconds", kind="stable")
    best = best[best["value"] == best["value"].cummax()]
    title = (
        f"{comparison.scores.title(metric)} against time: no algorithm is both faster and better "
        "than " + (", ".join(best["algorithm"]))
    )
    figure, (axes,) = grid(title, 1, columns=1, row=3.6, extra=0.5)
    value, low, high = (PERCENT * rows[name] for name in ("value", "low", "high"))
    axes.vlines(rows["seconds"], low, high, color=FAINT, linewidth=1.5)
    axes.scatter(rows["seconds"], value, color=BLUE, s=24, zorder=3)
    axes.step(
        best["seconds"], PERCENT * best["value"], where="post", color=ORANGE, linewidth=1, zorder=2
    )
    rows = rows.sort_values("seconds", kind="stable")
    points = rows[["seconds", "value"]].to_numpy(np.float64)
    for place, (name, (seconds, mean)) in enumerate(zip(rows["algorithm"], points, strict=True)):
        away = (4, 5) if place % 2 else (4, -11)  # neighbours above and below
        at = (seconds, PERCENT * mean)
        axes.annotate(str(name), at, away, textcoords="offset points", fontsize=7)
    if (rows["seconds"] > 0).all():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("seconds per volume")
    axes.set_ylabel(f"average {comparison.scores.title(metric)} (%)")
    caption = (
        "Average on the common cases with its 95 % interval, and the mean seconds that predicting "
        "a volume took. The line joins the algorithms that no other beats in both speed and score."
    )
    return Titled("speed", SPEED, title, caption, figure)


def _groups(comparison: Comparison) -> Iterator[Drawn]:
    groups, scores, metric = comparison.groups, comparison.scores, comparison.metrics[0]
    rows = groups[(groups["algorithm"] == ALL) & (groups["class"] == CENTRED)]
    variables = [name for name in comparison.metadata.labels if name in set(rows["variable"])]
    if not variables:
        yield Skipped("groups", "no metadata say which group a case is in (--metadata)")
        return
    tests = rows.drop_duplicates("variable").set_index("variable")["kruskal_p"]
    differ = [name for name in variables if tests[name] < LEVEL]
    title = "Mean over algorithms by group of scans: " + (
        f"groups differ by {', '.join(differ)}" if differ else "no variable's groups differ"
    )
    figure, panels = grid(title, len(variables), columns=2, row=2.5)
    for axes, variable in zip(panels, variables, strict=True):
        samples = compared_samples(scores, comparison.metadata, variable, metric)
        _boxes(axes, samples)
        p = "p < 0.001" if tests[variable] < 0.001 else f"p = {tests[variable]:.3f}"
        test = "one group, no test" if np.isnan(tests[variable]) else f"Kruskal and Wallis, {p}"
        axes.set_title(f"{variable} ({test})")
        axes.set_ylabel(f"{scores.title(metric)} (%)")
    caption = (
        "Each patient's mean over the organs that the scans show, of the mean over all algorithms, "
        "centred per class so that groups with other organs can be compared; common cases, groups "
        "with 5 patients or more, their number below. Boxes: quartiles, whiskers 1.5 times their "
        "distance. The test is of this mean only, not of all algorithms together."
    )
    yield Titled("groups", GROUPS, title, caption, figure)


def _boxes(axes: Axes, samples: Mapping[str, Floats]) -> None:
    axes.boxplot(
        [PERCENT * values for values in samples.values()],
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": "#A6CBE3", "linewidth": 0.8},
        medianprops={"color": "black"},
        flierprops={"marker": ".", "markersize": 3, "markeredgecolor": "#888888"},
    )
    labels = [f"{name.replace('_', ' ')}\nn = {len(s):,}" for name, s in samples.items()]
    turned: dict[str, Any] = {"rotation": 35, "ha": "right"} if len(samples) > 6 else {}
    axes.set_xticks(range(1, len(labels) + 1), labels, fontsize=7, **turned)
