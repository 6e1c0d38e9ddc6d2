r"""``python -m speed.gpu --out FILE`` from the project's root: training on a GPU, in ten minutes.

The real pretraining and fine-tuning (feed, draws, logging and checkpoints included) on synthetic
catalogs in memory, as one worker runs them: eager, captured as a CUDA graph, and compiled and
captured. The peer is a plain loop over the same batches on the same device, with the reference's
encoder (attention as two einsums), eager, in float32 as it was released and in bf16.

Needs PyTorch, NumPy, pyarrow, PyYAML and safetensors; Ray, DeepSpeed and the decoders are not
imported. Everything is written into one JSON file after each measurement, and what the time did not
suffice for is named there. ``--device cpu --size tiny --steps 4`` tries it without a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import DatasetCard, dataset_card
from benchmd_ray.data.catalog import MANIFEST, Catalog, open_catalog
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.data.manifest import manifest_of, shard_part
from benchmd_ray.data.records import Record, to_table
from benchmd_ray.files.atomic import write_json
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.runs.files import MODEL
from benchmd_ray.scores.metrics import Values, auroc
from benchmd_ray.settings.definition import ENCODERS, ExecutionSettings, Settings, updated
from benchmd_ray.ssl import METHODS, method_named
from benchmd_ray.training import steps as steps_module
from benchmd_ray.training.collect import collect, evaluating, evaluation_batch
from benchmd_ray.training.engine import autocast
from benchmd_ray.training.forward import Pass, graphed
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.losses import Losses
from benchmd_ray.training.pretrain import pretrain
from benchmd_ray.training.seeds import DRAWS, generator
from benchmd_ray.training.selection import auroc_on
from benchmd_ray.training.steps import COMPILED_FROM
from benchmd_ray.training.transfer import transfer
from speed import measure
from speed.encoder_step import EinsumBlock

PEAKS = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "L40S": 362.0, "B200": 2250.0}
"""Dense bf16 TFLOP/s of a model of GPU in its fastest form, as its maker states them."""
PROTOCOL = 100_000
"""Steps of the fixed protocol."""
DATASETS = {"ecg": "ptb-xl", "cxr": "mimic-cxr", "ldct": "lidc-idri"}
"""A source of each number of dimensions."""
RECORDS = {"ecg": 512, "cxr": 512, "ldct": 128}
EPOCHS = 4
"""Of a fine-tuning."""
ALIKE_STEPS = 50
"""Steps of which the losses are compared."""


@dataclass(frozen=True)
class Way:
    """How the package executes steps."""

    step: str
    compiles: bool


WAYS = {
    "eager": Way("eager", False),
    "captured": Way("captured", False),
    "compiled and captured": Way("captured", True),
}
ON_CPU = {"eager": Way("eager", False), "compiled": Way("compiled", True)}


class Clock:
    """A reporter that keeps losses and times."""

    def __init__(self) -> None:
        self.losses, self.marks = list[float](), list[tuple[int, float]]()

    def start(self, what: str, total: int, unit: str, done: int) -> None:
        """Nothing."""

    def report(self, done: int, values: Mapping[str, float]) -> None:
        """Keep it."""
        self.losses.append(values["loss"])
        self.marks.append((done, time.perf_counter()))

    def finish(self) -> None:
        """Nothing."""

    def per_second(self) -> float:
        """Units a second from the first report to the last but one.

        On a GPU a report comes with the next one, but for the last two, which come together.
        """
        (first, began), (last, ended) = self.marks[0], self.marks[-2]
        return (last - first) / (ended - began)


@dataclass(frozen=True)
class Setting:
    """What is measured with."""

    device: str
    size: str
    batch: int
    steps: int
    folder: Path
    until: float
    """By `time.monotonic`."""
    peak: float | None

    def settings(self, **execution: Any) -> Settings:
        """Of a run as the protocol has it, but for the number of steps."""
        held = {"device": self.device, **execution}
        return updated(
            Settings(encoder=ENCODERS[self.size], execution=replace(ExecutionSettings(), **held)),
            {"pretrain": {"batch_size": self.batch}, "transfer": {"batch_size": self.batch}},
        )

    def catalog(self, kind: str) -> Catalog:
        """The synthetic one of a kind of signals."""
        folder, share = self.folder / "catalogs" / kind, 1 if self.device == "cuda" else 16
        if folder.is_dir():
            return open_catalog(folder)
        count = RECORDS[kind] // share
        return synthetic(kind, folder, {"train": count, "validation": count // 2})

    def new_folder(self) -> Path:
        """For a run."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    @property
    def worker(self) -> Worker:
        """The only one."""
        return Worker(device=torch.device(self.device))


