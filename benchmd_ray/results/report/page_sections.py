"""The report's frames as tables for its page: which columns, how they are shown and chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from benchmd_ray.results.report.cells import SETTINGS, TECHNIQUES, dataset_text
from benchmd_ray.results.report.frames import BOOTSTRAP, VERSIONS
from benchmd_ray.results.report.hardware_notes import COLUMNS
from benchmd_ray.results.report.page_tables import Column, Table, constant, text_of
from benchmd_ray.scores.comparison import LEVEL
from benchmd_ray.scores.metrics import METRICS

ORDERS = {"setting": SETTINGS, "technique": TECHNIQUES, "a": TECHNIQUES, "b": TECHNIQUES}
FILTERED = ("modality", "trained on", "dataset", "setting", "technique", "protocol", "variable")
ABOUT = {
    "AUROC [95 %]": "One against the rest, mean over the classes that could be scored; interval "
    f"from a {BOOTSTRAP}, pooled over seeds",
    "sd": "Standard deviation between seeds",
    "paper": "AUROC of the BenchMD paper for this cell, where the two may be compared",
    "ours − paper": "Difference to the paper's number",
    "p": "Two-sided; of AUROC with one seed by exchange of the techniques within patients, else "
    "by Student's t",
    "p (Holm)": "p after Holm's correction within one dataset and setting",
    "p (DeLong)": "Two-sided test of the difference in mean AUROC by DeLong's covariance",
    "p (Kruskal)": "Kruskal-Wallis test that all groups are alike",
    "p (Bonferroni)": "Mann-Whitney test of two groups, times the number of pairs",
    "rank [95 %]": "1 is the highest AUROC; the interval holds the ranks that no test rules out",
    "Kendall's τ": "Agreement of the order in resamples with the order found; 1 is the same",
    "gap [95 %]": "In distribution minus target; above zero the target is harder",
    "tuned [95 %]": "AUROC of the settings that a search found, trained on the whole training "
    "split",
    "start [95 %]": "AUROC of the settings that the search started from, trained alike",
    "tuned − start [95 %]": "On the same rows, each draw of patients used for both",
    "caution": "Why an interval or a p is missing, or why the interval is rough; see the methods",
    "catalog": "Digest of the catalog's content",
    "hardware": "Model of the CPU or GPU that trained, of all where sessions or workers differ",
    "instructions": "What PyTorch and NumPy chose; of a GPU its compute capability",
    "threads": "Of PyTorch, each worker",
}


def results(scores: pd.DataFrame) -> Table | None:
    """AUROC, mean over classes, beside the paper's."""
    rows = scores[(scores["metric"] == "auroc") & (scores["class"] == "mean")]
    columns = (
        *key_columns(rows),
        interval_of("AUROC [95 %]", rows, "value"),
        column_of("seeds", rows["seeds"], "integer"),
        column_of("sd", rows["sd"], "number"),
        column_of("paper", rows["paper"], "number"),
        column_of("ours − paper", rows["value"] - rows["paper"], "signed"),
        *_sizes(rows),
        *cautions(rows),
    )
    caption = "AUROC of each technique, mean over classes, with its 95 % interval."
    return table_of("results", caption, columns, rows)


def metrics(scores: pd.DataFrame) -> Table | None:
    """All metrics, and each class."""
    rows = scores
    titles = [_metric_title(name) for name in rows["metric"]]
    order = tuple(_metric_title(name) for name in METRICS)
    first = [title for title in (*order[1:], *order[:1]) if title in titles]
    columns = (
        *key_columns(rows),
        Column(
            "metric",
            titles,
            order=order,
            filtered=True,
            required=True,
            chosen=first[0] if first else "",
            about="An arrow says whether higher (↑) or lower (↓) is better",
        ),
        Column(
            "class",
            list(rows["class"]),
            order=tuple(dict.fromkeys(rows["class"])),
            filtered=True,
            chosen="mean",
        ),
        interval_of("value [95 %]", rows, "value"),
        column_of("seeds", rows["seeds"], "integer"),
        column_of("sd", rows["sd"], "number"),
        column_of("positives", rows["positives"], "integer"),
        *_sizes(rows),
        *cautions(rows),
    )
    caption = "Every metric, over all classes and of each class. Choose metric and class above."
    return table_of("metrics", caption, columns, rows)


