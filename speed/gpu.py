r"""``python -m speed.gpu --out FILE`` from the project's root: training on a GPU, in ten minutes.

The real pretraining and fine-tuning (feed, draws, logging and checkpoints included) on synthetic
catalogs in memory, as one worker runs them: eager, captured as a CUDA graph, and compiled and
captured. The peer is a plain loop over the same batches on the same device, with the reference's
encoder (attention as two einsums), eager, in float32 as it was released and in bf16. ``ratios`` has
ours over the peer.

Needs PyTorch, NumPy, pyarrow, PyYAML and safetensors; Ray, DeepSpeed and the decoders are not
imported. Everything is written into one JSON file after each measurement, and what there was no
time for is listed there. ``--device cpu --size tiny --steps 4`` tries it without a GPU.
"""

from __future__ import annotations

import gc
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from logging import WARNING, getLogger
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from benchmd_ray.data.batches import ResidentFeed, Worker
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.models.encoder import Block, Encoder
from benchmd_ray.runs.files import MODEL
from benchmd_ray.scores.metrics import Values, auroc
from benchmd_ray.settings.definition import ENCODERS, ExecutionSettings, Settings, updated
from benchmd_ray.ssl import METHODS, method_named
from benchmd_ray.training.collect import collect, evaluating, evaluation_batch
from benchmd_ray.training.engine import autocast
from benchmd_ray.training.forward import COMPILED_FROM, Pass, can_compile, graphed
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.pretrain import Losses, pretrain
from benchmd_ray.training.seeds import DRAWS, generator
from benchmd_ray.training.selection import auroc_on
from benchmd_ray.training.transfer import transfer
from speed import measure
from speed.noise import noise_catalog

PEAKS = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "L40S": 362.0, "B200": 2250.0}
"""Dense bf16 TFLOP/s of a model of GPU in its fastest form, as its maker states them."""
PROTOCOL = 100_000
"""Steps of the fixed protocol."""
SOURCES = {"ecg": ("ptb-xl", 512), "cxr": ("mimic-cxr", 512), "ldct": ("lidc-idri", 128)}
"""Dataset and records of a modality of each number of dimensions."""
EPOCHS = 4
"""Of a fine-tuning."""
COMPARED_STEPS = 50
"""Steps whose losses are compared."""
WITHOUT_DROPOUT = {"encoder": {"dropout": 0.0, "embedding_dropout": 0.0}}
DECLARED = {
    "size": ("paper", "of the encoder", sorted(ENCODERS)),
    "batch": (64, "examples of a step"),
    "steps": (1240, "of a pretraining"),
    "minutes": (9.0, "begin nothing later"),
    "peak_tflops": (float, "dense bf16; known of some GPUs"),
    "out": (Path, "JSON file (required)"),
    "only": ([""], "measurements whose name has one of these"),
}
Result = dict[str, Any]


class Way(NamedTuple):
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
        (first, start), (last, end) = self.marks[0], self.marks[-2]
        return (last - first) / (end - start)


