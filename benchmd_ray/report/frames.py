"""Columns of the frames of an analysis; figures, page and tables build on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from benchmd_ray.evaluation.registry import starts

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
"""Key of a result: runs with the same key differ only by seed."""
PLACE = tuple(name for name in KEY if name != "technique")
"""Place of a comparison: techniques are scored on the same rows there."""
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
        **_text("published_in", "unlike"),
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
        **_text("caution", "runs"),
    },
    "gaps": {
        **_text(
            *("modality", "source", "dataset", "policy", "setting", "technique", "protocol"),
            "metric",
        ),
        **_real("in_distribution", "target", "gap", "low", "high", "p", "p_holm"),
        **_text("caution"),
    },
    "changes": {
        **_text(*KEY, "metric"),
        **_real("value", "low", "high", "p", "p_delong"),
        **_text("caution"),
    },
    "pairs": {
        **_text(*PLACE, "a", "b"),
        **_real("difference", "low", "high", "p", "p_holm"),
        **_text("caution"),
    },
    "ranking": {
        **_text(*PLACE, "technique"),
        **_real("rank", "low", "high", "tau"),
        **_text("caution"),
    },
    "subgroups": {
        **_text(*KEY, "variable", "group"),
        **_whole("records", "patients"),
        **_real("value", "low", "high", "p"),
        **_text("caution"),
    },
    "subgroup_pairs": {
        **_text(*KEY, "variable", "a", "b"),
        **_real("difference", "low", "high", "p", "p_holm"),
        **_text("caution"),
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
    "searches": {
        **_text("search", "modality", "source", "policy", "technique", "setting", "network"),
        **_text("sampler", "stopping", "choosing", "objectives"),
        **_whole("searched", "trials", "complete", "stopped", "failed", "unfinished"),
        **_whole("evaluations", "evaluated"),
        "chosen": "Int64",
        **_real("start_value", "chosen_value", "difference", "difference_low"),
        **_real("seconds", "device_hours", "shared_seconds"),
        **_text("device"),
        **_whole("train_records", "validation_records", "train_patients", "validation_patients"),
    },
    "tuned": {
        **_text(*KEY),
        **_real("value", "low", "high"),
        **_whole("seeds"),
        **_text("start_protocol"),
        **_real("start", "start_low", "start_high", "paper"),
        **_real("difference", "difference_low", "difference_high", "p", "p_delong"),
        **_text("caution"),
        **_text("search"),
        "trials": "Int64",
        **_real("device_hours"),
    },
}
"""Columns of each frame and their types, in order.

``rows`` is the long table of scores, a line for every run, split, metric and class; ``scores`` is
pooled over seeds. Frames with rows per result begin with `KEY`. ``class`` is ``mean`` or the name
of a class; ``scored`` is what ``records`` counts, such as scans; ``effective`` is the effective
number of patients, for a class that on its rarer side; ``paper`` is the published AUROC if
comparable, ``unlike`` says why not otherwise; ``run`` is empty for rows without a run; ``method``
is what was scored if not the network, such as a detector, and ``regime`` its calibration;
``use_case`` and ``group`` select the scored records; ``caution`` says why an interval or a p is
missing, or why the interval is rough. Empty frames have their columns too. In ``searches``,
``evaluations`` is the number for a trial that is not stopped and ``evaluated`` the number in total;
``chosen`` is 0 if the start is kept; ``start_value`` and ``chosen_value`` are over fresh
evaluations, the latter corrected for selection, or else the values of the trials; ``difference`` is
that between chosen trial and start, or the largest of a finalist if the start is kept.
"""
TUNING = ("searches", "tuned")
"""Frames that are empty without a search."""
VERSIONS = tuple(FRAMES["ran"])[-6:]
"""Columns of ``ran`` with versions of packages."""


def frame(name: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The named frame with these rows, which must have all its columns."""
    columns, records = FRAMES[name], list(rows)
    return pd.DataFrame(
        {
            column: pd.Series([row[column] for row in records], dtype=kind)
            for column, kind in columns.items()
        }
    )


TECHNIQUES = ("scratch", "e-mix", "shed", "mae", "imagenet", "imagenet+mae")
SETTINGS = ("knn", "linear", "finetune-small", "finetune-medium", "finetune-large", "finetune-full")
SPLITS = ("validation", "test")


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
        rank_of(TECHNIQUES, key["technique"]),
        rank_of(tuple(starts()), key["protocol"]),
    )


def dataset_text(source: str, dataset: str, role: str, split: str) -> str:
    """Text for a dataset; a source with its split, and whether it is another one than the run's."""
    if role == "target":
        return dataset
    return f"{dataset} ({split}{'' if dataset == source else ', another source'})"
