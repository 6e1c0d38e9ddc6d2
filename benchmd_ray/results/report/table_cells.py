"""Numbers and the columns that tables have in common, as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from benchmd_ray.results.report.cells import dataset_text

INTERVAL = "[95 % interval]"
ABOUT = ("modality", "source", "dataset", "setting")
"""What most tables begin with, see `about`."""


def number(value: float | None) -> str:
    """Three decimals; a dash where there is no number."""
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def signed(value: float) -> str:
    """Three decimals with their sign; a dash where there is no number."""
    return "–" if math.isnan(value) else f"{round(value, 3) + 0.0:+.3f}"  # no -0.000


def p_value(value: float) -> str:
    """Three decimals, never 0."""
    if math.isnan(value):
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def spanned(frame: pd.DataFrame, value: str, write: Callable[[float], str] = number) -> list[str]:
    """Column of values with their intervals, where they have one: ``0.712 [0.690, 0.731]``."""
    return [
        write(v) if math.isnan(low) else f"{write(v)} [{write(low)}, {write(high)}]"
        for v, low, high in zip(frame[value], frame["low"], frame["high"], strict=True)
    ]


def cautions(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """The column that says what is missing or rough, where anything is."""
    return {"caution": frame["caution"]} if frame["caution"].any() else {}


def scored(frame: pd.DataFrame) -> list[str]:
    """Column of datasets, see `dataset_text`."""
    rows = frame[["source", "dataset", "role", "split"]].itertuples(index=False)
    return [dataset_text(*row) for row in rows]


def about(frame: pd.DataFrame, *names: str) -> dict[str, pd.Series | list[str]]:
    """The columns that say what a row is about, under the names that readers see."""
    held: dict[str, pd.Series | list[str]] = {}
    for name in names:
        held["trained on" if name == "source" else name] = frame[name]
    if "role" in frame:
        held["dataset"] = scored(frame)
    return held


def protocol_of(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """The last columns of most tables: policy and protocol."""
    return {name: frame[name] for name in ("policy", "protocol")}
