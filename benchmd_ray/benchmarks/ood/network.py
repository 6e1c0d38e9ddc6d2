"""Outputs of a network: features, logits, layers, and what detectors need in addition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.benchmarks.ood.methods.method import Head, Seen
from benchmd_ray.benchmarks.ood.methods.outputs import STEPS, TEMPERATURES
from benchmd_ray.benchmarks.ood.methods.pretrained import NAME as PRETRAINED
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import read_hashed_json
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task
from benchmd_ray.models.digest import weights_digest
from benchmd_ray.models.heads import Classifier
from benchmd_ray.runs.files import MODEL, RUN
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.ssl.mae import MAE
from benchmd_ray.training.collect import evaluated
from benchmd_ray.training.engine import autocast
from benchmd_ray.training.members import Member, load_members, need_one_pass
from benchmd_ray.training.weights import (
    described,
    is_exported,
    load_encoder,
    load_weights,
    model_description,
)

LAYERS = 3
PASSES = 7
DEEPER = (
    ("transition1", "transition2", "transition3", "norm5"),
    ("layer1", "layer2", "layer3", "layer4"),
)
"""Stages of MONAI's DenseNet and SE-ResNet, of which the last gives the features."""
MASKS = 4
VISIBLE = {1: 1250, 2: 128}
"""Largest extent of a picture that is to be looked at, by the number of its axes."""
PIXELS = {1: 250, 2: 64, 3: 16}
"""Largest extent of the small picture of a signal, by the number of its axes but the channel's."""
WIDEST = 8192
"""Most features of all members of an average: detectors invert matrices of that size."""


