"""Columns of the frames of an analysis; figures, page and tables build on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import starts, usual_start

KEY = (
    "modality",
    "source",
    "dataset",
    "role",
    "split",
    "policy",
    "setting",
    "technique",
    "protocol",
)
"""What names a result; runs that share it differ only by their seeds."""
PLACE = ("modality", "source", "dataset", "role", "split", "policy", "labels")
"""Where rows are compared: ``labels`` is how many were trained on, whatever the transfer's mode."""
OF_RUN = ("modality", "source", "technique", "setting")
BOOTSTRAP = "bootstrap over patients"
"""How tables, figures and notes describe the bootstrap."""


def _text(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "str")


def _real(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "float64")


def _whole(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "int64")


FRAMES: dict[str, dict[str, str]] = {
    "rows": {
        **_text("evaluation", *KEY),
        **_whole("seed"),
        **_text("method", "regime", "use_case", "group"),
        **_text("metric", "class"),
        **_real("value", "low", "high"),
        **_text("caution"),
        **_whole("records", "patients", "positives"),
        **_text("scored"),
        **_real("effective", "paper"),
        **_text("published_in", "unlike", "contamination"),
        **_whole("raw_records", "raw_expected"),
        **_text("provenance", "options", "warnings", "run"),
    },
    "scores": {
        **_text(*KEY, "metric", "class"),
        **_real("value", "sd", "low", "high"),
        **_whole("seeds"),
        "seed_values": "object",
        **_whole("records", "patients", "positives"),
        **_text("scored"),
        **_real("paper"),
        **_text("caution", "runs", "contamination"),
    },
    "gaps": {
        **_text(
            *("modality", "source", "dataset", "policy", "setting", "technique", "protocol"),
            "metric",
        ),
        **_real("in_distribution", "target", "gap", "low", "high", "p", "p_holm"),
        **_text("caution", "contamination", "contamination_source"),
    },
    "changes": {
        **_text(*KEY, "metric"),
        **_text("baseline"),
        **_real("value", "low", "high", "p", "p_delong"),
        **_text("caution", "contamination", "contamination_baseline"),
    },
    "pairs": {
        **_text(*PLACE, "a", "b"),
        **_real("difference", "low", "high", "p", "p_holm"),
        **_text("caution", "contamination_a", "contamination_b"),
    },
    "ranking": {
        **_text(*PLACE, "setting", "technique"),
        **_real("rank", "low", "high", "tau"),
        **_text("caution", "contamination"),
    },
    "subgroups": {
        **_text(*KEY, "variable", "group"),
        **_whole("records", "patients"),
        **_real("value", "low", "high", "p"),
        **_text("caution", "contamination"),
    },
    "subgroup_pairs": {
        **_text(*KEY, "variable", "a", "b"),
        **_real("difference", "low", "high", "p", "p_holm"),
        **_text("caution", "contamination"),
    },
    "excluded": {**_text(*KEY, "variable", "group"), **_whole("patients")},
    "roc": {**_text(*KEY, "class"), **_whole("seed"), **_real("fpr", "tpr")},
    "calibration": {
        **_text(*KEY, "class"),
        **_whole("seed"),
        **_real("predicted", "observed"),
        **_whole("count"),
    },
    "training": {
        **_text("run", "kind", *OF_RUN),
        **_whole("seed", "done"),
        **_text("unit", "name"),
        **_real("value"),
    },
    "ran": {
        **_text("run", "kind", "modality", "source", "policy", "technique", "setting"),
        **_whole("seed"),
        **_text("protocol", "network"),
        "finished": "bool",
        **_real("seconds"),
        **_text("device", "hardware", "instructions", "threads"),
        **_whole("workers"),
        **_text("catalog", "parts", "benchmd_ray", "torch", "deepspeed", "ray", "numpy", "pyarrow"),
    },
    "descriptions": _text(
        *("modality", "source", "policy", "technique", "technique_id", "network"),
        *("pretrained_on", "published", "contamination", "protocol", "settings"),
    ),
    "searches": {
        **_text("search", "modality", "source", "policy", "families", "network"),
        **_text("sampler", "metric"),
        **_whole("searched", "trials", "complete", "stopped", "failed", "unfinished"),
        **_whole("evaluations"),
        "chosen": "Int64",
        **_text("family"),
        **_real("start_value", "chosen_value", "optimism"),
        **_whole("folds"),
        **_real("seconds", "device_hours", "shared_seconds"),
        **_text("device"),
        **_whole("train_records", "validation_records", "train_patients", "validation_patients"),
    },
    "families": {
        **_text("search", "modality", "source", "policy", "family"),
        **_whole("trials"),
        "best": "Int64",
        "is_chosen": "bool",
        **_real("value"),
        **_whole("evaluations"),
        **_real("difference", "error", "hours_per_evaluation"),
    },
    "tuned": {
        **_text(*KEY),
        **_real("value", "low", "high"),
        **_whole("models"),
        **_text("start_name"),
        **_real("start", "start_low", "start_high", "paper"),
        **_real("difference", "difference_low", "difference_high", "p", "p_delong"),
        **_text("caution", "contamination"),
        **_text("search"),
        "trials": "Int64",
        **_real("device_hours"),
    },
}
"""Columns of each frame and their types, in order.

``technique`` is the name of a row (`names`): technique, network, and what else tells it apart.
``rows`` is the long table of scores, a line for every run, split, metric and class; ``scores`` has
the seeds pooled. `KEY` comes first where a frame has one row or more of each result. ``class`` is
``mean`` or the name of a class; ``scored`` is what ``records`` counts, such as scans; ``effective``
are effective patients, of a class those on its rarer side; ``paper`` is a published AUROC that may
be compared and ``unlike`` says why one may not; ``run`` is empty where no run made a row;
``method`` is what a score is of where the network is not, such as a detector, ``regime`` how that
was calibrated, ``use_case`` and ``group`` which records it is of; ``caution`` says why an interval
or a p is missing, or why the interval is rough; ``contamination`` says what of the dataset the
row's pretraining saw, empty for nothing; a difference has it for both sides. A frame without
rows has its columns all the same. Of ``searches``, ``chosen`` is the number of the trial, 0 where
the start is kept; ``chosen_value`` and ``start_value`` are paired means on the search's validation
records, the first too high by about ``optimism``; ``folds`` are those whose models are averaged. Of
``families``, ``best`` is the number of the chosen trial, or of the best with the most evaluations,
and ``error`` the standard error of its ``difference`` to the start. Of ``tuned``, ``start_name`` is
the row of the start, with its mode of transfer, and ``models`` counts the runs of the tuned row.
"""
TUNING = ("searches", "families", "tuned")
"""Frames that are empty without a search."""
VERSIONS = tuple(FRAMES["ran"])[-6:]
"""Columns of ``ran`` with versions of packages."""


