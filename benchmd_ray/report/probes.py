"""Report of probes: a table of encoders by catalog, and curves over labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pandas as pd

from benchmd_ray.files.atomic import replacing
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.canvas import (
    BLACK,
    OKABE_ITO,
    YELLOW,
    styled,
    technique_looks,
    write_listed,
)
from benchmd_ray.report.contamination import legend, marked, together
from benchmd_ray.report.figures_contamination import with_marks
from benchmd_ray.report.figures_labels import draw_probes
from benchmd_ray.report.figures_parts import (
    FigureContext,
    Titled,
    in_distribution,
    mean_auroc,
    on_targets,
    studies,
)
from benchmd_ray.report.formats import csv_text, markdown
from benchmd_ray.report.frames import by_name
from benchmd_ray.report.protocols import APART

HEADINGS = {"linear": "linear", "knn": "k-NN"}
COLOURS = (BLACK, *(colour for colour in OKABE_ITO if colour != YELLOW))
"""Of the curves, in the order of names: colours that colour-blind people can tell apart."""
COLUMNS = [
    *("source", "dataset", "split", "technique", "setting", "seeds", "value", "low", "high"),
    "contamination",
]


def probe_scores(analysis: Analysis) -> pd.DataFrame:
    """Mean AUROC of every probe with its interval, a row for each encoder, dataset and setting."""
    scores = mean_auroc(analysis.scores)
    if scores.empty:
        return scores
    scores = scores[~scores["protocol"].isin(APART)].dropna(subset="value")
    parts = [in_distribution(scores), on_targets(scores)]
    return pd.concat(parts)[COLUMNS].reset_index(drop=True)


def probe_table(analysis: Analysis) -> pd.DataFrame:
    """AUROC with all labels by encoder and dataset, as text; contaminated rows are marked."""
    scores, rows = probe_scores(analysis), []
    keys = ["source", "dataset", "split", "technique"]
    for key, part in scores.groupby(keys, sort=False):
        source, dataset, split, technique = map(str, key)
        where = dataset if dataset == source else f"{source} → {dataset}"
        cells = {str(row["setting"]): row for row in part.to_dict("records")}
        values = {
            title: _cell(cells[setting]) if setting in cells else "–"
            for setting, title in HEADINGS.items()
        }
        (encoder,) = marked([technique], [together(part["contamination"])])
        rows.append({"catalog": f"{where} ({split})", "encoder": encoder, **values})
    return pd.DataFrame(rows)


def probe_legend(analysis: Analysis) -> str:
    """What the marks of the table mean; empty without any."""
    scores = probe_scores(analysis)
    return legend(scores[scores["setting"].isin(HEADINGS)]) if len(scores) else ""


def _cell(row: Mapping[Any, Any]) -> str:
    value = f"{row['value']:.3f}"
    if pd.isna(row["low"]):
        return f"{value} (no interval)"  # of too few patients with a class
    return f"{value} ({row['low']:.3f}–{row['high']:.3f})"


def write_probes(analysis: Analysis, out: Path) -> list[Path]:
    """Write ``probes.csv``, ``probes.md`` and the figure ``probes``."""
    table, scores = probe_table(analysis), probe_scores(analysis)
    meaning = probe_legend(analysis)
    contents: dict[str, Callable[[], str]] = {
        "probes.csv": lambda: csv_text(scores),
        "probes.md": lambda: "\n\n".join(filter(None, (markdown(table), meaning))) + "\n",
    }
    for name, content in contents.items():
        with replacing(out / name) as partial:
            partial.write_text(content(), "utf-8")
    names = {str(name) for name in scores["technique"]}
    chosen = studies(mean_auroc(analysis.scores), analysis.modalities)
    looks = technique_looks(names)
    colours = cycle(COLOURS)
    looks = {name: replace(looks[name], colour=next(colours)) for name in by_name(names)}
    report = FigureContext(analysis, looks, chosen, analysis.resamples)
    with styled():
        drawn = draw_probes(report)
        titled = [with_marks(drawn, analysis.scores)] if isinstance(drawn, Titled) else []
        figures = [(one.name, one.figure) for one in titled]
        write_listed(figures, out, lambda done: None)
    written = [out / name for name in contents]
    return [*written, *(out / f"{name}.png" for name, _ in figures)]
