r"""``python -m studies.score_run`` from the project's root.

A score run of many cases on an embedded Ray, whose workers are killed on the way: how long it
takes, and whether its Parquet file has the bytes of a run that nothing disturbed. There is no peer;
the same cases are scored once undisturbed. ``--interrupt`` also ends the command itself halfway, by
SIGINT, and starts it again.

Cases are small label maps of nine bodies; predictions are shifted by a voxel.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import SimpleITK

from benchmd_ray.files.atomic import sha256
from speed import measure
from speed.segmentation import drawn

LOOK_SECONDS = 0.02
DECLARED = {
    "cases": (743, "that are scored"),
    "kill": (2, "workers that are killed"),
    "interrupt": (False, "end the command halfway, too"),
    "shape": ((48, 96, 96), "z, y, x"),
}


def write_cases(folder: Path, count: int, shape: tuple[int, int, int]) -> None:
    """References and predictions; each case is another part of the same bodies."""
    whole = drawn((shape[0] + count % 7 + 8, *shape[1:]))
    for number in range(count):
        reference = whole[number % 7 : number % 7 + shape[0]]
        prediction = np.roll(reference, 1, axis=2)
        for side, labels in (("labels", reference), ("predictions", prediction)):
            (folder / side).mkdir(exist_ok=True)
            image: Any = SimpleITK.GetImageFromArray(labels)
            image.SetSpacing((1.5, 1.5, 3.0))
            SimpleITK.WriteImage(image, str(folder / side / f"case{number:04}.nii.gz"))


def started(folder: Path, out: Path) -> subprocess.Popen[bytes]:
    """The command at work."""
    layouts = [f"--{side}-layout=abdomenatlas" for side in ("labels", "predictions")]
    words = ["segment", "score", str(folder / "predictions"), str(folder / "labels")]
    command = [sys.executable, "-m", "benchmd_ray.cli", *words, "--task=abdomen9", *layouts]
    return subprocess.Popen([*command, f"--out={out}"], stdout=subprocess.DEVNULL)


def scored(out: Path) -> int:
    """Cases that have been scored so far."""
    return sum(1 for _ in (out / "parts").glob("*.json"))


def disturbed(process: subprocess.Popen[bytes], out: Path, at: Iterator[int]) -> list[int]:
    """Kill a worker that is at a case whenever so many cases are done; how many were done then."""
    killed: list[int] = []
    due = next(at, None)
    while process.poll() is None:
        if due is not None and scored(out) >= due:
            children = psutil.Process(process.pid).children(recursive=True)
            workers = [c for c in children if c.is_running() and c.name().startswith("ray::case")]
            if workers:
                workers[0].kill()
                killed.append(scored(out))
                due = next(at, None)
        time.sleep(LOOK_SECONDS)
    return killed


def run(folder: Path, out: Path, kills: list[int], interrupt: int) -> tuple[float, list[int]]:
    """Seconds of a run, and after how many cases each worker was killed."""
    start = time.perf_counter()
    process = started(folder, out)
    if interrupt:
        while process.poll() is None and scored(out) < interrupt:
            time.sleep(LOOK_SECONDS)
        process.send_signal(signal.SIGINT)
        process.wait()
        process = started(folder, out)
    killed = disturbed(process, out, iter(kills))
    if process.returncode:
        raise SystemExit(f"the command failed with {process.returncode}")
    return time.perf_counter() - start, killed


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, repeats=False, may_be_0={"kill"})
    cases, kills = options.cases, options.kill
    after = [int(cases * (number + 1) / (kills + 2)) for number in range(kills)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, disturbed_run = folder / "whole", folder / "run"
        write_cases(folder, cases, tuple(options.shape))
        undisturbed, _ = run(folder, whole, [], 0)
        interrupt = cases // 5 if options.interrupt else 0
        seconds, killed = run(folder, disturbed_run, after, interrupt)
        manifest = json.loads((disturbed_run / "manifest.json").read_text("utf-8"))
        hashes = {sha256(out / "scores.parquet") for out in (whole, disturbed_run)}
    figures = {
        "seconds": seconds,
        "seconds_undisturbed": undisturbed,
        "cases_per_second": cases / undisturbed,
    }
    measure.print_result(
        "score_run",
        options,
        scored=len(manifest["cases"]),
        quarantined=manifest["quarantined"],
        killed_after_cases=killed,
        same_bytes=len(hashes) == 1,
        **measure.rounded_all(figures),
    )


if __name__ == "__main__":
    main()
