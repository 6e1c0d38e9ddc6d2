r"""``python -m studies.zero --size paper --workers 2 4`` from the project's root.

Several workers on this machine's CPUs, by DeepSpeed and gloo, in two parts.

``losses``: each method's losses over the first steps of the tiny encoder with 1, 2 and 4 workers,
on the same batches and draws; ``largest_difference`` is that to one worker. Dropout is off, as
each worker draws its own.

``runs``: masked autoencoding of the encoder ``--size`` with ZeRO stage 0, 1, 2 and 3. The memory is
that of the worker that takes most: ``peak_mib`` is its peak resident set above the one before the
model was made, activations included; ``held_mib`` the tensors it holds when AdamW has stepped:
parameters, gradients, moments and buffers. ``memory_ratio``, ``held_ratio`` and ``time_ratio``
compare with stage 0 of as many workers. ``--batch`` is shared by the workers. Freed memory is given
back to the system at once (glibc's mallopt), so that the peak is of live memory; training does not
do so and may keep more.

With more workers than CPUs the times say little; the memory is the same. ``--size large`` takes
about 5 GiB for each worker in stage 0.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import importlib
import json
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import start_processes
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmd_ray.data.batches import Worker
from benchmd_ray.modality.modalities import modalities
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.settings.definition import (
    ENCODERS,
    ExecutionSettings,
    OptimiserSettings,
    PretrainSettings,
)
from benchmd_ray.ssl import METHODS, method_named
from benchmd_ray.training.engine import Engine, gather, import_deepspeed, make_engine
from speed import measure

LOSS_WORKERS = (1, 2, 4)
DECLARED = {
    "size": ("paper", "of the encoder", sorted(ENCODERS)),
    "modality": ("ecg", "whose signals are encoded", sorted(modalities())),
    "workers": ([2, 4], "of each run"),
    "stages": ([0, 1, 2, 3], "of ZeRO"),
    "batch": (4, "examples of a step"),
    "precision": ("float32", "of the runs", ("float32", "bf16")),
    "loss_steps": (5, "steps of the losses"),
}
MIB = 2**20
M_MMAP_THRESHOLD = -3
"""Parameter of glibc's mallopt: from this size on memory is given back when it is freed."""


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, may_be_0={"stages"})
    torch.set_num_threads(options.threads or 1)
    import_deepspeed(torch.device("cpu"))
    for late in ("torch._dynamo", "deepspeed.runtime.zero.muon.muon_optimizer"):
        importlib.import_module(late)  # else the first step does, and counts as its memory
    measure.print_result(
        "zero",
        options,
        losses={name: losses(name, options) for name in METHODS},
        parameters=sum(p.numel() for p in method("mae", options.size, options).parameters()),
        runs=runs(options),
    )


