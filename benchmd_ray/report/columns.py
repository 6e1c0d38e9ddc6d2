"""Columns that the tables of a report share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from benchmd_ray.report.contamination import SIDES, legend, marked
from benchmd_ray.report.frames import BOOTSTRAP, LABELS, SETTINGS, by_name, dataset_text
from benchmd_ray.report.table import Column, Table, constant, text_of
from benchmd_ray.scores.comparison import LEVEL
from benchmd_ray.scores.metrics import METRICS

ORDERS = {"setting": SETTINGS, "labels": LABELS}
NAMES = ("technique", "a", "b", "baseline")
"""Columns with names of rows."""
FILTERED = (
    *("modality", "trained on", "dataset", "setting", "labels", "technique", "protocol"),
    "variable",
)
ABOUT = {
    "AUROC [95 %]": "One against the rest, mean over the classes that could be scored; interval "
    f"from a {BOOTSTRAP}, pooled over seeds",
    "sd": "Standard deviation between seeds",
    "paper": "Published AUROC where comparable; see the notes",
    "ours − paper": "Difference from the published number",
    "p": "Two-sided; for AUROC with one seed a permutation test within patients, else Student's t",
    "p (Holm)": "p after Holm's correction over the pairs of one dataset with as many labels",
    "p (DeLong)": "Two-sided test of the difference in mean AUROC by DeLong's covariance",
    "p (groups)": "Welch's test that AUROC is equal in all groups",
    "a − b [95 %]": "Over the classes that both groups can score",
    "p (Kruskal)": "Kruskal-Wallis test that all groups are alike",
    "p (Bonferroni)": "Mann-Whitney test of two groups, times the number of pairs",
    "rank [95 %]": "1 is the highest AUROC; the interval has the ranks that no test rules out",
    "Kendall's τ": "Agreement of the ranking in resamples with that of all patients; 1 is the same",
    "gap [95 %]": "In distribution minus target; positive where the target is harder",
    "tuned [95 %]": "AUROC of a search's choice: mean of its models, or of their ensemble",
    "start [95 %]": "AUROC of what the search started from, trained on the same folds or labels",
    "tuned − start [95 %]": "On the same records, each resample of patients used for both",
    "caution": "Why an interval or p is missing or rough; see Methods",
    "catalog": "Digest of the catalog's content",
    "hardware": "CPU or GPU that trained; all where sessions or workers differ",
    "instructions": "What PyTorch and NumPy chose; of a GPU its compute capability",
    "threads": "Of PyTorch, each worker",
    "start": "Row of what the search started from",
    "models": "Runs of the tuned row, or that its ensemble averages",
    "inner score": "Mean on the search's validation records, paired with the start's: no result",
    "inner score, start": "Mean of the start on the search's validation records: no result",
    "inner score, chosen": "Mean of the chosen trial on the search's validation records, paired "
    "with the start's: no result",
    "too high by": "Expected, as the chosen trial is the highest of many; by simulation",
    "folds": "Whose models are averaged",
    "best trial": "The chosen trial, else the best of those with the most evaluations",
    "− start": "Paired mean difference to the start on the search's validation records",
    "standard error": "Of the difference to the start, over evaluations",
    "device hours per evaluation": "Over all trials of the family, stopped ones included",
    "hours": "Wall-clock time of the search",
    "device hours": "Total device time of all trials",
    "shared hours": "Pretrainings shared by all trials of the search",
    "classes": "Classes scored, of all",
}


def table_of(caption: str, columns: Sequence[Column], rows: pd.DataFrame) -> Table | None:
    """A table of these columns; None if it would be empty."""
    if rows.empty:
        return None
    kept, constants = constant([column for column in columns if not _nothing(column)])
    meaning = legend(rows)
    ends = f"{constants}{_sources_said(rows) or ''}{' ' * bool(meaning)}{meaning}"
    return Table(f"{caption}{ends}", kept)


def _nothing(column: Column) -> bool:
    return column.kind in ("number", "signed", "p") and bool(pd.isna(list(column.values)).all())


def _sources_said(rows: pd.DataFrame) -> str | None:
    """A sentence that names the sources if the modality determines them, which saves a column."""
    sources = rows[["modality", "source"]].drop_duplicates()
    if sources["modality"].duplicated().any():
        return None
    names = ", ".join(f"{text_of(s)} ({text_of(m)})" for m, s in sources.to_numpy())
    return f" Trained on {names}."


def key_columns(rows: pd.DataFrame) -> tuple[Column, ...]:
    """The columns of a result's key that the frame has."""
    columns = [column_of("modality", rows["modality"], "text")]
    if _sources_said(rows) is None:
        columns.append(column_of("trained on", rows["source"], "text"))
    if "dataset" in rows:
        names = list(rows["dataset"])
        if "role" in rows:
            parts = (rows[name] for name in ("source", "dataset", "role", "split"))
            names = [dataset_text(*row) for row in zip(*parts, strict=True)]
        columns.append(column_of("dataset", names, "text"))
    others = ("labels", "setting", "technique", "policy", "protocol")
    return (*columns, *(name_column(name, rows) for name in others if name in rows))


