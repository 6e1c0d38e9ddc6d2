"""AUC, ACC and result files as MedMNIST defines them.

Source: Yang et al., MedMNIST v2 (https://arxiv.org/abs/2110.14795), "Evaluation", and
``medmnist/evaluator.py`` of https://github.com/MedMNIST/MedMNIST. That evaluator fails on a class
without a positive or without a negative; here there is no AUC, and the class is named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.data.medmnist_cards import PLAIN_SIZE, MedmnistTask
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.files.atomic import replacing
from benchmd_ray.scores.metrics import auroc_per_class, checked_predictions

THRESHOLD = 0.5
"""A score above it, but not one that equals it, is a positive decision."""
SPLITS = {"train": "train", "validation": "val", "test": "test"}
"""MedMNIST's names of the splits."""


@dataclass(frozen=True)
class Score:
    """MedMNIST's scores of a split."""

    auc: float
    """Binary: of the last class; else the mean over classes or labels, each against the rest. NaN
    where one of them could not be scored."""
    acc: float
    """Share of right decisions; multi-label: the mean of that over the labels."""
    unscored: tuple[str, ...]
    """Classes without an AUC: without a positive, or without a negative."""


def score(
    targets: npt.ArrayLike, scores: npt.ArrayLike, task: MedmnistTask, classes: Sequence[str]
) -> Score:
    """AUC and ACC of a split.

    Args:
        targets: (rows, classes), 1 or 0; one 1 in each row unless multi-label. A binary task has
            two columns.
        scores: (rows, classes), probabilities.
        task: Of the dataset.
        classes: Names of the columns.
    """
    if task not in get_args(MedmnistTask):
        raise unknown_name("task", task, get_args(MedmnistTask))
    labels, finite = checked_predictions(targets, scores)
    if len(classes) != labels.shape[1] or not len(labels):
        raise BenchmdError(
            f"targets have shape {labels.shape}, expected one row or more and {len(classes)} "
            f"columns ({', '.join(classes)})"
        )
    _require_whole(labels, task)
    ranked = slice(-1, None) if task == "binary-class" else slice(None)
    aucs = auroc_per_class(labels[:, ranked], finite[:, ranked])
    unscored = tuple(np.array(classes)[ranked][np.isnan(aucs)].tolist())
    return Score(float(aucs.mean()), _accuracy(labels, finite, task), unscored)


def _accuracy(
    targets: npt.NDArray[np.int8], scores: npt.NDArray[np.float64], task: MedmnistTask
) -> float:
    if task == "binary-class":
        right = (scores[:, -1] > THRESHOLD) == targets[:, -1]
    elif task == "multi-label":
        right = (scores > THRESHOLD) == targets
    else:
        right = scores.argmax(axis=1) == targets.argmax(axis=1)
    return float(right.mean())


def _require_whole(targets: npt.NDArray[np.int8], task: MedmnistTask) -> None:
    if task == "multi-label":
        wrong, expected = (targets < 0).any(axis=1), "1 or 0 for every label"
    else:
        wrong, expected = (targets == 1).sum(axis=1) != 1, "one class with a 1"
        wrong |= (targets < 0).any(axis=1)
    if wrong.any():
        raise BenchmdError(
            f"targets of row {np.argmax(wrong)}, and of {np.count_nonzero(wrong) - 1} others, are "
            f"not those of MedMNIST's {task} task: expected {expected}"
        )
    if task == "binary-class" and targets.shape[1] != 2:
        raise BenchmdError(
            f"a binary task has {targets.shape[1]} columns of targets, expected 2: of the negative "
            "and of the positive class"
        )


def write_result(
    folder: Path, dataset: str, size: int, split: str, run: str, result: Score, rows: pd.DataFrame
) -> Path:
    """Write a standard result file; the index of ``rows`` is the row in MedMNIST's file."""
    for what, name, allowed in (("dataset", dataset, "[a-z0-9]+"), ("run", run, r"[\w-]+")):
        if not re.fullmatch(allowed, name, re.ASCII):
            raise BenchmdError(
                f"the {what} {name!r} cannot be part of the name of a result file: expected "
                "only letters and digits" + (", - and _." if what == "run" else ", in lower case.")
            )
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    ordered = rows.sort_index()
    _require_rows(ordered, f"the scores of {dataset}, {split}")
    sized = "" if size == PLAIN_SIZE else f"_{size}"
    stated = f"[AUC]{result.auc:.3f}_[ACC]{result.acc:.3f}"
    path = folder / f"{dataset}{sized}_{SPLITS[split]}_{stated}@{run}.csv"
    with replacing(path) as partial:
        ordered.to_csv(partial, header=False)
    return path


def _require_rows(rows: pd.DataFrame, where: str) -> None:
    if not len(rows) or rows.index.tolist() != list(range(len(rows))):
        raise BenchmdError(
            f"{where} have {len(rows)} rows whose index is not 0, 1, 2, …: expected every row of "
            "MedMNIST's file once."
        )
