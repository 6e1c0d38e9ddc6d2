"""Tables of detectors in reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from benchmd_ray.benchmarks.ood.scores import ENSEMBLE
from benchmd_ray.benchmarks.ood.table import ALL, HALF, about
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.columns import column_of, interval_of, key_columns, table_of
from benchmd_ray.report.page_findings import judged
from benchmd_ray.report.table import Column, Table
from benchmd_ray.report.tables import Declared, aggregates

HEADING = "Out-of-distribution detection"
DETECTED = ("unrelated", "faulty", "unseen")


def title_of(method: str) -> str:
    if method == ENSEMBLE:
        return "deep ensemble"
    detector = METHODS.get(method) or RELEASED.get(method)
    return detector.title if detector else method


def _detector_columns(rows: pd.DataFrame) -> tuple[Column, ...]:
    return (
        *key_columns(rows),
        column_of("evaluation", rows["evaluation"], "text"),
        column_of("use-case", rows["use_case"], "text"),
        column_of("detector", [title_of(name) for name in rows["method"]], "text"),
        column_of("calibrated on", rows["regime"], "text"),
    )


def by_use_case(analysis: Analysis) -> pd.DataFrame:
    """A row for each detector of each network: AUROC of each use-case, the highest mean first.

    A detector that lacks a use-case has no mean and comes last.
    """
    parts = [
        _wide(rows)
        for network in networks(analysis)
        if len(rows := _detected(pd.DataFrame(network.pooled())))
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _detected(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over the sets of what is to be detected, uncalibrated."""
    chosen = (rows["group"] == ALL) & (rows["regime"] == "none") & rows["use_case"].isin(DETECTED)
    return rows[chosen]


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    keys = [*STUDY, "method", "seeds"]
    cases = [case for case in DETECTED if case in set(rows["use_case"])]
    wide = rows[keys].drop_duplicates("method").set_index("method")
    for case in cases:
        cells = rows[rows["use_case"] == case].set_index("method")[["auroc", "low", "high"]]
        wide = wide.join(cells.add_prefix(f"{case} "))
    mean = wide[[f"{case} auroc" for case in cases]].mean(axis=1, skipna=False)
    return wide.assign(mean=mean).sort_values("mean", ascending=False).reset_index()


def first_table(analysis: Analysis) -> Table | None:
    """AUROC of detectors by use-case."""
    wide = by_use_case(analysis)
    if wide.empty:
        return None
    columns = [
        *key_columns(wide),
        column_of("evaluation", wide["evaluation"], "text"),
        column_of("detector", [title_of(name) for name in wide["method"]], "text"),
    ]
    for case in DETECTED:
        names = {f"{case} {name}": name for name in ("auroc", "low", "high")}
        if names.keys() <= set(wide):
            cells = wide[[*names]].rename(columns=names)
            columns.append(interval_of(f"{case} [95 %]", cells, "auroc"))
    columns.append(column_of("seeds", wide["seeds"], "integer"))
    caption = (
        "Detectors by use-case: AUROC, mean over the sets with 20 out-of-distribution records or "
        "more, uncalibrated, the highest mean over use-cases first; 0.5 is chance."
    )
    return table_of(f"{caption}{_tested(analysis)}", columns, wide)


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


def detectors(analysis: Analysis) -> Table | None:
    """Means over the sets of each use-case."""
    rows = frame(analysis)
    rows = rows[(rows["group"] == ALL) & (rows["use_case"] != "shifted")]
    if rows.empty:
        return None
    columns = (
        *_detector_columns(rows),
        interval_of("AUROC [95 %]", rows, "auroc"),
        column_of("sd", rows["sd"], "number"),
        *(
            column_of(title, rows[name], "number")
            for title, name in (
                ("AUPR out", "aupr out"),
                ("AUPR in", "aupr in"),
                ("FPR at 95 % detected", "fpr at 95"),
                ("detected at 5 % rejected", "detected at 5"),
                ("balanced accuracy", "balanced accuracy"),
                ("AUROC, abnormal in", "auroc, abnormal"),
                ("accuracy, drawn", "accuracy, drawn"),
                ("AUPR out, drawn", "aupr out, drawn"),
            )
            if name in rows
        ),
        *(column_of(name, rows[name], "integer") for name in ("sets", "seeds")),
    )
    caption = (
        "Detectors, mean over the sets of each use-case with 20 out-of-distribution records or "
        "more; larger is better but for FPR. 0.5 is chance; a value below it says that a detector "
        "scores out-of-distribution records lower than in-distribution ones. Calibrated on: none, "
        "a threshold that accepts 95 % of in-distribution records; other-sources, sets that are "
        "not scored; same-source, other patients of the very set, an upper bound."
        f"{_skipped(analysis)}"
    )
    return table_of(caption, columns, rows)


def _skipped(analysis: Analysis) -> str:
    """Detectors and records that were skipped, and why, for a caption."""
    every = [
        predictions
        for network in networks(analysis)
        for predictions in network.predictions.values()
    ]
    reasons = {
        name: why for predictions in every for name, why in about(predictions)["skipped"].items()
    }
    listed = "; ".join(f"{title_of(name)}: {why}" for name, why in reasons.items())
    return f" Skipped or excluded in at least one network: {listed}." if listed else ""


