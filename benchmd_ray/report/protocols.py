"""The protocol of each run: the mark of its row.

Benchmarks name theirs (``fixed`` is BenchMD's). ``shuffled`` trains on shuffled labels, ``tuned``
has settings that a search found for the transfer or its pretraining, ``start`` are the fold models
of a search's start, all else is ``custom``. Averages of fold models (`tuning_frames.ensembles`) are
``tuned ensemble`` and ``start ensemble``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.benchmark import Start
from benchmd_ray.evaluation.registry import settings_among, starts
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.runs.store import Run, read_run

START, TUNED = "start", "tuned"
ENSEMBLES = {TUNED: "tuned ensemble", START: "start ensemble"}
"""Protocol of the average of fold models, by theirs."""
APART = ("shuffled", START, *ENSEMBLES.values())
"""Whose rows are not compared with others."""


def base_protocol(run: Run, pretraining: Run | None = None) -> str:
    """Protocol of a run: a start's name, ``custom``, ``start``, ``tuned`` or ``shuffled``."""
    if run.settings.transfer.shuffle_labels:
        return "shuffled"
    if fold_of(run):
        return TUNED if searches_behind(run, pretraining) else START
    stated = str(run.description["protocol"])
    runs = [run] if pretraining is None else [run, pretraining]
    if stated in starts() and all(_follows(trained, starts()[stated]) for trained in runs):
        return stated
    return TUNED if searches_behind(run, pretraining) else "custom"


def fold_of(run: Run) -> str:
    """Digest of the inner catalog that a fold run was trained on; empty for all labels."""
    return str(run.description["determinants"].get("fold", ""))


def _follows(run: Run, start: Start) -> bool:
    """Whether a run's settings equal those of a start today, whatever start its file names."""
    settings = json.dumps(settings_among(run.description["determinants"]))
    return _followed(start, run.modality, run.description["technique"], settings)


@functools.lru_cache(maxsize=4096)
def _followed(start: Start, kind: Modality, technique: str, settings: str) -> bool:
    try:
        return start.followed(kind, technique, json.loads(settings))
    except BenchmdError:  # invalid settings, or a start that does not apply
        return False


def searches_behind(run: Run, pretraining: Run | None) -> tuple[str, ...]:
    """Names of the searches that found settings of a run and of its pretraining."""
    runs = [run] if pretraining is None else [run, pretraining]
    return tuple(
        dict.fromkeys(trained.settings.tuned for trained in runs if trained.settings.tuned)
    )


def pretraining_of(run: Run, runs_by_name: Mapping[str, Run]) -> Run | None:
    """The pretraining of a transfer, by name or from its store; None if missing or from scratch."""
    name = run.description.get("upstream")
    if name is None or name in runs_by_name:
        return None if name is None else runs_by_name[name]
    try:
        return read_run(run.folder.parent / name)
    except BenchmdError:  # not in this store
        return None
