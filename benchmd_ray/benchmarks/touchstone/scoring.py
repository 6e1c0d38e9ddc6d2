"""Work on one case in a Ray worker: predict with a submission if there is one, and score."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmd_ray.benchmarks.touchstone.layouts import files_of
from benchmd_ray.benchmarks.touchstone.submission import Ran, Submission, isolation, predict
from benchmd_ray.benchmarks.touchstone.tasks import SegmentationTask
from benchmd_ray.data.apart import Apart, Died
from benchmd_ray.files.atomic import TEMPORARY, remove, without_home
from benchmd_ray.schema.typed import typed

PROCESS = Apart("benchmd_ray.benchmarks.touchstone.case")
"""Reads and scores; one for each Ray worker."""
PARTS = ("the reference", "the prediction", "scoring")
"""What it may be at when it dies, see `case.score_case`."""
TRIES = 2
"""Calls of a process that is ended from outside."""


def work(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Predict where that is asked for, and score.

    Args:
        arguments: ``request``, as `case.answer` takes it; with a ``submission`` (its fields) also
            ``image``, ``output``, where its prediction is stored, and ``log``.

    Returns:
        ``rows`` and ``notes``, or ``reason``, why there are none; ``seconds`` of the prediction,
        NaN where unknown; of a submission also ``peak_mib`` and ``without_network``.
    """
    request = dict(arguments["request"])
    measured: dict[str, Any] = {"seconds": float("nan")}
    if arguments["submission"]:
        ran, output = _predicted(arguments)
        measured = {
            "seconds": ran.seconds,
            "peak_mib": round(ran.peak / 2**20, 1),
            "without_network": bool(isolation()),
        }
        if ran.fault:
            return measured | {"reason": ran.fault}
        task: SegmentationTask = typed(SegmentationTask, request["task"], "the task")
        request["prediction"] = asdict(files_of(output, task))
    return measured | _scored(request)


def _scored(request: dict[str, Any]) -> dict[str, Any]:
    reason = ""
    for _ in range(TRIES):
        try:
            reply, _ = PROCESS.call(request)
        except Died as death:
            reason = f"{PARTS[death.place] if death.place >= 0 else 'the case'} {death.how}"
            if not death.outside:
                break
            continue
        return {"reason": without_home(reply["fault"])} if "fault" in reply else reply
    return {"reason": without_home(reason)}


def _predicted(arguments: Mapping[str, Any]) -> tuple[Ran, Path]:
    kept, submission = Path(arguments["output"]), Submission(**arguments["submission"])
    partial = kept.parent / f"{TEMPORARY}{uuid.uuid4().hex[:12]}"
    written = partial / f"{kept.name}.nii.gz"
    partial.mkdir(parents=True)
    began = partial.lstat().st_ino
    try:
        ran = predict(submission, Path(arguments["image"]), written, Path(arguments["log"]))
        if ran.fault:
            return ran, kept
        if _replaced(partial, began) or kept.parent.is_symlink():
            return Ran(ran.seconds, ran.peak, "its output's folder was replaced"), kept
        if why := _untaken(written):
            return Ran(ran.seconds, ran.peak, why), kept
        for earlier in (kept, kept.with_name(written.name)):
            remove(earlier)
        if not written.is_dir():
            kept = kept.with_name(written.name)
        os.replace(written, kept)
        return ran, kept
    finally:
        if not _replaced(partial, began):
            remove(partial)


def _replaced(folder: Path, number: int) -> bool:
    """Whether a folder is no longer the one with that inode number."""
    return folder.is_symlink() or not folder.is_dir() or folder.stat().st_ino != number


def _untaken(written: Path) -> str:
    """Why an output is refused: links could point to any file, also to a reference."""
    inside = written.rglob("*") if written.is_dir() else ()
    for path in (written, *inside):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            return f"its output {path.name} is a link or not a regular file"
        if path.is_file() and path.stat().st_nlink > 1:
            return f"its output {path.name} is a hard link to another file"
    return ""
