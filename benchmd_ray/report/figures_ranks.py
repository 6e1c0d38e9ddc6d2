"""Figures of section "Significance": the order of techniques, over datasets and on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmd_ray.errors import count_of
from benchmd_ray.report.canvas import TechniqueLook, new_figure
from benchmd_ray.report.compared import row_names
from benchmd_ray.report.figures_panels import (
    FAINT,
    LABEL_WORDS,
    SMALL,
    grid,
    points,
    title_height,
    wrapped,
)
from benchmd_ray.report.figures_parts import (
    Drawn,
    FigureContext,
    Skipped,
    SourceStudy,
    Titled,
    in_distribution,
    mean_auroc,
    of_place,
    on_targets,
    place_label,
    places_of,
    techniques_of,
)
from benchmd_ray.report.figures_wording import GLUE, joined, listed, p_value, sizes
from benchmd_ray.report.frames import LABELS
from benchmd_ray.scores.comparison import LEVEL
from benchmd_ray.scores.stability import CriticalDifference, critical_difference

SECTION = "Significance"
CELL = ["dataset", "setting"]
THREE = 3
"""Techniques from which on a diagram is drawn; for two, the forest plot is enough."""
DEPENDENT = (
    "Settings and targets of one source share its patients and its pretrained models, so the tests "
    "take one value of each source: the mean over its cells."
)


def draw_main_difference(report: FigureContext) -> Iterator[Drawn]:
    """A diagram of at least three techniques on enough sources, on targets if there are any."""
    diagrams = list(draw_critical_differences(report, least=THREE))
    drawn = [figure for figure in diagrams if isinstance(figure, Titled)]
    drawn.sort(
        key=lambda diagram_drawn: (
            "targets" not in diagram_drawn.name,
            "all-techniques" in diagram_drawn.name,
        )
    )
    yield from drawn[:1] or diagrams[-1:]


def draw_critical_differences(report: FigureContext, least: int = 0) -> Iterator[Drawn]:
    """Mean ranks over sources and (dataset × setting) cells, in distribution and on targets.

    With ``least``, only diagrams of at least so many techniques that can show a difference.
    """
    chosen: dict[tuple[str, str], SourceStudy] = {}
    for study in report.studies:
        chosen.setdefault((study.modality, study.source), study)
    for at, choose in (("in distribution", in_distribution), ("on targets", on_targets)):
        tables = {
            study: choose(study.of(mean_auroc(report.analysis.scores))) for study in chosen.values()
        }
        yield from _of_tables(report, tables, at, f"critical-difference-{at.split()[-1]}", least)


def _of_tables(
    report: FigureContext,
    tables: Mapping[SourceStudy, pd.DataFrame],
    at: str,
    name: str,
    least: int,
) -> Iterator[Drawn]:
    """Diagrams of the techniques that most cells share, and of all if a study has all."""
    techniques = {
        study: frozenset(table["technique"]) for study, table in tables.items() if len(table)
    }
    shared = _shared(tables, techniques)
    every = frozenset().union(*techniques.values())
    if not shared:
        yield Skipped(name, f"no study has two techniques with enough patients {at}")
        return
    for names, end in ((shared, ""), (every, "-all-techniques")):
        used = {study: tables[study] for study in techniques if names <= techniques[study]}
        if used and (not end or every != shared):
            yield draw_critical_difference(report, used, names, at, f"{name}{end}", least)


def _shared(
    tables: Mapping[SourceStudy, pd.DataFrame], techniques: Mapping[SourceStudy, frozenset[str]]
) -> frozenset[str]:
    """Techniques that two studies share, for the pair of studies with the most cells."""
    sets = {a & b for a in techniques.values() for b in techniques.values() if len(a & b) > 1}

    def size(names: frozenset[str]) -> tuple[int, int, list[str]]:
        cells = sum(len(tables[s].groupby(CELL)) for s in techniques if names <= techniques[s])
        return cells * (len(names) - 1), cells, sorted(names)

    return max(sets, key=size, default=frozenset())


def draw_critical_difference(
    report: FigureContext,
    tables: Mapping[SourceStudy, pd.DataFrame],
    names: frozenset[str],
    at: str,
    name: str,
    least: int = 0,
) -> Drawn:
    """Draw a critical-difference diagram of ``names`` by each study's mean AUROCs (``tables``)."""
    if len(names) < least:
        return Skipped(name, f"fewer than {least} techniques are on the same cells {at}")
    parts = {
        study.label: table[table["technique"].isin(names)]
        .pivot_table(index=CELL, columns="technique", values="value", dropna=False)
        .reindex(columns=[t for t in techniques_of(table) if t in names])
        for study, table in tables.items()
        if len(table)
    }
    whole = pd.concat(parts).dropna()
    order = techniques_of(pd.DataFrame({"technique": list(names)}))
    if whole.empty:
        return Skipped(name, f"no dataset and setting has all of {', '.join(order)} {at}")
    sources = whole.index.get_level_values(0)
    result = critical_difference(whole[order].to_numpy(float), order, list(sources))
    if least and result.note:
        return Skipped(name, result.note)
    title = _finding(result, at)
    figure, (axes,) = grid(title, 1, columns=1, row=0.9 + 0.24 * len(order), extra=0.3)
    diagram(axes, result, report.looks)
    caption = joined(
        f"Mean rank by AUROC (1 is best) over {_cells(result)}, each one setting on one "
        f"dataset {at} ({listed(sorted({s.modality for s in tables}))}), all seeds pooled.",
        ""
        if result.note
        else "Bars join techniques of which no pair is shown to differ (Wilcoxon's signed-rank "
        f"test, p adjusted by Holm, level {LEVEL}).",
        f"Friedman's test over all: {p_value(result.p)}." if not np.isnan(result.p) else "",
        result.note,
        DEPENDENT,
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def diagram(axes: Axes, result: CriticalDifference, looks: Mapping[str, TechniqueLook]) -> None:
    """Draw the axis of ranks with techniques at its sides and bars over cliques."""
    count = len(result.names)
    left = (count + 1) // 2
    bars = 0.35 * len(result.cliques)
    for place, (name, rank) in enumerate(zip(result.names, result.mean_ranks, strict=True)):
        first = place < left
        depth = -(0.7 + bars + 0.8 * (place if first else count - 1 - place))
        side = 0.75 if first else count + 0.25
        axes.plot([rank, rank, side], [0, depth, depth], color="#555555", linewidth=0.8)
        mark: dict[str, Any] = {"marker": looks[name].marker, "color": looks[name].colour}
        axes.plot([rank], [0], markersize=7, label=name, clip_on=False, zorder=5, **mark)
        axes.annotate(
            f"{name}  {rank:.2f}" if first else f"{rank:.2f}  {name}",
            (side, depth),
            (-4 if first else 4, 0),
            textcoords="offset points",
            ha="right" if first else "left",
            va="center",
        )
    ranks = dict(zip(result.names, result.mean_ranks, strict=True))
    for number, clique in enumerate(result.cliques):
        ends = [ranks[clique[0]] - 0.04, ranks[clique[-1]] + 0.04]
        height = -0.35 - 0.35 * number
        axes.plot(ends, [height, height], color="black", linewidth=3.5, solid_capstyle="butt")
    _rank_axis(axes, count, 1.1 + bars + 0.8 * (left - 1))


def _rank_axis(axes: Axes, count: int, depth: float) -> None:
    axes.set_xlim(0.2, count + 0.8)
    axes.set_ylim(-depth, 0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.plot([1, count], [0, 0], color="black", linewidth=1.4, zorder=1, clip_on=False)
    axes.set_yticks([])
    axes.xaxis.tick_top()
    axes.set_xticks(range(1, count + 1))
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("mean rank (1 is best)")


def _finding(result: CriticalDifference, at: str) -> str:
    best, rank = result.names[0], result.mean_ranks[0]
    tied = [n for n, r in zip(result.names, result.mean_ranks, strict=True) if np.isclose(r, rank)]
    lead = f"lowest mean rank {listed(tied)} {rank:.2f}"
    cells = _cells(result)
    if result.note:
        return f"Ranks {at}: nothing can be concluded from {cells}; {lead}"
    clear = [(a, b) for a, b, p in result.pairs if p <= LEVEL]
    if not clear:
        return f"Ranks {at}: no technique is shown to differ from another in {cells}; {lead}"
    below = [b for a, b in clear if a == best]
    over = f", ahead of {listed(below)}" if below else ", not shown to be ahead of any"
    return (
        f"Ranks {at}: {len(clear)} of {len(result.pairs)} pairs of techniques differ over {cells}; "
        f"{lead}{over}"
    )


def _cells(result: CriticalDifference) -> str:
    return f"{count_of(result.cells, 'cell')} of {count_of(result.sources, 'source')}"


def draw_rankings(report: FigureContext) -> Iterator[Drawn]:
    """One figure for each study: ranks on each dataset with their intervals."""
    for study in report.studies:
        yield draw_ranking(report, study)


def draw_ranking(report: FigureContext, study: SourceStudy) -> Drawn:
    """Rank of each row on each dataset among those with as many labels, with τ."""
    name = f"ranking-{study.slug}"
    ranking = study.of(report.analysis.ranking).dropna(subset=["rank"])
    parts = [
        (place, labels, rows)
        for labels in LABELS
        for place in places_of(study, ranking)
        if len(rows := of_place(ranking[ranking["labels"] == labels], place)) > 1
    ]
    if not parts:
        return Skipped(name, "fewer than two rows are ranked on the same records")
    title = f"{study.label}: {_stability(ranking)}"
    figure, panels = _panels(title, [len(rows) for *_, rows in parts])
    for axes, (place, labels, rows) in zip(panels, parts, strict=True):
        _ranks(axes, rows, report.looks)
        head = f"{place_label(study, place)}, {LABEL_WORDS[labels]}; {_tau(rows.iloc[0])}"
        axes.set_title(head, fontsize=8, x=-0.3)
        axes.set_xlim(0.4, len(rows) + 0.6)
        axes.set_xlabel("rank (1 is best)", fontsize=SMALL)
    caption = joined(
        "Rank by mean AUROC among the rows with as many labels. Its interval holds the ranks that "
        "no test of two rows, adjusted by Holm for all pairs of a dataset and number of labels, "
        "rules out; without one, too few patients are scored for a test. τ: mean Kendall's τ-b of "
        "the rankings of resampled patients with that of all; 1 is the same order, 0 no relation.",
        sizes(study.of(mean_auroc(report.analysis.scores))),
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def _panels(title: str, rows: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """Two panels in a line, which is as high as the one with more rows needs."""
    heights = [0.2 * max(rows[first : first + 2]) + 0.75 for first in range(0, len(rows), 2)]
    figure = new_figure(title, sum(heights) + 0.4 + title_height(title))
    places = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    return figure, [figure.add_subplot(places[divmod(n, 2)]) for n in range(len(rows))]


def _ranks(axes: Axes, rows: pd.DataFrame, looks: Mapping[str, TechniqueLook]) -> None:
    """A line for each row, the best on top."""
    rows = rows.sort_values("rank", kind="stable")
    names = row_names([*zip(rows["technique"], rows["setting"], strict=True)])
    for line, (_, row) in enumerate(rows.iterrows()):
        look = looks[row["technique"]]
        axes.hlines(line, row["low"], row["high"], color=look.colour, linewidth=1.2, zorder=2)
        axes.plot(row["rank"], line, **points(look))
    axes.set_yticks(range(len(names)), wrapped(names), fontsize=7.0, linespacing=0.9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=FAINT, linewidth=0.5)


def _tau(row: pd.Series) -> str:
    return "τ –" if np.isnan(row["tau"]) else f"τ{GLUE}{row['tau']:.2f}".replace("-", "−")


def _stability(ranking: pd.DataFrame) -> str:
    """The most and least stable ranking, and how often the first place is significant."""
    cells = ranking.drop_duplicates(["dataset", "split", "labels"])
    tested = cells["low"].notna().sum()
    certain = ranking[ranking["high"] == 1]
    count = f"{len(certain)}{GLUE}of{GLUE}{tested}"
    first = f"tests put one row ahead of all others in {count}"
    if not tested:
        first = "too few patients to test whether rows differ"
    usable = cells.dropna(subset=["tau"])
    if usable.empty:
        return f"no ranking has a τ; {first}"
    low, high = (usable.loc[usable["tau"].agg(end)] for end in ("idxmin", "idxmax"))
    if low["tau"] == high["tau"]:
        return f"the ranking has {_tau(low)} ({_cell(low)}); {first}"
    return f"rankings have {_tau(low)} ({_cell(low)}) to {_tau(high)} ({_cell(high)}); {first}"


def _cell(row: pd.Series) -> str:
    return f"{row['dataset']}, {LABEL_WORDS[row['labels']]}"
