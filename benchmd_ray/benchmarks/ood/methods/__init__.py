"""Detectors, one file each: a state fitted on in-distribution records, and a score by it."""

from __future__ import annotations

from benchmd_ray.benchmarks.ood.methods import (
    ash,
    autoencoder,
    binary_classifier,
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
from benchmd_ray.benchmarks.ood.methods.method import Method

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
    score_svm,
    feature_knn,
)
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        *(module.METHOD for module in _ONE),
        *distance.METHODS,
        *autoencoder.METHODS,
    )
}
"""By name, in the tables' order."""