@dataclass(frozen=True)
class Network:
    """A finished transfer's network, in eval mode on a device.

    Of an exported average, features and layers are those of all members one after the other, and
    logits and all else the mean over the members.
    """

    model: Classifier
    signal: Signal
    task: Task
    about: dict[str, Any]
    worker: Worker
    precision: str
    pretrained: nn.Module | None = None
    """Encoder of the pretraining that it started from, where its weights are there."""
    mae: MAE | None = None
    """That pretraining, where it was one by masked autoencoding."""
    needs: tuple[str, ...] | None = None
    """Quantities that are computed in addition to features, logits and layers; None takes all."""
    others: tuple[Network, ...] = ()
    """The other members of an average."""

    @classmethod
    def of(cls, run: Path, worker: Worker, precision: str) -> Network:
        """The network of a run or of an exported model.

        Raises:
            BenchmdError: The folder holds no finished transfer with a linear head, or an average of
                too many features.
        """
        members, about = load_members(run), model_description(run)
        signal, task = described(about, run)
        assert task is not None  # `load_members` refuses a pretraining
        if not all(isinstance(member.model.head, nn.Linear) for member in members):
            raise BenchmdError(
                f"{run} lets nearest neighbours vote (transfer.mode=knn) or has a hidden layer in "
                "its head (transfer.hidden), and detectors read the weights of a linear head: name "
                "a run with a linear head, such as of transfer.mode=linear with transfer.hidden=0."
            )
        if len(members) > 1 and need_one_pass(members):
            members = [Member(_mean_head([m.model for m in members]), members[0].statistics)]
        width = sum(member.model.encoder.width for member in members)
        if len(members) > 1 and width > WIDEST:
            raise BenchmdError(
                f"the {len(members)} models of {run} have {width:,} features together, and "
                f"detectors take {WIDEST:,}: name one of its runs."
            )
        pretrained, mae = (None, None) if is_exported(run) else _pretraining(run)
        for module in (*(member.model for member in members), pretrained, mae):
            if module is not None:
                module.to(worker.device).eval()
        first, *others = (
            cls(model, signal, task, {**about, "statistics": values}, worker, precision)
            for model, values in members
        )
        return replace(first, pretrained=pretrained, mae=mae, others=tuple(others))

    @property
    def networks(self) -> tuple[Network, ...]:
        """The members of an average, or only this one."""
        return (self, *(replace(other, needs=self.needs) for other in self.others))

    @cached_property
    def digest(self) -> str:
        """Hash of its weights, the head's, the pretraining's and those of others included."""
        modules = (self.model, self.pretrained, self.mae)
        digests = [weights_digest(module) for module in modules if module is not None]
        others = (f"{other.digest} {other.about['statistics']}" for other in self.others)
        return " ".join([*digests, *others])

    @cached_property
    def head(self) -> Head:
        heads = [network.model.head.state_dict() for network in self.networks]
        weight = torch.cat([head["weight"].double() for head in heads], dim=1) / len(heads)
        bias = torch.stack([head["bias"].double() for head in heads]).mean(dim=0)
        return Head(weight.cpu().numpy(), bias.cpu().numpy(), self.task.exclusive)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Quantities of one record and their shapes, in the order of `quantities`."""
        zeros = torch.zeros(1, *self.signal.input_shape, device=self.worker.device)
        values_by_name = _together([network._of(zeros) for network in self.networks])
        return {name: tuple(value.shape[1:]) for name, value in values_by_name.items()}

    @property
    def values(self) -> int:
        """Numbers that all quantities of a record have together."""
        return sum(prod(shape) for shape in self.shapes.values())

    def normalised(
        self, values: npt.NDArray[Any], scales: npt.NDArray[Any], sizes: npt.NDArray[Any]
    ) -> torch.Tensor:
        """Signals as the network, or the first member, sees them: (records, *input_shape).

        Values (records, *stored_shape) are in stored steps, sizes are (records, axes but the
        channel's).
        """
        tensors = [
            torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self.worker.device)
            for array in (values, scales, sizes)
        ]
        normalise = normaliser(self.signal, self.about["statistics"], self.worker.device)
        return normalise(*tensors)

    def quantities(self, *batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Quantities of records of `normalised` one after the other: (records, values)."""
        parts = [network._of(network.normalised(*batch)) for network in self.networks]
        values_by_name = _together(parts)
        flat = [values_by_name[name].flatten(1).float().cpu() for name in self.shapes]
        return np.asarray(torch.cat(flat, dim=1).numpy(), np.float32)

    def seen(self, rows: npt.NDArray[np.float32]) -> Seen:
        ends = np.cumsum([prod(shape) for shape in self.shapes.values()])
        columns = zip(self.shapes.items(), np.split(rows, ends[:-1], axis=1), strict=True)
        parts = {name: part.reshape(len(rows), *shape) for (name, shape), part in columns}
        return Seen(parts.pop("features"), parts.pop("logits"), parts)

    @property
    def parts(self) -> dict[str, Callable[[torch.Tensor], dict[str, torch.Tensor]]]:
        """What is computed of normalised signals, in the quantities' order."""
        by_name: dict[str, Callable[[torch.Tensor], dict[str, torch.Tensor]]] = {
            "features": self._logits
        }
        if any(isinstance(module, nn.Dropout) and module.p for module in self.model.modules()):
            by_name["dropout logits"] = lambda x: {"dropout logits": self._dropped(x)}
        by_name["odin"] = lambda x: {"odin": self._odin(x)}
        if self.pretrained is not None:
            by_name[PRETRAINED] = lambda x: {PRETRAINED: self._pretrained_features(x)}
        if self.mae is not None:
            by_name["mae loss"] = lambda x: {"mae loss": self._mae_loss(x)}
        chosen = by_name if self.needs is None else {"features", *self.needs}
        return {name: part for name, part in by_name.items() if name in chosen}

    def _of(self, signals: torch.Tensor) -> dict[str, torch.Tensor]:
        quantities: dict[str, torch.Tensor] = {}
        for part in self.parts.values():
            quantities |= part(signals)
        return quantities

    def _logits(self, signals: torch.Tensor) -> dict[str, torch.Tensor]:
        """Features, logits and layers."""
        quantities: dict[str, torch.Tensor] = {}
        with torch.no_grad(), self._layers(quantities):
            view = evaluated(self._features, self.about["augmentation"]["shape"])
            features = view(signals).float()
        # The head in float32: what methods compute of features and weights has to agree.
        return {"features": features, "logits": self.model.head(features).detach(), **quantities}

    def _pretrained_features(self, signals: torch.Tensor) -> torch.Tensor:
        assert self.pretrained is not None
        with torch.no_grad(), autocast(self.worker.device, self.precision):
            features: torch.Tensor = self.pretrained(signals).float()
        return features

    def _mae_loss(self, signals: torch.Tensor) -> torch.Tensor:
        """Mean loss over `MASKS` masks, the same for all records: (records, 1)."""
        mae, losses = self.mae, []
        assert mae is not None
        for number in range(MASKS):
            draws = mae.draw(1, torch.Generator().manual_seed(number))
            masked = draws["masked"].to(signals.device).expand(len(signals), -1)
            with torch.no_grad(), autocast(self.worker.device, self.precision):
                losses.append(mae.each(signals, masked).float())
        return torch.stack(losses).mean(dim=0)[:, None]

    def _features(self, signals: torch.Tensor) -> torch.Tensor:
        with autocast(self.worker.device, self.precision):
            return self.model.encoder(signals)  # type: ignore[no-any-return]

    @contextmanager
    def _layers(self, quantities: dict[str, torch.Tensor]) -> Iterator[None]:
        """Let layers leave their mean over tokens or places."""
        blocks = stages(self.model.encoder)
        depth = len(blocks)
        places = sorted({(number + 1) * depth // (LAYERS + 1) - 1 for number in range(LAYERS)})
        hooks = [
            blocks[place].register_forward_hook(_leave(quantities, f"layer {place + 1}"))
            for place in places
            if place >= 0
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _dropped(self, signals: torch.Tensor) -> torch.Tensor:
        """Logits of passes with dropout: (records, passes, classes)."""
        dropouts = [module for module in self.model.modules() if isinstance(module, nn.Dropout)]
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            for module in dropouts:
                module.train()
            try:
                passes = [self.model.head(self._features(signals).float()) for _ in range(PASSES)]
            finally:
                for module in dropouts:
                    module.eval()
        return torch.stack(passes, dim=1)

    def layered(self, signals: torch.Tensor) -> dict[str, torch.Tensor]:
        """Layers in order of name, and then the features; differentiable where signals are."""
        quantities: dict[str, torch.Tensor] = {}
        with self._layers(quantities):
            features = self._features(signals).float()
        return {**dict(sorted(quantities.items())), "features": features}

    def _odin(self, signals: torch.Tensor) -> torch.Tensor:
        """−max p at each temperature, after each step that makes the network surer.

        (records, temperatures, steps).
        """
        inputs = signals.detach().clone().requires_grad_()
        with torch.enable_grad():
            logits = self.model.head(self._features(inputs).float())
            losses = [self._loss_of_guess(logits / heat) for heat in TEMPERATURES]
            signs = [
                torch.autograd.grad(loss, inputs, retain_graph=True)[0].sign() for loss in losses
            ]
        size = signals.std(dim=tuple(range(1, signals.ndim)), keepdim=True)
        unmoved = logits.detach()
        rows = []
        with torch.no_grad():
            for heat, sign in zip(TEMPERATURES, signs, strict=True):
                moved = (
                    self.model.head(self._features(signals - step * size * sign).float())
                    if step
                    else unmoved
                    for step in STEPS
                )
                rows.append(torch.stack([self._surest(logit / heat) for logit in moved], dim=1))
        return -torch.stack(rows, dim=1)

    def _loss_of_guess(self, logits: torch.Tensor) -> torch.Tensor:
        """Sum of the losses if the network's likeliest classes were true."""
        if self.task.exclusive:
            return functional.cross_entropy(logits, logits.argmax(dim=1), reduction="sum")
        guess = (logits > 0).float()
        return functional.binary_cross_entropy_with_logits(logits, guess, reduction="sum")

    def _surest(self, logits: torch.Tensor) -> torch.Tensor:
        """Highest probability of a class, or of a label or its absence: (records,)."""
        if self.task.exclusive:
            p = logits.double().softmax(dim=1)
        else:
            p = logits.double().sigmoid()
            p = torch.maximum(p, 1 - p)
        surest: torch.Tensor = p.amax(dim=1)
        return surest


def _together(parts: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Quantities of members: features and layers one after the other, of all else the mean."""
    if len(parts) == 1:
        return parts[0]
    names = {name: [part[name] for part in parts] for name in parts[0]}
    return {
        name: torch.cat(values, dim=1)
        if name == "features" or name.startswith("layer ")
        else torch.stack(values).mean(dim=0)
        for name, values in names.items()
    }


def _mean_head(models: Sequence[Classifier]) -> Classifier:
    """Their encoder, which all share, with the mean of their linear heads."""
    states = [model.head.state_dict() for model in models]
    mean = {name: torch.stack([s[name] for s in states]).mean(dim=0) for name in states[0]}
    classes, width = mean["weight"].shape
    head = nn.Linear(width, classes)
    head.load_state_dict(mean)
    return Classifier(models[0].encoder, 0, head)


def stages(encoder: nn.Module) -> list[nn.Module]:
    """Parts of an encoder by depth: blocks, or the stages of MONAI's networks."""
    blocks = getattr(encoder, "blocks", None)
    if blocks is not None:
        return list(blocks)
    named = {name.rpartition(".")[2]: part for name, part in encoder.named_modules()}
    for names in DEEPER:
        if all(name in named for name in names):
            return [named[name] for name in names]
    return list(named.get("_blocks", nn.ModuleList()).children())


def _pretraining(run: Path) -> tuple[nn.Module | None, MAE | None]:
    """The encoder that a run started from, and its masked autoencoder; None without weights."""
    upstream = read_hashed_json(run / RUN, "", {"technique": str}).get("upstream")
    folder = run.parent / str(upstream)
    if not upstream or not (folder / MODEL).is_file():
        return None, None
    about = read_hashed_json(
        folder / RUN, "", {"technique": str, "settings": dict, "determinants": dict}
    )
    encoder = load_encoder(folder)
    imported = about["determinants"].get("stage") == "import"  # of an export: only an encoder
    if about["technique"] != "mae" or imported:
        return encoder, None
    settings = updated(Settings(), {"pretrain": about["settings"]["pretrain"]})
    mae = MAE(load_encoder(folder), settings.pretrain)
    load_weights(mae, folder / MODEL, model_description(folder)["weights"])
    return encoder, mae


def small(signals: torch.Tensor) -> torch.Tensor:
    """Small pictures of normalised signals: (records, channels or their mean, …)."""
    axes = signals.ndim - 2
    if axes > 1:
        signals = signals.mean(dim=1, keepdim=True)
    extents = [min(extent, PIXELS[axes]) for extent in signals.shape[2:]]
    if axes == 1:
        return functional.adaptive_avg_pool1d(signals, extents[0])
    pool: Callable[..., torch.Tensor] = functional.adaptive_avg_pool2d
    if axes == 3:
        pool = functional.adaptive_avg_pool3d
    return pool(signals, extents)


def visible(signals: torch.Tensor) -> torch.Tensor:
    """Signals to be looked at: (records, channels, …), of a volume the middle slice."""
    axes = signals.ndim - 2
    if axes == 1:
        return functional.adaptive_avg_pool1d(signals, min(signals.shape[2], VISIBLE[1]))
    if axes == 3:
        signals = signals[:, :, signals.shape[2] // 2]
    height, width = (min(extent, VISIBLE[2]) for extent in signals.shape[2:])
    return functional.adaptive_avg_pool2d(signals, (height, width))


def _leave(quantities: dict[str, torch.Tensor], name: str) -> Callable[..., None]:
    def hook(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        # Tokens come before the width, places after the channels.
        wide = output.float()
        quantities[name] = wide.mean(dim=1) if wide.ndim == 3 else wide.flatten(2).mean(dim=2)

    return hook
