r"""``PYTHONPATH=FOLDER python -m studies.pytorch_ood`` from the project's root.

Do our detectors of what is out of distribution score as those of pytorch-ood do? Each is fitted on
the same bank of training records and scores the same others; the JSON has the rank correlation of
both scores and, where they should be the same, their largest difference. `PEERS` describes how
theirs is made, fitted and told to do the same; ``note`` and ``differs`` repeat it. Those that are
to be the same are held by ``tests/benchmarks/test_ood_oracle.py``, and timed by `speed.detectors`.

pytorch-ood is not a dependency: FOLDER is where ``python -m pip install --no-deps --target FOLDER
pytorch-ood==0.4.0`` put it. Importing the whole of it loads data sets and networks, which need
torchvision; `detectors` only imports its detectors.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from benchmd_ray.benchmarks.ood.methods import METHODS, activations, features, neighbours, openmax
from benchmd_ray.benchmarks.ood.methods.method import Bank, Floats, Head, Seen, State
from speed import measure
from studies.ood_records import Problem

NAME, VERSION = "pytorch_ood", "0.4.0"
MISSING = (
    "pytorch-ood is not installed. Install it into a separate folder by `python -m pip install "
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
        spec = importlib.util.find_spec(NAME)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(MISSING)
        package = types.ModuleType(NAME)
        package.__path__ = list(spec.submodule_search_locations)
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


def _fitted(
    name: str, kind: str, options: Options = _none, *, learns: bool = True
) -> Callable[[Bank], Fitted]:
    """How to make and fit a detector of logits, features or maps.

    Features are given as maps of one point, which the head reads as features.
    """

    def fit(bank: Bank) -> Fitted:
        features, logits, classes = tensors(bank)
        layer = linear(bank.head)
        head = [lambda maps: layer(maps.flatten(1))] if kind == "feature_maps" else []
        detector = getattr(detectors(), name)(None, *head, **options(bank))

        def chosen(features: Tensor, logits: Tensor) -> Tensor:
            of_kind = {"features": features, "logits": logits}
            return features[:, :, None, None] if kind == "feature_maps" else of_kind[kind]

        if learns:
            getattr(detector, f"fit_{kind}")(chosen(features, logits), classes)
        predict = getattr(detector, f"predict_{kind}")
        return Fitted(detector, lambda f, z: predict(chosen(f, z)))

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
    return _weights(bank) | {"p": 1 - activations.DICE_KEPT / 100}


def _knn(bank: Bank) -> dict[str, Any]:
    return {"k": max(1, min(neighbours.NEIGHBOURS, len(bank.seen) // 10))}


def _vim(bank: Bank) -> dict[str, Any]:
    kept = features.dimensions(bank.head.weight.shape[1], len(bank.seen))
    return _weights(bank) | {"d": kept}


def _gradnorm(bank: Bank) -> Fitted:
    detector = detectors().GradNorm(linear(bank.head), param_filter=lambda name: name == "weight")
    return Fitted(detector, lambda f, _: detector.predict(f))


def _some(bank: Bank, rows: np.ndarray[Any, np.dtype[Any]]) -> Bank:
    return replace(bank, seen=bank.seen.at(rows), targets=bank.targets[rows])


def _nnguide(bank: Bank) -> Fitted:
    if len(bank.seen) > features.MOST_GUIDES:
        drawn = np.random.default_rng(0).permutation(len(bank.seen))[: features.MOST_GUIDES]
        bank = _some(bank, np.sort(drawn))
    options: Options = lambda b: _head(b) | {"k": features.GUIDES}  # noqa: E731
    return _fitted("NNGuide", "features", options)(bank)


def _openmax(bank: Bank) -> Fitted:
    right = bank.seen.logits.argmax(axis=1) == bank.targets.argmax(axis=1)
    euclidean = 1 / (1 + openmax.EUCLIDEAN)
    options: dict[str, Any] = {"tailsize": openmax.TAIL, "alpha": len(bank.head.weight)}
    options["euclid_weight"] = euclidean
    return _fitted("OpenMax", "logits", lambda _: options)(_some(bank, np.flatnonzero(right)))


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
    "msp": Peer("MaxSoftmax", _fitted("MaxSoftmax", "logits", learns=False)),
    "temperature": Peer(
        "TemperatureScaling",
        _fitted("TemperatureScaling", "logits"),
        align=_best_temperature,
        note="its 50 steps end before the likeliest temperature: scored with ours after its fit",
    ),
    "max-logit": Peer("MaxLogit", _fitted("MaxLogit", "logits", learns=False)),
    "energy": Peer("EnergyBased", _fitted("EnergyBased", "logits", learns=False)),
    "entropy": Peer(
        "Entropy", _fitted("Entropy", "logits", learns=False), note=CLIPPED, clips=True
    ),
    "gen": Peer(
        "GEN",
        _fitted("GEN", "logits", lambda _: {"M": 100}, learns=False),
        lambda bank: float(min(100, len(bank.head.weight))),
        note=f"theirs is the mean, ours the sum; {CLIPPED}",
        clips=True,
    ),
    "kl-matching": Peer("KLMatching", _fitted("KLMatching", "logits")),
    "openmax": Peer(
        "OpenMax",
        _openmax,
        align=_likeliest_tails,
        note="fitted on correctly classified records, with our weights of distances; its search "
        "ends before the likeliest Weibull distributions: scored with ours after its fit",
        tolerance=1e-3,  # shapes of 1e5 enlarge the rounding of distances in float32
    ),
    "gradnorm": Peer("GradNorm", _gradnorm),
    "react": Peer("ReAct", _fitted("ReAct", "feature_maps")),
    "dice": Peer("DICE", _fitted("DICE", "features", _dice)),
    "ash": Peer(
        "ASH", _fitted("ASH", "feature_maps", _cut(activations.ASH_PERCENTILE), learns=False)
    ),
    "scale": Peer(
        "SCALE", _fitted("SCALE", "feature_maps", _cut(activations.SCALE_PERCENTILE), learns=False)
    ),
    "knn": Peer("KNN", _fitted("KNN", "features", _knn)),
    "mahalanobis": Peer("Mahalanobis", _fitted("Mahalanobis", "features"), differs=SHRUNK),
    "rmd": Peer("RMD", _fitted("RMD", "features"), differs=SHRUNK),
    "gmm": Peer(
        "GMM",
        _fitted("GMM", "features"),
        differs="ours fits a mixture without labels, theirs a Gaussian to each class",
    ),
    "vim": Peer(
        "ViM",
        _fitted("ViM", "features", _vim),
        align=_same_space,
        note="eigenvectors of float32 turn the space where two lengths are near: scored with ours "
        "after its fit",
    ),
    "she": Peer("SHE", _fitted("SHE", "features", _head)),
    "nnguide": Peer("NNGuide", _nnguide, note="fitted on the records that ours draws of the bank"),
    "fdbd": Peer("fDBD", _fitted("fDBD", "features", _head)),
    "nci": Peer("NCI", _fitted("NCI", "features", _head)),
}
"""By our names. Not here: what reads inputs, several layers or passes of a network."""


def difference(ours: Floats, theirs: Floats) -> float:
    """The largest one of two scores, in standard deviations of ours."""
    return float(np.abs(ours - theirs).max() / ours.std())


CHECKED = 4096
"""Records that both score."""
DECLARED = {
    "records": (CHECKED, "that are scored"),
    "bank": (20_000, "training records"),
    "width": (256, "of the features"),
    "classes": (10, "of the training records"),
    "detectors": (list(PEERS), "that are compared", tuple(PEERS)),
}


class Pair:
    """Our detector and theirs, fitted."""

    def __init__(self, name: str, bank: Bank, seen: Seen) -> None:
        """Fit both."""
        self.name, self.bank, self.seen = name, bank, seen
        self.method, self.peer = METHODS[name], PEERS[name]
        self.state, self.theirs = self.method.fit(bank), self.peer.fit(bank)
        if self.peer.align:
            self.peer.align(self.theirs.detector, self.state)

    def ours(self, seen: Seen) -> Floats:
        """Our scores."""
        return self.method.scores(self.state, seen, self.bank.head)

    @cached_property
    def agreement(self) -> dict[str, Any]:
        """How near the scores of some records are.

        Raises:
            AssertionError: The scores should be the same and are not.
        """
        peer, few = self.peer, self.peer.comparable(self.seen.at(slice(CHECKED)))
        ours, theirs = self.ours(few), self.theirs.scores(few) * peer.factor(self.bank)
        distance = difference(ours, theirs)
        if not peer.differs and not distance < peer.tolerance:
            raise AssertionError(
                f"{self.name}: scores differ by {distance:.2g} standard deviations"
            )
        figures: dict[str, Any] = {
            "peer": peer.theirs,
            "same_scores": not peer.differs,
            "records_compared": len(few),
            "note": peer.note,
            "differs": peer.differs,
            "rank_correlation": round(float(spearmanr(ours, theirs).statistic), 6),
            "largest_difference_in_sd": None if peer.differs else measure.rounded(distance),
        }
        return {key: value for key, value in figures.items() if value not in ("", None)}


def drawn(options: argparse.Namespace) -> tuple[Bank, Seen]:
    """A bank, and records of which a quarter are out of distribution.

    Raises:
        SystemExit: pytorch-ood is not installed, or the sizes do not fit.
    """
    if options.classes < 2 or options.bank < 20 * options.classes:
        raise SystemExit("two classes or more are needed, and a bank of twenty records for each.")
    if options.records < 2 or options.width < options.classes:
        raise SystemExit("two records or more are needed, and features no fewer than classes.")
    if not installed():
        raise SystemExit(MISSING)
    problem = Problem(options.width, options.classes, options.seed)
    bank = problem.bank(options.bank)
    return bank, problem.seen(problem.features(options.records, out=0.25)[0])


def main(arguments: list[str] | None = None) -> None:
    """Compare and print."""
    options = measure.options(__doc__, arguments, DECLARED, repeats=False)
    bank, seen = drawn(options)
    table = {name: Pair(name, bank, seen).agreement for name in options.detectors}
    measure.print_result("pytorch_ood", options, pytorch_ood=VERSION, detectors=table)


if __name__ == "__main__":
    main()