def gaps(rows: pd.DataFrame) -> Table | None:
    """In distribution against target."""
    columns = (
        *key_columns(rows),
        _metric(rows),
        column_of("in distribution", rows["in_distribution"], "number"),
        column_of("target", rows["target"], "number"),
        interval_of("gap [95 %]", rows, "gap", "change", p="p"),
        column_of("p", rows["p"], "p", about="Two-sided, by Student's t"),
        *cautions(rows),
    )
    caption = "The source's own validation split against each target, and the difference."
    return table_of("gaps", caption, columns, rows)


def changes(rows: pd.DataFrame) -> Table | None:
    """Techniques against training from scratch."""
    columns = (
        *key_columns(rows),
        _metric(rows),
        interval_of("technique − scratch [95 %]", rows, "value", "change", p="p"),
        column_of("p", rows["p"], "p"),
        column_of("p (DeLong)", rows["p_delong"], "p"),
        *cautions(rows),
    )
    caption = "Each technique minus training from scratch, on the same rows."
    return table_of("changes", caption, columns, rows)


def pairs(rows: pd.DataFrame) -> Table | None:
    """Techniques against each other."""
    columns = (
        *key_columns(rows),
        *(column_of(name, rows[name], "text", filtered=True) for name in ("a", "b")),
        interval_of("b − a [95 %]", rows, "difference", "change", p="p_holm"),
        column_of("p", rows["p"], "p"),
        column_of("p (Holm)", rows["p_holm"], "p"),
        *cautions(rows),
    )
    caption = "Difference in AUROC of two techniques on the same rows."
    return table_of("pairs", caption, columns, rows)


def ranking(rows: pd.DataFrame) -> Table | None:
    """Ranks of techniques."""
    columns = (
        *key_columns(rows),
        interval_of("rank [95 %]", rows, "rank", digits=1),
        column_of("Kendall's τ", rows["tau"], "number", digits=2),
        *cautions(rows),
    )
    return table_of("ranking", "Rank of each technique by AUROC, 1 is best.", columns, rows)


def subgroups(rows: pd.DataFrame) -> Table | None:
    """AUROC by subgroup."""
    columns = (
        *key_columns(rows),
        column_of("variable", rows["variable"], "text"),
        column_of("group", rows["group"], "text"),
        interval_of("AUROC [95 %]", rows, "value"),
        column_of("p (Kruskal)", rows["kruskal_p"], "p"),
        *_sizes(rows),
        *cautions(rows),
    )
    return table_of("subgroups", "AUROC within groups of patients.", columns, rows)


def posthoc(rows: pd.DataFrame) -> Table | None:
    """Which subgroups differ."""
    columns = (
        *key_columns(rows),
        column_of("variable", rows["variable"], "text"),
        *(column_of(name, rows[name], "text", order=()) for name in ("a", "b")),
        column_of("p (Bonferroni)", rows["p_bonferroni"], "p"),
    )
    return table_of("posthoc", "Groups against each other.", columns, rows)


def left_out(rows: pd.DataFrame) -> Table | None:
    """Subgroups that were too small."""
    columns = (
        *key_columns(rows),
        column_of("variable", rows["variable"], "text"),
        column_of("group", rows["group"], "text"),
        column_of("patients", rows["patients"], "integer"),
    )
    return table_of(
        "left-out",
        "Groups of too few patients, and patients whose group is not known.",
        columns,
        rows,
    )


