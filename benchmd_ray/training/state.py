"""What a training has learnt, in files: parameters and AdamW's moments, each of them whole.

One file of tensors for each of `PARTS`, by the parameters' names; nothing is unpickled. The files
do not depend on how many workers hold the state, nor on which engine or ZeRO stage does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from benchmd_ray.errors import BenchmdError

PARAMETERS = "parameters"
"""Parameters and the buffers that are part of the module's state."""
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW holds of a parameter: its number of steps and the means of gradient and square."""
PARTS = (PARAMETERS, *MOMENTS)

Moments = dict[str, torch.Tensor]
"""`MOMENTS` of one parameter."""


class Held(Protocol):
    """Where parameters and moments are held."""

    def whole(self, tensor: torch.Tensor, part: str) -> torch.Tensor | None:
        """One of `PARTS` of a parameter or buffer, whole; None where there is none yet.

        Every worker calls it, for the same tensors in the same order.
        """

    def take(
        self,
        values: Iterable[tuple[torch.Tensor, torch.Tensor]],
        moments: Iterable[tuple[nn.Parameter, Moments]],
    ) -> None:
        """Replace everything held; every worker calls it.

        Args:
            values: Each parameter and buffer with its whole value.
            moments: The parameters that have been stepped, with their moments.
        """


class HeldWhole:
    """Every parameter and its moments lie whole in this process."""

    def __init__(self, optimiser: Any) -> None:
        self._optimiser = optimiser

    def whole(self, tensor: torch.Tensor, part: str) -> torch.Tensor | None:
        """See `Held`."""
        if part == PARAMETERS:
            return tensor.detach()
        moment: torch.Tensor | None = self._optimiser.state.get(tensor, {}).get(part)
        return moment

    def take(
        self,
        values: Iterable[tuple[torch.Tensor, torch.Tensor]],
        moments: Iterable[tuple[nn.Parameter, Moments]],
    ) -> None:
        """See `Held`."""
        for tensor, value in values:
            tensor.data.copy_(value)
        self._optimiser.state.clear()
        for parameter, state in moments:
            means = {
                name: torch.empty_like(parameter.data).copy_(state[name]) for name in MOMENTS[1:]
            }
            step = state["step"].to(parameter.device, copy=True)  # where a fused AdamW counts
            self._optimiser.state[parameter] = {"step": step, **means}


def save_state(module: nn.Module, held: Held, folder: Path | None) -> None:
    """Write what is held of a module, one part after the other.

    Args:
        module: Whose parameters and buffers.
        held: Where they are.
        folder: Takes a file for each part; None on workers that give their share and write nothing.
    """
    for part, tensors in _parts(module, held, keep=folder is not None):
        if folder is not None:
            save_file(tensors, _file(folder, part))


class Snapshot:
    """Copies, in this process's memory, of what is held of a module."""

    def __init__(self, module: nn.Module, held: Held) -> None:
        on_cpu = next(module.parameters()).device.type == "cpu"
        self._parts = {
            # What a CPU holds is not copied on the way to the CPU.
            part: {name: x.clone() if on_cpu else x for name, x in tensors.items()}
            for part, tensors in _parts(module, held, keep=True)
        }

    def save(self, folder: Path) -> None:
        """Write what `save_state` would have written."""
        for part, tensors in self._parts.items():
            save_file(tensors, _file(folder, part))


def _parts(
    module: nn.Module, held: Held, *, keep: bool
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Each of `PARTS` on the CPU, by the parameters' names; empty unless they are to be kept."""
    named = named_tensors(module)
    for part in PARTS:
        tensors = {}
        for name, tensor in named.items():
            value = held.whole(tensor, part) if part == PARAMETERS or _trained(tensor) else None
            if keep and value is not None:
                tensors[name] = value.cpu().contiguous()
        yield part, tensors


def load_state(module: nn.Module, held: Held, folder: Path) -> None:
    """Read what `save_state` wrote, tensor by tensor.

    Raises:
        BenchmdError: A file is missing or damaged, or of another architecture.
    """
    named = named_tensors(module)
    try:
        with ExitStack() as stack:
            files = {
                part: stack.enter_context(safe_open(_file(folder, part), framework="pt"))
                for part in PARTS
            }
            if faults := _faults(named, files):
                raise _unusable(folder, listed(faults))
            values = ((tensor, files[PARAMETERS].get_tensor(n)) for n, tensor in named.items())
            held.take(values, _moments(named, files))
    except (OSError, SafetensorError) as error:
        raise _unusable(folder, str(error).rstrip(".")) from error


def weights(module: nn.Module, held: Held, *, keep: bool) -> dict[str, torch.Tensor]:
    """Copies of all parameters and buffers on the CPU; every worker calls it.

    A worker with ``keep`` gets them, others none.
    """
    copies = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        value = held.whole(tensor, PARAMETERS)
        if keep and value is not None:
            copies[name] = value.cpu().clone().contiguous()
    return copies


def differences(expected: Mapping[str, torch.Size], found: Mapping[str, torch.Size]) -> list[str]:
    """In what the names and shapes of tensors differ."""
    faults = [f"{name} is missing" for name in sorted(expected.keys() - found)]
    faults += [
        f"{name} is {tuple(found[name])}, expected {tuple(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    return faults + [
        f"{name} is not of this architecture" for name in sorted(found.keys() - expected)
    ]


def listed(faults: list[str]) -> str:
    """The first of them."""
    return f"{'; '.join(faults[:3])}{' …' if len(faults) > 3 else ''}"


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, shared ones once, and the buffers of the module's state."""
    kept = module.state_dict().keys()
    buffers = {name: value for name, value in module.named_buffers() if name in kept}
    return {**dict(module.named_parameters()), **buffers}


def _trained(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def _file(folder: Path, part: str) -> Path:
    return folder / f"{part}.safetensors"


def _faults(named: Mapping[str, torch.Tensor], files: Mapping[str, Any]) -> list[str]:
    # A parameter that ZeRO stage 3 splits is empty itself and knows its shape.
    shapes = {name: getattr(tensor, "ds_shape", tensor.shape) for name, tensor in named.items()}
    faults = differences(shapes, _shapes(files[PARAMETERS]))
    trained = {name: shapes[name] for name, tensor in named.items() if _trained(tensor)}
    stepped = {name: shape for name, shape in trained.items() if name in files["step"].keys()}
    for part in MOMENTS[1:]:
        faults += differences(stepped, _shapes(files[part]))
    return faults


def _shapes(file: Any) -> dict[str, torch.Size]:
    return {name: torch.Size(file.get_slice(name).get_shape()) for name in file.keys()}


def _moments(
    named: Mapping[str, torch.Tensor], files: Mapping[str, Any]
) -> Iterator[tuple[nn.Parameter, Moments]]:
    stepped = set(files["step"].keys())
    for name, tensor in named.items():
        if isinstance(tensor, nn.Parameter) and name in stepped:
            yield tensor, {part: files[part].get_tensor(name) for part in MOMENTS}


def _unusable(folder: Path, reason: str) -> BenchmdError:
    return BenchmdError(
        f"the checkpoint {folder} cannot be loaded: {reason}. It is damaged or of another "
        "architecture; remove it to start the run anew."
    )