def shifted(analysis: Analysis) -> Table | None:
    """What is rejected of correct records of other hospitals."""
    rows = frame(analysis)
    rows = rows[(rows["use_case"] == "shifted") & (rows["group"] != ALL)]
    if rows.empty:
        return None
    columns = (
        *_detector_columns(rows),
        column_of("dataset", rows["group"], "text"),
        column_of("false alarms", rows["rejected"], "number"),
        interval_of("AUROC [95 %]", rows, "auroc"),
        column_of("shifted records", rows["out"], "integer"),
        column_of("seeds", rows["seeds"], "integer"),
    )
    caption = (
        "Correct records of other hospitals, devices or people, which are not out of distribution: "
        "the share that is rejected at the threshold."
    )
    return table_of(caption, columns, rows)


def controls(analysis: Analysis) -> Table | None:
    """What no detector can see."""
    rows = frame(analysis)
    rows = rows[rows["use_case"] == "control"]
    if rows.empty:
        return None
    columns = (
        *_detector_columns(rows),
        column_of("control", rows["group"], "text"),
        interval_of("AUROC [95 %]", rows, "auroc"),
        column_of("out records", rows["out"], "integer"),
        column_of("seeds", rows["seeds"], "integer"),
    )
    unseen = "a change that the normalisation removes has an AUROC of 0.500 exactly, "
    caption = (
        f"Controls: {unseen if (rows['group'] != HALF).any() else ''}a random half of the "
        "in-distribution patients one within chance, which one interval in twenty excludes."
    )
    return table_of(caption, columns, rows)


def costs_table(analysis: Analysis) -> Table | None:
    rows = costs(analysis)
    if rows.empty:
        return None
    columns = (
        *key_columns(rows),
        column_of("evaluation", rows["evaluation"], "text"),
        column_of("detector", [title_of(name) for name in rows["method"]], "text"),
        column_of("setup (s)", rows["setup"], "number"),
        column_of("network (ms a record)", 1000 * rows["network"], "number"),
        column_of("detector (ms a record)", 1000 * rows["score"], "number"),
        column_of("device", rows["device"], "text"),
    )
    caption = (
        "What detectors cost: seconds to fit and calibrate once; milliseconds of the network's "
        "work for a record, features and what else the detector reads, and of the detector "
        "itself. Median of five after a first time, means over seeds; the training of the network "
        "is not counted."
    )
    return table_of(caption, columns, rows)


def tuned_table(analysis: Analysis) -> Table | None:
    """What searches of detectors gained."""
    rows = tuned(analysis)
    if rows.empty:
        return None
    columns = (
        *_detector_columns(rows),
        *(column_of(name, rows[name], "number") for name in TUNED_COLUMNS),
        interval_of("tuned minus fixed [95 %]", rows, "difference", "change", p="p_holm"),
        column_of("p (Holm)", rows["p_holm"], "p"),
        column_of("seeds", rows["seeds"], "integer"),
    )
    caption = (
        "Tuned detectors: AUROC with the papers' hyperparameters (fixed) and with those that a "
        "search found on the other sets of the use-case, on records that no trial saw; p adjusted "
        "over all detectors of a use-case."
    )
    return table_of(caption, columns, rows)


def _change_table(rows: pd.DataFrame, title: str, caption: str) -> Table | None:
    if rows.empty:
        return None
    columns = (
        *_detector_columns(rows),
        interval_of(title, rows, "difference", "change", p="p_holm"),
        column_of("p (Holm)", rows["p_holm"], "p"),
        column_of("seeds", rows["seeds"], "integer"),
    )
    return table_of(caption, columns, rows)


def compared_table(analysis: Analysis) -> Table | None:
    """Differences between detectors."""
    return _change_table(
        compared(analysis),
        "minus probability threshold [95 %]",
        "AUROC of each detector minus that of the probability threshold on the same records, mean "
        "over the sets of a use-case; p adjusted over all detectors of a use-case.",
    )


def technique_table(analysis: Analysis) -> Table | None:
    """Differences between pretrainings."""
    return _change_table(
        techniques(analysis),
        "minus scratch [95 %]",
        "Does pretraining matter: AUROC of a detector with a pretrained network minus that with "
        "one from scratch, on the same records; p adjusted over all detectors of a use-case.",
    )


def _rows_of(keep: Callable[[pd.DataFrame], Any]) -> Callable[[Analysis], pd.DataFrame]:
    def data(analysis: Analysis) -> pd.DataFrame:
        rows = frame(analysis)
        return rows if rows.empty else rows[keep(rows)].reset_index(drop=True)

    return data


TABLES = aggregates(
    Declared.both("detectors_means", HEADING, by_use_case, first_table, first=True),
    Declared.both("detectors", HEADING, _rows_of(lambda r: r["group"] == ALL), detectors),
    Declared("detectors_sets", HEADING, _rows_of(lambda r: r["group"] != ALL)),
    Declared.both("detectors_compared", HEADING, compared, compared_table),
    Declared.both("detectors_pretraining", HEADING, techniques, technique_table),
    Declared.both(
        "detectors_shifted", HEADING, _rows_of(lambda r: r["use_case"] == "shifted"), shifted
    ),
    Declared.both(
        "detectors_controls", HEADING, _rows_of(lambda r: r["use_case"] == "control"), controls
    ),
    Declared.both("detectors_tuned", HEADING, tuned, tuned_table),
    Declared.both("detectors_costs", HEADING, costs, costs_table),
)
