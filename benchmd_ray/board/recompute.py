"""Scores of a bundle, computed from its predictions and the official labels and nothing else.

What was computed of a bundle is kept in this machine's cache by the hashes of bundle, official
digests and code; a bundle's own statements are never taken for scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.board.bundle import Bundle, PackedRun, Part, Refused, read_part
from benchmd_ray.board.copies import Sketch, sketch
from benchmd_ray.board.official import Official, OfficialDataset
from benchmd_ray.board.scored_parts import others, require_records, scores_in
from benchmd_ray.errors import shown
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.report.scored import kept
from benchmd_ray.runs.predictions import CLASSIFIED
from benchmd_ray.scores.metrics import METRICS, metric
from benchmd_ray.scores.ranking import Ranked, rank
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.sums import mean_over_classes
from benchmd_ray.scores.support import support

Floats = npt.NDArray[np.float64]
RESAMPLES = 1000
MOST_ROWS = 2**24
"""Rows of all conditions of another evaluation."""
KEPT = pa.schema(
    [
        ("entry", pa.int32()),
        ("dataset", pa.string()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("values", pa.list_(pa.float64())),
        ("text", pa.string()),
    ]
)
"""Rows of a bundle's results: ``auroc`` (value, low and high of the mean, then of each class; the
text is the caution), ``metric``, ``draws`` (mean over seeds), ``sketch`` (of a run), ``row``
(value, low and high of another evaluation; the text says of what)."""
CODE = (
    "board/recompute.py",
    "board/scored_parts.py",
    "board/copies.py",
    "board/official.py",
    "scores/seeds.py",
)
"""Sources that `report.scored.kept` does not hash."""


@dataclass(frozen=True, eq=False)
class Result:
    """An entry on a dataset."""

    auroc: Floats
    """(1 + classes, 3): value, low and high of the mean over classes, then of each class."""
    caution: str
    metrics: Mapping[str, Floats]
    """By metric: (1 + classes,), mean over seeds."""
    draws: Floats
    """(resamples,): AUROC, mean over seeds and classes; empty where there is no interval."""
    sketches: Mapping[str, Sketch]
    """By run."""
    rows: Sequence[Mapping[str, Any]]
    """Score rows of other evaluations."""

    @property
    def value(self) -> float:
        return float(self.auroc[0, 0])


@dataclass(frozen=True, eq=False)
class Entry:
    """Runs of a bundle that differ only by seed, with their results by dataset."""

    bundle: Bundle
    runs: tuple[PackedRun, ...]
    results: Mapping[str, Result]

    @property
    def first(self) -> PackedRun:
        return self.runs[0]


EntryKey = tuple[str, ...]


def entries(
    bundle: Bundle, official: Official, resamples: int = RESAMPLES, *, fresh: bool = False
) -> list[Entry]:
    """The entries of a bundle; with ``fresh`` nothing that was kept is used.

    Raises:
        Refused: A part is of another board, dataset, split or evaluation, or its records are not
            those of the official catalog, or its scores are not finite.
    """
    about = bundle.about
    if about.board != official.board:
        raise Refused("it was packed for another board, or with another key")
    groups: dict[EntryKey, list[PackedRun]] = {}
    for run in about.runs:
        groups.setdefault(key_of(run), []).append(run)
    members = [tuple(sorted(runs, key=lambda run: run.seed)) for runs in groups.values()]
    for _, part in about.parts:
        _require_known(part, official)
    how = {"bundle": bundle.id, "official": official.sha256, "n": resamples, "code": _code()}

    def compute() -> pa.Table:
        rows = [
            r for n, runs in enumerate(members) for r in _rows(bundle, n, runs, official, resamples)
        ]
        return pa.Table.from_pylist(rows, KEPT)

    table = compute() if fresh else kept({}, how, compute, lambda t: t.schema.equals(KEPT))
    return [
        Entry(bundle, runs, _results(table.filter(np.equal(table["entry"], number))))
        for number, runs in enumerate(members)
    ]


def key_of(run: PackedRun) -> EntryKey:
    """What an entry is named by within a submitter's bundles."""
    return run.row, run.protocol, run.setting, run.technique, run.source, run.modality, run.policy


@cache
def _code() -> str:
    package, whole = resources.files("benchmd_ray"), sha256()
    for name in CODE:
        whole.update(package.joinpath(name).read_bytes())
    return whole.hexdigest()


def _require_known(part: Part, official: Official) -> None:
    known = official.datasets.get(part.dataset)
    if known is None or known.about.split != part.split:
        have = ", ".join(f"{d.about.name} ({d.about.split})" for d in official.datasets.values())
        raise Refused(
            f"it has predictions of {shown(part.dataset)} ({shown(part.split)}), and this board is "
            f"of {have}: pack with --dataset"
        )
    evaluation = evaluations().get(part.evaluation)
    if evaluation is None:
        raise Refused(f"no benchmark here has its evaluation {shown(part.evaluation)}")
    if part.version != evaluation.form.version:
        raise Refused(
            f"its predictions are of version {part.version} of {part.evaluation}, which is now "
            f"{evaluation.form.version}: evaluate its runs again"
        )