@dataclass(frozen=True)
class Bench:
    """Device, sizes and folder of all measurements."""

    device: str
    size: str
    batch: int
    steps: int
    folder: Path
    peak: float | None
    """TFLOP/s."""

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is measured."""
        return self.device == "cuda"

    @property
    def worker(self) -> Worker:
        """The only one."""
        return Worker(device=torch.device(self.device))

    @property
    def ways(self) -> dict[str, Way]:
        """Those that the device offers."""
        ways = WAYS if self.on_gpu else ON_CPU
        compiler = can_compile(torch.device(self.device))
        return {name: way for name, way in ways.items() if compiler or not way.compiles}

    def settings(self, **execution: Any) -> Settings:
        """Of a run as the protocol has it, but for the number of steps."""
        execution = {"device": self.device, **execution}
        settings = Settings(
            encoder=ENCODERS[self.size], execution=replace(ExecutionSettings(), **execution)
        )
        batch = {"batch_size": self.batch}
        return updated(settings, {"pretrain": batch, "transfer": batch})

    def catalog(self, modality: str) -> Catalog:
        """The synthetic one of a modality, a sixteenth as large on a CPU."""
        folder = self.folder / "catalogs" / modality
        if folder.is_dir():
            return open_catalog(folder)
        dataset, records = SOURCES[modality]
        records //= 1 if self.on_gpu else 16
        return noise_catalog(dataset, folder, {"train": records, "validation": records // 2})

    def feed(self, modality: str) -> ResidentFeed:
        """The training split of a synthetic catalog."""
        catalog = self.catalog(modality)
        return resident_feed(
            catalog, "train", seed=0, worker=self.worker, statistics=catalog.statistics
        )

    def new_folder(self) -> Path:
        """For a run."""
        return Path(tempfile.mkdtemp(dir=self.folder))


@contextmanager
def _compiling(compiles: bool) -> Iterator[None]:
    """Whether captured steps are compiled, too; what was compiled is forgotten afterwards."""
    off = patch("benchmd_ray.training.steps.can_compile", return_value=False)
    try:
        with nullcontext() if compiles else off:
            yield
    finally:
        torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# --- pretraining -----------------------------------------------------------------------------


def pretrained(
    bench: Bench,
    modality: str,
    technique: str,
    way: Way,
    steps: int,
    changes: Mapping[str, Any] | None = None,
) -> Clock:
    """The reports of a real pretraining."""
    log_every = max(1, min(ExecutionSettings().log_every, steps // 4))
    settings = bench.settings(step=way.step, log_every=log_every)
    settings = updated(updated(settings, {"pretrain": {"steps": steps}}), changes or {})
    job = PretrainJob(settings, technique, bench.catalog(modality).path, bench.new_folder())
    clock = Clock()
    with _compiling(way.compiles):
        pretrain(job, bench.worker, clock)
    return clock


def step_flops(bench: Bench, modality: str, technique: str) -> int:
    """FLOPs of the matrix products of a step, counted on tensors without values."""
    signal, settings = bench.catalog(modality).signal, bench.settings()
    method = method_named(technique)(Encoder(signal, settings.encoder), settings.pretrain)
    draws = method.draw(bench.batch, torch.Generator().manual_seed(0))
    on_meta = {name: x.to("meta") for name, x in draws.items()}
    signals = torch.empty(bench.batch, *signal.input_shape, device="meta")
    method = method.to("meta")
    return measure.flops(lambda: method(signals, on_meta))


def per_second(steps: float) -> dict[str, float]:
    """A rate, and what the protocol takes at it."""
    minutes = PROTOCOL / steps / 60
    return measure.rounded_all({"steps_per_second": steps, "minutes_per_100000_steps": minutes})


def pretraining(bench: Bench, modality: str, technique: str, way: Way) -> Result:
    """Steps a second and what follows, of one way to execute them."""
    bench.catalog(modality)  # made before the clock starts
    if bench.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    clock = pretrained(bench, modality, technique, way, bench.steps)
    seconds, rate = time.perf_counter() - start, clock.per_second()
    tflops = step_flops(bench, modality, technique) * rate / 1e12
    figures = {
        "seconds_beside_steps": seconds - bench.steps / rate,
        "tflops_per_second": tflops,
    }
    if bench.on_gpu:
        figures["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        # A graph's own memory is reserved, and not allocated between its captures.
        figures["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
    if bench.peak:
        figures["share_of_peak"] = tflops / bench.peak
    return per_second(rate) | measure.rounded_all(figures) | {"last_loss": clock.losses[-1]}


class EinsumBlock(Block):
    """The encoder's block with its attention written out, as the reference has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) to the same."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)
        x = x + self.dropout(self.project(mixed.flatten(2)))
        output: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return output


def reference(bench: Bench, modality: str, technique: str, precision: str) -> Result:
    """The reference's loop: its encoder and the method's loss, eager, AdamW as PyTorch has it."""
    settings, device = bench.settings(), torch.device(bench.device)
    feed, steps = bench.feed(modality), min(60, bench.steps)
    encoder = Encoder(bench.catalog(modality).signal, settings.encoder)
    encoder.blocks = nn.ModuleList(EinsumBlock(settings.encoder) for _ in encoder.blocks)
    method = method_named(technique)(encoder, settings.pretrain).to(device).train()
    optimiser = torch.optim.AdamW(method.parameters(), lr=settings.pretrain.optimiser.lr)
    batches, start, warm = feed.endless(bench.batch), 0.0, min(5, steps - 1)
    for number in range(steps):
        if number == warm:
            measure.synchronise(bench.device)
            start = time.perf_counter()
        stored = next(batches)
        signals = feed.normalise(stored.signals, stored.scales, stored.sizes)
        draws = method.draw(bench.batch, generator(DRAWS, 0, number))
        with autocast(device, precision):
            loss = method(signals, {name: x.to(device) for name, x in draws.items()})
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        loss.item()  # its loop prints each loss
    measure.synchronise(bench.device)
    return per_second((steps - warm) / (time.perf_counter() - start))


def losses_apart(
    bench: Bench, modality: str, technique: str, changes: Mapping[str, Any], names: list[str]
) -> dict[str, float]:
    """Largest relative difference of the losses of some ways to those of eager steps."""
    ways, steps = WAYS | ON_CPU, min(COMPARED_STEPS, bench.steps)
    changes = {**changes, "execution": {"log_every": 1}}
    eager, *runs = (
        np.array(pretrained(bench, modality, technique, ways[name], steps, changes).losses)
        for name in ("eager", *names)
    )
    differences = [float(np.max(np.abs(losses - eager) / np.abs(eager))) for losses in runs]
    return measure.rounded_all(dict(zip(names, differences, strict=True)))


