"""Execution of training steps: eager, compiled, or as a CUDA graph.

A captured step is a graph of everything from normalisation to AdamW; with several workers it ends
before AdamW, as gradients are averaged first. The seed for dropout is set before each replay.
Source: https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, cast

import torch

from benchmd_ray.cluster.gpu_memory import has_share, is_exhausted
from benchmd_ray.errors import BenchmdError, first_line
from benchmd_ray.settings.definition import ExecutionSettings
from benchmd_ray.training.engine import Engine, alone, gather
from benchmd_ray.training.forward import (
    ALIKE,
    COMPILED_FROM,
    CudaGraph,
    can_compile,
    compiled,
    cuda_graphs,
    side_stream,
)

Inputs = Mapping[str, torch.Tensor]
"""Inputs of a step: tensors on the device with the batch as first axis."""
DRAWN = "drawn "
"""Prefix of draws among the inputs."""
Loss = Callable[[Inputs], tuple[torch.Tensor, torch.Tensor]]
"""Function of the inputs, or a part of them along the batch, for two scalars: the loss for the
backward pass, which is summed over parts, and the loss to report.
"""
Shapes = tuple[Any, ...]
Way = Literal["eager", "compiled", "captured"]
T = TypeVar("T")

REHEARSED = 3
"""Number of captured steps that are compared with direct execution."""
APART = 0.5
"""Largest difference of the resulting weights, relative to the step. It is not small, since AdamW's
first step moves weights fully even if their gradient is only rounding; a graph that does nothing
has a difference of 1.
"""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chosen:
    """The way that steps are executed, and why."""

    way: Way
    compiles: bool
    why: str

    def titled(self, what: str, device: torch.device) -> str:
        """Title of the progress display; eager steps on a CPU are not mentioned."""
        plain = self.way == "eager" and device.type == "cpu"
        return what if plain else f"{what} (steps {self.way}: {self.why})"


def choose_step(
    execution: ExecutionSettings,
    engine: Engine,
    steps: int,
    *,
    built_in: bool,
    exchanges: bool = False,
) -> Chosen:
    """Choose how steps are executed, by ``execution.step``.

    Only methods and networks of the package (``built_in``) are compiled: tests compare their
    compiled steps with eager ones. ``exchanges``: whether a worker's loss depends on other workers.
    """
    choice, device = execution.step, engine.worker.device
    able = can_compile(device)
    apart = engine.worker.world == 1 or not exchanges
    if choice == "eager":
        return Chosen("eager", False, "as set")
    if choice != "auto":
        for holds, expected in (
            (engine.captures, "parameters that are not split by ZeRO"),
            (apart, "one worker, or a technique that compares no examples of several workers"),
            (choice == "compiled" or device.type == "cuda", "a GPU"),
            (choice == "captured" or able, "a compiler (a C++ compiler; on a GPU Triton, too)"),
            (choice == "captured" or built_in, "a technique and a network of the package"),
        ):
            if not holds:
                raise BenchmdError(
                    f"execution.step is {choice}, which needs {expected}: leave it at auto, or use "
                    "eager."
                )
        return Chosen(choice, able and built_in, "as set")
    for holds, why in (
        (engine.captures, "split by ZeRO"),
        (apart, "workers compare each other's examples"),
        (device.type == "cuda", "no GPU"),
    ):
        if not holds:
            return Chosen("eager", False, why)
    for holds, why in (
        (able, "not compiled: no compiler"),
        (built_in, "not compiled: a custom method or network"),
        (steps >= COMPILED_FROM, f"not compiled: {steps} steps take less time than compiling"),
    ):
        if not holds:
            return Chosen("captured", False, why)
    return Chosen("captured", True, "compiled")


def drawn(inputs: Inputs) -> dict[str, torch.Tensor]:
    """The draws among the inputs of a step, by name."""
    return {name.removeprefix(DRAWN): x for name, x in inputs.items() if name.startswith(DRAWN)}


@dataclass(frozen=True)
class _Captured:
    graph: CudaGraph
    inputs: dict[str, torch.Tensor]
    loss: torch.Tensor
    gradients: list[tuple[torch.nn.Parameter, torch.Tensor]]
    """Gradients written by each replay, if the update is not part of the graph."""


class Steps:
    """Executes the steps of a training."""

    def __init__(
        self,
        engine: Engine,
        loss: Loss,
        seed: Callable[[int], None],
        chosen: Chosen,
        *,
        parts: int = 1,
        graph: Callable[[], CudaGraph] | None = None,
    ) -> None:
        """Nothing is executed yet.

        ``seed`` seeds this process's generators for a step by its number; ``parts`` is
        ``execution.accumulation``; ``graph`` makes a graph, by default a CUDA graph.
        """
        self._engine, self._parts, self._seed = engine, parts, seed
        self._eager = loss
        self._compiled = compiled(loss) if chosen.compiles else None
        self._largest = 0
        self._proven: set[Shapes] = set()
        self._capturing = chosen.way == "captured"
        self._graph = graph or cuda_graphs()
        self._captured: dict[Shapes, _Captured] = {}
        self._left = REHEARSED
        self.chosen = chosen

    def __call__(self, number: int, inputs: Inputs, lr: float) -> torch.Tensor:
        """Run a step with backward pass and optimiser; returns the loss to report, a tensor."""
        self._engine.set_lr(lr)
        if not self._capturing:
            return self._direct(number, inputs)
        try:
            return self._by_graph(number, inputs)
        except _NotCaptured as error:
            logger.warning(
                "steps cannot be captured as CUDA graphs and are executed directly: %s", error
            )
        self._capturing, self._captured = False, {}
        if self._engine.worker.device.type == "cuda":
            torch.cuda.empty_cache()  # memory of graphs and their comparisons
        return self._direct(number, inputs)

    def _direct(self, number: int, inputs: Inputs) -> torch.Tensor:
        loss = self._direct_passes(number, inputs)
        self._engine.update()
        return loss

    def _direct_passes(self, number: int, inputs: Inputs) -> torch.Tensor:
        """Forward and backward passes of a step; eager for inputs that cannot be compiled.

        The backward pass is compiled when it is first needed.
        """
        shapes, before = _shapes(inputs), None
        self._seed(number)
        self._largest = max(self._largest, _examples(inputs))
        if self._loss_of(inputs) is self._eager or shapes in self._proven:
            return self._passes(inputs)
        loss, why = torch.zeros(()), ""
        try:
            before = _State(self._engine)
            loss = self._passes(inputs)
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
        if why := self._of_all(why):
            logger.warning("steps cannot be compiled: %s", why)
            if before is not None:
                before.restore()
            self._compiled = None
            self._seed(number)
            return self._passes(inputs)
        self._proven.add(shapes)
        return loss

    def _loss_of(self, inputs: Inputs) -> Loss:
        """The loss function of a step, compiled but for the one short batch of an epoch."""
        short = _examples(inputs) < self._largest
        return self._eager if short or self._compiled is None else self._compiled

    def _of_all(self, why: str) -> str:
        """The reason of a failure on any worker: if one gives up, all do."""
        if alone():
            return why
        failed = torch.tensor([bool(why)], dtype=torch.float32, device=self._engine.worker.device)
        any_failed = bool(gather(failed).any())
        return why or ("another worker failed" if any_failed else "")

    def _work(self, inputs: Inputs) -> torch.Tensor:
        loss = self._passes(inputs)
        self._engine.update()
        return loss

    def _passes(self, inputs: Inputs) -> torch.Tensor:
        pieces = [inputs] if self._parts == 1 else _cut(inputs, self._parts)
        of_piece, losses = self._loss_of(inputs), []
        for place, piece in enumerate(pieces, 1):
            loss, reported = of_piece(piece)
            self._engine.backward(loss, last=place == len(pieces))
            losses.append(reported.detach())
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _by_graph(self, number: int, inputs: Inputs) -> torch.Tensor:
        captured = self._captured.get(_shapes(inputs))
        if captured is not None and not self._left:
            self._replay(captured, number, inputs)
            return self._finished(captured)
        before = self._attempted(partial(_State, self._engine))
        try:
            loss = self._rehearsed(captured, before, number, inputs)
        except _NotCaptured:
            before.restore()
            raise
        self._left = max(0, self._left - 1)
        if not self._left and self._engine.worker.device.type == "cuda":
            torch.cuda.empty_cache()  # memory of direct steps
        return loss

    def _rehearsed(
        self, captured: _Captured | None, before: _State, number: int, inputs: Inputs
    ) -> torch.Tensor:
        """Capture a step if needed, and compare it with direct execution.

        Collective operations stay outside of code that can fail on only one worker.
        """
        passes = partial(self._direct_passes, number, inputs)
        direct = self._attempted(partial(self._on_a_side_stream, passes))
        self._engine.update()
        moved = before.distance()
        by_hand = self._attempted(partial(_State, self._engine))
        before.restore()
        captured = captured or self._attempted(partial(self._capture, inputs))
        self._attempted(partial(self._replay, captured, number, inputs))
        loss = self._finished(captured)
        apart, why = by_hand.distance(), ""
        if not _close(loss, direct) or apart > APART * moved:
            why = (
                f"the loss is {float(loss):g} by a graph and {float(direct):g} directly, and the "
                f"weights end {apart / max(moved, 1e-30):.2g} of a step apart"
            )
        if why := self._of_all(why):
            raise _NotCaptured(why)
        return loss

    def _attempted(self, work: Callable[[], T]) -> T:
        result, why = None, ""
        try:
            result = work()
        except (RuntimeError, NotImplementedError) as error:
            if is_exhausted(error) and has_share(self._engine.worker.device):
                raise  # the run is tried again on a whole GPU
            # For a failed capture the first error tells the cause, the last only that it failed.
            first = error.__context__ or error
            why = f"{type(first).__name__}: {first_line(first)}"
        if why := self._of_all(why):
            raise _NotCaptured(why)
        return cast("T", result)

    def _on_a_side_stream(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run work on a side stream before a capture, so that one-time initialisation is done."""
        device = self._engine.worker.device
        if device.type != "cuda":
            return work()
        now, aside = torch.cuda.current_stream(device), side_stream(device, "warm-up")
        aside.wait_stream(now)
        try:
            with torch.cuda.stream(aside):
                return work()
        finally:
            now.wait_stream(aside)

    def _capture(self, inputs: Inputs) -> _Captured:
        buffers = {name: x.clone() for name, x in inputs.items()}
        whole = self._engine.captures == "step"
        graph = self._graph()
        loss = graph.capture(lambda: (self._work if whole else self._passes)(buffers))
        parameters = [] if whole else self._engine.module.parameters()
        gradients = [(p, p.grad) for p in parameters if p.grad is not None]
        for parameter, _ in gradients:
            parameter.grad = None
        captured = _Captured(graph, buffers, loss, gradients)
        self._captured[_shapes(inputs)] = captured
        return captured

    def _replay(self, captured: _Captured, number: int, inputs: Inputs) -> None:
        for name, x in inputs.items():
            captured.inputs[name].copy_(x)
        self._seed(number)
        captured.graph.replay()

    def _finished(self, captured: _Captured) -> torch.Tensor:
        """The loss of a replay, after the update if that is not part of the graph."""
        if self._engine.captures != "step":
            for parameter, gradient in captured.gradients:
                parameter.grad = gradient
            self._engine.update()
        return captured.loss.clone()


