"""Writing, reading and validating the weights of a finished run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn
from typing_extensions import TypedDict

from benchmd_ray.data.manifest_form import StatisticsForm
from benchmd_ray.data.normalise import Statistics
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.files.atomic import replacing
from benchmd_ray.files.integrity import (
    Damaged,
    made_again,
    read_hashed_json,
    require_sha256,
    write_hashed_json,
)
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task
from benchmd_ray.models.encoder import NETWORKS, Encoder, make_encoder
from benchmd_ray.models.heads import Classifier, classification_head
from benchmd_ray.models.neighbours import NearestNeighbours
from benchmd_ray.models.networks import network_source, require_task
from benchmd_ray.models.segmenter import Segmenter
from benchmd_ray.runs.files import MODEL, RUN
from benchmd_ray.schema.typed import Count, form_fault, typed
from benchmd_ray.settings.definition import AugmentationSettings, EncoderSettings, as_dict, updated
from benchmd_ray.training.state import differences, listed

Model = TypeVar("Model", Classifier, Segmenter)

START = "start.safetensors"
"""File of the encoder weights that an unfinished pretraining starts from, if not random."""
DESCRIPTION = "model.json"
CONFIG = "config.json"
"""File with this description and more, for a model exported from its store."""
MOST_MEMBERS = 100
"""Most models of an average."""


class MemberForm(TypedDict):
    """A model of an average."""

    statistics: StatisticsForm | None


class ModelForm(TypedDict):
    """Content of `DESCRIPTION`: architecture, signals and their normalisation, task."""

    encoder: dict[str, Any]
    network_source: str | None
    """Source of a custom network."""
    signal: dict[str, Any]
    task: dict[str, Any] | None
    """None without a head."""
    statistics: dict[str, Any] | None
    augmentation: dict[str, Any]
    normalisation: NotRequired[str]
    """Of a transfer, whose statistics these are: its ``catalog``'s, or its ``pretraining``'s."""
    nearest: NotRequired[Count]
    """Number of neighbours that vote, if the head is nearest neighbours."""
    hidden: NotRequired[Count]
    """Width of the head's hidden layer, if it has one."""
    members: NotRequired[Annotated[list[MemberForm], Field(min_length=2, max_length=MOST_MEMBERS)]]
    """Of an average; the statistics above are None then."""
    weights: str
    """SHA-256."""


def export_model(
    folder: Path,
    weights: dict[str, torch.Tensor],
    encoder: EncoderSettings,
    signal: Signal,
    statistics: Statistics | None,
    task: Task | None = None,
    augmentation: AugmentationSettings | None = None,
    nearest: int | None = None,
    hidden: int | None = None,
    normalisation: str | None = None,
) -> None:
    """Write float32 weights with a description of architecture and input.

    ``nearest`` is the number of voting neighbours, if the head is not trained; ``hidden`` the width
    of its hidden layer, if it has one.
    """
    description = {
        "encoder": as_dict(encoder),
        "network_source": network_source(encoder),
        "signal": asdict(signal),
        "task": None if task is None else asdict(task),
        "statistics": statistics,
        "augmentation": as_dict(augmentation or AugmentationSettings()),
        **({} if nearest is None else {"nearest": nearest}),
        **({} if hidden is None else {"hidden": hidden}),
        **({} if normalisation is None else {"normalisation": normalisation}),
        "weights": write_weights(folder / MODEL, weights),
    }
    write_hashed_json(folder / DESCRIPTION, description)


def described(description: Mapping[str, Any], folder: Path) -> tuple[Signal, Task | None]:
    """Signal and task of a described model; None for the task without a head."""
    path, task = _description_of(folder), description["task"]
    try:
        signal = typed(Signal, description["signal"], "signal")
        return signal, None if task is None else typed(Task, task, "task")
    except BenchmdError as error:
        raise Damaged(path, str(error), made_again(folder)) from error


