"""A run's model on signals in physical units, as read from files rather than a catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.console.terminal import echo
from benchmd_ray.data.cards import DatasetCard, dataset_card
from benchmd_ray.data.normalise import Statistics, normaliser
from benchmd_ray.errors import BenchmdError, shown, unknown_name
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task
from benchmd_ray.models.average import Average
from benchmd_ray.models.heads import Classifier
from benchmd_ray.training.collect import evaluated, evaluation_batch
from benchmd_ray.training.engine import choose_device
from benchmd_ray.training.members import load_members, need_one_pass, share_encoder
from benchmd_ray.training.on_files import Screen, predicted_files, reading_of
from benchmd_ray.training.predict import merging
from benchmd_ray.training.weights import described, load_encoder, model_description

DEVICES = ("auto", "cpu", "cuda")
Signals = npt.ArrayLike | torch.Tensor
"""In the signal's unit: (records, *stored_shape), or a single record without the first axis. The
shape that the encoder sees is also accepted, if it differs from the stored shape.
"""


class InUnit(nn.Module):
    """Normalises signals by the training split's statistics, and calls a module.

    ``shape``: the model was trained with ``transfer.augmentation.shape``.
    """

    def __init__(
        self,
        module: nn.Module,
        signal: Signal,
        statistics: Statistics | None,
        device: torch.device,
        *,
        shape: bool,
    ) -> None:
        super().__init__()
        self.module, self.signal, self._shape = module, signal, shape
        self._normalise = normaliser(signal, statistics, device)

    def forward(self, signals: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """Outputs of the module for signals (batch, *stored_shape) float32.

        ``sizes`` are (batch, axes without channel), see `Record.valid_size`; None: no padding.
        """
        if sizes is None:
            whole = torch.tensor(self.signal.stored_shape[1:], device=signals.device)
            sizes = whole.expand(len(signals), -1)
        ones = torch.ones(len(signals), device=signals.device)
        seen = self._normalise(signals, ones, sizes)
        outputs: torch.Tensor = evaluated(self.module, self._shape)(seen)
        return outputs


class Applied:
    """A model that takes signals in physical units. It computes in float32 on any device."""

    def __init__(
        self,
        folder: Path,
        modules: Sequence[nn.Module],
        statistics: Sequence[Statistics | None],
        encoder: nn.Module,
        device: str | torch.device,
    ) -> None:
        if str(device) not in DEVICES:
            raise unknown_name("device", str(device), DEVICES)
        about = model_description(folder)
        self.signal, self.task = described(about, folder)
        self.device = choose_device(str(device))
        shape = bool(about["augmentation"]["shape"])
        wholes: list[nn.Module] = [
            InUnit(module, self.signal, values, self.device, shape=shape)
            for module, values in zip(modules, statistics, strict=True)
        ]
        self.module = _as_one(wholes, self.task).to(self.device).eval()
        """Signals (batch, *stored_shape) in their unit to features or logits."""
        self.batch = evaluation_batch(encoder)
        self.folder = folder

    def outputs(
        self,
        signals: Signals,
        rate: float | None,
        channels: Sequence[str] | None,
        sizes: npt.ArrayLike | torch.Tensor | None,
        *,
        checked: bool = False,
    ) -> torch.Tensor:
        """Outputs of the module for all records, on its device.

        ``checked``: grey levels are those of files, also where they are all 0 or 1.
        """
        _require_alike(self.signal, rate, channels)
        taken = _records(signals, self.signal)
        if not checked:
            _require_grey_levels(taken, self.signal)
        valid_sizes = _sizes(sizes, len(taken), self.signal)
        with torch.no_grad():
            parts = [
                self.module(
                    _in_stored_shape(taken[start : start + self.batch], self.signal, self.device),
                    valid_sizes[start : start + self.batch].to(self.device),
                )
                for start in range(0, len(taken), self.batch)
            ]
        return torch.cat(parts)


class FeatureEncoder(Applied):
    """The encoder of a run: signals in physical units to features."""

    def __init__(self, folder: Path, device: str | torch.device = "auto") -> None:
        encoder = load_encoder(folder)
        statistics = model_description(folder)["statistics"]
        super().__init__(folder, [encoder], [statistics], encoder, device)
        if self.task is not None and self.task.segments:
            raise BenchmdError(
                f"{folder} is of a model that segments, which has maps instead of features: name a "
                "run that classifies, or a pretraining."
            )
        self.encoder, self.width = encoder, encoder.width

    def features(
        self,
        signals: Signals,
        *,
        rate: float | None = None,
        channels: Sequence[str] | None = None,
        sizes: npt.ArrayLike | torch.Tensor | None = None,
    ) -> Any:
        """Features of records: (records, width) float32, an array, or a tensor for tensors.

        Args:
            signals: NumPy array or PyTorch tensor, see `Signals`.
            rate: Sampling rate in Hz, compared with the model's.
            channels: Names of the channels in their order, compared with the model's.
            sizes: Extents of signals without padding (`signals.valid_area`), (records, axes without
                channel); padding becomes zeros, as in training. None: no padding.

        Raises:
            BenchmdError: The signals have another shape, rate or channels than the model's, are not
                finite, or are grey levels scaled to [0, 1].
        """
        return _alike(signals, self.outputs(signals, rate, channels, sizes).float())


class SignalClassifier(Applied):
    """The classifier of a transfer run, or an average: signals in physical units to probabilities.

    ``others`` are folders of runs that are averaged with the first, of the same signal and task.
    """

    task: Task

    def __init__(
        self, folder: Path, device: str | torch.device = "auto", others: Sequence[Path] = ()
    ) -> None:
        members = [member for path in (folder, *others) for member in load_members(path)]
        self.models: list[Classifier] = [member.model for member in members]
        share_encoder(self.models)
        encoder, modules = self.models[0].encoder, self.models
        statistics = [member.statistics for member in members]
        if len(members) > 1 and need_one_pass(members):
            _, task = described(model_description(folder), folder)
            head = _as_one([model.head for model in self.models], task)
            modules, statistics = [Classifier(encoder, 0, head)], statistics[:1]
        super().__init__(folder, modules, statistics, encoder, device)
        self.classes = self.task.classes
        self.screen: Screen | None = None
        """The detector that `predict_files` asks."""

    def predict_files(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        card: str = "",
        say: Callable[[str], None] = echo,
    ) -> pd.DataFrame:
        """Predict raw files, read and preprocessed as by a build; a row for each scored unit.

        Args:
            paths: Files, and folders of files.
            card: Name of the dataset whose card says how files are read (rate, channels, key, cut)
                and which classes are merged. Default: the model's source, if its card is there.
            say: Takes a line on what differs from a build of the source.

        Returns:
            ``file``, ``record``, ``class`` (the most likely; of multi-label tasks those with a
            probability of 0.5 or more) and a column ``p: CLASS`` for each class. If a detector was
            fitted to the model (`benchmd guard`) also its ``verdict`` (accept, reject,
            unreadable), ``score`` and ``threshold``. ``reason`` says why a file is not predicted.
            Of files with a record in each row (a card with ``rows``) also the ``row``, from 0
            without the header, and its ``id`` if a first column has one.

        Raises:
            BenchmdError: A path does not exist, a folder has no file of the signal's formats, or
                the card is unknown or does not fit the model.
        """
        several = [paths] if isinstance(paths, str | Path) else paths
        places = [Path(path) for path in several]
        reading = reading_of(self.folder, self, card, say)
        merged = dataset_card(card) if card else None
        return predicted_files(self, places, reading, card=merged, screen=self.screen)

    def predict(
        self,
        signals: Signals,
        *,
        rate: float | None = None,
        channels: Sequence[str] | None = None,
        sizes: npt.ArrayLike | torch.Tensor | None = None,
        card: DatasetCard | None = None,
        checked: bool = False,
    ) -> Any:
        """Probabilities (records, classes) float32; for exclusive classes they add up to 1.

        With ``card``, such as ``catalog(…).info.card``, of a dataset that merges classes of the
        model's task, the probabilities of merged classes are summed. ``checked`` accepts grey
        levels that are all 0 or 1. The other arguments are as in `FeatureEncoder.features`.
        """
        outputs = self.outputs(signals, rate, channels, sizes, checked=checked)
        scores = probabilities(outputs, self.task)
        if card is not None:
            if card.task != self.task:
                raise BenchmdError(
                    f"{card.name} has another task than the model: its classes are "
                    f"{shown(card.task.classes)}, the model's {shown(self.classes)}."
                )
            scores = scores @ torch.from_numpy(merging(card)).to(scores)
        return _alike(signals, scores)


def _as_one(modules: Sequence[nn.Module], task: Task | None) -> nn.Module:
    """The module, or the average of several classifiers or heads."""
    if len(modules) == 1:
        return modules[0]
    assert task is not None  # only classifiers are averaged
    return Average(modules, exclusive=task.exclusive)


def probabilities(logits: torch.Tensor, task: Task) -> torch.Tensor:
    """Softmax for exclusive classes, otherwise sigmoid: (records, classes) float32."""
    return logits.float().softmax(dim=1) if task.exclusive else logits.float().sigmoid()


def _require_alike(signal: Signal, rate: float | None, channels: Sequence[str] | None) -> None:
    """Refuse signals whose stated rate or channels differ from the model's."""
    if rate is not None and (signal.rate is None or _ratio(rate) != _ratio(signal.rate)):
        takes = "has no rate" if signal.rate is None else f"takes {signal.rate:g} Hz"
        raise BenchmdError(
            f"the signals have {rate:g} Hz, and the model {takes}: resample them, such as with "
            "scipy.signal.resample_poly."
        )
    if channels is not None and tuple(channels) != signal.channels:
        raise BenchmdError(
            f"the signals have the channels {shown(tuple(channels))}, and the model takes "
            f"{shown(signal.channels) if signal.channels else 'channels without names'}: put them "
            "into that order."
        )


