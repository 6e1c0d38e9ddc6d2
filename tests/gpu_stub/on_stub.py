"""Counts of real trainings on a stub of the CUDA runtime, whose kernels do nothing.

Prints one JSON object. Values are noise, so that nothing may depend on them.
"""

import ctypes
import gc
import json
import logging
import math
import os
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch._inductor import metrics
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmd_ray.data import streaming
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.modality.modalities import modalities
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.ssl import method_named
from benchmd_ray.ssl.mae import MAE
from benchmd_ray.training import forward, reporter, selection, steps
from benchmd_ray.training import pretrain as pretraining
from benchmd_ray.training import transfer as transferring
from benchmd_ray.training.engine import make_engine
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.pretrain import pretraining_loss
from speed import gpu

STUB = ctypes.CDLL("libstub.so")
STUB.stub_graph_nodes.restype = ctypes.c_long
RECORDS = {"ecg": ("ptb-xl", 32), "cxr": ("mimic-cxr", 32), "ldct": ("lidc-idri", 12)}
RECORDS["hippocampus"] = ("hippocampus", 12)
FOLDER = Path(tempfile.mkdtemp(dir=os.environ.get("STUB_WORK")))
TRAINING = {"pretrain": {"steps": 12}, "execution": {"step": "captured", "log_every": 50}}


def ignore_values():
    """Nothing is compared or refused for its value."""
    selection.auroc_on = lambda device, target, score: 0.5
    for module in (reporter, pretraining, transferring):
        module.require_finite = lambda *_: None
    forward._close = steps._close = lambda *_: True
    steps._State.distance = lambda _: 0.0
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN is no part of the stub


def counted():
    """What the runtime was asked for since the last time."""
    file = FOLDER / "counts.txt"
    STUB.stub_print(str(file).encode())
    STUB.stub_reset()
    counts = Counter()
    for line in file.read_text().splitlines():
        kind, number, name = line.split("\t")
        counts[kind, name] += int(number)
    return counts


def totals(counts):
    return {
        "launches": sum(n for (kind, _), n in counts.items() if kind == "L"),
        "waits": sum(n for (_, name), n in counts.items() if "waits" in name),
    }


def bench(size="tiny", batch=8):
    return gpu.Bench("cuda", size, batch, 12, FOLDER)


@contextmanager
def counting():
    """Counts of each step, of which none is compiled."""
    per_step, call = [], steps.Steps.__call__

    def counted_call(*inputs):
        per_step.append(totals(counted()))
        return call(*inputs)

    no_compiler = patch.object(steps, "can_compile", lambda _: False)
    with no_compiler, patch.object(steps.Steps, "__call__", counted_call):
        yield per_step


def pretrained(kind, technique, changes=None, *, size="tiny"):
    """Counts of each step."""
    made = bench(size)
    settings = updated(updated(made.settings(), TRAINING), changes or {})
    job = PretrainJob(settings, technique, made.catalog(kind).path, made.new_folder())
    with counting() as per_step:
        pretraining.pretrain(job, made.worker, gpu.Clock())
    return per_step


def finetuned(kind, changes=None):
    """Counts of each step."""
    made = bench()
    settings = updated(made.settings(), {"execution": TRAINING["execution"]})
    settings = updated(settings, {"transfer": {"mode": "finetune", "epochs": 3}})
    settings = updated(settings, changes or {})
    job = TransferJob(settings, made.catalog(kind).path, made.new_folder())
    with counting() as per_step:
        transferring.transfer(job, made.worker, gpu.Clock())
    return per_step


def augmented_step(kind, *names):
    """A replayed step of a fine-tuning with some changes of its signals."""
    strengths = dict.fromkeys(names, 0.2)
    per_step = finetuned(kind, {"transfer": {"augmentation": strengths, "epochs": 8}})
    return min(per_step, key=lambda counts: counts["launches"])


def usual_step(kind, technique):
    """A replayed step of the paper's encoder, and the nodes of its graph."""
    per_step = pretrained(kind, technique, size="paper")
    return {**per_step[-3], "nodes": STUB.stub_graph_nodes()}


class Moved(TorchDispatchMode):
    """Bytes that operations read and write."""

    total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        name = operation.__name__.partition(".")[0]
        if not operation.is_view and name not in ("empty_like", "empty_strided", "_unsafe_view"):
            read, written = (args, kwargs), result
            if name in ("_foreach_copy_", "copy_"):
                read, written = args[1], args[0]
            elif name == "_fused_adamw_":
                written = [args[0], args[2], args[3]]
            self.total += sum(map(bytes_of, tree_leaves((read, written))))
        return result


def bytes_of(x):
    """Bytes of a tensor on the device; one that is expanded is read as what it holds."""
    if not isinstance(x, torch.Tensor) or x.device.type != "cuda":
        return 0
    extents = zip(x.shape, x.stride(), strict=True)
    return math.prod(extent for extent, stride in extents if stride) * x.element_size()


