"""The pages of a board's site: the index, one of each dataset, one of each entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from benchmd_ray.board.again import command, settings_of
from benchmd_ray.board.build import Board, Contest, entry_id
from benchmd_ray.board.content import name_of, scores_by_entry, warnings_of, whose
from benchmd_ray.board.figure import cost_figure
from benchmd_ray.board.ranking import Placed, cost_of
from benchmd_ray.board.recompute import Entry
from benchmd_ray.errors import count_of
from benchmd_ray.files.atomic import slug
from benchmd_ray.report.document import (
    Section,
    document,
    figure_parts,
    html,
    listed_notes,
    none,
    prose,
    terms,
)
from benchmd_ray.report.table import Column, Table
from benchmd_ray.scores.comparison import LEVEL
from benchmd_ray.scores.metrics import METRICS

INDEX = "index.html"
ABOUT = (
    "No number on this board was submitted: submitters send predictions, and every score was "
    "computed from these and the official labels. The command benchmd board verify repeats it."
)
METHODS = (
    (
        "AUROC",
        "Mean over classes and seeds on the official records, with a 95 % interval from a "
        "bootstrap over patients, as in benchmd's reports.",
    ),
    (
        "Group",
        "Group 1 has the entry with the highest AUROC and all that are not significantly below it "
        f"(p ≥ {LEVEL} after Holm's correction over the entries of the table, by Student's t from "
        "the bootstrap of the difference on the same patients, or too few patients for a test); "
        "group 2 the highest of the others and all that are not significantly below that, and so "
        "on. Entries of a group are not told apart by these patients, whatever their order. The "
        "tests compare the submitted models, each the mean of its seeds; another training may give "
        "other models.",
    ),
    ("Rank", "1 is the highest AUROC. The interval has 95 % of its ranks over resampled patients."),
    (
        "Divisions",
        "Ranked apart: the fixed protocol of a benchmark; settings that a search found; custom "
        "settings; published weights; and contaminated entries, whose pretraining saw what is "
        "scored. Entries with fewer labels are apart, too.",
    ),
    (
        "Best for the cost",
        "No entry with as many labels is at least as good for fewer device hours, as stated.",
    ),
)
LIMITS = (
    "Cannot be detected: predictions that were tuned on, or made of, the labels of the scored "
    "split; settings, costs, hardware, contamination and origins of weights that are invented.",
    "Is detected: scores that were made up (none are read), records that are missing, doubled or "
    "others than the official ones, predictions that are another submitter's or nearly, altered "
    "files and signatures.",
)


def dataset_page(board: Board, name: str) -> str:
    """Name of a dataset's page."""
    number = list(board.official.datasets).index(name)
    return f"dataset-{number}-{slug(name)[:60]}.html"


def entry_page(entry: Entry) -> str:
    """Name of an entry's page."""
    return f"entry-{entry_id(entry)}.html"


def link(page: str, text: str) -> Markup:
    return Markup('<a href="{}">{}</a>').format(page, text)


def pages(board: Board) -> Iterator[tuple[str, str]]:
    """Name and HTML of each page."""
    yield INDEX, _index(board)
    for name in board.official.datasets:
        yield dataset_page(board, name), _dataset(board, name)
    scores = scores_by_entry(board)
    for entry in board.entries:
        yield entry_page(entry), _entry(board, entry, scores.get(entry_id(entry), {}))


def _document(board: Board, title: str, lead: str, sections: Sequence[Section]) -> str:
    footer = (
        f"Written by benchmd board build: {count_of(len(board.bundles), 'bundle')}, "
        f"{board.resamples:,} resamples of the patients. board.json and board.csv have all digits."
    )
    return document(title, lead, sections, footer, unfolded=len(sections))


# --- index ---------------------------------------------------------------------------


def _index(board: Board) -> str:
    refused = [f"{each.name}: {each.reason}." for each in board.refused]
    sections = [
        ("datasets", "Datasets", html("datasets", _datasets(board))),
        ("entries", "Entries", html("entries", _entries(board))),
        ("refused", "Refused", listed_notes(refused, "No bundle was refused.")),
        ("methods", "Methods", terms(METHODS) + listed_notes(LIMITS, heading="Limits")),
    ]
    return _document(board, board.title, ABOUT, sections)


