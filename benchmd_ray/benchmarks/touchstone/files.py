"""A score run: cases of two folders, one Ray task each; an interrupted run resumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmd_ray.benchmarks.touchstone.cases import (
    MANIFEST,
    SCHEMA,
    SCORE_ANEW,
    Manifest,
    read_manifest,
    read_scored,
    write_scored,
)
from benchmd_ray.benchmarks.touchstone.joining import METRICS, require_shown
from benchmd_ray.benchmarks.touchstone.layouts import CaseFiles, cases_of, files_of, images_of
from benchmd_ray.benchmarks.touchstone.masks import claimed, stem_of, suffix_of
from benchmd_ray.benchmarks.touchstone.scoring import work
from benchmd_ray.benchmarks.touchstone.submission import Submission
from benchmd_ray.benchmarks.touchstone.tasks import SegmentationTask
from benchmd_ray.cluster.connection import connected
from benchmd_ray.console.progress import progress
from benchmd_ray.data.readers import dicom, nifti, nrrd, volume
from benchmd_ray.errors import BenchmdError, count_of, shown
from benchmd_ray.extensions.extras import require
from benchmd_ray.extensions.parts import versions_of
from benchmd_ray.files.atomic import digest, locked, remove, remove_partial
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hashed_json
from benchmd_ray.scores.dice import CODES
from benchmd_ray.service.each import Call, FailedCall, each

PARTS, PLAN, PREDICTIONS, LOGS = "parts", "plan.json", "predictions", "logs"
"""In a run's folder: results of cases until all are done, what the run is of, and a submission's
predictions and what it printed."""
PROCESS_BYTES, COPIES, VOXEL_BYTES = 2**29, 2, 3
"""Memory of a case: the libraries; the largest volume twice while it is read; and for each voxel
both sides as labels and as classes, and what scoring takes."""


@dataclass(frozen=True)
class ScoreRequest:
    task: SegmentationTask
    predictions: Path
    """Folder of predictions, or of images where there is a `submission`."""
    labels: Path
    out: Path
    tolerance: str = ""
    """mm, or a preset of the task; empty for its own."""
    layouts: tuple[str, str] = ("", "")
    """Of the labels and the predictions; empty where it is the only one, or none is needed."""
    resample: bool = False
    """Whether predictions on other grids are put on the reference's."""
    name: str = ""
    """The algorithm's in tables; empty for the folder's."""
    submission: Submission | None = None


@dataclass(frozen=True)
class ScoreOutcome:
    """How a run ended."""

    manifest: Manifest
    quarantined: dict[str, str]
    """Reasons, by case."""


