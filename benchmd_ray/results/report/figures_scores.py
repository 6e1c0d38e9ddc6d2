"""Figures of section "Results": AUROC, change against scratch, gap to the targets, by setting."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmd_ray.results.report.figures_panels import (
    auroc_limits,
    chance_line,
    chance_mark,
    columns_for,
    dodged,
    grid,
    paper_mark,
    setting_ticks,
    technique_legend,
    zero_line,
)
from benchmd_ray.results.report.figures_parts import (
    OVER_TARGETS,
    Drawn,
    Report,
    Skipped,
    Study,
    Titled,
    in_distribution,
    mean_auroc,
    of_metric,
    of_place,
    on_targets,
    over_targets,
    place_label,
    places_of,
    settings_of,
    techniques_of,
)
from benchmd_ray.results.report.figures_wording import (
    by_chance,
    caveat,
    differences,
    how_drawn,
    joined,
    judged,
    sizes,
    spanned,
    where,
)

SECTION = "Results"
BASELINE = "scratch"
OVERVIEW = 8
"""Studies in one figure; with more, each has its own."""
TARGET_MEAN = "Targets: mean over the study's targets"
QUADRATURE = (
    f"{TARGET_MEAN}, drawn independently, as if no patient were in two of them: their intervals "
    "are added in quadrature."
)
AVERAGED = (
    f"{TARGET_MEAN}, which share the training seeds: the ends of their intervals are averaged, "
    "rather too wide than too narrow."
)


def draw_results(report: Report) -> Iterator[Drawn]:
    """AUROC as in the paper's figure 3, change as in its figure 4, and both by dataset."""
    groups = [report.studies]
    if len(report.studies) > OVERVIEW:
        groups = [(study,) for study in report.studies]
    for studies in groups:
        yield draw_auroc(report, studies)
    for studies in groups:
        yield draw_changes(report, studies)
    for study in report.studies:
        yield draw_changes_by_dataset(report, study)
    for study in report.studies:
        yield draw_gaps(report, study)


def draw_auroc(report: Report, studies: tuple[Study, ...]) -> Drawn:
    """In-distribution and target AUROC of every technique and setting; a row per study."""
    name = _name("auroc", studies, report)
    scores = mean_auroc(report.analysis.scores)
    halves = _halves(scores, studies, report)
    whole = _stacked(halves)
    if whole["value"].dropna().empty:
        return Skipped(name, "no AUROC of a source's validation split or of a target is there")
    title = _auroc_title(whole)
    limits = auroc_limits(whole)
    figure, panels = _draw_halves(title, halves, scores, report)
    for axes in panels:
        axes.set_ylim(*limits)
        axes.set_ylabel("AUROC")
        chance_line(axes)
    marks = [chance_mark()]
    if whole["paper"].notna().any():
        marks.insert(0, paper_mark())
    technique_legend(figure, techniques_of(whole), report.looks, extra=marks)
    caption = joined(
        f"Mean AUROC over classes, {how_drawn(report)}.",
        caveat(whole),
        QUADRATURE if _one_seed(report) else AVERAGED,
        _rows_of(scores, studies),
        "Whether intervals of two techniques overlap is not a test of their difference: that is "
        "the figure of changes.",
    )
    return Titled(name, SECTION, title, caption, figure)


def draw_changes(report: Report, studies: tuple[Study, ...]) -> Drawn:
    """Change of each technique against scratch; a row per study."""
    name = _name("change", studies, report)
    changes = judged(of_metric(report.analysis.changes))
    halves = _halves(changes, studies, report)
    whole = _stacked(halves)
    if whole["value"].dropna().empty:
        return Skipped(name, f"no technique has enough patients to be compared with {BASELINE}")
    ours, targets = (whole[whole["half"] == half] for half in (0, 1))
    title = ". ".join(
        differences(part, f"Change over {BASELINE} {at}", "gains", "losses")
        for part, at in ((targets, "on targets"), (ours, "in distribution"))
        if not part.empty
    )
    figure, panels = _draw_halves(title, halves, changes, report)
    limits = _difference_limits(whole)
    for axes in panels:
        axes.set_ylim(*limits)
        axes.set_ylabel(f"AUROC − {BASELINE}'s")
        zero_line(axes)
    technique_legend(figure, techniques_of(whole), report.looks)
    caption = joined(
        f"AUROC of a technique minus that of {BASELINE} on the same rows, {how_drawn(report)}.",
        caveat(whole),
        QUADRATURE if _one_seed(report) else AVERAGED,
        by_chance(int(whole["tested"].sum())),
        _rows_of(mean_auroc(report.analysis.scores), studies),
    )
    return Titled(name, SECTION, title, caption, figure)


def draw_changes_by_dataset(report: Report, study: Study) -> Drawn:
    """Change against scratch on each dataset of a study."""
    name = f"change-by-dataset-{study.slug}"
    changes = judged(study.of(of_metric(report.analysis.changes))).dropna(subset=["value"])
    places = places_of(study, changes)
    if len(places) < 2:
        return Skipped(name, "one dataset or none is compared: the figure of changes shows it")
    found = differences(changes, f"change over {BASELINE}", "gains", "losses")
    title = f"{study.label}, by dataset: {found}"
    settings, techniques = settings_of(changes), techniques_of(changes)
    figure, panels = grid(title, len(places), columns=columns_for(settings))
    limits = _difference_limits(changes)
    for axes, place in zip(panels, places, strict=True):
        rows = of_place(changes, place)
        dodged(axes, rows, at=settings, column="setting", techniques=techniques, looks=report.looks)
        axes.set_title(place_label(study, place))
        setting_ticks(axes, settings)
        axes.set_ylim(*limits)
        axes.set_ylabel(f"AUROC − {BASELINE}'s")
        zero_line(axes)
    technique_legend(figure, techniques, report.looks)
    caption = joined(
        f"AUROC of a technique minus that of {BASELINE} on the same rows, {how_drawn(report)}.",
        caveat(changes),
        by_chance(int(changes["tested"].sum())),
        sizes(study.of(mean_auroc(report.analysis.scores))),
    )
    return Titled(name, SECTION, title, caption, figure)


