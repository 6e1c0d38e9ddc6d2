"""An estimator of scikit-learn: signals in an array, or a catalog, to probabilities of classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from benchmd_ray.data.normalise import Statistics, normaliser
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import TaskKind
from benchmd_ray.models.networks import RANDOM_KERNELS
from benchmd_ray.models.random_kernels import EXTENTS, FITTED_ON, RandomKernels
from benchmd_ray.service.execute import (
    base_settings,
    pretrain_run,
    transfer_run,
    transfer_settings,
)
from benchmd_ray.service.notebooks import CatalogData, as_location, as_store
from benchmd_ray.settings.arguments import plain
from benchmd_ray.settings.definition import EncoderSettings, updated
from benchmd_ray.ssl import SCRATCH
from benchmd_ray.ssl.brought import brought_name
from benchmd_ray.training.applied import SignalClassifier
from benchmd_ray.training.logistic import fit_head

AXES = {3: ("channel", "time"), 4: ("channel", "y", "x"), 5: ("channel", "z", "y", "x")}
"""Axes of a record, by the axes of an array."""
BATCH = 16
"""Records that are encoded at once."""
Floats = npt.NDArray[Any]


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify signals by random convolutional kernels, or by a technique of benchmd_ray.

    X is an array (records, channels, …) with one to three further axes, (records, samples) for one
    channel, or a catalog, whose labels and patients are its own. Random kernels need no Ray; other
    techniques train runs on a catalog, as `pretrain` and `transfer` do.

    Attributes:
        classes_: Labels in the order of probabilities.
    """

    def __init__(
        self,
        technique: str = RANDOM_KERNELS,
        *,
        kernels: int = 1000,
        store: str | Path = "runs",
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        """Store the parameters; `fit` checks them.

        Args:
            technique: ``random-kernels``, ``scratch``, or one that `pretrain` takes.
            kernels: Number of random kernels.
            store: Folder of the runs of other techniques.
            settings: What their runs differ in from the fixed protocol, by group.
            random_state: Of the kernels and of the folds that choose the penalty.
        """
        self.technique = technique
        self.kernels = kernels
        self.store = store
        self.settings = settings
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Say that arrays may have more than two axes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Classifier:
        """Fit to an array with labels, or to the training split of a catalog.

        Args:
            X: Array or catalog.
            y: Labels of an array, one per record; None for a catalog.
            groups: Patients of an array's records, who stay together in folds; None: each record
                is of another.

        Raises:
            BenchmdError: The technique needs a catalog, or the catalog has masks.
            ValueError: The array, labels or patients are invalid.
        """
        self.run_: Path | None = None
        self.catalog_: CatalogData | None = None
        if self.technique != RANDOM_KERNELS:
            return self._fit_run(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if isinstance(X, CatalogData):
            targets, patients = self._read_catalog(X)
        else:
            X, targets, patients = self._read_array(X, y, groups)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            options = {"kernels": self.kernels}
            settings = EncoderSettings(network=RANDOM_KERNELS, options=options)
            self.encoder_ = RandomKernels(self.signal_, settings).eval()
        first = next(self._batches(X, "train"))[:FITTED_ON]
        self.encoder_.fit(first, torch.Generator().manual_seed(seed))
        features = self._features(X, "train")
        self.encoder_.standardise(torch.from_numpy(features))
        shift, scale = self.encoder_.shift.numpy(), self.encoder_.scale.numpy()
        features = (features - shift) / scale
        self.head_ = fit_head(features, targets, patients, self.kind_, seed)
        return self

    def predict_proba(self, X: Any, split: str = "test") -> Floats:
        """Probabilities (records, classes) of an array, or of a catalog's split."""
        check_is_fitted(self, "classes_")
        if not isinstance(X, CatalogData) and self.catalog_ is None:
            X = validate_data(self, X, reset=False, allow_nd=True, dtype=np.float32)
            if X.shape[1:] != self.shape_:
                raise ValueError(f"X has records of shape {X.shape[1:]}, expected {self.shape_}.")
        if self.run_ is not None:
            return self._predict_run(X, split)
        logits = self._features(X, split) @ self.head_.weight.T + self.head_.bias
        if self.kind_ == "multi-label":
            return np.asarray(1 / (1 + np.exp(-logits)))
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def predict(self, X: Any, split: str = "test") -> npt.NDArray[Any]:
        """The most probable class of each record; of multi-label tasks (records, labels) of 0, 1.

        X and split are as in `predict_proba`.
        """
        probabilities = self.predict_proba(X, split)
        if self.kind_ == "multi-label":
            return (probabilities >= 0.5).astype(np.int8)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def _read_array(self, X: Any, y: Any, groups: Any) -> tuple[Floats, Floats, Floats]:
        """The array, and targets and patients of its records; describes its signals."""
        X, y = validate_data(self, X, y, allow_nd=True, dtype=np.float32, ensure_min_samples=2)
        if X.ndim > max(AXES):
            raise ValueError(f"X has {X.ndim} axes, expected two to {max(AXES)}.")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        patients = np.arange(len(y)) if groups is None else column_or_1d(groups)
        if pd.isna(patients).any():
            raise ValueError("groups has records without a patient: name one for each.")
        if len(patients) != len(y):
            raise ValueError(f"groups has {len(patients)} patients of {len(y)} records.")
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError("y has one class, and Classifier needs two classes or more.")
        self.classes_ = classes
        self.kind_: TaskKind = "single-label"
        self.shape_ = X.shape[1:]
        values = X if X.ndim > 2 else X[:, None]
        shape = values.shape[1:]
        least = min(EXTENTS[len(shape) - 1])
        extents = (shape[0], *(max(least, extent) for extent in shape[1:]))
        self.signal_ = Signal(
            *("array", AXES[values.ndim], extents, extents, "int16", "1"),
            patch=(1,) * (len(shape) - 1),
            normaliser="source-statistics",
            rate=1.0 if values.ndim == 3 else None,
        )
        others = (0, *range(2, values.ndim))
        mean, std = values.mean(axis=others, dtype=float), values.std(axis=others, dtype=float)
        std[std == 0] = 1
        self.statistics_: Statistics | None = {"mean": mean.tolist(), "std": std.tolist()}
        targets = np.eye(len(self.classes_), dtype=np.int8)[codes]
        return X, targets, patients.astype(str)

    def _read_catalog(self, catalog: CatalogData) -> tuple[Floats, Floats]:
        """Targets and patients of the training split of a catalog, which is kept as the source."""
        if catalog.info.task.segments:
            raise BenchmdError(f"{catalog.info.path} has masks: Classifier takes classes.")
        self._keep(catalog)
        self.signal_, self.statistics_ = catalog.info.signal, catalog.info.statistics
        rows = catalog.frame("train")
        targets = rows[[f"target.{name}" for name in catalog.classes]].to_numpy(np.int8)
        return targets, rows["group_id"].to_numpy(str)

    def _keep(self, catalog: CatalogData) -> None:
        exclusive = catalog.info.card.target.exclusive
        self.catalog_, self.classes_ = catalog, np.array(catalog.classes)
        self.kind_ = "single-label" if exclusive else "multi-label"

    def _batches(self, X: Any, split: str) -> Iterator[torch.Tensor]:
        """Normalised signals (batch, *input_shape) of an array or a split, in order."""
        if isinstance(X, CatalogData):
            dataset = X.torch(split, source=self.catalog_)
            for start in range(0, len(dataset), BATCH):
                rows = range(start, min(start + BATCH, len(dataset)))
                yield torch.stack([sample[0] for sample in dataset.__getitems__(rows)])
            return
        normalise = normaliser(self.signal_, self.statistics_)
        values = np.asarray(X, np.float32)
        values = values if values.ndim > 2 else values[:, None]
        stored = self.signal_.stored_shape
        missing = [whole - part for whole, part in zip(stored, values.shape[1:], strict=True)]
        around = [(0, 0), *((n // 2, n - n // 2) for n in missing)]
        for start in range(0, len(values), BATCH):
            part = torch.from_numpy(np.pad(values[start : start + BATCH], around))
            sizes = torch.tensor(values.shape[2:]).expand(len(part), -1)
            yield normalise(part, torch.ones(len(part)), sizes)

    @torch.no_grad()
    def _features(self, X: Any, split: str) -> npt.NDArray[np.float32]:
        """Features (records, width).

        The last batch is filled up: convolutions of another number of records round differently,
        and an output that equals a bias would fall on its other side.
        """
        features = []
        for part in self._batches(X, split):
            whole = torch.cat([part, part.new_zeros(BATCH - len(part), *part.shape[1:])])
            features.append(self.encoder_(whole)[: len(part)].numpy())
        return np.concatenate(features)

    def _fit_run(self, X: Any) -> Classifier:
        """Train runs of a technique on a catalog."""
        if not isinstance(X, CatalogData):
            raise BenchmdError(
                f"the technique {self.technique} is trained by runs on a catalog: give "
                f"catalog(PATH), or use {RANDOM_KERNELS} for arrays."
            )
        place, store, changes = as_location(X), as_store(self.store), plain(self.settings)
        upstream: str | Path | None = brought_name(self.technique)
        if upstream is None and self.technique != SCRATCH:
            settings = updated(base_settings([place], self.technique), changes)
            upstream = pretrain_run(self.technique, [place], store, settings).folder
        settings = updated(transfer_settings(place, upstream), changes)
        run = transfer_run(place, store, settings, upstream=upstream)
        self._keep(X)
        self.run_ = run.folder
        return self

    def _predict_run(self, X: Any, split: str) -> Floats:
        assert self.run_ is not None
        model = SignalClassifier(self.run_)
        if not isinstance(X, CatalogData):
            return np.asarray(model.predict(X))
        dataset = X.torch(split, physical=True)
        parts = []
        for start in range(0, len(dataset), BATCH):
            rows = dataset.__getitems__(range(start, min(start + BATCH, len(dataset))))
            signals, sizes, _ = map(torch.stack, zip(*rows, strict=True))
            parts.append(model.predict(signals, sizes=sizes).numpy(force=True))
        return np.concatenate(parts)
