"""Forest plots: differences to the baseline and gaps to targets, a row for each dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from benchmd_ray.report.figures_panels import (
    SETTING_LABELS,
    SMALL,
    difference_limits,
    dodged,
    grid,
    hollow_mark,
    technique_legend,
)
from benchmd_ray.report.figures_parts import (
    Drawn,
    FigureContext,
    Skipped,
    SourceStudy,
    Titled,
    mean_auroc,
    of_metric,
    of_place,
    places_of,
    settings_of,
    techniques_of,
)
from benchmd_ray.report.figures_wording import (
    baseline_text,
    by_chance,
    caveat,
    differences,
    how_drawn,
    joined,
    judged,
    sizes,
)

SECTION = "Results"
HOLLOW = "Filled points: the test of that difference has p < 0.05; hollow: no difference is shown."
ROW, TECHNIQUE = 0.14, 0.14
"""Inches of a row, and for each technique in it."""
Draw = Callable[[FigureContext, tuple[SourceStudy, ...], bool, str], Drawn]


def draw_forests(report: FigureContext) -> Iterator[Drawn]:
    """Changes and gaps of all studies, for the setting with the most labels."""
    for draw, topic in ((draw_changes, "change"), (draw_gaps, "gap")):
        for studies in report.together:
            yield draw(report, studies, False, report.name(topic, studies))


def draw_forests_by_setting(report: FigureContext) -> Iterator[Drawn]:
    """Changes and gaps of each study in all settings, if it has several."""
    for draw, topic in ((draw_changes, "change"), (draw_gaps, "gap")):
        for study in report.studies:
            if len(settings_of(study.of(report.analysis.scores))) > 1:
                yield draw(report, (study,), True, f"{topic}-by-setting-{study.slug}")


def draw_changes(
    report: FigureContext, studies: tuple[SourceStudy, ...], every: bool, name: str
) -> Drawn:
    """Difference of each row to its baseline on each dataset, in ``every`` setting or one."""
    changes = judged(of_metric(report.analysis.changes))
    parts = _parts(report, changes, studies, every)
    if not parts:
        return Skipped(name, "no row has enough patients to be compared with a baseline")
    base = baseline_text(pd.concat([rows for _, _, rows in parts]))
    return _forest(
        report,
        parts,
        every,
        name,
        what=f"Change over {base}",
        names=("gains", "losses"),
        axis=f"AUROC − that of {base}",
        said=f"AUROC of a row minus that of {base} on the same records, {how_drawn(report)}.",
    )


def draw_gaps(
    report: FigureContext, studies: tuple[SourceStudy, ...], every: bool, name: str
) -> Drawn:
    """In-distribution AUROC minus that of each target."""
    gaps = judged(of_metric(report.analysis.gaps), "p_holm").rename(columns={"gap": "value"})
    parts = _parts(report, gaps.assign(split=""), studies, every)
    if not parts:
        return Skipped(name, "no target is scored by a run whose own validation split is scored")
    return _forest(
        report,
        parts,
        every,
        name,
        what="Gap to the targets",
        names=("lower there", "higher there"),
        axis="AUROC in distribution − target",
        said="AUROC on the source's validation split minus that on the target, "
        f"{how_drawn(report)}, made of both intervals, as if no patient were in both. "
        "Above zero: the target is harder.",
        corrected="p is Holm's, over the targets of a technique and setting.",
    )


Parts = list[tuple[SourceStudy, str, pd.DataFrame]]
"""For each panel: study, heading, and ordered rows with their label in ``row``."""


def _parts(
    report: FigureContext, frame: pd.DataFrame, studies: tuple[SourceStudy, ...], every: bool
) -> Parts:
    parts = []
    for study in studies:
        rows = study.of(frame).dropna(subset=["value"])
        detail = report.detail(study)
        if not every:
            rows = rows[rows["setting"] == detail]
        if len(rows):
            heading = study.label if every else f"{study.label}: {_short(detail)}"
            parts.append((study, heading, _named(study, rows, every)))
    return parts


def _named(study: SourceStudy, rows: pd.DataFrame, every: bool) -> pd.DataFrame:
    """Rows by place and setting, with their label in ``row``."""
    rows_of_names, places = [], places_of(study, rows)
    for place in places:
        of_one = of_place(rows, place)
        alone = sum(name == place[0] for name, _ in places) == 1
        at = place[0] if alone and place[0] != study.source else f"{place[0]} ({place[1]})"
        for setting in settings_of(of_one):
            label = f"{at}\n{_short(setting)}" if every else at
            rows_of_names.append(of_one[of_one["setting"] == setting].assign(row=label))
    return pd.concat(rows_of_names, ignore_index=True)


def _short(setting: str) -> str:
    return SETTING_LABELS.get(setting, setting).replace("\n", ", ")


def _forest(
    report: FigureContext,
    parts: Parts,
    every: bool,
    name: str,
    *,
    what: str,
    names: tuple[str, str],
    axis: str,
    said: str,
    corrected: str = "",
) -> Titled:
    """A panel for each part, each with its own limits.

    Args:
        report: Analysis and looks.
        parts: Panels whose rows have value, low, high, tested, differs, caution.
        every: Whether settings are rows too.
        name: Name of the figure.
        what: What the differences are.
        names: Words for differences above and below zero.
        axis: Label of the x axis.
        said: Start of the caption.
        corrected: How p is corrected for the number of tests.
    """
    whole = pd.concat([rows for _, _, rows in parts], ignore_index=True)
    several = whole["modality"].nunique() > 1
    judged_rows = whole if several else whole.drop(columns="modality")
    verdict = differences(
        judged_rows, what if several else f"{parts[0][0].label}: {what.lower()}", *names
    )
    techniques = techniques_of(whole)
    most = max(rows["row"].nunique() for _, _, rows in parts)
    height = most * max(ROW + TECHNIQUE * len(techniques), 0.34 if every else 0.2) + 0.55
    figure, panels = grid(verdict, len(parts), row=height)
    for axes, (_, heading, rows) in zip(panels, parts, strict=True):
        at = list(dict.fromkeys(rows["row"]))
        among = techniques_of(rows)
        dodged(axes, rows, at=at, column="row", techniques=among, looks=report.looks, sideways=True)
        axes.set_title(heading)
        axes.set_yticks(range(len(at)), at, fontsize=SMALL)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(*difference_limits(rows))
        axes.set_xlabel(axis, fontsize=SMALL + 0.5)
        axes.axvline(0, color="#333333", linewidth=0.9, zorder=1)
    mark = hollow_mark("no difference shown")
    technique_legend(figure, techniques, report.looks, extra=[mark])
    scores = mean_auroc(report.analysis.scores)
    caption = joined(
        said,
        "" if every else report.not_drawn([study for study, _, _ in parts]),
        HOLLOW,
        caveat(whole),
        corrected or by_chance(int(whole["tested"].sum())),
        sizes(pd.concat([study.of(scores) for study, _, _ in parts])),
    )
    return Titled(name, SECTION, verdict, caption, figure, aggregate=True)