def draw_gaps(report: Report, study: Study) -> Drawn:
    """In-distribution AUROC minus that of each target."""
    name = f"gap-{study.slug}"
    gaps = judged(study.of(of_metric(report.analysis.gaps))).dropna(subset=["gap"])
    if gaps.empty:
        return Skipped(name, "no target is scored by a run whose own validation split is scored")
    gaps = gaps.rename(columns={"gap": "value"})
    found = differences(gaps, "gap to the targets", "lower there", "higher there")
    title = f"{study.label}: {found}"
    targets = sorted(set(gaps["dataset"]))
    settings, techniques = settings_of(gaps), techniques_of(gaps)
    figure, panels = grid(title, len(targets), columns=columns_for(settings))
    limits = _difference_limits(gaps)
    for axes, target in zip(panels, targets, strict=True):
        rows = gaps[gaps["dataset"] == target]
        dodged(axes, rows, at=settings, column="setting", techniques=techniques, looks=report.looks)
        axes.set_title(target)
        setting_ticks(axes, settings)
        axes.set_ylim(*limits)
        axes.set_ylabel("AUROC in distribution − target")
        zero_line(axes)
    technique_legend(figure, techniques, report.looks)
    caption = joined(
        f"AUROC on {study.source}'s validation split minus that on the target, "
        f"{how_drawn(report)}, the two drawn independently, as if no patient were in both. "
        "Above zero: the target is harder.",
        caveat(gaps),
        by_chance(int(gaps["tested"].sum())),
        sizes(study.of(mean_auroc(report.analysis.scores))),
    )
    return Titled(name, SECTION, title, caption, figure)


def _name(topic: str, studies: tuple[Study, ...], report: Report) -> str:
    return topic if len(studies) == len(report.studies) else f"{topic}-{studies[0].slug}"


Halves = list[tuple[Study, pd.DataFrame, pd.DataFrame]]


def _one_seed(report: Report) -> bool:
    return bool((report.analysis.scores["seeds"] <= 1).all())


def _halves(frame: pd.DataFrame, studies: tuple[Study, ...], report: Report) -> Halves:
    """Each study's rows in distribution, and its mean over targets."""
    if frame.empty:
        return []
    return [
        (
            study,
            in_distribution(study.of(frame)),
            over_targets(study.of(frame), one_seed=_one_seed(report)),
        )
        for study in studies
    ]


def _stacked(halves: Halves) -> pd.DataFrame:
    """All points of a figure, with the modality, and half 0 or 1 for the two columns."""
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


def _short(study: Study, halves: Halves) -> str:
    """The modality; the study where several are of that modality."""
    same = [other for other, *_ in halves if other.modality == study.modality]
    return study.modality if len(same) == 1 else study.label


def _draw_halves(
    title: str, halves: Halves, frame: pd.DataFrame, report: Report
) -> tuple[Figure, list[Axes]]:
    """Two columns of panels, in distribution and targets, with the points in them."""
    whole = _stacked(halves)
    settings, techniques = settings_of(whole), techniques_of(whole)
    figure, panels = grid(title, 2 * len(halves), row=1.65)
    for number, (study, *both) in enumerate(halves):
        targets = sorted(set(on_targets(study.of(frame))["dataset"]))
        labels = (
            f"{study.label}: in distribution",
            f"{_short(study, halves)}: {_mean_of(targets)}",
        )
        pair = panels[2 * number : 2 * number + 2]
        for axes, part, label in zip(pair, both, labels, strict=True):
            dodged(
                axes, part, at=settings, column="setting", techniques=techniques, looks=report.looks
            )
            axes.set_title(label)
            setting_ticks(axes, settings if number == len(halves) - 1 else [])
    return figure, panels


def _mean_of(targets: list[str]) -> str:
    if not targets:
        return "no target is scored"
    return f"{'target' if len(targets) == 1 else 'mean of targets'} {', '.join(targets)}"


def _auroc_title(whole: pd.DataFrame) -> str:
    """The highest of each half: what was seen, without a claim that it differs from the next."""
    parts = []
    for half, at in ((1, "on targets"), (0, "in distribution")):
        rows = whole[whole["half"] == half].dropna(subset=["value"])
        if rows.empty:
            continue
        row = rows.iloc[int(rows["value"].to_numpy().argmax())]
        number = spanned(row["value"], row["low"], row["high"])
        parts.append(f"{at} {number} ({where(row)})")
    return f"Highest AUROC {'; '.join(parts)}"


def _difference_limits(frame: pd.DataFrame) -> tuple[float, float]:
    """Limits that hold zero and all intervals, and span 0.1 at least."""
    values = pd.concat([frame[c] for c in ("value", "low", "high")]).dropna()
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    room = max(0.05 * (high - low), (0.1 - (high - low)) / 2)
    return low - room, high + room


def _rows_of(scores: pd.DataFrame, studies: tuple[Study, ...]) -> str:
    if scores.empty:
        return ""
    used = pd.concat([study.of(scores) for study in studies])
    return sizes(pd.concat([in_distribution(used), on_targets(used)]))
