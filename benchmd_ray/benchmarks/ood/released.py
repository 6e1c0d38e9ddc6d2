"""The detectors of Cao et al. (https://arxiv.org/abs/2007.04250) as their released code has them.

Heads, losses, optimisers, epochs and the choice of the epoch by accuracy are those of the code; its
faults are not: records that calibrate are of other patients than those that are scored, and an
epoch is chosen by other patients than the head learns from. ALI is excluded. Steps of the input are
in standard deviations of a record, of the grid of `methods.outputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.benchmarks.ood.methods import autoencoder, binary_network, classifiers, gaussian
from benchmd_ray.benchmarks.ood.methods.formulas import drawn
from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Calibration,
    Detector,
    Floats,
    Head,
    Seen,
    State,
    nothing,
)
from benchmd_ray.benchmarks.ood.methods.neighbours import flat_pictures, nearest
from benchmd_ray.benchmarks.ood.methods.outputs import STEPS, msp

BATCH = 64
Values = npt.NDArray[np.float32]


class ThresholdHead(nn.Module):
    """x + t of one quantity; the threshold starts midway between the means of both kinds."""

    def __init__(self, values: torch.Tensor, out: torch.Tensor) -> None:
        super().__init__()
        middle = (values[out == 1].mean() + values[out == 0].mean()) / 2
        self.limit = nn.Parameter(-middle.reshape(1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(records,): above 0 is out."""
        return values[:, 0] + self.limit


class LinearHead(nn.Module):
    """w · x + b, of quantities normalised or as they are."""

    def __init__(self, values: torch.Tensor, _: torch.Tensor, *, normalised: bool) -> None:
        super().__init__()
        width = values.shape[1]
        self.norm = nn.BatchNorm1d(width) if normalised else nn.Identity()
        self.weights = nn.Linear(width, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(records,): above 0 is out."""
        scores: torch.Tensor = self.weights(self.norm(values))[:, 0]
        return scores


class QuadraticHead(nn.Module):
    """(ℓ − μ)² − τ of a reconstruction's loss."""

    def __init__(self, _: torch.Tensor, __: torch.Tensor) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(1))
        self.limit = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(records,): above 0 is out."""
        return (values[:, 0] - self.centre) ** 2 - self.limit


def hinge(scores: torch.Tensor, out: torch.Tensor, *, margin: float) -> torch.Tensor:
    """Mean of max(0, margin − t · score), where t is 1 for out and −1 for in."""
    return (margin - (2 * out - 1) * scores).clamp(min=0).mean()


def crossed(scores: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Binary cross-entropy."""
    return functional.binary_cross_entropy_with_logits(scores, out)


Optimiser = Callable[[Iterable[nn.Parameter], int], torch.optim.Optimizer]


