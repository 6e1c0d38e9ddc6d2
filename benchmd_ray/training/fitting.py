"""Fit random kernels to training records: biases, and the mean and scale of their features."""

from __future__ import annotations

import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.random_kernels import FITTED_ON, RandomKernels
from benchmd_ray.training.collect import evaluation_batch
from benchmd_ray.training.engine import cpu_copy
from benchmd_ray.training.jobs import STANDARDISED_ON, PretrainJob
from benchmd_ray.training.reporter import Reporter
from benchmd_ray.training.seeds import DRAWS, WEIGHTS, derived_seed, generator
from benchmd_ray.training.weights import export_model


def fit(job: PretrainJob, catalog: Catalog, worker: Worker, reporter: Reporter) -> None:
    """Draw kernels, fit them to the first training records in the order of the seed, export them.

    No label is read. Writes ``model.safetensors``.
    """
    settings = job.settings
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed))
    kernels = make_encoder(catalog.signal, settings.encoder)
    assert isinstance(kernels, RandomKernels)  # `require_pretrainable` refuses others
    kernels.to(worker.device).eval()
    feed = whole_split_feed(catalog, "train", settings, worker, catalog.statistics)
    reporter.start(f"fit random kernels (on {worker.device.type})", 1, "steps", 0)
    size, few = evaluation_batch(kernels), min(FITTED_ON, feed.rows)
    batches = feed.epoch(few, 0)
    kernels.fit(next(batches).signals, generator(DRAWS, settings.seed, 0))
    features = []
    with torch.inference_mode():
        for batch in feed.epoch(min(size, feed.rows), 0):
            features.append(kernels(batch.signals).float())
            if sum(map(len, features)) >= STANDARDISED_ON:
                break
    kernels.standardise(torch.cat(features)[:STANDARDISED_ON])
    reporter.finish()
    weights = {f"encoder.{name}": value for name, value in cpu_copy(kernels).items()}
    if worker.rank == 0:
        export_model(job.folder, weights, settings.encoder, catalog.signal, catalog.statistics)
