"""BenchMD: the paper's datasets, its fixed protocol and its published results."""

from __future__ import annotations

from dataclasses import replace

from benchmd_ray.benchmarks.benchmd import published
from benchmd_ray.evaluation.benchmark import Benchmark, Published, Start
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.settings.definition import Settings, default_settings


def fixed(kind: Modality, technique: str, _: str = "") -> Settings:
    """The paper's settings: the defaults with the encoder of the technique."""
    from benchmd_ray.ssl import protocol_encoder

    return default_settings(kind, protocol_encoder(technique))


def _like(kind: Modality, technique: str, settings: Settings) -> Settings:
    """The fixed protocol with the run's mode and labels, which are the paper's axes."""
    protocol, transfer = fixed(kind, technique), settings.transfer
    axes = replace(protocol.transfer, mode=transfer.mode, labels=transfer.labels)
    return replace(protocol, transfer=axes)


BENCHMARK = Benchmark(
    name="benchmd",
    version=1,
    title="BenchMD: modality-agnostic learning on seven medical modalities",
    datasets=lambda: tuple(sorted({dataset for dataset, _, _ in published.auroc()})),
    starts=(Start("fixed", "the fixed protocol's settings", fixed, _like),),
    published=Published(published.SOURCE, published.WORDS, published.auroc, published.unlike),
    about="Wantlin et al., BenchMD (https://arxiv.org/abs/2304.08486). Pretrained on one source of "
    "each modality, transferred with 8, 64, 256 or all labels, also scored at other sites.",
)
