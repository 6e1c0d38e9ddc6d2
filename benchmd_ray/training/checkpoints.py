"""Checkpoints of a run, whole or not there, and its exported weights.

``checkpoints/step_000100`` holds a training state with ``checkpoint.json``; ``model.safetensors``
with ``model.json`` the float32 weights that later runs load.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
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
from benchmd_ray.training.state import differences, listed

CHECKPOINT = "checkpoint.json"
MODEL = "model.safetensors"
ASIDE = f"{TEMPORARY}old-"
"""Prefix of a checkpoint that another one takes the place of."""
START = "start.safetensors"
"""Weights of an encoder that an unfinished pretraining starts from, where they are not random."""
DESCRIPTION = "model.json"
DESCRIBED = ("encoder", "modality", "statistics", "augmentation")
"""What it says."""


@cache
def versions() -> Mapping[str, str]:
    """Versions of what computes; looking them up takes milliseconds."""
    packages = ["torch", "deepspeed", "ray", "numpy", "pyarrow"]
    packages += ["monai"] if find_spec("monai") else []
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
        _replace_all(partial, final)
    barrier()


def _replace_all(partial: Path, final: Path) -> None:
    """Put a written checkpoint in the place of all others; at every moment a whole one is there."""
    if final.exists():  # of the same step, such as in an epoch that was begun again
        _aside(final)
    partial.rename(final)
    for other in final.parent.iterdir():
        if other != final:
            # What is half removed must not look whole.
            remove(_aside(other) if other.name.startswith("step_") else other)


def _aside(checkpoint: Path) -> Path:
    aside = checkpoint.with_name(f"{ASIDE}{checkpoint.name}")
    remove(aside)
    return checkpoint.rename(aside)


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
        "versions": versions(),
    }
    write_json(partial / CHECKPOINT, description)


def latest_checkpoint(run: Path) -> Path | None:
    """The newest whole checkpoint of a run."""
    for prefix in ("", ASIDE):  # one aside is alone where a process ended amid two renames
        found = sorted((run / "checkpoints").glob(f"{prefix}step_*/{CHECKPOINT}"))
        if found:
            return found[-1].parent
    return None


def checkpoint_step(folder: Path) -> int:
    """Steps or epochs done at a run's newest checkpoint; 0 where there is none."""
    held = latest_checkpoint(folder)
    return 0 if held is None else int(held.name.rpartition("_")[2])


def load_checkpoint(run: Path, engine: Engine) -> dict[str, Any]:
    """Load the newest checkpoint into an engine.

    Returns:
        The position saved with it, with its ``step``; empty where there is none.

    Raises:
        BenchmdError: It is damaged or of another architecture.
    """
    folder = latest_checkpoint(run)
    if folder is None:
        return {}
    description = json.loads((folder / CHECKPOINT).read_text("utf-8"))
    engine.load(folder)
    return {"step": description["step"], **description["position"]}


def export_model(
    folder: Path,
    weights: dict[str, torch.Tensor],
    encoder: EncoderSettings,
    modality_name: str,
    statistics: Statistics | None,
    augmentation: str = "none",
) -> None:
    """Write float32 weights, what architecture they are of and how their input is made.

    Args:
        folder: Of the run.
        weights: By name.
        encoder: The architecture.
        modality_name: Of the signals.
        statistics: What normalises them.
        augmentation: What they were trained with, which says what they are evaluated on.
    """
    write_weights(folder / MODEL, weights)
    description = {
        "encoder": as_dict(encoder),
        "modality": modality_name,
        "statistics": statistics,
        "augmentation": augmentation,
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
    if faults := differences(_shapes(expected), _shapes(tensors)):
        raise BenchmdError(
            f"{path} holds weights of another architecture: {listed(faults)}. Use the encoder "
            "settings of the run that wrote it."
        )
    module.load_state_dict(tensors)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


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