def _ratio(rate: float) -> Fraction:
    return Fraction(rate).limit_denominator(10_000)  # the tolerance for rates of catalogs


def _records(signals: Signals, signal: Signal) -> npt.NDArray[Any] | torch.Tensor:
    """Signals in one of the two shapes, with records as the first axis."""
    values = signals if isinstance(signals, torch.Tensor) else np.asarray(signals)
    real = (
        not values.is_complex() if isinstance(values, torch.Tensor) else values.dtype.kind in "biuf"
    )
    if not real:
        raise BenchmdError(f"the signals are of type {values.dtype}, expected real numbers.")
    shapes = (signal.stored_shape, signal.input_shape)
    if tuple(values.shape) in shapes:
        values = values[None]
    if (
        values.ndim != len(signal.axes) + 1
        or tuple(values.shape[1:]) not in shapes
        or not len(values)
    ):
        expected = " or ".join(dict.fromkeys(str((*shape,)) for shape in shapes))
        raise BenchmdError(
            f"the signals have the shape {(*values.shape,)}, and the model takes {expected} "
            f"({', '.join(signal.axes)}; in {signal.unit}) of one record, or several of them along "
            "a first axis."
        )
    return values


def _require_grey_levels(values: npt.NDArray[Any] | torch.Tensor, signal: Signal) -> None:
    """Refuse grey levels that were scaled to [0, 1]; completely black records are fine."""
    if signal.dtype != "uint8" or signal.unit != "grey level":
        return
    low, high = float(values.min()), float(values.max())
    if low >= 0 and 0 < high <= 1:
        raise BenchmdError(
            f"the signals have values from {low:g} to {high:g}, and the model takes grey levels "
            "from 0 to 255: give the values of the files, or multiply by 255 if they were divided "
            "by it."
        )


