"""The tables of a report: what they show, and how they are written.

Each table is there as people read it (Markdown, LaTeX, and on the terminal the first one) and as
data with all digits (CSV).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmd_ray.files import replacing
from benchmd_ray.results.report.analysis import Analysis
from benchmd_ray.results.report.cells import Cell
from benchmd_ray.results.report.frames import KEY
from benchmd_ray.results.report.table_cells import (
    ABOUT,
    INTERVAL,
    about,
    cautions,
    number,
    p_value,
    protocol_of,
    scored,
    signed,
    spanned,
)
from benchmd_ray.results.report.tables_tuning import searches_shown, tuned_shown
from benchmd_ray.results.written import csv_text, latex, markdown
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.support import INTERVAL_PATIENTS


@dataclass(frozen=True)
class Table:
    """One table of a report."""

    name: str
    """Stem of its files."""
    caption: str
    shown: Callable[[Analysis], pd.DataFrame]
    """As people read it."""
    data: Callable[[Analysis], pd.DataFrame]
    """With all digits and columns."""


def display_frame(analysis: Analysis) -> pd.DataFrame:
    """The main table as people read it: one row per result, its seeds pooled."""
    frame = auroc_frame(analysis)
    return pd.DataFrame(
        {
            "modality": frame["modality"],
            "trained on": frame["source"],
            "dataset": scored(frame),
            "setting": frame["setting"],
            "technique": frame["technique"],
            f"AUROC {INTERVAL}": spanned(frame, "value"),
            "paper": frame["paper"].map(number),
            "seeds": frame["seeds"],
            "sd": frame["sd"].map(number),
            "classes": frame["classes"],
            "records": frame["records"],
            "patients": frame["patients"],
            **cautions(frame),
            **protocol_of(frame),
        }
    )


def auroc_frame(analysis: Analysis) -> pd.DataFrame:
    """AUROC over all classes of each result, with what is known of the runs behind it."""
    frame = _mean(analysis.scores, "auroc").drop(columns=["metric", "class", "positives"])
    behind: dict[tuple[str, ...], list[Cell]] = {}
    for cell in analysis.cells:
        behind.setdefault(tuple(getattr(cell, name) for name in KEY), []).append(cell)
    cells = [behind[tuple(key)] for key in frame[list(KEY)].itertuples(index=False)]
    firsts = [held[0] for held in cells]
    return frame.assign(
        seed_values=["; ".join(map(str, values)) for values in frame["seed_values"]],
        classes=[f"{len(c.classes) - len(c.unscored)}/{len(c.classes)}" for c in firsts],
        unscored=["; ".join(c.unscored) for c in firsts],
        options=["; ".join(c.options) for c in firsts],
        runs=["; ".join(c.run for c in held) for held in cells],
    )


def runs_frame(analysis: Analysis) -> pd.DataFrame:
    """AUROC of every single run."""
    hidden = ("classes", "unscored", "raw", "support", "options", "unlike")
    return pd.DataFrame(
        {
            **{name: value for name, value in vars(c).items() if name not in hidden},
            "options": "; ".join(c.options),
            "unscored": "; ".join(c.unscored),
        }
        for c in analysis.cells
    )


def _mean(scores: pd.DataFrame, metric: str) -> pd.DataFrame:
    chosen = (scores["metric"] == metric) & (scores["class"] == "mean")
    return scores[chosen].reset_index(drop=True)


def _titled(metrics: pd.Series) -> list[str]:
    return [METRICS[name].title for name in metrics]


def metrics_shown(analysis: Analysis) -> pd.DataFrame:
    """All metrics over all classes, one column each."""
    base = _mean(analysis.scores, "auroc")
    columns = {
        METRICS[name].title: spanned(_mean(analysis.scores, name), "value") for name in METRICS
    }
    return pd.DataFrame(
        {**about(base, *ABOUT, "technique"), **columns, **cautions(base), **protocol_of(base)}
    )


def classes_shown(analysis: Analysis) -> pd.DataFrame:
    """AUROC of each class."""
    frame = _per_class(analysis)
    return pd.DataFrame(
        {
            **about(frame, *ABOUT, "technique", "class"),
            f"AUROC {INTERVAL}": spanned(frame, "auroc"),
            "positives": frame["positives"],
            "records": frame["records"],
            **cautions(frame),
            **protocol_of(frame),
        }
    )


def gaps_shown(analysis: Analysis) -> pd.DataFrame:
    """In-distribution against the other datasets, in AUROC."""
    frame = analysis.gaps[analysis.gaps["metric"] == "auroc"].reset_index(drop=True)
    return pd.DataFrame(
        {
            **about(frame, *ABOUT, "technique"),
            "in distribution": frame["in_distribution"].map(number),
            "on the dataset": frame["target"].map(number),
            f"gap {INTERVAL}": spanned(frame, "gap", signed),
            "p": frame["p"].map(p_value),
            **cautions(frame),
            **protocol_of(frame),
        }
    )


def changes_shown(analysis: Analysis) -> pd.DataFrame:
    """Each technique minus scratch, for every metric."""
    frame = analysis.changes
    return pd.DataFrame(
        {
            **about(frame, *ABOUT, "technique"),
            "metric": _titled(frame["metric"]),
            f"minus scratch {INTERVAL}": spanned(frame, "value", signed),
            "p": frame["p"].map(p_value),
            "p (DeLong)": frame["p_delong"].map(p_value),
            **cautions(frame),
            **protocol_of(frame),
        }
    )


def pairs_shown(analysis: Analysis) -> pd.DataFrame:
    """Every two techniques on the same records, in AUROC."""
    frame = analysis.pairs
    return pd.DataFrame(
        {
            **about(frame, *ABOUT),
            "a": frame["a"],
            "b": frame["b"],
            f"b minus a {INTERVAL}": spanned(frame, "difference", signed),
            "p": frame["p"].map(p_value),
            "p (Holm)": frame["p_holm"].map(p_value),
            **cautions(frame),
            **protocol_of(frame),
        }
    )


def ranking_shown(analysis: Analysis) -> pd.DataFrame:
    """Ranks of the techniques on the same records, and how stable the ranking is."""
    frame = analysis.ranking
    return pd.DataFrame(
        {
            **about(frame, *ABOUT, "technique"),
            f"rank {INTERVAL}": spanned(frame, "rank", "{:g}".format),
            "Kendall's τ": frame["tau"].map(number),
            **cautions(frame),
            **protocol_of(frame),
        }
    )


def subgroups_shown(analysis: Analysis) -> pd.DataFrame:
    """AUROC of groups of people and devices."""
    frame = analysis.subgroups
    return pd.DataFrame(
        {
            **about(frame, *ABOUT, "technique", "variable", "group"),
            f"AUROC {INTERVAL}": spanned(frame, "value"),
            "records": frame["records"],
            "patients": frame["patients"],
            "p (Kruskal)": frame["kruskal_p"].map(p_value),
            **cautions(frame),
            **protocol_of(frame),
        }
    )


def posthoc_shown(analysis: Analysis) -> pd.DataFrame:
    """Groups that were compared with each other."""
    frame = analysis.posthoc
    return pd.DataFrame(
        {
            **about(frame, *ABOUT, "technique", "variable", "a", "b"),
            "p (Bonferroni)": frame["p_bonferroni"].map(p_value),
            **protocol_of(frame),
        }
    )


def _per_class(analysis: Analysis) -> pd.DataFrame:
    scores = analysis.scores
    frame = scores[(scores["metric"] == "auroc") & (scores["class"] != "mean")]
    frame = frame.drop(columns=["metric", "seed_values", "paper"]).reset_index(drop=True)
    return frame.rename(columns={"value": "auroc"})


TABLES = (
    Table("auroc", "AUROC, the seeds pooled.", display_frame, auroc_frame),
    Table("auroc_per_class", "AUROC of each class against the rest.", classes_shown, _per_class),
    Table(
        "metrics",
        "All metrics over all classes, with 95 % intervals. AUPRC has one where each class has "
        f"{METRICS['auprc'].least} patients on its rarer side, accuracy and Brier score where "
        f"{INTERVAL_PATIENTS} patients are scored, the calibration error never; the caution is for "
        "AUROC, balanced accuracy and F1.",
        metrics_shown,
        lambda a: a.scores.drop(columns=["seed_values", "paper"]),
    ),
    Table(
        "gaps",
        "AUROC in distribution (the source's validation split) minus that on another dataset.",
        gaps_shown,
        lambda a: a.gaps,
    ),
    Table(
        "changes",
        "Each technique minus scratch on the same records.",
        changes_shown,
        lambda a: a.changes,
    ),
    Table(
        "pairs",
        "Differences in AUROC between techniques on the same records, and p, also after Holm's "
        "correction over the pairs of a dataset and setting.",
        pairs_shown,
        lambda a: a.pairs,
    ),
    Table(
        "ranking",
        "Ranks of the techniques in AUROC on the same records: the interval holds those that no "
        "test of a pair rules out; τ is how well rankings of resampled patients agree with that "
        "of all.",
        ranking_shown,
        lambda a: a.ranking,
    ),
    Table(
        "subgroups",
        "AUROC of groups; p by Kruskal and Wallis over the groups of a variable.",
        subgroups_shown,
        lambda a: a.subgroups,
    ),
    Table(
        "subgroups_posthoc",
        "Pairs of groups; p by Mann and Whitney, corrected by Bonferroni.",
        posthoc_shown,
        lambda a: a.posthoc,
    ),
    Table(
        "tuned",
        "Tuned settings against those that their search started from, on the same records.",
        lambda a: tuned_shown(a.tuned),
        lambda a: a.tuned,
    ),
    Table(
        "searches",
        "Searches. Inner AUROC is that on the search's validation records; the best trial's is the "
        "best of many and so too high.",
        lambda a: searches_shown(a.searches),
        lambda a: a.searches,
    ),
)
"""The tables of a report, in order."""
LISTS: dict[str, Callable[[Analysis], pd.DataFrame]] = {
    "auroc_per_run": runs_frame,
    "runs": lambda a: a.ran,
    "subgroups_left_out": lambda a: a.left_out,
}
"""What is written as data alone."""


def file_names() -> frozenset[str]:
    """Names of all files that `write_tables` may write."""
    kinds = ("csv", "md", "tex")
    tables = {f"{table.name}.{kind}" for table in TABLES for kind in kinds}
    return frozenset(tables | {f"{name}.csv" for name in LISTS})


def write_tables(analysis: Analysis, folder: Path) -> list[Path]:
    """Write every table with rows as CSV, Markdown and LaTeX, and the lists as CSV alone.

    The lists are ``auroc_per_run``, ``runs`` and ``subgroups_left_out``. The notes stand below the
    main table, ``auroc``.

    Returns:
        The files written, the main table's first.
    """
    contents: dict[str, str] = {}
    for table in TABLES:
        shown, notes = table.shown(analysis), analysis.notes if table.name == "auroc" else []
        if len(shown):
            contents |= _files(table, shown, table.data(analysis), notes)
    for name, make in LISTS.items():
        held = make(analysis)
        if len(held):
            contents[f"{name}.csv"] = csv_text(held)
    for name, content in contents.items():
        with replacing(folder / name) as partial:
            partial.write_text(content, "utf-8")
    return [folder / name for name in contents]


def _files(
    table: Table, shown: pd.DataFrame, data: pd.DataFrame, notes: Sequence[str]
) -> dict[str, str]:
    lines = [table.caption, "", markdown(shown)]
    if notes:
        lines += ["", *(f"- {note}" for note in notes)]
    label = f"tab:{table.name.replace('_', '-')}"
    return {
        f"{table.name}.csv": csv_text(data),
        f"{table.name}.md": "\n".join(lines) + "\n",
        f"{table.name}.tex": latex(*_narrowed(shown, table.caption), label, notes),
    }


def _narrowed(shown: pd.DataFrame, caption: str) -> tuple[pd.DataFrame, str]:
    """A table without columns of one text, which its caption says: a printed page is narrow."""
    same = [
        name
        for name in ("modality", "trained on", "setting", "metric", "policy", "protocol")
        if name in shown and shown[name].nunique() == 1
    ]
    said = "; ".join(f"{name} {shown[name].iloc[0]}" for name in same)
    return shown.drop(columns=same), f"{caption} In all rows: {said}." if said else caption
