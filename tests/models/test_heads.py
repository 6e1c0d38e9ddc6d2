import math

import pytest
import torch
from kinds import CLASSES, SIGNALS

from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.heads import Classifier, classification_loss
from benchmd_ray.settings.definition import ENCODERS


def slow_cross_entropy(logits, target):
    return math.log(sum(math.exp(x) for x in logits)) - logits[target.index(1)]


def slow_masked_bce(logits, target):
    """Mean over known labels; a label that is not known (-1) plays no part."""
    terms = []
    for x, y in zip(logits, target, strict=True):
        if y >= 0:
            p = 1 / (1 + math.exp(-x))
            terms.append(-math.log(p if y == 1 else 1 - p))
    return sum(terms) / len(terms) if terms else 0.0


@pytest.mark.parametrize(("batch", "classes"), [(1, 2), (5, 7), (9, 5)])
def test_single_label_agrees_with_the_formula(batch, classes):
    generator = torch.Generator().manual_seed(batch)
    logits = torch.randn(batch, classes, generator=generator) * 3
    chosen = torch.randint(classes, (batch,), generator=generator)
    targets = torch.nn.functional.one_hot(chosen, classes).to(torch.int8)
    expected = [
        slow_cross_entropy(x, y) for x, y in zip(logits.tolist(), targets.tolist(), strict=True)
    ]
    found = classification_loss(logits, targets, "single-label")
    assert found.shape == (batch,)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("batch", "classes"), [(1, 2), (6, 5), (40, 3)])
def test_multi_label_agrees_with_the_formula_and_masks_unknown_labels(batch, classes):
    generator = torch.Generator().manual_seed(batch)
    logits = torch.randn(batch, classes, generator=generator) * 3
    targets = torch.randint(-1, 2, (batch, classes), generator=generator).to(torch.int8)
    targets[0] = torch.tensor([-1] + [1] * (classes - 1))
    expected = [
        slow_masked_bce(x, y) for x, y in zip(logits.tolist(), targets.tolist(), strict=True)
    ]
    found = classification_loss(logits, targets, "multi-label")
    assert found.shape == (batch,)
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("task", "target"),
    [
        ("multi-label", [-1, -1, -1]),
        ("single-label", [-1, -1, -1]),
        ("single-label", [0, -1, 0]),
        ("single-label", [0, 0, 0]),
    ],
)
def test_an_example_without_a_known_label_costs_nothing(task, target):
    logits = torch.randn(1, 3, requires_grad=True)
    loss = classification_loss(logits, torch.tensor([target], dtype=torch.int8), task)
    loss.sum().backward()
    assert loss.tolist() == [0.0]
    assert logits.grad.tolist() == [[0.0] * 3]


SMOOTHING = (0.0, 0.1, 0.6)


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_smoothed_single_labels_are_spread_over_all_classes(smoothing):
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(2)) * 3
    chosen = [0, 4, 2, 2, 1, 3]
    targets = torch.nn.functional.one_hot(torch.tensor(chosen), 5).to(torch.int8)
    targets[5] = -1
    expected = []
    for row, own in zip(logits.tolist(), chosen, strict=True):
        total = math.log(sum(math.exp(x) for x in row))
        share = [smoothing / 5 + (1 - smoothing) * (i == own) for i in range(5)]
        expected.append(sum(s * (total - x) for s, x in zip(share, row, strict=True)))
    expected[5] = 0.0
    found = classification_loss(logits, targets, "single-label", smoothing)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_smoothed_multi_labels_are_spread_over_both_answers_and_unknown_ones_stay_out(smoothing):
    logits = torch.randn(8, 3, generator=torch.Generator().manual_seed(3)) * 3
    targets = torch.tensor([[1, 0, -1], [-1, -1, 1], [0, 0, 0], [-1, -1, -1]] * 2).to(torch.int8)
    expected = []
    for row, known in zip(logits.tolist(), targets.tolist(), strict=True):
        terms = []
        for x, y in zip(row, known, strict=True):
            if y >= 0:
                p = 1 / (1 + math.exp(-x))
                wanted = {1: 1 - smoothing / 2, 0: smoothing / 2}[y]
                terms.append(-wanted * math.log(p) - (1 - wanted) * math.log(1 - p))
        expected.append(sum(terms) / len(terms) if terms else 0.0)
    found = classification_loss(logits, targets, "multi-label", smoothing)
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_without_smoothing_the_loss_has_the_bits_of_before(task):
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(4))
    targets = torch.eye(5, dtype=torch.int8)[[0, 1, 2, 3, 4, 0]]
    if task == "single-label":
        before = torch.nn.functional.cross_entropy(logits, targets.argmax(1), reduction="none")
    else:
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, targets.float(), reduction="none"
        )
        before = each.sum(dim=1) / 5
    assert torch.equal(classification_loss(logits, targets, task, 0.0), before)


def test_equal_logits_cost_the_logarithm_of_the_number_of_classes():
    targets = torch.eye(7, dtype=torch.int8)
    found = classification_loss(torch.zeros(7, 7), targets, "single-label")
    assert found.tolist() == pytest.approx([math.log(7)] * 7)
    found = classification_loss(torch.zeros(7, 7), targets, "multi-label")
    assert found.tolist() == pytest.approx([math.log(2)] * 7)


def test_losses_of_bf16_logits_are_float32():
    targets = torch.eye(2, dtype=torch.int8)
    for task in ("single-label", "multi-label"):
        found = classification_loss(torch.zeros(2, 2, dtype=torch.bfloat16), targets, task)
        assert found.dtype == torch.float32


@pytest.mark.parametrize(("name", "classes"), [("ecg", 7), ("ldct", 2)])
def test_a_classifier_is_a_linear_map_of_the_features(name, classes):
    signal = SIGNALS[name]
    model = Classifier(Encoder(signal, ENCODERS["tiny"]), len(CLASSES[name])).eval()
    signals = torch.randn(2, *signal.input_shape)
    logits = model(signals)
    assert logits.shape == (2, classes)
    expected = model.encoder(signals) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(logits, expected)
