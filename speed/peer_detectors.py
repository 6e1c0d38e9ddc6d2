"""Detectors of pytorch-ood beside ours: how each is made, fitted and told to do the same.

pytorch-ood is not a dependency. Importing the whole of it loads data sets and networks, which need
torchvision; `detectors` imports its detectors alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmd_ray.benchmarks.ood.methods import (
    ash,
    dice,
    knn,
    nnguide,
    openmax,
    residual,
    scale,
)
from benchmd_ray.benchmarks.ood.methods.method import Bank, Floats, Head, Seen, State

NAME, VERSION = "pytorch_ood", "0.4.0"
MISSING = (
    "pytorch-ood is not installed. Install it into a folder of its own by `python -m pip install "
    f"--no-deps --target FOLDER pytorch-ood=={VERSION}` and set PYTHONPATH=FOLDER."
)
BATCH = 256
"""Records that its detectors are given at once."""
TOLERANCE = 1e-4
"""Largest difference of scores, in standard deviations of ours: most of theirs are of float32."""

Score = Callable[[Tensor, Tensor], Tensor]
"""(records,) of features (records, width) and logits (records, classes)."""
Options = Callable[[Bank], dict[str, Any]]


def installed() -> bool:
    """Whether pytorch-ood can be found."""
    return NAME in sys.modules or importlib.util.find_spec(NAME) is not None


def detectors() -> types.ModuleType:
    """The module ``pytorch_ood.detector``, below a stub of its package.

    Raises:
        ModuleNotFoundError: pytorch-ood is not installed; the message says how to install it.
    """
    if NAME not in sys.modules:
        found = importlib.util.find_spec(NAME)
        if found is None or found.submodule_search_locations is None:
            raise ModuleNotFoundError(MISSING)
        package = types.ModuleType(NAME)
        package.__path__ = list(found.submodule_search_locations)
        sys.modules[NAME] = package
    return importlib.import_module(f"{NAME}.detector")


@dataclass(frozen=True)
class Fitted:
    """A detector of pytorch-ood, fitted."""

    detector: Any
    score: Score

    def scores(self, seen: Seen) -> Floats:
        """(records,), batch by batch."""
        features, logits = torch.from_numpy(seen.features), torch.from_numpy(seen.logits)
        batches = zip(torch.split(features, BATCH), torch.split(logits, BATCH), strict=True)
        with torch.no_grad():
            parts = [self.score(f, z) for f, z in batches]
        return np.asarray(torch.cat(parts).numpy(), np.float64)


@dataclass(frozen=True)
class Peer:
    """How a detector of pytorch-ood stands to ours of the same name in the literature."""

    theirs: str
    """Its class."""
    fit: Callable[[Bank], Fitted]
    """Make it with our choices, and fit it."""
    factor: Callable[[Bank], float] = lambda _: 1.0
    """What its scores are multiplied by to be ours."""
    align: Callable[[Any, State], None] | None = None
    """Replace what it fitted by what ours fitted."""
    note: str = ""
    """What it was told, or what was replaced, so that both score the same."""
    differs: str = ""
    """Why they do not score the same; empty where they do."""
    tolerance: float = TOLERANCE
    clips: bool = False
    """Whether it clips probabilities at 1e-7, so that it scores sure records otherwise."""

    def comparable(self, seen: Seen) -> Seen:
        """Records that it is compared on: all but those that are clipped, or nearly so."""
        if not self.clips:
            return seen
        p = torch.from_numpy(seen.logits).double().softmax(dim=1).numpy()
        return seen.at(np.flatnonzero((p.min(axis=1) > 2e-7) & (p.max(axis=1) < 0.999)))


def tensors(bank: Bank) -> tuple[Tensor, Tensor, Tensor]:
    """Features, logits and classes."""
    classes = torch.from_numpy(bank.targets.argmax(axis=1))
    return torch.from_numpy(bank.seen.features), torch.from_numpy(bank.seen.logits), classes


def linear(head: Head) -> nn.Linear:
    """The head as a layer."""
    layer = nn.Linear(head.weight.shape[1], len(head.weight))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(head.weight))
        layer.bias.copy_(torch.from_numpy(head.bias))
    return layer


def _none(_: Bank) -> dict[str, Any]:
    return {}


def _of_logits(name: str, *, learns: bool = False, **options: Any) -> Callable[[Bank], Fitted]:
    def fit(bank: Bank) -> Fitted:
        detector = getattr(detectors(), name)(None, **options)
        if learns:
            _, logits, classes = tensors(bank)
            detector.fit_logits(logits, classes)
        return Fitted(detector, lambda _, z: detector.predict_logits(z))

    return fit


def _of_features(name: str, options: Options = _none) -> Callable[[Bank], Fitted]:
    def fit(bank: Bank) -> Fitted:
        detector = getattr(detectors(), name)(None, **options(bank))
        features, _, classes = tensors(bank)
        detector.fit_features(features, classes)
        return Fitted(detector, lambda f, _: detector.predict_features(f))

    return fit


def _of_maps(
    name: str, options: Options = _none, *, learns: bool = False
) -> Callable[[Bank], Fitted]:
    """Of a detector that reads maps: features are maps of one point."""

    def fit(bank: Bank) -> Fitted:
        layer = linear(bank.head)
        detector = getattr(detectors(), name)(
            None, lambda maps: layer(maps.flatten(1)), **options(bank)
        )
        if learns:
            features, _, classes = tensors(bank)
            detector.fit_feature_maps(features[:, :, None, None], classes)
        return Fitted(detector, lambda f, _: detector.predict_feature_maps(f[:, :, None, None]))

    return fit


def _head(bank: Bank) -> dict[str, Any]:
    return {"head": linear(bank.head)}


def _weights(bank: Bank) -> dict[str, Any]:
    layer = linear(bank.head)
    return {"w": layer.weight, "b": layer.bias}


def _cut(percentile: int) -> Options:
    """The share below a percentile."""
    return lambda bank: {"percentile": percentile / 100}


def _dice(bank: Bank) -> dict[str, Any]:
    return _weights(bank) | {"p": 1 - dice.KEPT / 100}


def _knn(bank: Bank) -> dict[str, Any]:
    return {"k": max(1, min(knn.NEIGHBOURS, len(bank.seen) // 10))}


def _vim(bank: Bank) -> dict[str, Any]:
    kept = residual.dimensions(bank.head.weight.shape[1], len(bank.seen))
    return _weights(bank) | {"d": kept}


def _gradnorm(bank: Bank) -> Fitted:
    detector = detectors().GradNorm(linear(bank.head), param_filter=lambda name: name == "weight")
    return Fitted(detector, lambda f, _: detector.predict(f))


def _some(bank: Bank, rows: np.ndarray[Any, np.dtype[Any]]) -> Bank:
    return replace(bank, seen=bank.seen.at(rows), targets=bank.targets[rows])


def _nnguide(bank: Bank) -> Fitted:
    if len(bank.seen) > nnguide.MOST:
        drawn = np.random.default_rng(0).permutation(len(bank.seen))[: nnguide.MOST]
        bank = _some(bank, np.sort(drawn))
    return _of_features("NNGuide", lambda b: _head(b) | {"k": nnguide.NEIGHBOURS})(bank)


def _openmax(bank: Bank) -> Fitted:
    right = bank.seen.logits.argmax(axis=1) == bank.targets.argmax(axis=1)
    euclidean = 1 / (1 + openmax.EUCLIDEAN)
    options = {"tailsize": openmax.TAIL, "alpha": len(bank.head.weight)}
    fit = _of_logits("OpenMax", learns=True, euclid_weight=euclidean, **options)
    return fit(_some(bank, np.flatnonzero(right)))


def _likeliest_tails(detector: Any, state: State) -> None:
    unit = openmax.EUCLIDEAN / (1 + openmax.EUCLIDEAN)  # its distances are ours times this
    for name, tail in detector._openmax.distributions.items():
        shape, place, spread = state["weibull"][name]
        tail.c, tail.scale = shape, spread * unit
        tail.translation, tail.min_val = 0.0, place * unit


def _same_space(detector: Any, state: State) -> None:
    detector.principal_subspace = torch.from_numpy(state["basis"]).float()


def _best_temperature(detector: Any, state: State) -> None:
    detector.t.data.fill_(float(state["temperature"]))


SHRUNK = "ours shrinks the covariance (Ledoit and Wolf); theirs is the scatter with a ridge of 1e-6"
CLIPPED = "theirs clips probabilities at 1e-7: compared on records that it does not clip"
PEERS = {
    "msp": Peer("MaxSoftmax", _of_logits("MaxSoftmax")),
    "temperature": Peer(
        "TemperatureScaling",
        _of_logits("TemperatureScaling", learns=True),
        align=_best_temperature,
        note="its 50 steps end before the likeliest temperature: scored with ours after its fit",
    ),
    "max-logit": Peer("MaxLogit", _of_logits("MaxLogit")),
    "energy": Peer("EnergyBased", _of_logits("EnergyBased")),
    "entropy": Peer("Entropy", _of_logits("Entropy"), note=CLIPPED, clips=True),
    "gen": Peer(
        "GEN",
        _of_logits("GEN", M=100),
        lambda bank: float(min(100, len(bank.head.weight))),
        note=f"theirs is the mean, ours the sum; {CLIPPED}",
        clips=True,
    ),
    "kl-matching": Peer("KLMatching", _of_logits("KLMatching", learns=True)),
    "openmax": Peer(
        "OpenMax",
        _openmax,
        align=_likeliest_tails,
        note="fitted on correctly classified records, with our weights of distances; its search "
        "ends before the likeliest Weibull distributions: scored with ours after its fit",
        tolerance=1e-3,  # shapes of 1e5 enlarge the rounding of distances in float32
    ),
    "gradnorm": Peer("GradNorm", _gradnorm),
    "react": Peer("ReAct", _of_maps("ReAct", learns=True)),
    "dice": Peer("DICE", _of_features("DICE", _dice)),
    "ash": Peer("ASH", _of_maps("ASH", _cut(ash.PERCENTILE))),
    "scale": Peer("SCALE", _of_maps("SCALE", _cut(scale.PERCENTILE))),
    "knn": Peer("KNN", _of_features("KNN", _knn)),
    "mahalanobis": Peer("Mahalanobis", _of_features("Mahalanobis"), differs=SHRUNK),
    "rmd": Peer("RMD", _of_features("RMD"), differs=SHRUNK),
    "gmm": Peer(
        "GMM",
        _of_features("GMM"),
        differs="ours fits a mixture without labels, theirs a Gaussian to each class",
    ),
    "vim": Peer(
        "ViM",
        _of_features("ViM", _vim),
        align=_same_space,
        note="eigenvectors of float32 turn the space where two lengths are near: scored with ours "
        "after its fit",
    ),
    "she": Peer("SHE", _of_features("SHE", _head)),
    "nnguide": Peer("NNGuide", _nnguide, note="fitted on the records that ours draws of the bank"),
    "fdbd": Peer("fDBD", _of_features("fDBD", _head)),
    "nci": Peer("NCI", _of_features("NCI", _head)),
}
"""By our names. Not here: what reads inputs, several layers or passes of a network."""


def difference(ours: Floats, theirs: Floats) -> float:
    """The largest one of two scores, in standard deviations of ours."""
    return float(np.abs(ours - theirs).max() / ours.std())
