"""The final comparison of a search for W&B: its fold models in a store, as the report has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from benchmd_ray.data.provenance import together
from benchmd_ray.report.analysis import blocks, paper, pooled_rows
from benchmd_ray.report.ensembles import ensembles
from benchmd_ray.report.frames import frame
from benchmd_ray.report.names import names_of
from benchmd_ray.report.protocols import fold_of
from benchmd_ray.report.rows import with_predictions
from benchmd_ray.report.tuning_frames import of_start, tuned_pairs, tuned_rows
from benchmd_ray.runs.store import read_stores
from benchmd_ray.tracking.values import RESAMPLES
from benchmd_ray.tuning.records import SearchRecord

METRIC = ("auroc",)


def comparison(store: Path, record: SearchRecord) -> tuple[pd.DataFrame, str]:
    """Choice and start of a search, single models and ensembles: rows of the frame ``tuned``.

    Where no trial replaced the start, rows of ``scores`` with the start only. With the provenance
    of their data.

    Raises:
        BenchmdError: There are no fold models with predictions.
    """
    catalogs = {source["catalog"] for source in record.sources}
    runs = [
        run
        for run in read_stores([store]).found
        if fold_of(run)
        and (
            "held_out_fold" not in run.description  # else others are of searches in other folds
            or run.description["determinants"]["catalog"] in catalogs
        )
    ]
    provenance = together(*(run.description["provenance"] for run in with_predictions(runs)))
    rows: list[dict[str, Any]] = []
    for block in blocks(runs, names_of(runs), METRIC, RESAMPLES):
        if record.best:
            pairs = tuned_pairs(block.pools, [record], runs)
            pairs += ensembles(pairs, block.pools, METRIC, RESAMPLES).pairs
            rows += [row for row in tuned_rows(pairs, paper) if row["search"] == record.name]
        else:
            starts = of_start(block.pools, record, {run.folder.name: run for run in runs})
            averages = ensembles([], starts, METRIC, RESAMPLES).pools
            of_classes = pooled_rows([*starts, *averages], METRIC)
            rows += [row for row in of_classes if row["class"] == "mean"]
    return frame("tuned" if record.best else "scores", rows), provenance
