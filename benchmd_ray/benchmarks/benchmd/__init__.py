"""BenchMD: the paper's datasets, its fixed protocol and its published results."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from benchmd_ray.benchmarks.benchmd import published
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.benchmark import Benchmark, Published, Start
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.modality.signals import Signal
from benchmd_ray.settings.definition import ENCODERS, Settings, default_settings, updated


def fixed(kind: Modality, technique: str, _: str = "") -> Settings:
    """The paper's settings: the defaults with the encoder of the technique."""
    from benchmd_ray.ssl import protocol_encoder

    return default_settings(kind, protocol_encoder(technique))


def _like(kind: Modality, technique: str, settings: Settings) -> Settings:
    return _with_axes(fixed(kind, technique), settings)


MOST_TOKENS = 100
"""Of a record in a small network, if larger patches divide its extent."""
SMALL = {
    "pretrain": {"steps": 200, "optimiser": {"lr": 1e-3, "schedule": "cosine"}},
    "transfer": {
        "epochs": 10,
        "batch_size": 32,
        "optimiser": {"lr": 1e-3, "schedule": "cosine"},
    },
}
"""Lengths of training for minutes on two cores."""


def small(kind: Modality, technique: str, _: str = "") -> Settings:
    """A narrow network that is trained briefly, with larger patches if there would be many.

    Networks of ImageNet weights keep their size.
    """
    from benchmd_ray.ssl import protocol_encoder

    settings = fixed(kind, technique)
    if protocol_encoder(technique) == "paper":
        encoder = replace(ENCODERS["small"], patch_size=_patch_size(kind.signal))
        settings = replace(settings, encoder=encoder)
    return updated(settings, SMALL)


def _patch_size(signal: Signal) -> int:
    """Extent of a patch of a small network; 0: the signal's own."""
    size = 0
    for factor in (2, 4):
        if signal.with_patch(size).tokens <= MOST_TOKENS:
            break
        with contextlib.suppress(BenchmdError):  # it does not divide the signal's extent
            signal.with_patch(factor * signal.patch[-1])
            size = factor * signal.patch[-1]
    return size


def _like_small(kind: Modality, technique: str, settings: Settings) -> Settings:
    return _with_axes(small(kind, technique), settings)


def _with_axes(protocol: Settings, settings: Settings) -> Settings:
    """A protocol with a run's mode and labels, which it varies."""
    transfer = settings.transfer
    axes = replace(protocol.transfer, mode=transfer.mode, labels=transfer.labels)
    return replace(protocol, transfer=axes)


BENCHMARK = Benchmark(
    name="benchmd",
    version=1,
    title="BenchMD: modality-agnostic learning on seven medical modalities",
    datasets=lambda: tuple(sorted({dataset for dataset, _, _ in published.auroc()})),
    starts=(
        Start("fixed", "the fixed protocol's settings", fixed, _like),
        Start(
            "small",
            "small networks, trained for minutes (--small)",
            small,
            _like_small,
            note="small networks, trained briefly to try things out; their scores are not those of "
            "the fixed protocol.",
        ),
    ),
    published=Published(published.SOURCE, published.WORDS, published.auroc, published.unlike),
    about="Wantlin et al., BenchMD (https://arxiv.org/abs/2304.08486). Pretrained on one source of "
    "each modality, transferred with 8, 64, 256 or all labels, also scored at other sites.",
)
