"""Scores of a bundle, computed from its predictions and the official labels and nothing else.

What was computed of a bundle is kept in this machine's cache by the hashes of bundle, official
digests and code; a bundle's own statements are never taken for scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import benchmd_ray
from benchmd_ray.board.bundle import Bundle, PackedRun, Part, Refused, read_part
from benchmd_ray.board.copies import WIDTH, sketch
from benchmd_ray.board.official import Official, OfficialDataset
from benchmd_ray.errors import count_of, shown
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.extensions.parts import package_versions
from benchmd_ray.report.scored import kept
from benchmd_ray.scores.metrics import METRICS, metric
from benchmd_ray.scores.ranking import Ranked, rank
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.subgroups import by_subgroup
from benchmd_ray.scores.sums import mean_over_classes
from benchmd_ray.scores.support import support

Floats = npt.NDArray[np.float64]
RESAMPLES, MOST_RESAMPLES = 1000, 10_000
KEPT = pa.schema(
    [
        ("entry", pa.int32()),
        ("dataset", pa.string()),
        ("auroc", pa.list_(pa.float64())),
        ("caution", pa.string()),
        ("metrics", pa.list_(pa.float64())),
        ("draws", pa.list_(pa.float64())),
        ("sketches", pa.list_(pa.float32())),
        ("others", pa.string()),
    ]
)
"""A row for each entry and dataset: the fields of `Result`, flattened; ``others`` are JSON."""


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
    sketches: npt.NDArray[np.float32]
    """(runs, width), see `copies`."""
    others: Sequence[Mapping[str, Any]]
    """AUROC under conditions (``evaluation``, ``condition``, ``seeds``), of subgroups
    (``variable``, ``subgroup``, ``patients``) and of detectors (``detector``, ``use_case``,
    ``sets``, ``seeds``, ``caution``)."""

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

    def parts(self, dataset: str) -> Iterator[Part]:
        return (part for run in self.runs for part in run.predictions if part.dataset == dataset)


class _File(NamedTuple):
    """A file of predictions, by its number in the bundle."""

    number: int
    run: PackedRun
    part: Part

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.run.run}, {self.part.evaluation} of {self.part.dataset}"

    @property
    def detects(self) -> bool:
        """Whether its scores are a detector's, not of classes."""
        return evaluations()[self.part.evaluation].detection is not None


def entries(
    bundle: Bundle, official: Official, resamples: int = RESAMPLES, *, fresh: bool = False
) -> list[Entry]:
    """The entries of a bundle; with ``fresh`` nothing that was kept is used.

    Raises:
        Refused: A part is of another board, dataset, split or evaluation, its records are not those
            of the official catalog, or its scores are not finite or those of another seed.
    """
    if bundle.about.board != official.board:
        raise Refused("it was packed for another board, or with another key")
    members: dict[tuple[str, ...], list[_File]] = {}
    for number, (run, part) in enumerate(bundle.about.parts):
        _require_known(part, official)
        members.setdefault(run.entry, []).append(_File(number, run, part))

    def compute() -> pa.Table:
        rows = [
            {"entry": number, "dataset": name, **_result(bundle, of, dataset, resamples)}
            for number, files in enumerate(members.values())
            for name, dataset in official.datasets.items()
            if (of := [file for file in files if file.part.dataset == name])
        ]
        return pa.Table.from_pylist(rows, KEPT)

    about = {"bundle": bundle.id, "official": official.sha256, "resamples": resamples}
    how = about | {"code": _code(), "packages": package_versions()}
    table = compute() if fresh else kept(how, compute, lambda t: t.schema.equals(KEPT))
    results: list[dict[str, Result]] = [{} for _ in members]
    for at in range(len(table)):
        row = {name: table[name][at] for name in KEPT.names}
        results[row["entry"].as_py()][row["dataset"].as_py()] = _read(row)
    runs = [{file.run.seed: file.run for file in files} for files in members.values()]
    return [
        Entry(bundle, tuple(by_seed[seed] for seed in sorted(by_seed)), of)
        for by_seed, of in zip(runs, results, strict=True)
    ]


@cache
def _code() -> str:
    """Digest of the package's sources: all of them, as what is computed depends on many."""
    package, whole = Path(benchmd_ray.__file__).parent, sha256()
    for path in sorted(package.rglob("*.py")):
        whole.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


