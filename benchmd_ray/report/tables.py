"""The tables of a report, each declared once for page and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmd_ray.data.provenance import together
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.registry import benchmarks, named_by
from benchmd_ray.report.columns import (
    column_of,
    columns_of,
    falling,
    interval_of,
    key_columns,
    keyed_table,
    metric_column,
    metric_title,
    name_column,
    part,
    sizes,
    table_of,
)
from benchmd_ray.report.frames import KEY, VERSIONS
from benchmd_ray.report.table import Column, Table
from benchmd_ray.report.training_frames import COLUMNS
from benchmd_ray.runs.predictions import CLASSIFIED
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.support import INTERVAL_PATIENTS

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis

DESCRIPTIONS = "What the rows are"
"""Heading of the descriptions."""
KEEPS = "keeps the start"
"""Text for a search that kept its start."""
Make = Callable[[Any], Table | None]
Data = Callable[[Any], pd.DataFrame]
"""What is reported: an `Analysis` of runs, or a benchmark's own data."""


@dataclass(frozen=True)
class Declared:
    """A table of a report."""

    name: str
    """Stem of its files."""
    heading: str
    """Heading on the page; tables may share one."""
    data: Data
    """For CSV, with all digits and columns."""
    page: Make | None = None
    """For the page; None if it is not shown there."""
    printed: Make | None = None
    """For Markdown, LaTeX and the terminal; None if it is not printed."""
    nothing: str = ""
    """Note at the end of the page if the table is missing; empty: no note."""
    first: bool = False
    """Whether it is under "Results at a glance" instead of its heading."""
    aggregate: bool = False
    """Whether it has only aggregates, nothing of a single record; only such tables are sent to
    W&B.
    """

    @staticmethod
    def both(
        name: str, heading: str, data: Data, make: Make, nothing: str = "", *, first: bool = False
    ) -> Declared:
        """A table that is the same on the page and in print."""
        return Declared(name, heading, data, make, make, nothing, first)


def auroc_frame(analysis: Analysis) -> pd.DataFrame:
    """AUROC over all classes of each result, with the columns of its runs."""
    scores = analysis.scores[analysis.scores["metric"] == "auroc"]
    whole = scores[scores["class"] == "mean"].reset_index(drop=True)
    classes_of = dict(list(scores[scores["class"] != "mean"].groupby([*KEY], sort=False)))
    rows = analysis.rows
    is_auroc = (rows["metric"] == "auroc") & (rows["class"] == "mean")
    rows = rows[is_auroc & (rows["evaluation"] == CLASSIFIED.evaluation)]
    grouped = rows.groupby([*KEY], sort=False)
    options = grouped["options"].first().to_dict()
    provenance = grouped["provenance"].agg(lambda group: together(*group)).to_dict()
    places = list(whole[list(KEY)].itertuples(index=False, name=None))
    classes = [classes_of.get(place, scores[:0]) for place in places]
    return whole.drop(columns=["metric", "class", "positives"]).assign(
        seed_values=["; ".join(map(str, values)) for values in whole["seed_values"]],
        classes=[f"{group['value'].count()}/{len(group)}" for group in classes],
        unscored=["; ".join(group.loc[group["value"].isna(), "class"]) for group in classes],
        options=[options.get(place, "") for place in places],
        provenance=[provenance.get(place, "") for place in places],
    )


def results(analysis: Analysis) -> Table | None:
    """AUROC, mean over classes, next to the paper's."""
    rows = auroc_frame(analysis)
    return keyed_table(
        "AUROC of each technique, mean over classes, with its 95 % interval, seeds pooled.",
        rows,
        interval_of("AUROC [95 %]", rows, "value"),
        column_of("seeds", rows["seeds"], "integer"),
        *columns_of(rows, "number", "sd", "paper"),
        column_of("ours − paper", rows["value"] - rows["paper"], "signed"),
        column_of("classes", rows["classes"], "text"),
        *sizes(rows),
    )


def class_frame(analysis: Analysis) -> pd.DataFrame:
    scores = analysis.scores
    rows = scores[(scores["metric"] == "auroc") & (scores["class"] != "mean")]
    return rows.drop(columns=["metric", "seed_values", "paper", "runs"]).reset_index(drop=True)


