"""Detectors, one file each: a state fitted on in-distribution records, and a score by it.

An installed package adds its own by an entry point of ``detector`` (`extensions.plugins.GROUPS`): a
function without arguments that gives a `Detector`.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from benchmd_ray.benchmarks.ood.methods import (
    ash,
    autoencoder,
    binary_classifier,
    binary_network,
    dice,
    distance,
    energy,
    entropy,
    fdbd,
    feature_knn,
    gen,
    gmm,
    gradnorm,
    kl_matching,
    knn,
    mahalanobis,
    mahalanobis_layers,
    mahalanobis_per_class,
    max_logit,
    mc_dropout,
    msp,
    nci,
    nnguide,
    odin,
    openmax,
    pretrained,
    react,
    reconstruction,
    residual,
    rmd,
    scale,
    score_svm,
    she,
    temperature,
    vim,
)
from benchmd_ray.benchmarks.ood.methods.method import Detector
from benchmd_ray.benchmarks.ood.methods.outside import guarded
from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.plugins import GROUPS, plugin, plugin_source

_ONE = (
    msp,
    temperature,
    mc_dropout,
    odin,
    max_logit,
    energy,
    entropy,
    gen,
    kl_matching,
    openmax,
    gradnorm,
    react,
    dice,
    ash,
    scale,
    knn,
    mahalanobis,
    mahalanobis_per_class,
    mahalanobis_layers,
    rmd,
    gmm,
    residual,
    vim,
    she,
    nnguide,
    fdbd,
    nci,
    reconstruction,
    binary_classifier,
    binary_network,
    score_svm,
    feature_knn,
)
METHODS: dict[str, Detector] = {
    method.name: method
    for method in (
        *(module.METHOD for module in _ONE),
        *pretrained.METHODS,
        *distance.METHODS,
        *autoencoder.METHODS,
    )
}

KIND = "detector"


def detectors() -> dict[str, Detector]:
    """All detectors by name: the package's, and those of installed packages.

    Raises:
        BenchmdError: One of an installed package cannot be used, or has a name that is taken.
    """
    methods = dict(METHODS)
    for entry in sorted(entry_points(group=GROUPS[KIND])):
        detector = plugin(KIND, entry.name, METHODS)()
        if not isinstance(detector, Detector):
            raise BenchmdError(
                f"the detector {entry.name} gives a {type(detector).__name__}, expected a Detector "
                "of benchmd_ray.benchmarks.ood.methods.method."
            )
        if detector.name in methods:
            raise BenchmdError(
                f"the detector {entry.name} has the name {detector.name}, which is taken: choose "
                "another name."
            )
        methods[detector.name] = guarded(detector)
    return methods


def detector_sources() -> dict[str, str]:
    """SHA-256 of the source of each detector that is not the package's, by name."""
    sources = {}
    for entry in sorted(entry_points(group=GROUPS[KIND])):
        detector = plugin(KIND, entry.name, METHODS)()
        sources[detector.name] = plugin_source(KIND, entry.name, METHODS)
    return sources


USUAL = ("mahalanobis-layers", "mahalanobis")
"""Detectors that are taken where none is named: the first that fits the network."""