def _require_known(part: Part, official: Official) -> None:
    known, evaluation = official.datasets.get(part.dataset), evaluations().get(part.evaluation)
    if known is None or part.split not in (known.about.split, ""):
        have = ", ".join(f"{d.about.name} ({d.about.split})" for d in official.datasets.values())
        raise Refused(
            f"it has predictions of {shown(part.dataset)} ({shown(part.split)}), and this board is "
            f"of {have}: pack with --dataset"
        )
    if evaluation is None:
        raise Refused(f"no benchmark here has its evaluation {shown(part.evaluation)}")
    its = f"its {part.evaluation} of {part.dataset}"
    if evaluation.detection and known.about.detection != part.evaluation:
        raise Refused(f"{its} is not scored on this board: pack without --detection")
    if bool(part.split) == bool(evaluation.detection):
        raise Refused(f"{its} states a wrong split")
    if bool(part.detectors) != bool(evaluation.detection):
        raise Refused(f"{its} {'has' if part.detectors else 'lacks'} names of detectors")
    if len({*part.detectors}) < len(part.detectors):
        raise Refused(f"{its} names a detector twice")
    if part.detectors and part.condition:
        raise Refused(f"{its} states a condition of detectors")
    if not (evaluation.detection or evaluation.classifies(known.about.task)):
        raise Refused(f"{its} is not scored on boards: it does not classify the same records")
    if part.version != evaluation.form.version:
        raise Refused(
            f"its predictions are of version {part.version} of {part.evaluation}, which is now "
            f"{evaluation.form.version}: evaluate its runs again"
        )


def _result(
    bundle: Bundle, files: Sequence[_File], dataset: OfficialDataset, resamples: int
) -> dict[str, Any]:
    """The columns of `KEPT` of an entry on a dataset.

    Of other conditions one is read at a time, and so are all detectors of all seeds.
    """
    conditions: dict[tuple[str, str], list[_File]] = {}
    for file in files:
        conditions.setdefault((file.part.evaluation, file.part.condition), []).append(file)
    main = conditions.pop(next(key for key, of in conditions.items() if of[0].part.is_main))
    scores = [_scores(bundle, file, dataset) for file in main]
    _require_different(scores, main)
    ends, caution, draws = _auroc(scores, dataset, resamples)
    others = [*_subgroups(scores, dataset, resamples)]
    for (evaluation, condition), of in conditions.items():
        if of[0].detects:
            others += _detected(bundle, of, dataset, resamples)
            continue
        under, *_ = _auroc([_scores(bundle, file, dataset) for file in of], dataset, resamples)
        values = dict(zip(("auroc", "auroc_low", "auroc_high"), under[0], strict=True))
        about = {"evaluation": evaluation, "condition": condition, "seeds": _seeds(of)}
        others.append(about | values)
    return {
        "auroc": np.ravel(ends),
        "caution": caution,
        "metrics": np.concatenate([_metric(name, scores, dataset) for name in METRICS]),
        "draws": draws,
        "sketches": np.concatenate([sketch(each) for each in scores]),
        "others": json.dumps(others),
    }


def _seeds(files: Sequence[_File]) -> list[int]:
    return sorted(file.run.seed for file in files)


def _read(row: Mapping[str, pa.Scalar]) -> Result:
    arrays = {name: row[name].values.to_numpy() for name in ("auroc", "metrics", "draws")}
    metrics = arrays["metrics"].reshape(len(METRICS), -1)
    sketches = row["sketches"].values.to_numpy().reshape(-1, 2 * WIDTH)
    return Result(
        arrays["auroc"].reshape(-1, 3),
        row["caution"].as_py(),
        dict(zip(METRICS, metrics, strict=True)),
        arrays["draws"],
        sketches,
        json.loads(row["others"].as_py()),
    )


def _scores(bundle: Bundle, file: _File, dataset: OfficialDataset) -> Floats:
    """Scores of each unit, (units, classes), of exactly the official records."""
    scores = _rows(bundle, file, dataset.records, len(dataset.about.task.classes))
    if not ((scores >= 0) & (scores <= 1)).all():
        raise Refused(f"{file.place}: a score is NaN or outside 0 to 1")
    return dataset.units.scores(scores)


def _detected(
    bundle: Bundle, files: Sequence[_File], dataset: OfficialDataset, resamples: int
) -> Iterator[dict[str, Any]]:
    """AUROC of detectors by use-case: `Result.others`."""
    detected = dataset.detected
    assert detected is not None  # see `_require_known`
    try:
        read = [_rows(bundle, f, detected.records, len(f.part.detectors)) for f in files]
    except Refused as error:
        raise Refused(
            f"{error}: evaluate with the organiser's --catalog and --also, or pack without "
            "--detection"
        ) from error
    columns: dict[str, list[tuple[_File, Floats]]] = {}
    for file, scores in zip(files, read, strict=True):
        if not np.isfinite(scores).all():
            raise Refused(f"{file.place}: a score is NaN or infinite")
        for detector, column in zip(file.part.detectors, scores.T, strict=True):
            columns.setdefault(detector, []).append((file, column))
    for detector, pairs in columns.items():
        about = {"detector": detector, "seeds": _seeds([file for file, _ in pairs])}
        for row in detected.results([column for _, column in pairs], resamples):
            yield about | row


