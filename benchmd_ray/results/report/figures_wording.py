"""Sentences of the report's figures: what the numbers show, and never more than that.

A difference is called shown when its interval leaves out zero. Everything else is said to be not
shown, whatever the size of the number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from benchmd_ray.modalities import find_modality
from benchmd_ray.results.report.figures_parts import Report
from benchmd_ray.results.report.frames import BOOTSTRAP

LEVEL = 0.05
"""p values below it are called significant."""
GLUE = "\u00a0"
"""A space at which no line is broken."""
INTERVAL = f"95 % interval from a {BOOTSTRAP}"


def plain(value: float) -> str:
    """Three decimals as in the tables, with a true minus sign."""
    return "–" if math.isnan(value) else f"{_rounded(value):.3f}".replace("-", "−")


def signed(value: float) -> str:
    """As `plain`, with its sign."""
    return "–" if math.isnan(value) else f"{_rounded(value):+.3f}".replace("-", "−")


def _rounded(value: float) -> float:
    return round(value, 3) + 0.0  # no −0.000


def spanned(value: float, low: float, high: float, write: Callable[[float], str] = plain) -> str:
    """A number with its interval."""
    if math.isnan(low) or math.isnan(high):
        return f"{write(value)} (no{GLUE}interval)"
    return f"{write(value)}{GLUE}[{plain(low)},{GLUE}{plain(high)}]"


def p_value(p: float) -> str:
    """A p value: two significant digits, never 0."""
    if math.isnan(p):
        return "p –"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows whose interval leaves out zero; without an interval nothing is shown."""
    return frame[(frame["low"] > 0) | (frame["high"] < 0)]


def where(row: pd.Series) -> str:
    """Names what a row is about, from the columns that it has."""
    columns = ("technique", "dataset" if "dataset" in row.index else "modality", "setting")
    return ", ".join(str(row[c]) for c in columns if c in row.index)


def differences(frame: pd.DataFrame, what: str, up: str, down: str) -> str:
    """Says how many differences are shown, and the largest of them.

    Args:
        frame: value, low, high and the columns that `where` names.
        what: What the differences are: ``Change over scratch on targets``.
        up: What positive ones are: ``gains``.
        down: What negative ones are.
    """
    usable = frame.dropna(subset=["value", "low", "high"])
    if usable.empty:
        return f"{what}: nothing is shown, no interval is there"
    clear, total = shown(usable), len(usable)
    row = _largest(usable if clear.empty else clear)
    largest = f"{spanned(row['value'], row['low'], row['high'], signed)} ({where(row)})"
    if clear.empty:
        holds = "the interval holds" if total == 1 else f"all {total} intervals hold"
        return f"{what}: none is shown, {holds} zero; largest {largest}"
    parts = (((clear["low"] > 0).sum(), up), ((clear["high"] < 0).sum(), down))
    counts = ", ".join(f"{count} {name}" for count, name in parts if count)
    return f"{what}: {len(clear)} of {total} shown ({counts}), largest {largest}"


def _largest(frame: pd.DataFrame) -> pd.Series:
    """Row of the largest absolute value, the first among equals."""
    return frame.iloc[int(frame["value"].abs().to_numpy().argmax())]


def by_chance(intervals: int) -> str:
    """How many of many intervals leave out zero where nothing differs."""
    if intervals < 2:
        return ""
    expected = 0.05 * intervals
    return (
        f"The intervals are not adjusted for their number: of {intervals:,}, about "
        f"{expected:.2g} would leave out zero by chance alone."
    )


def how_drawn(report: Report, *, over_seeds: bool = True) -> str:
    """What the intervals are, with the number of resamples.

    Args:
        report: What is drawn from.
        over_seeds: Whether they cover training seeds too, where there are several.
    """
    drawn = f"{INTERVAL} ({report.resamples:,} resamples)" if report.resamples else INTERVAL
    if over_seeds and several_seeds(report.analysis.scores):
        return f"{drawn}, widened to cover training seeds too"
    return drawn


def several_seeds(scores: pd.DataFrame) -> bool:
    """Whether any result has more than one training seed."""
    return bool((scores["seeds"] > 1).any())


def sizes(scores: pd.DataFrame) -> str:
    """Records and patients of each dataset and split, and the seeds."""
    if scores.empty:
        return ""
    parts = []
    for (kind, dataset, split), rows in scores.groupby(
        ["modality", "dataset", "split"], sort=False
    ):
        records, patients = int(rows["records"].max()), int(rows["patients"].max())
        known = find_modality(str(kind))
        unit = known.scored if known else "records"
        parts.append(f"{dataset} ({split}) {records:,} {unit} of {patients:,} patients")
    return f"{'; '.join(parts)}. {seeds(scores)}"


def seeds(scores: pd.DataFrame) -> str:
    """How many training seeds a point stands for."""
    least, most = int(scores["seeds"].min()), int(scores["seeds"].max())
    if least == most == 1:
        return "One training seed: the intervals say nothing about another."
    count = f"{most}" if least == most else f"{least} to {most}"
    return f"Means over {count} training seeds."


def joined(*sentences: str) -> str:
    """A caption of the sentences that there are."""
    return " ".join(sentence for sentence in sentences if sentence)


def listed(names: list[str]) -> str:
    """Names in a sentence: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
