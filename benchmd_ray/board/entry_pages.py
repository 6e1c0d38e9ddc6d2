"""The page of an entry: its scores, what it states, how to run it again, its submissions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from markupsafe import Markup

from benchmd_ray.board.again import command, settings_of
from benchmd_ray.board.build import Board, Contest, entry_id, whose
from benchmd_ray.board.content import name_of, warnings_of
from benchmd_ray.board.page_parts import (
    ABOUT,
    dataset_page,
    home,
    interval,
    stated,
    weights,
    written,
)
from benchmd_ray.board.ranking import Placed, cost_of
from benchmd_ray.board.recompute import Entry
from benchmd_ray.files.atomic import slug
from benchmd_ray.report.document import (
    Section,
    html,
    listed_notes,
    none,
    terms,
)
from benchmd_ray.report.table import Column, Table
from benchmd_ray.scores.metrics import METRICS


def page_of_entry(board: Board, entry: Entry, scores: Mapping[str, tuple[Contest, Placed]]) -> str:
    known = listed_notes([*warnings_of(board, entry)], "Nothing.")
    history = _history(board, entry)
    sections: list[Section] = [
        ("scores", "Scores", html("scores", _scores(board, scores)) if scores else none("None.")),
        ("known", "To know before reading", known),
        ("classes", "Classes", html("classes", _classes(board, entry))),
        *_others(entry),
        ("card", "Card", terms([*stated(_card(entry))])),
        ("again", "Run it again", Markup("<pre><code>{}</code></pre>\n").format(command(entry))),
        ("settings", "Settings", html("settings", _settings(entry))),
        ("history", "Submissions", html("history", history) + home()),
    ]
    title = f"{name_of(entry)}, {whose(entry)}"
    return written(board, title, f"{entry.bundle.about.title} {ABOUT}".strip(), sections)


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
        interval("AUROC", [r.auroc[0] for r in results]),
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
        interval("AUROC", [row[3].auroc[row[1]] for row in rows]),
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
            interval("value", [(r["value"], r["low"], r["high"]) for _, r in those]),
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
    count, cost = weights(entry), cost_of(entry)
    return {
        "submitter": whose(entry),
        "key": entry.bundle.signer,
        "technique": run.technique,
        "published weights": run.weights,
        "trained on": run.source,
        "policy": run.policy,
        "protocol, as stated": run.protocol,
        "seeds": ", ".join(str(each.seed) for each in entry.runs),
        "weights": "" if math.isnan(count) else f"{count:,.0f}",
        "device hours, as stated": "" if math.isnan(cost) else f"{cost:.3f}",
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
            interval(
                name, [e.results[name].auroc[0] if name in e.results else empty for e in every]
            )
            for name in names
        ),
    )
    return Table("This entry's submissions, the newest first: it alone is ranked.", columns)