def classes(analysis: Analysis) -> Table | None:
    """AUROC of each class."""
    rows = class_frame(analysis)
    return keyed_table(
        "AUROC of each class against the rest.",
        rows,
        column_of("class", rows["class"], "text"),
        interval_of("AUROC [95 %]", rows, "value"),
        column_of("positives", rows["positives"], "integer"),
        *sizes(rows)[:1],
    )


def all_metrics(analysis: Analysis) -> Table | None:
    """All metrics over all classes, one column each."""
    scores = analysis.scores[analysis.scores["class"] == "mean"]
    frames = {name: rows.reset_index(drop=True) for name, rows in scores.groupby("metric")}
    if not frames:
        return None
    rows = frames["auroc"]
    caption = (
        "All metrics over all classes, with 95 % intervals. AUPRC has one where each class has "
        f"{METRICS['auprc'].least} patients on its rarer side, accuracy and Brier score where "
        f"{INTERVAL_PATIENTS} patients are scored, the calibration error never; the caution is for "
        "AUROC, balanced accuracy and F1."
    )
    return keyed_table(
        caption,
        rows,
        *(interval_of(METRICS[name].title, frames[name], "value") for name in METRICS),
    )


def metrics(analysis: Analysis) -> Table | None:
    rows = analysis.scores
    titles = [metric_title(name) for name in rows["metric"]]
    order = tuple(metric_title(name) for name in METRICS)
    first = [title for title in (*order[1:], *order[:1]) if title in titles]
    return keyed_table(
        "Every metric, over all classes and of each class. Choose metric and class above.",
        rows,
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
        *sizes(rows),
    )


def gaps(analysis: Analysis) -> Table | None:
    """Gap between in distribution and target."""
    rows = analysis.gaps
    rising = [
        not falls for falls in falling(rows["metric"])
    ]  # a positive gap is a loss on the target
    return keyed_table(
        "The source's own validation split against each target, and the difference.",
        rows,
        metric_column(rows, required=True),
        column_of("in distribution", rows["in_distribution"], "number"),
        column_of("target", rows["target"], "number"),
        interval_of("gap [95 %]", rows, "gap", "change", p="p_holm", worse=rising),
        column_of("p", rows["p"], "p"),
        column_of("p (Holm)", rows["p_holm"], "p", about="Over the targets of a row's technique"),
    )


def changes(analysis: Analysis) -> Table | None:
    """Rows against their baseline."""
    rows, lower = analysis.changes, falling(analysis.changes["metric"])
    return keyed_table(
        "Each row minus its baseline, on the same records with as many labels.",
        rows,
        metric_column(rows, required=False),
        name_column("baseline", rows),
        interval_of("row − baseline [95 %]", rows, "value", "change", p="p", worse=lower),
        column_of("p", rows["p"], "p"),
        column_of("p (DeLong)", rows["p_delong"], "p"),
    )


def pairs(analysis: Analysis) -> Table | None:
    """Rows against each other."""
    rows = analysis.pairs
    return keyed_table(
        "Difference in AUROC between two rows on the same records with as many labels.",
        rows,
        *(name_column(name, rows, filtered=True) for name in ("a", "b")),
        interval_of("b − a [95 %]", rows, "difference", "change", p="p_holm"),
        column_of("p", rows["p"], "p"),
        column_of("p (Holm)", rows["p_holm"], "p"),
    )


def ranking(analysis: Analysis) -> Table | None:
    rows = analysis.ranking
    return keyed_table(
        "Rank of each row by AUROC among those with as many labels, 1 is best.",
        rows,
        interval_of("rank [95 %]", rows, "rank", digits=1),
        column_of("Kendall's τ", rows["tau"], "number", digits=2),
    )


def subgroups(analysis: Analysis) -> Table | None:
    rows = analysis.subgroups
    return keyed_table(
        "AUROC within groups of patients.",
        rows,
        *columns_of(rows, "text", "variable", "group"),
        interval_of("AUROC [95 %]", rows, "value"),
        column_of("p (groups)", rows["p"], "p"),
        *sizes(rows),
    )