def resumed(bench: Bench, modality: str, technique: str) -> dict[str, float]:
    """Largest difference of weights from a captured run, of one that stopped half-way and a repeat.

    Both differ alike, as kernels of a GPU add in no fixed order. Dropout is on, nothing is
    compiled.
    """
    way = WAYS["captured" if bench.on_gpu else "eager"]
    settings = bench.settings(step=way.step, checkpoint_every=10)
    settings, catalog = updated(settings, {"pretrain": {"steps": 40}}), bench.catalog(modality)
    weights = []
    for stops in ([None], [None], [17, None]):
        folder = bench.new_folder()
        for stop in stops:
            job = PretrainJob(settings, technique, catalog.path, folder, until=stop)
            with _compiling(False):
                pretrain(job, bench.worker, Clock())
        weights.append(load_file(folder / MODEL))
    whole, *others = weights
    differences = (
        max(float((whole[name] - other[name]).abs().max()) for name in whole) for other in others
    )
    return dict(zip(("repeated", "stopped"), differences, strict=True))


def profiled(bench: Bench, modality: str, technique: str, way: Way) -> Result:
    """What a step launches, and which kernels take its time."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * bench.on_gpu
    profiler = profile(activities=activities)
    add, first, steps, done = Losses.add, min(20, bench.steps), min(10, bench.steps), 0

    def watched(self: Losses, loss: torch.Tensor) -> None:
        nonlocal done
        add(self, loss)
        done += 1
        if done in (first, first + steps):
            measure.synchronise(bench.device)
            profiler.start() if done == first else profiler.stop()

    Losses.add = watched  # type: ignore[method-assign]
    try:
        pretrained(bench, modality, technique, way, first + steps)
    finally:
        Losses.add = add  # type: ignore[method-assign]
    return _profile(list(profiler.key_averages()), steps)


def _profile(events: list[Any], steps: int) -> Result:
    """Launches and times of a step, of the events of some."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

    on_host = [e for e in events if e.device_type == DeviceType.CPU]
    # A kernel's time is also that of the operator that launched it.
    on_device = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    on_device.sort(key=lambda e: -e.self_device_time_total)
    working = [e for e in on_host if "Synchronize" not in e.key]

    def ms_per_step(microseconds: float) -> float:
        return measure.rounded(microseconds / steps / 1e3)

    return {
        "launches_per_step": sum(e.count for e in on_host if "Launch" in e.key) / steps,
        "device_ms_per_step": ms_per_step(sum(e.self_device_time_total for e in on_device)),
        "host_ms_per_step": ms_per_step(sum(e.self_cpu_time_total for e in working)),
        "kernels": [
            {
                "name": e.key[:90],
                "times_per_step": e.count / steps,
                "ms_per_step": ms_per_step(e.self_device_time_total),
            }
            for e in on_device[:15]
        ],
    }


# --- fine-tuning and scoring -----------------------------------------------------------------


def finetuned(bench: Bench, modality: str, way: Way) -> Result:
    """Epochs of a real fine-tuning, validation scored after each."""
    changes = {"transfer": {"mode": "finetune", "epochs": EPOCHS}}
    settings = updated(bench.settings(step=way.step), changes)
    catalog, clock = bench.catalog(modality), Clock()
    with _compiling(way.compiles):
        transfer(TransferJob(settings, catalog.path, bench.new_folder()), bench.worker, clock)
    return {
        "epochs_per_second": measure.rounded(clock.per_second()),
        "steps_of_an_epoch": math.ceil(catalog.rows("train") / bench.batch),
        "validation_records": catalog.rows("validation"),
    }


def scored(bench: Bench, modality: str) -> Result:
    """Records scored a second, and AUROC of as many rows as SHHS has."""
    settings, feed = bench.settings(), bench.feed(modality)
    encoder = Encoder(bench.catalog(modality).signal, settings.encoder)
    size = evaluation_batch(encoder)
    eager = evaluating(encoder, bench.worker, settings.execution.precision)
    passes = {"eager": eager, "graph": graphed(eager, bench.worker, settings, COMPILED_FROM)}

    def rate(forward: Pass) -> float:
        once = partial(collect, forward, feed, size)
        once()
        return feed.rows / min(measure.seconds_of(once, bench.device) for _ in range(3))

    rows = 1_160_000 if bench.on_gpu else 20_000
    draws = np.random.default_rng(0)
    targets = np.eye(5, dtype=np.int8)[draws.integers(0, 5, rows)]
    scores = draws.random((rows, 5))
    ranks: dict[str, Callable[..., Values]] = {
        "host": auroc,
        "device": partial(auroc, of_class=partial(auroc_on, bench.device)),
    }
    for rank in ranks.values():
        assert rank(targets, scores) == auroc(targets, scores)
    seconds = {
        name: measure.seconds_of(partial(rank, targets, scores), bench.device)
        for name, rank in ranks.items()
    }
    return {
        "records_per_second": measure.rounded_all({n: rate(f) for n, f in passes.items()}),
        "auroc_rows": rows,
        "auroc_seconds": measure.rounded_all(seconds),
    }