def name_column(name: str, rows: pd.DataFrame, **options: Any) -> Column:
    """A text column; names of rows have the mark of those that are contaminated."""
    texts = list(rows[name])
    for column in (of for names, of, _ in SIDES if names == name and of in rows):
        texts = marked(texts, rows[column])
    return column_of(name, texts, "text", **options)


def cautions(rows: pd.DataFrame) -> tuple[Column, ...]:
    """The column of missing or rough intervals, if there are any."""
    has_some = "caution" in rows and rows["caution"].any()
    return columns_of(rows, "text", "caution") if has_some else ()


def keyed_table(caption: str, rows: pd.DataFrame, *columns: Column) -> Table | None:
    """A table of results: key, these columns, cautions."""
    return table_of(caption, (*key_columns(rows), *columns, *cautions(rows)), rows)


def sizes(rows: pd.DataFrame) -> tuple[Column, ...]:
    """Numbers of records and patients."""
    return columns_of(rows, "integer", "records", "patients")


def metric_column(rows: pd.DataFrame, *, required: bool) -> Column:
    """The column by which readers choose a metric; AUROC by default."""
    titles = [metric_title(name) for name in rows["metric"]]
    order = tuple(metric_title(name) for name in METRICS)
    chosen = next((title for title in order if title in titles), "")
    return Column("metric", titles, order=order, filtered=True, required=required, chosen=chosen)


def metric_title(name: str) -> str:
    """Title of a metric, with an arrow for the better direction."""
    if name not in METRICS:
        return text_of(name)
    return f"{METRICS[name].title} {'↑' if METRICS[name].higher_is_better else '↓'}"


def interval_of(
    title: str,
    rows: pd.DataFrame,
    value: str,
    kind: Any = "interval",
    *,
    digits: int = 3,
    p: str = "",
    about: str = "",
    worse: Sequence[bool] = (),
) -> Column:
    """A column of values with their intervals, taken from ``low`` and ``high``.

    Args:
        title: Heading.
        rows: Of the frame.
        value: Column of the values.
        kind: ``interval`` or ``change``.
        digits: After the point.
        p: Column with p of a ``change``.
        about: Description, instead of the usual one for this title.
        worse: Whether a ``change`` above zero is a loss.
    """
    return Column(
        title,
        list(rows[value]),
        kind,
        low=list(rows["low"]),
        high=list(rows["high"]),
        differs=list(rows[p] < LEVEL) if p else (),
        worse=worse,
        digits=digits,
        about=about or ABOUT.get(title, ""),
    )


def falling(metrics: Iterable[str]) -> list[bool]:
    """Whether lower values are better, for each metric."""
    return [name in METRICS and not METRICS[name].higher_is_better for name in metrics]


def column_of(title: str, values: Any, kind: Any, **options: Any) -> Column:
    """A column; description, filter and order follow from its title."""
    order = tuple(by_name(map(str, values))) if title in NAMES else ORDERS.get(title, ())
    defaults = {"about": ABOUT.get(title, ""), "filtered": title in FILTERED, "order": order}
    return Column(title, list(values), kind, **{**defaults, **options})


def columns_of(rows: pd.DataFrame, kind: Any, *names: str) -> tuple[Column, ...]:
    """Columns of a frame, titled by their names."""
    return tuple(column_of(name, rows[name], kind) for name in names)


def part(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The columns of ``start`` or ``difference``, with its interval as ``low`` and ``high``."""
    names = [name, f"{name}_low", f"{name}_high"]
    return frame[names].set_axis([name, "low", "high"], axis=1)
