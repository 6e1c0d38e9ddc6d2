"""Our results beside the paper's, cell by cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from benchmd_ray.benchmarks.registry import benchmarks
from benchmd_ray.results.report.analysis import Block, blocks
from benchmd_ray.results.report.cells import with_predictions
from benchmd_ray.results.report.frames import KEY
from benchmd_ray.results.report.protocols import protocols
from benchmd_ray.results.report.table_cells import (
    INTERVAL,
    cautions,
    number,
    scored,
    signed,
    spanned,
)
from benchmd_ray.results.store import Run

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
"""``value`` is ours; ``difference`` is ours minus the paper's; ``inside``: the paper's number is in
our interval, missing where there is none; ``caution``: why there is none, or why it is rough;
``reason``: why the two are not comparable, empty where they are; ``reference``: the paper."""


def against_paper(found: Sequence[Run], *, resamples: int = 1000) -> pd.DataFrame:
    """Every cell that our runs and the paper's tables share, with the columns `COLUMNS`.

    Args:
        found: Runs, as `store.runs` reads them.
        resamples: Of the patients, for the intervals.

    Raises:
        BenchmdError: No run is finished and has predictions, or predictions cannot be read.
    """
    with_predictions(found)  # refused before anything is read
    named = protocols(found)
    rows = [row for block in blocks(found, named, ("auroc",), resamples) for row in _rows(block)]
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in COLUMNS.items()}
    )


def _rows(block: Block) -> Iterator[dict[str, Any]]:
    for pool in block.pools:
        cells = block.of(pool)
        published = cells[0].published
        if published is None:
            continue
        pooled = pool.pooled("auroc", 0)
        reasons = {cell.unlike for cell in cells if cell.unlike}
        yield {
            **pool.key,
            "paper": published,
            "value": pooled.mean,
            "low": pooled.low,
            "high": pooled.high,
            "seeds": pooled.seeds,
            "difference": pooled.mean - published,
            "inside": pooled.low <= published <= pooled.high if pooled.low <= pooled.high else None,
            "caution": pooled.caution,
            "reason": "; ".join(sorted(reasons)),
            "reference": cells[0].published_in,
        }


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """The comparison as people read it."""
    columns = {
        "modality": frame["modality"],
        "dataset": scored(frame),
        "setting": frame["setting"],
        "technique": frame["technique"],
        "paper": frame["paper"].map(number),
        f"ours {INTERVAL}": spanned(frame, "value"),
        "difference": frame["difference"].map(signed),
        "paper inside": frame["inside"].map({True: "yes", False: "no"}).fillna("–"),
        "seeds": frame["seeds"],
        **cautions(frame),
        "policy": frame["policy"],
    }
    if (frame["reason"] != "").any():
        columns["not comparable"] = frame["reason"]
    return pd.DataFrame(columns)


def summary(frame: pd.DataFrame) -> list[str]:
    """What the comparison amounts to: of the comparable cells, and how many are not."""
    comparable = frame[frame["reason"] == ""]
    every = {each.published.source for each in benchmarks().values() if each.published}
    papers = " and ".join(sorted(set(frame["reference"]) or every))
    lines = []
    if len(comparable):
        count, spans = len(comparable), int(comparable["inside"].count())
        inside = int(comparable["inside"].sum())
        lines.append(
            f"{count} comparable {'cell' if count == 1 else 'cells'} of {papers}: of {spans} with "
            f"an interval of ours, it holds the paper's number in {inside}; mean difference (ours "
            f"minus the paper's) {signed(comparable['difference'].mean())}. The paper's numbers "
            "vary too, and their intervals are not known."
        )
        means = comparable.groupby("technique", sort=False)["difference"].agg(["mean", "size"])
        each = ", ".join(
            f"{name} {signed(row['mean'])} ({row['size']:.0f})" for name, row in means.iterrows()
        )
        lines.append(f"Mean difference by technique (cells): {each}.")
    else:
        lines.append(f"No result is comparable with {papers}.")
    counts = Counter(frame.loc[frame["reason"] != "", "reason"])
    lines += [
        f"Not comparable, {count:,} {'result' if count == 1 else 'results'}: {reason}."
        for reason, count in counts.most_common()
    ]
    return lines