def synthetic(kind: str, folder: Path, rows: Mapping[str, int], seed: int = 0) -> Catalog:
    """A catalog of noise, as a build would write it."""
    card = dataset_card(DATASETS[kind])
    parts = []
    for split, count in rows.items():
        name = f"{split}-00000"
        table = to_table(_noise(card, split, count, seed), split, card)
        part = {"name": name, "split": split, "rows": len(table)}
        parts.append(part | shard_part(table, folder / "shards" / f"{name}.parquet", card))
    about = {
        **{"policy": "clean", "options": {n: o.default for n, o in card.options.items()}},
        **{"held_out": [], "layout": next(iter(card.layouts)), "plan": "noise"},
        "raw": {
            "records": 1,
            "expected": 1,
            "missing": 0,
            "grouped_by": "patient",
            "provenance": "synthetic",
        },
        **{"excluded": {}, "warnings": {}, "quarantined": []},
    }
    manifest = manifest_of(card, about, parts)
    write_json(folder / MANIFEST, manifest)
    return open_catalog(folder)


def _noise(card: DatasetCard, split: str, count: int, seed: int) -> list[Record]:
    signal, classes = card.signal, len(card.classes)
    draws = np.random.default_rng([seed, len(split)])
    high = 255 if signal.dtype == "uint8" else 1000
    records = []
    for row in range(count):
        values = draws.integers(0, high, signal.stored_shape).astype(signal.dtype)
        target = np.eye(classes, dtype=int)[row % classes].tolist()
        if classes == 1:
            target = [row % 2]
        name = f"{split}{row}"
        records.append(Record(name, name, name, values, 0.001, signal.stored_shape[1:], target))
    return records


# --- pretraining -----------------------------------------------------------------------------


