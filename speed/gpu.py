r"""``python -m speed.gpu --out FILE`` from the project's root: training on a GPU, in eight minutes.

The real pretraining and fine-tuning (feed, draws, logging and checkpoints included) on synthetic
catalogs, as one worker runs them: eager, captured as a CUDA graph, and compiled and captured. The
peer is a plain loop over the same batches on the same device, with the reference's encoder
(attention as two einsums), eager, in float32 as it was released and in bf16.

Each measurement has a process of its own with a time limit, and is in FILE (JSON) as soon as it has
ended. Captured steps are measured first, those that have to be compiled last. The same command
again measures what the first had no time for, and what failed; ``--only`` chooses.

Needs PyTorch, NumPy, pyarrow, PyYAML, safetensors and pydantic; Ray, DeepSpeed and the decoders are
not imported. ``--device cpu --size tiny --batch 4 --steps 8`` tries it without a GPU.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import distributions
from itertools import product
from logging import WARNING, getLogger
from logging.handlers import BufferingHandler
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmd_ray.data.batches import ResidentFeed, Worker
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.feed import resident_feed
from benchmd_ray.files.atomic import write_json
from benchmd_ray.models.encoder import Block, Encoder
from benchmd_ray.runs.files import MODEL
from benchmd_ray.scores.metrics import auroc
from benchmd_ray.settings.definition import (
    ENCODERS,
    EncoderSettings,
    ExecutionSettings,
    Settings,
    updated,
)
from benchmd_ray.ssl import METHODS, method_named
from benchmd_ray.training.collect import collect, evaluating, evaluation_batch
from benchmd_ray.training.engine import autocast, choose_device
from benchmd_ray.training.forward import COMPILED_FROM, can_compile, graphed
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.pretrain import Losses, pretrain
from benchmd_ray.training.seeds import DRAWS, generator
from benchmd_ray.training.selection import auroc_on
from benchmd_ray.training.transfer import transfer
from speed import measure
from speed.noise import noise_catalog

PROTOCOL = 100_000
"""Steps of the fixed protocol."""
SOURCES = {"ecg": ("ptb-xl", 512), "cxr": ("mimic-cxr", 512), "ldct": ("lidc-idri", 128)}
"""Dataset and records of a modality of each number of dimensions."""
MOVED = {
    "pretrain ecg mae captured": 12.1,
    "pretrain ecg shed captured": 11.9,
    "pretrain ecg e-mix captured": 23.1,
    "pretrain cxr mae captured": 11.8,
    "pretrain cxr shed captured": 11.7,
    "pretrain cxr e-mix captured": 22.7,
    "pretrain ldct mae captured": 19.9,
    "pretrain ldct shed captured": 15.9,
    "pretrain ldct e-mix captured": 26.9,
    "pretrain ecg mae compiled": 10.5,
    "pretrain ecg shed compiled": 10.4,
    "pretrain ecg e-mix compiled": 19.6,
    "pretrain cxr mae compiled": 10.3,
    "pretrain cxr shed compiled": 10.2,
    "pretrain cxr e-mix compiled": 19.3,
    "pretrain ldct mae compiled": 12.7,
    "pretrain ldct shed compiled": 10.8,
    "pretrain ldct e-mix compiled": 19.9,
}
"""GB that a step moves with the paper's encoder, batch 64 and bf16, as docs/gpu.md counts them."""
LIMIT_SECONDS = 150
"""Longest time of one measurement."""
EPOCHS = 4
"""Of a fine-tuning."""
COMPARED_STEPS = 50
"""Steps whose losses are compared."""
WITHOUT_DROPOUT = {"encoder": {"dropout": 0.0, "embedding_dropout": 0.0}}
AUGMENTED = {"transfer": {"augmentation": {"shift": 0.1, "intensity": 0.2, "noise": 0.1}}}
COLUMNS = ("ms_per_step", "minutes_per_100000_steps", "peak_gib", "limit_ms", "share_of_limit")
"""Figures of a step that are printed."""
DECLARED = {
    "size": ("paper", "of the encoder", sorted(ENCODERS)),
    "batch": (64, "examples of a step"),
    "steps": (600, "of a pretraining"),
    "minutes": (8.0, "for all; the same command measures what is missing then"),
    "out": (Path, "JSON file (required); one with the same settings is continued"),
    "only": ([""], "measurements whose name has one of these"),
}
Result = dict[str, Any]


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

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is measured."""
        return self.device == "cuda"

    @cached_property
    def worker(self) -> Worker:
        """The only one; the first use chooses the attention, as a run does."""
        return Worker(device=choose_device(self.device))

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
        if not folder.is_dir():
            dataset, records = SOURCES[modality]
            records //= 1 if self.on_gpu else 16
            unfinished = self.new_folder()
            noise_catalog(dataset, unfinished, {"train": records, "validation": records // 2})
            folder.parent.mkdir(exist_ok=True)
            unfinished.rename(folder)
        return open_catalog(folder)

    def feed(self, modality: str) -> ResidentFeed:
        """The training split of a synthetic catalog."""
        catalog = self.catalog(modality)
        return resident_feed(
            catalog, "train", seed=0, worker=self.worker, statistics=catalog.statistics
        )

    def new_folder(self) -> Path:
        """For a run."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def step(self, way: str) -> str:
        """``execution.step`` of a way; on a GPU what is compiled is also captured."""
        return "captured" if self.on_gpu and way == "compiled" else way


