"""Our results next to the paper's, cell by cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.evaluation.registry import benchmarks
from benchmd_ray.report.analysis import SourceResults, blocks
from benchmd_ray.report.columns import cautions, column_of, interval_of, key_columns, table_of
from benchmd_ray.report.frames import KEY
from benchmd_ray.report.names import names_of
from benchmd_ray.report.rows import beside, with_predictions
from benchmd_ray.report.table import Table, shown
from benchmd_ray.runs.store import Run

COLUMNS = {
    **dict.fromkeys(KEY, "str"),
    **dict.fromkeys(("paper", "value", "low", "high"), "float64"),
    "seeds": "int64",
    "difference": "float64",
    "inside": "boolean",
    "caution": "str",
    "reason": "str",
    "reference": "str",
}
"""``value`` is ours and ``difference`` is ours minus the paper's. ``inside``: whether the paper's
number is in our interval, missing without an interval. ``caution``: why the interval is missing or
rough. ``reason``: why the two numbers are not comparable, empty if they are. ``reference``: the
paper.
"""


def against_paper(runs: Sequence[Run], *, resamples: int = 1000) -> pd.DataFrame:
    """All results that the paper's tables have too, with the columns `COLUMNS`.

    Raises:
        BenchmdError: No run is finished and has predictions, or predictions cannot be read.
    """
    with_predictions(runs)  # refused before anything is read
    named = names_of(runs)
    rows = [row for block in blocks(runs, named, ("auroc",), resamples) for row in _rows(block)]
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in COLUMNS.items()}
    )


def _rows(block: SourceResults) -> Iterator[dict[str, Any]]:
    for pool in block.pools:
        published_rows = [beside(member, pool.key["protocol"]) for member in pool.members]
        near = published_rows[0]
        if near is None:
            continue
        ours, published = pool.pooled("auroc", 0), near.value
        yield {
            **pool.key,
            "paper": published,
            "value": ours.mean,
            "low": ours.low,
            "high": ours.high,
            "seeds": ours.seeds,
            "difference": ours.mean - published,
            "inside": ours.low <= published <= ours.high if ours.low <= ours.high else None,
            "caution": ours.caution,
            "reason": "; ".join(
                sorted({entry.unlike for entry in published_rows if entry and entry.unlike})
            ),
            "reference": near.source,
        }


def comparison(frame: pd.DataFrame) -> Table | None:
    """The comparison as a table for readers."""
    inside = frame["inside"].map({True: "yes", False: "no"})
    columns = (
        *key_columns(frame),
        column_of("paper", frame["paper"], "number"),
        interval_of("ours [95 %]", frame, "value"),
        column_of("ours − paper", frame["difference"], "signed"),
        column_of("paper inside", inside.astype("object"), "text"),
        column_of("seeds", frame["seeds"], "integer"),
        *cautions(frame),
        *([column_of("not comparable", frame["reason"], "text")] if any(frame["reason"]) else []),
    )
    return table_of("Our AUROC and the published AUROC.", columns, frame)


def summary(frame: pd.DataFrame) -> list[str]:
    """Counts and differences of comparable results, and why others are not comparable."""
    comparable = frame[frame["reason"] == ""]
    every = {
        benchmark.published.source for benchmark in benchmarks().values() if benchmark.published
    }
    papers = " and ".join(sorted(set(frame["reference"]) or every))
    lines = []
    if len(comparable):
        count, spans = len(comparable), int(comparable["inside"].count())
        inside = int(comparable["inside"].sum())
        mean = shown(comparable["difference"].mean(), "signed")
        lines.append(
            f"{count_of(count, 'comparable cell')} of {papers}: the paper's number is in our "
            f"interval in {inside} of {spans} with an interval; mean difference (ours minus the "
            f"paper's) {mean}. The paper's numbers vary too, and their intervals are unknown."
        )
        means = comparable.groupby("technique", sort=False)["difference"].agg(["mean", "size"])
        each = ", ".join(
            f"{name} {shown(row['mean'], 'signed')} ({row['size']:.0f})"
            for name, row in means.iterrows()
        )
        lines.append(f"Mean difference by technique (cells): {each}.")
    else:
        lines.append(f"No result is comparable with {papers}.")
    counts = Counter(frame.loc[frame["reason"] != "", "reason"])
    lines += [
        f"Not comparable, {count_of(count, 'result')}: {reason}."
        for reason, count in counts.most_common()
    ]
    return lines