def pretrained(
    setting: Setting,
    catalog: Catalog,
    technique: str,
    way: Way,
    steps: int,
    changes: Mapping[str, Any] | None = None,
) -> Clock:
    """The reports of a real pretraining."""
    often = max(1, min(ExecutionSettings().log_every, steps // 4))
    chosen = updated(
        setting.settings(step=way.step, log_every=often), {"pretrain": {"steps": steps}}
    )
    job = PretrainJob(updated(chosen, changes or {}), technique, catalog.path, setting.new_folder())
    clock = Clock()
    with _compiled(way.compiles):
        pretrain(job, setting.worker, clock)
    return clock


@contextmanager
def _compiled(wanted: bool) -> Iterator[None]:
    """Whether captured steps are compiled, too; what was compiled is forgotten afterwards."""
    before = steps_module.can_compile
    if not wanted:
        steps_module.can_compile = lambda device: False
    try:
        yield
    finally:
        steps_module.can_compile = before
        torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def step_flops(catalog: Catalog, technique: str, settings: Settings) -> int:
    """FLOPs of the matrix products of a step, counted on tensors without values."""
    signal = catalog.signal
    batch = settings.pretrain.batch_size
    method = method_named(technique)(Encoder(signal, settings.encoder), settings.pretrain)
    draws = method.draw(batch, torch.Generator().manual_seed(0))
    method = method.to("meta")
    signals = torch.empty(batch, *signal.input_shape, device="meta")
    counter = FlopCounterMode(display=False)
    with counter:
        loss = method(signals, {name: x.to("meta") for name, x in draws.items()})
        loss.backward()
    return int(counter.get_total_flops())


def speed_of(setting: Setting, kind: str, technique: str, way: Way) -> dict[str, Any]:
    """Steps a second and what follows, of one way to execute them."""
    catalog, on_gpu = setting.catalog(kind), setting.device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    clock = pretrained(setting, catalog, technique, way, setting.steps)
    whole, rate = time.perf_counter() - began, clock.per_second()
    flops = step_flops(catalog, technique, setting.settings())
    found: dict[str, Any] = {
        "steps_per_second": measure.rounded(rate),
        "minutes_per_100000_steps": measure.rounded(PROTOCOL / rate / 60),
        "seconds_beside_steps": measure.rounded(whole - (setting.steps / rate)),
        "tflops_per_second": measure.rounded(flops * rate / 1e12),
        "last_loss": clock.losses[-1],
    }
    if on_gpu:
        found["peak_gib"] = measure.rounded(torch.cuda.max_memory_allocated() / 2**30)
        # A graph's own memory is reserved, and not allocated between its captures.
        found["reserved_gib"] = measure.rounded(torch.cuda.max_memory_reserved() / 2**30)
    if setting.peak:
        found["share_of_peak"] = measure.rounded(flops * rate / 1e12 / setting.peak)
    return found


def reference(setting: Setting, kind: str, technique: str, precision: str) -> dict[str, Any]:
    """The reference's loop: its encoder and the method's loss, eager, AdamW as PyTorch has it."""
    settings, device = setting.settings(), torch.device(setting.device)
    catalog, steps = setting.catalog(kind), min(60, setting.steps)
    encoder = Encoder(catalog.signal, settings.encoder)
    encoder.blocks = nn.ModuleList(EinsumBlock(settings.encoder) for _ in encoder.blocks)
    method = method_named(technique)(encoder, settings.pretrain).to(device).train()
    optimiser = torch.optim.AdamW(method.parameters(), lr=settings.pretrain.optimiser.lr)
    feed = resident_feed(
        catalog, "train", seed=0, worker=setting.worker, statistics=catalog.statistics
    )
    batches, began, warm = feed.endless(setting.batch), 0.0, min(5, steps - 1)
    for number in range(steps):
        if number == warm:
            measure.synchronise(setting.device)
            began = time.perf_counter()
        stored = next(batches)
        signals = feed.normalise(stored.signals, stored.scales, stored.sizes)
        drawn = method.draw(setting.batch, generator(DRAWS, 0, number))
        with autocast(device, precision):
            loss = method(signals, {name: x.to(device) for name, x in drawn.items()})
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        loss.item()  # its loop prints each loss
    measure.synchronise(setting.device)
    rate = (steps - warm) / (time.perf_counter() - began)
    return {
        "steps_per_second": measure.rounded(rate),
        "minutes_per_100000_steps": measure.rounded(PROTOCOL / rate / 60),
    }


def alike(setting: Setting, kind: str, technique: str) -> dict[str, Any]:
    """Largest relative difference of the losses to those of eager steps, without dropout."""
    changes = {"encoder": {"dropout": 0.0, "embedding_dropout": 0.0}, "execution": {"log_every": 1}}
    ways = WAYS if setting.device == "cuda" else ON_CPU
    catalog, count = setting.catalog(kind), min(ALIKE_STEPS, setting.steps)
    losses = {
        name: np.array(pretrained(setting, catalog, technique, way, count, changes).losses)
        for name, way in ways.items()
    }
    eager = losses.pop("eager")
    return {
        name: measure.rounded(float(np.max(np.abs(each - eager) / np.abs(eager))))
        for name, each in losses.items()
    }


def with_dropout(setting: Setting, kind: str, technique: str) -> float:
    """Largest relative difference of losses of captured steps, not compiled, to eager ones.

    Both draw the same of dropout, where a graph takes the seed of a step.
    """
    catalog, count = setting.catalog(kind), min(ALIKE_STEPS, setting.steps)
    changes = {"execution": {"log_every": 1}}
    eager, other = (
        np.array(pretrained(setting, catalog, technique, WAYS[way], count, changes).losses)
        for way in ("eager", "captured")
    )
    return measure.rounded(float(np.max(np.abs(other - eager) / np.abs(eager))))


def resumed(setting: Setting, kind: str, technique: str) -> float:
    """Largest difference of weights between a captured run that stopped half-way and another one.

    0: the same bits. Dropout is on, nothing is compiled.
    """
    way = WAYS["captured"] if setting.device == "cuda" else ON_CPU["eager"]
    chosen = updated(
        setting.settings(step=way.step, checkpoint_every=10), {"pretrain": {"steps": 40}}
    )
    catalog = setting.catalog(kind).path
    weights = []
    for stops in ([None], [17, None]):
        folder = setting.new_folder()
        for stop in stops:
            job = PretrainJob(chosen, technique, catalog, folder, until=stop)
            with _compiled(False):
                pretrain(job, setting.worker, Clock())
        weights.append(load_file(folder / MODEL))
    whole, broken = weights
    return max(float((whole[name] - broken[name]).abs().max()) for name in whole)


def profiled(setting: Setting, kind: str, technique: str, way: Way) -> dict[str, Any]:
    """What a step launches, and which kernels take its time."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if setting.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    held: dict[str, Any] = {}
    profiler: Any = None
    add, first, steps = Losses.add, min(20, setting.steps), min(10, setting.steps)

    def watched(self: Losses, loss: torch.Tensor) -> None:
        nonlocal profiler
        add(self, loss)
        held["step"] = held.get("step", 0) + 1
        if held["step"] == first:
            measure.synchronise(setting.device)
            profiler = profile(activities=activities)
            profiler.__enter__()
        elif held["step"] == first + steps:
            measure.synchronise(setting.device)
            profiler.__exit__(None, None, None)

    Losses.add = watched  # type: ignore[method-assign]
    try:
        pretrained(setting, setting.catalog(kind), technique, way, first + steps)
    finally:
        Losses.add = add  # type: ignore[method-assign]
    events = profiler.key_averages()
    on_host = [e for e in events if e.device_type == DeviceType.CPU]
    # A kernel's time is also that of the operator that launched it.
    on_device = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    kernels = sorted(on_device, key=lambda e: -e.self_device_time_total)[:15]
    launches = sum(e.count for e in on_host if "Launch" in e.key)
    return {
        "launches_per_step": launches / steps,
        "device_ms_per_step": measure.rounded(
            sum(e.self_device_time_total for e in on_device) / steps / 1e3
        ),
        "host_ms_per_step": measure.rounded(
            sum(e.self_cpu_time_total for e in on_host if "Synchronize" not in e.key) / steps / 1e3
        ),
        "kernels": [
            {
                "name": e.key[:90],
                "times_per_step": e.count / steps,
                "ms_per_step": measure.rounded(e.self_device_time_total / steps / 1e3),
            }
            for e in kernels
        ],
    }


# --- fine-tuning and scoring -----------------------------------------------------------------


def finetuned(setting: Setting, kind: str, way: Way) -> dict[str, Any]:
    """Epochs of a real fine-tuning, validation scored after each."""
    settings = updated(
        setting.settings(step=way.step), {"transfer": {"mode": "finetune", "epochs": EPOCHS}}
    )
    catalog, clock = setting.catalog(kind), Clock()
    job = TransferJob(settings, catalog.path, setting.new_folder())
    with _compiled(way.compiles):
        transfer(job, setting.worker, clock)
    steps = math.ceil(catalog.rows("train") / setting.batch)
    return {
        "epochs_per_second": measure.rounded(clock.per_second()),
        "steps_of_an_epoch": steps,
        "validation_records": catalog.rows("validation"),
    }


def scored(setting: Setting, kind: str) -> dict[str, Any]:
    """Records scored a second, and AUROC of as many rows as SHHS has."""
    settings, catalog = setting.settings(), setting.catalog(kind)
    encoder = Encoder(catalog.signal, settings.encoder)
    size = evaluation_batch(encoder)
    eager = evaluating(encoder, setting.worker, settings.execution.precision)
    ways = {"eager": eager, "graph": graphed(eager, setting.worker, settings, COMPILED_FROM)}
    feed = resident_feed(
        catalog, "train", seed=0, worker=setting.worker, statistics=catalog.statistics
    )

    def rate(forward: Pass) -> float:
        def once() -> object:
            return collect(forward, feed, size)

        once()
        seconds = min(measure.seconds_of(once, setting.device) for _ in range(3))
        return measure.rounded(feed.rows / seconds)

    rows = 1_160_000 if setting.device == "cuda" else 20_000
    draws = np.random.default_rng(0)
    targets = np.eye(5, dtype=np.int8)[draws.integers(0, 5, rows)]
    scores = draws.random((rows, 5))
    device = setting.device
    ranks: dict[str, Callable[..., Values]] = {
        "host": auroc,
        "device": partial(auroc, of_class=partial(auroc_on, device)),
    }
    for rank in ranks.values():
        assert rank(targets, scores) == auroc(targets, scores)
    return {
        "records_per_second": {name: rate(forward) for name, forward in ways.items()},
        "auroc_rows": rows,
        "auroc_seconds": {
            name: measure.rounded(measure.seconds_of(partial(rank, targets, scores), device))
            for name, rank in ranks.items()
        },
    }


# --- all of it -------------------------------------------------------------------------------


def measurements(setting: Setting) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and work of each measurement, the most telling first."""
    ways = WAYS if setting.device == "cuda" else ON_CPU
    if not steps_module.can_compile(torch.device(setting.device)):
        ways = {name: way for name, way in ways.items() if not way.compiles}
    ends = {name: ways[name] for name in ("eager", list(ways)[-1])}
    fastest = list(ways)[-1]
    for name, way in ways.items():
        yield f"pretrain ecg mae {name}", partial(speed_of, setting, "ecg", "mae", way)
    for precision in ("float32", "bf16"):
        yield f"reference ecg mae {precision}", partial(reference, setting, "ecg", "mae", precision)
    for name, way in ways.items():
        yield f"profile ecg mae {name}", partial(profiled, setting, "ecg", "mae", way)
    for technique in METHODS:
        yield f"alike ecg {technique}", partial(alike, setting, "ecg", technique)
    if setting.device == "cuda":
        yield "with dropout ecg mae", partial(with_dropout, setting, "ecg", "mae")
    yield "resumed ecg mae", partial(resumed, setting, "ecg", "mae")
    for name, way in ends.items():
        yield f"finetune ecg {name}", partial(finetuned, setting, "ecg", way)
    yield "scoring ecg", partial(scored, setting, "ecg")
    for kind, technique in product(DATASETS, METHODS):
        if (kind, technique) != ("ecg", "mae"):
            about = f"pretrain {kind} {technique} {fastest}"
            yield about, partial(speed_of, setting, kind, technique, ways[fastest])
    for kind, technique in product(("cxr", "ldct"), METHODS):
        yield f"alike {kind} {technique}", partial(alike, setting, kind, technique)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the package warns of."""
    said: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Kept(logging.WARNING)
    logging.getLogger("benchmd_ray").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("benchmd_ray").removeHandler(handler)


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measure.add_device(options)
    options.add_argument("--out", type=Path, required=True, help="JSON file")
    options.add_argument("--size", choices=sorted(ENCODERS), default="paper", help="(paper)")
    options.add_argument("--batch", type=int, default=64, help="(64)")
    options.add_argument("--steps", type=int, default=1240, help="of a pretraining (1240)")
    options.add_argument("--minutes", type=float, default=9.0, help="begin nothing later (9)")
    options.add_argument("--peak-tflops", type=float, help="dense bf16; known of some GPUs")
    options.add_argument("--only", action="append", help="whose name has this (repeatable)")
    chosen = options.parse_args(arguments)
    machine = measure.machine(chosen.device)
    known = [peak for name, peak in PEAKS.items() if name in machine["device"]]
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(
            chosen.device,
            chosen.size,
            chosen.batch,
            chosen.steps,
            Path(folder),
            time.monotonic() + 60 * chosen.minutes,
            chosen.peak_tflops or next(iter(known), None),
        )
        result: dict[str, Any] = {"benchmark": "gpu", "machine": machine, "found": {}, "left": []}
        for name, work in measurements(setting):
            if chosen.only and not any(part in name for part in chosen.only):
                continue
            if time.monotonic() > setting.until:
                result["left"].append(name)
                continue
            began = time.monotonic()
            with _warnings() as said:
                try:
                    found = work()
                except Exception as error:  # the others are worth having
                    found = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
            if said:  # such as that steps could not be captured, and were executed eagerly
                found = {"found": found, "warnings": said}
            result["found"][name] = found
            result["minutes"] = measure.rounded(
                (time.monotonic() - setting.until) / 60 + chosen.minutes
            )
            chosen.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
            print(
                f"{name} ({time.monotonic() - began:.0f} s): {json.dumps(found)[:400]}", flush=True
            )
        chosen.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