def _in_stored_shape(
    part: npt.NDArray[Any] | torch.Tensor, signal: Signal, device: torch.device
) -> torch.Tensor:
    """Records as float32 (records, *stored_shape), padded with zeros around the encoder's input."""
    if not isinstance(part, torch.Tensor):
        part = torch.from_numpy(
            np.array(part, np.float32, order="C")
        )  # of any strides and byte order
    values = part.to(device, torch.float32)
    if not torch.isfinite(values).all():
        raise BenchmdError(
            "the signals have NaN or infinite values: fill them in, or exclude these signals."
        )
    around: list[int] = []
    for stored, seen in zip(signal.stored_shape[:0:-1], reversed(values.shape[2:]), strict=True):
        around += [(stored - seen) // 2] * 2
    return functional.pad(values, around) if any(around) else values


def _sizes(
    sizes: npt.ArrayLike | torch.Tensor | None, records: int, signal: Signal
) -> torch.Tensor:
    """Valid sizes of records, (records, axes without channel) int64."""
    whole = torch.tensor(signal.stored_shape[1:])
    if sizes is None:
        return whole.expand(records, -1)
    stated = np.asarray(sizes.cpu() if isinstance(sizes, torch.Tensor) else sizes)
    rows = stated[None] if stated.ndim == 1 and records == 1 else stated
    fits = rows.dtype.kind in "iu" and rows.shape == (records, len(whole))
    if not fits or not ((rows >= 1) & (rows <= whole.numpy())).all():
        raise BenchmdError(
            f"the sizes are {stated.dtype} of shape {stated.shape}, expected whole numbers of "
            f"shape {(records, len(whole))}: extents along {', '.join(signal.axes[1:])} from 1 to "
            f"{', '.join(map(str, whole.tolist()))}."
        )
    return torch.from_numpy(rows.astype(np.int64))


def _alike(signals: Signals, outputs: torch.Tensor) -> Any:
    return outputs if isinstance(signals, torch.Tensor) else outputs.cpu().numpy()