def subgroup_pairs(analysis: Analysis) -> Table | None:
    rows = analysis.subgroup_pairs
    return keyed_table(
        "AUROC of one group minus that of another.",
        rows,
        column_of("variable", rows["variable"], "text"),
        *(column_of(name, rows[name], "text", order=()) for name in ("a", "b")),
        interval_of("a − b [95 %]", rows, "difference", "change", p="p_holm"),
        column_of("p (Holm)", rows["p_holm"], "p", about="After Holm's correction over the pairs"),
    )


def excluded(analysis: Analysis) -> Table | None:
    """Subgroups that were too small."""
    rows = analysis.excluded
    return keyed_table(
        "Groups with too few patients, and patients whose group is missing.",
        rows,
        *columns_of(rows, "text", "variable", "group"),
        column_of("patients", rows["patients"], "integer"),
    )


def ran(analysis: Analysis) -> Table | None:
    """Every run: settings, hardware, duration, versions."""
    rows = analysis.ran
    columns = (
        *columns_of(rows, "text", "run", "kind"),
        *key_columns(rows),
        column_of("seed", rows["seed"], "integer"),
        column_of("finished", ["yes" if done else "no" for done in rows["finished"]], "text"),
        column_of("minutes", rows["seconds"] / 60, "number", digits=1),
        *columns_of(rows, "text", "device", *COLUMNS),
        column_of("workers", rows["workers"], "integer"),
        *columns_of(rows, "text", "catalog", "parts", *VERSIONS),
    )
    return table_of("Runs of this report.", columns, rows)


def descriptions(analysis: Analysis) -> Table | None:
    """What each row is, in whole."""
    rows = analysis.descriptions
    columns = (
        column_of("modality", rows["modality"], "text"),
        column_of("trained on", rows["source"], "text"),
        column_of("technique", rows["technique"], "text", filtered=False),
        column_of("technique id", rows["technique_id"], "text"),
        column_of("network", rows["network"], "text"),
        column_of("pretrained on", [name or None for name in rows["pretrained_on"]], "text"),
        column_of("contamination", [text or None for text in rows["contamination"]], "text"),
        column_of("published", [text or None for text in rows["published"]], "text"),
        *columns_of(rows, "text", "policy", "protocol"),
        column_of("settings", [text or None for text in rows["settings"]], "text"),
    )
    caption = "What each row is, with the settings that most others do not have."
    return table_of(caption, columns, rows)


def tuned(analysis: Analysis) -> Table | None:
    """Results of tuned settings and of those that the search started from."""
    rows = analysis.tuned
    difference = part(rows, "difference").assign(p=rows["p"])
    caption = (
        "AUROC of the choice of a search and of its start, mean over classes, on the same records: "
        "single models with single models, ensembles with ensembles."
    )
    return keyed_table(
        caption,
        rows,
        interval_of("tuned [95 %]", rows, "value"),
        interval_of("start [95 %]", part(rows, "start"), "start"),
        column_of("paper", rows["paper"], "number"),
        interval_of("tuned − start [95 %]", difference, "difference", "change", p="p"),
        column_of("p", rows["p"], "p"),
        column_of("p (DeLong)", rows["p_delong"], "p"),
        column_of("models", rows["models"], "integer"),
        column_of("start", rows["start_name"], "text"),
        column_of("trials", rows["trials"].astype("float64"), "integer"),
        column_of("device hours", rows["device_hours"], "number", digits=2),
        column_of("search", rows["search"], "text"),
    )


def searches(analysis: Analysis) -> Table | None:
    """Searches: choice, the numbers behind it, cost."""
    rows = analysis.searches
    chosen = [None if pd.isna(n) else str(n) if n else KEEPS for n in rows["chosen"]]
    columns = (
        *key_columns(rows),
        *columns_of(rows, "text", "families", "network", "metric", "sampler"),
        *columns_of(rows, "integer", "trials", "stopped", "failed", "unfinished", "evaluations"),
        column_of("chosen trial", chosen, "text"),
        column_of("chosen family", rows["family"], "text"),
        column_of("inner score, start", rows["start_value"], "number"),
        column_of("inner score, chosen", rows["chosen_value"], "number"),
        column_of("too high by", rows["optimism"], "number"),
        column_of("folds", rows["folds"], "integer"),
        column_of("hours", rows["seconds"] / 3600, "number", digits=2),
        column_of("device hours", rows["device_hours"], "number", digits=2),
        column_of("shared hours", rows["shared_seconds"] / 3600, "number", digits=2),
        *columns_of(rows, "text", "device", "search"),
    )
    return table_of("Searches: choice and cost.", columns, rows)