class _NotCaptured(Exception):
    """A step cannot be captured, or differs from direct execution."""


class _State:
    """Copies of everything that a step changes: parameters, buffers and AdamW's moments."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._copies = [(x, x.detach().clone()) for x in engine.tensors()]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore everything; new moments become 0 and gradients are removed."""
        for parameter in self._engine.module.parameters():
            parameter.grad = None
        copied = {id(x) for x, _ in self._copies}
        for x, value in self._copies:
            x.copy_(value)
        for x in self._engine.tensors():
            if id(x) not in copied:
                x.zero_()

    @torch.no_grad()
    def distance(self) -> float:
        """Euclidean distance of the parameters from the copies."""
        apart = [
            torch.linalg.vector_norm(x.detach() - value)
            for x, value in self._copies
            if isinstance(x, torch.nn.Parameter)
        ]
        return float(torch.linalg.vector_norm(torch.stack(apart)))


def _examples(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())))


def _shapes(inputs: Inputs) -> Shapes:
    return tuple((name, x.shape, x.dtype) for name, x in inputs.items())


def _cut(inputs: Inputs, parts: int) -> list[Inputs]:
    chunks = zip(*(x.chunk(parts) for x in inputs.values()), strict=True)
    return [dict(zip(inputs, part, strict=True)) for part in chunks]


def _close(loss: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two losses agree; non-finite losses count as equal and are reported later."""
    a, b = float(loss), float(expected)
    return abs(a - b) <= ALIKE * max(abs(a), abs(b)) or a != a or b != b or abs(a) == float("inf")
