"""A board as data: ``board.json``, of which pages and ``board.csv`` are made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd

from benchmd_ray.board.build import Board, alike_text, entry_id, whose
from benchmd_ray.board.official import OfficialDataset
from benchmd_ray.board.ranking import CONTAMINATED, Contest, Placed, cost_of, untested
from benchmd_ray.board.recompute import Entry, Floats
from benchmd_ray.board.rerun import command, settings_of
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.files.atomic import slug
from benchmd_ray.report.frames import with_mode
from benchmd_ray.report.table import text_of

FORMAT = 1
FLAGS = ("copy?", "shared name", "fewer datasets")
"""Of entries that an organiser should look at."""
MOST_NAMED = 10
"""Others of the same name that an entry lists."""
Row = dict[str, Any]
Places = Mapping[tuple[str, str], tuple[Contest, Placed]]
"""Where entries are placed, by `entry_id` and dataset."""


def content(board: Board) -> Row:
    """``board.json``: all that the pages show, with all digits; what is not known is null."""
    places = {
        (entry_id(place.entry), contest[0]): (contest, place)
        for contest, members in board.contests.items()
        for place in members
    }
    whole = {
        "format": FORMAT,
        "title": board.title,
        "resamples": board.resamples,
        "board": board.official.board,
        "official": board.official.sha256,
        "datasets": [
            _dataset(board, number, dataset)
            for number, dataset in enumerate(board.official.datasets.values())
        ],
        "entries": [_entry(board, entry, places) for entry in board.entries],
        "refused": [vars(each) for each in board.refused],
    }
    return dict(_finite(whole))


def _dataset(board: Board, number: int, dataset: OfficialDataset) -> Row:
    about = dataset.about
    contests = {of[1:]: those for of, those in board.contests.items() if of[0] == about.name}
    placed = [(of, place) for (_, of), those in contests.items() for place in those]
    values = [p.entry.results[about.name].value for of, p in placed if of != CONTAMINATED]
    return {
        **{n: value for n, value in vars(about).items() if n not in ("task", "sets")},
        "sets_out_of_distribution": dataset.detected and dataset.detected.counts,
        "untested": (why := untested(dataset.basis)),
        "page": f"dataset-{number}-{slug(about.name)[:60]}.html",
        "task": about.task.kind,
        "classes": list(about.task.classes),
        "records": len(dataset.records),
        "patients": dataset.patients,
        "entries": len(placed),
        "first_group": None if why else sum(place.group == 1 for _, place in placed),
        "highest_auroc": max(values, default=math.nan),
        "tables": [
            {"labels": labels, "division": of, "entries": [entry_id(p.entry) for p in those]}
            for (labels, of), those in contests.items()
        ],
    }


def name_of(entry: Entry) -> str:
    """``MAE, linear``."""
    return text_of(with_mode(entry.first.row, entry.first.setting))


def _entry(board: Board, entry: Entry, places: Places) -> Row:
    run, bundle, name = entry.first, entry.bundle, entry_id(entry)
    copied = any(board.alike.get((name, dataset)) for dataset in entry.results)
    flags = (copied, board.namesakes(entry), _dropped(board, entry))
    flag = next((flag for flag, holds in zip(FLAGS, flags, strict=True) if holds), "")
    counts = [each.parameters for each in entry.runs]
    stated = {n: v for n, v in vars(run).items() if n not in ("run", "seed", "predictions")}
    return {
        **stated,
        "id": name,
        "name": name_of(entry),
        "page": f"entry-{name}.html",
        "submitter": bundle.about.submitter,
        "key": bundle.signer,
        "whose": whose(entry),
        "flag": flag or ("" if bundle.signer else "not signed"),
        "hardware": [*dict.fromkeys(text for each in entry.runs for text in each.hardware)],
        "parameters": None if None in counts else max(n for n in counts if n is not None),
        "device_hours": cost_of(entry),
        "seeds": [each.seed for each in entry.runs],
        **{n: getattr(bundle.about, n) for n in ("title", "licence", "made")},
        "bundle": bundle.id,
        "bytes": bundle.bytes,
        "submissions": [_submission(e) for e in (entry, *board.earlier.get(name, ()))],
        "notes": [*_notes(board, entry)],
        "command": command(entry, board.official),
        "settings": settings_of(run),
        "scores": [
            _score(board, entry, dataset, *places[name, dataset])
            for dataset in board.official.datasets
            if dataset in entry.results
        ],
    }


def _submission(entry: Entry) -> Row:
    aurocs = {name: _ends(result.auroc[0]) for name, result in sorted(entry.results.items())}
    return {"made": entry.bundle.about.made, "bundle": entry.bundle.id, "scores": aurocs}


def _ends(row: Floats) -> Row:
    return dict(zip(("auroc", "auroc_low", "auroc_high"), row.tolist(), strict=True))


def _score(board: Board, entry: Entry, dataset: str, contest: Contest, place: Placed) -> Row:
    result, about = entry.results[dataset], board.official.datasets[dataset].about
    metrics = {name: values.tolist() for name, values in result.metrics.items()}
    behind = dict(zip(("behind", "behind_low", "behind_high"), place.behind, strict=True))
    return {
        "dataset": dataset,
        "seeds": [r.seed for r in entry.runs if dataset in {p.dataset for p in r.predictions}],
        "split": about.split,
        "provenance": about.provenance,
        "labels": contest[1],
        "division": contest[2],
        **_ends(result.auroc[0]),
        "caution": result.caution,
        "group": None if untested(board.official.datasets[dataset].basis) else place.group,
        **{"rank": place.rank, "rank_low": place.low, "rank_high": place.high},
        **behind,
        "on_front": place.on_front,
        **{name: values[0] for name, values in metrics.items()},
        "classes": [
            {"class": title, **{name: values[n] for name, values in metrics.items()}}
            | _ends(result.auroc[n])
            for n, title in enumerate(about.task.classes, start=1)
        ],
        "conditions": [row for row in result.others if "condition" in row],
        "subgroups": [row for row in result.others if "subgroup" in row],
        "detectors": [
            {**row, "detector": _title(about.detection, name), "detector_name": name}
            for row in result.others
            if (name := row.get("detector"))
        ],
        "alike": [
            {"entry": entry_id(other), "correlation": correlation}
            for other, correlation in board.alike.get((entry_id(entry), dataset), ())
        ],
    }


@cache
def _title(evaluation: str, name: str) -> str:
    """Title of a detector."""
    detection = evaluations()[evaluation].detection
    return text_of(detection.title(name)) if detection else name


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def frame(whole: Row) -> pd.DataFrame:
    """``board.csv``: a row for each entry and dataset, of what is a single value."""
    rows = []
    for entry in whole["entries"]:
        for score in entry["scores"]:
            seeds, submissions = " ".join(map(str, score["seeds"])), len(entry["submissions"])
            alike = " ".join(other["entry"] for other in score["alike"])
            row = {"seeds": seeds, "submissions": submissions, "alike": alike}
            single = {n: v for n, v in (entry | score).items() if not isinstance(v, dict | list)}
            rows.append(single | row)
    return pd.DataFrame(rows).drop(columns=["page", "whose", "command"])


def _dropped(board: Board, entry: Entry) -> list[str]:
    """Datasets of earlier submissions of an entry that the newest one leaves out."""
    earlier = board.earlier.get(entry_id(entry), ())
    return sorted({name for each in earlier for name in each.results} - {*entry.results})


def _notes(board: Board, entry: Entry) -> Iterator[str]:
    """What a reader must know of an entry."""
    for dataset in entry.results:
        for other, correlation in board.alike.get((entry_id(entry), dataset), ()):
            yield (
                f"Copy, or the same command: on {dataset} it has {alike_text(correlation)} "
                f"{name_of(other)} of {whose(other)}."
            )
        parts = [*entry.parts(dataset)]
        if {part.catalog for part in parts} - {board.official.datasets[dataset].about.catalog}:
            yield (
                f"Catalog: {dataset} was scored in another catalog than the official one, with "
                "the same records; their signals may differ."
            )
        if seen := {part.contamination for part in parts} - {""}:
            yield f"Contamination, as stated: {dataset}: {'; '.join(sorted(seen))}."
    if others := [whose(other) for other in board.namesakes(entry)]:
        first, more = ", ".join(others[:MOST_NAMED]), len(others) - MOST_NAMED
        listed = first if more <= 0 else f"{first} and {more:,} more"
        yield f"Name: the same, by another key or none, has {listed}: who is who is unknown."
    if dropped := _dropped(board, entry):
        yield (
            f"Fewer datasets: the newest submission stands for the whole entry, and leaves out "
            f"{', '.join(dropped)}, which an earlier one has."
        )
    if any(run.device_hours is None for run in entry.runs):
        yield (
            "Pretraining unknown: its settings and device hours are not stated, so the command "
            "below may run another one."
        )
    if not entry.bundle.signer:
        yield "Not signed: anybody could have submitted it by this name."
