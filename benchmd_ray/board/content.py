"""A board as data: ``board.json`` and ``board.csv``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from benchmd_ray.board.build import Board, Contest, alike_text, entry_id, whose
from benchmd_ray.board.ranking import Placed, cost_of
from benchmd_ray.board.recompute import Entry
from benchmd_ray.report.frames import with_mode
from benchmd_ray.report.table import text_of

FORMAT = 1


def name_of(entry: Entry) -> str:
    """``MAE, linear``."""
    return text_of(with_mode(entry.first.row, entry.first.setting))


def scores_by_entry(board: Board) -> dict[str, dict[str, tuple[Contest, Placed]]]:
    """Where each entry is placed, by `entry_id` and dataset."""
    result: dict[str, dict[str, tuple[Contest, Placed]]] = {}
    for contest, members in board.contests.items():
        for place in members:
            result.setdefault(entry_id(place.entry), {})[contest[0]] = contest, place
    return result


def content(board: Board) -> dict[str, Any]:
    """``board.json``: all that the pages show, with all digits; what is not known is null."""
    scores = scores_by_entry(board)
    whole = {
        "format": FORMAT,
        "title": board.title,
        "resamples": board.resamples,
        "board": board.official.board,
        "official": board.official.sha256,
        "datasets": [
            {
                **{
                    n: getattr(d.about, n)
                    for n in ("name", "split", "title", "modality", "catalog")
                },
                "classes": list(d.about.task.classes),
                "records": len(d.records),
                "patients": d.patients,
            }
            for d in board.official.datasets.values()
        ],
        "entries": [
            _entry(board, entry, scores.get(entry_id(entry), {})) for entry in board.entries
        ],
        "refused": [vars(each) for each in board.refused],
        "bundles": sorted(bundle.id for bundle in board.bundles),
    }
    return dict(_finite(whole))


def _entry(
    board: Board, entry: Entry, scores: Mapping[str, tuple[Contest, Placed]]
) -> dict[str, Any]:
    run, name = entry.first, entry_id(entry)
    return {
        "id": name,
        "name": name_of(entry),
        "submitter": entry.bundle.about.submitter,
        "key": entry.bundle.signer,
        **{
            n: getattr(run, n) for n in ("protocol", "technique", "setting", "source", "parameters")
        },
        "seeds": [each.seed for each in entry.runs],
        "device_hours": cost_of(entry),
        "bundle": entry.bundle.id,
        "made": entry.bundle.about.made,
        "submissions": 1 + len(board.earlier.get(name, ())),
        "scores": [
            _score(board, entry, dataset, *where) for dataset, where in sorted(scores.items())
        ],
    }


def _score(
    board: Board, entry: Entry, dataset: str, contest: Contest, place: Placed
) -> dict[str, Any]:
    result, classes = entry.results[dataset], board.official.datasets[dataset].about.task.classes
    behind, behind_low, behind_high = place.behind
    value, low, high = result.auroc[0].tolist()
    return {
        "dataset": dataset,
        "labels": contest[1],
        "division": contest[2],
        "auroc": value,
        "low": low,
        "high": high,
        "caution": result.caution,
        "group": place.group,
        "rank": place.rank,
        "rank_low": place.low,
        "rank_high": place.high,
        "behind": behind,
        "behind_low": behind_low,
        "behind_high": behind_high,
        "on_front": place.on_front,
        "metrics": {name: float(values[0]) for name, values in result.metrics.items()},
        "classes": dict(zip(classes, result.auroc[1:].tolist(), strict=True)),
        "other": [dict(row) for row in result.rows],
        "alike": [
            {"entry": entry_id(other), "correlation": correlation}
            for other, correlation in board.alike.get((entry_id(entry), dataset), ())
        ],
    }


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def frame(whole: Mapping[str, Any]) -> pd.DataFrame:
    """``board.csv``: a row for each entry and dataset of `content`."""
    return pd.DataFrame(list(_rows(whole)))


def _rows(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for entry in whole["entries"]:
        about = {name: value for name, value in entry.items() if name != "scores"}
        about["seeds"] = " ".join(map(str, entry["seeds"]))
        for score in entry["scores"]:
            left = ("metrics", "classes", "other", "alike")
            row = {name: value for name, value in score.items() if name not in left}
            alike = " ".join(each["entry"] for each in score["alike"])
            yield {**about, **row, **score["metrics"], "alike": alike}


def warnings_of(board: Board, entry: Entry) -> Iterator[str]:
    """What a reader must know of an entry."""
    for dataset in entry.results:
        for other, correlation in board.alike.get((entry_id(entry), dataset), ()):
            yield (
                f"Copy, or the same command: on {dataset} it has {alike_text(correlation)} "
                f"{name_of(other)} of {whose(other)}."
            )
        for part in {p for run in entry.runs for p in run.predictions if p.dataset == dataset}:
            official = board.official.datasets[dataset].about
            if part.catalog != official.catalog:
                yield (
                    f"Catalog: {dataset} was scored in another catalog than the official one, with "
                    "the same records; their signals may differ."
                )
        if seen := {
            p.contamination
            for r in entry.runs
            for p in r.predictions
            if p.dataset == dataset and p.contamination
        }:
            yield f"Contamination, as stated: {dataset}: {'; '.join(sorted(seen))}."
    for other in board.namesakes(entry):
        yield f"Name: {whose(other)} has the same, by another key or none: who is who is unknown."
    if not entry.bundle.signer:
        yield "Not signed: anybody could have submitted it by this name."
