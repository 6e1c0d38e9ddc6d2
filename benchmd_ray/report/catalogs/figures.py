"""Figures of a catalog: class balance, ages and sexes, examples; PNG for screens, SVG for print.

They are drawn with matplotlib's objects only, without its global state. The same catalog gives the
same bytes. They contain no names of patients, records or files.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import OLDEST_AGE
from benchmd_ray.report.canvas import look, named, new_figure, styled, write
from benchmd_ray.report.catalogs.contents import (
    AGE_BIN,
    AGE_BINS,
    SEXES,
    SPLITS,
    Balance,
    People,
    class_balance,
    examples,
    people,
)
from benchmd_ray.report.catalogs.example_figures import draw_examples

PER_CLASS = {"time": 2}
"""Number of examples per class, by the last axis of the signal (traces are wide)."""
OTHERWISE_PER_CLASS = 4
UNKNOWN_LOOK: dict[str, Any] = {
    "facecolor": "#E5E5E5",
    "hatch": "-----",
    "edgecolor": "#999999",
    "linewidth": 0,
}


def write_figures(catalog: Catalog, folder: Path) -> list[Path]:
    """Write all figures of a catalog as PNG and as SVG.

    Args:
        catalog: The catalog.
        folder: Where ``class-balance``, ``people`` and ``examples`` are written; ``examples`` is
            one figure per class for signals over time with many channels, otherwise a single
            figure.

    Returns:
        The files.

    Raises:
        BenchmdError: A shard is missing or of another size than the manifest states.
    """
    chosen = examples(catalog, PER_CLASS.get(catalog.signal.axes[-1], OTHERWISE_PER_CLASS))
    with styled():
        figures = {
            "class-balance": draw_class_balance(catalog, class_balance(catalog)),
            "people": draw_people(catalog, people(catalog)),
            **draw_examples(catalog, chosen),
        }
        return [path for name, figure in figures.items() for path in write(figure, folder, name)]


def draw_class_balance(catalog: Catalog, balances: dict[str, Balance]) -> Figure:
    """Draw the share and number of records of each class by split."""
    sizes = ", ".join(f"{balance.records:,} {split}" for split, balance in balances.items())
    names = catalog.card.classes
    figure = new_figure(
        f"Class balance of {named(catalog)}: {sizes} {_rows(catalog)}",
        1.3 + len(names) * (0.15 + 0.24 * len(balances)),
    )
    axes = figure.add_subplot()
    height = 0.8 / len(balances)
    for place, (split, held) in enumerate(balances.items()):
        shift = (place - (len(balances) - 1) / 2) * height
        _class_bars(axes, held, shift, height, label=split, **look(_colour(split)))
    axes.set_yticks(np.arange(len(names)), [textwrap.fill(name, 24) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    widest = max(
        (held.positive[name] + held.unknown[name]) / held.records
        for held in balances.values()
        for name in names
    )
    axes.set_xlim(0, 100 * max(widest, 0.01))
    axes.set_xlabel(f"share of the split's {_rows(catalog)} (%)")
    axes.tick_params(axis="y", length=0)
    handles = {label: bar for bar, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = sorted(handles, key=(*balances, "unknown").index)
    figure.legend(
        [handles[label] for label in labels],
        labels,
        loc="outside lower left",
        ncols=len(labels),
        frameon=False,
    )
    return figure


def _colour(split: str) -> int:
    """Index of a split's colour, the same in every figure."""
    return (*SPLITS, split).index(split)


def _class_bars(axes: Axes, balance: Balance, shift: float, height: float, **look: Any) -> None:
    """Draw the bars of one split: the share of each class and of unknown labels, with numbers."""
    for row, name in enumerate(balance.positive):
        positive, unknown = balance.positive[name], balance.unknown[name]
        share, end = (100 * n / balance.records for n in (positive, positive + unknown))
        axes.barh(row + shift, share, height * 0.9, **look)
        text = f"{positive:,} ({share:.1f} %)"
        if unknown:
            axes.barh(
                row + shift, end - share, height * 0.9, share, label="unknown", **UNKNOWN_LOOK
            )
            text += f", unknown {unknown:,}"
        axes.annotate(
            text, (end, row + shift), (4, 0), textcoords="offset points", va="center", fontsize=7.5
        )


def draw_people(catalog: Catalog, splits: dict[str, People]) -> Figure:
    """Draw the ages of each split's patients by sex, and how many are unknown."""
    sizes = ", ".join(f"{group.patients:,} {split}" for split, group in splits.items())
    whom = _whom(catalog)
    figure = new_figure(
        f"Ages and sexes of {named(catalog)}: {sizes} {whom}", 0.9 + 2.0 * len(splits)
    )
    panels = figure.subplots(len(splits), sharex=True, squeeze=False)[:, 0]
    labels = [f"{n * AGE_BIN}–{(n + 1) * AGE_BIN - 1}" for n in range(AGE_BINS - 1)]
    places = np.append(np.arange(AGE_BINS), AGE_BINS + 0.5)
    sexes = [sex for sex in SEXES if any(group.of_sex(sex) for group in splits.values())]
    most = max(
        max(*group.ages[sex], group.age_unknown[sex]) for group in splits.values() for sex in sexes
    )
    upright = most > 999 or (most > 99 and len(sexes) > 2)  # wider than a bar
    for axes, (split, group) in zip(panels, splits.items(), strict=True):
        for number, sex in enumerate(sexes):
            shift = (number - (len(sexes) - 1) / 2) * 0.8 / len(sexes)
            counts = [*group.ages[sex], group.age_unknown[sex]]
            label = "sex unknown" if sex == "unknown" else sex
            bars = axes.bar(
                places + shift, counts, 0.76 / len(sexes), label=label, **look(SEXES.index(sex))
            )
            texts = [f"{n:,}" if n else "" for n in counts]
            axes.bar_label(bars, texts, fontsize=6.5, padding=2, rotation=90 if upright else 0)
        axes.set_title(f"{split}: {_sexes(group)}")
        axes.set_ylabel(whom)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.margins(y=0.3 if upright else 0.12)
    panels[-1].set_xticks(places, [*labels, f"{OLDEST_AGE:g}+", "unknown"])
    panels[-1].set_xlabel("age (years)")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", ncols=len(SEXES), frameon=False)
    return figure


def _whom(catalog: Catalog) -> str:
    """What is counted: patients, or what replaces them if the source has no patient IDs."""
    grouped_by = str(catalog.manifest["raw"]["grouped_by"])
    if grouped_by == "record" and catalog.task.scored == "scans":
        return "scans"
    return f"{grouped_by}s"


def _sexes(people: People) -> str:
    counts = ", ".join(f"{sex} {people.of_sex(sex):,}" for sex in SEXES[:2])
    ages = sum(people.age_unknown.values())
    return f"{counts}, sex unknown {people.of_sex('unknown'):,}; age unknown {ages:,}"


def _rows(catalog: Catalog) -> str:
    """What a row of the catalog is."""
    return "windows" if catalog.task.scored == "scans" else "records"
