"""Detectors, grouped by what they read: a state fitted on in-distribution records, and a score.

An installed package adds its own by an entry point of ``detector`` (`extensions.plugins.GROUPS`): a
function without arguments that gives a `Detector`.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from benchmd_ray.benchmarks.ood.methods import (
    activations,
    autoencoder,
    binary_network,
    classifiers,
    features,
    gaussian,
    neighbours,
    openmax,
    outputs,
    pretrained,
)
from benchmd_ray.benchmarks.ood.methods.method import Detector
from benchmd_ray.benchmarks.ood.methods.outside import guarded
from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.plugins import GROUPS, plugin, plugin_source

METHODS: dict[str, Detector] = {
    method.name: method
    for method in (
        *outputs.METHODS,
        openmax.METHOD,
        *activations.METHODS,
        neighbours.KNN,
        *gaussian.METHODS,
        *features.METHODS,
        pretrained.MAE_LOSS,
        classifiers.BINARY,
        binary_network.METHOD,
        classifiers.SCORE_SVM,
        classifiers.FEATURE_KNN,
        *pretrained.METHODS,
        *neighbours.OF_PICTURES,
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
