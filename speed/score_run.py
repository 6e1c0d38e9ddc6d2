r"""``python -m speed.score_run`` from the project's root.

A score run of many cases on an embedded Ray, whose workers are killed on the way: how long it
takes, and whether its Parquet file has the bytes of a run that nothing disturbed. There is no peer;
the same cases are scored once undisturbed. ``--interrupt`` also ends the command itself halfway, by
SIGINT, and starts it again.

Cases are small label maps of nine bodies; predictions are shifted by a voxel.
"""

from __future__ import annotations

import argparse
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


def write_cases(folder: Path, count: int, shape: tuple[int, int, int]) -> None:
    """References and predictions; each case is another part of the same bodies."""
    whole = drawn((shape[0] + count % 7 + 8, *shape[1:]))
    for number in range(count):
        own = whole[number % 7 : number % 7 + shape[0]]
        for side, labels in (("labels", own), ("predictions", np.roll(own, 1, axis=2))):
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
            workers = [
                each
                for each in psutil.Process(process.pid).children(recursive=True)
                if each.is_running() and each.name().startswith("ray::case")
            ]
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
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--cases", type=int, default=743, help="(743)")
    options.add_argument("--kill", type=int, default=2, help="workers that are killed (2)")
    options.add_argument("--interrupt", action="store_true", help="end the command halfway, too")
    options.add_argument("--shape", type=int, nargs=3, default=[48, 96, 96], help="z, y, x")
    chosen = options.parse_args(arguments)
    shares = [(number + 1) / (chosen.kill + 2) for number in range(chosen.kill)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cases(folder, chosen.cases, tuple(chosen.shape))
        undisturbed, _ = run(folder, folder / "whole", [], 0)
        kills = [int(chosen.cases * share) for share in shares]
        seconds, killed = run(
            folder, folder / "run", kills, chosen.cases // 5 if chosen.interrupt else 0
        )
        whole, own = (folder / each for each in ("whole", "run"))
        manifest = json.loads((own / "manifest.json").read_text())
        result = {
            "benchmark": "score_run",
            "settings": vars(chosen),
            "machine": measure.machine(),
            "scored": len(manifest["cases"]),
            "quarantined": manifest["quarantined"],
            "killed_after_cases": killed,
            "same_bytes": sha256(own / "scores.parquet") == sha256(whole / "scores.parquet"),
            "seconds": measure.rounded(seconds),
            "seconds_undisturbed": measure.rounded(undisturbed),
            "cases_per_second": measure.rounded(chosen.cases / undisturbed),
        }
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
