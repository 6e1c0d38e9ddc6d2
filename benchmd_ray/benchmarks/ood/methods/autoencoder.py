"""Autoencoders of small pictures of signals: how badly they reconstruct, and how far codes are.

A plain one scores the mean squared error, a variational one that and the divergence of its code
from a normal one, by the number of pixels; either is trained by what it is scored by.
"""

from __future__ import annotations

import hashlib
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.benchmarks.ood.methods.distance import MOST
from benchmd_ray.benchmarks.ood.methods.method import Bank, Floats, Head, Method, Seen, State
from benchmd_ray.benchmarks.ood.methods.neighbours import nearest

CHANNELS, CODE = (16, 32, 64), 64
"""Channels after each halving, and numbers of a code."""
STEPS, BATCH, RATE = 400, 64, 1e-3
"""Of the training, by Adam."""
BLOCK = 256


class Autoencoder(nn.Module):
    """Convolutions that halve a picture three times, a code, and the way back."""

    def __init__(self, shape: tuple[int, ...], *, variational: bool) -> None:
        super().__init__()
        channels, *extents = shape
        kind: Any = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[len(extents)]
        self.extents = [tuple(extents)]
        for _ in CHANNELS:
            self.extents.append(tuple(-(-extent // 2) for extent in self.extents[-1]))
        widths = (channels, *CHANNELS)
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(kind(a, b, 3, stride=2, padding=1) for a, b in pairs)
        self.up = nn.ModuleList(kind(b, a, 3, padding=1) for a, b in reversed(pairs))
        self.least = (CHANNELS[-1], *self.extents[-1])
        self.variational = variational
        self.encode = nn.Linear(prod(self.least), CODE * (2 if variational else 1))
        self.decode = nn.Linear(CODE, prod(self.least))

    def codes(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Means of codes and, of a variational one, log-variances: (records, `CODE`) each."""
        x = pictures
        for layer in self.down:
            x = functional.elu(layer(x))
        found = self.encode(x.flatten(1))
        return found[:, :CODE], found[:, CODE:]

    def losses(self, pictures: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """(records,): what it is trained by, with noise, and scored by, without."""
        mean, log_variance = self.codes(pictures)
        code = mean
        if self.variational and noise is not None:
            code = mean + noise * (log_variance / 2).exp()
        x = self.decode(code).reshape(len(code), *self.least)
        for number, layer in enumerate(self.up):
            extents = self.extents[len(CHANNELS) - 1 - number]
            x = layer(functional.interpolate(x, size=extents, mode="nearest"))
            x = functional.elu(x) if number < len(CHANNELS) - 1 else x
        error: torch.Tensor = ((x - pictures) ** 2).flatten(1).mean(dim=1)
        if not self.variational:
            return error
        divergence = (mean**2 + log_variance.exp() - log_variance - 1).sum(dim=1) / 2
        return error + divergence / prod(pictures.shape[1:])


def fit(bank: Bank, *, variational: bool, codes: bool = False) -> State:
    """Weights, what standardises pictures, and for distances the codes of some records."""
    pictures = bank.seen.more["pixels"]
    state = _trained(pictures, variational)
    if codes:
        rows = np.sort(np.random.default_rng(0).permutation(len(pictures))[:MOST])
        state = state | {"codes": _codes(state, pictures[rows], variational)}
    return state


_TRAINED: dict[tuple[str, bool], State] = {}
"""Of the last pictures: three detectors share one network."""


def _trained(pictures: npt.NDArray[np.float32], variational: bool) -> State:
    key = (hashlib.sha256(np.ascontiguousarray(pictures).tobytes()).hexdigest(), variational)
    if key not in _TRAINED:
        if len(_TRAINED) >= 2:
            _TRAINED.clear()
        _TRAINED[key] = _train(pictures, variational)
    return dict(_TRAINED[key])


def _train(pictures: npt.NDArray[np.float32], variational: bool) -> State:
    centre, spread = float(pictures.mean()), float(pictures.std()) or 1.0
    given = torch.from_numpy((pictures - centre) / spread).float()
    order = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Autoencoder(tuple(given.shape[1:]), variational=variational)
        optimiser = torch.optim.Adam(network.parameters(), RATE)
        for _ in range(STEPS):
            batch = given[order.integers(0, len(given), min(BATCH, len(given)))]
            loss = network.losses(batch, torch.randn(len(batch), CODE)).mean()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    weights = {f"weights/{name}": value.numpy() for name, value in network.state_dict().items()}
    return {"centre": np.array(centre), "spread": np.array(spread), **weights}


def _network(
    state: State, pictures: npt.NDArray[np.float32], variational: bool
) -> tuple[Autoencoder, torch.Tensor]:
    network = Autoencoder(pictures.shape[1:], variational=variational)
    prefix = "weights/"
    network.load_state_dict(
        {
            name.removeprefix(prefix): torch.from_numpy(np.array(value))
            for name, value in state.items()
            if name.startswith(prefix)
        }
    )
    given = (pictures - float(state["centre"])) / float(state["spread"])
    return network, torch.from_numpy(given).float()


def _codes(
    state: State, pictures: npt.NDArray[np.float32], variational: bool
) -> npt.NDArray[np.float32]:
    network, given = _network(state, pictures, variational)
    with torch.no_grad():
        parts = [network.codes(part)[0] for part in torch.split(given, BLOCK)]
    return np.asarray(torch.cat(parts).numpy(), np.float32)


def score(state: State, seen: Seen, head: Head, *, variational: bool) -> Floats:
    """(records,)."""
    network, given = _network(state, seen.more["pixels"], variational)
    with torch.no_grad():
        parts = [network.losses(part) for part in torch.split(given, BLOCK)]
    return np.asarray(torch.cat(parts).double().numpy())


def distance(state: State, seen: Seen, head: Head, *, variational: bool, k: int) -> Floats:
    """(records,): distance of a code to the k-th nearest."""
    codes = _codes(state, seen.more["pixels"], variational)
    return nearest(state["codes"], codes, k)[:, -1]


_KINDS = (
    ("autoencoder", "autoencoder", False, "Shafaei et al., BMVC 2019"),
    ("vae", "VAE", True, "Kingma and Welling, ICLR 2014"),
)
METHODS = (
    *(
        Method(
            name,
            title,
            partial(fit, variational=variational),
            partial(score, variational=variational),
            source,
            needs=("pixels",),
        )
        for name, title, variational, source in _KINDS
    ),
    *(
        Method(
            f"{name}-knn-{k}",
            f"{title} KNN-{k}",
            partial(fit, variational=variational, codes=True),
            partial(distance, variational=variational, k=k),
            "Cao et al., arXiv 2007.04250",
            needs=("pixels",),
        )
        for name, title, variational, _ in _KINDS
        for k in (1, 8)
    ),
)
