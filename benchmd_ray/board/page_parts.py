"""What the pages of a site share: names of pages, words, columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from benchmd_ray.board.build import Board, entry_id
from benchmd_ray.board.recompute import Entry
from benchmd_ray.errors import count_of
from benchmd_ray.files.atomic import slug
from benchmd_ray.report.document import (
    Section,
    document,
)
from benchmd_ray.report.table import Column

INDEX = "index.html"
ABOUT = (
    "No score on this board was submitted: submitters send predictions, and every score was "
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
        "(the simultaneous 95 % interval of the difference on the same patients includes 0, by the "
        "largest studentised difference of all pairs of the table, or there are too few patients); "
        "group 2 the highest of the others and all that are not significantly below that, and so "
        "on. Entries of a group are not told apart by these patients, whatever their order. The "
        "tests compare the submitted models, each the mean of its seeds; another training may give "
        "other models.",
    ),
    (
        "Rank",
        "1 is the highest AUROC. Its interval is from 1 plus the number of entries that are "
        "significantly better to all but the number that are significantly worse.",
    ),
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
    "others than the official ones, plain copies of another submitter's predictions, altered files "
    "and signatures.",
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


def written(board: Board, title: str, lead: str, sections: Sequence[Section]) -> str:
    footer = (
        f"Written by benchmd board build: {count_of(len(board.bundles), 'bundle')}, "
        f"{board.resamples:,} resamples of the patients. board.json and board.csv have all digits."
    )
    return document(title, lead, sections, footer, unfolded=len(sections))


def stated(facts: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    yield from ((name, str(value)) for name, value in facts.items() if value not in ("", None))


def home() -> Markup:
    return Markup("<p>{}</p>\n").format(link(INDEX, "All datasets and entries"))


def interval(title: str, values: Sequence[Any]) -> Column:
    value, low, high = ([float(row[n]) for row in values] for n in range(3))
    return Column(title, value, "interval", low=low, high=high)


def weights(entry: Entry) -> float:
    counts = [run.parameters for run in entry.runs]
    return float("nan") if None in counts else float(max(n for n in counts if n is not None))


def flag(board: Board, entry: Entry) -> str:
    copied = any(board.alike.get((entry_id(entry), dataset)) for dataset in entry.results)
    if copied or board.namesakes(entry):
        return "copy?" if copied else "shared name"
    return "" if entry.bundle.signer else "not signed"
