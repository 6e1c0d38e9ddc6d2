"""Checkpoints of a run, whole or not there, and its exported weights.

``checkpoints/step_000100`` holds a training state with ``checkpoint.json``; ``model.safetensors``
with ``model.json`` the float32 weights that later runs load.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from benchmd_ray import __version__
from benchmd_ray.data.normalise import Statistics
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files import TEMPORARY, flush, remove, removed_on_failure, replacing, write_json
from benchmd_ray.modalities import modality
from benchmd_ray.models.encoder import Encoder, make_encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.settings import EncoderSettings, as_dict, updated
from benchmd_ray.training.engine import Engine, barrier

CHECKPOINT = "checkpoint.json"
MODEL = "model.safetensors"
START = "start.safetensors"
"""Weights of an encoder that an unfinished pretraining starts from, where they are not random."""
DESCRIPTION = "model.json"
DESCRIBED = ("encoder", "modality", "statistics")
"""What it says."""


def versions() -> dict[str, str]:
    """Versions of what computes."""
    packages = ("torch", "deepspeed", "ray", "numpy", "pyarrow")
    return {"benchmd_ray": __version__, **{name: version(name) for name in packages}}


def save_checkpoint(
    run: Path,
    step: int,
    engine: Engine,
    position: dict[str, Any],
    files: Mapping[str, Callable[[Path], None]] | None = None,
) -> None:
    """Write a checkpoint under a temporary name and rename it; older ones are removed after.

    Every worker calls it. Random states need no saving: everything drawn is a function of the
    seed, the step and the worker.

    Args:
        run: Folder of the run, on storage that all workers see.
        step: Steps done.
        engine: Its model and optimiser are saved.
        position: What else the loop needs to go on; JSON-serialisable.
        files: Further files of the checkpoint: name and what writes it, on the first worker.
    """
    folder = run / "checkpoints"
    final = folder / f"step_{step:09d}"
    partial = folder / f"{TEMPORARY}{final.name}"
    if engine.worker.rank == 0:
        remove(partial)
        partial.mkdir(parents=True)
    barrier()
    with removed_on_failure(partial, final):
        engine.save(partial)
    barrier()
    if engine.worker.rank == 0:
        with removed_on_failure(partial, final):
            _complete(partial, step, engine, position, files or {})
            flush(partial)
        remove(final)
        partial.rename(final)
        for older in folder.iterdir():
            if older != final:
                remove(older)
    barrier()


def _complete(
    partial: Path,
    step: int,
    engine: Engine,
    position: dict[str, Any],
    files: Mapping[str, Callable[[Path], None]],
) -> None:
    """Write what a checkpoint holds beside the engine's state, its description last."""
    for name, write in files.items():
        write(partial / name)
    description = {
        "step": step,
        "position": position,
        "workers": engine.worker.world,
        "portable": engine.portable,
        "versions": versions(),
    }
    write_json(partial / CHECKPOINT, description)


def latest_checkpoint(run: Path) -> Path | None:
    """The newest whole checkpoint of a run."""
    found = sorted((run / "checkpoints").glob(f"step_*/{CHECKPOINT}"))
    return found[-1].parent if found else None


def load_checkpoint(run: Path, engine: Engine) -> dict[str, Any]:
    """Load the newest checkpoint into an engine.

    Returns:
        The position saved with it, with its ``step``; empty where there is none.

    Raises:
        BenchmdError: It was written by another number of workers and cannot be split anew.
    """
    folder = latest_checkpoint(run)
    if folder is None:
        return {}
    description = json.loads((folder / CHECKPOINT).read_text("utf-8"))
    same = description["workers"] == engine.worker.world
    if description["portable"] != engine.portable or not (engine.portable or same):
        raise BenchmdError(
            f"the checkpoint {folder} was written by {description['workers']} workers with ZeRO "
            f"stage {'0' if description['portable'] else '1 or above'}, which "
            f"{engine.worker.world} workers with these settings cannot load. Go on with the "
            "same execution settings, or remove the checkpoint to start the run anew."
        )
    engine.load(folder)
    return {"step": description["step"], **description["position"]}


def export_model(
    folder: Path,
    weights: dict[str, torch.Tensor],
    encoder: EncoderSettings,
    modality_name: str,
    statistics: Statistics | None,
) -> None:
    """Write float32 weights, what architecture they are of and what normalises their input."""
    write_weights(folder / MODEL, weights)
    description = {
        "encoder": as_dict(encoder),
        "modality": modality_name,
        "statistics": statistics,
    }
    write_json(folder / DESCRIPTION, description)


def write_weights(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Write weights in float32."""
    floats = {name: value.float().contiguous() for name, value in weights.items()}
    with replacing(path) as partial:
        partial.write_bytes(save(floats))  # save_file makes a file that its owner alone can read


def load_weights(module: nn.Module, path: Path, prefix: str = "") -> None:
    """Load exported weights strictly.

    Args:
        module: Takes the weights.
        path: A safetensors file.
        prefix: Take only the tensors whose name starts so, without it; others are left alone.

    Raises:
        BenchmdError: The file is missing or damaged, or names or shapes differ; the message
            says which.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BenchmdError(f"cannot read the weights {path}: {error}") from error
    tensors = {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    expected = module.state_dict()
    missing, foreign = sorted(expected.keys() - tensors), sorted(tensors.keys() - expected)
    shapes = [
        f"{name} is {tuple(tensors[name].shape)}, expected {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if missing or foreign or shapes:
        faults = [f"{name} is missing" for name in missing] + shapes
        faults += [f"{name} is not of this architecture" for name in foreign]
        raise BenchmdError(
            f"{path} holds weights of another architecture: {'; '.join(faults[:3])}"
            f"{' …' if len(faults) > 3 else ''}. Use the encoder settings of the run that wrote it."
        )
    module.load_state_dict(tensors)


def load_encoder(folder: Path) -> Encoder:
    """The encoder of a finished run, pretraining or transfer.

    Raises:
        BenchmdError: The folder holds no exported model, or one of another architecture.
    """
    description = model_description(folder)
    size = updated(EncoderSettings(), description["encoder"])
    encoder = make_encoder(modality(description["modality"]), size)
    load_weights(encoder, folder / MODEL, "encoder.")
    return encoder


def load_classifier(folder: Path) -> Classifier:
    """Encoder and head of a finished transfer run.

    Raises:
        BenchmdError: The folder holds no exported model, or one without a head.
    """
    encoder = load_encoder(folder)
    model = Classifier(encoder, encoder.modality)
    load_weights(model, folder / MODEL)
    return model


def model_description(folder: Path) -> dict[str, Any]:
    """What `export_model` says of an exported model.

    Raises:
        BenchmdError: The folder holds none, or one that another version wrote.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise BenchmdError(
            f"{folder} holds no exported model ({DESCRIPTION}): the run has not finished. Run its "
            "command again; it goes on where it stopped."
        )
    description: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if missing := [name for name in DESCRIBED if name not in description]:
        raise BenchmdError(
            f"{path} does not say {', '.join(missing)}: another version of benchmd_ray wrote it. "
            "Do that run again, in another store or after removing its folder."
        )
    return description
