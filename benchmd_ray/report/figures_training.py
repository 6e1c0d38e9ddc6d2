"""Figures of section "Training": losses and source validation AUROC over training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmd_ray.errors import count_of
from benchmd_ray.report.canvas import new_figure
from benchmd_ray.report.figures_panels import (
    FAINT,
    SETTING_LABELS,
    SMALL,
    grid,
    technique_legend,
    title_height,
)
from benchmd_ray.report.figures_parts import (
    STUDY,
    Drawn,
    FigureContext,
    Skipped,
    SourceStudy,
    Titled,
    settings_of,
    studies,
    techniques_of,
)
from benchmd_ray.report.figures_wording import joined, plain
from benchmd_ray.report.protocols import APART

SECTION = "Training"
POINTS = 50
"""Most epochs drawn in a curve."""
SCORES = {"validation_auroc": "validation AUROC", "validation_dsc": "validation DSC"}
"""The metrics that select the best epoch."""
NAMES = {"loss": "loss", **SCORES}


def draw_training(report: FigureContext) -> Iterator[Drawn]:
    """Draw the pretraining of each source, then the transfers of each study."""
    frame = _placed(report)
    pretraining = frame[(frame["kind"] == "pretrain") & (frame["name"] == "loss")]
    for study in studies(pretraining, report.analysis.modalities):
        yield draw_pretraining(report, study, study.of(pretraining))
    transfer = frame[(frame["kind"] == "transfer") & frame["name"].isin(list(NAMES))]
    for study in studies(transfer, report.analysis.modalities):
        yield draw_transfer(report, study, study.of(transfer))
    for name, rows in (("pretraining", pretraining), ("transfer", transfer)):
        if rows.empty:
            yield Skipped(name, f"no {name} wrote its metrics")


def draw_pretraining(report: FigureContext, study: SourceStudy, frame: pd.DataFrame) -> Drawn:
    """Draw the loss of each technique on a separate axis, as losses cannot be compared."""
    techniques = techniques_of(frame)
    title = f"{study.label}: pretraining loss, first to last report: {_from_to(frame)}"
    figure, panels = grid(title, len(techniques), columns=3, row=2.2, extra=0.3)
    for axes, technique in zip(panels, techniques, strict=True):
        rows = frame[frame["technique"] == technique]
        for run, losses in rows.groupby("run", sort=True):
            label, colour = f"{technique} {run}", report.looks[technique].colour
            axes.plot(losses["done"], losses["value"], label=label, color=colour, linewidth=0.9)
        axes.set_title(f"{technique} ({_runs(rows)})")
        axes.set_xlabel(f"{rows['unit'].iloc[0]}")
        axes.set_ylabel("loss")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.locator_params(axis="x", nbins=4)
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
    caption = (
        "Loss of the pretraining as reported, a line for each seed. The techniques' losses are of "
        "different kinds: their heights say nothing about each other. Each axis spans its own "
        "losses."
    )
    return Titled(f"pretraining-{study.slug}", SECTION, title, caption, figure, aggregate=True)


def draw_transfer(report: FigureContext, study: SourceStudy, frame: pd.DataFrame) -> Drawn:
    """Loss and source validation AUROC of each epoch; a column for each setting."""
    settings, techniques = settings_of(frame), techniques_of(frame)
    names = [name for name in NAMES if name in set(frame["name"])]
    title = f"{study.label}: {_peaks(frame)}"
    figure = new_figure(title, 0.9 + 2.1 * len(names) + title_height(title))
    panels = figure.subplots(len(names), len(settings), sharey="row", squeeze=False)
    for row, name in zip(panels, names, strict=True):
        for axes, setting in zip(row, settings, strict=True):
            here = frame[(frame["name"] == name) & (frame["setting"] == setting)]
            _lines(axes, here, techniques, report)
            axes.grid(axis="y", color=FAINT, linewidth=0.5)
            axes.tick_params(labelsize=SMALL)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # epochs
        row[0].set_ylabel(NAMES[name])
    for column, setting in enumerate(settings):
        panels[0][column].set_title(SETTING_LABELS.get(setting, setting), fontsize=8)
        panels[-1][column].set_xlabel("epoch")
    technique_legend(figure, techniques, report.looks, lines=True)
    caption = joined(
        f"{_runs(frame).capitalize()}. Lines: mean over the seeds of each epoch; bands: their "
        "lowest and highest, no interval.",
        f"With more than {POINTS} epochs, an evenly spaced subset is drawn."
        if int(frame["done"].nunique()) > POINTS
        else "",
        "The epoch of the highest validation AUROC (DSC of masks) is scored, so this value is "
        "slightly too high.",
    )
    return Titled(f"training-{study.slug}", SECTION, title, caption, figure, aggregate=True)


def _placed(report: FigureContext) -> pd.DataFrame:
    ran = report.analysis.ran[["run", "policy", "protocol"]].drop_duplicates("run")
    rows = report.analysis.training.merge(ran, on="run", how="inner")
    return rows[~rows["protocol"].isin(APART)].dropna(subset=["value", *STUDY])


def _lines(
    axes: Axes, frame: pd.DataFrame, techniques: Sequence[str], report: FigureContext
) -> None:
    for technique in techniques:
        rows = frame[frame["technique"] == technique]
        if rows.empty:
            continue
        epochs = _thinned(rows.groupby("done")["value"].agg(["mean", "min", "max"]))
        look = report.looks[technique]
        if rows["run"].nunique() > 1:
            band: dict[str, Any] = {"color": look.colour, "alpha": 0.15, "linewidth": 0}
            axes.fill_between(epochs.index, epochs["min"], epochs["max"], **band)
        axes.plot(
            epochs.index,
            epochs["mean"],
            label=technique,
            linewidth=1.1,
            marker=look.marker,
            markersize=3.5,
            markevery=[len(epochs) - 1],
            **look.stroke,
        )


def _thinned(curve: pd.DataFrame) -> pd.DataFrame:
    """At most `POINTS` evenly spaced rows, including the last one."""
    step = -(-len(curve) // POINTS)
    return curve.iloc[(len(curve) - 1) % step :: step]


def _runs(frame: pd.DataFrame) -> str:
    return count_of(frame["run"].nunique(), "run")


def _from_to(frame: pd.DataFrame) -> str:
    parts = []
    for technique in techniques_of(frame):
        rows = frame[frame["technique"] == technique].sort_values("done").groupby("run")["value"]
        first, last = float(rows.first().mean()), float(rows.last().mean())
        parts.append(f"{technique} {plain(first)} → {plain(last)}")
    return ", ".join(parts).replace(" →", "\u00a0→").replace("→ ", "→\u00a0")


def _peaks(frame: pd.DataFrame) -> str:
    """Count the runs whose best epoch is the last one, which might gain from more epochs."""
    rows = frame[frame["name"].isin(list(SCORES))].sort_values("done")
    if rows.empty:
        return "training loss; no validation AUROC was reported"
    name = SCORES[rows["name"].iloc[0]]
    runs = rows.groupby("run")
    best = rows.loc[runs["value"].idxmax()].set_index("run")["done"]
    last = runs["done"].max()
    at_end, total = int((best == last).sum()), len(best)
    return (
        f"{name} is highest at the last epoch in {at_end} of {total} runs "
        f"(median best epoch {best.median():.0f} of {last.median():.0f})"
    )
