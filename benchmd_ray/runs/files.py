"""Names of the files in a run's folder, for any storage."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from typing_extensions import TypedDict

from benchmd_ray.schema.typed import Finite

RUN = "run.json"
DONE = "done.json"
MODEL = "model.safetensors"
CHECKPOINTS = "checkpoints"
"""Folder of checkpoints, each a folder ``step_000000100``."""
CHECKPOINT = "checkpoint.json"
"""Last file written to a checkpoint: a folder without it is not a checkpoint."""
SEARCHES = "searches"
INNER = "inner"
"""Folder of a store with the inner catalogs that its searches share."""
SEARCH, TRIALS, RESULT, BEST = "search.json", "trials.parquet", "result.json", "best.yaml"
PREDICTIONS = "predictions"
"""Folder with a subfolder per evaluation and in it a Parquet file per dataset."""
LOCK = ".lock"
"""Lock of the local process that works on the run."""


class Ended(TypedDict):
    """Content of ``done.json``."""

    finished: str
    seconds: Finite
    model_sha256: str | None


def predictions_of(run: Path) -> list[Path]:
    """Files of all finished predictions of a run."""
    folder, paths = f"{run}/{PREDICTIONS}", list[Path]()
    with suppress(OSError):
        for evaluation in os.listdir(folder):
            with suppress(OSError):  # not a folder
                names = os.listdir(f"{folder}/{evaluation}")
                paths += [Path(folder, evaluation, name) for name in names if _is_whole(name)]
    return sorted(paths)


def _is_whole(name: str) -> bool:
    return name.endswith(".parquet") and not name.startswith(".")
