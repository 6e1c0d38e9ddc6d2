"""Forward passes without gradients: on a GPU as CUDA graphs, one for each shape of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.models.encoder import NETWORKS
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.steps import (
    ALIKE,
    COMPILED_FROM,
    Graph,
    can_compile,
    compiled,
    cuda_graphs,
    first_line,
)

Pass = Callable[[torch.Tensor], torch.Tensor]
"""Signals (batch, *input_shape) to outputs (batch, …), both on the device."""
logger = logging.getLogger(__name__)


def graphed(forward: Pass, worker: Worker, settings: Settings, batches: int = 0) -> Pass:
    """A forward pass as a CUDA graph where there is a GPU, by ``execution.step``.

    Args:
        forward: Of a module in eval mode, whose weights may change in place between two calls.
        worker: The device.
        settings: With ``execution.step=eager`` there is no graph; a network that is not of the
            package is not compiled.
        batches: About how many calls there will be: few are not worth compiling.
    """
    if worker.device.type != "cuda" or settings.execution.step == "eager":
        return forward
    built_in = settings.encoder.network in NETWORKS
    compiles = built_in and batches >= COMPILED_FROM and can_compile(worker.device)
    return Graphed(forward, compiles=compiles)


@dataclass(frozen=True)
class _CapturedPass:
    graph: Graph
    signals: torch.Tensor
    outputs: torch.Tensor


class Graphed:
    """A forward pass by graphs, or as it is where they fail or give something else.

    A shape has a graph from its second batch on: the last batch of a split comes only once.
    """

    def __init__(
        self, forward: Pass, *, compiles: bool, graph: Callable[[], Graph] | None = None
    ) -> None:
        self._plain, self._graphing = forward, True
        self._forward = compiled(forward) if compiles else forward
        self._graph = graph or cuda_graphs()
        self._held: dict[Any, _CapturedPass | None] = {}

    def __call__(self, signals: torch.Tensor) -> torch.Tensor:
        """Outputs of signals; the caller takes no gradients."""
        shape = (signals.shape, signals.dtype)
        if not self._graphing or shape not in self._held:
            self._held[shape] = None
            return self._plain(signals)
        captured = self._held[shape]
        return self._compared(signals) if captured is None else _replayed(captured, signals)

    def _compared(self, signals: torch.Tensor) -> torch.Tensor:
        """Outputs by a new graph, or directly where these are others."""
        direct, why = self._plain(signals), "it gives other outputs"
        try:
            outputs = self._captured(signals)
            if _close(outputs, direct):
                return outputs
        except Exception as error:
            why = first_line(error.__context__ or error)
        logger.warning("forward passes cannot be captured and are executed one by one: %s", why)
        self._graphing, self._held = False, {}
        return direct

    def _captured(self, signals: torch.Tensor) -> torch.Tensor:
        inputs = signals.clone()
        self._forward(inputs)  # compiles, and makes what is made only once
        graph = self._graph()
        captured = _CapturedPass(graph, inputs, graph.capture(lambda: self._forward(inputs)))
        outputs = _replayed(captured, signals)
        self._held[signals.shape, signals.dtype] = captured
        return outputs


def _replayed(captured: _CapturedPass, signals: torch.Tensor) -> torch.Tensor:
    captured.signals.copy_(signals)
    captured.graph.replay()
    return captured.outputs.clone()


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two outputs differ by rounding."""
    apart = torch.linalg.vector_norm(one.float() - other.float())
    return bool(apart <= ALIKE * torch.linalg.vector_norm(other.float()))
