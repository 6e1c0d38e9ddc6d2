"""Forward passes by graphs give what the network gives, also after its weights have changed."""

import logging

import pytest
import torch
from graphs import Again, Refused
from kinds import SIGNALS

from benchmd_ray.data.batches import Worker
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.settings.definition import ENCODERS, Settings, load_settings
from benchmd_ray.training import forward as module
from benchmd_ray.training.collect import evaluating
from benchmd_ray.training.forward import Graphed, can_compile, graphed

SIGNAL = SIGNALS["ecg"]
CPU = torch.device("cpu")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Kept(Again):
    """What a graph leaves in the place of its outputs."""

    def capture(self, work):
        super().capture(work)
        self.loss = torch.zeros(self.shape)
        return self.loss


class Stale(Kept):
    """A graph that gives what it gave first."""

    def replay(self):
        pass


def network(device=CPU, seed=0):
    torch.manual_seed(seed)
    return Classifier(make_encoder(SIGNAL, ENCODERS["tiny"]), 5).to(device).eval()


def batch(size, seed=1, device=CPU):
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(size, *SIGNAL.input_shape, generator=drawn).to(device)


def made(kind):
    """Makes graphs of batches of 3 and then of 2."""
    sizes = iter((3, 2))

    def one():
        graph = kind()
        graph.shape = (next(sizes), 5)
        return graph

    return one


@torch.inference_mode()
def outputs(model, forward):
    """Of batches of two sizes, before and after the weights have changed in place."""
    found = [forward(batch(3)), forward(batch(2)), forward(batch(3, seed=2))]
    for parameter in model.parameters():
        parameter.mul_(0.9)
    return [*found, forward(batch(3)), forward(batch(2, seed=3))]


def require_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_graphs_give_what_the_network_gives(caplog):
    Again.captures = 0
    model, other = network(), network()
    direct = evaluating(model, Worker(), "float32")
    with caplog.at_level(logging.WARNING):
        found = outputs(model, Graphed(direct, compiles=False, graph=made(Kept)))
    require_same(found, outputs(other, evaluating(other, Worker(), "float32")))
    assert Again.captures == 2
    assert not caplog.records


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Refused, "operation not permitted when stream is capturing"), (Stale, "other outputs")],
)
def test_what_cannot_be_captured_is_executed_directly(kind, why, caplog):
    model, other = network(), network()
    direct = evaluating(model, Worker(), "float32")
    with caplog.at_level(logging.WARNING):
        found = outputs(model, Graphed(direct, compiles=False, graph=made(kind)))
    require_same(found, outputs(other, evaluating(other, Worker(), "float32")))
    (said,) = caplog.messages
    assert said.startswith("forward passes cannot be captured")
    assert why in said
    assert "\n" not in said


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(CPU), reason="needs a C++ compiler")
def test_compiled_passes_give_what_the_network_gives(monkeypatch, caplog):
    monkeypatch.setattr(module, "BACKEND", "aot_eager")
    model, other = network(), network()
    direct = evaluating(model, Worker(), "float32")
    with caplog.at_level(logging.WARNING):
        found = outputs(model, Graphed(direct, compiles=True, graph=made(Kept)))
    assert not [r for r in caplog.records if r.name.startswith("benchmd_ray")]
    expected = outputs(other, evaluating(other, Worker(), "float32"))
    for one, other_one in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other_one)


def test_passes_that_cannot_be_compiled_are_captured_as_they_are(monkeypatch, caplog):
    torch._dynamo.reset()

    def failing(graph, inputs):
        raise AssertionError("no code for this graph")

    monkeypatch.setattr(module, "BACKEND", failing)
    Again.captures = 0
    model, other = network(), network()
    direct = evaluating(model, Worker(), "float32")
    with caplog.at_level(logging.WARNING):
        found = outputs(model, Graphed(direct, compiles=True, graph=made(Kept)))
    require_same(found, outputs(other, evaluating(other, Worker(), "float32")))
    assert Again.captures == 2
    (said,) = (line for line in caplog.messages if line.startswith("forward passes"))
    assert said.startswith("forward passes cannot be compiled: ")
    assert "no code for this graph" in said


def test_graphs_are_for_gpus_and_not_for_eager_steps():
    def forward(signals):
        return signals

    eager = load_settings(assignments=["execution.step=eager"])
    gpu = Worker(device=torch.device("cuda"))
    assert graphed(forward, Worker(), Settings(), 10**6) is forward
    assert graphed(forward, gpu, eager, 10**6) is forward
    assert isinstance(graphed(forward, gpu, Settings(), 1), Graphed)


@CUDA
@pytest.mark.parametrize("compiles", [False, True])
def test_cuda_graphs_give_what_the_network_gives(compiles, caplog):
    device = torch.device("cuda")
    model = network(device)
    direct = evaluating(model, Worker(device=device), "float32")
    forward = Graphed(direct, compiles=compiles)
    with torch.inference_mode(), caplog.at_level(logging.WARNING):
        for number, size in enumerate((3, 2, 3, 3, 2, 2)):
            signals = batch(size, seed=number, device=device)
            torch.testing.assert_close(forward(signals), direct(signals), rtol=1e-3, atol=1e-3)
            for parameter in model.parameters():
                parameter.mul_(0.9)
    assert not caplog.records
