"""Figures of section "Significance": which rows differ on the same records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from benchmd_ray.report.canvas import WIDTH, new_figure
from benchmd_ray.report.figures_panels import LABEL_WORDS, SMALL, title_height, wrapped
from benchmd_ray.report.figures_parts import (
    Drawn,
    FigureContext,
    Skipped,
    SourceStudy,
    Titled,
    heading,
    mean_auroc,
    of_metric,
    of_place,
    places_of,
)
from benchmd_ray.report.figures_wording import (
    how_drawn,
    joined,
    p_value,
    several_seeds,
    signed,
    sizes,
    spanned,
)
from benchmd_ray.report.frames import LABELS, by_name
from benchmd_ray.scores.comparison import LEAST_EXCHANGE_P, LEVEL

SECTION = "Significance"
STARS = ((0.001, "***"), (0.01, "**"), (LEVEL, "*"))
COLOURS = "PuOr"
"""Two ends that colour-blind people tell apart; the numbers carry the sign in grey print."""
CELL_WIDTH = 0.45
"""Inches that a cell needs at least."""
MOST_COLUMNS = 3
MOST_NUMBERS = 16
"""Rows of a matrix with numbers in its cells, at most."""
FEW = 10
"""Positives below which the title mentions a class."""
AT_LEAST = 0.02
"""Smallest range of the colours in AUROC, so that noise does not stand out."""


def draw_pairs(report: FigureContext) -> Iterator[Drawn]:
    """A figure for each study and dataset: a matrix for each number of labels."""
    for study in report.studies:
        pairs = study.of(report.analysis.pairs).dropna(subset=["difference"])
        if pairs.empty:
            yield Skipped(
                f"significance-{study.slug}", "no two rows are scored on the same records"
            )
            continue
        spread = max(AT_LEAST, float(pairs["difference"].abs().max()))
        for place in places_of(study, pairs):
            yield draw_matrices(report, study, place, spread)


def draw_matrices(
    report: FigureContext, study: SourceStudy, place: tuple[str, str], spread: float
) -> Titled:
    """Differences of rows for each number of labels, with stars where they are significant.

    The colours span ``spread``, the largest difference of the study, in all its figures.
    """
    pairs = of_place(study.of(report.analysis.pairs), place).dropna(subset=["difference"])
    labels = [name for name in LABELS if name in set(pairs["labels"])]
    parts = [pairs[pairs["labels"] == name] for name in labels]
    most = max(len(_names(rows)) for rows in parts)
    here = of_metric(of_place(study.of(report.analysis.scores), place))
    title = f"{heading(study, place)}: {_finding(pairs, _rows(here))}"
    columns = min(MOST_COLUMNS, max(1, int(WIDTH / (CELL_WIDTH * (most + 1)))))
    lines = -(-len(labels) // columns)
    heights = [
        0.9 + 0.36 * max(len(_names(rows)) - 1 for rows in parts[first : first + columns])
        for first in range(0, len(parts), columns)
    ]
    figure = new_figure(title, 1.1 + title_height(title) + sum(heights))
    grid = figure.add_gridspec(lines, columns, height_ratios=heights)
    panels = [figure.add_subplot(grid[divmod(n, columns)]) for n in range(len(labels))]
    for axes, name, rows in zip(panels, labels, parts, strict=True):
        _matrix(axes, rows, spread)
        axes.set_title(LABEL_WORDS[name])
    _colour_bar(figure, panels, spread)
    caption = joined(
        "Each cell: AUROC of its line minus that of its column, on the same records. "
        f"Stars: p adjusted by Holm for all pairs of one matrix, {_tested(here)}, "
        f"below {_levels(pairs, here)}. Without stars no difference is shown. In the "
        f"title: {how_drawn(report)}.",
        "Without colour: too few patients for a test." if pairs["p_holm"].isna().any() else "",
        sizes(mean_auroc(here)),
    )
    name = f"significance-{study.slug}-{place[0]}-{place[1]}"
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def _colour_bar(figure: Figure, panels: Sequence[Axes], spread: float) -> None:
    bar = figure.colorbar(
        ScalarMappable(Normalize(-spread, spread), COLOURS),
        ax=list(panels),
        orientation="horizontal",
        location="bottom",
        aspect=60,
        fraction=0.04,
        pad=0.02,
    )
    bar.set_label("difference of AUROC, line − column", fontsize=8)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(labelsize=SMALL)


def _names(pairs: pd.DataFrame) -> list[str]:
    return by_name([*pairs["a"], *pairs["b"]])


def _matrix(axes: Axes, pairs: pd.DataFrame, spread: float) -> None:
    """Lower triangle: later names in lines, earlier ones in columns; coloured where tested."""
    names = _names(pairs)
    shades = np.full((len(names) - 1, len(names) - 1), np.nan)
    for _, row in pairs.iterrows():
        a, b = names.index(row["a"]), names.index(row["b"])
        sign = 1 if b > a else -1
        down, across = max(a, b) - 1, min(a, b)
        value = sign * row["difference"]
        shades[down, across] = np.nan if np.isnan(row["p_holm"]) else value
        mark = stars(row)
        number = signed(value) if len(names) <= MOST_NUMBERS else ""
        axes.text(
            across,
            down,
            f"{number}\n{mark or ' '}",
            ha="center",
            va="center",
            fontsize=7.0,
            fontweight="bold" if mark else "normal",
            color="black" if np.isnan(row["p_holm"]) else _ink(value / spread),
        )
    axes.imshow(shades, cmap=COLOURS, vmin=-spread, vmax=spread, aspect="auto")
    axes.set_xticks(
        range(len(names) - 1),
        wrapped(names[:-1]),
        fontsize=SMALL,
        rotation=30 if len(names) <= MOST_COLUMNS * 2 else 60,
        ha="right",
        rotation_mode="anchor",
    )
    axes.set_yticks(range(len(names) - 1), wrapped(names[1:]), fontsize=SMALL)
    axes.tick_params(length=0, pad=2)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _ink(share: float) -> str:
    """Legible text colour on the background for a position of the scale, −1 to 1."""
    red, green, blue, _ = colormaps[COLOURS]((share + 1) / 2)
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"


def is_shown(row: pd.Series) -> bool:
    """Whether a pair differs, by the adjusted p."""
    return bool(row["p_holm"] < LEVEL)


def stars(row: pd.Series) -> str:
    """Stars of a pair; none where it is not significant."""
    if not is_shown(row):
        return ""
    return next(text for below, text in STARS if row["p_holm"] < below)


def _levels(pairs: pd.DataFrame, scores: pd.DataFrame) -> str:
    """The stars that any matrix can have: exchange tests have a smallest p."""
    tests = pairs.groupby("labels")["p_holm"].count().min()
    least = 0.0 if several_seeds(scores) else tests * LEAST_EXCHANGE_P
    return ", ".join(f"{below:g} ({text})" for below, text in reversed(STARS) if least < below)


def _tested(scores: pd.DataFrame) -> str:
    exchange = "by exchange of the two within patients"
    if several_seeds(scores):
        return (
            f"{exchange} if both have one seed, otherwise by Student's t over patients, and over "
            "training seeds if both have the same"
        )
    return exchange


def _rows(scores: pd.DataFrame) -> str:
    """How many patients were compared, and the rarest class where it is rare."""
    if scores.empty:
        return ""
    classes = scores[(scores["class"] != "mean") & scores["value"].notna()]
    rare = classes[classes["positives"] < FEW].sort_values("positives", kind="stable")
    few = ""
    if len(rare):
        count = int(rare["positives"].iloc[0])
        few = f", {rare['class'].iloc[0]} has {count} positive{'s' * (count != 1)}"
    return f" ({int(scores['patients'].max()):,} patients{few})"


def _finding(pairs: pd.DataFrame, rows: str) -> str:
    clear = pairs[[is_shown(row) for _, row in pairs.iterrows()]]
    total = int(pairs["p_holm"].count())
    if not total:
        return f"too few patients to test whether rows differ{rows}"
    if clear.empty:
        if total == 1:
            (tested,) = pairs.dropna(subset="p_holm")[["a", "b"]].to_numpy()
            return f"{tested[0]} and {tested[1]} are not shown to differ{rows}"
        return f"none of {total} pairs is shown to differ{rows}"
    row = clear.iloc[int(clear["difference"].abs().to_numpy().argmax())]
    better, worse, low, high = row["b"], row["a"], row["low"], row["high"]
    if row["difference"] < 0:
        better, worse, low, high = worse, better, -high, -low
    number = spanned(abs(row["difference"]), low, high, signed)
    return (
        f"{len(clear)} of {total} pairs differ{rows}; most {better} over {worse}, "
        f"{number}, {p_value(row['p_holm'])} after Holm's correction over those with as "
        f"many labels ({LABEL_WORDS[row['labels']]})"
    )
