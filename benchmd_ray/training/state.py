"""Training state in files: unsplit parameters and AdamW's moments.

One safetensors file for each of `PARTS`, by parameter names, independent of the number of workers,
engine and ZeRO stage. ZeRO splits the optimiser's state over workers in stages 1 and 2, in stage 3
the parameters too (Rajbhandari et al., https://arxiv.org/abs/1910.02054).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from benchmd_ray.errors import BenchmdError

PARAMETERS = "parameters"
"""Parameters and the buffers that are part of the module's state."""
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of a parameter: number of steps, and means of gradient and squared gradient."""
PARTS = (PARAMETERS, *MOMENTS)

Moments = dict[str, torch.Tensor]


class WholeState:
    """State of a process that has every parameter and its moments unsplit."""

    def __init__(self, optimiser: Any) -> None:
        self._optimiser = optimiser

    def whole(self, tensor: torch.Tensor, part: str) -> torch.Tensor | None:
        """One of `PARTS` of a parameter or buffer, unsplit; None if it does not exist yet.

        Every worker calls it, for the same tensors in the same order.
        """
        if part == PARAMETERS:
            return tensor.detach()
        moment: torch.Tensor | None = self._optimiser.state.get(tensor, {}).get(part)
        return moment

    def take(
        self,
        values: Iterable[tuple[torch.Tensor, torch.Tensor]],
        moments: Iterable[tuple[nn.Parameter, Moments]],
    ) -> None:
        """Replace everything; every worker calls it.

        ``values`` has all parameters and buffers unsplit, ``moments`` the parameters that were
        stepped.
        """
        for tensor, value in values:
            tensor.data.copy_(value)
        self._optimiser.state.clear()
        for parameter, state in moments:
            means = {
                name: torch.empty_like(parameter.data).copy_(state[name]) for name in MOMENTS[1:]
            }
            step = state["step"].to(parameter.device, copy=True)  # where fused AdamW counts steps
            self._optimiser.state[parameter] = {"step": step, **means}


class ZeroState:
    """State of a DeepSpeed engine, split over workers by ZeRO stage 1, 2 or 3."""

    def __init__(self, engine: Any, rank: int) -> None:
        self._zero = engine.optimizer
        self._rank = rank
        self._stage: int = engine.zero_optimization_stage()

    def whole(self, tensor: torch.Tensor, part: str) -> torch.Tensor | None:
        """See `WholeState`; each worker gives its share of the tensor."""
        import deepspeed
        from deepspeed.utils import safe_get_full_optimizer_state

        if part == PARAMETERS:
            with deepspeed.zero.GatheredParameters([tensor]):
                # In stages 1 and 2 parameters are views of one tensor; files need separate ones.
                return tensor.detach().clone()
        state = self._zero.optimizer.state
        if not state:
            return None
        if part == "step":  # the same for all parameters
            return next(iter(state.values()))["step"].clone()  # type: ignore[no-any-return]
        self._link()
        whole: torch.Tensor = safe_get_full_optimizer_state(tensor, part)
        return whole

    def take(
        self,
        values: Iterable[tuple[torch.Tensor, torch.Tensor]],
        moments: Iterable[tuple[nn.Parameter, Moments]],
    ) -> None:
        """See `WholeState`; each worker keeps its share of every tensor."""
        import deepspeed

        for tensor, value in values:
            with deepspeed.zero.GatheredParameters([tensor], modifier_rank=0):
                tensor.data.copy_(value)
        self._zero.refresh_fp32_params()
        state = self._zero.optimizer.state
        state.clear()
        for parameter, whole in moments:
            if not state:
                self._make_moments()
            for flat in state.values():
                flat["step"].copy_(torch.maximum(flat["step"], whole["step"]))
            for name in MOMENTS[1:]:
                self._set(parameter, name, whole[name])

    def _flat(self) -> list[torch.Tensor]:
        """This worker's share of the parameters, joined, which the optimiser steps."""
        if self._stage == 3:
            return list(self._zero.fp32_partitioned_groups_flat)
        return list(self._zero.single_partition_of_fp32_groups)

    def _make_moments(self) -> None:
        """Create zero moments; AdamW would only create them in its first step."""
        for flat in self._flat():
            self._zero.optimizer.state[flat] = {
                "step": torch.zeros((), dtype=torch.float32, device=flat.device),
                **{name: torch.zeros_like(flat.data) for name in MOMENTS[1:]},
            }
        self._link()

    def _link(self) -> None:
        """Link parameters to their moments.

        DeepSpeed would do so in the first step, but only for the first group of parameters.
        """
        from deepspeed.utils import lazy_init_hp_params_optimizer_state as link

        if self._stage < 3:
            groups = zip(self._zero.bit16_groups, self._flat(), strict=True)
            for parameters, flat in groups:
                link(parameters, flat, self._zero.optimizer.state)

    def _set(self, parameter: nn.Parameter, name: str, value: torch.Tensor) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        if self._stage < 3:
            safe_set_full_optimizer_state(parameter, value, name)
            return
        # DeepSpeed's own splitting fails if the workers' shares are not all full.
        length = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        share = torch.zeros(length)
        rest = value.flatten()[self._rank * length : (self._rank + 1) * length]
        share[: len(rest)] = rest
        safe_set_local_optimizer_state(parameter, share, name)


