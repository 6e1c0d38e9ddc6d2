import math

import pytest
import torch
from torch import nn

from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.settings.definition import EncoderSettings, PretrainSettings
from benchmd_ray.ssl.emix import PROJECTION, EMix, emix_loss

SIGNAL = Signal(
    name="small",
    axes=("channel", "time"),
    stored_shape=(2, 24),
    input_shape=(2, 24),
    dtype="int16",
    unit="mV",
    patch=(4,),
    normaliser="none",
    rate=100.0,
)
SIZE = EncoderSettings(
    width=16, depth=2, heads=2, head_dim=8, mlp=32, dropout=0.0, embedding_dropout=0.0
)


def slow_loss(mixed, plain, ratio, first, second, temperature):
    """The formula of the paper, one example after the other."""

    def cosine(a, b):
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(x * x for x in b))

    total = 0.0
    for row, share, i, j in zip(mixed, ratio, first, second, strict=True):
        logits = [cosine(row, key) / temperature for key in plain]
        log_sum = math.log(sum(math.exp(x) for x in logits))
        total += share * (log_sum - logits[i]) + (1 - share) * (log_sum - logits[j])
    return total / len(mixed)


def random_case(seed, batch, keys, width):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch, width, generator=generator),
        torch.randn(keys, width, generator=generator),
        0.5 + 0.5 * torch.rand(batch, generator=generator),
        torch.randint(keys, (batch,), generator=generator),
        torch.randint(keys, (batch,), generator=generator),
    )


def method(seed=0, **settings):
    torch.manual_seed(seed)
    return EMix(Encoder(SIGNAL, SIZE), PretrainSettings(**settings))


@pytest.mark.parametrize("temperature", [0.2, 1.0])
@pytest.mark.parametrize(("batch", "keys", "width"), [(1, 2, 3), (4, 4, 128), (5, 12, 7)])
def test_agrees_with_the_formula(batch, keys, width, temperature):
    case = random_case(batch, batch, keys, width)
    expected = slow_loss(*(x.tolist() for x in case), temperature)
    assert emix_loss(*case, temperature).item() == pytest.approx(expected, rel=1e-5)


def test_closed_forms():
    keys, ratio = torch.eye(4), torch.full((4,), 0.75)
    own, other = torch.arange(4), torch.tensor([1, 2, 3, 0])
    # Features without direction towards any key: all keys are equally likely.
    assert emix_loss(torch.ones(4, 4), keys, ratio, own, other, 0.2).item() == pytest.approx(
        math.log(4)
    )
    # Features that are their own key: cosine 1 with it and 0 with the three others.
    right = math.log(math.exp(5) + 3) - 5
    expected = 0.75 * right + 0.25 * (right + 5)
    assert emix_loss(keys, keys, ratio, own, other, 0.2).item() == pytest.approx(expected)


def test_each_ratio_weights_its_own_example():
    keys = torch.eye(3)
    mixed = torch.stack([keys[0], keys[0], keys[2]])
    first, second = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    right = math.log(math.e + 2) - 1
    wrong = right + 1
    found = emix_loss(mixed, keys, torch.tensor([1.0, 0.5, 0.8]), first, second, 1.0)
    each = [1.0 * right + 0.0 * wrong, wrong, 0.8 * right + 0.2 * wrong]
    assert found.item() == pytest.approx(sum(each) / 3)
    # The mean of the ratios is the same; given to other examples they cost something else.
    turned = emix_loss(mixed, keys, torch.tensor([0.5, 1.0, 0.8]), first, second, 1.0)
    assert turned.item() == pytest.approx(found.item() + 0.5 * (wrong - right) / 3)


def test_symmetries():
    mixed, plain, ratio, first, second = random_case(3, 6, 6, 5)
    loss = emix_loss(mixed, plain, ratio, first, second, 0.2).item()
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    by_example = emix_loss(mixed[order], plain, ratio[order], first[order], second[order], 0.2)
    by_key = emix_loss(
        mixed, plain[order], ratio, order.argsort()[first], order.argsort()[second], 0.2
    )
    swapped = emix_loss(mixed, plain, 1 - ratio, second, first, 0.2)
    scaled = emix_loss(7 * mixed, 0.1 * plain, ratio, first, second, 0.2)
    for other in (by_example, by_key, swapped, scaled):
        assert other.item() == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_draws(alpha):
    draws = method(mixing_alpha=alpha).draw(4000, torch.Generator().manual_seed(0))
    ratio = draws["ratio"].double()
    assert ratio.min() >= 0.5
    assert ratio.max() <= 1
    assert draws["first"].tolist() == list(range(4000))
    assert sorted(draws["second"].tolist()) == list(range(4000))
    assert (draws["second"] != draws["first"]).sum() > 3900
    # Var[Beta(α, α)] = 1 / (4 (2α + 1)), and folding at one half leaves the square about it.
    spread = ((ratio - 0.5) ** 2).mean().item()
    assert spread == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.06)


