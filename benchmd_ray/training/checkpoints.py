"""Checkpoints of a run, whole or not there, and its exported weights.

``checkpoints/step_000100`` holds a training state with ``checkpoint.json``; ``model.safetensors``
with ``model.json`` the float32 weights that later runs load. Both JSON files hold the SHA-256 of
the others, which are compared before they are loaded; the last two checkpoints are kept, so that
training resumes from the older one where the newer is damaged.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
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
from benchmd_ray.files import TEMPORARY, flush, remove, removed_on_failure, replacing, sha256
from benchmd_ray.integrity import (
    Damaged,
    Kinds,
    made_again,
    read_hashed_json,
    require_sha256,
    write_hashed_json,
)
from benchmd_ray.models.encoder import NETWORKS, Encoder, make_encoder, network_source
from benchmd_ray.models.heads import Classifier
from benchmd_ray.run_files import CHECKPOINT, CHECKPOINTS, MODEL
from benchmd_ray.settings import EncoderSettings, as_dict, updated
from benchmd_ray.signals import Signal
from benchmd_ray.tasks import Task
from benchmd_ray.training.engine import Engine, barrier, gather
from benchmd_ray.training.state import differences, listed
from benchmd_ray.typed import typed

KEPT = 2
"""Checkpoints that are kept."""
STEP = f"step_{'[0-9]' * 9}"
"""Pattern of their names."""
ASIDE = f"{TEMPORARY}old-"
"""Prefix of a checkpoint that another one takes the place of."""
START = "start.safetensors"
"""Weights of an encoder that an unfinished pretraining starts from, where they are not random."""
DESCRIPTION = "model.json"
DESCRIBED: Kinds = {
    "encoder": dict,
    "network_source": (str, type(None)),
    "signal": dict,
    "task": (dict, type(None)),
    "statistics": (dict, type(None)),
    "augmentation": str,
    "weights": str,
}
"""What it says: the architecture with the source of a custom network, the signals and what is done
to them, the task of a model with a head, and the SHA-256 of the weights."""
_STATE: Kinds = {"step": int, "position": dict, "files": dict}
"""What `CHECKPOINT` says at least."""
logger = logging.getLogger(__name__)


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
    """Write a checkpoint under a temporary name and rename it; `KEPT` of them stay.

    Every worker calls it. Random states need no saving: everything drawn is a function of the
    seed, the step and the worker.

    Args:
        run: Folder of the run, on storage that all workers see.
        step: Steps done.
        engine: Its model and optimiser are saved.
        position: What else the loop needs to continue; JSON-serialisable.
        files: Further files of the checkpoint: name and what writes it, on the first worker.
    """
    folder = run / CHECKPOINTS
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
        _replace_oldest(partial, final)
    barrier()


def _replace_oldest(partial: Path, final: Path) -> None:
    """Put a written checkpoint next to the one before it, and remove all others.

    At every moment a whole one is there.
    """
    if final.exists():  # of the same step, such as in an epoch that was begun again
        _aside(final)
    partial.rename(final)
    before = sorted(p for p in final.parent.glob(STEP) if p.name < final.name)
    kept = [final, *before[1 - KEPT :]]
    for other in final.parent.iterdir():
        if other not in kept:
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
    """Write what a checkpoint holds in addition to the engine's state, its description last."""
    for name, write in files.items():
        write(partial / name)
    description = {
        "step": step,
        "position": position,
        "workers": engine.worker.world,
        "versions": versions(),
        "files": {path.name: sha256(path) for path in sorted(partial.iterdir())},
    }
    write_hashed_json(partial / CHECKPOINT, description, of=_run_of(partial))


def checkpoints(run: Path) -> list[Path]:
    """Whole checkpoints of a run, the newest first; their hashes are not compared.

    One that was put aside counts where no other has its step: a process ended amid two renames.
    """
    found: dict[int, Path] = {}
    for prefix in (ASIDE, ""):
        for path in (run / CHECKPOINTS).glob(f"{prefix}{STEP}/{CHECKPOINT}"):
            found[_step_of(path.parent)] = path.parent
    return [found[step] for step in sorted(found, reverse=True)]


def latest_checkpoint(run: Path) -> Path | None:
    """The newest of `checkpoints`."""
    return next(iter(checkpoints(run)), None)


def checkpoint_step(folder: Path) -> int:
    """Steps or epochs done at a run's newest checkpoint; 0 where there is none."""
    held = latest_checkpoint(folder)
    return 0 if held is None else _step_of(held)