@dataclass(frozen=True)
class _Case:
    name: str
    reference: CaseFiles
    prediction: CaseFiles
    image: str = ""

    @property
    def paths(self) -> list[Path]:
        image = [Path(self.image)] if self.image else []
        return [*self.reference.paths, *self.prediction.paths, *image]

    def fingerprint(self) -> str:
        states = []
        for path in self.paths:
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            stats = [(str(file), file.stat()) for file in files if file.exists()]
            states.append([[p, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for p, s in stats])
        return digest([states, self.reference.fault, self.prediction.fault])

    def memory(self) -> int:
        """Bytes that scoring it takes, as headers claim."""
        sizes = [claimed(path) for path in (*self.reference.paths[:1], *self.prediction.paths[:1])]
        voxels = max((count for count, _ in sizes), default=0)
        largest = max((count * size for count, size in sizes), default=0)
        return PROCESS_BYTES + COPIES * largest + VOXEL_BYTES * voxels


def score(
    asked: ScoreRequest, *, address: str | None = None, cpus: int = 1, say: Callable[[str], None]
) -> ScoreOutcome:
    """Score what has no scores yet, and write the run."""
    require("scoring masks", "SimpleITK")
    absolute = {key: getattr(asked, key).absolute() for key in ("predictions", "labels", "out")}
    asked = replace(asked, **absolute)  # workers are in other folders
    require_shown("--name" if asked.name else asked.predictions, "algorithm", _algorithm(asked))
    cases, unpredicted, unreferenced = _paired(asked)
    _require_layouts(asked, cases)
    plan = _plan(asked)
    with locked(asked.out / ".lock", f"the score run {asked.out}"):
        _require_same(asked.out, plan)
        for folder in (asked.out, asked.out / PREDICTIONS):
            remove_partial(folder)
        done = _done(asked.out, cases, plan, asked.task, say)
        todo = [case for case in cases.values() if case.name not in done]
        if todo or not (asked.out / MANIFEST).is_file():
            _begin(asked.out, plan, done)
            _run(asked, plan, todo, done, len(cases), address, cpus)
        quarantined = {name: part["reason"] for name, part in done.items() if "reason" in part}
        manifest = _manifest(asked, plan, done, unpredicted, unreferenced)
        rows = [row for name in sorted(done) for row in done[name].get("rows", ())]
        write_scored(asked.out, rows, manifest, quarantined)
        remove(asked.out / PARTS)
    for what, names in (("a prediction", unpredicted), ("a reference", unreferenced)):
        if names:
            some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            say(f"{count_of(len(names), 'case')} without {what}, not scored: {some}")
    return ScoreOutcome(read_manifest(asked.out), quarantined)


def _paired(asked: ScoreRequest) -> tuple[dict[str, _Case], tuple[str, ...], tuple[str, ...]]:
    """Cases of both sides, and names of those without a prediction and without a reference."""
    labels, predictions, task = asked.labels, asked.predictions, asked.task
    single = labels.is_file() and suffix_of(labels)  # a pair needs no common name
    references = {stem_of(labels): files_of(labels, task)} if single else cases_of(labels, task)
    images: dict[str, Path] = {}
    if asked.submission:
        images = {stem_of(labels): predictions} if single else images_of(predictions)
        predicted = dict.fromkeys(images, CaseFiles())
    elif single:
        predicted = {stem_of(labels): files_of(predictions, task)}
    else:
        predicted = cases_of(predictions, task)
    both = sorted(references.keys() & predicted.keys())
    if not both:
        raise BenchmdError(
            f"{predictions} and {labels} have no case in common: {next(iter(predicted))!r} is one "
            f"of the first, {next(iter(references))!r} of the second. Name files or folders alike."
        )
    cases = {
        name: _Case(name, references[name], predicted[name], str(images.get(name, "")))
        for name in both
    }
    without = (references.keys() - predicted.keys(), predicted.keys() - references.keys())
    return cases, tuple(sorted(without[0])), tuple(sorted(without[1]))


def _require_layouts(asked: ScoreRequest, cases: Mapping[str, _Case]) -> None:
    needed = {
        "labels": any(case.reference.needs_layout for case in cases.values()),
        # nobody has seen what a submission writes
        "predictions": asked.submission is not None
        or any(case.prediction.needs_layout for case in cases.values()),
    }
    for (option, is_needed), name in zip(needed.items(), asked.layouts, strict=True):
        if asked.task.layout(name) is None and is_needed:
            raise BenchmdError(
                f"the {option} are files with labels of all classes, and layouts of "
                f"{asked.task.name} differ in what a label is: name theirs with --{option}-layout "
                f"({', '.join(asked.task.layouts)})."
            )


def _algorithm(asked: ScoreRequest) -> str:
    return asked.name or stem_of(asked.predictions)


def _plan(asked: ScoreRequest) -> dict[str, Any]:
    """What scores depend on, other than the files."""
    readers = {"dicom": dicom, "nifti": nifti, "nrrd": nrrd, "volume": volume}
    versions = {name: module.VERSION for name, module in readers.items()}
    return {
        "algorithm": _algorithm(asked),
        "task": digest(asdict(asked.task)),
        "tolerance": asked.task.tolerances(asked.tolerance),
        "layouts": list(asked.layouts),
        "resample": asked.resample,
        "submission": asdict(asked.submission) if asked.submission else None,
        "scorer": digest([versions_of(["segmentation scores"]), versions]),
    }


def _require_same(out: Path, plan: Mapping[str, Any]) -> None:
    """Refuse a folder with files of something else."""
    path = out / PLAN
    if not path.is_file():
        others = (
            [p.name for p in out.iterdir() if not p.name.startswith(".")] if out.is_dir() else []
        )
        if others:
            raise BenchmdError(f"{out} has other files, such as {others[0]}: choose another --out.")
        return
    before = read_hashed_json(path, SCORE_ANEW)
    if different := [key for key in plan if before.get(key) != plan[key]]:
        changes = "; ".join(
            f"{key}, was {shown(before.get(key))}, is {shown(plan[key])}" for key in different
        )
        raise BenchmdError(f"{out} has scores with another {changes}. Choose another --out.")


def _done(
    out: Path,
    cases: Mapping[str, _Case],
    plan: Mapping[str, Any],
    task: SegmentationTask,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Results of cases whose files are unchanged; of a finished run only those with scores."""
    if (out / MANIFEST).is_file():
        grouped = read_scored(out).groupby("case")
        rows = {str(name): group.to_dict("records") for name, group in grouped}
        parts: dict[str, dict[str, Any]] = {
            name: {"rows": rows.get(name, []), "noted": noted}
            for name, noted in read_manifest(out).cases.items()
        }
    else:
        parts = {}
        for path in sorted((out / PARTS).glob("*.json")):
            try:
                part = read_hashed_json(path, "", {"plan": str, "case": str, "noted": dict})
            except Damaged:
                say(f"{path} is damaged: its case is scored again")
                continue
            is_part = isinstance(part.get("rows"), list) or isinstance(part.get("reason"), str)
            if part["plan"] == digest(plan) and is_part:
                parts[part["case"]] = part
    return {
        name: part
        for name, part in parts.items()
        if name in cases
        and ("reason" in part or _is_scored(part["rows"], name, plan["algorithm"], task))
        and part["noted"].get("fingerprint") == cases[name].fingerprint()
    }


def _is_scored(rows: list[Any], case: str, algorithm: str, task: SegmentationTask) -> bool:
    """Whether rows can be scores of each class of a case: parts are read and validated."""
    if [row.get("class") if isinstance(row, dict) else None for row in rows] != [*task.classes]:
        return False
    try:
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    named = set(table["case"].to_pylist()) | set(table["algorithm"].to_pylist())
    shares = np.stack([table[name].to_numpy() for name in METRICS])
    rest = np.stack([table[name].to_numpy() for name in ("volume_ref_ml", "volume_pred_ml")])
    has_codes = set(table["code"].to_pylist()) <= set(CODES)
    possible = np.isnan(shares) | ((shares >= 0) & (shares <= 1))
    return named == {case, algorithm} and has_codes and bool(possible.all() and (rest >= 0).all())


def _begin(out: Path, plan: Mapping[str, Any], done: Mapping[str, dict[str, Any]]) -> None:
    """Mark the run as unfinished."""
    write_hashed_json(out / PLAN, plan)
    if (out / MANIFEST).is_file():
        for name, part in done.items():
            _keep(out, plan, name, part)
        remove(out / MANIFEST)


def _keep(out: Path, plan: Mapping[str, Any], name: str, part: Mapping[str, Any]) -> None:
    content = {"plan": digest(plan), "case": name, **part}
    write_hashed_json(out / PARTS / f"{digest(name)[:32]}.json", content)


def _run(
    asked: ScoreRequest,
    plan: Mapping[str, Any],
    todo: list[_Case],
    done: dict[str, dict[str, Any]],
    total: int,
    address: str | None,
    cpus: int,
) -> None:
    """Score cases on Ray, the largest first, and store each result."""
    algorithm = plan["algorithm"]
    prints = {case.name: case.fingerprint() for case in todo}
    calls = sorted((_call(asked, case) for case in todo), key=lambda call: -call.memory)
    display = progress(f"scores {algorithm}", total, "cases", len(done))
    gpus = asked.submission.gpus if asked.submission else 0.0
    try:
        with connected(address, cpus=cpus):
            for name, result in each(calls, work, gpus=gpus, grows=address is not None):
                reply = {"reason": result.reason} if isinstance(result, FailedCall) else result
                done[name] = _part(algorithm, name, reply, prints[name])
                _keep(asked.out, plan, name, done[name])
                display.update(len(done))
    finally:
        display.close()


def _call(asked: ScoreRequest, case: _Case) -> Call:
    submission, out = asked.submission, asked.out
    request = {
        "task": asdict(asked.task),
        "tolerances": asked.task.tolerances(asked.tolerance),
        "reference": asdict(case.reference),
        "prediction": asdict(case.prediction),
        "layouts": list(asked.layouts),
        "resample": asked.resample,
    }
    arguments = {
        "request": request,
        "submission": asdict(submission) if submission else None,
        "image": case.image,
        "output": str(out / PREDICTIONS / case.name),
        "log": str(out / LOGS / f"{case.name}.txt"),
    }
    return Call(case.name, arguments, max(case.memory(), submission.memory if submission else 0))


def _part(algorithm: str, name: str, reply: Mapping[str, Any], fingerprint: str) -> dict[str, Any]:
    noted = {"fingerprint": fingerprint}
    noted |= {key: reply[key] for key in ("peak_mib", "without_network") if key in reply}
    if "reason" in reply:
        return {"reason": reply["reason"], "noted": noted}
    named = {"algorithm": algorithm, "case": name, "seconds": reply["seconds"]}
    rows = [{key: (named | row)[key] for key in SCHEMA.names} for row in reply["rows"]]
    return {"rows": rows, "noted": noted | reply["notes"]}


def _manifest(
    asked: ScoreRequest,
    plan: Mapping[str, Any],
    done: Mapping[str, dict[str, Any]],
    unpredicted: tuple[str, ...],
    unreferenced: tuple[str, ...],
) -> Manifest:
    scored = {name: part["noted"] for name, part in sorted(done.items()) if "rows" in part}
    return Manifest(
        task=asked.task,
        algorithm=plan["algorithm"],
        tolerance=plan["tolerance"],
        scorer=plan["scorer"],
        predictions=str(asked.out / PREDICTIONS if asked.submission else asked.predictions),
        labels=str(asked.labels),
        layouts=asked.layouts,
        resample=asked.resample,
        cases=scored,
        quarantined=len(done) - len(scored),
        unpredicted=unpredicted,
        unreferenced=unreferenced,
        with_network=tuple(
            n for n, case in scored.items() if not case.get("without_network", True)
        ),
    )