def ran(rows: pd.DataFrame) -> Table | None:
    """Every run: what, where, how long, with which versions."""
    columns = (
        *(column_of(name, rows[name], "text") for name in ("run", "kind")),
        *key_columns(rows),
        column_of("seed", rows["seed"], "integer"),
        column_of("finished", ["yes" if done else "no" for done in rows["finished"]], "text"),
        column_of("minutes", rows["seconds"] / 60, "number", digits=1),
        *(column_of(name, rows[name], "text") for name in ("device", *COLUMNS)),
        column_of("workers", rows["workers"], "integer"),
        *(column_of(name, rows[name], "text") for name in ("catalog", *VERSIONS)),
    )
    return table_of("ran", "Runs that this report is made of.", columns, rows)


def table_of(
    name: str, caption: str, columns: Sequence[Column], rows: pd.DataFrame
) -> Table | None:
    """None where there is nothing to show."""
    if rows.empty:
        return None
    kept, said = constant([column for column in columns if not _nothing(column)])
    return Table(name, f"{caption}{said}{_sources_said(rows) or ''}", kept)


def _nothing(column: Column) -> bool:
    """Whether a column of numbers has none."""
    return column.kind in ("number", "signed", "p") and bool(pd.isna(list(column.values)).all())


def _sources_said(rows: pd.DataFrame) -> str | None:
    """Where models were trained, where the modality alone tells it, which saves a column."""
    sources = rows[["modality", "source"]].drop_duplicates()
    if sources["modality"].duplicated().any():
        return None
    said = ", ".join(f"{text_of(s)} ({text_of(m)})" for m, s in sources.to_numpy())
    return f" Trained on {said}."


def key_columns(rows: pd.DataFrame) -> tuple[Column, ...]:
    """What names a result, as far as the frame has it."""
    found = [column_of("modality", rows["modality"], "text")]
    if _sources_said(rows) is None:
        found.append(column_of("trained on", rows["source"], "text"))
    if "dataset" in rows:
        names = list(rows["dataset"])
        if "role" in rows:
            parts = (rows[name] for name in ("source", "dataset", "role", "split"))
            names = [dataset_text(*row) for row in zip(*parts, strict=True)]
        found.append(column_of("dataset", names, "text"))
    others = ("setting", "technique", "policy", "protocol")
    return (*found, *(column_of(name, rows[name], "text") for name in others if name in rows))


def cautions(rows: pd.DataFrame) -> tuple[Column, ...]:
    """The column that says what is missing or rough, where anything is."""
    return (column_of("caution", rows["caution"], "text"),) if rows["caution"].any() else ()


def _sizes(rows: pd.DataFrame) -> tuple[Column, ...]:
    return tuple(column_of(name, rows[name], "integer") for name in ("records", "patients"))


def _metric(rows: pd.DataFrame) -> Column:
    titles = [_metric_title(name) for name in rows["metric"]]
    order = tuple(_metric_title(name) for name in METRICS)
    chosen = next((title for title in order if title in titles), "")
    return Column("metric", titles, order=order, filtered=True, required=True, chosen=chosen)


def _metric_title(name: str) -> str:
    """Title of a metric, with an arrow to where it is better."""
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
) -> Column:
    """A column of values with their intervals, ``low`` and ``high`` of the rows.

    Args:
        title: Of the column.
        rows: Of the frame.
        value: Column of the values.
        kind: ``interval`` or ``change``.
        digits: After the point.
        p: Of a ``change``, column of the p that says whether it is not zero.
    """
    return Column(
        title,
        list(rows[value]),
        kind,
        low=list(rows["low"]),
        high=list(rows["high"]),
        differs=list(rows[p] < LEVEL) if p else (),
        digits=digits,
        about=ABOUT.get(title, ""),
    )


def column_of(title: str, values: Any, kind: Any, **options: Any) -> Column:
    """A column; what it is, whether rows are chosen by it and its order follow from its title."""
    known = {
        "about": ABOUT.get(title, ""),
        "filtered": title in FILTERED,
        "order": ORDERS.get(title, ()),
    }
    return Column(title, list(values), kind, **{**known, **options})