def _run_of(checkpoint: Path) -> Path:
    return checkpoint.parent.parent


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("_")[2])


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was loaded."""

    folder: Path
    step: int
    """Steps or epochs done."""
    position: Mapping[str, Any]
    """What the loop saved to resume."""


def load_checkpoint(run: Path, engine: Engine) -> Checkpoint | None:
    """Load the newest checkpoint that is as it was written into an engine; every worker calls it.

    Returns:
        What was loaded; None where there is none, or none that is undamaged.

    Raises:
        BenchmdError: It is of another architecture.
    """
    step = _undamaged_step(run) if engine.worker.rank == 0 else -1
    # The first worker hashes the files, which all see, for everyone.
    step = int(gather(torch.tensor([step], device=engine.worker.device))[0])
    for folder in checkpoints(run):
        if _step_of(folder) == step:
            description = _description(folder)
            engine.load(folder)
            return Checkpoint(folder, step, description["position"])
    return None


def _undamaged_step(run: Path) -> int:
    """Step of the newest undamaged checkpoint, -1 where there is none; names damaged ones."""
    found = checkpoints(run)
    for number, folder in enumerate(found):
        try:
            for name, stated in _description(folder)["files"].items():
                require_sha256(folder / Path(name).name, str(stated), "")
        except Damaged as error:
            then = "the start" if number + 1 == len(found) else "the checkpoint before it"
            said = "the checkpoint %s is damaged (%s): training resumes from %s"
            logger.warning(said, folder, error.why, then)
        else:
            return _step_of(folder)
    return -1


def _description(checkpoint: Path) -> dict[str, Any]:
    file = checkpoint / CHECKPOINT
    description = read_hashed_json(file, "", _STATE, of=_run_of(checkpoint))
    if description["step"] != _step_of(checkpoint):
        raise Damaged(file, f"it is of step {description['step']}", "")
    return description


def export_model(
    folder: Path,
    weights: dict[str, torch.Tensor],
    encoder: EncoderSettings,
    signal: Signal,
    statistics: Statistics | None,
    task: Task | None = None,
    augmentation: str = "none",
) -> None:
    """Write float32 weights, what architecture they are of and how their input is made.

    Args:
        folder: Of the run.
        weights: By name.
        encoder: The architecture.
        signal: What it encodes.
        statistics: What normalises that.
        task: What its head predicts; None where it has none.
        augmentation: What they were trained with, which says what they are evaluated on.
    """
    description = {
        "encoder": as_dict(encoder),
        "network_source": network_source(encoder),
        "signal": asdict(signal),
        "task": None if task is None else asdict(task),
        "statistics": statistics,
        "augmentation": augmentation,
        "weights": write_weights(folder / MODEL, weights),
    }
    write_hashed_json(folder / DESCRIPTION, description)


def described(description: Mapping[str, Any], folder: Path) -> tuple[Signal, Task | None]:
    """What a model encodes and what its head predicts, None without one.

    Args:
        description: What `model_description` gives.
        folder: Of the run.

    Raises:
        Damaged: There can be no such signal or task.
    """
    path, task = folder / DESCRIPTION, description["task"]
    try:
        signal = typed(Signal, description["signal"], "signal")
        return signal, None if task is None else typed(Task, task, "task")
    except BenchmdError as error:
        raise Damaged(path, str(error), made_again(folder)) from error


def write_weights(path: Path, weights: Mapping[str, torch.Tensor]) -> str:
    """Write weights in float32.

    Returns:
        SHA-256 of the file.
    """
    floats = {name: value.float().contiguous() for name, value in weights.items()}
    data = save(floats)  # save_file makes a file that only its owner can read
    with replacing(path) as partial:
        partial.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def load_weights(module: nn.Module, path: Path, stated: str, prefix: str = "") -> None:
    """Load exported weights strictly.

    Args:
        module: Takes the weights.
        path: A safetensors file.
        stated: Its SHA-256.
        prefix: Take only the tensors whose name starts so, without it; others are left alone.

    Raises:
        Damaged: The file is missing or another one than was written.
        BenchmdError: Names or shapes differ, or a weight is NaN or infinite; the message says
            which.
    """
    _fill(module, _read_weights(path, stated), path, prefix)


def _read_weights(path: Path, stated: str) -> dict[str, torch.Tensor]:
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


def _fill(module: nn.Module, tensors: dict[str, torch.Tensor], path: Path, prefix: str) -> None:
    """Load tensors whose name starts with a prefix, or on a module without storage only compare."""
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
    """The encoder of a finished run, pretraining or transfer.

    Raises:
        BenchmdError: The folder holds no exported model, or one of another architecture.
    """
    description = model_description(folder)
    size = updated(EncoderSettings(), description["encoder"])
    path, (signal, _) = folder / MODEL, described(description, folder)
    tensors = _read_weights(path, description["weights"])
    if size.network in NETWORKS:  # nothing is allocated that the weights do not fill
        with torch.device("meta"):
            _fill(make_encoder(signal, size), tensors, path, "encoder.")
    encoder = make_encoder(signal, size, recorded=description["network_source"] or "unknown")
    _fill(encoder, tensors, path, "encoder.")
    return encoder


def load_classifier(folder: Path) -> Classifier:
    """Encoder and head of a finished transfer run.

    Raises:
        BenchmdError: The folder holds no exported model, or one without a head.
    """
    encoder = load_encoder(folder)
    description = model_description(folder)
    _, task = described(description, folder)
    if task is None:
        raise BenchmdError(
            f"{folder} is a pretraining: its model has no head. Name a run that `benchmd transfer` "
            "printed."
        )
    model = Classifier(encoder, len(task.classes))
    load_weights(model, folder / MODEL, description["weights"])
    return model


def model_description(folder: Path) -> dict[str, Any]:
    """What `export_model` says of an exported model.

    Raises:
        Damaged: It is not what was written.
        BenchmdError: The folder holds none.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise BenchmdError(
            f"{folder} holds no exported model ({DESCRIPTION}): the run has not finished. Run its "
            "command again, which resumes it."
        )
    return read_hashed_json(path, made_again(folder), DESCRIBED)
