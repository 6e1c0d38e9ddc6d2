"""Style, titles and files of all figures."""

from __future__ import annotations

import hashlib
import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from warnings import catch_warnings, filterwarnings
from weakref import WeakKeyDictionary

import matplotlib
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.forked import results_of
from benchmd_ray.files.atomic import remove, replacing, write_json
from benchmd_ray.scores.resampling import usual_threads

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Colours that colour-blind people can tell apart; each is paired with a pattern of `HATCHES`."""
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
BLACK, YELLOW = "#000000", "#F0E442"
"""Yellow is too light for a line on white, so it comes last and has a dark edge."""
UNSAID = ("Date", "Creator", "Format", "Type")
"""Metadata that an SVG omits."""
_DRAWN: WeakKeyDictionary[Figure, str] = WeakKeyDictionary()
DPI = 150
DRAWING = "Drawing"
"""Key of a PNG's text for the SVG that it shows and its dots per inch."""
WIDTH = 10.0
"""Inches."""
LETTERS = 9.6
"""Letters of a title per inch."""
LISTED, FIGURE = "figures.json", r"[\w.+-]+\.(png|svg)"
"""Name of the list of figures in a folder, and the pattern of their names."""
MAX_LISTED_BYTES = 2**20
EACH = 4
"""Fewest figures for each process that writes figures."""


LineStyle = Literal["-", "--", "-."] | tuple[float, tuple[float, ...]]


@dataclass(frozen=True)
class TechniqueLook:
    """Look of a technique in every figure; marker and line distinguish it without colour."""

    colour: str
    marker: str
    line: LineStyle

    @property
    def stroke(self) -> dict[str, Any]:
        """Arguments of `Axes.plot` for a line."""
        return {"color": self.colour, "linestyle": self.line}


TECHNIQUE_LOOKS = {
    "scratch": TechniqueLook(BLACK, "o", "-"),
    "e-Mix": TechniqueLook("#E69F00", "s", "--"),
    "ShED": TechniqueLook("#56B4E9", "^", "-."),
    "MAE": TechniqueLook("#0072B2", "D", (0, (1.0, 1.2))),
    "ImageNet": TechniqueLook("#D55E00", "v", (0, (6.0, 1.5, 1.0, 1.5, 1.0, 1.5))),
    "ImageNet, then MAE": TechniqueLook("#009E73", "P", (0, (8.0, 2.5))),
}
OTHER_LOOKS = (
    TechniqueLook("#CC79A7", "X", (0, (3.0, 1.0))),
    TechniqueLook("#7F7F7F", "p", (0, (4.0, 1.0, 1.0, 1.0))),
    TechniqueLook(YELLOW, "*", (0, (1.0, 2.5))),
    TechniqueLook("#882255", "<", (0, (10.0, 2.0, 2.0, 2.0))),
    TechniqueLook("#999933", ">", (0, (2.0, 2.0))),
    TechniqueLook("#44AA99", "h", (0, (5.0, 1.0))),
    TechniqueLook("#AA4499", "H", (0, (3.0, 1.0, 1.0, 1.0))),
    TechniqueLook("#661100", "d", (0, (1.0, 1.0, 3.0, 1.0))),
    TechniqueLook("#332288", "8", (0, (7.0, 1.0))),
)
"""Of other rows, in the order of their names; further ones mix colours and markers."""


def technique_looks(names: Iterable[str]) -> dict[str, TechniqueLook]:
    """Look of each of a report's rows; the benchmark's look the same in every report."""
    others, number = sorted(set(names) - set(TECHNIQUE_LOOKS)), len(OTHER_LOOKS)
    looks = dict(TECHNIQUE_LOOKS)
    for place, name in enumerate(others):
        round_, at = divmod(place, number)
        shape = OTHER_LOOKS[(at + round_) % number]
        looks[name] = replace(shape, colour=OTHER_LOOKS[at].colour)
    return looks


def styled() -> AbstractContextManager[None]:
    """Draw and write with matplotlib's defaults and `STYLE`, not the user's configuration."""
    return style.context(["default", STYLE])


