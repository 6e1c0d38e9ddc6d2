"""Notes for readers on how results were computed, and on their limits."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmd_ray.evaluation.registry import benchmarks, starts
from benchmd_ray.report.contamination import sentences
from benchmd_ray.report.frames import (
    BOOTSTRAP,
    CROSS_VALIDATION,
    LEAVE_ONE_OUT,
    MARK,
    UNKNOWN,
    by_name,
)
from benchmd_ray.report.protocols import START, TUNED
from benchmd_ray.runs.predictions import CLASSIFIED
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.support import INTERVAL_PATIENTS, ROUGH_IN_CLASS, TEST_PATIENTS, Basis

_HELD_OUT = "all records, each scored by the model that was not trained on its patient"
_FIXED = (
    "The interval keeps the models fixed: as their training sets overlap, it does not cover how "
    "results vary with them"
)
OVER_FOLDS = {
    CROSS_VALIDATION: f"{CROSS_VALIDATION}: {_HELD_OUT}. AUROC and AUPRC of a class are means over "
    "the folds that have it and others, since scores of different models are not comparable; other "
    f"metrics are over all records. {_FIXED}. Other datasets are scored by the models' average.",
    LEAVE_ONE_OUT: f"{LEAVE_ONE_OUT}: {_HELD_OUT}. CAUTION: AUROC and AUPRC rank scores of "
    "different models together; a model that lacks a patient of a class expects that class less, "
    f"so they tend to be too low where a patient has one class only. {_FIXED}. Other datasets are "
    "scored by the models' average.",
}
"""Notes on results over folds, by what stands for their split."""


def notes(rows: pd.DataFrame) -> list[str]:
    """Notes on the score rows (`frames.FRAMES`) of runs."""
    runs = rows[rows["run"] != ""]
    ours = runs[runs["evaluation"] == CLASSIFIED.evaluation]
    aurocs = ours[(ours["class"] == "mean") & (ours["metric"] == "auroc")]
    is_source = aurocs["role"] == "source"
    protocols = runs["protocol"]
    lines = [*_notes_on_contamination(runs), *_notes_on_seeds(runs), *_notes_on_paper(aurocs)]
    if len(aurocs):
        lines.insert(
            0,
            "AUROC: one-vs-rest, unweighted mean over the classes that could be scored: the chance "
            "that a patient with the class gets a higher score than one without; 0.5 is guessing, "
            "1 is perfect. In brackets the 95 % interval, by Student's t from a "
            f"{BOOTSTRAP}: what other patients from the same place may give, not another hospital; "
            "with several seeds it covers seeds, too.",
        )
    chosen = (
        is_source & (aurocs["split"] == "validation") & ~aurocs["setting"].str.startswith("knn")
    )
    if chosen.any():
        lines.append(
            "validation: where a model is trained in epochs, this split chose the best one, so its "
            "AUROC is slightly optimistic."
            + " Fold models chose it on their own fold instead."
            * bool((protocols == START).any())
        )
    lines += [text for split, text in OVER_FOLDS.items() if (aurocs["split"] == split).any()]
    if (aurocs["setting"] == "linear").any():
        lines.append("linear: a head on the frozen encoder, all labels.")
    if aurocs["setting"].str.startswith("knn").any():
        lines.append(
            "knn: no training; the nearest training records by the frozen encoder's features vote."
        )
    if aurocs["setting"].str.startswith("mixed").any():
        lines.append("mixed: the folds of a cross-validation chose different modes of transfer.")
    if (is_source & (aurocs["dataset"] != aurocs["source"])).any():
        lines.append(
            "another source: scored without training on it, like a target, by a run trained on the "
            "source in the same row."
        )
    lines += [
        f"{name}: the records of the table are {scored}."
        for name, scored in _distinct(aurocs, "modality", "scored")
        if scored != "records"
    ]
    lines += [
        f"{s.name}: {s.note}" for s in starts().values() if s.note and (protocols == s.name).any()
    ]
    if (protocols == "custom").any():
        lines.append("custom: settings that the user changed; not comparable with the paper.")
    if (protocols == TUNED).any():
        lines.append("tuned: settings that a search found; not comparable with the paper.")
    if (protocols == START).any():
        lines.append("start: fold models of what a search started from; not compared with others.")
    if (protocols == "shuffled").any():
        lines.append("shuffled: trained on labels shuffled among the records, as a sanity check.")
    lines += [
        f"{dataset}: built from {records:,} of {whole:,} raw records."
        for dataset, records, whole in _distinct(
            runs[runs["provenance"] != "synthetic"], "dataset", "raw_records", "raw_expected"
        )
        if records != whole
    ]
    options = sorted(
        {entry for text in runs["options"].unique() for entry in text.split("; ") if entry}
    )
    lines += [f"{option}: a build option other than the default." for option in options]
    warnings = {
        (name, one)
        for name, text in _distinct(runs, "dataset", "warnings")
        for one in text.split("; ")
        if one
    }
    lines += [f"{dataset}: {warning}." for dataset, warning in sorted(warnings)]
    return [*lines, *_notes_on_patients(aurocs), *_notes_on_classes(ours)]


def synthetic(rows: pd.DataFrame) -> str:
    """A sentence on results trained or scored on synthetic data; empty if there are none."""
    drawn = rows["provenance"] == "synthetic"
    if not drawn.any():
        return ""
    which = "All results rest"
    if not drawn[rows["run"] != ""].all():
        which = f"Results on {', '.join(sorted(rows.loc[drawn, 'dataset'].unique()))} rest"
    return f"{which} on synthetic data: such numbers say nothing about patients."


def _distinct(rows: pd.DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return sorted(rows[[*names]].drop_duplicates().itertuples(index=False, name=None))


def _notes_on_contamination(rows: pd.DataFrame) -> list[str]:
    """Notes on rows whose pretraining saw what is scored, or whose pretraining is not known."""
    lines = [f"{MARK}: {sentence}" for sentence in sentences(rows)]
    unknown = by_name(rows.loc[rows["contamination"] == UNKNOWN, "technique"].unique())
    if unknown:
        what = UNKNOWN if len(unknown) == 1 else UNKNOWN.replace("its", "their")
        lines.append(
            f"{', '.join(unknown)}: {what}. It may include what is scored here; a target is "
            "zero-shot as far as known."
        )
    return lines


def _notes_on_seeds(rows: pd.DataFrame) -> list[str]:
    if rows["seed"].nunique() < 2:
        return []
    return [
        "seeds: runs that differ only by seed are one row with their mean and standard deviation "
        "(sd); the interval then covers patients and seeds. With two seeds it can be very wide: "
        "run three or more. With one seed it does not cover other seeds."
    ]


def _notes_on_paper(rows: pd.DataFrame) -> list[str]:
    """Notes on the published numbers, and on results that are not comparable with them."""
    words = {p.source: p.words for benchmark in benchmarks().values() if (p := benchmark.published)}
    published = rows["published_in"] != ""
    lines = [
        f"paper: {source}. {words.get(source, '')}".strip()
        for source in sorted(set(rows.loc[published, "published_in"]))
    ]
    reasons = sorted(set(rows["unlike"]) - {""})
    if reasons:
        lines.append(f"paper: – where a result is not comparable: {'; '.join(reasons)}.")
    return lines


def _notes_on_patients(rows: pd.DataFrame) -> list[str]:
    """Notes on splits with too few patients."""
    lines = []
    for dataset, split, patients in _distinct(rows, "dataset", "split", "effective"):
        basis = Basis(patients, ())
        if basis.no_test:
            few = f"with fewer than {TEST_PATIENTS} nothing is tested."
            if basis.no_interval:
                few = f"with fewer than {INTERVAL_PATIENTS} there is no interval and no test."
            lines.append(f"{dataset} ({split}): {basis.no_test}; {few}")
    return lines


def _notes_on_classes(rows: pd.DataFrame) -> list[str]:
    """Notes on classes with few patients, or that could not be scored."""
    lines, enough = [], METRICS["auroc"].least
    classes = rows[(rows["metric"] == "auroc") & (rows["class"] != "mean")]
    places = classes.drop_duplicates(["dataset", "split", "class", "effective"])
    for least, most, so in (
        (1, enough, "so neither the class nor a mean over classes has an interval"),
        (enough, ROUGH_IN_CLASS, "so the interval is rough"),
    ):
        few: dict[tuple[str, str], dict[str, None]] = {}
        chosen = places[(places["effective"] >= least) & (places["effective"] < most)]
        columns = chosen[["dataset", "split", "class", "effective"]]
        for dataset, split, name, count in columns.itertuples(index=False, name=None):
            patients = f"{count:.3g}" if count == round(count) else f"effectively {count:.3g}"
            few.setdefault((dataset, split), {})[f"{name} ({patients})"] = None
        lines += [
            f"Fewer than {most:g} patients on the rarer side (positive or negative) in {dataset} "
            f"({split}), {so}: {', '.join(names)}."
            for (dataset, split), names in sorted(few.items())
        ]
    unscored = places[places["value"].isna()]
    return lines + [
        f"Not scored in {dataset} ({split}), as all or no {scored} are positive: "
        f"{', '.join(dict.fromkeys(classes_of_place['class']))}."
        for (dataset, split, scored), classes_of_place in unscored.groupby(
            ["dataset", "split", "scored"]
        )
    ]