def write_weights(path: Path, weights: Mapping[str, torch.Tensor]) -> str:
    """Write weights in float32; the file's SHA-256."""
    floats = {name: value.float().contiguous() for name, value in weights.items()}
    data = save(floats)  # save_file makes a file that only its owner can read
    with replacing(path) as partial:
        partial.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def load_weights(module: nn.Module, path: Path, stated: str, prefix: str = "") -> None:
    """Load finite weights strictly from a safetensors file whose SHA-256 is ``stated``.

    With ``prefix`` only the tensors with this prefix are loaded; it is removed from their names.
    """
    _fill(module, read_weights(path, stated), path, prefix)


def read_weights(path: Path, stated: str) -> dict[str, torch.Tensor]:
    """Finite tensors of a safetensors file with this SHA-256, by name."""
    remedy = made_again(path.parent)
    require_sha256(path, stated, remedy)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise Damaged(path, f"it is not a safetensors file ({error})", remedy) from error
    if infinite := [name for name, value in tensors.items() if not torch.isfinite(value).all()]:
        raise BenchmdError(
            f"{path} has NaN or infinite values in {listed(infinite)}: the training diverged. "
            "Train again with a lower learning rate (optimiser.lr)."
        )
    return tensors


def _fill(module: nn.Module, tensors: Mapping[str, torch.Tensor], path: Path, prefix: str) -> None:
    """Load the tensors with a prefix; for a module on the meta device only compare them."""
    tensors = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    expected = module.state_dict()
    if faults := differences(_shapes(expected), _shapes(tensors)):
        raise BenchmdError(
            f"{path} holds weights of another architecture: {listed(faults)}. Use the encoder "
            "settings of the run that wrote it."
        )
    if not all(value.is_meta for value in expected.values()):
        module.load_state_dict(tensors)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def load_encoder(folder: Path) -> Encoder:
    """The encoder of a finished run, pretraining or transfer."""
    description = require_one_model(folder)
    return _encoder(folder, description, read_weights(folder / MODEL, description["weights"]))


def load_classifier(folder: Path) -> Classifier:
    """Encoder and head of a finished classification transfer."""
    return _load_model(folder, Classifier)


def load_segmenter(folder: Path) -> Segmenter:
    """Network and head of a finished segmentation transfer."""
    return _load_model(folder, Segmenter)


def require_one_model(folder: Path) -> dict[str, Any]:
    """`model_description` of what is no average."""
    description = model_description(folder)
    if "members" in description:
        raise BenchmdError(
            f"{folder} is an average of {len(description['members'])} models, of which none is "
            "used by itself: name one of its runs, or a folder that `benchmd export` wrote of one."
        )
    return description


def require_statistics(statistics: Any, signal: Signal, folder: Path) -> None:
    """Refuse statistics that no training split has; None is for signals that need none."""
    if statistics is None:
        return
    fault = form_fault(StatisticsForm, statistics)
    if not fault and {len(statistics["mean"]), len(statistics["std"])} != {signal.input_shape[0]}:
        fault = f"expected {signal.input_shape[0]} means and deviations, one of each channel"
    if not fault and min(statistics["std"]) <= 0:
        fault = f"a standard deviation is {min(statistics['std']):g}, expected above 0"
    if fault:
        raise Damaged(_description_of(folder), f"statistics: {fault}", made_again(folder))


def _encoder(
    folder: Path, description: Mapping[str, Any], tensors: dict[str, torch.Tensor]
) -> Encoder:
    size = updated(EncoderSettings(), description["encoder"])
    path, (signal, _) = folder / MODEL, described(description, folder)
    if size.network in NETWORKS:  # allocates only tensors that the weights fill
        with torch.device("meta"):
            _fill(make_encoder(signal, size), tensors, path, "encoder.")
    encoder = make_encoder(signal, size, recorded=description["network_source"] or "unknown")
    _fill(encoder, tensors, path, "encoder.")
    return encoder


def _load_model(folder: Path, kind: type[Model]) -> Model:
    description = require_one_model(folder)
    tensors = read_weights(folder / MODEL, description["weights"])
    return model_of_tensors(folder, description, tensors, kind)


