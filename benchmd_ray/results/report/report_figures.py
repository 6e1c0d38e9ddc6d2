"""The figures of a report, drawn from its analysis: titled by what they show, the same every time.

Colour, marker and line of a technique are the same in all figures (`canvas.TECHNIQUE_LOOKS`), and
each can be told apart without colour. Averages over runs (`ensembles`) are in the tables only. A
title states what the numbers show and calls a difference shown only when its test says so; the
caption says what the marks and intervals are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from benchmd_ray.benchmarks.registry import benchmarks, named_by
from benchmd_ray.results.canvas import styled, technique_looks
from benchmd_ray.results.report.figures_curves import draw_reliabilities, draw_rocs
from benchmd_ray.results.report.figures_groups import draw_subgroups
from benchmd_ray.results.report.figures_labels import draw_label_efficiency
from benchmd_ray.results.report.figures_pairs import draw_pairs
from benchmd_ray.results.report.figures_parts import Drawn, Report, Skipped, Titled, studies
from benchmd_ray.results.report.figures_ranks import draw_critical_differences, draw_rankings
from benchmd_ray.results.report.figures_scores import draw_results
from benchmd_ray.results.report.figures_training import draw_training
from benchmd_ray.results.report.figures_tuning import draw_tuning
from benchmd_ray.results.report.protocols import is_ensemble

if TYPE_CHECKING:
    from benchmd_ray.results.report.analysis import Analysis

__all__ = ["Skipped", "Titled", "draw", "figures"]

TOPICS: tuple[Callable[[Report], Iterator[Drawn]], ...] = (
    draw_results,
    draw_label_efficiency,
    draw_critical_differences,
    draw_rankings,
    draw_pairs,
    draw_subgroups,
    draw_rocs,
    draw_reliabilities,
    draw_training,
    draw_tuning,
)
"""In the order of the report's sections."""


def figures(analysis: Analysis, *, resamples: int | None = None) -> list[Titled]:
    """All figures of a report that can be drawn, in the order of its sections.

    Args:
        analysis: What is drawn.
        resamples: Of the patients, as `analysis.analyse` was given it, for the captions; None
            leaves the number out.
    """
    return draw(analysis, resamples=resamples)[0]


def draw(analysis: Analysis, *, resamples: int | None = None) -> tuple[list[Titled], list[Skipped]]:
    """All figures of a report, and those that cannot be drawn with the reason.

    Write them with `canvas.write`: the same analysis gives the same bytes.

    Args:
        analysis: What is drawn.
        resamples: As for `figures`.
    """
    names = {
        str(name)
        for table in (analysis.scores, analysis.training)
        for name in table["technique"].unique()
    }
    single = analysis.scores[~analysis.scores["protocol"].map(is_ensemble).astype(bool)]
    found = studies(single, analysis.modalities)
    report = Report(analysis, technique_looks(names), found, resamples)
    own = [named_by(each.figures) for each in benchmarks().values() if each.figures]
    with styled():
        drawn = [one for topics in (TOPICS, *own) for topic in topics for one in topic(report)]
    return (
        [one for one in drawn if isinstance(one, Titled)],
        [one for one in drawn if isinstance(one, Skipped)],
    )
