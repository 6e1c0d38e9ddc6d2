import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.settings.definition import EncoderSettings, PretrainSettings
from benchmd_ray.ssl.shed import ShED, derangement

SIGNAL = Signal(
    name="small",
    axes=("channel", "time"),
    stored_shape=(2, 40),
    input_shape=(2, 40),
    dtype="int16",
    unit="mV",
    patch=(4,),
    normaliser="none",
    rate=100.0,
)
SIZE = EncoderSettings(
    width=16, depth=2, heads=2, head_dim=8, mlp=32, dropout=0.0, embedding_dropout=0.0
)


def method(seed=0, **settings):
    torch.manual_seed(seed)
    return ShED(Encoder(SIGNAL, SIZE), PretrainSettings(**settings))


@given(
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 5),
    tokens=st.integers(2, 60),
    rate=st.floats(0.01, 0.99),
)
def test_a_chosen_token_always_moves(seed, batch, tokens, rate):
    source, moved = derangement(batch, tokens, rate, torch.Generator().manual_seed(seed))
    places = torch.arange(tokens).expand(batch, -1)
    assert torch.equal(source != places, moved)


@given(
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 5),
    tokens=st.integers(2, 60),
    rate=st.floats(0.01, 0.99),
)
def test_no_token_is_lost_or_doubled(seed, batch, tokens, rate):
    source, _ = derangement(batch, tokens, rate, torch.Generator().manual_seed(seed))
    assert torch.equal(source.sort(dim=1).values, torch.arange(tokens).expand(batch, -1))


@pytest.mark.parametrize(
    ("tokens", "rate", "count"),
    [
        (200, 0.85, 170),
        (125, 0.85, 106),
        (196, 0.85, 167),
        (10, 0.3, 3),
        (10, 0.01, 2),
        (2, 0.5, 2),
    ],
)
def test_the_share_is_exact_in_every_example(tokens, rate, count):
    _, moved = derangement(7, tokens, rate, torch.Generator().manual_seed(0))
    assert moved.sum(dim=1).tolist() == [count] * 7


def test_examples_and_places_are_drawn_evenly():
    source, moved = derangement(4000, 10, 0.5, torch.Generator().manual_seed(0))
    assert moved.float().mean(dim=0).tolist() == pytest.approx([0.5] * 10, abs=0.04)
    came = torch.stack([(source == token).float().mean(dim=0) for token in range(10)])
    elsewhere = came[~torch.eye(10, dtype=torch.bool)]
    assert elsewhere.tolist() == pytest.approx([0.5 / 9] * 90, abs=0.02)
    assert len({tuple(row) for row in moved.tolist()}) > 200


def test_draws_depend_on_the_generator_only():
    shed = method()
    torch.manual_seed(1)
    one = shed.draw(8, torch.Generator().manual_seed(5))
    torch.manual_seed(2)
    torch.rand(3)
    two = shed.draw(8, torch.Generator().manual_seed(5))
    other = shed.draw(8, torch.Generator().manual_seed(6))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["source"], other["source"])


def slow_forward(shed, signals, draws):
    """Token by token: put where the draw says, and the cross-entropy of 'was moved'."""
    encoder, total, count = shed.encoder, 0.0, 0
    for signal, source, moved in zip(signals, draws["source"], draws["moved"], strict=True):
        tokens = encoder.embed(signal[None])[0]
        placed = torch.stack([tokens[int(s)] for s in source])
        hidden = encoder.encode(placed[None])[0]
        for state, was_moved in zip(hidden[1:], moved.tolist(), strict=True):
            logit = (shed.head.weight[0] @ state + shed.head.bias[0]).item()
            p = 1 / (1 + math.exp(-logit))
            total -= math.log(p if was_moved else 1 - p)
            count += 1
    return total / count


@pytest.mark.parametrize(("batch", "rate"), [(1, 0.2), (3, 0.5), (6, 0.85)])
def test_agrees_with_the_formula(batch, rate):
    shed = method(corruption_rate=rate)
    generator = torch.Generator().manual_seed(batch)
    signals = torch.randn(batch, 2, 40, generator=generator)
    draws = shed.draw(batch, generator)
    assert draws["moved"].sum(dim=1).tolist() == [round(rate * 10)] * batch
    expected = slow_forward(shed, signals, draws)
    assert shed(signals, draws).item() == pytest.approx(expected, rel=1e-5)


def test_an_undecided_head_costs_the_logarithm_of_two():
    shed = method()
    torch.nn.init.zeros_(shed.head.weight)
    torch.nn.init.zeros_(shed.head.bias)
    signals = torch.randn(3, 2, 40)
    draws = shed.draw(3, torch.Generator().manual_seed(0))
    assert shed(signals, draws).item() == pytest.approx(math.log(2))


def test_always_saying_moved_costs_what_the_share_says():
    shed = method(corruption_rate=0.8)
    torch.nn.init.zeros_(shed.head.weight)
    torch.nn.init.constant_(shed.head.bias, 2.0)
    signals = torch.randn(3, 2, 40)
    draws = shed.draw(3, torch.Generator().manual_seed(0))
    expected = 0.8 * math.log(1 + math.exp(-2)) + 0.2 * math.log(1 + math.exp(2))
    assert shed(signals, draws).item() == pytest.approx(expected)


def test_the_order_of_the_examples_does_not_matter():
    shed = method()
    signals = torch.randn(5, 2, 40)
    draws = shed.draw(5, torch.Generator().manual_seed(0))
    order = torch.tensor([4, 2, 0, 1, 3])
    turned = shed(signals[order], {name: x[order] for name, x in draws.items()})
    torch.testing.assert_close(turned, shed(signals, draws))


def test_golden_losses_of_four_steps():
    # Computed once by this very test (float32, CPU) and frozen: a change moves results.
    shed = method(seed=11)
    optimiser = torch.optim.AdamW(shed.parameters(), lr=1e-3, weight_decay=1e-4)
    signals = torch.randn(4, 8, 2, 40, generator=torch.Generator().manual_seed(12))
    losses = []
    for step, batch in enumerate(signals):
        loss = shed(batch, shed.draw(8, torch.Generator().manual_seed(step)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == pytest.approx([0.7764, 0.6994, 0.7562, 0.7288], abs=1e-4)