def passes(kind, technique):
    """Engine and loss of a pretraining with the paper's encoder, and inputs of a step."""
    signal, device = modalities()[kind].signal, torch.device("cuda", 0)
    settings = updated(Settings(), {"execution": {"device": "cuda"}})
    method = method_named(technique)(make_encoder(signal, settings.encoder), settings.pretrain)
    about = (settings.pretrain.optimiser, settings.execution, Worker(device=device))
    engine = make_engine(method.train(), *about)
    statistics = {name: [1.0] * signal.stored_shape[0] for name in ("mean", "std")}
    loss = pretraining_loss(engine, normaliser(signal, statistics, device), 1)
    batch = settings.pretrain.batch_size
    stored = torch.zeros(batch, *signal.stored_shape, dtype=getattr(torch, signal.dtype))
    inputs = {
        "signals": stored,
        "scales": torch.ones(batch),
        "sizes": torch.tensor([signal.stored_shape[1:]] * batch, dtype=torch.int32),
    }
    draws = method.draw(batch, torch.Generator())
    inputs |= {f"{steps.DRAWN}{name}": x for name, x in draws.items()}
    return engine, loss, {name: x.to(device) for name, x in inputs.items()}


def moved(kind, technique):
    """GB of a step without compiling."""
    engine, loss, inputs = passes(kind, technique)
    for _ in range(2):  # the first one creates AdamW's moments
        with Moved() as counted_bytes:
            engine.backward(loss(inputs)[0])
            engine.update()
    return {"gb": counted_bytes.total / 1e9}


def moved_compiled(kind, technique):
    """GB of a step by Inductor's own count, and those of AdamW."""
    torch._logging.set_logs(inductor_metrics=True)  # otherwise it does not count
    engine, loss, inputs = passes(kind, technique)
    engine.backward(forward.compiled(loss)(inputs)[0])
    parameters = sum(p.numel() for p in engine.module.parameters())
    return {"gb": (metrics.num_bytes_accessed + 28 * parameters) / 1e9}


KERNELS = {"encoder": {"network": "random-kernels"}, "transfer": {"mode": "linear"}}
FLOWS = {
    "streaming": ("ecg", {"execution": {"feed": "streaming"}}),
    "linear": ("ecg", {"transfer": {"mode": "linear"}}),
    "nearest neighbours": ("ecg", {"transfer": {"mode": "knn"}}),
    "random kernels": ("ecg", KERNELS),
    "ResNet": ("cxr", {"encoder": {"network": "resnet18", "options": {"width": 8}}}),
    "segmentation": ("hippocampus", {"encoder": {"network": "monai-unet"}}),
}


def plain_stream(shards, size, columns):
    """Tables of a stream without Ray, which does not start on the stub."""
    return (shard.table(list(columns)) for shard in shards)


def flow(name):
    """Warnings of a transfer, of scoring with its model, and of what detectors compute with it."""
    from benchmd_ray.benchmarks.ood import network  # these need pandas and more
    from benchmd_ray.training.predict import classified

    torch.backends.cudnn.enabled = False  # cuDNN is no part of the stub
    streaming._stream = plain_stream
    said, made, folder = watched(), bench(), FOLDER / name
    kind, changes = FLOWS[name]
    settings = updated(made.settings(), {"transfer": {"mode": "finetune", "epochs": 3}})
    settings, catalog = updated(settings, changes), made.catalog(kind)
    upstream = None
    if name == "random kernels":
        upstream = made.new_folder()
        job = PretrainJob(settings, name.replace(" ", "-"), catalog.path, upstream)
        pretraining.pretrain(job, made.worker, reporter.SilentReporter())
    folder.mkdir()
    job = TransferJob(settings, catalog.path, folder, upstream=upstream)
    transferring.transfer(job, made.worker, reporter.SilentReporter())
    if name == "segmentation":
        return {"warnings": said}
    rows = len(classified(folder, catalog, settings, made.worker))
    if name not in ("nearest neighbours", "random kernels"):
        signal = catalog.signal
        batch = np.zeros((4, *signal.stored_shape), signal.dtype), np.ones(4, np.float32)
        sizes = np.array([signal.stored_shape[1:]] * 4, np.int32)
        with patch.object(network, "_pretraining", lambda _: (None, None)):
            network.Network.of(folder, made.worker, "bf16").quantities(*batch, sizes)
    return {"warnings": said, "rows": rows}


def watched():
    """A list that receives all warnings."""
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("benchmd_ray").addHandler(handler)
    return said


def checkpoint():
    """The step after whose predecessor a checkpoint is taken."""
    return pretrained("ecg", "mae", {"execution": {"checkpoint_every": 6}}, size="paper")[6]


def memory():
    """MiB that are allocated after each of 20 trainings."""
    taken = []
    for number in range(20):
        finetuned("ecg") if number % 2 else pretrained("ecg", "mae")
        gc.collect()
        torch.cuda.empty_cache()
        taken.append(torch.cuda.memory_allocated() / 2**20)
    return {"taken": taken}


def fallback():
    """Warnings of a method that waits for the device, and of the next training."""
    said, usual = watched(), MAE.forward

    def waiting(self, *inputs):
        loss = usual(self, *inputs)
        float(loss.detach())
        return loss

    with patch.object(MAE, "forward", waiting):
        pretrained("ecg", "mae")
    first, said[:] = [*said], []
    return {"first": first, "launches": pretrained("ecg", "mae")[-3]["launches"], "next": said}


if __name__ == "__main__":
    ignore_values()
    gpu.SOURCES = RECORDS
    name, *inputs = sys.argv[1:]
    sys.stdout.write(json.dumps(globals()[name](*inputs)) + "\n")