def losses(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A method's losses with 1, 2 and 4 workers."""
    losses_of_workers = {}
    for world in LOSS_WORKERS:
        execution = ExecutionSettings(workers=world, device="cpu")
        losses_of_workers[world] = forked(world, "losses_of", name, execution, arguments)[0]
    differences = [
        abs(value - single)
        for world in LOSS_WORKERS[1:]
        for value, single in zip(losses_of_workers[world], losses_of_workers[1], strict=True)
    ]
    return {"workers": losses_of_workers, "largest_difference": measure.rounded(max(differences))}


def runs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Memory and time of each stage."""
    results: list[dict[str, Any]] = []
    for world in arguments.workers:
        stage_0: dict[str, Any] = {}
        for stage in arguments.stages:
            execution = ExecutionSettings(
                engine="deepspeed",
                device="cpu",
                workers=world,
                zero_stage=stage,
                precision=arguments.precision,
            )
            workers_figures = forked(world, "memory_of", "mae", execution, arguments)
            figures: dict[str, Any] = {
                "workers": world,
                "zero_stage": stage,
                "peak_mib": measure.rounded(max(one["peak"] for one in workers_figures) / MIB),
                "held_mib": measure.rounded(max(one["held"] for one in workers_figures) / MIB),
                "ms_per_step": measure.spread([1000 * s for s in workers_figures[0]["seconds"]]),
            }
            stage_0 = stage_0 or (figures if stage == 0 else {})
            if stage_0:
                figures |= ratios(figures, stage_0)
            results.append(figures)
            sys.stderr.write(f"{json.dumps(figures)}\n")
    return results


def ratios(figures: dict[str, Any], to: dict[str, Any]) -> dict[str, float]:
    """A stage over stage 0."""
    return {
        "memory_ratio": measure.rounded(figures["peak_mib"] / to["peak_mib"]),
        "held_ratio": measure.rounded(figures["held_mib"] / to["held_mib"]),
        "time_ratio": measure.rounded(
            figures["ms_per_step"]["median"] / to["ms_per_step"]["median"]
        ),
    }


def method(name: str, size: str, arguments: argparse.Namespace) -> nn.Module:
    """A method on an encoder without dropout."""
    torch.manual_seed(arguments.seed)
    chosen = dataclasses.replace(ENCODERS[size], dropout=0.0, embedding_dropout=0.0)
    encoder = make_encoder(modalities()[arguments.modality].signal, chosen)
    module: nn.Module = method_named(name)(encoder, PretrainSettings())
    return module


def stepped(
    engine: Engine, batch: int, steps: int, arguments: argparse.Namespace
) -> Iterator[float]:
    """Train; gives the loss of each step, mean over the workers."""
    worker, shape = engine.worker, modalities()[arguments.modality].signal.input_shape
    share = slice(worker.rank * batch // worker.world, (worker.rank + 1) * batch // worker.world)
    for step in range(steps):
        generator = torch.Generator().manual_seed(arguments.seed + step)
        signals = torch.randn(batch, *shape, generator=generator)[share]
        drawn = engine.module.draw(batch, generator)  # type: ignore[operator]
        loss = engine(signals, {key: x[share] for key, x in drawn.items()}, gather)
        engine.set_lr(1e-4)
        engine.backward(loss)
        engine.update()
        yield float(gather(loss.detach()[None]).mean())


def losses_of(
    name: str, worker: Worker, execution: ExecutionSettings, arguments: argparse.Namespace
) -> list[float]:
    """Losses of a worker's first steps."""
    module = method(name, "tiny", arguments)
    engine = make_engine(module, OptimiserSettings(), execution, worker)
    return list(stepped(engine, 8, arguments.loss_steps, arguments))


def memory_of(
    name: str, worker: Worker, execution: ExecutionSettings, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Bytes and seconds of a worker's steps."""
    # Else the allocator keeps what is freed, and the resident set is not what is needed.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17)
    tensors, resident, tensors_held = tensor_bytes(), resident_bytes(), [0]

    def look(*_: object) -> None:
        if len(tensors_held) == 1:  # once, as it takes time
            gc.collect()  # cycles that are not collected yet hold tensors
            tensors_held.append(tensor_bytes())

    register_optimizer_step_post_hook(look)
    module = method(name, arguments.size, arguments)
    engine = make_engine(module, OptimiserSettings(), execution, worker)
    seconds, begin = [], time.perf_counter()
    for _ in stepped(engine, arguments.batch, arguments.warm_up + arguments.repetitions, arguments):
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "peak": peak - resident,
        "held": tensors_held[-1] - tensors,
        "seconds": seconds[arguments.warm_up :],
    }


def resident_bytes() -> int:
    """Resident set size of this process."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()


def tensor_bytes() -> int:
    """Bytes of all tensors that there are and of their gradients, each memory once."""
    tensors = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
    tensors += [x.grad for x in tensors if x.is_leaf and x.grad is not None]
    memories = (x.untyped_storage() for x in tensors if x.device.type == "cpu")
    return sum({memory.data_ptr(): memory.nbytes() for memory in memories}.values())


def forked(world: int, task: str, *about: Any) -> list[Any]:
    """What each of several new workers gives back."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        inputs = (world, port, Path(folder), task, *about)
        start_processes(_work, inputs, nprocs=world, start_method="fork")  # type: ignore[no-untyped-call]
        return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(world)]


def _work(
    rank: int, world: int, port: int, folder: Path, task: str, name: str, *about: Any
) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    result = {"losses_of": losses_of, "memory_of": memory_of}[task](
        name, Worker(rank, world), *about
    )
    (folder / str(rank)).write_text(json.dumps(result))
    dist.barrier()


if __name__ == "__main__":
    main()