def compiling(way: str) -> Any:
    """A context in which captured steps are compiled, too, if that is the way."""
    return patch("benchmd_ray.training.steps.can_compile", return_value=way == "compiled")


# --- pretraining -----------------------------------------------------------------------------


def pretrained(
    bench: Bench,
    modality: str,
    technique: str,
    way: str,
    steps: int,
    changes: Mapping[str, Any] | None = None,
) -> Clock:
    """The reports of a real pretraining."""
    log_every = max(1, min(ExecutionSettings().log_every, steps // 4))
    settings = bench.settings(step=bench.step(way), log_every=log_every)
    settings = updated(updated(settings, {"pretrain": {"steps": steps}}), changes or {})
    job = PretrainJob(settings, technique, bench.catalog(modality).path, bench.new_folder())
    clock = Clock()
    with compiling(way):
        pretrain(job, bench.worker, clock)
    return clock


def per_second(steps: float) -> dict[str, float]:
    """A rate, and what a step and the protocol take at it."""
    minutes = {"minutes_per_100000_steps": PROTOCOL / steps / 60}
    return measure.rounded_all({"steps_per_second": steps, "ms_per_step": 1e3 / steps} | minutes)


def pretraining(bench: Bench, modality: str, technique: str, way: str) -> Result:
    """Steps a second and what follows, of one way to execute them."""
    bench.catalog(modality)  # made before the clock starts
    start = time.perf_counter()
    clock = pretrained(bench, modality, technique, way, bench.steps)
    seconds, rate = time.perf_counter() - start, clock.per_second()
    figures = {"seconds_beside_steps": seconds - bench.steps / rate}
    if bench.on_gpu:
        figures["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        # A graph's own memory is reserved, and not allocated between its captures.
        figures["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
    return per_second(rate) | measure.rounded_all(figures) | {"last_loss": clock.losses[-1]}


class EinsumBlock(Block):
    """The encoder's block as the reference has it: attention written out, tokens in float32."""

    def __init__(self, size: EncoderSettings) -> None:
        super().__init__(size)
        for name in ("attention_norm", "mlp_norm"):
            setattr(self, name, nn.LayerNorm(size.width, size.norm_eps))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) to the same."""
        x = x.float()
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


def alike(
    bench: Bench, modality: str, technique: str, way: str, dropout: str = ""
) -> dict[str, float]:
    """Largest relative difference of losses to those of eager steps: eager once more, and a way."""
    changes = {} if dropout else WITHOUT_DROPOUT
    changes, steps = {**changes, "execution": {"log_every": 1}}, min(COMPARED_STEPS, bench.steps)
    eager, *others = (
        np.array(pretrained(bench, modality, technique, name, steps, changes).losses)
        for name in ("eager", "eager", way)
    )
    apart = (float(np.max(np.abs(losses - eager) / np.abs(eager))) for losses in others)
    return measure.rounded_all(dict(zip(("eager again", way), apart, strict=True)))


def resumed(bench: Bench, modality: str, technique: str, way: str) -> dict[str, float]:
    """Largest difference of weights from those of a run, of one that stopped half-way and a repeat.

    Both differ alike, as kernels of a GPU add in no fixed order. Dropout is on.
    """
    settings = bench.settings(step=way, checkpoint_every=10)
    settings, catalog = updated(settings, {"pretrain": {"steps": 40}}), bench.catalog(modality)
    weights = []
    for stops in ([None], [None], [17, None]):
        folder = bench.new_folder()
        for stop in stops:
            job = PretrainJob(settings, technique, catalog.path, folder, until=stop)
            with compiling(way):
                pretrain(job, bench.worker, Clock())
        weights.append(load_file(folder / MODEL))
    whole, *others = weights
    differences = (
        max(float((whole[name] - other[name]).abs().max()) for name in whole) for other in others
    )
    return dict(zip(("repeated", "stopped"), differences, strict=True))


def profiled(bench: Bench, modality: str, technique: str, way: str) -> Result:
    """What a step launches, and which kernels take its time."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * bench.on_gpu
    add, first, steps = Losses.add, 20, 10
    when = schedule(wait=first, warmup=1, active=steps, repeat=1)
    with profile(activities=activities, schedule=when, acc_events=True) as profiler:

        def watched(self: Losses, loss: torch.Tensor) -> None:
            add(self, loss)
            measure.synchronise(bench.device)
            profiler.step()

        with patch.object(Losses, "add", watched):
            pretrained(bench, modality, technique, way, first + steps + 2)
    events = [e for e in profiler.key_averages() if not e.key.startswith("ProfilerStep")]
    on_host = [e for e in events if e.device_type == DeviceType.CPU]
    # A kernel's time is also that of the operator that launched it.
    kernels = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    kernels.sort(key=lambda e: -e.self_device_time_total)
    ms = {e.key[:90]: e.self_device_time_total / steps / 1e3 for e in kernels}
    working = (e.self_cpu_time_total for e in on_host if "Synchronize" not in e.key)
    return {
        "launches_per_step": sum(e.count for e in on_host if "Launch" in e.key) / steps,
        "device_ms_per_step": measure.rounded(sum(ms.values())),
        "host_ms_per_step": measure.rounded(sum(working) / steps / 1e3),
        "kernels_ms_per_step": measure.rounded_all(dict(list(ms.items())[:15])),
    }


# --- fine-tuning and scoring -----------------------------------------------------------------


def finetuned(bench: Bench, modality: str, way: str, augmented: str = "") -> Result:
    """Epochs of a real fine-tuning, validation scored after each."""
    changes = {"transfer": {"mode": "finetune", "epochs": EPOCHS}}
    settings = updated(bench.settings(step=bench.step(way)), changes)
    settings = updated(settings, AUGMENTED if augmented else {})
    catalog, clock = bench.catalog(modality), Clock()
    with compiling(way):
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
    rows, draws = 1_160_000 if bench.on_gpu else 20_000, np.random.default_rng(0)
    targets, scores = np.eye(5, dtype=np.int8)[draws.integers(0, 5, rows)], draws.random((rows, 5))
    ranks: dict[str, dict[str, Any]] = {
        "host": {},
        "device": {"of_class": partial(auroc_on, bench.device)},
    }

    def seconds_of(work: Callable[[], object]) -> float:
        work()
        return min(measure.seconds_of(work, bench.device) for _ in range(3))

    rates = {
        name: feed.rows / seconds_of(partial(collect, forward, feed, size))
        for name, forward in passes.items()
    }
    seconds = {
        name: seconds_of(partial(auroc, targets, scores, **how)) for name, how in ranks.items()
    }
    return {
        "records_per_second": measure.rounded_all(rates),
        "auroc_rows": rows,
        "auroc_seconds": measure.rounded_all(seconds),
    }


# --- all of it -------------------------------------------------------------------------------


def copied(bench: Bench) -> dict[str, float]:
    """TB a second that a copy on the device reads and writes."""
    source = torch.zeros(2**32 if bench.on_gpu else 2**26, dtype=torch.uint8, device=bench.device)
    copy = partial(torch.empty_like(source).copy_, source)
    seconds = min(measure.seconds_of(copy, bench.device) for _ in range(20))
    return {"tb_per_second": measure.rounded(2 * len(source) / seconds / 1e12)}


def with_attention(bench: Bench, modality: str, technique: str, way: str, backend: str) -> Result:
    """A pretraining with another attention than the pinned one."""
    bench.worker  # noqa: B018  # pins it
    with sdpa_kernel(getattr(SDPBackend, backend)):
        return pretraining(bench, modality, technique, way)


WORKS: dict[str, Callable[..., Result]] = {
    "copy": copied,
    "pretrain": pretraining,
    "reference": reference,
    "attention": with_attention,
    "finetune": finetuned,
    "profile": profiled,
    "scoring": scored,
    "alike": alike,
    "resumed": resumed,
}
"""Measurements by the first word of a name; the others are their arguments."""


def measurements(bench: Bench) -> list[str]:
    """Names of all, the most telling first and what is compiled last."""
    plain, of_gpu = ("captured", ["captured"]) if bench.on_gpu else ("eager", [])
    pairs = [f"ecg {name}" for name in ("mae", "shed", "e-mix")]
    pairs += [" ".join(pair) for pair in product(("cxr", "ldct"), METHODS)]
    names = [
        "copy",
        *(f"pretrain {pair} {plain}" for pair in pairs),
        "pretrain ecg mae eager",
        *(f"reference ecg mae {precision}" for precision in ("float32", "bf16")),
        *(f"attention ecg mae {way} FLASH_ATTENTION" for way in of_gpu),
        *(f"attention ecg mae {way} CUDNN_ATTENTION" for way in of_gpu),
        *(f"finetune ecg {way}" for way in ("eager", plain)),
        *(f"finetune ecg {way} augmented" for way in ("eager", plain)),
        *(f"profile ecg mae {way}" for way in ("eager", plain)),
        "scoring ecg",
        f"resumed ecg mae {plain}",
        *(f"alike {pair} {way}" for pair in pairs for way in of_gpu),
        # A graph takes the seed of a step, and so draws the same.
        *(f"alike ecg mae {way} dropout" for way in of_gpu),
    ]
    if can_compile(torch.device(bench.device)):
        names += [f"pretrain {pair} compiled" for pair in pairs[: 9 if of_gpu else 1]]
        names += [f"{work} compiled" for work in ("finetune ecg", "profile ecg mae") if of_gpu]
        names += [f"alike {pair} compiled" for pair in pairs[: 3 if of_gpu else 1]]
    return list(dict.fromkeys(names))


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
        result["warnings"] = [record.getMessage() for record in handler.buffer]
    return result


def _serve(bench: Bench, name: str, threads: int | None, results: Connection) -> None:
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    work, *words = name.split()
    results.send(attempted(partial(WORKS[work], bench, *words)))


def measured(bench: Bench, name: str, threads: int | None, seconds: float) -> Any:
    """The result of a measurement in a process of its own; None if it takes longer."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([transfer.__module__, pretrain.__module__])  # imported only once
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(bench, name, threads, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(seconds) else None
    except EOFError:
        process.join()
        return {"failed": f"its process ended with exit code {process.exitcode}"}
    finally:
        process.join(2)
        process.kill()
        process.join()


def ratios(results: Mapping[str, Any]) -> dict[str, float]:
    """Steps a second of each pretraining over those of the reference in each precision."""
    rates = {name: x["steps_per_second"] for name, x in results.items() if "steps_per_second" in x}
    ours = {name: rate for name, rate in rates.items() if name.startswith("pretrain ecg mae")}
    peers = {name: rate for name, rate in rates.items() if name.startswith("reference")}
    return {
        f"{name} / {peer}": measure.rounded(rate / rate_of_peer)
        for (name, rate), (peer, rate_of_peer) in product(ours.items(), peers.items())
    }


def limited(name: str, result: Result, bench: Bench, results: Result) -> Result:
    """A pretraining's result with the least time that moving its bytes takes, and its share."""
    moved, rate = MOVED.get(name), results.get("copy", {}).get("tb_per_second")
    counted = (bench.device, bench.size, bench.batch) == ("cuda", "paper", 64)
    if not (counted and moved and rate and "ms_per_step" in result):
        return result
    limit = {"limit_ms": moved / rate, "share_of_limit": moved / rate / result["ms_per_step"]}
    return result | measure.rounded_all(limit)


def line_of(name: str, result: Result) -> str:
    """A line of the table."""
    if "ms_per_step" in result:
        cells = (f"{result[key]:9.3g}" if key in result else f"{'–':>9}" for key in COLUMNS)
        text = " ".join(cells) + "  warned" * ("warnings" in result)
    else:
        hidden = ("seconds", "kernels_ms_per_step")
        text = json.dumps({key: x for key, x in result.items() if key not in hidden})[:300]
    return f"{name:39} {result['seconds']:4.0f} {text}"


def machine(bench: Bench) -> Result:
    """What figures of two machines have to be compared by, versions and attention included."""
    about, driver = measure.machine(bench.device), Path("/proc/driver/nvidia/version")
    del about["load_at_end"]
    packages = {d.name: d.version for d in distributions() if d.name in ("numpy", "triton")}
    text = driver.read_text("utf-8") if driver.is_file() else ""
    found = re.search(r"\d{3}\.\d+(\.\d+)?", text)
    shape, like = (bench.batch, 8, 200, 32), {"device": bench.worker.device, "requires_grad": True}
    heads = torch.empty(shape, dtype=torch.bfloat16, **like)  # type: ignore[call-overload]
    attention = SDPBackend(torch._fused_sdp_choice(heads, heads, heads)).name
    return about | packages | {"driver": found[0] if found else "", "attention": attention}


def continued(path: Path, result: Result) -> None:
    """Take over the results of a file, if there is one, of the same settings and machine."""
    if not path.is_file():
        return
    earlier = json.loads(path.read_text("utf-8"))
    for part in ("settings", "machine"):
        differing = [key for key, x in result[part].items() if earlier[part].get(key) != x]
        if differing:
            raise SystemExit(
                f"--out {path} has measurements with another {', '.join(differing)}: name another "
                "file, or measure with the same."
            )
    result["results"] = earlier["results"]


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    options = measure.options(__doc__, arguments, DECLARED, device=True, repeats=False)
    if options.out is None:
        raise SystemExit("--out FILE is required: the JSON file that is written.")
    began = time.monotonic()
    sizes = {name: getattr(options, name) for name in ("device", "size", "batch", "steps")}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(**sizes, folder=Path(folder))
        about = {"settings": sizes | {"threads": options.threads}, "machine": machine(bench)}
        result: Result = {"benchmark": "gpu", **about, "results": {}, "skipped": []}
        continued(options.out, result)
        results: Result = result["results"]
        print(f"{'':39}    s   ms/step min/1e5 s  peak GiB  limit ms  share")
        for name, earlier in results.items():
            print(line_of(name, earlier))

        todo = [
            name
            for name in measurements(bench)
            if any(part in name for part in options.only)
            and "failed" in results.get(name, ["failed"])
        ]
        for name in sorted(todo, key=lambda name: name in results):  # what failed comes last
            start = time.monotonic()
            left = 60 * options.minutes - (start - began)
            allowed = min(LIMIT_SECONDS, left)
            found = measured(bench, name, options.threads, allowed) if left > 0 else None
            if found is None and allowed == LIMIT_SECONDS:
                found = {"failed": f"took longer than {LIMIT_SECONDS} s"}
            if found is None:
                result["skipped"].append(name)
            else:
                found = limited(name, found, bench, results)
                results[name] = found | {"seconds": measure.rounded(time.monotonic() - start)}
                print(line_of(name, results[name]), flush=True)
            result["ratios"] = ratios(results)
            result["minutes"] = measure.rounded((time.monotonic() - began) / 60)
            write_json(options.out, result)
    if result["skipped"]:
        print("No time for these, which the same command measures:", *result["skipped"], sep="\n")


if __name__ == "__main__":
    main()
