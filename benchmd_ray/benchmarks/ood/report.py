"""Tables of detectors in reports."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from benchmd_ray.benchmarks.ood.methods import METHODS
from benchmd_ray.benchmarks.ood.released import RELEASED
from benchmd_ray.benchmarks.ood.report_rows import (
    STUDY,
    TUNED_COLUMNS,
    compared,
    costs,
    frame,
    networks,
    techniques,
    tuned,
)
from benchmd_ray.benchmarks.ood.robustness_report import TABLES as ROBUSTNESS_TABLES
from benchmd_ray.benchmarks.ood.scores import ENSEMBLE
from benchmd_ray.benchmarks.ood.table import ALL, HALF, about
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.columns import column_of, columns_of, interval_of, key_columns, table_of
from benchmd_ray.report.page_findings import judged
from benchmd_ray.report.table import Column, Table
from benchmd_ray.report.tables import Declared, aggregates

HEADING = "Out-of-distribution detection"
DETECTED = ("unrelated", "faulty", "unseen")
Data = Callable[[Analysis], pd.DataFrame]
Make = Callable[[Analysis, pd.DataFrame], Table | None]


def title_of(method: str) -> str:
    if method == ENSEMBLE:
        return "deep ensemble"
    detector = METHODS.get(method) or RELEASED.get(method)
    return detector.title if detector else method


def _table(caption: str, rows: pd.DataFrame, *columns: Column) -> Table | None:
    """A table of detectors: what names them, and these columns."""
    named = (
        *key_columns(rows),
        column_of("evaluation", rows["evaluation"], "text"),
        *(column_of("use-case", rows[name], "text") for name in ("use_case",) if name in rows),
        column_of("detector", [title_of(name) for name in rows["method"]], "text"),
        *(column_of("calibrated on", rows[name], "text") for name in ("regime",) if name in rows),
    )
    return table_of(caption, (*named, *columns), rows)


def by_use_case(analysis: Analysis) -> pd.DataFrame:
    """A row for each detector of each network: AUROC of each use-case, the highest mean first.

    A detector that lacks a use-case has no mean and comes last. Of means over sets, uncalibrated.
    """
    parts = []
    for network in networks(analysis):
        rows = pd.DataFrame(network.pooled())
        rows = rows[(rows["group"] == ALL) & (rows["regime"] == "none")]
        cases = [case for case in DETECTED if case in set(rows["use_case"])]
        rows = rows[rows["use_case"].isin(cases)]
        if rows.empty:
            continue
        wide = rows[[*STUDY, "method", "seeds"]].drop_duplicates("method").set_index("method")
        for case in cases:
            cells = rows[rows["use_case"] == case].set_index("method")[["auroc", "low", "high"]]
            wide = wide.join(cells.add_prefix(f"{case} "))
        mean = wide[[f"{case} auroc" for case in cases]].mean(axis=1, skipna=False)
        parts.append(wide.assign(mean=mean).sort_values("mean", ascending=False).reset_index())
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _means(analysis: Analysis, rows: pd.DataFrame) -> Table | None:
    cells = {
        case: rows.filter(like=f"{case} ").rename(columns=lambda name: name.rpartition(" ")[2])
        for case in DETECTED
    }
    return _table(
        "Detectors by use-case: AUROC, mean over the sets with 20 out-of-distribution records or "
        "more, uncalibrated, the highest mean over use-cases first; 0.5 is chance."
        f"{_tested(analysis)}",
        rows,
        *(
            interval_of(f"{case} [95 %]", values, "auroc")
            for case, values in cells.items()
            if not values.columns.empty
        ),
        column_of("seeds", rows["seeds"], "integer"),
    )


def _tested(analysis: Analysis) -> str:
    """How many detectors differ from the simplest one, for a caption."""
    rows = compared(analysis)
    rows = rows[rows["use_case"].isin(DETECTED)]
    if rows.empty:
        return ""
    names, corrected = ("significantly better", "significantly worse"), " after Holm's correction"
    subject = "another detector was"
    judgement = judged(rows, "difference", *names, subject=subject, p="p_holm", corrected=corrected)
    return f" AUROC against the probability threshold: {judgement}"


NUMBERS = {
    "AUPR out": "aupr out",
    "AUPR in": "aupr in",
    "FPR at 95 % detected": "fpr at 95",
    "detected at 5 % rejected": "detected at 5",
    "balanced accuracy": "balanced accuracy",
    "AUROC, abnormal in": "auroc, abnormal",
    "accuracy, drawn": "accuracy, drawn",
    "AUPR out, drawn": "aupr out, drawn",
}
"""Metrics by their titles."""


def _detectors(analysis: Analysis, rows: pd.DataFrame) -> Table | None:
    rows = rows[rows["use_case"] != "shifted"]
    return _table(
        "Detectors, mean over the sets of each use-case with 20 out-of-distribution records or "
        "more; larger is better but for FPR. 0.5 is chance; a value below it says that a detector "
        "scores out-of-distribution records lower than in-distribution ones. Calibrated on: none, "
        "a threshold that accepts 95 % of in-distribution records; other-sources, sets that are "
        "not scored; same-source, other patients of the very set, an upper bound."
        f"{_skipped(analysis)}",
        rows,
        interval_of("AUROC [95 %]", rows, "auroc"),
        column_of("sd", rows["sd"], "number"),
        *(column_of(title, rows[key], "number") for title, key in NUMBERS.items() if key in rows),
        *columns_of(rows, "integer", "sets", "seeds"),
    )


def _skipped(analysis: Analysis) -> str:
    """Detectors and records that were skipped, and why, for a caption."""
    reasons: dict[str, str] = {}
    for network in networks(analysis):
        for predictions in network.predictions.values():
            reasons |= about(predictions)["skipped"]
    listed = "; ".join(f"{title_of(name)}: {why}" for name, why in reasons.items())
    return f" Skipped or excluded in at least one network: {listed}." if listed else ""


def _shifted(_: Analysis, rows: pd.DataFrame) -> Table | None:
    rows = rows[rows["group"] != ALL]
    return _table(
        "Correct records of other hospitals, devices or people, which are not out of distribution: "
        "the share that is rejected at the threshold.",
        rows,
        column_of("dataset", rows["group"], "text"),
        column_of("false alarms", rows["rejected"], "number"),
        interval_of("AUROC [95 %]", rows, "auroc"),
        column_of("shifted records", rows["out"], "integer"),
        column_of("seeds", rows["seeds"], "integer"),
    )


def _controls(_: Analysis, rows: pd.DataFrame) -> Table | None:
    unseen = "a change that the normalisation removes has an AUROC of 0.500 exactly, "
    return _table(
        f"Controls: {unseen if (rows['group'] != HALF).any() else ''}a random half of the "
        "in-distribution patients one within chance, which one interval in twenty excludes.",
        rows,
        column_of("control", rows["group"], "text"),
        interval_of("AUROC [95 %]", rows, "auroc"),
        column_of("out records", rows["out"], "integer"),
        column_of("seeds", rows["seeds"], "integer"),
    )


def _costs(_: Analysis, rows: pd.DataFrame) -> Table | None:
    return _table(
        "What detectors cost: seconds to fit and calibrate once; milliseconds of the network's "
        "work for a record, features and what else the detector reads, and of the detector "
        "itself. Median of five after a first time, means over seeds; the training of the network "
        "is not counted.",
        rows,
        column_of("setup (s)", rows["setup"], "number"),
        column_of("network (ms a record)", 1000 * rows["network"], "number"),
        column_of("detector (ms a record)", 1000 * rows["score"], "number"),
        column_of("device", rows["device"], "text"),
    )


def _differences(title: str, caption: str, *numbers: str) -> Make:
    return lambda _, rows: _table(
        caption,
        rows,
        *columns_of(rows, "number", *numbers),
        interval_of(f"{title} [95 %]", rows, "difference", "change", p="p_holm"),
        column_of("p (Holm)", rows["p_holm"], "p"),
        column_of("seeds", rows["seeds"], "integer"),
    )


_compared = _differences(
    "minus probability threshold",
    "AUROC of each detector minus that of the probability threshold on the same records, mean "
    "over the sets of a use-case; p adjusted over all detectors of a use-case.",
)
_techniques = _differences(
    "minus scratch",
    "Does pretraining matter: AUROC of a detector with a pretrained network minus that with "
    "one from scratch, on the same records; p adjusted over all detectors of a use-case.",
)
_tuned = _differences(
    "tuned minus fixed",
    "Tuned detectors: AUROC with the papers' hyperparameters (fixed) and with those that a "
    "search found on the other sets of the use-case, on records that no trial saw; p adjusted "
    "over all detectors of a use-case.",
    *TUNED_COLUMNS,
)


def _rows_of(column: str, value: str, *, others: bool = False) -> Data:
    """Rows of `frame` with a value, or those without it."""

    def data(analysis: Analysis) -> pd.DataFrame:
        rows = frame(analysis)
        return rows[(rows[column] == value) != others].reset_index(drop=True)

    return data


def _declared(name: str, data: Data, make: Make, *, first: bool = False) -> Declared:
    def table(analysis: Analysis) -> Table | None:
        rows = data(analysis)
        return None if rows.empty else make(analysis, rows)

    return Declared.both(name, HEADING, data, table, first=first)


TABLES = (
    *ROBUSTNESS_TABLES,
    *aggregates(
        _declared("detectors_means", by_use_case, _means, first=True),
        _declared("detectors", _rows_of("group", ALL), _detectors),
        Declared("detectors_sets", HEADING, _rows_of("group", ALL, others=True)),
        _declared("detectors_compared", compared, _compared),
        _declared("detectors_pretraining", techniques, _techniques),
        _declared("detectors_shifted", _rows_of("use_case", "shifted"), _shifted),
        _declared("detectors_controls", _rows_of("use_case", "control"), _controls),
        _declared("detectors_tuned", tuned, _tuned),
        _declared("detectors_costs", costs, _costs),
    ),
)
