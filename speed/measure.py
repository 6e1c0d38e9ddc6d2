"""What measurements share: options, alternating rounds, ratios, the machine, the JSON.

Plain PyTorch and NumPy, so that measurements of the model also run where nothing else is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmd_ray.cluster.hardware import hardware

Task = Callable[[], object]
"""The work of one repetition."""
Seconds = dict[str, list[float]]
"""Seconds of each repetition, by task."""
COMMON = {
    "repetitions": (5, "measured repetitions"),
    "warm_up": (1, "repetitions before them"),
    "threads": (int, "threads of PyTorch (its own default)"),
    "seed": (0, "seed of everything drawn"),
}
"""Options that every measurement has."""
MAY_BE_0 = {"warm_up", "seed", "workers"}


def options(
    description: str | None,
    arguments: list[str] | None,
    declared: Mapping[str, tuple[Any, ...]],
    *,
    device: bool = False,
    repeats: bool = True,
    may_be_0: Collection[str] = (),
    **defaults: Any,
) -> argparse.Namespace:
    """Parse and check the arguments, seed PyTorch and set its threads.

    Args:
        description: Text of ``--help``.
        arguments: Of the command line if None.
        declared: Options by name: the default (or the type, if there is none), the help text, and
            perhaps the choices. A list takes several values, a tuple as many as it has.
        device: Whether there is ``--device``, by default a GPU where there is one.
        repeats: Whether there are repetitions.
        may_be_0: Names of numbers that need not be above 0.
        defaults: Of options in `COMMON` that differ here.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if device:
        present = "cuda" if torch.cuda.is_available() else "cpu"
        declared = {"device": (present, "where to run", ("cpu", "cuda")), **declared}
    common = COMMON if repeats else {name: COMMON[name] for name in ("threads", "seed")}
    for name, (default, *rest) in {**declared, **common}.items():
        _add(parser, name, defaults.get(name, default), *rest)
    settings = parser.parse_args(arguments)
    _require_positive(parser, settings, {*MAY_BE_0, *may_be_0})
    if settings.threads:
        torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    return settings


def _add(
    parser: argparse.ArgumentParser,
    name: str,
    default: Any,
    text: str,
    choices: Collection[str] | None = None,
) -> None:
    """Add an option as `options` describes it."""
    flag = f"--{name.replace('_', '-')}"
    if default is False:
        parser.add_argument(flag, action="store_true", help=text)
        return
    if isinstance(default, type):
        parser.add_argument(flag, type=default, choices=choices, help=text)
        return
    values = default if isinstance(default, (list, tuple)) else [default]
    count = "+" if isinstance(default, list) else len(values) if values is default else None
    is_all = choices is not None and list(choices) == list(values)
    preset = "all" if is_all else " ".join(map(str, values))
    text += f" ({preset})" if preset else ""
    parser.add_argument(
        flag, type=type(values[0]), default=default, nargs=count, choices=choices, help=text
    )


def _require_positive(
    parser: argparse.ArgumentParser, settings: argparse.Namespace, may_be_0: Collection[str]
) -> None:
    """Refuse numbers below 0, and 0 but for some names."""
    for name, value in vars(settings).items():
        can_be_0 = name in may_be_0
        for number in value if isinstance(value, list) else [value]:
            is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
            if is_number and not (number > 0 or (can_be_0 and number == 0)):
                expected = "0 or more" if can_be_0 else "more than 0"
                parser.error(f"--{name.replace('_', '-')} is {number}, expected {expected}")


def synchronise(device: str) -> None:
    """Wait for the work that a GPU has been given."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(task: Task, device: str = "cpu") -> float:
    """Wall-clock seconds of one call, the GPU's work included."""
    synchronise(device)
    start = time.perf_counter()
    task()
    synchronise(device)
    return time.perf_counter() - start


def alternating(settings: argparse.Namespace, tasks: Mapping[str, Task]) -> Seconds:
    """Time the tasks in turn, every second round backwards, so that drift meets all alike."""
    device = getattr(settings, "device", "cpu")
    for _ in range(settings.warm_up):
        for task in tasks.values():
            task()
    seconds: Seconds = {name: [] for name in tasks}
    for number in range(settings.repetitions):
        for name in tasks if number % 2 == 0 else reversed(list(tasks)):
            seconds[name].append(seconds_of(tasks[name], device))
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    """Median and range of the repetitions."""
    figures = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return rounded_all(figures)


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended; in microseconds' steps."""
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + of_children.ru_utime + of_children.ru_stime


def rounded(value: float) -> float:
    """A figure to five significant digits."""
    return float(f"{value:.5g}")


def rounded_all(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures to five significant digits."""
    return {name: rounded(value) for name, value in figures.items()}


def ratio(seconds: Seconds, ours: str, peer: str) -> dict[str, float]:
    """How many times as fast ours is as the peer, repetition by repetition."""
    pairs = zip(seconds[ours], seconds[peer], strict=True)
    return spread([of_peer / of_ours for of_ours, of_peer in pairs])


def machine(device: str = "cpu") -> dict[str, Any]:
    """What figures of two machines have to be compared by."""
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


def compare(
    name: str,
    settings: argparse.Namespace,
    tasks: Mapping[str, Task],
    *,
    unit: str,
    units: float,
    share_of_peer: float | None = None,
    **figures: Any,
) -> None:
    """Time the tasks, ours first and its peer second, and print the result.

    ``share_of_peer`` is the share of the units that the peer is timed for, where it is not all.
    """
    seconds = alternating(settings, tasks)
    if share_of_peer is not None:
        peer = list(tasks)[1]
        seconds[peer] = [value / share_of_peer for value in seconds[peer]]
        figures["peer_is_extrapolated"] = share_of_peer < 1
    report(name, settings, seconds, unit=unit, units=units, **figures)


def report(
    name: str,
    settings: argparse.Namespace,
    seconds: Seconds,
    *,
    unit: str,
    units: float,
    **figures: Any,
) -> None:
    """Print what was measured, ours first and its peer second, as one JSON object."""
    ours, peer, *_ = seconds
    compared = ratio(seconds, ours, peer)
    print_result(
        name,
        settings,
        unit=unit,
        rates={task: spread([units / s for s in values]) for task, values in seconds.items()},
        wall_seconds={task: spread(values) for task, values in seconds.items()},
        ours=ours,
        peer=peer,
        ratio=compared["median"],
        ratio_range=[compared["least"], compared["most"]],
        ratio_of_fastest=rounded(min(seconds[peer]) / min(seconds[ours])),
        **figures,
    )


def print_result(name: str, settings: argparse.Namespace, **figures: Any) -> None:
    """Print a JSON object on standard output; paths are names only, without their folders."""
    values = {
        key: value.name if isinstance(value, Path) else value
        for key, value in vars(settings).items()
    }
    device = getattr(settings, "device", "cpu")
    result = {"benchmark": name, "settings": values, "machine": machine(device), **figures}
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")
