"""Ways to execute a step: they compute the same, and what cannot be captured is executed eagerly.

A CUDA graph is stood in for by an object that keeps the work and does it again: what a graph is
given, keeps and leaves behind is the same. Graphs themselves are compared on a GPU.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from functorch.compile import make_boxed_func
from graphs import Again, Refused, Static
from kinds import SIGNALS
from tiers import by_tier
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.settings.definition import (
    ENCODERS,
    ExecutionSettings,
    OptimiserSettings,
    Settings,
    load_settings,
)
from benchmd_ray.ssl import METHODS, method_named
from benchmd_ray.training import features as frozen
from benchmd_ray.training import forward
from benchmd_ray.training import steps as module
from benchmd_ray.training.engine import DeepSpeedEngine, TorchEngine
from benchmd_ray.training.pretrain import pretraining_loss
from benchmd_ray.training.seeds import generator, seed_step
from benchmd_ray.training.steps import DRAWN, REHEARSED, Chosen, Steps, choose_step

OPTIMISER = OptimiserSettings(lr=1e-2, weight_decay=0.1)
CAPTURED = Chosen("captured", False, "test")
EAGER = Chosen("eager", False, "test")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Stale(Again):
    """A graph whose step does not see its inputs, but those that it was captured with."""

    def capture(self, work):
        inputs = next(
            cell.cell_contents for cell in work.__closure__ if isinstance(cell.cell_contents, dict)
        )
        first = {name: x.clone() for name, x in inputs.items()}
        steps = next(c.cell_contents for c in work.__closure__ if hasattr(c.cell_contents, "_work"))
        return super().capture(lambda: steps._work(first))


class Forgetful(Again):
    """A graph that steps no weight."""

    def replay(self):
        with torch.no_grad():
            state = [(x, x.clone()) for x in self.engine.tensors()]
            self.loss.copy_(torch.enable_grad()(self.work)())
            for x, value in state:
                x.copy_(value)


class Halfway(Again):
    """A graph whose capture fails after the backward pass."""

    def capture(self, work):
        with torch.no_grad():
            for parameter in self.engine.module.parameters():
                parameter.grad = torch.full_like(parameter, 3.0)
        raise RuntimeError("out of memory")


class Tiring(Again):
    """A graph that goes wrong with the last step that is compared."""

    def replay(self):
        super().replay()
        self.replays = getattr(self, "replays", 0) + 1
        if self.replays == REHEARSED:
            self.loss.mul_(2)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3)
    )


def trained(chosen, count=8, graph=Again, parts=1, sizes=(16,), engine=TorchEngine):
    """Losses and weights of some steps on batches of these sizes in turn."""
    engine = engine(network(), OPTIMISER, ExecutionSettings(), Worker())

    def loss(inputs):
        error = ((engine(inputs["x"]) - inputs["y"]) ** 2).mean(dim=1)
        return (error * inputs["share"]).sum(), error.sum()

    def seed(number):
        seed_step(3, number, 0)

    def made():
        one = graph()
        one.engine = engine
        return one

    steps = Steps(engine, loss, seed, chosen, parts=parts, graph=made)
    losses = []
    for number in range(count):
        size = sizes[number % len(sizes)]
        draws = torch.Generator().manual_seed(number)
        x, y = (torch.randn(size, width, generator=draws) for width in (5, 3))
        inputs = {"x": x, "y": y, "share": torch.full((size,), 1 / size)}
        losses.append(float(steps(number, inputs, 1e-2 / (1 + number))))
    return losses, engine.weights()


def require_same(one, other, **how):
    assert one[0] == pytest.approx(other[0], abs=how.get("atol", 0.0))
    for name, value in one[1].items():
        torch.testing.assert_close(value, other[1][name], rtol=0, atol=how.get("atol", 0.0))


@pytest.mark.parametrize("engine", [TorchEngine, DeepSpeedEngine])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("sizes", [(16,), (16, 16, 16, 16, 7)])
def test_captured_steps_are_the_eager_ones(parts, sizes, engine, caplog):
    about = {"parts": parts, "sizes": sizes, "engine": engine}
    Again.captures = 0
    with caplog.at_level(logging.WARNING):
        found = trained(CAPTURED, **about)
    require_same(found, trained(EAGER, **about))
    assert Again.captures == len(set(sizes))
    assert not caplog.records


@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_of_captured_passes_are_those_that_are_used(parts, caplog):
    about = {"parts": parts, "sizes": (16, 7), "engine": DeepSpeedEngine}
    with caplog.at_level(logging.WARNING):
        found = trained(CAPTURED, graph=Static, **about)
    require_same(found, trained(EAGER, **about))
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize("engine", [TorchEngine, DeepSpeedEngine])
def test_steps_of_both_engines_are_compiled_without_recompiling(engine, monkeypatch, caplog):
    monkeypatch.setattr(forward, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    chosen, once = Chosen("captured", True, "test"), {"error_on_recompile": True}
    with caplog.at_level(logging.WARNING), torch._dynamo.config.patch(**once):
        found = trained(chosen, count=6, engine=engine)
    require_same(found, trained(EAGER, count=6, engine=engine), atol=1e-5)
    assert not [line for line in caplog.messages if "cannot be" in line]


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (Halfway, "RuntimeError: out of memory"),
        (Refused, "RuntimeError: operation not permitted when stream is capturing"),
        (Stale, "the loss is "),
        (Forgetful, "the weights end 1 of a step apart"),
        (Tiring, "the loss is "),
    ],
)
def test_steps_that_cannot_be_captured_are_executed_eagerly(graph, why, caplog):
    with caplog.at_level(logging.WARNING):
        found = trained(CAPTURED, graph=graph)
    require_same(found, trained(EAGER))
    (said,) = caplog.messages
    assert said.startswith("steps cannot be captured as CUDA graphs and are executed directly: ")
    assert why in said
    assert "more" not in said


def test_an_error_of_the_step_itself_is_raised():
    engine = TorchEngine(network(), OPTIMISER, ExecutionSettings(), Worker())

    def loss(inputs):
        raise ValueError("of a method")

    steps = Steps(engine, loss, lambda number: None, CAPTURED, graph=Again)
    with pytest.raises(ValueError, match="of a method"):
        steps(0, {"x": torch.zeros(2)}, 0.1)


@pytest.mark.parametrize(
    ("asked", "engine", "device", "compiler", "steps", "built_in", "expected"),
    [
        ("auto", "torch", "cpu", True, 10**6, True, ("eager", False)),
        ("auto", "zero", "cuda", True, 10**6, True, ("eager", False)),
        ("auto", "exchanging", "cuda", True, 10**6, True, ("eager", False)),
        ("auto", "deepspeed", "cuda", True, 10**6, True, ("captured", True)),
        ("auto", "torch", "cuda", True, 10**6, True, ("captured", True)),
        ("auto", "torch", "cuda", True, 100, True, ("captured", False)),
        ("auto", "torch", "cuda", False, 10**6, True, ("captured", False)),
        ("auto", "torch", "cuda", True, 10**6, False, ("captured", False)),
        ("eager", "torch", "cuda", True, 10**6, True, ("eager", False)),
        ("compiled", "torch", "cpu", True, 1, True, ("compiled", True)),
        ("captured", "torch", "cuda", True, 1, True, ("captured", True)),
        ("captured", "torch", "cuda", False, 1, True, ("captured", False)),
        ("captured", "torch", "cpu", True, 1, True, "which needs a GPU"),
        ("captured", "zero", "cuda", True, 1, True, "which needs parameters that are not split"),
        ("captured", "exchanging", "cuda", True, 1, True, "which needs one worker, or a techn"),
        ("compiled", "torch", "cpu", False, 1, True, "which needs a compiler"),
        ("compiled", "torch", "cuda", True, 1, False, "which needs a technique and a network"),
    ],
)
def test_the_way_is_chosen_by_setting_device_and_length(
    asked, engine, device, compiler, steps, built_in, expected, monkeypatch
):
    monkeypatch.setattr(module, "can_compile", lambda device: compiler)
    exchanging = engine == "exchanging"
    world = 1 if engine == "torch" else 2
    made = SimpleNamespace(worker=Worker(0, world, torch.device(device)))
    made.captures = {"torch": "step", "zero": ""}.get(engine, "passes")
    about = (ExecutionSettings(step=asked), made, steps)
    if isinstance(expected, str):
        with pytest.raises(BenchmdError, match=expected):
            choose_step(*about, built_in=built_in, exchanges=exchanging)
        return
    chosen = choose_step(*about, built_in=built_in, exchanges=exchanging)
    assert (chosen.way, chosen.compiles) == expected
    title = chosen.titled("pretrain mae", torch.device(device))
    plain = (device, expected[0]) == ("cpu", "eager")
    assert title == (
        "pretrain mae" if plain else f"pretrain mae (steps {expected[0]}: {chosen.why})"
    )


def pretrained(technique, signal, way, *, device="cpu", count=4, dropout=0.0):
    """Losses and weights of some steps of a method on random signals."""
    size = replace(ENCODERS["tiny"], dropout=dropout, embedding_dropout=dropout)
    settings = Settings(encoder=size)
    torch.manual_seed(0)
    method = method_named(technique)(make_encoder(signal, settings.encoder), settings.pretrain)
    worker = Worker(device=torch.device(device))
    engine = TorchEngine(method, OptimiserSettings(lr=1e-3), ExecutionSettings(), worker)
    statistics = {"mean": [3.0] * signal.stored_shape[0], "std": [200.0] * signal.stored_shape[0]}
    loss = pretraining_loss(engine, normaliser(signal, statistics, worker.device), 1)
    steps = Steps(engine, loss, lambda number: seed_step(0, number, 0), way)
    losses = []
    for number in range(count):
        draws = torch.Generator().manual_seed(number)
        shape = (4, *signal.stored_shape)
        kind = {"int16": torch.int16, "uint8": torch.uint8}[signal.dtype]
        inputs = {
            "signals": torch.randint(0, 250, shape, generator=draws).to(kind),
            "scales": torch.ones(4),
            "sizes": torch.tensor([signal.stored_shape[1:]] * 4, dtype=torch.int32),
        }
        drawn = method.draw(4, generator(number))
        inputs |= {f"{DRAWN}{name}": x for name, x in drawn.items()}
        held = {name: x.to(device) for name, x in inputs.items()}
        losses.append(float(steps(number, held, 1e-3)))
    return losses, engine.weights()


@pytest.mark.parametrize("kind", by_tier(["cxr"], [], ["ecg", "ldct"]))
@pytest.mark.parametrize("technique", METHODS)
def test_normalisation_method_and_loss_are_one_graph(technique, kind, monkeypatch):
    """Without a break: ``fullgraph`` raises an error at one. No code is generated here."""
    monkeypatch.setattr(forward, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    found = pretrained(technique, SIGNALS[kind], Chosen("compiled", True, "test"))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    require_same(found, pretrained(technique, SIGNALS[kind], EAGER), atol=1e-5)


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_steps_that_cannot_be_compiled_are_executed_eagerly(when, monkeypatch, caplog):
    torch._dynamo.reset()

    def failing(graph, inputs):
        raise AssertionError("no code for this graph")

    def passed(graph, inputs):
        return make_boxed_func(graph.forward)

    def broken(graph, inputs):
        forward = failing if when == "forward" else passed
        return aot_module_simplified(graph, inputs, fw_compiler=forward, bw_compiler=failing)

    monkeypatch.setattr(forward, "BACKEND", broken)
    with caplog.at_level(logging.WARNING):
        found = trained(Chosen("compiled", True, "test"))
    require_same(found, trained(EAGER))
    assert [line for line in caplog.messages if line.startswith("steps cannot be compiled: ")]


@pytest.mark.slow
def test_many_trainings_of_a_process_are_compiled(monkeypatch, caplog):
    monkeypatch.setattr(forward, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    with caplog.at_level(logging.WARNING):
        for size in range(3, 15):
            trained(Chosen("compiled", True, "test"), count=2, sizes=(size,))
    assert not [line for line in caplog.messages if "cannot be compiled" in line]


def counting(monkeypatch):
    """The batch sizes of the forward passes that are compiled from now on."""
    torch._dynamo.reset()
    sizes = []

    def backend(graph, inputs):
        sizes.extend(len(x) for x in inputs if x.ndim == 2 and x.shape[1] == 3)  # ``y``
        return graph.forward

    monkeypatch.setattr(forward, "BACKEND", backend)
    return sizes


@pytest.mark.parametrize("way", ["compiled", "captured"])
@pytest.mark.parametrize(
    ("sizes", "expected"), [((16, 16, 16, 16, 7), [16]), ((7, 16, 16, 16, 7), [7, 16])]
)
def test_the_last_batch_of_an_epoch_is_not_compiled(way, sizes, expected, monkeypatch, caplog):
    """One that a resumed training starts with is: nothing longer has come."""
    found = counting(monkeypatch)
    with caplog.at_level(logging.WARNING):
        of_steps = trained(Chosen(way, True, "test"), count=10, sizes=sizes)
    assert found == expected
    require_same(of_steps, trained(EAGER, count=10, sizes=sizes), atol=1e-5)
    assert not [line for line in caplog.messages if "cannot be" in line]


def test_steps_are_compiled_by_a_pytorch_that_shares_its_limit(monkeypatch, caplog):
    found, compile_here = counting(monkeypatch), torch.compile

    def earlier(work, *, fullgraph, dynamic, backend):
        return compile_here(work, fullgraph=fullgraph, dynamic=dynamic, backend=backend)

    monkeypatch.setattr(torch, "compile", earlier)
    trained(Chosen("compiled", True, "test"), count=2)
    assert found == [16]


class Exhausting(Again):
    """A graph that finds no memory left."""

    def capture(self, work):
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_steps_without_memory_on_a_share_of_a_gpu_are_tried_on_a_whole_one(monkeypatch, caplog):
    with caplog.at_level(logging.WARNING):
        require_same(trained(CAPTURED, graph=Exhausting), trained(EAGER))
    assert "out of memory" in caplog.text
    monkeypatch.setattr(module, "has_share", lambda device: True)
    with pytest.raises(torch.OutOfMemoryError):
        trained(CAPTURED, graph=Exhausting)


def test_captured_steps_of_a_head_are_the_eager_ones(monkeypatch):
    settings = load_settings(assignments=["transfer.batch_size=32", "transfer.epochs=3"])
    monkeypatch.setattr(module, "cuda_graphs", lambda: Again)
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(100, 8, generator=draws)
    targets = torch.eye(3, dtype=torch.int8)[torch.randint(0, 3, (100,), generator=draws)]
    found = []
    for way in (CAPTURED, EAGER):
        monkeypatch.setattr(frozen, "choose_step", lambda *_, way=way, **__: way)
        torch.manual_seed(0)
        head, Again.captures = nn.Linear(8, 3), 0
        steps = frozen.head_steps(head, settings, 100, Worker(), "single-label")
        losses = [frozen.head_epoch(steps, features, targets, settings, e) for e in range(3)]
        found.append((losses, dict(head.named_parameters())))
        assert Again.captures == (2 if way is CAPTURED else 0)
    require_same(*found)


@pytest.mark.slow
def test_a_gpu_without_triton_is_no_error():
    code = (
        "import torch; from benchmd_ray.training.forward import can_compile; "
        "print(can_compile(torch.device('cuda')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("True", "False")


@CUDA
@pytest.mark.parametrize("kind", ["ecg", "cxr", "ldct"])
@pytest.mark.parametrize("technique", METHODS)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_cuda_graphs_are_the_eager_steps(technique, kind, dropout, caplog):
    about = {"device": "cuda", "count": 50, "dropout": dropout}
    with caplog.at_level(logging.WARNING):
        found = pretrained(technique, SIGNALS[kind], CAPTURED, **about)
    expected = pretrained(technique, SIGNALS[kind], EAGER, **about)
    assert found[0] == pytest.approx(expected[0], rel=0.01)
    assert not caplog.records


@pytest.mark.parametrize("technique", by_tier([], ["mae"], METHODS))
def test_compiled_steps_are_the_eager_ones(technique):
    torch._dynamo.reset()
    found = pretrained(technique, SIGNALS["ecg"], Chosen("compiled", True, "test"), count=10)
    # AdamW moves a weight by up to 1e-3 a step, whose gradient may be nothing but rounding.
    require_same(found, pretrained(technique, SIGNALS["ecg"], EAGER, count=10), atol=5e-4)
