"""The pages of a board's site: the index, one of each dataset, one of each entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from benchmd_ray.board.build import Board, entry_id, whose
from benchmd_ray.board.content import name_of, scores_by_entry
from benchmd_ray.board.entry_pages import page_of_entry
from benchmd_ray.board.page_parts import (
    ABOUT,
    INDEX,
    LIMITS,
    METHODS,
    dataset_page,
    entry_page,
    flag,
    home,
    interval,
    stated,
    weights,
    written,
)
from benchmd_ray.board.ranking import CONTAMINATED, Placed, cost_of
from benchmd_ray.errors import count_of
from benchmd_ray.report.document import (
    Section,
    html,
    listed_notes,
    prose,
    terms,
)
from benchmd_ray.report.table import Column, Table


def pages(board: Board) -> Iterator[tuple[str, str]]:
    """Name and HTML of each page."""
    yield INDEX, _index(board)
    for name in board.official.datasets:
        yield dataset_page(board, name), _dataset(board, name)
    scores = scores_by_entry(board)
    for entry in board.entries:
        yield entry_page(entry), page_of_entry(board, entry, scores.get(entry_id(entry), {}))


# --- index ---------------------------------------------------------------------------


def _index(board: Board) -> str:
    refused = [f"{each.name}: {each.reason}." for each in board.refused]
    sections = [
        ("datasets", "Datasets", html("datasets", _datasets(board))),
        ("entries", "Entries", html("entries", _entries(board))),
        ("refused", "Refused", listed_notes(refused, "No bundle was refused.")),
        ("methods", "Methods", terms(METHODS) + listed_notes(LIMITS, heading="Limits")),
    ]
    return written(board, board.title, ABOUT, sections)


def _datasets(board: Board) -> Table:
    rows = []
    for name, dataset in board.official.datasets.items():
        members = {c: p for c, p in board.contests.items() if c[0] == name}
        every = [p.entry.results[name].value for those in members.values() for p in those]
        clean = [
            place.entry.results[name].value
            for contest, those in members.items()
            for place in those
            if contest[2] != CONTAMINATED
        ]
        best = sum(place.group == 1 for those in members.values() for place in those)
        rows.append((name, dataset, len(every), best, max(clean, default=float("nan"))))
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
        Column("highest AUROC", [row[4] for row in rows], "number", about="Not contaminated"),
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
        Column("to know", [flag(board, e) for e in entries], filtered=True),
    )
    return Table("All current entries.", columns)


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
    sections += [
        ("about", "The dataset", terms([*stated(facts)]) + listed_notes(about.notes)),
        ("methods", "Methods", terms(METHODS) + home()),
    ]
    lead = f"{count_of(sum(map(len, members.values())), 'entry')}. {ABOUT}"
    return written(board, f"{board.title}: {name}", lead, sections)


def _leaders(dataset: str, those: Sequence[Placed]) -> Markup:
    """The first group in a sentence."""
    first = [place for place in those if place.group == 1]
    best, value = first[0].entry, first[0].entry.results[dataset].value
    text = f"{name_of(best)} of {whose(best)} has the highest AUROC, {value:.3f}"
    others = len(first) - 1
    if others:
        verb = "is" if others == 1 else "are"
        text += f"; {count_of(others, 'entry')} {verb} not significantly lower"
    return Markup("<p>{}</p>\n").format(prose(f"{text}."))


def _ranked(board: Board, dataset: str, those: Sequence[Placed]) -> Table:
    entries = [place.entry for place in those]
    auroc = [entry.results[dataset].auroc[0] for entry in entries]
    behind = [place.behind for place in those]
    columns = (
        Column("group", [place.group for place in those], "integer", about="1: the best"),
        Column("entry", [*map(name_of, entries)], links=[*map(entry_page, entries)]),
        Column("submitter", [*map(whose, entries)], filtered=True),
        interval("AUROC", auroc),
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
            [value for value, _, _ in behind],
            "change",
            low=[low for _, low, _ in behind],
            high=[high for _, _, high in behind],
            differs=[high < 0 for _, _, high in behind],
        ),
        Column("device hours", [*map(cost_of, entries)], "number", about="As stated"),
        Column("weights", [weights(entry) for entry in entries], "integer", about="As stated"),
        Column("best for the cost", ["yes" if p.on_front else "" for p in those], filtered=True),
        Column("trained on", [e.first.source for e in entries], filtered=True),
        Column("seeds", [len(e.runs) for e in entries], "integer"),
        Column("to know", [flag(board, e) for e in entries], filtered=True),
    )
    return Table(f"Entries on {dataset}, the best first.", columns)
