"""What the benchmarks share: alternating measurements, rates and ratios, the machine, the JSON.

Plain PyTorch and NumPy, so that the benchmarks of the model also run where nothing else is there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmd_ray.cluster.hardware import hardware

Seconds = dict[str, list[float]]
"""Seconds of each repetition, by what was measured."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--repetitions", type=int, default=5, help="measured repetitions (5)")
    options.add_argument("--warm-up", type=int, default=1, help="repetitions before them")
    options.add_argument("--threads", type=int, help="threads of PyTorch (its own default)")
    options.add_argument("--seed", type=int, default=0, help="seed of everything drawn (0)")
    return options


def parsed(options: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """The arguments, checked, with the number of threads applied."""
    chosen = options.parse_args(arguments)
    if chosen.repetitions < 1 or chosen.warm_up < 0:
        options.error("--repetitions has to be 1 or more and --warm-up 0 or more")
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    return chosen


def add_device(options: argparse.ArgumentParser) -> None:
    """Add ``--device``; by default a GPU where there is one."""
    found = "cuda" if torch.cuda.is_available() else "cpu"
    options.add_argument(
        "--device", choices=("cpu", "cuda"), default=found, help="where to run (a GPU if any)"
    )


def synchronise(device: str) -> None:
    """Wait until a GPU has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(task: Callable[[], object], device: str = "cpu") -> float:
    """Wall-clock seconds of one call, the GPU's work included."""
    synchronise(device)
    start = time.perf_counter()
    task()
    synchronise(device)
    return time.perf_counter() - start


def alternating(
    tasks: Mapping[str, Callable[[], object]],
    *,
    repetitions: int,
    warm_up: int,
    device: str = "cpu",
) -> Seconds:
    """Measure the tasks in turn, every second round backwards, so that drift meets all alike."""
    names = list(tasks)
    for _ in range(warm_up):
        for name in names:
            tasks[name]()
    seconds: Seconds = {name: [] for name in names}
    for number in range(repetitions):
        for name in names if number % 2 == 0 else reversed(names):
            seconds[name].append(seconds_of(tasks[name], device))
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    """Median and range of the repetitions."""
    figures = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: rounded(value) for name, value in figures.items()}


def rounded(value: float) -> float:
    """A figure to five significant digits."""
    return float(f"{value:.5g}")


def rates(seconds: Seconds, units: float) -> dict[str, dict[str, float]]:
    """Units per second of each task, which does ``units`` of them in one repetition."""
    return {name: spread([units / s for s in values]) for name, values in seconds.items()}


def ratio(seconds: Seconds, ours: str, peer: str) -> dict[str, float]:
    """How many times as fast ours is as the peer, repetition by repetition."""
    pairs = zip(seconds[ours], seconds[peer], strict=True)
    return spread([theirs / own for own, theirs in pairs])


def machine(device: str = "cpu") -> dict[str, Any]:
    """What a reader has to know about the machine to compare figures."""
    computing = hardware(torch.device(device))
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": computing.model,
        "instructions": computing.instructions,
        "device_type": device,
        "cpus": cpus(),
        "threads": torch.get_num_threads(),
        "load_at_end": round(os.getloadavg()[0], 2),
    }


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def report(
    name: str,
    arguments: argparse.Namespace,
    seconds: Seconds,
    *,
    units: float,
    unit: str,
    ours: str,
    peer: str,
    **more: Any,
) -> None:
    """Print the result: one JSON object on standard output."""
    compared = ratio(seconds, ours, peer)
    result = {
        "benchmark": name,
        "settings": {key: _plain(value) for key, value in vars(arguments).items()},
        "machine": machine(getattr(arguments, "device", "cpu")),
        "unit": unit,
        "rates": rates(seconds, units),
        "ours": ours,
        "peer": peer,
        "ratio": compared["median"],
        "ratio_range": [compared["least"], compared["most"]],
        "ratio_of_fastest": rounded(min(seconds[peer]) / min(seconds[ours])),
        **more,
    }
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    """A path as its name only: where a folder lies is nobody's business."""
    return value.name if isinstance(value, Path) else value
