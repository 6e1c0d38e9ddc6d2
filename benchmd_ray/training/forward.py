"""CUDA graphs and compiled code, and forward passes without gradients by them."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import first_line
from benchmd_ray.models.encoder import NETWORKS
from benchmd_ray.settings.definition import Settings

Pass = Callable[[torch.Tensor], torch.Tensor]
"""Signals (batch, *input_shape) to outputs (batch, …), both on the device."""
T = TypeVar("T")

COMPILED_FROM = 2000
"""Steps from which on ``auto`` compiles: that takes up to a minute."""
BACKEND = "inductor"
ALIKE = 0.02
"""Largest relative difference of what a graph gives."""
logger = logging.getLogger(__name__)


def can_compile(device: torch.device) -> bool:
    """Whether ``torch.compile`` finds what it needs on this machine."""
    from torch.utils._triton import has_triton

    compiler = any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    return compiler and (device.type != "cuda" or has_triton())


def compiled(work: Callable[..., T]) -> Callable[..., T]:
    """The same function, compiled as a whole when it is first called with inputs of a shape."""
    # Else all trainings of a process share a limit of eight shapes.
    how: dict[str, Any] = {"isolate_recompiles": True}
    compiled_work: Callable[..., T] = torch.compile(
        work, fullgraph=True, dynamic=False, backend=BACKEND, **how
    )
    return compiled_work


class CudaGraph:
    """A CUDA graph; those of one training share their memory and the stream of their capture."""

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph, self._pool, self._stream = torch.cuda.CUDAGraph(), pool, stream

    def capture(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Record what a function does on the device, without doing it.

        Returns:
            Where each replay puts the function's result.
        """
        now = torch.cuda.current_stream()
        try:
            # Other threads may go on working with the device.
            how: dict[str, Any] = {"stream": self._stream, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(self._graph, pool=self._pool, **how):
                return work()
        except BaseException:
            torch.cuda.set_stream(now)  # a capture that fails leaves its own
            raise

    def replay(self) -> None:
        """Do it again."""
        self._graph.replay()


def cuda_graphs() -> Callable[[], CudaGraph]:
    """Make CUDA graphs that share their memory: no two of them are replayed at once."""
    shared: list[tuple[Any, torch.cuda.Stream]] = []

    def made() -> CudaGraph:
        if not shared:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            shared.append((torch.cuda.graph_pool_handle(), stream))
        return CudaGraph(*shared[0])

    return made


def graphed(forward: Pass, worker: Worker, settings: Settings, batches: int = 0) -> Pass:
    """A forward pass as a CUDA graph where there is a GPU, by ``execution.step``.

    The module is in eval mode; its weights may change in place. Few ``batches`` are not compiled.
    """
    if worker.device.type != "cuda" or settings.execution.step == "eager":
        return forward
    built_in = settings.encoder.network in NETWORKS
    compiles = built_in and batches >= COMPILED_FROM and can_compile(worker.device)
    return Graphed(forward, compiles=compiles)


class Graphed:
    """A forward pass by graphs, or eagerly where graphs fail or give something else.

    A shape has a graph from its second batch on: the last batch of a split comes only once.
    """

    def __init__(
        self, forward: Pass, *, compiles: bool, graph: Callable[[], CudaGraph] | None = None
    ) -> None:
        self._plain, self._graphing = forward, True
        self._forward = compiled(forward) if compiles else forward
        self._graph = graph or cuda_graphs()
        self._passes: dict[Any, Pass | None] = {}

    def __call__(self, signals: torch.Tensor) -> torch.Tensor:
        """Outputs of signals; the caller takes no gradients."""
        shape = (signals.shape, signals.dtype)
        if not self._graphing or shape not in self._passes:
            self._passes[shape] = None
            return self._plain(signals)
        captured = self._passes[shape]
        return self._compared(signals) if captured is None else captured(signals)

    def _compared(self, signals: torch.Tensor) -> torch.Tensor:
        direct, why = self._plain(signals), "it gives other outputs"
        try:
            outputs = self._captured(signals)
            if _close(outputs, direct):
                return outputs
        except Exception as error:
            first = error.__context__ or error
            why = f"{type(first).__name__}: {first_line(first)}"
        logger.warning("forward passes cannot be captured and are executed one by one: %s", why)
        self._graphing, self._passes = False, {}
        return direct

    def _captured(self, signals: torch.Tensor) -> torch.Tensor:
        inputs = signals.clone()
        self._forward(inputs)  # compiles, and makes what is made only once
        graph = self._graph()
        outputs = graph.capture(lambda: self._forward(inputs))

        def replayed(signals: torch.Tensor) -> torch.Tensor:
            inputs.copy_(signals)
            graph.replay()
            return outputs.clone()

        self._passes[signals.shape, signals.dtype] = replayed
        return replayed(signals)


def _close(outputs: torch.Tensor, expected: torch.Tensor) -> bool:
    apart = torch.linalg.vector_norm(outputs.float() - expected.float())
    return bool(apart <= ALIKE * torch.linalg.vector_norm(expected.float()))