def model_of_tensors(
    folder: Path,
    description: Mapping[str, Any],
    tensors: dict[str, torch.Tensor],
    kind: type[Model],
    encoder: Encoder | None = None,
) -> Model:
    """A model of these tensors; those of the encoder may be in a model already."""
    encoder = encoder or _encoder(folder, description, tensors)
    _, task = described(description, folder)
    if task is None:
        raise BenchmdError(
            f"{folder} is a pretraining: its model has no head. Name a run that `benchmd transfer` "
            "printed."
        )
    require_task(task, updated(EncoderSettings(), description["encoder"]))
    model: Classifier | Segmenter
    if task.segments:
        model = Segmenter(encoder, len(task.classes))
    else:
        load_head = _neighbours if "nearest" in description else _trained_head
        head = load_head(folder, description, tensors, task, encoder.width)
        model = Classifier(encoder, len(task.classes), head)
    if not isinstance(model, kind):
        does = {Classifier: "classifies", Segmenter: "segments"}
        raise BenchmdError(
            f"the model in {folder} {does[type(model)]}: name one that {does[kind]}."
        )
    _fill(model, tensors, folder / MODEL, "")
    return model


def _trained_head(
    folder: Path,
    description: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    task: Task,
    width: int,
) -> nn.Module:
    """The head without its weights; allocates a hidden layer only if the weights fill it."""
    hidden = description.get("hidden", 0)
    shapes = (width, len(task.classes), hidden)
    if hidden:
        with torch.device("meta"):
            head = classification_head(*shapes)
        _fill(head, tensors, folder / MODEL, "head.")
    return classification_head(*shapes)


def _neighbours(
    folder: Path,
    description: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    task: Task,
    width: int,
) -> NearestNeighbours:
    """The head that holds the training records, checked."""
    path, remedy, nearest = folder / MODEL, made_again(folder), description["nearest"]
    if not isinstance(nearest, int) or nearest < 1:
        raise Damaged(folder / DESCRIPTION, f"nearest is {shown(nearest)}, below 1", remedy)
    try:
        features, targets = tensors["head.features"], tensors["head.targets"]
    except KeyError as error:
        raise Damaged(path, f"it holds no training records ({error})", remedy) from error
    wanted = (len(targets) if targets.ndim else 0, len(task.classes))
    if not wanted[0] or features.shape != (wanted[0], width) or targets.shape != wanted:
        what = f"training records of shapes {tuple(features.shape)} and {tuple(targets.shape)}"
        raise Damaged(path, f"it holds {what}, expected ({width} features) and {wanted}", remedy)
    if not torch.isin(targets, torch.tensor([-1.0, 0.0, 1.0])).all():
        raise Damaged(path, "it holds targets other than 1, 0 and -1", remedy)
    return NearestNeighbours(features, targets, task.kind, nearest)


def model_description(folder: Path) -> dict[str, Any]:
    """Validated description of an exported model (`export_model`)."""
    path = _description_of(folder)
    if not path.is_file():
        raise BenchmdError(
            f"{folder} holds no exported model ({DESCRIPTION}): the run has not finished. Run its "
            "command again, which resumes it."
        )
    description = read_hashed_json(path, made_again(folder), ModelForm)
    try:
        description["augmentation"] = as_dict(
            updated(AugmentationSettings(), description["augmentation"])
        )
    except BenchmdError as error:
        raise Damaged(path, f"augmentation: {error}".rstrip("."), made_again(folder)) from error
    return description


def require_programs(folder: Path) -> None:
    """Verify the hashes of an exported model's programs; missing ones are skipped."""
    programs = model_description(folder).get("programs")
    stated = programs.items() if isinstance(programs, dict) else ()
    for name, digest in stated:
        path = folder / Path(str(name)).name
        if path.is_file():
            require_sha256(path, str(digest), made_again(folder))


def is_exported(folder: Path) -> bool:
    """Whether a folder is of a model that was exported from its store."""
    path = folder / CONFIG
    if not path.is_file() or (folder / RUN).exists():
        return False
    with path.open("rb") as file:  # transformers calls its file so, too
        return b'"model_type"' not in file.read(2**20)


def _description_of(folder: Path) -> Path:
    return folder / (CONFIG if is_exported(folder) else DESCRIPTION)
