"""The pages of a board's site, of ``board.json``: the index, one of each dataset and entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Any

from markupsafe import Markup

from benchmd_ray.board.charts import chart
from benchmd_ray.board.content import Row
from benchmd_ray.errors import count_of
from benchmd_ray.report.columns import metric_title
from benchmd_ray.report.document import (
    Section,
    document,
    figure_part,
    html,
    listed_notes,
    prose,
    render,
    terms,
)
from benchmd_ray.report.table import Column, Table
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.support import ALIKE, ROUGH_IN_CLASS, TEST_PATIENTS

INDEX = "index.html"
ABOUT = (
    "No score on this board was submitted: submitters send predictions, and every score was "
    "computed from these and the official labels. With the labels, benchmd board verify repeats it."
)
SYNTHETIC = "synthetic"
NEEDED = {"test": TEST_PATIENTS, "rough": ROUGH_IN_CLASS}
MOST_DIGITS, MOST_DETECTED = 6, 1000
"""Decimals, and rows of detection on the page of a dataset, or one of each entry and use-case."""
FILTERED, STATED = {"filtered": True}, {"about": "As stated"}
OTHERS = [name for name in METRICS if name != "auroc"]
COLUMNS: Mapping[str, tuple[str, Any, Mapping[str, Any]]] = {
    "name": ("entry", "text", {}),
    "whose": ("submitter", "text", FILTERED),
    "source": ("trained on", "text", FILTERED),
    **{name: (name, "text", FILTERED) for name in ("dataset", "setting", "modality", "condition")},
    "use_case": ("use-case", "text", FILTERED),
    "detector": ("detector", "text", FILTERED),
    "option": ("setting", "text", {}),
    "scores": ("datasets", "count", {}),
    "seeds": ("seeds", "count", {}),
    "submissions": ("times", "count", {"about": "Submissions of this entry by this submitter"}),
    "made": ("submitted", "text", {}),
    "flag": ("to know", "text", FILTERED),
    **{name: (name, "integer", {}) for name in ("records", "patients", "entries", "sets")},
    "first_group": ("in a first group", "integer", {"about": "–: nothing is tested"}),
    "highest_auroc": ("highest AUROC", "number", {"about": "Not contaminated"}),
    "auroc": ("AUROC", "interval", {}),
    **{name: (metric_title(name), "number", {}) for name in OTHERS},
    "number": ("no.", "integer", {"about": "In the figure"}),
    "group": ("group", "integer", {"about": "1: the best; –: not tested"}),
    "rank": ("rank", "interval", {"digits": 1}),
    "behind": ("behind the best", "change", {}),
    "device_hours": ("device hours", "number", {"digits": 4, **STATED}),
    "parameters": ("weights", "integer", STATED),
    "on_front": ("best for the cost", "text", FILTERED),
}
"""Title, kind and options of a column by its key; ``count`` counts a list."""
Rows = Sequence[Row]


def pages(board: Row) -> Iterator[tuple[str, str]]:
    """Name and HTML of each page of `content.content`."""
    yield INDEX, _index(board)
    for dataset in board["datasets"]:
        yield dataset["page"], _dataset(board, dataset)
    for entry in board["entries"]:
        yield entry["page"], _entry(board, entry)


def _written(board: Row, title: str, lead: str, sections: Sequence[Section], datasets: Rows) -> str:
    """A page of some datasets; all but the index lead to it."""
    footer = (
        f"Written by benchmd board build: {count_of(len(board['entries']), 'entry')}, "
        f"{board['resamples']:,} resamples of the patients. board.json and board.csv have all "
        "digits."
    )
    (name, heading, first), *others = sections
    if title != board["title"]:
        first = Markup('<p><a href="{}">All datasets and entries</a></p>\n').format(INDEX) + first
    methods = ("methods", "Methods", render("board_methods.html", **NEEDED))
    whole = [(name, heading, first), *others, methods]
    synthetic = [each["name"] for each in datasets if each["provenance"] == SYNTHETIC]
    which = f" ({', '.join(synthetic)})" * (len(synthetic) < len(datasets))
    warning = f"Synthetic data{which}: such numbers say nothing about patients." * bool(synthetic)
    return document(title, lead, whole, footer, warning=warning, unfolded=len(whole))


def _table(name: str, caption: str, rows: Rows, *keys: str) -> Markup:
    """A table of these keys of rows; the first leads to the page of the row, if it has one.

    Columns of texts that are empty in all rows are not shown.
    """
    columns = [_column(rows, key) for key in keys]
    if rows and "page" in rows[0]:
        columns[0] = _column(rows, keys[0], links=[row["page"] for row in rows])
    columns = [c for c in columns if not rows or c.kind != "text" or any(c.values)]
    return html(name, Table(caption, tuple(columns)))


def _column(rows: Rows, key: str, **more: Any) -> Column:
    title, kind, options = COLUMNS.get(key, (key, "text", {}))
    values = [row[key] for row in rows]
    if key == "on_front":
        values = ["yes" * value for value in values]
    if kind == "count":
        kind, values = "integer", [*map(len, values)]
    if kind in ("interval", "change"):
        more |= {end: [row[f"{key}_{end}"] for row in rows] for end in ("low", "high")}
    if kind == "change":
        more["differs"] = [(high or 0) < 0 for high in more["high"]]
        below = [high for high in more["high"] if high and high < 0]
        more["digits"] = _digits(max(below, default=-1))
    return Column(title, values, kind, **options, **more)


def _digits(end: float) -> int:
    """Digits with which the end of an interval that excludes zero does so to readers, too."""
    return next((digits for digits in range(3, MOST_DIGITS) if round(end, digits)), MOST_DIGITS)


def _facts(row: Row, *keys: str) -> Markup:
    return terms([(key.replace("_", " "), text) for key in keys if (text := _text(row[key]))])


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case list():
            return "; ".join(map(str, value))
        case dict():
            return ", ".join(f"{name} {each}" for name, each in sorted(value.items()))
        case float():
            return f"{value:.4g}"
        case int():
            return f"{value:,}"
    return str(value)


def _index(board: Row) -> str:
    datasets, entries = "Datasets of the board; each page has its tables.", "All current entries."
    sizes = ("records", "patients", "entries", "first_group", "highest_auroc")
    about = ("name", "whose", "flag", "source", "setting", "scores", "seeds", "made", "submissions")
    refused = [f"{each['name']}: {each['reason'].rstrip('.')}." for each in board["refused"]]
    of = [dataset | {"dataset": dataset["name"]} for dataset in board["datasets"]]
    sections = [
        ("of", "Datasets", _table("of", datasets, of, "dataset", "split", "modality", *sizes)),
        ("entries", "Entries", _table("entries", entries, board["entries"], *about)),
        ("refused", "Refused", listed_notes(refused, "No bundle was refused.")),
    ]
    return _written(board, board["title"], ABOUT, sections, board["datasets"])


def _dataset(board: Row, dataset: Row) -> str:
    rows = {
        entry["id"]: entry | score | {"page": entry["page"]}
        for entry in board["entries"]
        for score in entry["scores"]
        if score["dataset"] == dataset["name"]
    }
    sections: list[Section] = []
    for number, table in enumerate(dataset["tables"]):
        numbered = enumerate(table["entries"], start=1)
        members = [rows[name] | {"number": place} for place, name in numbered]
        caption = f"Entries on {dataset['name']}, the best first."
        about = ("name", "number", "auroc", "group", "rank", "behind", "whose")
        costs = ("device_hours", "parameters", "on_front", "source", "seeds", "flag")
        where = f"{table['division']}, labels {table['labels']}"
        heading = f"{where[:1].upper()}{where[1:]}"
        ranked = _leaders(members, dataset["untested"])
        if len(members) > 1:
            figure = chart(f"{dataset['name']}, {where}", members, dataset["untested"])
            ranked += figure_part(figure, number + 1)
        ranked += _table(f"entries-{number}", caption, members, *about, *costs)
        sections.append((f"table-of-{number}", heading, ranked))
    if detected := _detected(rows.values()):
        sections.append(("detection", "Detection", detected))
    facts = ("title", "split", "records", "patients", "sets_out_of_distribution", "classes")
    origin = ("task", "policy", "provenance", "licence", "access", "homepage", "catalog")
    about_it = _facts(dataset, *facts, *origin) + listed_notes(dataset["notes"])
    sections.append(("about", "The dataset", about_it))
    lead = f"{count_of(len(rows), 'entry')}. {ABOUT}"
    return _written(board, f"{board['title']}: {dataset['name']}", lead, sections, [dataset])


def _detected(rows: Iterable[Row]) -> Markup:
    """Detectors of all entries on a dataset; empty where there are none."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for detector in row["detectors"]:
            groups.setdefault((detector["use_case"], row["id"]), []).append(row | detector)
    if not groups:
        return Markup()
    most = max(1, MOST_DETECTED // len(groups))
    shown = [row for group in groups.values() for row in nlargest(most, group, key=_auroc)]
    shown.sort(key=lambda row: (row["use_case"], -_auroc(row)))
    caption = "Detectors of each entry by use-case, the highest AUROC first; nothing is tested."
    if any(group[most:] for group in groups.values()):
        caption += f" Of each entry and use-case the {most} highest; its page has all."
    about = ("name", "detector", "use_case", "auroc", "sets", "seeds", "caution", "whose")
    return _table("detection", caption, shown, *about)


def _auroc(row: Row) -> float:
    return 0.0 if row["auroc"] is None else float(row["auroc"])


def _leaders(rows: Rows, untested: str) -> Markup:
    """The first group in a sentence."""
    best, others = rows[0], sum(row["group"] == 1 for row in rows) - 1
    if best["auroc"] is None:
        return Markup("<p>No AUROC can be computed: {}.</p>\n").format(untested)
    text = f"{best['name']} of {best['whose']} has the highest AUROC, {best['auroc']:.3f}"
    if len(rows) == 1:
        text += ", being the only entry"
    elif untested:
        text += f"; nothing is tested, as there are too few patients ({untested})"
    elif others and best["rank_low"] is None:
        text += f"; nothing is tested, as {ALIKE}"
    elif others > 0:
        verb = "is" if others == 1 else "are"
        text += f"; {count_of(others, 'entry')} {verb} not significantly lower"
    return Markup("<p>{}</p>\n").format(prose(f"{text}."))


def _entry(board: Row, entry: Row) -> str:
    links = {dataset["name"]: dataset["page"] for dataset in board["datasets"]}
    scores = [score | {"page": links[score["dataset"]]} for score in entry["scores"]]
    where = ("dataset", "auroc", "group", "rank", "split", "division", "labels", "seeds", *OTHERS)
    card = ("submitter", "key", "technique", "weights", "source", "policy", "protocol", "seeds")
    costs = ("parameters", "device_hours", "hardware", "parts", "versions", "licence", "bundle")
    settings = [{"option": n, "value": str(value)} for n, value in entry["settings"].items()]
    caption, of_first = "Scores on each dataset.", "Settings of the first seed, as stated."
    sections: list[Section] = [
        ("scores", "Scores", _table("scores", caption, scores, *where, "caution")),
        ("known", "To know before reading", listed_notes(entry["notes"], "Nothing.")),
        *_details(entry["scores"]),
        ("card", "Card, as stated", _facts(entry, *card, *costs, "bytes")),
        ("again", "Run it again", Markup("<pre><code>{}</code></pre>\n").format(entry["command"])),
        ("settings", "Settings", _table("settings", of_first, settings, "option", "value")),
        ("history", "Submissions", _history(entry["submissions"])),
    ]
    lead = ". ".join(filter(None, (entry["title"].rstrip("."), ABOUT)))
    own = [each for each in board["datasets"] if each["name"] in {s["dataset"] for s in scores}]
    return _written(board, f"{entry['name']}, {entry['whose']}", lead, sections, own)


def _details(scores: Rows) -> Iterator[Section]:
    """Tables of classes, subgroups and conditions, such as those of robustness."""
    few = "An AUROC without an interval rests on too few patients."
    small = "Groups with too few patients are not shown."
    same = "The same records under other conditions, such as simulated faults."
    over = "How well detectors tell records out of distribution from others: means over sets."
    for name, heading, caption, keys in (
        ("classes", "Classes", few, ("class", "auroc", *OTHERS)),
        ("subgroups", "Subgroups", small, ("subgroup", "auroc", "patients", "variable")),
        ("conditions", "Robustness", same, ("condition", "auroc", "seeds", "evaluation")),
        (
            "detectors",
            "Detection",
            over,
            ("detector", "auroc", "seeds", "use_case", "sets", "caution"),
        ),
    ):
        rows = [{"dataset": score["dataset"], **row} for score in scores for row in score[name]]
        if rows:
            yield name, heading, _table(name, caption, rows, *keys, "dataset")


def _history(submissions: Rows) -> Markup:
    rows = [
        {**each, "bundle": each["bundle"][:16], "dataset": name, **score}
        for each in submissions
        for name, score in each["scores"].items()
    ]
    caption = "This entry's submissions, the newest first: it alone is ranked."
    return _table("history", caption, rows, "made", "bundle", "dataset", "auroc")
