"""Members of an average: classifiers of the same signals and classes, each with its statistics.

The tensors of an average are ``members.0.encoder…``, ``members.0.head…`` and so on. An encoder that
all members have is stored, loaded and, with equal statistics, applied once; its tensors have no
such prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmd_ray.data.normalise import NORMALISERS, Statistics
from benchmd_ray.files.integrity import Damaged, made_again
from benchmd_ray.models.heads import Classifier
from benchmd_ray.runs.files import MODEL
from benchmd_ray.training.state import listed
from benchmd_ray.training.weights import (
    described,
    load_classifier,
    model_description,
    model_of_tensors,
    read_weights,
    require_statistics,
)

PREFIX = "members."


class Member(NamedTuple):
    """A classifier, of an average or the only one."""

    model: Classifier
    statistics: Statistics | None
    """Its signals are normalised by them."""


def load_members(folder: Path) -> list[Member]:
    """The classifiers of an exported average, or the only one of a run or another export."""
    description = model_description(folder)
    statistics = [about["statistics"] for about in description.get("members", [description])]
    signal, _ = described(description, folder)
    for values in statistics if NORMALISERS[signal.normaliser].by_statistics else ():
        require_statistics(values, signal, folder)
    if "members" not in description:
        return [Member(load_classifier(folder), *statistics)]
    tensors = read_weights(folder / MODEL, description["weights"])
    models = _models(folder, description, tensors, len(statistics))
    return [Member(*pair) for pair in zip(models, statistics, strict=True)]


def _models(
    folder: Path, description: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], count: int
) -> Iterator[Classifier]:
    shared = {name: value for name, value in tensors.items() if name.startswith("encoder.")}
    prefixes = [f"{PREFIX}{number}." for number in range(count)]
    parts = tuple(f"{prefix}head." if shared else prefix for prefix in prefixes)
    if foreign := [name for name in tensors.keys() - shared if not name.startswith(parts)]:
        why = f"it holds weights of none of {count} members: {listed(sorted(foreign))}"
        raise Damaged(folder / MODEL, why, made_again(folder))
    encoder = None
    for prefix in prefixes:
        rest = {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        model = model_of_tensors(folder, description, shared | rest, Classifier, encoder)
        encoder = model.encoder if shared else None
        yield model


def tensors_of(models: Sequence[Classifier]) -> dict[str, torch.Tensor]:
    """Tensors of a classifier, or of an average as `load_members` reads them."""
    if len(models) == 1:
        return models[0].state_dict()
    encoder = models[0].encoder
    shared = encoder.state_dict(prefix="encoder.") if _is_shared(models) else {}
    members = {
        f"{PREFIX}{number}.{name}": value
        for number, model in enumerate(models)
        for name, value in model.state_dict().items()
    }
    return shared | {
        name: value for name, value in members.items() if name.split(".", 2)[2] not in shared
    }


def share_encoder(models: Sequence[Classifier]) -> None:
    """Let models use the encoder of the first, if all have encoders of the same weights."""
    first, *others = (model.encoder.state_dict() for model in models)
    if all(torch.equal(value, other[name]) for other in others for name, value in first.items()):
        for model in models[1:]:
            model.encoder = models[0].encoder


def need_one_pass(members: Sequence[Member]) -> bool:
    """Whether the heads of all members take the same features."""
    alike = all(member.statistics == members[0].statistics for member in members)
    return alike and _is_shared([member.model for member in members])


def _is_shared(models: Sequence[Classifier]) -> bool:
    return all(model.encoder is models[0].encoder for model in models)
