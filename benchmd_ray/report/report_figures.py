"""The figures of a report, deterministic for an analysis.

A row has the same look in all figures (`canvas.TECHNIQUE_LOOKS`). Averages over runs (`ensembles`)
and shuffled labels are only in tables. Titles say what is shown; captions what marks are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from benchmd_ray.evaluation.registry import benchmarks, named_by
from benchmd_ray.report.canvas import styled, technique_looks
from benchmd_ray.report.figures_contamination import with_marks
from benchmd_ray.report.figures_curves import draw_main_curves, draw_other_curves
from benchmd_ray.report.figures_forest import draw_forests, draw_forests_by_setting
from benchmd_ray.report.figures_groups import draw_differing_subgroups, draw_other_subgroups
from benchmd_ray.report.figures_labels import (
    draw_label_efficiency,
    draw_label_efficiency_by_dataset,
)
from benchmd_ray.report.figures_panels import footer
from benchmd_ray.report.figures_parts import Drawn, FigureContext, Skipped, Titled, studies
from benchmd_ray.report.figures_ranks import (
    draw_critical_differences,
    draw_main_difference,
    draw_rankings,
)
from benchmd_ray.report.figures_scores import draw_results
from benchmd_ray.report.figures_training import draw_training
from benchmd_ray.report.figures_tuning import draw_searches, draw_settings
from benchmd_ray.report.notes import synthetic
from benchmd_ray.report.protocols import APART

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis

__all__ = ["Skipped", "Titled", "Which", "draw", "figures"]

Topic = Callable[[FigureContext], Iterator[Drawn]]
Which = Literal["main", "all", "none"]
MAIN: tuple[Topic, ...] = (
    draw_forests,
    draw_results,
    draw_label_efficiency,
    draw_main_difference,
    draw_differing_subgroups,
    draw_main_curves,
    draw_searches,
)
"""The main figures of a report, in the order of its sections."""
OTHERS: tuple[Topic, ...] = (
    draw_forests_by_setting,
    draw_label_efficiency_by_dataset,
    draw_critical_differences,
    draw_rankings,
    draw_other_subgroups,
    draw_other_curves,
    draw_training,
    draw_settings,
)
"""Further figures: by dataset, setting, class and trial."""


def figures(
    analysis: Analysis, *, which: Which = "all", resamples: int | None = None
) -> list[Titled]:
    """The figures of a report that can be drawn; see `draw`."""
    return draw(analysis, which=which, resamples=resamples)[0]


def draw(
    analysis: Analysis, *, which: Which = "all", resamples: int | None = None
) -> tuple[list[Titled], list[Skipped]]:
    """The figures of a report by section, and those that cannot be drawn with the reason.

    ``which`` is `MAIN`, all or none. ``resamples`` is stated in captions, unless None.
    """
    if which == "none":
        return [], []
    named = (analysis.scores, analysis.training)
    names = {str(name) for table in named for name in table["technique"].unique()}
    compared = analysis.scores[~analysis.scores["protocol"].isin(APART)]
    all_studies = studies(compared, analysis.modalities)
    report = FigureContext(analysis, technique_looks(names), all_studies, resamples)
    of_benchmarks = [
        named_by(benchmark.figures) for benchmark in benchmarks().values() if benchmark.figures
    ]
    with styled():
        topics = [MAIN, *of_benchmarks, *([OTHERS] if which == "all" else [])]
        drawn = {
            figure.name: figure for group in topics for topic in group for figure in topic(report)
        }
        titled = [one for one in drawn.values() if isinstance(one, Titled)]
        titled = [with_marks(one, analysis.scores) for one in titled]
        if warning := synthetic(analysis.rows):
            for one in titled:
                footer(one.figure, warning)
    sections = list(dict.fromkeys(one.section for one in titled))
    titled.sort(key=lambda one: sections.index(one.section))
    return titled, [one for one in drawn.values() if isinstance(one, Skipped)]