def _datasets(board: Board) -> Table:
    rows = []
    for name, dataset in board.official.datasets.items():
        members = {c: p for c, p in board.contests.items() if c[0] == name}
        every = [place.entry.results[name].value for those in members.values() for place in those]
        best = sum(place.group == 1 for those in members.values() for place in those)
        rows.append((name, dataset, len(every), best, max(every, default=float("nan"))))
    about = [dataset.about for _, dataset, *_ in rows]
    columns = (
        Column(
            "dataset",
            [row[0] for row in rows],
            links=[dataset_page(board, row[0]) for row in rows],
        ),
        Column("split", [a.split for a in about]),
        Column("modality", [a.modality for a in about], filtered=True),
        Column("records", [len(row[1].records) for row in rows], "integer"),
        Column("patients", [row[1].patients for row in rows], "integer"),
        Column("entries", [row[2] for row in rows], "integer"),
        Column("in a first group", [row[3] for row in rows], "integer"),
        Column("highest AUROC", [row[4] for row in rows], "number"),
    )
    return Table("Datasets of the board; each page has its tables.", columns)


def _entries(board: Board) -> Table:
    entries = board.entries
    columns = (
        Column("entry", [*map(name_of, entries)], links=[*map(entry_page, entries)]),
        Column("submitter", [*map(whose, entries)], filtered=True),
        Column("trained on", [e.first.source for e in entries], filtered=True),
        Column("setting", [e.first.setting for e in entries], filtered=True),
        Column("datasets", [len(e.results) for e in entries], "integer"),
        Column("seeds", [len(e.runs) for e in entries], "integer"),
        Column("submitted", [e.bundle.about.made for e in entries]),
        Column(
            "times",
            [1 + len(board.earlier.get(entry_id(e), ())) for e in entries],
            "integer",
            about="Submissions of this entry by this submitter",
        ),
        Column("to know", [_flag(board, e) for e in entries], filtered=True),
    )
    return Table("All current entries.", columns)


def _flag(board: Board, entry: Entry) -> str:
    copied = any(board.alike.get((entry_id(entry), dataset)) for dataset in entry.results)
    return "copy?" if copied else "" if entry.bundle.signer else "not signed"


# --- a dataset -----------------------------------------------------------------------


def _dataset(board: Board, name: str) -> str:
    about, dataset = board.official.datasets[name].about, board.official.datasets[name]
    members = {c: those for c, those in board.contests.items() if c[0] == name}
    sections: list[Section] = [
        (
            f"table-of-{number}",
            f"{division[0].upper()}{division[1:]}, labels {labels}",
            _leaders(name, those) + html(f"entries-{number}", _ranked(board, name, those)),
        )
        for number, ((_, labels, division), those) in enumerate(members.items())
    ]
    figures = []
    for labels in dict.fromkeys(contest[1] for contest in members):
        groups = [(c[2], those) for c, those in members.items() if c[1] == labels]
        if (drawn := cost_figure(name, labels, groups)) is not None:
            figures.append(drawn)
    drawings = figure_parts(figures)
    facts = {
        "title": about.title,
        "scored": f"{len(dataset.records):,} records, split {about.split}, of "
        f"{count_of(dataset.patients, 'patient')}",
        "classes": ", ".join(about.task.classes),
        "task": about.task.kind,
        "policy": about.policy,
        "provenance": about.provenance,
        "licence": about.licence,
        "access": about.access,
        "page": about.homepage,
        "catalog": about.catalog,
    }
    sections += [("cost", heading, images) for heading, images in drawings.items()]
    sections += [
        ("about", "The dataset", terms([*_stated(facts)]) + listed_notes(about.notes)),
        ("methods", "Methods", terms(METHODS) + _home()),
    ]
    lead = f"{count_of(sum(map(len, members.values())), 'entry')}. {ABOUT}"
    return _document(board, f"{board.title}: {name}", lead, sections)