# --- all of it -------------------------------------------------------------------------------


def measurements(bench: Bench) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and work of each measurement, the most telling first."""
    ways = bench.ways
    compared, fastest = [name for name in ways if name != "eager"], list(ways)[-1]
    for name, way in ways.items():
        yield f"pretrain ecg mae {name}", partial(pretraining, bench, "ecg", "mae", way)
    for precision in ("float32", "bf16"):
        yield f"reference ecg mae {precision}", partial(reference, bench, "ecg", "mae", precision)
    for name, way in ways.items():
        yield f"profile ecg mae {name}", partial(profiled, bench, "ecg", "mae", way)
    apart = partial(losses_apart, bench)
    for technique in METHODS:
        yield f"alike ecg {technique}", partial(apart, "ecg", technique, WITHOUT_DROPOUT, compared)
    if bench.on_gpu:  # where a graph takes the seed of a step, and so draws the same
        yield "with dropout ecg mae", partial(apart, "ecg", "mae", {}, ["captured"])
    yield "resumed ecg mae", partial(resumed, bench, "ecg", "mae")
    for name in dict.fromkeys(("eager", fastest)):
        yield f"finetune ecg {name}", partial(finetuned, bench, "ecg", ways[name])
    yield "scoring ecg", partial(scored, bench, "ecg")
    for modality, technique in product(SOURCES, METHODS):
        if (modality, technique) != ("ecg", "mae"):
            work = partial(pretraining, bench, modality, technique, ways[fastest])
            yield f"pretrain {modality} {technique} {fastest}", work
    for modality, technique in product(("cxr", "ldct"), METHODS):
        work = partial(apart, modality, technique, WITHOUT_DROPOUT, compared)
        yield f"alike {modality} {technique}", work


def attempted(work: Callable[[], Any]) -> Any:
    """What a measurement gives, or why it failed, and what the package warned of."""
    logger, handler = getLogger("benchmd_ray"), BufferingHandler(1000)
    handler.setLevel(WARNING)
    logger.addHandler(handler)
    try:
        result = work()
    except Exception as error:  # the others are worth having
        result = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    finally:
        logger.removeHandler(handler)
    if handler.buffer:  # such as that steps could not be captured, and were executed eagerly
        return {"result": result, "warnings": [record.getMessage() for record in handler.buffer]}
    return result


def ratios(results: Mapping[str, Any]) -> dict[str, float]:
    """Steps a second of each pretraining over those of the reference in each precision."""
    rates = {
        name: values["steps_per_second"]
        for name, values in results.items()
        if isinstance(values, dict) and "steps_per_second" in values
    }
    ours = {name: rate for name, rate in rates.items() if name.startswith("pretrain ecg mae")}
    peers = {name: rate for name, rate in rates.items() if name.startswith("reference")}
    return {
        f"{name} / {peer}": measure.rounded(rate / rate_of_peer)
        for (name, rate), (peer, rate_of_peer) in product(ours.items(), peers.items())
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    options = measure.options(__doc__, arguments, DECLARED, device=True, repeats=False)
    if options.out is None:
        raise SystemExit("--out FILE is required: the JSON file that is written.")
    machine = measure.machine(options.device)
    peaks = [peak for name, peak in PEAKS.items() if name in machine["device"]]
    result: Result = {"benchmark": "gpu", "machine": machine, "results": {}, "skipped": []}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        sizes = (options.device, options.size, options.batch, options.steps)
        bench = Bench(*sizes, Path(folder), options.peak_tflops or next(iter(peaks), None))
        for name, work in measurements(bench):
            if not any(part in name for part in options.only):
                continue
            start = time.monotonic()
            if start - began > 60 * options.minutes:
                result["skipped"].append(name)
            else:
                result["results"][name] = attempted(work)
                seconds = time.monotonic() - start
                summary = json.dumps(result["results"][name])[:400]
                print(f"{name} ({seconds:.0f} s): {summary}", flush=True)
            result["ratios"] = ratios(result["results"])
            result["minutes"] = measure.rounded((time.monotonic() - began) / 60)
            options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