MARK = "†"
"""After the name or value of a row whose pretraining saw what it is scored on."""
UNKNOWN = "what its pretraining saw is not known"
"""Contamination of an encoder that was trained elsewhere and has no card."""
CONTAMINATIONS = (
    "contamination",
    *(f"contamination_{side}" for side in ("a", "b", "baseline", "source")),
)


def frame(name: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The named frame with these rows; all columns but those of contamination are needed."""
    columns, records = FRAMES[name], list(rows)
    return pd.DataFrame(
        {column: pd.Series(_cells(records, column), dtype=kind) for column, kind in columns.items()}
    )


def _cells(records: Sequence[Mapping[str, Any]], column: str) -> list[Any]:
    if column in CONTAMINATIONS:
        return [row.get(column, "") for row in records]
    return [row[column] for row in records]


Part = tuple[Mapping[str, Any], Mapping[str, Sequence[Any] | npt.NDArray[Any]]]
"""Values that rows share, and their other columns."""


def frame_of_parts(name: str, parts: Sequence[Part]) -> pd.DataFrame:
    """The named frame with the rows of all parts, which have the same columns.

    Columns are put together whole: an object for each cell would take most of a report's memory.
    """
    if not parts:
        return frame(name, ())
    rows = np.repeat(np.arange(len(parts)), [len(next(iter(own.values()))) for _, own in parts])
    columns = {}
    for column, kind in FRAMES[name].items():
        if column in parts[0][0]:
            values = pd.Series([shared[column] for shared, _ in parts], dtype=kind).take(rows)
        elif kind == "str":
            values = pd.Series([*chain(*(own[column] for _, own in parts))], dtype=kind)
        else:
            values = pd.Series(np.concatenate([own[column] for _, own in parts]), dtype=kind)
        columns[column] = values.array
    return pd.DataFrame(columns)


TECHNIQUES = {
    "scratch": "scratch",
    "e-mix": "e-Mix",
    "shed": "ShED",
    "mae": "MAE",
    "imagenet": "ImageNet",
    "imagenet+mae": "ImageNet, then MAE",
    "random-kernels": "random kernels",
}
"""Techniques in words, in the order of tables."""
SCRATCH, KERNELS = "scratch", "random-kernels"
MODES = {"knn": "k-NN", "linear": "linear", "finetune": "fine-tuning", "mixed": "mode by fold"}
LABELS = ("full", "large", "medium", "small")
SETTINGS = ("knn", "linear", "finetune-small", "finetune-medium", "finetune-large", "finetune-full")
CROSS_VALIDATION, LEAVE_ONE_OUT = "cross-validation", "leave-one-out"
"""In place of a split: all held-out records of a cross-validation, see `report.over_folds`."""
SPLITS = ("validation", "test", CROSS_VALIDATION, LEAVE_ONE_OUT)
_WORDS = "|".join(sorted(map(re.escape, TECHNIQUES.values()), key=len, reverse=True))
_TECHNIQUE = re.compile(rf"(?:^|, )({_WORDS})(?= on |, | \(|$)")


def technique_in(name: str) -> str:
    """The technique in the name of a row: ``MAE`` of ``ResNet-18, MAE on PTB-XL (lr 0.003)``."""
    match = _TECHNIQUE.search(name)
    return match[1] if match else ""


def name_rank(name: str) -> tuple[object, ...]:
    """Sort key of the names of rows: by technique, first what its name says nothing else of."""
    name = name.removesuffix(MARK)
    technique = technique_in(name)
    place, _ = rank_of(tuple(TECHNIQUES.values()), technique)
    return place, not name.startswith(technique), " on " in name or "(" in name, name


def by_name(names: Iterable[str]) -> list[str]:
    """Distinct names of rows in the order of tables."""
    return sorted(set(names), key=name_rank)


def mode_and_labels(setting: str) -> tuple[str, str]:
    """``("finetune", "small")`` of ``finetune-small``, ``("linear", "full")`` of ``linear``."""
    mode, _, labels = setting.partition("-")
    return mode, labels or "full"


def mixed(settings: Iterable[str]) -> str:
    """The setting of a result whose folds are of these.

    Raises:
        BenchmdError: They have not equally many labels.
    """
    labels = {mode_and_labels(setting)[1] for setting in settings}
    if len(labels) > 1:
        raise BenchmdError(f"folds are trained on different labels: {', '.join(sorted(labels))}.")
    return "mixed" if labels == {"full"} else f"mixed-{min(labels)}"


def with_mode(name: str, setting: str) -> str:
    """A row's name with its mode of transfer: ``MAE, fine-tuning``."""
    mode, _ = mode_and_labels(setting)
    return f"{name}, {MODES.get(mode, mode)}"


def with_mark(name: str, protocol: str) -> str:
    """A row's name with its protocol unless it is the usual one: ``MAE (custom)``."""
    if protocol == usual_start() or f", {protocol}" in name:
        return name
    return f"{name[:-1]}, {protocol})" if name.endswith(")") else f"{name} ({protocol})"


def rank_of(names: Sequence[str], name: str) -> tuple[int, str]:
    """Sort key of a name: first ``names`` in their order, then all others."""
    return (names.index(name) if name in names else len(names), name)


def place(key: Mapping[str, str]) -> tuple[object, ...]:
    """Sort key of a result by `KEY`, for the order of display."""
    return (
        key["modality"],
        key["source"],
        key["dataset"] != key["source"],
        key["dataset"],
        key["policy"],
        rank_of(SPLITS, key["split"]),
        rank_of(SETTINGS, key["setting"]),
        name_rank(key["technique"]),
        rank_of(tuple(starts()), key["protocol"]),
    )


def dataset_text(source: str, dataset: str, role: str, split: str) -> str:
    """Text for a dataset; a source with its split, and whether it is another one than the run's."""
    if role == "target":
        return dataset
    return f"{dataset} ({split}{'' if dataset == source else ', another source'})"