def families(analysis: Analysis) -> Table | None:
    """Families of searches: their best trials against the start, and what they cost."""
    rows = analysis.families
    best = [None if pd.isna(n) else str(n) if n else "the start" for n in rows["best"]]
    columns = (
        *key_columns(rows),
        column_of("family", rows["family"], "text"),
        column_of("chosen", ["yes" if chosen else "" for chosen in rows["is_chosen"]], "text"),
        column_of("trials", rows["trials"], "integer"),
        column_of("best trial", best, "text"),
        column_of("evaluations", rows["evaluations"], "integer"),
        column_of("inner score", rows["value"], "number"),
        column_of("− start", rows["difference"], "signed"),
        column_of("standard error", rows["error"], "number"),
        column_of("device hours per evaluation", rows["hours_per_evaluation"], "number"),
        column_of("search", rows["search"], "text"),
    )
    caption = "Families of each search, with scores on its validation records: no results."
    return table_of(caption, columns, rows)


def aggregates(*tables: Declared) -> tuple[Declared, ...]:
    """Tables that have only aggregates."""
    return tuple(replace(table, aggregate=True) for table in tables)


TABLES = aggregates(
    Declared.both("auroc", "Results", auroc_frame, results, "No results."),
    Declared(
        "metrics",
        "All metrics",
        lambda a: a.scores.drop(columns=["seed_values", "paper", "runs"]),
        metrics,
        all_metrics,
        "No results.",
    ),
    Declared("auroc_per_class", "All metrics", class_frame, printed=classes),
    Declared.both(
        "gaps",
        "In distribution and target",
        lambda a: a.gaps,
        gaps,
        "No run was scored on both its source's validation split and a target.",
    ),
    Declared.both(
        "changes",
        "Against the baseline",
        lambda a: a.changes,
        changes,
        "No row was scored on the same records as a baseline.",
    ),
    Declared.both(
        "pairs",
        "Pairs",
        lambda a: a.pairs,
        pairs,
        "No two rows were scored on the same records with as many labels.",
    ),
    Declared.both(
        "ranking",
        "Ranking",
        lambda a: a.ranking,
        ranking,
        "No two rows were scored on the same records with as many labels.",
    ),
    Declared.both(
        "subgroups",
        "Subgroups",
        lambda a: a.subgroups,
        subgroups,
        "No dataset of this report has age, sex, site, device or view.",
    ),
    Declared.both("subgroup_pairs", "Subgroups", lambda a: a.subgroup_pairs, subgroup_pairs),
    Declared("subgroups_excluded", "Subgroups", lambda a: a.excluded, excluded),
    Declared.both("tuned", "Tuning", lambda a: a.tuned, tuned),
    Declared.both("searches", "Tuning", lambda a: a.searches, searches),
    Declared.both("families", "Tuning", lambda a: a.families, families),
    Declared("runs", "Runs", lambda a: a.ran, ran, nothing="No runs."),
    Declared("scores", "Runs", lambda a: a.rows),
    Declared.both("descriptions", DESCRIPTIONS, lambda a: a.descriptions, descriptions),
)
"""The tables of every report, in order; those neither shown nor printed are CSV only."""


def declared() -> tuple[Declared, ...]:
    """The tables of every report, then those of benchmarks.

    Raises:
        BenchmdError: A benchmark's table cannot be imported, or its name is taken.
    """
    tables = {table.name: table for table in TABLES}
    for benchmark in benchmarks().values():
        for table in named_by(benchmark.tables) if benchmark.tables else ():
            if table.name in tables:
                raise BenchmdError(
                    f"the benchmark {benchmark.name} has a table {table.name}, but the name is "
                    f"taken: choose another."
                )
            tables[table.name] = table
    return tuple(tables.values())


def main_table(analysis: Analysis) -> Declared:
    """The main table: AUROC, or without a classification the first one of a benchmark."""
    others = declared()[len(TABLES) :]
    printed = (table for table in (TABLES[0], *others) if table.printed and table.printed(analysis))
    return next(printed, TABLES[0])
