"""A comparison as a folder: one HTML page, tables and figures as files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmd_ray.benchmarks.touchstone import report
from benchmd_ray.benchmarks.touchstone.comparing import VERSION, Comparison
from benchmd_ray.benchmarks.touchstone.report_figures import draw
from benchmd_ray.benchmarks.touchstone.report_parts import RESULTS
from benchmd_ray.benchmarks.touchstone.report_slices import draw_slices
from benchmd_ray.files.atomic import replacing, slug
from benchmd_ray.report.canvas import styled
from benchmd_ray.report.document import (
    Section,
    document,
    figure_parts,
    html,
    listed_notes,
    none,
    terms,
)
from benchmd_ray.report.figures_parts import Skipped, Titled
from benchmd_ray.report.write import write_declared, write_figures

NAME = "comparison.html"
FIGURES = "figures"
LEAD = (
    "Algorithms compared by their scores of single cases, after Touchstone (Bassi, Li et al. "
    "2024). Ranks, tests and intervals use the cases that all of them have; the published way of "
    "averaging is next to it."
)
WORDS = {
    "DSC": "Dice similarity coefficient: twice the voxels that reference and prediction share, "
    "over the sum of both. 0 for an organ that was missed; nothing where the reference has none.",
    "NSD": "Normalised surface Dice: the share of both surfaces' area within a tolerance of the "
    "other surface. The tolerance is named with it, such as NSD@2mm.",
    "HD95": "95th percentile of the distance between surfaces in mm, the larger of both "
    "directions; infinite for a missed organ.",
    "Missed, spurious": "Missed: the reference has the organ and the prediction nothing of it. "
    "Spurious: the reverse, which costs nothing in the means.",
    "Common cases": "Those that every compared algorithm was scored on. A mean is over those "
    "whose reference has the class, so its number of cases differs by class.",
    "Average": "Mean of the class means. Its interval is from a bootstrap over cases, whole cases "
    "drawn, all of a patient together where patients are known; Student's t on the logit scale. "
    "The published sd of an average is the mean of the classes' sds, which is not the sd of "
    "anything per case. A mean of exactly 0 or 1, where no resample differs, has the interval of "
    "Clopper and Pearson.",
    "Significant": "One-sided Wilcoxon signed-rank test of every ordered pair (zero differences "
    "dropped; exact up to 50 differences, else normal approximation without continuity "
    "correction), adjusted by Holm, below 0.05. Identical scores have p = 1.",
    "Level with the best": "The algorithm of the highest mean, and those not significantly below "
    "it. Not shown to be below is not shown to be equal.",
    "Rank, by case": "Algorithms are ranked within each case, and ranks averaged: “rank then "
    "average”, next to ranks by mean, which is “average then rank”.",
    "Kendall's τ": "τ-b of two orders: 1 is the same, 0 no relation, −1 the opposite. Of "
    "resamples: with the order on all common cases.",
    "Centred per class": "A scan's mean over the organs that it shows, after subtracting each "
    "organ's mean over all scans: which organs a scan shows depends on its group.",
}


def write_comparison(
    comparison: Comparison,
    folder: Path,
    images: Mapping[str, Path] | None = None,
    *,
    figures: bool = True,
) -> list[str]:
    """Write page, tables and figures; returns what was written and skipped, line by line."""
    with styled():
        drawn = [*draw(comparison), *draw_slices(comparison, images or {})] if figures else []
    headings = [item.heading for item in report.TABLES]
    titled = sorted(
        (item for item in drawn if isinstance(item, Titled)),
        key=lambda item: headings.index(item.section) if item.section in headings else math.inf,
    )
    write_figures(titled, folder / FIGURES)
    tables = write_declared(
        report.TABLES, comparison, folder, main=report.MAIN, notes=comparison.notes
    )
    path = folder / NAME
    with replacing(path) as partial:
        partial.write_text(page(comparison, titled), "utf-8")
    skipped = {item.reason for item in drawn if isinstance(item, Skipped)}
    return [
        f"written: {len(tables)} tables in {folder}, the main one {tables[0]}",
        *([f"written: {len(titled)} figures in {folder / FIGURES}"] if figures else []),
        *(f"not drawn: {reason}" for reason in sorted(skipped)),
        f"written: {path}",
    ]


def page(comparison: Comparison, figures: Sequence[Titled]) -> str:
    title = f"{len(comparison.scores.algorithms)} algorithms compared"
    footer = (
        f"Written by benchmd segment compare (version {VERSION} of the comparison). The tables are "
        f"next to this page with all digits (CSV), the figures in {FIGURES}/ (SVG, PNG)."
    )
    return document(title, LEAD, _parts(comparison, figures), footer)


def _parts(comparison: Comparison, figures: Sequence[Titled]) -> list[Section]:
    drawn = figure_parts(figures)
    together: dict[str, str] = {}
    for declared in report.TABLES:
        table = declared.page(comparison) if declared.page is not None else None
        if table is not None:
            markup = html(declared.name, table)
            together[declared.heading] = together.get(declared.heading, "") + markup
    headings = dict.fromkeys([declared.heading for declared in report.TABLES] + list(drawn))
    parts = [
        (slug(head), head, together.get(head, "") + drawn.get(head, ""))
        for head in headings
        if head in together or head in drawn
    ]
    notes = ("notes", "Notes", listed_notes(comparison.notes, "None."))
    first = parts[:1] or [("results", RESULTS, none("No result."))]
    return [
        *first,
        notes,
        *parts[1:],
        ("methods", "Methods and definitions", terms([*WORDS.items()])),
    ]