def _rows(bundle: Bundle, file: _File, expected: Sequence[bytes], columns: int) -> Floats:
    """Scores of exactly these records, (records, columns)."""
    rows = read_part(bundle, file.number, len(expected), columns)
    if rows["record"].tobytes() != b"".join(expected):
        stated = rows["record"].tolist()
        faults = {
            "missing": len({*expected} - {*stated}),
            "that the official catalog lacks": len({*stated} - {*expected}),
            "more than once": len(stated) - len({*stated}),
        }
        named = [f"{count_of(n, 'record')} {how}" for how, n in faults.items() if n]
        what = ", ".join(named) or "its records in another order"
        raise Refused(
            f"{file.place}: {what}, of {count_of(len(expected), 'record')} that are scored"
        )
    return np.asarray(rows["scores"])


def _require_different(scores: Sequence[Floats], files: Sequence[_File]) -> None:
    seeds: dict[bytes, int] = {}
    for each, file in zip(scores, files, strict=True):
        seed = seeds.setdefault(sha256(each.tobytes()).digest(), file.run.seed)
        if seed != file.run.seed:
            raise Refused(
                f"seeds {seed} and {file.run.seed} of {shown(file.run.row)} have the same "
                f"predictions of {file.part.dataset}: submit one of them"
            )


def _auroc(
    scores: Sequence[Floats], dataset: OfficialDataset, resamples: int
) -> tuple[list[tuple[float, float, float]], str, Floats]:
    """AUROC over seeds with its interval for each column, the caution and the draws: `Result`."""
    targets, groups, kind = dataset.unit_targets, dataset.groups, dataset.about.task.kind
    counts, columns = support(targets, groups), range(1 + targets.shape[1])
    bases = [counts.basis("auroc", column) for column in columns]
    values = [_metric("auroc", [each], dataset) for each in scores]
    draws = [np.empty((0, len(columns)))] * len(scores)
    if not all(basis.no_interval for basis in bases):
        draws = [
            resampled("auroc", targets, each, groups, kind, resamples=resamples) for each in scores
        ]
    pooled = [
        pooled_seeds(
            [value[column] for value in values],
            [drawn[:, column] for drawn in draws],
            basis,
        )
        for column, basis in zip(columns, bases, strict=True)
    ]
    ends = [(p.mean, p.low, p.high) for p in pooled]
    return ends, pooled[0].caution, np.mean([drawn[:, 0] for drawn in draws], axis=0)


def _metric(name: str, scores: Sequence[Floats], dataset: OfficialDataset) -> Floats:
    """Mean over seeds, (1 + classes,): the mean over classes first."""
    targets, how = dataset.unit_targets, METRICS[name].how
    once = np.ones((1, dataset.patients), np.int64)
    values = []
    for each in scores:
        if isinstance(how, Ranked):  # scikit-learn's checks would take most of the time
            pairs = zip(targets.T, each.T, strict=True)
            per_class = [how.weighted(rank(*pair, dataset.groups), once)[0] for pair in pairs]
            values.append([float(mean_over_classes(np.array(per_class))), *per_class])
        else:
            whole = metric(name, targets, each, dataset.about.task.kind)
            values.append([whole.mean, *whole.per_class])
    return np.asarray(np.mean(values, axis=0))


def _subgroups(
    scores: Sequence[Floats], dataset: OfficialDataset, resamples: int
) -> Iterator[dict[str, Any]]:
    """AUROC of the groups of patients that are large enough, as in reports."""
    targets, groups, kind = dataset.unit_targets, dataset.groups, dataset.about.task.kind
    for variable, labels in dataset.subgroups.items():
        of_units = [labels[first] for first in dataset.units.first]
        about = by_subgroup(
            targets, scores, groups, of_units, kind, variable=variable, resamples=resamples
        )
        for group in about.groups:
            yield {
                **{"variable": variable, "subgroup": group.name, "patients": group.patients},
                **{"auroc": group.value, "auroc_low": group.low, "auroc_high": group.high},
            }