def new_figure(title: str, height: float, *, width: float = WIDTH) -> Figure:
    # Letters are a little wider in a PNG than in the layout.
    """An empty figure with its title, of a size in inches."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.15))
    lines = textwrap.fill(title, int(width * LETTERS), break_on_hyphens=False)
    figure.suptitle(lines, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def look(place: int) -> dict[str, Any]:
    """Colour and pattern of the bars of a series."""
    return {
        "facecolor": OKABE_ITO[place % len(OKABE_ITO)],
        "hatch": HATCHES[place % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0,
    }


def named(catalog: Catalog) -> str:
    """Dataset and policy, for titles."""
    return f"{catalog.dataset} ({catalog.manifest['policy']})"


def compact(svg: str) -> str:
    """An SVG with coordinates of two decimals (1/100 point) instead of six: half the size."""

    def rounded(attribute: re.Match[str]) -> str:
        return re.sub(r"\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}", attribute[0])

    return re.sub(r'\s(?:d|x|y)="[^"]*"', rounded, svg)


def svg_of(figure: Figure) -> str:
    """A finished figure as SVG, drawn once; the same figure gives the same text."""
    if figure not in _DRAWN:
        buffer = io.BytesIO()
        with styled(), catch_warnings():
            filterwarnings("ignore", "Glyph")  # its letters are text, in the browser's fonts
            _lay_out(figure)
            figure.savefig(buffer, format="svg", metadata=dict.fromkeys(UNSAID))
        _DRAWN[figure] = compact(buffer.getvalue().decode())
    return _DRAWN[figure]


def write(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a finished figure as PNG and SVG; the same figure gives the same bytes.

    A PNG records the hash of its SVG and is not written again for the same drawing.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    text = svg_of(figure)
    drawing = f"{hashlib.sha256(text.encode()).hexdigest()} {DPI} {matplotlib.__version__}"
    if _drawing_of(png) != drawing:
        with styled(), replacing(png) as partial:
            metadata = {"Software": None, DRAWING: drawing}
            figure.savefig(partial, format="png", dpi=DPI, metadata=metadata)
    with replacing(svg) as partial:
        partial.write_text(text, "utf-8")
    return [png, svg]


def _drawing_of(png: Path) -> str:
    """The drawing recorded in a PNG; empty if there is none."""
    try:
        with Image.open(png, formats=["PNG"]) as image:
            return str(image.info.get(DRAWING, ""))
    except (
        OSError,
        ValueError,
        SyntaxError,
        Image.DecompressionBombError,
    ):  # missing, or of another program
        return ""


def write_listed(
    figures: Sequence[tuple[str, Figure]], folder: Path, reported: Callable[[int], None]
) -> None:
    """Write figures as `write_all` does, and delete those of earlier calls not among them."""
    names = [f"{name}.{kind}" for name, _ in figures for kind in ("png", "svg")]
    for old in set(listed_in(folder)) - set(names):
        (folder / old).unlink(missing_ok=True)
    if not figures:
        remove(folder / LISTED)
        return
    write_json(folder / LISTED, names)
    write_all(figures, folder, reported)


def listed_in(folder: Path) -> list[str]:
    """Names of the files that `write_listed` wrote; empty where the list cannot be read."""
    path = folder / LISTED
    if not path.is_file() or path.stat().st_size > MAX_LISTED_BYTES:
        return []
    with suppress(ValueError, RecursionError):
        names = json.loads(path.read_bytes())
        if isinstance(names, list):
            return [n for n in names if isinstance(n, str) and re.fullmatch(FIGURE, n)]
    return []


def write_all(
    figures: Sequence[tuple[str, Figure]], folder: Path, reported: Callable[[int], None]
) -> None:
    """Write finished figures, several at a time if there are enough CPUs.

    Args:
        figures: Names and figures.
        folder: Where they are written.
        reported: Called with the number of figures written so far.

    Raises:
        BenchmdError: A process that wrote figures was killed.
    """
    processes = min(usual_threads(), len(figures) // EACH)
    work = partial(_written, figures, folder)
    doing = f"wrote figures into {folder}"
    with closing(results_of(work, len(figures), processes, doing)) as results:
        for number, ((_, figure), svg) in enumerate(zip(figures, results, strict=True), 1):
            _DRAWN[figure] = svg
            reported(number)


def _written(figures: Sequence[tuple[str, Figure]], folder: Path, place: int) -> str:
    """Write a figure; gives its SVG."""
    name, figure = figures[place]
    write(figure, folder, name)
    return svg_of(figure)


def _lay_out(figure: Figure) -> None:
    """Lay a figure out only once, as this takes as long as drawing."""
    if figure.get_layout_engine() is not None:
        with styled():
            figure.draw_without_rendering()
            figure.set_layout_engine(None)