def _stated(facts: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    yield from ((name, str(value)) for name, value in facts.items() if value not in ("", None))


def _home() -> Markup:
    return Markup("<p>{}</p>\n").format(link(INDEX, "All datasets and entries"))


def _leaders(dataset: str, those: Sequence[Placed]) -> Markup:
    """The first group in a sentence."""
    first = [place for place in those if place.group == 1]
    best, value = first[0].entry, first[0].entry.results[dataset].value
    text = f"{name_of(best)} of {whose(best)} has the highest AUROC, {value:.3f}"
    others = len(first) - 1
    if others:
        text += f"; {count_of(others, 'entry')} cannot be told from it"
    return Markup("<p>{}</p>\n").format(prose(f"{text}."))


def _ranked(board: Board, dataset: str, those: Sequence[Placed]) -> Table:
    entries = [place.entry for place in those]
    auroc = [entry.results[dataset].auroc[0] for entry in entries]
    behind = [place.behind for place in those]
    significant = [place.p < LEVEL for place in those]
    nan = float("nan")
    columns = (
        Column("group", [place.group for place in those], "integer", about="1: the best"),
        Column("entry", [*map(name_of, entries)], links=[*map(entry_page, entries)]),
        Column("submitter", [*map(whose, entries)], filtered=True),
        _interval("AUROC", auroc),
        Column(
            "rank",
            [p.rank for p in those],
            "interval",
            digits=0,
            low=[p.low for p in those],
            high=[p.high for p in those],
        ),
        Column(
            "behind the best",
            [nan if d is None else d.value for d in behind],
            "change",
            low=[nan if d is None else d.low for d in behind],
            high=[nan if d is None else d.high for d in behind],
            differs=significant,
        ),
        Column("p (Holm)", [place.p for place in those], "p"),
        Column("device hours", [*map(cost_of, entries)], "number", about="As stated"),
        Column("weights", [_weights(entry) for entry in entries], "integer", about="As stated"),
        Column("best for the cost", ["yes" if p.on_front else "" for p in those], filtered=True),
        Column("trained on", [e.first.source for e in entries], filtered=True),
        Column("seeds", [len(e.runs) for e in entries], "integer"),
        Column("to know", [_flag(board, e) for e in entries], filtered=True),
    )
    return Table(f"Entries on {dataset}, the best first.", columns)


def _interval(title: str, values: Sequence[Any]) -> Column:
    value, low, high = ([float(row[n]) for row in values] for n in range(3))
    return Column(title, value, "interval", low=low, high=high)


def _weights(entry: Entry) -> float:
    counts = [run.parameters for run in entry.runs]
    return float("nan") if None in counts else float(max(n for n in counts if n is not None))


# --- an entry ------------------------------------------------------------------------


def _entry(board: Board, entry: Entry, scores: Mapping[str, tuple[Contest, Placed]]) -> str:
    known = listed_notes([*warnings_of(board, entry)], "Nothing.")
    history = _history(board, entry)
    sections: list[Section] = [
        ("scores", "Scores", html("scores", _scores(board, scores)) if scores else none("None.")),
        ("known", "To know before reading", known),
        ("classes", "Classes", html("classes", _classes(board, entry))),
        *_others(entry),
        ("card", "Card", terms([*_stated(_card(entry))])),
        ("again", "Run it again", Markup("<pre><code>{}</code></pre>\n").format(command(entry))),
        ("settings", "Settings", html("settings", _settings(entry))),
        ("history", "Submissions", html("history", history) + _home()),
    ]
    title = f"{name_of(entry)}, {whose(entry)}"
    return _document(board, title, f"{entry.bundle.about.title} {ABOUT}".strip(), sections)


def _scores(board: Board, scores: Mapping[str, tuple[Contest, Placed]]) -> Table:
    rows = [(name, contest, place) for name, (contest, place) in sorted(scores.items())]
    results = [place.entry.results[name] for name, _, place in rows]
    about = [board.official.datasets[name].about for name, *_ in rows]
    columns = (
        Column("dataset", [r[0] for r in rows], links=[dataset_page(board, r[0]) for r in rows]),
        Column("role", [a.role for a in about]),
        Column("split", [a.split for a in about]),
        Column("division", [r[1][2] for r in rows]),
        Column("labels", [r[1][1] for r in rows]),
        _interval("AUROC", [r.auroc[0] for r in results]),
        Column("group", [r[2].group for r in rows], "integer"),
        Column(
            "rank",
            [r[2].rank for r in rows],
            "interval",
            digits=0,
            low=[r[2].low for r in rows],
            high=[r[2].high for r in rows],
        ),
        *(
            Column(METRICS[name].title, [r.metrics[name][0] for r in results], "number")
            for name in METRICS
            if name != "auroc"
        ),
        Column("caution", [r.caution for r in results]),
    )
    return Table("Scores on each dataset: sources and targets.", columns)


def _classes(board: Board, entry: Entry) -> Table:
    rows = [
        (name, place, title, result)
        for name, result in sorted(entry.results.items())
        for place, title in enumerate(board.official.datasets[name].about.task.classes, start=1)
    ]
    columns = (
        Column("dataset", [row[0] for row in rows], filtered=True),
        Column("class", [row[2] for row in rows]),
        _interval("AUROC", [row[3].auroc[row[1]] for row in rows]),
        *(
            Column(METRICS[n].title, [row[3].metrics[n][row[1]] for row in rows], "number")
            for n in METRICS
            if n != "auroc"
        ),
    )
    return Table(
        "Scores of each class; values without an interval rest on too few patients.", columns
    )


def _others(entry: Entry) -> Iterator[Section]:
    """Tables of other evaluations, such as robustness."""
    rows = [(d, row) for d, result in sorted(entry.results.items()) for row in result.rows]
    for evaluation in sorted({row["evaluation"] for _, row in rows}):
        those = [(d, row) for d, row in rows if row["evaluation"] == evaluation]
        columns = (
            Column("dataset", [d for d, _ in those], filtered=True),
            *(
                Column(title, [row[n] for _, row in those], filtered=True)
                for n, title in (("use_case", "kind"), ("group", "condition"), ("class", "level"))
            ),
            Column("metric", [row["metric"] for _, row in those], filtered=True, chosen="auroc"),
            _interval("value", [(r["value"], r["low"], r["high"]) for _, r in those]),
        )
        table = Table(f"Scores of the evaluation {evaluation}, of single runs.", columns)
        yield (
            f"of-{slug(evaluation)}",
            evaluation.capitalize(),
            html(f"of-{slug(evaluation)}", table),
        )


def _card(entry: Entry) -> dict[str, object]:
    run, about = entry.first, entry.bundle.about
    hardware = dict.fromkeys(text for each in entry.runs for text in each.hardware)
    weights, cost = _weights(entry), cost_of(entry)
    return {
        "submitter": whose(entry),
        "key": entry.bundle.signer,
        "technique": run.technique,
        "published weights": run.weights,
        "trained on": run.source,
        "policy": run.policy,
        "protocol, as stated": run.protocol,
        "seeds": ", ".join(str(each.seed) for each in entry.runs),
        "weights": "" if weights != weights else f"{weights:,.0f}",
        "device hours, as stated": "" if cost != cost else f"{cost:.3f}",
        "hardware, as stated": "; ".join([run.device, *hardware]),
        "versions of parts": ", ".join(f"{name} {n}" for name, n in sorted(run.parts.items())),
        "packages": ", ".join(f"{name} {v}" for name, v in sorted(run.versions.items()) if v),
        "licence of the predictions": about.licence,
        "licences of the datasets": "; ".join(f"{k}: {v}" for k, v in about.licences.items() if v),
        "bundle": f"{entry.bundle.id}, {entry.bundle.bytes:,} bytes",
    }


def _settings(entry: Entry) -> Table:
    values = settings_of(entry.first)
    columns = (Column("setting", [*values]), Column("value", [*map(str, values.values())]))
    return Table("Settings of the first seed, as stated.", columns)


def _history(board: Board, entry: Entry) -> Table:
    every = [entry, *board.earlier.get(entry_id(entry), ())]
    names = sorted({name for each in every for name in each.results})
    empty = [float("nan")] * 3
    columns = (
        Column("submitted", [each.bundle.about.made for each in every]),
        Column("bundle", [each.bundle.id[:16] for each in every]),
        *(
            _interval(
                name, [e.results[name].auroc[0] if name in e.results else empty for e in every]
            )
            for name in names
        ),
    )
    return Table("This entry's submissions, the newest first: it alone is ranked.", columns)