State = WholeState | ZeroState


def save_state(module: nn.Module, state: State, folder: Path | None) -> None:
    """Write a module's state part by part; workers without a folder only send their share."""
    for part, tensors in _parts(module, state, None if folder is None else _on_cpu):
        if folder is not None:
            save_file(tensors, _file(folder, part))


def snapshot(module: nn.Module, state: State) -> Callable[[Path], None]:
    """Copy a module's state into memory, and return a function that writes it like `save_state`.

    A GPU's caller does not wait for the copies; the function that writes them does.
    """
    parts = dict(_parts(module, state, _sent_to_cpu))
    device, arrived = next(module.parameters()).device, None
    if device.type == "cuda":
        arrived = torch.cuda.current_stream(device).record_event()

    def save(folder: Path) -> None:
        if arrived is not None:
            arrived.synchronize()
        for part, tensors in parts.items():
            save_file(tensors, _file(folder, part))

    return save


def _on_cpu(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().contiguous()


def _sent_to_cpu(x: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU, complete once the device has done what it was given up to now."""
    copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.device.type == "cuda")
    return copy.copy_(x, non_blocking=True)


def _parts(
    module: nn.Module, state: State, copied: Callable[[torch.Tensor], torch.Tensor] | None
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Copies of each of `PARTS` by the parameters' names; without a function to copy none."""
    named = named_tensors(module)
    for part in PARTS:
        tensors = {}
        for name, tensor in named.items():
            value = state.whole(tensor, part) if part == PARAMETERS or _trained(tensor) else None
            if copied is not None and value is not None:
                tensors[name] = copied(value)
        yield part, tensors


def load_state(module: nn.Module, state: State, folder: Path) -> None:
    """Load what `save_state` wrote, tensor by tensor; it must match this architecture."""
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
            stepped = set(files["step"].keys())
            moments = (
                (tensor, {part: files[part].get_tensor(name) for part in MOMENTS})
                for name, tensor in named.items()
                if isinstance(tensor, nn.Parameter) and name in stepped
            )
            state.take(values, moments)
    except (OSError, SafetensorError) as error:
        raise _unusable(folder, str(error).rstrip(".")) from error


def weights(module: nn.Module, state: State, *, keep: bool) -> dict[str, torch.Tensor]:
    """Copy parameters and buffers to the CPU of workers with ``keep``; every worker calls it."""
    copies = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        value = state.whole(tensor, PARAMETERS)
        if keep and value is not None:
            copies[name] = value.cpu().clone().contiguous()
    return copies


def differences(expected: Mapping[str, torch.Size], actual: Mapping[str, torch.Size]) -> list[str]:
    """Differences in the names and shapes of tensors, in words."""
    faults = [f"{name} is missing" for name in sorted(expected.keys() - actual)]
    faults += [
        f"{name} is {tuple(actual[name])}, expected {tuple(shape)}"
        for name, shape in expected.items()
        if name in actual and tuple(actual[name]) != tuple(shape)
    ]
    return faults + [
        f"{name} is not of this architecture" for name in sorted(actual.keys() - expected)
    ]


def listed(faults: list[str]) -> str:
    """The first three, joined."""
    return f"{'; '.join(faults[:3])}{' …' if len(faults) > 3 else ''}"


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters without duplicates, and buffers of the module's state."""
    kept = module.state_dict().keys()
    buffers = {name: value for name, value in module.named_buffers() if name in kept}
    return {**dict(module.named_parameters()), **buffers}


def _trained(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def _file(folder: Path, part: str) -> Path:
    return folder / f"{part}.safetensors"


def _faults(named: Mapping[str, torch.Tensor], files: Mapping[str, Any]) -> list[str]:
    # A parameter split by ZeRO stage 3 is empty but knows its shape.
    shapes = {name: getattr(tensor, "ds_shape", tensor.shape) for name, tensor in named.items()}
    faults = differences(shapes, _shapes(files[PARAMETERS]))
    trained = {name: shapes[name] for name, tensor in named.items() if _trained(tensor)}
    stepped = {name: shape for name, shape in trained.items() if name in files["step"].keys()}
    for part in MOMENTS[1:]:
        faults += differences(stepped, _shapes(files[part]))
    return faults


def _shapes(file: Any) -> dict[str, torch.Size]:
    return {name: torch.Size(file.get_slice(name).get_shape()) for name in file.keys()}


def _unusable(folder: Path, reason: str) -> BenchmdError:
    return BenchmdError(
        f"the checkpoint {folder} cannot be loaded: {reason}. It is damaged or of another "
        "architecture; remove it to start the run over."
    )