def test_draws_depend_on_the_generator_only():
    emix = method()
    torch.manual_seed(1)
    one = emix.draw(8, torch.Generator().manual_seed(5))
    torch.manual_seed(2)
    torch.rand(3)
    two = emix.draw(8, torch.Generator().manual_seed(5))
    other = emix.draw(8, torch.Generator().manual_seed(6))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["ratio"], other["ratio"])
    assert not torch.equal(one["second"], other["second"])


def slow_forward(emix, signals, draws, *, stop_partner=True, stop_keys=False):
    """The method written out, example by example."""
    encoder = emix.encoder
    tokens = [encoder.embed(signal[None])[0] for signal in signals]

    def projected(embedded):
        return emix.head(encoder.pool(encoder.encode(embedded[None])))[0]

    keys = torch.stack([projected(t) for t in tokens])
    keys = (keys.detach() if stop_keys else keys).div(keys.norm(dim=1, keepdim=True))
    total = 0
    for i, share in enumerate(draws["ratio"].tolist()):
        j = int(draws["second"][i])
        partner = tokens[j].detach() if stop_partner else tokens[j]
        feature = projected(share * tokens[i] + (1 - share) * partner)
        logits = keys @ (feature / feature.norm()) / emix.temperature
        log_p = logits - torch.logsumexp(logits, 0)
        total = total - share * log_p[i] - (1 - share) * log_p[j]
    return total / len(signals)


def gradients(emix, loss):
    return torch.autograd.grad(loss, list(emix.parameters()), allow_unused=True)


@pytest.fixture
def case():
    emix = method().double()
    generator = torch.Generator().manual_seed(3)
    signals = torch.randn(5, 2, 24, generator=generator, dtype=torch.float64)
    draws = emix.draw(5, generator)
    draws["ratio"] = draws["ratio"].clamp(max=0.8).double()
    draws["second"] = torch.tensor([2, 0, 1, 4, 3])
    return emix, signals, draws


def test_the_method_agrees_with_its_parts_written_out(case):
    emix, signals, draws = case
    # The loss is computed in float32 whatever the features' type.
    torch.testing.assert_close(
        emix(signals, draws).double(), slow_forward(emix, signals, draws), rtol=1e-5, atol=1e-6
    )


def close(found, expected):
    pairs = zip(found, expected, strict=True)
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in pairs)


def test_the_partner_takes_no_gradient(case):
    emix, signals, draws = case
    found = gradients(emix, emix(signals, draws))
    assert close(found, gradients(emix, slow_forward(emix, signals, draws)))
    assert not close(found, gradients(emix, slow_forward(emix, signals, draws, stop_partner=False)))


def test_the_keys_take_gradient(case):
    emix, signals, draws = case
    found = gradients(emix, emix(signals, draws))
    assert not close(found, gradients(emix, slow_forward(emix, signals, draws, stop_keys=True)))


def test_partners_and_keys_come_from_all_workers():
    emix = method()
    signals = torch.randn(6, 2, 24)
    draws = emix.draw(6, torch.Generator().manual_seed(0))
    draws["second"] = torch.tensor([5, 4, 3, 2, 1, 0])  # every partner lies with the other worker
    whole = emix(signals, draws)
    tokens = emix.encoder.embed(signals)
    keys = emix.head(emix.encoder.pool(emix.encoder.encode(tokens)))

    def gather(x):
        return tokens.detach() if x.ndim == 3 else keys

    halves = []
    for part in (slice(0, 3), slice(3, 6)):
        share = {name: value[part] for name, value in draws.items()}
        halves.append(emix(signals[part], share, gather))
    torch.testing.assert_close(sum(halves) / 2, whole)


def test_the_projection_is_a_layer_norm_and_a_linear_map_to_128():
    norm, linear = method().head
    assert isinstance(norm, nn.LayerNorm)
    assert isinstance(linear, nn.Linear)
    assert (norm.normalized_shape, linear.out_features, PROJECTION) == ((16,), 128, 128)


def test_golden_losses_of_four_steps():
    # Computed once by this very test (float32, CPU) and frozen: a change moves results.
    emix = method(seed=11)
    optimiser = torch.optim.AdamW(emix.parameters(), lr=1e-3, weight_decay=1e-4)
    signals = torch.randn(4, 8, 2, 24, generator=torch.Generator().manual_seed(12))
    losses = []
    for step, batch in enumerate(signals):
        loss = emix(batch, emix.draw(8, torch.Generator().manual_seed(step)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == pytest.approx([1.8289, 1.8916, 1.9379, 1.8254], abs=1e-4)
