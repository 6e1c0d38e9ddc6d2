"""Figures of section "Results": AUROC by setting, in distribution and over the targets."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmd_ray.report.figures_panels import (
    auroc_limits,
    chance_line,
    chance_mark,
    dodged,
    grid,
    hollow_mark,
    setting_ticks,
    technique_legend,
)
from benchmd_ray.report.figures_parts import (
    OVER_TARGETS,
    Drawn,
    FigureContext,
    Skipped,
    SourceStudy,
    Titled,
    in_distribution,
    mean_auroc,
    on_targets,
    over_targets,
    settings_of,
    techniques_of,
)
from benchmd_ray.report.figures_wording import caveat, how_drawn, joined, sizes, spanned, where

SECTION = "Results"
TARGET_MEAN = "Targets: mean over the study's targets"
QUADRATURE = (
    f"{TARGET_MEAN}, drawn independently, as if no patient were in two of them: their intervals "
    "are added in quadrature."
)
AVERAGED = (
    f"{TARGET_MEAN}, which share the training seeds: the ends of their intervals are averaged, "
    "rather too wide than too narrow."
)


def draw_results(report: FigureContext) -> Iterator[Drawn]:
    """AUROC as in the paper's figure 3: in distribution, and mean over targets."""
    for studies in report.together:
        yield draw_auroc(report, studies)


def draw_auroc(report: FigureContext, studies: tuple[SourceStudy, ...]) -> Drawn:
    """In-distribution and target AUROC of every technique and setting, a row per study."""
    name = report.name("auroc", studies)
    scores = mean_auroc(report.analysis.scores)
    halves = _halves(scores, studies, report)
    whole = _stacked(halves)
    if whole["value"].dropna().empty:
        return Skipped(name, "there is no AUROC on a source's validation split or on a target")
    title = _auroc_title(whole)
    figure, rows = _draw_halves(title, halves, scores, report)
    for panels, (_, *both) in zip(rows, halves, strict=True):
        for axes in panels:
            axes.set_ylim(*auroc_limits(*both))
            axes.set_ylabel("AUROC")
            chance_line(axes)
    marks = [chance_mark()]
    if whole["paper"].notna().any():
        marks.insert(0, hollow_mark("the paper's number"))
    technique_legend(figure, techniques_of(whole), report.looks, extra=marks)
    caption = joined(
        f"Mean AUROC over classes, {how_drawn(report)}.",
        caveat(whole),
        QUADRATURE if _one_seed(report) else AVERAGED,
        _rows_of(scores, studies),
        "Whether intervals of two techniques overlap is not a test of their difference.",
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


Halves = list[tuple[SourceStudy, pd.DataFrame, pd.DataFrame]]


def _one_seed(report: FigureContext) -> bool:
    return bool((report.analysis.scores["seeds"] <= 1).all())


def _halves(frame: pd.DataFrame, studies: tuple[SourceStudy, ...], report: FigureContext) -> Halves:
    """The rows of each study in distribution, and its mean over targets."""
    if frame.empty:
        return []
    halves = [
        (
            study,
            in_distribution(study.of(frame)),
            over_targets(study.of(frame), one_seed=_one_seed(report)),
        )
        for study in studies
    ]
    return [half for half in halves if len(half[1]) or len(half[2])]


def _stacked(halves: Halves) -> pd.DataFrame:
    """All points, with the modality and half 0 (in distribution) or 1 (targets)."""
    parts = [
        part.assign(modality=_short(study, halves), half=half)
        for study, *both in halves
        for half, part in enumerate(both)
        if not part.empty
    ]
    columns = ["modality", *OVER_TARGETS, "half"]
    if not parts:
        return pd.DataFrame(columns=columns)
    return pd.concat(
        [part.reindex(columns=columns) for part in parts if len(part)], ignore_index=True
    )


def _short(study: SourceStudy, halves: Halves) -> str:
    """The modality, or the study if several have that modality."""
    same = [other for other, *_ in halves if other.modality == study.modality]
    return study.modality if len(same) == 1 else study.label


def _draw_halves(
    title: str, halves: Halves, frame: pd.DataFrame, report: FigureContext
) -> tuple[Figure, list[list[Axes]]]:
    """A row of panels for each study."""
    whole = _stacked(halves)
    settings, techniques = settings_of(whole), techniques_of(whole)
    columns = 2 if whole["half"].max() else 1
    figure, panels = grid(title, columns * len(halves), columns=columns, row=1.65)
    rows = [panels[first : first + columns] for first in range(0, len(panels), columns)]
    for number, (study, *both) in enumerate(halves):
        targets = sorted(set(on_targets(study.of(frame))["dataset"]))
        labels = (
            f"{study.label}: {_split_of(both[0])}",
            f"{_short(study, halves)}: {_mean_of(targets)}",
        )
        halves_shown = list(zip(both, labels, strict=True))[
            :columns
        ]  # a single panel without targets
        for axes, (part, label) in zip(rows[number], halves_shown, strict=True):
            dodged(
                axes, part, at=settings, column="setting", techniques=techniques, looks=report.looks
            )
            axes.set_title(label)
            setting_ticks(axes, settings if number == len(halves) - 1 else [])
    return figure, rows


def _split_of(frame: pd.DataFrame) -> str:
    splits = sorted(set(frame["split"])) if len(frame) else ["validation"]
    return "in distribution" if splits == ["validation"] else f"in distribution ({splits[0]})"


def _mean_of(targets: list[str]) -> str:
    if not targets:
        return "no target is scored"
    return f"{'target' if len(targets) == 1 else 'mean of targets'} {', '.join(targets)}"


def _auroc_title(whole: pd.DataFrame) -> str:
    """A title with the highest AUROC of each half, which need not differ from the next."""
    parts = []
    for half, at in ((1, "on targets"), (0, "in distribution")):
        rows = whole[whole["half"] == half].dropna(subset=["value"])
        if rows.empty:
            continue
        row = rows.iloc[int(rows["value"].to_numpy().argmax())]
        number = spanned(row["value"], row["low"], row["high"])
        parts.append(f"{at} {number} ({where(row)})")
    return f"Highest AUROC {'; '.join(parts)}"


def _rows_of(scores: pd.DataFrame, studies: tuple[SourceStudy, ...]) -> str:
    if scores.empty:
        return ""
    used = pd.concat([study.of(scores) for study in studies])
    return sizes(pd.concat([in_distribution(used), on_targets(used)]))
