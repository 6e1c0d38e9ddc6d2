"""Sentences of the report's figures.

A difference is called "shown" if its test is significant and "not shown" otherwise, whatever its
size; with too few patients it is "not tested".
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.report.figures_parts import FigureContext
from benchmd_ray.report.frames import BOOTSTRAP, by_name
from benchmd_ray.scores.comparison import LEVEL

MOST_BASELINES = 2
"""That a sentence names."""
GLUE = "\u00a0"
"""A space at which no line is broken."""
INTERVAL = f"95 % interval by Student's t from a {BOOTSTRAP}"
ROUGH = (
    "Dotted intervals are rough: a class has fewer than 10 patients on its rarer side. Values "
    "without an interval rest on too few patients."
)


def plain(value: float) -> str:
    """Three decimals with a true minus sign."""
    return "–" if math.isnan(value) else f"{_rounded(value):.3f}".replace("-", "−")


def signed(value: float) -> str:
    """As `plain`, with its sign."""
    return "–" if math.isnan(value) else f"{_rounded(value):+.3f}".replace("-", "−")


def _rounded(value: float) -> float:
    return round(value, 3) + 0.0  # avoids −0.000


def spanned(value: float, low: float, high: float, write: Callable[[float], str] = plain) -> str:
    """A number with its interval."""
    if math.isnan(low) or math.isnan(high):
        return f"{write(value)} (no{GLUE}interval)"
    return f"{write(value)}{GLUE}[{plain(low)},{GLUE}{plain(high)}]"


def p_value(p: float) -> str:
    """A p value with two significant digits, never 0."""
    if math.isnan(p):
        return "p –"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def judged(frame: pd.DataFrame, p: str = "p") -> pd.DataFrame:
    """Differences with the columns ``tested`` and ``differs``."""
    return frame.assign(tested=frame[p].notna(), differs=frame[p] < LEVEL)


def where(row: pd.Series) -> str:
    """What a row is about: its dataset, technique and setting, as far as it has them."""
    columns = ("technique", "dataset" if "dataset" in row.index else "modality", "setting")
    return ", ".join(str(row[c]) for c in columns if c in row.index)


def differences(frame: pd.DataFrame, what: str, up: str, down: str) -> str:
    """Sentence on how many differences are shown, and the largest of them.

    Args:
        frame: value, low, high, tested, differs (`judged`), and the columns that `where` names.
        what: What the differences are, such as ``Change over scratch on targets``.
        up: Name of positive differences, such as ``gains``.
        down: Name of negative differences.
    """
    usable = frame.dropna(subset="value")
    tested = usable[usable["tested"]]
    if tested.empty:
        return f"{what}: not tested, too few patients"
    clear, total, few = tested[tested["differs"]], len(tested), len(usable) - len(tested)
    row = _largest(tested if clear.empty else clear)
    largest = f"{spanned(row['value'], row['low'], row['high'], signed)} ({where(row)})"
    untested = f"; {few} with too few patients not tested" if few else ""
    if clear.empty:
        which = "no difference is shown" if total == 1 else f"none of {total} is shown"
        return f"{what}: {which}, largest {largest}{untested}"
    parts = (((clear["value"] > 0).sum(), up), ((clear["value"] < 0).sum(), down))
    counts = ", ".join(f"{count} {name}" for count, name in parts if count)
    return f"{what}: {len(clear)} of {total} shown ({counts}), largest {largest}{untested}"


def _largest(frame: pd.DataFrame) -> pd.Series:
    return frame.iloc[int(frame["value"].abs().to_numpy().argmax())]


def by_chance(tests: int) -> str:
    """Sentence on how many of several tests are expected to be significant by chance."""
    if tests < 2:
        return ""
    return (
        f"The tests are not adjusted for their number: of {tests:,}, about {LEVEL * tests:.2g} "
        "would show a difference by chance alone."
    )


def caveat(frame: pd.DataFrame) -> str:
    """What dotted and missing intervals mean, if a figure has any."""
    rough = frame["low"].isna() | frame["caution"].astype(str).str.contains("rough interval")
    return ROUGH if rough.any() else ""


def how_drawn(report: FigureContext) -> str:
    """The kind of interval, the number of resamples, and whether seeds are covered."""
    drawn = f"{INTERVAL} ({report.resamples:,} resamples)" if report.resamples else INTERVAL
    if several_seeds(report.analysis.scores):
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
    places = scores.groupby(["modality", "dataset", "split"], sort=False)
    for (_, dataset, split), rows in places:
        records, patients = int(rows["records"].max()), int(rows["patients"].max())
        scored = rows["scored"].iloc[0]
        many = count_of(records, str(scored).removesuffix("s"))
        parts.append(f"{dataset} ({split}) {many} of {count_of(patients, 'patient')}")
    return f"{'; '.join(parts)}. {seeds(scores)}"


def seeds(scores: pd.DataFrame) -> str:
    """How many training seeds a point stands for."""
    least, most = int(scores["seeds"].min()), int(scores["seeds"].max())
    if least == most == 1:
        return "One training seed: the intervals do not cover variation between seeds."
    count = f"{most}" if least == most else f"{least} to {most}"
    return f"Means over {count} training seeds."


def joined(*sentences: str) -> str:
    """Join the non-empty sentences of a caption."""
    return " ".join(sentence for sentence in sentences if sentence)


def listed(names: list[str]) -> str:
    """Names in a sentence: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def baseline_text(changes: pd.DataFrame) -> str:
    """What rows are compared with; with its mode only where that is one for rows of several."""
    names = set(changes["baseline"])
    if len(names) > 1 or changes["setting"].nunique() == 1:
        names = {name.rpartition(", ")[0] for name in names}
    return listed(by_name(names)) if len(names) <= MOST_BASELINES else "the baseline of each row"
