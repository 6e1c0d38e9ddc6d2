r"""``python -m speed.random_kernels --catalog FOLDER`` from the root, with ``aeon`` installed.

Random kernels against aeon's MiniRocket and MultiRocket (`pip install aeon`; not a dependency) at
about the same number of features: features a second, fitted beforehand, one thread each, and the
AUROC on folds of whole patients, over several seeds. Every method gets the same head: logistic
regression whose penalty is chosen by folds of the training labels. Only the training split of a
catalog of signals over time is read, so that nothing is tuned to what a benchmark scores.

Unlike other measurements here, both cannot give the same features; the AUROC says whether they are
worth the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import read_columns, whole_split_feed
from benchmd_ray.data.resident import split_table
from benchmd_ray.data.splits import balanced_folds, rarest_class
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.random_kernels import BIASES, FITTED_ON, RandomKernels
from benchmd_ray.scores.metrics import auroc, probabilities
from benchmd_ray.settings.definition import EncoderSettings, Settings
from benchmd_ray.training.logistic import fit_head
from speed import measure

Array = npt.NDArray[np.float32]
FOLDS = 5


def kernels(signals: Array, signal: Any, width: int, seed: int) -> Callable[[Array], Array]:
    """Ours, fitted to the first signals; from signals to features."""
    torch.manual_seed(seed)
    number = width // (BIASES[1] + 1)
    options = {"kernels": number}
    network = make_encoder(signal, EncoderSettings(network="random-kernels", options=options))
    assert isinstance(network, RandomKernels)
    network.fit(torch.from_numpy(signals[:FITTED_ON]), torch.Generator().manual_seed(seed))

    def features(chosen: Array) -> Array:
        with torch.inference_mode():
            parts = [network(part) for part in torch.from_numpy(chosen).split(64)]
        return torch.cat(parts).numpy()

    return features


def rocket(name: str, signals: Array, width: int, seed: int) -> Callable[[Array], Array]:
    """aeon's, fitted to all signals; from signals to features."""
    try:
        convolution_based = import_module("aeon.transformations.collection.convolution_based")
    except ImportError as error:
        raise SystemExit("aeon is not installed here: pip install aeon.") from error
    # MultiRocket counts kernels of 4 features each, on the signal and on its differences.
    number = width if name == "MiniRocket" else width // 8
    transform = getattr(convolution_based, name)(n_kernels=number, random_state=seed)
    transform.fit(signals)
    return lambda chosen: np.asarray(transform.transform(chosen), np.float32)


def held_out_auroc(
    features: Array, targets: npt.NDArray[np.int8], patients: npt.NDArray[np.str_], task: Any
) -> float:
    """Mean AUROC over classes of the logits of records that no head saw, pooled over the folds."""
    logits = np.zeros(targets.shape)
    for fold in balanced_folds(patients, rarest_class(targets == 1), FOLDS, 0):
        kept = np.setdiff1d(np.arange(len(targets)), fold)
        head = fit_head(features[kept], targets[kept], patients[kept], task, 0)
        logits[fold] = features[fold] @ head.weight.T + head.bias
    return auroc(targets, probabilities(logits, task)).mean


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    declared = {
        "catalog": (Path, "catalog of signals over time"),
        "features": (9000, "of each record, about"),
        "seeds": (3, "over which the AUROC is averaged"),
    }
    settings = measure.options(__doc__, arguments, declared, threads=1, repetitions=3)
    if settings.catalog is None:
        raise SystemExit("name a catalog of signals over time with --catalog.")
    catalog = open_catalog(settings.catalog)
    feed = whole_split_feed(catalog, "train", Settings(), Worker(), catalog.statistics)
    signals = torch.cat([batch.signals for batch in feed.ordered(256)]).numpy()
    targets = read_columns(catalog, "train").targets.astype(np.int8)
    patients = np.array(split_table(catalog, "train", ["group_id"])["group_id"].to_pylist(), str)
    scores: dict[str, list[float]] = {}
    fitting: dict[str, list[float]] = {}
    tasks: dict[str, measure.Task] = {}
    widths: dict[str, int] = {}
    for seed in range(settings.seeds):
        for name in ("random_kernels", "MiniRocket", "MultiRocket"):
            start = time.perf_counter()
            if name == "random_kernels":
                transform = kernels(signals, catalog.signal, settings.features, seed)
            else:
                transform = rocket(name, signals, settings.features, seed)
            fitting.setdefault(name, []).append(time.perf_counter() - start)
            features = transform(signals)
            tasks[name], widths[name] = partial(transform, signals), features.shape[1]
            value = held_out_auroc(features, targets, patients, catalog.task.kind)
            scores.setdefault(name, []).append(value)
            print(f"{name}, seed {seed}: {value:.4f}", file=sys.stderr)
    torch.set_num_threads(settings.threads)  # as many as aeon's have; numba sets it anew
    measure.compare(
        "random_kernels",
        settings,
        tasks,
        unit="records/s",
        units=len(signals),
        auroc={name: measure.spread(values) for name, values in scores.items()},
        fitting_seconds={name: measure.spread(values) for name, values in fitting.items()},
        widths=widths,
    )


if __name__ == "__main__":
    main()
