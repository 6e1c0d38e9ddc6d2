"""Figures of section "Label efficiency": AUROC against labels per class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchmd_ray.report.canvas import TechniqueLook
from benchmd_ray.report.figures_panels import (
    FAINT,
    SMALL,
    auroc_limits,
    chance_line,
    chance_mark,
    dodge,
    grid,
    technique_legend,
)
from benchmd_ray.report.figures_parts import (
    Drawn,
    FigureContext,
    Skipped,
    SourceStudy,
    Titled,
    heading,
    in_distribution,
    mean_auroc,
    of_place,
    on_targets,
    place_label,
    places_of,
    techniques_of,
)
from benchmd_ray.report.figures_wording import how_drawn, joined, sizes
from benchmd_ray.scores.support import TEST_PATIENTS

SECTION = "Label efficiency"
LABELS = {
    "finetune-small": (3.0, "8"),
    "finetune-medium": (6.0, "64"),
    "finetune-large": (8.0, "256"),
    "finetune-full": (10.0, "all"),
}
"""Position on the axis (base-2 logarithm of labels per class) and name; "all" is set apart."""
PROBED = {
    **{f"linear-{name}": LABELS[f"finetune-{name}"] for name in ("small", "medium", "large")},
    "linear": LABELS["finetune-full"],
}
"""The same for linear evaluation."""
BREAK = 9.0
BANDS = 6
"""Curves with bands, at most; of more, intervals are lines."""
Tick = tuple[float, str]
Place = tuple[str, str]
"""Dataset and split."""


def draw_label_efficiency(report: FigureContext) -> Iterator[Drawn]:
    """A panel for each study on its first target; without targets, on its source."""
    for studies in report.together:
        panels = []
        for study in studies:
            places = places_of(study, on_targets(_finetuned(report, study)))
            places = places or places_of(study, in_distribution(_finetuned(report, study)))
            panels += [(study, place) for place in places[:1]]
        yield draw_curves(report, panels, report.name("label-efficiency", studies))


def draw_label_efficiency_by_dataset(report: FigureContext) -> Iterator[Drawn]:
    """A figure for each study: a panel for each dataset and split."""
    for study in report.studies:
        places = places_of(study, _finetuned(report, study))
        if len(places) > 1:
            panels = [(study, place) for place in places]
            yield draw_curves(report, panels, f"label-efficiency-{study.slug}")


def draw_probes(report: FigureContext) -> Drawn:
    """Linear evaluation: a panel for each study, on its source, and for each target."""
    panels = []
    for study in report.studies:
        rows = _finetuned(report, study, PROBED)
        panels += [(study, place) for place in places_of(study, _scored_once(rows))]
    return draw_curves(report, panels, "probes", PROBED)


def _scored_once(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([in_distribution(rows), on_targets(rows)])


def _finetuned(
    report: FigureContext, study: SourceStudy, labels: Mapping[str, Tick] = LABELS
) -> pd.DataFrame:
    scores = study.of(mean_auroc(report.analysis.scores)).dropna(subset=["value"])
    return scores[scores["setting"].isin(list(labels))]


def draw_curves(
    report: FigureContext,
    places: Sequence[tuple[SourceStudy, Place]],
    name: str,
    labels: Mapping[str, Tick] = LABELS,
) -> Drawn:
    """AUROC against labels per class with intervals as bands, a panel for each study and place."""
    parts = [(*at, of_place(_finetuned(report, at[0], labels), at[1])) for at in places]
    parts = [part for part in parts if part[2]["setting"].nunique() > 1]
    if not parts:
        return Skipped(name, "fewer than two settings of labels: nothing to connect")
    studies = list(dict.fromkeys(study for study, *_ in parts))
    scores = pd.concat([rows for *_, rows in parts])
    finding = _finding(scores, labels)
    title = finding if len(studies) > 1 else f"{studies[0].label}: {finding}"
    techniques = techniques_of(scores)
    figure, panels = grid(title, len(parts), row=2.6)
    for axes, (study, place, rows) in zip(panels, parts, strict=True):
        _curves(axes, rows, techniques, report.looks, labels=labels)
        axes.set_title(heading(study, place) if len(studies) > 1 else place_label(study, place))
        axes.set_ylim(*auroc_limits(rows))
        axes.set_ylabel("AUROC")
        axes.set_xlabel("labels per class (logarithmic)", fontsize=SMALL + 0.5)
        chance_line(axes)
    technique_legend(figure, techniques, report.looks, lines=True, extra=[chance_mark()])
    how = "Linear evaluation" if labels is PROBED else "Fine-tuned encoders"
    caption = joined(
        f"{how}; mean AUROC over classes with its {how_drawn(report)}. A class with "
        "fewer labelled records gives all that it has; all labels stand right of the grey bar, "
        "since their number differs from class to class. Whether intervals overlap is not a test.",
        sizes(scores),
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def _curves(
    axes: Axes,
    frame: pd.DataFrame,
    techniques: Sequence[str],
    looks: Mapping[str, TechniqueLook],
    *,
    labels: Mapping[str, Tick],
) -> None:
    settings = [s for s in labels if s in set(frame["setting"])]
    for number, technique in enumerate(techniques):
        rows = frame[frame["technique"] == technique].set_index("setting")
        rows = rows.loc[[s for s in settings if s in rows.index]]
        x, look = np.array([labels[s][0] for s in rows.index]), looks[technique]
        if len(techniques) > BANDS or labels is PROBED:
            x = x + 0.5 * dodge(number, len(techniques))
            axes.vlines(x, rows["low"], rows["high"], color=look.colour, linewidth=0.8, zorder=2)
        else:
            band: dict[str, Any] = {"color": look.colour, "alpha": 0.13, "linewidth": 0}
            axes.fill_between(x, rows["low"], rows["high"], zorder=1, **band)
        axes.plot(
            x,
            rows["value"],
            label=technique,
            marker=look.marker,
            markersize=5.0,
            linewidth=1.4,
            zorder=3,
            **look.stroke,
        )
    ticks = [labels[s] for s in settings]
    axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks])
    axes.set_xlim(ticks[0][0] - 0.4, ticks[-1][0] + 0.4)
    if ticks[-1][0] > BREAK:
        axes.axvline(BREAK, color=FAINT, linewidth=3, zorder=0)


def _finding(scores: pd.DataFrame, labels: Mapping[str, Tick]) -> str:
    """Count the curves whose first and last intervals do not overlap: a description, not a test."""
    settings = [s for s in labels if s in set(scores["setting"])]
    span = f"from {labels[settings[0]][1]} to {labels[settings[-1]][1]} labels per class"
    curves = up = down = 0
    spans = scores[scores["patients"] >= TEST_PATIENTS].dropna(subset=["low", "high"])
    for _, rows in spans.groupby(["dataset", "split", "technique"]):
        ends = rows.set_index("setting")
        if {settings[0], settings[-1]} <= set(ends.index):
            low, high = ends["low"].astype(float), ends["high"].astype(float)
            curves += 1
            up += bool(low[settings[-1]] > high[settings[0]])
            down += bool(high[settings[-1]] < low[settings[0]])
    if not curves:
        return f"AUROC {span}: no curve has intervals of {TEST_PATIENTS} patients at both ends"
    if not up + down:
        which = "of the curve" if curves == 1 else f"of each of the {curves} curves"
        return f"AUROC {span}: the intervals at both ends {which} overlap"
    fell = f", lower in {down}" if down else ""
    left = curves - up - down
    rest = f"; in {left} they overlap" if left else ""
    return (
        f"AUROC {span}: at the end higher in {up} of {curves} curves{fell}, with intervals that "
        f"do not overlap{rest}"
    )