@dataclass(frozen=True)
class Recipe:
    """How a head is made and trained."""

    head: Callable[[torch.Tensor, torch.Tensor], nn.Module]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimiser: Optimiser
    epochs: int

    def trained(
        self,
        learning: tuple[Values, npt.NDArray[np.bool_]],
        other: tuple[Values, npt.NDArray[np.bool_]],
    ) -> tuple[nn.Module, float]:
        """The head of the epoch with the highest accuracy on other records, and that accuracy."""
        values, out = (torch.from_numpy(np.asarray(array, np.float32)) for array in learning)
        asked, kinds = torch.from_numpy(np.asarray(other[0], np.float32)), other[1]
        order = np.random.default_rng(0)
        best, weights = -1.0, {}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            head = self.head(values, out)
            optimiser = self.optimiser(head.parameters(), len(values))
            for _ in range(self.epochs):
                head.train()
                batches = -(-len(values) // BATCH)
                for rows in np.array_split(order.permutation(len(values)), batches):
                    loss = self.loss(head(values[rows]), out[rows])
                    optimiser.zero_grad()
                    torch.autograd.backward(loss)
                    optimiser.step()
                head.eval()
                with torch.no_grad():
                    accuracy = float(((head(asked) > 0).numpy() == kinds).mean())
                if accuracy > best:
                    kept = head.state_dict().items()
                    best, weights = accuracy, {name: value.clone() for name, value in kept}
        head.load_state_dict(weights)
        return head, best


def _adagrad(rate: float, *, decayed: bool = False) -> Optimiser:
    def made(parameters: Iterable[nn.Parameter], records: int) -> torch.optim.Optimizer:
        decay = 1 / records if decayed else 0.0
        return torch.optim.Adagrad(parameters, rate, weight_decay=decay)

    return made


def _adam(rate: float) -> Optimiser:
    return lambda parameters, _: torch.optim.Adam(parameters, rate)


THRESHOLD = Recipe(ThresholdHead, partial(hinge, margin=0.0), _adagrad(0.1), 10)
SLOWER = Recipe(ThresholdHead, partial(hinge, margin=0.0), _adagrad(0.01), 30)
"""Of ODIN."""
MACHINE = Recipe(
    partial(LinearHead, normalised=True),
    partial(hinge, margin=1.0),
    _adagrad(0.1, decayed=True),
    100,
)
LOGISTIC = Recipe(partial(LinearHead, normalised=False), crossed, _adam(0.1), 99)
RECONSTRUCTION = Recipe(QuadraticHead, partial(hinge, margin=0.0), _adam(0.1), 30)

HEAD = "head/"
"""How names of a head's weights begin in a state."""


def _with_head(
    name: str,
    title: str,
    recipe: Recipe,
    *,
    fit: Callable[..., State] = nothing,
    once: Callable[[State, Seen, Head], Values] | None = None,
    **more: Any,
) -> Detector:
    """A detector whose head learns from quantities in `Seen.more` under its name.

    Of several variants (records, variants, quantities), such as steps of the input, that with the
    highest accuracy is taken.
    """

    def read(seen: Seen) -> Values:
        values = np.asarray(seen.more[name], np.float32)
        return values if values.ndim == 3 else values[:, None]

    def calibrate(state: State, calibration: Calibration, other: Calibration, _: Head) -> State:
        calibration, other = even(calibration), even(other)
        first, second = read(calibration.seen), read(other.seen)
        heads = [
            recipe.trained((first[:, number], calibration.out), (second[:, number], other.out))
            for number in range(first.shape[1])
        ]
        number = int(np.argmax([accuracy for _, accuracy in heads]))
        weights = autoencoder.weights_of(heads[number][0], HEAD)
        return {**state, **weights, "variant": np.array(number)}

    def score(state: State, seen: Seen, _: Head) -> Floats:
        values = torch.from_numpy(read(seen)[:, int(state["variant"])])
        with torch.random.fork_rng():
            head = recipe.head(values[:2], torch.tensor([0.0, 1.0][: len(values[:2])]))
        autoencoder.with_weights(head, state, HEAD)
        with torch.no_grad():
            scores: Floats = head.eval()(values).double().numpy()
        return scores

    return Detector(
        name,
        title,
        fit,
        score,
        "Cao et al., arXiv 2007.04250, as released",
        calibrate=calibrate,
        once=once,
        threshold=0.0,
        **more,
    )


def _column(score: Callable[[State, Seen, Head], Floats]) -> Callable[[State, Seen, Head], Values]:
    def once(state: State, seen: Seen, head: Head) -> Values:
        return score(state, seen, head)[:, None].astype(np.float32)

    return once


def _odin(state: State, seen: Seen, head: Head) -> Values:
    """All temperatures and steps: (records, variants, 1)."""
    grid = seen.more["odin"]
    return grid.reshape(len(seen), grid.shape[1] * grid.shape[2], 1)


def _pixels(state: State, seen: Seen, head: Head, *, k: int) -> Values:
    return nearest(state["records"], flat_pictures(seen), k).astype(np.float32)


def _all_pixels(bank: Bank) -> State:
    """Pictures of all records: the code does not draw a thousand."""
    return {"records": flat_pictures(bank.seen)}


def _codes(
    state: State, seen: Seen, head: Head, *, k: int, kind: autoencoder.AutoencoderKind
) -> Values:
    codes = autoencoder.codes_of(state, seen.more["pixels"], kind)
    return nearest(state["codes"], codes, k).astype(np.float32)


def _classes(bank: Bank, *, only_last: bool) -> State:
    state: State = {}
    for name, values in gaussian.layers_of(bank.seen).items():
        if name == "features" or not only_last:
            layer = Bank(Seen(values, bank.seen.logits), bank.targets, bank.head)
            fitted = gaussian.fit_per_class(layer)
            state |= {f"{name}/{key}": array.astype(np.float32) for key, array in fitted.items()}
    return state


def _stepped(network: Any, state: State, signals: torch.Tensor) -> torch.Tensor:
    """−m of each layer after each step that raises it: (records, steps, layers)."""
    names = list(dict.fromkeys(key.rpartition("/")[0] for key in state))
    arrays = {
        key: torch.from_numpy(np.array(array)).to(signals.device) for key, array in state.items()
    }
    size = signals.std(dim=tuple(range(1, signals.ndim)), keepdim=True)

    def by_class(name: str, inputs: torch.Tensor) -> torch.Tensor:
        gaps = network.layered(inputs)[name][:, None] - arrays[f"{name}/means"]
        return -(torch.einsum("ncw,cwv->ncv", gaps, arrays[f"{name}/roots"]) ** 2).sum(dim=2)

    columns = []
    for name in names:
        inputs = signals.detach().clone().requires_grad_()
        with torch.enable_grad():
            m = by_class(name, inputs)
            loss = functional.cross_entropy(m, m.argmax(dim=1), reduction="sum")
            (gradient,) = torch.autograd.grad(loss, inputs)
        with torch.no_grad():
            moved = (signals - step * size * gradient.sign() for step in STEPS)
            rows = [-by_class(name, array).amax(dim=1) for array in moved]
        columns.append(torch.stack(rows, dim=1))
    return torch.stack(columns, dim=2)


def _released() -> tuple[Detector, ...]:
    kinds = autoencoder.KINDS
    pixels: dict[str, Any] = {"needs": ("pixels",)}
    methods: list[Detector] = [
        _with_head("released-msp", "probability threshold", THRESHOLD, once=_column(msp)),
        _with_head("released-odin", "ODIN", SLOWER, once=_odin, needs=("odin",)),
        _with_head(
            "released-score-svm", "score SVM", MACHINE, once=lambda state, seen, head: seen.logits
        ),
        replace(classifiers.BINARY, threshold=0.0),
        replace(binary_network.METHOD, threshold=0.0),
        _with_head(
            "released-feature-knn",
            "feature KNN",
            MACHINE,
            fit=classifiers.fit_features,
            once=classifiers.nearest_feature,
        ),
        *(
            _with_head(
                f"released-mahalanobis{'' if only_last else '-layers'}",
                f"Mahalanobis{'' if only_last else ', layers'}",
                LOGISTIC,
                fit=partial(_classes, only_last=only_last),
                asks=_stepped,
                needs=() if only_last else (gaussian.LAYER,),
            )
            for only_last in (True, False)
        ),
        *(
            _with_head(
                f"released-pixel-knn-{k}",
                f"pixel KNN-{k}",
                MACHINE,
                fit=_all_pixels,
                once=partial(_pixels, k=k),
                **pixels,
            )
            for k in (1, 8)
        ),
        *(
            _with_head(
                f"released-{kind.name}",
                kind.title,
                RECONSTRUCTION,
                fit=partial(autoencoder.fit, kind=kind),
                once=_column(partial(autoencoder.score, kind=kind)),
                images_only=kind.crossed,
                **pixels,
            )
            for kind in kinds
        ),
        *(
            _with_head(
                f"released-{kind.name}-knn-{k}",
                f"{kind.title} KNN-{k}",
                MACHINE,
                fit=partial(autoencoder.fit, kind=kind, codes=True),
                once=partial(_codes, kind=kind, k=k),
                images_only=kind.crossed,
                **pixels,
            )
            for kind in kinds
            for k in (1, 8)
        ),
    ]
    return tuple(methods)


RELEASED: dict[str, Detector] = {method.name: method for method in _released()}


def even(calibration: Calibration) -> Calibration:
    """As many records of either kind, drawn by a fixed seed."""
    kinds = [np.flatnonzero(calibration.out == kind) for kind in (False, True)]
    count = min(map(len, kinds))
    rows = np.sort(np.concatenate([kind[drawn(len(kind), count)] for kind in kinds]))
    return Calibration(calibration.seen.at(rows), calibration.out[rows])


def balanced(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """Scores of as many records of either kind, drawn by a fixed seed, as the code draws them."""
    count = min(len(inside), len(outside))
    return inside[drawn(len(inside), count)], outside[drawn(len(outside), count)]