def _rows(
    bundle: Bundle, entry: int, runs: Sequence[PackedRun], official: Official, resamples: int
) -> Iterator[dict[str, Any]]:
    """Rows of `KEPT` of an entry; files are read one at a time."""
    numbers = {id(part): number for number, (_, part) in enumerate(bundle.about.parts)}
    for name, dataset in official.datasets.items():
        scored: list[tuple[PackedRun, Floats]] = []
        for run in runs:
            for part in (part for part in run.predictions if part.dataset == name):
                table = read_part(bundle, numbers[id(part)])
                place = f"{run.run}, {part.evaluation} of {name}"
                require_records(table, dataset, part, place)
                shared = {"entry": entry, "dataset": name}
                if part.evaluation == CLASSIFIED.evaluation:
                    scored.append((run, dataset.units.scores(scores_in(table, dataset, place))))
                else:
                    rows = others(table, dataset, part, resamples, place)
                    yield from (shared | {"kind": "row", **row} for row in rows)
        if scored:
            yield from (
                {"entry": entry, "dataset": name} | r
                for r in _classified(scored, dataset, resamples)
            )


def _classified(
    scored: Sequence[tuple[PackedRun, Floats]], dataset: OfficialDataset, resamples: int
) -> Iterator[dict[str, Any]]:
    targets, groups, kind = dataset.unit_targets, dataset.groups, dataset.about.task.kind
    counts, columns = support(targets, groups), 1 + targets.shape[1]
    bases = [counts.basis("auroc", column) for column in range(columns)]
    values = {
        name: np.array([_metric(name, dataset, scores) for _, scores in scored]) for name in METRICS
    }
    draws = [np.empty((0, columns))] * len(scored)
    if not all(basis.no_interval for basis in bases):
        draws = [
            resampled("auroc", targets, scores, groups, kind, resamples=resamples)
            for _, scores in scored
        ]
    pooled = [
        pooled_seeds(values["auroc"][:, n].tolist(), [drawn[:, n] for drawn in draws], basis)
        for n, basis in enumerate(bases)
    ]
    ends = [number for p in pooled for number in (p.mean, p.low, p.high)]
    yield _row("auroc", "", ends, pooled[0].caution)
    for name, seeds in values.items():
        yield _row("metric", name, seeds.mean(axis=0))
    yield _row("draws", "", np.mean([drawn[:, 0] for drawn in draws], axis=0))
    for run, scores in scored:
        yield _row("sketch", run.run, sketch(scores).tolist())


def _metric(name: str, dataset: OfficialDataset, scores: Floats) -> Floats:
    """A metric of one model, (1 + classes,): the mean over classes first."""
    how, targets = METRICS[name].how, dataset.unit_targets
    if name == "auprc" and isinstance(how, Ranked):  # scikit-learn's checks take most of its time
        once = np.ones((1, dataset.patients), np.int64)
        ranked = (rank(*pair, dataset.groups) for pair in zip(targets.T, scores.T, strict=True))
        per_class = np.concatenate([how.weighted(ranking, once) for ranking in ranked])
        return np.concatenate((mean_over_classes(per_class[None]), per_class))
    whole = metric(name, targets, scores, dataset.about.task.kind)
    return np.array([whole.mean, *whole.per_class])


def _row(kind: str, name: str, values: Sequence[float] | Floats, text: str = "") -> dict[str, Any]:
    return {"kind": kind, "name": name, "values": list(map(float, values)), "text": text}


def _results(table: pa.Table) -> dict[str, Result]:
    rows = table.to_pylist()
    results: dict[str, Result] = {}
    for row in rows:
        if row["kind"] == "auroc":
            ends = np.array(row["values"]).reshape(-1, 3)
            results[row["dataset"]] = Result(ends, row["text"], {}, np.empty(0), {}, [])
    for row in rows:
        if row["dataset"] not in results:
            continue
        result, values = results[row["dataset"]], np.array(row["values"], np.float64)
        match row["kind"]:
            case "metric":
                changes: dict[str, Any] = {"metrics": {**result.metrics, row["name"]: values}}
            case "draws":
                changes = {"draws": values}
            case "sketch":
                changes = {"sketches": {**result.sketches, row["name"]: values.astype(np.float32)}}
            case "row":
                of = {"evaluation": row["name"], **json.loads(row["text"])}
                of |= dict(zip(("value", "low", "high"), values.tolist(), strict=True))
                changes = {"rows": [*result.rows, of]}
            case _:
                continue
        results[row["dataset"]] = replace(result, **changes)
    return results
