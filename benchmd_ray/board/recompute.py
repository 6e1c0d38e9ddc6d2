"""Scores of a bundle, computed from its predictions and the official labels and nothing else.

What was computed of a bundle is kept in this machine's cache by the hashes of bundle, official
digests and code; a bundle's own statements are never taken for scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.board.bundle import RECORD, SCORES, Bundle, PackedRun, Part, Refused, read_part
from benchmd_ray.board.copies import sketch
from benchmd_ray.board.official import Official, OfficialDataset
from benchmd_ray.data.records import PERSON
from benchmd_ray.errors import count_of, shown
from benchmd_ray.evaluation.evaluation import Evaluation
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.report.scored import kept
from benchmd_ray.runs.predictions import CLASSIFIED, Predictions
from benchmd_ray.scores.metrics import METRICS, metric
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.scores.seeds import pooled_seeds
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
CODE = ("board/recompute.py", "board/copies.py", "board/official.py", "scores/seeds.py")
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
    sketches: Mapping[str, Floats]
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
                _require_records(table, dataset, part, place)
                shared = {"entry": entry, "dataset": name}
                if part.evaluation == CLASSIFIED.evaluation:
                    scored.append((run, dataset.units.scores(_scores(table, dataset, place))))
                else:
                    yield from (
                        shared | row for row in _others(table, dataset, part, resamples, place)
                    )
        if scored:
            yield from (
                {"entry": entry, "dataset": name} | r
                for r in _classified(scored, dataset, resamples)
            )


def _require_records(table: pa.Table, dataset: OfficialDataset, part: Part, place: str) -> None:
    """Refuse other records than the official ones, which are sorted by their hash."""
    records, whole = table[RECORD].combine_chunks(), dataset.records
    conditions = 1 if part.evaluation == CLASSIFIED.evaluation else len(records) // len(whole)
    if len(records) == conditions * len(whole) and all(
        records.slice(n * len(whole), len(whole)).equals(whole) for n in range(conditions)
    ):
        return
    stated, expected = records.to_pylist(), set(whole.to_pylist())
    distinct = set(stated)
    faults = {
        "missing": len(expected - distinct),
        "that the official catalog lacks": len(distinct - expected),
        "more than once": len(stated) - len(distinct) if conditions == 1 else 0,
    }
    named = [f"{count_of(n, 'record')} {how}" for how, n in faults.items() if n]
    what = ", ".join(named) or "its records in another order"
    raise Refused(f"{place}: {what}, of {count_of(len(whole), 'record')} that are scored")


def _scores(table: pa.Table, dataset: OfficialDataset, place: str) -> Floats:
    classes, column = dataset.about.task.classes, table[SCORES].combine_chunks()
    if column.type.list_size != len(classes):
        raise Refused(
            f"{place}: scores of {column.type.list_size} classes, expected {len(classes)}"
        )
    values = column.flatten()
    scores = values.to_numpy(zero_copy_only=False)
    if values.null_count or len(values) != len(column) * len(classes):
        raise Refused(f"{place}: scores are missing")
    if not ((scores >= 0) & (scores <= 1)).all():
        raise Refused(f"{place}: a score is NaN or outside 0 to 1")
    return cast(Floats, scores.reshape(len(column), -1))


def _classified(
    scored: Sequence[tuple[PackedRun, Floats]], dataset: OfficialDataset, resamples: int
) -> Iterator[dict[str, Any]]:
    targets, groups, kind = dataset.unit_targets, dataset.groups, dataset.about.task.kind
    counts, columns = support(targets, groups), 1 + targets.shape[1]
    bases = [counts.basis("auroc", column) for column in range(columns)]
    values = {
        name: np.array(
            [[v.mean, *v.per_class] for v in (metric(name, targets, s, kind) for _, s in scored)]
        )
        for name in METRICS
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
        yield _row("sketch", run.run, sketch(scores))


def _row(kind: str, name: str, values: Sequence[float] | Floats, text: str = "") -> dict[str, Any]:
    return {"kind": kind, "name": name, "values": list(map(float, values)), "text": text}


def _others(
    table: pa.Table, dataset: OfficialDataset, part: Part, resamples: int, place: str
) -> Iterator[dict[str, Any]]:
    """Score rows of another evaluation, by its own code, of a table with the official labels."""
    evaluation: Evaluation = evaluations()[part.evaluation]
    if len(table) > MOST_ROWS or evaluation.scores is None:
        raise Refused(f"{place}: more than {MOST_ROWS:,} rows")
    _scores(table, dataset, place)
    whole = Predictions(_labelled(table, dataset, part.split), _description(dataset, part))
    try:
        if fault := evaluation.form.fault(whole):
            raise Refused(f"{place}: {fault}")
        rows = evaluation.scores(whole, resamples)
    except (ArithmeticError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise Refused(f"{place}: it cannot be scored ({type(error).__name__})") from error
    names = ("use_case", "group", "class", "metric", "caution")
    for row in rows.to_dict("records"):
        ends = [float(row.get(name, np.nan)) for name in ("value", "low", "high")]
        texts = {name: row.get(name) for name in names}
        about = {name: text if isinstance(text, str) else "" for name, text in texts.items()}
        yield _row("row", part.evaluation, ends, json.dumps(about))


def _labelled(table: pa.Table, dataset: OfficialDataset, split: str) -> pa.Table:
    """A table of predictions with the official units, patients and labels."""
    times, rows = len(table) // len(dataset.records), len(table)
    classes = len(dataset.about.task.classes)
    targets = pa.array(np.tile(dataset.targets.ravel(), times))
    hexadecimal = [h.hex() for h in dataset.records.to_pylist()]
    columns = {
        "record_id": pa.array(hexadecimal * times),
        "unit_id": pa.array([*dataset.unit_names] * times),
        "group_id": pa.array([*dataset.patient_names] * times),
        "split": pa.array([split] * rows),
        SCORES: table[SCORES],
        "target": pa.FixedSizeListArray.from_arrays(targets, classes),
        **{name: pa.nulls(rows, kind) for name, kind in PERSON.items()},
    }
    columns |= {n: table[n] for n in table.column_names if n not in (RECORD, *columns)}
    return pa.table(columns)


def _description(dataset: OfficialDataset, part: Part) -> dict[str, str]:
    about = dataset.about
    return {
        **{name: getattr(about, name) for name in ("modality", "role", "policy", "catalog")},
        **{"evaluation": part.evaluation, "version": str(part.version), "dataset": about.name},
        **{"of": part.sha256, "also": "{}", "task": json.dumps(asdict(about.task))},
    }


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
                changes = {"sketches": {**result.sketches, row["name"]: values}}
            case "row":
                of = {"evaluation": row["name"], **json.loads(row["text"])}
                of |= dict(zip(("value", "low", "high"), values.tolist(), strict=True))
                changes = {"rows": [*result.rows, of]}
            case _:
                continue
        results[row["dataset"]] = replace(result, **changes)
    return results
