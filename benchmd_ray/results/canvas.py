"""What all figures share: style, title, and how they are written."""

from __future__ import annotations

import textwrap
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.files import replacing

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Colours that colour-blind people tell apart; each goes with a pattern of `HATCHES`."""
HATCHES = ("", "/////", "....", "xxxxx", "|||||", "+++++", "ooo")
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "benchmd",
}
DPI = 150
WIDTH = 10.0
"""Inches."""


def styled() -> AbstractContextManager[None]:
    """Draw and write within it: matplotlib's own defaults and `STYLE`, whatever the user set."""
    return style.context(["default", STYLE])


def new_figure(title: str, height: float, *, width: float = WIDTH) -> Figure:
    """An empty figure with its title, of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    lines = textwrap.fill(title, int(width * 10))
    figure.suptitle(lines, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def look(place: int) -> dict[str, Any]:
    """Colour and pattern of the bars of one series."""
    return {
        "facecolor": OKABE_ITO[place % len(OKABE_ITO)],
        "hatch": HATCHES[place % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0,
    }


def named(catalog: Catalog) -> str:
    """Dataset and policy, for titles."""
    return f"{catalog.dataset} ({catalog.manifest['policy']})"


def write(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and as SVG: the same figure gives the same bytes."""
    written = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        path = folder / f"{name}.{kind}"
        with replacing(path) as partial:
            figure.savefig(partial, format=kind, dpi=DPI, metadata=metadata)
        written.append(path)
    return written
