"""A run's model as an exported program: signals in physical units to probabilities or features.

`torch.export` traces the model with its normalisation, for any number of records. The program is
written as PyTorch's archive, without pickle, and as ONNX; neither contains traced data or local
paths.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.normalise import NORMALISERS, Statistics
from benchmd_ray.data.records import decode_signals
from benchmd_ray.errors import BenchmdError, first_line
from benchmd_ray.modality.signals import Signal, Window, differing_in
from benchmd_ray.training.applied import FeatureEncoder, SignalClassifier, probabilities

TORCH, ONNX = "model.pt2", "model.onnx"
LARGEST_DIFFERENCE = 1e-4
"""Largest allowed `difference` between the outputs of a program and of its model."""
RECORDS = 8
"""Number of records on which a program is compared."""
TRACED = 2

Model = FeatureEncoder | SignalClassifier
Inputs = tuple[torch.Tensor, ...]
"""Signals (records, *stored_shape) in physical units and, if `takes_sizes`, valid sizes."""
Outputs = Callable[[Inputs], torch.Tensor]


class Portable(nn.Module):
    """The module to export: probabilities of a classifier, or features of an encoder."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.whole = model.module.requires_grad_(False)
        self.task = model.task if isinstance(model, SignalClassifier) else None

    def forward(self, signals: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """Compute (records, classes) or (records, width) float32 from `Inputs`."""
        outputs: torch.Tensor = self.whole(signals, sizes)
        return outputs if self.task is None else probabilities(outputs, self.task)


def output_name(model: Model) -> str:
    """Name of a program's output."""
    return "probabilities" if isinstance(model, SignalClassifier) else "features"


def takes_sizes(signal: Signal) -> bool:
    """Whether a program needs valid sizes, to set padding to 0."""
    return NORMALISERS[signal.normaliser].by_statistics


def input_names(signal: Signal) -> tuple[str, ...]:
    return ("signals", "sizes") if takes_sizes(signal) else ("signals",)


def traced(model: Model) -> ExportedProgram:
    signals = torch.zeros(TRACED, *model.signal.stored_shape)
    example = _inputs(model.signal, signals, _whole(model.signal, TRACED))
    records = Dim("records", min=1)
    try:
        with _quiet():
            program = torch.export.export(
                Portable(model).eval(),
                example,
                dynamic_shapes=tuple({0: records} for _ in example),
                strict=True,
            )
    except Exception as error:  # untraceable networks may raise anything
        raise BenchmdError(
            f"PyTorch cannot export this network ({type(error).__name__}: {first_line(error)}): "
            "export it without --torch-export and --onnx, and load the weights with your own code."
        ) from error
    program.example_inputs = None
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    return program


def write_torch(program: ExportedProgram, folder: Path) -> Outputs:
    """Write `TORCH`, and return a function that runs the file."""
    with _quiet():
        data = io.BytesIO()  # the writer kills the process if the disk is full
        torch.export.save(program, data)
        (folder / TORCH).write_bytes(data.getvalue())
        loaded = torch.export.load(folder / TORCH).module()
    return lambda inputs: loaded(*inputs)


def write_onnx(program: ExportedProgram, folder: Path, names: tuple[str, ...], out: str) -> Outputs:
    """Write `ONNX` with its weights, and return a function that runs it in ONNX Runtime."""
    import onnxruntime

    path = folder / ONNX
    try:
        with _quiet():
            torch.onnx.export(
                program,
                f=path,
                input_names=names,
                output_names=[out],
                external_data=False,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # the exporter's own errors are of many types
        raise BenchmdError(
            f"this network cannot be written as ONNX ({type(error).__name__}: "
            f"{first_line(error)}): export it without --onnx; --torch-export may work."
        ) from error
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def outputs(inputs: Inputs) -> torch.Tensor:
        arrays = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run([out], arrays)[0])

    return outputs


@dataclass(frozen=True)
class Checks:
    """Records on which programs are compared with their model."""

    inputs: Inputs
    what: str
    """Description for the card."""


def records_of(catalog: Catalog, signal: Signal) -> Checks:
    if signal not in (catalog.signal, catalog.signal.in_unit):
        raise BenchmdError(
            f"the catalog {catalog.path} is of {catalog.signal.name}, and the model of "
            f"{signal.name}{differing_in(catalog.signal, signal)}: name one of the same signal."
        )
    split = next((name for name in catalog.manifest["splits"] if catalog.rows(name)), "train")
    catalog.require_split(split)
    columns = ("signal", "scale", "valid_size")
    table = catalog.shards(split)[0].table(columns).slice(0, RECORDS).combine_chunks()
    stored = decode_signals(table["signal"], signal).astype(np.float32)
    scales = np.array(table["scale"].to_pylist(), np.float32)
    signals = torch.from_numpy(stored * scales.reshape(-1, *(1,) * (stored.ndim - 1)))
    sizes = torch.tensor(table["valid_size"].to_pylist(), dtype=torch.int64)
    what = f"{len(signals)} records of {catalog.dataset} ({split})"
    return Checks(_inputs(signal, signals, sizes), what)


def noise(signal: Signal, statistics: Statistics | None) -> Checks:
    """Seeded noise in the model's range of values, half of it padded if sizes matter."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(RECORDS, *signal.stored_shape, generator=generator)
    parameters = signal.normaliser_parameters()
    within = parameters.range if isinstance(parameters, Window) else parameters
    if hasattr(within, "low"):
        drawn = within.low + (within.high - within.low) * torch.sigmoid(drawn)
    elif statistics is not None:
        shape = (-1, *(1,) * (drawn.ndim - 2))
        mean, std = (torch.tensor(statistics[name]).reshape(shape) for name in ("mean", "std"))
        drawn = mean + std * drawn
    sizes = _whole(signal, RECORDS).clone()
    sizes[RECORDS // 2 :] = (sizes[RECORDS // 2 :] + 1) // 2
    return Checks(_inputs(signal, drawn, sizes), "seeded noise")


def require_equal(name: str, outputs: Outputs, model: Model, checks: Checks) -> float:
    """Require a small `difference` of a program from its model, on several records and on one."""
    signals, *rest = checks.inputs
    sizes = rest[0] if rest else None
    take = model.predict if isinstance(model, SignalClassifier) else model.features
    expected = take(signals, sizes=sizes)
    single = outputs(tuple(tensor[:1] for tensor in checks.inputs))
    actual = torch.cat([outputs(checks.inputs), single])
    apart = difference(torch.cat([expected, expected[:1]]), actual)
    if not apart <= LARGEST_DIFFERENCE:
        raise BenchmdError(
            f"{name} differs from the model by {apart:.2g} on {checks.what}, expected "
            f"{LARGEST_DIFFERENCE:g} or less: nothing is written. Export without its option, and "
            "report the network."
        )
    return apart


def difference(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """Largest difference of outputs, relative to the largest output if that is above 1."""
    if expected.shape != actual.shape:
        return float("inf")
    return float((actual - expected).abs().max() / max(1.0, float(expected.abs().max())))


def _inputs(signal: Signal, signals: torch.Tensor, sizes: torch.Tensor) -> Inputs:
    return (signals, sizes) if takes_sizes(signal) else (signals,)


def _whole(signal: Signal, records: int) -> torch.Tensor:
    return torch.tensor(signal.stored_shape[1:]).repeat(records, 1)


@contextmanager
def _quiet() -> Iterator[Any]:
    """Silence logs and warnings of exporters, which concern their own code."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
