"""CUDA graphs and compiled code, and their use for forward passes without gradients."""

from __future__ import annotations

import functools
import inspect
import logging
import shutil
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import first_line
from benchmd_ray.models.encoder import NETWORKS
from benchmd_ray.settings.definition import Settings

Pass = Callable[[torch.Tensor], torch.Tensor]
"""Signals (batch, *input_shape) to outputs (batch, …), both on the device."""
T = TypeVar("T")

COMPILED_FROM = 2000
"""Fewest steps for which ``auto`` compiles, which takes up to a minute."""
BACKEND = "inductor"
ALIKE = 0.02
"""Largest relative difference of a graph's outputs."""
logger = logging.getLogger(__name__)


def can_compile(device: torch.device) -> bool:
    """Whether ``torch.compile`` works on this machine."""
    from torch.utils._triton import has_triton

    compiler = any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    return compiler and (device.type != "cuda" or has_triton())


def compiled(work: Callable[..., T]) -> Callable[..., T]:
    """The function, compiled as a whole at the first call with each input shape."""
    how: dict[str, Any] = {}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:  # from PyTorch 2.13 on
        how["isolate_recompiles"] = True  # all trainings would share a limit of eight shapes
    compiled_work: Callable[..., T] = torch.compile(
        work, fullgraph=True, dynamic=False, backend=BACKEND, **how
    )
    return compiled_work


@functools.cache
def side_stream(device: torch.device, use: Literal["capture", "warm-up"]) -> torch.cuda.Stream:
    """The process's stream for a use, as cuBLAS keeps a workspace for each stream for ever."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class CudaGraph:
    """A CUDA graph; the graphs of a training share memory."""

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool
        self._stream = side_stream(torch.device("cuda", torch.cuda.current_device()), "capture")

    def capture(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Record a function's work on the device without executing it.

        Returns:
            Tensors that receive the function's result at each replay.
        """
        now = torch.cuda.current_stream()
        try:
            # Other threads may continue to use the device.
            how: dict[str, Any] = {"stream": self._stream, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(self._graph, pool=self._pool, **how):
                return work()
        except BaseException:
            torch.cuda.set_stream(now)  # a failed capture leaves its stream active
            self._capture_nothing()
            raise

    def _capture_nothing(self) -> None:
        """Capture a graph without random numbers.

        After a failed capture the generator of PyTorch 2.11 refuses to serve dropout until another
        capture has ended.
        """
        tensor = torch.zeros(1, device="cuda")
        with torch.cuda.graph(
            torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode="thread_local"
        ):
            tensor.add_(0)

    def replay(self) -> None:
        """Execute the recorded work."""
        self._graph.replay()


def cuda_graphs() -> Callable[[], CudaGraph]:
    """Factory of CUDA graphs that share memory, so only one may be replayed at a time."""
    pool = functools.cache(torch.cuda.graph_pool_handle)
    return lambda: CudaGraph(pool())


def graphed(forward: Pass, worker: Worker, settings: Settings, batches: int = 0) -> Pass:
    """A forward pass as a CUDA graph on a GPU, depending on ``execution.step``.

    The module is in eval mode; its weights may change in place. With few ``batches`` it is not
    compiled.
    """
    if worker.device.type != "cuda" or settings.execution.step == "eager":
        return forward
    built_in = settings.encoder.network in NETWORKS
    compiles = built_in and batches >= COMPILED_FROM and can_compile(worker.device)
    return Graphed(forward, compiles=compiles)


class Graphed:
    """A forward pass by graphs, or eagerly if graphs fail or give different outputs.

    A graph is made at the second batch of a shape, as the last batch of a split occurs only once.
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
        direct = self._plain(signals)
        why = self._fault(signals, direct)
        if why and self._forward is not self._plain:
            logger.warning("forward passes cannot be compiled: %s", why)
            self._forward = self._plain
            why = self._fault(signals, direct)
        if why:
            logger.warning("forward passes cannot be captured and are executed one by one: %s", why)
            self._graphing, self._passes = False, {}
        return direct

    def _fault(self, signals: torch.Tensor, expected: torch.Tensor) -> str:
        """Capture a pass and compare its outputs; says what is wrong with it."""
        try:
            if _close(self._captured(signals), expected):
                return ""
        except Exception as error:
            first = error.__context__ or error
            return f"{type(first).__name__}: {first_line(first)}"
        return "it gives other outputs"

    def _captured(self, signals: torch.Tensor) -> torch.Tensor:
        inputs = signals.clone()
        self._forward(inputs)  # compiles, and does one-time initialisation
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
